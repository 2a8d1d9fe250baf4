"""The nn.Module subclasses of a corpus, followed across files, re-exports and sources; and which become blocks."""

import difflib
import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from extract.resolve.index import RUNTIME_NAMES
from extract.resolve.modules import Definition, External, Library, Missing, Module, Target
from extract.sources.contents import matches
from lemur_core.files.errors import UserError
from lemur_core.source.facts import ClassFacts, Nested, Statement


@dataclass(frozen=True, slots=True)
class Found:
    """One class, addressed by its source and qualified name."""

    module: Module
    name: str
    own_forward: bool
    outer: tuple[str, ...] = ()  # names of the classes and functions around it

    @property
    def facts(self) -> ClassFacts:
        """What is known of the class; reads its file's facts."""
        found = class_of(Definition(self.module, self.name)) if self.nested is None else self.nested.facts
        assert found is not None
        return found

    @property
    def nested(self) -> Nested | None:
        """What is known of it as a class inside another definition; None for those of module level."""
        wanted = (self.outer, self.name)
        return next((one for one in self.module.facts.nested if (one.outer, one.facts.name) == wanted), None)

    @property
    def root(self) -> Definition:
        """The definition of module level that it is, or stands in."""
        return Definition(self.module, self.outer[0] if self.outer else self.name)

    @property
    def lines(self) -> tuple[int, int]:
        """Its first and last line."""
        at: Statement | Nested = self.nested or self.module.facts.statements[self.facts.statement]
        return at.line, at.end_line

    @property
    def stem(self) -> str:
        """The dotted name of its file: what is imported to reach it."""
        return self.module.name or self.module.file.path.removesuffix(".py").replace("/", ".")

    @property
    def qualname(self) -> str:
        """The dotted name under which its own source imports it."""
        return ".".join((self.stem, *self.outer, self.name))

    @property
    def block(self) -> str:
        """The block's id: `SOURCE::QUALNAME`."""
        return f"{self.module.source.name}::{self.qualname}"


class Hierarchy:
    """Decides which classes are nn.Modules and where their `forward` comes from."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lineage: dict[tuple[int, ClassFacts], tuple[bool, bool, bool]] = {}

    def modules_of(self, module: Module) -> list[Found]:
        """The concrete nn.Module subclasses that a file defines, in order; the last of several with one name."""
        found: dict[str, Found] = {}
        for facts in module.facts.classes:
            if not module.taken(module.facts.statements[facts.statement]):
                continue
            is_module, has_forward, abstract = self._of(module, facts)
            if not module.facts.statements[facts.statement].path:
                found.pop(facts.name, None)
            if is_module and has_forward and not abstract:
                found[facts.name] = Found(module, facts.name, "forward" in facts.methods)
        return [*found.values(), *self._nested(module)]

    def _nested(self, module: Module) -> Iterator[Found]:
        """Those inside classes and functions; one of them may derive from another beside it."""
        beside: dict[tuple[tuple[str, ...], str], tuple[bool, bool, bool]] = {}
        for outer, facts in ((one.outer, one.facts) for one in module.facts.nested):
            if (outer, facts.name) in beside or not module.taken(module.facts.statements[facts.statement]):
                continue
            is_module, has_forward, abstract = self._of(module, facts)
            for base in facts.bases:
                above = beside.get((outer, base[0]), (False,) * 3) if len(base) == 1 else (False,) * 3
                is_module, has_forward = is_module or above[0], has_forward or above[1]
            beside[outer, facts.name] = is_module, has_forward, abstract
            if is_module and has_forward and not abstract:
                yield Found(module, facts.name, "forward" in facts.methods, outer)

    def _of(self, module: Module, facts: ClassFacts) -> tuple[bool, bool, bool]:
        """Whether a class is an nn.Module, has a forward other than nn.Module's, and leaves it abstract."""
        key = (id(module), facts)
        if key in self._lineage:
            return self._lineage[key]
        self._lineage[key] = (False, False, False)  # a class cannot be its own base
        is_module = inherits = abstract = False
        for base in facts.bases:
            if not base:
                continue
            target = follow(self._library, module, base)
            if isinstance(target, Definition):
                parent = class_of(target)
                if parent is not None and not (target.module is module and parent is facts):
                    of_parent = self._of(target.module, parent)
                    is_module |= of_parent[0]
                    if of_parent[1] and not inherits:
                        inherits, abstract = True, of_parent[2]
            elif isinstance(target, External) and _is_torch_module(target):
                is_module = True
                inherits |= target.name != "Module"
        own = "forward" in facts.methods
        if own:
            abstract = "forward" in facts.abstract
        result = (is_module or self._is_root(module, facts), own or inherits, abstract)
        self._lineage[key] = result
        return result

    def _is_root(self, module: Module, facts: ClassFacts) -> bool:
        """Whether this is torch's own nn.Module (in a corpus that holds torch)."""
        return facts.name == "Module" and module.name == "torch.nn.modules.module"


def class_of(definition: Definition) -> ClassFacts | None:
    """The class that a definition is; the last, where branches define several."""
    found = None
    for facts in definition.module.facts.classes:
        if facts.name == definition.name and definition.module.taken(
            definition.module.facts.statements[facts.statement]
        ):
            found = facts
    return found


def follow(library: Library, module: Module, chain: Sequence[str]) -> Target:
    """What a dotted name means in a module: `layers.drop.DropPath`. Follows simple aliases (`Conv = Conv2d`)."""
    target, rest = library.lookup(module, chain[0]), list(chain[1:])
    while rest and isinstance(target, Module):
        target = library.lookup(target, rest.pop(0))
    if isinstance(target, External) and rest:
        return External(
            ".".join([target.bound_module, *([target.name] if target.name else []), *rest[:-1]]),
            rest[-1],
            False,
            target.runtime,
        )
    if isinstance(target, Definition) and not rest and class_of(target) is None:
        return _alias(library, target) or target
    return Missing(f"{'.'.join(chain)} in {module.file.path}") if rest and isinstance(target, Module) else target


def _alias(library: Library, target: Definition) -> Target | None:
    """The class behind `Name = Other`."""
    binders = target.module.binders(target.name)
    statement = binders[-1]
    if statement.kind != "assign" or statement.calls or statement.binds != (target.name,):
        return None
    reads = [use for use in statement.uses if use.when == 0]
    if len(reads) != 1 or reads[0].name == target.name:
        return None
    return follow(library, target.module, (reads[0].name, *reads[0].attributes))


def _is_torch_module(target: External) -> bool:
    """Whether a class of the runtime is an nn.Module; asks the runtime itself, which is trusted."""
    if not target.runtime or target.package.split(".")[0] not in {"torch", "torchvision"}:
        return False
    return RUNTIME_NAMES.is_module_class(target.package, target.name)


def discover(library: Library, modules: Iterable[Module]) -> list[Found]:
    """The nn.Module subclasses in these files, by source, path and line."""
    hierarchy = Hierarchy(library)
    return [found for module in modules for found in hierarchy.modules_of(module)]


# -- selection ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """What was asked for. Everything is selected where nothing is asked."""

    names: tuple[str, ...] = ()  # bare names, qualified names or block ids
    repositories: tuple[str, ...] = ()  # names of sources, with or without a version
    paths: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()  # patterns over bare or qualified names
    limit: int | None = None
    start_from: str | None = None


@dataclass(frozen=True, slots=True)
class Selected:
    """The classes chosen, names that nothing has, and for bare names the others that have them too."""

    found: tuple[Found, ...]
    missing: tuple[str, ...]
    others: dict[str, tuple[str, ...]]


def select(found: Sequence[Found], wanted: Selection) -> Selected:
    """Choose among the classes, given by priority of their source, then path and line.

    Raises: UserError if `start_from` is unknown, a pattern or source matches nothing, or no name is found.
    """
    chosen = [item for item in found if _in_scope(item, wanted)]
    if found and not chosen:
        raise UserError("no class matches the given --repo, --path and --symbol; leave one of them out")
    missing: list[str] = []
    others: dict[str, tuple[str, ...]] = {}
    if wanted.names:
        chosen, missing, others = _by_name(chosen, wanted.names)
        if not chosen:
            near = _near(wanted.names[0], found)
            raise UserError(f"{wanted.names[0]}: no class of that name in the sources{near}")
    if wanted.start_from is not None:
        position = next((n for n, item in enumerate(chosen) if _answers(item, wanted.start_from)), None)
        if position is None:
            raise UserError(
                f"--start-from {wanted.start_from}: not among the classes{_near(wanted.start_from, chosen)}"
            )
        chosen = chosen[position:]
    return Selected(tuple(chosen[: wanted.limit]), tuple(missing), others)


def _in_scope(item: Found, wanted: Selection) -> bool:
    source = item.module.source.name
    if wanted.repositories and not {source, source.partition("@")[0]} & set(wanted.repositories):
        return False
    if wanted.paths and not matches(wanted.paths, item.module.file.path):
        return False
    names = (item.name, item.qualname)
    return not wanted.symbols or any(fnmatch.fnmatchcase(n, pattern) for pattern in wanted.symbols for n in names)


def _by_name(found: Iterable[Found], names: Sequence[str]) -> tuple[list[Found], list[str], dict[str, tuple[str, ...]]]:
    by_key: dict[str, list[Found]] = {}
    for item in sorted(found, key=lambda item: bool(item.outer)):  # a bare name means one of module level first
        for key in dict.fromkeys((item.name, item.qualname, item.block)):
            by_key.setdefault(key, []).append(item)
    chosen: dict[str, Found] = {}
    missing = []
    others = {}
    for name in dict.fromkeys(names):
        have = by_key.get(name, [])
        if not have:
            missing.append(name)
            continue
        chosen.setdefault(have[0].block, have[0])
        if len(have) > 1:
            others[name] = tuple(item.block for item in have[1:])
    return list(chosen.values()), missing, others


def _answers(item: Found, name: str) -> bool:
    return name in (item.name, item.qualname, item.block)


def _near(name: str, found: Iterable[Found]) -> str:
    near = difflib.get_close_matches(name.rpartition(".")[2], sorted({item.name for item in found}), n=3)
    return f"; near: {', '.join(near)}" if near else ""
