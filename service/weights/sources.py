"""Which source a name means, and what is done with it: `fetch` brings a model, `locate` finds it again."""

import os
import re
import sys
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from service.weights.errors import (
    DiskFullError,
    MissingError,
    NotFetchedError,
    UnknownModelError,
    UnreachableError,
    WeightsError,
)
from service.weights.hub import HubModel
from service.weights.local import GgufFile, LocalFolder
from service.weights.store import (
    DISK_FULL,
    ModelFiles,
    Progress,
    StoredModel,
    exclusive,
    read_record,
    record_path,
    write_record,
)
from service.weights.wheels import QWEN_CODER, WHEEL_MODELS

AUTO = "auto"
FIRST_CHOICE = "Qwen/Qwen2.5-0.5B"


class Source(Protocol):
    """One way in which a model can be had."""

    def locate(self, cache: Path) -> StoredModel:
        """Find what fetch made ready, without the network."""

    def fetch(self, cache: Path, progress: Progress) -> StoredModel:
        """Make it ready."""


def source_of(requested: str) -> Source:
    """Tell which kind of name this is: `pypi:…`, an existing path, or a hub id, in this order."""
    if requested.startswith("pypi:"):
        if requested not in WHEEL_MODELS:
            raise UnknownModelError(f"{requested} is unknown; known are {', '.join(WHEEL_MODELS)}")
        return WHEEL_MODELS[requested]
    path = Path(os.path.expanduser(requested))  # noqa: PTH111 - Path's own raises where there is no such user
    if requested and path.exists():
        path = path.resolve()
        if path.is_dir():
            return LocalFolder(path)
        if path.suffix.lower() == ".gguf":
            return GgufFile(path)
        raise UnknownModelError(f"{requested} is neither a folder nor a .gguf file")
    if (
        re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w./-]+)?", requested, re.ASCII)
        and path.suffix.lower() != ".gguf"
    ):
        return HubModel(requested)
    raise UnknownModelError(f"{requested!r} is no hub id (org/name), no existing path and no pypi: model")


def fetch(requested: str, cache: Path, *, progress: bool = True) -> ModelFiles:
    """Make a model ready in `cache` (a hub model: in the hub's own cache), using the network where needed.

    Whatever stops it half-way, nothing half-made is taken for whole, and calling it again finishes the work.

    Raises WeightsError, whose kinds are in `service.weights.errors`.
    """
    reporter = Progress(progress)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if requested == AUTO:
            return _fetch_auto(cache, reporter)
        found = source_of(requested).fetch(cache, reporter)
        return ModelFiles(**vars(found), requested=requested, fallback=None)
    except (OSError, SafetensorError) as error:
        # safetensors puts the system's error number into its text only
        if (isinstance(error, OSError) and error.errno in DISK_FULL) or "No space left" in str(error):
            raise DiskFullError(f"the disk is full: {error}; what was half-written is deleted") from error
        raise WeightsError(f"{requested} cannot be read or stored: {error}") from error


def locate(requested: str, cache: Path) -> ModelFiles:
    """Find a model that `fetch` made ready. Never touches the network.

    Raises NotFetchedError when it is not there whole, and the other kinds of WeightsError as `fetch` does.
    """
    choice: dict[str, Any] | None = {"model": requested, "fallback": None}
    try:
        if requested == AUTO:
            choice = read_record(record_path(cache, AUTO), "model", "fallback")
        if choice is None:
            raise NotFetchedError("no model has been chosen yet; run: attention-service fetch-weights")
        found = source_of(choice["model"]).locate(cache)
        return ModelFiles(**vars(found), requested=requested, fallback=choice["fallback"])
    except OSError as error:
        raise WeightsError(f"{requested} cannot be read: {error}") from error


def fetch_weights_command(requested: str, cache: Path) -> int:
    """Fetch a model, print what was done, and return the exit code; an error is one line on stderr."""
    try:
        found = fetch(requested, cache)
    except WeightsError as error:
        print(f"fetch-weights: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("fetch-weights: interrupted; run it again to go on", file=sys.stderr)
        return 130
    known_by = f"commit {found.revision}" if found.revision else f"sha256 {found.sha256}"
    facts = f"{found.variant}, {found.quantization or 'not quantised'}, {known_by}"
    print(f"{found.id} ({facts}) is ready in {found.folder}")
    if found.fallback:
        print(f"{FIRST_CHOICE} was not taken: {found.fallback}")
    return 0


def _fetch_auto(cache: Path, progress: Progress) -> ModelFiles:
    """Choose once and keep the choice, at its commit: later starts and replicas have the same model."""
    with exclusive(cache, AUTO, progress):
        choice = read_record(record_path(cache, AUTO), "model", "fallback")
        if choice is not None:
            found = source_of(choice["model"]).fetch(cache, progress)
            return ModelFiles(**vars(found), requested=AUTO, fallback=choice["fallback"])
        fallback = None
        try:
            found = source_of(FIRST_CHOICE).fetch(cache, progress)
        except (UnreachableError, MissingError) as error:
            fallback = str(error)
            progress.say(f"{fallback}; taking {QWEN_CODER.id} instead")
            found = QWEN_CODER.fetch(cache, progress)
        pinned = f"{found.id}@{found.revision}" if found.revision else found.id
        write_record(record_path(cache, AUTO), {"model": pinned, "fallback": fallback})
        return ModelFiles(**vars(found), requested=AUTO, fallback=fallback)
