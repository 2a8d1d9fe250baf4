"""Statements that fill a container while modules are imported, and entries of registries under a string.

They are decorators, later statements, and functions that these call.

Examples: a table filled by decorators (`TABLE[name] = cls` inside one), a class attribute that `__init_subclass__`
fills, the kernels of a `singledispatch` function. A copy of the container alone would be empty. Decided from facts;
no code is run.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from typing import NamedTuple, TypeVar

from extract.resolve.discover import find_class_facts, follow, list_bases
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex, Definition, External, Missing, Module, Target
from extract.sources import PackageSource
from lemur_core.source.changes import FILLING
from lemur_core.source.facts import (
    ASSIGN,
    AT_CALL,
    AT_DEFINITION,
    CLASS,
    FUNCTION,
    IMPORT,
    OTHER,
    STAR,
    Decorator,
    ObjectChange,
    Statement,
    Use,
)

T = TypeVar("T", bound=Hashable)
NodeKey = tuple[str, str, int]  # source, path, number of the statement

_DEPTH = 3  # levels of functions that call a function that fills a container
_OWN, _ARGUMENT, _ITEM = "", "*", "[]"  # as in `lemur_core.source.facts.ObjectChange`
_HOOK = "__init_subclass__"
_WHEN_CALLED = ("__init__", "__new__", "__call__")


class StatementNode(NamedTuple):
    """A statement of the corpus with its links."""

    module: Module
    statement: Statement
    decorators: frozenset[int] = frozenset()  # indices of those kept because they fill a container

    @property
    def key(self) -> NodeKey:
        """Identity of the statement; sorts in file order."""
        return self.module.source.name, self.module.file.path, self.statement.number


class Registrations:
    """The fillings of a library's containers; a file is analyzed when a block's own file imports it."""

    def __init__(self, library: CorpusIndex) -> None:
        self._library = library
        self._imports: dict[Module, tuple[Module, ...]] = {}
        self._orders: dict[Module, dict[Module, int]] = {}
        self._read: set[Module] = set()
        self._of: dict[Definition, dict[tuple[Module, int], StatementNode]] = {}
        self._changed: dict[tuple[Definition, str, int], frozenset[Definition]] = {}
        self._hooks: dict[Definition, tuple[Definition, ...]] = {}

    def list_fillings(self, target: Definition, root: Module) -> list[StatementNode]:
        """Return the statements that fill a container when `root` is imported, in execution order.

        They keep the decorators that fill it.
        """
        order = self.order(root)
        for module in order:
            if module not in self._read:
                self._read.add(module)
                self._look(module)
        # A statement above the container's own cannot fill it.
        defined = min((statement.number for statement in target.module.find_binders(target.name)), default=0)
        fillings = (
            item
            for item in self._of.get(target, {}).values()
            if item.module in order and (item.module is not target.module or item.statement.number > defined)
        )
        return sorted(fillings, key=lambda item: (order[item.module], item.statement.number))

    # -- imports -------------------------------------------------------------------------------------------------

    def order(self, root: Module) -> dict[Module, int]:
        """Return the modules that run when `root` is imported, with their indices in the order in which they finish."""
        if root not in self._orders:
            ordered = post_order([root], self._list_imported)
            self._orders[root] = {module: position for position, module in enumerate(ordered)}
        return self._orders[root]

    def _list_imported(self, module: Module) -> tuple[Module, ...]:
        """Return the modules that a module imports as it runs, with the packages that contain it and them."""
        if module not in self._imports:
            imported: dict[Module, None] = dict.fromkeys(self._with_packages(module, module.name))
            for statement in module.facts.statements:
                if statement.kind in {IMPORT, STAR} and module.is_taken(statement):
                    for alias in statement.aliases:
                        dotted = self._library.absolute_name(module, alias)
                        if dotted:
                            imported.update(dict.fromkeys(self._with_packages(module, dotted)))
                            below = f"{dotted}.{alias.name}" if alias.name else ""
                            inner = self._library.find_module(module, below) if below else None
                            if inner is not None:
                                imported[inner] = None
            imported.pop(module, None)
            self._imports[module] = tuple(imported)
        return self._imports[module]

    def _with_packages(self, module: Module, dotted: str) -> Iterator[Module]:
        parts = dotted.split(".")
        for length in range(1, len(parts) + 1):
            package = self._library.find_module(module, ".".join(parts[:length]))
            if package is not None:
                yield package

    # -- one file ------------------------------------------------------------------------------------------------

    def _look(self, module: Module) -> None:
        for statement in module.facts.statements:
            if not module.is_taken(statement):
                continue
            for index, decorator in enumerate(statement.decorators):
                if decorator.column == statement.column and decorator.chain:
                    for target in self._by_decorator(module, statement, decorator):
                        self._add(target, module, statement, index)
            for target in self._by_running(module, statement):
                self._add(target, module, statement)
            for name in statement.binds[:1] if statement.kind == CLASS else ():
                for base in self._find_hooks(Definition(module, name)):
                    for target in self._find_changes(base, (_HOOK,)):
                        self._add(target, module, statement)

    def _add(self, target: Definition, module: Module, statement: Statement, decorator: int = -1) -> None:
        if target == Definition(module, next(iter(statement.binds), "")):
            return
        fillings = self._of.setdefault(target, {})
        before = fillings.get((module, statement.number), StatementNode(module, statement))
        kept = before.decorators | ({decorator} if decorator >= 0 else set())
        fillings[module, statement.number] = before._replace(decorators=kept)

    def _by_decorator(self, module: Module, statement: Statement, decorator: Decorator) -> Iterator[Definition]:
        """Yield the containers in `@register("x")`, `@TABLE.register("x")`, `@register(TABLE, "x")`, `@f.register`."""
        head, rest = self._resolve(module, decorator.chain)
        if head is None:
            return
        if rest and find_class_facts(head) is None:
            yield head
        yield from self._find_changes(head, rest)
        if self._changes_argument(head, rest):
            inside = [u for u in statement.uses if decorator.start <= u.start < decorator.end]
            yield from self._containers(module, statement, inside, AT_DEFINITION)

    def _by_running(self, module: Module, statement: Statement) -> Iterator[Definition]:
        """Yield the containers in `layers.TABLE["x"] = f`, `register("x", f)`, and loops over such statements."""
        for change in statement.changes:
            if change.when == AT_DEFINITION:
                head, _ = self._resolve(module, change.chain, attribute=change.how)
                own = head is not None and head.module is module and head.name in statement.touches
                if head is not None and self._fills(head, change.how):
                    yield from (
                        definition for definition in self._and_items(head, change) if definition != head or not own
                    )
        for use in statement.uses if statement.kind in {OTHER, ASSIGN} else ():
            if use.called and use.when == AT_DEFINITION:
                head, rest = self._resolve_use(module, statement, use)
                # An assignment calls for a value: only what records something fills a table on the way.
                if head is None or (statement.kind == ASSIGN and not self._records(head)):
                    continue
                yield from self._find_changes(head, rest)
                if self._changes_argument(head, rest):
                    yield from self._containers(module, statement, statement.uses, AT_DEFINITION)

    def _and_items(self, head: Definition, change: ObjectChange) -> Iterator[Definition]:
        """Yield a changed container and, if one of its items changes, the containers that are its items."""
        yield head
        if change.chain[-1] == _ITEM:
            for statement in head.module.find_binders(head.name):
                if statement.kind == ASSIGN:
                    yield from self._containers(head.module, statement, statement.uses, AT_DEFINITION)

    def _records(self, head: Definition) -> bool:
        """Return whether a name is called for its side effect: the function of a decorator, or a class."""
        binders = head.module.find_binders(head.name)
        return find_class_facts(head) is not None or any(statement.registers for statement in binders)

    # -- what a call changes -------------------------------------------------------------------------------------

    def _find_changes(self, head: Definition, rest: Sequence[str], depth: int = 0) -> frozenset[Definition]:
        """Return the module-level containers that change when a function, a class or one of its methods is called."""
        key = (head, ".".join(rest), depth)
        if key not in self._changed:
            self._changed[key] = frozenset(self._find_changed(head, tuple(rest), depth))
        return self._changed[key]

    def _find_changed(self, head: Definition, rest: tuple[str, ...], depth: int) -> Iterator[Definition]:
        module = head.module
        for statement in module.find_binders(head.name):
            if statement.kind == ASSIGN and depth < _DEPTH:  # `register = partial(_register, kind)`, `TABLE.register`
                for use in statement.uses:
                    if use.when == AT_DEFINITION:
                        inner, more = self._resolve_use(module, statement, use)
                        if inner is not None and inner != head and not rest:
                            if more and not use.called and find_class_facts(inner) is None:
                                yield inner
                            yield from self._find_changes(inner, more, depth + 1)
            elif statement.kind == CLASS or not rest:
                methods = (rest[:1] or _WHEN_CALLED) if statement.kind == CLASS else ("",)
                for change in statement.changes:
                    if change.when == AT_CALL and change.method in methods:
                        target, _ = self._resolve(module, change.chain)
                        if target is not None and self._fills(target, change.how):
                            yield from self._and_items(target, change)
                if statement.kind == FUNCTION and depth < _DEPTH:
                    yield from self._through_calls(module, statement, depth)
                facts = find_class_facts(head) if statement.kind == CLASS and rest and depth < _DEPTH else None
                if facts is not None and rest[0] not in facts.methods:
                    for base in list_bases(self._library, head):
                        yield from self._find_changes(base, rest, depth + 1)

    def _through_calls(self, module: Module, statement: Statement, depth: int) -> Iterator[Definition]:
        for use in statement.uses:
            if use.called and use.when == AT_CALL:
                inner, more = self._resolve_use(module, statement, use)
                if inner is not None:
                    yield from self._find_changes(inner, more, depth + 1)
                    if self._changes_argument(inner, more):
                        yield from self._containers(module, statement, statement.uses, AT_CALL)

    def _changes_argument(self, head: Definition, rest: Sequence[str]) -> bool:
        """Return whether a function fills a container that is passed as an argument."""
        functions = [s for s in head.module.find_binders(head.name) if s.kind == FUNCTION and not rest]
        return any(
            change.chain[0] == _ARGUMENT and change.when == AT_CALL and not change.method and change.how[0] != "."
            for statement in functions
            for change in statement.changes
        )

    def _containers(self, module: Module, statement: Statement, uses: Iterable[Use], when: int) -> Iterator[Definition]:
        """Yield the assigned names that are passed as arguments, not called."""
        for use in uses:
            if use.when == when and not use.called:
                target, _ = self._resolve_use(module, statement, use)
                if target is not None and all(s.kind == ASSIGN for s in target.module.find_binders(target.name)):
                    yield target

    def _fills(self, target: Definition, how: str) -> bool:
        """Return whether a change of that kind fills an object: by item, by attribute, or by a method known to fill."""
        if how[0] in "[." or how in FILLING:
            return True
        kind = self._find_kind(target)
        changes = (change for s in (kind.module.find_binders(kind.name) if kind else ()) for change in s.changes)
        return any(change.method == how and change.chain[0] == _OWN for change in changes)

    def _find_kind(self, target: Definition) -> Definition | None:
        """Return the class of an object that a call creates: `table = Table()`."""
        assigned = [s for s in target.module.find_binders(target.name) if s.kind == ASSIGN]
        uses = (use for s in assigned for use in sorted(s.uses, key=lambda use: use.start))
        call = next((use for use in uses if use.called and use.when == AT_DEFINITION), None)
        kind = follow(self._library, target.module, (call.name, *call.attributes)) if call is not None else None
        return kind if isinstance(kind, Definition) and find_class_facts(kind) is not None else None

    def has_registering_method(self, target: Definition, name: str, depth: int = 0) -> bool:
        """Return whether a class or an object has a method of that name that returns what it decorates."""
        kind = target if find_class_facts(target) is not None else self._find_kind(target)
        facts = find_class_facts(kind) if kind is not None else None
        if kind is None or facts is None or depth > _DEPTH:
            return False
        if name in facts.methods:
            return name in facts.registers
        bases = list_bases(self._library, kind)
        return any(self.has_registering_method(base, name, depth + 1) for base in bases)

    def _find_hooks(self, target: Definition) -> tuple[Definition, ...]:
        """Return the base classes whose `__init_subclass__` runs when the class is defined."""
        if target not in self._hooks:
            self._hooks[target] = ()  # of classes that a faulty file derives from each other
            hooks: list[Definition] = []
            for base in list_bases(self._library, target):
                parent = find_class_facts(base)
                if parent is not None:
                    hooks += [base] if _HOOK in parent.methods else self._find_hooks(base)
            self._hooks[target] = tuple(dict.fromkeys(hooks))
        return self._hooks[target]

    def _resolve_use(self, module: Module, statement: Statement, use: Use) -> tuple[Definition | None, tuple[str, ...]]:
        start = self._library.resolve_alias(module, statement.locals[use.local].alias) if use.local >= 0 else None
        return self._resolve(module, (use.name, *use.attributes), start)

    def _resolve(
        self, module: Module, chain: Sequence[str], start: Target | None = None, attribute: str = ""
    ) -> tuple[Definition | None, tuple[str, ...]]:
        """Return the definition of the corpus at the start of a dotted name, and the remaining attributes.

        Args: attribute: attribute that is changed afterwards; it is resolved, too, if the chain ends at a module.
        """
        if chain[0] in {_OWN, _ARGUMENT}:
            return None, ()
        target, rest = self._library.follow(module, chain, start)
        if isinstance(target, Module) and attribute[1:]:
            target = self._library.lookup(target, attribute[1:])
        return (target, rest) if isinstance(target, Definition) else (None, ())


# -- registries --------------------------------------------------------------------------------------------------------

_REGISTERING = ("register_module", "register")
_METHODS = {"register_module", "get"}
_MARK = re.compile(rb"\.register(?:_module)?\(")
Entry = Definition | StatementNode


class Registries:
    """The registries of a library and their entries: a class or function, or the statement that registers it."""

    def __init__(self, library: CorpusIndex, index: FactsIndex) -> None:
        self._library = library
        self._index = index
        self._entries: dict[Definition, dict[str, list[Entry]]] | None = None
        self._objects: dict[Definition, bool] = {}
        self._kinds: dict[Definition, bool] = {}  # of classes

    def canonical(self, target: Definition) -> Definition:
        """Return the registry at the root of a registry's parents."""
        seen: set[Definition] = set()
        parent: Definition | None = target
        while parent is not None:
            target = parent
            seen.add(target)
            uses = target.module.find_binders(target.name)[0].uses
            read = [use for use in uses if use.when == AT_DEFINITION and use.start >= 0]
            # Registries of one family have a parent; all are one table here.
            parents = (self._target(target.module, (use.name, *use.attributes)) for use in read)
            parent = next((registry for registry in parents if registry is not None and registry not in seen), None)
        return target

    def entry(self, registry: Definition, key: str, near: PackageSource) -> Entry | None:
        """Return the entry of a registry under a key: from the same source if available, else by priority."""
        scope, _, bare = key.rpartition(".")
        entries = self._read_entries().get(registry, {}).get(bare, [])
        if not entries:
            return None
        # `mmdet.ResNet` names its library: that one is preferred to the block's own source.
        scoped = [e for e in entries if scope and e.module.name.split(".")[0] == scope]
        own = [e for e in entries if e.module.source.name == near.name]
        return (scoped or own or entries)[0]

    def _read_entries(self) -> dict[Definition, dict[str, list[Entry]]]:
        if self._entries is None:
            self._entries = {}
            for module in self._modules():
                for registry, keys, entry in self._registrations(module):
                    table = self._entries.setdefault(registry, {})
                    for key in keys:
                        table.setdefault(key, []).append(entry)
        return self._entries

    def _modules(self) -> Iterator[Module]:
        """Yield the files that register something; they are recognized by their text, so that only they are parsed."""
        for source in self._library.sources:
            files = [file for file in source.files if _MARK.search(source.read(file))]
            self._index.add([(source, file) for file in files])
            yield from (self._library.by_path[source.name, file.path] for file in files)

    def _registrations(self, module: Module) -> Iterator[tuple[Definition, Iterable[str], Entry]]:
        for statement in module.facts.statements:
            if not module.is_taken(statement):
                continue
            for decorator in statement.decorators:
                *holder, method = decorator.chain or ("",)
                if decorator.column == statement.column and method in _REGISTERING and holder:
                    registry = self._target(module, holder)
                    if registry is not None and statement.binds:
                        name = statement.binds[0]
                        yield self.canonical(registry), decorator.keys or (name,), Definition(module, name)
            # `NAME.register_module("BN", module=nn.BatchNorm2d)`, also in a loop over classes.
            calls = (not statement.decorators and not statement.binds) or statement.kind == OTHER
            for use in statement.uses if calls else ():
                if use.attributes[-1:] and use.attributes[-1] in _REGISTERING and use.when == AT_DEFINITION:
                    registry = self._target(module, (use.name, *use.attributes[:-1]))
                    if registry is not None:
                        named = [(u.name, *u.attributes)[-1] for u in statement.uses]
                        keys = dict.fromkeys([*statement.types, *named])
                        yield self.canonical(registry), keys, StatementNode(module, statement)

    def _target(self, module: Module, chain: Sequence[str]) -> Definition | None:
        target, rest = self._library.follow(module, chain)
        return target if not rest and isinstance(target, Definition) and self.contains(target) else None

    def contains(self, target: Definition) -> bool:
        """Return whether a name holds a registry of OpenMMLab's kind, or one whose class the library does not have.

        Any other registry is Python like the rest: it is copied, with what fills it.
        """
        if target not in self._objects:
            binders = target.module.find_binders(target.name)
            called = len(binders) == 1 and binders[0].kind == ASSIGN and binders[0].calls
            reads = [use for use in binders[0].uses if use.when == AT_DEFINITION and use.start >= 0] if called else []
            first = min(reads, key=lambda use: use.start, default=None)
            is_registry = first is not None and self._is_class((first.name, *first.attributes), target.module)
            self._objects[target] = is_registry
        return self._objects[target]

    def _is_class(self, chain: tuple[str, ...], module: Module) -> bool:
        """Return whether a dotted name is the class of such a registry; of an absent one, only the name is known."""
        target = follow(self._library, module, chain)
        if isinstance(target, Definition):
            return self.is_class(target)
        absent = isinstance(target, Missing) or (isinstance(target, External) and not target.runtime)
        return absent and chain[-1].endswith("Registry")

    def is_class(self, target: Definition) -> bool:
        """Return whether a class is one of OpenMMLab's registries, by its methods or those of its bases."""
        if target not in self._kinds:
            self._kinds[target] = False  # classes that inherit from each other
            facts = find_class_facts(target)
            self._kinds[target] = facts is not None and (
                set(facts.methods) >= _METHODS
                or any(self._is_class(tuple(base), target.module) for base in facts.bases if base)
            )
        return self._kinds[target]


def post_order(
    starts: Iterable[T],
    needs: Callable[[T], Iterable[T]],
    may_precede: Callable[[T, T, Set[T]], bool] | None = None,
) -> list[T]:
    """Return depth-first post-order: dependencies first; a cycle is cut at the edge that closes it.

    Args:
        may_precede: whether a dependency may stand before a key that needs it, given all keys that wait for theirs;
            if not, it stands where another key or `starts` put it.
    """
    done: set[T] = set()
    result: list[T] = []
    for start in starts:
        # An explicit stack, because chains of imports exceed Python's recursion limit.
        stack: list[tuple[T, Iterator[T]]] = [(start, iter(needs(start)))] if start not in done else []
        running = {key for key, _ in stack}
        while stack:
            key, waiting = stack[-1]
            fresh = (k for k in waiting if k not in done and k not in running)
            following = next((k for k in fresh if may_precede is None or may_precede(k, key, running)), None)
            if following is None:
                stack.pop()
                running.discard(key)
                done.add(key)
                result.append(key)
            else:
                running.add(following)
                stack.append((following, iter(needs(following))))
    return result
