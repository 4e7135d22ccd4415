"""What can be done to attention maps: dropping the sink, words instead of tokens, aggregation, the largest weights.

Every function takes weights whose last two axes are [query, key] and gives new tensors; nothing is written in place.
The order that makes sense is the order of this module: per row first (`drop_first_token`), then units
(`merge_words`), then across heads and layers (`Aggregation`), then what is shown of a row (`largest`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attention_core.errors import ShapeError

Method = Literal["mean", "max", "rollout"]

EMPTY = 1e-6  # a row with less than this left after the sink is gone says nothing


@dataclass(frozen=True, slots=True)
class Dropped:
    """Weights without the first token, and which rows had nothing else: `emptied` is [..., query]."""

    weights: Tensor
    emptied: Tensor


def drop_first_token(
    weights: Tensor, queries: Sequence[int], *, emptied: Literal["zeros", "identity"] = "zeros"
) -> Dropped:
    """Remove the attention sink's column and renormalise.

        A'[i,j] = A[i,j] / (1 - A[i,0])    for i >= 1, j >= 1,    A'[i,0] = 0

    where `weights` is [..., query, key], probabilities, and `queries` are the rows' own token indices. A row with less
    than 1e-6 left is marked in `emptied` and becomes zeros, or, as a rollout needs it, all its own token's. The row of
    token 0, which can only look at itself, stays.

    Raises ShapeError when `queries` does not name every row.
    """
    if weights.ndim < 2 or weights.shape[-2] != len(queries):
        raise ShapeError("queries", expected=f"one per row of {tuple(weights.shape)}", got=len(queries))
    at = torch.tensor(list(queries), device=weights.device)  # [query]
    rest = weights.clone()
    rest[..., 0] = 0
    # The sum of what is left equals 1 - A[i,0], without that subtraction's loss of digits
    left = rest.sum(-1, keepdim=True)  # [..., query, 1]
    nothing = (left < EMPTY) & (at[:, None] > 0)
    own = torch.zeros_like(rest[0] if rest.ndim > 2 else rest)  # [query, key]
    if emptied == "identity":
        own = (torch.arange(weights.shape[-1], device=at.device) == at[:, None]).to(weights.dtype)
    rest = torch.where(nothing, own, rest / left.clamp_min(EMPTY))
    return Dropped(torch.where(at[:, None] == 0, weights, rest), nothing.squeeze(-1))


def merge_words(
    weights: Tensor,
    words: Sequence[Sequence[int]],
    queries: Sequence[int] | None = None,
    *,
    rows: Sequence[int] | None = None,
) -> Tensor:
    """Attention between words.

        W[u,v] = mean over tokens i of u of sum over tokens j of v of A[i,j]

    where `weights` is [..., query, key] over all tokens and `words` lists each word's token indices; the result is
    [..., word, word]. Sum TO a word, mean FROM a word: rows that sum to 1 still do. Where a map comes in parts,
    `queries` names the rows of one part; the parts' results add up to the whole map's, and a word without rows is
    zeros. `rows` names the words whose rows are wanted; None means all.

    Raises ShapeError unless the words share out all tokens, and `queries` names every row.
    Source: Clark et al. 2019, "What Does BERT Look At?", section 4.1.
    """
    tokens = weights.shape[-1]
    queries = range(tokens) if queries is None else queries
    if weights.ndim < 2 or weights.shape[-2] != len(queries):
        raise ShapeError(
            "weights [..., query, key]", expected=f"{len(queries)} rows", got=tuple(weights.shape)
        )
    if sorted(token for word in words for token in word) != list(range(tokens)):
        raise ShapeError(
            "words", expected=f"each of {tokens} tokens in exactly one word", got=list(map(list, words))
        )
    belongs = torch.zeros(tokens, len(words), dtype=weights.dtype, device=weights.device)  # [token, word]
    for index, word in enumerate(words):
        belongs[list(word), index] = 1
    share = (belongs / belongs.sum(0))[list(queries)]  # [query, word], columns of a whole map sum to 1
    if rows is not None:
        share = share[:, list(rows)]
    return share.T @ (weights @ belongs)


class Aggregation:
    """One map out of many heads and layers, layer by layer.

        mean      A[i,j] = mean over layers and heads
        max       A[i,j] = max over layers and heads                         (rows may exceed 1)
        rollout   R = B_L ... B_1,  B_l = 0.5 * mean over heads of A_l + 0.5 * I      (rows sum to 1)

    Layers come in ascending order, each as [head, query, key]; rollout needs square maps. Only one map is kept.
    Source of rollout: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 4.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self.heads = 0
        self._map: Tensor | None = None

    def add(self, weights: Tensor) -> None:
        """Take the next layer's maps, [head, query, key].

        Raises ShapeError for maps of another shape than before.
        """
        if weights.ndim != 3 or (self._map is not None and weights.shape[1:] != self._map.shape):
            expected = "[head, query, key]" if self._map is None else f"[head, *{tuple(self._map.shape)}]"
            raise ShapeError("weights", expected=expected, got=tuple(weights.shape))
        self.heads += len(weights)
        match self.method:
            case "mean":
                self._map = weights.sum(0) if self._map is None else self._map + weights.sum(0)
            case "max":
                layer = weights.amax(0)
                self._map = layer if self._map is None else torch.maximum(self._map, layer)
            case "rollout":
                step = _residual(weights)
                self._map = step if self._map is None else step @ self._map

    def finish(self) -> Tensor:
        """The aggregated map, [query, key]. Raises ShapeError when no layer came."""
        if self._map is None:
            raise ShapeError("layers", expected="at least one", got="none")
        return self._map / self.heads if self.method == "mean" else self._map


def _residual(weights: Tensor) -> Tensor:
    tokens = weights.shape[-1]
    if weights.shape[-2] != tokens:
        raise ShapeError("weights of a rollout", expected="square maps", got=tuple(weights.shape))
    identity = torch.eye(tokens, dtype=weights.dtype, device=weights.device)  # [query, key]
    return 0.5 * weights.mean(0) + 0.5 * identity


@dataclass(frozen=True, slots=True)
class Largest:
    """Each row's largest weights and their keys, [..., query, k], descending."""

    weights: Tensor
    keys: Tensor


def largest(weights: Tensor, k: int) -> Largest:
    """The k largest weights of every row of [..., query, key], all of a row where it has fewer; ties by the lower key.

    Raises ShapeError for k below 1.
    """
    if k < 1:
        raise ShapeError("k", expected="at least 1", got=k)
    if weights.ndim > 2:  # a map at a time: sorting takes several times what it sorts
        each = [largest(one, k) for one in weights]
        return Largest(torch.stack([one.weights for one in each]), torch.stack([one.keys for one in each]))
    # stable: of equal weights the lower key comes first
    order = weights.sort(stable=True, dim=-1, descending=True)
    return Largest(order.values[..., :k].clone(), order.indices[..., :k].clone())
