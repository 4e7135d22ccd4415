"""What is found about heads: about one, and about all of a text in columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Status = Literal["ok", "too_short", "not_applicable"]
S = TypeVar("S")


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


NOTHING = ScoreResult(None, None, None, None, 0, "not_applicable")


@dataclass(frozen=True, slots=True)
class HeadResult:
    """One head's scores by name, and the mean entropy in nats of its rows i >= 1 (None where T = 1)."""

    layer: int
    head: int
    scores: Mapping[str, ScoreResult]
    entropy: float | None


@dataclass(frozen=True, slots=True, eq=False)
class ScoreColumn:
    """One score of every head of a text, with the members of `ScoreResult`.

    Arrays are [head]; baseline, rows and status are the text's, and so of every head.
    """

    score: NDArray[np.float64] | None
    baseline: float | None
    excess: NDArray[np.float64] | None
    argmax_rate: NDArray[np.float64] | None
    rows: int
    status: Status

    def of(self, place: int) -> ScoreResult:
        """That of one head."""
        score, excess, rate = (_number(one, place) for one in (self.score, self.excess, self.argmax_rate))
        return ScoreResult(score, self.baseline, excess, rate, self.rows, self.status)

    def of_each(self, make: Callable[..., S]) -> Iterator[S]:
        """What `make` gives of the six members, for each head."""
        arrays = (self.score, self.excess, self.argmax_rate)
        score, excess, rate = (repeat(None) if one is None else one.tolist() for one in arrays)
        rest = (repeat(self.rows), repeat(self.status))
        return map(make, score, repeat(self.baseline), excess, rate, *rest)


class HeadResults(Sequence[HeadResult]):
    """The results of the heads of a text: each `HeadResult` is made when it is asked for.

    heads     (layer, head) of each
    scores    by name
    entropy   [head], in nats, as in `HeadResult`

    Equal to any sequence of equal results.
    """

    __slots__ = ("entropy", "heads", "scores")

    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        scores: Mapping[str, ScoreColumn],
        entropy: NDArray[np.float64] | None,
    ) -> None:
        self.heads, self.scores, self.entropy = heads, scores, entropy

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[HeadResult]:
        return (HeadResult(*one) for one in self._each(ScoreResult))

    @overload
    def __getitem__(self, place: int) -> HeadResult: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[HeadResult, ...]: ...
    def __getitem__(self, place: int | slice) -> HeadResult | tuple[HeadResult, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        scores = {name: column.of(place) for name, column in self.scores.items()}
        return HeadResult(*self.heads[place], scores, _number(self.entropy, place))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def as_dicts(self) -> list[dict[str, Any]]:
        """What `dataclasses.asdict` gives of each, in a small part of its time."""
        names = [one.name for one in fields(HeadResult)]
        return [dict(zip(names, one, strict=True)) for one in self._each(_as_dict)]

    def _each(self, make: Callable[..., S]) -> Iterator[tuple[int, int, dict[str, S], float | None]]:
        """The members of each `HeadResult`, with what `make` gives for scores."""
        entropies = repeat(None) if self.entropy is None else self.entropy.tolist()
        columns = [column.of_each(make) for column in self.scores.values()]
        for (layer, head), entropy, *scores in zip(self.heads, entropies, *columns, strict=False):
            yield layer, head, dict(zip(self.scores, scores, strict=True)), entropy


def usable(results: Sequence[HeadResult], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scores of that name and their excesses, each [head]; NaN where there is none, or its status is not ok."""
    if isinstance(results, HeadResults):
        column = results.scores.get(name)
        if (
            column is not None
            and column.score is not None
            and column.excess is not None
            and column.status == "ok"
        ):
            return column.score, column.excess
        nothing = np.full(len(results), np.nan)
        return nothing, nothing
    found = [head.scores.get(name, NOTHING) for head in results]
    found = [one if one.status == "ok" else NOTHING for one in found]
    return numbers_of([one.score for one in found]), numbers_of([one.excess for one in found])


def names_of(results: Sequence[HeadResult]) -> Collection[str]:
    """The scores that the first of the results has."""
    return (results if isinstance(results, HeadResults) else results[0]).scores


def numbers_of(values: Sequence[float | None]) -> NDArray[np.float64]:
    """With NaN in place of None."""
    return np.fromiter(values, np.float64, len(values))


def _number(numbers: NDArray[np.float64] | None, place: int) -> float | None:
    return None if numbers is None else float(numbers[place])


def _as_dict(
    score: float | None,
    baseline: float | None,
    excess: float | None,
    argmax_rate: float | None,
    rows: int,
    status: Status,
) -> dict[str, Any]:
    return {
        "score": score,
        "baseline": baseline,
        "excess": excess,
        "argmax_rate": argmax_rate,
        "rows": rows,
        "status": status,
    }
