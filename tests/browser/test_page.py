"""The page, in a real browser, from disk, with no network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.formats.page import page
from tests.browser.conftest import BOTH_WAYS, Tab

TOKENS = ["The", "<b>", "\n", "it"]
WEIGHTS = np.array(
    [
        [[1, 0, 0, 0], [0.25, 0.75, 0, 0], [0.5, 0.125, 0.375, 0], [0.006, 0.869, 0.111, 0.014]],
        [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.75, 0.125, 0.125, 0], [0.625, 0.0625, 0.0625, 0.25]],
    ],
    dtype=np.float32,
)  # [head, query, key]


def answer() -> dict[str, Any]:
    tokens = [
        {"index": i, "id": i, "text": text, "raw": text, "start": i, "end": i + 1, "word": i}
        for i, text in enumerate(TOKENS)
    ]
    maps = [{"layer": 5, "head": head, "kv_head": 0, "weights": WEIGHTS[i]} for i, head in enumerate((2, 7))]
    common: dict[str, Any] = {"text": "x", "tokens": tokens, "words": [], "unit": "token", "warnings": []}
    top = [[{"key": 0, "weight": 1.0}], [{"key": 0, "weight": 0.625}]]
    return {
        "model": {"id": "tiny", "dtype": "float32"},
        "results": [
            {**common, "maps": maps},
            {"error": {"code": "text_too_long", "pointer": "/texts/1", "detail": "Too long."}},
            {**common, "queries": [0, 3], "maps": [{"aggregate": "mean", "top": top}]},
        ],
    }


@pytest.fixture
def view(tab: Tab) -> Any:
    """The frame of the answer's page."""
    return tab.show(page(answer()))


def readout(view: Any) -> dict[str, str]:
    """{key label and index: weight} as it is read out."""
    return {
        item.query_selector("b").inner_text(): item.query_selector("output").get_attribute("title")
        for item in view.query_selector_all(".readout li")
    }


def token(view: Any, index: int) -> Any:
    return view.locator(".tokens button").nth(index)


@BOTH_WAYS
def test_pointing_at_a_token_shows_the_weights_of_its_row(view: Any) -> None:
    assert view.locator(".tokens button").all_inner_texts() == ["The", "<b>", "↵", "it"]
    token(view, 3).hover()
    assert readout(view) == {"<b> 1": "0.869", "↵ 2": "0.111", "it 3": "0.014", "The 0": "0.006"}
    token(view, 1).hover()
    assert readout(view) == {"<b> 1": "0.75", "The 0": "0.25"}
    strengths = [token(view, i).evaluate("node => node.style.getPropertyValue('--part')") for i in range(4)]
    assert strengths == ["0.25", "0.75", "", ""]  # tokens ahead have no weight
    assert [token(view, i).get_attribute("data-weight") or "" for i in range(4)] == ["0.25", "0.75", "", ""]


def test_another_head_and_the_other_direction_can_be_chosen(view: Any) -> None:
    token(view, 0).click()
    view.select_option("#head", "7")
    view.get_by_label("Show").select_option("what attends to it")
    assert readout(view) == {"The 0": "1", "↵ 2": "0.75", "it 3": "0.625", "<b> 1": "0.5"}


@BOTH_WAYS
def test_it_works_with_the_keyboard_alone(view: Any) -> None:
    token(view, 0).focus()
    for key in ("End", "ArrowLeft"):
        view.page.keyboard.press(key)
    assert readout(view) == {"The 0": "0.5", "↵ 2": "0.375", "<b> 1": "0.125"}
    assert token(view, 2).get_attribute("aria-pressed") == "false"
    view.page.keyboard.press("Enter")
    assert token(view, 2).get_attribute("aria-pressed") == "true"
    view.page.keyboard.press("Tab")  # to the heat map, and the strongest cell of what is kept
    assert next(iter(readout(view))) == "The 0"
    for key in ("ArrowRight", "ArrowDown"):
        view.page.keyboard.press(key)
    assert view.locator(".readout > b").inner_text() == "it"
    assert next(iter(readout(view).items())) == ("<b> 1", "0.869")
    view.page.keyboard.press("Escape")
    assert token(view, 2).get_attribute("aria-pressed") == "false"
    assert view.locator(".readout").inner_text().startswith("Strongest of all rows")


def test_pointing_at_a_cell_of_the_heat_map_names_its_weight_first(view: Any) -> None:
    box = view.locator("canvas")
    size = box.bounding_box()
    box.hover(position={"x": size["width"] * 2.5 / 4, "y": size["height"] * 3.5 / 4})
    assert next(iter(readout(view).items())) == ("↵ 2", "0.111")


def test_the_heat_map_is_darker_where_the_weight_is_higher_and_empty_ahead(view: Any) -> None:
    pixels = view.evaluate(
        "() => { const c = document.querySelector('canvas');"
        " return [c.width, c.height, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }"
    )
    assert pixels[:2] == [4, 4]
    rgba = np.array(pixels[2:]).reshape(4, 4, 4)
    ahead = np.triu(np.ones((4, 4), dtype=bool), 1)
    assert (rgba[ahead, 3] == 0).all()
    assert (rgba[~ahead, 3] == 255).all()
    order = np.argsort(WEIGHTS[0][~ahead])
    assert (np.diff(rgba[~ahead, 0][order].astype(int)) <= 0).all()


def test_other_texts_can_be_chosen_and_a_skipped_one_says_why(view: Any) -> None:
    view.select_option("#text", "1")
    assert view.locator("#warnings").inner_text() == "text_too_long: Too long."
    assert not view.locator(".tokens").is_visible()
    view.select_option("#text", "2")
    assert view.locator("#name").inner_text() == "mean"
    assert not view.locator("#layer").is_visible()
    token(view, 3).hover()
    assert readout(view) == {"The 0": "0.625"}
    token(view, 1).hover()
    assert "not asked for" in view.locator(".readout").inner_text()


@BOTH_WAYS
def test_it_fits_a_narrow_frame_and_follows_the_colour_scheme(view: Any) -> None:
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = "() => getComputedStyle(document.body).backgroundColor"
    view.page.emulate_media(color_scheme="light")
    light = view.evaluate(paper)
    view.page.emulate_media(color_scheme="dark")
    assert light == "rgb(255, 255, 255)" != view.evaluate(paper)


def test_its_title_begins_as_the_text_does_and_other_weights_are_told_in_a_sentence(tab: Tab) -> None:
    asked = answer()
    asked["results"][0]["text"] = "The cat sat " * 20
    asked["model"]["fallback"] = "the hub has no model x"
    tab.show(page(asked))
    title = tab.page.frames[-1].title()
    assert title.startswith("“The cat sat The cat")
    assert len(title) < 80
    assert tab.page.frames[-1].locator("#warnings").inner_text() == (
        "The first choice of weights could not be had: the hub has no model x. Those of tiny are used instead."
    )
