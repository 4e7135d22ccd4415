"""Attention and its reading: tensors in, values out.

The one rule of this package: no Flask, no pydantic, no network, no environment, no globals, and no files but
its own packaged data. `tests/unit/test_purity.py` walks the imports and fails where the rule is broken.
"""

from attention_core.additive import AdditiveAttention, additive_attention
from attention_core.attention import (
    Attention,
    MultiHeadAttention,
    ScoreError,
    attention_weights,
    causal_mask,
    dot_product,
    scaled_dot_product_attention,
    self_attention,
    softmax,
)
from attention_core.cost import (
    AttentionWork,
    LayerCost,
    attention_multiply_adds,
    convolutional_cost,
    layer_costs,
    pair_count,
    recurrent_cost,
    restricted_cost,
    self_attention_cost,
)
from attention_core.errors import ShapeError, UnsupportedModelError
from attention_core.scaling import ScalingRow, scaling_experiment, softmax_jacobian_norm

__all__ = [
    "AdditiveAttention",
    "Attention",
    "AttentionWork",
    "LayerCost",
    "MultiHeadAttention",
    "ScalingRow",
    "ScoreError",
    "ShapeError",
    "UnsupportedModelError",
    "additive_attention",
    "attention_multiply_adds",
    "attention_weights",
    "causal_mask",
    "convolutional_cost",
    "dot_product",
    "layer_costs",
    "pair_count",
    "recurrent_cost",
    "restricted_cost",
    "scaled_dot_product_attention",
    "scaling_experiment",
    "self_attention",
    "self_attention_cost",
    "softmax",
    "softmax_jacobian_norm",
]
