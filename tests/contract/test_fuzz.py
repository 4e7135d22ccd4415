"""Schemathesis over the app: every operation, valid and invalid requests, all of its checks.

A schema cannot know the model's sizes, nor whether a span is in a text. So valid requests are first given such meaning
(`with_meaning`), and where one is refused all the same, it must be for a code listed in `BEYOND_A_SCHEMA`.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hypothesis
import pytest
import schemathesis
import torch
from pydantic import SecretStr
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.core import NOT_SET
from schemathesis.core.transport import Response
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import positive_data_acceptance

from service.app import create_app
from service.body import NDJSON
from service.engine import Engine
from service.model import LoadedModel
from service.openapi import document
from service.schemas.common import SENTENCE
from service.schemas.kv_cache import CONFIG_EXAMPLE
from service.settings import Settings
from tests.conftest import wait_until
from tests.tiny import HEADS, LAYERS, tiny_model

GENERATED = 40  # requests of an operation, beside its examples and the edges of each of its schemas

# What a valid request may still be refused for, as a pattern of `code pointer`, and why no schema says so
BEYOND_A_SCHEMA = {
    r"(layer|head)_out_of_range .*": "the document is the same for every model",
    r"out_of_range /token_ids.*": "likewise: the size of the vocabulary",
    r"(text_too_long|query_out_of_range) .*": "how many tokens a text has, only the tokenizer knows",
    r"(span|ambiguous|empty_span|overlapping)\w* .*": "a span is in the text, or not",
    r"too_few_candidates .*": "no candidate is a fault of the item, which `on_error: skip` passes over",
    r"incompatible_options .*": "members that exclude each other, and a parameter given twice",
    r"nothing_to_draw /color": "whether a score applies to a text: without punctuation there is none to look at",
    r"out_of_range /pattern": "a square as large as the text",
    r"out_of_range /labels/\d+": "a label that has no threshold of its own",
    r"(out_of_range|wrong_type) /(thresholds|split)(/\w+)?": "in a URL: a pattern of digits says no bounds",
}
BEYOND_A_SCHEMA_OF_CACHES = {
    r"unknown_model .*": "names of presets go by their aliases too, in any case",
    r"\w+ /(config|dims|model_type|architectures|\w*layer\w*|\w*head\w*|\w*size)(/.*)?": "what makes a model of it",
    r"\w+ (/(tokens|batch|encoder_tokens|shared_prefix_tokens|tensor_parallel|page_size|[kv]_dtype|dtype|state_dtype"
    r"|engine|engine_options|gpu|memory_budget_bytes|compare_models|model)(/.*)?)?": "how the options fit the model",
}

schemathesis.serializer(NDJSON)(lambda context, value: json.dumps(value).encode())


def load() -> LoadedModel:
    torch.set_num_threads(1)  # of this thread: so small a model gains nothing by more
    return tiny_model()


OPERATIONS = [
    f"{method.upper()} {path}" for path, methods in document()["paths"].items() for method in methods
]
asked: defaultdict[str, Counter[str]] = defaultdict(Counter)


@pytest.fixture(scope="module")
def checks() -> Iterator[dict[str, Callable[[], None]]]:
    """{operation: asks all of it}, built when the first begins: so much takes long, and collecting should not."""
    settings = Settings(signing_key=SecretStr("k" * 32))
    engine = Engine(load, settings).start()
    wait_until(lambda: engine.state == "ready")
    schema = schemathesis.openapi.from_wsgi(
        "/openapi.json",
        create_app(settings, engine),
        config=SchemathesisConfig.from_dict(
            {
                "generation": {"deterministic": True, "max-examples": GENERATED},
                # a list beyond all measure is invalid, and what says so is 413
                "checks": {
                    "negative_data_rejection": {"expected-statuses": [400, 404, 405, 406, 413, 415, 422]}
                },
            }
        ),
    )
    schema.location = None  # else its own path is left out
    load_all_checks()
    built = (
        one.ok() for one in get_all_tests(schema=schema, test_func=check, settings=None, given_kwargs=None)
    )
    logging.disable(logging.INFO)
    yield {operation.label: test for operation, test in built}
    logging.disable(logging.NOTSET)
    engine.close()


@hypothesis.settings(
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
def check(case: Case) -> None:
    valid = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if valid:
        give_meaning(case)
    response = case.call(headers={"Accept-Encoding": "identity"})  # the test client does not unpack
    of = asked[case.operation.label]
    of["requests"] += 1
    of["valid"] += valid
    of["valid and answered"] += valid and response.status_code == 200
    unsayable = valid and is_beyond_a_schema(response, case)
    case.validate_response(response, excluded_checks=[positive_data_acceptance] if unsayable else [])


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_answer_is_what_the_contract_says(
    operation: str, checks: dict[str, Callable[[], None]]
) -> None:
    checks[operation]()


def test_every_operation_was_asked_much_and_answered_something() -> None:
    for path, methods in document()["paths"].items():
        for method in methods:
            of = asked[f"{method.upper()} {path}"]
            print(f"{method.upper()} {path}: {dict(of)}")
            a_question = path.startswith("/v1/") and path != "/v1/model" and "models" not in path
            assert of["valid and answered"] >= (10 if a_question else 1), (path, of)


def is_beyond_a_schema(response: Response, case: Case) -> bool:
    """Whether a valid request was refused for what no schema can say: a limit, or a code of the tables."""
    if response.status_code == 413:
        return True
    if response.status_code != 422:
        return False
    caches = case.path.startswith("/v1/kv-cache")
    patterns = BEYOND_A_SCHEMA | (BEYOND_A_SCHEMA_OF_CACHES if caches else {})
    return all(
        any(re.fullmatch(pattern, f"{fault['code']} {fault['pointer']}") for pattern in patterns)
        for fault in response.json()["errors"]
    )


# --- what a schema cannot know, put into valid requests -----------------------------------------------------

HOW_WRITTEN = ("format", "width", "colormap", "color", "scale", "spreadsheet")
PRESET, OTHER_PRESET = "llama-2-7b", "meta-llama/Llama-2-7b-hf"


def give_meaning(case: Case) -> None:
    """Sizes of the tiny model, names of presets, and spans that are in the text."""
    query, body = case.query or {}, case.body
    if isinstance(body, dict):
        if case.media_type == NDJSON:
            item(body)
        elif case.path == "/v1/links":
            body["path"] = "/v1/attention.svg?text=The%20cat"
        elif case.path == "/v1/kv-cache":
            bare = bool({"model_type", "architectures"} & body.keys())
            body.update(CONFIG_EXAMPLE) if bare else cache(body)
            if not bare:  # a whole request says everything itself
                only(query, HOW_WRITTEN)
        else:
            if case.path == "/v1/coreference/evaluate":
                only(query, HOW_WRITTEN)
            in_body(body, pairs=case.path.startswith("/v1/coreference"))
    for short, long in (("layer", "layers"), ("head", "heads")):
        if long in query:
            query.pop(short, None)
    if case.path.startswith("/v1/coreference"):
        if "heads" in query or (body is NOT_SET and query.get("method") != "substitution"):
            query["heads"] = re.sub(
                r"L(\d+)H(\d+)",
                lambda found: f"L{int(found[1]) % LAYERS}H{int(found[2]) % HEADS}",
                query.get("heads", "all"),
            )
        if "text" in query:
            query |= {"text": SENTENCE, "pronoun": "it", "candidates": "4..7,mat"}
    else:
        for name, size in (("layer", LAYERS), ("layers", LAYERS), ("head", HEADS), ("heads", HEADS)):
            if name in query:
                query[name] = ",".join(str(int(one) % size) for one in listed(query[name]))
    if "gold" in query:
        query["gold"] = int(query["gold"]) % 2
    of_probe(query)
    if "model" in query:
        query["model"] = PRESET
    if "compare_models" in query:
        query["compare_models"] = OTHER_PRESET
    if any(name.startswith("gpu_") for name in query):
        query.setdefault("gpu_memory_bytes", 80 * 2**30)


def of_probe(members: dict[str, Any]) -> None:
    """Few draws, for each takes its time; none and no seed without a probe."""
    for name in members.keys() & {"seed", "draws"}:
        if members.get("probe") != "repeat":
            del members[name]
        elif name == "draws":
            members[name] = 2


def listed(given: object) -> list[Any]:
    return given if isinstance(given, list) else str(given).split(",")


def only(members: dict[str, Any], names: Sequence[str]) -> None:
    for name in members.keys() - set(names):
        del members[name]


def in_body(body: dict[str, Any], *, pairs: bool) -> None:
    for name, size in (("layers", LAYERS), ("heads", HEADS)):
        if isinstance(body.get(name), list):
            body[name] = [
                [one[0] % LAYERS, one[1] % HEADS] if isinstance(one, list) else one % size
                for one in body[name]
            ]
    if pairs and body.get("heads") is None and body.get("method") != "substitution":
        body["heads"] = [[0, 1]]
    for one in body.get("items") or ([body] if body.get("pronoun") else []):
        item(one)
    if body.get("token_ids"):
        body["token_ids"] = [one % 300 for one in body["token_ids"][:300]]
    if isinstance(body.get("queries"), list):
        body["queries"] = [0]
    of_probe(body)
    if body.get("on_error") == "skip":  # that some text is left, /v1/heads asks for
        body |= {"text": SENTENCE} if body.get("text") is not None else {}
        body |= {"texts": [*body["texts"], SENTENCE][-3:]} if body.get("texts") else {}


def item(one: dict[str, Any]) -> None:
    one["text"] = SENTENCE
    one["pronoun"] = {"text": "it"} if "text" in one["pronoun"] else {"start": 31, "end": 33}
    one["candidates"] = [{"text": "cat"}, {"start": 15, "end": 22}][: len(one["candidates"])]
    if one.get("gold") is not None:
        one["gold"] %= len(one["candidates"]) or 1


def cache(body: dict[str, Any]) -> None:
    if body.get("model"):
        body["model"] = PRESET
    if body.get("compare_models"):
        body["compare_models"] = [OTHER_PRESET]
    if body.get("config") is not None:
        body["config"] = {**body["config"], **CONFIG_EXAMPLE}
    if dims := body.get("dims"):
        dims["kv_heads"] = dims["heads"]
        if dims.get("layer_types"):
            dims |= {"layers": len(dims["layer_types"]), "window": 4096}
