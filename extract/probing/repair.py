"""What an error says about the inputs: other inputs to try, the most telling ones first.

PyTorch's messages name what they wanted (`expected input[2, 32, 16, 16] to have 3 channels`), Python's what they could
not unpack, and the failing line names the argument. Where an assertion compares two numbers, both are known.
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
from types import TracebackType
from typing import Any

from extract.probe import MODULE_NAME
from extract.probing.running import Mistake
from extract.probing.shapes import Layers, like_main, pyramid, with_value
from extract.probing.tensors import (
    FLOAT,
    INDEX,
    MASK,
    POSITIVE,
    Fields,
    Inputs,
    Items,
    Literal,
    Tensor,
    Value,
    change_tensors,
    tensors_in,
)

_IMAGES = (32, 64, 8, 7, 14, 224, 56, 4, 128)
_LENGTHS = (64, 17, 49, 50, 4, 1, 196, 197, 65)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Situation:
    """A failed call of forward."""

    mistake: Mistake
    inputs: Inputs
    parameters: Mapping[str, inspect.Parameter]
    layers: Layers
    loss: bool

    @property
    def main(self) -> Tensor:
        """The first tensor among the inputs."""
        return next((t for _, value in self.inputs for t in tensors_in(value)), Tensor((2, 32)))

    def implicated(self) -> list[str]:
        """Arguments that the failing lines name, the innermost first; the others after them."""
        words = [word for line in reversed(self.mistake.lines) for word in _WORD.findall(line)]
        words += _WORD.findall(str(self.mistake.error))
        given = [name for name, _ in self.inputs]
        named = [word for word in dict.fromkeys(words) if word in given]
        return named + [name for name in given if name not in named]


def repairs(at: Situation) -> Iterator[Inputs]:
    """Other inputs to try after a failure; may repeat itself."""
    text = " ".join(str(at.mistake.error).split())
    for rule in _RULES:
        yield from rule(at, text)


# --- rules ------------------------------------------------------------------------------------------------------------


def _numbers(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages that name the size that there was and the one that was wanted."""
    for pattern, have, want in _SIZES:
        if match := re.search(pattern, text):
            yield from _resized(at, int(match[have]), int(match[want]))


_SIZES: tuple[tuple[str, int, int], ...] = (
    (r"to have (\d+) channels, but got (\d+) channels", 2, 1),
    (r"must have same reduction dim, but got \[\d+, (\d+)\] X \[(\d+), \d+\]", 1, 2),
    (r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", 2, 3),
    (r"normalized_shape=\[(\d+)\].*but got input of size\[(?:\d+, )*(\d+)\]", 2, 1),
    (r"running_mean should contain (\d+) elements not (\d+)", 1, 2),
    (r"weight should contain (\d+) elements not (\d+)", 1, 2),
    (r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)", 2, 1),
    (r"expecting embedding dimension of (\d+), but got (\d+)", 2, 1),
    (r"embed_dim of (\d+), but got (\d+)", 2, 1),
    (r"Expected size for first two dimensions of batch2 tensor to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]", 1, 2),
    (
        r"Expected weight to be a vector of size equal to the number of channels in input, but got weight of shape \[(\d+)\] and input of shape \[\d+, (\d+)",
        2,
        1,
    ),
    (r"[Hh]eight \((\d+)\) doesn't match model \((\d+)\)", 1, 2),
    (r"[Ii]nput (?:image )?size \((\d+)\*\d+\) doesn't match model \((\d+)", 1, 2),
)


def _ranks(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages and unpackings that say how many dimensions were wanted."""
    wanted: list[int] = []
    if match := re.search(r"not enough values to unpack \(expected (\d+)", text) or re.search(
        r"too many values to unpack \(expected (\d+)", text
    ):
        wanted.append(int(match[1]))
        yield from _listed(at, int(match[1]))
    wanted += sorted((int(n) for n in re.findall(r"(\d)-?D(?:\b| )", text.split(" got ")[0])), reverse=True)
    if match := re.search(
        r"Dimension out of range \(expected to be in range of \[-(\d+), \d+\], but got (-?\d+)\)", text
    ):
        dimension = int(match[2])
        wanted.append(dimension + 1 if dimension >= 0 else -dimension)
    if match := re.search(r"too many indices for tensor of dimension (\d+)", text):
        wanted.append(int(match[1]) + 1)
    if match := re.search(r"permute\(sparse_coo\).*input\.dim\(\) = (\d+) is not equal to len\(dims\) = (\d+)", text):
        wanted.append(int(match[2]))
    if match := re.search(r"input\.dim\(\) = \d+ is not equal to len\(dims\) = (\d+)", text):
        wanted.append(int(match[1]))
    if match := re.search(r"[Ww]rong shape: expected (\d+) dims", text):
        wanted.append(int(match[1]))
    for rank in dict.fromkeys(wanted):
        if 1 <= rank <= 6:
            for name in at.implicated():
                yield from _changed(at, name, lambda tensor, rank=rank: _of_rank(tensor, rank))


def _kinds(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages about types of numbers."""
    lower = text.lower()
    if any(
        hint in lower for hint in ("long", "int64", "indices", "one_hot", "as indices", "integer", "'index'", "int ")
    ):
        for name in at.implicated():
            yield from _changed(at, name, lambda tensor: replace(tensor, kind=INDEX) if tensor.kind != INDEX else None)
            yield from _changed(
                at,
                name,
                lambda tensor: (
                    Tensor(tensor.shape[:2], INDEX) if tensor.kind != INDEX and len(tensor.shape) > 2 else None
                ),
            )
            yield from _changed(
                at,
                name,
                lambda tensor: (
                    Tensor(tensor.shape[:1], INDEX) if tensor.kind != INDEX and len(tensor.shape) > 1 else None
                ),
            )
    if any(hint in lower for hint in ("float", "long", "bool", "floating", "complex")):
        for name in at.implicated():
            yield from _changed(at, name, lambda tensor: replace(tensor, kind=FLOAT) if tensor.kind != FLOAT else None)
    if "bool" in lower or "mask" in lower or "byte" in lower:
        for name in at.implicated():
            yield from _changed(at, name, lambda tensor: replace(tensor, kind=MASK) if tensor.kind != MASK else None)
    if "between 0 and 1" in lower or "all elements of input should be" in lower:
        for name in at.implicated():
            yield from _changed(
                at, name, lambda tensor: replace(tensor, kind=POSITIVE) if tensor.kind != POSITIVE else None
            )
    if "index out of range" in lower or "out of bounds" in lower:
        for name in at.implicated():
            yield from _changed(
                at, name, lambda tensor: replace(tensor, below=1) if tensor.kind == INDEX and tensor.below > 1 else None
            )


def _missing(at: Situation, text: str) -> Iterator[Inputs]:
    """Optional arguments that turn out to be needed."""
    if not re.search(
        r"NoneType|None|missing|must be (specified|provided|given|set)|at least one|either|specify|required|You have to|expected|assert",
        text + "".join(at.mistake.lines[-1:]),
    ):
        return
    given = dict(at.inputs)
    words = [word for line in reversed(at.mistake.lines) for word in _WORD.findall(line)] + _WORD.findall(text)
    optional = [
        name
        for name, parameter in at.parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    named = [word for word in dict.fromkeys(words) if word in optional]
    empty = [name for name in named if name not in given or given[name] == Literal("None")]
    for name in empty or [n for n in optional if n not in given][:2]:
        for value in like_main(name, at.main, at.layers, at.loss):
            if value != Literal("None"):
                yield with_value(at.inputs, name, value)


def _containers(at: Situation, text: str) -> Iterator[Inputs]:
    """Where a tensor stands for a list, a tuple or a dict, or the other way round."""
    line = at.mistake.lines[-1] if at.mistake.lines else ""
    given = dict(at.inputs)
    names = [name for name in at.implicated() if not isinstance(given[name], Literal)][:3]
    if re.search(
        r"'(list|tuple)' object has no attribute|must be Tensor, not (list|tuple)|list indices must be|(list|tuple) and|, not (list|tuple)|got \((list|tuple)|'(list|tuple)'",
        text,
    ):
        for name in names:
            value = given[name]
            if isinstance(value, Items) and value.values:
                yield with_value(at.inputs, name, value.values[0])
    if re.search(
        r"must be tuple of Tensors, not Tensor|list|tuple|sequence|len\(|zip|enumerate|isinstance|index out of range|for .* in ",
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
        r"'Tensor' object has no attribute '(keys|items|values|get|pop)'|only integers, slices|string indices|KeyError",
        text + type(at.mistake.error).__name__,
    ):
        keys = re.findall(r"\[['\"](\w+)['\"]\]", " ".join(at.mistake.lines)) or [str(at.mistake.error).strip("'\"")]
        for name in names:
            value = given[name]
            known = dict(value.values) if isinstance(value, Fields) else {}
            fresh = {key: known.get(key, at.main) for key in (*known, *keys) if key.isidentifier()}
            if fresh and fresh.keys() != known.keys():
                yield with_value(at.inputs, name, Fields(tuple(fresh.items())))


def _compared(at: Situation, text: str) -> Iterator[Inputs]:  # noqa: ARG001
    """Numbers that an assertion or a condition found to differ: sizes, or how many dimensions an argument has."""
    for have, want, name in compared(at.mistake.error.__traceback__):
        if not name:
            yield from _resized(at, have, want)
        elif 1 <= want <= 6:
            given = [known for known, _ in at.inputs]
            for known in [name] if name in given else at.implicated():
                yield from _changed(at, known, lambda tensor: _of_rank(tensor, want))  # noqa: B023


def _told_layout(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages with a layout in brackets: `boxes must be with shape [B, H*W, 4]`."""
    for inside in re.findall(r"[\[(]([A-Za-z_][\w*+ ]*(?:, ?[\w*+ ]+)+)[\])]", text)[:2]:
        sizes = [part.strip() for part in inside.split(",")]
        if not 1 <= len(sizes) <= 6 or not all(
            re.fullmatch(r"[A-Za-z]\w{0,12}|\d+|[A-Za-z\d]+ ?[*+] ?[A-Za-z\d]+", size) for size in sizes
        ):
            continue

        def change(tensor: Tensor, sizes: Sequence[str] = sizes) -> Tensor | None:
            fresh = _of_rank(tensor, len(sizes)) or tensor
            shape = [int(size) if size.isdigit() else old for size, old in zip(sizes, fresh.shape, strict=True)]
            return fresh.with_shape(shape) if tuple(shape) != tensor.shape else None

        for name in at.implicated():
            yield from _changed(at, name, change)


def _volumes(at: Situation, text: str) -> Iterator[Inputs]:
    """`shape [2, 64, 32] is invalid for input of size 1024`: the product says how a size must grow."""
    match = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", text)
    if not match:
        return
    sizes = [int(n) for n in match[1].split(",")]
    want, have = math.prod(size for size in sizes if size > 0), int(match[2])
    if not want or not have:
        return
    for name in at.implicated():
        for place in (1, 2, 3, -1):
            for top, bottom in ((want, have), (have, want)):

                def change(tensor: Tensor, place: int = place, top: int = top, bottom: int = bottom) -> Tensor | None:
                    if not -len(tensor.shape) <= place < len(tensor.shape) or tensor.shape[place] * top % bottom:
                        return None
                    size = tensor.shape[place] * top // bottom
                    return _sized(tensor, place, size) if 0 < size <= 4096 else None

                yield from _changed(at, name, change)
        ratio = math.isqrt(max(want // max(have, 1), 1))
        if ratio > 1:
            yield from _changed(
                at,
                name,
                lambda tensor, ratio=ratio: (
                    tensor.with_shape((*tensor.shape[:-2], tensor.shape[-2] * ratio, tensor.shape[-1] * ratio))
                    if len(tensor.shape) >= 4
                    else None
                ),
            )


def _any_pair(at: Situation, text: str) -> Iterator[Inputs]:
    """Any two numbers of the message, one of which is a size of an input."""
    numbers = [int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", text)][:10]
    sizes = {size for _, value in at.inputs for tensor in tensors_in(value) for size in tensor.shape}
    for have in dict.fromkeys(n for n in numbers if n in sizes and n > 2):
        for want in dict.fromkeys(n for n in numbers if n != have and 0 < n <= 4096):
            yield from _resized(at, have, want)


def _misfits(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages about sizes that do not divide or meet: other sizes are likelier than other kinds."""
    if re.search(
        r"Sizes of tensors must match|divisible|is invalid for input of size|downsample|too small|smaller than|greater than|at least|multiple",
        text,
    ):
        yield from itertools.islice(_other_sizes(at, text), 4)


def _other_sizes(at: Situation, text: str) -> Iterator[Inputs]:  # noqa: ARG001
    """Other numbers of pixels and tokens."""
    for image in _IMAGES:
        fresh = tuple(
            (
                name,
                change_tensors(
                    value,
                    lambda t, image=image: (
                        t.with_shape((*t.shape[:-2], image, image))
                        if len(t.shape) in (4, 5) and t.shape[-1] == t.shape[-2]
                        else t
                    ),
                ),
            )
            for name, value in at.inputs
        )
        if fresh != at.inputs:
            yield fresh
    for length in _LENGTHS:
        fresh = tuple(
            (
                name,
                change_tensors(
                    value,
                    lambda t, length=length: (
                        t.with_shape((t.shape[0], length, *t.shape[2:]))
                        if len(t.shape) == 3 or (len(t.shape) == 2 and t.kind == INDEX)
                        else t
                    ),
                ),
            )
            for name, value in at.inputs
        )
        if fresh != at.inputs:
            yield fresh


_RULES: tuple[Callable[[Situation, str], Iterator[Inputs]], ...] = (
    _numbers,
    _ranks,
    _missing,
    _kinds,
    _containers,
    _compared,
    _misfits,
    _told_layout,
    _volumes,
    _any_pair,
    _other_sizes,
)


# --- changes ----------------------------------------------------------------------------------------------------------


def _changed(at: Situation, name: str, change: Callable[[Tensor], Value | None]) -> Iterator[Inputs]:
    value = dict(at.inputs)[name]
    fresh = change_tensors(value, lambda tensor: change(tensor) or tensor)
    if fresh != value:
        yield with_value(at.inputs, name, fresh)


def _resized(at: Situation, have: int, want: int) -> Iterator[Inputs]:
    """Every size `have` becomes `want`: in all inputs together, then in each, at the ends first."""
    if have == want or not 0 < want <= 8192:
        return
    for place in (1, -1, -2, 0):

        def change(tensor: Tensor, place: int = place) -> Tensor | None:
            if -len(tensor.shape) <= place < len(tensor.shape) and tensor.shape[place] == have:
                return _sized(tensor, place, want)
            return None

        everywhere = tuple((name, change_tensors(value, lambda t: change(t) or t)) for name, value in at.inputs)
        if everywhere != at.inputs:
            yield everywhere
            if len(at.inputs) > 1:
                for name in at.implicated():
                    yield from _changed(at, name, change)
    square = math.isqrt(want)
    if square * square == want:
        yield from _resized_square(at, have, square)
    for image in (t for _, value in at.inputs for t in tensors_in(value) if len(t.shape) == 4):
        side = math.isqrt(want // image.shape[1]) if want % image.shape[1] == 0 else 0
        if side and side * side * image.shape[1] == want:
            yield from _resized_square(at, image.shape[1] * image.shape[2] * image.shape[3], side)
        break


def _resized_square(at: Situation, have: int, side: int) -> Iterator[Inputs]:
    """An image whose pixels are counted as tokens."""
    for name in at.implicated():
        yield from _changed(
            at,
            name,
            lambda t: (
                t.with_shape((*t.shape[:-2], side, side))
                if len(t.shape) == 4 and have in (t.shape[-1] * t.shape[-2], math.prod(t.shape[1:]))
                else None
            ),
        )


def _sized(tensor: Tensor, place: int, size: int) -> Tensor:
    shape = list(tensor.shape)
    old = shape[place]
    shape[place] = size
    if (
        len(shape) in (4, 5)
        and place in (-1, -2, len(shape) - 1, len(shape) - 2)
        and shape[-1] != shape[-2]
        and old in shape[-2:]
    ):
        shape[-1] = shape[-2] = size  # images are square
    return tensor.with_shape(shape)


def _of_rank(tensor: Tensor, rank: int) -> Tensor | None:
    shape = tensor.shape
    if len(shape) == rank:
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


def _listed(at: Situation, count: int) -> Iterator[Inputs]:
    """An argument that is unpacked into several."""
    line = at.mistake.lines[-1] if at.mistake.lines else ""
    if ".shape" in line or ".size(" in line:
        return
    for name, value in at.inputs:
        if isinstance(value, Tensor) and re.search(rf"=\s*{re.escape(name)}\b|in {re.escape(name)}\b", line):
            yield with_value(at.inputs, name, Items((value,) * count, is_tuple=True))


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


# --- numbers in the failing line --------------------------------------------------------------------------------------


def compared(trace: TracebackType | None) -> list[tuple[int, int, str]]:
    """Pairs of integers that the failing lines compare, evaluated where they failed; inner frames first.

    Returns: what there was, what it was compared with, and the variable whose number of dimensions that is, if it is.
    """
    frames = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(f"{MODULE_NAME}.py"):
            frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    pairs: list[tuple[int, int, str]] = []
    for frame, line in reversed(frames[-3:]):
        for test in _tests_near(frame.f_code.co_filename, line):
            for left, right in zip([test.left, *test.comparators], test.comparators, strict=False):
                sides = (left, right), (right, left)
                for one, other in sides:
                    values = [_integers(node, frame.f_globals, frame.f_locals) for node in (one, other)]
                    if isinstance(other, (ast.Tuple, ast.List, ast.Set)) and len(values[0]) == 1:
                        values[0] *= len(values[1])
                    name = _counted(one)
                    if name or not _counted(other):
                        pairs += [(a, b, name) for a, b in zip(*values, strict=False) if a != b]
    return list(dict.fromkeys(pairs))


def _counted(node: ast.expr) -> str:
    """The variable of `x.ndim`, `x.dim()` or `len(x.shape)`."""
    text = ast.unparse(node)
    match = re.fullmatch(r"(\w+)\.(ndim|dim\(\))|len\((\w+)\.(shape|size\(\))\)", text)
    return (match[1] or match[3]) if match else ""


def _tests_near(file: str, line: int) -> list[ast.Compare]:
    """The comparisons of an assertion, or of the `if` above a raise."""
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
    except Exception:  # noqa: BLE001 - names of foreign code may do anything; then nothing is known
        return []
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [value]
    if isinstance(value, (tuple, list)):
        return [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
    return []
