"""What can go wrong with a request. No HTTP in here: `problems.py` maps each class to a status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_ERRORS = 20  # told at once


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault in a request: where (JSON Pointer into the body), which (stable code), and a sentence."""

    pointer: str
    code: str
    detail: str


def pointer_of(place: Sequence[int | str]) -> str:
    """The JSON Pointer (RFC 6901) of a place; an unknown member's name is cut at 64 characters."""
    parts = (str(part)[:64].replace("~", "~0").replace("/", "~1") for part in place)
    return "".join(f"/{part}" for part in parts)


class RequestError(Exception):
    """Base of everything a request can be refused with; `detail` is one sentence that never echoes the input."""

    def __init__(
        self,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        limit: int | None = None,
        actual: int | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        if (limit is None) != (actual is None):
            raise TypeError("a limit is told with what is over it")
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)
        self.limit = limit
        self.actual = actual
        self.retry_after_seconds = retry_after_seconds


class MalformedBodyError(RequestError):
    """The body is not JSON."""


class BodyTimeoutError(RequestError):
    """The body did not arrive in time."""


class UnauthorizedError(RequestError):
    """Neither a key nor a signed link that lets the request in."""


class LinksOffError(RequestError):
    """No key to sign links with is set."""


class TooLargeError(RequestError):
    """Body, number of texts, or size of the answer over a limit."""


class NotAcceptableError(RequestError):
    """None of the formats on offer will do; `formats` are their media types."""

    def __init__(self, detail: str, *, formats: Sequence[str]) -> None:
        super().__init__(detail)
        self.formats = list(formats)


class UnsupportedMediaTypeError(RequestError):
    """The body is not declared as one of the media types that are `accepted`."""

    def __init__(self, detail: str, *, accepted: Sequence[str] = ("application/json",)) -> None:
        super().__init__(detail)
        self.accepted = list(accepted)


class InvalidRequestError(RequestError):
    """The body is JSON, but what it says is not valid."""

    @classmethod
    def of(cls, errors: Sequence[FieldError], *, more: int = 0) -> InvalidRequestError:
        """Several faults; the sentence is the first one's, with its place, and says how many `more` there are."""
        first = errors[0]
        where = f"{first.pointer}: " if first.pointer else ""
        rest = f" ({more} more)" if more else ""
        return cls(f"{where}{first.detail}{rest}", errors=errors)

    @classmethod
    def at(
        cls,
        pointer: str,
        code: str,
        detail: str,
        *,
        limit: int | None = None,
        actual: int | None = None,
    ) -> InvalidRequestError:
        """One fault at one place."""
        return cls(detail, errors=[FieldError(pointer, code, detail)], limit=limit, actual=actual)


class OverloadedError(RequestError):
    """As many requests as the service takes are waiting."""


class NotReadyError(RequestError):
    """The model is loading, draining, hung, or failed to load."""


class DeadlineExceededError(RequestError):
    """The answer was not there in time."""


class ClientGoneError(RequestError):
    """The client closed the connection before its answer was there; nobody reads what this becomes."""


class MalformedRequestError(RequestError):
    """What arrived is not an HTTP request."""


class HeaderTimeoutError(RequestError):
    """The request's headers did not arrive in time."""


class UrlTooLongError(RequestError):
    """The request line is over its limit."""


class ExpectationError(RequestError):
    """An Expect header other than 100-continue."""


class HeadersTooLargeError(RequestError):
    """The headers are over their limits."""


class TransferCodingError(RequestError):
    """A Transfer-Encoding other than chunked."""


class HttpVersionError(RequestError):
    """Another version than HTTP/1.0 or HTTP/1.1."""
