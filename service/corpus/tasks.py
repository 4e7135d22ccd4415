"""What each command asks of every item, the columns of its answers, and what it says of all items together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import from_json

from attention_core.coreference import Reading, ask
from attention_core.evaluation import NO_CHOICE, Item
from attention_core.heads import SCORES, Pool
from attention_core.spans import Span, Token
from service.corpus.table import Columns
from service.corpus.table import schema as schema_of
from service.engine import Session
from service.errors import FieldError, InvalidRequestError
from service.jobs import attention, coreference, evaluate, heads
from service.jobs.common import choose, members
from service.parameters import ATTENTION, HEADS, JUDGING, SCORING, Kind, value_of
from service.schemas.attention import AttentionRequest, AttentionResult
from service.schemas.common import Request, Text, Warning
from service.schemas.coreference import CoreferenceRequest, CoreferenceResult, EvaluationOptions, Name
from service.schemas.coreference import Item as CoreferenceItem
from service.schemas.heads import HeadInfo, HeadsRequest, Summary
from service.validation import field_error

Record = dict[str, object]


def _named(value: object) -> object:
    """Files often number their rows, and tables that have gaps write whole numbers as 1.0."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return str(value) if type(value) in (int, float) else value


Id = Annotated[Name | None, BeforeValidator(_named)]
NAME = TypeAdapter[str | None](Id)


class TextRow(Request):
    """A text, and perhaps its name."""

    text: Text
    id: Id = None


class ItemRow(CoreferenceItem):
    """A text with a pronoun and candidates; `gold` and `group` are for the evaluation."""

    id: Id = None
    group: Id = None


@dataclass(frozen=True, slots=True)
class Part:
    """A finished file of answers: where it is, and how to read what its `Tally` left in it."""

    path: Path
    state: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Whole:
    """What a summary needs beside the parts: the model, how many rows there were, which have no answer, and why.

    `faults` have `file`, `line`, `code` and `detail`; `files` are those of the input, in order, with their hashes.
    """

    model: Mapping[str, object]
    rows: int
    faults: Sequence[Mapping[str, Any]]
    files: Mapping[str, str]

    def skipped(self, *others: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """These faults and others, in the input's order."""
        order = {file: place for place, file in enumerate(self.files)}
        return sorted([*self.faults, *others], key=lambda one: (order[one["file"]], one["line"]))

    @property
    def request(self) -> dict[str, object]:
        """What stands in the place of the texts and items in the summary's `request`."""
        return {"files": [{"file": file, "sha256": sha256} for file, sha256 in self.files.items()]}


class Tally:
    """What a file of answers keeps for the summary beside its rows: here nothing."""

    def state(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return {}


class Task(ABC):
    """One command. `options` are the request's members, as JSON has them, without texts and items.

    `cells` are the members that an item in a file may have, and how text in a cell says them; `flags` are the options,
    which `asked` describes, and those that are `late` change no answer, only the summary.
    """

    name: ClassVar[str]
    row: ClassVar[type[TextRow | ItemRow]]
    cells: ClassVar[Mapping[str, Kind]]
    flags: ClassVar[Mapping[str, Kind]]
    asked: ClassVar[type[BaseModel]]
    example: ClassVar[Mapping[str, Any]]  # a row that can be answered, whatever the model
    needed: ClassVar[tuple[str, ...]] = ("text",)  # without which a row is no item
    late: ClassVar[frozenset[str]] = frozenset()
    no_summary: ClassVar[str]  # why there may be none

    def __init__(self, options: Mapping[str, Any], *, text_column: str = "text") -> None:
        """`text_column` is what the files call the text. A default that is said counts as unsaid.

        Raises pydantic's ValidationError for options that suit no model.
        """
        defaults = {name: self.asked.model_fields[name].default for name in self.flags}
        self.options = {name: one for name, one in options.items() if one != defaults[name]}
        self.text_column = text_column
        self.sample: Any = self.row.model_validate(
            {name: _meant(one, self.cells[name]) for name, one in self.example.items()}
        )
        self.request([self.sample])

    @property
    def columns_read(self) -> set[str]:
        """The columns that are looked at."""
        return {self.text_column if name == "text" else name for name in self.cells}

    @property
    def columns_needed(self) -> list[str]:
        """Those without which no row holds an item."""
        return [self.text_column if name == "text" else name for name in self.needed]

    def name_of(self, values: Mapping[str, Any]) -> str | None:
        """The row's own name, if it has one that can be used."""
        try:
            return NAME.validate_python(values.get("id"), strict=True)
        except ValidationError:
            return None

    def item(self, values: Mapping[str, Any]) -> Any:
        """The item that a row holds; cells that are no members of one are passed over.

        Raises pydantic's ValidationError.
        """
        return self.row.model_validate(self._said(values))

    def read(self, values: Mapping[str, Any]) -> Any:
        """The same, or a FieldError in its place."""
        try:
            return self.item(values)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False, include_context=True)[0]
            found = field_error(fault, self._said(values))
            if fault["type"] == "model_type":
                found = replace(
                    found, detail="A span is expected: its text, start..end, or JSON as the API takes it."
                )
            return found

    def _said(self, values: Mapping[str, Any]) -> dict[str, Any]:
        columns = {name: self.text_column if name == "text" else name for name in self.cells}
        return {
            name: _meant(values[column], self.cells[name])
            for name, column in columns.items()
            if column in values
        }

    @property
    def schema(self) -> pa.Schema:
        """A row of answers: where the item stands, then the members of the API's answer about it."""
        place = [
            pa.field("file", pa.string(), nullable=False),
            pa.field("line", pa.int64(), nullable=False),
            pa.field("id", pa.string()),
        ]
        return pa.schema([*place, *self.columns])

    def tally(self) -> Tally:
        """An empty one, for one file of answers."""
        return Tally()

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """Of an answer."""

    @abstractmethod
    def request(self, items: Sequence[Any]) -> BaseModel:
        """The API's request about these items."""

    @abstractmethod
    def numbers(self, item: Any, tokens: int, session: Session) -> int:
        """About how many numbers the answer about an item of so many tokens holds.

        Raises InvalidRequestError for heads that the model does not have.
        """

    @abstractmethod
    def answers(
        self, items: Sequence[Any], places: Sequence[int], session: Session, tally: Any
    ) -> list[Record | FieldError]:
        """The answer about each item, or why there is none; `places` are the rows' numbers in the whole input.

        Raises what the API's request would raise: an option that the model does not allow, too large an answer.
        """

    @abstractmethod
    def summary(self, parts: Callable[[], Iterator[Part]], whole: Whole) -> dict[str, object] | None:
        """What the API would have said of all items; None where it says nothing of several, or none is there.

        Raises InvalidRequestError where the items do not allow what is asked of all.
        """


def _meant(value: object, kind: Kind) -> object:
    """What a cell says: text is read as in a URL; where a span or a list of them is meant, as JSON too."""
    if isinstance(value, list) and kind == "spans":
        return [_meant(one, "span") for one in value]
    if not isinstance(value, str) or kind == "text":
        return value
    if kind in ("span", "spans") and value.lstrip()[:1] in ("{", "["):
        try:
            return from_json(value)
        except ValueError:
            return value
    return value_of(value, kind)


def _fault_of(fault: FieldError, place: int) -> FieldError:
    """A fault of a request's item, as one of the item: `/items/3/candidates/0` is `/candidates/0`.

    That of an option, `/queries/0`, is of no place in the item.
    """
    if fault.pointer.startswith(f"/texts/{place}"):
        return replace(fault, pointer="/text")
    inside = fault.pointer.removeprefix(f"/items/{place}")
    if inside == fault.pointer:
        detail = fault.detail.removeprefix(f"Text {place}: ")
        return FieldError("", fault.code, detail[0].upper() + detail[1:])
    return replace(fault, pointer=inside)


def _results(answer: Mapping[str, Any]) -> Iterator[Any]:
    """The results of a request that skips what cannot be answered, or FieldErrors in their places."""
    for place, result in enumerate(answer["results"]):
        yield _fault_of(FieldError(**result["error"]), place) if "error" in result else result


class Attention(Task):
    """Where does every head look?"""

    name = "attention"
    row = TextRow
    cells: ClassVar[Mapping[str, Kind]] = {"text": "text", "id": "text"}
    flags = ATTENTION
    asked = AttentionRequest
    no_summary = "the API says nothing of several texts' maps"
    example: ClassVar[Mapping[str, Any]] = {"text": "A B"}

    @property
    def columns(self) -> pa.Schema:
        """Weights are float32, as they were computed: nothing is lost, and they take half the room."""
        single = {"weights": pa.float32(), "weight": pa.float32()}
        return schema_of(AttentionResult, without=("text_pair",), floats=single)

    def request(self, items: Sequence[TextRow]) -> AttentionRequest:
        """POST /v1/attention."""
        return AttentionRequest(texts=[item.text for item in items], on_error="skip", **self.options)

    def numbers(self, item: TextRow, tokens: int, session: Session) -> int:
        """Maps x queries x keys."""
        chosen = choose(session, self.options.get("layers"), self.options.get("heads"))
        aggregated = self.options.get("aggregate", "none") != "none"
        keys = min(tokens, self.options.get("top_k") or tokens)
        queries = len(self.options.get("queries") or range(tokens))
        return (1 if aggregated else sum(map(len, chosen.values()))) * queries * keys

    def answers(
        self, items: Sequence[TextRow], places: Sequence[int], session: Session, tally: Tally
    ) -> list[Record | FieldError]:
        """The results of POST /v1/attention."""
        return list(_results(attention.maps(self.request(items), session)))

    def summary(self, parts: Callable[[], Iterator[Part]], whole: Whole) -> None:
        """The API says nothing of several texts' maps."""
        return


class Heads(Task):
    """What kind of head is each?"""

    name = "heads"
    row = TextRow
    cells = Attention.cells
    flags = HEADS
    asked = HeadsRequest
    no_summary = "no text could be read"
    example = Attention.example

    def __init__(self, options: Mapping[str, Any], *, text_column: str = "text") -> None:
        super().__init__(options, text_column=text_column)
        self.limits = heads.limits_of(self.request([self.sample]))

    @property
    def columns(self) -> pa.Schema:
        """What of an answer about one text depends on the text."""
        keys = {"labels": tuple(self.limits), "scores": tuple(SCORES)}
        pooled = ("texts_agreeing", "sd", "ci95", "n", "mae_similarity")
        about = {
            "summary": pa.struct(schema_of(Summary, keys=keys)),
            "heads": pa.list_(pa.struct(schema_of(HeadInfo, keys=keys, without=pooled))),
            "warnings": pa.list_(pa.struct(schema_of(Warning))),
        }
        return pa.schema({"text": pa.string(), **about})

    def request(self, items: Sequence[TextRow]) -> HeadsRequest:
        """POST /v1/heads."""
        return HeadsRequest(texts=[item.text for item in items], on_error="skip", **self.options)

    def numbers(self, item: TextRow, tokens: int, session: Session) -> int:
        """Heads x scores x what is said of each."""
        chosen = choose(session, self.options.get("layers"), self.options.get("heads"))
        return sum(map(len, chosen.values())) * len(SCORES) * 6

    def tally(self) -> HeadsTally:
        """For the pooled scores."""
        return HeadsTally(self.limits)

    def answers(
        self, items: Sequence[TextRow], places: Sequence[int], session: Session, tally: HeadsTally
    ) -> list[Record | FieldError]:
        """What POST /v1/heads says of each text by itself."""
        found: list[Record | FieldError] = []
        for at, answer in enumerate(heads.each(self.request(items), session)):
            if isinstance(answer, InvalidRequestError):
                found.append(_fault_of(answer.errors[0], at))
            else:
                tally.add(places[at], answer)
                found.append({"text": items[at].text, **_said_of(answer)})
        return found

    def summary(self, parts: Callable[[], Iterator[Part]], whole: Whole) -> dict[str, object] | None:
        """What POST /v1/heads says of all texts."""
        every = self.tally()
        for part in parts():
            every.merge(part.state())
        if not every.texts:
            return None
        warnings = every.shortness.warnings(self.limits)
        request = self.request([self.sample])
        answer = heads.about(request, whole.model, every.kv_heads.__getitem__, every.pool.finish(), warnings)
        said: Any = answer["request"]
        del said["texts"]
        return {**answer, "skipped": whole.skipped(), "request": {**said, **whole.request}}


def _said_of(answer: heads.OfText) -> dict[str, object]:
    """The members of the API's answer; the heads in columns."""
    results = answer.results
    about = {
        "layer": [layer for layer, _ in results.heads],
        "head": [head for _, head in results.heads],
        "kv_head": answer.kv_heads,
        "labels": answer.labels,
        "borderline": answer.borderline,
        "scores": {name: members(column) for name, column in results.scores.items()},
        "entropy": results.entropy,
    }
    return {"summary": answer.summary, "heads": Columns(len(results), about), "warnings": answer.warnings}


class HeadsTally(Tally):
    """The pooled scores of a file of answers, and why labels cannot be given."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.texts = 0
        self.pool = Pool(limits)
        self.shortness = heads.Shortness()
        self.kv_heads: dict[int, int] = {}  # by head

    def add(self, place: int, answer: heads.OfText) -> None:
        """Take what was found in a text."""
        self.texts += 1
        self.pool.add(answer.results)
        self.shortness.add(place, answer.tokens, answer.results)
        if not self.kv_heads:
            every = zip(answer.results.heads, answer.kv_heads, strict=True)
            self.kv_heads = {head: kv_head for (_, head), kv_head in every}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Take what another one's `state` says."""
        if state["texts"]:
            self.texts += state["texts"]
            self.pool.merge(Pool.from_dict(state["pool"]))
            self.shortness.merge(heads.Shortness.from_dict(state["shortness"]))
            self.kv_heads = dict(state["kv_heads"])

    def state(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return {
            "texts": self.texts,
            "pool": self.pool.as_dict() if self.texts else None,
            "shortness": self.shortness.as_dict(),
            "kv_heads": list(self.kv_heads.items()),
        }


class Coreference(Task):
    """Which noun does the pronoun attend to, and how often is a head right?"""

    name = "coreference"
    row = ItemRow
    cells: ClassVar[Mapping[str, Kind]] = {
        "text": "text",
        "pronoun": "span",
        "candidates": "spans",
        "gold": "number",  # tables that have gaps write whole numbers as 1.0
        "id": "text",
        "group": "text",
    }
    flags: ClassVar[Mapping[str, Kind]] = {**SCORING, **JUDGING}
    asked = EvaluationOptions
    no_summary = "no item that could be scored has a gold answer"
    example: ClassVar[Mapping[str, Any]] = {"text": "A B C", "pronoun": "C", "candidates": "A,B", "gold": 0}
    needed = ("text", "pronoun", "candidates")
    late = frozenset(JUDGING)

    def __init__(self, options: Mapping[str, Any], *, text_column: str = "text") -> None:
        self.judging = EvaluationOptions(**options)
        super().__init__(options, text_column=text_column)

    @property
    def columns(self) -> pa.Schema:
        """The members of a result, behind the item's own."""
        asked = {"text": pa.string(), "gold": pa.int64(), "group": pa.string()}
        return pa.schema([*pa.schema(asked), *schema_of(CoreferenceResult)])

    def request(self, items: Sequence[ItemRow]) -> CoreferenceRequest:
        """POST /v1/coreference, of all heads where none are named, as an evaluation has it."""
        scoring = {name: getattr(self.judging, name) for name in SCORING}
        if self.judging.method == "attention":
            scoring["heads"] = self.judging.heads or "all"
        asked = [
            CoreferenceItem(**{name: getattr(item, name) for name in CoreferenceItem.model_fields})
            for item in items
        ]
        return CoreferenceRequest(items=asked, on_error="skip", **scoring)

    def numbers(self, item: ItemRow, tokens: int, session: Session) -> int:
        """Heads x what is said of each, and a score for each candidate."""
        chosen = coreference.choose_pairs(self.judging.heads or "all", session)
        return sum(map(len, chosen.values())) * (8 + len(item.candidates))

    def answers(
        self, items: Sequence[ItemRow], places: Sequence[int], session: Session, tally: Tally
    ) -> list[Record | FieldError]:
        """The results of POST /v1/coreference."""
        results = _results(coreference.attend(self.request(items), session))
        return [
            result
            if isinstance(result, FieldError)
            else {"text": item.text, "gold": item.gold, "group": item.group, **result}
            for item, result in zip(items, results, strict=True)
        ]

    def summary(self, parts: Callable[[], Iterator[Part]], whole: Whole) -> dict[str, object] | None:
        """What POST /v1/coreference/evaluate says of all items with a gold answer."""
        chosen = [_Choices.of(part.path, self.judging.method) for part in parts()]
        with_gold = [one for one in chosen if len(one.predictions)]
        if not with_gold:
            return None
        predictions = np.concatenate([one.predictions for one in with_gold])
        reading = Reading(**{one.name: getattr(self.judging, one.name) for one in fields(Reading)})
        items = (item for part in parts() for item in _judged_items(part.path, reading))
        judged = evaluate.report(
            self.judging, items, with_gold[0].heads, predictions, silent=sum(one.silent for one in chosen)
        )
        return {
            "model": whole.model,
            "n": whole.rows,
            "skipped": whole.skipped(*(fault for one in chosen for fault in one.not_judged)),
            **judged,
            "request": {**self.judging.model_dump(mode="json"), **whole.request},
        }


@dataclass(frozen=True, slots=True)
class _Choices:
    """What a file of answers says to an evaluation, beside its items.

    `predictions` are [item with gold, head]; `silent` counts such items in which nothing is there to expect, and
    `not_judged` says why other items do not count.
    """

    heads: Sequence[tuple[int, int]]
    predictions: NDArray[np.int8]  # an item has 100 candidates at most
    silent: int
    not_judged: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, path: Path, method: str) -> _Choices:
        """Out of the columns of the file."""
        of_heads = [f"heads.list.element.{name}" for name in ("layer", "head", "predicted")]
        others = ["substitution.predicted", "candidates.list.element.index", "warnings.list.element.code"]
        rows = _columns(path, "file", "line", "id", "gold", *of_heads, *others)
        counts = pc.list_value_length(rows["candidates"])
        not_judged = [
            *_because(
                rows.filter(pc.is_null(rows["gold"])), "missing_field", "/gold: The field is required."
            ),
            *_because(
                rows.filter(pc.and_(pc.is_valid(rows["gold"]), pc.equal(counts, 1))),
                "single_candidate",
                "With one candidate there is nothing to choose.",
            ),
        ]
        rows = rows.filter(pc.is_valid(rows["gold"])).combine_chunks()
        if not rows.num_rows:
            return cls([], np.zeros((0, 0), np.int8), 0, not_judged)
        if method == "substitution":
            found, heads_read = pc.struct_field(rows["substitution"], "predicted"), evaluate.ONE_JUDGE
        else:
            every = pc.list_flatten(rows["heads"])
            found = pc.struct_field(every, "predicted")
            per_item = len(every) // rows.num_rows
            first = every.slice(0, per_item).to_pylist()
            heads_read = [(one["layer"], one["head"]) for one in first]
        predictions = pc.fill_null(found, NO_CHOICE).to_numpy().astype(np.int8).reshape(rows.num_rows, -1)
        codes = pc.struct_field(pc.list_flatten(rows["warnings"]), "code")
        silent = pc.sum(pc.equal(codes, "no_continuation")).as_py() or 0
        return cls(heads_read, predictions, silent, not_judged)


def _because(rows: pa.Table, code: str, detail: str) -> Iterator[dict[str, Any]]:
    """Why these rows do not count."""
    for row in rows.select(["file", "line", "id"]).to_pylist():
        named = {name: value for name, value in row.items() if value is not None}
        yield {**named, "code": code, "detail": detail}


def _judged_items(path: Path, reading: Reading) -> Iterator[Item]:
    """The items with a gold answer, as the evaluation asked them."""
    rows = _columns(path, "text", "gold", "group", "tokens", "pronoun", "candidates")
    for row in rows.filter(pc.is_valid(rows["gold"])).to_pylist():
        tokens = [Token(**{one.name: token[one.name] for one in fields(Token)}) for token in row["tokens"]]
        pronoun, *candidates = (_span(one) for one in (row["pronoun"], *row["candidates"]))
        question = ask(row["text"], tokens, pronoun, candidates, gold=row["gold"], reading=reading)
        yield Item(question, row["text"], row["group"])


def _span(said: Mapping[str, Any]) -> Span:
    return Span(said["start"], said["end"], said["text"], tuple(said["token_indices"]), said["exact"])


def _columns(path: Path, *names: str) -> pa.Table:
    return pq.ParquetFile(path).read(columns=list(names))


TASKS: Mapping[str, type[Task]] = {task.name: task for task in (Heads, Coreference, Attention)}
