"""Faults that people make, put into a file by offset. Whether one shows, and how, only running it tells."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from curate.chat.text import Edit, Source

_MODULES = frozenset({"Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Linear", "BatchNorm2d", "BatchNorm1d"})
_DIMENSIONED = frozenset({"flatten", "cat", "mean", "softmax", "sum", "unsqueeze", "squeeze", "chunk", "stack"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what is edited, where that is, and what was right there, in a sentence."""

    kind: str
    line: int
    edit: Edit
    right: str


def faults(source: Source) -> dict[str, list[Fault]]:
    """All places where a fault of each kind can be put; kinds without a place are left out."""
    found = {kind: list(find(source)) for kind, find in _FINDERS.items()}
    return {kind: places for kind, places in found.items() if places}


def _undefined_names(source: Source) -> Iterator[Fault]:
    for node in _in_methods(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in ("self", "super", "torch"):
            wrong = _other_name(node.id, node.lineno, source)
            right = f"`{wrong}` is defined nowhere; the name is `{node.id}`"
            yield _replaced("undefined_name", source, node, wrong, right)


def _unknown_attributes(source: Source) -> Iterator[Fault]:
    for node in _in_methods(source):
        if _of_self(node) and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            wrong = _other_name(node.attr, node.lineno, source)
            right = f"the object has no `{wrong}`; the attribute is `self.{node.attr}`"
            yield _replaced("unknown_attribute", source, node, f"self.{wrong}", right)


def _missing_arguments(source: Source) -> Iterator[Fault]:
    for node in _in_methods(source):
        if isinstance(node, ast.Call) and _of_self(node.func) and len(node.args) == 1 and not node.keywords:
            call, callee = source.segment(node), source.segment(node.func)
            if "\n" not in call and not isinstance(node.args[0], ast.Starred):
                right = f"`{callee}` needs its argument: `{call}`"
                yield _replaced("missing_argument", source, node, f"{callee}()", right)


def _missing_parameters(source: Source) -> Iterator[Fault]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and node.name == "forward" and len(node.args.args) == 2:
            first, second = node.args.args
            if not (node.args.defaults or node.args.posonlyargs) and first.lineno == second.lineno:
                edit = Edit(source.end(first), source.end(second), "")
                right = f"`forward` takes no input beside `self`; its parameter `{second.arg}` is missing"
                yield Fault("missing_parameter", second.lineno, edit, right)


def _wrong_sizes(source: Source) -> Iterator[Fault]:
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MODULES):
            continue
        for place, argument in enumerate(node.args[: 1 if "Norm" in node.func.attr else 2]):
            if isinstance(argument, ast.Constant) and type(argument.value) is int and argument.value > 1:
                wrong = argument.value * 2
                order = ("first", "second")[place]
                called = source.segment(node.func)
                right = f"the {order} argument of this `{called}` must be {argument.value}, not {wrong}"
                yield _replaced("wrong_size", source, argument, str(wrong), right)


def _wrong_dimensions(source: Source) -> Iterator[Fault]:
    for node in _in_methods(source):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _DIMENSIONED):
            continue
        last = [item.value for item in node.keywords if item.arg in ("dim", "start_dim")] or node.args[-1:]
        for value in last:
            if isinstance(value, ast.Constant) and type(value.value) is int:
                wrong = value.value + 1
                right = f"`{source.segment(node.func)}` must work on dimension {value.value}, not {wrong}"
                yield _replaced("wrong_dimension", source, value, str(wrong), right)


def _missing_imports(source: Source) -> Iterator[Fault]:
    for node in source.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and len(node.names) == 1 and node.names[0].name != "*":
            text = source.segment(node)
            if node.lineno == node.end_lineno and source.lines[node.lineno - 1].strip() == text:
                start = source.line_start(node.lineno)
                edit = Edit(start, start + len(source.lines[node.lineno - 1]), "")
                yield Fault("missing_import", node.lineno, edit, f"the import is missing: `{text}`")


def _missing_super(source: Source) -> Iterator[Fault]:
    for node in source.nodes:
        if isinstance(node, ast.Expr) and re.fullmatch(r"super\(.*\)\.__init__\(.*\)", source.segment(node)):
            line = source.lines[node.lineno - 1]
            if line.strip() == source.segment(node):
                start = source.line_start(node.lineno)
                right = f"the constructor must call `{source.segment(node)}` before it sets any module"
                yield Fault("missing_super", node.lineno, Edit(start, start + len(line), ""), right)


_FINDERS: dict[str, Callable[[Source], Iterator[Fault]]] = {
    "undefined_name": _undefined_names,
    "unknown_attribute": _unknown_attributes,
    "missing_argument": _missing_arguments,
    "missing_parameter": _missing_parameters,
    "wrong_size": _wrong_sizes,
    "wrong_dimension": _wrong_dimensions,
    "missing_import": _missing_imports,
    "missing_super": _missing_super,
}


def _in_methods(source: Source) -> Iterator[ast.AST]:
    """The nodes of constructors and forward passes, which a trial executes."""
    known = {id(node) for node in source.nodes}
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "forward"):
            for statement in node.body:
                yield from (item for item in ast.walk(statement) if id(item) in known)


def _of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _other_name(name: str, turn: int, source: Source) -> str:
    """A name like this one that the file does not hold: a slip of the pen, another one each turn."""
    middle = len(name) // 2
    slips = [
        name[:-1],
        f"{name}s",
        f"{name[:middle]}{name[middle:][1:2]}{name[middle : middle + 1]}{name[middle + 2 :]}",  # two letters swapped
        f"{name}_out",
        f"{name[:middle]}_{name[middle:]}",
        f"{name}1",
    ]
    turned = [*slips[turn % len(slips) :], *slips[: turn % len(slips)]]
    fit = (text for text in turned if text.isidentifier() and len(text) > 1 and text not in source.names)
    return next(fit, f"{name}_missing")


def _replaced(kind: str, source: Source, node: ast.AST, new: str, right: str) -> Fault:
    return Fault(kind, getattr(node, "lineno"), Edit(source.start(node), source.end(node), new), right)  # noqa: B009
