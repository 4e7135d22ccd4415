"""/v1/heads."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from attention_core.heads import LABELS
from service.schemas.attention import NOT_BLANK_TEXTS, ONE_SEQUENCE, ItemError, SequencesRequest
from service.schemas.common import (
    LARGEST_SEED,
    SENTENCE,
    WHOLE,
    Answer,
    Heads,
    Layers,
    ModelInfo,
    Warning,
    unless_skipped,
)


def _known_score(name: str) -> str:
    if name not in LABELS:
        raise PydanticCustomError("unknown_option", "Must be one of {names}", {"names": ", ".join(LABELS)})
    return name


ScoreName = Annotated[str, AfterValidator(_known_score), Field(json_schema_extra={"enum": list(LABELS)})]
Threshold = Annotated[float, Field(ge=0, le=1)]
Bit = Annotated[int, Field(ge=0, le=1), WHOLE]
Bits = Annotated[list[Bit], Field(min_length=1, max_length=1000)]


class HeadsRequest(SequencesRequest):
    """What kind of head is each? Over several texts the scores are pooled."""

    model_config = ConfigDict(
        json_schema_extra={
            **ONE_SEQUENCE,
            **unless_skipped(**NOT_BLANK_TEXTS),
            "examples": [
                {"text": SENTENCE},
                {"text": SENTENCE, "layers": [8], "heads": [7], "thresholds": {"previous_token": 0.8}},
                {"text": SENTENCE, "probe": "repeat", "labels": ["induction", "duplicate_token"]},
                {"texts": [SENTENCE, "The dog barked at the fence because it was hungry."], "layers": [8]},
            ],
        }
    )

    layers: Layers | None = Field(None, description="All layers where absent.")
    heads: Heads | None = Field(None, description="Heads of each of the layers; all where absent.")
    labels: Annotated[list[ScoreName], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Give only these labels; all where absent."
    )
    thresholds: Annotated[
        dict[ScoreName, Threshold],
        Field(max_length=100, json_schema_extra={"propertyNames": {"enum": list(LABELS)}}),
    ] = Field(
        {},
        description="A head carries a label when its score is above this, and its excess above 0; `broad`, which an "
        "even head has most of, from this on. The defaults stand in `definitions`.",
    )

    probe: Literal["none", "repeat"] = Field(
        "none",
        description="`repeat`: induction and duplicate_token are scored on random tokens repeated once, the others "
        "on the text.",
    )
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED), WHOLE] = Field(0, description="Of the probe.")
    draws: Annotated[int, Field(ge=2, le=50), WHOLE] = Field(10, description="Of the probe.")
    pattern: Annotated[list[Bits], Field(min_length=1, max_length=1000)] | None = Field(
        None, description="A target of one's own, tokens x tokens, over a single text: the score `custom`."
    )

    @model_validator(mode="after")
    def _pattern_over_one_text(self) -> Self:
        if self.pattern is not None and self.texts is not None:
            raise PydanticCustomError(
                "incompatible_options", "A pattern goes with a single text", {"field": "pattern"}
            )
        return self

    @model_validator(mode="after")
    def _seed_and_draws_are_of_the_probe(self) -> Self:
        for name in ("seed", "draws"):
            if self.probe == "none" and getattr(self, name) != type(self).model_fields[name].default:
                raise PydanticCustomError(
                    "incompatible_options", "Without a probe nothing is drawn", {"field": name}
                )
        return self


class ProbeInfo(Answer):
    """What was drawn, so that it can be drawn again.

    One PCG64(seed) gives 64-bit numbers for all draws. Each, modulo the count of ids to draw from, is the place of an
    id among these, ascending: 100 to 19999 that the vocabulary has and that are not special. One that is in the draw
    already is passed over.
    """

    seed: int
    draws: int
    length: int = Field(description="Ids in a draw, before they are repeated.")
    sha256: str = Field(
        description="Of the ids as decimal numbers: a space between two, a newline between sequences."
    )


class TopHead(Answer):
    """One of the heads with the highest score."""

    layer: int
    head: int
    score: float


class LabelCount(Answer):
    """How many of the answer's heads carry a label."""

    count: int
    fraction: float
    top: list[TopHead] = Field(
        description="The five heads that score highest, descending, whether they carry the label or not."
    )


class Summary(Answer):
    """The answer in short."""

    heads: int
    labels: dict[str, LabelCount]


class Score(Answer):
    """One score of one head; numbers are null where no row is applicable."""

    score: float | None
    baseline: float | None = Field(description="The same score of a head that spreads its attention evenly.")
    excess: float | None = Field(description="score - baseline.")
    argmax_rate: float | None = Field(
        description="Share of the rows whose largest weight lies on a target key; null for what is no share of weight."
    )
    rows: int
    status: Literal["ok", "too_short", "not_applicable"]
    sd: float | None = Field(None, description="Over the texts or draws; n - 1 below the fraction.")
    ci95: tuple[float, float] | None = Field(
        None, description="95 % interval of the mean, by Student's t; over few texts it may leave 0..1."
    )
    n: int | None = Field(None, description="Texts or draws with status ok; only where scores are pooled.")
    mae_similarity: float | None = Field(
        None, description="Only of `custom`: 1 - mean over i >= j of |A[i,j] - pattern[i][j]|."
    )


class HeadInfo(Answer):
    """One head's labels and scores."""

    layer: int
    head: int
    kv_head: int
    labels: list[str]
    borderline: list[str] = Field(
        description="Labels that 2e-4, the exactness of the weights, would give or take."
    )
    texts_agreeing: dict[str, int] | None = Field(
        None, description="Texts or draws with each label; where pooled."
    )
    scores: dict[str, Score]
    entropy: float | None = Field(description="Mean entropy of its rows from the second on, in nats.")


class Definition(Answer):
    """What a score means."""

    formula: str
    baseline: str
    threshold: float | None
    source: str


class HeadsAnswer(Answer):
    """Every chosen head, by layer, then head."""

    model: ModelInfo
    summary: Summary
    heads: list[HeadInfo]
    probe: ProbeInfo | None = Field(None, description="Only with a probe.")
    skipped: list[ItemError] | None = Field(
        None, description="With `on_error: skip`: texts left out, and why."
    )
    definitions: dict[str, Definition]
    warnings: list[Warning]
    request: dict[str, Any] = Field(
        description="The request with its defaults and the thresholds in force written out; without `layers`, `heads` "
        "or `labels` it asked for all. Sent again to the same `model` it gives the same answer."
    )
