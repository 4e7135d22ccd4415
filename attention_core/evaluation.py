"""How often is a head right, and could chance have done as well?

With hundreds of heads and few sentences some head is always right: of 336 that flip coins, the best is right on
all of 6 two-candidate items with a probability of 99.5 %. So the head is chosen on some of the items and reported
on others, beside what position alone achieves there and what no head can exceed.

Needs to know of attention only what each head chose: predictions [item, head] from any source will do.
"""

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.random import PCG64
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom, binomtest

from attention_core._checks import positive_int
from attention_core.coreference import Note, Question
from attention_core.errors import ShapeError

NO_CHOICE = -1  # in predictions: a tie, or no candidate with a score above 0
_BLOCK = 1 << 11  # items whose predictions are looked at together
FEW = 30  # items; with fewer, the interval of a head that is right on half of them is wider than a third

RankBy = Literal["accuracy", "balanced"]
PartName = Literal["dev", "test", "all"]
Group = TypeVar("Group", str, tuple[Any, ...])


class EvaluationError(ValueError):
    """Items that cannot be evaluated as asked.

    `code` is missing_field (an item without gold), out_of_range (a share of test items that is not between 0 and
    1), too_few_groups or unknown_option; `index` is the item at fault, None where no single one is.
    """

    def __init__(self, code: str, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.code, self.index = code, index


@dataclass(frozen=True, slots=True)
class Item:
    """A question with its gold answer, the text it asks about, and the group that a split must not divide.

    Without a group an item is one of its own, which only an item of the same text and spans shares.
    """

    question: Question
    text: str
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """Which share of the groups is held out for the report, and the seed of the shuffle.

    Raises EvaluationError unless 0 < `test_fraction` < 1, ShapeError unless `seed` is a whole number from 0 on.
    """

    test_fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            message = f"test_fraction must be between 0 and 1, both excluded; got {self.test_fraction}"
            raise EvaluationError("out_of_range", message)
        positive_int("seed", self.seed, at_least=0)


# --- results ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accuracy:
    """`correct` of `n`, their ratio and its Wilson 95 % interval; both None where n = 0."""

    correct: int
    n: int
    accuracy: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Part:
    """What heads are measured against on `n` of the items.

    `first` and `nearest` choose by position alone; `random` is the mean of 1/C over the items, C their numbers of
    candidates; `ceiling` is the largest accuracy that any head can have. The last two are None where n = 0.
    """

    n: int
    first: Accuracy
    nearest: Accuracy
    random: float | None
    ceiling: float | None


@dataclass(frozen=True, slots=True)
class HeadAccuracy:
    """How often a head is right: to choose by (dev), held out (test), and on all scored items.

    `dev` and `test` are None without a split. What follows them is over all scored items: the accuracy where the
    gold candidate is the first in the text and where it is not, `balanced`, the mean of the two (None where one has
    no item), and the share of items for which the head chooses the first candidate.
    """

    layer: int
    head: int
    dev: Accuracy | None
    test: Accuracy | None
    all: Accuracy
    gold_first: Accuracy
    gold_not_first: Accuracy
    balanced: float | None
    picks_first_rate: float | None


@dataclass(frozen=True, slots=True)
class Best:
    """The head with the highest value to choose by, then of the lowest layer and head.

    `value` is its accuracy or balanced accuracy, as asked, on dev, without a split on all; `test_value` the same on
    test. `tied_heads` counts the heads with that value, this one among them. `p_value` is the probability that coin
    flips are right at least as often on the items reported on (test, without a split all); `p_value_holm` is
    corrected for all heads evaluated.
    """

    layer: int
    head: int
    dev: Accuracy | None
    test: Accuracy | None
    all: Accuracy
    value: float
    test_value: float | None
    tied_heads: int
    p_value: float
    p_value_holm: float


@dataclass(frozen=True, slots=True)
class ChanceOfBest:
    """What the best of `heads` independent heads that flip coins does on `n` items; see `chance_of_best`."""

    heads: int
    n: int
    probability: float
    expected_accuracy: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Many heads on many items. `heads` are sorted best first, as `Best` says.

    `n` counts the items, `scored` those with at least two candidates; `skipped` are the indices of the others, and
    `test_items` of those held out. `parts` has all, and with a split dev and test. `best` and `chance_of_best` are
    None where there is nothing to choose by. The codes of `warnings` are single_candidate, candidate_after_pronoun,
    candidate_on_first_token, no_held_out_split, too_few_items, one_sided_gold and ceiling_below_one.
    """

    n: int
    scored: int
    skipped: tuple[int, ...]
    test_items: tuple[int, ...]
    parts: Mapping[PartName, Part]
    heads: tuple[HeadAccuracy, ...]
    best: Best | None
    chance_of_best: ChanceOfBest | None
    warnings: tuple[Note, ...]


# --- statistics ---------------------------------------------------------------------------------------------


def accuracy(correct: int, n: int) -> Accuracy:
    """The ratio correct/n with its Wilson 95 % interval; both None where n = 0.

    Raises ShapeError unless 0 <= correct <= n. Source: Wilson 1927, without continuity correction.
    """
    if not 0 <= correct <= n:
        raise ShapeError("correct", expected=f"0..{n}", got=correct)
    if n == 0:
        return Accuracy(0, 0, None, None)
    # With any p, but fast with this
    low, high = binomtest(correct, n, p=correct / n).proportion_ci(method="wilson")
    return Accuracy(correct, n, correct / n, (float(low), float(high)))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Each of m p-values corrected for there being m of them, in their own order.

        p'_(i) = min(1, max over j <= i of (m - j + 1) p_(j))        p_(1) <= .. <= p_(m)

    Source: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    """
    p = np.asarray(p_values, dtype=np.float64)  # [test]
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return corrected


def chance_of_best(correct: int, candidates: Sequence[int], heads: int) -> ChanceOfBest:
    """What the best of `heads` independent heads that flip coins does on items with these numbers of candidates.

        probability       = P(max >= correct)               P(max >= k) = 1 - (1 - P(X >= k))^heads
        expected_accuracy = sum over k = 1..n of P(max >= k) / n

    where X is the number of n items on which one such head is right, each with the probability 1/C of its C
    candidates. Exact for mixed C too: X is then a sum of binomials (Poisson binomial). Real heads resemble one another,
    which leaves chance less room than this.

    Raises ShapeError for no item, no head, a C below 1, and unless 0 <= correct <= n.
    """
    n = len(candidates)
    positive_int("heads", heads)
    if n == 0 or min(candidates) < 1:
        raise ShapeError(
            "candidates", expected="one item or more, each with one or more", got=list(candidates)
        )
    if not 0 <= correct <= n:
        raise ShapeError("correct", expected=f"0..{n}", got=correct)
    pmf = np.ones(1)  # [number right]
    for c, times in sorted(Counter(candidates).items()):
        pmf = _convolve(pmf, binom.pmf(np.arange(times + 1), times, 1 / c))
    tail = pmf[::-1].cumsum()[::-1].clip(max=1)  # [k], P(X >= k)
    with np.errstate(divide="ignore"):  # ln 0: one head is certain to be that good, so the best is
        best = -np.expm1(heads * np.log1p(-tail))  # [k], P(max >= k)
    return ChanceOfBest(heads, n, float(best[correct]) if correct else 1.0, float(best[1:].mean()))


def _convolve(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The convolution of two distributions, without the zeros at their ends: of many items, where most of it is 0."""
    (first_a, last_a), (first_b, last_b) = (np.flatnonzero(one)[[0, -1]] for one in (a, b))
    full = np.zeros(len(a) + len(b) - 1)
    within = np.convolve(a[first_a : last_a + 1], b[first_b : last_b + 1])
    full[first_a + first_b : last_a + last_b + 1] = within
    return full


def held_out(groups: Sequence[Group], split: Split) -> tuple[bool, ...]:
    """For the group of each item, whether it is held out: drawn to be tested on.

    The sorted group names are shuffled (Fisher-Yates, from the raw numbers of PCG64, which are the same on any
    machine and in any version of numpy); held out are the first `test_fraction` of them, rounded half up, but at least
    one, and all but one at most. No group is divided, and neither the items' order nor their number matters.

    Raises EvaluationError, code too_few_groups, where there are fewer than two.
    """
    names = sorted(set(groups))
    if len(names) < 2:
        message = f"a split needs at least 2 groups, one to choose on and one to report on; got {len(names)}"
        raise EvaluationError("too_few_groups", message)
    bits = PCG64(split.seed)
    for last in range(len(names) - 1, 0, -1):
        other = bits.random_raw() % (last + 1)
        names[last], names[other] = names[other], names[last]
    count = math.floor(split.test_fraction * len(names) + 0.5)
    test = set(names[: min(max(count, 1), len(names) - 1)])
    return tuple(group in test for group in groups)


def check_split(items: Iterable[Item], split: Split | None) -> None:
    """Raise what `evaluate` would, with these items, for the split: before anything is predicted."""
    facts, groups = _read(items, split)
    _masks(facts[facts["candidates"] > 1], groups, split)


# --- evaluation ---------------------------------------------------------------------------------------------


def evaluate(
    items: Iterable[Item],
    heads: Sequence[tuple[int, int]],
    predictions: ArrayLike,
    *,
    split: Split | None = None,
    rank_by: RankBy = "accuracy",
) -> Evaluation:
    """Accuracy of every head, the head that is best where it was chosen, and what that is worth.

    items          with gold, looked at once, one by one; those with a single candidate are left out of every number
    heads          (layer, head) of each column of `predictions`, distinct
    predictions    [item, head], the index of the candidate chosen, -1 for none; -1 counts as wrong. Not copied: a
                   byte for each, int8, will do
    split          None chooses and reports on the same items, and warns
    rank_by        accuracy, or balanced: the mean of the accuracies with the gold candidate first and not first, which
                   is 1/2 for a head that always picks the first, however often that is right

    p_value = P(X >= k), X binomial with n items and p = mean 1/C, k the number right. (Where C differs between items
    that is never too small for a k of np + 1 or more: Hoeffding 1956.) The ceiling groups items by their text up to
    the pronoun's end and the spans asked about: in a causal model no head can tell them apart, so at most the
    majority's gold is right, and a gold that cannot be attended to never is. `chance_of_best` is about the items that
    the head was chosen on.

    Raises ShapeError when `predictions` are not whole numbers, one per item and head, each -1 or one of that item's
    candidates, and for heads that are none or not distinct; EvaluationError for an item without gold, an unknown
    `rank_by`, and as `held_out` does.
    """
    if rank_by not in get_args(RankBy):
        message = f"rank_by: expected {', '.join(get_args(RankBy))}, got {rank_by!r}"
        raise EvaluationError("unknown_option", message)
    everything, groups = _read(items, split)
    facts = everything[everything["candidates"] > 1]  # [scored item]
    chosen = _checked(everything["candidates"], heads, predictions)  # [item, head]

    masks = _masks(facts, groups, split)
    wilson = functools.cache(accuracy)
    parts = {name: _part(facts[mask], wilson) for name, mask in masks.items()}
    counts, picks_first = _count(facts, masks, chosen)
    described = _describe(heads, counts, picks_first, wilson)
    choose_on: PartName = "dev" if "dev" in masks else "all"
    ranks, _ = counts[choose_on].value(rank_by)
    order = sorted(range(len(heads)), key=lambda h: (-ranks[h], *heads[h]))
    best = _best(order[0], described[order[0]], counts, parts, rank_by)
    chance = None
    if best is not None:
        candidates = facts["candidates"][masks[choose_on]].tolist()
        chance = chance_of_best(int(counts[choose_on].right[order[0]]), candidates, len(heads))
    return Evaluation(
        n=len(everything),
        scored=len(facts),
        skipped=tuple(np.flatnonzero(everything["candidates"] == 1).tolist()),
        test_items=tuple(facts["item"][masks["test"]].tolist()) if "test" in masks else (),
        parts=parts,
        heads=tuple(described[h] for h in order),
        best=best,
        chance_of_best=chance,
        warnings=tuple(_warnings(everything, parts, len(heads), best)),
    )


# What the evaluation needs of one item
_FACTS = np.dtype(
    [
        ("item", np.int32),
        ("candidates", np.int32),  # their number
        ("gold", np.int32),
        ("first", np.int32),
        ("nearest", np.int32),
        ("visible", np.bool_),  # the gold candidate can be attended to
        ("has_score", np.bool_),  # and has tokens that count
        ("group", np.int32),  # its place in what `_read` returns with the facts
        ("seen", np.int32),  # the same number for items that no causal head can tell apart
        ("gold_span", np.int32),  # the place of the gold candidate in the text, of all candidates
    ]
)


def _read(items: Iterable[Item], split: Split | None) -> tuple[NDArray[np.void], list[tuple[Any, ...]]]:
    """The facts of each item, and the groups there are for the split, of the items that it divides."""
    groups: dict[tuple[Any, ...], int] = {}
    seen: dict[bytes, int] = {}

    def facts(index: int, item: Item) -> tuple[int | bool, ...]:
        question = item.question
        if question.gold is None:
            raise EvaluationError(
                "missing_field", f"item {index} has no gold candidate to be right about", index=index
            )
        gold, pronoun = question.candidates[question.gold], question.pronoun
        spans = sorted((c.start, c.end) for c in question.candidates)  # in whichever order they were given
        where = (pronoun.start, pronoun.end, *(end for span in spans for end in span))
        group = -1
        if split is not None and len(spans) > 1:
            named = (0, item.group) if item.group is not None else (1, item.text, *where)
            group = groups.setdefault(named, len(groups))
        # As long texts are not to be kept, equal digests stand for equal ones
        digest = hashlib.blake2b(repr((item.text[: pronoun.end], where)).encode(), digest_size=16).digest()
        return (
            index,
            len(spans),
            question.gold,
            question.baselines.first,
            question.baselines.nearest,
            gold.visible,
            bool(question.counted[question.gold]),
            group,
            seen.setdefault(digest, len(seen)),
            spans.index((gold.start, gold.end)),
        )

    return np.fromiter((facts(index, item) for index, item in enumerate(items)), _FACTS), list(groups)


def _checked(
    candidates: NDArray[np.int32], heads: Sequence[tuple[int, int]], predictions: ArrayLike
) -> NDArray[np.integer[Any]]:
    """The predictions as an array, for items with these numbers of candidates."""
    if not heads or len(set(heads)) < len(heads):
        raise ShapeError(
            "heads", expected="at least one, all distinct", got=f"{len(heads)}, {len(set(heads))} distinct"
        )
    chosen = np.asarray(predictions)
    if chosen.shape != (len(candidates), len(heads)) or chosen.dtype.kind not in "iu":
        raise ShapeError(
            "predictions [item, head]",
            expected=f"{len(candidates)} x {len(heads)} integers",
            got=f"{chosen.dtype} {chosen.shape}",
        )
    for at in _blocks(len(candidates)):
        block = chosen[at]
        wrong = np.argwhere((block < NO_CHOICE) | (block >= candidates[at, None]))
        if len(wrong):
            item, head = wrong[0].tolist()
            raise ShapeError(
                f"predictions[{at.start + item}, {head}]",
                expected=f"-1..{candidates[at][item] - 1}",
                got=block[item, head],
            )
    return chosen


def _blocks(rows: int) -> Iterator[slice]:
    """Rows to look at together, so few that what is computed of them is small beside all of them."""
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))


@dataclass(frozen=True, slots=True)
class _Counts:
    """How often each head is right on one part: where the gold candidate is first, and elsewhere."""

    n_first: int
    n_rest: int
    first: NDArray[np.int64]  # [head]
    rest: NDArray[np.int64]  # [head]

    @property
    def n(self) -> int:
        return self.n_first + self.n_rest

    @property
    def right(self) -> NDArray[np.int64]:
        return self.first + self.rest

    def value(self, rank_by: RankBy) -> tuple[NDArray[np.int64], int]:
        """What heads are ranked by, as numerators [head] and a denominator, 0 where it is not defined.

        Whole numbers, because fractions that are equal may differ as floats.
        """
        if rank_by == "accuracy":
            return self.right, self.n
        return self.first * self.n_rest + self.rest * self.n_first, 2 * self.n_first * self.n_rest


def _ratios(numerators: NDArray[np.int64], denominator: int) -> list[float | None]:
    return [k / denominator if denominator else None for k in numerators.tolist()]


def _masks(
    facts: NDArray[np.void], groups: Sequence[tuple[Any, ...]], split: Split | None
) -> dict[PartName, NDArray[np.bool_]]:
    """Which of the scored items are in each part."""
    everything = np.ones(len(facts), dtype=np.bool_)  # [scored item]
    if split is None or not len(facts):
        return {"all": everything}
    test = np.array(held_out(groups, split))[facts["group"]]
    return {"all": everything, "dev": ~test, "test": test}


def _part(facts: NDArray[np.void], wilson: Callable[[int, int], Accuracy]) -> Part:
    n = len(facts)
    gold = facts["gold"]
    return Part(
        n=n,
        first=wilson(int((facts["first"] == gold).sum()), n),
        nearest=wilson(int((facts["nearest"] == gold).sum()), n),
        random=math.fsum(1 / facts["candidates"]) / n if n else None,
        ceiling=_most_right(facts[facts["has_score"]]) / n if n else None,
    )


def _most_right(facts: NDArray[np.void]) -> int:
    """On how many of the items a head can be right: of those it cannot tell apart, on those with the commonest gold."""
    both = facts["seen"].astype(np.int64) << 32 | facts["gold_span"]
    golds, times = np.unique(both, return_counts=True)  # by what is seen
    _, starts = np.unique(golds >> 32, return_index=True)
    return int(np.maximum.reduceat(times, starts).sum()) if len(starts) else 0


def _count(
    facts: NDArray[np.void], masks: Mapping[PartName, NDArray[np.bool_]], chosen: NDArray[np.integer[Any]]
) -> tuple[dict[PartName, _Counts], NDArray[np.int64]]:
    """How often each head is right, by part; and on how many of the scored items it chooses the first candidate."""
    first = facts["gold"] == facts["first"]  # [scored item]
    sides = {name: (mask & first, mask & ~first) for name, mask in masks.items()}
    right = {name: np.zeros((2, chosen.shape[1]), dtype=np.int64) for name in masks}  # [side, head]
    picks_first = np.zeros(chosen.shape[1], dtype=np.int64)  # [head]
    for at in _blocks(len(facts)):
        block = facts[at]
        choices = chosen[block["item"]]  # [scored item, head]
        picks_first += (choices == block["first"][:, None]).sum(0)
        correct = choices == block["gold"][:, None]
        for name, of_part in sides.items():
            for side, members in enumerate(of_part):
                right[name][side] += correct[members[at]].sum(0)
    counts = {
        name: _Counts(int(firsts.sum()), int(rest.sum()), *right[name])
        for name, (firsts, rest) in sides.items()
    }
    return counts, picks_first


def _describe(
    heads: Sequence[tuple[int, int]],
    counts: Mapping[PartName, _Counts],
    picks_first: NDArray[np.int64],
    wilson: Callable[[int, int], Accuracy],
) -> list[HeadAccuracy]:
    """The heads in their own order."""

    def accuracies(correct: NDArray[np.int64], n: int) -> list[Accuracy]:
        return [wilson(k, n) for k in correct.tolist()]

    whole = counts["all"]
    of_part = {name: accuracies(count.right, count.n) for name, count in counts.items()}
    gold_first, gold_not_first = accuracies(whole.first, whole.n_first), accuracies(whole.rest, whole.n_rest)
    balanced = _ratios(*whole.value("balanced"))
    picked = _ratios(picks_first, whole.n)
    return [
        HeadAccuracy(
            *head,
            dev=of_part["dev"][h] if "dev" in of_part else None,
            test=of_part["test"][h] if "test" in of_part else None,
            all=of_part["all"][h],
            gold_first=gold_first[h],
            gold_not_first=gold_not_first[h],
            balanced=balanced[h],
            picks_first_rate=picked[h],
        )
        for h, head in enumerate(heads)
    ]


def _best(
    top: int,
    head: HeadAccuracy,
    counts: Mapping[PartName, _Counts],
    parts: Mapping[PartName, Part],
    rank_by: RankBy,
) -> Best | None:
    """The head in column `top`, which ranks highest; None where there is nothing to rank by."""
    choose_on: PartName = "dev" if "dev" in counts else "all"
    report_on: PartName = "test" if "test" in counts else "all"
    ranks, denominator = counts[choose_on].value(rank_by)
    chance = parts[report_on].random
    if not denominator or chance is None:
        return None
    p_values = binom.sf(counts[report_on].right - 1, counts[report_on].n, chance)  # [head]
    return Best(
        head.layer,
        head.head,
        head.dev,
        head.test,
        head.all,
        value=float(ranks[top] / denominator),
        test_value=_ratios(*counts["test"].value(rank_by))[top] if "test" in counts else None,
        tied_heads=int((ranks == ranks[top]).sum()),
        p_value=float(p_values[top]),
        p_value_holm=float(holm(p_values)[top]),
    )


def _warnings(
    items: NDArray[np.void], parts: Mapping[PartName, Part], heads: int, best: Best | None
) -> Iterator[Note]:
    single = int((items["candidates"] == 1).sum())
    if single:
        message = f"{single} of {len(items)} items have one candidate, nothing to choose between: they are not counted"
        yield Note("single_candidate", message)
    scored = items[items["candidates"] > 1]
    unseen = int((~scored["visible"]).sum())
    if unseen:
        message = f"in {unseen} items the gold candidate comes after the pronoun, which cannot attend to it: all wrong"
        yield Note("candidate_after_pronoun", message)
    left_out = int((scored["visible"] & ~scored["has_score"]).sum())
    if left_out:
        message = f"in {left_out} items the gold candidate is token 0 alone, which is left out: all wrong"
        yield Note("candidate_on_first_token", message)
    if best is not None and "test" not in parts and heads > 1:
        message = f"the best of {heads} heads was chosen on the items it is reported on, so its accuracy is too high"
        yield Note("no_held_out_split", message)
    few = {
        name: part.n for name, part in parts.items() if part.n < FEW and (name != "all" or len(parts) == 1)
    }
    if few:
        yield Note("too_few_items", _few(few))
    for side, share in (("always", 1), ("never", 0)):
        named = [name for name, part in parts.items() if part.first.accuracy == share]
        if named:
            message = (
                f"of {' and of '.join(named)} items the gold candidate is {side} the first one: what goes by the place "
                "in the text cannot be told from what finds the right noun, and balanced is undefined"
            )
            yield Note("one_sided_gold", message)
    ceiling = parts["all"].ceiling
    if ceiling is not None and ceiling < 1:
        message = (
            f"no head can be right on more than {ceiling:.1%} of the items: the pronoun attends to nothing after it, "
            "and up to there some items differ in nothing but the gold candidate, or the gold candidate has no score"
        )
        yield Note("ceiling_below_one", message)


def _few(sizes: Mapping[PartName, int]) -> str:
    named = " and ".join(f"{n} {name}" for name, n in sizes.items())
    smallest = min(sizes.values())
    message = f"there are {named} items that are scored, fewer than {FEW}"
    interval = accuracy(smallest // 2, smallest).ci95
    if interval is None:
        return message
    low, high = interval
    return f"{message}: {smallest // 2} right of {smallest} has a 95 % interval of {low:.0%} to {high:.0%}"
