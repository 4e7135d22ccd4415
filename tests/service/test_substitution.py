"""The output matrix of a model on disk, and substitution through the engine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2ForCausalLM

from attention_core.errors import UnsupportedModelError
from attention_core.substitution import continuation_log_probabilities
from service.engine import Deadline, Engine
from service.errors import DeadlineExceededError
from service.model import LoadedModel, assemble
from service.settings import Settings
from service.weights import ModelFiles
from tests.conftest import wait_until
from tests.tiny import tiny_backbone, tiny_model, tiny_output_matrix, tiny_tokenizer_json

SEQUENCES, FIRSTS = [[5, 11, 17, 23, 5, 11, 299], [7, 3], [19, 29, 31]], [4, 1, 2]


def save(folder: Path, *, tied: bool, shard_size: str = "1GB") -> ModelFiles:
    """A model as transformers itself saves it."""
    backbone = tiny_backbone()
    backbone.config.tie_word_embeddings = tied
    model = Qwen2ForCausalLM(backbone.config)
    model.model.load_state_dict(backbone.state_dict())
    if not tied:
        model.lm_head.weight.data = tiny_output_matrix()
    model.save_pretrained(folder, max_shard_size=shard_size)
    (folder / "tokenizer.json").write_text(tiny_tokenizer_json(), encoding="utf-8")
    return files(folder)


def files(folder: Path) -> ModelFiles:
    return ModelFiles(
        id="tiny",
        folder=folder,
        revision=None,
        sha256=None,
        variant="unknown",
        quantization=None,
        requested="tiny",
        fallback=None,
    )


def by_transformers(folder: Path) -> list[float]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    sums = []
    for ids, first in zip(SEQUENCES, FIRSTS, strict=True):
        with torch.inference_mode():
            logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        sums.append(sum(logs[t - 1, ids[t]].item() for t in range(first, len(ids))))
    return sums


def sums(model: LoadedModel) -> list[float]:
    assert model.output_matrix is not None
    return continuation_log_probabilities(model.reader, model.output_matrix, SEQUENCES, FIRSTS)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_size", ["1GB", "200KB"])
def test_a_stored_model_gives_the_log_probabilities_that_transformers_gives(
    tmp_path: Path, tied: bool, shard_size: str
) -> None:
    model = assemble(save(tmp_path, tied=tied, shard_size=shard_size), device="cpu", dtype="float32")
    assert (tmp_path / "model.safetensors").is_file() == (shard_size == "1GB")
    assert (model.output_matrix is model.reader.backbone.embed_tokens.weight) == tied
    assert sums(model) == pytest.approx(by_transformers(tmp_path), abs=1e-4)


def test_a_stored_output_matrix_counts_even_where_the_config_calls_it_tied(tmp_path: Path) -> None:
    """As transformers does it: it ties only what the file does not hold."""
    saved = save(tmp_path, tied=True)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        weights | {"lm_head.weight": tiny_output_matrix()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    model = assemble(saved, device="cpu", dtype="float32")
    assert sums(model) == pytest.approx(by_transformers(tmp_path), abs=1e-4)


def test_in_bfloat16_the_stored_matrix_is_used_as_it_is_stored(tmp_path: Path) -> None:
    model = assemble(save(tmp_path, tied=False), device="cpu", dtype="bfloat16")
    assert model.output_matrix is not None
    assert model.output_matrix.dtype == torch.float32
    assert sums(model) == pytest.approx(by_transformers(tmp_path), abs=0.5)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells resident file pages")
def test_a_stored_output_matrix_takes_no_memory_before_it_is_used(tmp_path: Path) -> None:
    """Mapped, not read: 63 MB on disk add next to nothing to what is resident, until they are read."""
    saved = save(tmp_path, tied=False)
    weights = load_file(tmp_path / "model.safetensors")
    backbone = tiny_backbone(vocabulary=113_171)
    backbone.config.tie_word_embeddings = False
    backbone.config.save_pretrained(tmp_path)
    weights["model.embed_tokens.weight"] = backbone.embed_tokens.weight.data
    weights["lm_head.weight"] = tiny_output_matrix(vocabulary=113_171)
    matrix_bytes = weights["lm_head.weight"].nbytes
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    del weights, backbone
    model = assemble(saved, device="cpu", dtype="float32")
    assert model.output_matrix is not None
    before = resident_file_bytes()
    model.output_matrix.sum()
    assert resident_file_bytes() - before >= 0.9 * matrix_bytes


def resident_file_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (kilobytes,) = re.findall(r"^RssFile:\s+(\d+) kB", status, re.MULTILINE)
    return int(kilobytes) * 1024


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(tiny_model, Settings()).start()
    wait_until(lambda: engine.state == "ready")
    yield engine
    engine.close()


def test_a_session_gives_the_sums_and_says_where_the_time_went(engine: Engine) -> None:
    with engine.admit() as session:
        found = session.continuations(SEQUENCES, FIRSTS)
        assert session.seconds.keys() == {"queue", "fwd"}
    assert found == pytest.approx(sums(engine.model), abs=1e-4)


def test_at_the_deadline_the_run_stops_before_the_next_layer(engine: Engine) -> None:
    layers = engine.model.reader.backbone.layers
    ran: list[int] = []
    hooks = [layers[0].register_forward_pre_hook(lambda *_: time.sleep(1))]
    hooks += [
        layer.mlp.register_forward_pre_hook(lambda *_, index=index: ran.append(index))
        for index, layer in enumerate(layers)
    ]
    try:
        with engine.admit() as session:
            session.deadline = Deadline.after(0.3)
            with pytest.raises(DeadlineExceededError):
                session.continuations(SEQUENCES, FIRSTS)
        engine.run(lambda check: None, Deadline.after(30))  # waits for the one before
        assert ran == []
    finally:
        for hook in hooks:
            hook.remove()


def test_weights_without_an_output_matrix_are_read_but_refuse_substitution(tmp_path: Path) -> None:
    backbone = tiny_backbone()
    backbone.config.tie_word_embeddings = False
    backbone.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(tiny_tokenizer_json(), encoding="utf-8")
    engine = Engine(lambda: assemble(files(tmp_path), device="cpu", dtype="float32"), Settings()).start()
    try:
        wait_until(lambda: engine.state != "loading")
        assert engine.model.output_matrix is None
        with engine.admit() as session, pytest.raises(UnsupportedModelError, match="output matrix"):
            session.continuations(SEQUENCES, FIRSTS)
    finally:
        engine.close()
