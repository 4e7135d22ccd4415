"""GET / and the files of the page. Their addresses are relative, or below the setting's prefix."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

from flask import Blueprint, Response, redirect, request
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response as WerkzeugResponse

from service.body import refuse_parameters
from service.routes.common import QUERY, describes, settings
from service.routes.files import file

bp = Blueprint("page", __name__)

FILES = {one.name: one.read_bytes() for one in files("service.static").iterdir() if one.is_file()}
ASSETS = {name: content for name, content in FILES.items() if not name.endswith(".html")}


@bp.get("/")
@describes("A page in the browser", tag="operations", media_type="text/html", problems=QUERY)
def page() -> WerkzeugResponse:
    """Type a sentence and look where every head looks. What is on show stands in the address's fragment."""
    refuse_parameters()
    root = settings().root_path
    if root and not request.environ["PATH_INFO"]:
        return redirect(f"{root}/", 308, Response)
    return file("index.html", _below(root))


@functools.cache
def _below(root: str) -> bytes:
    """The page with its addresses below a prefix: where a proxy takes that off, a slash may be missing after it."""
    prefix = f"{root}/" if root else ""
    return re.sub(rb'"(static/|docs")', rb'"%s\1' % prefix.encode(), FILES["index.html"])


@bp.get("/static/<name>")
@describes(
    "A file of the page",
    tag="operations",
    media_type="text/javascript",
    other_media_types=("text/css", "image/svg+xml"),
    problems=(*QUERY, NotFound),
    parameters=(
        {
            "name": "name",
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            "example": "app.js",
        },
    ),
)
def asset(name: str) -> Response:
    """A module, a style sheet, or the icon."""
    refuse_parameters()
    if name not in ASSETS:
        raise NotFound
    return file(name, ASSETS[name])
