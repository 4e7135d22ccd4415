"""/metrics, the access log, timings and traces: exact names, bounded labels, and nothing of the user's text."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import pytest
from flask import Flask, Response
from flask.testing import FlaskClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from service import tracing
from service.app import create_app
from service.engine import Deadline, Engine
from service.errors import DeadlineExceededError
from service.model import LoadedModel
from service.observability import JsonFormatter, capture
from service.settings import Settings
from tests.conftest import Client, MakeApp, wait_until

SECRET = "the cat of Zanzibar"
GOOD = {"text": "the cat", "layers": [0], "heads": [0]}
LABELS = {  # of the reference's table and what this service adds
    "attention_http_requests": {"route", "method", "status"},
    "attention_http_request_duration_seconds": {"route"},
    "attention_requests_in_flight": set(),
    "attention_queue_depth": set(),
    "attention_queue_wait_seconds": set(),
    "attention_tokenize_seconds": set(),
    "attention_forward_seconds": {"endpoint"},
    "attention_serialize_seconds": {"media_type"},
    "attention_input_tokens": set(),
    "attention_response_bytes": set(),
    "attention_rejected": {"reason"},
    "attention_joined_requests": set(),
    "attention_dropped_jobs": {"reason"},
    "attention_result_cache": {"result"},
    "attention_result_cache_bytes": set(),
    "attention_model_info": {"id", "revision", "dtype", "version"},
    "attention_model_load_seconds": set(),
}


def samples(client: FlaskClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every value by name and labels."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(client: FlaskClient, name: str, **labels: str) -> float:
    return samples(client).get((name, frozenset(labels.items())), 0.0)


def lines(caplog: pytest.LogCaptureFixture, logger: str = "service.access") -> list[dict[str, Any]]:
    return [json.loads(JsonFormatter().format(one)) for one in caplog.records if one.name == logger]


# --- metrics -------------------------------------------------------------------------------------------------


def test_every_metric_has_its_name_and_its_labels(client: FlaskClient) -> None:
    client.post("/v1/attention", json=GOOD)
    families = {one.name: one for one in text_string_to_metric_families(client.get("/metrics").text)}
    assert {name for name in families if name.startswith("attention_")} == set(LABELS)
    for name, labels in LABELS.items():
        assert families[name].documentation
        assert families[name].samples, name
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == labels, sample
    assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= set(families)


def test_a_request_is_counted_with_its_rule_its_method_and_its_status(client: FlaskClient) -> None:
    for _ in range(3):
        client.post("/v1/attention", json=GOOD)
    client.get("/v1/attention.csv", query_string={"text": "the cat", "layer": "0"})
    requests = "attention_http_requests_total"
    assert value(client, requests, route="/v1/attention", method="POST", status="200") == 3
    assert value(client, requests, route="/v1/attention.<name>", method="GET", status="200") == 1
    seconds = "attention_http_request_duration_seconds"
    assert value(client, f"{seconds}_count", route="/v1/attention") == 3
    assert 0 < value(client, f"{seconds}_sum", route="/v1/attention") < 60
    assert value(client, "attention_forward_seconds_count", endpoint="/v1/attention") == 4
    assert value(client, "attention_serialize_seconds_count", media_type="application/json") == 3
    assert value(client, "attention_serialize_seconds_count", media_type="text/csv") == 1
    assert value(client, "attention_tokenize_seconds_count") == 4
    assert value(client, "attention_queue_wait_seconds_count") == 4


def test_tokens_and_bytes_are_those_of_the_requests(client: FlaskClient) -> None:
    answers = [
        client.post("/v1/attention", json={"texts": texts}) for texts in (["the cat"], ["the", "mat at"])
    ]
    tokens = [sum(len(result["tokens"]) for result in answer.get_json()["results"]) for answer in answers]
    before = samples(client)
    assert before["attention_input_tokens_sum", frozenset()] == sum(tokens)
    assert before["attention_input_tokens_count", frozenset()] == 2
    assert before["attention_response_bytes_sum", frozenset()] == sum(len(one.data) for one in answers)


def test_buckets_are_powers_of_two_from_a_millisecond_and_from_a_token(client: FlaskClient) -> None:
    client.post("/v1/attention", json=GOOD)

    def buckets(name: str) -> list[float]:
        found = (dict(labels)["le"] for sample, labels in samples(client) if sample == f"{name}_bucket")
        return sorted({float(one) for one in found})[:-1]

    assert buckets("attention_queue_wait_seconds") == pytest.approx([0.001 * 2**n for n in range(18)])
    assert buckets("attention_input_tokens") == [2**n for n in range(17)]


def test_labels_are_bounded_whatever_is_asked(client: FlaskClient) -> None:
    for path in (
        "/zanzibar",
        "/v1/attention.zanzibar",
        "/problems/zanzibar",
        "/v1//zanzibar",
        "/metricszanzibar",
    ):
        client.get(path, query_string={"zanzibar": "zanzibar"}, headers={"Accept": "zanzibar/zanzibar"})
    client.open("/v1/attention", method="ZANZIBAR")
    client.post("/v1/attention", json={"zanzibar": "zanzibar"}, headers={"X-Request-ID": "zanzibar"})
    assert "zanzibar" not in client.get("/metrics").text.lower()
    assert (
        value(client, "attention_http_requests_total", route="unmatched", method="other", status="405") == 1
    )
    assert value(client, "attention_http_requests_total", route="unmatched", method="GET", status="404") == 3


def test_two_apps_in_a_process_count_for_themselves(make_app: MakeApp) -> None:
    one, other = make_app().test_client(), make_app().test_client()
    one.post("/v1/attention", json=GOOD)
    assert value(one, "attention_input_tokens_count") == 1
    assert value(other, "attention_input_tokens_count") == 0


def test_a_refusal_is_counted_by_its_reason(make_app: MakeApp) -> None:
    app = make_app(max_texts=1, max_tokens_per_text=3, max_queue_length=0, max_in_flight=1)
    client = app.test_client()

    def rejected() -> dict[str, float]:
        return {
            dict(labels)["reason"]: found
            for (name, labels), found in samples(client).items()
            if name == "attention_rejected_total" and found
        }

    client.post("/v1/attention", json={"texts": ["the", "cat"]})
    assert rejected() == {"too_large": 1}
    client.post("/v1/attention", json={"text": "cat " * 9})
    assert rejected() == {"too_large": 1, "too_long": 1}
    client.post("/v1/attention", json={"text": "", "colour": 1})  # wrong, but at no limit
    with app.extensions["engine"].admit():
        client.post("/v1/attention", json=GOOD)
    assert rejected() == {"too_large": 1, "too_long": 1, "overloaded": 1}
    app.extensions["engine"].drain()
    client.post("/v1/attention", json=GOOD)
    client.get("/health/ready")  # a probe asks, it is not turned away
    assert rejected() == {"too_large": 1, "too_long": 1, "overloaded": 1, "not_ready": 1}


def test_in_flight_queue_and_dropped_jobs_follow_the_engine(make_app: MakeApp) -> None:
    app = make_app(deadline_seconds=3)
    engine, client = app.extensions["engine"], app.test_client()
    release = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        blocking = pool.submit(engine.run, lambda check: release.wait(10), Deadline.after(10))
        wait_until(lambda: engine._running is not None)
        with engine.admit():
            asking = [pool.submit(app.test_client().post, "/v1/attention", json=GOOD) for _ in range(2)]
            wait_until(lambda: value(client, "attention_queue_depth") == 2)
            assert value(client, "attention_requests_in_flight") == 3
            assert [one.result().status_code for one in asking] == [504, 504]
        release.set()
        blocking.result()
    assert value(client, "attention_requests_in_flight") == 0
    assert value(client, "attention_queue_depth") == 0
    assert value(client, "attention_dropped_jobs_total", reason="deadline") == 2
    assert value(client, "attention_rejected_total", reason="deadline") == 2


def test_a_job_stopped_at_a_layer_by_its_deadline_is_dropped_once(make_app: MakeApp) -> None:
    app = make_app()
    engine = app.extensions["engine"]
    with pytest.raises(DeadlineExceededError):
        engine.run(lambda check: (time.sleep(0.1), check(0)), Deadline.after(0.05))
    engine.run(lambda check: None, Deadline.after(10))  # behind the one that was given up
    assert value(app.test_client(), "attention_dropped_jobs_total", reason="deadline") == 1


def test_requests_that_shared_a_pass_are_counted(model: LoadedModel) -> None:
    engine = Engine(lambda: model, Settings(), coalesce_tokens=128).start()
    wait_until(lambda: engine.state == "ready")
    app = create_app(Settings(), engine)
    release = threading.Event()
    try:
        with ThreadPoolExecutor(4) as pool:
            blocking = pool.submit(engine.run, lambda check: release.wait(10), Deadline.after(10))
            wait_until(lambda: engine._running is not None)
            asking = [pool.submit(app.test_client().post, "/v1/attention", json=GOOD) for _ in range(3)]
            wait_until(lambda: len(engine._waiting) == 3)
            release.set()
            blocking.result()
            assert [one.result().status_code for one in asking] == [200] * 3
        assert value(app.test_client(), "attention_joined_requests_total") == 3
    finally:
        engine.close()


def test_the_loaded_model_is_told_also_where_it_was_there_before_the_app(make_app: MakeApp) -> None:
    client = make_app().test_client()
    provenance = client.get("/v1/model").get_json()["model"]
    revision = provenance["revision"] or provenance["sha256"] or ""
    labels = {"id": provenance["id"], "revision": revision, "dtype": provenance["dtype"]}
    assert value(client, "attention_model_info", **labels, version=version("attention-service")) == 1
    assert value(client, "attention_model_load_seconds") > 0


def test_no_model_is_told_before_it_is_loaded(make_app: MakeApp, model: LoadedModel) -> None:
    loading = threading.Event()

    def load() -> LoadedModel:
        loading.wait(10)
        return model

    client = make_app(load, wait=False).test_client()
    assert not any(name == "attention_model_info" for name, _ in samples(client))
    loading.set()
    wait_until(lambda: any(name == "attention_model_info" for name, _ in samples(client)))


def test_the_cache_of_answers_has_its_counters(make_app: MakeApp) -> None:
    app = make_app()
    metrics, client = app.extensions["metrics"], app.test_client()
    for hit in (True, False, True):
        metrics.cache_asked(hit=hit)
    metrics.cache_holds(1234)
    assert value(client, "attention_result_cache_total", result="hit") == 2
    assert value(client, "attention_result_cache_total", result="miss") == 1
    assert value(client, "attention_result_cache_bytes") == 1234


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (None, False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        (  # Prometheus 3
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;version=abc", True),
        ("application/openmetrics-text;q=0, text/plain", False),
        ("text/plain;version=x", False),
        ("image/png", False),
        (";;;,", False),
    ],
)
def test_prometheus_gets_the_format_that_it_prefers(
    client: FlaskClient, accept: str | None, openmetrics: bool
) -> None:
    response = client.get("/metrics", headers={"Accept": accept} if accept else {})
    assert response.status_code == 200
    assert response.text.endswith("# EOF\n") == openmetrics
    expected = "application/openmetrics-text" if openmetrics else "text/plain"
    assert response.mimetype == expected
    parse = parse_openmetrics if openmetrics else text_string_to_metric_families
    assert set(LABELS) <= {family.name for family in parse(response.text)}


def test_probes_and_the_metrics_themselves_leave_no_line_and_wait_for_nothing(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(max_queue_length=0, max_in_flight=1)
    client = app.test_client()
    release = threading.Event()
    with ThreadPoolExecutor(1) as pool, app.extensions["engine"].admit(), caplog.at_level("INFO"):
        blocking = pool.submit(
            app.extensions["engine"].run, lambda check: release.wait(10), Deadline.after(10)
        )
        started = time.monotonic()
        assert [client.get(path).status_code for path in ("/metrics", "/health/live", "/health/ready")] == [
            200
        ] * 3
        assert time.monotonic() - started < 5
        release.set()
        blocking.result()
    assert lines(caplog) == []
    assert (
        value(client, "attention_http_requests_total", route="/health/ready", method="GET", status="200") == 1
    )


def test_the_master_of_gunicorn_loads_neither_the_model_s_libraries_nor_prometheus() -> None:
    """It forks; prometheus-client looks at the environment when it is imported, which a conf may still change."""
    code = (
        "import sys, service.gunicorn_conf, service.observability, service.problems\n"
        "print({'torch', 'transformers', 'prometheus_client', 'opentelemetry'} & set(sys.modules) or 'none')"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert told.stdout == "none\n"


# --- the log -------------------------------------------------------------------------------------------------


def test_a_request_has_one_line_with_all_that_it_must_tell(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        response = client.post(
            "/v1/attention", json={**GOOD, "text": SECRET}, headers={"X-Request-ID": "a-1_b.C"}
        )
    (line,) = lines(caplog)
    assert line["level"] == "info"
    assert line["time"].endswith("+00:00")
    assert (line["request_id"], response.headers["X-Request-ID"]) == ("a-1_b.C", "a-1_b.C")
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/attention", 200)
    assert line["response_bytes"] == len(response.data)
    assert line["duration_ms"] >= line["fwd_ms"] > 0
    assert line["text_characters"] == len(SECRET)
    assert line["text_sha256"] == hashlib.sha256(SECRET.encode()).hexdigest()[:16]
    assert "Zanzibar" not in json.dumps(line)


@pytest.mark.parametrize(
    ("path", "body", "texts"),
    [
        ("tokenize", {"texts": ["the", "cat"]}, ["the", "cat"]),
        ("attention", {"text": "the", "text_pair": "cat"}, ["the", "cat"]),
        ("heads", {"messages": [{"role": "user", "content": "the cat"}]}, ["the cat"]),
        ("attention", {"token_ids": [1, 2]}, []),
        (
            "coreference",
            {
                "items": [{"text": "the cat", "pronoun": {"text": "cat"}, "candidates": [{"text": "the"}]}]
                * 2,
                "heads": [[0, 0]],
            },
            ["the cat"] * 2,
        ),
        ("kv-cache", {"model": "llama-2-7b", "tokens": 1}, []),
    ],
)
def test_of_every_text_the_log_knows_how_long_it_is(
    client: FlaskClient,
    caplog: pytest.LogCaptureFixture,
    path: str,
    body: dict[str, Any],
    texts: list[str],
) -> None:
    with caplog.at_level("INFO"):
        assert client.post(f"/v1/{path}", json=body).status_code == 200
    (line,) = lines(caplog)
    assert line.get("text_characters", 0) == sum(map(len, texts))
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if texts else None
    assert line.get("text_sha256") == digest


def test_a_refused_text_is_told_in_the_same_way(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        client.post("/v1/attention", json={"text": SECRET, "layers": [99]})
        client.get("/v1/attention", query_string={"text": SECRET, "layers": "99"})
    for line in lines(caplog):
        assert (line["status"], line["text_characters"]) == (422, len(SECRET))
    assert "Zanzibar" not in caplog.text


@pytest.mark.parametrize(
    ("path", "encoding"), [("/openapi.json", "identity"), ("/openapi.json", "gzip"), ("/v1/model", "br")]
)
def test_bytes_are_those_that_go_out_none_for_head_and_304(
    client: FlaskClient, caplog: pytest.LogCaptureFixture, path: str, encoding: str
) -> None:
    headers = {"Accept-Encoding": encoding}
    with caplog.at_level("INFO"):
        whole = client.get(path, headers=headers)
        client.head(path, headers=headers)
        client.get(path, headers={**headers, "If-None-Match": whole.headers["ETag"]})
    told = [(line["method"], line["status"], line["response_bytes"]) for line in lines(caplog)]
    assert told == [("GET", 200, len(whole.data)), ("HEAD", 200, 0), ("GET", 304, 0)]


def test_a_stream_is_told_when_it_ends_with_the_bytes_that_were_taken(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    given_back: list[str] = []

    def stream() -> Response:
        def chunks() -> Iterator[str]:
            try:
                yield from ("é" * 7, "b" * 11, "c" * 13)
            finally:
                given_back.append("closed")

        return Response(chunks(), content_type="text/event-stream")

    app.add_url_rule("/stream", view_func=stream)
    client = app.test_client()
    with caplog.at_level("INFO"):
        with client.get("/stream") as whole:
            assert len(whole.data) == 38
        cut = client.get("/stream", buffered=False)
        assert next(cut.iter_encoded()) == "é".encode() * 7
        assert len(lines(caplog)) == 1
        cut.close()
    assert [(line["route"], line["response_bytes"]) for line in lines(caplog)] == [
        ("/stream", 38),
        ("/stream", 14),
    ]
    assert given_back == ["closed", "closed"]
    assert value(client, "attention_response_bytes_sum") == 52


def test_what_goes_wrong_inside_is_told_by_type_and_place_and_not_by_its_message(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()

    def fail() -> Response:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"no such text: {SECRET}") from error

    app.add_url_rule("/fail", view_func=fail)
    with caplog.at_level("INFO"):
        response = app.test_client().get("/fail", headers={"X-Request-ID": "find-me"})
    assert response.status_code == 500
    (line,) = lines(caplog, "service.problems")
    assert line["request_id"] == "find-me"
    assert line["exception"] == "ValueError"
    assert line["place"].startswith(__file__)
    assert line["place"].endswith("in fail")
    assert "KeyError" in line["traceback"]
    assert "raise ValueError" in line["traceback"]
    assert "Zanzibar" not in json.dumps(line)


def formatted(
    message: object, *arguments: object, error: Exception | None = None, thread: str = "MainThread"
) -> dict[str, Any]:
    """A line of gunicorn's own."""
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("gunicorn.error", logging.ERROR, __file__, 1, message, arguments, info)
    record.threadName = thread
    line: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return line


URI = f"/v1/attention?text={SECRET}"


@pytest.mark.parametrize(
    ("message", "arguments", "error", "told"),
    [
        ("Error handling request %s %s", ("GET", URI), ValueError(URI), "Error handling request - -"),
        (
            f"Invalid request from ip=::1: Invalid HTTP header: '{SECRET}'",
            (),
            None,
            "Invalid request from ip=::1",
        ),
        (ValueError(URI), (), ValueError(URI), "ValueError"),
    ],
)
def test_gunicorn_s_own_lines_about_a_request_do_not_quote_it(
    message: object, arguments: tuple[object, ...], error: Exception | None, told: str
) -> None:
    line = formatted(message, *arguments, error=error, thread="ThreadPoolExecutor-0_0")
    assert line["message"] == told
    assert "Zanzibar" not in json.dumps(line)


def test_what_fails_at_the_start_says_why() -> None:
    line = formatted("Exception in %s", "worker process", error=OSError("no such disk"))
    assert line["message"] == "Exception in worker process"
    assert "OSError: no such disk" in line["traceback"]


def test_a_model_that_cannot_be_loaded_says_why(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    def load() -> LoadedModel:
        raise RuntimeError("no such weights")

    with caplog.at_level("INFO"):
        make_app(load)
    (line,) = lines(caplog, "service.engine")
    assert (line["reason"], line["exception"], line["level"]) == ("no such weights", "RuntimeError", "error")


def test_warnings_and_ended_threads_are_lines_of_the_log_and_quote_nothing(
    client: FlaskClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)

    def work() -> None:
        warnings.warn(f"glyph missing in {SECRET}", UserWarning, stacklevel=1)
        raise ValueError(SECRET)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            capture()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    finally:
        logging.captureWarnings(False)
    (warning,), (ended,) = lines(caplog, "py.warnings"), lines(caplog, "service.observability")
    assert warning["message"].startswith(__file__)
    assert warning["message"].endswith("UserWarning")
    assert (ended["message"], ended["exception"]) == ("a thread has ended", "ValueError")
    assert "Zanzibar" not in json.dumps([warning, ended])


@pytest.mark.parametrize("given", ["a b", "ü", "", "x" * 65, "<script>"])
def test_a_request_id_of_another_form_is_replaced_everywhere(
    client: FlaskClient, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    with caplog.at_level("INFO"):
        response = client.post("/v1/attention", json={}, headers={"X-Request-ID": given})
    (line,) = lines(caplog)
    assert (
        line["request_id"] == response.headers["X-Request-ID"] == response.get_json()["request_id"] != given
    )


def test_server_timing_names_the_parts_also_on_errors(client: FlaskClient) -> None:
    def parts(body: dict[str, Any]) -> list[str]:
        timing = client.post("/v1/attention", json=body).headers["Server-Timing"]
        return [part.partition(";dur=")[0] for part in timing.split(", ")]

    assert parts(GOOD) == ["tok", "queue", "fwd", "ser"]
    assert parts({"text": "the cat", "queries": {"text": "mat"}}) == [
        "tok"
    ]  # 422: found out once it is tokenised


# --- traces --------------------------------------------------------------------------------------------------


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(model: LoadedModel, exporter: InMemorySpanExporter) -> Iterator[Flask]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = Engine(lambda: model, Settings()).start()
    wait_until(lambda: engine.state == "ready")
    app = create_app(Settings(), engine, provider)
    app.test_client_class = Client
    yield app
    engine.close()


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_is_a_span_with_its_parts_as_children(
    traced: Flask, exporter: InMemorySpanExporter
) -> None:
    response = traced.test_client().post("/v1/attention", json={**GOOD, "text": SECRET})
    spans = named(exporter)
    assert list(spans) == ["tokenize", "queue", "forward", "serialize", "POST /v1/attention"]
    whole = spans.pop("POST /v1/attention")
    assert whole.kind is SpanKind.SERVER
    assert dict(whole.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/attention",
        "http.response.status_code": 200,
        "http.response.body.size": len(response.data),
        "attention.request_id": response.headers["X-Request-ID"],
        "attention.input_tokens": len(
            traced.test_client()
            .post("/v1/tokenize", json={"text": SECRET})
            .get_json()["results"][0]["tokens"]
        ),
    }
    last = whole.start_time or 0
    for child in spans.values():
        assert child.parent is not None
        assert child.parent.span_id == whole.context.span_id
        assert last <= (child.start_time or 0) <= (child.end_time or 0) <= (whole.end_time or 0)
        last = child.end_time or 0
    took = dict(part.split(";dur=") for part in response.headers["Server-Timing"].split(", "))
    forward = spans["forward"]
    assert ((forward.end_time or 0) - (forward.start_time or 0)) / 1e6 == pytest.approx(
        float(took["fwd"]), abs=0.06
    )
    assert "Zanzibar" not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_a_trace_of_the_caller_s_goes_on_and_its_id_is_in_every_line(
    traced: Flask, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    with caplog.at_level("INFO"):
        traced.test_client().post("/v1/attention", json=GOOD, headers=headers)
    (line,) = lines(caplog)
    assert line["trace_id"] == trace
    whole = named(exporter)["POST /v1/attention"]
    assert f"{whole.context.trace_id:032x}" == trace
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == parent


@pytest.mark.parametrize("given", ["", "00-zz-zz-01", "zanzibar"])
def test_a_trace_header_that_is_none_begins_a_new_trace(
    traced: Flask, exporter: InMemorySpanExporter, given: str
) -> None:
    assert traced.test_client().get("/v1/model", headers={"traceparent": given}).status_code == 200
    assert named(exporter)["GET /v1/model"].parent is None


def test_errors_have_their_status_and_a_path_is_never_a_name(
    traced: Flask, exporter: InMemorySpanExporter
) -> None:
    client = traced.test_client()
    client.get("/zanzibar")
    client.open("/zanzibar", method="ZANZIBAR")
    traced.extensions["engine"].drain()
    client.post("/v1/attention", json=GOOD)
    client.get("/health/ready")
    client.get("/metrics")
    spans = named(exporter)
    assert list(spans) == ["GET", "other", "POST /v1/attention"]
    assert (spans["GET"].attributes or {})["http.response.status_code"] == 404
    assert (spans["other"].attributes or {})["http.request.method"] == "_OTHER"
    assert spans["GET"].status.status_code is StatusCode.UNSET
    refused = spans["POST /v1/attention"]
    assert refused.status.status_code is StatusCode.ERROR
    assert (refused.attributes or {})["attention.rejected"] == "not_ready"
    assert "zanzibar" not in "".join(span.to_json() for span in exporter.get_finished_spans()).lower()


def test_without_a_provider_nothing_is_traced(client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        client.post("/v1/attention", json=GOOD)
    assert "trace_id" not in lines(caplog)[0]


def test_an_endpoint_without_the_extra_is_one_warning_and_the_service_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make_app: MakeApp
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    for name in [
        *(name for name in sys.modules if name.partition(".")[0] == "opentelemetry"),
        "opentelemetry",
    ]:
        monkeypatch.setitem(sys.modules, name, None)
    tracing.start()
    (line,) = lines(caplog, "service.tracing")
    assert line["level"] == "warning"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is set" in line["message"]
    assert "pip install 'attention-service[otel]'" in line["message"]
    assert make_app().test_client().post("/v1/attention", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    "environment",
    [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}],
)
def test_nothing_is_set_up_that_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    if environment:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    for name, setting in environment.items():
        monkeypatch.setenv(name, setting)
    made: list[object] = []
    from opentelemetry import trace

    monkeypatch.setattr(trace, "set_tracer_provider", made.append)
    tracing.start()
    assert made == []


def test_the_standard_variables_say_where_spans_go_and_under_which_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    from opentelemetry import trace

    made: list[Any] = []
    monkeypatch.setattr(trace, "set_tracer_provider", made.append)
    tracing.start()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    tracing.start()
    names = [provider.resource.attributes["service.name"] for provider in made]
    assert names == ["attention-service", "mine"]
    assert made[0].resource.attributes["service.version"]
    for provider in made:
        provider.shutdown()
