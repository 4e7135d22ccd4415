"""The whole answer about a model's cache: rates, sizes, and other arrangements of K and V beside it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from attention_core import _checks as check
from attention_core.kv_cache.layers import BYTES_PER_ELEMENT, AttentionKind, CacheModel, UnknownNameError

Notes = tuple[str, ...]  # sentences for a reader
DtypeSource = Literal["request", "model", "assumed"]

ASSUMED_DTYPE = "bfloat16"
ASSUMED_GQA_KV_HEADS = 8


@dataclass(frozen=True)
class CacheSize:
    """The cache after `tokens` tokens, of a sequence and of the batch; `human` renders the batch's bytes."""

    tokens: int
    per_sequence_bytes: int
    batch_bytes: int
    human: str


@dataclass(frozen=True)
class LayerGroup:
    """`layers` layers that are alike and their bytes together; `window` is None where every token is kept."""

    kind: str
    layers: int
    window: int | None
    kv_heads: int
    k_dim: int
    v_dim: int
    bytes_per_token: int


@dataclass(frozen=True)
class Rate:
    """Bytes that one more token takes in all layers."""

    bytes_per_token: int


@dataclass(frozen=True)
class CacheReport:
    """How much memory a model's KV cache takes, and why.

    bytes_per_token                growth at the first token, all layers
    bytes_per_token_beyond_window  growth once every window is full; the same where no layer has a window
    fixed_bytes_per_sequence       what does not depend on the tokens; 0 where all layers are attention
    sizes                          one entry per asked number of tokens, in the order asked
    compare                        the same layers, widths and dtypes with K and V arranged as mha, gqa, mqa
    assumptions, warnings          every default that was taken; what to be careful about
    formula                        `bytes_per_token` spelt out in this model's numbers

    `dtype` is the type asked for or found; `k_dtype` and `v_dtype` are what K and V are kept in.
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
    compare: Mapping[AttentionKind, Rate]
    assumptions: Notes
    warnings: Notes
    formula: str


def kv_cache(
    model: CacheModel,
    *,
    tokens: int | Sequence[int] | None = None,
    dtype: str = "auto",
    k_dtype: str | None = None,
    v_dtype: str | None = None,
    batch: int = 1,
) -> CacheReport:
    """The size of a model's KV cache.

        bytes = batch * Σ_layers tokens * kv_heads * (k_dim * e_k + v_dim * e_v)

    with e_k and e_v the bytes of an element. `tokens` is one number or several; None means 1 and the model's
    longest context. `dtype` "auto" is the model's own, or bfloat16 where the model has none, which the report
    states; `k_dtype` and `v_dtype` override it for K and V.

    Llama 2 7B in float16: 32 layers × 32 KV heads × (128 + 128) × 2 bytes = 524,288 bytes a token, and 2 GiB
    at 4,096 tokens.

    Raises ShapeError for tokens or batch below 1 or no tokens at all; UnknownNameError, whose `what` is the
    argument, for a dtype that is not in `BYTES_PER_ELEMENT`.
    """
    check.positive_int("batch", batch)
    base, source, dtype_assumptions = _resolve_dtype(model, dtype, needed=k_dtype is None or v_dtype is None)
    k = base if k_dtype is None else k_dtype
    v = base if v_dtype is None else v_dtype
    for what, name in (("dtype", base), ("k_dtype", k), ("v_dtype", v)):
        if name not in BYTES_PER_ELEMENT:
            raise UnknownNameError(what, name, BYTES_PER_ELEMENT)
    rate = model.cache_bytes(1, k, v)
    counts, token_assumptions = _resolve_tokens(model, tokens)
    compare, compare_assumptions = _compare(model, k, v)
    return CacheReport(
        model=model.name,
        attention=model.attention,
        dtype=base,
        dtype_source=source,
        k_dtype=k,
        v_dtype=v,
        bytes_per_token=rate,
        bytes_per_token_beyond_window=rate,
        fixed_bytes_per_sequence=0,
        sizes=tuple(_size(model, count, k, v, batch) for count in counts),
        groups=_groups(model, k, v),
        compare=compare,
        assumptions=(*model.assumptions, *dtype_assumptions, *token_assumptions, *compare_assumptions),
        warnings=_warnings(model, counts),
        formula=_formula(model, k, v),
    )


def human_bytes(size: int) -> str:
    """A size in units of powers of 1024, to at most two decimals: 2147483648 is "2 GiB", 1536 "1.5 KiB"."""
    power, rounded = 0, Fraction(size)
    for larger in range(1, 7):
        scaled = round(Fraction(size, 1024**larger), 2)
        if scaled < 1:
            break
        power, rounded = larger, scaled
    whole, hundredths = divmod(int(rounded * 100), 100)
    decimals = f".{hundredths:02d}".rstrip("0").rstrip(".")
    return f"{whole}{decimals} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[power]}"


def _resolve_dtype(model: CacheModel, dtype: str, *, needed: bool) -> tuple[str, DtypeSource, Notes]:
    if dtype != "auto":
        return dtype, "request", ()
    if model.dtype is not None:
        return model.dtype, "model", ()
    assumption = f"no dtype given or known: {ASSUMED_DTYPE}"
    return ASSUMED_DTYPE, "assumed", (assumption,) if needed else ()


def _resolve_tokens(model: CacheModel, tokens: int | Sequence[int] | None) -> tuple[tuple[int, ...], Notes]:
    if tokens is None:
        if model.max_tokens is None:
            return (1,), ("the model's longest context is not known: sizes for 1 token only",)
        return (1, model.max_tokens), ()
    counts = tuple(tokens) if isinstance(tokens, Sequence) else (tokens,)
    check.positive_int("number of tokens entries", len(counts))
    return tuple(check.positive_int("tokens", count) for count in counts), ()


def _size(model: CacheModel, tokens: int, k_dtype: str, v_dtype: str, batch: int) -> CacheSize:
    per_sequence = model.cache_bytes(tokens, k_dtype, v_dtype)
    return CacheSize(tokens, per_sequence, batch * per_sequence, human_bytes(batch * per_sequence))


def _groups(model: CacheModel, k_dtype: str, v_dtype: str) -> tuple[LayerGroup, ...]:
    return tuple(
        LayerGroup(
            kind=layer.kind,
            layers=count,
            window=None,
            kv_heads=layer.kv_heads,
            k_dim=layer.k_dim,
            v_dim=layer.v_dim,
            bytes_per_token=count * layer.row_bytes(k_dtype, v_dtype),
        )
        for layer, count in Counter(model.layers).items()
    )


def _compare(model: CacheModel, k_dtype: str, v_dtype: str) -> tuple[Mapping[AttentionKind, Rate], Notes]:
    def rate(kv_heads: int) -> Rate:
        layers = tuple(replace(layer, kv_heads=kv_heads) for layer in model.layers)
        return Rate(replace(model, layers=layers).cache_bytes(1, k_dtype, v_dtype))

    assumptions: Notes = ()
    if model.attention == "gqa":
        grouped = Rate(model.cache_bytes(1, k_dtype, v_dtype))
    else:
        kv_heads = min(ASSUMED_GQA_KV_HEADS, model.heads)
        grouped = rate(kv_heads)
        assumptions = (f"compare.gqa: the model has no grouped K and V; computed with {kv_heads} KV heads",)
    return {"mha": rate(model.heads), "gqa": grouped, "mqa": rate(1)}, assumptions


def _warnings(model: CacheModel, counts: tuple[int, ...]) -> Notes:
    if model.max_tokens is None:
        return ()
    limit = model.max_tokens
    return tuple(f"{n:,} tokens are more than the model's maximum of {limit:,}" for n in counts if n > limit)


def _formula(model: CacheModel, k_dtype: str, v_dtype: str) -> str:
    def counted(number: int | Fraction, unit: str) -> str:
        return f"{number} {unit}" if number == 1 else f"{number} {unit}s"

    def per_element(dtype: str) -> str:
        return counted(BYTES_PER_ELEMENT[dtype], "byte")

    def term(group: LayerGroup) -> str:
        if k_dtype == v_dtype:
            row = f"({group.k_dim} + {group.v_dim}) × {per_element(k_dtype)}"
        else:
            row = f"({group.k_dim} × {per_element(k_dtype)} + {group.v_dim} × {per_element(v_dtype)})"
        return f"{counted(group.layers, 'layer')} × {counted(group.kv_heads, 'KV head')} × {row}"

    terms = " + ".join(term(group) for group in _groups(model, k_dtype, v_dtype))
    return f"{terms} = {model.cache_bytes(1, k_dtype, v_dtype):,} bytes per token"
