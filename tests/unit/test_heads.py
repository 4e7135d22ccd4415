import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_core.errors import ShapeError
from attention_core.heads import (
    SCORES,
    HeadResult,
    HeadScorer,
    LabelError,
    ScoreResult,
    definitions,
    label,
    summarise,
    thresholds_of,
)

LENGTHS = st.integers(1, 64)
NAMES = ["sink", "previous_token", "current_token"]


def one_hot(tokens: int, keys: list[int]) -> Tensor:
    weights = torch.zeros(tokens, tokens, dtype=torch.float64)
    weights[range(tokens), keys] = 1
    return weights


def perfect(name: str, tokens: int) -> Tensor:
    """A map [query, key] whose rows i >= 1 do one thing only."""
    keys = {
        "sink": [0] * tokens,
        "previous_token": [max(i - 1, 0) for i in range(tokens)],
        "current_token": list(range(tokens)),
    }
    return one_hot(tokens, keys[name])


def uniform(tokens: int) -> Tensor:
    ones = torch.ones(tokens, tokens, dtype=torch.float64).tril()
    return ones / ones.sum(-1, keepdim=True)


def random_maps(heads: int, tokens: int, seed: int = 7, dtype: torch.dtype = torch.float64) -> Tensor:
    scores = torch.randn(heads, tokens, tokens, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)


def score_maps(maps: Tensor, cuts: tuple[int, ...] = ()) -> tuple[HeadResult, ...]:
    """Score maps [head, query, key] of layer 0, cut into blocks of rows at `cuts`."""
    heads, tokens, _ = maps.shape
    scorer = HeadScorer(tokens, {0: range(heads)})
    edges = sorted({0, tokens, *cuts})
    for a, b in pairwise(edges):
        scorer.add(0, range(heads), range(a, b), maps[:, a:b, :b])
    return scorer.finish()


def numbers(result: ScoreResult) -> list[float | None]:
    return [result.score, result.baseline, result.excess, result.argmax_rate]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(tokens=LENGTHS)
def test_a_perfect_head_scores_exactly_one(name: str, tokens: int) -> None:
    (head,) = score_maps(perfect(name, tokens).unsqueeze(0))
    result = head.scores[name]
    if tokens == 1:
        assert (result.status, result.rows) == ("not_applicable", 0)
        return
    assert result.score == 1.0
    assert result.argmax_rate == 1.0
    assert result.rows == tokens - 1
    assert head.entropy == 0.0


@settings(deadline=None)
@given(tokens=st.integers(2, 64))
def test_a_uniform_head_has_no_excess_and_no_argmax_among_ties(tokens: int) -> None:
    (head,) = score_maps(uniform(tokens).unsqueeze(0))
    for result in head.scores.values():
        assert result.excess is not None
        assert abs(result.excess) <= 1e-12
        assert result.argmax_rate == 0.0
    mean_log = math.fsum(math.log(i + 1) for i in range(1, tokens)) / (tokens - 1)
    assert head.entropy == pytest.approx(mean_log, abs=1e-12)


@settings(deadline=None)
@given(tokens=LENGTHS, sharpness=st.floats(0, 300), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_no_number_is_ever_nan_or_infinite(tokens: int, sharpness: float, dtype: torch.dtype) -> None:
    scores = (
        torch.linspace(-1, 1, 3 * tokens * tokens, dtype=dtype).sin().reshape(3, tokens, tokens) * sharpness
    )
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    for head in score_maps(scores.masked_fill(future, float("-inf")).softmax(-1)):
        values = [head.entropy, *(n for result in head.scores.values() for n in numbers(result))]
        if tokens == 1:
            assert values == [None] * len(values)
        else:
            assert all(v is not None and math.isfinite(v) for v in values)


@settings(deadline=None)
@given(tokens=st.integers(2, 64), cuts=st.lists(st.integers(1, 63)))
def test_blocks_of_any_size_give_what_one_block_gives(tokens: int, cuts: list[int]) -> None:
    maps = random_maps(3, tokens)
    whole, pieces = score_maps(maps), score_maps(maps, tuple(c for c in cuts if c < tokens))
    for a, b in zip(whole, pieces, strict=True):
        assert (a.layer, a.head) == (b.layer, b.head)
        assert a.entropy == pytest.approx(b.entropy, abs=1e-12)
        for name in NAMES:
            assert numbers(a.scores[name]) == pytest.approx(numbers(b.scores[name]), abs=1e-12)
            assert (a.scores[name].rows, a.scores[name].status) == (
                b.scores[name].rows,
                b.scores[name].status,
            )


def test_a_long_block_gives_what_its_rows_give_one_by_one() -> None:
    # 13 heads of 331 tokens are more than fit in one pass over the block.
    maps = random_maps(13, 331, dtype=torch.float32)
    whole, rows = score_maps(maps), score_maps(maps, tuple(range(331)))
    for a, b in zip(whole, rows, strict=True):
        assert a.entropy == pytest.approx(b.entropy, abs=1e-12)
        assert [a.scores[n].argmax_rate for n in NAMES] == [b.scores[n].argmax_rate for n in NAMES]
        assert [a.scores[n].score for n in NAMES] == pytest.approx(
            [b.scores[n].score for n in NAMES], abs=1e-12
        )


def test_scores_are_those_worked_out_by_hand() -> None:
    maps = torch.tensor(
        [
            [
                [1.0, 0.0, 0.0, 0.0, 0.0],
                [0.75, 0.25, 0.0, 0.0, 0.0],
                [0.5, 0.25, 0.25, 0.0, 0.0],
                [0.5, 0.0, 0.5, 0.0, 0.0],  # 0 and 2 tie: neither wins
                [0.125, 0.125, 0.125, 0.5, 0.125],
            ]
        ]
    )
    (head,) = score_maps(maps)
    # sink          (0.75 + 0.5 + 0.5 + 0.125)/4, largest alone in rows 1 and 2
    # previous      (0.75 + 0.25 + 0.5 + 0.5)/4, largest alone in rows 1 and 4
    # current       (0.25 + 0.25 + 0 + 0.125)/4, never
    # baseline      (1/2 + 1/3 + 1/4 + 1/5)/4 = 77/240
    assert [head.scores[n].score for n in NAMES] == [0.46875, 0.5, 0.15625]
    assert [head.scores[n].argmax_rate for n in NAMES] == [0.5, 0.5, 0.0]
    assert [head.scores[n].baseline for n in NAMES] == pytest.approx([77 / 240] * 3, abs=1e-15)
    assert head.scores["sink"].excess == pytest.approx(0.46875 - 77 / 240, abs=1e-15)
    # entropy in units of ln 2: row 1 is 2 - 0.75 log2 3, row 2 is 1.5, row 3 is 1, row 4 is 0.5 + 4 * 3/8 = 2
    assert head.entropy == pytest.approx((2 - 0.75 * math.log2(3) + 1.5 + 1 + 2) / 4 * math.log(2), abs=1e-7)


def test_entropy_is_that_of_torch_distributions() -> None:
    maps = random_maps(5, 23)
    expected = torch.distributions.Categorical(probs=maps[:, 1:]).entropy().mean(-1)
    assert [h.entropy for h in score_maps(maps)] == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_pure_sink_is_below_the_baseline_of_a_previous_token_head() -> None:
    (head,) = score_maps(perfect("sink", 11).unsqueeze(0))
    result = head.scores["previous_token"]
    assert result.score == pytest.approx(1 / 10)  # row 1 alone: there the first token is the previous one
    assert result.excess is not None
    assert result.excess < 0
    assert label([head]) == (("sink",),)


@pytest.mark.parametrize("name", NAMES)
def test_the_closed_form_of_a_baseline_is_the_share_of_keys_that_count(name: str) -> None:
    rows = torch.arange(29)
    score = SCORES[name]
    counts = ((score.targets(rows) >= 0).sum(-1) * (rows >= score.first_row)).tolist()
    shares = [n / (i + 1) for i, n in enumerate(counts) if n]
    assert score.baseline(29) == pytest.approx(math.fsum(shares) / len(shares), abs=1e-15)


def test_one_token_is_not_applicable_and_carries_no_number() -> None:
    (head,) = score_maps(torch.ones(1, 1, 1))
    assert head.entropy is None
    assert set(head.scores.values()) == {ScoreResult(None, None, None, None, 0, "not_applicable")}
    assert label([head]) == ((),)


@pytest.mark.parametrize(("tokens", "status", "labels"), [(3, "too_short", ()), (4, "ok", ("sink",))])
def test_fewer_than_four_tokens_give_numbers_but_no_label(
    tokens: int, status: str, labels: tuple[str, ...]
) -> None:
    (head,) = score_maps(perfect("sink", tokens).unsqueeze(0))
    assert (head.scores["sink"].score, head.scores["sink"].status) == (1.0, status)
    assert label([head]) == (labels,)


def test_the_input_is_not_modified() -> None:
    maps = random_maps(3, 17)
    before = maps.clone()
    score_maps(maps, (5, 11))
    assert torch.equal(maps, before)


def test_a_map_that_requires_grad_can_be_scored() -> None:
    maps = random_maps(2, 7).requires_grad_()
    assert score_maps(maps) == score_maps(maps.detach())


def test_results_come_by_layer_then_head_whatever_the_order_of_the_blocks() -> None:
    tokens, maps = 7, random_maps(3, 7)
    scorer = HeadScorer(tokens, {5: [2, 0], 1: [1]})
    scorer.add(5, [2, 0], range(tokens), maps[[2, 0]])
    scorer.add(1, [1], range(tokens), maps[[1]])
    results = scorer.finish()
    assert [(r.layer, r.head) for r in results] == [(1, 1), (5, 0), (5, 2)]
    expected = score_maps(maps)
    assert [r.scores for r in results] == [expected[1].scores, expected[0].scores, expected[2].scores]


def test_heads_of_a_layer_may_come_apart() -> None:
    maps = random_maps(3, 11)
    scorer = HeadScorer(11, {0: range(3)})
    scorer.add(0, [1], range(11), maps[[1]])
    scorer.add(0, (2, 0), tuple(range(11)), maps[[2, 0]])
    assert scorer.finish() == score_maps(maps)


def test_a_scorer_needs_a_token_and_a_head() -> None:
    with pytest.raises(ShapeError, match="tokens: expected at least 1, got 0"):
        HeadScorer(0, {0: [0]})
    with pytest.raises(ShapeError, match="at least one head"):
        HeadScorer(3, {0: []})


@pytest.mark.parametrize(
    ("layer", "heads", "queries", "shape", "message"),
    [
        (4, [0], range(2), (1, 2, 2), r"layer: expected one of \(3,\), got 4"),
        (3, [2], range(2), (1, 2, 2), "heads of layer 3"),
        (3, [0, 0], range(2), (2, 2, 2), "heads of layer 3"),
        (3, [], range(2), (0, 2, 2), "heads of layer 3"),
        (3, [0], range(1, 2), (1, 1, 2), "the next rows in order, from 0"),
        (3, [0], range(0), (1, 0, 0), "got none"),
        (3, [0], [0, 2], (1, 2, 3), "the next rows in order"),
        (3, [0], range(6), (1, 6, 6), "at most to 4"),
        (3, [0], range(2), (1, 2, 5), r"expected \(1, 2, 2\), got \(1, 2, 5\)"),
        (3, [0, 1], range(2), (1, 2, 2), r"expected \(2, 2, 2\), got \(1, 2, 2\)"),
    ],
)
def test_a_block_that_does_not_fit_is_refused(
    layer: int, heads: list[int], queries: range | list[int], shape: tuple[int, ...], message: str
) -> None:
    scorer = HeadScorer(5, {3: [0, 1]})
    with pytest.raises(ShapeError, match=message):
        scorer.add(layer, heads, queries, torch.zeros(shape))


def test_a_repeated_or_a_missing_row_is_noticed() -> None:
    maps = random_maps(2, 5)
    scorer = HeadScorer(5, {0: [0, 1]})
    scorer.add(0, [0, 1], range(3), maps[:, :3, :3])
    with pytest.raises(ShapeError, match="from 3"):
        scorer.add(0, [0, 1], range(3), maps[:, :3, :3])
    scorer.add(0, [0], range(3, 5), maps[:1, 3:])
    with pytest.raises(ShapeError, match="same rows"):
        scorer.add(0, [1, 0], range(3, 5), maps[:, 3:])
    with pytest.raises(ShapeError, match=r"rows of layer 0, by head: expected 5, got \[5, 3\]"):
        scorer.finish()


def result(score: float, excess: float = 0.1, status: str = "ok") -> ScoreResult:
    return ScoreResult(score, score - excess, excess, 0.5, 5, status)  # type: ignore[arg-type]


def head_with(**scores: ScoreResult) -> HeadResult:
    return HeadResult(0, 0, {name: scores.get(name, result(0.0, -0.3)) for name in SCORES}, 1.0)


def test_a_head_carries_every_label_it_earns() -> None:
    assert label([head_with(sink=result(0.51), current_token=result(0.6)), head_with()]) == (
        ("sink", "current_token"),
        (),
    )


@pytest.mark.parametrize(
    "earned",
    [result(0.5), result(0.9, excess=0.0), result(0.9, excess=-0.01), result(0.9, status="too_short")],
    ids=["score at the threshold", "no excess", "negative excess", "too short"],
)
def test_no_label_without_score_excess_and_rows(earned: ScoreResult) -> None:
    assert label([head_with(sink=earned)]) == ((),)


def test_thresholds_override_and_labels_restrict() -> None:
    head = head_with(sink=result(0.4), previous_token=result(0.8))
    assert label([head], thresholds={"sink": 0.3}) == (("sink", "previous_token"),)
    assert label([head], thresholds={"previous_token": 0.85}) == ((),)
    assert label([head], thresholds={"sink": 0.3}, labels=["sink"]) == (("sink",),)
    assert thresholds_of(labels=["current_token", "sink"], thresholds={"sink": 0.25}) == {
        "sink": 0.25,
        "current_token": 0.5,
    }


@pytest.mark.parametrize(
    ("options", "code", "name"),
    [
        ({"labels": ["snk"]}, "unknown_option", "snk"),
        ({"thresholds": {"snk": 0.5}}, "unknown_option", "snk"),
        ({"thresholds": {"sink": 1.5}}, "out_of_range", "sink"),
        ({"thresholds": {"sink": float("nan")}}, "out_of_range", "sink"),
    ],
)
def test_a_label_or_threshold_that_cannot_be_used_is_refused(options: dict, code: str, name: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(LabelError) as raised:
        thresholds_of(**options)
    assert (raised.value.code, raised.value.name) == (code, name)


def test_the_summary_counts_heads_and_their_fraction() -> None:
    summary = summarise(
        [("sink",), (), ("sink", "current_token")], ["sink", "previous_token", "current_token"]
    )
    assert [(name, s.count, s.fraction) for name, s in summary.items()] == [
        ("sink", 2, 2 / 3),
        ("previous_token", 0, 0.0),
        ("current_token", 1, 1 / 3),
    ]
    with pytest.raises(ShapeError):
        summarise([], ["sink"])


def test_every_score_has_a_definition_with_the_threshold_in_use() -> None:
    found = definitions({"sink": 0.3})
    assert list(found) == list(SCORES)
    assert [d.threshold for d in found.values()] == [0.3, 0.5, 0.5]
    assert all(d.formula and d.baseline and d.source for d in found.values())
