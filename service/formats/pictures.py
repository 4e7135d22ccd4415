"""Maps as pictures: heat maps with token labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.colors import Normalize
from PIL import Image

from service.formats.drawing import (
    FRAME,
    HEADER,
    INK,
    MAX_HEIGHT,
    PAD,
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
from service.formats.views import TextView, View, text_views, visible

_BAR = 62.0  # right of the maps: colour bar and its numbers
_BAR_HEIGHTS = (60.0, 220.0)
_LABELLED = 130.0  # tiles of a mosaic at least this wide carry titles and tokens; smaller ones only numbers


def picture(
    payload: Mapping[str, object],
    kind: Kind,
    *,
    width: int = DEFAULTS.width,
    colormap: str = DEFAULTS.colormap,
) -> bytes:
    """A heat map of the first text: queries down, keys across, future keys blank, a colour bar.

    One map has every token at its side, and its numbers in its cells where they fit. Several maps are tiles:
    layers × heads, or in reading order where there is one layer or one head. `width` is in CSS pixels; a PNG
    has exactly so many. All maps share one scale, from 0 (or the lowest score) to the highest weight drawn.

    The same arguments give the same bytes. Raises PictureError.
    """
    check_options(width, colormap)
    text = next(text_views(payload), None)
    if text is None or text.index or not text.maps or not text.queries.size:
        raise PictureError("nothing_to_draw", "", "The first text has no maps.")
    with one_at_a_time():
        return _Drawing(payload, text, kind, width, colormap).render()


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where everything stands, in CSS pixels, y down. A map is a tile; a single map is a single tile."""

    columns: int
    places: Sequence[tuple[int, int]]  # of each map: (row, column)
    row_numbers: Sequence[int]  # of a mosaic: layers
    column_numbers: Sequence[int]  # of a mosaic: heads
    labelled: bool  # tokens stand at the sides; else it is a mosaic, with numbers there
    left: float
    top: float
    tile: float  # width of a map
    height: float  # of a map
    title: float  # height of the title over each map
    gap: float
    font: float
    level: bool  # key labels fit without being turned
    total: float  # height of the picture

    def corner(self, row: int, column: int) -> tuple[float, float]:
        """The upper left corner of a map's cells."""
        x = self.left + column * (self.tile + self.gap)
        return x, self.top + self.title + row * (self.height + self.title + self.gap)


def _layout(maps: Sequence[View], keys: Sequence[str], queries: Sequence[str], width: float) -> _Layout:
    """Layers × heads where there are several of both, else reading order; tiles as large as the width allows."""
    layers = sorted({view.layer for view in maps if view.layer is not None})
    heads = sorted({view.head for view in maps if view.head is not None})
    mosaic = len(layers) > 1 and len(heads) > 1
    if mosaic:
        rows, columns = len(layers), len(heads)
        places = [(layers.index(view.layer or 0), heads.index(view.head or 0)) for view in maps]
    else:
        columns = min(len(maps), max(1, round((width - _BAR) / 190)))
        rows, places = math.ceil(len(maps) / columns), [divmod(i, columns) for i in range(len(maps))]

    # The margin depends on the labels' size, that on the cells', and those on the margin: two rounds settle it
    left, font, gap = 60.0, 11.0, 10.0
    for _ in range(2):
        room = width - left - PAD - _BAR
        tile = min((room - gap * (columns - 1)) / columns, min(4.0 * width, MAX_HEIGHT - 400.0) / rows - gap)
        labelled = not mosaic or tile >= _LABELLED
        gap = 10.0 if labelled else 4.0 if room / columns > 12 else 1.0
        font = min(12.0, max(8.5, tile / len(keys) * 0.82)) if labelled else 10.0
        left = min(
            PAD + max(text_widths(queries if labelled else [*map(str, layers)], font)) + 5, width * 0.4
        )
    left, tile = math.ceil(left), max(1, math.floor(tile))  # whole pixels keep edges sharp

    # Square cells, but rows high enough to read where there are few
    cell = tile / len(keys)
    row = max(cell, min(24.0, tile / len(queries))) if labelled else cell
    height = max(1, round(row * len(queries)))
    title = 18 if labelled and len(maps) > 1 else 0
    top = HEADER if labelled else HEADER + 16
    longest = max(text_widths(keys, font)) if labelled else 0.0
    level = longest <= cell - 4
    below = font * 1.6 if level else longest + 5
    bottom = max(rows * (height + title + gap) - gap + below, title + _BAR_HEIGHTS[0])
    total = math.ceil(top + bottom + PAD)
    numbers = (layers, heads) if mosaic else ([], [])
    return _Layout(
        columns, places, *numbers, labelled, left, top, tile, height, title, gap, font, level, total
    )


class _Drawing:
    """One picture."""

    def __init__(
        self, payload: Mapping[str, object], text: TextView, kind: Kind, width: int, colormap: str
    ) -> None:
        self.payload, self.maps, self.sheet = payload, text.maps, Sheet(width, kind)
        self.weights = [np.where(text.future, np.float32(np.nan), view.weights) for view in text.maps]
        self.keys = [shorten(legible(visible(label))) for label in text.labels]
        self.queries = [self.keys[query] for query in text.queries]
        self.layout = _layout(text.maps, self.keys, self.queries, width)
        finite = [array[np.isfinite(array)] for array in self.weights]
        low = min(0.0, *(float(array.min(initial=0.0)) for array in finite))
        high = max(float(array.max(initial=low)) for array in finite)
        self.norm = Normalize(low, high if high > low else low + 1.0)
        self.colors = matplotlib.colormaps[colormap].with_extremes(bad="white")

    def render(self) -> bytes:
        layout = self.layout
        lowest = {column: row for row, column in layout.places}
        for view, weights, (row, column) in zip(self.maps, self.weights, layout.places, strict=True):
            x, y = layout.corner(row, column)
            self._image(weights, x, y, layout.tile, layout.height)
            if layout.title:
                self.sheet.text(x, y - 5, view.title, 11)
            if layout.labelled and column == 0:
                self._query_labels(x - 4, y)
            if layout.labelled and lowest[column] == row:
                self._key_labels(x, y + layout.height + 4)
        self._frames()
        if not layout.labelled:
            self._mosaic_names()
        if len(self.maps) == 1 and len(self.keys) <= 16:
            self._numbers(self.weights[0])
        what = self.maps[0].title if len(self.maps) == 1 else f"{len(self.maps)} maps"
        model = model_name(self.payload)
        axes, bottom = "query ↓  key →" if layout.labelled else "layer ↓  head →", float(layout.total)
        if not self.sheet.header(what, axes, model):
            bottom = self.sheet.paragraph(model, layout.left, bottom) + PAD
        x, y = layout.corner(0, layout.columns)
        low, high = _BAR_HEIGHTS
        self._color_bar(x - layout.gap + 12, y, max(low, min(high, layout.height)))
        return self.sheet.render(bottom, f"Attention of {model}: {what}", self.payload)

    def _frames(self) -> None:
        """A line around each map, outside of its cells: in a small tile the first column, the sink, is one pixel."""
        frames: list[Sequence[tuple[float, float]]] = []
        for place in self.layout.places:
            x, y = self.layout.corner(*place)
            frames.append(outline(x - 0.5, y - 0.5, self.layout.tile + 1, self.layout.height + 1))
        self.sheet.lines(frames, FRAME)

    def _mosaic_names(self) -> None:
        layout = self.layout
        rows = {
            layer: layout.corner(row, 0)[1] + layout.height / 2
            for row, layer in enumerate(layout.row_numbers)
        }
        columns = {
            head: layout.corner(0, column)[0] + layout.tile / 2
            for column, head in enumerate(layout.column_numbers)
        }
        self.sheet.side_numbers(layout.left, layout.top + layout.title, rows, columns)

    def _image(
        self, weights: npt.NDArray[np.float32], x: float, y: float, width: float, height: float
    ) -> None:
        if self.sheet.kind == "png" and (width < weights.shape[1] or height < weights.shape[0]):
            weights = _shrunk(weights, round(width), round(height))
        self.sheet.image(self._rgba(weights), x, y, width, height)

    def _rgba(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """[query, key, 4]"""
        return np.asarray(self.colors(self.norm(np.ma.masked_invalid(weights)), bytes=True), dtype=np.uint8)

    def _query_labels(self, right: float, y: float) -> None:
        row, font = self.layout.height / len(self.queries), self.layout.font
        for i in range(0, len(self.queries), math.ceil(font * 1.05 / row)):
            self.sheet.text(right, y + (i + 0.5) * row, self.queries[i], font, ha="right", va="center")

    def _key_labels(self, x: float, y: float) -> None:
        cell, font = self.layout.tile / len(self.keys), self.layout.font
        style: dict[str, Any] = {"ha": "center", "va": "top"}
        if not self.layout.level:
            style = {"ha": "right", "va": "center", "rotation": 90, "rotation_mode": "anchor"}
        for j in range(0, len(self.keys), math.ceil(font * 1.05 / cell)):
            self.sheet.text(x + (j + 0.5) * cell, y, self.keys[j], font, **style)

    def _numbers(self, weights: npt.NDArray[np.float32]) -> None:
        """The weights in the cells of a single map, where they fit."""
        cell, row = self.layout.tile / weights.shape[1], self.layout.height / weights.shape[0]
        if cell < 32 or row < 18:
            return
        x, y = self.layout.corner(0, 0)
        light = is_light(self._rgba(weights))
        for i, j in np.argwhere(np.isfinite(weights)):
            place = (x + (j + 0.5) * cell, y + (i + 0.5) * row)
            color = INK if light[i, j] else "white"
            number = f"{weights[i, j]:.2f}"
            self.sheet.text(*place, number, min(12.0, cell * 0.3), ha="center", va="center", color=color)

    def _color_bar(self, x: float, y: float, height: float) -> None:
        low, high = float(self.norm.vmin or 0.0), float(self.norm.vmax or 0.0)
        ramp = np.linspace(high, low, 256, dtype=np.float32)[:, None]
        self._image(ramp, x, y, 10, height)
        for part in (0.0, 0.5, 1.0):
            label = f"{high - part * (high - low):.3g}"
            self.sheet.text(x + 14, y + 4 + part * (height - 8), label, 10, va="center")


def _shrunk(weights: npt.NDArray[np.float32], width: int, height: int) -> npt.NDArray[np.float32]:
    """Cells smaller than a pixel, averaged per pixel. (matplotlib's own filters fade the first column, the sink.)"""
    size = (min(width, weights.shape[1]), min(height, weights.shape[0]))
    present = np.isfinite(weights)
    total, share = (
        np.asarray(Image.fromarray(array.astype(np.float32)).resize(size, Image.Resampling.BOX))
        for array in (np.where(present, weights, 0), present)
    )
    return np.where(share >= 0.5, total / np.maximum(share, 0.5), np.float32(np.nan)).astype(np.float32)
