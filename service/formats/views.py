"""What every renderer reads out of an answer of /v1/attention: labels, row positions, maps as arrays."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson


@dataclass(frozen=True, slots=True)
class View:
    """One map: a head's, or an aggregate over heads. `weights` is [query, key], NaN where there is no value."""

    layer: int | None
    head: int | None
    aggregate: str | None
    weights: npt.NDArray[np.float32]
    top: bool  # only each row's highest weights were sent

    @property
    def title(self) -> str:
        """`L5H5`, or the aggregate's name."""
        return self.aggregate or f"L{self.layer}H{self.head}"


@dataclass(frozen=True, slots=True)
class TextView:
    """One text: the labels of its tokens or words, which of them are rows, and its maps."""

    index: int  # in `results`
    labels: Sequence[str]  # [key]
    queries: npt.NDArray[np.int64]  # [query], indices of labels
    maps: Sequence[View]

    @property
    def future(self) -> npt.NDArray[np.bool_]:
        """[query, key], True where the key lies after the query."""
        return np.arange(len(self.labels)) > self.queries[:, None]


def text_views(payload: Mapping[str, object]) -> Iterator[TextView]:
    """Each text that has maps; one that was skipped (`on_error`) has none.

    Rows given as `top` become arrays with NaN wherever a key is not among the top. Raises ValueError for a
    number that is not finite, other than NaN for a future key: that is a fault of ours, never data.
    """
    for index, result in enumerate(cast(Sequence[Mapping[str, Any]], payload["results"])):
        if "error" in result:
            continue
        labels = [one["text"] for one in result["words" if result["unit"] == "word" else "tokens"]]
        queries = np.asarray(result.get("queries", range(len(labels))), dtype=np.int64)
        future = np.arange(len(labels)) > queries[:, None]
        maps = [_view(one, future) for one in result["maps"]]
        yield TextView(index, labels, queries, maps)


def _view(one: Mapping[str, Any], future: npt.NDArray[np.bool_]) -> View:
    top = "top" in one
    if top:
        weights = np.full(future.shape, np.nan, dtype=np.float32)
        for row, cells in zip(weights, one["top"], strict=True):
            for cell in cells:
                row[cell["key"]] = cell["weight"]
    else:
        weights = np.asarray(one["weights"], dtype=np.float32)
        missing = ~np.isfinite(weights)
        if missing.any() and (np.isinf(weights).any() or (missing & ~future).any()):
            raise ValueError("an answer holds numbers that are not finite")
    return View(one.get("layer"), one.get("head"), one.get("aggregate"), weights, top)


def digits(weights: npt.NDArray[np.float32]) -> bytes:
    """An array as JSON, in the shortest digits that are the same float32 again; NaN as null.

    Python's own float would show 0.869 as 0.8690000176429749.
    """
    return orjson.dumps(np.ascontiguousarray(weights), option=orjson.OPT_SERIALIZE_NUMPY)


_SYMBOLS = {"\n": "↵", "\r": "␍", "\t": "⇥", " ": "␣"}
_JOINERS = "\u200c\u200d"  # part of how Persian words and joined emoji are written
_BLANKS = "\u034f\u115f\u1160\u2800\u3164\uffa0"  # letters, a mark and a symbol that show nothing, and are no spaces


def visible(label: str) -> str:
    """A label that can be seen: line ends, tabs and controls as symbols, blanks too where there is nothing else.

    What hides, or turns the text around it (bidirectional controls), becomes its code point, `U+202E`.
    """
    if all(character.isspace() or character in _JOINERS + _BLANKS for character in label):
        return "".join(_SYMBOLS.get(character) or code_point(character) for character in label)
    # What a mark without its letter sits on
    circle = "◌" if unicodedata.category(label[0]).startswith("M") else ""
    return circle + "".join(_shown(character) for character in label)


def _shown(character: str) -> str:
    if character in "\n\r\t":
        return _SYMBOLS[character]
    category = unicodedata.category(character)
    hidden = category.startswith("C") or category in {"Zl", "Zp"}
    return code_point(character) if hidden and character not in _JOINERS else character


def code_point(character: str) -> str:
    """`U+1F600`."""
    return f"U+{ord(character):04X}"
