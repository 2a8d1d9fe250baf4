"""Write one operation as a Python expression: by its schema in ATen, or as one of the few spellings of a table."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.nn import functional

from lemur_core.graphs.graph import Argument, Node, TensorType
from lemur_core.graphs.modes import ModeChoice, Value


class RebuildError(Exception):
    """A graph that cannot be written as source; the message gives the reason in one line."""


class Expression(str):
    """The text of an expression as an argument, unlike a text that is one."""

    __slots__ = ()


def parenthesize(text: str) -> str:
    """Return an expression that can stand beside an operator or before a method."""
    return text if re.fullmatch(r"[\w.]+(?:e-\d+)?", text) else f"({text})"


#: Operations that are not written by their own name: as an operator, as a method, as a function of another name, or
#: as a text with their arguments in it (`shape*`: without the parentheses of a tuple).
SPELLINGS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "matmul": "@",
    "remainder": "%",
    "pow": "**",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "mean": ".mean",
    "sum": ".sum",
    "amax": ".amax",
    "sigmoid": ".sigmoid",
    "softmax": "{input}.softmax({dim})",
    "_softmax": "{input}.softmax({dim})",
    "relu": "F.relu",
    "silu": "F.silu",
    "attention": "F.scaled_dot_product_attention",
    "reshape": "{input}.reshape({shape*})",
    "permute": "{input}.permute({dims*})",
    "expand": "{input}.expand({shape*})",
    "slice": "{input}[{bounds}]",
    "index": "{input}[{indices}]",
    "cast": "{input}.to({dtype})",
    "view_dtype": "{input}.view({dtype})",
    "stop_gradient": "{input}.detach()",
    "custom_gradient": "{input}",  # with the gradient of its forward; the proof decides
    "full": "torch.full({shape}, {value}, dtype={dtype}, device={device})",
    "constant": "torch.tensor({value}, dtype={dtype}, device={device})",
}
#: Arguments that a graph leaves out because they change nothing, by type; `None` where the type allows it.
_LEFT_OUT = {"float": "0.0", "bool": "False"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation to write.

    Args:
        arguments: literals, values, and tuples of these, by name.
        write: writes a tensor or a literal.
        type_of: the type of a value.
        device: the text of the device for new tensors.
    """

    node: Node
    arguments: Mapping[str, Argument]
    write: Callable[[Argument], str]
    type_of: Callable[[Value], TensorType]
    device: str

    def expression(self) -> str:
        """Write the operation. Raises: RebuildError if there is no way to write it."""
        op, spelling = self.node.op, SPELLINGS.get(self.node.op, "")
        if "{" in spelling:
            if op == "constant" and not isinstance(self.arguments.get("value"), bool | int | float | tuple):
                kind = self.node.outputs[0]
                shape = "×".join(map(str, kind.shape))
                raise RebuildError(f"a constant of {kind.dtype} {shape} whose values no graph holds")
            return re.sub(r"{(\w+)(\*?)}", lambda field: self._field(field[1], spread=bool(field[2])), spelling)
        if self._fills:
            first, *others = self._by_schema(op)
            return f"{first}.{op}_({', '.join(others)})"
        if spelling.startswith("."):
            return f"{self._field('input')}{spelling}({', '.join(self._by_schema(op)[1:])})"
        if spelling.startswith("F."):
            return f"{spelling}({', '.join(self._by_schema(spelling.removeprefix('F.')))})"
        if spelling and len(self.arguments) == 2:
            one, other = (parenthesize(self.write(value)) for value in self.arguments.values())
            return f"{one} {spelling} {other}"
        return f"{_find_function(op)}({', '.join(self._by_schema(op))})"

    @property
    def _fills(self) -> bool:
        """Whether it fills a new tensor, such as `normal`: it has a size, but no schema with one."""
        return "size" in self.arguments and not _find_schema(self.node.op, frozenset(self.arguments))

    def _field(self, name: str, *, spread: bool = False) -> str:
        """Write one field of a spelling."""
        value: Any = self.arguments.get(name)
        if name == "device":
            return self.device
        if name == "dtype":
            return f"torch.{value or self.node.outputs[0].dtype}"
        if name == "bounds":
            dim, start, end, step = (self.arguments[part] for part in ("dim", "start", "end", "step"))
            return f"{':, ' * dim}{self.write(start)}:{self.write(end)}{f':{step}' if step != 1 else ''}"
        if name == "indices":
            indices = self.arguments["indices"]
            return ", ".join(":" if index is None else self.write(index) for index in indices)
        if spread:
            return ", ".join(self.write(size) for size in value) or "()"
        if name == "value" and type(value) is tuple:
            return self._nested(value)
        return parenthesize(self.write(value)) if name == "input" else self.write(value)

    def _nested(self, value: Argument) -> str:
        """Write the values of a constant as lists: `torch.tensor` takes no tuples of other tuples."""
        if type(value) is tuple:
            return f"[{', '.join(map(self._nested, value))}]"
        return self.write(value)

    def _by_schema(self, op: str) -> list[str]:
        """Write the arguments in the order of the schema. Raises: RebuildError if no schema takes them."""
        arguments = self._match_schema(op)
        texts: list[str] = []
        in_order = True
        for parameter in _find_schema(op, frozenset(arguments)):
            name = "input" if parameter.name == "self" else parameter.name
            value = arguments.get(name)
            if name == "device":
                texts.append(f"device={self.device}")
            elif parameter.has_default_value() and (value is None or _is_equal(value, parameter.default_value)):
                in_order = False
            else:
                text = self._argument(value, parameter)
                in_order &= type(value) is not bool and not parameter.kwarg_only  # `keepdim=True`
                texts.append(text if in_order else f"{parameter.name}={text}")
        return texts

    def _match_schema(self, op: str) -> dict[str, Any]:
        """Return the arguments as the schema names them."""
        arguments: dict[str, Any] = dict(self.arguments)
        if op in ("batch_norm", "instance_norm") and arguments.get("momentum") is not None:
            raise RebuildError(f"{op} that updates statistics outside of a layer")
        if op == "convolution":
            del arguments["kernel"]
            if type(arguments["padding"]) is str:
                raise RebuildError("a convolution with unequal padding outside of a layer")
        if op == "scaled_dot_product_attention":
            # A graph holds the usual scale, too, and rounded.
            width = self.type_of(arguments["query"]).shape[-1]
            if type(width) is int and math.isclose(arguments["scale"], width**-0.5, rel_tol=1e-11):
                del arguments["scale"]
        if self._fills:
            del arguments["size"]
            text = f"torch.empty({self._field('size')}, dtype={self._field('dtype')}, device={self.device})"
            arguments["input"] = Expression(text)
        if not _find_schema(op, frozenset(arguments)):
            raise RebuildError(f"operation {op} has no schema for {', '.join(arguments)}")
        return arguments

    def _argument(self, value: Any, parameter: Any) -> str:
        if isinstance(value, Expression):
            return value
        if value is None:
            return _LEFT_OUT.get(str(parameter.type), "None")
        if "ScalarType" in str(parameter.real_type):
            return f"torch.{value}"
        if type(value) is tuple and "Tensor" in str(parameter.real_type):
            return f"[{', '.join(self.write(item) for item in value)}]"
        return self.write(value)


def _find_function(op: str) -> str:
    """Return the public function of an operation with its schema, or else the operator itself."""
    for owner, prefix in ((torch, "torch"), (functional, "F")):
        # Functions that are written in Python have other arguments.
        if isinstance(getattr(owner, op, None), BuiltinFunctionType) and not op.startswith("_"):
            return f"{prefix}.{op}"
    return f"torch.ops.{op.replace('::', '.')}" if "::" in op else f"torch.ops.aten.{op}"


@cache
def _find_schema(op: str, names: frozenset[str]) -> tuple[Any, ...]:
    """Return the parameters of the smallest overload that has all these; () if there is none."""
    library, _, name = op.rpartition("::")
    packet = getattr(getattr(torch.ops, library or "aten"), name, None)
    fitting = []
    for overload in packet.overloads() if packet is not None else ():
        parameters = tuple(getattr(packet, overload)._schema.arguments)
        known = {"input" if parameter.name == "self" else parameter.name for parameter in parameters}
        if names <= known and not any(parameter.is_out for parameter in parameters):
            fitting.append((len(known), overload, parameters))
    return min(fitting, key=lambda item: item[:2])[2] if fitting else ()


def _is_equal(value: Argument, default: Any) -> bool:
    """Return whether an argument is the default; a tensor never is."""
    return type(value) not in (Value, ModeChoice) and (list(value) if type(value) is tuple else value) == default
