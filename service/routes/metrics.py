"""GET /metrics, for Prometheus."""

from __future__ import annotations

from flask import Blueprint, Response, request

from service.routes.common import describes, metrics

bp = Blueprint("metrics", __name__)


@bp.get("/metrics")
@describes("What is counted", tag="operations", media_type="text/plain", cacheable=False)
def read_metrics() -> Response:
    """Prometheus' text format, or OpenMetrics where `Accept` asks for `application/openmetrics-text`."""
    text, media_type = metrics().exposition(request.headers.get("Accept", ""))
    return Response(text, content_type=media_type, headers={"Cache-Control": "no-store", "Vary": "Accept"})
