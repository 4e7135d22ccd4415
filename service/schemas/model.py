"""GET /v1/model and the health checks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.schemas.common import Answer, ModelInfo


class LimitsInfo(Answer):
    """What one request may ask for."""

    max_body_bytes: int
    max_texts: int
    max_tokens_per_text: int
    max_tokens_per_request: int
    max_response_elements: int
    max_queue_length: int
    max_in_flight: int
    deadline_seconds: float


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
