"""What kind of head is each?"""

from __future__ import annotations

from dataclasses import asdict

from attention_core.capture import Rows
from attention_core.heads import (
    LABELS,
    HeadScorer,
    LabelError,
    definitions,
    label,
    summarise,
    text_facts,
    thresholds_of,
)
from service.engine import Session
from service.errors import InvalidRequestError, pointer_of
from service.jobs.common import all_or_raise, choose, tokenize
from service.schemas.heads import HeadsRequest


def classify(request: HeadsRequest, session: Session) -> dict[str, object]:
    """Scores and labels of the chosen heads; a layer's maps are scored as they stream past, and let go."""
    try:
        thresholds = thresholds_of(thresholds=request.thresholds, labels=request.labels)
    except LabelError as error:
        if error.name in request.thresholds:
            place: list[str | int] = ["thresholds", error.name]
        else:
            place = ["labels", (request.labels or []).index(error.name)]
        detail = f"Must be one of {', '.join(LABELS)}."
        raise InvalidRequestError.at(pointer_of(place), error.code, detail) from None
    (text,) = all_or_raise(tokenize(session, request.inputs))
    heads = choose(session, request.layers, request.heads)
    scorer = HeadScorer(text_facts(text.ids, [token.text for token in text.tokens]), heads)

    def add(rows: Rows) -> None:
        scorer.add(rows.layer, rows.heads, rows.queries, rows.weights)

    session.read([text.ids], heads, add)
    results = scorer.finish()
    labelled = label(results, thresholds=request.thresholds, labels=request.labels)
    warnings = []
    if any(score.status == "too_short" for score in results[0].scores.values()):
        message = f"the text has {len(text)} tokens: too few for some scores, which carry no label"
        warnings.append({"code": "too_short", "message": message})
    reader = session.model.reader
    return {
        "model": session.model.provenance,
        "summary": {
            "heads": len(results),
            "labels": {name: asdict(count) for name, count in summarise(labelled, thresholds).items()},
        },
        "heads": [
            {
                "layer": result.layer,
                "head": result.head,
                "kv_head": reader.kv_head(result.head),
                "labels": list(names),
                "scores": {name: asdict(score) for name, score in result.scores.items()},
                "entropy": result.entropy,
            }
            for result, names in zip(results, labelled, strict=True)
        ],
        "definitions": {name: asdict(one) for name, one in definitions(request.thresholds).items()},
        "warnings": warnings,
    }
