"""The page of an evaluation, as text: how it is asked for, what it carries, and what cannot leave it."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from service.formats.page import CONTENT_SECURITY_POLICY, evaluation_page, heads_page
from tests.service.test_coreference import ITEMS, lines
from tests.service.test_heads_page import HOSTILE, Elements, data_of
from tests.service.test_negotiation import ok

PATH = "/v1/coreference/evaluate"
BODY: dict[str, Any] = {"items": ITEMS, "top": 4}


@pytest.fixture
def answer(client: FlaskClient) -> dict[str, Any]:
    found: dict[str, Any] = ok(client.post(PATH, json=BODY)).get_json()
    return found


@pytest.mark.parametrize("body", [BODY, {"items": ITEMS, "method": "substitution"}])
def test_the_page_carries_the_answer_whole(client: FlaskClient, body: dict[str, Any]) -> None:
    page = ok(client.post(f"{PATH}?format=html", json=body))
    assert page.content_type == "text/html; charset=utf-8"
    assert page.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert data_of(page.data) == ok(client.post(PATH, json=body)).get_json()


def test_a_browser_that_sends_json_lines_gets_the_page_by_its_accept_header(
    client: FlaskClient, answer: dict[str, Any]
) -> None:
    page = client.post(
        f"{PATH}?top=4",
        data=lines(ITEMS),
        content_type="application/x-ndjson",
        headers={"Accept": "text/html,*/*;q=0.8"},
    )
    found = data_of(ok(page).data)
    assert {**found, "skipped": None} == {**answer, "skipped": None}
    assert [one["line"] for one in found["skipped"]] == [4, 5]


def test_no_text_of_the_request_can_leave_the_data(answer: dict[str, Any]) -> None:
    skipped = [{"pointer": "/items/0", "id": text, "code": "c", "detail": text} for text in HOSTILE]
    hostile = {**answer, "skipped": skipped, "model": {**answer["model"], "id": HOSTILE[0]}}
    html = evaluation_page(hostile)
    assert Elements(html).tags == Elements(evaluation_page(answer)).tags
    assert "\u2028" not in html.decode()
    assert data_of(html) == hostile


def test_the_page_asks_for_nothing_from_outside(answer: dict[str, Any]) -> None:
    html = (
        evaluation_page(answer).decode().replace("http://www.w3.org/2000/svg", "")
    )  # a name that nobody asks
    assert f'content="{CONTENT_SECURITY_POLICY}"' in html
    for reference in ("http:", "https:", "src=", "href=", "url(", "@import", "eval(", "innerHTML", "{{"):
        assert reference not in html


def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        evaluation_page({"best": {"p_value": float("nan")}})


def test_it_shares_style_and_script_with_the_other_pages() -> None:
    for html in (evaluation_page({}).decode(), heads_page({}).decode()):
        assert html.count("--paper: 255 255 255") == html.count("function element(") == 1
