"""Examples in docstrings: how the class is made and called there, with the example's variables put in."""

import ast
import builtins
import copy
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from extract.hints.imports import imported_values
from extract.hints.values import ROOTS, Expr

_FENCE = re.compile(r"```(?:python|py|pycon)?[ \t]*\n(.*?)```", re.DOTALL)
_HEADING = re.compile(r"^([ \t]*)(?:Examples?|Usage|Example usage)\s*:{1,2}[ \t]*\n((?:\1[ \t]+.*\n|[ \t]*\n)+)", re.M)
_FREE = ROOTS | {"partial"} | frozenset(dir(builtins))
_LONGEST = 600

Written = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]  # arguments, keyword arguments


@dataclass
class Examples:
    """What the examples of a class show."""

    init: list[Written] = field(default_factory=list)
    forward: list[Written] = field(default_factory=list)


def examples_in(docstrings: list[str], name: str) -> Examples:
    """The calls in the examples of a class's docstrings."""
    result = Examples()
    for text in docstrings:
        for block in _blocks(text):
            _Reader(name, result).read(block)
    result.init = list(dict.fromkeys(result.init))
    result.forward = list(dict.fromkeys(result.forward))
    return result


def _blocks(text: str) -> Iterator[list[ast.stmt]]:
    """The statements of each example; those that do not parse are left out."""
    if ">>>" in text:
        yield [node for source in _prompts(text) for node in _parse(source)]
        return
    for match in _FENCE.finditer(text):
        yield _parse(textwrap.dedent(match[1]))
    for match in _HEADING.finditer(text + "\n"):
        if "```" not in match[2]:
            lines = textwrap.dedent(match[2]).strip("\n").removeprefix("::").splitlines()
            yield _parse("\n".join(lines)) or [node for line in lines for node in _parse(line)]


def _prompts(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("..."):
            if lines:
                lines.append(stripped[4:])
            continue
        if lines:
            yield "\n".join(lines)
            lines = []
        if stripped.startswith(">>>"):
            lines = [stripped[3:].removeprefix(" ")]
    if lines:
        yield "\n".join(lines)


def _parse(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source.strip("\n")).body
    except (SyntaxError, ValueError):
        return []


class _Reader:
    """Follows one example."""

    def __init__(self, name: str, result: Examples) -> None:
        self.name = name
        self.result = result
        self.values: dict[str, ast.expr] = {}
        self.made: set[str] = {"self"}

    def read(self, body: list[ast.stmt]) -> None:
        names, _ = imported_values(ast.Module(body, []))
        for bound, value in names.items():
            if isinstance(value, Expr) and value.text != bound:
                self.values[bound] = ast.parse(value.text, mode="eval").body
        for node in body:
            for call in [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]:
                self._take(call)
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if self._makes(value):
                self.made.add(target.id)
                return
            self.made.discard(target.id)
            self.values[target.id] = self._closed(value)
        elif isinstance(target, ast.Tuple | ast.List):
            same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for number, inner in enumerate(target.elts):
                item: ast.expr = (
                    value.elts[number]
                    if same and isinstance(value, ast.Tuple | ast.List)
                    else ast.Subscript(value, ast.Constant(number), ast.Load())
                )
                self._assign(inner, item)

    def _makes(self, node: ast.expr) -> bool:
        while (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Call)
        ):
            node = node.func.value  # X(…).eval()
        return isinstance(node, ast.Call) and _last(node.func) == self.name

    def _take(self, call: ast.Call) -> None:
        function = call.func
        if _last(function) == self.name:
            self._add(self.result.init, call)
            return
        if isinstance(function, ast.Attribute) and function.attr == "forward":
            function = function.value
        if (isinstance(function, ast.Name) and function.id in self.made) or self._makes(function):
            self._add(self.result.forward, call)

    def _add(self, calls: list[Written], call: ast.Call) -> None:
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(k.arg is None for k in call.keywords):
            return
        args = [self._closed(arg) for arg in call.args]
        kwargs = [(str(k.arg), self._closed(k.value)) for k in call.keywords]
        if all(self._is_closed(value) for value in (*args, *(value for _, value in kwargs))):
            texts = tuple(ast.unparse(value) for value in args)
            named = tuple((name, ast.unparse(value)) for name, value in kwargs)
            if sum(map(len, (*texts, *(text for _, text in named)))) <= _LONGEST:
                calls.append((texts, named))

    def _closed(self, node: ast.expr) -> ast.expr:
        """The expression with the example's variables put in."""
        return _Put(self.values).visit(copy.deepcopy(node)) if self.values else node

    def _is_closed(self, node: ast.expr) -> bool:
        inner = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        inner |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - inner
        return not read & self.made and all(n in _FREE or n.lstrip("_")[:1].isupper() for n in read)


class _Put(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A variable's value."""
        return self.values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
