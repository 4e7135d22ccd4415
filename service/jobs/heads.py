"""What kind of head is each?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from attention_core.errors import ShapeError
from attention_core.heads import (
    LABELS,
    PROBE_RULES,
    SCORES,
    HeadResult,
    LabelError,
    Probe,
    ScoreRule,
    borderline,
    definitions,
    label,
    mae_similarity,
    pattern_rule,
    pool,
    repeat_probe,
    score_heads,
    strongest,
    summarise,
    text_facts,
    thresholds_of,
    with_probe,
)
from service.engine import Session
from service.errors import InvalidRequestError, pointer_of
from service.jobs.common import all_or_raise, choose, sentence, texts_of, tokenize
from service.schemas.heads import HeadsRequest
from service.texts import TokenizedText


def classify(request: HeadsRequest, session: Session) -> dict[str, object]:
    """Scores and labels of the chosen heads; a layer's maps are scored as they stream past, and let go."""
    thresholds = _thresholds(request)
    found = tokenize(session, request.inputs, parse_special=request.special_tokens == "parse")
    texts = texts_of(found)
    if request.on_error == "fail" or not texts:
        all_or_raise(found)
    heads = choose(session, request.layers, request.heads)
    rules = _rules(request, texts[0])
    probe = _probe(request, session)

    facts = [text_facts(text.ids, [token.text for token in text.tokens]) for text in texts]
    results = score_heads(session.read, facts, heads, rules=rules)
    head_results: Sequence[HeadResult] = results[0]
    pooled = request.texts is not None
    if pooled:
        head_results = pool(results, thresholds=request.thresholds, labels=request.labels)
    if probe is not None:
        sequences = [text_facts(sequence) for sequence in probe.sequences]
        drawn = score_heads(session.read, sequences, heads, rules=PROBE_RULES)
        names = [name for name in thresholds if name in PROBE_RULES]
        of_probe = {name: value for name, value in request.thresholds.items() if name in PROBE_RULES}
        head_results = with_probe(head_results, pool(drawn, thresholds=of_probe, labels=names))

    labelled = label(head_results, thresholds=request.thresholds, labels=request.labels)
    near = borderline(head_results, thresholds=request.thresholds, labels=request.labels)
    answer: dict[str, object] = {
        "model": session.model.provenance,
        "summary": {
            "heads": len(head_results),
            "labels": {
                name: {**asdict(count), "top": _top(head_results, name)}
                for name, count in summarise(labelled, thresholds).items()
            },
        },
        "heads": [
            {
                "kv_head": session.model.reader.kv_head(result.head),
                **_head(result, request),
                "labels": list(names),
                "borderline": list(undecided),
            }
            for result, names, undecided in zip(head_results, labelled, near, strict=True)
        ],
        "definitions": {
            name: asdict(one) for name, one in definitions(request.thresholds, rules=rules).items()
        },
        "warnings": _warnings(head_results, texts),
        "request": request.model_dump(mode="json", exclude_none=True),
    }
    if probe is not None:
        length = len(probe.sequences[0]) // 2
        answer["probe"] = {
            "seed": request.seed,
            "draws": len(probe.sequences),
            "length": length,
            "sha256": probe.sha256,
        }
    if request.on_error == "skip":
        answer["skipped"] = [asdict(one.errors[0]) for one in found if isinstance(one, InvalidRequestError)]
    return answer


def _thresholds(request: HeadsRequest) -> dict[str, float]:
    try:
        return thresholds_of(thresholds=request.thresholds, labels=request.labels)
    except LabelError as error:
        if error.name in request.thresholds:
            place: list[str | int] = ["thresholds", error.name]
        else:
            place = ["labels", (request.labels or []).index(error.name)]
        detail = f"Must be one of {', '.join(LABELS)}."
        raise InvalidRequestError.at(pointer_of(place), error.code, detail) from None


def _rules(request: HeadsRequest, text: TokenizedText) -> Mapping[str, ScoreRule]:
    if request.pattern is None:
        return SCORES
    try:
        rule = pattern_rule(request.pattern)
    except ShapeError as error:
        raise InvalidRequestError.at("/pattern", "out_of_range", sentence(error)) from None
    if len(request.pattern) != len(text):
        detail = f"The text has {len(text)} tokens; the pattern has {len(request.pattern)} rows."
        raise InvalidRequestError.at("/pattern", "out_of_range", detail)
    return {**SCORES, "custom": rule}


def _probe(request: HeadsRequest, session: Session) -> Probe | None:
    if request.probe == "none":
        return None
    special = session.model.tokenizer.special_ids
    try:
        return repeat_probe(
            session.model.reader.vocabulary, draws=request.draws, seed=request.seed, excluded=special
        )
    except ShapeError as error:
        detail = f"The model's vocabulary is too small to draw from: {error}."
        raise InvalidRequestError.at("/probe", "incompatible_options", detail) from None


def _head(result: HeadResult, request: HeadsRequest) -> dict[str, object]:
    described = asdict(result)
    custom = described["scores"].get("custom")
    if custom is not None and request.pattern is not None:
        custom["mae_similarity"] = mae_similarity(result.scores["custom"], request.pattern)
    return described


def _top(results: Sequence[HeadResult], name: str) -> list[dict[str, object]]:
    return [
        {"layer": one.layer, "head": one.head, "score": one.scores[name].score}
        for one in strongest(results, name)
    ]


def _warnings(results: Sequence[HeadResult], texts: Sequence[TokenizedText]) -> list[dict[str, str]]:
    if not any(score.status == "too_short" for score in results[0].scores.values()):
        return []
    count = len(texts[0])
    length = f"the text has {count} token{'s' * (count != 1)}" if len(texts) == 1 else "the texts are short"
    return [{"code": "too_short", "message": f"{length}: too few for some scores, which carry no label"}]
