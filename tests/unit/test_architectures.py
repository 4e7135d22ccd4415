"""Each architecture is read as transformers' eager attention has it, or refused before anything runs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface, AutoModel, PreTrainedModel, Qwen2Model
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attention_core.architectures import READABLE
from attention_core.capture import AttentionReader, Rows
from attention_core.errors import UnsupportedModelError
from tests.tiny import tiny_backbone

LAYERS, HEADS, KV_HEADS, HEAD_SIZE, WIDTH = (
    3,
    10,
    5,
    12,
    44,
)  # experts multiply matrices with a width of 4 n only
TEXTS = [[5, 11, 17, 23, 5, 11, 97, 2, 3, 89, 0, 17, 13], [7, 7, 61, 1, 31, 5, 2]]
# Beside the sizes; what a model has of its own is set to something that shows
EXPERTS = {"moe_intermediate_size": 20, "num_experts": 7, "num_experts_per_tok": 3}
READ: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in READABLE},
    "cohere with query and key norms": ("cohere", {"use_qk_norm": True}),
    "gemma with heads wider than its states": ("gemma", {"head_dim": 26, "num_key_value_heads": 1}),
    "granite": ("granite", {"attention_multiplier": 0.7, "residual_multiplier": 0.3}),
    "llama, a key for each head": ("llama", {"num_key_value_heads": HEADS}),
    "llama, one key for all heads": ("llama", {"num_key_value_heads": 1}),
    "llama with RoPE by llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 11,
            }
        },
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", {"num_local_experts": 7, "num_experts_per_tok": 3}),
    "olmo": ("olmo", {"clip_qkv": 0.9}),
    "olmoe": ("olmoe", {"num_experts": 7, "num_experts_per_tok": 3}),
    "qwen2 with RoPE by yarn": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 11,
            }
        },
    ),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 28}),
    "qwen3 with heads wider than its states": ("qwen3", {"head_dim": 26}),
    "qwen3_moe": ("qwen3_moe", EXPERTS),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
}


def built(kind: str, **options: object) -> PreTrainedModel:
    """A tiny random model, whose maps are far from uniform."""
    torch.manual_seed(7)
    sizes = {
        "vocab_size": 101,
        "hidden_size": HEADS * HEAD_SIZE,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }
    model = AutoModel.from_config(CONFIG_MAPPING[kind](**{**sizes, **options})).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # biases and norms, which begin as zeros and ones
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    return model


@pytest.mark.parametrize(("kind", "options"), READ.values(), ids=READ)
def test_every_map_equals_eager_attention(kind: str, options: dict[str, object]) -> None:
    model = built(kind, **options)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    reader = AttentionReader(model)
    everything = {layer: range(HEADS) for layer in range(LAYERS)}
    for sequences in (TEXTS[:1], TEXTS):  # at equal shape, and in a padded batch
        read: dict[tuple[int, int], torch.Tensor] = {}

        def keep(rows: Rows, read: dict[tuple[int, int], torch.Tensor] = read) -> None:
            read[rows.text, rows.layer] = rows.weights.clone()

        reader.read(sequences, everything, keep)
        for text, ids in enumerate(sequences):
            with torch.inference_mode():
                maps = eager(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
            assert len(maps) == LAYERS
            assert torch.stack(maps).std() > 0.1  # rows that are all alike would tell nothing
            for layer, expected in enumerate(maps):
                assert (read[text, layer] - expected[0]).abs().max() <= 1e-5


def only_values(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: object,
    **__: object,
) -> tuple[torch.Tensor, None]:
    """An attention function in which every token attends to itself alone."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2).contiguous(), None


AttentionInterface.register("only_values", only_values)


@pytest.mark.parametrize(("kind", "options"), READ.values(), ids=READ)
@torch.inference_mode()
def test_value_norms_weigh_what_each_head_writes(kind: str, options: dict[str, object]) -> None:
    model, head = built(kind, **options), 3
    other = copy.deepcopy(model)
    projection = other.layers[0].self_attn.o_proj
    given: list[torch.Tensor] = []  # [text, token, head x d]
    projection.register_forward_pre_hook(lambda _, arguments: given.append(arguments[0]))
    other.set_attn_implementation("only_values")
    other(torch.tensor(TEXTS[:1]), use_cache=False)
    value = given[0][0].unflatten(-1, (HEADS, -1))[:, head]  # [token, d]
    written = value @ projection.weight.unflatten(-1, (HEADS, -1))[:, head].T  # [token, hidden]
    other.set_attn_implementation("eager")
    maps = other(torch.tensor(TEXTS[:1]), output_attentions=True, use_cache=False).attentions
    expected = maps[0][0, head] * written.norm(dim=-1)

    read: list[Rows] = []
    AttentionReader(model).read(TEXTS[:1], {0: [head]}, read.append, weighting="value_norm")
    assert (read[0].weights[0] - expected / expected.sum(-1, keepdim=True)).abs().max() <= 1e-5


def test_every_readable_architecture_is_compared() -> None:
    assert {kind for kind, _ in READ.values()} == set(READABLE)


# --- refused ------------------------------------------------------------------------------------------------

WINDOWS = "sliding windows or chunks"
AHEAD = "attention in both directions"
CROSS = "an encoder or cross-attention"
LENGTH = "rotary angles that depend on the text's length"
INTERFACE = "does not go through transformers' AttentionInterface"
LATENT = "multi-head latent attention"
UNCOMPARED = "was not compared with eager attention"
FACTORS = [1.0 + 0.1 * dimension for dimension in range(HEAD_SIZE // 2)]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": FACTORS,
    "long_factor": FACTORS,
    "original_max_position_embeddings": 11,
}
DYNAMIC = {
    "rope_type": "dynamic",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 11,
}
REFUSED_TRAITS: list[tuple[str, dict[str, object], str]] = [
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, WINDOWS),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1}, WINDOWS),
    ("qwen2", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, WINDOWS),
    ("qwen2", {"layer_types": ["full_attention", "full_attention", "linear_attention"]}, WINDOWS),
    ("qwen2", {"is_causal": False}, AHEAD),
    ("qwen2", {"is_causal": None}, AHEAD),
    ("llama", {"is_causal": 0}, AHEAD),
    ("qwen2", {"rope_parameters": DYNAMIC}, LENGTH),
    (
        "qwen2_moe",
        {**EXPERTS, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
        WINDOWS,
    ),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, WINDOWS),
    ("qwen3_moe", {**EXPERTS, "use_sliding_window": True, "sliding_window": 5}, WINDOWS),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 5, "no_rope_layer_interval": 2}, WINDOWS),
    ("mistral", {"sliding_window": 4096}, WINDOWS),
    ("mistral", {"sliding_window": 30, "use_sliding_window": False}, WINDOWS),
    ("phi3", {"sliding_window": 30, "use_sliding_window": False}, WINDOWS),
    ("mixtral", {"sliding_window": 5}, WINDOWS),
    ("phi3", {"sliding_window": 2047}, WINDOWS),
    ("phi3", {"rope_parameters": LONGROPE}, LENGTH),
    ("starcoder2", {"sliding_window": 5}, WINDOWS),
    ("gemma", {"use_bidirectional_attention": True}, AHEAD),
    ("llama", {"rope_parameters": DYNAMIC}, LENGTH),
]


@pytest.mark.parametrize(("kind", "options", "trait"), REFUSED_TRAITS)
def test_a_readable_model_with_a_trait_that_is_not_read_is_refused(
    kind: str, options: dict[str, object], trait: str
) -> None:
    model = built(kind, **options)
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match=f"^{kind} is not read: .*{trait}"):
        AttentionReader(model)
    assert model.config._attn_implementation == before  # a refused model is left as it was


@pytest.mark.parametrize("kind", ["mistral", "phi3"])
def test_a_model_loaded_without_its_window_is_itself_up_to_that_length(kind: str, tmp_path: Path) -> None:
    eager = built(kind, sliding_window=len(TEXTS[0]))
    eager.save_pretrained(tmp_path)
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = eager(torch.tensor(TEXTS[:1]), output_attentions=True, use_cache=False).attentions[2][0]
    read: list[Rows] = []
    model = AutoModel.from_pretrained(tmp_path, sliding_window=None)
    AttentionReader(model).read(TEXTS[:1], {2: range(HEADS)}, read.append)
    assert (read[0].weights - expected).abs().max() <= 1e-5


# As they are published but for the number of layers. On the meta device nothing can run
REFUSED_KINDS: list[tuple[str, str]] = [
    ("bart", CROSS),
    ("bert", AHEAD),
    ("bloom", "ALiBi"),
    ("cohere2", WINDOWS),
    ("deepseek_v2", LATENT),
    ("deepseek_v3", LATENT),
    ("diffllama", UNCOMPARED),
    ("doge", UNCOMPARED),  # a mask of its own: read, its rows would be off by 0.3
    ("falcon", INTERFACE),
    ("gemma2", WINDOWS),
    ("gemma2", "soft-capped scores"),
    ("gemma3_text", WINDOWS),
    ("gpt2", UNCOMPARED),
    ("gpt_neo", INTERFACE),
    ("gpt_neox", UNCOMPARED),
    ("gpt_oss", "attention sinks in the softmax"),
    ("gpt_oss", WINDOWS),
    ("jamba", INTERFACE),
    ("lfm2", UNCOMPARED),
    ("llama4_text", WINDOWS),
    ("mamba", INTERFACE),
    ("mistral", WINDOWS),
    ("modernbert", AHEAD),
    ("mpt", "ALiBi"),
    ("opt", UNCOMPARED),
    ("olmo3", WINDOWS),
    ("qwen3_next", INTERFACE),
    ("stablelm", INTERFACE),
    ("t5", CROSS),
    ("xlnet", INTERFACE),
]


@pytest.mark.parametrize(("kind", "why"), REFUSED_KINDS)
def test_other_kinds_of_model_are_refused_before_anything_runs(kind: str, why: str) -> None:
    config = CONFIG_MAPPING[kind]()
    config.num_hidden_layers = 2
    with torch.device("meta"):
        model = AutoModel.from_config(config).eval()
    with pytest.raises(UnsupportedModelError, match=f"^{kind} is not read: .*{why}"):
        AttentionReader(model)


def test_code_that_is_not_transformers_own_is_refused() -> None:
    class Embedder(Qwen2Model):
        """As models that come with their own code: the config says qwen2, the code may do anything."""

    with pytest.raises(UnsupportedModelError, match="code that is not transformers' own"):
        AttentionReader(Embedder(tiny_backbone().config).eval())
