"""Modules of a corpus, and what a name refers to in each: imports, re-exports, star imports, lazy packages.

Example: what are `Norm`, `nn` and `fused` in net.py?

    # lib/net.py                        # lib/layers/__init__.py          # lib/layers/norm.py
    from torch import nn                from .norm import *               __all__ = ["Norm"]
    from .layers import Norm, fused     try: import fused                 class Norm(nn.Module): ...
                                        except ImportError: fused = None

`lookup(net, "Norm")` follows the import to `lib.layers`, where no statement binds the name, then the star import, and
returns `Definition(lib.layers.norm, "Norm")`: a block copies from the file that defines a name, however many imports
lead there. `nn` is `External("torch", "nn")`, an import that remains. `fused` is the `None` of the handler,
`Definition(lib.layers, "fused")`: the package is outside of the declared runtime, and other packages that a machine
happens to have must not change a block. A name that nothing binds is `Missing`, with the lookup that failed.

Relative imports and packages are resolved only here.
Source of the rules: https://docs.python.org/3/reference/import.html
"""

import ast
import functools
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Literal, NamedTuple

from packaging.utils import canonicalize_name

from extract.resolve.distributions import is_known, is_required, is_stated, parse_requirements
from extract.resolve.runtime_names import RUNTIME_NAMES
from extract.sources import PackageSource, SourceFile
from extract.sources.contents import is_package, module_name
from lemur_core.sandbox.runtime import DECLARED
from lemur_core.source.changes import DynamicLookup, search_at
from lemur_core.source.facts import IMPORT, STAR, Alias, FileFacts, Statement
from lemur_core.source.parse import parse_known
from lemur_core.source.text import Lines
from manifests.provenance.licenses import license_of_code, notice_lines

RUNTIME = DECLARED  # what every block may import, in addition to the standard library
EXTENSIONS = ("_C", "_ext")  # usual names of compiled extensions inside their package
_EXTENSION = re.compile(r"_C[A-Z]*|(?:\w*_)?(?:cuda|ext|cpp)")  # `roi_cuda`, which a build adds to the Python files
FOUNDATION = "torch"  # never inlined, not even into torch's own blocks: a copy of nn.Module is not nn.Module


Branch = Literal["taken", "types", "failed"]


class Module:
    """A file of a source, with its facts and the branches that are taken when it is imported."""

    def __init__(self, library: "CorpusIndex", source: PackageSource, file: SourceFile) -> None:
        self.library = library
        self.source = source
        self.file = file
        self.name = file.module
        self._binders: dict[str, dict[str, list[Statement]]] = {}
        self._active: dict[tuple[int, int], bool] = {}

    @functools.cached_property
    def facts(self) -> FileFacts:
        """The facts of the file's statements."""
        return self.library.load(self.source, self.file)

    @functools.cached_property
    def text(self) -> bytes:
        """The normalized bytes that the offsets in the facts refer to; empty if the file is no text."""
        return self.source.read_text(self.file)

    @functools.cached_property
    def lookups(self) -> dict[int, DynamicLookup]:
        """The lookups of code by strings, by their offsets."""
        tree, text, _ = parse_known(self.text)
        lines = Lines(text)
        lookups = (search_at(node) for node in ast.walk(tree))
        return {lines.span(lookup.node)[0]: lookup for lookup in lookups if lookup is not None}

    @functools.cached_property
    def license(self) -> str:
        """SPDX expression of the file, from its head and the license of its source."""
        text, license_ = self.text.decode("utf-8", "replace"), self.source.license
        return license_of_code(text, license_, in_source=True) or license_

    @functools.cached_property
    def notices(self) -> tuple[str, ...]:
        """The lines of a header about the copyrights in the head of the file."""
        return notice_lines(self.text.decode("utf-8", "replace"))

    @property
    def package(self) -> str:
        """Package that relative imports start from."""
        return self.name if self.file.is_package else self.name.rpartition(".")[0]

    def find_binders(self, name: str, where: Branch = "taken") -> Sequence[Statement]:
        """Return the statements that bind a name.

        Args: where: in taken branches, only for type checkers (TYPE_CHECKING), or in a `try` whose imports fail in the
            declared runtime.
        """
        return self._bindings()[where].get(name, ())

    def find_aliases(self, name: str, where: Branch = "taken") -> list[Alias]:
        """Return the names of import statements that bind a name, in the order of the file; `where` as above."""
        return [a for s in self.find_binders(name, where) for a in s.aliases if a.bound == name]

    @functools.cached_property
    def changes(self) -> Mapping[str, Sequence[Statement]]:
        """By name, the statements in taken branches that change the object of a name without binding the name."""
        changes: dict[str, list[Statement]] = {}
        for statement in self.facts.statements:
            if statement.touches and self.is_taken(statement):
                for name in set(statement.touches) - set(statement.binds):
                    changes.setdefault(name, []).append(statement)
        return changes

    def list_bound(self) -> Iterable[str]:
        """Return all names that are bound in taken branches."""
        return self._bindings()["taken"]

    def list_stars(self, *, types: bool = False) -> Iterable[Statement]:
        """Yield the star imports, the last one first; with `types`, also those under TYPE_CHECKING."""
        for statement in reversed(self.facts.statements):
            if statement.kind == STAR and (types or self.is_taken(statement)):
                yield statement

    def _bindings(self) -> dict[str, dict[str, list[Statement]]]:
        """Return the statements of each kind (`find_binders`) by the names that they bind."""
        if self._binders:
            return self._binders
        facts = self.facts
        late: dict[str, list[Statement]] = {}
        # Already set while it is filled: choosing a branch may look up other names here.
        self._binders = {"taken": {}, "types": {}, "failed": {}}

        def is_tried(statement: Statement) -> bool:
            return any(facts.blocks[block].static == "imports" for block, _ in statement.path)

        for statement in sorted(facts.statements, key=is_tried):  # the imports in a `try` last
            where = "taken" if self.is_taken(statement) else "failed" if is_tried(statement) else "types"
            for name in statement.binds:
                self._binders[where].setdefault(name, []).append(statement)
            for name in statement.late:
                late.setdefault(name, []).append(statement)
        for table in self._binders.values():
            for statements in table.values():
                statements.sort(key=lambda s: s.number)
        for name, statements in late.items():
            self._binders["taken"].setdefault(name, statements)
        return self._binders

    def is_taken(self, statement: Statement) -> bool:
        """Return whether a statement is outside of all branches that are known not to be taken."""
        return all(self.is_suite_taken(block, suite) for block, suite in statement.path)

    def is_suite_taken(self, number: int, suite: int) -> bool:
        """Return whether a suite can run: not under TYPE_CHECKING or `__main__`, nor for the other import outcome."""
        key = (number, suite)
        if key not in self._active:
            block = self.facts.blocks[number]
            role = block.suites[suite][0]
            if block.static == "imports":
                self._active[key] = role == "finally" or (role in {"body", "else"}) == self.imports_work(number)
            else:
                self._active[key] = not block.static or (role == "body") == (block.static == "always")
        return self._active[key]

    def imports_work(self, number: int) -> bool:
        """Return whether all imports in the body of a `try … except ImportError` succeed in the declared runtime."""
        tried, handled, above, compiles = self._read_fallback(number)
        handlers_raise = not (handled & (tried | above) or tried & above)
        imports = [s for s in self.facts.statements if (number, 0) in s.path and s.kind in {IMPORT, STAR}]
        for alias in (alias for statement in imports for alias in statement.aliases):
            target = self.library.resolve_alias(self, alias)
            if isinstance(target, External):
                provided = target.runtime and RUNTIME_NAMES.has(target.package, target.name)
                fails = not provided and not is_required(self.library.extras, target.package)
            else:
                # An extension is taken to be there if handlers compile it, or bind only other names, to what raises:
                # its operators have replacements, or the block fails with their names.
                there = alias.bound in EXTENSIONS and (compiles or tried.isdisjoint(handled | above))
                fails = isinstance(target, Missing) and not there
            if fails:  # without a fallback the import is required, and its failure is reported
                return handlers_raise or self._falls_back_to(number, target)
        return True

    def _falls_back_to(self, number: int, tried: "Target") -> bool:
        """Return whether the handlers import from the package that failed, too, which the source requires.

        Which of its names that package has, its version says: the newest one is installed, which is tried first.
        """
        if not isinstance(tried, External) or not is_required(self.source.requires, tried.package):
            return False
        arms: tuple[list[Statement], list[Statement]] = [], []
        for statement in self.facts.statements:
            arms[any(b == number and suite for b, suite in statement.path)].append(statement)
        aliases = [alias for s in arms[True] if s.kind == IMPORT for alias in s.aliases]
        names = {name for s in arms[False] if (number, 0) in s.path for name in s.binds}
        targets = [self.library.resolve_alias(self, alias) for alias in aliases]
        tops = {target.package.split(".")[0] for target in targets if isinstance(target, External)}
        return tops == {tried.package.split(".")[0]} and names <= {alias.bound for alias in aliases}

    def _read_fallback(self, number: int) -> tuple[set[str], set[str], set[str], bool]:
        """Return the names that body, handlers and the code above bind, and whether handlers compile an extension."""
        aliases = [alias for statement in self.facts.statements for alias in statement.aliases]
        compilers = {"cpp_extension", *(a.bound for a in aliases if "cpp_extension" in f"{a.module}.{a.name}")}
        block = self.facts.blocks[number]
        tried: set[str] = set()
        handled: set[str] = set()
        above: set[str] = set()
        compiles = False
        for statement in self.facts.statements:
            role = next((block.suites[suite][0] for at, suite in statement.path if at == number), "")
            if role:
                (handled if role == "handler" else tried).update(statement.binds)
            elif statement.start < block.start:
                above.update(statement.binds)
            if role == "handler":
                compiles |= any(not compilers.isdisjoint((use.name, *use.attributes)) for use in statement.uses)
        return tried, handled, above, compiles


class Definition(NamedTuple):
    """A name bound by statements of a module; a block that needs it gets a copy of their text."""

    module: Module
    name: str


class External(NamedTuple):
    """An import from outside the corpus."""

    package: str  # dotted module
    name: str  # "" for the module itself
    whole: bool  # for a module: bound as a whole (`import a.b as c`), not by its first part
    runtime: bool  # in the standard library or the declared runtime
    optional: bool = False  # its import is inside a `try`, and failed

    @property
    def binding_module(self) -> str:
        """The module that the name is bound to, or that defines it: `import a.b` binds a."""
        return self.package if self.whole or self.name else self.package.split(".")[0]


class Missing(NamedTuple):
    """An unknown name; `where` describes the failed lookup."""

    where: str


_WRITES_NAMES = re.compile(rb"\b(globals|exec)\(|setattr\(sys\.modules")  # may bind names that no statement shows

Target = Definition | External | Module | Missing


@dataclass
class CorpusIndex:
    """The sources of a corpus and their modules, by name."""

    sources: Sequence[PackageSource]
    load: Callable[[PackageSource, SourceFile], FileFacts]
    runtime: frozenset[str] = frozenset(RUNTIME)
    distributions: Mapping[str, str] = field(default_factory=dict)  # by imported package, as the user states them
    extras: tuple[str, ...] = ()  # requirements of extras that are taken as installed
    modules: dict[tuple[str, str], Module] = field(default_factory=dict)  # (source, dotted name)
    by_path: dict[tuple[str, str], Module] = field(default_factory=dict)
    _tops: dict[str, list[PackageSource]] = field(default_factory=dict)
    _suffixes: dict[tuple[str, str], Module | None] = field(default_factory=dict)
    _own_tops: dict[str, frozenset[str]] = field(default_factory=dict)
    _own: dict[str, frozenset[str]] = field(default_factory=dict)  # packages; of shared namespaces, their parts
    _in_folders: dict[str, "FolderNames"] = field(default_factory=dict)
    _memo: dict[tuple[int, str], "Target"] = field(default_factory=dict)
    _looking: set[tuple[int, str]] = field(default_factory=set)
    _provisional: dict[tuple[int, str], Missing] = field(default_factory=dict)
    _exports: dict[int, tuple[Collection[str], bool]] = field(default_factory=dict)
    _cut: bool = False

    def __post_init__(self) -> None:
        for source in self.sources:
            tops = set()
            for file in source.files:
                module = Module(self, source, file)
                self.by_path[source.name, file.path] = module
                if file.module:
                    self.modules.setdefault((source.name, file.module), module)
                    tops.add(file.module.split(".")[0])
                    # None marks a last name that several files share.
                    last = file.module.rpartition(".")[2]
                    key = (source.name, last)
                    self._suffixes[key] = None if key in self._suffixes else module
            self._own_tops[source.name], self._own[source.name] = frozenset(tops), list_packages(source)
            if source.kind != "package":  # a release is imported from where it is installed
                self._in_folders[source.name] = FolderNames(self.by_path[source.name, f.path] for f in source.files)
            for top in sorted(tops):
                if _is_visible(source, top, tops):
                    self._tops.setdefault(top, []).append(source)

    def adopt(self, source: PackageSource, file: SourceFile, facts: FileFacts) -> Module:
        """Add a file whose facts are already available; it can be looked up only by its path."""
        module = Module(self, source, file)
        module.facts = facts
        self._own_tops.setdefault(source.name, frozenset())
        self._own.setdefault(source.name, frozenset())
        return self.by_path.setdefault((source.name, file.path), module)

    # -- modules -------------------------------------------------------------------------------------------------

    def absolute_name(self, module: Module, alias: Alias) -> str | None:
        """Return the absolute dotted name of an import's module; None if a relative import leaves its package."""
        if not alias.level:
            return alias.module
        parts = module.package.split(".") if module.package else []
        levels_up = alias.level - 1
        if levels_up > len(parts):
            return None
        base = parts[: len(parts) - levels_up]
        return ".".join([*base, *([alias.module] if alias.module else [])])

    def find_module(self, importer: Module, dotted: str, *, relative: bool = False) -> Module | None:
        """Return the module of that name: from the importer's source, another with that top package, or a folder.

        A project may put any folder on `sys.path`, as Python does with that of a script. Packages that its metadata
        requires are not looked up in such folders: Python, too, prefers an installed package to a folder without
        `__init__.py`.

        Args: relative: the name is that of a relative import, which leads to no other folder.
        """
        source, top = importer.source, dotted.split(".")[0]
        if top == FOUNDATION:
            return None
        own = self.modules.get((source.name, dotted))
        installed = self.is_runtime(top) or is_stated(top, source.requires) or (dotted == top and is_known(top))
        folders = None if relative or installed else self._in_folders.get(source.name)
        # If the build settings say where a file is imported from, its folder is on no `sys.path`.
        stated = any(importer.file.path.startswith(f"{folder}/") for folder, _ in source.roots if folder)
        above = folders.find_nearest(importer, dotted, packages=False) if folders is not None and not stated else None
        if own is not None or above is not None:
            return above or own
        if top in self.runtime:
            return None
        for other in self._tops.get(top, ()):
            module = self.modules.get((other.name, dotted))
            if module is not None:
                return module
        return folders.find(importer, dotted) if folders is not None else None

    def has_folder(self, source: PackageSource, top: str) -> bool:
        """Return whether a source has a folder or file of this name and requires no package of the same name."""
        folders = self._in_folders.get(source.name)
        return folders is not None and top in folders.tops and not is_stated(top, source.requires)

    def list_packages(self, source: PackageSource) -> tuple[str, ...]:
        """Return the packages of a source's own code, without torch, which every block needs."""
        return tuple(sorted(self._own[source.name] - {FOUNDATION} - sys.stdlib_module_names))

    def _is_shared(self, source: PackageSource, top: str) -> bool:
        """Return whether a source has a part of the namespace of this name, and requires others."""
        return top in self._own_tops[source.name] and top not in self._own[source.name]

    @functools.cached_property
    def _namespaces(self) -> Mapping[tuple[str, str], Module]:
        """The folders without `__init__.py`, as the empty modules that Python makes of them, by source and name."""
        parents = {(s, name[: m.start()]) for s, name in self.modules for m in re.finditer(r"\.", name)}
        spaces = {}
        by_name = {source.name: source for source in self.sources}
        for source, name in parents - self.modules.keys():
            spaces[source, name] = module = Module(self, by_name[source], SourceFile(name, name, True, ""))
            module.facts, module.text = FileFacts((), (), (), None, ()), b""
        return spaces

    def import_name(self, source: PackageSource, package: str) -> str:
        """Return the name of the distribution's package that an imported module is in: its first part, or two."""
        parts = package.split(".")
        return ".".join(parts[: 1 + self._is_shared(source, parts[0])])

    def knows(self, importer: Module, dotted: str) -> bool:
        """Return whether the first part of a dotted name belongs to the corpus, as seen from a file."""
        source, top = importer.source, dotted.split(".")[0]
        if top == FOUNDATION:
            return False
        if top in self._own_tops[source.name] and top not in sys.stdlib_module_names:
            return self.import_name(source, dotted) in {top, *self._own[source.name]}
        if top in self.runtime or top in sys.stdlib_module_names:
            return False
        # A file of that name imports the package that it wraps, not itself.
        wraps = importer.name.rpartition(".")[2] == top
        return top in self._tops or (self.has_folder(source, top) and not is_known(top) and not wraps)

    def is_runtime(self, dotted: str) -> bool:
        """Return whether a module is in the standard library or in the declared runtime."""
        top = dotted.split(".")[0]
        return top in sys.stdlib_module_names or top in self.runtime

    # -- names ---------------------------------------------------------------------------------------------------

    def resolve_alias(self, module: Module, alias: Alias) -> Target:
        """Return the target of a name in an import statement."""
        dotted = self.absolute_name(module, alias)
        if dotted is None or (not dotted and not alias.name):
            return Missing(f"relative import leaves {module.package or module.file.path}")
        find = partial(self.find_module, module, relative=bool(alias.level))
        if not alias.name:
            imported = find(dotted)
            if imported is not None:
                top = dotted.split(".")[0]
                first = find(top) or self._namespaces.get((imported.source.name, top))
                return imported if alias.whole or first is None else first
            if self.knows(module, dotted):
                return Missing(f"no module {dotted}")
            return External(dotted, "", alias.whole, self.is_runtime(dotted))
        holder = find(dotted)
        # The corpus has the package but no such file: its layout may change on installation.
        if holder is None and self.knows(module, dotted):
            holder = self._find_moved(module.source, dotted)
        if holder is None:
            submodule = find(f"{dotted}.{alias.name}" if dotted else alias.name)
            if submodule is not None:  # a folder without __init__.py
                return submodule
            if self._is_shared(module.source, dotted):
                return self.resolve_alias(module, Alias(f"{dotted}.{alias.name}", 0, "", alias.bound, True))
            if self.knows(module, dotted) or (alias.level and dotted.split(".")[0] != FOUNDATION):
                return Missing(f"no module {dotted}")
            return External(dotted, alias.name, False, self.is_runtime(dotted))
        if alias.name == "*":
            return holder
        if holder is module:  # `from . import x` in the package's own __init__
            submodule = find(f"{dotted}.{alias.name}")
            return submodule if submodule is not None else Missing(f"no {alias.name} in {dotted}")
        return self.lookup(holder, alias.name)

    def follow(
        self, module: Module, chain: Sequence[str], start: Target | None = None
    ) -> tuple[Target, tuple[str, ...]]:
        """Return the target of a dotted name, followed through modules, and the remaining attributes.

        Args: start: the target of its first part, where that is known.
        """
        target, rest = start or self.lookup(module, chain[0]), tuple(chain[1:])
        while rest and isinstance(target, Module):
            target, rest = self.lookup(target, rest[0]), rest[1:]
        return target, rest

    def lookup(self, module: Module, name: str) -> Target:
        """Return the target of a global name of a module, through re-exports, star imports and lazy packages."""
        key = (id(module), name)
        if key in self._memo:
            return self._memo[key]
        if key in self._looking:  # a circular import: the outer lookup tries other ways
            self._cut = True
            return Missing(f"circular import of {name} in {module.file.path}")
        if key in self._provisional:
            return self._provisional[key]
        self._looking.add(key)
        target = self._lookup(module, name)
        self._looking.discard(key)
        # Within a cycle a failure is not final: it may be due to the lookup that was cut short.
        if self._cut and self._looking and isinstance(target, Missing):
            self._provisional[key] = target  # a lookup that starts here might succeed
            return target
        if not self._looking:
            self._cut = False
            self._provisional.clear()
        self._memo[key] = target
        return target

    def _lookup(self, module: Module, name: str) -> Target:
        binders = module.find_binders(name)
        if binders:
            return self.resolve_binding(module, name, binders)
        for statement in module.list_stars():
            target = self._through_star(module, statement, name)
            if target is not None:
                return target
        dotted = f"{module.name}.{name}"
        submodule = self.find_module(module, dotted, relative=True) if module.file.is_package else None
        submodule = submodule or (self._namespaces.get((module.source.name, dotted)) if not module.file.blob else None)
        if submodule is not None:
            return submodule
        for alias in module.find_aliases(name, "failed")[-1:]:
            tried = self.resolve_alias(module, alias)
            dotted_parts = filter(None, (alias.module, alias.name if alias.name in EXTENSIONS else ""))
            package = tried.package if isinstance(tried, External) else ".".join(dotted_parts) or name
            return External(package, alias.name, True, False, optional=True)
        # A lazy package (PEP 562) lists its contents under TYPE_CHECKING for the type checker.
        for alias in reversed(module.find_aliases(name, "types")):
            target = self.resolve_alias(module, alias)
            if not isinstance(target, Missing):
                return target
        for statement in module.list_stars(types=True):
            target = self._through_star(module, statement, name)
            if target is not None:
                return target
        return Missing(f"no {name} in {module.name or module.file.path}")

    def lacks(self, module: Module, name: str) -> bool:
        """Return whether nothing can bind a global name: no statement that runs, no function, no opaque star import."""
        if any(name in (*s.binds, *s.late, *s.touches) and module.is_taken(s) for s in module.facts.statements):
            return False
        if _WRITES_NAMES.search(module.text):
            return False
        holders = [self.resolve_alias(module, statement.aliases[0]) for statement in module.list_stars()]
        known = all(isinstance(h, Module) or (isinstance(h, External) and h.runtime) for h in holders)
        return known and isinstance(self.lookup(module, name), Missing)

    def resolve_binding(self, module: Module, name: str, binders: Sequence[Statement]) -> Target:
        """Return the target of a name: what it is imported from if only imports bind it, else its definition here."""
        if any(statement.kind != IMPORT for statement in binders):
            return Definition(module, name)
        aliases = [next(a for a in reversed(statement.aliases) if a.bound == name) for statement in binders]
        targets = [self.resolve_alias(module, alias) for alias in aliases]
        known = [t for t in targets if not isinstance(t, Missing)]
        packages = {isinstance(t, External) and not t.runtime and t.package.partition(".")[0] for t in targets}
        undecided = [any(not module.facts.blocks[block].static for block, _ in s.path) for s in binders]
        if len(set(targets)) > 1 and len(packages) == 1 and all((*packages, *undecided)):
            return Definition(module, name)  # which of its names a package has, only its version says
        # The last import wins, as in Python, but one that works in the declared runtime is preferred to one of an
        # optional package.
        usable = [t for t in known if not isinstance(t, External) or t.runtime]
        return (usable or known or targets)[-1]

    def list_exports(self, module: Module) -> tuple[Collection[str], bool]:
        """Return the names in `__all__`, and whether a star import may bind any other public name, too."""
        key = id(module)
        stated = module.facts.exports
        if stated is None or not any(name.startswith("*") for name in stated):
            return stated or (), stated is None
        if key not in self._exports:
            self._exports[key] = {}, True  # lists that contain each other
            names, is_open = dict.fromkeys(name for name in stated if not name.startswith("*")), "*" in stated
            for name in stated:
                if name.startswith("*") and name != "*":
                    listed, rest = self.follow(module, name[1:].split("."))
                    others, more = self.list_exports(listed) if isinstance(listed, Module) and not rest else ((), True)
                    names, is_open = names | dict.fromkeys(others), is_open or more
            self._exports[key] = names, is_open
        return self._exports[key]

    def public_names(self, module: Module, seen: frozenset[int] = frozenset()) -> list[str]:
        """Return the names that a star import of a module binds."""
        exports, is_open = self.list_exports(module)
        if not is_open:
            return list(exports)
        names = dict.fromkeys(exports) | dict.fromkeys(name for name in module.list_bound() if not name.startswith("_"))
        for statement in module.list_stars():
            holder = self.resolve_alias(module, statement.aliases[0])
            if isinstance(holder, Module) and id(holder) not in seen:
                names.update(dict.fromkeys(self.public_names(holder, seen | {id(module)})))
        names.pop("*", None)
        return list(names)

    def _through_star(self, module: Module, statement: Statement, name: str) -> Target | None:
        alias = statement.aliases[0]
        holder = self.resolve_alias(module, alias)
        if isinstance(holder, External):
            if holder.runtime:
                dotted = self.absolute_name(module, alias)
                if dotted is not None and name in RUNTIME_NAMES.star(dotted):
                    return External(dotted, name, False, True)
            return None
        if not isinstance(holder, Module) or holder is module:
            return None
        exports, is_open = self.list_exports(holder)
        if name not in exports and not (is_open and not name.startswith("_")):
            return None
        target = self.lookup(holder, name)
        return None if isinstance(target, Missing) else target

    def _find_moved(self, source: PackageSource, dotted: str) -> Module | None:
        """Return the only module whose name ends with these two parts, for layouts that change on installation."""
        top, _, rest = dotted.partition(".")
        tail = ".".join(rest.split(".")[-2:])
        for other in (source, *self._tops.get(top, ())):
            if other.kind == "package" or "." not in tail:
                continue
            candidate = self._suffixes.get((other.name, tail.rpartition(".")[2]))
            if candidate is not None and f".{candidate.name}".endswith(f".{tail}"):
                return candidate
        return None


def list_packages(source: PackageSource) -> frozenset[str]:
    """Return the top-level names of a source's modules; `acme.nets` where it requires other parts of a namespace."""
    modules = {file.module for file in source.files if file.module}
    needed = [canonicalize_name(item.name) for item in parse_requirements(source.requires)]
    spaces = {name.split(".")[0] for name in modules} - modules
    shared = {top for top in spaces if any(name.startswith(f"{canonicalize_name(top)}-") for name in needed)}
    return frozenset(".".join(name.split(".")[: 1 + (name.split(".")[0] in shared)]) for name in modules)


def _is_visible(source: PackageSource, top: str, tops: Iterable[str]) -> bool:
    """Return whether other sources may import a top-level package of this one (not `utils` of a script folder)."""
    if source.kind == "package":
        return True
    own = source.name.partition("@")[0].replace("-", "_").lower()
    return top.lower() == own or (len(list(tops)) == 1 and source.kind == "folder")


def is_extension(dotted: str) -> bool:
    """Return whether a module that has no file is named as compiled extensions are."""
    return _EXTENSION.fullmatch(dotted.rpartition(".")[2]) is not None


class FolderNames:
    """The files of a source by their names relative to any folder: `python/acme/act.py` is also `acme.act`."""

    def __init__(self, modules: Iterable[Module]) -> None:
        files = {module.file.path: module for module in modules}
        self._packages = {path.rpartition("/")[0] for path in files if is_package(path)}
        self._named: dict[str, list[tuple[str, Module]]] = {}  # with the folder that the name starts at
        self.tops: set[str] = set()
        for path, module in files.items():
            parts = path.split("/")
            for depth in range(len(parts)):
                folder = "/".join(parts[:depth])
                self._named.setdefault(module_name("/".join(parts[depth:])), []).append((folder, module))
                # Inside a package the name starts at the package, unless a script there imports its neighbors.
                if depth and folder not in self._packages:
                    self.tops.add(module_name(parts[depth]))

    def find(self, importer: Module, dotted: str) -> Module | None:
        """Return the module in a package around a file, else the only one in the folders nearest to it."""
        around = self.find_nearest(importer, dotted, packages=True)
        if around is not None:
            return around
        near = [
            (_count_shared(folder, importer.file.path), module)
            for folder, module in self._named.get(dotted, ())
            if folder not in self._packages and module is not importer
        ]
        best = max((shared for shared, _ in near), default=0)
        nearest = [module for shared, module in near if shared == best]
        return nearest[0] if len(nearest) == 1 else None

    def find_nearest(self, importer: Module, dotted: str, *, packages: bool) -> Module | None:
        """Return the module in the folder of a file or the nearest one above it; all are packages, or none is."""
        around = [
            (len(folder), module)
            for folder, module in self._named.get(dotted, ())
            if module is not importer
            and importer.file.path.startswith(f"{folder}/" if folder else "")
            and (folder in self._packages) == packages
        ]
        return max(around, key=itemgetter(0), default=(0, None))[1]


def _count_shared(folder: str, path: str) -> int:
    """Return how many folders are above both."""
    pairs = zip(folder.split("/"), path.split("/"), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
