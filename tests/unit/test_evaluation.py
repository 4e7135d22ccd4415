import itertools
import json
import math
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm, poisson_binom

from attention_core import evaluation
from attention_core.coreference import Reading, ask, score
from attention_core.errors import ShapeError
from attention_core.evaluation import (
    NO_CHOICE,
    Accuracy,
    Best,
    ChanceOfBest,
    Evaluation,
    EvaluationError,
    Item,
    Split,
    accuracy,
    chance_of_best,
    check_split,
    evaluate,
    held_out,
    holm,
)
from attention_core.spans import Token, align, resolve_span

DATA = Path(__file__).parents[2] / "service" / "data"


def tokens_of(text: str) -> tuple[Token, ...]:
    """A token for each word, with the space before it."""
    ends = [i for i, c in enumerate(text) if c == " "] + [len(text)]
    offsets = list(zip([0, *ends[:-1]], ends, strict=True))
    return align(text, range(len(offsets)), offsets, [""] * len(offsets)).tokens


def item(
    gold: int | None,
    *candidates: str,
    text: str = "So the fox met a cow before it ate.",
    group: str | None = None,
    reading: Reading | None = None,
) -> Item:
    tokens = tokens_of(text)
    spans = [resolve_span(text, tokens, span_text=name) for name in candidates or ("fox", "cow")]
    pronoun = resolve_span(text, tokens, span_text="it")
    return Item(ask(text, tokens, pronoun, spans, gold=gold, reading=reading or Reading()), text, group)


def numbered(golds: Sequence[int], *, groups: Sequence[str] | None = None) -> list[Item]:
    """Items of two candidates, each of a text of its own."""
    return [
        item(
            gold, text=f"So number {i} a fox met the cow before it ate.", group=groups[i] if groups else None
        )
        for i, gold in enumerate(golds)
    ]


def coin_heads(count: int) -> list[tuple[int, int]]:
    return [(h // 7, h % 7) for h in range(count)]


def codes(evaluation: Evaluation) -> list[str]:
    return [note.code for note in evaluation.warnings]


# --- statistics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [
        # Newcombe 1998, "Two-sided confidence intervals for the single proportion", Table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_known_from_elsewhere(correct: int, n: int, low: float, high: float) -> None:
    got = accuracy(correct, n)
    assert (got.correct, got.n, got.accuracy) == (correct, n, correct / n)
    assert got.ci95 == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize(("correct", "n", "low", "high"), [(4, 17, 0.096, 0.473), (46, 57, 0.687, 0.889)])
def test_wilson_intervals_of_the_projects_own_figures(correct: int, n: int, low: float, high: float) -> None:
    assert accuracy(correct, n).ci95 == pytest.approx((low, high), abs=5e-4)


@settings(deadline=None)
@given(st.integers(1, 499).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_ends_of_the_interval_are_the_proportions_just_rejected_by_the_score_test(
    of: tuple[int, int],
) -> None:
    correct, n = of
    got = accuracy(correct, n)
    assert got.ci95 is not None
    for end in got.ci95:
        # (p̂ - p)² = z² p (1 - p) / n
        assert (correct / n - end) ** 2 == pytest.approx(
            norm.ppf(0.975) ** 2 * end * (1 - end) / n, abs=1e-12
        )
    assert 0 <= got.ci95[0] <= correct / n <= got.ci95[1] <= 1


def test_no_item_has_no_accuracy() -> None:
    assert accuracy(0, 0) == Accuracy(0, 0, None, None)


@pytest.mark.parametrize(("correct", "n"), [(-1, 5), (6, 5), (1, 0)])
def test_more_right_than_there_are_items_is_refused(correct: int, n: int) -> None:
    with pytest.raises(ShapeError, match=rf"expected 0\.\.{n}"):
        accuracy(correct, n)


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # 4 x .005, 3 x .01, 2 x .03, 1 x .04 -> .06
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.5, 0.75, 0.001], [1.0, 1.0, 0.003]),
        ([0.25], [0.25]),
        ([0.125, 0.125], [0.25, 0.25]),
    ],
)
def test_holm_worked_out_by_hand(p_values: list[float], corrected: list[float]) -> None:
    assert holm(p_values).tolist() == pytest.approx(corrected, abs=1e-15)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=23), st.randoms(use_true_random=False))
def test_holm_keeps_the_order_and_lies_between_the_p_value_and_bonferronis(p: list[float], random) -> None:
    corrected = holm(p)
    for (a, a_corrected), (b, b_corrected) in itertools.pairwise(sorted(zip(p, corrected, strict=True))):
        assert a <= b
        assert a_corrected <= b_corrected
    assert all(p <= corrected)
    assert all(corrected <= np.minimum(1, np.array(p) * len(p)))
    assert corrected[np.argmin(p)] == min(1, min(p) * len(p))
    shuffled = random.sample(range(len(p)), len(p))
    assert holm([p[i] for i in shuffled]).tolist() == corrected[shuffled].tolist()


@pytest.mark.parametrize(
    ("n", "expected"), [(6, 0.999), (23, 0.795), (40, 0.727), (100, 0.645), (1000, 0.546)]
)
def test_what_the_best_of_336_coins_is_expected_to_reach(n: int, expected: float) -> None:
    got = chance_of_best(n, [2] * n, 336)
    assert (got.heads, got.n) == (336, n)
    assert got.expected_accuracy == pytest.approx(expected, abs=6e-4)


def test_some_of_336_coins_is_right_on_all_of_six_items() -> None:
    assert chance_of_best(6, [2] * 6, 336).probability == pytest.approx(1 - (63 / 64) ** 336, rel=1e-12)
    assert chance_of_best(6, [2] * 6, 336).probability == pytest.approx(0.995, abs=5e-4)


def test_the_chance_of_the_best_worked_out_by_hand() -> None:
    # Two coins, one item: some coin is right in 3 of 4 cases.
    assert chance_of_best(1, [2], 2) == ChanceOfBest(2, 1, 0.75, 0.75)
    # One head, an item of 2 and one of 3 candidates: P(X >= 1) = 1 - 1/2 x 2/3 = 2/3, P(X = 2) = 1/6
    got = chance_of_best(2, [2, 3], 1)
    assert (got.probability, got.expected_accuracy) == pytest.approx((1 / 6, 5 / 12), abs=1e-15)


def test_being_right_on_nothing_is_certain() -> None:
    assert chance_of_best(0, [2, 5, 3], 7).probability == 1


def test_an_item_that_cannot_be_missed_is_certain() -> None:
    assert chance_of_best(1, [1, 2], 3).probability == 1


def test_small_probabilities_do_not_vanish() -> None:
    assert chance_of_best(101, [2] * 101, 336).probability == pytest.approx(336 * 2.0**-101, rel=1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(2, 7), min_size=1, max_size=41), st.integers(1, 336), st.data())
def test_the_chance_of_the_best_with_mixed_numbers_of_candidates(
    candidates: list[int], heads: int, data: st.DataObject
) -> None:
    correct = data.draw(st.integers(0, len(candidates)))
    got = chance_of_best(correct, candidates, heads)
    one = poisson_binom([1 / c for c in candidates])
    at_least = 1 - one.cdf(np.arange(len(candidates))).clip(max=1) ** heads  # P(max >= 1), P(max >= 2), ..
    assert got.probability == pytest.approx(at_least[correct - 1] if correct else 1, abs=1e-10)
    assert got.expected_accuracy == pytest.approx(at_least.mean(), abs=1e-10)


def test_the_chance_of_the_best_on_so_many_items_that_most_probabilities_are_zero() -> None:
    pairs, trios = 4001, 3001
    one = np.convolve(*(binom.pmf(np.arange(n + 1), n, 1 / c) for n, c in ((pairs, 2), (trios, 3))))
    assert np.count_nonzero(one) < len(one) / 2
    at_least = -np.expm1(
        336 * np.log1p(-one[:0:-1].cumsum()[::-1].clip(max=1 - 1e-16))
    )  # [k - 1], P(max >= k)
    for correct in (2500, 3111, 3333, 7002):
        got = chance_of_best(correct, [2] * pairs + [3] * trios, 336)
        assert got.probability == pytest.approx(at_least[correct - 1], rel=1e-9)
        assert got.expected_accuracy == pytest.approx(at_least.mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("correct", "candidates", "heads"),
    [(0, [], 5), (0, [2, 0], 5), (3, [2, 2], 5), (-1, [2], 5), (0, [2], 0)],
)
def test_a_chance_of_nothing_is_refused(correct: int, candidates: list[int], heads: int) -> None:
    with pytest.raises(ShapeError):
        chance_of_best(correct, candidates, heads)


# --- the split ----------------------------------------------------------------------------------------------


def test_the_split_is_the_same_on_every_machine() -> None:
    groups = list("abcdefghijk")
    drawn = [
        "".join(g for g, test in zip(groups, held_out(groups, Split(0.3, seed)), strict=True) if test)
        for seed in range(3)
    ]
    assert drawn == ["adj", "afj", "cjk"]


@pytest.mark.parametrize(
    ("groups", "fraction", "test"),
    [(7, 0.5, 4), (10, 0.25, 3), (10, 0.24, 2), (11, 0.01, 1), (11, 0.99, 10), (2, 0.9, 1), (2, 0.1, 1)],
)
def test_the_share_of_groups_is_rounded_half_up_and_leaves_one_on_each_side(
    groups: int, fraction: float, test: int
) -> None:
    assert sum(held_out([f"g{i}" for i in range(groups)], Split(fraction))) == test


@given(
    st.lists(st.text(max_size=3), min_size=2, max_size=31).filter(lambda groups: len(set(groups)) > 1),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
    st.randoms(use_true_random=False),
)
def test_no_group_is_divided_whatever_the_order_of_the_items(
    groups: list[str], fraction: float, seed: int, random
) -> None:
    split = Split(fraction, seed)
    test = held_out(groups, split)
    sides = {(group, side) for group, side in zip(groups, test, strict=True)}
    assert len(sides) == len(set(groups))
    assert {side for _, side in sides} == {True, False}
    shuffled = random.sample(range(len(groups)), len(groups))
    assert held_out([groups[i] for i in shuffled], split) == tuple(test[i] for i in shuffled)


def test_every_group_is_held_out_by_some_seeds_in_proportion() -> None:
    groups = [f"g{i}" for i in range(5)]
    times = np.sum([held_out(groups, Split(0.4, seed)) for seed in range(1000)], axis=0)
    assert times.sum() == 2000
    assert all(340 < count < 460 for count in times)  # 400 ± 4 standard deviations of 15.5


@pytest.mark.parametrize("groups", [[], ["a"], ["a", "a", "a"]])
def test_one_group_cannot_be_split(groups: list[str]) -> None:
    with pytest.raises(EvaluationError, match=f"at least 2 groups.*got {len(set(groups))}") as raised:
        held_out(groups, Split(0.5))
    assert raised.value.code == "too_few_groups"


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, math.nan])
def test_a_share_that_leaves_one_side_empty_is_refused(fraction: float) -> None:
    with pytest.raises(EvaluationError, match="between 0 and 1") as raised:
        Split(fraction)
    assert raised.value.code == "out_of_range"


@pytest.mark.parametrize("seed", [-1, 0.5, True])
def test_a_seed_that_is_no_whole_number_is_refused(seed: int) -> None:
    with pytest.raises(ShapeError, match="seed: expected an integer of at least 0"):
        Split(0.5, seed)


# --- evaluation ---------------------------------------------------------------------------------------------


def test_an_evaluation_worked_out_by_hand() -> None:
    got = evaluate(
        numbered([0, 0, 0, 1, 1]),
        [(0, 0), (0, 1), (1, 0)],
        #  first, right but for one tie, mostly wrong
        [[0, 0, 1], [0, 0, 1], [0, NO_CHOICE, 0], [0, 1, 0], [0, 1, 1]],
    )
    assert (got.n, got.scored, got.skipped, got.test_items) == (5, 5, (), ())
    by_place = {(one.layer, one.head): one for one in got.heads}
    assert list(by_place) == [(0, 1), (0, 0), (1, 0)]  # best first: 4, 3 and 2 right

    head = by_place[0, 1]
    assert (head.dev, head.test) == (None, None)
    assert head.all == accuracy(4, 5)
    assert (head.gold_first, head.gold_not_first) == (accuracy(2, 3), accuracy(2, 2))
    assert head.balanced == pytest.approx(5 / 6)
    assert head.picks_first_rate == 0.4

    assert got.parts.keys() == {"all"}
    part = got.parts["all"]
    assert (part.n, part.first, part.nearest) == (5, accuracy(3, 5), accuracy(2, 5))
    assert (part.random, part.ceiling) == (0.5, 1.0)
    # P(X >= 4) of five coins is 6/32; Holm: 6/32, 16/32 and 26/32 times 3, 2 and 1
    assert got.best == Best(
        *(0, 1, None, None, accuracy(4, 5)),
        value=0.8,
        test_value=None,
        tied_heads=1,
        p_value=pytest.approx(6 / 32),
        p_value_holm=pytest.approx(18 / 32),
    )
    assert got.chance_of_best == chance_of_best(4, [2] * 5, 3)
    assert codes(got) == ["no_held_out_split", "too_few_items"]


def test_the_head_is_chosen_on_dev_and_reported_on_test() -> None:
    golds = [0, 1] * 17
    items = numbered(golds, groups=[f"pair {i // 2}" for i in range(34)])
    split = Split(0.5, seed=3)
    test = np.array(held_out([f"pair {i // 2}" for i in range(34)], split))
    gold = np.array(golds)
    right_on_dev = np.where(test, 1 - gold, gold)
    right_on_test = np.where(test, gold, 1 - gold)
    got = evaluate(items, [(0, 0), (3, 1)], np.stack([right_on_test, right_on_dev], 1), split=split)
    assert test.sum() == 18  # 9 of 17 pairs
    assert got.test_items == tuple(np.flatnonzero(test))
    assert got.best == Best(
        *(3, 1, accuracy(16, 16), accuracy(0, 18), accuracy(16, 34)),
        value=1.0,
        test_value=0.0,
        tied_heads=1,
        p_value=1.0,
        p_value_holm=1.0,
    )
    assert got.chance_of_best == chance_of_best(16, [2] * 16, 2)
    assert [(one.dev, one.test) for one in got.heads] == [
        (accuracy(16, 16), accuracy(0, 18)),
        (accuracy(0, 16), accuracy(18, 18)),
    ]
    assert [got.parts[name].n for name in ("dev", "test", "all")] == [16, 18, 34]
    assert [got.parts[name].first for name in ("dev", "test", "all")] == [
        *(accuracy(8, 16), accuracy(9, 18), accuracy(17, 34))
    ]
    assert codes(got) == ["too_few_items"]
    assert got.warnings[0].message.startswith(
        "there are 16 dev and 18 test items that are scored, fewer than 30"
    )


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=2, max_size=31).filter(lambda golds: len(set(golds)) == 2))
def test_a_head_that_always_picks_the_first_is_half_right_when_balanced(golds: list[int]) -> None:
    always_first, never_first = [0] * len(golds), [1] * len(golds)
    got = evaluate(numbered(golds), [(0, 0), (0, 1)], np.array([always_first, never_first]).T)
    one, other = sorted(got.heads, key=lambda head: head.head)
    assert (one.gold_first.accuracy, one.gold_not_first.accuracy) == (1, 0)
    assert (other.gold_first.accuracy, other.gold_not_first.accuracy) == (0, 1)
    assert (one.balanced, other.balanced) == (0.5, 0.5)
    assert (one.picks_first_rate, other.picks_first_rate) == (1, 0)
    assert one.all == got.parts["all"].first
    assert other.all == got.parts["all"].nearest


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.sampled_from(["accuracy", "balanced"]), st.booleans())
def test_neither_the_order_of_items_nor_that_of_heads_changes_anything(
    seed: int, rank_by, divided: bool
) -> None:
    random = np.random.default_rng(seed)
    items = [
        item(
            int(random.integers(3)),
            *random.permutation(["fox", "cow", "hen"]),
            text=f"So number {i} a fox, cow and hen went before it ate.".replace(",", " or"),
            group=None if i % 3 else f"g{i % 4}",
        )
        for i in range(23)
    ]
    heads = coin_heads(11)
    predictions = random.integers(-1, 3, (23, 11))
    split = Split(0.37, seed) if divided else None
    by_item, by_head = random.permutation(23), random.permutation(11)
    one = evaluate(items, heads, predictions, split=split, rank_by=rank_by)
    two = evaluate(
        [items[i] for i in by_item],
        [heads[h] for h in by_head],
        predictions[np.ix_(by_item, by_head)],
        split=split,
        rank_by=rank_by,
    )
    assert sorted(by_item[list(two.test_items)].tolist()) == list(one.test_items)
    for name in ("heads", "best", "chance_of_best", "parts", "warnings"):
        assert getattr(one, name) == getattr(two, name)


def test_equal_heads_are_won_by_the_lowest_layer_then_head() -> None:
    heads = [(2, 0), (1, 5), (1, 3), (0, 6)]
    got = evaluate(numbered([0, 1, 1]), heads, [[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert [(one.layer, one.head) for one in got.heads] == [(1, 3), (1, 5), (2, 0), (0, 6)]
    assert got.best is not None
    assert (got.best.layer, got.best.head, got.best.tied_heads) == (1, 3, 3)


def test_by_balanced_the_head_that_is_right_on_both_sides_wins() -> None:
    golds = [0] * 9 + [1] * 2
    picks_first = [0] * 11  # 9 of 11 right
    fair = [0] * 6 + [1] * 3 + [1] * 2  # 8 of 11 right: 2/3 and 1
    predictions = np.array([picks_first, fair]).T
    by_accuracy = evaluate(numbered(golds), [(0, 0), (0, 1)], predictions).best
    by_balanced = evaluate(numbered(golds), [(0, 0), (0, 1)], predictions, rank_by="balanced").best
    assert by_accuracy is not None
    assert by_balanced is not None
    assert (by_accuracy.head, by_accuracy.value) == (0, 9 / 11)
    assert (by_balanced.head, by_balanced.value) == (1, pytest.approx(5 / 6))


def test_fractions_that_are_equal_but_not_as_floats_are_a_tie() -> None:
    assert 0 / 3 + 5 / 6 > 1 / 3 + 3 / 6
    one = [1, 1, 1, *(1, 1, 1, 1, 1, 0)]
    other = [0, 1, 1, *(1, 1, 1, 0, 0, 0)]
    got = evaluate(
        numbered([0] * 3 + [1] * 6), [(1, 0), (0, 0)], np.array([one, other]).T, rank_by="balanced"
    )
    assert got.best is not None
    assert (got.best.layer, got.best.tied_heads) == (0, 2)


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=37))
def test_the_p_value_is_that_of_the_one_sided_binomial_test(predicted: list[int]) -> None:
    n = len(predicted)
    got = evaluate(numbered([0] * n), [(0, 0)], np.array([predicted]).T)
    expected = binomtest(predicted.count(0), n, 0.5, alternative="greater").pvalue
    assert got.best is not None
    assert got.best.p_value == pytest.approx(expected, rel=1e-9)
    assert got.best.p_value_holm == got.best.p_value


def test_with_mixed_numbers_of_candidates_the_random_baseline_is_their_mean() -> None:
    trio = ("fox", "cow", "hen")
    items = [
        item(0, *trio[: 2 + i % 2], text=f"So number {i} a fox met the cow and hen before it ate.")
        for i in range(20)
    ]
    predictions = [[0]] * 13 + [[1]] * 7
    got = evaluate(items, [(0, 0)], predictions)
    assert got.parts["all"].random == pytest.approx(5 / 12)
    assert got.best is not None
    assert got.best.p_value == pytest.approx(binomtest(13, 20, 5 / 12, alternative="greater").pvalue)
    exact = poisson_binom([1 / 2, 1 / 3] * 10).sf(12)
    assert exact < got.best.p_value
    assert got.chance_of_best is not None
    assert got.chance_of_best.probability == pytest.approx(exact)


# --- what is left out, what cannot be right -----------------------------------------------------------------


def test_an_item_with_one_candidate_is_left_out_of_every_number() -> None:
    items = [*numbered([0, 1, 1]), item(0, "fox")]
    got = evaluate([items[3], *items[:3]], [(0, 0)], [[0], [0], [0], [1]])
    assert (got.n, got.scored, got.skipped) == (4, 3, (0,))
    assert got.heads[0].all == accuracy(2, 3)
    assert got.heads[0].picks_first_rate == pytest.approx(2 / 3)
    assert got.parts["all"].first == accuracy(1, 3)
    assert codes(got) == ["single_candidate", "too_few_items"]
    assert got.warnings[0].message.startswith("1 of 4 items have one candidate")


def test_the_split_divides_scored_items_only() -> None:
    single = [item(0, "fox", group=f"single {i}") for i in range(5)]
    items = [*single, *numbered([0, 1], groups=["a", "b"])]
    got = evaluate(items, [(0, 0)], [[0]] * 7, split=Split(0.5))
    assert [got.parts[name].n for name in ("dev", "test")] == [1, 1]
    assert got.test_items in ((5,), (6,))


def test_items_without_a_group_are_groups_of_their_own_and_equal_ones_stay_together() -> None:
    items = [*numbered([0, 1, 1, 0, 1, 0, 0]), *numbered([0, 1, 1, 0, 1, 0, 0])]
    got = evaluate(items, [(0, 0)], [[0]] * 14, split=Split(0.43))
    assert got.parts["test"].n == 6
    assert {i % 7 for i in got.test_items[:3]} == {i % 7 for i in got.test_items[3:]}


def test_a_gold_candidate_after_the_pronoun_counts_as_wrong_and_lowers_the_ceiling() -> None:
    after = item(1, "fox", "cow", text="So the fox said that it met a cow")
    got = evaluate([after, *numbered([0, 1])], [(0, 0)], [[0], [0], [1]])
    assert got.heads[0].all == accuracy(2, 3)
    assert got.parts["all"].ceiling == pytest.approx(2 / 3)
    assert codes(got) == ["candidate_after_pronoun", "too_few_items", "ceiling_below_one"]


def test_a_gold_candidate_of_a_dropped_token_0_counts_as_wrong_and_lowers_the_ceiling() -> None:
    drop = Reading(first_token="drop")
    first = item(0, "Fox", "cow", text="Fox saw a cow when it ate", reading=drop)
    got = evaluate([first, *numbered([0, 1])], [(0, 0)], [[1], [0], [1]])
    assert got.parts["all"].ceiling == pytest.approx(2 / 3)
    assert codes(got) == ["candidate_on_first_token", "too_few_items", "ceiling_below_one"]


def test_texts_that_differ_after_the_pronoun_only_cap_what_a_head_can_reach() -> None:
    start = "So the fox met a cow when it"
    twins = [item(0, text=f"{start} fled."), item(1, text=f"{start} came."), item(1, text=f"{start} won.")]
    got = evaluate([*twins, *numbered([0, 1])], [(0, 0)], [[0]] * 5)
    assert got.parts["all"].ceiling == 0.8  # two of the three twins, and both others
    assert got.warnings[-1].code == "ceiling_below_one"
    assert "80.0%" in got.warnings[-1].message


def test_twins_are_known_by_their_spans_in_whichever_order_these_are_given() -> None:
    start = "So the fox met a cow and hen when it"
    one = item(0, "fox", "cow", text=f"{start} fled.")
    assert (
        evaluate([one, item(1, "cow", "fox", text=f"{start} came.")], [(0, 0)], [[0], [1]])
        .parts["all"]
        .ceiling
        == 1
    )  # the same gold
    assert (
        evaluate([one, item(0, "cow", "fox", text=f"{start} came.")], [(0, 0)], [[0], [1]])
        .parts["all"]
        .ceiling
        == 0.5
    )
    assert (
        evaluate([one, item(0, "cow", "hen", text=f"{start} came.")], [(0, 0)], [[0], [1]])
        .parts["all"]
        .ceiling
        == 1
    )  # another question


def test_the_first_candidate_is_the_first_in_the_text_not_in_the_list() -> None:
    got = evaluate([item(1, "cow", "fox")], [(0, 0)], [[1]])
    assert got.parts["all"].first == accuracy(1, 1)
    assert got.heads[0].gold_first == accuracy(1, 1)
    assert got.heads[0].picks_first_rate == 1


def test_one_side_without_items_leaves_balanced_undefined() -> None:
    items, predictions = numbered([0, 0, 0]), [[0], [0], [1]]
    got = evaluate(items, [(0, 0)], predictions)
    assert got.heads[0].gold_not_first == Accuracy(0, 0, None, None)
    assert got.heads[0].balanced is None
    assert got.best is not None
    undefined = evaluate(items, [(0, 0)], predictions, rank_by="balanced")
    assert (undefined.best, undefined.chance_of_best) == (None, None)
    assert undefined.heads == got.heads
    assert codes(got) == codes(undefined) == ["too_few_items", "one_sided_gold"]
    assert got.warnings[1].message.startswith(
        "of all items the gold candidate is always the first one: what goes by the place"
    )


def test_a_part_with_gold_on_one_side_only_is_named() -> None:
    test = held_out(["a", "b"], Split(0.5))
    items = numbered([0 if side else 1 for side in test], groups=["a", "b"])
    got = evaluate(items, coin_heads(2), [[0, 0], [0, 0]], split=Split(0.5))
    assert [note.message.split(":")[0] for note in got.warnings if note.code == "one_sided_gold"] == [
        "of test items the gold candidate is always the first one",
        "of dev items the gold candidate is never the first one",
    ]


@pytest.mark.parametrize("split", [None, Split(0.5)])
def test_nothing_to_score_is_an_answer_without_numbers(split: Split | None) -> None:
    got = evaluate([item(0, "fox")], [(0, 0), (0, 1)], [[0, 0]], split=split)
    assert (got.scored, got.best, got.chance_of_best) == (0, None, None)
    assert got.heads[0].all == Accuracy(0, 0, None, None)
    assert got.heads[0].picks_first_rate is None
    assert (got.parts["all"].random, got.parts["all"].ceiling) == (None, None)
    assert codes(got) == ["single_candidate", "too_few_items"]
    nothing = evaluate([], [(0, 0)], np.empty((0, 1), dtype=int), split=split)
    assert (nothing.n, nothing.best, codes(nothing)) == (0, None, ["too_few_items"])


def test_enough_items_and_a_split_leave_nothing_to_warn_of() -> None:
    got = evaluate(numbered([0, 1] * 30), coin_heads(3), [[0, 1, 0]] * 60, split=Split(0.5))
    assert got.warnings == ()
    assert codes(evaluate(numbered([0, 1] * 30), coin_heads(3), [[0, 1, 0]] * 60)) == ["no_held_out_split"]
    assert codes(evaluate(numbered([0, 1] * 30), coin_heads(1), [[0]] * 60)) == []  # nothing was chosen


def test_no_warning_says_that_a_head_refers_or_understands() -> None:
    drop = Reading(first_token="drop")
    twins = [item(gold, text=f"So the fox met a cow when it {gold}") for gold in (0, 1)]
    after = item(1, text="So the fox said that it met a cow")
    first = item(0, "Fox", "cow", text="Fox saw a cow when it ate", reading=drop)
    got = evaluate([*twins, after, first, item(0, "fox")], coin_heads(2), [[0, 0]] * 5)
    assert codes(got) == [
        "single_candidate",
        "candidate_after_pronoun",
        "candidate_on_first_token",
        "no_held_out_split",
        "too_few_items",
        "ceiling_below_one",
    ]
    for note in got.warnings:
        assert not any(word in note.message for word in ("refer", "understand"))


# --- what comes in ------------------------------------------------------------------------------------------


def test_predictions_may_be_a_tensor_an_array_or_lists() -> None:
    items, heads = numbered([0, 1, 1]), coin_heads(2)
    lists = [[0, 1], [1, -1], [0, 1]]
    expected = evaluate(items, heads, lists)
    assert evaluate(items, heads, torch.tensor(lists)) == expected
    assert evaluate(items, heads, np.array(lists, dtype=np.int8)) == expected


def asked_once(items: Sequence[Item]) -> Iterator[Item]:
    """The items, which can be looked at only once."""
    return (one for one in items)


@pytest.mark.parametrize("split", [None, Split(0.4, 3)])
def test_items_may_come_one_by_one(split: Split | None) -> None:
    items = [*numbered([0, 1, 1, 0, 1], groups=list("aabbc")), item(0, "fox"), *numbered([1, 0])]
    predictions = [[0, 1], [1, 0], [1, 1], [-1, 1], [0, 1], [0, 0], [1, 0], [0, 1]]
    expected = evaluate(items, coin_heads(2), predictions, split=split)
    assert (expected.n, expected.scored, expected.skipped) == (8, 7, (5,))
    assert evaluate(asked_once(items), coin_heads(2), predictions, split=split) == expected
    check_split(asked_once(items), split)


def test_a_split_of_items_that_come_one_by_one_is_checked() -> None:
    items = [*numbered([0, 1], groups=["a", "a"]), item(0, "fox", group="b")]  # b has nothing to split
    with pytest.raises(EvaluationError, match=r"at least 2 groups.*got 1"):
        check_split(asked_once(items), Split(0.5))
    with pytest.raises(EvaluationError, match="item 1 has no gold"):
        check_split(asked_once([item(0), item(None)]), None)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("block", [1, 7, 4096])
def test_neither_the_integer_type_nor_the_size_of_a_block_changes_anything(
    dtype: type[np.integer], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(13)
    golds = random.integers(0, 2, 31)
    items = [item(0, "fox"), *numbered(golds.tolist(), groups=[f"g{i % 11}" for i in range(31)])]
    predictions = np.vstack([np.zeros(23, dtype=int), random.integers(-1, 2, (31, 23))])
    split = Split(0.3, 1)
    expected = evaluate(items, coin_heads(23), predictions, split=split)
    right = {
        head: int((predictions[1:, h] == golds).sum())  # counted here
        for h, head in enumerate(coin_heads(23))
    }
    assert {(one.layer, one.head): one.all.correct for one in expected.heads} == right
    monkeypatch.setattr(evaluation, "_BLOCK", block)
    assert evaluate(items, coin_heads(23), predictions.astype(dtype), split=split) == expected


def test_a_choice_that_is_none_is_named_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_BLOCK", 3)
    predictions = np.zeros((11, 5), dtype=np.int8)
    predictions[7, 4] = predictions[8, 0] = 2
    with pytest.raises(ShapeError, match=r"predictions\[7, 4\]: expected -1\.\.1, got 2"):
        evaluate(numbered([0] * 11), coin_heads(5), predictions)


def test_an_evaluation_takes_less_memory_than_its_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_BLOCK", 64)
    question, n = item(1).question, 6007
    predictions = np.ones((n, 1009), dtype=np.int8)
    items = (Item(question, f"So the fox met a cow before it ate {i}.", f"g{i % 7}") for i in range(n))
    tracemalloc.start()
    try:
        got = evaluate(items, coin_heads(1009), predictions, split=Split(0.5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got.heads[0].all.correct == n
    assert peak < predictions.nbytes  # so not even one copy, in bytes, was made


def test_predictions_are_not_modified() -> None:
    predictions = np.array([[0, 1], [1, -1], [0, 1]])
    before = predictions.copy()
    evaluate(numbered([0, 1, 1]), coin_heads(2), predictions, split=Split(0.5))
    assert np.array_equal(predictions, before)


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ([[0], [1]], r"3 x 2 integers, got int64 \(2, 1\)"),
        ([[0, 0, 0], [0, 0, 0]], r"got int64 \(2, 3\)"),  # the axes swapped
        ([[0.0, 1.0]] * 3, "got float64"),
        ([[False, True]] * 3, "got bool"),
        ([[0, 1], [0, 2], [0, 0]], r"predictions\[1, 1\]: expected -1\.\.1, got 2"),
        ([[0, 1], [0, 1], [-2, 0]], r"predictions\[2, 0\]: expected -1\.\.1, got -2"),
    ],
)
def test_predictions_that_choose_no_candidate_are_refused(predictions: list[list[int]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        evaluate(numbered([0, 1, 1]), coin_heads(2), predictions)


@pytest.mark.parametrize("heads", [[], [(0, 0), (0, 0)]])
def test_heads_are_at_least_one_and_distinct(heads: list[tuple[int, int]]) -> None:
    with pytest.raises(ShapeError, match="at least one, all distinct"):
        evaluate(numbered([0]), heads, np.zeros((1, len(heads)), dtype=int))


def test_an_item_without_gold_is_refused() -> None:
    with pytest.raises(EvaluationError, match="item 1 has no gold") as raised:
        evaluate([item(0), item(None)], [(0, 0)], [[0], [0]])
    assert (raised.value.code, raised.value.index) == ("missing_field", 1)


def test_an_unknown_rank_is_refused() -> None:
    with pytest.raises(EvaluationError, match="rank_by: expected accuracy, balanced, got 'luck'") as raised:
        evaluate([item(0)], [(0, 0)], [[0]], rank_by="luck")  # type: ignore[arg-type]
    assert raised.value.code == "unknown_option"


def test_from_attention_to_accuracy() -> None:
    # Head 1 attends to the first candidate, head 2 to the last token before the pronoun, head 0 to token 0.
    items = numbered([0, 1, 0, 0, 1])
    predictions = []
    for one in items:
        (query,) = one.question.queries
        attention = torch.zeros(3, query + 1, query + 1)
        attention[0, query, 0] = attention[2, query, query - 1] = 1
        attention[1, query, one.question.candidates[0].token_indices] = 1
        answers = score(one.question, 0, range(3), attention[:, one.question.queries])
        predictions.append([NO_CHOICE if a.predicted is None else a.predicted for a in answers])
    got = evaluate(items, [(0, h) for h in range(3)], predictions)
    assert [(one.head, one.all.correct, one.picks_first_rate) for one in got.heads] == [
        *((1, 3, 1.0), (0, 0, 0.0), (2, 0, 0.0))
    ]


@pytest.mark.parametrize(
    ("file", "n", "first", "nearest"), [("easy.jsonl", 6, 6, 0), ("control.jsonl", 17, 0, 17)]
)
def test_baselines_of_the_projects_own_sentences(file: str, n: int, first: int, nearest: int) -> None:
    items = []
    for line in (DATA / file).read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        tokens = tokens_of(one["text"])
        pronoun, *nouns = (
            resolve_span(one["text"], tokens, start=span["start"], end=span["end"])
            for span in (one["pronoun"], *one["candidates"])
        )
        items.append(
            Item(ask(one["text"], tokens, pronoun, nouns, gold=one["gold"]), one["text"], one["group"])
        )
    got = evaluate(items, [(0, 0)], [[0]] * n)
    part = got.parts["all"]
    assert (part.first, part.nearest, part.random, part.ceiling) == (
        accuracy(first, n),
        accuracy(nearest, n),
        0.5,
        1,
    )
