"""Reading a request's body: media type, size cap, time-out, JSON, validation; in this order."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs

from flask import Flask, Response, current_app, g, request
from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import from_json

from service.errors import (
    MAX_ERRORS,
    BodyTimeoutError,
    FieldError,
    InvalidRequestError,
    MalformedBodyError,
    TooLargeError,
    UnsupportedMediaTypeError,
    pointer_of,
)
from service.parameters import Kind, value_of
from service.security import LINK_PARAMETERS
from service.settings import Settings
from service.validation import field_error, line_fault, refuse_duplicate_members

T = TypeVar("T", bound=BaseModel)

# Of parameters that are members of a member: where in the body they stand
Places = Mapping[str, Sequence[str]]
NOWHERE_ELSE: Places = MappingProxyType({})
JSON, NDJSON = "application/json", "application/x-ndjson"
ALIASES = {"layer": "layers", "head": "heads"}
REQUIRED = ("text", "pronoun", "candidates", "model")  # of a request in a URL, where it asks for them at all
MANY = ("texts", "items")  # members whose number has a limit of its own, answered 413
BOM = b"\xef\xbb\xbf"
DISCARD_SECONDS = 1.0  # for a body that nobody wants


@dataclass(frozen=True)
class Bare(Generic[T]):
    """A body that is the `member` of a request all by itself; the query string says the rest of the `request`.

    Any body that is a `body` is one.
    """

    request: type[T]
    member: str
    body: type[RootModel[Any]]


def read_json(model: type[T], beside: Mapping[str, Kind] | None = None) -> T:
    """The request's body as `model`; what a query string may say `beside` another kind of body is refused.

    Raises UnsupportedMediaTypeError, TooLargeError, BodyTimeoutError, MalformedBodyError or InvalidRequestError.
    """
    whole = _parsed(model, _raw())
    _refuse_beside(_query(beside or {}))
    return whole


def read_either(model: type[T], bare: Bare[T], names: Mapping[str, Kind], places: Places) -> T:
    """The request's body as `model`, or, where it is one, a bare member with the query string's options.

    Raises as `read_json` does, and InvalidRequestError for options in the query string beside a whole request.
    """
    raw = _raw()
    said = _query(names, places)
    try:
        member = bare.body.model_validate_json(raw)
    except ValidationError:
        whole = _parsed(model, raw)  # what is wrong with the body itself is told first
        _refuse_beside(said)
        return whole
    refuse_duplicate_members(raw)
    return _validated(bare.request, {**said, bare.member: member.root})


def _refuse_beside(said: Mapping[str, object]) -> None:
    if said:
        detail = "The body says this itself."
        faults = [FieldError(pointer_of([name]), "incompatible_options", detail) for name in said]
        raise InvalidRequestError.of(faults) from None


def _raw() -> bytes:
    settings: Settings = current_app.extensions["settings"]
    check_media_type((JSON,))
    return _read(settings.max_body_bytes, settings.body_timeout_seconds)


def _parsed(model: type[T], raw: bytes) -> T:
    try:
        parsed = model.model_validate_json(raw)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=True)
        if faults[0]["type"] == "json_invalid":
            reason = str(faults[0]["ctx"]["error"])
            if raw.startswith(BOM):
                reason = "it begins with a byte order mark"
            if "hex escape" in reason:
                reason += " (half of a surrogate pair is no character)"
            raise MalformedBodyError(f"The body is not valid JSON: {reason}.") from None
        refuse_duplicate_members(raw)
        body = from_json(raw)
        for fault in faults:
            if fault["type"] == "too_long" and fault["loc"][0] in MANY:
                check_count(len(body[fault["loc"][0]]), model)
        fields = [field_error(fault, body) for fault in faults[:MAX_ERRORS]]
        raise InvalidRequestError.of(fields, more=len(faults) - 1) from None
    refuse_duplicate_members(raw)
    return parsed


def read_lines(model: type[T], item: type[BaseModel], names: Mapping[str, Kind]) -> T:
    """A body of JSON Lines, an `item` a line, with the query string's options, as `model`.

    Blank lines are passed over. A line that holds no item stands in `unread` and does not sink the rest; `lines` are
    the numbers of those that do. Raises as `read_json` does, and InvalidRequestError where no line holds an item.
    """
    settings: Settings = current_app.extensions["settings"]
    check_media_type((NDJSON,))
    raw = _read(settings.max_body_bytes, settings.body_timeout_seconds)
    if raw.startswith(BOM):
        raise MalformedBodyError("Line 1 begins with a byte order mark; JSON Lines have none.")
    numbered = [(number, line) for number, line in enumerate(raw.split(b"\n"), 1) if line.strip()]
    check_count(len(numbered), model, "lines")
    items: list[BaseModel] = []
    lines: list[int] = []
    unread: list[dict[str, str | int]] = []
    for number, line in numbered:
        try:
            read = item.model_validate_json(line)
            refuse_duplicate_members(line)
        except ValidationError as error:
            code, detail = line_fault(error, line)
            unread.append({"line": number, "code": code, "detail": detail})
        except MalformedBodyError as error:
            unread.append({"line": number, "code": "malformed_line", "detail": error.detail})
        else:
            items.append(read)
            lines.append(number)
    if not items:
        faults = [
            FieldError("", str(one["code"]), f"Line {one['line']}: {one['detail']}")
            for one in unread[:MAX_ERRORS]
        ]
        raise InvalidRequestError.of(faults or [FieldError("", "missing_field", "The body holds no line.")])
    return _validated(model, {**_query(names), "items": items, "lines": lines, "unread": unread})


def check_count(count: int, model: type[BaseModel], what: str = "texts or items") -> None:
    """Refuse more than a request may hold: of the kind of request, the setting that its `limit` names."""
    settings: Settings = current_app.extensions["settings"]
    limit: int = getattr(settings, getattr(model, "limit", "max_texts"))
    if count > limit:
        detail = f"A request holds at most {limit} {what}; send the others in further requests."
        raise TooLargeError(detail, limit=limit, actual=count)


def read_query(model: type[T], names: Mapping[str, Kind], places: Places = NOWHERE_ELSE) -> T:
    """The query string as `model`: parameters of the same names, lists separated by commas.

    `names` says how each parameter is read; others, which say how the answer is written, are passed over. Raises
    InvalidRequestError; pointers are those of the same request as JSON.
    """
    body = _query(names, places)
    for name in ("text", "model"):  # without which nothing is asked; the others' lack the model names
        if name in names and name not in body:
            raise InvalidRequestError.of([FieldError(f"/{name}", "missing_field", "The field is required.")])
    return _validated(model, body)


def place_of(name: str, places: Places) -> Sequence[str]:
    """Where in the body a parameter stands."""
    return places.get(name, (name,))


def _query(names: Mapping[str, Kind], places: Places = NOWHERE_ELSE) -> dict[str, object]:
    """What the query string says of the members `names`. Raises InvalidRequestError for one that it says twice."""
    body: dict[str, object] = {}
    seen: set[str] = set()
    faults = []
    for name, values in arguments().items():
        target = ALIASES.get(name, name)
        if target not in names:
            continue
        place = place_of(target, places)
        if len(values) > 1 or target in seen:
            faults.append(
                FieldError(pointer_of(place), "incompatible_options", "The parameter is given twice.")
            )
            continue
        seen.add(target)
        owner: Any = body
        for outer in place[:-1]:
            owner = owner.setdefault(outer, {})
        owner[place[-1]] = value_of(values[0], names[target])
    if faults:
        raise InvalidRequestError.of(faults)
    return body


def _validated(model: type[T], body: dict[str, object]) -> T:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=True)
        raise InvalidRequestError.of([field_error(fault, body) for fault in details]) from None


def arguments() -> dict[str, list[str]]:
    """The query string's parameters and all their values, but for those that make a GET a signed link.

    Raises MalformedBodyError where it is not UTF-8.
    """
    try:
        found = parse_qs(request.query_string.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:  # UnicodeDecodeError among them
        raise MalformedBodyError("The query string is not UTF-8, percent-encoded.") from None
    links = LINK_PARAMETERS if request.method in ("GET", "HEAD") else ()
    return {name: values for name, values in found.items() if name not in links}


def presentation(names: Collection[str], *, others: Collection[str] = ()) -> dict[str, str]:
    """The parameters `names`, which say how the answer is written. Any but those and `others` is refused."""
    found = arguments()
    faults = [
        FieldError(pointer_of([name]), "unknown_field", "There is no such parameter.")
        for name in found
        if name not in names and name not in others
    ]
    faults += [
        FieldError(f"/{name}", "incompatible_options", "The parameter is given twice.")
        for name in names
        if len(found.get(name, ())) > 1
    ]
    if faults:
        raise InvalidRequestError.of(faults)
    return {name: found[name][0] for name in names if name in found}


def refuse_parameters() -> None:
    """Refuse whatever the query string says, where it can say nothing."""
    presentation(())


def check_media_type(accepted: Sequence[str]) -> None:
    """Raise UnsupportedMediaTypeError unless the body is declared as one of these types, as UTF-8, not compressed."""
    if request.mimetype not in accepted:
        detail = f"The Content-Type header must be {' or '.join(accepted)}."
        raise UnsupportedMediaTypeError(detail, accepted=accepted)
    if request.mimetype_params.get("charset", "utf-8").lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaTypeError("The body must be UTF-8.", accepted=accepted)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnsupportedMediaTypeError("The body must not be compressed.", accepted=accepted)


def _read(limit: int, seconds: float) -> bytes:
    """At most `limit` bytes of body. One byte more is read to notice the excess: a chunked body declares no length,
    and Werkzeug's MAX_CONTENT_LENGTH would silently cut it there."""
    declared = request.content_length
    if declared is not None and declared > limit:
        raise _too_large(limit, min(declared, 2**63 - 1))
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
    if declared is not None and len(raw) < declared:
        raise MalformedBodyError("The body ended before its declared length.")
    g.body_read = True
    return raw


def _too_large(limit: int, actual: int) -> TooLargeError:
    return TooLargeError(f"The body is larger than {limit} bytes.", limit=limit, actual=actual)


class ReadWatch:
    """Stops the reading side of a connection whose body takes too long in all: a socket's own time-out bounds one read
    only, and a client that sends a byte now and then would hold a thread forever.

    One thread for all, begun when first needed: a timer for each request would cost it a third of a millisecond. While
    it sleeps until `_wakes`, a request that ends later need not wake it.
    """

    def __init__(self) -> None:
        self._ends: dict[object, tuple[float, socket.socket]] = {}
        self._wakes = math.inf
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def within(self, seconds: float, connection: socket.socket | None) -> Iterator[None]:
        """What is done here has so long."""
        if connection is None:  # a test's client: its body is there
            yield
            return
        key, end = object(), time.monotonic() + seconds
        with self._changed:
            self._ends[key] = end, connection
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="body time-outs", daemon=True)
                self._thread.start()
            elif end < self._wakes:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._ends.pop(key, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for key, (end, connection) in list(self._ends.items()):
                    if end <= now:
                        del self._ends[key]
                        _stop_reading(connection)
                self._wakes = min((end for end, _ in self._ends.values()), default=math.inf)
                self._changed.wait(None if self._wakes == math.inf else self._wakes - now)


_watch = ReadWatch()


def _read_timeout(seconds: float) -> contextlib.AbstractContextManager[None]:
    return _watch.within(seconds, request.environ.get("gunicorn.socket"))


def client_gone(connection: socket.socket | None) -> bool:
    """Whether the client has closed the connection. Nothing is taken off it: a next request may be there already.

    One that has only closed its sending side counts as gone, as it does for nginx and Go's net/http: nothing tells the
    two apart, and what HTTP clients do is close.
    """
    if connection is None:  # a test's client
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ValueError:  # TLS knows no flags
        return False
    except OSError:  # reset
        return True


def _stop_reading(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RD)


def register(app: Flask) -> None:
    """See to it that no request leaves an unread body behind.

    gunicorn reads what is left of a body in the same thread, and a client that drips would hold it for as long as it
    likes. So a moment's worth is read here, and then the connection's reading side is shut: the answer still goes out.
    """

    @app.after_request
    def discard_rest(response: Response) -> Response:
        announced = request.content_length or "Transfer-Encoding" in request.headers
        if announced and not g.get("body_read", False):
            settings: Settings = current_app.extensions["settings"]
            with contextlib.suppress(Exception), _read_timeout(DISCARD_SECONDS):
                rest = request.stream.read(settings.max_body_bytes)
                if len(rest) < settings.max_body_bytes:
                    return response
            if (connection := request.environ.get("gunicorn.socket")) is not None:
                _stop_reading(connection)
        return response
