"""Links between statements: the symbols behind the names that each statement of the corpus reads, or why there is none.

Each statement is linked once; all blocks that need it share the result.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from extract.resolve.discover import find_class_facts, list_bases
from extract.resolve.distributions import is_required, is_stated
from extract.resolve.index import FactsIndex
from extract.resolve.modules import RUNTIME, CorpusIndex, Definition, External, Missing, Module, Target, is_extension
from extract.resolve.registrations import Registrations, Registries, StatementNode
from extract.resolve.runtime_names import RUNTIME_NAMES
from extract.resolve.standins import (
    DEFINITIONS,
    NOT_DEFINED,
    NOT_INSTALLED,
    REGISTRY,
    SOURCE_NAME,
    Replacement,
    find_definition,
    find_operator,
    replacement_module,
)
from lemur_core.source.facts import (
    ASSIGN,
    AT_CALL,
    AT_DEFINITION,
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
from lemur_core.source.scopes import BUILTINS
from lemur_core.source.text import Import

_QUOTED = re.compile(rb"""["']([A-Za-z_]\w*)["']""")
_TORCH_OPS = frozenset(
    "aten prims quantized profiler c10d symm_mem higher_order loaded_libraries load_library".split()  # noqa: SIM905
)


class RegistrySymbol(NamedTuple):
    """A registry object; the file gets a small replacement that holds the classes it names."""

    module: Module
    name: str


class OptionalPackage(NamedTuple):
    """An optional package, treated as not installed."""

    package: str
    bound: str


class Undefined(NamedTuple):
    """A name that the file reads but nothing binds: the code fails as soon as it uses the name."""

    bound: str


class ModuleValue(NamedTuple):
    """A module of the corpus that is used as a value when code is called: `getattr(layers, name)`, `vars(layers)`."""

    module: Module

    @property
    def name(self) -> str:
        """Last part of the module's name."""
        return self.module.name.rpartition(".")[2]


Symbol = Definition | Import | RegistrySymbol | OptionalPackage | Undefined | ModuleValue


class Reason(StrEnum):
    """Reasons why a class cannot become a block."""

    UNRESOLVED_NAME = "unresolved_name"
    UNRESOLVED_IMPORT = "unresolved_import"
    NATIVE_OP = "native_op"
    DYNAMIC_MODULE = "dynamic_module"
    TOO_LARGE = "too_large"
    NEWER_PYTHON = "newer_python"


class Problem(NamedTuple):
    """One thing in a statement that cannot be resolved."""

    reason: Reason
    detail: str


class NameLink(NamedTuple):
    """A read of a name and its target: the symbol represents the name and `consumed` attributes after it."""

    use: Use
    symbol: Symbol
    consumed: int


#: What makes the object for a symbol of each kind.
_MADE_BY: Mapping[type, Replacement] = {
    OptionalPackage: NOT_INSTALLED,
    Undefined: NOT_DEFINED,
    RegistrySymbol: REGISTRY,
}


@dataclass
class StatementLinks:
    """Everything that one statement depends on."""

    links: list[NameLink] = field(default_factory=list)
    notes: list[tuple[Use, Target | None]] = field(default_factory=list)  # names that only annotations use
    dropped: list[Decorator] = field(default_factory=list)  # decorators left out
    absent: list[tuple[Decorator, OptionalPackage]] = field(default_factory=list)  # decorators of absent packages
    problems: list[Problem] = field(default_factory=list)
    errors: list[Use] = field(default_factory=list)  # reads of `except … as error`
    requires: set[str] = field(default_factory=set)  # import names of third-party packages
    local_targets: list[Target] = field(default_factory=list)  # of the statement's function-level imports
    glue: list[Symbol] = field(default_factory=list)  # symbols that our generated lines use
    alias_links: list[Symbol | None] = field(default_factory=list)  # of an import statement kept inside a block


class DependencyGraph:
    """Dependency graph: the statements of a whole library and the links between them."""

    def __init__(self, library: CorpusIndex, index: FactsIndex) -> None:
        self.library = library
        self.registries = Registries(library, index)
        self.registrations = Registrations(library)
        self._links: dict[tuple[Module, int, frozenset[int]], StatementLinks] = {}
        self._block_links: dict[tuple[Module, int], StatementLinks] = {}
        self._members: dict[Symbol, tuple[StatementNode, ...]] = {}

    # -- members -------------------------------------------------------------------------------------------------

    def members(self, symbol: Definition) -> tuple[StatementNode, ...]:
        """Return the statements that define a symbol and those that change it afterwards, in file order."""
        if symbol not in self._members:
            module, name = symbol
            statements = {s.number: s for s in (*module.find_binders(name), *module.changes.get(name, ()))}
            self._members[symbol] = tuple(StatementNode(module, statements[number]) for number in sorted(statements))
        return self._members[symbol]

    def parts(self, symbol: Symbol) -> tuple[Symbol, ...]:
        """Return the symbols that the line of a file uses that makes an object for a symbol."""
        if isinstance(symbol, ModuleValue):
            return *self.items(symbol).values(), Import("types", "", False, "types")
        made_by = _MADE_BY.get(type(symbol))
        return (self.ours(made_by),) if made_by is not None else ()

    def items(self, namespace: ModuleValue) -> dict[str, Symbol]:
        """Return the public classes, functions and constants of a module that is used as a value."""
        symbols: dict[str, Symbol] = {}
        for name in self.library.public_names(namespace.module):
            target = self.library.lookup(namespace.module, name)
            if isinstance(target, Definition):
                symbols[name] = self.symbol(target)
        return symbols

    # -- links ---------------------------------------------------------------------------------------------------

    def links(self, node: StatementNode) -> StatementLinks:
        """Return the links of a statement."""
        key = (node.module, node.statement.number, node.decorators)
        if key not in self._links:
            self._links[key] = self._link(*node)
        return self._links[key]

    def block_links(self, module: Module, number: int) -> StatementLinks:
        """Return the links of the test of an `if` block, or the exception types of a `try` block."""
        key = (module, number)
        if key not in self._block_links:
            self._block_links[key] = result = StatementLinks()
            for use in module.facts.blocks[number].uses:
                self._link_use(module, use, None, result)
        return self._block_links[key]

    def words(self, node: StatementNode) -> Iterator[str]:
        """Yield the names that appear in quotes in a statement."""
        for match in _QUOTED.finditer(node.module.text, node.statement.start, node.statement.end):
            yield match[1].decode()

    def iter_links(self, node: StatementNode) -> Iterator[StatementLinks]:
        """Yield the links of a statement and of the blocks kept around it."""
        yield self.links(node)
        for number in list_kept_blocks(node.module, node.statement):
            yield self.block_links(node.module, number)

    def _link(self, module: Module, statement: Statement, kept: frozenset[int]) -> StatementLinks:
        result = StatementLinks()
        for start, needs in module.facts.newer:
            if statement.start <= start < statement.end:
                where = f"{_locate(module, statement)}: needs {needs}"
                result.problems.append(Problem(Reason.NEWER_PYTHON, where))
        if statement.kind in {IMPORT, STAR}:
            self._link_import(module, statement, result)
            return result
        result.local_targets = [self.library.resolve_alias(module, entry.alias) for entry in statement.locals]
        for entry, target_of_local in zip(statement.locals, result.local_targets, strict=True):
            if isinstance(target_of_local, External) and not target_of_local.runtime and not entry.guarded:
                # An import in a function is often optional: only what the metadata names becomes a requirement.
                if is_stated(target_of_local.package, module.source.requires):
                    result.requires.add(self.library.import_name(module.source, target_of_local.package))
            elif isinstance(target_of_local, Definition) and not entry.stand_alone:
                result.glue.append(self.symbol(target_of_local))
                if entry.is_global or entry.in_class:
                    result.alias_links.append(self.symbol(target_of_local))
        errors = {name for block, _ in statement.path for name in module.facts.blocks[block].errors}
        result.dropped = [
            decorator
            for index, decorator in enumerate(statement.decorators)
            if index not in kept and self._is_droppable(module, statement, decorator)
        ]
        # Inside a `try` that stays, the decorator is to fail.
        tried = any(module.facts.blocks[number].kind == "try" for number in list_kept_blocks(module, statement))
        for decorator in statement.decorators if statement.kind == FUNCTION and not tried else ():
            name = decorator.chain[0] if decorator.chain and decorator not in result.dropped else ""
            head = self.library.lookup(module, name) if name else None
            if isinstance(head, External) and not head.runtime and self._is_absent(module, name, head):
                result.absent.append((decorator, OptionalPackage(head.package, name)))
                result.glue.append(result.absent[-1][1])
        unread = [*result.dropped, *(decorator for decorator, _ in result.absent)]
        for use in statement.uses:
            # The names that such a decorator reads are not needed.
            if any(d.start <= use.start < d.end for d in unread):
                continue
            if use.name in errors and use.local < 0 and not module.find_binders(use.name):
                result.errors.append(use)
                continue
            local = statement.locals[use.local] if use.local >= 0 else None
            target = result.local_targets[use.local] if local is not None else None
            if local is not None and isinstance(target, External | Missing):
                continue  # the import remains in the function, or is replaced by the error that it would raise
            self._link_use(module, use, local.alias if local else None, result, target)
        return result

    def _link_import(self, module: Module, statement: Statement, result: StatementLinks) -> None:
        """Link an import inside a kept `if` or `try`, where its name is bound to the symbol that it refers to."""
        for alias in statement.aliases:
            target = self.library.resolve_alias(module, alias)
            result.alias_links.append(self.symbol(target) if isinstance(target, Definition) else None)
            if isinstance(target, External):
                if not target.runtime:
                    result.requires.add(self.library.import_name(module.source, target.package))
            elif not isinstance(target, Definition):
                what = "module as a value" if isinstance(target, Module) else target.where
                result.problems.append(Problem(Reason.UNRESOLVED_IMPORT, f"{_locate(module, statement)}: {what}"))

    def _link_use(
        self, module: Module, use: Use, alias: Alias | None, result: StatementLinks, target: Target | None = None
    ) -> None:
        target, consumed = self.library.lookup(module, use.name) if target is None else target, 0
        while isinstance(target, Module) and consumed < len(use.attributes):
            inner = self.library.lookup(target, use.attributes[consumed])
            if isinstance(inner, Missing) and find_operator(use.attributes[consumed]) is not None:
                break  # a compiled operator: `_native_link` replaces it, although its module lacks the name
            target, consumed = inner, consumed + 1
        if use.when == IN_ANNOTATION:
            if not self._is_type_alias(target):
                result.notes.append((use, None if isinstance(target, Module) else target))
                return
            use = use._replace(when=AT_DEFINITION)
        native = self._native_link(module, use, target, consumed)
        if native is not None:
            result.links.append(native) if isinstance(native, NameLink) else result.problems.append(native)
            return
        if isinstance(target, Definition):
            result.links.append(NameLink(use, self.symbol(target), consumed))
        elif isinstance(target, External):
            if (package := _read_operator(use, target)[:1]) and package[0] in RUNTIME:
                result.glue.append(Import(package[0], "", False, package[0]))  # the import registers its operators
            for link in self._link_external(module, use, target, consumed, alias):
                result.links.append(link)
                if isinstance(link.symbol, Import) and not self.library.is_runtime(link.symbol.package):
                    result.requires.add(self.library.import_name(module.source, link.symbol.package))
                    if use.when == AT_CALL and not is_required(module.source.requires, link.symbol.package):
                        result.glue.append(self.ours(NOT_INSTALLED))
        elif isinstance(target, Module) and use.when == AT_DEFINITION:
            what = f"{_locate(module, use)}: module {use.name} is used as a value while it is imported"
            result.problems.append(Problem(Reason.DYNAMIC_MODULE, what))
        elif isinstance(target, Module):
            result.links.append(NameLink(use, ModuleValue(target), consumed))
        elif use.when == AT_CALL and use.local < 0 and self.library.lacks(module, use.name):
            # The original fails here, too, but perhaps in a branch that never runs, so this does not reject the class.
            result.links.append(NameLink(use, Undefined(use.name), 0))
        elif module.find_binders(use.name) or use.local >= 0:
            what = f"{_locate(module, use)}: {'.'.join((use.name, *use.attributes))}: {target.where}"
            result.problems.append(Problem(Reason.UNRESOLVED_IMPORT, what))
        else:
            what = f"{_locate(module, use)}: {use.name} is not defined in this file, nor imported"
            result.problems.append(Problem(Reason.UNRESOLVED_NAME, what))

    def _is_type_alias(self, target: Target) -> bool:
        """Return whether a name is one assignment made of the runtime's names: `Pair = tuple[Tensor, Tensor]`."""
        binders = target.module.find_binders(target.name) if isinstance(target, Definition) else ()
        return (
            isinstance(target, Definition)
            and len(binders) == 1
            and binders[0].kind == ASSIGN
            and any(use.name not in BUILTINS for use in binders[0].uses)
            and all(
                use.name in BUILTINS
                or (isinstance(found := self.library.lookup(target.module, use.name), External) and found.runtime)
                for use in binders[0].uses
            )
        )

    def symbol(self, target: Definition) -> Symbol:
        """Return the symbol that represents a definition in a file: the definition itself, or its replacement."""
        if self.registries.contains(target):
            return RegistrySymbol(*self.registries.canonical(target))
        if self.registries.is_class(target):
            return self.ours(REGISTRY)
        if target.module.source.name != SOURCE_NAME:
            facts = find_class_facts(target)
            replacement = find_definition(target.name, [base[-1] for base in facts.bases if base] if facts else ())
            # The methods of a class and the names that they bind, or the parameters and locals of a function.
            shape = {name for statement in target.module.find_binders(target.name) for name in statement.shadows}
            if replacement is not None and replacement.has <= shape.union(facts.methods if facts else ()):
                return self.ours(replacement)
        return target

    def ours(self, replacement: Replacement) -> Definition:
        """Return one of our replacements as a symbol."""
        return Definition(replacement_module(self.library, replacement.file), replacement.name)

    # -- outside the corpus --------------------------------------------------------------------------------------

    def _link_external(
        self, module: Module, use: Use, target: External, consumed: int, alias: Alias | None
    ) -> list[NameLink]:
        optional = NameLink(use, OptionalPackage(target.package, use.name), consumed)
        if target.optional:
            return [optional]
        binders = module.find_binders(use.name)
        if consumed or alias is not None or not binders:
            # Reached through an attribute of another module or a star import: imported from where it is defined.
            name = target.name or target.package.rpartition(".")[2]
            bound = name if consumed or alias is None else alias.bound
            return [NameLink(use, Import(target.package, target.name, True, bound), consumed)]
        if self._is_absent(module, use.name, target):
            return [optional]
        return [NameLink(use, symbol, 0) for symbol in self._list_imports(module, use, target)]

    def _list_imports(self, module: Module, use: Use, chosen: External) -> list[Import]:
        """Return the imports that a use of a name needs: `torch.utils.checkpoint.x` needs that submodule, too."""
        needed: list[tuple[Import, int]] = []
        for alias in module.find_aliases(use.name):
            target = self.library.resolve_alias(module, alias)
            if isinstance(target, External) and target.runtime == chosen.runtime:
                symbol = Import(target.package, target.name, target.whole or bool(target.name), use.name)
                needed.append((symbol, len(target.package.split("."))))
        if not needed:
            return []
        if any(symbol.whole for symbol, _ in needed):
            return [symbol for symbol, _ in needed if symbol.whole][-1:]
        chain = (use.name, *use.attributes)
        matching = [s for s, depth in needed if tuple(s.package.split(".")) == chain[:depth] and depth > 1]
        plain = [symbol for symbol, depth in needed if depth == 1]
        if plain and len(chain) > 1 and RUNTIME_NAMES.is_submodule(chain[0], chain[1]):
            # `import xml`, then `xml.dom`: this works once anything has imported the submodule.
            matching.append(Import(f"{chain[0]}.{chain[1]}", "", False, use.name))
        return list(dict.fromkeys([*plain[:1], *matching])) or [needed[0][0]]

    def note_import(self, module: Module, use: Use, target: Target | None, required: Container[str]) -> list[Import]:
        """Return the imports that an annotation's name needs; empty if it is outside the runtime and these packages."""
        if not isinstance(target, External):
            return []
        package = target.package.split(".")[0]
        needed = package in required and is_required(module.source.requires, package)
        # Without a binder it is imported for type checkers only.
        if not target.runtime and not (needed and module.find_binders(use.name)):
            return []
        if not module.find_binders(use.name) or use.local >= 0:
            return [Import(target.package, target.name, True, use.name)] if target.name else []
        return self._list_imports(module, use, target)

    # -- native operators ----------------------------------------------------------------------------------------

    def _native_link(self, module: Module, use: Use, target: Target, consumed: int) -> NameLink | Problem | None:
        """Return the link or problem for a call into an extension: `_C.nms(...)`, `torch.ops.detectron2.nms(...)`."""
        chain = use.attributes
        if _read_operator(use, target):
            # Operators of torch itself and of the declared runtime are available wherever the block runs.
            if chain[1] in _TORCH_OPS or chain[1] in RUNTIME:
                return None
            native = self._link_operator(use, chain[2], 3)
            # An operator of an optional package: its source runs without the package, and so does the block.
            own = self.library.knows(module, chain[1])
            return native if isinstance(native, NameLink) or own else None
        # A loaded extension module: `ext_module = ext_loader.load_ext("_ext", [...])`.
        if isinstance(target, Definition) and any(
            statement.kind == ASSIGN and use.attributes[-1:] == ("load_ext",)
            for statement in target.module.find_binders(target.name)
            for use in statement.uses
        ):
            return self._link_operator(use, chain[consumed], consumed + 1) if len(chain) > consumed else None
        compiled = isinstance(target, Missing) or (isinstance(target, External) and not target.runtime)
        if isinstance(target, Definition) and target.module.find_aliases(target.name, "failed"):
            compiled = not any(s.uses or s.kind != ASSIGN for s in target.module.find_binders(target.name))  # `= None`
        if compiled and len(chain) > consumed and find_operator(chain[consumed]) is not None:
            return self._link_operator(use, chain[consumed], consumed + 1)
        if isinstance(target, Missing) and not consumed and use.local < 0:
            for alias in module.find_aliases(use.name):
                if is_extension(alias.module):
                    return self._link_operator(use, alias.name, 0, alias.module)
                if is_extension(alias.name):
                    return self._link_operator(use, use.name, 0, ".".join(filter(None, (alias.module, alias.name))))
        return None

    def _link_operator(self, use: Use, operator: str, consumed: int, extension: str = "") -> NameLink | Problem:
        """Return the link to our operator; without one, what is called later fails then, as where nobody built it."""
        operator_replacement = find_operator(operator)
        if operator_replacement is not None:
            return NameLink(use, self.ours(operator_replacement), consumed)
        if extension and use.when == AT_CALL:
            return NameLink(use, OptionalPackage(extension, use.name), consumed)
        name = ".".join((use.name, *use.attributes[:consumed]))
        return Problem(Reason.NATIVE_OP, f"{name} is a compiled operator without a replacement")

    # -- registries and decorators -------------------------------------------------------------------------------

    def _is_droppable(self, module: Module, statement: Statement, decorator: Decorator) -> bool:
        """Return whether a decorator only records or documents the function or class that it decorates."""
        chain = decorator.chain
        if not chain:
            return False
        if "docstring" in chain[-1]:
            return True
        # A more indented decorator belongs to a method, which keeps it.
        if decorator.column != statement.column:
            return False
        if statement.kind == CLASS and self._is_configuration(module, statement):
            return True
        if chain[-1] in {"register_module", "register"} and (len(chain) > 1 or "egist" in chain[0]):
            return True
        target, rest = self.library.follow(module, chain)
        if not isinstance(target, Definition):
            return False
        if rest:
            return len(rest) == 1 and self.registrations.has_registering_method(target, rest[0])
        return all(s.kind == FUNCTION and s.registers for s in target.module.find_binders(target.name))

    def _is_absent(self, module: Module, name: str, target: External) -> bool:
        """Return whether a package is taken as not installed where a name is imported from it."""
        if target.optional:
            return True
        imports = [statement for statement in module.find_binders(name) if statement.kind == IMPORT]
        if not imports or not all(statement.path for statement in imports):
            return False
        if target.runtime:
            return not RUNTIME_NAMES.has(target.package, target.name)
        return not is_required(module.source.requires, target.package)

    def _is_configuration(self, module: Module, statement: Statement) -> bool:
        """Return whether a class derives from our replacement for configurations; it needs no validating decorators."""
        bases = list_bases(self.library, Definition(module, statement.binds[0]))
        ours = [DEFINITIONS.get(base.name) for base in bases]
        return any(definition is not None and definition.name == "PreTrainedConfig" for definition in ours)


def list_kept_blocks(module: Module, statement: Statement) -> tuple[int, ...]:
    """Return the `if` and `try` blocks around a statement that remain in the file; others are decided statically."""
    return tuple(number for number, _ in statement.path if not module.facts.blocks[number].static)


def _read_operator(use: Use, target: Target) -> tuple[str, ...]:
    """Return namespace and name of the operator in `torch.ops.NAMESPACE.NAME`; empty for anything else."""
    torch = isinstance(target, External) and target.binding_module == "torch"
    return use.attributes[1:3] if torch and use.attributes[:1] == ("ops",) and len(use.attributes) > 2 else ()


def _locate(module: Module, at: Statement | Use) -> str:
    """Return the position of a statement, or of the statement around a use, as text."""
    statements = [at] if isinstance(at, Statement) else module.facts.statements
    line = next((s.line for s in statements if s is at or s.start <= at.start < s.end), 0)
    return f"{module.source.name} {module.file.path}:{line}"
