"""Inside the sandbox: a network that was given a block, next to the one that it was made from: does all of it work?

Built as LEMUR's trainer builds it; run at the sizes of the host, with outputs of the host's shapes; a backward pass;
one batch through its own `train_setup` and `learn`; and its graph, which tells whether the block leads to a result.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from extract.migrate.network.observing import batched, learn
from lemur_core.graphs.tracing.network import trace_network
from lemur_core.graphs.tracing.trace import tensors_of
from lemur_core.sandbox.net import NetError, construct, execute, inputs_of, seed_all, sizes, step, stub_weights, tuples

#: The steps, in their order.
STEPS = ("builds", "runs", "shape", "gradients", "learns", "leads")

_THREADS = 1


class _Failed(Exception):  # noqa: N818 (an outcome, not a fault)
    """A step that did not come through."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(why)
        self.step, self.why = step, why


def prove(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Try a network in which a block was put.

    Args:
        payload: `code`, `prm`; `cases`, as `lemur_core.sandbox.net.run_network` takes them, and `outputs`, the shape
            that must come out of each; `name`, of the block's class in the file; `path`, of what holds it.

    Returns: `proved`, the steps that came through (see `STEPS`); `failed`, the one that did not, or null, and `why`;
        `parameters`, tensors of the block that are trained; `moved`, of how many of them learning changed the values;
        `graph`, why there is no graph, or null.
    Raises: MemoryError and the like, which the sandbox tells.
    """
    torch.set_num_threads(_THREADS)
    stub_weights()
    found: dict[str, Any] = {"proved": [], "failed": None, "why": "", "parameters": 0, "moved": 0, "graph": None}
    try:
        _prove(payload, found)
    except _Failed as failure:
        found |= {"failed": failure.step, "why": failure.why}
    return found


def _prove(payload: Mapping[str, Any], found: dict[str, Any]) -> None:
    for number, (case, output) in enumerate(zip(payload["cases"], payload["outputs"], strict=True)):
        net, _ = _built(payload, case)
        if number == 0:
            found["proved"].append("builds")
        _run(net, case, output)
    found["proved"] += ["runs", "shape"]
    case = batched(payload["cases"][0])
    net, blocks = _built(payload, case)
    trained = _trained(blocks)
    found["parameters"] = len(trained)
    _differentiate(net, case, blocks, trained)
    found["proved"].append("gradients")
    found["moved"] = _learn(payload)
    found["proved"].append("learns")
    found["graph"] = _lead(payload, type(blocks[0]).__qualname__)
    found["proved"] += [] if found["graph"] else ["leads"]


def _built(payload: Mapping[str, Any], case: Mapping[str, Any]) -> tuple[Any, list[nn.Module]]:
    """The network, and the instances of the block's class at the site."""
    seed_all(0)
    try:
        file = execute(payload["code"])
        net = construct(file, tuples(case["in_shape"]), tuples(case["out_shape"]), dict(payload["prm"]))
    except NetError as error:
        raise _Failed("builds", error.detail) from error
    return net, _blocks_of(file, net, payload)


def _blocks_of(file: ModuleType, net: nn.Module, payload: Mapping[str, Any]) -> list[nn.Module]:
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
        given = sizes(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise _Failed("shape", f"gives {given} for {sizes(inputs.shape)}, where {sizes(expected)} is wanted")
    if not bool(torch.isfinite(output).all()):
        raise _Failed("shape", "gives values that are not finite")


def _differentiate(
    net: Any, case: Mapping[str, Any], blocks: list[nn.Module], trained: Mapping[str, nn.Parameter]
) -> None:
    """A finite gradient reaches each trained parameter of the block, and what it gives."""
    gave: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _m, _i, out: gave.append(_kept(out))) for block in blocks]
    try:
        with step("gradients", "train mode"):
            outputs = [one for one in tensors_of(net.train()(inputs_of(dict(case)))) if one.requires_grad]
            generator = torch.Generator().manual_seed(0)
            weights = [torch.randn(one.shape, generator=generator) for one in outputs]
            torch.autograd.backward(outputs, weights)  # no outputs: PyTorch says so
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


def _kept(output: Tensor) -> Tensor:
    """What a block gives, so that its gradient is kept."""
    if output.requires_grad:
        output.retain_grad()
    return output


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _learn(payload: Mapping[str, Any]) -> int:
    """One batch through the network's own training. Returns: how many parameters of the block it changed."""
    _, blocks = _built(payload, batched(payload["cases"][0]))  # under the seed under which it will learn
    before = _trained(blocks)
    try:
        file, net, output = learn(payload["code"], payload["cases"][0], payload["prm"])
    except NetError as error:
        raise _Failed("learns", f"{error.category}: {error.detail}") from error
    if not bool(torch.isfinite(output).all()):
        raise _Failed("learns", "one batch makes outputs that are not finite")
    after = _trained(_blocks_of(file, net, payload))
    moved = sum(
        not torch.equal(old.detach(), new.detach()) for old, new in zip(before.values(), after.values(), strict=True)
    )
    if before and not moved:
        raise _Failed("learns", "one batch changes no parameter of the block")
    return moved


def _trained(blocks: list[nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters of blocks that are trained, by name and number of the block."""
    return {
        f"{name} of {number}" if number else name: one
        for number, block in enumerate(blocks)
        for name, one in block.named_parameters()
        if one.requires_grad
    }


def _lead(payload: Mapping[str, Any], name: str) -> str | None:
    """Whether operations of the block's class lead to a result. Returns: why that is not known, None if they do."""
    told = trace_network({"code": payload["code"], "prm": dict(payload["prm"]), "cases": [dict(payload["cases"][0])]})
    if not told["runs"]:
        return f"{told['category']}: {told['error']}"
    if name in told["dead_classes"]:
        raise _Failed("leads", "no operation of the block leads to a result")
    return None
