"""Rows of a JSON Lines file: one object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from curate.rows import InputFile
from curate.sources.batching import batch_rows, require_rows
from curate.sources.cells import broken_row, check_columns, invalid_utf8, read_row
from curate.sources.files import describe_file, open_bytes, read_errors

_BOM = b"\xef\xbb\xbf"


class JsonlFile:
    """A .jsonl or .ndjson file, plain or gzipped. Every line but a blank one is a row, whatever it holds.

    Source: https://jsonlines.org
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The file's rows in its order.

        Raises: UserError if the file cannot be read, holds no rows, or no object of its first batch has a required
            column.
        """
        columns: dict[str, None] = {}
        checked = False
        for batch in require_rows(str(self._path), batch_rows(self._rows(columns))):
            if columns and not checked:
                check_columns(str(self._path), columns)
                checked = True
            yield batch

    def inputs(self) -> list[InputFile]:
        """The file."""
        return [describe_file(self._path)]

    def files(self) -> list[Path]:
        """The file."""
        return [self._path]

    def _rows(self, columns: dict[str, None]) -> Iterator[dict[str, Any]]:
        """Each line as a row; the names of all columns met go to `columns`."""
        with read_errors(self._path), open_bytes(self._path) as file:
            for number, line in enumerate(file, start=1):
                content = line.removeprefix(_BOM) if number == 1 else line
                if content.strip():
                    yield _read_line(number, content, columns)


def _read_line(number: int, line: bytes, columns: dict[str, None]) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return broken_row(invalid_utf8(error))
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
