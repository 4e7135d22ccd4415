import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attention_core
from attention_core.capture import AttentionReader
from attention_core.errors import ShapeError
from attention_core.heads import (
    LABELS,
    NOISE,
    PROBE_RULES,
    SCORES,
    HeadResult,
    HeadResults,
    HeadScorer,
    LabelError,
    Pool,
    PooledHead,
    ScoreResult,
    ScoreRule,
    Status,
    TextFacts,
    borderline,
    definitions,
    is_punctuation,
    label,
    mae_similarities,
    pattern_rule,
    pool,
    ranking,
    repeat_probe,
    scoring,
    strongest,
    summarise,
    text_facts,
    thresholds_of,
    with_probe,
)
from tests.tiny import tiny_backbone

LENGTHS = st.integers(1, 64)
# Few ids and many full stops, so that tokens repeat
TEXTS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["a", " b", ".", "?!"])), min_size=1, max_size=64
)
MASS = [name for name, rule in SCORES.items() if rule.kind == "mass"]


def facts(tokens: int) -> TextFacts:
    """A text in which no token repeats and none is punctuation."""
    return text_facts(range(100, 100 + tokens))


def facts_of(text: Sequence[tuple[int, str]]) -> TextFacts:
    return text_facts([one for one, _ in text], [string for _, string in text])


def target_set(name: str, i: int, text: Sequence[tuple[int, str]]) -> set[int]:
    """S_i as the table words it; empty where row i is not applicable."""
    ids = [one for one, _ in text]
    earlier = range(i)
    found = {
        "sink": {0} if i >= 1 else set(),
        "first_token": {0},
        "previous_token": {i - 1} if i >= 1 else set(),
        "offset_2": {i - 2} if i >= 2 else set(),
        "offset_3": {i - 3} if i >= 3 else set(),
        "current_token": {i} if i >= 1 else set(),
        "duplicate_token": {j for j in earlier if ids[j] == ids[i]},
        "induction": {j for j in earlier if j >= 1 and ids[j - 1] == ids[i]},
        "punctuation": {j for j in earlier if j >= 1 and text[j][1] in (".", "?!")},
        "local": {i - 3, i - 2, i - 1, i} if i >= 4 else set(),
    }
    return found[name]


def one_hot(keys: Sequence[int]) -> Tensor:
    weights = torch.zeros(len(keys), len(keys), dtype=torch.float64)
    weights[range(len(keys)), keys] = 1
    return weights


def perfect(name: str, text: Sequence[tuple[int, str]]) -> Tensor:
    """A map [query, key] whose applicable rows put all on one target key, another one from row to row."""
    keys = []
    for i in range(len(text)):
        targets = sorted(target_set(name, i, text))
        keys.append(targets[i % len(targets)] if targets else i)
    return one_hot(keys)


def pure_sink(tokens: int) -> Tensor:
    return one_hot([0] * tokens)


def uniform(tokens: int) -> Tensor:
    ones = torch.ones(tokens, tokens, dtype=torch.float64).tril()
    return ones / ones.sum(-1, keepdim=True)


def random_maps(heads: int, tokens: int, seed: int = 7, dtype: torch.dtype = torch.float64) -> Tensor:
    scores = torch.randn(heads, tokens, tokens, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)


def score_maps(
    maps: Tensor,
    cuts: tuple[int, ...] = (),
    text: TextFacts | None = None,
    rules: dict[str, ScoreRule] | None = None,
) -> HeadResults:
    """Score maps [head, query, key] of layer 0, cut into blocks of rows at `cuts`."""
    heads, tokens, _ = maps.shape
    scorer = HeadScorer(text or facts(tokens), {0: range(heads)}, rules=rules or SCORES)
    edges = sorted({0, tokens, *cuts})
    for a, b in pairwise(edges):
        scorer.add(0, range(heads), range(a, b), maps[:, a:b, :b])
    return scorer.finish()


def numbers(result: ScoreResult) -> list[float | None]:
    return [result.score, result.baseline, result.excess, result.argmax_rate]


def assert_close(a: HeadResult, b: HeadResult, tolerance: float = 1e-12) -> None:
    assert (a.layer, a.head, list(a.scores)) == (b.layer, b.head, list(b.scores))
    assert a.entropy == pytest.approx(b.entropy, abs=tolerance)
    for name, one in a.scores.items():
        other = b.scores[name]
        assert numbers(one) == pytest.approx(numbers(other), abs=tolerance), name
        assert (one.rows, one.status) == (other.rows, other.status), name


@pytest.mark.parametrize("name", MASS)
@settings(deadline=None)
@given(text=TEXTS)
def test_a_perfect_head_scores_exactly_one(name: str, text: list[tuple[int, str]]) -> None:
    (head,) = score_maps(perfect(name, text).unsqueeze(0), text=facts_of(text))
    result = head.scores[name]
    rows = sum(bool(target_set(name, i, text)) for i in range(len(text)))
    assert result.rows == rows
    if rows == 0:
        assert result == ScoreResult(None, None, None, None, 0, "not_applicable")
    else:
        assert (result.score, result.argmax_rate) == (1.0, 1.0)
    assert head.entropy == (0.0 if len(text) > 1 else None)


@settings(deadline=None)
@given(text=TEXTS)
def test_a_uniform_head_has_no_excess_and_no_argmax_among_ties(text: list[tuple[int, str]]) -> None:
    tokens = len(text)
    (head,) = score_maps(uniform(tokens).unsqueeze(0), text=facts_of(text))
    for name, result in head.scores.items():
        if result.status == "not_applicable":
            assert numbers(result) == [None] * 4
            continue
        assert result.excess is not None
        assert abs(result.excess) <= 1e-12
        if name in ("broad", "distance"):
            assert result.argmax_rate is None
        else:  # row 0 has but one key, and only first_token counts that row
            assert result.argmax_rate == (1 / tokens if name == "first_token" else 0.0)
    if tokens > 1:
        mean_log = math.fsum(math.log(i + 1) for i in range(1, tokens)) / (tokens - 1)
        assert head.entropy == pytest.approx(mean_log, abs=1e-12)


@settings(deadline=None)
@given(text=TEXTS)
def test_every_score_is_what_its_target_sets_say(text: list[tuple[int, str]]) -> None:
    tokens = len(text)
    maps = random_maps(2, tokens)
    for head, weights in zip(score_maps(maps, text=facts_of(text)), maps.tolist(), strict=True):
        for name in MASS:
            sets = {i: target_set(name, i, text) for i in range(tokens)}
            rows = {i: s for i, s in sets.items() if s}
            found = head.scores[name]
            assert found.rows == len(rows)
            if rows:
                mass = math.fsum(weights[i][j] for i, s in rows.items() for j in s) / len(rows)
                baseline = math.fsum(len(s) / (i + 1) for i, s in rows.items()) / len(rows)
                hits = sum(weights[i].index(max(weights[i])) in s for i, s in rows.items()) / len(rows)
                assert numbers(found) == pytest.approx([mass, baseline, mass - baseline, hits], abs=1e-12)


@settings(deadline=None)
@given(text=TEXTS, sharpness=st.floats(0, 300), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_no_number_is_ever_nan_or_infinite(
    text: list[tuple[int, str]], sharpness: float, dtype: torch.dtype
) -> None:
    tokens = len(text)
    scores = (
        torch.linspace(-1, 1, 3 * tokens * tokens, dtype=dtype).sin().reshape(3, tokens, tokens) * sharpness
    )
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    for head in score_maps(scores.masked_fill(future, float("-inf")).softmax(-1), text=facts_of(text)):
        assert head.entropy is None if tokens == 1 else math.isfinite(head.entropy or 0)
        for name, result in head.scores.items():
            if result.status == "not_applicable":
                assert (numbers(result), result.rows) == ([None] * 4, 0)
            else:
                wanted = numbers(result)[: 3 if name in ("broad", "distance") else 4]
                assert all(v is not None and math.isfinite(v) for v in wanted)
        evenness = head.scores["broad"].excess
        assert evenness is None or evenness <= 0


@settings(deadline=None)
@given(text=TEXTS, cuts=st.lists(st.integers(1, 63)))
def test_blocks_of_any_size_give_what_one_block_gives(text: list[tuple[int, str]], cuts: list[int]) -> None:
    maps = random_maps(3, len(text))
    whole = score_maps(maps, text=facts_of(text))
    pieces = score_maps(maps, tuple(c for c in cuts if c < len(text)), text=facts_of(text))
    for a, b in zip(whole, pieces, strict=True):
        assert_close(a, b)


def test_a_long_block_gives_what_its_rows_give_one_by_one() -> None:
    # 13 heads of 331 tokens are more than fit in one pass over the block.
    text = text_facts([i * i % 53 for i in range(331)], [".a"[i % 7 > 0] for i in range(331)])
    maps = random_maps(13, 331, dtype=torch.float32)
    whole, rows = score_maps(maps, text=text), score_maps(maps, tuple(range(331)), text=text)
    for a, b in zip(whole, rows, strict=True):
        assert {name for name, result in a.scores.items() if result.status != "ok"} == {"coreference"}
        assert_close(a, b, 2e-6)


@settings(deadline=None)
@given(text=TEXTS, seed=st.integers(0, 99))
def test_a_row_is_a_hit_when_every_largest_weight_is_on_a_target(
    text: list[tuple[int, str]], seed: int
) -> None:
    levels = np.tril(
        np.random.default_rng(seed).integers(1, 4, (2, len(text), len(text)))
    )  # so that many tie
    weights = levels / levels.sum(-1, keepdims=True)
    for head, rows in zip(
        score_maps(torch.from_numpy(weights), text=facts_of(text)), levels.tolist(), strict=True
    ):
        for name in MASS:
            sets = {i: found for i in range(len(text)) if (found := target_set(name, i, text))}
            hits = [{j for j, one in enumerate(rows[i]) if one == max(rows[i])} <= s for i, s in sets.items()]
            assert head.scores[name].argmax_rate == (sum(hits) / len(hits) if hits else None)


def test_a_block_may_be_overwritten_once_it_is_taken() -> None:
    text = text_facts([i * i % 11 for i in range(37)], [".a"[i % 5 > 0] for i in range(37)])
    maps = random_maps(3, 37)
    scorer, buffer = HeadScorer(text, {0: range(3)}), torch.empty(3 * 13 * 37, dtype=maps.dtype)
    for a, b in ((0, 13), (13, 26), (26, 37)):
        block = buffer[: 3 * (b - a) * b].view(3, b - a, b)
        scorer.add(0, range(3), range(a, b), block.copy_(maps[:, a:b, :b]))
        buffer.fill_(float("nan"))
    for found, expected in zip(scorer.finish(), score_maps(maps, text=text), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("room", [0, 5_000, 1 << 25])
def test_a_layer_gets_the_same_whatever_was_kept_for_it(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_facts([i * i % 11 for i in range(79)], [".a"[i % 5 > 0] for i in range(79)])
    maps = random_maps(5, 79)
    expected = score_maps(maps, text=text)
    monkeypatch.setattr(scoring, "_CHUNK", 2_000)
    monkeypatch.setattr(scoring, "_KEPT", room)
    layers = {2: range(5), 3: [4], 7: range(5), 9: [4]}
    scorer = HeadScorer(text, layers)
    for layer, heads in layers.items():
        scorer.add(layer, heads, range(79), maps[list(heads)])
    for found in scorer.finish():
        alike = expected[found.head]
        assert_close(found, HeadResult(found.layer, found.head, alike.scores, alike.entropy))


@pytest.mark.parametrize("held", [0, 400, 1 << 18])
def test_maps_that_wait_for_others_give_what_each_gives_at_once(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_HELD", held)
    text = text_facts([i * i % 5 for i in range(11)], [".a"[i % 5 > 0] for i in range(11)])
    layers = {2: (0, 1, 2), 3: (1,), 7: (2, 0), 9: (1, 2)}
    every = random_maps(12, 11).view(4, 3, 11, 11)
    scorer = HeadScorer(text, layers)
    for (layer, heads), maps in zip(layers.items(), every, strict=True):
        if layer == 7:  # in two blocks, while others wait
            scorer.add(layer, heads, range(5), maps[list(heads), :5, :5])
            scorer.add(layer, heads, range(5, 11), maps[list(heads), 5:])
        else:
            scorer.add(layer, heads, range(11), maps[list(heads)])
    found = iter(scorer.finish())
    for (layer, heads), maps in zip(layers.items(), every, strict=True):
        for head in sorted(heads):
            (alone,) = score_maps(maps[[head]], text=text)
            assert_close(next(found), HeadResult(layer, head, alone.scores, alone.entropy))


def test_a_layer_that_is_no_number_is_refused_before_the_end() -> None:
    maps = random_maps(3, 7)
    scorer = HeadScorer(facts(7), {4: [0, 1, 2], 5: [0, 1, 2]})

    def add_all() -> None:
        scorer.add(4, [0, 1, 2], range(7), maps * math.nan)
        scorer.add(5, [0, 1, 2], range(7), maps)

    with pytest.raises(ShapeError, match="finite"):
        add_all()
    with pytest.raises(ShapeError, match=r"rows of layer 4, by head: expected 7, got \[0, 0, 0\]"):
        scorer.finish()


@settings(deadline=None, max_examples=30)
@given(text=TEXTS)
def test_results_are_the_same_together_and_one_by_one(text: list[tuple[int, str]]) -> None:
    together = score_maps(random_maps(7, len(text)), text=facts_of(text))
    each = list(together)
    assert len(together) == len(each) == 7
    assert together == each
    assert together != each[1:]
    assert [together[place] for place in range(-7, 7)] == [*each, *each]
    assert together[2:5] == tuple(each[2:5])
    with pytest.raises(IndexError):
        together[7]
    assert together.as_dicts() == [asdict(one) for one in each]
    limits = thresholds_of(thresholds=dict.fromkeys(LABELS, 0.2))
    assert label(together, limits) == label(each, limits)
    assert borderline(together, limits) == borderline(each, limits)
    for name in SCORES:
        assert strongest(together, name, count=3) == strongest(each, name, count=3)
        assert ranking(together, name, count=3) == [
            (one.layer, one.head, one.scores[name].score) for one in strongest(each, name, count=3)
        ]
    assert pool_of([together, together]).as_dict() == pool_of([each, each]).as_dict()
    assert pool_of([together]).as_dict() == pool_of([each]).as_dict()


def test_a_target_may_count_for_a_fraction() -> None:
    rule = ScoreRule("half of what lies before", "", "", lambda text, query, key: (key < query) * 0.5)
    (head,) = score_maps(BY_HAND.unsqueeze(0), rules={"half": rule})
    assert head.scores["half"].score == (0.75 + 0.75 + 1 + 0.875) / 4 / 2


def test_a_batch_of_heads_gives_what_each_gives_alone() -> None:
    text = text_facts([i * i % 11 for i in range(29)], [".a"[i % 5 > 0] for i in range(29)])
    maps = random_maps(7, 29)
    for index, together in enumerate(score_maps(maps, text=text)):
        (alone,) = score_maps(maps[index : index + 1], text=text)
        assert_close(together, HeadResult(0, index, alone.scores, alone.entropy))


BY_HAND = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0, 0.0],
        [0.75, 0.25, 0.0, 0.0, 0.0],
        [0.5, 0.25, 0.25, 0.0, 0.0],
        [0.5, 0.0, 0.5, 0.0, 0.0],  # 0 and 2 tie: neither wins
        [0.125, 0.125, 0.125, 0.5, 0.125],
    ]
)


@pytest.mark.parametrize(
    ("name", "score", "argmax_rate", "baseline", "rows"),
    [
        # largest alone in rows 1 and 2
        ("sink", (0.75 + 0.5 + 0.5 + 0.125) / 4, 2 / 4, 77 / 240, 4),
        # and in row 0
        ("first_token", (1 + 0.75 + 0.5 + 0.5 + 0.125) / 5, 3 / 5, (1 + 77 / 60) / 5, 5),
        # rows 1 and 4; the baseline is (1/2 + 1/3 + 1/4 + 1/5)/4
        ("previous_token", (0.75 + 0.25 + 0.5 + 0.5) / 4, 2 / 4, 77 / 240, 4),
        ("offset_2", (0.5 + 0 + 0.125) / 3, 1 / 3, (1 / 3 + 1 / 4 + 1 / 5) / 3, 3),
        ("offset_3", (0.5 + 0.125) / 2, 0.0, (1 / 4 + 1 / 5) / 2, 2),
        ("current_token", (0.25 + 0.25 + 0 + 0.125) / 4, 0.0, 77 / 240, 4),
        # ids 3 8 3 8 3: row 2 {0}, row 3 {1}, row 4 {0, 2}
        ("duplicate_token", (0.5 + 0 + 0.25) / 3, 1 / 3, (1 / 3 + 1 / 4 + 2 / 5) / 3, 3),
        # row 2 {1}, row 3 {2} in a tie, row 4 {1, 3}
        ("induction", (0.25 + 0.5 + 0.625) / 3, 1 / 3, (1 / 3 + 1 / 4 + 2 / 5) / 3, 3),
        # a . . a a: row 2 {1}, rows 3 and 4 {1, 2}
        ("punctuation", (0.25 + 0.5 + 0.25) / 3, 0.0, (1 / 3 + 2 / 4 + 2 / 5) / 3, 3),
        # row 4 {1, 2, 3, 4}
        ("local", 0.875, 1.0, 4 / 5, 1),
        # entropies in units of ln 2 over log2(i + 1): row 1 is 2 - 0.75 log2 3, row 2 1.5, row 3 1, row 4 2
        (
            "broad",
            ((2 - 0.75 * math.log2(3)) / 1 + 1.5 / math.log2(3) + 1 / 2 + 2 / math.log2(5)) / 4,
            None,
            1.0,
            4,
        ),
        # 0.75 in row 1, 1 + 0.25, 1.5 + 0.5, 0.5 + 0.375 + 0.25 + 0.5; and 5/4
        ("distance", (0.75 + 1.25 + 2.0 + 1.625) / 4, None, 5 / 4, 4),
    ],
)
def test_scores_are_those_worked_out_by_hand(
    name: str, score: float, argmax_rate: float | None, baseline: float, rows: int
) -> None:
    text = text_facts([3, 8, 3, 8, 3], ["a", ".", ".", "a", "a"])
    (head,) = score_maps(BY_HAND.unsqueeze(0), text=text)
    result = head.scores[name]
    assert numbers(result) == pytest.approx([score, baseline, score - baseline, argmax_rate], abs=1e-7)
    assert (result.rows, result.status) == (rows, "ok")
    # row 1 is 2 - 0.75 log2 3, row 2 is 1.5, row 3 is 1, row 4 is 0.5 + 4 * 3/8 = 2
    assert head.entropy == pytest.approx((2 - 0.75 * math.log2(3) + 1.5 + 1 + 2) / 4 * math.log(2), abs=1e-7)


def test_entropy_is_that_of_torch_distributions() -> None:
    maps = random_maps(5, 23)
    expected = torch.distributions.Categorical(probs=maps[:, 1:]).entropy().mean(-1)
    assert [h.entropy for h in score_maps(maps)] == pytest.approx(expected.tolist(), abs=1e-12)


def harmonic(n: int) -> float:
    return math.fsum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize("tokens", [5, 29])
def test_baselines_have_their_closed_forms(tokens: int) -> None:
    H = harmonic(tokens)
    (head,) = score_maps(pure_sink(tokens).unsqueeze(0))
    expected = {
        "sink": (H - 1) / (tokens - 1),
        "first_token": H / tokens,
        "previous_token": (H - 1) / (tokens - 1),
        "offset_2": (H - harmonic(2)) / (tokens - 2),
        "offset_3": (H - harmonic(3)) / (tokens - 3),
        "current_token": (H - 1) / (tokens - 1),
        "local": 4 * (H - harmonic(4)) / (tokens - 4),
        "broad": 1.0,
        "distance": tokens / 4,
    }
    found = {name: r.baseline for name, r in head.scores.items() if r.status != "not_applicable"}
    assert found == pytest.approx(expected, abs=1e-14)


def test_one_token_has_a_first_token_and_nothing_else() -> None:
    (head,) = score_maps(torch.ones(1, 1, 1))
    assert head.entropy is None
    assert head.scores["first_token"] == ScoreResult(1.0, 1.0, 0.0, 1.0, 1, "too_short")
    others = {result for name, result in head.scores.items() if name != "first_token"}
    assert others == {ScoreResult(None, None, None, None, 0, "not_applicable")}
    assert label([head], thresholds_of(thresholds={"first_token": 0.3})) == ((),)


@pytest.mark.parametrize(
    ("tokens", "status", "labels"), [(3, "too_short", ()), (4, "ok", ("sink", "offset_3"))]
)
def test_fewer_than_four_tokens_give_numbers_but_no_label(
    tokens: int, status: str, labels: tuple[str, ...]
) -> None:
    (head,) = score_maps(pure_sink(tokens).unsqueeze(0))
    assert (head.scores["sink"].score, head.scores["sink"].status) == (1.0, status)
    assert label([head]) == (labels,)


@pytest.mark.parametrize("name", ["duplicate_token", "induction", "punctuation"])
@pytest.mark.parametrize(("rows", "status"), [(1, "too_short"), (2, "too_short"), (3, "ok")])
def test_scores_about_the_text_need_three_rows_to_carry_a_label(name: str, rows: int, status: str) -> None:
    # token 1 is a full stop, and from row 2 on come as many rows as asked for that have a target
    ids = [7, 7, *[7] * rows, *range(10, 15)]
    texts = ["a"] * len(ids)
    if name == "punctuation":
        texts[len(ids) - rows - 1] = "."
    if name == "duplicate_token":
        ids = ids[1:]
        texts = texts[1:]
    text = list(zip(ids, texts, strict=True))
    (head,) = score_maps(perfect(name, text).unsqueeze(0), text=facts_of(text))
    assert (head.scores[name].rows, head.scores[name].status, head.scores[name].score) == (rows, status, 1.0)
    assert (name in label([head])[0]) == (status == "ok")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in (".", " ...\n", "?!", "。", "“")),
        *((text, False) for text in ("", " ", "a.", "$", "+", "1", "’s")),
    ],
)
def test_punctuation_is_what_unicode_calls_so(text: str, expected: bool) -> None:
    assert is_punctuation(text) is expected


def test_facts_need_a_token_and_one_text_for_each() -> None:
    with pytest.raises(ShapeError, match="tokens: expected at least 1, got 0"):
        text_facts([])
    with pytest.raises(ShapeError, match="texts: expected one for each of 3 tokens, got 2"):
        text_facts([1, 2, 3], ["a", "b"])


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
    scorer = HeadScorer(facts(tokens), {5: [2, 0], 1: [1]})
    scorer.add(5, [2, 0], range(tokens), maps[[2, 0]])
    scorer.add(1, [1], range(tokens), maps[[1]])
    results = scorer.finish()
    assert [(r.layer, r.head) for r in results] == [(1, 1), (5, 0), (5, 2)]
    expected = score_maps(maps)
    for result, head in zip(results, (1, 0, 2), strict=True):
        assert_close(
            result, HeadResult(result.layer, result.head, expected[head].scores, expected[head].entropy)
        )


def test_heads_of_a_layer_may_come_apart() -> None:
    maps = random_maps(3, 11)
    scorer = HeadScorer(facts(11), {0: range(3)})
    scorer.add(0, [1], range(11), maps[[1]])
    scorer.add(0, (2, 0), tuple(range(11)), maps[[2, 0]])
    for apart, together in zip(scorer.finish(), score_maps(maps), strict=True):
        assert_close(apart, together)


def test_a_scorer_needs_a_head() -> None:
    with pytest.raises(ShapeError, match="at least one head"):
        HeadScorer(facts(3), {0: []})


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
    scorer = HeadScorer(facts(5), {3: [0, 1]})
    with pytest.raises(ShapeError, match=message):
        scorer.add(layer, heads, queries, torch.zeros(shape))


def test_a_repeated_or_a_missing_row_is_noticed() -> None:
    maps = random_maps(2, 5)
    scorer = HeadScorer(facts(5), {0: [0, 1]})
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
    assert label([head], thresholds_of(thresholds={"sink": 0.3})) == (("sink", "previous_token"),)
    assert label([head], thresholds_of(thresholds={"previous_token": 0.85})) == ((),)
    assert label([head], thresholds_of(thresholds={"sink": 0.3}, labels=["sink"])) == (("sink",),)
    assert thresholds_of(labels=["current_token", "sink"], thresholds={"sink": 0.25}) == {
        "sink": 0.25,
        "current_token": 0.5,
    }


@pytest.mark.parametrize(
    ("options", "code", "name"),
    [
        ({"labels": ["snk"]}, "unknown_option", "snk"),
        ({"labels": ["coreference"]}, "unknown_option", "coreference"),
        ({"thresholds": {"distance": 0.5}}, "unknown_option", "distance"),
        ({"labels": ["first_token"]}, "out_of_range", "first_token"),
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
    found = definitions(thresholds_of(thresholds={"sink": 0.3}))
    assert list(found) == list(SCORES)
    assert {name: d.threshold for name, d in found.items()} == {
        "sink": 0.3,
        "first_token": None,
        "previous_token": 0.5,
        "offset_2": 0.5,
        "offset_3": 0.5,
        "current_token": 0.5,
        "duplicate_token": 0.5,
        "induction": 0.5,
        "punctuation": 0.6,
        "local": 0.6,
        "broad": 0.8,
        "distance": None,
        "coreference": None,
    }
    assert all(d.formula and d.baseline and d.source for d in found.values())


def test_labels_are_all_scores_but_those_that_cannot_be_one() -> None:
    assert set(SCORES) - set(LABELS) == {"distance", "coreference"}
    first_token = head_with(first_token=result(0.4))
    assert label([first_token], thresholds_of(thresholds={"first_token": 0.3})) == (("first_token",),)


def test_broad_needs_its_threshold_and_no_excess() -> None:
    assert [label([head_with(broad=result(score, excess=score - 1))]) for score in (0.79, 0.8, 1.0)] == [
        ((),),
        (("broad",),),
        (("broad",),),
    ]


@pytest.mark.parametrize(
    ("one", "near"),
    [
        (result(0.5 + NOISE / 2), True),
        (result(0.5 - NOISE / 2), True),
        (result(0.5 + 2 * NOISE), False),
        (result(0.5 - 2 * NOISE), False),
        (result(0.9, excess=NOISE / 2), True),
        (result(0.9, excess=-NOISE / 2), True),
        (result(0.9, excess=2 * NOISE), False),
        (result(0.1, excess=0.0), False),  # far below the threshold whatever the excess
        (result(0.5, excess=-0.2), False),  # the excess decides
        (result(0.5, status="too_short"), False),
    ],
)
def test_a_label_that_noise_may_turn_is_borderline(one: ScoreResult, near: bool) -> None:
    assert borderline([head_with(sink=one)]) == ((("sink",) if near else ()),)


def test_borderline_follows_the_thresholds_and_labels_asked_for() -> None:
    head = head_with(sink=result(0.5), broad=result(0.6 - NOISE / 2, excess=-0.4))
    assert borderline([head]) == (("sink",),)
    assert borderline([head], thresholds_of(thresholds={"broad": 0.6})) == (("sink", "broad"),)
    assert borderline([head], thresholds_of(thresholds={"broad": 0.6}, labels=["broad"])) == (("broad",),)


# --- several texts ------------------------------------------------------------------------------------------


def test_pooling_is_the_mean_over_the_texts_whose_status_is_ok() -> None:
    none = ScoreResult(None, None, None, None, 0, "not_applicable")
    texts = [
        [head_with(induction=ScoreResult(0.75, 0.25, 0.5, 1.0, 5, "ok"))],
        [head_with(induction=ScoreResult(0.25, 0.125, 0.125, 0.5, 3, "ok"))],
        [head_with(induction=ScoreResult(1.0, 0.5, 0.5, 1.0, 2, "too_short"))],
        [head_with(induction=none)],
    ]
    (head,) = pool(texts)
    found = head.scores["induction"]
    assert numbers(found) == [0.5, 0.1875, 0.3125, 0.75]
    assert (found.rows, found.status, found.n) == (8, "ok", 2)
    assert found.sd == math.sqrt(0.125)  # (0.25² + 0.25²)/1
    assert head.texts_agreeing["induction"] == 1
    assert head.texts_agreeing["sink"] == 0
    assert label([head]) == ((),)  # 0.5 is not above 0.5
    assert label([head], thresholds_of(thresholds={"induction": 0.4})) == (("induction",),)
    assert pool(texts, thresholds_of(thresholds={"induction": 0.2}, labels=["induction"]))[
        0
    ].texts_agreeing == {"induction": 2}


def test_pooling_agrees_with_numpy_and_scipy() -> None:
    values = np.random.default_rng(5).uniform(size=7)
    (head,) = pool([[head_with(sink=result(float(value)))] for value in values])
    found = head.scores["sink"]
    low, high = scipy.stats.t.interval(0.95, 6, values.mean(), scipy.stats.sem(values))
    assert [found.score, found.sd, *(found.ci95 or ())] == pytest.approx(
        [values.mean(), values.std(ddof=1), low, high], abs=1e-12
    )
    assert found.excess == pytest.approx(0.1)
    assert found.baseline == pytest.approx(values.mean() - 0.1)


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["not_applicable", "too_short"], "too_short"),
        (["not_applicable", "not_applicable"], "not_applicable"),
    ],
)
def test_no_text_with_status_ok_leaves_no_number(statuses: list[str], status: str) -> None:
    (head,) = pool([[head_with(sink=result(0.9, status=one))] for one in statuses])
    found = head.scores["sink"]
    assert (numbers(found), found.sd, found.ci95, found.n, found.rows) == ([None] * 4, None, None, 0, 0)
    assert found.status == status
    assert "sink" not in label([head])[0]


def test_one_text_has_no_deviation() -> None:
    (head,) = pool([[head_with(sink=result(0.9))]])
    assert (head.scores["sink"].score, head.scores["sink"].n) == (0.9, 1)
    assert (head.scores["sink"].sd, head.scores["sink"].ci95) == (None, None)


def test_pooled_entropy_leaves_out_the_texts_that_have_none() -> None:
    one_token = score_maps(torch.ones(2, 1, 1))
    long = score_maps(random_maps(2, 13))
    pooled = pool([long, one_token, long])
    assert [head.entropy for head in pooled] == pytest.approx([head.entropy for head in long])
    assert [head.entropy for head in pool([one_token])] == [None, None]


def test_texts_with_other_heads_or_none_cannot_be_pooled() -> None:
    with pytest.raises(ShapeError, match="texts: expected at least one, got 0"):
        pool([])
    with pytest.raises(ShapeError, match="results of text 1"):
        pool([score_maps(random_maps(2, 7)), score_maps(random_maps(3, 7))])


# --- in parts


POOLED = ("sink", "induction", "broad", "distance")  # of these, distance has no argmax_rate


def drawn_texts(texts: int, seed: int, *, heads: int = 3) -> list[list[HeadResult]]:
    """Results of any status, some without an entropy, as no real head gives them."""
    random = np.random.default_rng(seed)

    def drawn(name: str) -> ScoreResult:
        status = random.choice(["ok", "ok", "ok", "too_short", "not_applicable"])
        if status == "not_applicable":
            return ScoreResult(None, None, None, None, 0, "not_applicable")
        value, baseline, rate = random.uniform(size=3).tolist()
        rows = int(random.integers(1, 97))
        return ScoreResult(
            value, baseline, value - baseline, None if name == "distance" else rate, rows, status
        )

    return [
        [
            HeadResult(
                head // 2,
                head % 2,
                {name: drawn(name) for name in POOLED},
                float(random.uniform()) if random.uniform() < 0.8 else None,
            )
            for head in range(heads)
        ]
        for _ in range(texts)
    ]


def pool_of(texts: Sequence[Sequence[HeadResult]]) -> Pool:
    found = Pool()
    for heads in texts:
        found.add(heads)
    return found


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 23), st.integers(0, 2**32), st.data())
def test_parts_merged_in_any_order_are_what_numpy_and_scipy_say_of_all_texts(
    count: int, seed: int, data: st.DataObject
) -> None:
    texts = drawn_texts(count, seed)
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=7)))
    parts = [pool_of(texts[a:b]) for a, b in pairwise([0, *cuts, count])]
    while len(parts) > 1:  # any two, until one is left
        one = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts[data.draw(st.integers(0, len(parts) - 1))].merge(one)
    assert parts[0].texts == count
    pooled = parts[0].finish()
    limits = thresholds_of()
    labels = [label(heads) for heads in texts]
    for place, head in enumerate(pooled):
        assert (head.layer, head.head) == (place // 2, place % 2)
        of_head = [heads[place] for heads in texts]
        entropies = [
            one.entropy
            for one in of_head
            if one.entropy is not None and any(score.status == "ok" for score in one.scores.values())
        ]
        assert head.entropy == (pytest.approx(np.mean(entropies), rel=1e-12) if entropies else None)
        assert head.texts_agreeing == {
            name: sum(name in of_text[place] for of_text in labels) for name in limits if name in POOLED
        }
        for name, found in head.scores.items():
            usable = [one.scores[name] for one in of_head if one.scores[name].status == "ok"]
            assert (found.n, found.rows) == (len(usable), sum(one.rows for one in usable))
            if not usable:
                short = any(one.scores[name].status == "too_short" for one in of_head)
                assert found.status == ("too_short" if short else "not_applicable")
                assert (numbers(found), found.sd, found.ci95) == ([None] * 4, None, None)
                continue
            assert found.status == "ok"
            values = np.array(
                [numbers(one) for one in usable], dtype=np.float64
            )  # [text, number], None as NaN
            means = [0.0 if number is None else number for number in numbers(found)]
            assert means == pytest.approx(np.nan_to_num(values.mean(0)).tolist(), rel=1e-12, abs=1e-14)
            assert (found.argmax_rate is None) == (name == "distance")
            if len(usable) == 1:
                assert (found.sd, found.ci95) == (None, None)
                continue
            sd, mean = values[:, 0].std(ddof=1), values[:, 0].mean()
            assert found.sd == pytest.approx(sd, rel=1e-12, abs=1e-14)
            half = scipy.stats.t.ppf(0.975, len(usable) - 1) * sd / math.sqrt(len(usable))
            assert found.ci95 == pytest.approx((mean - half, mean + half), rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 13), st.integers(0, 2**32))
def test_a_stored_pool_is_the_pool_to_the_last_bit(count: int, seed: int) -> None:
    texts = drawn_texts(count + 1, seed)
    whole = pool_of(texts[:count])
    state = json.dumps(whole.as_dict(), allow_nan=False)
    stored = Pool.from_dict(json.loads(state))
    assert orjson.loads(orjson.dumps(whole.as_dict())) == json.loads(state)
    assert json.dumps(stored.as_dict()) == state
    whole.add(texts[count])
    stored.add(texts[count])
    assert stored.finish() == whole.finish()


def test_a_stored_pool_keeps_its_limits_in_their_order() -> None:
    limits = {"sink": 0.125, "broad": 0.5, "induction": 1 / 3}
    found = Pool(limits)
    stored = Pool.from_dict(json.loads(json.dumps(found.as_dict(), sort_keys=True)))
    stored.add([head_with()])
    assert list(stored.finish()[0].texts_agreeing) == ["sink", "broad", "induction"]
    with pytest.raises(ShapeError, match="limits of the other pool"):
        stored.merge(Pool())


def test_a_stored_pool_that_lost_a_number_is_refused() -> None:
    state = pool_of(drawn_texts(2, 7)).as_dict()
    state["mean"].pop()
    with pytest.raises(ShapeError, match=r"mean of a stored pool: expected \(51,\), got \(50,\)"):
        Pool.from_dict(state)  # 3 heads x 4 scores x 4 numbers, 3 entropies


def test_what_a_stored_pool_takes_on_does_not_reach_what_was_stored() -> None:
    first, second = drawn_texts(2, 11)
    found = pool_of([first])
    state = found.as_dict()
    before = json.dumps(state)
    Pool.from_dict(state).add(second)
    found.add(second)
    assert json.dumps(state) == before


def test_a_part_without_a_text_adds_nothing_and_finishes_nothing() -> None:
    texts = drawn_texts(3, 5)
    for found, other in ((pool_of(texts), Pool()), (Pool(), pool_of(texts))):
        found.merge(other)
        assert (found.texts, found.finish()) == (3, pool(texts))
    empty = Pool()
    empty.merge(Pool())
    with pytest.raises(ShapeError, match="texts: expected at least one, got 0"):
        empty.finish()


def test_merging_leaves_the_other_pool_as_it_was() -> None:
    texts = drawn_texts(5, 3)
    other = pool_of(texts[2:])
    before = other.as_dict()
    found = Pool()
    found.merge(other)
    found.merge(pool_of(texts[:2]))
    assert other.as_dict() == before


@pytest.mark.parametrize(
    "others",
    [
        drawn_texts(1, 1, heads=2),
        [[HeadResult(9, one.head, one.scores, one.entropy) for one in drawn_texts(1, 1)[0]]],
        [[HeadResult(one.layer, one.head, {"sink": result(0.9)}, 1.0) for one in drawn_texts(1, 1)[0]]],
    ],
    ids=["fewer heads", "another layer", "fewer scores"],
)
def test_what_has_other_heads_or_scores_is_refused_and_changes_nothing(
    others: list[list[HeadResult]],
) -> None:
    found = pool_of(drawn_texts(3, 1))
    before = found.as_dict()
    with pytest.raises(ShapeError, match="results of text 3: expected the heads and scores of text 0"):
        found.add(others[0])
    with pytest.raises(ShapeError, match="the other pool: expected the heads and scores of this one"):
        found.merge(pool_of(others))
    assert found.as_dict() == before


@pytest.mark.parametrize("limits", [{"sink": 0.3}, {"broad": 0.5, "sink": 0.5}, {}])
def test_pools_with_other_limits_cannot_be_merged(limits: dict[str, float]) -> None:
    with pytest.raises(ShapeError, match="limits of the other pool"):
        Pool({"sink": 0.5, "broad": 0.5}).merge(Pool(limits))


def test_scores_that_all_but_agree_keep_their_deviation() -> None:
    # Of 1 - 10⁻⁹ k the sum of squares less n mean² has no correct digit left: sd = 10⁻⁹ √(n (n + 1) / 12)
    count = 97
    texts = [[head_with(sink=result(1 - 1e-9 * k))] for k in range(count)]
    parts = [pool_of(texts[at : at + 13]) for at in range(0, count, 13)]
    found = parts[0]
    for part in parts[1:]:
        found.merge(part)
    expected = pytest.approx(1e-9 * math.sqrt(count * (count + 1) / 12), rel=1e-6)
    assert found.finish()[0].scores["sink"].sd == expected
    assert pool(texts)[0].scores["sink"].sd == expected


def test_a_text_counts_for_a_label_exactly_where_it_carries_it() -> None:
    # At the threshold: broad carries its label, the others need more; no label without an excess above 0
    texts = [
        [head_with(**{name: result(score, excess) for name in ("sink", "broad")})]
        for score in (math.nextafter(0.5, 0), 0.5, math.nextafter(0.5, 1))
        for excess in (0.25, 0.0)
    ]
    limits = {"sink": 0.5, "broad": 0.5}
    (head,) = pool(texts, limits)
    carried = [names for heads in texts for names in label(heads, limits)]
    assert carried == [(), (), ("broad",), ("broad",), ("sink", "broad"), ("broad",)]
    assert head.texts_agreeing == {"sink": 1, "broad": 4}


# --- the repeat probe ---------------------------------------------------------------------------------------


def test_the_probe_of_a_seed_is_the_same_everywhere() -> None:
    probe = repeat_probe(151_936)
    assert probe.sha256 == "53d80f97f8268d04095561f86b43dcf999b1694960027759f5cf5c056e26ae01"
    assert probe.sequences[0][:5] == (14071, 7417, 7424, 6733, 7771)
    assert probe == repeat_probe(151_936, seed=0, draws=10, length=50)
    assert probe.sha256 != repeat_probe(151_936, seed=1).sha256
    assert repeat_probe(151_936, draws=3).sequences == probe.sequences[:3]


def test_a_probe_is_distinct_ids_twice() -> None:
    probe = repeat_probe(151_936, draws=7, seed=3, length=41)
    assert len(set(probe.sequences)) == 7
    for sequence in probe.sequences:
        assert sequence[:41] == sequence[41:]
        assert len(sequence) == 2 * len(set(sequence)) == 82
        assert all(100 <= one < 20_000 for one in sequence)


def test_a_probe_draws_neither_special_tokens_nor_beyond_the_vocabulary() -> None:
    special = set(range(101, 160, 2))
    probe = repeat_probe(160, draws=11, length=30, excluded=special)
    assert {one for sequence in probe.sequences for one in sequence} == set(range(100, 160, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 149}, "ids to draw from: expected at least 50, got 49"),
        ({"vocabulary": 150, "excluded": [120]}, "got 49"),
        ({"vocabulary": 50}, "got 0"),
        ({"vocabulary": 999, "draws": 0}, "draws"),
        ({"vocabulary": 999, "seed": -1}, "seed"),
        ({"vocabulary": 999, "length": 2}, "length"),
    ],
)
def test_a_probe_that_cannot_be_drawn_is_refused(options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ShapeError, match=message):
        repeat_probe(**options)


def probe_maps(length: int) -> Tensor:
    """An induction head, a duplicate-token head and a sink, [head, query, key], on [r, r]."""
    first, second = [0] * length, range(length, 2 * length)
    induction = one_hot([*first, *(i - length + 1 for i in second)])
    duplicate = one_hot([*first, *(i - length for i in second)])
    return torch.stack([induction, duplicate, pure_sink(2 * length)])


def test_on_the_probe_the_second_half_counts_and_each_row_has_one_target() -> None:
    length = 50
    (sequence,) = repeat_probe(151_936, draws=1, length=length).sequences
    induction, duplicate, sink = score_maps(
        probe_maps(length), text=text_facts(sequence), rules=dict(PROBE_RULES)
    )
    baseline = (harmonic(2 * length) - harmonic(length)) / length
    assert baseline == pytest.approx(0.01376, abs=5e-6)
    for head in (induction, duplicate, sink):
        assert list(head.scores) == ["duplicate_token", "induction"]
        assert [one.rows for one in head.scores.values()] == [length, length]
        assert [one.baseline for one in head.scores.values()] == pytest.approx([baseline] * 2, abs=1e-15)
    assert [one.score for one in induction.scores.values()] == [0.0, 1.0]
    assert [one.score for one in duplicate.scores.values()] == [1.0, 0.0]
    assert [one.score for one in sink.scores.values()] == [1 / length, 0.0]  # key 0 is the duplicate in row L


def test_the_probes_scores_stand_in_place_of_the_texts() -> None:
    probe = repeat_probe(997, draws=3, length=11)
    draws = [
        score_maps(probe_maps(11), text=text_facts(sequence), rules=dict(PROBE_RULES))
        for sequence in probe.sequences
    ]
    probed = pool(draws)
    text = score_maps(random_maps(3, 17))
    joined = with_probe(text, probed)
    assert [list(head.scores) for head in joined] == [list(SCORES)] * 3
    assert [head.scores["induction"] for head in joined] == [head.scores["induction"] for head in probed]
    assert [head.scores["sink"] for head in joined] == [head.scores["sink"] for head in text]
    assert [head.entropy for head in joined] == [head.entropy for head in text]
    induction = probed[0].scores["induction"]
    assert (induction.score, induction.sd, induction.ci95, induction.n) == (1.0, 0.0, (1.0, 1.0), 3)
    assert [set(names) & set(PROBE_RULES) for names in label(joined)] == [
        {"induction"},
        {"duplicate_token"},
        set(),
    ]

    (first, *_) = with_probe(pool([text, text]), probed)
    assert isinstance(first, PooledHead)
    assert (first.texts_agreeing["induction"], first.texts_agreeing["current_token"]) == (3, 0)
    with pytest.raises(ShapeError, match="heads of the probe"):
        with_probe(text[:2], probed)


# --- a pattern of one's own ---------------------------------------------------------------------------------


def score_pattern(maps: Tensor, pattern: list[list[int]]) -> tuple[ScoreResult, ...]:
    found = score_maps(maps, rules={**SCORES, "custom": pattern_rule(pattern)})
    return tuple(head.scores["custom"] for head in found)


def test_a_pattern_is_scored_like_the_table() -> None:
    pattern = torch.zeros(13, 13, dtype=torch.int64)
    pattern[range(1, 13), range(12)] = 1
    maps = random_maps(3, 13)
    for custom, head in zip(score_pattern(maps, pattern.tolist()), score_maps(maps), strict=True):
        assert numbers(custom) == pytest.approx(numbers(head.scores["previous_token"]), abs=1e-12)
        assert (custom.rows, custom.status) == (12, "ok")


def test_similarity_to_a_pattern_by_hand() -> None:
    pattern = [
        [0, 1, 1, 1, 1],  # what lies in the future does not count
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0],
    ]
    (custom,) = score_pattern(BY_HAND.unsqueeze(0), pattern)
    # rows 1, 2 and 4: (0.75 + 0.75 + 0.5)/3; errors by row 1, 0.25 + 0.25, 0.5 + 0.75 + 0.25, 1, 0.5 + 4/8
    assert custom.score == pytest.approx(2 / 3, abs=1e-15)
    assert custom.baseline == pytest.approx((1 / 2 + 2 / 3 + 1 / 5) / 3, abs=1e-15)
    assert custom.rows == 3
    assert mae_similarities([custom], pattern)[0] == pytest.approx(
        1 - (1 + 0.5 + 1.5 + 1 + 1.0) / 15, abs=1e-15
    )


@settings(deadline=None)
@given(tokens=st.integers(1, 31), seed=st.integers(0, 99))
def test_similarity_to_a_pattern_is_the_mean_error_of_the_cells_of_the_past(tokens: int, seed: int) -> None:
    pattern = np.random.default_rng(seed).integers(0, 2, (tokens, tokens))
    maps = random_maps(2, tokens, seed)
    cells = np.tril_indices(tokens)
    for custom, weights in zip(score_pattern(maps, pattern.tolist()), maps.numpy(), strict=True):
        if custom.status == "not_applicable":
            assert not pattern[cells].any()
            assert mae_similarities([custom], pattern.tolist()) == (None,)
        else:
            expected = 1 - np.abs(weights - pattern)[cells].mean()
            assert mae_similarities([custom], pattern.tolist())[0] == pytest.approx(expected, abs=1e-12)


def test_a_map_that_is_its_pattern_is_entirely_similar() -> None:
    maps = one_hot([0, 0, 1, 3, 2, 5, 5])
    pattern = maps.long().tolist()
    (custom,) = score_pattern(maps.unsqueeze(0), pattern)
    assert (custom.score, custom.argmax_rate, *mae_similarities([custom], pattern)) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ([], "square"),
        ([[1, 0]], "square"),
        ([[1, 0], [1]], "square"),
        ([[1, 0], [2, 0]], "0 and 1 only"),
        ([[1]], "a row for each of 2 tokens, got 1"),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused(pattern: list[list[int]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        HeadScorer(facts(2), {0: [0]}, rules={"custom": pattern_rule(pattern)})


# --- the eight faults of TransformerLens' head_detector, that ours must not have ----------------------------


def test_fault_1_a_perfect_previous_token_head_is_not_held_below_one_by_row_zero() -> None:
    tokens = 7
    (head,) = score_maps(one_hot([0, *range(tokens - 1)]).unsqueeze(0))
    assert head.scores["previous_token"].score == 1.0  # theirs: (n - 1)/n


def test_fault_2_a_pure_sink_is_below_the_baseline_of_a_previous_token_head_and_says_so() -> None:
    (head,) = score_maps(pure_sink(11).unsqueeze(0))
    found = head.scores["previous_token"]
    assert found.score == pytest.approx(1 / 10)  # row 1 alone: there the first token is the previous one
    assert found.excess is not None
    assert found.excess < 0
    assert label([head], thresholds_of(thresholds={"previous_token": 0.05}, labels=["previous_token"])) == (
        (),
    )
    assert label([head]) == (("sink",),)


def test_fault_3_a_pure_sink_gives_no_nan_where_its_column_does_not_count() -> None:
    text = [(5, "a"), (5, "."), (5, "a"), (5, "."), (5, "a"), (5, "a"), (5, "a")]
    (head,) = score_maps(pure_sink(7).unsqueeze(0), text=facts_of(text))
    for name in ("induction", "punctuation", "current_token", "local", "broad"):
        assert head.scores[name].score == 0.0  # theirs: 0/0


def test_fault_4_the_callers_maps_and_pattern_are_not_written_to() -> None:
    maps, pattern = random_maps(3, 17), [[1] * 17 for _ in range(17)]
    before = maps.clone()
    text = text_facts([i % 5 for i in range(17)], ["."] * 17)
    score_maps(maps, (5, 11), text=text, rules={**SCORES, "custom": pattern_rule(pattern)})
    assert torch.equal(maps, before)
    assert pattern == [[1] * 17 for _ in range(17)]


def test_fault_5_several_texts_keep_the_heads_and_options_of_one() -> None:
    texts = []
    for tokens in (7, 11, 13):
        scorer = HeadScorer(facts(tokens), {2: [1, 4]})
        scorer.add(2, [1, 4], range(tokens), torch.stack([pure_sink(tokens), one_hot(range(tokens))]))
        texts.append(scorer.finish())
    limits = thresholds_of(thresholds={"first_token": 0.3}, labels=["first_token", "current_token"])
    pooled = pool(texts, limits)
    assert [(head.layer, head.head) for head in pooled] == [(2, 1), (2, 4)]
    assert label(pooled, limits) == (("first_token",), ("current_token",))
    assert [head.texts_agreeing for head in pooled] == [
        {"first_token": 3, "current_token": 0},
        {"first_token": 0, "current_token": 3},
    ]


def test_fault_6_in_very_very_the_diagonal_is_not_induction() -> None:
    (head,) = score_maps(one_hot([0, 1]).unsqueeze(0), text=text_facts([9, 9]))
    assert head.scores["induction"].status == "not_applicable"
    (head,) = score_maps(one_hot(range(7)).unsqueeze(0), text=text_facts([9] * 7))
    assert (head.scores["induction"].score, head.scores["current_token"].score) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["duplicate_token", "induction"])
def test_fault_7_no_repeat_is_no_number_rather_than_zero(name: str) -> None:
    (head,) = score_maps(random_maps(1, 11))
    assert head.scores[name] == ScoreResult(None, None, None, None, 0, "not_applicable")


def test_fault_8_a_text_as_long_as_the_model_takes_is_scored() -> None:
    backbone = tiny_backbone()
    length = backbone.config.max_position_embeddings
    ids = [i * i % 307 for i in range(length)]
    scorer = HeadScorer(text_facts(ids), {0: [3]})
    AttentionReader(backbone).read(
        [ids], {0: [3]}, lambda rows: scorer.add(rows.layer, rows.heads, rows.queries, rows.weights)
    )
    (head,) = scorer.finish()
    assert head.scores["sink"].rows == length - 1


def test_fault_8_what_does_not_fit_is_refused_even_without_assertions() -> None:
    program = (
        "import torch\n"
        "from attention_core import HeadScorer, ShapeError, text_facts\n"
        "assert False, 'assertions are on'\n"
        "try:\n"
        "    HeadScorer(text_facts([1, 2, 3]), {0: [0]}).add(0, [0], range(3), torch.ones(1, 2, 3))\n"
        "except ShapeError as error:\n"
        "    print('refused:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(attention_core.__file__).parents[1],
    )
    assert done.stdout.startswith("refused: weights [head, query, key]: expected (1, 3, 3)")


def test_the_strongest_heads_come_first_equals_in_order_and_only_where_the_status_is_ok() -> None:
    def head(place: int, score: float | None, status: Status) -> HeadResult:
        numbers = ScoreResult(score, 0.0, score, None, 3, status)
        return HeadResult(place, 0, {"induction": numbers}, None)

    results = [
        head(0, 0.25, "ok"),
        head(1, 0.75, "too_short"),
        head(2, 0.5, "ok"),
        head(3, None, "not_applicable"),
        head(4, 0.5, "ok"),
        head(5, 0.0, "ok"),
    ]
    assert [one.layer for one in strongest(results, "induction")] == [2, 4, 0, 5]
    assert [one.layer for one in strongest(results, "induction", count=2)] == [2, 4]
    assert ranking(results, "induction", count=3) == [(2, 0, 0.5), (4, 0, 0.5), (0, 0, 0.25)]
    assert strongest([], "sink") == ()
    with pytest.raises(KeyError):
        strongest(results, "sink")
    with pytest.raises(KeyError):
        ranking(score_maps(random_maps(2, 7), rules={"local": SCORES["local"]}), "sink")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_number_is_refused(value: float) -> None:
    weights = random_maps(3, 7)
    weights[1, 5, 2] = value
    scorer = HeadScorer(facts(7), {4: [0, 1, 2]})
    with pytest.raises(ShapeError, match="finite"):
        scorer.add(4, [0, 1, 2], range(7), weights)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_costs_no_more_than_its_own_rounding(dtype: torch.dtype) -> None:
    rounded = random_maps(2, 131).to(dtype)
    results = []
    for weights in (rounded, rounded.double()):
        scorer = HeadScorer(facts(131), {0: [0, 1]})
        scorer.add(0, [0, 1], range(131), weights)
        results.append(scorer.finish())
    for half, double in zip(*results, strict=True):
        for name, score in half.scores.items():
            if score.score is not None:
                assert score.score == pytest.approx(double.scores[name].score, rel=1e-5, abs=1e-6), name


def test_ids_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(ShapeError, match="whole numbers"):
        text_facts([1.5, 2.5])  # type: ignore[list-item]


def test_the_similarity_to_another_pattern_than_the_scored_one_is_refused() -> None:
    pattern = [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    scorer = HeadScorer(facts(4), {0: [0]}, rules={"custom": pattern_rule(pattern)})
    scorer.add(0, [0], range(4), uniform(4).unsqueeze(0))
    custom = scorer.finish()[0].scores["custom"]
    for same in (pattern, np.array(pattern, np.uint8), torch.tensor(pattern, dtype=torch.uint8)):
        # Rows 1; 1/2, 1/2; 1/3 x 3; 1/4 x 4: off by 0, 1, 4/3 and 3/2 of 10 entries
        assert mae_similarities([custom], same)[0] == pytest.approx(1 - (1 + 4 / 3 + 3 / 2) / 10, abs=1e-12)
    with pytest.raises(ShapeError, match="rows of a result"):
        mae_similarities([custom], [[1]])
