"""The one table from error to status, and its rendering as problem+json (RFC 9457)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import orjson
from flask import Flask, Response, current_app, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from service import errors

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """One row: what the client sees, and the short page behind its `type`."""

    exception: type[Exception]
    status: int
    slug: str
    title: str
    cause: str
    remedy: str

    @property
    def type(self) -> str:
        """The stable relative URI that a client switches on."""
        return f"/problems/{self.slug}"


PROBLEMS = (
    ProblemRow(
        errors.MalformedBodyError,
        400,
        "malformed-body",
        "The body is not valid JSON",
        "Syntax, encoding, nesting deeper than 200, a number out of range, or a member named twice.",
        "Send UTF-8 JSON without a byte order mark.",
    ),
    ProblemRow(
        errors.MalformedRequestError,
        400,
        "malformed-request",
        "This is not an HTTP request",
        "The request line, a header or the framing of the body breaks the rules of HTTP.",
        "Send HTTP/1.1; mend what is between client and service.",
    ),
    ProblemRow(
        errors.UnauthorizedError,
        401,
        "unauthorized",
        "A key or a valid link is needed",
        "This instance has API keys, and the request holds none of them; or its link is changed, cut or expired.",
        "Send Authorization: Bearer KEY or X-API-Key: KEY; ask POST /v1/links for a new link.",
    ),
    ProblemRow(
        NotFound,
        404,
        "not-found",
        "No such resource",
        "The path is none of this service's.",
        "See /openapi.yaml for all paths.",
    ),
    ProblemRow(
        errors.LinksOffError,
        404,
        "links-off",
        "This instance signs no links",
        "The setting ATTENTION_SIGNING_KEY is not set.",
        "Set it; or send an API key in a header.",
    ),
    ProblemRow(
        MethodNotAllowed,
        405,
        "method-not-allowed",
        "The resource does not offer this method",
        "For example GET on a path that takes POST.",
        "The Allow header lists what is offered.",
    ),
    ProblemRow(
        errors.NotAcceptableError,
        406,
        "not-acceptable",
        "No format on offer fits",
        "The Accept header, or the format asked for, is none that this resource has.",
        "Take one of `formats`.",
    ),
    ProblemRow(
        errors.BodyTimeoutError,
        408,
        "body-timeout",
        "The body did not arrive in time",
        "The client was too slow or stopped sending.",
        "Send the body at once; put a buffering proxy in front of slow clients.",
    ),
    ProblemRow(
        errors.HeaderTimeoutError,
        408,
        "header-timeout",
        "The headers did not arrive in time",
        "The client was too slow or stopped sending.",
        "Send the headers at once; put a buffering proxy in front of slow clients.",
    ),
    ProblemRow(
        errors.TooLargeError,
        413,
        "too-large",
        "The request asks for too much",
        "Body, number of texts, or numbers in the answer over a limit; `limit` and `actual` say which.",
        "Ask for fewer texts, layers or heads at a time. GET /v1/model lists every limit.",
    ),
    ProblemRow(
        errors.UrlTooLongError,
        414,
        "url-too-long",
        "The URL is too long",
        "The request line is longer than max_url_bytes allows.",
        "Send the text in the body of a POST.",
    ),
    ProblemRow(
        errors.UnsupportedMediaTypeError,
        415,
        "unsupported-media-type",
        "The body is of another media type than can be read",
        "The Content-Type header is missing or names another type.",
        "Send Content-Type: application/json; the Accept-Post header lists what else is read.",
    ),
    ProblemRow(
        errors.ExpectationError,
        417,
        "expectation-failed",
        "The expectation cannot be met",
        "The Expect header says something else than 100-continue.",
        "Leave the Expect header out.",
    ),
    ProblemRow(
        errors.InvalidRequestError,
        422,
        "invalid-request",
        "The request is not valid",
        "JSON is fine, content is not: `errors` says where (JSON Pointer), which (code) and why.",
        "Correct the fields named in `errors`.",
    ),
    ProblemRow(
        errors.OverloadedError,
        429,
        "overloaded",
        "Too many requests are waiting",
        "The queue in front of the model is full.",
        "Wait as long as Retry-After says; add replicas.",
    ),
    ProblemRow(
        errors.HeadersTooLargeError,
        431,
        "headers-too-large",
        "The headers are too large",
        "A header is longer than 8,190 bytes, all of them than 64 KiB, or there are more than 100.",
        "Send fewer and shorter headers.",
    ),
    ProblemRow(
        errors.ClientGoneError,
        499,
        "client-gone",
        "The client has gone",
        "It closed the connection before its answer was there; only the log says so.",
        "Wait for as long as the deadline.",
    ),
    ProblemRow(
        Exception,
        500,
        "internal",
        "Something went wrong on our side",
        "A fault of the service. The log has it under the request id.",
        "Report the request id.",
    ),
    ProblemRow(
        errors.TransferCodingError,
        501,
        "unsupported-transfer-coding",
        "The transfer coding is not supported",
        "The Transfer-Encoding header names another coding than chunked.",
        "Send the body as it is, or chunked.",
    ),
    ProblemRow(
        errors.NotReadyError,
        503,
        "not-ready",
        "The model cannot be asked at the moment",
        "It is loading, shutting down, hung, or could not be loaded.",
        "Wait as long as Retry-After says; GET /health/ready tells when.",
    ),
    ProblemRow(
        errors.DeadlineExceededError,
        504,
        "deadline-exceeded",
        "The answer was not there in time",
        "The request waited or ran for longer than the deadline.",
        "Ask for less, or when the service is less busy.",
    ),
    ProblemRow(
        errors.HttpVersionError,
        505,
        "unsupported-http-version",
        "The version of HTTP is not supported",
        "The request line names another version than HTTP/1.0 or HTTP/1.1.",
        "Send HTTP/1.1.",
    ),
)

_REASONS: dict[type[Exception], str] = {
    errors.OverloadedError: "overloaded",
    errors.TooLargeError: "too_large",
    errors.DeadlineExceededError: "deadline",
    errors.NotReadyError: "not_ready",
}
REASONS = (*_REASONS.values(), "too_long")
INTERNAL = next(problem for problem in PROBLEMS if problem.exception is Exception)
BY_SLUG = {problem.slug: problem for problem in PROBLEMS}


def problem_of(error: Exception) -> ProblemRow:
    """The row of an exception: that of its own class, else of its nearest base; 500 where none fits."""
    return next(row for base in type(error).__mro__ for row in PROBLEMS if row.exception is base)


def reason_of(error: Exception) -> str | None:
    """Why a request was turned away, one of REASONS, as metrics and log tell it; None where it met no limit of ours."""
    if isinstance(error, errors.InvalidRequestError):
        return "too_long" if any(one.code == "text_too_long" for one in error.errors) else None
    return _REASONS.get(problem_of(error).exception)


def problem_response(error: Exception) -> Response:
    """Render any exception as the answer the client gets."""
    if isinstance(error, HTTPException) and not isinstance(error, NotFound | MethodNotAllowed):
        return _werkzeug_response(error)
    problem = problem_of(error)
    g.rejected = reason_of(error)
    if problem is INTERNAL:
        rule = request.url_rule
        context = {"request_id": g.get("request_id", ""), "route": rule.rule if rule else None}
        log.error("internal error", exc_info=error, extra=context)
    body = _members(problem, error, current_app.extensions["settings"].root_path)
    if isinstance(error, errors.RequestError):
        body["detail"] = error.detail
    _common_members(body)
    headers: dict[str, str] = {}
    if isinstance(error, errors.RequestError):
        if error.errors:
            body["errors"] = [
                {"pointer": one.pointer, "code": one.code, "detail": one.detail}
                for one in error.errors[: errors.MAX_ERRORS]
            ]
        if error.retry_after_seconds is not None:
            headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, errors.UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, errors.NotAcceptableError):
        body["formats"] = error.formats
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(sorted(error.valid_methods or ()))
    if isinstance(error, errors.UnsupportedMediaTypeError):
        headers["Accept-Post"] = ", ".join(error.accepted)
    response = Response(orjson.dumps(body), problem.status, headers, content_type=MEDIA_TYPE)
    if isinstance(error, errors.NotAcceptableError):
        response.vary.add("Accept")
    return response


def wire_problem(error: Exception, request_id: str, root: str = "") -> tuple[ProblemRow, bytes]:
    """The row and the body of what is refused before there is a request: without its path, which nobody knows."""
    problem = problem_of(error)
    return problem, orjson.dumps({**_members(problem, error, root), "request_id": request_id})


def _members(problem: ProblemRow, error: Exception, root: str) -> dict[str, object]:
    """What every problem of a row says; its `type` can be opened below the path prefix `root` too."""
    body: dict[str, object] = {"type": root + problem.type, "title": problem.title, "status": problem.status}
    body["detail"] = f"{problem.cause} {problem.remedy}"
    if isinstance(error, errors.RequestError) and error.limit is not None:
        body |= {"limit": error.limit, "actual": error.actual}
    return body


def _werkzeug_response(error: HTTPException) -> Response:
    """What the framework itself refuses (a bad Host header, for example): its status, our shape, no type of ours."""
    body: dict[str, object] = {"type": "about:blank", "title": error.name, "status": error.code or 500}
    _common_members(body)
    return Response(orjson.dumps(body), error.code or 500, content_type=MEDIA_TYPE)


def _common_members(body: dict[str, object]) -> None:
    body["instance"] = request.path
    body["request_id"] = g.get("request_id", "")


def register(app: Flask) -> None:
    """Answer every error of the app, expected or not, as problem+json."""
    app.register_error_handler(Exception, problem_response)
