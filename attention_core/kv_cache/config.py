"""Reading a Hugging Face config.json into layers, field by field.

Nothing is guessed: every default taken is named in `assumptions`, and a config with a field that speaks of a cache not
modelled here is refused with the field's name.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

from attention_core.kv_cache.dtypes import DTYPES, PLAIN_DTYPES
from attention_core.kv_cache.errors import CacheInputError
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
    latent_layer,
    of_kind,
    whole,
)
from attention_core.kv_cache.patterns import (
    INDEXED,
    LINEAR,
    PARALLEL,
    WHOLE_MODELS,
    layer_kinds,
    recurrent_kind,
)
from attention_core.kv_cache.states import STATES, WIDTH

TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config")  # of a multimodal model
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_transformer_layers")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads", "num_query_heads")
KV_HEADS = (
    "num_key_value_heads_per_layer",  # the more particular of two
    "num_key_value_heads",
    "num_kv_heads",
    "n_kv_heads",
    "n_head_kv",
    "num_multi_query_heads",
    "multi_query_group_num",
    "num_attention_groups",
    "num_query_groups",
)
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels", "d_kv")
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
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
    {
        "whisper",
        "t5",
        "mt5",
        "umt5",
        "longt5",
        "bart",
        "mbart",
        "m2m_100",
        "marian",
        "pegasus",
        "speech_to_text",
    }
)
INDEXERS = {"full": True, "F": True, "shared": False, "S": False}
# Families whose sliding layers have KV heads of their own, which the config must name
OWN_SLIDING_HEADS = frozenset({"mimo_v2_flash"})
# Families that keep a latent, unless `use_mla` is false: without its rank their heads would be counted, many times
# too much
LATENT = frozenset(
    {
        "axk1",
        "axk2",
        "bailing_hybrid",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "hy_v4",
        "hy_v4_vl",
        "kimi_k2",
        "kimi_k25",
        "kimi_linear",
        "longcat_flash",
        "minicpm3",
        "mistral4",
        "sarvam_mla",
        "youtu",
    }
)
# Families whose cache does not follow from fields that would give it away (dots3_note: index keys in float32)
UNMODELLED = re.compile(
    r"xlstm|rwkv|cpmant|dots3_note|reformer|xlnet|retnet|hgrn|delta_?net|hyena|linear_attn|(^|_)(gla|gsa|abc|lightnet|rodimus)(_|$)"
)
# Models that read a text whole and write none
ENCODERS = (
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForImageClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "EncoderModel",
)

# A field with one of these words speaks of a cache; one that was not read is a cache that is not modelled
_OF_SOME_LAYERS = re.compile(
    r"(^|_)(ssm|mamba|conv|conv1d|convolution|kda)(_|$)|^(linear_(attn|num|key|value|conv|head)|state_size|d_state|global_attn_every)",
    re.IGNORECASE,
)
_OF_ANY_LAYER = re.compile(
    r"(^|_)(rwkv|lru|recurrent|recurrence|retention|lightning|compress\w*|gla|delta|deltanet|hyena|lsh|kpool|indexer"
    r"|loop|loops|cycles|yoco|cla|ple)(_|$)|^(index_|sparse_attention|attention_window|kv_source|kv_shar|share_kv"
    r"|swa_kv_lora|number_of_conv|expand_(k|v|ratio)$|feature_map|mixer_types|short_conv|qk_dim_factor|cross_attention_layers|cross_layer"
    r"|cross_num)",
    re.IGNORECASE,
)
# With one of these every layer's kind is known, so that what no layer uses is not missed
_EVERY_KIND = (
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_layer_period",
    "full_attention_interval",
    "attn_layer_indices",
    "full_attn_idxs",
    "linear_attn_config",
    "attn_type_list",
    "block_types",
    "_block_types",
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
        if outer.flag("is_encoder_decoder") and (decoder := outer.within("decoder")) is not None:
            text = decoder
        named = text.text("model_type") or outer.text("model_type") or ""
        return cls(outer, text, named if named.endswith("_to_text") else named.removesuffix("_text"))

    def model(self) -> CacheModel:
        if UNMODELLED.search(self.family):
            sentence = "The cache of this model_type is not modelled here"
            raise self.text.fault("model_type", "unsupported_cache", sentence)
        mtp: tuple[Layer, ...] = ()
        if self.family in SEQ2SEQ or self.outer.flag("is_encoder_decoder"):
            layers, encoder_tokens = self._encoder_decoder()
        else:
            layers, mtp = self._decoder()
            self._refuse_encoders(layers)
            layers, encoder_tokens = self._vision_layers(layers)
        max_tokens = self.text.count(*MAX_TOKENS)
        dtype = self._dtype()
        state_dtype = self._state_dtype()
        self._refuse_unread()
        if not self.family:
            self._assume("no model_type: read by its fields alone")
        elif self.family not in _compared_families():
            self.warnings.append(
                f"model_type {self.family[:64]}: read by its fields, not compared with a real cache"
            )
        quantised = ("quantization_config", "compression_config")
        if self.outer.get(*quantised) or self.text.get(*quantised):
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
        layers = self._share(tuple(self._layer(kind, index, count) for index, kind in enumerate(kinds)))
        more = self.text.count(*MTP_LAYERS, at_least=0) or 0
        if more > MAX_LAYERS:
            name = self.text.name(*MTP_LAYERS) or MTP_LAYERS[0]
            raise self.text.fault(name, "out_of_range", f"At most {MAX_LAYERS:,} layers")
        last = next((layer for layer in reversed(layers) if layer.attends), None)
        return layers, (replace(last, shared=False),) * more if last else ()

    def _layer_count(self, *names: str) -> int:
        count = self.text.count(*names)
        if count is not None and self.family == "longcat_flash" and not self.text.name("num_hidden_layers"):
            count *= 2  # each of its layers attends twice
        if count is None and (entries := self.text.items("layers_block_type")) is not None:
            count = len(entries)
        if count is None:
            raise self.text.missing(*names)
        if count > MAX_LAYERS:
            name = self.text.name(*names) or "layers_block_type"
            raise self.text.fault(name, "out_of_range", f"At most {MAX_LAYERS:,} layers")
        return count

    def _layer(self, kind: str, index: int, count: int) -> Layer:
        if kind == NONE:
            return Layer(NONE)
        if kind == LINEAR:
            kind = recurrent_kind(self.text, self.family)
        if kind in STATES:
            return Layer(kind, state=STATES[kind](self.text))
        if kind == PARALLEL:
            state = STATES[recurrent_kind(self.text, self.family)](self.text)
            return replace(self._attention(FULL, index, count), state=state)
        return self._attention(kind, index, count)

    def _attention(self, kind: str, index: int, count: int) -> Layer:
        """A layer of attention: heads and widths as they are for its kind and number, and its window."""
        text = self._at(index)
        heads = self._per_layer(text, HEADS, index, count)
        if heads == 0:
            return Layer(NONE)
        window = self._window(text, kind, index, count)
        latent = text.flag("use_mla", default=True)
        if latent and (rank := text.count("kv_lora_rank")) is not None:
            row = self._latent(text, heads, rank, kind, index, count)
            return of_kind(row, FULL if kind == INDEXED else kind, window)
        if latent and self.family in LATENT:
            raise text.missing("kv_lora_rank")
        special = {SLIDING: SLIDING_FIELDS, FULL: self._full_fields(text)}.get(kind, {})
        heads = text.count(*special.get("heads", ())) or heads
        kv_heads = text.count(*special.get("kv_heads", ())) or self._kv_heads(text, heads, index, count)
        if kind == SLIDING and self.family in OWN_SLIDING_HEADS:
            kv_heads = text.need(*SLIDING_FIELDS["kv_heads"])
        if kv_heads == 0:
            return Layer(NONE)
        if heads % kv_heads:
            name = text.name(*KV_HEADS) or KV_HEADS[1]
            sentence = f"{kv_heads} KV heads do not divide {heads} heads"
            raise text.fault(name, "not_divisible", sentence)
        k_dim = text.count(*special.get("k_dim", ())) or self._head_dim(text, heads)
        if (
            self.family.startswith("gemma4")
            and kind == FULL
            and not text.name("global_head_dim", "per_layer_config")
        ):
            raise text.missing("global_head_dim")
        v_dim = text.count(*special.get("v_dim", ())) or text.count("v_head_dim") or k_dim
        row = Layer(heads=heads, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim)
        return of_kind(self._as_in_transformers(row, window), kind, window)

    def _full_fields(self, text: Fields) -> Mapping[str, Sequence[str]]:
        """Gemma 4's full layers are wider; they have other KV heads only where K serves as V as well."""
        apart = text.flag("attention_k_eq_v", default=True)
        return FULL_FIELDS if apart else {"k_dim": FULL_FIELDS["k_dim"]}

    def _at(self, index: int) -> Fields:
        """The fields as they hold for one layer: what `per_layer_config` says of it comes first."""
        own = self._overrides.get(str(index))
        return replace(self.text, values={**self.text.values, **own.values}) if own else self.text

    @functools.cached_property
    def _overrides(self) -> Mapping[str, Fields]:
        """`per_layer_config`, by the layer's number; leading zeros are no part of it."""
        every = self.text.within("per_layer_config")
        if every is None:
            return {}
        return {name.lstrip("0") or "0": own for name in every.values if (own := every.within(name))}

    def _latent(self, text: Fields, heads: int, rank: int, kind: str, index: int, count: int) -> Layer:
        rope = text.need("qk_rope_head_dim", at_least=0)
        nope = text.count("qk_nope_head_dim", at_least=0)
        k_dim = self._head_dim(text, heads) if nope is None else nope + rope
        v_dim = text.count("v_head_dim") or nope or k_dim
        indexed = kind in (FULL, INDEXED) and self._has_indexer(index, count)
        index_dim = text.count("index_head_dim") if indexed else None
        if index_dim:  # what else is said of the indexer does not enter the cache
            text.read.update(name for name in text.values if name.startswith("index"))
        return latent_layer(heads, Latent(rank, rope, k_dim, v_dim), index_dim or 0)

    def _has_indexer(self, index: int, count: int) -> bool:
        """Whether a layer has an indexer of its own, or takes the choice of an earlier layer's."""
        text = self.text
        name = text.name("indexer_types", "index_topk_pattern")
        if name is not None and (entries := text.items(name, count)) is not None:
            entry = entries[index]
            if not isinstance(entry, str) or entry not in INDEXERS:
                raise text.fault(name, "unknown_layer_kind", f"Entry {index} is neither full nor shared")
            return INDEXERS[entry]
        every = text.count("index_topk_freq") or 1
        first = text.count("index_skip_topk_offset", at_least=0)
        return max(index - (2 if first is None else first) + 1, 0) % every == 0

    def _per_layer(self, text: Fields, names: Sequence[str], index: int, count: int) -> int:
        """A count that may be a list with an entry for each layer; 0 there is a layer without a cache."""
        name = text.name(*names)
        if name is None:
            raise text.missing(*names)
        if not isinstance(text.values[name], list | tuple):
            return text.need(name)
        entries = text.items(name, count) or ()
        return whole(entries[index], *text.place, name, index, at_least=0)

    def _kv_heads(self, text: Fields, heads: int, index: int, count: int) -> int:
        if self.family in ("falcon", "gpt_bigcode") and not text.flag("new_decoder_architecture"):
            if text.get("multi_query") is None:
                self._assume(f"no multi_query: true, as in {self.family}")
            if text.flag("multi_query", default=True):
                return 1
        if self.family == "chatglm" and not text.flag("multi_query_attention"):
            return heads
        switched = text.get("multi_query") is True and not text.flag("new_decoder_architecture")
        switched |= (
            text.get("multi_query_attention") is True or text.get("attention_head_type") == "multiquery"
        )
        if switched and text.name(*KV_HEADS) is None:
            return 1
        block = text.entry("block_configs", index, count)
        if block and (attention := block.within("attention")):
            group = attention.need("n_heads_in_group")
            if heads % group:
                sentence = f"{heads} heads cannot be divided into groups of {group}"
                raise attention.fault("n_heads_in_group", "not_divisible", sentence)
            return heads // group
        attention = text.within("attn_config")
        if attention is not None and (inner := attention.count("kv_n_heads")) is not None:
            return inner
        if text.name(*KV_HEADS) is None:
            self._assume(f"no {KV_HEADS[1]}: every head has its own K and V, {heads}")
            return heads
        return self._per_layer(text, KV_HEADS, index, count)

    def _as_in_transformers(self, row: Layer, window: int | None) -> Layer:
        """Where transformers keeps more than its table says."""
        if self.family == "falcon" and self.text.flag("new_decoder_architecture"):
            return replace(row, hf_heads=row.heads)  # K and V are kept once for every query head
        if window is not None and self.family == "gpt_neo":
            return replace(row, hf_window=0)  # all tokens are kept
        kept = self.text.count("sliding_window_size")
        if window is not None and self.family == "mimo_v2_flash" and kept is not None:
            return replace(row, hf_window=kept)  # read there as a window of one more
        return row

    def _head_dim(self, text: Fields, heads: int) -> int:
        zamba = self.family in ("zamba", "zamba2")
        names = ("attention_head_dim",) if zamba else HEAD_DIM
        given = text.count(*names)
        if given is not None:
            return given
        width = text.need(*WIDTH) * (2 if zamba else 1)  # Zamba attends to its input beside its embedding
        if width % heads:
            name = text.name(*WIDTH) or WIDTH[0]
            sentence = f"{name} = {width} is not divisible by {heads} heads, and head_dim is not given"
            raise text.fault(name, "not_divisible", sentence)
        self._assume(f"no head_dim: {width} / {heads} heads = {width // heads}")
        return width // heads

    def _window(self, text: Fields, kind: str, index: int, count: int) -> int | None:
        if kind == CHUNKED:
            return text.need("attention_chunk_size")
        if kind != SLIDING:
            return None
        block = text.entry("block_configs", index, count)
        if block and (attention := block.within("attention")):
            return attention.need("window_length")
        return text.need("sliding_window", "window_size", "attention_window_size")

    def _share(self, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        """The last `num_kv_shared_layers` read what earlier layers keep; or groups of `cla_share_factor` do."""
        last = self.text.count("num_kv_shared_layers", at_least=0) or 0
        if last > len(layers):
            sentence = f"{last} shared layers of {len(layers)}"
            raise self.text.fault("num_kv_shared_layers", "out_of_range", sentence)
        owners = len(layers) - last
        factor = self.text.count("cla_share_factor") or 1
        if factor > 1 and self.text.get("use_cla") is None:
            self._assume("no use_cla: K and V are shared, as cla_share_factor says")
        if not self.text.flag("use_cla", default=factor > 1):
            factor = 1
        return tuple(
            replace(layer, shared=True) if layer.attends and (index >= owners or index % factor) else layer
            for index, layer in enumerate(layers)
        )

    # --- cross-attention ---

    def _encoder_decoder(self) -> tuple[tuple[Layer, ...], int | None]:
        """Every layer of the decoder attends to its own tokens and to the encoder's."""
        text = self.text
        if text.place:  # a decoder with a config of its own
            own, _ = self._decoder()
        else:
            if not text.name("decoder_layers", "num_decoder_layers"):
                self._assume("no num_decoder_layers: the decoder is as deep as the encoder")
            count = self._layer_count("decoder_layers", "num_decoder_layers", "num_layers")
            heads = text.need("decoder_attention_heads", "num_heads", "num_attention_heads")
            width = self._head_dim(text, heads)
            kv_heads = text.count("decoder_num_key_value_heads", *KV_HEADS) or heads
            own = (Layer(heads=heads, kv_heads=kv_heads, k_dim=width, v_dim=width),) * count
        crossed = tuple(replace(layer, kind=CROSS, window=None) for layer in own)
        layers = tuple(layer for pair in zip(own, crossed, strict=True) for layer in pair)
        return layers, text.count("max_source_positions")

    def _vision_layers(self, layers: tuple[Layer, ...]) -> tuple[tuple[Layer, ...], int | None]:
        """Llama 3.2 Vision: some layers attend to the image alone, whose tokens the vision config gives."""
        numbers = self.text.numbers("cross_attention_layers", 0, len(layers))
        if not numbers:
            return layers, None
        crossed = tuple(
            replace(layer, kind=CROSS, window=None) if index in numbers else layer
            for index, layer in enumerate(layers)
        )
        vision = self.outer.within("vision_config")
        if vision is None or not vision.name("image_size") or not vision.name("patch_size"):
            return crossed, None
        patches = (vision.need("image_size") // vision.need("patch_size")) ** 2 + 1
        tiles = vision.count("max_num_tiles") or 1
        self._assume(f"encoder_tokens of one image: {tiles} tiles of {patches:,}")
        return crossed, tiles * patches

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
        every_kind = text.name(*_EVERY_KIND) is not None or self.family in (*WHOLE_MODELS, *SEQ2SEQ)
        unread = [
            name
            for name, value in text.values.items()
            if (_OF_ANY_LAYER.search(name) or (_OF_SOME_LAYERS.search(name) and not every_kind))
            and name not in text.read
            and value not in (None, False, 0, "", [], {})
        ]
        if unread:
            names = ", ".join(name[:64] for name in unread[:8])
            sentence = f"Fields that speak of a cache not modelled here: {names}"
            raise text.fault(unread[0], "unsupported_cache", sentence)

    def _refuse_encoders(self, layers: tuple[Layer, ...]) -> None:
        """BERT and its like; EmbeddingGemma, which looks both ways over half a window (PaliGemma's prefix does too, but
        is kept as usual).
        """
        names = self.outer.get("architectures")
        for index, name in enumerate(names if isinstance(names, list | tuple) else ()):
            if isinstance(name, str) and name.endswith(ENCODERS) and not self.outer.flag("is_decoder"):
                sentence = "A model that reads a text whole and writes none is an encoder: it keeps no cache"
                raise CacheInputError(("architectures", index), "unsupported_cache", sentence)
        both_ways = self.text.get("use_bidirectional_attention") in (True, "all")
        if both_ways and any(layer.window for layer in layers):
            sentence = "A model whose windows look both ways is an encoder: it keeps no cache"
            raise self.text.fault("use_bidirectional_attention", "unsupported_cache", sentence)

    def _assume(self, sentence: str) -> None:
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)


@functools.cache
def _compared_families() -> frozenset[str]:
    """Those whose reading was compared with the cache that transformers fills, or derived by hand."""
    families = json.loads(resources.files(__package__).joinpath("families.json").read_text(encoding="utf-8"))
    return frozenset(families["measured"] + families["derived"])
