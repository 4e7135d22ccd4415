"""GET / and the files of the page. Their addresses are relative, or below the setting's prefix."""

from __future__ import annotations

import functools
import mimetypes
import re
from importlib.resources import files

from flask import Blueprint, Response, redirect, request
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response as WerkzeugResponse

from service.body import refuse_parameters
from service.routes.common import QUERY, cacheable, describes, settings

bp = Blueprint("page", __name__)

HTML = "text/html; charset=utf-8"
# The page takes everything from here, and nobody frames it: it may hold a key. What is meant for frames is /embed
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
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
    response = Response(_below(root), content_type=HTML)
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    return _revalidated(response)


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
    problems=(*QUERY, NotFound),
    parameters=(
        {
            "name": "name",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "enum": sorted(name for name in ASSETS if name.endswith(".js"))},
        },
    ),
)
def asset(name: str) -> Response:
    """The page's modules; its style and its icon have types of their own."""
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
