"""GET /docs: the contract in the browser, by Swagger UI, with nothing from any other host."""

from __future__ import annotations

import functools
from importlib.resources import files
from string import Template

from flask import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from service.body import refuse_parameters
from service.routes.common import QUERY, cacheable, describes
from service.security import OWN_FILES

bp = Blueprint("docs", __name__)

OURS, SWAGGER_UI = files("service") / "static" / "docs", files("flask_swagger_ui") / "dist"
JAVASCRIPT, CSS, PNG = "text/javascript", "text/css", "image/png"
ASSETS = {  # what the page needs, and no other file of the folders
    "favicon-32x32.png": (SWAGGER_UI, PNG),
    "page.css": (OURS, CSS),
    "start.js": (OURS, JAVASCRIPT),
    "swagger-ui-bundle.js": (SWAGGER_UI, JAVASCRIPT),
    "swagger-ui.css": (SWAGGER_UI, CSS),
}

# Kept by the browser, but asked after each time: an update gives the same names other files
ASKED_AFTER = "no-cache"


@bp.get("/docs")
@describes("The contract, to read and to try", tag="operations", media_type="text/html", problems=QUERY)
def docs() -> Response:
    """A page that shows this document and sends requests; all of it comes from this service."""
    refuse_parameters()
    # Relative, since only the browser knows under which prefix it sees the page
    here = "." if request.path.endswith("/") else "docs"
    page = Template(_read("page.html")).substitute(here=here)
    return _kept(Response(page, content_type="text/html; charset=utf-8"))


@bp.get("/docs/<asset>")
@describes(
    "A file of that page",
    tag="operations",
    media_type=JAVASCRIPT,
    other_media_types=(CSS, PNG),
    problems=(*QUERY, NotFound),
    parameters=(
        {
            "name": "asset",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "enum": [*ASSETS]},
            "example": "start.js",
        },
    ),
)
def docs_asset(asset: str) -> Response:
    """Script, style sheet or icon."""
    refuse_parameters()
    if asset not in ASSETS:
        raise NotFound
    folder, media_type = ASSETS[asset]
    charset = "" if media_type == PNG else "; charset=utf-8"
    return _kept(
        Response((folder / asset).read_bytes(), content_type=media_type + charset),
        # Chromium fetches the icon anew with every change of the address; yesterday's does no harm
        "max-age=86400" if media_type == PNG else ASKED_AFTER,
    )


def _kept(response: Response, cache_control: str = ASKED_AFTER) -> Response:
    response.headers["Cache-Control"] = cache_control
    response.headers["Content-Security-Policy"] = OWN_FILES
    return cacheable(response)


@functools.cache
def _read(name: str) -> str:
    return (OURS / name).read_text(encoding="utf-8")
