"""What the worker is made of, without a server: which bytes are a head, and whether a client is still there."""

from __future__ import annotations

import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.body import client_gone
from service.errors import DeadlineExceededError
from service.formats import drawing
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
        (b"GET /" + b"a" * 8185, False),
        (b"GET /" + b"a" * 8190, True),  # the line is too long
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6 - 10), False),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6), True),
    ],
)
def test_a_head_is_handed_on_when_nothing_more_need_come(head: bytes, decidable: bool) -> None:
    assert _decidable(bytearray(head), 8190) is decidable


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
    def draw(patience: float | None) -> float:
        started = time.monotonic()
        if patience is None:
            with drawing.one_at_a_time():
                return time.monotonic() - started
        with drawing.begun_by(started + patience), drawing.one_at_a_time():
            return time.monotonic() - started

    with ThreadPoolExecutor(3) as threads:
        with drawing.one_at_a_time():
            late, patient, unbounded = (threads.submit(draw, patience) for patience in (0.2, 30.0, None))
            with pytest.raises(DeadlineExceededError, match="turn"):
                late.result()
            time.sleep(0.2)
        assert 0.3 < patient.result() < 10
        assert 0.3 < unbounded.result() < 10
    assert draw(0.0) < 0.1  # free: no wait, no refusal
