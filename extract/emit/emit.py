"""One closed file per block: header, imports, names used only in annotations, then definitions before their use.

`Emitter.emit` is the whole way of a class: collect, resolve lookups, order, name, render.
"""

import hashlib
import json
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import TypeAdapter

from extract.emit.closure import (
    Closure,
    StatementGroup,
    collect,
    order_statements,
    resolve_lookups,
    try_to_collect,
)
from extract.emit.render import (
    BlockNames,
    Renderer,
    annotation_name,
    choose_names,
    describe_changes,
    describe_files,
    wrap,
)
from extract.resolve.dependencies import (
    DependencyGraph,
    ModuleValue,
    OptionalPackage,
    Reason,
    RegistrySymbol,
    Undefined,
)
from extract.resolve.discover import TargetClass
from extract.resolve.distributions import find_requirement, is_required, make_guess
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex, Definition
from extract.resolve.registrations import NodeKey, StatementNode
from extract.resolve.runtime_names import RUNTIME_NAMES
from extract.resolve.standins import NOT_DEFINED, NOT_INSTALLED, REGISTRY, SOURCE_NAME, replacement_source
from extract.sources import PackageSource
from lemur_core.files.foreign import comment_lines
from lemur_core.sandbox.cached import code_digest
from lemur_core.sandbox.server.received import inflate
from lemur_core.source.facts import AT_DEFINITION
from lemur_core.source.quality import drop_unevaluated, find_undefined_names
from lemur_core.source.text import Import, import_section, parse_code
from manifests.provenance.licenses import combine_licenses

_DELETION = re.compile(rb"del\b[\s(]*\w+(?:\s*,\s*\w+)*[\s,)]*")  # of names, not of items


@dataclass(frozen=True, slots=True)
class Emitted:
    """The file of a block."""

    code: str
    packages: Mapping[str, str]  # the requirement (PEP 508) of each imported package that is not in the runtime
    files: tuple[tuple[str, str], ...]  # (source, path) of every file that it was extracted from
    licenses: tuple[str, ...]  # of these files
    notices: tuple[tuple[str, ...], ...]  # the header lines about the copyrights of each
    license: str  # of the block's own file, and of others that state one themselves
    undefined: tuple[str, ...] = ()
    fault: str = ""  # why it does not compile
    dynamic: tuple[str, ...] = ()  # lookups at run time whose results cannot be known
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # (source, path) of each name that it defines
    changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # to the author's text, by kind

    @property
    def requires(self) -> tuple[str, ...]:
        """The requirements of the block."""
        return tuple(sorted(set(self.packages.values())))


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why a class cannot become a block: an expected outcome, not an exception."""

    reason: Reason
    detail: str


_OUTCOME: TypeAdapter[Emitted | Unresolved] = TypeAdapter(Emitted | Unresolved)
_MAX_BYTES = 256 * 2**20  # of one outcome, as JSON


class Emitter:
    """Emitter of the blocks of one library.

    Args: kept: all sources, in order, if outcomes are stored in the index, and recalled in later runs over the same.
    """

    def __init__(self, library: CorpusIndex, index: FactsIndex, kept: Sequence[PackageSource] | None = None) -> None:
        self.graph = DependencyGraph(library, index)
        self._index, self._kept = index, kept

    @cached_property
    def _key(self) -> str:
        """The key of everything that emitting depends on, including the order of sources but not their folders."""
        about = [
            [source.describe() for source in self._kept or ()],
            [(file.path, file.blob) for file in replacement_source().files],
            RUNTIME_NAMES.key(),
            sorted(self.graph.library.distributions.items()),
            code_digest("extract.emit.emit:Emitter"),
        ]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def emit(self, target: TargetClass, also: Sequence[Definition] = ()) -> Emitted | Unresolved:
        """Copy one class and everything that it needs into a self-contained module.

        Args: also: further definitions, such as the classes of its arguments; left out if one cannot be copied.
        """
        if self._kept is None:
            return self._emit(target, also)
        key = ":".join(["emitted", self._key, target.block, *(f"{d.module.name}.{d.name}" for d in also)])
        known = self._index.recall(key)
        if known is not None:
            with suppress(ValueError):  # damaged
                return _OUTCOME.validate_json(inflate(known, _MAX_BYTES))
        outcome = self._emit(target, also)
        self._index.remember(key, zlib.compress(_OUTCOME.dump_json(outcome), 1))
        return outcome

    def _emit(self, target: TargetClass, also: Sequence[Definition]) -> Emitted | Unresolved:
        closure, graph = Closure(target), self.graph
        collect(closure, graph, [target.root])
        if also and not closure.problems:
            closure.keys = [(item.name, item.module.source) for item in also]
            if try_to_collect(closure, graph, also):
                closure.keys = ()
        if not closure.problems:
            resolve_lookups(closure, graph)
        if closure.problems:
            first = next(iter(closure.problems))
            return Unresolved(first.reason, first.detail)
        order_statements(closure, graph)
        names = choose_names(closure, graph)
        renderer = Renderer(closure, graph, names)
        late = _list_late_imports(closure, graph)
        # A name that is deleted in the author's file is in no one's way here, and another order may still need it.
        groups = [group for group in closure.groups if not all(map(_is_deletion, group.nodes))]
        pieces = [(group, renderer.render(group).strip("\n")) for group in groups]
        body = _with_glue(pieces, closure, graph, names, late)
        body += _alias_lines(names, closure)
        changes = _list_changes(names, renderer)
        head = [*_header(closure, changes), *_future_lines(closure, graph, names)]
        # Packages that no statement needs on import are imported further down.
        at_once = (symbol for symbol in names.of if isinstance(symbol, Import) and symbol not in late)
        head += import_section(symbol._replace(bound=names.of[symbol]) for symbol in at_once)

        def write(annotations: Iterable[str]) -> str:
            lines = [f"{name} = object" for name in sorted(annotations)]
            placeholders = ["", "# Named by annotations only.", *lines] if lines else []
            return "\n".join([*head, *placeholders, "", "", "\n\n\n".join(body), ""])

        code, fault = write(names.annotations), ""
        undefined: tuple[str, ...] = ()
        try:
            undefined, annotated = _find_undefined(code)
            if annotated:  # by annotations whose import the author omitted: they get a placeholder, too
                code = write({*names.annotations, *annotated})
        except (SyntaxError, ValueError, RecursionError) as error:
            fault = str(error)
        return Emitted(
            code,
            # Sorted: the order of a set differs from run to run.
            packages={package: self._find_requirement(package, closure) for package in sorted(closure.requires)},
            files=tuple((m.source.name, m.file.path) for m in closure.modules),
            licenses=tuple(m.license for m in closure.modules),
            notices=tuple(m.notices for m in closure.modules),
            license=_license(closure),
            undefined=undefined,
            fault=fault,
            dynamic=tuple(sorted(closure.dynamic)),
            places={
                names.of.get(Definition(node.module, name), name): (node.module.source.name, node.module.file.path)
                for node in closure.nodes_in_order
                for name in (*node.statement.binds, *node.statement.late)
            },
            changes=changes,
        )

    def _find_requirement(self, package: str, closure: Closure) -> str:
        """Return the requirement of a package, as stated by the sources of a block's code."""
        sources = {module.source.name: module.source for module in closure.modules}
        stated = tuple(text for source in sources.values() for text in source.requires)
        library = self.graph.library
        if any(library.has_folder(source, package) for source in sources.values()):
            return make_guess(package)  # rather the project's own code than what an index has by that name
        return find_requirement(package, stated, library.distributions)


# -- parts of the file ------------------------------------------------------------------------------------------


def _find_undefined(code: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the undefined names: those that Python looks up, and those in annotations that are never evaluated.

    Compiles the file, so that syntax errors surface. Raises: SyntaxError.
    """
    tree = parse_code(code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about foreign code are not for our users
        compile(tree, "block.py", "exec", dont_inherit=True)
    names = find_undefined_names(tree)
    if names:
        drop_unevaluated(tree)
    needed = find_undefined_names(tree) if names else names
    return tuple(sorted(needed)), frozenset(names.keys() - needed.keys())


def _list_late_imports(closure: Closure, graph: DependencyGraph) -> set[Import]:
    """Return the packages outside the runtime that only functions need when called, and that no source requires."""
    imports: set[Import] = set()
    at_once: set[Import] = set()
    for node, link in ((node, link) for node, links in closure.linked for link in links.links):
        if isinstance(link.symbol, Import) and not graph.library.is_runtime(link.symbol.package):
            needed = link.use.when == AT_DEFINITION or is_required(node.module.source.requires, link.symbol.package)
            (at_once if needed else imports).add(link.symbol)
    return imports - at_once


def _is_deletion(node: StatementNode) -> bool:
    return _DELETION.fullmatch(node.module.text, node.statement.start, node.statement.end) is not None


def _with_glue(
    pieces: list[tuple[StatementGroup, str]],
    closure: Closure,
    graph: DependencyGraph,
    names: BlockNames,
    late: set[Import],
) -> list[str]:
    """Return the texts of the groups: our replacements first, then the objects created from them."""
    ours, theirs = [], []
    filled = _fillings(closure, names)
    for group, text in pieces:
        if group.module.source.name == SOURCE_NAME:
            ours.append(text)
        else:
            theirs += [text, *(filled[node.key] for node in group.nodes if node.key in filled)]
    absent, undefined, registry = (
        names.of.get(graph.ours(replacement), "") for replacement in (NOT_INSTALLED, NOT_DEFINED, REGISTRY)
    )
    lines = sorted({f'{names.of[s]} = {absent}("{s.package}")' for s in names.of if isinstance(s, OptionalPackage)})
    for symbol in sorted(late, key=lambda s: str(s._replace(bound=names.of[s]))):
        bound = names.of[symbol]
        lines.append(
            f'try:\n    {symbol._replace(bound=bound)}\nexcept ImportError:\n    {bound} = {absent}("{symbol.package}")'
        )
    lines += sorted(f'{names.of[s]} = {undefined}("{s.bound}")' for s in names.of if isinstance(s, Undefined))
    lines += sorted({f'{names.of[s]} = {registry}("{s.name}")' for s in names.of if isinstance(s, RegistrySymbol)})
    return [*ours, *(["\n".join(lines)] if lines else []), *theirs, *_list_namespaces(graph, names)]


def _fillings(closure: Closure, names: BlockNames) -> dict[NodeKey, str]:
    """Return the lines that fill the registries, by the last statement that defines what they register."""
    last: dict[Definition, NodeKey] = {}
    for node in closure.nodes_in_order:
        for name in node.statement.binds:
            definition = Definition(node.module, name)
            last[definition] = max(node.key, last.get(definition, node.key))
    by_statement: dict[NodeKey, set[str]] = {}
    for (where, key), entry in closure.entries.items():
        if isinstance(entry, Definition):
            line = f"{names.of[where]}.register_module({key.rpartition('.')[2]!r}, module={names.of[entry]})"
            by_statement.setdefault(last[entry], set()).add(line)
    return {key: "\n".join(sorted(lines)) for key, lines in by_statement.items()}


def _alias_lines(names: BlockNames, closure: Closure) -> list[str]:
    """Return aliases for the names that computed strings look up, if the file defines them under other names."""
    taken = set(names.of.values())
    aliases = ((name, names.of[symbol]) for symbol, name in closure.named.items())
    lines = [f"{name} = {original}" for name, original in aliases if name != original and name not in taken]
    return ["\n".join(sorted(lines))] if lines else []


def _license(closure: Closure) -> str:
    """Return the license of a block; the sources of its other parts, with their licenses, are listed separately."""
    first, *others = closure.modules
    return combine_licenses([first.license, *(m.license for m in others if m.license != m.source.license)])


def _header(closure: Closure, changes: Mapping[str, tuple[str, ...]]) -> list[str]:
    root = closure.root
    source = root.module.source
    first, last = root.lines
    lines = [
        f"{root.name}, from {source.name}",
        "",
        f"Block:   {root.block}",
        f"Origin:  {source.origin or source.name}",
        f"File:    {root.module.file.path}, lines {first}-{last}",
        f"SWHID:   swh:1:cnt:{root.module.file.blob}",
        f"Licence: {_license(closure)}",
    ]
    licenses = {(m.source.name, m.file.path): m.license for m in closure.modules}
    others = [(m.source.name, m.file.path) for m in closure.modules[1:]]
    lacks = [line for text in closure.dynamic if " lacks " in text for line in wrap(f"Note:    {text}.")]
    notices = dict.fromkeys(line for module in closure.modules for line in module.notices)
    return [*comment_lines(lines), *notices, *describe_files(others, licenses), *describe_changes(changes), *lacks, ""]


def _list_changes(names: BlockNames, renderer: Renderer) -> dict[str, tuple[str, ...]]:
    """Return what differs from the author's text, by kind."""
    definitions = ((s.name, new) for s, new in names.of.items() if isinstance(s, Definition | RegistrySymbol))
    return {
        "renamed": tuple(f"{old} -> {new}" for old, new in definitions if old != new),
        "left out the decorators": tuple(text.splitlines()[0] for text in dict.fromkeys(renderer.dropped)),
        "taken as not installed:": tuple(sorted(renderer.absent)),
        "not defined there either:": tuple(sorted(s.bound for s in names.of if isinstance(s, Undefined))),
    }


def _future_lines(closure: Closure, graph: DependencyGraph, names: BlockNames) -> list[str]:
    """Return `from __future__ import annotations` if a file had it or an annotation could not be evaluated here.

    That is one which refers to a name defined later or differently, or reads an attribute or item of an undefined
    name. The line is never added without need, because TorchScript and similar tools read annotations.
    """
    lines = ["from __future__ import annotations", ""]
    if any("annotations" in m.facts.future for m in closure.modules):
        return lines
    position = {node.key: number for number, group in enumerate(closure.groups) for node in group.nodes}
    defined: dict[str, int] = {}
    for node in closure.nodes_in_order:
        for bound in node.statement.binds:
            name = names.of.get(Definition(node.module, bound), bound)
            defined[name] = position[node.key]
    for node in closure.nodes_in_order:
        text = node.module.text
        for use, target in graph.links(node).notes:
            if use.start < 0:
                continue
            named = annotation_name(use.name, use.attributes, target, names.of)
            is_emitted = isinstance(target, Definition) and target in names.of
            if defined.get(named, position[node.key] if is_emitted else -1) >= position[node.key]:
                return lines
            reads = use.attributes or text[use.ends[-1] : use.ends[-1] + 1] == b"["
            if not is_emitted and reads and use.name in names.annotations:
                return lines
    return []


def _list_namespaces(graph: DependencyGraph, names: BlockNames) -> Iterator[str]:
    """Yield the objects for modules that functions use as values, at the end of the file: with their public names."""
    for symbol in sorted((s for s in names.of if isinstance(s, ModuleValue)), key=names.of.__getitem__):
        items = sorted(graph.items(symbol).items())
        lines = "".join(f"    {name}={names.of[item]},\n" for name, item in items)
        yield f"{names.of[symbol]} = {names.of[Import('types', '', False, 'types')]}.SimpleNamespace(\n{lines})"
