"""Which noun does the pronoun attend to?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from attention_core.capture import Rows
from attention_core.coreference import CoreferenceError, HeadAnswer, Question, ask, notes, score
from attention_core.spans import Span, SpanError, resolve_span
from service.engine import Session
from service.errors import FieldError, InvalidRequestError
from service.jobs.common import all_or_raise, check_elements, sentence, tokenize
from service.schemas.attention import Input
from service.schemas.common import SpanRequest
from service.schemas.coreference import CoreferenceRequest, Item
from service.texts import TokenizedText

ARTICLE_HEADS = [(5, 5)]  # the pronoun head of the article; a number of the 24 x 14 models only
ARTICLE_SHAPE = (24, 14)


def attend(request: CoreferenceRequest, session: Session) -> dict[str, object]:
    """The chosen heads' attention from each item's pronoun to its candidates; one row per head is read."""
    items = request.inputs
    heads = _choose(request, session)
    texts = all_or_raise(tokenize(session, [Input(f"{pointer}/text", item.text) for pointer, item in items]))
    chosen = sum(map(len, heads.values()))
    check_elements(
        chosen * sum(len(item.candidates) for _, item in items),
        session.max_elements,
        f"{chosen} heads for every candidate",
        "fewer heads, candidates or items",
    )
    questions = [_question(pointer, item, text) for (pointer, item), text in zip(items, texts, strict=True)]
    answers: list[list[HeadAnswer]] = [[] for _ in items]

    def add(rows: Rows) -> None:
        answers[rows.text] += score(questions[rows.text], rows.layer, rows.heads, rows.weights)

    session.read(
        [text.ids for text in texts], heads, add, queries=[question.queries for question in questions]
    )
    return {
        "model": session.model.provenance,
        "results": [
            _result(text, question, answers_of_text)
            for text, question, answers_of_text in zip(texts, questions, answers, strict=True)
        ],
    }


def _choose(request: CoreferenceRequest, session: Session) -> Mapping[int, list[int]]:
    reader = session.model.reader
    if request.heads == "all":
        return {layer: list(range(reader.heads)) for layer in range(reader.layers)}
    pairs = request.heads
    if pairs is None:
        if (reader.layers, reader.heads) != ARTICLE_SHAPE:
            detail = f"Required on this model of {reader.layers} layers and {reader.heads} heads."
            raise InvalidRequestError.at("/heads", "missing_field", detail)
        pairs = ARTICLE_HEADS
    faults = [
        FieldError(
            f"/heads/{place}/{position}", f"{kind}_out_of_range", f"The model's {kind}s are 0 to {size - 1}."
        )
        for place, pair in enumerate(pairs)
        for position, (kind, size) in enumerate((("layer", reader.layers), ("head", reader.heads)))
        if pair[position] >= size
    ]
    if faults:
        raise InvalidRequestError(faults[0].detail, errors=faults)
    chosen: dict[int, list[int]] = {}
    for layer, head in sorted(set(pairs)):
        chosen.setdefault(layer, []).append(head)
    return chosen


def _question(pointer: str, item: Item, text: TokenizedText) -> Question:
    pronoun = _resolve(f"{pointer}/pronoun", item.pronoun, text)
    candidates = [
        _resolve(f"{pointer}/candidates/{index}", candidate, text)
        for index, candidate in enumerate(item.candidates)
    ]
    try:
        return ask(item.text, text.tokens, pronoun, candidates, gold=item.gold)
    except CoreferenceError as error:
        place = "/gold" if error.code == "gold_out_of_range" else "/candidates"
        if error.index is not None:
            place += f"/{error.index}"
        raise InvalidRequestError.at(f"{pointer}{place}", error.code, sentence(error)) from None


def _resolve(pointer: str, span: SpanRequest, text: TokenizedText) -> Span:
    try:
        return resolve_span(
            text.text,
            text.tokens,
            start=span.start,
            end=span.end,
            span_text=span.text,
            occurrence=span.occurrence,
        )
    except SpanError as error:
        raise InvalidRequestError.at(pointer, error.code, sentence(error)) from None


def _result(text: TokenizedText, question: Question, answers: list[HeadAnswer]) -> dict[str, object]:
    heads = [asdict(answer) for answer in answers]
    if question.gold is None:
        for head in heads:
            del head["correct"]
    return {
        "tokens": [asdict(token) for token in text.tokens],
        "pronoun": asdict(question.pronoun),
        "candidates": [asdict(candidate) for candidate in question.candidates],
        "heads": heads,
        "baselines": asdict(question.baselines),
        "warnings": [asdict(note) for note in notes(question, answers)],
    }
