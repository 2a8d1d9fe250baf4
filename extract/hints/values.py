"""What is known of a value without running anything: plain Python values, closed expressions, or nothing."""

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MOST_ITEMS = 200  # in a list; longer ones, and longer strings, are not followed
LONGEST = 2_000  # of an expression
MOST_NUMBER = 1e15

#: Roots of dotted names that mean the same in every file.
ROOTS: Final = frozenset({"torch", "nn", "F", "math", "np", "numpy", "functools"})


class Unknown:
    """The one value of which nothing is known."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression that stands for itself: `nn.ReLU`, a class of the corpus, or the making of an object."""

    text: str


@dataclass(frozen=True, slots=True)
class Partial:
    """`functools.partial(function, …)`."""

    function: object
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class Times:
    """`to_ntuple(count)`: a function that repeats one value."""

    count: int


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a class of the file, with what is known of its attributes."""

    kind: str
    text: str | None = None  # the call that made it, where all of that is known
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Function:
    """A function of the file, or a method taken from an object."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: "Scope"
    owner: str = ""  # of a method: the class that defines it
    instance: Instance | None = None


@dataclass(eq=False, slots=True)
class Scope:
    """Local names, and the scope around them."""

    parent: "Scope | None" = None
    names: dict[str, object] = field(default_factory=dict)
    owner: str = ""  # in a method: the class that defines it

    def find(self, name: str) -> object | None:
        """The value of a name; None where it is not bound here."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


def is_plain(value: object) -> bool:
    """Whether operators of Python can be applied to a value."""
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    return isinstance(value, dict) and all(is_plain(item) for item in value.values())


def bounded(value: object) -> object:
    """The value, or UNKNOWN where it is larger than any hint."""
    if isinstance(value, float) and not math.isfinite(value):
        return UNKNOWN
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < MOST_NUMBER else UNKNOWN
    if isinstance(value, str | list | tuple | dict):
        return value if len(value) <= MOST_ITEMS else UNKNOWN
    return value


def render(value: object) -> str | None:
    """The expression that gives a value; None where part of it is unknown."""
    if isinstance(value, Expr | Instance):
        return value.text
    if isinstance(value, Partial):
        return render_call("functools.partial", [value.function, *value.args], dict(value.kwargs))
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        items = [render(item) for item in value]
        if any(item is None for item in items):
            return None
        inner = ", ".join(str(item) for item in items)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(items) == 1)})"
    if isinstance(value, dict):
        pairs = {key: render(item) for key, item in value.items()}
        if any(text is None for text in pairs.values()):
            return None
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in pairs.items()) + "}"
    return None


def render_call(function: str, args: Sequence[object], kwargs: dict[str, object]) -> str | None:
    """The call as an expression; None where part of it is unknown."""
    texts = [render(value) for value in args]
    named = [(name, render(value)) for name, value in kwargs.items()]
    if any(text is None for text in texts) or any(text is None for _, text in named):
        return None
    return f"{function}({', '.join([*map(str, texts), *(f'{name}={text}' for name, text in named)])})"
