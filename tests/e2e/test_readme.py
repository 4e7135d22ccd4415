"""README's curl commands give README's output."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.weights import ModelFiles
from tests.serving import Server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```console\n\$ (.*?)\n```$", README, re.DOTALL | re.MULTILINE)


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
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[0][28:60])
def test_a_command_gives_the_output_shown(server: Server, example: str) -> None:
    for tool in ("curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    command, output = split(example)
    command = command.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{server.port}")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.stdout.strip() == output, done.stderr


def test_the_python_examples_run_one_after_the_other_and_print_what_they_say(files: ModelFiles) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
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
    assert len(said) == 3
    assert done.stdout.splitlines()[-3:] == said
