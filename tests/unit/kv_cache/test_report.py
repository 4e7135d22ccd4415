"""The answer as a whole: comparison, capacity, the formula in words, units, and sums over groups and layers."""

import re
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_core.kv_cache import (
    DTYPES,
    ENGINES,
    CacheInputError,
    CacheModel,
    CacheReport,
    Capacity,
    Dims,
    Gpu,
    Layer,
    MlaDims,
    find_preset,
    human_bytes,
    kv_cache,
    presets,
    read_config,
)

GQA = CacheModel.from_dims(Dims(3, 10, 5, 7, v_head_dim=11))


def compared(report: CacheReport) -> dict[str, int]:
    return {name: rate.bytes_per_token for name, rate in report.compare.items()}


# --- types and defaults ---


def test_every_default_that_was_taken_is_told():
    report = kv_cache(CacheModel.from_dims(Dims(2, 6, 3, 5)))
    told = " | ".join(report.assumptions)
    for what in ("v_head_dim", "bfloat16", "longest context", "compare.mla"):
        assert what in told
    assert (report.dtype, report.dtype_source) == ("bfloat16", "assumed")
    assert [size.tokens for size in report.sizes] == [1]


def test_nothing_is_told_of_defaults_that_were_not_needed():
    report = kv_cache(GQA, tokens=1, k_dtype="int8", v_dtype="int8")
    assert not any("bfloat16" in sentence for sentence in report.assumptions)
    assert len(set(report.assumptions)) == len(report.assumptions)
    assert report.warnings == ()


def test_a_model_brings_its_type_and_its_longest_context():
    report = kv_cache(find_preset("meta-llama/Llama-3.1-8B").model())
    assert report.model == "meta-llama/Llama-3.1-8B"
    assert (report.dtype, report.dtype_source) == ("bfloat16", "model")
    assert [(size.tokens, size.human) for size in report.sizes] == [(1, "128 KiB"), (131_072, "16 GiB")]


def test_sizes_keep_the_order_of_tokens_also_where_one_comes_twice():
    assert [size.tokens for size in kv_cache(GQA, tokens=[7, 1, 7, 3]).sizes] == [7, 1, 7, 3]


def test_human_renders_the_batch():
    report = kv_cache(GQA, tokens=101, batch=2, k_dtype="int8", v_dtype="float16")
    assert (report.sizes[0].batch_bytes, report.sizes[0].human) == (87_870, "85.81 KiB")


# --- comparison ---


def test_the_comparison_changes_only_the_arrangement_of_keys_and_values():
    # Llama 2 7B: 32 × 256 × 2 = 16,384 bytes a KV head; a latent row 32 × 576 × 2
    report = kv_cache(find_preset("llama-2-7b").model(), tokens=1)
    assert compared(report) == {"mha": 32 * 16_384, "gqa": 8 * 16_384, "mqa": 16_384, "mla": 36_864}
    # Qwen2.5-0.5B: 24 × 128 × 2 = 6,144 bytes a KV head, 14 query heads, its own 2 KV heads
    report = kv_cache(find_preset("qwen2.5-0.5b").model(), tokens=1)
    assert compared(report) == {"mha": 14 * 6_144, "gqa": 2 * 6_144, "mqa": 6_144, "mla": 24 * 576 * 2}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "own", "assumed"),
    [(35, 35, "mha", {"gqa", "mla"}), (35, 5, "gqa", {"mla"}), (35, 1, "mqa", {"gqa", "mla"})],
)
def test_what_a_model_lacks_is_compared_by_a_stated_assumption(heads, kv_heads, own, assumed):
    report = kv_cache(CacheModel.from_dims(Dims(3, heads, kv_heads, 7, v_head_dim=11)), dtype="float16")
    assert report.attention == own
    head = 3 * 18 * 2
    gqa = kv_heads if own == "gqa" else 8
    assert compared(report) == {"mha": 35 * head, "gqa": gqa * head, "mqa": head, "mla": 3 * 576 * 2}
    assert {
        name for name in compared(report) if any(f"compare.{name}" in s for s in report.assumptions)
    } == assumed
    told = " | ".join(report.assumptions)
    assert ("8 KV heads" in told) == ("gqa" in assumed)
    assert "512 + 64" in told


def test_fewer_heads_than_eight_are_grouped_as_they_are():
    report = kv_cache(CacheModel.from_dims(Dims(3, 6, 6, 7)), dtype="int8")
    assert compared(report)["gqa"] == 3 * 6 * 14
    assert any("6 KV heads" in sentence for sentence in report.assumptions)


def test_a_latent_model_is_compared_by_its_expanded_heads():
    # keys 11 + 5 wide, values 13, 6 heads, 3 layers; its own latent row 17 + 5
    model = read_config(
        {"model_type": "deepseek_v2", "num_hidden_layers": 3, "num_attention_heads": 6, "hidden_size": 66}
        | {"kv_lora_rank": 17, "qk_rope_head_dim": 5, "qk_nope_head_dim": 11, "v_head_dim": 13}
    )
    report = kv_cache(model, tokens=1, dtype="float16")
    head = 3 * (16 + 13) * 2
    assert report.attention == "mla"
    assert compared(report) == {"mha": 6 * head, "gqa": 6 * head, "mqa": head, "mla": 3 * 22 * 2}
    assert not any("compare.mla" in sentence for sentence in report.assumptions)


def test_mixed_heads_are_compared_layer_by_layer():
    wide, narrow = (
        Layer(heads=10, kv_heads=5, k_dim=7, v_dim=7),
        Layer(heads=12, kv_heads=2, k_dim=3, v_dim=5),
    )
    report = kv_cache(CacheModel((wide, narrow, Layer("none"))), tokens=1, dtype="int8")
    assert compared(report) == {
        "mha": 10 * 14 + 12 * 8,
        "gqa": 5 * 14 + 2 * 8,
        "mqa": 14 + 8,
        "mla": 2 * 576,
    }


def test_only_layers_that_keep_rows_are_compared():
    layer = Layer("sliding_attention", 10, 5, 7, 7, window=3)
    shared = Layer("sliding_attention", 10, 5, 7, 7, window=3, shared=True)
    report = kv_cache(CacheModel((layer, shared, layer)), tokens=100, dtype="int8", engine="vllm")
    assert compared(report) == {"mha": 2 * 140, "gqa": 2 * 70, "mqa": 2 * 14, "mla": 2 * 576}
    report = kv_cache(find_preset("openai/whisper-large-v3").model(), tokens=1, dtype="bfloat16")
    assert compared(report)["mha"] == report.bytes_per_token == 163_840


def test_the_comparison_keeps_the_types():
    report = kv_cache(
        CacheModel.from_dims(Dims(3, 10, 10, 32, v_head_dim=64)), tokens=1, k_dtype="q8_0", v_dtype="q4_0"
    )
    assert compared(report) == {
        "mha": 3 * 10 * (34 + 36),
        "gqa": 3 * 8 * (34 + 36),
        "mqa": 3 * (34 + 36),
        "mla": 3 * 576 * 34 // 32,
    }


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.id)
def test_a_models_own_arrangement_is_its_own_rate(preset):
    report = kv_cache(preset.model(), tokens=1, encoder_tokens=_encoder(preset.model()))
    if report.attention != "none":
        assert compared(report)[report.attention] == report.bytes_per_token
        assert compared(report)["mqa"] <= compared(report)["gqa"]
        assert list(report.compare) == ["mha", "gqa", "mqa", "mla"]


def _encoder(model: CacheModel) -> int | None:
    crossed = any(layer.kind == "cross_attention" for layer in model.layers)
    return 13 if crossed and model.encoder_tokens is None else None


# --- capacity ---


def capacity(model: CacheModel = GQA, **options: Any) -> Capacity:
    found = kv_cache(model, **{"tokens": 1, "dtype": "bfloat16"} | options).capacity
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("memory", "utilization", "usable"),
    [
        (10**18, 0.9, 9 * 10**17),  # in floats 900000000000000000 too, but not the next
        (10**17 + 10, 0.9, 9 * 10**16 + 9),
        (24 * 2**30, 0.9, 23_192_823_398),  # 23,192,823,398.4
        (10**17 + 10, Fraction(9, 10), 9 * 10**16 + 9),
        (1000, 0.29, 290),  # int(1000 * 0.29) is 290 as well
        (100, 0.29, 29),  # int(100 * 0.29) is 28
        (999, 1, 999),
        (999, 1.0, 999),
    ],
)
def test_the_used_part_of_a_gpu_is_exact(memory, utilization, usable):
    assert capacity(gpu=Gpu(memory, utilization)).kv_budget_bytes == usable


def test_what_is_left_of_a_gpu_is_itemised():
    found = capacity(gpu=Gpu(100_000, 0.9, weight_bytes=60_000, overhead_bytes=7_000))
    assert found.kv_budget_bytes == 23_000
    assert sum(term.bytes for term in found.terms) == 23_000
    amounts = {term.name: term.bytes for term in found.terms}
    assert sorted(amounts.values()) == [-60_000, -10_000, -7_000, 100_000]
    assert amounts["weights"] == -60_000
    assert amounts["overhead"] == -7_000
    assert Gpu(1).utilization == Fraction(9, 10)


def test_how_many_sequences_fit_is_told_for_every_length():
    # 540 bytes a token: 23,000 // 540 = 42, 23,000 // 5,400 = 4, 42 tokens 22,680, 43 tokens 23,220
    gpu = Gpu(100_000, 0.9, weight_bytes=60_000, overhead_bytes=7_000)
    found = capacity(tokens=[10, 1, 42, 43], gpu=gpu)
    assert found.max_sequences == (4, 42, 1, 0)
    assert not found.fits
    assert capacity(tokens=[10, 1, 42], gpu=gpu).fits
    assert not capacity(tokens=[10, 1, 42], batch=2, gpu=gpu).fits
    assert capacity(tokens=[10, 1], batch=4, gpu=gpu).fits


def test_sequences_on_each_rank_are_what_counts():
    found = capacity(tokens=[10], tensor_parallel=5, memory_budget_bytes=10_800)
    assert found.max_sequences == (10,)  # 1,080 bytes of each on a rank


def test_a_shared_prefix_leaves_room_for_more_sequences():
    # 540 × (6 + 4 B) bytes: 10,000 bytes hold B = 3, of whole sequences only 1
    assert capacity(tokens=10, shared_prefix_tokens=6, memory_budget_bytes=10_000).max_sequences == (3,)
    assert capacity(tokens=10, memory_budget_bytes=10_000).max_sequences == (1,)
    assert capacity(tokens=10, shared_prefix_tokens=10, memory_budget_bytes=5_400).max_sequences == (None,)


def test_where_nothing_is_left_nothing_fits_and_it_is_told():
    report = kv_cache(GQA, tokens=1, gpu=Gpu(1000, 0.9, weight_bytes=2000))
    assert report.capacity is not None
    assert report.capacity.kv_budget_bytes == 0
    assert report.capacity.max_sequences == (0,)
    assert not report.capacity.fits
    assert report.max_tokens is not None
    assert report.max_tokens.per_sequence == 0
    assert any("1,100 bytes" in warning for warning in report.warnings)


def test_a_budget_is_the_capacity_itself():
    found = capacity(memory_budget_bytes=5400)
    assert (found.kv_budget_bytes, found.max_sequences, found.fits) == (5400, (10,), True)
    assert [term.bytes for term in found.terms] == [5400]
    report = kv_cache(GQA, tokens=1, dtype="bfloat16", gpu=Gpu(6000, 0.9))
    assert report.max_tokens is not None
    assert report.max_tokens.per_sequence == 10


def test_a_cache_that_takes_nothing_fits_as_often_as_one_likes():
    found = capacity(CacheModel((Layer("none"),)), memory_budget_bytes=0)
    assert (found.max_sequences, found.fits) == ((None,), True)


@pytest.mark.parametrize("engine", ENGINES)
def test_only_vllm_has_blocks(engine):
    assert (capacity(engine=engine, memory_budget_bytes=10**6).vllm is None) == (engine != "vllm")


def test_vllm_counts_blocks_of_its_pages():
    # a block is 16 tokens × 540 bytes; 100,000 bytes hold 11 of them, 176 tokens; 33 tokens take 3 blocks, 11/3 × 33
    found = capacity(tokens=[16, 33], engine="vllm", memory_budget_bytes=100_000).vllm
    assert found is not None
    assert (found.block_size, found.num_gpu_blocks, found.kv_cache_tokens) == (16, 11, (176, 121))
    assert found.max_concurrency == (11.0, 11 / 3)
    assert found.log == (
        "GPU KV cache size: 176 tokens, Maximum concurrency for 16 tokens per request: 11.00x",
        "GPU KV cache size: 121 tokens, Maximum concurrency for 33 tokens per request: 3.67x",
    )


@pytest.mark.parametrize(
    ("gpu", "field"),
    [
        ({"memory_bytes": 0}, "memory_bytes"),
        ({"memory_bytes": True}, "memory_bytes"),
        ({"memory_bytes": 1.5}, "memory_bytes"),
        ({"memory_bytes": 9, "utilization": 0}, "utilization"),
        ({"memory_bytes": 9, "utilization": 1.01}, "utilization"),
        ({"memory_bytes": 9, "utilization": -0.5}, "utilization"),
        ({"memory_bytes": 9, "utilization": float("nan")}, "utilization"),
        ({"memory_bytes": 9, "utilization": float("inf")}, "utilization"),
        ({"memory_bytes": 9, "utilization": True}, "utilization"),
        ({"memory_bytes": 9, "utilization": "0.9"}, "utilization"),
        ({"memory_bytes": 9, "weight_bytes": -1}, "weight_bytes"),
        ({"memory_bytes": 9, "overhead_bytes": -1}, "overhead_bytes"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(gpu, field):
    with pytest.raises(CacheInputError) as caught:
        Gpu(**gpu)
    assert caught.value.place == ("gpu", field)


# --- the formula ---


@pytest.mark.parametrize(
    ("model", "options", "formula"),
    [
        (
            find_preset("llama-2-7b").model(),
            {},
            "32 layers × 32 KV heads × (128 + 128) × 2 bytes = 524,288 bytes per token",
        ),
        (
            GQA,
            {"k_dtype": "int8", "v_dtype": "float16"},
            "3 layers × 5 KV heads × (7 × 1 byte + 11 × 2 bytes) = 435 bytes per token",
        ),
        (
            CacheModel.from_dims(Dims(1, 1, 1, 32)),
            {"dtype": "q8_0"},
            "1 layer × 1 KV head × (32 + 32) × 17/16 bytes = 68 bytes per token",
        ),
        (
            find_preset("openai/gpt-oss-20b").model(),
            {},
            "12 sliding layers (window 128) × 8 KV heads × (64 + 64) × 2 bytes"
            " + 12 full layers × 8 KV heads × (64 + 64) × 2 bytes = 49,152 bytes per token",
        ),
        (
            CacheModel.from_dims(Dims(3, 7, 7, 29, mla=MlaDims(17, 5))),
            {"dtype": "float32"},
            "3 layers × (17 latent + 5 rotary) × 4 bytes = 264 bytes per token",
        ),
        (CacheModel((Layer("none"),)), {}, "no bytes per token"),
    ],
    ids=["mha", "two types", "blocks", "windows", "mla", "nothing"],
)
def test_the_formula_is_spelt_out(model, options, formula):
    assert kv_cache(model, tokens=1, **options).formula == formula


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        (
            "ai21labs/Jamba-v0.1",
            "4 layers × 8 KV heads × (128 + 128) × 2 bytes = 16,384 bytes per token;"
            " 28 Mamba layers × (8,192 channels × 3 columns × 2 bytes + 131,072 elements × 4 bytes)"
            " = 16,056,320 bytes per sequence",
        ),
        (
            "openai/whisper-large-v3",
            "32 layers × 20 KV heads × (64 + 64) × 2 bytes = 163,840 bytes per token;"
            " 32 cross-attention layers × 1,500 encoder tokens × 20 KV heads × (64 + 64) × 2 bytes"
            " = 245,760,000 bytes per sequence",
        ),
    ],
)
def test_the_formula_also_spells_out_what_is_constant(name, formula):
    assert kv_cache(find_preset(name).model(), tokens=1).formula == formula


def worked_out(sentence: str) -> tuple[Fraction, int]:
    """The two sides of `… = n bytes per …`, the left one calculated as it stands."""
    left, right = sentence.split(" = ")
    left = re.sub(r"\(window [\d,]+\)", "", left).replace(",", "")
    left = re.sub(r"\d+ bytes of \(.*?\) in \w+", lambda match: match[0].split()[0], left)
    left = re.sub(r"(?:(?<=[ -])|\b)(?:Mamba-2|RG-LRU|[A-Za-z][A-Za-z-]*)", "", left).replace("×", "*")
    assert re.fullmatch(r"[\d+*/() ]+", left), left
    number = int(right.split()[0].replace(",", ""))
    return eval(re.sub(r"\d+", r"Fraction(\g<0>)", left), {"Fraction": Fraction}), number


@pytest.mark.parametrize(
    "types", [{"dtype": "bfloat16"}, {"k_dtype": "fp8_per_token_head", "v_dtype": "int8"}], ids=str
)
@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.id)
def test_every_formula_comes_out_as_it_says(preset, types):
    model = preset.model()
    report = kv_cache(model, tokens=1, encoder_tokens=_encoder(model), include_mtp=True, **types)
    told = {"token": 0, "sequence": 0}
    for sentence in report.formula.split("; "):
        if sentence != "no bytes per token":
            value, number = worked_out(sentence)
            assert value == number
            told[sentence.rpartition(" ")[2]] = number
    assert told == {"token": report.bytes_per_token, "sequence": report.fixed_bytes_per_sequence}


def test_the_formula_of_fp8_ds_mla_comes_out_as_it_says():
    report = kv_cache(find_preset("deepseek-ai/DeepSeek-V3.2").model(), tokens=1, dtype="fp8_ds_mla")
    assert worked_out(report.formula) == (48_068, 48_068)


# --- groups and layers ---


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("preset", presets()[::3], ids=lambda preset: preset.id)
def test_groups_and_layers_add_up_to_the_whole(preset, engine):
    model = preset.model()
    options: dict[str, Any] = {"encoder_tokens": _encoder(model), "include_mtp": True, "batch": 2}
    report = kv_cache(model, tokens=[1, 37, 5000], engine=engine, layers=True, **options)
    layers, groups = report.layers, report.groups
    assert layers is not None
    assert [layer.index for layer in layers] == list(range(len(model.layers) + len(model.mtp_layers)))
    for parts in (layers, groups):
        assert sum(part.bytes_per_token for part in parts) == report.bytes_per_token
        assert sum(part.fixed_bytes_per_sequence for part in parts) == report.fixed_bytes_per_sequence
    beyond = sum(part.bytes_per_token for part in layers if part.window is None)
    assert beyond == report.bytes_per_token_beyond_window
    assert sum(group.layers for group in groups) == len(layers)
    for at, size in enumerate(report.sizes):
        assert sum(layer.sizes_bytes[at] for layer in layers) == size.per_sequence_bytes


def test_layers_are_listed_if_asked_for():
    assert kv_cache(GQA, tokens=1).layers is None
    report = kv_cache(find_preset("openai/gpt-oss-20b").model(), tokens=[1, 1000], layers=True)
    assert report.layers is not None
    assert [layer.kind for layer in report.layers[:2]] == ["sliding_attention", "full_attention"]
    assert [layer.window for layer in report.layers[:2]] == [128, None]
    assert [layer.sizes_bytes for layer in report.layers[:2]] == [(2048, 128 * 2048), (2048, 1000 * 2048)]


def test_a_group_says_what_its_layers_are():
    report = kv_cache(GQA, tokens=1, k_dtype="int8", v_dtype="float16")
    (group,) = report.groups
    assert (group.kind, group.layers, group.window, group.kv_heads) == ("full_attention", 3, None, 5)
    assert (group.k_dim, group.v_dim, group.bytes_per_token) == (7, 11, 435)


def test_a_report_becomes_a_plain_dictionary():
    report = kv_cache(find_preset("openai/gpt-oss-20b").model(), layers=True, gpu=Gpu(2**34), engine="vllm")
    plain = asdict(report)
    assert plain["sizes"][0]["bounds"]["ideal"] == report.sizes[0].bounds.ideal
    assert plain["compare"]["mla"]["bytes_per_token"] == report.compare["mla"].bytes_per_token


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


def test_bytes_of_plain_elements_are_those_of_pytorch():
    names = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
    for name in ("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8"):
        assert DTYPES[name].row_bytes(7) == 7 * getattr(torch, names.get(name, name)).itemsize


def test_a_share_of_a_memory_is_rounded_down():
    # 0.9 × 11 = 9.9
    assert capacity(gpu=Gpu(11)).kv_budget_bytes == 9


@pytest.mark.parametrize(("budget", "left"), [(10**6, 10**6), (10**9, 9 * 10**6)])
def test_a_budget_and_a_gpu_together_leave_the_smaller(budget, left):
    model = CacheModel((Layer(heads=4, kv_heads=2, k_dim=5, v_dim=7),), dtype="bfloat16")
    report = kv_cache(model, tokens=1, memory_budget_bytes=budget, gpu=Gpu(10**7))
    assert report.capacity is not None
    assert report.max_tokens is not None
    assert report.capacity.kv_budget_bytes == left == sum(term.bytes for term in report.capacity.terms)
    assert report.max_tokens.per_sequence == report.capacity.max_sequences[0] == left // (2 * 12 * 2)
