"""The cache a transformers model really fills: the independent side of every KV-cache test.

The model is built at full size from its raw config.json, by default on torch's meta device, where tensors have
shapes and dtypes but no storage. One forward pass with caching on leaves a cache behind; its tensors are listed.
Nothing here knows a formula: what is not in the cache object is not counted, what is in it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForTextEncoding,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CACHE_FIELDS = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")
# Mixtures of experts that know no other way than to ask which experts were hit. A cache does not depend on them.
EXPERTS_THAT_LOOK = {"DbrxExperts", "LongcatFlashExperts", "NllbMoeExperts", "SwitchTransformersExperts"}


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of a cache; `path` says where it hung, such as `layers.3.keys`."""

    path: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class RealCache:
    """Every tensor a forward pass left in its cache, integer and boolean bookkeeping aside."""

    items: tuple[CacheTensor, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


@dataclass
class EncoderOutput(BaseModelOutput):
    """What decoders ask of an encoder, with nothing in what only Moonshine and the mixtures of experts have."""

    attention_mask: torch.Tensor | None = None
    router_logits: tuple[torch.Tensor, ...] | None = None


def real_cache(
    config: Mapping[str, Any],
    *,
    tokens: int,
    batch: int = 1,
    dtype: str = "bfloat16",
    encoder_tokens: int | None = None,
    device: str = "meta",
) -> RealCache:
    """Run the model of a raw `config.json` over `tokens` positions and list what its cache then holds.

    Of a model that also sees or hears, only the text part runs. In an encoder-decoder, and in a decoder with
    cross-attention layers (Mllama), states of `encoder_tokens` positions stand for the encoder's output; the
    encoder itself is not run, because its length rules (30 s of sound, a whole image) are not the cache's.

    Raises ValueError when transformers has no class for the model, when the model returns no cache, and when
    `encoder_tokens` is missing or out of place.
    """
    with torch.device(device), torch.no_grad():
        model = build(config, getattr(torch, dtype))
        idle = held_by_modules(model)
        given = inputs(model, tokens, batch, encoder_tokens)
        output = model(**given, use_cache=True)
    returned = (output[name] for name in CACHE_FIELDS if output.get(name) is not None)
    cache = given.get("cache", next(returned, None))
    kept = {path: tensor for path, tensor in held_by_modules(model).items() if path not in idle}
    if cache is None and not kept:
        raise ValueError(f"{type(model).__name__} returned no cache, but {sorted(output)}")
    seen: set[int] = set()
    tensors = [*walk(cache, "", seen), *walk(kept, "", seen)]
    return RealCache(tuple(CacheTensor(path, tuple(tensor.shape), tensor.dtype) for path, tensor in tensors))


def held_by_modules(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that are neither parameter nor buffer: RecurrentGemma keeps its states in its modules, not in a cache."""
    return {
        f"{path}.{name}": value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def build(raw: Mapping[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """The decoder of a raw config with random weights, ready to run on a device that holds no values."""
    model = decoder(text_configs(raw), dtype)
    for module in model.modules():
        if type(module).__name__ in EXPERTS_THAT_LOOK:
            module.forward = lambda hidden_states, *routing: hidden_states
    return model.eval()


def decoder(configs: list[PretrainedConfig], dtype: torch.dtype) -> PreTrainedModel:
    """The innermost text part that transformers has a class for, without an output head where that is possible.

    The implementations are those that never look at a value, which the meta device does not have: "eager"
    attention does not ask whether a mask is all ones, "batched_mm" not which tokens each expert got.
    """
    options: Any = {"dtype": dtype, "attn_implementation": "eager", "experts_implementation": "batched_mm"}
    whole = type(configs[-1])
    for config in configs:
        for auto in (AutoModel, AutoModelForTextEncoding, AutoModelForCausalLM):
            classes = auto._model_mapping
            if type(config) in classes:
                return classes[type(config)]._from_config(config, **options)
            # The text classes of Mllama and Emu3 are filed under the whole model's config.
            if whole in classes and classes[whole].config_class is type(config):
                return classes[whole]._from_config(config, **options)
    raise ValueError(f"transformers has no model class for {configs[-1].model_type}")


def text_configs(raw: Mapping[str, Any]) -> list[PretrainedConfig]:
    """The configs that govern the decoder, innermost first: the text part of a multimodal model, then the whole."""
    configs: list[PretrainedConfig] = [CONFIG_MAPPING[raw["model_type"]].from_dict(dict(raw))]
    while not configs[0].is_encoder_decoder:
        part = configs[0].get_text_config(decoder=True)
        if part is configs[0]:
            break
        configs.insert(0, part)
    for config in configs:
        if hasattr(config, "activation_sparsity_pattern"):
            # Gemma-3n: the feed-forward layers check the value of a quantile unless they are dense.
            config.activation_sparsity_pattern = [0.0] * config.num_hidden_layers
    return configs


def inputs(model: PreTrainedModel, tokens: int, batch: int, encoder_tokens: int | None) -> dict[str, Any]:
    """Token ids, and the encoder's states where the model takes some; zeros, for shapes do not depend on values."""
    config = model.config
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    if config.is_encoder_decoder:
        if encoder_tokens is None:
            raise ValueError(f"{config.model_type} is an encoder-decoder: encoder_tokens must be given")
        width = model.get_encoder().config.get_text_config().hidden_size
        encoded = torch.zeros(batch, encoder_tokens, width, dtype=model.dtype)
        return {"decoder_input_ids": ids, "encoder_outputs": EncoderOutput(encoded)}
    if encoder_tokens is not None:
        if not hasattr(config, "cross_attention_layers"):
            raise ValueError(f"{config.model_type} attends to no encoder: encoder_tokens must be left out")
        encoded = torch.zeros(batch, encoder_tokens, config.hidden_size, dtype=model.dtype)
        return {"input_ids": ids, "cross_attention_states": encoded}
    if config.model_type == "recurrent_gemma":  # makes a cache, fills it and does not return it
        return {"input_ids": ids, "cache": DynamicCache(config=config)}
    return {"input_ids": ids}


def walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every floating-point tensor reachable from `value`, each once, with the path that leads to it."""
    if id(value) in seen or isinstance(value, torch.nn.Module | PretrainedConfig | type):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield path, value
        return
    if isinstance(value, Mapping):
        parts: Any = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        parts = vars(value).items() if hasattr(value, "__dict__") else ()
    for name, part in parts:
        yield from walk(part, f"{path}.{name}" if path else str(name), seen)
