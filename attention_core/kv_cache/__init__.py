"""How much memory a model's KV cache takes: layers and their bytes, presets, the report."""

from attention_core.kv_cache.layers import (
    BYTES_PER_ELEMENT,
    MAX_LAYERS,
    CacheModel,
    Dims,
    Layer,
    UnknownNameError,
    head_bytes,
)
from attention_core.kv_cache.presets import Preset, find_preset, presets
from attention_core.kv_cache.report import CacheReport, CacheSize, LayerGroup, Rate, human_bytes, kv_cache

__all__ = [
    "BYTES_PER_ELEMENT",
    "MAX_LAYERS",
    "CacheModel",
    "CacheReport",
    "CacheSize",
    "Dims",
    "Layer",
    "LayerGroup",
    "Preset",
    "Rate",
    "UnknownNameError",
    "find_preset",
    "head_bytes",
    "human_bytes",
    "kv_cache",
    "presets",
]
