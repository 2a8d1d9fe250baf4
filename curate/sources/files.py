"""The rows of one JSON, JSONL, CSV or Parquet file: every record is a row, whatever it holds.

CSV is read by Python's reader, every column as text: that of pyarrow refuses the whole file for a record that is longer
than its block or has another number of fields, or for a byte that is not UTF-8.
"""

import contextlib
import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from curate.sources.rows import (
    BATCH_CHARACTERS,
    BATCH_ROWS,
    COLUMNS,
    MAX_RECORD_BYTES,
    REQUIRED,
    RowSource,
    SourceRow,
    build_broken_row,
    check_columns,
    read_row,
)
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import RATIO, BoundedStream, check_growth
from manifests.folders.manifest import Input

#: Read through a buffer of this size, and nothing ahead: else a column of a whole row group is held in memory.
_READ_BYTES = 1 << 20


def _open_bytes(path: Path) -> BinaryIO:
    """Open the file's content as a stream; a .gz file is decompressed, within bounds."""
    packed = path.open("rb")
    if not path.name.lower().endswith(".gz"):
        return packed
    content = BoundedStream(str(path), packed, gzip.GzipFile(fileobj=packed))
    return cast(BinaryIO, io.BufferedReader(content, _READ_BYTES))


@contextlib.contextmanager
def read_errors(where: Path | str) -> Iterator[None]:
    """Raise UserError, as one line, instead of the errors of the system or the decompressor."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{where}: not a whole gzip file: {error}; write or fetch it again") from error
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror or error}; check the file") from error


class FileSource(RowSource):
    """The rows of one file, which `read(path, where)` yields; `where` is its name in messages."""

    def __init__(self, path: Path, read: Callable[[Path, str], Iterator[SourceRow]], where: str = "") -> None:
        super().__init__(path.name, where or str(path))
        self._path, self._read = path, read

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows of the file. Raises: UserError if it cannot be read, or lacks a required column."""
        return self._read(self._path, self.where)

    def inputs(self) -> list[Input]:
        """Return the file. Raises: UserError if it can no longer be read."""
        return [describe_file(self._path, self.name)]

    def files(self) -> list[Path]:
        """Return the file."""
        return [self._path]


def describe_file(path: Path, name: str) -> Input:
    """Describe a file for the manifest. Raises: UserError if it can no longer be read."""
    with read_errors(path):
        return Input(name=name, sha256=sha256_file(path), bytes=path.stat().st_size)


def open_table(path: Path, where: str = "", required: Collection[str] = REQUIRED) -> FileSource | None:
    """Open a table by the suffix of its name; None if that is not known.

    Args: where: its name in messages. required: the columns that it must have.
    """
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    read = None if name.endswith(".parquet.gz") else _READERS.get(Path(plain).suffix)
    return read and FileSource(path, partial(read, required=required), where)


# --- JSON ---------------------------------------------------------------------------------------------------------

_BOM = b"\xef\xbb\xbf"
#: Maximum bytes of a JSON array, which is read as a whole.
_ARRAY_BYTES = 1 << 30


def _read_json(path: Path, where: str, required: Collection[str]) -> Iterator[SourceRow]:
    """Yield each element of the array in a .json file as a row; of other files each line that is not blank.

    Some object of the first batch must have each required column, since these files have no header.

    Source: https://jsonlines.org
    """
    names: dict[str, None] = {}

    def check() -> None:
        if names:
            check_columns(where, names, required)

    with read_errors(where), _open_bytes(path) as file:
        is_json = Path(path.name.lower().removesuffix(".gz")).suffix == ".json"
        start = cast(io.BufferedReader, file).peek(1) if is_json else b""
        is_array = start.removeprefix(_BOM).lstrip().startswith(b"[")
        records = _read_array(file, where) if is_array else _read_lines(file)
        for count, record in enumerate(records):
            if count == BATCH_ROWS:
                check()
            if isinstance(record, str):
                yield build_broken_row(record)
                continue
            if len(names) < 1000:  # objects with ever new keys must not fill the memory
                names.update(dict.fromkeys(record))
            yield read_row(record)
        check()


#: A record, or its problem.
_Record = Mapping[str, object] | str


def _read_lines(file: BinaryIO) -> Iterator[_Record]:
    number = 0
    while line := file.readline(MAX_RECORD_BYTES + 1):
        number += 1
        content = line.removeprefix(_BOM) if number == 1 else line
        if len(content) > MAX_RECORD_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_RECORD_BYTES)
            yield f"line {number}: longer than {MAX_RECORD_BYTES >> 20} MiB"
        elif content.strip():
            yield _parse_line(f"line {number}", content)


def _parse_line(where: str, line: bytes) -> _Record:
    try:
        return _check_object(where, json.loads(line.decode()))
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte {error.start}"
    except (ValueError, RecursionError) as error:
        return f"{where}: not a JSON object: {_describe_fault(error)}"


def _describe_fault(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at character {error.pos}"
    # the interpreter's limit on the digits of an integer is a ValueError
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


def _check_object(where: str, record: Any) -> _Record:
    return record if isinstance(record, dict) else f"{where}: not a JSON object: it is a {type(record).__name__}"


def _read_array(file: BinaryIO, where: str) -> Iterator[_Record]:
    content = file.read(_ARRAY_BYTES + 1)
    if len(content) > _ARRAY_BYTES:
        limit = f"a JSON array of more than {_ARRAY_BYTES >> 30} GiB"
        raise UserError(f"{where}: is {limit}; write it as JSONL, one object a line")
    try:
        # Bytes that are not UTF-8 must spoil their own row only.
        records = json.loads(content.removeprefix(_BOM).decode(errors="surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a JSON array: {_describe_fault(error)}; write or fetch it again") from error
    del content
    for number, record in enumerate(records, start=1):
        yield _check_object(f"element {number}", record)


# --- CSV ----------------------------------------------------------------------------------------------------------

#: Maximum characters in one field; also bounds memory if a quote is never closed.
_FIELD_LIMIT = MAX_RECORD_BYTES


def _read_csv(path: Path, where: str, required: Collection[str]) -> Iterator[SourceRow]:
    """Yield the records of a .csv file in the dialect of spreadsheets: commas, doubled quotes, newlines inside quotes.

    An empty field is null, except an empty nn_code. A blank line is no record.

    Source: https://www.rfc-editor.org/rfc/rfc4180
    """
    csv.field_size_limit(_FIELD_LIMIT)  # by default 128 KiB, which some codes exceed
    with (
        read_errors(where),
        _open_bytes(path) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        reader = csv.reader(_read_text_lines(text, where))
        try:
            header = next((fields for fields in reader if fields), [])
        except csv.Error as error:
            raise UserError(f"{where}: no CSV header: {error}; its first line must name the columns") from error
        names = [name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").strip() for name in header]
        if names:
            check_columns(where, names, required)
        while True:
            line = reader.line_num + 1
            try:
                fields = next(reader, None)
            except csv.Error as error:
                yield build_broken_row(f"line {line}: not a CSV record: {error}")
                continue
            if fields is None:
                return
            if len(fields) == len(names):
                # bytes again if they may not be UTF-8, so that they are treated as in every other source
                values = (field if field.isascii() else field.encode("utf-8", "surrogateescape") for field in fields)
                record = dict(zip(names, values, strict=True))
                yield read_row({name: value for name, value in record.items() if value or name == "nn_code"})
            elif fields:
                yield build_broken_row(f"line {line}: {len(fields)} fields, the header names {len(names)}")


def _read_text_lines(text: TextIO, where: str) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: text.readline(MAX_RECORD_BYTES + 1), ""), start=1):
        if len(line) > MAX_RECORD_BYTES:
            limit = f"longer than {MAX_RECORD_BYTES >> 20} MiB"
            raise UserError(f"{where}: line {number} is {limit}; not a table of networks")
        yield line


# --- Parquet ------------------------------------------------------------------------------------------------------

#: Rows decoded at a time at most. The sizes that a file states are those before its dictionaries are unfolded: a
#: repeated code of a megabyte costs next to nothing there, and a megabyte each time here.
_READ_ROWS = 250
#: Bytes of a batch at most if each of its rows names the largest value that its dictionary may hold.
_UNFOLDED_BYTES = 256 << 20
#: How far the rows of a table may outgrow its file: each names a value of a dictionary in a few bits. Only a batch is
#: held at a time, so this bounds time.
_OF_ROWS = {"ratio": 1_000, "floor": 1 << 30}


def read_parquet(
    path: Path, where: str, required: Collection[str] = REQUIRED, constants: Mapping[str, str] = {}
) -> Iterator[SourceRow]:
    """Yield the rows of a Parquet file. Args: constants: values of columns that the names of its folders state.

    Raises: UserError if it cannot be read, or lacks a required column.
    """
    try:
        with pq.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            names = file.schema_arrow.names
            check_columns(where, [*names, *(constants.keys() - set(names))], required)
            wanted = [name for name in COLUMNS if name in names]
            packed, size = path.stat().st_size, 0
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
            check_growth(where, packed, sum(group.total_byte_size for group in groups), **_OF_ROWS)
            for batch in file.iter_batches(_count_rows_of_batch(groups, wanted), columns=wanted):
                columns = [_python_values(batch.column(name)) for name in wanted]
                for values in zip(*columns, strict=True):
                    row = read_row({**constants, **dict(zip(wanted, values, strict=True))})
                    size += len(row["nn_code"] or "")
                    check_growth(where, packed, size, **_OF_ROWS)
                    yield row
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{where}: cannot be read as Parquet: {reason}; write or fetch it again") from error


def _python_values(values: pa.Array) -> list[object]:
    """Return a column as Python values; text as bytes, since a file may claim falsely that it is UTF-8."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind, types = values.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_fixed_size_binary(kind):
        values = values.cast(pa.large_binary())
    return [_python(value) for value in values]


def _python(value: pa.Scalar) -> object:
    """Return a Python value; a map as a dictionary; None for what Python cannot hold (a time in the year 300000)."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):
        return None
    return dict(plain) if pa.types.is_map(value.type) and plain is not None else plain


def _count_rows_of_batch(groups: list[pq.RowGroupMetaData], wanted: list[str]) -> int:
    """Return how many rows fit a batch where they are largest, by the sizes that the file states."""
    largest = named = 1
    for group in groups:
        columns = [group.column(i) for i in range(group.num_columns)]
        sizes = [part.total_uncompressed_size for part in columns if part.path_in_schema.split(".")[0] in wanted]
        largest = max(largest, sum(sizes) // max(group.num_rows, 1))
        # Of a column that is so much compressed, one value of its dictionary may be all of it.
        dense = (part for part in columns if part.total_uncompressed_size > RATIO * part.total_compressed_size)
        named = max([named, *(part.total_uncompressed_size for part in dense)])
    return max(1, min(_READ_ROWS, BATCH_CHARACTERS // largest, _UNFOLDED_BYTES // named))


_READERS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _read_json),
    ".csv": _read_csv,
    ".parquet": read_parquet,
}
