"""KV-cache sizes against hand-worked figures, collected cases, and the real caches of transformers."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModel, FalconConfig, GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config

from attention_core import ShapeError
from attention_core.kv_cache import (
    BYTES_PER_ELEMENT,
    CacheModel,
    Dims,
    UnknownNameError,
    find_preset,
    head_bytes,
    human_bytes,
    kv_cache,
    layers,
    presets,
)

CASES = json.loads((Path(__file__).parents[1] / "cases/kv/models.json").read_text())
PLAIN = {case["model_id"]: case for case in CASES}
GQA = Dims(layers=3, heads=10, kv_heads=5, head_dim=7, v_head_dim=11, hidden_size=13)


def real_cache_bytes(
    config: PretrainedConfig, batch: int, tokens: int, dtype: torch.dtype, device: str
) -> int:
    """Bytes of the tensors in the cache that a forward pass of a model with random weights leaves behind."""
    with torch.device(device), torch.no_grad():
        model = AutoModel.from_config(config, dtype=dtype).eval()
        cache = model(torch.zeros(batch, tokens, dtype=torch.long), use_cache=True).cache
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# --- figures known from elsewhere ---


def test_llama_2_7b_in_float16_takes_half_a_mebibyte_a_token_and_two_gibibytes_at_its_maximum():
    report = kv_cache(find_preset("llama-2-7b").model(), tokens=4096, dtype="float16")
    assert report.bytes_per_token == 524_288
    assert report.sizes[0].per_sequence_bytes == 2 * 1024**3
    assert report.sizes[0].human == "2 GiB"
    assert report.formula == "32 layers × 32 KV heads × (128 + 128) × 2 bytes = 524,288 bytes per token"


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-2-7b-hf", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B-Instruct", "tiiuae/falcon-7b"]
)
def test_presets_give_the_collected_figures(name):
    expected, tokens = PLAIN[name]["expected"], PLAIN[name]["request"]["tokens"]
    report = kv_cache(find_preset(name).model(), tokens=tokens, dtype=PLAIN[name]["dtype"])
    assert report.bytes_per_token == expected["bytes_per_token"]
    assert report.bytes_per_token_beyond_window == expected["bytes_per_token_beyond_window"]
    assert report.fixed_bytes_per_sequence == expected["fixed_bytes_per_sequence"]
    sizes = {size.tokens: size.per_sequence_bytes for size in report.sizes}
    assert sizes[expected["at_tokens"]] == expected["bytes_at_tokens"]


def test_heads_that_are_wider_than_their_share_of_the_hidden_size_give_the_collected_figure():
    config, expected = PLAIN["Qwen/Qwen3-0.6B"]["config"], PLAIN["Qwen/Qwen3-0.6B"]["expected"]
    dims = Dims(
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        hidden_size=config["hidden_size"],
    )
    assert dims.heads * dims.head_dim != dims.hidden_size
    report = kv_cache(CacheModel.from_dims(dims), tokens=40_960, dtype="bfloat16")
    assert report.sizes[0].per_sequence_bytes == expected["bytes_at_tokens"]


# --- against the real thing ---

SMALL = [
    (
        LlamaConfig(
            vocab_size=17, hidden_size=30, num_hidden_layers=3, num_attention_heads=5, intermediate_size=11
        ),
        5,
        6,
    ),
    (GPT2Config(vocab_size=17, n_embd=30, n_layer=3, n_head=5), 5, 6),
    (
        Qwen2Config(
            vocab_size=17,
            hidden_size=60,
            num_hidden_layers=3,
            num_attention_heads=10,
            num_key_value_heads=5,
            intermediate_size=11,
        ),
        5,
        6,
    ),
    (
        FalconConfig(
            vocab_size=17, hidden_size=30, num_hidden_layers=3, num_attention_heads=5, multi_query=True
        ),
        1,
        6,
    ),
]


@pytest.mark.parametrize(
    ("config", "kv_heads", "head_dim"), SMALL, ids=["mha-llama", "mha-gpt2", "gqa", "mqa"]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sizes_are_those_of_a_small_models_real_cache(config, kv_heads, head_dim, dtype, request):
    dims = Dims(3, config.num_attention_heads, kv_heads, head_dim)
    report = kv_cache(CacheModel.from_dims(dims), tokens=7, dtype=dtype, batch=2)
    assert report.attention in request.node.callspec.id
    assert report.sizes[0].batch_bytes == real_cache_bytes(config, 2, 7, getattr(torch, dtype), "cpu")


@pytest.mark.parametrize("name", ["meta-llama/Llama-2-7b-hf", "Qwen/Qwen2.5-0.5B", "tiiuae/falcon-7b"])
def test_sizes_are_those_of_the_full_size_models_cache_without_its_numbers(name):
    known = dict(PLAIN[name]["config"])
    model_class = {"llama": LlamaConfig, "qwen2": Qwen2Config, "falcon": FalconConfig}[
        known.pop("model_type")
    ]
    preset = find_preset(name)
    size = kv_cache(preset.model(), tokens=509).sizes[0]
    config = model_class(**known)
    assert size.per_sequence_bytes == real_cache_bytes(config, 1, 509, getattr(torch, preset.dtype), "meta")


# --- the report ---


def test_a_report_on_unequal_widths_and_types_is_worked_by_hand():
    # 3 layers × 5 KV heads × (7 × 1 + 11 × 2) = 15 × 29 = 435 bytes a token; 101 tokens 43,935, twice 87,870
    report = kv_cache(
        CacheModel.from_dims(GQA),
        tokens=[101, 1],
        dtype="float32",
        k_dtype="int8",
        v_dtype="float16",
        batch=2,
    )
    assert report.attention == "gqa"
    assert (report.dtype, report.dtype_source) == ("float32", "request")
    assert (report.k_dtype, report.v_dtype) == ("int8", "float16")
    assert report.bytes_per_token == report.bytes_per_token_beyond_window == 435
    assert report.fixed_bytes_per_sequence == 0
    assert [(s.tokens, s.per_sequence_bytes, s.batch_bytes) for s in report.sizes] == [
        (101, 43_935, 87_870),
        (1, 435, 870),
    ]
    assert [s.human for s in report.sizes] == ["85.81 KiB", "870 B"]
    assert report.formula == "3 layers × 5 KV heads × (7 × 1 byte + 11 × 2 bytes) = 435 bytes per token"
    (group,) = report.groups
    assert (group.kind, group.layers, group.window, group.kv_heads) == ("full_attention", 3, None, 5)
    assert (group.k_dim, group.v_dim, group.bytes_per_token) == (7, 11, 435)
    assert report.assumptions == ()
    assert report.warnings == ()


def test_layers_that_differ_make_groups_whose_bytes_add_up():
    # 2 × 3 × (5 + 5) × 2 = 120, and 1 × 1 × (7 + 7) × 2 = 28
    wide, narrow = layers.Layer(3, 5, 5), layers.Layer(1, 7, 7)
    report = kv_cache(CacheModel((wide, narrow, wide), heads=3), dtype="float16", tokens=1)
    assert report.attention == "gqa"
    assert [(group.layers, group.bytes_per_token) for group in report.groups] == [(2, 120), (1, 28)]
    assert report.bytes_per_token == 148
    assert report.formula == (
        "2 layers × 3 KV heads × (5 + 5) × 2 bytes + 1 layer × 1 KV head × (7 + 7) × 2 bytes"
        " = 148 bytes per token"
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kind"), [(6, 6, "mha"), (6, 3, "gqa"), (6, 2, "gqa"), (6, 1, "mqa"), (1, 1, "mha")]
)
def test_the_kind_of_attention_follows_from_the_counts_of_heads(heads, kv_heads, kind):
    assert CacheModel.from_dims(Dims(2, heads, kv_heads, 4)).attention == kind


def test_the_comparison_changes_only_the_arrangement_of_keys_and_values():
    # Llama 2 7B: 32 × 256 × 2 = 16,384 bytes per KV head
    compare = kv_cache(find_preset("llama-2-7b").model()).compare
    assert {kind: rate.bytes_per_token for kind, rate in compare.items()} == {
        "mha": 32 * 16_384,
        "gqa": 8 * 16_384,
        "mqa": 16_384,
    }
    # Qwen2.5-0.5B: 24 × 128 × 2 = 6,144 bytes per KV head, 14 query heads, its own 2 KV heads
    report = kv_cache(find_preset("qwen2.5-0.5b").model())
    assert {kind: rate.bytes_per_token for kind, rate in report.compare.items()} == {
        "mha": 14 * 6_144,
        "gqa": 2 * 6_144,
        "mqa": 6_144,
    }
    assert not any("compare" in assumption for assumption in report.assumptions)


@pytest.mark.parametrize(("heads", "kv_heads", "assumed"), [(32, 32, 8), (71, 1, 8), (3, 3, 3)])
def test_a_model_without_grouped_heads_is_compared_with_a_stated_assumption(heads, kv_heads, assumed):
    report = kv_cache(CacheModel.from_dims(Dims(1, heads, kv_heads, 64)), dtype="int8")
    assert report.compare["gqa"].bytes_per_token == assumed * 128
    assert any(f"computed with {assumed} KV heads" in assumption for assumption in report.assumptions)


def test_every_default_that_was_taken_is_stated():
    report = kv_cache(CacheModel.from_dims(Dims(2, 6, 3, 5)))
    assert report.assumptions == (
        "v_head_dim not given: values are as wide as keys, 5",
        "no dtype given or known: bfloat16",
        "the model's longest context is not known: sizes for 1 token only",
    )
    assert (report.dtype, report.dtype_source) == ("bfloat16", "assumed")
    assert [size.tokens for size in report.sizes] == [1]


def test_an_assumed_type_is_not_mentioned_where_it_is_not_used():
    report = kv_cache(CacheModel.from_dims(GQA), tokens=1, k_dtype="int8", v_dtype="int8")
    assert report.assumptions == ()


def test_a_preset_brings_its_type_and_its_longest_context():
    report = kv_cache(find_preset("meta-llama/Llama-3.1-8B").model())
    assert (report.model, report.dtype, report.dtype_source) == (
        "meta-llama/Llama-3.1-8B",
        "bfloat16",
        "model",
    )
    assert [size.tokens for size in report.sizes] == [1, 131_072]
    assert report.sizes[1].human == "16 GiB"
    assert report.assumptions == ()


def test_more_tokens_than_the_model_takes_are_computed_with_a_warning():
    report = kv_cache(find_preset("gpt2").model(), tokens=[1024, 1025])
    assert report.warnings == ("1,025 tokens are more than the model's maximum of 1,024",)


@given(
    st.builds(
        lambda layers, group, kv, k, v: Dims(layers, group * kv, kv, k, v),
        *(st.integers(1, 12) for _ in range(5)),
    ),
    st.integers(1, 10**9),
    st.integers(1, 1000),
    st.sampled_from(sorted(BYTES_PER_ELEMENT)),
)
def test_size_is_proportional_to_tokens_and_batch_and_between_one_head_and_all(dims, tokens, batch, dtype):
    report = kv_cache(CacheModel.from_dims(dims), tokens=tokens, batch=batch, dtype=dtype)
    (size,) = report.sizes
    assert size.per_sequence_bytes == tokens * report.bytes_per_token
    assert size.batch_bytes == batch * size.per_sequence_bytes
    assert sum(group.bytes_per_token for group in report.groups) == report.bytes_per_token
    mqa, mha = (report.compare[kind].bytes_per_token for kind in ("mqa", "mha"))
    assert mqa <= report.bytes_per_token <= mha
    assert report.compare[report.attention].bytes_per_token == report.bytes_per_token


# --- units ---


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1018, "1018 B"),
        (1023, "1 KiB"),  # 0.999 KiB, to two decimals
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (402_653_184, "384 MiB"),
        (2**30 - 1, "1 GiB"),
        (2**31, "2 GiB"),
        (10**9, "953.67 MiB"),
        (3 * 2**40, "3 TiB"),
        (2**50, "1 PiB"),
        (2**60, "1 EiB"),
        (5000 * 2**60, "5000 EiB"),
    ],
)
def test_sizes_are_written_in_powers_of_1024(size, text):
    assert human_bytes(size) == text


@given(st.integers(0, 2**70))
def test_a_written_size_is_within_half_a_hundredth_of_its_unit(size):
    number, unit = human_bytes(size).split()
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert abs(Fraction(number) * scale - size) <= Fraction(scale, 200)


def test_bytes_of_an_element_are_exact_and_those_of_pytorch():
    for name, size in BYTES_PER_ELEMENT.items():
        assert isinstance(size, Fraction)
        dtype = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(name, name)
        assert size == getattr(torch, dtype).itemsize


def test_a_head_that_does_not_fill_whole_bytes_is_refused(monkeypatch):
    monkeypatch.setattr(layers, "BYTES_PER_ELEMENT", {"nibble": Fraction(1, 2)})
    assert head_bytes(6, "nibble") == 3
    with pytest.raises(
        ShapeError, match=r"head width: expected whole bytes in nibble, got 7 elements = 7/2 bytes"
    ):
        head_bytes(7, "nibble")


# --- presets ---


def test_every_preset_is_found_by_each_of_its_names_in_any_case():
    for preset in presets():
        for name in preset.names:
            assert find_preset(name) is preset
            assert find_preset(name.upper()) is preset


def test_no_name_means_two_presets():
    names = [name.lower() for preset in presets() for name in {n.lower() for n in preset.names}]
    assert len(names) == len(set(names))


def test_the_coder_of_half_a_billion_shares_the_sizes_of_its_base_model():
    assert find_preset("Qwen2.5-Coder-0.5B-Instruct").dims == find_preset("Qwen2.5-0.5B").dims


def test_all_sizes_of_qwen_are_there_with_their_instruct_variants():
    sizes = ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")
    assert all(find_preset(f"Qwen/Qwen2.5-{size}{kind}") for size in sizes for kind in ("", "-Instruct"))


def test_facts_of_a_preset_are_plausible_and_sourced():
    for preset in presets():
        assert preset.dtype in BYTES_PER_ELEMENT
        assert preset.max_tokens >= 1024
        assert preset.source.startswith(preset.id)
        year, month = preset.released.split("-")
        assert 2019 <= int(year) <= 2024
        assert 1 <= int(month) <= 12


def test_an_unknown_model_is_refused_with_close_names():
    with pytest.raises(
        UnknownNameError, match=r"model: unknown name 'lama-2-7b'; close names: llama-2-7b"
    ) as caught:
        find_preset("lama-2-7b")
    assert caught.value.what == "model"
    assert "llama-2-7b" in caught.value.close


def test_an_unknown_model_that_resembles_nothing_is_refused_without_a_hint():
    with pytest.raises(UnknownNameError, match=r"^model: unknown name ''$") as caught:
        find_preset("")
    assert caught.value.close == ()


# --- refusals ---


@pytest.mark.parametrize("field", ["layers", "heads", "kv_heads", "head_dim", "v_head_dim", "hidden_size"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, 2.0, "32"])
def test_a_count_that_is_no_positive_integer_is_refused(field, value):
    sizes = {"layers": 2, "heads": 6, "kv_heads": 3, "head_dim": 5, field: value}
    with pytest.raises(ShapeError, match=f"{field}: expected an integer of at least 1") as caught:
        Dims(**sizes)
    assert caught.value.what == field


def test_counts_of_heads_that_do_not_divide_and_absurd_depths_are_refused():
    with pytest.raises(ShapeError, match="kv_heads: expected a divisor of heads = 6, got 4"):
        Dims(2, 6, 4, 5)
    with pytest.raises(ShapeError, match="kv_heads: expected a divisor of heads = 6, got 12"):
        Dims(2, 6, 12, 5)
    with pytest.raises(ShapeError, match="layers: expected at most 1,000, got 1001"):
        Dims(1001, 6, 3, 5)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": [5, -1]}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"tokens": 2.0}, "tokens"),
        ({"tokens": []}, "number of tokens entries"),
        ({"batch": 0}, "batch"),
    ],
)
def test_tokens_and_batches_below_one_are_refused(options, what):
    with pytest.raises(ShapeError, match=f"{what}: expected an integer of at least 1"):
        kv_cache(CacheModel.from_dims(GQA), **options)


@pytest.mark.parametrize("field", ["dtype", "k_dtype", "v_dtype"])
def test_an_unknown_type_is_refused_with_close_names(field):
    with pytest.raises(UnknownNameError, match=f"^{field}: unknown name 'flaot16'") as caught:
        kv_cache(CacheModel.from_dims(GQA), **{field: "flaot16"})
    assert caught.value.what == field
    assert "float16" in caught.value.close


@pytest.mark.parametrize("name", ["", "auto"])
def test_only_the_overall_type_can_be_automatic(name):
    with pytest.raises(UnknownNameError, match=r"^k_dtype"):
        kv_cache(CacheModel.from_dims(GQA), k_dtype=name)
    with pytest.raises(UnknownNameError, match=r"^dtype"):
        head_bytes(5, name)
