"""`attention-service reproduce` as a user runs it, on the real weights: DESIGN's figures, and exit code 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.weights import ModelFiles
from tests.serving import MODEL


@pytest.fixture(scope="module")
def done(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("results") / "part1.json"
    process = subprocess.run(
        [sys.executable, "-m", "service.cli", "reproduce", "--out", out],
        env=os.environ | {"ATTENTION_MODEL": MODEL},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout, out


@pytest.mark.parametrize(
    ("claim", "cells"),
    [
        (
            "heads with more than half on the first token, rows 1 and later",
            "68%|53.3% (179 of 336)|other model",
        ),
        ("the same with row 0", "58.3% (196 of 336)|not in the article"),
        ("L8H7, mean weight on the previous token", "84%|84.3%|other model"),
        ('L5H5, "it" to "cat"', "83%|86.9%|other model"),
        ("L5H5, unseen sentences right", "6 of 6|6 of 6|other model"),
        ("L5H5, sentences whose right noun is the second", "4 of 17|not in the article"),
        ("sink", "179 (53.3%), most: L11H13 1.000|not in the article"),
        ("previous_token", "9 (2.7%), most: L8H7 0.843|not in the article"),
        ("local", "72 (21.4%), most: L8H3 1.000|not in the article"),
        ("induction", "14 (4.2%), most: L16H3 0.967|not in the article"),
        ("duplicate_token", "6 (1.8%), most: L3H0 0.978|not in the article"),
    ],
)
def test_the_figures_of_this_model_stand_beside_the_articles(
    done: tuple[str, Path], claim: str, cells: str
) -> None:
    (line,) = [line for line in done[0].splitlines() if line.startswith(f"  {claim}  ")]
    assert line.removeprefix(f"  {claim}").split() == cells.replace("|", " ").split()


def test_the_json_says_which_weights_and_all_that_must_hold_agrees(
    done: tuple[str, Path], files: ModelFiles
) -> None:
    report = json.loads(done[1].read_text(encoding="utf-8"))
    assert (report["model"]["id"], report["model"]["sha256"]) == (MODEL, files.sha256)
    required = [row for row in report["claims"] if row["must_hold"]]
    assert len(required) > 20
    assert {row["verdict"] for row in required} == {"agrees"}
