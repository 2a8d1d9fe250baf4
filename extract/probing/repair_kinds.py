"""Repairs of kinds: numbers, indices and masks, missing arguments, lists, dicts and objects for tensors."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from extract.probing.shapes import Layers, fixed, like_main, pyramid, with_value
from extract.probing.situation import WORD, Situation, changed
from extract.probing.tensors import FLOAT, INDEX, MASK, POSITIVE, Fields, Inputs, Items, Literal, Tensor, Value


def missing(at: Situation, text: str) -> Iterator[Inputs]:
    """Optional arguments that turn out to be needed."""
    if not re.search(
        r"NoneType|None|missing|must be (specified|provided|given|set)|at least one|either|specify|required|You have to"
        r"|expected|assert",
        text + "".join(at.mistake.lines[-1:]),
    ):
        return
    given = dict(at.inputs)
    words = [word for line in reversed(at.mistake.lines) for word in WORD.findall(line)] + WORD.findall(text)
    optional = [
        name
        for name, parameter in at.parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    named = [word for word in dict.fromkeys(words) if word in optional]
    empty = [name for name in named if name not in given or given[name] == Literal("None")]
    for name in empty or [n for n in optional if n not in given][:2]:
        for value in like_main(name, at.main, loss=at.loss):
            if value != Literal("None"):
                yield with_value(at.inputs, name, value)


def scalars(at: Situation, text: str) -> Iterator[Inputs]:
    """Where a tensor stands for a number or a size."""
    if not re.search(
        r"only integer tensors|must be (an )?(int|tuple of ints)|concatenate tuple|cannot be interpreted as an integer"
        r"|is ambiguous|integer is required|only one element tensors|unhashable|'Tensor' and 'int'"
        r"|a Tensor with \d+ elements",
        text,
    ):
        return
    for name in at.implicated():
        if isinstance(dict(at.inputs)[name], Tensor):
            for number in ("4", "(4, 4)", "2", "1", "(2, 4, 4)"):
                yield with_value(at.inputs, name, Literal(number))


def kinds(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages about types of numbers."""
    lower = text.lower()
    if any(
        hint in lower for hint in ("long", "int64", "indices", "one_hot", "as indices", "integer", "'index'", "int ")
    ):
        for name in at.implicated():
            yield from changed(at, name, lambda tensor: replace(tensor, kind=INDEX) if tensor.kind != INDEX else None)
            yield from changed(
                at,
                name,
                lambda tensor: (
                    Tensor(tensor.shape[:2], INDEX) if tensor.kind != INDEX and len(tensor.shape) > 2 else None
                ),
            )
            yield from changed(
                at,
                name,
                lambda tensor: (
                    Tensor(tensor.shape[:1], INDEX) if tensor.kind != INDEX and len(tensor.shape) > 1 else None
                ),
            )
    if any(hint in lower for hint in ("float", "long", "bool", "floating", "complex")):
        for name in at.implicated():
            yield from changed(at, name, lambda tensor: replace(tensor, kind=FLOAT) if tensor.kind != FLOAT else None)
    if "bool" in lower or "mask" in lower or "byte" in lower:
        for name in at.implicated():
            yield from changed(at, name, lambda tensor: replace(tensor, kind=MASK) if tensor.kind != MASK else None)
    if "between 0 and 1" in lower or "all elements of input should be" in lower:
        for name in at.implicated():
            yield from changed(
                at, name, lambda tensor: replace(tensor, kind=POSITIVE) if tensor.kind != POSITIVE else None
            )
    if "index out of range" in lower or "out of bounds" in lower:
        for name in at.implicated():
            yield from changed(
                at, name, lambda tensor: replace(tensor, below=1) if tensor.kind == INDEX and tensor.below > 1 else None
            )


def containers(at: Situation, text: str) -> Iterator[Inputs]:
    """Where a tensor stands for a list, a tuple or a dict, or the other way round."""
    line = at.mistake.lines[-1] if at.mistake.lines else ""
    given = dict(at.inputs)
    names = [name for name in at.implicated() if not isinstance(given[name], Literal)][:3]
    if re.search(
        r"must be Tensor, not (list|tuple)|list indices must be|(list|tuple) and|, not (list|tuple)|got \((list|tuple)"
        r"|'(list|tuple)'",
        text,
    ):
        for name in names:
            value = given[name]
            if isinstance(value, Items) and value.values:
                yield with_value(at.inputs, name, value.values[0])
    if re.search(
        r"list|tuple|sequence|len\(|zip|enumerate|isinstance|index out of range|for .* in ",
        text + " " + line,
    ):
        for name in names:
            value = given[name]
            if isinstance(value, Tensor):
                yield from (with_value(at.inputs, name, item) for item in _lists_of(value, at.layers))
            elif isinstance(value, Items):
                longer = (*value.values, value.values[-1])
                yield with_value(at.inputs, name, replace(value, values=_falling(longer)))
                yield with_value(at.inputs, name, replace(value, values=value.values[:-1] or value.values))
                yield with_value(at.inputs, name, replace(value, values=_falling((*longer, value.values[-1]))))
    if re.search(
        r"'Tensor' object has no attribute '(keys|items|values|get|pop)'|only integers, slices|string indices|KeyError"
        r"|invalid data type 'str'",
        text + type(at.mistake.error).__name__,
    ) or ("too many indices" in text and re.search(r"\[['\"]\w+['\"]\]", line)):
        keys = re.findall(r"\[['\"](\w+)['\"]\]", " ".join(at.mistake.lines)) or [str(at.mistake.error).strip("'\"")]
        for name in names:
            yield from _with_fields(at, name, keys, attributes=False)
    match = re.search(r"'(Tensor|types\.SimpleNamespace|dict|list)' object has no attribute '(\w+)'", text)
    if match and not hasattr(torch.Tensor, match[2]):
        for name in names:
            yield from _with_fields(at, name, [match[2]], attributes=True)


def _with_fields(at: Situation, name: str, keys: Sequence[str], *, attributes: bool) -> Iterator[Inputs]:
    """An argument as a dict or an object that has these keys too."""
    value = dict(at.inputs)[name]
    known = dict(value.values) if isinstance(value, Fields) and value.attributes == attributes else {}
    fresh = {key: known.get(key) or fixed(key) or at.main for key in (*known, *keys) if key.isidentifier()}
    if fresh and fresh.keys() != known.keys():
        yield with_value(at.inputs, name, Fields(tuple(fresh.items()), attributes))


def _lists_of(value: Tensor, layers: Layers) -> Iterator[Value]:
    if len(value.shape) == 4:
        if len(layers.channels) > 1:
            yield pyramid(layers.channels, len(layers.channels))
        for levels in (2, 3, 4, 5):
            yield pyramid(value.shape[1], levels)
        yield Items((value, value))
    else:
        yield Items((value, value))
        yield Items((value,) * 3)
    yield Items((value,))


def _falling(values: Sequence[Value]) -> tuple[Value, ...]:
    """Maps of equal size become a pyramid when more of them are needed."""
    last = values[-1]
    if isinstance(last, Tensor) and len(last.shape) == 4 and last.shape[-1] > 1:
        half = last.with_shape((*last.shape[:2], max(1, last.shape[-2] // 2), max(1, last.shape[-1] // 2)))
        return (*values[:-1], half)
    return tuple(values)
