"""Runs in the sandbox: train a network with its own `train_setup` and `learn`, as LEMUR's trainer does, on the CPU.

`in_shape` is the shape of the first batch, the data can be iterated once per epoch, and time is measured from
`train_setup` to the end of the last evaluation.

Source: `ab/nn/util/Train.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from lemur_core.files import Json
from lemur_core.sandbox.net import NetError, construct, execute, seed_all, sizes, step
from lemur_core.sandbox.server.foreign import is_kind, list_causes
from train.data import open_cache
from train.model.contract import CIFAR10_DEVIATION, CIFAR10_MEAN, TRAINER_PARAMETERS, transform_module

CLASSES = 10
Steps = Sequence[Callable[[Tensor], Tensor]]


class TrainData:
    """The iterator passed to `learn`: batches of inputs and labels in random order, once, like LEMUR's."""

    def __init__(self, images: Tensor, labels: Tensor, batch: int, steps: Steps) -> None:
        self.n, self.total = 0, -(-len(images) // batch)
        self._batches = batches(images, labels, torch.randperm(len(images)), batch, steps)

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> "TrainData":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        batch = next(self._batches)
        self.n += 1
        return batch


def run_check(payload: Json) -> Json:
    """Train a network with its own `learn` and evaluate it on the test images.

    Args: payload: `code`; `prm`; `data`, a cache folder; `images`, the maximum number to train on, or null; `epochs`;
        `seed`; `threads`.
    Returns: `accuracy` and `duration` (nanoseconds), or `category` and `error`, the reason in one line.
    Raises: MemoryError and the like, which the sandbox reports.
    """
    data = open_cache(Path(payload["data"]))
    count = payload["images"] or len(data.train_images)
    train = (data.train_images[:count], data.train_labels[:count])
    tested = len(data.test_images) if payload["images"] is None else max(1, count // 5)
    test = (data.test_images[:tested], data.test_labels[:tested])
    seed_all(int(payload["seed"]))
    torch.set_num_threads(int(payload["threads"]))
    try:
        return train_as_lemur(payload["code"], payload["prm"], train, test, int(payload["epochs"]))
    except NetError as error:
        # An error caused by a missing permission is reported as such.
        denied = any(is_kind(cause, PermissionError) for cause in list_causes(error))
        category = "denied" if denied else "contract" if error.category == "no_net" else error.category
        return {"category": category, "error": explain(error)}


def batches(images: Tensor, labels: Tensor, order: Tensor, batch: int, steps: Steps) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of transformed uint8 images and labels, in this order."""
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        yield prepare(images[chosen], steps), labels[chosen]


def read_steps(name: object) -> Steps:
    """Return the steps of one of LEMUR's transforms, from the module written to its database. Raises: UserError."""
    module: dict[str, Any] = {}
    exec(transform_module(name), module)  # noqa: S102 (our own text)
    composed: v2.Compose = module["transform"]((CIFAR10_MEAN, CIFAR10_DEVIATION))
    return list(composed.transforms)


def prepare(images: Tensor, steps: Steps) -> Tensor:
    """Apply a transform to a batch of uint8 images (N, 3, H, W); each image is flipped independently."""
    for transform in steps:
        if isinstance(transform, v2.RandomHorizontalFlip | v2.RandomVerticalFlip):
            chosen = torch.rand(len(images)) < transform.p
            images = torch.where(chosen[:, None, None, None], transform.transform(images, {}), images)
        else:
            images = transform(images)
    return images.as_subclass(Tensor)


def train_as_lemur(
    code: str, prm: Json, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], epochs: int
) -> Json:
    """Train a network on uint8 images and labels, and evaluate it on others after each epoch.

    Returns: the last `accuracy`, and `duration` in nanoseconds.
    Raises: NetError.
    """
    module = open_network(code, prm)
    for name in sorted(_list_supported(module)):
        value = prm[name]
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise NetError("prm", f"prm: {name} is {value!r}; supported hyperparameters have values in 0..1")
    batch, steps = int(prm["batch"]), read_steps(prm["transform"])
    in_shape = tuple(prepare(train[0][: min(batch, len(train[0]))], steps).shape)
    net = construct(module, in_shape, (CLASSES,), prm)
    started = time.perf_counter_ns()
    with step("train_setup_failed", "in train_setup(prm)"):
        net.train_setup(prm)
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        net.train()
        with step("learn_failed", f"in learn(train_data), epoch {epoch}, batches {sizes(in_shape)}"):
            net.learn(TrainData(*train, batch, steps))
        accuracy = _evaluate(net, batches(*test, torch.arange(len(test[0])), batch, steps))
    return {"accuracy": accuracy, "duration": time.perf_counter_ns() - started}


def open_network(code: str, prm: Mapping[str, object]) -> ModuleType:
    """Execute a network's file. Raises: NetError if it fails, or `prm` lacks a hyperparameter that it supports."""
    module = execute(code)
    if missing := sorted(_list_supported(module) - set(prm)):
        present = ", ".join(sorted(prm)) or "none"
        raise NetError("prm", f"prm: {', '.join(missing)} missing, which the network supports; present: {present}")
    return module


def _list_supported(module: ModuleType) -> set[str]:
    names = getattr(module, "supported_hyperparameters", None)
    with step("contract", "in supported_hyperparameters()"):
        return {str(name) for name in names()} - TRAINER_PARAMETERS if callable(names) else set()


def _evaluate(net: Any, data: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Return the share of images whose highest class score is that of their label."""
    net.eval()
    right = count = 0
    with torch.no_grad():
        for inputs, labels in data:
            with step("forward_failed", f"on an input of {sizes(inputs.shape)}"):
                scores = net(inputs)
            if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(labels):
                output = sizes(scores.shape, "a scalar") if isinstance(scores, Tensor) else type(scores).__name__
                raise NetError("wrong_output", f"forward gives {output}, not {len(labels)}x{CLASSES}: images x classes")
            if not bool(torch.isfinite(scores).all()):
                raise NetError("not_finite", "forward gives infinite values or NaN after training: it diverged")
            right += int((scores.argmax(1) == labels).sum())
            count += len(labels)
    return right / count


def explain(error: BaseException) -> str:
    """Return in one line what failed in a network: type, message, the last line of its own file, the call."""
    failure = error if type(error) is NetError else NetError.from_exception(error, "", "")
    failure.what = failure.what.removesuffix(": ")
    return failure.detail
