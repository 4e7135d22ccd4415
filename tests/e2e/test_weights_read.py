"""The core on the real weights, beside transformers' own eager attentions and a float64 copy of the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForCausalLM

from attention_core.capture import AttentionReader, Rows
from attention_core.packed import PackedLayer
from attention_core.substitution import choose, continuation_log_probabilities, substitute
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
DATA = Path(__file__).parents[2] / "service" / "data"


@pytest.fixture(scope="module")
def model(files: ModelFiles) -> LoadedModel:
    return assemble(files, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def eager(files: ModelFiles) -> Any:
    return AutoModel.from_pretrained(files.folder, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="module")
def ids(model: LoadedModel) -> list[list[int]]:
    return [list(model.tokenizer.tokenize(text).ids) for text in TEXTS]


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


def test_with_default_kernels_all_336_heads_are_within_1e_5_of_eager_at_equal_shape(
    files: ModelFiles, eager: Any, ids: list[list[int]]
) -> None:
    plain = AttentionReader(AutoModel.from_pretrained(files.folder, dtype=torch.float32))
    for one in ids:
        (captured,) = maps(plain, [one])
        assert (captured - eager_maps(eager, one)).abs().max() <= 1e-5
        assert (captured.sum(-1) - 1).abs().max() <= 1e-6
        assert captured.triu(1).count_nonzero() == 0


def test_single_and_batched_maps_are_as_exact_as_promised(
    model: LoadedModel, eager: Any, files: ModelFiles, ids: list[list[int]]
) -> None:
    """Within 2e-4 of eager, and no farther from the same model in float64 than 1.5 times eager's worst."""
    assert isinstance(model.reader.backbone.layers[0], PackedLayer)
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
    text = model.tokenizer.tokenize(SENTENCE)
    words = [token.text for token in text.tokens]
    row: list[torch.Tensor] = []
    model.reader.read(
        [text.ids], {5: [5]}, lambda rows: row.append(rows.weights[0, 0].clone()), queries=[[7]]
    )
    assert words[7] == "it"
    expected = [0.005, 0.869, 0.111, 0.008, 0.001, 0.003, 0.001, 0.002]  # The cat sat on the mat because it
    assert row[0].tolist() == pytest.approx(expected, abs=0.002)


def continuations(model: LoadedModel, items: list[dict[str, Any]]) -> tuple[list[list[int]], list[int]]:
    """Every candidate of every item in its pronoun's place, two to an item; and the first token after it."""
    sequences, firsts = [], []
    for item in items:
        for candidate in item["candidates"]:
            pronoun = item["pronoun"]
            text = substitute(item["text"], pronoun["start"], pronoun["end"], candidate["text"])
            before, after = (model.tokenizer.tokenize(part).ids for part in (text.before, text.after))
            assert [*before, *after] == model.tokenizer.tokenize(
                text.text
            ).ids  # English words: no token straddles
            sequences.append([*before, *after])
            firsts.append(len(before))
    return sequences, firsts


@pytest.mark.parametrize(("file", "right", "of"), [("easy.jsonl", 6, 6), ("control.jsonl", 15, 17)])
def test_the_model_itself_resolves_what_the_pronoun_head_does_not(
    model: LoadedModel, file: str, right: int, of: int
) -> None:
    items = [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]
    sums = continuation_log_probabilities(model.reader, model.output_matrix, *continuations(model, items))
    found = [choose(sums[2 * i : 2 * i + 2], gold=item["gold"]) for i, item in enumerate(items)]
    assert (sum(one.correct is True for one in found), len(found)) == (right, of)
    assert not any(one.within_noise for one in found)


def test_sums_of_log_probabilities_are_those_of_transformers_own_language_model(
    model: LoadedModel, files: ModelFiles
) -> None:
    items = [json.loads(line) for line in (DATA / "control.jsonl").read_text(encoding="utf-8").splitlines()]
    sequences, firsts = continuations(model, items[:3])
    found = continuation_log_probabilities(model.reader, model.output_matrix, sequences, firsts)
    theirs = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32)
    for ids, first, ours in zip(sequences, firsts, found, strict=True):
        with torch.inference_mode():
            # In float32, log_softmax over 151,936 entries is itself off by 5e-5 a token, always to the same side
            logs = theirs(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        assert ours == pytest.approx(
            sum(logs[t - 1, ids[t]].item() for t in range(first, len(ids))), abs=1e-4
        )


def test_reading_all_layers_holds_one_layers_maps_not_twentyfour(model: LoadedModel) -> None:
    text = model.tokenizer.tokenize("The cat sat on the mat. " * 140)
    sums = torch.zeros(24, 14)

    def reduce(rows: Rows) -> None:
        sums[rows.layer] += rows.weights.sum((1, 2))

    def read() -> None:
        model.reader.read([text.ids], {layer: range(14) for layer in range(24)}, reduce)

    read()  # buffers that the process keeps anyway
    one_layer = 14 * len(text.ids) ** 2 * 4
    peak = _peak_bytes_of(read)
    print(
        f"{len(text.ids)} tokens: one layer's maps {one_layer / 2**20:.0f} MiB, peak {peak / 2**20:.0f} MiB above"
    )
    assert peak < 5 * one_layer  # scores, weights, and the layer's own activations
    assert torch.allclose(sums, torch.full((24, 14), 2.0 * len(text.ids)), rtol=1e-4)


def _peak_bytes_of(call: Callable[[], None]) -> int:
    """Peak resident memory of a call above what was resident before it."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


def test_tokens_and_offsets_are_those_of_the_cases(model: LoadedModel) -> None:
    for line in (CASES / "spans.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        text = model.tokenizer.tokenize(case["text"])
        assert [[token.id, token.start, token.end] for token in text.tokens] == case["tokens"], case["id"]
        for token in text.tokens:
            assert token.text == case["text"][token.start : token.end]
            assert "\ufffd" not in token.text


def test_the_saved_tokenizer_composes_characters(files: ModelFiles) -> None:
    """Read with `tokenizers` alone: AutoTokenizer would put a lost NFC normaliser back by itself."""
    tokenizer = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    assert tokenizer.encode("Jose\u0301").ids == tokenizer.encode("Jos\u00e9").ids
