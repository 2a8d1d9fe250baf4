"""What the process that trains is told, as plain data, and how it tells how far it is."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train.recipe import Augmentation, Training

HISTORY, PROGRESS, WEIGHTS = "history.jsonl", "progress.json", "weights.pt"
_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One training run. `key` says which one, to a checkpoint; `recipe` is the whole recipe as JSON.

    `tested`: whether the test images are read after the last epoch.
    """

    code: str
    prm: dict[str, Any]
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

    def to_payload(self) -> dict[str, object]:
        """The plan as a job's payload."""
        return asdict(self)

    @property
    def training(self) -> Training:
        """That part of the recipe."""
        return Training.model_validate(json.loads(self.recipe)["training"])

    @property
    def augmentation(self) -> Augmentation:
        """That part of the recipe."""
        return Augmentation.model_validate(json.loads(self.recipe)["augmentation"])


class Reporter:
    """Keeps two small files in the scratch folder up to date: the epochs so far, and, once a second, the step."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._last, self._done = clock(), 0
        (folder / PROGRESS).unlink(missing_ok=True)

    def step(self, figures: Callable[[], dict[str, Any]], images: int) -> None:
        """Note a step of this many images; written when the last note is a second old."""
        self._done += images
        passed = self._clock() - self._last
        if passed >= _EVERY_SECONDS:
            self._write(PROGRESS, json.dumps({**figures(), "images_per_second": self._done / passed}))
            self._last, self._done = self._clock(), 0

    def epochs(self, history: list[dict[str, Any]]) -> None:
        """Write the figures of all epochs so far, one a line, and count the pace anew: validation is no training."""
        self._last, self._done = self._clock(), 0
        self._write(HISTORY, "".join(json.dumps(epoch) + "\n" for epoch in history))

    def _write(self, name: str, text: str) -> None:
        part = self._folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / name)
