"""The app on a tiny model: every route without weights or network."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import hypothesis
import pytest
from flask import Flask
from flask.testing import FlaskClient
from pydantic import BaseModel
from werkzeug.test import TestResponse

from service.app import create_app
from service.engine import Engine
from service.model import LoadedModel
from service.settings import Settings
from service.weights import ModelFiles, WeightsError, locate
from tests.serving import MODEL
from tests.tiny import tiny_model

hypothesis.settings.register_profile("unhurried", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("unhurried")

MakeApp = Callable[..., Flask]


def read_strictly(response: TestResponse, schema: type[BaseModel]) -> Any:
    """The answer, parsed strictly and checked against the schema that is published for it."""
    assert response.status_code == 200, response.text

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    answer = json.loads(response.data, parse_constant=refuse)
    schema.model_validate_json(response.data, strict=True)
    return answer


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll; a condition that never comes fails the test instead of hanging it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)


class Client(FlaskClient):
    """Closes every answer, as a server does once it is sent: only then it is counted and logged."""

    def open(self, *args: Any, buffered: bool = True, **kwargs: Any) -> TestResponse:
        return super().open(*args, buffered=buffered, **kwargs)


def without(reason: str) -> NoReturn:
    """Skips for want of the weights or of a browser; where REQUIRE_ALL is set, as in CI, it is a failure."""
    (pytest.fail if os.environ.get("REQUIRE_ALL") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def files() -> ModelFiles:
    """The real weights, or a skip that says how to get them."""
    try:
        return locate(MODEL, Settings().cache)
    except WeightsError as error:
        without(f"the real weights are missing: {error}")


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
        # What asks twice here wants the model's answer twice; the tests of the result cache switch it on
        chosen = Settings(**{"result_cache_bytes": 0, **settings})
        engine = Engine(load, chosen, watchdog_seconds=chosen.watchdog_seconds).start()
        engines.append(engine)
        if wait:
            wait_until(lambda: engine.state != "loading")
        app = create_app(chosen, engine)
        app.test_client_class = Client
        return app

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def client(make_app: MakeApp) -> FlaskClient:
    return make_app().test_client()
