"""Read one file: the signatures of its classes, and its calls of classes with the values that its text gives to names.

    def build(dim=48, ratio=4.0):
        hidden = int(dim * ratio)
        return Mlp(dim, hidden, act=self.act)        # Mlp(48, int(48 * 4.0), act=act): `act` stays free

A name that is bound once stands for what it is bound to, and a parameter for its default.
"""

import ast
import builtins
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

Definition = ast.FunctionDef | ast.AsyncFunctionDef

#: Roots of dotted names that mean the same in every file.
ROOTS: Final = frozenset({"torch", "nn", "F", "math", "np", "numpy", "functools"})
_SHORT = {"torch.nn.functional": "F", "torch.nn": "nn", "numpy": "np"}
_CALLABLE = frozenset({"partial", *dir(builtins)}) - {"open", "input", "exec", "eval", "print", "super"}
_DEEPEST = 6  # names in the values of names
_LONGEST = 400  # characters of an argument
_LARGEST = 10**6  # larger integers are seeds and lengths of lists
_MOST_SITES = 24  # of one class


class Parameter(NamedTuple):
    """One parameter of a method."""

    name: str
    annotation: str | None
    default: str | None
    kind: str  # "plain", "keyword" (only by keyword), "args", "kwargs"


Signature = tuple[Parameter, ...]


class ClassUsage(NamedTuple):
    """The facts that a file states about one of its classes."""

    name: str
    init: Signature | None  # None: inherited
    forward: Signature | None


class CallSite(NamedTuple):
    """One call of a class; arguments that cannot be read are None."""

    target: str  # dotted name in the calling file
    name: str  # the name of the class itself, even if the file imports it under another name
    args: tuple[str | None, ...]
    kwargs: tuple[tuple[str, str | None], ...]
    opened: bool  # there are further, unknown arguments


class FileUsage(NamedTuple):
    """The calls and classes in one file."""

    sites: tuple[CallSite, ...]
    classes: dict[str, ClassUsage]


def read_tree(tree: ast.Module) -> FileUsage:
    """Return the calls in a file that construct objects, and its classes."""
    reader = _Reader(tree)
    counts = Counter[str]()
    sites: dict[CallSite, None] = {}
    for call, scope in reader.list_calls(tree.body, _Scope(None)):
        site = reader.read(call, scope)
        if site is not None and counts[site.target] < _MOST_SITES and site not in sites:
            counts[site.target] += 1
            sites[site] = None
    return FileUsage(tuple(sites), {node.name: _read_class(node) for node in _walk_classes(tree.body)})


# -- classes -----------------------------------------------------------------------------------------------------------


def _walk_classes(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _walk_classes([*node.body, *node.orelse])


def _read_class(node: ast.ClassDef) -> ClassUsage:
    methods = {item.name: item for item in node.body if isinstance(item, Definition)}
    signatures = {name: read_signature(methods[name]) for name in ("__init__", "forward") if name in methods}
    return ClassUsage(node.name, signatures.get("__init__"), signatures.get("forward"))


def read_signature(node: Definition) -> Signature:
    """Return the parameters of a method, without `self`."""
    args, defaults = node.args, _read_defaults(node)
    listed = [(arg, "plain") for arg in [*args.posonlyargs, *args.args][1:]]
    listed += [(args.vararg, "args")] if args.vararg else []
    listed += [(arg, "keyword") for arg in args.kwonlyargs]
    listed += [(args.kwarg, "kwargs")] if args.kwarg else []
    return tuple(
        Parameter(arg.arg, _spell(arg.annotation), _spell(defaults.get(arg.arg)), kind) for arg, kind in listed
    )


def _spell(node: ast.expr | None) -> str | None:
    return ast.unparse(node) if node is not None else None


def _read_defaults(node: Definition) -> dict[str, ast.expr | None]:
    """Return the parameters of a function with their defaults; None for those without one."""
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    defaults: dict[str, ast.expr | None] = {arg.arg: None for arg in plain}
    defaults |= {arg.arg: value for arg, value in zip(plain[::-1], args.defaults[::-1], strict=False)}
    return defaults | {arg.arg: value for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)}


def read_dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as text, or "" for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    before = read_dotted_name(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


# -- calls -------------------------------------------------------------------------------------------------------------


class _UnreadableError(Exception):
    """An argument holds what the text does not decide."""


class _Scope:
    """The names of a module, class or function; None for what is bound in several ways, or by no plain assignment."""

    def __init__(self, outer: "_Scope | None", values: dict[str, ast.expr | None] | None = None) -> None:
        self._outer = outer
        self._values = values or {}

    def bind(self, target: ast.expr, value: ast.expr | None) -> None:
        for name in (node.id for node in ast.walk(target) if isinstance(node, ast.Name)):
            known = name in self._values or not isinstance(target, ast.Name)
            self._values[name] = None if known else value

    def find(self, name: str) -> "tuple[ast.expr, _Scope] | None":
        """Return what a name is bound to, and where."""
        if name in self._values or self._outer is None:
            value = self._values.get(name)
            return (value, self) if value is not None else None
        return self._outer.find(name)


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
            elif isinstance(node, ast.AnnAssign):
                scope.bind(node.target, node.value)
            elif isinstance(node, ast.AugAssign | ast.For):
                scope.bind(node.target, None)
            elif isinstance(node, ast.Call):
                calls.append(node)
            waiting += ast.iter_child_nodes(node)
        yield from ((call, scope) for call in calls)
        for item in inner:
            if isinstance(item, Definition | ast.ClassDef):
                values = {} if isinstance(item, ast.ClassDef) else _read_defaults(item)
                yield from self.list_calls(item.body, _Scope(scope, values))

    def read(self, call: ast.Call, scope: _Scope) -> CallSite | None:
        """Return a call as a call site, if it constructs an object and any argument is known."""
        found = scope.find(call.func.id) if isinstance(call.func, ast.Name) else None
        chain = read_dotted_name(found[0] if found is not None else call.func)
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
        try:
            text = ast.unparse(self._expand(node, scope, 0))
        except _UnreadableError:
            return None
        return text if len(text) <= _LONGEST else None

    def _expand(self, node: ast.expr, scope: _Scope, depth: int) -> ast.expr:
        """Return an expression with the values of its names. Raises: _UnreadableError."""
        unread = ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Starred
        is_power = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
        is_large = isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > _LARGEST
        if depth > _DEEPEST or isinstance(node, unread) or is_power or is_large:
            raise _UnreadableError
        if isinstance(node, ast.Name):
            found = scope.find(node.id)
            return self._expand(*found, depth + 1) if found else _parse(self._imported.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            return self._expand_attribute(node, scope, depth)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and not scope.find(node.value.id):
            return ast.Name(node.value.id.removesuffix("s"))  # an item of `dims` is a `dim`
        if isinstance(node, ast.Call):
            chain = read_dotted_name(node.func)
            first, last = self._imported.get(chain, chain).partition(".")[0], chain.rpartition(".")[2]
            if not (first in ROOTS | _CALLABLE or last.lstrip("_")[:1].isupper()):
                raise _UnreadableError

        def expand(part: object) -> object:
            if isinstance(part, list):
                return [expand(item) for item in part]
            if isinstance(part, ast.keyword):
                return ast.keyword(part.arg, self._expand(part.value, scope, depth))
            return self._expand(part, scope, depth) if isinstance(part, ast.expr) else part

        fresh = type(node)()
        for name, value in ast.iter_fields(node):
            setattr(fresh, name, expand(value))
        return fresh

    def _expand_attribute(self, node: ast.Attribute, scope: _Scope, depth: int) -> ast.expr:
        """Return `nn.ReLU` and `Mode.MEAN` as they are, `width` for `config.width`, and its value for `self.width`."""
        first, _, rest = read_dotted_name(node).partition(".")
        imported = self._imported.get(first, first)
        if imported.partition(".")[0] in ROOTS or first in self._classes or first.lstrip("_")[:1].isupper():
            return _parse(f"{imported}.{rest}")
        name = ast.Name(node.attr)
        return self._expand(name, scope, depth + 1) if first == "self" else name


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _shorten(dotted: str) -> str:
    """Return `torch.nn.ReLU` as `nn.ReLU`."""
    for long, short in _SHORT.items():
        if dotted == long or dotted.startswith(f"{long}."):
            return short + dotted[len(long) :]
    return dotted
