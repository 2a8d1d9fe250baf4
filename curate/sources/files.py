"""The rows of one JSON, JSONL, CSV or Parquet file."""

import contextlib
import csv
import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, AnyStr, BinaryIO, TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from curate.sources.rows import (
    BATCH_CHARACTERS,
    COLUMNS,
    MAX_RECORD_BYTES,
    MISSING,
    REQUIRED,
    RowSource,
    SourceRow,
    build_broken_row,
    check_columns,
    not_a_string,
    read_row,
)
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import RATIO, BoundedStream, check_growth
from manifests.folders.manifest import Input


def read_batch(batch: pa.RecordBatch, constants: Mapping[str, str] = {}) -> Iterator[SourceRow]:
    """Yield the rows of a batch with any columns. Args: constants: values of columns that it does not have."""
    columns = {name: _values(batch.column(name)) for name in COLUMNS if name in batch.schema.names}
    kind = _storage(batch.column("nn_code")).type if "nn_code" in columns else pa.string()
    for record in zip(*columns.values(), strict=True):
        row = read_row({**constants, **dict(zip(columns, record, strict=True))})
        if not _is_text(kind) and row["problem"] != MISSING:
            row["problem"] = not_a_string(str(kind))
        yield row


def _storage(values: pa.Array) -> pa.Array:
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _values(values: pa.Array) -> list[object]:
    """Return a column as Python values; text as bytes, since a file may claim falsely that it is UTF-8."""
    values = _storage(values)
    if not _is_text(values.type):
        return [_python(value) for value in values]
    python_values: list[object] = values.cast(pa.large_binary()).to_pylist()
    return python_values


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _python(value: pa.Scalar) -> object:
    """Return a Python value; a map as a dictionary; None for what Python cannot hold (a time in the year 300000)."""
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):
        return None
    return dict(plain) if pa.types.is_map(value.type) and plain is not None else plain


def open_bytes(path: Path) -> BinaryIO:
    """Open the file's content as a stream; a .gz file is decompressed, within bounds."""
    packed = path.open("rb")
    if not path.name.lower().endswith(".gz"):
        return packed
    content = BoundedStream(str(path), packed, gzip.GzipFile(fileobj=packed))
    return cast(BinaryIO, io.BufferedReader(content, _READ_BYTES))


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Report failures to read a file as one line.

    Raises: UserError instead of the errors of the system or the decompressor.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: not a whole gzip file: {error}; write or fetch it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}; check the file") from error


def describe_file(path: Path) -> Input:
    """Describe a file for the manifest.

    Raises: UserError if it can no longer be read.
    """
    with read_errors(path):
        return Input(name=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)


class FileSource(RowSource):
    """Base class of the sources that read one file. `required`: the columns that it must have."""

    def __init__(self, path: Path, required: Collection[str] = REQUIRED) -> None:
        super().__init__(path.name, str(path))
        self._path, self._required = path, required

    def inputs(self) -> list[Input]:
        """The file."""
        return [describe_file(self._path)]

    def files(self) -> list[Path]:
        """The file."""
        return [self._path]


_BOM = b"\xef\xbb\xbf"


class JsonlFile(FileSource):
    """A .jsonl or .ndjson file, plain or gzipped. Every line that is not blank is a row, whatever it holds.

    Source: https://jsonlines.org
    """

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches as every source does; some object of the first batch must have each required column.

        Raises: UserError if none has it, or as `RowSource.batches` does.
        """
        checked = False
        for batch in super().batches():
            # A stream has no header, so the objects of the first batch must do.
            if self._columns and not checked:
                check_columns(self.where, self._columns, self._required)
                checked = True
            yield batch

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield each line as a row.

        Raises: UserError if the file cannot be read.
        """
        self._columns: dict[str, None] = {}  # of all objects read
        with read_errors(self._path), open_bytes(self._path) as file:
            for number, line in enumerate(_read_lines(file), start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if len(content) > MAX_RECORD_BYTES:
                    yield build_broken_row(f"line {number}: longer than {MAX_RECORD_BYTES >> 20} MiB")
                elif content.strip():
                    yield _read_line(number, content, self._columns)


def _read_lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the lines of a file; of one that is longer than a record may be, the beginning, one character too long."""
    while line := file.readline(MAX_RECORD_BYTES + 1):
        yield line
        end = "\n" if isinstance(line, str) else b"\n"
        while len(line) > MAX_RECORD_BYTES and not line.endswith(end):
            rest = file.readline(MAX_RECORD_BYTES)
            line = line if rest and not rest.endswith(end) else line[:0]


def _read_line(number: int, line: bytes, columns: dict[str, None]) -> SourceRow:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return build_broken_row(f"invalid UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        reason = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        return build_broken_row(f"line {number}: not a JSON object: {reason}")
    except RecursionError:
        return build_broken_row(f"line {number}: not a JSON object: nested too deeply")
    except ValueError:  # the interpreter's limit on the digits of an integer
        return build_broken_row(f"line {number}: not a JSON object: a number has too many digits")
    return _read_record(f"line {number}", record, columns)


def _read_record(where: str, record: object, columns: dict[str, None]) -> SourceRow:
    if not isinstance(record, dict):
        return build_broken_row(f"{where}: not a JSON object: it is a {type(record).__name__}")
    if len(columns) < 1000:  # objects with ever new keys must not fill the memory
        columns.update(dict.fromkeys(record))
    return read_row(record)


#: Maximum bytes of a JSON array, which is read as a whole.
_ARRAY_BYTES = 1 << 30


class JsonFile(JsonlFile):
    """A .json file, plain or gzipped: an array, each element a row, whatever it holds. Other content is lines."""

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield each element of the array, or each line, as a row.

        Raises: UserError if the file cannot be read, or the array is not valid or too large.
        """
        with read_errors(self._path), open_bytes(self._path) as file:
            content = file.read(_ARRAY_BYTES + 1)
        if content.removeprefix(_BOM).lstrip()[:1] != b"[":
            del content
            yield from super().read_rows()
            return
        if len(content) > _ARRAY_BYTES:
            limit = f"a JSON array of more than {_ARRAY_BYTES >> 30} GiB"
            raise UserError(f"{self.where}: is {limit}; write it as JSONL, one object a line")
        self._columns = {}
        try:
            # Bytes that are not UTF-8 must spoil their own row only.
            records = json.loads(content.removeprefix(_BOM).decode(errors="surrogateescape"))
        except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
            reason = str(error) if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a huge number"
            raise UserError(f"{self.where}: not a JSON array: {reason}; write or fetch it again") from error
        del content
        for number, record in enumerate(records, start=1):
            yield _read_record(f"element {number}", record, self._columns)


#: Maximum characters in one field; also bounds memory if a quote is never closed.
_FIELD_LIMIT = MAX_RECORD_BYTES


class CsvFile(FileSource):
    """A .csv file, plain or gzipped, in the dialect of spreadsheets: commas, doubled quotes, newlines inside quotes.

    Every record except a blank line is a row, whatever it holds. An empty field is null, except an empty nn_code.

    Source: https://www.rfc-editor.org/rfc/rfc4180
    """

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the file's rows in order.

        Raises: UserError if the file cannot be read, or its header lacks a required column.
        """
        # By default a field may have 128 KiB, which some codes exceed.
        csv.field_size_limit(_FIELD_LIMIT)
        with (
            read_errors(self._path),
            open_bytes(self._path) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
        ):
            reader = csv.reader(self._lines(text))
            header = self._header(reader)
            while True:
                line = reader.line_num + 1
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield build_broken_row(f"line {line}: not a CSV record: {error}")
                    continue
                if fields:
                    yield _read_fields(line, header, fields)

    def _lines(self, text: TextIO) -> Iterator[str]:
        for number, line in enumerate(_read_lines(text), start=1):
            if len(line) > MAX_RECORD_BYTES:
                limit = f"longer than {MAX_RECORD_BYTES >> 20} MiB"
                raise UserError(f"{self._path}: line {number} is {limit}; not a table of networks")
            yield line

    def _header(self, reader: Iterator[list[str]]) -> list[str]:
        try:
            header = next((fields for fields in reader if fields), [])
        except csv.Error as error:
            raise UserError(f"{self._path}: no CSV header: {error}; its first line must name the columns") from error
        names = [name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").strip() for name in header]
        if names:
            check_columns(self.where, names, self._required)
        return names


def _read_fields(line: int, header: list[str], fields: list[str]) -> SourceRow:
    if len(fields) != len(header):
        return build_broken_row(f"line {line}: {len(fields)} fields, the header names {len(header)}")
    record: dict[str, object] = {}
    for name, field in zip(header, fields, strict=True):
        if name in COLUMNS and (field or name == "nn_code"):
            # bytes again if they may not be UTF-8, so that they are treated as in every other source
            record[name] = field if field.isascii() else field.encode("utf-8", "surrogateescape")
    return read_row(record)


#: Read through a buffer of this size, and nothing ahead: else a column of a whole row group is held in memory.
_READ_BYTES = 1 << 20
#: Rows decoded at a time at most. The sizes that a file states are those before its dictionaries are unfolded: a
#: repeated code of a megabyte costs next to nothing there, and a megabyte each time here.
_READ_ROWS = 250
#: Bytes of a batch at most if each of its rows names the largest value that its dictionary may hold.
_UNFOLDED_BYTES = 256 << 20
#: How far the rows of a table may outgrow its file: each names a value of a dictionary in a few bits. Only a batch is
#: held at a time, so this bounds time.
OF_ROWS = {"ratio": 1_000, "floor": 1 << 30}


class ParquetFile(FileSource):
    """One .parquet file.

    Args: constants: values of columns that the names of its folders state.
    """

    def __init__(self, path: Path, required: Collection[str] = REQUIRED, constants: Mapping[str, str] = {}) -> None:
        super().__init__(path, required)
        self._constants = constants

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the file's rows in order.

        Raises: UserError if it cannot be read, or lacks a required column.
        """
        try:
            with pq.ParquetFile(self._path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
                names = file.schema_arrow.names
                check_columns(self.where, [*names, *(self._constants.keys() - set(names))], self._required)
                wanted = [name for name in COLUMNS if name in names]
                packed, size = self._path.stat().st_size, 0
                groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
                check_growth(self.where, packed, sum(group.total_byte_size for group in groups), **OF_ROWS)
                for batch in file.iter_batches(_rows_at_a_time(file.metadata, wanted), columns=wanted):
                    for row in read_batch(batch, self._constants):
                        size += len(row["nn_code"] or "")
                        check_growth(self.where, packed, size, **OF_ROWS)
                        yield row
        except (pa.ArrowException, OSError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{self._path}: cannot be read as Parquet: {reason}; write or fetch it again") from error


def _rows_at_a_time(metadata: pq.FileMetaData, wanted: list[str]) -> int:
    """Return how many rows fit a batch where they are largest, by the sizes that the file states."""
    largest = named = 1
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = [group.column(i) for i in range(group.num_columns)]
        sizes = [part.total_uncompressed_size for part in columns if part.path_in_schema.split(".")[0] in wanted]
        largest = max(largest, sum(sizes) // max(group.num_rows, 1))
        named = max([named, *(part.total_uncompressed_size for part in columns if _is_dense(part))])
    return max(1, min(_READ_ROWS, BATCH_CHARACTERS // largest, _UNFOLDED_BYTES // named))


def _is_dense(column: pq.ColumnChunkMetaData) -> bool:
    """Return whether a part of a column is so much compressed that one value of its dictionary may be all of it."""
    return bool(column.total_uncompressed_size > RATIO * column.total_compressed_size)


_READERS = {".jsonl": JsonlFile, ".ndjson": JsonlFile, ".json": JsonFile, ".csv": CsvFile}


def open_table(path: Path, required: Collection[str] = REQUIRED) -> FileSource | None:
    """Open a table by the suffix of its name; None if that is not known."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return ParquetFile(path, required)
    kind = _READERS.get(Path(name.removesuffix(".gz")).suffix)
    return kind and kind(path, required)
