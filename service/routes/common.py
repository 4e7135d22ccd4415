"""What every route uses: its contract, the engine's session, and the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flask import Response, current_app, g, request
from pydantic import BaseModel

from service import errors
from service.engine import Engine, Session
from service.formats import json
from service.jobs.common import check_count
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Contract:
    """What an operation takes and gives; `service.openapi` reads it."""

    summary: str
    tag: str
    request: type[BaseModel] | None
    answer: type[BaseModel] | None
    media_type: str
    problems: tuple[type[Exception], ...]
    cacheable: bool


READING = (
    errors.MalformedBodyError,
    errors.BodyTimeoutError,
    errors.TooLargeError,
    errors.UnsupportedMediaTypeError,
    errors.InvalidRequestError,
)
ADMISSION = (errors.OverloadedError, errors.NotReadyError)
ASKING = (*ADMISSION, errors.DeadlineExceededError)

View = TypeVar("View", bound=Callable[..., Any])


def describes(
    summary: str,
    *,
    tag: str,
    request: type[BaseModel] | None = None,
    answer: type[BaseModel] | None = None,
    media_type: str = json.MEDIA_TYPE,
    problems: Sequence[type[Exception]] = (),
    cacheable: bool = True,
) -> Callable[[View], View]:
    """Attach a contract to a view. Any operation may also answer 500."""

    def decorate(view: View) -> View:
        every = (*(READING if request else ()), *problems, Exception)
        view.contract = Contract(summary, tag, request, answer, media_type, every, cacheable)  # type: ignore[attr-defined]
        return view

    return decorate


def engine() -> Engine:
    """The app's engine."""
    found: Engine = current_app.extensions["engine"]
    return found


def settings() -> Settings:
    """The app's settings."""
    found: Settings = current_app.extensions["settings"]
    return found


class HasInputs(Protocol):
    """A request about one or several texts."""

    @property
    def inputs(self) -> Sequence[object]:
        """Each text or item."""
        ...


R = TypeVar("R", bound=HasInputs)


def ask(job: Callable[[R, Session], dict[str, object]], question: R) -> Response:
    """Admit the request, run its job, and serialise before the place in flight is given back."""
    check_count(len(question.inputs), settings())
    with engine().admit() as session:
        g.seconds = session.seconds
        return answer(job(question, session))


def answer(payload: dict[str, object]) -> Response:
    """200 with JSON; GETs carry an ETag and answer 304."""
    started = time.monotonic()
    body = json.dumps(payload)
    if "seconds" in g:
        g.seconds["ser"] = time.monotonic() - started
    return cacheable(Response(body, content_type=json.MEDIA_TYPE))


def uncached(payload: dict[str, object]) -> Response:
    """200 with JSON that is true for this moment only."""
    return Response(json.dumps(payload), content_type=json.MEDIA_TYPE, headers={"Cache-Control": "no-store"})


def cacheable(response: Response) -> Response:
    """An answer to a GET, with an ETag; 304 where the client has it already."""
    if request.method in ("GET", "HEAD"):
        response.add_etag()
        response.make_conditional(request)
    return response
