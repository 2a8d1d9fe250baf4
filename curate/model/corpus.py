"""The input of a run, read once: a row table without code, the distinct codes in a file, their features.

Codes are written to a file as they are read, so that a million of them need no memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from curate.model.features import FeatureStore, FeatureTable, code_features
from curate.sources.rows import RecordSource
from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.similarity import Detail
from lemur_core.similarity.join import in_order
from lemur_core.similarity.minhash import IntArray
from lemur_core.similarity.views import map_codes

#: The problem of a row whose code is Python, and no network.
NO_MODULE = "defines no nn.Module"


class CodeFile:
    """Distinct codes, appended to one file and read back by their index."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._ends = [0]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, code_index: int) -> str:
        start, end = self._ends[code_index], self._ends[code_index + 1]
        self._file.seek(start)
        return self._file.read(end - start).decode()

    def append(self, code: bytes) -> None:
        """Add a code (UTF-8); its index is the previous count."""
        self._file.seek(self._ends[-1])
        self._file.write(code)
        self._ends.append(self._ends[-1] + len(code))

    def __enter__(self) -> "CodeFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class LoadedRecords:
    """Rows and codes. Row r has the code of index `code_of_row[r]`, or -1 and a reason in `problems[r]`."""

    rows: pa.Table  # ROW_SCHEMA without nn_code and problem
    code_of_row: npt.NDArray[np.int64]
    problems: dict[int, str]
    ids: list[str]  # SHA-256 of each code, hexadecimal
    codes: CodeFile
    features: FeatureTable

    def sets(self, codes: Iterable[int]) -> IntArray:
        """Return the distinct shingle sets of codes, in the order of the codes' ids, independent of their numbering."""
        ordered = sorted(codes, key=self.ids.__getitem__)
        return in_order(self.features.shingle_set[np.array(ordered, np.int64)])


def read_corpus(
    source: RecordSource, codes: CodeFile, detail: Detail, jobs: int | None, store: FeatureStore | None = None
) -> LoadedRecords:
    """Read all rows of a source and load or compute the features of every distinct code.

    Args: store: where features are kept; by default the user's cache.
    Raises: UserError if there are no rows, or the source cannot be read.
    """
    store = store or FeatureStore(detail)
    index_of: dict[bytes, int] = {}  # by digest, in the order of the codes
    tables: list[pa.Table] = []
    indices_of_rows: list[npt.NDArray[np.int64]] = []
    problems: dict[int, str] = {}

    def new_codes() -> Iterator[tuple[bytes, str]]:
        """Read all batches, and yield each distinct code whose features are not known."""
        rows = 0
        for batch, distinct, places in source.coded_batches():
            tables.append(pa.table(batch.drop_columns(["nn_code", "problem"])))
            stated = enumerate(batch.column("problem").to_pylist(), rows)
            problems.update((row, problem) for row, problem in stated if problem is not None)
            rows += batch.num_rows
            indices = []
            for digest, code in distinct:
                known = len(index_of)
                indices.append(index_of.setdefault(digest, known))
                if indices[-1] == known:
                    codes.append(code.encode())
                    if digest not in store:
                        yield digest, code
            # A row without code has the last place, where -1 stands.
            indices_of_rows.append(np.array([*indices, -1], np.int64)[places])

    fill_store(store, new_codes(), detail, jobs)
    if not any(table.num_rows for table in tables):
        raise UserError(f"{source.name}: no rows; nothing to curate")
    code_of_row = np.concatenate(indices_of_rows)
    features = store.table(list(index_of))
    for row in np.flatnonzero(np.isin(code_of_row, np.fromiter(features.problems, np.int64))).tolist():
        problems[row] = features.problems[int(code_of_row[row])]
    for row in np.flatnonzero(np.isin(code_of_row, np.flatnonzero(~features.module))).tolist():
        problems.setdefault(row, NO_MODULE)
    ids = [digest.hex() for digest in index_of]
    return LoadedRecords(pa.concat_tables(tables), code_of_row, problems, ids, codes, features)


def fill_store(store: FeatureStore, codes: Iterable[tuple[bytes, str]], detail: Detail, jobs: int | None) -> None:
    """Compute and store the features of (digest, code) pairs."""
    try:
        with progress("token sets and fingerprints", None, "new codes") as advance:
            for result in map_codes(partial(code_features, detail=detail), codes, jobs):
                for digest, features in result:
                    store.add(digest, features)
                advance(len(result))
    finally:
        store.flush()  # also when interrupted: the next run resumes from here
