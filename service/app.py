"""The one place where the parts are put together."""

from __future__ import annotations

import functools

from flask import Flask

from service import body, observability, problems
from service.engine import Engine
from service.model import load_model
from service.routes import BLUEPRINTS
from service.settings import Settings


def create_app(settings: Settings | None = None, engine: Engine | None = None) -> Flask:
    """The WSGI app. `settings` None reads the environment; `engine` None starts one that loads their model."""
    settings = settings or Settings()
    app = Flask(__name__, static_folder=None)
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False  # a doubled slash is a mistake, not a reason to redirect a POST
    app.extensions["settings"] = settings
    app.extensions["engine"] = engine or _start_engine(settings)
    observability.register(app)
    body.register(app)
    problems.register(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    return app


def _start_engine(settings: Settings) -> Engine:
    load = functools.partial(load_model, settings)
    return Engine(load, settings, watchdog_seconds=settings.watchdog_seconds).start()
