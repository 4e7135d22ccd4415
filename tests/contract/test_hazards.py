"""Bad input on every route that takes a body: its 4xx, nothing echoed, and the next request works.

Hazards 1 to 5 and 20 of public issues: pallets/werkzeug#2550, pallets/flask#4619, #6114, fastapi/fastapi#459, #4589,
encode/django-rest-framework#7026, hartwork/jawanndenn#44, huggingface/text-embeddings-inference#50, #267, #378.
"""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from pydantic import BaseModel
from werkzeug.test import TestResponse

from attention_core.heads import LABELS
from service.body import JSON, NDJSON
from service.schemas.attention import AttentionRequest, TokenizeRequest
from service.schemas.common import SENTENCE
from service.schemas.coreference import CoreferenceRequest, EvaluateRequest, EvaluationItem
from service.schemas.heads import HeadsRequest
from service.schemas.kv_cache import CONFIG_EXAMPLE, KvCacheRequest
from service.schemas.links import LinkRequest
from service.settings import Limits
from tests.conftest import MakeApp

ITEM = {
    "text": SENTENCE,
    "pronoun": {"text": "it"},
    "candidates": [{"text": "cat"}, {"text": "mat"}],
    "gold": 0,
}
# (path, media type): (the schema of the body, or of a line; a good body)
BODIES: dict[tuple[str, str], tuple[type[BaseModel], dict[str, Any]]] = {
    ("/v1/attention", JSON): (AttentionRequest, {"text": "the cat", "layers": [0], "heads": [0]}),
    ("/v1/tokenize", JSON): (TokenizeRequest, {"text": "the cat"}),
    ("/v1/heads", JSON): (HeadsRequest, {"text": "the cat", "layers": [0]}),
    ("/v1/coreference", JSON): (CoreferenceRequest, {**ITEM, "heads": [[0, 0]]}),
    ("/v1/coreference/evaluate", JSON): (EvaluateRequest, {"items": [ITEM], "split": None}),
    ("/v1/coreference/evaluate", NDJSON): (EvaluationItem, ITEM),
    ("/v1/kv-cache", JSON): (KvCacheRequest, {"config": CONFIG_EXAMPLE}),
    ("/v1/links", JSON): (LinkRequest, {"path": "/v1/attention.svg?text=the%20cat"}),
}


@pytest.fixture
def client(make_app: MakeApp) -> FlaskClient:
    """Of an instance that signs links."""
    return make_app(signing_key="k" * 32).test_client()


every_body = pytest.mark.parametrize(("path", "media_type"), BODIES)


def post(client: FlaskClient, path: str, raw: bytes, media_type: str | None) -> TestResponse:
    query = {"split": "none"} if media_type == NDJSON else {}  # one item cannot be split
    return client.post(path, data=raw, content_type=media_type, query_string=query)


def strictly(response: TestResponse) -> dict[str, Any]:
    """The body; `NaN` and `Infinity` are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    answer: dict[str, Any] = json.loads(response.data, parse_constant=refuse)
    return answer


def good(path: str, media_type: str) -> dict[str, Any]:
    return copy.deepcopy(BODIES[path, media_type][1])


def refused(
    client: FlaskClient, path: str, raw: bytes, media_type: str | None, status: int
) -> dict[str, Any]:
    """The problem; and after it a good request is answered."""
    response = post(client, path, raw, media_type)
    assert response.status_code == status, response.data
    assert response.content_type == "application/problem+json"
    problem = strictly(response)
    assert problem["status"] == status
    assert problem["instance"] == path
    assert len(response.data) < 8_000
    works = media_type if (path, media_type) in BODIES else JSON
    answered(client, path, json.dumps(good(path, works or JSON)).encode(), works or JSON)
    return problem


def answered(client: FlaskClient, path: str, raw: bytes, media_type: str) -> dict[str, Any]:
    response = post(client, path, raw, media_type)
    assert response.status_code == 200, response.text
    return strictly(response)


def test_these_are_all_the_routes_that_take_a_body(client: FlaskClient) -> None:
    taking = {rule.rule for rule in client.application.url_map.iter_rules() if "POST" in (rule.methods or ())}
    assert taking == {path for path, _ in BODIES}


# --- what is not JSON -----------------------------------------------------------------------------------------


@every_body
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"text": "a"',
        b'{"text": "a"} x',
        b'{"text": "\xff"}',
        b'{"text": "a\x01b"}',
        '{"text": "a"}'.encode("utf-16"),
        b'{"text": "\\ud83d"}',
        b'{"text": "\\udc22"}',
        b'{"text": "a\\ud83dx"}',
        b'{"\\ud83d": 1}',
        b'{"texts": ["a", "\\udc22"]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"text": ' + b"9" * 10_000 + b"}",
        b'{"text": "a", "text": "b"}',
        b'{"text": "a", "text": 1}',
        b'{"items": [{"gold": 0, "gold": 0}]}',
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_what_is_not_json_is_400_and_of_json_lines_a_line_that_cannot_be_read(
    client: FlaskClient, path: str, media_type: str, raw: bytes
) -> None:
    problem = refused(client, path, raw, media_type, 400 if media_type == JSON else 422)
    if media_type == JSON:
        assert problem["type"] == "/problems/malformed-body"
    elif raw:
        assert {error["code"] for error in problem["errors"]} <= {
            "malformed_line",
            "wrong_type",
            "missing_field",
        }
        assert problem["detail"].startswith("Line 1: ")


@every_body
def test_a_byte_order_mark_is_named(client: FlaskClient, path: str, media_type: str) -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(good(path, media_type)).encode()
    problem = refused(client, path, raw, media_type, 400)
    assert "byte order mark" in problem["detail"]
    assert ("Line 1" in problem["detail"]) == (media_type == NDJSON)


@every_body
@pytest.mark.parametrize("raw", [b"null", b"[]", b'"text"', b"7", b"true", b"NaN"])
def test_json_that_is_not_an_object_is_422(
    client: FlaskClient, path: str, media_type: str, raw: bytes
) -> None:
    refused(client, path, raw, media_type, 422)


@every_body
@pytest.mark.parametrize(
    "given", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml", ""]
)
def test_another_media_type_is_415_and_says_which_are_read(
    client: FlaskClient, path: str, media_type: str, given: str | None
) -> None:
    raw = json.dumps(good(path, media_type)).encode()
    refused(client, path, raw, given, 415)
    read = post(client, path, raw, given).headers["Accept-Post"].split(", ")
    assert read == [one for of, one in BODIES if of == path]


@pytest.mark.parametrize(("path", "media_type"), [one for one in BODIES if one[0] != "/v1/links"])
def test_a_surrogate_pair_and_an_escaped_nul_are_text(
    client: FlaskClient, path: str, media_type: str
) -> None:
    raw = json.dumps(good(path, media_type)).encode()
    for text in (b"\\ud83e\\udd84", b"\\u0000", b"a\\u0000b"):
        longer = raw.replace(b'"mistral"', b'"mistral", "note": "' + text + b'"')
        longer = longer.replace(SENTENCE.encode(), SENTENCE.encode() + text)
        longer = longer.replace(b'"the cat"', b'"the cat' + text + b'"')
        assert longer != raw
        answered(client, path, longer, media_type)


@every_body
@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "identity, gzip"])
def test_a_compressed_body_is_415_and_never_read(
    client: FlaskClient, path: str, media_type: str, coding: str
) -> None:
    raw = json.dumps(good(path, media_type)).encode()
    for sent in (gzip.compress(raw), raw):
        headers = {"Content-Encoding": coding}
        response = client.post(path, data=sent, content_type=media_type, headers=headers)
        assert response.status_code == 415, response.text
        assert "compressed" in strictly(response)["detail"]


# --- spelling -------------------------------------------------------------------------------------------------

ANSWERS = [one for one in BODIES if one not in [("/v1/links", JSON), ("/v1/coreference/evaluate", NDJSON)]]


@pytest.mark.parametrize(("path", "media_type"), ANSWERS)
def test_a_request_that_says_what_goes_without_saying_gets_the_same_bytes_in_every_format(
    client: FlaskClient, path: str, media_type: str
) -> None:
    schema, brief = BODIES[path, media_type][0], good(path, media_type)
    if path == "/v1/kv-cache":
        brief |= {"gpu": {"memory_bytes": 24 * 2**30}, "engine_options": {}}
    whole = schema.model_validate_json(json.dumps(brief)).model_dump(mode="json")
    whole = {name: value for name, value in whole.items() if name in schema.model_json_schema()["properties"]}
    assert whole.keys() > brief.keys() or path == "/v1/tokenize"
    (view,) = (
        client.application.view_functions[rule.endpoint]
        for rule in client.application.url_map.iter_rules()
        if rule.rule == path and "POST" in (rule.methods or ())
    )
    names = [written.name for written in view.contract.formats] or [None]  # type: ignore[attr-defined]
    for name in names:
        query = {} if name is None else {"format": name}
        briefly, wholly = (client.post(path, json=body, query_string=query) for body in (brief, whole))
        assert briefly.status_code == wholly.status_code, (name, wholly.text)
        assert briefly.headers.get("X-Content-ID") == wholly.headers.get("X-Content-ID"), name
        if name == "npz":  # a ZIP holds a time
            continue
        if briefly.status_code == 200:
            assert briefly.data == wholly.data, name


# --- numbers --------------------------------------------------------------------------------------------------


def numeric(
    schema: dict[str, Any], whole: dict[str, Any], place: tuple[str | int, ...] = ()
) -> Iterator[Any]:
    """(place, type) of every number that a JSON schema has a word for."""
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    if schema.get("type") in ("integer", "number"):
        yield place, schema["type"]
    for form in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        if "required" not in form:  # of a check over several members
            yield from numeric(form, whole, place)
    for name, member in schema.get("properties", {}).items():
        yield from numeric(member, whole, (*place, name))
    if isinstance(members := schema.get("additionalProperties"), dict):
        yield from numeric(members, whole, (*place, schema["propertyNames"]["enum"][0]))
    for index, entry in enumerate(schema.get("prefixItems", ())):
        yield from numeric(entry, whole, (*place, index))
    if isinstance(entry := schema.get("items"), dict):
        yield from numeric(entry, whole, (*place, 0))


def written(path: str, media_type: str, place: tuple[str | int, ...], number: str) -> bytes:
    """A good body with `number` at a place."""
    body: Any = good(path, media_type)
    owner = body
    for name, following in zip(place, (*place[1:], None), strict=True):
        value: Any = "@" if following is None else [0, 0] if isinstance(following, int) else {}
        if following is not None and isinstance(owner, dict):
            held = owner.get(name)
            value = held if held and isinstance(held, list if isinstance(following, int) else dict) else value
        if following is not None and isinstance(owner, list) and isinstance(owner[int(name)], type(value)):
            value = owner[int(name)]
        owner[name] = value
        owner = value
    return json.dumps(body).replace('"@"', number).encode()


NUMBERS = [
    (path, media_type, place, kind)
    for (path, media_type), (model, _) in BODIES.items()
    for place, kind in dict(numeric(model.model_json_schema(), model.model_json_schema())).items()
]


def test_the_walk_over_the_schemas_finds_the_numbers() -> None:
    places = {(path, "/".join(map(str, place))) for path, _, place, _ in NUMBERS}
    assert len(NUMBERS) > 70
    assert places >= {
        ("/v1/attention", "queries/0"),
        ("/v1/heads", "thresholds/" + LABELS[0]),
        ("/v1/coreference", "heads/0/1"),
        ("/v1/coreference/evaluate", "split/test_fraction"),
        ("/v1/kv-cache", "dims/mla/kv_lora_rank"),
        ("/v1/kv-cache", "tokens"),
    }


@pytest.mark.parametrize(
    ("path", "media_type", "place", "kind"),
    NUMBERS,
    ids=lambda one: "/".join(map(str, one)) if isinstance(one, tuple) else None,
)
def test_what_is_no_finite_number_is_refused_in_every_numeric_field(
    client: FlaskClient, path: str, media_type: str, place: tuple[str | int, ...], kind: str
) -> None:
    pointer = "".join(f"/{part}" for part in place)
    numbers = ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", '"NaN"', '"1"', "true", "{}"]
    if kind == "integer":
        numbers += ["9" * 4_000, "-" + "9" * 4_000, "1.5", "1e300"]
    for number in numbers:
        raw = written(path, media_type, place, number)
        response = post(client, path, raw, media_type)
        assert response.status_code == 422, (number[:20], response.text)
        problem = strictly(response)
        if media_type == JSON:
            assert pointer in [error["pointer"] for error in problem["errors"]], (number[:20], problem)
        else:
            assert f"Line 1: {pointer}: " in problem["detail"]
    refused(
        client,
        path,
        written(path, media_type, place, "9" * 10_000),
        media_type,
        400 if media_type == JSON else 422,
    )


def test_a_whole_number_may_be_written_with_a_point_as_json_schema_has_it(client: FlaskClient) -> None:
    raw = b'{"text": "the cat", "layers": [0.0, 1e0], "heads": [2], "decimals": 3.0}'
    same = b'{"text": "the cat", "layers": [0, 1], "heads": [2], "decimals": 3}'
    found, as_usual = (post(client, "/v1/attention", one, JSON) for one in (raw, same))
    assert found.status_code == 200
    assert found.data == as_usual.data
    assert found.headers["X-Content-ID"] == as_usual.headers["X-Content-ID"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("path", "media_type"),
    [one for one in BODIES if one[0] not in ("/v1/tokenize", "/v1/kv-cache", "/v1/links")],
)
def test_a_number_of_the_models_that_is_not_finite_is_500_and_never_data(
    make_app: MakeApp, path: str, media_type: str, bad: float
) -> None:
    app = make_app()
    reader = app.extensions["engine"].model.reader
    read = reader.read

    def broken(sequences: Any, heads: Any, consume: Any, **options: Any) -> None:
        def spoilt(rows: Any) -> None:
            weights = rows.weights.clone()
            weights[0, -1, 0] = bad
            consume(dataclasses.replace(rows, weights=weights))

        read(sequences, heads, spoilt, **options)

    raw = json.dumps(good(path, media_type)).encode()
    reader.read = broken
    try:
        response = post(app.test_client(), path, raw, media_type)
    finally:
        del reader.read
    assert response.status_code == 500, response.text
    assert strictly(response)["type"] == "/problems/internal"
    assert "finite" not in response.text
    answered(app.test_client(), path, raw, media_type)


# --- limits ---------------------------------------------------------------------------------------------------

ATTEND = {**ITEM, "heads": [[0, 0]]}


@pytest.mark.parametrize(
    ("limit", "value", "path", "status", "body"),
    [
        ("max_body_bytes", 400, "/v1/attention", 413, {"text": "a" * 500}),
        ("max_body_bytes", 600, "/v1/kv-cache", 413, {"model": "a" * 700}),
        ("max_texts", 3, "/v1/attention", 413, {"texts": ["a"] * 4}),
        ("max_texts", 3, "/v1/tokenize", 413, {"texts": ["a"] * 11_003}),
        ("max_texts", 3, "/v1/heads", 413, {"texts": ["a"] * 10_001}),
        ("max_texts", 1, "/v1/coreference", 413, {"items": [ITEM] * 2, "heads": "all"}),
        ("max_items", 2, "/v1/coreference/evaluate", 413, {"items": [ITEM] * 3}),
        ("max_items", 2, "/v1/coreference/evaluate", 413, [ITEM] * 5),
        ("max_tokens_per_text", 5, "/v1/attention", 422, {"text": "zzzzzz"}),
        ("max_tokens_per_text", 5, "/v1/tokenize", 422, {"text": "zzzzzz"}),
        ("max_tokens_per_text", 5, "/v1/heads", 422, {"text": "zzzzzz"}),
        ("max_tokens_per_text", 5, "/v1/coreference", 422, ATTEND),
        ("max_tokens_per_request", 7, "/v1/attention", 422, {"texts": ["zzzz"] * 2}),
        ("max_tokens_per_request", 7, "/v1/heads", 422, {"texts": ["zzzz"] * 2}),
        ("max_tokens_per_evaluation", 40, "/v1/coreference/evaluate", 422, {"items": [ITEM] * 2}),
        (
            "max_response_elements",
            19,
            "/v1/attention",
            413,
            {"text": "zz", "layers": [0], "heads": [0, 1, 2, 3, 4]},
        ),
        ("max_response_elements", 59, "/v1/coreference", 413, {**ITEM, "heads": "all"}),
        ("max_response_elements_compact", 5, "/v1/attention?format=npz", 413, {"text": "zzz"}),
    ],
)
def test_a_limit_that_is_hit_is_told_with_the_very_number_that_v1_model_gives(
    make_app: MakeApp, limit: str, value: int, path: str, status: int, body: Any
) -> None:
    client = make_app(**{limit: value}).test_client()
    lines = isinstance(body, list)
    raw = "\n".join(map(json.dumps, body)) if lines else json.dumps(body)
    response = client.post(path, data=raw, content_type=NDJSON if lines else JSON)
    assert response.status_code == status, response.text
    problem = strictly(response)
    assert problem["limit"] == client.get("/v1/model").get_json()["limits"][limit] == value
    assert problem["actual"] > value
    if status == 413 and limit in ("max_texts", "max_items"):
        assert problem["actual"] == (len(body) if lines else len(next(iter(body.values()))))
    if limit == "max_body_bytes":
        assert problem["actual"] == min(len(raw), problem["actual"])


def test_every_limit_is_published(client: FlaskClient) -> None:
    assert client.get("/v1/model").get_json()["limits"].keys() == Limits.model_fields.keys()
