"""Which noun does the pronoun attend to?

The row is the pronoun's, the columns are the candidates'. In a causal model that row ends at the pronoun:
what comes after it cannot matter, and a candidate after it cannot be seen. Attention says where a head looks;
it does not say what the model takes the pronoun to mean.

Source: Clark et al. 2019, "What Does BERT Look At?", section 4.3, for reading coreference off single heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_core.errors import ShapeError
from attention_core.spans import Span, whole_word_occurrences

TIE = 1e-9  # two scores that differ by no more than this are equal
NOISE = 2e-4  # the promised exactness: below it another batch shape or machine may decide otherwise


class CoreferenceError(ValueError):
    """A question that cannot be scored.

    `code` is too_few_candidates, gold_out_of_range or overlapping_spans; `index` is the candidate at fault,
    None where no single one is.
    """

    def __init__(self, code: str, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.code, self.index = code, index


@dataclass(frozen=True, slots=True)
class Note:
    """Something a reader of the scores should know: a stable code, and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate; `visible` when the query, the pronoun's last token, can attend to one of its tokens."""

    index: int
    text: str
    start: int
    end: int
    token_indices: tuple[int, ...]
    exact: bool
    visible: bool
    has_first_token: bool


@dataclass(frozen=True, slots=True)
class Baselines:
    """Choices made by position alone: the first candidate in the text, and the nearest.

    The nearest is the last one before the pronoun, else the closest after it.
    """

    first: int
    nearest: int


@dataclass(frozen=True, slots=True)
class Question:
    """A checked pronoun and its candidates. `query` is the row to read: the pronoun's last token."""

    pronoun: Span
    candidates: tuple[Candidate, ...]
    gold: int | None
    query: int
    baselines: Baselines
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """How one head's pronoun row falls on the candidates; see `score` for the formulas.

    `scores` has one entry per candidate, None for one that is not visible. `predicted` is None on a tie, and
    where no candidate receives anything. `margin` is None with fewer than two visible candidates. `correct`
    is None without a gold answer.
    """

    layer: int
    head: int
    scores: tuple[float | None, ...]
    predicted: int | None
    tie: bool
    margin: float | None
    within_noise: bool
    mass_on_candidates: float
    mass_on_first_token: float
    correct: bool | None


def ask(
    text: str, tokens: int, pronoun: Span, candidates: Sequence[Span], *, gold: int | None = None
) -> Question:
    """Check a pronoun and its candidates before anything is computed, and say what a reader must know.

    `tokens` is the number of tokens of the text; `gold` indexes `candidates`.

    Raises CoreferenceError when there is no candidate, when `gold` indexes none, and when two candidates, or
    a candidate and the pronoun, share a character or a token.
    """
    if not candidates:
        raise CoreferenceError("too_few_candidates", "expected at least one candidate, got none")
    if gold is not None and not 0 <= gold < len(candidates):
        raise CoreferenceError(
            "gold_out_of_range",
            f"gold must index one of the {len(candidates)} candidates, 0..{len(candidates) - 1}; got {gold}",
        )
    _refuse_overlaps(pronoun, candidates)
    query = pronoun.token_indices[-1]
    described = tuple(
        Candidate(
            index=i,
            text=span.text,
            start=span.start,
            end=span.end,
            token_indices=span.token_indices,
            exact=span.exact,
            visible=span.token_indices[0] <= query,
            has_first_token=span.token_indices[0] == 0,
        )
        for i, span in enumerate(candidates)
    )
    notes = tuple(_notes(text, tokens, pronoun, query, described))
    return Question(pronoun, described, gold, query, _baselines(pronoun, described), notes)


def score(question: Question, layer: int, heads: Sequence[int], weights: Tensor) -> tuple[HeadAnswer, ...]:
    """Score the candidates by the attention that the pronoun's last token q pays to their tokens.

        score(c)            = sum_{k in K_c, k <= q} A[q,k]
        margin              = best score - second-best score, over the visible candidates
        predicted           = the candidate with the best score, where that is above 0 and no tie
        mass_on_candidates  = sum of all scores,    mass_on_first_token = A[q,0]

    where K_c are the candidate's tokens. `weights` is [head, key], the row A[q,·] of each of `heads`,
    probabilities; keys after q are not read. Sums run in float64. A tie is a margin of at most 1e-9;
    `within_noise` marks a margin below 2e-4, the exactness that attention is read with.

    Raises ShapeError when `weights` does not have a row per head, or ends before q.
    """
    if weights.ndim != 2 or weights.shape[0] != len(heads) or weights.shape[1] <= question.query:
        raise ShapeError(
            "weights [head, key]",
            expected=f"{len(heads)} heads and at least {question.query + 1} keys",
            got=tuple(weights.shape),
        )
    rows = weights[:, : question.query + 1].detach().to(torch.float64)  # [head, key]
    sums = [
        rows[:, [k for k in c.token_indices if k <= question.query]].sum(-1).tolist()
        for c in question.candidates
    ]  # [candidate][head]
    return tuple(
        _answer(
            question,
            layer,
            head,
            tuple(s[h] if c.visible else None for c, s in zip(question.candidates, sums, strict=True)),
            rows[h, 0].item(),
        )
        for h, head in enumerate(heads)
    )


def notes(question: Question, answers: Sequence[HeadAnswer]) -> tuple[Note, ...]:
    """The question's notes, and one more where heads pay no attention at all to any visible candidate."""
    silent = [a for a in answers if a.mass_on_candidates == 0]
    if not silent or not any(c.visible for c in question.candidates):
        return question.notes
    where = f"layer {silent[0].layer} head {silent[0].head}"
    others = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return (
        *question.notes,
        Note("no_attention", f"{where}{others} of {len(answers)} heads attend to no candidate"),
    )


def _answer(
    question: Question, layer: int, head: int, scores: tuple[float | None, ...], first_token: float
) -> HeadAnswer:
    ranked = sorted(
        ((s, i) for i, s in enumerate(scores) if s is not None), key=lambda pair: (-pair[0], pair[1])
    )
    margin = ranked[0][0] - ranked[1][0] if len(ranked) > 1 else None
    tie = margin is not None and margin <= TIE
    predicted = ranked[0][1] if ranked and ranked[0][0] > 0 and not tie else None
    return HeadAnswer(
        layer=layer,
        head=head,
        scores=scores,
        predicted=predicted,
        tie=tie,
        margin=margin,
        within_noise=margin is not None and margin < NOISE,
        mass_on_candidates=sum((s for s, _ in ranked), 0.0),
        mass_on_first_token=first_token,
        correct=None if question.gold is None else predicted == question.gold,
    )


def _refuse_overlaps(pronoun: Span, candidates: Sequence[Span]) -> None:
    # Spans that share a token would be given the same attention twice, even where their characters differ.
    for i, candidate in enumerate(candidates):
        others = [
            ("the pronoun", pronoun),
            *((f"candidate {j}", other) for j, other in enumerate(candidates[:i])),
        ]
        for name, other in others:
            shares_text = candidate.start < other.end and other.start < candidate.end
            if shares_text or not set(candidate.token_indices).isdisjoint(other.token_indices):
                what = "text" if shares_text else "a token"
                here, there = (f"{span.start}..{span.end}" for span in (candidate, other))
                message = f"candidate {i} at {here} and {name} at {there} share {what}"
                raise CoreferenceError("overlapping_spans", message, index=i)


def _place(span: Span | Candidate) -> str:
    return f'"{span.text}" at {span.start}..{span.end}'


def _baselines(pronoun: Span, candidates: Sequence[Candidate]) -> Baselines:
    in_order = sorted(candidates, key=lambda c: c.start)
    before = [c for c in in_order if c.end <= pronoun.start]
    return Baselines(first=in_order[0].index, nearest=before[-1].index if before else in_order[0].index)


def _notes(text: str, tokens: int, pronoun: Span, query: int, candidates: Sequence[Candidate]) -> list[Note]:
    found = []
    if query + 1 < tokens:
        message = (
            f"the {tokens - query - 1} tokens after the pronoun cannot change its row: the model is causal"
        )
        found.append(Note("later_context_not_seen", message))
    for c in candidates:
        name = f'candidate {c.index} "{c.text}"'
        if c.has_first_token:
            message = f"{name} holds token 0, which many heads attend to whatever stands there"
            found.append(Note("candidate_on_first_token", message))
        if not c.visible:
            message = f"{name} comes after the pronoun, whose row cannot attend to it"
            found.append(Note("candidate_after_pronoun", message))
        times = len(whole_word_occurrences(text, c.text))
        if times > 1:
            message = f"{name} occurs {times} times; only the attention to {c.start}..{c.end} is counted"
            found.append(Note("repeated_candidate", message))
    if not any(c.visible for c in candidates):
        found.append(
            Note("no_visible_candidate", "every candidate comes after the pronoun, so none is predicted")
        )
    if len(candidates) == 1:
        found.append(Note("single_candidate", "with one candidate there is nothing to choose between"))
    spans: list[Span | Candidate] = [pronoun, *candidates]
    inexact = [_place(span) for span in spans if not span.exact]
    if inexact:
        message = f"a token reaches outside {', '.join(inexact)}; its whole attention is counted"
        found.append(Note("inexact_span", message))
    return found
