"""Prove that a rebuilt module equals the original: run both with the same state and seed, and compare every bit.

Compared are the outputs, the gradients of inputs and parameters, and the buffers after the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lemur_core.graphs.trace import flatten_tensors

Inputs = tuple[list[Any], dict[str, Any]]
Results = dict[str, Tensor | None]


def change_all(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor in a value."""
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, value)


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

    def run(self, module: nn.Module, mapping: Mapping[str, str] | None = None, takes: Sequence[int] = ()) -> Results:
        """Run a module and return its outputs, gradients and the buffers that it changed by name, in this order.

        Args:
            mapping: of a rebuilt module, the original's name of each parameter and buffer.
            takes: of a rebuilt module, the indices of the original's input tensors that it takes.
        Raises: any exception of the module.
        """
        names = mapping or {}
        module.train(self.train)
        module.zero_grad(set_to_none=True)
        before = {name: own.detach().clone() for name, own in module.named_buffers()}
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
            if mapping is not None:
                tensors = self.find([args, kwargs])
                args, kwargs = [tensors[number] for number in takes], {}
            self.seed()
            outputs = list(self.find(module(*args, **kwargs)))
            _run_backward([output for output in outputs if output.requires_grad and output.numel()])
        found: Results = {f"output {number}": output.detach() for number, output in enumerate(outputs)}
        found |= {f"gradient of input {number}": leaf.grad for number, leaf in enumerate(leaves)}
        found |= {f"gradient of {names.get(name, name)}": own.grad for name, own in module.named_parameters()}
        for name, own in module.named_buffers():
            if name not in before or _compare(own, before[name]):
                found[f"{names.get(name, name)} after the run"] = own.detach().clone()
        return found


def find_difference(theirs: Results, ours: Results, mapping: Mapping[str, str], tolerance: float = 0.0) -> str:
    """Return the first difference between the results of two modules, or "" if every bit is equal.

    Args:
        theirs, ours: of the original and of the rebuilt module.
        mapping: the original's name of each parameter and buffer, by the rebuilt module's name.
        tolerance: allow floating-point values to differ by this part of the largest one.
    """
    # Of its own state the rebuilt module may have more: a batch norm counts batches where the original does not.
    known = {form for name in mapping.values() for form in (f"gradient of {name}", f"{name} after the run")}
    added = [name for name in ours if name not in theirs and (name in known or name.startswith("output"))]
    for name in (*theirs, *added):
        one, other = ours.get(name), theirs.get(name)
        present = other if one is None else one
        if one is not None and other is not None:
            difference = _compare(one, other, tolerance)
        elif name.startswith("gradient") and (present is None or not present.any()):
            difference = ""  # no gradient is one of zero
        else:
            difference = f"only {'the original' if one is None else 'what was written'} has it"
        if difference:
            return f"{name}: {difference}"
    return ""


def _run_backward(outputs: Sequence[Tensor]) -> None:
    if not outputs:
        return
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for tensor in outputs:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        total = total + (real * torch.randn(real.shape, generator=generator).to(real.dtype)).sum()
    total.backward()  # type: ignore[no-untyped-call]


def _compare(ours: Tensor, theirs: Tensor, tolerance: float = 0.0) -> str:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        actual, expected = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (ours, theirs))
        return f"{actual} where the original has {expected}"
    differs = ~((ours == theirs) | ((ours != ours) & (theirs != theirs)))
    if tolerance and theirs.numel() and theirs.is_floating_point():
        differs &= ~((ours - theirs).abs() <= tolerance * theirs.abs().nan_to_num().max())
    return f"{int(differs.sum())} of {differs.numel()} values differ" if differs.any() else ""
