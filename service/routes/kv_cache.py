"""/v1/kv-cache by POST and by GET, and the models known by name: answered whatever the loaded model's state."""

from __future__ import annotations

from flask import Blueprint, Response
from werkzeug.exceptions import NotFound

from service.body import Bare, refuse_parameters
from service.formats.kv_cache import FORMATS, PARAMETERS
from service.jobs import kv_cache
from service.routes.common import QUERY, WithoutModel, answer, describes
from service.routes.question import Question
from service.schemas.kv_cache import (
    BareConfigRequest,
    ConfigBody,
    EngineOptionsRequest,
    GpuRequest,
    KvCacheAnswer,
    KvCacheRequest,
    PresetAnswer,
    PresetsAnswer,
)

bp = Blueprint("kv_cache", __name__)

SIZE = Question(
    name="kv_cache_size",
    summary="How many bytes does a KV cache take?",
    description="Bytes of a KV cache: of a model by name, by its config.json (also as the body by itself, the other "
    "members then in the URL), or by its sizes.",
    tag="kv-cache",
    request=KvCacheRequest,
    answer=KvCacheAnswer,
    answering=WithoutModel(kv_cache.size),
    formats=FORMATS,
    query={
        "model": "text",
        "tokens": "integers",
        "encoder_tokens": "integer",
        "batch": "integer",
        "shared_prefix_tokens": "integer",
        "dtype": "text",
        "k_dtype": "text",
        "v_dtype": "text",
        "state_dtype": "text",
        "tensor_parallel": "integer",
        "page_size": "integer",
        "include_mtp": "flag",
        "engine": "text",
        "max_num_batched_tokens": "integer",
        "ubatch": "integer",
        "parallel_slots": "integer",
        "prefix_caching": "flag",
        "memory_budget_bytes": "integer",
        "gpu_memory_bytes": "integer",
        "gpu_utilization": "number",
        "gpu_weight_bytes": "integer",
        "gpu_overhead_bytes": "integer",
        "detail": "text",
        "compare_models": "texts",
    },
    places={
        **{name: ("engine_options", name) for name in EngineOptionsRequest.model_fields},
        **{f"gpu_{name}": ("gpu", name) for name in GpuRequest.model_fields},
    },
    parameters=PARAMETERS,
    bare=Bare[KvCacheRequest](BareConfigRequest, "config", ConfigBody),
)

SIZE.register(bp, "/v1/kv-cache")


@bp.get("/v1/kv-cache/models")
@describes("Which models are known by name?", tag="kv-cache", answer=PresetsAnswer, problems=QUERY)
def list_presets() -> Response:
    """All presets."""
    refuse_parameters()
    return answer(kv_cache.known_models())


@bp.get("/v1/kv-cache/models/<path:id>")
@describes(
    "What is known of a model?",
    tag="kv-cache",
    answer=PresetAnswer,
    problems=(*QUERY, NotFound),
    parameters=(
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}, "example": "llama-2-7b"},
    ),
)
def show_preset(id: str) -> Response:
    """A preset by its id, whose slash stands as it is or as `%2F`, or by an alias."""
    refuse_parameters()
    found = kv_cache.known_model(id)
    if found is None:
        raise NotFound
    return answer(found)
