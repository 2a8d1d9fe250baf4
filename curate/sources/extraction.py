"""Rows of an extraction folder: its closed files that run, each a record of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from curate.rows import InputFile
from curate.sources.batching import batch_rows, require_rows
from curate.sources.cells import broken_row, read_row
from curate.sources.files import describe_file
from lemur_core.files.errors import UserError
from manifests.provenance import REQUIREMENTS, TABLE, Parts, barred, read_parts
from manifests.records import LEVELS

T = TypeVar("T")

#: What stands before the id of a block in the name of its record, so that `--include block` means all of them.
PREFIX = "block"

_COLUMNS = ("block", "level", "error_kind", "license", "code")
_RUNS = LEVELS.index("executed")
_ROWS = 500  # read at a time


class ExtractionFolder:
    """The blocks of one extraction folder, in the order of its table.

    A snapshot is published with all its code, so a block of which any part has a licence that is unknown or not
    permissive hands over no code; nor does one that does not execute. Both keep their row, which says so.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self._folder = folder

    def batches(self) -> Iterator[pa.RecordBatch]:
        """A row for each block.

        Raises: UserError if a table cannot be read, or holds no blocks.
        """
        return require_rows(str(self._folder), batch_rows(self._rows()))

    def inputs(self) -> list[InputFile]:
        """The two files that are read."""
        found = [describe_file(path) for path in self.files()]
        return [InputFile(f"{self.name}/{item.name}", item.sha256, item.bytes) for item in found]

    def files(self) -> list[Path]:
        """The two files that are read."""
        return [self._folder / name for name in (TABLE, REQUIREMENTS)]

    def licenses(self) -> set[str]:
        """The licences of all parts of the blocks that hand over their code.

        Raises: UserError if a table cannot be read.
        """
        about = [name for name in _COLUMNS if name != "code"]
        found = self._blocks(about, lambda block, parts: set() if _problem_of(block, parts) else parts.licenses(block))
        return set().union(*found)

    def _rows(self) -> Iterator[dict[str, Any]]:
        return self._blocks(list(_COLUMNS), _row_of)

    def _blocks(self, columns: list[str], read: Callable[[dict[str, Any], Parts], T]) -> Iterator[T]:
        """What `read` makes of each block, in the order of the table."""
        parts = read_parts(self._folder)
        path = self._folder / TABLE
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=columns):
                    for block in batch.to_pylist():
                        yield read(block, parts)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{path}: cannot be read as blocks: {reason}; extract it again") from error


def is_extraction(folder: Path) -> bool:
    """Whether a folder is one that `lemur extract` wrote."""
    return (folder / TABLE).is_file() and (folder / REQUIREMENTS).is_file()


def _row_of(block: dict[str, Any], parts: Parts) -> dict[str, Any]:
    name = f"{PREFIX}-{block['block']}"
    if problem := _problem_of(block, parts):
        return broken_row(problem, name)
    return read_row({"nn": name, "nn_code": block["code"]})


def _problem_of(block: dict[str, Any], parts: Parts) -> str | None:
    """Why a block hands over no code."""
    if LEVELS.index(block["level"]) < _RUNS:
        return f"the block came to {block['level']} only: {block['error_kind'] or 'not asked further'}"
    if block["block"] not in parts.made_from:
        raise ValueError(f"{REQUIREMENTS} says nothing of {block['block']}")
    if wrong := barred(parts.licenses(block)):
        return f"the licence of the block does not let its code be passed on: {', '.join(wrong)}"
    return None
