"""Answers as Arrow tables: nested dicts to columns, and the columns' types from the schemas of the answers.

A level of the dicts is turned at once: lists into offsets and what is in them, dicts into a column for each member.
`pyarrow.array` alone would be quicker where there are no NumPy arrays, but takes none of two axes, and passes over
members that have no column without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

LEAVES: dict[object, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
}
LONGEST_COLUMN = 2**31 - 1  # the offsets of a list have 32 bits
NOTHING: Mapping[str, Any] = {}


def arrow_type(
    annotation: object,
    *,
    keys: Mapping[str, Sequence[str]] = NOTHING,
    floats: Mapping[str, pa.DataType] = NOTHING,
    without: Collection[str] = (),
    field: str = "",
) -> pa.DataType:
    """The Arrow type of an annotation, most often of a model of `service.schemas`.

        model, dict      struct of the model's fields, of the dict's keys, in their order
        list, tuple      list
        int, float       int64, float64
        bool             bool
        str, Literal     string
        X | None         that of X: everything may be null

    Three options go by the name of a model's field, wherever it stands: `keys` are those of a dict, `floats` the type
    of the numbers in it, and those `without` are left out. `field` is the name of the annotation's own field.

    Raises TypeError for anything else, and for a dict whose keys are not said.
    """

    def of(inner: object, name: str = field) -> pa.DataType:
        return arrow_type(inner, keys=keys, floats=floats, without=without, field=name)

    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return of(arguments[0])
    if origin in (Union, UnionType):
        some = [one for one in arguments if one is not NoneType]
        if len(some) == 1:
            return of(some[0])
    if origin is list or (origin is tuple and len(set(arguments) - {...}) == 1):
        return pa.list_(of(arguments[0]))
    if origin is dict and arguments[0] is str and field in keys:
        return pa.struct([(key, of(arguments[1])) for key in keys[field]])
    if origin is Literal and all(isinstance(one, str) for one in arguments):
        return pa.string()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return pa.struct([(name, of(one.annotation, name)) for name, one in fields if name not in without])
    if annotation is float and field in floats:
        return floats[field]
    if origin is None and annotation in LEAVES:
        return LEAVES[annotation]
    raise TypeError(f"{field or 'this'} has no Arrow type: {annotation}")


def schema(
    columns: type[BaseModel] | Mapping[str, object],
    *,
    keys: Mapping[str, Sequence[str]] = NOTHING,
    floats: Mapping[str, pa.DataType] = NOTHING,
    without: Collection[str] = (),
) -> pa.Schema:
    """The columns of a table: a model's fields, or annotations by name. The options are those of `arrow_type`."""
    if isinstance(columns, Mapping):
        annotations = columns
    else:
        annotations = {name: one.annotation for name, one in columns.model_fields.items()}
    return pa.schema(
        [
            (name, arrow_type(one, keys=keys, floats=floats, without=without, field=name))
            for name, one in annotations.items()
            if name not in without
        ]
    )


def table(records: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """One row for each record, as `array` makes them. Raises ValueError likewise."""
    return pa.Table.from_arrays(array(records, pa.struct(schema)).flatten(), schema=schema)


def array(values: Sequence[object], type: pa.DataType) -> pa.Array:
    """Dicts, lists, NumPy arrays and plain values, nested as `type` is, as an Arrow array.

    NumPy arrays have as many axes as `type` has lists, and NaN in one is null: there is no number. Null are also None,
    and a member that a dict lacks. All else is as `pyarrow.array` has it; so a fraction among integers is cut off.

    Raises ValueError, naming the column, for a member that the type does not have, for a value that is not of it, and
    for more values than a column can hold.
    """
    return _array(values, type, "")


def reorder(table: pa.Table, order: Sequence[int] | npt.NDArray[np.int64]) -> pa.Table:
    """The rows of these numbers, in this order."""
    return table.take(pa.array(order, pa.int64()))


def writer(file: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of such tables to a path or an open file, with what makes them smallest.

    Numbers with a fraction hardly repeat, so no dictionary of them is kept. Those of 64 bits are stored byte by byte,
    first bytes together, which takes a sixth off the answers of coreference; maps of float32, half zeros, grow by it.
    """
    types = dict(_columns(schema))
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[name for name, type_ in types.items() if not pa.types.is_floating(type_)],
        use_byte_stream_split=[name for name, type_ in types.items() if pa.types.is_float64(type_)],
    )


def _columns(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """The columns that Parquet keeps of the fields, by the names that it gives them."""
    for field in fields:
        name, type_ = above + field.name, field.type
        while pa.types.is_list(type_):
            name, type_ = f"{name}.list.element", type_.value_type
        if pa.types.is_struct(type_):
            yield from _columns(type_, f"{name}.")
        else:
            yield name, type_


def _array(values: Sequence[Any], type_: pa.DataType, column: str) -> pa.Array:
    if pa.types.is_struct(type_):
        return _structs(values, type_, column)
    if pa.types.is_list(type_):
        return _lists(values, type_, column)
    return _converted(values, type_, column)


def _structs(values: Sequence[Any], type_: pa.DataType, column: str) -> pa.Array:
    rows, _ = _present(values, {}, dict, type_, column)
    if unknown := set().union(*rows) - {field.name for field in type_}:
        raise ValueError(f"{column or 'record'}: no column for {', '.join(sorted(map(str, unknown)))}")
    leaves = pa.struct([field for field in type_ if not pa.types.is_nested(field.type)])
    found = _converted(values, leaves, column)  # together: every dict is looked into once
    if found.type == type_:
        return found
    children = {field.name: child for field, child in zip(leaves, found.flatten(), strict=True)}
    for names, inner in _alike(type_):
        within = f"{column}.{'|'.join(names)}".lstrip(".")
        child = _array([row.get(name) for row in rows for name in names], inner, within)
        for place, name in enumerate(names):
            children[name] = child.take(np.arange(place, len(child), len(names))) if len(names) > 1 else child
    return pa.StructArray.from_arrays(
        [children[field.name] for field in type_], fields=list(type_), mask=found.is_null()
    )


def _alike(type_: pa.DataType) -> list[tuple[list[str], pa.DataType]]:
    """The nested fields of a struct, and their types. Structs of one type stand together, as all the scores of a head
    do: so they are read in the order in which they lie in memory, in little more than half the time."""
    groups: dict[object, list[str]] = {}
    for field in type_:
        if pa.types.is_nested(field.type):
            groups.setdefault(field.type if pa.types.is_struct(field.type) else field.name, []).append(
                field.name
            )
    return [(names, type_.field(names[0]).type) for names in groups.values()]


def _lists(values: Sequence[Any], type_: pa.DataType, column: str) -> pa.Array:
    rows, missing = _present(values, (), list | tuple | np.ndarray, type_, column)
    if np.ndarray in set(map(type, rows)):
        return _arrays(values, missing, type_, column)
    offsets = _offsets(np.fromiter(map(len, rows), np.int64, len(rows)), column)
    child = _array(list(chain.from_iterable(rows)), type_.value_type, column)
    return pa.ListArray.from_arrays(offsets, child, type=type_, mask=missing)


def _arrays(values: Sequence[Any], missing: pa.Array | None, type_: pa.DataType, column: str) -> pa.Array:
    lists, leaf = [], type_
    while pa.types.is_list(leaf):
        lists.append(leaf)
        leaf = leaf.value_type
    first = next(one for one in values if isinstance(one, np.ndarray))
    absent = np.empty((0,) * len(lists), first.dtype)
    arrays = values if missing is None else [absent if one is None else one for one in values]
    if not all(isinstance(one, np.ndarray) and one.ndim == len(lists) for one in arrays):
        raise ValueError(f"{column}: beside an array stand only arrays of {len(lists)} axes in {type_}")
    shapes = np.array([one.shape for one in arrays])  # [array, axis]
    offsets = [
        _offsets(np.repeat(shapes[:, axis], shapes[:, :axis].prod(1)), column) for axis in range(len(lists))
    ]
    found = _converted(np.concatenate(arrays, axis=None), leaf, column)
    for axis in reversed(range(len(lists))):
        mask = None if axis else missing
        found = pa.ListArray.from_arrays(offsets[axis], found, type=lists[axis], mask=mask)
    return found


def _offsets(lengths: npt.NDArray[np.int64], column: str) -> pa.Array:
    """Where lists of these lengths begin and end, one behind the other."""
    offsets = np.concatenate(([0], lengths.cumsum()))
    if offsets[-1] > LONGEST_COLUMN:
        raise _too_long(column)
    return pa.array(offsets, pa.int32())


def _present(
    values: Sequence[Any], empty: object, kind: type | UnionType, type_: pa.DataType, column: str
) -> tuple[Sequence[Any], pa.Array | None]:
    """The values, each None replaced, and which were None; all others have to be of the kind."""
    kinds = set(map(type, values))
    if wrong := [one.__name__ for one in kinds if one is not NoneType and not issubclass(one, kind)]:
        raise ValueError(f"{column or 'record'}: no {type_}: {', '.join(sorted(wrong))}")
    if NoneType not in kinds:
        return values, None
    rows = [empty if value is None else value for value in values]
    return rows, pa.array([value is None for value in values])


def _converted(values: Sequence[Any] | npt.NDArray[Any], type_: pa.DataType, column: str) -> pa.Array:
    try:
        found = pa.array(values, type_, from_pandas=isinstance(values, np.ndarray))
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise ValueError(f"{column or 'record'}: {error}") from None
    if isinstance(found, pa.ChunkedArray):  # of more text than offsets of 32 bits can point to
        raise _too_long(column)
    return found


def _too_long(column: str) -> ValueError:
    return ValueError(f"{column}: a column holds {LONGEST_COLUMN} values; take fewer records at once")
