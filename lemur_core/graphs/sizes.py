"""Graphs with formulas: which dimensions of a module's inputs are free, and its graphs at several sizes as one.

All dimensions are changed at once, or all but one, to sizes that differ from each other; only where that fails, one at
a time first. Numbers that are the same in all runs are kept; one that differs becomes a `Size`: a formula over named
sizes that holds in every run. A number for which there is no formula becomes a named size itself, `U1`, of which only
the values in the runs are known. Each formula is checked at one more size of every dimension.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import gcd, isclose, prod
from typing import Any

from lemur_core.files import Json
from lemur_core.graphs.formulas import (
    NEAR,
    Size,
    evaluate_formula,
    find_formula,
    is_unknown,
    list_sizes,
    normalize_formula,
)
from lemur_core.graphs.graph import Argument, Graph, Node, TensorType

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

    def evaluate(self) -> dict[str, Graph]:
        """Return the graphs at the sizes of the first run: `eval`, and `train` unless there is no train mode."""
        forms = {"eval": evaluate_graph(self.evaluated)}
        if self.trained is not None:
            forms["train"] = forms["eval"] if self.trained is self.evaluated else evaluate_graph(self.trained)
        return forms

    def fix(self, why: str) -> "Sized":
        """Return both modes at the sizes of the first run alone."""
        forms = self.evaluate()
        return Sized(forms["eval"], forms.get("train"), {}, why)

    def to_json(self) -> Json:
        """Return the stored form: `sizes`, `fixed`, `eval`, and `train`, null if it equals eval mode or there is none.

        The caller's `train_error` tells these apart.
        """
        graphs = [self.evaluated.to_json()]
        graphs += [] if self.trained is None or self.trained == self.evaluated else [self.trained.to_json()]
        for graph in graphs:  # arguments as pairs: their order counts, and the lines of specs have sorted keys
            graph["nodes"] = [
                [op, _join_numbers(list(map(list, named.items()))), _join_numbers(types), scope]
                for op, named, types, scope in graph["nodes"]
            ]
        sizes = {name: list(values) for name, values in self.sizes.items()}
        return {"sizes": sizes, "fixed": self.fixed, "eval": graphs[0], "train": graphs[1] if graphs[1:] else None}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Sized":
        """Read both modes, which foreign code may have written.

        Args: stored: from `to_json`, with `train_error`, which is not null if there is no train mode.
        Returns: both graphs; `trained` is the same object as `evaluated` if the modes are equal, None without train
            mode.
        Raises: ValueError as `Graph.from_json` does.
        """
        try:
            sizes = {name: tuple(values) for name, values in stored["sizes"].items()}
            first = {name: values[0] for name, values in sizes.items()}
            graphs, error, fixed = (stored["eval"], stored["train"]), stored["train_error"], stored["fixed"]
        except (LookupError, TypeError, AttributeError) as missing:
            raise ValueError(f"no graphs of a module: {type(missing).__name__}: {missing}") from None
        evaluated = Graph.from_json(graphs[0], first)
        trained = None if error is not None else evaluated
        return cls(evaluated, trained if graphs[1] is None else Graph.from_json(graphs[1], first), sizes, fixed)


def _join_numbers(stored: Any) -> Any:
    """Return JSON whose rows of numbers are texts: a list of them may be a passage of the source, which no spec has."""
    if isinstance(stored, dict):
        return {name: _join_numbers(value) for name, value in stored.items()}
    if not isinstance(stored, list):
        return stored
    if len(stored) > 1 and all(type(item) in (int, float) for item in stored):
        return {"numbers": "×".join(map(repr, stored))}
    return list(map(_join_numbers, stored))


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
            return Sized(evaluated, self.trained and evaluated, symbols.list_distinct())
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
            return Sized(evaluated, named, symbols.list_distinct())
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


# --- the numbers of several runs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ObservedSize:
    """The values of one number in several runs."""

    values: tuple[float, ...]


def merge_runs(graphs: Sequence[Graph]) -> Graph | None:
    """Combine several runs into one graph that holds all values of each number that differs.

    Returns: None if the runs do not execute the same operations on the same values.
    """
    first = graphs[0]
    if any((graph.outputs, graph.writes) != (first.outputs, first.writes) for graph in graphs[1:]):
        return None
    try:
        nodes = tuple(_merge_nodes(runs) for runs in zip(*(graph.nodes for graph in graphs), strict=True))
    except ValueError:
        return None
    return Graph(nodes, first.outputs, first.writes)


def _merge_nodes(runs: Sequence[Node]) -> Node:
    """Combine one node of several runs. Raises: ValueError if they differ in more than numbers."""
    first, *others = runs
    if not all(_is_like(first, run) for run in others):
        raise ValueError(f"{first.op!r} is another operation in some runs")
    arguments = tuple(
        (items[0][0], _join([value for _, value in items]))
        for items in zip(*(run.arguments for run in runs), strict=True)
    )
    outputs = tuple(
        TensorType(kinds[0].dtype, _join([kind.shape for kind in kinds]))
        for kinds in zip(*(run.outputs for run in runs), strict=True)
    )
    return Node(first.op, arguments, outputs, first.scope, first.within)


def _is_like(one: Node, other: Node) -> bool:
    """Return whether two nodes are the same operation on the same values, whatever the numbers."""
    return (
        (one.op, one.scope, one.inputs) == (other.op, other.scope, other.inputs)
        and [name for name, _ in one.arguments] == [name for name, _ in other.arguments]
        and [(kind.dtype, len(kind.shape)) for kind in one.outputs]
        == [(kind.dtype, len(kind.shape)) for kind in other.outputs]
    )


def _join(values: Sequence[Argument]) -> Argument:
    """Combine one argument of several runs. Raises: ValueError if the runs differ in more than numbers."""
    first = values[0]
    if all(type(value) is type(first) and value == first for value in values):
        return first
    if all(type(value) is tuple and len(value) == len(first) for value in values):
        return tuple(_join(items) for items in zip(*values, strict=True))
    if all(type(value) in (int, float) for value in values):
        return _ObservedSize(tuple(values))
    raise ValueError(f"{first!r} differs between the runs in more than numbers")


@dataclass(slots=True)
class Symbols:
    """The sizes that formulas may name: first those of the inputs, then numbers without a formula.

    Args: values: by name, the values in all runs, starting with the original sizes.
    """

    values: dict[str, tuple[float, ...]]
    _known: dict[tuple[float, ...], str] = field(default_factory=dict)

    def list_distinct(self) -> dict[str, tuple[float, ...]]:
        """Return the distinct values of each size."""
        return {name: tuple(dict.fromkeys(values)) for name, values in self.values.items()}

    def replace_numbers(self, graph: Graph, runs: Sequence[int] | None = None) -> Graph:
        """Replace each number that differs, in a graph from `merge_runs`, with a `Size`.

        Args: runs: the runs in the graph; None for all.
        """
        return _map_numbers(graph, lambda observed: self._size(observed.values, runs), _ObservedSize)

    def _size(self, values: tuple[float, ...], runs: Sequence[int] | None) -> Size:
        if runs is None:
            if values not in self._known:
                text = find_formula(values, self.values) or self._product(values) or self._unknown(values)
                self._known[values] = normalize_formula(text)
            return Size(self._known[values], values[0])
        for known, text in self._known.items():
            if tuple(known[run] for run in runs) == values:
                return Size(text, values[0])
        atoms = {name: tuple(sizes[run] for run in runs) for name, sizes in self.values.items()}
        expression = find_formula(values, atoms)
        if expression is None:
            raise ValueError(f"no formula for {values}")
        return Size(normalize_formula(expression), values[0])

    def _product(self, values: tuple[float, ...]) -> str | None:
        """Find a product of two known numbers: `H // 2 * (W // 2)`, where a feature map is flattened."""
        if not all(values) or not all(type(value) is int for value in values):
            return None
        for known, text in list(self._known.items()):
            if any(not factor or value % factor for value, factor in zip(values, known, strict=True)):
                continue
            rest = tuple(value // factor for value, factor in zip(values, known, strict=True))
            other = self._known.get(rest) or find_formula(rest, self.values)
            if len(set(rest)) > 1 and other:
                return f"({text}) * ({other})"
        return None

    def _unknown(self, values: tuple[float, ...]) -> str:
        name = f"U{sum(map(is_unknown, self.values)) + 1}"
        self.values[name] = values
        return name


def evaluate_graph(graph: Graph, sizes: Mapping[str, float] | None = None) -> Graph:
    """Evaluate a graph at some sizes.

    Args: sizes: by name; None for the sizes of the first run.
    Returns: a graph in which every `Size` is a number.
    """
    return _map_numbers(graph, lambda size: size.value if sizes is None else evaluate_formula(size.text, sizes), Size)


def contradicts(graph: Graph, other: Graph, sizes: Mapping[str, float]) -> bool:
    """Return whether a symbolic graph disagrees with a real run at some sizes, ignoring numbers without a formula."""
    if (graph.outputs, graph.writes, len(graph.nodes)) != (other.outputs, other.writes, len(other.nodes)):
        return True
    if not all(map(_is_like, graph.nodes, other.nodes)):
        return True

    def agree(predicted: Argument, actual: Argument) -> bool:
        if isinstance(predicted, Size):
            if any(map(is_unknown, list_sizes(predicted.text))):
                return True
            value = evaluate_formula(predicted.text, sizes)
            return bool(value == actual or (type(actual) is float and isclose(value, actual, rel_tol=NEAR)))
        if type(predicted) is tuple:
            return type(actual) is tuple and len(predicted) == len(actual) and all(map(agree, predicted, actual))
        # Only NaN differs from itself.
        return type(predicted) is type(actual) and bool(predicted == actual or predicted != predicted)

    return not all(
        agree(tuple(value for _, value in node.arguments), tuple(value for _, value in real.arguments))
        and agree(tuple(kind.shape for kind in node.outputs), tuple(kind.shape for kind in real.outputs))
        for node, real in zip(graph.nodes, other.nodes, strict=True)
    )


def _map_numbers(graph: Graph, change: Callable[[Any], Argument], kind: type) -> Graph:
    def convert(value: Argument) -> Argument:
        if isinstance(value, kind):
            return change(value)
        if type(value) is tuple:
            return tuple(map(convert, value))
        return value

    def convert_node(old: Node) -> Node:
        outputs = tuple(TensorType(output.dtype, convert(output.shape)) for output in old.outputs)
        arguments = tuple((name, convert(value)) for name, value in old.arguments)
        return Node(old.op, arguments, outputs, old.scope, old.within)

    return replace(graph, nodes=tuple(map(convert_node, graph.nodes)))
