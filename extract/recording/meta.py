"""Inside the sandbox: run models without computing their values, where they allow it.

Large tensors live on the meta device: they have shapes but no values, so that a model of a billion parameters is
constructed and run in a moment. Small ones that a constructor computes with (`torch.linspace(0, rate, depth)`,
indices of relative positions) keep their values, which `torch.device("meta")` would drop.

    with LightTensors():
        rates = [rate.item() for rate in torch.linspace(0, 0.1, 12)]    # real numbers
        layer = torch.nn.Linear(4096, 4096)                             # 16 million weights that take no memory
        layer(torch.randn(2, 4096)).shape                               # (2, 4096), on the meta device
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_NEW_EMPTY = torch.Tensor.new_empty
#: Functions that create tensors of a size that is an argument; others whose results have no values worth keeping.
_SIZED = frozenset(
    (torch.empty, torch.rand, torch.randn, torch.randint, _NEW_EMPTY, torch.zeros, torch.ones, torch.full)
)
_WITHOUT_VALUES = frozenset((torch.empty_strided, torch.normal))
_MOST_KEPT = 1 << 14  # elements of a tensor that keeps its values
_MOST_DRAWN = 4_000_000  # elements of what is constructed on the CPU at a time: large models take seconds there
_MOVES = frozenset((torch.Tensor.cuda, torch.Tensor.cpu))
_TO = torch.Tensor.to
#: Functions whose kernels for the meta device are in Python; they return their first argument.
_INITIALIZATIONS = frozenset((torch.Tensor.normal_, torch.Tensor.uniform_))
_NORMALIZATIONS = frozenset((F.batch_norm, F.group_norm, F.layer_norm))  # 2 ms in Python on the meta device


class LargeModelError(Exception):
    """More elements were drawn on the CPU than allowed."""


class LightTensors(TorchFunctionMode):
    """Create large tensors on the meta device; what mixes both devices runs there. A context manager.

    A move to a device does nothing: the model stays where it was constructed.

    A small model keeps its values, by which it may select edges, boxes or experts.

    Args: on_meta: False to keep all tensors on the CPU, and only drop moves to other devices.
    """

    def __init__(self, *, on_meta: bool = True) -> None:
        super().__init__()
        self._on_meta = on_meta
        self._left = _MOST_DRAWN

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of PyTorch. Raises: LargeModelError if more is drawn on the CPU than may be."""
        named = dict(kwargs or {})
        if func in _MOVES:
            return args[0]
        if func is _TO:
            given = (*args[1:], *named.values())
            dtypes = [getattr(item, "dtype", item) for item in given if isinstance(item, torch.Tensor | torch.dtype)]
            return func(args[0], dtypes[0]) if dtypes else args[0]
        if named.get("device") is not None and str(named["device"]) != "meta":
            named["device"] = torch.device("cpu")
        tensors = list(_list_tensors((*args, *named.values())))
        if not self._on_meta:
            if func in _INITIALIZATIONS or getattr(func, "__module__", "") == nn.init.__name__:
                self._left -= sum(tensor.numel() for tensor in tensors)
                if self._left < 0:
                    raise LargeModelError("the model is too large to be constructed on the CPU")
        elif func in _WITHOUT_VALUES or (func in _SIZED and _count(func, args, named) > _MOST_KEPT):
            if named.get("out") is None:
                named["device"] = torch.device("meta")
            named.pop("generator", None)
            named.pop("pin_memory", None)
        elif any(tensor.is_meta for tensor in tensors):
            if not all(tensor.is_meta for tensor in tensors):
                args, named = tree_map(_to_meta, (args, named))
            if named.get("device") is not None:
                named["device"] = torch.device("meta")
            if func in _INITIALIZATIONS and torch.is_floating_point(args[0]):
                return args[0]
            if func in _NORMALIZATIONS and len(args) > 1 and _fits(func, args, named):
                return torch.empty_like(args[0])
        return func(*args, **named)


def _count(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> int:
    """Return how many elements a new tensor has; 0 if its size is unclear."""
    if func is torch.randint:  # `randint(high, size)`, `randint(low, high, size)`
        sizes: Sequence[Any] = [value for value in args if not isinstance(value, int)]
    else:
        sizes = args[1:] if func is _NEW_EMPTY else args[:1] if func is torch.full else args
    size = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes or named.get("size", ())
    try:
        return int(torch.Size(size).numel())
    except TypeError:
        return 0


def _fits(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a normalization accepts its input, (N, C, ...): the result has the same shape then."""
    shape, second = args[0].shape, args[1]
    if func is F.layer_norm:
        return tuple(shape[-len(second) :]) == tuple(second)
    widths = {tensor.numel() for tensor in _list_tensors((*args[1:], *named.values()))}
    return len(shape) > 1 and widths <= {shape[1]} and (func is F.batch_norm or shape[1] % second == 0)


def _list_tensors(values: Iterable[Any], depth: int = 2) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif depth and isinstance(value, list | tuple):
            yield from _list_tensors(value, depth - 1)


def _to_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, torch.Tensor) and not value.is_meta else value
