"""What is asked of attention: it weighs its input by what it sees elsewhere in it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from train.trial import BATCH, Make, Misfit, signed, stirred, trial

_SIZES = ((16, 16), (12, 8))
_MOST_GATE = 2.0  # what a gate multiplies with: twice a sigmoid is in use
_ROUNDING = 1e-4
_SCALES = ((1.0, 8.0), (64.0, 512.0))  # at the larger ones, what saturates has saturated
_SAME = 0.05


def check_attention(make: Make, values: Mapping[str, int]) -> dict[str, Any]:
    """Keeps the shape of maps of several sizes, has parameters, and attends.

    It attends if it gates (the output is the input, each value times a factor from 0 to 2 that depends on other values)
    or sees all (one corner of the map has a say in the opposite one). A normalisation does neither: it gives the same
    whatever the scale. Tells which, and whether zeros give zeros.
    """
    channels = values["channels"]
    for height, width in _SIZES:
        trial(make, (BATCH, channels, height, width))
    if not any(parameter.requires_grad for parameter in make().parameters()):
        raise Misfit(3, "has no parameters")
    module = stirred(make())
    inputs = signed((BATCH, channels, *_SIZES[0]))
    with torch.no_grad():
        output = module(inputs.clone())
        if torch.equal(output, inputs):
            raise Misfit(3, "gives its input back unchanged")
        for small, large in _SCALES:
            if _close(module(inputs * large), module(inputs * small)):
                raise Misfit(3, f"normalises: {large:g} times its input gives the same output as {small:g} times")
        zero = module(torch.zeros_like(inputs))
        gates, sees_all = _gates(module, inputs, output), _sees_all(module, inputs, output)
    if not gates and not sees_all:
        raise Misfit(3, "attends to nothing: it neither gates its input nor sees all of the map")
    return {"gates": gates, "sees_all": sees_all, "zero_to_zero": bool((zero == 0).all())}


def _gates(module: nn.Module, inputs: Tensor, output: Tensor) -> bool:
    ratio = output / inputs
    if not bool(((ratio >= -_ROUNDING) & (ratio <= _MOST_GATE + _ROUNDING)).all()):
        return False
    some = torch.zeros_like(inputs, dtype=torch.bool)
    some[:, ::2, ::3, ::3] = True
    without = module(inputs.masked_fill(some, 0.0))
    if bool(without[some].any()):
        return False
    return not torch.equal(without[~some], output[~some])


def _sees_all(module: nn.Module, inputs: Tensor, output: Tensor) -> bool:
    moved = inputs.clone()
    moved[:, :, 0, 0] += 10.0
    return not torch.equal(module(moved)[:, :, -1, -1], output[:, :, -1, -1])


def _close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= _SAME * float(other.abs().max())
