"""Dataflow graphs: operations by name with their arguments, over tensors of known type and shape.

The stored form is JSON, `{"form": 1, "torch": VERSION, "nodes": […], "outputs": […], "writes": […]}`. Two graphs are
compared only if `form` and `torch` are equal: the decomposition of an operation may change with either.
"""

import base64
import importlib.metadata
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lemur_core.sandbox.server.received import inflate

TORCH = importlib.metadata.version("torch")
#: The version of the stored form and of the rules that produce it.
FORM = 1

#: Operations without inputs: the arguments, state and constants of a run.
LEAVES = frozenset({"input", "parameter", "buffer", "constant", "cotangent"})

#: Operations that draw random numbers in train mode only.
RANDOM = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})


class Ref(NamedTuple):
    """One output of one node."""

    node: int
    output: int = 0


Argument = Any  # a literal (None, bool, int, float, str), a Ref, or a tuple of these


class TensorType(NamedTuple):
    """The type of a tensor without its values."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its name in ATen without the overload, and its arguments by name.

    `scope` is the path of the module in which it ran, `within` the classes of the enclosing modules, outermost first;
    both are annotations that no identity depends on. `inputs` lists the values it reads, in the order of its arguments.
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
        """Return an argument, or None if there is none of this name."""
        return next((argument for key, argument in self.arguments if key == name), None)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order: each comes after the nodes it reads.

    Args:
        outputs: the tensors that the network returns, in the order of `torch.utils._pytree`.
        writes: the buffers and parameters that the run changes, each with its new value.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    writes: tuple[tuple[Ref, Ref], ...] = ()

    @property
    def results(self) -> tuple[Ref, ...]:
        """All observable values of a run: its outputs, then the values it writes."""
        return self.outputs + tuple(value for _, value in self.writes)

    def type_of(self, ref: Ref) -> TensorType:
        """Return dtype and shape of a value."""
        return self.nodes[ref.node].outputs[ref.output]

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
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
        """Read a graph from its stored form. Raises: ValueError if `form` or `torch` is another version."""
        version = (stored.get("form"), stored.get("torch"))
        if version != (FORM, TORCH):
            current = f"form {FORM} of torch {TORCH}"
            raise ValueError(f"form {version[0]} of torch {version[1]} cannot be compared with {current}")
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
    """Yield the values that an argument refers to, in order."""
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs_in(item)


def replace_refs(argument: Argument, replace: Callable[[Ref], Argument]) -> Argument:
    """Replace the values that an argument refers to."""
    if isinstance(argument, Ref):
        return replace(argument)
    if isinstance(argument, tuple):
        return tuple(replace_refs(item, replace) for item in argument)
    return argument


def reachable(nodes: Sequence[Node], results: Sequence[Ref]) -> list[int]:
    """Return the nodes on the way to these results, in order."""
    needed = {ref.node for ref in results}
    for index in range(len(nodes) - 1, -1, -1):
        if index in needed:
            needed.update(ref.node for ref in nodes[index].inputs)
    return sorted(needed)


def pack(graph: Graph) -> str:
    """Return the stored form of a graph as compressed text."""
    return base64.b64encode(zlib.compress(json.dumps(graph.to_json(), separators=(",", ":")).encode())).decode()


def unpack(packed: str) -> dict[str, Any]:
    """Return the stored form of a packed graph.

    Args: packed: from `pack`.
    Returns: the form that `lemur_core.graphs.serialization.restore` reads.
    Raises: ValueError if it is not packed JSON, or holds too much.
    """
    stored: dict[str, Any] = json.loads(inflate(base64.b64decode(packed)))
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
