"""What kind of head is it? Scores over the whole map, computed while its rows stream past.

A score names, for every row i, the set of keys that count. What a head is worth is the weight it puts there,
beside what a head that spreads its attention evenly would put there: on short texts the two are close, and a
score without its baseline says little.

Source: Clark et al. 2019, "What Does BERT Look At?", section 3, for the previous-token head and the entropy;
the sink as in Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks".
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from attention_core.errors import ShapeError

Status = Literal["ok", "too_short", "not_applicable"]

SHORTEST = 4  # tokens; below this every head looks like a sink, so nothing is labelled
_CHUNK = 1 << 20  # weights looked at together: few enough to stay in the processor's cache


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """One row of the table of scores.

    `targets` maps rows [query] to the keys that count in each, [query, width], with -1 where a row has fewer
    than `width`; a row takes part when it is at least `first_row` and has a key that counts. `baseline` maps
    the number of tokens T to the score of a uniform causal head, and is asked only when a row takes part.
    With fewer than `min_rows` such rows the numbers stand but carry no label. No `threshold`: no label by
    default.
    """

    formula: str
    targets: Callable[[Tensor], Tensor]
    baseline_formula: str
    baseline: Callable[[int], float]
    threshold: float | None
    source: str
    first_row: int = 1
    min_rows: int = 1


def _harmonic(n: int) -> float:
    return math.fsum(1 / k for k in range(1, n + 1))


def _one_key_baseline(tokens: int) -> float:
    return (_harmonic(tokens) - 1) / (tokens - 1)


def _first_key(rows: Tensor) -> Tensor:
    return torch.zeros_like(rows).unsqueeze(-1)  # [query, 1]


def _offset(k: int) -> Callable[[Tensor], Tensor]:
    return lambda rows: (rows - k).unsqueeze(-1)  # [query, 1]


SCORES: Mapping[str, ScoreRule] = MappingProxyType(
    {
        "sink": ScoreRule(
            formula="mean over rows i >= 1 of A[i,0]",
            targets=_first_key,
            baseline_formula="(H_T - 1)/(T - 1)",
            baseline=_one_key_baseline,
            threshold=0.5,
            source="the article; attention sinks: Xiao et al. 2023",
        ),
        "previous_token": ScoreRule(
            formula="mean over rows i >= 1 of A[i,i-1]",
            targets=_offset(1),
            baseline_formula="(H_T - 1)/(T - 1)",
            baseline=_one_key_baseline,
            threshold=0.5,
            source="Clark et al. 2019, section 3.1",
        ),
        "current_token": ScoreRule(
            formula="mean over rows i >= 1 of A[i,i]",
            targets=_offset(0),
            baseline_formula="(H_T - 1)/(T - 1)",
            baseline=_one_key_baseline,
            threshold=0.5,
            source="by analogy with previous_token",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """One score of one head. All numbers but `rows` are None when no row takes part (`not_applicable`)."""

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

    where S_i are the keys that count in row i (see `SCORES`), 0 ln 0 = 0, and A rows sum to 1. Sums run in
    float64, so how a map is cut into blocks does not show. Only a few numbers per head are kept.

    `heads` maps each layer to the heads that will be read. Raises ShapeError for no token or no head. Differs
    from TransformerLens' head_detector: row 0, which can only look at itself, takes no part, a baseline
    stands beside every score, and the input is never written to.
    """

    def __init__(self, tokens: int, heads: Mapping[int, Sequence[int]]) -> None:
        if tokens < 1:
            raise ShapeError("tokens", expected="at least 1", got=tokens)
        if not any(heads.values()):
            raise ShapeError("heads", expected="at least one head", got="none")
        self.tokens = tokens
        self._sums = {layer: _Sums(sorted(set(heads[layer]))) for layer in sorted(heads)}

    def add(self, layer: int, heads: Sequence[int], queries: Sequence[int], weights: Tensor) -> None:
        """Take the next block of rows.

        `weights` is [head, query, key], probabilities, its key axis ending at the block's last query (later
        keys are 0 in a causal map). Each head's rows come in order, from row 0 on, in blocks of any size.

        Raises ShapeError when a layer or head was not announced, when rows are missing, repeated or too many,
        and when the axes of `weights` do not fit.
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
        rows = torch.arange(first, end, device=weights.device)  # [query]
        entropy, peak, peaks = _row_statistics(weights, first)
        mass, hits, counts = _on_targets(rows, weights, peak, peaks)
        sums.entropy[at] += entropy[:, rows >= 1].sum(-1).cpu()
        sums.mass[at] += mass.cpu()
        sums.hits[at] += hits.cpu()
        sums.rows[at] += counts.cpu()
        sums.seen[at] = end

    def finish(self) -> tuple[HeadResult, ...]:
        """The result of every head, by layer, then head. Raises ShapeError where rows are missing."""
        for layer, sums in self._sums.items():
            if not bool((sums.seen == self.tokens).all()):
                raise ShapeError(
                    f"rows of layer {layer}, by head", expected=self.tokens, got=sums.seen.tolist()
                )
        # A baseline is asked for only where a row takes part: a shorter text may have none
        taking_part = torch.cat([sums.rows for sums in self._sums.values()]).sum(0).tolist()
        baselines = [
            score.baseline(self.tokens) if rows else None
            for score, rows in zip(SCORES.values(), taking_part, strict=True)
        ]
        results = []
        for layer, sums in self._sums.items():
            columns = (
                sums.heads,
                sums.mass.tolist(),
                sums.hits.tolist(),
                sums.rows.tolist(),
                sums.entropy.tolist(),
            )
            for head, mass, hits, rows, entropy in zip(*columns, strict=True):
                each = map(self._result, SCORES.values(), baselines, mass, hits, rows)
                mean_entropy = entropy / (self.tokens - 1) if self.tokens > 1 else None
                results.append(HeadResult(layer, head, dict(zip(SCORES, each, strict=True)), mean_entropy))
        return tuple(results)

    def _sums_of(self, layer: int, heads: Sequence[int]) -> "_Sums":
        sums = self._sums.get(layer)
        if sums is None:
            raise ShapeError("layer", expected=f"one of {tuple(self._sums)}", got=layer)
        if not heads or not set(heads) <= set(sums.heads) or len(set(heads)) < len(heads):
            raise ShapeError(
                f"heads of layer {layer}", expected=f"distinct, of {sums.heads}", got=tuple(heads)
            )
        return sums

    def _result(
        self, score: ScoreRule, baseline: float | None, mass: float, hits: int, rows: int
    ) -> ScoreResult:
        if rows == 0 or baseline is None:
            return ScoreResult(None, None, None, None, 0, "not_applicable")
        status: Status = "too_short" if self.tokens < SHORTEST or rows < score.min_rows else "ok"
        return ScoreResult(mass / rows, baseline, mass / rows - baseline, hits / rows, rows, status)


class _Sums:
    """Running sums of one layer; the axes are [head, score] and [head]."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.heads = tuple(heads)
        self.mass = torch.zeros(len(heads), len(SCORES), dtype=torch.float64)
        self.hits = torch.zeros(len(heads), len(SCORES), dtype=torch.int64)
        self.rows = torch.zeros(len(heads), len(SCORES), dtype=torch.int64)
        self.entropy = torch.zeros(len(heads), dtype=torch.float64)
        self.seen = torch.zeros(len(heads), dtype=torch.int64)


def _row_statistics(weights: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: entropy in float64, largest weight, and how many keys have it; each [head, query]."""
    heads, queries, keys = weights.shape
    step = max(1, _CHUNK // (heads * keys))
    entropy, peak, peaks = [], [], []
    for a in range(0, queries, step):
        b = min(a + step, queries)
        part = weights[:, a:b, : first + b]  # [head, query, key]; the keys left out lie after every query
        entropy.append(torch.special.entr(part).sum(-1, dtype=torch.float64))
        peak.append(part.amax(-1))
        peaks.append((part == peak[-1].unsqueeze(-1)).sum(-1, dtype=torch.int32))
    return torch.cat(entropy, -1), torch.cat(peak, -1), torch.cat(peaks, -1)


def _targets(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The keys that count in each row for every score, side by side.

    keys [query, slot]; which of them exist [query, slot]; 1 where a slot belongs to a score [slot, score].
    """
    keys = [score.targets(rows) for score in SCORES.values()]  # each [query, width]
    applies = [rows >= score.first_row for score in SCORES.values()]  # each [query]
    real = torch.cat([(k >= 0) & a.unsqueeze(-1) for k, a in zip(keys, applies, strict=True)], -1)
    owner = [s for s, k in enumerate(keys) for _ in range(k.shape[-1])]
    belongs = torch.eye(len(SCORES), device=rows.device)[owner]
    return torch.cat(keys, -1).where(real, 0), real, belongs


def _on_targets(rows: Tensor, weights: Tensor, peak: Tensor, peaks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every score, over the rows that take part.

    The mass on their target keys [head, score], in float64; the number of rows with all their largest weights
    there [head, score]; the number of rows [score].
    """
    keys, real, belongs = _targets(rows)
    on = weights.gather(-1, keys.expand(len(weights), -1, -1)).where(real, 0)  # [head, query, slot]
    mass = on.sum(1, dtype=torch.float64) @ belongs.double()
    at_peak = (on == peak.unsqueeze(-1)) & real  # [head, query, slot]
    inside = at_peak.float() @ belongs  # [head, query, score], how many of the peaks
    applicable = real.float() @ belongs > 0  # [query, score]
    hits = (inside == peaks.unsqueeze(-1)) & applicable  # [head, query, score]
    return mass, hits.sum(1), applicable.sum(0)


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
    threshold. Raises LabelError for a name that is no score, a threshold outside 0..1, and a label without
    one.
    """
    overrides = dict(thresholds or {})
    for name in [*overrides, *(labels or ())]:
        if name not in SCORES:
            raise LabelError(
                "unknown_option", name, f'"{name}" is no score; expected one of {", ".join(SCORES)}'
            )
    for name, value in overrides.items():
        if not 0 <= value <= 1:
            raise LabelError("out_of_range", name, f"the threshold of {name} must be 0..1, got {value}")
    known = {name: overrides.get(name, score.threshold) for name, score in SCORES.items()}
    for name in labels or ():
        if known[name] is None:
            raise LabelError(
                "out_of_range", name, f"{name} has no threshold by default; give one in thresholds"
            )
    return {n: t for n, t in known.items() if t is not None and (labels is None or n in labels)}


def label(
    results: Sequence[HeadResult],
    *,
    thresholds: Mapping[str, float] | None = None,
    labels: Collection[str] | None = None,
) -> tuple[tuple[str, ...], ...]:
    """The labels of each head, in the order of `SCORES`; a head may carry several or none.

    A head carries a label when that score's status is ok, the score is above its threshold, and the excess is
    above 0. The options are those of `thresholds_of`, as are the errors.
    """
    limits = thresholds_of(thresholds=thresholds, labels=labels)
    return tuple(
        tuple(name for name, limit in limits.items() if _carries(result.scores[name], limit))
        for result in results
    )


def _carries(result: ScoreResult, threshold: float) -> bool:
    if result.status != "ok" or result.score is None or result.excess is None:
        return False
    return result.score > threshold and result.excess > 0


def summarise(labelled: Sequence[Sequence[str]], names: Collection[str]) -> dict[str, LabelCount]:
    """For each of the labels `names`: how many heads carry it, and their fraction of all in `labelled`.

    Raises ShapeError when there is no head.
    """
    if not labelled:
        raise ShapeError("labelled heads", expected="at least one", got=0)
    counts = {name: sum(name in carried for carried in labelled) for name in names}
    return {name: LabelCount(count, count / len(labelled)) for name, count in counts.items()}


def definitions(thresholds: Mapping[str, float] | None = None) -> dict[str, Definition]:
    """What every score means, with the thresholds in use. Raises LabelError as `thresholds_of` does."""
    limits = thresholds_of(thresholds=thresholds)
    return {
        name: Definition(score.formula, score.baseline_formula, limits.get(name), score.source)
        for name, score in SCORES.items()
    }
