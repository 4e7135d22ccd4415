"""From a GGUF file to a folder of float32 safetensors, once, so that a start takes seconds."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGUFReader, LlamaFileType, TokenType, get_tensor_name_map
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from service.weights.checks import SINGLE_FILE, check_config, check_folder
from service.weights.errors import UnsuitableModelError, WeightsError
from service.weights.store import (
    CONVERSION,
    PROVENANCE,
    Progress,
    appears_whole,
    converted_folder,
    require_space,
    sha256_of,
    variant_of,
    write_record,
)

TOKENIZER_BYTES = 20_000_000  # of tokenizer.json and the small files, at most


def convert(gguf: Path, cache: Path, name: str, sha256: str, progress: Progress) -> None:
    """Dequantise a GGUF file (whose hash is `sha256`) into the cache. Call it under `exclusive`."""
    reader = _read(gguf, name)
    with _refusing(name):
        config = _config(reader, name)
    float32_bytes = sum(4 * int(tensor.n_elements) for tensor in reader.tensors)
    folder = converted_folder(cache, name, sha256)
    with appears_whole(folder) as partial:
        require_space(partial, float32_bytes + TOKENIZER_BYTES)
        with _refusing(name):
            tokenizer = _tokenizer(reader, name)
            weights = _weights(reader, config, name, progress)
        save_file(weights, partial / SINGLE_FILE, metadata={"format": "pt"})
        # safetensors writes for the owner only; a server may be another user
        (partial / SINGLE_FILE).chmod(0o644)
        config.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        check_folder(partial, name)
        provenance = {
            "conversion": CONVERSION,
            "id": name,
            "sha256": sha256,
            "variant": variant_of(f"{_field(reader, 'general.name', '')} {name}".replace(" ", "-")),
            "quantization": _quantization(reader),
            "files": _facts(partial, progress),
            "versions": {
                package: version(package)
                for package in ("gguf", "safetensors", "tokenizers", "torch", "transformers")
            },
        }
        write_record(partial / PROVENANCE, provenance)


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn whatever gguf, transformers and tokenizers raise over the contents of a file into one kind."""
    try:
        yield
    except (WeightsError, OSError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in tokenizers is no Exception
        raise UnsuitableModelError(
            f"{name} has contents that make no Qwen2 model: {type(error).__name__}: {error}"
        ) from error


def _read(gguf: Path, name: str) -> GGUFReader:
    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise UnsuitableModelError(f"{name} is not a whole GGUF file: {error}") from error
    architecture = _field(reader, "general.architecture", None)
    if architecture != "qwen2":
        raise UnsuitableModelError(f"{name} is not a Qwen2 model: its architecture is {architecture!r}")
    return reader


def _field(reader: GGUFReader, key: str, *default: Any) -> Any:
    if key not in reader.fields:
        if default:
            return default[0]
        raise UnsuitableModelError(f"the GGUF file has no field {key}")
    return reader.fields[key].contents()


def _config(reader: GGUFReader, name: str) -> Qwen2Config:
    for key in reader.fields:
        if re.match(r"qwen2\.(rope\.scaling|attention\.sliding_window)", key):
            raise UnsuitableModelError(f"{name} uses {key}, which this service does not read")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise UnsuitableModelError(f"{name} has no tensor token_embd.weight")
    config = Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        dtype="float32",
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        hidden_size=_field(reader, "qwen2.embedding_length"),
        intermediate_size=_field(reader, "qwen2.feed_forward_length"),
        num_hidden_layers=_field(reader, "qwen2.block_count"),
        num_attention_heads=_field(reader, "qwen2.attention.head_count"),
        num_key_value_heads=_field(reader, "qwen2.attention.head_count_kv"),
        max_position_embeddings=_field(reader, "qwen2.context_length"),
        rms_norm_eps=_field(reader, "qwen2.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "qwen2.rope.freq_base")},
        tie_word_embeddings="output.weight"
        not in tensors,  # a GGUF may quantise the two differently: then both count
        use_sliding_window=False,
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id", None),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id", None),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id", None),
    )
    check_config(config.to_dict(), name)
    return config


def _weights(
    reader: GGUFReader, config: Qwen2Config, name: str, progress: Progress
) -> dict[str, torch.Tensor]:
    """Every parameter of the model, in float32, under transformers' names, which gguf maps to its own."""
    with torch.device("meta"):
        expected = Qwen2ForCausalLM(config).state_dict()
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    names = get_tensor_name_map(MODEL_ARCH.QWEN2, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = {}
    with progress.bar("converting to float32", len(expected), " tensors") as bar:
        for key, parameter in expected.items():
            tensor = tensors.pop(names.get_name(key, (".weight", ".bias")), None)
            if tensor is None:
                raise UnsuitableModelError(f"{name} has no tensor for {key}")
            values = np.require(dequantize(tensor.data, tensor.tensor_type), np.float32, ["C", "W"])
            if values.shape != tuple(parameter.shape):
                raise UnsuitableModelError(
                    f"{name}: {tensor.name} has shape {values.shape}, expected {tuple(parameter.shape)}"
                )
            weights[key] = torch.from_numpy(values)
            bar.update()
    if tensors:
        raise UnsuitableModelError(f"{name} has tensors that a Qwen2 has not: {', '.join(sorted(tensors))}")
    return weights


def _tokenizer(reader: GGUFReader, name: str) -> Qwen2Tokenizer:
    """The tokenizer, built by transformers' Qwen2 class: a GGUF does not tell of the NFC normaliser."""
    scheme = _field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre", None)
    if scheme != ("gpt2", "qwen2"):
        raise UnsuitableModelError(f"{name} has a tokenizer of the kind {scheme}, expected ('gpt2', 'qwen2')")
    pieces: list[str] = _field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    special = {
        role: pieces[_field(reader, f"tokenizer.ggml.{key}_token_id")]
        for role, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"))
        if f"tokenizer.ggml.{key}_token_id" in reader.fields
    }
    tokenizer = Qwen2Tokenizer(
        # Unused pieces fill the embedding up to a round number; the hub's tokenizer has none of them.
        vocab={
            piece: i
            for i, (piece, kind) in enumerate(zip(pieces, kinds, strict=True))
            if kind != TokenType.UNUSED
        },
        merges=[tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")],
        model_max_length=_field(reader, "qwen2.context_length"),
        **special,
    )
    tokenizer.add_tokens(
        [
            AddedToken(piece, special=kind == TokenType.CONTROL, normalized=False)
            for piece, kind in zip(pieces, kinds, strict=True)
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ]
    )
    tokenizer.chat_template = _field(reader, "tokenizer.chat_template", None)
    return tokenizer


def _quantization(reader: GGUFReader) -> str | None:
    file_type = _field(reader, "general.file_type", None)
    try:
        return str(LlamaFileType(file_type).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return None


def _facts(folder: Path, progress: Progress) -> dict[str, dict[str, Any]]:
    paths = sorted(folder.iterdir())
    with progress.bar("hashing the result", sum(path.stat().st_size for path in paths)) as bar:
        return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path, bar)} for path in paths}
