"""A dataflow graph: operations by name, with what they are given, over tensors whose type and shape are known.

The stored form is JSON, `{"form": 1, "torch": VERSION, "nodes": […], "outputs": […], "writes": […]}`. Two graphs are
compared only if form and torch are the same: the decompositions of an operation may change with either.
"""

import base64
import importlib.metadata
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TORCH = importlib.metadata.version("torch")
#: The version of the stored form and of the rules that lead to it.
FORM = 1

#: Operations without inputs that stand for what a run is given.
LEAVES = frozenset({"input", "parameter", "buffer", "constant", "cotangent"})

#: Operations that draw random numbers in train mode alone.
RANDOM = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})


class Ref(NamedTuple):
    """One output of one node."""

    node: int
    output: int = 0


Argument = Any  # a literal (None, bool, int, float, str), a Ref, or a tuple of these


class TensorType(NamedTuple):
    """What is known of a tensor before it has values."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its name in ATen without the overload, and its arguments by name.

    `scope` is the path of the module in which it ran, `within` the classes of the modules that enclose it, outermost
    first; both are notes, which no identity depends on. `inputs` is what it reads, in the order of its arguments.
    """

    op: str
    arguments: tuple[tuple[str, Argument], ...]
    outputs: tuple[TensorType, ...]
    scope: str = field(default="", compare=False)
    within: tuple[type, ...] = field(default=(), compare=False)
    inputs: tuple[Ref, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(ref for _, argument in self.arguments for ref in refs_in(argument)))

    def get(self, name: str) -> Argument:
        """An argument; None where there is none of this name."""
        return next((argument for found, argument in self.arguments if found == name), None)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which each comes after what it reads.

    Args:
        outputs: what the network returns, tensors in the order in which `torch.utils._pytree` finds them.
        writes: buffers and parameters that the run changes, each with its new value.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    writes: tuple[tuple[Ref, Ref], ...] = ()

    @property
    def results(self) -> tuple[Ref, ...]:
        """Everything that is seen of a run: its outputs, then what it writes."""
        return self.outputs + tuple(value for _, value in self.writes)

    def type_of(self, ref: Ref) -> TensorType:
        """Type and shape of a value."""
        return self.nodes[ref.node].outputs[ref.output]

    def to_json(self) -> dict[str, Any]:
        """The stored form."""
        return {
            "form": FORM,
            "torch": TORCH,
            "nodes": [
                [
                    node.op,
                    {name: _to_json(argument) for name, argument in node.arguments},
                    [[kind.dtype, list(kind.shape)] for kind in node.outputs],
                    node.scope,
                ]
                for node in self.nodes
            ],
            "outputs": [list(ref) for ref in self.outputs],
            "writes": [[list(target), list(value)] for target, value in self.writes],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Graph":
        """A graph from its stored form. Raises: ValueError if it has another form, or was recorded by another torch."""
        made = (stored.get("form"), stored.get("torch"))
        if made != (FORM, TORCH):
            here = f"form {FORM} of torch {TORCH}"
            raise ValueError(f"form {made[0]} of torch {made[1]} cannot be compared with {here}")
        nodes = tuple(
            Node(
                op,
                tuple((name, _from_json(argument)) for name, argument in arguments.items()),
                tuple(TensorType(dtype, tuple(shape)) for dtype, shape in outputs),
                scope,
            )
            for op, arguments, outputs, scope in stored["nodes"]
        )
        writes = tuple((Ref(*target), Ref(*value)) for target, value in stored["writes"])
        return cls(nodes, tuple(Ref(*ref) for ref in stored["outputs"]), writes)


def refs_in(argument: Argument) -> Iterator[Ref]:
    """The values that an argument names, in order."""
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs_in(item)


def replace_refs(argument: Argument, replace: Callable[[Ref], Argument]) -> Argument:
    """An argument with other values in place of those that it names."""
    if isinstance(argument, Ref):
        return replace(argument)
    if isinstance(argument, tuple):
        return tuple(replace_refs(item, replace) for item in argument)
    return argument


def reachable(nodes: Sequence[Node], results: Sequence[Ref]) -> list[int]:
    """The nodes on the way to these results, in order."""
    wanted = {ref.node for ref in results}
    for place in range(len(nodes) - 1, -1, -1):
        if place in wanted:
            wanted.update(ref.node for ref in nodes[place].inputs)
    return sorted(wanted)


def pack(graph: Graph) -> str:
    """The stored form of a graph, compressed, as text."""
    return base64.b64encode(zlib.compress(json.dumps(graph.to_json(), separators=(",", ":")).encode())).decode()


def unpack(packed: str) -> dict[str, Any]:
    """The stored form again."""
    stored: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return stored


def _to_json(argument: Argument) -> Any:
    if isinstance(argument, Ref):
        return {"node": argument.node, "output": argument.output}
    if isinstance(argument, tuple):
        return [_to_json(item) for item in argument]
    if isinstance(argument, float) and not -float("inf") < argument < float("inf"):
        return {"float": str(argument)}
    return argument


def _from_json(stored: Any) -> Argument:
    if isinstance(stored, list):
        return tuple(_from_json(item) for item in stored)
    if isinstance(stored, dict):
        return float(stored["float"]) if "float" in stored else Ref(stored["node"], stored["output"])
    return stored
