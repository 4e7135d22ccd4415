"""What engines reserve: every cell of the table, below, at and above a window of 100, worked by hand."""

from typing import Any

import pytest

from attention_core.kv_cache import (
    ENGINES,
    CacheInputError,
    CacheModel,
    CacheReport,
    Dims,
    EngineOptions,
    Layer,
    State,
    kv_cache,
    read_config,
)

ROW = 3 * (5 + 7) * 2  # bytes: 3 KV heads, keys 5 and values 7 wide, bfloat16
FULL = Layer(heads=3, kv_heads=3, k_dim=5, v_dim=7)
SLIDING = Layer("sliding_attention", 3, 3, 5, 7, window=100)
CHUNKED = Layer("chunked_attention", 3, 3, 5, 7, window=100)
MAMBA2 = State.mamba2(d_inner=30, heads=6, head_dim=5, d_state=7, groups=3, kernel=4)
CHANNELS, ELEMENTS = 72, 210


def report(*layers: Layer, **options: Any) -> CacheReport:
    return kv_cache(CacheModel(layers), **{"dtype": "bfloat16"} | options)


def rows(layer: Layer, engine: str, tokens: int, **options: Any) -> int:
    (size,) = report(layer, engine=engine, tokens=tokens, **options).sizes
    assert size.per_sequence_bytes % ROW == 0
    return size.per_sequence_bytes // ROW


def test_these_are_all_engines():
    assert set(ENGINES) == {"ideal", "vllm", "llama.cpp", "hf", "no-swa"}


@pytest.mark.parametrize(
    ("engine", "tokens", "expected"),
    [
        ("ideal", 37, 37),
        ("no-swa", 37, 37),
        ("hf", 37, 37),
        ("vllm", 1, 16),
        ("vllm", 16, 16),
        ("vllm", 17, 32),
        ("llama.cpp", 1, 256),
        ("llama.cpp", 256, 256),
        ("llama.cpp", 257, 512),
    ],
)
def test_rows_of_a_full_layer(engine, tokens, expected):
    assert rows(FULL, engine, tokens) == expected


@pytest.mark.parametrize(
    ("engine", "tokens", "expected"),
    [
        ("ideal", 99, 99),
        ("ideal", 100, 100),
        ("ideal", 101, 100),
        ("no-swa", 99, 99),
        ("no-swa", 101, 101),
        ("no-swa", 5000, 5000),
        ("hf", 98, 98),
        ("hf", 99, 99),
        ("hf", 100, 99),
        ("hf", 5000, 99),
        # ceil(min(100 - 1 + 8192, T) / 16) + 1 pages of 16
        ("vllm", 1, 32),
        ("vllm", 99, 128),
        ("vllm", 101, 128),
        ("vllm", 5000, 5024),
        ("vllm", 8291, 8320),
        ("vllm", 100_000, 8320),
        # min(T, 100 + 512) up to a multiple of 256
        ("llama.cpp", 99, 256),
        ("llama.cpp", 512, 512),
        ("llama.cpp", 513, 768),
        ("llama.cpp", 100_000, 768),
    ],
)
def test_rows_of_a_sliding_layer(engine, tokens, expected):
    assert rows(SLIDING, engine, tokens) == expected


@pytest.mark.parametrize(
    ("engine", "tokens", "expected"),
    [("ideal", 99, 99), ("ideal", 101, 100), ("no-swa", 101, 101), ("hf", 101, 99), ("llama.cpp", 9999, 768)],
)
def test_rows_of_a_chunked_layer(engine, tokens, expected):
    assert rows(CHUNKED, engine, tokens) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (EngineOptions(max_num_batched_tokens=13), (-(-(99 + 13) // 16) + 1) * 16),
        (EngineOptions(max_num_batched_tokens=14), (-(-(99 + 14) // 16) + 1) * 16),
        (EngineOptions(ubatch=7, parallel_slots=3), 8320),  # another engine's
    ],
)
def test_vllms_window_follows_its_batched_tokens(options, expected):
    assert rows(SLIDING, "vllm", 100_000, engine_options=options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (EngineOptions(ubatch=156), 256),
        (EngineOptions(ubatch=157), 512),
        (EngineOptions(ubatch=56, parallel_slots=2), 256),
        (EngineOptions(ubatch=57, parallel_slots=2), 512),
        (EngineOptions(max_num_batched_tokens=7), 768),
    ],
)
def test_llama_cpps_window_follows_its_ubatch_and_slots(options, expected):
    assert rows(SLIDING, "llama.cpp", 100_000, engine_options=options) == expected


@pytest.mark.parametrize("field", ["max_num_batched_tokens", "ubatch", "parallel_slots"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0])
def test_options_of_an_engine_are_positive_whole_numbers(field, value):
    with pytest.raises(CacheInputError) as caught:
        EngineOptions(**{field: value})
    assert caught.value.place == ("engine_options", field)


def test_vllms_page_is_16_or_what_is_asked():
    assert rows(FULL, "vllm", 37, page_size=64) == 64
    assert rows(SLIDING, "vllm", 100_000, page_size=64) == (-(-8291 // 64) + 1) * 64
    assert any("page" in sentence for sentence in report(FULL, engine="vllm", tokens=1).assumptions)
    assert not any(
        "page" in sentence for sentence in report(FULL, engine="vllm", tokens=1, page_size=16).assumptions
    )


@pytest.mark.parametrize(
    ("engine", "constant"),
    [
        ("ideal", CHANNELS * 3 * 2 + ELEMENTS * 4),
        ("no-swa", CHANNELS * 3 * 2 + ELEMENTS * 4),
        ("vllm", CHANNELS * 3 * 2 + ELEMENTS * 4),
        ("llama.cpp", CHANNELS * 3 * 4 + ELEMENTS * 4),  # the convolution in float32 too
        ("hf", CHANNELS * 4 * 2 + ELEMENTS * 4),  # as many columns as the kernel has
    ],
)
def test_state_of_a_recurrent_layer(engine, constant):
    found = report(Layer("mamba2", state=MAMBA2), engine=engine, tokens=13)
    assert found.sizes[0].per_sequence_bytes == constant
    assert found.fixed_bytes_per_sequence == CHANNELS * 3 * 2 + ELEMENTS * 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("tokens", [99, 100, 101, 5000])
def test_an_engine_alters_nothing_but_the_sizes(engine, tokens):
    model = (FULL, SLIDING, CHUNKED, Layer("mamba2", state=MAMBA2))
    ideal, found = report(*model, tokens=tokens), report(*model, tokens=tokens, engine=engine, page_size=32)
    for name in ("attention", "dtype", "groups", "compare", "formula"):
        assert getattr(found, name) == getattr(ideal, name)
    assert found.bytes_per_token == 3 * ROW
    assert found.bytes_per_token_beyond_window == ROW
    assert found.fixed_bytes_per_sequence == 72 * 3 * 2 + 210 * 4
    # bounds: one sequence without pages, with and without windows
    (size,) = found.sizes
    assert size.bounds.ideal == (tokens + 2 * min(tokens, 100)) * ROW + 1272
    assert size.bounds.no_swa == 3 * tokens * ROW + 1272


def test_an_unknown_engine_is_refused():
    for name in ("sglang", "VLLM", ""):
        with pytest.raises(CacheInputError) as caught:
            report(FULL, tokens=1, engine=name)
        assert (caught.value.place, caught.value.code) == (("engine",), "unknown_option")


# --- what transformers does its own way ---

FALCON = {"model_type": "falcon", "num_hidden_layers": 2, "hidden_size": 84, "num_attention_heads": 12}


def test_transformers_broadcasts_k_and_v_to_every_head_of_falcons_new_decoder():
    model = read_config(FALCON | {"new_decoder_architecture": True, "num_kv_heads": 3})
    found = kv_cache(model, tokens=11, dtype="bfloat16", engine="hf")
    assert found.bytes_per_token == 2 * 3 * 14 * 2
    assert found.sizes[0].bounds.ideal == 11 * 2 * 3 * 14 * 2
    assert found.sizes[0].per_sequence_bytes == 11 * 2 * 12 * 14 * 2


def test_transformers_keeps_falcons_single_head_as_it_is():
    model = read_config(FALCON | {"multi_query": True, "num_kv_heads": 12})
    found = kv_cache(model, tokens=11, dtype="bfloat16", engine="hf")
    assert found.sizes[0].per_sequence_bytes == 11 * 2 * 1 * 14 * 2


def test_transformers_keeps_the_whole_window_of_mimo_v2_flash():
    model = read_config(
        {"model_type": "mimo_v2_flash", "num_hidden_layers": 3, "num_attention_heads": 8, "hidden_size": 56}
        | {"num_key_value_heads": 2, "head_dim": 7, "v_head_dim": 5, "swa_num_key_value_heads": 4}
        | {"swa_head_dim": 11, "swa_v_head_dim": 3, "sliding_window": 13, "sliding_window_size": 13}
        | {"hybrid_layer_pattern": [0, 1, 1]}
    )
    full, sliding = 2 * 12 * 2, 4 * 14 * 2
    for tokens, kept in ((12, 12), (13, 13), (14, 13), (99, 13)):
        found = kv_cache(model, tokens=tokens, dtype="bfloat16", engine="hf")
        assert found.sizes[0].per_sequence_bytes == tokens * full + 2 * kept * sliding


# --- what is told about settings that were assumed ---


def told(*layers: Layer, **options: Any) -> str:
    return "\n".join(report(*layers, tokens=500, **options).warnings)


def test_a_size_that_rests_on_an_assumed_setting_carries_a_warning():
    assert "max_num_batched_tokens = 8,192" in told(SLIDING, engine="vllm")
    assert "ubatch = 512" in told(SLIDING, engine="llama.cpp")


def test_a_setting_that_is_given_or_not_used_carries_none():
    given = EngineOptions(max_num_batched_tokens=8192, ubatch=512, parallel_slots=1)
    for engine in ("vllm", "llama.cpp"):
        assert told(SLIDING, engine=engine, engine_options=given) == ""
        assert told(FULL, engine=engine) == ""
    for engine in ("ideal", "hf", "no-swa"):
        assert told(SLIDING, FULL, engine=engine) == ""


def test_vllms_aligned_pages_of_states_carry_a_warning():
    state = Layer("mamba2", state=MAMBA2)
    assert "align" in told(FULL, state, engine="vllm")
    assert told(FULL, state, engine="llama.cpp") == ""


def test_transformers_quantised_cache_carries_a_warning_of_its_unquantised_tokens():
    wide = Layer(heads=3, kv_heads=3, k_dim=32, v_dim=32)
    for types in ({"dtype": "q4_0"}, {"k_dtype": "int8"}, {"v_dtype": "q8_0"}):
        assert "128 recent tokens" in told(wide, engine="hf", **types)
        assert told(wide, engine="ideal", **types) == ""
    assert told(wide, engine="hf", dtype="float32") == ""


# --- bounds, waste and an engine's own pages ---


def test_the_waste_of_pages_is_counted_against_pages_of_one_row_in_the_same_engine():
    # vLLM at 101: 7 pages of 16 and one more, 128 rows; in pages of 1: 101 and one more
    size = report(SLIDING, engine="vllm", tokens=101, batch=3).sizes[0]
    assert size.page_waste_bytes == 3 * (128 - 102) * ROW
    assert size.bounds.ideal == 100 * ROW
    assert report(SLIDING, engine="llama.cpp", tokens=101).sizes[0].page_waste_bytes == 0


def test_gemma_3_4b_at_131072_tokens_is_what_llama_cpp_logged():
    # 5 full layers 2,560 MiB, 29 sliding layers 174 MiB
    kinds = tuple("full_attention" if (index + 1) % 6 == 0 else "sliding_attention" for index in range(34))
    model = CacheModel.from_dims(Dims(34, 8, 4, 256, window=1024, layer_types=kinds))
    found = kv_cache(model, tokens=131_072, dtype="float16", engine="llama.cpp", layers=True)
    assert found.layers is not None
    by_kind = {
        kind: sum(layer.sizes_bytes[0] for layer in found.layers if layer.kind == kind) for kind in set(kinds)
    }
    assert by_kind == {"full_attention": 2560 * 2**20, "sliding_attention": 174 * 2**20}


@pytest.mark.parametrize(("engine", "told"), [("hf", True), ("ideal", False), ("vllm", False)])
def test_transformers_own_type_of_recurrent_states_is_told(engine, told):
    state = State.mamba(d_inner=6, d_state=5, kernel=4)
    model = CacheModel((Layer("mamba", state=state),), dtype="bfloat16", state_dtype="bfloat16")
    warning = "hf: transformers keeps recurrent states in float32, whatever the config says"
    assert (warning in kv_cache(model, tokens=1, engine=engine).warnings) == told
    assert warning not in kv_cache(model, tokens=1, engine=engine, state_dtype="bfloat16").warnings
