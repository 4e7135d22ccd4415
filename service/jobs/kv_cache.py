"""How many bytes does a KV cache take? Needs no model."""

from __future__ import annotations

from dataclasses import asdict

from attention_core.errors import ShapeError
from attention_core.kv_cache import CacheModel, Dims, UnknownNameError, find_preset, kv_cache, presets
from service.errors import InvalidRequestError
from service.schemas.kv_cache import KvCacheAnswer, KvCacheRequest

LARGEST_INTEGER = 2**63 - 1  # more than most readers of JSON take


def size(request: KvCacheRequest) -> dict[str, object]:
    """The cache of a preset, or of given sizes."""
    report = kv_cache(_model(request), tokens=request.tokens, dtype=request.dtype, batch=request.batch)
    for place, one in enumerate(report.sizes):
        if one.batch_bytes > LARGEST_INTEGER:
            pointer = f"/tokens/{place}" if isinstance(request.tokens, list) else "/tokens"
            detail = "The size would not fit into a 64-bit integer; ask for fewer tokens or sequences."
            raise InvalidRequestError.at(pointer, "out_of_range", detail)
    # The core's report knows more than this answer has, such as separate types of keys and values
    return {name: value for name, value in asdict(report).items() if name in KvCacheAnswer.model_fields}


def _model(request: KvCacheRequest) -> CacheModel:
    if request.model is not None:
        try:
            return find_preset(request.model).model()
        except UnknownNameError as error:
            hint = f" Close names: {', '.join(error.close)}." if error.close else ""
            detail = f"No model of this name is known; GET /v1/kv-cache/models lists all.{hint}"
            raise InvalidRequestError.at("/model", "unknown_model", detail) from None
    try:
        return CacheModel.from_dims(Dims(**request.dims.model_dump()))  # type: ignore[union-attr]
    except ShapeError as error:
        raise InvalidRequestError.at(f"/dims/{error.what}", "out_of_range", f"{error}.") from None


def known_models() -> dict[str, object]:
    """Every preset, with its source."""
    return {
        "models": [
            {
                "id": preset.id,
                "aliases": list(preset.aliases),
                "layers": preset.dims.layers,
                "heads": preset.dims.heads,
                "kv_heads": preset.dims.kv_heads,
                "head_dim": preset.dims.head_dim,
                "max_tokens": preset.max_tokens,
                "dtype": preset.dtype,
                "source": preset.source,
                "released": preset.released,
            }
            for preset in presets()
        ]
    }
