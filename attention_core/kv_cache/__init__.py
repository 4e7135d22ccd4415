"""How much memory a model's KV cache takes: layers and their bytes, configs, presets, engines, the report."""

from attention_core.kv_cache.config import read_config
from attention_core.kv_cache.dtypes import DTYPES, PLAIN_DTYPES, Dtype
from attention_core.kv_cache.engines import ENGINES, Engine, EngineOptions
from attention_core.kv_cache.errors import CacheInputError, UnknownNameError
from attention_core.kv_cache.layers import (
    LAYER_TYPES,
    MAX_LAYERS,
    CacheModel,
    Dims,
    Latent,
    Layer,
    MlaDims,
    State,
)
from attention_core.kv_cache.presets import Preset, find_preset, presets
from attention_core.kv_cache.report import (
    Bounds,
    CacheReport,
    CacheSize,
    Capacity,
    Gpu,
    LayerBytes,
    LayerDetail,
    LayerGroup,
    MaxTokens,
    Rate,
    Term,
    kv_cache,
)
from attention_core.kv_cache.size import Cache, Types
from attention_core.kv_cache.vllm import VllmCapacity
from attention_core.kv_cache.words import human_bytes

__all__ = [
    "DTYPES",
    "ENGINES",
    "LAYER_TYPES",
    "MAX_LAYERS",
    "PLAIN_DTYPES",
    "Bounds",
    "Cache",
    "CacheInputError",
    "CacheModel",
    "CacheReport",
    "CacheSize",
    "Capacity",
    "Dims",
    "Dtype",
    "Engine",
    "EngineOptions",
    "Gpu",
    "Latent",
    "Layer",
    "LayerBytes",
    "LayerDetail",
    "LayerGroup",
    "MaxTokens",
    "MlaDims",
    "Preset",
    "Rate",
    "State",
    "Term",
    "Types",
    "UnknownNameError",
    "VllmCapacity",
    "find_preset",
    "human_bytes",
    "kv_cache",
    "presets",
    "read_config",
]
