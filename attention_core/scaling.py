"""Why the dot products are divided by √d: the experiment.

For q and k with independent components of mean 0 and variance 1, q·k has variance d. Large dot products push
softmax into regions where it has extremely small gradients.

Source: Vaswani et al. 2017, section 3.2.1 and footnote 4 (arXiv:1706.03762).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_core import _checks as check
from attention_core.attention import softmax

_CHUNK_NUMBERS = 2**20  # random numbers held at once: 4 MiB, which stays in the processor's cache


@dataclass(frozen=True)
class ScalingRow:
    """What one width d does to softmax(q·k), called unscaled, and to softmax(q·k/√d), called scaled.

    spread          standard deviation of the raw dot products; theory: √d
    top_weight_*    each query's largest weight, mean over the queries
    jacobian_norm_* Frobenius norm of softmax's Jacobian, mean over the queries: gradient that gets through
    """

    d: int
    spread: float
    top_weight_unscaled: float
    top_weight_scaled: float
    jacobian_norm_unscaled: float
    jacobian_norm_scaled: float


def scaling_experiment(
    dims: Sequence[int] = (16, 64, 256, 1024), queries: int = 10_000, keys: int = 64, seed: int = 0
) -> tuple[ScalingRow, ...]:
    """Softmax with and without division by √d, for random queries, each with random keys of its own.

        q, k_1 … k_keys ~ N(0, I_d),   s_j = q·k_j,   p = softmax(s) and softmax(s / √d)

    One row per entry of `dims`. Each d starts anew from the seed, so that a row does not depend on the other
    rows, and the same seed gives the same numbers. Vectors are drawn a few queries at a time, in float32, so
    that memory holds the dot products and little else.

    Raises ShapeError for counts below 1.
    Source: Vaswani et al. 2017, section 3.2.1, footnote 4.
    """
    for d in dims:
        check.positive_int("dims", d)
    check.positive_int("queries", queries)
    check.positive_int("keys", keys)
    return tuple(_row(d, _random_dot_products(d, queries, keys, seed)) for d in dims)


def softmax_jacobian_norm(p: Tensor) -> Tensor:
    """Frobenius norm of softmax's Jacobian, from softmax's output alone.

        J = diag(p) - p pᵀ,   ‖J‖² = Σᵢ pᵢ² ((1 - pᵢ)² + Σ_{j≠i} pⱼ²)

    where p is [..., key], probabilities that sum to 1 over the last axis, and the answer is [...]. It is 0
    for a one-hot p, where no gradient passes, and √(n - 1) / n for n equal weights.

    Raises ShapeError for an integer dtype or no keys.
    """
    check.floating("p", p)
    square = p.square()
    others = square.sum(-1, keepdim=True) - square
    return (square * ((1 - p).square() + others)).sum(-1).sqrt()


def _random_dot_products(d: int, queries: int, keys: int, seed: int) -> Tensor:
    """Dot products of random vectors, [query, key], float64."""
    generator = torch.Generator().manual_seed(seed)
    chunk = min(queries, max(1, _CHUNK_NUMBERS // (keys * d)))
    # Refilled: fresh memory costs more than the draw
    q, k = (
        torch.empty(chunk, 1, d),
        torch.empty(chunk, keys, d),
    )
    parts = []
    for start in range(0, queries, chunk):
        size = min(chunk, queries - start)
        q.normal_(generator=generator)
        k.normal_(generator=generator)
        parts.append((k[:size] @ q[:size].mT).squeeze(-1).double())
    return torch.cat(parts)


def _row(d: int, scores: Tensor) -> ScalingRow:
    unscaled, scaled = softmax(scores), softmax(scores / math.sqrt(d))  # [query, key]
    return ScalingRow(
        d=d,
        spread=scores.std(correction=0).item(),
        top_weight_unscaled=unscaled.amax(-1).mean().item(),
        top_weight_scaled=scaled.amax(-1).mean().item(),
        jacobian_norm_unscaled=softmax_jacobian_norm(unscaled).mean().item(),
        jacobian_norm_scaled=softmax_jacobian_norm(scaled).mean().item(),
    )
