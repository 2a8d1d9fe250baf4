"""What a class's methods take, as their text says it."""

import ast
from typing import NamedTuple

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
