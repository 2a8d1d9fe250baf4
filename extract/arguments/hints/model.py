"""What the corpus tells of a class: calls as source text, input shapes, the classes that it wants, its signatures."""

import ast
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Call:
    """One way in which the corpus calls the class, or its forward; every value is a Python expression."""

    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]
    way: str  # "example" (docstring) or "call" (code)


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
    wants_class: bool  # annotated type[X]: the class itself


@dataclass(frozen=True, slots=True)
class Hints:
    """What the corpus tells of how a class is built and run."""

    init: tuple[Call, ...] = ()  # best first, distinct
    forward: tuple[Call, ...] = ()
    companions: tuple[Companion, ...] = ()
    inputs: tuple[tuple[str, tuple[str, ...]], ...] = ()  # documented shapes of forward's arguments; "?" is no name

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


# -- signatures ------------------------------------------------------------------------------------------------------

Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Parameter(NamedTuple):
    """One parameter of a method."""

    name: str
    annotation: str | None
    default: str | None
    kind: str  # "plain", "keyword" (only by keyword), "args", "kwargs"


Signature = tuple[Parameter, ...]


def signature_of(node: Definition) -> Signature:
    """The parameters of a method, without `self`."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + [*given.defaults]
    result = [_parameter(arg, default, "plain") for arg, default in zip(plain, defaults, strict=True)][1:]
    result += [_parameter(given.vararg, None, "args")] if given.vararg else []
    result += [_parameter(a, d, "keyword") for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    result += [_parameter(given.kwarg, None, "kwargs")] if given.kwarg else []
    return tuple(result)


def _parameter(arg: ast.arg, default: ast.expr | None, kind: str) -> Parameter:
    annotation = arg.annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        text: str | None = annotation.value
    else:
        text = ast.unparse(annotation) if annotation is not None else None
    return Parameter(arg.arg, text, ast.unparse(default) if default is not None else None, kind)


def method_of(node: ast.ClassDef, name: str) -> Definition | None:
    """The method of that name in a class's body; the last of several."""
    found = None
    for item in node.body:
        if isinstance(item, Definition) and item.name == name:
            found = item
    return found


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""
