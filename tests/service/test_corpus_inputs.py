"""Files of rows: what was written is what is read, whatever lies between."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import pickle
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.corpus import inputs
from service.corpus.inputs import InputError, Reader, Row, Source, find, plan

BOM = b"\xef\xbb\xbf"
Write = Callable[[str, bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return written


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A limit that tests can reach."""
    limit = csv.field_size_limit()
    monkeypatch.setattr(inputs, "MAX_LINE_BYTES", 1009)
    yield 1009
    csv.field_size_limit(limit)


def read(path: Path, shard_rows: int = 3, seed: int | None = None) -> list[Row]:
    """All rows, in their order; with a seed the shards are read in another one."""
    sources, shards = plan([path], shard_rows=shard_rows)
    assert [shard.first for shard in shards] == list(range(0, sources[0].rows, shard_rows))
    order = list(shards)
    if seed is not None:
        random.Random(seed).shuffle(order)
    with Reader() as reader:
        rows = {shard.index: reader.rows(shard) for shard in order}
    assert [len(rows[shard.index]) for shard in shards] == [shard.rows for shard in shards]
    return [row for shard in shards for row in rows[shard.index]]


def seen(rows: Sequence[Row]) -> list[tuple[int, object]]:
    """Line and values, or line and code."""
    return [(row.line, row.values if row.fault is None else row.fault.code) for row in rows]


def details(rows: Sequence[Row]) -> list[str]:
    return [row.fault.detail for row in rows if row.fault is not None]


# What was written


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    rows=st.lists(
        st.tuples(st.dictionaries(st.text(), JSON_VALUES, max_size=3), st.integers(0, 2)), max_size=11
    ),
    line_end=st.sampled_from([b"\n", b"\r\n"]),
    ascii_only=st.booleans(),
    bom=st.booleans(),
    zipped=st.booleans(),
    ended=st.booleans(),
    shard_rows=st.integers(1, 5),
    seed=st.none() | st.integers(0, 99),
)
def test_the_rows_of_json_lines_are_read_as_they_were_written(
    rows: list[tuple[dict[str, Any], int]],
    line_end: bytes,
    ascii_only: bool,
    bom: bool,
    zipped: bool,
    ended: bool,
    shard_rows: int,
    seed: int | None,
) -> None:
    lines, expected = [], []
    for values, blank in rows:
        lines += [b"  "] * blank
        lines.append(json.dumps(values, ensure_ascii=ascii_only).encode())
        expected.append((len(lines), values))
    content = BOM * bom + line_end.join(lines) + line_end * ended
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.jsonl"
        path.write_bytes(gzip.compress(content) if zipped else content)
        assert seen(read(path, shard_rows, seed)) == expected


@given(
    rows=st.lists(
        st.tuples(st.text(), st.text(), st.sampled_from(['a "b"\n', "", "\r\n\n", '",', "ü\x85 "]))
    ),
    all_quoted=st.booleans(),
    ending=st.sampled_from([".csv", ".tsv"]),
    bom=st.booleans(),
    zipped=st.booleans(),
    shard_rows=st.integers(1, 5),
    seed=st.none() | st.integers(0, 99),
)
def test_the_rows_of_csv_are_read_as_they_were_written(
    rows: list[tuple[str, str, str]],
    all_quoted: bool,
    ending: str,
    bom: bool,
    zipped: bool,
    shard_rows: int,
    seed: int | None,
) -> None:
    names = ("id", "text", "ni ño")
    buffer = io.StringIO(newline="")
    writer = csv.writer(
        buffer,
        delimiter="," if ending == ".csv" else "\t",
        quoting=csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL,
    )
    writer.writerow(names)
    expected = []
    for cells in rows:
        line = buffer.getvalue().count("\n") + 1
        expected.append((line, {name: cell for name, cell in zip(names, cells, strict=True) if cell}))
        writer.writerow(cells)
    content = BOM * bom + buffer.getvalue().encode()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"rows{ending}"
        path.write_bytes(gzip.compress(content) if zipped else content)
        assert seen(read(path, shard_rows, seed)) == expected


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from([b'"', b'""', b",", b"\n", b"\r", b"a", b"\xff", b"\x00", b' "']), max_size=40
    ).map(b"".join),
    st.sampled_from(["x.jsonl", "x.csv", "x.tsv"]),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_of_whatever_bytes_the_plan_and_the_reader_count_the_same_rows(
    content: bytes, name: str, shard_rows: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(content if name.endswith("jsonl") else b"text\n" + content)
        rows = read(path, shard_rows, seed)  # which compares the counts
        assert rows == read(path, shard_rows=97)
        assert len({row.line for row in rows}) == len(rows)


def test_one_corrupt_row_in_a_thousand_costs_one_row(write: Write) -> None:
    lines = [json.dumps({"text": f"sentence {number}"}).encode() for number in range(1, 1001)]
    lines[499] = lines[499][:-3]
    rows = read(write("rows.jsonl", b"\n".join(lines)), shard_rows=101)
    assert len(rows) == 1000
    assert seen(rows[498:501]) == [
        (499, {"text": "sentence 499"}),
        (500, "malformed_line"),
        (501, {"text": "sentence 501"}),
    ]
    assert sum(row.fault is not None for row in rows) == 1


# JSON Lines


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b'{"secret": 1', "not valid JSON: EOF while parsing an object at column 12."),
        (b"['secret']", "not valid JSON"),
        (b'["secret"]', "The line is not a JSON object."),
        (b'"secret"', "The line is not a JSON object."),
        (b'{"secret": 1, "secret": 2}', "A member is named twice in one object."),
        (b'{"a": [{"secret": 1, "secret": 1}]}', "A member is named twice in one object."),
        (b'{"secret": NaN}', "not valid JSON"),
        (b'{"secret": -Infinity}', "not valid JSON"),
        (b'{"a": {"secret": [1e400]}}', "a number that is too large."),
        (b'{"secret": "\\ud800"}', "half of a surrogate pair is no character"),
        (b'{"secret": "\xff"}', "it is not UTF-8"),
        (b'{"secret": "\xed\xa0\x80"}', "it is not UTF-8"),
        (b'{"secret": 1} {}', "trailing characters"),
        (BOM + b'{"secret": 1}', "not valid JSON"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, "recursion limit"),
    ],
)
def test_a_line_that_is_no_strict_json_object_is_a_fault_and_the_next_is_read(
    write: Write, line: bytes, detail: str
) -> None:
    rows = read(write("rows.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 3}\n'))
    assert seen(rows) == [(1, {"a": 1}), (2, "malformed_line"), (3, {"a": 3})]
    assert detail in details(rows)[0]
    assert "secret" not in details(rows)[0]


def test_a_json_file_that_is_one_array_is_refused_with_the_reason(write: Write) -> None:
    for content in (b'[{"a": 1}]', BOM + b'\n\n  [\n{"a": 1},\n{"a": 2}]'):
        with pytest.raises(InputError, match=r"rows\.JSON holds a JSON array"):
            plan([write("rows.JSON", content)], shard_rows=3)
    assert seen(read(write("rows.json", b'{"a": [1]}'))) == [(1, {"a": [1]})]


def test_an_array_on_one_line_over_the_limit_is_told_as_an_array(write: Write, short_lines: int) -> None:
    with pytest.raises(InputError, match="holds a JSON array"):
        plan([write("rows.json", b"[" + b'{"a": 1},' * short_lines + b"{}]")], shard_rows=3)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_a_line_over_the_limit_is_a_fault_and_not_held(write: Write, short_lines: int, name: str) -> None:
    longest = b'{"a": "' + b"x" * (short_lines - 10) + b'"}\n'
    assert len(longest) == short_lines
    content = longest + b"y" + longest + b'{"a": "' + b"z" * 8_000_000 + b'"}\n{"a": 4}'
    path = write(name, gzip.compress(content) if name.endswith("gz") else content)
    tracemalloc.start()
    rows = read(path, shard_rows=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen(rows)[1:] == [(2, "line_too_long"), (3, "line_too_long"), (4, {"a": 4})]
    assert rows[0].values is not None
    assert details(rows)[0] == "The line is longer than 1009 bytes."
    assert peak < 2_500_000


def test_the_memory_of_a_plan_does_not_grow_with_the_file(write: Write) -> None:
    path = write(
        "rows.jsonl", b'{"text": "a sentence of a few words, which is as long as most are"}\n' * 80_000
    )
    tracemalloc.start()
    sources, _ = plan([path], shard_rows=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sources[0].rows == 80_000
    assert peak < 2_000_000 < path.stat().st_size / 2


# CSV


def test_a_cell_may_hold_line_ends_and_quotes_and_the_record_is_where_it_begins(write: Write) -> None:
    content = b'id, text \r\n1,"two\r\nlines, ""so"" to say"\r\n\r\n2,last\r\n'
    rows = read(write("rows.csv", content))
    assert seen(rows) == [
        (2, {"id": "1", "text": 'two\r\nlines, "so" to say'}),
        (5, {"id": "2", "text": "last"}),
    ]


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (b"1", "The record has 1 cells; the header has 2."),
        (b"1,secret,", "The record has 3 cells; the header has 2."),
        (b'1,"secret\n\n",2', "The record has 3 cells; the header has 2."),
        (b'1,"secret"s', "not valid CSV: ',' expected after '\"'."),
        (b"1,sec\rret", "not valid CSV: new-line character seen in unquoted field."),
        (b"1,secret\xff", "The record is not UTF-8 at byte 8."),
        (b'1,"\xed\xa0\x80"', "The record is not UTF-8 at byte 3."),
    ],
)
def test_a_record_that_is_no_strict_csv_is_a_fault_and_the_next_is_read(
    write: Write, record: bytes, detail: str
) -> None:
    rows = read(write("rows.csv", b'id,text\n0,"a"\n' + record + b'\n3,"b"'))
    next_line = 4 + record.count(b"\n")
    assert seen(rows) == [
        (2, {"id": "0", "text": "a"}),
        (3, "malformed_line"),
        (next_line, {"id": "3", "text": "b"}),
    ]
    assert detail in details(rows)[0]
    assert "secret" not in details(rows)[0]


def test_a_quote_that_is_not_closed_costs_its_line_and_not_the_file(write: Write) -> None:
    rows = read(write("rows.csv", b'id,text\n1,"open\n2,b\n\n3,c\n'), shard_rows=2)
    assert seen(rows) == [
        (2, "malformed_line"),
        (3, {"id": "2", "text": "b"}),
        (5, {"id": "3", "text": "c"}),
    ]
    assert details(rows) == [
        "A quote is not closed before the end of the file, 4 lines on. Reading goes on at the record's second line."
    ]


def test_a_quote_that_another_record_would_close_costs_its_line_only(write: Write) -> None:
    rows = read(write("rows.csv", b'id,text\n1,"open\n2,b\n3,"c"\n'))
    assert seen(rows) == [
        (2, "malformed_line"),
        (3, {"id": "2", "text": "b"}),
        (4, {"id": "3", "text": "c"}),
    ]
    assert "3 lines on" in details(rows)[0]


def test_of_records_with_mismatched_quotes_one_after_the_other_each_costs_its_line(write: Write) -> None:
    rows = read(
        write("rows.csv", b'id,text\n1,"open\n2,"x\ny"z\n3,"c\nd"\n4,"e"\n5,"open\n6,f\n'), shard_rows=2
    )
    assert seen(rows) == [
        (2, "malformed_line"),
        (3, "malformed_line"),
        (4, "malformed_line"),  # what would be the end of the record before
        (5, {"id": "3", "text": "c\nd"}),
        (7, {"id": "4", "text": "e"}),
        (8, "malformed_line"),
        (9, {"id": "6", "text": "f"}),
    ]


def test_what_was_looked_through_for_a_closing_quote_is_read_once_however_many_records_look(
    write: Write,
) -> None:
    rows = read(write("rows.csv", b'id,text\n1,"open\n2,""x\n3,c\n4,""y\n5,d\n'), shard_rows=2)
    assert seen(rows) == [
        (2, "malformed_line"),
        (3, "malformed_line"),
        (4, {"id": "3", "text": "c"}),
        (5, "malformed_line"),
        (6, {"id": "5", "text": "d"}),
    ]


def test_a_file_whose_quotes_never_match_is_refused_before_it_is_read_over_and_over(
    write: Write, short_lines: int
) -> None:
    with pytest.raises(
        InputError, match=r"too many quotes that do not match, the last one in line \d{1,2}\."
    ):
        plan([write("rows.csv", b"id,text\n" + b'a","b\n' * 3000)], shard_rows=7)
    now_and_then = (b'1,"open\n' + b"2,b\n" * 300) * 30
    sources, _ = plan([write("rows.csv", b"id,text\n" + now_and_then)], shard_rows=7)
    assert sources[0].rows == 301 * 30


def test_a_record_of_several_lines_may_be_as_long_as_the_limit(write: Write, short_lines: int) -> None:
    longest = b'1,"\n' + b"x" * (short_lines - 6) + b'"\n'
    assert len(longest) == short_lines
    longer = longest.replace(b"x", b"xx", 1)
    rows = read(write("rows.csv", b"id,text\n" + longest + longer + b"2,b\n"))
    assert [row.line for row in rows] == [2, 4, 5, 6]
    assert rows[0].values == {"id": "1", "text": "\n" + "x" * (short_lines - 6)}
    assert [row.fault.code for row in rows[1:3] if row.fault] == ["line_too_long", "malformed_line"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_the_search_for_the_closing_quote_ends_at_the_limit(
    write: Write, short_lines: int, name: str
) -> None:
    content = b'id,text\n1,"open\n' + b"2,b\n" * 400 + b"3," + b"x" * 2000 + b'\n4,"d"\n5,"open\n6,f'
    path = write(name, gzip.compress(content) if name.endswith("gz") else content)
    rows = read(path, shard_rows=7)
    assert seen(rows) == [
        (2, "line_too_long"),
        *((line, {"id": "2", "text": "b"}) for line in range(3, 403)),
        (403, "line_too_long"),
        (404, {"id": "4", "text": "d"}),
        (405, "malformed_line"),
        (406, {"id": "6", "text": "f"}),
    ]
    assert details(rows)[0].startswith("The record is longer than 1009 bytes, 252 lines on.")
    assert rows == read(path, shard_rows=7, seed=2)


def test_a_cell_over_the_csv_modules_own_limit_is_read(write: Write) -> None:
    text = "x" * 200_000
    assert seen(read(write("rows.csv", f"text\n{text}\n".encode()))) == [(2, {"text": text})]


def test_a_quoted_empty_cell_is_a_row_without_values_and_spaces_are_kept(write: Write) -> None:
    assert seen(read(write("rows.csv", b'text\n""\n x \n'))) == [(2, {}), (3, {"text": " x "})]
    assert seen(read(write("rows.tsv", b"a\tb\n\t\n1,2\t3\n"))) == [(2, {}), (3, {"a": "1,2", "b": "3"})]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\n\r\n", "is empty"),
        (BOM, "is empty"),
        (b"a,b, a\n1,2,3\n", "two columns of the same name"),
        (b'a,"b\n1,2\n', "header of .* cannot be read. A quote is not closed"),
        (b"a,\xff\n1,2\n", "header of .* cannot be read. The record is not UTF-8"),
    ],
)
def test_a_csv_file_without_a_header_is_refused(write: Write, content: bytes, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        plan([write("rows.csv", content)], shard_rows=3)


def test_a_header_alone_is_a_file_without_rows(write: Write) -> None:
    sources, shards = plan([write("rows.csv", b"a,b"), write("rows.jsonl", b"\n")], shard_rows=3)
    assert [(source.rows, source.columns) for source in sources] == [(0, ("a", "b")), (0, ())]
    assert shards == []


# gzip


def test_gzip_is_known_by_its_first_bytes_and_may_have_several_members(write: Write) -> None:
    content = gzip.compress(b'{"a": 1}\n{"a"') + gzip.compress(b": 2}\n") + bytes(512)  # padded as tapes are
    for name in ("rows.jsonl", "rows.JSONL.GZ"):
        assert seen(read(write(name, content))) == [(1, {"a": 1}), (2, {"a": 2})]


def test_a_gzip_file_that_ends_early_gives_what_it_holds_and_one_more_row(write: Write) -> None:
    numbers = random.Random(7)
    lines = [json.dumps({"a": numbers.getrandbits(200)}).encode() + b"\n" for _ in range(20_000)]
    whole = gzip.compress(b"".join(lines))
    rows = read(write("rows.jsonl.gz", whole[: len(whole) // 2]), shard_rows=997)
    assert 5_000 < len(rows) < 15_000
    assert [row.values for row in rows[:-1]] == [json.loads(line) for line in lines[: len(rows) - 1]]
    assert seen(rows[-1:]) == [(len(rows), "unreadable_file")]
    assert details(rows) == ["The gzip file ends early. Nothing is read from here on."]


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_gzip_file_gives_the_same_rows_in_any_order_of_its_shards(write: Write, seed: int) -> None:
    numbers = random.Random(seed)
    lines = [f'{number},"{numbers.getrandbits(300)}\n"\n' for number in range(9_000)]
    content = bytearray(gzip.compress(("id,text\n" + "".join(lines)).encode()))
    place = numbers.randrange(len(content) // 4, len(content))
    content[place : place + 4] = b"\xff\x00\xff\x00"
    path = write("rows.csv.gz", bytes(content))
    rows = read(path, shard_rows=311)
    assert rows[-1].fault is not None
    assert rows[-1].fault.code == "unreadable_file"
    assert rows[0].values is not None
    assert rows == read(path, shard_rows=311, seed=seed)
    assert plan([path], shard_rows=5)[0][0].sha256 == hashlib.sha256(content).hexdigest()


def test_a_gzip_file_with_another_checksum_keeps_its_rows(write: Write) -> None:
    content = bytearray(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    content[-8] ^= 1
    rows = read(write("rows.jsonl.gz", bytes(content)))
    assert seen(rows) == [(1, {"a": 1}), (2, {"a": 2}), (3, "unreadable_file")]
    assert details(rows) == ["The gzip file is damaged. Nothing is read from here on."]


def test_a_record_that_the_end_of_a_damaged_gzip_file_cuts_is_the_unreadable_row(write: Write) -> None:
    for cut in (b"2,b", b'2,"b\nc\n', b'2,"b\nc"'):
        content = gzip.compress(b'id,text\n1,"a"\n' + cut)[:-8]  # without checksum and length
        assert seen(read(write("rows.csv.gz", content))) == [
            (2, {"id": "1", "text": "a"}),
            (3, "unreadable_file"),
        ]


def test_what_is_no_gzip_under_its_name_is_one_unreadable_row_of_a_file_that_is_hashed_whole(
    write: Write,
) -> None:
    content = b'{"secret": 1}\n' * 100_000
    path = write("rows.jsonl.gz", content)
    assert plan([path], shard_rows=3)[0][0].sha256 == hashlib.sha256(content).hexdigest()
    rows = read(path)
    assert seen(rows) == [(1, "unreadable_file")]
    assert "{" not in details(rows)[0]


def test_shards_of_gzip_in_ascending_order_are_one_pass(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("rows.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000))
    _, shards = plan([path], shard_rows=100)
    opened = []
    inflated = inputs._Inflated
    monkeypatch.setattr(inputs, "_Inflated", lambda file: opened.append(file) or inflated(file))
    with Reader() as reader:
        for shard in shards[::2]:
            assert reader.rows(shard)[0].line == shard.line
        assert len(opened) == 1
        reader.rows(shards[0])
        assert len(opened) == 2


# Parquet


def parquet(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_rows_of_parquet_are_read_over_row_groups_in_any_order(tmp_path: Path, seed: int | None) -> None:
    values = [{"id": number, "text": f"sentence {number}"} for number in range(5003)]
    path = parquet(tmp_path / "rows.PARQUET", pa.Table.from_pylist(values), row_group_size=1511)
    rows = read(path, shard_rows=613, seed=seed)
    assert seen(rows) == [(number + 1, one) for number, one in enumerate(values)]


def test_nested_values_are_python_objects_and_nulls_and_nans_are_absent(tmp_path: Path) -> None:
    table = pa.table(
        {
            "spans": pa.array([[{"text": "she"}], None]),
            "weights": pa.array([[("a", 1.0)], [("b", 2.0)]], pa.map_(pa.string(), pa.float64())),
            "score": pa.array([float("nan"), 0.5]),
            "text": pa.array(["", None]),
        }
    )
    path = parquet(tmp_path / "rows.parquet", table)
    assert seen(read(path)) == [
        (1, {"spans": [{"text": "she"}], "weights": {"a": 1.0}, "text": ""}),
        (2, {"weights": {"b": 2.0}, "score": 0.5}),
    ]
    assert plan([path], shard_rows=1)[0][0].columns == ("spans", "weights", "score", "text")


def test_a_parquet_row_with_no_python_value_is_a_fault_of_its_own(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    rows = read(parquet(tmp_path / "rows.parquet", pa.table({"text": texts})))
    assert seen(rows) == [(1, {"text": "a"}), (2, "malformed_line"), (3, {"text": "c"})]


def test_of_a_damaged_row_group_the_rows_are_faults_and_the_others_are_read(tmp_path: Path) -> None:
    table = pa.table({"text": [f"sentence {number}" for number in range(21)]})
    path = parquet(
        tmp_path / "rows.parquet",
        table,
        row_group_size=7,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 0xFF
    path.write_bytes(content)
    for seed in (None, 3):
        rows = read(path, shard_rows=5, seed=seed)
        assert [row.line for row in rows if row.fault is None] == [*range(1, 8), *range(15, 22)]
        assert {row.fault.code for row in rows if row.fault is not None} == {"unreadable_file"}
        assert rows[14].values == {"text": "sentence 14"}


def test_a_shard_reads_only_the_row_groups_that_it_touches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "rows.parquet", pa.table({"a": list(range(30))}), row_group_size=5)
    _, shards = plan([path], shard_rows=6)
    groups: list[int] = []

    class Watched(pq.ParquetFile):
        def iter_batches(self, *args: Any, row_groups: list[int], **options: Any) -> Any:
            groups.extend(row_groups)
            return super().iter_batches(*args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq, "ParquetFile", Watched)
    with Reader() as reader:
        reader.rows(shards[3])  # rows 18 to 23
        assert groups == [3, 4]
        reader.rows(shards[4])  # 24 to 29
        assert groups == [3, 4, 5]


def test_a_damaged_parquet_file_and_one_with_equal_names_are_refused(write: Write, tmp_path: Path) -> None:
    whole = parquet(tmp_path / "whole.parquet", pa.table({"a": [1]})).read_bytes()
    for content in (b"", b"a,b\n1,2\n", whole[:-9]):
        with pytest.raises(InputError, match="not a Parquet file, or a damaged one"):
            plan([write("rows.parquet", content)], shard_rows=3)
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(InputError, match="two columns of the same name"):
        plan([parquet(tmp_path / "twice.parquet", twice)], shard_rows=3)


def test_a_parquet_file_without_rows_has_no_shards(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", pa.table({"a": pa.array([], pa.int64())}))
    assert plan([path], shard_rows=3)[1] == []


# Files


def test_shards_are_numbered_over_all_files(write: Write, tmp_path: Path) -> None:
    first = write("a.jsonl", b'{"a": 1}\n\n{"a": 2}\n{"a": 3}\n')
    second = write("b.csv", b"a\n4\n5\n")
    third = parquet(tmp_path / "c.parquet", pa.table({"a": [6, 7, 8]}))
    sources, shards = plan([first, second, third], shard_rows=2)
    assert [(one.index, one.source.path, one.start, one.line, one.rows, one.first) for one in shards] == [
        (0, str(first), 0, 1, 2, 0),
        (1, str(first), 19, 4, 1, 2),
        (2, str(second), 2, 2, 2, 3),
        (3, str(third), 0, 1, 2, 5),
        (4, str(third), 2, 3, 1, 7),
    ]
    assert [(source.format, source.rows) for source in sources] == [("jsonl", 3), ("csv", 2), ("parquet", 3)]
    for path, source in zip((first, second, third), sources, strict=True):
        assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    reader = Reader()
    values = [
        row.values for shard in reversed(pickle.loads(pickle.dumps(shards))) for row in reader.rows(shard)
    ]
    reader.close()
    assert values == [{"a": 8}, {"a": 6}, {"a": 7}, {"a": "4"}, {"a": "5"}, {"a": 3}, {"a": 1}, {"a": 2}]


def test_files_and_globs_are_found_in_their_order_each_once(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b.jsonl", "a.jsonl", "in/side/c.jsonl", "in/d.csv", "odd[1].csv", "odd1.csv"):
        write(name, b"")
    (tmp_path / "folder.jsonl").mkdir()
    monkeypatch.chdir(tmp_path)
    assert list(map(str, find(["b.jsonl", "*.jsonl"]))) == ["b.jsonl", "a.jsonl"]
    assert list(map(str, find(["**/*.jsonl"]))) == ["a.jsonl", "b.jsonl", "in/side/c.jsonl"]
    assert list(map(str, find(["odd[1].csv", "./in/../b.jsonl", "b.jsonl"]))) == [
        "odd[1].csv",
        "in/../b.jsonl",
    ]
    assert find([f"{tmp_path}/in/*"]) == [tmp_path / "in/d.csv"]


def test_an_input_that_names_no_file_is_refused(write: Write, tmp_path: Path) -> None:
    for pattern in ("none.jsonl", "*.none"):
        with pytest.raises(InputError, match=r"No file matches .*none"):
            find([str(write("a.csv", b"")), str(tmp_path / pattern)])
    with pytest.raises(InputError, match="is a directory"):
        find([str(tmp_path)])


@pytest.mark.parametrize("name", ["rows.txt", "rows", "rows.txt.gz", ".jsonl", "rows.parquet.gz"])
def test_another_ending_is_refused_before_any_file_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"endings|without gzip"):
        plan([tmp_path / "missing.csv", tmp_path / name], shard_rows=3)


def test_a_file_that_cannot_be_opened_is_told_with_the_reason(tmp_path: Path) -> None:
    for name in ("missing.csv", "missing.parquet"):
        with pytest.raises(InputError, match=r"missing\.\w+ cannot be read: No such file or directory\."):
            plan([tmp_path / name], shard_rows=3)


def test_a_file_that_has_changed_since_the_plan_is_told(write: Write, tmp_path: Path) -> None:
    text = write("rows.jsonl", b'{"a": 1}\n' * 5)
    table = parquet(tmp_path / "rows.parquet", pa.table({"a": [1, 2]}))
    zipped = write("rows.csv.gz", gzip.compress(b"a\n1\n2\n3\n4\n"))
    _, shards = plan([text, table, zipped], shard_rows=3)
    text.write_bytes(b'{"a": 1}\n' * 4)
    parquet(table, pa.table({"a": [1]}))
    zipped.write_bytes(gzip.compress(b"a\n1\n2\n"))
    with Reader() as reader:
        for shard in shards:  # also those whose own bytes are as before
            with pytest.raises(InputError, match="has changed since it was counted"):
                reader.rows(shard)
        text.unlink()
        with pytest.raises(InputError, match="No such file"):
            reader.rows(shards[0])


def test_a_source_is_the_same_for_the_same_bytes(write: Write) -> None:
    path = write("rows.jsonl", b'{"a": 1}\n')
    digest = hashlib.sha256(b'{"a": 1}\n').hexdigest()
    stamp = (path.stat().st_size, path.stat().st_mtime_ns)
    assert plan([path], shard_rows=3)[0] == [Source(str(path), "jsonl", digest, 1, (), stamp)]


def test_a_name_that_is_not_utf_8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    path.write_text("{}\n")
    with pytest.raises(InputError, match=r"caf\\udce9\.jsonl' is not UTF-8"):
        find([str(path)])
