"""Insertion points of a network: submodules that a block can replace or follow, and why it does not fit elsewhere.

Candidates are chosen from the observed shapes of both. Whether the block runs with the sizes at an insertion point is
tested by building it there (`extract.migrate.fitting`). If the number of channels differs, a 1x1 convolution is
added before or after the block, or a linear layer if the channels are the last dimension. A block that takes tokens, or
maps with the channels last, is wrapped in a module that converts the layout.

Widths are the numbers among a constructor's arguments that equal a size of an input or output. The working arguments
are known together with the observed shapes: `SEModule(32)` took 2x32x16x16. A number that equals the channels may be
the width, or equal it by chance, so each interpretation is one call to try: first the original call, then those that
treat the most numbers as widths (or the fewest, if there are so few channels that any number may equal them). Omitted
parameters count with their defaults.
"""

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from extract.migrate.messages import Fit, NoFit, ObservedSubmodule, PointToTry, Shape
from extract.migrate.source_block import SourceBlock
from extract.specs.make import StatedArguments
from lemur_core.source.text import Edit, apply
from manifests.records import SpecArgument

How = Literal["replace", "after"]

_MAPS = 4  # dimensions
_MOST_NUMBERS = 6  # maximum count for which all combinations are tried
_PLAIN = 8  # numbers of at least this size are unlikely to equal the channels by chance
MOST_CALLS = 24

#: Layout in which N x C x H x W maps are passed to a block: unchanged; as N x L x C tokens; with the channels last.
View = Literal["", "tokens", "last"]


@dataclass(frozen=True, slots=True)
class BlockFit:
    """How a block fits an insertion point: the constructor call, and the channels that adapters change.

    `before`: (from, to), None if the block takes the channels at the insertion point; `after` likewise. `axis`: the
    channel dimension of the block's tensors, `rank`: their number of dimensions.
    """

    call: StatedArguments
    before: tuple[int, int] | None
    after: tuple[int, int] | None
    axis: int
    rank: int
    view: View = ""

    @property
    def adapters(self) -> int:
        """Number of modules in addition to the block."""
        return (self.before is not None) + (self.after is not None) + bool(self.view)

    def adapter(self, channels: tuple[int, int]) -> str:
        """Return the layer that changes channels, as an expression with `nn`."""
        if self.axis == self.rank - 1 or self.rank not in (3, 4, 5):
            return f"nn.Linear({channels[0]}, {channels[1]})"
        return f"nn.Conv{self.rank - 2}d({channels[0]}, {channels[1]}, 1)"


@dataclass(frozen=True, slots=True)
class InsertionPoint:
    """One way of inserting a block into a network."""

    place: ObservedSubmodule
    how: How  # replace the submodule, or follow it
    before: tuple[Shape, ...]  # input shapes there, by case
    after: tuple[Shape, ...]  # required output shapes
    reason: str = ""  # why the block does not fit; empty if it does
    filling: BlockFit | None = None  # how it fits
    view: View = ""  # layout in which the block gets its inputs

    @property
    def name(self) -> str:
        """Name for `--site`: `after:features.3`."""
        return f"{self.how}:{self.place.path}"

    @property
    def shapes(self) -> str:
        """Input and output shapes of the first case, as text."""
        return f"{format_shape(self.before[0])} -> {format_shape(self.after[0])}" if self.before else "no single shape"


def format_shape(shape: Sequence[int]) -> str:
    """Format a shape."""
    return "x".join(map(str, shape))


def list_insertion_points(submodules: Sequence[ObservedSubmodule], source_block: SourceBlock) -> list[InsertionPoint]:
    """Return all insertion points in the order of the forward pass; those that cannot fit have a reason."""
    return [_describe_point(submodule, how, source_block) for submodule in submodules for how in ("replace", "after")]


def _describe_point(submodule: ObservedSubmodule, how: Any, source_block: SourceBlock) -> InsertionPoint:
    reason = _explain_unusable(submodule)
    if reason:
        return InsertionPoint(submodule, how, (), (), reason)
    after = tuple(shapes[0] for shapes in submodule.outputs)
    before = after if how == "after" else tuple(shapes[0] for shapes in submodule.inputs)
    view = _choose_view(before, after, source_block)
    seen_before, seen_after = ([apply_view(shape, view) for shape in shapes] for shapes in (before, after))
    return InsertionPoint(
        submodule, how, before, after, _explain_mismatch(seen_before, seen_after, source_block, view), view=view
    )


def _choose_view(before: Sequence[Shape], after: Sequence[Shape], source_block: SourceBlock) -> View:
    """Return the view in which a block of another layout can take the maps of an insertion point; "" if none."""
    maps = all(len(shapes[0]) == _MAPS and channels_axis(shapes) == 1 for shapes in (before, after))
    last = all(len(shape) == source_block.axis + 1 for shape in source_block.cases[0])
    if not (maps and last):
        return ""
    return {_MAPS - 1: "tokens", _MAPS: "last"}.get(source_block.axis + 1, "")  # type: ignore[return-value]


def apply_view(shape: Shape, view: View) -> Shape:
    """Convert a shape of maps to a view."""
    if not view:
        return shape
    images, channels, height, width = shape
    return (images, height * width, channels) if view == "tokens" else (images, height, width, channels)


def _explain_unusable(submodule: ObservedSubmodule) -> str:
    """Return the reason why no block can be inserted there; empty if one can."""
    if not submodule.steps:
        return "no Python expression reaches it"
    if submodule.shared:
        return "is the same module as another submodule"
    if not submodule.single:
        return "takes or returns something other than one tensor of real numbers"
    if any(len(case) != 1 for case in (*submodule.inputs, *submodule.outputs)):
        return f"is called {submodule.calls} times, with tensors of several shapes"
    return ""


def _explain_mismatch(before: Sequence[Shape], after: Sequence[Shape], source_block: SourceBlock, view: View) -> str:
    """Return the reason why the observed shapes of the block do not fit; empty if they do."""
    (took, gave), axis = source_block.cases[0], source_block.axis
    if len(before[0]) != len(took):
        return f"hands on {len(before[0])} dimensions, and the block takes {len(took)}: {format_shape(took)}"
    if len(after[0]) != len(gave):
        return f"gives {len(after[0])} dimensions, and the block gives {len(gave)}: {format_shape(gave)}"
    # One dimension is the batch, so there is none to adapt.
    if len(before[0]) < 2:
        return "has no channels"
    for shapes in (before, after):
        if len({shape[axis] for shape in shapes}) > 1:
            widths = " and ".join(str(shape[axis]) for shape in shapes)
            other = axis if view else channels_axis(shapes)
            if other != axis:
                return f"has its channels in dimension {other}, and the block in dimension {axis}"
            return f"its width is not fixed: {widths} in two constructions"
    if not view and channels_axis(before) != axis:
        return f"has its channels in dimension {channels_axis(before)}, and the block in dimension {axis}"
    return ""


def channels_axis(shapes: Sequence[Shape]) -> int:
    """Return the channel dimension: the one that is constant while others follow the image size, else the usual one."""
    rank = len(shapes[0])
    varies = [len({shape[index] for shape in shapes}) > 1 for index in range(rank)]
    # Two image sizes were seen: what changes with the image is not the channels.
    if rank > 2 and varies[1] != varies[-1]:
        return rank - 1 if varies[1] else 1
    return 2 if rank == 3 else 1


# -- trying a block --------------------------------------------------------------------------------------------------


def build_query(point: InsertionPoint, source_block: SourceBlock) -> PointToTry:
    """Return the job for the sandbox at an insertion point: constructor calls, each with the input width to run at."""
    return {
        "before": [list(apply_view(shape, point.view)) for shape in point.before],
        "after": [list(apply_view(shape, point.view)) for shape in point.after],
        "axis": source_block.axis,
        "attempts": [
            {
                "call": f"{source_block.name}({call.text()})",
                "args": list(call.args),
                "kwargs": dict(call.kwargs or {}),
                "width": w,
            }
            for call, w in attempts(point, source_block)
        ],
    }


def attempts(point: InsertionPoint, source_block: SourceBlock) -> Iterator[tuple[StatedArguments, int]]:
    """Yield constructor calls with the input width of the block: that of the insertion point, then its own.

    For each width, all working arguments come first, then only those without defaults.
    """
    (took, gave), axis = source_block.cases[0], source_block.axis
    seen_in, seen_out = took[axis], gave[axis]
    before, after = apply_view(point.before[0], point.view), apply_view(point.after[0], point.view)
    want_in, want_out = before[axis], after[axis]
    # If both widths are equal, a number may be either of them: both replacements are tried.
    channels = {seen_in: [want_in]} if seen_in != seen_out else {seen_in: list(dict.fromkeys([want_in, want_out]))}
    channels.setdefault(seen_out, [want_out])
    pairs = zip(took, before, strict=True)
    sizes = {old: new for index, (old, new) in enumerate(pairs) if index not in (0, axis) and old not in channels}
    inits = list({init.text(): init for init in (source_block.init, source_block.args_without_default)}.values())
    for init in inits:
        yield from ((call, want_in) for call in calls(init, source_block.constructor, channels, sizes))
    # Last, the block as it is known to work: an adapter then changes the width around it.
    if want_in != seen_in:
        for init in inits:
            yield from ((call, seen_in) for call in calls(init, source_block.constructor, {}, sizes))


def apply_answer(point: InsertionPoint, source_block: SourceBlock, answer: Fit | NoFit) -> InsertionPoint:
    """Return the insertion point with the answer of the sandbox."""
    if isinstance(answer, NoFit):
        return replace(point, reason=answer.reason)
    axis, width = source_block.axis, answer.width
    width_before, wanted = apply_view(point.before[0], point.view)[axis], apply_view(point.after[0], point.view)[axis]
    filling = BlockFit(
        StatedArguments(answer.args, dict(answer.kwargs)),
        (width_before, width) if width_before != width else None,
        (answer.gives, wanted) if answer.gives != wanted else None,
        axis,
        len(source_block.cases[0][0]),
        point.view,
    )
    return replace(point, filling=filling)


def best_first(points: Sequence[InsertionPoint], source_block: SourceBlock, parameters: int) -> list[InsertionPoint]:
    """Return the insertion points that fit, best first.

    The criteria in order: fewest additional modules; after a submodule if the block keeps the shape of its input, else
    in place of one; a single call per forward pass; the most similar number of parameters (when replacing), or the
    nearest to the middle of the forward pass (when following); the order of the forward pass.

    Args: parameters: number of parameters of the block with its working arguments.
    """
    fitting = [point for point in points if point.filling is not None]
    preferred = "after" if source_block.keeps_shape else "replace"
    order = {point.place.path: number for number, point in enumerate(points)}
    middle = max(order.values(), default=0) / 2

    def key(point: InsertionPoint) -> tuple[float, ...]:
        assert point.filling is not None
        position = order[point.place.path]
        more, less = max(point.place.parameters, parameters) + 1, min(point.place.parameters, parameters) + 1
        near = abs(position - middle) if point.how == "after" else more / less
        return point.filling.adapters, point.how != preferred, point.place.calls > 1, near, position

    return sorted(fitting, key=key)


# -- widths ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Number:
    """An integer in an argument, which is identified by position or name."""

    key: int | str
    start: int  # byte offset in the argument's text; -1 for a default
    end: int
    value: int


def calls(
    init: StatedArguments,
    constructor: Sequence[SpecArgument],
    channels: Mapping[int, Sequence[int]],
    sizes: Mapping[int, int],
) -> Iterator[StatedArguments]:
    """Yield constructor calls for other sizes: the original call, then the others, most likely first.

    Args:
        init: the working call.
        constructor: its parameters.
        channels: observed number of channels -> possible replacements, most likely first.
        sizes: other observed input size -> replacement; tried after calls that leave these sizes unchanged.
    """
    numbers = [*_numbers_in_call(init), *_numbers_in_defaults(init, constructor, channels)]
    numbers = [number for number in numbers if number.value in channels or number.value in sizes]
    readings = list(_readings(numbers, channels, sizes))
    readings.sort(key=lambda new: _rank(numbers, new, channels))
    texts = {init.text()}
    yield init
    for new in readings:
        call = _replace_numbers(init, numbers, new)
        if call.text() not in texts:
            texts.add(call.text())
            yield call
        if len(texts) >= MOST_CALLS:
            return


def _readings(
    numbers: Sequence[_Number], channels: Mapping[int, Sequence[int]], sizes: Mapping[int, int]
) -> Iterator[tuple[int, ...]]:
    """Yield combinations of replacements, one value for each number."""
    options = [
        list(dict.fromkeys([*channels.get(n.value, ()), *([sizes[n.value]] if n.value in sizes else []), n.value]))
        for n in numbers
    ]
    if len(numbers) <= _MOST_NUMBERS:
        yield from itertools.product(*options)
        return
    # All combinations would be too many: all numbers as widths, then one at a time.
    yield tuple(option[0] for option in options)
    for index, option in enumerate(options):
        for value in option:
            yield tuple(value if index == other else number.value for other, number in enumerate(numbers))


def _rank(numbers: Sequence[_Number], new: Sequence[int], channels: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Sort key: prefers unchanged sizes, all numbers as widths, and the first as input and the last as output width."""
    pairs = list(zip(numbers, new, strict=True))
    sized = sum(n.value != value and value not in channels.get(n.value, ()) for n, value in pairs)
    kept = sum(n.value in channels and value not in channels[n.value] for n, value in pairs)
    left_out = sum(isinstance(n.key, str) and n.start < 0 and value != n.value for n, value in pairs)
    turns = [channels[n.value].index(value) for n, value in pairs if value in channels.get(n.value, ())]
    # The usual order of parameters is `(in, out, ...)`: the first number is the input width, the others are the output.
    late = sum(abs(turn - min(index, 1)) for index, turn in enumerate(turns)) if len(set(turns)) > 1 else 0
    uniform = 1 if len(set(turns)) == 1 and any(len(set(w)) > 1 for w in channels.values()) and len(turns) > 1 else 0
    if channels and min(channels) < _PLAIN:  # strides, groups and dilations have such values, too
        kept = sum(value != n.value for n, value in pairs)
    return kept, sized, left_out, uniform, late, *turns


def _numbers_in_call(init: StatedArguments) -> Iterator[_Number]:
    """Yield the integers in the arguments of the call."""
    texts: list[tuple[int | str, str]] = [*enumerate(init.args), *(init.kwargs or {}).items()]
    for key, text in texts:
        try:
            tree = ast.parse(text, mode="eval")
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) is int and node.lineno == 1:
                yield _Number(key, node.col_offset, node.end_col_offset or 0, node.value)


def _numbers_in_defaults(
    init: StatedArguments, constructor: Sequence[SpecArgument], channels: Mapping[int, Sequence[int]]
) -> Iterator[_Number]:
    """Yield the omitted parameters whose defaults equal a number of channels."""
    names = {*init.by_parameter(constructor)}
    for parameter in constructor:
        default = parameter.default or ""
        if parameter.name not in names and default.isdecimal() and int(default) in channels:
            yield _Number(parameter.name, -1, -1, int(default))


def _replace_numbers(init: StatedArguments, numbers: Sequence[_Number], new: Sequence[int]) -> StatedArguments:
    changes = [(number, str(value)) for number, value in zip(numbers, new, strict=True) if value != number.value]

    def change(key: int | str, text: str) -> str:
        edits = [Edit(n.start, n.end, value) for n, value in changes if n.key == key and n.start >= 0]
        return apply(text.encode(), 0, len(text.encode()), edits)

    args = tuple(change(index, text) for index, text in enumerate(init.args))
    kwargs = {name: change(name, text) for name, text in (init.kwargs or {}).items()}
    return StatedArguments(args, kwargs | {str(n.key): value for n, value in changes if n.start < 0})
