"""GET /docs in a browser: every operation is shown and answers what its examples ask, with no other host's help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from flask import Flask

from attention_core.capture import AttentionReader
from service.model import LoadedModel
from service.openapi import document
from service.schemas.common import SENTENCE
from tests.browser.conftest import served
from tests.conftest import MakeApp
from tests.tiny import tiny_backbone, tiny_model

KEY = "k" * 16
OPERATIONS = {
    operation["operationId"]: (operation["tags"][0], method, path)
    for path, methods in document()["paths"].items()
    for method, operation in methods.items()
}


def large_as_qwen() -> LoadedModel:
    """24 layers of 14 heads, as the model of the contract's examples has; narrow, and of random weights."""
    tiny = tiny_model()
    backbone = tiny_backbone(
        num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, hidden_size=56
    )
    return LoadedModel(AttentionReader(backbone), tiny.tokenizer, tiny.max_tokens, tiny.provenance, None)


@dataclass
class Docs:
    """The page in a tab that reaches no host but the service's, and what it has asked for."""

    page: Any
    address: str
    requests: list[Any] = field(default_factory=list)
    refusals: int = 0  # answers from 400 on that are meant; the console tells of each

    def open(self, path: str = "/docs") -> Any:
        self.page.goto(self.address + path)
        self.page.wait_for_selector(".opblock")
        return self.page

    def block(self, name: str) -> Any:
        return self.page.locator(f"#operations-{OPERATIONS[name][0]}-{name}")

    def summary(self, block: Any) -> Any:
        return block.locator(".opblock-summary-control")

    def execute(self, name: str) -> Any:
        """Expand an operation, try it out as it stands, and execute it; its block, once there is an answer."""
        block = self.block(name)
        self.summary(block).click()
        block.get_by_role("button", name="Try it out").click()
        block.get_by_role("button", name="Execute").click()
        block.locator(".live-responses-table").wait_for()
        return block

    def paths(self) -> list[str]:
        return [urlsplit(request.url).path for request in self.requests]


def status(block: Any) -> str:
    return str(block.locator(".live-responses-table .response-col_status").last.inner_text()).split()[0]


@pytest.fixture(scope="module")
def qwen() -> LoadedModel:
    return large_as_qwen()


@pytest.fixture
def docs(
    browser: Any, make_app: MakeApp, qwen: LoadedModel, request: pytest.FixtureRequest
) -> Iterator[Docs]:
    """Of an app with the parameter's settings; no complaint on the console is let through."""
    app: Flask = make_app(lambda: qwen, signing_key="s" * 32, **getattr(request, "param", {}))
    with served(app) as address:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        opened, complaints = Docs(page, address), []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: opened.requests.append(request))
        page.route(lambda url: not url.startswith((address, "blob:", "data:")), lambda route: route.abort())
        yield opened
        page.close()
    foreign = [one.url for one in opened.requests if not one.url.startswith((address, "blob:", "data:"))]
    assert foreign == []
    refused = [one for one in complaints if one.startswith("Failed to load resource")]
    assert (len(refused), [one for one in complaints if one not in refused]) == (opened.refusals, [])


def test_every_operation_is_shown(docs: Docs) -> None:
    page = docs.open()
    shown = page.locator(".opblock").evaluate_all("blocks => blocks.map(block => block.id)")
    assert sorted(shown) == sorted(f"operations-{tag}-{name}" for name, (tag, _, _) in OPERATIONS.items())
    assert page.title() == "attention-service: the API"
    assert docs.paths().count("/openapi.json") == 1


@pytest.mark.timeout(600)
def test_every_operation_answers_what_its_examples_ask(docs: Docs) -> None:
    docs.open()
    found = {}
    for name in OPERATIONS:
        block = docs.execute(name)
        found[name] = status(block)
        docs.summary(block).click()  # closed again: the page draws all that is open with every change
    assert {name: one for name, one in found.items() if one != "200"} == {}


def test_an_execution_shows_the_real_answer_and_sends_no_default(docs: Docs) -> None:
    docs.open()
    block = docs.execute("get_attention_maps")
    shown = json.loads(block.locator(".response-col_description pre").first.inner_text())
    sent = next(one for one in docs.requests if urlsplit(one.url).path == "/v1/attention")
    assert urlsplit(sent.url).query == f"text={quote(SENTENCE)}&layers=5&heads=5&decimals=3"
    assert shown == sent.response().json()
    assert (shown["results"][0]["maps"][0]["layer"], shown["model"]["id"]) == (5, "tiny")


def test_a_picture_is_shown_as_one(docs: Docs) -> None:
    docs.open()
    block = docs.block("get_head_kinds_as")
    docs.summary(block).click()
    block.get_by_role("button", name="Try it out").click()
    block.locator("tr[data-param-name=name] select").select_option("png")
    block.get_by_role("button", name="Execute").click()
    picture = block.locator(".live-responses-table img")
    picture.wait_for()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 800


@pytest.mark.parametrize("docs", [{"root_path": "/look/inside"}], indirect=True)
@pytest.mark.parametrize("path", ["/docs", "/docs/", "/look/inside/docs", "/look/inside/docs/"])
def test_it_works_below_a_prefix_and_with_a_slash_at_its_end(docs: Docs, path: str) -> None:
    docs.open(path)
    assert status(docs.execute("live")) == "200"
    root = path.partition("/docs")[0]
    assert docs.paths()[-1] == f"{root}/health/live"
    assert all(one.startswith(f"{root}/") for one in docs.paths())


@pytest.mark.parametrize("docs", [{"api_keys": KEY}], indirect=True)
def test_a_key_given_to_authorize_is_sent(docs: Docs) -> None:
    page = docs.open()
    docs.refusals = 1
    assert status(docs.execute("model")) == "401"
    page.get_by_role("button", name="Authorize").click()
    form = page.locator(".auth-container", has_text="bearer")
    form.locator("input").fill(KEY)
    form.get_by_role("button", name="Apply").click()
    page.locator(".auth-container").first.get_by_role("button", name="Close").click()
    block = docs.block("model")
    block.get_by_role("button", name="Execute").click()
    block.locator(".live-responses-table .response-col_status", has_text="200").wait_for()
    assert docs.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_systems_colours_and_fits_a_phone(docs: Docs, scheme: str) -> None:
    docs.page.emulate_media(color_scheme=scheme)
    docs.page.set_viewport_size({"width": 390, "height": 844})
    page = docs.open()
    docs.execute("get_attention_maps")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (background == "rgb(28, 32, 34)") == (scheme == "dark")
