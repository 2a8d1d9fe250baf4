"""Register finished training runs in LEMUR's database, with the trials that `train.runs.run_folder` describes.

It has tables of code (`nn`, `metric`, `transform`: name, code, id), hyperparameters (`prm`: uid, name, value) and
trials (`stat`). The id of code is its digest, in LEMUR's head that of a network its certificate; the id of a trial is
the digest of its whole content, so existing entries are recognized. The package declares foreign keys but cannot
enforce them (`prm` is referenced by a column that is not unique), so this module ensures that every name in a trial
exists in its table. If a database has no code for the metric or a transform, an equivalent one of ours is added.

Source: `ab/nn/util/db/Calc.py`, `Init.py` and `Write.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0; for
certificates, commit 3320fd8
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files import Json
from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import read_python_file
from lemur_core.files.markdown import make_visible
from lemur_core.files.progress import note
from manifests.folders.manifest import FILE_NAME
from manifests.folders.tables import CHECK_ERRORS, read_text
from train.model.certificates import ARCH_UID, compute_certificates
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

#: All of these networks must have the id of their code: a thousand digests take 0.3 s, a hundred certificates 6 s.
_NETWORKS_CHECKED, _CERTIFICATES_CHECKED = 1_000, 100
#: Any of these trials must have the id of its values: SQLite may return a number in another form than printed.
_TRIALS_CHECKED = 100

#: The module of the metric, for a database that lacks it.
_ACCURACY = Path(__file__).with_name("accuracy.py.txt").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class RegistrationCounts:
    """Counts of added and of existing trials, one line for each run that failed, with the reason, and one for each run
    whose trials are those of a network of the same certificate.
    """

    added: int
    present: int
    failed: tuple[str, ...]
    attached: tuple[str, ...] = ()


def register(
    runs: PathLike | Sequence[PathLike], *, db: PathLike, checkout: PathLike | None = None, unsafe: bool = False
) -> RegistrationCounts:
    """Add the trials of runs to a LEMUR database (nn-dataset 2.1.0). Adding them again changes nothing.

    Each run is added completely or not at all.

    Args:
        runs: runs, or their folders.
        db: an SQLite database; it is created if it does not exist.
        checkout: of LEMUR's head, whose `ab/nn/util/ArchUID.py` computes the certificates by which networks are named,
            in the sandbox. As there, a run of a network whose certificate the database has is added to that network,
            whose name and code stay. By default, a name ends in the digest of the code, as up to 2.2.11.
        unsafe: run that file without the sandbox.

    Returns:
        How many trials were added, how many were in it already, one line for each run that was refused, and one for
        each that was added to a network of the same certificate.

    Raises:
        UserError: if the database cannot be opened or written, is not one of LEMUR's, or has other ids; or if the
            checkout has no such file.

    Example:
        ```python
        from train import register

        result = register(run, db="lemur.db")
        print(result.added, result.failed)
        ```
    """
    path, added, present, attached = Path(db), 0, 0, list[str]()
    arch_uid = None
    if checkout is not None:
        arch_uid = read_python_file(Path(checkout) / ARCH_UID, "pass a checkout of LEMUR's head")
    outcomes = [_read_run(Path(run)) for run in ([runs] if isinstance(runs, str | os.PathLike) else runs)]
    failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
    complete = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    if failed and not complete:
        return RegistrationCounts(0, 0, tuple(failed))
    with closing(_connect(path)) as database:
        with _transaction(database, path):
            stored = _prepare(database, path)[: _CERTIFICATES_CHECKED if arch_uid is not None else None]
        codes = [code for _, _, code, _ in complete] + [code for _, code, _ in stored]
        ids: dict[str, str | None] = {code: lemur_digest(code) for code in codes}
        if arch_uid is not None:
            ids = compute_certificates(arch_uid, codes, unsafe=unsafe)
        _check_ids(stored, ids, path, certified=arch_uid is not None)
        for folder, prefix, code, trials in complete:
            if (key := ids[code]) is None:
                failed.append(f"{folder / NET}: {ARCH_UID} of the checkout fails on it, so it has no certificate")
                continue
            name = lemur_name(code, prefix, key)
            with _transaction(database, path):
                query = "SELECT name, code FROM nn WHERE id = ? ORDER BY name <> ?, rowid"
                twin = database.execute(query, (key, name)).fetchone()
                if arch_uid is not None and twin not in (None, (name, code)):
                    name, code = twin  # that of this name, if it has the certificate, else the first
                    shown = make_visible(str(name), 80)
                    attached.append(f"{folder}: has the certificate of {shown}: its trials are added to {shown}")
                    note(attached[-1])
                if _add_code(database, "nn", name, code, key) != code:
                    failed.append(f"{folder / NET}: the database has other code under the name {name}")
                    continue
                new = [_add_trial(database, name, epoch, trial) for epoch, trial in trials.items()]
            added, present = added + sum(new), present + len(new) - sum(new)
    return RegistrationCounts(added, present, tuple(failed), tuple(attached))


def _read_run(folder: Path) -> tuple[Path, str, str, dict[int, Json]] | str:
    """Return folder, prefix, code and trials of a run, or the reason why it is refused: changed files are one."""
    if (folder / FILE_NAME).is_file() and (folder / NET).is_file():
        wrong = next((check for check in verify(folder) if not check.ok), None)
        if wrong is not None:
            return f"{folder}: {wrong.name}: {wrong.detail}; it was changed after training: train it again"
    try:
        record, code, history = read_record(folder), read_text(folder / NET), read_history(folder)
        if reason := why_refused(record, code, history):
            return f"{folder}: {reason}"
        return folder, record.name, code, build_trials(record, history)
    except CHECK_ERRORS:
        return f"{folder}: is not the folder of a complete training run; pass one written by `lemur train run`"


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


def _prepare(database: sqlite3.Connection, db: Path) -> list[tuple[str, str, str]]:
    """Create the tables of an empty database; check those of any other, and return its first networks.

    Raises: UserError for another schema, or if the ids of trials are not those that would be given to them here.
    """
    if not database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone():
        _create(database)
        return []
    for table, columns in _COLUMNS.items():
        known = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        if missing := [name for name in columns if name not in known]:
            lacks = f"table {table} has no column {missing[0]}" if known else f"has no table {table}"
            raise UserError(f"{db}: {lacks}; this is not the schema of nn-dataset 2.1.0")
    trials = database.execute(f"SELECT {_STAT} FROM stat LIMIT ?", (_TRIALS_CHECKED,)).fetchall()
    if trials and not any(key == lemur_digest(values) for key, *values in trials):
        shown = make_visible(str(trials[0][0]), 40)
        reason = "it is of a release that makes ids otherwise; register in a new file"
        raise UserError(f"{db}: the id of trial {shown} is not the digest of its values; {reason}")
    networks = database.execute("SELECT name, code, id FROM nn LIMIT ?", (_NETWORKS_CHECKED,))
    return [(str(name), str(code), str(key)) for name, code, key in networks]


def _check_ids(stored: list[tuple[str, str, str]], ids: Mapping[str, str | None], db: Path, *, certified: bool) -> None:
    """Raise UserError unless the ids of networks are those that would be given to them here.

    With other ids, a network that the database has would be added again under a second id. Beside certificates there
    may be digests, of code that allows none.
    """
    wrong = [row for row in stored if row[2] not in (ids[row[1]], lemur_digest(row[1]))]
    if certified and not any(key == ids[code] for _, code, key in stored):
        wrong = wrong or stored
    if wrong:
        name, key = make_visible(wrong[0][0], 80), make_visible(wrong[0][2], 40)
        what = "its certificate" if certified else "the digest of its code"
        advice = "pass the checkout of LEMUR that made it (--checkout; none for digests), or register in a new file"
        raise UserError(f"{db}: the id of network {name} is {key}, not {what}; {advice}")


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


def _add_code(database: sqlite3.Connection, table: str, name: str, code: str, key: str = "") -> str:
    """Add code unless there is some of this name; return the code that the database has then.

    Args: key: its id, if it is not the digest.
    """
    row = database.execute(f"SELECT code FROM {table} WHERE name = ?", (name,)).fetchone()
    if row is None:
        values = (name, code, key or lemur_digest(code))
        database.execute(f"INSERT INTO {table} (name, code, id) VALUES (?, ?, ?)", values)
    return code if row is None else str(row[0])
