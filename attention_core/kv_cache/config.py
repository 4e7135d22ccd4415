"""Reading a Hugging Face config.json into layers, field by field.

Nothing is guessed: every default taken is named in `assumptions`, and a config with a field that speaks of a cache not
modelled here is refused with the field's name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attention_core.kv_cache.dtypes import DTYPES, PLAIN_DTYPES
from attention_core.kv_cache.fields import Fields
from attention_core.kv_cache.layers import (
    CHUNKED,
    CROSS,
    FULL,
    MAX_LAYERS,
    NONE,
    SLIDING,
    CacheModel,
    Latent,
    Layer,
    State,
    latent_layer,
    of_kind,
    positive,
)
from attention_core.kv_cache.patterns import DELTA_NET, MAMBA, MAMBA2, PARALLEL, WHOLE_MODELS, layer_kinds

TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")  # of a multimodal model
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
WIDTH = ("hidden_size", "n_embd", "d_model")
MAX_TOKENS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length")

# Fields that hold for layers of one kind only
SLIDING_FIELDS = {
    "heads": ("swa_num_attention_heads",),
    "kv_heads": ("swa_num_key_value_heads",),
    "k_dim": ("swa_head_dim",),
    "v_dim": ("swa_v_head_dim",),
}
FULL_FIELDS = {"kv_heads": ("num_global_key_value_heads",), "k_dim": ("global_head_dim",)}
SEQ2SEQ = frozenset(
    {"whisper", "t5", "mt5", "umt5", "longt5", "bart", "mbart", "m2m_100", "marian", "pegasus"}
)

# A field with one of these words speaks of a cache; one that was not read is a cache that is not modelled
_RECURRENT = re.compile(
    r"(^|_)(ssm|mamba|conv|conv1d|convolution)(_|$)|^(linear_(attn|num|key|value|conv|head)|state_size|d_state)",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r"(^|_)(rwkv|lru|recurrent|recurrence|retention|lightning|compress\w*|kda|gla|delta|deltanet|hyena|lsh|kpool|indexer"
    r"|loop|loops|yoco|cla)(_|$)|^(index_|attention_window|keep_window|kv_source|kv_shar|share_kv|num_mem_blocks"
    r"|cross_attention_layers|cross_layer)",
    re.IGNORECASE,
)
# With one of these every layer's kind is known, so that what no layer uses is not missed
_EVERY_KIND = (
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_layer_period",
    "full_attention_interval",
)


def read_config(config: Mapping[str, object]) -> CacheModel:
    """The layers that a Hugging Face config describes, and what of it had to be assumed.

    Raises CacheInputError, whose `place` lies within the config, for a count that is missing, not a whole number or not
    positive, for a pattern that does not fit the layers, and for a cache that is not modelled here.
    """
    return _Reader.of(config).model()


@dataclass
class _Reader:
    """Reads one config. `family` is the model_type of the text model, without `_text` at the end."""

    outer: Fields
    text: Fields
    family: str
    assumptions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, object]) -> "_Reader":
        outer = Fields(config, ())
        text = outer
        while (inner := next(filter(None, map(text.within, TEXT_PARTS)), None)) is not None:
            text = inner
        named = text.text("model_type") or outer.text("model_type") or ""
        return cls(outer, text, named.removesuffix("_text"))

    def model(self) -> CacheModel:
        if self.family in SEQ2SEQ or self.text.flag("is_encoder_decoder"):
            layers, mtp, encoder_tokens = self._encoder_decoder()
        else:
            layers, mtp, encoder_tokens = (*self._decoder(), None)
        max_tokens = self.text.count(*MAX_TOKENS)
        dtype = self._dtype()
        state_dtype = self._state_dtype()
        self._refuse_unread()
        if self.outer.get("quantization_config") or self.text.get("quantization_config"):
            self.warnings.append("the checkpoint's weights are quantised; its cache is not, unless asked for")
        return CacheModel(
            layers,
            name=self.outer.text("_name_or_path") or None,
            dtype=dtype,
            max_tokens=max_tokens,
            encoder_tokens=encoder_tokens,
            state_dtype=state_dtype,
            mtp_layers=mtp,
            assumptions=tuple(self.assumptions),
            warnings=tuple(self.warnings),
        )

    # --- decoders ---

    def _decoder(self) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
        count = self._layer_count(*LAYERS)
        kinds = layer_kinds(self.text, self.family, count, self._assume)
        layers = tuple(self._layer(kind, index, count) for index, kind in enumerate(kinds))
        layers = self._share(layers)
        more = self.text.count("num_nextn_predict_layers", at_least=0) or 0
        last = next((layer for layer in reversed(layers) if layer.attends), None)
        return layers, (replace(last, shared=False),) * more if last else ()

    def _layer_count(self, *names: str) -> int:
        count = self.text.need(*names)
        if count > MAX_LAYERS:
            raise self.text.fault(
                self.text.name(*names) or names[0], "out_of_range", f"At most {MAX_LAYERS:,} layers"
            )
        return count

    def _layer(self, kind: str, index: int, count: int) -> Layer:
        if kind == NONE:
            return Layer(NONE)
        if kind in STATES:
            return Layer(kind, state=STATES[kind](self.text))
        if kind == PARALLEL:
            return replace(self._attention(FULL, index, count), state=_mamba2(self.text))
        return self._attention(kind, index, count)

    def _attention(self, kind: str, index: int, count: int) -> Layer:
        """A layer of self-attention: heads and widths as they are for its kind, and its window."""
        heads = self._per_layer(HEADS, index, count)
        if heads == 0:
            return Layer(NONE)
        window = self._window(kind, index, count)
        if (rank := self.text.count("kv_lora_rank")) is not None:
            return of_kind(self._latent(heads, rank), kind, window)
        special = {SLIDING: SLIDING_FIELDS, FULL: FULL_FIELDS}.get(kind, {})
        heads = self.text.count(*special.get("heads", ())) or heads
        kv_heads = self.text.count(*special.get("kv_heads", ())) or self._kv_heads(heads, index, count)
        if kv_heads == 0:
            return Layer(NONE)
        k_dim = self.text.count(*special.get("k_dim", ())) or self._head_dim(heads)
        v_dim = self.text.count(*special.get("v_dim", ())) or self.text.count("v_head_dim") or k_dim
        row = Layer(heads=heads, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim, hf_heads=self._hf_heads(heads))
        return of_kind(row, kind, window)

    def _latent(self, heads: int, rank: int) -> Layer:
        rope = self.text.need("qk_rope_head_dim", at_least=0)
        nope = self.text.count("qk_nope_head_dim", at_least=0)
        k_dim = self._head_dim(heads) if nope is None else nope + rope
        v_dim = self.text.count("v_head_dim") or nope or k_dim
        index = self.text.count("index_head_dim") or 0
        self.text.name("index_n_heads", "index_topk")  # read: they do not enter the cache
        return latent_layer(heads, Latent(rank, rope, k_dim, v_dim), index)

    def _per_layer(self, names: Sequence[str], index: int, count: int) -> int:
        """A count that may be a list with an entry for each layer; 0 there is a layer without a cache."""
        name = self.text.name(*names)
        if name is None:
            raise self.text.missing(*names)
        if not isinstance(self.text.values[name], list | tuple):
            return self.text.need(name)
        entries = self.text.items(name, count) or ()
        return positive(entries[index], *self.text.place, name, index, at_least=0)

    def _kv_heads(self, heads: int, index: int, count: int) -> int:
        text = self.text
        if self.family == "falcon" and not text.flag("new_decoder_architecture"):
            text.name(*KV_HEADS)
            return 1 if text.flag("multi_query", default=True) else heads
        if self.family == "gpt_bigcode":
            return 1 if text.flag("multi_query", default=True) else heads
        blocks = text.objects("block_configs", count)
        if blocks and (attention := blocks[index].within("attention")):
            group = attention.need("n_heads_in_group")
            if heads % group:
                sentence = f"{heads} heads cannot be divided into groups of {group}"
                raise attention.fault("n_heads_in_group", "not_divisible", sentence)
            return heads // group
        attention = text.within("attn_config")
        if attention is not None and (inner := attention.count("kv_n_heads")) is not None:
            return inner
        if text.name(*KV_HEADS) is None:
            self._assume(f"no {KV_HEADS[0]}: every head has its own K and V, {heads}")
            return heads
        return self._per_layer(KV_HEADS, index, count)

    def _hf_heads(self, heads: int) -> int | None:
        return heads if self.family == "falcon" and self.text.flag("new_decoder_architecture") else None

    def _head_dim(self, heads: int) -> int:
        given = self.text.count("head_dim", "kv_channels")
        if given is not None:
            return given
        width = self.text.need(*WIDTH)
        if width % heads:
            name = self.text.name(*WIDTH) or WIDTH[0]
            sentence = f"{name} = {width} is not divisible by {heads} heads, and head_dim is not given"
            raise self.text.fault(name, "not_divisible", sentence)
        self._assume(f"no head_dim: {width} / {heads} heads = {width // heads}")
        return width // heads

    def _window(self, kind: str, index: int, count: int) -> int | None:
        if kind == FULL:
            return None
        if kind == CHUNKED:
            return self.text.need("attention_chunk_size")
        blocks = self.text.objects("block_configs", count)
        if blocks and (attention := blocks[index].within("attention")):
            return attention.need("window_length")
        return self.text.need("sliding_window", "window_size")

    def _share(self, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        """The last `num_kv_shared_layers` read what earlier layers keep; or groups of `cla_share_factor` do."""
        last = self.text.count("num_kv_shared_layers", at_least=0) or 0
        if last > len(layers):
            sentence = f"{last} shared layers of {len(layers)}"
            raise self.text.fault("num_kv_shared_layers", "out_of_range", sentence)
        owners = len(layers) - last
        factor = self.text.count("cla_share_factor") or 1
        if not self.text.flag("use_cla", default=factor > 1):
            factor = 1
        return tuple(
            replace(layer, shared=True) if layer.attends and (index >= owners or index % factor) else layer
            for index, layer in enumerate(layers)
        )

    # --- encoder-decoders ---

    def _encoder_decoder(self) -> tuple[tuple[Layer, ...], tuple[Layer, ...], int | None]:
        text = self.text
        count = self._layer_count("decoder_layers", "num_decoder_layers", "num_layers")
        heads = text.need("decoder_attention_heads", "num_heads", "num_attention_heads")
        width = text.count("d_kv") or self._head_dim(heads)
        own = Layer(heads=heads, kv_heads=heads, k_dim=width, v_dim=width)
        layers = (own, replace(own, kind=CROSS)) * count
        encoder_tokens = text.count("max_source_positions")
        if encoder_tokens is not None:
            self._assume(f"encoder_tokens from max_source_positions: {encoder_tokens:,}")
        return layers, (), encoder_tokens

    # --- types ---

    def _dtype(self) -> str | None:
        for fields in (self.text, self.outer):
            name = fields.name("dtype", "torch_dtype")
            if name is None:
                continue
            dtype = (fields.text(name) or "").removeprefix("torch.")
            if dtype not in DTYPES:
                raise fields.fault(name, "unknown_option", f"{name} is not a known type")
            return dtype
        return None

    def _state_dtype(self) -> str | None:
        name = self.text.name("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
        if name is None:
            return None
        dtype = (self.text.text(name) or "").removeprefix("torch.")
        if dtype not in PLAIN_DTYPES:
            raise self.text.fault(name, "unknown_option", f"{name} is one of {', '.join(PLAIN_DTYPES)}")
        return dtype

    # --- fail closed ---

    def _refuse_unread(self) -> None:
        text = self.text
        every_kind = text.name(*_EVERY_KIND) is not None or self.family in WHOLE_MODELS
        unread = [
            name
            for name, value in text.values.items()
            if (_OTHER.search(name) or (_RECURRENT.search(name) and not every_kind))
            and name not in text.read
            and value not in (None, False, 0, "", [], {})
        ]
        if unread:
            names = ", ".join(name[:64] for name in unread[:8])
            sentence = f"Fields that speak of a cache not modelled here: {names}"
            raise text.fault(unread[0], "unsupported_cache", sentence)

    def _assume(self, sentence: str) -> None:
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)


def _mamba(text: Fields) -> State:
    d_inner = text.count("intermediate_size") if text.name("state_size") else None
    if d_inner is None:
        d_inner = text.need("mamba_expand", "expand") * text.need(*WIDTH)
    return State.mamba(
        d_inner=d_inner,
        d_state=text.need("mamba_d_state", "state_size"),
        kernel=text.need("mamba_d_conv", "conv_kernel"),
    )


def _mamba2(text: Fields) -> State:
    heads = text.need("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    head_dim = text.need("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
    return State.mamba2(
        d_inner=text.count("mamba_d_ssm") or heads * head_dim,
        heads=heads,
        head_dim=head_dim,
        d_state=text.need("mamba_d_state", "ssm_state_size", "state_size"),
        groups=text.need("mamba_n_groups", "mamba_ngroups", "n_groups"),
        kernel=text.need("mamba_d_conv", "conv_kernel"),
    )


def _gated_delta_net(text: Fields) -> State:
    return State.gated_delta_net(
        k_heads=text.need("linear_num_key_heads"),
        k_dim=text.need("linear_key_head_dim"),
        v_heads=text.need("linear_num_value_heads"),
        v_dim=text.need("linear_value_head_dim"),
        kernel=text.need("linear_conv_kernel_dim"),
    )


STATES: Mapping[str, Callable[[Fields], State]] = {
    MAMBA: _mamba,
    MAMBA2: _mamba2,
    DELTA_NET: _gated_delta_net,
}
