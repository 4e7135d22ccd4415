"""Operations on maps: hand-worked cases, and what must hold for any map."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_core.errors import ShapeError
from attention_core.maps import Aggregation, drop_first_token, largest, merge_words


def causal(*shape: int, seed: int = 3) -> torch.Tensor:
    """Random causal maps [..., token, token] in float64; rows sum to 1."""
    scores = torch.randn(
        *shape, shape[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    future = torch.ones(shape[-1], shape[-1], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)


HAND = torch.tensor([[1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.5, 0.2, 0.3]], dtype=torch.float64)


# --- drop_first_token ----------------------------------------------------------------------------------------


def test_dropping_the_sink_renormalises_what_is_left() -> None:
    # row 1: 0.25 / 0.25 = 1; row 2: 0.2 / 0.5 and 0.3 / 0.5
    dropped = drop_first_token(HAND, range(3))
    expected = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0.4, 0.6]], dtype=torch.float64)
    assert torch.allclose(dropped.weights, expected, atol=1e-15)
    assert not dropped.emptied.any()


def test_dropping_equals_division_by_one_minus_the_sinks_weight() -> None:
    maps = causal(2, 3, 7)
    dropped = drop_first_token(maps, range(7)).weights
    expected = maps[..., 1:, 1:] / (1 - maps[..., 1:, :1])
    assert torch.allclose(dropped[..., 1:, 1:], expected, atol=1e-13)
    assert (dropped[..., 1:, 0] == 0).all()
    assert torch.allclose(dropped.sum(-1), torch.ones(2, 3, 7, dtype=torch.float64), atol=1e-14)


def test_a_row_with_nothing_but_the_sink_becomes_zeros_and_is_marked() -> None:
    sink = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1 - 2e-7, 1e-7, 1e-7]], dtype=torch.float64)
    dropped = drop_first_token(sink, range(3))
    assert dropped.emptied.tolist() == [False, True, True]
    assert dropped.weights.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_rows_are_known_by_their_own_token_index() -> None:
    assert torch.equal(
        drop_first_token(HAND[1:], [1, 2]).weights, drop_first_token(HAND, range(3)).weights[1:]
    )
    with pytest.raises(ShapeError, match="queries"):
        drop_first_token(HAND, [0, 1])


def test_inputs_are_not_modified() -> None:
    maps = causal(2, 5)
    before = maps.clone()
    drop_first_token(maps, range(5))
    merge_words(maps, [[0, 1], [2], [3, 4]])
    Aggregation("rollout").add(maps)
    largest(maps, 2)
    assert torch.equal(maps, before)


# --- merge_words ---------------------------------------------------------------------------------------------


def test_words_sum_over_keys_and_average_over_queries() -> None:
    # words (0, 1) and (2): row of the first = mean of [1, 0] and [0.75 + 0.25, 0]; row of the second = [0.5 + 0.2, 0.3]
    merged = merge_words(HAND, [[0, 1], [2]])
    assert torch.allclose(merged, torch.tensor([[1, 0], [0.7, 0.3]], dtype=torch.float64), atol=1e-15)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.integers(0, 99))
def test_merged_rows_still_sum_to_one_and_equal_plain_loops(sizes: list[int], seed: int) -> None:
    bounds = np.cumsum([0, *sizes])
    words = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    maps = causal(3, int(bounds[-1]), seed=seed)
    merged = merge_words(maps, words)
    assert merged.shape == (3, len(words), len(words))
    assert torch.allclose(merged.sum(-1), torch.ones(3, len(words), dtype=torch.float64), atol=1e-12)
    for u, source in enumerate(words):
        for v, target in enumerate(words):
            expected = np.mean([maps[1, i, target].sum() for i in source])
            assert merged[1, u, v] == pytest.approx(expected, abs=1e-12)


def test_parts_of_a_map_add_up_to_the_whole() -> None:
    maps, words = causal(3, 7), [[0, 1], [2], [3, 4, 5], [6]]
    parts = [merge_words(maps[:, list(rows)], words, rows) for rows in (range(4), range(4, 7))]
    assert torch.allclose(parts[0] + parts[1], merge_words(maps, words), atol=1e-15)
    with pytest.raises(ShapeError, match="2 rows"):
        merge_words(maps, words, [0, 1])


@pytest.mark.parametrize("words", [[[0], [1]], [[0, 1], [1, 2]], [[0, 1, 2], [3]]])
def test_words_must_share_out_all_tokens(words: list[list[int]]) -> None:
    with pytest.raises(ShapeError, match="exactly one word"):
        merge_words(HAND, words)


# --- Aggregation ---------------------------------------------------------------------------------------------


def aggregated(method: str, maps: torch.Tensor) -> torch.Tensor:
    aggregation = Aggregation(method)  # type: ignore[arg-type]
    for layer in maps:
        aggregation.add(layer)
    return aggregation.finish()


def test_mean_and_max_equal_numpys_over_all_heads_and_layers() -> None:
    maps = causal(5, 3, 7)
    assert torch.allclose(aggregated("mean", maps), torch.from_numpy(maps.numpy().mean((0, 1))), atol=1e-15)
    assert torch.equal(aggregated("max", maps), torch.from_numpy(maps.numpy().max((0, 1))))


def test_layers_may_have_different_numbers_of_heads() -> None:
    maps = causal(4, 5)
    aggregation = Aggregation("mean")
    aggregation.add(maps[:1])
    aggregation.add(maps[1:])
    assert torch.allclose(aggregation.finish(), maps.mean(0), atol=1e-15)


def test_rollout_by_hand() -> None:
    # Two layers of one head on two tokens: A1 row 1 = [0.6, 0.4], A2 row 1 = [0.2, 0.8].
    # B1 = [[1, 0], [0.3, 0.7]], B2 = [[1, 0], [0.1, 0.9]]; B2 B1 row 1 = [0.1 + 0.9 * 0.3, 0.9 * 0.7] = [0.37, 0.63]
    first = torch.tensor([[[1.0, 0], [0.6, 0.4]]], dtype=torch.float64)
    second = torch.tensor([[[1.0, 0], [0.2, 0.8]]], dtype=torch.float64)
    expected = torch.tensor([[1, 0], [0.37, 0.63]], dtype=torch.float64)
    assert torch.allclose(aggregated("rollout", torch.stack([first, second])), expected, atol=1e-15)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_rollout_rows_sum_to_one_and_stay_causal(layers: int, heads: int, tokens: int, seed: int) -> None:
    rolled = aggregated("rollout", causal(layers, heads, tokens, seed=seed))
    assert torch.allclose(rolled.sum(-1), torch.ones(tokens, dtype=torch.float64), atol=1e-12)
    assert rolled.triu(1).count_nonzero() == 0


def test_an_emptied_row_of_a_rollout_becomes_the_identitys() -> None:
    sink = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [1, 0, 0]]], dtype=torch.float64)
    aggregation = Aggregation("rollout")
    aggregation.add(drop_first_token(sink, range(3), emptied="identity").weights)
    assert torch.equal(aggregation.finish(), torch.eye(3, dtype=torch.float64))


def test_aggregation_refuses_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="at least one"):
        Aggregation("mean").finish()
    aggregation = Aggregation("max")
    aggregation.add(causal(2, 5))
    with pytest.raises(ShapeError, match="weights"):
        aggregation.add(causal(2, 7))
    with pytest.raises(ShapeError, match="square"):
        Aggregation("rollout").add(causal(2, 5)[:, 1:])


# --- largest -------------------------------------------------------------------------------------------------


def test_largest_is_descending_with_ties_by_the_lower_key() -> None:
    row = torch.tensor([[0.2, 0.3, 0.0, 0.3, 0.2, 0.0]])
    top = largest(row, 3)
    assert top.keys.tolist() == [[1, 3, 0]]
    assert torch.equal(top.weights, torch.tensor([[0.3, 0.3, 0.2]]))
    assert largest(row, 99).keys.tolist() == [[1, 3, 0, 4, 2, 5]]
    with pytest.raises(ShapeError):
        largest(row, 0)


def test_largest_of_many_maps_are_those_of_each() -> None:
    maps = causal(2, 3, 7)
    top = largest(maps, 2)
    assert top.keys.shape == (2, 3, 7, 2)
    for layer in range(2):
        for head in range(3):
            one = largest(maps[layer, head], 2)
            assert torch.equal(top.keys[layer, head], one.keys)
            assert torch.equal(top.weights[layer, head], one.weights)


def test_only_the_words_asked_for_are_merged() -> None:
    maps, words = causal(3, 7), [[0, 1], [2], [3, 4, 5], [6]]
    assert torch.allclose(
        merge_words(maps, words, rows=[2, 0]), merge_words(maps, words)[:, [2, 0]], atol=1e-15
    )
