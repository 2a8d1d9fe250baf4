"""Observe a call that works: what a block's row and spec say about it."""

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from extract.arguments.constructing import Arguments
from extract.arguments.forwarding import ForwardCall, evaluate, run
from extract.arguments.inputs import flatten, has_shape, value_text
from extract.arguments.probe import MODULE_NAME
from extract.arguments.refine import WorkingCalls, vary
from extract.arguments.trials import AttemptError, BlockNamespace


def describe(module: nn.Module) -> dict[str, Any]:
    """Return the numbers of parameters and buffers, and how often each type of layer occurs."""
    parameters = [p for p in module.parameters() if has_shape(p)]
    layers = Counter(type(layer).__name__ for layer in module.modules() if layer is not module)
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "buffers": sum(b.numel() for b in module.buffers() if has_shape(b)),
        "layers": dict(sorted(layers.items(), key=lambda item: (-item[1], item[0]))),
    }


def describe_case(called: ForwardCall, names: BlockNamespace, output: object) -> dict[str, Any]:
    """Describe the inputs and outputs of one call."""
    args, kwargs = evaluate(called, names)
    inputs: dict[str, str] = {}
    for name, value in [*((f"*{index}", item) for index, item in enumerate(args)), *kwargs.items()]:
        _list_inputs(name, value, inputs)
    return {"inputs": inputs, "outputs": [value_text(tensor) for tensor in flatten(output)][:32]}


def _list_inputs(name: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _list_inputs(f"{name}.{key}", item, into)
    elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        for index, item in enumerate(value):
            _list_inputs(f"{name}.{index}", item, into)
    elif isinstance(value, torch.Tensor):
        into[name] = value_text(value)
    else:
        into[name] = (
            value
            if isinstance(value, str)
            else repr(value)[:40]
            if isinstance(value, (int, float, bool, type(None), tuple))
            else value_text(value)
        )


def further_cases(module: nn.Module, called: ForwardCall, names: BlockNamespace) -> list[dict[str, Any]]:
    """Return the same call with another number of pixels or tokens, and another batch size, if they work."""
    cases = []
    for other in vary(WorkingCalls(Arguments(), called)):
        try:
            cases.append(describe_case(other, names, run(module, other, names)))
        except AttemptError:
            continue
    return cases


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Return whether two outputs are equal; NaN equals NaN."""
    return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if not a.is_floating_point() and not a.is_complex():
        return torch.equal(a, b)
    is_nan = torch.isnan(a)
    return torch.equal(is_nan, torch.isnan(b)) and torch.equal(a.masked_fill(is_nan, 0), b.masked_fill(is_nan, 0))


def find_nothing(module: nn.Module, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> str | None:
    """Return why a call that ended well shows nothing of what the class computes; None if it does."""
    filled = [tensor for tensor in outputs if tensor.numel()]
    if not filled:
        return "every tensor that it returned is empty"
    if all(t.is_floating_point() and t.layout is torch.strided and bool(t.isnan().all()) for t in filled):
        return "every value that it returned is NaN"
    code = getattr(inspect.getattr_static(type(module), "forward", None), "__code__", None)
    if code is not None and not code.co_filename.endswith(f"{MODULE_NAME}.py") and same(outputs, inputs):
        return "it returned its input, and no line of the class ran"
    return None
