"""How often is a head right?"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention_core.coreference import HeadAnswer, Note
from attention_core.evaluation import (
    NO_CHOICE,
    Evaluation,
    EvaluationError,
    HeadAccuracy,
    Item,
    Split,
    check_split,
    evaluate,
)
from service.engine import Session
from service.errors import MAX_ERRORS, FieldError, InvalidRequestError
from service.formats import json
from service.jobs.common import sentence
from service.jobs.coreference import (
    RUN_TOKENS,
    WHATEVER_THE_METHOD,
    Asked,
    choose_pairs,
    expectations,
    prepare,
    read,
)
from service.schemas.coreference import EvaluateRequest, LinesRequest, UnreadLine

log = logging.getLogger(__name__)

SIDES = ("dev", "test", "test_value")  # what is there only with a split


def judge(request: EvaluateRequest, session: Session) -> dict[str, object]:
    """Every chosen head on every item that can be scored; of the attention only each head's choice is kept."""
    chosen = choose_pairs(request.heads or "all", session)
    heads = [(layer, head) for layer, of_layer in chosen.items() for head in of_layer]
    limit = session.limits.max_tokens_per_evaluation
    found = prepare(request.inputs, request, session, at_most=limit)
    asked = [one for one in found if isinstance(one, Asked)]
    if not asked:
        raise InvalidRequestError.of(_faults(request, found))
    items = [
        Item(one.question, one.text.text, sent.group)
        for sent, one in zip(request.items, found, strict=True)
        if isinstance(one, Asked)
    ]
    _check_split(request, items)
    session.allow_tokens(sum(one.tokens for one in asked))
    if request.method == "substitution":
        return _judge_substitution(request, session, asked, found, items)
    predictions = _predictions(session, asked, chosen, heads)
    result = _evaluate(request, items, heads, predictions)
    return _answer(request, session, found, result) | {
        "heads": [_without_empty_sides(asdict(one)) for one in result.heads[: request.top]],
        "best": None if result.best is None else _without_empty_sides(asdict(result.best)),
        "chance_of_best": None if result.chance_of_best is None else asdict(result.chance_of_best),
        "grid": _grid(result),
    }


def _judge_substitution(
    request: EvaluateRequest,
    session: Session,
    asked: Sequence[Asked],
    found: Sequence[Asked | InvalidRequestError],
    items: Sequence[Item],
) -> dict[str, object]:
    """How often the model's expectation is right. What bounds or explains a head's row says nothing of it."""
    answers = expectations(session, asked, done=lambda items: _log_progress(items, len(asked)))
    chosen = [[NO_CHOICE if answer.predicted is None else answer.predicted] for answer in answers]
    result = _evaluate(request, items, [(0, 0)], np.array(chosen))
    said = [note for note in result.warnings if note.code in WHATEVER_THE_METHOD]
    if silent := sum(answer.no_continuation for answer in answers):
        message = f"in {silent} items nothing follows the pronoun, so there is nothing to expect: all wrong"
        said.append(Note("no_continuation", message))
    result = replace(
        result,
        parts={name: replace(part, ceiling=None) for name, part in result.parts.items()},
        warnings=tuple(said),
    )
    judged = _without_empty_sides(asdict(result.heads[0]))
    return _answer(request, session, found, result) | {
        "heads": [],
        "best": None,
        "chance_of_best": None,
        "substitution": {name: value for name, value in judged.items() if name not in ("layer", "head")},
    }


def _answer(
    request: EvaluateRequest,
    session: Session,
    found: Sequence[Asked | InvalidRequestError],
    result: Evaluation,
) -> dict[str, object]:
    """What an answer holds whatever the method."""
    parts = {name: asdict(part) for name, part in result.parts.items()}
    return {
        "model": session.model.provenance,
        "n": len(found) + len(_unread(request)),
        "scored": result.scored,
        "skipped": _skipped(request, found),
        "baselines": parts["all"],
        "ceiling": result.parts["all"].ceiling,
        "parts": parts,
        "warnings": [asdict(note) for note in result.warnings],
        "request": _options(request),
    }


def _predictions(
    session: Session,
    asked: Sequence[Asked],
    chosen: Mapping[int, Sequence[int]],
    heads: Sequence[tuple[int, int]],
) -> NDArray[np.int64]:
    """What each head chooses, [item, head]. Read in runs of texts, so that other requests get their turn between."""
    predictions = np.full((len(asked), len(heads)), NO_CHOICE)
    column = {head: place for place, head in enumerate(heads)}
    done = 0
    for run in _runs(asked):

        def add(_: int, item: int, answers: Sequence[HeadAnswer], run: Sequence[int] = run) -> None:
            for answer in answers:
                if answer.predicted is not None:
                    predictions[run[item], column[answer.layer, answer.head]] = answer.predicted

        read(session, [asked[place] for place in run], chosen, add)
        done += len(run)
        _log_progress(done, len(asked))
    return predictions


def _log_progress(done: int, items: int) -> None:
    log.info("evaluation", extra={"items_done": done, "items": items})


def _runs(asked: Sequence[Asked]) -> Iterator[list[int]]:
    """Items whose texts are of like length, together; those of one text stay together, so that it is read once."""
    order = sorted(range(len(asked)), key=lambda place: (len(asked[place].text), asked[place].text.text))
    run: list[int] = []
    texts = 0
    for place in order:
        if not run or asked[place].text.text != asked[run[-1]].text.text:
            if run and (texts + 1) * len(asked[place].text) > RUN_TOKENS:
                yield run
                run, texts = [], 0
            texts += 1
        run.append(place)
    yield run


def _evaluate(
    request: EvaluateRequest,
    items: Sequence[Item],
    heads: Sequence[tuple[int, int]],
    predictions: NDArray[np.int64],
) -> Evaluation:
    return evaluate(items, heads, predictions, split=_split(request), rank_by=request.rank_by)


def _split(request: EvaluateRequest) -> Split | None:
    return None if request.split is None else Split(request.split.test_fraction, request.split.seed)


def _check_split(request: EvaluateRequest, items: Sequence[Item]) -> None:
    """Refuse a split that the items do not allow before the model runs."""
    try:
        check_split(items, _split(request))
    except EvaluationError as error:
        raise InvalidRequestError.at(
            "/split", "incompatible_options", f"{sentence(error)} Send null."
        ) from None


def _unread(request: EvaluateRequest) -> list[UnreadLine]:
    return request.unread if isinstance(request, LinesRequest) else []


def _skipped(request: EvaluateRequest, found: Sequence[Asked | InvalidRequestError]) -> list[dict[str, Any]]:
    """Lines that could not be read, items that cannot be scored, and those with nothing to choose between, in order."""
    skipped: list[dict[str, Any]] = [line.model_dump(exclude_none=True) for line in _unread(request)]
    for place, (sent, one) in enumerate(zip(request.items, found, strict=True)):
        if isinstance(one, InvalidRequestError):
            fault = one.errors[0]
        elif len(one.question.candidates) == 1:
            detail = "With one candidate there is nothing to choose."
            fault = FieldError(f"/items/{place}", "single_candidate", detail)
        else:
            continue
        where: dict[str, Any] = {"pointer": fault.pointer}
        detail = fault.detail
        if isinstance(request, LinesRequest):  # the pointer's rest is what lies within the line
            inside = fault.pointer.removeprefix(f"/items/{place}")
            where, detail = {"line": request.lines[place]}, f"{inside}: {detail}" if inside else detail
        if sent.id is not None:
            where["id"] = sent.id
        skipped.append({**where, "code": fault.code, "detail": detail})
    return sorted(skipped, key=lambda one: one.get("line", 0))


def _faults(request: EvaluateRequest, found: Sequence[Asked | InvalidRequestError]) -> list[FieldError]:
    """Why no item at all can be scored."""
    return [
        FieldError(
            one.get("pointer", ""),
            one["code"],
            f"Line {one['line']}: {one['detail']}" if "line" in one else one["detail"],
        )
        for one in _skipped(request, found)[:MAX_ERRORS]
    ]


def _without_empty_sides(head: dict[str, object]) -> dict[str, object]:
    """Without `dev` and `test` where there is no split."""
    return {name: value for name, value in head.items() if value is not None or name not in SIDES}


def _grid(result: Evaluation) -> dict[str, object]:
    layers, heads = sorted({one.layer for one in result.heads}), sorted({one.head for one in result.heads})
    found: dict[tuple[int, int], HeadAccuracy] = {(one.layer, one.head): one for one in result.heads}

    def accuracy(layer: int, head: int) -> float | None:
        one = found.get((layer, head))
        return None if one is None else (one.test or one.all).accuracy

    return {
        "layers": layers,
        "heads": heads,
        "accuracy": [[accuracy(layer, head) for head in heads] for layer in layers],
    }


def _options(request: EvaluateRequest) -> dict[str, object]:
    options = request.model_dump(mode="json", exclude={"items", "lines", "unread"})
    items = json.dumps([item.model_dump(mode="json", exclude_none=True) for item in request.items])
    return {**options, "items_sha256": hashlib.sha256(items).hexdigest()}
