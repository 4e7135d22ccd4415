"""gunicorn's settings; `attention-service serve` passes this module, and `gunicorn.conf.py` imports it."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from service import observability, tracing
from service.settings import AROUND_URL_BYTES, MULTIPROC_DIR, Settings, process_environment

log = logging.getLogger(__name__)

EXIT_SECONDS = 10  # for a job that nobody waits for any more to come to its next layer

_settings = Settings()

# `attention-service serve` has set these before Python started; a bare gunicorn gets what can still be had
raw_env = [
    f"{name}={value}" for name, value in process_environment(_settings).items() if name not in os.environ
]

wsgi_app = "service.app:create_app()"
bind = f"{_settings.host}:{_settings.port}"
worker_class = "service.worker.Worker"  # gthread, with threads for whole requests only
# No header says who or where the service is: below a path prefix it goes by ATTENTION_ROOT_PATH
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}
limit_request_line = _settings.max_url_bytes + AROUND_URL_BYTES
workers = 1  # one per copy of the weights; scale by replicas
# The rest serves health, contract and arithmetic while the model is busy
threads = _settings.max_in_flight + 4
preload_app = False  # the model must be loaded after the fork
control_socket_disable = True
timeout = 60  # heartbeat of the worker, not of a request
# Longer than any deadline but an evaluation's, which it cuts off
graceful_timeout = int(_settings.deadline_seconds) + 10
keepalive = 75  # longer than a proxy's, else sporadic 502
max_requests = 0  # a restart would load the model again
if Path("/dev/shm").is_dir():
    worker_tmp_dir = "/dev/shm"
accesslog = None  # the service writes its own line
logconfig_dict: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "root": {"level": "INFO", "handlers": ["json"]},
    "handlers": {
        "json": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "json"}
    },
    "formatters": {"json": {"()": "service.observability.JsonFormatter"}},
    "loggers": {
        "gunicorn.error": {"level": "INFO", "handlers": [], "propagate": True},
        "gunicorn.access": {"level": "INFO", "handlers": [], "propagate": False},
    },
}


def on_starting(server: Any) -> None:
    """Before the first worker: warnings go to the log, and what an earlier run counted for several workers is gone."""
    observability.capture()
    if not _settings.api_keys and not _settings.on_loopback:
        log.warning(
            "everybody who reaches this port may ask: set ATTENTION_API_KEYS, or let a proxy in front say who may",
            extra={"host": _settings.host},
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    # Connections, and fonts for each thread
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    if folder := os.environ.get(MULTIPROC_DIR):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file in Path(folder).glob("*.db"):
            file.unlink()


def post_fork(server: Any, worker: Any) -> None:
    """The tracer's exporter has a thread, which no fork would take along."""
    tracing.start()


def worker_exit(server: Any, worker: Any) -> None:
    """Wait for the inference thread: one that is in the middle of torch when Python ends takes the process down."""
    app = getattr(worker, "wsgi", None)  # missing where it never started
    if app is not None and not app.extensions["engine"].close(EXIT_SECONDS):
        os._exit(0)


def child_exit(server: Any, worker: Any) -> None:
    """A worker is gone, however it ended: what it counted stays, what it had in hand does not."""
    if os.environ.get(MULTIPROC_DIR):
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(worker.pid)


def post_worker_init(worker: Any) -> None:
    """On TERM, stop being ready at once; gunicorn's own handler then lets what is in flight finish.

    A terminal's ^C reaches master and worker alike; the master alone must act on it, or its QUIT finds the worker in
    the middle of its own.
    """
    gc.freeze()  # the modules stay: looking through them for garbage takes a quarter of a second, in some request
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = signal.getsignal(signal.SIGTERM)

    def drain(number: int, frame: FrameType | None) -> None:
        worker.wsgi.extensions["engine"].drain()
        if callable(stop):
            stop(number, frame)

    signal.signal(signal.SIGTERM, drain)
