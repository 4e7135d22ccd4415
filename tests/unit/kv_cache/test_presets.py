"""The packaged models: their data file's schema, their names, and that every config can be read."""

import datetime
import json
import re
from importlib import resources

import pytest

from attention_core.kv_cache import UnknownNameError, find_preset, kv_cache, presets
from tests.unit.kv_cache.test_cases import MODELS

ENTRIES = json.loads(resources.files("attention_core.kv_cache").joinpath("presets.json").read_text())
IDS = [entry["id"] for entry in ENTRIES]

# Names that were there before configs were: users have them in their scripts
QWEN_SIZES = ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")
EARLIER = [
    "meta-llama/Llama-2-7b-hf",
    "llama-2-7b",
    "meta-llama/Llama-2-13b-hf",
    "llama-2-13b",
    "meta-llama/Llama-2-70b-hf",
    "llama-2-70b",
    "meta-llama/Meta-Llama-3-8B",
    "llama-3-8b",
    "meta-llama/Meta-Llama-3-70B",
    "llama-3-70b",
    "meta-llama/Llama-3.1-8B",
    "llama-3.1-8b",
    "meta-llama/Meta-Llama-3.1-8B",
    "tiiuae/falcon-7b",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-Coder-0.5B",
    "qwen2.5-coder-0.5b",
    "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    "qwen2.5-coder-0.5b-instruct",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-3B",
    "Qwen/Qwen2.5-3B-Instruct",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen2.5-14B",
    "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen2.5-32B",
    "Qwen/Qwen2.5-32B-Instruct",
    "Qwen/Qwen2.5-72B",
    "Qwen/Qwen2.5-72B-Instruct",
    "openai-community/gpt2",
    "openai/gpt2",
    "microsoft/phi-2",
]


def test_there_are_at_least_60():
    assert len(presets()) == len(ENTRIES) >= 60


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_an_entry_has_the_fields_of_the_schema(entry):
    assert set(entry) == {"id", "aliases", "config", "status", "source", "checked", "released"}
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry["id"]) or re.fullmatch(r"[\w.-]+", entry["id"])
    assert all(isinstance(alias, str) and alias.strip() == alias != "" for alias in entry["aliases"])
    assert isinstance(entry["config"], dict)
    assert entry["config"].get("model_type")
    assert entry["status"] in ("verified", "secondhand")
    assert len(entry["source"]) > 10
    checked = datetime.date.fromisoformat(entry["checked"])
    released = datetime.date.fromisoformat(entry["released"] + "-01")
    assert datetime.date(2019, 1, 1) <= released <= checked


def test_no_entry_names_a_machine_or_a_registry():
    text = json.dumps(ENTRIES)
    assert not re.search(r"/(work|tmp|home|root|mnt|usr|opt)/|site-packages|https?://", text)
    assert not re.search(r"pypi\.|pythonhosted|npmjs|proxy\.golang|crates\.io|\.internal\b|localhost", text)


def test_ids_are_unique_and_no_name_means_two_presets():
    names = [name for preset in presets() for name in {name.lower() for name in preset.names}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("preset", presets(), ids=IDS)
def test_a_preset_is_found_by_each_of_its_names_in_any_case_and_its_config_is_read(preset):
    assert preset.id.rpartition("/")[2] in preset.names
    for name in preset.names:
        assert find_preset(name) is find_preset(name.upper()) is find_preset(name.lower()) is preset
    model = preset.model()
    assert model.name == preset.id
    assert model.layers
    report = kv_cache(model, tokens=[1, 5000], encoder_tokens=13 if model.encoder_tokens is None else None)
    assert report.model == preset.id
    assert report.sizes[1].per_sequence_bytes >= report.sizes[0].per_sequence_bytes > 0


@pytest.mark.parametrize("name", EARLIER)
def test_a_name_of_before_is_still_found(name):
    assert find_preset(name)


def test_all_sizes_of_qwen_are_there_with_their_instruct_variants():
    for size in QWEN_SIZES:
        for kind in ("", "-Instruct"):
            assert find_preset(f"Qwen/Qwen2.5-{size}{kind}").config["model_type"] == "qwen2"
    assert (
        find_preset("Qwen2.5-Coder-0.5B-Instruct").model().layers
        == find_preset("Qwen2.5-0.5B").model().layers
    )


KNOWN = {name.lower() for preset in presets() for name in preset.names}


@pytest.mark.parametrize(
    "case", [case for case in MODELS if case["model_id"].lower() in KNOWN], ids=lambda c: c["model_id"]
)
def test_a_preset_gives_the_collected_figures(case):
    expected, request = case["expected"], case["request"]
    options = {name: request[name] for name in ("encoder_tokens",) if name in request}
    report = kv_cache(
        find_preset(case["model_id"]).model(), tokens=request["tokens"], dtype=case["dtype"], **options
    )
    assert report.bytes_per_token == expected["bytes_per_token"]
    assert report.bytes_per_token_beyond_window == expected["bytes_per_token_beyond_window"]
    assert report.fixed_bytes_per_sequence == expected["fixed_bytes_per_sequence"]
    assert report.sizes[0].per_sequence_bytes == expected["bytes_at_tokens"]


def test_all_families_of_caches_are_there():
    found = {preset.model().attention for preset in presets()}
    kinds = {layer.kind for preset in presets() for layer in preset.model().layers}
    assert found == {"mha", "gqa", "mqa", "mla", "none"}
    assert kinds >= {
        *("full_attention", "sliding_attention", "chunked_attention", "cross_attention", "none"),
        *("mamba", "mamba2", "gated_delta_net"),
    }
    assert any(layer.index_dim for preset in presets() for layer in preset.model().layers)
    assert any(layer.shared for preset in presets() for layer in preset.model().layers)
    assert any(layer.state and layer.kv_heads for preset in presets() for layer in preset.model().layers)


def test_an_unknown_model_is_refused_with_close_names():
    with pytest.raises(UnknownNameError, match=r"model: unknown name 'lama-2-7b'; close names: ") as caught:
        find_preset("lama-2-7b")
    assert caught.value.what == "model"
    assert "llama-2-7b" in caught.value.close


def test_an_unknown_model_that_resembles_nothing_is_refused_without_a_hint():
    with pytest.raises(UnknownNameError, match=r"^model: unknown name ''$") as caught:
        find_preset("")
    assert caught.value.close == ()
