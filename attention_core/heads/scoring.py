"""Scores of heads, computed while the rows of their maps stream past."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attention_core.errors import ShapeError
from attention_core.heads.results import HeadResults, ScoreColumn, Status
from attention_core.heads.rules import SCORES, ScoreRule
from attention_core.heads.texts import TextFacts

if TYPE_CHECKING:
    from attention_core.capture import Read, Rows

SHORTEST = 4  # tokens; below this every head looks like a sink, so nothing is labelled
_CHUNK = 1 << 20  # weights looked at together: few enough to stay in the processor's cache
_HELD = 1 << 16  # weights of a text that wait for more: a step costs as much for a few as for so many
_KEPT = 1 << 25  # bytes of target sets held for the next layer: those of 4,096 tokens


class HeadScorer:
    """Scores of the heads of one text of T tokens, from blocks of attention rows.

        score       = mean over the rows that take part of   sum_{j in S_i} A[i,j]
        baseline    = the same for a uniform causal head, A[i,j] = 1/(i+1)
        excess      = score - baseline
        argmax_rate = share of those rows in which every largest weight lies in S_i
        entropy     = mean over i >= 1 of  -sum_j A[i,j] ln A[i,j]

    where S_i are the keys that count in row i (see `SCORES`), 0 ln 0 = 0, and A rows sum to 1; for `distance` the sum
    is of A[i,j] (i - j), and `broad` is the entropy of each row over its largest, ln(i+1). A row is summed in the
    precision of its weights, at least float32, and rows in float64. Only a few numbers per head are
    kept, and small maps until there are enough of them to be looked at together.

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
        self._targets = _Targets(text, self._rules)
        self._heads = {layer: tuple(sorted(set(heads[layer]))) for layer in sorted(heads)}
        every = [(layer, head) for layer, of_layer in self._heads.items() for head in of_layer]
        self._place = {one: place for place, one in enumerate(every)}  # on the axis [head] of all sums
        counts = torch.arange(1, self.tokens + 1, dtype=torch.float64)  # of keys in a row: i + 1
        self._largest_entropy = counts.log()  # [query]
        self._seen = [0] * len(every)  # rows so far
        self._missing = len(every) * self.tokens  # rows of all heads together
        self._held: list[tuple[list[int], Tensor]] = []  # places, and their whole maps [head, query, key]
        self._sums = _Sums(len(every), len(self._targets.names))

    def add(self, layer: int, heads: Sequence[int], queries: Sequence[int], weights: Tensor) -> None:
        """Take the next block of rows.

        `weights` is [head, query, key], probabilities, its key axis ending at the block's last query (later
        keys are 0 in a causal map). Each head's rows come in order, from row 0 on, in blocks of any size.

        Raises ShapeError when a layer or head was not announced, when rows are missing, repeated or too many,
        when the axes of `weights` do not fit, and when one of them is not finite: of a small map, with the last block
        at the latest.
        """
        places = self._places(layer, heads)
        first = self._seen[places[0]]
        end = first + len(queries)
        if list(queries) != list(range(first, end)) or not queries or end > self.tokens:
            raise ShapeError(
                f"queries of layer {layer}",
                expected=f"the next rows in order, from {first} and at most to {self.tokens - 1}",
                got=f"{queries[0]}..{queries[-1]}" if queries else "none",
            )
        if any(self._seen[place] != first for place in places):
            raise ShapeError(
                f"heads of layer {layer}", expected="heads that have had the same rows", got=tuple(heads)
            )
        if weights.shape != (len(heads), len(queries), end):
            expected = (len(heads), len(queries), end)
            raise ShapeError("weights [head, query, key]", expected=expected, got=tuple(weights.shape))

        weights = weights.detach()
        if weights.dtype in (torch.float16, torch.bfloat16):
            weights = weights.float()  # their own sums would be off by more than NOISE
        self._missing -= len(places) * len(queries)
        if len(queries) == self.tokens and weights.numel() < _HELD:
            if self._held and self._held[0][1].device != weights.device:
                self._add_held()
            self._held.append((places, weights.clone()))
            self._have_seen(places, end)
        else:
            self._add_rows(places, first, weights)
        if not self._missing or sum(maps.numel() for _, maps in self._held) >= _HELD:
            self._add_held()

    def _add_held(self) -> None:
        if self._held:
            held, self._held = self._held, []
            places = [place for of_block, _ in held for place in of_block]
            self._have_seen(places, 0)  # until they are added: should they be refused, they are missing
            self._add_rows(places, 0, torch.cat([maps for _, maps in held]))

    def _add_rows(self, places: Sequence[int], first: int, weights: Tensor) -> None:
        """Add the rows from `first` on of the heads at `places`, which `weights` has in this order."""
        heads, _, end = weights.shape
        at = torch.tensor(places)
        chunks = _chunks(first, end, heads * end)
        scratch = weights.new_empty(max(heads * (b - a) * b for a, b in chunks))
        for a, b in chunks:
            # The keys left out lie after every query
            self._add_chunk(at, a, weights[:, a - first : b - first, :b], scratch)
        self._have_seen(places, end)

    def _have_seen(self, places: Sequence[int], rows: int) -> None:
        for place in places:
            self._seen[place] = rows

    def _add_chunk(self, at: Tensor, first: int, weights: Tensor, scratch: Tensor) -> None:
        """Add the rows from `first` on. Nothing as large as `weights` is allocated: `scratch` has room for it."""
        end = first + weights.shape[1]
        scratch = scratch[: weights.numel()].view(weights.shape)
        entropy = _entropy(weights, scratch).cpu()  # [head, query]
        if not math.isfinite(entropy.sum()):  # as every weight is in it
            raise ShapeError("weights [head, query, key]", expected="finite numbers", got="NaN or infinity")
        start = max(1, first)  # row 0 has no entropy
        entropy = entropy[:, start - first :]
        # A row whose sum is rounded above 1 may exceed the largest entropy
        evenness = (entropy / self._largest_entropy[start:end]).clamp_(max=1)

        peak = weights.amax(-1, keepdim=True)  # [head, query, 1]
        at_peak = torch.eq(weights, peak, out=scratch)  # [head, query, key], 1 at the largest weights
        peaks = at_peak.sum(-1).T.unsqueeze(-1)  # [query, head, 1]
        targets = self._targets.of_rows(first, end, weights)
        mass = targets.sums(weights)  # [query, head, score]
        inside = targets.sums(at_peak)  # [query, head, score], how many of the peaks
        sums = self._sums
        sums.entropy.index_add_(0, at, entropy.sum(-1))
        sums.evenness.index_add_(0, at, evenness.sum(-1))
        sums.mass.index_add_(0, at, mass.sum(0, dtype=torch.float64).cpu())
        # No row is without a peak, and where S_i is empty none is inside
        sums.hits.index_add_(0, at, (inside == peaks).sum(0).cpu())

    def finish(self) -> HeadResults:
        """The result of every head, by layer, then head. Raises ShapeError where rows are missing."""
        for layer, heads in self._heads.items():
            seen = [self._seen[self._place[layer, head]] for head in heads]
            if any(rows != self.tokens for rows in seen):
                raise ShapeError(f"rows of layer {layer}, by head", expected=self.tokens, got=seen)
        scores = {name: self._score(name, rule) for name, rule in self._rules.items()}
        entropy = (self._sums.entropy / (self.tokens - 1)).numpy() if self.tokens > 1 else None
        return HeadResults(list(self._place), scores, entropy)

    def _places(self, layer: int, heads: Sequence[int]) -> list[int]:
        known = self._heads.get(layer)
        if known is None:
            raise ShapeError("layer", expected=f"one of {tuple(self._heads)}", got=layer)
        if not heads or not set(heads) <= set(known) or len(set(heads)) < len(heads):
            raise ShapeError(f"heads of layer {layer}", expected=f"distinct, of {known}", got=tuple(heads))
        return [self._place[layer, head] for head in heads]

    def _score(self, name: str, rule: ScoreRule) -> ScoreColumn:
        """One score of all heads."""
        sums, targets = self._sums, self._targets
        if rule.kind == "entropy" and self.tokens > 1:
            rows, baseline, total, hits = self.tokens - 1, 1.0, sums.evenness, None
        elif name in targets.names:
            place = targets.names.index(name)
            rows, baseline, total = targets.rows[place], targets.baselines[place], sums.mass[:, place]
            hits = sums.hits[:, place] if rule.kind == "mass" else None
        else:
            return ScoreColumn(None, None, None, None, 0, "not_applicable")
        status: Status = "too_short" if self.tokens < SHORTEST or rows < rule.min_rows else "ok"
        mean = (total / rows).numpy()
        rate = None if hits is None else (hits.double() / rows).numpy()
        return ScoreColumn(mean, baseline, mean - baseline, rate, rows, status)


def score_heads(
    read: Read,
    texts: Sequence[TextFacts],
    heads: Mapping[int, Sequence[int]],
    *,
    rules: Mapping[str, ScoreRule] = SCORES,
) -> list[HeadResults]:
    """The scores of every head on each text, in one pass over the model.

    `read` is `AttentionReader.read`, or what takes the same: its rows are scored as they stream past, and let go.
    `heads` maps layers to their heads. Raises as `read` and `HeadScorer` do.
    """
    scorers = [HeadScorer(text, heads, rules=rules) for text in texts]

    def add(rows: Rows) -> None:
        scorers[rows.text].add(rows.layer, rows.heads, rows.queries, rows.weights)

    read([text.ids.tolist() for text in texts], heads, add)
    return [scorer.finish() for scorer in scorers]


class _Targets:
    """What the text alone decides: the targets of the scores that have any, and what a uniform head puts on them.

    `names` are these scores, in the order of the axis [score]: `near` ones, other sets, numbers. `rows`, how many rows
    have a target, and `baselines` are in their order.
    """

    def __init__(self, text: TextFacts, rules: Mapping[str, ScoreRule]) -> None:
        self._text = text
        tokens = len(text.ids)
        query = torch.arange(tokens, device=text.ids.device).unsqueeze(-1)
        # What near rules look at, [query, 5]: keys i-3..i and 0, each once; up to row 3, key 0 is among the others
        key = torch.cat([query - torch.arange(3, -1, -1, device=query.device), torch.zeros_like(query)], -1)
        there = torch.cat([key[:, :4] >= 0, query > 3], -1)
        # In place of a key that there is not, rules are asked for i + 1, which is no target, so that any may be read
        asked, self._near_keys = key.where(there, query + 1), key.where(there, 0)

        with_targets = {name: rule for name, rule in rules.items() if rule.targets is not None}
        near = {name: rule for name, rule in with_targets.items() if rule.near}
        far = {name: rule for name, rule in with_targets.items() if not rule.near}
        sets = {name: rule for name, rule in far.items() if _is_set(rule, text, query)}
        numbers = {name: rule for name, rule in far.items() if name not in sets}
        far = {**sets, **numbers}
        near_columns = _columns(near.values(), text, query, asked)
        far_sizes = [
            _columns(far.values(), text, query[a:b], query[:b].T).sum(-1, dtype=torch.float64)
            for a, b in _chunks(0, tokens, max(1, len(far)) * tokens)
        ]
        sizes = torch.cat([near_columns.sum(-1, dtype=torch.float64), torch.cat(far_sizes)], -1).cpu()
        applicable = sizes > 0  # [query, score]
        rows = applicable.sum(0)  # [score]
        shares = (sizes / torch.arange(1, tokens + 1).unsqueeze(-1)).sum(0)  # [score]
        kept = rows > 0
        self.names = [name for name, keep in zip([*near, *far], kept.tolist(), strict=True) if keep]
        self.rows: list[int] = rows[kept].tolist()
        self.baselines: list[float] = (shares[kept] / rows[kept]).tolist()
        self._near_columns = near_columns[:, kept[: len(near)].to(near_columns.device)]
        self._sets = [rule for name, rule in sets.items() if name in self.names]
        self._numbers = [rule for name, rule in numbers.items() if name in self.names]
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._room = _KEPT

    def of_rows(self, first: int, end: int, like: Tensor) -> _RowTargets:
        """The targets of the rows first..end, in the dtype and on the device of `like`."""
        place = torch.arange(end, device=like.device)
        where = self._text.to(like.device), place[first:, None], place[None]
        sets = self._kept.get((first, end))
        if sets is None:
            sets = _columns(self._sets, *where, torch.uint8)
            if sets.numel() <= self._room:  # every layer asks for them
                self._kept[first, end] = sets
                self._room -= sets.numel()
        numbers = _columns(self._numbers, *where, like.dtype)
        return _RowTargets(
            self._near_keys[first:end].to(like.device),
            self._near_columns[first:end].to(like),
            torch.cat([sets.to(like), numbers], 1),
        )


@dataclass(frozen=True, slots=True)
class _RowTargets:
    """What keys count for in some rows: `near` at the `near_keys`, `far` at every key up to the last row."""

    near_keys: Tensor  # [query, 5]
    near: Tensor  # [query, score, 5]
    far: Tensor  # [query, score, key]

    def sums(self, values: Tensor) -> Tensor:
        """The sum of values [head, query, key] over S_i: [query, head, score]."""
        near_values = values.gather(-1, self.near_keys.expand(len(values), -1, -1))  # [head, query, 5]
        near = near_values.transpose(0, 1).bmm(self.near.mT)
        far = values.transpose(0, 1).bmm(self.far.mT)
        return torch.cat([near, far], -1)


class _Sums:
    """Running sums; the axes are [head, score] and [head]."""

    def __init__(self, heads: int, scores: int) -> None:
        self.mass = torch.zeros(heads, scores, dtype=torch.float64)
        self.hits = torch.zeros(heads, scores, dtype=torch.int64)
        self.entropy = torch.zeros(heads, dtype=torch.float64)
        self.evenness = torch.zeros(heads, dtype=torch.float64)


def _chunks(first: int, end: int, numbers_a_row: int) -> list[tuple[int, int]]:
    """Rows first..end in runs a..b that hold about _CHUNK numbers."""
    step = max(1, _CHUNK // numbers_a_row)
    return [(a, min(a + step, end)) for a in range(first, end, step)]


def _is_set(rule: ScoreRule, text: TextFacts, query: Tensor) -> bool:
    """Whether the targets of a rule are true or false, so that a byte holds them."""
    return rule.targets is not None and rule.targets(text, query[:1], query[:1]).dtype == torch.bool


def _columns(
    rules: Collection[ScoreRule],
    text: TextFacts,
    query: Tensor,
    key: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The targets of the rules side by side, [query, score, key]; `key` is [1, key] or [query, key]."""
    columns = torch.empty(len(query), len(rules), key.shape[-1], dtype=dtype, device=query.device)
    for place, rule in enumerate(rules):
        if rule.targets is not None:
            targets = rule.targets(text, query, key)
            if targets.dtype == torch.bool:
                targets = targets.view(torch.uint8)  # which is converted eight times as fast
            columns[:, place] = targets
    return columns


def _entropy(weights: Tensor, scratch: Tensor) -> Tensor:
    """Of each row, in float64: [head, query]. (torch.special.entr takes twice as long: its logarithm is scalar.)"""
    tiny = torch.finfo(weights.dtype).tiny  # so that 0 ln 0 is 0
    return -torch.clamp_min(weights, tiny, out=scratch).log_().mul_(weights).sum(-1).double()
