"""A tiny model of each kind of cache, run for real on the CPU: its tensors, in two types and for a batch of two."""

from __future__ import annotations

from typing import Any

import pytest

from attention_core.kv_cache import kv_cache, read_config
from tests.real_cache import real_cache

BATCH, TOKENS, ENCODER_TOKENS = 2, 19, 23
PLAIN = {"vocab_size": 29, "hidden_size": 60, "intermediate_size": 31, "num_hidden_layers": 3}
# Of four layers: of three, one in two and one in three would be full alike
FOUR = {"num_hidden_layers": 4, "sliding_window": 7}
GROUPED = PLAIN | {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 14}
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 17}
LATENT = PLAIN | {
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "kv_lora_rank": 37,
    "q_lora_rank": 22,
    "qk_rope_head_dim": 14,
    "qk_nope_head_dim": 22,
    "v_head_dim": 26,
    "n_routed_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 3,
    **EXPERTS,
}
MAMBA = {"mamba_d_state": 7, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_dt_rank": 5}
MAMBA2 = {"mamba_d_state": 7, "mamba_d_conv": 3, "mamba_n_heads": 6, "mamba_d_head": 20, "mamba_n_groups": 2}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 11,
    "linear_value_head_dim": 13,
    "linear_conv_kernel_dim": 3,
}
ENCODER_DECODER = {
    "vocab_size": 29,
    "d_model": 60,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 31,
    "decoder_ffn_dim": 31,
}

TINY: dict[str, dict[str, Any]] = {
    "mha": PLAIN | {"model_type": "llama", "num_attention_heads": 6},
    "gqa": GROUPED | {"model_type": "llama"},
    "mqa": PLAIN | {"model_type": "falcon", "num_attention_heads": 6, "multi_query": True},
    "broadcast heads": PLAIN
    | {
        "model_type": "falcon",
        "num_attention_heads": 6,
        "num_kv_heads": 3,
        "new_decoder_architecture": True,
    },
    "mla": LATENT | {"model_type": "deepseek_v3"},
    "mla with indexer": LATENT
    | {"model_type": "deepseek_v32", "index_head_dim": 34, "index_n_heads": 2, "index_topk": 5},
    "sliding": GROUPED | {"model_type": "mistral", "sliding_window": 7},
    "alternating": GROUPED | FOUR | {"model_type": "gemma2"},
    "alternating, with sinks": GROUPED | EXPERTS | FOUR | {"model_type": "gpt_oss"},
    "one of six full": GROUPED | {"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 7},
    "wider full layers, shared": GROUPED
    | {
        "model_type": "gemma4_text",
        "num_hidden_layers": 7,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"] * 3 + ["full_attention"],
        "global_head_dim": 26,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 29,
        "hidden_size_per_layer_input": 8,
    },
    "shared": GROUPED
    | {
        "model_type": "gemma3n_text",
        "num_hidden_layers": 7,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"] * 3 + ["full_attention"],
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 29,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 5,
        "altup_num_inputs": 2,
    },
    "chunked": GROUPED
    | {"model_type": "llama4_text", "num_hidden_layers": 5, "attention_chunk_size": 7, **EXPERTS},
    "mamba": PLAIN | {"model_type": "mamba", "state_size": 7, "conv_kernel": 3, "expand": 2},
    "mamba2": PLAIN
    | {
        "model_type": "mamba2",
        "state_size": 7,
        "conv_kernel": 3,
        "expand": 2,
        "num_heads": 6,
        "head_dim": 20,
        "n_groups": 2,
    },
    "attention among mamba": GROUPED
    | MAMBA
    | EXPERTS
    | {
        "model_type": "jamba",
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
        "head_dim": None,
    },
    "attention beside mamba2": GROUPED | MAMBA2 | {"model_type": "falcon_h1", "mamba_d_ssm": 120},
    "attention among mamba2": GROUPED
    | MAMBA2
    | {"model_type": "bamba", "attn_layer_indices": [1], "head_dim": None},
    "attention among mamba2, by letters": GROUPED
    | EXPERTS
    | {
        "model_type": "nemotron_h",
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M*-M",
        "mamba_num_heads": 6,
        "mamba_head_dim": 20,
        "n_groups": 2,
        "ssm_state_size": 7,
        "conv_kernel": 3,
    },
    "attention beside mamba2 in some layers": PLAIN
    | {
        "model_type": "zamba2",
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "mamba_d_state": 7,
        "mamba_d_conv": 3,
        "mamba_expand": 2,
        "mamba_ngroups": 2,
        "n_mamba_heads": 6,
        "mamba_headdim": 20,
        "num_mem_blocks": 1,
        "adapter_rank": 5,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba"],
    },
    "gated DeltaNet": GROUPED | DELTA | EXPERTS | {"model_type": "qwen3_next", "full_attention_interval": 2},
    "kimi delta attention": LATENT
    | {
        "model_type": "kimi_linear",
        "pad_token_id": 0,
        "linear_num_heads": 3,
        "linear_head_dim": 16,
        "linear_conv_kernel_dim": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense"] * 3,
    },
    "short convolution": GROUPED
    | {
        "model_type": "lfm2",
        "conv_L_cache": 3,
        "head_dim": None,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "RG-LRU": GROUPED
    | {"model_type": "recurrent_gemma", "lru_width": 60, "conv1d_width": 3, "attention_window_size": 7}
    | {"block_types": ["recurrent", "attention"]},
    "lightning attention": GROUPED
    | EXPERTS
    | {"model_type": "minimax", "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "encoder-decoder": ENCODER_DECODER | {"model_type": "bart", "max_position_embeddings": 101},
    "cross-attention to an image": {
        "model_type": "mllama",
        "text_config": GROUPED
        | {
            "model_type": "mllama_text_model",
            "num_hidden_layers": 5,
            "cross_attention_layers": [1, 3],
            "head_dim": 10,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 24, "attention_heads": 2},
    },
    "speech": ENCODER_DECODER
    | {
        "model_type": "whisper",
        "max_source_positions": ENCODER_TOKENS,
        "max_target_positions": 101,
        "pad_token_id": 0,
    },
    "widths of its own": {
        "model_type": "t5",
        "vocab_size": 29,
        "d_model": 60,
        "d_kv": 11,
        "d_ff": 31,
        "num_layers": 3,
        "num_heads": 5,
    },
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_keeps_what_is_calculated(name: str, dtype: str) -> None:
    config = {key: value for key, value in TINY[name].items() if value is not None}
    model = read_config(config)
    encoder = ENCODER_TOKENS if any(layer.kind == "cross_attention" for layer in model.layers) else None
    real = real_cache(config, tokens=TOKENS, batch=BATCH, dtype=dtype, encoder_tokens=encoder, device="cpu")
    report = kv_cache(model, tokens=TOKENS, batch=BATCH, encoder_tokens=encoder, dtype=dtype, engine="hf")
    assert report.sizes[0].batch_bytes == real.bytes
