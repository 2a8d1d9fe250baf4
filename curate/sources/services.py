"""Rows from a library: a dataset of the Hugging Face Hub, and the LEMUR API installed in this environment."""

import contextlib
import hashlib
import importlib
import importlib.metadata
import io
import json
import sqlite3
import sys
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from curate.sources.database import parse_arch_uid
from curate.sources.files import OF_ROWS
from curate.sources.rows import BATCH_ROWS, COLUMNS, RowSource, SourceRow, check_columns, read_row
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import BoundedStream, check_growth
from manifests.folders.manifest import Input
from manifests.publish.hub import COMMIT, Hub, hub_errors, parse_dataset

_ADVICE = "check the network, run again"


class _LibrariesService(RowSource):
    """A source without files: the manifest names it with the digest of its rows, as JSON, in order."""

    _input: Input | None = None
    _label: str | None = None  # its name in the manifest, if not that of the source

    @abstractmethod
    def hand_over(self) -> Iterator[SourceRow]:
        """Request the rows again."""

    def read_rows(self) -> Iterator[SourceRow]:
        """Yield the rows as they are returned."""
        digest, size = hashlib.sha256(), 0
        for row in self.hand_over():
            line = json.dumps(row, sort_keys=True).encode() + b"\n"
            digest.update(line)
            size += len(line)
            yield row
        self._input = Input(name=self._label or self.name, sha256=digest.hexdigest(), bytes=size)

    def inputs(self) -> list[Input]:
        """Return the source, with the digest of its rows."""
        if self._input is None:
            deque(self.read_rows(), maxlen=0)
        assert self._input is not None
        return [self._input]


class HubDataset(_LibrariesService):
    """All splits of one dataset, in the order of their names."""

    def __init__(self, spec: str, *, hub: Hub | None = None) -> None:
        self._repo, self._revision = parse_dataset(spec)
        self._hub = hub or Hub()
        super().__init__(spec)

    def digests(self) -> dict[str, str]:
        """Return the commit of the dataset, of which rows are read from then on.

        Raises: RetryableError if the Hub cannot be reached; UserError if it has no such dataset or revision.
        """
        if self._revision is None or not COMMIT.fullmatch(self._revision):
            with self._hub.session():
                self._revision = self._hub.call(self.name, self._find_commit, again="finished tasks are kept")
        return {self.name: str(self._revision)}

    def _find_commit(self) -> str | None:
        hub = self._hub
        return hub.api().dataset_info(self._repo, revision=self._revision, timeout=hub.answer_seconds).sha

    def hand_over(self) -> Iterator[SourceRow]:
        """Yield the rows of the splits, each in its order.

        Raises: RetryableError if the Hub cannot be reached; UserError if the dataset does not exist, cannot be read as
            rows, or lacks a required column.
        """
        import datasets

        size, packed = 0, -1  # of all rows, and of their files: requested once, if the rows are many enough to matter
        with hub_errors(self.name, _ADVICE), _bounded_decompression(self.name):
            splits = datasets.load_dataset(self._repo, revision=self._revision, streaming=True)
            for split in sorted(splits):
                where, rows = f"{self.name}, split {split}", splits[split]
                columns = rows.column_names  # None if only the rows themselves have them
                if columns is not None:
                    check_columns(where, columns)
                    rows = rows.select_columns([name for name in COLUMNS if name in columns])
                for record in rows:
                    if columns is None:
                        columns = list(record)
                        check_columns(where, columns)
                    row = read_row(record)
                    size += sum(len(value) for value in row.values() if isinstance(value, str))
                    if size > OF_ROWS["floor"]:
                        packed = self._count_bytes() if packed < 0 else packed
                        check_growth(self.name, packed, size, **OF_ROWS)
                    yield row

    def _count_bytes(self) -> int:
        """Return the size of the dataset's files, as the Hub lists them."""
        hub = self._hub

        def list_sizes() -> list[int]:
            options: dict[str, Any] = {"repo_type": "dataset", "revision": self._revision, "recursive": True}
            return [getattr(item, "size", 0) for item in hub.api().list_repo_tree(self._repo, **options)]

        with hub.session():
            return sum(hub.call(self.name, list_sizes, again="it is read from its beginning"))


@contextlib.contextmanager
def _bounded_decompression(where: str) -> Iterator[None]:
    """Let the library that reads datasets decompress files only within our bounds, until the block ends."""
    from fsspec.compression import compr, register_compression

    def bound(decompress: Callable[..., Any]) -> Callable[..., Any]:
        def open_bounded(packed: Any, mode: str = "rb", **options: Any) -> Any:
            content = decompress(packed, mode=mode, **options)
            return content if "r" not in mode else io.BufferedReader(BoundedStream(where, packed, content))

        return open_bounded

    originals = {name: decompress for name, decompress in compr.items() if name is not None}
    for name, decompress in originals.items():
        register_compression(name, bound(decompress), (), force=True)
    try:
        yield
    finally:
        for name, decompress in originals.items():
            register_compression(name, decompress, (), force=True)


#: The API's column for the `arch_uid`, in later releases of nn-dataset.
_ID = "nn_id"
_OWN_MODULES = ("ab", "ab.nn", "ab.nn.api")
_INSTEAD = "or curate the released corpus: lemur curate lemur"

#: The errors of foreign code while it is imported or reads its database; any other is a bug that needs a traceback.
_FAILURES = (OSError, sqlite3.Error, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


class InstalledLemur(_LibrariesService):
    """`ab.nn.api.data(only_best_accuracy=True)` of this environment. The API hands over all its rows at once.

    Source: https://github.com/ABrain-One/nn-dataset
    """

    def __init__(self) -> None:
        super().__init__("installed")
        self._frame: Any = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            self._label = f"installed (nn-dataset {importlib.metadata.version('nn-dataset')})"

    def hand_over(self) -> Iterator[SourceRow]:
        """Yield the API's rows in its order.

        Raises: UserError if the API cannot be imported or fails.
        """
        if self._frame is None:
            self._frame = _load()
        return _read_frame(self._frame)


def _load() -> Any:
    # The API prints while it builds its database; standard output belongs to the summary of --json.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            frame = importlib.import_module("ab.nn.api").data(only_best_accuracy=True)
        except ImportError as error:
            raise UserError(_explain_import(error)) from error
        except _FAILURES as error:
            raise UserError(f"installed: ab.nn.api.data fails: {_line(error)}; mend it, {_INSTEAD}") from error
    columns = getattr(frame, "columns", None)
    if columns is None:
        raise UserError(f"installed: ab.nn.api.data returned a {type(frame).__name__}, not a table; {_INSTEAD[3:]}")
    check_columns("installed: ab.nn.api.data", list(columns))
    return frame[[name for name in (*COLUMNS, _ID) if name in columns]]


def _explain_import(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and error.name not in _OWN_MODULES:
        return (
            f"installed: ab.nn.api needs {error.name}, which is not installed here; "
            f"pip install the package that holds it, or nn-dataset==2.1.0 with its dependencies, {_INSTEAD}"
        )
    return (
        f"installed: ab.nn.api cannot be imported: {_line(error)}; "
        f"pip install nn-dataset==2.1.0 in this environment, {_INSTEAD}"
    )


def _read_frame(frame: Any) -> Iterator[SourceRow]:
    names = list(frame.columns)
    for start in range(0, len(frame), BATCH_ROWS):
        part = frame.iloc[start : start + BATCH_ROWS]
        tables = (part, part.notna())
        for values, known in zip(*(table.itertuples(index=False, name=None) for table in tables), strict=True):
            record = {name: value for name, value, is_known in zip(names, values, known, strict=True) if is_known}
            code, id_ = record.get("nn_code"), record.get(_ID)
            if isinstance(code, str) and isinstance(id_, str):
                record.setdefault("arch_uid", parse_arch_uid(code, id_))
            yield read_row(record)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
