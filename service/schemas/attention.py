"""POST /v1/attention and /v1/tokenize."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from service.schemas.common import (
    LONGEST_LIST,
    Answer,
    Heads,
    Layers,
    ModelInfo,
    Request,
    Text,
    TokenInfo,
    Warning,
    WordInfo,
    exactly_one,
    one_of_required,
)

SENTENCE = "The cat sat on the mat because it was tired."


class TextsRequest(Request):
    """One text, or several."""

    text: Text | None = None
    texts: Annotated[list[Text], Field(min_length=1, max_length=LONGEST_LIST)] | None = None

    @model_validator(mode="after")
    def _text_or_texts(self) -> Self:
        exactly_one(self, "text", "texts")
        return self

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """(JSON Pointer, text) of each text."""
        if self.text is not None:
            return [("/text", self.text)]
        return [(f"/texts/{index}", text) for index, text in enumerate(self.texts or [])]


class TokenizeRequest(TextsRequest):
    """Which tokens does the model see?"""

    model_config = ConfigDict(
        json_schema_extra={**one_of_required("text", "texts"), "examples": [{"text": SENTENCE}]}
    )


class TokenizedResult(Answer):
    """One text's tokens."""

    text: str
    tokens: list[TokenInfo]
    words: list[WordInfo]


class TokenizeAnswer(Answer):
    """The texts' tokens, in the request's order."""

    model: ModelInfo
    results: list[TokenizedResult]


class AttentionRequest(TextsRequest):
    """Where does every head look?"""

    model_config = ConfigDict(
        json_schema_extra={
            **one_of_required("text", "texts"),
            "examples": [
                {"text": SENTENCE, "layers": [5], "heads": [5], "decimals": 3},
                {"texts": ["Hi.", "Yes."]},
            ],
        }
    )

    layers: Layers | None = Field(None, description="All layers where absent.")
    heads: Heads | None = Field(None, description="Heads of each of the layers; all where absent.")
    decimals: Annotated[int, Field(ge=1, le=9)] = Field(6, description="Decimals of the weights.")


class AttentionMap(Answer):
    """One head's map: row i holds the weights of query token i on the key tokens; future keys are exactly 0."""

    layer: int
    head: int
    kv_head: int = Field(description="The key/value head this head reads.")
    weights: list[list[float]]


class AttentionResult(Answer):
    """One text's maps."""

    text: str
    tokens: list[TokenInfo]
    words: list[WordInfo]
    unit: Literal["token"]
    maps: list[AttentionMap]
    warnings: list[Warning]


class AttentionAnswer(Answer):
    """The texts' maps, in the request's order; maps by layer, then head."""

    model: ModelInfo
    results: list[AttentionResult]
