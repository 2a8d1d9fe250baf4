"""Inside the sandbox: what a call that works shows, and signs that it is not what the authors mean, or shows little.

    def forward(self, inputs: tuple[Tensor, Tensor]): ...      # inputs=torch.ones(2, 3) runs, by accident

Each other sign is measured with the inputs of the call, changed in one way, in eval mode:

    x / x.sum(1, keepdim=True)      # of (2, 16, 24) something else than of (2, 16): which is meant, no call shows
    x * (1 + level)                 # of `level=1` something else than of `level=3`
    1 / distance                    # of a distance that was drawn around zero
"""

import functools
import inspect
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from extract.arguments.forwarding import ForwardCall, evaluate
from extract.arguments.trials import MODULE_NAME, BlockNamespace
from extract.arguments.values import flatten, has_shape, is_variadic, value_text

_MOST_OUTPUTS = 32  # tensors that are described
_COPIES = 3  # of an input along one more axis
_MOST_ELEMENTS, _FEW_ELEMENTS = 1_000_000, 100_000  # of inputs: one sign takes one run, the others take some
_SMALLER, _GROWN = 1e-4, 1e2  # inputs multiplied by the one give outputs as many times larger
_NUMBER = re.compile(r"-?\d+(\.\d+)?")

_Tensors = Sequence[torch.Tensor]
#: Run the call with changed inputs, and with other expressions for some arguments; no tensors if it fails so.
Run = Callable[[Callable[[torch.Tensor], torch.Tensor], Mapping[str, str]], _Tensors]


def describe(module: nn.Module) -> dict[str, Any]:
    """Return the numbers of parameters and buffers, and how often each type of layer occurs."""
    parameters = [p for p in nn.Module.parameters(module) if has_shape(p)]
    kinds = Counter(type(layer) for layer in module.modules() if layer is not module)
    names = Counter(kind.__name__ for kind in kinds)
    layers = Counter[str]()
    for kind, count in kinds.items():
        shared = names[kind.__name__] > 1 and kind.__module__ != MODULE_NAME
        layers[f"{kind.__module__}.{kind.__name__}" if shared else kind.__name__] += count
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "buffers": sum(b.numel() for b in nn.Module.buffers(module) if has_shape(b)),
        "layers": dict(sorted(layers.items(), key=lambda item: (-item[1], item[0]))),
    }


def describe_case(called: ForwardCall, names: BlockNamespace, output: object) -> dict[str, Any]:
    """Describe the inputs and outputs of one call."""
    return {"inputs": describe_inputs(called, names), "outputs": describe_outputs(output)}


def describe_inputs(called: ForwardCall, names: BlockNamespace) -> dict[str, str]:
    """Describe the inputs of a call by argument."""
    args, kwargs = evaluate(called, names)
    inputs: dict[str, str] = {}
    for name, value in [*((f"*{index}", item) for index, item in enumerate(args)), *kwargs.items()]:
        _list_inputs(name, value, inputs)
    return inputs


def describe_outputs(output: object) -> list[str]:
    """Describe the tensors of an output, in order."""
    return [value_text(tensor) for tensor in flatten(output)][:_MOST_OUTPUTS]


def _list_inputs(name: str, value: Any, into: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _list_inputs(f"{name}.{key}", item, into)
    elif isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        for index, item in enumerate(value):
            _list_inputs(f"{name}.{index}", item, into)
    else:
        plain = isinstance(value, int | float | None | tuple)
        into[name] = value if isinstance(value, str) else repr(value)[:40] if plain else value_text(value)


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Return whether two outputs are equal; NaN equals NaN."""
    return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if not a.is_floating_point() and not a.is_complex():
        return torch.equal(a, b)
    is_nan = torch.isnan(a)
    return torch.equal(is_nan, torch.isnan(b)) and torch.equal(a.masked_fill(is_nan, 0), b.masked_fill(is_nan, 0))


def find_nothing(module: nn.Module, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> str | None:
    """Return why a call that ended well shows nothing of what the class computes; None if it does."""
    if any(tensor.is_meta for tensor in outputs):
        return "it returned a tensor without values"
    filled = [tensor for tensor in outputs if tensor.numel()]
    if not filled:
        return "every tensor that it returned is empty"
    if all(t.is_floating_point() and t.layout is torch.strided and bool(t.isnan().all()) for t in filled):
        return "every value that it returned is NaN"
    code = getattr(inspect.getattr_static(type(module), "forward", None), "__code__", None)
    if code is not None and not code.co_filename.endswith(f"{MODULE_NAME}.py") and same(outputs, inputs):
        return "it returned its input, and no line of the class ran"
    return None


# -- signs of an accident ----------------------------------------------------------------------------------------------


def observe_signs(
    run: Run, inputs: _Tensors, others: _Tensors, kwargs: Mapping[str, str], *, guessed: bool
) -> dict[str, Any]:
    """Return the fields of an Observed record that say what is doubtful about a call; none if its inputs are large.

    Args:
        others: the same inputs, drawn again.
        kwargs: the arguments by name, as expressions.
        guessed: nobody wrote this call, or passed its values in a model of the source.
    """
    size = sum(tensor.numel() for tensor in inputs)
    if not inputs or size > _MOST_ELEMENTS:
        return {}
    output = run(torch.clone, {})
    signs: dict[str, Any] = {"has_pole": _has_pole(run, output, inputs)} if guessed else {}
    if size > _FEW_ELEMENTS:
        return signs
    signs |= {"mixes_samples": _mixes_samples(run, output, inputs, others)}
    if guessed:
        ranks = list(_list_other_ranks(run, output, inputs[0].dim()))
        signs |= {"other_ranks": ranks, "open_numbers": list(_list_open_numbers(run, output, kwargs))}
    return signs


def _list_other_ranks(run: Run, output: _Tensors, rank: int) -> Iterator[int]:
    """Yield with how many dimensions the inputs run, too, and what is computed then is something else.

    Copies of an input along one more axis give copies of its output where an axis more is one that nothing looks at.
    """

    def select(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.select(axis, 0) if tensor.dim() == rank else tensor

    def copy(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.stack([tensor] * _COPIES, axis) if tensor.dim() == rank else tensor

    def copy_selected(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.select(axis, 0).unsqueeze(axis).expand_as(tensor) if tensor.dim() == rank else tensor

    def differ(other: int, axis: int) -> bool | None:
        """Return whether copies along an axis give something else; None if they or the original fail."""
        change = select if other < rank else copy
        changed = run(functools.partial(change, axis=axis), {})
        if not changed:
            return None
        if other > rank:
            return not _are_copies(output, changed)
        copies = run(functools.partial(copy_selected, axis=axis), {})
        return not _are_copies(changed, copies) if copies else None

    for other, axes in ((rank - 1, {0, 1, rank - 1}), (rank + 1, {0, 1, rank})):
        verdicts = {differ(other, axis) for axis in sorted(axes)} if other > 0 and output else set()
        if True in verdicts and False not in verdicts:
            yield other


def _are_copies(lower: _Tensors, upper: _Tensors) -> bool:
    return len(lower) == len(upper) and all(
        _close(one, many) or any(_close(one.squeeze(), many.select(axis, 0).squeeze()) for axis in range(many.dim()))
        for one, many in zip(lower, upper, strict=True)
    )


def _list_open_numbers(run: Run, output: _Tensors, kwargs: Mapping[str, str]) -> Iterator[str]:
    """Yield the arguments that are guessed numbers, where another number gives another output of the same shape."""
    for name, text in kwargs.items():
        if not _NUMBER.fullmatch(text):
            continue
        other = f"{2 * float(text) + 1}" if "." in text else f"{2 * int(text) + 1}"
        changed = run(torch.clone, {name: other})
        is_alike = [one.shape for one in output] == [other.shape for other in changed]
        if is_alike and not all(map(_close, output, changed)):
            yield name


def _has_pole(run: Run, output: _Tensors, inputs: _Tensors) -> bool:
    """Return whether the output grows without bound near zero, where inputs of both signs are drawn around it."""
    if not any(tensor.is_floating_point() and tensor.numel() and tensor.min() < 0 < tensor.max() for tensor in inputs):
        return False
    near = run(lambda tensor: tensor * _SMALLER if tensor.is_floating_point() else tensor, {})
    return len(near) == len(output) and any(
        one.shape == two.shape and one.is_floating_point() and one.numel() > 0 and bool(two.isfinite().all())
        and two.abs().median() > _GROWN * one.abs().median() > 0
        for one, two in zip(output, near, strict=True)
    )  # fmt: skip


def _mixes_samples(run: Run, output: _Tensors, inputs: _Tensors, others: _Tensors) -> bool:
    """Return whether the output of the first sample is another one beside other samples.

    The first axis is that of samples where the first input and an output have as many. It is one of samples and of
    parts of them if it grows with the batch: then fewer rows than the parts of one sample stay as they were.
    """
    batch = len(inputs[0]) if inputs[0].dim() > 1 else 0
    if batch < 2:
        return False
    waiting = iter(others)

    def is_batch(tensor: torch.Tensor) -> bool:
        return tensor.dim() > 0 and len(tensor) == batch

    def change(tensor: torch.Tensor) -> torch.Tensor:
        other = next(waiting, tensor)
        is_alike = is_batch(tensor) and other.shape == tensor.shape
        return torch.cat([tensor[:1], other[1:]]) if is_alike else tensor

    def mixes(place: int, one: torch.Tensor, other: torch.Tensor) -> bool:
        if one.shape != other.shape or not one.dim() or not len(one) or len(one) % batch or one.layout != torch.strided:
            return False
        parts = len(one) // batch
        if parts == 1:
            return not _close(one[:1], other[:1])
        if sum(_close(row, other_row) for row, other_row in zip(one, other, strict=True)) >= parts:
            return False
        larger = run(lambda tensor: torch.cat([tensor, tensor[:1]]) if is_batch(tensor) else tensor, {})
        return len(larger) > place and larger[place].dim() > 0 and len(larger[place]) > len(one)

    changed = run(change, {})
    pairs = zip(output, changed, strict=False)
    return len(output) == len(changed) and any(mixes(place, *pair) for place, pair in enumerate(pairs))


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = (t.to_dense() if t.layout is not torch.strided else t for t in (one, other))
    wide = torch.complex128 if one.is_complex() else torch.float64
    return torch.allclose(one.to(wide), other.to(wide), rtol=1e-3, atol=1e-4, equal_nan=True)


# -- values that do not fit their annotations -------------------------------------------------------------------------

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
