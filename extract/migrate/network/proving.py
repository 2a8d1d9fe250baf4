"""Sandbox guest: verify a network with an inserted block against the original network.

The network is built as LEMUR's trainer builds it and run at the sizes of the original; its outputs must have the same
shapes. Then follow a backward pass, one batch with its own `train_setup` and `learn`, and a trace of its graph, which
shows whether the block contributes to a result.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from extract.migrate.network.observing import learn, with_batch
from lemur_core.graphs.tracing.network import trace_network
from lemur_core.graphs.tracing.trace import tensors_of
from lemur_core.sandbox.net import NetError, construct, execute, inputs_of, seed_all, sizes, step, stub_weights, tuples

#: The steps, in order.
STEPS = ("builds", "runs", "shape", "gradients", "learns", "leads")

_THREADS = 1


class _Failed(Exception):  # noqa: N818 (an outcome, not a fault)
    """A failed step."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(why)
        self.step, self.why = step, why


def prove(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Verify a network with an inserted block.

    Args:
        payload: `code`, `prm`; `cases`, as for `lemur_core.sandbox.net.run_network`, and `outputs`, the required
            output shape of each; `name`, the block's class in the file; `path`, the submodule that contains it.

    Returns: `proved`, the steps that succeeded (see `STEPS`); `failed`, the step that did not, or null, and `why`;
        `parameters`, the number of trainable tensors of the block; `moved`, how many of them changed in training;
        `graph`, the reason why there is no graph, or null.
    Raises: MemoryError and the like, which the sandbox reports.
    """
    torch.set_num_threads(_THREADS)
    stub_weights()
    result: dict[str, Any] = {"proved": [], "failed": None, "why": "", "parameters": 0, "moved": 0, "graph": None}
    try:
        _prove(payload, result)
    except _Failed as failure:
        result |= {"failed": failure.step, "why": failure.why}
    return result


def _prove(payload: Mapping[str, Any], result: dict[str, Any]) -> None:
    for number, (case, output) in enumerate(zip(payload["cases"], payload["outputs"], strict=True)):
        net, _ = _build(payload, case)
        if number == 0:
            result["proved"].append("builds")
        _run(net, case, output)
    result["proved"] += ["runs", "shape"]
    case = with_batch(payload["cases"][0])
    net, blocks = _build(payload, case)
    trained = _trainable(blocks)
    result["parameters"] = len(trained)
    _differentiate(net, case, blocks, trained)
    result["proved"].append("gradients")
    result["moved"] = _learn(payload)
    result["proved"].append("learns")
    result["graph"] = _check_lead(payload, type(blocks[0]).__qualname__)
    result["proved"] += [] if result["graph"] else ["leads"]


def _build(payload: Mapping[str, Any], case: Mapping[str, Any]) -> tuple[Any, list[nn.Module]]:
    """Build the network; also return the instances of the block's class at the insertion point."""
    seed_all(0)
    try:
        file = execute(payload["code"])
        net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(payload["prm"]))
    except NetError as error:
        raise _Failed("builds", error.detail) from error
    return net, _find_blocks(file, net, payload)


def _find_blocks(file: ModuleType, net: nn.Module, payload: Mapping[str, Any]) -> list[nn.Module]:
    name, path = payload["name"], payload["path"]
    try:
        holder = net.get_submodule(path)
    except AttributeError as error:
        raise _Failed("builds", f"there is no {path} in it: {error}") from error
    blocks = [one for one in holder.modules() if isinstance(one, getattr(file, name))]
    if not blocks:
        raise _Failed("builds", f"no {name} is in {path} once it is constructed")
    return blocks


def _run(net: nn.Module, case: Mapping[str, Any], expected: list[int]) -> None:
    inputs = inputs_of(dict(case))
    try:
        with step("runs", f"input {sizes(inputs.shape)}"), torch.no_grad():
            output = net.eval()(inputs)
    except NetError as error:
        raise _Failed("runs", error.detail) from error
    if not isinstance(output, Tensor) or list(output.shape) != expected:
        received = sizes(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise _Failed("shape", f"gives {received} for {sizes(inputs.shape)}, where {sizes(expected)} is wanted")
    if not bool(torch.isfinite(output).all()):
        raise _Failed("shape", "gives values that are not finite")


def _differentiate(
    net: Any, case: Mapping[str, Any], blocks: list[nn.Module], trained: Mapping[str, nn.Parameter]
) -> None:
    """Check that a finite gradient reaches each trainable parameter of the block, and its outputs."""
    gave: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _m, _i, out: gave.append(_retain_gradient(out))) for block in blocks]
    try:
        with step("gradients", "train mode"):
            outputs = [one for one in tensors_of(net.train()(inputs_of(dict(case)))) if one.requires_grad]
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


def _learn(payload: Mapping[str, Any]) -> int:
    """Train one batch with the network's own code. Returns: the number of parameters of the block that changed."""
    _, blocks = _build(payload, with_batch(payload["cases"][0]))  # with the same seed as for training
    before = _trainable(blocks)
    try:
        file, net, output = learn(payload["code"], payload["cases"][0], payload["prm"])
    except NetError as error:
        raise _Failed("learns", f"{error.category}: {error.detail}") from error
    if not bool(torch.isfinite(output).all()):
        raise _Failed("learns", "one batch makes outputs that are not finite")
    after = _trainable(_find_blocks(file, net, payload))
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


def _check_lead(payload: Mapping[str, Any], name: str) -> str | None:
    """Check that operations of the block contribute to a result. Returns: the reason if that is unknown, else None."""
    trace = trace_network({"code": payload["code"], "prm": dict(payload["prm"]), "cases": [dict(payload["cases"][0])]})
    if not trace["runs"]:
        return f"{trace['category']}: {trace['error']}"
    if name in trace["dead_classes"]:
        raise _Failed("leads", "no operation of the block leads to a result")
    return None
