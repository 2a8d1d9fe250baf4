"""Rows of an extraction folder: its closed files that run, each a record of its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.rows import InputFile
from curate.sources.batching import batch_rows, require_rows
from curate.sources.cells import broken_row, read_row
from curate.sources.files import describe_file
from manifests.errors import UserError
from manifests.licenses import NOASSERTION, is_permissive
from manifests.records import LEVELS

#: What stands before the id of a block in the name of its record, so that `--include block` means all of them.
PREFIX = "block"

_TABLE, _REQUIREMENTS = "blocks.parquet", "required_repos.json"
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
        return [self._folder / name for name in (_TABLE, _REQUIREMENTS)]

    def licenses(self) -> set[str]:
        """The licences of all parts of the blocks that hand over their code.

        Raises: UserError if a table cannot be read.
        """
        parts = self._licenses()
        blocks = (block for block, row in self._rows_by_block() if row["problem"] is None)
        return {one for block in blocks for one in (block["license"], *parts[block["block"]])}

    def _rows(self) -> Iterator[dict[str, Any]]:
        return (row for _, row in self._rows_by_block())

    def _rows_by_block(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        licenses = self._licenses()
        path = self._folder / _TABLE
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=list(_COLUMNS)):
                    for block in batch.to_pylist():
                        yield block, _row_of(block, licenses)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"{path}: cannot be read as blocks: {reason}; extract it again") from error

    def _licenses(self) -> dict[str, set[str]]:
        """The licences of all sources that a block is made from, by block."""
        path = self._folder / _REQUIREMENTS
        try:
            needs = json.loads(path.read_text(encoding="utf-8"))
            of_source = {name: str(source.get("license") or NOASSERTION) for name, source in needs["sources"].items()}
            return {
                entry["block"]: {of_source.get(name, NOASSERTION) for name in entry["made_from"]}
                for entry in needs["blocks"]
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: cannot be read: {error}; extract it again") from error


def is_extraction(folder: Path) -> bool:
    """Whether a folder is one that `lemur extract` wrote."""
    return (folder / _TABLE).is_file() and (folder / _REQUIREMENTS).is_file()


def _row_of(block: dict[str, Any], licenses: dict[str, set[str]]) -> dict[str, Any]:
    name = f"{PREFIX}-{block['block']}"
    if LEVELS.index(block["level"]) < _RUNS:
        return broken_row(
            f"the block came to {block['level']} only: {block['error_kind'] or 'not asked further'}", name
        )
    barred = sorted(one for one in {block["license"], *licenses[block["block"]]} if not is_permissive(one))
    if barred:
        return broken_row(f"the licence of the block does not let its code be passed on: {', '.join(barred)}", name)
    return read_row({"nn": name, "nn_code": block["code"]})
