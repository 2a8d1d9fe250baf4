"""What is seen of a block as it runs: sizes, layers, shapes for several inputs, train against eval mode."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from extract.probing.forwarding import Called, as_call, evaluate, parameters_of, run
from extract.probing.running import Mistake, Namespace, has_shape
from extract.probing.tensors import Inputs, Tensor, change_tensors, flatten, told

_OTHER_SIZES = 2


def describe(module: nn.Module) -> dict[str, Any]:
    """Sizes and the bag of layers."""
    parameters = [p for p in module.parameters() if has_shape(p)]
    layers = Counter(type(layer).__name__ for layer in module.modules() if layer is not module)
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "buffers": sum(b.numel() for b in module.buffers() if has_shape(b)),
        "layers": dict(sorted(layers.items(), key=lambda item: (-item[1], item[0]))),
    }


def case_of(called: Called, names: Namespace, output: object) -> dict[str, Any]:
    """What went in and what came out."""
    args, kwargs = evaluate(called, names)
    inputs: dict[str, str] = {}
    for name, value in [*((f"*{place}", item) for place, item in enumerate(args)), *kwargs.items()]:
        _tell(name, value, inputs)
    return {"inputs": inputs, "outputs": [told(tensor) for tensor in flatten(output)][:32]}


def _tell(name: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _tell(f"{name}.{key}", item, into)
    elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        for place, item in enumerate(value):
            _tell(f"{name}.{place}", item, into)
    elif isinstance(value, torch.Tensor):
        into[name] = told(value)
    else:
        into[name] = (
            value
            if isinstance(value, str)
            else repr(value)[:40]
            if isinstance(value, (int, float, bool, type(None), tuple))
            else told(value)
        )


def further_cases(module: nn.Module, called: Called, names: Namespace) -> list[dict[str, Any]]:
    """The same call with other numbers of pixels or tokens, and another batch, where they work."""
    if called.inputs is None:
        return []
    cases = []
    parameters = parameters_of(module)
    for change in (_larger, _one_more):
        inputs = _changed(called.inputs, change)
        if inputs == called.inputs:
            continue
        other = as_call(inputs, parameters)
        try:
            cases.append(case_of(other, names, run(module, other, names)))
        except Mistake:
            continue
        if len(cases) == _OTHER_SIZES:
            break
    return cases


def _changed(inputs: Inputs, change: Any) -> Inputs:
    return tuple((name, change_tensors(value, change)) for name, value in inputs)


def _larger(tensor: Tensor) -> Tensor:
    """Twice the pixels on a side, twice the tokens."""
    shape = tensor.shape
    if len(shape) in (4, 5) and shape[-1] == shape[-2] and shape[-1] <= 64:
        return tensor.with_shape((*shape[:-2], 2 * shape[-2], 2 * shape[-1]))
    if len(shape) == 3 and shape[1] <= 256:
        return tensor.with_shape((shape[0], 2 * shape[1], shape[2]))
    return tensor


def _one_more(tensor: Tensor) -> Tensor:
    """One more in the batch."""
    return tensor.with_shape((tensor.shape[0] + 1, *tensor.shape[1:])) if len(tensor.shape) > 2 else tensor


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Whether two outputs are equal, NaN included."""
    return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if not a.is_floating_point() and not a.is_complex():
        return torch.equal(a, b)
    lost = torch.isnan(a)
    return torch.equal(lost, torch.isnan(b)) and torch.equal(a.masked_fill(lost, 0), b.masked_fill(lost, 0))
