"""Write one operation as idiomatic Python: an expression over `torch`, `F` and tensor methods.

Most operations are written from their own signature in ATen; the others have a writer registered with `emits`.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from lemur_core.graphs.graph import Argument, Node, TensorType
from lemur_core.graphs.symbolic import Size

#: Marks around the number of a size without a formula.
UNKNOWN = "\0"
REDUCTIONS = ("none", "mean", "sum")


class RebuildError(Exception):
    """A graph that cannot be written as source; the message gives the reason in one line."""


class Text(NamedTuple):
    """An expression, and how tightly it binds, in Python's own levels; `ATOM` is the tightest."""

    text: str
    binds: int

    def within(self, binds: int) -> str:
        """Add parentheses if the surrounding expression binds tighter."""
        return self.text if self.binds >= binds else f"({self.text})"


CHOICE, COMPARE, SUM, PRODUCT, UNARY, POWER, ATOM = range(7)


@dataclass(slots=True)
class Operation:
    """One operation to write: its node, and its tensors as text; `kinds` are their types, `inner` the node whose result
    a reshape takes, if that is written nowhere else."""

    node: Node
    tensors: Mapping[str, Any]  # an argument that names tensors: a Text, or a list with None for absent ones
    kinds: Mapping[str, TensorType]
    number: Callable[[Argument, "Operation"], str]  # formats literals, and sizes that depend on the inputs
    like: Text | None  # an input, for device and dtype
    like_dtype: str
    inner: "Operation | None" = None
    takes: int = 1  # how many of its outputs are needed, up to the last one used

    def __getitem__(self, name: str) -> Text:
        text = self.tensors.get(name)
        if isinstance(text, Text):
            return text
        value = self.node.get(name)
        return Text(self.number(value, self), _precedence(value.text) if isinstance(value, Size) else ATOM)

    def get(self, name: str) -> Argument:
        """Return a literal argument."""
        return self.node.get(name)

    def literal(self, name: str) -> str:
        """Return a literal argument as text."""
        return self.number(self.node.get(name), self)

    def has(self, name: str) -> bool:
        """Return whether an argument is present."""
        return name in self.tensors or self.node.get(name) is not None

    def texts(self, *names: str) -> dict[str, str]:
        """Write those of these tensors that are present, by name."""
        return {name: self[name].text for name in names if name in self.tensors}

    def options(self, **usual: Argument) -> dict[str, str]:
        """Write the literal arguments that differ from their usual values, by name."""
        return {name: self.number(value, self) for name, value in differing(self.node, **usual).items()}

    def collapsed(self, name: str) -> str:
        """Return a literal argument as text, `(3, 3)` as 3."""
        return self.number(collapse_equal(self.node.get(name)), self)

    def atom(self, name: str = "input") -> str:
        """Return a tensor argument as text that a method can be called on."""
        return self[name].within(ATOM)

    def method(self, name: str, *operands: str, **named: str) -> Text:
        """Write a call of a method of the first tensor."""
        return function(f"{self.atom()}.{name}", *operands, **named)


def _precedence(formula: str) -> int:
    """Return how tightly a formula binds."""
    match ast.parse(formula, mode="eval").body:
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return SUM
        case ast.BinOp(op=ast.Pow()):
            return POWER
        case ast.BinOp():
            return PRODUCT
        case ast.UnaryOp():
            return UNARY
    return ATOM


Emit = Callable[[Operation], Text]
#: Writers of operations that need a special form, by family.
_EMITS: dict[str, Emit] = {}
#: Operations that `torch` has, too, but people write as functions of `torch.nn.functional`, or as methods of tensors.
_FUNCTIONAL = frozenset(
    {
        "relu", "celu", "selu", "hardshrink", "rrelu", "threshold", "pixel_shuffle", "pixel_unshuffle",
        "pairwise_distance", "cosine_similarity",
    }
)  # fmt: skip
_METHODS = frozenset({"cumsum", "masked_fill", "sqrt", "rsqrt", "exp", "log", "abs", "sigmoid", "tanh", "sin", "cos"})
_LIBRARIES = (("linalg_", "torch.linalg."), ("fft_", "torch.fft."), ("special_", "torch.special."))
_VARIANT = re.compile(r"_?\dd$")


def name_family(op: str) -> str:
    """Return the name of an operation for any rank: `max_pool` for `max_pool2d_with_indices`."""
    return _VARIANT.sub("", op.removesuffix("_with_indices").removesuffix("_aa")).strip("_")


def emits(*families: str) -> Callable[[Emit], Emit]:
    """Register the writer of these families of operations."""

    def note(emit: Emit) -> Emit:
        _EMITS.update(dict.fromkeys(families, emit))
        return emit

    return note


def expression(call: Operation) -> Text:
    """Write one operation. Raises: RebuildError if there is no way to write it."""
    return _EMITS.get(name_family(call.node.op), by_schema)(call)


def collapse_equal(value: Argument) -> Argument:
    """Collapse `(3, 3)` to 3."""
    return value[0] if type(value) is tuple and value and all(item == value[0] for item in value) else value


def differing(node: Node, **usual: Argument) -> dict[str, Argument]:
    """Return the arguments of a node that differ from their usual values, `(3, 3)` as 3."""
    collapsed = {name: collapse_equal(node.get(name)) for name in usual}
    return {name: value for name, value in collapsed.items() if value not in (usual[name], None, ())}


def function(name: str, *operands: str, **named: str) -> Text:
    """Write a function call."""
    return Text(f"{name}({', '.join([*operands, *(f'{key}={value}' for key, value in named.items())])})", ATOM)


def by_schema(call: Operation) -> Text:
    """Write an operation by its own signature, in `torch`, `F` or as a method. Raises: RebuildError if none has it."""
    op = call.node.op
    names = {name for name, _ in call.node.arguments} - {"draw"}
    schema = _schema(op, names)
    if schema is None:
        raise RebuildError(f"operation {op} has no public form")
    positional: list[str] = []
    named: dict[str, str] = {}
    for position, argument in enumerate(schema.arguments):
        name = "input" if argument.name == "self" else argument.name
        value = call.get(name)
        plain = list(value) if type(value) is tuple else value
        is_default = argument.has_default_value() and not isinstance(value, Size) and plain == argument.default_value
        if name not in call.tensors and (value is None or is_default):
            continue
        if name == "reduction":
            named[name] = repr(REDUCTIONS[value])
            continue
        text = dtype_text(value) if name == "dtype" else _argument(call, name)
        if argument.kwarg_only or len(positional) != position:
            named[name] = text
        else:
            positional.append(text)
    in_functional = hasattr(functional, op)
    is_method = isinstance(call.tensors.get("input"), Text) and hasattr(torch.Tensor, op)
    if in_functional and (op in _FUNCTIONAL or "reduction" in named):
        return function(f"F.{op}", *positional, **named)
    if hasattr(torch, op) and not op.startswith("_") and not (is_method and op in _METHODS):
        return function(f"torch.{op}", *positional, **named)
    for prefix, library in _LIBRARIES:
        if op.startswith(prefix):
            return function(library + op.removeprefix(prefix), *positional, **named)
    if in_functional and op not in _METHODS:
        return function(f"F.{op}", *positional, **named)
    if is_method:
        return call.method(op, *positional[1:], **named)
    raise RebuildError(f"operation {op} has no public form")


def _schema(op: str, names: set[str]) -> Any:
    packet = getattr(torch.ops.aten, op, None)
    if packet is None:
        return None
    fitting = []
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        known = {"input" if argument.name == "self" else argument.name for argument in schema.arguments}
        if names <= known and "out" not in overload:
            fitting.append((len(known), overload, schema))
    return min(fitting, key=lambda item: item[:2])[2] if fitting else None


def _argument(call: Operation, name: str) -> str:
    tensor = call.tensors.get(name)
    if isinstance(tensor, list):
        return f"[{', '.join('None' if item is None else item.text for item in tensor)}]"
    return call[name].text if isinstance(tensor, Text) else call.literal(name)


def dtype_text(name: Argument) -> str:
    """Write a dtype."""
    return f"torch.{name}"
