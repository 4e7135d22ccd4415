"""JSON that says each thing once."""

from __future__ import annotations

import json

from service.errors import MalformedBodyError


def refuse_duplicate_members(raw: bytes) -> None:
    """JSON lets the last of two equal names win silently; what says two things is refused instead.

    `raw` is valid JSON. Raises MalformedBodyError.
    """

    def members(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise MalformedBodyError("A member is named twice in one object.")

    json.loads(raw, object_pairs_hook=members, parse_int=str)
