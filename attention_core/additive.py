"""Additive attention: the alignment model of the first neural translators.

Source: Bahdanau, Cho and Bengio 2014, "Neural Machine Translation by Jointly Learning to Align and
Translate", section 3.1 and appendix A.1.2 (arXiv:1409.0473).
"""

import torch
from torch import Tensor, nn

from attention_core import _checks as check
from attention_core.attention import Attention, softmax
from attention_core.errors import ShapeError


def additive_attention(state: Tensor, annotations: Tensor, w: Tensor, u: Tensor, v: Tensor) -> Attention:
    """How well the input around position j fits the output at position i, by a small network.

        e_ij = v·tanh(W s_{i-1} + U h_j),   α_ij = softmax_j(e_ij),   c_i = Σ_j α_ij h_j

    where state is the decoder's s_{i-1} as [..., query, d_state], annotations the encoder's h_j as
    [..., key, d_annotation], W is [d_align, d_state], U is [d_align, d_annotation] and v is [d_align];
    leading axes broadcast. The result's scores are e and its weights α, both [..., query, key]; its output is
    c, [..., query, d_annotation]. Rows of α sum to 1. There is no mask: a decoder sees the whole input.

    Raises ShapeError when an axis or dtype does not fit, naming expected and got; ScoreError when a row of
    scores has no finite largest one (NaN or infinity).
    Source: Bahdanau et al. 2014, eq. 5 and 6, appendix A.1.2. W and U stand as in the paper and in nn.Linear.
    """
    check.floating("state", state, axes=2)
    check.floating("annotations", annotations, axes=2, like=state)
    check.floating("v", v, axes=1, like=state)
    if v.dim() != 1:
        raise ShapeError("v", expected="[d_align]", got=list(v.shape))
    for name, matrix, width in (("w", w, state.shape[-1]), ("u", u, annotations.shape[-1])):
        check.floating(name, matrix, axes=2, like=state)
        if matrix.shape != (v.shape[0], width):
            raise ShapeError(name, expected=[v.shape[0], width], got=list(matrix.shape))
    check.broadcast("leading axes of annotations", state.shape[:-2], annotations.shape[:-2])

    asked = (state @ w.mT).unsqueeze(-2)  # [..., query, 1, d_align]
    offered = (annotations @ u.mT).unsqueeze(-3)  # [..., 1, key, d_align]
    scores = torch.tanh(asked + offered) @ v  # [..., query, key]
    weights = softmax(scores)
    return Attention(scores, weights, output=weights @ annotations)


class AdditiveAttention(nn.Module):
    """`additive_attention` with learnt W, U and v, initialised as nn.Linear without bias.

    Raises ShapeError for widths below 1, and in forward as `additive_attention` does.
    """

    def __init__(
        self,
        d_state: int,
        d_annotation: int,
        d_align: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check.positive_int("d_state", d_state)
        check.positive_int("d_annotation", d_annotation)
        check.positive_int("d_align", d_align)
        self.w = nn.Linear(d_state, d_align, bias=False, dtype=dtype, device=device)
        self.u = nn.Linear(d_annotation, d_align, bias=False, dtype=dtype, device=device)
        self.v = nn.Linear(d_align, 1, bias=False, dtype=dtype, device=device)

    def forward(self, state: Tensor, annotations: Tensor) -> Attention:
        """Align state [..., query, d_state] with annotations [..., key, d_annotation]."""
        return additive_attention(state, annotations, self.w.weight, self.u.weight, self.v.weight[0])
