"""How a parameter of a URL, a flag of a command or a cell of a table says what JSON says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

# How a URL says it. Lists are a,b,c; numbers are name:number,name:number; a span is its text, or start..end; heads are
# L5H5,L8H7, or all; a flag is true or false
Kind = Literal["text", "flag", "number", "integer", "integers", "texts", "numbers", "span", "spans", "heads"]

# What a URL and a flag of a command can say of each question, beside the texts
ATTENTION: Mapping[str, Kind] = {
    "layers": "integers",
    "heads": "integers",
    "unit": "text",
    "aggregate": "text",
    "first_token": "text",
    "weighting": "text",
    "queries": "integers",
    "top_k": "integer",
    "special_tokens": "text",
}
HEADS: Mapping[str, Kind] = {
    "layers": "integers",
    "heads": "integers",
    "labels": "texts",
    "thresholds": "numbers",
    "special_tokens": "text",
}
SCORING: Mapping[str, Kind] = {
    "heads": "heads",
    "method": "text",
    "aggregate": "text",
    "query": "text",
    "normalize": "text",
    "first_token": "text",
}
JUDGING: Mapping[str, Kind] = {"split": "numbers", "rank_by": "text", "top": "integer"}


def value_of(given: str, kind: Kind) -> object:
    """What a parameter says; what is not of its kind is left as it is, for the model to refuse."""
    match kind:
        case "text":
            return given
        case "texts":
            return given.split(",")
        case "span":
            return _span(given)
        case "spans":
            return [_span(part) for part in given.split(",")]
        case "heads":
            found = [re.fullmatch(r"L(\d{1,9})H(\d{1,9})", part, re.ASCII) for part in given.split(",")]
            return given if None in found else [(int(one[1]), int(one[2])) for one in found if one]
        case "numbers":
            if given == "none":
                return None
            pairs = [part.rpartition(":") for part in given.split(",")]
            if len({name for name, _, _ in pairs}) < len(pairs) or not all(colon for _, colon, _ in pairs):
                return given
            return {name: _number(value) for name, _, value in pairs}
        case "flag":
            return {"true": True, "false": False}.get(given, given)
        case "number":
            return _number(given)
        case "integer" | "integers":
            parts = [_integer(part) for part in given.split(",")]
            return parts if kind == "integers" or len(parts) > 1 else parts[0]


def _span(given: str) -> dict[str, object]:
    offsets = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", given, re.ASCII)
    return {"start": int(offsets[1]), "end": int(offsets[2])} if offsets else {"text": given}


def _integer(given: str) -> int | str:
    return int(given) if re.fullmatch(r"-?\d{1,19}", given, re.ASCII) else given


def _number(given: str) -> float | str:
    whole = _integer(given)
    if isinstance(whole, int):
        return whole
    plain = r"-?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})([eE]-?\d{1,3})?"
    return float(given) if re.fullmatch(plain, given, re.ASCII) else given
