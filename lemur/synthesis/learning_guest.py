"""Sandbox guests: prove that a network runs and that one batch trains it, and train it to confirm what it reports.

The proof constructs and runs the network as LEMUR's trainer does; its scores must have the stated shape. Then follow a
backward pass, and one batch with its own `train_setup` and `learn`. The confirmation trains it longer, and reports how
its scores of other images changed. Their labels never enter this process, so no code of a network can forge them.
"""

import base64
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from lemur.synthesis.messages import (
    BrokenNetwork,
    LearningTask,
    NetworkProof,
    NetworkToProve,
    ProofStep,
    ScoreChange,
)
from lemur_core.graphs.trace import flatten_tensors
from lemur_core.sandbox.net import (
    NetError,
    construct,
    execute,
    make_inputs,
    seed_all,
    sizes,
    step,
    stub_weights,
    tuples,
)

_BATCH = 4  # images to train with: normalization over a batch needs several
_REPEATS = 2  # forward passes in train mode, since dropout is random


class _Failed(Exception):  # noqa: N818 (an outcome, not a fault)
    """A failed step."""

    def __init__(self, step: ProofStep, why: str) -> None:
        super().__init__(why)
        self.step, self.why = step, why


def prove(request: NetworkToProve) -> NetworkProof:
    """Return the step that a network fails, if any. Raises: MemoryError and the like, which the sandbox reports."""
    torch.set_num_threads(1)
    stub_weights()
    try:
        net, _ = _build(request, request.case)
        _check_outputs(net, request.case)
        _check_gradients(request)
        _check_learning(request)
    except _Failed as failure:
        return NetworkProof(failure.step, failure.why)
    return NetworkProof()


def _build(request: NetworkToProve, case: Mapping[str, Any]) -> tuple[Any, list[nn.Module]]:
    """Build the network; also return its instances of the class."""
    seed_all(0)
    try:
        file = execute(request.code)
        net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(request.prm))
    except NetError as error:
        raise _Failed("builds", error.detail) from error
    return net, _find_blocks(file, net, request.name)


def _find_blocks(file: ModuleType, net: nn.Module, name: str) -> list[nn.Module]:
    blocks = [module for module in net.modules() if isinstance(module, getattr(file, name))]
    if not blocks:
        raise _Failed("builds", f"no {name} is in it once it is constructed")
    return blocks


def _check_outputs(net: nn.Module, case: Mapping[str, Any]) -> None:
    inputs, expected = make_inputs(dict(case)), case["output"]
    try:
        with step("runs", f"input {sizes(inputs.shape)}"), torch.no_grad():
            output = net.eval()(inputs)
    except NetError as error:
        raise _Failed("runs", error.detail) from error
    if not isinstance(output, Tensor) or list(output.shape) != list(expected):
        received = sizes(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise _Failed("shape", f"gives {received} for {sizes(inputs.shape)}, where {sizes(expected)} is wanted")
    if not bool(torch.isfinite(output).all()):
        raise _Failed("shape", "the output is not finite")


def _check_gradients(request: NetworkToProve) -> None:
    """Check that a finite gradient reaches each trainable parameter of the block, and its outputs."""
    case = _with_batch(request.case)
    net, blocks = _build(request, case)
    trained = _trainable(blocks)
    gave: list[Tensor] = []

    def retain_gradient(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        gave.append(output)

    hooks = [block.register_forward_hook(retain_gradient) for block in blocks]
    try:
        with step("gradients", "train mode"):
            output = net.train()(make_inputs(case))
            outputs = [tensor for tensor in flatten_tensors(output) if tensor.requires_grad]
            # Random weights: with a plain sum, gradients of opposite sign could cancel, as after a softmax.
            generator = torch.Generator().manual_seed(0)
            weights = [torch.randn(tensor.shape, generator=generator) for tensor in outputs]
            torch.autograd.backward(outputs, weights)  # raises if there are no outputs
    except NetError as error:
        raise _Failed("gradients", error.detail) from error
    for hook in hooks:
        hook.remove()
    missing = sorted(name for name, parameter in trained.items() if parameter.grad is None)
    if missing:
        raise _Failed(
            "gradients", f"none reaches {', '.join(missing[:4])}: {len(missing)} of {len(trained)} parameters"
        )
    gradients = {name: parameter.grad for name, parameter in trained.items() if parameter.grad is not None}
    wrong = sorted(name for name, gradient in gradients.items() if not bool(torch.isfinite(gradient).all()))
    if wrong:
        raise _Failed("gradients", f"that of {wrong[0]} is not finite")
    if not gave or all(tensor.grad is None for tensor in gave):
        raise _Failed("gradients", "none reaches the output of the block")


def _learn(request: NetworkToProve) -> tuple[ModuleType, Any, Tensor]:
    """Train the network on one batch, as LEMUR's trainer does.

    Returns: the file as a module, the network, and its output for the batch afterwards, in eval mode.
    Raises: NetError.
    """
    seed_all(0)
    case = _with_batch(request.case)
    file = execute(request.code)
    net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(request.prm))
    images, labels = make_inputs(case), torch.arange(_BATCH) % int(case["out_shape"][0])
    with step("train_setup_failed", "in train_setup(prm)"):
        net.train_setup({**request.prm, "batch": _BATCH})
    with step("learn_failed", f"in learn(train_data), one batch of {_BATCH}"):
        net.train()
        net.learn([(images, labels)])
    with step("forward_failed", "after one batch was learned"), torch.no_grad():
        return file, net, net.eval()(images)


def _with_batch(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the case with the images of one batch."""
    return {**case, "in_shape": [_BATCH, *case["in_shape"][1:]]}


def _check_learning(request: NetworkToProve) -> None:
    """Check that the network's own training on one batch changes a parameter of the block."""
    # The state before training: built again, since `_learn` returns only the trained network.
    _, blocks = _build(request, _with_batch(request.case))  # with the same seed as for training
    before = _trainable(blocks)
    try:
        file, net, output = _learn(request)
    except NetError as error:
        raise _Failed("learns", f"{error.category}: {error.detail}") from error
    if not bool(torch.isfinite(output).all()):
        raise _Failed("learns", "outputs are not finite after one batch")
    after = _trainable(_find_blocks(file, net, request.name))
    pairs = zip(before.values(), after.values(), strict=True)
    if before and all(torch.equal(old.detach(), new.detach()) for old, new in pairs):
        raise _Failed("learns", "one batch does not change any parameter of the block")


def _trainable(blocks: list[nn.Module]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of blocks, by name and number of the block."""
    return {
        f"{name} of {number}" if number else name: parameter
        for number, block in enumerate(blocks)
        for name, parameter in block.named_parameters()
        if parameter.requires_grad
    }


# --- to confirm learning ----------------------------------------------------------------------------------------------


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
