"""Keys, links and silence about texts on real gunicorn, with the tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Server, serving_stub

ROOT = Path(__file__).parents[2]
KEY, SIGNING, PAGE = "key-0123456789-key", "signing-key-0123456789-0123456789", "https://page.example"
SECRET = "ZXQsecretZXQ"
PICTURE = "/v1/attention.svg?text=the%20cat&layer=0&head=0"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"api_keys": KEY, "signing_key": SIGNING, "cors_origins": PAGE, "root_path": "/under"}
    with serving_stub(tmp_path_factory.mktemp("guarded"), **settings) as server:
        yield server


def mint(server: Server, path: str, **options: int) -> str:
    answer = server.post("/v1/links", {"path": path, **options}, X_API_Key=KEY)
    assert answer.status == 200, answer.data
    return str(answer.json["url"])


def test_an_img_tag_gets_its_picture_by_a_signed_link(guarded: Server) -> None:
    assert guarded.get(PICTURE).status == 401
    url = mint(guarded, PICTURE)
    assert url.startswith("/under/v1/")
    for path in (url, url.removeprefix("/under")):  # whether or not the proxy passes the prefix on
        picture = guarded.get(path, Accept="image/avif,image/webp,*/*;q=0.8", Origin=PAGE)
        assert (picture.status, picture.headers["Content-Type"]) == (200, "image/svg+xml")
        assert picture.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
        assert picture.headers["Access-Control-Allow-Origin"] == PAGE
        assert guarded.request("HEAD", path).status == 200
        assert guarded.get(path, If_None_Match=picture.headers["ETag"]).status == 304
    assert guarded.get(url[:-1]).status == 401
    assert guarded.get(url.replace("head=0", "head=1")).status == 401
    soon = mint(guarded, PICTURE, expires_in_seconds=1)  # at least
    assert guarded.get(soon).status == 200
    time.sleep(2.1)
    assert guarded.get(soon).json["detail"] == "The link has expired."


def test_a_slash_in_a_signed_path_may_be_encoded(guarded: Server) -> None:
    url = mint(guarded, "/v1/kv-cache/models/Qwen%2FQwen2.5-0.5B")
    assert guarded.get(url).status == 200
    assert guarded.get(url.replace("/Qwen2.5", "%2FQwen2.5")).status == 200


def test_without_a_key_the_refusal_waits_for_no_body(guarded: Server) -> None:
    head = b"POST /v1/attention HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    started = time.monotonic()
    received = guarded.raw(head + b"Content-Length: 1000000000\r\n\r\n", seconds=10)
    assert time.monotonic() - started < 5
    assert received.startswith(b"HTTP/1.1 401")
    assert b"\r\nWWW-Authenticate: Bearer\r\n" in received
    assert guarded.post("/v1/attention", {"text": "a" * 500_000}).status == 401
    assert guarded.post("/v1/attention", {"text": "the cat"}, X_API_Key=KEY).status == 200


def test_the_server_does_not_tell_its_version(guarded: Server) -> None:
    for answer in (guarded.get("/health/live"), guarded.get("/nope")):
        assert not set("0123456789") & set(answer.headers.get("Server", ""))
        assert "X-Powered-By" not in answer.headers


def broken(secret: bytes) -> list[bytes]:
    """What is no request, each with a text in it."""
    get = b"GET /v1/attention?text=" + secret
    host = b"\r\nHost: x\r\n"
    return [
        get + b" and more HTTP/1.1" + host + b"\r\n",
        get + "é".encode() + b" HTTP/1.1" + host + b"\r\n",
        get + b" HTTP/9.9" + host + b"\r\n",
        get + b" " + secret + host + b"\r\n",
        secret + b"\r\n\r\n",
        secret + b"! /v1/model HTTP/1.1" + host + b"\r\n",
        secret + b" /v1/model HTTP/1.1" + host + b"\r\n",
        get + b"x" * 9000 + b" HTTP/1.1" + host + b"\r\n",
        get + b" HTTP/1.1" + host + secret + b"\r\n\r\n",
        get + b" HTTP/1.1" + host + secret + b" : a\r\n\r\n",
        get + b" HTTP/1.1" + host + b"A: " + secret + b"\0\r\n\r\n",
        get + b" HTTP/1.1" + host + b"A: b\r\n " + secret + b"\r\n\r\n",
        get + b" HTTP/1.1" + host + b"Transfer-Encoding: " + secret + b"\r\n\r\n",
        get + b" HTTP/1.1" + host + b"Content-Length: " + secret + b"\r\n\r\n",
        get + b" HTTP/1.1" + host + b"Expect: " + secret + b"\r\n\r\n",
        get + b" HTTP/1.1\r\nHost: " + secret + b"/x\r\n\r\n",
        b"POST /v1/attention HTTP/1.1" + host + b"X-API-Key: " + KEY.encode() + b"\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + secret + b"\r\n",
    ]


def test_no_text_and_no_key_is_in_the_log_of_a_real_server(guarded: Server) -> None:
    for data in broken(SECRET.encode()):
        received = guarded.raw(data, seconds=3)
        assert SECRET.encode() not in received.replace(b"/v1/attention?text=", b""), data
    for headers in ({}, {"X-API-Key": KEY}, {"Authorization": f"Bearer {SECRET}"}):
        given = {name.replace("-", "_"): value for name, value in headers.items()}
        for path in ("attention", "attention.svg", "heads", "kv-cache", SECRET):
            guarded.get(
                f"/v1/{path}?text={SECRET}&layer=0&head=0", User_Agent=SECRET, Referer=SECRET, **given
            )
        guarded.post("/v1/attention", {"text": SECRET, "layers": [0]}, **given)
        guarded.post("/v1/attention", {"text": SECRET, SECRET: [99]}, **given)
        guarded.post("/v1/attention", f'{{"text": "{SECRET}'.encode(), **given)
    guarded.get(mint(guarded, f"/v1/attention.svg?text={SECRET}&layer=0&head=0"))
    assert guarded.get("/health/ready").status == 200
    lines = guarded.log.read_text(errors="replace").splitlines()
    assert len([line for line in lines if '"request"' in line]) > 20
    assert not [line for line in lines if SECRET.lower() in line.lower()]
    assert not [line for line in lines if KEY in line or SIGNING in line]
    for line in lines:
        json.loads(line)


def test_a_key_that_guards_nothing_ends_a_bare_gunicorn_without_being_printed(tmp_path: Path) -> None:
    environment = {**os.environ, "ATTENTION_API_KEYS": "secret-15-chars", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "gunicorn", "-c", "python:service.gunicorn_conf"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "shorter than 16 characters" in done.stdout + done.stderr
    assert "secret-15-chars" not in done.stdout + done.stderr
