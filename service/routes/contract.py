"""GET /openapi.yaml, /openapi.json, and the page behind each problem's `type`."""

from __future__ import annotations

import html

from flask import Blueprint, Response, request
from werkzeug.exceptions import NotFound

from service import openapi
from service.body import refuse_parameters
from service.formats import json
from service.problems import BY_SLUG
from service.routes.common import QUERY, cacheable, describes

bp = Blueprint("contract", __name__)


@bp.get("/openapi.yaml")
@describes("The contract, as YAML", tag="operations", media_type=openapi.YAML, problems=QUERY)
def openapi_yaml() -> Response:
    """This document."""
    refuse_parameters()
    return cacheable(Response(openapi.as_yaml(request.script_root), content_type=openapi.YAML))


@bp.get("/openapi.json")
@describes("The contract, as JSON", tag="operations", problems=QUERY)
def openapi_json() -> Response:
    """This document."""
    refuse_parameters()
    return cacheable(
        Response(json.dumps(openapi.document(request.script_root)), content_type=json.MEDIA_TYPE)
    )


@bp.get("/problems/<slug>")
@describes(
    "What a problem means",
    tag="operations",
    media_type="text/html",
    problems=(*QUERY, NotFound),
    parameters=(
        {
            "name": "slug",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "enum": [*BY_SLUG]},
            "example": "overloaded",
        },
    ),
)
def problem_page(slug: str) -> Response:
    """Cause and remedy of a problem type."""
    refuse_parameters()
    if slug not in BY_SLUG:
        raise NotFound
    problem = BY_SLUG[slug]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(problem.title)}</title>'
        f"<h1>{problem.status}: {html.escape(problem.title)}</h1>"
        f"<p>{html.escape(problem.cause)}</p><p>{html.escape(problem.remedy)}</p></html>\n"
    )
    return cacheable(Response(page, content_type="text/html; charset=utf-8"))
