"""gunicorn's threaded worker, with threads for whole requests only, and with our errors.

gthread gives a connection a thread when it is accepted, and waits in it: for the first byte 5 s, for the rest of the
headers for as long as the client likes. As many connections as there are threads, silent or dripping, hold up all
others, health included. Here the main loop collects the headers, and a request gets a thread when they are complete.
It also waits for the client's end of a connection that is being closed, which gthread does in its main loop, one
connection after the other, for up to 2 s each.

What gunicorn itself refuses is HTML that quotes the input; here it is problem+json that does not.
"""

from __future__ import annotations

import contextlib
import errno
import http
import logging
import selectors
import socket
import struct
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from gunicorn.http import errors as refusals
from gunicorn.http import get_parser
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER, TConn, ThreadWorker

from service import errors
from service.observability import Exchange, members
from service.problems import INTERNAL, MEDIA_TYPE, wire_problem
from service.security import cors, origin_in, policies
from service.settings import AROUND_URL_BYTES, Settings

log = logging.getLogger(__name__)
access = logging.getLogger("service.access")

HEAD_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 64 * 1024  # request line and headers
CLOSING_SECONDS = 2.0  # for a client to read its answer and close

THE_APPS_FAULT = (
    refusals.InvalidResponseHeader,
    refusals.InvalidResponseHeaderName,
    refusals.ConfigurationProblem,
)
REFUSALS: dict[type[Exception], type[errors.RequestError]] = {  # the first that fits
    refusals.LimitRequestHeaders: errors.HeadersTooLargeError,
    refusals.ExpectationFailed: errors.ExpectationError,
    refusals.UnsupportedTransferCoding: errors.TransferCodingError,
    refusals.InvalidHTTPVersion: errors.HttpVersionError,
    refusals.ParseException: errors.MalformedRequestError,
}


@dataclass(slots=True, eq=False)
class _Waiting:
    """A connection that has no thread: `step` is called when bytes are there, `late` when it has waited too long."""

    conn: TConn
    until: float  # of time.monotonic()
    step: Callable[[], None]
    late: Callable[[], None]
    head: bytearray = field(default_factory=bytearray)
    asking: bool = False  # it has not sent its whole head
    passed_over: int = 0  # bytes


class Worker(ThreadWorker):
    """See the module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = Settings()
        self._header_seconds = settings.header_timeout_seconds
        self._max_url_bytes = settings.max_url_bytes
        self._root_path = settings.root_path
        self._origins = settings.cors_origins
        seconds = settings.send_timeout_seconds
        self._send_timeout = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        self._waiting: dict[int, _Waiting] = {}  # by file descriptor; all in the main loop's thread
        self._asked_from: WeakKeyDictionary[socket.socket, str | None] = WeakKeyDictionary()  # their Origin
        self._sent_away, self._told_of_them = 0, 0.0

    # --- a connection's way -------------------------------------------------------------------------------------

    def accept(self, listener: socket.socket) -> None:
        """Take a connection, and wait for its request's headers."""
        try:
            client_sock, client_addr = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                # Not now; it stays in the listener's queue, and must not keep this loop spinning
                time.sleep(0.05)
            elif error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EWOULDBLOCK):
                raise
            return
        # A client that takes nothing of its answer would hold the thread that writes it for as long as it likes
        client_sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, self._send_timeout)
        self.nr_conns += 1
        conn = TConn(self.cfg, client_sock, client_addr, listener.getsockname())
        if self.cfg.is_ssl:  # its headers cannot be seen from here
            self.enqueue_req(conn)
        else:
            self._await_head(conn)

    def on_client_socket_readable(self, conn: TConn, client: Any) -> None:
        """A kept-alive connection's next request begins."""
        self.poller.unregister(client)
        self.keepalived_conns.remove(conn)
        if self.cfg.is_ssl:
            self.enqueue_req(conn)
        else:
            self._await_head(conn)

    def finish_request(self, conn: TConn, fs: Future[Any]) -> None:
        """What becomes of a connection after its answer. Called in the main loop."""
        kept = not fs.cancelled() and fs.exception() is None and fs.result()
        if self.cfg.is_ssl or (kept and not self._pipelined(conn)):
            super().finish_request(conn, fs)
        elif kept:
            self._await_head(conn, conn.parser.unreader.take_buffered())
        else:
            self._await_close(conn)

    @staticmethod
    def _pipelined(conn: TConn) -> bool:
        return bool(conn.parser.unreader.buf.getvalue())

    def _await_head(self, conn: TConn, begun: bytes = b"") -> None:
        conn.sock.setblocking(False)
        late = partial(self._head_is_late, conn)
        waiting = _Waiting(conn, 0.0, partial(self._read_head, conn), late, bytearray(begun), asking=True)
        self._wait(waiting, self._header_seconds)
        self._read_head(conn)  # most often it is there already

    def _read_head(self, conn: TConn) -> None:
        waiting = self._waiting[conn.sock.fileno()]
        try:
            while not _decidable(waiting.head):
                data = conn.sock.recv(MAX_HEAD_BYTES + 1 - len(waiting.head))
                if not data:
                    self._forget(waiting)
                    self._await_close(conn)
                    return
                waiting.head += data
        except BlockingIOError:
            return
        except OSError:
            self._drop_waiting(conn)
            return
        if len(waiting.head) > MAX_HEAD_BYTES and HEAD_END not in waiting.head:
            self._refuse_head(waiting, errors.HeadersTooLargeError(""))
            return
        self._forget(waiting)
        self._note_origin(waiting)
        if conn.parser is None:
            conn.parser = get_parser(self.cfg, conn.sock, conn.client)
        conn.parser.unreader.unread(bytes(waiting.head))
        conn.data_ready = True
        self.enqueue_req(conn)

    def _head_is_late(self, conn: TConn) -> None:
        waiting = self._waiting[conn.sock.fileno()]
        if waiting.head:
            self._refuse_head(waiting, errors.HeaderTimeoutError(""))
        else:
            self._forget(waiting)
            self._await_close(conn)  # it has asked nothing

    def _refuse_head(self, waiting: _Waiting, error: errors.RequestError) -> None:
        """Answer a head that has not come to its end: its first line may be too long all by itself."""
        self._forget(waiting)
        self._note_origin(waiting)
        line, _, _ = waiting.head.removeprefix(b"\r\n").partition(b"\r\n")
        if len(line) > self.cfg.limit_request_line:
            error = self._url_too_long(len(line))
        self.handle_error(None, waiting.conn.sock, waiting.conn.client, error)
        self._await_close(waiting.conn)

    def _url_too_long(self, line_bytes: int) -> errors.UrlTooLongError:
        return errors.UrlTooLongError("", limit=self._max_url_bytes, actual=line_bytes - AROUND_URL_BYTES)

    def _note_origin(self, waiting: _Waiting) -> None:
        if self._origins:
            self._asked_from[waiting.conn.sock] = origin_in(bytes(waiting.head))

    def handle_request(self, req: Any, conn: TConn) -> Any:
        """Refuse a body that is coded; gunicorn would hand on what it cannot decode."""
        codings = [value.lower() for name, value in req.headers if name == "TRANSFER-ENCODING"]
        if codings not in ([], ["chunked"]):
            raise refusals.UnsupportedTransferCoding("")
        return super().handle_request(req, conn)

    def _await_close(self, conn: TConn) -> None:
        """Close this side; the other's unread bytes are read for a while, else a reset may overtake the answer."""
        try:
            conn.sock.setblocking(False)
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(conn)
            return
        drop = partial(self._drop_waiting, conn)
        self._wait(_Waiting(conn, 0.0, partial(self._read_rest, conn), drop), CLOSING_SECONDS)
        self._read_rest(conn)

    def _read_rest(self, conn: TConn) -> None:
        waiting = self._waiting[conn.sock.fileno()]
        try:
            data = conn.sock.recv(8192)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        waiting.passed_over += len(data)
        if not data or waiting.passed_over > MAX_HEAD_BYTES:
            self._drop_waiting(conn)

    # --- waiting without a thread -------------------------------------------------------------------------------

    def _wait(self, waiting: _Waiting, seconds: float) -> None:
        patience = seconds if self.alive else min(seconds, STOP_KEEPALIVE_LINGER)
        waiting.until = time.monotonic() + patience
        self._waiting[waiting.conn.sock.fileno()] = waiting
        self.poller.register(waiting.conn.sock, selectors.EVENT_READ, lambda _: waiting.step())

    def _forget(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.conn.sock.fileno()]
        self.poller.unregister(waiting.conn.sock)

    def _drop_waiting(self, conn: TConn) -> None:
        self._forget(self._waiting[conn.sock.fileno()])
        self._drop(conn)

    def _drop(self, conn: TConn) -> None:
        self.nr_conns -= 1
        conn.close()

    def _make_room(self) -> None:
        """With all connections taken, let the one go that has waited longest for its head: not the last that came."""
        if self.nr_conns < self.worker_connections:
            return
        asking = [one for one in self._waiting.values() if one.asking]
        if len(asking) < 2:
            return
        self._drop_waiting(asking[0].conn)
        self._sent_away += 1
        if (now := time.monotonic()) - self._told_of_them >= 1:
            log.warning("no room for connections that do not ask", extra={"closed": self._sent_away})
            self._sent_away, self._told_of_them = 0, now

    def murder_pending(self) -> None:
        """End what has waited too long; the main loop calls this after all that has happened, and once a second."""
        super().murder_pending()
        self._make_room()  # not in `accept`: the connection that goes may be the next that has something to read
        now = time.monotonic()
        for waiting in [one for one in self._waiting.values() if one.until <= now]:
            waiting.late()

    def _cap_keepalive(self, deadline: float) -> None:
        """A stopping worker waits for nobody's headers longer than for those of a kept-alive connection."""
        super()._cap_keepalive(deadline)
        for waiting in self._waiting.values():
            waiting.until = min(waiting.until, deadline)

    # --- what is no request --------------------------------------------------------------------------------------

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: Exception) -> None:
        """Answer what never came to the app, or came out of it as an exception, as problem+json; and log it."""
        began, request_id = time.perf_counter(), uuid.uuid4().hex
        error = exc
        if isinstance(exc, refusals.LimitRequestLine):
            error = self._url_too_long(exc.size)
        elif not isinstance(exc, THE_APPS_FAULT):
            error = next((ours("") for theirs, ours in REFUSALS.items() if isinstance(exc, theirs)), exc)
        problem, body = wire_problem(error, request_id, self._root_path)
        if problem is INTERNAL:
            log.error("internal error", exc_info=exc, extra={"request_id": request_id})
        reason = http.HTTPStatus(problem.status).phrase
        headers = {
            "Content-Type": MEDIA_TYPE,
            "Content-Length": len(body),
            "X-Request-ID": request_id,
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
            **policies(MEDIA_TYPE),
            **cors(self._origins, self._asked_from.get(client)),
        }
        lines = [
            f"HTTP/1.1 {problem.status} {reason}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        head = "\r\n".join(lines) + "\r\n\r\n"
        with contextlib.suppress(OSError):
            client.setblocking(False)  # it may read nothing
            client.sendall(head.encode("ascii") + body)
        spent = time.perf_counter() - began
        exchange = Exchange("other", None, problem.status, MEDIA_TYPE, spent, len(body))
        access.info("request", extra={"request_id": request_id, **members(exchange), "method": None})
        self.wsgi.extensions["metrics"].answered(exchange)


def _decidable(head: bytearray) -> bool:
    """Whether gunicorn's parser can tell, without waiting for more, what this is: a whole head, or none.

    A first line that is too long waits for the rest too, which says whose page asked.
    """
    if not head:
        return False
    if HEAD_END in head or len(head) > MAX_HEAD_BYTES:
        return True
    return head.count(b"\n") != head.count(b"\r\n")  # a line ends with both
