"""The scripts in examples/, as a user runs them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from service.weights import ModelFiles
from tests.tiny import HEADS, LAYERS, tiny_backbone, tiny_tokenizer_json

ROOT = Path(__file__).parents[2]
SENTENCE = "The cat sat on the mat because it was tired."


def heads(*arguments: str | Path, code: int = 0) -> str:
    """What examples/heads.py prints, or says where it fails. HF_HUB_OFFLINE: a wrong name must not wait for the hub."""
    done = subprocess.run(
        [sys.executable, "examples/heads.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def eager(folder: Path) -> torch.Tensor:
    """The sentence's maps by transformers, [layer, head, query, key]."""
    ids = AutoTokenizer.from_pretrained(folder)(SENTENCE, return_tensors="pt").input_ids
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return torch.stack(model(ids, output_attentions=True, use_cache=False).attentions)[:, 0]


def rows_of(printed: str) -> list[list[float]]:
    """The largest weights that are printed for each token."""
    table = printed.split("\n\n")[0].splitlines()[1:]
    return [[float(one) for one in re.findall(r"\d\.\d{3}", line)] for line in table]


def expected_rows(weights: torch.Tensor) -> list[list[float]]:
    """The three largest weights of each row of one map."""
    return [row[: query + 1].topk(min(3, query + 1)).values.tolist() for query, row in enumerate(weights)]


def assert_rows(printed: str, weights: torch.Tensor) -> None:
    for got, expected in zip(rows_of(printed), expected_rows(weights), strict=True):
        assert got == pytest.approx(
            expected, abs=0.0008
        )  # half of the last digit, and what machines differ by


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the hub's: config, safetensors, tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_backbone().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tiny_tokenizer_json(), encoding="utf-8")
    PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(folder)
    return folder


def test_a_tiny_model_in_a_folder_is_read(tiny: Path) -> None:
    maps = eager(tiny)
    printed = heads(tiny, "--layer", "1", "--head", "7")
    assert printed.startswith("Where layer 1 head 7 looks from each token:\n   0 T  ")
    assert_rows(printed, maps[1, 7])
    # Pieces of words: " it" is two tokens, "T" "he" " cat" three; the pronoun's row is that of its last token
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    offsets = tokenizer(SENTENCE, return_offsets_mapping=True).offset_mapping

    def covering(word: str) -> list[int]:
        start = SENTENCE.index(f" {word} ") + 1
        return [k for k, (a, b) in enumerate(offsets) if a < start + len(word) and start < b]

    scores = maps[:, :, covering("it")[-1]]  # [layer, head, key]
    cat, mat = (scores[..., covering(word)].sum(-1) for word in ("cat", "mat"))
    lines = printed.splitlines()[-2:]
    for line, noun, mine, other in zip(lines, ("cat", "mat"), (cat, mat), (mat, cat), strict=True):
        found = re.fullmatch(rf" +{noun} +(\d\.\d+), chosen by (\d+) of {LAYERS * HEADS} heads", line)
        assert found is not None, line
        assert float(found[1]) == pytest.approx(float(mine[1, 7]), abs=0.0008)
        assert int(found[2]) == int((mine > other).sum())


def test_a_sentence_of_ones_own_needs_no_pronoun(tiny: Path) -> None:
    printed = heads(tiny, "A man sat.", "--layer", "0", "--head", "0")
    assert "Kinds of head:" in printed
    assert "chosen by" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layer", "3"], "heads.py: layer: 3 is not in 0..2\n"),
        (["--layer", "1", "--head", "10"], "heads.py: head: 10 is not in 0..9\n"),
        (["--layer", "1", "--candidates", "dog"], 'heads.py: "dog": the span\'s text is not in the text\n'),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(tiny: Path, arguments: list[str], message: str) -> None:
    assert heads(tiny, *arguments, code=1) == message


@pytest.mark.parametrize("name", ["missing/folder/somewhere", "empty", "no-such-model"])
def test_a_wrong_folder_or_name_says_what_is_expected(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    name = str(tmp_path / name) if name == "empty" else name
    said = heads(name, code=1)
    expected = "expected a folder with config.json, *.safetensors and tokenizer.json, or a hub id"
    assert said.startswith(f"heads.py: no model in {name}: {expected}\n")


def test_a_model_that_cannot_be_read_says_why(tmp_path: Path, tiny: Path) -> None:
    tiny_backbone(use_sliding_window=True, sliding_window=4, max_window_layers=1).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path)
    assert heads(tmp_path, code=1).startswith("heads.py: qwen2 is not read: it has sliding windows")


@pytest.mark.weights
def test_the_real_model_is_read(files: ModelFiles) -> None:
    maps = eager(files.folder)
    printed = heads(files.folder)
    assert_rows(printed, maps[5, 5])
    # A sink is a head whose mean weight on token 0 exceeds one half, row 0 left out
    sinks = int((maps[:, :, 1:, 0].mean(-1) > 0.5).sum())
    assert re.search(rf"^ *{sinks} sink ", printed, re.MULTILINE)
    cat, mat = maps[:, :, 7, 1], maps[:, :, 7, 5]  # [layer, head]
    assert printed.splitlines()[-2:] == [
        f"     cat          {cat[5, 5]:.3f}, chosen by {int((cat > mat).sum())} of 336 heads",
        f"     mat          {mat[5, 5]:.3f}, chosen by {int((mat > cat).sum())} of 336 heads",
    ]


@pytest.mark.weights
def test_readmes_command_runs_on_the_real_model(files: ModelFiles) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python examples/heads.py Qwen/Qwen2.5-0.5B (.+)$", readme, re.MULTILINE)
    printed = heads(files.folder, *shlex.split(command))
    assert 'Where "she" looks:\n     Anna ' in printed
    assert re.search(r"^     Tom +\d\.\d{3}, chosen by \d+ of 336 heads$", printed, re.MULTILINE)
