"""What a model keeps per layer, and its bytes.

A model is a list of layers, and every size is a sum over them. Sizes are integers in bytes. Element sizes are
fractions, because block-quantised types do not take a whole number of bytes per element.

    row bytes   = kv_heads * (k_dim * e_k + v_dim * e_v)        one token in one layer
    layer bytes = rows(tokens) * row bytes

with e_k and e_v the bytes of one element of K and V. Source: Vaswani et al. 2017 (multi-head), Shazeer 2019
(multi-query, arXiv:1911.02150), Ainslie et al. 2023 (grouped-query, arXiv:2305.13245).
"""

import difflib
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from attention_core import _checks as check
from attention_core.errors import ShapeError

AttentionKind = Literal["mha", "gqa", "mqa"]

MAX_LAYERS = 1_000  # far above any model; a list of layers is held in memory

BYTES_PER_ELEMENT: Mapping[str, Fraction] = MappingProxyType(
    {
        "float32": Fraction(4),
        "float16": Fraction(2),
        "bfloat16": Fraction(2),
        "fp8_e4m3": Fraction(1),
        "fp8_e5m2": Fraction(1),
        "int8": Fraction(1),
    }
)


class UnknownNameError(ValueError):
    """A name of a dtype or a model that is not in the list; `close` holds the names that resemble it."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        by_lower = {candidate.lower(): candidate for candidate in known}
        self.what, self.name = what, name
        self.close = tuple(
            by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, n=5)
        )
        hint = f"; close names: {', '.join(self.close)}" if self.close else ""
        super().__init__(f"{what}: unknown name {name!r}{hint}")


def head_bytes(width: int, dtype: str) -> int:
    """Bytes of one head's key (or value) of `width` elements for one token.

    Raises UnknownNameError for an unknown dtype, ShapeError where the width does not fill whole bytes.
    """
    if dtype not in BYTES_PER_ELEMENT:
        raise UnknownNameError("dtype", dtype, BYTES_PER_ELEMENT)
    size = width * BYTES_PER_ELEMENT[dtype]
    if size.denominator != 1:
        raise ShapeError(
            "head width", expected=f"whole bytes in {dtype}", got=f"{width} elements = {size} bytes"
        )
    return size.numerator


@dataclass(frozen=True)
class Layer:
    """What one layer caches per token: K and V of `kv_heads` heads, `k_dim` and `v_dim` elements wide."""

    kv_heads: int
    k_dim: int
    v_dim: int
    kind: str = "full_attention"

    def rows(self, tokens: int) -> int:
        """Rows kept after `tokens` tokens: full attention forgets none."""
        return tokens

    def row_bytes(self, k_dtype: str, v_dtype: str) -> int:
        """Bytes of one row: kv_heads * (k_dim * e_k + v_dim * e_v)."""
        return self.kv_heads * (head_bytes(self.k_dim, k_dtype) + head_bytes(self.v_dim, v_dtype))


@dataclass(frozen=True)
class Dims:
    """The sizes of a model whose layers are all alike, from which its cache follows.

    `heads` counts query heads and `kv_heads` those of K and V; `head_dim` is the width of a key and, unless
    `v_head_dim` says otherwise, of a value. `hidden_size` does not enter the cache's size, and
    heads * head_dim need not equal it.

    Raises ShapeError, whose `what` is the field, for a count that is not a positive integer (booleans are not
    counts), for kv_heads that do not divide heads, and for more than 1,000 layers.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    hidden_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "head_dim"):
            check.positive_int(name, getattr(self, name))
        for name in ("v_head_dim", "hidden_size"):
            if getattr(self, name) is not None:
                check.positive_int(name, getattr(self, name))
        check.divides("kv_heads", self.kv_heads, "heads", self.heads)
        if self.layers > MAX_LAYERS:
            raise ShapeError("layers", expected=f"at most {MAX_LAYERS:,}", got=self.layers)


@dataclass(frozen=True)
class CacheModel:
    """A model as far as its cache goes: its layers, and what else a report has to know.

    `heads` counts query heads, `dtype` is that of the weights and `max_tokens` the longest context, None
    where unknown. `assumptions` names every default that was taken in making this description.
    """

    layers: tuple[Layer, ...]
    heads: int
    name: str | None = None
    dtype: str | None = None
    max_tokens: int | None = None
    assumptions: tuple[str, ...] = ()

    @classmethod
    def from_dims(cls, dims: Dims) -> "CacheModel":
        """The model that `dims` describes: `dims.layers` equal layers of full attention."""
        v_dim, assumptions = dims.v_head_dim, tuple[str, ...]()
        if v_dim is None:
            v_dim = dims.head_dim
            assumptions = (f"v_head_dim not given: values are as wide as keys, {v_dim}",)
        layer = Layer(dims.kv_heads, dims.head_dim, v_dim)
        return cls((layer,) * dims.layers, dims.heads, assumptions=assumptions)

    @property
    def attention(self) -> AttentionKind:
        """mha where every query head has its own K and V, mqa where all share one, gqa in between."""
        kv_heads = {layer.kv_heads for layer in self.layers}
        if kv_heads == {self.heads}:
            return "mha"
        return "mqa" if kv_heads == {1} else "gqa"

    def cache_bytes(self, tokens: int, k_dtype: str, v_dtype: str) -> int:
        """Bytes of one sequence of `tokens` tokens: Σ over layers of rows * row bytes."""
        return sum(
            count * layer.rows(tokens) * layer.row_bytes(k_dtype, v_dtype)
            for layer, count in self._alike.items()
        )

    @functools.cached_property
    def _alike(self) -> Counter[Layer]:
        """How many layers there are of each kind: a model of a thousand layers has few."""
        return Counter(self.layers)
