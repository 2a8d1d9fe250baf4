"""A part's file, cut into units: the statements of module level with their text and the globals that they name."""

import ast
import builtins
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lemur_core.files.errors import UserError
from train.inline.faults import fault_of_mention, faults_of, reads_annotations
from train.inline.mentions import Form, Mention, Role
from train.inline.scopes import Kind
from train.inline.text import Piece
from train.inline.walk import Walk

_WITHOUT_EFFECT = frozenset(
    {
        "absolute_import", "division", "generators", "generator_stop", "nested_scopes", "print_function",
        "unicode_literals", "with_statement",
    }
)  # fmt: skip
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BUILTINS = frozenset(dir(builtins))
_IMPORTS = (ast.Import, ast.ImportFrom)
#: Names that describe the file and not its code: assignments to them are left out.
_DESCRIPTIONS = frozenset({"__all__", "__doc__"})


@dataclass(frozen=True, slots=True)
class Part:
    """A closed file to inline.

    Args:
        key: under which `Inlined.names` tells its class.
        name: of the class in its code.
        code: the file.
        header: comment lines, without `# `, that stand above its definitions.
    """

    key: str
    name: str
    code: str
    header: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """One name of an import at module level."""

    package: str
    member: str  # "" for `import package`
    bound: str
    whole: bool  # False: `import a.b`, which binds a

    @property
    def identity(self) -> str:
        """What is bound: `import torch.nn as nn` and `from torch import nn` are one thing."""
        if self.member:
            return f"{self.package}.{self.member}"
        return self.package if self.whole else self.package.split(".")[0]


@dataclass(slots=True)
class Unit:
    """Statements that share their lines (one, as a rule), or one name of an import."""

    nodes: list[ast.stmt]
    text: bytes  # of the statements
    lead: bytes  # comment lines above them
    gap: int  # blank lines above those
    start: int  # offset of the text in the file
    mentions: list[Mention]
    imported: Imported | None = None
    late: bool = False  # an import after code that may do something

    @property
    def binds(self) -> set[str]:
        """Globals that it binds, at once or by functions that declare them."""
        return {mention.name for mention in self.mentions if mention.role is Role.BIND}

    @property
    def is_definition(self) -> bool:
        """Whether it is a class or function."""
        return isinstance(self.nodes[0], _DEFINITIONS)

    @property
    def has_effect(self) -> bool:
        """Whether it may do something other than bind names."""
        return not all(isinstance(n, (*_DEFINITIONS, *_IMPORTS)) or _plain_assignment(n) for n in self.nodes)


@dataclass(slots=True)
class File:
    """A part that has been read."""

    part: Part
    units: list[Unit]
    annotations: bool  # has `from __future__ import annotations`
    reads_annotations: int  # line on which it reads annotations as objects, or 0
    words: set[str]  # all identifiers, and more
    reads_names: bool  # of classes, by `__name__` or as torch does

    @property
    def bound(self) -> set[str]:
        """Its globals."""
        return {name for unit in self.units for name in unit.binds}

    @property
    def falls_back(self) -> set[str]:
        """Globals that a read may find bound or not, and then means the built-in name."""
        return {name for name in self.bound & _BUILTINS if not self._always_binds(name)}

    def _always_binds(self, name: str) -> bool:
        naming = [unit for unit in self.units if any(mention.name == name for mention in unit.mentions)]
        at_once = [m for m in naming[0].mentions if m.name == name and not m.late]
        first = bool(at_once) and all(mention.role is Role.BIND for mention in at_once)
        return first and not any(unit.has_effect and name in unit.binds for unit in naming)


def fail(part: Part, line: int, text: str) -> UserError:
    """The error that says why a part cannot be inlined."""
    return UserError(f"{part.key}: line {line}: {text}; it cannot share a file with others, use another block")


def read_part(part: Part) -> File:
    """A part's units.

    Raises: UserError if it cannot be inlined, naming the part and the line.
    """
    text = part.code.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").rstrip() + "\n"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler thinks of other people's code
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise fail(part, getattr(error, "lineno", None) or 0, f"not Python: {error}") from error
    future, body = _without_preamble(part, tree.body)
    units = _units(part, text.encode(), tree.body, body)
    words, reads_names = set(re.findall(r"\w+", text)), re.search(r"\.__name__\b|_get_name\b", text) is not None
    found = File(part, units, future, reads_annotations(tree, words), words, reads_names)
    bound = found.bound
    for unit in units:
        for mention in unit.mentions:
            fault = fault_of_mention(mention, bound)
            if fault is not None:
                raise fail(part, fault.line, fault.text)
    if part.name not in bound:
        raise UserError(f"{part.key}: no {part.name} in its code; give the name of the class that it defines")
    return found


def _without_preamble(part: Part, body: list[ast.stmt]) -> tuple[bool, list[ast.stmt]]:
    """Whether annotations stay strings, and the statements but for docstring and future imports."""
    future, rest = False, []
    for number, node in enumerate(body):
        if number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                continue
        elif isinstance(node, ast.ImportFrom) and node.module == "__future__" and not node.level:
            for alias in node.names:
                if alias.name not in _WITHOUT_EFFECT | {"annotations"}:
                    raise fail(part, node.lineno, f"from __future__ import {alias.name} would change the other parts")
                future = future or alias.name == "annotations"
            continue
        rest.append(node)
    return future, rest


def _units(part: Part, text: bytes, all_nodes: list[ast.stmt], body: list[ast.stmt]) -> list[Unit]:
    piece = Piece(text)
    wanted = set(map(id, body))
    units: list[Unit] = []
    end_before = _header_end(text, piece.start(_decorated(all_nodes[0])) if all_nodes else len(text))
    effects = False
    for nodes in _by_line(all_nodes):
        start, end = piece.start(_decorated(nodes[0])), piece.line_start((nodes[-1].end_lineno or 0) + 1)
        between = text[end_before:start]
        end_before = end
        nodes = [node for node in nodes if id(node) in wanted]
        if not nodes or _is_description(nodes):
            continue
        start = max(start, piece.start(_decorated(nodes[0])))
        if all(isinstance(node, _IMPORTS) for node in nodes):
            for node in nodes:
                units += _import_units(part, node, effects)
            continue
        lead = between.lstrip(b"\n \t\f\\")
        gap = between[: len(between) - len(lead)].count(b"\n")
        body_text = text[start:end].rstrip()
        unit = Unit(nodes, body_text, lead, gap, start, _mentions(part, nodes, text, piece))
        effects = effects or unit.has_effect
        units.append(unit)
    return _without_all(units)


def _by_line(nodes: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Statements, those that share a line together."""
    group: list[ast.stmt] = []
    for node in nodes:
        if group and _decorated(node).lineno > (group[-1].end_lineno or 0):
            yield group
            group = []
        group.append(node)
    if group:
        yield group


def _decorated(node: ast.stmt) -> ast.stmt | ast.expr:
    """Where a statement begins: at its first decorator, if it has one (its `@` stands before)."""
    if not isinstance(node, _DEFINITIONS) or not node.decorator_list:
        return node
    first = node.decorator_list[0]
    return ast.Pass(lineno=first.lineno, col_offset=0, end_lineno=first.lineno, end_col_offset=0)


def _header_end(text: bytes, first: int) -> int:
    """Where the file's header ends: the comment lines at its top, unless they stand right above a definition."""
    found = re.compile(rb"(?:#[^\n]*\n)*").match(text, 0, first)
    assert found is not None
    at = found.end()
    above = text[at:first].startswith(b"\n") or text[first : first + 4] in {b"from", b"impo", b'"""'}
    return at if above else 0


def _mentions(part: Part, nodes: list[ast.stmt], text: bytes, piece: Piece) -> list[Mention]:
    walk = Walk(text, piece)
    for node in nodes:
        walk.visit(node)
    mentions = walk.mentions()
    bound = {mention.name for mention in mentions if mention.role is Role.BIND}
    for fault in walk.faults:
        if fault.builtin not in bound or not fault.builtin:
            raise fail(part, fault.line, fault.text)
    return mentions


def _import_units(part: Part, node: ast.stmt, late: bool) -> Iterator[Unit]:
    """One unit for each name of an import."""
    assert isinstance(node, ast.Import | ast.ImportFrom)
    for fault in faults_of(node, node.lineno, Kind.MODULE):
        raise fail(part, fault.line, fault.text)
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            imported = Imported(node.module or "", alias.name, alias.asname or alias.name, True)
        else:
            bound = alias.asname or alias.name.split(".")[0]
            imported = Imported(alias.name, "", bound, bool(alias.asname) or bound == alias.name)
        mention = Mention(imported.bound, Role.BIND, False, 0, 0, node.lineno, Form.FIXED)
        yield Unit([node], b"", b"", 0, 0, [mention], imported, late)


def _plain_assignment(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name)
    if not isinstance(node, ast.Assign):
        return False
    inner = [item for t in node.targets for item in (t.elts if isinstance(t, ast.Tuple | ast.List) else [t])]
    return all(isinstance(item, ast.Name) for item in inner)


def _is_description(nodes: list[ast.stmt]) -> bool:
    """Whether a statement only says what the file is or exports."""
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not all(isinstance(target, ast.Name) and target.id in _DESCRIPTIONS for target in targets):
            return False
    return True


def _without_all(units: list[Unit]) -> list[Unit]:
    """`__all__ = names = [...]` loses its first target."""
    for unit in units:
        found = re.match(rb"(?:__all__\s*=\s*)", unit.text)
        if found is not None:
            unit.text = unit.text[found.end() :]
            unit.start += found.end()
            unit.mentions = [m for m in unit.mentions if m.start >= unit.start]
    return units
