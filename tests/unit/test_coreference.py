import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_core.coreference import CoreferenceError, HeadAnswer, Question, ask, notes, score
from attention_core.errors import ShapeError
from attention_core.spans import Span, Token, align, resolve_span

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


def question(pronoun: str, *candidates: str, text: str = TEXT, gold: int | None = None) -> Question:
    tokens = tokens_of(text)
    spans = [resolve_span(text, tokens, span_text=s) for s in (pronoun, *candidates)]
    return ask(text, len(tokens), spans[0], spans[1:], gold=gold)


def row(length: int, **weights: float) -> Tensor:
    """One head's row [1, key]; k1=0.5 puts 0.5 on key 1. In float64."""
    values = torch.zeros(1, length, dtype=torch.float64)
    for name, weight in weights.items():
        values[0, int(name[1:])] = weight
    return values


def answer(q: Question, weights: Tensor) -> HeadAnswer:
    (one,) = score(q, 5, [3], weights)
    return one


def codes(q: Question) -> list[str]:
    return [note.code for note in q.notes]


def test_the_row_to_read_is_the_pronouns_last_token() -> None:
    assert question("it", "cat", "mat").query == 7
    assert question("it was", "cat", "mat").query == 8


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
    got = answer(q, weights.T[q.query : q.query + 1])
    assert got.scores == (0.0, 0.0)
    assert (got.predicted, got.correct, got.tie) == (None, False, True)
    alone = answer(question("it", "cat", gold=0), weights.T[q.query : q.query + 1])
    assert (alone.predicted, alone.correct) == (None, False)


def test_heads_that_attend_to_no_candidate_are_noted_once() -> None:
    q = question("it", "cat", "mat")
    silent = score(q, 4, [0, 1, 2], torch.cat([row(8, k1=0.5), row(8, k0=1.0), row(8, k0=1.0)]))
    assert notes(q, silent[:1]) == q.notes
    extra = notes(q, silent)[len(q.notes) :]
    assert [n.code for n in extra] == ["no_attention"]
    assert extra[0].message == "layer 4 head 1 and 1 more of 3 heads attend to no candidate"


def test_keys_after_the_pronoun_are_not_read() -> None:
    q = question("it", "cat", "mat")
    short = row(8, k1=0.5, k5=0.25)
    assert answer(q, torch.cat([short, torch.full((1, 3), 9.0, dtype=torch.float64)], -1)) == answer(q, short)


def test_sums_run_in_float64() -> None:
    # In float32 1/3 + 2**-27 is 1/3 again: the sum would lose the second token.
    third = torch.tensor(1 / 3, dtype=torch.float32).item()
    weights = torch.zeros(1, 8)
    weights[0, 0], weights[0, 1] = third, 2.0**-27
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
    got = answer(q, torch.tensor([values], dtype=torch.float64))
    expected = [math.fsum(values[0:2]), values[3], math.fsum(values[7:10])]
    assert list(got.scores) == pytest.approx(expected, abs=1e-12)
    assert got.mass_on_candidates == pytest.approx(math.fsum(expected), abs=1e-12)
    best = sorted(expected)[::-1]
    assert got.margin == pytest.approx(best[0] - best[1], abs=1e-12)
    if got.predicted is not None:
        assert expected[got.predicted] == pytest.approx(best[0], abs=1e-12)


@pytest.mark.parametrize("shape", [(8,), (2, 8), (1, 7), (1, 1, 8)])
def test_weights_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="1 heads and at least 8 keys"):
        score(question("it", "cat", "mat"), 0, [0], torch.zeros(shape))


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
    q = ask(text, len(tokens), resolve_span(text, tokens, span_text="it"), spans)
    assert codes(q) == ["repeated_candidate"]
    assert q.notes[0].message == 'candidate 0 "cat" occurs 2 times; only the attention to 12..15 is counted'


def test_a_span_inside_a_token_is_noted() -> None:
    text = "A cat met a mouse and ate it"
    tokens = tokens_of(text)
    spans = [resolve_span(text, tokens, start=2, end=4), resolve_span(text, tokens, span_text="mouse")]
    q = ask(text, len(tokens), resolve_span(text, tokens, span_text="it"), spans)
    assert codes(q) == ["inexact_span"]
    assert '"ca" at 2..4' in q.notes[0].message


def test_no_note_says_that_a_head_refers_or_understands() -> None:
    q = question("it", "The cat", "tired")
    assert q.notes
    for note in (*q.notes, *notes(q, score(q, 0, [0], torch.zeros(1, 8)))):
        assert "refer" not in note.message
        assert "understand" not in note.message


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
        ask(TEXT, 11, span(31, 33, 7), candidates)
    assert (raised.value.code, raised.value.index) == ("overlapping_spans", index)


def test_no_candidate_is_refused() -> None:
    with pytest.raises(CoreferenceError) as raised:
        ask(TEXT, 11, span(31, 33, 7), [])
    assert (raised.value.code, raised.value.index) == ("too_few_candidates", None)


@pytest.mark.parametrize("gold", [-1, 2])
def test_a_gold_that_names_no_candidate_is_refused(gold: int) -> None:
    with pytest.raises(CoreferenceError, match=f"one of the 2 candidates, 0..1; got {gold}") as raised:
        question("it", "cat", "mat", gold=gold)
    assert raised.value.code == "gold_out_of_range"
