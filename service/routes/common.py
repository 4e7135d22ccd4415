"""What every route uses: its contract, the engine's session, and the answer."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from flask import Response, current_app, g, request
from pydantic import BaseModel
from werkzeug.datastructures import MIMEAccept

from service import errors
from service.body import check_count, client_gone
from service.engine import Deadline, Engine, Session
from service.formats import drawing, json
from service.formats.negotiation import DEFAULTS, JSON, Format, Options, Payload
from service.metrics import Metrics
from service.result_cache import ResultCache
from service.schemas.common import AsksAboutTexts
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Contract:
    """What an operation takes and gives; `service.openapi` reads it."""

    summary: str
    tag: str
    request: type[BaseModel] | None
    lines: type[BaseModel] | None
    bare: type[BaseModel] | None
    answer: type[BaseModel] | None
    media_type: str
    other_media_types: tuple[str, ...]
    problems: tuple[type[Exception], ...]
    cacheable: bool
    formats: tuple[Format, ...]
    parameters: tuple[dict[str, Any], ...]


READING = (
    errors.MalformedBodyError,
    errors.BodyTimeoutError,
    errors.TooLargeError,
    errors.UnsupportedMediaTypeError,
    errors.InvalidRequestError,
)
QUERY = (errors.MalformedBodyError, errors.InvalidRequestError)  # what can be wrong with a query string
ADMISSION = (errors.OverloadedError, errors.NotReadyError)
ASKING = (*ADMISSION, errors.DeadlineExceededError)

View = TypeVar("View", bound=Callable[..., Any])


def describes(
    summary: str,
    *,
    tag: str,
    request: type[BaseModel] | None = None,
    lines: type[BaseModel] | None = None,
    bare: type[BaseModel] | None = None,
    answer: type[BaseModel] | None = None,
    media_type: str = json.MEDIA_TYPE,
    other_media_types: Sequence[str] = (),
    problems: Sequence[type[Exception]] = (),
    cacheable: bool = True,
    formats: Sequence[Format] = (),
    parameters: Sequence[dict[str, Any]] = (),
) -> Callable[[View], View]:
    """Attach a contract to a view. Any operation may also answer 500."""

    def decorate(view: View) -> View:
        every = (*(READING if request else ()), *problems, Exception)
        view.contract = Contract(  # type: ignore[attr-defined]
            summary,
            tag,
            request,
            lines,
            bare,
            answer,
            media_type,
            tuple(other_media_types),
            every,
            cacheable,
            tuple(formats),
            tuple(parameters),
        )
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


def metrics() -> Metrics:
    """The app's metrics."""
    found: Metrics = current_app.extensions["metrics"]
    return found


def results() -> ResultCache:
    """The app's answers of before."""
    found: ResultCache = current_app.extensions["result_cache"]
    return found


R = TypeVar("R", bound=BaseModel)
A = TypeVar("A", bound=AsksAboutTexts)
Request = TypeVar("Request", bound=BaseModel, contravariant=True)


class Answering(Protocol[Request]):
    """Where answers come from: what can go wrong there, what determines them beside the request, and one of them."""

    @property
    def problems(self) -> tuple[type[Exception], ...]:
        """What it may raise, beside faults in the request."""

    @property
    def provenance(self) -> object:
        """What computes the answers."""

    def check(self, question: Request) -> None:
        """Refuse what is refused before anything is computed."""

    def answer(self, question: Request, written: Format) -> AbstractContextManager[Payload]:
        """The answer, while it is being written."""


@dataclass(frozen=True)
class WithModel(Generic[A]):
    """Answers that take the model: the request is admitted or refused, waits its turn, and has a deadline."""

    job: Callable[[A, Session], Payload]
    problems: ClassVar = (*ASKING, errors.TooLargeError)

    @property
    def provenance(self) -> object:
        """The model's. Raises NotReadyError."""
        return engine().model.provenance

    def check(self, question: A) -> None:
        """No more texts than the limit."""
        check_count(len(question.inputs), type(question))

    @contextmanager
    def answer(self, question: A, written: Format) -> Iterator[Payload]:
        """Holds the place in flight until the answer is written."""
        limit = settings().max_response_elements_compact if written.compact else None
        kind = self.job.__name__
        gone = functools.partial(client_gone, request.environ.get("gunicorn.socket"))
        with engine().admit(
            limit, exact=written.exact, sparse=written.sparse, kind=kind, gone=gone
        ) as session:
            g.session, g.seconds = session, session.seconds
            payload = self.job(question, session)
            session.check()
            with drawing.begun_by(session.deadline.at):
                yield payload


@dataclass(frozen=True)
class WithoutModel(Generic[R]):
    """Answers that are arithmetic: given in the request's own thread, whatever the model's state.

    Only a picture waits: for its turn to be drawn.
    """

    job: Callable[[R, Format], Payload]
    problems: ClassVar[tuple[type[Exception], ...]] = (errors.DeadlineExceededError,)

    @property
    def provenance(self) -> object:
        """The service's version."""
        return _service_version()

    def check(self, question: R) -> None:
        """Nothing to refuse."""

    @contextmanager
    def answer(self, question: R, written: Format) -> Iterator[Payload]:
        """Nothing to hold."""
        started = time.monotonic()
        deadline = Deadline.after(settings().deadline_seconds)
        payload = self.job(question, written)
        g.seconds = {"calc": time.monotonic() - started}
        with drawing.begun_by(deadline.at):
            yield payload


@functools.cache
def _service_version() -> str:
    return version("attention-service")  # reads a file


def ask(
    answering: Answering[R], question: R, written: Format = JSON, options: Options = DEFAULTS
) -> Response:
    """The answer in the format asked for, written before what it holds of the service is given back.

    A GET's ETag follows from the request and from what computes it, so that a client that has the answer gets its 304
    without any computing. The bytes' last digits may vary between machines. What the result cache holds takes no place
    in flight and no turn at the model.
    """
    g.asked = question
    answering.check(question)
    written.check(question, options)
    tag = content_id(answering.provenance, question, written, options)
    if request.method in ("GET", "HEAD") and _client_has(tag):
        return _tagged(Response(status=304), tag)
    started = time.monotonic()
    kept = results()
    found = kept.get(tag)
    if kept.enabled:
        metrics().cache_asked(hit=found is not None)
    if found is None:
        body = _compute(answering, question, written, options)
        kept.put(tag, body)
    else:
        body, g.seconds = found, {"cache": time.monotonic() - started}
    if request.method in ("GET", "HEAD") and request.if_none_match.star_tag:
        return _tagged(Response(status=304), tag)  # `*` is any answer there is, and now it is known to be one
    response = Response(body, content_type=written.content_type)
    if kept.enabled:
        response.headers["X-Cache"] = "miss" if found is None else "hit"
        metrics().cache_holds(kept.bytes)
    if written.file_name is not None:
        response.headers["Content-Disposition"] = f'attachment; filename="{written.file_name}"'
    if written.content_security_policy is not None:
        response.headers["Content-Security-Policy"] = written.content_security_policy
    return _tagged(response, tag)


def _compute(answering: Answering[R], question: R, written: Format, options: Options) -> bytes:
    with answering.answer(question, written) as payload:
        started = time.monotonic()
        body = written.write(payload, options)
        g.seconds["ser"] = time.monotonic() - started
        return body


def content_id(provenance: object, question: BaseModel, written: Format, options: Options) -> str:
    """SHA-256 over what determines an answer: what computes it, the request in canonical form, and its format."""
    parts = (
        provenance,
        request.path,
        # JSON would write a number that is not finite as null, which is another request
        repr(question.model_dump()),
        written.name,
        repr(options),
    )
    return hashlib.sha256(json.dumps(parts)).hexdigest()


def _client_has(tag: str) -> bool:
    """Whether If-None-Match names the tag; a compressed answer's has its algorithm behind it."""
    return any(given.partition(":")[0] == tag for given in request.if_none_match.as_set(include_weak=True))


def _tagged(response: Response, tag: str) -> Response:
    response.headers["X-Content-ID"] = tag
    if request.method in ("GET", "HEAD"):
        response.set_etag(tag, weak=True)  # the same numbers, not always the same bytes: a ZIP holds a time
    response.vary.add("Accept")
    return response


def accepted() -> MIMEAccept:
    """The Accept header; what follows a type, such as a charset, is no reason to refuse it."""
    return MIMEAccept([(given.partition(";")[0].strip(), q) for given, q in request.accept_mimetypes])


def answer(payload: dict[str, object]) -> Response:
    """200 with JSON; GETs carry an ETag and answer 304."""
    return cacheable(Response(json.dumps(payload), content_type=json.MEDIA_TYPE))


def uncached(payload: dict[str, object]) -> Response:
    """200 with JSON that is true for this moment only."""
    return Response(json.dumps(payload), content_type=json.MEDIA_TYPE, headers={"Cache-Control": "no-store"})


def cacheable(response: Response) -> Response:
    """An answer to a GET, with an ETag; 304 where the client has it already."""
    if request.method in ("GET", "HEAD"):
        response.add_etag()
        response.make_conditional(request)
    return response
