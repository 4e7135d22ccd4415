"""Steps that several jobs share: limits on texts and tokens, the choice of heads, plain forms of core results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from service.engine import Session
from service.errors import FieldError, InvalidRequestError, TooLargeError
from service.settings import Limits
from service.texts import TokenizedText


def check_count(count: int, limits: Limits) -> None:
    """Refuse more texts than the limit; before a place in the queue is taken."""
    if count > limits.max_texts:
        raise TooLargeError(
            f"A request holds at most {limits.max_texts} texts or items.",
            limit=limits.max_texts,
            actual=count,
        )


def tokenize(session: Session, inputs: Sequence[tuple[str, str]]) -> list[TokenizedText]:
    """Tokenise (pointer, text) pairs; raises `text_too_long` where a text, or all of them, are over the limit."""
    texts = session.tokenize([text for _, text in inputs])
    limit = session.max_tokens_per_text
    for (pointer, _), text in zip(inputs, texts, strict=True):
        if len(text) > limit:
            detail = f"The text has {'' if text.whole else 'at least '}{len(text)} tokens; at most {limit} are read."
            raise InvalidRequestError.at(pointer, "text_too_long", detail, limit=limit, actual=len(text))
    total, limit = sum(map(len, texts)), session.limits.max_tokens_per_request
    if total > limit:
        pointer = inputs[0][0].split("/")[1]  # of a list: /texts, or /items
        detail = f"The texts have {total} tokens together; a request holds at most {limit}."
        raise InvalidRequestError.at(f"/{pointer}", "text_too_long", detail, limit=limit, actual=total)
    return texts


def check_elements(actual: int, limit: int, what: str, narrow: str) -> None:
    """Refuse an answer of more numbers than the limit, before the model runs."""
    if actual > limit:
        raise TooLargeError(
            f"The answer would hold {actual} numbers ({what}); at most {limit} are sent. Ask for fewer {narrow}.",
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


def describe(text: TokenizedText) -> dict[str, object]:
    """The members `text`, `tokens` and `words` of a result."""
    return {
        "text": text.text,
        "tokens": [asdict(token) for token in text.tokens],
        "words": [asdict(word) for word in text.words],
    }
