"""Read the calls of classes in one file, with the values that its text gives to the names in their arguments.

    def build(dim=48, ratio=4.0):
        hidden = int(dim * ratio)
        return Mlp(dim, hidden, act=self.act)        # Mlp(48, int(48 * 4.0), act=act): `act` stays free

A name that is bound once stands for what it is bound to, a parameter for its default, a loop's name for the first item.
"""

import ast
import builtins
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extract.arguments.hints.model import Definition, read_dotted_name

#: Roots of dotted names that mean the same in every file.
ROOTS: Final = frozenset({"torch", "nn", "F", "math", "np", "numpy", "functools"})
_SHORT = {"torch.nn.functional": "F", "torch.nn": "nn", "numpy": "np"}
_CALLABLE = frozenset({"partial", *dir(builtins)}) - {"open", "input", "exec", "eval", "print", "super"}
_DEEPEST = 6  # names in the values of names
_LONGEST = 400  # characters of an argument
_LARGEST = 10**6  # larger integers are seeds and lengths of lists
_MOST_SITES = 24  # of one class


class CallSite(NamedTuple):
    """One call of a class; arguments that cannot be read are None."""

    target: str  # dotted name in the calling file
    name: str  # the name of the class itself, even if the file imports it under another name
    args: tuple[str | None, ...]
    kwargs: tuple[tuple[str, str | None], ...]
    opened: bool  # there are further, unknown arguments


@dataclass(slots=True)
class _Scope:
    """The names of a module or function. Args: values: None for a name that is bound in several ways."""

    outer: "_Scope | None"
    values: dict[str, ast.expr | None] = field(default_factory=dict)
    own: Mapping[str, ast.expr | None] = field(default_factory=dict)  # attributes of `self`, by name

    def bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = None if target.id in self.values else value
        elif isinstance(target, ast.Tuple | ast.List):
            whole = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for number, item in enumerate(target.elts):
                self.bind(item, value.elts[number] if whole else None)  # type: ignore[union-attr]

    def find(self, name: str) -> "tuple[ast.expr, _Scope] | None":
        """Return what a name is bound to, and where."""
        if name in self.values or self.outer is None:
            value = self.values.get(name)
            return (value, self) if value is not None else None
        return self.outer.find(name)


class _UnreadableError(Exception):
    """An argument holds what the text does not decide."""


def call_sites(tree: ast.Module) -> list[CallSite]:
    """Return the calls in a file that construct objects."""
    reader = _Reader(tree)
    counts: dict[str, int] = {}
    sites: dict[CallSite, None] = {}
    for call, scope in reader.list_calls(tree.body, _Scope(None)):
        site = reader.read(call, scope)
        if site is not None and counts.setdefault(site.target, 0) < _MOST_SITES and site not in sites:
            counts[site.target] += 1
            sites[site] = None
    return list(sites)


class _Reader:
    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, str] = {}  # names of PyTorch and the like, as they are written everywhere
        self._renamed: dict[str, str] = {}  # from the name of a class to that in this file
        self._classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for node in ast.walk(tree):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                module = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
                dotted, bound = f"{module}{alias.name}", alias.asname or alias.name
                if dotted.partition(".")[0] in ROOTS and (alias.asname or module):
                    self._imported[bound] = _shorten(dotted)
                elif alias.asname and isinstance(node, ast.ImportFrom):
                    self._renamed[alias.asname] = alias.name
                else:
                    self._classes.add(bound.partition(".")[0])

    def list_calls(self, body: Sequence[ast.stmt], scope: _Scope) -> Iterator[tuple[ast.Call, _Scope]]:
        """Yield the calls in a suite, and in the functions and classes in it, each with its scope."""
        inner: list[ast.stmt] = []
        calls: list[ast.Call] = []
        waiting = deque[ast.AST](body)
        while waiting:  # all names of a scope before its first call
            node = waiting.popleft()
            if isinstance(node, Definition | ast.ClassDef):
                inner.append(node)
                continue
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    scope.bind(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                scope.bind(node.target, node.value)
            elif isinstance(node, ast.AugAssign):
                scope.bind(node.target, None)
                scope.bind(node.target, None)
            elif isinstance(node, ast.For):
                scope.bind(*_take_first(node))
            if isinstance(node, ast.Call):
                calls.append(node)
            waiting += ast.iter_child_nodes(node)
        yield from ((call, scope) for call in calls)
        for item in inner:
            if isinstance(item, ast.ClassDef):
                yield from self._list_calls_of_class(item, scope)
            elif isinstance(item, Definition):
                yield from self.list_calls(item.body, _make_scope(item, scope))

    def _list_calls_of_class(self, node: ast.ClassDef, scope: _Scope) -> Iterator[tuple[ast.Call, _Scope]]:
        methods = [item for item in node.body if isinstance(item, Definition)]
        # Attributes are those of the class and those that its constructor sets, as its scope reads them.
        attributes = _Scope(None)
        for assigned in (item for item in node.body if isinstance(item, ast.Assign)):
            attributes.bind(assigned.targets[0], assigned.value)
        for method in (item for item in methods if item.name == "__init__"):
            local = _make_scope(method, scope)
            list(self.list_calls(method.body, local))  # binds its names
            for assigned in (item for item in ast.walk(method) if isinstance(item, ast.Assign)):
                if isinstance(assigned.targets[0], ast.Attribute):
                    value = self._try_expand(assigned.value, local)
                    attributes.bind(ast.Name(assigned.targets[0].attr), value)
        for method in methods:
            local = _make_scope(method, scope)
            local.own = attributes.values
            yield from self.list_calls(method.body, local)

    def read(self, call: ast.Call, scope: _Scope) -> CallSite | None:
        """Return a call as a call site, if it constructs an object and any argument is known."""
        found = scope.find(call.func.id) if isinstance(call.func, ast.Name) else None
        function = found[0] if found is not None else call.func
        chain = read_dotted_name(function)
        name = self._renamed.get(chain, chain.rpartition(".")[2])
        if not chain or not (name.lstrip("_")[:1].isupper() or chain in self._classes):
            return None
        first, dot, rest = chain.partition(".")
        args = tuple(self._write(item, scope) for item in call.args if not isinstance(item, ast.Starred))
        kwargs = tuple((item.arg, self._write(item.value, scope)) for item in call.keywords if item.arg)
        opened = len(args) + len(kwargs) < len(call.args) + len(call.keywords)
        known = any(text is not None for text in (*args, *(text for _, text in kwargs)))
        target = f"{self._imported.get(first, first)}{dot}{rest}"
        return CallSite(target, name, args, kwargs, opened) if known else None

    def _write(self, node: ast.expr, scope: _Scope) -> str | None:
        expanded = self._try_expand(node, scope)
        text = ast.unparse(expanded) if expanded is not None else ""
        return text if 0 < len(text) <= _LONGEST else None

    def _try_expand(self, node: ast.expr, scope: _Scope) -> ast.expr | None:
        try:
            return self._expand(node, scope, 0)
        except _UnreadableError:
            return None

    def _expand(self, node: ast.expr, scope: _Scope, depth: int) -> ast.expr:
        """Return an expression with the values of its names. Raises: _UnreadableError."""
        if depth > _DEEPEST or isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Starred):
            raise _UnreadableError
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            raise _UnreadableError
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > _LARGEST:
            raise _UnreadableError
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            if found is not None:
                return self._expand(*found, depth + 1)
            return _parse(self._imported.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            return self._expand_attribute(node, scope, depth)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and not scope.find(node.value.id):
            return ast.Name(node.value.id.removesuffix("s"))  # an item of `dims` is a `dim`
        if isinstance(node, ast.Call):
            chain = read_dotted_name(node.func)
            first, last = self._imported.get(chain, chain).partition(".")[0], chain.rpartition(".")[2]
            if not (first in ROOTS | _CALLABLE or last.lstrip("_")[:1].isupper()):
                raise _UnreadableError
        fresh = type(node)()
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(fresh, name, [self._expand_part(item, scope, depth) for item in value])
            else:
                setattr(fresh, name, self._expand_part(value, scope, depth))
        return fresh

    def _expand_part(self, part: object, scope: _Scope, depth: int) -> object:
        if isinstance(part, ast.expr):
            return self._expand(part, scope, depth)
        if isinstance(part, ast.keyword):
            return ast.keyword(part.arg, self._expand(part.value, scope, depth))
        return part

    def _expand_attribute(self, node: ast.Attribute, scope: _Scope, depth: int) -> ast.expr:
        """Return `nn.ReLU` and `Mode.MEAN` as they are, the value of `self.width`, and `width` for `config.width`."""
        first, _, rest = read_dotted_name(node).partition(".")
        imported = self._imported.get(first, first)
        if imported.partition(".")[0] in ROOTS or first in self._classes or first.lstrip("_")[:1].isupper():
            return _parse(f"{imported}.{rest}")
        holder: _Scope | None = scope
        while first == "self" and holder is not None and not holder.own:
            holder = holder.outer
        value = holder.own.get(node.attr) if first == "self" and holder is not None else None
        return self._expand(value, _Scope(None), depth + 1) if value is not None else ast.Name(node.attr)


def _make_scope(node: Definition, outer: _Scope) -> _Scope:
    """Return the scope of a function: its parameters stand for their defaults."""
    scope, args = _Scope(outer), node.args
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + [*args.defaults]
    scope.values = {arg.arg: value for arg, value in zip(plain, defaults, strict=True)}
    scope.values |= {arg.arg: value for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    return scope


def _take_first(node: ast.For) -> tuple[ast.expr, ast.expr | None]:
    """Return the target of a loop and its first value."""
    called = isinstance(node.iter, ast.Call) and read_dotted_name(node.iter.func)
    if called == "range":
        return node.target, ast.Constant(0)
    if called == "enumerate" and isinstance(node.target, ast.Tuple):
        return node.target.elts[0], ast.Constant(0)
    items = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else []
    return node.target, items[0] if items else None


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _shorten(dotted: str) -> str:
    """Return `torch.nn.ReLU` as `nn.ReLU`."""
    for long, short in _SHORT.items():
        if dotted == long or dotted.startswith(f"{long}."):
            return short + dotted[len(long) :]
    return dotted
