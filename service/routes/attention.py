"""/v1/attention in every format, by POST and by GET; POST /v1/tokenize."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response
from werkzeug.exceptions import NotFound

from service.body import ALIASES, Kind, presentation, read_json, read_query
from service.errors import InvalidRequestError, MalformedBodyError, NotAcceptableError, TooLargeError
from service.formats import pictures
from service.formats.attention import FORMATS
from service.formats.negotiation import options_of
from service.jobs import attention
from service.routes.common import ADMISSION, ASKING, ask, choose_format, describes
from service.schemas.attention import AttentionAnswer, AttentionRequest, TokenizeAnswer, TokenizeRequest

bp = Blueprint("attention", __name__)

# What of a request a URL can say: one text, and numbers
QUERY: dict[str, Kind] = {
    "text": "text",
    "text_pair": "text",
    "layers": "integers",
    "heads": "integers",
    "unit": "text",
    "aggregate": "text",
    "first_token": "text",
    "weighting": "text",
    "queries": "integers",
    "top_k": "integer",
    "decimals": "integer",
    "special_tokens": "text",
}
NAMES = (*QUERY, *ALIASES)
_TYPES: dict[Kind, str] = {"text": "string", "integer": "integer", "integers": "array"}
_PROPERTIES = AttentionRequest.model_json_schema()["properties"]


def _schema(name: str, kind: Kind) -> dict[str, Any]:
    """The form of a member that a URL can say, with its bounds and its choices."""
    if name == "queries":
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}
    member = _PROPERTIES[name]
    forms = [one for one in member.get("anyOf", [member]) if one.get("type") == _TYPES[kind]]
    return {key: value for key, value in forms[0].items() if key not in ("title", "description")}


def _parameter(
    name: str, schema: dict[str, Any], description: str, *, required: bool = False
) -> dict[str, Any]:
    described = {
        "name": name,
        "in": "query",
        "required": required,
        "description": description,
        "schema": schema,
    }
    return described | ({"style": "form", "explode": False} if schema.get("type") == "array" else {})


PRESENTATION = (
    _parameter(
        "format", {"type": "string", "enum": [one.name for one in FORMATS]}, "Wins over the Accept header."
    ),
    _parameter(
        "width",
        {"type": "integer", "minimum": pictures.WIDTHS.start, "maximum": pictures.WIDTHS.stop - 1},
        "Of a picture, in pixels.",
    ),
    _parameter("colormap", {"type": "string", "enum": list(pictures.COLORMAPS)}, "Of a picture."),
    _parameter(
        "spreadsheet",
        {"type": "string", "enum": ["0", "1"]},
        "1 defuses CSV cells that a spreadsheet would run.",
    ),
)
PARAMETERS = (
    *(
        _parameter(name, _schema(name, kind), "As in the body of the POST.", required=name == "text")
        for name, kind in QUERY.items()
    ),
    _parameter("layer", _schema("layers", "integers")["items"], "Short for one of `layers`."),
    _parameter("head", _schema("heads", "integers")["items"], "Short for one of `heads`."),
)


URL = (MalformedBodyError, InvalidRequestError, TooLargeError)  # what can be wrong with a request in a URL
ENDING = {"name": "name", "in": "path", "required": True, "schema": {"enum": [one.name for one in FORMATS]}}


@bp.post("/v1/attention")
@describes(
    "Where does every head look?",
    tag="attention",
    request=AttentionRequest,
    answer=AttentionAnswer,
    problems=(*ASKING, NotAcceptableError),
    formats=FORMATS,
    parameters=PRESENTATION,
)
def attention_maps() -> Response:
    """Attention maps in the format that `?format=` names or `Accept` prefers."""
    how = presentation()
    written = choose_format(FORMATS, how.get("format"))
    return ask(attention.maps, read_json(AttentionRequest), written, options_of(how))


@bp.get("/v1/attention")
@describes(
    "Where does every head look? (one text, in the URL)",
    tag="attention",
    answer=AttentionAnswer,
    problems=(*ASKING, *URL, NotAcceptableError),
    formats=FORMATS,
    parameters=(*PARAMETERS, *PRESENTATION),
)
def get_attention_maps() -> Response:
    """Attention maps for what can send no body: an `<img>`, an iframe, a spreadsheet."""
    return _get(presentation(others=NAMES))


@bp.get("/v1/attention.<name>")
@describes(
    "The same, the format as the ending of the path",
    tag="attention",
    answer=AttentionAnswer,
    problems=(*ASKING, *URL, NotFound),
    formats=FORMATS,
    parameters=(ENDING, *PARAMETERS, *PRESENTATION),
)
def get_attention_maps_as(name: str) -> Response:
    """`/v1/attention.svg?text=…&layer=5&head=5`, and so on for each format."""
    if name not in {one.name for one in FORMATS}:
        raise NotFound
    how = presentation(others=NAMES)
    if how.setdefault("format", name) != name:
        raise InvalidRequestError.at("/format", "incompatible_options", "The path names another format.")
    return _get(how)


def _get(how: dict[str, str]) -> Response:
    written = choose_format(FORMATS, how.get("format"))
    return ask(attention.maps, read_query(AttentionRequest, QUERY), written, options_of(how))


@bp.post("/v1/tokenize")
@describes(
    "How is this text tokenised?",
    tag="model",
    request=TokenizeRequest,
    answer=TokenizeAnswer,
    problems=ADMISSION,
)
def tokenize() -> Response:
    """Tokens and words."""
    return ask(attention.tokens, read_json(TokenizeRequest))
