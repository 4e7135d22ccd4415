"""Metrics, log and traces of a real gunicorn with two workers, on a tiny model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import wait_until
from tests.serving import Server, free_port

CONF = """
from service.gunicorn_conf import *
wsgi_app = "tests.e2e.metered:create()"
workers = {workers}
"""
GOOD = {"text": "the cat of Zanzibar", "layers": [0], "heads": [0]}


@contextlib.contextmanager
def gunicorn(folder: Path, *, workers: int = 2, **environment: str) -> Iterator[Server]:
    conf = folder / "conf.py"
    conf.write_text(CONF.format(workers=workers))
    port = free_port()
    (folder / "held").mkdir(exist_ok=True)
    given = {"HOST": "127.0.0.1", "PORT": str(port), "HOLDING": str(folder / "held"), "OMP_NUM_THREADS": "1"}
    log, errors = folder / "out.log", folder / "err.log"
    with log.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-c", str(conf)],
            env=os.environ | given | environment,
            stdout=out,
            stderr=err,
        )
    server = Server(process, port, log)
    try:
        wait_until(lambda: log.read_text().count('"message":"ready"') == workers, 60)
        yield server
    finally:
        for file in (folder / "held").iterdir():
            file.unlink()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        written = errors.read_text()  # what Python has to say is in the log
        assert not any(sign in written for sign in ("Traceback", "Warning", "Error")), written


def value(server: Server, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(server.get("/metrics").data.decode())
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found)


def asked(server: Server) -> float:
    return value(server, "attention_http_requests_total", route="/v1/attention", status="200")


def test_two_workers_count_together_and_one_that_is_killed_takes_only_its_gauges_along(
    tmp_path: Path,
) -> None:
    counting = tmp_path / "not made yet" / "metrics"
    with gunicorn(tmp_path, PROMETHEUS_MULTIPROC_DIR=str(counting)) as server:
        with ThreadPoolExecutor(8) as clients:
            answers = list(clients.map(lambda _: server.post("/v1/attention", GOOD).status, range(100)))
        assert answers == [200] * 100
        assert len({file.name.rpartition("_")[2] for file in counting.glob("counter_*.db")}) == 2, "workers"
        assert asked(server) == 100
        assert value(server, "attention_model_info") == 1  # not one for each worker
        assert value(server, "attention_requests_in_flight") == 0

        held = tmp_path / "held"
        with ThreadPoolExecutor(1) as client:
            holding = client.submit(server.get, "/hold")
            wait_until(lambda: any(held.iterdir()))
            assert value(server, "attention_requests_in_flight") == 1
            (worker,) = (int(file.name) for file in held.iterdir())
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: value(server, "attention_requests_in_flight") == 0)
            with pytest.raises(OSError, match=r"reset|closed|without"):
                holding.result(30)
        wait_until(lambda: server.log.read_text().count('"message":"ready"') == 3, 60)
        assert worker not in server.workers()
        assert asked(server) == 100
        assert not list(counting.glob(f"gauge_*_{worker}.db"))
        server.post("/v1/attention", GOOD)
        assert asked(server) == 101

    assert list(counting.glob("*.db"))
    (counting / "keep.txt").touch()  # not ours
    with gunicorn(tmp_path, workers=1, PROMETHEUS_MULTIPROC_DIR=str(counting)) as server:
        assert asked(server) == 0, "what an earlier run left"
        assert (counting / "keep.txt").exists()


class Collector(HTTPServer):
    """Takes what an OTLP exporter sends."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = ExportTraceServiceRequest.FromString(
                    self.rfile.read(int(self.headers["Content-Length"]))
                )
                for of_resource in sent.resource_spans:
                    for of_scope in of_resource.scope_spans:
                        collector.spans.extend(of_scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


def test_every_line_is_json_on_stdout_spans_go_to_the_collector_and_nothing_quotes_the_user(
    tmp_path: Path,
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}"
        with gunicorn(tmp_path, workers=1, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as server:
            server.post(
                "/v1/attention", GOOD, X_Request_ID="mine-1", traceparent=f"00-{trace}-00f067aa0ba902b7-01"
            )
            server.get("/v1/attention?" + urllib.parse.urlencode({"text": "Zanzibar", "layers": "99"}))
            server.get("/Zanzibar")
            server.raw(b"GET / HTTP/1.1\r\nZanzibar\r\n\r\n", seconds=2)
            server.raw(b"Zanzibar\r\n\r\n", seconds=2)
            assert value(server, "process_resident_memory_bytes") > 1e8
        collector.shutdown()

    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    loggers = {line["logger"] for line in lines}
    assert {"gunicorn.error", "service.engine", "service.access", "py.warnings"} <= loggers
    (line,) = (line for line in lines if line.get("request_id") == "mine-1")
    assert (line["status"], line["route"], line["trace_id"]) == (200, "/v1/attention", trace)
    assert "Zanzibar" not in server.log.read_text()

    sent = collector.spans  # at the latest when the worker ended
    of_trace = {span.name for span in sent if span.trace_id.hex() == trace}
    assert of_trace == {"tokenize", "queue", "forward", "serialize", "POST /v1/attention"}
    assert {"GET /v1/attention", "GET"} <= {span.name for span in sent}
    assert b"Zanzibar" not in b"".join(span.SerializeToString() for span in sent)
