"""Which format a request gets: the one it names, or the one its Accept header likes best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from service.errors import FieldError, InvalidRequestError, NotAcceptableError
from service.formats import json, pictures

Payload = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Options:
    """How to draw or write; query parameters of the request."""

    width: int = 800
    colormap: str = "viridis"
    spreadsheet: bool = False


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write the answer.

    `compact` ones may hold more numbers: `max_response_elements_compact`. `exact` ones take numbers as they are, not
    rounded to the request's decimals. `sparse` ones hold no more of the largest weights than those.
    """

    name: str
    media_type: str
    write: Callable[[Payload, Options], bytes]
    charset: bool = False
    compact: bool = False
    exact: bool = False
    sparse: bool = False
    file_name: str | None = None
    content_security_policy: str | None = None

    @property
    def content_type(self) -> str:
        """The Content-Type header."""
        return f"{self.media_type}; charset=utf-8" if self.charset else self.media_type


JSON = Format("json", json.MEDIA_TYPE, lambda payload, _: json.dumps(payload), sparse=True)


def choose(
    formats: Sequence[Format], name: str | None, accepted: Callable[[Sequence[str]], str | None]
) -> Format:
    """The format of that name, or, where none is named, the one that the Accept header likes best.

    `accepted` picks the best of several media types, None where none will do. Raises NotAcceptableError.
    """
    offered = list(dict.fromkeys(one.media_type for one in formats))
    if name is not None:
        found = next((one for one in formats if one.name == name), None)
        if found is None:
            names = ", ".join(one.name for one in formats)
            raise NotAcceptableError(f"There is no such format; on offer are {names}.", formats=offered)
        return found
    best = accepted(offered)
    if best is None:
        raise NotAcceptableError("The Accept header takes none of the formats on offer.", formats=offered)
    return next(one for one in formats if one.media_type == best)


def options_of(query: Mapping[str, str]) -> Options:
    """Options from query parameters. Raises InvalidRequestError for one that cannot be used."""
    faults = []
    width = DEFAULTS.width
    if "width" in query:
        if query["width"].isascii() and query["width"].isdecimal() and len(query["width"]) < 9:
            width = int(query["width"])
        else:
            faults.append(FieldError("/width", "wrong_type", "The width is a whole number of pixels."))
        if not faults and width not in pictures.WIDTHS:
            detail = f"The width is {pictures.WIDTHS.start} to {pictures.WIDTHS.stop - 1} pixels."
            faults.append(FieldError("/width", "out_of_range", detail))
    colormap = query.get("colormap", DEFAULTS.colormap)
    if colormap not in pictures.COLORMAPS:
        detail = f"Must be one of {', '.join(pictures.COLORMAPS)}."
        faults.append(FieldError("/colormap", "unknown_option", detail))
    if query.get("spreadsheet", "0") not in ("0", "1"):
        faults.append(FieldError("/spreadsheet", "unknown_option", "Must be 0 or 1."))
    if faults:
        raise InvalidRequestError.of(faults)
    return Options(width, colormap, query.get("spreadsheet") == "1")
