"""Which format a request gets, GET, ETags, compression, and the path prefix; each format is read by its own reader."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from flask.testing import FlaskClient
from PIL import Image
from werkzeug.test import TestResponse

from tests.conftest import MakeApp
from tests.service.test_requests import problem

BODY = {"text": "the cat sat on the mat, it is", "layers": [0, 2], "heads": [1, 4], "decimals": 9}
TYPES = {
    "json": "application/json",
    "rows": "application/json",
    "csv": "text/csv; charset=utf-8",
    "npz": "application/octet-stream",
    "svg": "image/svg+xml",
    "png": "image/png",
    "html": "text/html; charset=utf-8",
}


def numbers(client: FlaskClient) -> np.ndarray:
    """[map, row, key], from JSON"""
    return np.array(
        [one["weights"] for one in client.post("/v1/attention", json=BODY).get_json()["results"][0]["maps"]]
    )


def ok(response: TestResponse) -> TestResponse:
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("name", TYPES)
def test_a_format_is_named_by_the_query_or_by_the_ending(client: FlaskClient, name: str) -> None:
    posted = ok(client.post("/v1/attention", query_string={"format": name}, json=BODY))
    query = {"text": BODY["text"], "layers": "0,2", "heads": "1,4", "decimals": "9"}
    got = ok(client.get(f"/v1/attention.{name}", query_string=query))
    named = ok(client.get("/v1/attention", query_string={**query, "format": name}))
    for response in (posted, got, named):
        assert response.content_type == TYPES[name]
        assert "Accept" in response.headers["Vary"]
    if name != "npz":  # a ZIP holds a time
        assert posted.data == got.data == named.data


@pytest.mark.parametrize(
    ("accept", "name"),
    [
        (None, "json"),
        ("*/*", "json"),
        ("application/json", "json"),
        ("text/csv", "csv"),
        ("image/png, image/svg+xml;q=0.5", "png"),
        ("image/*", "svg"),
        ("text/csv; charset=utf-8; header=present", "csv"),
        ("application/json;version=1", "json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "html"),
        ("application/pdf, text/csv;q=0.1", "csv"),
    ],
)
def test_accept_chooses_by_its_weights(client: FlaskClient, accept: str | None, name: str) -> None:
    headers = {} if accept is None else {"Accept": accept}
    assert ok(client.post("/v1/attention", json=BODY, headers=headers)).content_type == TYPES[name]
    named = ok(client.post("/v1/attention", query_string={"format": "csv"}, json=BODY, headers=headers))
    assert named.content_type == TYPES["csv"]  # the name wins


def test_nothing_on_offer_is_406_with_a_list(client: FlaskClient) -> None:
    by_header = problem(client.post("/v1/attention", json=BODY, headers={"Accept": "application/pdf"}), 406)
    by_name = problem(client.post("/v1/attention", query_string={"format": "pdf"}, json=BODY), 406)
    refused = client.post("/v1/attention", json=BODY, headers={"Accept": "application/pdf"})
    assert "Accept" in refused.headers["Vary"].split(", ")
    for body in (by_header, by_name):
        assert {"application/json", "text/csv", "image/png"} <= set(body["formats"])
    problem(client.get("/v1/attention.pdf", query_string={"text": "a"}), 404)


def test_csv_carries_the_numbers_of_the_json(client: FlaskClient) -> None:
    response = ok(client.post("/v1/attention", query_string={"format": "csv"}, json=BODY))
    assert response.headers["Content-Disposition"] == 'attachment; filename="attention.csv"'
    records = list(csv.DictReader(io.StringIO(response.data.decode(), newline="")))
    expected = numbers(client)
    place = {
        (layer, head): index for index, (layer, head) in enumerate((x, y) for x in (0, 2) for y in (1, 4))
    }
    assert len(records) == expected.size
    for record in records:
        value = expected[
            place[int(record["layer"]), int(record["head"])], int(record["query_pos"]), int(record["key_pos"])
        ]
        assert float(record["weight"]) == pytest.approx(value, abs=1e-9)


def test_rows_are_a_root_array_of_flat_records(client: FlaskClient) -> None:
    records = ok(client.post("/v1/attention", query_string={"format": "rows"}, json=BODY)).get_json()
    expected, size = numbers(client), numbers(client).shape[1]
    assert len(records) == 4 * size * (size + 1) // 2
    assert all(not isinstance(value, dict | list) for record in records for value in record.values())
    assert sum(record["weight"] for record in records) == pytest.approx(expected.sum(), abs=1e-4)


def test_npz_loads_without_pickle(client: FlaskClient) -> None:
    response = ok(client.post("/v1/attention", query_string={"format": "npz"}, json=BODY))
    with np.load(io.BytesIO(response.data), allow_pickle=False) as archive:
        weights = archive["weights_0"]
        assert weights.shape[:2] == (2, 2)
        assert np.abs(weights.reshape(4, *weights.shape[2:]) - numbers(client)).max() <= 1e-7
        assert archive["tokens_0"][1] == "cat"


def test_npz_is_exact_whatever_the_decimals(client: FlaskClient) -> None:
    bodies = ({**BODY, "decimals": decimals} for decimals in (1, 9))
    archives = [
        np.load(io.BytesIO(ok(client.post("/v1/attention?format=npz", json=body)).data), allow_pickle=False)
        for body in bodies
    ]
    assert np.array_equal(archives[0]["weights_0"], archives[1]["weights_0"])


def test_pictures_are_pictures(client: FlaskClient) -> None:
    svg = ok(client.get("/v1/attention.svg", query_string={"text": "<b>&</b>", "layer": 1, "head": 2}))
    assert ElementTree.fromstring(svg.data).tag == "{http://www.w3.org/2000/svg}svg"
    assert "default-src 'none'" in svg.headers["Content-Security-Policy"]
    png = ok(
        client.get("/v1/attention.png", query_string={"text": "the cat", "layer": 1, "head": 2, "width": 321})
    )
    assert Image.open(io.BytesIO(png.data)).size[0] == 321


def test_the_page_holds_the_answer_and_lets_nothing_in(client: FlaskClient) -> None:
    page = ok(
        client.post("/v1/attention", query_string={"format": "html"}, json={**BODY, "text": "</script><b>"})
    )
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    data = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page.text, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["results"][0]["text"] == "</script><b>"


@pytest.mark.parametrize(
    ("query", "pointer", "code"),
    [
        ({}, "/text", "missing_field"),
        ({"text": " "}, "/text", "empty_text"),
        ({"text": "a", "layer": "9"}, "/layers/0", "layer_out_of_range"),
        ({"text": "a", "layer": "one"}, "/layers/0", "wrong_type"),
        ({"text": "a", "heads": "1,x"}, "/heads/1", "wrong_type"),
        ({"text": "a", "top_k": "1,2"}, "/top_k", "wrong_type"),
        ({"text": "a", "decimals": "99"}, "/decimals", "out_of_range"),
        ({"text": "a", "colour": "red"}, "/colour", "unknown_field"),
        ({"text": "a", "texts": "b"}, "/texts", "unknown_field"),
        ({"text": "a", "layer": "1", "layers": "2"}, "/layers", "incompatible_options"),
        ({"text": ["a", "b"]}, "/text", "incompatible_options"),
        ({"text": "a", "format": ["csv", "png"]}, "/format", "incompatible_options"),
        ({"text": "a", "format": "png", "width": "9"}, "/width", "out_of_range"),
        ({"text": "a", "format": "png", "width": "wide"}, "/width", "wrong_type"),
        ({"text": "a", "format": "png", "colormap": "jet"}, "/colormap", "unknown_option"),
        ({"text": "a", "format": "csv", "spreadsheet": "yes"}, "/spreadsheet", "unknown_option"),
    ],
)
def test_a_wrong_parameter_is_named(
    client: FlaskClient, query: dict[str, str], pointer: str, code: str
) -> None:
    errors = problem(client.get("/v1/attention", query_string=query), 422)["errors"]
    assert (pointer, code) in [(error["pointer"], error["code"]) for error in errors]


def test_a_parameter_given_twice_is_one_fault(client: FlaskClient) -> None:
    (error,) = problem(client.get("/v1/attention?text=a&text=b"), 422)["errors"]
    assert (error["pointer"], error["code"]) == ("/text", "incompatible_options")


def test_a_query_string_that_is_no_text_is_400(client: FlaskClient) -> None:
    problem(client.get("/v1/attention?text=%ff%feab"), 400)
    assert (
        ok(client.get("/v1/attention?text=%E7%8E%8B%F0%9F%A6%A9+%2B&layer=0")).get_json()["results"][0][
            "text"
        ]
        == "王🦩 +"
    )


def test_unknown_parameters_of_a_post_and_two_names_of_a_format_are_refused(client: FlaskClient) -> None:
    problem(client.post("/v1/attention?formt=csv", json=BODY), 422)
    problem(client.get("/v1/attention.svg?text=a&format=csv"), 422)


def test_a_picture_shows_one_text(client: FlaskClient) -> None:
    problem(client.post("/v1/attention?format=png", json={"texts": ["a", "b"]}), 422)


def test_npz_may_hold_more_than_json(make_app: MakeApp) -> None:
    client = make_app(max_response_elements=100, max_response_elements_compact=1000).test_client()
    body = {"text": "zzzzz", "layers": [0]}  # 10 heads x 25 numbers
    for name, status in (
        ("json", 413),
        ("rows", 413),
        ("csv", 413),
        ("html", 413),
        ("npz", 200),
        ("png", 200),
    ):
        assert client.post("/v1/attention", query_string={"format": name}, json=body).status_code == status, (
            name
        )


@pytest.mark.parametrize("encoding", ["identity", "gzip", "br"])
def test_a_get_has_an_etag_and_is_answered_304_without_the_model(make_app: MakeApp, encoding: str) -> None:
    app = make_app()
    client = app.test_client()
    for name in ("svg", "png", "json", "csv"):
        path, query = f"/v1/attention.{name}", {"text": "the cat", "layer": "1", "head": "2"}
        first = ok(client.get(path, query_string=query, headers={"Accept-Encoding": encoding}))
        tag = first.headers["ETag"]
        app.extensions["engine"].model.reader.read = None  # would be a 500
        try:
            for given in (tag, tag.removeprefix("W/"), f'"other", {tag}'):
                headers = {"If-None-Match": given, "Accept-Encoding": encoding}
                again = client.get(path, query_string=query, headers=headers)
                assert (again.status_code, again.data) == (304, b""), given
        finally:
            del app.extensions["engine"].model.reader.read
        other = ok(client.get(path, query_string={**query, "head": "3"}, headers={"If-None-Match": tag}))
        assert other.headers["X-Content-ID"] != first.headers["X-Content-ID"]
    problem(client.get("/v1/attention?text=a&layer=99", headers={"If-None-Match": "*"}), 422)


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd"])
def test_text_is_compressed_where_the_client_takes_it(client: FlaskClient, encoding: str) -> None:
    plain = ok(client.post("/v1/attention", json=BODY))
    packed = ok(client.post("/v1/attention", json=BODY, headers={"Accept-Encoding": encoding}))
    assert packed.headers["Content-Encoding"] == encoding
    assert len(packed.data) < len(plain.data)
    assert "Accept-Encoding" in packed.headers["Vary"]
    if encoding == "gzip":
        assert gzip.decompress(packed.data) == plain.data
    png = ok(client.post("/v1/attention?format=png", json=BODY, headers={"Accept-Encoding": encoding}))
    assert "Content-Encoding" not in png.headers


def test_an_encoding_that_is_refused_is_not_used(client: FlaskClient) -> None:
    response = ok(client.post("/v1/attention", json=BODY, headers={"Accept-Encoding": "gzip;q=0, identity"}))
    assert "Content-Encoding" not in response.headers


def test_all_of_it_works_under_a_path_prefix(make_app: MakeApp) -> None:
    client = make_app(root_path="/look/inside").test_client()
    query = {"text": "the cat", "layer": "1", "head": "2"}
    for prefix in ("", "/look/inside"):
        assert (
            ok(client.get(f"{prefix}/v1/attention.svg", query_string=query)).content_type == "image/svg+xml"
        )
        assert client.get(f"{prefix}/health/ready").status_code == 200
        refused = client.get(f"{prefix}/v1/nope").get_json()["type"]  # resolves behind either kind of proxy
        assert refused == "/look/inside/problems/not-found"
        assert client.get(refused).status_code == 200
        assert client.get(f"{prefix}/embed/attention", query_string=query).content_type.startswith(
            "text/html"
        )
        assert b'"/look/inside/static/app.js"' in client.get(f"{prefix}/").data
    for method in ("GET", "HEAD"):
        without_slash = client.open("/look/inside", method=method)
        assert (without_slash.status_code, without_slash.headers["Location"]) == (308, "/look/inside/")
    assert client.get("/look/insides/v1/model").status_code == 404
    assert client.get("/look/inside/openapi.json").get_json()["servers"] == [{"url": "/look/inside"}]
    assert client.get("/openapi.json").get_json()["servers"] == [{"url": "/"}]


def test_scores_are_null_in_json_and_empty_elsewhere(client: FlaskClient) -> None:
    body: dict[str, Any] = {**BODY, "weighting": "scores"}
    weights = ok(client.post("/v1/attention", json=body)).get_json()["results"][0]["maps"][0]["weights"]
    assert weights[0][1] is None
    assert weights[1][0] is not None
    records = csv.DictReader(
        io.StringIO(ok(client.post("/v1/attention?format=csv", json=body)).data.decode(), newline="")
    )
    assert {
        record["weight"] == "" for record in records if int(record["key_pos"]) > int(record["query_pos"])
    } == {True}
    for name in ("npz", "svg", "png", "html", "rows"):
        ok(client.post("/v1/attention", query_string={"format": name}, json=body))


def test_the_answer_for_a_frame_is_html_in_the_theme_and_view_asked_for(client: FlaskClient) -> None:
    query = {"text": "the cat", "layer": "1", "head": "2"}
    page = ok(client.get("/embed/attention", query_string={**query, "theme": "dark", "view": "arcs"}))
    assert b'<html lang="en" class="embed" data-view="arcs">' in page.data
    assert b"prefers-color-scheme" not in page.data
    assert b'<meta name="color-scheme" content="dark">' in page.data
    other = ok(client.get("/embed/attention", query_string=query))
    assert other.headers["ETag"] != page.headers["ETag"]
    assert b"@media (prefers-color-scheme: dark)" in other.data
    alone = ok(client.get("/v1/attention.html", query_string=query))
    assert b'<html lang="en">' in alone.data
    data = re.compile(rb'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)
    assert len({data.findall(one.data)[0] for one in (page, other, alone)}) == 1
    problem(client.get("/embed/attention", query_string={**query, "theme": "red"}), 422)
    problem(client.get("/embed/attention", query_string={**query, "view": "pie"}), 422)
    problem(client.get("/v1/attention.html", query_string={**query, "theme": "dark"}), 422)
    problem(client.get("/embed/attention", query_string=query, headers={"Accept": "application/json"}), 406)
