"""A closed file cut to what ran; pure, only text.

What the class needs is found anew in the text that stays, so that a definition which only a cut branch names goes too.
"""

import ast
import re
import symtable
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from extract.minimize.cuts import (
    Cut,
    CutFinder,
    Cuts,
    Element,
    Entry,
    Method,
    Watched,
    functions_in,
    is_broad,
    is_overload,
)
from extract.resolve.modules import RUNTIME
from lemur_core.source.facts import ASSIGN, CLASS, FUNCTION, IMPORT, IN_ANNOTATION, Statement, Use
from lemur_core.source.imports import Import, import_section
from lemur_core.source.parse import parse_file
from lemur_core.source.scopes import last_name
from lemur_core.source.text import Edit, Lines, apply, normalise
from lemur_core.source.undefined import undefined_names

_ROUNDS = 12
_REFLECTIVE = frozenset({"dir", "getmembers", "vars"})
_DUNDER = re.compile(r"__\w+__")
_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)\s", re.MULTILINE)
_END = re.compile(rb"\s*,[ \t]*(?:#[^\n]*)?\n")  # of an entry
#: Where the lack of a name of the module may be taken for an answer.
_ASKS = re.compile(
    rb"\bglobals\(\)(?!\s*\[)|\b(?:vars|dir|locals)\(\)|\bhasattr\(\s*sys\.modules"
    rb"|\bgetattr\(\s*sys\.modules\[[^\]]*\]\s*,[^,()]*,"
)
_LOADED = re.compile(rb"\bin\s+sys\.modules")  # asks what is imported, not what is defined here
_SENTINEL = re.compile(r" *#@(\d+)@$")


Stands = Callable[[int], bool]  # whether what stands at an offset is not cut


@dataclass(frozen=True, slots=True)
class Lean:
    """A lean form.

    Attributes:
        text: its file, without a header.
        stops: by line of `text`, the cut that stands there.
        named: by name (of a definition, a method, a key), the cuts that took it away.
        cut: what was cut, by kind, with labels.
        names: what the statements that stayed define.
    """

    text: str
    stops: dict[int, int]
    named: dict[str, list[int]]
    cut: dict[str, list[str]]
    names: frozenset[str]


@dataclass(slots=True)
class _Unit:
    """What stands or goes as one: a statement of module level, or an `if` or `try` with all that is in it."""

    start: int
    end: int
    statements: list[Statement]
    uses: list[Use]
    nodes: list[ast.stmt] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)
    binds: dict[str, None] = field(default_factory=dict)
    touches: dict[str, None] = field(default_factory=dict)
    bases: set[str] = field(default_factory=set)  # that classes in it name
    entered: bool = False  # one of its functions was, as the block was used

    @property
    def kind(self) -> str:
        """What its one statement is; empty for a block."""
        return "" if self.statements[0].path else self.statements[0].kind


class Cutter:
    """Cuts one file, again and again with fewer cuts where the result was not as the full form."""

    def __init__(self, code: str, name: str, watched: Watched) -> None:
        self._name = name
        self._watched = watched
        self.text = normalise(code.encode())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._tree = ast.parse(self.text)
        self._facts = parse_file(self.text, builtins=True)
        self._lines = Lines(self.text)
        self._units = self._read_units()
        self._binding: dict[str, list[_Unit]] = {}
        for unit in self._units:
            for bound in unit.binds:
                self._binding.setdefault(bound, []).append(unit)
        self._mentions = sorted(self._read_mentions())
        self._subscripts = {
            self._lines.span(node.value)[0]
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        }
        self._members = {
            self._lines.span(one)[0]
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Compare)
            for operator, one in zip(node.ops, node.comparators, strict=True)
            if isinstance(operator, ast.In | ast.NotIn)
        }
        self._used_imports = {use.name for unit in self._units for use in unit.uses}
        self._tables: set[str] = set()  # that have such entries
        self._find_entries()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_units(self) -> list[_Unit]:
        blocks = self._facts.blocks
        units: dict[int, _Unit] = {}
        for statement in self._facts.statements:
            whole = blocks[statement.path[0][0]] if statement.path else statement
            unit = units.setdefault(whole.start, _Unit(whole.start, whole.end, [], []))
            unit.statements.append(statement)
            unit.uses += [use for use in statement.uses if use.local < 0]
            unit.binds |= dict.fromkeys(statement.binds)
            unit.touches |= dict.fromkeys(statement.touches)
        for block in blocks:
            units[blocks[block.path[0][0]].start if block.path else block.start].uses += block.uses
        found = sorted(units.values(), key=lambda unit: unit.start)
        finder = CutFinder(self._lines, self._watched)
        for node in self._tree.body:
            at = self._lines.start(node.lineno)
            for unit in found:
                if unit.start <= at < unit.end:
                    unit.nodes.append(node)
                    one = finder.of(node)
                    unit.cuts.branches += one.branches
                    unit.cuts.methods += one.methods
                    if self._name not in unit.binds and b"__doc__" not in self.text:
                        unit.cuts.texts += one.texts
                    unit.cuts.stub = one.stub if unit.kind == CLASS else ()
                    kinds = (one for one in ast.walk(node) if isinstance(one, ast.ClassDef))
                    named = (one for kind in kinds for base in kind.bases for one in ast.walk(base))
                    unit.bases |= {one.id for one in named if isinstance(one, ast.Name)}
                    unit.entered |= any(self._was_used(function) for function in functions_in(node))
        return found

    def _was_used(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        return (first, node.name) in self._watched.used

    def _read_mentions(self) -> Iterator[tuple[int, str]]:
        """Where attributes and the words of strings stand: names by which a method may be found."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute):
                yield self._lines.span(node)[1] - 1, node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
                yield from ((self._lines.span(node)[0], word) for word in re.findall(r"\w+", node.value))
            elif isinstance(node, ast.ClassDef):
                for item in node.body:
                    if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        names = (one for one in ast.walk(item) if isinstance(one, ast.Name))
                        yield from ((self._lines.span(one)[0], one.id) for one in names)

    def _find_entries(self) -> None:
        """The entries of tables whose values name only what nobody entered."""
        idle = {
            name
            for name, units in self._binding.items()
            if all(unit.kind in {FUNCTION, CLASS} and self._is_idle(unit) for unit in units)
        }
        for unit in self._units:
            if unit.kind != ASSIGN or len(unit.nodes) != 1 or len(unit.binds) != 1:
                continue
            value = getattr(unit.nodes[0], "value", None)
            for key, start, item in self._items(value):
                named = {one.id for one in ast.walk(item) if isinstance(one, ast.Name)}
                own = {one for one in named if any(u.kind in {FUNCTION, CLASS} for u in self._binding.get(one, ()))}
                if own and own <= idle:
                    (table,) = unit.binds
                    unit.cuts.entries.append(self._entry(start, item, f"{table}[{key!r}]"))
                    self._tables.add(table)
            for item in value.elts if isinstance(value, ast.Set | ast.List | ast.Tuple) else ():
                kinds = [one.kind for one in self._binding.get(item.id, ())] if isinstance(item, ast.Name) else []
                if isinstance(item, ast.Name) and item.id in idle and kinds == [CLASS]:
                    start = self._lines.span(item)[0]
                    element = self._entry(start, item, f"{next(iter(unit.binds))}[{item.id}]").whole
                    unit.cuts.elements += [Element(item.id, start, element)] if element is not None else []

    def _is_idle(self, unit: _Unit) -> bool:
        node = unit.nodes[0]
        if isinstance(node, ast.ClassDef):
            return bool(unit.cuts.stub)
        return isinstance(node, ast.FunctionDef) and not self._watched.has_entered(node)

    def _items(self, value: ast.expr | None) -> Iterator[tuple[str, int, ast.expr]]:
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, self._lines.span(key)[0], item
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
            for word in value.keywords:
                if word.arg is not None:
                    yield word.arg, self._lines.offset(word.lineno, word.col_offset), word.value

    def _entry(self, start: int, item: ast.expr, label: str) -> Entry:
        """An entry with the comma and the rest of the line after it, where it has its lines for itself."""
        first, end = self._lines.span(item)
        begin = self.text.rfind(b"\n", 0, start) + 1
        stop = self.text.find(b"\n", end) + 1
        alone = not self.text[begin:start].strip() and _END.fullmatch(self.text, end, stop)
        return Entry(Cut("entry", begin, stop, "", label) if alone else None, Cut("entry", first, end, "...", label))

    # -- cutting ---------------------------------------------------------------------------------------------------

    def cut(self, spared: Collection[int] = ()) -> Lean:
        """The file without what may go, but for the cuts that are spared: the offsets that name them."""
        removed: set[int] = set()
        live: set[str] = set()
        active: dict[int, list[Cut]] = {}
        for _ in range(_ROUNDS):
            live = self._live(removed, spared)
            active = {
                unit.start: self._active(unit, live, removed, spared) for unit in self._units if self._stays(unit, live)
            }
            further = self._removable(active, spared)
            if further <= removed:
                break
            removed |= further
        lean = self._rendered(live, active)
        exposed = self._exposed(lean.text)
        fewer = {cut.start for made in active.values() for cut in made if _owner(cut.label) in exposed} - set(spared)
        return self.cut({*spared, *fewer}) if fewer else lean

    def _exposed(self, text: str) -> set[str]:
        """The functions in which a name, that was a local one, is a global one now that what binds it was cut."""
        before, now = _scopes(self.text.decode()), _scopes(text)
        nothing: tuple[set[str], set[str]] = set(), set()
        return {
            path
            for path, (_, reads) in now.items()
            if (reads - before.get(path, nothing)[1]) & before.get(path, nothing)[0]
        }

    def _active(
        self, unit: _Unit, live: Collection[str], removed: Collection[int], spared: Collection[int]
    ) -> list[Cut]:
        """The cuts of a unit; what is short and names nothing that is not there stays."""
        found = []
        for cut in self._possible(unit, removed, spared, live):
            names = {use.name for use in unit.uses if cut.start <= use.start < cut.end and use.name in self._binding}
            imports = _IMPORTS.search(self.text, cut.start, cut.end)
            if not cut.short or imports or names & self._tables or not names <= set(live):
                found.append(cut)
        return found + [text for text in unit.cuts.texts if not any(c.start <= text.start < c.end for c in found)]

    def _possible(
        self, unit: _Unit, removed: Collection[int], spared: Collection[int], live: Collection[str]
    ) -> Iterator[Cut]:
        cuts = unit.cuts
        if cuts.stub and cuts.stub[0].start not in spared and not self._is_base(unit, live):
            yield from cuts.stub
            return
        yield from (cut for cut in cuts.branches if cut.start not in spared)
        for entry in cuts.entries:
            made = (cut for cut in (entry.whole, entry.value) if cut is not None and cut.start in removed)
            yield from (cut for cut in made if cut.start not in spared)
        elements = (one.whole for one in cuts.elements if one.whole.start in removed)
        yield from (cut for cut in elements if cut.start not in spared)
        for method in cuts.methods:
            if method.whole.start in removed and method.whole.start not in spared:
                yield method.whole
            elif method.body is not None and method.body.start not in spared:
                yield method.body

    def _is_base(self, unit: _Unit, live: Collection[str]) -> bool:
        """Whether a class that stays as it is derives from this one."""
        deriving = (other for other in self._units if other is not unit and other.bases & unit.binds.keys())
        staying = (other for other in deriving if self._stays(other, live or other.binds))
        return any(not other.cuts.stub or self._is_base(other, live) for other in staying)

    def _live(self, removed: Collection[int], spared: Collection[int]) -> set[str]:
        """The names that what stays needs, each cut made that can be."""
        live: set[str] = set()
        done: set[int] = set()
        wanted = (unit for unit in self._units if unit.entered or unit.start in spared)
        waiting = [self._name, *(name for unit in wanted for name in unit.binds)]
        while True:
            while waiting:
                name = waiting.pop()
                if name in live:
                    continue
                live.add(name)
            fresh = [unit for unit in self._units if unit.start not in done and self._stays(unit, live)]
            if not fresh:
                return live
            for unit in fresh:
                done.add(unit.start)
                waiting += unit.binds if unit.kind != IMPORT else ()
                gone = list(self._possible(unit, removed, spared, ()))
                for asks, importing in ((_ASKS, False), (_LOADED, True)):
                    for asked in asks.finditer(self.text, unit.start, unit.end):
                        if not any(cut.start <= asked.start() < cut.end for cut in gone):
                            waiting += self._asked_for(importing)
                for use in unit.uses:
                    if self._is_needed(use, gone) and use.name in self._binding:
                        waiting.append(use.name)

    def _asked_for(self, importing: bool) -> Iterator[str]:
        """The names of the file, or those of its `if` and `try` blocks that import something."""
        for unit in self._units:
            if unit.kind != IMPORT and (not importing or any(s.kind == IMPORT for s in unit.statements)):
                yield from unit.binds

    def _is_needed(self, use: Use, gone: Iterable[Cut]) -> bool:
        place = use.start if use.start >= 0 else use.inside
        if place >= 0 and any(cut.start <= place < cut.end for cut in gone):
            return False
        if use.when != IN_ANNOTATION:
            return True
        if use.start < 0:
            return False
        units = self._binding.get(use.name, ())
        imported = all(unit.kind == IMPORT for unit in units)
        if imported:
            packages = (
                alias.module.partition(".")[0] for unit in units for s in unit.statements for alias in s.aliases
            )
            return all(package in sys.stdlib_module_names or package in RUNTIME for package in packages)
        return bool(use.attributes) or self.text[use.ends[-1] : use.ends[-1] + 1] == b"["

    def _stays(self, unit: _Unit, live: Collection[str]) -> bool:
        if unit.binds:
            if any(is_overload(node) for node in unit.nodes) and all(
                len(self._binding[name]) > 1 for name in unit.binds
            ):
                return False
            return any(name in live for name in unit.binds)
        if unit.touches:
            return any(name in live for name in unit.touches)
        return not _is_text(unit)

    def _removable(self, active: Mapping[int, list[Cut]], spared: Collection[int]) -> set[int]:
        """Methods that nothing could find, entries of tables that are only subscribed, members nobody can ask for."""
        units = [unit for unit in self._units if unit.start in active]
        gone = {unit.start: sorted((cut.start, cut.end) for cut in active[unit.start]) for unit in units}

        def stands(place: int) -> bool:
            unit = next((one for one in units if one.start <= place < one.end), None)
            return unit is not None and not any(start <= place < end for start, end in gone[unit.start])

        found: set[int] = set()
        if not self._looks_up(stands):
            mentioned = {name for place, name in self._mentions if stands(place)}
            for unit in units:
                found |= {one.whole.start for one in unit.cuts.methods if self._is_out_of_reach(one, mentioned)}
        catches = self._catches(stands, {"KeyError", "LookupError"})
        for unit in units:
            if unit.cuts.entries:
                (table,) = unit.binds
                uses = [use for one in units for use in one.uses if use.name == table and stands(use.start)]
                plain = len(self._binding[table]) == 1 and not any(use.attributes for use in uses)
                if plain and not catches and all(use.start in self._subscripts for use in uses):
                    found |= {entry.whole.start for entry in unit.cuts.entries if entry.whole is not None}
                elif plain and all(use.start in self._members for use in uses):
                    found |= {entry.value.start for entry in unit.cuts.entries}
        return found.union(self._unnamed(units, stands, spared)) - set(spared)

    def _unnamed(self, units: Collection[_Unit], stands: Stands, spared: Collection[int]) -> Iterator[int]:
        """Classes in collections that are only asked for their members, where nothing else names the class.

        Whatever a call asks for, it cannot be one of these classes.
        """
        if any(stands(asked.start()) for asked in _ASKS.finditer(self.text)):
            return
        uses = [use for unit in units for use in unit.uses if use.when != IN_ANNOTATION and stands(use.start)]
        elements: dict[int, int] = {}
        for unit in units:
            asked = all(use.start in self._members for use in uses if use.name in unit.binds)
            if asked and all(len(self._binding[name]) == 1 for name in unit.binds):
                elements |= {one.start: one.whole.start for one in unit.cuts.elements}
        elsewhere = {use.name for use in uses if use.start not in elements}
        elsewhere |= {name for unit in self._units if unit.start in spared for name in unit.binds}
        for unit in units:
            for one in unit.cuts.elements:
                if one.start in elements and one.name not in elsewhere:
                    yield one.whole.start

    def _is_out_of_reach(self, method: Method, mentioned: Collection[str]) -> bool:
        if _DUNDER.fullmatch(method.name) or method.name in mentioned:
            return False
        return f"{method.owner}.{method.name}" not in self._watched.bound

    def _looks_up(self, stands: Stands) -> bool:
        """Whether the lack of an attribute whose name is not known here may be taken for an answer."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and stands(self._lines.span(node)[0]):
                called = last_name(node.func)
                known = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
                if called == "hasattr" or (called == "getattr" and len(node.args) > 2):
                    if not known:
                        return True
                elif called in _REFLECTIVE and not self._is_of_a_package(node):
                    return True
        return self._catches(stands, {"AttributeError"})

    def _is_of_a_package(self, call: ast.Call) -> bool:
        """Whether `dir(torch.nn.functional)` and the like ask what an imported module has."""
        if len(call.args) != 1:
            return False
        inner = call.args[0]
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        units = self._binding.get(inner.id, ()) if isinstance(inner, ast.Name) else ()
        return bool(units) and all(unit.kind == IMPORT for unit in units)

    def _catches(self, stands: Stands, kinds: Collection[str]) -> bool:
        """Whether a handler that stands takes an error of these kinds."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ExceptHandler) and node.body and stands(self._lines.span(node.body[0])[0]):
                named = {one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)} if node.type else set()
                if is_broad(node) or named & set(kinds):
                    return True
        return False

    # -- text ------------------------------------------------------------------------------------------------------

    def _rendered(self, live: Collection[str], active: Mapping[int, list[Cut]]) -> Lean:
        imports: list[Import] = []
        pieces: list[str] = []
        numbered: list[Cut] = []
        kept: set[str] = set()
        before = ""
        for unit in self._units:
            if unit.start not in active:
                continue
            if unit.kind == IMPORT:
                aliases = [alias for alias in unit.statements[0].aliases if alias.bound in live]
                imports += [Import(alias.module, alias.name, alias.whole, alias.bound) for alias in aliases]
                continue
            edits = []
            for cut in active[unit.start]:
                edits.append(Edit(cut.start, cut.end, self._marked(cut, len(numbered))))
                numbered.append(cut)
            text = apply(self.text, unit.start, unit.end, edits).strip("\n").rstrip()
            stubbed = any(cut.kind == "class" for cut in active[unit.start])
            kind = "stub" if stubbed else unit.kind
            kept |= {*unit.binds, *unit.touches}
            if pieces:
                close = before == kind and kind in {"stub", ASSIGN}
                pieces.append(("\n\n" if text.startswith("#") else "\n") if close else "\n\n\n")
            pieces.append(text)
            before = kind
        head = ["from __future__ import annotations", ""] if "annotations" in self._facts.future else []
        body = "".join(pieces)
        imports += self._for_effect(body)
        lines = [*head, *import_section(imports)]
        text, stops = _unmarked("\n".join([*lines, "", "", body, ""]), numbered)
        placeholders = self._placeholders(text)
        if placeholders:
            added = ["", "# Named by annotations only.", *placeholders]
            text = "\n".join([*lines, *added, "", "", body, ""])
            text, stops = _unmarked(text, numbered)
        return Lean(text, stops, *self._told(numbered, active), frozenset(kept))

    def _for_effect(self, body: str) -> Iterator[Import]:
        """Packages that the full form imports for their compiled operators alone."""
        if "torch.ops" in body:
            for unit in self._units:
                if unit.kind == IMPORT:
                    for alias in unit.statements[0].aliases:
                        if alias.bound not in self._used_imports:
                            yield Import(alias.module, alias.name, alias.whole, alias.bound)

    @staticmethod
    def _placeholders(text: str) -> list[str]:
        """Definitions of names that only annotations use."""
        tree = ast.parse(text)
        missing = undefined_names(tree).keys()
        for node in ast.walk(tree) if missing else ():
            for name in ("annotation", "returns"):
                if isinstance(getattr(node, name, None), ast.expr):
                    setattr(node, name, ast.Constant(None, lineno=1, col_offset=0))
        return [f"{name} = object" for name in sorted(missing - undefined_names(tree).keys())] if missing else []

    @staticmethod
    def _marked(cut: Cut, number: int) -> str:
        lines = cut.text.split("\n")
        return "\n".join(f"{line}  #@{number}@" if line.lstrip().startswith("raise ") else line for line in lines)

    def _told(
        self, made: Iterable[Cut], active: Mapping[int, list[Cut]]
    ) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
        named: dict[str, list[int]] = {}
        cut: dict[str, list[str]] = {}
        for one in made:
            cut.setdefault(one.kind, []).append(one.label)
            key = re.findall(r"\w+", one.label)[-1:]
            for name in key if one.kind in {"method", "entry", "class"} else ():
                named.setdefault(name, []).append(one.start)
        there = {name for unit in self._units if unit.start in active for name in unit.binds}
        absent = [unit for unit in self._units if unit.start not in active and unit.kind != IMPORT]
        for unit in absent:
            for name in unit.binds:
                named.setdefault(name, []).append(unit.start)
        definitions = (unit for unit in absent if unit.kind in {CLASS, FUNCTION})
        gone = dict.fromkeys(name for unit in definitions for name in unit.binds if name not in there)
        if gone:
            cut["definition"] = list(gone)
        return named, cut


def _owner(label: str) -> str:
    """The function that a cut's label names."""
    return label.partition(",")[0]


def _scopes(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """By dotted name, the local names of each function, and the global ones that it names."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waiting = [("", symtable.symtable(text, "block.py", "exec"))]
    while waiting:
        path, table = waiting.pop()
        if isinstance(table, symtable.Function):
            own, reads = found.setdefault(path, (set(), set()))
            own |= {*table.get_locals(), *table.get_frees()}
            reads |= set(table.get_globals())
        waiting += [(f"{path}.{one.get_name()}".lstrip("."), one) for one in table.get_children()]
    return found


def _is_text(unit: _Unit) -> bool:
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in unit.nodes)


def _unmarked(text: str, made: list[Cut]) -> tuple[str, dict[int, int]]:
    stops: dict[int, int] = {}
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        found = _SENTINEL.search(line)
        if found:
            stops[number] = made[int(found[1])].start
            line = line[: found.start()]
        lines.append(line)
    return "\n".join(lines), stops
