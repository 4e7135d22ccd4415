"""What is wrong with a request or an item of one, in this service's codes and words."""

from __future__ import annotations

import json

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from service.errors import FieldError, MalformedBodyError, pointer_of

# pydantic's error types -> our stable codes; anything else ending in _type is `wrong_type`
CODES = {
    "missing": "missing_field",
    "extra_forbidden": "unknown_field",
    "literal_error": "unknown_option",
    "enum": "unknown_option",
    "finite_number": "out_of_range",
    "int_from_float": "wrong_type",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than": "out_of_range",
    "less_than_equal": "out_of_range",
    "too_short": "out_of_range",
    "too_long": "out_of_range",
    "string_too_long": "out_of_range",
    "string_too_short": "empty_text",
}

# in words of this service, where pydantic's are about Python
MESSAGES = {
    "extra_forbidden": "There is no such field",
    "missing": "The field is required",
    "too_short": "The list must not be empty",
    "too_long": "The list holds at most {max_length} entries",
    "string_too_long": "The text has at most {max_length} characters",
    "string_too_short": "The text must not be empty",
    "greater_than": "The number must be more than {gt}",
    "greater_than_equal": "The number must be at least {ge}",
    "less_than": "The number must be less than {lt}",
    "less_than_equal": "The number must be at most {le}",
    "model_type": "An object is expected; in a URL `name:number,name:number`",
    "dict_type": "Names, each once, with numbers are expected: an object, or `name:number,name:number` in a URL",
}


def field_error(fault: ErrorDetails, body: object) -> FieldError:
    """A fault that pydantic found in `body`, where it stands there. It never quotes the input."""
    kind = fault["type"]
    code = CODES.get(kind) or ("wrong_type" if kind.endswith(("_type", "_parsing")) else kind)
    said = MESSAGES.get(kind)
    message = said.format_map(fault.get("ctx", {})) if said else fault["msg"].rstrip(".")
    # The message never quotes the input: it names what is allowed, a bound, or a type.
    place = _place(fault["loc"], body, missing=kind == "missing")
    if "field" in fault.get("ctx", {}):
        place.append(fault["ctx"]["field"])  # of a check over several fields
    pointer = pointer_of(place)
    return FieldError(pointer, code, f"{message[0].upper()}{message[1:]}.")


def _place(location: tuple[int | str, ...], body: object, *, missing: bool) -> list[int | str]:
    """The parts of pydantic's location that are places in the body: it also names which form of a union it tried."""
    place: list[int | str] = []
    for part in location:
        try:
            body = body[part]  # type: ignore[index]
        except (LookupError, TypeError):
            if not (missing and part == location[-1]):
                continue
        place.append(part)
    return place


def line_fault(error: ValidationError, line: bytes) -> tuple[str, str]:
    """The code and sentence of a line that holds no item; the place in it stands before the sentence."""
    fault = error.errors(include_url=False, include_input=False, include_context=True)[0]
    if fault["type"] == "json_invalid":
        reason = str(fault["ctx"]["error"]).replace(" at line 1 ", " at ")
        return "malformed_line", f"The line is not valid JSON: {reason}."
    field = field_error(fault, from_json(line))
    return field.code, f"{field.pointer}: {field.detail}" if field.pointer else field.detail


def refuse_duplicate_members(raw: bytes) -> None:
    """JSON lets the last of two equal names win silently; a request that says two things is refused instead."""

    def members(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise MalformedBodyError("A member is named twice in one object.")

    json.loads(raw, object_pairs_hook=members, parse_int=str)
