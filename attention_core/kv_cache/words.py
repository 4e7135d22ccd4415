"""Sizes and rates for a reader: units, and the formula in a model's own numbers."""

from collections import Counter
from fractions import Fraction

from attention_core.kv_cache.dtypes import Dtype, index_bytes, latent_bytes
from attention_core.kv_cache.layers import CROSS, Layer, State, alike
from attention_core.kv_cache.size import Cache

_KINDS = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "cross_attention": "cross-attention",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "gated_delta_net": "gated DeltaNet",
    "kimi_delta_attention": "Kimi delta attention",
    "lightning_attention": "lightning attention",
    "rg_lru": "RG-LRU",
    "short_conv": "short convolution",
}


def human_bytes(size: int) -> str:
    """A size in units of powers of 1024, to at most two decimals: 2147483648 is "2 GiB", 1536 "1.5 KiB"."""
    power, rounded = 0, Fraction(size)
    for larger in range(1, 7):
        scaled = round(Fraction(size, 1024**larger), 2)
        if scaled < 1:
            break
        power, rounded = larger, scaled
    whole, hundredths = divmod(int(rounded * 100), 100)
    decimals = f".{hundredths:02d}".rstrip("0").rstrip(".")
    return f"{whole}{decimals} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[power]}"


def formula(cache: Cache) -> str:
    """The rates spelt out: what every token adds, and what a sequence takes however long it is."""
    layers = alike(cache.layers)
    growing = {layer: count for layer, count in layers.items() if layer.keeps_rows}
    plain = len({layer.kind for layer in growing}) == 1 and not any(layer.window for layer in growing)
    rate = sum(count * cache.row_bytes(layer) for layer, count in growing.items())
    rows = " + ".join(_rows(cache, layer, count, plain) for layer, count in growing.items())
    sentences = [f"{rows} = {rate:,} bytes per token" if growing else "no bytes per token"]
    fixed = sum(count * cache.fixed_bytes(layer) for layer, count in layers.items())
    states: Counter[State] = Counter()
    for layer, count in layers.items():
        if layer.state:
            states[layer.state] += count
    constant = [_states(cache, state, count) for state, count in states.items()]
    constant += [_crossed(cache, layer, count) for layer, count in layers.items() if layer.kind == CROSS]
    if fixed:
        sentences.append(f"{' + '.join(constant)} = {fixed:,} bytes per sequence")
    return "; ".join(sentences)


def _rows(cache: Cache, layer: Layer, count: int, plain: bool) -> str:
    kind = "" if plain else f"{_KINDS.get(layer.kind, layer.kind)} "
    window = f" (window {layer.window:,})" if layer.window else ""
    return f"{_counted(count, f'{kind}layer')}{window} × {_row(cache, layer)}"


def _row(cache: Cache, layer: Layer) -> str:
    k, v = cache.types.k, cache.types.v
    if layer.latent:
        rank, rope = layer.latent.rank, layer.latent.rope_dim
        row = f"({rank} latent + {rope} rotary)"
        if latent_bytes(rank, rope, k) == (rank + rope) * k.bytes_per_element:
            row = f"{row} × {_per_element(k)}"
        else:
            row = f"{latent_bytes(rank, rope, k)} bytes of {row} in {k.name}"
        return f"({row} + {index_bytes(layer.index_dim, k)} bytes of indexer)" if layer.index_dim else row
    heads = _counted(layer.kv_heads, "KV head")
    if k == v and not k.row_scale_bytes:
        row = f"({layer.k_dim} + {layer.v_dim}) × {_per_element(k)}"
    else:
        row = f"({_head(layer.k_dim, k)} + {_head(layer.v_dim, v)})"
    row = f"{heads} × {row}"
    return f"({row} + {index_bytes(layer.index_dim, k)} bytes of indexer)" if layer.index_dim else row


def _head(width: int, dtype: Dtype) -> str:
    scale = f" + {dtype.row_scale_bytes}" if dtype.row_scale_bytes else ""
    return f"{width} × {_per_element(dtype)}{scale}"


def _crossed(cache: Cache, layer: Layer, count: int) -> str:
    encoder = f"{cache.encoder_tokens:,} encoder tokens"
    return f"{_counted(count, 'cross-attention layer')} × {encoder} × {_row(cache, layer)}"


def _states(cache: Cache, state: State, count: int) -> str:
    parts = []
    if state.channels and state.kernel > 1:
        width = _per_element(cache.types.activation)
        parts.append(f"{state.channels:,} channels × {_counted(state.kernel - 1, 'column')} × {width}")
    if state.elements:
        parts.append(f"{state.elements:,} elements × {_per_element(cache.types.of_state(state))}")
    return f"{_counted(count, f'{_KINDS.get(state.kind, state.kind)} layer')} × ({' + '.join(parts)})"


def _counted(number: int | Fraction, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _per_element(dtype: Dtype) -> str:
    return _counted(dtype.bytes_per_element, "byte")
