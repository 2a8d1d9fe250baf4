"""Rows of one file: JSON Lines, CSV or Parquet."""

import contextlib
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from curate.rows import BATCH_CHARACTERS, RowSource
from curate.sources.cells import COLUMNS, broken_row, check_columns, read_batch, read_row
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.manifest import Input


def open_bytes(path: Path) -> BinaryIO:
    """The file's content as a stream; that of a .gz file decompressed."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.lower().endswith(".gz") else path.open("rb")


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Failures to read a file, as one line.

    Raises: UserError instead of what the system or the decompressor raised.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: not a whole gzip file: {error}; write or fetch it again") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}; check the file") from error


def describe_file(path: Path) -> Input:
    """A file for the manifest.

    Raises: UserError if it cannot be read any more.
    """
    with read_errors(path):
        return Input(name=path.name, sha256=sha256_file(path), bytes=path.stat().st_size)


class FileSource(RowSource):
    """What the sources of one file share."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.name, str(path))
        self._path = path

    def inputs(self) -> list[Input]:
        """The file."""
        return [describe_file(self._path)]

    def files(self) -> list[Path]:
        """The file."""
        return [self._path]


_BOM = b"\xef\xbb\xbf"


class JsonlFile(FileSource):
    """A .jsonl or .ndjson file, plain or gzipped. Every line but a blank one is a row, whatever it holds.

    Source: https://jsonlines.org
    """

    def batches(self) -> Iterator[pa.RecordBatch]:
        """As of every source; a required column must be in some object of the first batch.

        Raises: UserError if it is in none, or as `RowSource.batches` does.
        """
        checked = False
        for batch in super().batches():
            if self._columns and not checked:
                check_columns(self.where, self._columns)
                checked = True
            yield batch

    def read_rows(self) -> Iterator[dict[str, Any]]:
        """Each line as a row.

        Raises: UserError if the file cannot be read.
        """
        self._columns: dict[str, None] = {}  # of all objects met
        with read_errors(self._path), open_bytes(self._path) as file:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if content.strip():
                    yield _read_line(number, content, self._columns)


def _read_line(number: int, line: bytes, columns: dict[str, None]) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return broken_row(f"invalid UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        reason = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        return broken_row(f"line {number}: not a JSON object: {reason}")
    except RecursionError:
        return broken_row(f"line {number}: not a JSON object: nested too deeply")
    except ValueError:  # the interpreter's limit on the digits of an integer
        return broken_row(f"line {number}: not a JSON object: a number has too many digits")
    if not isinstance(record, dict):
        return broken_row(f"line {number}: not a JSON object: it is a {type(record).__name__}")
    if len(columns) < 1000:  # objects with ever new keys must not fill the memory
        columns.update(dict.fromkeys(record))
    return read_row(record)


#: Characters in one field at most. Also what bounds memory when a quote is never closed.
_FIELD_LIMIT = 1 << 28


class CsvFile(FileSource):
    """A .csv file, plain or gzipped, in the dialect of spreadsheets: commas, doubled quotes, newlines inside quotes.

    Every record but a blank line is a row, whatever it holds. An empty field is null (an empty nn_code stays empty).

    Source: https://www.rfc-editor.org/rfc/rfc4180
    """

    def read_rows(self) -> Iterator[dict[str, Any]]:
        """The file's rows in its order.

        Raises: UserError if the file cannot be read, or its header lacks a required column.
        """
        csv.field_size_limit(_FIELD_LIMIT)
        with (
            read_errors(self._path),
            open_bytes(self._path) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
        ):
            reader = csv.reader(text)
            header = self._header(reader)
            while True:
                line = reader.line_num + 1
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield broken_row(f"line {line}: not a CSV record: {error}")
                    continue
                if fields:
                    yield _read_fields(line, header, fields)

    def _header(self, reader: Iterator[list[str]]) -> list[str]:
        try:
            header = next((fields for fields in reader if fields), [])
        except csv.Error as error:
            raise UserError(f"{self._path}: no CSV header: {error}; its first line must name the columns") from error
        names = [name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").strip() for name in header]
        if names:
            check_columns(self.where, names)
        return names


def _read_fields(line: int, header: list[str], fields: list[str]) -> dict[str, Any]:
    if len(fields) != len(header):
        return broken_row(f"line {line}: {len(fields)} fields, the header names {len(header)}")
    record: dict[str, Any] = {}
    for name, field in zip(header, fields, strict=True):
        if name in COLUMNS and (field or name == "nn_code"):
            # Bytes again where they may not be UTF-8, so that they are judged as in every other source.
            record[name] = field if field.isascii() else field.encode("utf-8", "surrogateescape")
    return read_row(record)


#: Read through a buffer of this size, and nothing ahead: else a column of a whole row group is held in memory.
_READ_BYTES = 1 << 20
#: Rows decoded at a time at most. The sizes that a file states are those before its dictionaries are unfolded: a
#: repeated code of a megabyte costs next to nothing there, and a megabyte each time here.
_READ_ROWS = 250


class ParquetFile(FileSource):
    """One .parquet file."""

    def read_rows(self) -> Iterator[dict[str, Any]]:
        """The file's rows in its order.

        Raises: UserError if it cannot be read, or lacks a required column.
        """
        try:
            with pq.ParquetFile(self._path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
                names = file.schema_arrow.names
                check_columns(self.where, names)
                wanted = [name for name in COLUMNS if name in names]
                for batch in file.iter_batches(_rows_at_a_time(file.metadata, wanted), columns=wanted):
                    yield from read_batch(batch)
        except (pa.ArrowException, OSError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{self._path}: cannot be read as Parquet: {reason}; write or fetch it again") from error


def _rows_at_a_time(metadata: pq.FileMetaData, wanted: list[str]) -> int:
    """As many rows as fit a batch where they are largest, by the sizes that the file states."""
    largest = 1
    for place in range(metadata.num_row_groups):
        group = metadata.row_group(place)
        columns = (group.column(i) for i in range(group.num_columns))
        size = sum(part.total_uncompressed_size for part in columns if part.path_in_schema.split(".")[0] in wanted)
        largest = max(largest, size // max(group.num_rows, 1))
    return max(1, min(_READ_ROWS, BATCH_CHARACTERS // largest))
