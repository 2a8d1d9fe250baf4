"""Hints for a class: calls as source text, companion classes, signatures."""

import ast
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One call of the class or its forward in the corpus; every value is a Python expression."""

    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...]
    way: str  # "call"; recorded calls are added


@dataclass(frozen=True, slots=True)
class Companion:
    """A class of the corpus that a parameter expects, as an instance or as the class itself.

    If `parameter` is empty, expressions in `Hints.init` name the class, which may be missing in the block's own file.
    """

    parameter: str
    name: str  # the class's name in `code`
    qualname: str  # the dotted name under which its own source imports it
    code: str  # its self-contained file
    wants_class: bool  # annotated type[X]: the class itself


@dataclass(frozen=True, slots=True)
class Hints:
    """How the corpus constructs and calls a class."""

    init: tuple[ObservedCall, ...] = ()  # best first, distinct
    forward: tuple[ObservedCall, ...] = ()  # none; recorded calls are added
    companions: tuple[Companion, ...] = ()
    values: tuple[tuple[str, str], ...] = ()  # of required parameters, that the class's own file gives to that name

    def to_json(self) -> dict[str, Any]:
        """Return the hints as JSON values."""
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


def read_signature(node: Definition) -> Signature:
    """Return the parameters of a method, without `self`."""
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + [*args.defaults]
    result = [_parameter(arg, default, "plain") for arg, default in zip(plain, defaults, strict=True)][1:]
    result += [_parameter(args.vararg, None, "args")] if args.vararg else []
    result += [_parameter(a, d, "keyword") for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    result += [_parameter(args.kwarg, None, "kwargs")] if args.kwarg else []
    return tuple(result)


def _parameter(arg: ast.arg, default: ast.expr | None, kind: str) -> Parameter:
    annotation = arg.annotation
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        text: str | None = annotation.value
    else:
        text = ast.unparse(annotation) if annotation is not None else None
    return Parameter(arg.arg, text, ast.unparse(default) if default is not None else None, kind)


def find_method(node: ast.ClassDef, name: str) -> Definition | None:
    """Return the method of that name in a class's body; the last if it is defined several times."""
    method = None
    for item in node.body:
        if isinstance(item, Definition) and item.name == name:
            method = item
    return method


def read_dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as text, or "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = read_dotted_name(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""
