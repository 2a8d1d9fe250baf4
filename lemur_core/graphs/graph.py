"""Dataflow graphs: operations by name with their arguments, over tensors of known type and shape.

The stored form is JSON, `{"form": 2, "torch": VERSION, "nodes": […], "outputs": […], "writes": […], "reads": […],
"unique": ""}`. Two graphs are compared only if `form` and `torch` are equal: the decomposition of an operation may
change with either.
"""

import base64
import importlib.metadata
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose, isfinite
from typing import Any, NamedTuple

from lemur_core.files import Json
from lemur_core.graphs.formulas import NEAR, Size, evaluate_formula
from lemur_core.sandbox.server.received import INTEGERS, MAX_INFLATED_BYTES, clean_text, inflate


def get_public(version: str | None) -> str:
    """Return a version without its local part: `2.15.0+cu132` is torch 2.15.0, built for other devices."""
    return (version or "").partition("+")[0]


try:
    TORCH = get_public(importlib.metadata.version("torch"))
except importlib.metadata.PackageNotFoundError:
    TORCH = "not installed"
#: The version of the stored form and of the rules that produce it.
FORM = 2

#: What a graph does not hold if a run drew from Python or NumPy: another run may take another branch.
DRAWS = "it draws numbers that are no operation of torch"
#: Operations without inputs: the arguments, state and constants of a run.
LEAVES = frozenset({"input", "parameter", "buffer", "constant", "cotangent"})

#: Operations that draw random numbers in train mode only.
RANDOM = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})


class Ref(NamedTuple):
    """One output of one node."""

    node: int
    output: int = 0


#: The scope of what the constructor of a module computes.
CONSTRUCTOR = "__init__"

Argument = Any  # a literal (None, bool, int, float, str), a Ref, a Size, or a tuple of these


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
        # Without a generator for each argument: each step makes new nodes.
        inputs: list[Ref] = []
        for _, argument in self.arguments:
            if type(argument) is Ref:
                inputs.append(argument)
            elif type(argument) is tuple:
                inputs += refs_in(argument)
        object.__setattr__(self, "inputs", tuple(inputs))

    def get(self, name: str) -> Argument:
        """Return an argument, or None if there is none with this name."""
        return next((argument for key, argument in self.arguments if key == name), None)

    def move(self, change: Callable[[Ref], Argument]) -> "Node":
        """Return the node with the values that it reads replaced."""
        arguments = tuple((name, replace_refs(value, change)) for name, value in self.arguments)
        return Node(self.op, arguments, self.outputs, self.scope, self.within)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order: each comes after the nodes it reads.

    Args:
        outputs: the tensors that the network returns, in the order of `torch.utils._pytree`.
        writes: the buffers and parameters that the run changes, each with its new value.
        reads: the values that Python looked at on the way, in order: another value might have led elsewhere.
        unique: the SHA-256 of the network's code if the nodes do not say all that it computes; such a graph equals
            only graphs of the same code.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    writes: tuple[tuple[Ref, Ref], ...] = ()
    reads: tuple[Ref, ...] = ()
    unique: str = ""

    @property
    def results(self) -> tuple[Ref, ...]:
        """All observable values of a run: its outputs, the values it writes, then those that Python looked at."""
        return self.outputs + tuple(value for _, value in self.writes) + self.reads

    def type_of(self, ref: Ref) -> TensorType:
        """Return dtype and shape of a value."""
        return self.nodes[ref.node].outputs[ref.output]

    def move(self, nodes: Sequence[Node], change: Callable[[Ref], Ref]) -> "Graph":
        """Return a graph of other nodes, with the results replaced."""
        writes = tuple((change(target), change(value)) for target, value in self.writes)
        outputs, reads = (tuple(map(change, refs)) for refs in (self.outputs, self.reads))
        return replace(self, nodes=tuple(nodes), outputs=outputs, writes=writes, reads=reads)

    def check_references(self) -> None:
        """Raise ValueError if a node reads what no earlier node gives, or a result is not there."""
        counts: list[int] = []
        for node in self.nodes:
            for ref in node.inputs:
                _check_ref(ref, counts)
            counts.append(len(node.outputs))
        for ref in (*self.results, *(target for target, _ in self.writes)):
            _check_ref(ref, counts)

    def to_json(self) -> Json:
        """Return the stored form."""
        return {
            "form": FORM,
            "torch": TORCH,
            "nodes": [
                [
                    node.op,
                    {name: _to_json(argument) for name, argument in node.arguments},
                    [[kind.dtype, [_to_json(size) for size in kind.shape]] for kind in node.outputs],
                    clean_text(node.scope),
                ]
                for node in self.nodes
            ],
            "outputs": [list(ref) for ref in self.outputs],
            "writes": [[list(target), list(value)] for target, value in self.writes],
            "reads": [list(ref) for ref in self.reads],
            "unique": self.unique,
        }

    @classmethod
    def from_json(cls, stored: Any, sizes: Mapping[str, float] | None = None) -> "Graph":
        """Read a graph from its stored form, which foreign code may have written.

        Args: sizes: the input sizes of the first run, by name, where numbers may be formulas.
        Raises: ValueError if its version differs, a part has another type than in `to_json`, a node reads a value that
            no earlier node outputs, or a formula does not have its value in the first run.
        """
        if not isinstance(stored, dict):
            raise ValueError("not a graph")
        check_version(stored)
        try:
            nodes = tuple(_read_node(*row, sizes=sizes) for row in stored["nodes"])
            writes = tuple((Ref(*target), Ref(*value)) for target, value in stored["writes"])
            outputs, reads = (tuple(Ref(*ref) for ref in stored[name]) for name in ("outputs", "reads"))
            graph = cls(nodes, outputs, writes, reads, _read_text(stored["unique"]))
            graph.check_references()
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a graph: {error}") from None
        return graph


def check_version(stored: Mapping[str, Any]) -> None:
    """Raise ValueError unless a graph was recorded by this torch and is stored in this form.

    Without torch no graph is recorded here, and those of a finished folder, which are of one torch, may be compared.
    """
    form, torch = stored.get("form"), stored.get("torch")
    if form != FORM or not isinstance(torch, str) or TORCH not in (get_public(torch), "not installed"):
        current = f"form {FORM} of torch {TORCH}"
        raise ValueError(f"form {form!r:.20} of torch {torch!r:.20} cannot be compared with {current}")


def refs_in(argument: Argument) -> Iterator[Ref]:
    """Yield the values that an argument refers to, in order."""
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from refs_in(item)


def replace_refs(argument: Argument, replace: Callable[[Ref], Argument]) -> Argument:
    """Replace the values that an argument refers to."""
    if type(argument) is Ref:
        return replace(argument)
    if type(argument) is tuple:
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
    """Return the stored form of a graph as compressed text. Raises: ValueError if it is too large for `unpack`."""
    text = json.dumps(graph.to_json(), separators=(",", ":"))
    if len(text) > MAX_INFLATED_BYTES:
        raise ValueError(f"a graph of {len(graph.nodes):,} operations takes more than {MAX_INFLATED_BYTES:,} bytes")
    return base64.b64encode(zlib.compress(text.encode())).decode()


def unpack(packed: str) -> Json:
    """Return the stored form of a packed graph.

    Args: packed: from `pack`.
    Returns: the form that `Graph.from_json` reads.
    Raises: ValueError if it holds too much, or as `Graph.from_json` does.
    """
    try:
        stored: Json = json.loads(inflate(base64.b64decode(packed, validate=True)))
        Graph.from_json(stored)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return stored


def _check_ref(ref: Any, counts: Sequence[int]) -> None:
    if not isinstance(ref, Ref):
        raise ValueError("a result is not the output of a node")
    node, output = ref
    if not (type(node) is type(output) is int and 0 <= node < len(counts) and 0 <= output < counts[node]):
        raise ValueError("a node reads what no earlier node gives")


def _to_json(argument: Argument) -> Any:
    if isinstance(argument, Ref):
        return {"node": argument.node, "output": argument.output}
    if isinstance(argument, Size):
        # With a sign of its own: a formula may be a passage of the source, which no spec has.
        return {"formula": argument.text.replace("//", "÷"), "value": argument.value}
    if isinstance(argument, tuple):
        return [_to_json(item) for item in argument]
    if isinstance(argument, float) and not isfinite(argument):
        return {"float": str(argument)}
    return clean_text(argument) if isinstance(argument, str) else argument


def _read_node(op: Any, arguments: Any, outputs: Any, scope: Any, *, sizes: Mapping[str, float] | None) -> Node:
    named = arguments.items() if isinstance(arguments, dict) else arguments
    read = tuple((_read_text(name), _read_argument(argument, sizes)) for name, argument in named)
    kinds = tuple(TensorType(_read_text(dtype), _read_argument(shape, sizes)) for dtype, shape in outputs)
    if not all(type(size) in (int, Size) for kind in kinds for size in kind.shape):
        raise ValueError("a size is not an integer")
    return Node(_read_text(op), read, kinds, _read_text(scope))


def _read_text(text: Any) -> str:
    if type(text) is not str or not ((text.isascii() and "\0" not in text) or clean_text(text) == text):
        raise ValueError("a name is not a text")
    return text


_INTEGER = re.compile(r"-?\d+")
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})


def _read_argument(stored: Any, sizes: Mapping[str, float] | None) -> Argument:
    kind = type(stored)
    if kind is list:
        return tuple(_read_argument(item, sizes) for item in stored)
    if kind is dict:
        if stored.keys() == {"node", "output"}:
            return Ref(stored["node"], stored["output"])
        if stored.keys() == {"numbers"}:
            texts = _read_text(stored["numbers"]).split("×")
            return tuple(_read_argument(int(text) if _INTEGER.fullmatch(text) else float(text), None) for text in texts)
        if stored.keys() == {"formula", "value"} and sizes is not None:
            size = Size(_read_text(stored["formula"]).replace("÷", "//"), _read_argument(stored["value"], None))
            if not isclose(evaluate_formula(size.text, sizes), size.value, rel_tol=NEAR):
                raise ValueError(f"{size.text} is not {size.value} in the first run")
            return size
        if stored.keys() != {"float"} or stored["float"] not in _NOT_FINITE:
            raise ValueError("an argument is not a literal")
        return float(stored["float"])
    if (kind is int and stored not in INTEGERS) or (kind is float and not isfinite(stored)):
        raise ValueError("a number is out of range")
    return _read_text(stored) if kind is str else stored
