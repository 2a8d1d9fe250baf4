"""One file, followed without running it: which classes are made there, and with what.

Each function and constructor is followed with its defaults, and calls to those of the same file with their arguments.
"""

import ast

from extract.hints import fold
from extract.hints.containers import container_method
from extract.hints.file_classes import Definition, FileClasses, owner_of
from extract.hints.sites import SiteList
from extract.hints.values import (
    LONGEST,
    ROOTS,
    UNKNOWN,
    Expr,
    Function,
    Instance,
    Partial,
    Scope,
    Times,
    render,
    render_call,
)

_DEEPEST = 10
_MOST_CALLS = 1_500  # followed in one file


class Interpreter(FileClasses):
    """Follows one file."""

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(tree)
        self._seen: dict[tuple[int, str], object] = {}
        self._depth = 0
        self._calls = 0

    def run(self, tree: ast.Module) -> SiteList:
        """Everything: the file itself, then each function and constructor with its defaults."""
        self.suite([node for node in tree.body if not isinstance(node, ast.ClassDef | Definition)], self.scope)
        functions = [node for node in tree.body if isinstance(node, Definition)]
        for node in functions:
            self.enter(Function(node, self.scope), [], {}, False)
        for name, kind in self.classes.items():
            for item in kind.body:
                if isinstance(item, Definition) and item.name == "__init__":
                    self.enter(Function(item, self.scope, name, Instance(name)), [], {}, False)
        return self.sites

    # -- calls ---------------------------------------------------------------------------------------------------

    def call(self, node: ast.Call, scope: Scope) -> object:
        """Follow a call, and take note of it where it makes an object of a class."""
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            inner = node.func.value
            if isinstance(inner.func, ast.Name) and inner.func.id == "super":
                return self._super(node, scope)
        method = container_method(self, node, scope)
        if method is not None:
            return method[0]
        function = self.value(node.func, scope)
        args = self.items(node.args, scope)
        opened = any(isinstance(arg, ast.Starred) for arg in node.args) and UNKNOWN in args
        kwargs: dict[str, object] = {}
        spread: dict[str, object] | None = None
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                spread = {**(spread or {}), **value}
            else:
                opened = True
        if isinstance(node.func, ast.Name) and node.func.id == "dict" and scope.find("dict") is None:
            return self._dict(args, {**kwargs, **(spread or {})}, opened)
        if spread is not None and args and isinstance(args[0], Expr):
            settings = kwargs.get("model_cfg")
            self._factory(node.func, args[0], spread if settings is None else {"cfg": settings, **spread})
        if function is UNKNOWN and isinstance(node.func, ast.Name):
            return fold.call_builtin(node.func.id, args)
        return self.invoke(function, args, {**kwargs, **(spread or {})}, opened)

    def invoke(self, function: object, args: list[object], kwargs: dict[str, object], opened: bool) -> object:
        """Call what is known of a function or class."""
        if isinstance(function, Partial):
            return self.invoke(function.function, [*function.args, *args], {**dict(function.kwargs), **kwargs}, opened)
        if isinstance(function, Function):
            if function.instance is None and not function.owner:
                known = fold.call_builtin(function.node.name, args)
                if known is not UNKNOWN:
                    return known
            return self.enter(function, args, kwargs, opened)
        if isinstance(function, Times):
            return fold.repeated(args[0], function.count) if len(args) == 1 else UNKNOWN
        if not isinstance(function, Expr) or "(" in function.text:
            return UNKNOWN
        name = function.text.rpartition(".")[2]
        if function.text in {"torch.linspace", "np.linspace"}:
            return fold.linspace(args)
        if function.text == "functools.partial" and args:
            return Partial(args[0], tuple(args[1:]), tuple(kwargs.items()))
        if function.text in self.classes:
            self.sites.add(function.text, args, kwargs, opened)
            return self._make(function.text, args, kwargs, opened)
        root = function.text.partition(".")[0]
        if not name.lstrip("_")[:1].isupper() and root not in ROOTS:
            return fold.call_builtin(name, args)
        if name[:1].isupper() or name.lstrip("_")[:1].isupper():
            self.sites.add(function.text, args, kwargs, opened)
        text = None if opened else render_call(function.text, args, kwargs)
        return Expr(text) if text is not None and len(text) < LONGEST else UNKNOWN

    def _factory(self, function: ast.expr, kind: Expr, spread: dict[str, object]) -> None:
        """`build_model_with_cfg(ResNet, variant, pretrained, **kwargs)` makes a ResNet of these arguments."""
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        last = kind.text.rpartition(".")[2]
        if not name.lstrip("_")[:1].isupper() and last.lstrip("_")[:1].isupper():
            self.sites.add(kind.text, [], spread, False)
            if kind.text in self.classes:
                self._make(kind.text, [], spread, False)

    def _make(self, kind: str, args: list[object], kwargs: dict[str, object], opened: bool) -> object:
        text = None if opened else render_call(kind, args, kwargs)
        made = Instance(kind, text if text is not None and len(text) < LONGEST else None)
        found = self.method(kind, "__init__")
        if found is not None:
            self.enter(Function(found[1], self.scope, found[0], made), args, kwargs, opened)
        else:
            made.attributes.update({**dict(zip(self.fields(kind), args, strict=False)), **kwargs})
        return made

    def enter(self, function: Function, args: list[object], kwargs: dict[str, object], opened: bool) -> object:
        """Follow a function's body with these arguments."""
        if self._depth >= _DEEPEST or self._calls >= _MOST_CALLS:
            return UNKNOWN
        fresh = function.instance is None or (function.node.name == "__init__" and not function.instance.attributes)
        owner = function.instance.kind if function.instance is not None else ""
        given = f"{owner} {[render(a) for a in args]} { {k: render(v) for k, v in kwargs.items()} }"
        key = (id(function.node), given)
        if fresh and key in self._seen:
            found = self._seen[key]
            if function.instance is not None and isinstance(found, Instance):
                function.instance.attributes = dict(found.attributes)
                return None
            return found
        self._calls += 1
        self._depth += 1
        scope = self._bound_scope(function, args, dict(kwargs), opened)
        flow = self.suite(function.node.body, scope)
        self._depth -= 1
        result = flow[1] if flow is not None and flow[0] == "return" else None if flow is None else UNKNOWN
        if fresh:
            self._seen[key] = function.instance if function.instance is not None else result
        return result

    def _bound_scope(self, function: Function, args: list[object], kwargs: dict[str, object], opened: bool) -> Scope:
        scope = Scope(function.scope, {}, function.owner)
        given = function.node.args
        names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
        defaults = dict(zip(names[len(names) - len(given.defaults) :], given.defaults, strict=True))
        defaults.update({a.arg: d for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None})
        if function.owner and not _is_static(function.node):
            args = [function.instance or UNKNOWN, *args]
        for name, value in zip(names, args, strict=False):
            scope.names[name] = value
        if given.vararg is not None:
            scope.names[given.vararg.arg] = UNKNOWN if opened else tuple(args[len(names) :])
        for name in (*names[len(args) :], *(arg.arg for arg in given.kwonlyargs)):
            if name in kwargs:
                scope.names[name] = kwargs.pop(name)
            elif name in defaults:
                scope.names[name] = self.value(defaults[name], self.scope)
            else:
                scope.names[name] = UNKNOWN
        if given.kwarg is not None:
            scope.names[given.kwarg.arg] = kwargs
        return scope

    def _super(self, node: ast.Call, scope: Scope) -> object:
        """`super().__init__(…)`: a call of the base class too."""
        assert isinstance(node.func, ast.Attribute)
        owner = owner_of(scope)
        instance = self._self(scope)
        args = self.items(node.args, scope)
        opened = any(isinstance(arg, ast.Starred) for arg in node.args) and UNKNOWN in args
        kwargs: dict[str, object] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif isinstance(value, dict):
                kwargs.update(value)
            else:
                opened = True
        for base in self.bases(owner):
            if node.func.attr == "__init__" and (args or kwargs):
                self.sites.add(base, args, kwargs, opened)
            found = self.method(base, node.func.attr)
            if found is not None:
                return self.enter(Function(found[1], self.scope, found[0], instance), args, kwargs, opened)
            break
        return UNKNOWN

    def _self(self, scope: Scope) -> Instance | None:
        value = scope.find("self")
        return value if isinstance(value, Instance) else None

    # -- containers ----------------------------------------------------------------------------------------------

    def _dict(self, args: list[object], kwargs: dict[str, object], opened: bool) -> object:
        if len(args) > 1 or (args and not isinstance(args[0], dict)) or opened:
            return UNKNOWN
        result = {**(args[0] if args else {}), **kwargs}  # type: ignore[dict-item]
        self.config(result)
        return result

    def config(self, items: dict[str, object]) -> None:
        """Take note of `dict(type="BN", …)`."""
        kind = items.get("type")
        if isinstance(kind, str | Expr):
            rest = {name: value for name, value in items.items() if name != "type" and not name.startswith("_")}
            self.sites.add_config(kind, rest)


def _is_static(node: Definition) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
