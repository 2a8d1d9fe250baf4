"""Rows of a released LEMUR corpus, read straight from the `nn-dataset` wheel, which is never installed or imported.

A folder `ab/nn/stat/train/TASK_DATASET_METRIC_NN` holds one `EPOCH.json` per epoch: a list of trials. The API loads
them all into SQLite and returns, for each (task, dataset, metric, nn, epoch), every trial that reaches the maximum
accuracy. Three effects of that database show in its rows and are reproduced here: ties are in the order of the index
that SQLite builds for the query (transform, duration, trial id); hyperparameters belong to a `uid` (the union over its
trials, with the greatest value of each); and its numeric columns turn 1.0 into 1.

Source: `ab/nn/util/db/{Write,Read}.py` of https://github.com/ABrain-One/nn-dataset
"""

import email
import functools
import hashlib
import json
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from packaging.version import InvalidVersion, Version

from curate.sources.rows import BATCH_ROWS, ROW_SCHEMA, TRAINING, MeasuredFacts, RecordSource, read_release
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder, read_cached
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.pip import DEFAULT_VERSION, fetch_release, list_releases
from lemur_core.files.progress import progress
from lemur_core.files.python import decode_python
from lemur_core.files.workers import map_items
from manifests.folders.manifest import Input
from manifests.provenance.licenses import license_of_fields
from manifests.records import drop_outcomes

_CODES = "ab/nn/nn/"
_PARTS = 16
_COLUMNS = {
    **dict.fromkeys(("nn", "task", "dataset", "metric"), pa.string()),
    "epoch": pa.int64(),
    "accuracy": pa.float64(),
    "duration": pa.float64(),
}


class _Best(NamedTuple):
    task: str
    dataset: str
    metric: str
    nn: str
    epoch: int
    tie: tuple[str, bool, float, str]  # order among the trials of one file with the same accuracy
    accuracy: float
    duration: float | None
    uid: str


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
    return sorted(name for name in archive.namelist() if TRAINING.fullmatch(name))


def read_stats(wheel: Path, files: list[str], codes: dict[str, bytes]) -> tuple[pa.Table, pa.Table]:
    """Return rows without code (column `code` is an index) and the table of codes (column `code`), one per name."""
    best: list[_Best] = []
    parameters: dict[str, Json] = {}
    step = -(-len(files) // _PARTS) if files else 1
    parts = [files[i : i + step] for i in range(0, len(files), step)]
    with progress("reading LEMUR statistics", len(files), "files") as advance:
        for part, (rows, part_parameters) in zip(parts, map_items(partial(_read_part, wheel), parts), strict=True):
            best += rows
            for uid, values in part_parameters.items():
                _merge(parameters, uid, values)
            advance(len(part))
    best.sort(key=lambda row: row[:6])
    names = sorted({row.nn for row in best})
    index = {name: i for i, name in enumerate(names)}
    # The outcomes of trials that share a uid are mixed, and belong to none of them.
    prm = {uid: json.dumps(drop_outcomes(values), sort_keys=True) for uid, values in parameters.items()}
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in best] for name in _COLUMNS}
    columns |= {"prm": [prm[row.uid] for row in best], "code": [index[row.nn] for row in best]}
    rows_table = pa.table(columns, schema=pa.schema([*_COLUMNS.items(), ("prm", pa.string()), ("code", pa.int32())]))
    texts = [_read_text(codes.get(name)) for name in names]
    return rows_table, pa.table({"code": pa.array(texts, pa.large_string())})


def _read_text(code: bytes | None) -> str | None:
    try:
        return None if code is None else decode_python(code)
    except SyntaxError:
        return None


def _read_part(wheel: Path, files: list[str]) -> tuple[list[_Best], dict[str, Json]]:
    best: list[_Best] = []
    parameters: dict[str, Json] = {}
    archive = _archive(wheel)
    for file in files:
        match = TRAINING.fullmatch(file)
        assert match is not None
        task, dataset, metric, nn, epoch = match.groups()
        trials = json.loads(archive.read(file))
        highest = max((t["accuracy"] for t in trials if t.get("accuracy") is not None), default=None)
        config = (task, dataset, metric, nn, int(epoch))
        for index, trial in enumerate(trials):
            accuracy, duration = trial.pop("accuracy", None), trial.pop("duration", None)
            uid = trial.pop("uid", None) or f"{file}#{index}"
            _merge(parameters, uid, trial)
            if accuracy is not None and accuracy == highest:
                transform = trial.get("transform", "")
                trial_id = _trial_id([transform, uid, *config, duration, accuracy])
                tie = (transform, duration is not None, duration or 0, trial_id)
                best.append(_Best(*config, tie, float(accuracy), duration, uid))
    return best, {
        uid: {name: _store_value(value) for name, value in values.items()} for uid, values in parameters.items()
    }


@functools.cache
def _archive(wheel: Path) -> zipfile.ZipFile:
    """Open the wheel once per worker: reading its directory, a hundred thousand names, takes a second."""
    return zipfile.ZipFile(wheel)


def _trial_id(values: list[Any]) -> str:
    """Return the id that LEMUR gives a trial: the MD5 of the printed values without white space."""
    return hashlib.md5("".join(str(values).split()).encode(), usedforsecurity=False).hexdigest()


def _merge(parameters: dict[str, Json], uid: str, values: Json) -> None:
    """Add a trial's hyperparameters to those of its uid; of two values, keep the one that SQLite orders last."""
    known = parameters.setdefault(uid, values)
    if known is values or known == values:
        return
    for name, value in values.items():
        if name not in known or _sqlite_order(value) > _sqlite_order(known[name]):
            known[name] = value


def _sqlite_order(value: Any) -> tuple[bool, Any]:
    stored = _store_value(value)
    return isinstance(stored, str), stored


def _store_value(value: Any) -> Any:
    """Convert a value as SQLite's NUMERIC affinity does: integral floats and booleans become integers."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer() and abs(value) < 2**51):
        return int(value)
    return value


#: In the names of the cached tables, so that code that reads wheels differently does not use tables of older code.
_TABLES_FORMAT = 3
_METADATA = b"METADATA"  # key in the schema of the table of codes


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
        of_codes, of_rows = self._files()
        with read_cached(of_codes):
            codes = pq.read_table(of_codes).column("code").combine_chunks()
        with read_cached(of_rows):
            rows = pq.read_table(of_rows)
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS).combine_chunks()
            columns = [
                codes.take(part.column("code").combine_chunks())
                if field.name == "nn_code"
                else pa.nulls(part.num_rows, field.type)
                if field.name in ("arch_uid", "outcomes", "license", "problem")
                else part.column(field.name).combine_chunks().cast(field.type)
                for field in ROW_SCHEMA
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)

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
        of_codes, _ = self._files()
        with read_cached(of_codes):
            fields = email.message_from_bytes(pq.read_schema(of_codes).metadata[_METADATA])
        texts = (fields.get("License-Expression") or "", fields.get("License") or "")
        return license_of_fields(*texts, fields.get_all("Classifier") or [])

    def _files(self) -> tuple[Path, Path]:
        """Return the tables of codes, with the release's metadata in the schema, and of rows; build them if missing."""
        wheel, given = self._wheel
        key = f"{given.sha256[:16]}-v{_TABLES_FORMAT}"
        codes_file, rows_file = self._folder / f"codes-{key}.parquet", self._folder / f"rows-{key}.parquet"
        if not (rows_file.is_file() and codes_file.is_file()):
            with zipfile.ZipFile(wheel) as archive:  # its directory alone takes half a second to read
                codes, files = read_codes(archive), stat_files(archive)
                (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
                metadata = archive.read(name)
            if not codes:
                raise UserError(
                    f"nn-dataset {self.version} contains no code of networks; releases that do:"
                    f" {', '.join(list_releases())}"
                )
            rows, texts = read_stats(wheel, files, codes)
            for file, table in ((codes_file, texts.replace_schema_metadata({_METADATA: metadata})), (rows_file, rows)):
                with atomic_file(file) as part:
                    pq.write_table(table, part, compression="zstd")
        return codes_file, rows_file

    @functools.cached_property
    def _wheel(self) -> tuple[Path, Input]:
        wheel, digest = fetch_release(_safe(self.version))
        return wheel, Input(name=wheel.name, sha256=digest, bytes=wheel.stat().st_size)


def _safe(version: str) -> str:
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise UsageError(f"lemur@{version}: not a version; for example lemur@{DEFAULT_VERSION}") from error
