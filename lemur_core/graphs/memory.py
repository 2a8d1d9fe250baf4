"""Functionalization: track the immutable value that each tensor holds.

Tensors that share memory are views of one base. An in-place operation gives the base a new value; other views of that
memory are recomputed from it when they are next read. So the recording is functional whatever the code does.

Idea: `torch.func.functionalize`, https://pytorch.org/docs/stable/generated/torch.func.functionalize.html
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from sys import getrefcount
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import TensorBase
from torch._ops import OpOverload
from torch.nn.parameter import is_lazy

from lemur_core.graphs.graph import Argument, Node, Ref, TensorType

_STORED_ELEMENTS = 16  # maximum elements of a constant stored by value; larger ones are stored as a digest

_OWN_REFERENCES = 2  # to a tensor that nothing else refers to: the holding's, and that of the call that counts

#: Views that show every element: writing through them replaces the whole source.
_RESHAPES = frozenset(
    {"view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze", "alias", "detach", "lift_fresh"}
)

Arguments = tuple[tuple[str, Argument], ...]


class UnknownValueError(Exception):
    """A tensor of the meta device that no recorded operation created: nothing tells its values there."""


class Append(Protocol):
    """Record one operation and return references to its outputs."""

    def __call__(self, op: str, arguments: Arguments, outputs: Sequence[TensorType]) -> list[Ref]:
        """Return the values of the outputs, in order."""


@dataclass(frozen=True, slots=True)
class _View:
    """One view, which can be reapplied to another value."""

    op: str
    first: str  # name of the argument that is viewed
    rest: Arguments
    before: TensorType
    outputs: tuple[TensorType, ...]
    output: int


@dataclass(slots=True)
class _Base:
    """The memory that several tensors share."""

    value: Ref
    version: int = 0


@dataclass(slots=True)
class _Holding:
    """A known tensor: the views that lead to it from its base, and its value as of a version of the base."""

    tensor: Tensor
    base: _Base
    views: tuple[_View, ...]
    value: Ref
    version: int
    storage: int


class Memory:
    """The values of tensors, keyed by identity; the tensors are kept alive for that."""

    def __init__(self, append: Append, nodes: Sequence[Node]) -> None:
        self._append, self._nodes = append, nodes
        self._holdings: dict[int, _Holding] = {}
        self._bases: dict[int, _Base] = {}

    def read(self, tensor: Tensor) -> Ref:
        """Return the current value of a tensor."""
        holding = self._find(tensor)
        if holding.version != holding.base.version:
            # Its memory was written since: apply the views to the new value.
            value = holding.base.value
            for view in holding.views:
                value = self._take(view, value)
            holding.value, holding.version = value, holding.base.version
        return holding.value

    def hold(self, tensor: Tensor, value: Ref) -> None:
        """Register a tensor with its own memory."""
        storage = find_storage(tensor)
        base = self._bases[storage] = _Base(value)
        self._holdings[id(tensor)] = _Holding(tensor, base, (), value, 0, storage)

    def hold_apart(self, tensor: Tensor, value: Ref) -> None:
        """Register a tensor with its own value, even if others share its memory."""
        self._holdings[id(tensor)] = replace(self._find(tensor), base=_Base(value), views=(), value=value, version=0)

    def look(self, op: str, arguments: Arguments, source: Tensor, results: Sequence[Tensor]) -> None:
        """Register views of a tensor: they reflect later writes to it."""
        holding = self._find(source)
        outputs = tuple(describe_type(tensor) for tensor in results)
        refs = self._append(op, arguments, outputs)
        for number, tensor in enumerate(results):
            view = _View(op, arguments[0][0], arguments[1:], describe_type(source), outputs, number)
            self._holdings[id(tensor)] = replace(
                holding, tensor=tensor, views=(*holding.views, view), value=refs[number], version=holding.base.version
            )

    def write(self, tensor: Tensor, value: Ref) -> None:
        """Write a new value to a tensor in place, and to all memory that it views."""
        self.read(tensor)
        holding = self._find(tensor)
        # The value of each view on the way from the base: the new one is put back through all of them.
        seen = [holding.base.value]
        for view in holding.views[:-1]:
            seen.append(self._take(view, seen[-1]))
        new = value
        for view, before in zip(reversed(holding.views), reversed(seen[: len(holding.views)]), strict=True):
            new = self._put(view, before, new)
        holding.base.value = new
        holding.base.version += 1
        holding.value, holding.version = value, holding.base.version

    def forget(self) -> None:
        """Free the tensors that only this memory still refers to: no operation can read them any more."""
        freed = True
        while freed:  # what autograd saves for the backward of a tensor becomes free with it
            freed = False
            for key in reversed([*self._holdings]):
                if getrefcount(self._holdings[key].tensor) <= _OWN_REFERENCES:
                    del self._holdings[key]
                    freed = True
        # The address of a freed storage may be given out again.
        storages = {holding.storage for holding in self._holdings.values()}
        self._bases = {storage: base for storage, base in self._bases.items() if storage in storages}

    def _find(self, tensor: Tensor) -> _Holding:
        holding = self._holdings.get(id(tensor))
        # `set_` and `.data =` give a tensor other memory, and what is known of it no longer holds.
        return holding if holding and holding.storage == find_storage(tensor) else self._adopt(tensor)

    def _adopt(self, tensor: Tensor) -> _Holding:
        """Register a tensor that no recorded operation created: an alias of known memory, or a constant."""
        base = self._bases.get(find_storage(tensor))
        if base is None:
            if tensor.is_meta:
                raise UnknownValueError(f"no operation is known to give {describe_type(tensor)}")
            (ref,) = self._append("constant", (("value", describe_constant(tensor)),), (describe_type(tensor),))
            self.hold(tensor, ref)
            return self._holdings[id(tensor)]
        aliases = [other for other in self._holdings.values() if other.base is base]
        same = (o for o in aliases if not is_lazy(o.tensor) and _layout(o.tensor) == _layout(tensor))
        holding = next(same, None)
        if holding is None:
            # No recorded view leads to it, but its strides identify its part of the memory.
            whole = next((other.tensor for other in aliases), None)
            layout = (
                ("size", tuple(tensor.shape)),
                ("stride", tensor.stride()),
                ("storage_offset", tensor.storage_offset()),
                ("source", None if whole is None else describe_strides(whole)),
            )
            before = self._nodes[base.value.node].outputs[base.value.output]
            view = _View("as_strided", "input", layout, before, (describe_type(tensor),), 0)
            holding = _Holding(tensor, base, (view,), base.value, -1, find_storage(tensor))
        self._holdings[id(tensor)] = replace(holding, tensor=tensor)
        return self._holdings[id(tensor)]

    def _take(self, view: _View, value: Ref) -> Ref:
        return self._append(view.op, ((view.first, value), *view.rest), view.outputs)[view.output]

    def _put(self, view: _View, before: Ref, new: Ref) -> Ref:
        """Return the source of a view after the view got a new value."""
        dtype = view.before.dtype
        if view.op in _RESHAPES:
            same = dtype == view.outputs[view.output].dtype
            op, kind = ("reshape", ("shape", view.before.shape)) if same else ("view_dtype", ("dtype", dtype))
            return self._append(op, (("input", new), kind), (view.before,))[0]
        part = (("output", view.output),) if len(view.outputs) > 1 else ()
        arguments = (("input", before), ("src", new), *view.rest, *part)
        return self._append(f"{view.op}_scatter", arguments, (view.before,))[0]


def describe_type(tensor: Tensor) -> TensorType:
    """Return dtype and shape of a tensor."""
    return TensorType(_name_dtype(tensor.dtype), tuple(map(int, tensor.shape)))


def describe_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Return how a tensor lies in memory: its strides, then its offset; None if it is contiguous from the start."""
    plain = tensor.is_contiguous() and not tensor.storage_offset()
    return None if plain else (*tensor.stride(), int(tensor.storage_offset()))


def describe_constant(tensor: Tensor) -> Argument:
    """Return a small constant by its elements, a larger one as a digest of its bytes."""
    # Not a read of the network's own: the device mode would call what the recorder has put in place of these methods.
    with torch._C.DisableTorchFunction():
        if tensor.numel() <= _STORED_ELEMENTS and not tensor.is_complex():
            return _tuples(TensorBase.tolist(tensor.detach()))
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.sha256(TensorBase.numpy(data).tobytes()).hexdigest()


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors among arguments or results."""
    if isinstance(value, Tensor):
        return [value]
    tensors: list[Tensor] = []
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, list | tuple):
            tensors += tensors_in(item)
    return tensors


@cache
def _name_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def find_storage(tensor: Tensor) -> int:
    """Return the memory address that a tensor views."""
    return int(tensor.untyped_storage()._cdata)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def _tuples(value: Any) -> Argument:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


# --- facts of single operations ---------------------------------------------------------------------------------------

#: Operations that show values to Python: elements, or how many of them satisfy a condition.
_OF_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


@dataclass(frozen=True, slots=True)
class RecordedParameter:
    """One parameter of an operation."""

    name: str
    is_number: bool
    default: Any


@dataclass(frozen=True, slots=True)
class OperationFacts:
    """The facts that the schema of an operation states."""

    name: str  # in ATen without the overload
    parameters: tuple[RecordedParameter, ...]
    written: tuple[str, ...]  # the names of the parameters that it writes to
    is_random: bool
    is_view: bool  # its result shares memory with what it reads
    is_fresh: bool  # its results are new tensors, which its shapes and numbers alone determine
    is_in_place: bool  # it gives its first argument other values, and nothing else unless that shows
    may_show: bool  # it gives Python elements, or a tensor whose size depends on values


@cache
def read_facts(func: OpOverload) -> OperationFacts:
    """Return the facts of an operation, read from its schema once."""
    schema, tags = func._schema, func.tags
    name = schema.name.removeprefix("aten::")
    parameters = tuple(
        RecordedParameter(
            argument.name,
            # A number may replace a tensor.
            str(argument.real_type).removeprefix("Optional[").rstrip("]") in ("number", "Tensor"),
            argument.default_value if argument.has_default_value() else None,
        )
        for argument in schema.arguments
    )
    random, may_show = torch.Tag.nondeterministic_seeded in tags, not _OF_VALUES.isdisjoint(tags)
    returned = [item.alias_info for item in schema.returns]
    aliases = [*(item.alias_info for item in schema.arguments), *returned]
    written = [alias is not None and alias.is_write for alias in aliases]
    in_first = [index in (0, len(parameters)) for index in range(len(parameters) + 1)]
    return OperationFacts(
        name,
        parameters,
        tuple(parameter.name for parameter, writes in zip(parameters, written, strict=False) if writes),
        random,
        is_view=any(alias is not None and not alias.is_write for alias in returned),
        is_fresh=not (random or may_show) and all(alias is None for alias in aliases),
        is_in_place=name != "set_" and written == in_first,  # `set_` gives it other memory
        may_show=may_show,
    )


def shows_values(func: OpOverload, arguments: Mapping[str, Any]) -> bool:
    """Return whether an operation gives Python elements, or a tensor whose size depends on values."""
    if not read_facts(func).may_show:
        return False
    indices = arguments.get("indices")  # with boolean masks the size depends on values
    return indices is None or any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(indices))
