"""Scores over several texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from attention_core.errors import ShapeError
from attention_core.heads.labels import earns, thresholds_of
from attention_core.heads.results import HeadResult, HeadResults, ScoreResult, Status, numbers_of

_NUMBERS = ("score", "baseline", "excess", "argmax_rate")
_SUMS = ("n", "mean", "squares", "rows", "too_short", "agreeing")  # what a `Pool` keeps of its texts


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


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """A text's results, the scores of all heads on one axis; NaN for None."""

    heads: list[tuple[int, int, list[str]]]  # layer, head, names of its scores
    numbers: NDArray[np.float64]  # [4, score], in the order of _NUMBERS
    rows: NDArray[np.int64]  # [score]
    status: NDArray[np.str_]  # [score]
    entropy: NDArray[np.float64]  # [head]


def pool(
    texts: Iterable[Sequence[HeadResult]], limits: Mapping[str, float] | None = None
) -> tuple[PooledHead, ...]:
    """Every head over several texts, from the results of each: the unweighted mean of the per-text scores.

    `label` and `borderline` take what this returns, so that labels come from the pooled scores; `limits`, as in
    `label`, only say what the texts are asked for in `texts_agreeing`. The entropy is the mean over the texts that
    have a score with status ok: those long enough to count for anything.

    Raises ShapeError for no text and for texts with other heads or scores.
    """
    pooled = Pool(limits)
    for heads in texts:
        pooled.add(heads)
    return pooled.finish()


class Pool:
    """What `pool` returns, from texts that come one by one or in parts; its size does not grow with their number.

    Of each number it keeps in how many texts it is there, n, and its mean; of a score also the sum M of the squared
    deviations from it. For the texts of two parts, A and B, these are

        n    = n_A + n_B
        mean = mean_A + d n_B / n              d = mean_B - mean_A
        M    = M_A + M_B + d² n_A n_B / n      sd = √(M / (n - 1))

    where a single text is a part with n = 1 and M = 0. Neither how the texts are cut into parts nor the order of these
    matters, but for the rounding of float64. `limits` are as in `pool`, `texts` is the number of texts so far.

    Source: Chan, Golub & LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances";
    for a single text, Welford 1962.
    """

    def __init__(self, limits: Mapping[str, float] | None = None) -> None:
        self.texts = 0
        self._limits = dict(thresholds_of() if limits is None else limits)
        self._of_heads([])

    def _of_heads(self, heads: Sequence[tuple[int, int, list[str]]]) -> None:
        """Be without a text, for heads (layer, head, names of its scores).

        The scores of all heads lie on one axis [score]. On the axis [number] lies every score, then every baseline,
        excess and argmax_rate, then the entropy of every head.
        """
        self._heads = list(heads)
        names = [name for *_, of_head in heads for name in of_head]
        self._head_of = np.repeat(np.arange(len(heads)), [len(of_head) for *_, of_head in heads])  # [score]
        self._places = {  # on the axis [score]
            limit: np.array([place for place, name in enumerate(names) if name == limit])
            for limit in self._limits
            if limit in names
        }
        self._n = np.zeros(4 * len(names) + len(heads), dtype=np.int64)  # [number]
        self._mean = np.zeros(len(self._n))  # [number], 0 where n = 0
        self._squares = np.zeros(len(names))  # [score]
        self._rows = np.zeros(len(names), dtype=np.int64)  # [score]
        self._too_short = np.zeros(len(names), dtype=np.bool_)  # [score], in any text
        self._agreeing = np.zeros(len(names), dtype=np.int64)  # [score], texts with the label of that name

    def add(self, heads: Sequence[HeadResult]) -> None:
        """Take the results of one more text.

        Raises ShapeError, and takes nothing, where they have other heads or scores than the texts before.
        """
        text = _taken(heads)
        if not self.texts:
            self._of_heads(text.heads)
        elif text.heads != self._heads:
            raise ShapeError(
                f"results of text {self.texts}", expected="the heads and scores of text 0", got="others"
            )
        ok, numbers, entropy = text.status == "ok", text.numbers, text.entropy
        numbers[:, ~ok] = np.nan
        entropy[np.bincount(self._head_of[ok], minlength=len(heads)) == 0] = np.nan
        mean = np.concatenate([numbers.ravel(), entropy])
        there = ~np.isnan(mean)
        self._combine(there.astype(np.int64), np.where(there, mean, 0), np.zeros(len(ok)))
        self._rows += np.where(ok, text.rows, 0)
        self._too_short |= text.status == "too_short"
        score, _, excess, _ = numbers
        for name, places in self._places.items():
            self._agreeing[places] += earns(name, score[places], excess[places], self._limits[name])
        self.texts += 1

    def merge(self, other: Pool) -> None:
        """Take the texts of `other` too.

        Raises ShapeError, and takes nothing, where it has other limits, heads or scores.
        """
        if list(other._limits.items()) != list(self._limits.items()):
            raise ShapeError("limits of the other pool", expected=self._limits, got=other._limits)
        if not other.texts:
            return
        if not self.texts:
            self._of_heads(other._heads)
        elif other._heads != self._heads:
            raise ShapeError("the other pool", expected="the heads and scores of this one", got="others")
        self._combine(other._n, other._mean, other._squares)
        self._rows += other._rows
        self._too_short |= other._too_short
        self._agreeing += other._agreeing
        self.texts += other.texts

    def _combine(self, n: NDArray[np.int64], mean: NDArray[np.float64], squares: NDArray[np.float64]) -> None:
        total = self._n + n
        apart = mean - self._mean
        step = apart * (n / np.maximum(total, 1))  # exactly `apart` where there was none
        self._squares += squares + (apart * step * self._n)[: len(squares)]
        self._mean += step
        self._n = total

    def finish(self) -> tuple[PooledHead, ...]:
        """Every head over the texts so far. Raises ShapeError where there is none."""
        if not self.texts:
            raise ShapeError("texts", expected="at least one", got=0)
        size = len(self._rows)
        n = self._n[:size]  # [score]
        known = self._mean.astype(object)  # [number]
        known[self._n == 0] = None
        sd = np.sqrt(self._squares / np.maximum(n - 1, 1))
        half = stdtrit(np.maximum(n - 1, 1), 0.975) * sd / np.sqrt(np.maximum(n, 1))
        scores = map(
            _pooled_score,
            *known[: 4 * size].reshape(4, size).tolist(),
            *(of.tolist() for of in (self._rows, self._too_short, sd, half, n)),
        )
        agreeing = iter(self._agreeing.tolist())
        pooled = []
        for (layer, head, names), entropy in zip(self._heads, known[4 * size :].tolist(), strict=True):
            of_head = {name: next(scores) for name in names}
            texts = {name: next(agreeing) for name in names}
            pooled.append(
                PooledHead(
                    layer,
                    head,
                    of_head,
                    entropy,
                    {name: texts[name] for name in self._limits if name in texts},
                )
            )
        return tuple(pooled)

    def as_dict(self) -> dict[str, Any]:
        """All that is kept, in lists, numbers and strings, which JSON holds exactly; `from_dict` reads it."""
        return {
            "texts": self.texts,
            "limits": [list(one) for one in self._limits.items()],
            "heads": [[layer, head, list(names)] for layer, head, names in self._heads],
            **{name: getattr(self, f"_{name}").tolist() for name in _SUMS},
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Pool:
        """The pool of which `as_dict` gave this.

        Raises ShapeError for lists that are not as long as its heads and scores ask for.
        """
        pool = cls(dict(state["limits"]))
        pool._of_heads([(layer, head, list(names)) for layer, head, names in state["heads"]])
        for name in _SUMS:
            empty: NDArray[Any] = getattr(pool, f"_{name}")
            stored = np.array(state[name], dtype=empty.dtype)
            if stored.shape != empty.shape:
                raise ShapeError(f"{name} of a stored pool", expected=empty.shape, got=stored.shape)
            setattr(pool, f"_{name}", stored)
        pool.texts = state["texts"]
        return pool


def _taken(results: Sequence[HeadResult]) -> _Taken:
    if not isinstance(results, HeadResults):
        scores = [score for head in results for score in head.scores.values()]
        return _Taken(
            [(head.layer, head.head, list(head.scores)) for head in results],
            np.array([numbers_of([getattr(one, name) for one in scores]) for name in _NUMBERS]),
            np.array([one.rows for one in scores], dtype=np.int64),
            np.array([one.status for one in scores], dtype=np.str_),
            numbers_of([head.entropy for head in results]),
        )
    names, columns = list(results.scores), list(results.scores.values())
    numbers = np.full((len(_NUMBERS), len(results), len(columns)), np.nan)
    for place, column in enumerate(columns):
        for which, name in enumerate(_NUMBERS):
            if (values := getattr(column, name)) is not None:
                numbers[which, :, place] = values
    return _Taken(
        [(layer, head, names) for layer, head in results.heads],
        numbers.reshape(len(_NUMBERS), -1),
        np.tile(np.array([one.rows for one in columns], dtype=np.int64), len(results)),
        np.tile(np.array([one.status for one in columns], dtype=np.str_), len(results)),
        np.full(len(results), np.nan) if results.entropy is None else results.entropy.copy(),
    )


def _pooled_score(
    score: float | None,
    baseline: float | None,
    excess: float | None,
    argmax_rate: float | None,
    rows: int,
    too_short: bool,
    sd: float,
    half: float,
    n: int,
) -> PooledScore:
    status: Status = "ok" if n else "too_short" if too_short else "not_applicable"
    if score is None or n < 2:
        return PooledScore(score, baseline, excess, argmax_rate, rows, status, None, None, n)
    ends = (score - half, score + half)
    return PooledScore(score, baseline, excess, argmax_rate, rows, status, sd, ends, n)
