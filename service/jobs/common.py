"""Steps that several jobs share: limits on texts and tokens, the choice of heads, plain forms of core results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from attention_core.errors import OutOfRangeError
from attention_core.spans import Span, SpanError, resolve_span
from service.engine import Session
from service.errors import FieldError, InvalidRequestError, TooLargeError
from service.schemas.attention import Input
from service.schemas.common import SpanRequest
from service.texts import ChatTemplateError, TokenizedText

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def tokenize(
    session: Session, inputs: Sequence[Input], *, parse_special: bool = False, at_most: int | None = None
) -> list[TokenizedText | InvalidRequestError]:
    """Each input's tokens, or in its place why it cannot be read: `empty_text`, `text_too_long`, and the like.

    Raises `text_too_long` where all together are over the limit, `at_most` or that of a request.
    """
    found = [_tokenize(session, one, parse_special) for one in inputs]
    total, limit = sum(len(one) for one in texts_of(found)), at_most or session.limits.max_tokens_per_request
    if total > limit:
        pointer = inputs[0].pointer.split("/")[1]  # of a list: /texts, or /items
        detail = f"The texts have {total} tokens together; a request holds at most {limit}."
        raise InvalidRequestError.at(f"/{pointer}", "text_too_long", detail, limit=limit, actual=total)
    return found


def _tokenize(session: Session, one: Input, parse_special: bool) -> TokenizedText | InvalidRequestError:
    for pointer, said in ((one.pointer, one.text), ("/text_pair", one.text_pair)):
        if said is not None and not said.strip():
            return InvalidRequestError.at(pointer, "empty_text", "The text is empty or only whitespace.")
    limit = session.max_tokens_per_text
    if one.token_ids is not None and len(one.token_ids) > limit:
        return too_long(one.pointer, len(one.token_ids), limit)
    try:
        text = session.tokenize(one, parse_special=parse_special)
    except OutOfRangeError as error:
        pointer = f"/{error.what}"
        detail = f"The vocabulary's ids are 0 to {error.size - 1}."
        return InvalidRequestError.at(pointer, "out_of_range", detail)
    except ChatTemplateError as error:
        return InvalidRequestError.at(one.pointer, "incompatible_options", sentence(error))
    if len(text) > limit:
        pointer = one.pointer
        if text.second_token is not None and len(text) - text.second_token > text.second_token:
            pointer = "/text_pair"  # the longer of the two
        return too_long(pointer, len(text), limit, whole=text.whole)
    return text


def too_long(pointer: str, tokens: int, limit: int, *, whole: bool = True) -> InvalidRequestError:
    """That a text has more tokens than the limit; not `whole`: at least so many."""
    detail = f"The text has {'' if whole else 'at least '}{tokens} tokens; at most {limit} are read."
    return InvalidRequestError.at(pointer, "text_too_long", detail, limit=limit, actual=tokens)


def resolve(pointer: str, span: SpanRequest, text: TokenizedText, *, of: str = "") -> Span:
    """The span of a text, with its tokens. Raises InvalidRequestError at `pointer`; `of` begins its sentence."""
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
        raise InvalidRequestError.at(pointer, error.code, of + sentence(error)) from None


def sentence(error: Exception) -> str:
    """A core error's message, as a sentence."""
    message = str(error)
    return f"{message[0].upper()}{message[1:]}."


def texts_of(found: Sequence[TokenizedText | InvalidRequestError]) -> list[TokenizedText]:
    """Those that can be read."""
    return [one for one in found if isinstance(one, TokenizedText)]


T = TypeVar("T")


def all_or_raise(found: Sequence[T | InvalidRequestError]) -> list[T]:
    """Every text or item, or the first reason why one cannot be read, raised with all others beside it."""
    errors = [one for one in found if isinstance(one, InvalidRequestError)]
    if errors:
        first = errors[0]
        every = [fault for error in errors for fault in error.errors]
        raise InvalidRequestError(first.detail, errors=every, limit=first.limit, actual=first.actual)
    return [one for one in found if not isinstance(one, InvalidRequestError)]


def skipped(error: InvalidRequestError) -> dict[str, object]:
    """What stands in a result's place where the request said `on_error: skip`."""
    return {"error": asdict(error.errors[0])}


def check_elements(actual: int, limit: int, what: str, narrow: str) -> None:
    """Refuse an answer of more numbers than the limit, before the model runs."""
    if actual > limit:
        raise TooLargeError(
            f"The answer would hold {actual} numbers ({what}); at most {limit} are sent. Ask for less: {narrow}.",
            limit=limit,
            actual=actual,
        )


def choose(
    session: Session, layers: Sequence[int] | None, heads: Sequence[int] | None
) -> dict[int, list[int]]:
    """{layer: heads}, ascending and without repeats; None means all. Raises `layer_` and `head_out_of_range`."""
    reader = session.model.reader
    check_indices("layer", layers or [], reader.layers)
    check_indices("head", heads or [], reader.heads)
    chosen = sorted(set(heads)) if heads else list(range(reader.heads))
    return {layer: list(chosen) for layer in (sorted(set(layers)) if layers else range(reader.layers))}


def check_indices(kind: str, indices: Sequence[int], size: int) -> None:
    """Raise `layer_out_of_range` or `head_out_of_range` for every index that the model does not have."""
    faults = [
        FieldError(f"/{kind}s/{place}", f"{kind}_out_of_range", f"The model's {kind}s are 0 to {size - 1}.")
        for place, index in enumerate(indices)
        if index >= size
    ]
    if faults:
        raise InvalidRequestError(faults[0].detail, errors=faults)


def members(one: DataclassInstance) -> dict[str, Any]:
    """A dataclass's members by name, as they are. (`dataclasses.asdict` copies each deeply, in ten times the time.)"""
    return {name: getattr(one, name) for name in one.__dataclass_fields__}


def describe(text: TokenizedText) -> dict[str, object]:
    """The members `text`, `tokens` and `words` of a result."""
    described: dict[str, object] = {"text": text.text}
    if text.text_pair is not None:
        described["text_pair"] = text.text_pair
    tokens = [members(token) for token in text.tokens]
    words = [members(word) for word in text.words]
    for index in text.special:
        tokens[index]["special"] = True
    for each, second in ((tokens, text.second_token), (words, text.second_word)):
        for index, one in enumerate(each):
            if not text.has_offsets:
                one["start"] = one["end"] = None
            if text.text_pair is not None:
                one["segment"] = int(index >= (second or 0))
    return {**described, "tokens": tokens, "words": words}
