"""The table of scores: which keys count in each row, and what a score is called and labelled by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from attention_core.heads.texts import TextFacts

Kind = Literal["mass", "distance", "entropy", "spans"]


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
    not be looked at. `unit` is None for a share, from 0 to 1. `formula` and `baseline` are what a reader is shown.
    """

    formula: str
    baseline: str
    source: str
    targets: Targets | None
    threshold: float | None = None
    min_rows: int = 1
    kind: Kind = "mass"
    near: bool = False
    unit: str | None = None

    @property
    def sign(self) -> str:
        """How a score compares with the threshold of its label: ≥, whatever the excess, or >."""
        return "≥" if self.kind == "entropy" else ">"


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
            unit="tokens",
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
