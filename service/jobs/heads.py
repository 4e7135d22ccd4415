"""What kind of head is each?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from attention_core.errors import ShapeError
from attention_core.heads import (
    PROBE_RULES,
    SCORES,
    SHORTEST,
    HeadResult,
    LabelError,
    Probe,
    ScoreRule,
    borderline,
    definitions,
    label,
    mae_similarities,
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
from service.errors import InvalidRequestError
from service.jobs.common import all_or_raise, choose, members, sentence, texts_of, tokenize
from service.schemas.heads import HeadsRequest
from service.texts import TokenizedText


def classify(request: HeadsRequest, session: Session) -> dict[str, object]:
    """Scores and labels of the chosen heads; a layer's maps are scored as they stream past, and let go."""
    limits = _limits(request)
    thresholds = thresholds_of(thresholds=request.thresholds)  # of every label, given or not
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
        head_results = pool(results, limits)
    if probe is not None:
        sequences = [text_facts(sequence) for sequence in probe.sequences]
        drawn = score_heads(session.read, sequences, heads, rules=PROBE_RULES)
        head_results = with_probe(head_results, pool(drawn, limits))

    labelled, near = label(head_results, limits), borderline(head_results, limits)
    answer: dict[str, object] = {
        "model": session.model.provenance,
        "summary": {
            "heads": len(head_results),
            "labels": {
                name: {**asdict(count), "top": _top(head_results, name)}
                for name, count in summarise(labelled, limits).items()
            },
        },
        "heads": [
            {
                "kv_head": session.model.reader.kv_head(result.head),
                **_head(result, similarity),
                "labels": list(names),
                "borderline": list(undecided),
            }
            for result, similarity, names, undecided in zip(
                head_results, _similarities(head_results, request), labelled, near, strict=True
            )
        ],
        "definitions": {name: asdict(one) for name, one in definitions(thresholds, rules=rules).items()},
        "warnings": _warnings(
            {place: one for place, one in enumerate(found) if isinstance(one, TokenizedText)},
            results,
            [name for name in limits if probe is None or name not in PROBE_RULES],
        ),
        "request": {
            **request.model_dump(mode="json", exclude_none=True),
            "thresholds": thresholds,
        },
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


def _limits(request: HeadsRequest) -> dict[str, float]:
    try:
        return thresholds_of(thresholds=request.thresholds, labels=request.labels)
    except LabelError as error:  # a label without a threshold; all else the schema has refused
        pointer = f"/labels/{(request.labels or []).index(error.name)}"
        raise InvalidRequestError.at(pointer, error.code, sentence(error)) from None


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


def _similarities(results: Sequence[HeadResult], request: HeadsRequest) -> Sequence[float | None]:
    if request.pattern is None:
        return [None] * len(results)
    return mae_similarities([one.scores["custom"] for one in results], request.pattern)


def _head(result: HeadResult, similarity: float | None) -> dict[str, object]:
    scores = {name: members(score) for name, score in result.scores.items()}
    if "custom" in scores:
        scores["custom"]["mae_similarity"] = similarity
    return {**members(result), "scores": scores}


def _top(results: Sequence[HeadResult], name: str) -> list[dict[str, object]]:
    return [
        {"layer": one.layer, "head": one.head, "score": one.scores[name].score}
        for one in strongest(results, name)
    ]


def _warnings(
    texts: Mapping[int, TokenizedText], results: Sequence[Sequence[HeadResult]], names: Collection[str]
) -> list[dict[str, str]]:
    """Why labels of these names cannot be given: it lies in the texts, so that one head tells it of all.

    `texts` have their places in the request.
    """
    short = [place for place, text in texts.items() if len(text) < SHORTEST]
    messages = []
    if short:
        which = ", ".join(map(str, short[:10])) + (", …" if len(short) > 10 else "")
        which = f"text {which} has" if len(short) == 1 else f"texts {which} have"
        messages.append(f"{which} fewer than {SHORTEST} tokens, and so no score that counts")
    long_enough = [
        of_text[0].scores
        for of_text, text in zip(results, texts.values(), strict=True)
        if len(text) >= SHORTEST
    ]
    for name in names:
        found = [scores[name] for scores in long_enough]
        if any(score.status == "too_short" for score in found) and all(
            score.status != "ok" for score in found
        ):
            rows = max(score.rows for score in found)
            needed = SCORES[name].min_rows
            messages.append(
                f"{name} has {rows} row{'s' * (rows != 1)} to score and needs {needed}, so it gives no label"
            )
    return [{"code": "too_short", "message": message} for message in messages]
