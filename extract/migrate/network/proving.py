"""Sandbox guest: verify a network with an inserted block against the original network.

The network is built as LEMUR's trainer builds it and run at the sizes of the original; its outputs must have the same
shapes. Then follow a backward pass, one batch with its own `train_setup` and `learn`, and a trace of its graph, which
shows whether the block contributes to a result.
"""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from extract.migrate.messages import Case, MigrationStep, NetworkProof, NetworkToProve
from extract.migrate.network.observing import learn, with_batch
from lemur_core.graphs.tracing.network import trace_network
from lemur_core.graphs.tracing.trace import flatten_tensors
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

_THREADS = 1


class _Failed(Exception):  # noqa: N818 (an outcome, not a fault)
    """A failed step."""

    def __init__(self, step: MigrationStep, why: str) -> None:
        super().__init__(why)
        self.step, self.why = step, why


def prove(request: NetworkToProve) -> NetworkProof:
    """Verify a network with an inserted block. Raises: MemoryError and the like, which the sandbox reports."""
    torch.set_num_threads(_THREADS)
    stub_weights()
    proof = NetworkProof([])
    try:
        _prove(request, proof)
    except _Failed as failure:
        proof.failed, proof.why = failure.step, failure.why
    return proof


def _prove(request: NetworkToProve, proof: NetworkProof) -> None:
    for number, (case, output) in enumerate(zip(request.cases, request.outputs, strict=True)):
        net, _ = _build(request, case)
        if number == 0:
            proof.proved.append("builds")
        _run(net, case, output)
    proof.proved += ["runs", "shape"]
    case = with_batch(request.cases[0])
    net, blocks = _build(request, case)
    trained = _trainable(blocks)
    proof.parameters = len(trained)
    _differentiate(net, case, blocks, trained)
    proof.proved.append("gradients")
    proof.moved = _learn(request)
    proof.proved.append("learns")
    proof.graph = _check_lead(request, type(blocks[0]).__qualname__)
    proof.proved += [] if proof.graph else ["leads"]


def _build(request: NetworkToProve, case: Case) -> tuple[Any, list[nn.Module]]:
    """Build the network; also return the instances of the block's class at the insertion point."""
    seed_all(0)
    try:
        file = execute(request.code)
        net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(request.prm))
    except NetError as error:
        raise _Failed("builds", error.detail) from error
    return net, _find_blocks(file, net, request)


def _find_blocks(file: ModuleType, net: nn.Module, request: NetworkToProve) -> list[nn.Module]:
    name, path = request.name, request.path
    try:
        holder = net.get_submodule(path)
    except AttributeError as error:
        raise _Failed("builds", f"there is no {path} in it: {error}") from error
    blocks = [one for one in holder.modules() if isinstance(one, getattr(file, name))]
    if not blocks:
        raise _Failed("builds", f"no {name} is in {path} once it is constructed")
    return blocks


def _run(net: nn.Module, case: Case, expected: Sequence[int]) -> None:
    inputs = make_inputs(dict(case))
    try:
        with step("runs", f"input {sizes(inputs.shape)}"), torch.no_grad():
            output = net.eval()(inputs)
    except NetError as error:
        raise _Failed("runs", error.detail) from error
    if not isinstance(output, Tensor) or list(output.shape) != list(expected):
        received = sizes(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise _Failed("shape", f"gives {received} for {sizes(inputs.shape)}, where {sizes(expected)} is wanted")
    if not bool(torch.isfinite(output).all()):
        raise _Failed("shape", "gives values that are not finite")


def _differentiate(net: Any, case: Case, blocks: list[nn.Module], trained: Mapping[str, nn.Parameter]) -> None:
    """Check that a finite gradient reaches each trainable parameter of the block, and its outputs."""
    gave: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _m, _i, out: gave.append(_retain_gradient(out))) for block in blocks]
    try:
        with step("gradients", "train mode"):
            outputs = [one for one in flatten_tensors(net.train()(make_inputs(dict(case)))) if one.requires_grad]
            generator = torch.Generator().manual_seed(0)
            weights = [torch.randn(one.shape, generator=generator) for one in outputs]
            torch.autograd.backward(outputs, weights)  # raises if there are no outputs
    except NetError as error:
        raise _Failed("gradients", error.detail) from error
    for hook in hooks:
        hook.remove()
    missing = sorted(name for name, one in trained.items() if one.grad is None)
    if missing:
        raise _Failed(
            "gradients", f"none reaches {', '.join(missing[:4])}: {len(missing)} of {len(trained)} parameters"
        )
    wrong = sorted(name for name, one in trained.items() if not bool(torch.isfinite(_gradient(one)).all()))
    if wrong:
        raise _Failed("gradients", f"that of {wrong[0]} is not finite")
    if not gave or all(one.grad is None for one in gave):
        raise _Failed("gradients", "none reaches what the block gives")


def _retain_gradient(output: Tensor) -> Tensor:
    """Return the output of a block, with its gradient retained."""
    if output.requires_grad:
        output.retain_grad()
    return output


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _learn(request: NetworkToProve) -> int:
    """Train one batch with the network's own code. Returns: the number of parameters of the block that changed."""
    _, blocks = _build(request, with_batch(request.cases[0]))  # with the same seed as for training
    before = _trainable(blocks)
    try:
        file, net, output = learn(request.code, request.cases[0], request.prm)
    except NetError as error:
        raise _Failed("learns", f"{error.category}: {error.detail}") from error
    if not bool(torch.isfinite(output).all()):
        raise _Failed("learns", "one batch makes outputs that are not finite")
    after = _trainable(_find_blocks(file, net, request))
    moved = sum(
        not torch.equal(old.detach(), new.detach()) for old, new in zip(before.values(), after.values(), strict=True)
    )
    if before and not moved:
        raise _Failed("learns", "one batch changes no parameter of the block")
    return moved


def _trainable(blocks: list[nn.Module]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of blocks, by name and number of the block."""
    return {
        f"{name} of {number}" if number else name: one
        for number, block in enumerate(blocks)
        for name, one in block.named_parameters()
        if one.requires_grad
    }


def _check_lead(request: NetworkToProve, name: str) -> str | None:
    """Check that operations of the block contribute to a result. Returns: the reason if that is unknown, else None."""
    trace = trace_network({"code": request.code, "prm": dict(request.prm), "cases": [dict(request.cases[0])]})
    if not trace["runs"]:
        return f"{trace['category']}: {trace['error']}"
    if name in trace["dead_classes"]:
        raise _Failed("leads", "no operation of the block leads to a result")
    return None
