"""The formats of a KV cache's size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from service.formats import cache_chart, drawing
from service.formats.negotiation import (
    SPREADSHEET,
    WIDTH,
    Options,
    Parameter,
    Payload,
    picture_formats,
    table_formats,
)

SCALE = Parameter(
    "scale",
    "Of both axes of a picture.",
    choices={name: name for name in cache_chart.SCALES},
)
PARAMETERS = (WIDTH, SCALE, SPREADSHEET)


def rows(payload: Payload) -> list[dict[str, object]]:
    """Flat records, one for each of the tokens of each model, all with the same members."""
    return [record for model in _models(payload) for record in _records(model)]


def _models(payload: Payload) -> Iterator[Mapping[str, Any]]:
    yield payload
    others: Any = payload.get("models", ())
    yield from others


def _records(model: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    capacity = model.get("capacity")  # of the model asked about only
    many: Sequence[int | None] = capacity["max_sequences"] if capacity else [None] * len(model["sizes"])
    for size, sequences in zip(model["sizes"], many, strict=True):
        yield {
            "model": model["model"],
            "attention": model["attention"],
            "dtype": model["dtype"],
            "tokens": size["tokens"],
            "per_sequence_bytes": size["per_sequence_bytes"],
            "batch_bytes": size["batch_bytes"],
            "per_rank_bytes": size["per_rank_bytes"],
            "page_waste_bytes": size["page_waste_bytes"],
            "ideal_bytes": size["bounds"]["ideal"],
            "no_swa_bytes": size["bounds"]["no_swa"],
            "replication": size["replication"],
            "bytes_per_token": model["bytes_per_token"],
            "bytes_per_token_beyond_window": model["bytes_per_token_beyond_window"],
            "fixed_bytes_per_sequence": model["fixed_bytes_per_sequence"],
            "max_sequences": sequences,
        }


def _picture(payload: Payload, kind: drawing.Kind, options: Options) -> bytes:
    return cache_chart.chart(payload, kind, width=options.width, scale=options.scale)


FORMATS = (*table_formats(rows, "kv-cache.csv"), *picture_formats(_picture, dense=True))
