"""A tiny random Qwen2 and a byte-level tokenizer, made on the spot: every route runs without weights or network."""

from __future__ import annotations

import json

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import Qwen2Config, Qwen2Model

from attention_core.capture import AttentionReader
from service.model import LoadedModel
from service.texts import TextTokenizer

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == "alien" -%}{{ raise_exception("no such role") }}{%- endif -%}
<|im_end|>{{ message.role }}: {{ message.content }}
{% endfor -%}
"""

LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 3, 10, 5, 14  # odd sizes, grouped-query: swapped axes cannot pass


def tiny_backbone(seed: int = 7, *, vocabulary: int = 307, **options: object) -> Qwen2Model:
    """Random weights, large enough that the maps are far from uniform."""
    torch.manual_seed(seed)
    sizes: dict[str, object] = {
        "vocab_size": vocabulary,
        "hidden_size": HEADS * HEAD_SIZE,
        "intermediate_size": 166,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
    }
    return Qwen2Model(Qwen2Config(**{**sizes, **options})).eval()


def tiny_output_matrix(seed: int = 11, *, vocabulary: int = 307) -> torch.Tensor:
    """[vocabulary, hidden], not the embedding: the two are not tied."""
    return 0.1 * torch.randn(vocabulary, HEADS * HEAD_SIZE, generator=torch.Generator().manual_seed(seed))


def tiny_tokenizer_json() -> str:
    """Byte-level BPE with a few merges, NFC, and one added token, as Qwen's has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "c"),
        ("a", "t"),
        ("Ġc", "at"),
        ("Ġ", "m"),
        ("Ġm", "at"),
        ("Ġ", "i"),
    ]
    pieces = [*alphabet, *(left + right for left, right in merges)]
    model = models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    return json.dumps(json.loads(tokenizer.to_str()))


def tiny_model() -> LoadedModel:
    """What the engine serves in the tests of HTTP."""
    provenance: dict[str, object] = {
        "requested": "tiny",
        "id": "tiny",
        "revision": None,
        "sha256": None,
        "variant": "random",
        "quantization": None,
        "fallback": None,
        "dtype": "float32",
        "device": "cpu",
        "versions": {"service": "0", "torch": torch.__version__, "transformers": "0"},
    }
    tokenizer = TextTokenizer(tiny_tokenizer_json(), CHAT_TEMPLATE)
    return LoadedModel(AttentionReader(tiny_backbone()), tokenizer, 512, provenance, tiny_output_matrix())
