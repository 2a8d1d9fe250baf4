"""Demands that measured facts meet or break, and how that is said."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from extract.chat.wording import LAYERS, bag, parameter_words, scaling_of, shape_words
from manifests.records import Spec

_SCALES = (1, 2, 5)
_CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "Identity", "ParameterList", "ParameterDict"})


@dataclass(frozen=True, slots=True)
class Demand:
    """One demand. `met` is None where the facts do not tell; `because` says why a block meets or breaks it."""

    text: str
    met: Callable[[Spec], bool | None]
    because: Callable[[Spec], str]


def demands_of(spec: Spec) -> Iterator[Demand]:
    """The demands that a block meets, the most telling first."""
    for made in (_shape(spec), _size(spec), _layer(spec), _mode(spec), _layout(spec)):
        if made is not None and made.met(spec):
            yield made


def _shape(spec: Spec) -> Demand | None:
    if spec.keeps_shape:
        return Demand("keeps the shape of its input", lambda other: other.keeps_shape, _keeps_because)
    factor, layout, phrase = spec.downsampling, spec.layout, scaling_of(spec)
    if phrase is None or factor == 1 or len(spec.cases[0].outputs) != 1:
        return None

    def met(other: Spec) -> bool | None:
        if other.keeps_shape:
            return False
        return other.downsampling == factor if other.layout == layout and other.downsampling is not None else None

    return Demand(phrase, met, _shape_because)


def _keeps_because(spec: Spec) -> str:
    """That it keeps the shape, or what about it shows that it does not."""
    told = [words for words in shape_words(spec) if spec.keeps_shape or not words.startswith(("takes", "keeps"))]
    return f"it {told[0]}" if told else "it gives another shape"


def _shape_because(spec: Spec) -> str:
    """What becomes of its shape."""
    told = [words for words in shape_words(spec) if not words.startswith("takes")]
    return f"it {told[0]}" if told else ""


def _size(spec: Spec) -> Demand | None:
    if spec.parameters is None:
        return None
    if not spec.parameters:
        return Demand("has no parameters", lambda other: _at_most(other, 0), _size_because)
    limit = _round_up(spec.parameters)
    return Demand(f"has at most {limit:,} parameters", lambda other: _at_most(other, limit), _size_because)


def _at_most(spec: Spec, limit: int) -> bool | None:
    return None if spec.parameters is None else spec.parameters <= limit


def _size_because(spec: Spec) -> str:
    return f"it {parameter_words(spec, arguments=False)}"


def _round_up(number: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …"""
    power = int(10 ** (len(str(number)) - 1))
    return next(scale * power for scale in (*_SCALES, 10) if scale * power >= number)


def _layer(spec: Spec) -> Demand | None:
    """A kind of layer that it contains; only where all kinds are told can a block be said to lack it."""
    named = [(name, count) for name, count in bag(spec.layers or {}) if name not in _CONTAINERS]
    if not named:
        return None
    name, _ = named[0]

    def met(other: Spec) -> bool | None:
        if other.layers is None:
            return None
        if name in dict(bag(other.layers)):
            return True
        return False if len(other.layers) <= LAYERS else None

    def because(other: Spec) -> str:
        number = (other.layers or {}).get(name, 0)
        return f"it contains {number:,} `{name}`" if number else f"it contains no `{name}`"

    return Demand(f"contains `{name}`", met, because)


def _mode(spec: Spec) -> Demand | None:
    if spec.train_differs is None:
        return None
    same = not spec.train_differs
    text = "gives the same output in train and eval mode" if same else "gives different outputs in train and eval mode"

    def met(other: Spec) -> bool | None:
        return None if other.train_differs is None else (not other.train_differs) == same

    def because(other: Spec) -> str:
        return "train and eval mode give " + ("different outputs" if other.train_differs else "the same output")

    return Demand(text, met, because)


def _layout(spec: Spec) -> Demand | None:
    if spec.layout is None:
        return None
    return Demand(
        f"takes {spec.layout} inputs",
        lambda other: None if other.layout is None else other.layout == spec.layout,
        lambda other: f"it takes {other.layout} inputs",
    )
