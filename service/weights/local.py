"""Models that are on this machine already: a folder of safetensors, or a GGUF file."""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.weights.checks import check_folder
from service.weights.errors import NotFetchedError
from service.weights.store import (
    Progress,
    StoredModel,
    exclusive,
    find_converted,
    read_record,
    record_path,
    sha256_of,
    variant_of,
    write_record,
)


@dataclass(frozen=True)
class LocalFolder:
    """A folder with config.json, tokenizer.json and safetensors; read where it lies."""

    path: Path

    def locate(self, cache: Path) -> StoredModel:
        """Find the hash that fetch stored when it checked the folder: it counts while no file has changed."""
        record = read_record(record_path(cache, str(self.path)), "sha256", "files")
        if record is None or record["files"] != self._stamps():
            raise NotFetchedError(
                f"{self.path.name} is not checked yet, or has changed; run: attention-service fetch-weights"
            )
        return StoredModel(
            id=self.path.name,
            folder=self.path,
            revision=None,
            sha256=record["sha256"],
            variant=variant_of(self.path.name),
            quantization=None,
        )

    def fetch(self, cache: Path, progress: Progress) -> StoredModel:
        """Check the folder and store the SHA-256 of its weights (of several files: of their hashes)."""
        stamps = self._stamps()  # taken first: a change from here on makes the record worthless
        weights = check_folder(self.path, self.path.name)
        with suppress(NotFetchedError):
            return self.locate(cache)
        with progress.bar(f"hashing {self.path.name}", sum(path.stat().st_size for path in weights)) as bar:
            hashes = [sha256_of(path, bar) for path in sorted(weights)]
        whole = hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()
        write_record(record_path(cache, str(self.path)), {"sha256": whole, "files": stamps})
        return self.locate(cache)

    def _stamps(self) -> list[dict[str, Any]]:
        return _stamps(path for path in self.path.iterdir() if path.suffix in (".json", ".safetensors"))


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file; converted into the cache once for each content."""

    path: Path

    def locate(self, cache: Path) -> StoredModel:
        """Find the conversion of this very file, known by its size and time of change."""
        record = read_record(record_path(cache, str(self.path)), "sha256", "files")
        if record is None or record["files"] != _stamps([self.path]):
            raise NotFetchedError(
                f"{self.path.name} is not converted yet, or has changed; run: attention-service fetch-weights"
            )
        found = find_converted(cache, self.path.name, record["sha256"])
        if found is None:
            raise NotFetchedError(
                f"the conversion of {self.path.name} is not in {cache}; run: attention-service fetch-weights"
            )
        return found

    def fetch(self, cache: Path, progress: Progress) -> StoredModel:
        """Hash the file and convert it, unless that has been done."""
        from service.weights.gguf import convert  # brings torch, which finding a model does not need

        stamps = _stamps([self.path])
        with progress.bar(f"hashing {self.path.name}", self.path.stat().st_size) as bar:
            sha256 = sha256_of(self.path, bar)
        with exclusive(cache, self.path.name, progress):
            if find_converted(cache, self.path.name, sha256) is None:
                convert(self.path, cache, self.path.name, sha256, progress)
            write_record(record_path(cache, str(self.path)), {"sha256": sha256, "files": stamps})
        return self.locate(cache)


def _stamps(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Tell a changed file without reading it."""
    return [
        {"name": path.name, "bytes": path.stat().st_size, "modified_ns": path.stat().st_mtime_ns}
        for path in sorted(paths)
    ]
