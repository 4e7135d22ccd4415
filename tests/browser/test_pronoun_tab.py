"""The tab of pronouns, in a real browser, on real weights."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import unicodedata
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest

from service.schemas.coreference import CoreferenceRequest

expect: Any = pytest.importorskip("playwright.sync_api").expect

ARTICLE = "The cat sat on the mat because it was tired."
ASKED = {
    "text": ARTICLE,
    "pronoun": {"start": 31, "end": 33},
    "candidates": [{"start": 4, "end": 7}, {"start": 19, "end": 22}],
    "gold": 0,
    "heads": "all",
}


def link(**shown: object) -> str:
    return "#" + urlencode({"tab": "pronoun", **shown})


def shared(page: Any) -> dict[str, str]:
    """What the address says beside the tab."""
    named = parse_qs(page.evaluate("location.hash.slice(1)"))
    return {name: one[0] for name, one in named.items() if name != "tab"}


def ask(service: str, body: object, accept: str = "application/json") -> bytes:
    headers = {"Content-Type": "application/json", "Accept": accept}
    request = urllib.request.Request(f"{service}v1/coreference", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def result(service: str, **changes: object) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(ask(service, {**ASKED, **changes}))["results"][0]
    return answered


def head_of(answer: dict[str, Any], layer: int, head: int) -> dict[str, Any]:
    return next(one for one in answer["heads"] if (one["layer"], one["head"]) == (layer, head))


def word(page: Any, text: str) -> Any:
    return page.locator("#pronoun .words button").filter(has_text=re.compile(f"^{text}$"))


def cell(page: Any, layer: int, head: int) -> Any:
    return page.locator(f"#pronoun [aria-label^='Layer {layer}, head {head}:']")


def row(page: Any, name: str) -> list[str]:
    """A row of the table of who chooses what."""
    return [
        re.sub(r"\s+", " ", text).strip()
        for text in page.locator("#pronoun .choosers tr", has_text=name).locator("td").all_inner_texts()
    ]


def answered(page: Any) -> None:
    expect(page.locator("#pronoun .result")).to_be_visible(timeout=30_000)
    expect(page.locator("#pronoun .result")).to_have_attribute("aria-busy", "false", timeout=30_000)


def expectation_told(page: Any) -> None:
    expect(page.locator("#pronoun .choosers")).not_to_contain_text("…", timeout=30_000)


def test_the_first_view_is_the_article_s_sentence_with_the_numbers_of_the_api(
    open_page: Any, service: str
) -> None:
    page = open_page(link())
    answered(page)
    answer = result(service)
    l5h5 = head_of(answer, 5, 5)
    assert l5h5["predicted"] == 0
    assert f"{l5h5['scores'][0]:.3f}" == "0.869"
    expect(cell(page, 5, 5)).to_have_attribute("aria-label", "Layer 5, head 5: A “cat”, 0.869, right")
    expect(cell(page, 5, 5)).to_have_attribute("aria-selected", "true")
    weights = page.locator("#pronoun .weights tbody tr")
    for index, score in enumerate(l5h5["scores"]):
        expect(weights.nth(index).locator("td").first).to_have_attribute("title", str(score))
    counts = Counter(one["predicted"] for one in answer["heads"])
    letters = Counter(page.locator("#pronoun .head-grid tbody td").all_inner_texts())
    assert letters["A"] + letters["a"] == counts[0]
    assert letters["B"] + letters["b"] == counts[1]
    noise = sum(one["within_noise"] for one in answer["heads"])
    assert letters["a"] + letters["b"] == noise
    expect(page.locator("#pronoun .summary")).to_contain_text(f"{counts[0]} attend most to A “cat”")

    expectation_told(page)
    expected = result(service, method="substitution", heads=None)["substitution"]
    cat, mat = (f"{score:.2f}".replace("-", "−") for score in expected["scores"])
    assert row(page, "First noun") == ["●", "", "", "✓"]
    assert row(page, "Nearest noun") == ["", "●", "", "✗"]
    assert row(page, "By chance") == ["50 %", "50 %", "", "50 %"]
    assert row(page, "All 336 heads")[:3] == [
        f"{counts[0]} {counts[0] / 3.36:.0f} %",
        f"{counts[1]} {counts[1] / 3.36:.0f} %",
        "0",
    ]
    assert row(page, "Head L5H5") == ["● 0.869", "0.003", "", "✓"]
    assert row(page, "expectation") == [f"● {cat}", mat, "", "✓"]


def test_words_are_marked_with_the_mouse_a_phrase_by_dragging(open_page: Any, service: str) -> None:
    page = open_page(link(text=ARTICLE))
    next_step = page.locator("#pronoun .next")
    expect(next_step).to_contain_text("mark the pronoun")
    expect(page.locator("#pronoun .result")).to_be_hidden()
    word(page, "it").click()
    expect(next_step).to_contain_text("mark the candidates")
    word(page, "cat").click()
    expect(next_step).to_contain_text("mark another candidate")
    expect(page.locator("#pronoun .result")).to_be_hidden()  # with one there is nothing to choose between
    start, end = (one.bounding_box() for one in (word(page, "the"), word(page, "mat")))
    page.mouse.move(start["x"] + 3, start["y"] + 20)
    page.mouse.down()
    page.mouse.move(end["x"] + 5, end["y"] + 20, steps=6)
    page.mouse.up()
    page.get_by_role("button", name="right? “the mat”").click()
    expect(page.get_by_role("button", name="✓ right “the mat”")).to_have_attribute("aria-pressed", "true")
    assert shared(page) == {"text": ARTICLE, "pronoun": "31-33", "candidates": "4-7,15-22", "gold": "1"}
    expect(word(page, "mat")).to_have_accessible_name("mat, candidate B")
    answered(page)
    phrase = result(service, candidates=[{"start": 4, "end": 7}, {"start": 15, "end": 22}], gold=1)
    expect(page.locator("#pronoun .summary")).to_contain_text(
        f"{sum(one['correct'] for one in phrase['heads'])} ("
    )
    word(page, "mat").click()  # takes the phrase away
    assert shared(page)["candidates"] == "4-7"
    word(page, "mat").click()
    expect(word(page, "the")).to_have_attribute("aria-pressed", "false")
    assert shared(page) == {"text": ARTICLE, "pronoun": "31-33", "candidates": "4-7,19-22"}
    page.get_by_role("radio", name="the pronoun").check()
    word(page, "cat").click()  # a new mark takes the place of what it overlaps
    assert shared(page) == {"text": ARTICLE, "pronoun": "4-7", "candidates": "19-22"}
    page.go_back()
    expect(word(page, "it")).to_have_accessible_name("it, pronoun")
    assert shared(page)["pronoun"] == "31-33"


def test_a_finger_marks_a_phrase_too(open_page: Any) -> None:
    page = open_page(link(text=ARTICLE), width=390, has_touch=True)
    word(page, "it").tap()
    expect(word(page, "it")).to_have_accessible_name("it, pronoun")
    start, end = (one.bounding_box() for one in (word(page, "The"), word(page, "cat")))
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *boxes: Any) -> None:
        points = [{"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2} for box in boxes]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", start)
    for part in (0.5, 1):
        send("touchMove", {**start, "x": start["x"] + part * (end["x"] - start["x"])})
    send("touchEnd")
    expect(word(page, "cat")).to_have_accessible_name("cat, candidate A")
    assert shared(page)["candidates"] == "0-7"


def test_all_of_it_works_with_the_keyboard_alone(open_page: Any) -> None:
    page = open_page(link(text=ARTICLE))
    press = page.keyboard.press

    def tab_to(there: Any) -> None:
        for _ in range(20):
            if there.evaluate("node => node === document.activeElement"):
                return
            press("Tab")
        raise AssertionError("Tab does not reach it")

    page.locator("#pronoun").get_by_label("Sentence").focus()
    tab_to(word(page, "The"))
    press("End")
    expect(word(page, r"\.")).to_be_focused()
    for _ in range(3):
        press("ArrowLeft")
    expect(word(page, "it")).to_be_focused()
    press("Enter")  # the pronoun comes first
    expect(word(page, "it")).to_have_accessible_name("it, pronoun")
    expect(page.get_by_role("radio", name="a candidate")).to_be_checked()
    press("Home")
    press("Shift+ArrowRight")
    press("c")
    expect(page.locator("#pronoun .marking [role=status]")).to_have_text("“The cat” is a candidate.")
    for _ in range(4):
        press("ArrowRight")
    press("Space")
    assert shared(page)["candidates"] == "0-7,19-22"
    press("Delete")
    assert shared(page)["candidates"] == "0-7"
    press("Enter")
    answered(page)
    right = page.get_by_role("button", name="“The cat”").first
    tab_to(right)
    press("Enter")
    expect(page.get_by_role("button", name="✓ right “The cat”")).to_be_focused()
    assert shared(page)["gold"] == "0"
    answered(page)
    page.get_by_label("Strength").focus()
    for _ in range(4):
        if page.evaluate("document.activeElement.matches('[aria-label^=Layer]')"):
            break
        press("Tab")
    expect(cell(page, 5, 5)).to_be_focused()
    press("ArrowDown")
    press("ArrowRight")
    expect(page.locator("#pronoun .head h2")).to_have_text("Layer 6, head 6")
    press("Enter")
    assert (shared(page)["layer"], shared(page)["head"]) == ("6", "6")
    assert row(page, "Head L6H6") != []


def test_a_twin_shows_that_heads_follow_the_place_and_the_model_the_meaning(
    open_page: Any, service: str
) -> None:
    page = open_page(link())
    page.locator("#pronoun").get_by_label("Example").select_option(label="trophy and suitcase: too big")
    twin = page.locator("#pronoun .twin")
    expect(twin).to_contain_text("too small", timeout=30_000)
    text = "The trophy does not fit in the suitcase because it is too {}."
    spans: dict[str, Any] = {
        "pronoun": {"text": "it"},
        "candidates": [{"text": "trophy"}, {"text": "suitcase"}],
    }
    big, small = (
        result(service, **spans, text=text.format(size), gold=gold)
        for gold, size in enumerate(("big", "small"))
    )
    assert [one["scores"] for one in big["heads"]] == [one["scores"] for one in small["heads"]]
    same = sum(one["predicted"] is not None for one in big["heads"])
    expect(twin).to_contain_text(
        f"{same} of 336 heads choose the same place in the text in both sentences; 0 are right in both"
    )
    expect(twin).to_contain_text("here “trophy”, there “suitcase”")
    assert row(page, "Head L5H5")[-1] == "✓"
    page.get_by_role("button", name="Flip").click()
    expect(page.locator("#pronoun").get_by_label("Sentence")).to_have_value(text.format("small"))
    expect(twin).to_contain_text("too big", timeout=30_000)
    expect(twin).to_contain_text("here “suitcase”, there “trophy”")
    assert row(page, "Head L5H5")[-1] == "✗"
    assert row(page, "expectation")[-1] == "✓"
    assert shared(page)["gold"] == "1"


def test_what_is_not_in_the_basic_plane_and_accents_move_no_mark(open_page: Any, service: str) -> None:
    text = unicodedata.normalize(
        "NFD", "👩‍👩‍👧 José saw that the 𝒜𝓁𝓅𝒽𝒶 cat 🐈 sat on the mat because it was tired."
    )
    page = open_page(link(text=text))
    for one in ("it", "cat", "mat"):
        word(page, one).click()
    answered(page)
    at = {one: text.index(f" {one} ") + 1 for one in ("it", "cat", "mat")}  # in code points
    said = shared(page)
    assert said["pronoun"] == f"{at['it']}-{at['it'] + 2}"
    assert said["candidates"] == f"{at['cat']}-{at['cat'] + 3},{at['mat']}-{at['mat'] + 3}"
    answer = result(
        service,
        text=text,
        gold=None,
        pronoun={"start": at["it"], "end": at["it"] + 2, "text": "it"},
        candidates=[{"start": at[one], "end": at[one] + 3, "text": one} for one in ("cat", "mat")],
    )
    score = head_of(answer, 5, 5)["scores"][0]
    expect(page.locator("#pronoun .weights tbody td").first).to_have_attribute("title", str(score))
    name = unicodedata.normalize("NFD", "José")  # five code points, one token
    word(page, name).click()
    expect(page.locator("#pronoun .marks")).to_contain_text(f"“{name}”6–11")
    answered(page)


@pytest.mark.parametrize(
    ("marks", "place", "message"),
    [
        ({"pronoun": "3-4", "candidates": "4-7,19-22"}, "␣", "No token has a character in 3..4"),
        ({"pronoun": "31-33", "candidates": "4-7,90-95"}, "90–95", "44 code points"),
        ({"pronoun": "31-33", "candidates": "4-7,5-11"}, "at sat", "candidate A"),
    ],
    ids=["no token begins in it", "outside of the text", "overlapping"],
)
def test_a_mark_that_cannot_be_is_told_at_the_mark(
    open_page: Any, marks: dict[str, str], place: str, message: str
) -> None:
    page = open_page(link(text=ARTICLE, **marks))
    fault = page.locator("#pronoun .marks li").filter(has=page.get_by_role("alert"))
    expect(fault).to_contain_text(place)
    expect(fault.get_by_role("alert")).to_contain_text(message)
    expect(page.locator("#pronoun .status.problem")).to_be_visible()
    expect(page.locator("#pronoun .result")).to_be_hidden()
    if place == "at sat":
        expect(word(page, "sat")).to_have_attribute("aria-invalid", "true")
    fault.get_by_role("button", name="Take the mark").click()
    expect(page.locator("#pronoun > .status.problem")).to_have_count(0)


def test_an_edited_text_keeps_the_marks_of_the_words_that_are_left(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    field = page.locator("#pronoun").get_by_label("Sentence")
    field.fill("Yesterday the cat sat on the mat because it was tired.")
    expect(word(page, "cat")).to_have_accessible_name("cat, candidate A")
    expect(page.locator("#pronoun .notes")).to_contain_text("Attention says")
    expect(page).to_have_url(re.compile("Yesterday"))
    assert shared(page)["candidates"] == "14-17,29-32"
    field.fill("Yesterday the dog sat on the mat because it was tired.")
    expect(page).to_have_url(re.compile("dog"))
    assert shared(page)["candidates"] == "29-32"
    assert "gold" not in shared(page)
    field.fill("")
    expect(page.locator("#pronoun .next")).to_contain_text("Type a sentence")
    expect(page.locator("#pronoun .result")).to_be_hidden()
    field.fill("Tom slept.")
    expect(page.locator("#pronoun .next")).to_contain_text("mark the pronoun")


def test_how_it_is_read_can_be_chosen_in_the_words_of_the_api(open_page: Any, service: str) -> None:
    page = open_page(link(candidates="0-7,15-22", pronoun="31-33", text=ARTICLE))
    page.locator("#pronoun .options summary").click()
    fields = CoreferenceRequest.model_fields
    for name in ("aggregate", "query", "normalize", "first_token"):
        select = page.get_by_role("combobox", name=name, exact=True)
        expect(select).to_have_value(fields[name].default)
        description = (fields[name].description or "").replace("`", "")
        expect(select).to_have_accessible_description(description)
        schema = CoreferenceRequest.model_json_schema()["properties"][name]
        assert select.locator("option").evaluate_all("all => all.map(one => one.value)") == schema["enum"]
    chosen = {"aggregate": "head_word", "normalize": "candidates", "first_token": "drop"}
    for name, value in chosen.items():
        page.get_by_role("combobox", name=name, exact=True).select_option(value)
    assert {name: shared(page)[name] for name in chosen} == chosen
    nouns = [{"text": "The cat"}, {"text": "the mat"}]
    answer = result(service, candidates=nouns, gold=None, **chosen)
    score = head_of(answer, 5, 5)["scores"][0]
    expect(page.locator("#pronoun .weights tbody td").first).to_have_attribute("title", str(score))
    for warning in answer["warnings"]:
        expect(page.locator("#pronoun .notes")).to_contain_text(
            re.sub("^candidate 0", "A", warning["message"]), ignore_case=True
        )
    expect(page.locator("#pronoun .notes li").filter(has_text="token 0").locator(".badge")).to_have_text("A")
    assert {one["code"] for one in answer["warnings"]} == {
        "later_context_not_seen",
        "candidate_on_first_token",
    }
    page.get_by_role("combobox", name="query", exact=True).select_option("first")
    assert shared(page)["query"] == "first"


def test_a_candidate_after_the_pronoun_has_no_score_and_the_warning_says_why(open_page: Any) -> None:
    page = open_page(link())
    page.locator("#pronoun").get_by_label("Example").select_option(label="a candidate after the pronoun")
    expect(page.locator("#pronoun .notes")).to_contain_text(
        'A "cat" comes after the pronoun, whose row cannot attend to it', timeout=30_000
    )
    expect(page.locator("#pronoun .notes")).to_contain_text(
        "Every candidate comes after the pronoun, so none is predicted"
    )
    expect(page.locator("#pronoun .summary")).to_contain_text("336 to none")
    assert row(page, "Head L5H5") == ["–", "–", "●", "✗"]
    expectation_told(page)


def test_a_shared_link_shows_the_same_in_a_fresh_tab(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    page.locator("#pronoun").get_by_label("Example").select_option(label="German")
    expect(page.locator("#pronoun .choosers")).to_contain_text("Hund", timeout=30_000)
    answered(page)
    cell(page, 10, 12).click()
    page.locator("#pronoun .options summary").click()
    page.get_by_role("combobox", name="normalize", exact=True).select_option("candidates")
    answered(page)
    expectation_told(page)
    other = open_page(page.url)
    answered(other)
    expectation_told(other)
    for part in (".summary", ".choosers", ".head", ".marks", ".notes", ".strongest"):
        assert other.locator(f"#pronoun {part}").inner_text() == page.locator(f"#pronoun {part}").inner_text()
    expect(cell(other, 10, 12)).to_have_attribute("aria-selected", "true")
    look = "all => all.map(one => [one.textContent, one.ariaLabel, getComputedStyle(one).backgroundColor])"
    cells = "#pronoun .head-grid tbody td"
    assert other.locator(cells).evaluate_all(look) == page.locator(cells).evaluate_all(look)


def test_files_and_the_command_hold_what_the_api_answers(
    open_page: Any, service: str, tmp_path: Path
) -> None:
    page = open_page(link())
    answered(page)
    for name, accept in (("JSON", "application/json"), ("CSV", "text/csv")):
        with page.expect_download() as started:
            page.get_by_role("button", name=f"Every head’s choice as {name}").click()
        started.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes() == ask(service, ASKED, accept)
    assert len(list(csv.DictReader((tmp_path / "CSV").read_text(encoding="utf-8").splitlines()))) == 2 * 336
    page.locator("#pronoun").get_by_text("The same with curl").click()
    command = page.locator("#pronoun .export pre").inner_text()
    told = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=120)
    assert json.loads(told.stdout) == json.loads(ask(service, ASKED))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#pronoun").get_by_role("button", name="Copy curl command").click()
    expect(page.locator("#pronoun .export")).to_contain_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == command
    evaluation = page.get_by_role("link", name="POST /v1/coreference/evaluate")
    assert (evaluation.get_attribute("href") or "").startswith(f"{service}docs#")


def test_a_head_leads_to_its_map(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    cell(page, 8, 7).click()
    page.get_by_role("link", name="See this head’s map").click()
    expect(page.get_by_role("tab", name="Attention")).to_have_attribute("aria-selected", "true")
    assert shared(page) == {"text": ARTICLE, "layer": "8", "head": "7"}
    page.go_back()
    expect(page.locator("#pronoun .head h2")).to_contain_text("Layer 8, head 7")


def test_a_text_that_was_edited_in_another_tab_keeps_its_marks(open_page: Any) -> None:
    page = open_page(link(text=ARTICLE, pronoun="31-33", candidates="4-7,19-22", gold=1))
    answered(page)
    page.get_by_role("tab", name="Attention").click()
    page.get_by_label("Text", exact=True).fill("Now the cat sat on the mat because it was tired.")
    page.get_by_role("button", name="Look").click()
    page.get_by_role("tab", name="Pronouns").click()
    expect(word(page, "mat")).to_have_accessible_name("mat, candidate B")
    assert {name: shared(page)[name] for name in ("pronoun", "candidates", "gold")} == {
        "pronoun": "35-37",
        "candidates": "8-11,23-26",
        "gold": "1",
    }
    answered(page)


def test_a_second_link_has_its_own_marks_at_the_same_places_too(open_page: Any) -> None:
    marks = {"pronoun": "31-33", "candidates": "4-7,19-22"}
    page = open_page(link(text=ARTICLE, **marks))
    answered(page)
    page.evaluate("link => { location.hash = link; }", link(text=ARTICLE.replace("cat", "dog"), **marks))
    expect(word(page, "dog")).to_have_accessible_name("dog, candidate A")
    expect(word(page, "mat")).to_have_accessible_name("mat, candidate B")
    assert {name: shared(page)[name] for name in marks} == marks
    answered(page)


def test_a_pause_in_typing_asks_once(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    bodies: list[dict[str, Any]] = []  # of what was typed; the example's twin may still be asked about

    def note(request: Any) -> None:
        if request.url.endswith("/v1/coreference") and "Yesterday" in request.post_data_json["text"]:
            bodies.append(request.post_data_json)

    page.on("request", note)

    def last(response: Any) -> bool:
        asked = response.request.post_data or ""
        return "Yesterday" in asked and "substitution" in asked

    with page.expect_response(last):
        page.locator("#pronoun").get_by_label("Sentence").fill(f"Yesterday {ARTICLE}")
    expectation_told(page)
    assert [body.get("method", "attention") for body in bodies] == ["attention", "substitution"]


def test_what_is_typed_outlasts_another_option(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    page.locator("#pronoun .options summary").click()
    field, query = (
        page.locator("#pronoun").get_by_label("Sentence"),
        page.get_by_role("combobox", name="query"),
    )
    field.fill(f"Yesterday {ARTICLE}")
    query.select_option("first")
    expect(field).to_have_value(f"Yesterday {ARTICLE}")
    assert "Yesterday" in shared(page)["text"]
    assert shared(page)["candidates"] == "14-17,29-32"
    field.fill("")
    expect(page.locator("#pronoun .result")).to_be_hidden()
    query.select_option("mean")
    expect(field).to_have_value("")
    page.locator("#pronoun").get_by_label("Example").select_option(label="cat and mat")
    expect(field).to_have_value(ARTICLE)
    answered(page)


def test_pressing_a_choice_leaves_only_its_heads_and_pointing_shows_a_head(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    legend = page.get_by_role("group", name="Choices")
    legend.get_by_role("button", name="B mat").click()
    expect(cell(page, 5, 5)).to_have_class(re.compile(r"\bdim\b"))
    expect(cell(page, 0, 6)).not_to_have_class(re.compile(r"\bdim\b"))
    legend.get_by_role("button", name="B mat").click()
    expect(page.locator("#pronoun .head-grid .dim")).to_have_count(0)
    cell(page, 0, 6).hover()
    expect(page.locator("#pronoun .head")).to_contain_text("attends most to B “mat”")
    page.locator("#pronoun .summary").hover()
    expect(page.locator("#pronoun .head h2")).to_contain_text("Layer 5, head 5 · kept")
    page.locator("#pronoun .strongest button").first.click()
    assert {"layer", "head"} <= shared(page).keys()
    deeper = page.locator("#pronoun .head-grid td[aria-selected=true]")
    expect(deeper).to_have_attribute("aria-label", re.compile("A “cat”"))


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_waited_for(open_page: Any, status: int) -> None:
    page = open_page()
    left = [1]

    def busy(route: Any) -> None:
        if left.pop() if left else False:
            problem = {
                "type": "/problems/busy",
                "title": "Busy",
                "status": status,
                "detail": "Try again soon.",
            }
            route.fulfill(
                status=status,
                headers={"Retry-After": "1"},
                content_type="application/problem+json",
                body=json.dumps(problem),
            )
        else:
            route.continue_()

    page.route("**/v1/coreference", busy)
    page.get_by_role("tab", name="Pronouns").click()
    expect(page.locator("#pronoun > .status")).to_contain_text("Try again soon. Asking again in 1 s.")
    answered(page)
    expect(page.locator("#pronoun > .status")).to_have_text("")


def test_a_question_given_up_leaves_the_old_answer_dimmed(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    problem = {"type": "/problems/busy", "title": "Busy", "status": 429, "detail": "Try again soon."}
    busy = {"status": 429, "headers": {"Retry-After": "60"}, "json": problem}
    page.route("**/v1/coreference", lambda route: route.fulfill(**busy))
    page.get_by_label("Example").select_option(label="German")
    page.locator("#pronoun > .status").get_by_role("button", name="Cancel").click()
    expect(page.locator("#pronoun > .status")).to_contain_text("Cancelled.")
    expect(page.locator("#pronoun .result")).to_have_attribute("aria-busy", "true")
    page.unroute("**/v1/coreference")
    page.get_by_role("button", name="Try again").click()
    answered(page)
    expect(page.locator("#pronoun .choosers")).to_contain_text("Hund")


def test_a_failure_is_told_and_can_be_tried_again(open_page: Any) -> None:
    page = open_page(allow="Failed to load resource")
    page.route("**/v1/coreference", lambda route: route.abort())
    page.get_by_role("tab", name="Pronouns").click()
    status = page.locator("#pronoun > .status")
    expect(status).to_contain_text("cannot be reached")
    page.unroute("**/v1/coreference")
    status.get_by_role("button", name="Try again").click()
    answered(page)


def test_a_text_that_is_too_long_is_refused_with_limit_and_actual(open_page: Any) -> None:
    page = open_page(link())
    answered(page)
    page.locator("#pronoun").get_by_label("Sentence").fill(ARTICLE + " cat" * 5000)
    status = page.locator("#pronoun > .status")
    expect(status).to_contain_text("4096", timeout=30_000)
    expect(page.locator("#pronoun .result")).to_be_hidden()


def test_text_from_right_to_left_is_marked_with_the_arrow_that_points_ahead(open_page: Any) -> None:
    page = open_page(link(text="القطة نامت على السرير لأنها متعبة"))
    first = page.locator("#pronoun .words button").first
    first.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#pronoun .words button").nth(1)).to_be_focused()
    page.keyboard.press("p")
    expect(page.locator("#pronoun .marks .is-pronoun")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_accessible_and_fits(
    open_page: Any, no_violations: Callable[[Any], None], scheme: str, width: int
) -> None:
    page = open_page(
        link(text=ARTICLE, pronoun="31-33", candidates="0-7,15-22,38-43", gold=0),
        width=width,
        color_scheme=scheme,
    )
    answered(page)
    expectation_told(page)
    page.locator("#pronoun .options summary").click()
    page.locator("#pronoun").get_by_text("The same with curl").click()
    no_violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    sizes = page.locator("#pronoun .head-grid tbody td").first.bounding_box()
    assert min(sizes["width"], sizes["height"]) >= 20
    marks = {"pronoun": "3-4", "candidates": "4-7,19-22"}
    bad = open_page(link(text=ARTICLE, **marks), width=width, color_scheme=scheme)
    expect(bad.get_by_role("alert")).to_be_visible()
    no_violations(bad)
