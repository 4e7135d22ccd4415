"""Corpora on a real Ray of this machine, with two actors: the service's answers, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.sentences import sentences
from service.settings import Settings, variable
from service.weights import fetch_weights_command
from tests.conftest import wait_until
from tests.service import tiny_models
from tests.serving import MODEL, Server

EXACTNESS = 2e-4
RAY = ("--actors", "2", "--threads", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of weights that are read in no time, for what is not about numbers."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_models.write_folder(folder)
    assert fetch_weights_command(str(folder), _cache_of(str(folder))) == 0
    return str(folder)


def _cache_of(model: str) -> Path:
    return Settings().cache if model == MODEL else Path(model) / "cache"


def start(command: str, file: Path, out: Path, *flags: str, model: str = MODEL) -> subprocess.Popen[str]:
    """`attention-service corpus`, as a user starts it."""
    clean = {name: one for name, one in os.environ.items() if name in ("PATH", "HOME", "ATTENTION_CACHE")}
    call = [
        sys.executable,
        "-m",
        "service.cli",
        "corpus",
        command,
        str(file),
        "--out",
        str(out),
        *RAY,
        *flags,
    ]
    return subprocess.Popen(
        call,
        env={**clean, variable("model"): model, variable("cache"): str(_cache_of(model))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What it said on stdout, once it ended well."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def parts(out: Path) -> list[Path]:
    return sorted((out / "items").glob("part-*.parquet"))


def rows(out: Path) -> list[dict[str, Any]]:
    return [row for path in parts(out) for row in pq.ParquetFile(path).read().to_pylist()]


def written(path: Path, items: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def family(pid: int) -> Iterator[int]:
    """The processes that this one has started, and theirs."""
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has just ended
        return
    for child in children:
        yield child
        yield from family(child)


def actors(driver: subprocess.Popen[str]) -> list[int]:
    """Ray's processes in which our workers run."""
    found = []
    for pid in family(driver.pid):
        try:
            if "MapBatches" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
        except OSError:
            continue
    return found


def alike(ours: object, theirs: object) -> None:
    """The same but for rounding: what is null in a column is absent in the API."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours.keys() | theirs.keys():
            alike(ours.get(name), theirs.get(name))
    elif isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            alike(one, other)
    elif isinstance(ours, float) and isinstance(theirs, float | int):
        assert ours == pytest.approx(theirs, abs=EXACTNESS)
    else:
        assert ours == theirs


# --- numbers, on the real weights ---------------------------------------------------------------------------


ITEMS = list(sentences(24, seed=3))


def test_maps_are_those_of_the_service(server: Server, tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", ITEMS)
    finish(start("attention", file, tmp_path / "out", "--shard-rows", "7"))
    for row, item in zip(rows(tmp_path / "out"), ITEMS, strict=True):
        asked = {"text": item["text"], "decimals": 9}
        (theirs,) = server.post("/v1/attention", asked).json["results"]
        assert row.pop("line") == int(str(item["id"]))
        assert (row.pop("id"), row.pop("file")) == (item["id"], str(file))
        alike(row, theirs)


def test_heads_and_their_summary_are_those_of_the_service(server: Server, tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", ITEMS)
    finish(start("heads", file, tmp_path / "out", "--shard-rows", "7"))
    undecided = ("borderline", "labels")
    for row, item in zip(rows(tmp_path / "out"), ITEMS, strict=True):
        theirs = server.post("/v1/heads", {"text": item["text"]}).json
        for ours, other in zip(row["heads"], theirs["heads"], strict=True):
            assert set(ours["labels"]) ^ set(other["labels"]) <= {*ours["borderline"], *other["borderline"]}
            alike(*({name: one[name] for name in one if name not in undecided} for one in (ours, other)))
        assert row["warnings"] == theirs["warnings"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    theirs = server.post("/v1/heads", {"texts": [item["text"] for item in ITEMS]}).json
    for ours, other in zip(summary["heads"], theirs["heads"], strict=True):
        alike(ours["scores"], other["scores"])
        assert ours["kv_head"] == other["kv_head"]
    assert summary["definitions"] == theirs["definitions"]
    assert summary["model"] == theirs["model"]


def test_choices_and_their_evaluation_are_those_of_the_service(server: Server, tmp_path: Path) -> None:
    lines = [json.dumps(item) for item in ITEMS]
    lines.insert(9, '{"text": "It is cut off')
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(lines))
    finish(start("coreference", file, tmp_path / "out", "--shard-rows", "7"))
    for row, item in zip(rows(tmp_path / "out"), ITEMS, strict=True):
        asked = {name: item[name] for name in ("text", "pronoun", "candidates", "gold")}
        (theirs,) = server.post("/v1/coreference", {"items": [asked], "heads": "all"}).json["results"]
        for ours, other in zip(row["heads"], theirs["heads"], strict=True):
            assert ours["predicted"] == other["predicted"] or ours["within_noise"] or other["within_noise"]
            alike(ours["scores"], other["scores"])
        for name in ("tokens", "pronoun", "candidates", "baselines", "warnings"):
            alike(row[name], theirs[name])
    summary = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    body = "\n".join(lines).encode()
    theirs = server.post("/v1/coreference/evaluate", body, Content_Type="application/x-ndjson").json
    for name in ("model", "n", "scored", "baselines", "ceiling", "parts"):
        assert summary[name] == theirs[name]
    (skipped,) = summary["skipped"]
    assert (skipped["line"], skipped["code"]) == (10, "malformed_line")
    assert [(one["line"], one["code"]) for one in theirs["skipped"]] == [(10, "malformed_line")]
    # A head whose choice in an item is within the noise may be right once more or less
    ours, other = (
        [row for of_layer in one["grid"]["accuracy"] for row in of_layer] for one in (summary, theirs)
    )
    assert sum(one != two for one, two in zip(ours, other, strict=True)) <= 3


# --- what dies on the way, on tiny weights ------------------------------------------------------------------


# The tiny model takes 131 tokens, and a letter is nearly one
MANY = [item for item in sentences(2500, seed=1) if len(str(item["text"])) < 120][:1000]


@pytest.fixture(scope="module")
def undisturbed(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The file of a thousand rows, one of them corrupt, and a run of it that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    lines = [json.dumps(item) for item in MANY]
    lines[499] = lines[499][:40]
    file = folder / "in.jsonl"
    file.write_text("\n".join(lines) + "\n")
    out = finish(start("coreference", file, folder / "out", "--shard-rows", "20", model=tiny))
    assert "999 of 1,000 rows have an answer" in out
    return file, folder / "out"


def same(out: Path, other: Path) -> None:
    alike(rows(out), rows(other))
    assert (out / "errors.jsonl").read_bytes() == (other / "errors.jsonl").read_bytes()
    ours, theirs = (json.loads((one / "summary.json").read_bytes()) for one in (out, other))
    assert ours == theirs
    assert [*(out / "items").glob(".*")] == []


def test_one_corrupt_row_in_a_thousand_costs_only_its_own_answer(undisturbed: tuple[Path, Path]) -> None:
    file, out = undisturbed
    assert [row["line"] for row in rows(out)] == [line for line in range(1, 1001) if line != 500]
    (error,) = [json.loads(line) for line in (out / "errors.jsonl").read_text().splitlines()]
    assert (error["file"], error["line"], error["code"]) == (str(file), 500, "malformed_line")


def test_an_actor_killed_in_mid_run_costs_no_answer(
    tiny: str, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    file, whole = undisturbed
    driver = start("coreference", file, tmp_path / "out", "--shard-rows", "20", model=tiny)
    wait_until(lambda: len(parts(tmp_path / "out")) >= 3, 120)
    os.kill(actors(driver)[0], signal.SIGKILL)
    assert len(parts(tmp_path / "out")) < 50, "it was too late to kill anything"
    finish(driver)
    same(tmp_path / "out", whole)


def test_a_run_whose_driver_was_killed_goes_on_where_it_was(
    tiny: str, undisturbed: tuple[Path, Path], tmp_path: Path
) -> None:
    file, whole = undisturbed
    driver = start("coreference", file, tmp_path / "out", "--shard-rows", "20", model=tiny)
    wait_until(lambda: len(parts(tmp_path / "out")) >= 3, 120)
    working = [*family(driver.pid)]
    driver.kill()
    driver.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in working), 30)
    before = {path: path.stat().st_mtime_ns for path in parts(tmp_path / "out")}
    assert 3 <= len(before) < 50
    for path in before:
        pq.ParquetFile(path).read()  # whole
    finish(start("coreference", file, tmp_path / "out", "--shard-rows", "20", model=tiny))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    same(tmp_path / "out", whole)
