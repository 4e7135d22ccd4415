"""The core on the real weights, beside transformers' own eager attentions and a float64 copy of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from attention_core.capture import AttentionReader, Rows
from service.model import LoadedModel, assemble
from service.weights import ModelFiles

SENTENCE = "The cat sat on the mat because it was tired."
TEXTS = [
    SENTENCE,
    "A lighthouse keeper who never slept wrote letters to ships that never came.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))",
    "I.",
    "The trophy doesn't fit into the brown suitcase because it is too large. " * 3,
]
CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="module")
def model(files: ModelFiles) -> LoadedModel:
    return assemble(files, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def eager(files: ModelFiles) -> Any:
    return AutoModel.from_pretrained(files.folder, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def ids(model: LoadedModel) -> list[list[int]]:
    return [text.ids for text in model.tokenize(TEXTS)]


def eager_maps(backbone: Any, ids: list[int]) -> torch.Tensor:
    """[layer, head, query, key]"""
    with torch.inference_mode():
        attentions = backbone(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
    assert len(attentions) == 24
    return torch.stack(attentions)[:, 0]


def maps(reader: AttentionReader, sequences: list[list[int]]) -> list[torch.Tensor]:
    kept = [torch.zeros(24, 14, len(ids), len(ids)) for ids in sequences]

    def keep(rows: Rows) -> None:
        start, stop = rows.queries[0], rows.queries[-1] + 1
        kept[rows.text][rows.layer, :, start:stop, :stop] = rows.weights

    reader.read(sequences, {layer: range(14) for layer in range(24)}, keep)
    return kept


def test_all_336_heads_are_within_1e_5_of_eager_at_equal_shape(
    model: LoadedModel, eager: Any, ids: list[list[int]]
) -> None:
    for one in ids:
        (captured,) = maps(model.reader, [one])
        assert (captured - eager_maps(eager, one)).abs().max() <= 1e-5
        assert (captured.sum(-1) - 1).abs().max() <= 1e-6
        assert captured.triu(1).count_nonzero() == 0


def test_single_and_batched_maps_are_as_exact_as_promised(
    model: LoadedModel, eager: Any, files: ModelFiles, ids: list[list[int]]
) -> None:
    """Within 2e-4 of eager, and no farther from the same model in float64 than 1.5 times eager's worst."""
    exact = AttentionReader(AutoModel.from_pretrained(files.folder, dtype=torch.float64))
    worst = {"eager": 0.0, "single": 0.0, "batched": 0.0}
    batched = maps(model.reader, ids)
    for one, together in zip(ids, batched, strict=True):
        (truth,) = maps(exact, [one])
        theirs = eager_maps(eager, one)
        (alone,) = maps(model.reader, [one])
        for name, ours in (("eager", theirs), ("single", alone), ("batched", together)):
            worst[name] = max(worst[name], float((ours - truth).abs().max()))
            assert (ours - theirs).abs().max() <= 2e-4
    print(worst)
    assert worst["eager"] > 0
    assert worst["single"] <= 1.5 * worst["eager"]
    assert worst["batched"] <= 1.5 * worst["eager"]


def test_rope_reaches_the_pronoun_head(model: LoadedModel) -> None:
    """L5H5 it -> cat is 0.869; with a wrong rope_theta of 1e4 it would be 0.793."""
    (text,) = model.tokenize([SENTENCE])
    words = [token.text for token in text.tokens]
    row: list[torch.Tensor] = []
    model.reader.read(
        [text.ids], {5: [5]}, lambda rows: row.append(rows.weights[0, 0].clone()), queries=[[7]]
    )
    assert words[7] == "it"
    expected = [0.005, 0.869, 0.111, 0.008, 0.001, 0.003, 0.001, 0.002]  # The cat sat on the mat because it
    assert row[0].tolist() == pytest.approx(expected, abs=0.002)


def test_one_layer_holds_one_layers_maps_not_twentyfour(model: LoadedModel) -> None:
    """Storage of the weights alive at each hand-over, the block being handed over included."""
    (text,) = model.tokenize(["The cat sat on the mat. " * 40])
    size = len(text.ids)
    alive: list[int] = []

    def measure(rows: Rows) -> None:
        alive.append(_attention_bytes_alive(size))

    model.reader.read([text.ids], {layer: range(14) for layer in range(24)}, measure)
    one_layer = 14 * size * size * 4
    assert len(alive) == 24
    assert max(alive) <= 3 * one_layer  # scores, weights, and the mask


def _attention_bytes_alive(size: int) -> int:
    import gc

    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if isinstance(tensor, torch.Tensor) and tensor.dim() >= 2 and tuple(tensor.shape[-2:]) == (size, size)
    }
    return sum(storages.values())


def test_tokens_and_offsets_are_those_of_the_cases(model: LoadedModel) -> None:
    for line in (CASES / "spans.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        (text,) = model.tokenize([case["text"]])
        assert [[token.id, token.start, token.end] for token in text.tokens] == case["tokens"], case["id"]
        for token in text.tokens:
            assert token.text == case["text"][token.start : token.end]
            assert "\ufffd" not in token.text


def test_the_saved_tokenizer_composes_characters(files: ModelFiles) -> None:
    """Read with `tokenizers` alone: AutoTokenizer would put a lost NFC normaliser back by itself."""
    tokenizer = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    assert tokenizer.encode("Jose\u0301").ids == tokenizer.encode("Jos\u00e9").ids
