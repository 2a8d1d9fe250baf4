"""Calls in a file, and how their names and arguments are rewritten by offset."""

import ast
from collections.abc import Iterator, Sequence

from curate.chat.text import Edit, Source


def calls_of(source: Source, names: Sequence[str]) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """Calls `a.b.NAME(…)` of these names, with what is called."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            yield node, node.func


def mentions(source: Source, name: str) -> int:
    """How often the syntax tree names something so, as a name, an attribute or an import."""
    return sum(
        (isinstance(node, ast.Name) and node.id == name)
        or (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.alias) and name in (node.name.rpartition(".")[2], node.asname))
        for node in source.nodes
    )


def renamed(source: Source, called: ast.Attribute, new: str) -> Edit:
    """The last part of `a.b.NAME` becomes another."""
    end = source.end(called)
    return Edit(end - len(called.attr), end, new)


def without_keywords(source: Source, call: ast.Call, names: frozenset[str]) -> list[Edit] | None:
    """Keyword arguments of these names taken out, with the comma before them; None where the first one would go."""
    arguments: list[ast.expr | ast.keyword] = sorted([*call.args, *call.keywords], key=source.start)
    edits: list[Edit] = []
    for before, argument in zip([None, *arguments], arguments, strict=False):
        if isinstance(argument, ast.keyword) and argument.arg in names:
            if before is None:
                return None
            start = edits.pop().start if edits and edits[-1].end == source.end(before) else source.end(before)
            edits.append(Edit(start, source.end(argument), ""))
    return edits


def emptied(source: Source, call: ast.Call) -> Edit:
    """`NAME(…)` becomes `NAME()`."""
    return Edit(source.end(call.func), source.end(call), "()")
