"""Rows of LEMUR: of a release, read straight from its wheel, and of a database, as nn-dataset writes both.

A database is a SQLite file, plain (`ab.nn.db`) or compressed by Zstandard. Its rows are those that
`ab.nn.api.data(only_best_accuracy=True)` returns, in its order: for each (task, dataset, metric, nn, epoch) every run
that reaches the maximum accuracy. They are read in one sorted pass, a network's code and a run's hyperparameters as
they come up, so that memory does not grow with the database.

The wheel is never installed or imported. A folder `ab/nn/stat/train/TASK_DATASET_METRIC_NN` in it holds one
`EPOCH.json` per epoch: a list of trials. The API loads them all into SQLite; so is done here, once.

Source: `ab/nn/util/{ZST.py,db/{Init,Write,Read}.py}` of https://github.com/ABrain-One/nn-dataset
"""

import email
import hashlib
import itertools
import json
import re
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from packaging.version import InvalidVersion, Version

from curate.sources.rows import (
    BATCH_ROWS,
    ROW_SCHEMA,
    FileSource,
    RecordSource,
    SourceRow,
    describe_file,
    open_compressed,
    read_errors,
    read_row,
)
from lemur_core.files.atomic import atomic_file, scratch_folder, sha256_file
from lemur_core.files.cache import cache_folder, drop_damaged, is_cached, read_cached
from lemur_core.files.errors import DamagedError, RetryableError, UsageError, UserError
from lemur_core.files.foreign import decode_python
from lemur_core.files.markdown import plural
from lemur_core.files.pip import AbsentError, download
from lemur_core.files.progress import note, progress
from manifests.folders.manifest import Input
from manifests.provenance.licenses import license_of_fields
from manifests.records import drop_outcomes

# --- databases --------------------------------------------------------------------------------------------------------

#: The columns read of each table; others may be present.
_READ = {
    "stat": ("id", "accuracy", "epoch", "duration", "task", "dataset", "metric", "nn", "transform", "prm"),
    "nn": ("name", "code"),
    "prm": ("uid", "name", "value"),
}
_CONFIGURATION = ("task", "dataset", "metric", "nn", "epoch")
_NEEDED = ("accuracy", *_CONFIGURATION)
#: The best runs of each configuration come first; ties in the order of the index that LEMUR's query uses.
_RUNS = f"""
    SELECT {", ".join(_CONFIGURATION)}, duration, prm, accuracy FROM stat
    WHERE {" AND ".join(f"{name} IS NOT NULL" for name in _NEEDED)}
    ORDER BY {", ".join(_CONFIGURATION)}, accuracy DESC, transform, duration, id
"""
_SORT_KIB = 1 << 16  # memory for sorting runs; more uses a temporary file
#: Networks and runs whose code and hyperparameters are cached: neighbors share them.
_CACHED_CODES, _CACHED_PARAMETERS = 128, 4_096


def read_database(path: Path, where: str) -> Iterator[SourceRow]:
    """Yield the rows of a database, opened read-only.

    Args: where: its name in messages.
    Raises: UserError if it is not a SQLite database, not one of LEMUR, or locked; or if none of its runs is a row.
    """
    rows = 0
    with _open(path, where) as connection, progress("reading LEMUR's runs", None, "best runs") as advance:
        for table, wanted in _READ.items():
            columns = _columns(connection, table)
            if missing := [name for name in wanted if name not in columns]:
                has = f"table {table!r} has no column {missing[0]!r}" if columns else f"it has no table {table!r}"
                raise UserError(f"{where}: not a LEMUR database: {has}")
        read_code, read_parameters = _code_reader(connection), _parameter_reader(connection)
        runs = connection.execute(_RUNS)
        names = [name for name, *_ in runs.description]
        for _, same in itertools.groupby(runs, lambda run: run[: len(_CONFIGURATION)]):
            best = None
            for run in same:
                row = dict(zip(names, run, strict=True))
                best = row["accuracy"] if best is None else best
                if row["accuracy"] != best:
                    break
                code, arch_uid = read_code(row["nn"])
                yield read_row({**row, "nn_code": code, "arch_uid": arch_uid, "prm": read_parameters(row["prm"])})
                rows += 1
                advance(1)
        total = connection.execute("SELECT COUNT(*) FROM stat").fetchone()[0]
    if total and not rows:
        none = f"of {plural(total, 'run')} none has a value in each of the columns {', '.join(_NEEDED)}"
        raise UserError(f"{where}: {none}, so there are no rows")


@contextmanager
def _open(path: Path, where: str) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection; report errors of SQLite in the block as one line."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes  # a file may claim falsely that its text is UTF-8
            connection.execute(f"PRAGMA cache_size = -{_SORT_KIB}")
            yield connection
    except sqlite3.DatabaseError as error:
        message = f"{where}: cannot be read as a SQLite database: {error}"
        if isinstance(error, sqlite3.OperationalError):  # the file is sound
            advice = "check its permissions, the space for temporary files (TMPDIR), and whether a program writes to it"
            raise UserError(f"{message}; {advice}") from error
        if is_cached(path):
            drop_damaged(path)
            raise DamagedError(f"{message}; run again") from error
        raise UserError(f"{message}; write or fetch it again") from error


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [_text(name) for (name,) in connection.execute(f"SELECT name FROM pragma_table_info('{table}')")]


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _code_reader(connection: sqlite3.Connection) -> Callable[[bytes], tuple[bytes | None, str | None]]:
    """Return a function from a network's name to its code and `arch_uid`.

    Up to nn-dataset 2.2 a network's id is the MD5 of its text without white space, which is independent of what it
    computes; later it is a certificate of its architecture, except for code that allows none.
    """
    columns = _columns(connection, "nn")
    identity = next((name for name in ("arch_uid", "id") if name in columns), "NULL")

    @lru_cache(maxsize=_CACHED_CODES)
    def read(name: bytes) -> tuple[bytes | None, str | None]:
        query = f"SELECT code, {identity} FROM nn WHERE name = CAST(? AS TEXT)"
        code, uid = connection.execute(query, (name,)).fetchone() or (None, None)
        if not (uid and isinstance(uid, bytes) and isinstance(code, bytes)):
            return code, None
        plain = "".join(code.decode("utf-8", "replace").split()).encode("utf-8", "replace")
        return code, None if uid == hashlib.md5(plain, usedforsecurity=False).hexdigest().encode() else _text(uid)

    return read


def _parameter_reader(connection: sqlite3.Connection) -> Callable[[object], str]:
    """Return a function from a run's parameter id to its hyperparameters as JSON; the greatest value wins.

    Runs of the same hyperparameters share the id, and their outcomes are mixed: those of a single run are read.
    """
    table = "prm"
    first = "FROM pragma_index_list('prm') AS list, pragma_index_info(list.name) AS part WHERE part.seqno = 0"
    if not connection.execute(f"SELECT 1 {first} AND part.name = 'uid'").fetchone():  # a database of older releases
        connection.execute("CREATE TEMP TABLE by_uid AS SELECT uid, name, MAX(value) AS value FROM prm GROUP BY 1, 2")
        connection.execute("CREATE INDEX temp.of_uid ON by_uid (uid, name, value)")
        table = "by_uid"

    @lru_cache(maxsize=_CACHED_PARAMETERS)
    def read(uid: object) -> str:
        query = f"SELECT name, MAX(value) FROM {table} WHERE uid = CAST(? AS TEXT) GROUP BY name"
        values = {_text(name): _text(value) for name, value in connection.execute(query, (uid,))}
        own = drop_outcomes(values)
        return json.dumps(own if len(own) < len(values) and is_shared(uid) else values, sort_keys=True)

    def is_shared(uid: object) -> bool:
        """Return whether several runs have a parameter id; the first call scans the runs."""
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS runs AS SELECT CAST(prm AS TEXT) AS uid FROM stat")
        connection.execute("CREATE INDEX IF NOT EXISTS temp.runs_of_uid ON runs (uid)")
        return len(connection.execute("SELECT 1 FROM runs WHERE uid = CAST(? AS TEXT) LIMIT 2", (uid,)).fetchall()) > 1

    return read


_SQLITE, _ZSTANDARD = b"SQLite format 3\x00", b"\x28\xb5\x2f\xfd"


def unpack(packed: Path, target: Path, where: str) -> None:
    """Decompress a database into a file, atomically.

    Args: where: the packed file's name in messages.
    Raises: UserError if it is not a complete Zstandard file of a SQLite database, or its content is out of proportion.
    """
    with atomic_file(target) as part, part.open("wb") as out, open_compressed(packed, where, "zstd") as content:

        def read() -> bytes:
            with read_errors(where):  # errors of writing are another file's
                return content.read(1 << 20)

        # Refuse at the first bytes: gigabytes of something else would fill the disk.
        if not (piece := read()).startswith(_SQLITE):
            raise UserError(f"{where}: holds no SQLite database; name LEMUR's ab.nn.db or ab.nn.zst")
        while piece:
            out.write(piece)
            piece = read()


class DatabaseFile(FileSource):
    """A LEMUR database on this machine. A compressed one is decompressed once, into the cache."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, lambda path, where: read_database(find_plain(path, where), where))


def find_plain(path: Path, where: str) -> Path:
    """Return the database itself, or if it is compressed, its plain form in the cache."""
    with read_errors(where), path.open("rb") as file:
        if file.read(len(_ZSTANDARD)) != _ZSTANDARD:
            return path
        digest = sha256_file(path)
    target = cache_folder("lemur-db") / f"{digest[:16]}.db"
    if not target.is_file():
        note(f"{where}: decompressing into {target.parent}")
        unpack(path, target, where)
    return target


# --- releases ---------------------------------------------------------------------------------------------------------

#: The last release that contains both codes and statistics; the releases, with the digest and size of their wheels, and
#: how many codes they have.
DEFAULT_VERSION = "2.1.0"
_RELEASES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("lemur_releases.json").read_bytes())

_CODES, _STAT = "ab/nn/nn/", "ab/nn/stat/"
#: Statistics of training, which are rows of networks. Up to release 2.0.6 the folders were in `stat/` itself.
_TRAINING = re.compile(rf"{_STAT}(?:train/)?([^/_]+)_([^/_]+)_([^/_]+)_([^/_]+)/(\d+)\.json")
#: What is read of LEMUR's tables, with the types that it declares: they turn a hyperparameter 1.0 into 1.
_TABLES = """
    CREATE TABLE nn (name TEXT PRIMARY KEY, code TEXT);
    CREATE TABLE prm (uid TEXT, name TEXT, value NUMERIC);
    CREATE TABLE stat (id TEXT, accuracy REAL, epoch INTEGER, duration INTEGER, task TEXT, dataset TEXT, metric TEXT,
        nn TEXT, transform TEXT, prm TEXT);
"""
#: In the names of the cached tables, so that code that reads wheels differently does not use tables of older code.
_TABLES_FORMAT = 4
_METADATA = b"METADATA"  # key in the schema of the table


class LemurRelease(RecordSource):
    """The rows that `ab.nn.api.data(only_best_accuracy=True)` of one release returns, in its order.

    Source: https://github.com/ABrain-One/nn-dataset
    """

    def __init__(self, version: str = DEFAULT_VERSION) -> None:
        super().__init__(f"lemur@{version}")
        self.version = str(parse_version(self.name, f"lemur@{DEFAULT_VERSION}"))
        self._folder = cache_folder("lemur", self.version)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield rows ordered by task, dataset, metric, nn and epoch; ties in the order of the database.

        Raises: UserError if the release does not exist, has no codes, or its digest is wrong.
        """
        path = self._table()
        with read_cached(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                yield batch.replace_schema_metadata(None)

    def inputs(self) -> list[Input]:
        """Return the wheel as an input."""
        return [self._wheel[1]]

    def license(self, stated: str | None) -> str:  # noqa: ARG002 (the distribution states its own)
        """Return the license in the distribution's metadata.

        Source: https://packaging.python.org/specifications/core-metadata/
        """
        path = self._table()
        with read_cached(path):
            fields = email.message_from_bytes(pq.read_schema(path).metadata[_METADATA])
        texts = (fields.get("License-Expression") or "", fields.get("License") or "")
        return license_of_fields(*texts, fields.get_all("Classifier") or [])

    def _table(self) -> Path:
        """Return the table of the rows, with the release's metadata in its schema; build it if it is missing."""
        wheel, given = self._wheel
        target = self._folder / f"rows-{given.sha256[:16]}-v{_TABLES_FORMAT}.parquet"
        if target.is_file():
            return target
        with read_cached(wheel):
            archive = zipfile.ZipFile(wheel)
            codes = read_codes(archive)
        with archive, scratch_folder("lemur") as scratch:
            if not codes:
                raise self._refuse("contains no code of networks")
            _write_database(archive, codes, scratch / "ab.nn.db")
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            schema = ROW_SCHEMA.with_metadata({_METADATA: archive.read(name)})
            with atomic_file(target) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
                for batch in DatabaseFile(scratch / "ab.nn.db").batches():
                    writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        return target

    @cached_property
    def _wheel(self) -> tuple[Path, Input]:
        """The wheel, downloaded once with the user's index settings of pip, and its description."""
        wheel = next(iter(sorted(self._folder.glob("*.whl"))), None) or self._download()
        given, expected = describe_file(wheel, wheel.name), _RELEASES.get(self.version, {}).get("sha256")
        if expected not in (None, given.sha256):
            drop_damaged(wheel)
            raise DamagedError(f"{wheel.name}: SHA-256 is {given.sha256[:16]}…, expected {expected[:16]}…; run again")
        return wheel, given

    def _download(self) -> Path:
        facts = _RELEASES.get(self.version)
        if facts is not None and not facts["codes"]:
            raise self._refuse("contains no code of networks")
        size = f" ({facts['bytes'] / 1e6:.0f} MB)" if facts else ""
        note(f"fetching nn-dataset {self.version}{size} with pip download")
        with scratch_folder("download", parent=self._folder) as part:
            try:
                wheel = download("nn-dataset", f"=={self.version}", part)
            except UserError as error:
                if isinstance(error, AbsentError) and error.versions:
                    raise self._refuse("no such release") from error
                raise RetryableError(f"nn-dataset {self.version} could not be fetched with pip: {error}") from error
            return wheel.replace(self._folder / wheel.name)

    def _refuse(self, reason: str) -> UserError:
        known = ", ".join(version for version, facts in _RELEASES.items() if facts["codes"])
        return UserError(f"nn-dataset {self.version}: {reason}; releases with network codes: {known}")


def parse_version(spec: str, example: str) -> Version:
    """Return the version in `NAME@VERSION`. Raises: UsageError if it is none."""
    try:
        return Version(spec.partition("@")[2])
    except InvalidVersion as error:
        raise UsageError(f"{spec}: not a version; for example {example}") from error


def read_codes(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Return the code of each network by name, with line ends as in Python's text mode."""
    codes = {}
    for name in archive.namelist():
        stem = name.removeprefix(_CODES)
        if stem != name and stem.endswith(".py") and "/" not in stem and stem != "__init__.py":
            codes[stem.removesuffix(".py")] = archive.read(name).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return codes


def stat_files(archive: zipfile.ZipFile) -> list[str]:
    """Return the files of training statistics, sorted."""
    return sorted(name for name in archive.namelist() if _TRAINING.fullmatch(name))


def _write_database(archive: zipfile.ZipFile, codes: dict[str, bytes], path: Path) -> None:
    """Write codes and trials of a wheel into a new database."""
    files = stat_files(archive)
    with closing(sqlite3.connect(path)) as database, progress("reading LEMUR statistics", len(files), "files") as done:
        database.executescript(_TABLES)
        database.executemany("INSERT INTO nn VALUES (?, ?)", ((name, _as_text(code)) for name, code in codes.items()))
        for file in files:
            match = _TRAINING.fullmatch(file)
            assert match is not None
            task, dataset, metric, nn, epoch = *match.groups()[:4], int(match[5])
            trials = json.loads(archive.read(file))
            # A trial that is not among the best is no row, but its hyperparameters count.
            best = max((trial["accuracy"] for trial in trials if trial.get("accuracy") is not None), default=None)
            for index, trial in enumerate(trials):
                accuracy, duration = trial.pop("accuracy", None), trial.pop("duration", None)
                uid, transform = trial.pop("uid", None) or f"{file}#{index}", trial.get("transform", "")
                parameters = ((uid, *item) for item in trial.items())
                database.executemany("INSERT INTO prm VALUES (?, ?, ?)", parameters)
                if accuracy is not None and accuracy == best:
                    # LEMUR's id of a trial is the MD5 of the printed values without white space.
                    printed = str([transform, uid, task, dataset, metric, nn, epoch, duration, accuracy])
                    key = hashlib.md5("".join(printed.split()).encode(), usedforsecurity=False).hexdigest()
                    run = (key, accuracy, epoch, duration, task, dataset, metric, nn, transform, uid)
                    database.execute("INSERT INTO stat VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", run)
            done(1)
        database.execute("CREATE INDEX of_uid ON prm (uid, name, value)")
        database.commit()


def _as_text(code: bytes) -> str | bytes:
    """Return code as Python reads it; the bytes where that fails, as the row then says."""
    try:
        return decode_python(code)
    except SyntaxError:
        return code
