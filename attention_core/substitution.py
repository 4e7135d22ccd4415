"""Which noun does the model itself expect in the pronoun's place?

Each candidate is written where the pronoun stands, and the candidate after which the rest of the text is most
likely is predicted. Attention says where a head looks; this says what the whole model makes of the sentence, words
after the pronoun included. The cue that lies in the pronoun itself (gender, number) is lost: it is written over.

Source: Trinh & Le 2018, "A Simple Method for Commonsense Reasoning", partial scoring.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attention_core.capture import MAX_PADDED_TOKENS, AttentionReader, batches, check_indices
from attention_core.coreference import TIE
from attention_core.errors import ShapeError, UnsupportedModelError
from attention_core.spans import SpanError

NOISE = 1e-4  # nats, in float32: batch shape, threads and rounding were seen to move a margin by up to 5e-5
BLOCK_LOGITS = 1 << 23  # held at once: 32 MiB in float32, and as much again while they are summed


# --- texts --------------------------------------------------------------------------------------------------

_ARTICLE = re.compile(r"(?:a|an|the)(?=\s)", re.IGNORECASE)
_PLURAL_POSSESSIVES = frozenset({"our", "ours", "their", "theirs"})
_POSSESSIVES = _PLURAL_POSSESSIVES | {"my", "mine", "your", "yours", "his", "hers", "its", "whose"}
# After "her", none of these begins the rest of a noun phrase: it is "her" as in "saw her".
_AFTER_OBJECT = frozenset(
    re.findall(
        r"\w+",
        """
        a an the this that these those some any my your his its our their who whom whose which what how why
        i you he she it we they me him us them is was are were be been has had have does did do would could should must
        and but or nor so because although though if unless when whenever where while until since whether than as not
        about above across after against along among around at before behind below beneath beside between beyond by
        despite during except for from in into near of off on onto out over through throughout to toward towards under
        up upon with within without again away here there too also soon later today yesterday tomorrow
        """,
    )
)


@dataclass(frozen=True, slots=True)
class Substituted:
    """A text with a candidate in the pronoun's place.

    text[:continuation] ends with the candidate; text[continuation:] is what stood after the pronoun, and is the same
    for every candidate. It is empty where nothing follows the pronoun: then there is nothing to compare.
    """

    text: str
    continuation: int

    @property
    def before(self) -> str:
        """Up to the candidate's end; never empty."""
        return self.text[: self.continuation]

    @property
    def after(self) -> str:
        """What stood after the pronoun."""
        return self.text[self.continuation :]


def substitute(text: str, start: int, end: int, candidate: str) -> Substituted:
    """Write a candidate, as it stands in the text, in the place of the pronoun text[start:end].

    - Where the pronoun is capitalised (other than "I"), a sentence begins, and so does the candidate's first letter.
    - Elsewhere a leading article ("The cat") becomes lower-case. Nothing is added: "cat" stays "cat".
    - A possessive pronoun gives 's ("his soup", "the cook's soup"); of several owners (our, their) a candidate that
      ends in s takes the apostrophe alone ("their food", "the waiters' food").
    - "her" is the object ("saw her") before the end, punctuation and words such as "on", "and", "the", "was", which
      begin no noun phrase after "her"; before all others it is possessive ("her hat"). This misreads "drove her home"
      and "made her cry", with every candidate alike.

    The rules are English; in other languages the candidate simply takes the pronoun's place.

    Raises SpanError (span_out_of_range, empty_span) for a pronoun outside the text, an empty one, an empty candidate.
    """
    if not 0 <= start <= end <= len(text):
        raise SpanError("span_out_of_range", f"{start}..{end} is outside the text of {len(text)} code points")
    if start == end or not candidate:
        raise SpanError("empty_span", "the pronoun or the candidate holds no character")
    pronoun, after = text[start:end], text[end:]
    if pronoun[0].isupper() and pronoun != "I":
        candidate = candidate[0].upper() + candidate[1:]
    elif article := _ARTICLE.match(candidate):
        candidate = article[0].lower() + candidate[article.end() :]
    before = text[:start] + candidate + _possessive_ending(pronoun.lower(), candidate, after)
    return Substituted(before + after, len(before))


def _possessive_ending(pronoun: str, candidate: str, after: str) -> str:
    if pronoun == "her":
        following = re.match(r"\s+([\w'’-]+)", after)
        possessive = following is not None and following[1].lower() not in _AFTER_OBJECT
    else:
        possessive = pronoun in _POSSESSIVES
    if not possessive:
        return ""
    return "'" if pronoun in _PLURAL_POSSESSIVES and candidate.endswith("s") else "'s"


# --- log-probabilities --------------------------------------------------------------------------------------


def next_token_log_probabilities(
    hidden: Tensor,
    output_matrix: Tensor,
    next_ids: Tensor,
    *,
    before_block: Callable[[], None] | None = None,
    block_logits: int = BLOCK_LOGITS,
) -> Tensor:
    """The log-probability of each given token, by the state of the token before it.

        log P(i) = w_i · h - log sum_v exp(w_v · h)

    where hidden is h [position, hidden] after the final norm, output_matrix is w [vocabulary, hidden] and next_ids
    is i [position]; the result is [position], in float64. Unit: nats.

    The vocabulary comes in blocks, so that no more than `block_logits` logits, or entries of the matrix in another
    dtype or on another device, are held at once; `before_block` is called before each and may raise to stop. Logits
    are float32 (float64 for a float64 model); the blocks' sums are joined in float64.

    Raises ShapeError when sizes do not fit, OutOfRangeError for an id outside the vocabulary. Differs from
    `log_softmax` of all logits in never holding them.
    """
    if hidden.ndim != 2 or output_matrix.ndim != 2 or hidden.shape[1] != output_matrix.shape[1]:
        expected = "[position, hidden] and [vocabulary, hidden]"
        raise ShapeError(
            "hidden and output_matrix", expected=expected, got=(hidden.shape, output_matrix.shape)
        )
    if next_ids.shape != hidden.shape[:1]:
        raise ShapeError("next_ids [position]", expected=tuple(hidden.shape[:1]), got=tuple(next_ids.shape))
    positions, vocabulary = len(hidden), len(output_matrix)
    check_indices("next_ids", next_ids.tolist(), vocabulary)
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    total = torch.full((positions,), float("-inf"), dtype=torch.float64, device=hidden.device)
    own = torch.zeros_like(total)
    step = max(1, block_logits // max(positions, hidden.shape[1]))
    for start in range(0, vocabulary, step):
        if before_block is not None:
            before_block()
        block = output_matrix[start : start + step].to(hidden)  # [entry, hidden]
        logits = hidden @ block.T  # [position, entry]
        total = torch.logaddexp(total, logits.logsumexp(-1).double())
        here = ((next_ids >= start) & (next_ids < start + step)).nonzero()[:, 0]
        own[here] = logits[here, next_ids[here] - start].double()
    return own - total


def continuation_log_probabilities(
    reader: AttentionReader,
    output_matrix: Tensor,
    sequences: Sequence[Sequence[int]],
    firsts: Sequence[int],
    *,
    before_layer: Callable[[int], None] | None = None,
    max_padded_tokens: int = MAX_PADDED_TOKENS,
    block_logits: int = BLOCK_LOGITS,
) -> list[float]:
    """How likely each sequence's end is, given its beginning.

        score(s) = sum over t >= first of log P(s_t | s_0 .. s_t-1)

    Unit: nats. No token is put before a sequence. Tokenise what stands before the boundary and what stands after it
    one by one and join the ids: then the tokens that count are the same for every candidate. (Tokenised as a whole, a
    token may straddle the boundary, in scripts without spaces and between punctuation marks, and what is summed would
    differ; after an English word nothing changes.) The sums are compared as they are, not divided by a length.

    Texts run in right-padded batches as in `AttentionReader.read`; only the states before tokens that count meet the
    output matrix, in blocks as in `next_token_log_probabilities`.

    output_matrix   [vocabulary, hidden], the model's own; the embedding only where the two are tied
    sequences       token ids per text
    firsts          per text, the first token that counts: at least 1, and below the text's length
    before_layer    called with the layer's index before each layer, and with the number of layers before each block
                    of the output matrix; may raise to stop the run

    Raises UnsupportedModelError in training mode, ShapeError for a `firsts` that does not fit, OutOfRangeError for an
    id outside the vocabulary. Source: Trinh & Le 2018, section 3.
    """
    if reader.backbone.training:
        raise UnsupportedModelError("the model is in training mode; call model.eval() first")
    _validate(reader, sequences, firsts)

    def before_block() -> None:
        if before_layer is not None:
            before_layer(reader.layers)

    sums = [0.0] * len(sequences)
    lengths = [len(ids) for ids in sequences]
    for texts in batches(lengths, max_padded_tokens):
        rows = [torch.as_tensor(sequences[text]) for text in texts]
        ids = pad_sequence(rows, batch_first=True).to(reader.backbone.device)  # [text, token]
        with torch.inference_mode():
            states = reader.backbone(
                input_ids=ids, use_cache=False, capture=_Watch(before_layer)
            ).last_hidden_state  # [text, token, hidden], after the final norm
            spans = [(place, firsts[text], lengths[text]) for place, text in enumerate(texts)]
            found = next_token_log_probabilities(
                torch.cat([states[place, first - 1 : end - 1] for place, first, end in spans]),
                output_matrix,
                torch.cat([ids[place, first:end] for place, first, end in spans]),
                before_block=before_block,
                block_logits=block_logits,
            )
        for text, part in zip(texts, found.split([end - first for _, first, end in spans]), strict=True):
            sums[text] = part.sum().item()
    return sums


def _validate(reader: AttentionReader, sequences: Sequence[Sequence[int]], firsts: Sequence[int]) -> None:
    if len(firsts) != len(sequences):
        raise ShapeError("firsts", expected=f"one per text ({len(sequences)})", got=len(firsts))
    for text, (ids, first) in enumerate(zip(sequences, firsts, strict=True)):
        if not 1 <= first < len(ids):
            expected = f"from 1 to below the text's {len(ids)} tokens"
            raise ShapeError(f"firsts[{text}]", expected=expected, got=first)
        check_indices(f"sequences[{text}], token id", ids, reader.vocabulary)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Goes with the forward call as the keyword `capture`: reads no attention, and may stop the run at any layer."""

    before_layer: Callable[[int], None] | None

    def observe(self, layer: int, *_: object) -> None:
        """Nothing is wanted."""
        if self.before_layer is not None:
            self.before_layer(layer)


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Substitution:
    """Which candidate makes the rest of the text likeliest; see `choose`.

    `scores` are log-probabilities in nats, one per candidate. `predicted` is None on a tie. `margin` is None with
    fewer than two candidates. `correct` is None without a gold answer. With `no_continuation` nothing follows the
    pronoun: every score is None, and so is `predicted`.
    """

    scores: tuple[float | None, ...]
    predicted: int | None
    tie: bool
    margin: float | None
    within_noise: bool
    correct: bool | None
    no_continuation: bool


def choose(scores: Sequence[float | None], *, gold: int | None = None) -> Substitution:
    """Predict the candidate with the highest score.

        margin = best score - second-best score

    `scores` has one log-probability per candidate; all are None where nothing follows the pronoun. A tie is a margin
    of at most 1e-9; `within_noise` marks a margin below 1e-4 nats, which another batch shape or machine may turn.
    A tie, and a gold answer without a prediction, count as wrong.

    Raises ShapeError when there is no score, or when some scores are None and others not.
    """
    known = [(score, index) for index, score in enumerate(scores) if score is not None]
    if not scores or 0 < len(known) < len(scores):
        raise ShapeError("scores", expected="a number per candidate, or None for each", got=list(scores))
    ranked = sorted(known, key=lambda pair: -pair[0])
    margin = ranked[0][0] - ranked[1][0] if len(ranked) > 1 else None
    tie = margin is not None and margin <= TIE
    predicted = ranked[0][1] if ranked and not tie else None
    return Substitution(
        scores=tuple(scores),
        predicted=predicted,
        tie=tie,
        margin=margin,
        within_noise=margin is not None and margin < NOISE,
        correct=None if gold is None else predicted == gold,
        no_continuation=not known,
    )
