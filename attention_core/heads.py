"""What kind of head is it? Scores over the whole map, computed while its rows stream past.

A score names, for every row i, the set of keys that count. What a head is worth is the weight it puts there,
beside what a head that spreads its attention evenly would put there: on short texts the two are close, and a
score without its baseline says little.

Source: Clark et al. 2019, "What Does BERT Look At?", section 3; each row of `SCORES` names its own.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from numpy.random import PCG64
from scipy.special import stdtrit
from torch import Tensor

from attention_core._checks import positive_int
from attention_core.errors import ShapeError

if TYPE_CHECKING:
    from attention_core.capture import Rows

Status = Literal["ok", "too_short", "not_applicable"]
Kind = Literal["mass", "distance", "entropy", "spans"]

SHORTEST = 4  # tokens; below this every head looks like a sink, so nothing is labelled
NOISE = 2e-4  # what another batch shape or machine may move a weight by
_CHUNK = 1 << 20  # weights looked at together: few enough to stay in the processor's cache


# --- the text -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class TextFacts:
    """What scores need to know about a text. Made by `text_facts`."""

    ids: Tensor  # [token], int64
    punctuation: Tensor  # [token], bool: the token is nothing but punctuation

    def to(self, device: torch.device) -> TextFacts:
        """The same on another device."""
        return TextFacts(self.ids.to(device), self.punctuation.to(device))


def text_facts(ids: Sequence[int], texts: Sequence[str] | None = None) -> TextFacts:
    """The facts of a text with these token ids, whose tokens read `texts`; without them none is punctuation.

    Raises ShapeError for no token, for ids that are no integers, and when `texts` are not one a token.
    """
    if not len(ids):
        raise ShapeError("tokens", expected="at least 1", got=0)
    if texts is not None and len(texts) != len(ids):
        raise ShapeError("texts", expected=f"one for each of {len(ids)} tokens", got=len(texts))
    if not all(isinstance(one, int) for one in ids):
        raise ShapeError("ids", expected="whole numbers", got="others")
    punctuation = [False] * len(ids) if texts is None else [is_punctuation(text) for text in texts]
    return TextFacts(torch.tensor(list(ids)), torch.tensor(punctuation))


def is_punctuation(text: str) -> bool:
    """Whether a text, but for surrounding whitespace, is characters of Unicode's category P only, at least one."""
    text = text.strip()
    return bool(text) and all(unicodedata.category(character).startswith("P") for character in text)


# --- the table of scores ------------------------------------------------------------------------------------

# What each key counts for in each row, [query, key], from the text, the queries [query, 1] and the keys [1, key]:
# True for the keys of the target set, or a number; nothing for keys after the query.
Targets = Callable[[TextFacts, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """One row of the table of scores.

    `kind` is mass (the weight on a target set), distance (its `targets` are lengths, not a set), entropy (of the
    whole row), or spans (needs to be told where to look, so it is never applicable here). A row is applicable when
    `targets` has something in it; with fewer than `min_rows` such rows the numbers stand but carry no label. No
    `threshold`: no label by default. `near` says that targets are among the keys 0 and i-3..i, so that the others need
    not be looked at. `formula` and `baseline` are what a reader is shown.
    """

    formula: str
    baseline: str
    source: str
    targets: Targets | None
    threshold: float | None = None
    min_rows: int = 1
    kind: Kind = "mass"
    near: bool = False


def _sink(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    return (key == 0) & (query >= 1)


def _first_token(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    return key == 0


def _offset(k: int) -> Targets:
    return lambda text, query, key: key == query - k


def _current_token(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    return (key == query) & (query >= 1)


def _duplicate_token(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    return (text.ids[key] == text.ids[query]) & (key < query)


def _induction(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    # Key 0 has no token before it; whatever id stands at the index clamped to 0 is left out by key >= 1
    return (text.ids[(key - 1).clamp_min(0)] == text.ids[query]) & (key >= 1) & (key < query)


def _punctuation(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    return text.punctuation[key] & (key >= 1) & (key < query)


def _local(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    return (key >= query - 3) & (key <= query) & (query >= 4)


def _distance(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
    return (query - key).clamp_min(0)


SCORES: Mapping[str, ScoreRule] = MappingProxyType(
    {
        "sink": ScoreRule(
            formula="mean over rows i >= 1 of A[i,0]",
            baseline="(H_T - 1)/(T - 1)",
            source="the article; attention sinks: Xiao et al. 2023",
            targets=_sink,
            near=True,
            threshold=0.5,
        ),
        "first_token": ScoreRule(
            formula="mean over rows i >= 0 of A[i,0]",
            baseline="H_T/T",
            source="Gu et al. 2024, importance of key 0; theirs is a sink from 0.3",
            targets=_first_token,
            near=True,
        ),
        "previous_token": ScoreRule(
            formula="mean over rows i >= 1 of A[i,i-1]",
            baseline="(H_T - 1)/(T - 1)",
            source="Clark et al. 2019, section 3.1",
            targets=_offset(1),
            near=True,
            threshold=0.5,
        ),
        "offset_2": ScoreRule(
            formula="mean over rows i >= 2 of A[i,i-2]",
            baseline="(H_T - H_2)/(T - 2)",
            source="by analogy with previous_token",
            targets=_offset(2),
            near=True,
            threshold=0.5,
        ),
        "offset_3": ScoreRule(
            formula="mean over rows i >= 3 of A[i,i-3]",
            baseline="(H_T - H_3)/(T - 3)",
            source="by analogy with previous_token",
            targets=_offset(3),
            near=True,
            threshold=0.5,
        ),
        "current_token": ScoreRule(
            formula="mean over rows i >= 1 of A[i,i]",
            baseline="(H_T - 1)/(T - 1)",
            source="by analogy with previous_token",
            targets=_current_token,
            near=True,
            threshold=0.5,
        ),
        "duplicate_token": ScoreRule(
            formula="mean over rows i with S_i = {j < i: id_j = id_i} not empty of the sum of A[i,j], j in S_i",
            baseline="mean over the same rows of |S_i|/(i + 1)",
            source="Wang et al. 2022, duplicate token heads; the threshold is ours, a majority",
            targets=_duplicate_token,
            threshold=0.5,
            min_rows=3,
        ),
        "induction": ScoreRule(
            formula="mean over rows i with S_i = {1 <= j < i: id_(j-1) = id_i} not empty"
            " of the sum of A[i,j], j in S_i",
            baseline="mean over the same rows of |S_i|/(i + 1)",
            source="Olsson et al. 2022, induction heads; the threshold is ours, a majority",
            targets=_induction,
            threshold=0.5,
            min_rows=3,
        ),
        "punctuation": ScoreRule(
            formula="mean over rows i with S_i = {1 <= j < i: token j only punctuation} not empty"
            " of the sum of A[i,j], j in S_i",
            baseline="mean over the same rows of |S_i|/(i + 1)",
            source="Clark et al. 2019, section 3.2",
            targets=_punctuation,
            threshold=0.6,
            min_rows=3,
        ),
        "local": ScoreRule(
            formula="mean over rows i >= 4 of the sum of A[i,j], i - 3 <= j <= i",
            baseline="4 (H_T - H_4)/(T - 4)",
            source="ours",
            targets=_local,
            near=True,
            threshold=0.6,
        ),
        "broad": ScoreRule(
            formula="mean over rows i >= 1 of -sum_j A[i,j] ln A[i,j] / ln(i + 1)",
            baseline="1",
            source="Clark et al. 2019, section 3.3: 3.8 nats of ln 128 is 0.78; label from the threshold on",
            targets=None,
            threshold=0.8,
            kind="entropy",
        ),
        "distance": ScoreRule(
            formula="mean over rows i >= 1 of sum_j A[i,j] (i - j), in tokens",
            baseline="T/4",
            source="Vig and Belinkov 2019, attention distance; carries no label",
            targets=_distance,
            kind="distance",
        ),
        "coreference": ScoreRule(
            formula="sum of A[q,j] over the tokens j of the gold candidate, q the pronoun",
            baseline="|S_q|/(q + 1)",
            source="the article; needs to be told the words: see attention_core.coreference",
            targets=None,
            kind="spans",
        ),
    }
)

LABELS = tuple(name for name, rule in SCORES.items() if rule.kind in ("mass", "entropy"))  # that can be given


# --- a pattern of one's own ---------------------------------------------------------------------------------


def pattern_rule(pattern: Sequence[Sequence[int]]) -> ScoreRule:
    """The rule of a pattern of one's own, [query, key] of 0 and 1, as square as the text has tokens.

    S_i are the ones of row i up to j = i: a causal head cannot look further, so later ones do not count. Row 0 takes
    part where its one key is a 1. Use: `HeadScorer(text, heads, rules={**SCORES, "custom": pattern_rule(pattern)})`.

    Raises ShapeError when the pattern is empty, not square, or holds anything but 0 and 1.
    """
    ones = torch.tensor(_checked(pattern), dtype=torch.bool).tril()  # [query, key]

    def targets(text: TextFacts, query: Tensor, key: Tensor) -> Tensor:
        if len(text.ids) != len(ones):
            raise ShapeError("pattern", expected=f"a row for each of {len(text.ids)} tokens", got=len(ones))
        return ones.to(query.device)[query, key]

    return ScoreRule(
        formula="mean over rows i with S_i = {j <= i: pattern[i][j] = 1} not empty of the sum of A[i,j], j in S_i;"
        " mae_similarity: 1 - mean over all i >= j of |A[i,j] - pattern[i][j]|",
        baseline="mean over the same rows of |S_i|/(i + 1)",
        source="a pattern of one's own",
        targets=targets,
    )


def mae_similarities(
    results: Sequence[ScoreResult], pattern: Sequence[Sequence[int]]
) -> tuple[float | None, ...]:
    """How like the pattern P each map A is, from the results of `pattern_rule(P)`.

        1 - mean over all i >= j of |A[i,j] - P[i,j]|  =  1 - (T + n - 2 m) / (T (T + 1)/2)

    where n is the number of ones with j <= i and m the weight on them: in every row, 1 - m_i lies beside the ones and
    |S_i| - m_i is missing on them, as A is within 0..1 and its rows sum to 1. None where a result is not applicable.

    Raises ShapeError as `pattern_rule` does, and for a result with another number of rows than the pattern's. Differs
    from TransformerLens' `error_measure="abs"` in leaving out the future, where every map equals every causal pattern;
    a long text would make all heads look alike.
    """
    counts = [sum(map(bool, row[: i + 1])) for i, row in enumerate(_checked(pattern))]  # [row], |S_i|
    tokens, ones, rows = len(counts), sum(counts), sum(map(bool, counts))
    similarities: list[float | None] = []
    for result in results:
        if result.rows != rows:
            raise ShapeError("rows of a result", expected=f"{rows}, as of the pattern", got=result.rows)
        mass = None if result.score is None else result.score * rows
        similarities.append(
            None if mass is None else 1 - (tokens + ones - 2 * mass) / (tokens * (tokens + 1) / 2)
        )
    return tuple(similarities)


def _checked(pattern: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    size = len(pattern)
    if not size or any(len(row) != size for row in pattern):
        lengths = {len(row) for row in pattern} or {0}
        got = f"{size} rows of {min(lengths)} to {max(lengths)} numbers"
        raise ShapeError("pattern", expected="a square of at least one row", got=got)
    if not all(value in (0, 1) for row in pattern for value in row):
        raise ShapeError("pattern", expected="0 and 1 only", got="something else")
    return pattern


# --- scoring ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """One score of one head. All numbers but `rows` are None when no row takes part (`not_applicable`).

    `argmax_rate` is None too for a score that is no share of weight.
    """

    score: float | None
    baseline: float | None
    excess: float | None
    argmax_rate: float | None
    rows: int
    status: Status


@dataclass(frozen=True, slots=True)
class HeadResult:
    """One head's scores by name, and the mean entropy in nats of its rows i >= 1 (None where T = 1)."""

    layer: int
    head: int
    scores: Mapping[str, ScoreResult]
    entropy: float | None


class HeadScorer:
    """Scores of the heads of one text of T tokens, from blocks of attention rows.

        score       = mean over the rows that take part of   sum_{j in S_i} A[i,j]
        baseline    = the same for a uniform causal head, A[i,j] = 1/(i+1)
        excess      = score - baseline
        argmax_rate = share of those rows in which every largest weight lies in S_i
        entropy     = mean over i >= 1 of  -sum_j A[i,j] ln A[i,j]

    where S_i are the keys that count in row i (see `SCORES`), 0 ln 0 = 0, and A rows sum to 1; for `distance` the sum
    is of A[i,j] (i - j), and `broad` is the entropy of each row over its largest, ln(i+1). A row is summed in the
    precision of its weights, at least float32, and rows in float64. Only a few numbers per head are kept.

    `heads` maps each layer to the heads that will be read; `rules` are the scores wanted. Raises ShapeError for no
    head. Differs from TransformerLens' head_detector: row 0, which can only look at itself, takes no part, a baseline
    stands beside every score, where nothing applies there is no number, and the input is never written to.
    """

    def __init__(
        self,
        text: TextFacts,
        heads: Mapping[int, Sequence[int]],
        *,
        rules: Mapping[str, ScoreRule] = SCORES,
    ) -> None:
        if not any(heads.values()):
            raise ShapeError("heads", expected="at least one head", got="none")
        self.text, self.tokens = text, len(text.ids)
        self._rules = dict(rules)
        self._baselines = _Baselines(text, self._rules)
        self._groups = _groups([self._rules[name] for name in self._baselines.names])
        self._sums = {
            layer: _Sums(sorted(set(heads[layer])), len(self._baselines.names)) for layer in sorted(heads)
        }

    def add(self, layer: int, heads: Sequence[int], queries: Sequence[int], weights: Tensor) -> None:
        """Take the next block of rows.

        `weights` is [head, query, key], probabilities, its key axis ending at the block's last query (later
        keys are 0 in a causal map). Each head's rows come in order, from row 0 on, in blocks of any size.

        Raises ShapeError when a layer or head was not announced, when rows are missing, repeated or too many,
        when the axes of `weights` do not fit, and when one of them is not finite.
        """
        sums = self._sums_of(layer, heads)
        at = torch.tensor([sums.heads.index(head) for head in heads])
        first = int(sums.seen[at[0]])
        end = first + len(queries)
        if list(queries) != list(range(first, end)) or not queries or end > self.tokens:
            raise ShapeError(
                f"queries of layer {layer}",
                expected=f"the next rows in order, from {first} and at most to {self.tokens - 1}",
                got=f"{queries[0]}..{queries[-1]}" if queries else "none",
            )
        if not bool((sums.seen[at] == first).all()):
            raise ShapeError(
                f"heads of layer {layer}", expected="heads that have had the same rows", got=tuple(heads)
            )
        if weights.shape != (len(heads), len(queries), end):
            expected = (len(heads), len(queries), end)
            raise ShapeError("weights [head, query, key]", expected=expected, got=tuple(weights.shape))

        weights = weights.detach()
        if weights.dtype in (torch.float16, torch.bfloat16):
            weights = weights.float()  # their own sums would be off by more than NOISE
        for a, b in _chunks(first, end, len(heads) * end):
            # The keys left out lie after every query
            self._add_chunk(sums, at, a, weights[:, a - first : b - first, :b])
        sums.seen[at] = end

    def _add_chunk(self, sums: _Sums, at: Tensor, first: int, weights: Tensor) -> None:
        end = first + weights.shape[1]
        entropy = _entropy(weights).cpu()  # [head, query]
        if not bool(entropy.isfinite().all()):  # as every weight of a row is in it
            raise ShapeError("weights [head, query, key]", expected="finite numbers", got="NaN or infinity")
        largest = torch.arange(first + 1, end + 1, dtype=torch.float64).log()  # [query], of a row: ln(i + 1)
        after_row_0 = largest > 0
        sums.entropy[at] += entropy[:, after_row_0].sum(-1)
        # A row whose sum is rounded above 1 may exceed the largest entropy; row 0, which has none, is left out
        sums.evenness[at] += (entropy / largest)[:, after_row_0].clamp(max=1).sum(-1)

        peak = weights.amax(-1, keepdim=True)  # [head, query, 1]
        at_peak = (weights - peak).ge_(0)  # [head, query, key], 1 at the largest weights
        peaks = at_peak.sum(-1).T.unsqueeze(1)  # [query, 1, head]
        mass, inside = [], []
        for rules, near in self._groups:
            query, key = _places(first, end, near, weights.device)
            columns = _columns(rules, self.text, query, key, weights)  # [query, score, key]
            keys = key if near else None
            mass.append((columns @ _by_row(weights, keys)).sum(0, dtype=torch.float64))  # [score, head]
            inside.append(columns @ _by_row(at_peak, keys))  # [query, score, head], how many of the peaks
        if not mass:
            return
        applicable = self._baselines.applicable[first:end].to(weights.device)  # [query, score]
        hits = ((torch.cat(inside, 1) == peaks) & applicable.unsqueeze(-1)).sum(0)  # [score, head]
        sums.mass[at] += torch.cat(mass).T.cpu()
        sums.hits[at] += hits.T.cpu()

    def finish(self) -> tuple[HeadResult, ...]:
        """The result of every head, by layer, then head. Raises ShapeError where rows are missing."""
        for layer, sums in self._sums.items():
            if not bool((sums.seen == self.tokens).all()):
                raise ShapeError(
                    f"rows of layer {layer}, by head", expected=self.tokens, got=sums.seen.tolist()
                )
        results = []
        for layer, sums in self._sums.items():
            columns = (
                sums.heads,
                sums.mass.tolist(),
                sums.hits.tolist(),
                sums.entropy.tolist(),
                sums.evenness.tolist(),
            )
            for head, mass, hits, entropy, evenness in zip(*columns, strict=True):
                scores = self._scores(mass, hits, evenness)
                mean_entropy = entropy / (self.tokens - 1) if self.tokens > 1 else None
                results.append(HeadResult(layer, head, scores, mean_entropy))
        return tuple(results)

    def _sums_of(self, layer: int, heads: Sequence[int]) -> _Sums:
        sums = self._sums.get(layer)
        if sums is None:
            raise ShapeError("layer", expected=f"one of {tuple(self._sums)}", got=layer)
        if not heads or not set(heads) <= set(sums.heads) or len(set(heads)) < len(heads):
            raise ShapeError(
                f"heads of layer {layer}", expected=f"distinct, of {sums.heads}", got=tuple(heads)
            )
        return sums

    def _scores(self, mass: Sequence[float], hits: Sequence[int], evenness: float) -> dict[str, ScoreResult]:
        """The scores of one head, in the order of the rules."""
        known = self._baselines
        places = {name: place for place, name in enumerate(known.names)}
        scores = {}
        for name, rule in self._rules.items():
            if rule.kind == "entropy" and self.tokens > 1:
                rows = self.tokens - 1
                scores[name] = self._result(rule, evenness / rows, 1.0, None, rows)
            elif name in places:
                place = places[name]
                rows = known.rows[place]
                argmax_rate = hits[place] / rows if rule.kind == "mass" else None
                scores[name] = self._result(
                    rule, mass[place] / rows, known.baselines[place], argmax_rate, rows
                )
            else:
                scores[name] = ScoreResult(None, None, None, None, 0, "not_applicable")
        return scores

    def _result(
        self, rule: ScoreRule, score: float, baseline: float, argmax_rate: float | None, rows: int
    ) -> ScoreResult:
        status: Status = "too_short" if self.tokens < SHORTEST or rows < rule.min_rows else "ok"
        return ScoreResult(score, baseline, score - baseline, argmax_rate, rows, status)


def score_heads(
    read: Callable[[Sequence[Sequence[int]], Mapping[int, Sequence[int]], Callable[[Rows], None]], None],
    texts: Sequence[TextFacts],
    heads: Mapping[int, Sequence[int]],
    *,
    rules: Mapping[str, ScoreRule] = SCORES,
) -> list[tuple[HeadResult, ...]]:
    """The scores of every head on each text, in one pass over the model.

    `read` is `AttentionReader.read`, or what takes the same: its rows are scored as they stream past, and let go.
    `heads` maps layers to their heads. Raises as `read` and `HeadScorer` do.
    """
    scorers = [HeadScorer(text, heads, rules=rules) for text in texts]

    def add(rows: Rows) -> None:
        scorers[rows.text].add(rows.layer, rows.heads, rows.queries, rows.weights)

    read([text.ids.tolist() for text in texts], heads, add)
    return [scorer.finish() for scorer in scorers]


class _Baselines:
    """What the text alone decides: which scores with targets have rows, how many, and what a uniform head gets.

    `names` are the scores that have any, `near` ones first; the other lists, and the axis [score], are in their order.
    """

    def __init__(self, text: TextFacts, rules: Mapping[str, ScoreRule]) -> None:
        names = [name for name, rule in rules.items() if rule.targets is not None]
        names.sort(key=lambda name: not rules[name].near)
        groups = _groups([rules[name] for name in names])
        tokens, like = len(text.ids), torch.empty(0, device=text.ids.device)
        totals = []
        for a, b in _chunks(0, tokens, max(1, len(names)) * tokens):
            columns = [
                _columns(of, text, *_places(a, b, near, like.device), like).sum(-1, dtype=torch.float64)
                for of, near in groups
            ]
            totals.append(torch.cat([like.new_empty(b - a, 0, dtype=torch.float64), *columns], -1))
        total = torch.cat(totals).cpu()  # [query, score], |S_i| of a target set
        applicable = total > 0
        rows = applicable.sum(0)  # [score]
        shares = (total / torch.arange(1, tokens + 1).unsqueeze(-1)).sum(0)  # [score]
        kept = rows > 0
        self.names = [name for name, keep in zip(names, kept.tolist(), strict=True) if keep]
        self.rows: list[int] = rows[kept].tolist()
        self.baselines: list[float] = (shares[kept] / rows[kept]).tolist()
        self.applicable = applicable[:, kept]  # [query, score]


class _Sums:
    """Running sums of one layer; the axes are [head, score] and [head]."""

    def __init__(self, heads: Sequence[int], scores: int) -> None:
        self.heads = tuple(heads)
        self.mass = torch.zeros(len(heads), scores, dtype=torch.float64)
        self.hits = torch.zeros(len(heads), scores, dtype=torch.int64)
        self.entropy = torch.zeros(len(heads), dtype=torch.float64)
        self.evenness = torch.zeros(len(heads), dtype=torch.float64)
        self.seen = torch.zeros(len(heads), dtype=torch.int64)


def _chunks(first: int, end: int, numbers_a_row: int) -> Iterator[tuple[int, int]]:
    """Rows first..end in runs a..b that hold about _CHUNK numbers."""
    step = max(1, _CHUNK // numbers_a_row)
    return ((a, min(a + step, end)) for a in range(first, end, step))


def _groups(rules: Sequence[ScoreRule]) -> list[tuple[list[ScoreRule], bool]]:
    """The rules that are near, and those that are not: the groups that are not empty, each with whether it is near."""
    groups = [([rule for rule in rules if rule.near == near], near) for near in (True, False)]
    return [(group, near) for group, near in groups if group]


def _places(first: int, end: int, near: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The queries first..end, [query, 1], and the keys that are looked at: all, [1, key], or those near, [query, 5].

    The near ones are i-3..i and 0, each once; in place of one that there is not stands i+1, which is no target of i.
    """
    query = torch.arange(first, end, device=device).unsqueeze(-1)
    if not near:
        return query, torch.arange(end, device=device).unsqueeze(0)
    back = query - torch.arange(3, -1, -1, device=device)  # [query, 4]
    near_keys = torch.cat([torch.zeros_like(query), back], -1)
    there = torch.cat([query > 3, back >= 0], -1)  # up to row 3, key 0 is among the others
    return query, near_keys.where(there, query + 1)


def _columns(rules: Sequence[ScoreRule], text: TextFacts, query: Tensor, key: Tensor, like: Tensor) -> Tensor:
    """The targets of the rules side by side, [query, score, key], in the dtype and on the device of `like`."""
    text = text.to(like.device)
    columns = like.new_empty(len(query), len(rules), key.shape[-1])
    for place, rule in enumerate(rules):
        if rule.targets is not None:
            columns[:, place] = rule.targets(text, query, key)
    return columns


def _by_row(weights: Tensor, near: Tensor | None) -> Tensor:
    """Weights [head, query, key] as [query, key, head], of all keys or of those `near`, [query, 5]."""
    if near is not None:
        near = near.clamp_max(weights.shape[-1] - 1)
        weights = weights.gather(-1, near.expand(len(weights), -1, -1))  # [head, query, 5]
    return weights.permute(1, 2, 0)


def _entropy(weights: Tensor) -> Tensor:
    """Of each row, in float64: [head, query]. (torch.special.entr takes twice as long: its logarithm is scalar.)"""
    tiny = torch.finfo(weights.dtype).tiny  # so that 0 ln 0 is 0
    return -weights.clamp_min(tiny).log_().mul_(weights).sum(-1, dtype=torch.float64)


R = TypeVar("R", bound=HeadResult)

# --- labels -------------------------------------------------------------------------------------------------


class LabelError(ValueError):
    """A label or threshold cannot be used. `code` is unknown_option or out_of_range, `name` the label."""

    def __init__(self, code: str, name: str, message: str) -> None:
        super().__init__(message)
        self.code, self.name = code, name


@dataclass(frozen=True, slots=True)
class LabelCount:
    """How many heads carry a label, and which fraction of the heads looked at."""

    count: int
    fraction: float


@dataclass(frozen=True, slots=True)
class Definition:
    """What a score means: its formula, its baseline's, its label's threshold, and where it comes from."""

    formula: str
    baseline: str
    threshold: float | None
    source: str


def thresholds_of(
    *, thresholds: Mapping[str, float] | None = None, labels: Collection[str] | None = None
) -> dict[str, float]:
    """The threshold of every label that can be given, in the order of `SCORES`.

    `thresholds` override the table's; `labels` leaves only those named, and may name only scores that have a
    threshold. Raises LabelError for a name not in `LABELS`, a threshold outside 0..1, and a label without one.
    """
    overrides = dict(thresholds or {})
    for name in [*overrides, *(labels or ())]:
        if name not in LABELS:
            raise LabelError(
                "unknown_option", name, f'"{name}" is no label; expected one of {", ".join(LABELS)}'
            )
    for name, value in overrides.items():
        if not 0 <= value <= 1:
            raise LabelError("out_of_range", name, f"the threshold of {name} must be 0..1, got {value}")
    known = {name: overrides.get(name, SCORES[name].threshold) for name in LABELS}
    for name in labels or ():
        if known[name] is None:
            raise LabelError(
                "out_of_range", name, f"{name} has no threshold by default; give one in thresholds"
            )
    return {n: t for n, t in known.items() if t is not None and (labels is None or n in labels)}


def label(
    results: Sequence[HeadResult], limits: Mapping[str, float] | None = None
) -> tuple[tuple[str, ...], ...]:
    """The labels of each head, in the order of `limits`; a head may carry several or none.

    A head carries a label when that score's status is ok, the score is above its threshold, and the excess is
    above 0. `broad`, which a uniform head has most of, asks only for a score of at least its threshold.

    `limits` are the labels that can be given and their thresholds, from `thresholds_of`; None takes the table's.
    """
    return _labels_where(_carries, results, limits)


def borderline(
    results: Sequence[HeadResult], limits: Mapping[str, float] | None = None
) -> tuple[tuple[str, ...], ...]:
    """The labels of each head that another batch or machine may decide otherwise, whether carried or not.

    They are those that a score, and with it its excess, moved up or down by `NOISE` would gain or lose: the score is
    that near its threshold, or the excess that near 0, and the other does not decide against the label anyway.
    `limits` as in `label`.
    """

    def undecided(name: str, result: ScoreResult, threshold: float) -> bool:
        up, down = (_carries(name, result, threshold, shift=shift) for shift in (NOISE, -NOISE))
        return up != down

    return _labels_where(undecided, results, limits)


def _labels_where(
    holds: Callable[[str, ScoreResult, float], bool],
    results: Sequence[HeadResult],
    limits: Mapping[str, float] | None,
) -> tuple[tuple[str, ...], ...]:
    limits = thresholds_of() if limits is None else limits
    return tuple(
        tuple(
            name
            for name, limit in limits.items()
            if name in head.scores and holds(name, head.scores[name], limit)
        )
        for head in results
    )


def _carries(name: str, result: ScoreResult, threshold: float, *, shift: float = 0.0) -> bool:
    if result.status != "ok" or result.score is None or result.excess is None:
        return False
    if SCORES[name].kind == "entropy":
        return result.score + shift >= threshold
    return result.score + shift > threshold and result.excess + shift > 0


def summarise(labelled: Sequence[Sequence[str]], names: Collection[str]) -> dict[str, LabelCount]:
    """For each of the labels `names`: how many heads carry it, and their fraction of all in `labelled`.

    Raises ShapeError when there is no head.
    """
    if not labelled:
        raise ShapeError("labelled heads", expected="at least one", got=0)
    counts = {name: sum(name in carried for carried in labelled) for name in names}
    return {name: LabelCount(count, count / len(labelled)) for name, count in counts.items()}


def strongest(results: Sequence[R], name: str, *, count: int = 5) -> tuple[R, ...]:
    """The `count` heads with the highest score of that name, descending, whether labelled or not; equals in order.

    Left out are heads whose status is not ok. Raises KeyError for a score that the results do not have, ShapeError for
    a count below 1.
    """
    positive_int("count", count)
    usable = [head for head in results if head.scores[name].status == "ok"]
    return tuple(sorted(usable, key=lambda head: -(head.scores[name].score or 0.0))[:count])


def definitions(
    limits: Mapping[str, float] | None = None, *, rules: Mapping[str, ScoreRule] = SCORES
) -> dict[str, Definition]:
    """What every score means, with the thresholds `limits`, as in `label`."""
    limits = thresholds_of() if limits is None else limits
    return {
        name: Definition(rule.formula, rule.baseline, limits.get(name), rule.source)
        for name, rule in rules.items()
    }


# --- several texts ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PooledScore(ScoreResult):
    """One score of one head over `n` texts: those in which its status is ok. The numbers are means over these.

    `rows` is their sum. `sd` is the standard deviation of the score (n - 1 below the fraction), `ci95` the 95 %
    interval of its mean by Student's t; None where n < 2. Status, where n = 0: too_short if any text was, else
    not_applicable; the numbers are then None.
    """

    sd: float | None
    ci95: tuple[float, float] | None
    n: int


@dataclass(frozen=True, slots=True)
class PooledHead(HeadResult):
    """One head over several texts. `texts_agreeing` is, per label, the number of texts in which it carries that one."""

    texts_agreeing: Mapping[str, int]


def pool(
    texts: Sequence[Sequence[HeadResult]], limits: Mapping[str, float] | None = None
) -> tuple[PooledHead, ...]:
    """Every head over several texts, from the results of each: the unweighted mean of the per-text scores.

    `label` and `borderline` take what this returns, so that labels come from the pooled scores; `limits`, as in
    `label`, only say what the texts are asked for in `texts_agreeing`. The entropy is the mean over the texts that
    have a score with status ok: those long enough to count for anything.

    Raises ShapeError for no text and for texts with other heads or scores.
    """
    limits = thresholds_of() if limits is None else limits
    if not texts:
        raise ShapeError("texts", expected="at least one", got=0)
    first = [(head.layer, head.head, list(head.scores)) for head in texts[0]]
    for index, heads in enumerate(texts):
        if [(head.layer, head.head, list(head.scores)) for head in heads] != first:
            raise ShapeError(
                f"results of text {index}", expected="the heads and scores of text 0", got="others"
            )
    carried = [_labels_where(_carries, heads, limits) for heads in texts]
    pooled = []
    for place, (layer, head, names) in enumerate(first):
        of_head = [heads[place] for heads in texts]
        counting = [one for one in of_head if any(score.status == "ok" for score in one.scores.values())]
        entropies = [one.entropy for one in counting if one.entropy is not None]
        pooled.append(
            PooledHead(
                layer,
                head,
                {name: _pool_score([one.scores[name] for one in of_head]) for name in names},
                _mean(entropies),
                {name: sum(name in text[place] for text in carried) for name in limits if name in names},
            )
        )
    return tuple(pooled)


def _pool_score(results: Sequence[ScoreResult]) -> PooledScore:
    usable = [result for result in results if result.status == "ok"]
    n = len(usable)
    if not n:
        status: Status = "too_short" if any(r.status == "too_short" for r in results) else "not_applicable"
        return PooledScore(None, None, None, None, 0, status, None, None, 0)
    scores = [result.score for result in usable if result.score is not None]
    mean = math.fsum(scores) / n
    sd, ci95 = None, None
    if n > 1:
        sd = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / (n - 1))
        half = float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)
        ci95 = (mean - half, mean + half)
    return PooledScore(
        mean,
        _mean([r.baseline for r in usable if r.baseline is not None]),
        _mean([r.excess for r in usable if r.excess is not None]),
        _mean([r.argmax_rate for r in usable if r.argmax_rate is not None]),
        sum(r.rows for r in usable),
        "ok",
        sd,
        ci95,
        n,
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


# --- the repeat probe ---------------------------------------------------------------------------------------

# What the probe is asked. In [r, r] with distinct ids, the rows of the second half are the only ones with targets, and
# have one each: the same id, L back, and the id after it, L - 1 back.
PROBE_RULES: Mapping[str, ScoreRule] = MappingProxyType(
    {name: SCORES[name] for name in ("duplicate_token", "induction")}
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Sequences of token ids [r, r], and the SHA-256 of them all.

    Hashed are the ids as decimal numbers, in ASCII: a space between two, a newline between two sequences.
    """

    sequences: tuple[tuple[int, ...], ...]
    sha256: str


def repeat_probe(
    vocabulary: int,
    *,
    draws: int = 10,
    seed: int = 0,
    length: int = 50,
    low: int = 100,
    high: int = 20_000,
    excluded: Collection[int] = (),
) -> Probe:
    """Random tokens, repeated, on which a head that copies or finds repeats shows whatever the language.

        sequence = [r_0 .. r_(L-1), r_0 .. r_(L-1)]        no prefix

    where r are L = `length` distinct ids, each drawn evenly from low .. min(high, vocabulary) - 1 without the
    `excluded` (special tokens). Read each with `HeadScorer(text_facts(sequence), heads, rules=PROBE_RULES)` and `pool`
    the results. The baseline of both scores is (H_2L - H_L)/L, 0.01376 for 50 ids.

    The same seed gives the same ids on any machine: one PCG64(seed) gives raw 64-bit numbers, which do not depend on
    numpy's version; each number modulo the count of ids to draw from is the place of an id among these in ascending
    order, and one that is in the draw already is passed over. Raises ShapeError where fewer than `length` ids are left,
    for draws below 1, a seed below 0, and a length below 3. Source: Olsson et al. 2022, "In-context Learning and
    Induction Heads". Differs from theirs in leaving out the prefix token, as Qwen2.5 has none.
    """
    for what, value, at_least in (("draws", draws, 1), ("seed", seed, 0), ("length", length, 3)):
        positive_int(what, value, at_least=at_least)
    left_out = set(excluded)
    ids = [one for one in range(low, min(high, vocabulary)) if one not in left_out]
    if len(ids) < length:
        raise ShapeError("ids to draw from", expected=f"at least {length}", got=len(ids))
    bits = PCG64(seed)
    sequences = tuple(_draw(bits, ids, length) * 2 for _ in range(draws))
    written = "\n".join(" ".join(map(str, sequence)) for sequence in sequences)
    return Probe(sequences, hashlib.sha256(written.encode("ascii")).hexdigest())


def _draw(bits: PCG64, ids: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` distinct ids, in the order in which they come."""
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[ids[bits.random_raw() % len(ids)]] = None  # 2**64 numbers on 20,000 ids: even enough
    return tuple(drawn)


def with_probe(heads: Sequence[HeadResult], probe: Sequence[PooledHead]) -> tuple[PooledHead, ...]:
    """The results of a text or of several, with the probe's scores in place of those of the same names.

    `texts_agreeing` of these labels counts draws. Raises ShapeError when the heads are not the same.
    """
    if [(one.layer, one.head) for one in heads] != [(one.layer, one.head) for one in probe]:
        raise ShapeError("heads of the probe", expected="the heads of the text", got="others")
    joined = []
    for head, probed in zip(heads, probe, strict=True):
        scores = {**head.scores, **probed.scores}
        agreeing = head.texts_agreeing if isinstance(head, PooledHead) else {}
        agreeing = {**agreeing, **probed.texts_agreeing}
        joined.append(PooledHead(head.layer, head.head, scores, head.entropy, agreeing))
    return tuple(joined)
