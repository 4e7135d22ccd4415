"""Which format a request gets: the one it names, or the one its Accept header likes best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service.errors import FieldError, InvalidRequestError, NotAcceptableError
from service.formats import drawing, json, records

Payload = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Options:
    """How to draw or write; query parameters of the request."""

    width: int = 800
    colormap: str = "viridis"
    color: str = "label"
    spreadsheet: bool = False
    scale: str = "log"
    theme: str = "auto"
    view: str = "both"


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter that sets an option: to what one of the `choices` stands for, or to a number in `bounds`."""

    name: str
    description: str
    choices: Mapping[str, object] = field(default_factory=dict)
    bounds: range = range(0)

    @property
    def schema(self) -> dict[str, Any]:
        """Its values, as JSON Schema."""
        if self.choices:
            return {"type": "string", "enum": list(self.choices)}
        return {"type": "integer", "minimum": self.bounds.start, "maximum": self.bounds.stop - 1}

    def read(self, given: str) -> object:
        """The option's value. Raises InvalidRequestError."""
        if self.choices:
            if given not in self.choices:
                detail = f"Must be one of {', '.join(self.choices)}."
                raise InvalidRequestError.at(f"/{self.name}", "unknown_option", detail)
            return self.choices[given]
        low, high = self.bounds.start, self.bounds.stop - 1
        if not (given.isascii() and given.isdecimal() and len(given) < 9):
            detail = f"Must be a whole number, {low} to {high}."
            raise InvalidRequestError.at(f"/{self.name}", "wrong_type", detail)
        if int(given) not in self.bounds:
            raise InvalidRequestError.at(f"/{self.name}", "out_of_range", f"Must be {low} to {high}.")
        return int(given)


WIDTH = Parameter("width", "Of a picture, in pixels.", bounds=drawing.WIDTHS)
COLORMAP = Parameter("colormap", "Of a picture.", choices={name: name for name in drawing.COLORMAPS})
SPREADSHEET = Parameter(
    "spreadsheet", "1 defuses CSV cells that a spreadsheet would run.", choices={"0": False, "1": True}
)


Check = Callable[[Any, Options], None]  # of the request; raises InvalidRequestError


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write the answer. `check` refuses, before the model runs, what cannot be written so.

    `compact` ones may hold more numbers: `max_response_elements_compact`. `exact` ones take numbers as they are, not
    rounded to the request's decimals. `sparse` ones hold no more of the largest weights than those. `dense` ones show
    a curve, and take what lies between the values asked for.
    """

    name: str
    media_type: str
    write: Callable[[Payload, Options], bytes]
    check: Check = lambda question, options: None
    charset: bool = False
    compact: bool = False
    exact: bool = False
    sparse: bool = False
    dense: bool = False
    file_name: str | None = None
    content_security_policy: str | None = None

    @property
    def content_type(self) -> str:
        """The Content-Type header."""
        return f"{self.media_type}; charset=utf-8" if self.charset else self.media_type


def picture_formats(
    draw: Callable[[Payload, drawing.Kind, Options], bytes],
    check: Check = lambda question, options: None,
    *,
    dense: bool = False,
) -> tuple[Format, Format]:
    """SVG and PNG of what `draw` draws; what cannot be drawn is a fault of the request, for `check` if it can tell."""

    def write(payload: Payload, kind: drawing.Kind, options: Options) -> bytes:
        try:
            return draw(payload, kind, options)
        except drawing.PictureError as error:
            field = f"/{error.field}" if error.field else ""
            raise InvalidRequestError.at(field, error.code, str(error)) from None

    return (
        Format(
            "svg",
            drawing.SVG_MEDIA_TYPE,
            lambda payload, options: write(payload, "svg", options),
            check,
            compact=True,
            exact=True,
            dense=dense,
            content_security_policy="default-src 'none'; img-src data:; style-src 'unsafe-inline'",
        ),
        Format(
            "png",
            drawing.PNG_MEDIA_TYPE,
            lambda payload, options: write(payload, "png", options),
            check,
            compact=True,
            exact=True,
            dense=dense,
        ),
    )


def table_formats(
    rows: Callable[[Payload], list[dict[str, object]]], file_name: str
) -> tuple[Format, Format, Format]:
    """The answer as it is, and its flat records as JSON and as CSV."""
    return (
        Format("json", json.MEDIA_TYPE, lambda payload, _: json.dumps(payload)),
        Format("rows", json.MEDIA_TYPE, lambda payload, _: json.dumps(rows(payload))),
        Format(
            "csv",
            records.CSV_MEDIA_TYPE,
            lambda payload, options: records.csv(rows(payload), spreadsheet=options.spreadsheet),
            charset=True,
            file_name=file_name,
        ),
    )


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


def options_of(query: Mapping[str, str], parameters: Sequence[Parameter]) -> Options:
    """Options from query parameters. Raises InvalidRequestError, with a fault for each that cannot be used."""
    found: dict[str, Any] = {}
    faults: list[FieldError] = []
    for parameter in parameters:
        if parameter.name in query:
            try:
                found[parameter.name] = parameter.read(query[parameter.name])
            except InvalidRequestError as error:
                faults += error.errors
    if faults:
        raise InvalidRequestError.of(faults)
    return Options(**found)
