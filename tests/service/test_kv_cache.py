"""/v1/kv-cache, asked of a service whose weights never stop loading: nothing here may need them."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from werkzeug.test import TestResponse

from attention_core.kv_cache import ENGINES, presets
from service.app import create_app
from service.engine import Engine
from service.formats.cache_chart import SCALES
from service.schemas.kv_cache import KvCacheAnswer, PresetAnswer, PresetsAnswer
from service.settings import Settings
from tests.conftest import MakeApp, read_strictly, wait_until

CASES = Path(__file__).parents[1] / "cases" / "kv"
MODELS = json.loads((CASES / "models.json").read_text(encoding="utf-8"))
FIXTURES = json.loads((CASES / "fixtures.json").read_text(encoding="utf-8"))
SVG = "{http://www.w3.org/2000/svg}"

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 7,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "head_dim": 11,
    "hidden_size": 165,
    "max_position_embeddings": 509,
    "torch_dtype": "float16",
}
LLAMA_ROW = 7 * 5 * (11 + 11) * 2  # layers x KV heads x (key + value) x bytes
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 101}  # every layer slides


@pytest.fixture(scope="module")
def client() -> Iterator[FlaskClient]:
    loading = threading.Event()

    def load() -> Any:
        loading.wait()
        raise RuntimeError("never loaded")

    engine = Engine(load, Settings()).start()
    client = create_app(Settings(), engine).test_client()
    yield client
    assert client.get("/health/ready").status_code == 503
    loading.set()
    engine.close()


def read(response: TestResponse, schema: Any = KvCacheAnswer) -> Any:
    return read_strictly(response, schema)


def post(client: FlaskClient, body: Mapping[str, Any], query: Mapping[str, Any] | None = None) -> Any:
    return read(client.post("/v1/kv-cache", json=body, query_string=query))


def faults(response: TestResponse) -> list[tuple[str, str]]:
    assert response.status_code == 422, response.text
    assert response.content_type == "application/problem+json"
    return [(error["pointer"], error["code"]) for error in response.get_json()["errors"]]


def at(answer: Any, path: str) -> Any:
    """What stands at a dotted path."""
    for part in path.split("."):
        answer = answer[int(part)] if isinstance(answer, list) else answer[part]
    return answer


# --- the cases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", MODELS, ids=[case["model_id"] for case in MODELS])
def test_every_model_of_the_cases_has_its_bytes(client: FlaskClient, case: dict[str, Any]) -> None:
    answer, expected = post(client, case["request"]), dict(case["expected"])
    at_tokens, at_bytes = expected.pop("at_tokens"), expected.pop("bytes_at_tokens")
    assert [one["per_sequence_bytes"] for one in answer["sizes"] if one["tokens"] == at_tokens] == [at_bytes]
    assert {name: answer[name] for name in expected} == expected


@pytest.mark.parametrize("case", FIXTURES, ids=[case["name"] for case in FIXTURES])
def test_every_fixture_of_the_cases_answers_as_derived(client: FlaskClient, case: dict[str, Any]) -> None:
    response, expected = client.post("/v1/kv-cache", json=case["request"]), dict(case["expected"])
    assert response.status_code == expected.pop("status", 200), response.text
    if "pointer" in expected:
        assert expected.pop("pointer") in [pointer for pointer, _ in faults(response)]
    answer = read(response) if response.status_code == 200 else {}
    assert {path: at(answer, path) for path in expected} == expected


# --- what is answered ---------------------------------------------------------------------------------------


def test_llama_2_7b_takes_2_gib_at_4096_tokens(client: FlaskClient) -> None:
    answer = post(client, {"model": "Llama-2-7B", "tokens": 4096, "dtype": "float16"})
    assert (answer["bytes_per_token"], answer["attention"]) == (524_288, "mha")
    (size,) = answer["sizes"]
    assert (size["per_sequence_bytes"], size["batch_bytes"], size["human"]) == (2**31, 2**31, "2 GiB")
    assert size["bounds"] == {"ideal": 2**31, "no_swa": 2**31}
    assert answer["max_tokens"] is None
    assert answer["capacity"] is None
    assert not {"layers", "models", "request", "curves"} & answer.keys()


def test_sizes_keep_the_order_of_tokens(client: FlaskClient) -> None:
    dims = {"layers": 3, "heads": 10, "kv_heads": 5, "head_dim": 14}
    answer = post(client, {"dims": dims, "tokens": [7, 2], "batch": 11, "dtype": "float32"})
    row = 3 * 5 * 2 * 14 * 4
    assert [(size["tokens"], size["batch_bytes"]) for size in answer["sizes"]] == [
        (7, 7 * row * 11),
        (2, 2 * row * 11),
    ]
    assert answer["dtype_source"] == "request"
    assert answer["model"] is None


def test_dims_take_a_latent_row_a_window_and_kinds_of_layers(client: FlaskClient) -> None:
    dims: dict[str, Any] = {"layers": 3, "heads": 6, "kv_heads": 2, "head_dim": 7, "v_head_dim": 5}
    body: dict[str, Any] = {"tokens": 100, "dtype": "float32"}
    row = 2 * (7 + 5) * 4

    def size(**more: Any) -> int:
        found: int = post(client, {**body, "dims": {**dims, **more}})["sizes"][0]["per_sequence_bytes"]
        return found

    assert size() == 3 * 100 * row
    assert size(window=13) == 3 * 13 * row
    assert size(window=13, layer_types=["full_attention", "sliding_attention", "none"]) == 113 * row
    assert size(mla={"kv_lora_rank": 17, "qk_rope_head_dim": 3}) == 3 * 100 * (17 + 3) * 4


def test_types_pages_ranks_and_a_shared_prefix_are_counted(client: FlaskClient) -> None:
    body = {"config": LLAMA, "tokens": 100, "batch": 3, "page_size": 16}
    (size,) = post(client, {**body, "tensor_parallel": 5, "shared_prefix_tokens": 50})["sizes"]
    # 100 tokens are 7 pages of 16; of the prefix of 50 three whole pages, 48 rows, are kept once
    assert size["per_sequence_bytes"] == 112 * LLAMA_ROW
    assert size["batch_bytes"] == (48 + 3 * (112 - 48)) * LLAMA_ROW
    assert size["per_rank_bytes"] * 5 == size["batch_bytes"]
    assert size["replication"] == 1
    narrow = post(client, {"config": LLAMA, "tokens": 1, "k_dtype": "int8", "v_dtype": "float32"})
    assert (narrow["k_dtype"], narrow["v_dtype"]) == ("int8", "float32")
    assert narrow["bytes_per_token"] == 7 * 5 * (11 * 1 + 11 * 4)


def test_an_engine_reserves_more_and_the_bounds_stay(client: FlaskClient) -> None:
    body = {"config": MISTRAL, "tokens": 500}
    ideal, vllm = (post(client, {**body, "engine": engine})["sizes"][0] for engine in ("ideal", "vllm"))
    assert ideal["per_sequence_bytes"] == 101 * LLAMA_ROW
    assert vllm["per_sequence_bytes"] == (512 + 16) * LLAMA_ROW  # all 500 in pages of 16, and one page more
    options = {"max_num_batched_tokens": 50}
    few = post(client, {**body, "engine": "vllm", "engine_options": options})["sizes"][0]
    assert few["per_sequence_bytes"] == (160 + 16) * LLAMA_ROW  # 101 - 1 + 50 rows, likewise
    assert ideal["bounds"] == vllm["bounds"] == few["bounds"]
    assert ideal["bounds"] == {"ideal": 101 * LLAMA_ROW, "no_swa": 500 * LLAMA_ROW}


def test_a_budget_says_how_long_and_how_many(client: FlaskClient) -> None:
    budget = 300 * LLAMA_ROW + 1
    answer = post(client, {"config": LLAMA, "tokens": [7, 100, 301], "memory_budget_bytes": budget})
    assert answer["max_tokens"] == {"per_sequence": 300, "limited_by_model": 300}
    assert answer["capacity"]["max_sequences"] == [42, 3, 0]
    assert answer["capacity"]["fits"] is False
    assert answer["capacity"]["kv_budget_bytes"] == budget


def test_a_gpus_budget_is_what_is_left_of_it(client: FlaskClient) -> None:
    gpu = {"memory_bytes": 10_000_000, "utilization": 0.5, "weight_bytes": 1_000_000, "overhead_bytes": 7}
    answer = post(client, {"config": LLAMA, "tokens": 100, "gpu": gpu, "engine": "vllm"})
    capacity = answer["capacity"]
    assert capacity["kv_budget_bytes"] == 5_000_000 - 1_000_000 - 7
    assert sum(term["bytes"] for term in capacity["terms"]) == capacity["kv_budget_bytes"]
    assert capacity["fits"] is True
    blocks = capacity["kv_budget_bytes"] // (16 * LLAMA_ROW)
    assert (capacity["vllm"]["block_size"], capacity["vllm"]["num_gpu_blocks"]) == (16, blocks)
    assert capacity["vllm"]["kv_cache_tokens"] == [int(blocks / 7 * 100)]  # 100 tokens take 7 blocks


def test_detail_lists_every_layer(client: FlaskClient) -> None:
    config = {**MISTRAL, "layer_types": ["sliding_attention"] * 6 + ["full_attention"]}
    answer = post(client, {"config": config, "tokens": [50, 200], "detail": "layers"})
    row = LLAMA_ROW // 7
    assert [layer["index"] for layer in answer["layers"]] == list(range(7))
    assert [layer["sizes_bytes"] for layer in answer["layers"]] == [[50 * row, 101 * row]] * 6 + [
        [50 * row, 200 * row]
    ]
    assert [(group["layers"], group["window"]) for group in answer["groups"]] == [(6, 101), (1, None)]


def test_models_are_compared_with_the_same_request(client: FlaskClient) -> None:
    options = {"tokens": [1, 8192], "engine": "llama.cpp", "batch": 3, "dtype": "q8_0"}
    names = ["gpt-oss-20b", "meta-llama/Llama-2-7b-hf"]
    answer = post(client, {"model": "gpt2", **options, "compare_models": names, "detail": "layers"})
    assert [one["model"] for one in answer["models"]] == ["openai/gpt-oss-20b", "meta-llama/Llama-2-7b-hf"]
    for name, one in zip(names, answer["models"], strict=True):
        alone = post(client, {"model": name, **options})
        assert one == {member: alone[member] for member in one}
    assert answer["sizes"] == post(client, {"model": "gpt2", **options})["sizes"]


# --- how it is asked ----------------------------------------------------------------------------------------

EVERY_OPTION = {
    "tokens": [3, 100],
    "batch": 7,
    "shared_prefix_tokens": 3,
    "dtype": "float32",
    "k_dtype": "float16",
    "v_dtype": "bfloat16",
    "state_dtype": "float16",
    "tensor_parallel": 5,
    "page_size": 13,
    "include_mtp": True,
    "engine": "vllm",
    "engine_options": {
        "max_num_batched_tokens": 17,
        "ubatch": 19,
        "parallel_slots": 2,
        "prefix_caching": False,
    },
    "memory_budget_bytes": 10**6,
    "gpu": {"memory_bytes": 10**7, "utilization": 0.75, "weight_bytes": 10**5, "overhead_bytes": 11},
    "detail": "layers",
    "encoder_tokens": 23,
    "compare_models": ["google/gemma-3-27b-it", "qwen2.5-0.5b"],
}
IN_URL = {
    **{name: value for name, value in EVERY_OPTION.items() if name not in ("gpu", "engine_options")},
    "tokens": "3,100",
    "include_mtp": "true",
    "compare_models": "google/gemma-3-27b-it,qwen2.5-0.5b",
    "max_num_batched_tokens": 17,
    "ubatch": 19,
    "parallel_slots": 2,
    "prefix_caching": "false",
    "gpu_memory_bytes": 10**7,
    "gpu_utilization": "0.75",
    "gpu_weight_bytes": 10**5,
    "gpu_overhead_bytes": 11,
}
ONE_RANK = {"tensor_parallel": 1}  # the compared models' heads do not divide by 5


def test_a_get_answers_as_the_same_post_with_every_option(client: FlaskClient) -> None:
    from service.schemas.kv_cache import KvCacheRequest

    assert {*EVERY_OPTION, "model", "config", "dims"} == KvCacheRequest.model_fields.keys()
    posted = post(client, {**EVERY_OPTION, **ONE_RANK, "model": "gpt2"})
    asked = read(client.get("/v1/kv-cache", query_string={**IN_URL, **ONE_RANK, "model": "gpt2"}))
    assert asked == posted
    terms = {term["name"]: term["bytes"] for term in asked["capacity"]["terms"]}
    assert (terms["not used"], terms["weights"], terms["overhead"]) == (-2_500_000, -(10**5), -11)
    assert asked["capacity"]["kv_budget_bytes"] == 10**6  # the budget, smaller than what the GPU has left


def test_every_parameter_is_read_to_where_it_belongs(client: FlaskClient) -> None:
    for name in IN_URL.keys() - {"include_mtp", "compare_models", "detail"}:
        response = client.get("/v1/kv-cache", query_string={"model": "gpt2", name: "what"})
        ((pointer, code),) = [one for one in faults(response) if one[0] != "/gpu/memory_bytes"] or [
            ("/gpu/memory_bytes", "wrong_type")
        ]
        nested = {"gpu": "/gpu/"}.get(name.partition("_")[0], "/engine_options/")
        whole = f"/{name}"
        assert pointer in (whole, f"{nested}{name.removeprefix('gpu_')}", "/tokens/0"), name
        assert code in ("wrong_type", "unknown_option"), name
    for value in ("True", "yes", "1", ""):
        response = client.get("/v1/kv-cache", query_string={"model": "gpt2", "include_mtp": value})
        assert faults(response) == [("/include_mtp", "wrong_type")]


def test_a_bare_config_as_the_body_answers_as_the_whole_request(client: FlaskClient) -> None:
    whole = post(client, {**EVERY_OPTION, **ONE_RANK, "config": MISTRAL})
    assert post(client, MISTRAL, {**IN_URL, **ONE_RANK}) == whole
    assert post(client, MISTRAL) == post(client, {"config": MISTRAL})
    named = {name: value for name, value in LLAMA.items() if name != "model_type"}
    assert post(client, {**named, "architectures": ["LlamaForCausalLM"]})["bytes_per_token"] == LLAMA_ROW
    csv_text = client.post("/v1/kv-cache", json=MISTRAL, query_string={"format": "csv", "tokens": "5,7"}).text
    assert [row["tokens"] for row in csv.DictReader(io.StringIO(csv_text))] == ["5", "7"]


def test_faults_of_a_bare_config_point_into_the_body_as_it_is(client: FlaskClient) -> None:
    bad = {**LLAMA, "num_attention_heads": 0}
    assert faults(client.post("/v1/kv-cache", json=bad)) == [("/num_attention_heads", "out_of_range")]
    assert faults(client.post("/v1/kv-cache", json={"config": bad})) == [
        ("/config/num_attention_heads", "out_of_range")
    ]
    nested = {"model_type": "gemma3", "text_config": {**bad, "model_type": "gemma3_text"}}
    assert faults(client.post("/v1/kv-cache", json=nested)) == [
        ("/text_config/num_attention_heads", "out_of_range")
    ]


def test_what_a_whole_request_says_the_url_may_not_say_too(client: FlaskClient) -> None:
    response = client.post(
        "/v1/kv-cache", json={"config": LLAMA}, query_string={"tokens": 5, "gpu_memory_bytes": 1}
    )
    assert faults(response) == [("/tokens", "incompatible_options"), ("/gpu", "incompatible_options")]
    neither = client.post("/v1/kv-cache", json={"num_hidden_layers": 3})  # not said to be a config
    assert ("/num_hidden_layers", "unknown_field") in faults(neither)
    both = client.post("/v1/kv-cache", json=LLAMA, query_string={"model": "gpt2"})
    assert faults(both) == [("/config", "incompatible_options")]
    assert faults(client.post("/v1/kv-cache", json=LLAMA, query_string={"nope": 1})) == [
        ("/nope", "unknown_field")
    ]


@pytest.mark.parametrize(
    ("change", "pointer", "code"),
    [
        (
            {"dims": {"layers": 2, "heads": 7, "kv_heads": 3, "head_dim": 5}},
            "/dims/kv_heads",
            "not_divisible",
        ),
        ({"dims": {"layers": 2, "heads": 7, "kv_heads": 7}}, "/dims/head_dim", "missing_field"),
        (
            {"dims": {"layers": 2, "heads": 7, "kv_heads": 7, "head_dim": 3, "layer_types": ["none"]}},
            "/dims/layer_types",
            "pattern_length",
        ),
        (
            {"dims": {"layers": 1, "heads": 7, "kv_heads": 7, "head_dim": 3, "layer_types": ["linear"]}},
            "/dims/layer_types/0",
            "unknown_option",
        ),
        (
            {"dims": {"layers": 1, "heads": 7, "kv_heads": 7, "head_dim": 3, "mla": {"kv_lora_rank": 3}}},
            "/dims/mla/qk_rope_head_dim",
            "missing_field",
        ),
        ({"config": LLAMA, "tensor_parallel": 3}, "/tensor_parallel", "not_divisible"),
        ({"config": LLAMA, "k_dtype": "q8_0"}, "/k_dtype", "unsuitable_width"),
        ({"config": LLAMA, "dtype": "q8_0"}, "/dtype", "unsuitable_width"),
        ({"config": LLAMA, "dtype": "fp8_ds_mla"}, "/dtype", "unsuitable_dtype"),
        ({"config": LLAMA, "k_dtype": "auto"}, "/k_dtype", "unknown_option"),
        ({"config": LLAMA, "state_dtype": "int8"}, "/state_dtype", "unknown_option"),
        ({"config": LLAMA, "engine": "tgi"}, "/engine", "unknown_option"),
        ({"config": LLAMA, "engine_options": {"ubatch": 0}}, "/engine_options/ubatch", "out_of_range"),
        ({"config": LLAMA, "tokens": 3, "shared_prefix_tokens": 4}, "/shared_prefix_tokens", "out_of_range"),
        ({"config": LLAMA, "gpu": {}}, "/gpu/memory_bytes", "missing_field"),
        ({"config": LLAMA, "gpu": {"memory_bytes": 5, "utilization": 0}}, "/gpu/utilization", "out_of_range"),
        ({"config": LLAMA, "memory_budget_bytes": 2**53}, "/memory_budget_bytes", "out_of_range"),
        ({"config": LLAMA, "detail": "all"}, "/detail", "unknown_option"),
        ({"config": LLAMA, "compare_models": ["gpt2", "nope"]}, "/compare_models/1", "unknown_model"),
        ({"config": LLAMA, "compare_models": ["gpt2"] * 9}, "/compare_models", "out_of_range"),
        # 5 KV heads are divided over 5 ranks, the other model's 8 are not
        (
            {"config": LLAMA, "compare_models": ["llama-3-8b"], "tensor_parallel": 5},
            "/compare_models/0",
            "not_divisible",
        ),
        ({"config": []}, "/config", "wrong_type"),
        ({"config": {}}, "/config/num_hidden_layers", "missing_field"),
        ({"config": {**LLAMA, "num_hidden_layers": "7"}}, "/config/num_hidden_layers", "wrong_type"),
        ({"config": {**LLAMA, "num_hidden_layers": 7.0}}, "/config/num_hidden_layers", "wrong_type"),
        ({"config": {**LLAMA, "num_hidden_layers": 10**40}}, "/config/num_hidden_layers", "out_of_range"),
        ({"config": {**LLAMA, "compress_ratios": [4]}}, "/config/compress_ratios", "unsupported_cache"),
        ({"model": "t5-small", "tokens": 3}, "/encoder_tokens", "missing_field"),
        ({"model": "gpt2", "config": LLAMA}, "/config", "incompatible_options"),
        (
            {"config": LLAMA, "dims": {"layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 1}},
            "/dims",
            "incompatible_options",
        ),
    ],
)
def test_a_fault_names_its_place_and_a_stable_code(
    client: FlaskClient, change: dict[str, Any], pointer: str, code: str
) -> None:
    response = client.post("/v1/kv-cache", json=change)
    assert (pointer, code) in faults(response)
    assert re.match(r"[A-Z0-9].*\.$", response.get_json()["errors"][0]["detail"])


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"tokens": [1, 10**9], "batch": 10**6}, "/tokens/1"),
        ({"tokens": 10**9, "batch": 10**6}, "/tokens"),
        ({"tokens": 1, "batch": 10**6, "wide": True}, "/dims"),
    ],
)
def test_no_number_of_an_answer_needs_more_than_64_bits(
    client: FlaskClient, change: dict[str, Any], pointer: str
) -> None:
    dims = {"layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128}
    if change.pop("wide", False):
        dims = {"layers": 1000, "heads": 10**6, "kv_heads": 10**6, "head_dim": 10**6}
    assert faults(client.post("/v1/kv-cache", json={"dims": dims, **change})) == [(pointer, "out_of_range")]


def test_a_model_of_very_many_kinds_of_layers_is_not_sized_at_very_many_lengths(client: FlaskClient) -> None:
    config = {**LLAMA, "num_hidden_layers": 997}
    config |= {name: [*range(1, 998)] for name in ("num_attention_heads", "num_key_value_heads")}
    assert post(client, {"config": config, "tokens": [*range(1, 21)]})["sizes"]
    lengths = {"config": config, "tokens": [*range(1, 22)]}
    assert faults(client.post("/v1/kv-cache", json=lengths)) == [("/tokens", "out_of_range")]
    assert (
        client.post("/v1/kv-cache", json={"config": config}, query_string={"format": "svg"}).status_code
        == 200
    )


def test_what_a_config_says_is_never_echoed_in_an_error(client: FlaskClient) -> None:
    secret = "do-not-tell"
    for name in (*LLAMA, "sliding_window", "layer_types", "dtype", "text_config", "use_sliding_window"):
        for value in (secret, [secret], {secret: secret}, [secret] * 7):
            response = client.post("/v1/kv-cache", json={"config": {**LLAMA, name: value}})
            if response.status_code != 200:
                assert response.status_code == 422
                assert secret not in response.text, name


DEEP: Any = 1
for _ in range(150):
    DEEP = {"text_config": DEEP}


@pytest.mark.parametrize(
    "config",
    [
        DEEP,
        {"text_config": {"text_config": {"text_config": LLAMA}}},
        {"text_config": []},
        {**LLAMA, "layer_types": [[]] * 7},
        {**LLAMA, "layer_types": [{}] * 7},
        {**LLAMA, "layer_types": {"0": "full_attention"}},
        {**LLAMA, "model_type": 3},
        {**LLAMA, "model_type": ["a"]},
        {**LLAMA, "architectures": 3},
        {**LLAMA, "torch_dtype": {}},
        {**LLAMA, "num_key_value_heads": [5] * 6},
        {**LLAMA, "num_key_value_heads": [None] * 7},
        {**LLAMA, "quantization_config": 7},
        {**LLAMA, "head_dim": True},
        {**LLAMA, "head_dim": -1},
        {"": "", "model_type": "", "a" * 10_000: "b" * 10_000},
    ],
)
def test_no_config_is_ever_a_500(client: FlaskClient, config: Any) -> None:
    for query in ({}, {"format": "svg"}):
        response = client.post("/v1/kv-cache", json={"config": config}, query_string=query)
        assert response.status_code in (200, 422), response.text


def test_numbers_that_are_none_in_a_config_are_refused(client: FlaskClient) -> None:
    for number, status in (
        ("NaN", 422),
        ("Infinity", 422),
        ("1e400", 422),
        ("9" * 4000, 422),
        ("9" * 10_000, 400),
    ):
        raw = json.dumps({"config": LLAMA}).replace(
            '"num_hidden_layers": 7', f'"num_hidden_layers": {number}'
        )
        response = client.post("/v1/kv-cache", data=raw, content_type="application/json")
        assert response.status_code == status, (number[:9], response.text)
        elsewhere = json.dumps({"config": {**LLAMA, "vocab_size": 7}}).replace(
            '_size": 7', f'_size": {number}'
        )
        response = client.post("/v1/kv-cache?format=svg", data=elsewhere, content_type="application/json")
        assert response.status_code == (400 if status == 400 else 200), (number[:9], response.text)


def test_malformed_bodies_are_refused_as_everywhere(client: FlaskClient) -> None:
    for raw in (
        b"",
        b"{",
        b'{"model_type": "a", "model_type": "b"}',
        b"[" * 100_000,
        b'{"model_type": "\xff"}',
    ):
        response = client.post("/v1/kv-cache", data=raw, content_type="application/json")
        assert response.status_code == 400, raw[:40]
    assert client.post("/v1/kv-cache", data=b"null", content_type="application/json").status_code == 422
    assert client.post("/v1/kv-cache", data=b"{}", content_type="text/plain").status_code == 415


def test_what_is_wrong_with_a_body_is_told_before_what_stands_in_the_url(client: FlaskClient) -> None:
    def answer(raw: bytes) -> TestResponse:
        return client.post("/v1/kv-cache?tokens=5", data=raw, content_type="application/json")

    for raw in (b"{bad", b'{"model_type":"llama",', b""):
        assert answer(raw).status_code == 400
    response = answer(b'{"hidden_size":64}')
    assert response.status_code == 422
    assert "incompatible_options" not in {code for _, code in faults(response)}
    assert faults(answer(b'{"model":"llama-2-7b"}')) == [("/tokens", "incompatible_options")]


# What published configs say, some values exchanged for others
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=9,
)
_published = [
    json.dumps(config) for config in [*(case["config"] for case in MODELS), *(p.config for p in presets())]
]
_names = sorted({name for text in _published for name in json.loads(text)})


@st.composite
def _configs(draw: st.DrawFn) -> Any:
    config = json.loads(draw(st.sampled_from(_published)))
    inner = config.get("text_config", config)
    numbers = sorted(name for name, value in inner.items() if type(value) is int)
    for name in draw(st.lists(st.sampled_from(numbers), max_size=2)) if numbers else ():
        inner[name] = draw(st.integers(1, 300))
    for name in draw(st.lists(st.sampled_from(_names), max_size=1)):
        inner[name] = draw(_json | st.integers(0, 300))
    for name in draw(st.lists(st.sampled_from(sorted(inner)), max_size=1)):
        inner.pop(name, None)
    return config


def test_ten_thousand_configs_are_answered_or_refused_and_their_sizes_hold_together(
    client: FlaskClient,
) -> None:
    answered = [0]

    @settings(max_examples=10_000, suppress_health_check=list(HealthCheck), deadline=None, database=None)
    @given(
        config=_configs() | st.dictionaries(st.sampled_from(_names), _json, max_size=12),
        tokens=st.lists(st.integers(1, 10**6), min_size=2, max_size=2, unique=True).map(sorted),
        batch=st.integers(1, 97),
        engine=st.sampled_from(ENGINES),
        page_size=st.none() | st.integers(1, 300),
        budget=st.integers(0, 10**13),
    )
    def check(
        config: Any, tokens: list[int], batch: int, engine: str, page_size: int | None, budget: int
    ) -> None:
        body = {
            "config": config,
            "tokens": tokens,
            "batch": batch,
            "engine": engine,
            "page_size": page_size,
            "encoder_tokens": 7,
            "memory_budget_bytes": budget,
        }
        response = client.post("/v1/kv-cache", data=json.dumps(body), content_type="application/json")
        assert response.status_code in (200, 422), response.text
        if response.status_code == 422:
            assert all(pointer.startswith(("/config", "/tokens")) for pointer, _ in faults(response))
            return
        answered[0] += 1
        report = read(response)
        few, many = (size["batch_bytes"] for size in report["sizes"])
        assert few <= many
        assert all(size["batch_bytes"] == batch * size["per_sequence_bytes"] for size in report["sizes"])
        most = report["max_tokens"]["per_sequence"]
        assert (few <= budget) == (most is None or tokens[0] <= most)
        assert (many <= budget) == (most is None or tokens[1] <= most)
        for size, sequences in zip(report["sizes"], report["capacity"]["max_sequences"], strict=True):
            assert (size["batch_bytes"] <= budget) == (sequences is None or batch <= sequences)

    check()
    # A third, give or take; the others are refused, and a test of refusals alone would show little
    assert answered[0] > 2500


# --- formats ------------------------------------------------------------------------------------------------


def test_rows_and_csv_have_a_record_for_each_of_the_tokens_of_each_model(client: FlaskClient) -> None:
    query = {
        "model": "gpt2",
        "tokens": "1,1024",
        "compare_models": "llama-2-7b",
        "memory_budget_bytes": 2**30,
    }
    answer = read(client.get("/v1/kv-cache", query_string=query))
    rows = client.get("/v1/kv-cache.rows", query_string=query).get_json()
    assert [(row["model"], row["tokens"], row["batch_bytes"]) for row in rows] == [
        (one["model"], size["tokens"], size["batch_bytes"])
        for one in (answer, *answer["models"])
        for size in one["sizes"]
    ]
    assert [row["max_sequences"] for row in rows] == [*answer["capacity"]["max_sequences"], None, None]
    assert rows[1]["ideal_bytes"] == answer["sizes"][1]["bounds"]["ideal"]
    table = client.get("/v1/kv-cache.csv", query_string=query)
    assert table.content_type == "text/csv; charset=utf-8"
    assert table.headers["Content-Disposition"] == 'attachment; filename="kv-cache.csv"'
    records = list(csv.DictReader(io.StringIO(table.text)))
    assert records == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]
    counted = {"tokens", "replication", "max_sequences"}
    sizes = {name for name, value in rows[0].items() if isinstance(value, int)} - counted
    assert all("bytes" in name for name in sizes)


def test_the_ending_the_parameter_and_the_accept_header_name_the_format(client: FlaskClient) -> None:
    query = {"model": "gpt2", "tokens": 9}
    kinds = {
        "json": "application/json",
        "csv": "text/csv; charset=utf-8",
        "svg": "image/svg+xml",
        "png": "image/png",
    }
    for name, kind in kinds.items():
        assert client.get(f"/v1/kv-cache.{name}", query_string=query).content_type == kind
        asked = client.post("/v1/kv-cache", json=query, query_string={"format": name})
        assert asked.content_type == kind
        accepted = client.get("/v1/kv-cache", query_string=query, headers={"Accept": kind.partition(";")[0]})
        assert accepted.content_type == kind
    assert client.get("/v1/kv-cache.pdf", query_string=query).status_code == 404
    assert client.get("/v1/kv-cache", query_string=query, headers={"Accept": "text/html"}).status_code == 406
    assert faults(client.get("/v1/kv-cache.csv", query_string={**query, "format": "svg"})) == [
        ("/format", "incompatible_options")
    ]
    assert faults(client.get("/v1/kv-cache.svg", query_string={**query, "scale": "cubic"})) == [
        ("/scale", "unknown_option")
    ]


def drawn(client: FlaskClient, **query: Any) -> tuple[ET.Element, list[str]]:
    """The SVG and its texts."""
    response = client.get("/v1/kv-cache.svg", query_string=query)
    assert response.status_code == 200, response.text
    root = ET.fromstring(response.text)
    return root, [text.text or "" for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("scale", SCALES)
def test_a_picture_of_one_model_names_its_bounds_its_window_and_its_maximum(
    client: FlaskClient, scale: str
) -> None:
    _, texts = drawn(client, model="gpt-oss-20b", scale=scale, engine="vllm")
    for text in (
        "openai/gpt-oss-20b",
        "ideal",
        "vLLM reserves",
        "no sliding window",
        "the model's maximum, 131,072",
    ):
        assert text in texts
    assert ("window of 128 full" in texts) == (scale == "log")  # on a linear axis it lies in the corner
    _, plain = drawn(client, model="llama-2-7b", scale=scale)
    assert not {"ideal", "no sliding window"} & {*plain}  # one line has no need of a name


def test_a_picture_of_several_models_names_each_at_its_line(client: FlaskClient) -> None:
    names = ["openai/gpt-oss-20b", "meta-llama/Meta-Llama-3-8B", "google/gemma-3-27b-it"]
    for width in (320, 800):
        _, texts = drawn(client, model="llama-2-7b", compare_models=",".join(names), width=width)
        assert [texts.count(name) for name in ("meta-llama/Llama-2-7b-hf", *names)] == [1, 1, 1, 1]
        assert "4 models" in texts


def test_a_budget_is_drawn_with_what_fits(client: FlaskClient) -> None:
    _, texts = drawn(client, model="gpt-oss-20b", memory_budget_bytes=2**30, dtype="bfloat16")
    assert "budget 1 GiB: 43,562 tokens fit" in texts
    gpu = {"gpu_memory_bytes": 80 * 2**30, "gpu_weight_bytes": 54 * 2**30}
    _, texts = drawn(client, model="google/gemma-3-27b-it", **gpu)
    assert any(text.startswith("budget 18 GiB: ") for text in texts)


def test_axes_have_ticks_at_powers_of_two(client: FlaskClient) -> None:
    _, texts = drawn(client, model="llama-2-7b", tokens="1,4096")
    sizes = [re.fullmatch(r"(\d+) ([KMG])iB", text) for text in texts]
    found = [int(one[1]) * 1024 ** (1 + "KMG".index(one[2])) for one in sizes if one]
    assert len(found) >= 5
    assert all(size & (size - 1) == 0 for size in found)
    tokens = [int(text.replace(",", "")) for text in texts if re.fullmatch(r"[\d,]+", text)]
    assert {1, 4096} <= {*tokens}
    assert all(count & (count - 1) == 0 for count in tokens)


def test_a_line_stands_where_the_sizes_say(client: FlaskClient) -> None:
    """The dots' hints name tokens and bytes: on logarithmic axes, equal ratios are equal distances."""
    root, _ = drawn(client, model="llama-2-7b", tokens="16,256,4096")
    middles = {}
    for rect in root.iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and "tokens" in (title.text or ""):
            tokens = int(re.search(r"([\d,]+) tokens", title.text or "")[1].replace(",", ""))  # type: ignore[index]
            middles[tokens] = (float(rect.get("x", "")), float(rect.get("y", "")))
    (x0, y0), (x1, y1), (x2, y2) = (middles[tokens] for tokens in (16, 256, 4096))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert min(x1 - x0, y0 - y1) > 50


def test_pictures_are_as_wide_as_asked_the_same_bytes_each_time_and_carry_the_request(
    client: FlaskClient,
) -> None:
    query = {"model": "gpt-oss-20b", "width": 643, "engine": "llama.cpp"}
    first, again = (client.get("/v1/kv-cache.png", query_string=query).data for _ in range(2))
    assert first == again
    picture = Image.open(io.BytesIO(first))
    assert picture.width == 643
    about = json.loads(picture.text["Description"])  # type: ignore[attr-defined]
    assert about == {
        "model": "openai/gpt-oss-20b",
        "request": {"model": "gpt-oss-20b", "engine": "llama.cpp"},
    }
    svgs = [client.get("/v1/kv-cache.svg", query_string=query).data for _ in range(2)]
    assert svgs[0] == svgs[1]


def test_a_cache_of_no_bytes_is_nothing_to_draw(client: FlaskClient) -> None:
    dims = {"layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 1, "layer_types": ["none"]}
    assert post(client, {"dims": dims})["attention"] == "none"
    response = client.post("/v1/kv-cache", json={"dims": dims}, query_string={"format": "png"})
    assert faults(response) == [("", "nothing_to_draw")]


@pytest.mark.parametrize("scale", SCALES)
def test_a_window_that_the_shared_prefix_has_filled_is_not_marked(client: FlaskClient, scale: str) -> None:
    query = {"model": "gpt-oss-20b", "compare_models": "gpt2", "tokens": 4096, "scale": scale}
    for prefix, marked in ((0, True), (1874, False)):
        _, texts = drawn(client, **query, shared_prefix_tokens=prefix)
        assert any("a window is full" in text for text in texts) == marked


def test_every_preset_can_be_drawn(client: FlaskClient) -> None:
    presets = client.get("/v1/kv-cache/models").get_json()["models"]
    for preset in presets[::9]:
        query = {"model": preset["id"], "width": 400, "encoder_tokens": 100, "engine": "vllm"}
        assert client.get("/v1/kv-cache.svg", query_string=query).status_code == 200, preset["id"]


# --- presets ------------------------------------------------------------------------------------------------


def test_every_preset_can_be_asked_for_by_id_and_alias(client: FlaskClient) -> None:
    presets = read(client.get("/v1/kv-cache/models"), PresetsAnswer)["models"]
    assert len(presets) >= 60
    for preset in presets:
        needed = {"encoder_tokens": 7} if preset["fixed_bytes_per_sequence"] is None else {}
        for name in (preset["id"], preset["id"].upper(), *preset["aliases"]):
            answer = post(client, {"model": name, **needed})
            assert answer["model"] == preset["id"]
            for member in ("attention", "bytes_per_token", "bytes_per_token_beyond_window"):
                assert answer[member] == preset[member]
            known = [1] if preset["max_tokens"] is None else [1, preset["max_tokens"]]
            assert [size["tokens"] for size in answer["sizes"]] == known


def test_a_preset_is_shown_with_its_config(client: FlaskClient) -> None:
    listed = {one["id"]: one for one in client.get("/v1/kv-cache/models").get_json()["models"]}
    for name in ("openai/gpt-oss-20b", "openai%2Fgpt-oss-20b", "GPT-OSS-20B"):
        preset = read(client.get(f"/v1/kv-cache/models/{name}"), PresetAnswer)
        config = preset.pop("config")
        assert preset == listed["openai/gpt-oss-20b"]
    assert config["sliding_window"] == 128
    assert post(client, {"config": config})["bytes_per_token"] == preset["bytes_per_token"]
    assert client.get("/v1/kv-cache/models/nope").status_code == 404
    assert (preset["layers"], preset["heads"], preset["kv_heads"], preset["head_dim"]) == (24, 64, 8, 64)


def test_an_unknown_name_is_answered_with_those_that_resemble_it(client: FlaskClient) -> None:
    response = client.post("/v1/kv-cache", json={"model": "llama-2-7c"})
    assert faults(response) == [("/model", "unknown_model")]
    assert "llama-2-7b" in response.get_json()["detail"]


# --- whatever the loaded model's state ----------------------------------------------------------------------


def test_the_etag_follows_from_the_request_and_not_from_the_loaded_model(
    client: FlaskClient, make_app: MakeApp
) -> None:
    loaded = make_app().test_client()
    for path in ("/v1/kv-cache", "/v1/kv-cache.svg", "/v1/kv-cache/models", "/v1/kv-cache/models/gpt2"):
        query = {} if "models" in path else {"model": "gpt2"}
        first, other = (one.get(path, query_string=query) for one in (client, loaded))
        assert first.headers["ETag"] == other.headers["ETag"]
        again = client.get(path, query_string=query, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.data) == (304, b"")
    tags = {client.get(f"/v1/kv-cache?model={name}").headers["ETag"] for name in ("gpt2", "opt-125m")}
    assert len(tags) == 2


def test_it_is_answered_while_the_queue_is_full_and_while_the_model_hangs(make_app: MakeApp) -> None:
    app = make_app(max_in_flight=1, watchdog_seconds=0.01)
    engine, hanging = app.extensions["engine"], threading.Event()
    from service.engine import Deadline

    thread = threading.Thread(target=lambda: engine.run(lambda check: hanging.wait(20), Deadline.after(30)))
    with engine.admit():
        thread.start()
        wait_until(lambda: engine.hung)
        assert app.test_client().get("/health/ready").status_code == 503
        assert app.test_client().get("/v1/kv-cache?model=gpt2").status_code == 200
    hanging.set()
    thread.join()


def test_its_contract_names_the_errors_that_can_happen_and_no_others(client: FlaskClient) -> None:
    spec = yaml.safe_load(client.get("/openapi.yaml").text)

    def statuses(path: str, method: str) -> set[int]:
        found = {int(status) for status in spec["paths"][path][method]["responses"]}
        assert 401 in found  # where the instance has keys
        return found - {401}

    assert statuses("/v1/kv-cache", "post") == {200, 400, 406, 408, 413, 415, 422, 500, 504}
    assert statuses("/v1/kv-cache", "get") == {200, 304, 400, 406, 422, 500, 504}
    assert statuses("/v1/kv-cache.{name}", "get") == {200, 304, 400, 404, 422, 500, 504}
    assert statuses("/v1/kv-cache/models", "get") == {200, 304, 400, 422, 500}
    assert statuses("/v1/kv-cache/models/{id}", "get") == {200, 304, 400, 404, 422, 500}


def test_the_contract_takes_a_config_by_itself_and_its_options_in_the_url(client: FlaskClient) -> None:
    spec = client.get("/openapi.json").get_json()
    operation = spec["paths"]["/v1/kv-cache"]["post"]
    schema = {
        **operation["requestBody"]["content"]["application/json"]["schema"],
        "components": spec["components"],
    }
    validator = jsonschema.Draft202012Validator(schema)
    for body in (LLAMA, {"config": LLAMA}, {"model": "gpt2", "tokens": [1, 2]}):
        validator.validate(body)
    for body in ({}, {"num_hidden_layers": 3}, {"model": "gpt2", "model_type": "llama"}):
        assert not validator.is_valid(body)
        assert client.post("/v1/kv-cache", json=body).status_code == 422
    described = {one["name"]: one for one in operation["parameters"]}
    assert {*IN_URL, "format", "width", "scale", "spreadsheet"} == described.keys()
    assert not any(one["required"] for one in described.values())
    get = {one["name"]: one for one in spec["paths"]["/v1/kv-cache"]["get"]["parameters"]}
    assert [name for name, one in get.items() if one["required"]] == ["model"]
    assert get["gpu_utilization"]["schema"]["type"] == "number"
    assert "vllm" in get["engine"]["schema"]["enum"]
