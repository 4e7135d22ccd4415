"""Text in, tokens out: user text is literal, and every token knows its characters and its word."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from attention_core.spans import Alignment, Token, Word, align

CHARACTERS_A_TOKEN = 16  # more than in nearly all texts
CUT_TOKENS = 64  # more than the last word of a beginning can have more than in its whole text


@dataclass(frozen=True)
class TokenizedText:
    """A text and its tokens; `ids` is what the model reads.

    Tokens and words are joined with their characters when first asked for: a text that is too long never is.
    """

    text: str
    encoding: Encoding
    whole: bool = True  # False where only the beginning was tokenised, which was too long already

    @functools.cached_property
    def ids(self) -> list[int]:
        """Token ids."""
        ids: list[int] = self.encoding.ids
        return ids

    @functools.cached_property
    def _alignment(self) -> Alignment:
        return align(self.text, self.ids, self.encoding.offsets, self.encoding.tokens)

    @property
    def tokens(self) -> Sequence[Token]:
        """Each token with clean text, code-point offsets and word."""
        return self._alignment.tokens

    @property
    def words(self) -> Sequence[Word]:
        """The words that the tokens form."""
        return self._alignment.words

    def __len__(self) -> int:
        return len(self.encoding)


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

    def tokenize(self, text: str, *, at_most: int | None = None) -> TokenizedText:
        """The tokens of a text.

        Of a text with clearly more than `at_most` tokens, only the beginning is tokenised: a megabyte takes seconds.
        """
        if at_most is not None and len(text) > CHARACTERS_A_TOKEN * at_most:
            beginning = self._tokenizer.encode(text[: CHARACTERS_A_TOKEN * at_most], add_special_tokens=False)
            if len(beginning) > at_most + CUT_TOKENS:
                return TokenizedText(text, beginning, whole=False)
        return TokenizedText(text, self._tokenizer.encode(text, add_special_tokens=False))
