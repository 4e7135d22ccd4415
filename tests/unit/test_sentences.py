"""The packaged sentences are what the notes say of them; offsets are code points. No model is involved."""

import json
from collections import Counter
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import pytest

from attention_core.spans import whole_word_occurrences

DATA = Path(__file__).parents[2] / "service" / "data"
MALE, FEMALE = {"he", "him", "his"}, {"she", "her"}
SWAPPED = {("he", "she"), ("him", "her"), ("his", "her")}

Item = dict[str, Any]


def items_of(name: str) -> list[Item]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def pairs_of(name: str) -> list[tuple[Item, Item]]:
    groups = [list(items) for _, items in groupby(items_of(name), key=lambda item: item["group"])]
    return [(a, b) for a, b in groups]


def parts(item: Item) -> tuple[str, str, str]:
    """The text before the pronoun, the pronoun, and the text after it."""
    start, end = item["pronoun"]["start"], item["pronoun"]["end"]
    return item["text"][:start], item["text"][start:end], item["text"][end:]


def shared(a: list[str], b: list[str]) -> int:
    """How many leading words are the same."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


both = pytest.mark.parametrize("name", ["swap.jsonl", "twins.jsonl"])


@both
def test_there_are_24_pairs_and_each_item_is_named_after_its_pair(name: str) -> None:
    items, pairs = items_of(name), pairs_of(name)
    assert (len(items), len(pairs), len({a["group"] for a, _ in pairs})) == (48, 24, 24)
    for a, b in pairs:
        assert (a["id"], b["id"]) == (a["group"] + "-a", b["group"] + "-b")
    assert {frozenset(item) for item in items} == {
        frozenset({"id", "text", "pronoun", "candidates", "gold", "group"})
    }


@both
def test_each_span_is_where_its_text_stands_and_stands_once_as_a_whole_word(name: str) -> None:
    for item in items_of(name):
        for span in (item["pronoun"], *item["candidates"]):
            found = whole_word_occurrences(item["text"], span["text"])
            assert found == ((span["start"], span["end"]),), (item["id"], span)


@both
def test_two_candidates_stand_in_order_before_the_pronoun_and_none_is_the_first_word(name: str) -> None:
    for item in items_of(name):
        first, second = item["candidates"]
        first_word_ends = item["text"].index(" ")
        assert first_word_ends < first["start"] < first["end"] < second["start"], item["id"]
        assert second["end"] < item["pronoun"]["start"], item["id"]


@both
def test_each_pair_has_one_gold_of_either_kind_and_neither_kind_is_always_asked_first(name: str) -> None:
    assert Counter(item["gold"] for item in items_of(name)) == {0: 24, 1: 24}
    assert Counter((a["gold"], b["gold"]) for a, b in pairs_of(name)) == {(0, 1): 12, (1, 0): 12}


def test_the_texts_of_a_swap_differ_in_the_gender_of_the_pronoun_alone() -> None:
    for a, b in pairs_of("swap.jsonl"):
        (before, one, after), (before_b, other, after_b) = parts(a), parts(b)
        assert (before, after, a["candidates"]) == (before_b, after_b, b["candidates"]), a["group"]
        assert (one, other) in SWAPPED or (other, one) in SWAPPED, a["group"]


def test_a_swap_has_no_other_pronoun_with_a_gender() -> None:
    for item in items_of("swap.jsonl"):
        words = item["text"].lower().replace(",", " ").replace(".", " ").split()
        gendered = [word for word in words if word in MALE | FEMALE | {"hers", "himself", "herself"}]
        assert gendered == [item["pronoun"]["text"]], item["id"]


def test_the_man_comes_first_in_half_of_the_swaps() -> None:
    """Whom "he" means is the man; the other item of a pair must agree on who that is."""
    man: dict[str, set[int]] = {}
    for item in items_of("swap.jsonl"):
        index = item["gold"] if item["pronoun"]["text"] in MALE else 1 - item["gold"]
        man.setdefault(item["group"], set()).add(index)
    assert Counter(next(iter(indices)) for indices in man.values() if len(indices) == 1) == {0: 12, 1: 12}


def test_twins_are_one_text_up_to_the_pronouns_end_and_then_differ_in_one_short_phrase() -> None:
    for a, b in pairs_of("twins.jsonl"):
        (before, pronoun, after), (before_b, pronoun_b, after_b) = parts(a), parts(b)
        assert (before, pronoun, a["candidates"]) == (before_b, pronoun_b, b["candidates"]), a["group"]
        one, other = after.rstrip(".").split(), after_b.rstrip(".").split()
        start = shared(one, other)
        end = shared(one[start:][::-1], other[start:][::-1])
        changed = [len(words) - start - end for words in (one, other)]
        assert min(changed) >= 1, a["group"]
        assert max(changed) <= 5, a["group"]


def test_no_sentence_appears_twice_in_all_four_files() -> None:
    names = ("easy.jsonl", "control.jsonl", "swap.jsonl", "twins.jsonl")
    items = [item for name in names for item in items_of(name)]
    for field in ("text", "id"):
        counts = Counter(item[field].casefold() for item in items)
        assert [value for value, n in counts.items() if n > 1] == []
        assert len(counts) == 6 + 17 + 48 + 48


@both
def test_no_two_pairs_share_a_frame(name: str) -> None:
    """Not one sentence with its nouns exchanged: what stands between the candidates and the pronoun differs."""
    frames: Counter[tuple[str, str]] = Counter()
    for a, _ in pairs_of(name):
        (first, second), (before, _, _) = a["candidates"], parts(a)
        frames[before[first["end"] : second["start"]], before[second["end"] :]] += 1
    assert max(frames.values()) == 1
