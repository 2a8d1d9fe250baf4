"""Definitions of a block's closed file, and its text with some of them replaced by the project's own; text only."""

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from lemur_core.source.facts import ASSIGN, CLASS, FUNCTION, IMPORT, Statement
from lemur_core.source.imports import Import
from lemur_core.source.parse import parse_file
from lemur_core.source.text import Edit, apply, normalise


@dataclass(frozen=True, slots=True)
class Body:
    """A closed file without its header and its imports."""

    imports: tuple[Import, ...]  # imports of the names that it needs
    future: bool  # whether it postpones the evaluation of annotations
    text: str  # its statements
    gone: tuple[str, ...]  # definitions of the closed file that are no longer needed, in order


@dataclass(slots=True)
class _KeptStatements:
    """A module-level statement, or a whole `if` or `try` block; kept or removed as one."""

    start: int
    end: int
    statements: list[Statement]
    binds: set[str] = field(default_factory=set)
    touches: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)

    @property
    def kind(self) -> str:
        """The kind of the single statement; empty for a block."""
        return "" if self.statements[0].path else self.statements[0].kind


class ClosedFile:
    """The parsed closed file of a block.

    Args:
        code: the file.
        name: name of the block's class.
        further: additional names that are needed, such as those in its arguments.
    """

    def __init__(self, code: str, name: str, further: Iterable[str] = ()) -> None:
        self.name = name
        self.text = normalise(code.encode())
        self.facts = parse_file(self.text, builtins=True)
        self.tree = ast.parse(self.text)
        self._units = self._read_units()
        self._roots = [name, *further]

    def _read_units(self) -> list[_KeptStatements]:
        blocks = self.facts.blocks
        units: dict[int, _KeptStatements] = {}
        for statement in self.facts.statements:
            whole = blocks[statement.path[0][0]] if statement.path else statement
            unit = units.setdefault(whole.start, _KeptStatements(whole.start, whole.end, []))
            unit.statements.append(statement)
            unit.binds |= {*statement.binds, *statement.late}
            unit.touches |= set(statement.touches)
            unit.uses |= {use.name for use in statement.uses if use.local < 0}
        for block in blocks:
            whole = blocks[block.path[0][0]] if block.path else block
            units[whole.start].uses |= {use.name for use in block.uses}
        return sorted(units.values(), key=lambda unit: unit.start)

    @property
    def globals(self) -> set[str]:
        """The names that it binds, except placeholders for names used only in annotations (`Name = object`)."""
        hollow = {
            unit.start
            for unit in self._units
            if unit.kind == ASSIGN and self.text[unit.start : unit.end].rstrip().endswith(b" = object")
        }
        return {name for unit in self._units if unit.start not in hollow for name in unit.binds}

    def definitions(self) -> Iterator[tuple[str, bool]]:
        """Yield the name of each replaceable class or function, and whether it is a class.

        The block's own class is not replaceable, nor are definitions that are bound twice, modified by another
        statement, or used as a base class.
        """
        bases = {
            inner.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            for inner in ast.walk(base)
            if isinstance(inner, ast.Name)
        }
        for unit in self._units:
            if unit.kind not in {CLASS, FUNCTION} or len(unit.binds) != 1:
                continue
            (name,) = unit.binds
            # A second definition, or a statement that changes it, would apply to the project's own.
            others = [other for other in self._units if other is not unit and name in other.binds | other.touches]
            if name != self.name and not others and name not in bases:
                yield name, unit.kind == CLASS

    def body(self, replaced: Collection[str] = ()) -> Body:
        """Return the parts of the file that are needed if some definitions are replaced.

        Args: replaced: names of definitions that come from elsewhere.
        """
        full, now = self.list_needed_names(()), self.list_needed_names(replaced)
        imports: list[Import] = []
        edits: list[Edit] = []
        gone: list[str] = []
        for unit in self._units:
            if unit.kind == IMPORT:
                imports += [
                    Import(alias.module, alias.name, alias.whole, alias.bound)
                    for alias in unit.statements[0].aliases
                    if alias.module != "__future__" and (alias.bound in now or alias.bound not in full)
                ]
                edits.append(self._without(unit))
            elif unit.binds & set(replaced) or (self._belongs_to(unit, full) and not self._belongs_to(unit, now)):
                gone += sorted(unit.binds) if unit.kind in {CLASS, FUNCTION} else ()
                edits.append(self._without(unit))
        first = self._units[0].start if self._units else 0
        text = apply(self.text, first, len(self.text), edits).strip("\n")
        return Body(tuple(imports), "annotations" in self.facts.future, text, tuple(gone))

    def _without(self, unit: _KeptStatements) -> Edit:
        """Return the edit that removes a unit and the blank lines after it."""
        end = unit.end
        while self.text[end : end + 1] == b"\n":
            end += 1
        return Edit(unit.start, end, "")

    @staticmethod
    def _belongs_to(unit: _KeptStatements, names: Collection[str]) -> bool:
        bound = unit.binds or unit.touches
        return not bound or any(name in names for name in bound)

    def list_needed_names(self, replaced: Collection[str]) -> set[str]:
        """Return the names that the block's class needs, including replaced ones, but not what only these need."""
        names, done = set(self._roots), set[int]()
        while fresh := [unit for unit in self._units if unit.start not in done and self._belongs_to(unit, names)]:
            for unit in fresh:
                done.add(unit.start)
                # The needs of replaced definitions and of imports do not concern this file.
                if not unit.binds & set(replaced) and unit.kind != IMPORT:
                    names |= unit.binds | unit.uses
        return names


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
