"""How vLLM cuts the memory it has into blocks, and what its log then says.

vLLM's v1 engine gives every layer a page for each block of tokens. Layers that all keep every token, or all the same
window, are one group: a block is a page in every layer. Where kinds differ, they are put into groups of equally many
layers, and the pool of blocks is shared by the groups:

    one group       blocks = budget // Σ_layers page bytes
    several groups  blocks = budget // page bytes // layers per group
    concurrency     blocks / Σ_groups blocks of one request
    cache size      concurrency * length of a request, in tokens (before 0.20.1: blocks // groups * block size, which
                    is the same for one group and whole blocks)

A request takes ceil(rows / block size) blocks of a group of attention. Of a group of recurrent states it takes one,
and with prefix caching, which releases since 0.33 at the latest have on, a second: the state at the last whole block.

Source: vLLM 0.33.0's kv_cache_planning, kv_cache_interface and platforms.interface; settings that are not arguments
here (context parallelism, speculative decoding, a disabled hybrid manager, a block-outermost layout) are left at their
defaults. Since 0.26 a window keeps two steps' tokens, as scheduling is asynchronous: `max_num_batched_tokens` is then
twice vLLM's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attention_core.kv_cache.layers import Layer
from attention_core.kv_cache.size import Cache

SMALLEST_BLOCK = 16  # tokens, of vLLM's attention kernels


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
    """Pages of one size: a narrow row gets more tokens of one, or else what is left of it stays empty.

    A recurrent state is one page; blocks grow, by whole blocks of the size asked for, until a page holds it.
    """
    counts: dict[tuple[str, int | None, int], int] = {}
    layers: dict[tuple[str, int | None, int], Layer] = {}
    for part in cache.parts:
        if part.rank_row:  # what else differs, such as query heads, does not enter a page
            key = (part.layer.kind, part.layer.window, part.rank_row)
            counts[key] = counts.get(key, 0) + part.count
            layers[key] = part.layer
    states = [(part.layer.state, part.count, part.rank_state) for part in cache.parts if part.rank_state]
    block, widest = cache.engine.page, max((row for _, _, row in counts), default=0)
    if states and counts:
        step = max(block, SMALLEST_BLOCK)
        block = step * -(-max(size for _, _, size in states) // (step * widest))
    if not states and len({key[:2] for key in counts}) == 1:
        return [_Kind(layers[key], count, block, block * key[2]) for key, count in counts.items()]
    page = block * widest
    kinds = []
    for (kind, window, row), count in counts.items():
        layer = layers[kind, window, row]
        if widest % row and layer.latent:
            return None  # latent rows lie densely: their pages are not padded
        kinds.append(_Kind(layer, count, block if widest % row else block * widest // row, page))
    return kinds + [_Kind(Layer(state.kind), count, 0, page) for state, count, _ in states if state]


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
        return cache.engine.state_blocks
    paged = replace(cache.engine, page=group.block)
    return paged.rows(group.layer, tokens, cache.encoder_tokens) // group.block
