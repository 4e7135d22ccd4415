"""Files of rows: JSON Lines, CSV and Parquet, cut into shards of numbered rows.

The ending, in any case, tells the format: `.jsonl`, `.ndjson` and `.json` (an object a line), `.csv`, `.tsv` (tabs),
`.parquet`. Text is UTF-8; a byte order mark at its start is passed over. It is gzip where `.gz` follows the ending, or
its first two bytes say so. Blank lines are no rows.

`plan` and `Reader` walk over the same records, so that a shard's rows are those that were counted. A record that cannot
be read is a row with a fault, and what follows it is read as usual:

    malformed_line     not JSON or no object, a member twice, a number that is not finite, not UTF-8; CSV that is not
                       valid, or that has other than the header's number of cells; a Parquet row with no Python value
    line_too_long      a line or a CSV record over MAX_LINE_BYTES, which is not held in memory
    unreadable_file    the last row of a gzip file that ends early or is damaged; the rows of a damaged Parquet group

A quoted cell of CSV may hold line ends. Where its quotes do not match, nobody knows how many lines the record was meant
to have: the fault is its first line, and reading goes on at the next one. So a quote that is never closed costs one
row, not the rest of the file; what was inside it is then read as records of their own. A file in which so many do not
match that reading on would take longer and longer is refused.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import math
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic_core import from_json

from service.errors import FieldError, MalformedBodyError
from service.validation import refuse_duplicate_members

Format = Literal["jsonl", "csv", "parquet"]

MAX_LINE_BYTES = 16 * 2**20
CHUNK_BYTES = 2**18  # read, and inflated, at a time
SHARD_ROWS = 256  # about ten seconds' work: what an interruption loses, and how often the bar moves
FEWEST_ROWS = 16
SHARDS_OF_FEW = 16  # of an input too small for as many shards of full size
BATCH_ROWS = 1024  # of Parquet, decoded at a time
BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
FORMATS: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}


class InputError(ValueError):
    """An input that cannot be used at all; the message is a sentence for whoever named it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One record: its `values` by column or member name, or the `fault` that says why there are none.

    `line` counts from 1: the line of the (decompressed) text where the record begins, or the row of a Parquet file.
    Empty cells, nulls and NaNs of CSV and Parquet are not among the values.
    """

    line: int
    values: Mapping[str, Any] | None
    fault: FieldError | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A file. `sha256` is that of its bytes as they lie there; `columns` has the names of CSV and Parquet.

    `stamp` is its size and time of change when it was counted.
    """

    path: str
    format: Format
    sha256: str
    rows: int
    columns: tuple[str, ...]
    stamp: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shard:
    """`rows` consecutive rows of one file.

    `index` counts the shards of all files, `first` the rows before this one's in all files. It begins at `line`;
    `start` is the byte of the (decompressed) text, or the row of a Parquet file, from 0.
    """

    index: int
    source: Source
    start: int
    line: int
    rows: int
    first: int


class _Record(NamedTuple):
    """The bytes of a line, or of a CSV record of several; of one that is too long only the first few."""

    start: int
    line: int
    raw: bytes
    fault: FieldError | None


def find(inputs: Sequence[str]) -> list[Path]:
    """The files that paths and globs (`**` for any folders) name, in their order; a glob's are sorted; each once.

    Raises InputError for one that names no file.
    """
    found: dict[Path, Path] = {}
    for given in (str(Path(one).expanduser()) for one in inputs):
        if Path(given).is_dir():
            raise InputError(
                f"{given} is a directory; name its files: {Path(given) / '*.jsonl'}, for example."
            )
        if Path(given).is_file():
            matches = [Path(given)]  # also where its name has the signs of a glob
        else:
            matches = [Path(one) for one in sorted(glob.glob(given, recursive=True))]  # noqa: PTH207 absolute ones too
            matches = [one for one in matches if one.is_file()]
        if not matches:
            raise InputError(f"No file matches {given}.")
        for path in matches:
            try:
                str(path).encode()
            except UnicodeEncodeError:
                raise InputError(f"The name {str(path)!a} is not UTF-8.") from None
            found.setdefault(path.resolve(), path)
    return list(found.values())


def plan(paths: Sequence[Path], *, shard_rows: int | None = None) -> tuple[list[Source], list[Shard]]:
    """The files, hashed and counted in one pass over each, and their shards of at most `shard_rows` rows.

    None: `SHARD_ROWS`, of small inputs fewer, so that there is work for several. Memory does not grow with the files,
    but by a shard. Raises InputError for a file of which no row can be read.
    """
    formats = [_format_of(path) for path in paths]  # all of them before the first is read
    step = shard_rows or FEWEST_ROWS
    counted: list[tuple[Source, list[tuple[int, int]]]] = []
    for path, kind in zip(paths, formats, strict=True):
        with _told(path):
            counted.append((_plan_parquet if kind == "parquet" else _plan_text)(path, kind, step))
            if counted[-1][0].stamp != _stamp(path):
                raise InputError(f"{path} is being written to.")
    if shard_rows is None:
        shard_rows = _shard_rows(sum(source.rows for source, _ in counted))
    shards: list[Shard] = []
    first = 0
    for source, cuts in counted:
        for place, (start, line) in enumerate(cuts[:: shard_rows // step]):
            rows = min(shard_rows, source.rows - place * shard_rows)
            shards.append(Shard(len(shards), source, start, line, rows, first))
            first += rows
    return [source for source, _ in counted], shards


def _shard_rows(rows: int) -> int:
    """For so many rows in all: a whole number of times the fewest."""
    wanted = min(SHARD_ROWS, rows // SHARDS_OF_FEW)
    return max(1, wanted // FEWEST_ROWS) * FEWEST_ROWS


def _stamp(path: Path | str) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_size, found.st_mtime_ns


class Reader:
    """Reads shards; the last file stays open, so that shards in ascending order cost one pass even of gzip.

    Paths are taken from the `folder`. Of Parquet only the `columns` are read, all where that is None.
    """

    def __init__(self, folder: Path = Path(), *, columns: Collection[str] | None = None) -> None:
        self._folder, self._columns = folder, columns
        self._file: _Text | _Parquet | None = None

    def rows(self, shard: Shard) -> list[Row]:
        """As many rows as the shard has. Raises InputError where the file is gone, or has others than were planned."""
        source = replace(shard.source, path=str(self._folder / shard.source.path))
        with _told(source.path):
            if _stamp(source.path) != source.stamp:
                raise InputError(f"{source.path} has changed since it was counted.")
            if self._file is None or self._file.source != source:
                self.close()
                self._file = _Parquet(source, self._columns) if source.format == "parquet" else _Text(source)
            rows = list(self._file.rows(shard))
            changed = _stamp(source.path) != source.stamp
        if changed or len(rows) != shard.rows or (rows and rows[0].line != shard.line):
            raise InputError(f"{source.path} has changed since it was counted.")
        return rows

    def close(self) -> None:
        """Close the file; the next shard opens its own again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _format_of(path: Path) -> Format:
    ending = _ending(path)
    if ending not in FORMATS:
        raise InputError(
            f"{path} has none of the endings {', '.join(FORMATS)}; .gz may follow those of text."
        )
    if ending == ".parquet" and path.suffix.lower() == ".gz":
        raise InputError(
            f"{path} is Parquet in gzip; Parquet is compressed inside, and read without gzip only."
        )
    return FORMATS[ending]


def _ending(path: Path) -> str:
    return Path(path.name[:-3] if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def _delimiter(path: Path) -> str | None:
    """What separates the cells of a record; None for JSON Lines."""
    return {".csv": ",", ".tsv": "\t"}.get(_ending(path))


@contextmanager
def _told(path: Path | str) -> Iterator[None]:
    """What the system says of a file that cannot be read, as an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or 'it is damaged'}.") from error


# Text


def _plan_text(path: Path, kind: Format, shard_rows: int) -> tuple[Source, list[tuple[int, int]]]:
    """The file, and where every shard begins: byte and line."""
    cuts = []
    rows = 0
    stamp = _stamp(path)
    delimiter = _delimiter(path)
    with _Stream(path) as stream:
        records = _records(stream, 1, delimiter)
        columns = () if delimiter is None else _header(path, next(records, None), delimiter)
        for record in records:
            if not rows and _ending(path) == ".json" and record.raw.lstrip().startswith(b"["):
                raise InputError(f"{path} holds a JSON array; JSON Lines are read, an object a line.")
            if stream.given_back > stream.position + 4 * MAX_LINE_BYTES:
                raise InputError(
                    f"{path} has too many quotes that do not match, the last one in line {record.line}."
                )
            if rows % shard_rows == 0:
                cuts.append((record.start, record.line))
            rows += 1
        return Source(str(path), kind, stream.sha256(), rows, columns, stamp), cuts


class _Text:
    """A text file that is open at some byte."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._delimiter = _delimiter(Path(source.path))
        self._stream = _Stream(Path(source.path))

    def close(self) -> None:
        self._stream.close()

    def rows(self, shard: Shard) -> Iterator[Row]:
        self._stream.seek(shard.start)
        for record in islice(_records(self._stream, shard.line, self._delimiter), shard.rows):
            if record.fault is not None:
                yield Row(record.line, None, record.fault)
            elif self._delimiter is None:
                yield _json_row(record)
            else:
                yield _csv_row(record, self.source.columns, self._delimiter)


def _json_row(record: _Record) -> Row:
    raw = record.raw.rstrip()
    try:
        values = from_json(raw, allow_inf_nan=False)
        refuse_duplicate_members(raw)
    except MalformedBodyError as error:
        return _malformed(record, error.detail)
    except ValueError as error:
        reason = str(error).replace(" at line 1 ", " at ")
        if "hex escape" in reason:
            reason += " (half of a surrogate pair is no character)"
        if "code point" in reason:
            reason += " (it is not UTF-8)"
        return _malformed(record, f"The line is not valid JSON: {reason}.")
    if not isinstance(values, dict):
        return _malformed(record, "The line is not a JSON object.")
    if not _finite(values):
        return _malformed(record, "The line holds a number that is too large.")
    return Row(record.line, values)


def _finite(value: object) -> bool:
    """Whether all numbers are: JSON has no infinity, but 1e400 is read as one."""
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _csv_row(record: _Record, columns: Sequence[str], delimiter: str) -> Row:
    try:
        cells = _cells(record.raw, delimiter)
    except ValueError as error:
        return _malformed(record, str(error))
    if len(cells) != len(columns):
        return _malformed(record, f"The record has {len(cells)} cells; the header has {len(columns)}.")
    return Row(record.line, {name: cell for name, cell in zip(columns, cells, strict=True) if cell})


def _cells(raw: bytes, delimiter: str) -> list[str]:
    """Raises ValueError, whose message is a sentence."""
    try:
        return next(csv.reader([raw.decode()], delimiter=delimiter, strict=True))
    except UnicodeDecodeError as error:
        raise ValueError(f"The record is not UTF-8 at byte {error.start}.") from None
    except csv.Error as error:
        raise ValueError(_csv_reason(error)) from None


def _csv_reason(error: csv.Error) -> str:
    return f"The record is not valid CSV: {str(error).partition(' - ')[0]}."


def _header(path: Path, record: _Record | None, delimiter: str) -> tuple[str, ...]:
    if record is None:
        raise InputError(f"{path} is empty; a header with the columns' names is expected.")
    try:
        if record.fault is not None:
            raise ValueError(record.fault.detail)
        names = tuple(name.strip() for name in _cells(record.raw, delimiter))
    except ValueError as error:
        raise InputError(f"The header of {path} cannot be read. {error}") from None
    return _distinct(path, names)


def _distinct(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise InputError(f"{path} has two columns of the same name.")
    return names


def _malformed(record: _Record, detail: str) -> Row:
    return Row(record.line, None, FieldError("", "malformed_line", detail))


def _records(stream: _Stream, line: int, delimiter: str | None) -> Iterator[_Record]:
    """The records from where the stream stands, which is the start of a `line`. Without a delimiter, its lines."""
    csv.field_size_limit(MAX_LINE_BYTES)  # the module's own, of 128 KiB, is the whole process's too
    while (record := _line(stream, line)) is not None:
        lines = 1
        if delimiter is not None and record.fault is None and b'"' in record.raw:
            record, lines = _quoted(record, stream, delimiter)
        line += lines
        if record.fault is not None:
            yield record
            if record.fault.code == "unreadable_file":
                return
        elif record.raw.strip(None if delimiter is None else b" \r\n"):
            yield record


def _line(stream: _Stream, line: int) -> _Record | None:
    start = stream.position
    raw = stream.readline(MAX_LINE_BYTES + 1)
    fault = None
    if len(raw) > MAX_LINE_BYTES:
        fault = FieldError("", "line_too_long", f"The line is longer than {MAX_LINE_BYTES} bytes.")
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(CHUNK_BYTES)
        raw = raw[:64]
    elif not raw.endswith(b"\n"):  # the end of the file
        if stream.fault is not None:
            return _unreadable(start, line, stream.fault)
        if not raw:
            return None
    return _Record(start, line, raw.removeprefix(BOM) if start == 0 else raw, fault)


def _quoted(first: _Record, stream: _Stream, delimiter: str) -> tuple[_Record, int]:
    """The record that begins with a line with quotes, and its number of lines. See the module for mismatched ones."""
    raw = bytearray(first.raw)
    lines = 1
    at_end = False

    def feed() -> Iterator[str]:
        nonlocal lines, at_end
        yield first.raw.decode("latin-1")  # quotes, delimiters and line ends are the same bytes as in UTF-8
        while len(raw) <= MAX_LINE_BYTES:
            further = stream.readline(MAX_LINE_BYTES + 1 - len(raw))
            if not further:
                at_end = True
                return
            raw.extend(further)
            lines += 1
            if len(raw) <= MAX_LINE_BYTES:
                yield further.decode("latin-1")

    error = None
    try:
        next(csv.reader(feed(), delimiter=delimiter, strict=True))
    except csv.Error as caught:
        error = caught
    too_long = len(raw) > MAX_LINE_BYTES
    if stream.fault is not None and not too_long and (at_end or not raw.endswith(b"\n")):
        return _unreadable(first.start, first.line, stream.fault), lines
    if error is None:
        return _Record(first.start, first.line, bytes(raw), None), lines
    stream.unread(bytes(raw[len(first.raw) :]))
    code = "line_too_long" if too_long else "malformed_line"
    if too_long:
        detail = f"The record is longer than {MAX_LINE_BYTES} bytes."
    elif at_end:
        detail = "A quote is not closed before the end of the file."
    else:
        detail = _csv_reason(error)
    if lines > 1:
        detail = f"{detail[:-1]}, {lines} lines on. Reading goes on at the record's second line."
    return _Record(first.start, first.line, first.raw, FieldError("", code, detail)), 1


def _unreadable(start: int, line: int, reason: str) -> _Record:
    return _Record(
        start, line, b"", FieldError("", "unreadable_file", f"{reason} Nothing is read from here on.")
    )


class _Stream:
    """The (decompressed) bytes of a text file from `position` on; `fault` says why they have ended early."""

    def __init__(self, path: Path) -> None:
        self._hashed = _Hashed(path)
        self._bytes = io.BufferedReader(self._hashed, CHUNK_BYTES)
        self._is_gzip = path.suffix.lower() == ".gz" or self._bytes.peek(2)[:2] == GZIP
        self._begin()

    def _begin(self) -> None:
        self._inflated = _Inflated(self._bytes) if self._is_gzip else None
        self._text = self._bytes if self._inflated is None else io.BufferedReader(self._inflated, CHUNK_BYTES)
        self._ahead = io.BytesIO()  # what was read, and given back
        self.position = 0
        self.given_back = 0  # bytes, over all

    @property
    def fault(self) -> str | None:
        return None if self._inflated is None else self._inflated.fault

    def readline(self, limit: int) -> bytes:
        """To the end of the line, at most `limit` bytes; none at the end of the file."""
        line = self._ahead.readline(limit)
        if len(line) < limit and not line.endswith(b"\n"):
            line += self._text.readline(limit - len(line))
        self.position += len(line)
        return line

    def unread(self, given_back: bytes) -> None:
        self._ahead = io.BytesIO(given_back + self._ahead.read())
        self.position -= len(given_back)
        self.given_back += len(given_back)

    def seek(self, position: int) -> None:
        """Gzip is inflated up to there, and from its beginning for what lies behind."""
        if self._inflated is None:
            self._text.seek(position)
            self._ahead, self.position = io.BytesIO(), position
            return
        if position < self.position:
            self._bytes.seek(0)
            self._begin()
        while self.position < position:
            size = min(CHUNK_BYTES, position - self.position)
            skipped = len(self._ahead.read(size) or self._text.read(size))
            if not skipped:
                return  # the file is another one now: its rows tell
            self.position += skipped

    def sha256(self) -> str:
        """Of the file's bytes; for who has read it once, from its beginning to its end."""
        while self._bytes.read(CHUNK_BYTES):  # behind what of a damaged file can be inflated
            pass
        return self._hashed.sha256.hexdigest()

    def close(self) -> None:
        self._bytes.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Hashed(io.FileIO):
    """A file whose bytes are hashed as they are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sha256 = hashlib.sha256()

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer)
        self.sha256.update(memoryview(buffer)[:size])
        return size


class _Inflated(io.RawIOBase):
    """What a gzip file holds, up to its end or to the `fault` that ends it.

    It is always inflated in the same pieces, however it is read: of a damaged piece zlib gives nothing.
    """

    def __init__(self, compressed: IO[bytes]) -> None:
        self._gzip = gzip.GzipFile(fileobj=compressed)
        self._piece = memoryview(b"")
        self.fault: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._piece and self.fault is None:
            try:
                self._piece = memoryview(self._gzip.read1(CHUNK_BYTES))
            except EOFError:
                self.fault = "The gzip file ends early."
            except (gzip.BadGzipFile, zlib.error):
                self.fault = "The gzip file is damaged."
        size = min(len(buffer), len(self._piece))
        buffer[:size], self._piece = self._piece[:size], self._piece[size:]
        return size


# Parquet


def _plan_parquet(path: Path, kind: Format, shard_rows: int) -> tuple[Source, list[tuple[int, int]]]:
    """The file, and where every shard begins: row from 0, and from 1."""
    stamp = _stamp(path)
    with path.open("rb") as raw:
        sha256 = hashlib.file_digest(raw, "sha256").hexdigest()
    with _open_parquet(path) as file:
        rows, columns = file.metadata.num_rows, tuple(file.schema_arrow.names)
    cuts = [(row, row + 1) for row in range(0, rows, shard_rows)]
    return Source(str(path), kind, sha256, rows, _distinct(path, columns), stamp), cuts


def _open_parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except pa.ArrowException:
        raise InputError(f"{path} is not a Parquet file, or a damaged one.") from None


class _Parquet:
    """A Parquet file and the batch of rows that was read last; only the groups that a shard touches are read."""

    def __init__(self, source: Source, columns: Collection[str] | None) -> None:
        self.source = source
        self._file = _open_parquet(Path(source.path))
        self._columns = None if columns is None else [one for one in source.columns if one in columns]
        self._starts = [0]  # of each row group, and the end of the last
        for group in range(self._file.metadata.num_row_groups):
            self._starts.append(self._starts[-1] + self._file.metadata.row_group(group).num_rows)
        self._group = -1
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._first = self._end = 0  # the batch's rows; without one they cannot be read
        self._batch: pa.RecordBatch | None = None

    def close(self) -> None:
        self._file.close()

    def rows(self, shard: Shard) -> Iterator[Row]:
        if self._starts[-1] != self.source.rows:
            return  # the file is another one now
        row, stop = shard.start, shard.start + shard.rows
        while row < stop:
            self._read_to(row)
            end = min(stop, self._end)
            if self._batch is None:
                fault = FieldError("", "unreadable_file", "The row group cannot be read from here on.")
                yield from (Row(one + 1, None, fault) for one in range(row, end))
            else:
                yield from _parquet_rows(self._batch.slice(row - self._first, end - row), row)
            row = end

    def _read_to(self, row: int) -> None:
        """Makes the batch the one that holds the row: on in its row group, or anew where it lies behind."""
        group = bisect_right(self._starts, row) - 1
        if group != self._group or row < self._first:
            self._batches = self._file.iter_batches(
                BATCH_ROWS, row_groups=[group], columns=self._columns, use_threads=False
            )
            self._group, self._end = group, self._starts[group]
        while row >= self._end:
            self._first = self._end
            try:
                self._batch = next(self._batches, None)
            except (pa.ArrowException, OSError):
                self._batch = None
            self._end = self._starts[group + 1] if self._batch is None else self._first + len(self._batch)


def _parquet_rows(batch: pa.RecordBatch, first: int) -> Iterator[Row]:
    try:
        rows = batch.to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, ValueError, LookupError, OverflowError):
        if len(batch) == 1:
            fault = FieldError("", "malformed_line", "The row holds what is no value in Python.")
            yield Row(first + 1, None, fault)
            return
        for place in range(len(batch)):  # which of them it is
            yield from _parquet_rows(batch.slice(place, 1), first + place)
        return
    for line, values in enumerate(rows, first + 1):
        yield Row(line, {name: value for name, value in values.items() if not _absent(value)})


def _absent(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
