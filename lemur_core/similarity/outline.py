"""One walk over a syntax tree that gathers what the similarities need: classes, functions, calls, the tree's digest."""

import ast
import hashlib
from dataclasses import dataclass, field

#: Training glue that the LEMUR contract asks of every network; it says nothing about the architecture.
CONTRACT_FUNCTIONS = frozenset({"train_setup", "learn", "supported_hyperparameters"})

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SILENT_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@dataclass(frozen=True, slots=True)
class ClassOutline:
    """A class: its node, its bases' last names, and whether it defines `forward`."""

    node: ast.ClassDef
    bases: tuple[str, ...]
    has_forward: bool


@dataclass(frozen=True, slots=True)
class CallOutline:
    """A call: its node, the classes around it (indices, outermost first), and whether it is contract glue."""

    node: ast.Call
    owners: tuple[int, ...]
    glue: bool


@dataclass(slots=True)
class Outline:
    """What one walk found, in source order (pre-order)."""

    classes: list[ClassOutline] = field(default_factory=list)
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)
    calls: list[CallOutline] = field(default_factory=list)
    docstrings: list[tuple[int, int]] = field(default_factory=list)  # (line, UTF-8 column) of a dropped string
    names: set[str] = field(default_factory=set)  # identifiers: names, attributes, classes, functions
    tree_digest: bytes = b""  # 16 bytes; equal for codes that differ in comments, docstrings and layout only


def outline_tree(tree: ast.Module) -> Outline:
    """The outline of a module. Iterative, so that deep nesting cannot exhaust the stack."""
    found = Outline()
    names: set[str] = set()
    written: list[str] = []  # the tree in pre-order, one node after another: an injective text
    write = written.append
    stack: list[tuple[ast.AST, tuple[int, ...], bool]] = [(tree, (), False)]
    while stack:
        node, owners, glue = stack.pop()
        kind = type(node)
        # the three most frequent kinds first: they are two thirds of all nodes
        if kind is ast.Name:
            names.add(node.id)  # type: ignore[attr-defined]
            write("=" + node.id)  # type: ignore[attr-defined]
            continue
        if kind is ast.Constant:
            write("#" + _constant(node.value))  # type: ignore[attr-defined]
            continue
        if kind is ast.Attribute:
            names.add(node.attr)  # type: ignore[attr-defined]
            write("." + node.attr)  # type: ignore[attr-defined]
            stack.append((node.value, owners, glue))  # type: ignore[attr-defined]
            continue
        if isinstance(node, ast.Call):
            found.calls.append(CallOutline(node, owners, glue))
        elif isinstance(node, ast.ClassDef):
            owners = (*owners, len(found.classes))
            found.classes.append(_outline_class(node))
            names.add(node.name)
        elif isinstance(node, _FUNCTIONS):
            found.functions.append(node)
            names.add(node.name)
            glue = glue or node.name in CONTRACT_FUNCTIONS
        children: list[ast.AST] = []
        write(kind.__name__)
        for name in _fields(kind):
            value = getattr(node, name, None)
            if isinstance(value, list):
                if value and isinstance(value[0], ast.stmt):
                    _gather_docstrings(value, found)
                    if name == "body" and _is_docstring(node, value[0]):
                        value = value[1:]
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
        stack.extend([(child, owners, glue) for child in reversed(children)])
    text = "\n".join(written).encode("utf-8", "surrogatepass")
    found.names = names
    found.tree_digest = hashlib.blake2b(text, digest_size=16).digest()
    return found


def last_name(node: ast.AST) -> str | None:
    """`Conv2d` of `torch.nn.Conv2d` and of `Conv2d`; None for anything else (a call's result, a subscript)."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _constant(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**4000:
        return hex(value)  # decimal digits of so many are refused by Python
    return repr(value)


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    known = _FIELDS.get(kind)
    if known is None:
        known = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _SILENT_FIELDS)
    return known


_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


def _outline_class(node: ast.ClassDef) -> ClassOutline:
    bases = tuple(name for base in node.bases if (name := last_name(base)) is not None)
    return ClassOutline(node, bases, any(isinstance(item, _FUNCTIONS) and item.name == "forward" for item in node.body))


def _is_docstring(owner: ast.AST, statement: ast.stmt) -> bool:
    return (
        isinstance(owner, (ast.Module, ast.ClassDef, *_FUNCTIONS))
        and isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _gather_docstrings(body: list[ast.stmt], found: Outline) -> None:
    """Mark strings that stand alone where a docstring may: first in a block, or on the line after a simple statement.

    This is where the published normalisation drops a string (right after an INDENT or NEWLINE token); one that
    follows a blank line, a comment line or a nested block counts as code there, and so it does here.
    """
    for place, statement in enumerate(body):
        if isinstance(statement, ast.Expr):
            before = body[place - 1] if place else None
            if before is None:
                dropped = statement.col_offset > 0 or statement.lineno == 1
            else:
                dropped = statement.lineno == (before.end_lineno or 0) + 1 and not hasattr(before, "body")
            if dropped:
                found.docstrings.append((statement.lineno, statement.col_offset))
