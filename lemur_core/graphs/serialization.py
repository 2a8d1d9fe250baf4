"""Serialization of graphs for specs: readable JSON that is read back as the same graphs.

`{"form": 1, "torch": VERSION, "operations": […], "nodes": […], "outputs": ["%7"], "writes": [["%1", "%5.1"]]}`.
`operations` lists each operation once with the names of its arguments: `["softmax", "input", "dim"]`. A node consists
of the index of its operation there, its arguments in that order, the types of its outputs (`float32 2×16×8×8`), and
its scope, 0 if equal to that of the previous node. `%7` is the value of node 7, `%7.1` its second output. A tuple of
numbers is `3×3`; a tuple of one number is a list. A number that depends on the inputs is a formula over their sizes,
`=(H+1)÷2`; inside a tuple and a type, without the sign.

The graph of train mode is written as its difference from eval mode: `"7…31"` repeats the nodes 7 to 31 of eval mode,
reading the train counterparts of what they read; `[12, […]]` is the counterpart of node 12; other nodes are new.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lemur_core.files import Json
from lemur_core.graphs.graph import FORM, TORCH, Argument, Graph, Node, Ref, TensorType, check_version
from lemur_core.graphs.modes import match_nodes
from lemur_core.graphs.sizes import Sized
from lemur_core.graphs.symbolic import Size, evaluate_formula, evaluate_graph, normalize_formula

_REF = re.compile(r"%(\d+)(?:\.(\d+))?")
_ROW = re.compile(r"[^×]+(?:×[^×]+)+")
_RUN = re.compile(r"(\d+)…(\d+)")
_NUMBER = re.compile(r"-?\d+")
_SCALAR = "scalar"
_MOST_NODES = 1_000_000
_SIGNS = (("**", "^"), ("//", "÷"), ("*", "·"), (" ", ""))

_Form = tuple[str, ...]  # an operation and the names of its arguments


def serialize(graph: Graph, sizes: Mapping[str, Sequence[float]] | None = None, evaluated: Graph | None = None) -> Json:
    """Serialize a graph.

    Args:
        sizes: the values of the sizes that formulas name; the first values count.
        evaluated: the graph of eval mode; if present, write the difference from it.
    """
    forms = {} if evaluated is None else dict.fromkeys(map(_form, evaluated.nodes))
    before = len(forms)
    forms |= dict.fromkeys(map(_form, graph.nodes))
    writer = _GraphWriter({form: index for index, form in enumerate(forms)}, _first(sizes))
    nodes = writer.whole(graph.nodes) if evaluated is None else writer.difference(graph, evaluated)
    return {
        "form": FORM,
        "torch": TORCH,
        "operations": [list(form) for form in list(forms)[before:]],
        "nodes": nodes,
        "outputs": [_ref(ref) for ref in graph.outputs],
        "writes": [[_ref(target), _ref(value)] for target, value in graph.writes],
    }


def deserialize(
    stored: Mapping[str, Any], sizes: Mapping[str, Sequence[float]] | None = None, evaluated: Graph | None = None
) -> Graph:
    """Read a serialized graph.

    Args:
        stored: from `serialize`.
        sizes: the values of the sizes that formulas name; the first values count.
        evaluated: the graph of eval mode, if this one was written as the difference from it.

    Returns: the graph; numbers that were formulas are a `Size` again.
    Raises: ValueError if the graph has another form, was recorded by another torch, or is malformed.
    """
    check_version(stored)
    try:
        before = () if evaluated is None else dict.fromkeys(map(_form, evaluated.nodes))
        reader = _GraphReader([*before, *map(tuple, stored["operations"])], _first(sizes))
        reader.read(stored["nodes"], evaluated)
        writes = tuple((reader.value(target), reader.value(value)) for target, value in stored["writes"])
        return Graph(tuple(reader.nodes), tuple(reader.value(ref) for ref in stored["outputs"]), writes)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a graph: {type(error).__name__}: {error}") from error


# --- writing ----------------------------------------------------------------------------------------------------------


def _form(node: Node) -> _Form:
    return (node.op, *(name for name, _ in node.arguments))


def _first(sizes: Mapping[str, Sequence[float]] | None) -> dict[str, float]:
    return {name: values[0] for name, values in (sizes or {}).items()}


@dataclass(frozen=True, slots=True)
class _GraphWriter:
    places: Mapping[_Form, int]
    sizes: Mapping[str, float]

    def whole(self, nodes: Sequence[Node]) -> list[Any]:
        scopes = [None, *(node.scope for node in nodes)]
        return [self.node(node, before) for node, before in zip(nodes, scopes, strict=False)]

    def node(self, node: Node, before: str | None = None) -> list[Any]:
        types = [f"{kind.dtype} {'×'.join(map(self.number, kind.shape)) or _SCALAR}" for kind in node.outputs]
        scope = 0 if node.scope and node.scope == before else node.scope
        return [self.places[_form(node)], *(self.argument(value) for _, value in node.arguments), *types, scope]

    def difference(self, graph: Graph, evaluated: Graph) -> list[Any]:
        items: list[Any] = []
        same: list[int] = []
        counterparts: dict[int, int] = {}  # eval node -> its counterpart in train mode

        def close() -> None:
            if same:
                items.append(f"{same[0]}…{same[-1]}")
                same.clear()

        for index, other in enumerate(match_nodes(evaluated, graph)):
            node = graph.nodes[index]
            if other is not None and _is_counterpart(node, evaluated.nodes[other], counterparts):
                if same and other != same[-1] + 1:
                    close()
                same.append(other)
            else:
                close()
                items.append(self.node(node) if other is None else [other, self.node(node)])
            if other is not None:
                counterparts[other] = index
        close()
        return items

    def number(self, value: Any) -> str:
        if not isinstance(value, Size):
            return repr(value)
        text = value.text
        for python, sign in _SIGNS:
            text = text.replace(python, sign)
        # If a formula only approximates the value, the value is written as well, to restore the same bits.
        exact = repr(evaluate_formula(value.text, self.sizes)) == repr(value.value)
        return text if exact else f"{text}≈{value.value!r}"

    def argument(self, value: Argument) -> Any:
        if isinstance(value, Ref):
            return _ref(value)
        if isinstance(value, Size):
            return f"={self.number(value)}"
        if isinstance(value, tuple):
            numbers = all(isinstance(item, int | float | Size) and not isinstance(item, bool) for item in value)
            return "×".join(map(self.number, value)) if numbers and len(value) > 1 else list(map(self.argument, value))
        # A text that would be read as a reference, a shape or a formula.
        if isinstance(value, str) and (_REF.fullmatch(value) or "×" in value or value.startswith("=")):
            return {"text": value}
        if isinstance(value, float) and not -float("inf") < value < float("inf"):
            return {"float": str(value)}
        return value


def _key(node: Node) -> tuple[Any, ...]:
    """Key a node by its scope and types, too, since `==` does not distinguish 1, 1.0 and True."""
    return node.op, repr(node.arguments), node.outputs, node.scope


def _is_counterpart(node: Node, evaluated: Node, counterparts: Mapping[int, int]) -> bool:
    """Return whether a node of train mode is an eval node that reads the counterparts of what that reads."""
    known = all(ref.node in counterparts for ref in evaluated.inputs)
    return known and _key(_renumber(evaluated, counterparts)) == _key(node)


def _renumber(node: Node, counterparts: Mapping[int, int]) -> Node:
    return node.move(lambda ref: Ref(counterparts[ref.node], ref.output))


def _ref(ref: Ref) -> str:
    return f"%{ref.node}.{ref.output}" if ref.output else f"%{ref.node}"


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _GraphReader:
    forms: Sequence[_Form]
    sizes: Mapping[str, float]
    nodes: list[Node] = field(default_factory=list)

    def read(self, stored: Sequence[Any], evaluated: Graph | None) -> None:
        counterparts: dict[int, int] = {}
        for item in stored:
            if isinstance(item, str) and evaluated is not None:
                if (match := _RUN.fullmatch(item)) is None:
                    raise ValueError(f"{item!r} are no nodes")
                for other in range(int(match[1]), int(match[2]) + 1):
                    if len(self.nodes) == _MOST_NODES:
                        raise ValueError(f"more than {_MOST_NODES:,} nodes")
                    self.nodes.append(_renumber(evaluated.nodes[other], counterparts))
                    counterparts[other] = len(self.nodes) - 1
                continue
            # A node in place of one of eval mode; the last item of any other is its scope.
            if isinstance(item[-1], list):
                counterparts[item[0]] = len(self.nodes)
                item = item[1]
            self.nodes.append(self._node(item))

    def _node(self, stored: Sequence[Any]) -> Node:
        op, *names = self.forms[stored[0]]
        arguments = tuple((name, self.value(value)) for name, value in zip(names, stored[1:], strict=False))
        types = tuple(map(self._type, stored[1 + len(names) : -1]))
        # 0: the scope of the node before.
        scope = stored[-1] if stored[-1] != 0 else self.nodes[-1].scope
        if not all(isinstance(text, str) for text in (op, scope, *names)):
            raise ValueError("a name is not a text")
        return Node(op, arguments, types, scope)

    def value(self, stored: Any) -> Argument:
        if isinstance(stored, list):
            return tuple(map(self.value, stored))
        if isinstance(stored, dict):
            return float(stored["float"]) if "float" in stored else stored["text"]
        if isinstance(stored, str):
            if match := _REF.fullmatch(stored):
                return Ref(int(match[1]), int(match[2] or 0))
            if stored.startswith("="):
                return self._number(stored[1:])
            if _ROW.fullmatch(stored):
                return tuple(map(self._number, stored.split("×")))
        return stored

    def _number(self, source: str) -> Any:
        try:
            return _parse_number(source)
        except ValueError:
            text, _, value = source.partition("≈")
        for python, sign in _SIGNS[:-1]:
            text = text.replace(sign, python)
        return Size(normalize_formula(text), _parse_number(value) if value else evaluate_formula(text, self.sizes))

    def _type(self, text: str) -> TensorType:
        dtype, _, shape = text.partition(" ")
        return TensorType(dtype, () if shape == _SCALAR else tuple(map(self._number, shape.split("×"))))


def _parse_number(text: str) -> float:
    return int(text) if _NUMBER.fullmatch(text) else float(text)


# --- both modes -------------------------------------------------------------------------------------------------------


def store(sized: Sized) -> Json:
    """Serialize both modes, as JSON.

    Args: sized: from `trace_sizes`.
    Returns: `sizes`, `fixed`, `eval`, and `train`, which is null if it equals eval mode or there is none; the caller's
        `train_error` tells these apart.
    """
    trained = None if sized.trained == sized.evaluated else sized.trained
    return {
        "sizes": {name: list(values) for name, values in sized.sizes.items()},
        "fixed": sized.fixed,
        "eval": serialize(sized.evaluated, sized.sizes),
        "train": None if trained is None else serialize(trained, sized.sizes, sized.evaluated),
    }


def restore(stored: Mapping[str, Any]) -> Sized:
    """Read both modes.

    Args: stored: from `store`, with `train_error`, which is not null if there is no train mode.
    Returns: both graphs; `trained` is the same object as `evaluated` if the modes are equal, None without train mode.
    Raises: ValueError as `deserialize` does.
    """
    try:
        sizes = {name: tuple(values) for name, values in stored["sizes"].items()}
        first, second, error, fixed = (stored[name] for name in ("eval", "train", "train_error", "fixed"))
    except (LookupError, TypeError, AttributeError) as missing:
        raise ValueError(f"another notation of graphs: {type(missing).__name__}: {missing}") from missing
    evaluated = deserialize(first, sizes)
    trained = None if error is not None else evaluated
    if second is not None:
        trained = deserialize(second, sizes, evaluated)
    return Sized(evaluated, trained, sizes, fixed)


def fix_sizes(stored: Mapping[str, Any], why: str) -> Json:
    """Return both modes at the sizes of the first run alone. Args: stored: from `store`."""
    sized = restore(stored)
    trained = None if sized.trained is None else evaluate_graph(sized.trained)
    return store(Sized(evaluate_graph(sized.evaluated), trained, {}, why))


def load_graphs(stored: Mapping[str, Any]) -> dict[str, Graph]:
    """Return the graphs by mode of a spec, at the sizes of the first run.

    Args: stored: the spec's `algorithm`, as `restore` takes it.
    Returns: `eval`, and `train` unless there is no train mode.
    Raises: ValueError as `deserialize` does.
    """
    return evaluate_modes(restore(stored))


def evaluate_modes(sized: Sized) -> dict[str, Graph]:
    """Return the graphs by mode at the sizes of the first run."""
    forms = {"eval": evaluate_graph(sized.evaluated)}
    if sized.trained is not None:
        forms["train"] = forms["eval"] if sized.trained is sized.evaluated else evaluate_graph(sized.trained)
    return forms
