"""The text of a closure's statements: the author's bytes, with names, imports and decorators changed in place.

Edits by offset keep every other byte as it is; LibCST would give the same text at many times the cost.
"""

from extract.closure import Closure, Collector, Unit, kept_blocks
from extract.graph import Links
from extract.modules import Definition, External, Missing, Module, Target
from extract.naming import Names, annotation_name
from extract.symbols import Own
from lemur_core.source.edits import Edit, apply, dedent
from lemur_core.source.facts import IMPORT, Alias, LocalImport, Statement
from lemur_core.source.text import normalise

_NOT_RAISED = 'ImportError("optional package, not part of this block")'


class Renderer:
    """Writes the units of one closure."""

    def __init__(self, closure: Closure, collector: Collector, names: Names, texts: "Texts") -> None:
        self.closure = closure
        self.collector = collector
        self.names = names
        self.texts = texts
        self.dropped: list[str] = []  # decorators left out
        self.absent: set[str] = set()  # optional packages whose imports became errors

    def unit(self, unit: Unit) -> str:
        """The text of one unit, at the left margin."""
        wanted = {node.statement.number for node in unit.nodes}
        if unit.block >= 0:
            return dedent(self._block(unit.module, unit.block, wanted), self._column(unit))
        node = unit.nodes[0]
        return dedent(self._statement(unit.module, node.statement), node.statement.column)

    def _column(self, unit: Unit) -> int:
        text = self.texts.of(unit.module)
        line = text[unit.start : text.find(b"\n", unit.start)]
        return len(line) - len(line.lstrip())

    # -- blocks --------------------------------------------------------------------------------------------------

    def _block(self, module: Module, number: int, wanted: set[int]) -> str:
        """An `if` or `try` with the wanted statements; an empty suite becomes `pass`, an empty `else` goes."""
        block = module.facts.blocks[number]
        text = self.texts.of(module)
        pieces: list[str] = []
        at = block.start
        edits = self._link_edits(self.collector.graph.block_links(module, number))
        for index, (role, start, end) in enumerate(block.suites):
            if start == end:
                continue
            body = self._suite(module, (*block.path, (number, index)), wanted)
            if role in {"else", "finally"} and not body:
                at = end
                continue
            head = apply(text, at, start, [e for e in edits if at <= e.start < start])
            pieces += [head, body or self._empty(text, start)]
            at = end
        return "".join(pieces)

    def _empty(self, text: bytes, start: int) -> str:
        line = text[start : text.find(b"\n", start)]
        return line[: len(line) - len(line.lstrip())].decode() + "pass\n"

    def _suite(self, module: Module, path: tuple[tuple[int, int], ...], wanted: set[int]) -> str:
        """The wanted statements of one suite, in order, with the blocks inside it."""
        facts = module.facts
        depth = len(path)
        pieces: list[tuple[int, str]] = []
        seen: set[int] = set()
        for index in sorted(wanted):
            statement = facts.statements[index]
            if statement.path[:depth] != path:
                continue
            if len(statement.path) == depth:
                pieces.append((statement.start, self._statement(module, statement)))
                continue
            inner = statement.path[depth][0]
            if inner in seen:
                continue
            seen.add(inner)
            block = facts.blocks[inner]
            if not block.static:
                pieces.append((block.start, self._block(module, inner, wanted)))
                continue
            column = self._indent(module, block.start)
            for suite in range(len(block.suites)):  # decided statically: the statements of the branch that is taken
                body = self._suite(module, (*path, (inner, suite)), wanted)
                if body:
                    pieces.append(
                        (block.suites[suite][1], dedent(body, self._indent(module, block.suites[suite][1]) - column))
                    )
        return "".join(text for _, text in sorted(pieces))

    def _indent(self, module: Module, start: int) -> int:
        text = self.texts.of(module)
        line = text[start : text.find(b"\n", start)]
        return len(line) - len(line.lstrip())

    # -- statements ----------------------------------------------------------------------------------------------

    def _statement(self, module: Module, statement: Statement) -> str:
        text = self.texts.of(module)
        links = self.collector.graph.links(module, statement)
        if statement.kind == IMPORT:
            return self._import(module, statement, links)
        edits = [
            *self._link_edits(links, statement),
            *self._note_edits(links),
            *self._store_edits(module, statement),
            *self._local_edits(module, statement, links),
            *self._error_edits(module, statement, links),
        ]
        for decorator in links.dropped:
            edits.append(Edit(decorator.start, decorator.end, ""))
            self.dropped.append(text[decorator.start : decorator.end].decode().strip())
        return apply(text, statement.start, statement.end, edits)

    def _link_edits(self, links: Links, statement: Statement | None = None) -> list[Edit]:
        edits = []
        for link in links.links:
            use, name = link.use, self.names.of[link.symbol]
            if use.start < 0:
                continue
            local = statement.locals[use.local] if use.local >= 0 and statement is not None else None
            if local is not None and not link.consumed and not local.stand_alone:
                continue  # bound by an assignment where the import was
            if link.consumed or name != use.name:
                edits.append(Edit(use.start, use.ends[link.consumed], name))
        return edits

    def _note_edits(self, links: Links) -> list[Edit]:
        edits = []
        for use, target in links.notes:
            if use.start < 0 or not isinstance(target, Definition):
                continue
            name = annotation_name(use.name, use.attributes, target, self.names.of)
            depth = self._depth(use.attributes, use.name, target)
            if name != use.name or depth:
                edits.append(Edit(use.start, use.ends[depth], name))
        return edits

    def _depth(self, attributes: tuple[str, ...], name: str, target: Definition) -> int:
        """How many attributes belong to the class's dotted name."""
        if name == target.name or target.name not in attributes:
            return 0
        return attributes.index(target.name) + 1

    def _error_edits(self, module: Module, statement: Statement, links: Links) -> list[Edit]:
        """`except ImportError as error`, decided statically: nothing was raised; the error is made where it is read."""
        kept = set(kept_blocks(module, statement))
        bound_in_kept = {name for number in kept for name in module.facts.blocks[number].errors}
        return [
            Edit(use.start, use.ends[0], _NOT_RAISED)
            for use in links.errors
            if use.start >= 0 and use.name not in bound_in_kept
        ]

    def _store_edits(self, module: Module, statement: Statement) -> list[Edit]:
        edits = []
        for store in statement.stores:
            name = self.names.of.get(Own(module, store.name), store.name)
            if name != store.name:
                edits.append(Edit(store.start, store.end, name))
        return edits

    # -- imports -------------------------------------------------------------------------------------------------

    def _import(self, module: Module, statement: Statement, links: Links) -> str:
        """An import inside a kept `if` or `try`, each name on a line of its own."""
        lines = []
        for alias, symbol in zip(statement.aliases, links.alias_links, strict=True):
            bound = self.names.of.get(Own(module, alias.bound), alias.bound)
            if symbol is not None:
                lines.append(f"{bound} = {self.names.of[symbol]}")
            else:
                lines.append(self._kept_import(module, alias, bound))
        indent = " " * statement.column
        return "".join(f"{indent}{line}\n" for line in lines)

    def _kept_import(self, module: Module, alias: Alias, bound: str) -> str:
        dotted = self.collector.graph.library.absolute(module, alias)
        assert dotted is not None
        return import_line(dotted, alias.name, alias.whole or bound != dotted.split(".")[0], bound)

    def _local_edits(self, module: Module, statement: Statement, links: Links) -> list[Edit]:
        """Imports inside functions: of the runtime they stay, of the corpus they go, of optional packages they fail."""
        grouped: dict[tuple[int, int], list[tuple[LocalImport, Target]]] = {}
        for entry, target in zip(statement.locals, links.local_targets, strict=True):
            grouped.setdefault((entry.start, entry.end), []).append((entry, target))
        edits = []
        for (start, end), entries in sorted(grouped.items()):
            if all(self._stays(module, entry, target) for entry, target in entries):
                continue
            lines = [line for entry, target in entries if (line := self._local_line(module, entry, target))]
            text = self.texts.of(module)
            line_start = text.rfind(b"\n", 0, start) + 1
            lead = text[line_start:start]
            separator = "; " if lead.strip() else "\n" + lead.decode()
            replacement = separator.join(lines) or "pass"
            edits.append(Edit(start, end, replacement))
        return edits

    def _stays(self, module: Module, entry: LocalImport, target: Target) -> bool:
        """Whether the statement is right as it stands: it names the package that really has what it imports."""
        if not isinstance(target, External) or entry.alias.level or not self._usable(module, entry, target):
            return False
        return entry.alias.module.partition(".")[0] == target.package.partition(".")[0]

    def _usable(self, module: Module, entry: LocalImport, target: External) -> bool:
        if target.runtime:
            return True
        return not entry.guarded and self.collector.graph.hard_requirement(module, target.package)

    def _local_line(self, module: Module, entry: LocalImport, target: Target) -> str:
        bound = entry.alias.bound
        if entry.is_global:
            bound = self.names.of.get(Own(module, bound), bound)
        if isinstance(target, External):
            if self._usable(module, entry, target):
                dotted = self.collector.graph.library.absolute(module, entry.alias) or ""
                if dotted.partition(".")[0] == target.package.partition(".")[0]:
                    return self._kept_import(module, entry.alias, bound)
                return import_line(target.package, target.name, target.whole, bound)  # the corpus passes it on
            package = target.package.split(".")[0]
            self.absent.add(package)
            return f"{bound} = None; raise ModuleNotFoundError({f'No module named {package!r}'!r})"
        if isinstance(target, Missing):
            return f"{bound} = None; raise ImportError({target.where!r})"
        if isinstance(target, Module) or entry.stand_alone:
            return ""
        name = next((self.names.of[s] for s in self.names.of if isinstance(s, Own) and s == Own(*target)), target.name)
        return f"{bound} = {name}" if name != bound else f'{bound} = globals()["{bound}"]'


def import_line(package: str, name: str, whole: bool, bound: str) -> str:
    """An import statement in the form it had, binding `bound`."""
    if name:
        return f"from {package} import {name}" + (f" as {bound}" if bound != name else "")
    top = package.split(".")[0]
    if package == bound or (not whole and bound == top):
        return f"import {package}"
    if not whole and "." in package:  # the first part under another name, and the submodule loaded
        return f"import {top} as {bound}; import {package} as {bound}_{package.rpartition('.')[2]}"
    return f"import {package} as {bound}"


class Texts:
    """Normalised texts of files, read once."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], bytes] = {}

    def of(self, module: Module) -> bytes:
        """The bytes in which a module's offsets count."""
        key = (module.source.name, module.file.path)
        if key not in self._texts:
            self._texts[key] = normalise(module.source.read(module.file))
        return self._texts[key]
