"""POST /v1/heads."""

from __future__ import annotations

from flask import Blueprint, Response

from service.body import read_json
from service.jobs import heads
from service.routes.common import ASKING, ask, describes
from service.schemas.heads import HeadsAnswer, HeadsRequest

bp = Blueprint("heads", __name__)


@bp.post("/v1/heads")
@describes(
    "What kind of head is each?", tag="heads", request=HeadsRequest, answer=HeadsAnswer, problems=ASKING
)
def classify_heads() -> Response:
    """Head scores and labels."""
    return ask(heads.classify, read_json(HeadsRequest))
