"""POST /v1/links."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from service.schemas.common import WHOLE, Answer, Request
from service.settings import LONGEST_URL_BYTES

DAY_SECONDS = 24 * 3600


class LinkRequest(Request):
    """A GET of this service, to be opened by whoever holds the link until it expires."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"path": "/v1/attention.svg?text=The%20cat%20sat.&layer=0&head=0", "expires_in_seconds": 3600}
            ]
        }
    )

    path: str = Field(
        min_length=1,
        max_length=LONGEST_URL_BYTES,
        description="Path and query of a GET of this contract, percent-encoded, without host; the prefix under which a "
        "proxy shows the service may stand before it.",
    )
    expires_in_seconds: Annotated[int, WHOLE] = Field(
        DAY_SECONDS, ge=1, le=30 * DAY_SECONDS, description="From now."
    )


class LinkAnswer(Answer):
    """The link. It cannot be called back, but by another signing key."""

    url: str = Field(
        description="Path and query, without host: as the `src` of an `<img>` after the service's address."
    )
    expires: int = Field(description="Unix time in seconds until which the link is answered.")
