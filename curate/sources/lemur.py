"""Rows of a released LEMUR corpus, read straight from the `nn-dataset` wheel, which is never installed or imported.

A folder `ab/nn/stat/train/TASK_DATASET_METRIC_NN` holds one `EPOCH.json` per epoch: a list of trials. The API loads
them all into SQLite; so is done here, once, in tables like its own, and the rows are those of that database.

Source: `ab/nn/util/db/{Write,Read}.py` of https://github.com/ABrain-One/nn-dataset
"""

import email
import functools
import hashlib
import json
import re
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from packaging.version import InvalidVersion, Version

from curate.sources.database import DatabaseFile
from curate.sources.rows import BATCH_ROWS, ROW_SCHEMA, MeasuredFacts, RecordSource
from lemur_core.files.atomic import atomic_file, scratch_folder
from lemur_core.files.cache import cache_folder, read_cached
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.foreign import decode_python
from lemur_core.files.pip import DEFAULT_VERSION, fetch_release, list_releases
from lemur_core.files.progress import progress
from manifests.folders.manifest import Input
from manifests.provenance.licenses import license_of_fields

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
            runs: list[tuple[object, ...]] = []
            parameters: list[tuple[object, ...]] = []
            for index, trial in enumerate(trials):
                accuracy, duration = trial.pop("accuracy", None), trial.pop("duration", None)
                uid, transform = trial.pop("uid", None) or f"{file}#{index}", trial.get("transform", "")
                parameters += ((uid, *item) for item in trial.items())
                if accuracy is not None and accuracy == best:
                    # LEMUR's id of a trial is the MD5 of the printed values without white space.
                    printed = str([transform, uid, task, dataset, metric, nn, epoch, duration, accuracy])
                    key = hashlib.md5("".join(printed.split()).encode(), usedforsecurity=False).hexdigest()
                    runs.append((key, accuracy, epoch, duration, task, dataset, metric, nn, transform, uid))
            database.executemany("INSERT INTO stat VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", runs)
            database.executemany("INSERT INTO prm VALUES (?, ?, ?)", parameters)
            done(1)
        database.execute("CREATE INDEX of_uid ON prm (uid, name, value)")
        database.commit()


def _as_text(code: bytes) -> str | bytes:
    """Return code as Python reads it; the bytes where that fails, as the row then says."""
    try:
        return decode_python(code)
    except SyntaxError:
        return code


#: In the names of the cached tables, so that code that reads wheels differently does not use tables of older code.
_TABLES_FORMAT = 4
_METADATA = b"METADATA"  # key in the schema of the table


class LemurRelease(RecordSource):
    """The rows that `ab.nn.api.data(only_best_accuracy=True)` of one release returns, in its order.

    `lemur_core.files.pip` fetches the wheel once and checks its digest.

    Source: https://github.com/ABrain-One/nn-dataset
    """

    def __init__(self, version: str = DEFAULT_VERSION) -> None:
        self.version = version
        super().__init__(f"lemur@{version}")
        self._folder = cache_folder("lemur", _safe(version))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield rows ordered by task, dataset, metric, nn and epoch; ties in the order of the database.

        Raises: UserError if the release does not exist, has no codes, or its digest is wrong.
        """
        path = self._table()
        with read_cached(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                yield batch.replace_schema_metadata(None)

    def measurements(self) -> Iterator[MeasuredFacts]:
        """Yield the measurements of the release, by the names of their files."""
        return read_release(self._wheel[0])

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
        with zipfile.ZipFile(wheel) as archive, scratch_folder("lemur") as scratch:
            codes = read_codes(archive)
            if not codes:
                known = ", ".join(list_releases())
                raise UserError(f"nn-dataset {self.version} contains no code of networks; releases that do: {known}")
            _write_database(archive, codes, scratch / "ab.nn.db")
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            schema = ROW_SCHEMA.with_metadata({_METADATA: archive.read(name)})
            with atomic_file(target) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
                for batch in DatabaseFile(scratch / "ab.nn.db").batches():
                    writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        return target

    @functools.cached_property
    def _wheel(self) -> tuple[Path, Input]:
        wheel, digest = fetch_release(_safe(self.version))
        return wheel, Input(name=wheel.name, sha256=digest, bytes=wheel.stat().st_size)


def _safe(version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise UsageError(f"lemur@{version}: not a version; for example lemur@{DEFAULT_VERSION}") from error


def read_release(wheel: Path) -> Iterator[MeasuredFacts]:
    """Yield the measurements besides training in a wheel of nn-dataset, by the names of their files.

    2.1.0 has 2,476 files `ab/nn/stat/run/TASK_NN/DEVICE.json`; later ones a folder for each format.
    """
    with zipfile.ZipFile(wheel) as archive:
        networks = {PurePosixPath(name).stem for name in archive.namelist() if name.startswith(_CODES)}
        for name in sorted(archive.namelist()):
            if not (name.startswith(_STAT) and name.endswith(".json")) or _TRAINING.fullmatch(name):
                continue
            path = PurePosixPath(name.removeprefix(_STAT))
            of_folder = "_" in path.parent.name  # else the file is named by the network
            folder, network = (path.parent.parent, path.parent.name) if of_folder else (path.parent, path.stem)
            kind, place = folder.as_posix(), path.relative_to(folder).as_posix()
            data = archive.read(name)
            try:
                value: Any = json.loads(data)
            except (ValueError, RecursionError):
                value = {"unreadable": data.decode("utf-8", "backslashreplace")}
            for number, item in enumerate(value if isinstance(value, list) else [value]):
                facts = item if isinstance(item, dict) else {"value": item}
                stated = facts.get("model_name")
                parts = network.split("_")  # the name of a network may hold the sign that separates it
                names = ("_".join(parts[at:]) for at in range(len(parts)))
                named = next((name for name in names if name in networks), parts[-1])
                nn = stated if isinstance(stated, str) else named
                yield MeasuredFacts(nn, kind, place + (f"#{number}" if number else ""), facts)
