"""Possible values of computed strings, without running anything: for code that looks up code by strings.

The values come from constants and tables of all imported files, defaults of parameters, and the arguments of the calls
in a block's own statements (a function that only these call gets no others). They are propagated through operators,
formatted strings, string methods and loops.
"""

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from extract.resolve.dependencies import DependencyGraph
from extract.resolve.discover import Found
from extract.resolve.modules import Definition, Module
from extract.resolve.symbols import StatementNode
from extract.resolve.values import UNKNOWN, binary, call_builtin, subscript
from lemur_core.source.changes import Sought, search_at
from lemur_core.source.facts import ASSIGN
from lemur_core.source.text import Lines, normalise

_MOST = 200  # maximum number of values of one expression
_DEEPEST = 12
_STRING_METHODS = frozenset({
    "capitalize", "format", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rpartition", "rsplit", "rstrip", "split", "strip", "title", "upper",
})  # fmt: skip
_BUILTINS = frozenset({"dict", "enumerate", "len", "list", "reversed", "sorted", "str", "tuple", "zip"})

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_PLAIN = (str, int, float, bool, type(None))


class PossibleValues(NamedTuple):
    """Possible values of an expression, and whether the list is complete."""

    values: tuple[object, ...]
    whole: bool

    @property
    def texts(self) -> list[str]:
        """The values that are strings."""
        return [value for value in self.values if isinstance(value, str)]


class Scope(NamedTuple):
    """Scope of an expression."""

    module: Module
    functions: tuple[_Function, ...] = ()  # that contain it, the outermost first
    owner: str = ""  # the module-level class that contains them


_NOTHING = PossibleValues((), False)


class File:
    """A parsed file: its lookups, calls and assignments by their positions in the text."""

    def __init__(self, module: Module) -> None:
        text = normalise(module.source.read(module.file))
        self.lines = Lines(text)
        self.parents: dict[int, ast.AST] = {}
        self.sought: dict[int, tuple[Sought, Scope]] = {}
        self.calls: dict[tuple[int, int], tuple[ast.Call, Scope]] = {}  # by start and end of the called expression
        self.assigned: dict[str, list[ast.expr]] = {}  # at module level
        self._bound: dict[int, dict[str, list[_Binding]]] = {}
        self._tree = ast.parse(text)  # kept alive, so that ids remain valid
        waiting: list[tuple[ast.AST, Scope]] = [(self._tree, Scope(module))]
        while waiting:
            node, scope = waiting.pop()
            self._note(node, scope)
            for child in ast.iter_child_nodes(node):
                self.parents[id(child)] = node
                waiting.append((child, _within(node, child, scope)))

    def bindings(self, function: _Function) -> dict[str, list["_Binding"]]:
        """Return the bindings of a function's own names."""
        if id(function) not in self._bound:
            self._bound[id(function)] = _bindings(function)
        return self._bound[id(function)]

    def _note(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.expr):
            sought = search_at(node)
            if sought is not None:
                self.sought[self.lines.span(node)[0]] = sought, scope
            if isinstance(node, ast.Call):
                self.calls[self.lines.span(node.func)] = node, scope
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not scope.functions and not scope.owner and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    self.assigned.setdefault(target.id, []).append(node.value)


def _within(node: ast.AST, child: ast.AST, scope: Scope) -> Scope:
    """Return the scope of a part of a node."""
    if isinstance(node, _FUNCTIONS) and child in (node.body if isinstance(node.body, list) else [node.body]):
        return scope._replace(functions=(*scope.functions, node))
    if isinstance(node, ast.ClassDef) and not scope.functions and not scope.owner and child in node.body:
        return scope._replace(owner=node.name)
    return scope


class StringAnalysis:
    """Possible values of expressions in the statements of one block's file, as collected so far."""

    def __init__(
        self, graph: DependencyGraph, root: Found, nodes: Mapping[tuple[str, str, int], StatementNode]
    ) -> None:
        self._graph = graph
        self._root = root
        self._nodes = nodes
        self._running: set[tuple[int, str]] = set()

    def searches(self, node: StatementNode) -> Iterator[tuple[Sought, Scope]]:
        """Yield the lookups of code by strings in a statement."""
        file = self._file(node.module)
        for start in sorted(file.sought):
            if node.statement.start <= start < node.statement.end:
                yield file.sought[start]

    def span(self, module: Module, node: ast.expr) -> tuple[int, int]:
        """Return start and end offset of an expression."""
        return self._file(module).lines.span(node)

    def attributes(self, node: ast.expr, scope: Scope) -> tuple[str, ...]:
        """Return the attributes that are read from the result of an expression; empty unless all are known."""
        parents = self._file(scope.module).parents
        parent = parents[id(node)]
        match parent:
            case ast.Attribute(attr="__dict__"):
                above = parents[id(parent)]
                known = self.values(above.slice, scope) if isinstance(above, ast.Subscript) else _NOTHING
            case ast.Attribute(attr=name):
                return (name,)
            case ast.Call(func=ast.Name(id="getattr"), args=[first, asked, *_]) if first is node:
                known = self.values(asked, scope)
            case ast.Assign(targets=[ast.Name(id=name)]) if scope.functions:
                names = [item for item in ast.walk(scope.functions[-1]) if isinstance(item, ast.Name)]
                reads = [item for item in names if item.id == name and isinstance(item.ctx, ast.Load)]
                attributes = [self.attributes(item, scope) for item in reads]
                return tuple(dict.fromkeys(itertools.chain(*attributes))) if all(attributes) else ()
            case _:
                return ()
        return tuple(dict.fromkeys(known.texts)) if known.whole else ()

    def _file(self, module: Module) -> File:
        return self._graph.parsed(module, File)

    # -- expressions ---------------------------------------------------------------------------------------------

    def values(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> PossibleValues:
        """Return the possible values of an expression."""
        if depth > _DEEPEST:
            return _NOTHING

        def inner(item: ast.expr | None) -> PossibleValues:
            return self.values(item, scope, depth + 1)

        match node:
            case ast.Constant(value=constant) if isinstance(constant, _PLAIN):
                return PossibleValues((constant,), True)
            case ast.JoinedStr(values=parts):
                return _combine(lambda *texts: "".join(texts), map(inner, parts))
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return _combine(
                    lambda left_value: str(left_value) if isinstance(left_value, _PLAIN) else UNKNOWN, [inner(value)]
                )
            case ast.BinOp(left=left, op=kind, right=right):
                return _combine(
                    lambda left_value, right_value: binary(kind, left_value, right_value), [inner(left), inner(right)]
                )
            case ast.IfExp(body=body, orelse=orelse):
                return _unite([inner(body), inner(orelse)])
            case ast.BoolOp(values=parts):
                return _unite(map(inner, parts))
            case ast.NamedExpr(value=value):
                return inner(value)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return _combine(lambda *values: values, map(inner, items))
            case ast.ListComp(elt=item) | ast.SetComp(elt=item) | ast.GeneratorExp(elt=item):
                values = inner(item)
                return PossibleValues((_alternatives(values),), True)
            case ast.Dict(keys=keys, values=items) if None not in keys:
                pairs = [
                    _combine(lambda *pair: pair, [inner(key), inner(item)])
                    for key, item in zip(keys, items, strict=True)
                ]
                return _combine(lambda *values: dict(values) if UNKNOWN not in dict(values) else UNKNOWN, pairs)
            case ast.Subscript(value=holder, slice=index):
                return _subscript(inner(holder), inner(index))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                target = self._graph.library.lookup(scope.module, name)
                return self._global(target, attribute, depth) if isinstance(target, Module) else _NOTHING
            case ast.Name(id=name):
                return self._name(name, scope, depth)
            case ast.Call():
                return self._call(node, scope, depth)
        return _NOTHING

    def _call(self, node: ast.Call, scope: Scope, depth: int) -> PossibleValues:
        if node.keywords or any(isinstance(item, ast.Starred) for item in node.args):
            return _NOTHING
        args = [self.values(item, scope, depth + 1) for item in node.args]
        match node.func:
            case ast.Name(id=name) if name in _BUILTINS:
                return _combine(lambda *items: call_builtin(name, items), args)
            case ast.Attribute(value=holder, attr="get") if args:
                return _unite([_subscript(self.values(holder, scope, depth + 1), args[0]), *args[1:]])
            case ast.Attribute(value=holder, attr=method):
                return _combine(
                    lambda receiver, *items: _method(receiver, method, items),
                    [self.values(holder, scope, depth + 1), *args],
                )
        return _NOTHING

    # -- names ---------------------------------------------------------------------------------------------------

    def _name(self, name: str, scope: Scope, depth: int) -> PossibleValues:
        for level in range(len(scope.functions) - 1, -1, -1):
            function = scope.functions[level]
            bound = self._file(scope.module).bindings(function).get(name, [])
            if bound or name in _parameters(function):
                return self._local(name, bound, scope._replace(functions=scope.functions[: level + 1]), depth)
        if name in {"__name__", "__package__"}:
            return PossibleValues((scope.module.name if name == "__name__" else scope.module.package,), True)
        return self._global(scope.module, name, depth)

    def _local(self, name: str, bound: Sequence["_Binding"], scope: Scope, depth: int) -> PossibleValues:
        function = scope.functions[-1]
        key = id(function), name
        if key in self._running:
            return _NOTHING
        self._running.add(key)
        values = [self._evaluate_parameter(name, scope, depth)] if name in _parameters(function) else []
        for value, each, path in bound:
            known = self.values(value, scope, depth + 1)
            if each:
                known = _items(known)
            for index in path:
                known = _subscript(known, PossibleValues((index,), True))
            values.append(known)
        self._running.discard(key)
        return _unite(values)

    def _global(self, module: Module, name: str, depth: int) -> PossibleValues:
        """Return the value of a module-level constant that nothing changes."""
        target = self._graph.library.lookup(module, name)
        if not isinstance(target, Definition):
            return _NOTHING
        members = self._graph.members(target)
        filled = self._graph.fillings.of(target, self._root.module)
        assigned = self._file(target.module).assigned.get(target.name, [])
        if any(target.name in statement.late for statement in target.module.facts.statements):
            return _NOTHING  # a function rebinds it
        if len(members) != 1 or members[0].statement.kind != ASSIGN or filled or len(assigned) != 1:
            return _NOTHING
        return self.values(assigned[0], Scope(target.module), depth + 1)

    def _evaluate_parameter(self, name: str, scope: Scope, depth: int) -> PossibleValues:
        """Return the possible values of a parameter: its default, and the arguments of the calls in the file."""
        function = scope.functions[-1]
        default = _default(function, name)
        outside = Scope(scope.module, scope.functions[:-1], scope.owner)
        by_default = self.values(default, outside, depth + 1) if default is not None else _NOTHING
        called = "" if isinstance(function, ast.Lambda) else scope.owner or function.name
        constructs = scope.owner and getattr(function, "name", "") == "__init__"
        if len(scope.functions) > 1 or not called or (scope.owner and not constructs):
            return _unite([by_default, _NOTHING])
        calls = self._find_calls(Definition(scope.module, called))
        values = [] if calls is not None else [by_default, _NOTHING]
        for call, call_scope in calls or ():
            argument = _argument(function, name, call, bool(constructs))
            if argument is None:
                values.append(by_default)
            else:
                values.append(self.values(argument, call_scope, depth + 1))
        return _unite(values)

    def _find_calls(self, target: Definition) -> list[tuple[ast.Call, Scope]] | None:
        """Return the calls of a function or class in the block's statements; None if other code may call it, too."""
        if target == self._root.root:
            return None
        calls = []
        for node in list(self._nodes.values()):
            for links in self._graph.iter_links(node):
                for link in links.links:
                    if link.symbol != target or link.use.checked or link.use.start < 0:
                        continue
                    span = link.use.start, link.use.ends[link.consumed]
                    call = self._file(node.module).calls.get(span)
                    if call is None:
                        return None
                    calls.append(call)
        return calls or None


# -- values ------------------------------------------------------------------------------------------------------------


def _alternatives(known: PossibleValues) -> tuple[object, ...]:
    return known.values if known.whole else (*known.values, UNKNOWN)


def _combine(function: Callable[..., object], parts: Iterable[PossibleValues]) -> PossibleValues:
    """Return the results for every combination of values."""
    choices = [_alternatives(part) for part in parts]
    size = 1
    for choice in choices:
        size *= len(choice)
        if size > _MOST:
            return _NOTHING
    results: list[object] = []
    for items in itertools.product(*choices):
        try:
            results.append(function(*items))
        except (TypeError, ValueError, LookupError):  # no run that gets here would raise these
            results.append(UNKNOWN)
    return _deduplicate(results, True)


def _unite(parts: Iterable[PossibleValues]) -> PossibleValues:
    known = list(parts)
    return _deduplicate([value for part in known for value in part.values], all(part.whole for part in known))


def _deduplicate(values: Sequence[object], whole: bool) -> PossibleValues:
    by_text = {repr(value): value for value in values if value is not UNKNOWN}
    whole = whole and not any(value is UNKNOWN for value in values) and len(by_text) <= _MOST
    return PossibleValues(tuple(by_text.values())[:_MOST], whole)


def _subscript(holder: PossibleValues, index: PossibleValues) -> PossibleValues:
    """Return the values of `holder[index]`; all items if the index is unknown."""
    if index.whole and index.values:
        return _combine(subscript, [holder, index])
    return _items(
        PossibleValues(tuple([*v.values()] if isinstance(v, dict) else v for v in holder.values), holder.whole)
    )


def _items(holder: PossibleValues) -> PossibleValues:
    """Return the items of an iterable, in the form in which a loop sees them."""
    if not all(isinstance(value, list | tuple | dict) for value in holder.values):
        return _NOTHING
    return _deduplicate([item for value in holder.values for item in value], holder.whole)  # type: ignore[attr-defined]


def _method(holder: object, name: str, args: Sequence[object]) -> object:
    if isinstance(holder, dict) and name in {"items", "keys", "values"} and not args:
        return [*getattr(holder, name)()]
    plain = all(isinstance(item, _PLAIN) or (name == "join" and UNKNOWN not in item) for item in args)  # type: ignore[operator]
    if isinstance(holder, str) and name in _STRING_METHODS and plain:
        result: object = getattr(holder, name)(*args)
        return result
    return UNKNOWN


# -- functions ---------------------------------------------------------------------------------------------------------


class _Binding(NamedTuple):
    """A binding of a function's local name: to a value, or to each item of it, and the index path into that."""

    value: ast.expr | None
    each: bool
    path: tuple[int, ...]


def _parameters(function: _Function) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [item.arg for item in named if item is not None]


def _default(function: _Function, name: str) -> ast.expr | None:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(plain[len(plain) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((value for item, value in pairs if item.arg == name), None)


def _argument(function: _Function, name: str, call: ast.Call, constructs: bool) -> ast.expr | None:
    """Return the expression that a call passes for a parameter; None if the default applies."""
    plain = [item.arg for item in (*function.args.posonlyargs, *function.args.args)][constructs:]
    spread = any(isinstance(item, ast.Starred) for item in call.args) or any(word.arg is None for word in call.keywords)
    arguments = dict(zip(plain, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
    if spread or name in {getattr(item, "arg", "") for item in (function.args.vararg, function.args.kwarg)}:
        return ast.Starred(ast.Constant(None))  # unknown
    return arguments.get(name)


def _bindings(function: _Function) -> dict[str, list[_Binding]]:
    """Return the bindings of a function's own names, including those in comprehensions."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    bindings: dict[str, list[_Binding]] = {}
    shared: set[str] = set()
    while waiting:
        node = waiting.pop()
        targets: Sequence[ast.expr] = ()
        value: ast.expr | None = None
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                targets = [target]
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                targets = [target]
            case ast.AugAssign(target=target) | ast.withitem(optional_vars=ast.expr() as target):
                targets = [target]
            case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
                targets = [ast.Name(bound)]
            case ast.ExceptHandler(name=str() as bound):
                targets = [ast.Name(bound)]
            case ast.alias(name=dotted, asname=bound):
                targets = [ast.Name(bound or dotted.partition(".")[0])]
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                shared.update(names)
        each = isinstance(node, ast.For | ast.comprehension)
        for name, path in (pair for target in targets for pair in _paths(target)):
            bindings.setdefault(name, []).append(_Binding(None if -1 in path else value, each, path))
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return {name: items for name, items in bindings.items() if name not in shared}


def _paths(target: ast.expr, path: tuple[int, ...] = ()) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names in an assignment target with their index path; -1 for parts without an index."""
    if isinstance(target, ast.Name):
        yield target.id, path
    elif isinstance(target, ast.Starred):
        yield from _paths(target.value, (*path, -1))
    elif isinstance(target, ast.Tuple | ast.List):
        for index, item in enumerate(target.elts):
            yield from _paths(item, (*path, index))
