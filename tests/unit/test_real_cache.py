"""The measuring side of the KV-cache tests, against shapes worked out by hand."""

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from tests.real_cache import CacheTensor, real_cache

LLAMA = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 60,
    "intermediate_size": 23,
    "num_hidden_layers": 3,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "head_dim": 14,  # not 60/10: the config's own figure counts
}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 7}
MAMBA = {
    "model_type": "mamba",
    "vocab_size": 31,
    "hidden_size": 22,
    "state_size": 5,
    "conv_kernel": 3,
    "expand": 2,
    "time_step_rank": 7,
    "num_hidden_layers": 2,
}
WHISPER = {
    "model_type": "whisper",
    "vocab_size": 31,
    "d_model": 22,
    "encoder_layers": 1,
    "encoder_attention_heads": 1,
    "encoder_ffn_dim": 13,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 13,
    "num_mel_bins": 5,
    "max_source_positions": 17,
    "max_target_positions": 29,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 4,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LLAVA = {
    "model_type": "llava",
    "text_config": LLAMA,
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 24, "num_hidden_layers": 1},
}
both = pytest.mark.parametrize("device", ["cpu", "meta"])


@both
def test_a_llama_keeps_a_key_and_a_value_of_every_token_in_every_layer(device):
    cache = real_cache(LLAMA, tokens=11, batch=2, device=device)
    assert cache.items == tuple(
        CacheTensor(f"layers.{layer}.{kind}", (2, 5, 11, 14), torch.bfloat16)
        for layer in range(3)
        for kind in ("keys", "values")
    )
    assert cache.bytes == 3 * 2 * (2 * 5 * 11 * 14) * 2


@both
@pytest.mark.parametrize(("tokens", "rows"), [(5, 5), (6, 6), (7, 6), (19, 6)])
def test_a_window_keeps_one_row_less_than_its_width(device, tokens, rows):
    cache = real_cache(MISTRAL, tokens=tokens, device=device)
    assert {item.shape for item in cache.items} == {(1, 5, rows, 14)}


@both
@pytest.mark.parametrize("tokens", [1, 2, 11])
def test_a_mamba_keeps_its_convolution_columns_and_a_float32_state_whatever_the_length(device, tokens):
    cache = real_cache(MAMBA, tokens=tokens, device=device)
    shapes = [(item.shape, item.dtype) for item in cache.items]
    assert shapes == [((1, 44, 3), torch.bfloat16), ((1, 44, 5), torch.float32)] * 2
    assert cache.bytes == 2 * (44 * 3 * 2 + 44 * 5 * 4)


@both
def test_a_whisper_keeps_its_own_tokens_and_the_encoders_once_a_decoder_layer(device):
    cache = real_cache(WHISPER, tokens=5, encoder_tokens=17, device=device)
    own = [item for item in cache.items if item.path.startswith("self_attention_cache.")]
    cross = [item for item in cache.items if item.path.startswith("cross_attention_cache.")]
    assert [item.shape for item in own] == [(1, 2, 5, 11)] * 6
    assert [item.shape for item in cross] == [(1, 2, 17, 11)] * 6
    assert len(cache.items) == 12


@both
def test_experts_are_no_part_of_a_cache(device):
    assert real_cache(MIXTRAL, tokens=11, device=device) == real_cache(LLAMA, tokens=11, device=device)


def test_a_model_that_also_sees_is_measured_by_its_text_part():
    assert real_cache(LLAVA, tokens=11) == real_cache(LLAMA, tokens=11)


def test_the_dtype_asked_for_is_the_dtype_measured():
    assert real_cache(LLAMA, tokens=11, dtype="float32").bytes == 2 * real_cache(LLAMA, tokens=11).bytes


def test_the_answer_is_that_of_a_plain_forward_pass_over_a_model_made_by_hand():
    config = LlamaConfig(**{key: value for key, value in LLAMA.items() if key != "model_type"})
    model = LlamaModel(config).eval()
    with torch.no_grad():
        cache = model(torch.arange(22).reshape(2, 11), use_cache=True).cache
    expected = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert real_cache(LLAMA, tokens=11, batch=2, dtype="float32", device="cpu").bytes == expected


def test_states_that_a_model_keeps_in_its_own_modules_are_counted_with_its_cache():
    griffin = {
        "model_type": "recurrent_gemma",
        "vocab_size": 31,
        "hidden_size": 22,
        "num_hidden_layers": 3,  # two recurrent, one attention
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "lru_width": 22,
        "conv1d_width": 4,
        "attention_window_size": 5,
    }
    shapes = [(item.shape, item.dtype) for item in real_cache(griffin, tokens=13).items]
    assert shapes[:2] == [((1, 1, 4, 11), torch.bfloat16)] * 2
    assert sorted(shapes[2:], key=str) == [((1, 22), torch.float32)] * 2 + [((1, 22, 3), torch.bfloat16)] * 2


@pytest.mark.parametrize(("config", "encoder_tokens"), [(WHISPER, None), (LLAMA, 17)])
def test_encoder_tokens_that_are_missing_or_out_of_place_are_an_error(config, encoder_tokens):
    with pytest.raises(ValueError, match="encoder_tokens must be"):
        real_cache(config, tokens=5, encoder_tokens=encoder_tokens)


def test_a_model_without_a_cache_is_an_error_and_not_zero_bytes():
    encoder = {"model_type": "bert", "vocab_size": 31, "hidden_size": 24, "num_attention_heads": 3}
    with pytest.raises(ValueError, match="no cache"):
        real_cache(encoder, tokens=11)
