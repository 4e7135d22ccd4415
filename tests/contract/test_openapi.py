"""openapi.yaml is what the code says, valid, complete both ways, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from flask.testing import FlaskClient
from openapi_spec_validator import OpenAPIV31SpecValidator

from service.cli import main
from service.openapi import as_yaml, document
from service.problems import PROBLEMS
from tests.conftest import MakeApp

CHECKED_IN = Path(__file__).parents[2] / "openapi.yaml"


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CHECKED_IN.read_text(encoding="utf-8"))
    return loaded


def operations(spec: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, one) for path, methods in spec["paths"].items() for method, one in methods.items()]


def validator(spec: dict[str, Any], schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema, "components": spec["components"]})


def test_the_file_checked_in_is_byte_for_byte_what_the_code_generates(tmp_path: Path) -> None:
    assert CHECKED_IN.read_text(encoding="utf-8") == as_yaml()
    assert main(["openapi", "--check", "--out", str(CHECKED_IN)]) == 0
    stale = tmp_path / "openapi.yaml"
    stale.write_text(as_yaml() + "\n")
    assert main(["openapi", "--check", "--out", str(stale)]) == 1
    assert main(["openapi", "--out", str(stale)]) == 0
    assert stale.read_text(encoding="utf-8") == as_yaml()


def test_it_is_a_valid_openapi_3_1_document(spec: dict[str, Any]) -> None:
    OpenAPIV31SpecValidator(spec).validate()
    assert spec["openapi"] == "3.1.0"


def test_served_documents_equal_the_file(client: FlaskClient, spec: dict[str, Any]) -> None:
    assert client.get("/openapi.json").get_json() == spec == document()
    response = client.get("/openapi.yaml")
    assert response.text == CHECKED_IN.read_text(encoding="utf-8")
    assert response.content_type == "application/yaml"


def test_the_url_map_and_the_document_are_equal_both_ways(client: FlaskClient, spec: dict[str, Any]) -> None:
    served = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in client.application.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert served == {(path, method) for path, method, _ in operations(spec)}


def test_every_request_has_an_example_and_every_example_is_valid_and_answered(
    make_app: MakeApp, spec: dict[str, Any]
) -> None:
    client = make_app(signing_key="s" * 32).test_client()  # /v1/links is 404 without
    for path, method, operation in operations(spec):
        if "requestBody" not in operation:
            continue
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        names = [one["$ref"].rpartition("/")[2] for one in schema.get("anyOf", [schema])]
        examples = [one for name in names for one in spec["components"]["schemas"][name]["examples"]]
        assert len(examples) >= len(names), path
        for example in examples:
            validator(spec, schema).validate(example)
            if (
                path == "/v1/coreference" and "method" not in example
            ):  # the default head is that of a 24 x 14 model; this one is tiny
                example = {**example, "heads": [[0, 0]]}
            if path == "/v1/heads" or "layers" in example:
                example = {**example, "layers": [0], "heads": [0]}
            response = getattr(client, method)(path, json=example)
            assert response.status_code == 200, (path, response.text)
            answer_schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            validator(spec, answer_schema).validate(response.get_json())


def test_examples_anywhere_in_a_schema_are_valid(spec: dict[str, Any]) -> None:
    seen = 0
    for name, schema in spec["components"]["schemas"].items():
        for example in schema.get("examples", []):
            validator(spec, {"$ref": f"#/components/schemas/{name}"}).validate(example)
            seen += 1
    assert seen >= 8


def test_schemas_refuse_what_the_service_refuses(spec: dict[str, Any]) -> None:
    for name, bad in (
        ("AttentionRequest", {}),
        ("AttentionRequest", {"text": "a", "texts": ["a"]}),
        ("AttentionRequest", {"text": "a", "unknown": 1}),
        ("AttentionRequest", {"text": "a", "layers": [-1]}),
        ("AttentionRequest", {"text": ""}),
        ("HeadsRequest", {"text": "a", "labels": ["nope"]}),
        ("HeadsRequest", {"text": "a", "thresholds": {"nope": 0.1}}),
        ("CoreferenceRequest", {"text": "a"}),
        ("SpanRequest", {"start": 1}),
        ("KvCacheRequest", {"model": "a", "dims": {}}),
        ("KvCacheRequest", {"model": "a", "tokens": 0}),
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator(spec, {"$ref": f"#/components/schemas/{name}"}).validate(bad)


def test_each_operation_documents_every_status_it_can_give(spec: dict[str, Any]) -> None:
    statuses = {row.status for row in PROBLEMS}
    for path, method, operation in operations(spec):
        given = {int(status) for status in operation["responses"]}
        assert 200 in given
        assert 500 in given
        assert given - {200, 304} <= statuses
        if method == "post":
            assert {400, 408, 413, 415, 422} <= given, path
        if path.startswith(("/v1/kv-cache", "/v1/links")):
            assert not {429, 503} & given, path  # arithmetic: waits for nothing but its picture's turn
        elif method == "post":
            assert {429, 503} <= given, path
            assert (504 in given) == (path != "/v1/tokenize"), (
                path
            )  # the tokenizer runs in the request's own thread
        if method == "get" and not path.startswith(("/health", "/metrics")):
            assert 304 in given, path
        assert operation["summary"]
        assert operation["operationId"]


def test_a_key_is_an_alternative_wherever_one_may_be_needed(make_app: MakeApp, spec: dict[str, Any]) -> None:
    client = make_app(api_keys="k" * 16, signing_key="s" * 32).test_client()
    assert set(spec["components"]["securitySchemes"]) == {"bearer", "apiKey", "link"}
    for path, method, operation in operations(spec):
        refused = getattr(client, method)(path).status_code == 401
        assert refused == ("401" in operation["responses"]) == bool(operation["security"]), path
        if refused:
            assert operation["security"][0] == {}, (
                path
            )  # this document is also that of an instance without keys
            assert ({"link": []} in operation["security"]) == (method == "get"), path


def test_every_error_fits_the_problem_schema(client: FlaskClient, spec: dict[str, Any]) -> None:
    problem = validator(spec, {"$ref": "#/components/schemas/Problem"})
    for response in (
        client.get("/nope"),
        client.get("/v1/heads"),
        client.get("/v1/attention", query_string={"text": "a", "format": "pdf"}),
        client.get("/v1/attention"),
        client.post("/v1/attention", data="{", content_type="application/json"),
        client.post("/v1/attention", json={"text": ""}),
        client.post("/v1/attention", json={"texts": ["a"] * 65}),
        client.post("/v1/attention", data="x"),
    ):
        assert response.status_code >= 400
        problem.validate(response.get_json())
