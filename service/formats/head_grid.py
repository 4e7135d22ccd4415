"""Heads as a picture: layers down, heads across, coloured by label or by a score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.ticker import MaxNLocator

from attention_core.heads import NOISE, PROBE_RULES, SCORES
from service.formats.drawing import (
    FRAME,
    GREY,
    HEADER,
    INK,
    MAX_HEIGHT,
    PAD,
    SMALL,
    Kind,
    PictureError,
    Sheet,
    check_options,
    is_light,
    legible,
    model_name,
    one_at_a_time,
    outline,
    shorten,
    text_widths,
)
from service.formats.negotiation import DEFAULTS
from service.formats.views import visible

# Of every number that a cell can be coloured by; None for a share, from 0 to 1
UNITS: Mapping[str, str | None] = MappingProxyType(
    {
        "entropy": "nats",
        **{name: rule.unit for name, rule in SCORES.items() if rule.kind != "spans"},
        "custom": None,
    }
)
COLORS = ("label", *UNITS)

# One colour a label in every picture. Any two of them, and the grey of no label, are at least 0.1 apart in OKLab, also
# as seen with protanopia, deuteranopia or tritanopia (Machado et al. 2009)
LABEL_COLORS: Mapping[str, str] = MappingProxyType(
    {
        "sink": "#c0c1ff",
        "first_token": "#55cc99",
        "previous_token": "#cfa800",
        "offset_2": "#7700dd",
        "offset_3": "#aa55ff",
        "current_token": "#ffd133",
        "duplicate_token": "#e663c5",
        "induction": "#e04b14",
        "punctuation": "#774400",
        "local": "#009177",
        "broad": "#146095",
    }
)
OTHER_LABEL = "#808080"  # one that is not in the table
NO_LABEL = "#eaeaea"
_DIAGONALS = {"too_short": "/", "not_applicable": "\\"}

_WIDEST, _HIGHEST = 120.0, 48.0  # of a cell
_NUMBERED = 1024  # more cells carry no numbers: they take a millisecond each
_MARKED = 6  # cells smaller than this carry no outline and no dot
_LINE = 18.0  # height of a line of the legend
_SWATCH = (18.0, 12.0)
_LONGEST_TEXT = 120  # columns


def grid(
    payload: Mapping[str, object],
    kind: Kind,
    *,
    width: int = DEFAULTS.width,
    colormap: str = DEFAULTS.colormap,
    color: str = DEFAULTS.color,
) -> bytes:
    """The heads of an answer, layers down from the lowest, heads across, each with its own number.

    `color` is `label`: a cell shows all labels of its head, as stripes side by side, each in its own colour; or one
    of `COLORS`, a score: shares are drawn on the scale from 0 to 1 so that pictures compare, distance and entropy
    from 0 to their highest; heads that carry the label of that name are outlined; where no number applies the cell
    is crossed out. Of several texts or draws it is the mean that is drawn. A dot marks a label that is borderline.

    `width` is in CSS pixels; a PNG has exactly so many. The same arguments give the same bytes. Raises PictureError.
    """
    check_options(width, colormap)
    if color not in COLORS:
        raise PictureError("unknown_option", "color", f"The colours are {', '.join(COLORS)}.")
    if not payload["heads"]:
        raise PictureError("nothing_to_draw", "", "The answer has no heads.")
    with one_at_a_time():
        subject = _labels(payload) if color == "label" else _score(payload, color, colormap)
        return _draw(payload, subject, Sheet(width, kind))


@dataclass(frozen=True, slots=True)
class _Look:
    """How a cell looks, of the grid or of the legend."""

    stripes: tuple[str, ...] = ("#ffffff",)
    outlined: bool = False
    diagonal: str = ""  # "/" or "\\"
    dot: bool = False
    number: str = ""


@dataclass(frozen=True, slots=True)
class _Scale:
    """A colour bar: from 0 to `high`."""

    colormap: str
    high: float
    baseline: float | None
    threshold: tuple[str, float] | None  # what it is marked with, and its place

    def color(self, value: float) -> str:
        red, green, blue, _ = matplotlib.colormaps[self.colormap](value / self.high, bytes=True)
        return f"#{red:02x}{green:02x}{blue:02x}"


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is drawn."""

    title: str
    looks: Sequence[_Look]  # of each head
    hints: Sequence[str]  # of each head
    legend: Sequence[tuple[_Look, str]]
    scale: _Scale | None
    caption: str


# --- what is drawn ------------------------------------------------------------------------------------------


def _labels(payload: Mapping[str, Any]) -> _Subject:
    heads, counts = payload["heads"], payload["summary"]["labels"]
    looks = [
        _Look(tuple(map(_label_color, head["labels"])) or (NO_LABEL,), dot=bool(head["borderline"]))
        for head in heads
    ]
    legend = [
        (_Look((_label_color(name),)), f"{name} {one['count']}")
        for name, one in counts.items()
        if one["count"]
    ]
    bare = sum(not head["labels"] for head in heads)
    if bare:
        legend.append((_Look((NO_LABEL,)), f"no label {bare}"))
    hints = []
    for head in heads:
        carried = [f"{name} {_number(head['scores'][name]['score'])}" for name in head["labels"]]
        near = [f"{name} borderline" for name in head["borderline"]]
        hints.append(f"L{head['layer']}H{head['head']}: {', '.join([*carried, *near]) or 'no label'}")
    return _Subject("labels", looks, hints, [*legend, *_borderline(looks)], None, "")


def _label_color(name: str) -> str:
    return LABEL_COLORS.get(name, OTHER_LABEL)


def _score(payload: Mapping[str, Any], name: str, colormap: str) -> _Subject:
    heads = payload["heads"]
    scores = [_of(head, name) for head in heads]
    if all(score is None for score in scores):
        needs = "; it needs a `pattern`" if name == "custom" else ""
        raise PictureError("incompatible_options", "color", f"The answer has no score {name}{needs}.")
    present = [score for score in scores if score is not None]
    if all(score["score"] is None for score in present):
        raise PictureError("nothing_to_draw", "color", f"{name} is not applicable here: no head has a value.")

    drawn = [score for score in present if score["status"] == "ok"]
    baseline = next((score["baseline"] for score in drawn), None)
    highest = max((score["score"] for score in drawn), default=0.0)
    scale = _Scale(
        colormap,
        (max(highest, baseline or 0.0) or 1.0) if UNITS[name] else 1.0,
        baseline,
        _threshold(payload, name),
    )
    looks, hints = [], []
    for head, score in zip(heads, scores, strict=True):
        status = score["status"] if score is not None else "not_applicable"
        value = score["score"] if score is not None and status == "ok" else None
        if value is None:
            looks.append(_Look(diagonal=_DIAGONALS[status]))
            shown = status.replace("_", " ")
        else:
            shown = _number(value)
            labelled, near = name in head["labels"], name in head["borderline"]
            looks.append(_Look((scale.color(value),), outlined=labelled, dot=near, number=shown))
        hints.append(f"L{head['layer']}H{head['head']}: {name} {shown}")

    legend = []
    carrying = sum(look.outlined for look in looks)
    if carrying:
        legend.append((_Look((NO_LABEL,), outlined=True), f"label {name} {carrying}"))
    for status, diagonal in _DIAGONALS.items():
        count = sum(look.diagonal == diagonal for look in looks)
        if count:
            legend.append((_Look(diagonal=diagonal), f"{status.replace('_', ' ')} {count}"))
    title = f"{name}, {UNITS[name]}" if UNITS[name] else name
    return _Subject(
        title,
        looks,
        hints,
        [*legend, *_borderline(looks)],
        scale if drawn else None,
        _caption(payload, name, drawn),
    )


def _of(head: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The score of that name of one head, as it stands in the answer; None where the answer has no such score."""
    if name != "entropy":
        score: Mapping[str, Any] | None = head["scores"].get(name)
        return score
    entropy = head["entropy"]
    status = "not_applicable" if entropy is None else "ok"
    return {"score": entropy, "baseline": None, "status": status}


def _threshold(payload: Mapping[str, Any], name: str) -> tuple[str, float] | None:
    """Where the label of that name begins, if the answer gives it."""
    if name not in payload["summary"]["labels"]:
        return None
    value = payload["definitions"][name]["threshold"]
    return f"{SCORES[name].sign} {value:g}", value


def _caption(payload: Mapping[str, Any], name: str, drawn: Sequence[Mapping[str, Any]]) -> str:
    """The formula, and over how many texts or draws it is a mean."""
    if name == "entropy":
        formula = "mean entropy of a head's rows i >= 1"
    else:
        formula = payload["definitions"][name]["formula"]
    several = sorted({score["n"] for score in drawn if score.get("n") is not None})
    if several and several != [1]:
        of = "draws" if payload.get("probe") is not None and name in PROBE_RULES else "texts"
        formula += f"; the mean over {'–'.join(map(str, several))} {of}"
    return formula


def _asked(payload: Mapping[str, Any]) -> str:
    """Of which text the heads are, and whether tokens were drawn besides."""
    request, probe = payload["request"], payload.get("probe")
    if "text" in request:
        asked = f"“{legible(visible(shorten(request['text'], _LONGEST_TEXT)))}”"
    elif "texts" in request:
        asked = f"{len(request['texts'])} text{'s' * (len(request['texts']) != 1)}"
    else:
        asked = "a conversation" if "messages" in request else "token ids"
    return asked if probe is None else f"{asked}; repeat probe, seed {probe['seed']}"


def _borderline(looks: Iterable[_Look]) -> list[tuple[_Look, str]]:
    count = sum(look.dot for look in looks)
    return [(_Look((NO_LABEL,), dot=True), f"borderline, ±{NOISE:g} decides: {count}")] if count else []


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


# --- drawing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the cells stand: in whole pixels, so that their edges are sharp."""

    layers: Sequence[int]
    heads: Sequence[int]
    left: int
    top: int
    column: float  # width of a cell with its gap, on average
    row: int
    gap: int

    def box(self, layer: int, head: int) -> tuple[int, int, int, int]:
        """(x, y, width, height) of a head's cell."""
        place = self.heads.index(head)
        start, end = round(place * self.column), round((place + 1) * self.column)
        y = self.top + self.layers.index(layer) * self.row
        return self.left + start, y, end - start - self.gap, self.row - self.gap

    @property
    def bottom(self) -> int:
        return self.top + len(self.layers) * self.row


def _layout(heads: Sequence[Mapping[str, Any]], width: int) -> _Layout:
    """Cells as wide as there is room for, and about half as high."""
    layers = sorted({head["layer"] for head in heads})
    columns = sorted({head["head"] for head in heads})
    left = math.ceil(PAD + max(text_widths([*map(str, layers)], SMALL)) + 5)
    column = min(_WIDEST, (width - left - PAD) / len(columns))
    row = math.floor(min(column, max(18.0, 0.45 * column), _HIGHEST, (MAX_HEIGHT - 400) / len(layers)))
    row = max(1, row)
    gap = 2 if row >= 14 else 1 if row >= 6 else 0
    return _Layout(layers, columns, left, round(HEADER + 16), column, row, gap)


def _draw(payload: Mapping[str, Any], subject: _Subject, sheet: Sheet) -> bytes:
    heads, model = payload["heads"], model_name(payload)
    layout = _layout(heads, sheet.width)
    boxes = [layout.box(head["layer"], head["head"]) for head in heads]
    _cells(sheet, boxes, subject.looks)
    for box, hint in zip(boxes, subject.hints, strict=True):
        sheet.hint(box, hint)
    _names(sheet, layout)
    captions = [*filter(None, [subject.caption]), _asked(payload)]
    if not sheet.header(subject.title, "layer ↓  head →", model):
        captions.append(model)
    y = layout.bottom + 12.0
    if subject.scale is not None:
        y = _color_bar(sheet, subject.scale, layout.left, y, min(sheet.width - layout.left - 2 * PAD, 360.0))
    legend = subject.legend
    if min(layout.column, layout.row) - layout.gap < _MARKED:
        legend = [(look, label) for look, label in legend if not (look.outlined or look.dot)]
    y = _legend(sheet, legend, layout.left, y)
    for caption in captions:
        y = sheet.paragraph(caption, layout.left, y)
    return sheet.render(y + PAD, f"Heads of {model}: {subject.title}", payload)


def _cells(sheet: Sheet, boxes: Sequence[tuple[float, float, float, float]], looks: Sequence[_Look]) -> None:
    stripes, colors = [], []
    for (x, y, width, height), look in zip(boxes, looks, strict=True):
        edges = [round(width * part / len(look.stripes)) for part in range(len(look.stripes) + 1)]
        for color, start, end in zip(look.stripes, edges, edges[1:], strict=False):
            stripes.append((x + start, y, end - start, height))
            colors.append(color)
    sheet.rectangles(stripes, colors)

    outlines, strokes, frames, diagonals, dots = [], [], [], [], []
    for (x, y, width, height), look in zip(boxes, looks, strict=True):
        if look.outlined and min(width, height) >= _MARKED:  # inside, so that no neighbour looks outlined too
            stroke = 2.0 if height >= 12 else 1.0
            outlines.append(outline(x + stroke / 2, y + stroke / 2, width - stroke, height - stroke))
            strokes.append(stroke)
        if look.diagonal:
            frames.append(outline(x + 0.5, y + 0.5, width - 1, height - 1))
            ends = (y + height, y) if look.diagonal == "/" else (y, y + height)
            diagonals.append([(x, ends[0]), (x + width, ends[1])])
        if look.dot and min(width, height) >= _MARKED:
            dots.append((x + width - 4, y + 4))
        if look.number and width >= 30 and height >= 14 and len(boxes) <= _NUMBERED:
            light = is_light(np.array(to_rgba(look.stripes[0])) * 255)
            style = {"ha": "center", "va": "center", "color": INK if light else "white"}
            sheet.text(x + width / 2, y + height / 2, look.number, min(11.0, width * 0.3), **style)
    sheet.lines(frames, FRAME)
    sheet.lines(diagonals, GREY, 0.75)
    sheet.lines(outlines, INK, strokes, joinstyle="miter")
    if dots:
        sheet.dots(dots, 5.0)


def _names(sheet: Sheet, layout: _Layout) -> None:
    """The numbers of layers and heads."""
    rows, columns = {}, {}
    for layer in layout.layers:
        _, y, _, height = layout.box(layer, layout.heads[0])
        rows[layer] = y + height / 2
    for head in layout.heads:
        x, _, width, _ = layout.box(layout.layers[0], head)
        columns[head] = x + width / 2
    sheet.side_numbers(layout.left, layout.top, rows, columns)


def _color_bar(sheet: Sheet, scale: _Scale, x: float, y: float, width: float) -> float:
    """From left to right, the baseline marked above, the threshold below among the ticks; where it ends."""
    top, height = y + (17 if scale.baseline is not None else 0), 10.0
    colors = matplotlib.colormaps[scale.colormap](np.linspace(0, 1, 256), bytes=True)[None]
    sheet.image(colors, x, top, width, height)

    def rule(at: float, start: float, end: float) -> None:
        sheet.lines([[(at, top), (at, top + height)]], "white", 4.0)
        sheet.lines([[(at, start), (at, end)]], INK, 2.0)

    def mark(value: float, label: str, *, above: bool = False) -> None:
        at = x + width * value / scale.high
        half = text_widths([label], SMALL)[0] / 2
        middle = min(max(at, x + half), x + width - half)
        if above:
            rule(at, top - 4, top + height)
            sheet.text(middle, top - 6, label, SMALL, ha="center")
        else:
            sheet.text(middle, top + height + 13, label, SMALL, ha="center")

    if scale.baseline is not None:
        mark(
            scale.baseline,
            f"baseline {scale.baseline:.2g}"
            if scale.baseline < 0.1
            else f"baseline {_number(scale.baseline)}",
            above=True,
        )
    for value, label in _ticks(scale, width):
        mark(value, label)
    if scale.threshold is not None:
        at = x + width * scale.threshold[1] / scale.high
        rule(at, top, top + height + 4)
    return top + height + 26


def _ticks(scale: _Scale, width: float) -> list[tuple[float, str]]:
    """The threshold, both ends, and of the round numbers between them those that have room beside these."""
    wanted = [(0.0, "0"), (scale.high, f"{scale.high:.3g}")]
    if scale.threshold is not None:
        wanted.insert(0, (scale.threshold[1], scale.threshold[0]))
    between = MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, scale.high)
    wanted += [(float(value), f"{value:g}") for value in between if 0 < value < scale.high]
    kept: list[tuple[float, str]] = []
    taken: list[tuple[float, float]] = []
    for (value, label), size in zip(wanted, text_widths([label for _, label in wanted], SMALL), strict=True):
        middle = min(max(width * value / scale.high, size / 2), width - size / 2)
        start, end = middle - size / 2 - 5, middle + size / 2 + 5
        if all(end <= other_start or start >= other_end for other_start, other_end in taken):
            kept.append((value, label))
            taken.append((start, end))
    return kept


def _legend(sheet: Sheet, entries: Sequence[tuple[_Look, str]], left: float, y: float) -> float:
    """Entries side by side, as many to a line as fit; where it ends."""
    if not entries:
        return y
    x, boxes = left, []
    for (_, label), size in zip(entries, text_widths([label for _, label in entries], SMALL), strict=True):
        wide = _SWATCH[0] + 5 + size + 16
        if x > left and x + wide - 16 > sheet.width - PAD:
            x, y = left, y + _LINE
        boxes.append((round(x), round(y), *_SWATCH))
        sheet.text(x + _SWATCH[0] + 5, y + _SWATCH[1] / 2, label, SMALL, va="center")
        x += wide
    _cells(sheet, boxes, [look for look, _ in entries])
    return y + _LINE + 4
