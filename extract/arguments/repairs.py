"""Repair the inputs of forward after an error: yield other inputs to try, most likely first.

PyTorch's messages state what is expected (`expected input[2, 32, 16, 16] to have 3 channels`), Python's what could not
be unpacked, and the failing line names the argument. If an assertion compares two numbers, both can be evaluated.
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
from functools import partial
from types import TracebackType
from typing import Any

import torch

from extract.arguments.constructing import TOO_SMALL
from extract.arguments.inputs import (
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
    change_tensors,
    fit_graph,
    guess_field,
    is_variadic,
    propose_like_main,
    pyramid,
    tensors_in,
    with_value,
)
from extract.arguments.messages import NAME
from extract.arguments.probe import MODULE_NAME
from extract.arguments.trials import AttemptError
from lemur_core.sandbox.server.foreign import read_traceback

_MAX_SIZE = 8192  # of one axis
_MAX_RANK = 6
_MAX_LISTED = 8  # items of a list
_ROWS = 8  # of the tensors in a dict
_NONE = Literal("None")
_EMPTY = "every tensor that it returned is empty"


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A failed call of forward."""

    failure: AttemptError
    inputs: Inputs
    parameters: Mapping[str, inspect.Parameter]
    layers: Layers
    loss: bool

    @property
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

    def words(self) -> list[str]:
        """Return the words of the failing lines, innermost line first, then those of the message."""
        words = [word for line in reversed(self.failure.lines) for word in NAME.findall(line)]
        return list(dict.fromkeys(words + NAME.findall(self.text)))

    def suspects(self) -> list[str]:
        """Return the arguments, first those that failing lines name, innermost line first, or name an item of."""
        names = [name for name, _ in self.inputs]
        named = list(dict.fromkeys(n for word in self.words() for n in (word, f"{word}s") if n in names))
        return named + [name for name in names if name not in named]

    def with_tensors(self, name: str, change: Callable[[Tensor], Value | None]) -> Iterator[Inputs]:
        """Yield the inputs with the tensors of one argument changed, if any differs; `change` may return None."""
        value = dict(self.inputs)[name]
        for record in self._change_fields(value, change) if isinstance(value, FieldValues) else ():
            yield with_value(self.inputs, name, record)
        fresh = change_tensors(value, lambda tensor: change(tensor) or tensor)
        if fresh != value:
            yield with_value(self.inputs, name, fresh)

    def _change_fields(self, record: FieldValues, change: Callable[[Tensor], Value | None]) -> Iterator[FieldValues]:
        """Yield a record with one of its values changed, those first that the failing lines name."""
        words = self.words()
        named = sorted(record.fields, key=lambda field: words.index(field[0]) if field[0] in words else len(words))
        for name, value in named:
            fresh = change_tensors(value, lambda tensor: change(tensor) or tensor)
            if fresh != value:
                yield replace(record, fields=tuple((n, fresh if n == name else old) for n, old in record.fields))

    def each_with(self, change: Callable[[Tensor], Value | None]) -> Iterator[Inputs]:
        """Yield from `with_tensors` for each argument, suspects first."""
        for name in self.suspects():
            yield from self.with_tensors(name, change)

    def all_with(self, change: Callable[[Tensor], Value | None]) -> Iterator[Inputs]:
        """Yield the inputs with all tensors changed, if they differ."""
        fresh = tuple((name, change_tensors(value, lambda t: change(t) or t)) for name, value in self.inputs)
        if fresh != self.inputs:
            yield fresh


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


# -- sizes -----------------------------------------------------------------------------------------------------------

_IMAGES = (32, 64, 8, 7, 14, 224, 56, 4, 128)
_LENGTHS = (64, 17, 49, 50, 4, 1, 196, 197, 65)

#: Patterns of messages that state the actual and the expected size, and the groups of these.
SIZES: tuple[tuple[str, int, int], ...] = (
    (r"to have (\d+) channels, but got (\d+) channels", 2, 1),
    (r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", 2, 3),
    (r"must have same reduction dim, but got \[\d+, (\d+)\] X \[(\d+), \d+\]", 1, 2),
    (r"is not valid: got: (\d+) expected: (\d+)", 1, 2),
    (r"normalized_shape=\[(\d+)\].*but got input of size ?(?:torch\.Size\()?\[(?:\d+, )*(\d+)\]", 2, 1),
    (r"[Ee]xpected (?:size )?(\d+),? (?:but )?got:? (?:size )?(\d+)", 2, 1),
    (r"Expected size for first two dimensions of batch2 tensor to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]", 1, 2),
)


def sizes_in_message(at: FailedCall) -> Iterator[Inputs]:
    """Use messages that state the actual and the expected size."""
    for pattern, have, want in SIZES:
        if match := re.search(pattern, at.text):
            yield from resize(at, int(match[have]), int(match[want]))


_PARTS = (((0, 1), 4), ((-2, -1), 2), ((0, 1, -2, -1), 4))


def shorten(at: FailedCall) -> Iterator[Inputs]:
    """Use a smaller batch with fewer frames, then smaller images, where forward takes too long."""
    if isinstance(at.failure.cause, TimeoutError):
        for axes, factor in _PARTS:
            yield from at.all_with(partial(_divide_axes, axes=axes, factor=factor))


def _divide_axes(tensor: Tensor, axes: Sequence[int], factor: int) -> Tensor | None:
    shape = list(tensor.shape)
    for axis in axes if len(shape) > 2 else ():
        # Channels of images and of tokens stay.
        if (axis != 1 or len(shape) in (3, 5)) and (axis >= 0 or len(shape) > 3):
            shape[axis] = max(shape[axis] // factor, 1 if axis == 0 else 2)
    return tensor.with_shape(shape)


def nothing(at: FailedCall) -> Iterator[Inputs]:
    """Use more rows, of two classes, where every output is empty: no pair of rows has the same or another label."""
    if _EMPTY in at.text:
        yield from at.all_with(partial(_label_rows, labels=True))
        yield from at.all_with(partial(_label_rows, labels=False))


def _label_rows(tensor: Tensor, *, labels: bool) -> Tensor:
    kind = INDEX if labels and len(tensor.shape) == 1 else tensor.kind
    return replace(tensor, shape=(_ROWS, *tensor.shape[1:]), kind=kind)


_GROWTH = (4, 16, 2)


def grow(at: FailedCall) -> Iterator[Inputs]:
    """Enlarge the last axes, of which the message says that they are too small for a kernel or a pool."""
    if TOO_SMALL.search(at.text):
        for factor, axes in itertools.product(_GROWTH, ((-1,), (-2, -1), (-2,))):
            yield from at.all_with(partial(_grow_axes, axes=axes, factor=factor))


def _grow_axes(tensor: Tensor, axes: Sequence[int], factor: int) -> Tensor | None:
    shape = list(tensor.shape)
    if len(shape) < len(axes) + 2:
        return None
    for axis in axes:
        shape[axis] *= factor
    return tensor.with_shape(shape) if max(shape) <= _MAX_SIZE else None


def shares(at: FailedCall) -> Iterator[Inputs]:
    """Use sizes that are a part or a sum of input sizes: heads, halves, `x[:2]` and `x[2:]`, chunks, `cat((x, y))`."""
    tensors = [tensor for _, value in at.inputs for tensor in tensors_in(value)]
    sizes = {size for tensor in tensors for size in tensor.shape}
    channels = {size for tensor in tensors for size in (*tensor.shape[-1:], *tensor.shape[1:-1][:1])}
    for pattern, have, want in SIZES:
        if match := re.search(pattern, at.text):
            part = int(match[have])
            for size in sorted(size for size in sizes if size > 2 and size != part):
                wanted, rest = divmod(size * int(match[want]), max(part, 1))
                if not rest and part and not (size % part and part % size):
                    yield from resize(at, size, wanted)
                elif size < part and size in channels:
                    yield from resize(at, size, size + int(match[want]) - part)
    if match := re.search(r"tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", at.text):
        whole = int(match[1]) + int(match[2])
        if whole in sizes:
            yield from resize(at, whole, 2 * min(int(match[1]), int(match[2])))
    if match := re.search(r"sum exactly to (\d+) .*got split_sizes=\[([\d, ]+)\]", at.text):
        yield from resize(at, int(match[1]), sum(map(int, match[2].split(","))))


def views(at: FailedCall) -> Iterator[Inputs]:
    """Use the shape that a tensor could not be viewed in, or another size of one of its axes, so that it can be."""
    if match := re.search(r"shape '\[([\d, ]+)\]' is invalid for input of size (\d+)", at.text):
        shape = tuple(map(int, match[1].split(",")))
        for size in dict.fromkeys(size for size in shape if size > 1 and all(shape)):
            wanted, rest = divmod(int(match[2]) * size, math.prod(shape))
            yield from resize(at, size, wanted) if wanted > 1 and not rest else ()
        yield from at.each_with(lambda tensor: tensor.with_shape(shape) if tensor.shape != shape else None)


def resize(at: FailedCall, have: int, want: int) -> Iterator[Inputs]:
    """Replace every size `have` with `want`: in all inputs together, then in each."""
    if have == want or not 0 < want <= _MAX_SIZE:
        return
    # Channels first, then the last dimensions, then the batch.
    for axis in (1, -1, -2, 2, 0):

        def change(tensor: Tensor, axis: int = axis) -> Tensor | None:
            if -len(tensor.shape) <= axis < len(tensor.shape) and tensor.shape[axis] == have:
                return _resize_axis(tensor, axis, want)
            return None

        everywhere = list(at.all_with(change))
        yield from everywhere
        if everywhere and (len(at.inputs) > 1 or any(isinstance(value, FieldValues) for _, value in at.inputs)):
            yield from at.each_with(change)
    square = math.isqrt(want)
    if square * square == want:
        yield from _with_pixels(at, have, square)
    image = next((t for _, value in at.inputs for t in tensors_in(value) if len(t.shape) == 4), None)
    if image is not None:
        side = math.isqrt(want // image.shape[1])
        if side and side * side * image.shape[1] == want:
            yield from _with_pixels(at, math.prod(image.shape[1:]), side)


def _with_pixels(at: FailedCall, have: int, side: int) -> Iterator[Inputs]:
    """Resize images whose pixels are counted as tokens."""

    def change(tensor: Tensor) -> Tensor | None:
        shape = tensor.shape
        counted = len(shape) == 4 and have in (shape[-1] * shape[-2], math.prod(shape[1:]))
        return tensor.with_shape((*shape[:-2], side, side)) if counted else None

    yield from at.each_with(change)


def _resize_axis(tensor: Tensor, axis: int, size: int) -> Tensor:
    """Return a tensor with another size on one axis; images that are not square become square."""
    shape = list(tensor.shape)
    old, shape[axis] = shape[axis], size
    pixels = axis % len(shape) >= len(shape) - 2
    if len(shape) in (4, 5) and pixels and shape[-1] != shape[-2] and old in shape[-2:]:
        shape[-1] = shape[-2] = size
    return tensor.with_shape(shape)


_BOUNDS = re.compile(r"index (\d+) is out of bounds for dimension \d+ with size (\d+)")


def bounds(at: FailedCall) -> Iterator[Inputs]:
    """Use a dimension with as many items as the message's index needs: five numbers a box, six if it is rotated."""
    if match := _BOUNDS.search(at.text):
        index, size = map(int, match.groups())
        yield from resize(at, size, index + 1)
        for name, value in at.inputs:
            if isinstance(value, Literal) and value.text.startswith("torch.tensor("):
                yield with_value(at.inputs, name, Tensor((2, index + 1), POSITIVE))


def any_pair(at: FailedCall) -> Iterator[Inputs]:
    """Use any two numbers of the message, one of which is a size of an input."""
    numbers = _read_numbers(at)
    sizes = {size for _, value in at.inputs for tensor in tensors_in(value) for size in tensor.shape}
    for have in dict.fromkeys(n for n in numbers if n in sizes and n > 2):
        for want in dict.fromkeys(n for n in numbers if n != have):
            yield from resize(at, have, want)


def other_sizes(at: FailedCall) -> Iterator[Inputs]:
    """Try other numbers of pixels and tokens."""
    for side in _IMAGES:
        yield from at.all_with(partial(_image, side=side))
    for count in _LENGTHS:
        yield from at.all_with(partial(_tokens, count=count))


def _image(tensor: Tensor, side: int) -> Tensor | None:
    square = len(tensor.shape) in (4, 5) and tensor.shape[-1] == tensor.shape[-2]
    return tensor.with_shape((*tensor.shape[:-2], side, side)) if square else None


def _tokens(tensor: Tensor, count: int) -> Tensor | None:
    counted = len(tensor.shape) == 3 or (len(tensor.shape) == 2 and tensor.kind == INDEX)
    return tensor.with_shape((tensor.shape[0], count, *tensor.shape[2:])) if counted else None


# -- numbers of dimensions -------------------------------------------------------------------------------------------

#: Patterns of messages that state the expected number of dimensions, and an offset to that number.
RANKS: tuple[tuple[str, int], ...] = (
    (r"not enough values to unpack \(expected (\d+)", 0),
    (r"too many values to unpack \(expected (\d+)", 0),
    (r"but got (\d+)\)", 1),  # dimension out of range
    (r"[Ww]rong shape: expected (\d+) dims", 0),
    (r"too many indices for tensor of dimension (\d+)", 1),
)


#: Patterns of messages that state the number of dimensions of a tensor that was made of an input, and the one wanted.
_RELATIVE = (
    r"input\.dim\(\) = (?P<have>\d+) is not equal to len\(dims\) = (?P<want>\d+)",
    r"same number of dimensions: got (?P<have>\d+) and (?P<want>\d+)",
    r"\(expected (?:at least )?(?P<want>\d+), got (?P<have>\d+)\)",
    r"repeat dims can not be smaller than number of dimensions of tensor",
)


def ranks(at: FailedCall) -> Iterator[Inputs]:
    """Use messages, also of failed unpacking, that state the expected number of dimensions."""
    for relative in filter(None, (re.search(pattern, at.text) for pattern in _RELATIVE)):
        stated = relative.groupdict()
        more = int(stated["want"]) - int(stated["have"]) if stated else -1
        shift = partial(_shift_rank, more=more)
        yield from (*at.each_with(shift), *at.all_with(shift), *(at.each_with(_add_column) if more == 1 else ()))
        yield from at.each_with(partial(_shift_rank, more=-more)) if stated else ()
    named = [int(n) for n in re.findall(r"(\d)-?D(?:\b| )", at.text.split(" got ")[0])]
    absolute = [int(match[1]) + more for pattern, more in RANKS if (match := re.search(pattern, at.text))]
    for rank in dict.fromkeys([*absolute, *sorted(named, reverse=True)]):
        if 1 <= rank <= _MAX_RANK:
            yield from at.each_with(partial(change_rank, rank=rank))
            if len(at.inputs) > 1:
                yield from at.all_with(partial(change_rank, rank=rank))


def _shift_rank(tensor: Tensor, more: int) -> Tensor | None:
    return change_rank(tensor, len(tensor.shape) + more)


def _add_column(tensor: Tensor) -> Tensor | None:
    return tensor.with_shape((*tensor.shape, 1)) if len(tensor.shape) < _MAX_RANK else None


def change_rank(tensor: Tensor, rank: int) -> Tensor | None:
    """Return a tensor of this rank with the same channels, or None if it has this rank already, or none can have it."""
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


def other_ranks(at: FailedCall) -> Iterator[Inputs]:
    """Try other numbers of dimensions of one of several inputs, those first that the failing lines name."""
    for rank in (3, 2, 4) if len(at.inputs) > 1 else ():
        yield from at.each_with(partial(change_rank, rank=rank))
    yield from at.each_with(_add_column) if len(at.inputs) > 1 else ()


def comparisons(at: FailedCall) -> Iterator[Inputs]:
    """Use the numbers that a failed assertion or condition compares: sizes, or the rank of an argument."""
    for have, want, name in read_compared_numbers(read_traceback(at.failure.cause)):
        if not name:
            yield from _change_lengths(at, have, want)
            yield from resize(at, have, want)
        elif 1 <= want <= _MAX_RANK:
            for known in [name] if name in dict(at.inputs) else at.suspects():
                yield from at.with_tensors(known, partial(change_rank, rank=want))


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


# -- kinds of values -------------------------------------------------------------------------------------------------


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
_KEY = re.compile(r"\w\[[\"']|[\"'] in ")
_TESTED = re.compile(r"[\"'](\w+)[\"'] in (\w+)\b")
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
    main = at.main if len(at.main.shape) > 1 else Tensor((_ROWS, *(at.layers.channels or (32,))[:1]))
    if lacks and "NoneType" in at.text and (hasattr(torch.Tensor, lacks) or not names.keys() & {*held}):
        return  # a tensor that was left out
    if (indexed or held) and not names.keys() & {*indexed, *held, *tested}:
        held, indexed = (list(names)[:1] if read else [] for read in (held, indexed))  # another name, in a helper
    for name, value in names.items():
        record = value if isinstance(value, FieldValues) and value.fields else FieldValues(by_key=False)
        known = record.fields
        field = item if item and isinstance(value, FieldValues) else lacks if name in held else ""
        lacking = [key for key in (field, *tested.get(name, ())) if key and key not in dict(known)]
        if not known and "no_output" in at.text and isinstance(value, FieldValues):
            lacking = ["x"]
        if name in indexed or field in _OF_DICTS:
            yield with_value(at.inputs, name, replace(record, by_key=True))
        elif lacking:
            method = re.search(rf"\.{re.escape(field)}\(", at.line)
            record = FieldValues(
                (*known, *((key, _CALLABLE if method else guess_field(key, main, loss=at.loss)) for key in lacking)),
                by_key=record.by_key or not lacks,
                by_attribute=record.by_attribute or bool(lacks),
            )
            yield with_value(at.inputs, name, fit_graph(record))


_CALLABLE = Literal("lambda x, *_, **__: x")


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
    (r"float|long|bool|complex", FLOAT),
    (r"bool|mask|byte", MASK),
    (r"between 0 and 1|all elements of input should be|is nan", POSITIVE),
)


def kinds(at: FailedCall) -> Iterator[Inputs]:
    """Use messages about dtypes."""
    lower = at.text.lower()
    for pattern, kind in KINDS:
        if re.search(pattern, lower):
            if kind == POSITIVE:
                yield from at.all_with(lambda tensor: _of_kind(tensor, POSITIVE) if tensor.kind == FLOAT else None)
                yield from at.all_with(lambda tensor: _of_kind(tensor, UNMASKED) if tensor.kind == MASK else None)
            for name in at.suspects():
                yield from at.with_tensors(name, partial(_of_kind, kind=kind))
                for rank in (2, 1) if kind == INDEX else ():
                    yield from at.with_tensors(name, partial(_indices, rank=rank))
    if "index out of range" in lower or "out of bounds" in lower:
        yield from at.each_with(lambda tensor: replace(tensor, below=1) if tensor.kind == INDEX else None)
        yield from at.all_with(
            lambda tensor: _of_kind(tensor, POSITIVE) if tensor.kind == FLOAT else None
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


def _of_kind(tensor: Tensor, kind: str) -> Tensor:
    return replace(tensor, kind=kind)


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
        numbers = _read_numbers(at)
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


def _read_numbers(at: FailedCall) -> list[int]:
    """Return the numbers of a message; at most ten, since a printed tensor has thousands."""
    return [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", at.text)][:10]


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
    missing,
    numbers,
    kinds,
    lists,
    comparisons,
    any_pair,
    other_ranks,
    other_sizes,
)
