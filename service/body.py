"""Reading a request's body: media type, size cap, time-out, JSON, validation; in this order."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from flask import current_app, request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from service.errors import (
    BodyTimeoutError,
    FieldError,
    InvalidRequestError,
    MalformedBodyError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from service.settings import Settings

T = TypeVar("T", bound=BaseModel)

# pydantic's error types -> our stable codes; anything else ending in _type is `wrong_type`
CODES = {
    "missing": "missing_field",
    "extra_forbidden": "unknown_field",
    "literal_error": "unknown_option",
    "enum": "unknown_option",
    "finite_number": "out_of_range",
    "int_from_float": "wrong_type",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than": "out_of_range",
    "less_than_equal": "out_of_range",
    "too_short": "out_of_range",
    "too_long": "out_of_range",
    "string_too_long": "out_of_range",
    "string_too_short": "empty_text",
}


def read_json(model: type[T]) -> T:
    """The request's body as `model`.

    Raises UnsupportedMediaTypeError, TooLargeError, BodyTimeoutError, MalformedBodyError or InvalidRequestError.
    """
    if request.mimetype != "application/json":
        raise UnsupportedMediaTypeError("The Content-Type header must be application/json.")
    settings: Settings = current_app.extensions["settings"]
    raw = _read(settings.max_body_bytes, settings.body_timeout_seconds)
    try:
        parsed = model.model_validate_json(raw)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=True)
        if faults[0]["type"] == "json_invalid":
            reason = str(faults[0]["ctx"]["error"])
            raise MalformedBodyError(f"The body is not valid JSON: {reason}.") from None
        body = from_json(raw)
        fields = [_field_error(fault, body) for fault in faults]
        raise InvalidRequestError(_summary(fields), errors=fields) from None
    _refuse_duplicate_members(raw)
    return parsed


def _read(limit: int, seconds: float) -> bytes:
    """At most `limit` bytes of body. One byte more is read to notice the excess: a chunked body declares no length,
    and Werkzeug's MAX_CONTENT_LENGTH would silently cut it there."""
    declared = request.content_length
    if declared is not None and declared > limit:
        raise _too_large(limit, declared)
    started = time.monotonic()
    with _read_timeout(seconds):
        try:
            raw = request.stream.read(limit + 1)
        except Exception as error:  # the client went away, or its chunks are malformed
            if time.monotonic() - started >= seconds:
                raise BodyTimeoutError(f"The body was not received within {seconds:g} seconds.") from None
            raise MalformedBodyError("The body could not be read to its end.") from error
    if len(raw) > limit:
        raise _too_large(limit, len(raw))
    if time.monotonic() - started >= seconds and len(raw) < (declared or 0):
        raise BodyTimeoutError(f"The body was not received within {seconds:g} seconds.")
    return raw


def _too_large(limit: int, actual: int) -> TooLargeError:
    return TooLargeError(f"The body is larger than {limit} bytes.", limit=limit, actual=actual)


@contextlib.contextmanager
def _read_timeout(seconds: float) -> Iterator[None]:
    """Stop the body's reading side after `seconds` in all: a socket's own time-out bounds one read only, and a client
    that sends a byte now and then would hold a thread forever."""
    connection: socket.socket | None = request.environ.get("gunicorn.socket")
    if connection is None or not request.headers.get("Transfer-Encoding", request.content_length):
        yield
        return

    def stop() -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RD)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _field_error(fault: ErrorDetails, body: object) -> FieldError:
    kind = fault["type"]
    code = CODES.get(kind) or ("wrong_type" if kind.endswith(("_type", "_parsing")) else kind)
    message = fault["msg"].rstrip(".")
    # The message never quotes the input: it names what is allowed, a bound, or a type.
    pointer = pointer_of(_place(fault["loc"], body, missing=kind == "missing"))
    return FieldError(pointer, code, f"{message[0].upper()}{message[1:]}.")


def _place(location: tuple[int | str, ...], body: object, *, missing: bool) -> list[int | str]:
    """The parts of pydantic's location that are places in the body: it also names which form of a union it tried."""
    place: list[int | str] = []
    for part in location:
        try:
            body = body[part]  # type: ignore[index]
        except (LookupError, TypeError):
            if not (missing and part == location[-1]):
                continue
        place.append(part)
    return place


def pointer_of(place: Sequence[int | str]) -> str:
    """The JSON Pointer (RFC 6901) of a place; an unknown member's name is cut at 64 characters."""
    parts = (str(part)[:64].replace("~", "~0").replace("/", "~1") for part in place)
    return "".join(f"/{part}" for part in parts)


def _summary(fields: list[FieldError]) -> str:
    first = fields[0]
    where = f"{first.pointer}: " if first.pointer else ""
    more = f" ({len(fields) - 1} more)" if len(fields) > 1 else ""
    return f"{where}{first.detail}{more}"


def _refuse_duplicate_members(raw: bytes) -> None:
    """JSON lets the last of two equal names win silently; a request that says two things is refused instead."""

    def members(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise MalformedBodyError("A member is named twice in one object.")

    json.loads(raw, object_pairs_hook=members, parse_int=str)
