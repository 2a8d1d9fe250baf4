"""The training job as seen from both sides: its payload, the files in its scratch folder, and how they are read.

The figures of the epochs are plain data in regular files. PyTorch is not imported: pages and `lemur verify` read what
is here, and take seconds less without it.
"""

import contextlib
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

from pydantic import Field, ValidationError

from lemur_core.files import Json
from lemur_core.files.figures import BLUE, ORANGE, save_figure
from lemur_core.files.progress import note, progress
from manifests.folders.tables import read_bytes
from manifests.records import Ratio, Record, Seconds, TrainingRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HISTORY, PROGRESS, WEIGHTS, CHECKPOINT = "history.jsonl", "progress.json", "weights.pt", "checkpoint.pt"
RECORD, NET = "record.json", "net.py"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The payload of one training run. `key` identifies it in a checkpoint; `recipe` is the whole recipe as JSON.

    `tested`: whether to evaluate on the test images after the last epoch.
    """

    code: str
    prm: Json
    recipe: str
    seed: int
    data: str
    held_out: int
    images: int
    tested: bool
    device: str
    threads: int
    time_limit: float | None
    step_limit: float
    key: str


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The answer of the job: how it ended, and its figures as far as it came.

    A figure that is None has no value, or was not reached; the files of the run say more in the second case.
    """

    status: Literal["ok", "diverged", "out_of_memory", "timeout", "error"]
    error: str | None = None
    epochs: int | None = None
    steps: int | None = None
    parameters: int | None = None
    images_seen: int | None = None
    flop: int | None = None
    train_loss: float | None = None
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    train_seconds: float | None = None
    data_seconds: float | None = None
    device: str | None = None
    precision: Literal["float32", "bfloat16"] | None = None
    weights_sha256: str | None = None
    notes: tuple[str, ...] = ()  # lines for the user


Number = Annotated[float, Field(allow_inf_nan=False)]
_MAX_TEXT = 16 * 2**20
_CHUNK = 1 << 20
_LOOK_SECONDS = 0.5
_LOOKS = ((BLUE, "--"), (ORANGE, "-"))


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


class StepFigures(Record):
    """The last progress that a run reported."""

    steps: int = Field(default=0, ge=0)
    images_per_second: Number = 0.0
    parameters: int | None = Field(default=None, ge=0)
    images_seen: int | None = Field(default=None, ge=0)
    flop: int | None = Field(default=None, ge=0)
    train_seconds: Seconds = 0.0
    data_seconds: Seconds = 0.0


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


def read_record(folder: Path) -> TrainingRecord:
    """Read the record in the folder of a run. Raises: OSError, or ValueError if it is not a record."""
    return TrainingRecord.model_validate_json(read_bytes(folder / RECORD))


def read_history(folder: Path) -> list[EpochFigures]:
    """Read the epochs so far, in order; stops at the first line that is invalid or out of order."""
    epochs: list[EpochFigures] = []
    for line in _read(folder, HISTORY).splitlines():
        try:
            epoch = EpochFigures.model_validate(loads_or_none(line))
        except ValidationError:
            break
        if epoch.epoch != len(epochs) + 1:
            break
        epochs.append(epoch)
    return epochs


def read_progress(folder: Path) -> StepFigures:
    """Read the progress of the run; all zero if it cannot be read."""
    try:
        data = loads_or_none(_read(folder, PROGRESS)).items()
        return StepFigures.model_validate({name: value for name, value in data if name in StepFigures.model_fields})
    except (ValidationError, AttributeError):  # AttributeError: it is not an object
        return StepFigures()


def copy_plain(folder: Path, name: str, target: Path, most: int) -> bool:
    """Copy a file that foreign code wrote; return False if it does not exist or has more than `most` bytes."""
    source = open_plain(folder, name)
    if source is None:
        return False
    with source, target.open("wb") as file:
        for chunk in _chunks(source, most):
            file.write(chunk)
        whole = not source.read(1)
    if not whole:
        target.unlink()
    return whole


def _chunks(source: BinaryIO, most: int) -> Iterator[bytes]:
    while most > 0 and (chunk := source.read(min(_CHUNK, most))):
        most -= len(chunk)
        yield chunk


def _read(folder: Path, name: str) -> bytes:
    source = open_plain(folder, name)
    if source is None:
        return b""
    with source:
        return b"".join(_chunks(source, _MAX_TEXT))


def loads_or_none(text: bytes) -> Any:
    """Parse JSON; return None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


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


def list_curves(history: Sequence[EpochFigures], kind: str) -> dict[str, list[tuple[float, float]]]:
    """Return the points (epoch, value) of "loss" or "accuracy", on training images and on held-out images."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for split, label in (("train", "training, augmented"), ("val", "held out")):
        values = [(float(epoch.epoch), getattr(epoch, f"{split}_{kind}")) for epoch in history]
        curves[label] = [(epoch, value) for epoch, value in values if value is not None]
    return curves


def draw_curves(history: Sequence[EpochFigures], title: str, path: Path) -> None:
    """Plot loss and accuracy by epoch, on training images and on held-out images."""

    def draw(figure: "Figure") -> None:
        from matplotlib.ticker import MaxNLocator, PercentFormatter

        figure.set_size_inches(8.0, 3.2)
        figure.suptitle(title, fontsize=11)
        for axes, kind in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
            for (label, points), (color, dash) in zip(list_curves(history, kind).items(), _LOOKS, strict=True):
                if points:
                    axes.plot(*zip(*points, strict=True), dash, color=color, label=label, marker=".", markersize=4)
            axes.set_xlabel("epoch")
            axes.set_ylabel(kind)
            axes.grid(axis="y")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if axes.lines:
                axes.legend()
            if kind == "accuracy":
                axes.yaxis.set_major_formatter(PercentFormatter(1.0))

    save_figure(path, draw)
