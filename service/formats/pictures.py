"""Maps as pictures: heat maps with token labels, drawn by matplotlib without its global state.

No pyplot: a Figure and its canvas belong to one call. matplotlib's settings are process-wide, so they are made
once, below, and never touched while drawing; its font caches are shared too, hence one picture at a time.
"""

from __future__ import annotations

import io
import math
import threading
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage

from service.formats.views import TextView, View, code_point, text_views, visible

SVG_MEDIA_TYPE = "image/svg+xml"
PNG_MEDIA_TYPE = "image/png"

# Perceptually uniform and safe for colour-blind eyes; `_r` puts the light end at zero, for print
COLORMAPS = ("viridis", "cividis", "magma", "inferno", "plasma", "viridis_r", "cividis_r", "magma_r")
WIDTHS = range(200, 4001)  # CSS pixels
MAX_HEIGHT = 8000

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
_one_at_a_time = threading.Lock()

_INK, _GREY, _FRAME = "#1a1a1a", "#6b6b6b", "#c8c8c8"
_PAD = 8.0
_BAR = 62.0  # right of the maps: colour bar and its numbers
_HEADER = 30.0
_TITLED = 130.0  # tiles at least this wide carry a title each; smaller ones have numbers at the margins
_LONGEST = 16  # columns of a label; a CJK character takes two


class PictureError(ValueError):
    """A picture cannot be drawn as asked; `code` is out_of_range, unknown_option or nothing_to_draw."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(message)
        self.code, self.field = code, field


def picture(
    payload: Mapping[str, object],
    kind: Literal["svg", "png"],
    *,
    width: int = 800,
    colormap: str = "viridis",
) -> bytes:
    """A heat map of the first text: queries down, keys across, future keys blank, a colour bar.

    One map has every token at its side, and its numbers in its cells where they fit. Several maps are tiles:
    layers × heads, or in reading order where there is one layer or one head. `width` is in CSS pixels; a PNG
    has exactly so many. All maps share one scale, from 0 (or the lowest score) to the highest weight drawn.

    The same arguments give the same bytes. Raises PictureError.
    """
    if width not in WIDTHS:
        raise PictureError("out_of_range", "width", f"A picture is {WIDTHS[0]} to {WIDTHS[-1]} pixels wide.")
    if colormap not in COLORMAPS:
        raise PictureError("unknown_option", "colormap", f"The colour maps are {', '.join(COLORMAPS)}.")
    text = next(text_views(payload), None)
    if text is None or text.index or not text.maps or not text.labels:
        raise PictureError("nothing_to_draw", "", "The first text has no maps.")
    model: Any = payload["model"]
    with _one_at_a_time:
        return _Drawing(text, str(model.get("id") or ""), kind, width, colormap).render()


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where each map stands."""

    rows: int
    columns: int
    places: Sequence[tuple[int, int]]  # of each map: (row, column)
    row_names: Sequence[str]
    column_names: Sequence[str]


def _grid(maps: Sequence[View], width: float) -> _Grid:
    layers = sorted({view.layer for view in maps if view.layer is not None})
    heads = sorted({view.head for view in maps if view.head is not None})
    if len(layers) > 1 and len(heads) > 1:
        places = [(layers.index(view.layer or 0), heads.index(view.head or 0)) for view in maps]
        return _Grid(len(layers), len(heads), places, [*map(str, layers)], [*map(str, heads)])
    columns = min(len(maps), max(1, round(width / 190)))
    return _Grid(
        math.ceil(len(maps) / columns), columns, [divmod(i, columns) for i in range(len(maps))], [], []
    )


class _Drawing:
    """One picture. All coordinates are CSS pixels, y down."""

    def __init__(self, text: TextView, model: str, kind: str, width: int, colormap: str) -> None:
        self.text, self.model, self.kind, self.width = text, model, kind, width
        self.weights = [np.where(text.future, np.float32(np.nan), view.weights) for view in text.maps]
        self.labels = [_shorten(_legible(visible(label))) for label in text.labels]
        self.row_labels = [self.labels[query] for query in text.queries]
        finite = [array[np.isfinite(array)] for array in self.weights]
        low = min((float(array.min()) for array in finite if array.size), default=0.0)
        high = max((float(array.max()) for array in finite if array.size), default=1.0)
        low = min(low, 0.0)
        self.norm = Normalize(low, high if high > low else low + 1.0)
        self.colors = matplotlib.colormaps[colormap].with_extremes(bad="white")

    def render(self) -> bytes:
        # The margins depend on the labels' size, that on the cells', and those on the margins: two rounds settle it
        grid = _grid(self.text.maps, self.width - 2 * _PAD - _BAR)
        keys, queries = len(self.labels), len(self.row_labels)
        left, font = 60.0, 11.0
        for _ in range(2):
            gap = 4.0
            tile = (self.width - left - _PAD - _BAR - gap * (grid.columns - 1)) / grid.columns
            tile = min(tile, (MAX_HEIGHT - 400.0) / grid.rows, max(4.0 * self.width / grid.rows, 12.0))
            titled = len(self.text.maps) > 1 and (tile >= _TITLED or not grid.row_names)
            labelled = titled or len(self.text.maps) == 1
            if titled:
                gap = 10.0
                tile = min(tile, (self.width - left - _PAD - _BAR - gap * (grid.columns - 1)) / grid.columns)
            font = min(12.0, max(8.5, tile / keys * 0.82)) if labelled else 10.0
            names = self.row_labels if labelled else grid.row_names
            left = min(_PAD + max(_widths(names, font)) + 5, self.width * 0.4)
        cell = tile / keys
        # Square cells, but rows high enough to read where there are few
        row = max(cell, min(24.0, tile / queries)) if labelled else cell
        height = row * queries
        title = 18.0 if titled else 0.0
        top = _HEADER + (0.0 if labelled else 16.0)
        level = labelled and max(_widths(self.labels, font)) <= cell - 4  # key labels fit without turning them
        below = (font * 1.6 if level else max(_widths(self.labels, font)) + 5) if labelled else 0.0
        total = top + grid.rows * (height + title) + (grid.rows - 1) * gap + below + _PAD

        figure = Figure(figsize=(self.width / 96, math.ceil(total) / 96), dpi=96, facecolor="white")
        self.axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, self.width), ylim=(math.ceil(total), 0))
        self.axes.set_axis_off()

        frames: list[Sequence[tuple[float, float]]] = []
        last_in_column = {column: row_ for row_, column in grid.places}
        for view, weights, (i, j) in zip(self.text.maps, self.weights, grid.places, strict=True):
            x, y = left + j * (tile + gap), top + title + i * (height + title + gap)
            self._image(weights, x, y, tile, height)
            frames.append([(x, y), (x + tile, y), (x + tile, y + height), (x, y + height), (x, y)])
            if titled:
                self._text(x, y - 5, view.title, 11)
            if labelled and j == 0:
                self._row_labels(x - 4, y, row, font)
            if labelled and last_in_column[j] == i:
                self._key_labels(x, y + height + 4, cell, font, level)
            if len(self.text.maps) == 1 and keys <= 16 and cell >= 32 and row >= 18:
                self._numbers(weights, x, y, cell, row)
        self.axes.add_collection(LineCollection(frames, colors=_FRAME, linewidths=0.5), autolim=False)
        if not labelled:
            for i, name in enumerate(grid.row_names):
                self._text(left - 5, top + i * (height + gap) + height / 2, name, 10, ha="right", va="center")
            for j, name in enumerate(grid.column_names):
                self._text(left + j * (tile + gap) + tile / 2, top - 4, name, 10, ha="center")
        self._header(left, labelled)
        self._color_bar(left + grid.columns * (tile + gap) - gap + 12, top + title, max(60.0, min(220.0, height)))
        return self._bytes(figure)

    def _image(self, weights: npt.NDArray[np.float32], x: float, y: float, width: float, height: float) -> None:
        # SVG keeps one pixel a cell and lets the viewer scale it; PNG averages only what is smaller than a pixel
        sharp = "none" if self.kind == "svg" else "nearest"
        scaled = "auto" if self.kind == "png" and width < 2 * weights.shape[1] else sharp
        image = AxesImage(self.axes, extent=(x, x + width, y + height, y), origin="upper", interpolation=scaled)
        image.set_data(self._rgba(weights))
        self.axes.add_image(image)

    def _rgba(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        return self.colors(self.norm(np.ma.masked_invalid(weights)), bytes=True)

    def _row_labels(self, right: float, y: float, row: float, font: float) -> None:
        for i in range(0, len(self.row_labels), math.ceil(font * 1.05 / row)):
            self._text(right, y + (i + 0.5) * row, self.row_labels[i], font, ha="right", va="center")

    def _key_labels(self, x: float, y: float, cell: float, font: float, level: bool) -> None:
        for j in range(0, len(self.labels), math.ceil(font * 1.05 / cell)):
            center = x + (j + 0.5) * cell
            if level:
                self._text(center, y, self.labels[j], font, ha="center", va="top")
            else:
                self._text(
                    center, y, self.labels[j], font, ha="right", va="center", rotation=90, rotation_mode="anchor"
                )

    def _numbers(self, weights: npt.NDArray[np.float32], x: float, y: float, cell: float, row: float) -> None:
        light = self._rgba(weights)[..., :3] @ np.array([0.299, 0.587, 0.114]) > 140
        for i, j in np.argwhere(np.isfinite(weights)):
            color = _INK if light[i, j] else "white"
            position = (x + (j + 0.5) * cell, y + (i + 0.5) * row)
            number = f"{weights[i, j]:.2f}"
            self._text(*position, number, min(12.0, cell * 0.3), ha="center", va="center", color=color)

    def _header(self, left: float, labelled: bool) -> None:
        what = self.text.maps[0].title if len(self.text.maps) == 1 else f"{len(self.text.maps)} maps"
        self._text(_PAD, 19, what, 13)
        start = _PAD + _widths([what], 13)[0] + 10
        axes = "query ↓  key →" if labelled else "layer ↓  head →"
        self._text(start, 19, axes, 10, color=_GREY)
        room = self.width - start - 110
        if _widths([self.model], 10)[0] < room:
            self._text(self.width - _PAD, 19, self.model, 10, ha="right", color=_GREY)

    def _color_bar(self, x: float, y: float, height: float) -> None:
        low, high = float(self.norm.vmin or 0.0), float(self.norm.vmax or 1.0)
        ramp = np.linspace(high, low, 256, dtype=np.float32)[:, None]
        self._image(ramp, x, y, 10, height)
        for part in (0.0, 0.5, 1.0):
            label = f"{high - part * (high - low):.3g}"
            self._text(x + 14, y + 4 + part * (height - 8), label, 10, va="center")

    def _text(self, x: float, y: float, label: str, pixels: float, **style: Any) -> None:
        self.axes.text(x, y, label, fontsize=pixels * 0.75, **{"color": _INK, "va": "baseline", **style})

    def _bytes(self, figure: Figure) -> bytes:
        buffer = io.BytesIO()
        if self.kind == "svg":
            FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
        else:
            FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
        return buffer.getvalue()


def _widths(labels: Sequence[str], pixels: float) -> list[float]:
    """Width of each label in pixels."""
    renderer = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=96)).get_renderer()
    font = FontProperties(size=pixels * 0.75)
    return [renderer.get_text_width_height_descent(label, font, False)[0] for label in labels] or [0.0]


@cache
def _glyphs() -> frozenset[int]:
    """Code points that the installed fonts can draw."""
    files = [font_manager.findfont(name, fallback_to_default=False) for name in _FAMILIES]
    return frozenset(point for file in files for point in font_manager.get_font(file).get_charmap())


def _legible(label: str) -> str:
    """The label, with code points in place of characters that no installed font has."""
    return "".join(char if ord(char) in _glyphs() else code_point(char) for char in label)


def _shorten(label: str) -> str:
    """At most 16 columns; a cut is marked with an ellipsis."""
    if sum(map(_columns, label)) <= _LONGEST:
        return label
    columns, end = 0, 0
    while columns + _columns(label[end]) < _LONGEST:
        columns, end = columns + _columns(label[end]), end + 1
    return label[:end] + "…"


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


