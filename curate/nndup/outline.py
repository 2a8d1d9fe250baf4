"""What nn-dup 2.2.4 reads from a syntax tree, gathered in one walk: classes, functions and calls."""

import ast
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

#: Keyword arguments that count as hyperparameters.
_SIZES = ("kernel_size", "stride", "padding", "groups", "in_channels", "out_channels", "dim", "width", "depth")
_HYPERPARAMETERS = frozenset({*_SIZES, "num_heads", "heads", "expansion", "hidden_size"})
_SEQUENCE_LIMIT = 256
#: Node types that hold no call, class or function, and fields that hold no node worth visiting.
_LEAVES = frozenset(
    {ast.Load, ast.Store, ast.Del, ast.Name, ast.Constant, ast.Pass, ast.Break, ast.Continue}
    | {ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal}
)
_PLAIN_FIELDS = frozenset(
    {"id", "attr", "ctx", "op", "ops", "name", "type_comment", "kind", "conversion", "type_ignores"}
)
_CHILD_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


class Span(NamedTuple):
    """Lines of one statement (1-based, both ends included) and the column where it begins."""

    first: int
    last: int
    column: int


@dataclass(slots=True)
class Outline:
    """The parts of one syntax tree that nn-dup looks at."""

    classes: list[tuple[str, bool, Span, int, int]] = field(default_factory=list)
    functions: list[tuple[str, Span]] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)

    def declared(self) -> Iterator[tuple[str, int]]:
        """Name and line of every class and (not async) function."""
        for name, _, span, _, _ in self.classes:
            yield name, span.first
        for name, span in self.functions:
            yield name, span.first

    def network_spans(self) -> list[Span]:
        """The module classes, and the functions of any name that a class of such a name calls, in file order."""
        modules = {name for name, is_module, *_ in self.classes if is_module}
        called = {
            call.func.id
            for name, _, _, start, stop in self.classes
            if name in modules
            for call in self.calls[start:stop]
            if isinstance(call.func, ast.Name)
        }
        spans = [span for _, is_module, span, _, _ in self.classes if is_module]
        spans += [span for name, span in self.functions if name in called]
        return sorted(spans)

    def layer_sequence(self) -> tuple[str, ...]:
        """The last names of all callees in the order of a depth-first walk, cut at a fixed length."""
        return tuple(self._callees()[:_SEQUENCE_LIMIT])

    def layer_bag(self) -> tuple[tuple[str, int], ...]:
        """How often each callee is called, by name."""
        return tuple(sorted(Counter(self._callees()).items()))

    def hyperparameters(self) -> tuple[tuple[str, str], ...]:
        """Hyperparameter keywords of all calls with the bucket of their value, sorted."""
        found = []
        for call in self.calls:
            if not _callee(call):
                continue
            for keyword in call.keywords:
                if keyword.arg in _HYPERPARAMETERS:
                    bucket = _bucket(keyword.value)
                    if bucket is not None:
                        found.append((keyword.arg, bucket))
        return tuple(sorted(found))

    def _callees(self) -> list[str]:
        return [name for name in map(_callee, self.calls) if name]


def outline(source: str) -> Outline | None:
    """The outline of a source text; None when it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in other people's strings
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return _walk(tree)


def whole_statements(spans: list[Span]) -> bool:
    """Whether the spans (in file order) are top-level statements, or lie inside one that is among them."""
    reach = 0
    for span in spans:
        if span.column == 0:
            reach = max(reach, span.last)
        elif span.last > reach:
            return False
    return True


def _walk(tree: ast.AST) -> Outline:
    """Gather in the order of a depth-first walk; a class on the stack a second time (as an index) ends there."""
    found = Outline()
    stack: list[ast.AST | int] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            found.classes[node] = (*found.classes[node][:4], len(found.calls))
            continue
        kind = type(node)
        if kind is ast.Call:
            found.calls.append(node)  # type: ignore[arg-type]
        elif isinstance(node, ast.ClassDef):
            stack.append(len(found.classes))
            is_module = any(_last_name(base) == "Module" for base in node.bases)
            found.classes.append((node.name, is_module, _span(node), len(found.calls), 0))
        elif isinstance(node, ast.FunctionDef):
            found.functions.append((node.name, _span(node)))
        fields = _CHILD_FIELDS.get(kind)
        if fields is None:
            fields = _CHILD_FIELDS[kind] = tuple(name for name in reversed(node._fields) if name not in _PLAIN_FIELDS)
        for name in fields:
            child = getattr(node, name, None)
            if child.__class__ is list:
                stack += [
                    item for item in reversed(child) if item.__class__ not in _LEAVES and isinstance(item, ast.AST)
                ]
            elif child.__class__ not in _LEAVES and isinstance(child, ast.AST):
                stack.append(child)
    return found


def _span(node: ast.ClassDef | ast.FunctionDef) -> Span:
    return Span(node.lineno, node.end_lineno or node.lineno, node.col_offset)


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _callee(call: ast.Call) -> str | None:
    return _last_name(call.func)


def _bucket(value: ast.expr) -> str | None:
    """A number as the nearest power of two (0 for small and negative ones); tuples element by element."""
    if isinstance(value, ast.Tuple):
        return "(" + ",".join(_bucket(item) or "X" for item in value.elts) + ")"
    if not (isinstance(value, ast.Constant) and isinstance(value.value, int | float)):
        return None
    try:
        number = float(value.value)
        return str(int(2 ** round(math.log2(number)))) if number > 0 else "0"
    except (OverflowError, ValueError):  # integers beyond the range of floats, infinity
        return None
