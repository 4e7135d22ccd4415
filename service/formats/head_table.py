"""Head scores as a table: a row a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from service.formats.records import flat, of_model


def rows(payload: Mapping[str, object]) -> list[dict[str, object]]:
    """Flat records, one a head, all with the same members.

    A score stands under its name, what belongs to it under `<name>_baseline`, `<name>_status` and so on; an interval
    has `_low` and `_high`; `<name>_texts` counts the texts that agree on the label.
    """
    model = of_model(payload)
    return [{**_record(head), **model} for head in cast(Sequence[Mapping[str, Any]], payload["heads"])]


def _record(head: Mapping[str, Any]) -> dict[str, object]:
    names = ("layer", "head", "kv_head", "labels", "borderline", "entropy")
    record = flat({name: head[name] for name in names})
    for name, score in head["scores"].items():
        record[name] = score["score"]
        record |= {f"{name}_{member}": value for member, value in flat(score).items() if member != "score"}
        if name in head.get("texts_agreeing", ()):
            record[f"{name}_texts"] = head["texts_agreeing"][name]
    return record
