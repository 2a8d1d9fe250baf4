"""Merge several self-contained files into one module in which each part's class behaves as in its own file; text only.

Definitions that are the same in two parts are written once: same name, same text, and recursively the same for every
global that the text names. An object that can change is shared only if everything that may change it is the same in
both parts. Shared globals are computed by refining a coloring of all globals until it is stable: two of the same color
are interchangeable.
"""

import ast
import builtins
import re
import warnings
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lemur_core.files.errors import UserError
from lemur_core.files.foreign import comment_lines
from lemur_core.source.facts import ASSIGN, AT_DEFINITION, CLASS, FUNCTION, IMPORT, IN_ANNOTATION, Statement, Use
from lemur_core.source.parse import parse_file
from lemur_core.source.scopes import fresh_name, last_name
from lemur_core.source.text import Edit, Import, Lines, apply, import_section, normalise

#: Names that refer to the module itself, or reach its names by strings. `__name__` alone still works.
_MODULE_NAMES = frozenset(
    {
        "globals", "eval", "exec", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__path__",
        "__annotations__", "__all__",
    }
)  # fmt: skip
_NAMESPACE_FUNCTIONS = frozenset({"dir", "locals", "vars"})
_LOOKUPS = frozenset({"import_module", "__import__", "getmodule", "find_spec"})
_ANNOTATIONS = frozenset({"__annotations__", "get_annotations", "annotation", "return_annotation"})
_HOOKS = frozenset({"__getattr__", "__dir__"})
_FROZEN_RESULTS = frozenset({"bool", "float", "frozenset", "getLogger", "int", "len", "str", "TypeVar", "NewType"})
_CHANGEABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)
#: A field of an f-string that prints its own text: `{x=}`.
_PRINTED = re.compile(rb"[^=!<>{]=\s*(?:![rsa])?(?::[^}]*)?\}")

_COMMENTS = re.compile(rb"\A(?:[ \t]*#[^\n]*\n)+")
_BUILTINS = frozenset(dir(builtins))
_TAKEN = "another part has that name"

_Symbol = tuple[int, str]  # number of the part, name


@dataclass(frozen=True, slots=True)
class Part:
    """A self-contained file to merge with others.

    Args:
        key: the key of its class in `Bundle.names`.
        name: the name of the class in its code.
        code: the text of the file.
        header: comment lines, without `# `, to write above its definitions.
    """

    key: str
    name: str
    code: str
    header: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bundle:
    """Several files merged into one.

    Attributes:
        text: a module: future import, imports, then the parts' definitions in their order.
        names: the name of each part's class in the module, by the part's key.
    """

    text: str
    names: dict[str, str]


def bundle(parts: Sequence[Part]) -> Bundle:
    """Return one module in which each part's class behaves as in its own file.

    Definitions that are the same in two parts are written once; other globals of the same name get a number in the
    later part (`_2`, `_3`). A renamed class keeps its old `__name__` if its part reads such names. Top-level imports
    are merged and sorted. `from __future__ import annotations` is added if a part has it: annotations are then strings
    everywhere, which changes nothing for code that does not read them as objects.

    Args: parts: with distinct keys; the order only decides which part keeps a name.
    Returns: the text, and by the part's key the new names.
    Raises: UserError if a part cannot share a file, naming it and the line: star and relative imports, `globals()`
        and the like, code that reads annotations as objects, names inside strings that would have to change.
    """
    for key, times in Counter(part.key for part in parts).items():
        if times > 1:
            raise UserError(f"{key}: appears twice; name each part once")
    files = [_BundleFile(part) for part in parts]
    future = any(file.future for file in files)
    for file in files:
        if future and not file.future and file.reads_annotations:
            raise UserError(
                f"{file.part.key}: line {file.reads_annotations}: reads annotations, and another part has "
                "`from __future__ import annotations`, which makes them strings; use another block"
            )
    colour = _color_globals(files)
    names = _choose_names(files, colour)
    lines = ["from __future__ import annotations", ""] if future else []
    # Modules first: `import torch.nn as nn` where another part has `from torch import nn`.
    imported = {
        item._replace(bound=own[item.bound]) for file, own in zip(files, names, strict=True) for item in file.imports
    }
    lines += import_section(sorted(imported, key=lambda item: (bool(item.name), item)))
    bodies = [
        file.render(own, copies) for file, own, copies in zip(files, names, _find_copies(files, colour), strict=True)
    ]
    text = "\n\n\n".join(filter(None, ["\n".join(lines).strip("\n"), *bodies])) + "\n"
    if text.lstrip().startswith("#"):  # in the first two lines, a part's own comment could declare an encoding
        text = f"\n\n{text}"
    return Bundle(text, {file.part.key: own[file.part.name] for file, own in zip(files, names, strict=True)})


# -- one part --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _BundleUnit:
    """A unit that is kept or dropped as a whole: a statement, or a top-level `if` or `try` with its contents."""

    start: int
    end: int
    gap: int  # blank lines above it
    text: bytes  # without the comment lines above it
    statements: list[Statement] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)  # of globals
    binds: dict[str, None] = field(default_factory=dict)  # immediately, or in functions that declare them global

    @property
    def kind(self) -> str:
        """The kind of its only statement; empty for a block."""
        return "" if self.statements[0].path else self.statements[0].kind

    @property
    def mentions(self) -> set[str]:
        """All globals that it names."""
        return {*self.binds, *(use.name for use in self.uses)}

    def hands_on(self, name: str) -> bool:
        """Return whether it uses a value other than by calling it."""
        uses = (use for use in self.uses if use.name == name and use.when != IN_ANNOTATION)
        return any(use.attributes or not use.called for use in uses)

    def may_change(self, name: str) -> bool:
        """Return whether it may change a class or function, now or later: `F.x = 1`, or a statement run for its
        effect.
        """
        has_effect = self.kind not in {FUNCTION, CLASS, ASSIGN, IMPORT}
        if has_effect and any(use.name == name and use.when == AT_DEFINITION for use in self.uses):
            return True
        stored = r"(?<![\w.])NAME\.[\w.]+ *(?:\[[^\]]*\] *)*[-+*/|&^@%]?=(?!=)|(?:set|del)attr\(\s*NAME\b"
        return re.search(stored.replace("NAME", name).encode(), self.text) is not None


class _BundleFile:
    """A parsed part."""

    def __init__(self, part: Part) -> None:
        self.part = part
        try:
            self.text = normalise(part.code)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # compiler warnings about other people's code
                self.tree = ast.parse(self.text)
                self.facts = parse_file(self.text, builtins=True)
        except (SyntaxError, ValueError) as error:
            raise self._fail(getattr(error, "lineno", None) or 0, f"not Python: {error}") from error
        self.lines = Lines(self.text)
        self.words = set(re.findall(r"\w+", part.code))
        self.reads_names = re.search(r"\.__name__\b|_get_name\b", part.code) is not None
        self.future = "annotations" in self.facts.future
        self.errors = {name for block in self.facts.blocks for name in block.errors}
        strings = [node for node in ast.walk(self.tree) if isinstance(node, ast.JoinedStr)]
        self.printed = [span for span in map(self.lines.span, strings) if _PRINTED.search(self.text, *span)]
        self.units = self._read_units()
        self.binding: dict[str, list[_BundleUnit]] = {}
        for unit in self.units:
            for name in unit.binds:
                self.binding.setdefault(name, []).append(unit)
        for line, text in sorted(self._list_faults()):
            raise self._fail(line, text)
        if part.name not in self.binding:
            raise UserError(f"{part.key}: no {part.name} in its code; give the name of the class that it defines")
        self.imports = self._list_top_imports()
        hoisted = {item.bound for item in self.imports}
        self.units = [unit for unit in self.units if not (unit.kind == IMPORT and hoisted.issuperset(unit.binds))]

    def _fail(self, line: int, text: str) -> UserError:
        """Return the error with the reason why the part cannot be merged with others."""
        return UserError(f"{self.part.key}: line {line}: {text}; it cannot share a file with others, use another block")

    def _read_units(self) -> list[_BundleUnit]:
        """Return the file's units in order, without its docstring and `__all__`."""
        blocks = self.facts.blocks
        units: dict[int, _BundleUnit] = {}
        end = 0
        for statement in self.facts.statements:
            whole = blocks[statement.path[0][0]] if statement.path else statement
            if whole.start not in units:
                between = self.text[end : whole.start]
                gap = between[len(between.rstrip()) :].count(b"\n")
                end = whole.end
                units[whole.start] = _BundleUnit(
                    whole.start, end, gap, _COMMENTS.sub(b"", self.text[whole.start : end].rstrip())
                )
            unit = units[whole.start]
            unit.statements.append(statement)
            unit.uses += [use for use in statement.uses if use.local < 0]
            unit.binds |= dict.fromkeys((*statement.binds, *statement.late))
        for block in blocks:
            units[blocks[block.path[0][0]].start if block.path else block.start].uses += block.uses
        ordered = list(units.values())
        return [unit for unit in ordered[ast.get_docstring(self.tree) is not None :] if list(unit.binds) != ["__all__"]]

    def _list_top_imports(self) -> list[Import]:
        """Return the top-level imports whose names nothing else binds."""
        imports = []
        for name, units in self.binding.items():
            if all(unit.kind == IMPORT for unit in units):
                aliases = [alias for unit in units for alias in unit.statements[0].aliases if alias.bound == name]
                candidates = [Import(alias.module, alias.name, alias.whole, name) for alias in aliases]
                # Imported from two places, it stays where it is: which one it is may depend on what is installed.
                imports += candidates if len({candidate.thing for candidate in candidates}) == 1 else []
        return imports

    def _list_faults(self) -> Iterator[tuple[int, str]]:
        """Yield the lines whose meaning would change in a file with other parts."""
        if "barry_as_FLUFL" in self.facts.future:  # other features are always on, or only about annotations
            yield 1, "from __future__ import barry_as_FLUFL would change the other parts"
        for unit in self.units:
            line = self.lines.number(unit.start)
            for name in _HOOKS.intersection(unit.binds):
                yield line, f"defines the module's `{name}`"
            for name in self.errors.intersection(unit.binds):
                yield line, f"{name} is bound by an `except` too"
            for use in unit.uses:
                if use.start < 0 or (use.name in self.binding and use.name != "__all__"):
                    continue
                at_once = use.when == AT_DEFINITION and self.text[use.ends[0] :].startswith(b"()")
                if use.name in _MODULE_NAMES or (use.name in _NAMESPACE_FUNCTIONS and at_once):
                    yield self.lines.number(use.start), f"reads the module by `{use.name}`"
        for node in ast.walk(self.tree):
            if text := _describe_fault(node):
                yield getattr(node, "lineno", 0), text

    @property
    def reads_annotations(self) -> int:
        """The first line on which code reads annotations as objects; 0 if there is none.

        The readers in the standard library and torch (dataclasses, named tuples, `typing.get_type_hints`,
        `torch.library`) accept strings as well; TorchScript does except for `Final` in class bodies.
        """
        named = (node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute | ast.Name))
        reads = (node.lineno for node in named if isinstance(node.ctx, ast.Load) and last_name(node) in _ANNOTATIONS)
        return min(reads, default=0) if self.words & _ANNOTATIONS else 0

    # -- what can be shared ------------------------------------------------------------------------------------------

    def contents(self) -> Iterator[tuple[str, Hashable, list[_BundleUnit]]]:
        """Yield, for each global, its name, its text, and the units that bind it or may change it."""
        things = {item.bound: item.thing for item in self.imports}
        data: set[str] = set()  # globals that are not an import, class, function or constant
        for name, binding in self.binding.items():
            if name in things:
                yield name, things[name], []
                continue
            starts = [(node, self.lines.start(node.lineno)) for node in self.tree.body]
            values = [node for unit in binding for node, start in starts if unit.start <= start < unit.end]
            defined = all(unit.kind in {FUNCTION, CLASS} and name in unit.statements[0].binds for unit in binding)
            if not defined and not all(_is_frozen(node, data) for node in values):
                data.add(name)
            units = [
                unit
                for unit in self.units
                if name in unit.binds or (unit.hands_on(name) if name in data else unit.may_change(name))
            ]
            yield name, tuple(unit.text for unit in units), units

    # -- text --------------------------------------------------------------------------------------------------------

    def render(self, names: Mapping[str, str], copies: Container[int]) -> str:
        """Return the part's text without hoisted imports and the units of an earlier part."""
        pieces = ["\n".join(comment_lines(self.part.header))] if self.part.header else []
        before: _BundleUnit | None = None
        for number, unit in enumerate(self.units):
            if number in copies:
                continue
            around = {unit.kind} if before is None else {before.kind, unit.kind}
            blank = 1 if before is None else 2 if around & {FUNCTION, CLASS} else min(unit.gap, 2)
            pieces += ["\n" * (1 + blank)] if pieces else []
            pieces += [self._render_unit(unit, names), self._old_name(unit, names)]
            before = unit
        return "".join(pieces)

    def _render_unit(self, unit: _BundleUnit, names: Mapping[str, str]) -> str:
        """Return a unit's text with its names changed in place."""
        edits = []
        for use in unit.uses:
            if names.get(use.name, use.name) != use.name:
                start = use.start if use.start >= 0 else use.inside
                self._check_renaming(use.name, start, unit)
                edits.append(Edit(start, start + len(use.name.encode()), names[use.name]))
        for statement in unit.statements:
            edits += [Edit(s.start, s.end, names[s.name]) for s in statement.stores if names[s.name] != s.name]
            edits += self._import_edits(statement, names)
        return apply(self.text, unit.start, unit.end, edits).rstrip()

    def _check_renaming(self, name: str, start: int, unit: _BundleUnit) -> None:
        line = self.lines.number(start if start >= 0 else unit.start)
        if start < 0:
            what = "is named in a string, or where the name of a class body may be meant"
            raise self._fail(line, f"{name} {what}, and {_TAKEN}")
        if name in _BUILTINS and not self._always_binds(name):
            raise self._fail(line, f"{name} may be its own or the built-in one, and {_TAKEN}")
        if any(first <= start < last for first, last in self.printed):
            raise self._fail(line, f"{name} is printed with its name by `=` in an f-string, and {_TAKEN}")

    def _always_binds(self, name: str) -> bool:
        """Return whether every read of a name finds the part's own binding."""
        naming = [unit for unit in self.units if name in unit.mentions]
        reads = any(use.name == name and use.when == AT_DEFINITION for use in naming[0].uses)
        plain = {unit.kind for unit in self.binding[name]} <= {FUNCTION, CLASS, ASSIGN, IMPORT}
        return plain and not reads and name in naming[0].statements[0].binds

    def _import_edits(self, statement: Statement, names: Mapping[str, str]) -> Iterator[Edit]:
        """Yield edits of imports below the top level that bind a renamed global."""
        if statement.kind == IMPORT:
            spans = {(statement.start, statement.end): list(statement.aliases)}
        else:
            spans = {}
            for entry in statement.locals:
                spans.setdefault((entry.start, entry.end), []).extend([entry.alias] if entry.is_global else [])
        for (start, end), aliases in spans.items():
            if any(names[alias.bound] != alias.bound for alias in aliases):
                lines = [str(Import(a.module, a.name, a.whole, names[a.bound])) for a in aliases]
                indent = " " * statement.column
                text = "".join(f"{indent}{line}\n" for line in lines)
                yield Edit(start, end, text if statement.kind == IMPORT else "; ".join(lines))

    def _old_name(self, unit: _BundleUnit, names: Mapping[str, str]) -> str:
        """Return a line that restores the old `__name__` of a renamed class, if the part reads such names."""
        name = next(iter(unit.binds), "")
        if unit.kind != CLASS or names[name] == name:
            return ""
        line = self.lines.number(unit.start)
        # In a class body, Python changes `__x` to `_Block__x`, with the name of the class.
        private = f"_{name.lstrip('_')}__"
        if any(word.startswith(private) for word in self.words):
            raise self._fail(line, f"{name} would be renamed, and a name that begins {private} is read")
        if not self.reads_names:
            return ""
        above = {use.name for use in unit.uses if 0 <= use.start < unit.statements[0].stores[0].start}
        if above.intersection(self.binding) - {item.bound for item in self.imports}:
            raise self._fail(line, f"{name} would be renamed, and its decorator may read its name")
        return f'\n\n\n{names[name]}.__name__ = "{name}"'


def _describe_fault(node: ast.AST) -> str:
    """Return why a single node prevents merging; empty if it does not."""
    if isinstance(node, ast.ImportFrom) and (node.names[0].name == "*" or node.level):
        what = "star" if node.names[0].name == "*" else "relative"
        return f"has {'a' if what == 'star' else 'the'} {what} import of {'.' * node.level}{node.module or ''}"
    if isinstance(node, ast.Attribute) and node.attr in {"__globals__", "f_globals"}:
        return f"reads a module by `{node.attr}`"
    looked_up: list[ast.expr] = []
    if isinstance(node, ast.Subscript) and last_name(node.value) == "modules":
        looked_up = [node.slice]
    elif isinstance(node, ast.Call) and last_name(node.func) in _LOOKUPS:
        looked_up = node.args
    if any(isinstance(item, ast.Name) and item.id == "__name__" for item in looked_up):
        return "reads its own module by its `__name__`"
    if getattr(node, "type_params", None) or type(node).__name__ == "TypeAlias":
        return "has type parameters or a `type` statement (Python 3.12)"
    return ""


def _is_frozen(node: ast.stmt, data: Container[str]) -> bool:
    """Return whether an assignment's value is immutable, or does not belong to the part."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return False
    for inner in ast.walk(node.value) if node.value is not None else ():
        if isinstance(inner, _CHANGEABLE) or (isinstance(inner, ast.Name) and inner.id in data):
            return False
        if isinstance(inner, ast.Call) and last_name(inner.func) not in _FROZEN_RESULTS:
            return False
    return True


# -- all parts -------------------------------------------------------------------------------------------------------


def _color_globals(files: Sequence[_BundleFile]) -> dict[_Symbol, int]:
    """Return a color number for each global; interchangeable globals have the same one."""
    content: dict[_Symbol, list[_BundleUnit]] = {}
    first: dict[_Symbol, Hashable] = {}
    for number, file in enumerate(files):
        for name, thing, units in file.contents():
            content[number, name], first[number, name] = units, (name, thing)
    colour, count = _number_values(first), 0
    while count < (count := len(set(colour.values()))):
        refined = {
            symbol: (own, *(_list_globals(symbol[0], unit, colour) for unit in content[symbol]))
            for symbol, own in colour.items()
        }
        colour = _number_values(refined)
    return colour


def _number_values(colour: Mapping[_Symbol, Hashable]) -> dict[_Symbol, int]:
    numbers: dict[Hashable, int] = {}
    return {symbol: numbers.setdefault(value, len(numbers)) for symbol, value in colour.items()}


def _list_globals(part: int, unit: _BundleUnit, colour: Mapping[_Symbol, int]) -> tuple[tuple[str, int], ...]:
    """Return the globals that a unit names, with their colors; -1 for built-in ones."""
    return tuple((name, colour.get((part, name), -1)) for name in sorted(unit.mentions))


def _find_copies(files: Sequence[_BundleFile], colour: Mapping[_Symbol, int]) -> Iterator[set[int]]:
    """Yield, for each part, the units that do the same to the same globals as a unit of an earlier part."""
    seen: set[Hashable] = set()
    for number, file in enumerate(files):
        times: Counter[Hashable] = Counter()
        keys: list[Hashable] = []
        for unit in file.units:
            same = (unit.text, _list_globals(number, unit, colour))
            keys.append((same, times[same]))  # a repeated unit of one part is kept repeated
            times[same] += 1
        yield {index for index, key in enumerate(keys) if key in seen}
        seen.update(keys)


def _choose_names(files: Sequence[_BundleFile], colour: Mapping[_Symbol, int]) -> list[dict[str, str]]:
    """Return, for each part, the new names of its globals: their own unless an earlier part uses it differently.

    A global also cannot take a name that another part reads and does not bind (a built-in one).
    """
    reserved = set().union(*(file.errors for file in files))
    for file in files:
        reserved |= {use.name for unit in file.units for use in unit.uses} - set(file.binding)
    words = set().union(*(file.words for file in files))
    chosen: dict[int, str] = {}
    taken: set[str] = set()
    names: list[dict[str, str]] = []
    for number, file in enumerate(files):
        own: dict[str, str] = {}
        for name in dict.fromkeys([file.part.name, *file.binding]):
            color = colour[number, name]
            if color not in chosen:
                free = name not in taken and name not in reserved
                chosen[color] = name if free else fresh_name(name, taken | words)
                taken.add(chosen[color])
            own[name] = chosen[color]
        names.append(own)
    return names
