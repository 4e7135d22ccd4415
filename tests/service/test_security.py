"""Who may ask: keys, signed links, CORS on every answer; what every answer tells a browser; what a log never holds."""

from __future__ import annotations

import ast
import hmac
import io
import json
import logging
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError
from werkzeug.test import TestResponse

from service import security
from service.cli import main
from service.errors import UnauthorizedError
from service.model import LoadedModel
from service.observability import JsonFormatter
from service.security import Keys, Links
from service.settings import Settings
from tests.conftest import MakeApp

OLD, NEW = "old-key-0123456789", "new-key-0123456789"
SIGNING = "signing-key-0123456789-0123456789"
PAGE, FOREIGN = "https://page.example", "https://foreign.example"
GOOD = {"text": "the cat", "layers": [0], "heads": [0]}
PICTURE = "/v1/attention.svg?text=the%20cat&layer=0&head=0"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def guarded(make_app: MakeApp) -> FlaskClient:
    return make_app(api_keys=f"{OLD}, {NEW}", signing_key=SIGNING).test_client()


def refused(response: TestResponse, root: str = "") -> str:
    """The sentence of a 401, checked for what every one must have."""
    assert response.status_code == 401, response.data
    assert response.headers["WWW-Authenticate"] == "Bearer"
    body = response.get_json()
    assert body["type"] == f"{root}/problems/unauthorized"
    assert body["request_id"] == response.headers["X-Request-ID"]
    return str(body["detail"])


# --- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        bearer(OLD),
        bearer(NEW),
        {"Authorization": f"bearer  {NEW}"},
        {"X-API-Key": OLD},
        {"X-API-Key": NEW, "Authorization": "Basic aTp0"},  # which is the proxy's
        {"X-API-Key": "wrong", "Authorization": f"Bearer {NEW}"},
    ],
)
def test_each_key_lets_in_by_either_header(guarded: FlaskClient, headers: dict[str, str]) -> None:
    assert guarded.post("/v1/attention", json=GOOD, headers=headers).status_code == 200
    assert guarded.get("/v1/model", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer(OLD[:-1]),
        bearer(OLD + "x"),
        bearer(OLD.upper()),
        bearer(f"{OLD}, {NEW}"),
        {"Authorization": OLD},
        {"Authorization": f"Basic {OLD}"},
        {"X-API-Key": "clé" * 9},
        {"X-API-Key": f"Bearer {OLD}"},
        {"Cookie": f"X-API-Key={OLD}"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/model", "/v1/attention?text=a", "/nope", "/health/nope"])
def test_without_a_key_everything_but_what_describes_the_service_is_401(
    guarded: FlaskClient, path: str, headers: dict[str, str]
) -> None:
    sentence = refused(guarded.get(path, headers=headers))
    assert OLD not in sentence
    assert refused(guarded.post(path, json=GOOD, headers=headers)) == sentence


def test_a_key_in_the_url_is_no_key(guarded: FlaskClient) -> None:
    for name in ("api_key", "X-API-Key", "key", "access_token"):
        refused(guarded.get("/v1/model", query_string={name: OLD}))


def test_every_route_needs_a_key_but_those_that_hold_no_answers(guarded: FlaskClient) -> None:
    open_to_all = set()
    for rule in guarded.application.url_map.iter_rules():
        path = re.sub("<[^>]*>", "json" if "." in rule.rule else "not-found", rule.rule)
        for method in (rule.methods or set()) - {"OPTIONS"}:
            if guarded.open(path, method=method).status_code != 401:
                open_to_all.add(rule.rule)
    described = {"/health/live", "/health/ready", "/openapi.json", "/openapi.yaml", "/problems/<slug>"}
    shown = {"/", "/static/<name>", "/docs", "/docs/<asset>"}  # what they ask needs a key
    assert open_to_all - {"/metrics"} == described | shown


def test_without_keys_everybody_may_ask_whatever_key_is_sent(client: FlaskClient) -> None:
    assert client.get("/v1/model", headers=bearer("anything at all")).status_code == 200
    assert "Cache-Control" not in client.get("/v1/model").headers


def test_what_a_key_opened_is_kept_by_no_shared_cache(guarded: FlaskClient) -> None:
    assert guarded.get("/v1/model", headers=bearer(OLD)).headers["Cache-Control"] == "private"
    assert guarded.get("/v1/model").headers["Cache-Control"] == "private"
    assert "Cache-Control" not in guarded.get("/openapi.yaml").headers


def test_every_key_is_compared_in_constant_time_also_after_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(security, "hmac", type("Hmac", (), {"compare_digest": staticmethod(compare)}))
    keys = Keys.of([SecretStr(OLD), SecretStr(NEW), SecretStr("k" * 100)])
    for given_keys, right in (((OLD,), True), (("nope",), False), ((NEW, "nope"), True), ((), False)):
        compared.clear()
        assert keys.hold(given_keys) is right
        assert compared == [(32, 32)] * 3 * len(given_keys)  # SHA-256 digests, all of one length


def test_no_one_is_shut_out_for_wrong_keys(guarded: FlaskClient) -> None:
    """There is no limiter: it would count per process (alisaifee/flask-limiter#190, #441)."""
    for _ in range(100):
        refused(guarded.get("/v1/model", headers=bearer("x" * 18)))
    assert guarded.get("/v1/model", headers=bearer(OLD)).status_code == 200


class Broken(io.BytesIO):
    """A body that does not come."""

    def read(self, size: int | None = -1, /) -> bytes:
        time.sleep(0.03)
        raise OSError("the client is gone")

    def readinto(self, buffer: object, /) -> int:
        return len(self.read())


def test_a_request_without_a_key_is_refused_before_its_body_is_read_or_the_engine_is_touched(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(api_keys=OLD)

    def never(*args: object, **options: object) -> None:
        raise AssertionError("this is not for strangers")

    monkeypatch.setattr("service.body._read", never)
    monkeypatch.setattr(app.extensions["engine"], "admit", never)
    sent = app.test_client().post(
        "/v1/attention",
        input_stream=Broken(),
        content_type="application/json",
        environ_overrides={"CONTENT_LENGTH": str(10**12)},
    )
    refused(sent)  # although what is left of its body cannot be read


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ATTENTION_API_KEYS", "", "blank"),
        ("ATTENTION_API_KEYS", "  ", "blank"),
        ("ATTENTION_API_KEYS", f"{OLD},,{NEW}", "blank"),
        ("ATTENTION_API_KEYS", f"{OLD},", "blank"),
        ("ATTENTION_API_KEYS", f"{OLD},secret-15-chars", "shorter than 16"),
        ("ATTENTION_API_KEYS", "schlüssel-0123456789", "visible ASCII"),
        ("ATTENTION_API_KEYS", "secret key 0123456789", "visible ASCII"),
        ("ATTENTION_SIGNING_KEY", "", "shorter than 32"),
        ("ATTENTION_SIGNING_KEY", "secret-" + "0" * 24, "shorter than 32"),
        ("ATTENTION_CORS_ORIGINS", "page.example", "https://host"),
        ("ATTENTION_CORS_ORIGINS", "https://page.example/", "https://host"),
        ("ATTENTION_CORS_ORIGINS", "https://Page.example", "https://host"),
        ("ATTENTION_CORS_ORIGINS", "https://*.example", "https://host"),
        ("ATTENTION_CORS_ORIGINS", "null", "https://host"),
        ("ATTENTION_CORS_ORIGINS", "https://page.example:443", "usual port"),
        ("ATTENTION_CORS_ORIGINS", "http://page.example:80", "usual port"),
        ("ATTENTION_CORS_ORIGINS", "*,https://page.example", "alone"),
        ("ATTENTION_FRAME_ANCESTORS", "", "https://host"),
        ("ATTENTION_FRAME_ANCESTORS", "self", "quotes"),
        ("ATTENTION_FRAME_ANCESTORS", "https://page.example/", "https://host"),
        ("ATTENTION_FRAME_ANCESTORS", "https://page.example;script-src *", "https://host"),
        ("ATTENTION_FRAME_ANCESTORS", "'none',https://page.example", "alone"),
        ("ATTENTION_FRAME_ANCESTORS", "*,'self'", "alone"),
    ],
)
def test_what_guards_nothing_is_refused_at_start_in_one_line_that_does_not_quote_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    assert main(["serve"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"attention-service: {name}: ")
    assert message.count("\n") == 1
    assert says in message
    with pytest.raises(ValidationError) as error:
        Settings()
    for text in (message, str(error.value), repr(error.value)):
        assert "secret" not in text
        assert OLD not in text


def test_all_origins_and_keys_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENTION_CORS_ORIGINS", "*")
    assert Settings().cors_origins == ("*",)
    monkeypatch.setenv("ATTENTION_API_KEYS", OLD)
    with pytest.raises(ValidationError, match="does not go together with API keys"):
        Settings()


def test_keys_and_origins_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENTION_API_KEYS", f"{OLD}, {NEW}\n")
    monkeypatch.setenv(
        "ATTENTION_CORS_ORIGINS", "https://page.example, http://localhost:3000,https://[::1]:8443"
    )
    read = Settings()
    assert [key.get_secret_value() for key in read.api_keys] == [OLD, NEW]
    assert read.cors_origins == ("https://page.example", "http://localhost:3000", "https://[::1]:8443")


def test_keys_are_shown_nowhere(guarded: FlaskClient) -> None:
    chosen = guarded.application.extensions["settings"]
    shown = [repr(chosen), str(chosen), str(chosen.model_dump()), chosen.model_dump_json()]
    shown += [guarded.get("/v1/model", headers=bearer(OLD)).text, guarded.get("/openapi.json").text]
    for text in shown:
        assert not [key for key in (OLD, NEW, SIGNING) if key in text]


# --- signed links --------------------------------------------------------------------------------------------


def mint(client: FlaskClient, path: str, **options: int) -> str:
    answer = client.post("/v1/links", json={"path": path, **options}, headers=bearer(OLD))
    assert answer.status_code == 200, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    return str(answer.get_json()["url"])


def test_a_link_stands_in_for_the_key_on_get_and_head_only(guarded: FlaskClient) -> None:
    url = mint(guarded, PICTURE)
    assert re.fullmatch(re.escape(PICTURE) + r"&expires=\d{10}&signature=[0-9a-f]{64}", url)
    refused(guarded.get(PICTURE))
    picture = guarded.get(url)
    assert (picture.status_code, picture.mimetype) == (200, "image/svg+xml")
    assert guarded.head(url).status_code == 200
    refused(guarded.post(mint(guarded, "/v1/attention?text=a"), json=GOOD))  # signed, but not for this


def test_a_link_gives_the_same_answer_under_the_same_content_id(guarded: FlaskClient) -> None:
    url = mint(guarded, PICTURE)
    by_key, by_link = guarded.get(PICTURE, headers=bearer(OLD)), guarded.get(url)
    for name in ("ETag", "X-Content-ID"):
        assert by_key.headers[name] == by_link.headers[name]
    assert guarded.get(url, headers={"If-None-Match": by_key.headers["ETag"]}).status_code == 304


@pytest.mark.parametrize(
    "path",
    [
        "/v1/model",
        "/v1/model?",
        "/v1/kv-cache/models/Qwen%2FQwen2.5-0.5B",
        "/v1/kv-cache/models/Qwen/Qwen2.5-0.5B",
        "/v1/kv-cache?model=llama-2-7b&tokens=1,7",
        "/v1/attention?text=L%27%C3%A9t%C3%A9+100%25&layer=0&head=0",
        "/v1/attention?text=L'été 100%25&layer=0&head=0",  # as a person types it
        '/v1/attention?text="<a>|\\^`{}[]&layer=0&head=0',
    ],
)
def test_every_get_can_be_signed_as_a_browser_sends_it(guarded: FlaskClient, path: str) -> None:
    url = mint(guarded, path)
    assert re.fullmatch(r"[!$-~]+", url), "all of it is what a browser leaves as it is"
    assert not set(url) & set("'\"<>|\\^`{}[]")
    assert guarded.get(url).status_code == 200


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("v1/model", "unknown_path"),
        ("//evil.example/v1/model", "unknown_path"),
        ("https://evil.example/v1/model", "unknown_path"),
        ("/v1/nope", "unknown_path"),
        ("/v1/tokenize", "unknown_path"),  # takes POST only
        ("/v1/../v1/model", "unknown_path"),
        ("/v1/model#part", "unknown_path"),
        ("/v1/model\r\nX: y", "unknown_path"),
        ("/v1/model?signature=" + "0" * 64, "incompatible_options"),
        ("/v1/model?a=1&%65xpires=99", "incompatible_options"),
        ("", "empty_text"),
        ("/v1/attention?text=" + "é" * 2000, "out_of_range"),
    ],
)
def test_nothing_but_a_get_of_this_service_is_signed(guarded: FlaskClient, path: str, code: str) -> None:
    answer = guarded.post("/v1/links", json={"path": path}, headers=bearer(OLD))
    assert answer.status_code == 422
    (fault,) = answer.get_json()["errors"]
    assert (fault["pointer"], fault["code"]) == ("/path", code)
    assert "evil" not in answer.text


@pytest.mark.parametrize("seconds", [0, -1, 2_592_001, 1.5, "60"])
def test_a_link_holds_for_a_second_to_thirty_days(guarded: FlaskClient, seconds: Any) -> None:
    body = {"path": PICTURE, "expires_in_seconds": seconds}
    assert guarded.post("/v1/links", json=body, headers=bearer(OLD)).status_code == 422


@pytest.mark.parametrize(("asked", "seconds"), [({}, 86_400), ({"expires_in_seconds": 2_592_000}, 2_592_000)])
def test_a_link_says_when_it_expires(guarded: FlaskClient, asked: dict[str, int], seconds: int) -> None:
    before = int(time.time())
    answer = guarded.post("/v1/links", json={"path": PICTURE, **asked}, headers=bearer(OLD)).get_json()
    assert before + seconds <= answer["expires"] <= math.ceil(time.time()) + seconds
    assert f"&expires={answer['expires']}&" in answer["url"]


def test_making_links_needs_a_key_and_a_link_is_none(guarded: FlaskClient) -> None:
    refused(guarded.post("/v1/links", json={"path": PICTURE}))
    _, _, signed = mint(guarded, PICTURE).partition("?")
    refused(guarded.post(f"/v1/links?{signed}", json={"path": PICTURE}))


def test_an_expired_link_is_401_and_says_so(guarded: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    url = mint(guarded, PICTURE, expires_in_seconds=7)
    now = time.time()
    monkeypatch.setattr(security.time, "time", lambda: now + 6)
    assert guarded.get(url).status_code == 200
    monkeypatch.setattr(security.time, "time", lambda: now + 9)
    assert refused(guarded.get(url)) == "The link has expired."
    assert guarded.get(url, headers=bearer(OLD)).status_code == 200  # to a key it is a URL like any other
    assert "signature is not right" in refused(guarded.get(re.sub("expires=.", "expires=9", url)))


def test_a_cut_link_and_one_with_something_at_its_end_are_401_and_say_so(guarded: FlaskClient) -> None:
    url = mint(guarded, PICTURE)
    for length in range(len(PICTURE), len(url)):
        sentence = refused(guarded.get(url[:length]))
        if "&expires=" in url[:length]:
            assert "The link is cut" in sentence, url[:length]
    for more in ("0", "&", "&width=900", "&signature=" + "0" * 64, "%20", "?"):
        refused(guarded.get(url + more))


LINKS = Links(SecretStr(SIGNING))


@given(st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_byte_of_a_link_can_be_changed_taken_out_or_put_in(data: st.DataObject) -> None:
    url = LINKS.signed("/v1/kv-cache/models/a?b", "text=the%20cat&layer=0", int(time.time()) + 60).encode()
    path, _, query = url.partition(b"?")
    path = b"/v1/kv-cache/models/a?b"  # as the server hands it over: decoded
    LINKS.check(path, query)
    where = data.draw(st.sampled_from(["path", "query"]))
    target = {"path": path, "query": query}
    at = data.draw(st.integers(0, len(target[where]) - 1))
    put = data.draw(st.one_of(st.just(b""), st.binary(min_size=1, max_size=3)))
    taken = data.draw(st.integers(0, 2))
    changed = target[where][:at] + put + target[where][at + taken :]
    if changed == target[where]:
        return
    target[where] = changed
    with pytest.raises(UnauthorizedError):
        LINKS.check(target["path"], target["query"])


def test_what_stands_between_path_and_query_cannot_be_moved() -> None:
    url = LINKS.signed("/v1/kv-cache/models/a", "b=1", int(time.time()) + 60)
    with pytest.raises(UnauthorizedError):
        LINKS.check(b"/v1/kv-cache/models/a?b=1&" + url.encode().partition(b"&")[2], b"")
    moved = url.encode().partition(b"?")[2].replace(b"b=1&", b"")
    with pytest.raises(UnauthorizedError):
        LINKS.check(b"/v1/kv-cache/models/a?b=1", moved)


def test_another_signing_key_takes_all_links_back(make_app: MakeApp, guarded: FlaskClient) -> None:
    url = mint(guarded, PICTURE)
    other = make_app(api_keys=OLD, signing_key=SIGNING[::-1]).test_client()
    assert "another key" in refused(other.get(url))
    without = make_app(api_keys=OLD).test_client()
    assert "signs no links" in refused(without.get(url))


def test_the_signature_is_the_hmac_of_path_and_query_with_the_expiry() -> None:
    """So that others can make links too."""
    url = LINKS.signed("/v1/attention.svg", "text=é".replace("é", quote("é")), 1_900_000_000)
    signed, _, signature = url.partition("&signature=")
    assert signed == "/v1/attention.svg?text=%C3%A9&expires=1900000000"
    assert signature == hmac.new(SIGNING.encode(), signed.encode(), "sha256").hexdigest()


@pytest.mark.parametrize("given_path", [PICTURE, "/under/here" + PICTURE])
@pytest.mark.parametrize("asked_at", ["/v1/links", "/under/here/v1/links"])
def test_links_work_below_a_path_prefix_whether_or_not_the_proxy_passes_it_on(
    make_app: MakeApp, given_path: str, asked_at: str
) -> None:
    client = make_app(api_keys=OLD, signing_key=SIGNING, root_path="/under/here").test_client()
    url = client.post(asked_at, json={"path": given_path}, headers=bearer(OLD)).get_json()["url"]
    assert url.startswith("/under/here/v1/attention.svg?")
    assert client.get(url).status_code == 200
    assert client.get(url.removeprefix("/under/here")).status_code == 200
    refused(client.get(url.replace("head=0", "head=1")), "/under/here")


def test_without_a_signing_key_links_are_404_with_a_problem_of_their_own(make_app: MakeApp) -> None:
    for client in (make_app().test_client(), make_app(api_keys=OLD).test_client()):
        answer = client.post("/v1/links", json={"path": PICTURE}, headers=bearer(OLD))
        assert (answer.status_code, answer.get_json()["type"]) == (404, "/problems/links-off")


def test_without_api_keys_a_link_is_held_to_its_word_all_the_same(make_app: MakeApp) -> None:
    client = make_app(signing_key=SIGNING).test_client()
    url = client.post("/v1/links", json={"path": PICTURE}).get_json()["url"]
    assert client.get(url).status_code == 200
    assert client.get(PICTURE).status_code == 200  # open to all
    assert "signature is not right" in refused(client.get(url.replace("head=0", "head=1")))


def test_where_nothing_is_guarded_a_links_parameters_are_passed_over(client: FlaskClient) -> None:
    assert client.get(f"{PICTURE}&expires=1&signature=x").status_code == 200
    assert client.post("/v1/attention?signature=x", json=GOOD).status_code == 422  # a POST is never a link


# --- CORS ----------------------------------------------------------------------------------------------------


def every_status(
    make_app: MakeApp, model: LoadedModel, *, origin: str | None, **options: object
) -> Iterator[TestResponse]:
    """An answer of each status there is, to a page of this origin."""

    def app_with(**more: object) -> Flask:
        return make_app(**{**options, **more})

    headers = {} if origin is None else {"Origin": origin}
    client = app_with().test_client()

    def ask(path: str = "/v1/attention", asked: FlaskClient = client, **request: Any) -> TestResponse:
        return asked.open(
            path,
            method="POST" if "json" in request or "data" in request else "GET",
            headers=headers | request.pop("headers", {}),
            **request,
        )

    yield ask(json=GOOD)
    tag = client.get("/v1/model").headers["ETag"]
    yield ask("/v1/model", headers={"If-None-Match": tag})
    yield ask(data="{", content_type="application/json")
    yield ask("/v1/model", app_with(api_keys=OLD).test_client())
    yield ask("/nope")
    yield ask("/v1/tokenize")
    yield ask("/v1/attention?text=a", headers={"Accept": "application/pdf"})
    yield (
        app_with(body_timeout_seconds=0.01)
        .test_client()
        .post(
            "/v1/attention",
            headers=headers,
            input_stream=Broken(),
            content_type="application/json",
            environ_overrides={"CONTENT_LENGTH": "9"},
        )
    )
    yield ask(json={"texts": ["a"] * 65})
    yield ask(data="a", content_type="text/plain")
    yield ask(json={"text": ""})
    full = app_with(max_in_flight=1)
    with full.extensions["engine"].admit():
        yield ask(asked=full.test_client(), json=GOOD)
    yield from _faults_of_ours(app_with, ask, model)


def _faults_of_ours(app_with: Any, ask: Any, model: LoadedModel) -> Iterator[TestResponse]:
    draining = app_with()
    late = app_with(deadline_seconds=0.05)
    try:
        model.reader.read = None  # type: ignore[assignment, method-assign]
        yield ask(json=GOOD)
        model.reader.read = lambda *args, **more: time.sleep(0.3)  # type: ignore[assignment, method-assign]
        draining.extensions["engine"].drain()
        yield ask(asked=draining.test_client(), json=GOOD)
        yield ask(asked=late.test_client(), json=GOOD)
        late.extensions["engine"].close()
    finally:
        del model.reader.read


STATUSES = [200, 304, 400, 401, 404, 405, 406, 408, 413, 415, 422, 429, 500, 503, 504]


def test_every_answer_to_an_allowed_origin_can_be_read_by_its_page(
    make_app: MakeApp, model: LoadedModel
) -> None:
    seen = []
    for answer in every_status(make_app, model, origin=PAGE, cors_origins=f"https://other.example,{PAGE}"):
        seen.append(answer.status_code)
        assert answer.headers.getlist("Access-Control-Allow-Origin") == [PAGE], answer
        exposed = set(answer.headers["Access-Control-Expose-Headers"].split(", "))
        assert exposed >= {
            "X-Request-ID",
            "Server-Timing",
            "ETag",
            "Retry-After",
            "X-Content-ID",
            "X-Cache",
        }
        assert "Origin" in answer.vary
        assert "Access-Control-Allow-Credentials" not in answer.headers
    assert seen == STATUSES


@pytest.mark.parametrize(
    "origin",
    [FOREIGN, "null", PAGE + ".evil.example", "http://page.example", PAGE + ":444", PAGE.upper(), None],
)
def test_no_answer_to_a_foreign_origin_can_be_read_by_its_page(
    make_app: MakeApp, model: LoadedModel, origin: str | None
) -> None:
    seen = []
    for answer in every_status(make_app, model, origin=origin, cors_origins=PAGE):
        seen.append(answer.status_code)
        assert not [name for name, _ in answer.headers if name.startswith("Access-Control")]
        assert "Origin" in answer.vary  # a cache must not give this one to an allowed origin
    assert seen == STATUSES


def test_without_origins_nothing_is_said_of_them(make_app: MakeApp, model: LoadedModel) -> None:
    for answer in every_status(make_app, model, origin=PAGE):
        assert not [name for name, _ in answer.headers if name.startswith("Access-Control")]
        assert "Origin" not in answer.vary  # the answer is the same for all; caches need keep one only


def test_all_origins_may_be_allowed(make_app: MakeApp) -> None:
    client = make_app(cors_origins="*").test_client()
    for origin in (PAGE, FOREIGN, "null"):
        answer = client.get("/v1/model", headers={"Origin": origin})
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


def test_a_preflight_is_204_without_a_key_on_every_route_and_beside(make_app: MakeApp) -> None:
    client = make_app(cors_origins=PAGE, api_keys=OLD).test_client()
    paths: dict[str, set[str]] = {"/nope": {"GET", "HEAD", "OPTIONS", "POST"}}
    for rule in client.application.url_map.iter_rules():
        paths.setdefault(re.sub("<[^>]*>", "x", rule.rule), set()).update(rule.methods or ())
    assert len(paths) > 15
    for path, methods in paths.items():
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        for origin in (PAGE, FOREIGN):
            answer = client.options(path, headers={"Origin": origin, **asked})
            assert (answer.status_code, answer.data) == (204, b""), path
            assert "Origin" in answer.vary
            if origin == FOREIGN:
                assert not [name for name, _ in answer.headers if name.startswith("Access-Control")]
                continue
            assert answer.headers["Access-Control-Allow-Origin"] == PAGE
            assert set(answer.headers["Access-Control-Allow-Methods"].split(", ")) == methods, path
            assert answer.headers["Access-Control-Allow-Headers"] == (
                "Content-Type, Authorization, X-API-Key, X-Request-ID, If-None-Match"
            )
            assert answer.headers["Access-Control-Max-Age"] == "7200"


def test_options_that_is_no_preflight_lists_the_methods_without_a_key(make_app: MakeApp) -> None:
    client = make_app(cors_origins=PAGE, api_keys=OLD).test_client()
    answer = client.options("/v1/tokenize", headers={"Origin": PAGE})
    assert (answer.status_code, set(answer.allow)) == (200, {"OPTIONS", "POST"})
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE


# --- what every answer tells a browser -----------------------------------------------------------------------


def test_every_answer_has_the_headers_that_bind_a_browser(make_app: MakeApp, model: LoadedModel) -> None:
    for answer in every_status(make_app, model, origin=None):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        if answer.status_code == 304:  # its headers would replace those of the page that the browser has
            assert "Content-Security-Policy" not in answer.headers
            assert "Cross-Origin-Resource-Policy" not in answer.headers
            continue
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; ")


@pytest.mark.parametrize(
    ("path", "policy"),
    [
        (PICTURE, "cross-origin"),
        (PICTURE.replace("svg", "png"), "cross-origin"),
        (PICTURE.replace("svg", "html"), "cross-origin"),
        (PICTURE.replace("svg", "csv"), "same-origin"),
        (PICTURE.replace("svg", "npz"), "same-origin"),
        (PICTURE.replace("svg", "json"), "same-origin"),
    ],
)
def test_only_what_is_meant_to_be_embedded_can_be(client: FlaskClient, path: str, policy: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["Cross-Origin-Resource-Policy"] == policy
    assert len(answer.headers.getlist("Content-Security-Policy")) == 1
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("ancestors", "policy"),
    [
        ("'none'", "same-origin"),
        ("'self'", "same-origin"),
        (PAGE, "cross-origin"),
        ("https://a.example", "cross-origin"),
        (f"'self',{PAGE},http://localhost:3000", "cross-origin"),
    ],
)
def test_html_answers_say_who_may_frame_them(make_app: MakeApp, ancestors: str, policy: str) -> None:
    client = make_app(frame_ancestors=ancestors).test_client()
    said = f"; frame-ancestors {ancestors.replace(',', ' ')}"
    for path in ("/embed/attention", "/v1/attention.html", "/v1/heads.html"):
        answer = client.get(f"{path}?text=the cat")
        assert answer.headers["Content-Security-Policy"].endswith(said)
        assert answer.headers["Cross-Origin-Resource-Policy"] == policy
    picture = client.get(PICTURE)
    assert picture.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
    for path in ("/", "/problems/unauthorized"):
        assert client.get(path).headers["Content-Security-Policy"].endswith("; frame-ancestors 'none'")


@pytest.mark.parametrize("settings", [{}, {"frame_ancestors": "*"}])
def test_all_may_frame_html_answers_where_nothing_is_set(make_app: MakeApp, settings: dict[str, str]) -> None:
    for path in ("/embed/attention", "/v1/attention.html"):
        answer = make_app(**settings).test_client().get(f"{path}?text=the cat")
        assert "frame-ancestors" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cross-Origin-Resource-Policy"] == "cross-origin"


def test_a_problems_page_runs_and_loads_nothing(client: FlaskClient) -> None:
    page = client.get("/problems/unauthorized")
    assert page.headers["Content-Security-Policy"] == security.NOTHING
    assert "<script" not in page.text


# --- what the log never holds --------------------------------------------------------------------------------

SECRET = "ZXQsecretZXQ"


class Lines(logging.Handler):
    """Every line as it would be printed, whatever its logger."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(level)


def test_no_text_of_a_user_and_no_key_is_in_any_line(
    make_app: MakeApp, model: LoadedModel, lines: list[str]
) -> None:
    client = make_app(api_keys=OLD, signing_key=SIGNING, cors_origins=PAGE).test_client()
    item = {"text": SECRET, "pronoun": {"text": SECRET}, "candidates": [{"text": SECRET}], "heads": [[0, 0]]}
    bodies: list[tuple[str, Any]] = [
        ("attention", {**GOOD, "text": SECRET}),
        ("attention", {**GOOD, "text": SECRET, "layers": [99]}),
        ("attention", {**GOOD, SECRET: SECRET}),
        ("attention", {"messages": [{"role": "alien", "content": SECRET}]}),
        ("attention", {**GOOD, "queries": {"text": SECRET}}),
        ("tokenize", {"text": SECRET * 100}),
        ("heads", {"text": SECRET, "labels": [SECRET], "thresholds": {SECRET: 1}}),
        ("coreference", item),
        ("coreference/evaluate", {"items": [item]}),
        ("kv-cache", {"model": SECRET}),
        ("kv-cache", {"config": {"model_type": SECRET}}),
        ("links", {"path": f"/v1/attention.svg?text={SECRET}"}),
        ("links", {"path": f"/{SECRET}"}),
    ]
    answers = []
    for sent in ({}, bearer(OLD), bearer(SECRET), {"X-API-Key": SECRET}):
        headers = {"Origin": f"https://{SECRET}.example", "X-Request-ID": f" {SECRET}", "User-Agent": SECRET}
        headers |= {"Referer": SECRET, "Cookie": SECRET, "Accept": f"text/{SECRET}, */*", **sent}
        answers += [client.post(f"/v1/{path}", json=body, headers=headers) for path, body in bodies]
        answers += [
            client.post(
                f"/v1/{path}", data=json.dumps(body)[:-2], headers=headers, content_type="application/json"
            )
            for path, body in bodies
        ]
        for path in ("attention", "attention.svg", "heads", "coreference", "kv-cache", "model", SECRET):
            answers.append(client.get(f"/v1/{path}?text={SECRET}&layer=0&head=0", headers=headers))
            answers.append(client.get(f"/v1/{path}?{SECRET}={SECRET}", headers=headers))
            answers.append(
                client.get(f"/v1/{path}?text={SECRET}&expires=9&signature={SECRET}", headers=headers)
            )
        answers.append(client.get(f"/v1/kv-cache/models/{SECRET}", headers=headers))
        answers.append(client.get(f"/problems/{SECRET}", headers=headers))
        answers.append(client.open("/v1/model", method=SECRET, headers=headers))
    assert {200, 400, 401, 404, 405, 422} <= {answer.status_code for answer in answers}
    log = "\n".join(lines)
    assert log.count('"message":"request"') == len(answers)
    assert not [line for line in lines if SECRET.lower() in line.lower()]
    assert not [key for key in (OLD, SIGNING) if key in log]


def test_an_exception_is_logged_with_its_kind_and_places_but_not_with_what_it_quotes(
    make_app: MakeApp, model: LoadedModel, lines: list[str]
) -> None:
    client = make_app().test_client()

    def read(*args: object, **options: object) -> None:
        try:
            model.provenance[SECRET]
        except KeyError as error:
            raise ValueError(f"cannot read {SECRET!r}") from error

    model.reader.read = read  # type: ignore[assignment, method-assign]
    try:
        assert client.post("/v1/attention", json={**GOOD, "text": SECRET}).status_code == 500
    finally:
        del model.reader.read
    (line,) = [line for line in lines if '"level":"error"' in line]
    assert SECRET not in "\n".join(lines)
    assert all(told in line for told in ("ValueError", "KeyError", "test_security.py"))
    assert json.loads(line)["route"] == "/v1/attention"


# --- no code out of data -------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
FORBIDDEN_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("torch.load", "torch.hub.load", "np.load", "numpy.load", "np.fromfile", "pd.read_pickle"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
}


def unsafe(source: str) -> list[str]:
    """What could run code out of data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name.partition(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found += [module] if module.partition(".")[0] in FORBIDDEN_MODULES else []
            found += [one.name for one in node.names if f"{module}.{one.name}" in FORBIDDEN_CALLS]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found += [name] if name in FORBIDDEN_CALLS else []
            for option in node.keywords:
                said = ast.unparse(option.value)
                if option.arg in ("allow_pickle", "trust_remote_code", "shell") and said != "False":
                    found.append(f"{option.arg}={said}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "torch.load(path)",
        "from torch import load",
        "np.load(path)",
        "eval('1')",
        "yaml.load(text)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "subprocess.run(line, shell=True)",
        "np.savez(file, allow_pickle=True)",
    ],
)
def test_what_runs_code_out_of_data_is_found(source: str) -> None:
    assert unsafe(source)


def test_nothing_runs_code_out_of_data() -> None:
    files = [file for folder in ("attention_core", "service") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 60
    found = {str(file.relative_to(ROOT)): unsafe(file.read_text(encoding="utf-8")) for file in files}
    assert {name: what for name, what in found.items() if what} == {}
