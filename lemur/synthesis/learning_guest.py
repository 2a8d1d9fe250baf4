"""Sandbox guest: train a network as LEMUR's trainer does, and report how its scores of other images changed.

Before, its scores must have the right shape, and a finite gradient must reach each parameter of the requested block;
after, its training must have changed one of them. The labels of the other images never enter this process, so no code
of a network can forge how its scores follow them.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lemur_core.graphs.trace import flatten_tensors
from lemur_core.sandbox.net import NetError, check_output, construct, execute, seed_all, sizes, step, stub_weights

#: Images, channels first, and classes for the checks of a network, as `prompt.txt` states them.
IN_SHAPE, CLASSES = (3, 32, 32), 10

_BATCH = 8
_REPEATS = 2  # forward passes in train mode, since dropout is random


@dataclass(frozen=True, slots=True)
class LearningTask:
    """Images to train a network on, and further ones whose labels stay with the caller.

    Args:
        name: the class in the network that has to learn.
        seed: the seed of the network's initial values.
        images: the training images, base64 of bytes: 0 is -3, and 255 is 3.
        labels: the labels of the training images.
        unseen: the further images, like `images`.
        epochs: how often `learn` is called.
    """

    code: str
    name: str
    prm: Mapping[str, Any]
    seed: int
    images: str
    labels: Sequence[int]
    unseen: str
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


def train_briefly(task: LearningTask) -> ScoreChange | BrokenNetwork:
    """Train a network for some batches. Raises: MemoryError and the like, which the sandbox reports."""
    torch.set_num_threads(1)
    stub_weights()
    images, unseen = (_decode(text) for text in (task.images, task.unseen))
    labels = torch.tensor(task.labels)
    batches = list(zip(torch.split(images, _BATCH), torch.split(labels, _BATCH), strict=True))
    reached: Literal["runs", "learns"] = "runs"
    try:
        net, block = _build(task)
        if not any(isinstance(module, block) for module in net.modules()):
            raise NetError("builds", f"no {task.name} is in it once it is constructed")
        before = _score(net, unseen)
        reached = "learns"
        _check_gradients(task, batches[0][0])
        initial = [parameter.detach().clone() for parameter in _list_trainable(net, block).values()]
        with step("train_setup_failed", "in train_setup(prm)"):
            net.train_setup({**task.prm, "batch": _BATCH})
        for _ in range(task.epochs):
            with step("learn_failed", f"in learn(train_data), {len(batches)} batches of {_BATCH}"):
                net.train()
                net.learn(list(batches))
        pairs = zip(initial, _list_trainable(net, block).values(), strict=True)
        if initial and all(torch.equal(old, new.detach()) for old, new in pairs):
            raise NetError("learns", f"its training does not change any parameter of {task.name}")
        after = _score(net, unseen)
    except NetError as error:
        return BrokenNetwork(reached, error.detail if reached == "runs" else f"{error.category}: {error.detail}")
    train, evaluated = ((new - old).tolist() for old, new in zip(before, after, strict=True))
    return ScoreChange(tuple(map(tuple, train)), tuple(map(tuple, evaluated)))


def _build(task: LearningTask) -> tuple[Any, type[nn.Module]]:
    """Return the network, and the class of its block."""
    seed_all(task.seed)
    file = execute(task.code)
    return construct(file, (_BATCH, *IN_SHAPE), (CLASSES,), {**task.prm, "batch": _BATCH}), getattr(file, task.name)


def _list_trainable(net: nn.Module, block: type[nn.Module]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of the blocks of a class, by name and number of the block."""
    blocks = [module for module in net.modules() if isinstance(module, block)]
    return {
        f"{name} of {number}" if number else name: parameter
        for number, module in enumerate(blocks)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


def _check_gradients(task: LearningTask, images: Tensor) -> None:
    """Check that a finite gradient reaches each trainable parameter of the blocks, and an output of one."""
    net, block = _build(task)
    gave: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        gave.append(output)

    for module in net.modules():
        if isinstance(module, block):
            module.register_forward_hook(keep)
    with step("gradients", "train mode"):
        outputs = [tensor for tensor in flatten_tensors(net.train()(images)) if tensor.requires_grad]
        # Random weights: with a plain sum, gradients of opposite sign could cancel, as after a softmax.
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(tensor.shape, generator=generator) for tensor in outputs]
        torch.autograd.backward(outputs, weights)  # raises if there are no outputs
    gradients = {name: parameter.grad for name, parameter in sorted(_list_trainable(net, block).items())}
    if missing := [name for name, gradient in gradients.items() if gradient is None]:
        first = f"{', '.join(missing[:4])}: {len(missing)} of {len(gradients)} parameters of {task.name}"
        raise NetError("gradients", f"none reaches {first}")
    for name, gradient in gradients.items():
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            raise NetError("gradients", f"that of {name} of {task.name} is not finite")
    if all(tensor.grad is None for tensor in gave):
        raise NetError("gradients", f"none reaches the output of {task.name}")


def _score(net: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores of images in train mode, as a mean, and in eval mode."""
    with step("forward_failed", f"input {sizes(images.shape)}"), torch.no_grad():
        net.train()
        runs = [net(images) for _ in range(_REPEATS)]
        runs.append(net.eval()(images))
    for scores in runs:
        check_output(scores, [len(images), CLASSES])
    return torch.stack(runs[:-1]).double().mean(0), runs[-1].double()


def _decode(text: str) -> Tensor:
    pixels = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
    return pixels.reshape(-1, *IN_SHAPE).float() / 255 * 6 - 3
