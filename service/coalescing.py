"""Short reads of several requests in one pass over the model.

A pass over a dozen tokens takes little longer than getting the weights out of memory, so that a few texts more cost
less than a pass of their own. Only waiting requests are joined, nobody is kept waiting for company; and only those of
the same kind that want the same heads in the same way, so that nobody waits for another's layers or for what another
makes of its rows. Answers differ by rounding only, as those of a batch do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attention_core.capture import AttentionReader, Rows, Weighting

MOST_PADDING = 1.25  # padded tokens over real ones: padding costs as much as text


@dataclass(slots=True, eq=False)
class ReadCall:
    """The arguments of one request's `AttentionReader.read`, and how it fared.

    `kind` is what is asked: what is done with the rows takes about as long for all of a kind.
    """

    sequences: Sequence[Sequence[int]]
    heads: Mapping[int, Sequence[int]]
    consume: Callable[[Rows], None]
    queries: Sequence[Sequence[int]] | None = None
    weighting: Weighting = "attention"
    kind: str = ""
    error: BaseException | None = None

    @property
    def rows(self) -> list[Sequence[int]]:
        """The queries of each text."""
        return [range(len(ids)) for ids in self.sequences] if self.queries is None else list(self.queries)

    @property
    def lengths(self) -> list[int]:
        """How far each text is run: to the last row asked for."""
        return [max(of_text, default=0) + 1 for of_text in self.rows]


def go_together(calls: Sequence[ReadCall], most_tokens: int) -> bool:
    """Whether these may be read in one pass, of at most so many tokens with padding."""
    first, *others = calls
    lengths = [length for one in calls for length in one.lengths]
    padded = len(lengths) * max(lengths, default=0)
    return padded <= min(most_tokens, MOST_PADDING * sum(lengths)) and all(
        (one.kind, one.weighting, one.heads) == (first.kind, first.weighting, first.heads) for one in others
    )


def read_together(
    reader: AttentionReader, calls: Sequence[ReadCall], checks: Sequence[Callable[[int], None]]
) -> None:
    """Read all of them in one pass, each with its own consumer.

    `checks` are called before each layer, one for each call. A call whose check or consumer raises has its
    `error` set and gets no more rows, while the others go on; when none is left, the pass ends. What the model itself
    raises is raised here.
    """
    owners = [(one, place) for one in calls for place in range(len(one.sequences))]

    def attempt(one: ReadCall, step: Callable[..., None], *arguments: object) -> None:
        if one.error is None:
            try:
                step(*arguments)
            except BaseException as error:  # whatever it is, it is this call's alone
                one.error = error

    def before_layer(layer: int) -> None:
        for one, check in zip(calls, checks, strict=True):
            attempt(one, check, layer)
        if all(one.error is not None for one in calls):
            raise _NobodyLeft

    def consume(rows: Rows) -> None:
        one, place = owners[rows.text]
        attempt(one, one.consume, replace(rows, text=place))

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
