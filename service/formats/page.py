"""Answers as one HTML page that needs nothing else: from disk, in an iframe, without a network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

import orjson

from service.formats import json
from service.formats.head_grid import LABEL_COLORS, UNITS
from service.formats.views import text_views, visible

MEDIA_TYPE = "text/html"  # sent with charset=utf-8
# Sent as a header too; without frame-ancestors, since the page is meant for iframes
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def page(payload: Mapping[str, object]) -> bytes:
    """Attention maps: choose layer and head, point at a token or a cell, and see the weights.

    The JSON answer stands in it whole, in `<script id="data" type="application/json">`, with null where there
    is no number; each token and word has a member `label` besides, its text with control characters visible.
    """
    for _ in text_views(payload):  # refuses numbers that are not finite
        pass
    results = [_labelled(result) for result in cast(list[Mapping[str, Any]], payload["results"])]
    return _page(
        "page.html", orjson.dumps({**payload, "results": results}, option=orjson.OPT_SERIALIZE_NUMPY)
    )


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


def _page(name: str, data: bytes) -> bytes:
    """A page around its data, JSON that no text in it can leave."""
    # Outside of strings JSON holds none of these characters; inside, the escape means the same
    for character in "<>&\u2028\u2029":
        data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    before, after = _template(name)
    return before + data + after


@cache
def _template(name: str) -> tuple[bytes, bytes]:
    """A page before and after its data, with the style and the modules that it names."""
    html = files("service.formats").joinpath(name).read_text(encoding="utf-8")
    html = re.sub(r"\{\{([a-z_]+\.(?:js|css))\}\}", lambda named: inlined(named[1]), html)
    html = html.replace("{{csp}}", CONTENT_SECURITY_POLICY)
    for place, table in (("{{colors}}", LABEL_COLORS), ("{{units}}", UNITS)):
        html = html.replace(place, orjson.dumps(dict(table)).decode())
    before, after = html.split("{{data}}")
    return before.encode(), after.encode()


def inlined(name: str) -> str:
    """A file of the page's as text in an HTML answer; a module as a plain script, behind those that it imports."""
    text = files("service.static").joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"^(import [^;]*;\n|export )", "", text, flags=re.MULTILINE)
