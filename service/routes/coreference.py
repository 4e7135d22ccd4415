"""POST /v1/coreference."""

from __future__ import annotations

from flask import Blueprint, Response

from service.body import read_json
from service.jobs import coreference
from service.routes.common import ASKING, ask, describes
from service.schemas.coreference import CoreferenceAnswer, CoreferenceRequest

bp = Blueprint("coreference", __name__)


@bp.post("/v1/coreference")
@describes(
    "Which noun does the pronoun attend to?",
    tag="coreference",
    request=CoreferenceRequest,
    answer=CoreferenceAnswer,
    problems=ASKING,
)
def score_coreference() -> Response:
    """Attention from a pronoun to its candidates."""
    return ask(coreference.attend, read_json(CoreferenceRequest))
