"""GET / and the files of the page. All addresses in them are relative: the service may stand below a path prefix."""

from __future__ import annotations

import mimetypes
from importlib.resources import files

from flask import Blueprint, Response
from werkzeug.exceptions import NotFound

from service.body import refuse_parameters
from service.routes.common import QUERY, cacheable, describes
from service.security import OWN_FILES

bp = Blueprint("page", __name__)

HTML = "text/html; charset=utf-8"
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
FILES = {one.name: one.read_bytes() for one in files("service.static").iterdir() if one.is_file()}
ASSETS = {name: content for name, content in FILES.items() if not name.endswith(".html")}


@bp.get("/")
@describes("A page in the browser", tag="operations", media_type="text/html", problems=QUERY)
def page() -> Response:
    """Type a sentence and look where every head looks. What is on show stands in the address's fragment."""
    refuse_parameters()
    response = Response(FILES["index.html"], content_type=HTML)
    response.headers["Content-Security-Policy"] = OWN_FILES
    return _revalidated(response)


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
            "schema": {"type": "string", "enum": sorted(ASSETS)},
            "example": "app.js",
        },
    ),
)
def asset(name: str) -> Response:
    """A module, a style sheet, or the icon."""
    refuse_parameters()
    if name not in ASSETS:
        raise NotFound
    suffix = name[name.rindex(".") :]
    kind = TYPES.get(suffix) or mimetypes.types_map[suffix]
    return _revalidated(Response(ASSETS[name], content_type=kind))


def _revalidated(response: Response) -> Response:
    """Kept by browsers, and asked for again each time: a 304 takes no time, and modules of two versions never meet."""
    response.headers["Cache-Control"] = "no-cache"
    return cacheable(response)
