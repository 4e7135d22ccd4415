"""The whole answer about a model's cache: rates, sizes, budgets, and other arrangements of K and V beside it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from attention_core.kv_cache.dtypes import DTYPES, LATENT_ONLY, PLAIN_DTYPES
from attention_core.kv_cache.engines import DEFAULT_OPTIONS, ENGINES, Engine, EngineName, EngineOptions
from attention_core.kv_cache.errors import CacheInputError
from attention_core.kv_cache.layers import (
    CROSS,
    AttentionKind,
    CacheModel,
    Latent,
    Layer,
    alike,
    latent_layer,
    whole,
)
from attention_core.kv_cache.size import Cache, Types
from attention_core.kv_cache.vllm import VllmCapacity, vllm_capacity
from attention_core.kv_cache.words import formula, human_bytes

Notes = tuple[str, ...]  # sentences for a reader
DtypeSource = Literal["request", "model", "assumed"]
Arrangement = Literal["mha", "gqa", "mqa", "mla"]

ASSUMED_DTYPE = "bfloat16"
ASSUMED_STATE_DTYPE = "float32"
ASSUMED_KV_HEADS = 8
ASSUMED_LATENT = Latent(512, 64, 192, 128)  # DeepSeek-V3's
MAX_TOKENS = 10**12  # of a question; far above any context
MAX_BYTES = 2**62  # of a budget


@dataclass(frozen=True)
class Bounds:
    """One sequence without pages: as little as the windows allow, and with every token kept in every layer."""

    ideal: int
    no_swa: int


@dataclass(frozen=True)
class CacheSize:
    """The cache after `tokens` tokens. All in bytes, `human` renders `batch_bytes`.

    per_sequence_bytes  one sequence that shares nothing, all ranks counted once, what is fixed included
    batch_bytes         the batch, a shared prefix counted once
    page_waste_bytes    the batch less the same batch in pages of one row
    per_rank_bytes      one tensor-parallel rank's part of the batch
    replication         ranks that keep the same bytes, where it is most
    """

    tokens: int
    per_sequence_bytes: int
    batch_bytes: int
    human: str
    page_waste_bytes: int
    per_rank_bytes: int
    replication: int
    bounds: Bounds


@dataclass(frozen=True, kw_only=True)
class LayerBytes:
    """What a layer keeps, and its bytes; `window` is None where every token is kept.

    `index_dim` is the width of an indexer's key beside K and V. What does not depend on the tokens, a recurrent state
    or cross-attention, is `fixed_bytes_per_sequence`. A `shared` layer reads another's K and V.
    """

    kind: str
    window: int | None
    kv_heads: int
    k_dim: int
    v_dim: int
    index_dim: int
    shared: bool
    bytes_per_token: int
    fixed_bytes_per_sequence: int


@dataclass(frozen=True, kw_only=True)
class LayerGroup(LayerBytes):
    """`layers` layers that are alike, and their bytes together."""

    layers: int


@dataclass(frozen=True, kw_only=True)
class LayerDetail(LayerBytes):
    """One entry of the model's list of layers; `sizes_bytes` is one sequence in it at each asked number of tokens."""

    index: int
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Rate:
    """Bytes that the first token takes in all layers."""

    bytes_per_token: int


@dataclass(frozen=True)
class MaxTokens:
    """The longest sequences that fit into a budget: None if any, 0 if none; and no longer than the model allows."""

    per_sequence: int | None
    limited_by_model: int | None


@dataclass(frozen=True)
class Term:
    """A part of a budget; negative where it is taken away."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Capacity:
    """What fits into the memory left for the cache on one rank.

    `terms` add up to `kv_budget_bytes`, unless nothing is left. `max_sequences` has an entry for each asked number of
    tokens, None where a sequence takes nothing; `fits` says whether the batch does at all of them. `vllm` is what
    vLLM's log would say, for its engine only.
    """

    kv_budget_bytes: int
    max_sequences: tuple[int | None, ...]
    fits: bool
    terms: tuple[Term, ...]
    vllm: VllmCapacity | None


@dataclass(frozen=True)
class Gpu:
    """One GPU, of which an engine may use a part; weights and everything else on it come first."""

    memory_bytes: int
    utilization: Fraction | float = Fraction(9, 10)
    weight_bytes: int = 0
    overhead_bytes: int = 0

    def __post_init__(self) -> None:
        whole(self.memory_bytes, "gpu", "memory_bytes", at_most=MAX_BYTES)
        whole(self.weight_bytes, "gpu", "weight_bytes", at_least=0, at_most=MAX_BYTES)
        whole(self.overhead_bytes, "gpu", "overhead_bytes", at_least=0, at_most=MAX_BYTES)
        if isinstance(self.utilization, bool) or not isinstance(self.utilization, int | float | Fraction):
            raise CacheInputError(("gpu", "utilization"), "wrong_type", "utilization must be a number")
        if not 0 < self.utilization <= 1:
            raise CacheInputError(
                ("gpu", "utilization"), "out_of_range", "utilization must be above 0, at most 1"
            )

    @property
    def terms(self) -> tuple[Term, ...]:
        """What is there, what is left free, and what else is on it."""
        # a number such as 0.9 is meant as written, not as the nearest binary fraction
        share = Fraction(str(self.utilization))
        usable = int(self.memory_bytes * share)
        return (
            Term("memory", self.memory_bytes),
            Term("not used", usable - self.memory_bytes),
            Term("weights", -self.weight_bytes),
            Term("overhead", -self.overhead_bytes),
        )


@dataclass(frozen=True)
class CacheReport:
    """How much memory a model's KV cache takes, and why.

    bytes_per_token                growth at the first token, all layers
    bytes_per_token_beyond_window  growth once every window is full
    fixed_bytes_per_sequence       recurrent states and cross-attention: what does not depend on the tokens
    sizes                          one entry per asked number of tokens, in the order asked
    groups, layers                 the layers, alike ones together; one by one if asked for
    compare                        the same layers, widths and types with K and V arranged as mha, gqa, mqa, mla
    max_tokens, capacity           of a budget; None without one
    assumptions, warnings          every default that was taken; what to be careful about
    formula                        the rates spelt out in this model's numbers

    `dtype` is the type asked for or found; `k_dtype` and `v_dtype` are what K and V are kept in. The engine alters only
    `sizes` and what follows from them; rates, groups and bounds are those of the ideal cache.
    """

    model: str | None
    attention: AttentionKind
    dtype: str
    dtype_source: DtypeSource
    k_dtype: str
    v_dtype: str
    bytes_per_token: int
    bytes_per_token_beyond_window: int
    fixed_bytes_per_sequence: int
    sizes: tuple[CacheSize, ...]
    groups: tuple[LayerGroup, ...]
    compare: Mapping[Arrangement, Rate]
    max_tokens: MaxTokens | None
    capacity: Capacity | None
    assumptions: Notes
    warnings: Notes
    formula: str
    layers: tuple[LayerDetail, ...] | None


def kv_cache(
    model: CacheModel,
    *,
    tokens: int | Sequence[int] | None = None,
    encoder_tokens: int | None = None,
    batch: int = 1,
    shared_prefix_tokens: int = 0,
    dtype: str = "auto",
    k_dtype: str | None = None,
    v_dtype: str | None = None,
    state_dtype: str | None = None,
    tensor_parallel: int = 1,
    page_size: int | None = None,
    include_mtp: bool = False,
    engine: str = "ideal",
    engine_options: EngineOptions = DEFAULT_OPTIONS,
    memory_budget_bytes: int | None = None,
    gpu: Gpu | None = None,
    layers: bool = False,
) -> CacheReport:
    """The size of a model's KV cache.

        bytes = Σ_layers rows(tokens) * kv_heads * (k_dim * e_k + v_dim * e_v) + state

    with e_k and e_v the bytes of an element, and rows all tokens or those of the layer's window; `layers.py` and
    `engines.py` have the other rows and what an engine reserves.

    tokens                one number or several; None means 1 and the model's longest context
    encoder_tokens        rows of cross-attention; None for the model's own
    shared_prefix_tokens  that all sequences of the batch begin with, kept once as far as whole pages go
    dtype                 of K and V; "auto" is the model's own, or bfloat16, which the report then states. `k_dtype`
                          and `v_dtype` override it. Convolutions stay in a 16- or 32-bit type.
    state_dtype           of recurrent states; None for what the model asks for, else float32
    tensor_parallel       ranks over which heads are divided
    page_size             rows of a page, to which every sequence's rows are rounded up
    memory_budget_bytes   or `gpu`: what is there for the cache on one rank; with both, the smaller

    Llama 2 7B in float16: 32 layers × 32 KV heads × (128 + 128) × 2 bytes = 524,288 bytes a token, and 2 GiB
    at 4,096 tokens.

    Raises CacheInputError, whose `place` is the argument.
    """
    notes = _Notes([*model.assumptions], [*model.warnings])
    if include_mtp:
        if not model.mtp_layers:
            notes.warnings.append("include_mtp: the model has no multi-token-prediction layers")
        model = replace(model, layers=(*model.layers, *model.mtp_layers))
    counts = _resolve_tokens(model, tokens, shared_prefix_tokens, notes)
    whole(batch, "batch")
    whole(tensor_parallel, "tensor_parallel")
    if page_size is not None:
        whole(page_size, "page_size")
    base, source = _resolve_dtype(model, dtype, k_dtype, v_dtype, notes)
    types = _resolve_types(model, base, k_dtype, v_dtype, state_dtype, notes)
    laid_out = Engine.of(_engine_name(engine), page_size, engine_options)
    encoder = _resolve_encoder(model, encoder_tokens, notes)
    try:
        ideal = Cache(model.layers, types, Engine.of("ideal", 1, DEFAULT_OPTIONS), encoder)
    except CacheInputError as error:  # the type was asked for by its own name, or by `dtype`
        own = {"k_dtype": k_dtype, "v_dtype": v_dtype}[str(error.place[0])]
        raise CacheInputError(error.place if own else ("dtype",), error.code, str(error)) from None
    cache = replace(ideal, engine=laid_out, tensor_parallel=tensor_parallel)
    _check_prefix(shared_prefix_tokens, counts)
    sizes = _sizes(cache, ideal, counts, batch, shared_prefix_tokens)
    capacity = _capacity(cache, sizes, batch, shared_prefix_tokens, memory_budget_bytes, gpu, notes)
    _warn(model, counts, cache, engine_options, page_size, notes)
    groups = _groups(ideal)
    return CacheReport(
        model=model.name,
        attention=model.attention,
        dtype=base,
        dtype_source=source,
        k_dtype=types.k.name,
        v_dtype=types.v.name,
        bytes_per_token=sum(group.bytes_per_token for group in groups),
        bytes_per_token_beyond_window=sum(group.bytes_per_token for group in groups if group.window is None),
        fixed_bytes_per_sequence=sum(group.fixed_bytes_per_sequence for group in groups),
        sizes=sizes,
        groups=groups,
        compare=_compare(model, ideal, notes),
        max_tokens=_max_tokens(model, cache, batch, shared_prefix_tokens, capacity),
        capacity=capacity,
        assumptions=tuple(notes.assumptions),
        warnings=tuple(notes.warnings),
        formula=formula(ideal),
        layers=_details(cache, ideal, counts) if layers else None,
    )


@dataclass
class _Notes:
    """What is told beside the numbers."""

    assumptions: list[str]
    warnings: list[str]


def _resolve_tokens(
    model: CacheModel, tokens: int | Sequence[int] | None, prefix: int, notes: _Notes
) -> tuple[int, ...]:
    whole(prefix, "shared_prefix_tokens", at_least=0, at_most=MAX_TOKENS)
    if tokens is None:
        fewest = max(1, prefix)
        if model.max_tokens is None:
            unit = "token" if fewest == 1 else "tokens"
            notes.assumptions.append(
                f"the model's longest context is not known: sizes for {fewest:,} {unit} only"
            )
            return (fewest,)
        return (fewest, model.max_tokens)
    if not isinstance(tokens, list | tuple | range):
        return (whole(tokens, "tokens", at_most=MAX_TOKENS),)
    if not tokens:
        raise CacheInputError(("tokens",), "out_of_range", "tokens must have at least one entry")
    return tuple(whole(count, "tokens", index, at_most=MAX_TOKENS) for index, count in enumerate(tokens))


def _resolve_dtype(
    model: CacheModel, dtype: str, k_dtype: str | None, v_dtype: str | None, notes: _Notes
) -> tuple[str, DtypeSource]:
    for what, name in (("dtype", dtype), ("k_dtype", k_dtype), ("v_dtype", v_dtype)):
        if name is not None and name not in DTYPES and (what, name) != ("dtype", "auto"):
            raise CacheInputError((what,), "unknown_option", f"{what} must be one of {', '.join(DTYPES)}")
    if dtype != "auto":
        return dtype, "request"
    if model.dtype is not None:
        return model.dtype, "model"
    if k_dtype is None or v_dtype is None:
        notes.assumptions.append(f"no dtype given or known: {ASSUMED_DTYPE}")
    return ASSUMED_DTYPE, "assumed"


def _resolve_types(
    model: CacheModel,
    base: str,
    k_dtype: str | None,
    v_dtype: str | None,
    state_dtype: str | None,
    notes: _Notes,
) -> Types:
    """A convolution stays in the activations' type even where K and V are quantised."""
    if state_dtype is not None and state_dtype not in PLAIN_DTYPES:
        sentence = f"state_dtype must be one of {', '.join(PLAIN_DTYPES)}"
        raise CacheInputError(("state_dtype",), "unknown_option", sentence)
    activation = next((name for name in (model.dtype, base) if name in PLAIN_DTYPES), ASSUMED_DTYPE)
    state = state_dtype or model.state_dtype or ASSUMED_STATE_DTYPE
    if any(layer.state for layer in model.layers):
        if activation != base:
            notes.assumptions.append(f"convolution columns in the activations' {activation}")
        if not (state_dtype or model.state_dtype) and any(
            layer.state.elements and not layer.state.as_activations for layer in model.layers if layer.state
        ):
            notes.assumptions.append(f"no state_dtype given or known: recurrent states in {state}")
    asked = None if state_dtype is None else DTYPES[state_dtype]
    return Types(DTYPES[k_dtype or base], DTYPES[v_dtype or base], DTYPES[activation], DTYPES[state], asked)


def _resolve_encoder(model: CacheModel, encoder_tokens: int | None, notes: _Notes) -> int:
    has_cross = any(layer.kind == CROSS for layer in model.layers)
    if encoder_tokens is not None:
        whole(encoder_tokens, "encoder_tokens", at_most=MAX_TOKENS)
        if not has_cross:
            notes.warnings.append("encoder_tokens: the model has no cross-attention")
        return encoder_tokens
    if not has_cross:
        return 0
    if model.encoder_tokens is None:
        sentence = "encoder_tokens is required: the model's cross-attention has no length of its own"
        raise CacheInputError(("encoder_tokens",), "missing_field", sentence)
    notes.assumptions.append(f"no encoder_tokens given: the model's {model.encoder_tokens:,}")
    return model.encoder_tokens


def _engine_name(engine: str) -> EngineName:
    for name in ENGINES:
        if name == engine:
            return name
    raise CacheInputError(("engine",), "unknown_option", f"engine must be one of {', '.join(ENGINES)}")


def _check_prefix(prefix: int, counts: tuple[int, ...]) -> None:
    if any(prefix > count for count in counts):
        sentence = f"shared_prefix_tokens = {prefix:,} is more than the {min(counts):,} tokens of a sequence"
        raise CacheInputError(("shared_prefix_tokens",), "out_of_range", sentence)


def _sizes(
    cache: Cache, ideal: Cache, counts: Sequence[int], batch: int, prefix: int
) -> tuple[CacheSize, ...]:
    unpaged = replace(cache, engine=replace(cache.engine, page=1))
    no_swa = replace(ideal, engine=replace(ideal.engine, name="no-swa"))

    def size(tokens: int) -> CacheSize:
        in_batch = cache.batch_bytes(tokens, batch, prefix)
        return CacheSize(
            tokens=tokens,
            per_sequence_bytes=cache.sequence_bytes(tokens),
            batch_bytes=in_batch,
            human=human_bytes(in_batch),
            page_waste_bytes=in_batch - unpaged.batch_bytes(tokens, batch, prefix),
            per_rank_bytes=cache.rank_bytes(tokens, batch, prefix),
            replication=cache.replication,
            bounds=Bounds(ideal.sequence_bytes(tokens), no_swa.sequence_bytes(tokens)),
        )

    return tuple(map(size, counts))


def _bytes_of(ideal: Cache, layer: Layer, count: int = 1) -> dict[str, Any]:
    """The fields of `LayerBytes`, of `count` such layers together."""
    return {
        "kind": layer.kind,
        "window": layer.window,
        "kv_heads": layer.kv_heads,
        "k_dim": layer.k_dim,
        "v_dim": layer.v_dim,
        "index_dim": layer.index_dim,
        "shared": layer.shared,
        "bytes_per_token": count * (ideal.row_bytes(layer) if layer.keeps_rows else 0),
        "fixed_bytes_per_sequence": count * ideal.fixed_bytes(layer),
    }


def _groups(ideal: Cache) -> tuple[LayerGroup, ...]:
    return tuple(
        LayerGroup(layers=count, **_bytes_of(ideal, layer, count))
        for layer, count in alike(ideal.layers).items()
    )


def _details(cache: Cache, ideal: Cache, counts: tuple[int, ...]) -> tuple[LayerDetail, ...]:
    alone = {layer: replace(cache, layers=(layer,)) for layer in alike(cache.layers)}
    sizes = {layer: tuple(one.sequence_bytes(count) for count in counts) for layer, one in alone.items()}
    return tuple(
        LayerDetail(index=index, sizes_bytes=sizes[layer], **_bytes_of(ideal, layer))
        for index, layer in enumerate(cache.layers)
    )


def _compare(model: CacheModel, ideal: Cache, notes: _Notes) -> Mapping[Arrangement, Rate]:
    """The same layers with K and V arranged otherwise; a model's own arrangement is left as it is."""
    types = ideal.types
    if types.k.name == LATENT_ONLY:
        types = replace(types, k=DTYPES["fp8_e4m3"], v=DTYPES["fp8_e4m3"])
        notes.assumptions.append(
            f"compare: {LATENT_ONLY} is a layout of mla alone; the others are in fp8_e4m3"
        )
    rates: dict[Arrangement, Rate] = {}
    for name, arrange in _ARRANGEMENTS.items():
        own = name == model.attention
        layers = [layer if own else arrange(layer) for layer in model.layers if layer.keeps_rows]
        cache = ideal if own else replace(ideal, layers=(), types=types)
        try:
            rates[name] = Rate(sum(cache.row_bytes(layer) for layer in layers))
        except CacheInputError as error:
            notes.warnings.append(f"compare.{name} left out: {error}")
    if model.attention not in ("gqa", "none"):
        notes.assumptions.append(
            f"compare.gqa: the model has no grouped K and V; computed with {_grouped(model.layers)} KV heads"
        )
    if model.attention not in ("mla", "none"):
        row = f"{ASSUMED_LATENT.rank} + {ASSUMED_LATENT.rope_dim}"
        notes.assumptions.append(f"compare.mla: the model has no latent; computed with {row}")
    return rates


def _grouped(layers: Sequence[Layer]) -> int:
    return min(ASSUMED_KV_HEADS, max((layer.heads for layer in layers), default=ASSUMED_KV_HEADS))


def _with_heads(layer: Layer, kv_heads: int) -> Layer:
    """K and V in so many heads, as wide as before; those of a latent layer as wide as when expanded."""
    k_dim, v_dim = (layer.latent.k_dim, layer.latent.v_dim) if layer.latent else (layer.k_dim, layer.v_dim)
    return replace(layer, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, latent=None)


def _latent(layer: Layer) -> Layer:
    return latent_layer(layer.heads, ASSUMED_LATENT, layer.index_dim)


_ARRANGEMENTS: Mapping[Arrangement, Callable[[Layer], Layer]] = {
    "mha": lambda layer: _with_heads(layer, layer.heads),
    "gqa": lambda layer: _with_heads(layer, _grouped([layer])),
    "mqa": lambda layer: _with_heads(layer, 1),
    "mla": _latent,
}


def _max_tokens(
    model: CacheModel,
    cache: Cache,
    batch: int,
    prefix: int,
    capacity: Capacity | None,
) -> MaxTokens | None:
    if capacity is None:
        return None
    longest = cache.most_tokens(capacity.kv_budget_bytes, batch, prefix)
    if model.max_tokens is None:
        return MaxTokens(longest, None)
    return MaxTokens(longest, model.max_tokens if longest is None else min(longest, model.max_tokens))


def _capacity(
    cache: Cache,
    sizes: tuple[CacheSize, ...],
    batch: int,
    prefix: int,
    budget: int | None,
    gpu: Gpu | None,
    notes: _Notes,
) -> Capacity | None:
    """Of a GPU, of a budget, or of a GPU of which no more than the budget may be used."""
    if budget is not None:
        whole(budget, "memory_budget_bytes", at_least=0, at_most=MAX_BYTES)
    if gpu is not None:
        terms = gpu.terms
        left = sum(term.bytes for term in terms)
        if left < 0:
            notes.warnings.append(
                f"gpu: {-left:,} bytes too few for the weights and the rest; nothing is left"
            )
        if budget is not None and budget < left:
            terms = (*terms, Term("above the memory budget", budget - left))
            left = budget
    elif budget is not None:
        left = budget
        terms = (Term("memory_budget", left),)
    else:
        return None
    left = max(0, left)
    return Capacity(
        kv_budget_bytes=left,
        max_sequences=tuple(cache.most_sequences(left, size.tokens, prefix) for size in sizes),
        fits=all(size.per_rank_bytes <= left for size in sizes),
        terms=terms,
        vllm=vllm_capacity(cache, [size.tokens for size in sizes], left)
        if cache.engine.name == "vllm"
        else None,
    )


def _warn(
    model: CacheModel,
    counts: tuple[int, ...],
    cache: Cache,
    options: EngineOptions,
    page_size: int | None,
    notes: _Notes,
) -> None:
    """What the numbers rest on, or leave out."""
    tell, engine = notes.warnings.append, cache.engine
    if model.max_tokens is not None and (over := sorted({n for n in counts if n > model.max_tokens})):
        named = ", ".join(f"{count:,}" for count in over[:3]) + (", …" if over[3:] else "")
        tell(f"{named} tokens are more than the model's maximum of {model.max_tokens:,}")
    windows = any(layer.window and not layer.shared for layer in model.layers)
    states = any(layer.state for layer in model.layers)
    types = (cache.types.k.name, cache.types.v.name)
    if engine.name == "vllm":
        if page_size is None:
            notes.assumptions.append(f"no page_size given: vLLM's pages of {engine.page} tokens")
        if windows and options.max_num_batched_tokens is None:
            tell(
                f"vllm: windows are reserved for max_num_batched_tokens = {engine.batched:,}, which is assumed"
            )
        if states:
            tell("vllm: aligning the pages of attention and of recurrent states may enlarge them")
    if engine.name == "llama.cpp" and windows and options.ubatch is None:
        tell(f"llama.cpp: windows are reserved for ubatch = {engine.ubatch:,}, which is assumed")
    if engine.name == "hf" and not set(types) <= set(PLAIN_DTYPES):
        tell("hf: transformers' quantised cache also keeps up to 128 recent tokens unquantised")
    if (
        engine.name == "hf"
        and states
        and cache.types.own_state is None
        and cache.types.state.name != "float32"
    ):
        tell("hf: transformers keeps recurrent states in float32, whatever the config says")
    if cache.tensor_parallel > 1 and any(
        layer.state and not layer.state.divides(cache.tensor_parallel) for layer in model.layers
    ):
        tell(
            "tensor_parallel: heads of recurrent states do not divide over the ranks; every rank keeps them whole"
        )
    if any(layer.latent for layer in model.layers) and types[0] != types[1]:
        tell("v_dtype: a latent row is one tensor, kept in k_dtype")
