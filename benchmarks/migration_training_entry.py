"""In the sandbox: a network learns by its own `train_setup` and `learn`, from given images, until its time is over."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lemur_core.sandbox.net import NetError, construct, execute, seed_all, step
from train.data import open_cache
from train.lemur.check_guest import CLASSES, batches, prepare, read_steps

_TESTED_BATCH = 250


class _UntilLate:
    """Batches in random order, once, as long as there is time; counts the images."""

    def __init__(self, images: Tensor, labels: Tensor, prm: dict[str, Any], seconds: float) -> None:
        self.learned, self._end = 0, time.monotonic() + seconds
        batch = int(prm["batch"])
        self._batches = batches(images, labels, torch.randperm(len(images)), batch, read_steps(prm["transform"]))
        self._count = -(-len(images) // batch)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self._batches:
            if time.monotonic() > self._end:
                return
            self.learned += len(labels)
            yield inputs, labels


def learn_for(payload: dict[str, Any]) -> dict[str, Any]:
    """Train for an epoch of `images` images, `seconds` at most; then count what is right of the first `tested` ones.

    Args: payload: `code`, `prm`, `data` (a cache folder), `images`, `tested`, `seed`, `seconds`.
    Returns: `accuracy`, `learned` (images), `seconds`, or `error`, in one line.
    """
    seed_all(int(payload["seed"]))
    torch.set_num_threads(1)
    data, prm = open_cache(Path(payload["data"])), dict(payload["prm"])
    count = int(payload["images"])
    try:
        first = prepare(data.train_images[: prm["batch"]], read_steps(prm["transform"]))
        net = construct(execute(payload["code"]), tuple(first.shape), (CLASSES,), prm)
        with step("train_setup_failed"):
            net.train_setup(prm)
        given = _UntilLate(data.train_images[:count], data.train_labels[:count], prm, float(payload["seconds"]))
        started = time.monotonic()
        net.train()
        with step("learn_failed"):
            net.learn(given)
        seconds = time.monotonic() - started
        accuracy = _accuracy(net, data.test_images, data.test_labels, int(payload["tested"]), prm["transform"])
    except NetError as error:
        return {"error": f"{error.category}: {error.detail}"}
    return {"accuracy": accuracy, "learned": given.learned, "seconds": seconds}


def _accuracy(net: Any, images: Tensor, labels: Tensor, count: int, transform: str) -> float:
    net.eval()
    right = 0
    with step("forward_failed"), torch.no_grad():
        for inputs, wanted in batches(
            images[:count], labels[:count], torch.arange(count), _TESTED_BATCH, read_steps(transform)
        ):
            right += int((net(inputs).argmax(1) == wanted).sum())
    return right / max(count, 1)
