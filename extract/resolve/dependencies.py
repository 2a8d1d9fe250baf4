"""Links between statements: for each statement of the corpus, the symbol behind every name that it reads.

Computed once for each statement and shared by all blocks that need it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from extract.resolve.configurations import Configurations
from extract.resolve.discover import class_of, follow
from extract.resolve.index import RUNTIME_NAMES
from extract.resolve.modules import RUNTIME, Definition, External, Library, Missing, Module, Target
from extract.resolve.registrations import Fillings
from extract.resolve.requirements import is_required
from extract.resolve.standins import (
    DEFINITIONS,
    NOT_DEFINED,
    NOT_INSTALLED,
    REGISTRY,
    SOURCE_NAME,
    StandIn,
    find_definition,
    find_operator,
    standin_module,
)
from extract.resolve.symbols import (
    How,
    Imported,
    Link,
    Namespace,
    Node,
    Optional,
    Problem,
    Reason,
    Registered,
    Registries,
    Symbol,
    Undefined,
    is_registry,
    is_registry_class,
)
from lemur_core.source.facts import (
    ASSIGN,
    AT_CALL,
    CLASS,
    FUNCTION,
    IMPORT,
    IN_ANNOTATION,
    STAR,
    Alias,
    Decorator,
    Statement,
    Use,
)
from lemur_core.source.text import normalise

_QUOTED = re.compile(rb"""["']([A-Za-z_]\w*)["']""")
_TORCH_OPS = (
    "aten",
    "prims",
    "quantized",
    "profiler",
    "c10d",
    "symm_mem",
    "higher_order",
    "loaded_libraries",
    "load_library",
)
T = TypeVar("T")


@dataclass
class Links:
    """What one statement needs."""

    links: list[Link] = field(default_factory=list)
    notes: list[tuple[Use, Target | None]] = field(default_factory=list)  # names that only annotations use
    dropped: list[Decorator] = field(default_factory=list)  # decorators left out
    problems: list[Problem] = field(default_factory=list)
    errors: list[Use] = field(default_factory=list)  # reads of `except … as error`
    requires: set[str] = field(default_factory=set)  # import names of third-party packages
    local_targets: list[Target] = field(default_factory=list)  # of the statement's function-level imports
    glue: list[Symbol] = field(default_factory=list)  # stand-ins that lines of ours use
    alias_links: list[Symbol | None] = field(default_factory=list)  # of an import statement kept inside a block


class Graph:
    """Statements and their links over a whole library."""

    def __init__(self, library: Library, registries: Registries) -> None:
        self.library = library
        self.registries = registries
        self.fillings = Fillings(library)
        self.configurations = Configurations(library)
        self._links: dict[tuple[int, int, frozenset[int]], Links] = {}
        self._block_links: dict[tuple[int, int], Links] = {}
        self._members: dict[Symbol, tuple[Node, ...]] = {}
        self._texts: dict[Module, bytes] = {}
        self._parsed: dict[Module, Any] = {}
        self._touching: dict[int, dict[str, list[Statement]]] = {}

    # -- members -------------------------------------------------------------------------------------------------

    def members(self, symbol: Definition) -> tuple[Node, ...]:
        """The statements that define a symbol, and those that change it afterwards, in file order."""
        if symbol not in self._members:
            module, name = symbol
            chosen = {s.number: s for s in module.binders(name)}
            for statement in self._touches(module).get(name, ()):
                chosen.setdefault(statement.number, statement)
            self._members[symbol] = tuple(Node(module, chosen[i]) for i in sorted(chosen))
        return self._members[symbol]

    def _touches(self, module: Module) -> dict[str, list[Statement]]:
        """The statements that change what a name is bound to, without binding it."""
        found = self._touching.get(id(module))
        if found is None:
            found = self._touching[id(module)] = {}
            for statement in module.facts.statements:
                if statement.touches and module.taken(statement):
                    for name in set(statement.touches) - set(statement.binds):
                        found.setdefault(name, []).append(statement)
        return found

    def items(self, namespace: Namespace) -> dict[str, Symbol]:
        """What a module used as a value offers: its public classes, functions and constants."""
        found: dict[str, Symbol] = {}
        for name in namespace.only or self.library.public_names(namespace.module):
            target = self.library.lookup(namespace.module, name)
            if isinstance(target, Definition):
                found[name] = self.symbol(target)
        return found

    # -- links ---------------------------------------------------------------------------------------------------

    def links(self, module: Module, statement: Statement, decorators: frozenset[int] = frozenset()) -> Links:
        """The links of a statement, of whose decorators those at the given places stay whatever they do."""
        key = (id(module), statement.number, decorators)
        if key not in self._links:
            self._links[key] = self._link(module, statement, decorators)
        return self._links[key]

    def block_links(self, module: Module, number: int) -> Links:
        """The links of a block's test or exception types."""
        key = (id(module), number)
        if key not in self._block_links:
            result = Links()
            for use in module.facts.blocks[number].uses:
                self._link_use(module, use, None, result)
            self._block_links[key] = result
        return self._block_links[key]

    def words(self, node: Node) -> Iterator[str]:
        """The names that stand between quotes in a statement."""
        module, statement = node.module, node.statement
        if module not in self._texts:
            self._texts[module] = normalise(module.source.read(module.file))
        for found in _QUOTED.finditer(self._texts[module], statement.start, statement.end):
            yield found[1].decode()

    def parsed(self, module: Module, parse: Callable[[Module], T]) -> T:
        """What a parser makes of a file, kept for the next block."""
        if module not in self._parsed:
            self._parsed[module] = parse(module)
        found: T = self._parsed[module]
        return found

    def links_of(self, node: Node) -> Iterator[Links]:
        """The links of a statement and of the blocks kept around it."""
        yield self.links(node.module, node.statement, node.decorators)
        for number in kept_blocks(node.module, node.statement):
            yield self.block_links(node.module, number)

    def _link(self, module: Module, statement: Statement, kept: frozenset[int]) -> Links:
        result = Links()
        if statement.kind in {IMPORT, STAR}:
            self._link_import(module, statement, result)
            return result
        result.local_targets = [self.library.target(module, entry.alias) for entry in statement.locals]
        for entry, found in zip(statement.locals, result.local_targets, strict=True):
            if isinstance(found, External) and not found.runtime and not entry.guarded:
                if is_required(module.source, found.package):
                    result.requires.add(found.package.split(".")[0])
            elif isinstance(found, Definition) and not entry.stand_alone:
                result.glue.append(self.symbol(found))
                if entry.is_global or entry.in_class:
                    result.alias_links.append(self.symbol(found))
        errors = {name for block, _ in statement.path for name in module.facts.blocks[block].errors}
        result.dropped = [
            decorator
            for place, decorator in enumerate(statement.decorators)
            if place not in kept and self._drops(module, statement, decorator)
        ]
        for use in statement.uses:
            if any(d.start <= use.start < d.end for d in result.dropped):
                continue
            if use.name in errors and use.local < 0 and not module.binders(use.name):
                result.errors.append(use)
                continue
            local = statement.locals[use.local] if use.local >= 0 else None
            target = result.local_targets[use.local] if local is not None else None
            if local is not None and isinstance(target, External | Missing):
                continue  # the import stays in the function, or becomes the error that it would raise
            self._link_use(module, use, local.alias if local else None, result, target)
        return result

    def _link_import(self, module: Module, statement: Statement, result: Links) -> None:
        """An import inside a kept `if` or `try`: the name is bound there to what it stands for."""
        for alias in statement.aliases:
            target = self.library.target(module, alias)
            if isinstance(target, Definition):
                result.alias_links.append(self.symbol(target))
            elif isinstance(target, External):
                result.alias_links.append(None)
                if not target.runtime:
                    result.requires.add(target.package.split(".")[0])
            else:
                result.alias_links.append(None)
                what = "module as a value" if isinstance(target, Module) else target.where
                result.problems.append(Problem(Reason.UNRESOLVED_IMPORT, f"{_place(module, statement)}: {what}"))

    def _link_use(
        self, module: Module, use: Use, alias: Alias | None, result: Links, target: Target | None = None
    ) -> None:
        target, consumed = self.library.lookup(module, use.name) if target is None else target, 0
        while isinstance(target, Module) and consumed < len(use.attributes):
            inner = self.library.lookup(target, use.attributes[consumed])
            if isinstance(inner, Missing) and find_operator(use.attributes[consumed]) is not None:
                break
            target, consumed = inner, consumed + 1
        if use.when == IN_ANNOTATION:
            result.notes.append((use, None if isinstance(target, Module) else target))
            return
        native = self._native_link(module, use, target, consumed)
        if native is not None:
            result.links.append(native) if isinstance(native, Link) else result.problems.append(native)
            return
        if isinstance(target, Definition):
            symbol = self.symbol(target)
            if isinstance(symbol, Registered):
                result.glue.append(self.registry_class)
            result.links.append(Link(use, symbol, consumed, self._how(module, use, target, consumed, alias)))
        elif isinstance(target, External):
            if (package := _operator(use, target)[:1]) and package[0] in RUNTIME:
                result.glue.append(Imported(package[0], "", False, package[0]))  # registers its operators
            for link in self._external(module, use, target, consumed, alias):
                result.links.append(link)
                if isinstance(link.symbol, Optional):
                    result.glue.append(self.ours(NOT_INSTALLED))
                elif isinstance(link.symbol, Imported) and not self.library.is_runtime(link.symbol.package):
                    result.requires.add(link.symbol.package.split(".")[0])
                    if use.when == AT_CALL:
                        result.glue.append(self.ours(NOT_INSTALLED))
        elif isinstance(target, Module) and use.when == AT_CALL:
            result.links.append(Link(use, Namespace(target), consumed, How.HEURISTIC))
            result.glue.append(Imported("types", "", False, "types"))
        elif isinstance(target, Module):
            what = f"{_place(module, use)}: module {use.name} is used as a value"
            result.problems.append(Problem(Reason.DYNAMIC_MODULE, what))
        elif use.when == AT_CALL and use.local < 0 and self.library.lacks(module, use.name):
            result.links.append(Link(use, Undefined(use.name), 0, How.SAME_FILE))
            result.glue.append(self.ours(NOT_DEFINED))
        else:
            result.problems.append(self._missing(module, use, target))

    def symbol(self, target: Definition) -> Symbol:
        """What a definition of the corpus becomes in a file: itself, or what stands in for it."""
        if is_registry(target):
            return Registered(*self.registries.canonical(target))
        if is_registry_class(target):
            return self.registry_class
        if target.module.source.name != SOURCE_NAME:
            facts = class_of(target)
            found = find_definition(target.name, [base[-1] for base in facts.bases if base] if facts else ())
            if found is not None and found.has <= _shape(target):
                return self.ours(found)
        return target

    @property
    def registry_class(self) -> Definition:
        """Our stand-in for registries."""
        return self.ours(REGISTRY)

    def ours(self, found: StandIn) -> Definition:
        """One of our stand-ins as a symbol."""
        return Definition(standin_module(self.library, found.file), found.name)

    def _how(self, module: Module, use: Use, target: Definition, consumed: int, alias: Alias | None) -> How:
        if target.module is module:
            return How.SAME_FILE
        if target.module.source.name == SOURCE_NAME:
            return How.STAND_IN
        if consumed:
            return How.QUALIFIED
        binders = module.binders(use.name) if alias is None else ()
        if not binders and alias is None:
            return How.LAZY_PACKAGE if module.for_types(use.name) else How.STAR
        found = alias or next(a for a in binders[-1].aliases if a.bound == use.name)
        dotted = self.library.absolute(module, found)
        if dotted == target.module.name:
            return How.DIRECT_IMPORT
        # Only a guess at the layout after installation leads from the imported module's name to where it lies.
        guessed = dotted is None or self.library.find_module(module.source, dotted) is None
        return How.HEURISTIC if guessed and found.name and target.name == found.name else How.RE_EXPORT

    def _missing(self, module: Module, use: Use, target: Missing) -> Problem:
        where = _place(module, use)
        if module.binders(use.name) or use.local >= 0:
            return Problem(
                Reason.UNRESOLVED_IMPORT, f"{where}: {'.'.join((use.name, *use.attributes))}: {target.where}"
            )
        return Problem(Reason.UNRESOLVED_NAME, f"{where}: {use.name} is not defined in this file, nor imported")

    # -- outside the corpus --------------------------------------------------------------------------------------

    def _external(
        self, module: Module, use: Use, target: External, consumed: int, alias: Alias | None
    ) -> Iterator[Link]:
        if target.optional:
            yield Link(use, Optional(target.package, use.name), consumed, How.DIRECT_IMPORT)
            return
        if consumed or alias is not None or not module.binders(use.name):
            # Reached through another module's attribute, or a star import: import it from where it lives.
            name = target.name or target.package.rpartition(".")[2]
            bound = name if consumed or alias is None else alias.bound
            yield Link(use, Imported(target.package, target.name, True, bound), consumed, How.QUALIFIED)
            return
        imports = self._imports_of(module, use, target)
        if self._conditional(module, use.name) and not (
            target.runtime and RUNTIME_NAMES.has(target.package, target.name)
        ):
            yield Link(use, Optional(target.package, use.name), 0, How.DIRECT_IMPORT)
            return
        for symbol in imports:
            yield Link(use, symbol, 0, How.DIRECT_IMPORT)

    def _imports_of(self, module: Module, use: Use, chosen: External) -> list[Imported]:
        """The import statements that a use of a name needs: `torch.utils.checkpoint.x` needs that submodule's too."""
        found: list[tuple[Imported, int]] = []
        for statement in module.binders(use.name):
            for alias in statement.aliases:
                if alias.bound != use.name:
                    continue
                target = self.library.target(module, alias)
                if isinstance(target, External) and target.runtime == chosen.runtime:
                    symbol = Imported(target.package, target.name, target.whole or bool(target.name), use.name)
                    found.append((symbol, len(target.package.split("."))))
        if not found:
            return []
        if any(symbol.whole for symbol, _ in found):
            return [symbol for symbol, _ in found if symbol.whole][-1:]
        chain = (use.name, *use.attributes)
        matching = [s for s, depth in found if tuple(s.package.split(".")) == chain[:depth] and depth > 1]
        plain = [symbol for symbol, depth in found if depth == 1]
        if plain and len(chain) > 1 and RUNTIME_NAMES.is_submodule(chain[0], chain[1]):
            # `import packaging` and then `packaging.version`: works once anything has imported the submodule.
            matching.append(Imported(f"{chain[0]}.{chain[1]}", "", False, use.name))
        return list(dict.fromkeys([*plain[:1], *matching])) or [found[0][0]]

    def note_import(self, module: Module, use: Use, target: Target | None) -> list[Imported]:
        """The imports that an annotation's name needs; empty where it names no import of the runtime."""
        if not isinstance(target, External) or not target.runtime:
            return []
        if not module.binders(use.name) or use.local >= 0:
            return [Imported(target.package, target.name, True, use.name)] if target.name else []
        return self._imports_of(module, use, target)

    def _conditional(self, module: Module, name: str) -> bool:
        """Whether a name is imported only under a condition."""
        binders = module.binders(name)
        return bool(binders) and all(statement.path for statement in binders if statement.kind == IMPORT)

    # -- native operators ----------------------------------------------------------------------------------------

    def _native_link(self, module: Module, use: Use, target: Target, consumed: int) -> Link | Problem | None:
        """A call into a compiled extension: `ext_module.nms(...)`, `_C.nms(...)`, `torch.ops.detectron2.nms(...)`."""
        chain = use.attributes
        if _operator(use, target):
            if chain[1] in (*_TORCH_OPS, *RUNTIME):
                return None
            found = self._native(use, chain[2], 3)
            # An optional package's operator: its own source runs without it, and so does the block.
            own = self.library.knows(module.source, chain[1])
            return found if isinstance(found, Link) or own else None
        if isinstance(target, Definition) and self.is_extension(target):
            return self._native(use, chain[consumed], consumed + 1) if len(chain) > consumed else None
        compiled = isinstance(target, Missing) or (isinstance(target, External) and not target.runtime)
        if compiled and len(chain) > consumed and find_operator(chain[consumed]) is not None:
            return self._native(use, chain[consumed], consumed + 1)
        if isinstance(target, Missing) and not consumed and use.local < 0:
            for statement in module.binders(use.name):
                for alias in statement.aliases:
                    if alias.bound == use.name and alias.module.rpartition(".")[2] in {"_C", "_ext"}:
                        return self._native(use, alias.name, 0)
        if isinstance(target, Missing) and use.name in {"_C", "_ext"}:
            return Problem(Reason.NATIVE_OP, ".".join((use.name, *chain)))
        return None

    def _native(self, use: Use, operator: str, consumed: int) -> Link | Problem:
        found = find_operator(operator)
        if found is not None:
            return Link(use, self.ours(found), consumed, How.STAND_IN)
        name = ".".join((use.name, *use.attributes[:consumed]))
        return Problem(Reason.NATIVE_OP, f"{name} is a compiled operator without a stand-in")

    def is_extension(self, target: Definition) -> bool:
        """Whether a name is a loaded extension module: `ext_module = ext_loader.load_ext("_ext", [...])`."""
        binders = target.module.binders(target.name)
        return any(
            statement.kind == ASSIGN and use.attributes[-1:] == ("load_ext",)
            for statement in binders
            for use in statement.uses
        )

    # -- registries and decorators -------------------------------------------------------------------------------

    def _drops(self, module: Module, statement: Statement, decorator: Decorator) -> bool:
        """Whether a decorator only records or documents what it decorates."""
        chain = decorator.chain
        if not chain:
            return False
        if "docstring" in chain[-1]:
            return True
        if decorator.column != statement.column:
            return False
        if statement.kind == CLASS and self._is_settings(module, statement):
            return True
        if chain[-1] in {"register_module", "register"} and (len(chain) > 1 or "egist" in chain[0]):
            return True
        target = follow(self.library, module, chain)
        if isinstance(target, Definition):
            binders = target.module.binders(target.name)
            return all(s.kind == FUNCTION and s.registers for s in binders)
        return False

    def _is_settings(self, module: Module, statement: Statement) -> bool:
        """Whether a class derives from our stand-in for configurations, which need no validating decorators."""
        facts = next((c for c in module.facts.classes if c.statement == statement.number), None)
        targets = [follow(self.library, module, base) for base in facts.bases if base] if facts else []
        ours = [DEFINITIONS[t.name] for t in targets if isinstance(t, Definition) and t.name in DEFINITIONS]
        return any(found.name == "PreTrainedConfig" for found in ours)


def kept_blocks(module: Module, statement: Statement) -> tuple[int, ...]:
    """The `if` and `try` blocks around a statement that stay in the file; the others are decided statically."""
    return tuple(number for number, _ in statement.path if not module.facts.blocks[number].static)


def _operator(use: Use, target: Target) -> tuple[str, ...]:
    """Namespace and name of the operator that is read: of `torch.ops.NAMESPACE.NAME`; else empty."""
    torch = isinstance(target, External) and target.bound_module == "torch"
    return use.attributes[1:3] if torch and use.attributes[:1] == ("ops",) and len(use.attributes) > 2 else ()


def _shape(target: Definition) -> set[str]:
    """The methods of a class and what they bind, or the parameters (and locals) of a function."""
    facts = class_of(target)
    methods = () if facts is None else facts.methods
    return {*methods, *(name for statement in target.module.binders(target.name) for name in statement.shadows)}


def _place(module: Module, at: Statement | Use) -> str:
    """Where a statement begins, or the one around a use."""
    statements = [at] if isinstance(at, Statement) else module.facts.statements
    line = next((s.line for s in statements if s is at or s.start <= at.start < s.end), 0)
    return f"{module.source.name} {module.file.path}:{line}"
