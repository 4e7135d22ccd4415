"""POST /v1/coreference."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

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
Gold = Annotated[int, Field(ge=0, le=10_000, description="Index of the right candidate.")]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Item(Request):
    """One text with a pronoun and the nouns it may attend to."""

    text: Text
    pronoun: SpanRequest
    candidates: Candidates
    gold: Gold | None = None


class ScoringRequest(AsksAboutTexts):
    """How a pronoun's attention becomes a choice among candidates."""

    method: Literal["attention", "substitution"] = Field(
        "attention",
        description="`substitution`: instead of attention, how likely the model finds the rest of the text with each "
        "candidate in the pronoun's place (Trinh & Le 2018, partial scoring).",
    )
    aggregate: Literal["sum", "mean", "max", "last", "head_word"] = Field(
        "sum",
        description="Over a candidate's tokens: all the weight (favours long names), its mean, its largest, its last "
        "token's, or that of its last word.",
    )
    query: Literal["last", "first", "mean"] = Field(
        "last", description="Which of the pronoun's tokens looks."
    )
    normalize: Literal["none", "candidates", "exclude_sink"] = Field(
        "none",
        description="`candidates`: shares of what all candidates get. `exclude_sink`: shares of what token 0 leaves.",
    )
    first_token: Literal["keep", "drop"] = Field(
        "keep", description="`drop`: token 0, which draws attention whatever it is, counts for no candidate."
    )
    heads: Pairs | None = None

    @model_validator(mode="after")
    def _substitution_reads_no_attention(self) -> Self:
        if self.method == "substitution":
            options = ("aggregate", "query", "normalize", "first_token", "heads")
            fields = type(self).model_fields
            if given := [name for name in options if getattr(self, name) != fields[name].default]:
                raise PydanticCustomError(
                    "incompatible_options",
                    "The method substitution reads no attention, so {name} means nothing",
                    {"name": given[0]},
                )
        return self


class CoreferenceRequest(ScoringRequest):
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
                },
                {
                    "text": SENTENCE,
                    "pronoun": {"text": "it"},
                    "candidates": [{"text": "The cat"}, {"text": "the mat"}],
                    "aggregate": "head_word",
                    "normalize": "candidates",
                    "first_token": "drop",
                },
                {
                    "items": [
                        {
                            "text": SENTENCE,
                            "pronoun": {"text": "it"},
                            "candidates": [{"text": "cat"}, {"text": "mat"}],
                        }
                    ],
                    "method": "substitution",
                    "on_error": "skip",
                },
            ],
        }
    )

    text: Text | None = None
    pronoun: SpanRequest | None = None
    candidates: Candidates | None = None
    gold: Gold | None = None
    items: Annotated[list[Item], Field(min_length=1, max_length=LONGEST_LIST)] | None = None
    heads: Pairs | None = Field(
        None,
        description="[layer, head] pairs, or `all`. [[5, 5]] where absent, on a model of 24 layers and 14 heads; "
        "required on any other.",
    )
    on_error: Literal["fail", "skip"] = Field(
        "fail",
        description="`skip` puts an `error` in the place of an item that cannot be scored, and answers the others.",
    )

    @model_validator(mode="after")
    def _item_or_items(self) -> Self:
        exactly_one(self, "text", "items")
        if self.items is not None:
            for name in ("pronoun", "candidates", "gold"):
                if getattr(self, name) is not None:
                    raise PydanticCustomError(
                        "incompatible_options", "{name} stands inside each item", {"name": name}
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


class EvaluationItem(Item):
    """An item whose right candidate is known."""

    gold: Gold
    id: Name | None = Field(None, description="Names the item under `skipped`.")
    group: Name | None = Field(
        None,
        description="Items of one group stay on one side of the split; without it an item is its own group.",
    )


class Split(Request):
    """Which share of the groups is kept for the test, chosen by a seeded shuffle."""

    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0


class EvaluateRequest(ScoringRequest):
    """How often is a head right? Heads are chosen on one part of the items, and judged on the other."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "items": [
                        {
                            "text": SENTENCE,
                            "pronoun": {"text": "it"},
                            "candidates": [{"text": "cat"}, {"text": "mat"}],
                            "gold": 0,
                            "id": "article",
                        },
                        {
                            "text": "The dog barked at the fence because it was hungry.",
                            "pronoun": {"text": "it"},
                            "candidates": [{"text": "dog"}, {"text": "fence"}],
                            "gold": 0,
                        },
                    ],
                    "split": None,
                }
            ]
        }
    )
    limit: ClassVar[str] = "max_items"

    items: Annotated[list[EvaluationItem], Field(min_length=1, max_length=LONGEST_LIST)]
    heads: Pairs | None = Field(None, description="[layer, head] pairs, or `all`, as where absent.")
    split: Split | None = Field(
        Split(),
        description="Null: no split; what is best of all is then also judged on all, which flatters it.",
    )
    rank_by: Literal["accuracy", "balanced"] = Field(
        "accuracy",
        description="`balanced`: the mean of the accuracy where the right candidate is the first and where it is not.",
    )
    top: Annotated[int, Field(ge=1, le=10_000)] = Field(
        10, description="How many heads are listed, best first."
    )

    @property
    def inputs(self) -> list[tuple[str, EvaluationItem]]:
        """(JSON Pointer, item) of each item."""
        return [(f"/items/{index}", item) for index, item in enumerate(self.items)]


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
