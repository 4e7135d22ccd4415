"""Sentences with a pronoun, two nouns and the right one, as many as wanted, as JSON Lines.

    python -m benchmarks.sentences 10000 [--seed 0] > sentences.jsonl

The same count and seed give the same bytes on any machine. A trait says which of the nouns is meant: an animal can be
tired, a thing can be broken. Some sentences begin with a clause or two more, so that lengths differ (8 to 45 tokens);
no two are the same, and those with the same animal and thing are of one group.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator

ANIMALS = [
    *("cat", "dog", "fox", "horse", "goat", "sheep", "monkey", "rabbit", "donkey", "tiger"),
    *("mouse", "duck", "crow", "wolf", "bear"),
]
THINGS = [
    *("mat", "fence", "table", "wagon", "lamp", "bottle", "blanket", "ladder", "window", "barrel"),
    *("carpet", "bench", "basket", "door", "bucket"),
]
VERBS = [
    *("sat beside", "slept under", "ran around", "jumped over"),
    *("looked at", "pushed against", "walked past", "hid behind"),
]
ALIVE = ["tired", "hungry", "afraid", "curious", "thirsty", "lonely", "impatient", "excited"]
LIFELESS = ["broken", "wooden", "wet", "dusty", "heavy", "painted", "new", "rusty"]
HOW = ["quietly", "slowly", "suddenly", "carefully", "happily", "early", "late", "again"]
BEFORE = [
    "after the long and noisy party was over",
    "while it was still raining in the village",
    "on the first morning of spring",
    "nobody in the house noticed that, late in the evening",
    "as the old farmer told us many years ago",
    "when the children had gone to school",
]


def sentences(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Items as `/v1/coreference/evaluate` takes them."""
    random_ = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        animal, thing = random_.choice(ANIMALS), random_.choice(THINGS)
        alive = random_.random() < 0.5
        first = random_.random() < 0.5  # whether the animal comes first
        trait = random_.choice(ALIVE if alive else LIFELESS)
        verb, how = random_.choice(VERBS), random_.choice(HOW)
        if first:
            told = f"the {animal} {verb} the {thing} {how}"
        else:
            told = f"the {thing} stood {how} in the way of the {animal}"
        clauses = random_.sample(BEFORE, random_.choice((0, 0, 0, 1, 1, 2)))
        text = ", and ".join(clauses) + ", " * bool(clauses) + f"{told} because it was {trait}."
        text = text[0].upper() + text[1:]
        if text in seen:
            continue
        seen.add(text)
        start = text.rindex(" it was ") + 1
        yield {
            "id": str(len(seen)),
            "text": text,
            "pronoun": {"start": start, "end": start + 2},
            "candidates": [{"text": animal}, {"text": thing}],
            "gold": 0 if alive else 1,
            "group": f"{animal} and {thing}",
        }


def main() -> int:
    """Write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for item in sentences(options.count, options.seed):
        sys.stdout.write(json.dumps(item) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
