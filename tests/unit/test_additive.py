"""Bahdanau's additive attention against a hand-worked case, plain loops and finite differences."""

import math

import pytest
import torch
from torch import Tensor

from attention_core import AdditiveAttention, ShapeError, additive_attention

QUERIES, KEYS, D_STATE, D_ANNOTATION, D_ALIGN = 3, 5, 7, 11, 13


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def example(*leading: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        rand(*leading, QUERIES, D_STATE),
        rand(*leading, KEYS, D_ANNOTATION, seed=1),
        rand(D_ALIGN, D_STATE, seed=2),
        rand(D_ALIGN, D_ANNOTATION, seed=3),
        rand(D_ALIGN, seed=4),
    )


def test_two_annotations_give_the_hand_worked_weights_and_context():
    # tanh(ln √3) = (3 - 1)/(3 + 1) = 1/2, and tanh(0) = 0.
    # s = [1], W = [[ln √3], [0]], U = [[0, 0], [ln √3, 0]], v = [2 ln 4, 2 ln 4]
    # h₁ = [1, 0]: W s + U h₁ = [ln √3, ln √3], tanh = [1/2, 1/2], e₁ = 2 ln 4 · (1/2 + 1/2) = 2 ln 4
    # h₂ = [0, 1]: W s + U h₂ = [ln √3, 0],     tanh = [1/2, 0],   e₂ = 2 ln 4 · 1/2 = ln 4
    # exp e = 16, 4: α = 16/20, 4/20 = 0.8, 0.2 and c = 0.8 h₁ + 0.2 h₂ = [0.8, 0.2]
    a = math.log(math.sqrt(3))
    state, annotations, w, u, v = (
        torch.tensor(values, dtype=torch.float64)
        for values in (
            [[1.0]],
            [[1.0, 0.0], [0.0, 1.0]],
            [[a], [0.0]],
            [[0.0, 0.0], [a, 0.0]],
            [2 * math.log(4)] * 2,
        )
    )
    result = additive_attention(state, annotations, w, u, v)
    assert result.scores[0].tolist() == pytest.approx([2 * math.log(4), math.log(4)], abs=1e-14)
    assert result.weights[0].tolist() == pytest.approx([0.8, 0.2], abs=1e-14)
    assert result.output[0].tolist() == pytest.approx([0.8, 0.2], abs=1e-14)


def test_scores_are_those_of_the_formula_written_as_loops():
    state, annotations, w, u, v = (tensor.tolist() for tensor in example())

    def score(s: list[float], h: list[float]) -> float:
        total = 0.0
        for row_w, row_u, weight in zip(w, u, v, strict=True):
            inner = sum(a * b for a, b in zip(row_w, s, strict=True))
            inner += sum(a * b for a, b in zip(row_u, h, strict=True))
            total += weight * math.tanh(inner)
        return total

    expected = torch.tensor([[score(s, h) for h in annotations] for s in state], dtype=torch.float64)
    assert torch.allclose(additive_attention(*example()).scores, expected, rtol=0, atol=1e-13)


def test_weights_sum_to_one_and_the_context_is_their_mean_of_annotations():
    tensors = example(2)
    result = additive_attention(*tensors)
    assert result.weights.shape == (2, QUERIES, KEYS)
    assert (result.weights.sum(-1) - 1).abs().max() <= 1e-15
    expected = torch.einsum("bqk,bkd->bqd", result.weights, tensors[1])
    assert torch.allclose(result.output, expected, rtol=0, atol=1e-14)


def test_annotations_in_another_order_give_the_same_context():
    state, annotations, *parameters = example()
    order = torch.tensor([3, 1, 4, 0, 2])
    straight = additive_attention(state, annotations, *parameters)
    shuffled = additive_attention(state, annotations[order], *parameters)
    assert torch.allclose(shuffled.weights, straight.weights[:, order], rtol=0, atol=1e-15)
    assert torch.allclose(shuffled.output, straight.output, rtol=0, atol=1e-14)


def test_gradients_of_all_five_inputs_are_right():
    tensors = tuple(tensor.requires_grad_() for tensor in example())

    def parts(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = additive_attention(*inputs)
        return result.scores, result.weights, result.output

    assert torch.autograd.gradcheck(parts, tensors)


def test_the_module_applies_its_own_parameters():
    module = AdditiveAttention(D_STATE, D_ANNOTATION, D_ALIGN, dtype=torch.float64)
    assert sorted(tuple(p.shape) for p in module.parameters()) == [(1, 13), (13, 7), (13, 11)]
    state, annotations, *_ = example(2)
    expected = torch.tanh(module.w(state)[:, :, None] + module.u(annotations)[:, None]) @ module.v.weight[0]
    assert torch.allclose(module(state, annotations).scores, expected, rtol=0, atol=1e-14)
    module(state, annotations).output.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("position", "shape", "message"),
    [
        (0, (QUERIES, 2), r"w: expected \[13, 2\], got \[13, 7\]"),
        (0, (D_STATE,), r"state: expected at least 2 axes, .* got \[7\]"),
        (0, (0, D_STATE), r"state: .* got \[0, 7\]"),
        (1, (KEYS, 2), r"u: expected \[13, 2\], got \[13, 11\]"),
        (1, (0, D_ANNOTATION), r"annotations: .* got \[0, 11\]"),
        (2, (2, D_STATE), r"w: expected \[13, 7\], got \[2, 7\]"),
        (3, (D_ANNOTATION, D_ALIGN), r"u: expected \[13, 11\], got \[11, 13\]"),
        (4, (2,), r"w: expected \[2, 7\], got \[13, 7\]"),
        (4, (D_ALIGN, 1), r"v: expected \[d_align\], got \[13, 1\]"),
        (4, (0,), r"v: .* got \[0\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(position, shape, message):
    tensors = list(example())
    tensors[position] = rand(*shape)
    with pytest.raises(ShapeError, match=message):
        additive_attention(*tensors)


def test_leading_axes_and_dtypes_that_do_not_fit_are_refused():
    state, annotations, w, u, v = example()
    with pytest.raises(ShapeError, match=r"leading axes of annotations: .* with \[2\], got \[3\]"):
        additive_attention(state.expand(2, -1, -1), annotations.expand(3, -1, -1), w, u, v)
    with pytest.raises(ShapeError, match=r"dtype of state: expected a floating-point dtype, got torch.int64"):
        additive_attention(state.long(), annotations, w, u, v)
    with pytest.raises(ShapeError, match=r"dtype of u: expected torch.float64, got torch.float32"):
        additive_attention(state, annotations, w, u.float(), v)


@pytest.mark.parametrize("widths", [(0, 3, 5), (2, -3, 5), (2, 3, 5.0)])
def test_widths_below_one_are_refused(widths):
    with pytest.raises(ShapeError, match="expected an integer of at least 1"):
        AdditiveAttention(*widths)
