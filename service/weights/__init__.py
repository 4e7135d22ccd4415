"""Where a model comes from: found, fetched, checked, converted once, and known by its hash or commit.

`fetch` may use the network; `locate`, which serving uses, never does. Pickle formats are never loaded, and no
code that comes with a model is run. Exit codes are in `errors`.
"""

from service.weights.errors import (
    ChecksumError,
    DiskFullError,
    MissingError,
    NotFetchedError,
    UnknownModelError,
    UnreachableError,
    UnsuitableModelError,
    WeightsError,
)
from service.weights.sources import fetch, fetch_weights_command, locate
from service.weights.store import ModelFiles

__all__ = [
    "ChecksumError",
    "DiskFullError",
    "MissingError",
    "ModelFiles",
    "NotFetchedError",
    "UnknownModelError",
    "UnreachableError",
    "UnsuitableModelError",
    "WeightsError",
    "fetch",
    "fetch_weights_command",
    "locate",
]
