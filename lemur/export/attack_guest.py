"""Sandbox guest: find inputs of a problem of KernelBench for which no trivial answer passes.

KernelBench takes a kernel for correct whose output is within 1e-2 of the block's, for some draws of its inputs. Zeros
pass where outputs are small, the input where a block hardly changes it, a stored output where inputs hardly count
(KernelBench, issue 165).
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from extract.arguments.search_guest import disable_denied
from extract.arguments.trials import SEED, AttemptError, attempt, load, seed_all

_TOLERANCE = 1e-2  # KernelBench's, absolute and relative
#: Factors of floating-point inputs, in the order in which they are tried, and how many are wanted.
_FACTORS = (1.0, 4.0, 16.0, 64.0, 0.25)
_RANGES = 2
_SHAPES = 2
_RANDOM = "draws at random"  # the block, so that its own output would not pass
_SEEDS = (1, 2)
_SECONDS = 60.0  # CPU seconds; the limits of the sandbox come first
_IMAGES = 4  # dimensions


@dataclass(frozen=True, slots=True)
class Problem:
    """The text of a problem with `calls` sets of inputs; `folders`: for the end of sys.path, with what it requires."""

    code: str
    calls: int
    folders: Sequence[str]


@dataclass(frozen=True, slots=True)
class Attacked:
    """What is left of a problem.

    Attributes:
        hackable: why a trivial answer would pass, or no correct one; None if neither is so.
        calls: the sets of inputs with which none passes, and `factors`, by which floating-point inputs are multiplied.
        layouts: 2 if the block takes images with their channels last, too.
    """

    hackable: str | None
    calls: Sequence[int]
    factors: Sequence[float]
    layouts: int


def attack(problem: Problem) -> Attacked | str:
    """Try trivial answers to a problem. Returns: what is left of it, or the error."""
    disable_denied()
    sys.path += problem.folders
    try:
        names = vars(attempt(partial(load, problem.code), _SECONDS))
        left: Attacked = attempt(partial(_attack, names, problem.calls), _SECONDS)
    except AttemptError as failure:
        return failure.message
    return left


def _attack(names: dict[str, Any], calls: int) -> Attacked:
    seed_all()
    model = names["Model"](*names["get_init_inputs"]())
    torch.manual_seed(SEED)  # as KernelBench does before it constructs an answer, and no other generator
    other = names["Model"](*names["get_init_inputs"]())

    def withstands(call: int, factor: float) -> bool:
        try:
            return not _find_passing(names, model, call, factor)
        except Exception:  # noqa: BLE001 (any exception of foreign code means that it does not run)
            return False

    passing = _find_passing(names, model, 0, 1.0)
    inputs = _draw(names, 0, 1.0, _SEEDS[0])
    ranges = _RANGES if any(map(_is_float, inputs)) else 1
    factors = [factor for factor in _FACTORS if withstands(0, factor)][:ranges]
    kept = [call for call in range(calls) if factors and all(withstands(call, factor) for factor in factors)]
    hackable = None
    if not factors:
        hackable = _RANDOM if _RANDOM in passing else f"within {_TOLERANCE:g}: {', '.join(passing)}"
    elif not _passes(_run(model, inputs), _run(other, inputs)):
        hackable = "parameters are not those of its seed"
    elif len(factors) < ranges:
        hackable = "one range of values alone"
    elif len(kept) < _SHAPES:
        hackable = "one shape alone"
    last = [value.to(memory_format=torch.channels_last) if _is_image(value) else value for value in inputs]
    try:
        takes = any(map(_is_image, inputs)) and _passes(_run(model, inputs), _run(model, last))
    except Exception:  # noqa: BLE001 (any exception of foreign code means that it does not take them)
        takes = False
    return Attacked(hackable, kept, factors, 1 + takes)


def _find_passing(names: dict[str, Any], model: nn.Module, call: int, factor: float) -> list[str]:
    """Return the trivial answers that pass for each draw of the inputs."""
    draws = [_draw(names, call, factor, seed) for seed in _SEEDS]
    outputs = [_run(model, inputs) for inputs in draws]
    if not all(output.isfinite().all() for output in outputs if output.is_floating_point()):
        return ["an output that is not finite"]
    seed_all()
    untouched = _read_generators()
    again = _run(model, draws[0])
    if _read_generators() != untouched or not _passes(outputs[0], again):
        return [_RANDOM]
    found = [
        {name for name, answer in _answer(inputs, output, other) if _passes(output, answer)}
        for inputs, output, other in zip(draws, outputs, reversed(outputs), strict=True)
    ]
    return sorted(set.intersection(*found))


def _answer(inputs: Sequence[Any], output: Tensor, other: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield trivial answers by name. Args: other: the output for another draw of the inputs."""
    yield "zeros", torch.zeros_like(output)
    yield "ones", torch.ones_like(output)
    first = next((value for value in inputs if isinstance(value, Tensor)), None)
    if first is not None:
        real = first.to(torch.float32)
        yield "the input", first
        yield "the input, negated", -real
        yield "the mean of the input", real.mean().expand(output.shape)
        if first.dim():
            yield "the mean of the input over its last axis", real.mean(-1, keepdim=True).expand_as(first)
    yield "another output", other
    if other.numel():
        real = other.to(torch.float32)
        yield "the mean of another output", real.mean().expand(output.shape)
        yield "the median of another output", real.median().expand(output.shape)
        if output.dim():
            yield "the mean of another output over the batch", real.mean(0, keepdim=True).expand(output.shape)


def _passes(output: Tensor, answer: Tensor) -> bool:
    return answer.shape == output.shape and torch.allclose(output.double(), answer.double(), _TOLERANCE, _TOLERANCE)


def _read_generators() -> tuple[float, float, float]:
    """Return the next number of each global generator, which is another one after a draw, however rarely that shows."""
    return torch.rand(()).item(), random.random(), float(np.random.random())


def _run(model: nn.Module, inputs: Sequence[Any]) -> Tensor:
    seed_all()
    with torch.no_grad():
        output = model(*[value.clone() if isinstance(value, Tensor) else value for value in inputs])
    assert isinstance(output, Tensor), "does not return one tensor"
    return output.real if output.is_complex() else output


def _draw(names: dict[str, Any], call: int, factor: float, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return [value * factor if _is_float(value) else value for value in names["get_inputs"](call)]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_image(value: Any) -> bool:
    return _is_float(value) and value.dim() == _IMAGES
