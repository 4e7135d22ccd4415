"""What clients, networks and orchestrators do to a service, on a real gunicorn whose jobs do as they are told.

The numbers in the section titles are those of the hazards' table that the service was built against; the wire on the
real weights is in test_serving.py.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.serving import Answer, Server, serving_stub

ASKED = {"text": "the cat sat on the mat", "layers": [0], "heads": [3]}
LONG = {"text": "the cat sat on the mat " * 12}
THREADS = 12
HEARTBEAT = 3  # seconds; gunicorn's `timeout`


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stub")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Server]:
    options = ("--timeout", str(HEARTBEAT))
    with serving_stub(folder, *options, header_timeout_seconds=1.5, body_timeout_seconds=2) as running:
        yield running


@pytest.fixture
def stub(shared: Server, folder: Path) -> Iterator[Server]:
    yield shared
    for name in ("hold", "hang", "loading"):
        (folder / name).unlink(missing_ok=True)
    shared.wait_ready(20)
    wait_until(lambda: in_flight(shared) == 0)


def works(server: Server) -> None:
    assert server.post("/v1/attention", ASKED).status == 200


def in_flight(server: Server) -> int:
    return int(server.get("/stub/state").json["in_flight"])


def waiting(server: Server) -> int:
    return int(server.get("/stub/state").json["waiting"])


def all_threads_are_free(server: Server) -> None:
    """So many requests at once are answered only when each has a thread."""
    with ThreadPoolExecutor(THREADS) as clients:
        answers = list(clients.map(lambda _: server.get("/stub/everyone").status, range(THREADS)))
    assert answers == [200] * THREADS


def open_files(server: Server) -> int:
    (worker,) = server.workers()
    return len(list(Path(f"/proc/{worker}/fd").iterdir()))


@contextlib.contextmanager
def connected(server: Server, *, seconds: float = 20) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        yield connection


def request_bytes(
    path: str = "/v1/attention", body: object = ASKED, method: str = "POST", *headers: str
) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


def answer_on(connection: socket.socket, method: str = "POST") -> Answer:
    """One answer; it is read to its end and no further where it declares its length."""
    response = http.client.HTTPResponse(connection, method=method)
    response.begin()
    data = response.read()
    return Answer(response.status, response.headers, data)


def a_problem(answer: Answer, status: int) -> Any:
    assert answer.status == status, answer.data
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json["status"] == status
    assert answer.json["request_id"] == answer.headers["X-Request-ID"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    return answer.json


def logged(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]


# --- 6: chunked bodies --------------------------------------------------------------------------------------


CHUNKED = request_bytes(body=None).replace(
    b"\r\n\r\n", b"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunks(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


@pytest.mark.parametrize(("excess", "status"), [(0, 200), (1, 413)])
def test_a_chunked_body_may_be_as_long_as_the_cap_and_not_a_byte_longer(
    stub: Server, excess: int, status: int
) -> None:
    cap = stub.get("/v1/model").json["limits"]["max_body_bytes"]
    raw = json.dumps(ASKED).encode()
    padding = cap + excess - len(raw)
    parts = [raw, *([b" " * 65536] * (padding // 65536)), b" " * (padding % 65536)]
    with connected(stub) as connection:
        connection.sendall(CHUNKED + chunks(*(part for part in parts if part)))
        answer = answer_on(connection)
    assert answer.status == status
    if status == 413:
        assert (answer.json["limit"], answer.json["actual"]) == (cap, cap + 1)
    else:
        assert answer.data == stub.post("/v1/attention", ASKED).data


def test_a_chunked_body_may_be_small_have_trailers_and_keep_its_connection(stub: Server) -> None:
    raw = json.dumps(ASKED).encode()
    with connected(stub) as connection:
        for _ in range(2):
            connection.sendall(
                CHUNKED + chunks(*(bytes([byte]) for byte in raw), end=b"0\r\nX-Sum: 7\r\n\r\n")
            )
            assert answer_on(connection).status == 200


@pytest.mark.parametrize("end", [b"", b"zz\r\n", b"5\r\nabc"], ids=["cut", "no-number", "cut-chunk"])
def test_a_chunked_body_that_is_cut_or_broken_is_400(stub: Server, end: bytes) -> None:
    with connected(stub) as connection:
        connection.sendall(CHUNKED + chunks(json.dumps(ASKED).encode(), end=end))
        connection.shutdown(socket.SHUT_WR)
        assert a_problem(answer_on(connection), 400)["type"] == "/problems/malformed-body"
    works(stub)


# --- early answers, keep-alive, pipelining ------------------------------------------------------------------


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(stub: Server) -> None:
    head, _, body = request_bytes("/v1/attention", ASKED, "POST", "Expect: 100-continue").partition(
        b"\r\n\r\n"
    )
    with connected(stub) as connection:
        connection.sendall(head + b"\r\n\r\n")
        interim = b""
        while b"\r\n\r\n" not in interim:
            interim += connection.recv(1)
        assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert answer_on(connection).status == 200


EARLY = {
    "413": (413, "application/json", "/v1/attention"),
    "415": (415, "text/plain", "/v1/attention"),
    "404": (404, "application/json", "/nope"),
    "405": (405, "application/json", "/v1/model"),
}


@pytest.mark.parametrize(("status", "media_type", "path"), EARLY.values(), ids=EARLY)
def test_what_is_refused_by_its_headers_is_answered_before_the_body_comes(
    stub: Server, status: int, media_type: str, path: str
) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\nContent-Length: 50000000\r\n\r\n"
    )
    started = time.monotonic()
    with connected(stub) as connection:
        connection.sendall(head.encode())
        a_problem(answer_on(connection), status)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("media_type", ["text/plain", "application/json"])
def test_after_a_refusal_the_connection_takes_the_next_request(stub: Server, media_type: str) -> None:
    path = "/v1/attention" if media_type == "text/plain" else "/nope"
    refused = request_bytes(path).replace(b"application/json", media_type.encode())
    with connected(stub) as connection:
        for _ in range(3):
            connection.sendall(refused)
            assert answer_on(connection).status in (404, 415)
            connection.sendall(request_bytes())
            assert answer_on(connection).status == 200


def test_a_declared_body_of_a_get_is_no_next_request(stub: Server) -> None:
    """What looks like a request inside of a body is part of the body."""
    smuggled = b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"GET /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
    with connected(stub) as connection:
        connection.sendall(head + smuggled + request_bytes())
        assert answer_on_pipeline(connection, 2) == [200, 200]


def answer_on_pipeline(connection: socket.socket, count: int) -> list[int]:
    """The statuses of so many answers on one connection, in their order."""
    received, statuses = b"", []
    while len(statuses) < count:
        head, found, rest = received.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")),
            0,
        )
        if found and len(rest) >= length:
            statuses.append(int(head[9:12]))
            received = rest[length:]
            continue
        data = connection.recv(65536)
        assert data, (statuses, received)
        received += data
    assert received == b""
    return statuses


def test_two_requests_in_one_packet_get_two_answers_in_their_order(stub: Server) -> None:
    first, second = request_bytes(), request_bytes("/nope", None, "GET")
    with connected(stub) as connection:
        connection.sendall(first + second + first)
        assert answer_on_pipeline(connection, 3) == [200, 404, 200]
        connection.sendall(first + second[:9])  # the next one's beginning
        assert answer_on_pipeline(connection, 1) == [200]
        connection.sendall(second[9:])
        assert answer_on_pipeline(connection, 1) == [404]


# --- paths and methods --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/attention/", 200),
        ("//v1/attention", 200),  # Werkzeug takes leading slashes for one
        ("/v1//attention", 404),
        ("/v1/attention//", 404),
    ],
)
def test_slashes_never_redirect(stub: Server, path: str, status: int) -> None:
    with connected(stub) as connection:
        connection.sendall(request_bytes(path))
        assert answer_on(connection).status == status


FILLED = {"/problems/{slug}": "/problems/too-large"}
QUERIES = {
    "/v1/attention": "?text=the+cat&layer=0&head=0",
    "/v1/heads": "?text=the+cat+sat",
    "/v1/tokenize": "?text=the+cat",
    "/v1/kv-cache": "?model=llama-3.1-8b&tokens=100",
}
VARYING = {"date", "x-request-id", "server-timing"}


def routes(server: Server, method: str) -> list[str]:
    paths = server.get("/openapi.json").json["paths"]
    return [path for path, methods in paths.items() if method in methods]


def test_head_is_get_without_a_body_on_every_route(stub: Server) -> None:
    seen = []
    for route in routes(stub, "get"):
        path = FILLED.get(route, route) + QUERIES.get(route, "")
        get, head = stub.get(path), stub.request("HEAD", path)
        assert head.data == b"", route
        assert head.status == get.status, route
        same = [
            {name.lower(): value for name, value in answer.headers.items() if name.lower() not in VARYING}
            for answer in (get, head)
        ]
        if route == "/metrics":  # it counts the GET before
            same = [headers | {"content-length": ""} for headers in same]
        assert same[0] == same[1], route
        assert get.data, route
        seen.append(get.status)
    assert len(seen) > 8
    assert seen.count(200) > len(seen) / 2


def test_options_tells_the_methods_of_every_route(stub: Server) -> None:
    for route, methods in stub.get("/openapi.json").json["paths"].items():
        answer = stub.request("OPTIONS", FILLED.get(route, route.replace("{", "").replace("}", "")))
        assert answer.status in (200, 204), route
        assert answer.data == b"", route
        expected = {method.upper() for method in methods} | {"OPTIONS"}
        assert expected <= set(answer.headers["Allow"].split(", ")), route


# --- what is no request -------------------------------------------------------------------------------------


SECRET = b"zebra"
NO_REQUESTS = {
    "noise": (b"\x00\x01" + SECRET + b"\r\n\r\n", 400, "malformed-request"),
    "lower-case": (b"get /%s HTTP/1.1\r\n\r\n" % SECRET, 400, "malformed-request"),
    "no-colon": (b"GET / HTTP/1.1\r\n%s\r\n\r\n" % SECRET, 400, "malformed-request"),
    "bare-lf": (b"GET /%s HTTP/1.1\nHost: x\n\n" % SECRET, 400, "malformed-request"),
    "two-lengths": (
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\nA: %s\r\n\r\n" % SECRET,
        400,
        "malformed-request",
    ),
    "length-and-chunks": (
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\nA: %s\r\n\r\n" % SECRET,
        400,
        "malformed-request",
    ),
    "long-line": (b"GET /" + SECRET * 2000 + b" HTTP/1.1\r\n\r\n", 414, "url-too-long"),
    "endless-line": (b"GET /" + SECRET * 2000, 414, "url-too-long"),
    "expectation": (b"GET / HTTP/1.1\r\nExpect: %s\r\n\r\n" % SECRET, 417, "expectation-failed"),
    "long-header": (b"GET / HTTP/1.1\r\nA: " + SECRET * 2000 + b"\r\n\r\n", 431, "headers-too-large"),
    "many-headers": (b"GET / HTTP/1.1\r\n" + b"A: zebra\r\n" * 101 + b"\r\n", 431, "headers-too-large"),
    "endless-headers": (b"GET / HTTP/1.1\r\n" + b"A: zebra\r\n" * 7000, 431, "headers-too-large"),
    "coding": (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: %s\r\n\r\n" % SECRET,
        501,
        "unsupported-transfer-coding",
    ),
    "version": (b"GET /%s HTTP/3.0\r\n\r\n" % SECRET, 505, "unsupported-http-version"),
    "unfinished": (b"GET /%s HTTP/1.1\r\nHost: x\r\n" % SECRET, 408, "header-timeout"),
}


@pytest.mark.parametrize(("sent", "status", "slug"), NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_no_request_is_a_problem_too_and_is_not_echoed(
    stub: Server, sent: bytes, status: int, slug: str
) -> None:
    with connected(stub) as connection:
        connection.sendall(sent)
        answer = answer_on(connection, "GET")
        problem = a_problem(answer, status)
        assert connection.recv(1) == b""  # closed
    assert answer.headers["Connection"] == "close"
    assert problem["type"] == f"/problems/{slug}"
    if status == 414:
        assert problem["limit"] == stub.get("/v1/model").json["limits"]["max_url_bytes"]
    assert SECRET not in answer.data
    (line,) = (one for one in logged(stub) if one.get("request_id") == problem["request_id"])
    assert (line["logger"], line["status"]) == ("service.access", status)
    assert SECRET.decode() not in stub.log.read_text()
    assert stub.get(problem["type"]).status == 200


def test_an_unknown_method_is_405(stub: Server) -> None:
    a_problem(stub.request("BREW", "/v1/attention"), 405)


# --- connections without requests ---------------------------------------------------------------------------


def quickly(server: Server, limit: float = 1.0) -> None:
    started = time.monotonic()
    assert server.get("/health/live").status == 200
    assert time.monotonic() - started < limit


def test_silent_connections_hold_no_thread_and_are_closed(stub: Server) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connected(stub)) for _ in range(3 * THREADS)]
        time.sleep(0.2)
        quickly(stub)
        works(stub)
        started = time.monotonic()
        assert [one.recv(1) for one in silent] == [b""] * len(silent)
        assert time.monotonic() - started < 5


def test_dripped_headers_hold_no_thread_and_are_answered_408(stub: Server) -> None:
    with contextlib.ExitStack() as stack:
        dripping = [stack.enter_context(connected(stub)) for _ in range(3 * THREADS)]
        for _ in range(8):
            for one in dripping:
                with contextlib.suppress(OSError):  # on a busy machine its time may be up
                    one.sendall(b"G")
            time.sleep(0.05)
            quickly(stub)
        for one in dripping:
            a_problem(answer_on(one, "GET"), 408)
    all_threads_are_free(stub)


def test_headers_that_come_in_time_though_slowly_are_answered(stub: Server) -> None:
    head, _, body = request_bytes().partition(b"\r\n\r\n")
    with connected(stub) as connection:
        for byte in head + b"\r\n\r\n":
            connection.sendall(bytes([byte]))
            time.sleep(0.001)
        connection.sendall(body)
        assert answer_on(connection).status == 200


def test_clients_that_do_not_close_hold_up_nobody(stub: Server) -> None:
    """gthread waits up to two seconds for each of them, in its one main loop."""
    with contextlib.ExitStack() as stack:
        for _ in range(THREADS):
            connection = stack.enter_context(connected(stub))
            connection.sendall(request_bytes("/health/live", None, "GET", "Connection: close"))
            assert answer_on(connection).status == 200
        quickly(stub)


def test_bodies_that_never_end_are_408(stub: Server) -> None:
    head = request_bytes().partition(b"\r\n\r\n")[0] + b"\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        for one in [stack.enter_context(connected(stub)) for _ in range(THREADS)]:
            one.sendall(head)
        stuck = stack.enter_context(connected(stub))
        stuck.sendall(head)
        assert a_problem(answer_on(stuck), 408)["type"] == "/problems/body-timeout"
    all_threads_are_free(stub)


# --- clients that go away -----------------------------------------------------------------------------------


def reset(connection: socket.socket) -> None:
    """Close at once, with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def close(connection: socket.socket) -> None:
    connection.close()


def ask_and_leave(server: Server, sent: bytes, leave: Callable[[socket.socket], None]) -> None:
    with connected(server) as connection:
        connection.sendall(sent)
        time.sleep(0.02)
        leave(connection)


def left(server: Server, files: int) -> None:
    """As if nobody had been there."""
    wait_until(lambda: in_flight(server) == 0)
    all_threads_are_free(server)
    wait_until(lambda: open_files(server) <= files)
    works(server)
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def files(stub: Server) -> int:
    all_threads_are_free(stub)
    works(stub)
    time.sleep(0.3)
    return open_files(stub) + 1  # the one of the moment


@pytest.mark.parametrize("leave", [close, reset])
def test_50_clients_that_leave_amid_their_body(
    stub: Server, files: int, leave: Callable[[socket.socket], None]
) -> None:
    for _ in range(50):
        ask_and_leave(stub, request_bytes()[:-7], leave)
    left(stub, files)


@pytest.mark.parametrize("leave", [close, reset])
def test_50_clients_that_leave_while_their_requests_wait_are_never_run(
    stub: Server, folder: Path, files: int, leave: Callable[[socket.socket], None]
) -> None:
    before = len(logged(stub))
    (folder / "hold").touch()
    with ThreadPoolExecutor(1) as patient:
        kept = patient.submit(stub.post, "/v1/attention", LONG)
        wait_until(lambda: in_flight(stub) == 1)
        ran = (folder / "ran").read_text()
        for _ in range(8):
            with contextlib.ExitStack() as stack:
                queued = [stack.enter_context(connected(stub)) for _ in range(7)]
                for connection in queued:
                    connection.sendall(request_bytes())
                wait_until(lambda: waiting(stub) == 7)
                for connection in queued:
                    leave(connection)
            started = time.monotonic()
            wait_until(lambda: in_flight(stub) == 1)
            assert time.monotonic() - started < 1.5
        (folder / "hold").unlink()
        assert kept.result().status == 200
    assert len((folder / "ran").read_text().splitlines()) == len(ran.splitlines()) + 1
    statuses = [line["status"] for line in logged(stub)[before:] if line.get("route") == "/v1/attention"]
    assert statuses.count(499) == 56
    left(stub, files)


def test_a_running_job_whose_client_leaves_stops_at_its_next_layer(
    stub: Server, folder: Path, files: int
) -> None:
    (folder / "hold").touch()
    for _ in range(10):
        with connected(stub) as connection:
            connection.sendall(request_bytes())
            wait_until(lambda: in_flight(stub) == 1)
        wait_until(lambda: in_flight(stub) == 0, 1.5)
    with ThreadPoolExecutor(1) as next_one:  # it would wait behind a job that still ran
        kept = next_one.submit(stub.post, "/v1/attention", ASKED)
        wait_until(lambda: in_flight(stub) == 1)
        wait_until(lambda: waiting(stub) == 0)
        (folder / "hold").unlink()
        assert kept.result().status == 200
    left(stub, files)


def test_no_header_says_where_the_service_is(stub: Server) -> None:
    for lines in (
        b"SCRIPT_NAME: /x",
        b"PATH_INFO: /x",
        b"X-Forwarded-Proto: https\r\nX-Forwarded-Protocol: http",
    ):
        head = b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + lines
        assert stub.raw(head + b"\r\n\r\n").startswith(b"HTTP/1.1 200"), lines


def test_what_the_worker_refuses_is_counted(stub: Server) -> None:
    def counted() -> float:
        text = stub.get("/metrics").data.decode()
        line = re.search(r'^attention_http_requests_total\{[^}]*status="505"\} (\S+)$', text, re.MULTILINE)
        return float(line[1]) if line else 0.0

    before = counted()
    stub.raw(b"GET / HTTP/3.0\r\n\r\n", seconds=3)
    assert counted() == before + 1


def test_term_while_a_client_leaves_ends_in_order(tmp_path: Path) -> None:
    with serving_stub(tmp_path) as server:
        (tmp_path / "hold").touch()
        with connected(server) as connection:
            connection.sendall(request_bytes())
            wait_until(lambda: in_flight(server) == 1)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert server.process.wait(30) == 0
        log = server.log.read_text()
    assert "SIGABRT" not in log
    assert "terminate called" not in log


def test_clients_that_do_not_read_their_answers_are_given_up(tmp_path: Path) -> None:
    with serving_stub(tmp_path, send_timeout_seconds=1) as server, contextlib.ExitStack() as stack:
        for _ in range(THREADS):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(20)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(request_bytes("/v1/attention", LONG))
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        time.sleep(2)
        quickly(server)


def test_50_clients_that_leave_while_their_answers_are_written(stub: Server, files: int) -> None:
    size = len(stub.post("/v1/attention", LONG).data)
    assert size > 500_000
    for _ in range(50):
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(20)
            connection.connect(("127.0.0.1", stub.port))
            connection.sendall(request_bytes("/v1/attention", LONG))
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            reset(connection)
    left(stub, files)


def test_a_client_with_a_next_request_on_the_way_is_not_gone(stub: Server, folder: Path) -> None:
    (folder / "hold").touch()
    with connected(stub) as connection:
        connection.sendall(request_bytes() + request_bytes("/nope", None, "GET"))
        time.sleep(0.8)
        (folder / "hold").unlink()
        assert answer_on_pipeline(connection, 2) == [200, 404]


# --- 8: a full queue ----------------------------------------------------------------------------------------


def test_with_the_queue_full_health_is_answered_at_once_and_ready(stub: Server, folder: Path) -> None:
    (folder / "hold").touch()
    with ThreadPoolExecutor(8) as clients:
        accepted = [clients.submit(stub.post, "/v1/attention", ASKED) for _ in range(8)]
        wait_until(lambda: in_flight(stub) == 8)
        took, refused = [], 0
        connection = http.client.HTTPConnection("127.0.0.1", stub.port, timeout=20)
        for number in range(250):
            started = time.monotonic()
            connection.request("GET", "/health/live")
            response = connection.getresponse()
            assert response.read()
            took.append(time.monotonic() - started)
            assert response.status == 200
            if number % 50 == 0:
                answer = stub.post("/v1/attention", ASKED)
                a_problem(answer, 429)
                assert int(answer.headers["Retry-After"]) >= 1
                refused += 1
        connection.close()
        assert stub.get("/health/ready").status == 200
        assert sorted(took)[int(0.99 * len(took))] < 0.2
        assert refused == 5
        (folder / "hold").unlink()
        assert [one.result().status for one in accepted] == [200] * 8


# --- 10, 16: loading and dying ------------------------------------------------------------------------------


def test_a_killed_worker_comes_back_and_may_load_for_three_heartbeats(stub: Server, folder: Path) -> None:
    (worker,) = stub.workers()
    (folder / "loading").touch()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: stub.workers() not in ([], [worker]))
    (successor,) = stub.workers()

    def live() -> bool:
        with contextlib.suppress(OSError):
            return stub.get("/health/live").status == 200
        return False

    wait_until(live, 60)
    end = time.monotonic() + 3 * HEARTBEAT
    while time.monotonic() < end:
        assert stub.get("/health/live").status == 200
        for refused in (stub.get("/health/ready"), stub.post("/v1/attention", ASKED)):
            assert a_problem(refused, 503)["type"] == "/problems/not-ready"
            assert int(refused.headers["Retry-After"]) >= 1
        time.sleep(0.25)
    assert stub.workers() == [successor]  # loading is no reason to be killed
    (folder / "loading").unlink()
    stub.wait_ready(10)
    works(stub)
    assert stub.workers() == [successor]


# --- 14 -----------------------------------------------------------------------------------------------------


def test_every_job_is_in_inference_mode_and_no_result_needs_a_gradient(stub: Server, folder: Path) -> None:
    for path in ("/v1/attention", "/v1/heads"):
        assert stub.post(path, {"text": "the cat sat on the mat"}).status == 200
    ran = [line.rsplit(" ", 3) for line in (folder / "ran").read_text().splitlines()]
    assert len(ran) >= 2
    assert {(inference, graded) for _, inference, graded, _ in ran} == {("True", "False")}


# --- 9, 15: deadlines and hanging ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("hasty")
    with serving_stub(folder, deadline_seconds=1, watchdog_seconds=0.6) as running:
        yield running, folder


def test_a_job_of_ten_seconds_is_504_after_its_second_and_what_expired_behind_it_never_runs(
    hasty: tuple[Server, Path],
) -> None:
    server, folder = hasty
    works(server)
    ran = (folder / "ran").read_text()
    (folder / "hold").touch()
    with ThreadPoolExecutor(5) as clients:
        started = time.monotonic()
        asked = [clients.submit(server.post, "/v1/attention", ASKED) for _ in range(5)]
        for one in asked:
            a_problem(one.result(), 504)
            assert 0.9 < time.monotonic() - started < 2
    (folder / "hold").unlink()
    works(server)
    assert len((folder / "ran").read_text().splitlines()) == len(ran.splitlines()) + 1


def test_a_hanging_job_ends_readiness_then_liveness_and_both_return_with_it(
    hasty: tuple[Server, Path],
) -> None:
    server, folder = hasty
    (folder / "hang").touch()
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(server.post, "/v1/attention", ASKED)
        wait_until(lambda: server.get("/health/ready").status == 503)
        assert server.get("/health/live").status == 200
        refused = server.post("/v1/attention", ASKED)
        assert "at one layer for too long" in a_problem(refused, 503)["detail"]
        assert refused.headers["Retry-After"]
        assert asked.result().status == 504
        wait_until(lambda: server.get("/health/live").status == 503)  # 5 times the watchdog's limit
    (folder / "hang").unlink()
    server.wait_ready(10)
    assert server.get("/health/live").status == 200
    works(server)


@pytest.mark.parametrize(
    "path",
    ["/v1/attention?text=the+cat&layer=0&head=0&format=png", "/v1/kv-cache?model=llama-3.1-8b&format=png"],
)
def test_a_picture_whose_turn_does_not_come_in_time_is_504(hasty: tuple[Server, Path], path: str) -> None:
    server, _ = hasty
    assert server.get(path).status == 200
    with ThreadPoolExecutor(1) as clients:
        drawing = clients.submit(server.get, "/stub/draw?seconds=2.5")
        time.sleep(0.3)
        started = time.monotonic()
        assert "turn" in a_problem(server.get(path), 504)["detail"]
        assert 0.7 < time.monotonic() - started < 2
        assert drawing.result().status == 200
    assert server.get(path).status == 200


# --- 11: TERM -----------------------------------------------------------------------------------------------


def test_term_answers_eight_in_flight_is_not_ready_at_once_and_exits_in_time(tmp_path: Path) -> None:
    with serving_stub(tmp_path) as server:
        (tmp_path / "hold").touch()
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        kept.request("GET", "/health/ready")  # a stopping server takes no new connections
        assert kept.getresponse().read()
        silent = socket.create_connection(("127.0.0.1", server.port))
        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(server.post, "/v1/attention", ASKED) for _ in range(8)]
            wait_until(lambda: in_flight(server) == 8)
            server.process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            while True:
                kept.request("GET", "/health/ready")
                ready = kept.getresponse()
                problem = json.loads(ready.read())
                if ready.status == 503:
                    break
                assert time.monotonic() - started < 1
            assert problem["detail"] == "The service is shutting down."
            time.sleep(1)
            (tmp_path / "hold").unlink()
            assert [one.result().status for one in asked] == [200] * 8
        assert server.process.wait(10) == 0
        silent.close()


# --- 12, 13: workers ----------------------------------------------------------------------------------------


def test_two_workers_each_multiply_and_there_is_no_control_socket(tmp_path: Path) -> None:
    with serving_stub(tmp_path, "--workers", "2") as server:
        workers = set(server.workers())
        assert len(workers) == 2
        end = time.monotonic() + 30
        ran: set[int] = set()
        while ran != workers and time.monotonic() < end:
            with ThreadPoolExecutor(8) as clients:
                statuses = list(clients.map(lambda _: server.post("/v1/attention", ASKED).status, range(16)))
            assert set(statuses) <= {200, 429, 503}
            ran = {int(line.split()[-1]) for line in (tmp_path / "ran").read_text().splitlines()}
        assert ran == workers
        threads = list(Path(f"/proc/{server.process.pid}/task").iterdir())
        assert len(threads) == 1  # the master's own: preload off, control socket off
