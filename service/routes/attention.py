"""POST /v1/attention, POST /v1/tokenize."""

from __future__ import annotations

from flask import Blueprint, Response

from service.body import read_json
from service.jobs import attention
from service.routes.common import ADMISSION, ASKING, ask, describes
from service.schemas.attention import AttentionAnswer, AttentionRequest, TokenizeAnswer, TokenizeRequest

bp = Blueprint("attention", __name__)


@bp.post("/v1/attention")
@describes(
    "Where does every head look?",
    tag="attention",
    request=AttentionRequest,
    answer=AttentionAnswer,
    problems=ASKING,
)
def attention_maps() -> Response:
    """Attention maps."""
    return ask(attention.maps, read_json(AttentionRequest))


@bp.post("/v1/tokenize")
@describes(
    "How is this text tokenised?",
    tag="model",
    request=TokenizeRequest,
    answer=TokenizeAnswer,
    problems=ADMISSION,
)
def tokenize() -> Response:
    """Tokens and words."""
    return ask(attention.tokens, read_json(TokenizeRequest))
