"""What kind of head is each?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attention_core.errors import ShapeError
from attention_core.heads import (
    PROBE_RULES,
    SCORES,
    SHORTEST,
    HeadResult,
    HeadResults,
    LabelError,
    Probe,
    ScoreRule,
    borderline,
    definitions,
    label,
    mae_similarities,
    pattern_rule,
    pool,
    ranking,
    repeat_probe,
    score_heads,
    summarise,
    text_facts,
    thresholds_of,
    with_probe,
)
from service.engine import Session
from service.errors import InvalidRequestError
from service.jobs.common import all_or_raise, choose, members, sentence, texts_of, tokenize
from service.schemas.heads import HeadsRequest
from service.texts import TokenizedText

MOST_PLACES = 10  # of short texts, named in a warning


def classify(request: HeadsRequest, session: Session) -> dict[str, object]:
    """Scores and labels of the chosen heads; a layer's maps are scored as they stream past, and let go."""
    limits = limits_of(request)
    found = _tokenized(request, session)
    texts = texts_of(found)
    if request.on_error == "fail" or not texts:
        all_or_raise(found)
    probe = _probe(request, session)
    results = _scored(request, session, texts)
    head_results: Sequence[HeadResult] = results[0]
    if request.texts is not None:
        head_results = pool(results, limits)
    if probe is not None:
        sequences = [text_facts(sequence) for sequence in probe.sequences]
        drawn = score_heads(session.read, sequences, _heads(request, session), rules=PROBE_RULES)
        head_results = with_probe(head_results, pool(drawn, limits))

    shortness = Shortness()
    places = [place for place, one in enumerate(found) if isinstance(one, TokenizedText)]
    for place, text, heads in zip(places, texts, results, strict=True):
        shortness.add(place, len(text), heads)
    about_texts = [name for name in limits if probe is None or name not in PROBE_RULES]
    warnings = shortness.warnings(about_texts)
    answer = about(request, session.model.provenance, session.model.reader.kv_head, head_results, warnings)
    if probe is not None:
        length = len(probe.sequences[0]) // 2
        answer["probe"] = {
            "seed": request.seed,
            "draws": len(probe.sequences),
            "length": length,
            "sha256": probe.sha256,
        }
    if request.on_error == "skip":
        answer["skipped"] = [asdict(one.errors[0]) for one in found if isinstance(one, InvalidRequestError)]
    return answer


@dataclass(frozen=True, slots=True)
class OfText:
    """What an answer about one text alone has to say: its heads, their labels, and the members of those names."""

    tokens: int
    results: HeadResults
    kv_heads: Sequence[int]
    labels: Sequence[Sequence[str]]
    borderline: Sequence[Sequence[str]]
    summary: Mapping[str, object]
    warnings: Sequence[Mapping[str, str]]


def each(request: HeadsRequest, session: Session) -> list[OfText | InvalidRequestError]:
    """What `classify` says of each text by itself, or why it cannot be read; without a probe."""
    limits = limits_of(request)
    found = _tokenized(request, session)
    left = iter(_scored(request, session, texts_of(found)))
    answers: list[OfText | InvalidRequestError] = []
    for text in found:
        if isinstance(text, InvalidRequestError):
            answers.append(text)
            continue
        heads, shortness = next(left), Shortness()
        shortness.add(0, len(text), heads)
        labelled = label(heads, limits)
        answers.append(
            OfText(
                tokens=len(text),
                results=heads,
                kv_heads=[session.model.reader.kv_head(head) for _, head in heads.heads],
                labels=labelled,
                borderline=borderline(heads, limits),
                summary=_summary(heads, labelled, limits),
                warnings=shortness.warnings(limits),
            )
        )
    return answers


def about(
    request: HeadsRequest,
    model: Mapping[str, object],
    kv_head: Callable[[int], int],
    head_results: Sequence[HeadResult],
    warnings: Sequence[Mapping[str, str]],
) -> dict[str, object]:
    """The answer about heads, of one text or pooled; `model` is what scored them."""
    thresholds = thresholds_of(thresholds=request.thresholds)  # of every label, given or not
    return {
        "model": model,
        **_described(request, kv_head, head_results),
        "definitions": {
            name: asdict(one) for name, one in definitions(thresholds, rules=_rules(request)).items()
        },
        "warnings": list(warnings),
        "request": {**request.model_dump(mode="json", exclude_none=True), "thresholds": thresholds},
    }


def _tokenized(request: HeadsRequest, session: Session) -> list[TokenizedText | InvalidRequestError]:
    return tokenize(session, request.inputs, parse_special=request.special_tokens == "parse")


def _scored(request: HeadsRequest, session: Session, texts: Sequence[TokenizedText]) -> list[HeadResults]:
    """The results of each text."""
    if not texts:
        return []
    heads = _heads(request, session)
    rules = _rules(request)
    if request.pattern is not None and len(request.pattern) != len(texts[0]):
        detail = f"The text has {len(texts[0])} tokens; the pattern has {len(request.pattern)} rows."
        raise InvalidRequestError.at("/pattern", "out_of_range", detail)
    facts = [text_facts(text.ids, [token.text for token in text.tokens]) for text in texts]
    return score_heads(session.read, facts, heads, rules=rules)


def _heads(request: HeadsRequest, session: Session) -> dict[int, list[int]]:
    return choose(session, request.layers, request.heads)


def _described(
    request: HeadsRequest, kv_head: Callable[[int], int], head_results: Sequence[HeadResult]
) -> dict[str, object]:
    """The members `summary` and `heads`."""
    limits = limits_of(request)
    labelled, near = label(head_results, limits), borderline(head_results, limits)
    heads = [
        {"kv_head": kv_head(one["head"]), **one, "labels": list(names), "borderline": list(undecided)}
        for one, names, undecided in zip(_as_dicts(head_results), labelled, near, strict=True)
    ]
    if request.pattern is not None:
        custom = [one["scores"]["custom"] for one in heads]
        likeness = mae_similarities([one.scores["custom"] for one in head_results], request.pattern)
        for score, similarity in zip(custom, likeness, strict=True):
            score["mae_similarity"] = similarity
    return {"summary": _summary(head_results, labelled, limits), "heads": heads}


def _summary(
    head_results: Sequence[HeadResult], labelled: Sequence[Sequence[str]], limits: Collection[str]
) -> dict[str, object]:
    labels = {
        name: {
            **asdict(count),
            "top": [
                {"layer": layer, "head": head, "score": score}
                for layer, head, score in ranking(head_results, name)
            ],
        }
        for name, count in summarise(labelled, limits).items()
    }
    return {"heads": len(head_results), "labels": labels}


def _as_dicts(results: Sequence[HeadResult]) -> list[dict[str, Any]]:
    if isinstance(results, HeadResults):
        return results.as_dicts()
    return [
        {**members(one), "scores": {name: members(score) for name, score in one.scores.items()}}
        for one in results
    ]


def limits_of(request: HeadsRequest) -> dict[str, float]:
    """The thresholds of the labels that are asked for. Raises `incompatible_options` for a label without one."""
    try:
        return thresholds_of(thresholds=request.thresholds, labels=request.labels)
    except LabelError as error:  # a label without a threshold; all else the schema has refused
        pointer = f"/labels/{(request.labels or []).index(error.name)}"
        raise InvalidRequestError.at(pointer, error.code, sentence(error)) from None


def _rules(request: HeadsRequest) -> Mapping[str, ScoreRule]:
    if request.pattern is None:
        return SCORES
    try:
        return {**SCORES, "custom": pattern_rule(request.pattern)}
    except ShapeError as error:
        raise InvalidRequestError.at("/pattern", "out_of_range", sentence(error)) from None


def _probe(request: HeadsRequest, session: Session) -> Probe | None:
    if request.probe == "none":
        return None
    special = session.model.tokenizer.special_ids
    try:
        return repeat_probe(
            session.model.reader.vocabulary, draws=request.draws, seed=request.seed, excluded=special
        )
    except ShapeError as error:
        detail = f"The model's vocabulary is too small to draw from: {error}."
        raise InvalidRequestError.at("/probe", "incompatible_options", detail) from None


@dataclass
class _Applicable:
    """Of a score, over the texts that are long enough: whether it counts or is too short in any, and its most rows."""

    ok: bool = False
    too_short: bool = False
    rows: int = 0


class Shortness:
    """Why labels cannot be given: it lies in the texts, so that one head tells it of all."""

    def __init__(self) -> None:
        self.short: list[int] = []  # the first places of texts that are too short
        self.texts = 0  # that are
        self.scores: dict[str, _Applicable] = {}

    def add(self, place: int, tokens: int, heads: Sequence[HeadResult]) -> None:
        """Take a text: its place in the request, its length, and its results."""
        if tokens < SHORTEST:
            self.texts += 1
            self.short = sorted([*self.short, place])[:MOST_PLACES]
            return
        for name, score in heads[0].scores.items():
            self._add(name, score.status == "ok", score.status == "too_short", score.rows)

    def _add(self, name: str, ok: bool, too_short: bool, rows: int) -> None:
        known = self.scores.setdefault(name, _Applicable())
        known.ok, known.too_short = known.ok or ok, known.too_short or too_short
        known.rows = max(known.rows, rows)

    def merge(self, other: Shortness) -> None:
        """Take what was found in other texts."""
        self.texts += other.texts
        self.short = sorted([*self.short, *other.short])[:MOST_PLACES]
        for name, one in other.scores.items():
            self._add(name, one.ok, one.too_short, one.rows)

    def warnings(self, names: Collection[str]) -> list[dict[str, str]]:
        """What an answer that gives labels of these names says."""
        messages = []
        if self.texts:
            which = ", ".join(map(str, self.short)) + (", …" if self.texts > MOST_PLACES else "")
            which = f"text {which} has" if self.texts == 1 else f"texts {which} have"
            messages.append(f"{which} fewer than {SHORTEST} tokens, and so no score that counts")
        for name in names:
            found = self.scores.get(name)
            if found is not None and found.too_short and not found.ok:
                needed = SCORES[name].min_rows
                plural = "s" * (found.rows != 1)
                messages.append(
                    f"{name} has {found.rows} row{plural} to score and needs {needed}, so it gives no label"
                )
        return [{"code": "too_short", "message": message} for message in messages]

    def as_dict(self) -> dict[str, object]:
        """As JSON keeps it."""
        scores = {name: asdict(one) for name, one in self.scores.items()}
        return {"short": self.short, "texts": self.texts, "scores": scores}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Shortness:
        """What `as_dict` gave."""
        found = cls()
        found.short, found.texts = list(state["short"]), state["texts"]
        found.scores = {name: _Applicable(**one) for name, one in state["scores"].items()}
        return found
