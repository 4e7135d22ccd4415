"""GET /docs: the contract in the browser, by Swagger UI, with nothing from any other host."""

from __future__ import annotations

from importlib.resources import files
from string import Template

from flask import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from service.body import refuse_parameters
from service.routes.common import QUERY, describes
from service.routes.files import file

bp = Blueprint("docs", __name__)

OURS, SWAGGER_UI = files("service") / "static" / "docs", files("flask_swagger_ui") / "dist"
PAGE = Template((OURS / "page.html").read_text(encoding="utf-8"))
FILES = {  # what the page needs; no other file of theirs is served
    **{name: (OURS / name).read_bytes() for name in ("page.css", "start.js")},
    **{
        name: (SWAGGER_UI / name).read_bytes()
        for name in ("favicon-32x32.png", "swagger-ui-bundle.js", "swagger-ui.css")
    },
}


@bp.get("/docs")
@describes("The contract, to read and to try", tag="operations", media_type="text/html", problems=QUERY)
def docs() -> Response:
    """A page that shows this document and sends requests; all of it comes from this service."""
    refuse_parameters()
    # Relative, since only the browser knows under which prefix it sees the page
    here = "." if request.path.endswith("/") else "docs"
    return file("page.html", PAGE.substitute(here=here))


@bp.get("/docs/<asset>")
@describes(
    "A file of that page",
    tag="operations",
    media_type="text/javascript",
    other_media_types=("text/css", "image/png"),
    problems=(*QUERY, NotFound),
    parameters=(
        {
            "name": "asset",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "enum": [*FILES]},
            "example": "start.js",
        },
    ),
)
def docs_asset(asset: str) -> Response:
    """Script, style sheet or icon."""
    refuse_parameters()
    if asset not in FILES:
        raise NotFound
    # Chromium fetches the icon anew with every change of the address; yesterday's does no harm
    cache_control = "max-age=86400" if asset.endswith(".png") else "no-cache"
    return file(asset, FILES[asset], cache_control)
