"""For gunicorn: the service on a tiny model, with a route that stays in flight until its worker is killed or told."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

from flask import Flask

from service.app import create_app
from service.engine import Engine
from service.settings import Settings
from tests.tiny import tiny_model


def create() -> Flask:
    """The app; `GET /hold` leaves its worker's process id in the folder HOLDING and goes on while it is there."""
    warnings.warn("only random numbers", stacklevel=1)
    settings = Settings()
    app = create_app(settings, Engine(tiny_model, settings).start())

    @app.get("/hold")
    def hold() -> str:
        held = Path(os.environ["HOLDING"]) / str(os.getpid())
        with app.extensions["engine"].admit():
            held.touch()
            while held.exists():
                time.sleep(0.01)
        return "done"

    return app
