"""Is it a model that this service reads? Answered from its small files, before weights are fetched."""

import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from service.weights.errors import UnsuitableModelError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Read a JSON object of the model called `name`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnsuitableModelError(f"{name} has no {path.name}") from None
    except ValueError:
        raise UnsuitableModelError(f"{name}: {path.name} is not JSON") from None
    if not isinstance(value, dict):
        raise UnsuitableModelError(f"{name}: {path.name} is not a JSON object")
    return value


def check_config(config: dict[str, Any], name: str) -> None:
    """Raise UnsuitableModelError, naming the trait in the way, unless `config` describes a plain Qwen2."""
    kind = config.get("model_type")
    if kind != "qwen2":
        raise UnsuitableModelError(f"{name} is not a Qwen2 model: model_type is {kind!r}")
    for field in SIZES:
        size = config.get(field)
        if type(size) is not int or size < 1:
            raise UnsuitableModelError(f"{name}: {field} is {size!r}, expected a positive integer")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if config["hidden_size"] % heads or heads % kv_heads:
        raise UnsuitableModelError(
            f"{name}: {heads} heads must divide hidden_size {config['hidden_size']}, "
            f"and {kv_heads} key/value heads must divide {heads}"
        )
    pad, vocabulary = config.get("pad_token_id"), config["vocab_size"]
    if pad is not None and not (type(pad) is int and -vocabulary <= pad < vocabulary):
        raise UnsuitableModelError(f"{name}: pad_token_id is {pad!r}, outside of the {vocabulary} tokens")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or []):
        raise UnsuitableModelError(
            f"{name} attends through a sliding window, which this service does not read"
        )
    if config.get("quantization_config") is not None:
        raise UnsuitableModelError(f"{name} is quantised; take the plain model, or a GGUF file")


def shards_of(index: dict[str, Any], name: str) -> list[str]:
    """The weight files that a safetensors index names."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UnsuitableModelError(f"{name}: {INDEX_FILE} has no weight_map")
    shards = sorted({str(shard) for shard in weight_map.values()})
    for shard in shards:
        if not re.fullmatch(r"[\w.-]+\.safetensors", shard):  # a path could lead out of the model's folder
            raise UnsuitableModelError(
                f"{name}: {INDEX_FILE} names {shard!r}, which is not a safetensors file name"
            )
    return shards


def check_folder(folder: Path, name: str) -> list[Path]:
    """Check that `folder` holds a whole Qwen2 model in safetensors, and return its weight files."""
    check_config(read_json(folder / "config.json", name), name)
    if not (folder / "tokenizer.json").is_file():
        raise UnsuitableModelError(f"{name} has no tokenizer.json")
    try:
        Tokenizer.from_file(str(folder / "tokenizer.json"))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises no narrower class, and a panic is no Exception
        raise UnsuitableModelError(f"{name}: tokenizer.json is not a tokenizer: {error}") from error
    weights = weight_files(folder, name)
    for path in weights:
        try:
            with safe_open(path, framework="numpy"):  # reads the header, and holds the file's size against it
                pass
        except SafetensorError as error:
            raise UnsuitableModelError(
                f"{name}: {path.name} is not a whole safetensors file: {error}"
            ) from error
    return weights


def weight_files(folder: Path, name: str) -> list[Path]:
    """The files that hold the weights: the single one, else those that the index names."""
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if not (folder / INDEX_FILE).is_file():
        raise UnsuitableModelError(
            f"{name} has no {SINGLE_FILE}; pickle formats (.bin, .pt) are never loaded"
        )
    weights = [folder / shard for shard in shards_of(read_json(folder / INDEX_FILE, name), name)]
    for path in weights:
        if not path.is_file():
            raise UnsuitableModelError(f"{name} has no {path.name}, which {INDEX_FILE} names")
    return weights
