"""How far a training run is, on stderr: a bar on a terminal, a line an epoch elsewhere."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.progress import note
from train.history import EpochFigures, StepFigures, read_history, read_progress

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `steps` is the number of all steps; figures of the last whole second and of whole epochs."""

    name: str
    epochs: int
    steps: int
    now: StepFigures
    history: tuple[EpochFigures, ...]
    images: int  # of a step

    @property
    def done(self) -> int:
        """Steps done."""
        return max(self.now.steps, self.history[-1].steps if self.history else 0)

    @property
    def seconds_left(self) -> float | None:
        """Of training, at the present pace."""
        if self.now.images_per_second <= 0:
            return None
        return (self.steps - self.done) * self.images / self.now.images_per_second


Report = Callable[[Progress], None]


@contextlib.contextmanager
def watching(folder: Path, empty: Progress, report: Report | None) -> Iterator[None]:
    """Tell how far the run in that folder is while the block runs; without `report`, on stderr.

    Raises: what `report` raised, at the end of the block.
    """
    with contextlib.nullcontext(report) if report is not None else _shown(empty) as tell:
        watcher = _Watcher(folder, empty, tell)
        watcher.start()
        try:
            yield
        finally:
            watcher.stop()
        if watcher.error is not None:
            raise watcher.error


class _Watcher(threading.Thread):
    def __init__(self, folder: Path, empty: Progress, report: Report) -> None:
        super().__init__(daemon=True)
        self._folder, self._seen, self._report = folder, empty, report
        self._over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Look until stopped, and once more then."""
        try:
            while not self._over.wait(_LOOK_SECONDS):
                self._look()
            self._look()
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            self.error = error

    def stop(self) -> None:
        """Stop looking."""
        self._over.set()
        self.join()

    def _look(self) -> None:
        now, history = read_progress(self._folder), tuple(read_history(self._folder))
        seen = Progress(self._seen.name, self._seen.epochs, self._seen.steps, now, history, self._seen.images)
        if seen != self._seen:
            self._seen = seen
            self._report(seen)


@contextlib.contextmanager
def _shown(empty: Progress) -> Iterator[Report]:
    if sys.stderr.isatty():
        with _bar(empty) as report:
            yield report
    else:
        yield _lines(empty)


def _lines(empty: Progress) -> Report:
    told = empty.history

    def report(seen: Progress) -> None:
        nonlocal told
        for epoch in (epoch for epoch in seen.history if epoch not in told):
            left = seen.seconds_left if epoch is seen.history[-1] else None
            note(f"{seen.name}: {describe_epoch(epoch, seen)}" + (f", {_duration(left)} left" if left else ""))
        told = seen.history

    return report


def describe_epoch(epoch: EpochFigures, seen: Progress) -> str:
    """One line on an epoch: `epoch 3/20, loss 1.234, train 55.1 %, val 61.2 %, 210 images/s`."""
    before = seen.history[epoch.epoch - 2].steps if epoch.epoch > 1 else 0
    parts = [f"epoch {epoch.epoch}/{seen.epochs}", f"loss {epoch.train_loss:.3f}"]
    parts += [f"train {epoch.train_accuracy:.1%}"] if epoch.train_accuracy is not None else []
    parts += [f"val {epoch.val_accuracy:.1%}"] if epoch.val_accuracy is not None else []
    if epoch.seconds > 0:
        parts.append(f"{(epoch.steps - before) * seen.images / epoch.seconds:,.0f} images/s")
    return ", ".join(parts)


@contextlib.contextmanager
def _bar(empty: Progress) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[said]}"))
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(empty.name, total=empty.steps, completed=empty.done, said="starts")

        def report(seen: Progress) -> None:
            bar.update(task, completed=seen.done, said=_said(seen))

        yield report


def _said(seen: Progress) -> str:
    parts = [f"epoch {min(len(seen.history) + 1, seen.epochs)}/{seen.epochs}"]
    parts += [f"loss {seen.now.loss:.3f}"] if seen.now.loss is not None else []
    if seen.history and seen.history[-1].val_accuracy is not None:
        parts.append(f"val {seen.history[-1].val_accuracy:.1%}")
    if seen.now.images_per_second:
        parts.append(f"{seen.now.images_per_second:,.0f} images/s")
    if seen.done >= seen.steps:
        parts.append("evaluates")
    elif seen.seconds_left is not None:
        parts.append(f"{_duration(seen.seconds_left)} left")
    return "  ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
