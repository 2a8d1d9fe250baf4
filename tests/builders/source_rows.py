"""The rows of a source, checked to be in the common shape, and the one line of an error."""

from pathlib import Path
from typing import Any

import pytest

from curate.sources import open_source
from curate.sources.rows import BATCH_ROWS, ROW_SCHEMA, RecordSource
from lemur_core.files.errors import UserError


def rows_of(source: RecordSource) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in source.batches():
        assert batch.schema == ROW_SCHEMA
        assert 0 < batch.num_rows <= BATCH_ROWS
        batch.validate(full=True)
        found += batch.to_pylist()
    for row in found:
        assert (row["nn_code"] is None) == (row["problem"] is not None)
        assert row["nn"] is not None
    return found


def read(path: Path | str) -> list[dict[str, Any]]:
    return rows_of(open_source(str(path)))


def error_of(path: Path | str) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)
