"""A run: what is asked of which files, what of it is done already, and what is said when all is done."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson
from filelock import FileLock, Timeout
from tqdm import tqdm

from service.corpus import engines
from service.corpus.inputs import InputError, Shard, Source, find, plan
from service.corpus.tasks import Part, Task, Whole
from service.corpus.worker import TEMPORARY, Done, Job, Worker, part_path, read_done, read_state
from service.errors import InvalidRequestError
from service.formats import json
from service.model import loaded_bytes, provenance
from service.settings import Settings, process_environment, variable
from service.weights import locate

WORKER_MEMORY = 1.25  # of the weights, while they are loaded
WORKER_EXTRA_BYTES = 512 << 20  # of Python, torch, and the answers of a shard
# Of an item; those that keep requests apart do not matter here
LIMITS = ("max_tokens_per_text", "max_response_elements_compact")
OURS = ("errors.jsonl", "summary.json", "run.json")
SECRETS = (variable("api_keys"), variable("signing_key"))
ERRORS_SECONDS = 5.0  # from one writing of errors.jsonl to the next: each writes all of it
QUIET_SECONDS = 10.0  # from one line of progress to the next, where nobody watches


class RunError(Exception):
    """A run that cannot begin or go on; a sentence for whoever started it."""


class BadRowError(RunError):
    """The first row without an answer, where that is to end the run."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which engine, and how large: `actors` None are as many as there is room for."""

    engine: Literal["ray", "local"]
    actors: int | None = None
    threads: int = 1
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to: all its rows, those without an answer, and, of this call, what it did in which time."""

    rows: int
    faults: int
    faults_by_code: Mapping[str, int]
    rows_now: int
    tokens_now: int
    seconds: float
    peak_memory_bytes: int  # of the largest worker
    why_no_summary: str | None


def run(
    task: Task,
    inputs: Sequence[str],
    out: Path,
    settings: Settings,
    where: Where,
    *,
    batch_tokens: int,
    shard_rows: int | None = None,
    limit: int | None = None,
    fail_fast: bool = False,
) -> Result:
    """Answer the rows of the inputs, the first `limit` or all, into the folder `out`, and sum up.

    What is there already is not done again.

        items/          one Parquet file a shard, rows in the order of the input
        errors.jsonl    the rows without an answer, and why
        summary.json    what the API would have said of all items
        run.json        what was asked, of which model and files

    Every file is whole once it is there. Raises InputError, WeightsError, RunError, EngineError, which also says what a
    worker raised, OSError where the folder cannot be written, and with `fail_fast` BadRowError.
    """
    began = time.monotonic()
    files = locate(settings.model, settings.cache)
    sources, shards = _planned(find(inputs), task, out, shard_rows=shard_rows, limit=limit)
    asked = {
        "command": task.name,
        "options": {name: said for name, said in task.options.items() if name not in task.late},
        "text_column": task.text_column,
        "model": provenance(files, device=settings.device, dtype=settings.dtype),
        "limits": {name: getattr(settings, name) for name in LIMITS},
        "inputs": [{"file": one.path, "sha256": one.sha256, "rows": one.rows} for one in sources],
        "rows": limit,
        "shard_rows": shard_rows,
    }
    name = hashlib.sha256(orjson.dumps(asked)).hexdigest()
    rows = sum(shard.rows for shard in shards)
    with _alone_in(out):
        _begin_or_resume(out, asked)
        before = _done_before(out, shards, name)
        done_before = {done.shard for done in before}
        left = [shard for shard in shards if shard.index not in done_before]
        job = _job(name, task, settings, where, out, batch_tokens=batch_tokens, fail_fast=fail_fast)
        memory_bytes = int(WORKER_MEMORY * loaded_bytes(files, settings.dtype)) + WORKER_EXTRA_BYTES
        now: list[Done] = []
        try:
            with (
                _Progress(out, rows, before, fail_fast=fail_fast) as progress,
                contextlib.closing(_engine(where, job, left, memory_bytes)) as engine,
            ):
                for done in before:
                    progress.take(done)
                for done in engine:
                    now.append(done)
                    progress.tell(done)
        finally:
            _remove_unfinished(out)
        every = sorted((*before, *now), key=lambda done: done.shard)
        whole = Whole(
            model=every[0].model,
            rows=rows,
            faults=[fault for done in every for fault in done.faults],
            files={source.path: source.sha256 for source in sources},
        )
        return Result(
            rows=rows,
            faults=len(whole.faults),
            faults_by_code=Counter(fault["code"] for fault in whole.faults),
            rows_now=sum(done.rows for done in now),
            tokens_now=sum(done.tokens for done in now),
            seconds=time.monotonic() - began,
            peak_memory_bytes=max((done.peak_memory_bytes for done in now), default=0),
            why_no_summary=_sum_up(task, out, [done.shard for done in every], whole),
        )


def _planned(
    paths: Sequence[Path], task: Task, out: Path, *, shard_rows: int | None, limit: int | None
) -> tuple[list[Source], list[Shard]]:
    """The inputs and their shards. Raises InputError for what the run itself writes, and for tables without an item."""
    ours = out.resolve()
    for path in paths:
        found = path.resolve()
        if found.is_relative_to(ours / "items") or (found.parent == ours and found.name in OURS):
            raise InputError(f"{path} is what the run writes; name another folder for its answers.")
    sources, shards = plan(paths, shard_rows=shard_rows)
    for source in sources:
        missing = [name for name in task.columns_needed if name not in source.columns]
        if source.format != "jsonl" and missing:
            has = ", ".join(source.columns)
            raise InputError(f"{source.path} has no column {' or '.join(missing)}; it has {has}.")
    if limit is not None:
        shards = [replace(one, rows=min(one.rows, limit - one.first)) for one in shards if one.first < limit]
    if not shards:
        raise InputError("The inputs hold no rows.")
    return sources, shards


def _job(
    name: str,
    task: Task,
    settings: Settings,
    where: Where,
    out: Path,
    *,
    batch_tokens: int,
    fail_fast: bool,
) -> Job:
    changes: dict[str, Any] = {
        "api_keys": (),
        "signing_key": None,
        "threads": where.threads,
    }  # workers need no keys
    if where.engine == "ray" and settings.device == "auto":
        # A GPU is asked for by name there: every actor that found one by itself would take the same
        changes["device"] = "cpu"
    return Job(
        run=name,
        task=task.name,
        options=task.options,
        text_column=task.text_column,
        settings=settings.model_copy(update=changes),
        inputs=Path.cwd(),
        items=out.absolute() / "items",
        batch_tokens=batch_tokens,
        fail_fast=fail_fast,
    )


def _engine(
    where: Where, job: Job, shards: Sequence[Shard], memory_bytes: int
) -> Generator[Done, None, None]:
    make = functools.partial(Worker, job)
    if where.engine == "local":
        return engines.in_process(make, shards)
    return engines.on_ray(
        make,
        shards,
        actors=where.actors,
        threads=where.threads,
        gpus=int(job.settings.device == "cuda"),
        environment=process_environment(job.settings) | dict.fromkeys(SECRETS, ""),
        memory_bytes=memory_bytes,
        address=where.address,
    )


@contextlib.contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Two runs in one folder would undo each other's work."""
    (out / "items").mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise RunError(f"Another run is at work in {out}.") from None
    try:
        yield
    finally:
        lock.release()


def _begin_or_resume(out: Path, asked: Mapping[str, object]) -> None:
    """Write down what is asked, or see that the answers that are there are to the same."""
    path = out / "run.json"
    if all(one.name.startswith(TEMPORARY) for one in (out / "items").iterdir()):
        write(path, json.dumps(asked, indent=True))
        return
    try:
        before = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{out / 'items'} holds files, and no run.json says of what.") from None
    except (ValueError, IsADirectoryError):
        before = None
    if not isinstance(before, dict):
        raise RunError(f"{path} is not what a run writes.")
    now = orjson.loads(orjson.dumps(asked))
    if others := [name for name in now if before.get(name) != now[name]]:
        detail = f"{out} holds a run of other {' and '.join(others)}"
        raise RunError(f"{detail}: {path} says which. Name another folder for this one.")


def _remove_unfinished(out: Path) -> None:
    for left in (out / "items").glob(f"{TEMPORARY}*"):
        left.unlink(missing_ok=True)


def _done_before(out: Path, shards: Sequence[Shard], run: str) -> list[Done]:
    """What the finished files of answers say; what was left half-written is removed."""
    _remove_unfinished(out)
    planned = {part_path(out / "items", shard.index): shard for shard in shards}
    return [_finished(path, planned.get(path), run) for path in sorted((out / "items").glob("part-*"))]


def _finished(path: Path, shard: Shard | None, run: str) -> Done:
    try:
        done = read_done(path)
        if shard is not None and (done.run, done.shard, done.rows) == (run, shard.index, shard.rows):
            return done
    except (OSError, ValueError, LookupError, TypeError):
        pass
    detail = f"{path} is damaged, or not of this run"
    raise RunError(f"{detail}; once it is removed the same command goes on.")


class _Lines(io.TextIOBase):
    """What a bar says where nobody watches it: lines of a log, instead of one that is written over and over."""

    def write(self, text: str) -> int:
        if said := text.strip():
            print(said, file=sys.stderr)
        return len(text)


class _Progress:
    """A bar with the rate and the time left; and `errors.jsonl`, kept up to date.

    Raises BadRowError for the first row without an answer, where the run is to `fail_fast`, and RunError where not all
    answers come from the same model.
    """

    def __init__(self, out: Path, rows: int, before: Sequence[Done], *, fail_fast: bool) -> None:
        self._path, self._fail_fast = out / "errors.jsonl", fail_fast
        self._faults: dict[int, Sequence[Mapping[str, Any]]] = {}  # by shard
        self._told = 0  # of them
        self._written, self._changed = -math.inf, True
        self._model: Mapping[str, Any] | None = None
        self._bar = tqdm(
            total=rows,
            initial=sum(done.rows for done in before),
            unit=" items",
            file=sys.stderr if sys.stderr.isatty() else _Lines(),
            mininterval=0.1 if sys.stderr.isatty() else QUIET_SECONDS,
        )

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._changed = True
        self._write_errors()

    def tell(self, done: Done) -> None:
        """A shard has just been done."""
        if self._bar.n == self._bar.initial:  # what came before the first was no work, and is not of the rate
            self._bar.start_t = self._bar.last_print_t = time.time() - done.seconds
        self._bar.update(done.rows)
        self.take(done)
        if time.monotonic() - self._written > ERRORS_SECONDS:
            self._write_errors()

    def take(self, done: Done) -> None:
        """A shard is done, now or before."""
        answering = {name: said for name, said in done.model.items() if name != "device"}
        if self._model not in (None, answering):
            raise RunError("The machines have different weights or versions, so their answers would differ.")
        self._model = answering
        if not done.faults:
            return
        self._faults[done.shard] = done.faults
        self._told += len(done.faults)
        self._changed = True
        self._bar.set_postfix(errors=self._told, refresh=False)
        if self._fail_fast:
            first = done.faults[0]
            raise BadRowError(f"{first['file']}:{first['line']}: {first['code']}: {first['detail']}")

    def _write_errors(self) -> None:
        if not self._changed:
            return
        self._written, self._changed = time.monotonic(), False
        lines = [orjson.dumps(one) + b"\n" for shard in sorted(self._faults) for one in self._faults[shard]]
        write(self._path, b"".join(lines))


def _sum_up(task: Task, out: Path, shards: Sequence[int], whole: Whole) -> str | None:
    """Write what the API would have said of all items, or return why there is nothing to say."""

    def parts() -> Iterator[Part]:
        for shard in shards:
            path = part_path(out / "items", shard)
            yield Part(path, functools.partial(read_state, path))

    path = out / "summary.json"
    path.unlink(missing_ok=True)  # that of a call before may have had other options
    try:
        summary = task.summary(parts, whole)
    except InvalidRequestError as error:
        return error.detail
    if summary is None:
        return task.no_summary
    write(path, json.dumps(summary, indent=True))
    return None


def write(path: Path, content: bytes) -> None:
    """Write a file that is whole whenever it is there, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
