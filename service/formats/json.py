"""The one JSON serialiser: strict, and quick with arrays."""

from __future__ import annotations

import math

import numpy as np
import orjson

MEDIA_TYPE = "application/json"
ALWAYS_FINITE = frozenset((str, int, bool, type(None)))


def dumps(payload: object, *, nulls: bool = False, indent: bool = False) -> bytes:
    """UTF-8 JSON of dicts, lists, numbers and numpy arrays.

    With `nulls`, NaN in an array is written as null: the caller has seen to it that it stands only where there is no
    number. Raises ValueError for any other number that is not finite: orjson would write null, which reads like data.
    """
    check_finite(payload, nulls)
    return orjson.dumps(payload, option=orjson.OPT_SERIALIZE_NUMPY | (orjson.OPT_INDENT_2 if indent else 0))


def check_finite(value: object, nulls: bool = False) -> None:
    """Raise ValueError for a number that is not finite, anywhere in a payload; `nulls` as for `dumps`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("an answer holds a number that is not finite")
    elif isinstance(value, np.ndarray):
        if np.isinf(value).any() if nulls else not np.isfinite(value).all():
            raise ValueError("an answer holds an array with numbers that are not finite")
    elif isinstance(value, dict | list | tuple):
        members = value.values() if isinstance(value, dict) else value
        if ALWAYS_FINITE.issuperset(map(type, members)):  # most are: an answer has thousands, as its tokens
            return
        for member in members:
            check_finite(member, nulls)
