"""Request ids, the access log, and timings: one JSON line a request, nothing of the user's text in it."""

from __future__ import annotations

import datetime
import logging
import re
import time
import traceback
import uuid

import orjson
from flask import Flask, Response, g, request

access = logging.getLogger("service.access")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
QUIET_PREFIXES = ("/health/",)  # probes do not fill the log


class JsonFormatter(logging.Formatter):
    """One JSON object per line; members given as `extra` stand beside the message."""

    _standard = frozenset(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, object] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in self._standard}
        if record.exc_info:
            in_request = "request_id" in line
            line["exception"] = (places if in_request else self.formatException)(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def places(exc_info: object) -> str:
    """Types and places of an exception and of those before it, without their messages.

    What is raised while a request is answered may quote its text: a ValueError of the tokenizer, a KeyError.
    """
    error = exc_info[1] if isinstance(exc_info, tuple) else None
    lines: list[str] = []
    while isinstance(error, BaseException):
        kind = type(error)
        lines += [f"{kind.__module__}.{kind.__qualname__}\n", *traceback.format_tb(error.__traceback__)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(lines)


def register(app: Flask) -> None:
    """Give every request an id, and every answer the id, its timings and a log line."""

    @app.before_request
    def begin() -> None:
        g.started = time.perf_counter()
        given = request.headers.get("X-Request-ID", "")
        g.request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers["X-Request-ID"] = g.request_id
        response.headers["X-Content-Type-Options"] = "nosniff"
        parts: dict[str, float] = g.get("seconds", {})
        if parts:
            timing = ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in parts.items())
            response.headers["Server-Timing"] = timing
        if not request.path.startswith(QUIET_PREFIXES):
            rule = request.url_rule
            access.info(
                "request",
                extra={
                    "request_id": g.request_id,
                    "method": request.method if request.method in METHODS else "other",  # it may be any word
                    "route": rule.rule if rule else None,
                    "status": response.status_code,
                    "duration_ms": round((time.perf_counter() - g.started) * 1000, 1),
                    "response_bytes": response.content_length,
                    **{f"{name}_ms": round(seconds * 1000, 1) for name, seconds in parts.items()},
                },
            )
        return response
