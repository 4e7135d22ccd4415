"""/v1/heads in every format, by POST and by GET."""

from __future__ import annotations

from flask import Blueprint, Response

from service.formats.heads import FORMATS, PARAMETERS
from service.jobs import heads
from service.routes.question import Question
from service.schemas.heads import HeadsAnswer, HeadsRequest

bp = Blueprint("heads", __name__)

KINDS = Question(
    summary="What kind of head is each?",
    tag="heads",
    request=HeadsRequest,
    answer=HeadsAnswer,
    job=heads.classify,
    formats=FORMATS,
    query={
        "text": "text",
        "layers": "integers",
        "heads": "integers",
        "labels": "texts",
        "thresholds": "numbers",
        "probe": "text",
        "seed": "integer",
        "draws": "integer",
        "special_tokens": "text",
    },
    parameters=PARAMETERS,
)


@bp.post("/v1/heads")
@KINDS.describe_post()
def classify_heads() -> Response:
    """Head scores and labels, in the format that `?format=` names or `Accept` prefers."""
    return KINDS.post()


@bp.get("/v1/heads")
@KINDS.describe_get()
def get_heads() -> Response:
    """Head scores and labels for what can send no body."""
    return KINDS.get()


@bp.get("/v1/heads.<name>")
@KINDS.describe_ending()
def get_heads_as(name: str) -> Response:
    """`/v1/heads.svg?text=…&color=sink`, and so on for each format."""
    return KINDS.get(name)
