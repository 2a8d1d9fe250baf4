"""The request to the guest of synthesis, and its answers. Standard library only: the guest imports it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class LearningTask:
    """Images to train a network on, and further ones whose labels stay with the caller.

    Args:
        name: the class in the network that has to learn.
        seed: the seed of the network's initial values.
        classes: the number of scores per image.
        shape: the shape of one image: channels, height, width.
        images: the training images, base64 of bytes: 0 is -3, and 255 is 3.
        labels: the labels of the training images.
        unseen: the further images, like `images`.
        batch: the number of images in a batch.
        epochs: how often `learn` is called.
    """

    code: str
    name: str
    prm: Mapping[str, Any]
    seed: int
    classes: int
    shape: Sequence[int]
    images: str
    labels: Sequence[int]
    unseen: str
    batch: int
    epochs: int


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """How training changed the scores of the further images, a row for each: in train mode and in eval mode."""

    train: tuple[tuple[float, ...], ...]
    eval: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class BrokenNetwork:
    """The step that a network fails, and why."""

    step: Literal["runs", "learns"]
    error: str
