"""How long a body may take in all, on connected sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from service.body import ReadWatch


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """What the service reads from, and what its client writes to."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        yield ours, theirs


def seconds_until_the_end(connection: socket.socket) -> float:
    started = time.monotonic()
    while connection.recv(1):
        pass
    return time.monotonic() - started


def test_reading_ends_when_the_time_is_up_however_often_a_byte_comes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.sendall(b"{" * 9)
    with ReadWatch().within(0.3, ours):
        assert 0.2 < seconds_until_the_end(ours) < 5
    theirs.settimeout(10)
    ours.sendall(b"408")
    assert theirs.recv(9) == b"408"  # the answer still goes out


def test_a_connection_whose_body_was_read_in_time_stays_open(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    watch = ReadWatch()
    for _ in range(2):  # the second finds the watch asleep until the first one's end
        with watch.within(0.2, ours):
            theirs.sendall(b"{")
            assert ours.recv(9) == b"{"
    time.sleep(0.5)
    theirs.sendall(b"}")
    assert ours.recv(9) == b"}"


def test_the_shorter_time_ends_first_though_it_began_later(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    other, their_other = socket.socketpair()
    watch = ReadWatch()
    with other, their_other, watch.within(60, other):
        time.sleep(0.1)  # the watch sleeps for a minute
        with watch.within(0.2, ours):
            assert seconds_until_the_end(ours) < 5
        their_other.sendall(b"{")
        assert other.recv(9) == b"{"


def test_after_a_time_with_nothing_to_watch_it_watches_again(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = pair
    watch = ReadWatch()
    with watch.within(0.1, ours):
        pass
    time.sleep(0.3)  # now it sleeps until it is woken
    with watch.within(0.2, ours):
        assert seconds_until_the_end(ours) < 5
