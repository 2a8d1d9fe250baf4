"""Typical faults: at each place of a file where one fits, its text, and a sentence on what was right."""

import ast
import hashlib
import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lemur_core.source.text import parse_code

_EXECUTED = ("__init__", "forward")  # by a trial
_WITH_SIZES = frozenset({"Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Linear", "BatchNorm2d", "BatchNorm1d"})
_WITH_DIMENSION = frozenset({"flatten", "cat", "mean", "softmax", "sum", "unsqueeze", "squeeze", "chunk", "stack"})
_FLATTENING = frozenset({"flatten", "view", "reshape"})

#: Names that people confuse; other attributes are misspelled.
_ALIASES = {"classifier": "fc", "fc": "classifier", "features": "backbone", "relu": "act", "act": "relu", "bn": "norm"}
_ALIASES |= {"norm": "bn", "pool": "avgpool", "avgpool": "pool", "dropout": "drop", "drop": "dropout", "head": "fc"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the bytes of the file from `start` to `end` become `wrong`; `right` is a sentence on what was right.

    Args: line: where it is; if `missing`, a line before it is gone.
    """

    kind: str
    line: int
    start: int
    end: int
    wrong: str
    right: str
    missing: bool = False

    def apply(self, code: str) -> str:
        """Return the file with the fault."""
        raw = code.encode()
        return (raw[: self.start] + self.wrong.encode() + raw[self.end :]).decode()


def plan_faults(code: str, seed: int, record: str) -> list[Fault]:
    """Return one fault of each kind that has a place in the file, in random order.

    Raises: SyntaxError if the file does not parse.
    """

    def draw(purpose: str) -> bytes:
        return hashlib.sha256(f"{seed}:{record}:{purpose}".encode()).digest()

    by_kind: dict[str, Fault] = {}
    for fault in sorted(find_faults(code), key=lambda fault: draw(f"{fault.kind}:{fault.start}:{fault.end}")):
        by_kind.setdefault(fault.kind, fault)
    return sorted(by_kind.values(), key=lambda fault: draw(fault.kind))


def find_faults(code: str) -> Iterator[Fault]:
    """Yield the faults in the order of the file: wrong sizes everywhere, the others where a trial executes them.

    Raises: SyntaxError if the file does not parse.
    """
    file = _File(code)
    stack: list[tuple[ast.AST, bool]] = [(parse_code(code, max_depth=None), False)]
    while stack:
        node, runs = stack.pop()
        if isinstance(node, ast.JoinedStr):
            continue  # rarely formatted in a trial
        runs |= isinstance(node, ast.FunctionDef) and node.name in _EXECUTED
        yield from _faults_at(file, node, runs)
        stack += [(child, runs) for child in reversed(list(ast.iter_child_nodes(node)))]


class _File:
    def __init__(self, code: str) -> None:
        self.code, self.raw = code, code.encode()
        self.starts = [0, *accumulate(map(len, self.raw.splitlines(keepends=True)))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the bytes of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the source text of a node."""
        start, end = self.span(node)
        return self.raw[start:end].decode()

    def line(self, statement: ast.stmt) -> tuple[int, int] | None:
        """Return the bytes of the line of a statement; None if it is not alone on one line."""
        start, end = self.starts[statement.lineno - 1], self.starts[statement.lineno]
        return (start, end) if self.raw[start:end].strip() == self.text(statement).encode() else None


def _faults_at(file: _File, node: ast.AST, runs: bool) -> Iterator[Fault]:
    body = getattr(node, "body", None)
    if isinstance(body, list) and len(body) > 1:
        for statement in body:
            yield from _line_faults(file, statement, runs, top=isinstance(node, ast.Module))
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=owner) as callee, args=args, keywords=keywords):
            if name in _WITH_SIZES:
                yield from _size_faults(file, callee, args[: 1 if "Norm" in name else 2])
            if runs and name in _WITH_DIMENSION:
                named = [item.value for item in keywords if item.arg in ("dim", "start_dim")]
                for value in named or args[-1:]:
                    if isinstance(value, ast.Constant) and type(value.value) is int:
                        right = f"`{file.text(callee)}` must work on dimension {value.value}, not {value.value + 1}"
                        yield Fault("wrong_dimension", value.lineno, *file.span(value), str(value.value + 1), right)
            if runs and _is_self(owner) and len(args) == 1 and not keywords and not isinstance(args[0], ast.Starred):
                right = f"`{name}` is an attribute of the module: `{file.text(callee)}`"
                yield Fault("missing_self", node.lineno, *file.span(callee), name, right)
        case ast.Attribute(value=owner, attr=name, ctx=ast.Load()) if runs and _is_self(owner):
            wrong = f"self.{_mistake(name)}"
            usable = wrong[5:].isidentifier() and not keyword.iskeyword(wrong[5:])  # of `h2o` a swap would make `2ho`
            if usable and wrong not in file.code:
                right = f"there is no `{wrong}`; the attribute is `self.{name}`"
                yield Fault("wrong_attribute", node.lineno, *file.span(node), wrong, right)


def _line_faults(file: _File, statement: ast.stmt, runs: bool, *, top: bool) -> Iterator[Fault]:
    """Yield the faults of a statement that is alone on its line: the line is missing, or one is too many after it."""
    if (line := file.line(statement)) is None:
        return
    text, kind, right = file.text(statement), "", ""
    match statement:
        case ast.Import(names=[_]) | ast.ImportFrom(names=[_]) if top:
            kind, right = "missing_import", f"the import is missing: `{text}`"
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"))):
            kind, right = "missing_super", f"the constructor must call `{text}` before it sets any module"
        case ast.Assign([ast.Name(id=name)], ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args)):
            read = (owner, *args[:1])  # `x = x.view(…)`, `x = torch.flatten(x, 1)` and the like
            if runs and attr in _FLATTENING and any(isinstance(item, ast.Name) and item.id == name for item in read):
                kind, right = "missing_flatten", f"the tensor must be flattened first: `{text}`"
        case ast.Assign([ast.Attribute(value=owner) as target], ast.Call(func=ast.Attribute(attr="Parameter"))):
            if _is_self(owner):
                wrong = f"{file.text(target)}.normal_(std=0.02)"
                right = f"remove `{wrong}`: a parameter may be changed in place only under `torch.no_grad()`"
                added = f"{' ' * statement.col_offset}{wrong}\n"
                yield Fault("in_place_on_leaf", statement.lineno + 1, line[1], line[1], added, right)
    if kind:
        yield Fault(kind, statement.lineno, *line, "", right, missing=True)


def _size_faults(file: _File, callee: ast.Attribute, sizes: Sequence[ast.expr]) -> Iterator[Fault]:
    for order, size in zip(("first", "second"), sizes, strict=False):
        if isinstance(size, ast.Constant) and type(size.value) is int and size.value > 1:
            wrong = size.value + 1
            right = f"the {order} argument of this `{file.text(callee)}` must be {size.value}, not {wrong}"
            yield Fault("off_by_one", size.lineno, *file.span(size), str(wrong), right)
    if len(sizes) == 2 and not any(isinstance(size, ast.Starred) for size in sizes):
        texts = [file.text(size) for size in sizes]
        (start, before), (after, end) = map(file.span, sizes)
        if texts[0] != texts[1]:
            right = f"the sizes of this `{file.text(callee)}` are swapped: `{texts[0]}` comes in, `{texts[1]}` goes out"
            swapped = texts[1] + file.raw[before:after].decode() + texts[0]
            yield Fault("swapped_sizes", callee.lineno, start, end, swapped, right)


def _mistake(name: str) -> str:
    """Return how people get an attribute wrong: another usual name, no number, or two letters in the wrong order."""
    if name[-1].isdigit():
        return name.rstrip("0123456789")
    middle = len(name) // 2
    swapped = f"{name[: middle - 1]}{name[middle]}{name[middle - 1]}{name[middle + 1 :]}" if middle else ""
    return _ALIASES.get(name, swapped if swapped != name else f"{name}s")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
