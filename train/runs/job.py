"""The training job as seen from both sides: its payload, the files in its scratch folder, and how they are read.

The figures of the epochs are plain data in regular files. PyTorch is not imported: pages and `lemur verify` read what
is here, and take seconds less without it.
"""

import contextlib
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, TypeAdapter, ValidationError

from lemur_core.files import Json
from lemur_core.files.progress import note, progress
from manifests.folders.tables import read_bytes
from manifests.records import Ratio, Record, Seconds, TrainingRecord

HISTORY, PROGRESS, WEIGHTS, CHECKPOINT = "history.jsonl", "progress.json", "weights.pt", "checkpoint.pt"
RECORD, NET = "record.json", "net.py"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The payload of one training run. `key` identifies it in a checkpoint; `recipe` is the whole recipe as JSON."""

    code: str
    prm: Json
    recipe: str
    seed: int
    data: str
    held_out: int
    images: int
    device: str
    threads: int
    time_limit: float | None
    step_limit: float
    key: str


Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
_MAX_TEXT = 16 * 2**20
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The figures of a run as far as it came: while it runs, in the file `PROGRESS`; how it ended, as its answer.

    A figure that is None has no value, or was not reached.
    """

    status: Literal["running", "ok", "diverged", "out_of_memory", "timeout", "error"] = "running"
    error: str | None = None
    steps: Count = 0
    parameters: Count | None = None
    images_seen: Count | None = None
    flop: Count | None = None
    test_accuracy: Ratio | None = None
    train_seconds: Seconds = 0.0
    data_seconds: Seconds = 0.0
    images_per_second: Seconds = 0.0
    device: str | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    notes: tuple[str, ...] = ()  # lines for the user


class EpochFigures(Record):
    """One epoch of a training run."""

    epoch: int = Field(ge=1)
    steps: int = Field(ge=1, description="of the run, up to the end of this epoch")
    train_loss: Number = Field(description="mean over the steps, augmented images")
    train_accuracy: Ratio | None = Field(description="on the batches that were not mixed; null when all were")
    learning_rate: Number = Field(description="of the step that comes next")
    val_loss: Number | None = Field(description="null without held-out images, or when it is not finite")
    val_accuracy: Ratio | None
    seconds: Seconds = Field(description="of the steps, their data included")
    data_seconds: Seconds


def open_plain(folder: Path, name: str) -> BinaryIO | None:
    """Open a file that foreign code wrote, for reading; None if it does not exist or is not a regular file."""
    # Foreign code may have put a link, a pipe or a device there: none of them is read.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        parent = os.open(folder, flags | os.O_DIRECTORY)
        try:
            number = os.open(name, flags | os.O_NONBLOCK, dir_fd=parent)  # a pipe without a writer does not block
        finally:
            os.close(parent)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        return None
    return os.fdopen(number, "rb")


def read_plain(folder: Path, name: str) -> bytes:
    """Read such a file, at most 16 MiB of it; empty if there is none."""
    source = open_plain(folder, name)
    if source is None:
        return b""
    with source:
        return source.read(_MAX_TEXT)


def copy_plain(folder: Path, name: str, target: Path) -> None:
    """Copy such a file if there is one; the sandbox limits its size."""
    source = open_plain(folder, name)
    if source is not None:
        with source, target.open("wb") as file:
            shutil.copyfileobj(source, file)


def read_record(folder: Path) -> TrainingRecord:
    """Read the record in the folder of a run. Raises: OSError, or ValueError if it is not a record."""
    return TrainingRecord.model_validate_json(read_bytes(folder / RECORD))


def read_history(folder: Path) -> list[EpochFigures]:
    """Read the epochs so far, in order; stops at the first line that is invalid or out of order."""
    epochs: list[EpochFigures] = []
    for line in read_plain(folder, HISTORY).splitlines():
        try:
            epoch = EpochFigures.model_validate_json(line)
        except ValidationError:
            break
        if epoch.epoch != len(epochs) + 1:
            break
        epochs.append(epoch)
    return epochs


def read_progress(folder: Path) -> TrainingReport:
    """Read the progress of the run; all zero if it cannot be read."""
    try:
        return TypeAdapter(TrainingReport).validate_json(read_plain(folder, PROGRESS))
    except ValidationError:
        return TrainingReport()


@contextlib.contextmanager
def watching(folder: Path, name: str, epochs: int, steps: int, batch: int) -> Iterator[None]:
    """Report the progress of the run in that folder on stderr during the `with` block: lines per epoch, or a bar.

    Args: epochs, steps: of the whole run. batch: images per step.
    """
    reported, done = read_history(folder), 0
    over = threading.Event()

    def look() -> None:
        nonlocal reported, done
        now, history = read_progress(folder), read_history(folder)
        before = done
        done = max(now.steps, history[-1].steps if history else 0)
        advance(done - before)
        for epoch in (epoch for epoch in history if epoch not in reported):
            line = f"{name}: epoch {epoch.epoch}/{epochs}, {_format_epoch(epoch, history, batch)}"
            if epoch is history[-1] and now.images_per_second > 0 and done < steps:
                line += f", {_duration((steps - done) * batch / now.images_per_second)} left"
            note(line)
        reported = history

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            look()
        look()

    bar = progress(name, steps, "steps") if sys.stderr.isatty() else contextlib.nullcontext(lambda _count: None)
    with bar as advance:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _format_epoch(epoch: EpochFigures, history: Sequence[EpochFigures], batch: int) -> str:
    """Format the figures of an epoch: `loss 1.234, train 55.1 %, val 61.2 %, 210 images/s`."""
    before = history[epoch.epoch - 2].steps if epoch.epoch > 1 else 0
    parts = [f"loss {epoch.train_loss:.3f}"]
    parts += [f"train {epoch.train_accuracy:.1%}"] if epoch.train_accuracy is not None else []
    parts += [f"val {epoch.val_accuracy:.1%}"] if epoch.val_accuracy is not None else []
    parts += [f"{(epoch.steps - before) * batch / epoch.seconds:,.0f} images/s"] if epoch.seconds > 0 else []
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
