"""A training run's record, code and history, made up; nothing of it was trained."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from manifests.folders.manifest import Stopwatch
from manifests.records import TrainingRecord
from train.data import Cifar10
from train.model.recipe import Recipe
from train.runs import run_folder
from train.runs.job import EpochFigures
from train.runs.run_folder import record_text

TINY = (Path(__file__).parents[1] / "fixtures" / "train" / "tiny_net.py").read_text(encoding="utf-8")
PRM = {"lr": 0.05, "momentum": 0.9, "dropout": 0.1}


class Attack:
    """A pickle that makes a folder if it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


RECIPE = Recipe().changed(training__epochs=3, training__batch_size=64, training__learning_rate=0.05)


def made_up_record(code: str = TINY, **changes: Any) -> TrainingRecord:
    recipe = changes.pop("made_by", RECIPE)
    values: dict[str, Any] = {
        "name": "tiny", "code_sha256": hashlib.sha256(code.encode()).hexdigest(), "ingredients": (), "seed": 7,
        "recipe": recipe.to_json(), "recipe_sha256": recipe.sha256, "prm": json.dumps(PRM), "parameters": 24_000,
        "data": "cifar-10 (JPEG copy, harder)", "data_sha256": "1" * 64, "train_images": 45_000,
        "epochs": 3, "steps": 2112, "images_seen": 135_000, "flop": 19_440_000_000_000,
        "status": "ok", "error": None, "train_loss": 1.5, "val_accuracy": 0.5625, "test_accuracy": 0.5512,
        "train_seconds": 30.0, "data_seconds": 1.0, "peak_bytes": 2**30, "device": "cpu", "precision": "float32",
        "torch": "2.15.0", "torchvision": "0.29.0",
    }  # fmt: skip
    return TrainingRecord(**(values | changes))


def history(*accuracies: float | None) -> list[EpochFigures]:
    steps = {"steps": 704, "train_loss": 2.0, "train_accuracy": None, "learning_rate": 0.1, "val_loss": None}
    rows = enumerate(accuracies or (0.25, 0.5, 0.5625), 1)
    return [EpochFigures(epoch=n, val_accuracy=value, seconds=10.25, data_seconds=0.1, **steps) for n, value in rows]  # type: ignore[arg-type]


def write_finished(
    folder: Path, data: Cifar10, library: Path | None = None, *, code: str = TINY, page: bool = True, **changes: Any
) -> TrainingRecord:
    """Write a whole run, of figures that go together."""
    folder.mkdir(parents=True, exist_ok=True)
    record = made_up_record(code, **{"train_loss": 2.0, "steps": 704, "data": data.label, **changes})
    identity = {"seed": record.seed, "train_images": record.train_images, "held_out": 5000, "device": "cpu"}
    run_folder.write_run(folder, code, record, identity, history(), data, library, Stopwatch(), page=page)
    return record


def write_run(folder: Path, code: str = TINY, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "net.py").write_text(code)
    (folder / "record.json").write_text(record_text(made_up_record(code, **changes)))
    (folder / "history.jsonl").write_text("".join(f"{epoch.model_dump_json()}\n" for epoch in history()))
    return folder
