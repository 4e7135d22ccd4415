"""GET /v1/model."""

from __future__ import annotations

from flask import Blueprint, Response

from service.body import refuse_parameters
from service.errors import NotReadyError
from service.formats.attention import FORMATS
from service.routes.common import QUERY, answer, describes, engine, settings
from service.schemas.model import ModelAnswer

bp = Blueprint("model", __name__)


@bp.get("/v1/model")
@describes(
    "What is loaded, and within which limits?",
    tag="model",
    answer=ModelAnswer,
    problems=(*QUERY, NotReadyError),
)
def model() -> Response:
    """The loaded model and the limits."""
    refuse_parameters()
    loaded = engine().model
    return answer(
        {
            "model": loaded.provenance,
            "layers": loaded.reader.layers,
            "heads": loaded.reader.heads,
            "kv_heads": loaded.reader.kv_heads,
            "head_size": loaded.reader.head_size,
            "vocabulary": loaded.reader.vocabulary,
            "max_tokens": loaded.max_tokens,
            "limits": settings().limits,
            "formats": list(dict.fromkeys(one.media_type for one in FORMATS)),
        }
    )
