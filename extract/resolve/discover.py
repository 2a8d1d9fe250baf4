"""Discovery of the nn.Module subclasses of a corpus, across files, re-exports and sources, and their selection."""

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from extract.resolve.modules import CorpusIndex, Definition, External, Missing, Module, Target
from extract.resolve.runtime_names import RUNTIME_NAMES
from extract.sources.contents import matches
from lemur_core.files.errors import UserError, near_names
from lemur_core.files.markdown import plural
from lemur_core.source.facts import ClassFacts


@dataclass(frozen=True, slots=True)
class TargetClass:
    """A class, addressed by its source and qualified name."""

    module: Module
    name: str

    @property
    def facts(self) -> ClassFacts:
        """The facts of the class; reads the facts of its file."""
        facts = find_class_facts(self.root)
        assert facts is not None
        return facts

    @property
    def root(self) -> Definition:
        """The definition of the class."""
        return Definition(self.module, self.name)

    @property
    def lines(self) -> tuple[int, int]:
        """First and last line of the class, or of a function that comes along with one."""
        facts = find_class_facts(self.root)
        at = self.module.facts.statements[facts.statement] if facts else self.module.find_binders(self.name)[-1]
        return at.line, at.end_line

    @property
    def stem(self) -> str:
        """Dotted name of the file, as it is imported."""
        return self.module.name or self.module.file.path.removesuffix(".py").replace("/", ".")

    @property
    def qualname(self) -> str:
        """The dotted name under which its own source imports it."""
        return f"{self.stem}.{self.name}"

    @property
    def block(self) -> str:
        """The block's id: `SOURCE::QUALNAME`."""
        return f"{self.module.source.name}::{self.qualname}"


class Hierarchy:
    """Class hierarchy: which classes are nn.Modules and where their `forward` comes from."""

    def __init__(self, library: CorpusIndex) -> None:
        self._library = library
        self._lineage: dict[tuple[int, ClassFacts], tuple[bool, bool, bool]] = {}

    def list_modules(self, module: Module) -> list[TargetClass]:
        """Return the concrete nn.Module subclasses of a file, in order; the last of several with the same name."""
        classes: dict[str, TargetClass] = {}
        for facts in module.facts.classes:
            if not module.is_taken(module.facts.statements[facts.statement]):
                continue
            is_module, has_forward, abstract = self._classify(module, facts)
            # A plain definition replaces those before it; one in a branch may not run.
            if not module.facts.statements[facts.statement].path:
                classes.pop(facts.name, None)
            if is_module and has_forward and not abstract:
                classes[facts.name] = TargetClass(module, facts.name)
        return list(classes.values())

    def explain_absence(self, modules: Iterable[Module], name: str) -> str:
        """Return why a name, bare or qualified or a block's id, is of no class that can become a block."""
        for module in modules:
            for facts in module.facts.classes:
                found = TargetClass(module, facts.name)
                is_module, has_forward, abstract = self._classify(module, facts)
                if name not in (found.name, found.qualname, found.block) or (
                    is_module and has_forward and not abstract
                ):
                    continue
                why = "has no forward of its own, and inherits none" if not has_forward else "has an abstract forward"
                return f"{found.block} {why if is_module else 'is not known to be a torch.nn.Module'}"
        return "no class of that name at the top level of a file"

    def _classify(self, module: Module, facts: ClassFacts) -> tuple[bool, bool, bool]:
        """Return whether a class is an nn.Module, defines its own forward, and leaves that abstract."""
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
                parent = find_class_facts(target)
                if parent is not None and not (target.module is module and parent is facts):
                    of_parent = self._classify(target.module, parent)
                    is_module |= of_parent[0]
                    if of_parent[1] and not inherits:
                        inherits, abstract = True, of_parent[2]
            elif (
                isinstance(target, External)
                and target.runtime
                and target.package.split(".")[0] in {"torch", "torchvision"}
                and RUNTIME_NAMES.is_module_class(target.package, target.name)
            ):
                is_module = True
                # A class of torch is taken to have a forward; that of `nn.Module` itself is a placeholder.
                inherits |= target.name != "Module"
        own = "forward" in facts.methods
        if own:
            abstract = "forward" in facts.abstract
        # In a corpus that contains torch, its own nn.Module is one, too.
        is_module |= facts.name == "Module" and module.name == "torch.nn.modules.module"
        self._lineage[key] = (is_module, own or inherits, abstract)
        return self._lineage[key]


def find_class_facts(definition: Definition) -> ClassFacts | None:
    """Return the facts of the class that a definition binds; the last, if branches define several."""
    module = definition.module
    named = [facts for facts in module.facts.classes if facts.name == definition.name]
    taken = (facts for facts in reversed(named) if module.is_taken(module.facts.statements[facts.statement]))
    return next(taken, None)


def list_bases(library: CorpusIndex, target: Definition) -> list[Definition]:
    """Return the base classes of a class that the corpus has, in order; none for what is no class."""
    facts = find_class_facts(target)
    bases = [follow(library, target.module, base) for base in facts.bases if base] if facts is not None else []
    return [base for base in bases if isinstance(base, Definition) and base != target]


def follow(library: CorpusIndex, module: Module, chain: Sequence[str]) -> Target:
    """Return the target of a dotted name in a module: `layers.drop.DropPath`. Follows aliases (`Conv = Conv2d`)."""
    target, rest = library.follow(module, chain)
    if isinstance(target, External) and rest:
        return External(
            ".".join([target.binding_module, *([target.name] if target.name else []), *rest[:-1]]),
            rest[-1],
            False,
            target.runtime,
        )
    if isinstance(target, Definition) and not rest and find_class_facts(target) is None:
        return _alias(library, target) or target
    return Missing(f"{'.'.join(chain)} in {module.file.path}") if rest and isinstance(target, Module) else target


def _alias(library: CorpusIndex, target: Definition) -> Target | None:
    """Return the class behind `Name = Other`."""
    binders = target.module.find_binders(target.name)
    statement = binders[-1]
    if statement.kind != "assign" or statement.calls or statement.binds != (target.name,):
        return None
    reads = [use for use in statement.uses if use.when == 0]
    if len(reads) != 1 or reads[0].name == target.name:
        return None
    return follow(library, target.module, (reads[0].name, *reads[0].attributes))


def discover(library: CorpusIndex, modules: Iterable[Module]) -> list[TargetClass]:
    """Return the nn.Module subclasses in these files, by source, path and line."""
    hierarchy = Hierarchy(library)
    return [item for module in modules for item in hierarchy.list_modules(module)]


# -- selection ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of classes by the user; without any criteria, all are selected."""

    names: tuple[str, ...] = ()  # bare names, qualified names or block ids
    paths: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()  # patterns over bare or qualified names
    limit: int | None = None
    start_from: str | None = None


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected classes, why some names are of none, and the other blocks of each ambiguous bare name."""

    classes: tuple[TargetClass, ...]
    missing: dict[str, str]
    others: dict[str, tuple[str, ...]]


def select(
    classes: Sequence[TargetClass], wanted: Selection, explain: Callable[[str], str] = lambda _: "no class of that name"
) -> Selected:
    """Select from classes that are sorted by priority of their source, then path and line.

    Args: explain: returns why a name is of no class.
    Raises: UserError if `start_from` is unknown, a pattern or source matches nothing, or none of the names exists.
    """
    chosen = [item for item in classes if _is_in_scope(item, wanted)]
    if classes and not chosen:
        options = (("--path", wanted.paths), ("--symbol", wanted.symbols))
        asked = " and ".join(" or ".join(f"{name} {value}" for value in values) for name, values in options if values)
        example = f"{classes[0].name} in {classes[0].module.file.path}"
        raise UserError(
            f"none of {plural(len(classes), 'class', 'classes')}, such as {example}, matches {asked}; change a pattern"
        )
    missing: dict[str, str] = {}
    others: dict[str, tuple[str, ...]] = {}
    if wanted.names:
        by_key: dict[str, list[TargetClass]] = {}
        for item in chosen:
            for key in {item.name, item.qualname, item.block}:
                by_key.setdefault(key, []).append(item)
        found = [by_key[name] for name in dict.fromkeys(wanted.names) if name in by_key]
        if not found:
            raise UserError(f"{wanted.names[0]}: {explain(wanted.names[0])}{_near(wanted.names[0], classes)}")
        missing = {name: f"{explain(name)}{_near(name, classes)}" for name in wanted.names if name not in by_key}
        others = {name: tuple(f.block for f in by_key[name][1:]) for name in wanted.names if by_key.get(name, ())[1:]}
        chosen = list({first.block: first for first, *_ in found}.values())
    if wanted.start_from is not None:
        named = (n for n, item in enumerate(chosen) if wanted.start_from in (item.name, item.qualname, item.block))
        position = next(named, None)
        if position is None:
            near = _near(wanted.start_from, chosen) or f"; the first of them is {chosen[0].name}"
            raise UserError(f"--start-from {wanted.start_from}: not among the classes{near}")
        chosen = chosen[position:]
    return Selected(tuple(chosen[: wanted.limit]), missing, others)


def _is_in_scope(item: TargetClass, wanted: Selection) -> bool:
    if wanted.paths and not matches(wanted.paths, item.module.file.path):
        return False
    names = (item.name, item.qualname)
    return not wanted.symbols or any(fnmatch.fnmatchcase(n, pattern) for pattern in wanted.symbols for n in names)


def _near(name: str, classes: Iterable[TargetClass]) -> str:
    near = near_names(name.rpartition("::")[2].rpartition(".")[2], (item.name for item in classes), 3)
    return f"; near names: {', '.join(near)}" if near else ""
