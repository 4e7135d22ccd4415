"""One shard: its rows, in batches, through the service's own jobs, into one file of answers."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import resource
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from service.corpus import table
from service.corpus.inputs import Reader, Shard
from service.corpus.tasks import TASKS, Record, Tally, Task
from service.engine import Engine, Session
from service.errors import FieldError, InvalidRequestError, NotReadyError, TooLargeError
from service.model import LoadedModel, load_model
from service.schemas.attention import Input
from service.settings import Settings

log = logging.getLogger(__name__)

FOOTER = b"attention-service"  # under which a file of answers tells of itself
STATE = b"attention-service-state"  # and under which what the summary needs of it lies, packed
TEMPORARY = ".unfinished-"  # how other files' names begin; readers of the folder pass such over
INTERNAL = "internal"  # the code of an item at which the model itself failed
SICK = 8  # items, none of which the model could answer: it is the machine that is at fault
NUMBERS_AT_ONCE = 32_000_000  # of answers in memory, on their way into a file
UNBOUNDED = 2**40  # in the place of limits that keep requests from each other's way: there are no others


@dataclass(frozen=True, slots=True)
class Job:
    """What the workers of a run do: the task and its `options`, and the folder `items` for the answers.

    The inputs' paths are taken from the folder `inputs`: a worker on another machine has another one of its own.
    A batch has at most `batch_tokens` tokens, padding included. With `fail_fast` a shard with a fault is not written.
    Every file of answers carries the name of the `run`.
    """

    run: str
    task: str
    options: Mapping[str, Any]
    text_column: str
    settings: Settings
    inputs: Path
    items: Path
    batch_tokens: int
    fail_fast: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker says of a shard, and its file of itself.

    `faults` are rows without an answer: `file`, `line`, `code`, `detail`, and `id` and `pointer` if there are any.
    `tokens` are those of the items read, `seconds` the time that all of it took.
    """

    run: str
    shard: int
    rows: int
    faults: Sequence[Mapping[str, Any]]
    tokens: int
    seconds: float
    peak_memory_bytes: int
    model: Mapping[str, Any]


def part_path(items: Path, shard: int) -> Path:
    """The file of a shard's answers. Under this name it is complete."""
    return items / f"part-{shard:08}.parquet"


def read_done(path: Path) -> Done:
    """What a file of answers says of itself."""
    return Done(**orjson.loads(pq.read_metadata(path).metadata[FOOTER]))


def read_state(path: Path) -> dict[str, Any]:
    """What it keeps for the summary: see `Tally`."""
    packed = pq.read_metadata(path).metadata[STATE]
    state: dict[str, Any] = orjson.loads(zlib.decompress(base64.b64decode(packed)))
    return state


@dataclass(frozen=True, slots=True)
class _Asked:
    """A row that holds an item: where it stands, and about how long and how large its answer is."""

    place: int  # in the shard
    line: int
    item: Any
    tokens: int
    numbers: int


class Worker:
    """Loads the model once, and answers shards.

    Raises WeightsError where the weights were not fetched, InvalidRequestError for options that the model does not
    allow.
    """

    def __init__(self, job: Job, *, load: Callable[[Settings], LoadedModel] = load_model) -> None:
        self._job = job
        self._task: Task = TASKS[job.task](job.options, text_column=job.text_column)
        self._reader = Reader(job.inputs, columns=self._task.columns_read)
        model = load(job.settings)
        unbounded = ("max_tokens_per_request", "max_tokens_per_evaluation", "deadline_seconds")
        limits = job.settings.model_copy(update=dict.fromkeys(unbounded, UNBOUNDED))
        self._engine = Engine(lambda: model, limits).start()
        for close in (self._engine.close, self._reader.close):
            weakref.finalize(self, close)  # nobody tells a worker which shard is its last
        while self._engine.state == "loading":
            time.sleep(0.001)
        with self._admitted() as session, contextlib.suppress(TooLargeError):
            self._task.answers([self._task.sample], [0], session, self._task.tally())

    def __call__(self, shard: Shard) -> Done:
        """Answer the shard's rows, and write the answers in the rows' order: a file has its name once it is whole."""
        with self._admitted() as session, _temporary(self._job.items) as file:
            done = self._answer(shard, session, file)
            if not (done.faults and self._job.fail_fast):
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(part_path(self._job.items, shard.index))
        return done

    def _answer(self, shard: Shard, session: Session, file: BinaryIO) -> Done:
        started = time.perf_counter()
        tally = self._task.tally()
        asked, faults = self._read(shard, session)
        with table.writer(file, self._task.schema) as writer:
            for group in _groups(asked):
                if faults and self._job.fail_fast:
                    break
                answers, faulty = self._answers(shard, group, session, tally)
                writer.write_table(answers)
                faults += faulty
            if len(asked) >= SICK and [one["code"] for one in faults] == [INTERNAL] * len(asked):
                raise RuntimeError(
                    f"no item of {shard.source.path} from line {shard.line} on could be answered"
                )
            done = Done(
                run=self._job.run,
                shard=shard.index,
                rows=shard.rows,
                faults=sorted(faults, key=lambda fault: fault["line"]),
                tokens=sum(one.tokens for one in asked),
                seconds=time.perf_counter() - started,
                peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                model=session.model.provenance,
            )
            state = base64.b64encode(zlib.compress(orjson.dumps(tally.state())))
            writer.add_key_value_metadata({FOOTER: orjson.dumps(done), STATE: state})
        return done

    def _admitted(self) -> AbstractContextManager[Session]:
        """As a request is, for an answer in a format that takes numbers as they are."""
        return self._engine.admit(self._job.settings.max_response_elements_compact, exact=True)

    def _read(self, shard: Shard, session: Session) -> tuple[list[_Asked], list[dict[str, Any]]]:
        """The rows that hold an item, and the faults of the others."""
        asked, faults = [], []
        for place, row in enumerate(self._reader.rows(shard)):
            item = row.fault or self._task.read(row.values or {})
            if isinstance(item, FieldError):
                faults.append(_fault(item, shard, row.line, self._task.name_of(row.values or {})))
            else:
                tokens = len(session.tokenize(Input("/text", item.text), parse_special=False))
                asked.append(_Asked(place, row.line, item, tokens, self._task.numbers(item, tokens, session)))
        return asked, faults

    def _answers(
        self, shard: Shard, group: Sequence[_Asked], session: Session, tally: Tally
    ) -> tuple[pa.Table, list[dict[str, Any]]]:
        """The answers in the order of the rows, as a table, and the faults of rows that have none."""
        tables, places, faults = [], [], []
        for batch in _batches(group, self._job.batch_tokens, session.max_elements):
            records = []
            for one, answer in zip(batch, self._ask(shard, batch, session, tally), strict=True):
                if isinstance(answer, FieldError):
                    faults.append(_fault(answer, shard, one.line, one.item.id))
                else:
                    place = {"file": shard.source.path, "line": one.line, "id": one.item.id}
                    records.append({**place, **answer})
                    places.append(one.place)
            tables.append(table.table(records, self._task.schema))
        return table.reorder(pa.concat_tables(tables), np.argsort(places)), faults

    def _ask(
        self, shard: Shard, batch: Sequence[_Asked], session: Session, tally: Tally
    ) -> list[Record | FieldError]:
        """The answers of a batch; where it fails, those of each item by itself: one must not cost the others theirs."""
        places = [shard.first + one.place for one in batch]
        try:
            return self._task.answers([one.item for one in batch], places, session, tally)
        except (MemoryError, OSError, NotReadyError):
            raise  # the machine's fault, not an item's: the shard is not done
        except Exception as error:
            if len(batch) > 1:
                return [answer for one in batch for answer in self._ask(shard, [one], session, tally)]
            match error:
                case InvalidRequestError():
                    return [error.errors[0]]
                case TooLargeError():
                    detail = (
                        f"The answer would hold {error.actual} numbers; at most {error.limit} are written."
                    )
                    return [
                        FieldError("", "too_large", f"{detail} Ask for fewer layers or heads, or for top_k.")
                    ]
                case _:
                    log.exception(
                        "an item has no answer", extra={"file": shard.source.path, "line": batch[0].line}
                    )
                    return [FieldError("", INTERNAL, f"The model failed: {type(error).__name__}.")]


@contextmanager
def _temporary(folder: Path) -> Iterator[BinaryIO]:
    """A new file that is gone afterwards, unless it has got another name."""
    path = folder / f"{TEMPORARY}{uuid4().hex}"
    try:
        with path.open("xb") as file:
            yield file
    finally:
        path.unlink(missing_ok=True)


def _fault(fault: FieldError, shard: Shard, line: int, name: str | None) -> dict[str, Any]:
    """A row without an answer, as `errors.jsonl` tells it."""
    found: dict[str, Any] = {"file": shard.source.path, "line": line}
    if name is not None:
        found["id"] = name
    if fault.pointer:
        found["pointer"] = fault.pointer
    return {**found, "code": fault.code, "detail": fault.detail}


def _groups(asked: Sequence[_Asked]) -> Iterator[list[_Asked]]:
    """Neighbours, as many as there may be answers in memory at once."""
    group: list[_Asked] = []
    numbers = 0
    for one in asked:
        if group and numbers + one.numbers > NUMBERS_AT_ONCE:
            yield group
            group, numbers = [], 0
        group.append(one)
        numbers += one.numbers
    if group:
        yield group


def _batches(group: Sequence[_Asked], most_tokens: int, most_numbers: int) -> Iterator[list[_Asked]]:
    """Items whose texts are of like length, longest first, with at most so many padded tokens and numbers together."""
    batch: list[_Asked] = []
    numbers = 0
    for one in sorted(group, key=lambda one: -one.tokens):
        padded = (len(batch) + 1) * max(1, batch[0].tokens if batch else one.tokens)
        if batch and (padded > most_tokens or numbers + one.numbers > most_numbers):
            yield batch
            batch, numbers = [], 0
        batch.append(one)
        numbers += one.numbers
    if batch:
        yield batch
