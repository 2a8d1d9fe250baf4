"""Register finished training runs in LEMUR's database, with the trials that `train.runs.run_folder` describes.

It has tables of code (`nn`, `metric`, `transform`: name, code, id), hyperparameters (`prm`: uid, name, value) and
trials (`stat`). The id of code is its digest; that of a trial is the digest of its whole content, so existing
entries are recognized. The package declares foreign keys but cannot enforce them (`prm` is referenced by a column that
is not unique), so this module ensures that every name in a trial exists in its table. If a database has no code for the
metric or a transform, an equivalent one of ours is added.

Source: `ab/nn/util/db/Calc.py`, `Init.py` and `Write.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from manifests.folders.manifest import FILE_NAME
from manifests.folders.tables import CHECK_ERRORS, read_text
from train.model.contract import lemur_digest, lemur_name, transform_module
from train.runs.job import NET, read_history, read_record
from train.runs.run_folder import DATASET, METRIC, OUTCOMES, TASK, build_trials, verify, why_refused

_CODE_TABLES = ("nn", "transform", "metric")
_REFERENCES = (*_CODE_TABLES, "prm")
_INDEXED = ("task", "dataset", "nn", "transform", "metric", "prm")
_COLUMNS = {
    **dict.fromkeys(_CODE_TABLES, ("name", "code", "id")),
    "prm": ("uid", "name", "value"),
    "stat": ("id", "accuracy", "epoch", "duration", *_INDEXED),
}
#: The id of a trial is the digest of the other values, in this order.
_STAT = "id, transform, prm, task, dataset, metric, nn, epoch, duration, accuracy"
_WAIT_SECONDS = 30.0

#: All of these networks must have the id of their code: a thousand digests take 0.3 s.
_NETWORKS_CHECKED = 1_000
#: Any of these trials must have the id of its values: SQLite may return a number in another form than printed.
_TRIALS_CHECKED = 100
_OTHER_IDS = "it is of a release that makes ids otherwise; register in a new file"

#: The module of the metric, for a database that lacks it.
_ACCURACY = Path(__file__).with_name("accuracy.py.txt").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class RegistrationCounts:
    """Counts of added and of existing trials, and one line for each run that failed, with the reason."""

    added: int
    present: int
    failed: tuple[str, ...]


def register(runs: PathLike | Sequence[PathLike], *, db: PathLike) -> RegistrationCounts:
    """Add the trials of runs to a LEMUR database (nn-dataset 2.1.0). Adding them again changes nothing.

    Each run is added completely or not at all.

    Args:
        runs: runs, or their folders.
        db: an SQLite database; it is created if it does not exist.

    Returns:
        How many trials were added, how many were in it already, and one line for each run that was refused.

    Raises:
        UserError: if the database cannot be opened or written, or is not one of LEMUR's.

    Example:
        ```python
        from train import register

        result = register(run, db="lemur.db")
        print(result.added, result.failed)
        ```
    """
    path, added, present = Path(db), 0, 0
    outcomes = [_read_run(Path(run)) for run in ([runs] if isinstance(runs, str | os.PathLike) else runs)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if failed and len(failed) == len(outcomes):
        return RegistrationCounts(0, 0, tuple(failed))
    with _open(path) as database:
        for outcome in outcomes:
            if isinstance(outcome, str):
                continue
            folder, name, code, trials = outcome
            with _transaction(database, path):
                if _add_code(database, "nn", name, code) != code:
                    failed.append(f"{folder / NET}: the database has other code under the name {name}")
                    continue
                new = [_add_trial(database, name, epoch, trial) for epoch, trial in trials.items()]
            added, present = added + sum(new), present + len(new) - sum(new)
    return RegistrationCounts(added, present, tuple(failed))


def _read_run(folder: Path) -> tuple[Path, str, str, dict[int, Json]] | str:
    """Return folder, name, code and trials of a run, or the reason why it is refused: changed files are one."""
    if (folder / FILE_NAME).is_file():
        wrong = next((check for check in verify(folder) if not check.ok), None)
        if wrong is not None:
            return f"{folder}: {wrong.name}: {wrong.detail}; it was changed after training: train it again"
    try:
        record, code, history = read_record(folder), read_text(folder / NET), read_history(folder)
        if reason := why_refused(record, code, history):
            return f"{folder}: {reason}"
        return folder, lemur_name(code, record.name), code, build_trials(record, history)
    except CHECK_ERRORS:
        return f"{folder}: is not the folder of a complete training run; pass one written by `lemur train run`"


@contextmanager
def _open(db: Path) -> Iterator[sqlite3.Connection]:
    """Open a database, whose schema is created or checked first."""
    with closing(_connect(db)) as database:
        with _transaction(database, db):
            _prepare(database, db)
        yield database


def _connect(db: Path) -> sqlite3.Connection:
    if db.is_dir() or not db.parent.is_dir():
        what = "is a folder" if db.is_dir() else f"there is no folder {db.parent}"
        raise UserError(f"{db}: {what}; pass the file of a LEMUR database, for example db/ab.nn.db")
    try:
        return sqlite3.connect(db, timeout=_WAIT_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise UserError(f"{db}: cannot be opened: {error}; pass the file of a LEMUR database") from error


@contextmanager
def _transaction(database: sqlite3.Connection, db: Path) -> Iterator[None]:
    """Run the block as one transaction."""
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise UserError(f"{db}: {error}; pass a LEMUR database that is writable and not in use") from error
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")


def _prepare(database: sqlite3.Connection, db: Path) -> None:
    """Create the tables of an empty database; check those of any other."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone():
        _create(database)
        return
    for table, columns in _COLUMNS.items():
        known = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        if missing := [name for name in columns if name not in known]:
            lacks = f"table {table} has no column {missing[0]}" if known else f"has no table {table}"
            raise UserError(f"{db}: {lacks}; this is not the schema of nn-dataset 2.1.0")
    _check_ids(database, db)


def _check_ids(database: sqlite3.Connection, db: Path) -> None:
    """Raise UserError unless the ids of networks and of a trial are those that would be given to them here.

    With other ids, a network or trial that the database has would be added again under a second id.
    """
    for name, code, key in database.execute("SELECT name, code, id FROM nn LIMIT ?", (_NETWORKS_CHECKED,)):
        if key != lemur_digest(code):
            shown, own = make_visible(str(name), 80), make_visible(str(key), 40)
            raise UserError(f"{db}: the id of network {shown} is {own}, not the digest of its code; {_OTHER_IDS}")
    trials = database.execute(f"SELECT {_STAT} FROM stat LIMIT ?", (_TRIALS_CHECKED,)).fetchall()
    if trials and not any(key == lemur_digest(values) for key, *values in trials):
        shown = make_visible(str(trials[0][0]), 40)
        raise UserError(f"{db}: the id of trial {shown} is not the digest of its values; {_OTHER_IDS}")


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


def _add_trial(database: sqlite3.Connection, network: str, epoch: int, trial: Json) -> bool:
    """Add a trial, with the id and rows that the package would write; return whether it was new."""
    transform, uid = trial["transform"], trial["uid"]
    _add_code(database, "metric", METRIC, _ACCURACY)
    _add_code(database, "transform", transform, transform_module(transform))
    values = [transform, uid, TASK, DATASET, METRIC, network, epoch, trial["duration"], trial["accuracy"]]
    if database.execute("SELECT 1 FROM stat WHERE id = ?", (lemur_digest(values),)).fetchone():
        return False
    for name, value in trial.items():
        if name not in OUTCOMES:
            row = (uid, name, value)
            if not database.execute("SELECT 1 FROM prm WHERE uid = ? AND name = ? AND value = ?", row).fetchone():
                database.execute("INSERT INTO prm (uid, name, value) VALUES (?, ?, ?)", row)
    row = (lemur_digest(values), *values)
    database.execute(f"INSERT INTO stat ({_STAT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    return True


def _add_code(database: sqlite3.Connection, table: str, name: str, code: str) -> str:
    """Add code unless there is some of this name; return the code that the database has then."""
    row = database.execute(f"SELECT code FROM {table} WHERE name = ?", (name,)).fetchone()
    if row is None:
        database.execute(f"INSERT INTO {table} (name, code, id) VALUES (?, ?, ?)", (name, code, lemur_digest(code)))
    return code if row is None else str(row[0])
