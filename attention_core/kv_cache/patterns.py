"""Which layer of a model is of what kind: the ways in which a config can say it, in the order in which they count."""

from collections.abc import Callable, Mapping, Sequence

from attention_core.kv_cache.fields import Fields
from attention_core.kv_cache.layers import CHUNKED, FULL, NONE, SLIDING

MAMBA, MAMBA2, DELTA_NET = "mamba", "mamba2", "gated_delta_net"
KDA, LIGHTNING, RG_LRU, SHORT_CONV = "kimi_delta_attention", "lightning_attention", "rg_lru", "short_conv"
LINEAR = "linear"  # recurrent, of the kind whose sizes the config has
PARALLEL = "parallel_hybrid"  # attention and a recurrence side by side in one layer
INDEXED = "indexed_attention"  # with a sparse-attention indexer

# What a list of layers may say, and what it is here
KINDS = {
    "full_attention": FULL,
    "attention": FULL,
    "global": FULL,
    "sliding_attention": SLIDING,
    "local": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": LINEAR,
    "indexed_attention": INDEXED,
    "hybrid": PARALLEL,
    "recurrent": RG_LRU,
    "conv": SHORT_CONV,
    "mamba": LINEAR,
    "none": NONE,
    "moe": NONE,
    "mlp": NONE,
}
OVERRIDE_PATTERN = {"M": MAMBA2, "*": FULL, "-": NONE, "E": NONE}
SLIDING_PATTERN = {"L": SLIDING, "G": FULL}

Kinds = Sequence[str]


def layer_kinds(text: Fields, family: str, count: int, assume: Callable[[str], None]) -> Kinds:
    """The kind of every layer, from the first source that applies.

    `text` is the text model's config, `family` its model_type. Raises CacheInputError.
    """
    if family in WHOLE_MODELS:
        return (WHOLE_MODELS[family],) * count
    for source in (
        _layer_types,
        _attention_types,
        _attention_layers,
        _linear_attention_config,
        _attn_type_list,
        _hybrid_layer_pattern,
        _chunks,
        _sliding_window_pattern,
        _alternation,
        _attention_period,
        _attention_interval,
        _override_pattern,
        _blocks,
        _window,
    ):
        if (kinds := source(text, family, count, assume)) is not None:
            return kinds
    return (FULL,) * count


# Heads' widths and groups: Mamba-1 has neither
MAMBA2_FIELDS = (
    "mamba_d_head",
    "mamba_head_dim",
    "mamba_headdim",
    "mamba_n_groups",
    "mamba_ngroups",
    "n_groups",
)
WHOLE_MODELS = {"mamba": MAMBA, "falcon_mamba": MAMBA, "mamba2": MAMBA2, "falcon_h1": PARALLEL}

# Griffin's lists: shorter than the model, its attention over a window
REPEATED = (
    "block_types",
    "_block_types",
)

# Families whose layers alternate even where the config does not say so: full attention where (i + 1) % period is 0
PERIODS = {"gemma2": 2, "gpt_oss": 2, "vaultgemma": 2, "gemma3": 6, "gemma3n": 5, "cohere2": 4, "olmo3": 4}


def _layer_types(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    name = text.name("layer_types", "layers_block_type", "block_types", "_block_types", "attention_layers")
    entries = text.items(name, None if name in REPEATED else count) if name else None
    if name is None or entries is None:
        return None
    kinds = _known(text, name, entries, KINDS)
    if name in REPEATED:  # repeated, the attention among them over a window
        kinds = [SLIDING if kinds[i % len(kinds)] == FULL else kinds[i % len(kinds)] for i in range(count)]
    return kinds


def _attention_types(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """GPT-Neo: [[["global", "local"], 12]] are 24 layers."""
    parts = text.items("attention_types")
    if parts is None:
        return None
    entries: list[object] = []
    for part in parts:
        match part:
            case [[*_], bool()]:
                raise text.fault("attention_types", "wrong_type", "A number of repetitions is no truth value")
            case [[*kinds], int(times)] if 0 < times <= count and len(kinds) <= count:
                entries += kinds * times
            case _:
                raise text.fault("attention_types", "wrong_type", "Each part is a list of kinds and a number")
        if len(entries) > count:
            break
    if len(entries) != count:
        sentence = f"attention_types is not of {count} layers"
        raise text.fault("attention_types", "pattern_length", sentence)
    return _known(text, "attention_types", entries, KINDS)


def recurrent_kind(text: Fields, family: str) -> str:
    """Which recurrence a config has the sizes of."""
    if family.startswith("minimax"):
        return LIGHTNING
    if text.name("linear_num_heads", "linear_attn_config"):
        return KDA
    if text.name("linear_num_key_heads", "linear_num_value_heads"):
        return DELTA_NET
    return MAMBA2 if text.name(*MAMBA2_FIELDS) else MAMBA


def _attention_layers(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """Bamba and LFM2: which layers attend, by number; the others are recurrent, or convolutions."""
    numbers = text.numbers("attn_layer_indices", 0, count)
    if numbers is not None:
        return [FULL if index in numbers else LINEAR for index in range(count)]
    numbers = text.numbers("full_attn_idxs", 0, count)
    return None if numbers is None else [FULL if index in numbers else SHORT_CONV for index in range(count)]


def _linear_attention_config(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """Kimi Linear: which layers attend, counted from 1."""
    inner = text.within("linear_attn_config")
    if inner is None:
        return None
    numbers = inner.numbers("full_attn_layers", 1, count)
    if numbers is None:
        raise inner.missing("full_attn_layers")
    return [FULL if index + 1 in numbers else KDA for index in range(count)]


def _attn_type_list(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """MiniMax: 1 attends, 0 is recurrent."""
    return _switches(text, "attn_type_list", count, on=FULL, off=LINEAR)


def _hybrid_layer_pattern(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    return _switches(text, "hybrid_layer_pattern", count, on=SLIDING)


def _chunks(text: Fields, family: str, count: int, assume: Callable[[str], None]) -> Kinds | None:
    """Llama 4. A chunk size of another family means nothing by itself."""
    if family != "llama4" or text.count("attention_chunk_size") is None:
        return None
    if text.get("no_rope_layers") != [] and (  # an empty list was the default of its first configs
        kinds := _switches(text, "no_rope_layers", count, on=CHUNKED)
    ):
        return kinds
    assume("no no_rope_layers: every 4th layer is full, the others are chunked")
    return _every(4, count, CHUNKED)


def _sliding_window_pattern(
    text: Fields, family: str, count: int, assume: Callable[[str], None]
) -> Kinds | None:
    if isinstance(text.get("sliding_window_pattern"), str):
        return _letters(text, "sliding_window_pattern", count)
    period = text.count("sliding_window_pattern")
    return None if period is None else _every(period, count, SLIDING)


def _letters(text: Fields, name: str, count: int) -> Kinds:
    """Letters that repeat: L for a sliding layer, G for a full one."""
    letters = _known(text, name, text.items(name) or "", SLIDING_PATTERN)
    return [letters[index % len(letters)] for index in range(count)]


def _alternation(text: Fields, family: str, count: int, assume: Callable[[str], None]) -> Kinds | None:
    if family not in PERIODS:
        return None
    period = PERIODS[family]
    assume(f"no layer pattern: in {family} one layer of {period} is full, the others slide")
    return _every(period, count, SLIDING)


def _attention_period(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """Jamba."""
    period = text.count("attn_layer_period")
    if period is None:
        return None
    offset = text.need("attn_layer_offset", at_least=0)
    return [FULL if index % period == offset else MAMBA for index in range(count)]


def _attention_interval(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """Qwen3-Next."""
    interval = text.count("full_attention_interval")
    return None if interval is None else _every(interval, count, DELTA_NET)


def _override_pattern(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """Nemotron-H."""
    name = "hybrid_override_pattern"
    letters = text.items(name, count)
    return None if letters is None else _known(text, name, letters, OVERRIDE_PATTERN)


def _blocks(text: Fields, family: str, count: int, _: Callable[[str], None]) -> Kinds | None:
    """Nemotron-NAS: which blocks attend, and over which window."""
    kinds = []
    for index in range(count):
        block = text.entry("block_configs", index, count)
        if block is None:
            return None
        attention = block.within("attention")
        if attention is None:
            raise block.missing("attention")
        if attention.flag("no_op") or attention.flag("replace_with_linear"):
            kinds.append(NONE)
        else:
            kinds.append(FULL if attention.count("window_length") is None else SLIDING)
    return kinds


def _window(text: Fields, family: str, count: int, assume: Callable[[str], None]) -> Kinds | None:
    """Qwen's switch, else a window that stands by itself."""
    if text.get("use_sliding_window") is not None or family.startswith(("qwen2", "qwen3")):
        if not text.flag("use_sliding_window"):
            if text.get("sliding_window") is not None:
                assume("use_sliding_window is not true: sliding_window is ignored")
            return (FULL,) * count
        first = text.need("max_window_layers", at_least=0)
        return [FULL if index < first else SLIDING for index in range(count)]
    if text.count("sliding_window") is None:
        return None
    assume("a sliding_window and no layer pattern: every layer slides")
    return (SLIDING,) * count


def _known(text: Fields, name: str, entries: Sequence[object], kinds: Mapping[str, str]) -> list[str]:
    """What the entries of a list, or the letters of a pattern, stand for."""
    for index, entry in enumerate(entries):
        if not isinstance(entry, str) or entry not in kinds:
            raise text.fault(name, "unknown_layer_kind", f"Entry {index} is none of {', '.join(kinds)}")
    return [kinds[str(entry)] for entry in entries]


def _every(period: int, count: int, others: str) -> Kinds:
    """Full attention where (i + 1) % period is 0, in the other layers `others`."""
    return [FULL if (index + 1) % period == 0 else others for index in range(count)]


def _switches(text: Fields, name: str, count: int, *, on: str, off: str = FULL) -> Kinds | None:
    """A list of 1 for layers of the kind `on` and 0 for those of the kind `off`."""
    entries = text.items(name, count)
    if entries is None:
        return None
    for index, entry in enumerate(entries):
        if entry not in (0, 1):
            raise text.fault(name, "unknown_layer_kind", f"Entry {index} is neither 0 nor 1")
    return [on if entry else off for entry in entries]
