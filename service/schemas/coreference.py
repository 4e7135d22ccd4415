"""/v1/coreference and /v1/coreference/evaluate."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from attention_core.coreference import Aggregate, FirstToken, Normalize, QueryTokens, Reading
from attention_core.evaluation import RankBy
from service.schemas.attention import SkippedResult
from service.schemas.common import (
    LARGEST_SEED,
    LONGEST_LIST,
    NOT_BLANK,
    SENTENCE,
    WHOLE,
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
    given,
    list_or_word,
    unless_skipped,
)

Pairs = Annotated[
    Annotated[list[tuple[Layer, Head]], Field(min_length=1, max_length=LONGEST_LIST), Tag("list")]
    | Annotated[Literal["all"], Tag("all")],
    list_or_word("all", "Pairs [layer, head], or `all`, are expected; in a URL `L5H5,L8H7`, or `all`"),
]


Candidates = Annotated[list[SpanRequest], Field(max_length=100)]
Gold = Annotated[int, Field(ge=0, le=10_000, description="Index of the right candidate."), WHOLE]
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
    aggregate: Aggregate = Field(
        "sum",
        description="Over a candidate's tokens: all the weight (favours long names), its mean, its largest, its last "
        "token's, or that of its last word.",
    )
    query: QueryTokens = Field("last", description="Which of the pronoun's tokens looks.")
    normalize: Normalize = Field(
        "none",
        description="`candidates`: shares of what all candidates get. `exclude_sink`: shares of what token 0 leaves.",
    )
    first_token: FirstToken = Field(
        "keep", description="`drop`: token 0, which draws attention whatever it is, counts for no candidate."
    )
    heads: Pairs | None = None

    @model_validator(mode="after")
    def _substitution_reads_no_attention(self) -> Self:
        if self.method == "substitution":
            options = (*(one.name for one in dataclasses.fields(Reading)), "heads")
            fields = type(self).model_fields
            if said := [name for name in options if getattr(self, name) != fields[name].default]:
                raise PydanticCustomError(
                    "incompatible_options",
                    "The method substitution reads no attention, so {name} means nothing",
                    {"name": said[0], "field": said[0]},
                )
        return self


class CoreferenceRequest(ScoringRequest):
    """Which noun does the pronoun attend to? One item, or several under `items`."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                given(text="string", pronoun="object", candidates="array", items="null"),
                given(items="array", text="null", pronoun="null", candidates="null", gold="null"),
            ],
            **unless_skipped(text=NOT_BLANK, items={"items": {"properties": {"text": NOT_BLANK}}}),
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

    @property
    def written(self) -> list[str]:
        """Every text in it."""
        return [item.text for _, item in self.inputs]


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
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED), WHOLE] = 0


class EvaluationOptions(ScoringRequest):
    """Heads are chosen on one part of the items, and judged on the other."""

    heads: Pairs | None = Field(None, description="[layer, head] pairs, or `all`, as where absent.")
    split: Split | None = Field(
        Split(),
        description="Null: no split; what is best of all is then also judged on all, which flatters it.",
    )
    rank_by: RankBy = Field(
        "accuracy",
        description="`balanced`: the mean of the accuracy where the right candidate is the first and where it is not.",
    )
    top: Annotated[int, Field(ge=1, le=10_000), WHOLE] = Field(
        10, description="How many heads are listed, best first."
    )


class EvaluateRequest(EvaluationOptions):
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

    @property
    def inputs(self) -> list[tuple[str, EvaluationItem]]:
        """(JSON Pointer, item) of each item."""
        return [(f"/items/{index}", item) for index, item in enumerate(self.items)]

    @property
    def written(self) -> list[str]:
        """Every text in it."""
        return [item.text for _, item in self.inputs]


class UnreadLine(Request):
    """A line that holds no item, and why."""

    line: int
    code: str
    detail: str


class LinesRequest(EvaluateRequest):
    """The same, from JSON Lines: the number of each item's line, and the lines that hold none."""

    lines: list[int]
    unread: list[UnreadLine]


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
    has_first_token: bool = Field(description="It holds token 0, which draws attention whatever it is.")


class HeadChoice(Answer):
    """How much attention one head pays to each candidate from the pronoun, as the options say."""

    layer: int
    head: int
    scores: list[float | None] = Field(
        description="One per candidate; null where it is not visible, is token 0 alone and that does not count, or "
        "where there is nothing to divide by (`no_attention`)."
    )
    predicted: int | None = Field(
        description="Index of the candidate attended to most; null on a tie, and where none has a score above 0."
    )
    tie: bool
    margin: float | None = Field(description="Best score less the second best.")
    within_noise: bool = Field(
        description="The margin is below the exactness of the weights, 2e-4, divided as the scores were."
    )
    mass_on_candidates: float
    mass_on_first_token: float
    correct: bool | None = Field(None, description="Only with `gold`.")


class Baselines(Answer):
    """What a rule that ignores attention would choose."""

    first: int
    nearest: int


class SubstitutionInfo(Answer):
    """How likely the model finds the rest of the text with each candidate in the pronoun's place."""

    scores: list[float | None] = Field(
        description="Log-probability of what follows, in nats; null where nothing follows."
    )
    predicted: int | None
    tie: bool
    margin: float | None
    within_noise: bool = Field(description="The margin is below 1e-4 nats, which another machine may turn.")
    correct: bool | None = Field(None, description="Only with `gold`.")


class CoreferenceResult(Answer):
    """One item's answer."""

    tokens: list[TokenInfo]
    pronoun: PronounInfo
    candidates: list[CandidateInfo]
    heads: list[HeadChoice] = Field(description="Empty with `method: substitution`.")
    substitution: SubstitutionInfo | None = Field(None, description="Only with `method: substitution`.")
    baselines: Baselines
    warnings: list[Warning]


class CoreferenceAnswer(Answer):
    """The items' answers, in the request's order."""

    model: ModelInfo
    results: list[CoreferenceResult | SkippedResult]


class Accuracy(Answer):
    """How many are right, and the Wilson 95 % interval of their share; null where there is no item."""

    correct: int
    n: int
    accuracy: float | None
    ci95: tuple[float, float] | None


class PartInfo(Answer):
    """What heads are measured against, on one part of the items."""

    n: int
    first: Accuracy = Field(description="The first candidate in the text, whatever the head does.")
    nearest: Accuracy = Field(description="The last candidate before the pronoun, else the closest after it.")
    random: float | None = Field(description="One of the candidates by chance.")
    ceiling: float | None = Field(
        description="No head can be right more often: items that are equal up to the pronoun look the same to it."
    )


class Parts(Answer):
    """All scored items, and where there is a split its two sides."""

    all: PartInfo
    dev: PartInfo | None = Field(None, description="Heads are chosen on these.")
    test: PartInfo | None = Field(None, description="And reported on these.")


class Judged(Answer):
    """How often one head, or the method of substitution, is right."""

    all: Accuracy
    gold_first: Accuracy = Field(description="Where the right candidate is the first in the text.")
    gold_not_first: Accuracy
    dev: Accuracy | None = Field(None, description="With a split.")
    test: Accuracy | None = None
    balanced: float | None = Field(
        description="Mean of the two: a head that always picks the first has 0.5, however often that is right."
    )
    picks_first_rate: float | None


class JudgedHead(Judged):
    """One head."""

    layer: int
    head: int


class BestHead(Answer):
    """The head with the highest value to choose by, then of the lowest layer and head."""

    layer: int
    head: int
    dev: Accuracy | None = None
    test: Accuracy | None = None
    all: Accuracy
    value: float = Field(description="What it was chosen for: on dev, without a split on all.")
    test_value: float | None = Field(None, description="The same on test.")
    tied_heads: int = Field(description="Heads with this value, this one among them.")
    p_value: float = Field(
        description="Probability that coin flips are right at least as often, on test, without a split on all."
    )
    p_value_holm: float = Field(description="Corrected for the number of heads evaluated (Holm).")


class ChanceOfBest(Answer):
    """What the best of as many heads that flip coins would do, on the items that the head was chosen on."""

    heads: int
    n: int
    probability: float = Field(description="That it does as well as the best head did.")
    expected_accuracy: float


class Grid(Answer):
    """Accuracy of every head evaluated: on test, without a split on all."""

    layers: list[int]
    heads: list[int]
    accuracy: list[list[float | None]] = Field(description="[layer][head]; null where not evaluated.")


class SkippedItem(Answer):
    """An item that could not be scored."""

    pointer: str | None = Field(None, description="Where it stands in the body.")
    line: int | None = Field(None, description="Of a body of JSON Lines, from 1.")
    id: str | None = None
    code: str
    detail: str


class EvaluateAnswer(Answer):
    """How often heads are right, beside what position alone achieves and what no head can exceed."""

    model: ModelInfo
    n: int = Field(description="Items sent.")
    scored: int = Field(
        description="Items with an answer that counts: readable, with two candidates or more."
    )
    skipped: list[SkippedItem]
    baselines: PartInfo = Field(description="On all scored items: `parts.all`.")
    ceiling: float | None
    parts: Parts
    heads: list[JudgedHead] = Field(
        description="The `top` best, best first. Empty with `method: substitution`."
    )
    best: BestHead | None
    chance_of_best: ChanceOfBest | None
    substitution: Judged | None = Field(None, description="Only with `method: substitution`.")
    grid: Grid | None = Field(None, description="Absent with `method: substitution`.")
    warnings: list[Warning]
    request: dict[str, Any] = Field(
        description="The options with their defaults (`heads` null: all); of the items the SHA-256 of their canonical "
        "JSON."
    )
