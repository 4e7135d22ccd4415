"""Which noun does the pronoun attend to?

The row is the pronoun's, the columns are the candidates'. In a causal model that row ends at the pronoun:
what comes after it cannot matter, and a candidate after it cannot be seen. Attention says where a head looks;
it does not say what the model takes the pronoun to mean.

Any tensor of attention will do, whatever it was read with. Where `attention[layer]` is [head, query, key]:

    tokens = align(text, ids, offsets, pieces).tokens
    pronoun, *nouns = (resolve_span(text, tokens, span_text=word) for word in ("it", "cat", "mat"))
    question = ask(text, tokens, pronoun, nouns, reading=Reading(aggregate="mean"))
    answers = score(question, layer, range(heads), attention[layer][:, question.queries])

Source: Clark et al. 2019, "What Does BERT Look At?", section 4.3, for reading coreference off single heads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_core.errors import ShapeError
from attention_core.maps import EMPTY
from attention_core.spans import Span, Token, whole_word_occurrences

if TYPE_CHECKING:
    from attention_core.capture import Read, Rows

TIE = 1e-9  # two scores that differ by no more than this are equal
NOISE = 2e-4  # the promised exactness: below it another batch shape or machine may decide otherwise

Aggregate = Literal["sum", "mean", "max", "last", "head_word"]
QueryTokens = Literal["last", "first", "mean"]
Normalize = Literal["none", "candidates", "exclude_sink"]
FirstToken = Literal["keep", "drop"]


class CoreferenceError(ValueError):
    """A question that cannot be scored.

    `code` is too_few_candidates, gold_out_of_range, overlapping_spans or unknown_option; `index` is the
    candidate at fault, None where no single one is.
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
class Reading:
    """How the attention from a pronoun to a candidate becomes one number; `score` has the formulas.

    aggregate     of the candidate's tokens: the sum of their weights (which favours long names), their mean,
                  their largest, the weight of the last one, or the sum over its last whitespace-separated word
    query         the row that is read: of the pronoun's last token, of its first, or the mean of all its rows
    normalize     none; candidates: divided by what all candidates score; exclude_sink: the first token's column
                  is removed and what is left of the row fills it again
    first_token   drop leaves token 0 out of every candidate: it draws attention whatever stands there

    Raises CoreferenceError, code unknown_option, for anything else.
    """

    aggregate: Aggregate = "sum"
    query: QueryTokens = "last"
    normalize: Normalize = "none"
    first_token: FirstToken = "keep"

    def __post_init__(self) -> None:
        for field in fields(self):
            if (got := getattr(self, field.name)) not in get_args(field.type):
                expected = ", ".join(get_args(field.type))
                raise CoreferenceError("unknown_option", f"{field.name}: expected {expected}, got {got!r}")

    @property
    def counts_first_token(self) -> bool:
        """Whether a candidate on token 0 is credited with the attention there."""
        return self.first_token == "keep" and self.normalize != "exclude_sink"


DEFAULTS = Reading()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate; `visible` when it does not come wholly after the row that is read, so can be attended to."""

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
    """A checked pronoun and its candidates, and where to look for them.

    `queries` are the rows to read, ascending: one, or all of the pronoun's for their mean. `counted` are, per
    candidate, the tokens whose weights make its score; a candidate without any has none.
    """

    pronoun: Span
    candidates: tuple[Candidate, ...]
    gold: int | None
    reading: Reading
    queries: tuple[int, ...]
    counted: tuple[tuple[int, ...], ...]
    baselines: Baselines
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """How one head's pronoun row falls on the candidates; see `score` for the formulas.

    `scores` has one entry per candidate. It is None for one that is not visible or has nothing but a token 0
    that does not count, and for all where there is nothing to divide by. `predicted` is None on a tie, and where
    no candidate scores above 0. `margin` is None with fewer than two scores. `within_noise`: another batch shape
    or machine may decide otherwise. The two masses are shares of the row as it was read, whatever the scores
    were divided by. `correct` is None without a gold answer.
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


# Of a text, a question of it, one layer's answers
Consume = Callable[[int, int, tuple[HeadAnswer, ...]], None]


def ask(
    text: str,
    tokens: Sequence[Token],
    pronoun: Span,
    candidates: Sequence[Span],
    *,
    gold: int | None = None,
    reading: Reading = DEFAULTS,
) -> Question:
    """Check a pronoun and its candidates before anything is computed, and say what a reader must know.

    `tokens` are all tokens of the text; `gold` indexes `candidates`.

    As spans may not share a token, a candidate lies wholly before the pronoun or wholly after it. It is therefore
    visible from the pronoun's first token exactly when it is from its last one, and `query` does not change that.

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
    rows = pronoun.token_indices
    queries = {"last": rows[-1:], "first": rows[:1], "mean": rows}[reading.query]
    described = tuple(
        Candidate(
            index=i,
            text=span.text,
            start=span.start,
            end=span.end,
            token_indices=span.token_indices,
            exact=span.exact,
            visible=span.token_indices[0] <= queries[-1],
            has_first_token=span.token_indices[0] == 0,
        )
        for i, span in enumerate(candidates)
    )
    counted = tuple(_counted(c, tokens, queries[-1], reading) for c in described)
    baselines = _baselines(pronoun, described)
    question = Question(pronoun, described, gold, reading, queries, counted, baselines, ())
    return replace(question, notes=tuple(_notes(text, len(tokens), question)))


def score(question: Question, layer: int, heads: Sequence[int], weights: Tensor) -> tuple[HeadAnswer, ...]:
    """Score the candidates by the attention that the pronoun pays to their tokens.

        a                   = A[q,·], or the mean of the pronoun's rows (before anything is divided)
        s(c)                = sum, mean or max of a[k] over k in K_c
        score(c)            = s(c) / d
        d                   = 1                       normalize = none
                              sum over c of s(c)      normalize = candidates: the scores sum to 1
                              1 - a[0]                normalize = exclude_sink
        predicted           = the candidate with the best score, where that is above 0 and no tie
        margin              = best score - second-best score
        mass_on_candidates  = sum of a[k] over all candidates' tokens,    mass_on_first_token = a[0]

    where K_c are the candidate's tokens up to q; for `last` and `head_word` only those of its last token or last
    word. Token 0 is in no K_c, nor in `mass_on_candidates`, when it is dropped or its column removed, and a
    candidate that has no other token scores None. Where d has nothing to divide by (0 for the candidates, less
    than 1e-6 for the sink) every score is None and `notes` says no_attention; nothing is ever NaN.

    `weights` is [head, query, key]: the rows `question.queries`, in that order, of each of `heads`, probabilities,
    in any dtype; keys after q are not read. From a whole map they are `map[:, question.queries]`. A map read the
    other way round, candidate row and pronoun column, is 0 for every candidate and predicts none.

    Sums run in float64. Scores are a share of the row, of the candidates' total, or of the row without the sink.
    A tie is a margin of at most 1e-9 in that unit. `within_noise` marks a margin below 2e-4 / d: 2e-4 is the
    exactness that weights are read with, and what they are divided by divides it too.

    Raises ShapeError when `weights` does not have these rows, ends before q, or holds a number that is negative or
    not finite up to there.
    """
    row = _row(question, heads, weights)  # [head, key]
    scored = [c for c, keys in enumerate(question.counted) if keys]
    raw = row.new_zeros(len(heads), len(scored))  # [head, candidate with a score]
    for place, c in enumerate(scored):
        raw[:, place] = _aggregated(row[:, question.counted[c]], question.reading.aggregate)
    divisors = {  # [head]
        "none": row.new_ones(len(heads)),
        "candidates": raw.sum(-1),
        "exclude_sink": 1 - row[:, 0],
    }[question.reading.normalize]
    enough = divisors >= EMPTY if question.reading.normalize == "exclude_sink" else divisors > 0
    shares = raw / divisors.where(enough, 1).unsqueeze(-1)
    counted = [k for c in question.candidates for k in _keys(c, question.queries[-1], question.reading)]
    columns = (
        shares.tolist(),
        divisors.tolist(),
        enough.tolist(),
        row[:, counted].sum(-1).tolist(),
        row[:, 0].tolist(),
    )
    answers = []
    for head, of_scored, divisor, is_enough, mass, first in zip(heads, *columns, strict=True):
        scores: list[float | None] = [None] * len(question.candidates)
        if is_enough:
            for c, value in zip(scored, of_scored, strict=True):
                scores[c] = value
        predicted, margin = _choose(scores)
        answers.append(
            HeadAnswer(
                layer=layer,
                head=head,
                scores=tuple(scores),
                predicted=predicted,
                tie=margin is not None and margin <= TIE,
                margin=margin,
                within_noise=margin is not None and margin < NOISE / divisor,
                mass_on_candidates=mass,
                mass_on_first_token=first,
                correct=None if question.gold is None else predicted == question.gold,
            )
        )
    return tuple(answers)


def attend(
    read: "Read",
    texts: Sequence[tuple[Sequence[int], Sequence[Question]]],
    heads: Mapping[int, Sequence[int]],
    consume: Consume,
) -> None:
    """Ask many questions of many texts, each text in one pass over the model, and only of the pronouns' rows.

    read       `AttentionReader.read`, or what takes the same
    texts      token ids of each text, and the questions about it
    heads      {layer: heads of it}
    consume    called as consume(text, question, answers) with two indices and one layer's answers, layers ascending

    Raises as `read` and `score` do.
    """
    waiting: dict[tuple[int, int], list[Tensor]] = {}  # rows of questions whose rows come in several blocks

    def add(rows: "Rows") -> None:
        at = {query: place for place, query in enumerate(rows.queries)}
        for place, question in enumerate(texts[rows.text][1]):
            here = [at[query] for query in question.queries if query in at]
            if not here:
                continue
            keys = question.queries[-1] + 1
            weights = rows.weights[:, here, :keys]  # [head, query, key]
            if len(here) < len(question.queries):
                # The block may end before the last query: the keys that its rows lack lie after them, and weigh 0
                earlier = waiting.setdefault((rows.text, place), [])
                earlier.append(pad(weights, (0, keys - weights.shape[-1])))
                weights = torch.cat(earlier, 1)
                if weights.shape[1] < len(question.queries):
                    continue
                del waiting[rows.text, place]
            consume(rows.text, place, score(question, rows.layer, rows.heads, weights))

    queries = [sorted({query for one in questions for query in one.queries}) for _, questions in texts]
    read([ids for ids, _ in texts], heads, add, queries=queries)


def notes(question: Question, answers: Sequence[HeadAnswer]) -> tuple[Note, ...]:
    """The question's notes, and one more where heads give the candidates no attention that counts."""
    silent = [a for a in answers if not any(a.scores)]
    if not silent or not any(question.counted):
        return question.notes
    where = f"layer {silent[0].layer} head {silent[0].head}"
    others = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    message = f"{where}{others} of {len(answers)} heads pay no attention that counts to any candidate"
    return (*question.notes, Note("no_attention", message))


def _keys(candidate: Candidate, query: int, reading: Reading) -> tuple[int, ...]:
    """The candidate's tokens that the row can attend to, without token 0 where that does not count."""
    first = 0 if reading.counts_first_token else 1
    return tuple(k for k in candidate.token_indices if first <= k <= query)


def _counted(candidate: Candidate, tokens: Sequence[Token], query: int, reading: Reading) -> tuple[int, ...]:
    """The tokens whose weights make the candidate's score; none where it has no score."""
    keys = _keys(candidate, query, reading)
    if reading.aggregate == "head_word":
        text = candidate.text.rstrip()
        end = candidate.start + len(text)
        start = end - len("".join(text.split()[-1:]))
        word = tuple(k for k in keys if tokens[k].start < end and start < tokens[k].end)
        return word or keys[-1:]  # no token of its own: a mark that a normaliser composed
    return keys[-1:] if reading.aggregate == "last" else keys


def _row(question: Question, heads: Sequence[int], weights: Tensor) -> Tensor:
    """The row to read, [head, key] up to the query, in float64; the mean of the rows where there are several."""
    rows, keys = len(question.queries), question.queries[-1] + 1
    if weights.ndim != 3 or weights.shape[:2] != (len(heads), rows) or weights.shape[2] < keys:
        raise ShapeError(
            "weights [head, query, key]",
            expected=f"{len(heads)} heads, {rows} queries and at least {keys} keys",
            got=tuple(weights.shape),
        )
    read = weights[..., :keys].detach().to(torch.float64)  # [head, query, key]
    if not bool(((read >= 0) & read.isfinite()).all()):
        raise ShapeError(
            "weights [head, query, key]", expected="numbers that are finite and at least 0", got="others"
        )
    return read.mean(1)


def _aggregated(weights: Tensor, aggregate: Aggregate) -> Tensor:
    """One number per head of the weights [head, key]."""
    if aggregate == "mean":
        return weights.mean(-1)
    return weights.amax(-1) if aggregate == "max" else weights.sum(-1)


def _choose(scores: Sequence[float | None]) -> tuple[int | None, float | None]:
    """The index of the best score, and its margin over the second."""
    ranked = sorted((-s, i) for i, s in enumerate(scores) if s is not None)
    margin = ranked[1][0] - ranked[0][0] if len(ranked) > 1 else None
    clear = bool(ranked) and ranked[0][0] < 0 and (margin is None or margin > TIE)
    return ranked[0][1] if clear else None, margin


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


def _notes(text: str, tokens: int, question: Question) -> Iterator[Note]:
    candidates, query = question.candidates, question.queries[-1]
    if query + 1 < tokens:
        after = "pronoun" if query == question.pronoun.token_indices[-1] else "pronoun's first token"
        message = (
            f"the {tokens - query - 1} tokens after the {after} cannot change its row: the model is causal"
        )
        yield Note("later_context_not_seen", message)
    for c, counted in zip(candidates, question.counted, strict=True):
        name = f'candidate {c.index} "{c.text}"'
        if c.has_first_token:
            message = f"{name} holds token 0, which many heads attend to whatever stands there"
            if not question.reading.counts_first_token:
                rest = "only its other tokens count" if counted else "without another token it has no score"
                message = f"{name} holds token 0, which is left out; {rest}"
            yield Note("candidate_on_first_token", message)
        if not c.visible:
            message = f"{name} comes after the pronoun, whose row cannot attend to it"
            yield Note("candidate_after_pronoun", message)
        times = len(whole_word_occurrences(text, c.text))
        if times > 1:
            message = f"{name} occurs {times} times; only the attention to {c.start}..{c.end} is counted"
            yield Note("repeated_candidate", message)
    if not any(c.visible for c in candidates):
        yield Note("no_visible_candidate", "every candidate comes after the pronoun, so none is predicted")
    if len(candidates) == 1:
        yield Note("single_candidate", "with one candidate there is nothing to choose between")
    spans: list[Span | Candidate] = [question.pronoun, *candidates]
    inexact = [_place(span) for span in spans if not span.exact]
    if inexact:
        message = f"a token reaches outside {', '.join(inexact)}; its whole attention is counted"
        yield Note("inexact_span", message)
