"""The calculator beside the cache that transformers really fills, at full size on the meta device.

Engine `hf` must give the bytes of the tensors, with nothing left over, past the window where there is one. What the
ideal cache holds otherwise is the two conventions and nothing else: a window keeps one row more, a convolution one
column less.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attention_core.kv_cache import (
    CacheInputError,
    CacheModel,
    Layer,
    Preset,
    find_preset,
    kv_cache,
    presets,
    read_config,
)
from tests.real_cache import real_cache

# Types that transformers has no class for, and the type that keeps the same cache. The others are left to
# `test_presets_that_transformers_cannot_build`, by hand.
BUILT_AS = {
    "internlm2": {"model_type": "llama"},
    "kimi_k2": {"model_type": "deepseek_v3"},
    "mimo": {"model_type": "qwen2"},
}
# Worked by hand: bytes per token, and per sequence, in bfloat16.
#   Hunyuan-Large: 64 layers, of which every second owns K and V: 32 × 8 × (80 + 80) × 2
#   Nemotron-Super: 49 of 80 blocks attend: 49 × 8 × (128 + 128) × 2
#   MiniMax-Text-01: 10 layers attend, 10 × 8 × (128 + 128) × 2; 70 keep 64 matrices of 128 × 128 in bfloat16
BY_HAND = {
    "tencent/Tencent-Hunyuan-Large": (81_920, 0),
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": (200_704, 0),
    "MiniMaxAI/MiniMax-Text-01": (40_960, 146_800_640),
}
ENCODER_TOKENS = 53
FAMILIES = json.loads(resources.files("attention_core.kv_cache").joinpath("families.json").read_text())


def crosses(model: CacheModel) -> bool:
    return any(layer.kind == "cross_attention" for layer in model.layers)


def past_the_window(model: CacheModel, *, at_most: int) -> int:
    """A number of tokens at which every window is full, if that is not too many to run."""
    window = max((layer.window for layer in model.layers if layer.window), default=0)
    return window + 11 if 0 < window <= at_most else 37


def known(preset: Preset) -> bool:
    return preset.config["model_type"] in CONFIG_MAPPING or preset.config["model_type"] in BUILT_AS


def distinct() -> list[list[Preset]]:
    """Presets that transformers can build; those with the same layers together, of which one is built."""
    alike: dict[tuple[object, ...], list[Preset]] = defaultdict(list)
    for preset in presets():
        if known(preset):
            alike[(preset.config["model_type"], preset.model().layers)].append(preset)
    return list(alike.values())


def measured(config: dict[str, Any], model: CacheModel, tokens: int) -> int:
    config = config | BUILT_AS.get(str(config["model_type"]), {})
    return real_cache(config, tokens=tokens, encoder_tokens=ENCODER_TOKENS if crosses(model) else None).bytes


def calculated(model: CacheModel, tokens: int, engine: str) -> int:
    encoder = ENCODER_TOKENS if crosses(model) else None
    in_bfloat16 = replace(model, dtype="bfloat16")  # convolutions stay in the model's own type
    report = kv_cache(in_bfloat16, tokens=tokens, encoder_tokens=encoder, engine=engine)
    return report.sizes[0].per_sequence_bytes


@pytest.mark.parametrize("alike", distinct(), ids=lambda alike: alike[0].id)
def test_a_preset_has_the_bytes_of_the_cache_that_transformers_fills(alike: list[Preset]) -> None:
    model = alike[0].model()
    tokens = past_the_window(model, at_most=10**6)
    real = measured(dict(alike[0].config), model, tokens)
    assert calculated(model, tokens, "hf") == real
    assert calculated(model, tokens, "ideal") == real + sum(
        convention(layer, tokens) for layer in model.layers
    )


def convention(layer: Layer, tokens: int) -> int:
    """What the ideal cache keeps more of a layer than transformers does, in bfloat16."""
    more = 0
    if layer.keeps_rows and layer.hf_heads:  # Falcon's new decoder repeats K and V for every query head
        more -= tokens * (layer.hf_heads - layer.kv_heads) * (layer.k_dim + layer.v_dim) * 2
    elif layer.keeps_rows and layer.window and tokens >= layer.window:
        kept = layer.window - 1 if layer.hf_window is None else layer.hf_window or tokens
        row = layer.k_dim + layer.v_dim if layer.latent else layer.kv_heads * (layer.k_dim + layer.v_dim)
        more += (layer.window - min(kept, tokens)) * row * 2
    if layer.state and layer.state.hf_columns is None and layer.state.channels:
        more -= layer.state.channels * 2
    return more


def test_at_least_fifty_shapes_are_measured_and_every_other_preset_is_worked_by_hand() -> None:
    assert len(distinct()) >= 50
    assert {preset.id for preset in presets() if not known(preset)} == set(BY_HAND)


@pytest.mark.parametrize("name", BY_HAND)
def test_presets_that_transformers_cannot_build(name: str) -> None:
    report = kv_cache(find_preset(name).model(), tokens=1, dtype="bfloat16")
    assert (report.bytes_per_token, report.fixed_bytes_per_sequence) == BY_HAND[name]


# --- families that no preset has: the default config of their class ---


def family(config: Mapping[str, Any]) -> str:
    """The model_type of the text model, as `read_config` takes it."""
    inner = config.get("text_config", config)
    name = str(inner.get("model_type", config["model_type"]))
    return name if name.endswith("_to_text") else name.removesuffix("_text")


OF_PRESETS = {family(preset.config) for preset in presets()} | {
    str(preset.config["model_type"]) for preset in presets()
}


@pytest.mark.parametrize("name", sorted(set(FAMILIES["measured"]) - OF_PRESETS))
def test_a_family_without_preset_has_the_bytes_of_its_default_model(name: str) -> None:
    kind = f"{name}_text" if f"{name}_text" in CONFIG_MAPPING else name
    config = AutoConfig.for_model(kind).to_dict()
    model = read_config(config)
    assert family(config) == name
    tokens = past_the_window(model, at_most=10**6)
    assert calculated(model, tokens, "hf") == measured(config, model, tokens)
    assert not any("not compared" in warning for warning in model.warnings)


def test_a_type_that_was_never_compared_is_told() -> None:
    config = {"model_type": "nobody_knows", "num_hidden_layers": 3, "num_attention_heads": 5, "head_dim": 7}
    told = "model_type nobody_knows: read by its fields, not compared with a real cache"
    assert told in read_config(config).warnings
    assert told not in read_config(config | {"model_type": "llama"}).warnings


# --- fail closed ---

WRITERS = sorted(
    {
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
)
COMPARED = frozenset(FAMILIES["measured"] + FAMILIES["derived"])
NO_DEFAULT = frozenset({"gemma4_assistant"})  # its class has no default config that it accepts itself


@pytest.mark.parametrize("name", sorted({*WRITERS} - COMPARED - NO_DEFAULT))
def test_a_type_of_transformers_is_compared_or_told_or_refused(name: str) -> None:
    config = AutoConfig.for_model(name)
    try:
        model = read_config(config.to_dict())
    except CacheInputError:
        return
    text = config.get_text_config(decoder=True).model_type  # as transformers itself finds it
    names = {text, text.removesuffix("_text")}
    told = [warning for warning in model.warnings if warning.endswith("not compared with a real cache")]
    if names & COMPARED:
        assert not told
    else:
        (warning,) = told
        assert warning.removeprefix("model_type ").partition(":")[0] in names


def test_of_the_types_outside_the_list_many_are_refused_many_told_and_many_compared_by_their_text_model() -> (
    None
):
    outcomes: dict[str, int] = defaultdict(int)
    for name in {*WRITERS} - COMPARED - NO_DEFAULT:
        try:
            model = read_config(AutoConfig.for_model(name).to_dict())
        except CacheInputError:
            outcomes["refused"] += 1
        else:
            outcomes["told" if any("not compared" in w for w in model.warnings) else "compared"] += 1
    assert all(outcomes[outcome] >= 20 for outcome in ("refused", "told", "compared"))


# --- where transformers does otherwise than the config says ---


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("nemotron_h", "mamba_ssm_cache_dtype"),
        ("qwen3_next", "mamba_ssm_dtype"),
        ("qwen3_5_text", "mamba_ssm_dtype"),
    ],
)
def test_a_state_in_bfloat16_is_kept_in_float32_by_transformers_and_this_is_told(
    name: str, field: str
) -> None:
    config = AutoConfig.for_model(name).to_dict() | {field: "bfloat16"}
    model = read_config(config)
    states = sum(layer.state.elements for layer in model.layers if layer.state)
    assert states > 0
    assert measured(config, model, 37) - calculated(model, 37, "hf") == states * (4 - 2)
    told = "hf: transformers keeps recurrent states in float32, whatever the config says"
    assert told in kv_cache(model, tokens=37, dtype="bfloat16", engine="hf").warnings
