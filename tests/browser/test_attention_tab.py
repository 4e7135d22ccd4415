"""The tab Attention, in a real browser, from a real service on the real weights."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect

OpenPage = Callable[..., Any]

SENTENCE = "The cat sat on the mat because it was tired."
REPEATED = "one two three four five one two three four five one two three four five"
HOSTILE = "</script><b>\u202e'\"$(x)`\nEND\U0001f408 שלום"
LONG = "the cat sat on the mat. " * 40  # 240 tokens and more: too many for all maps at once

SLOW = 60_000  # milliseconds, on a machine that does much besides


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    expect.set_options(timeout=SLOW)
    yield
    expect.set_options(timeout=5_000)


def ask(service: str, path: str, accept: str = "application/json", **body: Any) -> bytes:
    """The service's own answer."""
    headers = {"Content-Type": "application/json", "Accept": accept}
    with urlopen(Request(service + path, json.dumps(body).encode(), headers)) as answer:
        content: bytes = answer.read()
    return content


def asked(service: str, path: str, **body: Any) -> Any:
    return json.loads(ask(service, path, **body))


def weights(service: str, **body: Any) -> Any:
    """[query][key] of one head."""
    return asked(service, "v1/attention", **body)["results"][0]["maps"][0]["weights"]


def address(**shown: object) -> str:
    return f"#{urlencode(shown, quote_via=quote)}"


def cell(page: Any, name: str) -> Any:
    return page.locator(f"#attention td[data-name={name}]")


def view(page: Any, side: str = "right") -> Any:
    return page.locator(f"#attention article.{side}")


def shown_map(page: Any, name: str, side: str = "right") -> Any:
    """The view, once it shows that head's map."""
    found = view(page, side)
    expect(found.locator(f".map-view[data-map={name}]")).to_be_visible()
    return found


def ready(page: Any) -> None:
    """Maps and scores have come."""
    expect(page.locator("#attention .mosaic")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#attention .result")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#attention .table tbody tr").first).to_be_visible()


def read_out(found: Any) -> dict[str, float]:
    """{the other token and its place: its weight}."""
    lines = found.locator(".readout li").all()
    return {
        line.locator("b").inner_text(): float(line.locator("output").get_attribute("title")) for line in lines
    }


def test_the_first_view_is_the_articles_sentence_and_its_head(open_page: OpenPage, service: str) -> None:
    page = open_page()
    ready(page)
    expect(page.get_by_label("Text", exact=True)).to_have_value(SENTENCE)
    assert page.locator("#attention tbody td[data-name]").count() == 24 * 14
    assert page.locator("#attention .mosaic td > i").count() == 24 * 14
    found = shown_map(page, "L5H5")
    expect(found.locator("h2")).to_have_text("Layer 5, head 5")
    found.locator(".tokens button").nth(7).hover()
    expect(found.locator(".readout")).to_contain_text("it (7) attends to")
    told = read_out(found)
    expected = weights(service, text=SENTENCE, layers=[5], heads=[5], decimals=9)[7]
    assert round(told["cat 1"], 3) == 0.869
    for name, weight in told.items():
        assert weight == pytest.approx(expected[int(name.split(" ")[-1])], abs=1e-7)
    assert page.url.endswith("/")  # nothing was chosen yet


def test_a_text_is_asked_for_by_button_by_keyboard_and_from_the_examples(
    open_page: OpenPage, service: str
) -> None:
    page = open_page()
    text = page.get_by_label("Text", exact=True)
    text.fill("Hello there")
    expect(page.locator("#attention .asking")).to_contain_text("Shown is the text before")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#attention .tokens button").first).to_contain_text("Hello")
    expect(page.locator("#attention .asking")).not_to_contain_text("Shown is the text before")
    text.fill("Good night")
    text.press("Control+Enter")
    expect(page.locator("#attention .tokens button").first).to_contain_text("Good")
    page.get_by_role("button", name="repetition").click()
    expect(text).to_have_value(REPEATED)
    expect(page.locator("#attention .asking")).to_contain_text("15 tokens")
    assert "text=one+two" in page.url
    page.go_back()
    expect(text).to_have_value("Good night")
    expect(page.locator("#attention .tokens button").first).to_contain_text("Good")


def test_only_bodies_hold_the_text(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    requests: list[Any] = []
    page.on("request", lambda request: requests.append(request))
    page.get_by_label("Text", exact=True).fill("Secret words")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#attention .tokens button").first).to_contain_text("Secret")
    assert sum("Secret" in (request.post_data or "") for request in requests) == 2
    assert not any("Secret" in request.url.split("#")[0] for request in requests)


def test_cells_show_the_labels_and_scores_of_the_answer(open_page: OpenPage, service: str) -> None:
    page = open_page(address(text=REPEATED))
    ready(page)
    answer = asked(service, "v1/heads", text=REPEATED)
    for head in answer["heads"][::17]:
        name = f"L{head['layer']}H{head['head']}"
        told = ", ".join(head["labels"]) or "no label"
        expect(cell(page, name)).to_have_attribute(
            "aria-label", f"Layer {head['layer']}, head {head['head']}: {told}"
        )
        image = cell(page, name).evaluate("node => node.style.backgroundImage")
        assert len(re.findall(r"rgb", image)) == 2 * len(head["labels"])
    page.get_by_label("Colour by").select_option("induction")
    for head in answer["heads"][::17]:
        image = cell(page, f"L{head['layer']}H{head['head']}").evaluate("node => node.style.backgroundImage")
        strength = float(re.findall(r"/ ([\d.e-]+)\)", image)[0])
        assert strength == pytest.approx(head["scores"]["induction"]["score"], abs=1e-6)
    expect(page.locator("#attention .scale")).to_contain_text(
        f"baseline {answer['heads'][0]['scores']['induction']['baseline']:.3f}"
    )
    page.locator("#attention .mosaic").get_by_label("Show").select_option("excess")
    assert "by=induction" in page.url
    assert "kind=excess" in page.url


def test_a_label_singles_out_its_heads(open_page: OpenPage, service: str) -> None:
    page = open_page(address(label="nope"))
    ready(page)
    assert page.locator("#attention td.dim").count() == 0
    counts = asked(service, "v1/heads", text=SENTENCE)["summary"]["labels"]
    button = page.locator("#attention .legend button[value=previous_token]")
    expect(button).to_contain_text(str(counts["previous_token"]["count"]))
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    lit = page.locator("#attention td[data-name]:not(.dim)")
    expect(lit).to_have_count(counts["previous_token"]["count"])
    assert "label=previous_token" in page.url
    button.click()
    expect(lit).to_have_count(24 * 14)


def test_a_head_that_is_clicked_shows_its_map_and_its_scores(open_page: OpenPage, service: str) -> None:
    page = open_page()
    ready(page)
    cell(page, "L8H7").hover()
    shown_map(page, "L8H7")
    page.locator("h1").hover()
    shown_map(page, "L5H5")
    cell(page, "L8H7").click()
    page.locator("h1").hover()
    found = shown_map(page, "L8H7")
    expect(cell(page, "L8H7")).to_have_attribute("aria-selected", "true")
    (head,) = asked(service, "v1/heads", text=SENTENCE, layers=[8], heads=[7])["heads"]
    expect(found.locator(".headline")).to_contain_text(f"KV head {head['kv_head']}")
    assert found.locator(".chip").all_inner_texts() == head["labels"]
    for row in page.locator("#attention .table tbody tr").all():
        name = row.locator("th").inner_text().strip()
        numbers = [one.get_attribute("title") for one in row.locator("td").all()]
        for place, key in ((0, "score"), (2, "baseline"), (3, "excess")):
            value = head["scores"][name][key]
            shown = None if numbers[place] is None else float(numbers[place])
            # The page asked for all heads, whose float32 products are summed in another order than this one's
            assert shown == (None if value is None else pytest.approx(value, abs=2e-6))
    assert "layer=8&head=7" in page.url
    before = page.evaluate("history.length")
    cell(page, "L3H2").click()
    shown_map(page, "L3H2")
    assert page.evaluate("history.length") == before  # one head after another is no way back to go


def test_words_and_the_dropped_first_token_are_the_services(open_page: OpenPage, service: str) -> None:
    text = "The unbelievable catastrophe unsettled it."
    page = open_page(address(text=text))
    ready(page)
    page.get_by_label("Unit").select_option("word")
    page.get_by_label("Drop the first token").check()
    answer = asked(
        service, "v1/attention", text=text, unit="word", first_token="drop", layers=[5], heads=[5], decimals=9
    )
    (result,) = answer["results"]
    words = [one["text"] for one in result["words"]]
    found = shown_map(page, "L5H5")
    expect(found.locator(".tokens button")).to_have_text(words)
    found.locator(".tokens button").nth(3).hover()
    expect(found.locator(".readout")).to_contain_text("unsettled (3)")
    for name, weight in read_out(found).items():
        expected = result["maps"][0]["weights"][3][int(name.split(" ")[-1])]
        assert weight == pytest.approx(expected, abs=1e-7)
    assert "unit=word&first_token=drop" in page.url


def test_what_an_answer_warns_of_is_told(open_page: OpenPage, service: str) -> None:
    page = open_page(address(first_token="drop"))
    ready(page)
    answer = asked(service, "v1/attention", text=SENTENCE, first_token="drop", top_k=1)
    (warning,) = answer["results"][0]["warnings"]
    expect(page.locator("#attention > .warnings")).to_have_text(warning["message"])


def test_small_maps_are_drawn_from_the_weights(open_page: OpenPage, service: str) -> None:
    page = open_page()
    ready(page)
    expected = weights(service, text=SENTENCE, layers=[5], heads=[5])
    pixels = page.locator("#attention .head-grid").evaluate(
        """async node => {
          const image = new Image();
          image.src = node.style.getPropertyValue("--atlas").slice(5, -2);
          await image.decode();
          const canvas = document.createElement("canvas"), width = image.width / 14 - 2, height = image.height / 24 - 2;
          canvas.width = image.width;
          canvas.height = image.height;
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          const cell = context.getImageData(5 * (width + 2) + 1, 5 * (height + 2) + 1, width, height);
          return [width, height, [...cell.data]];
        }"""
    )
    width, height, data = pixels
    assert (width, height) == (11, 11)
    largest = max(map(max, expected))
    for row in range(height):
        for key in range(width):
            red, _, _, alpha = data[4 * (row * width + key) :][:4]
            if key > row:
                assert alpha == 0
            else:  # from white paper to the ink #1b…
                part = (expected[row][key] / largest) ** 0.5
                assert red == pytest.approx(255 + part * (0x1B - 255), abs=2)


def test_it_works_with_the_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    assert page.locator('#attention td[tabindex="0"]').count() == 1
    page.locator('#attention td[tabindex="0"]').focus()
    expect(cell(page, "L5H5")).to_be_focused()
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    expect(cell(page, "L6H6")).to_be_focused()
    shown_map(page, "L6H6")
    page.keyboard.press("Escape")  # back to the kept one
    expect(cell(page, "L5H5")).to_be_focused()
    page.keyboard.press("Control+End")
    page.keyboard.press("Enter")
    assert "layer=23&head=13" in page.url
    shown_map(page, "L23H13")
    page.get_by_role("button", name="Compare with another head").press("Enter")
    cell(page, "L23H13").press("ArrowLeft")
    page.keyboard.press(" ")
    shown_map(page, "L23H13", "left")
    shown_map(page, "L23H12")


def test_two_heads_side_by_side_point_together(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    page.get_by_role("button", name="Compare with another head").click()
    expect(page.locator("#attention .heads")).to_contain_text("Choose the other head in the grid.")
    cell(page, "L8H7").click()
    page.locator("h1").hover()
    left, right = shown_map(page, "L5H5", "left"), shown_map(page, "L8H7")
    for one, other in ((left, right), (right, left)):
        one.locator(".tokens button").nth(7).hover()
        expect(other.locator(".readout")).to_contain_text("it (7) attends to")
        page.locator("h1").hover()
        expect(other.locator(".readout")).to_contain_text("Strongest of all rows")
    assert "compare=L5H5" in page.url
    page.get_by_role("button", name="Show one head").click()
    expect(left).to_be_hidden()
    shown_map(page, "L8H7")


def test_the_headline_is_in_sight_while_the_last_layers_are_pointed_at(open_page: OpenPage) -> None:
    page = open_page(width=1366, height=650)
    ready(page)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    cell(page, "L23H3").hover()
    headline = shown_map(page, "L23H3").locator(".headline")
    expect(headline).to_contain_text("Layer 23, head 3")
    box = headline.bounding_box()
    assert 0 <= box["y"] <= 650 - box["height"]


def test_a_kept_token_stands_in_the_address_and_on_both_maps(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    shown_map(page, "L5H5").locator(".tokens button").nth(7).click()
    expect(page).to_have_url(re.compile("token=7"))
    page = open_page(page.url)
    ready(page)
    page.get_by_role("button", name="Compare with another head").click()
    for side in ("left", "right"):
        kept = shown_map(page, "L5H5", side).locator(".tokens button").nth(7)
        expect(kept).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="German").click()
    expect(page).not_to_have_url(re.compile("token="))
    expect(view(page).locator(".tokens button[aria-pressed=true]")).to_have_count(0)


def test_words_are_explained_where_they_stand(open_page: OpenPage, service: str) -> None:
    page = open_page()
    ready(page)
    definition = asked(service, "v1/heads", text=SENTENCE)["definitions"]["induction"]["formula"]
    for place in (".legend button[value=induction]", ".table tbody th:has-text('induction')"):
        title = page.locator(f"#attention {place}").get_attribute("title")
        assert "after the same token before" in title
        assert definition in title
    page.get_by_text("What do the words mean?").click()
    expect(page.locator("#attention .meanings")).to_contain_text("a map is no explanation")
    expect(page.locator("#attention .meanings")).to_contain_text(definition)


@pytest.mark.parametrize(
    ("kind", "accept"), [("SVG", "image/svg+xml"), ("PNG", "image/png"), ("CSV", "text/csv")]
)
def test_exports_are_the_services_own_answers(
    open_page: OpenPage, service: str, kind: str, accept: str
) -> None:
    page = open_page(address(text=HOSTILE, layer=8, head=7, unit="word", by="sink"))
    ready(page)

    def saved(what: str) -> tuple[str, bytes]:
        with page.expect_download() as download:
            page.get_by_role("button", name=f"{what} as {kind}").click()
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    of_head = ask(service, "v1/attention", accept, text=HOSTILE, unit="word", layers=[8], heads=[7])
    assert saved("Map of L8H7") == (f"attention-L8H7.{kind.lower()}", of_head)
    assert saved("All heads") == (
        f"heads.{kind.lower()}",
        ask(service, "v1/heads?color=sink", accept, text=HOSTILE),
    )
    if kind == "CSV":
        assert len(list(csv.reader(io.StringIO(of_head.decode())))) > 2


def test_the_command_can_be_run_as_it_stands(open_page: OpenPage, service: str) -> None:
    page = open_page(address(text=HOSTILE, layer=8, head=7, first_token="drop"))
    ready(page)
    page.get_by_text("The same with curl").click()
    command = page.locator("#attention .export pre").inner_text()
    assert "\u202e" not in command
    run = subprocess.run(["sh", "-c", command], capture_output=True, check=True, timeout=60)
    expected = asked(service, "v1/attention", text=HOSTILE, layers=[8], heads=[7], first_token="drop")
    assert json.loads(run.stdout) == expected


def test_link_and_command_are_copied(open_page: OpenPage) -> None:
    page = open_page(address(layer=3, head=2), permissions=["clipboard-read", "clipboard-write"])
    ready(page)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#attention .export .status")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.get_by_role("button", name="Copy curl command").click()
    expect(page.locator("#attention .export .status")).to_have_text("Copied.")
    page.wait_for_function("navigator.clipboard.readText().then(text => text.startsWith('curl '))")


def test_a_shared_link_shows_the_same_in_a_fresh_browser(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_role("button", name="repetition").click()
    ready(page)
    page.get_by_label("Unit").select_option("word")
    page.get_by_label("Colour by").select_option("induction")
    page.locator("#attention .legend button[value=induction]").click()
    cell(page, "L9H8").click()
    page.get_by_role("button", name="Compare with another head").click()
    cell(page, "L11H12").click()
    page.locator("h1").hover()
    shown_map(page, "L11H12")
    other = open_page(page.url)
    ready(other)
    shown_map(other, "L9H8", "left")
    shown_map(other, "L11H12")
    for selector in (".legend", ".views", ".table", ".scale", ".files >> nth=0"):
        mine = page.locator(f"#attention {selector}").inner_text()
        assert other.locator(f"#attention {selector}").inner_text() == mine
    looks = """[...document.querySelectorAll('#attention td[data-name]')]
      .map(one => [...one.classList].sort().join() + one.style.backgroundImage)"""
    assert other.evaluate(looks) == page.evaluate(looks)
    expect(other.get_by_label("Unit")).to_have_value("word")


def test_where_a_text_is_too_long_for_all_maps_one_is_asked_for(open_page: OpenPage, service: str) -> None:
    page = open_page(address(text=LONG))
    found = shown_map(page, "L5H5")
    expect(page.locator("#attention > .warnings")).to_contain_text("up to 133 tokens")
    assert page.locator("#attention .mosaic td > i").count() == 0
    ready(page)
    cell(page, "L8H7").click()
    shown_map(page, "L8H7")
    tokens = asked(service, "v1/tokenize", text=LONG)["results"][0]["tokens"]
    expect(found.locator(".tokens button")).to_have_count(len(tokens))
    expect(page.locator("#attention .asking")).to_contain_text(f"{len(tokens)} tokens")
    page.get_by_role("button", name="the article’s").click()
    expect(page.locator("#attention .mosaic td > i")).to_have_count(24 * 14)


def test_of_a_long_text_the_headline_is_that_of_the_map(open_page: OpenPage) -> None:
    page = open_page(address(text=LONG))
    found = shown_map(page, "L5H5")
    ready(page)
    cell(page, "L8H7").hover()
    expect(cell(page, "L8H7")).to_have_class(re.compile("current"))
    page.evaluate("new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    expect(found.locator("h2")).to_have_text("Layer 5, head 5")
    held: list[Any] = []
    page.route(re.compile("/v1/attention$"), lambda route: held.append(route))
    cell(page, "L8H7").click()
    expect(found.locator("h2")).to_have_text("Layer 8, head 7")
    expect(found.locator(".map-view")).to_be_hidden()  # it is another head's yet
    held[0].continue_()
    shown_map(page, "L8H7")


def test_another_long_text_shows_its_own_map_wherever_the_keyboard_was(open_page: OpenPage) -> None:
    page = open_page(address(text=LONG))
    found = shown_map(page, "L5H5")
    cell(page, "L5H5").focus()
    page.keyboard.press("ArrowRight")
    expect(cell(page, "L5H6")).to_be_focused()
    text = page.get_by_label("Text", exact=True)
    text.fill("Dogs " + LONG)
    text.press("Control+Enter")
    expect(found.locator(".tokens button").first).to_contain_text("D")
    shown_map(page, "L5H5")
    expect(found.locator("h2")).to_have_text("Layer 5, head 5")


def test_the_heat_map_of_a_long_text_says_that_it_shows_square_roots(
    open_page: OpenPage, service: str
) -> None:
    page = open_page(address(text=LONG))
    found = shown_map(page, "L5H5")
    expected = weights(service, text=LONG, layers=[5], heads=[5], decimals=9)
    expect(found.locator(".heat-legend")).to_contain_text("square root")
    row = len(expected) - 1
    pixels = found.locator(".heat-map canvas").evaluate(
        "(node, row) => [...node.getContext('2d').getImageData(0, row, node.width, 1).data]", row
    )
    largest = max(map(max, expected))
    for key in range(0, row, 17):  # from white to the blue 21 94 168
        part = 0.05 + 0.95 * (expected[row][key] / largest) ** 0.5
        assert pixels[4 * key] == pytest.approx(255 + part * (21 - 255), abs=2)
    page.get_by_role("button", name="the article’s").click()
    expect(found.locator(".heat-legend")).to_be_hidden()


def test_scores_that_cannot_be_had_leave_none_of_the_text_before(open_page: OpenPage) -> None:
    page = open_page(address(by="induction"), allow=r".*status of 500")
    ready(page)
    page.route(re.compile("/v1/heads$"), lambda route: route.fulfill(status=500, body="no"))
    page.get_by_role("button", name="repetition").click()
    expect(page.locator("#attention .right .tokens button").first).to_contain_text("one")
    expect(page.locator("#attention .all-heads > .status")).to_contain_text("The service answered 500.")
    expect(cell(page, "L5H5")).to_have_attribute("aria-label", "Layer 5, head 5")
    assert cell(page, "L5H5").evaluate("node => node.style.backgroundImage") == ""
    expect(page.locator("#attention .legend button:enabled")).to_have_count(0)
    expect(page.locator("#attention details").filter(has_text="All scores of the head")).to_be_hidden()


def test_what_is_typed_outlasts_another_unit(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    text = page.get_by_label("Text", exact=True)
    text.fill("Not asked for yet")
    page.get_by_label("Unit").select_option("word")
    page.get_by_label("Drop the first token").check()
    expect(page.locator("#attention .asking")).to_contain_text("11 words")
    expect(text).to_have_value("Not asked for yet")
    text.press("Control+Enter")
    expect(page.locator("#attention .right .tokens button").first).to_have_text("Not")


def test_until_the_model_answers_nothing_is_there_that_does_not_work(
    open_page: OpenPage, no_violations: Callable[[Any], None]
) -> None:
    page = open_page("static/icon.svg")
    held: list[Any] = []
    page.route(re.compile("/v1/model$"), lambda route: held.append(route))
    page.goto(page.url.replace("static/icon.svg", ""))
    text = page.get_by_label("Text", exact=True)
    text.fill("Good night")
    page.get_by_role("button", name="Look").click()
    assert "text=Good+night" in page.url
    assert page.locator("#attention .result").locator("button, select, input, a").count() == 0
    assert page.locator("#attention .result > *").first.bounding_box()["height"] > 500  # the place is kept
    no_violations(page)
    held[0].continue_()
    ready(page)
    expect(page.locator("#attention .right .tokens button").first).to_contain_text("Good")
    expect(text).to_have_value("Good night")


def test_where_the_browser_has_no_room_for_small_maps_the_rest_is_there(open_page: OpenPage) -> None:
    page = open_page("static/icon.svg")
    page.add_init_script("HTMLCanvasElement.prototype.toBlob = done => setTimeout(() => done(null))")
    page.goto(page.url.replace("static/icon.svg", ""))
    ready(page)
    shown_map(page, "L5H5")
    assert page.locator("#attention .mosaic td > i").count() == 0
    expect(page.locator("#attention .mosaic > .hint")).not_to_contain_text("In each cell")


def test_small_maps_have_the_palette_that_was_wanted_last(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    page.evaluate(
        """() => {
          const make = HTMLCanvasElement.prototype.toBlob;
          let slow = true;
          let made = 0;
          HTMLCanvasElement.prototype.toBlob = function (done) {
            const late = slow ? 500 : 0;
            slow = false;
            const give = blob => { done(blob); document.documentElement.dataset.made = ++made; };
            make.call(this, blob => setTimeout(give, late, blob));
          };
        }"""
    )
    grid = page.locator("#attention .head-grid")
    atlas = "node => node.style.getPropertyValue('--atlas')"
    page.emulate_media(color_scheme="dark")
    page.evaluate("() => new Promise(requestAnimationFrame)")  # a scheme that no frame has seen is no change
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-made", "1")
    wanted = grid.evaluate(atlas)
    expect(page.locator("html")).to_have_attribute("data-made", "2")
    assert grid.evaluate(atlas) == wanted


def test_a_text_that_is_too_long_or_empty_is_told(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    text = page.get_by_label("Text", exact=True)
    status = page.locator("#attention > .status")
    text.fill(" \n ")
    page.get_by_role("button", name="Look").click()
    expect(status).to_contain_text("The text is empty.")
    expect(text).to_be_focused()
    text.fill("x " * 4500)
    page.get_by_role("button", name="Look").click()
    expect(status).to_have_text("The text has 4501 tokens; at most 4096 are read. Look at a part of it.")
    expect(page.locator("#attention .result")).to_be_hidden()  # it was of another text
    text.fill("cat")
    page.get_by_role("button", name="Look").click()
    ready(page)
    expect(status).to_have_text("")
    expect(page.locator("#attention .asking")).to_contain_text("1 token")
    assert page.locator("#attention td.missing").count() == 24 * 14
    expect(page.locator("#attention .scale")).to_contain_text("not applicable")
    assert view(page).locator(".reading").bounding_box()["width"] >= 260
    assert view(page).locator(".cells").bounding_box()["width"] <= 152


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_waited_for(open_page: OpenPage, status: int) -> None:
    page = open_page("static/icon.svg")
    answered = {"v1/heads": 0, "v1/attention": 0}

    def once_busy(route: Any) -> None:
        path = route.request.url.split("/", 3)[3]
        answered[path] += 1
        if answered[path] > 1:
            route.continue_()
            return
        problem = {
            "type": "/problems/overloaded",
            "title": "Busy",
            "status": status,
            "detail": "Eight ask already.",
        }
        route.fulfill(
            status=status,
            headers={"Retry-After": "1", "Content-Type": "application/problem+json"},
            body=json.dumps(problem),
        )

    page.route(re.compile("/v1/(heads|attention)$"), once_busy)
    page.goto(page.url.replace("static/icon.svg", ""))
    expect(page.locator("#attention > .status")).to_contain_text("Eight ask already.")
    ready(page)
    assert min(answered.values()) == 2
    shown_map(page, "L5H5")


def test_a_question_given_up_leaves_the_old_answer_dimmed(open_page: OpenPage) -> None:
    page = open_page()
    ready(page)
    problem = {"type": "/problems/overloaded", "title": "Busy", "status": 429, "detail": "Eight ask already."}
    busy = {"status": 429, "headers": {"Retry-After": "60"}, "json": problem}
    page.route(re.compile("/v1/(heads|attention)$"), lambda route: route.fulfill(**busy))
    page.get_by_label("Text", exact=True).fill("Hello there")
    page.get_by_role("button", name="Look").click()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(2)  # maps and scores
    page.get_by_role("button", name="Cancel").last.click()
    expect(page.locator("#attention > .status")).to_contain_text("Cancelled.")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)  # one is enough
    expect(page.locator("#attention .result")).to_have_attribute("aria-busy", "true")
    page.unroute(re.compile("/v1/(heads|attention)$"))
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#attention .tokens button").first).to_contain_text("Hello")
    ready(page)


def test_a_failure_is_told_and_can_be_tried_again(open_page: OpenPage) -> None:
    page = open_page("static/icon.svg", allow=r"Failed to load resource: net::ERR_FAILED|.*status of 500")
    broken = [True]
    page.route(
        re.compile("/v1/attention$"),
        lambda route: route.fulfill(status=500, body="no") if broken[0] else route.continue_(),
    )
    page.goto(page.url.replace("static/icon.svg", ""))
    expect(page.locator("#attention > .status")).to_contain_text("The service answered 500.")
    broken[0] = False
    page.locator("#attention > .status").get_by_role("button", name="Try again").click()
    shown_map(page, "L5H5")


def test_any_text_is_shown_as_text(open_page: OpenPage) -> None:
    page = open_page(address(text=HOSTILE))
    ready(page)
    expect(page.get_by_label("Text", exact=True)).to_have_value(HOSTILE)
    labels = "".join(page.locator("#attention .right .tokens button").all_inner_texts())
    assert "U+202E" in labels
    assert "\U0001f408" in labels
    assert page.locator("#attention b b").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(
    open_page: OpenPage, no_violations: Callable[[Any], None], scheme: str, width: int
) -> None:
    page = open_page(address(compare="L8H7", by="sink"), width=width, color_scheme=scheme)
    ready(page)
    shown_map(page, "L8H7", "left")
    page.get_by_text("The same with curl").click()
    no_violations(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_cells_are_large_enough_for_a_finger_on_a_phone(open_page: OpenPage) -> None:
    page = open_page(width=390, height=800, has_touch=True)
    ready(page)
    box = cell(page, "L5H5").bounding_box()
    assert box["width"] >= 22
    assert box["height"] >= 24
    cell(page, "L8H7").tap()
    shown_map(page, "L8H7")


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_tap_on_a_head_brings_its_map_into_sight_and_the_keyboard_stays(
    open_page: OpenPage, motion: str
) -> None:
    page = open_page(width=390, height=800, has_touch=True, reduced_motion=motion)
    ready(page)
    cell(page, "L2H3").focus()
    before = page.evaluate("scrollY")
    page.keyboard.press("Enter")
    shown_map(page, "L2H3")
    assert page.evaluate("scrollY") == before
    cell(page, "L3H4").tap()
    shown_map(page, "L3H4")
    expect(view(page).locator("h2")).to_be_in_viewport()


def test_nothing_moves_once_it_is_there(open_page: OpenPage) -> None:
    page = open_page("static/icon.svg")
    page.add_init_script(
        """window.moved = 0;
        new PerformanceObserver(list => { for (const one of list.getEntries()) window.moved += one.value; })
          .observe({type: "layout-shift", buffered: true});"""
    )
    page.goto(page.url.replace("static/icon.svg", ""))
    ready(page)
    assert page.evaluate("window.moved") < 0.1
