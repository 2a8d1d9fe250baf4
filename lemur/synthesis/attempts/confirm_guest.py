"""Sandbox guest: train a network with its own code, and report how its scores of other images changed.

The labels of the other images never enter this process, so the network's code cannot forge a report about them.
"""

import base64
from typing import Any

import torch
from torch import Tensor

from extract.migrate.messages import BrokenNetwork
from lemur.synthesis.attempts.messages import LearningTask, ScoreChange
from lemur_core.sandbox.net import NetError, construct, execute, seed_all, sizes, step, stub_weights

_REPEATS = 2  # forward passes in train mode, since dropout is random


def train_briefly(task: LearningTask) -> ScoreChange | BrokenNetwork:
    """Train a network for some batches. Raises: MemoryError and the like, which the sandbox reports."""
    torch.set_num_threads(1)
    stub_weights()
    try:
        return _train(task)
    except NetError as error:
        return BrokenNetwork(error.category, error.detail)


def _train(task: LearningTask) -> ScoreChange:
    images, unseen = (_decode(text, task.shape) for text in (task.images, task.unseen))
    labels = torch.tensor(task.labels)
    seed_all(task.seed)
    net = construct(execute(task.code), (task.batch, *task.shape), (task.classes,), dict(task.prm))
    before = _score(net, unseen, task)
    with step("train_setup_failed", "in train_setup(prm)"):
        net.train_setup({**task.prm, "batch": task.batch})
    for _ in range(task.epochs):
        batches = list(zip(torch.split(images, task.batch), torch.split(labels, task.batch), strict=True))
        with step("learn_failed", f"in learn(train_data), {len(batches)} batches of {task.batch}"):
            net.train()
            net.learn(batches)
    after = _score(net, unseen, task)
    return ScoreChange(
        *(tuple(tuple(row) for row in (new - old).tolist()) for old, new in zip(before, after, strict=True))
    )


def _score(net: Any, images: Tensor, task: LearningTask) -> tuple[Tensor, Tensor]:
    """Return the scores of images in train mode, as a mean, and in eval mode."""
    with step("forward_failed", f"input {sizes(images.shape)}"), torch.no_grad():
        net.train()
        runs = [net(images) for _ in range(_REPEATS)]
        runs.append(net.eval()(images))
    for scores in runs:
        if not isinstance(scores, Tensor) or list(scores.shape) != [len(images), task.classes]:
            raise NetError("wrong_output", f"forward gives no tensor of {len(images)}x{task.classes}: images x classes")
        if not bool(torch.isfinite(scores).all()):
            raise NetError("not_finite", "forward gives infinite values or NaN")
    return torch.stack(runs[:-1]).double().mean(0), runs[-1].double()


def _decode(text: str, shape: Any) -> Tensor:
    pixels = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
    return pixels.reshape(-1, *shape).float() / 255 * 6 - 3
