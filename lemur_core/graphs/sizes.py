"""Which dimensions of a module's inputs are free, and its graphs at several sizes of them as one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lemur_core.graphs.canonical import canonical
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.recorder import Recorder
from lemur_core.graphs.symbolic import together
from lemur_core.graphs.trace import run

Shape = tuple[int, ...]
Inputs = tuple[list[Any], dict[str, Any]]
_RUNS = 80  # at most, to find out which dimensions are free


@dataclass(slots=True)
class Sized:
    """What a module computes at several sizes.

    Args:
        evaluated, trained: its graphs, with a `Size` where a number follows the inputs.
        free: the dimensions that were changed, as (input, dimension).
        shapes: of the inputs, in each run.
        further: shapes that were not traced together, to check the formulas at; None where nothing is free.
    """

    evaluated: Graph
    trained: Graph | None
    free: list[tuple[int, int]]
    shapes: list[list[Shape]]
    further: list[Shape] | None = None
    train_error: str = ""
    single: "Sized | None" = None  # at its own sizes alone


def resized(inputs: Inputs, shapes: Sequence[Shape]) -> Inputs:
    """The same inputs in other shapes: their elements again and again, in an order that no two rows share."""
    wanted = iter(shapes)

    def change(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape = next(wanted)
        if tuple(leaf.shape) == shape:
            return leaf
        if leaf.is_meta:
            return torch.empty(shape, dtype=leaf.dtype, device="meta")
        count = int(torch.Size(shape).numel())
        places = torch.randperm(count, generator=torch.Generator().manual_seed(0)) % max(leaf.numel(), 1)
        return leaf.detach().reshape(-1)[places].reshape(shape)

    changed: Inputs = tree_map(change, inputs)
    return changed


def shapes_of(inputs: Inputs) -> list[Shape]:
    """The shapes of the tensors in it."""
    args, kwargs = inputs
    return [tuple(leaf.shape) for leaf in tree_leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)]


def _live(leaf: Any) -> Any:
    """An input whose gradient counts; no leaf of autograd, so that it may be written to."""
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return leaf.detach().requires_grad_() * 1
    return leaf


class _Runs:
    def __init__(self, recorder: Recorder, module: nn.Module, inputs: Callable[[], Inputs]) -> None:
        self.recorder, self.module, self.inputs = recorder, module, inputs
        self.left = _RUNS
        self.error = ""
        self.known: dict[tuple[Shape, ...], Graph | None] = {}

    def graph(self, shapes: Sequence[Shape] | None, *, train: bool = False) -> Graph:
        """Raises: whatever the module raises."""
        with self.recorder.pause():
            args, kwargs = self.inputs()
            if shapes is not None:
                args, kwargs = resized((args, kwargs), shapes)
            with torch.enable_grad():
                args, kwargs = tree_map(_live, (args, kwargs))
        return canonical(run(self.recorder, self.module, args, kwargs, train=train))

    def tried(self, shapes: Sequence[Shape]) -> Graph | None:
        """The eval graph, where the module takes these shapes."""
        key = tuple(shapes)
        if key not in self.known:
            self.left -= 1
            try:
                self.known[key] = self.graph(shapes) if self.left >= 0 else None
            except Exception:  # noqa: BLE001 (foreign code raises anything)
                self.known[key] = None
        return self.known[key]


def trace_sizes(build: Callable[[], nn.Module], inputs: Callable[[], Inputs], device: str) -> Sized:
    """The graphs of a module, at its own sizes and, where it takes them, at others.

    Args:
        build: makes the module, while recording.
        inputs: makes what `forward` is given.

    Raises: whatever the module raises at its own sizes in eval mode; on the meta device where values are needed.
    """
    recorder = Recorder(device)
    with recorder.recording():
        module = build()
        runs = _Runs(recorder, module, inputs)
        with recorder.pause():
            own = shapes_of(inputs())
        evaluated = runs.known[tuple(own)] = runs.graph(None)
        trained, error = None, ""
        try:
            trained = runs.graph(None, train=True)
        except Exception as problem:  # noqa: BLE001
            error = f"{type(problem).__name__}: {problem}"
        single = Sized(evaluated, trained, [], [own], None, error)
        if recorder.reads_values:
            return single
        return _at_sizes(runs, own, single) or single


def _at_sizes(runs: _Runs, own: list[Shape], single: Sized) -> Sized | None:
    groups = _groups(own)
    base = list(own)
    free: list[tuple[tuple[int, int], ...]] = []
    steps: list[list[int]] = []
    for group in groups:
        size = own[group[0][0]][group[0][1]]
        taken = [other for other in _others(size) if runs.tried(_changed(base, group, other)) is not None][:6]
        if len(taken) < 3:
            continue
        moved = _changed(base, group, taken[0])
        free.append(group)
        steps.append(taken)
        base = moved
    if not free:
        return None
    points = [base]
    last = list(base)
    for group, taken in zip(free, steps, strict=True):
        alike = [size for size in taken[1:] if _joins(runs, base, _changed(base, group, size))]
        points += [_changed(base, group, size) for size in (alike[:-1] if len(alike) > 2 else alike)]
        last = _changed(last, group, alike[-1]) if alike else last
    points = [shapes for shapes in points if runs.tried(shapes) is not None]
    if len(points) < 3:
        return None
    for chosen in ([own, *points], points):
        evaluated = together([graph for shapes in chosen if (graph := runs.tried(shapes)) is not None])
        trained = None
        if evaluated is not None and single.trained is not None:
            trained = _trained(runs, chosen)
        if evaluated is not None and (trained is None) == (single.trained is None):
            dims = [one for group in free for one in group]
            return Sized(evaluated, trained, dims, chosen, last, single.train_error, single)
    return None


def _joins(runs: _Runs, one: Sequence[Shape], other: Sequence[Shape]) -> bool:
    """Whether the same operations run at both sizes."""
    graphs = [graph for shapes in (one, other) if (graph := runs.tried(shapes)) is not None]
    return len(graphs) == 2 and together(graphs) is not None


def _trained(runs: _Runs, chosen: Sequence[Sequence[Shape]]) -> Graph | None:
    try:
        return together([runs.graph(shapes, train=True) for shapes in chosen])
    except Exception:  # noqa: BLE001 (foreign code raises anything)
        return None


def _groups(own: Sequence[Shape]) -> list[tuple[tuple[int, int], ...]]:
    """Dimensions that change together: those of equal place and size, in all inputs of at least two dimensions."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, shape in enumerate(own):
        for dim, size in enumerate(shape):
            found.setdefault((dim, size), []).append((number, dim))
    return [tuple(members) for _, members in sorted(found.items(), key=lambda item: item[0][0])]


def _changed(shapes: Sequence[Shape], group: Sequence[tuple[int, int]], size: int) -> list[Shape]:
    made = [list(shape) for shape in shapes]
    for number, dim in group:
        made[number][dim] = size
    return [tuple(shape) for shape in made]


def _others(size: int) -> list[int]:
    """Sizes to try: some odd ones near it, then multiples, for what asks for a divisor."""
    if size < 14:
        near = [size + more for more in (1, 3, 6, 9, 10, 13)] if size > 2 else [3, 5, 6, 7, 9, 10]
        return [*near, size * 2, size * 3, size * 4]
    half = size // 2
    return [half + 1, half + 2, half + 5, half + 7, size * 3 // 4, size * 5 // 4, half, size + half, size * 2, size * 3]
