"""Scores of heads, computed while the rows of their maps stream past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from attention_core.errors import ShapeError
from attention_core.heads.rules import SCORES, ScoreRule
from attention_core.heads.texts import TextFacts

if TYPE_CHECKING:
    from attention_core.capture import Read, Rows

Status = Literal["ok", "too_short", "not_applicable"]

SHORTEST = 4  # tokens; below this every head looks like a sink, so nothing is labelled
_CHUNK = 1 << 20  # weights looked at together: few enough to stay in the processor's cache


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
    read: Read,
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
