"""What several resources share: strictness, texts, indices, tokens, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, model_validator
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
Text = Annotated[str, Field(description="Not blank.", json_schema_extra={"minLength": 1})]

LONGEST_LIST = (
    10_000  # of anything in a request, whatever its own limit: a longer one is not even looked through
)
LARGEST_SEED = 2**53 - 1  # what every reader of JSON keeps exactly
LARGEST_INDEX = 9_999  # of a layer or head in any request; the model's own bound is checked once it is known


def _index(code: str) -> AfterValidator:
    def check(value: int) -> int:
        if not 0 <= value <= LARGEST_INDEX:
            raise PydanticCustomError(code, "The index must be between 0 and the model's last")
        return value

    return AfterValidator(check)


_bounds = Field(json_schema_extra={"minimum": 0, "maximum": LARGEST_INDEX})
Layer = Annotated[int, _index("layer_out_of_range"), _bounds]
Head = Annotated[int, _index("head_out_of_range"), _bounds]
Layers = Annotated[list[Layer], Field(min_length=1, max_length=LONGEST_LIST)]
Heads = Annotated[list[Head], Field(min_length=1, max_length=LONGEST_LIST)]


def list_or(tag: str) -> Discriminator:
    """Tell a list from anything else, so that a wrong value gets the errors of the form it was meant as."""
    return Discriminator(lambda value: "list" if isinstance(value, list) else tag)


def exactly_one(model: BaseModel, *names: str) -> None:
    """Raise `missing_field` or `incompatible_options` unless exactly one of the members is given."""
    given = [name for name in names if getattr(model, name) is not None]
    if not given:
        raise PydanticCustomError("missing_field", "One of {names} is required", {"names": ", ".join(names)})
    if len(given) > 1:
        raise PydanticCustomError(
            "incompatible_options", "Send only one of {names}", {"names": ", ".join(names), "field": given[1]}
        )


def one_of_required(*names: str) -> dict[str, Any]:
    """`exactly_one`, as JSON Schema."""
    return {"oneOf": [{"required": [name]} for name in names]}


Offset = Annotated[int, Field(ge=0, le=100_000_000)]


class SpanRequest(Request):
    """Where in the text: `{start, end}`, `{text}` where it occurs once as a whole word, or `{text, occurrence}`."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["start", "end"]}, {"required": ["text"]}],
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
