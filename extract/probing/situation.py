"""A failed call of forward, and the changes that its inputs may get."""

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from extract.probing.running import Mistake
from extract.probing.shapes import Layers, with_value
from extract.probing.tensors import Inputs, Tensor, Value, change_tensors, tensors_in

WORD = re.compile(r"[A-Za-z_]\w*")


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
        words = [word for line in reversed(self.mistake.lines) for word in WORD.findall(line)]
        words += WORD.findall(str(self.mistake.error))
        given = [name for name, _ in self.inputs]
        named = [word for word in dict.fromkeys(words) if word in given]
        return named + [name for name in given if name not in named]


def changed(at: Situation, name: str, change: Callable[[Tensor], Value | None]) -> Iterator[Inputs]:
    """The inputs with the tensors of one argument changed, if that changes anything; None leaves a tensor as it is."""
    value = dict(at.inputs)[name]
    fresh = change_tensors(value, lambda tensor: change(tensor) or tensor)
    if fresh != value:
        yield with_value(at.inputs, name, fresh)


def resized(at: Situation, have: int, want: int) -> Iterator[Inputs]:
    """Every size `have` becomes `want`: in all inputs together, then in each, at the ends first."""
    if have == want or not 0 < want <= 8192:
        return
    for place in (1, -1, -2, 0):

        def change(tensor: Tensor, place: int = place) -> Tensor | None:
            if -len(tensor.shape) <= place < len(tensor.shape) and tensor.shape[place] == have:
                return sized(tensor, place, want)
            return None

        everywhere = tuple((name, change_tensors(value, lambda t: change(t) or t)) for name, value in at.inputs)
        if everywhere != at.inputs:
            yield everywhere
            if len(at.inputs) > 1:
                for name in at.implicated():
                    yield from changed(at, name, change)
    square = math.isqrt(want)
    if square * square == want:
        yield from resized_square(at, have, square)
    for image in (t for _, value in at.inputs for t in tensors_in(value) if len(t.shape) == 4):
        side = math.isqrt(want // image.shape[1]) if want % image.shape[1] == 0 else 0
        if side and side * side * image.shape[1] == want:
            yield from resized_square(at, image.shape[1] * image.shape[2] * image.shape[3], side)
        break


def resized_square(at: Situation, have: int, side: int) -> Iterator[Inputs]:
    """An image whose pixels are counted as tokens."""
    for name in at.implicated():
        yield from changed(
            at,
            name,
            lambda t: (
                t.with_shape((*t.shape[:-2], side, side))
                if len(t.shape) == 4 and have in (t.shape[-1] * t.shape[-2], math.prod(t.shape[1:]))
                else None
            ),
        )


def sized(tensor: Tensor, place: int, size: int) -> Tensor:
    """A tensor with another size at one place; an image that was no square becomes one."""
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


def of_rank(tensor: Tensor, rank: int) -> Tensor | None:
    """A tensor of as many dimensions that keeps its channels; None if it has as many."""
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
