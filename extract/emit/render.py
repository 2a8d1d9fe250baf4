"""Text of a closure's statements: the author's bytes, with names, imports and decorators changed in place.

First, each symbol of a block's file gets a name, such that no two collide and no local variable hides one. Symbols
keep their original names if possible: the block's class always, then those used in its own file. Then the text is
edited by offset, which preserves every other byte; LibCST would give the same text at a much higher cost.
"""

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from extract.emit.closure import Closure, StatementGroup, shorten
from extract.resolve.dependencies import (
    DependencyGraph,
    OptionalPackage,
    StatementLinks,
    Symbol,
    Undefined,
    list_kept_blocks,
)
from extract.resolve.distributions import is_stated
from extract.resolve.modules import Definition, External, Missing, Module, Target
from lemur_core.files.markdown import plural
from lemur_core.source.facts import IMPORT, IN_ANNOTATION, Alias, LocalImport, Statement
from lemur_core.source.scopes import BUILTINS, fresh_name
from lemur_core.source.text import Edit, Import, apply, dedent

#: Without a message: inside an f-string, Python before 3.12 allows no quotes.
_NOT_RAISED = "ImportError()"


@dataclass
class BlockNames:
    """The names in a block's file."""

    of: dict[Symbol, str]
    annotations: list[str]  # undefined names that only annotations use


def natural_name(symbol: Symbol) -> str:
    """Return the name of a symbol at its origin."""
    return symbol.bound if isinstance(symbol, Import | OptionalPackage | Undefined) else symbol.name


def choose_names(closure: Closure, graph: DependencyGraph) -> BlockNames:
    """Choose a name for every symbol of a closure."""
    nodes = list(closure.nodes_in_order)
    links = [(node, link) for node, node_links in closure.linked for link in node_links.links]
    # The linked symbols, and all other names that the copied statements bind.
    symbols = dict.fromkeys(closure.symbols)
    hidden: dict[Symbol, set[str]] = {}  # the local names that would capture the name of a symbol where it is rewritten
    for node, link in links:
        if ".".join((link.use.name, *link.use.attributes[: link.consumed])) != natural_name(link.symbol):
            hidden.setdefault(link.symbol, set()).update(node.statement.shadows)
    taken_words = set(BUILTINS)
    for node in nodes:
        bound = [*(store.name for store in node.statement.stores), *(alias.bound for alias in node.statement.aliases)]
        symbols.update(dict.fromkeys(Definition(node.module, name) for name in bound))
        taken_words.update(node.statement.shadows, node.statement.binds, (use.name for use in node.statement.uses))
    pinned = {*(link.symbol for _, link in links if link.use.start < 0), *closure.named}
    several = len({id(node.module) for node in nodes}) > 1
    root = closure.root
    entered = {Definition(n.module, name) for n in nodes if n.decorators for name in n.statement.binds}  # by `__name__`
    first = pinned | entered
    # The block's class keeps its name in any case; pinned names are looked up by strings, so they come next.
    own_first = sorted(
        symbols,
        key=lambda s: (s != root.root, s not in first, isinstance(s, Definition) and s.module is not root.module),
    )
    names: dict[Symbol, str] = {}
    used: set[str] = set()
    shared: dict[
        tuple[str, str] | None, str
    ] = {}  # `import torch.nn as nn` and `from torch import nn` are the same import
    for symbol in own_first:
        wanted = natural_name(symbol)
        same = (symbol.thing, symbol.bound) if isinstance(symbol, Import) else None
        if same in shared:
            names[symbol] = shared[same]
            continue
        # The statements of another file may mean the built-in.
        shadows_builtin = wanted in BUILTINS and several and symbol not in pinned
        if wanted in used or wanted in hidden.get(symbol, ()) or shadows_builtin:
            names[symbol] = fresh_name(wanted, used | taken_words)
        else:
            names[symbol] = wanted
        used.add(names[symbol])
        if same is not None:
            shared[same] = names[symbol]
    imports = {same: name for same, name in shared.items() if same is not None}
    return BlockNames(names, _annotation_names(closure, graph, names, used, imports, taken_words))


def find_required(closure: Closure, symbols: Iterable[Symbol]) -> set[str]:
    """Return the packages that a file imports."""
    replaced = {symbol.package.partition(".")[0] for symbol in symbols if isinstance(symbol, OptionalPackage)}
    return {package for package in closure.requires if package.partition(".")[0] not in replaced}


def _annotation_names(
    closure: Closure,
    graph: DependencyGraph,
    names: dict[Symbol, str],
    used: set[str],
    imports: dict[tuple[str, str], str],
    taken_words: set[str],
) -> list[str]:
    """Return the names that annotations use: imports of the runtime are kept, classes of the corpus not copied.

    An import whose name means something else in this file gets another one.
    """
    unknown: dict[str, None] = {}
    required = find_required(closure, names)
    for node, links in closure.linked:
        for use, target in links.notes:
            imported = graph.note_import(node.module, use, target, required)
            for symbol in imported:
                same = symbol.thing, symbol.bound
                if same not in imports:
                    taken = symbol.bound in used
                    imports[same] = fresh_name(symbol.bound, used | taken_words) if taken else symbol.bound
                    used.add(imports[same])
                names.setdefault(symbol, imports[same])
            if not imported:
                unknown[annotation_name(use.name, use.attributes, target, names)] = None
    return [name for name in unknown if name not in used and name not in BUILTINS]


def annotation_name(name: str, attributes: tuple[str, ...], target: object, names: Mapping[Symbol, str]) -> str:
    """Return the name of a corpus class in an annotation: its name in this file if defined here, else its bare name."""
    if isinstance(target, Definition):
        if target in names:
            return names[target]
        return target.name if attributes and name != target.name else name
    return name


# -- text -----------------------------------------------------------------------------------------------------------


class Renderer:
    """Renderer of the groups of one closure."""

    def __init__(self, closure: Closure, graph: DependencyGraph, names: BlockNames) -> None:
        self.graph = graph
        self.names = names
        self.dropped: list[str] = []  # decorators that were left out
        self.absent: set[str] = set()  # optional packages whose imports were replaced by errors
        self._required = find_required(closure, names.of)
        self._nodes = {(node.module, node.statement.number): node for node in closure.nodes.values()}

    def render(self, group: StatementGroup) -> str:
        """Return the text of one group, at the left margin."""
        wanted = {node.statement.number for node in group.nodes}
        if group.block >= 0:
            return dedent(self._block(group.module, group.block, wanted), len(_indent(group.module, group.start)))
        node = group.nodes[0]
        return dedent(self._statement(group.module, node.statement), node.statement.column)

    # -- blocks --------------------------------------------------------------------------------------------------

    def _block(self, module: Module, number: int, wanted: set[int]) -> str:
        """Return an `if` or `try` with the wanted statements; an empty suite becomes `pass`, an empty `else` is cut."""
        block = module.facts.blocks[number]
        text = module.text
        pieces: list[str] = []
        at = block.start
        edits = self._link_edits(self.graph.block_links(module, number))
        for index, (role, start, end) in enumerate(block.suites):
            if start == end:
                continue
            body = self._suite(module, (*block.path, (number, index)), wanted)
            # An empty branch is dropped; the body and handlers of a `try` must stay for the syntax.
            if role in {"else", "finally"} and not body:
                at = end
                continue
            head = apply(text, at, start, [e for e in edits if at <= e.start < start])
            pieces += [head, body or f"{_indent(module, start)}pass\n"]
            at = end
        return "".join(pieces)

    def _suite(self, module: Module, path: tuple[tuple[int, int], ...], wanted: set[int]) -> str:
        """Return the wanted statements of one suite, in order, including nested blocks."""
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
            column = len(_indent(module, block.start))
            for number, (_, start, _) in enumerate(block.suites):  # decided statically: only the taken branch
                body = self._suite(module, (*path, (inner, number)), wanted)
                if body:
                    pieces.append((start, dedent(body, len(_indent(module, start)) - column)))
        return "".join(text for _, text in sorted(pieces))

    # -- statements ----------------------------------------------------------------------------------------------

    def _statement(self, module: Module, statement: Statement) -> str:
        text = module.text
        node = self._nodes[module, statement.number]
        links = self.graph.links(node)
        if statement.kind == IMPORT:
            return self._import(module, statement, links)
        edits = [
            *self._link_edits(links, statement),
            *self._note_edits(module, links),
            *self._local_edits(module, statement, links),
            *self._error_edits(module, statement, links),
        ]
        for store in statement.stores:
            name = self.names.of.get(Definition(module, store.name), store.name)
            if name != store.name:
                edits.append(Edit(store.start, store.end, name))
        for decorator in links.dropped:
            edits.append(Edit(decorator.start, decorator.end, ""))
            self.dropped.append(text[decorator.start : decorator.end].decode().strip())
        for decorator, package in links.absent:  # what it compiles fails when it is called, not on import
            indent = text[decorator.start : decorator.start + decorator.column].decode()
            edits.append(Edit(decorator.start, decorator.end, f"{indent}@lambda _: {self.names.of[package]}\n"))
        return apply(text, statement.start, statement.end, edits)

    def _link_edits(self, links: StatementLinks, statement: Statement | None = None) -> list[Edit]:
        edits = []
        for link in links.links:
            use, name = link.use, self.names.of[link.symbol]
            if use.start < 0:
                continue
            local = statement.locals[use.local] if use.local >= 0 and statement is not None else None
            if local is not None and not link.consumed and not local.stand_alone:
                continue  # an assignment replaces the import and binds it
            if isinstance(link.symbol, Undefined):
                edits.append(Edit(use.start, use.ends[0], f"{name}()"))  # fails at once, as the read does there
            elif link.consumed or name != use.name:
                edits.append(Edit(use.start, use.ends[link.consumed], name))
        return edits

    def _note_edits(self, module: Module, links: StatementLinks) -> list[Edit]:
        edits = []
        for use, target in links.notes:
            imports = self.graph.note_import(module, use, target, self._required)
            imported = [item for item in imports if item.bound == use.name]
            if imported and use.start >= 0 and self.names.of.get(imported[0], use.name) != use.name:
                edits.append(Edit(use.start, use.ends[0], self.names.of[imported[0]]))
            if use.start < 0 or not isinstance(target, Definition):
                continue
            name = annotation_name(use.name, use.attributes, target, self.names.of)
            # The attributes that belong to the dotted name of the class.
            dotted = use.name != target.name and target.name in use.attributes
            depth = use.attributes.index(target.name) + 1 if dotted else 0
            if name != use.name or depth:
                edits.append(Edit(use.start, use.ends[depth], name))
        return edits

    def _error_edits(self, module: Module, statement: Statement, links: StatementLinks) -> list[Edit]:
        """Edit a statically decided `except ImportError as error`: create the error where it is read."""
        kept = set(list_kept_blocks(module, statement))
        bound_in_kept = {name for number in kept for name in module.facts.blocks[number].errors}
        read = [use for use in links.errors if use.name not in bound_in_kept]
        # Where the place of a read is unknown, as in a long f-string before Python 3.12, the name is bound above.
        unplaced = sorted({use.name for use in read if use.start < 0})
        above = "".join(f"{' ' * statement.column}{name} = {_NOT_RAISED}\n" for name in unplaced)
        return [
            *([Edit(statement.start, statement.start, above)] if above else []),
            *(Edit(use.start, use.ends[0], _NOT_RAISED) for use in read if use.start >= 0),
        ]

    # -- imports -------------------------------------------------------------------------------------------------

    def _import(self, module: Module, statement: Statement, links: StatementLinks) -> str:
        """Return an import inside a kept `if` or `try`, with one line per name."""
        text = ""
        for alias, symbol in zip(statement.aliases, links.alias_links, strict=True):
            bound = self.names.of.get(Definition(module, alias.bound), alias.bound)
            line = self._keep_import(module, alias, bound) if symbol is None else f"{bound} = {self.names.of[symbol]}"
            text += f"{' ' * statement.column}{line}\n"
        return text

    def _keep_import(self, module: Module, alias: Alias, bound: str) -> str:
        dotted = self.graph.library.absolute_name(module, alias)
        assert dotted is not None
        return str(Import(dotted, alias.name, alias.whole or bound != dotted.split(".")[0], bound))

    def _local_edits(self, module: Module, statement: Statement, links: StatementLinks) -> list[Edit]:
        """Edit imports in functions: keep those of the runtime, drop those of the corpus, make optional ones fail."""
        grouped: dict[tuple[int, int], list[tuple[LocalImport, Target, bool]]] = {}
        checked = _only_checked(statement)
        for number, (entry, target) in enumerate(zip(statement.locals, links.local_targets, strict=True)):
            grouped.setdefault((entry.start, entry.end), []).append((entry, target, number in checked))
        edits = []
        for (start, end), entries in sorted(grouped.items()):
            if all(self._is_kept(module, entry, target) for entry, target, _ in entries):
                continue
            lines = [line for each in entries if (line := self._local_line(module, *each))]
            lead = module.text[module.text.rfind(b"\n", 0, start) + 1 : start]
            # Behind other code, as in `if x: import y`, the replacement must stay on the same line.
            separator = "; " if lead.strip() else "\n" + lead.decode()
            # The import may be the only statement of its suite.
            replacement = separator.join(lines) or "pass"
            edits.append(Edit(start, end, replacement))
        return edits

    def _is_kept(self, module: Module, entry: LocalImport, target: Target) -> bool:
        """Return whether the statement can be kept as it is: it names the package that really defines the import."""
        if not isinstance(target, External) or entry.alias.level or not self._is_usable(module, entry, target):
            return False
        return entry.alias.module.partition(".")[0] == target.package.partition(".")[0]

    def _is_usable(self, module: Module, entry: LocalImport, target: External) -> bool:
        if target.runtime:
            return True
        return not entry.guarded and is_stated(target.package, module.source.requires)

    def _local_line(self, module: Module, entry: LocalImport, target: Target, checked: bool) -> str:
        bound = entry.alias.bound
        if entry.is_global:
            bound = self.names.of.get(Definition(module, bound), bound)
        if isinstance(target, External):
            if self._is_usable(module, entry, target):
                dotted = self.graph.library.absolute_name(module, entry.alias) or ""
                if dotted.partition(".")[0] == target.package.partition(".")[0]:
                    return self._keep_import(module, entry.alias, bound)
                return str(Import(target.package, target.name, target.whole, bound))  # the corpus re-exports it
            package = target.package.split(".")[0]
            self.absent.add(package)
            if checked and not entry.guarded:  # a class without instances
                return f"{bound} = type({bound!r}, (), {{}})"
            return f"{bound} = None; raise ModuleNotFoundError({f'No module named {package!r}'!r})"
        if isinstance(target, Missing):
            return f"{bound} = None; raise ImportError({target.where!r})"
        if isinstance(target, Module) or entry.stand_alone:
            return ""
        name = self.names.of.get(target, target.name)
        return f"{bound} = {name}" if name != bound else f'{bound} = globals()["{bound}"]'


def _indent(module: Module, start: int) -> str:
    """Return the white space at the beginning of a line."""
    line = module.text[start : module.text.find(b"\n", start)]
    return line[: len(line) - len(line.lstrip())].decode()


def _only_checked(statement: Statement) -> set[int]:
    """Return the function-level imports of a statement whose names only `isinstance` and annotations read."""
    reads: dict[int, bool] = {}
    for use in statement.uses:
        if use.local >= 0 and use.when != IN_ANNOTATION:
            reads[use.local] = reads.get(use.local, True) and use.checked
    return {number for number, checked in reads.items() if checked}


# --- comment lines at the top of a file -------------------------------------------------------------------------------


_WIDTH = 118
_LISTED = 24  # names of each kind of change

License = str
SourceFile = tuple[str, str]  # source and path


def describe_files(files: Iterable[SourceFile], licenses: Mapping[SourceFile, License]) -> list[str]:
    """Return the lines about the further files of a block.

    Args:
        files: source and path of each, without the block's own file.
        licenses: the license of each.

    Returns: how many files of which source are under which license; nothing if there are none.
    """
    numbers = Counter((source, licenses[source, path]) for source, path in files)
    parts = [f"{plural(number, 'file')} of {source} ({license_})" for (source, license_), number in numbers.items()]
    return wrap(f"With:    definitions from {', '.join(parts)}; see required_repos.json") if parts else []


def describe_changes(changes: Mapping[str, Collection[str]]) -> list[str]:
    """Return the lines about the changes to the author's text.

    Args: changes: by kind, such as "renamed", what was changed.
    """
    parts = [f"{kind} {shorten(texts, _LISTED)}" for kind, texts in changes.items() if texts]
    return wrap("; ".join(["Changed: imports resolved and definitions brought together", *parts]) + ".")


def wrap(text: str) -> list[str]:
    """Return text as comment lines."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
    )
