"""The service on the tiny model, for gunicorn: what is tested is the wire, which needs no real weights."""

from __future__ import annotations

from flask import Flask

from service.app import create_app
from service.engine import Engine
from service.settings import Settings
from tests.tiny import tiny_model


def app() -> Flask:
    """With the settings of the environment."""
    settings = Settings()
    return create_app(settings, Engine(tiny_model, settings).start())
