"""The model's one inference thread, its bounded queue, deadlines and states.

One thread owns everything that touches the model: it loads it (after gunicorn's fork: a forked OpenMP pool hangs at
its first parallel operation), sets torch's thread count, warms up, then runs one job at a time. A request is admitted
or refused at once; nothing waits for room.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from attention_core.capture import Rows, Weighting
from attention_core.errors import UnsupportedModelError
from attention_core.substitution import continuation_log_probabilities
from service.coalescing import ReadCall, go_together, read_together
from service.errors import ClientGoneError, DeadlineExceededError, NotReadyError, OverloadedError
from service.model import LoadedModel
from service.schemas.attention import Input
from service.settings import Limits
from service.texts import TokenizedText

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "draining", "failed"]

# Called with what it calls before every layer: see `Engine.run`
Work = Callable[[Callable[[int], None]], None]

LOOK_SECONDS = 0.25  # how often a waiting request looks whether its client is still there
GIVE_UP = 5  # watchdog limits: a job running longer than that will not end


@dataclass(frozen=True, slots=True)
class Deadline:
    """When an answer must be there, and how long after acceptance that is."""

    at: float  # of time.monotonic()
    seconds: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So long from now."""
        return cls(time.monotonic() + seconds, seconds)

    def extended(self, factor: float) -> Deadline:
        """`factor` times as long after acceptance."""
        return Deadline(self.at + (factor - 1) * self.seconds, factor * self.seconds)

    @property
    def passed(self) -> bool:
        """Whether it has."""
        return time.monotonic() > self.at

    def error(self) -> DeadlineExceededError:
        """What to raise once it has."""
        return DeadlineExceededError(f"No answer within {self.seconds:g} seconds.")


@dataclass(slots=True, eq=False)
class _Job:
    work: Work | ReadCall
    deadline: Deadline
    queued: float = field(default_factory=time.monotonic)
    started: float | None = None
    seen: float = -math.inf  # when it last came to a layer
    ended: float | None = None
    cancelled: bool = False
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def check(self, layer: int = 0) -> None:
        """Called before the job starts and before every layer: a job nobody waits for stops."""
        self.seen = time.monotonic()
        if self.cancelled or self.deadline.passed:
            raise self.deadline.error()

    def fail(self, error: BaseException) -> None:
        """Keep the error for whoever waits. One that nobody takes would keep the job, and all it holds, until the
        garbage collector comes: its traceback has frames that hold the job."""
        if not self.cancelled:
            self.error = error


class Observer(Protocol):
    """Is told what happens in an engine, there where it happens."""

    def loaded(self, model: LoadedModel, seconds: float) -> None:
        """The model is there, after so long."""

    def in_flight(self, requests: int) -> None:
        """So many have been accepted and not yet answered."""

    def waiting(self, jobs: int) -> None:
        """So many wait for the model."""

    def joined(self, requests: int) -> None:
        """So many go through the model together."""

    def dropped(self, reason: Literal["deadline", "gone"]) -> None:
        """A job was given up: too late, or nobody waits for it."""


class _Deaf:
    """Where nobody wants to know."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *told: None


class Engine:
    """Loads a model in its own thread and runs jobs on it in turn.

    `load` is called once, in the inference thread. States: loading → ready → draining, or failed. Waiting reads that
    are alike go through the model in one pass of at most `coalesce_tokens` padded tokens: see `service.coalescing`.
    """

    def __init__(
        self,
        load: Callable[[], LoadedModel],
        limits: Limits,
        *,
        watchdog_seconds: float = math.inf,
        coalesce_tokens: int = 0,
    ) -> None:
        self.limits = limits
        self._load = load
        self._watchdog_seconds = watchdog_seconds
        self._coalesce_tokens = coalesce_tokens
        self._waiting: deque[_Job] = deque()
        self._closed = False
        self._changed = threading.Condition()  # of the two above
        self._lock = threading.Lock()
        self._in_flight = 0
        self._running: _Job | None = None
        self._recent_seconds = 1.0  # of a job, smoothed; for Retry-After
        self._state: State = "loading"
        self._draining = False
        self._model: LoadedModel | None = None
        self._load_seconds: float | None = None
        self._observer: Observer = _Deaf()
        self._thread = threading.Thread(target=self._serve, name="inference", daemon=True)

    def start(self) -> Engine:
        """Start loading; returns at once."""
        self._thread.start()
        return self

    def observe(self, observer: Observer) -> None:
        """Tell the observer what happens from now on, and what is loaded already."""
        with self._changed:
            self._observer = observer
            if self._model is not None and self._load_seconds is not None:
                observer.loaded(self._model, self._load_seconds)

    @property
    def state(self) -> State:
        """Where the engine is in its life."""
        return "draining" if self._draining else self._state

    @property
    def alive(self) -> bool:
        """False once only a restart helps: the inference thread is gone (its load failed, or it died), or one job has
        been at a layer for many times what the watchdog allows."""
        return self._thread.is_alive() and self._silent_seconds() <= GIVE_UP * self._watchdog_seconds

    @property
    def hung(self) -> bool:
        """Whether the running job has been at a layer for longer than the watchdog allows."""
        return self._silent_seconds() > self._watchdog_seconds

    def _silent_seconds(self) -> float:
        job = self._running  # an evaluation may take many times as long, and is not stuck
        return time.monotonic() - max(job.started, job.seen) if job and job.started else 0.0

    @property
    def model(self) -> LoadedModel:
        """The loaded model. Raises NotReadyError while there is none that can be asked."""
        if self._model is None or self.state != "ready" or self.hung or not self.alive:
            raise NotReadyError(self._why_not_ready(), retry_after_seconds=5)
        return self._model

    def _why_not_ready(self) -> str:
        if self.state == "failed":
            return "The model could not be loaded; the service's log says why."
        if self.state == "draining":
            return "The service is shutting down."
        if self.state == "ready":
            return "The model does not answer: a job has been at one layer for too long."
        return "The model is loading."

    def drain(self) -> None:
        """Refuse new requests; those already accepted are still answered. May be called in a signal handler."""
        self._draining = True

    @contextlib.contextmanager
    def admit(
        self,
        max_elements: int | None = None,
        *,
        exact: bool = False,
        sparse: bool = True,
        kind: str = "",
        gone: Callable[[], bool] = lambda: False,
    ) -> Iterator[Session]:
        """Take one of the places in flight, for one request, from acceptance to serialised answer.

        `gone` says whether nobody waits for the answer any more; it is called while a job is waited for. Raises
        NotReadyError, or OverloadedError within microseconds when all places are taken.
        """
        model = self.model
        with self._lock:
            # One accepted request may be running; all others wait.
            for limit, actual in (
                (self.limits.max_in_flight, self._in_flight + 1),
                (self.limits.max_queue_length, self._in_flight),
            ):
                if actual > limit:
                    raise OverloadedError(
                        "As many requests as the service takes are waiting; try again later.",
                        limit=limit,
                        actual=actual,
                        retry_after_seconds=max(1, math.ceil(self._in_flight * self._recent_seconds)),
                    )
            self._in_flight += 1
            self._observer.in_flight(self._in_flight)
        try:
            deadline = Deadline.after(self.limits.deadline_seconds)
            yield Session(
                self,
                model,
                self.limits,
                deadline,
                max_elements or self.limits.max_response_elements,
                exact,
                sparse,
                kind,
                gone,
            )
        finally:
            with self._lock:
                self._in_flight -= 1
                self._observer.in_flight(self._in_flight)

    def run(
        self, work: Work | ReadCall, deadline: Deadline, gone: Callable[[], bool] = lambda: False
    ) -> tuple[float, float]:
        """Do `work` in the inference thread, and wait; returns the seconds waited and run.

        A `ReadCall` is read, perhaps together with others; anything else is called with `check`: `check(layer)` raises
        when the deadline has passed or the caller has gone. Raises DeadlineExceededError at the deadline even when
        the job hangs, ClientGoneError soon after `gone` says so, and whatever the job raised.
        """
        job = _Job(work, deadline)
        with self._changed:
            self._waiting.append(job)
            self._observer.waiting(len(self._waiting))
            self._changed.notify()
        try:
            while not job.done.wait(max(0.0, min(LOOK_SECONDS, deadline.at - time.monotonic()))):
                if deadline.passed:
                    self._drop(job, "deadline")
                    raise deadline.error()
                if gone():
                    self._drop(job, "gone")
                    raise ClientGoneError("The client closed the connection.")
            if isinstance(job.error, DeadlineExceededError):
                self._observer.dropped("deadline")
            if isinstance(job.error, Exception):
                raise job.error
            if job.error is not None:  # an exit inside a job must not end the thread that waits for it
                raise RuntimeError("the job was ended") from job.error
        finally:
            job.error = None  # see _Job.fail
        started = job.started or job.queued
        return started - job.queued, (job.ended or started) - started

    def _drop(self, job: _Job, reason: Literal["deadline", "gone"]) -> None:
        """Nobody waits for it: it does not start, or stops at its next layer."""
        job.cancelled = True
        with self._changed:  # it keeps nobody from being joined
            self._waiting = deque(one for one in self._waiting if one is not job)
            self._observer.waiting(len(self._waiting))
        self._observer.dropped(reason)

    def _serve(self) -> None:
        started = time.monotonic()
        try:
            model = self._model = self._load()
        except BaseException as error:
            log.exception("the model could not be loaded", extra={"reason": str(error)})
            self._state = "failed"
            return
        with self._changed:
            seconds = self._load_seconds = time.monotonic() - started
            self._observer.loaded(model, seconds)
        self._state = "ready"
        log.info("ready", extra={"load_seconds": round(seconds, 3)})
        while jobs := self._next():
            self._perform(model, jobs)
            jobs.clear()  # the last ones' answers are not kept until the next ones come

    def _next(self) -> list[_Job]:
        """The job whose turn it is, with those behind it that can be read in the same pass; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            jobs, others = [self._waiting.popleft()], deque[_Job]()
            for job in self._waiting:
                calls = [one.work for one in (*jobs, job) if isinstance(one.work, ReadCall)]
                together = len(calls) == len(jobs) + 1 and go_together(calls, self._coalesce_tokens)
                (jobs if together else others).append(job)
            self._waiting = others
            self._observer.waiting(len(others))
            return jobs

    def _perform(self, model: LoadedModel, jobs: Sequence[_Job]) -> None:
        """Run one job, or read several in one pass, and tell whoever waits."""
        began = time.monotonic()
        for job in jobs:
            job.started = began
        self._running = jobs[0]
        try:
            if len(jobs) > 1:
                self._observer.joined(len(jobs))
            with torch.inference_mode():  # per thread
                self._run_or_read(model, jobs)
        except BaseException as error:
            for job in jobs:
                job.fail(job.error or error)
        finally:
            self._running = None
            ended = time.monotonic()  # here: the caller may have to wait before it goes on
            self._recent_seconds += 0.2 * ((ended - began) / len(jobs) - self._recent_seconds)
            for job in jobs:
                job.ended = ended
                job.done.set()

    @staticmethod
    def _run_or_read(model: LoadedModel, jobs: Sequence[_Job]) -> None:
        live = []
        for job in jobs:
            try:
                job.check()
            except DeadlineExceededError as error:
                job.fail(error)
            else:
                live.append(job)
        calls = [job.work for job in live if isinstance(job.work, ReadCall)]
        if calls:
            try:
                read_together(model.reader, calls, [job.check for job in live])
            finally:
                for job, call in zip(live, calls, strict=True):
                    if call.error is not None:
                        job.fail(call.error)
                        call.error = None
        else:
            for job in live:
                if not isinstance(job.work, ReadCall):
                    job.work(job.check)

    def close(self, seconds: float | None = None) -> bool:
        """End the inference thread after what is queued; says whether it ended within so long."""
        self.drain()
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:  # started
            self._thread.join(seconds)
        return not self._thread.is_alive()


@dataclass
class Session:
    """One admitted request's view of the model: tokenise here, run the model in the inference thread."""

    engine: Engine
    model: LoadedModel
    limits: Limits
    deadline: Deadline
    max_elements: int  # of the answer, in the format it will be sent in
    exact: bool  # whether that format takes numbers as they are, not rounded
    sparse: bool  # whether of the largest weights it holds no more than those
    kind: str = ""  # what is asked, as reads of different kinds do not go through the model together
    gone: Callable[[], bool] = lambda: False  # whether nobody waits for the answer any more
    seconds: dict[str, float] = field(default_factory=dict)  # where the time went: tok, queue, fwd
    tokens: int = 0  # of the texts that were tokenised

    def check(self) -> None:
        """Raise DeadlineExceededError or ClientGoneError; between what runs outside the inference thread."""
        if self.deadline.passed:
            raise self.deadline.error()
        if self.gone():
            raise ClientGoneError("The client closed the connection.")

    def allow_tokens(self, tokens: int) -> None:
        """Give an evaluation as long for every longest text's worth of tokens as another request has."""
        self.deadline = self.deadline.extended(max(1.0, tokens / self.limits.max_tokens_per_text))

    @property
    def max_tokens_per_text(self) -> int:
        """The limit, or the model's own where that is lower."""
        return min(self.limits.max_tokens_per_text, self.model.max_tokens)

    def tokenize(self, one: Input, *, parse_special: bool) -> TokenizedText:
        """The tokens of one input, in the caller's thread."""
        started = time.monotonic()
        tokenized = self.model.tokenize(one, parse_special=parse_special, at_most=self.max_tokens_per_text)
        self._took("tok", time.monotonic() - started)
        self.tokens += len(tokenized)
        return tokenized

    def read(
        self,
        sequences: Sequence[Sequence[int]],
        heads: Mapping[int, Sequence[int]],
        consume: Callable[[Rows], None],
        *,
        queries: Sequence[Sequence[int]] | None = None,
        weighting: Weighting = "attention",
    ) -> None:
        """`AttentionReader.read` in the inference thread, bounded by the request's deadline."""
        self.model.reader.check(sequences, heads, queries)  # here: a wrong request joins no others
        self._run(ReadCall(sequences, heads, consume, queries, weighting, self.kind))

    def continuations(self, sequences: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[float]:
        """`continuation_log_probabilities` in the inference thread, bounded by the request's deadline.

        Raises UnsupportedModelError where the weights hold no output matrix.
        """
        output_matrix = self.model.output_matrix
        if output_matrix is None:
            raise UnsupportedModelError("the weights hold no output matrix (lm_head.weight)")
        found: list[float] = []

        def call(check: Callable[[int], None]) -> None:
            found.extend(
                continuation_log_probabilities(
                    self.model.reader, output_matrix, sequences, firsts, before_layer=check
                )
            )

        self._run(call)
        return found

    def _run(self, work: Work | ReadCall) -> None:
        waited, ran = self.engine.run(work, self.deadline, self.gone)
        self._took("queue", waited)
        self._took("fwd", ran)

    def _took(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds
