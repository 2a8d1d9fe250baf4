"""Which numbers among a constructor's arguments are widths: those that equal a size of what went in or came out.

The arguments that worked are known, and the shapes that were seen with them: `SEModule(32)` took 2x32x16x16. A number
that equals the channels may be the width, or equal it by chance; so each way of reading the numbers is one call to
try: the call as it is, then those first that take the most of them for widths, or the fewest, where so few channels
were seen that any number may equal them. Parameters that were left out count with
their defaults.
"""

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from extract.specs.make import Call
from manifests.records import SpecArgument

_MOST_NUMBERS = 6  # that are read in all ways
_PLAIN = 8  # numbers of channels from here on are hardly anything else
MOST_CALLS = 24


@dataclass(frozen=True, slots=True)
class _Number:
    """A whole number in an argument: of the positional one of this number, or of the one of this name."""

    key: int | str
    start: int  # in the argument's text, bytes
    end: int
    value: int


def calls(
    init: Call, constructor: Sequence[SpecArgument], channels: Mapping[int, Sequence[int]], sizes: Mapping[int, int]
) -> Iterator[Call]:
    """Ways of calling a constructor for other sizes: the call as it is, then the likeliest ones first.

    Args:
        init: the call that worked.
        constructor: its parameters.
        channels: for each number of channels seen, what may stand for it, the likeliest first.
        sizes: for each other size of the input seen, what stands for it; tried after calls that leave these alone.
    """
    numbers = [*_given(init), *_left_out(init, constructor, channels)]
    numbers = [one for one in numbers if one.value in channels or one.value in sizes]
    found = list(_readings(numbers, channels, sizes))
    found.sort(key=lambda new: _rank(numbers, new, channels))
    texts = {init.text()}
    yield init
    for new in found:
        call = _changed(init, numbers, new)
        if call.text() not in texts:
            texts.add(call.text())
            yield call
        if len(texts) >= MOST_CALLS:
            return


def _readings(
    numbers: Sequence[_Number], channels: Mapping[int, Sequence[int]], sizes: Mapping[int, int]
) -> Iterator[tuple[int, ...]]:
    """What may stand for each of the numbers, all of them at once."""
    options = [
        list(dict.fromkeys([*channels.get(n.value, ()), *([sizes[n.value]] if n.value in sizes else []), n.value]))
        for n in numbers
    ]
    if len(numbers) <= _MOST_NUMBERS:
        yield from itertools.product(*options)
        return
    yield tuple(option[0] for option in options)
    for place, option in enumerate(options):
        for value in option:
            yield tuple(value if place == other else number.value for other, number in enumerate(numbers))


def _rank(numbers: Sequence[_Number], new: Sequence[int], channels: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Sizes as they are, all numbers read as widths, the first as what comes in and the last as what goes out."""
    pairs = list(zip(numbers, new, strict=True))
    sized = sum(n.value != value and value not in channels.get(n.value, ()) for n, value in pairs)
    kept = sum(n.value in channels and value not in channels[n.value] for n, value in pairs)
    left_out = sum(isinstance(n.key, str) and n.start < 0 and value != n.value for n, value in pairs)
    turns = [channels[n.value].index(value) for n, value in pairs if value in channels.get(n.value, ())]
    late = sum(abs(turn - min(place, 1)) for place, turn in enumerate(turns)) if len(set(turns)) > 1 else 0
    uniform = 1 if len(set(turns)) == 1 and any(len(set(w)) > 1 for w in channels.values()) and len(turns) > 1 else 0
    if channels and min(channels) < _PLAIN:  # strides, groups and dilations have such values, too
        kept = sum(value != n.value for n, value in pairs)
    return kept, sized, left_out, uniform, late, *turns


def _given(init: Call) -> Iterator[_Number]:
    """The whole numbers in the arguments that were given."""
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


def _left_out(
    init: Call, constructor: Sequence[SpecArgument], channels: Mapping[int, Sequence[int]]
) -> Iterator[_Number]:
    """The parameters whose defaults are numbers of channels."""
    given = {*init.named(constructor)}
    for parameter in constructor:
        default = parameter.default or ""
        if parameter.name not in given and default.isdecimal() and int(default) in channels:
            yield _Number(parameter.name, -1, -1, int(default))


def _changed(init: Call, numbers: Sequence[_Number], new: Sequence[int]) -> Call:
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
    return Call(tuple(args[place] for place in sorted(args)), kwargs)
