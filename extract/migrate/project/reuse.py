"""The definitions of a block's closed file, and its text where the project's own stand for some of them; only text."""

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from extract.migrate.project.layout import Project, parameters_of
from lemur_core.source.facts import ASSIGN, CLASS, FUNCTION, IMPORT, Statement
from lemur_core.source.imports import Import
from lemur_core.source.parse import dotted, parse_file
from lemur_core.source.text import Edit, apply, normalise

_MOST_OPTIONS = 8  # of the project's, that are compared with one definition


@dataclass(frozen=True, slots=True)
class Option:
    """A definition of the project that might stand for one of the block's."""

    module: str
    name: str
    path: str

    @property
    def dotted(self) -> str:
        """Its whole name."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Body:
    """A closed file without its header and its imports.

    Attributes:
        imports: of names that it needs.
        future: whether annotations are strings in it.
        text: its statements.
        gone: definitions of the closed file that nothing needs any more, in order.
    """

    imports: tuple[Import, ...]
    future: bool
    text: str
    gone: tuple[str, ...]


@dataclass(slots=True)
class _Unit:
    """What stands or goes as one: a statement, or an `if` or `try` of module level with all that is in it."""

    start: int
    end: int
    statements: list[Statement]
    binds: set[str] = field(default_factory=set)
    touches: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)

    @property
    def kind(self) -> str:
        """What its one statement is; empty for a block."""
        return "" if self.statements[0].path else self.statements[0].kind


class ClosedFile:
    """A block's closed file, read.

    Args:
        code: the file.
        name: of the block's class.
        asked: further names that are needed, as those that its arguments use.
    """

    def __init__(self, code: str, name: str, asked: Iterable[str] = ()) -> None:
        self.name = name
        self.text = normalise(code.encode())
        self.facts = parse_file(self.text, builtins=True)
        self.tree = ast.parse(self.text)
        self._units = self._read_units()
        self._roots = [name, *asked]

    def _read_units(self) -> list[_Unit]:
        blocks = self.facts.blocks
        units: dict[int, _Unit] = {}
        for statement in self.facts.statements:
            whole = blocks[statement.path[0][0]] if statement.path else statement
            unit = units.setdefault(whole.start, _Unit(whole.start, whole.end, []))
            unit.statements.append(statement)
            unit.binds |= {*statement.binds, *statement.late}
            unit.touches |= set(statement.touches)
            unit.uses |= {use.name for use in statement.uses if use.local < 0}
        for block in blocks:
            whole = blocks[block.path[0][0]] if block.path else block
            units[whole.start].uses |= {use.name for use in block.uses}
        return sorted(units.values(), key=lambda unit: unit.start)

    @property
    def header(self) -> list[str]:
        """Its comment lines at the top, without `# `."""
        head = self.text.decode().partition("\n\n")[0].split("\n")
        return [line.removeprefix("#").removeprefix(" ") for line in head if line.startswith("#")]

    @property
    def globals(self) -> set[str]:
        """The names that it binds, but for those that stand for what only annotations name (`Name = object`)."""
        hollow = {
            unit.start
            for unit in self._units
            if unit.kind == ASSIGN and self.text[unit.start : unit.end].rstrip().endswith(b" = object")
        }
        return {name for unit in self._units if unit.start not in hollow for name in unit.binds}

    def definitions(self) -> Iterator[tuple[str, bool]]:
        """Classes and functions that something else could stand for: name, and whether it is a class.

        Not the block's own class; nor what is bound twice, changed by another statement, or derived from.
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
            others = [one for one in self._units if one is not unit and name in one.binds | one.touches]
            if name != self.name and not others and name not in bases:
                yield name, unit.kind == CLASS

    def body(self, replaced: Collection[str] = ()) -> Body:
        """What of the file is needed where other definitions stand for some.

        Args: replaced: names of definitions that are had from elsewhere.
        """
        full, now = self.needed(()), self.needed(replaced)
        imports: list[Import] = []
        edits: list[Edit] = []
        gone: list[str] = []
        for unit in self._units:
            if unit.kind == IMPORT:
                aliases = [
                    alias
                    for alias in unit.statements[0].aliases
                    if alias.module != "__future__" and (alias.bound in now or alias.bound not in full)
                ]
                imports += [Import(one.module, one.name, one.whole, one.bound) for one in aliases]
                edits.append(self._without(unit))
            elif unit.binds & set(replaced) or (self._is_of(unit, full) and not self._is_of(unit, now)):
                gone += sorted(unit.binds) if unit.kind in {CLASS, FUNCTION} else ()
                edits.append(self._without(unit))
        first = self._units[0].start if self._units else 0
        text = apply(self.text, first, len(self.text), edits).strip("\n")
        return Body(tuple(imports), "annotations" in self.facts.future, text, tuple(gone))

    def _without(self, unit: _Unit) -> Edit:
        """Takes a unit away with the blank lines after it."""
        end = unit.end
        while self.text[end : end + 1] == b"\n":
            end += 1
        return Edit(unit.start, end, "")

    @staticmethod
    def _is_of(unit: _Unit, names: Collection[str]) -> bool:
        bound = unit.binds or unit.touches
        return not bound or any(name in names for name in bound)

    def needed(self, replaced: Collection[str]) -> set[str]:
        """The names that the block's class needs, those that are replaced among them but not what only these need."""
        found: set[str] = set()
        done: set[int] = set()
        waiting = list(self._roots)
        while True:
            while waiting:
                found.add(waiting.pop())
            fresh = [unit for unit in self._units if unit.start not in done and self._is_of(unit, found)]
            if not fresh:
                return found
            for unit in fresh:
                done.add(unit.start)
                if not unit.binds & set(replaced) and unit.kind != IMPORT:
                    waiting += [*unit.binds, *unit.uses]


def options_for(name: str, is_class: bool, file: ClosedFile, project: Project, near: str) -> list[Option]:
    """Definitions of the project that might be the same as one of a closed file: by name first, then modules whose
    constructor and forward take arguments of the same names.

    Args: near: the folder of the new module, whose definitions come first.
    """
    node = next((n for n in file.tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name), None)
    takes = _takes(node)
    named = [one for one in project.defined if one.name == name and one.is_class == is_class]
    alike = [
        one
        for one in project.defined
        if one.name != name and is_class and one.is_module and takes != (None, None)
        if (one.parameters, one.forward) == takes
    ]
    unique = {one.path + one.name: one for one in project.defined}  # the last of several of one name stands
    ordered = [
        one
        for ones in (named, alike)
        for one in sorted(ones, key=lambda it: (it.path.rpartition("/")[0] != near, it.path))
        if unique[one.path + one.name] is one
    ]
    return [Option(one.module, one.name, one.path) for one in ordered[:_MOST_OPTIONS]]


def _takes(node: ast.stmt | None) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    if not isinstance(node, ast.ClassDef) or any(dotted(base)[-1:] == ("Function",) for base in node.bases):
        return None, None  # a function of autograd has a forward, too, and is no module
    own = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    init, forward = own.get("__init__"), own.get("forward")
    return parameters_of(init, 1) if init else None, parameters_of(forward, 1) if forward else None


def names_of(expressions: Iterable[str]) -> list[str]:
    """The names that expressions use, in order; not those that they bind themselves, as comprehensions do."""
    found: set[str] = set()
    for text in expressions:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        found |= {node.id for node in names} - bound
    return sorted(found)
