"""/v1/heads in every format, by POST and by GET."""

from __future__ import annotations

from flask import Blueprint

from service.formats.heads import FORMATS, PARAMETERS
from service.jobs import heads
from service.parameters import HEADS
from service.routes.common import WithModel
from service.routes.question import Question
from service.schemas.heads import HeadsAnswer, HeadsRequest

bp = Blueprint("heads", __name__)

KINDS = Question(
    name="head_kinds",
    summary="What kind of head is each?",
    description="Scores and labels, in the format that the path's ending or `format` names, or else `Accept` prefers.",
    tag="heads",
    request=HeadsRequest,
    answer=HeadsAnswer,
    answering=WithModel(heads.classify),
    formats=FORMATS,
    query={"text": "text", **HEADS, "probe": "text", "seed": "integer", "draws": "integer"},
    parameters=PARAMETERS,
)


KINDS.register(bp, "/v1/heads")
