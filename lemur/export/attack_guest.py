"""Sandbox guest: find inputs of a problem of KernelBench for which no trivial answer passes.

KernelBench takes a kernel for correct whose output is within 1e-2 of the block's, for some draws of its inputs. Zeros
pass where outputs are small, the input where a block hardly changes it, a stored output where inputs hardly count
(KernelBench, issue 165).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from extract.arguments.search_guest import disable_denied
from extract.arguments.trials import AttemptError, attempt, load, seed_all

TOLERANCE = 1e-2  # KernelBench's, absolute and relative
#: Factors of floating-point inputs, in the order in which they are tried.
FACTORS = (1.0, 4.0, 16.0, 64.0, 0.25)
#: In place of an answer: the block draws at random, so that its own output would not pass.
RANDOM = "draws at random"
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
        passed: the trivial answers that pass for the inputs as they are stated.
        calls: the sets of inputs with which none passes, and `factors`, by which floating-point inputs are multiplied.
        channels_last: whether the block takes images in that memory layout, too.
    """

    passed: Sequence[str]
    calls: Sequence[int]
    factors: Sequence[float]
    channels_last: bool


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
    passed = _find_passing(names, model, 0, 1.0)
    factors = [factor for factor in FACTORS if _withstands(names, model, 0, factor)][:2]
    inputs = _draw(names, 0, 1.0, _SEEDS[0])
    if factors and not any(_is_float(value) for value in inputs):
        factors = factors[:1]
    kept = [n for n in range(calls) if factors and all(_withstands(names, model, n, one) for one in factors)]
    last = [value.to(memory_format=torch.channels_last) if _is_image(value) else value for value in inputs]
    try:
        takes = any(map(_is_image, inputs)) and _passes(_run(model, inputs), _run(model, last))
    except Exception:  # noqa: BLE001 (any exception of foreign code means that it does not take them)
        takes = False
    return Attacked(passed, kept, factors, takes)


def _withstands(names: dict[str, Any], model: nn.Module, call: int, factor: float) -> bool:
    """Return whether a call runs with inputs multiplied by a factor, and no trivial answer passes."""
    try:
        return not _find_passing(names, model, call, factor)
    except Exception:  # noqa: BLE001 (any exception of foreign code means that it does not run)
        return False


def _find_passing(names: dict[str, Any], model: nn.Module, call: int, factor: float) -> list[str]:
    """Return the trivial answers that pass for each draw of the inputs."""
    draws = [_draw(names, call, factor, seed) for seed in _SEEDS]
    outputs = [_run(model, inputs) for inputs in draws]
    if not all(output.isfinite().all() for output in outputs if output.is_floating_point()):
        return ["an output that is not finite"]
    if not _passes(outputs[0], _run(model, draws[0], _SEEDS[1])):
        return [RANDOM]
    passing: set[str] | None = None
    for number, (inputs, output) in enumerate(zip(draws, outputs, strict=True)):
        answers = _answer(inputs, output, outputs[1 - number])
        found = {name for name, answer in answers if _passes(output, answer)}
        passing = found if passing is None else passing & found
    return sorted(passing or ())


def _answer(inputs: Sequence[Any], output: Tensor, other: Tensor) -> Iterator[tuple[str, Tensor | None]]:
    """Yield trivial answers by name; None, or of another shape, where there is none.

    Args: other: the output for another draw of the inputs.
    """
    yield "zeros", torch.zeros_like(output)
    yield "ones", torch.ones_like(output)
    first = next((value for value in inputs if isinstance(value, Tensor)), None)
    if first is not None:
        yield "the input", first
        yield "the input, negated", first.neg() if first.dtype is not torch.bool else None
        real = first.to(torch.float32)
        yield "the mean of the input", real.mean().expand(output.shape)
        if first.shape == output.shape and first.dim():
            yield "the mean of the input over its last axis", real.mean(-1, keepdim=True).expand(output.shape)
    yield "another output", other
    if other.numel():
        real = other.to(torch.float32)
        yield "the mean of another output", real.mean().expand(output.shape)
        yield "the median of another output", real.median().expand(output.shape)
        if output.dim():
            yield "the mean of another output over the batch", real.mean(0, keepdim=True).expand(output.shape)


def _passes(output: Tensor, answer: Tensor | None) -> bool:
    return (
        answer is not None
        and answer.shape == output.shape
        and torch.allclose(output.to(torch.float64), answer.to(torch.float64), atol=TOLERANCE, rtol=TOLERANCE)
    )


def _run(model: Callable[..., Any], inputs: Sequence[Any], seed: int = 0) -> Tensor:
    seed_all()
    torch.manual_seed(seed)
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
