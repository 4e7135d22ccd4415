"""GET /v1/model and the health checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, create_model

from service.schemas.common import Answer, ModelInfo
from service.settings import Limits

if TYPE_CHECKING:
    LimitsInfo = Answer
else:
    LimitsInfo = create_model(
        "LimitsInfo",
        __base__=Answer,
        __doc__="What one request may ask for.",
        **{
            name: (one.annotation, Field(description=one.description))
            for name, one in Limits.model_fields.items()
        },
    )


class ModelAnswer(Answer):
    """What is loaded, and within which limits it answers."""

    model: ModelInfo
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    max_tokens: int = Field(description="The model's own maximum; `limits.max_tokens_per_text` may be lower.")
    limits: LimitsInfo
    formats: list[str] = Field(description="Media types of answers.")


class HealthAnswer(Answer):
    """The state behind a 200."""

    status: Literal["live", "ready"]
    state: Literal["loading", "ready", "draining", "failed"]


class ProblemError(Answer):
    """One fault in a request."""

    pointer: str = Field(description="JSON Pointer into the body.")
    code: str
    detail: str


class Problem(Answer):
    """Every answer from 400 on (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str = ""
    instance: str
    request_id: str
    errors: list[ProblemError] = Field([], description="At most 20.")
    limit: int | None = None
    actual: int | None = None
    formats: list[str] | None = Field(None, description="Media types on offer, with a 406.")
