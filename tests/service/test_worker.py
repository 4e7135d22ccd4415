"""What the worker is made of, without a server: which bytes are a head, and whether a client is still there."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.body import client_gone
from service.errors import (
    DeadlineExceededError,
    NotAcceptableError,
    RequestError,
    UnsupportedMediaTypeError,
)
from service.formats import drawing
from service.problems import PROBLEMS, wire_problem
from service.security import origin_in
from service.worker import MAX_HEAD_BYTES, _decidable


@pytest.mark.parametrize(
    ("head", "decidable"),
    [
        (b"", False),
        (b"GET / HTTP/1.1\r", False),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r", False),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nbody\n", True),
        (b"\r\nGET / HTTP/1.1\r\n", False),
        (b"GET / HTTP/1.1\n", True),  # no head will come of it
        (b"GET /" + b"a" * 8190, False),  # too long a line, but whose page asks is yet to come
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6 - 10), False),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6), True),
    ],
)
def test_a_head_is_handed_on_when_nothing_more_need_come(head: bytes, decidable: bool) -> None:
    assert _decidable(bytearray(head)) is decidable


@pytest.mark.parametrize(
    ("head", "origin"),
    [
        (b"GET / HTTP/1.1\r\nOrigin: https://a.example\r\nHost: x\r\n\r\n", "https://a.example"),
        (b"GET / HTTP/1.1\r\nHost: x\r\norigin:https://a.example:8443 \t\r\n\r\n", "https://a.example:8443"),
        (b"GET / HTTP/1.1\r\nOrigin: null\r\n", "null"),  # as far as it has come
        (b"GET / HTTP/1.1\r\nOrigin: https://a.exam", None),
        (b"GET / HTTP/1.1\r\nX-Origin: https://a.example\r\n\r\n", None),
        (b"GET / HTTP/1.1\r\nOrigin: https://a.example\x00\r\n\r\n", None),
        (b"GET / HTTP/1.1\r\nOrigin: https://a.example\r\nOrigin: https://b.example\r\n\r\n", None),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n\r\nOrigin: https://a.example\r\n", None),  # of the body
        (b"Origin: https://a.example", None),
        (b"", None),
    ],
)
def test_the_origin_is_read_off_a_head_that_nobody_has_parsed(head: bytes, origin: str | None) -> None:
    assert origin_in(head) == origin


def test_a_problem_that_tells_a_limit_tells_what_was_over_it() -> None:
    for row in PROBLEMS:
        if not issubclass(row.exception, RequestError) or row.exception is NotAcceptableError:
            continue
        with pytest.raises(TypeError):
            row.exception("", limit=3)
        if row.exception is not UnsupportedMediaTypeError:
            _, body = wire_problem(row.exception("", limit=3, actual=5), "id")
            assert json.loads(body).items() >= {"limit": 3, "actual": 5}.items()


def test_a_client_is_gone_when_it_has_closed_and_not_while_it_is_silent_or_sends_more() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        assert not client_gone(ours)
        theirs.sendall(b"next")
        assert not client_gone(ours)
        assert ours.recv(4) == b"next"  # nothing was taken
        theirs.shutdown(socket.SHUT_WR)  # half closed counts as gone
        assert client_gone(ours)
        theirs.close()
        assert client_gone(ours)
    assert not client_gone(None)


def test_a_client_that_resets_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        with ours:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()
            assert client_gone(ours)


def test_a_drawing_waits_for_its_turn_until_its_deadline_and_without_one_for_as_long_as_it_takes() -> None:
    def draw(patience: float | None) -> str:
        by = contextlib.nullcontext() if patience is None else drawing.begun_by(time.monotonic() + patience)
        with by, drawing.one_at_a_time():
            return "drawn"

    with ThreadPoolExecutor(3) as threads:
        with drawing.one_at_a_time():
            late, patient, unbounded = (threads.submit(draw, patience) for patience in (0.2, 60.0, None))
            with pytest.raises(DeadlineExceededError, match="turn"):
                late.result(30)
            assert not patient.done()
            assert not unbounded.done()
        assert patient.result(30) == unbounded.result(30) == "drawn"
    assert draw(0.0) == "drawn"  # free: no refusal
