"""The edits of a call that failed, most likely first: other arguments of the constructor, or other inputs of forward.

PyTorch's messages say what is expected (`expected input[2, 32, 16, 16] to have 3 channels`), Python's what could not be
unpacked; the failing line names the argument, and of an assertion that compares two numbers, both can be evaluated.
"""

import ast
import contextlib
import inspect
import itertools
import linecache
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import TracebackType
from typing import Any, NamedTuple

import torch

from extract.arguments.constructing import Arguments, Constructor
from extract.arguments.messages import NAME
from extract.arguments.probe import MODULE_NAME
from extract.arguments.settings import FIRST, complete, find_lack
from extract.arguments.trials import AttemptError
from extract.arguments.values.inputs import (
    FLOAT,
    INDEX,
    MASK,
    POSITIVE,
    FieldValues,
    Inputs,
    Layers,
    ListOfValues,
    Literal,
    Tensor,
    Value,
    change_tensors,
    is_variadic,
    propose_like_main,
    pyramid,
    tensors_in,
    with_value,
)
from lemur_core.sandbox.server.foreign import read_traceback

_MAX_SIZE = 32_768  # of one axis; audio is long
_MAX_RANK = 6
_MAX_ITEMS = 8  # of a list or tuple
_LEAST_WIDTH, _MOST_WIDTH = 8, 64  # of the constructor, that is made larger
_FEW = 4  # values of a parameter that has a default, or that nothing names
_SHARED_PREFIX = 3  # letters
_LAYERS = ("nn.Identity()", FIRST, "[nn.Identity()]", "F.relu")
_NONE = Literal("None")
_SIDES = (32, 64, 8, 7, 14, 224, 56, 128)  # of images
_LENGTHS = (64, 17, 49, 50, 4, 1)  # numbers of tokens

Change = dict[str, str]  # other expressions for some arguments of the constructor


@dataclass(frozen=True)
class FailedCall:
    """A failed call of a constructor or of forward. Args: inputs, parameters: of forward; none if it was not called."""

    failure: AttemptError
    constructor: Constructor
    arguments: Arguments
    inputs: Inputs
    parameters: Mapping[str, inspect.Parameter]
    layers: Layers
    loss: bool

    @cached_property
    def text(self) -> str:
        """The error message in one line."""
        return " ".join(str(self.failure).split())

    @property
    def line(self) -> str:
        """The innermost failing line of the block."""
        return self.failure.lines[-1] if self.failure.lines else ""

    @property
    def main(self) -> Tensor:
        """The first tensor among the inputs."""
        return next((t for _, value in self.inputs for t in tensors_in(value)), Tensor((2, 32)))

    @cached_property
    def words(self) -> list[str]:
        """The words of the failing lines, innermost line first, then those of the message."""
        words = [word for line in reversed(self.failure.lines) for word in NAME.findall(line)]
        return list(dict.fromkeys(words + NAME.findall(self.text)))

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the message; at most ten, since a printed tensor has thousands."""
        return [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", self.text)][:10]

    # -- the constructor

    @cached_property
    def texts(self) -> dict[str, str]:
        """The arguments of the constructor, by name."""
        return self.arguments.by_name(self.constructor.parameters)

    def named(self) -> list[str]:
        """Return the parameters of the constructor that the failing lines or the message name."""
        pairs = map("_".join, itertools.pairwise(NAME.findall(self.text)))  # "an output size" is `output_size`
        known = {name for name, parameter in self.constructor.parameters.items() if not is_variadic(parameter)}
        return [word for word in dict.fromkeys((*self.words, *pairs)) if word in known | self.texts.keys()]

    # -- forward

    def suspects(self) -> list[str]:
        """Return the inputs, first those that failing lines name, innermost line first, or name an item of."""
        names = [name for name, _ in self.inputs]
        named = list(dict.fromkeys(n for word in self.words for n in (word, f"{word}s") if n in names))
        return named + [name for name in names if name not in named]

    def each_with(self, change: Callable[[Tensor], Value | None]) -> Iterator[Inputs]:
        """Yield the inputs with the tensors of one of them changed, suspects first."""
        for name in self.suspects():
            yield from self.one_with(name, change)

    def one_with(self, name: str, change: Callable[[Tensor], Value | None]) -> Iterator[Inputs]:
        """Yield the inputs with the tensors of one argument changed, if any differs; then with each of its items."""
        value = dict(self.inputs)[name]
        if isinstance(value, FieldValues) and len(value.fields) > 1:
            for key, item in value.fields:
                fresh = change_tensors(item, _or_same(change))
                fields = tuple((known, fresh if known == key else old) for known, old in value.fields)
                yield with_value(self.inputs, name, replace(value, fields=fields))
        yield with_value(self.inputs, name, change_tensors(value, _or_same(change)))

    def all_with(self, change: Callable[[Tensor], Value | None]) -> Inputs:
        """Return the inputs with all tensors changed."""
        return tuple((name, change_tensors(value, _or_same(change))) for name, value in self.inputs)


def _or_same(change: Callable[[Tensor], Value | None]) -> Callable[[Tensor], Value]:
    return lambda tensor: change(tensor) or tensor


# -- sizes -----------------------------------------------------------------------------------------------------------


def resize(at: FailedCall, stated: re.Match[str]) -> Iterator[Inputs]:
    """Use the size that a message wants where it states the one that it has, or that is a part or a sum of inputs'."""
    have, want = int(stated["have"]), int(stated["want"])
    yield from _change_sizes(at, have, want)
    sizes = {size for _, value in at.inputs for tensor in tensors_in(value) for size in tensor.shape if size > 2}
    for size in sorted(sizes - {have}) if have else ():
        wanted, rest = divmod(size * want, have)
        if not rest and not (size % have and have % size):
            yield from _change_sizes(at, size, wanted)
        elif size < have:
            yield from _change_sizes(at, size, size + want - have)


def view(at: FailedCall, stated: re.Match[str]) -> Iterator[Inputs]:
    """Use the shape that a tensor could not be viewed in, or another size of one of its axes, so that it can be."""
    shape = tuple(map(int, stated[1].split(",")))
    for size in dict.fromkeys(size for size in shape if size > 1 and all(shape)):
        wanted, rest = divmod(int(stated[2]) * size, math.prod(shape))
        yield from _change_sizes(at, size, wanted) if wanted > 1 and not rest else ()
    yield from at.each_with(lambda tensor: tensor.with_shape(shape))


def use_numbers(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Use any two numbers of the message, one of which is a size of an input."""
    sizes = {size for _, value in at.inputs for tensor in tensors_in(value) for size in tensor.shape}
    for have in dict.fromkeys(n for n in at.numbers if n in sizes and n > 2):
        for want in dict.fromkeys(n for n in at.numbers if n != have):
            yield from _change_sizes(at, have, want)


def grow(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs | Change]:
    """Enlarge the last axes where they are too small for a kernel or a pool: a window of audio is very long."""
    far = 2 * max(at.numbers, default=0) // max(at.main.shape[-1:], default=1)
    for factor in (far, 4, 16, 2) if far > 64 else (4, 16, 2):
        for axes in ((-1,), (-2, -1)):
            yield at.all_with(partial(_grow_axes, axes=axes, factor=factor))
    sizes = {name: int(text) for name, text in at.texts.items() if text.isdecimal() and name in at.words}
    yield {name: str(4 * size) for name, size in sizes.items() if size <= _MOST_WIDTH}


def _grow_axes(tensor: Tensor, axes: Sequence[int], factor: int) -> Tensor | None:
    shape = list(tensor.shape)
    if len(shape) < 2 * len(axes):
        return None
    for axis in axes:
        shape[axis] *= factor
    return tensor.with_shape(shape) if max(shape) <= _MAX_SIZE else None


def other_sizes(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Use other numbers of pixels and tokens."""
    for side in _SIDES:
        yield at.all_with(partial(_resize_image, side=side))
    for count in _LENGTHS:
        yield at.all_with(partial(_change_tokens, count=count))


def _resize_image(tensor: Tensor, side: int) -> Tensor | None:
    is_square = len(tensor.shape) in (4, 5) and tensor.shape[-1] == tensor.shape[-2]
    return tensor.with_shape((*tensor.shape[:-2], side, side)) if is_square else None


def _change_tokens(tensor: Tensor, count: int) -> Tensor | None:
    return tensor.with_shape((tensor.shape[0], count, *tensor.shape[2:])) if len(tensor.shape) == 3 else None


def _change_sizes(at: FailedCall, have: int, want: int) -> Iterator[Inputs]:
    """Replace every size `have` with `want`: in all inputs together, then in each."""
    if have == want or not 0 < want <= _MAX_SIZE:
        return
    # Channels first, then the last dimensions, then the batch.
    for axis in (1, -1, -2, 2, 0):

        def change(tensor: Tensor, axis: int = axis) -> Tensor | None:
            if -len(tensor.shape) <= axis < len(tensor.shape) and tensor.shape[axis] == have:
                return _resize_axis(tensor, axis, want)
            return None

        everywhere = at.all_with(change)
        yield everywhere
        yield from at.each_with(change) if everywhere != at.inputs else ()
    side = math.isqrt(want)
    if side * side == want:  # pixels are counted as tokens

        def square(tensor: Tensor) -> Tensor | None:
            counted = len(tensor.shape) == 4 and have == tensor.shape[-1] * tensor.shape[-2]
            return tensor.with_shape((*tensor.shape[:-2], side, side)) if counted else None

        yield from at.each_with(square)


def _resize_axis(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Return a tensor with another size on one axis; images stay square."""
    shape = list(tensor.shape)
    shape[axis] = size
    if len(shape) in (4, 5) and axis % len(shape) >= len(shape) - 2:
        shape[-1] = shape[-2] = size
    return tensor.with_shape(shape)


# -- numbers of dimensions -------------------------------------------------------------------------------------------


def change_ranks(at: FailedCall, stated: re.Match[str]) -> Iterator[Inputs]:
    """Use as many dimensions as a message states, or that many more than it has."""
    want, have = int(stated["want"]), stated.groupdict().get("have")
    wanted = partial(_change_rank, rank=want) if have is None else partial(_shift_rank, more=want - int(have))
    yield from at.each_with(wanted)
    yield at.all_with(wanted)
    if have is not None:
        yield from at.each_with(partial(_shift_rank, more=int(have) - want))


def add_rank(at: FailedCall, stated: re.Match[str]) -> Iterator[Inputs]:
    """Use one dimension more than there are, at most."""
    yield from at.each_with(partial(_change_rank, rank=int(stated["most"]) + 1))
    yield from at.each_with(lambda tensor: tensor.with_shape((*tensor.shape, 1)))


def _shift_rank(tensor: Tensor, more: int) -> Tensor | None:
    return _change_rank(tensor, len(tensor.shape) + more)


def _change_rank(tensor: Tensor, rank: int) -> Tensor | None:
    """Return a tensor of this rank with the same channels, or None if none can have it."""
    shape = tensor.shape
    if len(shape) == rank or not 1 <= rank <= _MAX_RANK:
        return None
    channels = shape[-1] if len(shape) != 4 else shape[1]
    fresh = {
        1: shape[:1],
        2: (shape[0], channels),
        3: (shape[0], 16, channels),
        4: (shape[0], channels, 16, 16),
        5: (shape[0], channels, 4, 16, 16),
        6: (shape[0], 1, channels, 4, 16, 16),
    }[rank]
    return tensor.with_shape(fresh)


def make_alike(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Give all tensors the shape of the first, as a prediction and its target have."""
    yield at.all_with(lambda _: Tensor(at.main.shape))


# -- other kinds of values -------------------------------------------------------------------------------------------


def change_kind(at: FailedCall, _: re.Match[str], *, kind: str) -> Iterator[Inputs]:
    """Use the kind of numbers that a message asks for."""
    for name in at.suspects():
        yield from at.one_with(name, partial(replace, kind=kind))
        for rank in (2, 1) if kind == INDEX else ():
            yield from at.one_with(name, partial(_make_indices, rank=rank))
    yield at.all_with(lambda tensor: replace(tensor, kind=kind, below=1) if tensor.kind == INDEX else None)


def _make_indices(tensor: Tensor, rank: int) -> Tensor:
    return Tensor(tensor.shape[:rank], INDEX)


def add_input(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Add optional inputs that turn out to be needed."""
    values = dict(at.inputs)
    optional = [name for name, parameter in at.parameters.items() if not is_variadic(parameter)]
    named = [word for word in at.words if word in optional and values.get(word, _NONE) == _NONE]
    for name in named or [name for name in optional if name not in values][:2]:
        for value in propose_like_main(name, at.main, loss=at.loss):
            yield with_value(at.inputs, name, value)


def use_lists(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Use a list of tensors, such as the maps of a backbone, or another number of them."""
    values = dict(at.inputs)
    for name in at.suspects()[:3]:
        value = values[name]
        if isinstance(value, Tensor):
            if len(value.shape) == 4:
                yield from (with_value(at.inputs, name, pyramid(value.shape[1], levels)) for levels in (2, 3, 4))
            yield from (with_value(at.inputs, name, ListOfValues((value,) * count)) for count in (2, 3, 1))
        elif isinstance(value, ListOfValues):
            longer = (*value.values, value.values[-1])
            for items in (longer, value.values[:-1] or longer, (*longer, longer[-1])):
                yield with_value(at.inputs, name, replace(value, values=items))


def use_function(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs | Change]:
    """Use a function or a layer for what is called."""
    called = re.findall(r"\b(?:self\.)?(\w+)(?:\[\w+\])?\(", at.line)
    for name, _value in at.inputs:
        if name in called:
            yield with_value(at.inputs, name, Literal(FIRST))
    held = [n for n in at.constructor.parameters if any(_may_match(n, word) for word in called)]
    for name in dict.fromkeys([*held, *at.named()]):
        yield from ({name: layer} for layer in _LAYERS)


def _may_match(name: str, other: str) -> bool:
    """Return whether an attribute may hold a parameter: one name contains the other, or both start alike."""
    return name in other or other in name or name[:_SHARED_PREFIX] == other[:_SHARED_PREFIX]


def add_read(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs | Change]:
    """Add the item, attribute or method that is read of an argument: it becomes a dict, or an object with it."""
    lack = find_lack(at.failure.cause, at.line)
    if lack is None:
        return
    held = [name for name in (*at.texts, *dict(at.inputs)) if re.search(rf"\b{name}(\[|\.|\b)", at.line)]
    values = dict(at.inputs)
    for name in [name for name in held if name in values] or list(values)[:1]:
        value = values[name]
        record = value if isinstance(value, FieldValues) else FieldValues(by_key=False)
        if lack.name is None:
            yield with_value(at.inputs, name, replace(record, by_key=True))
        elif isinstance(lack.name, str):
            fresh = Literal(FIRST) if lack.is_method else propose_like_main(str(lack.name), at.main, loss=at.loss)[0]
            fields = tuple((key, old) for key, old in record.fields if key != lack.name)
            ways = record.by_key or lack.is_item, record.by_attribute or not lack.is_item
            yield with_value(at.inputs, name, FieldValues((*fields, (lack.name, fresh)), *ways))
    for name in [name for name in held if name in at.texts] or list(at.texts):
        texts = complete(at.constructor.names, at.constructor.cls.__module__, at.texts[name], lack, at.line)
        yield from ({name: text} for text in texts)


# -- the constructor -------------------------------------------------------------------------------------------------


def add_argument(at: FailedCall, _: re.Match[str]) -> Iterator[Change]:
    """Add what a base class requires of `**kwargs`."""
    parameters = at.constructor.parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        missing = [name for name in re.findall(r"['\"`](\w+)['\"`]", at.text) if name not in {*parameters, *at.texts}]
        yield {name: at.constructor.choices(name)[0] for name in missing}


def widen(at: FailedCall, _: re.Match[str]) -> Iterator[Change]:
    """Use larger widths for a failure of what is a fraction of them."""
    sizes = {name: int(text) for name, text in at.texts.items() if text.isdecimal()}
    yield {name: str(4 * size) for name, size in sizes.items() if _LEAST_WIDTH <= size <= _MOST_WIDTH}


def fit_length(at: FailedCall, stated: re.Match[str]) -> Iterator[Change]:
    """Use a tuple and a list of the length that a message names, with the items of a value."""
    for name in at.named():
        items = re.findall(r"[^\[\](), ]+", at.texts.get(name, "1")) or ["1"]
        count = min(int(stated["want"]), _MAX_ITEMS)
        fitted = ", ".join(items[min(number, len(items) - 1)] for number in range(count))
        yield from ({name: f"({fitted},)"}, {name: f"[{fitted}]"})


def choose_other(at: FailedCall, _: re.Match[str]) -> Iterator[Change]:
    """Use another value for what the failing lines or the message name; then for what is required, or has a class."""
    constructor, named = at.constructor, at.named()
    known = {*constructor.required, *at.texts}
    for name in [*(n for n in named if n in known), *(n for n in named if n not in known)]:
        yield from ({name: text} for text in constructor.choices(name)[: None if name in known else _FEW])
    for name, proposed in constructor.companions().items():
        yield from ({name: text} for text in proposed if name in at.texts)
    for name in constructor.required:
        yield from ({name: text} for text in constructor.choices(name)[:_FEW])


# -- comparisons that failed ------------------------------------------------------------------------------------------


def compare(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Use the numbers that a failed assertion or condition compares: sizes, or the rank of an argument."""
    for have, want, name in read_compared_numbers(read_traceback(at.failure.cause)):
        if name:
            for known in [name] if name in dict(at.inputs) else at.suspects():
                yield from at.one_with(known, partial(_change_rank, rank=want))
        else:
            yield from _change_sizes(at, have, want)
            yield from at.each_with(partial(_count_elements, have=have, want=want))


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


class Edit(NamedTuple):
    """What to change after a message; `message` is searched in it, and in the failing line behind it."""

    message: str
    change: Callable[[FailedCall, re.Match[str]], Iterator[Inputs | Change]]


#: Most likely first.
EDITS: tuple[Edit, ...] = (
    Edit(r"to have (?P<want>\d+) channels, but got (?P<have>\d+) channels", resize),
    Edit(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<have>\d+) and (?P<want>\d+)x", resize),
    Edit(r"must have same reduction dim, but got \[\d+, (?P<have>\d+)\] X \[(?P<want>\d+),", resize),
    Edit(r"is not valid: got: (?P<have>\d+) expected: (?P<want>\d+)", resize),
    Edit(r"normalized_shape=\[(?P<want>\d+)\].*of size ?(?:torch\.Size\()?\[(?:\d+, )*(?P<have>\d+)\]", resize),
    Edit(r"[Ee]xpected (?:size )?(?P<want>\d+),? (?:but )?got:? (?:size )?(?P<have>\d+)", resize),
    Edit(r"tensor to be: \[\d+, (?P<have>\d+)\] but got: \[\d+, (?P<want>\d+)\]", resize),
    Edit(r"shape '\[([\d, ]+)\]' is invalid for input of size (\d+)", view),
    Edit(r"too (small|short)|can't be greater|should be less than|at least|must be (greater|larger)|is empty", grow),
    Edit(
        r"no attribute|^'?\w+'?$|subscript|indices must be|too many indices|only integers, slices|invalid data",
        add_read,
    ),
    Edit(r"object is not callable|must be Tensor, not [A-Z]|forward\(\) (takes|got an unexpected)", use_function),
    Edit(r"input\.dim\(\) = (?P<have>\d+) is not equal to len\(dims\) = (?P<want>\d+)", change_ranks),
    Edit(r"in the equation \((?P<want>\d+)\) does not match the number of dimensions \((?P<have>\d+)\)", change_ranks),
    Edit(r"same number of dimensions: got (?P<have>\d+) and (?P<want>\d+)", change_ranks),
    Edit(r"\(expected (?:at least )?(?P<want>\d+), got (?P<have>\d+)\)", change_ranks),
    Edit(r"[Ww]rong shape: expected (?P<want>\d+) dims\. Received (?P<have>\d+)-dim", change_ranks),
    Edit(r"values to unpack \(expected (?P<want>\d+)", change_ranks),
    Edit(r"(?:but got |for tensor of dimension )(?P<most>\d+)(?:\)|$)", add_rank),
    Edit(r"(?P<want>\d)-?D\b(?!.* got .*\d-?D)", change_ranks),
    Edit(r"(?P<want>\d)-?D\b", change_ranks),
    Edit(r"does not match the shape of|must match the size of tensor|with a bool tensor is not", make_alike),
    Edit(r"None|missing|must be (specified|provided|given|set)|required|expected|assert", add_input),
    Edit(r"long|int64|indices|one_hot|integer|'index'|int |Long", partial(change_kind, kind=INDEX)),
    Edit(r"[Ff]loat|dtype|complex", partial(change_kind, kind=FLOAT)),
    Edit(r"bool|mask|byte", partial(change_kind, kind=MASK)),
    Edit(r"between 0 and 1|>= ?0|NaN|index out of range|out of bounds", partial(change_kind, kind=POSITIVE)),
    Edit(r"\blist\b|tuple|zip|enumerate|isinstance|index out of range|for .* in |\w\[\d\]", use_lists),
    Edit(r"assert|if|raise", compare),
    Edit(r"required .*arguments?:|^'\w+'$|must be passed|(needs|has) to be", add_argument),
    Edit(r"multiple of|divisible|\b0\b[^\]]*\]' is invalid|zero|must be positive|non-empty|range\(\)", widen),
    Edit(r"unpack \(expected (?P<want>\d+)", fit_length),
    Edit(r"(?P<want>\d+) (?:elements|values|items)", fit_length),
    Edit(r"\d", use_numbers),
    Edit(r"", other_sizes),
    Edit(r"", choose_other),
)


def list_edits(at: FailedCall) -> Iterator[tuple[str, Inputs | Arguments]]:
    """Yield other inputs and other arguments to try after a failure, with the name of the edit."""
    text, lack = f"{at.text}\n{at.line}", find_lack(at.failure.cause, at.line)
    # No other size supplies what is read by name.
    by_name = lack is not None and lack.holder != "NoneType" and not hasattr(torch.Tensor, str(lack.name))
    for message, edit in EDITS:
        if by_name and edit not in (add_read, add_argument, choose_other):
            continue
        stated = re.search(message, text, re.MULTILINE)
        for item in edit(at, stated) if stated is not None else ():
            name = getattr(edit, "__name__", "change_kind")
            if isinstance(item, dict):
                fresh = {**at.texts, **item}
                if fresh != at.texts:
                    yield name, at.arguments.with_texts(at.constructor.parameters, fresh)
            elif at.inputs and item != at.inputs:
                yield name, item
