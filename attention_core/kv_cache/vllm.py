"""How vLLM cuts the memory it has into blocks, and what its log then says.

vLLM's v1 engine gives every layer a page for each block of tokens. Layers that all keep every token, or all the same
window, are one group: a block is a page in every layer. Where kinds differ, they are put into groups of equally many
layers, and the pool of blocks is shared by the groups:

    one group       blocks = budget // Σ_layers page bytes
    several groups  blocks = budget // page bytes // layers per group
    concurrency     blocks / Σ_groups blocks of one request
    cache size      concurrency * length of a request, in tokens (before 0.21: blocks // groups * block size, which is
                    the same for one group and whole blocks)

Source: vLLM's kv_cache_utils and kv_cache_interface (v1), read 2026-11-30; not affected by settings that are not
arguments here (context parallelism, speculative decoding, a disabled hybrid manager).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attention_core.kv_cache.layers import Layer
from attention_core.kv_cache.size import Cache

ALIGNMENT = 16  # tokens: blocks that must hold a recurrent state grow by so many


@dataclass(frozen=True)
class VllmCapacity:
    """Blocks of `block_size` tokens in the memory of one rank; how many requests, and tokens, of each asked length.

    `log` are the lines that vLLM would print with `max_model_len` set to each length.
    """

    block_size: int
    num_gpu_blocks: int
    kv_cache_tokens: tuple[int, ...]
    max_concurrency: tuple[float, ...]
    log: tuple[str, ...]


@dataclass(frozen=True)
class _Kind:
    """Layers with the same layout: one of them, how many there are, tokens and bytes of a page in one of them."""

    layer: Layer
    layers: int
    block: int
    page: int


def vllm_capacity(cache: Cache, tokens: Sequence[int], budget: int) -> VllmCapacity | None:
    """The blocks in `budget` bytes of one rank. None where nothing is kept, or where vLLM could not lay it out."""
    kinds = _kinds(cache)
    if kinds is None or not any(kind.block for kind in kinds):
        return None
    looks = {(kind.layer.kind, kind.layer.window) for kind in kinds}
    if len(looks) == 1:  # one group: the widths may differ, the block tables do not
        blocks = budget // sum(kind.layers * kind.page for kind in kinds)
        groups = [kinds[0]]
    else:
        blocks_of, groups = _groups(kinds)
        blocks = budget // blocks_of
    block = min(group.block for group in groups if group.block)
    concurrency = tuple(blocks / sum(_blocks(cache, group, count) for group in groups) for count in tokens)
    held = tuple(int(many * count) for many, count in zip(concurrency, tokens, strict=True))
    lines = tuple(
        f"GPU KV cache size: {size:,} tokens, Maximum concurrency for {count:,} tokens per request: {many:.2f}x"
        for size, count, many in zip(held, tokens, concurrency, strict=True)
    )
    return VllmCapacity(block, blocks, held, concurrency, lines)


def _kinds(cache: Cache) -> list[_Kind] | None:
    """Pages of one size: smaller ones get more tokens; a recurrent state is one page, and blocks grow to hold it."""
    block = cache.engine.page
    attention = [(part.layer, part.count, part.rank_row) for part in cache.parts if part.rank_row]
    states = [(part.layer, part.count, part.rank_state) for part in cache.parts if part.rank_state]
    if states and attention:
        smallest = ALIGNMENT * max(row for _, _, row in attention)
        block = max(block, ALIGNMENT * -(-max(state for _, _, state in states) // smallest))
    page = max((block * row for _, _, row in attention), default=0)
    one_kind = not states and len({(layer.kind, layer.window) for layer, _, _ in attention}) == 1
    kinds = []
    for layer, count, row in attention:
        if one_kind:
            kinds.append(_Kind(layer, count, block, block * row))
        elif page % (block * row):
            return None
        else:
            kinds.append(_Kind(layer, count, page // row, page))
    kinds += [_Kind(Layer(layer.state.kind), count, 0, page) for layer, count, _ in states if layer.state]
    return kinds


def _groups(kinds: Sequence[_Kind]) -> tuple[int, list[_Kind]]:
    """Bytes of a block, and the kind of every group: as many layers in each as the rarest kind has.

    Where no kind has half as many again, as many as the most frequent has: the others' groups are then padded.
    """
    fewest, most = min(kind.layers for kind in kinds), max(kind.layers for kind in kinds)
    size = most if most < 1.5 * fewest else fewest
    groups = [kind for kind in kinds for _ in range(-(-kind.layers // size))]
    longest = max(-(-kind.layers // -(-kind.layers // size)) for kind in kinds)
    return longest * kinds[0].page, groups


def _blocks(cache: Cache, group: _Kind, tokens: int) -> int:
    """Blocks of one request in one group."""
    if not group.block:
        return 1
    paged = replace(cache.engine, page=group.block)
    return paged.rows(group.layer, tokens, cache.encoder_tokens) // group.block
