"""Which models are read: those whose captured attention was found equal to transformers' eager attention.

A model that does something else on the way from scores to weights would give numbers that look right. So the list is
closed: `tests/unit/test_architectures.py` compares every one of `READABLE`, and what is not among them is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from attention_core.errors import UnsupportedModelError

# By `model_type`; each a decoder whose layers have an `o_proj`, which value norms need
READABLE = (
    *("arcee", "cohere", "ernie4_5", "gemma", "glm", "glm4", "granite", "helium", "llama", "mistral"),
    *("mixtral", "olmo", "olmo2", "olmoe", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss"),
    *("smollm3", "starcoder2"),
)


def check_architecture(model: PreTrainedModel) -> None:
    """Raise UnsupportedModelError, naming what is in the way, for a model that would be read wrongly.

    Looks at the config and at the modules; nothing is computed. In the way are an encoder or cross-attention, attention
    in both directions, sliding windows and chunks, soft caps, sinks in the softmax, ALiBi, multi-head latent attention,
    rotary angles that depend on the text's length, code that is not transformers' own, attention that does not go
    through AttentionInterface, and any `model_type` but those of `READABLE`.

    A window is refused whatever its length, for a text that fits today may not tomorrow. Where no text is as long,
    load Mistral or Phi-3 with `sliding_window=None`: that is the same model up to this length.
    """
    backbone: Any = model.base_model
    config = backbone.config
    found = [name for name, holds in _TRAITS.items() if holds(config, backbone)]
    if found:
        raise UnsupportedModelError(f"{config.model_type} is not read: it has {', and '.join(found)}")
    if config.model_type not in READABLE:
        raise UnsupportedModelError(
            f"{config.model_type} is not read: its model_type was not compared with eager attention, as were "
            f"{', '.join(READABLE)}"
        )


def _looks_ahead(config: Any, backbone: Any) -> bool:
    # The config changes the mask but not what modules say; BERT says it in its modules only. None is no True either
    return (
        not getattr(config, "is_causal", True)
        or bool(getattr(config, "use_bidirectional_attention", False))
        or any(not getattr(module, "is_causal", True) for module in backbone.modules())
    )


def _has_windows(config: Any, backbone: Any) -> bool:
    # What a config's class knows nothing of says nothing: Mistral has its window whatever `use_sliding_window` is
    used = getattr(config, "use_sliding_window", True) or not hasattr(type(config), "use_sliding_window")
    if used and getattr(config, "sliding_window", None) is not None:
        return True
    return any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ())


def _has_alibi(config: Any, backbone: Any) -> bool:
    if config.model_type == "bloom":  # whose config does not tell
        return True
    return bool(getattr(getattr(config, "attn_config", config), "alibi", False))


def _turns_by_length(config: Any, backbone: Any) -> bool:
    rope = getattr(config, "rope_parameters", None)
    rope = rope if isinstance(rope, dict) else {}
    by_kind_of_layer = [part for part in rope.values() if isinstance(part, dict)]
    kinds = [part.get("rope_type") or "default" for part in (rope, *by_kind_of_layer)]
    return any("dynamic" in str(kind) or kind == "longrope" for kind in kinds)


# What stands in an error's sentence, and whether a config and its backbone have it
_TRAITS: dict[str, Callable[[Any, Any], bool]] = {
    "an encoder or cross-attention": lambda config, _: bool(
        config.is_encoder_decoder or getattr(config, "add_cross_attention", False)
    ),
    "attention in both directions": _looks_ahead,
    "sliding windows or chunks, or layers without attention (sliding_window, layer_types)": _has_windows,
    "soft-capped scores (attn_logit_softcapping)": lambda config, _: (
        getattr(config, "attn_logit_softcapping", None) is not None
    ),
    "attention sinks in the softmax": lambda _, backbone: any(
        name.endswith("sinks") for name, _ in backbone.named_parameters()
    ),
    "scores with a bias by distance (ALiBi)": _has_alibi,
    "multi-head latent attention (kv_lora_rank)": lambda config, _: (
        getattr(config, "kv_lora_rank", None) is not None
    ),
    # Rows would change with what is read beside them
    "rotary angles that depend on the text's length (rope_type dynamic or longrope)": _turns_by_length,
    "code that is not transformers' own": lambda _, backbone: (
        not type(backbone).__module__.startswith("transformers.models.")
    ),
    "attention that does not go through transformers' AttentionInterface": lambda _, backbone: (
        not backbone._supports_attention_backend
    ),
}
