"""Answers given before: kept within their bytes, the same to the last byte, and only where the request is the same."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json
import random
import re
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import brotli
import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from service.formats import attention, coreference, heads, kv_cache
from service.model import LoadedModel
from service.result_cache import LARGEST_SHARE, ResultCache, cost
from service.schemas.kv_cache import CONFIG_EXAMPLE
from tests.conftest import MakeApp
from tests.service.test_requests import problem

ROOM = 8 << 20
ITEM = {
    "text": "the cat sat on the mat, it is",
    "pronoun": {"text": "it"},
    "candidates": [{"text": "the cat"}, {"text": "the mat"}],
    "gold": 0,
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "/v1/attention": {"text": ITEM["text"], "layers": [0, 2], "heads": [1, 4]},
    "/v1/heads": {"text": ITEM["text"]},
    "/v1/coreference": {**ITEM, "heads": [[0, 1], [2, 4]]},
    "/v1/coreference/evaluate": {"items": [ITEM, ITEM], "heads": "all", "split": None},
    "/v1/tokenize": {"text": ITEM["text"]},
    "/v1/kv-cache": {"model": "llama-2-7b", "tokens": [4096]},
}
FORMATS = {
    "/v1/attention": attention.FORMATS,
    "/v1/heads": heads.FORMATS,
    "/v1/coreference": coreference.FORMATS,
    "/v1/coreference/evaluate": coreference.EVALUATION_FORMATS,
    "/v1/tokenize": (),
    "/v1/kv-cache": kv_cache.FORMATS,  # arithmetic takes milliseconds, its pictures a quarter of a second
}
EVERY_FORMAT = [
    (path, name) for path, formats in FORMATS.items() for name in ([one.name for one in formats] or [None])
]
OF_ONE_REQUEST = {"X-Request-ID", "Server-Timing", "X-Cache"}


@pytest.fixture
def app(make_app: MakeApp) -> Flask:
    return make_app(result_cache_bytes=ROOM)


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def cache_of(client: FlaskClient) -> ResultCache:
    found: ResultCache = client.application.extensions["result_cache"]
    return found


def ask(
    client: FlaskClient, path: str = "/v1/attention", name: str | None = None, **headers: str
) -> TestResponse:
    query = {} if name is None else {"format": name}
    sent = {key.replace("_", "-"): value for key, value in headers.items()}
    response = client.post(path, json=QUESTIONS[path], query_string=query, headers=sent)
    assert response.status_code == 200, response.text
    return response


def without_model(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on whatever takes a place in flight fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the engine was asked")

    monkeypatch.setattr(app.extensions["engine"], "admit", refuse)


# --- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["identity", "gzip", "br"])
@pytest.mark.parametrize(("path", "name"), EVERY_FORMAT)
def test_a_hit_is_the_miss_to_the_last_byte_and_header(
    app: Flask, monkeypatch: pytest.MonkeyPatch, path: str, name: str | None, encoding: str
) -> None:
    client = app.test_client()
    miss = ask(client, path, name, Accept_Encoding=encoding)
    without_model(app, monkeypatch)
    hit = ask(client, path, name, Accept_Encoding=encoding)
    assert (miss.headers["X-Cache"], hit.headers["X-Cache"]) == ("miss", "hit")
    assert plain(hit) == plain(miss)
    if hit.headers.get("Content-Encoding") != "gzip":  # whose header holds the time
        assert hit.data == miss.data
    for response in (miss, hit):
        for header in OF_ONE_REQUEST:
            del response.headers[header]
    assert dict(hit.headers) == dict(miss.headers)


def plain(response: TestResponse) -> bytes:
    unpack = {"gzip": gzip.decompress, "br": brotli.decompress}.get(
        response.headers.get("Content-Encoding", "")
    )
    return unpack(response.data) if unpack else response.data


def test_every_question_is_kept(client: FlaskClient) -> None:
    asked = {rule.rule for rule in client.application.url_map.iter_rules() if "POST" in (rule.methods or ())}
    signs = {"/v1/links"}  # and answers nothing
    assert {path for path in asked if path.startswith("/v1/")} - signs == QUESTIONS.keys()


def test_one_entry_serves_every_encoding(client: FlaskClient) -> None:
    first = ask(client, Accept_Encoding="br")
    packed = ask(client, Accept_Encoding="gzip")
    bare = ask(client, Accept_Encoding="identity")
    assert [one.headers["X-Cache"] for one in (first, packed, bare)] == ["miss", "hit", "hit"]
    assert {one.headers.get("Content-Encoding") for one in (first, packed, bare)} == {"br", "gzip", None}
    assert plain(first) == plain(packed) == bare.data


def test_a_get_finds_what_a_post_left_and_head_has_its_headers_alone(client: FlaskClient) -> None:
    path, query = "/v1/attention", {"text": ITEM["text"], "layers": "0,2", "heads": "1,4"}
    posted = ask(client)
    got = client.get(path, query_string=query)
    head = client.head(path, query_string=query)
    assert [one.headers["X-Cache"] for one in (posted, got, head)] == ["miss", "hit", "hit"]
    assert got.data == posted.data
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers["Content-Length"] == str(len(got.data))
    assert head.headers["X-Content-ID"] == got.headers["X-Content-ID"] == posted.headers["X-Content-ID"]
    again = client.get(path, query_string=query, headers={"If-None-Match": got.headers["ETag"]})
    assert (again.status_code, again.data, again.headers.get("X-Cache")) == (304, b"", None)


def test_server_timing_says_what_was_done(client: FlaskClient) -> None:
    def parts(response: TestResponse) -> list[str]:
        return re.findall(r"(\w+);dur=", response.headers["Server-Timing"])

    assert parts(ask(client)) == ["tok", "queue", "fwd", "ser"]
    assert parts(ask(client)) == ["cache"]


@pytest.mark.parametrize(
    "change",
    [
        {"json": {"layers": [0, 1]}},
        {"json": {"text": "the cat sat on the mat, it is."}},
        {"json": {"decimals": 5}},
        {"json": {"top_k": 1}},
        {"query": {"format": "rows"}},
        {"query": {"format": "svg"}},
        {"query": {"format": "svg", "width": "333"}},
        {"query": {"format": "svg", "colormap": "magma"}},
        {"query": {"format": "csv"}},
        {"query": {"format": "csv", "spreadsheet": "1"}},
    ],
    ids=str,
)
def test_what_differs_in_anything_misses(client: FlaskClient, change: dict[str, Any]) -> None:
    def post(other: dict[str, Any]) -> TestResponse:
        body = QUESTIONS["/v1/attention"] | other.get("json", {})
        return client.post("/v1/attention", json=body, query_string=other.get("query", {}))

    for other in ({}, {"query": {"format": "svg", "width": "334"}}, {"query": {"format": "csv"}}):
        if other != change:
            post(other)
    first, second = post(change), post(change)
    assert (first.headers["X-Cache"], second.headers["X-Cache"]) == ("miss", "hit")


def test_a_config_with_a_number_that_is_none_is_another_than_one_with_null(client: FlaskClient) -> None:
    raw = json.dumps({"config": {**CONFIG_EXAMPLE, "head_dim": "HERE"}, "tokens": 6})

    def ask(number: str) -> tuple[int, str | None]:
        body = raw.replace('"HERE"', number)
        response = client.post("/v1/kv-cache", data=body, content_type="application/json")
        return response.status_code, response.headers.get("X-Cache")

    assert ask("NaN") == (422, None)
    assert ask("null") == (200, "miss")
    assert ask("NaN") == (422, None)


def test_the_same_in_other_words_hits(client: FlaskClient) -> None:
    ask(client)
    body = b'{"heads":[1,4],\n "layers":[0,2], "text":"the cat s\\u0061t on the mat, it is"}'
    said_otherwise = client.post("/v1/attention", data=body, content_type="application/json; charset=utf-8")
    assert said_otherwise.headers["X-Cache"] == "hit"


@pytest.mark.parametrize(
    "change",
    [{"sha256": "0" * 64}, {"id": "other"}, {"revision": "1"}, {"dtype": "bfloat16"}, {"versions": {}}],
    ids=str,
)
def test_another_model_or_version_misses(app: Flask, model: LoadedModel, change: dict[str, Any]) -> None:
    client = app.test_client()
    before = ask(client)
    app.extensions["engine"]._model = dataclasses.replace(model, provenance=model.provenance | change)
    after = ask(client)
    assert (before.headers["X-Cache"], after.headers["X-Cache"]) == ("miss", "miss")
    assert before.headers["X-Content-ID"] != after.headers["X-Content-ID"]


def test_errors_are_not_kept(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    client = app.test_client()
    engine = app.extensions["engine"]
    path, body = "/v1/attention", {"text": "a", "layers": [99]}
    for _ in range(2):
        response = client.post(path, json=body)
        problem(response, 422)
        assert "X-Cache" not in response.headers
    with monkeypatch.context() as patch:
        patch.setattr(engine.model.reader, "read", None)
        problem(client.post(path, json=QUESTIONS[path]), 500)
    assert (cache_of(client).entries, cache_of(client).bytes) == (0, 0)
    assert ask(client).headers["X-Cache"] == "miss"


def test_a_hit_needs_no_place_in_flight_yet_a_model_that_may_be_asked(make_app: MakeApp) -> None:
    app = make_app(result_cache_bytes=ROOM, max_in_flight=1)
    client, engine = app.test_client(), app.extensions["engine"]
    ask(client)
    with engine.admit():  # the only place is taken
        assert ask(client).headers["X-Cache"] == "hit"
        other = client.post("/v1/attention", json={"text": "other"})
        assert problem(other, 429)["limit"] == 1
    engine.drain()
    problem(client.post("/v1/attention", json=QUESTIONS["/v1/attention"]), 503)


def test_switched_off_nothing_is_kept_and_no_header_says_so(make_app: MakeApp) -> None:
    client = make_app(result_cache_bytes=0).test_client()
    first, second = ask(client), ask(client)
    assert first.data == second.data
    assert first.headers["X-Content-ID"] == second.headers["X-Content-ID"]
    assert all("X-Cache" not in one.headers for one in (first, second))
    cache = cache_of(client)
    assert (cache.entries, cache.bytes, cache.hits, cache.misses) == (0, 0, 0, 0)


def test_an_answer_over_an_eighth_of_the_room_is_computed_each_time(make_app: MakeApp) -> None:
    size = len(ask(make_app().test_client()).data)
    client = make_app(result_cache_bytes=LARGEST_SHARE * size).test_client()  # its key no longer fits
    first, second = ask(client), ask(client)
    assert first.headers["X-Cache"] == second.headers["X-Cache"] == "miss"
    assert first.data == second.data
    assert (cache_of(client).entries, cache_of(client).misses) == (0, 2)


def test_eight_clients_at_once_get_the_answers_to_their_own_questions(app: Flask) -> None:
    texts = [f"the cat {number} sat on the mat" for number in range(5)]

    def post(text: str) -> TestResponse:
        response = app.test_client().post("/v1/tokenize", json={"text": text})
        assert response.status_code == 200
        return response

    alone = {text: post(text).data for text in texts}
    asked = texts * 40
    random.Random(7).shuffle(asked)
    with ThreadPoolExecutor(8) as clients:
        got = list(clients.map(post, asked))
    assert all(response.data == alone[text] for text, response in zip(asked, got, strict=True))
    assert {response.headers["X-Cache"] for response in got} == {"hit"}
    cache = cache_of(app.test_client())
    assert (cache.hits, cache.misses, cache.entries) == (200, 5, 5)


# --- room ---------------------------------------------------------------------------------------------------


@given(
    room=st.integers(0, 20_000),
    calls=st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 3_000)), max_size=60),
)
def test_the_room_is_never_exceeded_and_an_answer_is_whole_or_absent(
    room: int, calls: list[tuple[bool, int, int]]
) -> None:
    cache = ResultCache(room)
    put: dict[str, bytes] = {}
    looked_up = 0
    for writes, name, size in calls:
        key = f"{name:064x}"
        if writes:
            answer = bytes([name]) * size
            cache.put(key, answer)
            if cost(key, answer) * LARGEST_SHARE <= room:
                put[key] = answer
        else:
            looked_up += cache.enabled
            assert cache.get(key) in (None, put.get(key))
        kept = {other: found for other in put if (found := cache._answers.get(other)) is not None}
        assert cache.bytes == sum(cost(*one) for one in kept.items()) <= room
        assert cache.entries == len(kept)
        assert kept.items() <= put.items()
    assert cache.hits + cache.misses == looked_up


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=80))
def test_what_nobody_asked_for_the_longest_goes_first(calls: list[tuple[bool, int]]) -> None:
    one = cost("0" * 64, b"x" * 100)
    room = LARGEST_SHARE * one
    cache = ResultCache(room)
    latest: list[str] = []  # asked for or put last: last; worked out here without the cache
    for writes, name in calls:
        key = f"{name:064x}"
        if writes:
            cache.put(key, b"x" * 100)
        else:
            assert (cache.get(key) is not None) == (key in latest)
        if writes or key in latest:
            latest = [*(other for other in latest if other != key), key][-LARGEST_SHARE:]
        assert list(cache._answers) == latest


def test_an_eighth_is_kept_and_a_byte_more_is_not() -> None:
    cache = ResultCache(LARGEST_SHARE * cost("k" * 64, b"x" * 1000))
    cache.put("k" * 64, b"x" * 1001)
    assert cache.entries == 0
    cache.put("k" * 64, b"x" * 1000)
    assert cache.entries == 1


@pytest.mark.parametrize("size", [0, 41, 997, 100_003])
def test_the_memory_taken_is_what_is_counted_or_less(size: int) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        cache = ResultCache(1 << 20)
        for number in range(max(20, 20_000_000 // (size + 1000))):
            cache.put(f"{number:064x}", bytes(size))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert cache.bytes <= 1 << 20
    assert taken <= cache.bytes + 4096  # the cache's own object and lock
    assert taken > cache.bytes / 2  # what is counted is there


def test_eight_threads_neither_lose_count_nor_exceed_the_room() -> None:
    room = 100 * cost("0" * 64, b"x" * 500)
    cache = ResultCache(room)
    together = threading.Barrier(8)

    def use(seed: int) -> tuple[int, int]:
        chance = random.Random(seed)
        looked_up = most = 0
        together.wait()
        for _ in range(3_000):
            name = chance.randrange(300)
            key = f"{name:064x}"
            found = cache.get(key)
            looked_up += 1
            assert found in (None, str(name).encode() * 100)
            if found is None:
                cache.put(key, str(name).encode() * 100)
            most = max(most, cache.bytes)
        return looked_up, most

    with ThreadPoolExecutor(8) as threads:
        used = list(threads.map(use, range(8)))
    assert cache.hits + cache.misses == sum(looked_up for looked_up, _ in used) == 24_000
    assert cache.bytes == sum(cost(*one) for one in cache._answers.items())
    assert max(most for _, most in used) <= room
