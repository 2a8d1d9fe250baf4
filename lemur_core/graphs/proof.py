"""Whether a rebuilt module is the original: both run side by side, with one state and one seed.

Compared are the outputs, the gradients of inputs and parameters, and the buffers after it, in eval and in train mode.
Equal means equal in every bit, or, where an operation is written in another way, nearer than `TOLERANCE` of the largest
value of the tensor (of gradients: also nearer than a thousandth of it of the largest gradient, below which they are
rounding).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lemur_core.graphs.sizes import Inputs

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs first, and by how much of the largest value; `bits`: nothing does, not in one bit."""

    what: str = ""
    error: float = 0.0

    @property
    def bits(self) -> bool:
        """Whether everything is equal in every bit."""
        return not self.what and self.error == 0.0


@dataclass(slots=True)
class _Run:
    outputs: list[Tensor]
    gradients: dict[str, Tensor | None]
    state: dict[str, Tensor]


def compare(
    original: nn.Module,
    rebuilt: nn.Module,
    mapping: Mapping[str, str],
    inputs: Callable[[], Inputs],
    seed: Callable[[], None],
    *,
    train: bool,
    gradients: bool = True,
) -> Difference:
    """How two modules differ that hold the same state.

    Args:
        mapping: the original's name of each parameter and buffer, by the rebuilt one's.
        inputs: what the original is given; the rebuilt module is given the tensors in it, in order.
        seed: seeds every random generator.
        gradients: whether these are compared; where the original cannot run so, its outputs and buffers can be.

    Raises: whatever the modules raise.
    """
    names = {old: new for new, old in mapping.items()}
    first = _run(original, lambda args, kwargs: original(*args, **kwargs), inputs, seed, {}, train, gradients)
    second = _run(
        rebuilt, lambda args, kwargs: rebuilt(*_tensors((args, kwargs))), inputs, seed, names, train, gradients
    )
    if len(first.outputs) != len(second.outputs):
        return Difference(f"{len(second.outputs)} outputs where the original has {len(first.outputs)}", 1.0)
    worst = 0.0
    for number, (ours, theirs) in enumerate(zip(second.outputs, first.outputs, strict=True)):
        found = _differ(f"output {number}", ours, theirs, 0.0)
        if found.what:
            return found
        worst = max(worst, found.error)
    largest = max((_largest(one) for one in first.gradients.values() if one is not None), default=0.0)
    known = set(mapping.values())
    for parts, floor in ((("gradients", largest * 1e-3)), ("state", 0.0)):
        theirs_all, ours_all = getattr(first, parts), getattr(second, parts)
        for name in theirs_all:
            if name not in known and not name.startswith("input "):
                continue
            found = _differ(f"{parts} of {name}", ours_all.get(name), theirs_all[name], floor)
            if found.what:
                return found
            worst = max(worst, found.error)
    return Difference("", worst)


def _tensors(inputs: Inputs) -> list[Tensor]:
    args, kwargs = inputs
    return [leaf for leaf in tree_leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)]


def _run(
    module: nn.Module,
    call: Callable[[list[Any], dict[str, Any]], Any],
    inputs: Callable[[], Inputs],
    seed: Callable[[], None],
    names: Mapping[str, str],
    train: bool,
    gradients_too: bool,
) -> _Run:
    module.train(train)
    module.zero_grad(set_to_none=True)
    seed()
    given = inputs()
    leaves = []

    def watch(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not gradients_too:
            return leaf
        leaves.append(leaf.detach().clone().requires_grad_())
        return leaves[-1] * 1  # what works in place may not write to a leaf

    with torch.set_grad_enabled(gradients_too):
        args, kwargs = tree_map(watch, given)
        seed()
        outputs = [leaf for leaf in tree_leaves(call(args, kwargs)) if isinstance(leaf, Tensor)]
        live = [one for one in outputs if one.requires_grad and one.numel()]
        if live:
            _backward(live)
    back = {new: old for old, new in names.items()}
    gradients: dict[str, Tensor | None] = {f"input {place}": leaf.grad for place, leaf in enumerate(leaves)}
    gradients |= {back.get(name, name): tensor.grad for name, tensor in module.named_parameters()}
    state = {back.get(name, name): tensor.detach().clone() for name, tensor in module.named_buffers()}
    return _Run([one.detach() for one in outputs], gradients, state)


def _backward(outputs: Sequence[Tensor]) -> None:
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for tensor in outputs:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        total = total + (real * torch.randn(real.shape, generator=generator).to(real.dtype)).sum()
    total.backward()  # type: ignore[no-untyped-call]


def _differ(what: str, ours: Tensor | None, theirs: Tensor | None, floor: float) -> Difference:
    if ours is None or theirs is None:
        one = ours if ours is not None else theirs
        return Difference("" if one is None or _largest(one) <= floor * TOLERANCE else f"{what}: only one has it", 0.0)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        here, there = (f"{one.dtype} {tuple(one.shape)}" for one in (ours, theirs))
        return Difference(f"{what}: {here} where the original has {there}", 1.0)
    if torch.equal(ours, theirs) or not ours.numel():
        return Difference()
    if torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs)) and torch.equal(ours.isnan(), theirs.isnan()):
        return Difference()
    if not (ours.is_floating_point() or ours.is_complex()):
        return Difference(f"{what}: other values", 1.0)
    scale = max(_largest(theirs), floor, 1e-30)
    error = float(torch.nan_to_num(ours - theirs, nan=float("inf")).abs().max()) / scale
    return Difference(f"{what}: differs by {error:.1e} of the largest value" if error > TOLERANCE else "", error)


def _largest(tensor: Tensor) -> float:
    return float(torch.nan_to_num(tensor).abs().max()) if tensor.numel() else 0.0
