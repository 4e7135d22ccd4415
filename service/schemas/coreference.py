"""POST /v1/coreference."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from service.schemas.common import (
    LONGEST_LIST,
    SENTENCE,
    Answer,
    AsksAboutTexts,
    Head,
    Layer,
    ModelInfo,
    Request,
    SpanRequest,
    Text,
    TokenInfo,
    Warning,
    exactly_one,
    list_or,
)

Pairs = Annotated[
    Annotated[list[tuple[Layer, Head]], Field(min_length=1, max_length=LONGEST_LIST), Tag("list")]
    | Annotated[Literal["all"], Tag("all")],
    list_or("all"),
]


Candidates = Annotated[list[SpanRequest], Field(max_length=100)]


class Item(Request):
    """One text with a pronoun and the nouns it may attend to."""

    text: Text
    pronoun: SpanRequest
    candidates: Candidates
    gold: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="Index of the right candidate."
    )


class CoreferenceRequest(AsksAboutTexts):
    """Which noun does the pronoun attend to? One item, or several under `items`."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["text", "pronoun", "candidates"]}, {"required": ["items"]}],
            "examples": [
                {
                    "text": SENTENCE,
                    "pronoun": {"text": "it"},
                    "candidates": [{"text": "cat"}, {"text": "mat"}],
                    "gold": 0,
                }
            ],
        }
    )

    text: Text | None = None
    pronoun: SpanRequest | None = None
    candidates: Candidates | None = None
    gold: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="Index of the right candidate."
    )
    items: Annotated[list[Item], Field(min_length=1, max_length=LONGEST_LIST)] | None = None
    heads: Pairs | None = Field(
        None,
        description="[layer, head] pairs, or `all`. [[5, 5]] where absent, on a model of 24 layers and 14 heads; "
        "required on any other.",
    )

    @model_validator(mode="after")
    def _item_or_items(self) -> Self:
        exactly_one(self, "text", "items")
        if self.items is not None:
            for name in ("pronoun", "candidates", "gold"):
                if getattr(self, name) is not None:
                    raise PydanticCustomError(
                        "incompatible_options",
                        "{name} stands inside each item",
                        {"name": name, "field": name},
                    )
        else:
            for name in ("pronoun", "candidates"):
                if getattr(self, name) is None:
                    raise PydanticCustomError("missing_field", "The field is required", {"field": name})
        return self

    @property
    def inputs(self) -> list[tuple[str, Item]]:
        """(JSON Pointer, item) of each item."""
        if self.items is not None:
            return [(f"/items/{index}", item) for index, item in enumerate(self.items)]
        if self.text is None or self.pronoun is None or self.candidates is None:
            return []  # cannot be: the validator has seen to it
        item = Item(text=self.text, pronoun=self.pronoun, candidates=self.candidates, gold=self.gold)
        return [("", item)]


class PronounInfo(Answer):
    """The resolved pronoun."""

    start: int
    end: int
    text: str
    token_indices: list[int]
    exact: bool = Field(description="False when a token reaches outside the span.")


class CandidateInfo(Answer):
    """A resolved candidate."""

    index: int
    text: str
    start: int
    end: int
    token_indices: list[int]
    exact: bool
    visible: bool = Field(description="False when it comes after the pronoun, whose row cannot see it.")
    has_first_token: bool = Field(description="Token 0 draws attention whatever it is.")


class HeadChoice(Answer):
    """How much attention one head pays to each candidate from the pronoun's last token."""

    layer: int
    head: int
    scores: list[float | None] = Field(description="One per candidate; null where not visible.")
    predicted: int | None = Field(description="Index of the candidate attended to most; null on a tie.")
    tie: bool
    margin: float | None = Field(description="Best score less the second best.")
    within_noise: bool = Field(description="The margin is below the exactness of the weights, 2e-4.")
    mass_on_candidates: float
    mass_on_first_token: float
    correct: bool | None = Field(None, description="Only with `gold`.")


class Baselines(Answer):
    """What a rule that ignores attention would choose."""

    first: int
    nearest: int


class CoreferenceResult(Answer):
    """One item's answer."""

    tokens: list[TokenInfo]
    pronoun: PronounInfo
    candidates: list[CandidateInfo]
    heads: list[HeadChoice]
    baselines: Baselines
    warnings: list[Warning]


class CoreferenceAnswer(Answer):
    """The items' answers, in the request's order."""

    model: ModelInfo
    results: list[CoreferenceResult]
