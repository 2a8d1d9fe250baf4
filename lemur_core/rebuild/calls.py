"""Write one operation as idiomatic Python: an expression over `torch`, `F` and tensor methods.

Most operations are written from their own signature in ATen; the others have a writer registered with `emits`.
"""

import ast
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

    def atom(self, name: str = "input") -> str:
        """Return a tensor argument as text that a method can be called on."""
        return self[name].within(ATOM)


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
#: Writers of operations that need a special form.
EMITS: dict[str, Emit] = {}
#: Operations to write as functions of `torch.nn.functional`, and as methods of tensors.
_FUNCTIONAL = frozenset(
    {
        "relu", "relu6", "silu", "gelu", "mish", "elu", "celu", "selu", "leaky_relu", "hardswish", "hardsigmoid",
        "hardtanh", "softplus", "softshrink", "hardshrink", "logsigmoid", "glu", "rrelu", "threshold", "one_hot",
        "normalize", "pixel_shuffle", "pixel_unshuffle", "grid_sample", "pairwise_distance", "cosine_similarity",
        "channel_shuffle",
    }
)  # fmt: skip
_METHODS = frozenset(
    {
        "mean", "sum", "amax", "amin", "var", "std", "prod", "all", "any", "softmax", "log_softmax", "cumsum",
        "masked_fill", "sqrt", "rsqrt", "exp", "log", "abs", "sigmoid", "tanh", "sin", "cos",
    }
)  # fmt: skip


def emits(*ops: str) -> Callable[[Emit], Emit]:
    """Register the writer of these operations."""

    def note(emit: Emit) -> Emit:
        EMITS.update(dict.fromkeys(ops, emit))
        return emit

    return note


def collapse_equal(value: Argument) -> Argument:
    """Collapse `(3, 3)` to 3."""
    return value[0] if type(value) is tuple and value and all(item == value[0] for item in value) else value


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
        default = argument.default_value if argument.has_default_value() else None
        is_tensor = name in call.tensors
        if not is_tensor and (value is None or (argument.has_default_value() and _equals_default(value, default))):
            continue
        if name == "reduction":
            named[name] = repr(REDUCTIONS[value])
            continue
        text = dtype_text(value) if name == "dtype" else _argument(call, name)
        if argument.kwarg_only or len(positional) != position:
            named[name] = text
        else:
            positional.append(text)
    if (op in _FUNCTIONAL or "reduction" in named) and hasattr(functional, op):
        return function(f"F.{op}", *positional, **named)
    first = call.tensors.get("input")
    if op in _METHODS and isinstance(first, Text) and hasattr(torch.Tensor, op):
        return function(f"{first.within(ATOM)}.{op}", *positional[1:], **named)
    if hasattr(torch, op) and not op.startswith("_"):
        return function(f"torch.{op}", *positional, **named)
    for before, module in (("linalg_", "torch.linalg."), ("fft_", "torch.fft."), ("special_", "torch.special.")):
        if op.startswith(before):
            return function(module + op.removeprefix(before), *positional, **named)
    if hasattr(functional, op):
        return function(f"F.{op}", *positional, **named)
    if isinstance(first, Text) and hasattr(torch.Tensor, op):
        return function(f"{first.within(ATOM)}.{op}", *positional[1:], **named)
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


def _equals_default(value: Argument, default: Any) -> bool:
    return bool(type(value) is not tuple and not isinstance(value, Size) and value == default) or (
        type(value) is tuple and isinstance(default, list) and list(value) == default
    )


def _argument(call: Operation, name: str) -> str:
    tensor = call.tensors.get(name)
    if isinstance(tensor, list):
        return f"[{', '.join('None' if item is None else item.text for item in tensor)}]"
    return call[name].text if isinstance(tensor, Text) else call.literal(name)


def dtype_text(name: Argument) -> str:
    """Write a dtype."""
    return f"torch.{name}"
