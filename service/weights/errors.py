"""What can go wrong with weights. Each kind has its own exit code, so that a script can tell them apart.

Besides those below: 0 done; 2 wrong usage or a wrong setting, of any command; 130 interrupted.
"""


class WeightsError(Exception):
    """A model cannot be had; the message is for the user. Raised itself where the cache cannot be used."""

    exit_code = 1


class UnknownModelError(WeightsError):
    """The name asked for is no hub id, no path, and no model that this service knows."""

    exit_code = 9


class NotFetchedError(WeightsError):
    """The model is not in the cache (or no longer whole), and serving never touches the network."""

    exit_code = 3


class UnreachableError(WeightsError):
    """The hub or the package index cannot be reached, hangs, or does not answer as one."""

    exit_code = 4


class MissingError(WeightsError):
    """The hub was reached and has no such model, revision or file; or a wheel cannot be downloaded."""

    exit_code = 5


class ChecksumError(WeightsError):
    """What came is not what was published: its size or SHA-256 differs. It has been deleted."""

    exit_code = 6


class UnsuitableModelError(WeightsError):
    """The model is not Qwen2-shaped, or its files are not ones that this service reads."""

    exit_code = 7


class DiskFullError(WeightsError):
    """There is not enough space for the model; nothing half-written is left behind."""

    exit_code = 8
