"""Find the widths among a constructor's arguments: numbers that equal a size of an input or output.

The working arguments are known together with the observed shapes: `SEModule(32)` took 2x32x16x16. A number that equals
the channels may be the width, or equal it by chance, so each interpretation is one call to try: first the original
call, then those that treat the most numbers as widths (or the fewest, if there are so few channels that any number may
equal them). Omitted parameters count with their defaults.
"""

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from extract.specs.make import StatedArguments
from manifests.records import SpecArgument

_MOST_NUMBERS = 6  # maximum count for which all combinations are tried
_PLAIN = 8  # numbers of at least this size are unlikely to equal the channels by chance
MOST_CALLS = 24


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
    numbers = [one for one in numbers if one.value in channels or one.value in sizes]
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
            plain = isinstance(node, ast.Constant) and type(node.value) is int
            if plain and isinstance(node, ast.Constant) and node.lineno == node.end_lineno == 1:
                yield _Number(key, node.col_offset, node.end_col_offset or 0, int(str(node.value)))


def _numbers_in_defaults(
    init: StatedArguments, constructor: Sequence[SpecArgument], channels: Mapping[int, Sequence[int]]
) -> Iterator[_Number]:
    """Yield the omitted parameters whose defaults equal a number of channels."""
    names = {*init.named(constructor)}
    for parameter in constructor:
        default = parameter.default or ""
        if parameter.name not in names and default.isdecimal() and int(default) in channels:
            yield _Number(parameter.name, -1, -1, int(default))


def _replace_numbers(init: StatedArguments, numbers: Sequence[_Number], new: Sequence[int]) -> StatedArguments:
    args = dict(enumerate(init.args))
    kwargs = dict(init.kwargs or {})
    changes = sorted(zip(numbers, new, strict=True), key=lambda pair: -pair[0].start)
    for number, value in changes:
        if value == number.value:
            continue
        if number.start < 0:
            kwargs[str(number.key)] = str(value)
            continue
        texts: dict[int | str, str] = args if isinstance(number.key, int) else kwargs  # type: ignore[assignment]
        text = texts[number.key].encode()
        texts[number.key] = (text[: number.start] + str(value).encode() + text[number.end :]).decode()
    return StatedArguments(tuple(args[place] for place in sorted(args)), kwargs)
