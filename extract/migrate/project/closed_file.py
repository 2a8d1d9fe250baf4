"""The parts of a block's closed file that its module in a project is made of; text only."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from lemur_core.source.facts import ASSIGN, IMPORT
from lemur_core.source.imports import Import
from lemur_core.source.parse import parse_file
from lemur_core.source.text import Edit, apply, normalise


@dataclass(frozen=True, slots=True)
class ClosedFile:
    """A closed file without its header and its imports."""

    imports: tuple[Import, ...]
    future: bool  # whether it postpones the evaluation of annotations
    text: str  # its statements
    globals: frozenset[str]  # the names that it binds, except placeholders for annotations (`Name = object`)


def read_closed_file(code: str) -> ClosedFile:
    """Return the parts of a closed file."""
    text = normalise(code.encode())
    facts = parse_file(text, builtins=True)
    imports: list[Import] = []
    edits: list[Edit] = []
    bound: set[str] = set()
    for statement in facts.statements:
        source = text[statement.start : statement.end]
        if not (statement.kind == ASSIGN and source.rstrip().endswith(b" = object")):
            bound |= {*statement.binds, *statement.late}
        if statement.kind == IMPORT and not statement.path:
            aliases = (alias for alias in statement.aliases if alias.module != "__future__")
            imports += [Import(alias.module, alias.name, alias.whole, alias.bound) for alias in aliases]
            blank = len(text[statement.end :]) - len(text[statement.end :].lstrip(b"\n"))
            edits.append(Edit(statement.start, statement.end + blank, ""))
    starts = [*(statement.start for statement in facts.statements), *(block.start for block in facts.blocks)]
    body = apply(text, min(starts, default=0), len(text), edits).strip("\n")
    return ClosedFile(tuple(imports), "annotations" in facts.future, body, frozenset(bound))


def list_used_names(expressions: Iterable[str]) -> list[str]:
    """Return the sorted names that expressions use, except those that they bind themselves, e.g. in comprehensions."""
    used: set[str] = set()
    for text in expressions:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        used |= {node.id for node in names} - bound
    return sorted(used)
