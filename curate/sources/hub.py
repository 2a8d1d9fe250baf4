"""Rows of a dataset on the Hugging Face Hub, streamed."""

import contextlib
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from curate.rows import InputFile
from curate.sources.batching import RowDigest, batch_rows, require_rows
from curate.sources.cells import COLUMNS, check_columns, read_row
from manifests.errors import RetryableError, UserError

_SPEC = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^\s@]+))?")
_TRY_AGAIN = (408, 425, 429)


class HubDataset:
    """All splits of one dataset, in the order of their names."""

    def __init__(self, spec: str) -> None:
        match = _SPEC.fullmatch(spec)
        if match is None:
            raise UserError(f"{spec}: not a dataset on the Hub; write hf://datasets/OWNER/NAME or …/NAME@REVISION")
        self.name = spec
        self._repo, self._revision = match["repo"], match["revision"]
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

        with _hub_errors(self.name):
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


@contextlib.contextmanager
def _hub_errors(spec: str) -> Iterator[None]:
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    # The bases include that of every transport error, whichever HTTP library this release is built on.
    network: tuple[type[BaseException], ...] = (OSError, EOFError, *HfHubHTTPError.__bases__)
    try:
        yield
    except (DatasetsError, pa.ArrowException, ValueError, RuntimeError) as error:
        raise UserError(
            f"{spec}: {_line(error)}; check the name, the revision, and that `hf auth login` was done"
        ) from error
    except network as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int) and 400 <= status < 500 and status not in _TRY_AGAIN:
            raise UserError(
                f"{spec}: {_line(error)}; check the name, the revision, and that `hf auth login` was done"
            ) from error
        raise RetryableError(f"{spec}: the Hub cannot be read: {_line(error)}; check the network, run again") from error


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
