"""A KV cache's size against tokens, as a picture: a line a model, or a model's line beside its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attention_core.kv_cache import human_bytes
from service.formats.drawing import (
    FRAME,
    GREY,
    HEADER,
    INK,
    PAD,
    SMALL,
    Kind,
    PictureError,
    Sheet,
    check_options,
    legible,
    one_at_a_time,
    shorten,
    text_widths,
)
from service.formats.negotiation import DEFAULTS
from service.formats.views import visible

SCALES = ("log", "linear")

# Okabe and Ito's colours, safe for colour-blind eyes, but their yellow, and two more; the later ones are dashed besides
_COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#1a1a1a",
    "#e69f00",
    "#56b4e9",
    "#882255",
    "#999933",
)
_SOLID = 5
_DASHES: Mapping[str, tuple[int, tuple[float, ...]]] = {
    "solid": (0, ()),
    "dashed": (0, (5, 2)),
    "dotted": (0, (1, 2)),
}
_BOUNDS = {"ideal": "ideal", "no-swa": "no sliding window"}
_ENGINES = {
    "ideal": "ideal",
    "vllm": "vLLM reserves",
    "llama.cpp": "llama.cpp reserves",
    "hf": "transformers keeps",
}

_HEIGHTS = (150, 560)  # of the plot
_BESIDE = 480  # from this width on the names stand at the lines' ends, else below
_LONGEST_NAME = 34  # columns
_ROW = 14.0  # between two names
_FEWEST_OCTAVES = 4  # of tokens on a logarithmic axis
_MOST_DOTS = 24
_AROUND = (  # where a label can stand beside its dot
    (-8.0, -10.0, "right"),
    (8.0, 12.0, "left"),
    (-8.0, 12.0, "right"),
    (0.0, -16.0, "center"),
    (8.0, 27.0, "left"),
    (-4.0, 27.0, "right"),
)

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


def chart(
    payload: Mapping[str, Any], kind: Kind, *, width: int = DEFAULTS.width, scale: str = DEFAULTS.scale
) -> bytes:
    """The curves of an answer: bytes on one rank upwards, tokens to the right, both logarithmic or both linear.

    A line is solid to its model's maximum and dotted beyond; circles stand where a window is full, dots at the tokens
    asked for. A single model is drawn beside its ideal size and beside the size it would have without windows, where
    these differ; a budget is a horizontal line, with a dot at the longest sequence that fits.

    `width` is in CSS pixels; a PNG has exactly so many. The same arguments give the same bytes. Raises PictureError.
    """
    check_options(width, DEFAULTS.colormap)
    if scale not in SCALES:
        raise PictureError("unknown_option", "scale", f"The scales are {', '.join(SCALES)}.")
    curves = [_Curve.of(payload, index, curve) for index, curve in enumerate(payload["curves"])]
    if not any(size for curve in curves for _, size in curve.points):
        raise PictureError("nothing_to_draw", "", "The cache takes no bytes.")
    with one_at_a_time():
        return _Chart(payload, curves, kind, width, scale == "log").render()


@dataclass(frozen=True, slots=True)
class _Curve:
    """One line: of a model, or of its bounds, which have no marks."""

    name: str
    color: str
    dashes: str
    points: Sequence[tuple[int, int]]
    asked: Sequence[tuple[int, int]]
    windows: Sequence[int]
    max_tokens: int | None

    @classmethod
    def of(cls, payload: Mapping[str, Any], index: int, curve: Mapping[str, Any]) -> _Curve:
        alone = (
            len({one["model"] for one in payload["curves"] if "model" in one}) == 1
            and "models" not in payload
        )
        if "model" not in curve:
            name = _BOUNDS[curve["engine"]]
        elif alone:
            name = _BOUNDS.get(curve["engine"]) or _ENGINES[curve["engine"]]
        else:
            name = _name(payload, curve["model"])
        return cls(
            name,
            _COLORS[index % len(_COLORS)],
            "solid" if index < _SOLID and "model" in curve else "dashed",
            curve["points"],
            curve.get("asked", ()),
            curve.get("windows", ()),
            curve.get("max_tokens"),
        )


def _name(payload: Mapping[str, Any], model: str | None) -> str:
    """A model's id, or what there is in place of it, in characters that can be drawn."""
    config = payload["request"].get("config")
    if model is None and isinstance(config, dict) and isinstance(config.get("model_type"), str):
        model = config["model_type"]
    return shorten(legible(visible(model or "given sizes")), _LONGEST_NAME)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Numbers from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """The pixel of a number."""
        scaled = math.log2 if self.log else float
        share = (scaled(value) - scaled(self.low)) / (scaled(self.high) - scaled(self.low))
        return self.start + share * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Whether a number lies on the axis."""
        return self.low <= value <= self.high

    def ticks(self, room: float) -> list[int]:
        """Powers of two, or multiples of one, so far apart that each has `room` pixels."""
        most = max(1.0, abs(self.end - self.start) / room)
        if self.log:
            first, last = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
            step = next(step for step in (1, 2, 5, 10, 20, 40, 80) if (last - first) / step <= most)
            return [2**power for power in range(first, last + 1) if power % step == 0]
        step = 2 ** max(0, math.ceil(math.log2((self.high - self.low) / most)))
        return list(range(math.ceil(self.low / step) * step, math.floor(self.high) + 1, step))


class _Chart:
    def __init__(
        self, payload: Mapping[str, Any], curves: Sequence[_Curve], kind: Kind, width: int, log: bool
    ) -> None:
        self.payload, self.curves, self.log = payload, curves, log
        self.sheet = Sheet(width, kind)
        self.budget = _budget(payload)
        self.named = len(curves) > 1 or "models" in payload
        self.beside = self.named and width >= _BESIDE
        self.taken: list[Box] = []
        tokens_low, tokens_high = self._tokens()
        bytes_low, bytes_high = self._bytes(tokens_low)
        height = min(max(0.5 * width, _HEIGHTS[0]), _HEIGHTS[1])
        top = HEADER + 8.0
        # the ticks' labels decide where the plot begins, and its height which ticks there are
        self.y = _Axis(bytes_low, bytes_high, round(top + height), top, log)
        self.y_ticks = [(tick, human_bytes(tick)) for tick in self.y.ticks(30.0)]
        left = math.ceil(PAD + max(text_widths([label for _, label in self.y_ticks], SMALL)) + 6)
        names = max(text_widths([curve.name for curve in curves], SMALL))
        right = width - (names + 46 if self.beside else 2 * PAD + 6)
        self.x = _Axis(tokens_low, tokens_high, left, max(left + 60.0, round(right)), log)
        self.lines = [self._pixels(curve) for curve in curves]

    def render(self) -> bytes:
        sheet = self.sheet
        main = next(curve for curve in self.payload["curves"] if "model" in curve)
        others = self.payload.get("models", ())
        subject = f"{len(others) + 1} models" if others else _name(self.payload, main["model"])
        fits = sheet.header("KV cache", "tokens →  bytes ↑", subject)
        self._frame()
        self._budget_line()
        for curve, line in zip(reversed(self.curves), reversed(self.lines), strict=True):
            self._line(curve, line)
        self._maximum()
        self._marks()
        y = self.y.start + 32.0
        if self.beside:
            self._names_beside()
        elif self.named:
            y = self._names_below(y)
        for caption in [*([] if fits else [subject]), *self._captions()]:
            y = sheet.paragraph(caption, PAD, y)
        return sheet.render(y + PAD, f"KV cache of {subject}", self.payload)

    # --- what is shown of the axes ---

    def _tokens(self) -> tuple[float, float]:
        points = [tokens for curve in self.curves for tokens, _ in curve.points]
        first, high = min(points), max(points)
        if not self.log:
            return 0, high
        asked = {tokens for curve in self.curves for tokens, _ in curve.asked}
        windows = [window for curve in self.curves for window in curve.windows]
        if ("tokens" in self.payload["request"] and len(asked) > 1) or all(
            curve.max_tokens is None for curve in self.curves
        ):
            low = min(asked)
        else:  # the ten octaves below the longest, and more where a window fills there
            low = min([high // 1024, *(window // 4 for window in windows)])
        return max(first, min(low, high // 2**_FEWEST_OCTAVES), 1), high

    def _bytes(self, tokens_low: float) -> tuple[float, float]:
        sizes = [
            size for curve in self.curves for tokens, size in curve.points if tokens >= tokens_low and size
        ]
        high = max(sizes)
        if self.budget is not None and (self.log or self.budget <= 3 * high):
            sizes.append(self.budget)
        if not self.log:
            return 0, 1.08 * max(sizes)
        low = 2.0 ** math.floor(math.log2(max(1, min(sizes))))
        return low, max(1.3 * max(sizes), 2 * low)

    def _pixels(self, curve: _Curve) -> list[Point]:
        return [
            (self.x.at(tokens), self.y.at(size))
            for tokens, size in curve.points
            if self.x.holds(tokens) and self.y.holds(size)
        ]

    # --- drawing ---

    def _frame(self) -> None:
        x, y = self.x, self.y
        widest = text_widths([f"{math.floor(x.high):,}"], SMALL)[0]
        ticks = [(x.at(tick), f"{tick:,}") for tick in x.ticks(widest + 14)]
        rules = [[(x.start, y.at(tick)), (x.end, y.at(tick))] for tick, _ in self.y_ticks]
        rules += [[(at, y.start), (at, y.end)] for at, _ in ticks]
        self.sheet.lines(rules, FRAME, 0.75)
        self.sheet.lines([[(x.start, y.end), (x.start, y.start), (x.end, y.start)]], GREY, 1.0)
        for tick, label in self.y_ticks:
            self.sheet.text(x.start - 5, y.at(tick), label, SMALL, ha="right", va="center")
        for at, label in ticks:
            self.sheet.text(at, y.start + 15, label, SMALL, ha="center")

    def _line(self, curve: _Curve, line: Sequence[Point]) -> None:
        """Dotted beyond the model's maximum."""
        most = math.inf if curve.max_tokens is None else self.x.at(curve.max_tokens) + 0.01
        within = [point for point in line if point[0] <= most]
        beyond = line[max(0, len(within) - 1) :]
        for part, dashes in ((within, curve.dashes), (beyond, "dotted")):
            if len(part) > 1:
                self.sheet.lines([part], curve.color, 2.0, linestyles=[_DASHES[dashes]])
        if within and len(beyond) > 1 and "models" in self.payload:
            x, y = within[-1]
            self.sheet.lines([[(x, y - 8), (x, y + 8)]], curve.color, 2.0)

    def _maximum(self) -> None:
        """Of a model by itself: where it ends, written at the foot, where no line is."""
        most = self.curves[0].max_tokens
        if "models" in self.payload or most is None or not self.x.holds(most):
            return
        at = self.x.at(most)
        self.sheet.lines([[(at, self.y.start), (at, self.y.end)]], GREY, 1.0, linestyles=[_DASHES["dashed"]])
        self._label(
            (at, self.y.start - 8), f"the model's maximum, {most:,}", GREY, [(-6, 0, "right"), (6, 0, "left")]
        )

    def _budget_line(self) -> None:
        """With a dot at the longest sequence that fits."""
        if self.budget is None or not self.y.holds(self.budget):
            return
        at = self.y.at(self.budget)
        self.sheet.lines([[(self.x.start, at), (self.x.end, at)]], INK, 1.25)
        label = f"budget {human_bytes(self.budget)}"
        best = self.payload["max_tokens"]["per_sequence"]
        if best and "models" not in self.payload:
            label += f": {best:,} tokens fit"
            if self.x.holds(best):
                self.sheet.dots([(self.x.at(best), at)], 7.0)
        self._label((self.x.start + 6, at), label, INK, [(0, -8, "left"), (0, 10, "left")])

    def _marks(self) -> None:
        """Dots and circles on the lines, and beside them what they say."""
        for curve in self.curves:
            places = self._full(curve)
            self._dots(curve, places, "a window of {tokens} is full, {size}", "#ffffff", curve.color)
            self._dots(curve, curve.asked, "{tokens} tokens, {size}", curve.color, "white")
            if "models" not in self.payload:
                for window, size in places:
                    place = (self.x.at(window), self.y.at(size))
                    self._label(place, f"window of {window:,} full", curve.color, [_AROUND[1], *_AROUND])
        if "models" not in self.payload:
            asked = [one for one in self.curves[0].asked if self.x.holds(one[0]) and self.y.holds(one[1])]
            for tokens, size in asked[-6:]:
                place = (self.x.at(tokens), self.y.at(size))
                self._label(place, human_bytes(size), self.curves[0].color, _AROUND)

    def _full(self, curve: _Curve) -> list[tuple[int, int]]:
        """Where its windows are full: on the ideal line if there is one, as an engine's own corners lie elsewhere."""
        line = next((one for one in self.curves if one.name == _BOUNDS["ideal"]), curve)
        return [point for point in line.points if point[0] in curve.windows and self.x.holds(point[0])]

    def _dots(
        self, curve: _Curve, places: Sequence[tuple[int, int]], hint: str, fill: str, edge: str
    ) -> None:
        held = [(tokens, size) for tokens, size in places if self.x.holds(tokens) and self.y.holds(size)]
        for tokens, size in held[:: math.ceil(len(held) / _MOST_DOTS) or 1]:
            x, y = self.x.at(tokens), self.y.at(size)
            self.sheet.dots([(x, y)], 8.0, fill=fill, edge=edge, stroke=1.5)
            said = hint.format(tokens=f"{tokens:,}", size=human_bytes(size))
            self.sheet.hint((x - 7, y - 7, 14, 14), f"{curve.name}: {said}")

    def _label(self, place: Point, label: str, color: str, spots: Sequence[tuple[float, float, str]]) -> None:
        """Beside a place, at the first of the spots where it is in nobody's way; nowhere, where there is none."""
        wide = text_widths([label], SMALL)[0]
        for dx, dy, ha in spots:
            x, y = place[0] + dx, place[1] + dy
            left = x - {"left": 0.0, "center": wide / 2, "right": wide}[ha]
            box = (left - 2, y - 7, left + wide + 2, y + 7)
            if self._free(box):
                self.taken.append(box)
                self.sheet.text(x, y, label, SMALL, ha=ha, va="center", color=color)
                return

    def _free(self, box: Box) -> bool:
        left, top, right, bottom = box
        if left < self.x.start or right > self.x.end + 2 or top < self.y.end - 6 or bottom > self.y.start:
            return False
        if any(_overlap(box, other) for other in self.taken):
            return False
        return not any(
            left <= x <= right and top <= y <= bottom for line in self.lines for x, y in _sampled(line)
        )

    def _names_beside(self) -> None:
        """Each at its line's end, moved apart where lines end together."""
        ends = sorted((line[-1][1], index) for index, line in enumerate(self.lines) if line)
        heights: list[float] = []
        for at, _ in ends:
            heights.append(max(at, heights[-1] + _ROW) if heights else at)
        over = max(0.0, heights[-1] - (self.y.start - 4)) if heights else 0.0
        for place in range(
            len(heights) - 1, -1, -1
        ):  # those that would stand below the plot push the others up
            limit = heights[place + 1] - _ROW if place + 1 < len(heights) else heights[place] - over
            heights[place] = min(heights[place], limit)
        for (at, index), height in zip(ends, heights, strict=True):
            curve, x = self.curves[index], self.x.end
            self.sheet.lines([[(x + 3, at), (x + 12, height), (x + 28, height)]], curve.color, 2.0)
            self.sheet.text(x + 33, height, curve.name, SMALL, va="center")

    def _names_below(self, y: float) -> float:
        for curve in self.curves:
            style = {"linestyles": [_DASHES[curve.dashes]]}
            self.sheet.lines([[(PAD, y), (PAD + 22, y)]], curve.color, 2.0, **style)
            self.sheet.text(PAD + 28, y, curve.name, SMALL, va="center")
            y += _ROW
        return y

    def _captions(self) -> Iterator[str]:
        """What the numbers are of, and what the marks mean."""
        payload, request = self.payload, self.payload["request"]
        batch, ranks = request.get("batch", 1), request.get("tensor_parallel", 1)
        dtypes = [payload["k_dtype"], *(other["dtype"] for other in payload.get("models", ()))]
        of = [
            f"{payload['k_dtype']} keys, {payload['v_dtype']} values"
            if payload["k_dtype"] != payload["v_dtype"]
            else ", ".join(dict.fromkeys(dtypes)),
            f"a batch of {batch:,}" if batch > 1 else "one sequence",
        ]
        if prefix := request.get("shared_prefix_tokens"):
            of.append(f"{prefix:,} tokens shared")
        if ranks > 1:
            of.append(f"on one of {ranks} ranks")
        engine = request.get("engine", "ideal")
        of.append("the ideal cache" if engine == "ideal" else (_BOUNDS | _ENGINES)[engine])
        yield "; ".join(of)
        windows = any(map(self._full, self.curves))
        bars = "models" in payload and any(curve.max_tokens for curve in self.curves)
        marks = ["circles: a window is full"] * windows + ["a bar: the model's maximum"] * bars
        if marks:
            yield "; ".join(marks)


def _budget(payload: Mapping[str, Any]) -> int | None:
    """Bytes for the cache on a rank: the request's, or what is left of its GPU."""
    capacity = payload["capacity"]
    return capacity["kv_budget_bytes"] or None if capacity else None


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _sampled(line: Sequence[Point]) -> Iterator[Point]:
    """Points along a line, no farther apart than a few pixels."""
    for (x, y), (to_x, to_y) in pairwise(line):
        steps = max(1, math.ceil(max(abs(to_x - x), abs(to_y - y)) / 3))
        yield from (
            (x + (to_x - x) * part / steps, y + (to_y - y) * part / steps) for part in range(steps + 1)
        )
