"""What runs inside the sandbox for `check_nn`: a network trains by its own `train_setup` and `learn`.

As LEMUR's trainer does it, on the CPU: `in_shape` is the shape of the first batch, the data can be gone through once an
epoch, and the time counts from `train_setup` to the end of the last evaluation.
"""

import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

from lemur_core.sandbox.foreign import NETWORK, load, message_of, one_line
from train.contract import TRAINER_PARAMETERS
from train.data import open_cache
from train.transforms import CIFAR10_DEVIATION, CIFAR10_MEAN, Transform, transform_named

CLASSES = 10
_MESSAGE_CHARACTERS = 240


class CheckError(Exception):
    """What the network does not do, or `prm` lacks: its category, and one line."""

    def __init__(self, category: str, detail: str) -> None:
        super().__init__(detail)
        self.category, self.detail = category, detail


class TrainData:
    """What `learn` goes through: batches of inputs and labels in random order, once; then it is used up, as LEMUR's."""

    def __init__(self, images: Tensor, labels: Tensor, batch: int, transform: Transform) -> None:
        self.n, self.total = 0, -(-len(images) // batch)
        self._batches = batches(images, labels, torch.randperm(len(images)), batch, transform)

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> "TrainData":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        batch = next(self._batches)
        self.n += 1
        return batch


def run_check(payload: dict[str, Any]) -> dict[str, Any]:
    """Train a network by its own means and evaluate it on the test images.

    Args:
        payload: `code`; `prm`; `data`, a cache folder; `images`, how many to train on at most, or null; `epochs`;
            `seed`; `threads`.

    Returns: `accuracy` and `duration` (nanoseconds), or `category` and `error`, the reason in one line.
    Raises: MemoryError and the like, which the sandbox tells.
    """
    seed = int(payload["seed"])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(int(payload["threads"]))
    warnings.simplefilter("ignore")
    data = open_cache(Path(payload["data"]))
    count = payload["images"] or len(data.train_images)
    train = (data.train_images[:count], data.train_labels[:count])
    tested = len(data.test_images) if payload["images"] is None else max(1, count // 5)
    test = (data.test_images[:tested], data.test_labels[:tested])
    try:
        return _train(payload["code"], payload["prm"], train, test, int(payload["epochs"]))
    except CheckError as error:
        return {"category": error.category, "error": error.detail}


def batches(
    images: Tensor, labels: Tensor, order: Tensor, batch: int, transform: Transform
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images of uint8 and labels in this order, by batches; the images transformed."""
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        yield prepare(images[chosen], transform), labels[chosen]


def prepare(images: Tensor, transform: Transform) -> Tensor:
    """A batch of images (N, 3, H, W) of uint8 as the transform leaves them; each is flipped or not by itself."""
    if transform.crop:
        images = functional.center_crop(images, [transform.crop])
    if transform.size:
        images = functional.resize(images, [transform.size, transform.size], antialias=True)
    for probability, flip in (
        (transform.mirror, functional.horizontal_flip),
        (transform.upend, functional.vertical_flip),
    ):
        if probability:
            chosen = torch.rand(len(images)) < probability
            images = torch.where(chosen[:, None, None, None], flip(images), images)
    if transform.pad:
        images = functional.pad(images, [0, 0, transform.pad - images.shape[-1], transform.pad - images.shape[-2]])
    pixels: Tensor = functional.to_dtype(images, torch.float32, scale=True)
    if transform.values == "norm":
        return functional.normalize(pixels, CIFAR10_MEAN, CIFAR10_DEVIATION)  # type: ignore[no-any-return]
    return pixels.to(torch.complex64) if transform.values == "complex" else pixels


def _train(
    code: str, prm: dict[str, Any], train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], epochs: int
) -> dict[str, Any]:
    with _step("import_failed", "when the file is executed"):
        module = load(code, NETWORK)
    with _step("contract", "in supported_hyperparameters()"):
        supported = module.__dict__["supported_hyperparameters"]
        names = sorted({str(name) for name in supported()})
    _check_parameters(prm, names)
    batch, transform = int(prm["batch"]), transform_named(prm["transform"])
    in_shape = tuple(prepare(train[0][: min(batch, len(train[0]))], transform).shape)
    net = _construct(module.__dict__["Net"], in_shape, prm)
    started = time.perf_counter_ns()
    with _step("train_setup_failed", "in train_setup(prm)"):
        net.train_setup(prm)
    accuracy = 0.0
    for epoch in range(1, epochs + 1):
        net.train()
        with _step("learn_failed", f"in learn(train_data), epoch {epoch}, batches {_sizes(in_shape)}"):
            net.learn(TrainData(*train, batch, transform))
        accuracy = _evaluate(net, batches(*test, torch.arange(len(test[0])), batch, transform))
    return {"accuracy": accuracy, "duration": time.perf_counter_ns() - started}


def _check_parameters(prm: dict[str, Any], supported: list[str]) -> None:
    """Each supported hyperparameter has a value, and that lies in 0..1."""
    names = [name for name in supported if name not in TRAINER_PARAMETERS]
    missing = [name for name in names if name not in prm]
    if missing:
        given = ", ".join(sorted(prm))
        raise CheckError("prm", f"prm: {', '.join(missing)} missing, which the network supports; given: {given}")
    for name in names:
        value = prm[name]
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise CheckError("prm", f"prm: {name} is {value!r}; supported hyperparameters have values in 0..1")


def _construct(build: Callable[..., Any], in_shape: tuple[int, ...], prm: dict[str, Any]) -> Any:
    device = torch.device("cpu")
    with _step("construct_failed", f"in Net(in_shape={in_shape}, out_shape={(CLASSES,)}, prm, device)"):
        net = build(in_shape, (CLASSES,), prm, device)
        if not isinstance(net, torch.nn.Module):
            raise CheckError("contract", f"Net gives {type(net).__name__}, which is no torch.nn.Module")
        return net.to(device)


def _evaluate(net: Any, data: Iterator[tuple[Tensor, Tensor]]) -> float:
    """The share of images whose highest class score is that of their label."""
    net.eval()
    right = count = 0
    with torch.no_grad():
        for inputs, labels in data:
            with _step("forward_failed", f"on an input of {_sizes(inputs.shape)}"):
                scores = net(inputs)
            if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(labels):
                told = _sizes(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
                raise CheckError("wrong_output", f"forward gives {told}, not {len(labels)}x{CLASSES}: images x classes")
            right += int((scores.argmax(1) == labels).sum())
            count += len(labels)
    return right / count


@contextmanager
def _step(category: str, tried: str) -> Iterator[None]:
    """What foreign code raises in here, as a CheckError of that category."""
    try:
        yield
    except (CheckError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if "can't allocate memory" in message_of(error):  # PyTorch's allocator; the sandbox tells
            raise
        if isinstance(error, ModuleNotFoundError):
            category = "missing_dependency"
        elif isinstance(error, PermissionError) or isinstance(error.__cause__ or error.__context__, PermissionError):
            category = "denied"
        raise CheckError(category, _describe(error, tried)) from error


def _describe(error: BaseException, tried: str) -> str:
    """Type and message, the last line of the network's own file that was being executed, and what was tried."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).stem == NETWORK]
    line = f"line {frames[-1].lineno}: " if frames else ""
    said = one_line(message_of(error), _MESSAGE_CHARACTERS)
    return f"{line}{type(error).__name__}{': ' if said else ''}{said} ({tried})"


def _sizes(shape: Any) -> str:
    return "x".join(str(size) for size in shape) or "a scalar"
