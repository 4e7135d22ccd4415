"""`attention-service corpus`: its flags, and what it prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from service.corpus.engines import EngineError
from service.corpus.inputs import SHARD_ROWS, InputError
from service.corpus.run import Result, RunError, Where, run
from service.corpus.tasks import TASKS, Task
from service.errors import FieldError, InvalidRequestError
from service.parameters import Kind, value_of
from service.settings import Settings, granted_cpus, process_environment
from service.validation import field_error
from service.weights import WeightsError

BATCH_TOKENS = 512  # from here on larger batches are no faster
WRITTEN: Mapping[Kind, str] = {  # of a flag
    "text": "WORD",
    "integer": "N",
    "integers": "N,N",
    "texts": "NAME,NAME",
    "numbers": "NAME:N,NAME:N",
    "heads": "L5H5,L8H7",
}


def corpus_command(arguments: Sequence[str], settings: Settings, *, restart: bool = False) -> int:
    """Run `attention-service corpus ARGUMENTS`, and return the exit code.

    0: every row has an answer, or a line in `errors.jsonl`. 1: none has an answer, or the run ended before. 2: it could
    not begin. 130: it was interrupted. With `restart` this process, which is to compute itself, is begun anew where its
    environment is not the one that torch should find.
    """
    options = _parser().parse_args(arguments)
    if options.engine == "local" and (options.actors or options.address):
        return _complain(2, "--actors and --address are Ray's; --engine local has neither")
    threads = options.threads or (granted_cpus() if options.engine == "local" else 1)
    if restart and options.engine == "local":
        _restart_with(process_environment(settings.model_copy(update={"threads": threads})))
    try:
        result = run(
            _task(options),
            options.input,
            options.out.expanduser(),
            settings,
            Where(options.engine, options.actors, threads, options.address),
            batch_tokens=options.batch_tokens,
            shard_rows=options.shard_rows,
            limit=options.limit,
            fail_fast=options.fail_fast,
        )
    except WeightsError as error:
        return _complain(error.exit_code, str(error))
    except (InputError, _FlagError) as error:
        return _complain(2, str(error))
    except EngineError as error:
        match error.__cause__:
            case InvalidRequestError(errors=(fault, *_)):  # a layer, say, that the model does not have
                return _complain(1, _of_flag(fault))
        return _complain(1, str(error))
    except RunError as error:
        return _complain(1, str(error))
    except OSError as error:  # the disk is full, or somebody else's
        return _complain(1, f"{error.filename or options.out}: {error.strerror or error}")
    except KeyboardInterrupt:
        return _complain(130, "interrupted; the same command goes on from here")
    print(_report(result, options.out))
    if result.rows_now:
        print(_pace(result), file=sys.stderr)
    return 0 if result.faults < result.rows else 1


class _FlagError(Exception):
    """A flag says what no model allows."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attention-service corpus",
        description="The service's answers about every row of files, as Parquet files and a summary.",
    )
    commands = parser.add_subparsers(dest="task", required=True, metavar="COMMAND")
    for task in TASKS.values():
        question = (task.__doc__ or "").splitlines()[0]
        command = commands.add_parser(task.name, help=question, description=question, allow_abbrev=False)
        command.add_argument(
            "input", nargs="+", help=".jsonl, .csv, .tsv or .parquet files, or globs; text may be gzipped"
        )
        command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the answers go")
        command.add_argument("--limit", type=_positive, metavar="N", help="only the first N rows")
        command.add_argument(
            "--text-column", default="text", metavar="NAME", help="what the files call the text: text"
        )
        asked = command.add_argument_group("what is asked", "as in the API")
        for name, kind in task.flags.items():
            field = task.asked.model_fields[name]
            asked.add_argument(_flag(name), metavar=_written(kind, field), help=_help(field))
        how = command.add_argument_group("how it runs")
        how.add_argument(
            "--engine", choices=("ray", "local"), default="ray", help="local: this process alone"
        )
        how.add_argument(
            "--address", metavar="HOST:PORT", help="of a Ray cluster; without it Ray starts here"
        )
        how.add_argument(
            "--actors", type=_positive, metavar="N", help="processes; as many as there are CPUs for"
        )
        how.add_argument(
            "--threads", type=_positive, metavar="N", help="of an actor: 1; with --engine local all CPUs"
        )
        how.add_argument("--fail-fast", action="store_true", help="end at the first row without an answer")
        how.add_argument(
            "--shard-rows",
            type=_positive,
            metavar="N",
            help=f"rows to a file of answers: {SHARD_ROWS}, of small inputs fewer",
        )
        how.add_argument(
            "--batch-tokens",
            type=_positive,
            metavar="N",
            default=BATCH_TOKENS,
            help=f"read at once, padding included: {BATCH_TOKENS}",
        )
    return parser


def _positive(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and int(given)):
        raise argparse.ArgumentTypeError(f"a whole number from 1 to 999999999 is expected, not {given!r}")
    return int(given)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _written(kind: Kind, field: FieldInfo) -> str:
    """How a flag's value looks: the words that there are to choose from, where these are few."""
    if field.default is not None and isinstance(field.default, BaseModel):
        return ",".join(f"{name}:N" for name, _ in field.default) + "|none"
    words = get_args(field.annotation)
    return "|".join(words) if words and all(isinstance(word, str) for word in words) else WRITTEN[kind]


def _help(field: FieldInfo) -> str:
    """A member's description, in a flag's words, and its default."""
    said = (field.description or "").replace("`", "").replace("Null:", "none:").replace("%", "%%")
    default = field.default
    if isinstance(default, BaseModel):
        default = ",".join(f"{name}:{value}" for name, value in default)
    return f"{said} Default: {default}.".lstrip() if default else said


def _task(options: argparse.Namespace) -> Task:
    """What the flags ask. Raises _FlagError."""
    kind = TASKS[options.task]
    said = {name: getattr(options, name) for name in kind.flags}
    asked = {name: value_of(one, kind.flags[name]) for name, one in said.items() if one is not None}
    try:
        return kind(asked, text_column=options.text_column)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False, include_context=True)[0]
        found = field_error(fault, asked)
    except InvalidRequestError as error:
        found = error.errors[0]
    raise _FlagError(_of_flag(found))


def _of_flag(fault: FieldError) -> str:
    """What is wrong with an option of a request, as said of a flag."""
    return f"{_flag(fault.pointer.split('/')[1])}: {_in_words_of_flags(fault.detail)}"


def _in_words_of_flags(detail: str) -> str:
    """A sentence of the API's, where it tells how something is sent."""
    return detail.replace("in a URL", "here").replace("Send null.", "--split none does without.")


def _restart_with(environment: Mapping[str, str]) -> None:
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.environ.update(environment)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _complain(code: int, sentence: str) -> int:
    print(f"attention-service: {sentence}", file=sys.stderr)
    return code


def _report(result: Result, out: Path) -> str:
    answers = result.rows - result.faults
    lines = [f"{answers:,} of {result.rows:,} rows have an answer in {out / 'items'}"]
    if result.faults:
        codes = sorted(result.faults_by_code.items(), key=lambda one: -one[1])
        which = ", ".join(f"{count:,} {code}" for code, count in codes)
        lines.append(f"{result.faults:,} without: {which}; see {out / 'errors.jsonl'}")
    if result.why_no_summary is None:
        lines.append(f"{out / 'summary.json'} sums them up")
    else:
        lines.append(f"no summary: {_in_words_of_flags(result.why_no_summary)}")
    return "\n".join(lines)


def _pace(result: Result) -> str:
    pace = f"{result.rows_now:,} rows in {result.seconds:,.0f} s, {result.rows_now / result.seconds:.1f} a second"
    return f"{pace}, at most {result.peak_memory_bytes / 2**30:.1f} GiB a process"
