"""The app on a tiny model: every route without weights or network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from flask import Flask
from flask.testing import FlaskClient

from service.app import create_app
from service.engine import Engine
from service.model import LoadedModel
from service.settings import Settings
from tests.tiny import tiny_model

hypothesis.settings.register_profile("unhurried", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("unhurried")

MakeApp = Callable[..., Flask]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll; a condition that never comes fails the test instead of hanging it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def model() -> LoadedModel:
    return tiny_model()


@pytest.fixture
def make_app(model: LoadedModel) -> Iterator[MakeApp]:
    """An app with other settings, or another load function; engines are closed afterwards."""
    engines: list[Engine] = []

    def make(
        load: Callable[[], LoadedModel] = lambda: model, *, wait: bool = True, **settings: object
    ) -> Flask:
        chosen = Settings(**settings)
        engine = Engine(load, chosen, watchdog_seconds=chosen.watchdog_seconds).start()
        engines.append(engine)
        if wait:
            wait_until(lambda: engine.state != "loading")
        return create_app(chosen, engine)

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def client(make_app: MakeApp) -> FlaskClient:
    return make_app().test_client()
