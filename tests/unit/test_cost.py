"""Costs of layers: hand-evaluated, and counted by PyTorch's own counter of floating-point operations."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attention_core import (
    LayerCost,
    MultiHeadAttention,
    ShapeError,
    attention_multiply_adds,
    convolutional_cost,
    layer_costs,
    pair_count,
    recurrent_cost,
    restricted_cost,
    self_attention_cost,
)


def counted_multiply_adds(function) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        function()
    return counter.get_total_flops() // 2  # it counts a multiplication and an addition as two


def test_pairs_grow_with_the_square():
    assert (pair_count(1), pair_count(4), pair_count(1000)) == (1, 16, 1_000_000)


def test_table_one_is_evaluated_for_a_hundred_positions():
    # n = 100, d = 7, k = 3, r = 9: n²d = 70,000; nd² = 4,900; knd² = 14,700 and 3⁴ = 81 < 100 ≤ 3⁵;
    # rnd = 6,300 and 100/9 = 11.1.
    assert layer_costs(100, 7, kernel=3, window=9) == (
        LayerCost("self-attention", 70_000, 1, 1),
        LayerCost("recurrent", 4_900, 100, 100),
        LayerCost("convolutional", 14_700, 1, 5),
        LayerCost("restricted self-attention", 6_300, 1, 12),
    )


@pytest.mark.parametrize(
    ("n", "kernel", "layers"), [(1, 3, 1), (3, 3, 1), (4, 3, 2), (243, 3, 5), (244, 3, 6), (8, 2, 3)]
)
def test_a_stack_of_dilated_convolutions_reaches_every_position(n, kernel, layers):
    assert convolutional_cost(n, 1, kernel).path_length == layers
    # Followed through the graph: layers of dilation 1, k, k², …; which of n positions does the first reach?
    reached, depth = {0}, 0
    while depth == 0 or len(reached) < n:
        reached = {
            p + tap * kernel**depth for p in reached for tap in range(kernel) if p + tap * kernel**depth < n
        }
        depth += 1
    assert depth == layers


def test_work_of_table_one_is_what_pytorch_counts():
    n, d, kernel = 13, 7, 3
    steps = [torch.randn(1, d) for _ in range(n)]
    w, filters = torch.randn(d, d), torch.randn(d, d, kernel)
    q, k = torch.randn(n, d), torch.randn(n, d)
    assert self_attention_cost(n, d).work == counted_multiply_adds(lambda: q @ k.T)
    assert recurrent_cost(n, d).work == counted_multiply_adds(lambda: [step @ w for step in steps])
    padded = torch.randn(1, d, n + kernel - 1)
    assert convolutional_cost(n, d, kernel).work == counted_multiply_adds(lambda: F.conv1d(padded, filters))
    windows = torch.randn(n, 5, d)
    assert restricted_cost(n, d, 5).work == counted_multiply_adds(lambda: windows @ q[:, :, None])


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 6), (6, 2), (6, 1)])
def test_multiply_adds_of_attention_are_what_pytorch_counts(heads, kv_heads):
    x = torch.randn(7, 30)
    layer = MultiHeadAttention(30, heads, kv_heads, bias=False)
    assert attention_multiply_adds(7, 30, heads, kv_heads).total == counted_multiply_adds(lambda: layer(x))


def test_multiply_adds_are_worked_by_hand_for_four_tokens():
    # n = 4, d = 6: projections 4·4·36 = 576, scores 16·6 = 96, mixing 96
    work = attention_multiply_adds(4, 6)
    assert (work.projections, work.scores, work.mixing, work.total) == (576, 96, 96, 768)


@given(st.integers(1, 10_000), st.integers(1, 64), st.integers(1, 256))
def test_many_narrow_heads_cost_what_one_wide_head_costs(n, heads, d_head):
    d_model = heads * d_head
    assert attention_multiply_adds(n, d_model, heads) == attention_multiply_adds(n, d_model, 1)


@given(st.integers(1, 2000), st.integers(1, 300))
def test_attention_is_cheaper_than_recurrence_exactly_when_the_text_is_shorter_than_the_width(n, d):
    assert (self_attention_cost(n, d).work < recurrent_cost(n, d).work) == (n < d)


@given(st.integers(1, 500), st.integers(1, 50))
def test_a_window_as_wide_as_the_text_is_plain_attention(n, d):
    whole, plain = restricted_cost(n, d, n), self_attention_cost(n, d)
    assert (whole.work, whole.sequential_steps, whole.path_length) == (plain.work, 1, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pair_count(0), "n: expected an integer of at least 1, got 0"),
        (lambda: self_attention_cost(4, 0), "d: expected an integer of at least 1, got 0"),
        (lambda: recurrent_cost(-1, 4), "n: expected an integer of at least 1, got -1"),
        (lambda: recurrent_cost(4, 2.0), "d: expected an integer of at least 1, got 2.0"),
        (lambda: convolutional_cost(4, 4, 1), "kernel: expected an integer of at least 2, got 1"),
        (lambda: convolutional_cost(0, 4), "n: expected an integer of at least 1, got 0"),
        (lambda: restricted_cost(4, 4, 5), "window: expected at most n = 4, got 5"),
        (lambda: restricted_cost(4, 4, 0), "window: expected an integer of at least 1, got 0"),
        (lambda: layer_costs(4, True, window=2), "d: expected an integer of at least 1, got True"),
        (lambda: attention_multiply_adds(4, 10, 3), "n_heads: expected a divisor of d_model = 10, got 3"),
        (
            lambda: attention_multiply_adds(4, 12, 6, 4),
            "n_kv_heads: expected a divisor of n_heads = 6, got 4",
        ),
        (
            lambda: attention_multiply_adds(4, 12, 6, 0),
            "n_kv_heads: expected an integer of at least 1, got 0",
        ),
    ],
)
def test_sizes_that_make_no_sense_are_refused(call, message):
    with pytest.raises(ShapeError, match=message):
        call()
