"""The result cache on real gunicorn and real weights: hits without the model, and memory that stays bounded."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.weights import ModelFiles
from tests.serving import Server, serving

SENTENCE = "The cat sat on the mat because it was tired."
MIB = 1 << 20
ROOM = 16 * MIB


@pytest.fixture(scope="module")
def caching(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("caching"), result_cache_bytes=ROOM) as running:
        yield running


def resident_bytes(pid: int) -> int:
    """Without the pages of files, which come and go with the weights' mapping."""
    (line,) = (
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon")
    )
    return int(line.split()[1]) * 1024


def test_a_hit_takes_no_pass_of_the_model(caching: Server) -> None:
    def timed() -> float:
        began = time.perf_counter()
        answers.append(caching.post("/v1/heads", {"text": SENTENCE}))
        return time.perf_counter() - began

    answers = []
    miss, *hits = (timed() for _ in range(12))
    assert [one.headers["X-Cache"] for one in answers] == ["miss", *["hit"] * 11]
    assert {one.data for one in answers} == {answers[0].data}
    assert "fwd" not in answers[-1].headers["Server-Timing"]
    assert statistics.median(hits) < miss / 3


def test_many_times_the_room_in_answers_leaves_no_more_than_the_room(caching: Server) -> None:
    (worker,) = caching.workers()

    def ask(number: int) -> int:
        body = {"text": f"{number} " + "one two three four " * 20, "layers": [0, 1]}  # stops early
        answer = caching.post("/v1/attention", body)
        assert (answer.status, answer.headers["X-Cache"]) == (200, "miss")
        return len(answer.data)

    sizes = [ask(number) for number in range(100, 103)]
    assert all(0.2 * MIB < size < ROOM / 8 for size in sizes), "each is kept"
    before = resident_bytes(worker)
    count = 6 * ROOM // sizes[-1]
    sent = sum(ask(number) for number in range(1000, 1000 + count))
    assert sent > 5 * ROOM
    assert resident_bytes(worker) - before < ROOM + 24 * MIB
