"""What a model keeps, layer by layer.

A model is a list of layers, and every size is a sum over them. One layer, one token, one row:

    row bytes   = kv_heads * (k_dim * e_k + v_dim * e_v)        or, with multi-head latent attention,
                  (kv_lora_rank + qk_rope_head_dim) * e_k
    layer bytes = rows(tokens) * row bytes + state bytes

with e_k and e_v the bytes of an element of K and V. Rows are all tokens, or those of a window. A recurrent layer has
no rows but a state, whose size does not depend on the tokens.

Sources: Vaswani et al. 2017 (multi-head), Shazeer 2019 (multi-query, arXiv:1911.02150), Ainslie et al. 2023
(grouped-query, arXiv:2305.13245), DeepSeek-V2 2024 (latent, arXiv:2405.04434), DeepSeek-V3.2 2025 (indexer), Beltagy et
al. 2020 (windows, arXiv:2004.05150), Gu & Dao 2023 (Mamba, arXiv:2312.00752), Dao & Gu 2024 (Mamba-2,
arXiv:2405.21060), Yang et al. 2024 (gated DeltaNet, arXiv:2412.06464), Brandon et al. 2024 (cross-layer sharing,
arXiv:2405.12981).
"""

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from attention_core.kv_cache.errors import CacheInputError

AttentionKind = Literal["mha", "gqa", "mqa", "mla", "none"]

MAX_LAYERS = 1_000  # far above any model; a list of layers is held in memory
MAX_COUNT = 1_000_000_000  # of anything that is counted here: far above any model

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
CROSS, NONE = "cross_attention", "none"
LAYER_TYPES = (FULL, SLIDING, CHUNKED, NONE)  # what `Dims.layer_types` may say


@dataclass(frozen=True)
class State:
    """What a recurrent layer keeps for a sequence, however long it is.

        bytes = channels * (kernel - 1) * a + elements * s

    where `channels` go through a causal convolution of width `kernel` in the activations' dtype of a bytes, and
    `elements` are the recurrence itself, in the state's dtype of s bytes.

    Over tensor-parallel ranks it is divided if every count in `heads` divides; of the channels, `shared_channels`
    belong to a single group that every rank then copies. `as_activations` is set where the recurrence is in the
    activations' dtype too, unless another is asked for. `hf_columns` is what transformers keeps of a channel, where
    it is not `kernel`.
    """

    kind: str
    channels: int
    kernel: int
    elements: int
    heads: tuple[int, ...]
    shared_channels: int = 0
    as_activations: bool = False
    hf_columns: int | None = None

    def divides(self, ranks: int) -> bool:
        """Whether it can be divided over so many ranks."""
        return all(heads % ranks == 0 for heads in self.heads)

    @classmethod
    def mamba(cls, *, d_inner: int, d_state: int, kernel: int) -> "State":
        """Mamba-1: d_inner channels and d_inner * d_state elements."""
        return cls("mamba", d_inner, kernel, d_inner * d_state, (d_inner,))

    @classmethod
    def mamba2(
        cls, *, d_inner: int, heads: int, head_dim: int, d_state: int, groups: int, kernel: int
    ) -> "State":
        """Mamba-2: d_inner + 2 * groups * d_state channels and heads * head_dim * d_state elements."""
        of_groups = 2 * groups * d_state
        divided = (heads,) if groups == 1 else (heads, groups)
        shared = of_groups if groups == 1 else 0
        return cls("mamba2", d_inner + of_groups, kernel, heads * head_dim * d_state, divided, shared)

    @classmethod
    def gated_delta_net(
        cls, *, k_heads: int, k_dim: int, v_heads: int, v_dim: int, kernel: int, kind: str = "gated_delta_net"
    ) -> "State":
        """Gated DeltaNet: channels of queries, keys and values; v_heads * v_dim * k_dim elements."""
        channels = 2 * k_heads * k_dim + v_heads * v_dim
        return cls(kind, channels, kernel, v_heads * v_dim * k_dim, (k_heads, v_heads))


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: one row of `rank + rope_dim` elements stands for K and V of all heads.

    `k_dim` and `v_dim` are the widths of a head's key and value after expansion; they do not enter the row.
    """

    rank: int
    rope_dim: int
    k_dim: int
    v_dim: int


@dataclass(frozen=True)
class Layer:
    """What one layer keeps.

    kind       full_attention, sliding_attention, chunked_attention, cross_attention, none, or a state's kind
    heads      query heads
    kv_heads   heads of K and V; 0 where there are none
    k_dim      elements of one head's key, v_dim of its value
    window     tokens that a sliding or chunked layer looks back over; None for all
    latent     set for multi-head latent attention: kv_heads is 1, k_dim the row's width, v_dim 0
    index_dim  width of a sparse-attention indexer's key, kept beside the row
    shared     reads another layer's K and V and keeps none of its own
    state      of a recurrent layer, or of the recurrent half of a parallel hybrid
    hf_heads   heads to which transformers broadcasts K and V before it keeps them (Falcon's new decoder)
    hf_window  tokens that transformers keeps of a window, where it is not one fewer; 0 for all

    An encoder-decoder's decoder layer is two entries: its self-attention, and its cross_attention, whose rows are the
    encoder's tokens.
    """

    kind: str = FULL
    heads: int = 0
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int | None = None
    latent: Latent | None = None
    index_dim: int = 0
    shared: bool = False
    state: State | None = None
    hf_heads: int | None = None
    hf_window: int | None = None

    @property
    def keeps_rows(self) -> bool:
        """Whether each token adds something here, at least for a while."""
        return self.kv_heads > 0 and not self.shared and self.kind != CROSS

    @property
    def attends(self) -> bool:
        """Whether this is self-attention, with K and V of its own or another layer's."""
        return self.kv_heads > 0 and self.kind != CROSS


@dataclass(frozen=True)
class MlaDims:
    """Multi-head latent attention of `Dims`."""

    kv_lora_rank: int
    qk_rope_head_dim: int


@dataclass(frozen=True)
class Dims:
    """The sizes of a model whose layers have the same heads, from which its cache follows.

    `heads` counts query heads and `kv_heads` those of K and V; `head_dim` is the width of a key and, unless
    `v_head_dim` says otherwise, of a value. `hidden_size` does not enter the cache's size, and heads * head_dim need
    not equal it. With `mla` the row is the latent one. `window` alone means that every layer slides; `layer_types` says
    it layer by layer, "none" for a layer that keeps nothing.

    Raises CacheInputError for a count that is not a positive integer (booleans are not counts), for kv_heads that do
    not divide heads, for layer_types of another length, and for more than 1,000 layers.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    hidden_size: int | None = None
    mla: MlaDims | None = None
    window: int | None = None
    layer_types: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "head_dim"):
            whole(getattr(self, name), name)
        for name in ("v_head_dim", "hidden_size", "window"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), name)
        if self.mla is not None:
            whole(self.mla.kv_lora_rank, "mla", "kv_lora_rank")
            whole(self.mla.qk_rope_head_dim, "mla", "qk_rope_head_dim")
        if self.layers > MAX_LAYERS:
            raise CacheInputError(("layers",), "out_of_range", f"At most {MAX_LAYERS:,} layers")
        if self.heads % self.kv_heads:
            sentence = f"{self.kv_heads} KV heads do not divide {self.heads} heads"
            raise CacheInputError(("kv_heads",), "not_divisible", sentence)
        self._check_layer_types()

    def _check_layer_types(self) -> None:
        if self.layer_types is None:
            return
        if len(self.layer_types) != self.layers:
            sentence = f"{len(self.layer_types)} layer types for {self.layers} layers"
            raise CacheInputError(("layer_types",), "pattern_length", sentence)
        for index, kind in enumerate(self.layer_types):
            if kind not in LAYER_TYPES:
                sentence = f"A layer type is one of {', '.join(LAYER_TYPES)}"
                raise CacheInputError(("layer_types", index), "unknown_option", sentence)
            if kind in (SLIDING, CHUNKED) and self.window is None:
                raise CacheInputError(("window",), "missing_field", f"A {kind} layer needs a window")


@dataclass(frozen=True)
class CacheModel:
    """A model as far as its cache goes: its layers, and what else a report has to know.

    `dtype` is that of the weights and `max_tokens` the longest context, None where unknown. `encoder_tokens` is what
    the cross-attention holds unless a question says otherwise, `state_dtype` the type of recurrent states that the
    model asks for. `mtp_layers` are the multi-token-prediction layers that an engine may run as well. `assumptions`
    names every default that was taken in making this description, `warnings` what to be careful about.
    """

    layers: tuple[Layer, ...]
    name: str | None = None
    dtype: str | None = None
    max_tokens: int | None = None
    encoder_tokens: int | None = None
    state_dtype: str | None = None
    mtp_layers: tuple[Layer, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_dims(cls, dims: Dims) -> "CacheModel":
        """The model that `dims` describes."""
        assumptions: tuple[str, ...] = ()
        v_dim = dims.head_dim if dims.v_head_dim is None else dims.v_head_dim
        if dims.mla is not None:
            latent = Latent(dims.mla.kv_lora_rank, dims.mla.qk_rope_head_dim, dims.head_dim, v_dim)
            row = latent_layer(dims.heads, latent)
        else:
            row = Layer(heads=dims.heads, kv_heads=dims.kv_heads, k_dim=dims.head_dim, v_dim=v_dim)
        if dims.v_head_dim is None:
            assumptions = (f"v_head_dim not given: values are as wide as keys, {v_dim}",)
        alone = SLIDING if dims.window is not None else FULL
        kinds = (alone,) * dims.layers if dims.layer_types is None else dims.layer_types
        return cls(tuple(of_kind(row, kind, dims.window) for kind in kinds), assumptions=assumptions)

    @functools.cached_property
    def attention(self) -> AttentionKind:
        """mla with latent rows; mha where every query head has its own K and V, mqa where all share one, else gqa."""
        attending = [layer for layer in self.layers if layer.attends]
        if not attending:
            return "none"
        if any(layer.latent for layer in attending):
            return "mla"
        if all(layer.kv_heads == layer.heads for layer in attending):
            return "mha"
        return "mqa" if all(layer.kv_heads == 1 for layer in attending) else "gqa"


def latent_layer(heads: int, latent: Latent, index_dim: int = 0) -> Layer:
    """A layer of multi-head latent attention that keeps every token."""
    return Layer(
        heads=heads, kv_heads=1, k_dim=latent.rank + latent.rope_dim, latent=latent, index_dim=index_dim
    )


def of_kind(row: Layer, kind: str, window: int | None) -> Layer:
    """The layer with the heads and widths of `row`, as full, sliding or chunked attention, or keeping nothing."""
    if kind == NONE:
        return Layer(NONE, heads=row.heads)
    return replace(row, kind=kind, window=None if kind == FULL else window)


def whole(value: object, *place: str | int, at_least: int = 1, at_most: int = MAX_COUNT) -> int:
    """`value` itself, if it is a whole number from `at_least` to `at_most`; a bool is not a number here.

    Raises CacheInputError at `place`.
    """
    name = next(part for part in reversed(place) if isinstance(part, str))
    if isinstance(value, bool) or not isinstance(value, int):
        raise CacheInputError(place, "wrong_type", f"{name} must be a whole number")
    if not at_least <= value <= at_most:
        sentence = f"{name} must be {at_least} to {at_most:,}"
        raise CacheInputError(place, "out_of_range", sentence)
    return value


def alike(layers: tuple[Layer, ...]) -> Mapping[Layer, int]:
    """How many layers there are of each kind, in order of first appearance: a model of a thousand layers has few."""
    return MappingProxyType(Counter(layers))
