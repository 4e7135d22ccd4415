"""Flat records: what a dashboard reads without configuration, and CSV."""

from __future__ import annotations

import csv as csv_module
import io
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, cast

from service.formats import json

CSV_MEDIA_TYPE = "text/csv"  # sent with charset=utf-8


def flat(record: Mapping[str, Any]) -> dict[str, object]:
    """A record without objects and lists in it: `{"dev": {"n": 3}}` becomes `dev_n`.

    An interval `ci95` has `_low` and `_high`; several words are joined by `;`.
    """
    found: dict[str, object] = {}
    for name, value in record.items():
        if name == "ci95":
            found["ci95_low"], found["ci95_high"] = value or (None, None)
        elif isinstance(value, Mapping):
            found |= {f"{name}_{member}": one for member, one in flat(value).items()}
        else:
            found[name] = ";".join(map(str, value)) if isinstance(value, list | tuple) else value
    return found


def of_model(payload: Mapping[str, object]) -> dict[str, object]:
    """The model that gave an answer, as members of a record: tables of several models can be put together."""
    model = cast(Mapping[str, Any], payload["model"])
    named = {f"model_{name}": value for name, value in model.items() if name != "versions"}
    return named | {f"version_{name}": value for name, value in model["versions"].items()}


def csv(records: Sequence[Mapping[str, object]], *, spreadsheet: bool = False) -> bytes:
    """Records that all have the same members, as CSV (RFC 4180, UTF-8) with a header.

    Where there is no number the cell is empty. With `spreadsheet`, a text that a spreadsheet would run as a formula
    gets an apostrophe before it. Raises ValueError for a number that is not finite.
    """
    json.check_finite(records)
    buffer = io.StringIO(newline="")
    writer = csv_module.DictWriter(buffer, list(records[0]) if records else [])
    writer.writeheader()
    for record in records:
        cells = {
            name: defused(cell) if spreadsheet and isinstance(cell, str) else cell
            for name, cell in record.items()
        }
        writer.writerow(cells)
    return buffer.getvalue().encode()


def defused(text: str) -> str:
    """The text, with an apostrophe before it where a spreadsheet would take it for a formula.

    Spreadsheets skip leading whitespace and invisible characters, and read fullwidth forms as ASCII; some
    also start a new cell at a leading tab or line end.
    """
    start = next(
        (char for char in unicodedata.normalize("NFKC", text) if not char.isspace() and not _invisible(char)),
        "",
    )
    return f"'{text}" if text.startswith(("\t", "\r", "\n")) or start in {"=", "+", "-", "@"} else text


def _invisible(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cf"}
