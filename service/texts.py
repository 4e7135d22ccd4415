"""Text in, tokens out: user text is literal, and every token knows its characters and its word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from attention_core.spans import Token, Word, align


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text and its tokens; `ids` is what the model reads."""

    text: str
    ids: list[int]
    tokens: Sequence[Token]
    words: Sequence[Word]


class TextTokenizer:
    """A tokenizer for which `<|im_end|>` in a text is ten ordinary characters, not a special token."""

    def __init__(self, tokenizer_json: str) -> None:
        specification = json.loads(tokenizer_json)
        # Without its added tokens a tokenizer cannot find any in a text: neither special ones nor <tool_call>,
        # which `encode_special_tokens` would still let through.
        specification["added_tokens"] = []
        self._tokenizer = Tokenizer.from_str(json.dumps(specification))

    @classmethod
    def from_file(cls, path: Path) -> TextTokenizer:
        """Read a `tokenizer.json`."""
        return cls(path.read_text(encoding="utf-8"))

    def tokenize(self, text: str) -> TokenizedText:
        """Token ids of a text, with clean text, code-point offsets and word of each token."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        alignment = align(text, encoding.ids, encoding.offsets, encoding.tokens)
        return TokenizedText(text, encoding.ids, alignment.tokens, alignment.words)
