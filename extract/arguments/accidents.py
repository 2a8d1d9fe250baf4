"""Inside the sandbox: signs that a call which works is not what the authors mean.

    return x / x.sum(1, keepdim=True)     # of (2, 16, 24) something else than of (2, 16): which is meant, no call shows

Each is measured with the inputs of the call, changed in one way; in eval mode, under one seed.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from extract.arguments.forwarding import ForwardCall, evaluate
from extract.arguments.trials import AttemptError, BlockNamespace, attempt, seed_all
from extract.arguments.values.inputs import change_nested, flatten

_COPIES = 3
_MOST_ELEMENTS = 100_000  # of all inputs: each sign takes some runs
_SECONDS = 5.0  # of CPU time for one run

Change = Callable[[torch.Tensor], torch.Tensor]


def list_other_ranks(module: nn.Module, called: ForwardCall, names: BlockNamespace) -> list[int]:
    """Return with how many dimensions the inputs run, too, and what is computed then is something else.

    Copies of an input along one more axis give copies of its output where an axis more is one that nothing looks at.
    """
    inputs = _list_inputs(called, names)
    rank = inputs[0].dim() if inputs else 0
    if not rank or sum(tensor.numel() for tensor in inputs) > _MOST_ELEMENTS:
        return []

    def take(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.select(axis, 0) if tensor.dim() == rank else tensor

    def copy_taken(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.select(axis, 0).unsqueeze(axis).expand_as(tensor) if tensor.dim() == rank else tensor

    def copy(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.stack([tensor] * _COPIES, axis) if tensor.dim() == rank else tensor

    others = []
    for other, axes in ((rank - 1, sorted({0, 1, rank - 1})), (rank + 1, sorted({0, 1, rank}))):
        verdicts = []
        for axis in axes if other else ():
            fewer: Change = partial(take, axis=axis) if other < rank else torch.clone
            more: Change = partial(copy_taken if other < rank else copy, axis=axis)
            verdicts.append(_are_copies(*(_run(module, called, names, change) for change in (fewer, more))))
        if False in verdicts and True not in verdicts:
            others.append(other)
    return others


def _are_copies(lower: list[torch.Tensor], upper: list[torch.Tensor]) -> bool | None:
    """Return whether the outputs for copies are equal to the other ones, or copies; None if either call fails."""
    if not lower or not upper:
        return None
    return len(lower) == len(upper) and all(
        _close(one, many) or any(_close(one.squeeze(), many.select(axis, 0).squeeze()) for axis in range(many.dim()))
        for one, many in zip(lower, upper, strict=True)
    )


def mixes_samples(module: nn.Module, called: ForwardCall, names: BlockNamespace) -> bool:
    """Return whether the output of the first sample is another one beside other samples.

    The first axis is that of samples where the first input and an output have as many. False if there are none.
    """
    inputs = _list_inputs(called, names)
    batch = len(inputs[0]) if inputs and inputs[0].dim() > 1 else 0
    if batch == 1 or not batch or sum(tensor.numel() for tensor in inputs) > _MOST_ELEMENTS:
        return False
    others = iter(_list_inputs(called, names, seed=1))

    def change(tensor: torch.Tensor) -> torch.Tensor:
        other = next(others, tensor)
        is_batch = tensor.dim() > 0 and len(tensor) == batch
        return torch.cat([tensor[:1], other[1:]]) if is_batch and other.shape == tensor.shape else tensor

    first, second = _run(module, called, names, torch.clone), _run(module, called, names, change)
    pairs = list(zip(first, second, strict=False))
    return len(first) == len(second) and any(
        one.dim() > 0 and len(one) == batch and one.shape == other.shape and not _close(one[:1], other[:1])
        for one, other in pairs
    )


def _list_inputs(called: ForwardCall, names: BlockNamespace, seed: int = 0) -> list[torch.Tensor]:
    seed_all(seed)
    return flatten(list(evaluate(called, names)))


def _run(module: nn.Module, called: ForwardCall, names: BlockNamespace, change: Change) -> list[torch.Tensor]:
    """Return the tensors of the output for changed inputs; none if the call fails so."""
    try:
        seed_all()
        args, kwargs = change_nested(list(evaluate(called, names)), change)
        seed_all()
        with torch.no_grad():
            return flatten(attempt(partial(module, *args, **kwargs), _SECONDS))
    except (AttemptError, RuntimeError, IndexError):  # of a changed input, too
        return []


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-4, equal_nan=True)
