"""GET /docs and its files on the wire; what a browser makes of them is tested in tests/browser."""

from __future__ import annotations

import re

import pytest
from flask.testing import FlaskClient

from service.routes.docs import FILES
from tests.conftest import MakeApp

TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "png": "image/png"}


@pytest.mark.parametrize("asset", FILES)
def test_each_file_has_its_type_and_is_asked_after_again(client: FlaskClient, asset: str) -> None:
    answer = client.get(f"/docs/{asset}")
    assert answer.status_code == 200
    assert answer.content_type == TYPES[asset.rpartition(".")[2]]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == ("max-age=86400" if asset.endswith("png") else "no-cache")
    head = client.head(f"/docs/{asset}")
    assert (head.status_code, head.data) == (200, b"")
    assert head.content_length == answer.content_length == len(answer.data)


@pytest.mark.parametrize(
    "name",
    [
        "oauth2-redirect.html",  # Swagger UI has it, the page does not need it
        "page.html",
        "START.JS",
        "..%2f__init__.py",
        "%2e%2e/__init__.py",
        "../settings.py",
        "start.js/",
        "start.js%00",
        "nope",
    ],
)
def test_no_other_file_is_served(client: FlaskClient, name: str) -> None:
    answer = client.get(f"/docs/{name}")
    if name == "start.js/":  # a slash at the end is no difference anywhere
        assert answer.status_code == 200
        return
    assert answer.status_code == 404
    assert answer.get_json()["type"] == "/problems/not-found"


def test_the_page_may_load_nothing_but_this_services_and_runs_no_script_of_its_text(
    client: FlaskClient,
) -> None:
    answer = client.get("/docs")
    policy = dict(
        one.strip().partition(" ")[::2] for one in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert re.findall(r"<script[^>]*>([^<]*)</script>", answer.text) == ["", ""]
    assert "<style" not in answer.text
    assert "//" not in answer.text


@pytest.mark.parametrize(("path", "here"), [("/docs", "docs"), ("/docs/", "."), ("/x/docs", "docs")])
def test_its_addresses_are_relative_to_where_it_is_seen(make_app: MakeApp, path: str, here: str) -> None:
    client = make_app(root_path="/x").test_client()
    found = re.findall(r'(?:href|src)="([^"]+)"', client.get(path).text)
    assert sorted(found) == sorted(f"{here}/{asset}" for asset in FILES)


def test_its_files_travel_compressed(client: FlaskClient) -> None:
    whole = len(client.get("/docs/swagger-ui-bundle.js").data)
    packed = client.get("/docs/swagger-ui-bundle.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.data) < whole / 3
