"""Repairs of sizes: channels, tokens, pixels, and how many dimensions there are."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial

from extract.probing.compared import compared
from extract.probing.shapes import with_value
from extract.probing.situation import Situation, changed, of_rank, resized, sized
from extract.probing.tensors import (
    INDEX,
    Inputs,
    Items,
    Tensor,
    change_tensors,
    tensors_in,
)

_IMAGES = (32, 64, 8, 7, 14, 224, 56, 4, 128)


_LENGTHS = (64, 17, 49, 50, 4, 1, 196, 197, 65)


def numbers(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages that name the size that there was and the one that was wanted."""
    for pattern, have, want in _SIZES:
        if match := re.search(pattern, text):
            yield from resized(at, int(match[have]), int(match[want]))
    shapes = [tuple(map(int, found.split(","))) for found in re.findall(r"[\[(](\d+(?:, ?\d+)+)[\])]", text)][:4]
    for one, other in itertools.permutations(dict.fromkeys(shapes), 2):
        if len(one) == len(other) and 0 not in other:
            for name in at.implicated():
                yield from changed(at, name, partial(_reshaped, have=one, want=other))


def _reshaped(tensor: Tensor, have: tuple[int, ...], want: tuple[int, ...]) -> Tensor | None:
    return tensor.with_shape(want) if tensor.shape == have else None


_SIZES: tuple[tuple[str, int, int], ...] = (
    (r"to have (\d+) channels, but got (\d+) channels", 2, 1),
    (r"must have same reduction dim, but got \[\d+, (\d+)\] X \[(\d+), \d+\]", 1, 2),
    (r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)", 2, 3),
    (r"normalized_shape=\[(\d+)\].*but got input of size\[(?:\d+, )*(\d+)\]", 2, 1),
    (r"running_mean should contain (\d+) elements not (\d+)", 1, 2),
    (r"weight should contain (\d+) elements not (\d+)", 1, 2),
    (r"is not valid: got: (\d+) expected: (\d+)", 1, 2),
    (r"input\.size\(-1\) must be equal to input_size\. Expected (\d+), got (\d+)", 2, 1),
    (r"expecting embedding dimension of (\d+), but got (\d+)", 2, 1),
    (r"embed_dim of (\d+), but got (\d+)", 2, 1),
    (r"Expected size for first two dimensions of batch2 tensor to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]", 1, 2),
    (
        r"equal to the number of channels in input, but got weight of shape \[(\d+)\] and input of shape "
        r"\[\d+, (\d+)",
        2,
        1,
    ),
    (r"[Hh]eight \((\d+)\) doesn't match model \((\d+)\)", 1, 2),
    (r"[Ii]nput (?:image )?size \((\d+)\*\d+\) doesn't match model \((\d+)", 1, 2),
)


def ranks(at: Situation, text: str) -> Iterator[Inputs]:
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
                yield from changed(at, name, partial(of_rank, rank=rank))


def _listed(at: Situation, count: int) -> Iterator[Inputs]:
    """An argument that is unpacked into several."""
    line = at.mistake.lines[-1] if at.mistake.lines else ""
    if ".shape" in line or ".size(" in line:
        return
    for name, value in at.inputs:
        if isinstance(value, Tensor) and re.search(rf"=\s*{re.escape(name)}\b|in {re.escape(name)}\b", line):
            yield with_value(at.inputs, name, Items((value,) * count, is_tuple=True))


def told_numbers(at: Situation, text: str) -> Iterator[Inputs]:  # noqa: ARG001
    """Numbers that an assertion or a condition found to differ: sizes, or how many dimensions an argument has."""
    for have, want, name in compared(at.mistake.error.__traceback__):
        if not name:
            yield from resized(at, have, want)
        elif 1 <= want <= 6:
            given = [known for known, _ in at.inputs]
            for known in [name] if name in given else at.implicated():
                yield from changed(at, known, lambda tensor: of_rank(tensor, want))  # noqa: B023


def told_layout(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages with a layout in brackets: `boxes must be with shape [B, H*W, 4]`."""
    for inside in re.findall(r"[\[(]([A-Za-z_][\w*+ ]*(?:, ?[\w*+ ]+)+)[\])]", text)[:2]:
        sizes = [part.strip() for part in inside.split(",")]
        if not 1 <= len(sizes) <= 6 or not all(
            re.fullmatch(r"[A-Za-z]\w{0,12}|\d+|[A-Za-z\d]+ ?[*+] ?[A-Za-z\d]+", size) for size in sizes
        ):
            continue

        def change(tensor: Tensor, sizes: Sequence[str] = sizes) -> Tensor | None:
            fresh = of_rank(tensor, len(sizes)) or tensor
            shape = [int(size) if size.isdigit() else old for size, old in zip(sizes, fresh.shape, strict=True)]
            return fresh.with_shape(shape) if tuple(shape) != tensor.shape else None

        for name in at.implicated():
            yield from changed(at, name, change)


def volumes(at: Situation, text: str) -> Iterator[Inputs]:
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
                    return sized(tensor, place, size) if 0 < size <= 4096 else None

                yield from changed(at, name, change)
        ratio = math.isqrt(max(want // max(have, 1), 1))
        if ratio > 1:
            yield from changed(
                at,
                name,
                partial(_larger, ratio=ratio),
            )


def any_pair(at: Situation, text: str) -> Iterator[Inputs]:
    """Any two numbers of the message, one of which is a size of an input."""
    numbers = [int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", text)][:10]
    sizes = {size for _, value in at.inputs for tensor in tensors_in(value) for size in tensor.shape}
    for have in dict.fromkeys(n for n in numbers if n in sizes and n > 2):
        for want in dict.fromkeys(n for n in numbers if n != have and 0 < n <= 4096):
            yield from resized(at, have, want)


def misfits(at: Situation, text: str) -> Iterator[Inputs]:
    """Messages about sizes that do not divide or meet: other sizes are likelier than other kinds."""
    if re.search(
        r"Sizes of tensors must match|divisible|is invalid for input of size|downsample|too small|smaller than"
        r"|greater than|at least|multiple",
        text,
    ):
        yield from itertools.islice(other_sizes(at, text), 4)


def other_sizes(at: Situation, text: str) -> Iterator[Inputs]:  # noqa: ARG001
    """Other numbers of pixels and tokens."""
    for change in (*(partial(_image, side=side) for side in _IMAGES), *(partial(_tokens, count=n) for n in _LENGTHS)):
        fresh = tuple((name, change_tensors(value, change)) for name, value in at.inputs)
        if fresh != at.inputs:
            yield fresh


def _larger(tensor: Tensor, ratio: int) -> Tensor | None:
    if len(tensor.shape) < 4:
        return None
    return tensor.with_shape((*tensor.shape[:-2], tensor.shape[-2] * ratio, tensor.shape[-1] * ratio))


def _image(tensor: Tensor, side: int) -> Tensor:
    square = len(tensor.shape) in (4, 5) and tensor.shape[-1] == tensor.shape[-2]
    return tensor.with_shape((*tensor.shape[:-2], side, side)) if square else tensor


def _tokens(tensor: Tensor, count: int) -> Tensor:
    counted = len(tensor.shape) == 3 or (len(tensor.shape) == 2 and tensor.kind == INDEX)
    return tensor.with_shape((tensor.shape[0], count, *tensor.shape[2:])) if counted else tensor
