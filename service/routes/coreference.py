"""/v1/coreference by POST and by GET, and POST /v1/coreference/evaluate."""

from __future__ import annotations

from flask import Blueprint

from service.formats import coreference as formats
from service.jobs import coreference, evaluate
from service.parameters import JUDGING, SCORING
from service.routes.common import WithModel
from service.routes.question import Question
from service.schemas.coreference import (
    CoreferenceAnswer,
    CoreferenceRequest,
    EvaluateAnswer,
    EvaluateRequest,
    EvaluationItem,
    LinesRequest,
)

bp = Blueprint("coreference", __name__)

ATTENDS = Question(
    name="coreference",
    summary="Which noun does the pronoun attend to?",
    description="Attention from a pronoun to its candidates, or with `method: substitution` what the model expects in "
    "the pronoun's place. In a URL spans stand as text or `start..end`, heads as `L5H5,L8H7` or `all`.",
    tag="coreference",
    request=CoreferenceRequest,
    answer=CoreferenceAnswer,
    answering=WithModel(coreference.attend),
    formats=formats.FORMATS,
    query={"text": "text", "pronoun": "span", "candidates": "spans", "gold": "integer", **SCORING},
    parameters=formats.PARAMETERS,
)
EVALUATION = Question(
    name="evaluate_coreference",
    summary="How often is a head right?",
    description="Accuracy of many heads on many items, as JSON, or as JSON Lines with the options in the URL.",
    tag="coreference",
    request=EvaluateRequest,
    answer=EvaluateAnswer,
    answering=WithModel(evaluate.judge),
    formats=formats.EVALUATION_FORMATS,
    query={**SCORING, **JUDGING},  # beside JSON Lines
    parameters=(),
    lines=(LinesRequest, EvaluationItem),
)


ATTENDS.register(bp, "/v1/coreference")
EVALUATION.register_post(bp, "/v1/coreference/evaluate")
