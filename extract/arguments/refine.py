"""Give the sizes of a call that works values of their own, and make a large call smaller.

    Gate(dim=32, hidden=32)(x=torch.randn((2, 32, 16, 16)))
    Gate(dim=32, hidden=48)(x=torch.randn((2, 32, 20, 24)))

Both run, but the first also runs if the code swaps height and width, or mixes up two widths: it shows less of what the
class computes. The integers of the expressions are changed, and each change is kept if the call still runs.
"""

import ast
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from extract.arguments.constructing import Arguments, Constructed, Constructor
from extract.arguments.forwarding import ForwardCall, run
from extract.arguments.messages import RAISED_RATE, ZERO_RATES, is_rate
from extract.arguments.trials import AttemptError, counting_work

_MAX_TRIES = 24
_MAX_WORK = 1_500_000_000  # multiply-adds of all tries for one block; no clock, so that every machine finds the same
_SMALLEST = 8  # smaller sizes are numbers of heads, kernels and samples, which divide others on purpose
_OF_IMAGES = 3  # channels
_SIDES = frozenset({(4, 2), (4, 3), (5, 3), (5, 4)})  # rank and axis of the height and the width of images
_SPACE = 16  # height in place of a pixel
_LEAST_SHRUNK = 32  # smaller integers are never divided: numbers of heads, kernels
_NEAR = {8: range(24, 4096, 8), 4: range(12, 2048, 4)}  # sizes to choose from, by what they are multiples of
_LARGE = 1_000_000  # elements of parameters and buffers
_SLOW = 100_000_000  # multiply-adds of one call
_MOST_DOUBLED = 512  # pixels of an image; the side of one with more is halved
_LEAST_SIDE, _MOST_SIDE, _MOST_TOKENS = 8, 64, 256  # that are halved, changed at all, and doubled
_CREATORS = frozenset({"randn", "rand", "ones", "zeros", "randint", "empty"})

Call = TypeVar("Call", bound=Arguments)


class SizePlace(NamedTuple):
    """An integer of an expression: a size of a tensor, or a plain argument.

    Args: text: the number of the expression. start, end: its place there. axis: rank and axis in a tensor, or None.
    """

    text: int
    start: int
    end: int
    value: int
    axis: tuple[int, int] | None

    @property
    def is_channels(self) -> bool:
        """Whether it is the usual axis of the channels."""
        rank, axis = self.axis or (0, 0)
        return axis == (rank - 1 if rank == 3 else 1)

    @property
    def is_batch(self) -> bool:
        """Whether it is a number of samples."""
        return self.axis is not None and self.axis[1] == 0 and self.value < _SMALLEST


@dataclass(slots=True)
class WorkingCalls:
    """A constructor and a forward call that work, as one list of expressions."""

    arguments: Arguments
    called: ForwardCall
    sizes: tuple[SizePlace, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = tuple(size for number, text in enumerate(self.texts) for size in read_sizes(number, text))

    @property
    def texts(self) -> list[str]:
        """The expressions of both calls."""
        return [*self.arguments.texts, *self.called.texts]

    @property
    def inputs(self) -> list[SizePlace]:
        """The sizes of the tensors that forward is given."""
        first = len(self.arguments.texts)
        return [size for size in self.sizes if size.text >= first and size.axis is not None]

    @property
    def widths(self) -> list[SizePlace]:
        """The integers that the constructor is given."""
        first = len(self.arguments.texts)
        return [size for size in self.sizes if size.text < first]

    def change(self, values: Mapping[SizePlace, int]) -> "WorkingCalls":
        """Return the calls with other values for some sizes."""
        texts = self.texts
        for size in sorted(values, key=lambda size: -size.start):
            texts[size.text] = texts[size.text][: size.start] + str(values[size]) + texts[size.text][size.end :]
        remaining = iter(texts)

        def rewrite(call: Call) -> Call:
            args = tuple(next(remaining) for _ in call.args)
            return replace(call, args=args, kwargs=tuple((name, next(remaining)) for name, _ in call.kwargs))

        return WorkingCalls(rewrite(self.arguments), rewrite(self.called))

    def with_defaults(self, parameters: Mapping[str, inspect.Parameter]) -> "WorkingCalls":
        """Return the calls with the constructor's defaults that are integers, or lists of them, as arguments."""
        known = self.arguments.by_name(parameters)
        more = tuple(
            (name, repr(parameter.default))
            for name, parameter in parameters.items()
            if name not in known and parameter.kind is not parameter.POSITIONAL_ONLY and _is_size(parameter.default)
        )
        return WorkingCalls(replace(self.arguments, kwargs=(*self.arguments.kwargs, *more)), self.called)

    def without_defaults(self, parameters: Mapping[str, inspect.Parameter]) -> "WorkingCalls":
        """Return the calls without arguments of the constructor that are its defaults."""
        defaults = {name: repr(parameter.default) for name, parameter in parameters.items()}
        kept = tuple((name, text) for name, text in self.arguments.kwargs if defaults.get(name) != text)
        return WorkingCalls(replace(self.arguments, kwargs=kept), self.called)


def _is_size(value: object) -> bool:
    return type(value) is int or (isinstance(value, tuple | list) and bool(value) and all(map(_is_size, value)))


def read_sizes(number: int, text: str) -> Iterator[SizePlace]:
    """Yield the sizes of the tensors that an expression creates, and its other integers; none of several lines."""
    if "\n" in text or not text.isascii():
        return  # the parser counts bytes of a line
    waiting: list[tuple[ast.AST, tuple[int, int] | None]] = [(ast.parse(text, mode="eval").body, None)]
    while waiting:
        node, axis = waiting.pop(0)
        if isinstance(node, ast.Constant):
            if type(node.value) is int and node.end_col_offset is not None:
                yield SizePlace(number, node.col_offset, node.end_col_offset, node.value, axis)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CREATORS:
            listed = [item.elts for item in node.args if isinstance(item, ast.Tuple | ast.List)]
            shape = listed[0] if listed else node.args
            sizes = [(item, (len(shape), place)) for place, item in enumerate(shape)]
            waiting[:0] = [(item, at) for item, at in sizes if isinstance(item, ast.Constant)]
        else:
            waiting += [(child, None) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.Dict)]


def vary(calls: WorkingCalls) -> Iterator[ForwardCall]:
    """Yield a call with twice or half as many pixels a side or tokens, and one with another sample.

    The work of attention grows with the fourth power of a side, so of a large image a smaller one is taken.
    """
    sides = [size for size in calls.inputs if size.axis in _SIDES and size.value <= _MOST_SIDE]
    few = min((size.value for size in sides), default=0) * max((size.value for size in sides), default=0)
    double = few <= _MOST_DOUBLED
    other = {
        size: 2 * size.value if double else size.value // 2 for size in sides if double or size.value >= _LEAST_SIDE
    }
    other |= {size: 2 * size.value for size in calls.inputs if size.axis == (3, 1) and size.value <= _MOST_TOKENS}
    samples = {size: size.value + 1 for size in calls.inputs if size.axis and size.axis[0] > 2 and size.axis[1] == 0}
    yield from (calls.change(values).called for values in (other, samples) if values)


def refine(
    constructor: Constructor, built: Constructed, called: ForwardCall, work: int
) -> tuple[Constructed, ForwardCall] | None:
    """Return a module and a call with sizes of their own, and smaller ones if it is large; None if nothing changed.

    Args: work: the multiply-adds of the call.
    """
    latest, total, parameters = built, 0, constructor.parameters

    def runs(arguments: Arguments, changed: ForwardCall) -> bool:
        nonlocal latest, work, total
        if total > _MAX_WORK:
            return False
        with counting_work() as counted:
            try:
                module = latest if arguments == latest.arguments else constructor.make(arguments)
                module.module.eval()
                run(module.module, changed, constructor.names, on_meta=module.on_meta)
            except AttemptError:
                return False
            finally:
                total += 0 if latest.on_meta else counted[0]
        latest, work = module, counted[0]
        return True

    def is_large() -> bool:
        return latest.size > _LARGE or work > _SLOW

    first = calls = WorkingCalls(built.arguments, called)
    refiner = Refiner(runs)
    if is_large():
        calls = refiner.shrink(calls.with_defaults(parameters), is_large).without_defaults(parameters)
    if not is_large() and called.guessed:
        calls = refiner.widen(refiner.separate(calls, widths=not constructor.is_stated(built.arguments)))
    elif not is_large():
        calls = refiner.separate_space(calls)
    if not is_large():
        calls = refiner.raise_rates(calls, parameters)
    if calls.texts == first.texts:
        return None
    try:
        return latest if calls.arguments == latest.arguments else constructor.make(calls.arguments), calls.called
    except AttemptError:
        return None


@dataclass(slots=True)
class Refiner:
    """Change the sizes of calls as long as they run. Args: runs: tries two calls."""

    runs: Callable[[Arguments, ForwardCall], bool]
    tries: int = _MAX_TRIES

    def _try(self, calls: WorkingCalls, values: Mapping[SizePlace, int]) -> WorkingCalls | None:
        """Return the changed calls if they run, and None if they do not or nothing more may be tried."""
        if self.tries <= 0:
            return None
        self.tries -= 1
        changed = calls.change(values)
        return changed if self.runs(changed.arguments, changed.called) else None

    def _move(
        self, calls: WorkingCalls, groups: Iterable[Sequence[SizePlace]], sizes: Iterable[int]
    ) -> WorkingCalls | None:
        """Return the calls with the first of these sizes that runs in the first group of places; None if none does."""
        tried = (self._try(calls, dict.fromkeys(group, size)) for size, group in itertools.product(sizes, groups))
        return next((changed for changed in tried if changed is not None), None)

    def separate(self, calls: WorkingCalls, *, widths: bool) -> WorkingCalls:
        """Return the calls with sizes that are all different, as far as they run.

        Args: widths: also change the integers of the constructor, because they were guessed.
        """
        if at_once := _propose_all(calls):
            calls = self._try(calls, at_once) or calls
        for axis in _list_axes(calls):
            calls = self._separate_axis(calls, axis)
        for place in range(len(calls.widths)) if widths else ():
            width = calls.widths[place]
            if width.value >= _SMALLEST and width.value in [size.value for size in calls.widths[:place]]:
                equal = [size for size in calls.inputs if size.value == width.value]
                others = [size.value for size in calls.sizes if size is not width]
                groups = [[width], *([width, size] for size in equal[1:])]
                calls = self._move(calls, groups, _choose(width.value, others)[:1]) or calls
        return calls

    def _separate_axis(self, calls: WorkingCalls, axis: tuple[int, int]) -> WorkingCalls:
        for value in dict.fromkeys(size.value for size in calls.inputs if size.axis == axis):
            same = [size for size in calls.inputs if size.axis == axis and size.value == value]
            equal = [size for size in calls.inputs if size.value == value and size not in same]
            others = [size.value for size in calls.sizes if size not in same and not size.is_batch]
            # The only axis of a width is that width: a call that ran without it would run by accident.
            is_width = all(size.is_channels for size in same) and not equal
            if not _collides(value, others) or (is_width and any(size.value == value for size in calls.widths)):
                continue
            elsewhere = [size for size in equal if size.axis and size.axis[0] != axis[0]]
            groups = [same, [*same, *elsewhere]] if elsewhere else [same]
            if (changed := self._move(calls, groups, _choose(value, others))) is not None:
                return changed
        return calls

    def separate_space(self, calls: WorkingCalls) -> WorkingCalls:
        """Return the calls with images whose height and width differ, and that are larger than a pixel.

        A recorded call has the widths that are used, but a square image, which has often shrunk to a pixel.
        """
        sides = [size for size in calls.inputs if size.axis and size.axis[0] in (4, 5) and size.axis[1] > 1]
        axes = {size.axis: size.value for size in sides}
        ranks = {size.axis[0] for size in sides if size.axis}
        if (
            len(ranks) > 1
            or any(axes[size.axis] != size.value for size in sides)
            or len(set(axes.values())) == len(axes)
        ):
            return calls
        side = min(axes.values())
        # Half as much again keeps the height a multiple of most patches and windows; twice as much, of all of them.
        for step in (side // 2 if side % 2 == 0 else 1, side):
            start, step = (side, step) if side > 1 else (_SPACE, _SPACE // 2)
            fresh = {axis: start + number * step for number, axis in enumerate(axes)}
            if (changed := self._try(calls, {size: fresh[size.axis] for size in sides})) is not None:
                return changed
        return calls

    def widen(self, calls: WorkingCalls) -> WorkingCalls:
        """Return the calls with at least `_SMALLEST` channels, but for the three of an image."""
        others = [other.value for other in calls.sizes]
        fresh = next((n for n in _NEAR[_SMALLEST] if not _collides(n, others)), _SMALLEST)
        for size in calls.inputs:
            if size.is_channels and size.value < _SMALLEST and size.value != _OF_IMAGES:
                equal = [other for other in (*calls.widths, *calls.inputs) if other.value == size.value]
                groups = [other for other in equal if other.axis in (None, size.axis)], [size]
                if (changed := self._move(calls, groups, [fresh])) is not None:
                    return changed
        return calls

    def raise_rates(self, calls: WorkingCalls, parameters: Mapping[str, inspect.Parameter]) -> WorkingCalls:
        """Return the calls with dropout where its rates are 0: what such a rate hides is part of a class.

        That holds for a recorded call, too: models switch dropout off to be small or to run in eval mode.
        """
        texts = calls.arguments.by_name(parameters)
        rates = {
            name: RAISED_RATE
            for name, parameter in parameters.items()
            if is_rate(name)
            and type(parameter.default) is float
            and texts.get(name, repr(parameter.default)) in ZERO_RATES
        }
        if not rates or self.tries <= 0:
            return calls
        raised = WorkingCalls(calls.arguments.with_texts(parameters, texts | rates), calls.called)
        return raised if self.runs(raised.arguments, raised.called) else calls

    def shrink(self, calls: WorkingCalls, is_large: Callable[[], bool]) -> WorkingCalls:
        """Return the calls with integers divided, all together and then each value, as long as they run.

        Args: is_large: returns whether the calls that ran last are still too large.
        """

        def divide(wanted: int | None, divisor: int) -> WorkingCalls | None:
            large = [size for size in calls.sizes if size.value >= _LEAST_SHRUNK and not size.is_batch]
            chosen = [size for size in large if wanted in (None, size.value)]
            return self._try(calls, {s: max(s.value // divisor, _SMALLEST) for s in chosen}) if chosen else None

        for divisor in (4, 2, 2, 2):
            calls = (divide(None, divisor) if is_large() else None) or calls
        for value in sorted({size.value for size in calls.sizes if size.value >= _LEAST_SHRUNK}, reverse=True):
            changed = (divide(value, divisor) for divisor in (4, 2) if is_large())
            calls = next((item for item in changed if item is not None), calls)
        return calls


def _list_axes(calls: WorkingCalls) -> list[tuple[int, int]]:
    """Return rank and axis of the sizes of inputs, last ones first, but for their first axes."""
    return list(dict.fromkeys(size.axis for size in reversed(calls.inputs) if size.axis and size.axis[1]))


def _propose_all(calls: WorkingCalls) -> dict[SizePlace, int]:
    """Return another value for each axis of the inputs whose size another axis or argument has."""
    values = {size: size.value for size in calls.inputs}
    for axis in _list_axes(calls):
        same = [size for size in calls.inputs if size.axis == axis]
        others = [values.get(size, size.value) for size in calls.sizes if size not in same and not size.is_batch]
        # The axis of the channels has the size of an argument, or of another axis of the same rank by accident.
        equal = [size for size in calls.inputs if values[size] == same[0].value and size not in same]
        if equal and len({size.value for size in same}) == 1:
            values |= dict.fromkeys(same, next(iter(_choose(same[0].value, others)), same[0].value))
    return {size: value for size, value in values.items() if value != size.value}


def _collides(value: int, others: Iterable[int]) -> bool:
    """Return whether a size is another one or, of sizes that are not small, a multiple or a part of it."""
    return any(
        value == other or (min(value, other) >= _SMALLEST and (value % other == 0 or other % value == 0))
        for other in others
    )


def _choose(value: int, others: Collection[int]) -> Sequence[int]:
    """Return sizes near to one that no other size equals or divides: a multiple of eight, then one of four."""
    if value < _SMALLEST:
        return [n for n in (value + 2, value + 1) if n not in others]
    chosen = []
    for sizes in _NEAR.values():
        near = [n for n in sizes if math.ceil(value / 2) < n <= 2 * value and n != value and not _collides(n, others)]
        chosen += sorted(near, key=lambda n: (abs(n - value), n))[:1]
    return chosen
