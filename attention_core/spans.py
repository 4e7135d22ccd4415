"""Characters, tokens and words: which tokens does a stretch of text belong to?

All positions are code points of the text as it was sent, ends exclusive, as in `text[start:end]`. Tokens are
matched by the characters they cover and by nothing else: a word's stand-alone ids, or a tokenizer's own
word numbers, disagree with the running text too often.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

_SHOWN = 10  # occurrences that an error message lists; the error's attribute holds all


@dataclass(frozen=True, slots=True)
class Token:
    """One token and the characters it covers.

    `text` is the request's own text[start:end], so a token that is a piece of a character shows the whole
    character; `raw` is the vocabulary's piece; `word` indexes the words. Surrounding whitespace is stripped
    from the range unless the token is nothing else.
    """

    index: int
    id: int
    text: str
    raw: str
    start: int
    end: int
    word: int


@dataclass(frozen=True, slots=True)
class Word:
    """A run of text with the indices of the tokens that begin in it; at least one."""

    index: int
    text: str
    start: int
    end: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alignment:
    """The tokens of a text and the words they form. Every token belongs to exactly one word."""

    tokens: tuple[Token, ...]
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A resolved stretch of text; `exact` is false when one of its tokens reaches outside it, as in "(it"."""

    start: int
    end: int
    text: str
    token_indices: tuple[int, ...]
    exact: bool


class SpanError(ValueError):
    """A span cannot be resolved.

    `code` is one of ambiguous_span, span_not_found, span_text_mismatch, span_out_of_range, empty_span,
    span_covers_no_token, missing_field and incompatible_options. `occurrences` lists where the text stands as
    a whole word, `found` is what stands at the offsets; each is None where the code has no use for it.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        occurrences: tuple[tuple[int, int], ...] | None = None,
        found: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.occurrences, self.found = code, occurrences, found


# --- tokens and words ---------------------------------------------------------------------------------------


def align(
    text: str,
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    raw: Sequence[str],
    *,
    special: Collection[int] = (),
) -> Alignment:
    """Join a tokenizer's ids, offsets and vocabulary pieces with the text's words.

    `offsets` are the tokenizer's own: code points, in token order, with the space that a token may begin with
    and the newlines it may end in. They may overlap, because one character can be several tokens, and they
    may leave characters out, because a normaliser composes characters.

    A word is a run of letters, marks, numbers and underscores, joined through single inner apostrophes and
    hyphens; or a run of other characters that are not spaces. Marks and zero-width joiners continue the run
    before them. A token belongs to the word that holds its first character that is not a space; a token of
    spaces only is a word of its own, and so is each of the `special` tokens, whatever stands beside it. A run
    in which no token begins is no word: nothing could be read from it.

    Raises ValueError when the three sequences differ in length.
    """
    ranges = [_strip(text, start, end) for start, end in offsets]
    run_at = {i: run for run in _runs_around(text, [ranges[i] for i in special]) for i in range(*run)}
    members: dict[tuple[int, int] | int, list[int]] = {}  # by the run's range, or by the blank token's index
    for i, (start, end) in enumerate(ranges):
        members.setdefault(i if _is_blank(text, start, end) else run_at[start], []).append(i)

    words = tuple(
        Word(w, text[start:end], start, end, tuple(tokens))
        for w, (key, tokens) in enumerate(members.items())
        for start, end in [ranges[key] if isinstance(key, int) else key]
    )
    word_of = {i: word.index for word in words for i in word.tokens}
    tokens = tuple(
        Token(i, id_, text[start:end], piece, start, end, word_of[i])
        for i, (id_, (start, end), piece) in enumerate(zip(ids, ranges, raw, strict=True))
    )
    return Alignment(tokens, words)


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    """The range without whitespace at its ends; unchanged where it holds nothing else."""
    piece = text[start:end]
    if not piece.strip():
        return start, end
    return end - len(piece.lstrip()), start + len(piece.rstrip())


def _is_blank(text: str, start: int, end: int) -> bool:
    return not text[start:end].strip()


_APOSTROPHES_AND_HYPHENS = "'\u2019-\u2010\u2011"
_JOINERS = "\u200c\u200d"  # zero-width: inside Persian words and between joined emoji

# `re` knows no Unicode categories. So each character becomes one letter that names its class, and the runs
# are found in that string: w letter, number or underscore; m mark; z zero-width joiner; j apostrophe or
# hyphen; o other; and a space for whitespace.
_RUN = re.compile(r"[wm][wmz]*(?:jw[wmz]*)*|[jzo][jzom]*")


def _runs(text: str) -> Iterator[tuple[int, int]]:
    classes = text.translate({ord(character): _class_of(character) for character in set(text)})
    return (match.span() for match in _RUN.finditer(classes))


def _runs_around(text: str, whole: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The runs of a text, in which each range of `whole` is a run of its own and cuts those around it."""
    position = 0
    for start, end in (*sorted(whole), (len(text), len(text))):
        yield from ((position + a, position + b) for a, b in _runs(text[position:start]))
        yield start, end
        position = end


def _class_of(character: str) -> str:
    if character.isspace():
        return " "
    if character in _JOINERS:
        return "z"
    if character in _APOSTROPHES_AND_HYPHENS:
        return "j"
    if character == "_":
        return "w"
    return {"L": "w", "N": "w", "M": "m"}.get(unicodedata.category(character)[0], "o")


# --- spans --------------------------------------------------------------------------------------------------


def resolve_span(
    text: str,
    tokens: Sequence[Token],
    *,
    start: int | None = None,
    end: int | None = None,
    span_text: str | None = None,
    occurrence: int | None = None,
) -> Span:
    """Find the tokens of a span that is given in one of three forms.

    - `start` and `end`; with `span_text` the text there is verified;
    - `span_text`, where it occurs exactly once as a whole word;
    - `span_text` and `occurrence`, counted from 0, where it occurs more often.

    A token belongs to the span when its characters, stripped of whitespace, overlap the span; tokens of
    whitespace only never do. Text is compared code point by code point: case matters, and so does the way an
    accent is spelled.

    Raises SpanError with one of the codes listed there.
    """
    if start is None and end is None:
        start, end = _find(text, span_text, occurrence)
    elif start is None or end is None:
        given, missing = ("end", "start") if start is None else ("start", "end")
        raise SpanError("missing_field", f"a span with {given} needs {missing} too")
    elif occurrence is not None:
        raise SpanError(
            "incompatible_options", "occurrence counts matches of a text; start and end already say where"
        )
    else:
        _check_offsets(text, start, end, span_text)

    matched = [t for t in tokens if t.start < end and start < t.end and t.text.strip()]
    if not matched:
        raise SpanError(
            "span_covers_no_token",
            f"no token has a character in {start}..{end}; "
            "whitespace and accents that were composed belong to none",
        )
    exact = all(start <= t.start and t.end <= end for t in matched)
    return Span(start, end, text[start:end], tuple(t.index for t in matched), exact)


def whole_word_occurrences(text: str, span_text: str) -> tuple[tuple[int, int], ...]:
    """Every range where `span_text` stands as a whole word, in text order.

    Whole word: where the span begins or ends with a letter, mark, number or underscore, the character beside
    that edge is not another such. A hyphen and an apostrophe are therefore word boundaries here.
    """
    return tuple(
        (start, end)
        for start in _positions(text, span_text)
        for end in [start + len(span_text)]
        if not (start > 0 and _in_word(text[start - 1]) and _in_word(text[start]))
        and not (end < len(text) and _in_word(text[end - 1]) and _in_word(text[end]))
    )


def _positions(text: str, span_text: str) -> Iterator[int]:
    at = text.find(span_text) if span_text else -1
    while at >= 0:
        yield at
        at = text.find(span_text, at + 1)


def _in_word(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def _find(text: str, span_text: str | None, occurrence: int | None) -> tuple[int, int]:
    if span_text is None:
        raise SpanError("missing_field", "a span needs either start and end, or a text")
    if not span_text:
        raise SpanError("empty_span", "the span's text is empty; expected at least one character")
    found = whole_word_occurrences(text, span_text)
    name = "the span's text"
    if not found:
        inside = next(_positions(text, span_text), None)
        where = "is not in the text"
        if inside is not None:
            where = f"stands only inside a longer word, first at {inside}..{inside + len(span_text)}"
            where += "; give start and end"
        raise SpanError("span_not_found", f"{name} {where}", occurrences=found)
    if occurrence is None:
        if len(found) > 1:
            raise SpanError(
                "ambiguous_span",
                f"{name} occurs {len(found)} times, at {_list(found)}; give occurrence, or start and end",
                occurrences=found,
            )
        return found[0]
    if not 0 <= occurrence < len(found):
        raise SpanError(
            "span_not_found",
            f"{name} has no occurrence {occurrence}: it occurs {len(found)} time{'s' * (len(found) > 1)}, "
            f"at {_list(found)}, counted from 0",
            occurrences=found,
        )
    return found[occurrence]


def _check_offsets(text: str, start: int, end: int, span_text: str | None) -> None:
    if not (0 <= start <= len(text) and 0 <= end <= len(text)):
        raise SpanError(
            "span_out_of_range",
            f"{start}..{end} is outside the text, whose {len(text)} code points are 0..{len(text)}",
        )
    if start >= end:
        raise SpanError("empty_span", f"{start}..{end} holds no character; end must be greater than start")
    if span_text is not None and span_text != text[start:end]:
        raise SpanError(
            "span_text_mismatch",
            f"the span's text is not what stands at {start}..{end}: {_quote(text[start:end])}",
            found=text[start:end],
        )


def _quote(text: str) -> str:
    """The text in quotation marks, cut where it would swamp the sentence."""
    return f'"{text}"' if len(text) <= 80 else f'"{text[:79]}…"'


def _list(occurrences: tuple[tuple[int, int], ...]) -> str:
    shown = ", ".join(f"{start}..{end}" for start, end in occurrences[:_SHOWN])
    return shown if len(occurrences) <= _SHOWN else f"{shown} and {len(occurrences) - _SHOWN} more"
