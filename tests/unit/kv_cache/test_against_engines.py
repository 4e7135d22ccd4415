"""What engines printed, or assert in tests of their own, beside what is calculated for them."""

from __future__ import annotations

import pytest

from attention_core.kv_cache import (
    CacheModel,
    Dims,
    EngineOptions,
    Layer,
    VllmCapacity,
    find_preset,
    kv_cache,
)

MIB, GIB = 2**20, 2**30


def dims(full: int, sliding: int, *, kv_heads: int, head_dim: int, window: int) -> CacheModel:
    kinds = ("full_attention",) * full + ("sliding_attention",) * sliding
    return CacheModel.from_dims(
        Dims(full + sliding, kv_heads, kv_heads, head_dim, window=window, layer_types=kinds)
    )


# --- llama.cpp: the two "size = … MiB" lines of its start, of layers that keep all and of layers that slide ---

GPT_OSS = find_preset("openai/gpt-oss-20b").model()
GEMMA_2_2B = find_preset("google/gemma-2-2b").model()
# Laguna: 12 and 36 layers of 8 heads of 128, a window of 512
LAGUNA = dims(12, 36, kv_heads=8, head_dim=128, window=512)
# Gemma 4 12B: 8 layers with one head of 512, 40 with 8 heads of 256 and a window of 1,024
GEMMA_4_12B = CacheModel(
    (Layer(heads=16, kv_heads=1, k_dim=512, v_dim=512),) * 8
    + (Layer("sliding_attention", heads=16, kv_heads=8, k_dim=256, v_dim=256, window=1024),) * 40
)


@pytest.mark.parametrize(
    ("model", "context", "dtype", "ubatch", "slots", "full_mib", "sliding_mib"),
    [
        (GPT_OSS, 131_072, "float16", 512, 1, 3072.00, 18.00),
        (GPT_OSS, 131_072, "float16", 2048, 1, 3072.00, 54.00),
        (GPT_OSS, 8192, "q8_0", 128, 1, 102.00, 3.19),
        (GEMMA_2_2B, 8192, "float16", 512, 4, 416.00, 416.00),
        (LAGUNA, 1_048_576, "q4_0", 512, 1, 13824.00, 40.50),
        (GEMMA_4_12B, 8192, "q8_0", 512, 4, 68.00, 765.00),
        (GEMMA_4_12B, 8192, "float16", 2048, 4, 128.00, 1920.00),
    ],
    ids=["gpt-oss", "gpt-oss ubatch", "gpt-oss q8_0", "gemma-2", "laguna q4_0", "gemma-4 q8_0", "gemma-4"],
)
def test_llama_cpp_prints_the_mebibytes_that_are_calculated(
    model: CacheModel,
    context: int,
    dtype: str,
    ubatch: int,
    slots: int,
    full_mib: float,
    sliding_mib: float,
) -> None:
    report = kv_cache(
        model,
        tokens=context,
        dtype=dtype,
        engine="llama.cpp",
        engine_options=EngineOptions(ubatch=ubatch, parallel_slots=slots),
        layers=True,
    )
    assert report.layers is not None
    sizes = {"full_attention": 0, "sliding_attention": 0}
    for layer in report.layers:
        sizes[layer.kind] += layer.sizes_bytes[0]
    assert round(sizes["full_attention"] / MIB, 2) == full_mib
    assert round(sizes["sliding_attention"] / MIB, 2) == sliding_mib


# --- vLLM ---


def vllm(model: CacheModel, tokens: int, budget: int, batched: int = 8192) -> VllmCapacity:
    report = kv_cache(
        model,
        tokens=tokens,
        dtype="float16",
        engine="vllm",
        engine_options=EngineOptions(max_num_batched_tokens=batched),
        memory_budget_bytes=budget,
    )
    assert report.capacity is not None
    assert report.capacity.vllm is not None
    return report.capacity.vllm


@pytest.mark.parametrize(
    ("full", "sliding", "blocks", "concurrency"),
    [(32, 0, 1536, 1.5), (0, 32, 129 * 3, 3.0), (32, 32, (1024 + 129) * 3, 3.0)],
    ids=["full", "sliding", "hybrid"],
)
def test_concurrency_is_that_of_vllms_own_test(
    full: int, sliding: int, blocks: int, concurrency: float
) -> None:
    # test_get_max_concurrency_for_kv_cache_config: 32 heads of 128 in float16, blocks of 16, a window of 1,024, 1,024
    # batched tokens, 16,384 tokens. A block of a group is 32 pages, as either kind has 32 layers.
    model = dims(full, sliding, kv_heads=32, head_dim=128, window=1024)
    block = 32 * 16 * 32 * 256 * 2
    found = vllm(model, 16_384, blocks * block, batched=1024)
    assert (found.num_gpu_blocks, found.max_concurrency) == (blocks, (concurrency,))
    assert found.kv_cache_tokens == (int(concurrency * 16_384),)
    assert found.log == (
        f"GPU KV cache size: {int(concurrency * 16_384):,} tokens, "
        f"Maximum concurrency for 16,384 tokens per request: {concurrency:.2f}x",
    )


@pytest.mark.parametrize(
    ("gib", "blocks", "tokens", "printed"), [(3.81, 1952, 20_000, "1.56x"), (2.89, 1478, 29_000, "0.82x")]
)
def test_a_log_of_llama_8b_has_the_blocks_of_its_memory(
    gib: float, blocks: int, tokens: int, printed: str
) -> None:
    # vllm-project/vllm#10517: Llama 3.1 8B in 16 bits; the memory is printed to two decimals
    model = find_preset("llama-3.1-8b").model()
    low, high = (vllm(model, tokens, int((gib + error) * GIB)).num_gpu_blocks for error in (-0.005, 0.005))
    assert low <= blocks <= high
    exact = vllm(model, tokens, blocks * 16 * 131_072)
    assert exact.num_gpu_blocks == blocks
    assert exact.log[0].endswith(f"per request: {printed}")


def test_kinds_of_unlike_numbers_share_blocks_in_groups_of_the_rarest() -> None:
    # 4 full and 11 sliding layers: groups of 4, so 1 + 3 of them, and a block is 4 pages of 16 × 2 × 2 × 7 × 2 bytes.
    # 101 tokens: 7 blocks for the full group; min(33 - 1 + 50, 101) = 82 tokens are 6 blocks, and one more, for others
    model = dims(4, 11, kv_heads=2, head_dim=7, window=33)
    found = vllm(model, 101, 100 * 4 * 16 * 2 * 14 * 2, batched=50)
    assert found.num_gpu_blocks == 100
    assert found.max_concurrency == (100 / (7 + 3 * 7),)


def test_kinds_of_like_numbers_are_padded_to_the_larger() -> None:
    # 13 full and 12 sliding layers (fewer than half as many again): two groups of 13
    model = dims(13, 12, kv_heads=2, head_dim=7, window=33)
    found = vllm(model, 101, 100 * 13 * 16 * 2 * 14 * 2, batched=50)
    assert (found.num_gpu_blocks, found.max_concurrency) == (100, (100 / (7 + 7),))


def test_a_narrower_layer_gets_more_tokens_a_block() -> None:
    # a full layer of half the width: 32 tokens to a block beside the sliding layer's 16; 101 tokens are 4 blocks
    full = Layer(heads=4, kv_heads=1, k_dim=7, v_dim=7)
    sliding = Layer("sliding_attention", heads=4, kv_heads=2, k_dim=7, v_dim=7, window=33)
    found = vllm(CacheModel((full, sliding)), 101, 100 * 16 * 2 * 14 * 2, batched=50)
    assert (found.block_size, found.num_gpu_blocks) == (16, 100)
    assert found.max_concurrency == (100 / (4 + 7),)


def test_blocks_grow_to_hold_a_recurrent_state() -> None:
    # Qwen3-Next: 36 states of 8,192 × 3 × 2 + 524,288 × 4 bytes beside rows of 2 × 512 × 2; blocks grow by 16 tokens
    found = vllm(find_preset("Qwen/Qwen3-Next-80B-A3B-Instruct").model(), 32_768, 100 * GIB)
    state, row = 8192 * 3 * 2 + 524_288 * 4, 2 * 512 * 2
    assert found.block_size == -(-state // (16 * row)) * 16
    blocks = 100 * GIB // (12 * found.block_size * row)  # groups of 12: one of attention, three of states
    assert found.num_gpu_blocks == blocks
    assert found.max_concurrency == (blocks / (-(-32_768 // found.block_size) + 3),)


def test_pages_that_no_multiple_makes_equal_have_no_layout() -> None:
    layers = (
        Layer(heads=4, kv_heads=2, k_dim=7, v_dim=7),
        Layer("sliding_attention", heads=4, kv_heads=3, k_dim=7, v_dim=7, window=33),
    )
    report = kv_cache(CacheModel(layers), tokens=101, engine="vllm", memory_budget_bytes=10**6)
    assert report.capacity is not None
    assert report.capacity.vllm is None


def test_a_chunk_is_reserved_with_the_batched_tokens_and_no_page_more() -> None:
    # 95 + 50 = 145 tokens are 10 pages of 16; a window of 95 would be 144 tokens, 9 pages, and one more
    chunked = Layer("chunked_attention", heads=4, kv_heads=2, k_dim=7, v_dim=7, window=95)
    report = kv_cache(
        CacheModel((chunked,)),
        tokens=10_000,
        dtype="float16",
        engine="vllm",
        engine_options=EngineOptions(max_num_batched_tokens=50),
    )
    assert report.sizes[0].per_sequence_bytes == 160 * 2 * (7 + 7) * 2
