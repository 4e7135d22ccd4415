"""The engine alone: states, admission, deadlines, and one thread for everything."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from service.coalescing import ReadCall
from service.engine import Deadline, Engine
from service.errors import ClientGoneError, DeadlineExceededError, NotReadyError, OverloadedError
from service.model import LoadedModel
from service.settings import Settings
from tests.conftest import wait_until

NOTHING = cast(LoadedModel, SimpleNamespace())

Start = Callable[..., Engine]


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[Engine] = []

    def make(
        load: Callable[[], LoadedModel] = lambda: NOTHING, *, watchdog_seconds: float = 60, **limits: Any
    ) -> Engine:
        engine = Engine(load, Settings(**limits), watchdog_seconds=watchdog_seconds).start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def ready(engine: Engine) -> Engine:
    wait_until(lambda: engine.state == "ready")
    return engine


def run(
    engine: Engine, call: Callable[[Callable[[int], None]], None], seconds: float = 10
) -> tuple[float, float]:
    return engine.run(call, Deadline.after(seconds))


def test_the_model_is_loaded_and_run_in_one_and_the_same_thread(start: Start) -> None:
    threads: list[int] = []

    def load() -> LoadedModel:
        threads.append(threading.get_ident())
        return NOTHING

    engine = ready(start(load))
    run(engine, lambda check: threads.append(threading.get_ident()))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_while_loading_nobody_is_admitted_and_the_caller_does_not_wait(start: Start) -> None:
    loading = threading.Event()

    def load() -> LoadedModel:
        loading.wait(10)
        return NOTHING

    engine = start(load)
    started = time.monotonic()
    with pytest.raises(NotReadyError, match="loading") as refused, engine.admit():
        pass
    assert time.monotonic() - started < 5
    assert refused.value.retry_after_seconds
    loading.set()
    ready(engine)
    with engine.admit():
        pass


def test_a_failed_load_is_a_state_with_a_reason(start: Start) -> None:
    def load() -> LoadedModel:
        raise RuntimeError("no such weights")

    engine = start(load)
    wait_until(lambda: engine.state == "failed" and not engine.alive)
    with pytest.raises(NotReadyError, match="could not be loaded"):
        _ = engine.model


def test_inference_mode_is_on_in_every_job(start: Start) -> None:
    seen: list[bool] = []
    engine = ready(start())
    for _ in range(2):
        run(engine, lambda check: seen.append(torch.is_inference_mode_enabled()))
    assert seen == [True, True]


def test_what_a_job_raises_reaches_its_caller_and_the_next_job_runs(start: Start) -> None:
    engine = ready(start())

    def fail(check: Callable[[int], None]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(engine, fail)
    ran: list[int] = []
    run(engine, lambda check: ran.append(1))
    assert ran == [1]


def test_an_exit_inside_a_job_ends_neither_the_caller_nor_the_engine(start: Start) -> None:
    engine = ready(start())

    def leave(check: Callable[[int], None]) -> None:
        raise SystemExit

    with pytest.raises(RuntimeError, match="ended"):
        run(engine, leave)
    run(engine, lambda check: None)


def test_the_time_to_come_back_follows_how_long_jobs_take(start: Start) -> None:
    engine = ready(start(max_in_flight=1))
    waits = []
    for _ in range(2):
        with engine.admit(), pytest.raises(OverloadedError) as refused, engine.admit():
            pass
        waits.append(refused.value.retry_after_seconds)
        engine._recent_seconds = 7.5
    assert waits == [1, 8]
    run(engine, lambda check: None)
    assert engine._recent_seconds < 7.5


def test_the_deadline_answers_even_when_the_job_hangs(start: Start) -> None:
    engine = ready(start())
    release = threading.Event()
    started = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        run(engine, lambda check: cast(None, release.wait(10)), seconds=0.2)
    assert 0.15 < time.monotonic() - started < 5
    release.set()


def test_a_job_that_expired_while_waiting_never_runs(start: Start) -> None:
    engine = ready(start())
    release = threading.Event()
    ran: list[str] = []
    first = threading.Thread(target=run, args=(engine, lambda check: cast(None, release.wait(10))))
    first.start()
    with pytest.raises(DeadlineExceededError):
        run(engine, lambda check: ran.append("late"), seconds=0.1)
    release.set()
    first.join()
    run(engine, lambda check: ran.append("next"))
    assert ran == ["next"]


def test_the_deadline_stops_a_running_job_at_its_next_layer(start: Start) -> None:
    engine = ready(start())
    layers: list[int] = []

    def slow(check: Callable[[int], None]) -> None:
        for layer in range(100):
            check(layer)
            layers.append(layer)
            time.sleep(0.02)

    with pytest.raises(DeadlineExceededError):
        run(engine, slow, seconds=0.1)
    run(engine, lambda check: None)  # runs only once the first has stopped
    assert 0 < len(layers) < 20


def test_a_waiting_job_nobody_waits_for_never_runs_and_is_given_up_soon(start: Start) -> None:
    engine = ready(start())
    release, left, ran = threading.Event(), threading.Event(), list[str]()
    first = threading.Thread(target=run, args=(engine, lambda check: cast(None, release.wait(10))))
    first.start()
    threading.Timer(0.3, left.set).start()
    started = time.monotonic()
    with pytest.raises(ClientGoneError):
        engine.run(lambda check: ran.append("for nobody"), Deadline.after(10), left.is_set)
    assert 0.25 < time.monotonic() - started < 5
    release.set()
    first.join()
    run(engine, lambda check: ran.append("next"))
    assert ran == ["next"]


def test_a_running_job_nobody_waits_for_stops_at_its_next_layer(start: Start) -> None:
    engine = ready(start())
    layers: list[int] = []

    def slow(check: Callable[[int], None]) -> None:
        for layer in range(1000):
            check(layer)
            layers.append(layer)
            time.sleep(0.01)

    with pytest.raises(ClientGoneError):
        engine.run(slow, Deadline.after(30), lambda: True)
    run(engine, lambda check: None)  # runs only once the first has stopped
    assert 0 < len(layers) < 200


def test_between_jobs_a_session_looks_for_its_client_too(start: Start) -> None:
    with ready(start()).admit(gone=lambda: True) as session, pytest.raises(ClientGoneError):
        session.check()


def test_a_full_house_is_refused_at_once_with_a_time_to_come_back(start: Start) -> None:
    engine = ready(start(max_queue_length=2, max_in_flight=8))
    places = [engine.admit() for _ in range(3)]  # one that may run, two that may wait
    for place in places:
        place.__enter__()
    started = time.monotonic()
    with pytest.raises(OverloadedError) as refused, engine.admit():
        pass
    assert time.monotonic() - started < 5
    assert refused.value.retry_after_seconds is not None
    assert refused.value.retry_after_seconds >= 1
    assert (refused.value.limit, refused.value.actual) == (2, 3)  # the fourth would be the third that waits
    places.pop().__exit__(None, None, None)
    with engine.admit():
        pass
    for place in places:
        place.__exit__(None, None, None)


def test_a_place_is_given_back_when_the_request_fails(start: Start) -> None:
    engine = ready(start(max_queue_length=0))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), engine.admit():
            raise ZeroDivisionError


def test_draining_refuses_new_requests_and_finishes_old_ones(start: Start) -> None:
    engine = ready(start())
    with engine.admit():
        engine.drain()
        with pytest.raises(NotReadyError, match="shutting down"), engine.admit():
            pass
        ran: list[int] = []
        run(engine, lambda check: ran.append(1))
        assert ran == [1]


def test_a_job_that_goes_on_is_not_stuck_however_long_it_takes(start: Start) -> None:
    engine = ready(start(watchdog_seconds=0.3))
    hung = []

    def work(check: Callable[[int], None]) -> None:
        for layer in range(12):
            time.sleep(0.05)
            check(layer)
            hung.append(engine.hung)

    engine.run(work, Deadline.after(30))
    assert hung == [False] * 12


def test_a_job_past_the_watchdog_makes_the_engine_not_ready_until_it_ends(start: Start) -> None:
    engine = ready(start(watchdog_seconds=0.1))
    release = threading.Event()
    hanging = threading.Thread(target=run, args=(engine, lambda check: cast(None, release.wait(10))))
    hanging.start()
    wait_until(lambda: engine.hung)
    with pytest.raises(NotReadyError, match="at one layer for too long"):
        _ = engine.model
    assert engine.alive
    wait_until(lambda: not engine.alive)  # for good, as far as anyone can tell: a restart is due
    release.set()
    hanging.join()
    assert engine.alive
    assert engine.model is NOTHING


def test_an_evaluation_has_a_deadline_for_every_longest_text_it_could_hold(start: Start) -> None:
    with ready(start()).admit() as session:
        before = session.deadline
        session.allow_tokens(3)
        assert session.deadline == before
        session.allow_tokens(5 * session.limits.max_tokens_per_text)
        assert session.deadline.seconds == 5 * before.seconds
        assert session.deadline.at == pytest.approx(before.at + 4 * before.seconds)


class Ballast:
    """What a request holds: its texts and maps."""


@pytest.mark.parametrize("fault", ["raises", "deadline", "gone"])
@pytest.mark.parametrize("reading", [False, True])
def test_what_a_failed_job_held_is_freed_without_waiting_for_the_garbage_collector(
    start: Start, model: LoadedModel, fault: str, reading: bool
) -> None:
    """An error's traceback holds the frames that it passed, and they hold the job, which held the error."""
    engine = ready(start(lambda: model))

    def ask() -> weakref.ref[Ballast]:
        ballast, entered = Ballast(), threading.Event()

        def step(check: Callable[[int], None]) -> None:
            entered.set()
            if fault == "raises":
                raise ZeroDivisionError(ballast)
            time.sleep(0.4)  # meanwhile the caller gives up
            check(0)

        work = ReadCall([[1, 2, 3]], {0: [0], 1: [0]}, lambda rows: step(lambda layer: None))
        deadline = Deadline.after(0.15 if fault == "deadline" else 30)
        with pytest.raises((ZeroDivisionError, DeadlineExceededError, ClientGoneError)):
            engine.run(work if reading else step, deadline, lambda: fault == "gone" and entered.is_set())
        return weakref.ref(ballast)

    gc.collect()
    gc.disable()
    try:
        held = ask()
        run(engine, lambda check: None)
        wait_until(lambda: held() is None, 3)
    finally:
        gc.enable()
