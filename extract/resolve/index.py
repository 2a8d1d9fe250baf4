"""Index: the facts of source files in one SQLite database, keyed by content.

The key of a file is its git blob SHA-1 (also its SWHID, `swh:1:cnt:`), so a file shared by several releases is
parsed once, and a changed file gets a new key. The database is in WAL mode: processes may share it, and rows stored
before a run was killed are kept.
"""

import contextlib
import io
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from extract.resolve import Policy
from extract.sources import PackageSource, SourceFile
from lemur_core.files.cache import Database, cache_folder, seal, unseal
from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.files.workers import check_workers, map_chunks, process_pool, submit
from lemur_core.source import facts as facts_module
from lemur_core.source.facts import FACTS_VERSION, FileFacts
from lemur_core.source.parse import parse_file

# Facts depend on this code and on the grammar of the Python version that parsed the file.
VERSION = f"{FACTS_VERSION}:{sys.version_info[0]}.{sys.version_info[1]}"
Row = tuple[str, bytes | None, str | None]  # blob, facts, reason if there are none, or not of all statements
_TABLES = (
    "facts (blob TEXT, version TEXT, facts BLOB, error TEXT, PRIMARY KEY (blob, version)) WITHOUT ROWID",
    "results (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",
)
NEEDS = "needs"  # and not "is not Python": the reason of a file for a newer Python
#: The facts of a file that cannot be parsed.
UNREADABLE = FileFacts((), (), (), None, ())
_FEW = 40  # files; with fewer, more than one process costs more than it saves
_AT_ONCE = 20  # files in one message to a process


class FactsIndex:
    """Facts by blob SHA-1. A context manager; use one per thread.

    Files are only ever parsed in other processes: foreign code can exhaust the parser's memory or its stack.
    """

    def __init__(self, path: Path | None = None, *, policy: Policy = "missing") -> None:
        self.path = path or cache_folder("index") / "facts.sqlite"
        self.policy = policy
        self.hits = 0
        self.parsed = 0
        self._memory: dict[str, FileFacts] = {}
        self._database = Database(self.path, _TABLES)
        self._parser = contextlib.ExitStack()
        self._pool: ProcessPool | None = None

    def __enter__(self) -> "FactsIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self._parser.close()
        self._database.close()

    # -- many files ----------------------------------------------------------------------------------------------

    def add(self, files: Sequence[tuple[PackageSource, SourceFile]]) -> None:
        """Store the facts of those files that are not stored yet (policy `force`: of all; `skip`: of none)."""
        if self.policy == "skip":
            return
        wanted = {file.blob: (source, file) for source, file in files}
        stored = self._database.read("SELECT blob FROM facts WHERE version = ?", VERSION)
        known = set() if self.policy == "force" else {row[0] for row in stored} & wanted.keys()
        self.hits += len(known)
        todo = [item for blob, item in wanted.items() if blob not in known]
        if not todo:
            return
        with progress("index", len(todo), "files") as advance:
            if len(todo) < _FEW:
                for source, file in todo:
                    self._store([self._parse_one((file.blob, source.read(file)))])
                    advance(1)
                return
            # A file that crashes the parser (CPython's can overflow its stack) affects no other file.
            parts = (todo[start : start + _AT_ONCE] for start in range(0, len(todo), _AT_ONCE))
            chunks = ([(file.blob, source.read(file)) for source, file in part] for part in parts)
            for rows in map_chunks(_parse, chunks, _crash_row):
                self._store(rows)
                advance(len(rows))

    def _store(self, rows: Sequence[Row]) -> None:
        self.parsed += len(rows)
        self._database.write(
            "INSERT OR REPLACE INTO facts (blob, version, facts, error) VALUES (?, ?, ?, ?)",
            [(blob, VERSION, data and seal(data), error) for blob, data, error in rows],
        )

    def faults(self, files: Sequence[tuple[PackageSource, SourceFile]]) -> list[tuple[PackageSource, SourceFile, str]]:
        """Return the files that could not be parsed, or not in full, with the reason; they must have been added."""
        query = "SELECT blob, error FROM facts WHERE version = ?"
        why = dict(self._database.read(query, VERSION))
        if any(file.blob not in why for _, file in files):  # since then, the database was dropped for damage
            self.add(files)
            why = dict(self._database.read(query, VERSION))
        return [(source, file, reason) for source, file in files if (reason := why.get(file.blob)) is not None]

    # -- one file ------------------------------------------------------------------------------------------------

    def facts(self, source: PackageSource, file: SourceFile) -> FileFacts:
        """Return the facts of a file; empty if it does not parse (`faults` gives the reason).

        Raises: UserError under policy `skip` if the file is not in the index.
        """
        if file.blob not in self._memory:
            self._memory[file.blob] = self._fetch(source, file)
        return self._memory[file.blob]

    def _fetch(self, source: PackageSource, file: SourceFile) -> FileFacts:
        query = "SELECT facts, error FROM facts WHERE blob = ? AND version = ?"
        row = next(iter(self._database.read(query, file.blob, VERSION)), None)
        if row is not None and row[0] is not None:
            try:
                return _loads(unseal(row[0]) or b"")
            except (pickle.UnpicklingError, EOFError, TypeError, ValueError, AttributeError, IndexError):
                row = None  # damaged on disk, or planted: parse again
        if row is None:
            if self.policy == "skip":
                raise UserError(f"{source.name} {file.path}: not in the index {self.path}; use --index missing")
            stored = self._parse_one((file.blob, source.read(file)))
            self._store([stored])
            row = stored[1:]
        return UNREADABLE if row[0] is None else _loads(row[0])

    def _parse_one(self, file: tuple[str, bytes]) -> Row:
        """Return the facts of a file that is read for the first time while others are copied."""
        for is_last in (False, True):
            if self._pool is None:  # started on first use: most runs find all files in the index
                self._pool = self._parser.enter_context(process_pool(1))
            try:
                return submit(self._pool, _parse, file).result()
            except RuntimeError as error:  # its worker died without a file: the pool takes no more
                if is_last and not isinstance(error, BrokenProcessPool):
                    raise
                self._pool = None
            except ProcessExpired:
                break  # the file ended its worker
        check_workers()
        return _crash_row(file)

    # -- results that depend only on the files ----------------------------------------------------------------------

    def recall(self, key: str) -> bytes | None:
        """Return the result stored under a key; the key names everything that the result depends on."""
        if self.policy == "force":
            return None
        rows = self._database.read("SELECT value FROM results WHERE key = ?", f"{VERSION}:{key}")
        return unseal(rows[0][0]) if rows else None

    def remember(self, key: str, value: bytes) -> None:
        """Store a result under such a key."""
        self._database.write("INSERT OR REPLACE INTO results VALUES (?, ?)", [(f"{VERSION}:{key}", seal(value))])


def _crash_row(file: tuple[str, bytes]) -> Row:
    return file[0], None, "the parser ended abruptly: nested too deeply"


def _parse(file: tuple[str, bytes]) -> Row:
    blob, data = file
    try:
        facts = parse_file(data)
        needs = sorted({newer.needs for newer in facts.newer})
        return blob, pickle.dumps(facts, protocol=5), f"{NEEDS} {', '.join(needs)}" if needs else None
    except SyntaxError as error:
        return blob, None, f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
    except (RecursionError, MemoryError):
        return blob, None, "nested too deeply to parse"


class _FactsOnly(pickle.Unpickler):
    """Unpickler that loads facts and nothing else, so that a planted database cannot execute code."""

    def find_class(self, module: str, name: str) -> object:
        # `getattr` on the one module of facts; anything else that a pickle names is refused.
        kind = getattr(facts_module, name, None) if module == facts_module.__name__ else None
        if isinstance(kind, type) and issubclass(kind, tuple) and kind.__module__ == facts_module.__name__:
            return kind
        raise pickle.UnpicklingError(f"{module}.{name} is not a fact")


def _loads(data: bytes) -> FileFacts:
    result = _FactsOnly(io.BytesIO(data)).load()
    assert isinstance(result, FileFacts)
    return result
