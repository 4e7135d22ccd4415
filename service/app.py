"""The one place where the parts are put together."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flask import Flask, request
from flask_compress import Compress

from service import body, observability, problems, security
from service.engine import Engine
from service.metrics import Metrics
from service.model import load_model
from service.result_cache import ResultCache
from service.routes import BLUEPRINTS
from service.settings import Settings
from service.tracing import Tracing

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from opentelemetry.trace import TracerProvider

COMPRESSED = [  # text; the numbers in NPZ and PNG are as small as they get
    "application/json",
    "application/openmetrics-text",
    "application/problem+json",
    "application/yaml",
    "image/svg+xml",
    "text/css",
    "text/csv",
    "text/html",
    "text/javascript",
    "text/plain",  # the metrics
]


def create_app(
    settings: Settings | None = None,
    engine: Engine | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Flask:
    """The WSGI app. `settings` None reads the environment; `engine` None starts one that loads their model.

    `tracer_provider` None takes the process's, where there is one.
    """
    settings = settings or Settings()
    app = Flask(__name__, static_folder=None)
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False  # a doubled slash is a mistake, not a reason to redirect a POST
    app.extensions["settings"] = settings
    app.extensions["engine"] = engine or _start_engine(settings)
    app.extensions["result_cache"] = ResultCache(settings.result_cache_bytes)
    metrics = app.extensions["metrics"] = Metrics()
    app.extensions["engine"].observe(metrics)
    observability.register(app, metrics, Tracing.by(tracer_provider))
    body.register(app)
    problems.register(app)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    app.config["COMPRESS_MIMETYPES"] = COMPRESSED
    app.before_request(_forget_refused_encodings)
    security.register(app)  # before any view, and after what an answer to be refused needs too
    Compress(app)
    app.wsgi_app = _under(settings.root_path, app.wsgi_app)  # type: ignore[assignment, method-assign]
    return app


def _under(root: str, application: WSGIApplication) -> WSGIApplication:
    """The application below a path prefix too, for a proxy that passes it on; it stays reachable without."""

    def prefixed(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path: str = environ["PATH_INFO"]
        if root and (path == root or path.startswith(root + "/")):
            environ = {
                **environ,
                "SCRIPT_NAME": environ["SCRIPT_NAME"] + root,
                "PATH_INFO": path[len(root) :],
            }
        return application(environ, start_response)

    return prefixed


def _forget_refused_encodings() -> None:
    """Flask-Compress would take `gzip;q=0`, which refuses gzip, for a wish."""
    wanted = [str(one) for one, quality in request.accept_encodings if quality > 0]
    if "HTTP_ACCEPT_ENCODING" in request.environ:
        request.environ["HTTP_ACCEPT_ENCODING"] = ", ".join(wanted)


def _start_engine(settings: Settings) -> Engine:
    load = functools.partial(load_model, settings)
    return Engine(
        load, settings, watchdog_seconds=settings.watchdog_seconds, coalesce_tokens=settings.coalesce_tokens
    ).start()
