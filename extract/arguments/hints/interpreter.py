"""Interpret one file without running it: which classes it constructs, and with which arguments.

Each function and constructor is interpreted with its defaults, and again with the arguments of each call from the same
file. Loops run for their first items; if the test of a branch is unknown, both sides are interpreted.
"""

import ast
from collections.abc import Callable, Sequence
from typing import NamedTuple

from extract.arguments.hints.model import Definition
from lemur_core.source import values
from lemur_core.source.values import (
    LONGEST,
    MOST_ITEMS,
    ROOTS,
    UNKNOWN,
    Comprehension,
    Evaluator,
    Expr,
    Function,
    Instance,
    Partial,
    Repeat,
    Scope,
    read_imports,
    render,
    render_call,
)

_MAX_COMPLETE = 24  # call sites of one class in one file
_MAX_INCOMPLETE = 10
_DEEPEST = 10
_MAX_CALLS = 1_500  # interpreted in one file
_MAX_IN_COMPREHENSION = 64
_MAX_LOOP_ITEMS = 5

Flow = tuple[str, object] | None  # how a suite was left: ("return", value), ("raise", None), or None at its end


class CallSite(NamedTuple):
    """One call of a class; unknown arguments are None."""

    target: str  # dotted name in the calling file
    name: str  # the name of the class itself, even if the file imports it under another name
    args: tuple[str | None, ...]
    kwargs: tuple[tuple[str, str | None], ...]
    opened: bool  # there are further, unknown arguments


class BoundArguments(NamedTuple):
    """The arguments of a call."""

    args: list[object]
    kwargs: dict[str, object]
    opened: bool  # there are further, unknown arguments


def call_sites(tree: ast.Module) -> list[CallSite]:
    """Return the calls in a file that construct objects, with the arguments that are known."""
    interpreter = ValueInterpreter(tree)
    interpreter.run()
    return list(interpreter.sites)


class ValueInterpreter(Evaluator[Scope]):
    """Interpret one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.sites: dict[CallSite, None] = {}
        self._tree = tree
        self._counts: dict[tuple[str, bool], int] = {}
        self._classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self._seen: dict[tuple[int, str], object] = {}
        self._depth = 0
        self._calls = 0
        imported, self._renamed = read_imports(tree.body)
        self._scope = Scope(None, imported)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self._scope.names[node.name] = Expr(node.name)
            elif isinstance(node, Definition):
                self._scope.names[node.name] = Function(node, self._scope)

    def run(self) -> None:
        """Interpret the file itself, then each function and constructor with its defaults."""
        no_arguments = BoundArguments([], {}, False)
        body = [node for node in self._tree.body if not isinstance(node, ast.ClassDef | Definition)]
        self._run_suite(body, self._scope)
        for node in self._tree.body:
            if isinstance(node, Definition):
                self._run_function(Function(node, self._scope), no_arguments)
        for name in self._classes:
            for item in self._classes[name].body:
                if isinstance(item, Definition) and item.name == "__init__":
                    self._run_function(Function(item, self._scope, Instance(name)), no_arguments)

    def _record_call(self, target: str, arguments: BoundArguments) -> None:
        """Record a call if any of its arguments is known."""
        args = tuple(_drop_long(render(value)) for value in arguments.args)
        kwargs = tuple((name, _drop_long(render(value))) for name, value in arguments.kwargs.items())
        texts = (*args, *(text for _, text in kwargs))
        complete = not arguments.opened and None not in texts
        if not complete and all(text is None for text in texts):
            return
        first, dot, rest = target.partition(".")
        chain = f"{self._renamed.get(first, first)}{dot}{rest}"
        site = CallSite(chain, target.rpartition(".")[2], args, kwargs, arguments.opened)
        number = self._counts.get((chain, complete), 0)
        if site not in self.sites and number < (_MAX_COMPLETE if complete else _MAX_INCOMPLETE):
            self._counts[chain, complete] = number + 1
            self.sites[site] = None

    # -- statements ----------------------------------------------------------------------------------------------

    def _run_suite(self, body: Sequence[ast.stmt], scope: Scope) -> Flow:
        for node in body:
            flow = self._run_statement(node, scope)
            if flow is not None:
                return flow
        return None

    def _run_statement(self, node: ast.stmt, scope: Scope) -> Flow:
        match node:
            case ast.Assign(targets=targets, value=expression):
                value = self.value(expression, scope)
                for target in targets:
                    self._bind(target, value, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as expression):
                self._bind(target, self.value(expression, scope), scope)
            case ast.AugAssign(target=target, op=kind, value=expression):
                value = values.binary(kind, self.value(target, scope), self.value(expression, scope))
                self._bind(target, value, scope)
            case ast.Expr(value=expression):
                self.value(expression, scope)
            case ast.Return(value=expression):
                return "return", self.value(expression, scope)
            case ast.Raise() | ast.Break() | ast.Continue():
                return "raise", None
            case ast.If():
                return self._run_if(node, scope)
            case ast.For():
                for item in self._take_first(self.value(node.iter, scope)):
                    self._bind(node.target, item, scope)
                    flow = self._run_suite(node.body, scope)
                    if flow is not None and flow[0] == "return":
                        return flow
            case ast.While(body=body):
                flow = self._run_suite(body, scope)
                return flow if flow is not None and flow[0] == "return" else None
            case ast.With(body=body) | ast.Try(body=body):
                return self._run_suite(body, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.names[node.name] = Function(node, scope)
        return None

    def _run_if(self, node: ast.If, scope: Scope) -> Flow:
        known = values.truth(self.value(node.test, scope))
        if known is not None:
            return self._run_suite(node.body if known else node.orelse, scope)
        # Both sides start from the same names, whose values are known afterwards if the sides agree.
        before = dict(scope.names)
        first = self._run_suite(node.body, scope)
        after, scope.names = scope.names, dict(before)
        second = self._run_suite(node.orelse, scope)
        if first is not None and first[0] != "return":
            return second
        if second is not None:
            scope.names = after
            return first
        if first is not None:
            return None  # continue as if it had not returned
        for name, value in after.items():
            if name not in scope.names or scope.names[name] is UNKNOWN or before.get(name) is scope.names[name]:
                scope.names[name] = value
        return None

    def _bind(self, target: ast.expr, value: object, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.names[name] = value
            case ast.Attribute(value=holder, attr=name):
                instance = self.value(holder, scope)
                if isinstance(instance, Instance) and len(instance.attributes) < MOST_ITEMS:
                    instance.attributes[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                items = list(value) if isinstance(value, list | tuple) else []
                known = len(items) == len(targets) and not any(isinstance(item, ast.Starred) for item in targets)
                for number, inner in enumerate(targets):
                    self._bind(inner, items[number] if known else UNKNOWN, scope)
            case ast.Starred(value=inner):
                self._bind(inner, UNKNOWN, scope)
            case ast.Subscript(value=ast.Name(id=name) as holder, slice=index):
                items_by_key, key = self.value(holder, scope), self.value(index, scope)
                known = isinstance(items_by_key, dict) and isinstance(key, str)
                scope.names[name] = {**items_by_key, key: value} if known else UNKNOWN  # type: ignore[dict-item]

    # -- expressions ---------------------------------------------------------------------------------------------

    def name(self, name: str, scope: Scope) -> object:
        """Return the last value bound to a name."""
        return scope.find(name)

    def attribute(self, node: ast.Attribute, scope: Scope) -> object:
        """Return the attribute of an object that the file constructs, or else a dotted name."""
        return self._find_attribute(self.value(node.value, scope), node.attr)

    def choose(self, options: Sequence[Callable[[], object]]) -> object:
        """Return the value on which all options agree; all are evaluated, to record the calls in them."""
        first, *others = [option() for option in options]
        agree = all(other is UNKNOWN or render(other) == render(first) for other in others)
        return first if agree and (first is not UNKNOWN) else UNKNOWN

    def comprehension(self, node: Comprehension, scope: Scope) -> object:
        """Evaluate a list of plain values; if the element may construct a class, interpret only the first items."""
        inner = Scope(scope)
        constructs = any(isinstance(item, ast.Call) and _may_construct(item.func) for item in ast.walk(node.elt))
        for generator in node.generators[:-1]:
            self._bind(generator.target, self._take_first(self.value(generator.iter, inner))[0], inner)
        last = node.generators[-1]
        items = self.value(last.iter, inner)
        if len(node.generators) > 1 or constructs:
            for item in self._take_first(items):
                self._bind(last.target, item, inner)
                self.value(node.elt, inner)
            return UNKNOWN
        if not isinstance(items, list | tuple | dict) or len(items) > _MAX_IN_COMPREHENSION:
            return UNKNOWN
        result: list[object] = []
        for item in items:
            self._bind(last.target, item, inner)
            tests = [values.truth(self.value(test, inner)) for test in last.ifs]
            if None in tests:
                return UNKNOWN
            if all(tests):
                result.append(self.value(node.elt, inner))
        return result

    def _take_first(self, items: object) -> list[object]:
        """Return the first items as examples, or UNKNOWN as the only one."""
        return (list(items)[:_MAX_LOOP_ITEMS] if isinstance(items, list | tuple | dict) else []) or [UNKNOWN]

    # -- classes of the file -------------------------------------------------------------------------------------

    def _list_bases(self, kind: str) -> list[str]:
        node = self._classes.get(kind)
        bases = [self.value(base, self._scope) for base in node.bases] if node is not None else []
        return [base.text for base in bases if isinstance(base, Expr)]

    def _list_lineage(self, kind: str) -> list[str]:
        """Return a class and its bases in the same file, depth first."""
        result: list[str] = []
        waiting = [kind]
        while waiting:
            name = waiting.pop(0)
            if name in self._classes and name not in result:
                result.append(name)
                waiting = [*self._list_bases(name), *waiting]
        return result

    def _find_method(self, instance: Instance, name: str) -> Function | None:
        for owner in self._list_lineage(instance.kind):
            for item in self._classes[owner].body:
                if isinstance(item, Definition) and item.name == name:
                    return Function(item, self._scope, instance)
        return None

    def _find_attribute(self, holder: object, name: str) -> object:
        if isinstance(holder, Instance):
            known = holder.attributes.get(name, UNKNOWN)
            method = self._find_method(holder, name) if known is UNKNOWN else None
            return known if method is None or _has_decorator(method.node, "property") else method
        if isinstance(holder, Expr) and "(" not in holder.text:
            return Expr(f"{holder.text}.{name}")
        return holder.get(name, UNKNOWN) if isinstance(holder, dict) else UNKNOWN

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, node: ast.Call, scope: Scope) -> object:
        """Interpret a call, and record it if it constructs an object."""
        match node.func:
            case ast.Attribute(value=holder, attr="item" | "tolist" | "split" as method):
                numbers = self.value(holder, scope)
                if isinstance(numbers, list | int | float):  # short tensors are represented as lists
                    sizes = self.value(node.args[0], scope) if node.args else UNKNOWN
                    return values.split(numbers, sizes) if method == "split" else numbers
            case ast.Attribute(value=ast.Name(id=name) as holder, attr=method):
                value = self.value(holder, scope)
                if isinstance(value, dict | list):
                    return self._call_container_method(value, name, method, node, scope)
        function = self.value(node.func, scope)
        arguments = self._read_arguments(node, scope)
        if isinstance(node.func, ast.Name) and function in (UNKNOWN, Expr("dict")):
            return self._call_builtin(node.func.id, arguments)
        return self._invoke(function, arguments)

    def _read_arguments(self, node: ast.Call, scope: Scope) -> BoundArguments:
        args = self.items(node.args, scope)
        opened = any(isinstance(arg, ast.Starred) for arg in node.args) and UNKNOWN in args
        kwargs: dict[str, object] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict) and all(isinstance(name, str) for name in value):
                kwargs.update(value)
            else:
                opened = True
        return BoundArguments(args, kwargs, opened)

    def _call_builtin(self, name: str, arguments: BoundArguments) -> object:
        if name != "dict":
            return values.call_builtin(name, arguments.args)
        if len(arguments.args) > 1 or not all(isinstance(arg, dict) for arg in arguments.args) or arguments.opened:
            return UNKNOWN
        return {**(arguments.args[0] if arguments.args else {}), **arguments.kwargs}  # type: ignore[dict-item]

    def _call_container_method(
        self, holder: dict[str, object] | list[object], name: str, method: str, node: ast.Call, scope: Scope
    ) -> object:
        """Interpret a method of a dictionary or list: `kwargs.pop("x", None)`, `layers.append(x)`."""
        arguments = self._read_arguments(node, scope)
        first = arguments.args[0] if arguments.args else None
        if isinstance(holder, list):
            added = method == "append" and len(arguments.args) == 1 and len(holder) < MOST_ITEMS
            if method in {"append", "extend", "insert", "pop", "remove", "reverse", "clear"}:
                scope.names[name] = [*holder, first] if added else UNKNOWN
            return UNKNOWN
        if method in {"get", "pop", "setdefault"} and isinstance(first, str):
            item = holder.get(first, arguments.args[1] if len(arguments.args) > 1 else UNKNOWN)
            if method == "pop":
                scope.names[name] = {key: value for key, value in holder.items() if key != first}
            elif method == "setdefault":
                scope.names[name] = {**holder, first: item}
            return item
        if method == "update":
            scope.names[name] = {**holder, **(first if isinstance(first, dict) else {}), **arguments.kwargs}
            return None
        if method not in {"items", "keys", "values", "copy"}:
            return UNKNOWN
        return dict(holder) if method == "copy" else list(getattr(holder, method)())

    def _invoke(self, function: object, arguments: BoundArguments) -> object:
        """Interpret a call of a function or class."""
        args, kwargs, opened = arguments
        if isinstance(function, Partial):
            merged = BoundArguments([*function.args, *args], {**dict(function.kwargs), **kwargs}, opened)
            return self._invoke(function.function, merged)
        if isinstance(function, Function):
            return self._run_function(function, arguments)
        if isinstance(function, Repeat):
            return values.repeat_value(args[0], function.count) if len(args) == 1 else UNKNOWN
        if not isinstance(function, Expr) or "(" in function.text:
            return UNKNOWN
        if function.text in {"torch.linspace", "np.linspace"}:
            return values.linspace(args)
        if function.text == "functools.partial" and args:
            return Partial(args[0], tuple(args[1:]), tuple(kwargs.items()))
        if function.text in self._classes:
            self._record_call(function.text, arguments)
            return self._construct(function.text, arguments)
        root, _, _ = function.text.partition(".")
        is_class = _is_class_name(function.text)
        if not is_class and root not in ROOTS:
            return values.call_builtin(function.text, args)
        if is_class:
            self._record_call(function.text, arguments)
        text = None if opened else render_call(function.text, args, kwargs)
        return Expr(text) if text is not None and len(text) < LONGEST else UNKNOWN

    def _construct(self, kind: str, arguments: BoundArguments) -> Instance:
        text = None if arguments.opened else render_call(kind, arguments.args, arguments.kwargs)
        instance = Instance(kind, text if text is not None and len(text) < LONGEST else None)
        constructor = self._find_method(instance, "__init__")
        if constructor is not None:
            self._run_function(constructor, arguments)
        else:
            bodies = [item for owner in reversed(self._list_lineage(kind)) for item in self._classes[owner].body]
            targets = [item.target for item in bodies if isinstance(item, ast.AnnAssign)]
            fields = [target.id for target in targets if isinstance(target, ast.Name)]  # of a dataclass
            instance.attributes.update({**dict(zip(fields, arguments.args, strict=False)), **arguments.kwargs})
        return instance

    def _run_function(self, function: Function, arguments: BoundArguments) -> object:
        """Interpret a function's body with these arguments."""
        if self._depth >= _DEEPEST or self._calls >= _MAX_CALLS:
            return UNKNOWN
        instance = function.instance
        constructs = function.node.name == "__init__"
        fresh = instance is None or (constructs and not instance.attributes)
        rendered = (
            [render(value) for value in arguments.args],
            {name: render(value) for name, value in arguments.kwargs.items()},
        )
        key = (id(function.node), f"{instance.kind if instance is not None else ''} {rendered}")
        # A function that was interpreted with the same arguments would record the same calls.
        if fresh and key in self._seen:
            cached = self._seen[key]
            if instance is not None and isinstance(cached, Instance):
                instance.attributes = dict(cached.attributes)
                return None
            return cached
        self._calls += 1
        self._depth += 1
        flow = self._run_suite(function.node.body, self._build_scope(function, arguments))
        self._depth -= 1
        result = None if flow is None else flow[1] if flow[0] == "return" else UNKNOWN
        if fresh:
            self._seen[key] = instance if instance is not None else result
        return result

    def _build_scope(self, function: Function, arguments: BoundArguments) -> Scope:
        """Return the scope of a call: each parameter bound to its argument or default."""
        scope = Scope(function.scope)
        parameters, kwargs = function.node.args, dict(arguments.kwargs)
        names = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args)]
        defaults: dict[str, ast.expr | None]
        defaults = dict(zip(names[len(names) - len(parameters.defaults) :], parameters.defaults, strict=True))
        defaults |= {arg.arg: node for arg, node in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)}
        args = arguments.args
        if function.instance is not None and not _has_decorator(function.node, "staticmethod"):
            args = [function.instance, *args]
        scope.names.update(zip(names, args, strict=False))
        for name in (*names[len(args) :], *(arg.arg for arg in parameters.kwonlyargs)):
            default = defaults.get(name)
            value = self.value(default, self._scope) if default is not None else UNKNOWN
            scope.names[name] = kwargs.pop(name, value)
        if parameters.vararg is not None:
            scope.names[parameters.vararg.arg] = UNKNOWN if arguments.opened else tuple(args[len(names) :])
        if parameters.kwarg is not None:
            scope.names[parameters.kwarg.arg] = kwargs
        return scope


def _has_decorator(node: Definition, name: str) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name for item in node.decorator_list)


def _drop_long(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST else None


def _is_class_name(text: str) -> bool:
    return text.rpartition(".")[2].lstrip("_")[:1].isupper()


def _may_construct(function: ast.expr) -> bool:
    """Return whether a callee may be a class: it is capitalized, or named like a parameter that holds a class."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return _is_class_name(name) or "block" in name.lower() or "layer" in name.lower()
