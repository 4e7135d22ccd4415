"""The article's attention against hand-worked numbers and against both of PyTorch's own."""

import math

import pytest
import scipy.special
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from attention_core import (
    Attention,
    MultiHeadAttention,
    ScoreError,
    ShapeError,
    attention_weights,
    causal_mask,
    dot_product,
    scaled_dot_product_attention,
    self_attention,
    softmax,
)

HEADS, QUERIES, KEYS, D, D_V = 3, 5, 7, 11, 13
EXACT = 1e-15  # float64: about 4.5 units in the last place at 1; the article measured 1.7e-16


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def largest_difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


# --- dot product ---


def test_the_dot_product_of_12_and_34_is_11():
    assert dot_product(torch.tensor([1, 2]), torch.tensor([3, 4])).item() == 11


def test_dot_products_of_stacked_vectors_are_taken_row_by_row():
    a, b = rand(HEADS, QUERIES, D), rand(QUERIES, D, seed=1)
    assert torch.allclose(dot_product(a, b), torch.einsum("hqd,qd->hq", a, b), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((5,), (7,), r"axis -1 of b: expected 5, got \[7\]"),
        ((), (7,), r"a: expected at least 1 axis, got \[\]"),
        ((7,), (), r"b: expected at least 1 axis, got \[\]"),
        ((3, 7), (5, 7), r"leading axes of b: expected a shape that broadcasts with \[3\], got \[5\]"),
    ],
)
def test_a_dot_product_of_vectors_that_do_not_fit_is_refused(a, b, message):
    with pytest.raises(ShapeError, match=message):
        dot_product(torch.ones(a), torch.ones(b))


# --- softmax ---


def test_softmax_of_logarithms_gives_their_arguments_over_the_sum():
    # exp(ln 1), exp(ln 2), exp(ln 5) = 1, 2, 5, sum 8: 1/8, 2/8, 5/8
    p = softmax(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log())
    assert torch.allclose(p, torch.tensor([0.125, 0.25, 0.625], dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_softmax_along_any_axis_agrees_with_scipy(dim):
    scores = 10 * rand(HEADS, QUERIES, KEYS)
    expected = torch.from_numpy(scipy.special.softmax(scores.numpy(), axis=dim))
    assert largest_difference(softmax(scores, dim), expected) <= EXACT


def test_softmax_of_huge_scores_does_not_overflow():
    assert softmax(torch.tensor([1e300, 1e300, -1e300], dtype=torch.float64)).tolist() == [0.5, 0.5, 0.0]


def test_softmax_gives_minus_infinity_exactly_zero():
    assert softmax(torch.tensor([0.0, -torch.inf, 0.0])).tolist() == [0.5, 0.0, 0.5]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(-1e3, 1e3))
def test_softmax_sums_to_one_and_ignores_a_shift_of_all_scores(scores, shift):
    s = torch.tensor(scores, dtype=torch.float64)
    p = softmax(s)
    assert p.sum().item() == pytest.approx(1, abs=1e-14)
    assert torch.allclose(softmax(s + shift), p, rtol=0, atol=1e-9)


@pytest.mark.parametrize("row", [[-torch.inf, -torch.inf], [torch.inf, 0.0], [torch.nan, 0.0]])
def test_softmax_refuses_a_row_from_which_no_probabilities_follow(row):
    with pytest.raises(ScoreError, match="finite largest score"):
        softmax(torch.tensor([[0.0, 1.0], row]))


@pytest.mark.parametrize(
    ("scores", "dim", "message"),
    [
        (
            torch.ones(3, dtype=torch.int64),
            -1,
            r"dtype of scores: expected a floating-point dtype, got torch.int64",
        ),
        (torch.ones(3, 5), 2, r"scores: expected an axis 2 that is not empty, got \[3, 5\]"),
        (torch.ones(3, 5), -3, r"scores: expected an axis -3 that is not empty, got \[3, 5\]"),
        (torch.ones(0, 5), 0, r"scores: expected an axis 0 that is not empty, got \[0, 5\]"),
        (torch.tensor(1.0), -1, r"scores: expected at least 1 axes, .* got \[\]"),
        ([1.0, 2.0], -1, r"scores: expected a torch.Tensor, got list"),
    ],
)
def test_softmax_over_what_is_no_axis_of_floats_is_refused(scores, dim, message):
    with pytest.raises(ShapeError, match=message):
        softmax(scores, dim)


# --- causal mask ---


def test_a_causal_mask_of_three_tokens_is_a_lower_triangle():
    assert causal_mask(3, 3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_fewer_queries_than_keys_are_the_last_ones():
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]


@pytest.mark.parametrize(
    ("queries", "keys", "message"),
    [
        (5, 3, "queries: expected at most as many as keys = 3, got 5"),
        (0, 3, "queries: expected an integer of at least 1, got 0"),
        (3, -1, "keys: expected an integer of at least 1, got -1"),
        (True, 3, "queries: expected an integer of at least 1, got True"),
        (2, 3.0, "keys: expected an integer of at least 1, got 3.0"),
    ],
)
def test_a_causal_mask_that_makes_no_sense_is_refused(queries, keys, message):
    with pytest.raises(ShapeError, match=message):
        causal_mask(queries, keys)


# --- weights and outputs of given queries, keys and values ---


def test_weights_of_two_keys_are_the_hand_worked_ones():
    # d = 4, √d = 2. q·k₀ = 2 ln 3, q·k₁ = 0; divided by 2: ln 3 and 0; exp: 3 and 1; weights 3/4 and 1/4.
    q = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    k = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0], [0.0, 9.0, 9.0, 9.0]], dtype=torch.float64)
    v = torch.tensor([[4.0, 0.0], [0.0, 8.0]], dtype=torch.float64)
    result = scaled_dot_product_attention(q, k, v, causal=False)
    assert result.scores[0].tolist() == pytest.approx([math.log(3), 0], abs=1e-15)
    assert result.weights[0].tolist() == pytest.approx([0.75, 0.25], abs=1e-15)
    assert result.output[0].tolist() == pytest.approx([3.0, 2.0], abs=1e-15)


def test_a_key_that_points_where_the_query_points_wins():
    k = torch.eye(KEYS, dtype=torch.float64)
    weights = attention_weights(1000 * k[[4, 2]], k, causal=False)
    assert torch.allclose(weights, k[[4, 2]], rtol=0, atol=EXACT)


def test_row_zero_of_a_causal_map_is_a_single_one():
    weights = attention_weights(rand(HEADS, KEYS, D), rand(HEADS, KEYS, D, seed=1))
    assert torch.equal(weights[:, 0], torch.eye(KEYS, dtype=torch.float64)[0].expand(HEADS, KEYS))


def test_a_causal_map_is_exactly_zero_above_the_diagonal_and_its_rows_sum_to_one():
    weights = attention_weights(rand(HEADS, KEYS, D), rand(HEADS, KEYS, D, seed=1))
    assert torch.equal(weights, weights.tril())
    assert (weights.sum(-1) - 1).abs().max() <= EXACT


@pytest.mark.parametrize("causal", [False, True])
def test_fewer_queries_than_keys_agree_with_torchs_lower_right_mask(causal):
    q, k, v = rand(2, HEADS, QUERIES, D), rand(2, HEADS, KEYS, D, seed=1), rand(2, HEADS, KEYS, D_V, seed=2)
    result = scaled_dot_product_attention(q, k, v, causal=causal)
    mask = causal_lower_right(QUERIES, KEYS) if causal else None
    # With the unit matrix for values, the output of PyTorch's function is the map itself.
    unit = torch.eye(KEYS, dtype=torch.float64).expand(2, HEADS, KEYS, KEYS)
    mask = None if mask is None else mask._materialize()
    assert largest_difference(result.output, F.scaled_dot_product_attention(q, k, v, attn_mask=mask)) <= EXACT
    expected = F.scaled_dot_product_attention(q, k, unit, attn_mask=mask)
    assert largest_difference(result.weights, expected) <= EXACT
    assert torch.equal(attention_weights(q, k, causal=causal), result.weights)


def test_the_last_rows_asked_alone_equal_the_last_rows_of_the_whole_map():
    q, k = rand(HEADS, KEYS, D), rand(HEADS, KEYS, D, seed=1)
    assert largest_difference(attention_weights(q[:, -2:], k), attention_weights(q, k)[:, -2:]) <= EXACT


def test_one_key_per_group_broadcasts_over_its_query_heads():
    q, k = rand(2, HEADS, QUERIES, D), rand(2, 1, KEYS, D, seed=1)
    assert (
        largest_difference(attention_weights(q, k), attention_weights(q, k.expand(2, HEADS, KEYS, D)))
        <= EXACT
    )


def test_scores_are_kept_as_they_were_before_the_mask():
    q, k, v = rand(KEYS, D), rand(KEYS, D, seed=1), rand(KEYS, D_V, seed=2)
    masked = scaled_dot_product_attention(q, k, v, causal=True)
    assert torch.equal(masked.scores, scaled_dot_product_attention(q, k, v, causal=False).scores)
    assert torch.allclose(masked.scores * math.sqrt(D), q @ k.T, rtol=0, atol=1e-14)


def bad(q=(3, 5, 11), k=(3, 7, 11), v=(3, 7, 13), q_dtype=None, k_dtype=None, v_dtype=None):
    return torch.ones(q, dtype=q_dtype), torch.ones(k, dtype=k_dtype), torch.ones(v, dtype=v_dtype)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (bad(k=(3, 7, 13)), r"axis -1 of k: expected 11, got \[3, 7, 13\]"),
        (bad(k=(2, 7, 11)), r"leading axes of k: expected a shape that broadcasts with \[3\], got \[2\]"),
        (bad(q=(11,)), r"q: expected at least 2 axes, the last 2 not empty, got \[11\]"),
        (bad(q=(3, 0, 11)), r"q: .* got \[3, 0, 11\]"),
        (bad(k=(3, 0, 11)), r"k: .* got \[3, 0, 11\]"),
        (bad(q=(3, 5, 0), k=(3, 7, 0)), r"q: .* got \[3, 5, 0\]"),
        (bad(q=(3, 11, 11)), r"queries: expected at most as many as keys = 7, got 11"),
        (bad(q_dtype=torch.int32), "dtype of q: expected a floating-point dtype, got torch.int32"),
        (bad(k_dtype=torch.float64), "dtype of k: expected torch.float32, got torch.float64"),
        (bad(v=(3, 5, 13)), r"axis -2 of v: expected 7, got \[3, 5, 13\]"),
        (bad(v=(2, 7, 13)), r"leading axes of v: expected a shape that broadcasts with \[3\], got \[2\]"),
        (bad(v_dtype=torch.float16), "dtype of v: expected torch.float32, got torch.float16"),
    ],
)
def test_queries_keys_and_values_that_do_not_fit_are_refused(tensors, message):
    q, k, v = tensors
    with pytest.raises(ShapeError, match=message):
        scaled_dot_product_attention(q, k, v)
    if " v" not in message and not message.startswith("v"):
        with pytest.raises(ShapeError, match=message):
            attention_weights(q, k)


# --- self-attention of one head ---


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_four_tokens_agree_with_torchs_function(batch, causal):
    x, w_q, w_k, w_v = rand(*batch, 4, 11), rand(11, 5, seed=1), rand(11, 5, seed=2), rand(11, 7, seed=3)
    w_q, w_k, w_v = (w / math.sqrt(11) for w in (w_q, w_k, w_v))
    result = self_attention(x, w_q, w_k, w_v, causal=causal)
    expected = F.scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, is_causal=causal)
    assert isinstance(result, Attention)
    assert result.weights.shape == (*batch, 4, 4)
    assert largest_difference(result.output, expected) <= EXACT


def test_four_tokens_with_unit_matrices_are_the_hand_worked_ones():
    # q = k = v = x = √2 · unit vectors e₀, e₁, e₀, e₁ in two dimensions: q·k is 2 where they are equal, else
    # 0; divided by √2: √2 or 0. With a = exp √2, causal rows are [1], [1, a], [a, 1, a], [1, a, 1, a], each
    # divided by its sum.
    a = math.exp(math.sqrt(2))
    x = math.sqrt(2) * torch.eye(2, dtype=torch.float64).repeat(2, 1)
    unit = torch.eye(2, dtype=torch.float64)
    rows = [[1, 0, 0, 0], [1, a, 0, 0], [a, 1, a, 0], [1, a, 1, a]]
    expected = torch.tensor([[w / sum(row) for w in row] for row in rows], dtype=torch.float64)
    result = self_attention(x, unit, unit, unit)
    assert torch.allclose(result.weights, expected, rtol=0, atol=EXACT)
    third = math.sqrt(2) * torch.tensor([2 * a, 1], dtype=torch.float64) / (2 * a + 1)
    assert torch.allclose(result.output[2], third, rtol=0, atol=EXACT)


def test_changing_a_later_token_leaves_earlier_rows_alone():
    x, w = rand(KEYS, D), rand(D, D, seed=1)
    changed = x.clone()
    changed[4] += 1
    before, after = self_attention(x, w, w, w), self_attention(changed, w, w, w)
    assert torch.equal(before.output[:4], after.output[:4])
    assert not torch.equal(before.output[4], after.output[4])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((5, 11), (7, 3), (11, 3), (11, 3)), r"w_q: expected \[d_model = 11, width\], got \[7, 3\]"),
        (((5, 11), (11, 3), (7, 3), (11, 3)), r"w_k: expected \[d_model = 11, width\], got \[7, 3\]"),
        (((5, 11), (11, 3), (11, 3), (2, 11, 3)), r"w_v: expected \[d_model = 11, width\], got \[2, 11, 3\]"),
        (((5, 11), (11, 3), (11, 2), (11, 3)), r"axis -1 of w_k: expected 3, got \[11, 2\]"),
        (((5, 11), (11, 3), (11, 3), (11, 0)), r"w_v: .* got \[11, 0\]"),
        (((11,), (11, 3), (11, 3), (11, 3)), r"x: expected at least 2 axes, .* got \[11\]"),
        (((0, 11), (11, 3), (11, 3), (11, 3)), r"x: .* got \[0, 11\]"),
    ],
)
def test_self_attention_of_shapes_that_do_not_fit_is_refused(shapes, message):
    with pytest.raises(ShapeError, match=message):
        self_attention(*(torch.ones(shape) for shape in shapes))


def test_self_attention_of_integers_or_of_two_dtypes_is_refused():
    x, w = torch.ones(5, 3), torch.ones(3, 3)
    with pytest.raises(ShapeError, match=r"dtype of x: expected a floating-point dtype, got torch.int64"):
        self_attention(x.long(), w, w, w)
    with pytest.raises(ShapeError, match=r"dtype of w_v: expected torch.float32, got torch.float64"):
        self_attention(x, w, w, w.double())


# --- many heads ---

D_HEAD, TOKENS = 7, 5
SHAPES = [(1, 1), (3, 3), (6, 3), (6, 2), (5, 1), (8, 4)]  # query heads, KV heads


def layer_and_input(
    heads: int, kv_heads: int, batch: int, *, bias: bool
) -> tuple[MultiHeadAttention, Tensor]:
    torch.manual_seed(heads)
    layer = MultiHeadAttention(heads * D_HEAD, heads, kv_heads, bias=bias, dtype=torch.float64)
    return layer, rand(batch, TOKENS, heads * D_HEAD, seed=batch)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 11])
@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
def test_many_heads_agree_with_torchs_functional_attention(heads, kv_heads, batch, causal, bias):
    layer, x = layer_and_input(heads, kv_heads, batch, bias=bias)

    def split(y: Tensor, n: int) -> Tensor:
        return y.view(batch, TOKENS, n, D_HEAD).transpose(1, 2)

    inner = F.scaled_dot_product_attention(
        split(layer.q_proj(x), heads),
        split(layer.k_proj(x), kv_heads),
        split(layer.v_proj(x), kv_heads),
        is_causal=causal,
        enable_gqa=kv_heads != heads,
    )
    expected = layer.o_proj(inner.transpose(1, 2).reshape(batch, TOKENS, -1))
    assert largest_difference(layer(x, causal=causal).output, expected) <= EXACT


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 11])
@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
def test_many_heads_agree_with_torchs_module(heads, kv_heads, batch, causal, bias):
    layer, x = layer_and_input(heads, kv_heads, batch, bias=bias)
    width = heads * D_HEAD
    theirs = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True, dtype=torch.float64)

    def repeated(parameter: Tensor) -> Tensor:  # K and V of a group, once per query head of the group
        rows = torch.arange(kv_heads * D_HEAD).view(kv_heads, D_HEAD)
        return parameter[rows[[head * kv_heads // heads for head in range(heads)]].flatten()]

    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat([layer.q_proj.weight, repeated(layer.k_proj.weight), repeated(layer.v_proj.weight)])
        )
        theirs.out_proj.weight.copy_(layer.o_proj.weight)
        if bias:
            theirs.in_proj_bias.copy_(
                torch.cat([layer.q_proj.bias, repeated(layer.k_proj.bias), repeated(layer.v_proj.bias)])
            )
            theirs.out_proj.bias.copy_(layer.o_proj.bias)
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1) if causal else None
    output, weights = theirs(x, x, x, attn_mask=hidden, average_attn_weights=False)
    ours = layer(x, causal=causal)
    assert ours.weights.shape == (batch, heads, TOKENS, TOKENS)
    assert largest_difference(ours.weights, weights) <= EXACT
    assert largest_difference(ours.output, output) <= EXACT


def test_a_batch_gives_what_its_members_give_alone():
    layer, x = layer_and_input(6, 2, 11, bias=True)
    together = layer(x)
    for i, member in enumerate(x):
        assert largest_difference(together.weights[i], layer(member).weights) <= EXACT
        assert largest_difference(together.output[i], layer(member).output) <= EXACT


def test_parameters_start_as_those_of_linear_layers_do():
    torch.manual_seed(5)
    layer = MultiHeadAttention(21, 3)
    torch.manual_seed(5)
    expected = [parameter for _ in range(4) for parameter in nn.Linear(21, 21).parameters()]
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), expected, strict=True))


def test_grouped_keys_and_values_save_parameters():
    layer = MultiHeadAttention(24, 6, 2, bias=False)
    assert [tuple(p.shape) for p in layer.parameters()] == [(24, 24), (8, 24), (8, 24), (24, 24)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 3), "n_heads: expected a divisor of d_model = 10, got 3"),
        ((12, 6, 4), "n_kv_heads: expected a divisor of n_heads = 6, got 4"),
        ((12, 3, 6), "n_kv_heads: expected a divisor of n_heads = 3, got 6"),
        ((0, 3), "d_model: expected an integer of at least 1, got 0"),
        ((12, 0), "n_heads: expected an integer of at least 1, got 0"),
        ((12, -3), "n_heads: expected an integer of at least 1, got -3"),
        ((12, 3, 0), "n_kv_heads: expected an integer of at least 1, got 0"),
        ((12.0, 3), "d_model: expected an integer of at least 1, got 12.0"),
        ((12, True), "n_heads: expected an integer of at least 1, got True"),
    ],
)
def test_counts_of_heads_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ShapeError, match=message):
        MultiHeadAttention(*arguments)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(5, 11), r"axis -1 of x: expected 12, got \[5, 11\]"),
        (torch.ones(12), r"x: expected at least 2 axes, .* got \[12\]"),
        (torch.ones(2, 0, 12), r"x: .* got \[2, 0, 12\]"),
        (
            torch.ones(5, 12, dtype=torch.int64),
            "dtype of x: expected a floating-point dtype, got torch.int64",
        ),
        (torch.ones(5, 12, dtype=torch.float64), "dtype of x: expected torch.float32, got torch.float64"),
    ],
)
def test_input_that_does_not_fit_the_heads_is_refused(x, message):
    with pytest.raises(ShapeError, match=message):
        MultiHeadAttention(12, 3)(x)


# --- gradients, against finite differences ---


def test_gradients_of_softmax_and_of_the_dot_product_are_right():
    assert torch.autograd.gradcheck(softmax, rand(3, 5).requires_grad_())
    a, b = rand(3, 5).requires_grad_(), rand(3, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(dot_product, (a, b))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_weights_and_self_attention_are_right(causal):
    q, k = rand(2, 3, 5).requires_grad_(), rand(2, 4, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: attention_weights(q, k, causal=causal), (q, k))

    tensors = tuple(
        rand(*shape, seed=i).requires_grad_() for i, shape in enumerate([(4, 5), (5, 3), (5, 3), (5, 2)])
    )

    def parts(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = self_attention(*inputs, causal=causal)
        return result.scores, result.weights, result.output

    assert torch.autograd.gradcheck(parts, tensors)
    assert torch.autograd.gradgradcheck(parts, tensors)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_gradients_of_many_heads_are_right_for_input_and_parameters(kv_heads):
    layer = MultiHeadAttention(4, 4, kv_heads, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,)).output

    assert torch.autograd.gradcheck(output, (rand(3, 4).requires_grad_(), *layer.parameters()))
