"""What kind of head is it? Scores over the whole map, computed while its rows stream past.

A score names, for every row i, the set of keys that count. What a head is worth is the weight it puts there,
beside what a head that spreads its attention evenly would put there: on short texts the two are close, and a
score without its baseline says little.

Source: Clark et al. 2019, "What Does BERT Look At?", section 3; each row of `SCORES` names its own.
"""

from attention_core.heads.labels import (
    NOISE,
    Definition,
    LabelCount,
    LabelError,
    borderline,
    definitions,
    label,
    ranking,
    strongest,
    summarise,
    thresholds_of,
)
from attention_core.heads.patterns import mae_similarities, pattern_rule
from attention_core.heads.pooling import Pool, PooledHead, PooledScore, pool
from attention_core.heads.probe import PROBE_RULES, Probe, repeat_probe, with_probe
from attention_core.heads.results import HeadResult, HeadResults, ScoreColumn, ScoreResult, Status
from attention_core.heads.rules import LABELS, SCORES, ScoreRule
from attention_core.heads.scoring import SHORTEST, HeadScorer, score_heads
from attention_core.heads.texts import TextFacts, is_punctuation, text_facts

__all__ = [
    "LABELS",
    "NOISE",
    "PROBE_RULES",
    "SCORES",
    "SHORTEST",
    "Definition",
    "HeadResult",
    "HeadResults",
    "HeadScorer",
    "LabelCount",
    "LabelError",
    "Pool",
    "PooledHead",
    "PooledScore",
    "Probe",
    "ScoreColumn",
    "ScoreResult",
    "ScoreRule",
    "Status",
    "TextFacts",
    "borderline",
    "definitions",
    "is_punctuation",
    "label",
    "mae_similarities",
    "pattern_rule",
    "pool",
    "ranking",
    "repeat_probe",
    "score_heads",
    "strongest",
    "summarise",
    "text_facts",
    "thresholds_of",
    "with_probe",
]
