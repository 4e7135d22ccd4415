"""POST /v1/heads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from attention_core.heads import LABELS
from service.schemas.attention import Input
from service.schemas.common import (
    SENTENCE,
    Answer,
    AsksAboutTexts,
    Heads,
    Layers,
    ModelInfo,
    Text,
    Warning,
)


def _known_score(name: str) -> str:
    if name not in LABELS:
        raise PydanticCustomError("unknown_option", "Must be one of {names}", {"names": ", ".join(LABELS)})
    return name


ScoreName = Annotated[str, AfterValidator(_known_score), Field(json_schema_extra={"enum": list(LABELS)})]
Threshold = Annotated[float, Field(ge=0, le=1)]


class HeadsRequest(AsksAboutTexts):
    """What kind of head is each?"""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": SENTENCE},
                {"text": SENTENCE, "layers": [8], "heads": [7], "thresholds": {"previous_token": 0.8}},
            ]
        }
    )

    text: Text
    layers: Layers | None = Field(None, description="All layers where absent.")
    heads: Heads | None = Field(None, description="Heads of each of the layers; all where absent.")
    labels: Annotated[list[ScoreName], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Give only these labels; all where absent."
    )
    thresholds: Annotated[
        dict[str, Threshold],
        Field(max_length=100, json_schema_extra={"propertyNames": {"enum": list(LABELS)}}),
    ] = Field(
        {},
        description="A head carries a label when its score is above this; the defaults stand in `definitions`.",
    )

    @property
    def inputs(self) -> list[Input]:
        """The text that is asked about."""
        return [Input("/text", self.text)]


class LabelCount(Answer):
    """How many of the answer's heads carry a label."""

    count: int
    fraction: float


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
        description="Share of the rows whose largest weight lies on a target key; null where there is no such key."
    )
    rows: int
    status: Literal["ok", "too_short", "not_applicable"]


class HeadInfo(Answer):
    """One head's labels and scores."""

    layer: int
    head: int
    kv_head: int
    labels: list[str]
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
    definitions: dict[str, Definition]
    warnings: list[Warning]
