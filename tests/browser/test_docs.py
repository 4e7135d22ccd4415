"""GET /docs in a browser: every operation is shown and answers what its examples ask, with no other host's help."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask
from werkzeug.serving import make_server

from attention_core.capture import AttentionReader
from service.model import LoadedModel
from service.openapi import document
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

    def open(self, path: str = "/docs") -> Any:
        self.page.goto(self.address + path)
        self.page.wait_for_selector(".opblock")
        return self.page

    def execute(self, name: str) -> Any:
        """Expand an operation, try it out as it stands, and execute it; its block, once there is an answer."""
        block = self.page.locator(f"#operations-{OPERATIONS[name][0]}-{name}")
        block.locator(".opblock-summary-control").click()
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
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    opened, complaints = Docs(page, address), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: opened.requests.append(request))
    page.route(
        lambda url: not url.startswith((address, "blob:", "data:")), lambda route: route.abort()
    )
    yield opened
    page.close()
    server.shutdown()
    thread.join()
    server.server_close()
    foreign = [one.url for one in opened.requests if not one.url.startswith((address, "blob:", "data:"))]
    assert foreign == []
    assert complaints == []


def test_every_operation_is_shown(docs: Docs) -> None:
    page = docs.open()
    shown = page.locator(".opblock").evaluate_all("blocks => blocks.map(block => block.id)")
    assert sorted(shown) == sorted(f"operations-{tag}-{name}" for name, (tag, _, _) in OPERATIONS.items())
    assert page.title() == "attention-service: the API"
    assert docs.paths().count("/openapi.json") == 1


def test_every_operation_answers_what_its_examples_ask(docs: Docs) -> None:
    docs.open()
    found = {name: status(docs.execute(name)) for name in OPERATIONS}
    assert {name: one for name, one in found.items() if one != "200"} == {}
