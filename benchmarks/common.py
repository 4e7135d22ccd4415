"""What several benchmarks need: the model that their figures are about, its texts, the service's own environment."""

from __future__ import annotations

import json
import os
import sys
from importlib import resources
from typing import Any

from service.settings import Settings, process_environment

DEFAULT_MODEL = "pypi:qwen2.5-coder-0.5b-instruct"


def start_as_the_service_does(settings: Settings) -> None:
    """Start this program once more where its environment is not the service's, which is read when a process starts."""
    wanted = process_environment(settings)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, sys.orig_argv, os.environ | wanted)


def packaged_items() -> list[dict[str, Any]]:
    """The packaged coreference items, each with its text, pronoun and candidates."""
    files = resources.files("service") / "data"
    return [
        json.loads(line)
        for name in ("easy", "control")
        for line in (files / f"{name}.jsonl").read_text().splitlines()
    ]
