"""A graph in the notation of specs: JSON that people read, and that comes back as the same graph.

`{"form": 1, "torch": VERSION, "nodes": […], "outputs": ["%7"], "writes": [["%1", "%5.1"]]}`. A node is its operation,
its arguments (name and value, in order), the types of its outputs (`float32 2×16×8×8`), and its scope. `%7` is the
value of node 7, `%7.1` its second output. Numbers in a row are `3×3`; a lone one is in a list.
"""

import re
from collections.abc import Mapping
from typing import Any

from lemur_core.graphs.graph import FORM, TORCH, Argument, Graph, Node, Ref, TensorType

_REF = re.compile(r"%(\d+)(?:\.(\d+))?")
_ROW = re.compile(r"[^×]+(?:×[^×]+)+")
_SCALAR = "scalar"


def to_notation(graph: Graph) -> dict[str, Any]:
    """The graph in this notation."""
    return {
        "form": FORM,
        "torch": TORCH,
        "nodes": [
            [
                node.op,
                [[name, _argument(value)] for name, value in node.arguments],
                [f"{kind.dtype} {'×'.join(map(str, kind.shape)) or _SCALAR}" for kind in node.outputs],
                node.scope,
            ]
            for node in graph.nodes
        ],
        "outputs": [_ref(ref) for ref in graph.outputs],
        "writes": [[_ref(target), _ref(value)] for target, value in graph.writes],
    }


def from_notation(stored: Mapping[str, Any]) -> Graph:
    """The graph again.

    Raises: ValueError if it has another form, was recorded by another torch, or is not in this notation.
    """
    made = (stored.get("form"), stored.get("torch"))
    if made != (FORM, TORCH):
        raise ValueError(f"form {made[0]} of torch {made[1]} cannot be compared with form {FORM} of torch {TORCH}")
    try:
        nodes = tuple(
            Node(op, tuple((name, _read(value)) for name, value in given), tuple(map(_type, outputs)), scope)
            for op, given, outputs, scope in stored["nodes"]
        )
        writes = tuple((_read(target), _read(value)) for target, value in stored["writes"])
        return Graph(nodes, tuple(_read(ref) for ref in stored["outputs"]), writes)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a graph: {type(error).__name__}: {error}") from error


def forms_of(algorithm: Mapping[str, Any]) -> dict[str, Graph]:
    """The graphs by mode of what a spec states as `algorithm`: its `eval`, `train` and `train_error`.

    Raises: ValueError if they are of another form, of another torch, or none.
    """
    forms = {"eval": from_notation(algorithm["eval"])}
    if algorithm["train"] is not None:
        forms["train"] = from_notation(algorithm["train"])
    elif algorithm["train_error"] is None:
        forms["train"] = forms["eval"]
    return forms


def _ref(ref: Ref) -> str:
    return f"%{ref.node}.{ref.output}" if ref.output else f"%{ref.node}"


def _argument(value: Argument) -> Any:
    if isinstance(value, Ref):
        return _ref(value)
    if isinstance(value, tuple):
        numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)
        return "×".join(map(repr, value)) if numbers and len(value) > 1 else [_argument(item) for item in value]
    if isinstance(value, str) and (_REF.fullmatch(value) or "×" in value):
        return {"text": value}
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return {"float": str(value)}
    return value


def _read(stored: Any) -> Argument:
    if isinstance(stored, list):
        return tuple(_read(item) for item in stored)
    if isinstance(stored, dict):
        return float(stored["float"]) if "float" in stored else stored["text"]
    if isinstance(stored, str):
        if match := _REF.fullmatch(stored):
            return Ref(int(match[1]), int(match[2] or 0))
        if _ROW.fullmatch(stored):
            return tuple(_number(item) for item in stored.split("×"))
    return stored


def _number(told: str) -> int | float:
    return int(told) if told.lstrip("-").isdecimal() else float(told)


def _type(told: str) -> TensorType:
    dtype, _, shape = told.partition(" ")
    return TensorType(dtype, () if shape == _SCALAR else tuple(int(size) for size in shape.split("×")))
