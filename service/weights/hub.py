"""A model from the Hugging Face hub (or a mirror of it), through huggingface_hub and its cache."""

import errno
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]  # its own client, under a lasting name
from tqdm import tqdm

from service.weights.checks import INDEX_FILE, SINGLE_FILE, check_config, check_folder, read_json, shards_of
from service.weights.errors import (
    MissingError,
    NotFetchedError,
    UnreachableError,
    UnsuitableModelError,
    WeightsError,
)
from service.weights.store import (
    Progress,
    StoredModel,
    read_record,
    record_path,
    require_space,
    variant_of,
    write_record,
)

FIRST_CONTACT_SECONDS = 20.0
OPTIONAL_FILES = ("tokenizer_config.json", "chat_template.jinja")
# Sockets, TLS, HTTP statuses; LocalEntryNotFoundError is huggingface_hub's word for a hub that did not answer.
NETWORK = (
    httpx.HTTPError,
    httpx.InvalidURL,
    LocalEntryNotFoundError,
    ConnectionError,
    TimeoutError,
)
T = TypeVar("T")


@dataclass(frozen=True)
class HubModel:
    """`org/name`, or `org/name@revision` where the revision is a branch, a tag or a commit."""

    reference: str

    @property
    def repo(self) -> str:
        """The reference without the revision: the hub's id."""
        return self.reference.partition("@")[0]

    def locate(self, cache: Path) -> StoredModel:
        """Find the model in the hub's cache, at the commit that fetch recorded."""
        commit = self._known_commit(cache)
        path = commit and try_to_load_from_cache(self.repo, "config.json", revision=commit)
        if not commit or not isinstance(path, str):
            raise NotFetchedError(
                f"{self.reference} is not in the hub's cache; run: attention-service fetch-weights"
            )
        try:
            check_folder(Path(path).parent, self.repo)
        except UnsuitableModelError as error:
            raise NotFetchedError(f"{self.reference} in the hub's cache cannot be used: {error}") from error
        return StoredModel(
            id=self.repo,
            folder=Path(path).parent,
            revision=commit,
            sha256=None,
            variant=variant_of(self.repo),
            quantization=None,
        )

    def fetch(self, cache: Path, progress: Progress) -> StoredModel:
        """Ask the hub which commit the revision is now and download it; without the hub, take the cached."""
        if self._commit is not None:
            with suppress(NotFetchedError):
                return self.locate(cache)
        try:
            commit = _within(FIRST_CONTACT_SECONDS, self._current_commit)
        except UnreachableError as unreachable:
            try:
                found = self.locate(cache)
            except NotFetchedError:
                raise unreachable from None
            progress.say(
                f"{unreachable}; {self.reference} is taken from the cache, at commit {found.revision}"
            )
            return found
        with self._hub_errors():
            folder = self._download(commit, progress)
        check_folder(folder, self.repo)
        write_record(record_path(cache, self.reference), {"id": self.reference, "revision": commit})
        return self.locate(cache)

    def _known_commit(self, cache: Path) -> str | None:
        """The commit that fetch recorded; else the one that another program left in the hub's cache."""
        if self._commit is not None:
            return self._commit
        record = read_record(record_path(cache, self.reference), "revision")
        if record is not None:
            return str(record["revision"])
        path = try_to_load_from_cache(self.repo, "config.json", revision=self._revision)
        return Path(path).parent.name if isinstance(path, str) else None

    @property
    def _revision(self) -> str:
        return self.reference.partition("@")[2] or "main"

    @property
    def _commit(self) -> str | None:
        return self._revision if re.fullmatch(r"[0-9a-f]{40}", self._revision) else None

    def _current_commit(self) -> str:
        with self._hub_errors():
            metadata = get_hf_file_metadata(
                hf_hub_url(self.repo, "config.json", revision=self._revision),
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
        if metadata.commit_hash is None:
            raise UnreachableError(f"{constants.ENDPOINT} does not answer as a hub: it names no commit")
        return metadata.commit_hash

    def _download(self, commit: str, progress: Progress) -> Path:
        """Bring what is missing into the hub's cache, and return the folder of the commit there."""

        def get(file: str) -> Path:
            bar: Any = partial(tqdm, **progress.options)
            return Path(hf_hub_download(self.repo, file, revision=commit, tqdm_class=bar))

        def size_bytes(file: str) -> int:
            url = hf_hub_url(self.repo, file, revision=commit)
            return get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT).size or 0

        progress.say(f"downloading {self.repo} at commit {commit}")
        config = get("config.json")
        check_config(read_json(config, self.repo), self.repo)  # before any weights
        missing_bytes = {}
        for file in ["tokenizer.json", *self._weight_files(get, size_bytes)]:
            if not isinstance(try_to_load_from_cache(self.repo, file, revision=commit), str):
                missing_bytes[file] = size_bytes(file)
        require_space(Path(constants.HF_HUB_CACHE), sum(missing_bytes.values()))
        for file in OPTIONAL_FILES:
            try:
                get(file)
            except RemoteEntryNotFoundError:
                continue
        for file in missing_bytes:
            get(file)
        return config.parent

    def _weight_files(self, get: Callable[[str], Path], size_bytes: Callable[[str], int]) -> list[str]:
        try:
            size_bytes(SINGLE_FILE)
        except RemoteEntryNotFoundError:
            try:
                index = get(INDEX_FILE)
            except RemoteEntryNotFoundError:
                raise UnsuitableModelError(
                    f"{self.repo} has no {SINGLE_FILE}; pickle formats (.bin, .pt) are never fetched"
                ) from None
            return [INDEX_FILE, *shards_of(read_json(index, self.repo), self.repo)]
        return [SINGLE_FILE]

    @contextmanager
    def _hub_errors(self) -> Iterator[None]:
        """Turn what huggingface_hub and the libraries below it raise into this package's errors."""
        hub = constants.ENDPOINT
        try:
            yield
        except WeightsError:
            raise
        except HFValidationError as error:
            raise MissingError(f"{self.repo} is not a valid hub id") from error
        except GatedRepoError as error:
            raise MissingError(f"{self.repo} needs its terms accepted on {hub}, and HF_TOKEN set") from error
        except RepositoryNotFoundError as error:
            raise MissingError(f"{hub} has no model {self.repo} (a private one needs HF_TOKEN)") from error
        except RevisionNotFoundError as error:
            raise MissingError(f"{self.repo} has no revision {self._revision} on {hub}") from error
        except RemoteEntryNotFoundError as error:
            raise MissingError(
                f"{self.repo} lacks a file that a Qwen2 model needs: {_first_line(error)}"
            ) from error
        except NETWORK as error:
            raise UnreachableError(f"{hub} gave no usable answer ({_first_line(error)})") from error
        except (OSError, RuntimeError) as error:
            if "No space left" in str(error):  # hf_xet, the hub's downloader, says everything as RuntimeError
                raise OSError(errno.ENOSPC, str(error)) from error
            if isinstance(error, OSError) and error.errno is not None:  # this machine's: disk, permissions
                raise
            raise UnreachableError(f"{hub} gave no usable answer ({_first_line(error)})") from error


def _within(seconds: float, ask: Callable[[], T]) -> T:
    """Run `ask`, but wait no longer than this: name servers and dripping answers know no time-out."""
    answer: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(ask())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not answer:
        raise UnreachableError(f"{constants.ENDPOINT} gave no answer in {seconds:.0f} s")
    return answer[0]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
