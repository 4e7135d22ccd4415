"""The formats of a coreference answer, and of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from service.formats import page
from service.formats.negotiation import SPREADSHEET, Format, Payload, table_formats
from service.formats.records import flat, of_model

PARAMETERS = (SPREADSHEET,)


def rows(payload: Payload) -> list[dict[str, object]]:
    """Flat records, one a candidate of a head of an item; an item that was skipped has none.

    What the head as a whole chose stands in each of its candidates' records. With `method: substitution` layer and head
    are null.
    """
    model = of_model(payload)
    results = cast(Sequence[Mapping[str, Any]], payload["results"])
    return [
        {"item": index, **record, **model}
        for index, result in enumerate(results)
        if "error" not in result
        for record in _records(result)
    ]


def _records(result: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    judges = result["heads"] or [result["substitution"]]
    for judge in judges:
        rest = {name: value for name, value in judge.items() if name not in ("layer", "head", "scores")}
        rest.setdefault("correct", None)
        for candidate, score in zip(result["candidates"], judge["scores"], strict=True):
            yield {
                "layer": judge.get("layer"),
                "head": judge.get("head"),
                "pronoun": result["pronoun"]["text"],
                "candidate": candidate["index"],
                "candidate_text": candidate["text"],
                "start": candidate["start"],
                "end": candidate["end"],
                "visible": candidate["visible"],
                "score": score,
                **rest,
                "first": result["baselines"]["first"],
                "nearest": result["baselines"]["nearest"],
            }


FORMATS = (*table_formats(rows, "coreference.csv"),)


def judged(payload: Payload) -> list[dict[str, object]]:
    """Flat records, one a head, best first: what is measured on each part of the items under `<part>_<what>`."""
    model = of_model(payload)
    judges = cast(Sequence[Mapping[str, Any]], payload["heads"] or [payload["substitution"]])
    return [{"layer": None, "head": None, **flat(judge), **model} for judge in judges]


EVALUATION_FORMATS = (
    *table_formats(judged, "evaluation.csv"),
    Format(
        "html",
        page.MEDIA_TYPE,
        lambda payload, _: page.evaluation_page(payload),
        charset=True,
        content_security_policy=page.CONTENT_SECURITY_POLICY,
    ),
)
