"""Which kinds of head a head is: labels from scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar

import numpy as np

from attention_core._checks import positive_int
from attention_core.errors import ShapeError
from attention_core.heads.results import HeadResult, HeadResults, names_of, usable
from attention_core.heads.rules import LABELS, SCORES, ScoreRule

NOISE = 2e-4  # what another batch shape or machine may move a weight by

R = TypeVar("R", bound=HeadResult)


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
    return _labels_where(earns, results, limits)


def borderline(
    results: Sequence[HeadResult], limits: Mapping[str, float] | None = None
) -> tuple[tuple[str, ...], ...]:
    """The labels of each head that another batch or machine may decide otherwise, whether carried or not.

    They are those that a score, and with it its excess, moved up or down by `NOISE` would gain or lose: the score is
    that near its threshold, or the excess that near 0, and the other does not decide against the label anyway.
    `limits` as in `label`.
    """

    def undecided(name: str, score: Any, excess: Any, threshold: float) -> Any:
        up = earns(name, score + NOISE, excess + NOISE, threshold)
        return up & ~earns(name, score - NOISE, excess - NOISE, threshold)

    return _labels_where(undecided, results, limits)


def _labels_where(
    holds: Callable[[str, Any, Any, float], Any],
    results: Sequence[HeadResult],
    limits: Mapping[str, float] | None,
) -> tuple[tuple[str, ...], ...]:
    limits = thresholds_of() if limits is None else limits
    held = [holds(name, *usable(results, name), limit) for name, limit in limits.items()]  # [label][head]
    by_head = np.array(held, dtype=np.bool_).reshape(len(limits), len(results)).T.tolist()
    return tuple(tuple(compress(limits, of_head)) for of_head in by_head)


def earns(name: str, score: Any, excess: Any, threshold: float) -> Any:
    """Whether scores [head] whose status is ok carry the label of their name, as in `label`; not where NaN."""
    if SCORES[name].sign == "≥":
        return score >= threshold
    return (score > threshold) & (excess > 0)


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
    return tuple(results[place] for place in _strongest(results, name, count))


def ranking(results: Sequence[HeadResult], name: str, *, count: int = 5) -> list[tuple[int, int, float]]:
    """Layer, head and score of each of the `strongest`, without its other scores. Raises what that raises."""
    score, _ = usable(results, name)
    if isinstance(results, HeadResults):
        heads = results.heads
    else:
        heads = [(head.layer, head.head) for head in results]
    return [(*heads[place], float(score[place])) for place in _strongest(results, name, count)]


def _strongest(results: Sequence[HeadResult], name: str, count: int) -> list[int]:
    """Where these stand in the results."""
    positive_int("count", count)
    if results and name not in names_of(results):
        raise KeyError(name)
    score, _ = usable(results, name)
    there = np.flatnonzero(~np.isnan(score))
    order = np.argsort(-score[there], kind="stable")[:count]
    places: list[int] = there[order].tolist()
    return places


def definitions(
    limits: Mapping[str, float] | None = None, *, rules: Mapping[str, ScoreRule] = SCORES
) -> dict[str, Definition]:
    """What every score means, with the thresholds `limits`, as in `label`."""
    limits = thresholds_of() if limits is None else limits
    return {
        name: Definition(rule.formula, rule.baseline, limits.get(name), rule.source)
        for name, rule in rules.items()
    }
