"""`attention-service reproduce` on a tiny model: the table, the JSON, the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from service.model import LoadedModel
from service.reproduce import Claim, derive, reproduce_command
from service.settings import Settings
from service.weights import NotFetchedError

Run = Callable[..., int]


@pytest.fixture(scope="module")
def claims(model: LoadedModel) -> list[Claim]:
    """All rows on the tiny model, which the √d experiment makes worth keeping."""
    return derive(model)


@pytest.fixture
def run(model: LoadedModel, claims: list[Claim], tmp_path: Path) -> Run:
    def run(**options: Any) -> int:
        arguments: dict[str, Any] = {"load": lambda _: model, "derive": lambda _: claims}
        return reproduce_command(Settings(), tmp_path / "results" / "part1.json", **(arguments | options))

    return run


def refuse_constants(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


def test_all_that_must_hold_agrees_whatever_the_weights(claims: list[Claim]) -> None:
    required = [claim for claim in claims if claim.must_hold]
    assert [claim for claim in required if claim.verdict != "agrees"] == []
    assert {claim.verdict for claim in claims if not claim.must_hold} == {"other model", "not in the article"}
    # The article's own figures, word for word.
    stated = {claim.claim: (claim.article, claim.shown) for claim in required}
    assert stated["[1,2]·[3,4]"] == ("11", "11")
    assert stated["pairs of 4 tokens"] == ("16", "16")
    assert stated["pairs of 1,000 tokens"] == ("1,000,000", "1,000,000")
    assert stated["bytes a token"] == ("524,288", "524,288")
    assert stated["at 4,096 tokens"] == ("2 GiB", "2 GiB")
    assert [stated[f"spread of q·k at d = {d}"][0] for d in (16, 64, 256, 1024)] == ["4", "8", "16", "32"]


def test_the_four_layers_of_table_1_are_there_with_work_steps_and_path(claims: list[Claim]) -> None:
    # n = 1,000, d = 512, k = 3, r = 100: n²d, nd², knd² with 3⁶ < 1,000 ≤ 3⁷, rnd with 1,000 / 100
    layers = [claim for claim in claims if "work, steps, path" in claim.claim]
    assert [(claim.claim.partition(",")[0], claim.shown) for claim in layers] == [
        ("self-attention", "512,000,000; 1; 1"),
        ("recurrent", "262,144,000; 1,000; 1,000"),
        ("convolutional", "786,432,000; 1; 7"),
        ("restricted self-attention", "51,200,000; 1; 10"),
    ]


def test_the_table_has_a_line_for_each_claim_with_article_measured_and_verdict(
    run: Run, claims: list[Claim], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    printed, complaints = capsys.readouterr()
    assert complaints == ""
    assert printed.startswith("model: tiny (float32 on cpu)\n")
    lines = printed.splitlines()
    for claim, line in zip(claims, [line for line in lines if line.startswith("  ")], strict=True):
        assert line.startswith(f"  {claim.claim}  ")
        cells = line.removeprefix(f"  {claim.claim}").split()
        assert cells == [*claim.article.split(), *claim.shown.split(), *claim.verdict.split()]
        assert claim.section in lines


def test_the_json_is_strict_and_holds_the_same(run: Run, claims: list[Claim], tmp_path: Path) -> None:
    undefined = replace(claims[0], measured=float("nan"), must_hold=False)
    assert run(derive=lambda _: [*claims, undefined]) == 0
    text = (tmp_path / "results" / "part1.json").read_text(encoding="utf-8")
    report = json.loads(text, parse_constant=refuse_constants)
    assert report["model"]["id"] == "tiny"
    assert [row["claim"] for row in report["claims"][:-1]] == [claim.claim for claim in claims]
    assert [row["measured"] for row in report["claims"][:-1]] == [claim.measured for claim in claims]
    assert report["claims"][-1]["measured"] is None


def test_the_exit_code_is_1_and_says_which_claim_does_not_hold(
    run: Run, claims: list[Claim], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(claims[0], measured=12, shown="12", verdict="differs")
    assert run(derive=lambda _: [wrong, *claims[1:]]) == 1
    assert capsys.readouterr().err == "does not hold: four tokens: [1,2]·[3,4]\n"
    assert (tmp_path / "results" / "part1.json").exists()  # also then: it is the evidence


def test_a_figure_of_other_weights_does_not_make_it_fail(run: Run, claims: list[Claim]) -> None:
    other = replace(claims[-1], verdict="differs", must_hold=False)
    assert run(derive=lambda _: [other, *claims]) == 0


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (NotFetchedError("run: attention-service fetch-weights"), 3, "run: attention-service fetch-weights"),
        (ValueError("layer 1 gives\nNaN"), 1, "ValueError: layer 1 gives NaN"),
        (OSError("no file"), 1, "OSError: no file"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_line(
    run: Run, error: Exception, code: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(_: Settings) -> NoReturn:
        raise error

    assert run(load=load) == code
    assert capsys.readouterr() == ("", f"attention-service: {line}\n")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_were_never_fetched_have_their_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(model="auto", cache=tmp_path / "cache")
    assert reproduce_command(settings, tmp_path / "part1.json") == NotFetchedError.exit_code
    assert "fetch-weights" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["file/part1.json", "folder"])
def test_a_place_that_cannot_be_written_is_noticed_before_the_work(
    model: LoadedModel, tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()

    def work(_: LoadedModel) -> NoReturn:
        raise AssertionError("the work was begun")

    assert reproduce_command(Settings(), tmp_path / out, load=lambda _: model, derive=work) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line
