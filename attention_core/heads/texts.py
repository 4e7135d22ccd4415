"""What scores need to know about a text."""

from __future__ import annotations

import operator
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_core.errors import ShapeError


@dataclass(frozen=True, slots=True, eq=False)
class TextFacts:
    """What scores need to know about a text. Made by `text_facts`."""

    ids: Tensor  # [token], int64
    punctuation: Tensor  # [token], bool: the token is nothing but punctuation

    def to(self, device: torch.device) -> TextFacts:
        """The same on another device."""
        return TextFacts(self.ids.to(device), self.punctuation.to(device))


def text_facts(ids: Sequence[int], texts: Sequence[str] | None = None) -> TextFacts:
    """The facts of a text with these token ids, whose tokens read `texts`; without them none is punctuation.

    Raises ShapeError for no token, for ids that are no integers, and when `texts` are not one a token.
    """
    if not len(ids):
        raise ShapeError("tokens", expected="at least 1", got=0)
    if texts is not None and len(texts) != len(ids):
        raise ShapeError("texts", expected=f"one for each of {len(ids)} tokens", got=len(texts))
    try:
        whole = [operator.index(one) for one in ids]  # numpy's and torch's integers too
    except TypeError:
        raise ShapeError("ids", expected="whole numbers", got="others") from None
    punctuation = [False] * len(ids) if texts is None else [is_punctuation(text) for text in texts]
    return TextFacts(torch.tensor(whole), torch.tensor(punctuation))


def is_punctuation(text: str) -> bool:
    """Whether a text, but for surrounding whitespace, is characters of Unicode's category P only, at least one."""
    text = text.strip()
    return bool(text) and all(unicodedata.category(character).startswith("P") for character in text)
