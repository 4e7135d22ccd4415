"""The OpenAPI 3.1 document, built from the pydantic models and the routes' contracts."""

from __future__ import annotations

import functools
import re
from importlib.metadata import version
from typing import Any

import yaml
from flask import Flask
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service import problems, security
from service.body import NDJSON
from service.errors import UnauthorizedError
from service.schemas.model import Problem

YAML = "application/yaml"
HIDDEN_METHODS = {"HEAD", "OPTIONS"}  # every route offers them; not worth a line each

DESCRIPTION = (
    "Looks inside a language model: where every head looks, what kind of head it is, which noun a pronoun attends to, "
    "and how many bytes a KV cache takes. Every error is `application/problem+json` (RFC 9457): on an unknown path a "
    "404, and for a method that a path does not offer a 405 with an `Allow` header. HEAD goes wherever GET does, "
    "OPTIONS everywhere."
)

TAGS = {
    "attention": "Where every head looks, as numbers and as pictures.",
    "coreference": "Which noun a pronoun attends to, and how often a head is right.",
    "heads": "What kind of head each one is.",
    "kv-cache": "How many bytes keys and values take: arithmetic, whatever model is loaded.",
    "model": "What is loaded, its limits, and the tokens it sees.",
    "operations": "Health, this document and its page, and what its problems mean.",
}

HEADERS: dict[str, tuple[str, dict[str, Any]]] = {  # name: (description, schema)
    "Accept-Post": ("Media types that are read here.", {"type": "string"}),
    "ETag": (
        "Of the answer; sent back as If-None-Match it saves a second one.",
        {"type": "string", "pattern": '^(W/)?"[^"]+"$'},
    ),
    "Retry-After": ("Seconds until it is worth another try.", {"type": "integer", "minimum": 1}),
    "Server-Timing": (
        "Milliseconds of each step, as `fwd;dur=12.3, ser;dur=0.4`.",
        {"type": "string"},
    ),
    "WWW-Authenticate": ("How to say who one is.", {"const": "Bearer"}),
    "X-Cache": (
        "Whether the answer was given before and kept; missing where none are.",
        {"enum": ["hit", "miss"]},
    ),
    "X-Content-ID": (
        "SHA-256 over what determines the answer: request, format, model and versions. Equal ids are equal answers.",
        {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    ),
    "X-Request-ID": (
        "The request's own where it fits, else a new one; also in the log and in every problem.",
        {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
    ),
}


@functools.lru_cache(maxsize=4)  # with the prefix, and without
def document(root: str = "") -> dict[str, Any]:
    """The contract; the same for every instance of one version, but for the path prefix `root` it is served under."""
    from service.routes import BLUEPRINTS  # the routes serve this document

    app = Flask(__name__, static_folder=None)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    operations = sorted(_operations(app), key=lambda operation: operation[:2])
    models: dict[type[BaseModel], Any] = {Problem: "serialization"}
    for _, _, contract, _ in operations:
        for model in (contract.request, contract.lines, contract.bare):
            if model:
                models[model] = "validation"
        if contract.answer:
            models[contract.answer] = "serialization"
    references, definitions = models_json_schema(
        sorted(models.items(), key=lambda pair: pair[0].__name__),
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {}
    for path, method, contract, view in operations:
        paths.setdefault(path, {})[method] = _operation(path, method, contract, view, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "attention-service",
            "version": version("attention-service"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root or "/"}],
        "security": [],
        "tags": [
            {"name": tag, "description": TAGS[tag]}
            for tag in sorted({contract.tag for _, _, contract, _ in operations})
        ],
        "paths": paths,
        "components": {
            "headers": {
                name: {"description": description, "schema": schema}
                for name, (description, schema) in HEADERS.items()
            },
            "schemas": dict(sorted(definitions["$defs"].items())),
            "securitySchemes": security.SCHEMES,
        },
    }


@functools.lru_cache(maxsize=4)
def as_yaml(root: str = "") -> str:
    """The document as it stands in `openapi.yaml`."""
    text: str = yaml.dump(document(root), Dumper=_PlainDumper, sort_keys=True, allow_unicode=True, width=110)
    return text


class _PlainDumper(yaml.SafeDumper):
    """No anchors: a reference inside the document is always spelt out."""

    def ignore_aliases(self, data: object) -> bool:
        """Never alias."""
        return True


def _operations(app: Flask) -> list[tuple[str, str, Any, Any]]:
    """(path, method, contract, view) of every route of an app that has a contract."""
    found = []
    for rule in app.url_map.iter_rules():
        view: Any = app.view_functions[rule.endpoint]
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        found += [
            (path, method.lower(), view.contract, view)
            for method in sorted((rule.methods or set()) - HIDDEN_METHODS)
        ]
    return found


def _operation(
    path: str, method: str, contract: Any, view: Any, references: dict[Any, Any]
) -> dict[str, Any]:
    schema = (
        references[contract.answer, "serialization"] if contract.answer else _body_schema(contract.media_type)
    )
    content = {contract.media_type: {"schema": schema}}
    content |= {one: {"schema": _body_schema(one)} for one in contract.other_media_types}
    for one in contract.formats:
        if one.media_type != contract.media_type:
            content[one.media_type] = {"schema": _body_schema(one.media_type)}
        elif one.name == "rows":
            records = {"type": "array", "items": {"type": "object"}}
            content[one.media_type] = {"schema": {"anyOf": [schema, records]}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    if method == "get" and contract.cacheable:
        responses["304"] = {"description": "What the client has, by its ETag, is still true."}
    refusals = {*contract.problems, *([UnauthorizedError] if security.needs_key(path) else [])}
    for row in problems.PROBLEMS:
        if row.exception in refusals:
            responses[str(row.status)] = {
                "description": row.title + ".",
                "content": {problems.MEDIA_TYPE: {"schema": references[Problem, "serialization"]}},
            }
    for status, response in responses.items():
        response["headers"] = {
            name: {"$ref": f"#/components/headers/{name}"} for name in _header_names(status, method, contract)
        }
    operation: dict[str, Any] = {
        "operationId": view.__name__,
        "summary": contract.summary,
        "description": (view.__doc__ or "").strip(),
        "tags": [contract.tag],
        "responses": dict(sorted(responses.items())),
        "security": security.requirements(path, method),
    }
    if contract.request:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": references[contract.request, "validation"]}},
        }
    if contract.bare:
        forms = [references[one, "validation"] for one in (contract.request, contract.bare)]
        operation["requestBody"]["content"]["application/json"] = {"schema": {"anyOf": forms}}
    if contract.lines:  # a schema of one line: OpenAPI 3.1 has no words for a sequence of them
        item = references[contract.lines, "validation"]
        operation["requestBody"]["content"][NDJSON] = {"schema": item}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
        if all(name != one["name"] for one in contract.parameters)
    ]
    if parameters := [*parameters, *contract.parameters]:
        operation["parameters"] = parameters
    return operation


def _header_names(status: str, method: str, contract: Any) -> list[str]:
    names = ["X-Request-ID"]
    # of a question, rather than of what the service has
    asked = contract.cacheable and bool(contract.request or contract.formats)
    if status in ("200", "304"):
        names += ["ETag"] * (method == "get" and contract.cacheable) + ["X-Content-ID"] * asked
    if status == "200" and asked:
        names += ["Server-Timing", "X-Cache"]
    if status == "401":
        names.append("WWW-Authenticate")
    if status == "415":
        names.append("Accept-Post")
    if status in ("429", "503"):
        names.append("Retry-After")
    return sorted(names)


def _body_schema(media_type: str) -> dict[str, Any]:
    if media_type in ("application/json", YAML):  # both are read into the same values
        return {"type": "object"}
    return {"type": "string"} if media_type.startswith("text/") or media_type.endswith("+xml") else {}
