"""The metrics of a run: losses of its steps, whether they are numbers, times, epochs; accuracy on other images."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from train.augment import Pixels
from train.process import Place

_EVALUATED = 500  # images at a time
_UNSEEN = 16  # steps on an accelerator before their losses are looked at: a look waits for it


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean cross entropy, and the part of the images whose class was told; one view of each, no augmentation."""

    loss: float
    accuracy: float


def evaluate(
    net: nn.Module, images: Tensor, labels: Tensor, *, pixels: Pixels, place: Place, tick: Callable[[], None]
) -> Measured:
    """Measure a network in eval mode; the mode that it had is put back.

    Args:
        images: (N, 3, H, W) uint8, at least one.
        tick: called before each batch.
    """
    was_training = net.training
    net.eval()
    loss, correct = 0.0, 0
    try:
        with torch.no_grad():
            for rows in torch.split(torch.arange(len(labels)), _EVALUATED):
                tick()
                batch, wanted = place.move(pixels.normalise(images[rows])), labels[rows].to(place.device)
                with place.autocast():
                    outputs = net(batch)
                outputs = outputs.float()
                loss += float(nn.functional.cross_entropy(outputs, wanted, reduction="sum"))
                correct += int((outputs.argmax(1) == wanted).sum())
    finally:
        net.train(was_training)
    return Measured(loss / len(labels), correct / len(labels))


class DivergedError(Exception):
    """The loss or a weight is no longer a number."""


class RunMetrics:
    """Counts steps and epochs. What it holds after an epoch goes into the checkpoint, and comes from there."""

    def __init__(self, steps_an_epoch: int, batch: int, device: torch.device) -> None:
        self._steps_an_epoch, self._batch = steps_an_epoch, batch
        self._at_once = device.type == "cpu"
        self.history: list[dict[str, Any]] = []
        self.steps = 0
        self.train_seconds = self.data_seconds = 0.0
        self._unseen: list[tuple[int, Tensor, Tensor | None]] = []
        self._losses: list[float] = []
        self._begin_epoch()

    @property
    def last_loss(self) -> float | None:
        """Of the last step of this epoch that was looked at."""
        return self._losses[-1] if self._losses else None

    def note(self, loss: Tensor, outputs: Tensor, targets: Tensor) -> None:
        """Take down the loss of the step in hand, and how many were right if it was not mixed.

        Raises: DivergedError.
        """
        right = (outputs.detach().argmax(1) == targets).sum() if targets.ndim == 1 else None
        self._unseen.append((self.steps, loss.detach(), right))
        if self._at_once or len(self._unseen) >= _UNSEEN:
            self.settle()

    def settle(self) -> None:
        """Look at the losses that were not looked at.

        Raises: DivergedError if one is not finite.
        """
        unseen = self._unseen
        self._unseen = []
        for step, loss, right in unseen:
            value = float(loss)
            if not math.isfinite(value):
                epoch, number = divmod(step, self._steps_an_epoch)
                raise DivergedError(f"the loss is {value} at epoch {epoch + 1}, step {number + 1}")
            self._losses.append(value)
            if right is not None:
                self._right += int(right)
                self._judged += self._batch

    def end_step(self, seconds: float, data_seconds: float) -> None:
        """Count a step that took so long, its data so much of it."""
        self.steps += 1
        self.train_seconds += seconds
        self.data_seconds += data_seconds

    def end_epoch(self, learning_rate: float, measured: Measured | None) -> None:
        """Add the epoch to the history."""
        self.history.append(
            {
                "epoch": len(self.history) + 1,
                "steps": self.steps,
                "train_loss": sum(self._losses) / len(self._losses),
                "train_accuracy": self._right / self._judged if self._judged else None,
                "learning_rate": learning_rate,
                "val_loss": measured.loss if measured and math.isfinite(measured.loss) else None,
                "val_accuracy": measured.accuracy if measured else None,
                "seconds": self.train_seconds - self._before[0],
                "data_seconds": self.data_seconds - self._before[1],
            }
        )
        self._begin_epoch()

    def to_state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "history": self.history,
            "steps": self.steps,
            "train_seconds": self.train_seconds,
            "data_seconds": self.data_seconds,
        }

    def from_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.history, self.steps = state["history"], state["steps"]
        self.train_seconds, self.data_seconds = state["train_seconds"], state["data_seconds"]
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._before = (self.train_seconds, self.data_seconds)
        self._losses, self._unseen = [], []
        self._right = self._judged = 0
