"""One attention map in a real browser, on real weights: what its arcs, tokens and cells show is what the JSON says."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.browser.conftest import OpenPage

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect

TEXT = "The cat sat on the mat because it was tired."
LONG = "one two three four " * 40
IT, CAT = 7, 1
PHONE = {"width": 320, "height": 640}


def query(**parameters: object) -> str:
    return urlencode({"text": TEXT, "layer": 5, "head": 5, **parameters})


@pytest.fixture(scope="session")
def weights(service: str) -> list[list[float]]:
    with urllib.request.urlopen(f"{service}v1/attention?{query(decimals=9)}") as answer:
        found: list[list[float]] = json.load(answer)["results"][0]["maps"][0]["weights"]
    return found


def html(**parameters: object) -> str:
    return f"v1/attention.html?{query(decimals=9, **parameters)}"


def token(page: Any, index: int) -> Any:
    return page.locator(".tokens button").nth(index)


def arcs(page: Any) -> dict[tuple[int, int], float]:
    """{(query, key): weight} of all that are drawn."""
    found = page.locator(".arcs path").evaluate_all(
        "paths => paths.map(one => [one.dataset.query, one.dataset.key, one.dataset.weight].map(Number))"
    )
    assert len(found) == len({(query, key) for query, key, _ in found})
    return {(query, key): weight for query, key, weight in found}


def readout(page: Any) -> dict[str, float]:
    return {
        item.locator("b").inner_text(): float(item.locator("output").get_attribute("title"))
        for item in page.locator(".readout li").all()
    }


def test_pointing_at_a_token_draws_its_weights_as_arcs(
    open_page: OpenPage, weights: list[list[float]]
) -> None:
    page = open_page(html())
    token(page, IT).hover()
    drawn = arcs(page)
    assert drawn == {(IT, key): weights[IT][key] for key in range(IT + 1) if weights[IT][key] >= 0.01}
    assert drawn[IT, CAT] == pytest.approx(0.869, abs=5e-4)
    widths = page.locator(".arcs path").evaluate_all(
        "paths => paths.map(one => [Number(one.dataset.weight), Number(one.getAttribute('stroke-width'))])"
    )
    ordered = sorted(widths)
    assert [width for _, width in ordered] == sorted(width for _, width in widths)
    assert ordered[0][1] < ordered[-1][1]
    expect(token(page, CAT)).to_have_attribute("data-weight", "0.87")
    assert next(iter(readout(page).items())) == ("cat 1", drawn[IT, CAT])


def test_every_arc_begins_and_ends_at_its_tokens(open_page: OpenPage) -> None:
    for size in ({}, PHONE):
        page = open_page(html(), **size)
        token(page, IT).hover()
        path = page.locator(f".arcs path[data-key='{CAT}']")
        ends = path.evaluate(
            "path => { const box = path.ownerSVGElement.getBoundingClientRect();"
            " return [0, path.getTotalLength()].map(at => path.getPointAtLength(at))"
            ".map(({x, y}) => [x + box.x, y + box.y]); }"
        )
        columns = page.locator(".arcs").get_attribute("data-form") == "columns"
        assert columns == bool(size)
        places = [token(page, IT), page.locator(".others span").nth(CAT) if columns else token(page, CAT)]
        for (x, y), place in zip(ends, places, strict=True):
            box = place.bounding_box()
            if columns:
                assert abs(y - (box["y"] + box["height"] / 2)) < 1
                assert min(abs(x - box["x"]), abs(x - box["x"] - box["width"])) < 4
            else:
                assert abs(x - (box["x"] + box["width"] / 2)) < 1
                assert abs(y - box["y"]) < 4


def test_with_nothing_pointed_at_the_strongest_arc_of_every_row_is_drawn(
    open_page: OpenPage, weights: list[list[float]]
) -> None:
    page = open_page(html())
    strongest = {
        (query, max(range(query + 1), key=row.__getitem__)): max(row)
        for query, row in enumerate(weights)
        if query
    }
    expect(page.locator(".arcs path")).to_have_count(len(strongest))
    assert arcs(page) == strongest
    page.get_by_label("Hide arcs to the first token").check()
    drawn = arcs(page)
    assert drawn.keys() == {
        (query, max(range(1, query + 1), key=row.__getitem__)) for query, row in enumerate(weights) if query
    }
    token(page, IT).hover()
    assert (IT, CAT) in arcs(page)
    assert 0 not in {key for _, key in arcs(page)}


def test_the_other_direction_draws_a_column(open_page: OpenPage, weights: list[list[float]]) -> None:
    page = open_page(html())
    page.get_by_label("Show").select_option("what attends to it")
    token(page, CAT).hover()
    assert arcs(page) == {
        (query, CAT): row[CAT] for query, row in enumerate(weights) if query >= CAT and row[CAT] >= 0.01
    }


def test_an_arc_names_its_weight(open_page: OpenPage, weights: list[list[float]]) -> None:
    page = open_page(html())
    token(page, IT).click()
    path = page.locator(".arcs path[data-key='2']")
    middle = path.evaluate(
        "path => { const {x, y} = path.getPointAtLength(path.getTotalLength() / 2);"
        " const box = path.ownerSVGElement.getBoundingClientRect(); return [x + box.x, y + box.y]; }"
    )
    page.mouse.move(*middle)
    expect(page.locator(".arcs path.chosen")).to_have_attribute("data-key", "2")
    assert next(iter(readout(page).items())) == ("sat 2", weights[IT][2])


def test_a_kept_token_stays_until_escape(open_page: OpenPage) -> None:
    page = open_page(html())
    token(page, IT).click()
    token(page, 3).hover()
    expect(page.locator(".readout > b")).to_have_text("on")
    page.mouse.move(1, 899)
    expect(page.locator(".readout > b")).to_have_text("it")
    page.keyboard.press("Escape")
    expect(page.locator(".readout")).to_contain_text("Strongest of all rows")
    token(page, IT).click()
    token(page, IT).click()  # again: lets go
    expect(token(page, IT)).to_have_attribute("aria-pressed", "false")


def test_all_of_it_is_reached_by_keyboard(open_page: OpenPage, weights: list[list[float]]) -> None:
    page = open_page(html())
    for _ in range(4):  # direction, view, sink, tokens
        page.keyboard.press("Tab")
    expect(token(page, 0)).to_be_focused()
    for _ in range(IT):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".readout > b")).to_have_text("it")
    page.keyboard.press("Enter")
    expect(token(page, IT)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Tab")
    expect(page.locator(".heat-map")).to_be_focused()
    assert next(iter(readout(page).items())) == ("cat 1", weights[IT][CAT])
    page.keyboard.press("ArrowRight")
    assert next(iter(readout(page).items())) == ("sat 2", weights[IT][2])
    page.keyboard.press("ArrowDown")
    assert next(iter(readout(page).items())) == ("sat 2", weights[IT + 1][2])
    box, cursor = page.locator("canvas").bounding_box(), page.locator(".cursor").bounding_box()
    side = box["width"] / len(weights)
    assert abs(cursor["x"] - box["x"] - 2 * side) < 2
    assert abs(cursor["y"] - box["y"] - (IT + 1) * side) < 2
    page.keyboard.press("Escape")
    expect(token(page, IT)).to_have_attribute("aria-pressed", "false")


def test_arcs_or_the_heat_map_can_be_chosen(open_page: OpenPage) -> None:
    page = open_page(html())
    choice, heat, tokens = (
        page.locator(".view-choice select"),
        page.locator(".heat-map"),
        page.locator(".tokens"),
    )
    for view, shown in (("arcs", [True, False]), ("heat map", [False, True])):
        choice.select_option(view)
        assert [tokens.is_visible(), heat.is_visible()] == shown
    choice.select_option("arcs and heat map")
    assert tokens.bounding_box()["x"] + tokens.bounding_box()["width"] <= heat.bounding_box()["x"]


def test_nothing_moves_while_pointing(open_page: OpenPage) -> None:
    for size in ({}, PHONE):
        page = open_page(html(), **size)
        boxes = [page.locator("#model").bounding_box()]
        for index in (0, IT, 10):
            token(page, index).hover()
            boxes.append(page.locator("#model").bounding_box())
        assert boxes == [boxes[0]] * 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_it_is_accessible(open_page: OpenPage, no_violations: Any, scheme: str, width: int) -> None:
    page = open_page(html(), width=width, color_scheme=scheme)
    no_violations(page)
    token(page, IT).click()
    no_violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_long_text_has_two_columns_and_pointing_touches_few_nodes(open_page: OpenPage) -> None:
    words = LONG + "one " * (512 - 4 * 40)
    page = open_page(f"v1/attention.html?{urlencode({'text': words, 'layer': 5, 'head': 5, 'top_k': 64})}")
    count = page.locator(".tokens button").count()
    assert count >= 500
    expect(page.locator(".arcs")).to_have_attribute("data-form", "columns")
    assert page.locator("main *").count() < 4 * count  # not one for every cell
    token(page, 100).hover()
    expect(page.locator(".readout > b")).to_have_text("one")
    touched = page.evaluate(  # not how long it takes, which a busy machine has a say in
        "async () => { const all = [], [...buttons] = document.querySelectorAll('.tokens button');"
        " const watch = new MutationObserver(() => {});"
        " watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});"
        " for (const one of buttons.slice(-40)) {"
        " one.dispatchEvent(new PointerEvent('pointerover', {bubbles: true}));"
        " all.push(watch.takeRecords().reduce((sum, {type, addedNodes, removedNodes}) =>"
        " sum + (type === 'childList' ? addedNodes.length + removedNodes.length : 1), 0)); }"
        " return all; }"
    )
    assert 0 < min(touched) <= max(touched) < count
