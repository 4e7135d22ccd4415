"""Captured attention against transformers' own eager attentions, on a tiny random Qwen2 with odd sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralModel

from attention_core.capture import AttentionReader, Rows
from attention_core.errors import OutOfRangeError, ShapeError, UnsupportedModelError
from attention_core.packed import pack
from tests.tiny import HEADS, KV_HEADS, LAYERS, tiny_backbone

ALL = {layer: range(HEADS) for layer in range(LAYERS)}
TEXT = [5, 11, 17, 23, 5, 11, 299, 2, 3, 301, 0, 17, 13]


def eager(ids: list[int], backbone: torch.nn.Module | None = None) -> torch.Tensor:
    """[layer, head, query, key], by the function that peers use."""
    model = copy.deepcopy(backbone if backbone is not None else tiny_backbone())
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = model(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    assert len(attentions) == LAYERS  # an empty tuple would make every comparison pass
    return torch.stack(attentions)[:, 0]


def maps(
    reader: AttentionReader, sequences: Any, *, lengths: list[int] | None = None, **options: object
) -> list[torch.Tensor]:
    """Every map of every text, [layer, head, query, key]; NaN where no row arrived."""
    kept = [
        torch.full((LAYERS, HEADS, tokens, tokens), float("nan"), dtype=torch.float64)
        for tokens in lengths or map(len, sequences)
    ]

    def keep(rows: Rows) -> None:
        for place, query in enumerate(rows.queries):
            kept[rows.text][rows.layer, list(rows.heads), query] = 0
            end = rows.weights.shape[2]
            kept[rows.text][rows.layer, list(rows.heads), query, :end] = rows.weights[:, place].double()

    reader.read(sequences, ALL, keep, **options)
    return kept


@pytest.fixture(scope="module", params=["plain", "packed"])
def reader(request: pytest.FixtureRequest) -> AttentionReader:
    """Over transformers' own layers, and over packed ones: what is read must be the same."""
    backbone = tiny_backbone()
    if request.param == "packed":
        assert pack(backbone)
    return AttentionReader(backbone)


@pytest.fixture(scope="module")
def exact() -> AttentionReader:
    """In float64, where two routes to one number must meet and rounding is no excuse."""
    return AttentionReader(tiny_backbone().double())


def test_every_map_equals_eager_attention(reader: AttentionReader) -> None:
    (captured,) = maps(reader, [TEXT])
    assert (captured - eager(TEXT)).abs().max() <= 1e-6


def test_maps_are_exact_in_float64() -> None:
    backbone = tiny_backbone().double()
    expected = eager(TEXT, backbone)
    kept: dict[int, torch.Tensor] = {}
    AttentionReader(backbone).read([TEXT], ALL, lambda rows: kept.update({rows.layer: rows.weights.clone()}))
    # transformers' eager softmax runs in float32 whatever the model's dtype
    assert (torch.stack([kept[layer] for layer in range(LAYERS)]) - expected).abs().max() <= 1e-6
    assert all(weights.dtype == torch.float64 for weights in kept.values())
    assert max(float((weights.sum(-1) - 1).abs().max()) for weights in kept.values()) <= 1e-14


def test_rows_sum_to_one_and_the_future_is_exactly_zero(reader: AttentionReader) -> None:
    (captured,) = maps(reader, [TEXT])
    assert (captured.sum(-1) - 1).abs().max() <= 3e-7
    assert captured.triu(1).count_nonzero() == 0


def test_batched_texts_equal_single_ones(exact: AttentionReader) -> None:
    texts = [TEXT[:7], TEXT, TEXT[:1], TEXT[3:8], list(range(19))]
    for batched, ids in zip(maps(exact, texts), texts, strict=True):
        assert (batched - maps(exact, [ids])[0]).abs().max() <= 1e-13
        assert batched.shape[2] == len(ids)


@pytest.mark.parametrize("block_weights", [1, 97, 1 << 24])
def test_blocks_of_any_size_give_the_same_maps(exact: AttentionReader, block_weights: int) -> None:
    texts = [TEXT[:7], TEXT]
    for blocks, whole in zip(
        maps(exact, texts, block_weights=block_weights), maps(exact, texts), strict=True
    ):
        assert (blocks - whole).abs().max() <= 1e-13


def test_padded_batches_hold_the_limit_and_still_read_every_text(reader: AttentionReader) -> None:
    texts = [TEXT, TEXT[:2], TEXT[:5], TEXT[:11]]
    shapes: list[tuple[int, ...]] = []
    hook = reader.backbone.embed_tokens.register_forward_hook(
        lambda _, args, __: shapes.append(args[0].shape)
    )
    try:
        captured = maps(reader, texts, max_padded_tokens=23)
    finally:
        hook.remove()
    assert all(rows * columns <= 23 or rows == 1 for rows, columns in shapes)
    assert len(shapes) > 1
    assert not any(torch.isnan(weights).any() for weights in captured)


def test_only_the_rows_asked_for_arrive_and_equal_eagers(reader: AttentionReader) -> None:
    texts, queries = [TEXT, TEXT[:7]], [[2, 9], [6]]
    seen: list[Rows] = []
    reader.read(texts, {1: [7, 3]}, seen.append, queries=queries)
    assert sorted((rows.text, list(rows.queries)) for rows in seen) == [(0, [2, 9]), (1, [6])]
    for rows in seen:
        expected = eager(texts[rows.text])[1, [7, 3]][:, list(rows.queries), : rows.weights.shape[2]]
        assert rows.heads == (7, 3)
        assert (rows.weights - expected).abs().max() <= 1e-6
        assert rows.weights.shape[2] == rows.queries[-1] + 1


def test_query_head_reads_its_own_group_of_keys(reader: AttentionReader) -> None:
    assert [reader.kv_head(head) for head in range(HEADS)] == [
        head // (HEADS // KV_HEADS) for head in range(HEADS)
    ]


def test_layers_above_the_last_one_needed_never_run() -> None:
    reader = AttentionReader(tiny_backbone())
    ran: list[str] = []
    layers = reader.backbone.layers
    hooks = [
        module.register_forward_pre_hook(lambda _, __, name=f"{name}{index}": ran.append(name))
        for index, layer in enumerate(layers)
        for name, module in (("attention", layer.self_attn), ("mlp", layer.mlp))
    ]
    try:
        reader.read([TEXT], {1: [0]}, lambda rows: None)
    finally:
        for hook in hooks:
            hook.remove()
    assert ran == ["attention0", "mlp0", "attention1"]


def test_heads_not_asked_for_are_not_computed(reader: AttentionReader) -> None:
    shapes: list[tuple[int, ...]] = []
    reader.read([TEXT], {0: [4], 2: [1, 9, 3]}, lambda rows: shapes.append(tuple(rows.weights.shape)))
    assert shapes == [(1, 13, 13), (3, 13, 13)]


def test_before_layer_can_stop_the_run(reader: AttentionReader) -> None:
    class StopHereError(Exception):
        pass

    seen: list[int] = []

    def check(layer: int) -> None:
        seen.append(layer)
        if layer == 1:
            raise StopHereError

    with pytest.raises(StopHereError):
        reader.read([TEXT], ALL, lambda rows: None, before_layer=check)
    assert seen == [0, 1]


def test_no_result_requires_grad_and_inference_mode_is_on(reader: AttentionReader) -> None:
    modes: list[bool] = []
    reader.read([TEXT], {0: [0]}, lambda rows: modes.append(torch.is_inference_mode_enabled()))
    assert modes == [True]


def test_the_model_still_works_for_everything_else(reader: AttentionReader) -> None:
    plain = tiny_backbone()
    ids = torch.tensor([TEXT[:7], TEXT[6:]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    with torch.inference_mode():
        expected = plain(ids, attention_mask=mask, use_cache=False).last_hidden_state
        got = reader.backbone(ids, attention_mask=mask, use_cache=False).last_hidden_state
    assert (got - expected)[mask.bool()].abs().max() <= 1e-5


def test_two_reads_with_different_wishes_do_not_disturb_each_other(reader: AttentionReader) -> None:
    outer: list[tuple[int, int]] = []
    inner: list[tuple[int, int]] = []

    def consume(rows: Rows) -> None:
        outer.append((rows.layer, rows.heads[0]))
        reader.read([TEXT[:3]], {0: [5]}, lambda rows: inner.append((rows.layer, rows.heads[0])))

    reader.read([TEXT], {0: [1], 2: [3]}, consume)
    assert outer == [(0, 1), (2, 3)]
    assert inner == [(0, 5), (0, 5)]


@pytest.mark.parametrize(
    ("heads", "sequences", "queries", "error", "message"),
    [
        ({LAYERS: [0]}, [TEXT], None, OutOfRangeError, f"layer: {LAYERS} is not in 0..{LAYERS - 1}"),
        ({0: [HEADS]}, [TEXT], None, OutOfRangeError, f"head: {HEADS} is not in 0..{HEADS - 1}"),
        ({0: [-1]}, [TEXT], None, OutOfRangeError, "head: -1"),
        ({0: [0]}, [TEXT, []], None, ShapeError, "sequences[1]: expected at least one token"),
        ({0: [0]}, [[307]], None, OutOfRangeError, "token id: 307"),
        ({0: [0]}, [TEXT], [[13]], OutOfRangeError, "queries[0]: 13"),
        ({0: [0]}, [TEXT], [[3, 3]], ShapeError, "ascending"),
        ({0: [0]}, [TEXT], [], ShapeError, "one list per text"),
    ],
)
def test_wrong_requests_name_what_is_wrong(
    reader: AttentionReader,
    heads: dict[int, list[int]],
    sequences: list[list[int]],
    queries: list[list[int]] | None,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error) as raised:
        reader.read(sequences, heads, lambda rows: None, queries=queries)
    assert message in str(raised.value)


def test_models_that_would_be_read_wrongly_are_refused() -> None:
    windowed = tiny_backbone(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(UnsupportedModelError, match="sliding"):
        AttentionReader(windowed)
    with pytest.raises(UnsupportedModelError, match="training"):
        AttentionReader(tiny_backbone().train()).read([TEXT], ALL, lambda rows: None)
    config = MistralConfig(
        vocab_size=31, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(UnsupportedModelError, match="mistral"):
        AttentionReader(MistralModel(config).eval())


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_padding_on_the_right_is_cut_off(exact: AttentionReader, kind: Callable[[object], Any]) -> None:
    padded, mask = [TEXT, [*TEXT[:7], *[0] * 6]], [[1] * 13, [1] * 7 + [0] * 6]
    for got, ids in zip(
        maps(exact, kind(padded), lengths=[13, 7], attention_mask=kind(mask)), [TEXT, TEXT[:7]], strict=True
    ):
        assert (got - maps(exact, [ids])[0]).abs().max() <= 1e-13


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (
            [[1] * 13, [0, 0, 1, 1, 1, 1, 1]],
            UnsupportedModelError,
            r"attention_mask\[1\]: padding at the left",
        ),
        (
            [[1] * 13, [1, 1, 1, 0, 1, 1, 1]],
            UnsupportedModelError,
            r"attention_mask\[1\]: padding at the left",
        ),
        ([[1] * 13, [0] * 7], ShapeError, r"sequences\[1\]: expected at least one token"),
        ([[1] * 13, [1] * 6], ShapeError, r"attention_mask: expected .*\[13, 7\], got \[13, 6\]"),
        ([[1] * 13], ShapeError, r"attention_mask: expected"),
        (["1" * 13, "0" * 7], ValueError, r"attention_mask\[0\]: 1 is a token, 0 padding"),
        ([[1] * 13, [1] * 6 + [float("nan")]], ValueError, r"attention_mask\[1\]: 1 is a token"),
    ],
)
def test_other_padding_is_refused(
    reader: AttentionReader, mask: list[list[int]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        reader.read([TEXT, TEXT[:7]], ALL, lambda rows: None, attention_mask=mask)


def test_a_forward_call_that_captures_refuses_any_mask_but_the_causal_one(reader: AttentionReader) -> None:
    class Watch:
        def observe(self, *given: object) -> None:
            raise AssertionError("rows of a padded text would be wrong")

    with pytest.raises(UnsupportedModelError, match="layer 0 has a mask"), torch.inference_mode():
        reader.backbone(
            torch.tensor([TEXT[:7]]),
            attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1, 1]]),
            use_cache=False,
            capture=Watch(),
        )


def test_a_bfloat16_model_gives_float32_weights_near_those_of_float32(reader: AttentionReader) -> None:
    half = AttentionReader(tiny_backbone().bfloat16())
    seen: list[Rows] = []
    half.read([TEXT], {0: range(HEADS)}, seen.append)
    assert seen[0].weights.dtype == torch.float32
    assert (seen[0].weights.sum(-1) - 1).abs().max() <= 1e-6
    assert (seen[0].weights - maps(reader, [TEXT])[0][0]).abs().max() <= 0.05


# --- other weightings ----------------------------------------------------------------------------------------


def layer_inputs(backbone: torch.nn.Module, layer: int) -> torch.Tensor:
    """The normalised input x of one layer's attention, [token, hidden]."""
    seen: list[torch.Tensor] = []
    attention = backbone.layers[layer].self_attn
    hook = attention.register_forward_pre_hook(
        lambda _, args, named: seen.append(named["hidden_states"]), with_kwargs=True
    )
    with torch.inference_mode():
        backbone(torch.tensor([TEXT]), use_cache=False)
    hook.remove()
    return seen[0][0]


@torch.inference_mode()
def test_value_norm_equals_the_explicit_computation_from_the_models_own_weights() -> None:
    backbone = tiny_backbone().double()
    seen: list[Rows] = []
    AttentionReader(backbone).read([TEXT], {2: [9, 0, 3]}, seen.append, weighting="value_norm")
    reference = tiny_backbone().double()
    reference.set_attn_implementation("eager")
    with torch.inference_mode():
        attention = reference(torch.tensor([TEXT]), output_attentions=True, use_cache=False).attentions[2][0]
    x, module = layer_inputs(reference, 2), reference.layers[2].self_attn
    size = backbone.config.hidden_size // HEADS
    for place, head in enumerate((9, 0, 3)):
        kv = slice(size * (head // 2), size * (head // 2 + 1))  # two query heads to a key/value head
        for i in range(len(TEXT)):
            expected = torch.zeros(len(TEXT), dtype=torch.float64)
            for j in range(i + 1):
                value = module.v_proj.weight[kv] @ x[j] + module.v_proj.bias[kv]
                written = module.o_proj.weight[:, size * head : size * (head + 1)] @ value
                expected[j] = (attention[head, i, j] * written).norm()
            assert (seen[0].weights[place, i] - expected / expected.sum()).abs().max() <= 1e-6


def test_scores_are_those_before_the_softmax_and_the_future_has_none(exact: AttentionReader) -> None:
    scores: list[torch.Tensor] = []
    weights: list[torch.Tensor] = []
    exact.read(
        [TEXT], {1: range(HEADS)}, lambda rows: scores.append(rows.weights.clone()), weighting="scores"
    )
    exact.read([TEXT], {1: range(HEADS)}, lambda rows: weights.append(rows.weights.clone()))
    future = torch.ones(len(TEXT), len(TEXT), dtype=torch.bool).triu(1)
    assert torch.equal(scores[0].isnan(), future.expand_as(scores[0]))
    softmax = scores[0].masked_fill(future, float("-inf")).softmax(-1)
    assert (softmax - weights[0]).abs().max() <= 1e-14
    assert scores[0].nan_to_num().abs().max() > 1  # not already normalised


@pytest.mark.parametrize("weighting", ["attention", "value_norm", "scores"])
def test_every_weighting_is_the_same_batched_in_blocks_and_by_row(
    exact: AttentionReader, weighting: str
) -> None:
    texts = [TEXT[:7], TEXT]
    blocks = maps(exact, texts, weighting=weighting, block_weights=97)
    for ids, together in zip(texts, blocks, strict=True):
        (alone,) = maps(exact, [ids], weighting=weighting)
        assert torch.allclose(together.tril(), alone.tril(), atol=1e-12)
        assert not together.tril().isnan().any()
        rows: list[Rows] = []
        exact.read([ids], {1: [4]}, rows.append, queries=[[3, 5]], weighting=weighting)  # type: ignore[arg-type]
        assert torch.allclose(rows[0].weights[0, 1], alone[1, 4, 5, :6], atol=1e-12)


def test_a_text_is_run_no_further_than_the_last_row_asked_for() -> None:
    reader = AttentionReader(tiny_backbone())
    shapes: list[tuple[int, ...]] = []
    hook = reader.backbone.layers[0].register_forward_pre_hook(
        lambda module, given: shapes.append(tuple(given[0].shape[:2]))
    )
    short: list[Rows] = []
    try:
        reader.read([list(range(60, 77)), list(range(80, 93))], {0: [1]}, short.append, queries=[[2, 6], [4]])
    finally:
        hook.remove()
    assert shapes == [(2, 7)]
    whole: dict[int, Rows] = {}
    reader.read(
        [list(range(60, 77)), list(range(80, 93))], {0: [1]}, lambda rows: whole.update({rows.text: rows})
    )
    for rows in short:
        keys = rows.queries[-1] + 1
        expected = whole[rows.text].weights[:, list(rows.queries), :keys]
        assert torch.allclose(rows.weights, expected, atol=1e-5)
