"""Putting files of trials into a LEMUR database, by the rules of the package's own import, and none of them twice.

A database has tables of codes (`nn`, `metric`, `transform`: name, code, id), hyperparameters (`prm`: uid, name, value)
and trials (`stat`). The id of a code is its digest, that of a trial the digest of all that the trial holds, so what is
there already is recognised. The package declares foreign keys but cannot enforce them (`prm` is referred to by a column
that is not unique), so they are looked after here: whatever a trial names is in its table. Where a database holds no
code of the metric or a transform, it gets one of ours that does the same.

Source: `ab/nn/util/db/Init.py` and `Write.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.errors import UserError
from train.contract import lemur_digest, transform_module, transform_named
from train.lemur_files import CODES, LEMUR, METRIC, TRIALS, Trial, read_trials, why_refused
from train.run_folder import read_record

_CODE_TABLES = ("nn", "transform", "metric")
_REFERENCES = (*_CODE_TABLES, "prm")
_INDEXED = ("task", "dataset", "nn", "transform", "metric", "prm")
_COLUMNS = {
    **dict.fromkeys(_CODE_TABLES, ("name", "code", "id")),
    "prm": ("uid", "name", "value"),
    "stat": ("id", "accuracy", "epoch", "duration", *_INDEXED),
}
_EPOCH_FILE = re.compile(r"[1-9][0-9]*\.json")
_WAIT_SECONDS = 30.0

_ACCURACY = '''class Accuracy:
    """Share of samples whose highest score is that of their class."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.correct, self.total = 0, 0

    def update(self, outputs, targets):
        if outputs.dim() == 3:
            outputs = outputs.flatten(0, 1)
        targets = targets.flatten()
        self.correct += int((outputs.argmax(1) == targets).sum())
        self.total += targets.numel()

    def __call__(self, outputs, targets):
        self.update(outputs, targets)
        return self.correct, self.total

    def result(self):
        return self.correct / max(self.total, 1e-8)


def create_metric(out_shape=None):
    return Accuracy()
'''


@dataclass(frozen=True, slots=True)
class Registered:
    """Trials that were added, trials that were there already, and for each folder that failed one line: why."""

    added: int
    present: int
    failed: tuple[str, ...]


def register(db: Path, folders: Sequence[Path]) -> Registered:
    """Add the trials of folders, as `write_lemur_files` leaves them, to a LEMUR database; a new file is set up.

    Each folder is added whole or not at all. Doing it again adds nothing.

    Raises: UserError if the database cannot be opened or written, or is not one of LEMUR's.
    """
    added = present = 0
    failed = []
    with closing(_open(db)) as database:
        with _transaction(database, db):
            _prepare(database, db)
        for folder in folders:
            try:
                with _transaction(database, db):
                    new, old = _add_folder(database, folder)
            except _FolderError as error:
                failed.append(str(error))
            else:
                added, present = added + new, present + old
    return Registered(added, present, tuple(failed))


def register_runs(db: Path, runs: Sequence[Path]) -> Registered:
    """Add the trials of folders that `lemur train run` wrote; as `register`, and a run that has none fails."""
    reasons = {run: _why_no_trials(run) for run in runs}
    without = tuple(reason for reason in reasons.values() if reason)
    folders = [run / LEMUR for run, reason in reasons.items() if not reason]
    if not folders:
        return Registered(0, 0, without)
    done = register(db, folders)
    return Registered(done.added, done.present, (*without, *done.failed))


def _why_no_trials(run: Path) -> str:
    if (run / LEMUR).is_dir():
        return ""
    try:
        record = read_record(run)
    except (OSError, ValueError):
        return f"{run}: is not the folder of a whole training run; give one that `lemur train run` wrote"
    reason = why_refused(record) or f"has no folder {LEMUR}; the command that trained it writes it when it is run again"
    return f"{run}: {reason}"


class _FolderError(Exception):
    """A folder that cannot be added, and why."""


def _open(db: Path) -> sqlite3.Connection:
    if db.is_dir() or not db.parent.is_dir():
        what = "is a folder" if db.is_dir() else f"there is no folder {db.parent}"
        raise UserError(f"{db}: {what}; give the file of a LEMUR database, for example db/ab.nn.db")
    try:
        return sqlite3.connect(db, timeout=_WAIT_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise UserError(f"{db}: cannot be opened: {error}; give the file of a LEMUR database") from error


@contextmanager
def _transaction(database: sqlite3.Connection, db: Path) -> Iterator[None]:
    """All that is done in here, or nothing of it."""
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise UserError(
            f"{db}: {error}; give a LEMUR database that can be written and that nothing else uses"
        ) from error
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _prepare(database: sqlite3.Connection, db: Path) -> None:
    """Make the tables of an empty database, look at those of any other."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        _create(database)
        return
    for table, columns in _COLUMNS.items():
        if table not in tables:
            raise UserError(f"{db}: has no table {table}; this is not the schema of nn-dataset 2.1.0")
        known = {row[1]: row for row in database.execute(f"PRAGMA table_info({table})")}
        missing = [column for column in columns if column not in known]
        if missing:
            raise UserError(
                f"{db}: table {table} has no column {missing[0]}; this is not the schema of nn-dataset 2.1.0"
            )
        for name, (_, _, _, required, default, _) in known.items():
            if required and default is None and name not in columns:
                raise UserError(f"{db}: table {table} demands a column {name}, which nn-dataset 2.1.0 does not have")


def _create(database: sqlite3.Connection) -> None:
    for table in _CODE_TABLES:
        database.execute(f"CREATE TABLE {table} (name TEXT PRIMARY KEY, code TEXT NOT NULL, id TEXT NOT NULL)")
    database.execute("CREATE TABLE prm (uid TEXT NOT NULL, name TEXT NOT NULL, value OBJECT NOT NULL)")
    database.execute("CREATE INDEX idx_prm_uid ON prm (uid, name, value)")
    keys = ", ".join(f"FOREIGN KEY ({name}) REFERENCES {name} (name) ON DELETE CASCADE" for name in _REFERENCES)
    columns = f"id TEXT PRIMARY KEY, accuracy REAL, epoch INTEGER, duration INTEGER, {', '.join(_INDEXED)}"
    database.execute(f"CREATE TABLE stat ({columns}, {keys})")
    database.execute("CREATE INDEX idx_accuracy_desc ON stat (accuracy DESC)")
    for name in _INDEXED:
        database.execute(f"CREATE INDEX idx_{name} ON stat ({name})")


def _add_folder(database: sqlite3.Connection, folder: Path) -> tuple[int, int]:
    """How many trials of a folder were new, and how many not."""
    added = present = 0
    trials = folder / TRIALS
    configurations = sorted(path for path in trials.iterdir() if path.is_dir()) if trials.is_dir() else []
    if not configurations:
        raise _FolderError(f"{folder}: holds no {TRIALS.as_posix()}/TASK_DATASET_METRIC_NN; write it with lemur first")
    for configuration in configurations:
        parts = configuration.name.split("_")
        if len(parts) != 4:
            raise _FolderError(f"{configuration}: is not named TASK_DATASET_METRIC_NN, with three _")
        _add_network(database, folder, parts[3])
        for epoch, file in _epochs(configuration):
            try:
                found = read_trials(file)
            except UserError as error:
                raise _FolderError(str(error)) from error
            for trial in found:
                new = _add_trial(database, (parts[0], parts[1], parts[2], parts[3], epoch), trial, file)
                added, present = added + new, present + (not new)
    return added, present


def _epochs(configuration: Path) -> list[tuple[int, Path]]:
    files = [file for file in configuration.iterdir() if not file.name.startswith(".")]
    wrong = sorted(file for file in files if not _EPOCH_FILE.fullmatch(file.name))
    if wrong:
        raise _FolderError(f"{wrong[0]}: is not named EPOCH.json")
    return sorted((int(file.stem), file) for file in files)


def _add_network(database: sqlite3.Connection, folder: Path, name: str) -> None:
    file = folder / CODES / f"{name}.py"
    try:
        code = file.read_text(encoding="utf-8")  # with the line ends that the package reads
    except (OSError, UnicodeDecodeError) as error:
        raise _FolderError(f"{file}: cannot be read: {error}; the code of each network belongs there") from error
    stored = _stored_code(database, "nn", name)
    if stored is not None and stored != code:
        raise _FolderError(f"{file}: the database holds other code under the name {name}")
    if stored is None:
        _add_code(database, "nn", name, code)


def _add_trial(
    database: sqlite3.Connection, configuration: tuple[str, str, str, str, int], trial: Trial, file: Path
) -> bool:
    """Whether the trial was new; its id and its rows are those that the package would make."""
    transform, uid, metric = trial["transform"], trial["uid"], configuration[2]
    if _stored_code(database, "metric", metric) is None:
        if metric != METRIC:
            raise _FolderError(f"{file}: the database holds no metric {metric}; let LEMUR make the database first")
        _add_code(database, "metric", metric, _ACCURACY)
    if _stored_code(database, "transform", transform) is None:
        try:
            module = transform_module(transform_named(transform))
        except UserError as error:
            raise _FolderError(f"{file}: the database holds no transform {transform}, and {error}") from error
        _add_code(database, "transform", transform, module)
    values = [transform, uid, *configuration, trial.get("duration"), trial["accuracy"]]
    key = lemur_digest(values)
    if database.execute("SELECT 1 FROM stat WHERE id = ?", (key,)).fetchone():
        return False
    for name, value in trial.items():
        if name not in ("uid", "duration", "accuracy") and value is not None:
            row = (uid, name, value)
            if not database.execute("SELECT 1 FROM prm WHERE uid = ? AND name = ? AND value = ?", row).fetchone():
                database.execute("INSERT INTO prm (uid, name, value) VALUES (?, ?, ?)", row)
    columns = "id, transform, prm, task, dataset, metric, nn, epoch, duration, accuracy"
    database.execute(f"INSERT INTO stat ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (key, *values))
    return True


def _stored_code(database: sqlite3.Connection, table: str, name: str) -> str | None:
    row = database.execute(f"SELECT code FROM {table} WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _add_code(database: sqlite3.Connection, table: str, name: str, code: str) -> None:
    database.execute(f"INSERT INTO {table} (name, code, id) VALUES (?, ?, ?)", (name, code, lemur_digest(code)))
