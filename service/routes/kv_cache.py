"""POST /v1/kv-cache, GET /v1/kv-cache/models: arithmetic only, answered whatever the model's state."""

from __future__ import annotations

from flask import Blueprint, Response

from service.body import read_json
from service.jobs import kv_cache
from service.routes.common import answer, describes
from service.schemas.kv_cache import KvCacheAnswer, KvCacheRequest, PresetsAnswer

bp = Blueprint("kv_cache", __name__)


@bp.post("/v1/kv-cache")
@describes(
    "How many bytes does a KV cache take?", tag="kv-cache", request=KvCacheRequest, answer=KvCacheAnswer
)
def size_kv_cache() -> Response:
    """Bytes of a KV cache."""
    return answer(kv_cache.size(read_json(KvCacheRequest)))


@bp.get("/v1/kv-cache/models")
@describes("Which models are known by name?", tag="kv-cache", answer=PresetsAnswer)
def list_presets() -> Response:
    """All presets."""
    return answer(kv_cache.known_models())
