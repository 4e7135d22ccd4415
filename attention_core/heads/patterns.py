"""A score of one's own: the weight on a pattern over one text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_core.errors import ShapeError
from attention_core.heads.results import ScoreResult
from attention_core.heads.rules import ScoreRule
from attention_core.heads.texts import TextFacts


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
    from TransformerLens' `error_measure="abs"`, which divides the sum by T and so falls below 0 for a head unlike P.
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
