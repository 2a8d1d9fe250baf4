"""Check whether a rebuilt module equals the original: run both side by side, with the same state and seed.

Compares the outputs, the gradients of inputs and parameters, and the buffers after the run, in eval and in train mode.
Equal means bit-identical, or, where an operation is written differently, within `TOLERANCE` of the largest value of the
tensor (gradients: also within `TOLERANCE` of a thousandth of the largest gradient; below that they are rounding noise).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lemur_core.graphs.trace import flatten_tensors

Inputs = tuple[list[Any], dict[str, Any]]
TOLERANCE = 1e-4


def change_all(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor in a value."""
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, value)


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The first difference, if any, and the largest error relative to the largest value."""

    what: str = ""
    error: float = 0.0


@dataclass(slots=True)
class ObservedRun:
    """The observable results of a run."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]
    state: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Trial:
    """How to run a module.

    Args:
        inputs: builds the arguments of the original.
        seed: seeds every random generator.
        gradients: whether to compute them; without them, outputs and buffers can still be compared.
        find: returns the tensors in arguments or results, in order.
        change: applies a function to each of these tensors in a value.
    """

    inputs: Callable[[], Inputs]
    seed: Callable[[], None]
    train: bool
    gradients: bool = True
    find: Callable[[Any], Sequence[Tensor]] = flatten_tensors
    change: Callable[[Any, Callable[[Tensor], Tensor]], Any] = change_all

    def run(self, module: nn.Module) -> ObservedRun:
        """Run the original. Raises: any exception of its own."""
        return self._run(module, lambda args, kwargs: module(*args, **kwargs), {})

    def run_rebuilt(self, module: nn.Module, mapping: Mapping[str, str], takes: Sequence[int] | None) -> ObservedRun:
        """Run a rebuilt module, with results under the names of the original. Raises: any exception of its own."""

        def call(args: list[Any], kwargs: dict[str, Any]) -> Any:
            tensors = self.find([args, kwargs])
            return module(*(tensors if takes is None else (tensors[number] for number in takes)))

        return self._run(module, call, mapping)

    def _run(self, module: nn.Module, call: Callable[[Any, Any], Any], names: Mapping[str, str]) -> ObservedRun:
        module.train(self.train)
        module.zero_grad(set_to_none=True)
        # Seeded twice, because inputs may draw numbers, too, and the module must draw the same ones in both runs.
        self.seed()
        inputs = self.inputs()
        leaves: list[Tensor] = []

        def watch(leaf: Tensor) -> Tensor:
            if not leaf.is_floating_point() or not self.gradients:
                return leaf
            leaves.append(leaf.detach().clone().requires_grad_())
            return leaves[-1] * 1  # an in-place operation may not write to a leaf

        with torch.set_grad_enabled(self.gradients):
            args, kwargs = self.change(list(inputs), watch)
            self.seed()
            outputs = list(self.find(call(args, kwargs)))
            live = [output for output in outputs if output.requires_grad and output.numel()]
            if live:
                _backward(live)
        gradients: dict[str, Tensor | None] = {f"input {index}": leaf.grad for index, leaf in enumerate(leaves)}
        gradients |= {names.get(name, name): tensor.grad for name, tensor in module.named_parameters()}
        state = {names.get(name, name): tensor.detach().clone() for name, tensor in module.named_buffers()}
        return ObservedRun([output.detach() for output in outputs], gradients, state)


def compare(
    original: nn.Module,
    rebuilt: nn.Module,
    mapping: Mapping[str, str],
    trial: Trial,
    takes: Sequence[int] | None = None,
) -> OutputDifference:
    """Compare two modules with the same state.

    Args:
        mapping: the original's name of each parameter and buffer, by the rebuilt module's name.
        trial: how both are run; each run builds its own inputs.
        takes: indices of the original's input tensors that the rebuilt module takes, in order; None for all.

    Returns: the first difference in outputs, gradients or state, or else the largest error without a text.
    Raises: any exception of the modules.
    """
    first, second = trial.run(original), trial.run_rebuilt(rebuilt, mapping, takes)
    if len(first.outputs) != len(second.outputs):
        return OutputDifference(f"{len(second.outputs)} outputs where the original has {len(first.outputs)}", 1.0)
    outputs = zip(second.outputs, first.outputs, strict=True)
    pairs = [(f"output {number}", ours, theirs, 0.0) for number, (ours, theirs) in enumerate(outputs)]
    # A gradient far below the largest one is rounding noise, so it is not compared on its own scale.
    floor = (
        max((_largest(gradient) for gradient in first.gradients.values() if gradient is not None), default=0.0) * 1e-3
    )
    known = set(mapping.values())
    for part, least in (("gradients", floor), ("state", 0.0)):
        ours_all, theirs_all = getattr(second, part), getattr(first, part)
        # The rebuilt module leaves out parameters and buffers that nothing reads.
        names = (name for name in theirs_all if name in known or name.startswith("input "))
        pairs += [(f"{part} of {name}", ours_all.get(name), theirs_all[name], least) for name in names]
    largest_error = 0.0
    for pair in pairs:
        difference = _differ(*pair)
        if difference.what:
            return difference
        largest_error = max(largest_error, difference.error)
    return OutputDifference("", largest_error)


def _backward(outputs: Sequence[Tensor]) -> None:
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for tensor in outputs:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        total = total + (real * torch.randn(real.shape, generator=generator).to(real.dtype)).sum()
    total.backward()  # type: ignore[no-untyped-call]


def _differ(what: str, ours: Tensor | None, theirs: Tensor | None, floor: float) -> OutputDifference:
    if ours is None or theirs is None:
        present = ours if ours is not None else theirs
        negligible = present is None or _largest(present) <= floor * TOLERANCE
        return OutputDifference("" if negligible else f"{what}: only one has it", 0.0)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        actual, expected = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (ours, theirs))
        return OutputDifference(f"{what}: {actual} where the original has {expected}", 1.0)
    if torch.equal(ours, theirs) or not ours.numel():
        return OutputDifference()
    if not (ours.is_floating_point() or ours.is_complex()):
        return OutputDifference(f"{what}: other values", 1.0)
    finite = torch.isfinite(theirs)
    if not torch.equal(finite, torch.isfinite(ours)):
        return OutputDifference(f"{what}: other values that are not finite", 1.0)
    ours, theirs = ours[finite], theirs[finite]
    scale = max(_largest(theirs), floor, 1e-30)
    error = float((ours - theirs).abs().max()) / scale if ours.numel() else 0.0
    return OutputDifference(f"{what}: differs by {error:.1e} of the largest value" if error > TOLERANCE else "", error)


def _largest(tensor: Tensor) -> float:
    return float(torch.nan_to_num(tensor).abs().max()) if tensor.numel() else 0.0
