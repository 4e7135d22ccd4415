"""Which noun does the pronoun attend to?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from attention_core import coreference
from attention_core.coreference import CoreferenceError, HeadAnswer, Note, Question, Reading, ask, notes
from attention_core.substitution import Substitution, choose, substitute
from service.engine import Session
from service.errors import FieldError, InvalidRequestError
from service.jobs.common import all_or_raise, check_elements, resolve, sentence, skipped, tokenize, too_long
from service.schemas.attention import Input
from service.schemas.coreference import CoreferenceRequest, Item, Pairs, ScoringRequest
from service.texts import TokenizedText

ARTICLE_HEADS = [(5, 5)]  # the pronoun head of the article; a number of the 24 x 14 models only
ARTICLE_SHAPE = (24, 14)
RUN_TOKENS = 1024  # of an evaluation, read at once: other requests wait for no more
WHATEVER_THE_METHOD = ("single_candidate", "too_few_items", "one_sided_gold")  # what these notes say holds


@dataclass(frozen=True, slots=True)
class Trial:
    """A text with a candidate in the pronoun's place: its token ids, and the first of what stood after the pronoun."""

    ids: list[int]
    first: int


@dataclass(frozen=True, slots=True)
class Asked:
    """An item that can be scored; with `method: substitution` a trial for each candidate, or none to make."""

    text: TokenizedText
    question: Question
    trials: tuple[Trial, ...] = ()

    @property
    def tokens(self) -> int:
        """How many the model has to read for it."""
        return sum(len(trial.ids) for trial in self.trials) or len(self.text)


def attend(request: CoreferenceRequest, session: Session) -> dict[str, object]:
    """The chosen heads' attention from each item's pronoun to its candidates; only the pronoun's rows are read."""
    substituting = request.method == "substitution"
    heads = {} if substituting else choose_pairs(_pairs(request, session), session)
    chosen = sum(map(len, heads.values()))
    check_elements(
        chosen * sum(len(item.candidates) for _, item in request.inputs),
        session.max_elements,
        f"{chosen} heads for every candidate",
        "fewer heads, candidates or items",
    )
    found = prepare(request.inputs, request, session)
    if request.on_error == "fail":
        all_or_raise(found)
    asked = [one for one in found if isinstance(one, Asked)]
    if substituting:
        results = [_expected(*pair) for pair in zip(asked, expectations(session, asked), strict=True)]
    else:
        results = [_attended(*pair) for pair in zip(asked, _attention(session, asked, heads), strict=True)]
    left = iter(results)
    return {
        "model": session.model.provenance,
        "results": [skipped(one) if isinstance(one, InvalidRequestError) else next(left) for one in found],
    }


def _attention(
    session: Session, asked: Sequence[Asked], heads: Mapping[int, Sequence[int]]
) -> list[list[HeadAnswer]]:
    """The answers of every head, by item."""
    answers: list[list[HeadAnswer]] = [[] for _ in asked]

    def add(_: int, item: int, of_layer: Sequence[HeadAnswer]) -> None:
        answers[item] += of_layer

    if asked:
        read(session, asked, heads, add)
    return answers


def prepare(
    items: Sequence[tuple[str, Item]],
    request: ScoringRequest,
    session: Session,
    *,
    at_most: int | None = None,
) -> list[Asked | InvalidRequestError]:
    """Each item's tokens and resolved spans, or in its place why it cannot be scored.

    Raises `text_too_long` where all together are over the limit, `at_most` or that of a request.
    """
    reading = Reading(**{one.name: getattr(request, one.name) for one in fields(Reading)})
    inputs = [Input(f"{pointer}/text", item.text) for pointer, item in items]
    texts = tokenize(session, inputs, at_most=at_most)
    found = [
        _asked(pointer, item, text, reading, request, session)
        for (pointer, item), text in zip(items, texts, strict=True)
    ]
    total = sum(one.tokens for one in found if isinstance(one, Asked))
    limit = at_most or session.limits.max_tokens_per_request
    if total > limit:
        place = "/items" if items[0][0] else "/candidates"
        detail = f"With each candidate in the pronoun's place the texts have {total} tokens; a request holds {limit}."
        raise InvalidRequestError.at(place, "text_too_long", detail, limit=limit, actual=total)
    return found


def read(
    session: Session,
    asked: Sequence[Asked],
    heads: Mapping[int, Sequence[int]],
    consume: coreference.Consume,
) -> None:
    """`attend` of the core, each distinct text read once; `consume` gets the item's index, not the text's."""
    places: dict[str, list[int]] = {}
    for place, one in enumerate(asked):
        places.setdefault(one.text.text, []).append(place)
    of_text = list(places.values())
    texts = [(asked[items[0]].text.ids, [asked[item].question for item in items]) for items in of_text]
    coreference.attend(
        session.read, texts, heads, lambda text, place, answers: consume(text, of_text[text][place], answers)
    )


def expectations(
    session: Session, asked: Sequence[Asked], *, done: Callable[[int], None] = lambda items: None
) -> list[Substitution]:
    """What the model expects in each pronoun's place, from the trials that `prepare` has written.

    Read in runs, so that other requests get their turn between; `done` is told how many items are. Raises
    `incompatible_options` where the weights hold no output matrix.
    """
    if session.model.output_matrix is None:
        raise InvalidRequestError.at("/method", "incompatible_options", "The weights hold no output matrix.")
    found: list[Substitution] = []
    start = 0
    while start < len(asked):
        end, tokens = start + 1, asked[start].tokens
        while end < len(asked) and tokens + asked[end].tokens <= RUN_TOKENS:
            tokens += asked[end].tokens
            end += 1
        run = asked[start:end]
        trials = [trial for one in run for trial in one.trials]
        scores = iter(
            session.continuations([t.ids for t in trials], [t.first for t in trials]) if trials else []
        )
        for one in run:
            of_item = [next(scores) if one.trials else None for _ in one.question.candidates]
            found.append(choose(of_item, gold=one.question.gold))
        start = end
        done(start)
    return found


def _trials(pointer: str, text: TokenizedText, question: Question, session: Session) -> tuple[Trial, ...]:
    """The text with each candidate in the pronoun's place; none where nothing follows the pronoun.

    Raises `text_too_long`.
    """
    trials = []
    for candidate in question.candidates:
        written = substitute(text.text, question.pronoun.start, question.pronoun.end, candidate.text)
        if not written.after.strip():
            return ()
        # Apart, so that every candidate is scored on the same tokens
        before, after = (
            session.tokenize(Input(pointer, part), parse_special=False).ids
            for part in (written.before, written.after)
        )
        if len(before) + len(after) > session.max_tokens_per_text:
            raise too_long(pointer, len(before) + len(after), session.max_tokens_per_text)
        trials.append(Trial([*before, *after], len(before)))
    return tuple(trials)


def choose_pairs(pairs: Pairs, session: Session) -> dict[int, list[int]]:
    """{layer: heads}, ascending and without repeats. Raises `layer_` and `head_out_of_range`."""
    reader = session.model.reader
    if pairs == "all":
        return {layer: list(range(reader.heads)) for layer in range(reader.layers)}
    faults = [
        FieldError(
            f"/heads/{place}/{position}", f"{kind}_out_of_range", f"The model's {kind}s are 0 to {size - 1}."
        )
        for place, pair in enumerate(pairs)
        for position, (kind, size) in enumerate((("layer", reader.layers), ("head", reader.heads)))
        if pair[position] >= size
    ]
    if faults:
        raise InvalidRequestError(faults[0].detail, errors=faults)
    chosen: dict[int, list[int]] = {}
    for layer, head in sorted(set(pairs)):
        chosen.setdefault(layer, []).append(head)
    return chosen


def _pairs(request: CoreferenceRequest, session: Session) -> Pairs:
    reader = session.model.reader
    if request.heads is None and (reader.layers, reader.heads) != ARTICLE_SHAPE:
        detail = f"Required on this model of {reader.layers} layers and {reader.heads} heads."
        raise InvalidRequestError.at("/heads", "missing_field", detail)
    return request.heads or ARTICLE_HEADS


def _asked(
    pointer: str,
    item: Item,
    text: TokenizedText | InvalidRequestError,
    reading: Reading,
    request: ScoringRequest,
    session: Session,
) -> Asked | InvalidRequestError:
    if isinstance(text, InvalidRequestError):
        return text
    try:
        pronoun = resolve(f"{pointer}/pronoun", item.pronoun, text)
        candidates = [
            resolve(f"{pointer}/candidates/{index}", candidate, text)
            for index, candidate in enumerate(item.candidates)
        ]
        question = ask(item.text, text.tokens, pronoun, candidates, gold=item.gold, reading=reading)
        if request.method == "substitution":
            return Asked(text, question, _trials(f"{pointer}/text", text, question, session))
        return Asked(text, question)
    except CoreferenceError as error:
        place = "/gold" if error.code == "gold_out_of_range" else "/candidates"
        if error.index is not None:
            place += f"/{error.index}"
        return InvalidRequestError.at(f"{pointer}{place}", error.code, sentence(error))
    except InvalidRequestError as error:
        return error


def _attended(asked: Asked, answers: list[HeadAnswer]) -> dict[str, object]:
    heads = [asdict(answer) for answer in answers]
    if asked.question.gold is None:
        for head in heads:
            del head["correct"]
    return _result(asked, notes(asked.question, answers), heads)


def _expected(asked: Asked, substitution: Substitution) -> dict[str, object]:
    described = asdict(substitution)
    if asked.question.gold is None:
        del described["correct"]
    said = [note for note in asked.question.notes if note.code in WHATEVER_THE_METHOD]
    if described.pop("no_continuation"):
        said.append(Note("no_continuation", "nothing follows the pronoun, so there is nothing to expect"))
    return _result(asked, said, []) | {"substitution": described}


def _result(asked: Asked, said: Sequence[Note], heads: Sequence[object]) -> dict[str, object]:
    question = asked.question
    return {
        "tokens": [asdict(token) for token in asked.text.tokens],
        "pronoun": asdict(question.pronoun),
        "candidates": [asdict(candidate) for candidate in question.candidates],
        "heads": heads,
        "baselines": asdict(question.baselines),
        "warnings": [asdict(note) for note in said],
    }
