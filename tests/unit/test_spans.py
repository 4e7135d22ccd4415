import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_core.spans import Alignment, SpanError, align, resolve_span, whole_word_occurrences

LINES = (Path(__file__).parents[1] / "cases" / "spans.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]
SPANS = [
    pytest.param(case, item["span"], item["expect"], id=f"{case['id']}-{case['kind']}-{n}")
    for case in CASES
    for n, item in enumerate(case["spans"])
]


def aligned(text: str, offsets: list[tuple[int, int]]) -> Alignment:
    return align(text, list(range(len(offsets))), offsets, [text[start:end] for start, end in offsets])


def words_of(text: str) -> list[str]:
    """The words, when every character is a token."""
    return [w.text for w in aligned(text, [(i, i + 1) for i in range(len(text))]).words]


def resolve(case: dict[str, Any], span: dict[str, Any]) -> Any:
    ids, offsets = [t[0] for t in case["tokens"]], [(t[1], t[2]) for t in case["tokens"]]
    tokens = align(case["text"], ids, offsets, ["?"] * len(ids)).tokens
    names = {"text": "span_text"}
    return resolve_span(case["text"], tokens, **{names.get(key, key): value for key, value in span.items()})


def test_all_twenty_texts_are_here() -> None:
    assert len(CASES) == 20


@pytest.mark.parametrize(("case", "span", "expect"), SPANS)
def test_a_span_resolves_to_its_tokens_or_to_its_error(
    case: dict[str, Any], span: dict[str, Any], expect: dict[str, Any]
) -> None:
    if "error" not in expect:
        got = resolve(case, span)
        assert {name: getattr(got, name) for name in ("start", "end", "text", "exact")} == {
            name: expect[name] for name in ("start", "end", "text", "exact")
        }
        assert list(got.token_indices) == expect["token_indices"]
        return
    with pytest.raises(SpanError) as raised:
        resolve(case, span)
    error, message = raised.value, str(raised.value)
    assert error.code == expect["error"]
    if isinstance(expect.get("occurrences"), list):
        assert [list(pair) for pair in error.occurrences or ()] == expect["occurrences"]
        assert all(f"{start}..{end}" in message for start, end in expect["occurrences"])
    elif "occurrences" in expect:
        assert len(error.occurrences or ()) == expect["occurrences"]
        assert f"occurs {expect['occurrences']} times" in message
    if "found" in expect:
        assert error.found == expect["found"]
        assert expect["found"] in message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_offsets_that_are_stripped_already_stay_as_they_are(case: dict[str, Any]) -> None:
    offsets = [(start, end) for _, start, end in case["tokens"]]
    assert [(t.start, t.end) for t in aligned(case["text"], offsets).tokens] == offsets


def test_a_token_loses_the_space_before_it_and_the_newlines_after_it() -> None:
    #       0123456789
    text = "A cat ran.\n\nIt"
    tokens = aligned(text, [(0, 1), (1, 5), (5, 9), (9, 12), (12, 14)]).tokens
    assert [(t.start, t.end, t.text) for t in tokens] == [
        (0, 1, "A"),
        (2, 5, "cat"),
        (6, 9, "ran"),
        (9, 10, "."),
        (12, 14, "It"),
    ]


def test_a_token_of_whitespace_keeps_its_range_and_is_a_word_of_its_own() -> None:
    result = aligned("a \n\u00a0b", [(0, 1), (1, 3), (3, 4), (4, 5)])
    assert [(t.start, t.end) for t in result.tokens] == [(0, 1), (1, 3), (3, 4), (4, 5)]
    assert [(w.text, w.tokens) for w in result.words] == [
        ("a", (0,)),
        (" \n", (1,)),
        ("\u00a0", (2,)),
        ("b", (3,)),
    ]


def test_the_pieces_of_an_emoji_show_the_whole_character_and_share_a_word() -> None:
    result = aligned("A 🦩", [(0, 1), (1, 3), (2, 3), (2, 3)])
    assert [t.text for t in result.tokens] == ["A", "🦩", "🦩", "🦩"]
    assert [w.tokens for w in result.words] == [(0,), (1, 2, 3)]


def test_a_token_keeps_its_id_and_its_vocabulary_piece() -> None:
    token = align("a b", [64, 293], [(0, 1), (1, 3)], ["a", "Ġb"]).tokens[1]
    assert (token.index, token.id, token.raw, token.word) == (1, 293, "Ġb", 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat sat.", ["The", "cat", "sat", "."]),
        ("Roe-Lane isn't Lena’s", ["Roe-Lane", "isn't", "Lena’s"]),
        ("mother-in-law", ["mother-in-law"]),
        ("well--known", ["well", "--", "known"]),
        ("rock-'n'-roll", ["rock", "-'", "n", "'-", "roll"]),
        ("the boys' -5", ["the", "boys", "'", "-", "5"]),
        ("snake_case 3rd x²", ["snake_case", "3rd", "x²"]),
        ('(it) "so"?!', ["(", "it", ")", '"', "so", '"?!']),
        ("Andre\u0301 Rene\u0301e", ["Andre\u0301", "Rene\u0301e"]),  # a mark continues a word
        ("x !\u0301y", ["x", "!\u0301", "y"]),  # and a run of other characters
        ("👩\u200d🚀 👍🏽", ["👩\u200d🚀", "👍🏽"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("王芳遇到李雷。", ["王芳遇到李雷", "。"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("3.5 a.m.", ["3", ".", "5", "a", ".", "m", "."]),
        ("", []),
    ],
)
def test_words_are_the_runs_that_the_definition_names(text: str, words: list[str]) -> None:
    assert [w for w in words_of(text) if not w.isspace()] == words


def test_a_token_joins_the_word_that_holds_its_first_character_that_is_no_space() -> None:
    # "(it" is one token: it begins in the run "(", so no token begins in the run "it", which is then no word.
    result = aligned("\n (it) was", [(0, 1), (1, 5), (5, 6), (6, 10)])
    assert [(w.text, w.start, w.end, w.tokens) for w in result.words] == [
        ("\n", 0, 1, (0,)),
        ("(", 2, 3, (1,)),
        (")", 5, 6, (2,)),
        ("was", 7, 10, (3,)),
    ]


def test_sequences_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 3 is shorter"):
        align("a b", [1, 2], [(0, 1), (1, 3)], ["a"])


@settings(deadline=None)
@given(st.text(max_size=40), st.data())
def test_every_token_belongs_to_one_word_whatever_the_text(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=len(text) + 1)) | {0, len(text)})
    offsets = [(a, b) for a, b in pairwise(cuts) if a < b]
    result = aligned(text, offsets)
    assert [t for w in result.words for t in w.tokens] == list(range(len(offsets)))
    for word in result.words:
        assert text[word.start : word.end] == word.text
        assert word.tokens
        for i in word.tokens:
            token = result.tokens[i]
            assert token.word == word.index
            assert word.start <= token.start < word.end
            assert token.text == text[token.start : token.end]
            assert token.text == token.text.strip() or token.text.isspace()


@settings(deadline=None)
@given(st.text("ab é-'_1\u0301", max_size=30), st.text("ab é-'_1\u0301", min_size=1, max_size=4))
def test_an_occurrence_is_found_where_no_word_character_touches_its_edges(text: str, part: str) -> None:
    def inner(c: str) -> bool:
        return c.isalnum() or c in "_\u0301"

    expected = [
        (i, i + len(part))
        for i in range(len(text))
        if text.startswith(part, i)
        and not (inner(part[0]) and i > 0 and inner(text[i - 1]))
        and not (inner(part[-1]) and i + len(part) < len(text) and inner(text[i + len(part)]))
    ]
    assert list(whole_word_occurrences(text, part)) == expected


@pytest.mark.parametrize(
    ("form", "code", "message"),
    [
        ({}, "missing_field", "either start and end, or a text"),
        ({"occurrence": 0}, "missing_field", "either start and end, or a text"),
        ({"start": 1}, "missing_field", "start needs end"),
        ({"end": 1}, "missing_field", "end needs start"),
        ({"start": 0, "end": 3, "occurrence": 0}, "incompatible_options", "already say where"),
        ({"span_text": ""}, "empty_span", "at least one character"),
        (
            {"span_text": "cat", "occurrence": -1},
            "span_not_found",
            "no occurrence -1: it occurs 1 time, at 4..7",
        ),
        ({"span_text": "ca"}, "span_not_found", "only inside a longer word, first at 4..6"),
        ({"span_text": "dog"}, "span_not_found", "is not in the text"),
        (
            {"span_text": "The", "start": 4, "end": 7},
            "span_text_mismatch",
            'is not what stands at 4..7: "cat"',
        ),
        ({"start": -1, "end": 2}, "span_out_of_range", "-1..2 is outside the text, whose 12 code points"),
        ({"start": 5, "end": 4}, "empty_span", "end must be greater"),
        ({"start": 13, "end": 4}, "span_out_of_range", "13..4 is outside"),
    ],
)
def test_a_span_that_cannot_be_resolved_says_what_was_expected(form: Any, code: str, message: str) -> None:
    tokens = aligned("The cat sat.", [(0, 3), (3, 7), (7, 11), (11, 12)]).tokens
    with pytest.raises(SpanError) as raised:
        resolve_span("The cat sat.", tokens, **form)
    assert raised.value.code == code
    assert message in str(raised.value)


def test_many_occurrences_are_all_kept_but_not_all_printed() -> None:
    text = "la " * 1009
    with pytest.raises(SpanError) as raised:
        resolve_span(text, aligned(text, [(0, len(text))]).tokens, span_text="la")
    assert len(raised.value.occurrences or ()) == 1009
    assert "and 999 more" in str(raised.value)
    assert len(str(raised.value)) < 300


def test_occurrences_may_overlap() -> None:
    assert whole_word_occurrences("la la la", "la la") == ((0, 5), (3, 8))


def test_a_special_token_is_a_word_of_its_own_whatever_stands_beside_it() -> None:
    text = "(<|end|>) a.<|end|>"
    offsets = [(0, 1), (1, 8), (8, 9), (9, 11), (11, 12), (12, 19)]
    raw = ["(", "<|end|>", ")", "Ġa", ".", "<|end|>"]
    aligned = align(text, range(6), offsets, raw, special=[1, 5])
    assert [(word.text, word.tokens) for word in aligned.words] == [
        ("(", (0,)),
        ("<|end|>", (1,)),
        (")", (2,)),
        ("a", (3,)),
        (".", (4,)),
        ("<|end|>", (5,)),
    ]
    literal = align(text, range(6), offsets, raw)
    assert literal.words[0].text == "(<|"
