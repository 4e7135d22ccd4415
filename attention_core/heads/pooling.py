"""Scores over several texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from attention_core.errors import ShapeError
from attention_core.heads.labels import label, thresholds_of
from attention_core.heads.scoring import HeadResult, ScoreResult, Status


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
    carried = [label(heads, limits) for heads in texts]
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
