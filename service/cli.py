"""The command `attention-service`: serve, fetch-weights, reproduce, corpus, openapi, readme."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from service.settings import Settings, process_environment, variable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit code."""
    parser = argparse.ArgumentParser(prog="attention-service", description="Looks inside a language model.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    commands.add_parser("serve", help="serve HTTP on HOST:PORT with the weights that fetch-weights got")
    commands.add_parser("fetch-weights", help="get the weights of ATTENTION_MODEL into ATTENTION_CACHE, once")

    reproduce = commands.add_parser(
        "reproduce", help="re-derive every figure of the article on the loaded model"
    )
    reproduce.add_argument("--out", type=Path, default=Path("results/part1.json"), help="where the JSON goes")

    contract = commands.add_parser("openapi", help="write openapi.yaml from the code")
    contract.add_argument("--check", action="store_true", help="only compare; exit 1 when it is not current")
    contract.add_argument("--out", type=Path, default=Path("openapi.yaml"))

    tables = commands.add_parser("readme", help="write the tables of README.md and docs/ that the code knows")
    tables.add_argument("--check", action="store_true", help="only compare; exit 1 when one is not current")
    tables.add_argument("--root", type=Path, default=Path(), help="where README.md lies")

    commands.add_parser("corpus", help="answers about every row of files, on one machine or on a Ray cluster")

    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["corpus"]:  # which has flags of its own, and imports what others do without
        return _corpus(given[1:], restart=arguments is None)
    options = parser.parse_args(given)
    if options.command == "openapi":
        from service.openapi import as_yaml

        return _write(options.out, as_yaml(), "openapi", check=options.check)
    if options.command == "readme":
        from service.readme import DOCUMENTS, generated

        results = []
        for name in DOCUMENTS:
            path = options.root / name
            text = generated(name, path.read_text(encoding="utf-8"))
            results.append(_write(path, text, "readme", check=options.check))
        return max(results)
    settings = _settings()
    if settings is None:
        return 2
    match options.command:
        case "serve":
            return _serve(settings)
        case "fetch-weights":
            from service.weights import fetch_weights_command

            return fetch_weights_command(settings.model, settings.cache)
        case "reproduce":
            from service.reproduce import reproduce_command

            return reproduce_command(settings, options.out)
        case other:
            raise AssertionError(f"{other} is no command, and argparse lets none through")


def _settings() -> Settings | None:
    """What the environment says; None, and a word about it, where it cannot be used."""
    try:
        return Settings()
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False, include_context=False):
            print(f"attention-service: {variable(str(fault['loc'][0]))}: {fault['msg']}", file=sys.stderr)
        return None


def _corpus(arguments: Sequence[str], *, restart: bool) -> int:
    try:
        from service.corpus.command import corpus_command
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        print("attention-service: corpus needs more packages: pip install '.[corpus]'", file=sys.stderr)
        return 2
    settings = _settings()
    return 2 if settings is None else corpus_command(arguments, settings, restart=restart)


def _serve(settings: Settings) -> int:
    """Replace this process by gunicorn, with the environment that torch and the tokenizers read when they start."""
    from service.weights import WeightsError, locate

    try:
        files = locate(settings.model, settings.cache)
    except WeightsError as error:
        print(f"attention-service: {error}", file=sys.stderr)
        return error.exit_code
    address = f"http://{settings.host}:{settings.port}"
    print(
        f"{files.id} is served on {address} as soon as the log says ready (ctrl-C ends it)", file=sys.stderr
    )
    os.environ.update(process_environment(settings))
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", "python:service.gunicorn_conf"])


def _write(path: Path, text: str, command: str, *, check: bool) -> int:
    if not check:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path} is not what the code generates; run: attention-service {command}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
