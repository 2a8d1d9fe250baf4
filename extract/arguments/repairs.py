"""Repair the inputs of forward after an error: yield other inputs to try, most likely first.

Here are other kinds of values: dicts, lists, dtypes, numbers. The failing line names the argument.
"""

import ast
import contextlib
import linecache
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import torch

from extract.arguments.messages import NAME
from extract.arguments.probe import MODULE_NAME
from extract.arguments.resizing import (
    MAX_RANK,
    ROWS,
    FailedCall,
    alike,
    any_pair,
    bounds,
    change_rank,
    flattened,
    grow,
    nothing,
    other_ranks,
    other_sizes,
    ranks,
    read_numbers,
    resize,
    shares,
    shorten,
    sizes_in_message,
    views,
)
from extract.arguments.settings import FIRST
from extract.arguments.values.inputs import (
    BATCH,
    BYTE,
    COMPLEX,
    FLOAT,
    INDEX,
    MASK,
    POSITIVE,
    UNMASKED,
    FieldValues,
    Inputs,
    Layers,
    ListOfValues,
    Literal,
    Tensor,
    Value,
    fit_graph,
    guess_field,
    is_variadic,
    propose_like_main,
    pyramid,
    with_value,
)
from lemur_core.sandbox.server.foreign import read_traceback

_MAX_LISTED = 8  # items of a list
_NONE = Literal("None")


def missing(at: FailedCall) -> Iterator[Inputs]:
    """Add optional arguments that turn out to be needed."""
    if not re.search(
        r"None|missing|must be (specified|provided|given|set)|either|[Ss]pecify|required|You have to|expected|assert",
        at.text + at.line,
    ):
        return
    values = dict(at.inputs)
    optional = [name for name, parameter in at.parameters.items() if not is_variadic(parameter)]
    named = [word for word in at.words() if word in optional and values.get(word, _NONE) == _NONE]
    for name in named or [name for name in optional if name not in values][:2]:
        for value in propose_like_main(name, at.main, loss=at.loss):
            # None is what the argument has now.
            if value != _NONE:
                yield with_value(at.inputs, name, value)


_INDEXED = re.compile(
    r"(?:indices must be integers or slices, not str|too many indices for tensor|invalid data type 'str'"
    r"|only integers, slices|is not subscriptable)"
)
_KEY = re.compile(r"\w\[f?[\"']|[\"'] (?:not )?in ")
_TESTED = re.compile(r"[\"'](\w+)[\"'] (?:not )?in (\w+)\b")
_LACKS = re.compile(r"'([\w.]+)' object has no attribute '(\w+)'")
_OPEN_KINDS = frozenset({"Tensor", "NoneType", "list", "dict", "Record", "SimpleNamespace", "types.SimpleNamespace"})
_OF_DICTS = frozenset({"items", "keys", "values", "get", "update", "copy", "pop"})


def records(at: FailedCall) -> Iterator[Inputs]:
    """Use a dict or an object with attributes where a value is read like one, and add the item that is missing.

    What has been read by key or as an attribute so far is read both ways from then on.
    """
    cause = at.failure.cause
    names, lack = dict(at.inputs), _LACKS.search(at.text)
    texts = [value.text for value in names.values() if isinstance(value, Literal)]
    is_kind = lack and (lack[1] in _OPEN_KINDS or any(text.startswith(f"{lack[1]}(") for text in texts))
    lacks = lack[2] if lack and is_kind else ""
    item = cause.args[0] if isinstance(cause, KeyError) and cause.args and isinstance(cause.args[0], str) else ""
    indexed = re.findall(r"(\w+)\[", at.line) if _INDEXED.search(at.text) else []
    tested: dict[str, list[str]] = {}  # of a failed assertion: `"width" in sizes`
    for key, known in _TESTED.findall(at.line):
        tested.setdefault(known, []).append(key)
    held = re.findall(rf"(\w+)\.{lacks}\b", at.line) if lacks else []
    features = (at.layers.channels or (32,))[:1]
    main = at.main if len(at.main.shape) > 1 else Tensor((ROWS, *features))
    if lacks and "NoneType" in at.text and (hasattr(torch.Tensor, lacks) or not names.keys() & {*held}):
        return  # a tensor that was left out
    if (indexed or held) and not names.keys() & {*indexed, *held, *tested}:
        held, indexed = (list(names)[:1] if read else [] for read in (held, indexed))  # another name, in a helper
    for name, whole in names.items():
        listed = whole if isinstance(whole, ListOfValues) and isinstance(whole.values[0], FieldValues) else None
        value = listed.values[0] if listed else whole
        record = value if isinstance(value, FieldValues) and value.fields else FieldValues(by_key=False)
        field = item if item and isinstance(value, FieldValues) else lacks if name in held else ""
        lacking = [key for key in (field, *tested.get(name, ())) if key and key not in dict(record.fields)]
        around = Tensor((BATCH, *features)) if listed else main
        if not record.fields and "no_output" in at.text and isinstance(value, FieldValues):
            lacking = ["x"]
        if not listed and (name in indexed or field in _OF_DICTS):
            yield with_value(at.inputs, name, replace(record, by_key=True))
        elif lacking:
            method = re.search(rf"\.{re.escape(field)}\(", at.line)
            fresh = ((key, _CALLABLE if method else guess_field(key, around, loss=at.loss)) for key in lacking)
            ways = record.by_key or not lacks, record.by_attribute or bool(lacks)
            fitted = fit_graph(FieldValues((*record.fields, *fresh), *ways))
            items = replace(listed, values=(fitted,) * len(listed.values)) if listed else fitted
            yield with_value(at.inputs, name, items)


_CALLABLE = Literal(FIRST)


def callables(at: FailedCall) -> Iterator[Inputs]:
    """Use a function for what is called: an operator, a model, or a method of either."""
    if "object is not callable" not in at.text:
        return
    called = _CALLED.findall(at.line)
    for name, value in at.inputs:
        if name in (match[0] for match in called) and not isinstance(value, Literal):
            yield from (with_value(at.inputs, name, function) for function in (_CALLABLE, Literal("nn.Identity()")))


#: Patterns of messages about dtypes, and the kind of tensor that they ask for.
KINDS: tuple[tuple[str, str], ...] = (
    (r"non-complex|complex (data ?)?(type|tensor)|(expected|must be) (a )?complex|view_as_real", COMPLEX),
    (r"uint8", BYTE),
    (r"long|int64|indices|one_hot|integer|'index'|int ", INDEX),
    (r"float|long|bool|complex|mixed dtype", FLOAT),
    (r"bool|mask|byte", MASK),
    (r"between 0 and 1|all elements of input should be|is nan|>= ?0|within (the )?bounds", POSITIVE),
)


def kinds(at: FailedCall) -> Iterator[Inputs]:
    """Use messages about dtypes."""
    lower = at.text.lower()
    for pattern, kind in KINDS:
        if re.search(pattern, lower):
            if kind == POSITIVE:
                yield from at.all_with(lambda tensor: replace(tensor, kind=POSITIVE) if tensor.kind == FLOAT else None)
                yield from at.all_with(lambda tensor: replace(tensor, kind=UNMASKED) if tensor.kind == MASK else None)
            for name in at.suspects():
                yield from at.with_tensors(name, partial(replace, kind=kind))
                for rank in (2, 1) if kind == INDEX else ():
                    yield from at.with_tensors(name, partial(_indices, rank=rank))
    if "index out of range" in lower or "out of bounds" in lower:
        yield from at.each_with(lambda tensor: replace(tensor, below=1) if tensor.kind == INDEX else None)
        yield from at.all_with(
            lambda tensor: replace(tensor, kind=POSITIVE) if tensor.kind == FLOAT else None
        )  # `x.long()`


_WANTS_NUMBER = re.compile(
    r"arange\(\)|type must be .*ints?\b.*got Tensor|takes \d positional argument|must be int, not Tensor"
)


def numbers(at: FailedCall) -> Iterator[Inputs]:
    """Use a number for a tensor that is passed on as a size: `torch.arange(n)`, `x.view(-1, height)`."""
    named = [name for name, value in at.inputs if isinstance(value, Tensor) and name in NAME.findall(at.line)]
    for text in ("16", "4", "1") if _WANTS_NUMBER.search(at.text) else ():
        yield tuple((name, Literal(text) if name in named[-2:] else value) for name, value in at.inputs)
        yield from (with_value(at.inputs, name, Literal(text)) for name in named)


def _indices(tensor: Tensor, rank: int) -> Tensor | None:
    return Tensor(tensor.shape[:rank], INDEX) if tensor.kind != INDEX and len(tensor.shape) > rank else None


def lists(at: FailedCall) -> Iterator[Inputs]:
    """Replace a tensor with a list, or change the length of a list."""
    values = dict(at.inputs)
    # A tensor that was looped over lost one dimension.
    rank = re.search(r"\(expected \d+, got (\d+)\)|in range of \[-(\d), \d\], but got", at.text)
    looped = rank is not None and int(rank[1] or rank[2]) + 1 == len(at.main.shape)
    stored = re.match(r"(\w+)\[\w+\] = ", at.line)  # an item was assigned, so it should be a list
    looped = looped or (stored is not None and stored[1] in values)
    lines = " ".join(at.failure.lines)
    taken = [name for name, _ in at.inputs if re.search(rf"(?<![\w.]){name}\[\w+\]", lines)]
    looped = looped or bool(taken and re.search(r"expected \dD .*\(got \dD", at.text))  # an item of a tensor
    suspects = at.suspects()[:3]
    listed = next((value for _, value in at.inputs if isinstance(value, ListOfValues)), None)
    if listed is not None:  # what is looped over together
        yield from (with_value(at.inputs, name, listed) for name in suspects if isinstance(values[name], Tensor))
        numbers = read_numbers(at)
        for want in dict.fromkeys(numbers) if len(listed.values) in numbers else ():
            yield from _change_lengths(at, len(listed.values), want)
    pattern = r"list|tuple|sequence|len\(|zip|enumerate|isinstance|index out of range|for .* in "
    if not looped and not re.search(pattern, f"{at.text} {at.line}"):
        return
    for name in suspects:
        value = values[name]
        if isinstance(value, Tensor):
            yield from (with_value(at.inputs, name, item) for item in _list_variants(value, at.layers))
        elif isinstance(value, ListOfValues):
            longer = _falling((*value.values, value.values[-1]))
            for items in (longer, value.values[:-1] or value.values, _falling((*longer, longer[-1]))):
                yield with_value(at.inputs, name, replace(value, values=items))


def _change_lengths(at: FailedCall, have: int, want: int) -> Iterator[Inputs]:
    """Yield the inputs with another number of items in all lists that have some number of them."""
    fresh = {}
    for name, value in at.inputs if 0 < want <= _MAX_LISTED else ():
        if isinstance(value, ListOfValues) and len(value.values) == have != want:
            items = value.values[:want]
            while len(items) < want:
                items = _falling((*items, items[-1]))
            fresh[name] = replace(value, values=items)
    yield from [tuple((name, fresh.get(name, value)) for name, value in at.inputs)] if fresh else []


_CALLED = re.compile(r"([A-Za-z_]\w*)(\[\w+\])?\(")


#: Errors of a number or another plain value that is used as a layer or a list.
_CANNOT = re.compile(r"'(?!Tensor)[\w.]+' object is not (callable|iterable)")


def is_module_fault(at: FailedCall) -> bool:
    """Return whether no input can help, since the module itself holds a plain value in place of a layer or list."""
    cannot = _CANNOT.search(at.text)
    if cannot is None:
        return False
    loop = re.sub(r"(^for .*?:) .*", r"\1", at.line)  # without its body
    words = (match[1] for match in _CALLED.finditer(at.line)) if cannot[1] == "callable" else NAME.findall(loop)
    return not any(word in at.parameters for word in words)


def _list_variants(value: Tensor, layers: Layers) -> Iterator[Value]:
    if len(value.shape) == 4:
        if len(layers.channels) > 1:
            yield pyramid(layers.channels, len(layers.channels))
        yield from (pyramid(value.shape[1], levels) for levels in (2, 3, 4, 5))
    yield from (ListOfValues((value,) * count) for count in (2, 3, 1))


def _falling(values: Sequence[Value]) -> tuple[Value, ...]:
    """Halve the last feature map, so that a longer list becomes a pyramid."""
    last = values[-1]
    if isinstance(last, Tensor) and len(last.shape) == 4 and last.shape[-1] > 1:
        half = last.with_shape((*last.shape[:2], max(1, last.shape[-2] // 2), max(1, last.shape[-1] // 2)))
        return (*values[:-1], half)
    return tuple(values)


# -- comparisons that failed ------------------------------------------------------------------------------------------


def comparisons(at: FailedCall) -> Iterator[Inputs]:
    """Use the numbers that a failed assertion or condition compares: sizes, or the rank of an argument."""
    for have, want, name in read_compared_numbers(read_traceback(at.failure.cause)):
        if not name:
            yield from _change_lengths(at, have, want)
            yield from resize(at, have, want)
            yield from at.each_with(partial(_count_elements, have=have, want=want))
        elif 1 <= want <= MAX_RANK:
            for known in [name] if name in dict(at.inputs) else at.suspects():
                yield from at.with_tensors(known, partial(change_rank, rank=want))


def _count_elements(tensor: Tensor, have: int, want: int) -> Tensor | None:
    return tensor.with_shape((want,)) if have == math.prod(tensor.shape) != want > 0 else None


def read_compared_numbers(trace: TracebackType | None) -> list[tuple[int, int, str]]:
    """Evaluate the pairs of integers that the failing lines compare, inner frames first.

    Returns: triples of the actual value, the value it is compared with, and the variable whose rank that is, or "".
    """
    frames = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(f"{MODULE_NAME}.py"):
            frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    pairs: list[tuple[int, int, str]] = []
    # The innermost frames: outer ones compare something else.
    for frame, line in reversed(frames[-3:]):
        for test in _find_comparisons(frame.f_code.co_filename, line):
            for left, right in zip([test.left, *test.comparators], test.comparators, strict=False):
                for one, other in ((left, right), (right, left)):
                    values = [_integers(node, frame.f_globals, frame.f_locals) for node in (one, other)]
                    if isinstance(other, (ast.Tuple, ast.List, ast.Set)) and len(values[0]) == 1:
                        values[0] *= len(values[1])
                    name = _rank_variable(one)
                    if name or not _rank_variable(other):
                        pairs += [(a, b, name) for a, b in zip(*values, strict=False) if a != b]
    return list(dict.fromkeys(pairs))


def _rank_variable(node: ast.expr) -> str:
    """Return the variable of `x.ndim`, `x.dim()` or `len(x.shape)`, or ""."""
    match = re.fullmatch(r"(\w+)\.(ndim|dim\(\))|len\((\w+)\.(shape|size\(\))\)", ast.unparse(node))
    return (match[1] or match[3]) if match else ""


def _find_comparisons(file: str, line: int) -> list[ast.Compare]:
    """Return the comparisons of an assertion, or of the `if` above a raise."""
    for start in (line, line - 1, line - 2, line - 3):
        text = ""
        for number in range(start, start + 4):
            text = f"{text} {linecache.getline(file, number).strip()}".strip()
            if not re.match(r"(torch\.)?_?assert\b|if\b|elif\b", text):
                break
            for source in (text.removeprefix("el"), text.removeprefix("el").partition(":")[0] + ": pass"):
                with contextlib.suppress(SyntaxError):
                    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
    return []


def _integers(node: ast.expr, names: dict[str, Any], local: Mapping[str, Any]) -> list[int]:
    try:
        value = eval(compile(ast.Expression(node), "<compared>", "eval"), names, dict(local))
    except Exception:  # noqa: BLE001 - foreign code may raise anything; then the value is unknown
        return []
    values = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


# -- all of them -----------------------------------------------------------------------------------------------------

#: Most likely first.
RULES: tuple[Callable[[FailedCall], Iterator[Inputs]], ...] = (
    shorten,
    nothing,
    sizes_in_message,
    grow,
    shares,
    views,
    bounds,
    records,
    callables,
    ranks,
    alike,
    missing,
    numbers,
    kinds,
    lists,
    comparisons,
    flattened,
    any_pair,
    other_ranks,
    other_sizes,
)


def repairs(at: FailedCall) -> Iterator[Inputs]:
    """Yield other inputs to try after a failure; may contain duplicates."""
    cause = at.failure.cause
    read = cause.name if isinstance(cause, AttributeError) else ""
    # No other size supplies what is read by name.
    by_name = isinstance(cause, KeyError) or (read and not hasattr(torch.Tensor, read))
    complete = list(records(at)) if by_name or (_INDEXED.search(at.text) and _KEY.search(at.line)) else []
    yield from complete
    for rule in RULES if not complete else ():
        yield from rule(at)
