"""/v1/attention in every format, by POST and by GET; POST /v1/tokenize."""

from __future__ import annotations

from dataclasses import replace

from flask import Blueprint, Response

from service.body import read_json, refuse_parameters
from service.formats.attention import EMBEDDED, EMBEDDING, FORMATS, PARAMETERS
from service.jobs import attention
from service.parameters import ATTENTION
from service.routes.common import ADMISSION, WithModel, ask, describes
from service.routes.question import Question
from service.schemas.attention import AttentionAnswer, AttentionRequest, TokenizeAnswer, TokenizeRequest

bp = Blueprint("attention", __name__)

MAPS = Question(
    name="attention_maps",
    summary="Where does every head look?",
    description="Attention maps, in the format that the path's ending or `format` names, or else `Accept` prefers.",
    tag="attention",
    request=AttentionRequest,
    answer=AttentionAnswer,
    answering=WithModel(attention.maps),
    formats=FORMATS,
    query={"text": "text", "text_pair": "text", **ATTENTION, "decimals": "integer"},
    parameters=PARAMETERS,
)


EMBED = replace(
    MAPS,
    name="attention_embedded",
    summary="Attention maps for a frame",
    description="As `/v1/attention.html`, without margins. It tells whoever frames it its height, as a message "
    '`{"type": "attention-service:height", "height": pixels}`.',
    formats=(EMBEDDED,),
    parameters=EMBEDDING,
)

MAPS.register(bp, "/v1/attention")
EMBED.register_get(bp, "/embed/attention")


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
    refuse_parameters()
    return ask(WithModel(attention.tokens), read_json(TokenizeRequest))
