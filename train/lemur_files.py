"""A finished training run as files of a LEMUR checkout: the network's code and, for each epoch, its trial.

    ab/nn/nn/NN.py
    ab/nn/stat/train/img-classification_cifar-10_acc_NN/EPOCH.json

A file of trials is a list, the best first; a trial has `accuracy`, `duration` (nanoseconds since the training began),
`uid`, and hyperparameters: those of the run with `batch` and `transform`. Four more say what LEMUR has no place for:
`accuracy_on` (its own figures are all of the test images, which are read here after the last epoch only), `data`,
`seed` and `recipe`, the digest of the recipe by which the network was trained; with the network's own `learn`, LEMUR's
trainer comes to other figures. Our durations leave out evaluation, LEMUR's do not.

Source: `train_n_eval` in `ab/nn/util/Train.py` and `ab/nn/util/db/Calc.py` of nn-dataset 2.1.0
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import atomic_file
from lemur_core.files.errors import UserError
from manifests.records import TrainingRecord
from train.contract import check_contract, lemur_digest, lemur_name

#: Below the folder of a run: what a LEMUR checkout takes as it is.
LEMUR = "lemur"
CODES = Path("ab", "nn", "nn")
TRIALS = Path("ab", "nn", "stat", "train")
TASK, DATASET, METRIC = "img-classification", "cifar-10", "acc"

#: What a trial's uid is not made of.
OUTCOMES = frozenset({"uid", "duration", "accuracy", "epoch"})

#: Images whose accuracies may stand under LEMUR's name of CIFAR-10.
_IMAGES = frozenset({"cifar-10", "cifar-10 (JPEG copy, harder)"})

Trial = dict[str, Any]


def why_refused(record: TrainingRecord) -> str:
    """Why LEMUR takes no such run; empty for one that came to its end, on real CIFAR-10."""
    if record.status != "ok":
        why = f": {record.error}" if record.error else ""
        return f"the run ended with status {record.status}{why}; only whole runs go to LEMUR"
    return "" if can_enter_from(record.data) else f"trained on {record.data}; only runs on real CIFAR-10 go to LEMUR"


def can_enter_from(data: str) -> bool:
    """Whether runs on such data may: those of real CIFAR-10."""
    return data in _IMAGES


def write_lemur_files(
    folder: Path, record: TrainingRecord, code: str, history: Iterable[Mapping[str, Any]]
) -> tuple[Path, ...]:
    """Write a run's files below a folder, a LEMUR checkout or any other; trials that are there already stay.

    Args:
        history: for each epoch `epoch`, `seconds` and `val_accuracy`.

    Returns: the files, the network's code first. An epoch without an accuracy has none.
    Raises: UserError if the run failed, its data are not CIFAR-10 or it has no accuracy, if code, history and record do
        not belong together, or the folder holds something else by these names.
    """
    _check_run(record, code)
    name = lemur_name(code, record.name)
    trials = _trials(record, history)
    if not trials:
        raise UserError(
            f"{record.name}: the run has no accuracy, on held-out or test images; there is nothing to write"
        )
    code_file = folder / CODES / f"{name}.py"
    stats = folder / TRIALS / "_".join((TASK, DATASET, METRIC, name))
    _write_code(code_file, code)
    files = [code_file]
    for epoch, trial in trials.items():
        files.append(stats / f"{epoch}.json")
        _add_trial(files[-1], trial)
    return tuple(files)


def _check_run(record: TrainingRecord, code: str) -> None:
    if reason := why_refused(record):
        raise UserError(f"{record.name}: {reason}")
    if hashlib.sha256(code.encode()).hexdigest() != record.code_sha256:
        raise UserError(f"{record.name}: the code is not the one of this run (its SHA-256 differs from the record's)")
    if fault := check_contract(code):
        raise UserError(f"{record.name}: does not meet LEMUR's contract: {fault}")


def _trials(record: TrainingRecord, history: Iterable[Mapping[str, Any]]) -> dict[int, Trial]:
    """The trial of each epoch that has an accuracy."""
    prm = _parameters(record)
    trials: dict[int, Trial] = {}
    elapsed, count = 0.0, 0
    for count, row in enumerate(history, 1):
        epoch, seconds, accuracy = (row.get(key) for key in ("epoch", "seconds", "val_accuracy"))
        if epoch != count or not isinstance(seconds, int | float):
            told = f"epoch {epoch!r}, seconds {seconds!r}"
            raise UserError(f"{record.name}: row {count} of the history has {told}; expected epoch {count} and seconds")
        elapsed += seconds
        measured = "held-out training images"
        if epoch == record.epochs and record.test_accuracy is not None:
            accuracy, measured = record.test_accuracy, "test images"
        if accuracy is not None:
            trials[count] = _trial(prm | {"accuracy_on": measured}, float(accuracy), round(elapsed * 1e9))
    if count != record.epochs:
        raise UserError(
            f"{record.name}: the history has {count} epochs, the record {record.epochs}; give the run's own"
        )
    return trials


def _parameters(record: TrainingRecord) -> Trial:
    """The hyperparameters of all trials of a run: `prm`, but what trained it is the recipe's."""
    prm: Trial = json.loads(record.prm) | trained_with(json.loads(record.recipe))
    check_storable(prm)
    prm |= {"data": record.data, "seed": record.seed, "recipe": record.recipe_sha256}
    return {name: value for name, value in prm.items() if name not in OUTCOMES}


def trained_with(recipe: Mapping[str, Any]) -> Trial:
    """What a recipe trains with, whatever a network's own hyperparameters say, under LEMUR's names."""
    training, augmentation = recipe["training"], recipe["augmentation"]
    used = {
        "batch": training["batch_size"],
        "lr": training["learning_rate"],
        "transform": "norm_flip" if augmentation["flip"] else "norm",
    }
    return used if training["optimizer"] == "adamw" else used | {"momentum": training["momentum"]}


def check_storable(prm: Mapping[str, object]) -> None:
    """Nothing, if LEMUR can store these hyperparameters.

    Raises: UserError naming the first that it cannot.
    """
    for name, value in prm.items():
        if value is None or not _storable(value):
            raise UserError(f"prm: {name} is {value!r}; LEMUR stores numbers and texts only")


def _trial(prm: Trial, accuracy: float, duration: int) -> Trial:
    ordered = dict(sorted(prm.items()))
    outcome = {"uid": lemur_digest(ordered), "accuracy": accuracy, "duration": duration}
    return dict(sorted((ordered | outcome).items()))


def _write_code(file: Path, code: str) -> None:
    data = code.encode()
    if file.is_file():
        if file.read_bytes() != data:
            raise UserError(
                f"{file}: holds other code; the names of networks do not tell white space apart, so move it"
            )
        return
    _write(file, data)


def _add_trial(file: Path, trial: Trial) -> None:
    """Put a trial among those of its epoch, the best first; one that is there already is not written again."""
    trials = read_trials(file) if file.is_file() else []
    if trial in trials:
        return
    trials = sorted([*trials, trial], key=lambda one: (-one["accuracy"], one["uid"], one.get("duration") or 0))
    _write(file, json.dumps(trials, indent=4).encode())


def read_trials(file: Path) -> list[Trial]:
    """The trials of a file.

    Raises: UserError if it cannot be read, or one of them lacks what LEMUR's own reader needs.
    """
    try:
        trials = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as JSON: {error}; a file of trials holds a list of them") from error
    if not isinstance(trials, list):
        raise UserError(f"{file}: holds {type(trials).__name__}, not a list of trials")
    for number, trial in enumerate(trials, 1):
        reason = _why_no_trial(trial)
        if reason:
            raise UserError(f"{file}: trial {number}: {reason}")
    return trials


def _why_no_trial(trial: object) -> str:
    if not isinstance(trial, dict):
        return f"is {type(trial).__name__}, not an object"
    for name, kind in (("accuracy", float), ("uid", str), ("transform", str)):
        if name not in trial:
            return f"has no {name}"
        if not isinstance(trial[name], kind | int if kind is float else kind):
            return f"{name} is {trial[name]!r}"
    if not isinstance(trial.get("duration"), int | float | None):
        return f"duration is {trial['duration']!r}"
    wrong = next((name for name, value in trial.items() if not _storable(value)), None)
    return "" if wrong is None else f"{wrong} is {trial[wrong]!r}, which is no text and no number that SQLite can hold"


def _storable(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _write(file: Path, data: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as part:
            part.write_bytes(data)
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}; choose another folder") from error
