"""Every row of the formulas, by numbers worked by hand; sizes are distinct primes where the formula allows it."""

from dataclasses import replace
from typing import Any

import pytest

from attention_core.kv_cache import (
    DTYPES,
    LAYER_TYPES,
    CacheInputError,
    CacheModel,
    CacheReport,
    CacheSize,
    Dims,
    Layer,
    MlaDims,
    State,
    kv_cache,
    read_config,
)
from attention_core.kv_cache.dtypes import index_bytes

# 3 layers, 5 KV heads, keys 7 wide and values 11: 3 × 5 × (7 + 11) = 270 elements a token
GQA = Dims(3, 35, 5, 7, v_head_dim=11)
MAMBA = State.mamba(d_inner=21, d_state=11, kernel=5)
MAMBA2 = State.mamba2(d_inner=30, heads=6, head_dim=5, d_state=7, groups=3, kernel=4)
SINGLE_GROUP = State.mamba2(d_inner=30, heads=6, head_dim=5, d_state=7, groups=1, kernel=4)
DELTA_NET = State.gated_delta_net(k_heads=3, k_dim=5, v_heads=6, v_dim=7, kernel=4)


def report(model: Dims | CacheModel | Layer, **options: Any) -> CacheReport:
    if isinstance(model, Dims):
        model = CacheModel.from_dims(model)
    elif isinstance(model, Layer):
        model = CacheModel((model,))
    return kv_cache(model, **{"tokens": 1, "dtype": "bfloat16"} | options)


def size(model: Dims | CacheModel | Layer, **options: Any) -> CacheSize:
    (only,) = report(model, **options).sizes
    return only


def refused(model: Dims | CacheModel | Layer, **options: Any) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(CacheInputError) as caught:
        report(model, **options)
    return caught.value.place, caught.value.code


# --- heads ---


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kind"), [(6, 6, "mha"), (6, 3, "gqa"), (6, 2, "gqa"), (6, 1, "mqa"), (1, 1, "mha")]
)
def test_heads_of_k_and_v_decide_the_kind_and_the_row(heads, kv_heads, kind):
    found = report(Dims(3, heads, kv_heads, 7, v_head_dim=11), tokens=13)
    assert found.attention == kind
    assert found.bytes_per_token == 3 * kv_heads * 18 * 2
    assert found.sizes[0].per_sequence_bytes == 13 * 3 * kv_heads * 18 * 2


def test_a_batch_of_unequal_keys_and_values_is_worked_by_hand():
    # 3 × 5 × (7 × 1 + 11 × 2) = 15 × 29 = 435 bytes a token, 101 tokens 43,935, a batch of two 87,870
    found = report(GQA, tokens=[101, 1], batch=2, k_dtype="int8", v_dtype="float16", dtype="float32")
    assert found.bytes_per_token == found.bytes_per_token_beyond_window == 435
    assert found.fixed_bytes_per_sequence == 0
    assert [(s.tokens, s.per_sequence_bytes, s.batch_bytes) for s in found.sizes] == [
        (101, 43_935, 87_870),
        (1, 435, 870),
    ]
    assert (found.dtype, found.dtype_source) == ("float32", "request")
    assert (found.k_dtype, found.v_dtype) == ("int8", "float16")


# --- types ---


@pytest.mark.parametrize(
    ("dtype", "head"),
    [  # bytes of a head 96 wide
        ("float32", 384),
        ("float16", 192),
        ("bfloat16", 192),
        ("fp8_e4m3", 96),
        ("fp8_e5m2", 96),
        ("int8", 96),
        ("q8_0", 102),  # 3 blocks × 34
        ("q5_1", 72),  # × 24
        ("q5_0", 66),
        ("q4_1", 60),
        ("q4_0", 54),
        ("iq4_nl", 54),
        ("mxfp4", 51),
        ("nvfp4", 54),  # 96 / 2 + 96 / 16
        ("int8_per_token_head", 100),  # 96 + 4
        ("fp8_per_token_head", 100),
    ],
)
def test_a_type_takes_its_bits_and_its_scales(dtype, head):
    assert report(Dims(3, 35, 5, 96), dtype=dtype).bytes_per_token == 3 * 5 * 2 * head
    assert report(Dims(3, 35, 5, 96), k_dtype=dtype).bytes_per_token == 3 * 5 * (head + 192)
    assert report(Dims(3, 35, 5, 96), v_dtype=dtype).bytes_per_token == 3 * 5 * (192 + head)


def test_these_are_all_types():
    assert set(DTYPES) == {
        *("float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8"),
        *("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4", "nvfp4"),
        *("int8_per_token_head", "fp8_per_token_head", "fp8_ds_mla"),
    }


@pytest.mark.parametrize("dtype", ["q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4"])
def test_a_type_in_blocks_of_32_does_not_go_with_other_widths(dtype):
    dims = Dims(3, 35, 5, 80, v_head_dim=64)
    assert refused(dims, dtype=dtype) == (("dtype",), "unsuitable_width")
    assert refused(dims, k_dtype=dtype) == (("k_dtype",), "unsuitable_width")
    assert report(dims, v_dtype=dtype).bytes_per_token > 0
    assert refused(replace(dims, v_head_dim=80), v_dtype=dtype) == (("v_dtype",), "unsuitable_width")


@pytest.mark.parametrize("option", ["dtype", "k_dtype", "v_dtype"])
@pytest.mark.parametrize("name", ["flaot16", "", "auto16"])
def test_an_unknown_type_is_refused(option, name):
    assert refused(GQA, **{option: name}) == ((option,), "unknown_option")


# --- multi-head latent attention ---


@pytest.mark.parametrize("heads", [1, 7, 128])
def test_a_latent_row_is_one_tensor_for_all_heads(heads):
    dims = Dims(3, heads, heads, 29, mla=MlaDims(17, 5))
    assert report(dims).attention == "mla"
    assert report(dims, tokens=13).bytes_per_token == 3 * (17 + 5) * 2
    assert size(dims, tokens=13).per_sequence_bytes == 13 * 3 * 22 * 2
    assert report(dims, dtype="fp8_e4m3").bytes_per_token == 3 * 22
    assert report(dims, dtype="int8_per_token_head").bytes_per_token == 3 * (22 + 4)


def test_a_latent_row_is_in_the_type_of_keys():
    dims = Dims(3, 7, 7, 29, mla=MlaDims(17, 5))
    found = report(dims, k_dtype="float32", v_dtype="int8")
    assert found.bytes_per_token == 3 * 22 * 4
    assert any("v_dtype" in warning for warning in found.warnings)


def test_fp8_ds_mla_keeps_the_latent_in_fp8_with_scales_and_the_rotary_part_in_16_bits():
    # 512 + 4 × 4 + 64 × 2 = 656
    assert report(Dims(3, 7, 7, 29, mla=MlaDims(512, 64)), dtype="fp8_ds_mla").bytes_per_token == 3 * 656


def test_fp8_ds_mla_is_of_no_other_attention():
    assert refused(GQA, dtype="fp8_ds_mla") == (("dtype",), "unsuitable_dtype")
    assert refused(GQA, k_dtype="fp8_ds_mla") == (("k_dtype",), "unsuitable_dtype")


@pytest.mark.parametrize(
    ("dtype", "row"),
    [
        ("bfloat16", (512 + 64 + 128) * 2),
        ("float32", (512 + 64 + 128) * 4),
        ("int8", 512 + 64 + 128),
        ("fp8_e4m3", 512 + 64 + 132),
        ("fp8_e5m2", 512 + 64 + 132),
        ("fp8_ds_mla", 656 + 132),
    ],
)
def test_an_indexer_keeps_a_key_beside_the_latent_row(dtype, row):
    model = read_config(
        {"model_type": "deepseek_v32", "num_hidden_layers": 3, "num_attention_heads": 7}
        | {"hidden_size": 91, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 11}
        | {"v_head_dim": 13, "index_head_dim": 128, "index_n_heads": 5, "index_topk": 2048}
    )
    assert report(model, dtype=dtype).bytes_per_token == 3 * row
    assert size(model, dtype=dtype, tokens=17).per_sequence_bytes == 17 * 3 * row


# --- windows ---


@pytest.mark.parametrize("kind", ["sliding_attention", "chunked_attention"])
@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (16, 16), (17, 17), (18, 17), (34, 17), (1000, 17)])
def test_a_window_keeps_as_many_rows_as_it_is_long(kind, tokens, rows):
    # a chunk's peak is what is told, also where a new one has just begun
    dims = Dims(3, 35, 5, 7, v_head_dim=11, window=17, layer_types=(kind, "full_attention", kind))
    found = report(dims, tokens=tokens)
    assert found.bytes_per_token == 540
    assert found.bytes_per_token_beyond_window == 180
    assert found.sizes[0].per_sequence_bytes == 2 * rows * 180 + tokens * 180


def test_a_window_alone_means_that_every_layer_slides():
    found = report(Dims(3, 35, 5, 7, window=17), tokens=1000)
    assert [(group.kind, group.layers, group.window) for group in found.groups] == [
        ("sliding_attention", 3, 17)
    ]
    assert found.bytes_per_token_beyond_window == 0


def test_layers_without_attention_keep_nothing():
    found = report(Dims(3, 35, 5, 7, v_head_dim=11, layer_types=("none", "full_attention", "none")))
    assert found.bytes_per_token == 180
    assert LAYER_TYPES == ("full_attention", "sliding_attention", "chunked_attention", "none")


def test_widths_and_heads_may_differ_from_layer_to_layer():
    # 2 × 3 × (5 + 5) × 2 = 120, and 1 × 1 × (7 + 13) × 2 = 40
    wide, narrow = Layer(heads=3, kv_heads=3, k_dim=5, v_dim=5), Layer(heads=3, kv_heads=1, k_dim=7, v_dim=13)
    found = report(CacheModel((wide, narrow, wide)))
    assert [(group.layers, group.bytes_per_token) for group in found.groups] == [(2, 120), (1, 40)]
    assert found.bytes_per_token == 160
    assert found.attention == "gqa"


# --- layers that share ---


def llama(**fields: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": 7,
        "num_attention_heads": 35,
        "num_key_value_heads": 5,
        "head_dim": 11,
        "hidden_size": 70,
        **fields,
    }


def test_the_last_layers_that_share_keep_nothing():
    # five layers slide or are full, the last two read theirs: 5 × 5 × 22 × 2 = 1,100
    kinds = ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]
    model = read_config(llama(num_kv_shared_layers=2, layer_types=kinds, sliding_window=13))
    found = report(model, tokens=100, layers=True)
    assert found.bytes_per_token == 5 * 220
    assert found.bytes_per_token_beyond_window == 2 * 220
    assert found.sizes[0].per_sequence_bytes == 3 * 13 * 220 + 2 * 100 * 220
    assert [layer.shared for layer in found.layers] == [False] * 5 + [True] * 2
    assert sum(group.layers for group in found.groups if group.shared) == 2


@pytest.mark.parametrize(("factor", "owners"), [(1, 7), (2, 4), (3, 3), (4, 2), (7, 1), (11, 1)])
def test_with_a_cross_layer_factor_every_so_many_layers_one_owns_k_and_v(factor, owners):
    model = read_config(llama(use_cla=True, cla_share_factor=factor))
    assert report(model).bytes_per_token == owners * 220


def test_a_cross_layer_factor_that_is_switched_off_shares_nothing():
    assert report(read_config(llama(use_cla=False, cla_share_factor=2))).bytes_per_token == 7 * 220


# --- cross-attention ---

WHISPER = {
    "model_type": "whisper",
    "is_encoder_decoder": True,
    "d_model": 35,
    "encoder_layers": 2,
    "num_hidden_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 7,
    "decoder_attention_heads": 5,
    "max_source_positions": 13,
    "max_target_positions": 23,
}


def test_cross_attention_is_constant_and_as_long_as_the_encoder():
    # a row is 5 × (7 + 7) × 2 = 140 bytes: 3 layers × 13 encoder tokens, and 3 × 17 of the decoder's own
    found = report(read_config(WHISPER), tokens=17)
    assert found.fixed_bytes_per_sequence == 3 * 13 * 140
    assert found.bytes_per_token == found.bytes_per_token_beyond_window == 3 * 140
    assert found.sizes[0].per_sequence_bytes == 3 * 13 * 140 + 3 * 17 * 140
    assert report(read_config(WHISPER), encoder_tokens=29).fixed_bytes_per_sequence == 3 * 29 * 140


def test_cross_attention_is_in_the_types_of_k_and_v():
    found = report(read_config(WHISPER), k_dtype="int8", v_dtype="float32")
    assert found.fixed_bytes_per_sequence == 3 * 13 * 5 * (7 * 1 + 7 * 4)


def test_cross_attention_is_divided_over_ranks_and_not_shared_with_a_prefix():
    found = size(read_config(WHISPER), tokens=17, batch=2, shared_prefix_tokens=11, tensor_parallel=5)
    # its own: 11 + 2 × 6 = 23 rows; cross: 2 × 13; each 3 layers × 140
    assert found.batch_bytes == 3 * (23 + 26) * 140
    assert found.per_rank_bytes == 3 * (23 + 26) * 28
    assert found.replication == 1


# --- recurrent states ---


@pytest.mark.parametrize(
    ("state", "constant"),
    [
        (MAMBA, 21 * (5 - 1) * 2 + 21 * 11 * 4),
        (MAMBA2, (30 + 2 * 3 * 7) * (4 - 1) * 2 + 6 * 5 * 7 * 4),
        (SINGLE_GROUP, (30 + 2 * 1 * 7) * (4 - 1) * 2 + 6 * 5 * 7 * 4),
        (DELTA_NET, (2 * 3 * 5 + 6 * 7) * (4 - 1) * 2 + 6 * 7 * 5 * 4),
    ],
    ids=["mamba", "mamba2", "mamba2-one-group", "gated-delta-net"],
)
def test_a_state_is_as_large_at_any_length(state, constant):
    found = report(Layer(state.kind, state=state), tokens=[1, 1000], batch=3)
    assert found.attention == "none"
    assert found.bytes_per_token == found.bytes_per_token_beyond_window == 0
    assert found.fixed_bytes_per_sequence == constant
    assert [s.per_sequence_bytes for s in found.sizes] == [constant] * 2
    assert [s.batch_bytes for s in found.sizes] == [3 * constant] * 2


def test_a_parallel_hybrid_keeps_k_and_v_and_a_state_in_every_layer():
    both = Layer(heads=6, kv_heads=2, k_dim=5, v_dim=7, state=MAMBA2)
    found = report(CacheModel((both,) * 3), tokens=13)
    assert found.bytes_per_token == 3 * 2 * 12 * 2
    assert found.fixed_bytes_per_sequence == 3 * (432 + 840)
    assert found.sizes[0].per_sequence_bytes == 3 * (13 * 48 + 432 + 840)


@pytest.mark.parametrize(
    ("asked", "stated", "used"),
    [
        (None, None, 4),
        (None, "bfloat16", 2),
        ("float32", "bfloat16", 4),
        ("float16", None, 2),
        ("float16", "float32", 2),
    ],
)
def test_the_state_is_in_the_type_asked_for_else_the_models_else_float32(asked, stated, used):
    model = CacheModel((Layer("mamba2", state=MAMBA2),), state_dtype=stated)
    found = report(model, state_dtype=asked)
    assert found.fixed_bytes_per_sequence == 72 * 3 * 2 + 210 * used
    assumed = [sentence for sentence in found.assumptions if "state_dtype" in sentence]
    assert len(assumed) == (asked is None and stated is None)


@pytest.mark.parametrize("name", ["q8_0", "int8", "fp8_e4m3", "auto", "half", ""])
def test_a_state_is_in_a_plain_type(name):
    assert refused(Layer("mamba2", state=MAMBA2), state_dtype=name) == (("state_dtype",), "unknown_option")


@pytest.mark.parametrize(
    ("stated", "options", "used"),
    [
        ("float32", {"dtype": "auto"}, 4),
        ("float32", {"dtype": "int8"}, 4),  # K and V are quantised, the model's activations are not
        ("float32", {"dtype": "auto", "k_dtype": "int8", "v_dtype": "int8"}, 4),
        ("bfloat16", {"dtype": "q8_0"}, 2),
        (None, {"dtype": "float32"}, 4),
        (None, {"dtype": "auto"}, 2),
        (None, {"dtype": "fp8_e5m2"}, 2),
    ],
)
def test_the_convolution_stays_in_the_models_plain_type(stated, options, used):
    found = report(CacheModel((Layer("mamba2", state=MAMBA2),), dtype=stated), **options)
    assert found.fixed_bytes_per_sequence == 72 * 3 * used + 210 * 4


def test_a_plain_type_that_had_to_be_assumed_for_the_convolution_is_told():
    found = report(CacheModel((Layer("mamba2", state=MAMBA2),)), dtype="int8")
    assert any("convolution" in sentence and "bfloat16" in sentence for sentence in found.assumptions)


# --- pages ---


def test_each_sequence_is_rounded_up_to_whole_pages():
    # 35 rows in pages of 17 are 51; 16 of them wasted by each of 3 sequences
    found = size(GQA, tokens=35, page_size=17, batch=3)
    assert found.per_sequence_bytes == 51 * 540
    assert found.batch_bytes == 3 * 51 * 540
    assert found.page_waste_bytes == 3 * 16 * 540
    assert found.bounds.ideal == found.bounds.no_swa == 35 * 540
    assert size(GQA, tokens=34, page_size=17).page_waste_bytes == 0


def test_a_windows_rows_are_rounded_up_to_whole_pages():
    dims = replace(GQA, window=19)
    assert size(dims, tokens=100, page_size=17).per_sequence_bytes == 34 * 540
    assert size(dims, tokens=16, page_size=17).per_sequence_bytes == 17 * 540


def test_states_are_not_paged():
    found = size(Layer("mamba2", state=MAMBA2), tokens=5, page_size=17, batch=3)
    assert (found.batch_bytes, found.page_waste_bytes) == (3 * 1272, 0)


# --- tensor parallelism ---


@pytest.mark.parametrize(
    ("kv_heads", "ranks", "held", "replication"),
    [(6, 1, 6, 1), (6, 2, 3, 1), (6, 3, 2, 1), (6, 6, 1, 1), (6, 12, 1, 2), (6, 18, 1, 3), (1, 5, 1, 5)],
)
def test_heads_are_divided_over_ranks_and_copied_where_there_are_more_ranks(
    kv_heads, ranks, held, replication
):
    found = size(Dims(3, 6, kv_heads, 7, v_head_dim=11), tokens=13, batch=2, tensor_parallel=ranks)
    assert found.per_rank_bytes == 2 * 13 * 3 * held * 18 * 2
    assert found.replication == replication
    assert found.per_sequence_bytes == 13 * 3 * kv_heads * 18 * 2
    assert found.batch_bytes == 2 * found.per_sequence_bytes


@pytest.mark.parametrize(("kv_heads", "ranks"), [(6, 4), (6, 5), (6, 9), (2, 3)])
def test_heads_that_cannot_be_divided_are_refused(kv_heads, ranks):
    dims = Dims(3, 6, kv_heads, 7)
    assert refused(dims, tensor_parallel=ranks) == (("tensor_parallel",), "not_divisible")


def test_a_latent_row_is_whole_on_every_rank():
    found = size(Dims(3, 7, 7, 29, mla=MlaDims(17, 5)), tokens=13, tensor_parallel=3)
    assert found.per_rank_bytes == found.per_sequence_bytes == 13 * 3 * 22 * 2
    assert found.replication == 3


def test_an_indexers_key_is_whole_on_every_rank():
    layer = Layer(heads=6, kv_heads=6, k_dim=7, v_dim=11, index_dim=13)
    found = size(layer, tensor_parallel=3)
    assert found.per_sequence_bytes == 6 * 18 * 2 + 13 * 2
    assert found.per_rank_bytes == 2 * 18 * 2 + 13 * 2
    assert found.replication == 3


def test_of_mixed_layers_the_largest_replication_is_told():
    wide, narrow = Layer(heads=8, kv_heads=8, k_dim=5, v_dim=5), Layer(heads=8, kv_heads=2, k_dim=5, v_dim=5)
    found = size(CacheModel((wide, narrow)), tensor_parallel=8)
    assert (found.per_rank_bytes, found.replication) == (20 + 20, 4)


def test_scales_by_token_and_head_are_divided_with_their_heads():
    found = size(Dims(3, 6, 6, 7), dtype="int8_per_token_head", tensor_parallel=3)
    assert found.per_rank_bytes == 3 * 2 * 2 * (7 + 4)


@pytest.mark.parametrize(
    ("state", "ranks", "rank", "replication"),
    [
        (MAMBA, 3, 7 * 4 * 2 + 7 * 11 * 4, 1),
        (MAMBA, 2, 1092, 2),  # 21 channels do not divide: whole on every rank
        (MAMBA2, 3, 24 * 3 * 2 + 2 * 5 * 7 * 4, 1),
        (MAMBA2, 2, 1272, 2),  # 6 heads would, 3 groups do not
        (SINGLE_GROUP, 2, (15 + 14) * 3 * 2 + 3 * 5 * 7 * 4, 2),  # the group's 14 channels are copied
        (SINGLE_GROUP, 4, 1104, 4),
        (DELTA_NET, 3, 24 * 3 * 2 + 2 * 7 * 5 * 4, 1),
        (DELTA_NET, 2, 1272, 2),
    ],
)
def test_a_state_is_divided_over_ranks_if_its_heads_are(state, ranks, rank, replication):
    found = report(Layer(state.kind, state=state), tensor_parallel=ranks, batch=5)
    assert found.sizes[0].per_rank_bytes == 5 * rank
    assert found.sizes[0].replication == replication
    whole = any("tensor_parallel" in warning for warning in found.warnings)
    assert whole == (rank == found.fixed_bytes_per_sequence)


# --- shared prefix ---


def test_a_shared_prefix_is_kept_once():
    # 11 + 3 × (23 - 11) = 47 rows
    found = size(GQA, tokens=23, batch=3, shared_prefix_tokens=11)
    assert found.batch_bytes == 47 * 540
    assert found.per_sequence_bytes == 23 * 540


def test_a_shared_prefix_is_shared_in_whole_pages():
    # of 13 tokens 10 are whole pages of 5; 23 take 25 rows: 10 + 3 × 15 = 55; by single rows 13 + 3 × 10 = 43
    found = size(GQA, tokens=23, batch=3, shared_prefix_tokens=13, page_size=5)
    assert found.batch_bytes == 55 * 540
    assert found.page_waste_bytes == (55 - 43) * 540
    assert size(GQA, tokens=23, batch=3, shared_prefix_tokens=4, page_size=5).batch_bytes == 75 * 540


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [
        (20, 7 + 3 * 0),  # the window lies in the prefix
        (23, 4 + 3 * 3),  # prefix rows still live: 20 - (23 - 7) = 4
        (26, 1 + 3 * 6),
        (27, 3 * 7),
        (100, 3 * 7),
    ],
)
def test_a_window_shares_what_of_the_prefix_it_still_sees(tokens, rows):
    found = size(replace(GQA, window=7), tokens=tokens, batch=3, shared_prefix_tokens=20)
    assert found.batch_bytes == rows * 540


def test_a_window_in_pages_shares_whole_pages_of_the_prefix():
    # window of 7 in pages of 5: 10 rows; of the prefix's 20 tokens 4 are live at 23: 4 + 3 × (10 - 4)
    found = size(replace(GQA, window=7), tokens=23, batch=3, shared_prefix_tokens=22, page_size=5)
    assert found.batch_bytes == 22 * 540


def test_states_are_not_shared():
    both = Layer(heads=6, kv_heads=2, k_dim=5, v_dim=7, state=MAMBA2)
    assert size(both, tokens=23, batch=3, shared_prefix_tokens=11).batch_bytes == 47 * 48 + 3 * 1272


def test_a_rank_keeps_its_part_of_a_batch_with_a_prefix():
    found = size(
        Dims(3, 6, 6, 7, v_head_dim=11), tokens=23, batch=3, shared_prefix_tokens=11, tensor_parallel=3
    )
    assert found.per_rank_bytes == 47 * 3 * 2 * 18 * 2


def test_a_prefix_longer_than_a_sequence_is_refused():
    assert refused(GQA, tokens=[30, 23], shared_prefix_tokens=24) == (
        ("shared_prefix_tokens",),
        "out_of_range",
    )
    assert size(GQA, tokens=23, batch=3, shared_prefix_tokens=23).batch_bytes == 23 * 540


# --- multi-token prediction ---


def test_layers_of_multi_token_prediction_count_if_asked_for():
    model = read_config(llama(num_nextn_predict_layers=2))
    assert report(model).bytes_per_token == 7 * 220
    assert report(model, include_mtp=True).bytes_per_token == 9 * 220
    assert size(model, include_mtp=True, tokens=13).per_sequence_bytes == 13 * 9 * 220


def test_asking_for_such_layers_where_there_are_none_is_answered_with_a_warning():
    found = report(read_config(llama()), include_mtp=True)
    assert found.bytes_per_token == 7 * 220
    assert any("include_mtp" in warning for warning in found.warnings)


# --- dims, and counts in general ---


@pytest.mark.parametrize(
    "field", ["layers", "heads", "kv_heads", "head_dim", "v_head_dim", "hidden_size", "window"]
)
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0, "out_of_range"),
        (-1, "out_of_range"),
        (True, "wrong_type"),
        (2.0, "wrong_type"),
        ("32", "wrong_type"),
    ],
)
def test_a_count_that_is_no_positive_whole_number_is_refused(field, value, code):
    sizes: dict[str, Any] = {"layers": 2, "heads": 6, "kv_heads": 3, "head_dim": 5, field: value}
    with pytest.raises(CacheInputError) as caught:
        Dims(**sizes)
    assert (caught.value.place, caught.value.code) == ((field,), code)


@pytest.mark.parametrize(
    ("change", "place", "code"),
    [
        ({"kv_heads": 4}, ("kv_heads",), "not_divisible"),
        ({"kv_heads": 12}, ("kv_heads",), "not_divisible"),
        ({"layers": 1001}, ("layers",), "out_of_range"),
        ({"layer_types": ("full_attention",)}, ("layer_types",), "pattern_length"),
        ({"layer_types": ("full_attention", "linear_attention")}, ("layer_types", 1), "unknown_option"),
        ({"layer_types": ("full_attention", "sliding_attention")}, ("window",), "missing_field"),
        ({"layer_types": ("chunked_attention", "none")}, ("window",), "missing_field"),
        ({"mla": MlaDims(0, 5)}, ("mla", "kv_lora_rank"), "out_of_range"),
        ({"mla": MlaDims(5, True)}, ("mla", "qk_rope_head_dim"), "wrong_type"),
    ],
)
def test_dims_that_do_not_go_together_are_refused(change, place, code):
    with pytest.raises(CacheInputError) as caught:
        Dims(**{"layers": 2, "heads": 6, "kv_heads": 3, "head_dim": 5, **change})
    assert (caught.value.place, caught.value.code) == (place, code)


@pytest.mark.parametrize(
    ("options", "place", "code"),
    [
        ({"tokens": 0}, ("tokens",), "out_of_range"),
        ({"tokens": [5, -1]}, ("tokens", 1), "out_of_range"),
        ({"tokens": True}, ("tokens",), "wrong_type"),
        ({"tokens": 2.0}, ("tokens",), "wrong_type"),
        ({"tokens": []}, ("tokens",), "out_of_range"),
        ({"batch": 0}, ("batch",), "out_of_range"),
        ({"batch": 1.5}, ("batch",), "wrong_type"),
        ({"tensor_parallel": 0}, ("tensor_parallel",), "out_of_range"),
        ({"page_size": 0}, ("page_size",), "out_of_range"),
        ({"shared_prefix_tokens": -1}, ("shared_prefix_tokens",), "out_of_range"),
        ({"memory_budget_bytes": -1}, ("memory_budget_bytes",), "out_of_range"),
        ({"memory_budget_bytes": False}, ("memory_budget_bytes",), "wrong_type"),
        ({"encoder_tokens": 0}, ("encoder_tokens",), "out_of_range"),
    ],
)
def test_a_question_with_an_impossible_number_is_refused_at_its_place(options, place, code):
    assert refused(GQA, **options) == (place, code)


@pytest.mark.parametrize(("width", "expected"), [(128, 132), (129, 137), (256, 264), (7, 11)])
def test_an_fp8_indexers_key_has_a_scale_for_every_128_elements_begun(width, expected):
    assert index_bytes(width, DTYPES["fp8_e4m3"]) == expected
    assert index_bytes(width, DTYPES["bfloat16"]) == 2 * width
