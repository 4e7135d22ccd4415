"""Bad input: each gets its 4xx that names the field and the limit, nothing is echoed, and the next request works."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.conftest import MakeApp

JSON = "application/json"
GOOD = {"text": "the cat", "layers": [0], "heads": [0]}


def problem(response: TestResponse, status: int) -> dict[str, Any]:
    """The problem body, checked for what every error must have."""
    assert response.status_code == status, response.data
    assert response.content_type == "application/problem+json"
    body: dict[str, Any] = json.loads(response.data)
    assert body["status"] == status
    assert body["type"].startswith("/problems/")
    assert body["instance"] == response.request.path
    assert body["request_id"] == response.headers["X-Request-ID"]
    return body


def still_works(client: FlaskClient) -> None:
    assert client.post("/v1/attention", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "pointer", "code"),
    [
        ("attention", {}, "", "missing_field"),
        ("attention", {"text": ""}, "/text", "empty_text"),
        ("attention", {"text": " \n\t\u3000"}, "/text", "empty_text"),
        ("attention", {"texts": ["the", ""]}, "/texts/1", "empty_text"),
        ("attention", {"texts": []}, "/texts", "out_of_range"),
        ("attention", {"text": "a", "texts": ["a"]}, "/texts", "incompatible_options"),
        ("attention", {"text": None}, "", "missing_field"),
        ("attention", {"text": 7}, "/text", "wrong_type"),
        ("attention", {"text": "a", "layers": "0"}, "/layers", "wrong_type"),
        ("attention", {"text": "a", "layers": [0.5]}, "/layers/0", "wrong_type"),
        ("attention", {"text": "a", "layers": [True]}, "/layers/0", "wrong_type"),
        ("attention", {"text": "a", "layers": ["1"]}, "/layers/0", "wrong_type"),
        ("attention", {"text": "a", "layers": []}, "/layers", "out_of_range"),
        ("attention", {"text": "a", "layers": [0, 3]}, "/layers/1", "layer_out_of_range"),
        ("attention", {"text": "a", "layers": [10**40]}, "/layers/0", "layer_out_of_range"),
        ("attention", {"text": "a", "heads": [-1]}, "/heads/0", "head_out_of_range"),
        ("attention", {"text": "a", "heads": [10]}, "/heads/0", "head_out_of_range"),
        ("attention", {"text": "a", "decimals": 0}, "/decimals", "out_of_range"),
        ("attention", {"text": "a", "colour": 3}, "/colour", "unknown_field"),
        ("attention", {"text": "a", "top_k": 0}, "/top_k", "out_of_range"),
        ("attention", {"text": "a", "unit": "letter"}, "/unit", "unknown_option"),
        ("attention", {"text": "a", "queries": [1]}, "/queries/0", "query_out_of_range"),
        ("attention", {"text": "a", "queries": {"text": "b"}}, "/queries", "span_not_found"),
        ("attention", {"texts": ["a"], "text_pair": "b"}, "/text_pair", "incompatible_options"),
        ("attention", {"text": "a", "text_pair": " "}, "/text_pair", "empty_text"),
        (
            "attention",
            {"text": "a", "weighting": "scores", "unit": "word"},
            "/weighting",
            "incompatible_options",
        ),
        ("attention", {"text": "a", "weighting": "scores", "top_k": 1}, "/weighting", "incompatible_options"),
        ("attention", {"token_ids": []}, "/token_ids", "out_of_range"),
        ("attention", {"token_ids": [1, 307]}, "/token_ids/1", "out_of_range"),
        ("attention", {"token_ids": [1], "queries": {"text": "a"}}, "/queries", "incompatible_options"),
        ("attention", {"messages": [{"role": "alien", "content": "a"}]}, "/messages", "incompatible_options"),
        ("attention", {"text": "a", "a/b~c": 3}, "/a~1b~0c", "unknown_field"),
        ("attention", {"text": "a", "x" * 999: 3}, "/" + "x" * 64, "unknown_field"),
        ("tokenize", {"text": ""}, "/text", "empty_text"),
        ("tokenize", {"text": "a", "special_tokens": "maybe"}, "/special_tokens", "unknown_option"),
        ("heads", {"text": "a", "thresholds": {"sink": 1.5}}, "/thresholds/sink", "out_of_range"),
        ("heads", {"text": "a", "thresholds": {"nope": 0.5}}, "/thresholds/nope", "unknown_option"),
        ("heads", {"text": "a", "labels": ["nope"]}, "/labels/0", "unknown_option"),
        ("heads", {"text": "a", "colour": "red"}, "/colour", "unknown_field"),
        ("heads", {}, "", "missing_field"),
        ("coreference", {}, "", "missing_field"),
        ("coreference", {"text": "the cat"}, "/pronoun", "missing_field"),
        ("coreference", {"items": []}, "/items", "out_of_range"),
        (
            "coreference",
            {"text": "a", "pronoun": {"text": "a"}, "candidates": [], "heads": "every"},
            "/heads",
            "unknown_option",
        ),
        (
            "coreference",
            {"text": "a", "pronoun": {"text": "a"}, "candidates": [], "heads": [[0]]},
            "/heads/0/1",
            "missing_field",
        ),
        (
            "coreference",
            {"text": "a", "pronoun": {"text": "a"}, "candidates": [{}] * 101},
            "/candidates",
            "out_of_range",
        ),
        ("kv-cache", {}, "", "missing_field"),
        ("kv-cache", {"model": "llama-2-7b", "tokens": [1, 0]}, "/tokens/1", "out_of_range"),
        ("kv-cache", {"model": "no such model"}, "/model", "unknown_model"),
        ("kv-cache", {"model": "llama-2-7b", "tokens": 0}, "/tokens", "out_of_range"),
        ("kv-cache", {"model": "llama-2-7b", "tokens": 10**12}, "/tokens", "out_of_range"),
        ("kv-cache", {"model": "llama-2-7b", "dtype": "float13"}, "/dtype", "unknown_option"),
    ],
)
def test_an_invalid_request_names_the_place_and_a_stable_code(
    client: FlaskClient, path: str, body: dict[str, Any], pointer: str, code: str
) -> None:
    errors = problem(client.post(f"/v1/{path}", json=body), 422)["errors"]
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in errors]
    assert all(set(error) == {"pointer", "code", "detail"} for error in errors)
    still_works(client)


def test_a_surrogate_pair_a_nul_and_an_emoji_are_text(client: FlaskClient) -> None:
    for text in ("\U0001f984", "a\0b", "e\u0301", "<|im_end|>", "\u202e"):
        response = client.post(
            "/v1/attention", data=json.dumps({"text": text}), content_type="application/json"
        )
        assert response.status_code == 200
        assert response.get_json()["results"][0]["text"] == text


def test_a_compressed_body_and_another_charset_are_415(client: FlaskClient) -> None:
    for headers in ({"Content-Encoding": "gzip"}, {"Content-Type": "application/json; charset=latin-1"}):
        headers = {"Content-Type": "application/json"} | headers
        problem(client.post("/v1/attention", data=json.dumps(GOOD), headers=headers), 415)


def test_a_doubled_slash_is_404_and_a_trailing_one_is_fine(client: FlaskClient) -> None:
    problem(client.post("/v1//attention", json=GOOD), 404)
    assert client.post("/v1/attention/", json=GOOD).status_code == 200


@pytest.mark.parametrize("path", ["//metrics", "//v1/model", "///v1/model", "//health/live", "//v1//model"])
def test_leading_slashes_are_not_one(make_app: MakeApp, path: str) -> None:
    client = make_app(root_path="/under").test_client()
    for asked in (path, f"/under{path}", f"//under{path[1:]}"):
        answer = client.get("/", environ_overrides={"PATH_INFO": asked})
        assert answer.status_code == 404, asked
        assert answer.get_json()["type"] == "/under/problems/not-found"


def test_a_wish_for_another_protocol_is_passed_over(client: FlaskClient) -> None:
    for protocol in ("websocket", "h2c", "TLS/1.3, websocket", ""):
        headers = {"Connection": "Upgrade", "Upgrade": protocol, "Sec-WebSocket-Version": "13"}
        assert client.get("/v1/model", headers=headers).status_code == 200
        answer = client.post("/v1/attention", json=GOOD, headers=headers)
        assert answer.status_code == 200
        assert "Upgrade" not in answer.headers
        problem(client.get("/nope", headers=headers), 404)


def test_a_charset_parameter_is_fine(client: FlaskClient) -> None:
    response = client.post(
        "/v1/attention", data=json.dumps(GOOD), content_type="application/json; charset=utf-8"
    )
    assert response.status_code == 200


def test_values_are_never_echoed(client: FlaskClient) -> None:
    secret = "x9-secret"
    for body in (
        {"text": {"a": secret}},
        {"text": "a", "decimals": secret},
        {"text": "a", "layers": [secret]},
    ):
        assert secret not in client.post("/v1/attention", json=body).text
    assert secret not in client.post("/v1/kv-cache", json={"model": secret}).text
    assert secret not in client.post("/v1/heads", json={"text": "a", "labels": [secret]}).text
    item = {
        "text": "the cat",
        "pronoun": {"text": "the"},
        "candidates": [{"text": secret}],
        "heads": [[0, 0]],
    }
    assert secret not in client.post("/v1/coreference", json=item).text
    item |= {"candidates": [{"start": 4, "end": 7, "text": secret}]}
    assert secret not in client.post("/v1/coreference", json=item).text


def test_at_most_twenty_errors_are_listed(client: FlaskClient) -> None:
    body = problem(client.post("/v1/attention", json={"text": "a", "layers": ["x"] * 500}), 422)
    assert len(body["errors"]) == 20


def test_unknown_paths_and_methods_are_problems_too(client: FlaskClient) -> None:
    assert problem(client.get("/nope"), 404)["type"] == "/problems/not-found"
    response = client.get("/v1/tokenize")
    assert problem(response, 405)["type"] == "/problems/method-not-allowed"
    assert response.headers["Allow"] == "OPTIONS, POST"
    problem(client.get("/problems/nope"), 404)


def test_every_problem_type_has_its_page(client: FlaskClient) -> None:
    from service.problems import PROBLEMS

    for row in PROBLEMS:
        page = client.get(row.type)
        assert page.status_code == 200
        assert row.title in page.text
        assert page.content_type.startswith("text/html")


def test_a_fault_of_ours_is_500_without_a_trace(make_app: MakeApp) -> None:
    app = make_app()
    app.extensions["engine"].model.reader.read = None  # type: ignore[method-assign]
    try:
        response = app.test_client().post("/v1/attention", json=GOOD)
    finally:
        del app.extensions["engine"].model.reader.read
    body = problem(response, 500)
    assert "Traceback" not in response.text
    assert "NoneType" not in response.text
    assert body["title"] == "Something went wrong on our side"
    still_works(app.test_client())


def test_a_fault_of_ours_is_in_the_log_under_the_request_id(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    app.extensions["engine"].model.reader.read = None
    try:
        with caplog.at_level("ERROR"):
            app.test_client().post("/v1/attention", json=GOOD, headers={"X-Request-ID": "find-me"})
    finally:
        del app.extensions["engine"].model.reader.read
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert (record.request_id, record.route) == ("find-me", "/v1/attention")  # type: ignore[attr-defined]
    assert record.exc_info is not None


# --- limits: each with the limit and what was asked ---------------------------------------------------------


def test_a_body_over_the_cap_is_413_with_limit_and_actual(make_app: MakeApp) -> None:
    client = make_app(max_body_bytes=100).test_client()
    body = problem(client.post("/v1/attention", json={"text": "a" * 200}), 413)
    assert body["limit"] == 100
    assert body["actual"] > 200
    still_works(client)


def test_a_body_shorter_than_declared_is_400_and_a_length_beyond_all_measure_413(client: FlaskClient) -> None:
    raw = json.dumps(GOOD).encode()
    for declared, status in ((len(raw) + 50, 400), (10**30, 413)):
        response = client.post(
            "/v1/attention",
            input_stream=io.BytesIO(raw),
            content_type=JSON,
            environ_overrides={"CONTENT_LENGTH": str(declared)},
        )
        problem(response, status)


def test_lists_beyond_all_measure_are_refused_at_once(client: FlaskClient) -> None:
    started = time.monotonic()
    body = problem(
        client.post("/v1/attention", data='{"texts":[' + "0," * 400_000 + "0]}", content_type=JSON), 413
    )
    assert body["limit"] == 64
    problem(
        client.post(
            "/v1/attention", data='{"text":"a","layers":[' + "0," * 400_000 + "0]}", content_type=JSON
        ),
        422,
    )
    assert time.monotonic() - started < 2


def test_an_unknown_threshold_is_named_in_the_pointer_only_and_cut(client: FlaskClient) -> None:
    for name, pointer in (("a/b~c", "/thresholds/a~1b~0c"), ("k" * 500_000, "/thresholds/" + "k" * 64)):
        response = client.post("/v1/heads", json={"text": "a", "thresholds": {name: 0.5}})
        assert problem(response, 422)["errors"][0]["pointer"] == pointer
        assert len(response.data) < 1000


def test_too_many_texts_are_413_before_anything_else_is_looked_at(make_app: MakeApp) -> None:
    client = make_app(max_texts=2).test_client()
    body = problem(client.post("/v1/attention", json={"texts": ["a"] * 3, "layers": [99]}), 413)
    assert (body["limit"], body["actual"]) == (2, 3)
    item = {"text": "the cat", "pronoun": {"text": "the"}, "candidates": [{"text": "cat"}]}
    problem(client.post("/v1/coreference", json={"items": [item] * 3, "heads": [[0, 0]]}), 413)


def test_a_text_too_long_is_422_with_limit_and_actual(make_app: MakeApp) -> None:
    client = make_app(max_tokens_per_text=5).test_client()
    body = problem(client.post("/v1/attention", json={"texts": ["zzzzz", "zzzzzz"], "layers": [0]}), 422)
    assert (body["limit"], body["actual"]) == (5, 6)
    assert [(error["pointer"], error["code"]) for error in body["errors"]] == [("/texts/1", "text_too_long")]


def test_the_models_own_maximum_holds_where_it_is_lower(client: FlaskClient) -> None:
    body = problem(client.post("/v1/heads", json={"text": "z" * 513}), 422)
    assert (body["limit"], body["actual"]) == (512, 513)


def test_of_a_text_much_too_long_only_the_beginning_is_tokenised(make_app: MakeApp) -> None:
    client = make_app(max_tokens_per_text=5).test_client()
    body = problem(client.post("/v1/attention", json={"text": "z" * 100_000}), 422)
    assert body["detail"].startswith("The text has at least 80 tokens")
    assert (body["limit"], body["actual"]) == (5, 80)
    # long in characters, short in tokens: spaces are few tokens here only if the tokenizer joins them, so count
    assert client.post("/v1/tokenize", json={"text": "the" * 5}).status_code == 200
    assert client.post("/v1/tokenize", json={"text": "the" * 6}).status_code == 422


def test_a_coreference_answer_too_large_is_413_before_the_model_runs(make_app: MakeApp) -> None:
    client = make_app(max_response_elements=2 * 30).test_client()
    item = {"text": "the cat it", "pronoun": {"text": "it"}, "candidates": [{"text": "the"}, {"text": "cat"}]}
    assert client.post("/v1/coreference", json={**item, "heads": "all"}).status_code == 200
    body = problem(client.post("/v1/coreference", json={"items": [item, item], "heads": "all"}), 413)
    assert (body["limit"], body["actual"]) == (60, 120)


def test_texts_too_long_together_are_422(make_app: MakeApp) -> None:
    client = make_app(max_tokens_per_request=7).test_client()
    body = problem(client.post("/v1/attention", json={"texts": ["zzzz", "zzzz"], "layers": [0]}), 422)
    assert (body["limit"], body["actual"]) == (7, 8)
    assert body["errors"][0]["pointer"] == "/texts"


def test_an_answer_too_large_is_413_before_the_model_runs_and_says_what_to_narrow(make_app: MakeApp) -> None:
    app = make_app(max_response_elements=2 * 4 * 9)
    client = app.test_client()
    good = {"text": "zzz", "layers": [0, 1], "heads": [0, 1, 2, 3]}
    assert client.post("/v1/attention", json=good).status_code == 200
    app.extensions["engine"].model.reader.read = None  # would be a 500 if it were called
    try:
        body = problem(client.post("/v1/attention", json={**good, "heads": [0, 1, 2, 3, 4]}), 413)
    finally:
        del app.extensions["engine"].model.reader.read
    assert (body["limit"], body["actual"]) == (72, 90)
    assert re.search("fewer layers or heads, an aggregate, queries, top_k", body["detail"])


def test_a_full_queue_answers_429_with_retry_after(make_app: MakeApp) -> None:
    app = make_app(max_in_flight=1)
    with app.extensions["engine"].admit():
        response = app.test_client().post("/v1/attention", json=GOOD)
        assert problem(response, 429)["limit"] == 1
        assert int(response.headers["Retry-After"]) >= 1
        assert app.test_client().get("/health/ready").status_code == 200
        kv = {"model": "llama-2-7b"}
        assert app.test_client().post("/v1/kv-cache", json=kv).status_code == 200
    still_works(app.test_client())


def test_while_the_model_loads_only_what_needs_it_is_503(make_app: MakeApp, model: Any) -> None:
    import threading

    from tests.conftest import wait_until

    loading = threading.Event()

    def load() -> Any:
        loading.wait(20)
        return model

    app = make_app(load, wait=False)
    client = app.test_client()
    for response in (
        client.post("/v1/attention", json=GOOD),
        client.get("/v1/model"),
        client.get("/health/ready"),
    ):
        problem(response, 503)
        assert int(response.headers["Retry-After"]) >= 1
    assert client.get("/health/live").get_json() == {"status": "live", "state": "loading"}
    assert client.post("/v1/kv-cache", json={"model": "llama-2-7b"}).status_code == 200
    assert client.get("/openapi.json").status_code == 200
    loading.set()
    wait_until(lambda: app.extensions["engine"].state == "ready")
    assert client.get("/health/ready").get_json() == {"status": "ready", "state": "ready"}
    still_works(client)


def test_a_model_that_cannot_be_loaded_is_neither_ready_nor_live(make_app: MakeApp) -> None:
    def load() -> Any:
        raise RuntimeError("broken weights")

    app = make_app(load)
    client = app.test_client()
    from tests.conftest import wait_until

    wait_until(lambda: not app.extensions["engine"].alive)
    assert "broken" not in client.get("/health/ready").text
    problem(client.get("/health/ready"), 503)
    problem(client.get("/health/live"), 503)
    problem(client.post("/v1/heads", json={"text": "a"}), 503)


def test_a_deadline_is_504(make_app: MakeApp) -> None:
    app = make_app(deadline_seconds=0.2)
    reader = app.extensions["engine"].model.reader
    release = threading.Event()
    reader.read = lambda *args, **options: release.wait(30)
    try:
        started = time.monotonic()
        problem(app.test_client().post("/v1/attention", json=GOOD), 504)
        assert time.monotonic() - started < 10
    finally:
        release.set()
        del reader.read
    app.extensions["engine"].close()


def test_request_ids_are_taken_over_when_they_are_harmless(client: FlaskClient) -> None:
    assert (
        client.get("/health/live", headers={"X-Request-ID": "abc-1.2_3"}).headers["X-Request-ID"]
        == "abc-1.2_3"
    )
    for bad in ("a b", "x" * 65, "é", '"'):
        given = client.get("/health/live", headers={"X-Request-ID": bad}).headers["X-Request-ID"]
        assert re.fullmatch("[0-9a-f]{32}", given)


PLAIN = (
    "/v1/model",
    "/v1/kv-cache/models",
    "/v1/kv-cache/models/llama-2-7b",
    "/openapi.yaml",
    "/openapi.json",
    "/docs/start.js",
    "/static/app.js",
    "/problems/not-ready",
)
PAGES = ("/", "/docs")  # which pass over a query: see test_docs


def test_a_star_in_if_none_match_is_304_wherever_there_is_an_answer(client: FlaskClient) -> None:
    asking = "/v1/attention.svg?text=the+cat&layer=0&head=0"
    for path in (*PLAIN, *PAGES, asking, "/v1/kv-cache?model=llama-2-7b"):
        response = client.get(path, headers={"If-None-Match": "*"})
        assert (response.status_code, response.data) == (304, b""), path
        assert response.headers["ETag"].removeprefix("W/") == client.get(path).headers["ETag"].removeprefix(
            "W/"
        )
    problem(client.get("/v1/attention?text=the+cat&layer=99", headers={"If-None-Match": "*"}), 422)
    assert client.post("/v1/attention", json=GOOD, headers={"If-None-Match": "*"}).status_code == 200


@pytest.mark.parametrize("path", [*PLAIN, "/v1/attention", "/v1/heads", "/v1/coreference", "/v1/kv-cache"])
def test_a_query_parameter_that_means_nothing_is_refused_and_named(client: FlaskClient, path: str) -> None:
    errors = problem(client.get(path, query_string={"colour": "red"}), 422)["errors"]
    assert ("/colour", "unknown_field") in [(error["pointer"], error["code"]) for error in errors]
    problem(client.get(f"{path}?colour=%ff"), 400)


def test_every_post_refuses_it_too_and_health_checks_pass_over_it(client: FlaskClient) -> None:
    for path in ("attention", "tokenize", "heads", "coreference", "coreference/evaluate", "kv-cache"):
        errors = problem(client.post(f"/v1/{path}?colour=red", json=GOOD), 422)["errors"]
        assert [(error["pointer"], error["code"]) for error in errors] == [("/colour", "unknown_field")]
    for path in ("/health/live", "/health/ready"):
        assert client.get(path, query_string={"probe": "1"}).status_code == 200


def test_a_trailing_slash_gives_the_same_answer_or_404_and_never_a_redirect(client: FlaskClient) -> None:
    for rule in client.application.url_map.iter_rules():
        path = (
            rule.rule.replace("<name>", "svg")
            .replace("<slug>", "not-ready")
            .replace("<path:id>", "llama-2-7b")
        )
        for method in sorted((rule.methods or set()) - {"OPTIONS", "HEAD"}):
            plain, slashed = (
                client.open(one, method=method, json=GOOD if method == "POST" else None)
                for one in (path, path + "/")
            )
            assert slashed.status_code in (plain.status_code, 404), path
            assert slashed.status_code // 100 != 3
            # The metrics count the first of the two, and the docs' files stand elsewhere from there
            if slashed.status_code == 200 and path not in ("/metrics", "/docs"):
                assert slashed.data == plain.data


def test_malformed_heads_are_told_what_is_expected(client: FlaskClient) -> None:
    asked = {"text": "the cat it", "pronoun": "it", "candidates": "cat"}
    for given in ("L5", "5", "every", "L5H5;L8H7", ""):
        (error,) = problem(client.get("/v1/coreference", query_string=asked | {"heads": given}), 422)[
            "errors"
        ]
        assert (error["pointer"], error["code"]) == ("/heads", "unknown_option")
        assert "`L5H5,L8H7`, or `all`" in error["detail"]


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("attention", {"text": "a", "decimals": 0}, "The number must be at least 1."),
        ("attention", {"text": "a", "decimals": 10}, "The number must be at most 9."),
        ("attention", {"text": "a", "layers": [0] * 10_001}, "The list holds at most 10000 entries."),
        (
            "attention",
            {"messages": [{"role": "r" * 65, "content": ""}]},
            "The text has at most 64 characters.",
        ),
        ("kv-cache", {"model": ""}, "The text must not be empty."),
        (
            "coreference/evaluate",
            {"items": [], "split": {"test_fraction": 1.0}},
            "The number must be less than 1.0.",
        ),
        (
            "coreference/evaluate",
            {"items": [], "split": {"test_fraction": 0}},
            "The number must be more than 0.0.",
        ),
    ],
)
def test_a_number_or_length_out_of_bounds_is_told_the_bound(
    client: FlaskClient, path: str, body: dict[str, Any], detail: str
) -> None:
    errors = problem(client.post(f"/v1/{path}", json=body), 422)["errors"]
    assert detail in [error["detail"] for error in errors]


def test_options_in_the_url_beside_a_whole_request_are_refused_alike(client: FlaskClient) -> None:
    item = {"text": "the cat it", "pronoun": {"text": "it"}, "candidates": [{"text": "cat"}], "gold": 0}
    for path, body in (
        ("coreference/evaluate?top=3", {"items": [item]}),
        ("kv-cache?batch=2", {"model": "llama-2-7b"}),
    ):
        (error,) = problem(client.post(f"/v1/{path}", json=body), 422)["errors"]
        assert (error["code"], error["detail"]) == ("incompatible_options", "The body says this itself.")


def test_the_log_holds_no_text_of_the_user(client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        client.post("/v1/attention", json={"text": "mysecrettext", "layers": [0]})
        client.post("/v1/attention", json={"text": "mysecrettext", "layers": [99]})
    assert [record.status for record in caplog.records if record.name == "service.access"] == [200, 422]  # type: ignore[attr-defined]
    from service.observability import JsonFormatter

    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert all(json.loads(line)["time"] for line in lines)
    assert "mysecret" not in "".join(lines)
