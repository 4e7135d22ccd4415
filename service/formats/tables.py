"""Maps as tables: flat records, and CSV in long form."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Iterator, Mapping

import orjson

from service.formats.records import defused
from service.formats.views import TextView, View, digits, text_views

CSV_MEDIA_TYPE = "text/csv"  # sent with charset=utf-8
ROWS_MEDIA_TYPE = "application/json"

COLUMNS = ("layer", "head", "query_pos", "query_token", "key_pos", "key_token", "weight")


def rows(payload: Mapping[str, object]) -> list[dict[str, object]]:
    """Flat records, one a weight, which a dashboard reads without configuration.

    Keys after the query have no record: a causal model cannot look there. `layer` and `head` are null for an
    aggregate, `aggregate` is null for a head. With `top_k` only the weights that were sent are there. Weights
    are the JSON answer's.
    """
    return [record for records in _records(payload) for record in records]


def rows_json(payload: Mapping[str, object]) -> bytes:
    """`rows` as JSON, written map by map, so that a million records never exist at once."""
    return b"[%b]" % b",".join(orjson.dumps(records)[1:-1] for records in _records(payload) if records)


def _records(payload: Mapping[str, object]) -> Iterator[list[dict[str, object]]]:
    """The records of each map."""
    for text in text_views(payload):
        labels, queries = text.labels, text.queries.tolist()
        for view in text.maps:
            yield [
                {
                    "text_index": text.index,
                    "layer": view.layer,
                    "head": view.head,
                    "aggregate": view.aggregate,
                    "query_pos": query,
                    "query_token": labels[query],
                    "key_pos": key,
                    "key_token": label,
                    "weight": weight,
                }
                for query, row in zip(queries, orjson.loads(digits(view.weights)), strict=True)
                for key, (label, weight) in enumerate(zip(labels[: query + 1], row, strict=False))
                if weight is not None
            ]


def csv(payload: Mapping[str, object], *, spreadsheet: bool = False) -> bytes:
    """CSV (RFC 4180, UTF-8): a header, then one row a weight, future keys too, as in the JSON answer.

    Where an answer has no number the cell is empty; with `top_k` only the weights that were sent have a row.
    A column `aggregate` follows where there are aggregates, and `text_index` where there are several texts.
    With `spreadsheet`, a token that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    texts = list(text_views(payload))
    aggregates = any(view.aggregate for text in texts for view in text.maps)
    several = len(payload["results"]) > 1  # type: ignore[arg-type]
    lines = [_line(*COLUMNS, *["aggregate"] * aggregates, *["text_index"] * several) + "\r\n"]
    for text in texts:
        # A label is quoted once, not once a weight: 2,000,000 rows take a third of the time
        cells = [_line(defused(label) if spreadsheet else label) for label in text.labels]
        for view in text.maps:
            end = "".join(
                f",{cell}"
                for cell, present in ((view.aggregate or "", aggregates), (str(text.index), several))
                if present
            )
            lines += _lines(text, view, cells, end + "\r\n")
    return "".join(lines).encode()


def _lines(text: TextView, view: View, cells: list[str], end: str) -> Iterator[str]:
    """A map's lines, one string a query."""
    head = f"{_empty_if_none(view.layer)},{_empty_if_none(view.head)},"
    keys = [f"{key},{cell}," for key, cell in enumerate(cells)]
    for query, row in zip(text.queries.tolist(), view.weights, strict=True):
        start = f"{head}{query},{cells[query]},"
        weights = digits(row)[1:-1].decode().replace("null", "").split(",")
        yield "".join(
            [
                f"{start}{key}{weight}{end}"
                for key, weight in zip(keys, weights, strict=True)
                if weight or not view.top
            ]
        )


def _empty_if_none(index: int | None) -> str:
    return "" if index is None else str(index)


def _line(*cells: str) -> str:
    """Cells as one CSV line without its end."""
    buffer = io.StringIO(newline="")
    # The first, empty cell keeps the writer from quoting a line that is one empty cell
    csv_module.writer(buffer).writerow(["", *cells])
    return buffer.getvalue()[1:-2]
