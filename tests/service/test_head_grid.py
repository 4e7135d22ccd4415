"""The picture of an answer of /v1/heads, read back from its pixels and its texts."""

from __future__ import annotations

import io
import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import matplotlib
import numpy as np
import pytest
from flask.testing import FlaskClient
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from attention_core.heads import LABELS, SCORES, definitions, summarise, thresholds_of
from service.formats import drawing
from service.formats.head_grid import COLORS, LABEL_COLORS, NO_LABEL, OTHER_LABEL, grid

SVG = "{http://www.w3.org/2000/svg}"
DC = "{http://purl.org/dc/elements/1.1/}"
TEXT = "The cat sat on the mat because the cat was tired."
INK = (26, 26, 26)
Box = tuple[int, int, int, int]


def head(layer: int, number: int, labels: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """One head; keywords are scores, as a number or as a status with or without one."""
    scores = {name: score(0.25) for name in SCORES}
    scores.update((name, score(more.pop(name))) for name in list(more) if name in {*SCORES, "custom"})
    return {
        "layer": layer,
        "head": number,
        "kv_head": 0,
        "labels": list(labels),
        "borderline": [],
        "scores": scores,
        "entropy": 0.5,
        **more,
    }


def score(value: float | str | dict[str, Any]) -> dict[str, Any]:
    plain = {"score": 0.0, "baseline": 0.2, "excess": 0.0, "argmax_rate": 0.0, "rows": 7, "status": "ok"}
    if isinstance(value, dict):
        return {**plain, **value}
    if isinstance(value, str):
        return {**plain, "score": 0.9 if value == "too_short" else None, "status": value}
    return {**plain, "score": value}


def answer(*heads: Mapping[str, Any], model: str = "tiny", **more: Any) -> dict[str, Any]:
    counts = summarise([one["labels"] for one in heads], thresholds_of())
    return {
        "model": {"id": model, "sha256": None, "dtype": "float32"},
        "summary": {"heads": len(heads), "labels": {name: asdict(one) for name, one in counts.items()}},
        "heads": list(heads),
        "definitions": {name: asdict(one) for name, one in definitions().items()},
        "warnings": [],
        "request": {"text": TEXT},
        **more,
    }


def many(layers: int, heads: int) -> dict[str, Any]:
    """A grid in which every head has another sink score, rising from 0 to 1."""
    places = list(itertools.product(range(layers), range(heads)))
    return answer(*(head(*place, sink=i / max(1, len(places) - 1)) for i, place in enumerate(places)))


def svg(payload: Mapping[str, Any], **options: Any) -> ET.Element:
    return ET.fromstring(grid(payload, "svg", **options))


def texts(root: ET.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def hints(root: ET.Element) -> dict[str, Box]:
    """What the pointer is told, and where: (x, y, width, height) in CSS pixels."""
    found = {}
    for rect in root.iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            x, y, width, height = (int(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            found[title.text or ""] = (x, y, width, height)
    return found


def cells(payload: Mapping[str, Any], width: int = 800, **options: Any) -> dict[str, np.ndarray]:
    """The RGB pixels of each head's cell, by `L3H5`."""
    pixels = np.asarray(image(payload, width=width, **options).convert("RGB"))
    places = hints(svg(payload, width=width, **options))
    return {
        hint.partition(":")[0]: pixels[y : y + height, x : x + w]
        for hint, (x, y, w, height) in places.items()
    }


def image(payload: Mapping[str, Any], **options: Any) -> Image.Image:
    return Image.open(io.BytesIO(grid(payload, "png", **options)))


def rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))


def runs(row: np.ndarray) -> list[tuple[tuple[int, ...], int]]:
    """The colours of a row of pixels from left to right, and how many pixels each takes."""
    return [(color, len([*same])) for color, same in itertools.groupby(tuple(map(int, one)) for one in row)]


def has_ink(cell: np.ndarray) -> bool:
    return bool((cell == INK).all(-1).any())


# --- by label -----------------------------------------------------------------------------------------------


def test_a_cell_shows_all_labels_of_its_head_side_by_side_in_the_order_of_the_table() -> None:
    payload = answer(
        head(3, 5, ["sink", "local", "broad"]),
        head(3, 11, ["previous_token", "induction"]),
        head(7, 5, ["punctuation"]),
        head(7, 11),
    )
    found = cells(payload)
    for place, labels in [
        ("L3H5", ["sink", "local", "broad"]),
        ("L3H11", ["previous_token", "induction"]),
        ("L7H5", ["punctuation"]),
    ]:
        cell = found[place]
        for y in (0, len(cell) // 2, len(cell) - 1):
            stripes = runs(cell[y])
            assert [color for color, _ in stripes] == [rgb(LABEL_COLORS[label]) for label in labels]
            assert all(abs(size - cell.shape[1] / len(labels)) <= 1 for _, size in stripes)
    assert runs(found["L7H11"][3]) == [(rgb(NO_LABEL), found["L7H11"].shape[1])]


def test_the_legend_counts_the_labels_that_are_there_and_the_heads_without_any() -> None:
    payload = answer(head(0, 0, ["sink", "broad"]), head(0, 1, ["sink"]), head(0, 2), head(0, 3), head(1, 0))
    assert {"sink 2", "broad 1", "no label 3"} <= set(texts(svg(payload)))
    assert not any(text.startswith(("induction", "local")) for text in texts(svg(payload)))
    assert not any(text.startswith("no label") for text in texts(svg(answer(head(0, 0, ["sink"])))))


def test_the_legend_is_in_the_colours_of_the_cells() -> None:
    payload = answer(head(0, 0, ["duplicate_token"]), head(0, 1, ["offset_2"]))
    pixels = np.asarray(image(payload).convert("RGB"))
    bottom = max(y + height for _, y, _, height in hints(svg(payload)).values())
    for label in ("duplicate_token", "offset_2"):
        assert (pixels[bottom:] == rgb(LABEL_COLORS[label])).all(-1).sum() == 18 * 12


def test_a_label_that_has_no_colour_of_its_own_is_grey() -> None:
    unknown = head(0, 0, ["sink", "rhyme"])
    unknown["scores"]["rhyme"] = score(0.7)
    payload = answer(unknown)
    payload["summary"]["labels"]["rhyme"] = {"count": 1, "fraction": 1.0}
    assert [color for color, _ in runs(cells(payload)["L0H0"][3])] == [
        rgb(LABEL_COLORS["sink"]),
        rgb(OTHER_LABEL),
    ]
    assert "rhyme 1" in texts(svg(payload))


# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# severity 1.0, on linear RGB; Ottosson 2020, OKLab
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_colours_of_labels_can_be_told_apart(sight: str) -> None:
    assert tuple(LABEL_COLORS) == LABELS
    paper = "#14171a"  # of the page, where it is dark
    colors = np.array([rgb(color) for color in [*LABEL_COLORS.values(), NO_LABEL, paper]]) / 255
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.transpose(SIGHTS[sight]), 0, 1)
    lab = np.cbrt(seen @ np.transpose(TO_CONES)) @ np.transpose(TO_OKLAB)
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(lab, 2)) > 0.1


def test_a_borderline_label_is_a_dot_in_the_corner_and_in_the_legend() -> None:
    payload = answer(head(0, 0, ["sink"], borderline=["sink"]), head(0, 1, ["sink"]), head(0, 2))
    found = cells(payload)
    dotted = found["L0H0"]
    assert has_ink(dotted[:9, -9:])
    assert not any(has_ink(part) for part in (dotted[9:], dotted[:, :-9], found["L0H1"], found["L0H2"]))
    assert "borderline, ±0.0002 decides: 1" in texts(svg(payload))
    assert not any("borderline" in text for text in texts(svg(answer(head(0, 1, ["sink"])))))
    assert has_ink(cells(payload, color="sink")["L0H0"][1:6, -7:-2])


# --- by score -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colormap", drawing.COLORMAPS)
@pytest.mark.parametrize("name", ["sink", "broad", "custom"])
def test_the_colour_of_a_share_is_its_place_between_0_and_1(name: str, colormap: str) -> None:
    values = {(2, 1): 0.0, (2, 4): 0.3, (9, 1): 0.7, (9, 4): 0.81}
    payload = answer(*(head(*place, **{name: value}) for place, value in values.items()))
    payload["definitions"]["custom"] = {"formula": "mean", "threshold": None}
    found = cells(payload, color=name, colormap=colormap)
    for (layer, number), value in values.items():
        expected = matplotlib.colormaps[colormap](value, bytes=True)[:3]
        assert tuple(found[f"L{layer}H{number}"][3, 3]) == tuple(expected)
    assert {"0", "0.25", "1"} <= set(texts(svg(payload, color=name, colormap=colormap)))


@pytest.mark.parametrize(("name", "unit"), [("distance", "tokens"), ("entropy", "nats")])
def test_distance_and_entropy_are_drawn_up_to_the_highest_and_name_their_unit(name: str, unit: str) -> None:
    payload = answer(head(0, 0, **{name: 0.0}), head(0, 1, **{name: 3.0}), head(0, 2, **{name: 12.0}))
    found = cells(payload, color=name)
    for place, part in [("L0H0", 0.0), ("L0H1", 0.25), ("L0H2", 1.0)]:
        assert tuple(found[place][3, 3]) == tuple(matplotlib.colormaps["viridis"](part, bytes=True)[:3])
    assert {f"{name}, {unit}", "0", "12", "3.00", "12.0"} <= set(texts(svg(payload, color=name)))


def test_heads_that_carry_the_label_are_outlined_and_no_others() -> None:
    payload = answer(
        head(0, 0, ["sink"], sink=0.9), head(0, 1, ["broad"], sink=0.4), head(1, 0, sink=0.45), head(1, 1)
    )
    found = cells(payload, color="sink")
    for place in found:
        edges = np.concatenate([found[place][0], found[place][-1], found[place][:, 0], found[place][:, -1]])
        outlined = (np.abs(edges.astype(int) - INK).sum(-1) < 12).mean()
        assert outlined > 0.9 if place == "L0H0" else outlined == 0
    assert "label sink 1" in texts(svg(payload, color="sink"))
    assert not any(text.startswith("label ") for text in texts(svg(payload, color="local")))


def test_a_head_whose_score_does_not_count_is_white_and_crossed_out() -> None:
    payload = answer(
        head(0, 0, induction="too_short"),
        head(0, 1, induction="not_applicable"),
        head(0, 2, induction=0.5),
        head(0, 3, induction="not_applicable"),
    )
    root = svg(payload, color="induction")
    assert {"too short 1", "not applicable 2", "0.50"} <= set(texts(root))
    assert "0.90" not in texts(root)
    assert {"L0H0: induction too short", "L0H1: induction not applicable", "L0H2: induction 0.50"} <= set(
        hints(root)
    )
    found = cells(payload, color="induction")
    for place, rising in [("L0H0", True), ("L0H1", False)]:
        cell = found[place][2:-2, 2:-2]
        dark = cell.min(-1) < 200
        assert (cell == 255).all(-1).mean() > 0.9
        y, x = np.nonzero(dark)
        assert np.corrcoef(y, x)[0, 1] * (-1 if rising else 1) > 0.99
    assert (found["L0H2"] != 255).any(-1).all(0).all()


def test_the_colour_bar_marks_the_baseline_and_the_threshold() -> None:
    assert {"baseline 0.20", "> 0.5", "0.25", "0.75"} <= set(texts(svg(many(2, 3), color="sink")))
    assert "≥ 0.8" in texts(svg(many(2, 3), color="broad"))
    assert not any(text[0] in "<>≥" for text in texts(svg(many(2, 3), color="distance")))
    assert not any("baseline" in text for text in texts(svg(many(2, 3), color="entropy")))
    payload = many(2, 3)
    del payload["summary"]["labels"]["sink"]  # the request asked for other labels
    assert "> 0.5" not in texts(svg(payload, color="sink"))


@pytest.mark.parametrize("width", [200, 800])
@pytest.mark.parametrize(("threshold", "baseline"), [(0.37, 0.2), (0.9, 0.61)])
def test_the_marks_of_the_colour_bar_are_lines_at_their_values(
    width: int, threshold: float, baseline: float
) -> None:
    payload = answer(head(0, 0, sink={"score": 0.4, "baseline": baseline}))
    payload["definitions"]["sink"]["threshold"] = threshold
    root = svg(payload, color="sink", width=width)
    (bar,) = root.iter(f"{SVG}image")
    (matrix,) = re.findall(r"matrix\((.*)\)", bar.attrib["transform"])
    wide, _, _, high, left, top = map(pixels, matrix.split())
    size, height = wide * int(bar.attrib["width"]), high * int(bar.attrib["height"])
    upper, lower = [
        (x1, y1, y2)
        for (x1, y1), (x2, y2) in ink_lines(root)
        if x1 == x2 and min(y1, y2) < top + height and max(y1, y2) > top
    ]
    assert upper == pytest.approx((left + size * baseline, top - 4, top + height), abs=0.6)
    assert lower == pytest.approx((left + size * threshold, top, top + height + 4), abs=0.6)


def test_without_a_label_the_colour_bar_has_no_line() -> None:
    assert len(ink_lines(svg(many(2, 3), color="sink"))) == 2
    assert len(ink_lines(svg(many(2, 3), color="distance"))) == 1  # the baseline
    assert ink_lines(svg(many(2, 3), color="entropy")) == []


def pixels(points: str) -> float:
    return float(points) * 4 / 3


def ink_lines(root: ET.Element) -> list[list[tuple[float, float]]]:
    """Lines in the colour of ink, from one point to another, in CSS pixels."""
    paths = [
        one.attrib for one in root.iter(f"{SVG}path") if "stroke: #1a1a1a" in one.attrib.get("style", "")
    ]
    ends = [re.findall(r"[ML] ([\d.]+) ([\d.]+)", one["d"]) for one in paths]
    return [[(pixels(x), pixels(y)) for x, y in points] for points in ends if len(points) == 2]


def test_no_two_ticks_of_the_colour_bar_overlap() -> None:
    payload = many(2, 3)
    for threshold in (0.0, 0.01, 0.24, 0.49, 0.51, 0.99, 1.0):
        payload["definitions"]["sink"]["threshold"] = threshold
        for width in (200, 800):
            ticks = [one for one in svg(payload, color="sink", width=width).iter(f"{SVG}text") if one.text]
            marked = next(one for one in ticks if one.text == f"> {threshold:g}")
            level = [one for one in ticks if y_of(one) == y_of(marked)]
            places = sorted((x_of(one), drawing.text_widths([one.text or ""], 10)[0]) for one in level)
            assert len(places) >= 3
            for (left, size), (right, other) in itertools.pairwise(places):
                assert right - left > (size + other) / 2


def x_of(element: ET.Element) -> float:
    return pixels(element.attrib["x"])


def y_of(element: ET.Element) -> float:
    return pixels(element.attrib["y"])


def test_cells_carry_their_numbers_where_they_fit() -> None:
    assert "0.50" in texts(svg(many(1, 3), color="sink", width=800))
    assert not any(text.startswith("0.5") for text in texts(svg(many(24, 14), color="sink", width=300)))


def test_the_formula_and_what_it_is_a_mean_over_are_told() -> None:
    pooled = {"score": 0.75, "sd": 0.1, "n": 13}
    payload = answer(head(0, 0, sink=pooled, induction=pooled), probe={"draws": 13, "seed": 7})
    assert "mean over rows i >= 1 of A[i,0]; the mean over 13 texts" in texts(svg(payload, color="sink"))
    assert "0.75" in texts(svg(payload, color="sink"))
    assert " ".join(texts(svg(payload, color="induction"))).count("the mean over 13 draws") == 1


@pytest.mark.parametrize("color", ["label", "sink", "entropy"])
def test_a_picture_says_of_which_text_it_is_and_that_tokens_were_drawn(color: str) -> None:
    for request, told in [
        ({"text": TEXT}, f"“{TEXT}”"),
        ({"texts": [TEXT, "b", "c"]}, "3 texts"),
        ({"messages": [{"role": "user", "content": TEXT}]}, "a conversation"),
        ({"token_ids": [5, 7]}, "token ids"),
    ]:
        payload = answer(head(0, 0), request=request)
        assert told in texts(svg(payload, color=color))
        assert f"{told}; repeat probe, seed 31" in texts(
            svg({**payload, "probe": {"draws": 2, "seed": 31}}, color=color)
        )


def test_of_a_long_text_the_picture_tells_the_beginning() -> None:
    root = svg(answer(head(0, 0), request={"text": "\nab" * 100}), width=400)
    assert "“" + "↵ab" * 39 + "↵a…”" in "".join(texts(root))


# --- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3), (24, 14), (80, 64), (1, 64), (200, 1)])
@pytest.mark.parametrize("width", [200, 801, 2400])
def test_a_png_of_any_grid_has_the_width_asked_for_and_room_for_every_cell(
    layers: int, heads: int, width: int
) -> None:
    payload = many(layers, heads)
    picture = image(payload, width=width, color="sink")
    assert picture.width == width
    assert picture.height <= drawing.MAX_HEIGHT
    found = hints(svg(payload, width=width, color="sink"))
    boxes = [*found.values()]
    assert len(boxes) == layers * heads
    assert all(x > 0 and x + w <= width and y + height < picture.height for x, y, w, height in boxes)
    assert min(min(w, height) for _, _, w, height in boxes) >= 1
    taken = np.zeros((picture.height, width), dtype=int)
    for x, y, w, height in boxes:
        taken[y : y + height, x : x + w] += 1
    assert taken.max() == 1


def test_rows_and_columns_are_those_of_the_answer_with_their_own_numbers() -> None:
    payload = answer(*(head(*place) for place in itertools.product([19, 2, 7], [13, 4])))
    root = svg(payload)
    numbers = [text for text in texts(root) if text.isdigit()]
    assert numbers == ["2", "7", "19", "4", "13"]
    assert "layer ↓  head →" in texts(root)
    found = hints(root)
    x = {number: found[f"L2H{number}: no label"][0] for number in (4, 13)}
    y = {layer: found[f"L{layer}H4: no label"][1] for layer in (2, 7, 19)}
    assert x[4] < x[13]
    assert y[2] < y[7] < y[19]


@pytest.mark.parametrize(("width", "layers", "heads"), [(200, 80, 64), (800, 80, 64), (2400, 80, 64)])
def test_the_numbers_at_the_sides_thin_out_before_they_touch(width: int, layers: int, heads: int) -> None:
    root = svg(many(layers, heads), width=width, color="sink")
    numbers = [one for one in root.iter(f"{SVG}text") if (one.text or "").isdigit()]
    top = min(map(y_of, numbers))
    across = [one for one in numbers if y_of(one) == top]
    down = sorted(y_of(one) for one in numbers if x_of(one) < 30 and top < y_of(one))
    assert 5 <= len(across) <= heads
    assert all(
        x_of(b) - x_of(a) > drawing.text_widths([b.text or ""], 10)[0] for a, b in itertools.pairwise(across)
    )
    assert all(b - a > 10 for a, b in itertools.pairwise(down[:-1]))


# --- what the file says of itself ---------------------------------------------------------------------------

HOSTILE = '</title><script>alert(1)</script>&"\x00\u202e$x$ 猫'


@pytest.mark.parametrize("color", ["label", "sink"])
def test_the_model_is_named_as_text_whatever_its_id(color: str) -> None:
    request = {"text": HOSTILE}
    payload = answer(head(0, 0), model=HOSTILE, request=request)
    root = svg(payload, color=color, width=1200)
    assert not [one for one in root.iter() if one.tag.endswith("script")]
    assert any('</title><script>alert(1)</script>&"U+0000U+202E$x$' in text for text in texts(root))
    (description,) = root.iter(f"{DC}description")
    assert json.loads(description.text or "") == {"model": payload["model"], "request": request}
    assert json.loads(image(payload, color=color).info["Description"])["request"] == request


def test_a_name_that_has_no_room_beside_the_title_stands_below() -> None:
    for width in (200, 800):
        root = svg(answer(head(0, 0), model="an-organisation/model"), width=width)
        assert texts(root).count("an-organisation/model") == 1


@pytest.mark.parametrize("width", [200, 300, 800])
@pytest.mark.parametrize("color", [name for name in COLORS if name != "custom"])
@pytest.mark.parametrize("baseline", [0.004, 1.0])
def test_no_text_leaves_the_picture(width: int, color: str, baseline: float) -> None:
    scores = {name: {"score": 0.4, "baseline": baseline} for name in SCORES}
    model = "models/" + "long-" * 7 + "x" * 60
    payload = answer(head(0, 0, ["induction"], **scores), head(0, 1), model=model)
    root = svg(payload, width=width, color=color)
    for one in root.iter(f"{SVG}text"):
        left, right = reach_of(one)
        assert left >= 0
        assert right <= width
    lines = "".join(texts(root))
    assert "models/" in lines
    assert lines.count("x" * 10) >= 1


def reach_of(element: ET.Element) -> tuple[float, float]:
    """From where to where a text goes, in CSS pixels."""
    size = drawing.text_widths([element.text or ""], size_of(element))[0]
    (anchor,) = re.findall(r"text-anchor: (\w+)", element.attrib["style"]) or ["start"]
    start = x_of(element) - size * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    return start, start + size


@pytest.mark.parametrize("text", ["iiil " * 20 + "WWMM " * 20, "我" * 90, "x" * 300, "a " + "W" * 90])
def test_a_paragraph_is_broken_where_the_line_ends(text: str) -> None:
    sheet = drawing.Sheet(311, "svg")
    end = sheet.paragraph(text, 20, 30)
    lines = [*ET.fromstring(sheet.render(end, "", {})).iter(f"{SVG}text")]
    assert "".join(one.text or "" for one in lines).replace(" ", "") == text.replace(" ", "")
    assert all(reach_of(one)[1] <= 311 for one in lines)
    assert min(reach_of(one)[1] for one in lines[:-1]) > 311 - 120
    assert end == 30 + drawing.LINE * len(lines)


def size_of(element: ET.Element) -> float:
    """Of its font, in CSS pixels."""
    (size,) = re.findall(r"font(?:-size)?: ([\d.]+)px", element.attrib["style"])
    return float(size) * 4 / 3


def test_a_file_says_what_it_shows() -> None:
    payload = many(2, 3)
    assert svg(payload, color="sink").findtext(f"{SVG}title") == "Heads of tiny: sink"
    picture = image(payload)
    assert picture.info["Title"] == "Heads of tiny: labels"
    told = {name: payload[name] for name in ("model", "request")}
    assert json.loads(picture.info["Description"]) == told
    assert "Software" not in picture.info


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=40))
def test_any_model_id_stays_well_formed(model: str) -> None:
    payload = answer(head(0, 0), model=model)
    (description,) = svg(payload, width=200).iter(f"{DC}description")
    assert json.loads(description.text or "")["model"]["id"] == model


def test_the_pointer_is_told_the_labels_and_their_scores() -> None:
    payload = answer(
        head(8, 7, ["previous_token", "local"], previous_token=0.843, local=0.9, borderline=["sink"]),
        head(8, 8),
    )
    assert list(hints(svg(payload))) == [
        "L8H7: previous_token 0.84, local 0.90, sink borderline",
        "L8H8: no label",
    ]


def test_what_the_pointer_is_told_is_text() -> None:
    sheet = drawing.Sheet(300, "svg")
    sheet.hint((1, 2, 3, 4), '</title><script>"&')
    root = ET.fromstring(sheet.render(50, "", {}))
    assert hints(root) == {'</title><script>"&': (1, 2, 3, 4)}


# --- answers ------------------------------------------------------------------------------------------------


def ask(client: FlaskClient, **request: Any) -> dict[str, Any]:
    response = client.post("/v1/heads", json=request)
    assert response.status_code == 200
    return {**(response.json or {}), "request": request}


def test_an_answer_of_the_service_is_drawn_head_by_head(client: FlaskClient) -> None:
    payload = ask(client, text=TEXT, layers=[0, 2], heads=[9, 1, 4])
    for color in ("label", "sink", "previous_token", "broad"):
        found = cells(payload, color=color)
        assert len(found) == 6
        for one in payload["heads"]:
            corner = tuple(map(int, found[f"L{one['layer']}H{one['head']}"][4, 4]))
            if color == "label":
                assert corner == rgb(LABEL_COLORS[one["labels"][0]] if one["labels"] else NO_LABEL)
            else:
                value = one["scores"][color]["score"]
                assert corner == tuple(matplotlib.colormaps["viridis"](value, bytes=True)[:3])


@pytest.mark.parametrize("color", [name for name in COLORS if name != "custom"])
def test_every_colour_but_custom_can_be_drawn_of_an_ordinary_answer(client: FlaskClient, color: str) -> None:
    root = svg(ask(client, text=TEXT + " The cat, the mat, the cat, the mat."), color=color)
    assert any(text.startswith("labels" if color == "label" else color) for text in texts(root))
    assert len(hints(root)) == 30


def test_of_several_texts_the_mean_is_drawn(client: FlaskClient) -> None:
    payload = ask(client, texts=[TEXT, "The dog barked at the fence, and then at the cat."], layers=[1])
    shown = [text for text in texts(svg(payload, color="sink")) if text.startswith("0.") and len(text) == 4]
    means = [f"{one['scores']['sink']['score']:.2f}" for one in payload["heads"]]
    assert set(means) <= set(shown)
    assert any(text.endswith("the mean over 2 texts") for text in texts(svg(payload, color="sink")))


def test_a_pattern_of_ones_own_is_drawn(client: FlaskClient) -> None:
    tokens = client.post("/v1/tokenize", json={"text": "the cat"}).json["results"][0]["tokens"]  # type: ignore[index]
    pattern = np.tril(np.ones((len(tokens), len(tokens)), dtype=int)).tolist()
    payload = ask(client, text="the cat", pattern=pattern, layers=[0], heads=[3])
    assert "custom" in texts(svg(payload, color="custom"))


def test_too_short_a_text_is_drawn_as_too_short(client: FlaskClient) -> None:
    payload = ask(client, text="abc")
    root = svg(payload, color="sink")
    assert "too short 30" in texts(root)
    assert not any(text.startswith("baseline") for text in texts(root))


# --- every time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_picture_is_the_same_bytes_in_any_thread(kind: Any) -> None:
    tasks = [(many(2 + i % 3, 3), ("label", "sink")[i % 2]) for i in range(12)]
    serial = [grid(payload, kind, color=color) for payload, color in tasks]
    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(lambda task: grid(task[0], kind, color=task[1]), tasks)] == serial
    assert len(set(serial)) == 6


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"width": 199}, "out_of_range", "width"),
        ({"width": 2401}, "out_of_range", "width"),
        ({"colormap": "jet"}, "unknown_option", "colormap"),
        ({"color": "coreference"}, "unknown_option", "color"),
        ({"color": "custom"}, "incompatible_options", "color"),
        ({"color": "induction"}, "nothing_to_draw", "color"),
    ],
)
def test_a_picture_refuses_what_it_cannot_do(options: dict[str, Any], code: str, field: str) -> None:
    payload = answer(head(0, 0, induction="not_applicable"), head(0, 1, induction="not_applicable"))
    with pytest.raises(drawing.PictureError) as caught:
        grid(payload, "png", **options)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_there_is_no_entropy_of_a_single_token(client: FlaskClient) -> None:
    with pytest.raises(drawing.PictureError) as caught:
        grid(ask(client, text="a"), "svg", color="entropy")
    assert caught.value.code == "nothing_to_draw"
