"""What is handed to whoever constructs a block: expressions as source text, shapes, and the classes to make."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One way in which the corpus calls the class, or its forward; every value is a Python expression."""

    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]
    way: str  # "example" (docstring), "config" (a registry's dict), "call" (code)
    partial: bool = False  # a required argument is left out: its value is not known


@dataclass(frozen=True, slots=True)
class Companion:
    """A class of the corpus that a parameter wants an instance of, or the class itself.

    Where `parameter` is empty, expressions in `Hints.init` name the class, and the block's own file may not have it.
    """

    parameter: str
    method: str  # "__init__" or "forward"
    name: str  # the class's name in `code`
    qualname: str  # the dotted name under which its own source imports it
    code: str  # its closed file
    kind: str  # "config", "dataclass", "module", "enum", "class"
    wants_class: bool  # annotated type[X]: the class itself


@dataclass(frozen=True, slots=True)
class Hints:
    """What the corpus tells of how a class is built and run."""

    init: tuple[Call, ...] = ()  # best first, distinct
    forward: tuple[Call, ...] = ()
    companions: tuple[Companion, ...] = ()
    ranks: tuple[int, ...] = ()  # numbers of dimensions of inputs, best first
    inputs: tuple[tuple[str, tuple[str, ...]], ...] = ()  # documented shapes by argument of forward; "?" is no name

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Hints":
        """What `to_json` gave, also after a round through JSON text."""
        return cls(
            tuple(_call(item) for item in data["init"]),
            tuple(_call(item) for item in data["forward"]),
            tuple(Companion(**item) for item in data["companions"]),
            tuple(data["ranks"]),
            tuple((name, tuple(dims)) for name, dims in data["inputs"]),
        )


def _call(item: Mapping[str, Any]) -> Call:
    kwargs = tuple((name, text) for name, text in item["kwargs"])
    return Call(tuple(item["args"]), kwargs, item["way"], item["partial"])
