"""Reading a config.json: every rule of the reference, each refusal with its place and code, each default told."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core.kv_cache import CacheInputError, Layer, find_preset, kv_cache, read_config
from attention_core.kv_cache.config import LATENT

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 7,
    "hidden_size": 78,
    "dtype": "bfloat16",
    "max_position_embeddings": 101,
}
SHORT = {
    "full_attention": "F",
    "sliding_attention": "S",
    "chunked_attention": "C",
    "cross_attention": "X",
    "mamba": "1",
    "mamba2": "2",
    "gated_delta_net": "D",
    "none": "-",
}
MAMBA = {"mamba_d_conv": 4, "mamba_d_state": 5, "mamba_expand": 2}
MAMBA2 = {
    "mamba_num_heads": 6,
    "mamba_head_dim": 5,
    "ssm_state_size": 7,
    "n_groups": 3,
    "conv_kernel": 4,
}
DELTA_NET = {
    "linear_num_key_heads": 3,
    "linear_key_head_dim": 5,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 4,
}


def llama(**fields: Any) -> dict[str, Any]:
    return LLAMA | fields


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def kinds(config: dict[str, Any]) -> str:
    """One letter a layer."""
    return "".join(SHORT[layer.kind] for layer in read_config(config).layers)


def only(config: dict[str, Any], kind: str = "full_attention") -> Layer:
    """The layer of that kind, where all are alike."""
    (layer,) = {layer for layer in read_config(config).layers if layer.kind == kind}
    return layer


def refused(config: dict[str, Any]) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(CacheInputError) as caught:
        read_config(config)
    return caught.value.place, caught.value.code


# --- where the fields are ---


def test_a_plain_config_is_read_without_any_assumption():
    model = read_config(LLAMA)
    assert model.layers == (Layer("full_attention", 6, 3, 7, 7),) * 5
    assert (model.dtype, model.max_tokens, model.encoder_tokens) == ("bfloat16", 101, None)
    assert (model.assumptions, model.warnings, model.mtp_layers) == ((), (), ())


@pytest.mark.parametrize("part", ["text_config", "language_config", "llm_config"])
def test_the_text_model_of_a_multimodal_one_is_read(part):
    towers = {
        "vision_config": {
            "num_hidden_layers": 2,
            "num_attention_heads": 0,
            "conv_kernel": 3,
            "hidden_size": -1,
        },
        "audio_config": {"num_hidden_layers": 3, "mamba_d_state": 5, "num_attention_heads": True},
    }
    config = {"model_type": "some_vlm", **towers, part: LLAMA}
    assert read_config(config).layers == read_config(LLAMA).layers
    assert refused({**config, part: llama(num_attention_heads=0)}) == (
        (part, "num_attention_heads"),
        "out_of_range",
    )


def test_the_text_model_may_lie_two_deep():
    config = {"model_type": "qwen2_5_omni", "thinker_config": {"audio_config": {}, "text_config": LLAMA}}
    assert read_config(config).layers == read_config(LLAMA).layers
    config["thinker_config"] = {"text_config": without(LLAMA, "num_hidden_layers")}
    assert refused(config) == (("thinker_config", "text_config", "num_hidden_layers"), "missing_field")


def test_a_null_text_config_is_none():
    assert read_config(llama(text_config=None)).layers == read_config(LLAMA).layers


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ({"dtype": "float16"}, {"dtype": "float32"}, "float16"),
        ({"torch_dtype": "float16"}, {"dtype": "float32"}, "float16"),
        ({}, {"torch_dtype": "float32"}, "float32"),
        ({"dtype": None, "torch_dtype": None}, {"dtype": "float32"}, "float32"),
        ({}, {}, None),
    ],
)
def test_the_type_is_the_text_models_else_the_whole_models(inner, outer, expected):
    config = {"model_type": "some_vlm", "text_config": without(LLAMA, "dtype") | inner, **outer}
    model = read_config(config)
    assert model.dtype == expected
    report = kv_cache(model, tokens=1)
    assert (report.dtype, report.dtype_source) == (
        (expected, "model") if expected else ("bfloat16", "assumed")
    )
    assert any("bfloat16" in sentence for sentence in report.assumptions) == (expected is None)


def test_null_is_as_good_as_absent():
    names = """
        sliding_window layer_types kv_lora_rank v_head_dim num_kv_shared_layers block_configs sliding_window_pattern
        hybrid_layer_pattern attn_layer_period full_attention_interval hybrid_override_pattern no_rope_layers
        use_sliding_window quantization_config
    """
    null = dict.fromkeys(names.split())
    assert read_config(llama(**null)) == read_config(LLAMA)
    assert refused(llama(num_hidden_layers=None)) == (("num_hidden_layers",), "missing_field")


# --- counts and their synonyms ---


@pytest.mark.parametrize("layers", ["num_hidden_layers", "n_layer", "num_layers"])
@pytest.mark.parametrize("heads", ["num_attention_heads", "n_head", "num_heads"])
@pytest.mark.parametrize("width", ["hidden_size", "n_embd", "d_model"])
@pytest.mark.parametrize("maximum", ["max_position_embeddings", "n_positions", "max_target_positions"])
def test_counts_have_several_names(layers, heads, width, maximum):
    model = read_config(
        {"model_type": "gpt2", layers: 5, heads: 6, width: 66, maximum: 101, "dtype": "float16"}
    )
    assert model.layers == (Layer("full_attention", 6, 6, 11, 11),) * 5
    assert model.max_tokens == 101


@pytest.mark.parametrize("name", ["num_key_value_heads", "num_kv_heads"])
def test_kv_heads_have_two_names(name):
    assert only(without(LLAMA, "num_key_value_heads") | {name: 2}).kv_heads == 2


def test_without_kv_heads_every_head_has_its_own_and_this_is_told():
    model = read_config(without(LLAMA, "num_key_value_heads"))
    assert {layer.kv_heads for layer in model.layers} == {6}
    assert any("num_key_value_heads" in sentence for sentence in model.assumptions)


def test_a_models_longest_context_may_be_unknown():
    model = read_config(without(LLAMA, "max_position_embeddings"))
    assert model.max_tokens is None
    report = kv_cache(model, memory_budget_bytes=10**6)
    assert [size.tokens for size in report.sizes] == [1]
    assert report.max_tokens is not None
    assert report.max_tokens.limited_by_model is None
    assert any("longest context" in sentence for sentence in report.assumptions)


def test_head_dim_is_the_configs_even_where_the_hidden_size_says_otherwise():
    assert only(LLAMA).k_dim == 7 != 78 // 6
    model = read_config(without(LLAMA, "head_dim"))
    assert {layer.k_dim for layer in model.layers} == {13}
    assert any("head_dim" in sentence for sentence in model.assumptions)
    assert read_config(llama(head_dim=None)) == model


def test_values_may_be_narrower_than_keys():
    layer = only(llama(v_head_dim=5))
    assert (layer.k_dim, layer.v_dim) == (7, 5)


def test_counts_of_heads_may_be_a_list_with_an_entry_for_each_layer():
    model = read_config(llama(num_attention_heads=[6, 6, 4, 6, 6], num_key_value_heads=[3, 0, 2, 1, 0]))
    assert [layer.kv_heads for layer in model.layers] == [3, 0, 2, 1, 0]
    assert [layer.kind for layer in model.layers] == [
        *("full_attention", "none", "full_attention", "full_attention", "none")
    ]
    assert kv_cache(model, tokens=1).bytes_per_token == (3 + 2 + 1) * 14 * 2
    config = llama(num_attention_heads=[6, 0, 6, 6, 6], num_key_value_heads=None)
    assert [layer.kv_heads for layer in read_config(config).layers] == [6, 0, 6, 6, 6]


@pytest.mark.parametrize(
    ("entries", "place", "code"),
    [
        ([3, 3, 3, 3], ("num_key_value_heads",), "pattern_length"),
        ([3, 3, 3, 3, -1], ("num_key_value_heads", 4), "out_of_range"),
        ([3, True, 3, 3, 3], ("num_key_value_heads", 1), "wrong_type"),
        ([3, 3, "3", 3, 3], ("num_key_value_heads", 2), "wrong_type"),
        ([3, 3, 3.0, 3, 3], ("num_key_value_heads", 2), "wrong_type"),
    ],
)
def test_a_list_of_heads_that_does_not_fit_is_refused(entries, place, code):
    assert refused(llama(num_key_value_heads=entries)) == (place, code)


# --- families of their own ---

FALCON = {"model_type": "falcon", "num_hidden_layers": 5, "num_attention_heads": 6, "hidden_size": 66}


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [
        ({"multi_query": True, "num_kv_heads": 6}, 1),  # what falcon-7b's num_kv_heads says is not so
        ({"multi_query": True, "new_decoder_architecture": False, "num_kv_heads": 6}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 3}, 3),
        ({"multi_query": False, "new_decoder_architecture": True, "num_kv_heads": 3}, 3),
        ({"multi_query": False, "num_kv_heads": 6}, 6),
    ],
)
def test_falcons_kv_heads_follow_its_switches(fields, kv_heads):
    assert only(FALCON | fields).kv_heads == kv_heads


@pytest.mark.parametrize(("multi_query", "kv_heads"), [(True, 1), (False, 6)])
def test_gpt_bigcode_has_one_kv_head_if_it_is_multi_query(multi_query, kv_heads):
    config = {
        "model_type": "gpt_bigcode",
        "n_layer": 5,
        "n_head": 6,
        "n_embd": 66,
        "multi_query": multi_query,
    }
    assert only(config).kv_heads == kv_heads


@pytest.mark.parametrize("family", ["falcon", "gpt_bigcode"])
def test_a_switch_that_had_to_be_assumed_is_told(family):
    model = read_config(FALCON | {"model_type": family})
    assert any("multi_query" in sentence for sentence in model.assumptions)


def test_multi_query_is_a_word_of_these_families_only():
    assert only(llama(multi_query=True)).kv_heads == 3


WHISPER = {
    "model_type": "whisper",
    "is_encoder_decoder": True,
    "d_model": 66,
    "encoder_layers": 3,
    "num_hidden_layers": 3,
    "decoder_layers": 5,
    "encoder_attention_heads": 11,
    "decoder_attention_heads": 6,
    "max_source_positions": 17,
    "max_target_positions": 23,
}


def test_whispers_decoder_is_read_and_not_its_encoder():
    model = read_config(WHISPER)
    assert kinds(WHISPER) == "FX" * 5
    assert {(layer.kv_heads, layer.k_dim, layer.v_dim) for layer in model.layers} == {(6, 11, 11)}
    assert (model.encoder_tokens, model.max_tokens) == (17, 23)
    assert refused(without(WHISPER, "decoder_layers"))[1] == "missing_field"


def test_whispers_encoder_tokens_are_told_where_they_were_not_asked_for():
    report = kv_cache(read_config(WHISPER), tokens=1)
    assert any("encoder_tokens" in sentence and "17" in sentence for sentence in report.assumptions)


def test_whispers_encoder_tokens_are_no_assumption_where_they_are_given():
    report = kv_cache(read_config(WHISPER), tokens=1, encoder_tokens=13)
    assert not any("encoder_tokens" in sentence for sentence in report.assumptions)


@pytest.mark.parametrize("name", ["num_key_value_heads", "decoder_num_key_value_heads"])
def test_a_decoder_that_groups_its_heads_does_so_in_both_attentions(name):
    model = read_config(WHISPER | {"model_type": "brand_new", name: 2})
    assert {layer.kv_heads for layer in model.layers} == {2}
    assert model.attention == "gqa"


T5 = {
    "model_type": "t5",
    "d_model": 64,
    "d_kv": 7,
    "num_layers": 3,
    "num_heads": 5,
    "is_encoder_decoder": True,
}


@pytest.mark.parametrize(
    ("fields", "layers"), [({"num_decoder_layers": 4}, 4), ({}, 3), ({"num_decoder_layers": None}, 3)]
)
def test_t5s_decoder_is_read_with_heads_of_its_own_width(fields, layers):
    config = T5 | fields
    assert kinds(config) == "FX" * layers
    # 5 × 7 is not 64
    assert {(layer.kv_heads, layer.k_dim, layer.v_dim) for layer in read_config(config).layers} == {(5, 7, 7)}


def test_a_decoder_as_deep_as_the_encoder_is_told_where_it_was_assumed():
    assert any("num_decoder_layers" in sentence for sentence in read_config(T5).assumptions)
    assert read_config(T5 | {"num_decoder_layers": 4}).assumptions == ()


def test_a_switch_of_cross_layer_sharing_that_had_to_be_assumed_is_told():
    model = read_config(llama(cla_share_factor=2))
    assert [layer.shared for layer in model.layers] == [False, True, False, True, False]
    assert any("use_cla" in sentence for sentence in model.assumptions)
    assert read_config(llama(cla_share_factor=2, use_cla=True)).assumptions == ()


def test_t5s_encoder_tokens_must_be_given():
    with pytest.raises(CacheInputError) as caught:
        kv_cache(read_config(T5), tokens=1)
    assert (caught.value.place, caught.value.code) == (("encoder_tokens",), "missing_field")
    report = kv_cache(read_config(T5), tokens=1, encoder_tokens=13, dtype="float32")
    assert report.fixed_bytes_per_sequence == 3 * 13 * 5 * 14 * 4


def test_encoder_tokens_of_a_model_without_cross_attention_are_answered_with_a_warning():
    report = kv_cache(read_config(LLAMA), tokens=1, encoder_tokens=13)
    assert report.fixed_bytes_per_sequence == 0
    assert any("encoder_tokens" in warning for warning in report.warnings)


# --- latent attention ---

MLA = llama(kv_lora_rank=17, qk_rope_head_dim=5, qk_nope_head_dim=11, v_head_dim=13, model_type="deepseek_v2")


def test_a_latent_rank_overrides_head_dim_and_kv_heads():
    model = read_config(MLA)
    assert model.attention == "mla"
    assert kv_cache(model, tokens=1).bytes_per_token == 5 * (17 + 5) * 2
    assert read_config(without(MLA, "head_dim")).layers == model.layers


def test_a_latent_rank_without_its_rotary_part_is_refused():
    assert refused(without(MLA, "qk_rope_head_dim")) == (("qk_rope_head_dim",), "missing_field")
    assert refused(MLA | {"kv_lora_rank": 0}) == (("kv_lora_rank",), "out_of_range")


@pytest.mark.parametrize("family", sorted(LATENT))
def test_a_latent_family_without_its_rank_is_refused_and_not_counted_by_its_heads(family):
    assert refused(llama(model_type=family)) == (("kv_lora_rank",), "missing_field")


def test_a_latent_family_that_says_it_keeps_no_latent_is_read_by_its_heads():
    # as DeepSeek-OCR does: its own code then takes ordinary attention
    model = read_config(llama(model_type="deepseek_v2", use_mla=False, kv_lora_rank=None))
    assert model.layers == read_config(LLAMA).layers


def test_an_indexer_is_read():
    model = read_config(MLA | {"index_head_dim": 19, "index_n_heads": 2, "index_topk": 3})
    assert {layer.index_dim for layer in model.layers} == {19}
    assert kv_cache(model, tokens=1).bytes_per_token == 5 * (17 + 5 + 19) * 2


# --- widths of one kind of layer ---


def test_sliding_layers_may_have_heads_and_widths_of_their_own():
    config = llama(
        v_head_dim=5,
        swa_num_key_value_heads=2,
        swa_head_dim=11,
        swa_v_head_dim=13,
        sliding_window=17,
        hybrid_layer_pattern=[0, 1, 1, 0, 1],
    )
    full, sliding = only(config), only(config, "sliding_attention")
    assert (full.kv_heads, full.k_dim, full.v_dim, full.window) == (3, 7, 5, None)
    assert (sliding.kv_heads, sliding.k_dim, sliding.v_dim, sliding.window) == (2, 11, 13, 17)


def test_gemma_4s_full_layers_are_wider_and_keep_k_and_v_even_where_they_are_equal():
    config = llama(
        model_type="gemma4_text",
        global_head_dim=13,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=17,
        layer_types=["sliding_attention"] * 4 + ["full_attention"],
    )
    full, sliding = only(config), only(config, "sliding_attention")
    assert (full.kv_heads, full.k_dim, full.v_dim) == (1, 13, 13)
    assert (sliding.kv_heads, sliding.k_dim, sliding.v_dim) == (3, 7, 7)
    assert kv_cache(read_config(config), tokens=1).bytes_per_token == (26 + 4 * 3 * 14) * 2


# --- which layer is of which kind: eleven sources ---

LINEAR = "linear_attention"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {
                "layer_types": [
                    "full_attention",
                    "sliding_attention",
                    "chunked_attention",
                    LINEAR,
                    "full_attention",
                ]
            }
            | {"sliding_window": 17, "attention_chunk_size": 19, **DELTA_NET},
            "FSCDF",
            id="1 layer_types",
        ),
        pytest.param(
            {"hybrid_layer_pattern": [1, 0, 1, 1, 0], "sliding_window": 17},
            "SFSSF",
            id="2 hybrid_layer_pattern",
        ),
        pytest.param(
            {"model_type": "llama4_text", "no_rope_layers": [1, 0, 0, 1, 1], "attention_chunk_size": 19},
            "CFFCC",
            id="3 no_rope_layers",
        ),
        pytest.param(
            {"model_type": "llama4_text", "attention_chunk_size": 19, "num_hidden_layers": 9},
            "CCCFCCCFC",
            id="3 llama4 without",
        ),
        pytest.param(
            {"sliding_window_pattern": 3, "sliding_window": 17}, "SSFSS", id="4 sliding_window_pattern"
        ),
        pytest.param({"sliding_window_pattern": 1, "sliding_window": 17}, "FFFFF", id="4 pattern of one"),
        pytest.param(
            {"model_type": "gemma3_text", "sliding_window": 17, "num_hidden_layers": 13},
            "SSSSSFSSSSSFS",
            id="4 gemma3 without",
        ),
        pytest.param({"model_type": "gemma2", "sliding_window": 17}, "SFSFS", id="5 gemma2"),
        pytest.param({"model_type": "gpt_oss", "sliding_window": 17}, "SFSFS", id="5 gpt_oss"),
        pytest.param(
            {"model_type": "gemma3n_text", "sliding_window": 17, "num_hidden_layers": 11},
            "SSSSFSSSSFS",
            id="5 gemma3n",
        ),
        pytest.param(
            {"model_type": "jamba", "attn_layer_period": 3, "attn_layer_offset": 1, **MAMBA},
            "1F11F",
            id="6 jamba",
        ),
        pytest.param(
            {"model_type": "qwen3_next", "full_attention_interval": 2, **DELTA_NET}, "DFDFD", id="7 interval"
        ),
        pytest.param(
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-E*", **MAMBA2},
            "2F--F",
            id="8 letters",
        ),
        pytest.param(
            {
                "model_type": "nemotron-nas",
                "num_key_value_heads": None,
                "block_configs": [
                    {"attention": {"n_heads_in_group": 2, "no_op": False, "window_length": None}},
                    {"attention": {"n_heads_in_group": None, "no_op": True}},
                    {"attention": {"n_heads_in_group": 6, "window_length": 17}},
                    {"attention": {"replace_with_linear": True}},
                    {"attention": {"n_heads_in_group": 1}},
                ],
            },
            "F-S-F",
            id="9 block_configs",
        ),
        pytest.param(
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3, "sliding_window": 17},
            "FFFSS",
            id="10 qwen2",
        ),
        pytest.param(
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 17},
            "SSSSS",
            id="10 qwen3",
        ),
        pytest.param(
            {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 17}, "FFFFF", id="10 off"
        ),
        pytest.param({"model_type": "qwen3_moe", "sliding_window": 17}, "FFFFF", id="10 absent"),
        pytest.param({"model_type": "mistral", "sliding_window": 17}, "SSSSS", id="11 sliding_window"),
        pytest.param({"model_type": "mistral", "sliding_window": None}, "FFFFF", id="11 null"),
        pytest.param(
            {"model_type": "mimo", "attention_chunk_size": 19}, "FFFFF", id="a chunk size elsewhere"
        ),
        pytest.param({}, "FFFFF", id="nothing"),
    ],
)
def test_the_pattern_of_layers_is_read_from_its_source(fields, expected):
    config = llama(**fields)
    assert kinds(config) == expected
    windows = {layer.kind: layer.window for layer in read_config(config).layers if layer.window}
    assert windows == {
        kind: window
        for letter, kind, window in (("S", "sliding_attention", 17), ("C", "chunked_attention", 19))
        if letter in expected
    }


def test_the_groups_of_a_blocks_heads_give_its_kv_heads():
    config = llama(
        num_key_value_heads=None,
        block_configs=[{"attention": {"n_heads_in_group": group}} for group in (1, 2, 3, 6, 6)],
    )
    assert [layer.kv_heads for layer in read_config(config).layers] == [6, 3, 2, 1, 1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {
                "layer_types": ["full_attention"] * 4 + ["sliding_attention"],
                "hybrid_layer_pattern": [1, 0, 0, 0, 0],
            },
            "FFFFS",
            id="1 before 2",
        ),
        pytest.param(
            {"model_type": "gemma3_text", "layer_types": ["full_attention"] * 4 + ["sliding_attention"]}
            | {"sliding_window_pattern": 2},
            "FFFFS",
            id="1 before 4",
        ),
        pytest.param(
            {"model_type": "gemma2", "layer_types": ["sliding_attention"] + ["full_attention"] * 4},
            "SFFFF",
            id="1 before 5",
        ),
        pytest.param(
            {"model_type": "qwen2", "layer_types": ["sliding_attention"] + ["full_attention"] * 4}
            | {"use_sliding_window": True, "max_window_layers": 2},
            "SFFFF",
            id="1 before 10",
        ),
        pytest.param({"layer_types": ["full_attention"] * 5}, "FFFFF", id="1 before 11"),
        pytest.param(
            {"model_type": "llama4_text", "hybrid_layer_pattern": [1, 0, 0, 0, 0], "attention_chunk_size": 19}
            | {"no_rope_layers": [0, 0, 0, 0, 1]},
            "SFFFF",
            id="2 before 3",
        ),
        pytest.param(
            {"hybrid_layer_pattern": [1, 0, 0, 0, 0], "sliding_window_pattern": 2}, "SFFFF", id="2 before 4"
        ),
        pytest.param(
            {"model_type": "llama4_text", "no_rope_layers": [0, 0, 0, 0, 1], "attention_chunk_size": 19}
            | {"sliding_window_pattern": 2},
            "FFFFC",
            id="3 before 4",
        ),
        pytest.param({"model_type": "gemma2", "sliding_window_pattern": 3}, "SSFSS", id="4 before 5"),
        pytest.param(
            {"model_type": "gemma3_text", "sliding_window_pattern": 3}, "SSFSS", id="4 before 4's default"
        ),
        pytest.param(
            {"model_type": "gemma2", "attn_layer_period": 5, "attn_layer_offset": 0, **MAMBA},
            "SFSFS",
            id="5 before 6",
        ),
        pytest.param(
            {
                "attn_layer_period": 5,
                "attn_layer_offset": 0,
                **MAMBA,
                "full_attention_interval": 2,
                **DELTA_NET,
            },
            "F1111",
            id="6 before 7",
        ),
        pytest.param(
            {"full_attention_interval": 2, **DELTA_NET, "hybrid_override_pattern": "-----"},
            "DFDFD",
            id="7 before 8",
        ),
        pytest.param(
            {"hybrid_override_pattern": "*-*--"}
            | {"block_configs": [{"attention": {"n_heads_in_group": 2, "window_length": 3}}] * 5},
            "F-F--",
            id="8 before 9",
        ),
        pytest.param(
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}
            | {"block_configs": [{"attention": {"n_heads_in_group": 2}}] * 5},
            "FFFFF",
            id="9 before 10",
        ),
    ],
)
def test_of_two_sources_the_first_counts(fields, expected):
    assert kinds(llama(sliding_window=17, **fields)) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "llama4_text", "attention_chunk_size": 19},
        {"model_type": "gemma3_text", "sliding_window": 17},
        {"model_type": "gemma3n_text", "sliding_window": 17},
        {"model_type": "gemma2", "sliding_window": 17},
        {"model_type": "gpt_oss", "sliding_window": 17},
    ],
    ids=lambda fields: fields["model_type"],
)
def test_a_pattern_that_is_a_familys_default_is_told(fields):
    (sentence,) = read_config(llama(**fields)).assumptions
    assert "pattern" in sentence or "no_rope_layers" in sentence


def test_an_ignored_window_is_told():
    (sentence,) = read_config(llama(model_type="qwen2", sliding_window=17)).assumptions
    assert "use_sliding_window" in sentence
    assert read_config(llama(model_type="qwen2", sliding_window=None)).assumptions == ()


def test_recurrent_layers_have_the_sizes_of_their_config():
    # Mamba-1: 156 channels; Mamba-2: 30 + 42; gated DeltaNet: 30 + 42
    jamba = llama(model_type="jamba", attn_layer_period=5, attn_layer_offset=4, **MAMBA)
    assert kv_cache(read_config(jamba), tokens=1).fixed_bytes_per_sequence == 4 * (156 * 3 * 2 + 156 * 5 * 4)
    nemotron = llama(model_type="nemotron_h", hybrid_override_pattern="MM*--", **MAMBA2)
    assert kv_cache(read_config(nemotron), tokens=1).fixed_bytes_per_sequence == 2 * (72 * 3 * 2 + 210 * 4)
    qwen = llama(model_type="qwen3_next", full_attention_interval=5, **DELTA_NET)
    assert kv_cache(read_config(qwen), tokens=1).fixed_bytes_per_sequence == 4 * (72 * 3 * 2 + 210 * 4)


def test_falcon_h1_has_a_state_beside_k_and_v_in_every_layer():
    config = llama(
        model_type="falcon_h1",
        mamba_d_ssm=30,
        mamba_n_heads=6,
        mamba_d_head=5,
        mamba_d_state=7,
        mamba_n_groups=3,
        mamba_d_conv=4,
        mamba_expand=2,
    )
    report = kv_cache(read_config(config), tokens=1)
    assert report.bytes_per_token == 5 * 3 * 14 * 2
    assert report.fixed_bytes_per_sequence == 5 * (72 * 3 * 2 + 210 * 4)


@pytest.mark.parametrize("name", ["mamba_ssm_cache_dtype", "mamba_ssm_dtype"])
def test_the_configs_type_of_states_is_used(name):
    config = llama(model_type="nemotron_h", hybrid_override_pattern="M*---", **MAMBA2)
    report = kv_cache(read_config(config | {name: "bfloat16"}), tokens=1)
    assert report.fixed_bytes_per_sequence == 72 * 3 * 2 + 210 * 2
    assert not any("state" in sentence for sentence in report.assumptions)
    assert refused(config | {name: "int8"}) == ((name,), "unknown_option")


def test_a_state_whose_type_is_not_stated_is_in_float32_and_this_is_told():
    config = llama(model_type="nemotron_h", hybrid_override_pattern="M*---", **MAMBA2)
    report = kv_cache(read_config(config), tokens=1)
    assert any("float32" in sentence for sentence in report.assumptions)


def test_a_recurrent_layer_whose_sizes_are_missing_is_refused():
    config = llama(model_type="jamba", attn_layer_period=5, attn_layer_offset=4, **MAMBA)
    for name in MAMBA:
        assert refused(without(config, name)) == ((name,), "missing_field")
    assert refused(without(config, "attn_layer_offset")) == (("attn_layer_offset",), "missing_field")
    config = llama(model_type="qwen3_next", full_attention_interval=5, **DELTA_NET)
    for name in DELTA_NET:
        assert refused(without(config, name)) == ((name,), "missing_field")


def test_layers_of_multi_token_prediction_are_kept_apart():
    model = read_config(llama(num_nextn_predict_layers=2))
    assert len(model.layers) == 5
    assert model.mtp_layers == model.layers[:2]
    assert read_config(llama(num_nextn_predict_layers=0)).mtp_layers == ()


# --- refusals ---


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "missing_field"),
        (0, "out_of_range"),
        (-3, "out_of_range"),
        (10**30, "out_of_range"),
        (True, "wrong_type"),
        (False, "wrong_type"),
        (2.5, "wrong_type"),
        (2.0, "wrong_type"),
        ("32", "wrong_type"),
        ({}, "wrong_type"),
    ],
)
@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads"])
def test_a_required_count_that_is_none_is_refused(name, value, code):
    assert refused(llama(**{name: value})) == ((name,), code)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "out_of_range"),
        (-3, "out_of_range"),
        (True, "wrong_type"),
        (2.5, "wrong_type"),
        ("32", "wrong_type"),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        *("num_key_value_heads", "head_dim", "v_head_dim", "kv_lora_rank", "max_position_embeddings"),
        *("sliding_window", "attn_layer_period", "full_attention_interval"),
    ],
)
def test_a_count_that_is_there_must_be_one(name, value, code):
    config = llama(qk_rope_head_dim=5) if name == "kv_lora_rank" else LLAMA
    assert refused(config | {name: value}) == ((name,), code)


def test_a_hidden_size_that_heads_do_not_divide_is_refused_unless_head_dim_is_given():
    config = llama(hidden_size=79)
    assert only(config).k_dim == 7
    assert refused(without(config, "head_dim")) == (("hidden_size",), "not_divisible")
    assert refused(without(LLAMA, "head_dim", "hidden_size")) == (("hidden_size",), "missing_field")
    gpt2 = {"model_type": "gpt2", "n_layer": 5, "n_head": 6, "n_embd": 79}
    assert refused(gpt2) == (("n_embd",), "not_divisible")


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"] * 4},
        {"layer_types": ["full_attention"] * 6},
        {"layer_types": []},
        {"hybrid_override_pattern": ""},
        {"hybrid_layer_pattern": [0] * 4},
        {"no_rope_layers": [0] * 6, "model_type": "llama4_text", "attention_chunk_size": 19},
        {"hybrid_override_pattern": "****"},
        {"hybrid_override_pattern": "******"},
        {"block_configs": [{"attention": {"n_heads_in_group": 2}}] * 6},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_pattern_of_another_length_is_refused(fields):
    assert refused(llama(**fields)) == ((next(iter(fields)),), "pattern_length")


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"] * 4 + ["pooled_attention"]},
        {"layer_types": ["full_attention"] * 4 + [None]},
        {"layer_types": ["full_attention"] * 4 + [["full_attention"]]},
        {"hybrid_layer_pattern": [0, 1, 2, 0, 0]},
        {"hybrid_layer_pattern": [0, 1, [], 0, 0]},
        {"hybrid_layer_pattern": "01010"},
        {"no_rope_layers": [0, 0, 0, 0, 7], "model_type": "llama4_text", "attention_chunk_size": 19},
        {"hybrid_override_pattern": "M*-X*"},
        {"hybrid_override_pattern": ["M", "*", [], "-", "*"]},
        {"sliding_window_pattern": "LLXG"},
    ],
    ids=lambda fields: f"{next(iter(fields))}={next(iter(fields.values()))}",
)
def test_an_unknown_kind_of_layer_is_refused(fields):
    place, code = refused(llama(sliding_window=17, **MAMBA2, **fields))
    assert place[0] == next(iter(fields))
    assert code == "unknown_layer_kind"


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": "full"},
        {"layer_types": 5},
        {"layer_types": {"0": "full_attention"}},
        {"block_configs": [1, 2, 3, 4, 5]},
        {"use_sliding_window": "yes", "sliding_window": 17},
        {"text_config": 7},
        {"num_kv_shared_layers": 6},
        {"full_attn_idxs": "abc"},
        {"attn_layer_indices": "abc"},
        {"linear_attn_config": {"full_attn_layers": "abc"}},
        {"linear_attn_config": [1, 2]},
        {"num_nextn_predict_layers": 10**9},
        {"per_layer_config": [{}]},
        {"per_layer_config": {"1": 7}},
        {"block_types": []},
        {"sliding_window_pattern": ""},
        {"layers_block_type": []},
        {"num_key_value_heads": []},
        {"cross_attention_layers": [5]},
        {"attn_layer_indices": [0, 5]},
        {"linear_attn_config": {"full_attn_layers": [0]}},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_form_is_refused_at_its_place(fields):
    place, _ = refused(llama(**fields))
    assert place[0] == next(iter(fields))


def test_an_entry_of_an_indexers_list_that_is_none_is_refused():
    for entries in (["full", "half"] * 2 + ["full"], [["full"]] * 5, [True] * 5):
        place, code = refused(MLA | {"index_head_dim": 19, "indexer_types": entries})
        assert (place, code) == (("indexer_types",), "unknown_layer_kind")


@pytest.mark.parametrize(
    "fields",
    [
        {"compress_ratios": [4, 128, 0, 4, 0]},  # DeepSeek-V4
        {"compress_rates": {"a": 4}},
        {"index_kpool": 7},
        {"indexer_compress_ratio": 4},
        {"kv_source_layers": [0, 0, 1, 2, 3]},
        {"rwkv_head_size": 64},
        {"retention_heads": 4},
        {"lsh_attn_chunk_length": 64},
        {"mamba_d_state": 16},  # a state, and no pattern to say where
        {"conv_kernel": 4},
        {"linear_num_value_heads": 4},
    ],
    ids=lambda fields: next(iter(fields)),
)
@pytest.mark.parametrize("family", ["llama", "brand_new"])
def test_a_field_of_a_cache_that_is_not_modelled_is_refused_by_its_name(fields, family):
    (name,) = fields
    assert refused(llama(model_type=family, **fields)) == ((name,), "unsupported_cache")
    assert refused({"text_config": llama(**fields)}) == (("text_config", name), "unsupported_cache")
    with pytest.raises(CacheInputError, match=name):
        read_config(llama(**fields))


@pytest.mark.parametrize("family", ["rwkv", "xlstm"])
def test_a_family_whose_cache_is_not_modelled_is_refused(family):
    assert refused(llama(model_type=family)) == (("model_type",), "unsupported_cache")


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["float12", "", 16, ["float16"]])
def test_an_unknown_type_is_refused(name, value):
    config = without(LLAMA, "dtype") | {name: value}
    assert refused(config)[0] == (name,)
    assert refused({"text_config": config})[0] == ("text_config", name)


def test_a_model_as_deep_as_a_thousand_layers_is_read_and_no_deeper():
    assert len(read_config(llama(num_hidden_layers=1000)).layers) == 1000
    assert refused(llama(num_hidden_layers=1001)) == (("num_hidden_layers",), "out_of_range")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"layer_types": ["sliding_attention"] * 5}, "sliding_window"),
        ({"model_type": "gemma2"}, "sliding_window"),
        ({"sliding_window_pattern": 2}, "sliding_window"),
        ({"layer_types": ["chunked_attention"] * 5}, "attention_chunk_size"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0}, "sliding_window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 7}, "max_window_layers"),
    ],
)
def test_a_window_that_a_pattern_needs_must_be_there(fields, name):
    assert refused(llama(**fields)) == ((name,), "missing_field")


def test_a_thousand_layers_with_fields_of_their_own_are_read_in_a_moment():
    blocks = [{"attention": {"n_heads_in_group": 2, "window_length": 5}}] * 1000
    overrides = {"0" * index: {"head_dim": 5} for index in range(1000)}
    start = time.process_time()
    read_config(llama(num_hidden_layers=1000, block_configs=blocks, per_layer_config=overrides))
    assert time.process_time() - start < 1  # 0.05 s; quadratic, it was 4 s


def test_what_has_nothing_to_do_with_the_cache_is_not_looked_at():
    quaint = {
        "vocab_size": "many",
        "num_experts": -5,
        "num_experts_per_tok": None,
        "rope_scaling": {"type": [1]},
        "tie_word_embeddings": 7,
        "intermediate_size": 2.5,
    }
    assert read_config(llama(**quaint)) == read_config(LLAMA)


# --- warnings ---


def test_an_unknown_model_type_with_known_fields_is_computed_with_a_warning():
    model = read_config(llama(model_type="brand_new"))
    assert model.layers == read_config(LLAMA).layers
    assert any("brand_new" in warning for warning in model.warnings)
    nested = read_config({"model_type": "brand_new_vlm", "text_config": llama(model_type="brand_new_text")})
    assert any("brand_new" in warning for warning in nested.warnings)


def test_a_missing_model_type_is_told():
    model = read_config(without(LLAMA, "model_type"))
    assert any("model_type" in sentence for sentence in (*model.assumptions, *model.warnings))


@pytest.mark.parametrize("inside", [False, True])
def test_quantised_weights_carry_a_warning_and_change_nothing(inside):
    config = llama(quantization_config={"quant_method": "gptq", "bits": 4})
    model = read_config({"model_type": "some_vlm", "text_config": config} if inside else config)
    assert model.layers == read_config(LLAMA).layers
    assert any("quantised" in warning for warning in model.warnings)


def test_more_tokens_than_the_model_takes_are_computed_with_a_warning():
    report = kv_cache(read_config(LLAMA), tokens=[101, 102])
    (warning,) = report.warnings
    assert "102" in warning
    assert kv_cache(read_config(LLAMA), tokens=[1, 101]).warnings == ()


# --- anything at all ---

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 40)
    | st.floats(allow_nan=False)
    | st.text("MF*-LG01x", max_size=5)
    | st.sampled_from(
        [10**18, -(10**18), "full_attention", "sliding_attention", "linear_attention", "bfloat16"]
    ),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["0", "attention", "head_dim"]), inner, max_size=2)
    ),
    max_leaves=6,
)
NAMES = sorted({name for config in (WHISPER, T5, MLA, MAMBA, MAMBA2, DELTA_NET, LLAMA) for name in config} | {
    *("layer_types", "layers_block_type", "hybrid_layer_pattern", "no_rope_layers", "attention_chunk_size"),
    *("sliding_window", "sliding_window_pattern", "attn_layer_period", "attn_layer_offset", "block_types"),
    *("full_attention_interval", "hybrid_override_pattern", "block_configs", "use_sliding_window"),
    *("max_window_layers", "num_nextn_predict_layers", "num_kv_shared_layers", "cla_share_factor", "use_cla"),
    *("text_config", "vision_config", "linear_attn_config", "attn_type_list", "attn_layer_indices"),
    *("cross_attention_layers", "indexer_types", "index_head_dim", "index_topk_freq", "per_layer_config"),
    *("attn_config", "decoder", "full_attn_idxs", "lru_width", "conv1d_width", "conv_L_cache"),
    *("quantization_config", "is_encoder_decoder", "multi_query", "new_decoder_architecture"),
})  # fmt: skip
FAMILIES = [
    "llama",
    "gemma3",
    "gemma4",
    "jamba",
    "qwen2",
    "falcon",
    "falcon_h1",
    "whisper",
    "t5",
    "mamba",
    "zamba2",
]


T = TypeVar("T")


def attempt(call: Callable[[], T]) -> T | CacheInputError:
    try:
        return call()
    except CacheInputError as error:
        return error


@settings(max_examples=400)
@given(
    st.sampled_from([LLAMA, MLA, WHISPER, T5, {}]),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    st.sampled_from([*FAMILIES, None]),
)
def test_any_config_is_read_or_refused_at_a_place_within_it(base, fields, family):
    config = base | fields | ({"model_type": family} if family else {})
    model = attempt(lambda: read_config(config))
    if isinstance(model, CacheInputError):
        assert model.code
        assert model.place
        return
    report = attempt(lambda: kv_cache(model, tokens=[1, 50, 51], include_mtp=True))
    if isinstance(report, CacheInputError):
        assert report.place == ("encoder_tokens",)
        return
    sizes = [size.batch_bytes for size in report.sizes]
    assert 0 <= sizes[0] <= sizes[1] <= sizes[2]


def test_reading_a_config_leaves_it_as_it_was():
    config = find_preset("openai/gpt-oss-20b").config
    before = repr(config)
    read_config(config)
    assert repr(config) == before


# --- fields of less common families, and what is no decoder ---


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [
        ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"model_type": "chatglm", "multi_query_attention": False, "multi_query_group_num": 2}, 6),
        ({"num_attention_groups": 1}, 1),
        ({"n_kv_heads": 2}, 2),
        ({"attn_config": {"kv_n_heads": 2}}, 2),
    ],
    ids=["chatglm", "chatglm with all heads", "step", "n_kv_heads", "dbrx"],
)
def test_kv_heads_go_by_other_names(fields, kv_heads):
    assert only(without(LLAMA, "num_key_value_heads") | fields).kv_heads == kv_heads


def test_kv_heads_may_differ_from_layer_to_layer():
    config = without(LLAMA, "num_key_value_heads") | {"num_key_value_heads_per_layer": [6, 3, 2, 1, 0]}
    assert [layer.kv_heads for layer in read_config(config).layers] == [6, 3, 2, 1, 0]


def test_gpt_neos_kinds_are_a_list_with_repetitions():
    config = llama(attention_types=[[["global", "local"], 2], [["local"], 1]], window_size=11)
    assert kinds(config) == "FSFSS"
    assert {layer.window for layer in read_config(config).layers} == {None, 11}


@pytest.mark.parametrize(
    ("types", "code"),
    [
        ([[["global", "local"], 2]], "pattern_length"),
        ([[["global"], 10**9]], "wrong_type"),
        ([[["global"], True], [["global"], 4]], "wrong_type"),
        ([["global", 5]], "wrong_type"),
        ([[["global", "elsewhere"], 2], [["local"], 1]], "unknown_layer_kind"),
        (7, "wrong_type"),
    ],
)
def test_a_list_with_repetitions_that_does_not_fit_is_refused(types, code):
    assert refused(llama(attention_types=types)) == (("attention_types",), code)


@pytest.mark.parametrize(
    "family",
    [
        "rwkv",
        "rwkv7",
        "retnet",
        "gla",
        "hgrn2",
        "gated_deltanet",
        "delta_net",
        "xlstm",
        "linear_attn",
        "dots3_note_text",
    ],
)
def test_recurrent_families_that_are_not_modelled_are_refused_by_name(family):
    assert refused({"model_type": family, "num_hidden_layers": 5}) == (("model_type",), "unsupported_cache")
    assert refused(llama(model_type=family)) == (("model_type",), "unsupported_cache")


@pytest.mark.parametrize("field", ["expand_k", "expand_ratio", "feature_map", "mixer_types", "lightning_nh"])
def test_fields_of_recurrences_are_refused_by_name(field):
    assert refused(llama(model_type="nobody", **{field: 3})) == ((field,), "unsupported_cache")


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForPreTraining", "XForSequenceClassification"])
def test_what_writes_no_text_keeps_no_cache(name):
    config = llama(model_type="bert", architectures=[name])
    assert refused(config) == (("architectures", 0), "unsupported_cache")
    assert read_config(config | {"is_decoder": True}).layers
    assert read_config(config | {"architectures": ["BertLMHeadModel"]}).layers


def test_an_images_tokens_are_the_patches_of_every_tile_and_one_more_each():
    vision = {"image_size": 70, "patch_size": 14, "max_num_tiles": 3}
    text = llama(model_type="mllama_text_model", cross_attention_layers=[1, 3])
    model = read_config({"model_type": "mllama", "text_config": text, "vision_config": vision})
    assert model.encoder_tokens == 3 * (5 * 5 + 1)
    assert [layer.kind for layer in model.layers].count("cross_attention") == 2


@pytest.mark.parametrize("family", ["zamba", "zamba2"])
def test_zambas_attention_is_twice_as_wide_as_its_share(family):
    mamba = {"mamba_d_conv": 4, "mamba_d_state": 5, "mamba_expand": 2, "kv_channels": 13}
    mamba |= {"mamba_headdim": 4, "mamba_ngroups": 1} if family == "zamba2" else {}
    config = without(LLAMA, "head_dim") | mamba | {"model_type": family, "layers_block_type": ["hybrid"] * 5}
    layer = only(config)
    assert (layer.k_dim, layer.v_dim) == (2 * 78 // 6, 2 * 78 // 6)
    assert only(config | {"attention_head_dim": 11}).k_dim == 11


def test_gpt_neo_in_transformers_keeps_what_its_windows_no_longer_see():
    config = llama(model_type="gpt_neo", attention_types=[[["local"], 5]], window_size=11)
    sizes = {
        engine: kv_cache(read_config(config), tokens=101, engine=engine).sizes[0].per_sequence_bytes
        for engine in ("ideal", "hf")
    }
    row = 5 * 3 * (7 + 7) * 2
    assert sizes == {"ideal": 11 * row, "hf": 101 * row}


@pytest.mark.parametrize(("shared_k_and_v", "kv_heads"), [(True, 1), (False, 3), (None, 1)])
def test_gemma_4_has_other_kv_heads_only_where_k_serves_as_v(shared_k_and_v, kv_heads):
    config = llama(
        model_type="gemma4_text",
        layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"],
        sliding_window=11,
        global_head_dim=17,
        num_global_key_value_heads=1,
        attention_k_eq_v=shared_k_and_v,
    )
    sliding, full = read_config(config).layers[:2]
    assert (sliding.kv_heads, sliding.k_dim) == (3, 7)
    assert (full.kv_heads, full.k_dim, full.v_dim) == (kv_heads, 17, 17)
    assert refused(without(config, "global_head_dim")) == (("global_head_dim",), "missing_field")


def test_a_long_name_of_an_architecture_is_read_in_a_moment():
    started = time.monotonic()
    assert read_config(llama(architectures=["For" * 300_000])).layers
    assert time.monotonic() - started < 1


def test_a_list_of_kv_heads_says_more_than_one_number():
    config = llama(num_key_value_heads=3, num_key_value_heads_per_layer=[3, 3, 2, 1, 6])
    assert [layer.kv_heads for layer in read_config(config).layers] == [3, 3, 2, 1, 6]


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "RefinedWebModel", "multi_query": True},
        {"model_type": "gpt_refact", "multi_query": True},
        {"model_type": "hf_olmo", "multi_query_attention": True},
        {"model_type": "gpt2", "attention_head_type": "multiquery"},
    ],
)
def test_multi_query_switches_of_other_families_mean_one_kv_head(fields):
    assert only(without(LLAMA, "num_key_value_heads") | fields).kv_heads == 1


@pytest.mark.parametrize("name", ["n_head_kv", "num_multi_query_heads"])
def test_old_names_of_kv_heads_are_read(name):
    assert only(without(LLAMA, "num_key_value_heads") | {"model_type": "x", name: 2}).kv_heads == 2


@pytest.mark.parametrize("kv_heads", [4, 12])
def test_kv_heads_that_do_not_divide_the_heads_are_refused(kv_heads):
    assert refused(llama(num_key_value_heads=kv_heads)) == (("num_key_value_heads",), "not_divisible")


def test_a_switch_turns_latent_attention_off():
    latent = {"kv_lora_rank": 11, "qk_rope_head_dim": 3, "qk_nope_head_dim": 5, "v_head_dim": 7}
    assert only(llama(**latent)).latent is not None
    assert only(llama(**latent, use_mla=False)).latent is None


def test_a_window_that_stands_by_itself_is_told():
    told = "a sliding_window and no layer pattern: every layer slides"
    assert told in read_config(llama(model_type="mistral", sliding_window=11)).assumptions
    assert told not in read_config(llama(model_type="gemma2", sliding_window=11)).assumptions


@pytest.mark.parametrize(("family", "expected"), [("olmo3", "SSSFS"), ("vaultgemma", "SFSFS")])
def test_families_alternate_where_the_config_does_not_say_so(family, expected):
    assert kinds(llama(model_type=family, sliding_window=11)) == expected
