"""The figures of a run's epochs, and reading what the process that trains leaves behind: plain data, no links."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field, ValidationError

from manifests.records import Ratio, Record, Seconds
from train.plan import HISTORY, PROGRESS

Number = Annotated[float, Field(allow_inf_nan=False)]
_MAX_TEXT = 16 * 2**20
_CHUNK = 1 << 20


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
    """How far a run was when it last said so."""

    steps: int = Field(default=0, ge=0)
    loss: Number | None = None
    images_per_second: Number = 0.0
    parameters: int | None = Field(default=None, ge=0)
    train_seconds: Seconds = 0.0
    data_seconds: Seconds = 0.0


def open_plain(folder: Path, name: str) -> BinaryIO | None:
    """A file that foreign code wrote, to read; None if there is none or it is anything but a regular file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        parent = os.open(folder, flags | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        number = os.open(name, flags | os.O_NONBLOCK, dir_fd=parent)  # a pipe without a writer does not hold us up
    except OSError:
        return None
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        return None
    return os.fdopen(number, "rb")


def read_history(folder: Path) -> list[EpochFigures]:
    """The epochs so far, in order; what is no such line, or out of order, ends the reading."""
    found: list[EpochFigures] = []
    for line in _read(folder, HISTORY).splitlines():
        try:
            epoch = EpochFigures.model_validate(_loads(line))
        except ValidationError:
            break
        if epoch.epoch != len(found) + 1:
            break
        found.append(epoch)
    return found


def read_progress(folder: Path) -> StepFigures:
    """How far the run is; all zero if that cannot be told."""
    data = _loads(_read(folder, PROGRESS))
    if not isinstance(data, dict):
        return StepFigures()
    try:
        return StepFigures.model_validate({name: data[name] for name in StepFigures.model_fields if name in data})
    except ValidationError:
        return StepFigures()


def copy_plain(folder: Path, name: str, target: Path, most: int) -> bool:
    """Copy a file that foreign code wrote, at most so many bytes of it; whether there was one of that size."""
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


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
