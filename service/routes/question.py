"""A question in every way it can be put: POST with JSON, GET, and GET with a format as the ending."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

from flask import Blueprint, Response, request
from pydantic import BaseModel
from werkzeug.exceptions import NotFound

from service.body import (
    ALIASES,
    JSON,
    NDJSON,
    REQUIRED,
    Bare,
    Places,
    check_media_type,
    place_of,
    presentation,
    read_either,
    read_json,
    read_lines,
    read_query,
)
from service.errors import InvalidRequestError, NotAcceptableError
from service.formats.negotiation import Format, Parameter, choose, options_of
from service.parameters import Kind
from service.routes.common import QUERY, Answering, accepted, ask, describes

R = TypeVar("R", bound=BaseModel)

_TYPES: dict[Kind, str] = {
    "text": "string",
    "flag": "boolean",
    "number": "number",
    "integer": "integer",
    "integers": "array",
    "texts": "array",
}
# What a URL writes otherwise than the body does
_IN_URL: dict[Kind, dict[str, Any]] = {
    "span": {"type": "string", "description": "Its text, or `start..end`."},
    "spans": {"type": "array", "items": {"type": "string"}, "description": "Their texts, or `start..end`."},
    "heads": {
        "type": "string",
        "pattern": "^(all|L[0-9]{1,9}H[0-9]{1,9}(,L[0-9]{1,9}H[0-9]{1,9})*)$",
        "description": "`L5H5,L8H7`, or `all`.",
    },
}


@dataclass(frozen=True)
class Question(Generic[R]):
    """A question, where its answers come from and their formats, and what of it a URL can say.

    `query` are the URL's parameters: one text, names and numbers; `places` says which of them are not members of that
    name. With `lines` a POST takes JSON Lines too, with `bare` one member of the request all by itself, and then its
    URL what `query` says.

    `register` gives it its routes. `name` is the POST's in the contract; `summary` and `description` say what it asks.
    """

    name: str
    summary: str
    description: str
    tag: str
    request: type[R]
    answer: type[BaseModel]
    answering: Answering[R]
    formats: Sequence[Format]
    query: Mapping[str, Kind]
    parameters: Sequence[Parameter]
    places: Places = field(default_factory=dict)
    lines: tuple[type[R], type[BaseModel]] | None = None  # of a POST as JSON Lines: the whole, and one line
    bare: Bare[R] | None = None

    def register(self, blueprint: Blueprint, path: str) -> None:
        """The three routes: POST; GET; and GET with a format's name as the path's ending."""
        self.register_post(blueprint, path)
        self.register_get(blueprint, path)
        ending = {
            "name": "name",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "enum": self._names},
            "example": self._names[0],
        }
        as_ending = describes(
            "The same, the format as the ending of the path",
            tag=self.tag,
            answer=self.answer,
            problems=(*self.answering.problems, *QUERY, NotFound),
            formats=self.formats,
            parameters=(ending, *self._asked, *self._written[1:]),  # all but `format`
        )
        self._add(blueprint, f"{path}.<name>", "get", f"get_{self.name}_as", as_ending, self.get)

    def register_get(self, blueprint: Blueprint, path: str) -> None:
        """The GET alone."""
        in_url = "one text, in the URL" if "text" in self.query else "in the URL"
        contract = describes(
            f"{self.summary} ({in_url})",
            tag=self.tag,
            answer=self.answer,
            problems=(*self.answering.problems, *QUERY, NotAcceptableError),
            formats=self.formats,
            parameters=(*self._asked, *self._written),
        )
        self._add(blueprint, path, "get", f"get_{self.name}", contract, self.get)

    def register_post(self, blueprint: Blueprint, path: str) -> None:
        """The POST alone, of what no URL can say."""
        contract = describes(
            self.summary,
            tag=self.tag,
            request=self.request,
            lines=self.lines[1] if self.lines else None,
            bare=self.bare.body if self.bare else None,
            answer=self.answer,
            problems=(*self.answering.problems, NotAcceptableError),
            formats=self.formats,
            parameters=[*(self._asked_beside if self.lines or self.bare else ()), *self._written],
        )
        self._add(blueprint, path, "post", self.name, contract, self.post)

    def _add(
        self,
        blueprint: Blueprint,
        path: str,
        method: str,
        name: str,
        describe: Callable[[Callable[..., Response]], Callable[..., Response]],
        answer: Callable[..., Response],
    ) -> None:
        def view(**parts: str) -> Response:
            return answer(**parts)

        view.__name__, view.__doc__ = name, self.description
        blueprint.add_url_rule(path, view_func=describe(view), methods=[method.upper()])

    def post(self) -> Response:
        """The answer in the format that `?format=` names or `Accept` prefers."""
        check_media_type((JSON, NDJSON) if self.lines else (JSON,))  # before what of the query goes with it
        lines = self.lines if request.mimetype == NDJSON else None
        how = presentation(self._presentation, others=self.query if self.lines or self.bare else ())
        written = self._choose(how.get("format"))
        options = options_of(how, self.parameters)
        if lines:
            question = read_lines(*lines, self.query)
        elif self.bare:
            question = read_either(self.request, self.bare, self.query, self.places)
        else:
            question = read_json(self.request, beside=self.query if self.lines else {})
        return ask(self.answering, question, written, options)

    def get(self, name: str | None = None) -> Response:
        """The same for a request in the URL; `name` is the format that the path ends in."""
        if name is not None and name not in self._names:
            raise NotFound
        how = presentation(self._presentation, others=(*self.query, *self._aliases))
        if name is not None and how.setdefault("format", name) != name:
            raise InvalidRequestError.at("/format", "incompatible_options", "The path names another format.")
        written = self._choose(how.get("format"))
        options = options_of(how, self.parameters)
        return ask(self.answering, read_query(self.request, self.query, self.places), written, options)

    def _choose(self, name: str | None) -> Format:
        """By name, else by the Accept header."""
        types = accepted()
        return choose(
            self.formats,
            name,
            lambda offered: types.best_match(offered) if types else offered[0],
        )

    @property
    def _names(self) -> list[str]:
        return [one.name for one in self.formats]

    @property
    def _presentation(self) -> list[str]:
        return ["format", *(one.name for one in self.parameters)]

    @property
    def _aliases(self) -> list[str]:
        return [alias for alias, name in ALIASES.items() if self.query.get(name) == "integers"]

    @cached_property
    def _asked(self) -> list[dict[str, Any]]:
        """What a URL can say of the request, as OpenAPI parameters; their examples are the first of the request's."""
        example = self.request.model_json_schema()["examples"][0]
        return [
            one | {"example": _in_url(self.query[one["name"]], example[one["name"]])}
            if one["name"] in example
            else one
            for one in self._members("As in the body of the POST.")
        ]

    @cached_property
    def _asked_beside(self) -> list[dict[str, Any]]:
        """What a POST's URL can say beside a body that is not the whole request."""
        what = (
            f"{NDJSON}; a JSON body says it itself." if self.lines else "a body that is one member by itself."
        )
        members = self._members(f"Only beside {what}")
        return [one | {"required": False} for one in members if not (self.bare and one["name"] == "model")]

    def _members(self, beside: str) -> list[dict[str, Any]]:
        schema = self.request.model_json_schema()

        not_skipped = schema.get("else", {}).get("properties", {})  # which no URL asks for

        def form(name: str) -> dict[str, Any]:
            kind = self.query[name]
            if kind in _IN_URL:
                return _IN_URL[kind]
            forms = [*_forms(_member(schema, place_of(name, self.places)))]
            if kind == "numbers":
                return _numbers(forms, schema)
            found = next(one for one in forms if one.get("type") == _TYPES[kind]) | not_skipped.get(name, {})
            return {key: value for key, value in found.items() if key not in ("title", "description")}

        described = [_described(name, form(name), beside, required=name in REQUIRED) for name in self.query]
        for alias in self._aliases:
            name = ALIASES[alias]
            described.append(_described(alias, form(name)["items"], f"Short for one of `{name}`."))
        return described

    @cached_property
    def _written(self) -> list[dict[str, Any]]:
        """How the answer is written, as OpenAPI parameters."""
        formats = {"type": "string", "enum": self._names}
        return [
            _described("format", formats, "Wins over the Accept header."),
            *(_described(one.name, one.schema, one.description) for one in self.parameters),
        ]


def _member(schema: dict[str, Any], place: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a member, or of one of its members."""
    found = schema
    for name in place:
        owner = next(one for one in _forms(found) if "$ref" in one or "properties" in one)
        if "$ref" in owner:
            owner = schema["$defs"][owner["$ref"].rpartition("/")[2]]
        found = owner["properties"][name]
    return found


def _in_url(kind: Kind, value: Any) -> Any:
    """A member's value as a URL writes it."""
    if kind == "span":
        return value["text"]
    return [_in_url("span", one) for one in value] if kind == "spans" else value


def _forms(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A JSON schema and the alternatives in it."""
    yield schema
    for alternative in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        yield from _forms(alternative)


def _numbers(forms: Sequence[dict[str, Any]], schema: dict[str, Any]) -> dict[str, Any]:
    """How a URL writes an object of numbers."""
    owner = next(one for one in forms if "$ref" in one or one.get("type") == "object")
    if "$ref" in owner:
        owner = schema["$defs"][owner["$ref"].rpartition("/")[2]]
    names = "|".join(owner.get("properties") or owner["propertyNames"]["enum"])
    pair = rf"({names}):(0|1|0?\.[0-9]{{1,18}}|[0-9]{{1,18}})"
    null = any(one.get("type") == "null" for one in forms)
    return {
        "type": "string",
        "pattern": f"^({'none|' if null else ''}{pair}(,{pair})*)$",
        "description": f"`name:number,name:number`{', or `none`' if null else ''}.",
    }


def _described(
    name: str, schema: dict[str, Any], description: str, *, required: bool = False
) -> dict[str, Any]:
    parameter = {
        "name": name,
        "in": "query",
        "required": required,
        "description": schema.get("description", description),
        "schema": {key: value for key, value in schema.items() if key != "description"},
    }
    return parameter | ({"style": "form", "explode": False} if schema.get("type") == "array" else {})
