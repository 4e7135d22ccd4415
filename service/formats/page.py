"""Answers as one HTML page that needs nothing else: from disk, in an iframe, without a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

import orjson

from service.formats import json
from service.formats.negotiation import Options
from service.formats.views import text_views, visible

MEDIA_TYPE = "text/html"  # sent with charset=utf-8
# Sent as a header too, with the setting's frame-ancestors, of which a page itself cannot say anything
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


DARK = "(prefers-color-scheme: dark)"
THEMES: Mapping[str, Callable[[str], str]] = {
    "auto": lambda html: html,
    "light": lambda html: html.replace(DARK, "not all").replace("light dark", "light"),
    "dark": lambda html: html.replace(DARK, "all").replace("light dark", "dark"),
}
VIEWS = ("both", "arcs", "map")  # what MapView shows


def page(payload: Mapping[str, object]) -> bytes:
    """Attention maps: choose layer and head, point at a token or a cell, and see the weights.

    The JSON answer stands in it whole, in `<script id="data" type="application/json">`, with null where there
    is no number; each token and word has a member `label` besides, its text with control characters visible.
    """
    return _page("page.html", _maps(payload))


def embedded(payload: Mapping[str, object], options: Options) -> bytes:
    """The same for a frame: without margins, in the theme and view asked for; it tells who frames it its height."""
    return _page("page.html", _maps(payload), options)


def _maps(payload: Mapping[str, object]) -> bytes:
    for _ in text_views(payload):  # refuses numbers that are not finite
        pass
    results = [_labelled(result) for result in cast(list[Mapping[str, Any]], payload["results"])]
    return orjson.dumps({**payload, "results": results}, option=orjson.OPT_SERIALIZE_NUMPY)


def heads_page(payload: Mapping[str, object]) -> bytes:
    """Head scores: the grid of layers and heads by label or score; point at a head and see all of its numbers.

    The JSON answer stands in it whole, in `<script id="data" type="application/json">`. `#L8H7` after the page's
    address chooses a head. Raises ValueError for numbers that are not finite.
    """
    return _page("heads.html", json.dumps(payload))


def evaluation_page(payload: Mapping[str, object]) -> bytes:
    """An evaluation: its warnings, the best head beside what needs no attention, and the grid of accuracies.

    The JSON answer stands in it whole, in `<script id="data" type="application/json">`. `#L8H7` after the page's
    address chooses a head. Raises ValueError for numbers that are not finite.
    """
    return _page("evaluation.html", json.dumps(payload))


def _labelled(result: Mapping[str, Any]) -> Mapping[str, Any]:
    labelled = {
        name: [{**one, "label": visible(one["text"])} for one in result[name]]
        for name in ("tokens", "words")
        if name in result
    }
    return {**result, **labelled}


def _page(name: str, data: bytes, embed: Options | None = None) -> bytes:
    """A page around its data, JSON that no text in it can leave; with `embed` as that says."""
    # Outside of strings JSON holds none of these characters; inside, the escape means the same
    for character in "<>&\u2028\u2029":
        data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    before, after = _template(name, embed and embed.theme, embed and embed.view)
    return before + data + after


@cache
def _template(name: str, theme: str | None, view: str | None) -> tuple[bytes, bytes]:
    """A page before and after its data, with the style and the modules that it names; for a frame, as that wants it."""
    html = files("service.formats").joinpath(name).read_text(encoding="utf-8")
    html = re.sub(r"\{\{([a-z_]+\.(?:js|css))\}\}", lambda named: inlined(named[1]), html)
    html = html.replace("{{csp}}", CONTENT_SECURITY_POLICY)
    html = html.replace("{{embed}}", f' class="embed" data-view="{view}"' if view else "")
    html = THEMES[theme or "auto"](html)
    before, after = html.split("{{data}}")
    return before.encode(), after.encode()


def inlined(name: str) -> str:
    """A file of the page's as text in an HTML answer; a module as a plain script, behind those that it imports."""
    text = files("service.static").joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"^(import [^;]*;\n|export )", "", text, flags=re.MULTILINE)
