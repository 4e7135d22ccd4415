"""Packed layers against transformers' own, on a tiny random Qwen2 with odd sizes; see test_capture for what is read."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import linear, silu
from transformers import Qwen2ForCausalLM, Qwen3Config, Qwen3Model

import attention_core.packed
from attention_core.capture import AttentionReader, Rows
from attention_core.errors import UnsupportedModelError
from attention_core.packed import PackedLayer, PackedLinear, pack
from tests.tiny import HEADS, LAYERS, tiny_backbone

TEXT = [5, 11, 17, 23, 5, 11, 299, 2, 3, 301, 0, 17, 13]


def packed_backbone(**options: object) -> torch.nn.Module:
    backbone = tiny_backbone(**options)
    assert pack(backbone)
    assert all(isinstance(layer, PackedLayer) for layer in backbone.layers)
    return backbone


def states(backbone: torch.nn.Module, ids: list[list[int]], **options: object) -> torch.Tensor:
    with torch.inference_mode():
        return backbone(torch.tensor(ids), use_cache=False, **options).last_hidden_state


# --- products -------------------------------------------------------------------------------------------------


@pytest.fixture
def one() -> torch.nn.Linear:
    torch.manual_seed(3)
    return torch.nn.Linear(53, 89)


@pytest.mark.parametrize("rows", [1, 12, 111])
def test_a_packed_product_and_what_is_applied_to_it_are_those_of_the_linear_layer(
    one: torch.nn.Linear, rows: int
) -> None:
    x, other = torch.randn(rows, 53), torch.randn(rows, 89)
    with torch.inference_mode():
        packed, expected = PackedLinear(one), linear(x, one.weight, one.bias)
        for got, right in (
            (packed(x), expected),
            (packed.silu(x), silu(expected)),
            (packed.times(x, other), expected * other),
            (packed.plus(x, other), expected + other),
        ):
            torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


def test_products_of_one_input_come_side_by_side_with_their_biases(one: torch.nn.Linear) -> None:
    another, x = torch.nn.Linear(53, 31), torch.randn(2, 7, 53)
    with torch.inference_mode():
        got = PackedLinear(one, another)(x)
        torch.testing.assert_close(got, torch.cat([one(x), another(x)], -1), rtol=1e-5, atol=1e-5)


def test_the_matrix_comes_back_as_it_was(one: torch.nn.Linear) -> None:
    with torch.inference_mode():
        assert torch.equal(PackedLinear(one).weight, one.weight)


# --- layers ---------------------------------------------------------------------------------------------------


def test_packed_layers_give_the_states_that_transformers_gives() -> None:
    ids = [TEXT, TEXT[::-1]]
    expected = states(tiny_backbone(), ids)
    got = states(packed_backbone(), ids)
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_long_text_whose_rows_go_through_the_mlp_in_parts_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = states(packed_backbone(), [TEXT, TEXT])
    monkeypatch.setattr(attention_core.packed, "MLP_TOKENS", 7)
    parts = states(packed_backbone(), [TEXT, TEXT])
    assert (parts - whole).abs().max() <= 1e-5 * whole.abs().max()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128},
    ],
)
def test_scaled_rotary_positions_are_kept(rope: dict[str, object]) -> None:
    expected = states(tiny_backbone(rope_parameters=rope), [TEXT])
    plain = states(tiny_backbone(), [TEXT])
    got = states(packed_backbone(rope_parameters=rope), [TEXT])
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (got - plain).abs().max() > 1e-2


@pytest.mark.parametrize("mask", [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
def test_padding_on_the_left_is_masked_as_transformers_masks_it(mask: list[int]) -> None:
    padded = {"attention_mask": torch.tensor([mask])}
    expected, got = (
        states(backbone, [TEXT[:7]], **padded) for backbone in (tiny_backbone(), packed_backbone())
    )
    real = torch.tensor(mask).bool()
    assert (got - expected)[0, real].abs().max() <= 1e-5 * expected.abs().max()


def test_value_norms_see_the_output_projection_of_packed_layers() -> None:
    seen: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for packed, backbone in ((False, tiny_backbone()), (True, packed_backbone())):

        def keep(rows: Rows, of: bool = packed) -> None:
            seen[of].append(rows.weights.clone())

        AttentionReader(backbone).read([TEXT], {1: [7, 3]}, keep, weighting="value_norm")
    assert (seen[True][0] - seen[False][0]).abs().max() <= 1e-5


def test_the_original_matrices_are_let_go() -> None:
    backbone = packed_backbone()
    left = sum(parameter.numel() for parameter in backbone.parameters())
    hidden = backbone.config.hidden_size
    assert left == backbone.embed_tokens.weight.numel() + (2 * LAYERS + 1) * hidden


def test_a_language_model_is_packed_at_its_base() -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(tiny_backbone().config).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT]), use_cache=False).logits
        assert pack(model)
        got = model(torch.tensor([TEXT]), use_cache=False).logits
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_cache_is_refused_not_ignored() -> None:
    with pytest.raises(UnsupportedModelError, match="cache"):
        packed_backbone()(torch.tensor([TEXT]), use_cache=True)


# --- where packing cannot be had --------------------------------------------------------------------------------


def missing(*arguments: object) -> torch.Tensor:
    raise NotImplementedError("no such kernel")


def test_a_model_stays_as_it_is_where_the_kernel_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedLinear, "__init__", missing)
    backbone = tiny_backbone()
    assert not pack(backbone)
    assert not any(isinstance(layer, PackedLayer) for layer in backbone.layers)
    seen: list[Rows] = []
    AttentionReader(backbone).read([TEXT], {1: range(HEADS)}, seen.append)
    assert len(seen) == 1


def test_a_model_stays_as_it_is_where_the_kernel_gives_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = PackedLinear.plus
    monkeypatch.setattr(PackedLinear, "plus", lambda self, x, other: 1.01 * right(self, x, other))
    assert not pack(tiny_backbone())


@pytest.mark.parametrize("fault", ["no rotation", "scaled", "no mask"])
def test_the_check_at_loading_sees_where_a_layer_looks(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention_core.packed.scaled_dot_product_attention
    if fault == "no rotation":
        monkeypatch.setattr(attention_core.packed, "_rotated", lambda x, cos, sin: x)
    elif fault == "scaled":
        monkeypatch.setattr(
            attention_core.packed,
            "scaled_dot_product_attention",
            lambda *tensors, scale, **options: right(*tensors, scale=1.1 * scale, **options),
        )
    else:
        monkeypatch.setattr(
            attention_core.packed,
            "scaled_dot_product_attention",
            lambda query, key, value, mask, **options: right(query, key, value, None, **options),
        )
    assert not pack(tiny_backbone())


class Adapted(torch.nn.Module):
    """As an adapter does: a linear layer and something beside it."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.linear(x)


@pytest.mark.parametrize("place", [0, LAYERS - 1])
@pytest.mark.parametrize("change", ["hook", "adapter", "activation", "dtype"])
def test_a_model_with_a_layer_of_its_own_kind_stays_as_it_is(change: str, place: int) -> None:
    backbone = tiny_backbone()
    layer = backbone.layers[place]
    if change == "hook":
        layer.self_attn.q_proj.register_forward_hook(lambda module, inputs, output: 2 * output)
    elif change == "adapter":
        layer.mlp.gate_proj = Adapted(layer.mlp.gate_proj)
    elif change == "activation":
        layer.mlp.act_fn = torch.nn.GELU()
    else:
        layer.self_attn.k_proj.double()
    before = list(backbone.layers)
    assert not pack(backbone)
    assert list(backbone.layers) == before


def test_a_packed_model_works_outside_inference_mode() -> None:
    backbone = packed_backbone()
    got = backbone(torch.tensor([TEXT]), use_cache=False).last_hidden_state
    assert not got.requires_grad
    assert (got - states(backbone, [TEXT])).abs().max() <= 1e-5 * got.abs().max()


def test_a_model_of_another_architecture_stays_as_it_is() -> None:
    sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    model = Qwen3Model(Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, head_dim=8)).eval()
    assert not pack(model)


def test_packing_twice_is_packing_once() -> None:
    backbone = packed_backbone()
    layers = list(backbone.layers)
    assert pack(backbone)
    assert list(backbone.layers) == layers


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_model_is_packed_whatever_its_attention_function(implementation: str) -> None:
    backbone = tiny_backbone()
    backbone.set_attn_implementation(implementation)
    assert pack(backbone)


def test_packed_layers_above_the_last_one_needed_never_run() -> None:
    reader = AttentionReader(packed_backbone())
    ran: list[int] = []
    for place, layer in enumerate(reader.backbone.layers):
        layer.register_forward_pre_hook(lambda *_, of=place: ran.append(of))
    reader.read([TEXT], {1: [0]}, lambda rows: None)
    assert ran == [0, 1]


@pytest.mark.parametrize(
    "backbone",
    [tiny_backbone().double(), tiny_backbone().half(), tiny_backbone(hidden_act="gelu")],
    ids=["float64", "float16", "gelu"],
)
def test_models_that_packed_layers_are_not_made_for_stay_as_they_are(backbone: torch.nn.Module) -> None:
    assert not pack(backbone)
    assert not any(isinstance(layer, PackedLayer) for layer in backbone.layers)


def test_a_bfloat16_model_is_as_near_to_float32_packed_as_not() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16 products")
    truth = states(tiny_backbone(), [TEXT])
    plain = tiny_backbone().bfloat16()
    packed = tiny_backbone().bfloat16()
    assert pack(packed)
    apart = [float((states(one, [TEXT]).float() - truth).abs().mean()) for one in (plain, packed)]
    assert 0 < apart[1] <= 1.2 * apart[0]


def test_queries_in_a_run_and_scattered_ones_read_the_same_rows() -> None:
    reader = AttentionReader(packed_backbone())
    found: dict[tuple[int, ...], torch.Tensor] = {}

    def keep(rows: Rows) -> None:
        for place, query in enumerate(rows.queries):
            found[len(asked), query] = rows.weights[:, place, : query + 1].clone()

    for asked in ([3, 4, 5, 6], [1, 3, 4, 5, 6, 9], [4]):
        reader.read([TEXT], {2: [1, 7]}, keep, queries=[asked])
    for (length, query), (other, _) in itertools.product(found, found):
        if (other, query) in found:
            assert (found[length, query] - found[other, query]).abs().max() <= 1e-6
