"""Text in, tokens out: text is literal unless asked otherwise; every token knows its characters and its word."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, pre_tokenizers

from attention_core.spans import Alignment, Token, Word, align

CHARACTERS_A_TOKEN = 16  # more than in nearly all texts
CUT_TOKENS = 64  # more than the last word of a beginning can have more than in its whole text


@dataclass(frozen=True)
class TokenizedText:
    """A sequence of tokens and the text they stand for; `ids` is what the model reads.

    Tokens and words are joined with their characters when first asked for: a text that is too long never is.
    """

    text: str
    ids: Sequence[int]
    join: Callable[[], Alignment]
    special: frozenset[int] = frozenset()  # indices of special tokens
    text_pair: str | None = None
    second_token: int | None = (
        None  # of a pair: where the second text begins, in tokens; in words, `second_word`
    )
    has_offsets: bool = True  # False where the tokens were given as ids
    whole: bool = True  # False where only the beginning was tokenised, which was too long already

    @functools.cached_property
    def _alignment(self) -> Alignment:
        return self.join()

    @property
    def tokens(self) -> Sequence[Token]:
        """Each token with clean text, code-point offsets and word."""
        return self._alignment.tokens

    @property
    def words(self) -> Sequence[Word]:
        """The words that the tokens form."""
        return self._alignment.words

    @property
    def second_word(self) -> int:
        """Of a pair: the first word of the second text."""
        if self.second_token is None or self.second_token >= len(self.tokens):
            return len(self.words)
        return self.tokens[self.second_token].word

    def __len__(self) -> int:
        return len(self.ids)


class ChatTemplateError(ValueError):
    """The model has no chat template, or it does not take these messages."""


class TextTokenizer:
    """A tokenizer for which `<|im_end|>` in a text is ten ordinary characters, unless it is asked to parse it."""

    def __init__(self, tokenizer_json: str, chat_template: str | None = None) -> None:
        self._parsing = Tokenizer.from_str(tokenizer_json)
        self._special = {
            token_id: token.content for token_id, token in self._parsing.get_added_tokens_decoder().items()
        }
        # Without its added tokens a tokenizer cannot find any in a text: neither special ones nor <tool_call>,
        # which `encode_special_tokens` would still let through. Both share the vocabulary, which takes long to read.
        self._literal = Tokenizer(self._parsing.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            setattr(self._literal, part, getattr(self._parsing, part))
        self._chat_template = chat_template

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens that the tokenizer has beside its vocabulary."""
        return frozenset(self._special)

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Read `tokenizer.json`, and the chat template where the folder has one."""
        template = None
        if (folder / "chat_template.jinja").is_file():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        elif (folder / "tokenizer_config.json").is_file():
            configuration = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
            found = configuration.get("chat_template")
            template = found if isinstance(found, str) else None
        return cls((folder / "tokenizer.json").read_text(encoding="utf-8"), template)

    def tokenize(
        self, text: str, *, parse_special: bool = False, at_most: int | None = None
    ) -> TokenizedText:
        """The tokens of a text.

        Of a text with clearly more than `at_most` tokens, only the beginning is tokenised: a megabyte takes seconds.
        """
        tokenizer = self._parsing if parse_special else self._literal
        if at_most is not None and len(text) > CHARACTERS_A_TOKEN * at_most:
            beginning = tokenizer.encode(text[: CHARACTERS_A_TOKEN * at_most], add_special_tokens=False)
            if len(beginning) > at_most + CUT_TOKENS:
                return TokenizedText(text, beginning.ids, lambda: align(text, [], [], []), whole=False)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        special = (
            frozenset(i for i, one in enumerate(ids) if one in self._special)
            if parse_special
            else frozenset()
        )
        join = functools.partial(align, text, ids, encoding.offsets, encoding.tokens, special=special)
        return TokenizedText(text, ids, join, special)

    def tokenize_pair(
        self, text: str, text_pair: str, *, parse_special: bool = False, at_most: int | None = None
    ) -> TokenizedText:
        """Both texts' tokens in one sequence; offsets are within each token's own text."""
        first, second = (
            self.tokenize(one, parse_special=parse_special, at_most=at_most) for one in (text, text_pair)
        )
        size = len(first)

        def join() -> Alignment:
            words = len(first.words)
            return Alignment(
                (
                    *first.tokens,
                    *(replace(t, index=t.index + size, word=t.word + words) for t in second.tokens),
                ),
                (
                    *first.words,
                    *(
                        replace(w, index=w.index + words, tokens=tuple(token + size for token in w.tokens))
                        for w in second.words
                    ),
                ),
            )

        special = first.special | {index + size for index in second.special}
        whole = first.whole and second.whole
        return TokenizedText(text, [*first.ids, *second.ids], join, special, text_pair, size, whole=whole)

    def from_ids(self, ids: Sequence[int]) -> TokenizedText:
        """Tokens given as ids; the text is what their bytes spell, with U+FFFD where they spell no character."""
        pieces = [self._parsing.id_to_token(one) or f"<{one}>" for one in ids]
        parts = [
            self._special[one].encode() if one in self._special else _bytes_of(piece)
            for one, piece in zip(ids, pieces, strict=True)
        ]
        text, offsets = _decode(parts)
        special = frozenset(i for i, one in enumerate(ids) if one in self._special)
        return TokenizedText(
            text, ids, lambda: align(text, ids, offsets, pieces, special=special), special, has_offsets=False
        )

    def from_messages(
        self, messages: Sequence[Mapping[str, str]], *, at_most: int | None = None
    ) -> TokenizedText:
        """Messages through the model's own chat template. Raises ChatTemplateError where that does not work."""
        if self._chat_template is None:
            raise ChatTemplateError("this model has no chat template")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            rendered = environment.from_string(self._chat_template).render(
                messages=[dict(message) for message in messages], add_generation_prompt=False
            )
        except Exception as error:  # a template is a program of the model's, and may fail in any way
            reason = f": {error}" if isinstance(error, TemplateError) else ""
            raise ChatTemplateError(f"the chat template does not take these messages{reason}") from None
        return self.tokenize(rendered, parse_special=True, at_most=at_most)


def _refuse(reason: Any) -> None:
    raise TemplateError(str(reason))


# A byte-level vocabulary writes each byte as one printable character: printable bytes as themselves, the others, in
# order, as the characters from U+0100 on.
_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())
_PRINTABLE = [byte for byte in range(256) if chr(byte) in _ALPHABET]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + place): byte for place, byte in enumerate(sorted(set(range(256)) - set(_PRINTABLE)))
}


def _bytes_of(piece: str) -> bytes:
    if all(character in _BYTE_OF for character in piece):
        return bytes(_BYTE_OF[character] for character in piece)
    return piece.encode()


def _decode(parts: Sequence[bytes]) -> tuple[str, list[tuple[int, int]]]:
    """The text of all parts, and each part's range of characters: a piece of a character covers the whole of it."""
    whole = b"".join(parts)
    text = whole.decode(errors="replace")
    starts: list[int] = []  # of each character, in bytes
    position = 0
    for character in text:
        starts.append(position)
        # A replacement stands for one or more bytes that spell nothing; find how many by what follows.
        size = len(character.encode())
        if character == "\ufffd" and not whole.startswith("\ufffd".encode(), position):
            size = _undecodable(whole, position)
        position += size
    index_at = {}
    for index, start in enumerate(starts):
        stop = starts[index + 1] if index + 1 < len(starts) else len(whole)
        index_at.update(dict.fromkeys(range(start, stop), index))
    offsets, position = [], 0
    for part in parts:
        last = position + len(part) - 1
        offsets.append((index_at[position], index_at[last] + 1) if part else (len(text), len(text)))
        position += len(part)
    return text, offsets


def _undecodable(whole: bytes, position: int) -> int:
    """How many bytes from here Python's decoder replaces by one U+FFFD."""
    try:
        whole[position : position + 4].decode()  # no character is longer
    except UnicodeDecodeError as error:
        return max(1, error.end - error.start)
    return 1
