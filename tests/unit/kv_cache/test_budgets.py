"""Budgets are the inverse of sizes: the most tokens and the most sequences, against trying one after the other."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core.kv_cache import (
    ENGINES,
    CacheModel,
    CacheReport,
    Dims,
    EngineOptions,
    Latent,
    Layer,
    State,
    kv_cache,
)

LONGEST = 600  # tokens tried one by one; llama.cpp's caches are multiples of 256
MOST = 9  # sequences tried one by one


@dataclass(frozen=True)
class Question:
    """A small model, and every option that a size depends on."""

    model: CacheModel
    options: dict[str, Any]
    tokens: int
    batch: int
    prefix: int

    def ask(self, **options: Any) -> CacheReport:
        usual = {"tokens": self.tokens, "batch": self.batch, "shared_prefix_tokens": self.prefix}
        return kv_cache(self.model, **self.options | usual | options)

    def rank_bytes(self, tokens: list[int]) -> list[int]:
        return [size.per_rank_bytes for size in self.ask(tokens=tokens).sizes]


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    kind = draw(
        st.sampled_from(
            [
                "full_attention",
                "sliding_attention",
                "chunked_attention",
                "latent",
                "mamba2",
                "cross_attention",
                "none",
            ]
        )
    )
    if kind == "none":
        return Layer("none")
    if kind == "mamba2":
        groups = draw(st.sampled_from([1, 2, 3]))
        state = State.mamba2(d_inner=12, heads=6, head_dim=2, d_state=5, groups=groups, kernel=4)
        return Layer("mamba2", state=state)
    window = draw(st.integers(1, 40)) if kind in ("sliding_attention", "chunked_attention") else None
    if kind == "latent":
        return Layer(heads=6, kv_heads=1, k_dim=8, latent=Latent(5, 3, 7, 7))
    return Layer(
        kind,
        6,
        draw(st.sampled_from([1, 2, 6])),
        3,
        4,
        window=window,
        shared=draw(st.sampled_from([False] * 4 + [True])),
    )


@st.composite
def questions(draw: st.DrawFn) -> Question:
    model = CacheModel(tuple(draw(st.lists(layers(), min_size=1, max_size=4))))
    options = {
        "engine": draw(st.sampled_from(ENGINES)),
        "engine_options": EngineOptions(
            draw(st.integers(1, 30)), draw(st.integers(1, 300)), draw(st.integers(1, 3))
        ),
        "page_size": draw(st.sampled_from([None, 1, 3, 16])),
        "tensor_parallel": draw(st.sampled_from([1, 2, 6])),
        "encoder_tokens": 5,
        "dtype": draw(st.sampled_from(["bfloat16", "int8_per_token_head"])),
    }
    tokens = draw(st.integers(1, 100))
    prefix = draw(st.one_of(st.just(0), st.integers(0, tokens)))
    return Question(model, options, tokens, draw(st.integers(1, 5)), prefix)


@settings(max_examples=80)
@given(questions(), st.data())
def test_most_tokens_are_those_found_by_trying(question, data):
    lengths = list(range(max(1, question.prefix), LONGEST))
    sizes = question.rank_bytes(lengths)
    budget = data.draw(st.one_of(st.sampled_from(sizes), st.integers(0, sizes[-1] + 1)))
    fitting = [tokens for tokens, size in zip(lengths, sizes, strict=True) if size <= budget]
    found = question.ask(memory_budget_bytes=budget).max_tokens
    assert found is not None
    assert found.limited_by_model is None
    if not fitting:
        assert found.per_sequence == 0
    elif fitting[-1] < lengths[-1]:
        assert found.per_sequence == fitting[-1]
    elif found.per_sequence is not None:  # longer than was tried: the last that fits, the next does not
        fits, too_large = question.rank_bytes([found.per_sequence, found.per_sequence + 1])
        assert fits <= budget < too_large
    else:  # as long as one likes
        assert question.rank_bytes([10**12])[0] <= budget


@settings(max_examples=150)
@given(questions(), st.data())
def test_most_sequences_are_those_found_by_trying(question, data):
    sizes = [question.ask(batch=batch).sizes[0].per_rank_bytes for batch in range(1, MOST)]
    budget = data.draw(st.one_of(st.sampled_from(sizes), st.integers(0, sizes[-1] + 1)))
    fitting = [batch for batch, size in enumerate(sizes, start=1) if size <= budget]
    capacity = question.ask(memory_budget_bytes=budget).capacity
    assert capacity is not None
    (found,) = capacity.max_sequences
    assert capacity.fits == (sizes[question.batch - 1] <= budget)
    if not fitting:
        assert found == 0
    elif len(fitting) < len(sizes):
        assert found == len(fitting)
    elif found is not None:
        assert question.ask(batch=found).sizes[0].per_rank_bytes <= budget
        assert question.ask(batch=found + 1).sizes[0].per_rank_bytes > budget
    else:
        assert question.ask(batch=10**9).sizes[0].per_rank_bytes <= budget


@settings(max_examples=150)
@given(questions(), st.lists(st.integers(100, 2000), min_size=2, max_size=6))
def test_sizes_never_fall_with_the_tokens(question, tokens):
    tokens.sort()
    sizes = question.ask(tokens=tokens).sizes
    for name in ("per_sequence_bytes", "batch_bytes", "per_rank_bytes"):
        values = [getattr(size, name) for size in sizes]
        assert values == sorted(values)
    for name in ("ideal", "no_swa"):
        values = [getattr(size.bounds, name) for size in sizes]
        assert values == sorted(values)


@settings(max_examples=150)
@given(questions())
def test_sizes_are_ordered_and_the_batch_is_linear(question):
    alone = question.ask(batch=1, shared_prefix_tokens=0).sizes[0]
    apart = question.ask(shared_prefix_tokens=0).sizes[0]
    together = question.ask().sizes[0]
    assert alone.batch_bytes == alone.per_sequence_bytes == together.per_sequence_bytes
    assert apart.batch_bytes == question.batch * alone.per_sequence_bytes
    assert apart.per_rank_bytes == question.batch * alone.per_rank_bytes
    assert together.batch_bytes <= apart.batch_bytes
    assert together.page_waste_bytes >= 0
    assert together.bounds.ideal <= together.bounds.no_swa
    # together the ranks hold everything, and no byte more often than the replication says
    ranks = question.options["tensor_parallel"]
    assert (
        together.batch_bytes <= ranks * together.per_rank_bytes <= together.replication * together.batch_bytes
    )


@settings(max_examples=100)
@given(questions())
def test_rates_are_what_the_ideal_cache_grows_by(question):
    usual = {"engine": "ideal", "page_size": None, "batch": 1, "shared_prefix_tokens": 0}
    first, second, far, farther = question.ask(tokens=[1, 2, 10**6, 10**6 + 1], **usual).sizes
    found = question.ask()
    assert first.per_sequence_bytes == found.fixed_bytes_per_sequence + found.bytes_per_token
    assert farther.per_sequence_bytes - far.per_sequence_bytes == found.bytes_per_token_beyond_window
    if all(layer.window != 1 for layer in question.model.layers):
        assert second.per_sequence_bytes - first.per_sequence_bytes == found.bytes_per_token


def test_the_rate_of_the_first_token_does_not_divide_a_budget_where_layers_slide():
    # 2 sliding layers of 7 tokens and a full one, 100 bytes each: 1,400 + 100 T; 3,000 bytes hold 16, not 10
    dims = Dims(
        3, 5, 5, 5, window=7, layer_types=("sliding_attention", "full_attention", "sliding_attention")
    )
    found = kv_cache(CacheModel.from_dims(dims), tokens=1, dtype="bfloat16", memory_budget_bytes=3000)
    assert found.bytes_per_token == 300
    assert found.max_tokens is not None
    assert found.max_tokens.per_sequence == 16


@pytest.mark.parametrize(
    ("budget", "longest", "limited"),
    [(699, 0, 0), (700, 7, 7), (1100, 11, 11), (1101, 11, 11), (2000, 20, 13)],
)
def test_the_longest_is_also_limited_by_the_model(budget, longest, limited):
    layer = Layer(heads=5, kv_heads=5, k_dim=5, v_dim=5)
    model = CacheModel((layer,), max_tokens=13)
    found = kv_cache(
        model, tokens=7, dtype="bfloat16", shared_prefix_tokens=7, memory_budget_bytes=budget
    ).max_tokens
    assert found is not None
    assert (found.per_sequence, found.limited_by_model) == (longest, limited)


def test_what_does_not_grow_has_no_longest_but_the_models():
    model = CacheModel((Layer("mamba", state=State.mamba(d_inner=3, d_state=5, kernel=2)),), max_tokens=13)
    found = kv_cache(model, memory_budget_bytes=66, dtype="bfloat16").max_tokens  # 3 × 2 + 15 × 4
    assert found is not None
    assert (found.per_sequence, found.limited_by_model) == (None, 13)
    found = kv_cache(model, memory_budget_bytes=65, dtype="bfloat16").max_tokens
    assert found is not None
    assert (found.per_sequence, found.limited_by_model) == (0, 0)


def test_without_a_budget_nothing_is_said_of_one():
    found = kv_cache(CacheModel.from_dims(Dims(2, 3, 3, 5)))
    assert found.max_tokens is None
    assert found.capacity is None
