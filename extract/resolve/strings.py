"""Possible values of computed strings, without running anything: for code that looks up code by strings.

The values come from constants and tables of all imported files, defaults of parameters, and the arguments of the calls
in a block's own statements (a function that only these call gets no others). They are propagated through operators,
formatted strings, string methods and loops.
"""

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from extract.resolve.dependencies import DependencyGraph
from extract.resolve.discover import TargetClass
from extract.resolve.modules import Definition, Module
from extract.resolve.symbols import StatementNode
from lemur_core.source.changes import DynamicLookup, search_at
from lemur_core.source.facts import ASSIGN
from lemur_core.source.text import Lines, normalise, walk_scope
from lemur_core.source.values import UNKNOWN, Comprehension, Evaluator, call_builtin, keep, subscript

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


class StringScope(NamedTuple):
    """Scope of an expression."""

    module: Module
    functions: tuple[_Function, ...] = ()  # that contain it, the outermost first
    owner: str = ""  # the module-level class that contains them


_NOTHING = PossibleValues((), False)


class AnalyzedFile:
    """A parsed file: its lookups, calls and assignments by their positions in the text."""

    def __init__(self, module: Module) -> None:
        text = normalise(module.source.read(module.file))
        self.lines = Lines(text)
        self.parents: dict[int, ast.AST] = {}
        self.sought: dict[int, tuple[DynamicLookup, StringScope]] = {}
        self.calls: dict[tuple[int, int], tuple[ast.Call, StringScope]] = {}  # by the span of the called expression
        self.assigned: dict[str, list[ast.expr]] = {}  # at module level
        self._bound: dict[int, dict[str, list[_Binding]]] = {}
        self._tree = ast.parse(text)  # kept alive, so that ids remain valid
        waiting: list[tuple[ast.AST, StringScope]] = [(self._tree, StringScope(module))]
        while waiting:
            node, scope = waiting.pop()
            self._note(node, scope)
            inner = scope
            if isinstance(node, _FUNCTIONS):
                inner = scope._replace(functions=(*scope.functions, node))
            elif isinstance(node, ast.ClassDef) and not scope.functions and not scope.owner:
                inner = scope._replace(owner=node.name)
            body = getattr(node, "body", ())
            for child in ast.iter_child_nodes(node):
                self.parents[id(child)] = node
                waiting.append((child, inner if child is body or (isinstance(body, list) and child in body) else scope))

    def bindings(self, function: _Function) -> dict[str, list["_Binding"]]:
        """Return the bindings of a function's own names."""
        if id(function) not in self._bound:
            self._bound[id(function)] = _bindings(function)
        return self._bound[id(function)]

    def _note(self, node: ast.AST, scope: StringScope) -> None:
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


class StringAnalysis:
    """Possible values of expressions in the statements of one block's file, as collected so far."""

    def __init__(
        self, graph: DependencyGraph, root: TargetClass, nodes: Mapping[tuple[str, str, int], StatementNode]
    ) -> None:
        self._graph = graph
        self._root = root
        self._nodes = nodes

    def searches(self, node: StatementNode) -> Iterator[tuple[DynamicLookup, StringScope]]:
        """Yield the lookups of code by strings in a statement."""
        sought = self._file(node.module).sought
        yield from (sought[at] for at in sorted(sought) if node.statement.start <= at < node.statement.end)

    def span(self, module: Module, node: ast.expr) -> tuple[int, int]:
        """Return start and end offset of an expression."""
        return self._file(module).lines.span(node)

    def attributes(self, node: ast.expr, scope: StringScope) -> tuple[str, ...]:
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

    def _file(self, module: Module) -> AnalyzedFile:
        return self._graph.parse_once(module, AnalyzedFile)

    def values(self, node: ast.expr | None, scope: StringScope) -> PossibleValues:
        """Return the possible values of an expression: one run of the evaluator for each way through its choices."""
        results: list[object] = []
        taken: list[_Choice] = []
        while len(results) <= _MOST:
            run = _ChoiceRun(self, taken)
            results.append(UNKNOWN if node is None else run.value(node, scope))
            taken = run.taken
            # Depth first through the tree of choices: advance the last one that has an option left.
            while taken and taken[-1].which + 1 == taken[-1].options:
                taken.pop()
            if not taken:
                by_text = {repr(value): value for value in results if value is not UNKNOWN}
                whole = not any(value is UNKNOWN for value in results) and len(by_text) <= _MOST
                return PossibleValues(tuple(by_text.values())[:_MOST], whole)
            taken[-1] = taken[-1]._replace(which=taken[-1].which + 1)
        return _NOTHING

    def list_bindings(self, name: str, scope: StringScope) -> tuple[list["_Binding"], StringScope] | None:
        """Return the bindings of a name of an enclosing function, and the scope of that function; None for others."""
        for level in range(len(scope.functions) - 1, -1, -1):
            function = scope.functions[level]
            around = scope._replace(functions=scope.functions[: level + 1])
            bindings = list(self._file(scope.module).bindings(function).get(name, ()))
            if name in _defaults(function):
                return [*self._list_arguments(name, around), *bindings], around
            if bindings:
                return bindings, around
        return None

    def find_constant(self, module: Module, name: str) -> tuple[ast.expr, StringScope] | None:
        """Return the expression of a module-level constant that nothing changes."""
        target = self._graph.library.lookup(module, name)
        if not isinstance(target, Definition):
            return None
        members = self._graph.members(target)
        filled = self._graph.registrations.list_fillings(target, self._root.module)
        assigned = self._file(target.module).assigned.get(target.name, [])
        rebound = any(target.name in statement.late for statement in target.module.facts.statements)
        if rebound or len(members) != 1 or members[0].statement.kind != ASSIGN or filled or len(assigned) != 1:
            return None
        return assigned[0], StringScope(target.module)

    def _list_arguments(self, name: str, scope: StringScope) -> list["_Binding"]:
        """Return the values of a parameter: its default, and the arguments of the calls in the file."""
        function = scope.functions[-1]
        default = _Binding(_defaults(function)[name], False, (), scope._replace(functions=scope.functions[:-1]))
        called = "" if isinstance(function, ast.Lambda) else scope.owner or function.name
        constructs = bool(scope.owner) and getattr(function, "name", "") == "__init__"
        if len(scope.functions) > 1 or not called or (scope.owner and not constructs):
            return [default, _UNBOUND]
        calls = self._find_calls(Definition(scope.module, called))
        if calls is None:
            return [default, _UNBOUND]
        arguments = ((_argument(function, name, call, constructs), around) for call, around in calls)
        return [default if item is None else _Binding(item, False, (), around) for item, around in arguments]

    def _find_calls(self, target: Definition) -> list[tuple[ast.Call, StringScope]] | None:
        """Return the calls of a function or class in the block's statements; None if other code may call it, too."""
        # The block's own class is called by its user, with anything.
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
                    # The function is passed on as a value: whoever gets it may call it.
                    if call is None:
                        return None
                    calls.append(call)
        return calls or None


# -- values ------------------------------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    """A place where several values are possible: which one a run takes, and how many there are."""

    which: int
    options: int


class _ChoiceRun(Evaluator[StringScope]):
    """One way through the choices of an expression: takes those of `taken`, then the first of each further choice."""

    def __init__(self, analysis: StringAnalysis, taken: Sequence[_Choice]) -> None:
        self.taken: list[_Choice] = []
        self._analysis = analysis
        self._planned = iter(taken)
        self._running: set[tuple[int, str]] = set()
        self._depth = 0

    def value(self, node: ast.expr | None, scope: StringScope) -> object:
        """Return the value of an expression on this way."""
        if self._depth > _DEEPEST:
            return UNKNOWN
        self._depth += 1
        result = super().value(node, scope)
        self._depth -= 1
        return result

    def choose(self, options: Sequence[Callable[[], object]]) -> object:
        """Return the value of the option that this way takes."""
        if not options:
            return UNKNOWN
        if len(options) == 1:
            return options[0]()
        self.taken.append(next(self._planned, _Choice(0, len(options))))
        return options[self.taken[-1].which]()

    def name(self, name: str, scope: StringScope) -> object:
        """Return the value of a local name, of a parameter, or of a constant of a module."""
        local = self._analysis.list_bindings(name, scope)
        if local is not None:
            bindings, around = local
            key = id(around.functions[-1]), name
            if key in self._running:
                return UNKNOWN
            self._running.add(key)
            value = self.choose([partial(self._evaluate_binding, item, around) for item in bindings])
            self._running.discard(key)
            return value
        if name in {"__name__", "__package__"}:
            return scope.module.name if name == "__name__" else scope.module.package
        return self._constant(scope.module, name)

    def _evaluate_binding(self, binding: "_Binding", scope: StringScope) -> object:
        if binding.value is None:
            return UNKNOWN
        value = self.value(binding.value, binding.scope or scope)
        if binding.each:
            value = self._any_item(value)
        for index in binding.path:
            value = subscript(value, index)
        return value

    def _any_item(self, holder: object) -> object:
        """Return an item of a sequence, or a key of a dict: what a loop sees."""
        if not isinstance(holder, list | tuple | dict):
            return UNKNOWN
        return self.choose([partial(keep, item) for item in holder])

    def _constant(self, module: Module, name: str) -> object:
        constant = self._analysis.find_constant(module, name)
        return self.value(*constant) if constant is not None else UNKNOWN

    def attribute(self, node: ast.Attribute, scope: StringScope) -> object:
        """Return the value of a constant of another module."""
        if not isinstance(node.value, ast.Name):
            return UNKNOWN
        module = scope.module.library.lookup(scope.module, node.value.id)
        return self._constant(module, node.attr) if isinstance(module, Module) else UNKNOWN

    def subscript(self, holder: object, index: ast.expr, scope: StringScope) -> object:
        """Return an item; any of them where the index is unknown."""
        value = super().subscript(holder, index, scope)
        if value is UNKNOWN and self.value(index, scope) is UNKNOWN:
            return self._any_item([*holder.values()] if isinstance(holder, dict) else holder)
        return value

    def comprehension(self, node: Comprehension, scope: StringScope) -> object:
        """Return every possible item, in one tuple."""
        known = self._analysis.values(node.elt, scope)
        return known.values if known.whole else (*known.values, UNKNOWN)

    def call(self, node: ast.Call, scope: StringScope) -> object:
        """Return the result of a built-in function, or of a method of a string or a dict."""
        if node.keywords or any(isinstance(item, ast.Starred) for item in node.args):
            return UNKNOWN
        args = [self.value(item, scope) for item in node.args]
        match node.func:
            case ast.Name(id=name) if name in _BUILTINS:
                return call_builtin(name, args)
            case ast.Attribute(value=holder, attr="get") if args:
                item = partial(self.subscript, self.value(holder, scope), node.args[0], scope)
                return self.choose([item, *(partial(keep, default) for default in args[1:])])
            case ast.Attribute(value=holder, attr=method):
                return _method(self.value(holder, scope), method, args)
        return UNKNOWN


def _method(holder: object, name: str, args: Sequence[object]) -> object:
    if isinstance(holder, dict) and name in {"items", "keys", "values"} and not args:
        return [*getattr(holder, name)()]
    plain = all(isinstance(item, _PLAIN) or (name == "join" and UNKNOWN not in item) for item in args)  # type: ignore[operator]
    if not (isinstance(holder, str) and name in _STRING_METHODS and plain):
        return UNKNOWN
    try:
        result: object = getattr(holder, name)(*args)
    except (TypeError, ValueError, LookupError):  # no run that gets here would raise these
        return UNKNOWN
    return result


# -- functions ---------------------------------------------------------------------------------------------------------


class _Binding(NamedTuple):
    """A binding of a function's local name: to a value, or to each item of it, and the index path into that."""

    value: ast.expr | None
    each: bool
    path: tuple[int, ...]
    scope: StringScope | None = None  # of an argument: that of the call


_UNBOUND = _Binding(None, False, ())  # other callers may pass anything


def _defaults(function: _Function) -> dict[str, ast.expr | None]:
    """Return the defaults of all parameters; None where there is none."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    starred = [item.arg for item in (arguments.vararg, arguments.kwarg) if item is not None]
    defaults: dict[str, ast.expr | None] = dict.fromkeys([*(item.arg for item in plain), *starred])
    first = len(plain) - len(arguments.defaults)
    defaults.update(zip((item.arg for item in plain[first:]), arguments.defaults, strict=True))
    defaults.update(zip((item.arg for item in arguments.kwonlyargs), arguments.kw_defaults, strict=True))
    return defaults


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
    bindings: dict[str, list[_Binding]] = {}
    shared: set[str] = set()
    for node in walk_scope([function.body] if isinstance(function, ast.Lambda) else function.body):
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
