"""Real gunicorn on the real weights: the article's figures by HTTP, hostile input on the wire, load, and signals."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving import Server, serving

SENTENCE = "The cat sat on the mat because it was tired."
DATA = Path(__file__).parents[2] / "service" / "data"
SMALL = {"text": SENTENCE, "layers": [5], "heads": [5]}


def items(file: str) -> list[dict[str, Any]]:
    lines = (DATA / file).read_text(encoding="utf-8").splitlines()
    return [
        {name: json.loads(line)[name] for name in ("text", "pronoun", "candidates", "gold")} for line in lines
    ]


# --- the article's figures ----------------------------------------------------------------------------------


def test_the_pronoun_head_attends_to_the_cat(server: Server) -> None:
    answer = server.post("/v1/attention", SMALL).json
    (result,) = answer["results"]
    words = [token["text"] for token in result["tokens"]]
    assert result["maps"][0]["weights"][words.index("it")][words.index("cat")] == pytest.approx(
        0.869, abs=0.002
    )
    assert answer["model"]["sha256"].startswith("1d9614638d18")


def test_sinks_and_the_previous_token_head(server: Server) -> None:
    answer = server.post("/v1/heads", {"text": SENTENCE}).json
    assert answer["summary"]["heads"] == 336
    assert answer["summary"]["labels"]["sink"]["fraction"] == pytest.approx(0.533, abs=0.01)
    assert answer["summary"]["labels"]["previous_token"]["count"] == 9
    (head,) = (one for one in answer["heads"] if (one["layer"], one["head"]) == (8, 7))
    assert head["scores"]["previous_token"]["score"] == pytest.approx(0.843, abs=0.002)
    assert head["scores"]["previous_token"]["argmax_rate"] == 1
    assert head["labels"] == ["previous_token", "local"]


@pytest.mark.parametrize(
    ("file", "right", "first", "nearest"), [("easy.jsonl", 6, 6, 0), ("control.jsonl", 4, 0, 17)]
)
def test_the_pronoun_head_on_easy_and_on_control_sentences(
    server: Server, file: str, right: int, first: int, nearest: int
) -> None:
    asked = items(file)
    results = server.post("/v1/coreference", {"items": asked}).json["results"]
    assert sum(result["heads"][0]["correct"] for result in results) == right
    for baseline, expected in (("first", first), ("nearest", nearest)):
        hits = [
            result["baselines"][baseline] == item["gold"] for result, item in zip(results, asked, strict=True)
        ]
        assert sum(hits) == expected


def test_many_heads_are_right_on_the_easy_set_so_it_selects_nothing(server: Server) -> None:
    results = server.post("/v1/coreference", {"items": items("easy.jsonl"), "heads": "all"}).json["results"]
    all_right = sum(all(result["heads"][place]["correct"] for result in results) for place in range(336))
    assert all_right == pytest.approx(113, abs=3)  # some margins are below what machines agree on


# --- load ----------------------------------------------------------------------------------------------------


def _numbers(answer: Any) -> list[float]:
    if isinstance(answer, dict):
        return [number for name, value in answer.items() if name != "model" for number in _numbers(value)]
    if isinstance(answer, list):
        return [number for value in answer for number in _numbers(value)]
    return [float(answer)] if isinstance(answer, int | float) else []


def test_200_requests_from_8_clients_all_equal_the_serial_answers(server: Server) -> None:
    texts = [
        SENTENCE,
        "I.",
        "The dog barked at the fence because it was hungry.",
        "def f(x):\n    return x\n" * 4,
    ]
    item = {"text": SENTENCE, "pronoun": {"text": "it"}, "candidates": [{"text": "cat"}, {"text": "mat"}]}
    questions = [
        *(("/v1/attention", {"text": text, "layers": [3, 11], "heads": [0, 13]}) for text in texts),
        *(("/v1/heads", {"text": text, "layers": [2]}) for text in texts),
        ("/v1/coreference", item),
        ("/v1/tokenize", {"texts": texts}),
    ]
    serial = [_numbers(server.post(path, body).json) for path, body in questions]

    def ask(number: int) -> tuple[int, int, float]:
        path, body = questions[number % len(questions)]
        answer = server.post(path, body)
        expected = serial[number % len(questions)]
        got = _numbers(answer.json)
        assert len(got) == len(expected) > 0
        return number, answer.status, float(np.abs(np.array(got) - np.array(expected)).max())

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, range(200)))
    assert {status for _, status, _ in answers} == {200}
    assert max(difference for _, _, difference in answers) <= 2e-4
    assert len(server.workers()) == 1  # one model in memory


def test_the_worker_holds_one_copy_of_the_weights(server: Server) -> None:
    server.post("/v1/attention", SMALL)
    (worker,) = server.workers()
    status = Path(f"/proc/{worker}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    one_copy = 494_032_768 * 4  # parameters of the backbone, float32
    assert resident < 1.6 * one_copy


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not HUGE_PAGES.exists(), reason="glibc asks Linux for huge pages"
)
def test_the_weights_lie_where_huge_pages_were_asked_for(server: Server) -> None:
    server.post("/v1/attention", SMALL)
    (worker,) = server.workers()
    asked = 0  # bytes of its own, in mappings that are marked so
    for mapping in re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{worker}/smaps").read_text(), flags=re.M
    ):
        if re.search(r"^VmFlags:.* hg\b", mapping, re.M):
            asked += int(re.search(r"^Anonymous: +(\d+) kB", mapping, re.M)[1]) * 1024  # type: ignore[index]
    packed = 357_826_560 * 4  # weights of 24 layers' products, float32
    assert asked >= 0.9 * packed


# --- the wire ------------------------------------------------------------------------------------------------


def works(server: Server) -> None:
    assert server.post("/v1/attention", SMALL).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text": ""}, 422),
        ({"text": " \n "}, 422),
        ({"text": "word " * 220_000}, 413),  # over 1 MiB
        ({"text": "word " * 10_000}, 422),
        ({"text": "a" * 1_000_000}, 422),
        ({"text": SENTENCE, "layers": [24]}, 422),
        ({"text": SENTENCE, "heads": [-1]}, 422),
        ({"text": SENTENCE, "nope": 1}, 422),
        ({"text": 7}, 422),
        ({"texts": [SENTENCE] * 65}, 413),
        ({"text": "word " * 128}, 413),  # 336 x 128^2 numbers
        (b'{"text": "a", "decimals": NaN}', 422),
        (b'{"text": "a"', 400),
        (b"", 400),
        (b"\xff", 400),
        (b'{"text": "\\ud83d"}', 400),
        (b"[" * 100_000, 400),
    ],
)
def test_hostile_input_gets_its_4xx_and_the_next_request_works(
    server: Server, body: Any, status: int
) -> None:
    started = time.monotonic()
    answer = server.post("/v1/attention", body)
    assert answer.status == status, answer.data
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json
    if status == 413 or "text_too_long" in answer.data.decode():
        assert problem["actual"] > problem["limit"] > 0
    assert time.monotonic() - started < 10
    works(server)


def _chunked(parts: list[bytes], *, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"POST /v1/attention HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + end


def test_a_chunked_body_is_read_like_any_other(server: Server) -> None:
    raw = json.dumps(SMALL).encode()
    received = server.raw(_chunked([raw[:10], raw[10:]]))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.partition(b"\r\n\r\n")[2] == server.post("/v1/attention", SMALL).data


def test_a_chunked_body_over_the_cap_is_413_even_when_its_beginning_is_valid(server: Server) -> None:
    raw = json.dumps(SMALL).encode()
    received = server.raw(_chunked([raw, *([b" " * 65536] * 17)]))
    assert received.startswith(b"HTTP/1.1 413")
    assert b'"limit":1048576' in received
    works(server)


@pytest.mark.parametrize("end", [b"zz\r\n", b"5\r\nabc"])
def test_broken_chunks_are_400(server: Server, end: bytes) -> None:
    received = server.raw(
        _chunked([b'{"text": '], end=end) if end[:1] == b"z" else _chunked([b"{"], end=end), seconds=15
    )
    assert received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 408"))
    works(server)


def test_a_body_that_never_ends_is_408_and_holds_nobody_else_up(files: Any, tmp_path: Path) -> None:
    with serving(tmp_path, body_timeout_seconds=1) as server:
        head = b"POST /v1/attention HTTP/1.1\r\nHost: x\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"

        def drip() -> bytes:
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(head)
                for _ in range(8):  # a byte now and then: no single read waits long
                    time.sleep(0.25)
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        break
                received = b""
                try:
                    while chunk := connection.recv(65536):
                        received += chunk
                except OSError:
                    pass
                return received

        started = time.monotonic()
        with ThreadPoolExecutor(12) as clients:
            answers = list(clients.map(lambda _: drip(), range(12)))
        assert all(answer.startswith(b"HTTP/1.1 408") for answer in answers), answers
        assert time.monotonic() - started < 10
        works(server)


def test_head_and_options_are_answered(server: Server) -> None:
    head = server.request("HEAD", "/v1/model")
    assert (head.status, head.data) == (200, b"")
    assert set(server.request("OPTIONS", "/v1/tokenize").headers["Allow"].split(", ")) == {"OPTIONS", "POST"}
    assert server.get("/nope").json["status"] == 404


# --- settings and signals ------------------------------------------------------------------------------------


def test_term_answers_what_is_in_flight_and_is_not_ready_at_once(files: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        text = "The cat sat on the mat. " * 40
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as probe:
            probe.request("GET", "/health/ready")  # kept alive: a stopping server takes no new connections
            assert probe.getresponse().read()
            with ThreadPoolExecutor(3) as clients:
                answers = [clients.submit(server.post, "/v1/heads", {"text": text}) for _ in range(3)]
                time.sleep(0.3)
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
                probe.request("GET", "/health/ready")
                ready = probe.getresponse()
                assert (ready.status, json.loads(ready.read())["detail"]) == (
                    503,
                    "The service is shutting down.",
                )
                assert [answer.result().status for answer in answers] == [200] * 3
        assert server.process.wait(30) == 0


def test_ctrl_c_ends_it_at_once(files: Any, tmp_path: Path) -> None:
    """A terminal sends INT to the whole process group, master and worker alike."""
    with serving(tmp_path) as server:
        works(server)
        started = time.monotonic()
        for process in (*server.workers(), server.process.pid):
            os.kill(process, signal.SIGINT)
        assert server.process.wait(30) == 0
        assert time.monotonic() - started < 15
        assert "SIGKILL" not in server.log.read_text()


EARLY = [
    (b"POST /v1/attention HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 1000000000", b"415"),
    (b"POST /v1/attention HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000000000", b"413"),
    (b"POST /nope HTTP/1.1\r\nTransfer-Encoding: chunked", b"404"),
    (b"GET /health/live HTTP/1.1\r\nContent-Length: 1000000000", b"200"),
]


@pytest.mark.parametrize(("head", "status"), EARLY, ids=["415", "413", "404", "get"])
def test_a_body_nobody_reads_holds_no_thread(server: Server, head: bytes, status: bytes) -> None:
    """More connections than threads, each sending a byte now and then after it has been answered."""
    stop = time.monotonic() + 6

    def drip() -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(head + b"\r\nHost: x\r\n\r\n")
            received = b""
            with contextlib.suppress(OSError):
                while time.monotonic() < stop:
                    connection.sendall(b"1")
                    time.sleep(0.1)
                received = connection.recv(65536)
            return received

    with ThreadPoolExecutor(14) as clients:
        drips = [clients.submit(drip) for _ in range(14)]
        time.sleep(2.5)
        started = time.monotonic()
        assert server.get("/health/live").status == 200
        assert time.monotonic() - started < 1
        for one in drips:
            one.result()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head + b"\r\nHost: x\r\n\r\n")
        assert connection.recv(65536).startswith(
            b"HTTP/1.1 " + status
        )  # answered although the body never comes
    works(server)


def test_a_killed_worker_is_replaced_and_the_service_is_ready_again(files: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGKILL)
        time.sleep(0.5)
        server.wait_ready()
        assert server.workers() != [worker]
        works(server)


def test_serve_without_weights_is_one_clear_line_and_an_exit_code(tmp_path: Path) -> None:
    environment = {**os.environ, "ATTENTION_MODEL": "auto", "ATTENTION_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "serve"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3
    assert not done.stdout
    assert done.stderr.strip() == (
        "attention-service: no model has been chosen yet; run: attention-service fetch-weights"
    )


# --- formats over the wire -----------------------------------------------------------------------------------


def test_an_img_tag_gets_its_picture_and_then_a_304(server: Server) -> None:
    path = "/v1/attention.svg?text=The%20cat%20sat.&layer=5&head=5"
    first = server.get(path, Accept="image/avif,image/webp,*/*;q=0.8")
    assert (first.status, first.headers["Content-Type"]) == (200, "image/svg+xml")
    assert first.data.startswith(b"<?xml") or first.data.startswith(b"<svg")
    again = server.get(path, If_None_Match=first.headers["ETag"])
    assert (again.status, again.data) == (304, b"")


def test_all_heads_of_111_tokens_are_too_much_for_json_but_not_for_npz(server: Server) -> None:
    body = {"text": "word" + " word" * 110}
    refused = server.post("/v1/attention", body)
    assert refused.status == 413
    assert (refused.json["limit"], refused.json["actual"]) == (2_000_000, 336 * 111**2)
    assert "NPZ" in refused.json["detail"]
    answer = server.post("/v1/attention?format=npz", body)
    assert answer.status == 200
    with np.load(io.BytesIO(answer.data), allow_pickle=False) as archive:
        weights = archive["weights_0"]
    assert weights.shape == (24, 14, 111, 111)
    assert np.abs(weights.sum(-1) - 1).max() <= 1e-6


def test_a_url_may_have_as_many_bytes_as_published(server: Server) -> None:
    limit = server.get("/v1/model").json["limits"]["max_url_bytes"]
    start = "/v1/attention?layer=0&head=0&queries=0&text="
    room = limit - len(start)
    assert server.get(start + "+a" * (room // 2)).status == 200
    assert server.get(start + "+a" * (room // 2 + 1)).status == 414
    works(server)
