"""How often is a head right?"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from service.schemas.coreference import EvaluateRequest, EvaluationOptions, LinesRequest, UnreadLine

log = logging.getLogger(__name__)

ONE_JUDGE = [(0, 0)]  # in the place of heads, where the model itself is judged
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
    silent = 0
    if request.method == "substitution":
        answers = expectations(session, asked, done=lambda items: _log_progress(items, len(asked)))
        predictions = np.array([[NO_CHOICE if one.predicted is None else one.predicted] for one in answers])
        heads, silent = ONE_JUDGE, sum(one.no_continuation for one in answers)
    else:
        predictions = _predictions(session, asked, chosen, heads)
    judged = report(request, items, heads, predictions, silent=silent)
    return {
        "model": session.model.provenance,
        "n": len(found) + len(_unread(request)),
        "skipped": _skipped(request, found),
        **judged,
        "request": _options(request),
    }


def report(
    options: EvaluationOptions,
    items: Iterable[Item],
    heads: Sequence[tuple[int, int]],
    predictions: NDArray[np.integer[Any]],
    *,
    silent: int = 0,
) -> dict[str, object]:
    """What an answer says of the items that can be scored, from what each head chose, [item, head].

    With `method: substitution` the one column is what the model expects, and in `silent` items there is nothing to
    expect. Raises `incompatible_options` for a split that the items do not allow.
    """
    try:
        result = evaluate(items, heads, predictions, split=_split(options), rank_by=options.rank_by)
    except EvaluationError as error:
        raise _impossible_split(error) from None
    if options.method == "substitution":
        result = _of_expectations(result, silent)
    parts = {name: asdict(part) for name, part in result.parts.items()}
    judged: dict[str, object] = {
        "scored": result.scored,
        "baselines": parts["all"],
        "ceiling": result.parts["all"].ceiling,
        "parts": parts,
        "warnings": [asdict(note) for note in result.warnings],
    }
    if options.method == "substitution":
        expected = _without_empty_sides(asdict(result.heads[0]))
        return judged | {
            "heads": [],
            "best": None,
            "chance_of_best": None,
            "substitution": {name: one for name, one in expected.items() if name not in ("layer", "head")},
        }
    return judged | {
        "heads": [_without_empty_sides(asdict(one)) for one in result.heads[: options.top]],
        "best": None if result.best is None else _without_empty_sides(asdict(result.best)),
        "chance_of_best": None if result.chance_of_best is None else asdict(result.chance_of_best),
        "grid": _grid(result),
    }


def _of_expectations(result: Evaluation, silent: int) -> Evaluation:
    """Without what bounds or explains a head's row, which says nothing of what the model expects."""
    said = [note for note in result.warnings if note.code in WHATEVER_THE_METHOD]
    if silent:
        message = f"in {silent} items nothing follows the pronoun, so there is nothing to expect: all wrong"
        said.append(Note("no_continuation", message))
    parts = {name: replace(part, ceiling=None) for name, part in result.parts.items()}
    return replace(result, parts=parts, warnings=tuple(said))


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


def _split(options: EvaluationOptions) -> Split | None:
    return None if options.split is None else Split(options.split.test_fraction, options.split.seed)


def _check_split(options: EvaluationOptions, items: Sequence[Item]) -> None:
    """Refuse a split that the items do not allow before the model runs."""
    try:
        check_split(items, _split(options))
    except EvaluationError as error:
        raise _impossible_split(error) from None


def _impossible_split(error: EvaluationError) -> InvalidRequestError:
    return InvalidRequestError.at("/split", "incompatible_options", f"{sentence(error)} Send null.")


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
