"""The requests to the guests of synthesis, and their answers. Standard library only: the guests import it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: The steps of a proof, in order.
ProofStep = Literal["builds", "runs", "shape", "gradients", "learns"]


@dataclass(frozen=True, slots=True)
class LearningTask:
    """Images to train a network on, and further ones whose labels stay with the caller.

    Args:
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
class NetworkToProve:
    """A network, the class in it that has to learn, and the inputs.

    Args: case: as for `lemur_core.sandbox.net.run_network`, with `in_shape`, `out_shape` and `output`.
    """

    code: str
    prm: Mapping[str, Any]
    case: Mapping[str, Any]
    name: str


@dataclass(frozen=True, slots=True)
class NetworkProof:
    """The step of a proof that failed, and why; None if all succeeded."""

    failed: ProofStep | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class BrokenNetwork:
    """Why a network does not run or learn; `category` is the step that failed."""

    category: str
    error: str
