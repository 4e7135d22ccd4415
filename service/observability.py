"""What is told of a request: its id, the access log, metrics, timings and traces. Nothing of the user's text is."""

from __future__ import annotations

import datetime
import hashlib
import logging
import re
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from flask import Flask, Response, g, has_request_context, request

from service.schemas.common import AsksAboutTexts
from service.tracing import Tracing, trace_id

if TYPE_CHECKING:
    from service.metrics import Metrics  # not for gunicorn's master, which imports this for its log

access = logging.getLogger("service.access")
log = logging.getLogger(__name__)

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"))
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
QUIET = frozenset(("/health/live", "/health/ready", "/metrics"))  # what asks every few seconds fills no log
OURS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer, as metrics, access log and traces tell them."""

    method: str  # one of METHODS, or "other"
    route: str | None  # the rule; None where the path is none of ours
    status: int
    media_type: str
    seconds: float = 0.0
    sent: int = 0  # bytes of the body
    parts: Mapping[str, float] = field(default_factory=dict)  # seconds, by what they went into
    tokens: int = 0
    rejected: str | None = None  # see `problems.reason_of`


class JsonFormatter(logging.Formatter):
    """One JSON object per line; members given as `extra` stand beside the message.

    What is logged during a request has its id. An exception is told by type, place and traceback, a warning by kind and
    place: their messages may quote what the user sent.
    """

    _standard = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, object] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if has_request_context():
            line |= {name: g.get(name) for name in ("request_id", "trace_id") if name in g}
        line |= {name: value for name, value in vars(record).items() if name not in self._standard}
        if record.exc_info and (error := record.exc_info[1]):
            line["exception"] = _name(type(error))
            line["place"] = _place(error)
            whole = _of_the_start(record)
            line["traceback"] = (
                self.formatException(record.exc_info) if whole else "".join(_without_messages(error))
            )
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _of_the_start(record: logging.LogRecord) -> bool:
    """Whether gunicorn tells of itself: where it starts and ends workers, nothing of a request is at hand."""
    return record.name == "gunicorn.error" and record.threadName == threading.main_thread().name


def _message(record: logging.LogRecord) -> str:
    """The record's, but of what others write only what they cannot have from a request."""
    if record.name == "gunicorn.error" and not _of_the_start(record):
        # "Error handling request %s", "Invalid request from ip=...: Invalid HTTP header: ..."
        template = _name(type(record.msg)) if isinstance(record.msg, Exception) else str(record.msg)
        return template.replace("%s", "-").partition(": ")[0]
    message = record.getMessage()
    if record.name == "py.warnings":  # "file:line: Category: message", and the source's line
        return ": ".join(message.split(": ")[:2])
    return message


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _place(error: BaseException) -> str | None:
    """Where it happened: the last line of ours on the way."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(OURS)]
    return next((f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in (ours or frames)[-1:]), None)


def _without_messages(error: BaseException, seen: frozenset[int] = frozenset()) -> Iterator[str]:
    """As `traceback.format_exception`, but of each exception only the type."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and id(cause) not in seen:
        yield from _without_messages(cause, seen | {id(error)})
        yield "\n" + ("which is the cause of" if error.__cause__ else "while it was handled:") + "\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield _name(type(error)) + "\n"


def capture() -> None:
    """Let warnings, and what ends a thread, go through the log: everything is one JSON object a line."""
    logging.captureWarnings(True)

    def ended(what: threading.ExceptHookArgs) -> None:
        error = what.exc_value
        if error is not None and not isinstance(error, SystemExit):
            log.error("a thread has ended", exc_info=error)

    threading.excepthook = ended


def register(app: Flask, metrics: Metrics, tracing: Tracing | None = None) -> None:
    """Give every request an id, and every answer the id, its timings, a log line, and its place in the metrics."""

    @app.before_request
    def begin() -> None:
        g.started = time.perf_counter()
        given = request.headers.get("X-Request-ID", "")
        g.request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        if tracing and not _quiet():
            g.span = tracing.begin(_method(), dict(request.headers))
            g.trace_id = trace_id(g.span)

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers["X-Request-ID"] = g.request_id
        response.headers["X-Content-Type-Options"] = "nosniff"
        parts: dict[str, float] = g.get("seconds", {})
        if parts:
            timing = ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in parts.items())
            response.headers["Server-Timing"] = timing
        rule, quiet = request.url_rule, _quiet()
        so_far = Exchange(
            method=_method(),
            route=rule.rule if rule else None,
            status=response.status_code,
            media_type=response.mimetype or "",
            parts=parts,
            tokens=g.session.tokens if "session" in g else 0,
            rejected=None if quiet else g.get("rejected"),
        )
        started, span, asked = g.started, g.get("span"), g.get("asked")
        ids = {name: g.get(name) for name in ("request_id", "trace_id") if name in g}

        def tell(sent: int) -> None:  # perhaps when the request itself is gone
            exchange = replace(so_far, seconds=time.perf_counter() - started, sent=sent)
            metrics.answered(exchange)
            if not quiet:
                access.info("request", extra={**ids, **members(exchange), **_about_texts(asked)})
            if tracing and span is not None:
                tracing.end(span, exchange, ids["request_id"])

        _once_sent(response, tell)
        return response


def _quiet() -> bool:
    return request.url_rule is not None and request.url_rule.rule in QUIET


def _method() -> str:
    return request.method if request.method in METHODS else "other"


def members(exchange: Exchange) -> dict[str, object]:
    """What the access line tells of it."""
    return {
        "method": exchange.method,
        "route": exchange.route,
        "status": exchange.status,
        "duration_ms": round(exchange.seconds * 1000, 1),
        "response_bytes": exchange.sent,
        **{f"{name}_ms": round(seconds * 1000, 1) for name, seconds in exchange.parts.items()},
        **({"tokens": exchange.tokens} if exchange.tokens else {}),
        **({"rejected": exchange.rejected} if exchange.rejected else {}),
    }


def _about_texts(asked: object) -> dict[str, object]:
    """How long a request's texts are, and a hash by which the same ones are known again: of several, of their lines."""
    texts = list(asked.written) if isinstance(asked, AsksAboutTexts) else []
    if not texts:
        return {}
    digest = hashlib.sha256("\n".join(texts).encode(errors="replace")).hexdigest()
    return {"text_characters": sum(map(len, texts)), "text_sha256": digest[:16]}


def _once_sent(response: Response, tell: Callable[[int], None]) -> None:
    """Tell how many bytes of the body went out, once they have: nobody waits for what is told."""
    if request.method == "HEAD" or response.status_code in (204, 304):
        tell(0)
    else:
        given: Any = response.response
        response.response = _Counted(response.iter_encoded(), tell)
        if hasattr(given, "close"):
            response.call_on_close(given.close)


class _Counted:
    """The chunks of a body; closing them, which a server does whatever happens, tells how many bytes were taken."""

    def __init__(self, chunks: Iterator[bytes], tell: Callable[[int], None]) -> None:
        self._chunks, self._tell = chunks, tell
        self._sent, self._closed = 0, False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = next(self._chunks)
        self._sent += len(chunk)
        return chunk

    def close(self) -> None:
        """Tell, once."""
        if not self._closed:
            self._closed = True
            self._tell(self._sent)
