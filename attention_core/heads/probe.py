"""The repeat probe: random tokens, repeated, on which heads that look for repeats show."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from numpy.random import PCG64

from attention_core._checks import positive_int
from attention_core.errors import ShapeError
from attention_core.heads.pooling import PooledHead
from attention_core.heads.results import HeadResult
from attention_core.heads.rules import SCORES, ScoreRule

# What the probe is asked. In [r, r] with distinct ids, the rows of the second half are the only ones with targets, and
# have one each: the same id, L back, and the id after it, L - 1 back.
PROBE_RULES: Mapping[str, ScoreRule] = MappingProxyType(
    {name: SCORES[name] for name in ("duplicate_token", "induction")}
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Sequences of token ids [r, r], and the SHA-256 of them all.

    Hashed are the ids as decimal numbers, in ASCII: a space between two, a newline between two sequences.
    """

    sequences: tuple[tuple[int, ...], ...]
    sha256: str


def repeat_probe(
    vocabulary: int,
    *,
    draws: int = 10,
    seed: int = 0,
    length: int = 50,
    low: int = 100,
    high: int = 20_000,
    excluded: Collection[int] = (),
) -> Probe:
    """Random tokens, repeated, on which a head that copies or finds repeats shows whatever the language.

        sequence = [r_0 .. r_(L-1), r_0 .. r_(L-1)]        no prefix

    where r are L = `length` distinct ids, each drawn evenly from low .. min(high, vocabulary) - 1 without the
    `excluded` (special tokens). Read each with `HeadScorer(text_facts(sequence), heads, rules=PROBE_RULES)` and `pool`
    the results. The baseline of both scores is (H_2L - H_L)/L, 0.01376 for 50 ids.

    The same seed gives the same ids on any machine: one PCG64(seed) gives raw 64-bit numbers, which do not depend on
    numpy's version; each number modulo the count of ids to draw from is the place of an id among these in ascending
    order, and one that is in the draw already is passed over. Raises ShapeError where fewer than `length` ids are left,
    for draws below 1, a seed below 0, and a length below 3. Source: Olsson et al. 2022, "In-context Learning and
    Induction Heads". Differs from theirs in leaving out the prefix token, as Qwen2.5 has none.
    """
    for what, value, at_least in (("draws", draws, 1), ("seed", seed, 0), ("length", length, 3)):
        positive_int(what, value, at_least=at_least)
    left_out = set(excluded)
    ids = [one for one in range(low, min(high, vocabulary)) if one not in left_out]
    if len(ids) < length:
        raise ShapeError("ids to draw from", expected=f"at least {length}", got=len(ids))
    bits = PCG64(seed)
    sequences = tuple(_draw(bits, ids, length) * 2 for _ in range(draws))
    written = "\n".join(" ".join(map(str, sequence)) for sequence in sequences)
    return Probe(sequences, hashlib.sha256(written.encode("ascii")).hexdigest())


def _draw(bits: PCG64, ids: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` distinct ids, in the order in which they come."""
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        drawn[ids[bits.random_raw() % len(ids)]] = None  # 2**64 numbers on 20,000 ids: even enough
    return tuple(drawn)


def with_probe(heads: Sequence[HeadResult], probe: Sequence[PooledHead]) -> tuple[PooledHead, ...]:
    """The results of a text or of several, with the probe's scores in place of those of the same names.

    `texts_agreeing` of these labels counts draws. Raises ShapeError when the heads are not the same.
    """
    if [(one.layer, one.head) for one in heads] != [(one.layer, one.head) for one in probe]:
        raise ShapeError("heads of the probe", expected="the heads of the text", got="others")
    joined = []
    for head, probed in zip(heads, probe, strict=True):
        scores = {**head.scores, **probed.scores}
        agreeing = head.texts_agreeing if isinstance(head, PooledHead) else {}
        agreeing = {**agreeing, **probed.texts_agreeing}
        joined.append(PooledHead(head.layer, head.head, scores, head.entropy, agreeing))
    return tuple(joined)
