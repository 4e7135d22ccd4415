"""The page of head scores, in a real browser, from disk and in an iframe, with no network."""

from __future__ import annotations

import json
import re
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient

from attention_core.heads import LABELS
from service.formats.head_grid import LABEL_COLORS, UNITS
from service.formats.page import heads_page
from service.formats.views import visible
from tests.browser.conftest import Tab

TEXT = "the cat sat, the mat: the cat"
# Low enough that the random weights of the tiny model give labels, several to some heads
THRESHOLDS = {"sink": 0.12, "previous_token": 0.12, "local": 0.5, "broad": 0.9, "induction": 0.1}
HOSTILE = "</script><b>\u202e'\"$(x)`\nEND"

Open = Callable[..., Any]


@pytest.fixture
def ask(client: FlaskClient) -> Callable[..., dict[str, Any]]:
    """An answer of the tiny model."""

    def post(**body: Any) -> dict[str, Any]:
        reply = client.post("/v1/heads", json=body)
        assert reply.status_code == 200, reply.json
        answer: dict[str, Any] = reply.json
        return answer

    return post


@pytest.fixture
def view(tab: Tab) -> Iterator[Open]:
    """Opens an answer's page; no request but for the files is let through."""
    yield lambda answer, fragment="": tab.show(heads_page(answer), fragment)
    assert tab.names == tab.expected


def cell(view: Any, layer: int, head: int) -> Any:
    return view.locator(f'#cells td[aria-label^="Layer {layer}, head {head}:"]')


def headline(view: Any) -> str:
    text: str = view.locator("#headline h2").inner_text()
    return text


def numbers(view: Any) -> dict[str, list[str | None]]:
    """{score: what its cells say in full}, as read out."""
    return {
        row.query_selector("th").inner_text().strip(): [
            one.get_attribute("title") or one.inner_text() for one in row.query_selector_all("td")
        ]
        for row in view.query_selector_all("#scores tr")
    }


def close(shown: str | None, value: float | None) -> bool:
    """Whether the whole number is shown: Python and JavaScript write some of the same floats differently."""
    if value is None:
        return shown == "–"
    return shown is not None and float(shown) == value


def background(view: Any, layer: int, head: int) -> str:
    image: str = cell(view, layer, head).evaluate("node => node.style.backgroundImage")
    return image


def test_the_grid_has_the_true_numbers_of_layers_and_heads(ask: Open, view: Open) -> None:
    page = view(ask(text=TEXT, layers=[2, 0], heads=[7, 3, 9]))
    assert page.locator("#columns th").all_inner_texts() == ["3", "7", "9"]
    assert page.locator("#cells th").all_inner_texts() == ["0", "2"]
    assert page.locator("#cells td").count() == 6


def test_pointing_at_a_head_reads_out_the_numbers_of_the_answer(ask: Open, view: Open) -> None:
    answer = ask(text=TEXT, thresholds=THRESHOLDS)
    page = view(answer)
    for place in (4, 17):
        head = answer["heads"][place]
        cell(page, head["layer"], head["head"]).hover()
        assert headline(page) == f"Layer {head['layer']}, head {head['head']}"
        chips = page.locator("#headline .chip").all_inner_texts()
        assert [one.split(" ")[0] for one in chips if "not carried" not in one] == head["labels"]
        shown = numbers(page)
        assert list(shown) == list(head["scores"])
        for name, score in head["scores"].items():
            number, _, baseline, excess, rate, rows, status = shown[name]
            for text, key in ((number, "score"), (baseline, "baseline"), (excess, "excess")):
                assert close(text, score[key])
            assert close(rate, score["argmax_rate"])
            assert rows == str(score["rows"])
            assert (status == "ok") == (score["status"] == "ok")


def test_a_head_of_several_labels_has_a_stripe_for_each(ask: Open, view: Open) -> None:
    answer = ask(text=TEXT, thresholds=THRESHOLDS)
    page = view(answer)
    colors: dict[str, str] = page.evaluate("COLORS")
    assert colors == dict(LABEL_COLORS)  # as the pictures have them
    assert list(colors) == list(LABELS)
    counts = {len(head["labels"]) for head in answer["heads"]}
    assert counts >= {1, 2}  # else this shows little
    for head in answer["heads"]:
        expected = ["rgb({}, {}, {})".format(*bytes.fromhex(colors[label][1:])) for label in head["labels"]]
        found = re.findall(r"rgb\([^)]*\)", background(page, head["layer"], head["head"]))
        assert found[::2] == found[1::2] == expected  # a stripe's start and end


def test_a_label_can_be_singled_out(ask: Open, view: Open) -> None:
    answer = ask(text=TEXT, thresholds=THRESHOLDS)
    page = view(answer)
    lit = "document.querySelectorAll('#cells td:not(.dim)').length"
    assert page.evaluate(lit) == len(answer["heads"])
    for label, count in answer["summary"]["labels"].items():
        button = page.locator(f'#legend button[value="{label}"]')
        told = button.inner_text().split()
        assert told[:2] == [label, str(count["count"])]
        if not count["count"]:
            assert button.is_disabled()
            continue
        assert told[3] == f"{100 * count['fraction']:.1f}"
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert page.evaluate(lit) == count["count"]
    page.locator('#legend button[aria-pressed="true"]').click()
    assert page.evaluate(lit) == len(answer["heads"])


def test_shares_have_the_same_colours_on_every_page(ask: Open, view: Open) -> None:
    answer = ask(text=TEXT, thresholds=THRESHOLDS)
    page = view(answer)
    page.select_option("#by", "sink")
    for head in answer["heads"][::7]:
        (strength,) = set(re.findall(r"/ ([\d.e-]+)\)", background(page, head["layer"], head["head"])))
        assert float(strength) == pytest.approx(head["scores"]["sink"]["score"])
    texts = page.locator("#scale").inner_text()
    assert f"baseline {answer['heads'][0]['scores']['sink']['baseline']:.3f}" in texts
    assert f"threshold {THRESHOLDS['sink']}" in texts
    outlined = "document.querySelectorAll('#cells td.outlined').length"
    assert page.evaluate(outlined) == answer["summary"]["labels"]["sink"]["count"]

    page.select_option("#kind", "excess")
    for head in answer["heads"]:
        below = head["scores"]["sink"]["excess"] < 0
        assert ("--below" in background(page, head["layer"], head["head"])) == below

    page.select_option("#by", "distance")
    page.select_option("#kind", "score")
    largest = max(
        max(head["scores"]["distance"][key] for key in ("score", "baseline")) for head in answer["heads"]
    )
    ends = page.locator("#scale > span[title]")
    assert [float(one.get_attribute("title")) for one in ends.all()] == [0, largest]
    page.select_option("#by", "entropy")
    assert "nats" in page.locator("#scale").inner_text()
    assert not page.locator("#kind").is_visible()


def test_where_a_score_has_no_number_the_cell_says_why(ask: Open, view: Open) -> None:
    answer = ask(text="z", layers=[1])
    page = view(answer)
    assert page.locator("#cells td.missing").count() == page.locator("#cells td").count()
    assert "not applicable" in cell(page, 1, 3).get_attribute("aria-label")
    assert "no row has a key that counts" in page.locator("#scale").inner_text()
    (warning,) = answer["warnings"]
    assert page.locator("#warnings").inner_text() == warning["message"]
    page.select_option("#by", "first_token")
    assert "too short" in cell(page, 1, 3).get_attribute("aria-label")
    page.select_option("#by", "entropy")
    assert page.locator("#cells td.missing").count() == page.locator("#cells td").count()


def test_it_works_with_the_keyboard_alone(ask: Open, view: Open) -> None:
    page = view(ask(text=TEXT, thresholds=THRESHOLDS))
    press = page.page.keyboard.press
    assert page.locator('#cells td[tabindex="0"]').count() == 1
    page.locator('#cells td[tabindex="0"]').focus()
    press("Control+Home")
    assert headline(page) == "Layer 0, head 0"
    for key in ("ArrowLeft", "ArrowUp"):  # the edge holds
        press(key)
    assert headline(page) == "Layer 0, head 0"
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        press(key)
    assert headline(page) == "Layer 1, head 2"
    press("Enter")
    assert cell(page, 1, 2).get_attribute("aria-selected") == "true"
    press("End")
    assert headline(page) == "Layer 1, head 9"
    assert page.locator('#cells td[tabindex="0"]').get_attribute("aria-label").startswith("Layer 1, head 9:")
    press("Escape")
    assert page.locator('#cells [aria-selected="true"]').count() == 0


def test_a_head_that_was_clicked_is_kept(ask: Open, view: Open) -> None:
    page = view(ask(text=TEXT))
    cell(page, 2, 3).click()
    cell(page, 1, 1).hover()
    assert headline(page) == "Layer 1, head 1"
    page.locator("h1").hover()
    assert headline(page) == "Layer 2, head 3"
    cell(page, 2, 3).click()
    cell(page, 1, 1).hover()
    page.locator("h1").hover()
    assert headline(page) == "Layer 1, head 1"


def test_the_strongest_heads_of_a_label_are_a_click_away(ask: Open, view: Open) -> None:
    answer = ask(text=TEXT, thresholds=THRESHOLDS)
    page = view(answer)
    strongest = answer["summary"]["labels"]["sink"]["top"]
    (links,) = [one for one in page.locator("#strongest > div").all() if one.inner_text().startswith("sink")]
    assert links.locator("button").all_inner_texts() == [
        f"L{one['layer']}H{one['head']}" for one in strongest
    ]
    links.locator("button").last.click()
    layer, head = strongest[-1]["layer"], strongest[-1]["head"]
    assert headline(page) == f"Layer {layer}, head {head}"
    assert cell(page, layer, head).get_attribute("aria-selected") == "true"


def test_an_address_can_name_a_head(ask: Open, view: Open) -> None:
    assert headline(view(ask(text=TEXT), "#L2H7")) == "Layer 2, head 7"


def test_pooled_answers_show_their_spread(ask: Open, view: Open) -> None:
    answer = ask(
        texts=[TEXT, "it is the cat on the mat", " "], on_error="skip", probe="repeat", draws=3, seed=5
    )
    page = view(answer)
    (head,) = [one for one in answer["heads"] if (one["layer"], one["head"]) == (1, 4)]
    cell(page, 1, 4).hover()
    shown = numbers(page)
    for name, score in head["scores"].items():
        *_, sd, interval, n, agreeing = shown[name]
        assert close(sd, score["sd"])
        if score["ci95"] is None:
            assert interval == "–"
        else:
            assert interval is not None
            assert [float(end) for end in interval.split(" to ")] == score["ci95"]
        assert n == str(score["n"])
        assert agreeing == str(head["texts_agreeing"].get(name, "–"))
    notes = page.locator("#warnings").inner_text()
    for told in ("/texts/2", "empty_text", answer["probe"]["sha256"], "seed 5", "3 draws"):
        assert told in notes


def test_a_pattern_of_ones_own_can_be_coloured_by(ask: Open, view: Open) -> None:
    answer = ask(text="zz", pattern=[[1, 0], [1, 0]], layers=[0])
    page = view(answer)
    page.select_option("#by", "custom")
    cell(page, 0, 2).hover()
    similarity = answer["heads"][2]["scores"]["custom"]["mae_similarity"]
    assert f"mean absolute error of the pattern {similarity:.3f}" in page.locator("#headline").inner_text()


def test_a_borderline_label_is_marked_and_explained(ask: Open, view: Open) -> None:
    answer = ask(text=TEXT, layers=[0], heads=[2, 5])
    answer["heads"][1]["borderline"] = ["local"]
    page = view(answer)
    assert page.locator("#cells td.borderline").count() == 1
    assert "exactness" in page.locator("#scale").inner_text()
    cell(page, 0, 5).hover()
    assert "local (borderline" in page.locator("#headline").inner_text()


def test_definitions_and_all_that_is_needed_to_cite_are_there(ask: Open, view: Open) -> None:
    answer = ask(text=TEXT, layers=[0])
    page = view(answer)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    definitions = page.locator("#definitions").inner_text()
    for one in answer["definitions"].values():
        assert one["formula"] in definitions
        assert one["source"] in definitions
    cite = page.locator("#cite").inner_text()
    model = answer["model"]
    for fact in (model["id"], model["dtype"], *model["versions"].values(), model["sha256"] or ""):
        assert fact in cite


def test_the_request_can_be_copied_and_sent_again_whatever_its_text(ask: Open, view: Open) -> None:
    answer = ask(text=HOSTILE, layers=[0])
    page = view(answer)
    page.evaluate("document.getElementById('cite').open = true")
    assert page.locator("b").count() == 0
    for place, told in (("#request", "\\u202e"), ("#curl", "\\u202e"), ("#about", "U+202E")):
        shown = page.locator(place).inner_text()
        assert told in shown
        assert "\u202e" not in shown
    assert json.loads(page.locator("#request").inner_text()) == answer["request"]
    # What a shell makes of it, with a curl that says its arguments and its body
    curl = 'SERVICE=there; curl() { printf "%s\\n" "$@"; cat; }\n'
    script = curl + page.locator("#curl").inner_text()
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
    address, *options, body = told.splitlines()
    assert address == "there/v1/heads"
    assert options == ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    assert json.loads(body) == answer["request"]


def test_where_no_score_counts_there_are_no_strongest_heads(ask: Open, view: Open) -> None:
    page = view(ask(text="z", layers=[1], heads=[4]))
    assert headline(page) == "Layer 1, head 4"
    assert not page.locator("#strongest").is_visible()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"text": TEXT}, f"30 heads · “{TEXT}”"),
        ({"text": "\u202e" + "\U0001f431 " * 90}, "30 heads · “U+202E" + "\U0001f431 " * 59 + "…”"),
        ({"texts": [TEXT], "layers": [1], "heads": [4]}, "1 head · 1 text"),
        ({"texts": [TEXT, "\n it"]}, "30 heads · 2 texts"),
        ({"messages": [{"role": "user", "content": TEXT}]}, "30 heads · a conversation"),
        ({"token_ids": [5, 7, 11, 13, 17]}, "30 heads · token ids"),
    ],
    ids=["text", "long text", "one of texts", "texts", "messages", "token ids"],
)
def test_the_page_says_of_what_it_is(ask: Open, view: Open, body: dict[str, Any], told: str) -> None:
    assert view(ask(**body)).locator("#about").text_content().endswith(f" · {told}")


def test_the_page_makes_the_same_characters_visible_as_the_service(ask: Open, view: Open) -> None:
    page = view(ask(text=TEXT))
    known = [chr(point) for point in range(0x11000) if unicodedata.category(chr(point)) not in ("Cn", "Cs")]
    labels = [
        "",
        " ",
        " \t\u200c\n",
        "\u200d",
        "a b\n",
        "\u0301e",
        "\u00a0\u3164",
        "\u3000 \u2800",
        "\U000e0041x",
        *known,
        *(f"a{one}" for one in known),
    ]
    assert page.evaluate("labels => labels.map(visible)", labels) == [visible(label) for label in labels]


def test_numbers_that_are_no_shares_name_their_unit(ask: Open, view: Open) -> None:
    page = view(ask(text=TEXT))
    assert page.evaluate("UNITS") == dict(UNITS)
    names = page.locator("#by option").all_inner_texts()
    assert names == ["label", *(name for name in UNITS if name not in ("entropy", "custom")), "entropy"]
    for name in names[1:]:
        page.select_option("#by", name)
        end = page.locator("#scale > span[title]").last.inner_text()
        assert end.endswith(f" {UNITS[name]}") if UNITS[name] else end == "1"


def test_it_fits_a_narrow_frame_and_follows_the_colour_scheme(ask: Open, view: Open) -> None:
    page = view(ask(texts=[TEXT, "the cat"], probe="repeat", draws=2))
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    paper = "() => getComputedStyle(document.body).backgroundColor"
    page.page.emulate_media(color_scheme="light")
    light = page.evaluate(paper)
    page.page.emulate_media(color_scheme="dark")
    assert light == "rgb(255, 255, 255)" != page.evaluate(paper)
