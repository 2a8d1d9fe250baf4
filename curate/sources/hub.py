"""Rows of a dataset on the Hugging Face Hub, streamed."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from curate.rows import InputFile
from curate.sources.batching import RowDigest, batch_rows, require_rows
from curate.sources.cells import COLUMNS, check_columns, read_row
from manifests.hub import hub_errors, parse_dataset

_ADVICE = "check the network, run again"


class HubDataset:
    """All splits of one dataset, in the order of their names."""

    def __init__(self, spec: str) -> None:
        self._repo, self._revision = parse_dataset(spec)
        self.name = spec
        self._inputs: list[InputFile] = []

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the splits, each in its order.

        Raises: RetryableError if the Hub cannot be reached; UserError if the dataset is not there, cannot be read as
            rows, lacks a required column, or holds no rows.
        """
        return require_rows(self.name, batch_rows(self._rows()))

    def inputs(self) -> list[InputFile]:
        """The dataset, with the digest of its rows."""
        if not self._inputs:
            deque(self._rows(), maxlen=0)
        return list(self._inputs)

    def _rows(self) -> Iterator[dict[str, Any]]:
        digest = RowDigest()
        yield from digest.watch(self._stream())
        self._inputs = [digest.as_input(self.name)]

    def _stream(self) -> Iterator[dict[str, Any]]:
        import datasets

        with hub_errors(self.name, _ADVICE):
            splits = datasets.load_dataset(self._repo, revision=self._revision, streaming=True)
            for split in sorted(splits):
                where, rows = f"{self.name}, split {split}", splits[split]
                columns = rows.column_names  # None when only the rows themselves can tell
                if columns is not None:
                    check_columns(where, columns)
                    rows = rows.select_columns([name for name in COLUMNS if name in columns])
                for record in rows:
                    if columns is None:
                        columns = list(record)
                        check_columns(where, columns)
                    yield read_row(record)
