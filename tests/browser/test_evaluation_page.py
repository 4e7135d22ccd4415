"""The page of an evaluation, in a real browser, from disk, with no network."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from service.formats.page import evaluation_page
from tests.browser.conftest import BOTH_WAYS, Tab
from tests.service.test_coreference import ITEM, ITEMS, LATER, lines
from tests.service.test_negotiation import ok
from tests.tiny import HEADS, LAYERS

PATH = "/v1/coreference/evaluate"
HOSTILE = "</script><b>\u202e'\"$(x)`"
THREE = {  # so that chance is not one half everywhere
    "text": "the dog, the cat and the mat: it sat",
    "pronoun": {"text": "it"},
    "candidates": [{"text": "dog"}, {"text": "cat"}, {"text": "mat"}],
    "gold": 1,
    "id": "three",
}
MANY = [*ITEMS, THREE]
HALVES = {"items": MANY, "split": {"test_fraction": 0.5, "seed": 2}, "top": 5}
WHOLE = {"items": MANY, "split": None, "top": 5}

Open = Callable[..., Any]


@pytest.fixture
def ask(client: FlaskClient) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An answer of the tiny model."""

    def post(body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = ok(client.post(PATH, json=body)).get_json()
        return answer

    return post


@pytest.fixture
def view(tab: Tab) -> Open:
    """Opens an answer's page."""
    return lambda answer, fragment="": tab.show(evaluation_page(answer), fragment)


def text_of(view: Any, where: str) -> str:
    """What a reader sees there, with plain spaces."""
    text: str = view.locator(where).inner_text()
    return text.replace("\u00a0", " ")


def cell(view: Any, layer: int, head: int) -> Any:
    return view.locator(f'#cells td[aria-label^="Layer {layer}, head {head}:"]')


def name_of(head: dict[str, Any]) -> str:
    return f"L{head['layer']}H{head['head']}"


def exact(shown: str | None) -> list[float]:
    """The numbers of a title."""
    return [float(number) for number in re.split(", | to ", shown or "")]


def drawn(bar: Any) -> dict[str, tuple[float, float]]:
    """From where to where each mark of a bar goes, as shares of its axis, as the browser lays it out."""
    found: dict[str, tuple[float, float]] = bar.locator(".track").evaluate(
        """track => {
          const {left, width} = track.getBoundingClientRect(), inner = width - 1;  // less its border
          return Object.fromEntries(Array.from(track.children, node => {
            const box = node.getBoundingClientRect();
            return [node.className || "bar", [(box.left - left) / inner, (box.right - left) / inner]];
          }));
        }"""
    )
    return found


def check_bar(bar: Any, accuracy: dict[str, Any], within: dict[str, Any] | None = None) -> None:
    """The bar, its whisker and its lines are where the numbers are, and the numbers are told."""
    told = bar.locator(".value").inner_text().replace("\u00a0", " ")
    if not accuracy["n"]:
        assert told == "no item"
        return
    assert f"{100 * accuracy['accuracy']:.0f} % {accuracy['correct']} of {accuracy['n']}" in told
    assert exact(bar.locator(".value").get_attribute("title")) == [accuracy["accuracy"], *accuracy["ci95"]]
    marks, pixel = drawn(bar), 0.01
    assert marks["bar"] == pytest.approx((0, accuracy["accuracy"]), abs=pixel)
    assert marks["whisker"] == pytest.approx(accuracy["ci95"], abs=2 * pixel)
    for line in ("random", "ceiling"):
        if within is None or within[line] is None:
            assert line not in marks
        else:
            assert sum(marks[line]) / 2 == pytest.approx(within[line], abs=pixel)


def test_the_warnings_come_first_and_need_no_click(ask: Open, view: Open) -> None:
    answer = ask(WHOLE)
    answer["model"]["fallback"] = "the weights asked for were not there"
    page = view(answer)
    told = page.locator("#warnings li").all_inner_texts()
    messages = [one["message"] for one in answer["warnings"]] + [answer["model"]["fallback"]]
    assert len(messages) >= 4
    assert [one.partition(": ")[2] for one in told] == messages
    first = page.locator("main > :not(header)").first
    assert first.get_attribute("id") == "notes"
    assert first.is_visible()
    assert "right one" in text_of(page, "#gold")


def test_every_item_that_was_sent_is_accounted_for(ask: Open, view: Open) -> None:
    answer = ask(HALVES)
    page = view(answer)
    counts = text_of(page, "#counts")
    assert counts.startswith("7 items sent, 5 scored, 2 skipped.")
    assert f"chosen on {answer['parts']['dev']['n']} of these" in counts
    page.locator("#skipped summary").click()
    for told, one in zip(page.locator("#skipped li").all_inner_texts(), answer["skipped"], strict=True):
        assert told == f"{one['pointer']}, {one['id']}: {one['code']}: {one['detail']}"


def test_lines_that_could_not_be_read_are_named_by_their_number(client: FlaskClient, view: Open) -> None:
    sent = lines(["{", *MANY])
    answer = ok(client.post(PATH, data=sent, content_type="application/x-ndjson")).get_json()
    page = view(answer)
    page.locator("#skipped summary").click()
    assert page.locator("#skipped li").first.inner_text().startswith("line 1: malformed_line: ")


@pytest.mark.parametrize("body", [HALVES, WHOLE])
def test_the_best_head_stands_beside_what_it_must_be_compared_with(
    body: dict[str, Any], ask: Open, view: Open
) -> None:
    answer = ask(body)
    page = view(answer)
    parts, best = answer["parts"], answer["best"]
    part = parts.get("test", parts["all"])
    expected = [(best.get("test", best["all"]), part), (part["first"], part), (part["nearest"], part)]
    if "dev" in best:
        expected.insert(1, (best["dev"], parts["dev"]))
    bars = page.locator("#bars > li:not(.axis)").all()
    assert len(bars) == len(expected)
    for one, (accuracy, within) in zip(bars, expected, strict=True):
        check_bar(one, accuracy, within)
    assert name_of(best) in bars[0].inner_text()
    keys = text_of(page, "#keys")
    assert f"random {100 * part['random']:.0f} %" in keys
    assert f"ceiling {100 * part['ceiling']:.0f} %" in keys


@pytest.mark.parametrize("body", [HALVES, WHOLE])
def test_what_chance_would_do_is_told_in_sentences(body: dict[str, Any], ask: Open, view: Open) -> None:
    answer = ask(body)
    best, chance = answer["best"], answer["chance_of_best"]
    flips, many, ties = text_of(view(answer), "#chance").split("\n")
    p_value, corrected = re.findall(r"a probability of ([\d.]+);.* \(Holm\): ([\d.]+)\.$", flips)[0]
    assert float(p_value) == pytest.approx(best["p_value"], rel=0.05)
    assert float(corrected) == pytest.approx(best["p_value_holm"], rel=0.05)
    chosen = best.get("dev", best["all"])
    assert f"{LAYERS * HEADS} heads that flip coins" in many
    assert f"({chosen['correct']} of {chosen['n']} " in many
    for shown, value in zip(
        re.findall(r"(\S+ )?([\d.]+) %", many),
        (chance["probability"], chance["expected_accuracy"]),
        strict=True,
    ):
        assert float(shown[1]) == pytest.approx(100 * value, abs=0.11)
    others = best["tied_heads"] - 1
    assert ties.startswith(f"{others} other head" if others else "No other head")


def test_what_is_certain_and_what_is_almost_certain_look_different(ask: Open, view: Open) -> None:
    page = view(ask(WHOLE))
    shown = page.evaluate("[1, 0.9999, 0.0001, 0].map(value => percent(value, 1).replaceAll('\\u00a0', ' '))")
    assert shown == ["100.0 %", "> 99.9 %", "< 0.1 %", "0.0 %"]
    assert page.evaluate("[0.05, 1e-7, 1].map(probability)") == ["0.05", "less than 0.0001", "1"]


def test_the_verdict_names_every_rule_that_does_as_well(ask: Open, view: Open) -> None:
    answer = ask(WHOLE)
    part, head = answer["parts"]["all"], answer["heads"][0]
    part["random"] = 0.5

    def accuracy(correct: int, low: float, high: float) -> dict[str, Any]:
        return {"correct": correct, "n": 20, "accuracy": correct / 20, "ci95": [low, high]}

    def verdict(own: dict[str, Any], first: dict[str, Any], nearest: dict[str, Any]) -> str:
        part["first"], part["nearest"] = first, nearest
        head["all"] = own
        return text_of(view(answer), "#verdict")

    # Wilson intervals of 20 items, to two places
    low, middle, high = accuracy(5, 0.11, 0.47), accuracy(12, 0.39, 0.78), accuracy(18, 0.7, 0.97)
    told = verdict(low, middle, high)
    assert "The first noun, the nearest noun and a noun at random are right at least as often." in told
    told = verdict(middle, high, low)
    assert "The first noun is right at least as often." in told
    assert "39 to 78 %, includes what a noun at random achieves" in told
    assert "The first noun is right at least as often." in verdict(middle, middle, low)
    told = verdict(high, low, middle)
    assert "70 to 97 %, is above what" in told
    assert "overlaps with the interval of the nearest noun." in told
    assert verdict(high, low, low).endswith("achieve on these items.")


def test_the_noun_and_its_place_are_told_apart(ask: Open, view: Open) -> None:
    answer = ask(WHOLE)
    page = view(answer)
    best = answer["heads"][0]
    first, rest = page.locator("#places > li:not(.axis)").all()
    check_bar(first, best["gold_first"])
    check_bar(rest, best["gold_not_first"])
    assert f"first noun on {100 * best['picks_first_rate']:.0f} % of them" in text_of(page, "#places-about")


@BOTH_WAYS
def test_pointing_at_a_head_reads_out_what_the_answer_holds(ask: Open, view: Open) -> None:
    answer = ask(HALVES)
    page = view(answer)
    assert page.locator("#cells td").count() == LAYERS * HEADS
    listed = {(one["layer"], one["head"]): one for one in answer["heads"]}
    n = answer["parts"]["test"]["n"]
    for layer, row in enumerate(answer["grid"]["accuracy"]):
        for head, value in list(enumerate(row))[:: 3 if layer else 1]:
            cell(page, layer, head).hover()
            told = text_of(page, "#headline")
            assert told.startswith(f"Layer {layer}, head {head}")
            assert f"{100 * value:.0f} % {round(value * n)} of {n} test items" in told
            bars = page.locator("#head li:not(.axis)").all()
            one = listed.get((layer, head))
            names = ("dev", "test", "all", "gold_first", "gold_not_first")
            if one is None:
                told = [bar.locator(".value").inner_text() for bar in bars]
                assert [name for name, text in zip(names, told, strict=True) if text[0].isdigit()] == ["test"]
                assert "Not in the list" in text_of(page, "#head")
                continue
            for bar, name in zip(bars, names, strict=True):
                check_bar(bar, one[name], answer["parts"].get(name))
            assert f"Balanced accuracy {100 * one['balanced']:.0f} %" in text_of(page, "#head")
    dots = page.evaluate("Array.from(document.querySelectorAll('#cells .listed'), one => one.dataset.name)")
    assert set(dots) == {name_of(one) for one in answer["heads"]}
    assert page.evaluate("document.querySelector('#cells .best').dataset.name") == name_of(answer["best"])


def test_colours_say_how_far_from_chance_a_head_is(ask: Open, view: Open) -> None:
    answer = ask(WHOLE)
    page = view(answer)
    chance = answer["parts"]["all"]["random"]
    for layer, row in enumerate(answer["grid"]["accuracy"]):
        for head, value in enumerate(row):
            color = cell(page, layer, head).evaluate("node => node.style.backgroundImage")
            assert ("--below" in color) == (value < chance)
            strength = float(re.findall(r"/ ([\d.e-]+)\)", color)[0])
            span = chance if value < chance else 1 - chance
            assert strength == pytest.approx(abs(value - chance) / span)
    place = page.locator(".ramp .random").evaluate("node => node.style.left")
    assert float(place.rstrip("%")) == pytest.approx(100 * chance)


def test_heads_that_were_not_evaluated_look_like_it(ask: Open, view: Open) -> None:
    page = view(ask({**WHOLE, "heads": [[0, 1], [2, 4]]}))
    assert page.locator("#cells td").count() == 4
    assert page.locator("#cells td.missing").count() == 2
    cell(page, 0, 4).hover()
    assert text_of(page, "#head").endswith("Not evaluated.")
    assert "not evaluated" in text_of(page, "#scale")


def test_it_works_with_the_keyboard_alone(ask: Open, view: Open) -> None:
    page = view(ask(WHOLE))
    press = page.page.keyboard.press
    assert page.locator('#cells td[tabindex="0"]').count() == 1
    page.locator('#cells td[tabindex="0"]').focus()
    press("Control+Home")
    for key in ("ArrowLeft", "ArrowUp"):  # the edge holds
        press(key)
    assert text_of(page, "#headline").startswith("Layer 0, head 0 ·")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        press(key)
    assert cell(page, 1, 2).get_attribute("aria-selected") == "true"
    assert text_of(page, "#headline").endswith("kept")
    press("End")
    assert text_of(page, "#headline").startswith("Layer 1, head 9 ·")
    press("Escape")
    assert page.locator('#cells [aria-selected="true"]').count() == 0


@pytest.mark.parametrize("body", [HALVES, {**WHOLE, "heads": [[0, 1], [0, 4], [2, 4]], "top": 1}])
def test_what_is_pointed_at_does_not_move_away(body: dict[str, Any], ask: Open, view: Open) -> None:
    page = view(ask(body))
    size = "[document.documentElement.scrollHeight, at('grid').getBoundingClientRect().top + scrollY]"
    sizes = set()
    for one in page.locator("#cells td").all():
        one.hover()
        sizes.add(tuple(page.evaluate(size)))
    one.click()
    sizes.add(tuple(page.evaluate(size)))
    assert len(sizes) == 1


@pytest.mark.parametrize("body", [HALVES, WHOLE])
def test_the_list_has_the_numbers_of_the_answer(body: dict[str, Any], ask: Open, view: Open) -> None:
    answer = ask(body)
    page = view(answer)
    names = [
        name for name in ("dev", "test", "all", "gold_first", "gold_not_first") if name in answer["heads"][0]
    ]
    rows = page.locator("#list tbody tr").all()
    for row, head in zip(rows, answer["heads"], strict=True):
        assert row.locator("th").inner_text() == name_of(head)
        *cells, balanced, picks_first = row.locator("td").all()
        for shown, name in zip(cells, names, strict=True):
            assert exact(shown.get_attribute("title")) == [head[name]["accuracy"], *head[name]["ci95"]]
            assert f"{head[name]['correct']} of {head[name]['n']}" in shown.inner_text()
        assert exact(balanced.get_attribute("title")) == [head["balanced"]]
        assert exact(picks_first.get_attribute("title")) == [head["picks_first_rate"]]
    rows[-1].locator("button").click()
    last = answer["heads"][-1]
    assert cell(page, last["layer"], last["head"]).get_attribute("aria-selected") == "true"


@BOTH_WAYS
def test_an_address_can_name_a_head(ask: Open, view: Open) -> None:
    assert text_of(view(ask(WHOLE), "#L2H7"), "#headline").startswith("Layer 2, head 7 ·")
    assert text_of(view(ask(WHOLE), "#L99H7"), "#headline").startswith("Layer ")


@pytest.mark.parametrize("body", [HALVES, WHOLE])
def test_substitution_shows_its_numbers_and_no_grid(body: dict[str, Any], ask: Open, view: Open) -> None:
    answer = ask({"items": body["items"], "split": body["split"], "method": "substitution"})
    page = view(answer)
    part = answer["parts"].get("test", answer["parts"]["all"])
    own = answer["substitution"].get("test", answer["substitution"]["all"])
    bars = page.locator("#bars > li:not(.axis)").all()
    for bar, accuracy in zip(bars, (own, part["first"], part["nearest"]), strict=True):
        check_bar(bar, accuracy, part)
    for hidden in ("#grid-part", "#chance"):
        assert not page.locator(hidden).is_visible()
    assert page.locator("#list tbody tr").count() == 1
    assert "attends" not in text_of(page, "#meaning")
    assert "ceiling" not in text_of(page, "#keys")


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([{**LATER, "gold": 0}], "No head was chosen"),  # balanced is undefined: the gold one is always first
        ([ITEMS[3]], "No item was scored"),
    ],
)
def test_where_there_is_nothing_to_choose_by_the_page_says_so(
    items: list[dict[str, Any]], said: str, ask: Open, view: Open
) -> None:
    page = view(ask({"items": items, "split": None, "rank_by": "balanced"}))
    assert said in text_of(page, "#verdict")
    assert page.locator("#bars > li:not(.axis)").count() == 2
    for hidden in ("#places-part", "#chance"):
        assert not page.locator(hidden).is_visible()
    assert "NaN" not in text_of(page, "body")
    assert "undefined %" not in text_of(page, "body")


@pytest.mark.parametrize("method", ["attention", "substitution"])
def test_the_words_claim_no_more_than_was_measured(method: str, ask: Open, view: Open) -> None:
    page = view(ask({"items": MANY, "method": method}))
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    words = text_of(page, "body").lower()
    assert not re.search(r"refers? to|understand|knows", words)
    assert words.count("resolve") == 1
    assert re.search(r"does not say that the [\w ]+ resolves pronouns", words)
    assert "is right" in words


def test_baselines_of_every_part_can_be_looked_up(ask: Open, view: Open) -> None:
    answer = ask(HALVES)
    page = view(answer)
    page.locator("#parts summary").click()
    for row, name in zip(page.locator("#baselines tbody tr").all(), ("all", "dev", "test"), strict=True):
        n, first, nearest, random, ceiling = row.locator("td").all()
        part = answer["parts"][name]
        assert n.inner_text() == str(part["n"])
        assert exact(first.get_attribute("title"))[0] == part["first"]["accuracy"]
        assert exact(nearest.get_attribute("title"))[0] == part["nearest"]["accuracy"]
        assert exact(random.get_attribute("title")) == [part["random"]]
        assert exact(ceiling.get_attribute("title")) == [part["ceiling"]]


@pytest.mark.parametrize(
    "options",
    [
        {"split": None, "heads": [[0, 1], [2, 4]], "rank_by": "balanced", "top": 3},
        {"split": {"test_fraction": 0.4, "seed": 3}, "heads": "all", "aggregate": "head_word"},
        {"method": "substitution"},
    ],
)
def test_the_command_that_is_shown_gives_the_same_answer(
    options: dict[str, Any], client: FlaskClient, ask: Open, view: Open
) -> None:
    answer = ask({"items": MANY, **options})
    page = view(answer)
    page.locator("#cite summary").click()
    # What a shell makes of it, with a curl that says its arguments
    script = f'SERVICE=there; curl() {{ printf "%s\\n" "$@"; }}\n{text_of(page, "#curl")}'
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
    address, *rest = told.splitlines()
    assert rest == ["-H", "Content-Type: application/x-ndjson", "--data-binary", "@items.jsonl"]
    assert address.startswith(f"there{PATH}?")
    again = client.post(address.removeprefix("there"), data=lines(MANY), content_type="application/x-ndjson")
    assert {**ok(again).get_json(), "skipped": None} == {**answer, "skipped": None}
    request = dict(answer["request"])
    assert text_of(page, "#sha256") == request.pop("items_sha256")
    assert json.loads(text_of(page, "#request")) == request


def test_all_that_is_needed_to_cite_is_there(ask: Open, view: Open) -> None:
    answer = ask(WHOLE)
    page = view(answer)
    page.locator("#cite summary").click()
    model = answer["model"]
    for fact in (model["id"], model["dtype"], *model["versions"].values(), answer["request"]["items_sha256"]):
        assert fact in text_of(page, "#citation")


def test_text_of_others_stays_text_and_hides_nothing(ask: Open, view: Open) -> None:
    answer = ask({"items": [*MANY, {**ITEM, "pronoun": {"text": "she"}, "id": HOSTILE}]})
    answer["model"]["id"] = HOSTILE
    page = view(answer)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.locator("b").count() == 0
    assert "\u202e" not in text_of(page, "body")
    assert "</script><b>U+202E" in text_of(page, "#skipped")


@BOTH_WAYS
@pytest.mark.parametrize("method", ["attention", "substitution"])
def test_it_fits_a_narrow_frame_and_follows_the_colour_scheme(method: str, ask: Open, view: Open) -> None:
    page = view(ask({"items": MANY, "method": method}))
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = "() => getComputedStyle(document.body).backgroundColor"
    page.page.emulate_media(color_scheme="light")
    light = page.evaluate(paper)
    page.page.emulate_media(color_scheme="dark")
    assert light == "rgb(255, 255, 255)" != page.evaluate(paper)
