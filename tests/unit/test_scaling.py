"""The √d experiment: the article's figures, and softmax's Jacobian against automatic differentiation."""

import math

import numpy as np
import pytest
import torch

from attention_core import ShapeError, scaling_experiment, softmax_jacobian_norm


@pytest.fixture(scope="module")
def article():
    """The article's sizes: 10,000 queries, 64 keys, d = 16, 64, 256, 1024."""
    return {row.d: row for row in scaling_experiment()}


def test_dot_products_spread_as_the_square_root_of_the_width(article):
    spreads = {d: row.spread for d, row in article.items()}
    assert spreads == pytest.approx({16: 4, 64: 8, 256: 16, 1024: 32}, rel=0.01)


def test_without_scaling_the_top_weight_rises_to_nearly_one(article):
    tops = [article[d].top_weight_unscaled for d in (16, 64, 256, 1024)]
    assert tops == sorted(tops)
    assert tops[-1] == pytest.approx(0.95, abs=0.005)


def test_with_scaling_the_top_weight_stays_where_it_is(article):
    assert [row.top_weight_scaled for row in article.values()] == pytest.approx([0.107] * 4, abs=0.001)


def test_without_scaling_the_gradient_falls_with_the_width_and_with_scaling_it_does_not(article):
    unscaled = [article[d].jacobian_norm_unscaled for d in (16, 64, 256, 1024)]
    scaled = [article[d].jacobian_norm_scaled for d in (16, 64, 256, 1024)]
    assert unscaled == sorted(unscaled, reverse=True)
    assert unscaled[-1] < unscaled[0] / 4
    assert scaled == pytest.approx([scaled[0]] * 4, rel=0.01)


def test_the_figures_of_independent_normal_scores_agree_with_a_direct_draw(article):
    # Scaled scores have the distribution of q·k/√d; drawn here by numpy, one vector product at a time.
    generator = np.random.default_rng(1)
    tops = []
    for _ in range(2000):
        scores = generator.standard_normal((64, 16)) @ generator.standard_normal(16)
        weights = np.exp(scores) / np.exp(scores).sum()
        tops.append(weights.max())
    error = np.std(tops) / math.sqrt(len(tops))
    assert article[16].top_weight_unscaled == pytest.approx(np.mean(tops), abs=4 * error)


def test_the_same_seed_gives_the_same_row_and_another_seed_another():
    small = {"queries": 101, "keys": 7}
    first, second = scaling_experiment((5, 11), **small, seed=3)
    assert scaling_experiment((11,), **small, seed=3) == (second,)
    assert first.d == 5
    assert second.d == 11
    assert scaling_experiment((11,), **small, seed=4) != (second,)


def test_sizes_that_do_not_fit_one_chunk_use_every_query():
    # 3 queries of 2 keys with d = 400,000 need more than one draw; the spread √400,000 = 632 shows them all.
    (row,) = scaling_experiment((400_000,), queries=211, keys=2)
    assert row.spread == pytest.approx(math.sqrt(400_000), rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_the_norm_of_the_jacobian_is_that_of_automatic_differentiation(seed):
    scores = 3 * torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), scores)
    norm = softmax_jacobian_norm(torch.softmax(scores, -1))
    assert norm.item() == pytest.approx(torch.linalg.matrix_norm(jacobian).item(), abs=1e-15)


def test_the_norm_of_the_jacobian_is_worked_by_hand_for_equal_and_one_hot_weights():
    # p = (½, ½): J = [[¼, -¼], [-¼, ¼]], norm ½. One-hot: J = 0. Four equal weights: √3 / 4.
    p = torch.tensor(
        [[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64
    )
    assert softmax_jacobian_norm(p).tolist() == pytest.approx([0.5, 0, math.sqrt(3) / 4], abs=1e-15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dims": (16, 0)}, "dims: expected an integer of at least 1, got 0"),
        ({"dims": (16.0,)}, "dims: expected an integer of at least 1, got 16.0"),
        ({"queries": 0}, "queries: expected an integer of at least 1, got 0"),
        ({"keys": -1}, "keys: expected an integer of at least 1, got -1"),
    ],
)
def test_counts_below_one_are_refused(arguments, message):
    with pytest.raises(ShapeError, match=message):
        scaling_experiment(**arguments)


def test_a_norm_of_integers_or_of_no_keys_is_refused():
    with pytest.raises(ShapeError, match=r"dtype of p: expected a floating-point dtype, got torch\.int64"):
        softmax_jacobian_norm(torch.tensor([0, 1]))
    with pytest.raises(ShapeError, match=r"p: .* got \[3, 0\]"):
        softmax_jacobian_norm(torch.ones(3, 0))
