"""The service on the tiny model, obedient to files in STUB_FOLDER: what it does at a given moment is a test's to say.

loading  while it exists, the model loads
hold     while it exists, a job stays before its first layer, and looks there whether somebody still waits for it
hang     while it exists, a job stays there without looking
draw     while it exists, `GET /stub/draw` has the turn to draw; `drawing` is there from then on
ran      a line for each job that went through the model: tokens, whether inference mode was on, whether a row needs
         a gradient, and the process
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flask import Flask

from attention_core.capture import AttentionReader, Rows
from service.app import create_app
from service.engine import Engine
from service.formats import drawing
from service.model import LoadedModel
from service.settings import Settings
from tests.tiny import tiny_backbone, tiny_model


class ObedientReader(AttentionReader):
    """Reads as the folder's files say."""

    def __init__(self, folder: Path) -> None:
        super().__init__(tiny_backbone())
        self.folder = folder

    def read(  # type: ignore[override]
        self, sequences: Any, heads: Any, consume: Callable[[Rows], None], **options: Any
    ) -> None:
        check = options.get("before_layer") or (lambda layer: None)
        while (self.folder / "hold").exists():
            check(0)
            time.sleep(0.005)
        while (self.folder / "hang").exists():
            time.sleep(0.005)
        graded: list[bool] = []

        def noting(rows: Rows) -> None:
            graded.append(torch.as_tensor(rows.weights).requires_grad)
            consume(rows)

        product = torch.ones(64, 512) @ torch.ones(512, 64)  # of several threads
        super().read(sequences, heads, noting, **options)
        tokens, inference = [len(ids) for ids in sequences], torch.is_inference_mode_enabled()
        with (self.folder / "ran").open("a") as ran:
            ran.write(f"{tokens} {inference} {any(graded) or product.requires_grad} {os.getpid()}\n")


def _load(folder: Path) -> LoadedModel:
    while (folder / "loading").exists():
        time.sleep(0.01)
    tiny = tiny_model()
    return LoadedModel(
        ObedientReader(folder), tiny.tokenizer, tiny.max_tokens, tiny.provenance, tiny.output_matrix
    )


def app() -> Flask:
    """For gunicorn."""
    settings, folder = Settings(), Path(os.environ["STUB_FOLDER"])
    engine = Engine(
        functools.partial(_load, folder), settings, watchdog_seconds=settings.watchdog_seconds
    ).start()
    made = create_app(settings, engine)
    everyone = threading.Barrier(settings.max_in_flight + 4)

    @made.get("/stub/state")
    def state() -> dict[str, Any]:
        return {"in_flight": engine._in_flight, "waiting": len(engine._waiting), "pid": os.getpid()}

    @made.get("/stub/everyone")
    def meet() -> dict[str, bool]:
        """Answered when as many requests as there are threads are here at once."""
        everyone.wait(10)
        return {"met": True}

    @made.get("/stub/draw")
    def draw() -> dict[str, bool]:
        """Draws."""
        with drawing.one_at_a_time():
            (folder / "drawing").touch()
            while (folder / "draw").exists():
                time.sleep(0.005)
        (folder / "drawing").unlink()
        return {"drawn": True}

    return made
