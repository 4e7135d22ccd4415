"""Attention and its reading: tensors in, values out.

The one rule of this package: no Flask, no pydantic, no network, no environment, no globals, and no files but
its own packaged data. `tests/unit/test_purity.py` walks the imports and fails where the rule is broken.

Reading a running model is `attention_core.capture`, and how often heads are right is `attention_core.evaluation`
(they import transformers and scipy.stats, which take seconds, so they are not imported here); the cache calculator is
`attention_core.kv_cache`.
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
from attention_core.coreference import CoreferenceError, HeadAnswer, Question, Reading, ask, attend, score
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
from attention_core.errors import OutOfRangeError, ShapeError, UnsupportedModelError
from attention_core.heads import (
    LABELS,
    PROBE_RULES,
    SCORES,
    HeadResult,
    HeadResults,
    HeadScorer,
    Pool,
    TextFacts,
    borderline,
    definitions,
    label,
    mae_similarities,
    pattern_rule,
    pool,
    repeat_probe,
    score_heads,
    strongest,
    summarise,
    text_facts,
    thresholds_of,
    with_probe,
)
from attention_core.scaling import ScalingRow, scaling_experiment, softmax_jacobian_norm
from attention_core.spans import Span, SpanError, Token, Word, align, resolve_span

__all__ = [
    "LABELS",
    "PROBE_RULES",
    "SCORES",
    "AdditiveAttention",
    "Attention",
    "AttentionWork",
    "CoreferenceError",
    "HeadAnswer",
    "HeadResult",
    "HeadResults",
    "HeadScorer",
    "LayerCost",
    "MultiHeadAttention",
    "OutOfRangeError",
    "Pool",
    "Question",
    "Reading",
    "ScalingRow",
    "ScoreError",
    "ShapeError",
    "Span",
    "SpanError",
    "TextFacts",
    "Token",
    "UnsupportedModelError",
    "Word",
    "additive_attention",
    "align",
    "ask",
    "attend",
    "attention_multiply_adds",
    "attention_weights",
    "borderline",
    "causal_mask",
    "convolutional_cost",
    "definitions",
    "dot_product",
    "label",
    "layer_costs",
    "mae_similarities",
    "pair_count",
    "pattern_rule",
    "pool",
    "recurrent_cost",
    "repeat_probe",
    "resolve_span",
    "restricted_cost",
    "scaled_dot_product_attention",
    "scaling_experiment",
    "score",
    "score_heads",
    "self_attention",
    "self_attention_cost",
    "softmax",
    "softmax_jacobian_norm",
    "strongest",
    "summarise",
    "text_facts",
    "thresholds_of",
    "with_probe",
]
