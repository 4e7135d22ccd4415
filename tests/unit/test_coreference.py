import functools
import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_core.capture import AttentionReader, Rows
from attention_core.coreference import (
    CoreferenceError,
    HeadAnswer,
    Question,
    Reading,
    ask,
    attend,
    notes,
    score,
)
from attention_core.errors import ShapeError
from attention_core.spans import Span, Token, align, resolve_span
from tests.tiny import tiny_backbone

TEXT = "The cat sat on the mat because it was tired."
#       one token per word, and the full stop: The cat sat on the mat because it was tired .
#                                                0   1   2   3  4   5    6    7  8    9   10


def tokens_of(text: str) -> tuple[Token, ...]:
    """A token for each word with the space before it, and one for each mark of punctuation."""
    offsets: list[tuple[int, int]] = []
    start = 0
    for i, c in enumerate(text):
        if c in " .,()" and start < i:
            offsets.append((start, i))
            start = i
    offsets.append((start, len(text)))
    return align(text, range(len(offsets)), offsets, [""] * len(offsets)).tokens


PLAIN = Reading()


def question(
    pronoun: str, *candidates: str, text: str = TEXT, gold: int | None = None, reading: Reading = PLAIN
) -> Question:
    tokens = tokens_of(text)
    spans = [resolve_span(text, tokens, span_text=s) for s in (pronoun, *candidates)]
    return ask(text, tokens, spans[0], spans[1:], gold=gold, reading=reading)


def row(length: int, **weights: float) -> Tensor:
    """One head's row [1, 1, key]; k1=0.5 puts 0.5 on key 1. In float64."""
    values = torch.zeros(1, 1, length, dtype=torch.float64)
    for name, weight in weights.items():
        values[0, 0, int(name[1:])] = weight
    return values


def answer(q: Question, weights: Tensor) -> HeadAnswer:
    (one,) = score(q, 5, [3], weights)
    return one


def codes(q: Question) -> list[str]:
    return [note.code for note in q.notes]


@pytest.mark.parametrize(("query", "rows"), [("last", (8,)), ("first", (7,)), ("mean", (7, 8))])
def test_the_rows_to_read_are_the_pronouns(query: str, rows: tuple[int, ...]) -> None:
    reading = Reading(query=query)  # type: ignore[arg-type]
    assert question("it was", "cat", "mat", reading=reading).queries == rows
    assert question("it", "cat", "mat", reading=reading).queries == (7,)


def test_scores_worked_out_by_hand() -> None:
    got = answer(
        question("it", "cat", "mat", gold=0), row(8, k0=0.0625, k1=0.5, k2=0.25, k5=0.125, k7=0.0625)
    )
    assert got == HeadAnswer(
        layer=5,
        head=3,
        scores=(0.5, 0.125),
        predicted=0,
        tie=False,
        margin=0.375,
        within_noise=False,
        mass_on_candidates=0.625,
        mass_on_first_token=0.0625,
        correct=True,
    )


def test_a_candidate_of_several_tokens_gets_the_sum_of_their_weights() -> None:
    got = answer(question("it", "The cat", "the mat"), row(8, k0=0.125, k1=0.25, k4=0.3125, k5=0.25))
    assert got.scores == (0.375, 0.5625)
    assert got.predicted == 1
    assert got.correct is None


def test_every_head_is_scored_from_its_own_row() -> None:
    weights = torch.cat([row(8, k1=0.5, k5=0.25), row(8, k1=0.25, k5=0.5), row(8, k0=1.0)])
    got = score(question("it", "cat", "mat", gold=1), 2, [13, 4, 0], weights)
    assert [(a.layer, a.head, a.predicted, a.correct) for a in got] == [
        (2, 13, 0, False),
        (2, 4, 1, True),
        (2, 0, None, False),
    ]
    assert [a.mass_on_first_token for a in got] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("second", "tie", "predicted", "within_noise"),
    [
        (0.25, True, None, True),
        (0.25 - 0.9e-9, True, None, True),
        (0.25 - 1.1e-9, False, 0, True),
        (0.25 - 1.9e-4, False, 0, True),
        (0.25 - 2.1e-4, False, 0, False),
    ],
)
def test_a_tie_predicts_nothing_and_a_small_margin_is_marked(
    second: float, tie: bool, predicted: int | None, within_noise: bool
) -> None:
    got = answer(question("it", "cat", "mat", gold=0), row(8, k1=0.25, k5=second))
    assert (got.tie, got.predicted, got.within_noise) == (tie, predicted, within_noise)
    assert got.margin == pytest.approx(0.25 - second, abs=1e-15)
    assert got.correct is (predicted == 0)


def test_a_tie_of_the_losers_is_no_tie() -> None:
    got = answer(question("it", "cat", "sat", "mat"), row(8, k1=0.125, k2=0.5, k5=0.125))
    assert (got.tie, got.predicted, got.margin) == (False, 1, 0.375)


def test_a_candidate_after_the_pronoun_is_not_visible_and_has_no_score() -> None:
    q = question("it", "tired", "cat", text="Because it was tired, the cat sat.", gold=1)
    assert [c.visible for c in q.candidates] == [False, False]
    got = answer(q, row(2, k0=0.75, k1=0.25))
    assert got == HeadAnswer(5, 3, (None, None), None, False, None, False, 0.0, 0.75, False)
    assert codes(q) == [
        "later_context_not_seen",
        "candidate_after_pronoun",
        "candidate_after_pronoun",
        "no_visible_candidate",
    ]


def test_one_visible_candidate_wins_without_a_margin() -> None:
    got = answer(question("it", "tired", "cat", gold=0), row(8, k1=0.25))
    assert got.scores == (None, 0.25)
    assert (got.predicted, got.margin, got.tie, got.within_noise, got.correct) == (
        1,
        None,
        False,
        False,
        False,
    )


def test_a_map_read_the_wrong_way_round_never_wins() -> None:
    # Row = candidate, column = pronoun: causally 0, for every candidate before the pronoun.
    weights = torch.rand(11, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).tril()
    q = question("it", "cat", "mat", gold=0)
    got = answer(q, weights.T[None, [7]])
    assert got.scores == (0.0, 0.0)
    assert (got.predicted, got.correct, got.tie) == (None, False, True)
    alone = answer(question("it", "cat", gold=0), weights.T[None, [7]])
    assert (alone.predicted, alone.correct) == (None, False)


def test_heads_that_attend_to_no_candidate_are_noted_once() -> None:
    q = question("it", "cat", "mat")
    silent = score(q, 4, [0, 1, 2], torch.cat([row(8, k1=0.5), row(8, k0=1.0), row(8, k0=1.0)]))
    assert notes(q, silent[:1]) == q.notes
    extra = notes(q, silent)[len(q.notes) :]
    assert [n.code for n in extra] == ["no_attention"]
    assert extra[0].message == (
        "layer 4 head 1 and 1 more of 3 heads pay no attention that counts to any candidate"
    )


def test_keys_after_the_pronoun_are_not_read() -> None:
    q = question("it", "cat", "mat")
    short = row(8, k1=0.5, k5=0.25)
    assert answer(q, torch.cat([short, torch.full((1, 1, 3), math.nan, dtype=torch.float64)], -1)) == answer(
        q, short
    )


def test_sums_run_in_float64() -> None:
    # In float32 1/3 + 2**-27 is 1/3 again: the sum would lose the second token.
    third = torch.tensor(1 / 3, dtype=torch.float32).item()
    weights = torch.zeros(1, 1, 8)
    weights[0, 0, 0], weights[0, 0, 1] = third, 2.0**-27
    got = answer(question("it", "The cat", "mat"), weights)
    assert got.scores[0] == third + 2.0**-27
    assert got.scores[0] != third


def test_the_input_is_not_modified() -> None:
    weights = row(8, k1=0.5, k5=0.25)
    before = weights.clone()
    answer(question("it", "cat", "mat"), weights)
    assert torch.equal(weights, before)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=11, max_size=11))
def test_scores_are_the_masses_of_disjoint_tokens(values: list[float]) -> None:
    q = question(".", "The cat", "on", "it was tired")
    got = answer(q, torch.tensor([[values]], dtype=torch.float64))
    expected = [math.fsum(values[0:2]), values[3], math.fsum(values[7:10])]
    assert list(got.scores) == pytest.approx(expected, abs=1e-12)
    assert got.mass_on_candidates == pytest.approx(math.fsum(expected), abs=1e-12)
    best = sorted(expected)[::-1]
    assert got.margin == pytest.approx(best[0] - best[1], abs=1e-12)
    if got.predicted is not None:
        assert expected[got.predicted] == pytest.approx(best[0], abs=1e-12)


@pytest.mark.parametrize("shape", [(8,), (1, 8), (2, 1, 8), (1, 1, 7), (1, 2, 8), (1, 11, 11), (1, 1, 1, 8)])
def test_weights_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="1 heads, 1 queries and at least 8 keys"):
        score(question("it", "cat", "mat"), 0, [0], torch.zeros(shape))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.125])
def test_weights_that_are_no_probabilities_are_refused(wrong: float) -> None:
    with pytest.raises(ShapeError, match="finite and at least 0"):
        answer(question("it", "cat", "mat"), row(8, k1=0.5, k3=wrong))


# --- the options of scoring ---------------------------------------------------------------------------------

NAMES = "Old Anna Maria Ochs saw Bea Ek near her car"
#         0    1    2    3    4   5   6   7   8   9
NAMES_ROW = {"k0": 0.0625, "k1": 0.125, "k2": 0.0625, "k3": 0.25, "k5": 0.125, "k6": 0.3125, "k8": 0.0625}


@pytest.mark.parametrize(
    ("aggregate", "expected", "predicted"),
    [
        ("sum", (0.4375, 0.4375), None),  # the longer name catches up by its length
        ("mean", (0.4375 / 3, 0.4375 / 2), 1),
        ("max", (0.25, 0.3125), 1),
        ("last", (0.25, 0.3125), 1),
        ("head_word", (0.25, 0.3125), 1),
    ],
)
def test_the_tokens_of_a_candidate_are_aggregated(
    aggregate: str, expected: tuple[float, float], predicted: int | None
) -> None:
    reading = Reading(aggregate=aggregate)  # type: ignore[arg-type]
    got = answer(
        question("her", "Anna Maria Ochs", "Bea Ek", text=NAMES, reading=reading), row(9, **NAMES_ROW)
    )
    assert got.scores == expected
    assert got.predicted == predicted
    assert got.mass_on_candidates == 0.875  # of all their tokens, whichever make the score
    assert got.mass_on_first_token == 0.0625


def pieces(text: str, *offsets: tuple[int, int]) -> tuple[Token, ...]:
    return align(text, range(len(offsets)), offsets, [""] * len(offsets)).tokens


def test_a_head_word_of_several_tokens_is_their_sum_and_last_is_its_last_token() -> None:
    text = "So Ada O-Connell  met Bo and her"
    tokens = pieces(
        text, (0, 2), (2, 6), (6, 8), (8, 9), (9, 16), (16, 17), (17, 21), (21, 24), (24, 28), (28, 32)
    )
    spans = [resolve_span(text, tokens, start=start, end=end) for start, end in ((3, 18), (22, 24))]
    assert spans[0].text == "Ada O-Connell  "  # the spaces belong to no word
    pronoun = resolve_span(text, tokens, span_text="her")
    weights = row(10, k1=0.125, k2=0.25, k3=0.0625, k4=0.1875, k7=0.125)
    scores = {
        aggregate: answer(
            ask(text, tokens, pronoun, spans, reading=Reading(aggregate=aggregate)), weights
        ).scores
        for aggregate in ("sum", "head_word", "last")
    }
    assert scores == {"sum": (0.625, 0.125), "head_word": (0.5, 0.125), "last": (0.1875, 0.125)}


def test_a_head_word_without_a_token_of_its_own_falls_back_to_the_last_token() -> None:
    text = "So Ada x met her"  # no token has the x
    tokens = pieces(text, (0, 2), (2, 6), (8, 12), (12, 16))
    spans = [resolve_span(text, tokens, span_text=name) for name in ("her", "Ada x", "met")]
    q = ask(text, tokens, spans[0], spans[1:], reading=Reading(aggregate="head_word"))
    assert q.counted == ((1,), (2,))


@pytest.mark.parametrize(
    ("query", "scores", "first"),
    [("last", (0.25, 0.5), 0.125), ("first", (0.75, 0.125), 0.0), ("mean", (0.5, 0.3125), 0.0625)],
)
def test_a_pronoun_of_several_tokens_is_read_at_the_rows_asked_for(
    query: str, scores: tuple[float, float], first: float
) -> None:
    q = question("it was", "cat", "mat", reading=Reading(query=query))  # type: ignore[arg-type]
    whole = torch.zeros(1, 11, 11, dtype=torch.float64)
    whole[0, 7, 1], whole[0, 7, 5] = 0.75, 0.125
    whole[0, 8, 0], whole[0, 8, 1], whole[0, 8, 5] = 0.125, 0.25, 0.5
    got = answer(q, whole[:, q.queries])
    assert (got.scores, got.mass_on_first_token) == (scores, first)
    assert got.mass_on_candidates == sum(scores)


@pytest.mark.parametrize("query", ["last", "first", "mean"])
def test_a_candidate_after_the_pronoun_is_visible_from_none_of_its_rows(query: str) -> None:
    q = question("it was", "cat", "tired", reading=Reading(query=query))  # type: ignore[arg-type]
    assert [c.visible for c in q.candidates] == [True, False]
    assert q.counted == ((1,), ())


def test_the_note_on_later_context_counts_from_the_row_that_is_read() -> None:
    messages = [
        question("it was", "cat", "mat", reading=Reading(query=query)).notes[0].message
        for query in ("last", "mean", "first")
    ]
    assert messages[0] == "the 2 tokens after the pronoun cannot change its row: the model is causal"
    assert messages[1] == messages[0]
    assert messages[2].startswith("the 3 tokens after the pronoun's first token cannot")


def test_normalized_by_the_candidates_the_scores_sum_to_one() -> None:
    q = question("it", "The cat", "mat", reading=Reading(aggregate="mean", normalize="candidates"))
    got = answer(q, row(8, k0=0.125, k1=0.25, k5=0.0625, k7=0.5))
    assert got.scores == (0.75, 0.25)  # of 0.1875 and 0.0625
    assert got.margin == 0.5
    assert got.mass_on_candidates == 0.4375  # as read
    assert got.mass_on_first_token == 0.125


def test_without_the_sink_its_column_is_gone_and_the_rest_fills_the_row() -> None:
    q = question("it", "The cat", "mat", reading=Reading(normalize="exclude_sink"))
    got = answer(q, row(8, k0=0.75, k1=0.0625, k5=0.125, k7=0.0625))
    assert got.scores == (0.25, 0.5)
    assert (got.predicted, got.margin) == (1, 0.25)
    assert got.mass_on_candidates == 0.1875  # without token 0, as read
    assert got.mass_on_first_token == 0.75


def test_dropping_the_first_token_takes_it_from_its_candidate_and_from_every_total() -> None:
    weights = row(8, k0=0.5, k1=0.125, k5=0.25, k7=0.125)
    kept = answer(question("it", "The cat", "mat"), weights)
    dropped = answer(question("it", "The cat", "mat", reading=Reading(first_token="drop")), weights)
    assert (kept.scores, kept.predicted, kept.mass_on_candidates) == ((0.625, 0.25), 0, 0.875)
    assert (dropped.scores, dropped.predicted, dropped.mass_on_candidates) == ((0.125, 0.25), 1, 0.375)
    mean = Reading(aggregate="mean", normalize="candidates", first_token="drop")
    assert answer(question("it", "The cat", "mat", reading=mean), weights).scores == (1 / 3, 2 / 3)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "last", "head_word"])
@pytest.mark.parametrize("reading", [Reading(first_token="drop"), Reading(normalize="exclude_sink")])
def test_a_candidate_on_token_0_alone_has_no_score_without_it(reading: Reading, aggregate: str) -> None:
    q = question(
        *("her", "Ann", "Mary"),
        text="Ann met Mary and saw her",
        gold=0,
        reading=replace(reading, aggregate=aggregate),  # type: ignore[arg-type]
    )
    got = answer(q, row(6, k0=0.5, k2=0.25, k5=0.25))
    assert got.scores == (None, 0.25 if reading.normalize == "none" else 0.5)
    assert (got.predicted, got.margin, got.tie, got.correct) == (1, None, False, False)
    assert q.candidates[0].visible
    assert codes(q) == ["candidate_on_first_token"]
    assert q.notes[0].message == (
        'candidate 0 "Ann" holds token 0, which is left out; without another token it has no score'
    )


def test_a_candidate_that_keeps_other_tokens_is_noted_as_such() -> None:
    q = question("it", "The cat", "mat", reading=Reading(first_token="drop"))
    (note,) = (n for n in q.notes if n.code == "candidate_on_first_token")
    assert note.message.endswith("is left out; only its other tokens count")


def test_when_no_candidate_has_a_score_none_is_predicted_and_no_head_is_blamed() -> None:
    q = question("her", "Ann", text="Ann saw her", gold=0, reading=Reading(first_token="drop"))
    got = answer(q, row(3, k0=1.0))
    assert (got.scores, got.predicted, got.margin, got.mass_on_candidates) == ((None,), None, None, 0.0)
    assert notes(q, [got]) == q.notes


@pytest.mark.parametrize(
    ("reading", "weights"),
    [
        (Reading(normalize="candidates"), {"k0": 0.5, "k7": 0.5}),
        (Reading(normalize="exclude_sink"), {"k0": 1.0}),
        (Reading(normalize="exclude_sink"), {"k0": 1 - 2**-20, "k1": 2**-20}),  # 9.5e-7 left
        (Reading(normalize="exclude_sink"), {"k0": 1 + 2**-20, "k1": 2**-20}),  # rounded above 1
    ],
)
def test_with_nothing_to_divide_by_every_score_is_null(reading: Reading, weights: dict[str, float]) -> None:
    q = question("it", "cat", "mat", gold=0, reading=reading)
    got = answer(q, row(8, **weights))
    assert got.scores == (None, None)
    assert (got.predicted, got.margin, got.tie, got.within_noise, got.correct) == (
        None,
        None,
        False,
        False,
        False,
    )
    assert [n.code for n in notes(q, [got])] == ["later_context_not_seen", "no_attention"]


def test_just_enough_beside_the_sink_is_scored() -> None:
    q = question("it", "cat", "mat", reading=Reading(normalize="exclude_sink"))
    got = answer(q, row(8, k0=1 - 2**-19, k1=2**-20, k5=2**-21))
    assert got.scores == (0.5, 0.25)
    assert got.predicted == 0
    assert got.within_noise  # 2e-4 / 2**-19 is a hundred times the whole row


@pytest.mark.parametrize(
    ("reading", "divisor"),
    [(Reading(normalize="candidates"), 0.0625), (Reading(normalize="exclude_sink"), 0.125)],
)
@pytest.mark.parametrize(("margin", "within_noise"), [(1.9e-4, True), (2.1e-4, False)])
def test_the_noise_is_divided_as_the_scores_are(
    reading: Reading, divisor: float, margin: float, within_noise: bool
) -> None:
    half = 0.0625 / 2
    q = question("it", "cat", "mat", reading=reading)
    got = answer(q, row(8, k0=0.875, k1=half + margin / 2, k5=half - margin / 2, k7=0.0625))
    assert got.margin == pytest.approx(margin / divisor, rel=1e-9)
    assert got.within_noise is within_noise


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=11, max_size=11).filter(lambda values: sum(values) > 1e-3),
    st.sampled_from(["sum", "mean", "max", "last", "head_word"]),
    st.sampled_from(["last", "first", "mean"]),
)
def test_dividing_changes_no_choice(values: list[float], aggregate: str, query: str) -> None:
    total = sum(values)
    weights = torch.tensor([value / total for value in values], dtype=torch.float64)
    answers = {}
    for normalize in ("none", "candidates", "exclude_sink"):
        reading = Reading(aggregate, query, normalize, "drop")  # type: ignore[arg-type]
        q = question("was tired", "The cat", "on the mat", "it", reading=reading)
        answers[normalize] = answer(q, weights.expand(1, len(q.queries), -1))
    plain = answers["none"]
    for got in answers.values():
        assert all(s is None or math.isfinite(s) for s in got.scores)
        if got.margin is not None and plain.margin is not None and plain.margin > 1e-8:
            assert (got.predicted, got.within_noise) == (plain.predicted, plain.within_noise)
    if plain.predicted is not None:
        assert sum(s or 0 for s in answers["candidates"].scores) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_attention_of_any_precision_is_read(dtype: torch.dtype) -> None:
    q = question("it", "cat", "mat")
    got = answer(q, row(8, k1=0.5, k5=0.125).to(dtype).requires_grad_())
    assert got.scores == (0.5, 0.125)


def test_a_map_from_anywhere_is_read_at_the_questions_rows() -> None:
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(1, 11, 21, dtype=torch.float64, generator=generator)
    torch.manual_seed(7)
    layer = torch.nn.MultiheadAttention(21, 3, batch_first=True, dtype=torch.float64)
    future = torch.ones(11, 11, dtype=torch.bool).triu(1)
    _, maps = layer(
        hidden, hidden, hidden, attn_mask=future, average_attn_weights=False
    )  # [1, head, query, key]
    for q in (question("it was", "cat", "mat", reading=Reading(query=query)) for query in ("last", "mean")):
        got = score(q, 0, range(3), maps[0][:, q.queries])
        for head, one in enumerate(got):
            rows = maps[0, head, list(q.queries)].detach().numpy()
            assert one.scores == pytest.approx(rows[:, [1, 5]].mean(0), abs=1e-15)


@pytest.mark.parametrize("field", ["aggregate", "query", "normalize", "first_token"])
def test_an_unknown_option_is_refused(field: str) -> None:
    with pytest.raises(CoreferenceError, match=f"{field}: expected .*, got 'median'") as raised:
        Reading(**{field: "median"})  # type: ignore[arg-type]
    assert raised.value.code == "unknown_option"


def test_readings_are_compared_by_value() -> None:
    assert Reading() == Reading("sum", "last", "none", "keep")
    assert len({Reading(a, q) for a, q in itertools.product(("sum", "max"), ("last", "first"))}) == 4


# --- what is said before anything is computed ---------------------------------------------------------------


def test_baselines_are_the_first_candidate_and_the_last_before_the_pronoun() -> None:
    baselines = question("it", "mat", "cat", "tired", "sat").baselines  # not in the order of the text
    assert (baselines.first, baselines.nearest) == (1, 0)


def test_the_nearest_candidate_is_the_closest_one_when_all_come_after_the_pronoun() -> None:
    baselines = question("it", "mat", "cat", text="Because it was tired, the cat left the mat.").baselines
    assert (baselines.first, baselines.nearest) == (1, 1)


def test_candidates_say_where_they_are_and_whether_they_are_seen() -> None:
    first, second = question("it", "The cat", "tired").candidates
    assert (first.index, first.text, first.start, first.end, first.token_indices) == (
        0,
        "The cat",
        0,
        7,
        (0, 1),
    )
    assert (first.exact, first.visible, first.has_first_token) == (True, True, True)
    assert (second.index, second.visible, second.has_first_token) == (1, False, False)


@pytest.mark.parametrize(
    ("text", "pronoun", "candidates", "expected"),
    [
        ("A cat met a mouse and ate it", "it", ["cat", "mouse"], []),
        ("A cat met a mouse and ate it.", "it", ["cat", "mouse"], ["later_context_not_seen"]),
        ("Ann met Mary and saw her", "her", ["Ann", "Mary"], ["candidate_on_first_token"]),
        ("A cat saw it", "it", ["cat"], ["single_candidate"]),
        (
            "A cat saw it and a mouse",
            "it",
            ["cat", "mouse"],
            ["later_context_not_seen", "candidate_after_pronoun"],
        ),
    ],
)
def test_notes_name_what_limits_the_answer(
    text: str, pronoun: str, candidates: list[str], expected: list[str]
) -> None:
    assert codes(question(pronoun, *candidates, text=text)) == expected


def test_another_mention_of_a_candidate_is_noted() -> None:
    text = "A cat met a cat and a mouse saw it"
    tokens = tokens_of(text)
    spans = [
        resolve_span(text, tokens, span_text="cat", occurrence=1),
        resolve_span(text, tokens, span_text="mouse"),
    ]
    q = ask(text, tokens, resolve_span(text, tokens, span_text="it"), spans)
    assert codes(q) == ["repeated_candidate"]
    assert q.notes[0].message == 'candidate 0 "cat" occurs 2 times; only the attention to 12..15 is counted'


def test_a_span_inside_a_token_is_noted() -> None:
    text = "A cat met a mouse and ate it"
    tokens = tokens_of(text)
    spans = [resolve_span(text, tokens, start=2, end=4), resolve_span(text, tokens, span_text="mouse")]
    q = ask(text, tokens, resolve_span(text, tokens, span_text="it"), spans)
    assert codes(q) == ["inexact_span"]
    assert '"ca" at 2..4' in q.notes[0].message


def test_no_note_says_that_a_head_refers_or_understands() -> None:
    for reading in (PLAIN, Reading(first_token="drop", query="first")):
        q = question("it", "The cat", "tired", reading=reading)
        said = notes(q, score(q, 0, [0], torch.zeros(1, 1, 8)))
        assert {note.code for note in said} >= {"no_attention", "candidate_on_first_token"}
        assert not any(word in note.message for note in said for word in ("refer", "understand"))


def span(start: int, end: int, *tokens: int) -> Span:
    return Span(start, end, TEXT[start:end], tokens, True)


@pytest.mark.parametrize(
    ("candidates", "index", "message"),
    [
        ([span(4, 7, 1), span(19, 22, 5), span(4, 7, 1)], 2, "candidate 2 at 4..7 and candidate 0"),
        ([span(0, 7, 0, 1), span(4, 11, 1, 2)], 1, "and candidate 0 at 0..7 share text"),
        ([span(4, 7, 1), span(31, 37, 7, 8)], 1, "and the pronoun at 31..33 share text"),
        ([span(4, 5, 1), span(5, 7, 1)], 1, "share a token"),
    ],
)
def test_spans_that_overlap_are_refused(candidates: list[Span], index: int, message: str) -> None:
    with pytest.raises(CoreferenceError, match=message) as raised:
        ask(TEXT, tokens_of(TEXT), span(31, 33, 7), candidates)
    assert (raised.value.code, raised.value.index) == ("overlapping_spans", index)


def test_no_candidate_is_refused() -> None:
    with pytest.raises(CoreferenceError) as raised:
        ask(TEXT, tokens_of(TEXT), span(31, 33, 7), [])
    assert (raised.value.code, raised.value.index) == ("too_few_candidates", None)


@pytest.mark.parametrize("gold", [-1, 2])
def test_a_gold_that_names_no_candidate_is_refused(gold: int) -> None:
    with pytest.raises(CoreferenceError, match=f"one of the 2 candidates, 0..1; got {gold}") as raised:
        question("it", "cat", "mat", gold=gold)
    assert raised.value.code == "gold_out_of_range"


@pytest.mark.parametrize("block_weights", [1, 10**6])
def test_questions_of_many_texts_are_answered_as_from_whole_maps(block_weights: int) -> None:
    reader = AttentionReader(tiny_backbone())
    ids = {2: list(range(60, 71)), 5: list(range(80, 97))}  # by text; of 11 and 17 tokens
    mean, first = Reading(query="mean"), Reading(query="first")
    asked = [
        (
            ids[2],
            [
                asked_at((3, 4, 6), (0, 2), mean),
                asked_at((9,), (1, 5), PLAIN),
                asked_at((5, 6), (2, 4), first),
            ],
        ),
        (ids[5], [asked_at((13, 16), (1, 2), mean)]),
    ]
    heads = {0: [1, 3], 2: [0, 2, 4]}
    maps: dict[tuple[int, int], Tensor] = {}

    def keep_map(rows: Rows) -> None:
        maps[rows.text, rows.layer] = rows.weights.clone()

    reader.read([sequence for sequence, _ in asked], heads, keep_map)
    answers: dict[tuple[int, int, int], tuple[HeadAnswer, ...]] = {}

    def keep(text: int, place: int, found: tuple[HeadAnswer, ...]) -> None:
        answers[text, place, found[0].layer] = found

    attend(functools.partial(reader.read, block_weights=block_weights), asked, heads, keep)
    assert len(answers) == 2 * 4
    for (text, place, layer), found in answers.items():
        question = asked[text][1][place]
        whole = score(question, layer, heads[layer], maps[text, layer][:, list(question.queries)])
        assert [one.head for one in found] == heads[layer]
        for one, other in zip(found, whole, strict=True):
            assert one.scores == pytest.approx(other.scores, abs=1e-5)


def asked_at(pronoun: tuple[int, ...], candidates: tuple[int, ...], reading: Reading) -> Question:
    """A question with the pronoun and each candidate on these tokens of a text of one-letter tokens."""
    text = " ".join("abcdefghijklmnopqrstuvwxyz")
    tokens = tokens_of(text)

    def at(*places: int) -> Span:
        start, end = tokens[places[0]].start, tokens[places[-1]].end
        return Span(start, end, text[start:end], places, True)

    return ask(text, tokens, at(*pronoun), [at(place) for place in candidates], reading=reading)
