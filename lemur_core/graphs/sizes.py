"""Determine which dimensions of a module's inputs are free, and combine its graphs at several sizes into one.

All dimensions are changed at once, or all but one, to sizes that differ from each other; only where that fails, one at
a time first. Each formula derived from these runs is checked at one more size of every dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import gcd, prod

from lemur_core.graphs.graph import Graph
from lemur_core.graphs.symbolic import Size, Symbols, contradicts, merge_runs

Shape = tuple[int, ...]
#: Runs a module at some shapes of its inputs, in train mode if `train` is true; raises anything on failure.
Go = Callable[[Sequence[Shape], bool], Graph]
_Group = tuple[tuple[int, int], ...]  # dimensions that change together, each as (input, dimension)
_Free = Sequence[tuple[_Group, list[int]]]  # with the sizes that worked

_SIZES_PER_DIMENSION = 3  # additional sizes per dimension
_NO_FORMULA = "other sizes run, too, and no formula for them holds"
_MAX_OPERATIONS = 12_000  # total number of operations of all runs
_OVERHEAD = 40  # fixed cost of a run, in operations


@dataclass(slots=True)
class Sized:
    """The computation of a module at several sizes.

    Args:
        evaluated, trained: its graphs, with a `Size` wherever a number depends on the inputs.
        sizes: the free input sizes, then numbers without a formula, by name: their values in all runs, starting with
            the module's own sizes.
        fixed: the reason why a dimension is not free that others may change; None if there is none.
    """

    evaluated: Graph
    trained: Graph | None
    sizes: dict[str, tuple[float, ...]] = field(default_factory=dict)
    fixed: str | None = None


def trace_sizes(go: Go, own: Sequence[Shape], evaluated: Graph, trained: Graph | None) -> Sized:
    """Trace a module at every size that it accepts.

    Args:
        go: runs the module on inputs of some shapes, in train mode or not, and returns the canonical graph.
        own: shapes of its inputs in the graphs passed here.
        evaluated, trained: its graphs at these shapes.
    Returns: the graphs with formulas, or the graphs passed here, with the reason, if no size can change.
    """
    runs = _Runs(go, tuple(own), evaluated, trained)
    if (sized := runs.at_once()) is not None:
        return sized
    free = runs.free()
    # Dimensions that can change alone may not change together: give up the last ones first.
    for number in range(len(free), 0, -1):
        sized = runs.together(free[:number])
        if sized is not None:
            sized.fixed = None if number == len(free) else _NO_FORMULA
            return sized
    why = "other operations run at other sizes" if free and runs.left >= 0 else runs.why
    return Sized(evaluated, trained, {}, why)


class _Runs:
    def __init__(self, go: Go, own: tuple[Shape, ...], evaluated: Graph, trained: Graph | None) -> None:
        self.go, self.own, self.evaluated, self.trained = go, own, evaluated, trained
        self.cost = len(evaluated.nodes) + _OVERHEAD
        self.left = _MAX_OPERATIONS
        self.why = "no other size is taken" if any(own) else "no input has a size"
        self.known: dict[tuple[Shape, ...], Graph | None] = {self.own: evaluated}

    def at(self, shapes: tuple[Shape, ...], *, train: bool = False) -> Graph | None:
        """Return the graph at some shapes; None if the module rejects them or executes other operations there."""
        if not train and shapes in self.known:
            return self.known[shapes]
        self.left -= self.cost
        own = self.trained if train else self.evaluated
        graph = None
        if self.left < 0:
            self.why = "too many operations to run it at further sizes"
        elif own is not None:
            try:
                graph = self.go(shapes, train)
            except (MemoryError, PermissionError):
                raise  # the sandbox reports the exceeded limit or denied access
            except Exception:  # noqa: BLE001 (foreign code raises anything)
                graph = None
            if graph is not None and merge_runs([own, graph]) is None:
                self.why, graph = "other operations run at other sizes", None
        if not train:
            self.known[shapes] = graph
        return graph

    def free(self) -> _Free:
        """Return the dimensions that can be changed alone."""
        free = []
        for group in _groups(self.own):
            proposed = _propose_sizes(self._size(group))
            sizes = (other for other in proposed if self.at(_change_size(self.own, group, other)) is not None)
            taken = list(islice(sizes, _SIZES_PER_DIMENSION))
            # With the module's own size, three points: two would fit any linear formula.
            if len(taken) >= _SIZES_PER_DIMENSION - 1:
                free.append((group, taken))
        return free

    def at_once(self) -> Sized | None:
        """Combine runs in which every dimension but at most one changes; None if the module rejects all such."""
        groups = _groups(self.own)
        for fixed in (None, *reversed(groups)):
            free = [
                (group, _propose_sizes(self._size(group))[:_SIZES_PER_DIMENSION]) for group in groups if group != fixed
            ]
            # Each run pairs other sizes, its own among them: a number that two dimensions decide fits no one of them.
            points = [self.own] * (_SIZES_PER_DIMENSION + 1)
            for number, (group, taken) in enumerate(free):
                sizes = [*taken, self._size(group)]
                points = [
                    _change_size(shapes, group, sizes[(turn + number) % len(sizes)])
                    for turn, shapes in enumerate(points)
                ]
            if free and self.at(points[0]) is not None:
                sized = self._combine(free, points)
                others = _propose_sizes(self._size(fixed))[:_SIZES_PER_DIMENSION] if sized and fixed else []
                if sized and any(self.at(_change_size(self.own, fixed or (), other)) for other in others):
                    sized.fixed = _NO_FORMULA
                return sized
        return None

    def together(self, free: _Free) -> Sized | None:
        """Combine all runs; None if the module rejects these sizes together, or a formula does not hold."""
        mixed = self.own  # changes all dimensions at once, for formulas of several
        for number, (group, taken) in enumerate(free):
            mixed = _change_size(mixed, group, taken[-1 - number % len(taken)])
        return self._combine(
            free, [*(_change_size(self.own, group, size) for group, taken in free for size in taken), mixed]
        )

    def _combine(self, free: _Free, points: Sequence[tuple[Shape, ...]]) -> Sized | None:
        """Combine the runs at some shapes; None if the module rejects one, or a formula does not hold elsewhere."""
        points = list(dict.fromkeys((self.own, *points)))
        for turn in range(2):
            check = self.own
            for number, (group, taken) in enumerate(free):
                check = _change_size(check, group, _further(self._size(group), taken, number + turn * len(free)))
            graphs = [self.at(shapes) for shapes in points]
            if None in graphs:
                return None
            sized = self._name_sizes(free, points, [graph for graph in graphs if graph is not None])
            if sized is None or not self._holds(sized, free, check):
                points.append(check)  # formulas that fail there are fitted to it, too
            elif far := self._find_contradiction(sized, free, turn):
                points.append(far)
            else:
                return sized
        return None

    def _find_contradiction(self, sized: Sized, free: _Free, turn: int) -> tuple[Shape, ...] | None:
        """Return much larger shapes that the module takes, and where a formula or a number does not hold.

        Near sizes hide a stride: 9 to 18 rows halved three times are one or two, as a constant would be. A batch hides
        nothing.
        """
        far = self.own
        for group, taken in free:
            if group[0][1] > 0:
                size = self._size(group)
                least = max(_FAR, 2 * max(size, *taken) + 2)
                far = _change_size(far, group, _further(size, taken, turn, least))
        if far == self.own or max(map(prod, far), default=0) > _FAR_ELEMENTS:
            return None
        graph = self.at(far)
        return far if graph is not None and contradicts(sized.evaluated, graph, self._sizes_at(free, far)) else None

    def _size(self, group: _Group) -> int:
        return self.own[group[0][0]][group[0][1]]

    def _name_sizes(self, free: _Free, points: list[tuple[Shape, ...]], graphs: list[Graph]) -> Sized | None:
        joined = merge_runs(graphs)
        if joined is None:
            return None
        by_point = [self._sizes_at(free, shapes) for shapes in points]
        symbols = Symbols({name: tuple(sizes[name] for sizes in by_point) for name in by_point[0]})
        evaluated = symbols.replace_numbers(joined)
        if self.trained is None or self.trained == self.evaluated:
            return Sized(evaluated, self.trained and evaluated, _distinct(symbols))
        # Runs in train mode are not shared with eval mode: take all only if a number of the few has no formula.
        few = [0, len(points) - 1]
        for some in (few, list(range(len(points)))):
            runs = [self.at(points[index], train=True) if index else self.trained for index in some]
            trained = merge_runs([run for run in runs if run is not None]) if None not in runs else None
            if trained is None:
                return None
            try:
                named = symbols.replace_numbers(trained, None if len(some) == len(points) else some)
            except ValueError:
                continue
            return Sized(evaluated, named, _distinct(symbols))
        return None

    def _sizes_at(self, free: _Free, shapes: tuple[Shape, ...]) -> dict[str, int]:
        """Return the free sizes of some shapes by name."""
        groups = [group for group, _ in free]
        return {name: shapes[g[0][0]][g[0][1]] for name, g in zip(_names(self.own, groups), groups, strict=True)}

    def _holds(self, sized: Sized, free: _Free, shapes: tuple[Shape, ...]) -> bool:
        """Return whether the formulas hold for a run that none of them was fitted to."""
        sizes = self._sizes_at(free, shapes)
        evaluated = self.at(shapes)
        if evaluated is None or contradicts(sized.evaluated, evaluated, sizes):
            return False
        if sized.trained is None or sized.trained is sized.evaluated:
            return True
        trained = self.at(shapes, train=True)
        return trained is not None and not contradicts(sized.trained, trained, sizes)


def _distinct(symbols: Symbols) -> dict[str, tuple[float, ...]]:
    return {name: tuple(dict.fromkeys(values)) for name, values in symbols.values.items()}


def _groups(own: Sequence[Shape]) -> list[_Group]:
    """Group the dimensions that change together: those with equal index and size in all inputs."""
    members_by_key: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, shape in enumerate(own):
        for dim, size in enumerate(shape):
            members_by_key.setdefault((dim, size), []).append((number, dim))
    return [tuple(members) for _, members in sorted(members_by_key.items(), key=lambda item: item[0][0])]


_LETTERS = {1: "N", 2: "BN", 3: "BNC", 4: "BCHW", 5: "BCDHW"}


def _names(own: Sequence[Shape], groups: Sequence[_Group]) -> list[str]:
    """Name dimensions by their index: B, C, H and W for a batch of images."""
    names: list[str] = []
    changed = {suffix for group in groups for suffix in group}
    for group in groups:
        number, dim = group[0]
        letters = _LETTERS.get(len(own[number]), "")
        if len(own[number]) == 4 and (number, 1) in changed and (number, 3) not in changed:
            letters = "BHWC"  # channels last
        name = letters[dim] if letters else f"N{dim}"
        further = (f"{name}{suffix}" if suffix > 1 else name for suffix in count(1))
        names.append(next(letter for letter in further if letter not in names))
    return names


def _change_size(shapes: Sequence[Shape], group: _Group, size: int) -> tuple[Shape, ...]:
    changed = [list(shape) for shape in shapes]
    for number, dim in group:
        changed[number][dim] = size
    return tuple(tuple(shape) for shape in changed)


#: A size beyond what strides and windows hide, and the elements of an input up to which it is tried.
_FAR, _FAR_ELEMENTS = 98, 2**22


def _propose_sizes(size: int) -> list[int]:
    """Return sizes to try: some odd ones nearby, then multiples, for modules that require a divisor."""
    if size < 14:
        near = [size + more for more in (1, 3, 6, 9)] if size > 2 else [3, 5, 6, 7]
        return [*near, size * 2, size * 3, size * 4]
    half = size // 2
    return [half + 1, half + 2, half + 5, half + 7, half, size + half, size * 2, size * 3]


def _further(size: int, taken: Sequence[int], number: int, least: int = 0) -> int:
    """Return a size not used yet, with the same step as those used; a different one for each `number`."""
    step = gcd(*(abs(other - size) for other in taken))
    lowest = min(size, *taken)
    others = (lowest + step * turn for turn in count(max(1, -((lowest - least) // step))))
    return next(islice((other for other in others if other != size and other not in taken), number, None))


def propose_new_shapes(sized: Sized, own: Sequence[Shape]) -> list[list[Shape]]:
    """Propose shapes that were not run: sizes between the tested ones, then combinations of tested ones.

    Args:
        sized: from `trace_sizes`.
        own: the shapes of the first run, including inputs that it does not use.
    Returns: the shapes of all inputs, per attempt, in the order to try; none if no size is free.
    """
    free: dict[str, tuple[int, int]] = {}
    for node in sized.evaluated.nodes:
        if node.op == "input":
            for dim, size in enumerate(node.outputs[0].shape):
                if isinstance(size, Size):
                    free.setdefault(size.text, (node.get("number"), dim))
    candidates: list[list[Shape]] = []
    for turn in range(_TURNS if free else 0):
        shapes = tuple(own)
        for position, (name, (number, dim)) in enumerate(free.items()):
            size = own[number][dim]
            group = next(group for group in _groups(own) if (number, dim) in group)
            taken = [int(other) for other in dict.fromkeys(sized.sizes[name]) if other != size]
            known = turn + 1 == _TURNS
            chosen = taken[(position + 1) % len(taken)] if known else _further(size, taken, position + turn)
            shapes = _change_size(shapes, group, chosen)
        candidates.append(list(shapes))
    return candidates


_TURNS = 4
