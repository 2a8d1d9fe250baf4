"""One walk over a syntax tree that gathers what the similarities need: classes, functions, calls, the tree's digest."""

import ast
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from lemur_core.similarity.features.sizes import sizes_of

#: Training glue that the LEMUR contract asks of every network; it says nothing about the architecture.
CONTRACT_FUNCTIONS = frozenset({"train_setup", "learn", "supported_hyperparameters"})

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SILENT_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})

#: The classes around a call (indices, outermost first).
Owners = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClassOutline:
    """A class: its name, its bases' last names, whether it defines `forward`, its first and last line."""

    name: str
    bases: tuple[str, ...]
    has_forward: bool
    first: int
    last: int


@dataclass(slots=True)
class Outline:
    """What one walk found, in source order (pre-order). Lines are counted from 1."""

    classes: list[ClassOutline] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)  # name, first and last line; none that is async
    layers: list[str] = field(default_factory=list)  # last names of what is called, contract glue left out
    sizes: list[tuple[str, str]] = field(default_factory=list)  # (what, bucket) of the numbers in those calls
    called: dict[Owners, set[str]] = field(default_factory=dict)  # names called as they are, glue included
    docstrings: list[tuple[int, int]] = field(default_factory=list)  # (line, UTF-8 column) of a dropped string
    names: set[str] = field(default_factory=set)  # identifiers: names, attributes, classes, functions
    text: list[str] = field(default_factory=list)  # the tree in pre-order, one node after another: injective
    parts: list["Cut"] = field(default_factory=list)  # what of the source was known, or is now

    @property
    def tree_digest(self) -> bytes:
        """16 bytes; equal for codes that differ in comments, docstrings and layout only."""
        return hashlib.blake2b("\n".join(self.text).encode("utf-8", "surrogatepass"), digest_size=16).digest()

    def _add(self, other: "Outline", line: int, owners: Owners, glue: bool) -> None:
        """Take what a part holds, whose first line is `line`, inside these classes."""
        before = len(self.classes)
        for one in other.classes:
            self.classes.append(ClassOutline(one.name, one.bases, one.has_forward, one.first + line, one.last + line))
        self.functions += [(name, first + line, last + line) for name, first, last in other.functions]
        self.docstrings += [(at + line, column) for at, column in other.docstrings]
        for inner, names in other.called.items():
            self.called.setdefault((*owners, *(before + place for place in inner)), set()).update(names)
        if not glue:
            self.layers += other.layers
            self.sizes += other.sizes
        self.names |= other.names
        self.text += other.text


@dataclass(slots=True)
class Part:
    """A class or function by itself: what a walk over it finds, its lines counted from 0."""

    outline: Outline
    function: str  # its name; empty for a class
    last: int
    tokens: list[str] | None = None  # worked out where they are first asked for
    alone: bool = True  # whether its tokens are the same wherever it stands


@dataclass(slots=True)
class Cut:
    """A stretch of a source, whole lines, that holds one class or function and else comments at most, as it seems."""

    line: int
    start: int  # in characters, as `stop`
    stop: int
    text: str
    part: Part | None  # what is known of it; in the tree stands a mere name then

    def holds(self, statement: ast.stmt) -> bool:
        """Whether it holds this statement, which begins on its first line, and nothing besides."""
        if not isinstance(statement, (ast.ClassDef, *_FUNCTIONS)):
            return False
        lines = self.text.removesuffix("\n").split("\n")
        last = (statement.end_lineno or 0) - self.line
        rest = lines[last + 1 :]
        return last < len(lines) and all(not line.strip() or line.lstrip()[0] == "#" for line in rest)


def outline_tree(tree: ast.Module, cuts: Mapping[int, Cut] | None = None) -> Outline:
    """The outline of a module. Iterative, so that deep nesting cannot exhaust the stack.

    Args: cuts: by the line where a statement stands for them, a known one by its last: a name stands there. Where
        nothing is known of one yet, and it holds what it seems to, it gets its part.
    """
    return _walk(tree, 0, cuts or {})


def _walk(tree: ast.AST, line: int, cuts: Mapping[int, Cut]) -> Outline:
    """The outline of a tree, lines counted from `line`."""
    found = Outline()
    names = found.names
    owners: Owners = ()
    glue = False
    write = found.text.append
    stack: list[Any] = [tree]  # nodes, known parts, and what (owners, glue) are once all above is done
    pop, push = stack.pop, stack.append
    while stack:
        node = pop()
        kind = type(node)
        # the most frequent kinds first: they are most of all nodes
        if kind is ast.Name:
            names.add(node.id)
            write("=" + node.id)
            continue
        if kind is ast.Constant:
            write("#" + _constant(node.value))
            continue
        if kind is ast.Attribute:
            names.add(node.attr)
            write("." + node.attr)
            push(node.value)
            continue
        if kind is ast.Call:
            function, arguments, keywords = node.func, node.args, node.keywords
            if type(function) is ast.Name:
                found.called.setdefault(owners, set()).add(function.id)
            if not glue and (name := last_name(function)):
                found.layers.append(name)
                found.sizes += sizes_of(name, node)
            write(f"Call\n*\n[{len(arguments)}\n[{len(keywords)}")
            stack += keywords[::-1]
            stack += arguments[::-1]
            push(function)
            continue
        if kind is tuple:
            owners, glue = node
            continue
        if kind is Cut:
            found._add(node.part.outline, node.line - line, owners, glue)
            found.parts.append(node)
            continue
        if kind is ast.ClassDef:
            push((owners, glue))
            owners = (*owners, len(found.classes))
            found.classes.append(_outline_class(node, line, cuts))
            names.add(node.name)
        elif kind in _FUNCTIONS:
            push((owners, glue))
            if kind is ast.FunctionDef:
                found.functions.append((node.name, node.lineno - line, (node.end_lineno or node.lineno) - line))
            names.add(node.name)
            glue = glue or node.name in CONTRACT_FUNCTIONS
        title, values = _FIELDS.get(kind) or _fields(kind)
        children: list[Any] = []
        write(title)
        for value in values(node):
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    if cuts:
                        value = [_known(statement, cuts) for statement in value]
                    _gather_docstrings(value, found, line)
                    if _is_docstring(node, value[0]):
                        value = value[1:]
                    write(f"[{len(value)}")
                    children += value
                    continue
                write(f"[{len(value)}")
                nodes = [item for item in value if isinstance(item, ast.AST)]
                if len(nodes) < len(value):  # names of `global`, keys of `**` in a dictionary
                    write(repr([isinstance(item, ast.AST) or item for item in value]))
                children += nodes
            elif isinstance(value, ast.AST):
                children.append(value)
                write("*")
            else:
                write(repr(value))
        children.reverse()
        stack += children
    return found


def last_name(node: ast.AST) -> str | None:
    """`Conv2d` of `torch.nn.Conv2d` and of `Conv2d`; None for anything else (a call's result, a subscript)."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _known(statement: ast.stmt, cuts: Mapping[int, Cut]) -> ast.stmt | Cut:
    """The cut that a statement fills, else the statement itself."""
    decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
    line = min([statement.lineno, *(item.lineno for item in decorators)]) if decorators else statement.lineno
    cut = cuts.get(line)
    if cut is None:
        return statement
    if cut.part is not None:
        stands_for_it = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name)
        return cut if stands_for_it else statement
    if not cut.holds(statement):
        return statement
    inner = _walk(statement, cut.line, {})
    inner.text = ["\n".join(inner.text)]
    function = statement.name if isinstance(statement, _FUNCTIONS) else ""
    cut.part = Part(inner, function, (statement.end_lineno or cut.line) - cut.line)
    return cut


#: More decimal digits Python may refuse to write.
_MANY_DIGITS = 10**4000


def _constant(value: object) -> str:
    if type(value) is int and value >= _MANY_DIGITS:  # no constant of the syntax is negative
        return hex(value)
    return repr(value)


def _fields(kind: type[ast.AST]) -> tuple[str, Callable[[ast.AST], tuple[Any, ...]]]:
    """The name of a kind of nodes, and what reads the fields that count."""
    fields = [name for name in kind._fields if name not in _SILENT_FIELDS]
    get = attrgetter(*fields) if fields else None
    several = len(fields) > 1

    def values(node: ast.AST) -> tuple[Any, ...]:
        if get is None:
            return ()
        return get(node) if several else (get(node),)

    made = _FIELDS[kind] = kind.__name__, get if get is not None and several else values
    return made


_FIELDS: dict[type[ast.AST], tuple[str, Callable[[ast.AST], tuple[Any, ...]]]] = {}


def _outline_class(node: ast.ClassDef, line: int, cuts: Mapping[int, Cut]) -> ClassOutline:
    return ClassOutline(
        name=node.name,
        bases=tuple(name for base in node.bases if (name := last_name(base)) is not None),
        has_forward=any(_function(item, cuts) == "forward" for item in node.body),
        first=node.lineno - line,
        last=(node.end_lineno or node.lineno) - line,
    )


def _function(statement: ast.stmt, cuts: Mapping[int, Cut]) -> str | None:
    """The name of the function that a statement defines, or that it stands for."""
    if isinstance(statement, _FUNCTIONS):
        return statement.name
    cut = cuts.get(statement.lineno)
    return cut.part.function if cut is not None and cut.part is not None else None


def _is_docstring(owner: ast.AST, statement: ast.stmt | Cut) -> bool:
    return (
        isinstance(owner, (ast.Module, ast.ClassDef, *_FUNCTIONS))
        and isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _gather_docstrings(body: Sequence[ast.stmt | Cut], found: Outline, line: int) -> None:
    """Mark strings that stand alone where a docstring may: first in a block, or on the line after a simple statement.

    This is where the published normalisation drops a string (right after an INDENT or NEWLINE token); one that
    follows a blank line, a comment line or a nested block counts as code there, and so it does here.
    """
    for place, statement in enumerate(body):
        if isinstance(statement, ast.Expr):
            before = body[place - 1] if place else None
            if before is None:
                dropped = statement.col_offset > 0 or statement.lineno == 1
            elif isinstance(before, Cut) or hasattr(before, "body"):
                dropped = False
            else:
                dropped = statement.lineno == (before.end_lineno or 0) + 1
            if dropped:
                found.docstrings.append((statement.lineno - line, statement.col_offset))
