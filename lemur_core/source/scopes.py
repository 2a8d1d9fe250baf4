"""The global names that a statement reads and binds, by Python's own scope rules.

Covers function, class, lambda and comprehension scopes, `global`, `nonlocal`, assignment expressions, `match`
captures, imports inside functions, and whether code runs with the statement or later.
Source of the rules: https://docs.python.org/3/reference/executionmodel.html#naming-and-binding
"""

import ast
import builtins
import re
from collections.abc import Callable, Container, Iterable
from operator import attrgetter

from lemur_core.source.facts import AT_CALL, AT_DEFINITION, IN_ANNOTATION, Alias, LocalImport, NameStore, Use
from lemur_core.source.text import Lines, list_children, parse_expression

BUILTINS = frozenset(dir(builtins)) | {
    "__file__", "__name__", "__path__", "__package__", "__spec__", "__loader__", "__class__", "__builtins__",
    "__qualname__", "__module__", "__annotations__", "WindowsError", "__dict__",
}  # fmt: skip

_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return, ast.Delete, ast.Assert, ast.Raise)
_BRANCHING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match)
#: The statement `type A = B`, since Python 3.12.
TYPE_ALIAS: tuple[type[ast.AST], ...] = tuple(filter(None, [getattr(ast, "TypeAlias", None)]))
_MODULE, _FUNCTION, _CLASS, _COMPREHENSION = range(4)
_WORD = re.compile(rb"(?<![\w.\x80-\xff])[\w\x80-\xff]+")


class _NameScope:
    __slots__ = ("bound", "branches", "first", "globals", "imports", "kind", "nonlocals", "parent", "unsure")

    def __init__(self, kind: int, parent: "_NameScope | None") -> None:
        self.kind = kind
        self.parent = parent
        self.bound: dict[str, int] = {}  # number of bindings of the name
        self.first: dict[str, int] = {}  # offset of the first binding
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()
        self.imports: dict[str, list[int]] = {}  # name -> entries of Names.locals
        self.branches = 0  # class bodies: depth of `if`, loops and the like
        self.unsure: set[str] = set()  # class bodies: names first bound in a branch

    def bind(self, name: str, offset: int) -> None:
        if self.branches and name not in self.bound:
            self.unsure.add(name)
        self.bound[name] = self.bound.get(name, 0) + 1
        self.first.setdefault(name, offset)


class ScopeNames:
    """Names of one statement; read `uses()`, `binds`, `stores`, `locals`, `touches`, `calls`, `types` after `visit`."""

    def __init__(self, lines: Lines, *, deferred: bool = False) -> None:
        self._lines = lines
        self._deferred = deferred  # `from __future__ import annotations`: none of them runs
        self._module = _NameScope(_MODULE, None)
        self._loads: list[tuple[_NameScope, Use]] = []
        self._callees: set[ast.expr] = set()
        self._kinds: set[ast.expr] = set()  # classes in `isinstance` checks
        self._global_stores: list[tuple[_NameScope, NameStore]] = []
        self._local_scopes: list[_NameScope] = []
        self._scopes: list[_NameScope] = []
        self._locals: list[LocalImport] = []
        self._guards = 0
        self._simple_end = 0  # end of the current simple statement
        self.touches: list[str] = []
        self.calls = False
        self.decorated: list[ast.expr] = []
        self.types: list[str] = []

    def visit(self, node: ast.AST) -> None:
        """Add one top-level statement (or expression)."""
        self._statement(node, self._module, AT_DEFINITION)

    @property
    def binds(self) -> tuple[str, ...]:
        """Global names bound when the statement runs."""
        return tuple(self._module.bound)

    @property
    def late(self) -> tuple[str, ...]:
        """Global names that the statement's functions bind, declared as `global`."""
        return tuple(dict.fromkeys(store.name for store in self.stores if store.name not in self._module.bound))

    @property
    def stores(self) -> tuple[NameStore, ...]:
        """Bindings of global names, sorted."""
        return tuple(
            sorted(
                {s for scope, s in self._global_stores if self._is_global(scope, s.name)},
                key=attrgetter("start", "name"),
            )
        )

    @property
    def shadows(self) -> tuple[str, ...]:
        """Names bound in the function, class and comprehension scopes inside the statement."""
        return tuple(sorted({name for scope in self._scopes for name in scope.bound if name not in scope.globals}))

    @property
    def locals(self) -> tuple[LocalImport, ...]:
        """Imports inside functions and classes."""
        result = []
        for entry, scope in zip(self._locals, self._local_scopes, strict=True):
            bound = entry.alias.bound
            alone = scope.bound.get(bound, 0) == 1 and not entry.is_global and not entry.in_class
            result.append(entry._replace(stand_alone=alone and not self._is_captured(scope, bound)))
        return tuple(result)

    def _is_captured(self, scope: _NameScope, name: str) -> bool:
        """Return whether an enclosing function binds the name too."""
        around = scope.parent
        return around is not None and (
            (around.kind in {_FUNCTION, _COMPREHENSION} and name in around.bound) or self._is_captured(around, name)
        )

    def uses(self, known: Iterable[str]) -> tuple[Use, ...]:
        """Return reads of global names; of builtins only those in `known`, which the module binds itself."""
        known = set(known)
        shadowed = BUILTINS & known
        result = set()
        text = self._lines.text
        for scope, use in self._loads:
            # Its position is not that of the name (in an f-string before Python 3.12, or an identifier that Python
            # normalizes): it cannot be renamed.
            if use.start >= 0 and text[use.start : use.ends[0]] != use.name.encode():
                use = use._replace(start=-1)
            local = self._find(scope, use.name, use.start)
            # The class's own or the global one, if there is any, decided at run time: it cannot be renamed.
            if use.name in scope.unsure and (use.name in known or use.name in BUILTINS or "*" in known):
                local, use = None, use._replace(start=-1)
            if local is None:
                if use.name not in BUILTINS or use.name in shadowed:
                    result.add(use)
            elif use.name in local.imports:
                result.update(use._replace(local=entry) for entry in local.imports[use.name])
        return tuple(sorted(result))

    # -- scopes --------------------------------------------------------------------------------------------------

    def _is_global(self, scope: _NameScope, name: str) -> bool:
        return scope.kind == _MODULE or name in scope.globals

    def _find(self, scope: _NameScope, name: str, offset: int) -> _NameScope | None:
        """Return the scope in which a read of `name` in `scope` finds it; None for the module's."""
        current: _NameScope | None = scope
        while current is not None and current.kind != _MODULE:
            if current is scope or current.kind != _CLASS:
                if name in current.globals:
                    return None
                if name in current.bound and name not in current.nonlocals:
                    # A class body reads the global name until it binds its own.
                    early = current.kind == _CLASS and offset <= current.first[name]
                    return None if early else current
            current = current.parent
        return None

    def _inner(self, kind: int, parent: _NameScope) -> _NameScope:
        scope = _NameScope(kind, parent)
        self._scopes.append(scope)
        return scope

    def _bind(self, scope: _NameScope, store: NameStore, since: int = 0) -> None:
        """Bind a name; a class body reads its own from `since` on: in `x = x` the value is still the outer one."""
        self._global_stores.append((scope, store))
        scope.bind(store.name, max(store.start, since or self._simple_end))

    # -- positions -----------------------------------------------------------------------------------------------

    def _start(self, node: ast.expr | ast.stmt | ast.excepthandler | ast.pattern) -> int:
        return self._lines.span(node)[0]

    def _end(self, node: ast.expr | ast.stmt | ast.pattern) -> int:
        return self._lines.span(node)[1]

    def _word(self, name: str, start: int, end: int) -> NameStore:
        """Return the position of a name as a whole word between two offsets."""
        words = _WORD.finditer(self._lines.text, start, end)
        word = name.encode()
        at = next((match.start() for match in words if match[0] == word), start)
        return NameStore(name, at, at + len(word))

    # -- the walk ------------------------------------------------------------------------------------------------

    def _statement(self, node: ast.AST, scope: _NameScope, when: int) -> None:
        if isinstance(node, _SIMPLE):
            self._simple_end = self._end(node)
        elif isinstance(node, ast.stmt):
            self._simple_end = 0
        branches = scope.kind == _CLASS and isinstance(node, _BRANCHING)
        scope.branches += branches
        method = _STATEMENTS.get(type(node))
        if method is None:
            self._children(node, scope, when)
        else:
            method(self, node, scope, when)
        scope.branches -= branches

    def _children(self, node: ast.AST, scope: _NameScope, when: int) -> None:
        for child in list_children(node):
            self._statement(child, scope, when)

    def _visit_all(self, nodes: Iterable[ast.AST | None], scope: _NameScope, when: int) -> None:
        for node in nodes:
            if node is not None:
                self._statement(node, scope, when)

    def _name(self, node: ast.Name, scope: _NameScope, when: int) -> None:
        start, end = self._start(node), self._end(node)
        if isinstance(node.ctx, ast.Load):
            self._loads.append((scope, Use(node.id, (), when, start, (end,), -1, *self._part(node))))
        else:
            self._bind(scope, NameStore(node.id, start, end))

    def _attribute(self, node: ast.Attribute, scope: _NameScope, when: int) -> None:
        chain: list[ast.Attribute] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            chain.append(inner)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            self._statement(inner, scope, when)
            return
        chain.reverse()
        ends = (self._end(inner), *(self._end(part) for part in chain))
        names = tuple(part.attr for part in chain)
        self._loads.append((scope, Use(inner.id, names, when, self._start(inner), ends, -1, *self._part(node))))
        if not isinstance(node.ctx, ast.Load):
            self._touch(inner, scope)

    def _part(self, node: ast.expr) -> tuple[bool, int, bool]:
        """Return whether an expression is called, no string offset, and whether it is in an `isinstance` check."""
        return node in self._callees, -1, node in self._kinds

    def _touch(self, node: ast.expr, scope: _NameScope) -> None:
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name) and scope.kind == _MODULE:
            self.touches.append(node.id)

    def _subscript(self, node: ast.Subscript, scope: _NameScope, when: int) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._touch(node, scope)
        self._statement(node.value, scope, when)
        if when == IN_ANNOTATION and isinstance(node.slice, ast.AST):
            head = last_name(node.value)
            if head == "Literal":  # its strings are values, not names; a member of an enumeration is looked up
                values = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                self._visit_all([v for v in values if not isinstance(v, ast.Constant)], scope, when)
                return
            if head == "Annotated" and isinstance(node.slice, ast.Tuple) and node.slice.elts:
                self._statement(node.slice.elts[0], scope, when)
                self._visit_all(node.slice.elts[1:], scope, AT_DEFINITION if scope.kind == _MODULE else AT_CALL)
                return
        self._statement(node.slice, scope, when)

    def _constant(self, node: ast.Constant, scope: _NameScope, when: int) -> None:
        if when == IN_ANNOTATION and isinstance(node.value, str):
            self._note_string(node, node.value, scope)

    def _note_string(self, node: ast.Constant, text: str, scope: _NameScope) -> None:
        try:
            tree = parse_expression(text)
        except SyntaxError:
            return
        start, end = self._start(node), self._end(node)
        literal = self._lines.text[start:end]
        quotes = 3 if literal[:3] in {b'"""', b"'''"} else 1
        is_plain = "\n" not in text and text == text.strip() and literal[quotes:-quotes] == text.encode()
        for inner in ast.walk(tree):
            if isinstance(inner, ast.Name):
                inside = start + quotes + inner.col_offset if is_plain else -1
                self._loads.append((scope, Use(inner.id, (), IN_ANNOTATION, -1, (), -1, False, inside)))

    def _note(self, node: ast.expr | None, scope: _NameScope) -> None:
        if node is not None:
            self._statement(node, scope, IN_ANNOTATION)

    def _call(self, node: ast.Call, scope: _NameScope, when: int) -> None:
        if (
            when == IN_ANNOTATION and scope.kind != _FUNCTION and not self._deferred
        ):  # it runs with the statement, and needs what it calls
            when = AT_DEFINITION if scope.parent is None or scope.parent.kind == _MODULE else AT_CALL
        if when == AT_DEFINITION:
            self.calls = True
        self._callees.add(node.func)
        name = last_name(node.func)
        if name in {"isinstance", "issubclass"} and len(node.args) == 2:
            self._kinds.update(node.args[1].elts if isinstance(node.args[1], ast.Tuple) else node.args[1:])
        by_name = name == "cast" or (name == "wrap" and scope.kind == _MODULE)  # typing.cast("T", x), fx.wrap("f")
        if by_name and node.args and isinstance(node.args[0], ast.Constant):
            self._note(node.args[0], scope)
        for word in node.keywords:
            if word.arg == "type":
                self._type_string(word.value)
            elif word.arg == "bound" and isinstance(word.value, ast.Constant):
                self._note(word.value, scope)
        if node.args and name in {"get", "build", "register_module", "register"}:
            self._type_string(node.args[0])
        self._children(node, scope, when)

    def _type_string(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.types.append(node.value)

    def _dict(self, node: ast.Dict, scope: _NameScope, when: int) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "type":
                self._type_string(value)
        self._children(node, scope, when)

    def _expression(self, node: ast.Expr, scope: _NameScope, when: int) -> None:
        call = node.value
        if scope.kind == _MODULE and isinstance(call, ast.Call):
            if isinstance(call.func, ast.Attribute):
                self._touch(call.func, scope)
            elif isinstance(call.func, ast.Name) and call.func.id in {"setattr", "delattr"} and call.args:
                self._touch(call.args[0], scope)
        self._statement(call, scope, when)

    def _augment(self, node: ast.AugAssign, scope: _NameScope, when: int) -> None:
        if isinstance(node.target, ast.Name):
            # `x += 1` reads x first, though its target is marked as stored only.
            start, end = self._start(node.target), self._end(node.target)
            self._loads.append((scope, Use(node.target.id, (), when, start, (end,), -1)))
        self._children(node, scope, when)

    def _annotation(self, node: ast.AnnAssign, scope: _NameScope, when: int) -> None:
        self._note(node.annotation, scope)
        if node.value is not None:
            self._visit_all([node.value, node.target], scope, when)
        elif isinstance(node.target, ast.Name):
            # `x: int` binds nothing, but makes x local to a function.
            if scope.kind == _FUNCTION:
                scope.bind(node.target.id, self._start(node.target))
        else:
            self._statement(node.target, scope, when)

    def _define(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
        scope: _NameScope,
        when: int,
    ) -> None:
        """Read the decorators, then bind the name."""
        self._callees.update(node.decorator_list)
        self.decorated.extend(node.decorator_list)
        self._visit_all(node.decorator_list, scope, when)
        end = self._end(node)
        self._bind(scope, self._word(node.name, self._start(node) + len("def"), end), end)
        if (node.decorator_list or (isinstance(node, ast.ClassDef) and node.keywords)) and when == AT_DEFINITION:
            self.calls = True

    def _callable(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: _NameScope, when: int
    ) -> None:
        if not isinstance(node, ast.Lambda):
            self._define(node, scope, when)
        args = node.args
        # Defaults are evaluated outside of the function, when it is defined.
        self._visit_all([*args.defaults, *args.kw_defaults], scope, when)
        scope = self._type_parameters(node, scope)
        inner = self._inner(_FUNCTION, scope)
        named = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        for argument in named:
            self._note(argument.annotation, scope)
            inner.bind(argument.arg, 0)
        self._note(getattr(node, "returns", None), scope)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._visit_all(body, inner, AT_CALL if when != IN_ANNOTATION else when)

    def _class(self, node: ast.ClassDef, scope: _NameScope, when: int) -> None:
        self._define(node, scope, when)
        scope = self._type_parameters(node, scope)
        self._visit_all([*node.bases, *node.keywords], scope, when)
        self._visit_all(node.body, self._inner(_CLASS, scope), when)

    def _type_parameters(self, node: ast.AST, scope: _NameScope) -> _NameScope:
        """Return the scope of the type parameters of Python 3.12, whose bounds are evaluated on demand."""
        parameters = getattr(node, "type_params", ())
        inner = self._inner(_FUNCTION, scope) if parameters else scope
        for parameter in parameters:
            inner.bind(parameter.name, 0)
        self._visit_all(parameters, inner, AT_CALL)
        return inner

    def _type_alias(self, node: ast.AST, scope: _NameScope, when: int) -> None:
        self._statement(node.name, scope, when)  # type: ignore[attr-defined]
        self._statement(node.value, self._type_parameters(node, scope), AT_CALL)  # type: ignore[attr-defined]

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, scope: _NameScope, when: int
    ) -> None:
        inner = self._inner(_COMPREHENSION, scope)
        for number, generator in enumerate(node.generators):
            self._statement(generator.iter, scope if number == 0 else inner, when)
            self._visit_all([generator.target, *generator.ifs], inner, when)
        if isinstance(node, ast.DictComp):
            self._visit_all([node.key, node.value], inner, when)
        else:
            self._statement(node.elt, inner, when)

    def _walrus(self, node: ast.NamedExpr, scope: _NameScope, when: int) -> None:
        self._statement(node.value, scope, when)
        holder = scope
        while holder.kind == _COMPREHENSION and holder.parent is not None:
            holder = holder.parent
        self._bind(holder, NameStore(node.target.id, self._start(node.target), self._end(node.target)))

    def _global(self, node: ast.Global, scope: _NameScope, _when: int) -> None:
        scope.globals.update(node.names)
        start, end = self._start(node), self._end(node)
        self._global_stores += [(self._module, self._word(name, start + len("global"), end)) for name in node.names]

    def _nonlocal(self, node: ast.Nonlocal, scope: _NameScope, _when: int) -> None:
        scope.nonlocals.update(node.names)

    def _handler(self, node: ast.ExceptHandler, scope: _NameScope, when: int) -> None:
        if node.type is not None:
            self._statement(node.type, scope, when)
        if node.name:
            start = self._end(node.type) if node.type else self._start(node)
            self._bind(scope, self._word(node.name, start, self._start(node.body[0])))
        self._visit_all(node.body, scope, when)

    def _try(self, node: ast.Try | ast.TryStar, scope: _NameScope, when: int) -> None:
        catches = catches_import(node)
        self._guards += catches
        self._visit_all(node.body, scope, when)
        self._guards -= catches
        self._visit_all([*node.handlers, *node.orelse, *node.finalbody], scope, when)

    def _loop(self, node: ast.For | ast.AsyncFor, scope: _NameScope, when: int) -> None:
        self._statement(node.iter, scope, when)
        self._simple_end = self._end(node.iter)
        self._statement(node.target, scope, when)
        self._visit_all([*node.body, *node.orelse], scope, when)

    def _capture(self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping, scope: _NameScope, when: int) -> None:
        self._children(node, scope, when)
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            inner = [item for item in list_children(node) if isinstance(item, ast.pattern | ast.expr)]
            start = max(map(self._end, inner), default=self._start(node))
            self._bind(scope, self._word(name, start, self._end(node)))

    def _import(self, node: ast.Import | ast.ImportFrom, scope: _NameScope, _when: int) -> None:
        start, end = self._start(node), self._end(node)
        for alias in import_aliases(node):
            scope.bind(alias.bound, start)
            is_global = scope.kind == _MODULE or alias.bound in scope.globals
            if not is_global:
                scope.imports.setdefault(alias.bound, []).append(len(self._locals))
            entry = LocalImport(alias, start, end, True, self._guards > 0, scope.kind == _CLASS, is_global)
            self._locals.append(entry)
            self._local_scopes.append(scope)


def fresh_name(wanted: str, taken: Container[str]) -> str:
    """Return the name with the lowest number that makes it unique, such as `Block_2`.

    Args: wanted: the name to be numbered, even if it is free itself. taken: all names that the result must differ from.
    Returns: a name that ends in `_2` or a higher number.
    """
    number = 2
    while f"{wanted}_{number}" in taken:
        number += 1
    return f"{wanted}_{number}"


def last_name(node: ast.expr) -> str:
    """Return the last name of an attribute chain.

    Args: node: any expression.
    Returns: `c` for `a.b.c`, for `f().c` and for `c`; empty for anything else.
    """
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def import_aliases(node: ast.Import | ast.ImportFrom) -> list[Alias]:
    """Return the names of an import statement; `bound` is "*" for a star import."""
    if isinstance(node, ast.Import):
        return [Alias(a.name, 0, "", a.asname or a.name.split(".")[0], bool(a.asname)) for a in node.names]
    return [Alias(node.module or "", node.level, a.name, a.asname or a.name, False) for a in node.names]


def catches_import(node: ast.Try | ast.TryStar) -> bool:
    """Return whether a `try` has a handler for a failed import."""
    return any(_takes_import_error(handler.type) for handler in node.handlers)


def _takes_import_error(node: ast.expr | None) -> bool:
    if node is None:
        return True
    if isinstance(node, ast.Tuple):
        return any(_takes_import_error(item) for item in node.elts)
    return last_name(node) in {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


_STATEMENTS: dict[type[ast.AST], Callable[..., None]] = {
    ast.Name: ScopeNames._name,
    ast.Attribute: ScopeNames._attribute,
    ast.Subscript: ScopeNames._subscript,
    ast.Constant: ScopeNames._constant,
    ast.Call: ScopeNames._call,
    ast.Dict: ScopeNames._dict,
    ast.Expr: ScopeNames._expression,
    ast.AugAssign: ScopeNames._augment,
    ast.AnnAssign: ScopeNames._annotation,
    ast.ClassDef: ScopeNames._class,
    ast.NamedExpr: ScopeNames._walrus,
    ast.Global: ScopeNames._global,
    ast.Nonlocal: ScopeNames._nonlocal,
    ast.ExceptHandler: ScopeNames._handler,
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda), ScopeNames._callable),
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), ScopeNames._comprehension),
    **dict.fromkeys((ast.For, ast.AsyncFor), ScopeNames._loop),
    **dict.fromkeys((ast.Try, ast.TryStar), ScopeNames._try),
    **dict.fromkeys((ast.MatchAs, ast.MatchStar, ast.MatchMapping), ScopeNames._capture),
    **dict.fromkeys((ast.Import, ast.ImportFrom), ScopeNames._import),
    **dict.fromkeys(TYPE_ALIAS, ScopeNames._type_alias),
}
