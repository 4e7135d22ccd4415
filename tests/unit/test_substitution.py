"""Substituted texts, and log-probabilities against transformers' own language model, on a tiny random Qwen2."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen2ForCausalLM

from attention_core.capture import AttentionReader
from attention_core.errors import OutOfRangeError, ShapeError, UnsupportedModelError
from attention_core.spans import SpanError
from attention_core.substitution import (
    Substitution,
    choose,
    continuation_log_probabilities,
    next_token_log_probabilities,
    substitute,
)
from tests.tiny import HEAD_SIZE, HEADS, LAYERS, tiny_backbone, tiny_output_matrix

SEQUENCES = [
    [5, 11, 17, 23, 5, 11, 299, 2, 3, 301, 0, 17, 13],
    [7, 3],
    [19, 29, 31, 37, 41],
    [2, 3, 5, 7, 11, 13, 17],
]
FIRSTS = [6, 1, 4, 2]


# --- texts --------------------------------------------------------------------------------------------------


def put(text: str, candidate: str) -> tuple[str, str]:
    """Substitute for the pronoun in [brackets]."""
    start, end = text.index("["), text.index("]") - 1
    result = substitute(text.replace("[", "").replace("]", ""), start, end, candidate)
    assert result.text == result.before + result.after
    return result.before, result.after


@pytest.mark.parametrize(
    ("text", "candidate", "before", "after"),
    [
        ("A cat sat because [it] was tired.", "cat", "A cat sat because cat", " was tired."),
        ("The cat sat because [it] was tired.", "The cat", "The cat sat because the cat", " was tired."),
        ("An owl sat because [it] was old.", "An owl", "An owl sat because an owl", " was old."),
        ("[It] was tired, the cat.", "the cat", "The cat", " was tired, the cat."),
        ("Rain. [It] fell on the roof.", "roof", "Rain. Roof", " fell on the roof."),
        ('Anna said: "[I] am ill."', "Anna", 'Anna said: "Anna', ' am ill."'),
        ("The king said that [I] am ill.", "The king", "The king said that the king", " am ill."),
        ("Theo left because [he] was ill.", "Theo", "Theo left because Theo", " was ill."),
        ("THE CAT SAT BECAUSE [IT] WAS OLD", "THE CAT", "THE CAT SAT BECAUSE THE CAT", " WAS OLD"),
        ("Sarah saw Tom and waved at [him].", "Tom", "Sarah saw Tom and waved at Tom", "."),
        ("小猫睡了,因为[它]累了。", "小猫", "小猫睡了,因为小猫", "累了。"),
    ],
)
def test_a_candidate_takes_the_pronouns_place(text: str, candidate: str, before: str, after: str) -> None:
    assert put(text, candidate) == (before, after)


@pytest.mark.parametrize(
    ("text", "candidate", "before"),
    [
        ("praised because [his] soup was good", "cook", "praised because cook's"),
        ("praised because [His] soup was good", "the cook", "praised because The cook's"),
        ("and [its] lid", "box", "and box's"),
        ("and [his] hat", "Thomas", "and Thomas's"),
        ("and [their] food", "waiters", "and waiters'"),
        ("and [their] food", "children", "and children's"),
        ("the book was [hers].", "Anna", "the book was Anna's"),
        ("blew [her] hat away", "widow", "blew widow's"),
        ("that evening [her] prayer book", "nun", "that evening nun's"),
        ("struck [her] on the head", "Anna", "struck Anna"),
        ("startled [her].", "Anna", "startled Anna"),
        ("startled [her]", "Anna", "startled Anna"),
        ("startled [her], and", "Anna", "startled Anna"),
        ("told [her] that", "Anna", "told Anna"),
        ("gave [her] a book", "Anna", "gave Anna"),
    ],
)
def test_a_possessive_pronoun_gives_a_possessive_noun(text: str, candidate: str, before: str) -> None:
    assert put(text, candidate)[0] == before


def test_what_follows_the_pronoun_is_the_same_for_every_candidate() -> None:
    assert {put("saw [their] dogs", noun)[1] for noun in ("Anna", "the girls", "The boy")} == {" dogs"}


def test_after_the_pronoun_nothing_may_follow() -> None:
    assert put("Anna waved at [him]", "Tom") == ("Anna waved at Tom", "")


@given(st.text(), st.text(min_size=1), st.text(), st.text(min_size=1))
def test_the_text_around_the_pronoun_is_kept(before: str, pronoun: str, after: str, candidate: str) -> None:
    result = substitute(before + pronoun + after, len(before), len(before) + len(pronoun), candidate)
    assert result.after == after
    assert result.before.startswith(before)
    assert len(result.before) > len(before)


@pytest.mark.parametrize(
    ("start", "end", "candidate", "code"),
    [
        (-1, 2, "cat", "span_out_of_range"),
        (0, 8, "cat", "span_out_of_range"),
        (3, 2, "cat", "span_out_of_range"),
        (2, 2, "cat", "empty_span"),
        (0, 2, "", "empty_span"),
    ],
)
def test_a_span_outside_the_text_and_an_empty_one_are_refused(
    start: int, end: int, candidate: str, code: str
) -> None:
    with pytest.raises(SpanError) as caught:
        substitute("it fell", start, end, candidate)
    assert caught.value.code == code


# --- log-probabilities --------------------------------------------------------------------------------------


def language_model(output_matrix: Tensor | None, *, dtype: torch.dtype = torch.float64) -> Qwen2ForCausalLM:
    """transformers' own model of the tiny backbone; None ties the output matrix to the embedding."""
    backbone = tiny_backbone()
    backbone.config.tie_word_embeddings = output_matrix is None
    model = Qwen2ForCausalLM(backbone.config)
    model.model.load_state_dict(backbone.state_dict())
    if output_matrix is None:
        model.tie_weights()
        assert model.lm_head.weight is model.model.embed_tokens.weight
    else:
        model.lm_head.weight.data = output_matrix.clone()
    return model.to(dtype).eval()


def expected_sums(model: Qwen2ForCausalLM) -> list[float]:
    """Text by text, from the log-softmax of all logits."""
    sums = []
    for ids, first in zip(SEQUENCES, FIRSTS, strict=True):
        with torch.inference_mode():
            logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)  # [token, vocabulary]
        sums.append(sum(logs[t - 1, ids[t]].item() for t in range(first, len(ids))))
    return sums


@pytest.fixture(scope="module")
def exact() -> AttentionReader:
    return AttentionReader(tiny_backbone().double())


def test_two_logits_worked_by_hand() -> None:
    """Logits 0 and ln 3: softmax gives 1/4 and 3/4."""
    hidden = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    matrix = torch.tensor([[0.0, 5.0], [math.log(3), 7.0]])
    found = next_token_log_probabilities(hidden, matrix, torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([math.log(1 / 4), math.log(3 / 4)], abs=1e-6)
    assert found.dtype == torch.float64


@pytest.mark.parametrize("block_logits", [1, 17, 151, 1 << 23])
def test_blocks_of_the_vocabulary_change_nothing(block_logits: int) -> None:
    random = torch.Generator().manual_seed(3)
    hidden = torch.randn(13, 7, generator=random, dtype=torch.float64)
    matrix = torch.randn(101, 7, generator=random, dtype=torch.float64)
    ids = torch.randint(101, (13,), generator=random)
    expected = torch.nn.functional.cross_entropy(hidden @ matrix.T, ids, reduction="none")
    found = next_token_log_probabilities(hidden, matrix, ids, block_logits=block_logits)
    assert (found + expected).abs().max() <= 1e-12


def test_logits_far_from_zero_neither_overflow_nor_give_more_than_certainty() -> None:
    hidden = torch.tensor([[300.0], [-300.0]])
    matrix = torch.tensor([[-3.0], [2.0], [3.0]])
    found = next_token_log_probabilities(hidden, matrix, torch.tensor([2, 2]), block_logits=2)
    assert found.tolist() == [0.0, -1800.0]


@pytest.mark.parametrize("tied", [False, True])
def test_sums_equal_those_of_transformers_own_language_model(exact: AttentionReader, tied: bool) -> None:
    matrix = exact.backbone.embed_tokens.weight if tied else tiny_output_matrix().double()
    expected = expected_sums(language_model(None if tied else matrix))
    found = continuation_log_probabilities(exact, matrix, SEQUENCES, FIRSTS)
    assert found == pytest.approx(expected, abs=1e-10)


def test_in_float32_sums_are_within_1e_4_of_transformers() -> None:
    matrix = tiny_output_matrix()
    found = continuation_log_probabilities(AttentionReader(tiny_backbone()), matrix, SEQUENCES, FIRSTS)
    expected = expected_sums(language_model(matrix, dtype=torch.float32))
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("max_padded_tokens", [1, 23, 4096])
def test_batches_equal_single_texts(exact: AttentionReader, max_padded_tokens: int) -> None:
    matrix = tiny_output_matrix().double()
    alone = [
        continuation_log_probabilities(exact, matrix, [ids], [first])[0]
        for ids, first in zip(SEQUENCES, FIRSTS, strict=True)
    ]
    together = continuation_log_probabilities(
        exact, matrix, SEQUENCES, FIRSTS, max_padded_tokens=max_padded_tokens, block_logits=211
    )
    assert together == pytest.approx(alone, abs=1e-11)


def test_two_continuations_add_up_by_the_chain_rule(exact: AttentionReader) -> None:
    matrix, ids = tiny_output_matrix().double(), SEQUENCES[0]
    whole, second = continuation_log_probabilities(exact, matrix, [ids, ids], [3, 8])
    (first,) = continuation_log_probabilities(exact, matrix, [ids[:8]], [3])
    assert whole == pytest.approx(first + second, abs=1e-11)


def test_the_check_comes_before_every_layer_and_every_block_of_the_output_matrix(
    exact: AttentionReader,
) -> None:
    matrix, seen = tiny_output_matrix().double(), []
    continuation_log_probabilities(
        exact, matrix, [[2, 3, 5]], [1], before_layer=seen.append, block_logits=HEADS * HEAD_SIZE * 100
    )
    assert seen == [*range(LAYERS), *[LAYERS] * 4]  # 307 entries, 100 at a time


@pytest.mark.parametrize("stop_at", [1, LAYERS])
def test_what_the_check_raises_stops_the_run(exact: AttentionReader, stop_at: int) -> None:
    ran: list[int] = []

    def check(layer: int) -> None:
        ran.append(layer)
        if layer == stop_at:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        continuation_log_probabilities(
            exact, tiny_output_matrix().double(), SEQUENCES, FIRSTS, before_layer=check, max_padded_tokens=13
        )
    assert ran == list(range(stop_at + 1))


def test_no_texts_have_no_sums(exact: AttentionReader) -> None:
    assert continuation_log_probabilities(exact, tiny_output_matrix().double(), [], []) == []


@pytest.mark.parametrize("first", [-1, 0, 2, 3])
def test_a_continuation_needs_a_token_and_one_before_it(exact: AttentionReader, first: int) -> None:
    with pytest.raises(ShapeError, match=rf"firsts\[1\].*2 tokens.*got {first}"):
        continuation_log_probabilities(exact, tiny_output_matrix().double(), SEQUENCES[:2], [6, first])


def test_each_text_needs_its_first_token_that_counts(exact: AttentionReader) -> None:
    with pytest.raises(ShapeError, match=r"one per text \(4\)"):
        continuation_log_probabilities(exact, tiny_output_matrix().double(), SEQUENCES, FIRSTS[:3])


def test_an_id_outside_the_vocabulary_is_refused(exact: AttentionReader) -> None:
    with pytest.raises(OutOfRangeError, match=r"307 is not in 0\.\.306"):
        continuation_log_probabilities(exact, tiny_output_matrix().double(), [[5, 307]], [1])


def test_a_model_in_training_mode_is_refused() -> None:
    reader = AttentionReader(tiny_backbone().train())
    with pytest.raises(UnsupportedModelError, match="training mode"):
        continuation_log_probabilities(reader, tiny_output_matrix(), SEQUENCES, FIRSTS)


@pytest.mark.parametrize(
    ("hidden", "matrix", "ids"), [((5, 3), (11, 2), 5), ((5, 3), (11, 3), 7), ((3,), (11, 3), 3)]
)
def test_sizes_that_do_not_fit_are_refused(
    hidden: tuple[int, ...], matrix: tuple[int, ...], ids: int
) -> None:
    with pytest.raises(ShapeError):
        next_token_log_probabilities(
            torch.zeros(hidden), torch.zeros(matrix), torch.zeros(ids, dtype=torch.long)
        )


# --- answers ------------------------------------------------------------------------------------------------


def test_the_likeliest_candidate_is_predicted() -> None:
    assert choose([-7.0, -2.5, -4.0], gold=1) == Substitution(
        scores=(-7.0, -2.5, -4.0),
        predicted=1,
        tie=False,
        margin=1.5,
        within_noise=False,
        correct=True,
        no_continuation=False,
    )


def test_a_wrong_prediction_is_not_correct_and_without_gold_nothing_is_said() -> None:
    assert choose([-7.0, -2.5], gold=0).correct is False
    assert choose([-7.0, -2.5]).correct is None


def test_equal_sums_are_a_tie_and_count_as_wrong() -> None:
    found = choose([-3.0, -3.0 - 1e-10], gold=0)
    assert (found.predicted, found.tie, found.within_noise, found.correct) == (None, True, True, False)


def test_a_margin_below_the_noise_is_marked_and_still_predicts() -> None:
    found = choose([-3.00005, -3.0], gold=1)
    assert (found.predicted, found.tie, found.within_noise, found.correct) == (1, False, True, True)


def test_nothing_after_the_pronoun_predicts_nothing() -> None:
    found = choose([None, None], gold=0)
    assert found.no_continuation
    assert (found.scores, found.predicted, found.tie, found.margin) == ((None, None), None, False, None)
    assert found.correct is False


def test_a_single_candidate_is_predicted_without_a_margin() -> None:
    found = choose([-3.0])
    assert (found.predicted, found.margin, found.within_noise) == (0, None, False)


@pytest.mark.parametrize("scores", [[], [-3.0, None]])
def test_scores_of_some_candidates_only_are_refused(scores: list[float | None]) -> None:
    with pytest.raises(ShapeError, match="scores"):
        choose(scores)
