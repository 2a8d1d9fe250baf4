"""Inputs of other sizes and ranks after a failed call of forward, from its message and the lines that failed.

PyTorch's messages state what is expected (`expected input[2, 32, 16, 16] to have 3 channels`), Python's what could not
be unpacked. If an assertion compares two numbers, both can be evaluated.
"""

import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from extract.arguments.constructing import TOO_SMALL
from extract.arguments.messages import NAME
from extract.arguments.trials import AttemptError
from extract.arguments.values.inputs import (
    INDEX,
    POSITIVE,
    FieldValues,
    Inputs,
    Layers,
    Literal,
    Tensor,
    Value,
    change_tensors,
    tensors_in,
    with_value,
)

_MAX_SIZE = 32_768  # of one axis; audio is long
MAX_RANK = 6
ROWS = 8  # of the tensors in a dict
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


_MOST_BORDER = 8  # pixels that the layers before a flattening cut off, in all


def flattened(at: FailedCall) -> Iterator[Inputs]:
    """Use images of which as many values are flattened as a linear layer takes.

    If `side - border` pixels give `have` values, those of another side are as the squares; the border is tried.
    """
    for pattern, have, want in SIZES[1:3]:
        if match := re.search(pattern, at.text):
            ratio = math.sqrt(int(match[want]) / max(int(match[have]), 1))
            side = next((t.shape[-1] for _, value in at.inputs for t in tensors_in(value) if len(t.shape) == 4), 0)
            sides = (round(border + (side - border) * ratio) for border in range(_MOST_BORDER + 1))
            for other in dict.fromkeys(sides):
                yield from at.all_with(partial(_image, side=other)) if 0 < other <= _MAX_SIZE else ()


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
    return replace(tensor, shape=(ROWS, *tensor.shape[1:]), kind=kind)


_GROWTH, _FAR = (4, 16, 2), 64
_GROWING = (((-1,), 2), ((-2, -1), 4), ((-2,), 3))  # axes, and the least rank
_WINDOW = re.compile(r"(?:adding|ernel size:?) \((\d+)")


def grow(at: FailedCall) -> Iterator[Inputs]:
    """Enlarge the last axes, of which the message says that they are too small for a kernel or a pool."""
    if TOO_SMALL.search(at.text):
        # A window of audio is many times as long as the first inputs.
        window = max(map(int, _WINDOW.findall(at.text)), default=0)
        far = 2 * window // max(at.main.shape[-1:], default=1)
        factors = (far, *_GROWTH) if far > _FAR else _GROWTH
        for factor, (axes, rank) in itertools.product(factors, _GROWING):
            yield from at.all_with(partial(_grow_axes, axes=axes, rank=rank, factor=factor))


def _grow_axes(tensor: Tensor, axes: Sequence[int], rank: int, factor: int) -> Tensor | None:
    shape = list(tensor.shape)
    if len(shape) < rank:
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


def read_numbers(at: FailedCall) -> list[int]:
    """Return the numbers of a message; at most ten, since a printed tensor has thousands."""
    return [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", at.text)][:10]


def any_pair(at: FailedCall) -> Iterator[Inputs]:
    """Use any two numbers of the message, one of which is a size of an input."""
    numbers = read_numbers(at)
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
    r"[Ww]rong shape: expected (?P<want>\d+) dims\. Received (?P<have>\d+)-dim",
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
        if 1 <= rank <= MAX_RANK:
            yield from at.each_with(partial(change_rank, rank=rank))
            if len(at.inputs) > 1:
                yield from at.all_with(partial(change_rank, rank=rank))


def _shift_rank(tensor: Tensor, more: int) -> Tensor | None:
    return change_rank(tensor, len(tensor.shape) + more)


def _add_column(tensor: Tensor) -> Tensor | None:
    return tensor.with_shape((*tensor.shape, 1)) if len(tensor.shape) < MAX_RANK else None


def change_rank(tensor: Tensor, rank: int) -> Tensor | None:
    """Return a tensor of this rank with the same channels, or None if it has this rank already, or none can have it."""
    shape = tensor.shape
    if len(shape) == rank or not 1 <= rank <= MAX_RANK:
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


_UNLIKE = re.compile(r"does not match the shape of|must match the size of tensor|with a bool tensor is not supported")


def alike(at: FailedCall) -> Iterator[Inputs]:
    """Give all tensors the shape of the first, as a prediction and its target have, where two do not fit together."""
    if _UNLIKE.search(at.text):
        yield from at.all_with(lambda tensor: Tensor(at.main.shape) if tensor != Tensor(at.main.shape) else None)


def other_ranks(at: FailedCall) -> Iterator[Inputs]:
    """Try other numbers of dimensions of one of several inputs, those first that the failing lines name."""
    for rank in (3, 2, 4) if len(at.inputs) > 1 else ():
        yield from at.each_with(partial(change_rank, rank=rank))
    yield from at.each_with(_add_column) if len(at.inputs) > 1 else ()
