"""POST /v1/kv-cache and GET /v1/kv-cache/models."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from attention_core.kv_cache import BYTES_PER_ELEMENT, MAX_LAYERS
from service.schemas.common import Answer, Request, exactly_one, list_or, one_of_required

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000)]
TokensOrList = Annotated[
    Annotated[Tokens, Tag("one")]
    | Annotated[list[Tokens], Field(min_length=1, max_length=1000), Tag("list")],
    list_or("one"),
]
DTYPES = ("auto", *BYTES_PER_ELEMENT)


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise PydanticCustomError("unknown_option", "Must be one of {names}", {"names": ", ".join(DTYPES)})
    return name


Dtype = Annotated[str, AfterValidator(_known_dtype), Field(json_schema_extra={"enum": list(DTYPES)})]


class DimsRequest(Request):
    """A model's sizes."""

    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    heads: Count = Field(description="Query heads.")
    kv_heads: Count = Field(description="Key/value heads; divides `heads`.")
    head_dim: Count = Field(description="Width of one head's key.")
    v_head_dim: Count | None = Field(None, description="Width of one head's value, where it differs.")
    hidden_size: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None


class KvCacheRequest(Request):
    """How many bytes does a KV cache take? For a model by name, or for its sizes."""

    model_config = ConfigDict(
        json_schema_extra={
            **one_of_required("model", "dims"),
            "examples": [
                {"model": "meta-llama/Llama-2-7b-hf", "tokens": [1, 4096], "dtype": "float16"},
                {
                    "dims": {"layers": 24, "heads": 14, "kv_heads": 2, "head_dim": 64},
                    "tokens": 32768,
                    "batch": 8,
                },
            ],
        }
    )

    model: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="A preset's id or alias; upper and lower case are the same."
    )
    dims: DimsRequest | None = None
    tokens: TokensOrList | None = Field(None, description="1 and the model's maximum where absent.")
    batch: Count = Field(1, description="Sequences.")
    dtype: Dtype = Field("auto", description="Of keys and values; `auto` is the model's own, else bfloat16.")

    @model_validator(mode="after")
    def _model_or_dims(self) -> Self:
        exactly_one(self, "model", "dims")
        return self


class CacheSize(Answer):
    """The cache at one length."""

    tokens: int
    per_sequence_bytes: int
    batch_bytes: int
    human: str = Field(description="`batch_bytes` in units of powers of 1024.")


class LayerGroup(Answer):
    """Layers that keep the same rows."""

    kind: str
    layers: int
    window: int | None
    kv_heads: int
    k_dim: int
    v_dim: int
    bytes_per_token: int


class Rate(Answer):
    """Growth of the cache."""

    bytes_per_token: int


class KvCacheAnswer(Answer):
    """The cache's size, and how it comes about."""

    model: str | None
    attention: Literal["mha", "gqa", "mqa"]
    dtype: str
    dtype_source: Literal["request", "model", "assumed"]
    bytes_per_token: int
    bytes_per_token_beyond_window: int
    fixed_bytes_per_sequence: int
    sizes: list[CacheSize]
    groups: list[LayerGroup]
    compare: dict[str, Rate] = Field(
        description="The same layers with the other arrangements of keys and values."
    )
    assumptions: list[str]
    warnings: list[str]
    formula: str


class PresetInfo(Answer):
    """A model known by name."""

    id: str
    aliases: list[str]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_tokens: int
    dtype: str
    source: str
    released: str


class PresetsAnswer(Answer):
    """All presets."""

    models: list[PresetInfo]
