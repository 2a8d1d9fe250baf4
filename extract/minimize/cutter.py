"""Cut a closed file to the code that ran. Works on text only, without side effects.

The dependencies of the class are recomputed from the remaining text, so a definition that only a cut branch uses is
removed as well.
"""

import ast
import itertools
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
    Method,
    UnusedEntry,
    first_line,
    functions_in,
    has_entered,
    is_broad,
    is_overload,
    list_comments,
    stop_by_name,
)
from extract.proofs.visit import Watched
from extract.resolve.modules import RUNTIME
from lemur_core.source.facts import ASSIGN, CLASS, FUNCTION, IMPORT, IN_ANNOTATION, Statement, Use
from lemur_core.source.parse import parse_file
from lemur_core.source.quality import find_undefined_names
from lemur_core.source.scopes import last_name
from lemur_core.source.text import Edit, Import, Lines, apply, import_section, list_nodes, normalise

_ROUNDS = 12
_REFLECTIVE = frozenset({"dir", "getmembers", "vars"})
_DUNDER = re.compile(r"__\w+__")
_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)\s", re.MULTILINE)
_END = re.compile(rb"\s*,[ \t]*(?:#[^\n]*)?\n")  # of an entry
#: Code that may depend on whether a module-level name exists.
_ASKS = re.compile(
    rb"\bglobals\(\)(?!\s*\[)|\bhasattr\(\s*sys\.modules"
    rb"|\bgetattr\(\s*sys\.modules\[[^\]]*\]\s*,[^,()]*,"
)
_ASKS_HERE = re.compile(rb"\b(?:vars|dir|locals)\(\)")  # the same outside of functions
_LOADED = re.compile(rb"\bin\s+sys\.modules")  # checks imports, not the definitions of this file
_DOCUMENTATION = re.compile(rb"__doc__|\bgetdoc\(")
#: Code that may depend on the parameters of a function that is never called; TorchScript compiles such functions, too.
_PARAMETERS = re.compile(
    rb"\bsignature\(|\bgetfullargspec\b|__(?:code|defaults|kwdefaults|annotations)__|\bget_type_hints\b"
    rb"|\bget_annotations\b|\bscript(?:_method|_if_tracing)?\b"
)
_SHARING = 3  # stubs; from this number on they share one constructor
_STUB = re.compile(r"(?P<head>class [^\n]*:)(?: *#[^\n]*)?\n\s+(?P<body>__init__ = \w+)")
_WIDTH = 120
_SENTINEL = re.compile(r" *#@(\d+)@$")


Stands = Callable[[int], bool]  # returns True if the text at an offset is kept


@dataclass(frozen=True, slots=True)
class MinimizedText:
    """A minimized file."""

    text: str  # the file without its header
    stops: dict[int, int]  # line of `text` -> the cut at that line
    named: dict[str, list[int]]  # name of a definition, method or key -> the cuts that removed it
    cut: dict[str, list[str]]  # kind -> labels of the cuts
    names: frozenset[str]  # names defined by the kept statements


@dataclass(slots=True)
class _CutUnit:
    """A module-level statement, or a whole `if` or `try` block; kept or removed as one."""

    start: int
    end: int
    statements: list[Statement]
    uses: list[Use]
    nodes: list[ast.stmt] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)
    comments: list[Cut] = field(default_factory=list)
    binds: dict[str, None] = field(default_factory=dict)
    touches: dict[str, None] = field(default_factory=dict)
    bases: set[str] = field(default_factory=set)  # named by its classes
    entered: bool = False  # whether one of its functions was called while the block was used

    @property
    def kind(self) -> str:
        """The kind of the single statement; empty for a block."""
        return "" if self.statements[0].path else self.statements[0].kind


class Cutter:
    """Cutter of one file; call `cut` again with more spared cuts if the result differs from the full form."""

    def __init__(self, code: str, name: str, watched: Watched, needed: Iterable[str] = ()) -> None:
        """Read the file. Args: needed: further definitions that stay, such as those that its arguments use."""
        self._name = name
        self._watched = watched
        self.text = normalise(code)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._tree = ast.parse(self.text)
        self._nodes = list_nodes(self._tree)
        self._calls = [node for node in self._nodes if isinstance(node, ast.Call)]
        self._handlers = [node for node in self._nodes if isinstance(node, ast.ExceptHandler) and node.body]
        self._facts = parse_file(self.text, builtins=True)
        self._lines = Lines(self.text)
        self._units = self._read_units()
        self._binding: dict[str, list[_CutUnit]] = {}
        for unit in self._units:
            for bound in unit.binds:
                self._binding.setdefault(bound, []).append(unit)
        # Whoever calls it imports torch and the like herself.
        self._needed = [name for name in needed if any(unit.kind != IMPORT for unit in self._binding.get(name, ()))]
        self._mentions = sorted(self._read_mentions())
        self._subscripts = {
            self._lines.span(node.value)[0]
            for node in self._nodes
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
        }
        self._members = {
            self._lines.span(comparator)[0]
            for node in self._nodes
            if isinstance(node, ast.Compare)
            for operator, comparator in zip(node.ops, node.comparators, strict=True)
            if isinstance(operator, ast.In | ast.NotIn)
        }
        self._asking = [match.start() for match in _ASKS.finditer(self.text)]
        self._asking += [match.start() for match in _ASKS_HERE.finditer(self.text) if self._is_outside(match.start())]
        self._loading = [match.start() for match in _LOADED.finditer(self.text)]
        self._used_imports = {use.name for unit in self._units for use in unit.uses}
        self._tables: set[str] = set()  # names of tables with removable entries
        self._find_entries()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_units(self) -> list[_CutUnit]:
        blocks = self._facts.blocks
        units: dict[int, _CutUnit] = {}
        for statement in self._facts.statements:
            whole = blocks[statement.path[0][0]] if statement.path else statement
            unit = units.setdefault(whole.start, _CutUnit(whole.start, whole.end, [], []))
            unit.statements.append(statement)
            unit.uses += [use for use in statement.uses if use.local < 0]
            unit.binds |= dict.fromkeys(statement.binds)
            unit.touches |= dict.fromkeys(statement.touches)
        for block in blocks:
            units[blocks[block.path[0][0]].start if block.path else block.start].uses += block.uses
        ordered = sorted(units.values(), key=lambda unit: unit.start)
        finder = CutFinder(self._lines, self._watched)
        comments = list(list_comments(self._lines))
        for unit in ordered:
            if self._name not in unit.binds:
                unit.comments = [comment for comment in comments if unit.start <= comment.start < unit.end]
        for node in self._tree.body:
            at = self._lines.start(node.lineno)
            for unit in ordered:
                if unit.start <= at < unit.end:
                    unit.nodes.append(node)
                    cuts = finder.find(node, summary=self._name in unit.binds)
                    unit.cuts.branches += cuts.branches
                    unit.cuts.methods += cuts.methods
                    unit.cuts.texts += cuts.texts
                    unit.cuts.stub = cuts.stub if unit.kind == CLASS else ()
                    kinds = (inner for inner in list_nodes(node) if isinstance(inner, ast.ClassDef))
                    named = (part for kind in kinds for base in kind.bases for part in list_nodes(base))
                    unit.bases |= {part.id for part in named if isinstance(part, ast.Name)}
                    unit.entered |= any(
                        (first_line(function), function.name) in self._watched.used for function in functions_in(node)
                    )
        return ordered

    def _read_mentions(self) -> Iterator[tuple[int, str]]:
        """Yield the offset and name of attributes and of words in strings: names that may look up a method."""
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                yield self._lines.span(node)[1] - 1, node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
                yield from ((self._lines.span(node)[0], word) for word in re.findall(r"\w+", node.value))
            elif isinstance(node, ast.ClassDef):
                for item in node.body:
                    if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        names = (name for name in list_nodes(item) if isinstance(name, ast.Name))
                        yield from ((self._lines.span(name)[0], name.id) for name in names)

    def _is_outside(self, offset: int) -> bool:
        """Return True if an offset is in no function."""
        spans = (self._lines.span(node) for unit in self._units for item in unit.nodes for node in functions_in(item))
        return not any(start <= offset < end for start, end in spans)

    def _find_entries(self) -> None:
        """Collect the table entries whose values refer only to unentered definitions."""
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
                named = {part.id for part in list_nodes(item) if isinstance(part, ast.Name)}
                own = {name for name in named if any(u.kind in {FUNCTION, CLASS} for u in self._binding.get(name, ()))}
                if own and own <= idle:
                    (table,) = unit.binds
                    unit.cuts.entries.append(self._entry(start, item, f"{table}[{key!r}]"))
                    self._tables.add(table)
            for item in value.elts if isinstance(value, ast.Set | ast.List | ast.Tuple) else ():
                kinds = [unit.kind for unit in self._binding.get(item.id, ())] if isinstance(item, ast.Name) else []
                if isinstance(item, ast.Name) and item.id in idle and kinds == [CLASS]:
                    start = self._lines.span(item)[0]
                    element = self._entry(start, item, f"{next(iter(unit.binds))}[{item.id}]").whole
                    unit.cuts.elements += [Element(item.id, start, element)] if element is not None else []

    def _is_idle(self, unit: _CutUnit) -> bool:
        node = unit.nodes[0]
        if isinstance(node, ast.ClassDef):
            return bool(unit.cuts.stub)
        return isinstance(node, ast.FunctionDef) and not has_entered(self._watched, node)

    def _items(self, value: ast.expr | None) -> Iterator[tuple[str, int, ast.expr]]:
        if isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, self._lines.span(key)[0], item
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict":
            for word in value.keywords:
                if word.arg is not None:
                    yield word.arg, self._lines.offset(word.lineno, word.col_offset), word.value

    def _entry(self, start: int, item: ast.expr, label: str) -> UnusedEntry:
        """Return an entry, with its comma and the rest of the line if no other text shares its lines."""
        first, end = self._lines.span(item)
        begin = self.text.rfind(b"\n", 0, start) + 1
        stop = self.text.find(b"\n", end) + 1
        alone = not self.text[begin:start].strip() and _END.fullmatch(self.text, end, stop)
        return UnusedEntry(
            Cut("entry", begin, stop, "", label) if alone else None, Cut("entry", first, end, "...", label)
        )

    # -- cutting ---------------------------------------------------------------------------------------------------

    def cut(self, spared: Collection[int] = ()) -> MinimizedText:
        """Return the file with all possible cuts applied.

        Args: spared: offsets that identify the cuts not to apply.
        """
        removed: set[int] = set()
        live: set[str] = set()
        active: dict[int, list[Cut]] = {}
        for _ in range(_ROUNDS):
            live = self._collect_live(removed, spared)
            active = {
                unit.start: self._select_cuts(unit, live, removed, spared)
                for unit in self._units
                if self._is_kept(unit, live)
            }
            # What is removed may leave further methods out of reach: repeated until nothing is new.
            further = self._find_removable(active, spared)
            if further <= removed:
                break
            removed |= further
        result = self._render(live, active)
        # Cutting the only assignment of a local name makes it a global one, with another error.
        exposed = self._find_exposed(result.text)
        fewer = {cut.start for cuts in active.values() for cut in cuts if _owner(cut.label) in exposed} - set(spared)
        return self.cut({*spared, *fewer}) if fewer else result

    def _find_exposed(self, text: str) -> set[str]:
        """Return the functions in which a local name became global because its binding was cut."""
        before, now = _read_scopes(self.text.decode()), _read_scopes(text)
        nothing: tuple[set[str], set[str]] = set(), set()
        return {
            path
            for path, (_, reads) in now.items()
            if (reads - before.get(path, nothing)[1]) & before.get(path, nothing)[0]
        }

    def _select_cuts(
        self, unit: _CutUnit, live: Collection[str], removed: Collection[int], spared: Collection[int]
    ) -> list[Cut]:
        """Return the cuts to apply in a unit; short cuts are skipped if they reference only kept names."""
        active = []
        for cut in self._list_candidates(unit, removed, spared, live):
            names = {use.name for use in unit.uses if cut.start <= use.start < cut.end and use.name in self._binding}
            imports = _IMPORTS.search(self.text, cut.start, cut.end)
            if not cut.short or imports or names & self._tables or not names <= set(live):
                active.append(cut)
        texts = [*(text for text in unit.cuts.texts if text.start in removed), *unit.comments]
        return active + [text for text in texts if not any(cut.start <= text.start < cut.end for cut in active)]

    def _list_candidates(
        self, unit: _CutUnit, removed: Collection[int], spared: Collection[int], live: Collection[str]
    ) -> Iterator[Cut]:
        cuts = unit.cuts
        if cuts.stub and cuts.stub[0].start not in spared and not self._is_base(unit, live):
            yield from cuts.stub
            return

        def widened(cut: Cut) -> Cut:
            return cut.wide if cut.wide is not None and cut.wide.start in removed else cut

        yield from (widened(cut) for cut in cuts.branches if cut.start not in spared)
        for entry in cuts.entries:
            candidates = (cut for cut in (entry.whole, entry.value) if cut is not None and cut.start in removed)
            yield from (cut for cut in candidates if cut.start not in spared)
        elements = (element.whole for element in cuts.elements if element.whole.start in removed)
        yield from (cut for cut in elements if cut.start not in spared)
        for method in cuts.methods:
            if method.whole.start in removed and method.whole.start not in spared:
                yield method.whole
            elif method.body is not None and method.body.start not in spared:
                yield widened(method.body)

    def _is_base(self, unit: _CutUnit, live: Collection[str]) -> bool:
        """Return True if a class that is kept intact derives from this one."""
        deriving = (other for other in self._units if other is not unit and other.bases & unit.binds.keys())
        staying = (other for other in deriving if self._is_kept(other, live or other.binds))
        return any(not other.cuts.stub or self._is_base(other, live) for other in staying)

    def _collect_live(self, removed: Collection[int], spared: Collection[int]) -> set[str]:
        """Return the names that the kept text needs after all possible cuts."""
        done: set[int] = set()
        wanted = (unit for unit in self._units if unit.entered or unit.start in spared)
        live = {self._name, *self._needed, *(name for unit in wanted for name in unit.binds)}
        while fresh := [unit for unit in self._units if unit.start not in done and self._is_kept(unit, live)]:
            for unit in fresh:
                done.add(unit.start)
                live.update(unit.binds if unit.kind != IMPORT else ())
                gone = list(self._list_candidates(unit, removed, spared, ()))
                for asks, importing in ((self._asking, False), (self._loading, True)):
                    if any(
                        unit.start <= offset < unit.end and not any(cut.start <= offset < cut.end for cut in gone)
                        for offset in asks
                    ):
                        live.update(self._module_names(importing))
                live.update(use.name for use in unit.uses if self._is_needed(use, gone) and use.name in self._binding)
        return live

    def _module_names(self, importing: bool) -> Iterator[str]:
        """Yield the names of the file, or only those of its `if` and `try` blocks that contain imports."""
        for unit in self._units:
            if unit.kind != IMPORT and (not importing or any(s.kind == IMPORT for s in unit.statements)):
                yield from unit.binds

    def _is_needed(self, use: Use, gone: Iterable[Cut]) -> bool:
        offset = use.start if use.start >= 0 else use.inside
        if offset >= 0 and any(cut.start <= offset < cut.end for cut in gone):
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

    def _is_kept(self, unit: _CutUnit, live: Collection[str]) -> bool:
        if unit.binds:
            if any(is_overload(node) for node in unit.nodes) and all(
                len(self._binding[name]) > 1 for name in unit.binds
            ):
                return False
            return any(name in live for name in unit.binds)
        if unit.touches:
            return any(name in live for name in unit.touches)
        return not _is_text(unit)

    def _find_removable(self, active: Mapping[int, list[Cut]], spared: Collection[int]) -> set[int]:
        """Return the cuts of unreachable methods, of entries in tables that are only subscripted, and of members."""
        units = [unit for unit in self._units if unit.start in active]
        gone = {unit.start: sorted((cut.start, cut.end) for cut in active[unit.start]) for unit in units}

        def stands(offset: int) -> bool:
            unit = next((unit for unit in units if unit.start <= offset < unit.end), None)
            return unit is not None and not any(start <= offset < end for start, end in gone[unit.start])

        removable: set[int] = set()
        if not self._looks_up(stands):
            mentioned = {name for offset, name in self._mentions if stands(offset)}
            for unit in units:
                unreachable = (item for item in unit.cuts.methods if self._is_out_of_reach(item, mentioned))
                removable.update(method.whole.start for method in unreachable)
        if not self._mentions_any(_DOCUMENTATION, stands):
            removable |= {text.start for unit in units for text in unit.cuts.texts}
        if not self._mentions_any(_PARAMETERS, stands):
            bodies = (method.body for unit in units for method in unit.cuts.methods if method.body is not None)
            for cut in itertools.chain(bodies, *(unit.cuts.branches for unit in units)):
                removable |= {cut.wide.start} if cut.wide is not None else set()
        catches = self._catches(stands, {"KeyError", "LookupError"})
        for unit in units:
            if unit.cuts.entries:
                (table,) = unit.binds
                uses = [use for other in units for use in other.uses if use.name == table and stands(use.start)]
                plain = len(self._binding[table]) == 1 and not any(use.attributes for use in uses)
                if plain and not catches and all(use.start in self._subscripts for use in uses):
                    removable |= {entry.whole.start for entry in unit.cuts.entries if entry.whole is not None}
                elif plain and all(use.start in self._members for use in uses):
                    removable |= {entry.value.start for entry in unit.cuts.entries}
        return removable.union(self._find_unnamed(units, stands, spared)) - set(spared)

    def _find_unnamed(self, units: Collection[_CutUnit], stands: Stands, spared: Collection[int]) -> Iterator[int]:
        """Yield the cuts of classes that appear only in collections used for membership tests.

        Nothing else names such a class, so no tested value can be one of them.
        """
        # Code that lists the names of the module sees every class.
        if any(map(stands, self._asking)):
            return
        uses = [use for unit in units for use in unit.uses if use.when != IN_ANNOTATION and stands(use.start)]
        elements: dict[int, int] = {}
        for unit in units:
            only_tested = all(use.start in self._members for use in uses if use.name in unit.binds)
            if only_tested and all(len(self._binding[name]) == 1 for name in unit.binds):
                elements |= {element.start: element.whole.start for element in unit.cuts.elements}
        elsewhere = {use.name for use in uses if use.start not in elements}
        elsewhere |= {name for unit in self._units if unit.start in spared for name in unit.binds}
        for unit in units:
            for element in unit.cuts.elements:
                if element.start in elements and element.name not in elsewhere:
                    yield element.whole.start

    def _mentions_any(self, pattern: re.Pattern[bytes], stands: Stands) -> bool:
        return any(stands(match.start()) for match in pattern.finditer(self.text))

    def _is_out_of_reach(self, method: Method, mentioned: Collection[str]) -> bool:
        if _DUNDER.fullmatch(method.name) or method.name in mentioned:
            return False
        return f"{method.owner}.{method.name}" not in self._watched.bound

    def _looks_up(self, stands: Stands) -> bool:
        """Return True if the code may test for an attribute whose name is not known here."""
        for node in self._calls:
            if stands(self._lines.span(node)[0]):
                called = last_name(node.func)
                known = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
                if called == "hasattr" or (called == "getattr" and len(node.args) > 2):
                    if not known:
                        return True
                elif called in _REFLECTIVE and not self._is_of_a_package(node):
                    return True
        return self._catches(stands, {"AttributeError"})

    def _is_of_a_package(self, call: ast.Call) -> bool:
        """Return True for calls such as `dir(torch.nn.functional)`, which inspect an imported module."""
        if len(call.args) != 1:
            return False
        inner = call.args[0]
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        units = self._binding.get(inner.id, ()) if isinstance(inner, ast.Name) else ()
        return bool(units) and all(unit.kind == IMPORT for unit in units)

    def _catches(self, stands: Stands, kinds: Collection[str]) -> bool:
        """Return True if a kept handler catches an error of these kinds."""
        for node in self._handlers:
            if stands(self._lines.span(node.body[0])[0]):
                named = (
                    {part.id for part in list_nodes(node.type) if isinstance(part, ast.Name)} if node.type else set()
                )
                if is_broad(node) or named & set(kinds):
                    return True
        return False

    # -- text ------------------------------------------------------------------------------------------------------

    def _render(self, live: Collection[str], active: Mapping[int, list[Cut]]) -> MinimizedText:
        imports: list[Import] = []
        pieces: list[str] = []
        numbered: list[Cut] = []
        kept: set[str] = set()
        before = ""
        stubs = {start for start, cuts in active.items() if any(cut.kind == "class" for cut in cuts)}
        shared = self._find_free_name("left_out") if len(stubs) >= _SHARING else ""
        for unit in self._units:
            if unit.start not in active:
                continue
            if unit.kind == IMPORT:
                aliases = [alias for alias in unit.statements[0].aliases if alias.bound in live]
                imports += [Import(alias.module, alias.name, alias.whole, alias.bound) for alias in aliases]
                continue
            edits = []
            for cut in active[unit.start]:
                edits.append(Edit(cut.start, cut.end, self._mark(cut, len(numbered), shared)))
                numbered.append(cut)
            text = apply(self.text, unit.start, unit.end, edits).strip("\n").rstrip()
            text += "\n    pass" if unit.kind == CLASS and text.endswith(":") else ""  # all of its methods were removed
            kind = "stub" if unit.start in stubs else unit.kind
            if kind == "stub" and shared:
                text = (f"{stop_by_name(shared)}\n\n\n" if unit.start == min(stubs) else "") + _join_stub(text)
            kept |= {*unit.binds, *unit.touches}
            if pieces:
                # Stubs and assignments stand together, as authors write them; definitions two lines apart.
                close = before == kind and kind in {"stub", ASSIGN}
                pieces.append(("\n\n" if text.startswith("#") else "\n") if close else "\n\n\n")
            pieces.append(text)
            before = kind
        head = ["from __future__ import annotations", ""] if "annotations" in self._facts.future else []
        body = "".join(pieces)
        imports += self._for_effect(body)
        lines = [*head, *import_section(imports)]
        text, stops = _strip_marks("\n".join([*lines, "", "", body, ""]), numbered)
        placeholders = self._placeholders(text)
        # The lines move by the placeholders, and the stops with them: rendered again.
        if placeholders:
            added = ["", "# Named by annotations only.", *placeholders]
            text = "\n".join([*lines, *added, "", "", body, ""])
            text, stops = _strip_marks(text, numbered)
        return MinimizedText(text, stops, *self._summarize(numbered, active), frozenset(kept))

    def _for_effect(self, body: str) -> Iterator[Import]:
        """Yield the imports that the full form needs only for their compiled operators."""
        if "torch.ops" in body:
            for unit in self._units:
                if unit.kind == IMPORT:
                    for alias in unit.statements[0].aliases:
                        if alias.bound not in self._used_imports:
                            yield Import(alias.module, alias.name, alias.whole, alias.bound)

    @staticmethod
    def _placeholders(text: str) -> list[str]:
        """Return definitions of the names that only annotations use."""
        tree = ast.parse(text)
        missing = find_undefined_names(tree).keys()
        for node in list_nodes(tree) if missing else ():
            for name in ("annotation", "returns"):
                if isinstance(getattr(node, name, None), ast.expr):
                    setattr(node, name, ast.Constant(None, lineno=1, col_offset=0))
        return [f"{name} = object" for name in sorted(missing - find_undefined_names(tree).keys())] if missing else []

    def _find_free_name(self, name: str) -> str:
        """Return a name that the file does not have."""
        while name.encode() in self.text:
            name += "_"
        return name

    @staticmethod
    def _mark(cut: Cut, number: int, shared: str) -> str:
        """Return the replacement, its errors marked. Args: shared: the name of the constructor of all stubs, if any."""
        lines = cut.text.split("\n")
        if shared and cut.kind == "class" and cut.text:
            return f"{lines[0][: -len(lines[0].lstrip())]}__init__ = {shared}\n"
        return "\n".join(f"{line}  #@{number}@" if line.lstrip().startswith("raise ") else line for line in lines)

    def _summarize(
        self, cuts: Iterable[Cut], active: Mapping[int, list[Cut]]
    ) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
        named: dict[str, list[int]] = {}
        cut: dict[str, list[str]] = {}
        for item in cuts:
            if item.label:
                cut.setdefault(item.kind, []).append(item.label)
            key = re.findall(r"\w+", item.label)[-1:]
            for name in key if item.kind in {"method", "entry", "class"} else ():
                named.setdefault(name, []).append(item.start)
        bound = {name for unit in self._units if unit.start in active for name in unit.binds}
        absent = [unit for unit in self._units if unit.start not in active and unit.kind != IMPORT]
        for unit in absent:
            for name in unit.binds:
                named.setdefault(name, []).append(unit.start)
        definitions = (unit for unit in absent if unit.kind in {CLASS, FUNCTION})
        gone = dict.fromkeys(name for unit in definitions for name in unit.binds if name not in bound)
        if gone:
            cut["definition"] = list(gone)
        return named, cut


def _join_stub(text: str) -> str:
    """Return a class with a constructor and nothing else on one line."""
    match = _STUB.fullmatch(text)
    joined = f"{match['head']} {match['body']}" if match else ""
    return joined if joined and len(joined) <= _WIDTH else text


def _owner(label: str) -> str:
    """Return the function named in the label of a cut."""
    return label.partition(",")[0]


def _read_scopes(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """Return dotted function name -> (local names, global names that it reads)."""
    scopes: dict[str, tuple[set[str], set[str]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waiting = [("", symtable.symtable(text, "block.py", "exec"))]
    while waiting:
        path, table = waiting.pop()
        if isinstance(table, symtable.Function):
            own, reads = scopes.setdefault(path, (set(), set()))
            own |= {*table.get_locals(), *table.get_frees()}
            reads |= set(table.get_globals())
        waiting += [(f"{path}.{child.get_name()}".lstrip("."), child) for child in table.get_children()]
    return scopes


def _is_text(unit: _CutUnit) -> bool:
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in unit.nodes)


def _strip_marks(text: str, cuts: list[Cut]) -> tuple[str, dict[int, int]]:
    stops: dict[int, int] = {}
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        match = _SENTINEL.search(line)
        if match:
            stops[number] = cuts[int(match[1])].start
            line = line[: match.start()]
        lines.append(line)
    return "\n".join(lines), stops
