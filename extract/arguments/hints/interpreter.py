"""Read the calls in one file without running it: which classes it constructs, and with which arguments.

Names have the values that the file gives them: constants of the module, defaults of the function around a call, and
what was assigned above it. Loops run for their first items; both sides of an `if` are read unless its test is known.
"""

import ast
from collections.abc import Callable, Sequence
from typing import NamedTuple

from extract.arguments.hints.model import Definition
from lemur_core.source import values
from lemur_core.source.values import (
    LONGEST,
    ROOTS,
    UNKNOWN,
    Comprehension,
    Evaluator,
    Expr,
    Scope,
    read_imports,
    render,
    render_call,
)

_MAX_COMPLETE = 24  # call sites of one class in one file
_MAX_INCOMPLETE = 10
_MAX_LOOP_ITEMS = 5
_MAX_IN_COMPREHENSION = 64


class CallSite(NamedTuple):
    """One call of a class; unknown arguments are None."""

    target: str  # dotted name in the calling file
    name: str  # the name of the class itself, even if the file imports it under another name
    args: tuple[str | None, ...]
    kwargs: tuple[tuple[str, str | None], ...]
    opened: bool  # there are further, unknown arguments


def call_sites(tree: ast.Module) -> list[CallSite]:
    """Return the calls in a file that construct objects, with the arguments that are known."""
    reader = CallReader(tree)
    reader.run()
    return list(reader.sites)


class CallReader(Evaluator[Scope]):
    """Read the calls of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.sites: dict[CallSite, None] = {}
        self._tree = tree
        self._counts: dict[tuple[str, bool], int] = {}
        imported, self._renamed = read_imports(tree.body)
        own = {node.name: Expr(node.name) for node in tree.body if isinstance(node, ast.ClassDef)}
        self._scope = Scope(None, {**imported, **own})

    def run(self) -> None:
        """Read the statements of the file itself, then each function and constructor with its defaults."""
        self._read_suite(self._tree.body, self._scope)
        for node in self._tree.body:
            for item in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(item, Definition) and (item is node or item.name == "__init__"):
                    self._read_suite(item.body, self._open_scope(item.args))

    def _open_scope(self, parameters: ast.arguments) -> Scope:
        """Return the scope of a function whose parameters have their defaults."""
        plain = [*parameters.posonlyargs, *parameters.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(parameters.defaults))
        pairs = zip(
            (*plain, *parameters.kwonlyargs), (*defaults, *parameters.defaults, *parameters.kw_defaults), strict=True
        )
        names = {item.arg: UNKNOWN if node is None else self.value(node, self._scope) for item, node in pairs}
        more = [item.arg for item in (parameters.vararg, parameters.kwarg) if item is not None]
        return Scope(self._scope, {**names, **dict.fromkeys(more, UNKNOWN)})

    # -- statements ----------------------------------------------------------------------------------------------

    def _read_suite(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=targets, value=expression):
                    value = self.value(expression, scope)
                    for target in targets:
                        self._bind(target, value, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as expression):
                    self._bind(target, self.value(expression, scope), scope)
                case ast.AugAssign(target=target, op=kind, value=expression):
                    self._bind(
                        target, values.binary(kind, self.value(target, scope), self.value(expression, scope)), scope
                    )
                case ast.Expr(value=expression) | ast.Return(value=expression):
                    self.value(expression, scope)
                case ast.If(test=test, body=first, orelse=second):
                    known = values.truth(self.value(test, scope))
                    for suite in (first, second) if known is None else (first if known else second,):
                        self._read_suite(suite, scope)
                case ast.For(target=target, iter=items, body=inner):
                    for item in _take_first(self.value(items, scope)):
                        self._bind(target, item, scope)
                        self._read_suite(inner, scope)
                case ast.While(body=inner) | ast.With(body=inner) | ast.Try(body=inner):
                    self._read_suite(inner, scope)

    def _bind(self, target: ast.expr, value: object, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.names[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                items = list(value) if isinstance(value, list | tuple) else []
                known = len(items) == len(targets) and not any(isinstance(item, ast.Starred) for item in targets)
                for number, inner in enumerate(targets):
                    self._bind(inner, items[number] if known else UNKNOWN, scope)
            case ast.Starred(value=holder) | ast.Subscript(value=ast.Name() as holder):
                self._bind(holder, UNKNOWN, scope)

    # -- expressions ---------------------------------------------------------------------------------------------

    def name(self, name: str, scope: Scope) -> object:
        """Return the last value bound to a name."""
        return scope.find(name)

    def attribute(self, node: ast.Attribute, scope: Scope) -> object:
        """Return a dotted name, or the item of a known dictionary."""
        holder = self.value(node.value, scope)
        return Expr(f"{holder.text}.{node.attr}") if isinstance(holder, Expr) and "(" not in holder.text else UNKNOWN

    def choose(self, options: Sequence[Callable[[], object]]) -> object:
        """Return the value on which all options agree; all are evaluated, to record the calls in them."""
        first, *others = [option() for option in options]
        agree = all(other is UNKNOWN or render(other) == render(first) for other in others)
        return first if agree else UNKNOWN

    def comprehension(self, node: Comprehension, scope: Scope) -> object:
        """Evaluate a list; if the element may construct a class, read it for the first items only."""
        inner, last = Scope(scope), node.generators[-1]
        for generator in node.generators[:-1]:
            self._bind(generator.target, _take_first(self.value(generator.iter, inner))[0], inner)
        items = self.value(last.iter, inner)
        constructs = any(isinstance(item, ast.Call) and _may_construct(item.func) for item in ast.walk(node.elt))
        whole = isinstance(items, list | tuple | dict) and len(items) <= _MAX_IN_COMPREHENSION
        whole = whole and len(node.generators) == 1 and not constructs
        result: list[object] = []
        for item in list(items) if whole and isinstance(items, list | tuple | dict) else _take_first(items):
            self._bind(last.target, item, inner)
            tests = [values.truth(self.value(test, inner)) for test in last.ifs]
            whole = whole and None not in tests
            if not whole or all(tests):
                result.append(self.value(node.elt, inner))
        return result if whole else UNKNOWN

    def call(self, node: ast.Call, scope: Scope) -> object:
        """Return the result of a call, and record it if it constructs an object."""
        function = self.value(node.func, scope)
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
        if isinstance(node.func, ast.Name) and function is UNKNOWN:
            return values.call_builtin(node.func.id, args)
        if not isinstance(function, Expr) or "(" in function.text:
            return UNKNOWN
        if not _is_class_name(function.text) and function.text.partition(".")[0] not in ROOTS:
            return values.call_builtin(function.text, args)
        if _is_class_name(function.text):
            self._record_call(function.text, args, kwargs, opened=opened)
        text = None if opened else _drop_long(render_call(function.text, args, kwargs))
        return Expr(text) if text is not None else UNKNOWN

    def _record_call(self, target: str, args: list[object], kwargs: dict[str, object], *, opened: bool) -> None:
        """Record a call if any of its arguments is known."""
        texts = tuple(_drop_long(render(value)) for value in args)
        named = tuple((name, _drop_long(render(value))) for name, value in kwargs.items())
        complete = not opened and None not in (*texts, *(text for _, text in named))
        if not complete and all(text is None for text in (*texts, *(text for _, text in named))):
            return
        first, dot, rest = target.partition(".")
        chain = f"{self._renamed.get(first, first)}{dot}{rest}"
        site = CallSite(chain, target.rpartition(".")[2], texts, named, opened)
        number = self._counts.get((chain, complete), 0)
        if site not in self.sites and number < (_MAX_COMPLETE if complete else _MAX_INCOMPLETE):
            self._counts[chain, complete] = number + 1
            self.sites[site] = None


def _take_first(items: object) -> list[object]:
    """Return the first items as examples, or UNKNOWN as the only one."""
    return (list(items)[:_MAX_LOOP_ITEMS] if isinstance(items, list | tuple | dict) else []) or [UNKNOWN]


def _drop_long(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST else None


def _is_class_name(text: str) -> bool:
    return text.rpartition(".")[2].lstrip("_")[:1].isupper()


def _may_construct(function: ast.expr) -> bool:
    """Return whether a callee may be a class: it is capitalized, or named like a parameter that holds a class."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return _is_class_name(name) or "block" in name.lower() or "layer" in name.lower()
