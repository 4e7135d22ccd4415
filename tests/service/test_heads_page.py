"""The page of a heads answer, as text: what it carries, and what cannot leave it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from service.formats.page import CONTENT_SECURITY_POLICY, heads_page, page

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\u2028",
    "&lt;",
    "{{data}}{{script}}",
    "\u202e",
]


class Elements(HTMLParser):
    """The tags in order, and each script's text."""

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(html.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts[-1] += data


def data_of(html: bytes) -> Any:
    data, _ = Elements(html).scripts
    return json.loads(data)


@pytest.fixture
def answer(client: FlaskClient) -> dict[str, Any]:
    reply = client.post("/v1/heads", json={"text": "the cat sat on the mat"})
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json
    return found


def test_the_page_carries_the_answer_whole(answer: dict[str, Any]) -> None:
    assert data_of(heads_page(answer)) == answer


def test_no_text_of_the_request_can_leave_the_data(answer: dict[str, Any]) -> None:
    asked = {**answer, "request": {"texts": HOSTILE}, "model": {**answer["model"], "id": HOSTILE[0]}}
    html = heads_page(asked)
    assert Elements(html).tags == Elements(heads_page(answer)).tags
    assert "\u2028" not in html.decode()
    assert data_of(html) == asked


@given(st.text(max_size=20))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert data_of(heads_page({"request": {"text": text}})) == {"request": {"text": text}}


def test_the_page_asks_for_nothing_from_outside(answer: dict[str, Any]) -> None:
    html = heads_page(answer).decode().replace("http://www.w3.org/2000/svg", "")  # a name that nobody asks
    assert f'content="{CONTENT_SECURITY_POLICY}"' in html
    for reference in ("http:", "https:", "src=", "href=", "url(", "@import", "eval(", "innerHTML", "{{"):
        assert reference not in html


def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        heads_page({"heads": [{"entropy": float("nan")}]})


def test_both_pages_share_one_style_and_one_script() -> None:
    pages = [page({"results": []}).decode(), heads_page({}).decode()]
    assert all(html.count("--paper: 255 255 255") == 1 for html in pages)
    assert all(html.count("function element(") == 1 for html in pages)
