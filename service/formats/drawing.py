"""What every picture is drawn on: a sheet in CSS pixels, by matplotlib without its global state.

No pyplot: a Figure and its canvas belong to one call. matplotlib's settings are process-wide, so they are made
once, below, and never touched while drawing; its font caches are shared too, hence one picture at a time.
"""

from __future__ import annotations

import io
import json
import threading
import unicodedata
from collections.abc import Mapping, Sequence
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
one_at_a_time = threading.Lock()
_LONGEST = 16  # columns of a label; a CJK character takes two


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

    Use it with `one_at_a_time` held.
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

    def dots(self, places: Sequence[tuple[float, float]], pixels: float) -> None:
        """Dots that can be seen on any colour."""
        x, y = zip(*places, strict=True)
        style: dict[str, Any] = {"markerfacecolor": INK, "markeredgecolor": "white", "markeredgewidth": 0.75}
        self._axes.plot(x, y, linestyle="none", marker="o", markersize=pixels * 0.75, **style)

    def header(self, what: str, axes: str, model: str) -> bool:
        """What is drawn, what its axes are, and the model, where there is room for it: whether there was."""
        room = self.width - 2 * PAD - text_widths([axes], 10)[0] - 10
        size = 13 if text_widths([what], 13)[0] <= room else 10
        self.text(PAD, 19, what, size)
        start = PAD + text_widths([what], size)[0] + 10
        self.text(start, 19, axes, 10, color=GREY)
        fits = text_widths([model], 10)[0] < self.width - start - 110
        if fits:
            self.text(self.width - PAD, 19, model, 10, ha="right", color=GREY)
        return fits

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


def shorten(label: str) -> str:
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
