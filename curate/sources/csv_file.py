"""Rows of a CSV file with a header."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.rows import InputFile
from curate.sources.batching import batch_rows, require_rows
from curate.sources.cells import COLUMNS, broken_row, check_columns, read_row
from curate.sources.files import describe_file, open_bytes, read_errors
from lemur_core.files.errors import UserError

#: Characters in one field at most. Also what bounds memory when a quote is never closed.
_FIELD_LIMIT = 1 << 28


class CsvFile:
    """A .csv file, plain or gzipped, in the dialect of spreadsheets: commas, doubled quotes, newlines inside quotes.

    Every record but a blank line is a row, whatever it holds. An empty field is null (an empty nn_code stays empty).

    Source: https://www.rfc-editor.org/rfc/rfc4180
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The file's rows in its order.

        Raises: UserError if the file cannot be read, holds no rows, or its header lacks a required column.
        """
        return require_rows(str(self._path), batch_rows(self._rows()))

    def inputs(self) -> list[InputFile]:
        """The file."""
        return [describe_file(self._path)]

    def files(self) -> list[Path]:
        """The file."""
        return [self._path]

    def _rows(self) -> Iterator[dict[str, Any]]:
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
            check_columns(str(self._path), names)
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
