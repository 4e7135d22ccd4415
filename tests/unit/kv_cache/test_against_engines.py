"""How vLLM lays layers out, and what its own tests assert; what engines print is in `test_against_engine_logs`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attention_core.kv_cache import (
    CacheModel,
    Dims,
    EngineOptions,
    Layer,
    State,
    VllmCapacity,
    find_preset,
    kv_cache,
)
from attention_core.kv_cache.layers import Latent, latent_layer

GIB = 2**30


def dims(full: int, sliding: int, *, kv_heads: int, head_dim: int, window: int) -> CacheModel:
    kinds = ("full_attention",) * full + ("sliding_attention",) * sliding
    return CacheModel.from_dims(
        Dims(full + sliding, kv_heads, kv_heads, head_dim, window=window, layer_types=kinds)
    )


def vllm(
    model: CacheModel,
    tokens: int,
    budget: int,
    *,
    batched: int = 8192,
    prefix_caching: bool = True,
    page_size: int | None = None,
) -> VllmCapacity:
    report = kv_cache(
        model,
        tokens=tokens,
        dtype="float16",
        page_size=page_size,
        engine="vllm",
        engine_options=EngineOptions(max_num_batched_tokens=batched, prefix_caching=prefix_caching),
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


def rows(count: int, width: int, *, slides: bool = False) -> tuple[Layer, ...]:
    """Layers of the rows in vLLM's own tests: two heads, a window of one token."""
    layer = Layer(heads=2, kv_heads=2, k_dim=width, v_dim=width)
    return (replace(layer, kind="sliding_attention", window=1) if slides else layer,) * count


@pytest.mark.parametrize(
    ("layers", "pages", "blocks"),
    [
        (rows(2, 64), 2 * 32, 32),
        (rows(2, 64, slides=True), 2 * 32, 32),
        (rows(1, 64) + rows(1, 64, slides=True), 2 * 32, 64),
        (rows(2, 64) + rows(4, 64, slides=True), 2 * 32, 32),
        (rows(3, 64) + rows(7, 64, slides=True), 3 * 32, 32),
        (rows(6, 64) + rows(5, 64, slides=True), 6 * 32, 32),
        (rows(1, 128) + rows(1, 64), 3 * 32, 32),
        (rows(1, 64) + rows(1, 32, slides=True), 32, 32),
        (rows(1, 64) + rows(1, 96, slides=True), 2 * 32, 42),
    ],
    ids=[
        "full",
        "sliding",
        "1+1",
        "2+4",
        "3+7 padded",
        "6+5 padded",
        "one kind",
        "longer block",
        "padded page",
    ],
)
def test_blocks_are_those_of_vllms_own_test(layers: tuple[Layer, ...], pages: int, blocks: int) -> None:
    # test_get_kv_cache_config_one_worker: float32, memory in pages of 16 tokens of two heads of 64
    report = kv_cache(
        CacheModel(layers),
        tokens=16,
        dtype="float32",
        engine="vllm",
        memory_budget_bytes=pages * 16 * 2 * 64 * 4 * 2,
    )
    assert report.capacity is not None
    assert report.capacity.vllm is not None
    assert report.capacity.vllm.num_gpu_blocks == blocks


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
    attention = -(-32_768 // found.block_size)
    assert found.max_concurrency == (blocks / (attention + 3 * 2),)


def test_without_prefix_caching_a_request_has_one_state() -> None:
    # 2 rows of 2 × 14 × 2 bytes and 6 states of 29 × 4: two tokens hold one, but a block is at least 16; groups of 2
    layers = (Layer(heads=2, kv_heads=2, k_dim=7, v_dim=7),) * 2 + (
        Layer("mamba", state=State("mamba", 0, 1, 29, (1,))),
    ) * 6
    budget = 100 * 2 * 16 * 2 * 14 * 2
    with_it = vllm(CacheModel(layers), 101, budget)
    without = vllm(CacheModel(layers), 101, budget, prefix_caching=False)
    assert (with_it.num_gpu_blocks, without.num_gpu_blocks) == (100, 100)
    assert with_it.max_concurrency == (100 / (7 + 3 * 2),)
    assert without.max_concurrency == (100 / (7 + 3),)


def test_blocks_that_hold_a_state_are_whole_blocks_of_the_size_asked_for() -> None:
    # a state of 9,999 × 4 bytes beside a row of 2 × 14 × 2: 714 tokens, so 45 blocks of 16 or 12 of 64
    layers = (
        Layer(heads=2, kv_heads=2, k_dim=7, v_dim=7),
        Layer("mamba", state=State("mamba", 0, 1, 9999, (1,))),
    )
    for page, block in ((None, 720), (64, 768)):
        assert vllm(CacheModel(layers), 101, 10**6, page_size=page).block_size == block


def test_layers_that_differ_in_query_heads_alone_are_of_one_kind() -> None:
    # 4 full layers and 8 sliding ones of two numbers of query heads: 1 + 2 groups of 4, as without the difference
    full = Layer(heads=4, kv_heads=2, k_dim=7, v_dim=7)
    sliding = Layer("sliding_attention", heads=4, kv_heads=2, k_dim=7, v_dim=7, window=33)
    layers = (full,) * 4 + (sliding,) * 5 + (replace(sliding, heads=6),) * 3
    found = vllm(CacheModel(layers), 101, 100 * 4 * 16 * 2 * 14 * 2, batched=50)
    assert (found.num_gpu_blocks, found.max_concurrency) == (100, (100 / (7 + 2 * 7),))


def test_pages_that_no_multiple_makes_equal_are_padded() -> None:
    # rows of 2 and 3 heads: a block of 16 tokens of either takes 16 × 3 × 14 × 2 bytes
    layers = (
        Layer(heads=6, kv_heads=2, k_dim=7, v_dim=7),
        Layer("sliding_attention", heads=6, kv_heads=3, k_dim=7, v_dim=7, window=33),
    )
    found = vllm(CacheModel(layers), 101, 100 * 16 * 3 * 14 * 2, batched=50)
    assert (found.block_size, found.num_gpu_blocks) == (16, 100)
    assert found.max_concurrency == (100 / (7 + 7),)


def test_latent_pages_that_no_multiple_makes_equal_have_no_layout() -> None:
    layers = (
        latent_layer(4, Latent(rank=11, rope_dim=2, k_dim=7, v_dim=7)),
        Layer("sliding_attention", heads=4, kv_heads=1, k_dim=7, v_dim=7, window=33),
    )
    report = kv_cache(
        CacheModel(layers), tokens=101, dtype="float16", engine="vllm", memory_budget_bytes=10**6
    )
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
