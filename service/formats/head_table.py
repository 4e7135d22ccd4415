"""Head scores as a table: a row a head."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

from service.formats import json

CSV_MEDIA_TYPE = "text/csv"  # sent with charset=utf-8


def rows(payload: Mapping[str, object]) -> list[dict[str, object]]:
    """Flat records, one a head, all with the same members, which a dashboard reads without configuration.

    A score stands under its name, what belongs to it under `<name>_baseline`, `<name>_status` and so on; an interval
    has `_low` and `_high`; `<name>_texts` counts the texts that agree on the label. Several labels are joined by `;`.
    The model that gave the answer stands in every record, so that tables of several can be put together.
    """
    model = cast(Mapping[str, Any], payload["model"])
    weights = {f"model_{name}": value for name, value in model.items() if name != "versions"}
    weights |= {f"version_{name}": value for name, value in model["versions"].items()}
    return [{**_record(head), **weights} for head in cast(Sequence[Mapping[str, Any]], payload["heads"])]


def _record(head: Mapping[str, Any]) -> dict[str, object]:
    record = {name: head[name] for name in ("layer", "head", "kv_head")}
    record |= {name: ";".join(head[name]) for name in ("labels", "borderline")}
    record["entropy"] = head["entropy"]
    for name, score in head["scores"].items():
        for member, value in score.items():
            if member == "ci95":
                low, high = value or (None, None)
                record |= {f"{name}_ci95_low": low, f"{name}_ci95_high": high}
            else:
                record[name if member == "score" else f"{name}_{member}"] = value
        if name in head.get("texts_agreeing", ()):
            record[f"{name}_texts"] = head["texts_agreeing"][name]
    return record


def csv(payload: Mapping[str, object]) -> bytes:
    """`rows` as CSV (RFC 4180, UTF-8), with a header; where there is no number the cell is empty."""
    records = rows(payload)
    json.check_finite(records)
    buffer = io.StringIO(newline="")
    writer = csv_module.DictWriter(buffer, list(records[0]))
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue().encode()
