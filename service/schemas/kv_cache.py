"""/v1/kv-cache and /v1/kv-cache/models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, RootModel, Tag, model_validator
from pydantic_core import PydanticCustomError

from attention_core.kv_cache import DTYPES, ENGINES, LAYER_TYPES, MAX_LAYERS, PLAIN_DTYPES
from service.schemas.common import WHOLE, Answer, Request, exactly_one, list_or, one_of_required

LARGEST_SIZE = 2**53 - 1  # bytes of a memory: 8 PiB, and what every reader of JSON keeps exactly
MOST_COMPARED = 8  # models beside the one asked about

Count = Annotated[int, Field(ge=1, le=1_000_000), WHOLE]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000), WHOLE]
Bytes = Annotated[int, Field(ge=0, le=LARGEST_SIZE), WHOLE]
TokensOrList = Annotated[
    Annotated[Tokens, Tag("one")]
    | Annotated[list[Tokens], Field(min_length=1, max_length=1000), Tag("list")],
    list_or("one"),
]


def _one_of(names: Sequence[str]) -> tuple[AfterValidator, Any]:
    def check(name: str) -> str:
        if name not in names:
            raise PydanticCustomError("unknown_option", "Must be one of {names}", {"names": ", ".join(names)})
        return name

    return AfterValidator(check), Field(json_schema_extra={"enum": list(names)})


Dtype = Annotated[str, *_one_of(("auto", *DTYPES))]
OwnDtype = Annotated[str, *_one_of(tuple(DTYPES))]
StateDtype = Annotated[str, *_one_of(PLAIN_DTYPES)]
Engine = Annotated[str, *_one_of(ENGINES)]
LayerType = Annotated[str, *_one_of(LAYER_TYPES)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class MlaRequest(Request):
    """Multi-head latent attention: its row is as wide as both together."""

    kv_lora_rank: Count
    qk_rope_head_dim: Count


class DimsRequest(Request):
    """A model's sizes."""

    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS), WHOLE]
    heads: Count = Field(description="Query heads.")
    kv_heads: Count = Field(description="Key/value heads; divides `heads`.")
    head_dim: Count = Field(description="Width of one head's key.")
    v_head_dim: Count | None = Field(None, description="Width of one head's value, where it differs.")
    hidden_size: Annotated[int, Field(ge=1, le=10_000_000), WHOLE] | None = None
    mla: MlaRequest | None = Field(None, description="Where layers keep one latent row for all heads.")
    window: Annotated[int, Field(ge=1, le=10_000_000), WHOLE] | None = Field(
        None, description="Tokens that a sliding layer keeps; alone, every layer slides."
    )
    layer_types: Annotated[list[LayerType], Field(min_length=1, max_length=MAX_LAYERS)] | None = Field(
        None, description="One a layer; `none` keeps nothing."
    )


class EngineOptionsRequest(Request):
    """Settings of an engine that decide what it reserves."""

    max_num_batched_tokens: Count | None = Field(
        None,
        description="vLLM's, in one step; 8192 where absent. Since 0.26 two are in flight: give twice its own.",
    )
    ubatch: Count | None = Field(None, description="llama.cpp's; 512 where absent.")
    parallel_slots: Count | None = Field(
        None, description="llama.cpp's sequences over one cache; 1 where absent."
    )
    prefix_caching: bool = Field(
        True, description="vLLM's: of a recurrent layer, a request then has two states."
    )


class GpuRequest(Request):
    """A GPU: what is left of it beside weights and overhead is the cache's."""

    memory_bytes: Annotated[int, Field(ge=1, le=LARGEST_SIZE), WHOLE]
    utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Share of the memory that the engine may use."
    )
    weight_bytes: Bytes = Field(0, description="Of the model's weights, on this GPU.")
    overhead_bytes: Bytes = Field(0, description="Of activations, graphs, and other things.")


CONFIG_EXAMPLE: dict[str, Any] = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
SOURCES = ("model", "config", "dims")


class KvCacheRequest(Request):
    """How many bytes does a KV cache take? For a model by name, by its config.json, or by its sizes."""

    model_config = ConfigDict(
        json_schema_extra={
            **one_of_required(model="string", config="object", dims="object"),
            "examples": [
                {"model": "meta-llama/Llama-2-7b-hf", "tokens": [1, 4096], "dtype": "float16"},
                {"config": CONFIG_EXAMPLE, "tokens": 32768, "engine": "vllm", "detail": "layers"},
                {
                    "dims": {"layers": 24, "heads": 14, "kv_heads": 2, "head_dim": 64},
                    "tokens": 32768,
                    "batch": 8,
                    "gpu": {"memory_bytes": 24 * 2**30, "weight_bytes": 2**30},
                    "compare_models": ["llama-2-7b"],
                },
            ],
        }
    )
    config_place: ClassVar[tuple[str, ...]] = ("config",)  # where in the body the config stands

    model: Name | None = Field(None, description="A preset's id or alias; upper and lower case are the same.")
    config: dict[str, Any] | None = Field(None, description="A Hugging Face config.json, as it is.")
    dims: DimsRequest | None = None
    tokens: TokensOrList | None = Field(None, description="1 and the model's maximum where absent.")
    encoder_tokens: Tokens | None = Field(
        None, description="What an encoder-decoder's cross-attention keeps; the config's where it says."
    )
    batch: Count = Field(1, description="Sequences.")
    shared_prefix_tokens: Annotated[int, Field(ge=0, le=1_000_000_000), WHOLE] = Field(
        0, description="Tokens at the start that all sequences of the batch share."
    )
    dtype: Dtype = Field("auto", description="Of keys and values; `auto` is the model's own, else bfloat16.")
    k_dtype: OwnDtype | None = Field(None, description="Of keys, where it differs.")
    v_dtype: OwnDtype | None = Field(None, description="Of values, where it differs.")
    state_dtype: StateDtype | None = Field(
        None, description="Of recurrent states; the config's where absent, else float32."
    )
    tensor_parallel: Count = Field(1, description="Ranks that the heads are divided over.")
    page_size: Count | None = Field(None, description="Rows in a page; 1 where absent, and for vLLM 16.")
    include_mtp: bool = Field(False, description="Count the multi-token-prediction layers too.")
    engine: Engine = Field("ideal", description="Whose reserved sizes `sizes` holds.")
    engine_options: EngineOptionsRequest | None = None
    memory_budget_bytes: Bytes | None = Field(
        None, description="For the cache, on a rank: how long can sequences be, and how many fit?"
    )
    gpu: GpuRequest | None = Field(
        None,
        description="Does it fit, and what is left for the cache? No more than the budget, if both are given.",
    )
    detail: Literal["summary", "layers"] = Field("summary", description="`layers` lists every layer besides.")
    compare_models: Annotated[list[Name], Field(min_length=1, max_length=MOST_COMPARED)] | None = Field(
        None, description="Presets to answer the same request for."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        exactly_one(self, *SOURCES)
        return self


class BareConfigRequest(KvCacheRequest):
    """A request whose body is the config itself."""

    config_place: ClassVar[tuple[str, ...]] = ()


class ConfigBody(RootModel[dict[str, Any]]):
    """A Hugging Face config.json as the body, by itself; the query string says the rest of the request."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": [name], "properties": {name: {}}} for name in ("model_type", "architectures")
            ],
            "propertyNames": {"not": {"enum": list(SOURCES)}},
            "examples": [CONFIG_EXAMPLE],
        }
    )

    @model_validator(mode="after")
    def _is_config(self) -> Self:
        if not {"model_type", "architectures"} & self.root.keys() or self.root.keys() & set(SOURCES):
            raise PydanticCustomError("wrong_type", "This is not a config.json")
        return self


class Bounds(Answer):
    """A sequence's bytes without pages: as little as it can be, and as if no layer had a window."""

    ideal: int
    no_swa: int


class CacheSize(Answer):
    """The cache at one length, as the engine reserves it."""

    tokens: int
    per_sequence_bytes: int = Field(description="One sequence by itself, all ranks counted once.")
    batch_bytes: int = Field(description="The batch, a shared prefix kept once.")
    human: str = Field(description="`batch_bytes` in units of powers of 1024.")
    page_waste_bytes: int = Field(description="`batch_bytes` less the same with pages of one row.")
    per_rank_bytes: int = Field(description="One rank's part of the batch.")
    replication: int = Field(description="How many ranks keep the same bytes, where it is most.")
    bounds: Bounds


class LayerBytes(Answer):
    """What a layer keeps, and its bytes."""

    kind: str
    window: int | None
    kv_heads: int
    k_dim: int
    v_dim: int
    index_dim: int = Field(description="Width of a sparse-attention indexer's key beside them.")
    shared: bool = Field(description="It reads what another layer keeps.")
    bytes_per_token: int
    fixed_bytes_per_sequence: int


class LayerGroup(LayerBytes):
    """Layers that are alike, and their bytes together."""

    layers: int


class LayerDetail(LayerBytes):
    """One layer."""

    index: int
    sizes_bytes: list[int] = Field(description="Of one sequence, one entry for each of `tokens`.")


class Rate(Answer):
    """Growth of the cache."""

    bytes_per_token: int


class MaxTokens(Answer):
    """The longest sequences whose cache fits into the budget."""

    per_sequence: int | None = Field(description="0 where none fits, null where any does.")
    limited_by_model: int | None = Field(
        description="No more than the model's maximum; null where that is not known."
    )


class Term(Answer):
    """A part of the sum; what is subtracted is negative."""

    name: str
    bytes: int


class VllmCapacity(Answer):
    """What vLLM would say in its log, one entry for each of `tokens` as `max_model_len`."""

    block_size: int
    num_gpu_blocks: int
    kv_cache_tokens: list[int] = Field(description="Concurrency times length.")
    max_concurrency: list[float]
    log: list[str]


class Capacity(Answer):
    """What fits into the budget."""

    kv_budget_bytes: int
    max_sequences: list[int | None] = Field(
        description="One entry for each of `tokens`; null where any number fits."
    )
    fits: bool = Field(description="Whether the batch fits at every one of `tokens`.")
    terms: list[Term] = Field(description="How the budget comes about.")
    vllm: VllmCapacity | None = Field(description="With `engine: vllm`.")


Attention = Literal["mha", "gqa", "mqa", "mla", "none"]


class ComparedModel(Answer):
    """The same request, answered for another model."""

    model: str
    attention: Attention
    dtype: str
    bytes_per_token: int
    bytes_per_token_beyond_window: int
    fixed_bytes_per_sequence: int
    sizes: list[CacheSize]
    assumptions: list[str]
    warnings: list[str]


class KvCacheAnswer(Answer):
    """The cache's size, and how it comes about."""

    model: str | None
    attention: Attention
    dtype: str
    dtype_source: Literal["request", "model", "assumed"]
    k_dtype: str
    v_dtype: str
    bytes_per_token: int = Field(description="Growth at the first token, all layers; of the ideal cache.")
    bytes_per_token_beyond_window: int = Field(description="Growth once every window is full.")
    fixed_bytes_per_sequence: int = Field(description="Recurrent state and cross-attention, however long.")
    sizes: list[CacheSize]
    groups: list[LayerGroup]
    compare: dict[str, Rate] = Field(
        description="The same layers with the other arrangements of keys and values."
    )
    max_tokens: MaxTokens | None = Field(description="Null without a budget.")
    capacity: Capacity | None = Field(description="Null without a budget.")
    assumptions: list[str]
    warnings: list[str]
    formula: str
    layers: list[LayerDetail] | None = Field(None, description="With `detail: layers`, else absent.")
    models: list[ComparedModel] | None = Field(None, description="With `compare_models`, else absent.")


class PresetInfo(Answer):
    """A model known by name."""

    id: str
    aliases: list[str]
    attention: Attention
    layers: int
    heads: int = Field(description="Query heads, of the layer that has most.")
    kv_heads: int = Field(description="Key/value heads, likewise; 1 where a latent row serves all.")
    head_dim: int | None = Field(description="Width of a head's key, null where layers differ.")
    bytes_per_token: int
    bytes_per_token_beyond_window: int
    fixed_bytes_per_sequence: int | None = Field(description="Null where it depends on encoder_tokens.")
    max_tokens: int | None
    dtype: str
    status: str = Field(description="How well the config is known.")
    source: str
    checked: str
    released: str


class PresetsAnswer(Answer):
    """All presets."""

    models: list[PresetInfo]


class PresetAnswer(PresetInfo):
    """One preset, with what of its config enters the cache."""

    config: dict[str, Any]
