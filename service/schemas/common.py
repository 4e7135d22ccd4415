"""What several resources share: strictness, texts, indices, tokens, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError


class Request(BaseModel):
    """A request: nothing is coerced, unknown members and NaN are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class AsksAboutTexts(Request):
    """A request about one or several texts or items, no more than the setting `limit` says."""

    limit: ClassVar[str] = "max_texts"

    @property
    def inputs(self) -> Sequence[object]:
        """Each of them."""
        raise NotImplementedError

    @property
    def written(self) -> Sequence[str]:
        """Every text in it, of which the log tells how long it is."""
        raise NotImplementedError


class Answer(BaseModel):
    """An answer: described here, checked against this in the tests, built by the jobs as plain dicts."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


SENTENCE = "The cat sat on the mat because it was tired."  # of the examples

# That a text is not blank is checked together with its tokens, so that `on_error: skip` can pass over one that is.
Text = Annotated[str, Field(description="Not blank.")]
# A character that Python does not call a space: what `\s` is differs from one reader of JSON Schema to the next
NOT_BLANK = {
    "pattern": r"[^\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
}


def unless_skipped(**members: dict[str, Any]) -> dict[str, Any]:
    """What holds of the members unless the request says `on_error: skip`, as JSON Schema."""
    skip = {"properties": {"on_error": {"const": "skip"}}, "required": ["on_error"]}
    return {"if": skip, "else": {"properties": members}}


LONGEST_LIST = (
    10_000  # of anything in a request, whatever its own limit: a longer one is not even looked through
)
LARGEST_SEED = 2**53 - 1  # what every reader of JSON keeps exactly
LARGEST_INDEX = 9_999  # of a layer or head in any request; the model's own bound is checked once it is known


def _whole(value: object) -> object:
    return int(value) if type(value) is float and value.is_integer() else value


WHOLE = BeforeValidator(_whole)  # to JSON Schema, and to some languages' writers of JSON, 1.0 is an integer


def _index(code: str) -> AfterValidator:
    def check(value: int) -> int:
        if not 0 <= value <= LARGEST_INDEX:
            raise PydanticCustomError(code, "The index must be between 0 and the model's last")
        return value

    return AfterValidator(check)


_bounds = Field(json_schema_extra={"minimum": 0, "maximum": LARGEST_INDEX})
Layer = Annotated[int, WHOLE, _index("layer_out_of_range"), _bounds]
Head = Annotated[int, WHOLE, _index("head_out_of_range"), _bounds]
Layers = Annotated[list[Layer], Field(min_length=1, max_length=LONGEST_LIST)]
Heads = Annotated[list[Head], Field(min_length=1, max_length=LONGEST_LIST)]


def list_or(tag: str) -> Discriminator:
    """Tell a list from anything else, so that a wrong value gets the errors of the form it was meant as."""
    return Discriminator(lambda value: "list" if isinstance(value, list) else tag)


def list_or_word(word: str, expected: str) -> Discriminator:
    """Tell a list from a word, and say what is `expected` where it is neither."""
    return Discriminator(
        lambda value: "list" if isinstance(value, list) else word if value == word else None,
        custom_error_type="unknown_option",
        custom_error_message=expected,
    )


def exactly_one(model: BaseModel, *names: str) -> None:
    """Raise `missing_field` or `incompatible_options` unless exactly one of the members is given."""
    found = [name for name in names if getattr(model, name) is not None]
    if not found:
        raise PydanticCustomError("missing_field", "One of {names} is required", {"names": ", ".join(names)})
    if len(found) > 1:
        raise PydanticCustomError(
            "incompatible_options", "Send only one of {names}", {"names": ", ".join(names), "field": found[1]}
        )


def given(**types: str) -> dict[str, Any]:
    """That these members are there, each with its JSON type, as JSON Schema; those of type null may be absent."""
    return {
        "required": [name for name, type_ in types.items() if type_ != "null"],
        "properties": {name: {"type": type_} for name, type_ in types.items()},
    }


def one_of_required(**types: str) -> dict[str, Any]:
    """`exactly_one`, as JSON Schema."""
    return {"oneOf": [given(**{name: type_}) for name, type_ in types.items()]}


Offset = Annotated[int, Field(ge=0, le=100_000_000), WHOLE]


class SpanRequest(Request):
    """Where in the text: `{start, end}`, `{text}` where it occurs once as a whole word, or `{text, occurrence}`."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                given(start="integer", end="integer", occurrence="null"),
                given(text="string", start="null", end="null"),
            ],
            "examples": [{"text": "cat"}, {"text": "cat", "occurrence": 0}, {"start": 4, "end": 7}],
        }
    )

    start: Offset | None = Field(None, description="First code point.")
    end: Offset | None = Field(None, description="Code point after the last.")
    text: str | None = Field(
        None, description="Must occur exactly once, unless `occurrence` or offsets say where."
    )
    occurrence: Offset | None = Field(None, description="Which occurrence of `text`, from 0.")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.start is None) != (self.end is None):
            raise PydanticCustomError("missing_field", "A span with start needs end, and the other way round")
        if self.start is None and self.text is None:
            raise PydanticCustomError("missing_field", "A span needs start and end, or text")
        if self.start is not None and self.occurrence is not None:
            raise PydanticCustomError(
                "incompatible_options", "Occurrence goes with text, not with start and end"
            )
        return self


class Versions(Answer):
    """What computed the answer."""

    service: str
    torch: str
    transformers: str


class ModelInfo(Answer):
    """Provenance: which weights gave this answer."""

    requested: str = Field(description="`ATTENTION_MODEL` as set.")
    id: str
    revision: str | None = Field(description="Commit on the hub.")
    sha256: str | None = Field(description="Of the source file, where the weights come from a file.")
    variant: str
    quantization: str | None
    fallback: str | None = Field(description="Why `auto` did not take its first choice.")
    dtype: str
    device: str
    versions: Versions


class TokenInfo(Answer):
    """A token and the characters it stands for; offsets are code points of the request's text."""

    index: int
    id: int
    text: str = Field(
        description="The text from `start` to `end`; a piece of a character shows the whole character."
    )
    raw: str = Field(description="The vocabulary's piece.")
    start: int | None = Field(description="Null where the tokens were given as ids.")
    end: int | None
    word: int = Field(description="Index into `words`.")
    special: bool | None = Field(None, description="True on special tokens, else absent.")
    segment: int | None = Field(None, description="0 or 1 in a sentence pair, else absent.")


class WordInfo(Answer):
    """A word and its tokens."""

    index: int
    text: str
    start: int | None = Field(description="Null where the tokens were given as ids.")
    end: int | None
    tokens: list[int]
    segment: int | None = Field(None, description="0 or 1 in a sentence pair, else absent.")


class Warning(Answer):
    """Something a reader of the numbers should know; stable `code`, plain `message`."""

    code: str
    message: str
