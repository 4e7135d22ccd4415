"""GET /health/live, GET /health/ready: neither touches the engine's queue."""

from __future__ import annotations

from flask import Blueprint, Response

from service.errors import NotReadyError
from service.routes.common import describes, engine, uncached
from service.schemas.model import HealthAnswer

bp = Blueprint("health", __name__)


@bp.get("/health/live")
@describes("Is it alive?", tag="operations", answer=HealthAnswer, problems=(NotReadyError,), cacheable=False)
def live() -> Response:
    """200 while the process can answer; 503 once only a restart helps."""
    if not engine().alive:
        raise NotReadyError(
            "The inference thread is gone or stuck; only a restart helps.", retry_after_seconds=5
        )
    return uncached({"status": "live", "state": engine().state})


@bp.get("/health/ready")
@describes("Is it ready?", tag="operations", answer=HealthAnswer, problems=(NotReadyError,), cacheable=False)
def ready() -> Response:
    """200 when a request would be accepted in principle; a full queue is still ready."""
    _ = engine().model
    return uncached({"status": "ready", "state": engine().state})
