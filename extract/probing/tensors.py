"""Inputs of forward as small descriptions that can be varied, rendered as expressions, and told as shapes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

#: What the numbers in a tensor are for.
FLOAT, INDEX, MASK, POSITIVE, COMPLEX = "float", "index", "mask", "positive", "complex"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to make: its shape and what its numbers are for. `below` bounds indices."""

    shape: tuple[int, ...]
    kind: str = FLOAT
    below: int = 2

    def expression(self) -> str:
        """Python that makes it; random numbers are drawn from the global generator."""
        shape = "".join(f"{size}, " for size in self.shape)
        shape = f"({shape.rstrip(', ') if len(self.shape) > 1 else shape.rstrip()})"
        if self.kind == INDEX:
            return f"torch.randint(0, {self.below}, {shape})"
        if self.kind == MASK:
            return f"torch.ones({shape}, dtype=torch.bool)"
        if self.kind == POSITIVE:
            return f"torch.rand({shape})"
        if self.kind == COMPLEX:
            return f"torch.randn({shape}, dtype=torch.complex64)"
        return f"torch.randn({shape})"

    def with_shape(self, shape: Sequence[int]) -> "Tensor":
        """The same with other sizes."""
        return replace(self, shape=tuple(shape))


@dataclass(frozen=True, slots=True)
class Literal:
    """Any other value, as a Python expression."""

    text: str

    def expression(self) -> str:
        """Python that makes it."""
        return self.text


@dataclass(frozen=True, slots=True)
class Items:
    """A list or tuple of values."""

    values: tuple["Value", ...]
    is_tuple: bool = False

    def expression(self) -> str:
        """Python that makes it."""
        inside = ", ".join(value.expression() for value in self.values)
        if self.is_tuple:
            return f"({inside},)" if len(self.values) == 1 else f"({inside})"
        return f"[{inside}]"


@dataclass(frozen=True, slots=True)
class Fields:
    """A dict of values by name, or an object with these attributes."""

    values: tuple[tuple[str, "Value"], ...]
    attributes: bool = False

    def expression(self) -> str:
        """Python that makes it."""
        if self.attributes:
            inside = ", ".join(f"{name}={value.expression()}" for name, value in self.values)
            return f"types.SimpleNamespace({inside})"
        return "{" + ", ".join(f"{name!r}: {value.expression()}" for name, value in self.values) + "}"


Value = Tensor | Literal | Items | Fields
Inputs = tuple[tuple[str, Value], ...]  # forward's arguments by name, in order; "*" for further positional ones


def tensors_in(value: Value) -> Iterator[Tensor]:
    """The tensors of a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Items):
        for item in value.values:
            yield from tensors_in(item)
    elif isinstance(value, Fields):
        for _, item in value.values:
            yield from tensors_in(item)


def change_tensors(value: Value, change: Callable[[Tensor], Value]) -> Value:
    """The value with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Items):
        return replace(value, values=tuple(change_tensors(item, change) for item in value.values))
    if isinstance(value, Fields):
        return replace(value, values=tuple((name, change_tensors(item, change)) for name, item in value.values))
    return value


def flatten(value: object, depth: int = 8) -> list[torch.Tensor]:
    """The tensors of what a forward returned, in order: of containers, mappings, and objects' attributes."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth == 0 or isinstance(value, (str, bytes, torch.nn.Module, type)):
        return []
    if isinstance(value, Mapping):
        return [tensor for item in value.values() for tensor in flatten(item, depth - 1)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [tensor for item in value for tensor in flatten(item, depth - 1)]
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        return [tensor for item in fields.values() for tensor in flatten(item, depth - 1)]
    return []


def change_nested(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Containers with every tensor in them changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, change_nested(item, change)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [change_nested(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, SimpleNamespace):
        return SimpleNamespace(**change_nested(vars(value), change))
    return value


def told(value: Any) -> str:
    """A value in a few words: `float32 2x16x8x8`, or its type."""
    if isinstance(value, torch.Tensor):
        sizes = "x".join(str(size) for size in value.shape) or "scalar"
        return f"{str(value.dtype).removeprefix('torch.')} {sizes}"
    return type(value).__name__
