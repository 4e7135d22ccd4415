"""POST /v1/attention and /v1/tokenize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from service.schemas.common import (
    LONGEST_LIST,
    NOT_BLANK,
    SENTENCE,
    WHOLE,
    Answer,
    AsksAboutTexts,
    Heads,
    Layers,
    ModelInfo,
    Request,
    SpanRequest,
    Text,
    TokenInfo,
    Warning,
    WordInfo,
    exactly_one,
    list_or,
    one_of_required,
    unless_skipped,
)

TokenId = Annotated[int, Field(ge=0, le=10_000_000), WHOLE]
Position = Annotated[int, Field(ge=0, le=1_000_000), WHOLE]
Rows = Annotated[
    Annotated[list[Position], Field(min_length=1, max_length=LONGEST_LIST), Tag("list")]
    | Annotated[SpanRequest, Tag("span")],
    list_or("span"),
]


@dataclass(frozen=True, slots=True)
class Input:
    """One sequence that a request asks about: where it stands in the body, and one of the four ways to say it."""

    pointer: str
    text: str | None = None
    text_pair: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, str]] | None = None


class Message(Request):
    """One turn of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str


class TextsRequest(AsksAboutTexts):
    """One text, several, or a conversation."""

    sources: ClassVar[tuple[str, ...]] = ("text", "texts", "messages")

    text: Text | None = None
    texts: Annotated[list[Text], Field(min_length=1, max_length=LONGEST_LIST)] | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=LONGEST_LIST)] | None = Field(
        None, description="Through the model's own chat template; offsets point into the returned `text`."
    )
    special_tokens: Literal["literal", "parse"] = Field(
        "literal", description="Whether special-token text in a text is ordinary text, or the special token."
    )
    on_error: Literal["fail", "skip"] = Field(
        "fail",
        description="`skip` puts an `error` in the place of a text that cannot be read, and answers the others.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        exactly_one(self, *self.sources)
        return self

    @property
    def inputs(self) -> list[Input]:
        """Each sequence that is asked about."""
        if self.messages is not None:
            return [Input("/messages", messages=[message.model_dump() for message in self.messages])]
        if self.texts is not None:
            return [Input(f"/texts/{index}", text) for index, text in enumerate(self.texts)]
        return [Input("/text", self.text)]

    @property
    def written(self) -> list[str]:
        """Every text in it."""
        found: list[str | None] = []
        for one in self.inputs:
            found += [one.text, one.text_pair, *(message["content"] for message in one.messages or ())]
        return [text for text in found if text is not None]


class SequencesRequest(TextsRequest):
    """The same, or the token ids themselves."""

    sources: ClassVar[tuple[str, ...]] = (*TextsRequest.sources, "token_ids")

    token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=100_000)] | None = Field(
        None, description="The sequence itself, instead of a text; offsets are then null."
    )

    @property
    def inputs(self) -> list[Input]:
        """Each sequence that is asked about."""
        if self.token_ids is not None:
            return [Input("/token_ids", token_ids=self.token_ids)]
        return super().inputs


NOT_BLANK_TEXTS: dict[str, dict[str, Any]] = {"text": NOT_BLANK, "texts": {"items": NOT_BLANK}}
ONE_SEQUENCE = one_of_required(text="string", texts="array", messages="array", token_ids="array")


class TokenizeRequest(TextsRequest):
    """Which tokens does the model see?"""

    model_config = ConfigDict(
        json_schema_extra={
            **one_of_required(text="string", texts="array", messages="array"),
            **unless_skipped(**NOT_BLANK_TEXTS),
            "examples": [{"text": SENTENCE}, {"messages": [{"role": "user", "content": "Hi."}]}],
        }
    )


class ItemError(Answer):
    """Why a text could not be read."""

    code: str
    pointer: str
    detail: str


class SkippedResult(Answer):
    """A text that could not be read, where the request said `on_error: skip`."""

    error: ItemError


class TokenizedResult(Answer):
    """One text's tokens."""

    text: str
    tokens: list[TokenInfo]
    words: list[WordInfo]


class TokenizeAnswer(Answer):
    """The texts' tokens, in the request's order."""

    model: ModelInfo
    results: list[TokenizedResult | SkippedResult]


class AttentionRequest(SequencesRequest):
    """Where does every head look?"""

    model_config = ConfigDict(
        json_schema_extra={
            **ONE_SEQUENCE,
            **unless_skipped(**NOT_BLANK_TEXTS, text_pair=NOT_BLANK),
            "examples": [
                {"text": SENTENCE, "layers": [5], "heads": [5], "decimals": 3},
                {"texts": ["Hi.", "Yes."], "layers": [0]},
                {"text": SENTENCE, "unit": "word", "aggregate": "mean", "first_token": "drop"},
                {"text": SENTENCE, "layers": [5], "heads": [5], "queries": {"text": "it"}, "top_k": 3},
            ],
        }
    )

    text_pair: Text | None = Field(None, description="A second text, in one sequence after `text`.")
    layers: Layers | None = Field(None, description="All layers where absent.")
    heads: Heads | None = Field(None, description="Heads of each of the layers; all where absent.")
    unit: Literal["token", "word"] = Field(
        "token", description="`word`: summed to a word, averaged from a word."
    )
    aggregate: Literal["none", "mean", "max", "rollout"] = Field(
        "none", description="One map over the chosen layers and heads, instead of one for each."
    )
    first_token: Literal["keep", "drop"] = Field(
        "keep", description="`drop` removes the attention sink's column and renormalises."
    )
    weighting: Literal["attention", "value_norm", "scores"] = Field(
        "attention",
        description="`value_norm`: times the length of what the key's value writes to the output, rows renormalised. "
        "`scores`: before the softmax, null in the future.",
    )
    queries: Rows | None = Field(
        None, description="Rows to return: indices in the unit, or a span of the text."
    )
    top_k: Annotated[int, Field(ge=1, le=100_000), WHOLE] | None = Field(
        None, description="Only each row's largest weights, descending; zeros are left out."
    )
    decimals: Annotated[int, Field(ge=1, le=9), WHOLE] = Field(6, description="Decimals of the weights.")

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.text_pair is not None and self.text is None:
            raise PydanticCustomError(
                "incompatible_options", "The option text_pair goes with text", {"field": "text_pair"}
            )
        if self.weighting == "scores" and (
            self.unit != "token"
            or self.aggregate not in ("none", "mean")
            or self.first_token != "keep"
            or self.top_k is not None
        ):
            raise PydanticCustomError(
                "incompatible_options",
                "The weighting scores takes unit token, aggregate none or mean, first_token keep, and no top_k",
                {"field": "weighting"},
            )
        return self

    @property
    def inputs(self) -> list[Input]:
        """Each sequence that is asked about."""
        if self.text_pair is not None:
            return [Input("/text", self.text, text_pair=self.text_pair)]
        return super().inputs


class TopWeight(Answer):
    """One of a row's largest weights."""

    key: int
    weight: float


class AttentionMap(Answer):
    """One head's map, or the aggregate of all: row i holds the weights of query i on the keys.

    Future keys are exactly 0; as scores they are null.
    """

    layer: int | None = Field(None, description="Absent in an aggregate, as are head and kv_head.")
    head: int | None = None
    kv_head: int | None = Field(None, description="The key/value head this head reads.")
    aggregate: Literal["mean", "max", "rollout"] | None = Field(None, description="Only in an aggregate.")
    weights: list[list[float | None]] | None = Field(None, description="Absent with `top_k`.")
    top: list[list[TopWeight]] | None = Field(
        None, description="Only with `top_k`: each row's largest weights."
    )


class AttentionResult(Answer):
    """One text's maps."""

    text: str
    text_pair: str | None = Field(None, description="Only in a sentence pair.")
    tokens: list[TokenInfo]
    words: list[WordInfo]
    unit: Literal["token", "word"]
    queries: list[int] | None = Field(
        None, description="The rows that the maps hold, where some were chosen."
    )
    maps: list[AttentionMap]
    warnings: list[Warning]


class AttentionAnswer(Answer):
    """The texts' maps, in the request's order; maps by layer, then head."""

    model: ModelInfo
    results: list[AttentionResult | SkippedResult]
