"""What requests want read, and short ones of several requests in one pass over the model.

A pass over a dozen tokens takes about as long as it takes to get the weights out of memory, so that a few texts more
cost little. Only waiting requests are joined, nobody is kept waiting for company, and only those that want the same
heads in the same way: each then ends where it would have ended alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attention_core.capture import AttentionReader, Rows, Weighting


@dataclass(slots=True)
class ReadCall:
    """The arguments of one request's `AttentionReader.read`, and how it fared."""

    sequences: Sequence[Sequence[int]]
    heads: Mapping[int, Sequence[int]]
    consume: Callable[[Rows], None]
    queries: Sequence[Sequence[int]] | None = None
    weighting: Weighting = "attention"
    error: BaseException | None = None

    @property
    def rows(self) -> list[Sequence[int]]:
        """Which rows of each text."""
        return [range(len(ids)) for ids in self.sequences] if self.queries is None else list(self.queries)

    def goes_with(self, other: ReadCall) -> bool:
        """Whether both may be read in one pass."""
        return (self.weighting, self.heads) == (other.weighting, other.heads)


def padded_tokens(calls: Sequence[ReadCall]) -> int:
    """Of one pass over all their texts."""
    lengths = [len(ids) for one in calls for ids in one.sequences]
    return len(lengths) * max(lengths, default=0)


def read_together(
    reader: AttentionReader, calls: Sequence[ReadCall], checks: Sequence[Callable[[int], None]]
) -> None:
    """Read all of them in one pass, each with its own consumer.

    `checks` are called before each layer, one for each call. A call whose check or consumer raises has its
    `error` set and gets no more rows, while the others go on; when none is left, the pass ends. What the model itself
    raises is raised here.
    """
    owners = [(one, place) for one in calls for place in range(len(one.sequences))]

    def attempt(one: ReadCall, step: Callable[[], None]) -> None:
        if one.error is None:
            try:
                step()
            except BaseException as error:  # whatever it is, it is this call's alone
                one.error = error

    def before_layer(layer: int) -> None:
        for one, check in zip(calls, checks, strict=True):
            attempt(one, lambda check=check: check(layer))  # type: ignore[misc]
        if all(one.error is not None for one in calls):
            raise _NobodyLeft

    def consume(rows: Rows) -> None:
        one, place = owners[rows.text]
        attempt(one, lambda: one.consume(replace(rows, text=place)))

    with contextlib.suppress(_NobodyLeft):
        reader.read(
            [ids for one in calls for ids in one.sequences],
            calls[0].heads,
            consume,
            queries=[rows for one in calls for rows in one.rows],
            weighting=calls[0].weighting,
            before_layer=before_layer,
        )


class _NobodyLeft(Exception):  # noqa: N818 - not an error: it ends the pass
    """Every call has failed, or nobody waits for it."""
