"""Answers as Arrow tables, checked against pyarrow's own way, and with answers of the jobs on a tiny random model."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from attention_core.heads import SCORES
from service.corpus.table import array, arrow_type, reorder, schema, table, writer
from service.engine import Engine, Session
from service.jobs import attention, coreference, heads
from service.schemas.attention import AttentionRequest, AttentionResult
from service.schemas.coreference import CoreferenceRequest, CoreferenceResult
from service.schemas.heads import HeadInfo, HeadsRequest, Score
from service.settings import Settings
from tests.conftest import wait_until
from tests.tiny import HEADS, LAYERS, tiny_model

TEXTS = ["the cat sat on the mat, it is", "z", "the mat, the mat, the mat"]
SINGLE = {"weights": pa.float32(), "weight": pa.float32()}


class Mark(BaseModel):
    kind: Literal["a", "b"]
    note: str | None = None


class Page(BaseModel):
    number: Annotated[int, Field(ge=0)]
    whole: bool
    share: float | None
    marks: list[Mark]
    tags: list[str]
    interval: tuple[float, float] | None = None
    weights: list[list[float | None]] | None = None
    scores: dict[str, Mark]
    counts: dict[str, int] | None = None


KEYS = {"scores": ("p", "q"), "counts": ("r",)}
MARK = pa.struct([("kind", pa.string()), ("note", pa.string())])


def test_a_model_is_a_struct_of_its_fields_in_their_order() -> None:
    assert arrow_type(Page, keys=KEYS, floats=SINGLE) == pa.struct(
        [
            ("number", pa.int64()),
            ("whole", pa.bool_()),
            ("share", pa.float64()),
            ("marks", pa.list_(MARK)),
            ("tags", pa.list_(pa.string())),
            ("interval", pa.list_(pa.float64())),
            ("weights", pa.list_(pa.list_(pa.float32()))),
            ("scores", pa.struct([("p", MARK), ("q", MARK)])),
            ("counts", pa.struct([("r", pa.int64())])),
        ]
    )


def test_fields_that_are_not_wanted_are_left_out_wherever_they_stand() -> None:
    found = arrow_type(Page, keys=KEYS, without=("note", "weights", "counts", "interval"))
    assert [field.name for field in found] == ["number", "whole", "share", "marks", "tags", "scores"]
    assert found.field("marks").type == pa.list_(pa.struct([("kind", pa.string())]))


@pytest.mark.parametrize(
    "annotation",
    [Any, object, bytes, int | str, tuple[int, str], Literal[1], dict[str, int], dict[int, int], list],
)
def test_what_has_no_arrow_type_is_refused_by_the_name_of_its_field(annotation: object) -> None:
    with pytest.raises(TypeError, match=r"^odd has no Arrow type"):
        schema({"number": int, "odd": annotation})


def test_columns_are_a_models_fields_or_annotations_by_name() -> None:
    assert schema(Mark) == pa.schema(list(MARK))
    assert schema({"item": int, "marks": list[Mark]}) == pa.schema(
        {"item": pa.int64(), "marks": pa.list_(MARK)}
    )


LEAVES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
}


def _fields(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(st.sampled_from("abcde"), max_size=4, unique=True)
    of_one_type = st.tuples(names, inner).map(lambda said: [(name, said[1]) for name in said[0]])
    return (
        of_one_type
        | names.flatmap(lambda said: st.tuples(*(st.tuples(st.just(name), inner) for name in said)))
    ).map(lambda fields: pa.struct(list(fields)))


TYPES = st.recursive(
    st.sampled_from(list(LEAVES)), lambda inner: inner.map(pa.list_) | _fields(inner), max_leaves=8
)


def _values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(type_):
        some: st.SearchStrategy[Any] = st.lists(_values(type_.value_type), max_size=3)
    elif pa.types.is_struct(type_):
        members = {field.name: _values(field.type) for field in type_}
        some = st.fixed_dictionaries(members) | st.fixed_dictionaries({}, optional=members)
    else:
        some = LEAVES[type_]
    return st.none() | some


@given(TYPES.flatmap(lambda type_: st.tuples(st.just(type_), st.lists(_values(type_), max_size=5))))
def test_nested_values_become_what_pyarrow_makes_of_them(said: tuple[pa.DataType, list[Any]]) -> None:
    type_, values = said
    found = array(values, type_)
    found.validate(full=True)
    assert found.type == type_
    assert found.equals(pa.array(values, type_))
    assert found.null_count == sum(value is None for value in values)


@given(
    st.lists(st.none() | st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=7),
    st.sampled_from([np.float32, np.float64, np.int64]),
)
def test_arrays_become_what_their_lists_would(shapes: list[tuple[int, int] | None], dtype: type) -> None:
    random = np.random.default_rng(7)
    arrays = [None if shape is None else random.integers(2**62, size=shape).astype(dtype) for shape in shapes]
    lists = [None if one is None else one.tolist() for one in arrays]
    rows = [None if one is None else list(one) for one in arrays]
    type_ = pa.list_(pa.list_(pa.from_numpy_dtype(dtype)))
    expected = pa.array(lists, type_)
    for values in (arrays, lists, rows):
        found = array(values, type_)
        found.validate(full=True)
        assert found.equals(expected)


def test_nan_in_an_array_is_null_and_every_other_float32_is_exact() -> None:
    scores = np.array([[1 / 3, np.nan], [-2.5, 1e-30]], np.float32)
    (found,) = array(
        [{"maps": [{"weights": scores}]}],
        pa.struct({"maps": pa.list_(pa.struct({"weights": pa.list_(pa.list_(pa.float32()))}))}),
    )
    assert found.as_py()["maps"][0]["weights"] == [[float(scores[0, 0]), None], [-2.5, float(scores[1, 1])]]


def test_a_part_of_an_array_is_read_as_it_looks() -> None:
    whole = np.arange(5 * 7 * 11, dtype=np.float32).reshape(5, 7, 11)
    parts = [whole[2], whole[:, 3], whole[..., 5].T, whole[1, ::2, ::-3]]
    assert array(parts, pa.list_(pa.list_(pa.float32()))).to_pylist() == [part.tolist() for part in parts]


def test_a_member_without_a_column_is_named_with_its_place() -> None:
    type_ = arrow_type(Page, keys=KEYS)
    with pytest.raises(ValueError, match=r"^marks: no column for extra$"):
        array([{"marks": []}, {"marks": [{"kind": "a"}, {"kind": "b", "extra": None}]}], type_)
    with pytest.raises(ValueError, match=r"^scores\.p\|q: no column for extra$"):
        array([{"scores": {"q": {"extra": 1}}}], type_)
    with pytest.raises(ValueError, match=r"^record: no column for extra, other$"):
        array([{"number": 1}, {"extra": 1, "other": 2}], type_)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"number": "one"}, "record"),
        ({"number": 2**63}, "record"),
        ({"share": "\ud800"}, "record"),
        ({"marks": [{"note": "\ud800"}]}, "marks"),
        ({"marks": {"kind": "a"}}, "marks"),
        ({"tags": "ab"}, "tags"),
        ({"tags": {"a": "b"}}, "tags"),
        ({"marks": [["kind"]]}, "marks"),
        ({"weights": [[0.5], ["0.5"]]}, "weights"),
        ({"weights": np.zeros(3)}, "weights"),
        ({"weights": np.array([["a"]])}, "weights"),
        ({"weights": [np.zeros(3), [0.5]]}, "weights"),
        (["number"], "record"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_named_with_its_place(value: object, place: str) -> None:
    with pytest.raises(ValueError, match=f"^{place}: "):
        array([{"number": 1}, value], arrow_type(Page, keys=KEYS))


def test_more_values_than_offsets_of_32_bits_count_are_refused_before_they_are_copied() -> None:
    most = 2**31 - 1
    type_ = pa.struct({"weights": pa.list_(pa.list_(pa.float32()))})
    huge = np.broadcast_to(np.float32(0), (2**16, 2**15))  # one number in memory, 2^31 to look at
    with pytest.raises(ValueError, match=f"^weights: .*{most}"):
        array([{"weights": huge}], type_)
    shared: list[float] = [0.0] * 2**16
    with pytest.raises(ValueError, match=f"^weights: .*{most}"):
        array([{"weights": [shared] * 2**15}], type_)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    engine = Engine(tiny_model, Settings()).start()
    wait_until(lambda: engine.state == "ready")
    with engine.admit(exact=True) as session:
        yield session
    engine.close()


def _filled(type_: pa.DataType, value: Any) -> Any:
    """As JSON would have it, with null for every member that is not there."""
    if isinstance(value, np.ndarray):
        return _filled(type_, value.tolist())
    if value is not None and pa.types.is_struct(type_):
        return {field.name: _filled(field.type, value.get(field.name)) for field in type_}
    if value is not None and pa.types.is_list(type_):
        return [_filled(type_.value_type, one) for one in value]
    return value


def _all_of(records: list[dict[str, Any]], columns: pa.Schema) -> pa.Table:
    found = table(records, columns)
    found.validate(full=True)
    assert found.schema == columns
    assert found.to_pylist() == [_filled(pa.struct(columns), record) for record in records]
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queries": [0]},
        {"top_k": 2},
        {"aggregate": "max", "unit": "word"},
    ],
)
def test_a_table_of_maps_holds_all_of_the_answers(session: Session, options: dict[str, Any]) -> None:
    answer: Any = attention.maps(AttentionRequest(texts=TEXTS, **options), session)
    found = _all_of(answer["results"], schema(AttentionResult, floats=SINGLE))
    assert found.num_rows == 3


def test_scores_before_the_softmax_are_null_in_the_future(session: Session) -> None:
    answer: Any = attention.maps(AttentionRequest(text="the cat", weighting="scores"), session)
    found = table(answer["results"], schema(AttentionResult, floats=SINGLE))
    (row,) = found.to_pylist()
    for one, said in zip(row["maps"], answer["results"][0]["maps"], strict=True):
        nulls = [[weight is None for weight in weights] for weights in one["weights"]]
        assert nulls == np.isnan(said["weights"]).tolist()
        assert nulls[0] == [False] + [True] * (len(nulls) - 1)


def test_a_table_of_head_scores_holds_all_of_the_answers(session: Session) -> None:
    names = tuple(SCORES)
    columns = schema({"heads": list[HeadInfo]}, keys={"scores": names, "texts_agreeing": names})
    answers: list[Any] = [heads.classify(HeadsRequest(text=text), session) for text in TEXTS]
    answers.append(heads.classify(HeadsRequest(texts=TEXTS), session))  # with what only pooled scores have
    found = _all_of([{"heads": answer["heads"]} for answer in answers], columns)
    assert found["heads"].combine_chunks().value_lengths().to_pylist() == [LAYERS * HEADS] * 4


def test_a_table_of_choices_holds_all_of_the_answers(session: Session) -> None:
    item = {
        "text": TEXTS[0],
        "pronoun": {"text": "it"},
        "candidates": [{"text": "cat"}, {"text": "mat"}],
        "gold": 0,
    }
    request = CoreferenceRequest(items=[item, {**item, "gold": None}], heads="all")
    answer: Any = coreference.attend(request, session)
    found = _all_of(answer["results"], schema(CoreferenceResult))
    assert found.num_rows == 2


def test_tables_are_put_together_in_another_order() -> None:
    columns = pa.schema(
        {"item": pa.int64(), "maps": pa.list_(pa.struct({"weights": pa.list_(pa.list_(pa.float32()))}))}
    )
    random = np.random.default_rng(11)
    records: list[dict[str, Any]] = [
        {
            "item": item,
            "maps": None if item == 5 else [{"weights": random.random((item, 3), np.float32)}] * (item % 3),
        }
        for item in range(13)
    ]
    places = random.permutation(13)
    shuffled = [records[place] for place in places]
    parts = pa.concat_tables([table(shuffled[:4], columns), table([], columns), table(shuffled[4:], columns)])
    found = reorder(parts, np.argsort(places))
    found.validate(full=True)
    assert found.to_pylist() == table(records, columns).to_pylist()


def test_a_file_is_read_as_it_was_written_and_packed_column_by_column() -> None:
    columns = schema(
        {"text": str, "weights": list[list[float]], "scores": dict[str, Score], "heads": list[Score]},
        keys={"scores": ("p", "q")},
        floats=SINGLE,
    )
    random = np.random.default_rng(13)
    records = [
        {
            "text": f"text {place}",
            "weights": random.random((5, 7), np.float32),
            "scores": {"q": {"score": float(random.random()), "rows": place, "status": "ok"}},
            "heads": [{"score": 0.5, "status": "too_short"}],
        }
        for place in range(17)
    ]
    written, file = table(records, columns), io.BytesIO()
    with writer(file, columns) as parquet:
        parquet.write_table(written)
    assert pq.read_table(file).equals(written)
    group = pq.read_metadata(file).row_group(0)
    packed = {one.path_in_schema: one for one in map(group.column, range(group.num_columns))}
    assert {one.compression for one in packed.values()} == {"ZSTD"}
    for name, how in {
        "text": "RLE_DICTIONARY",
        "heads.list.element.status": "RLE_DICTIONARY",
        "scores.q.rows": "RLE_DICTIONARY",
        "scores.q.score": "BYTE_STREAM_SPLIT",
        "heads.list.element.score": "BYTE_STREAM_SPLIT",
        "weights.list.element.list.element": "PLAIN",
    }.items():
        data = {"RLE_DICTIONARY", "BYTE_STREAM_SPLIT", "PLAIN"} & set(packed[name].encodings)
        assert data - ({"PLAIN"} if how == "RLE_DICTIONARY" else set()) == {how}, (
            name
        )  # a dictionary itself is plain
