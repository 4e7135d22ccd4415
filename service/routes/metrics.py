"""GET /metrics, for Prometheus."""

from __future__ import annotations

from flask import Blueprint, Response

from service.metrics import EXPOSITIONS
from service.routes.common import accepted, describes, metrics

bp = Blueprint("metrics", __name__)


@bp.get("/metrics")
@describes("What is counted", tag="operations", media_type="text/plain", cacheable=False)
def read_metrics() -> Response:
    """Prometheus' text format, or OpenMetrics where `Accept` asks for `application/openmetrics-text`."""
    media_type = accepted().best_match(list(EXPOSITIONS), next(iter(EXPOSITIONS)))
    text, content_type = metrics().exposition(media_type)
    return Response(text, content_type=content_type, headers={"Cache-Control": "no-store", "Vary": "Accept"})
