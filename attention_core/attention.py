"""Scaled dot-product attention, alone and in many heads.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2 (arXiv:1706.03762).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attention_core import _checks as check
from attention_core.errors import ShapeError


class ScoreError(ValueError):
    """A row of scores has no finite largest value, so no probabilities follow from it."""


@dataclass(frozen=True, eq=False)
class Attention:
    """What an attention layer computed, with the evidence for it.

    scores  [..., query, key]  before mask and softmax; for dot products already divided by √d
    weights [..., query, key]  probabilities, rows sum to 1, exactly 0 where masked
    output  [..., query, d_v]  the weighted sums of the values
    """

    scores: Tensor
    weights: Tensor
    output: Tensor


def dot_product(a: Tensor, b: Tensor) -> Tensor:
    """Dot product over the last axis.

        a·b = Σᵢ aᵢ bᵢ

    where a is [..., d], b is [..., d] and the answer is [...]; leading axes broadcast. [1, 2]·[3, 4] = 11.

    Raises ShapeError when the last axes differ or are missing, or when leading axes do not broadcast.
    """
    for name, tensor in (("a", a), ("b", b)):
        if tensor.dim() == 0:
            raise ShapeError(name, expected="at least 1 axis", got=[])
    check.axis("b", b, -1, a.shape[-1])
    check.broadcast("leading axes of b", a.shape[:-1], b.shape[:-1])
    return (a * b).sum(-1)


def softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """Softmax over one axis, without overflow for scores of any size.

        pᵢ = exp(sᵢ - m) / Σⱼ exp(sⱼ - m),   m = maxⱼ sⱼ

    where scores and p have the same shape and p sums to 1 along `dim`; unit: probability. A score of -inf
    gives exactly 0.

    Raises ShapeError for an integer dtype, an axis that does not exist or is empty; ScoreError for a row
    without a finite largest score (all -inf, or containing +inf or NaN), where PyTorch returns NaN.
    """
    check.floating("scores", scores)
    if not -scores.dim() <= dim < scores.dim() or scores.shape[dim] == 0:
        raise ShapeError("scores", expected=f"an axis {dim} that is not empty", got=list(scores.shape))
    largest = scores.detach().amax(dim, keepdim=True)  # a shift by a constant: it has no gradient
    if not largest.isfinite().all():
        raise ScoreError(
            "scores: expected a finite largest score in every row, got a row of -inf only, +inf or NaN"
        )
    exponentials = (scores - largest).exp()
    return exponentials / exponentials.sum(dim, keepdim=True)


def causal_mask(queries: int, keys: int, *, device: torch.device | str | None = None) -> Tensor:
    """Which key each query may look at.

        M[i, j] = (j ≤ i + keys - queries)

    where M is [query, key], boolean, True where the key takes part, as in the attn_mask of
    F.scaled_dot_product_attention (torch.nn.MultiheadAttention means the opposite). The queries are the last
    ones of the keys, as in generation with a KV cache: the last query always sees every key. Differs from
    `is_causal=True` of PyTorch, which lets query 0 see key 0 only; the two agree when queries = keys.

    Raises ShapeError for counts below 1, and for more queries than keys: the first rows would be empty.
    """
    check.positive_int("queries", queries)
    check.positive_int("keys", keys)
    if queries > keys:
        raise ShapeError("queries", expected=f"at most as many as keys = {keys}", got=queries)
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attention_weights(q: Tensor, k: Tensor, *, causal: bool = True) -> Tensor:
    """Softmax attention weights of one or many heads.

        A = softmax(q kᵀ / √d)        over the key axis

    where q is [..., query, d], k is [..., key, d] and A is [..., query, key]; leading axes broadcast. With
    `causal`, entries whose key lies after the query are exactly 0 (see `causal_mask` for fewer queries than
    keys). Rows sum to 1; unit: probability.

    Raises ShapeError when the last axes differ, for integer or different dtypes, empty axes, leading axes
    that do not broadcast, and, with `causal`, more queries than keys; ScoreError when q or k make a row of
    scores without a finite largest one (NaN or infinity).
    Source: Vaswani et al. 2017, eq. 1. Differs from F.scaled_dot_product_attention in returning A.
    """
    return _weights(_scores(q, k), causal)


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True) -> Attention:
    """Attention of one or many heads, with scores and weights kept.

        S = q kᵀ / √d,   A = softmax(S),   output = A v

    where q is [..., query, d], k is [..., key, d], v is [..., key, d_v], S and A are [..., query, key] and
    the output is [..., query, d_v]; leading axes broadcast. `causal` as in `attention_weights`.

    Raises ShapeError and ScoreError as `attention_weights`, and ShapeError when v has another number of keys
    or another dtype.
    Source: Vaswani et al. 2017, eq. 1.
    """
    scores = _scores(q, k)
    check.floating("v", v, axes=2, like=q)
    check.axis("v", v, -2, k.shape[-2])
    check.broadcast("leading axes of v", scores.shape[:-2], v.shape[:-2])
    weights = _weights(scores, causal)
    return Attention(scores, weights, output=weights @ v)


def self_attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, *, causal: bool = True) -> Attention:
    """One head of self-attention: every token asks all tokens.

        q = x W_q,   k = x W_k,   v = x W_v,   output = softmax(q kᵀ / √d_k) v

    where x is [..., token, d_model], W_q and W_k are [d_model, d_k], W_v is [d_model, d_v], and the result
    holds scores and weights [..., token, token] and output [..., token, d_v]. `causal` as in
    `attention_weights`. The matrices multiply from the right, as in the paper; nn.Linear stores them
    transposed.

    Raises ShapeError when an axis or dtype does not fit, naming expected and got; ScoreError as
    `attention_weights`.
    Source: Vaswani et al. 2017, section 3.2.
    """
    check.floating("x", x, axes=2)
    for name, w in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v)):
        check.floating(name, w, axes=2, like=x)
        if w.dim() != 2 or w.shape[0] != x.shape[-1]:
            raise ShapeError(name, expected=f"[d_model = {x.shape[-1]}, width]", got=list(w.shape))
    check.axis("w_k", w_k, -1, w_q.shape[-1])
    return scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, causal=causal)


class MultiHeadAttention(nn.Module):
    """Many heads of self-attention side by side, with ordinary, grouped or single K and V.

        output = concat(head_1 … head_h) W_o,   head_i = attention(x W_q,i, x W_k,g(i), x W_v,g(i))

    where d_head = d_model / n_heads and query head i reads KV head g(i) = i // (n_heads / n_kv_heads). With
    n_kv_heads = n_heads (the default) this is multi-head attention, with fewer grouped-query, with one
    multi-query attention. The four projections `q_proj`, `k_proj`, `v_proj`, `o_proj` are nn.Linear with its
    own initialisation, unlike torch.nn.MultiheadAttention, whose input projections start from Xavier's and
    whose biases start at 0.

    Raises ShapeError unless counts are at least 1, n_heads divides d_model and n_kv_heads divides n_heads.
    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023 (grouped-query, arXiv:2305.13245);
    Shazeer 2019 (multi-query, arXiv:1911.02150).
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.d_model = check.positive_int("d_model", d_model)
        self.n_heads = check.positive_int("n_heads", n_heads)
        self.n_kv_heads = check.positive_int("n_kv_heads", n_heads if n_kv_heads is None else n_kv_heads)
        check.divides("n_heads", self.n_heads, "d_model", self.d_model)
        check.divides("n_kv_heads", self.n_kv_heads, "n_heads", self.n_heads)
        self.d_head = d_model // n_heads

        def linear(width: int) -> nn.Linear:
            return nn.Linear(d_model, width, bias=bias, dtype=dtype, device=device)

        self.q_proj = linear(d_model)
        self.k_proj = linear(self.n_kv_heads * self.d_head)
        self.v_proj = linear(self.n_kv_heads * self.d_head)
        self.o_proj = linear(d_model)

    def forward(self, x: Tensor, causal: bool = True) -> Attention:
        """Attend within x.

        x is [..., token, d_model]; the result holds scores and weights per head [..., head, token, token] and
        output [..., token, d_model].

        Raises ShapeError when the last axis is not d_model, there is no token, or the dtype is not the
        one of the weights; ScoreError as `attention_weights`.
        """
        check.floating("x", x, axes=2, like=self.q_proj.weight)
        check.axis("x", x, -1, self.d_model)

        def heads(projected: Tensor) -> Tensor:  # [..., token, heads · d_head] -> [..., heads, token, d_head]
            split: Tensor = projected.unflatten(-1, (-1, self.d_head))
            return split.transpose(-3, -2)

        group = self.n_heads // self.n_kv_heads
        q = heads(self.q_proj(x))  # [..., head, token, d_head]
        k = heads(self.k_proj(x)).repeat_interleave(group, dim=-3)  # [..., head, token, d_head]
        v = heads(self.v_proj(x)).repeat_interleave(group, dim=-3)  # [..., head, token, d_head]
        inner = scaled_dot_product_attention(q, k, v, causal=causal)
        joined: Tensor = inner.output.transpose(-3, -2).flatten(-2)  # [..., token, d_model]
        return Attention(inner.scores, inner.weights, output=self.o_proj(joined))


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """q kᵀ / √d, [..., query, key], before any mask."""
    check.floating("q", q, axes=2)
    check.floating("k", k, axes=2, like=q)
    check.axis("k", k, -1, q.shape[-1])
    check.broadcast("leading axes of k", q.shape[:-2], k.shape[:-2])
    return q @ k.mT / math.sqrt(q.shape[-1])


def _weights(scores: Tensor, causal: bool) -> Tensor:
    """Softmax over the keys, [..., query, key], after the causal mask if asked."""
    if causal:
        mask = causal_mask(scores.shape[-2], scores.shape[-1], device=scores.device)
        scores = scores.masked_fill(~mask, -torch.inf)
    return softmax(scores)
