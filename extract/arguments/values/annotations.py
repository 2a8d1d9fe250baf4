"""Inside the sandbox: which arguments of a call do not fit the annotations of their parameters.

    def forward(self, inputs: tuple[Tensor, Tensor]): ...      # inputs=torch.ones(2, 3) runs, by accident

What is not a tensor, a number, a text, or a container of these, fits whatever it is passed to.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from extract.arguments.values.inputs import is_variadic

_MOST_CHARACTERS = 80  # of an annotation
_NUMBERS: Mapping[type, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.number),
    str: (str,),
    torch.Tensor: (torch.Tensor,),
}
_PLAIN = (*{kind for kinds in _NUMBERS.values() for kind in kinds}, tuple, list, dict, type(None))


def list_misfits(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], args: Sequence[Any], kwargs: Any
) -> list[str]:
    """Return the arguments that do not fit, each with the type of its value and the annotation.

    Args:
        function: whose annotations count: `forward`, or `__init__`.
        parameters: of the call, in order.
    """
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - annotations are foreign code
        return []
    passed = dict(zip(parameters, args, strict=False)) | dict(kwargs)
    return [
        f"{name}: {type(value).__name__} for {_format(hints[name])}"
        for name, value in passed.items()
        if name in hints
        and not is_variadic(parameters[name])
        and value is not parameters[name].default
        and not fits(value, hints[name])
    ]


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value may be what an annotation says; True if that cannot be told."""
    origin, items = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, item) for item in items)
    if origin is typing.Annotated:
        return fits(value, items[0])
    if hint is type(None):
        return value is None
    if not isinstance(value, _PLAIN):  # such as a layer
        return True
    if isinstance(hint, type) and origin is None:
        kinds = next((kinds for kind, kinds in _NUMBERS.items() if hint is kind), None)
        return kinds is None or (isinstance(value, kinds) and (hint is bool or not isinstance(value, bool)))
    if not items:  # `List`, without what is in it
        return not isinstance(origin, type) or isinstance(value, origin | tuple | list)
    if origin is tuple:
        whole = [items[0]] * len(value) if items[1:] == (...,) and isinstance(value, tuple | list) else items
        return isinstance(value, tuple | list) and len(whole) == len(value) and all(map(fits, value, whole))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Iterator):
        return isinstance(value, tuple | list | dict | str) and all(fits(item, items[0]) for item in value)
    return True


def _format(hint: Any) -> str:
    text = inspect.formatannotation(hint).replace("typing.", "").replace("torch.", "").replace("collections.abc.", "")
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
