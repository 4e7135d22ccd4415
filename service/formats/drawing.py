"""What every picture is drawn on: a sheet in CSS pixels, by matplotlib without its global state.

No pyplot: a Figure and its canvas belong to one call. matplotlib's settings are process-wide, so they are made
once, below, and never touched while drawing; its font caches are shared too, hence one picture at a time.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import threading
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage

from service.errors import DeadlineExceededError
from service.formats.views import code_point, visible

SVG_MEDIA_TYPE = "image/svg+xml"
PNG_MEDIA_TYPE = "image/png"
Kind = Literal["svg", "png"]

# Perceptually uniform and safe for colour-blind eyes; `_r` puts the light end at zero, for print
COLORMAPS = ("viridis", "cividis", "magma", "inferno", "plasma", "viridis_r", "cividis_r", "magma_r")
WIDTHS = range(200, 2401)  # CSS pixels
MAX_HEIGHT = 8000

INK, GREY, FRAME = "#1a1a1a", "#6b6b6b", "#dcdcdc"
PAD = 8.0
HEADER = 30.0
SMALL = 10.0  # the font of all but titles and tokens
LINE = 14.0  # height of a line of a paragraph

# DejaVu Sans comes with matplotlib; of the others, those that are installed follow it where it has no glyph
_FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Microsoft YaHei",
    "Noto Sans Thai",
    "Loma",
    "Noto Sans Devanagari",
    "Lohit Devanagari",
    "Noto Emoji",
    "Symbola",
    "Arial Unicode MS",
    "Unifont",
)
_INSTALLED = {font.name for font in font_manager.fontManager.ttflist}
_FAMILIES = ["DejaVu Sans", *(name for name in _FALLBACKS if name in _INSTALLED)]

matplotlib.rcParams.update(
    {
        "font.family": [*_FAMILIES, "sans-serif"],
        "font.sans-serif": _FAMILIES,
        "text.parse_math": False,  # a `$` in a token is a dollar
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "attention",  # the same picture is the same bytes, so that an ETag holds
        "image.composite_image": False,
    }
)
_turn = threading.Lock()
_begin_by: ContextVar[float] = ContextVar("begin_by", default=math.inf)  # of time.monotonic()


@contextlib.contextmanager
def begun_by(at: float) -> Iterator[None]:
    """What is drawn in here has its turn by then, of time.monotonic(), or not at all."""
    token = _begin_by.set(at)
    try:
        yield
    finally:
        _begin_by.reset(token)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """This drawing's turn: matplotlib is not thread-safe. Raises DeadlineExceededError where it comes too late."""
    patience = _begin_by.get() - time.monotonic()
    if not _turn.acquire(timeout=min(max(0.0, patience), threading.TIMEOUT_MAX)):
        raise DeadlineExceededError("The picture's turn to be drawn did not come before the deadline.")
    try:
        yield
    finally:
        _turn.release()


class PictureError(ValueError):
    """A picture cannot be drawn as asked.

    `code` is out_of_range, unknown_option, incompatible_options or nothing_to_draw; `field` is the option, or empty.
    """

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(message)
        self.code, self.field = code, field


def check_options(width: int, colormap: str) -> None:
    """Raises PictureError for a width or a colour map that is not on offer."""
    if width not in WIDTHS:
        raise PictureError("out_of_range", "width", f"A picture is {WIDTHS[0]} to {WIDTHS[-1]} pixels wide.")
    if colormap not in COLORMAPS:
        raise PictureError("unknown_option", "colormap", f"The colour maps are {', '.join(COLORMAPS)}.")


def model_name(payload: Mapping[str, object]) -> str:
    """The model's id, in characters that can be drawn."""
    model: Any = payload["model"]
    return legible(visible(str(model.get("id") or "")))


class Sheet:
    """A white sheet, `width` CSS pixels wide, x to the right and y down; how high it is, is said at the end.

    Use it within `one_at_a_time()`.
    """

    def __init__(self, width: int, kind: Kind) -> None:
        self.width, self.kind = width, kind
        self._figure = Figure(figsize=(width / 96, 1), dpi=96, facecolor="white")
        self._axes = self._figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, width))
        self._axes.set_axis_off()
        self._hints: list[str] = []

    def text(self, x: float, y: float, label: str, pixels: float, **style: Any) -> None:
        """A line of text, as it is; `pixels` is its font's size."""
        self._axes.text(x, y, label, fontsize=pixels * 0.75, **{"color": INK, "va": "baseline", **style})

    def image(self, rgba: npt.NDArray[np.uint8], x: float, y: float, width: float, height: float) -> None:
        """Cells [row, column, 4], each with sharp edges. An SVG keeps one pixel a cell; the viewer scales it."""
        image = AxesImage(
            self._axes,
            extent=(x, x + width, y + height, y),
            origin="upper",
            interpolation="none" if self.kind == "svg" else "nearest",
        )
        image.set_data(rgba)
        self._axes.add_image(image)

    def rectangles(self, boxes: Sequence[Sequence[float]], colors: Sequence[str]) -> None:
        """Filled rectangles (x, y, width, height) with sharp edges."""
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
        self._axes.add_collection(
            PolyCollection(corners, facecolors=colors, edgecolors="none", antialiaseds=False), autolim=False
        )

    def lines(
        self,
        paths: Sequence[Sequence[tuple[float, float]]],
        color: str,
        pixels: float | Sequence[float] = 1.0,
        **style: Any,
    ) -> None:
        """Each a line from point to point, `pixels` thick."""
        style = {"colors": color, "linewidths": np.multiply(pixels, 0.75), "snap": False, **style}
        self._axes.add_collection(LineCollection(paths, **style), autolim=False)

    def dots(
        self,
        places: Sequence[tuple[float, float]],
        pixels: float,
        *,
        fill: str = INK,
        edge: str = "white",
        stroke: float = 1.0,
    ) -> None:
        """Dots; as they are, they can be seen on any colour."""
        x, y = zip(*places, strict=True)
        self._axes.plot(
            x,
            y,
            linestyle="none",
            marker="o",
            markersize=pixels * 0.75,
            markerfacecolor=fill,
            markeredgecolor=edge,
            markeredgewidth=stroke * 0.75,
        )

    def header(self, what: str, axes: str, model: str) -> bool:
        """What is drawn, what its axes are, and the model, where there is room for it: whether there was."""
        axes_width, model_width = text_widths([axes, model], 10)
        size = 13 if text_widths([what], 13)[0] <= self.width - 2 * PAD - axes_width - 10 else 10
        self.text(PAD, 19, what, size)
        start = PAD + text_widths([what], size)[0] + 10
        self.text(start, 19, axes, 10, color=GREY)
        fits = start + axes_width + 10 + model_width <= self.width - PAD
        if fits:
            self.text(self.width - PAD, 19, model, 10, ha="right", color=GREY)
        return fits

    def side_numbers(
        self, left: float, top: float, rows: Mapping[int, float], columns: Mapping[int, float]
    ) -> None:
        """The numbers of rows at `left`, of columns at `top`, each with its middle; as many as fit."""
        for row, middle in _thinned(rows, 11.0):
            self.text(left - 5, middle, str(row), SMALL, ha="right", va="center")
        for column, middle in _thinned(columns, max(text_widths([*map(str, columns)], SMALL)) + 3):
            self.text(middle, top - 5, str(column), SMALL, ha="center")

    def paragraph(self, label: str, x: float, y: float) -> float:
        """Grey text below `y`, broken where the line ends; where it ends."""
        for line in _lines(label, self.width - PAD - x):
            self.text(x, y + 8, line, SMALL, color=GREY)
            y += LINE
        return y

    def hint(self, box: Sequence[float], label: str) -> None:
        """What an SVG shows when the pointer rests on (x, y, width, height)."""
        x, y, width, height = box
        self._hints.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}">'
            f"<title>{escape(label)}</title></rect>"
        )

    def render(self, height: float, title: str, payload: Mapping[str, object]) -> bytes:
        """The file. It carries its title, and as its description the model and the request, as JSON."""
        self._figure.set_size_inches(self.width / 96, round(height) / 96)
        self._axes.set_ylim(round(height), 0)
        about = {name: payload[name] for name in ("model", "request") if name in payload}
        metadata = {"Title": title, "Description": json.dumps(about, separators=(",", ":"))}
        buffer = io.BytesIO()
        if self.kind == "png":
            FigureCanvasAgg(self._figure).print_png(buffer, metadata={**metadata, "Software": None})
            return buffer.getvalue()
        FigureCanvasSVG(self._figure).print_svg(buffer, metadata={**metadata, "Date": None, "Creator": None})
        if not self._hints:
            return buffer.getvalue()
        # matplotlib has no hints; its SVG counts in points
        hints = "\n".join(
            ['<g transform="scale(0.75)" fill="none" pointer-events="all">', *self._hints, "</g>"]
        )
        body, end, rest = buffer.getvalue().rpartition(b"</svg>")
        return body + hints.encode() + b"\n" + end + rest


def outline(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    """The path around a rectangle."""
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]


def _thinned(middles: Mapping[int, float], room: float) -> list[tuple[int, float]]:
    """Every so manieth, so that two have `room` between their middles."""
    places = [*middles.items()]
    pitch = (places[-1][1] - places[0][1]) / max(1, len(places) - 1)
    return places[:: math.ceil(room / pitch)] if pitch else places


def _lines(label: str, room: float) -> list[str]:
    """The text in lines no wider than `room`, broken at a space in their second half, else within the word."""
    lines = []
    while label:
        ends = range(1, len(label) + 1)
        fit = bisect_right(ends, room, key=lambda end: text_widths([label[:end]], SMALL)[0])
        space = label.rfind(" ", 0, fit + 1) if fit < len(label) else -1
        end = space if space > fit / 2 else max(1, fit)
        lines.append(label[:end])
        label = label[end:].lstrip(" ")
    return lines


def is_light(rgba: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Whether dark text reads better than white on each of the colours [..., 4]."""
    return np.asarray(rgba[..., :3] @ np.array([0.299, 0.587, 0.114]) > 120)


def text_widths(labels: Sequence[str], pixels: float) -> list[float]:
    """Width of each label in pixels."""
    renderer = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=96)).get_renderer()
    font = FontProperties(size=pixels * 0.75)
    return [renderer.get_text_width_height_descent(label, font, False)[0] for label in labels] or [0.0]


@cache
def glyphs() -> frozenset[int]:
    """Code points that the installed fonts can draw."""
    files = [font_manager.findfont(name, fallback_to_default=False) for name in _FAMILIES]
    return frozenset(point for file in files for point in font_manager.get_font(file).get_charmap())


def legible(label: str) -> str:
    """The label, with code points in place of characters that no installed font has."""
    return "".join(char if ord(char) in glyphs() else code_point(char) for char in label)


def shorten(label: str, longest: int = 16) -> str:
    """At most so many columns; a cut is marked with an ellipsis. A CJK character takes two."""
    if sum(map(_columns, label)) <= longest:
        return label
    columns, end = 0, 0
    while columns + _columns(label[end]) < longest:
        columns, end = columns + _columns(label[end]), end + 1
    return label[:end] + "…"


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
