"""Export finished training runs to LEMUR: as files of a checkout or as rows of its database, with the same trials.

    ab/nn/nn/NN.py
    ab/nn/stat/train/img-classification_cifar-10_acc_NN/EPOCH.json

Each epoch with an accuracy is a trial; its file has a list with one entry. A trial has `accuracy`, `duration`
(nanoseconds since the start of training), `uid`, and hyperparameters: those of the run, `batch` and `transform`. Four
more have no equivalent in LEMUR: `accuracy_on` (LEMUR always measures on the test images, which are read here only
after the last epoch), `data`, `seed` and `recipe`, the digest of the training recipe; with the network's own `learn`,
LEMUR's trainer would get other figures. Our durations exclude evaluation, LEMUR's include it.

A database has tables of code (`nn`, `metric`, `transform`: name, code, id), hyperparameters (`prm`: uid, name, value)
and trials (`stat`). The id of code is its digest; that of a trial is the digest of its whole content, so existing
entries are recognized. The package declares foreign keys but cannot enforce them (`prm` is referenced by a column that
is not unique), so this module ensures that every name in a trial exists in its table. If a database has no code for the
metric or a transform, an equivalent one of ours is added.

Source: `train_n_eval` in `ab/nn/util/Train.py`, `ab/nn/util/db/Calc.py`, `Init.py` and `Write.py` of
https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible
from lemur_core.sandbox.server.received import INTEGERS
from manifests.folders.kinds import Verifier
from manifests.folders.manifest import FILE_NAME
from manifests.folders.tables import CHECK_ERRORS, read_text
from manifests.records import TrainingRecord, drop_outcomes
from train.model.contract import check_contract, lemur_digest, lemur_name, transform_module
from train.runs.job import NET, EpochFigures, read_history, read_record

#: Folder below that of a run: files to copy into a LEMUR checkout unchanged.
LEMUR = "lemur"
_CODES = Path("ab", "nn", "nn")
_TRIALS = Path("ab", "nn", "stat", "train")
TASK, DATASET, METRIC = "img-classification", "cifar-10", "acc"

#: Fields that are not part of a trial's uid.
_OUTCOMES = frozenset({"uid", "duration", "accuracy", "epoch"})

#: Data whose accuracies may be stored under LEMUR's name of CIFAR-10.
REAL_IMAGES = frozenset({"cifar-10", "cifar-10 (JPEG copy, harder)"})

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


Trial = Json


def check_storable(prm: Mapping[str, object]) -> None:
    """Raise UserError unless LEMUR can store these hyperparameters; the message names the first that it cannot."""
    for name, value in prm.items():
        is_number = math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and value in INTEGERS
        if not is_number and not isinstance(value, str):
            raise UserError(f"prm: {name} is {value!r}; LEMUR stores only numbers and strings")


def read_training_values(recipe: Json) -> Trial:
    """Return the values that a recipe trains with, under LEMUR's names; they override a network's hyperparameters."""
    training, augmentation = recipe["training"], recipe["augmentation"]
    used = {
        "batch": training["batch_size"],
        "lr": training["learning_rate"],
        "transform": "norm_flip" if augmentation["flip"] else "norm",
    }
    return used if training["optimizer"] == "adamw" else used | {"momentum": training["momentum"]}


def why_refused(record: TrainingRecord, code: str, history: Sequence[EpochFigures]) -> str:
    """Return the reason why LEMUR does not accept a run; empty for a complete run on real CIFAR-10."""
    if record.status != "ok":
        why = f": {record.error}" if record.error else ""
        return f"the run ended with status {record.status}{why}; only complete runs can be registered"
    if record.data not in REAL_IMAGES:
        return f"trained on {record.data}; only runs on real CIFAR-10 can be registered"
    if hashlib.sha256(code.encode()).hexdigest() != record.code_sha256:
        return "the code is not that of this run (its SHA-256 differs from the record's)"
    if fault := check_contract(code):
        return f"does not meet LEMUR's contract: {fault}"
    if len(history) != record.epochs:
        return f"the history has {len(history)} epochs, the record {record.epochs}"
    if not build_trials(record, history):
        return "the run has no accuracy, on held-out or test images"
    try:
        check_storable(json.loads(record.prm))
    except UserError as error:
        return str(error)
    return ""


def build_trials(record: TrainingRecord, history: Sequence[EpochFigures]) -> dict[int, Trial]:
    """Return the trial of each epoch that has an accuracy."""
    prm: Trial = json.loads(record.prm) | read_training_values(json.loads(record.recipe))
    prm |= {"data": record.data, "seed": record.seed, "recipe": record.recipe_sha256}
    prm = {name: value for name, value in drop_outcomes(prm).items() if name not in _OUTCOMES}
    trials: dict[int, Trial] = {}
    elapsed = 0.0
    for figures in history:
        elapsed += figures.seconds
        accuracy, measured = figures.val_accuracy, "held-out training images"
        if figures.epoch == record.epochs and record.test_accuracy is not None:
            accuracy, measured = record.test_accuracy, "test images"
        if accuracy is not None:
            # Sorted, as LEMUR prints them: the digest of the printed text is the id.
            used = dict(sorted((prm | {"accuracy_on": measured}).items()))
            outcome = {"uid": lemur_digest(used), "accuracy": accuracy, "duration": round(elapsed * 1e9)}
            trials[figures.epoch] = dict(sorted((used | outcome).items()))
    return trials


def write_lemur_files(
    folder: Path, record: TrainingRecord, code: str, history: Sequence[EpochFigures]
) -> tuple[Path, ...]:
    """Write the LEMUR files of an acceptable run (see `why_refused`) below a folder. Returns: the code's file first."""
    name = lemur_name(code, record.name)
    stats = folder / _TRIALS / "_".join((TASK, DATASET, METRIC, name))
    texts = {folder / _CODES / f"{name}.py": code}
    for epoch, trial in build_trials(record, history).items():
        texts[stats / f"{epoch}.json"] = json.dumps([trial], indent=4)
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    return tuple(texts)


@dataclass(frozen=True, slots=True)
class RegistrationCounts:
    """Counts of added and of existing trials, and one line for each run that failed, with the reason."""

    added: int
    present: int
    failed: tuple[str, ...]


def register(db: Path, runs: Sequence[Path], verify: Verifier) -> RegistrationCounts:
    """Add the trials of runs, in folders written by `lemur train run`, to a LEMUR database; a new file is initialized.

    Each run is added completely or not at all. Adding a run twice has no effect.

    Raises: UserError if the database cannot be opened or written, or is not one of LEMUR's.
    """
    added = present = 0
    outcomes = [_read_run(run, verify) for run in runs]
    failed = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if failed and len(failed) == len(runs):
        return RegistrationCounts(0, 0, tuple(failed))
    with _open(db) as database:
        for outcome in outcomes:
            if isinstance(outcome, str):
                continue
            with _transaction(database, db):
                if _add_code(database, "nn", outcome.name, outcome.code) != outcome.code:
                    other = f"the database has other code under the name {outcome.name}"
                    failed.append(f"{outcome.folder / NET}: {other}")
                    continue
                new = [_add_trial(database, outcome.name, epoch, trial) for epoch, trial in outcome.trials.items()]
            added, present = added + sum(new), present + len(new) - sum(new)
    return RegistrationCounts(added, present, tuple(failed))


@dataclass(frozen=True, slots=True)
class _FinishedRun:
    folder: Path
    name: str
    code: str
    trials: dict[int, Trial]


def _read_run(folder: Path, verify: Verifier) -> _FinishedRun | str:
    """Read a run for LEMUR, or return the reason why it is refused; a run with changed files is refused."""
    if (folder / FILE_NAME).is_file():
        wrong = next((check for check in verify(folder) if not check.ok), None)
        if wrong is not None:
            return f"{folder}: {wrong.name}: {wrong.detail}; it was changed after training: train it again"
    try:
        record, code = read_record(folder), read_text(folder / NET)
        history = read_history(folder)
        if reason := why_refused(record, code, history):
            return f"{folder}: {reason}"
        return _FinishedRun(folder, lemur_name(code, record.name), code, build_trials(record, history))
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
        known = {row[1]: (row[3], row[4]) for row in database.execute(f"PRAGMA table_info({table})")}
        missing = [f"table {table} has no column {column}" for column in columns if column not in known]
        if missing:
            lacks = missing[0] if known else f"has no table {table}"
            raise UserError(f"{db}: {lacks}; this is not the schema of nn-dataset 2.1.0")
        for name, (required, default) in known.items():
            if required and default is None and name not in columns:
                raise UserError(f"{db}: table {table} requires a column {name}, which nn-dataset 2.1.0 does not have")
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


def _add_trial(database: sqlite3.Connection, network: str, epoch: int, trial: Trial) -> bool:
    """Add a trial, with the id and rows that the package would write; return whether it was new."""
    transform, uid = trial["transform"], trial["uid"]
    _add_code(database, "metric", METRIC, _ACCURACY)
    _add_code(database, "transform", transform, transform_module(transform))
    values = [transform, uid, TASK, DATASET, METRIC, network, epoch, trial["duration"], trial["accuracy"]]
    if database.execute("SELECT 1 FROM stat WHERE id = ?", (lemur_digest(values),)).fetchone():
        return False
    for name, value in trial.items():
        if name not in _OUTCOMES:
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
