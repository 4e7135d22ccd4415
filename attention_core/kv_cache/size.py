"""Bytes of a cache: of one sequence, of a batch, of one tensor-parallel rank; and what fits into a budget."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from attention_core.kv_cache.dtypes import DTYPES, LATENT_ONLY, Dtype, index_bytes, latent_bytes
from attention_core.kv_cache.engines import Engine
from attention_core.kv_cache.errors import CacheInputError
from attention_core.kv_cache.layers import CROSS, Layer, State, alike

UNBOUNDED_TOKENS = 2**62  # a cache that fits at this length does not grow


@dataclass(frozen=True)
class Types:
    """In what K, V, a convolution's columns and a recurrence's state are kept; `own_state` if it was asked for."""

    k: Dtype
    v: Dtype
    activation: Dtype
    state: Dtype
    own_state: Dtype | None = None

    def of_state(self, state: State) -> Dtype:
        """The type of a state's recurrence."""
        return self.own_state or (self.activation if state.as_activations else self.state)


@dataclass(frozen=True)
class Cache:
    """Layers, the types they are kept in, and the engine that keeps them."""

    layers: tuple[Layer, ...]
    types: Types
    engine: Engine
    encoder_tokens: int = 0
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        _ = self.parts  # what cannot be stored so is told at once

    def sequence_bytes(self, tokens: int) -> int:
        """One sequence alone: Σ over layers of rows * row bytes + state bytes; all ranks counted once."""
        return self.batch_bytes(tokens)

    def batch_bytes(self, tokens: int, batch: int = 1, prefix: int = 0) -> int:
        """`batch` sequences that share their first `prefix` tokens; all ranks counted once."""
        return sum(
            part.count * (self._rows(part.layer, tokens, batch, prefix) * part.row + batch * part.state)
            for part in self.parts
        )

    def rank_bytes(self, tokens: int, batch: int = 1, prefix: int = 0) -> int:
        """One tensor-parallel rank's part of the batch."""
        return sum(
            part.count
            * (self._rows(part.layer, tokens, batch, prefix) * part.rank_row + batch * part.rank_state)
            for part in self.parts
        )

    @property
    def replication(self) -> int:
        """How many ranks keep the same bytes, where it is most."""
        return max((part.replication for part in self.parts), default=1)

    def row_bytes(self, layer: Layer) -> int:
        """One token in one layer that keeps rows of its own; 0 in any other."""
        if layer.shared or not layer.kv_heads:
            return 0
        return self._row(layer, self.engine.heads(layer))

    def state_bytes(self, layer: Layer) -> int:
        """A sequence's recurrent state in one layer: channels * columns * a + elements * s."""
        return self._state(layer.state, 1) if layer.state else 0

    def fixed_bytes(self, layer: Layer) -> int:
        """What a sequence takes in one layer however long it is: its state, and its cross-attention's rows."""
        cross = self.engine.rows(layer, 1, self.encoder_tokens) if layer.kind == CROSS else 0
        return self.state_bytes(layer) + cross * self.row_bytes(layer)

    def most_tokens(self, budget: int, batch: int = 1, prefix: int = 0) -> int | None:
        """The longest sequences whose batch fits into `budget` bytes of a rank; 0 if none, None if any.

        The size never falls with the tokens, so bisection on integers is exact.
        """
        return _largest(
            lambda tokens: self.rank_bytes(tokens, batch, prefix) <= budget,
            low=max(1, prefix),
            high=max(UNBOUNDED_TOKENS, 2 * budget),
        )

    def most_sequences(self, budget: int, tokens: int, prefix: int = 0) -> int | None:
        """The largest batch of `tokens` tokens each that fits into `budget` bytes of a rank; None if any does.

        Linear in the batch: what is shared is there once, the rest once for each.
        """
        one = self.rank_bytes(tokens, 1, prefix)
        each = self.rank_bytes(tokens, 2, prefix) - one
        if one > budget:
            return 0
        return 1 + (budget - one) // each if each else None

    def _rows(self, layer: Layer, tokens: int, batch: int, prefix: int) -> int:
        """Rows of a whole batch: a shared prefix is kept once, in whole pages, as far as the window still sees it."""
        rows = self.engine.rows(layer, tokens, self.encoder_tokens)
        if not prefix or layer.kind == CROSS:
            return batch * rows
        whole = prefix // self.engine.page * self.engine.page
        shared = max(0, whole - (tokens - self.engine.live(layer, tokens)))
        return shared + batch * (rows - shared)

    @functools.cached_property
    def parts(self) -> tuple["Part", ...]:
        """Alike layers with their bytes."""
        return tuple(self._part(layer, count) for layer, count in alike(self.layers).items())

    def _part(self, layer: Layer, count: int) -> "Part":
        ranks = self.tensor_parallel
        row, rank_row, copies = self.row_bytes(layer), 0, 1
        if row and layer.latent:
            rank_row, copies = row, ranks
        elif row:
            heads, copies = _over_ranks(self.engine.heads(layer), ranks)
            rank_row = self._row(layer, heads)
        state = rank_state = 0
        if layer.state:
            state, rank_state = self._state(layer.state, 1), self._state(layer.state, ranks)
            if not layer.state.divides(ranks) or layer.state.shared_channels:
                copies = max(copies, ranks)
        if layer.index_dim and row:
            copies = ranks
        return Part(layer, count, row, rank_row, state, rank_state, copies)

    def _row(self, layer: Layer, heads: int) -> int:
        k, v = self.types.k, self.types.v
        try:
            if layer.latent:
                row = latent_bytes(layer.latent.rank, layer.latent.rope_dim, k)
            else:
                row = heads * self._head(k, layer.k_dim)
            row += index_bytes(layer.index_dim, k) if layer.index_dim else 0
        except CacheInputError as error:
            raise error.under("k_dtype") from None
        try:
            return row + heads * self._head(v, layer.v_dim) if layer.v_dim else row
        except CacheInputError as error:
            raise error.under("v_dtype") from None

    def _head(self, dtype: Dtype, width: int) -> int:
        if dtype.name == LATENT_ONLY:
            sentence = (
                f"{LATENT_ONLY} is a layout of multi-head latent attention, which these layers do not have"
            )
            raise CacheInputError((), "unsuitable_dtype", sentence)
        return dtype.row_bytes(width)

    def _state(self, state: State, ranks: int) -> int:
        activation = DTYPES["float32"] if self.engine.name == "llama.cpp" else self.types.activation
        channels, elements = state.channels, state.elements
        if ranks > 1 and state.divides(ranks):
            channels = (channels - state.shared_channels) // ranks + state.shared_channels
            elements //= ranks
        convolution = channels * self.engine.columns(state)
        recurrence = self.types.of_state(state)
        return activation.row_bytes(convolution) + recurrence.row_bytes(elements)


@dataclass(frozen=True)
class Part:
    """`count` layers that are alike: bytes of a row and of the state, whole and on one rank."""

    layer: Layer
    count: int
    row: int
    rank_row: int
    state: int
    rank_state: int
    replication: int


def _over_ranks(kv_heads: int, ranks: int) -> tuple[int, int]:
    """KV heads on each rank, and how many ranks keep the same one. Raises CacheInputError."""
    if kv_heads % ranks == 0:
        return kv_heads // ranks, 1
    if ranks % kv_heads == 0:
        return 1, ranks // kv_heads
    sentence = (
        f"{kv_heads} KV heads can be neither divided over {ranks} ranks nor copied to whole groups of them"
    )
    raise CacheInputError(("tensor_parallel",), "not_divisible", sentence)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest number from `low` for which `fits` holds, which holds for all below it; 0 if none, None if `high`."""
    if not fits(low):
        return 0
    if fits(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
