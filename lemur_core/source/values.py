"""The one evaluator of Python expressions that runs nothing: a value as far as the text decides it, else UNKNOWN.

`[width] * len(STAGES) if deep else None` is `[32, 32]` where `width`, `STAGES` and `deep` are known. What a name, an
attribute or a call stands for is the affair of a subclass (`extract.sources.layout`).
"""

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

MOST_ITEMS = 200  # in a list; longer ones, and longer strings, are not followed
LONGEST = 2_000  # characters of an expression
MOST_NUMBER = 1e15

#: Roots of dotted names that mean the same in every file.
ROOTS: Final = frozenset({"torch", "nn", "F", "math", "np", "numpy", "functools"})
_SHORT = {"torch.nn.functional": "F", "torch.nn": "nn", "numpy": "np"}


class Unknown:
    """Type of UNKNOWN, the value that nothing is known about."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression that is kept as text: `nn.ReLU`, a class of the corpus, or the construction of an object."""

    text: str


@dataclass(frozen=True, slots=True)
class Partial:
    """`functools.partial(function, …)`."""

    function: object
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`to_ntuple(count)`: a function that repeats one value."""

    count: int


@dataclass(eq=False, slots=True)
class Instance:
    """An instance of a class of the file, with the known attributes."""

    kind: str
    text: str | None = None  # the call that created it, if known completely
    attributes: dict[str, object] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Function:
    """A function of the file, or a method of an object."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    scope: "Scope"
    instance: Instance | None = None


@dataclass(eq=False, slots=True)
class Scope:
    """Local names and the enclosing scope."""

    parent: "Scope | None" = None
    names: dict[str, object] = field(default_factory=dict)

    def find(self, name: str) -> object:
        """Return the value of a name; UNKNOWN if it is not bound; roots and types evaluate to themselves."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return Expr(name) if name in _TYPES or name in ROOTS else UNKNOWN


def is_plain(value: object) -> bool:
    """Return whether Python operators can be applied to a value."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(item) for item in value.values())
    return isinstance(value, bool | int | float | str | None)


def limit_size(value: object) -> object:
    """Return the value, or UNKNOWN if it is larger than any hint."""
    if isinstance(value, int | float):
        return value if math.isfinite(value) and abs(value) < MOST_NUMBER else UNKNOWN
    if isinstance(value, str | list | tuple | dict):
        return value if len(value) <= MOST_ITEMS else UNKNOWN
    return value


def render(value: object) -> str | None:
    """Return the expression for a value.

    Args: value: possibly UNKNOWN, or with unknown parts.
    Returns: Python source; None if part of it is unknown.
    """
    if isinstance(value, Expr | Instance):
        return value.text
    if isinstance(value, Partial):
        return render_call("functools.partial", [value.function, *value.args], dict(value.kwargs))
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    if isinstance(value, list | tuple):
        items = [text for item in value if (text := render(item)) is not None]
        if len(items) < len(value):
            return None
        inner = ", ".join(items)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(items) == 1)})"
    if isinstance(value, dict):
        pairs = [f"{key!r}: {text}" for key, item in value.items() if (text := render(item)) is not None]
        return "{" + ", ".join(pairs) + "}" if len(pairs) == len(value) else None
    return None


def render_call(function: str, args: Sequence[object], kwargs: dict[str, object]) -> str | None:
    """Return a call as an expression.

    Args: function: its dotted name, written as it is.
    Returns: Python source; None if part of it is unknown.
    """
    texts = [render(value) for value in args]
    texts += [f"{name}={text}" if (text := render(value)) is not None else None for name, value in kwargs.items()]
    known = [text for text in texts if text is not None]
    return f"{function}({', '.join(known)})" if len(known) == len(texts) else None


# -- imports ---------------------------------------------------------------------------------------------------------


def read_imports(body: Sequence[ast.stmt]) -> tuple[dict[str, object], dict[str, str]]:
    """Return the values of imported names, and the aliases of imported classes.

    Args: body: the statements of a module.
    Returns: the values by the name that is bound, and the name in the file by the imported one, where these differ.
    """
    values: dict[str, object] = {}
    renamed: dict[str, str] = {}
    for node in _imports(body):
        for alias in node.names:
            if isinstance(node, ast.Import):
                bound = alias.asname or alias.name.partition(".")[0]
                values[bound] = Expr(_short(alias.name) if alias.asname else bound)
            elif alias.name != "*":
                bound = alias.asname or alias.name
                rooted = not node.level and (node.module or "").partition(".")[0] in ROOTS
                values[bound] = Expr(_short(f"{node.module}.{alias.name}") if rooted else alias.name)
                if bound != alias.name and not rooted:
                    renamed[alias.name] = bound
    return values, renamed


def _short(dotted: str) -> str:
    """Return `torch.nn.ReLU` as `nn.ReLU`."""
    for long, short in _SHORT.items():
        if dotted == long or dotted.startswith(f"{long}."):
            return short + dotted[len(long) :]
    return dotted


def _imports(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            handlers = [item for handler in getattr(node, "handlers", ()) for item in handler.body]
            yield from _imports([*node.body, *handlers, *node.orelse])


# -- operators and built-in functions --------------------------------------------------------------------------------

_BINARY: dict[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[..., object]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_COMPARE: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_OF_PLAIN: dict[str, Callable[..., object]] = {
    **{function.__name__: function for function in (int, float, str, bool, round, abs, max, min, sum, sorted)},
    "range": lambda *args: list(range(*args)[:MOST_ITEMS]),
}
_OF_SEQUENCES: dict[str, Callable[..., object]] = {
    **{function.__name__: function for function in (len, list, tuple)},
    "enumerate": lambda items: list(enumerate(items)),
    "zip": lambda *items: list(zip(*items, strict=False)),
    "reversed": lambda items: list(reversed(items)),
}
_TYPES: dict[str, type] = {kind.__name__: kind for kind in (int, float, str, bool, list, tuple, dict)}
_FAULTS = (TypeError, ValueError, ZeroDivisionError, OverflowError, LookupError, AttributeError)


def binary(kind: ast.operator, left: object, right: object) -> object:
    """Evaluate `left kind right`.

    Args: left, right: values, possibly UNKNOWN.
    Returns: UNKNOWN if an operand is, the operation fails, or the result could be huge.
    """
    function = _BINARY.get(type(kind))
    lists = isinstance(left, list | tuple) and isinstance(right, list | tuple | int)
    if function is None or not (lists or (is_plain(left) and is_plain(right))):
        return UNKNOWN
    if isinstance(kind, ast.Pow) and not (isinstance(right, int | float) and abs(right) < 64):
        return UNKNOWN
    repeats = isinstance(left, str | list | tuple) or isinstance(right, str | list | tuple)
    if repeats and any(isinstance(size, int) and size > MOST_ITEMS for size in (left, right)):
        return UNKNOWN
    return _apply(function, left, right)


def unary(kind: ast.unaryop, value: object) -> object:
    """`kind value`."""
    if isinstance(kind, ast.Not):
        known = truth(value)
        return UNKNOWN if known is None else not known
    function = _UNARY.get(type(kind))
    return _apply(function, value) if function is not None and is_plain(value) else UNKNOWN


def compare(kind: ast.cmpop, left: object, right: object) -> object:
    """`left kind right`."""
    if UNKNOWN in (left, right):
        return UNKNOWN
    if isinstance(kind, ast.Is | ast.IsNot):
        if left is None or right is None or isinstance(right, bool):
            return (left is right) == isinstance(kind, ast.Is)
        return (left == right) == isinstance(kind, ast.Is) if isinstance(left, Expr) else UNKNOWN
    classes = isinstance(left, Expr) and isinstance(right, Expr) and isinstance(kind, ast.Eq | ast.NotEq)
    if not classes and not (is_plain(left) and is_plain(right)):
        return UNKNOWN
    return _apply(_COMPARE[type(kind)], left, right)


def truth(value: object) -> bool | None:
    """Return the truth value.

    Args: value: an expression or instance counts as true.
    Returns: None if it is unknown.
    """
    if isinstance(value, Expr | Partial | Instance):
        return True
    return bool(value) if isinstance(value, bool | int | float | str | list | tuple | dict | None) else None


def subscript(value: object, index: object) -> object:
    """Evaluate `value[index]`.

    Args: value, index: possibly UNKNOWN.
    Returns: UNKNOWN if one of them is, or the lookup fails.
    """
    if isinstance(value, str | list | tuple | dict) and isinstance(index, int | str | slice):
        return _apply(operator.getitem, value, index)
    return UNKNOWN


def call_builtin(name: str, args: Sequence[object]) -> object:
    """Evaluate the call of a built-in function, or of a helper that is known by its name.

    Args: name: dotted if it is a member of a module.
    Returns: UNKNOWN if an argument is, or the call fails.
    """
    if name == "isinstance" and len(args) == 2:
        return _is_instance(*args)
    if name in _OF_SEQUENCES and all(isinstance(value, list | tuple | dict | str) for value in args):
        return _apply(_OF_SEQUENCES[name], *args)
    if name in _OF_PLAIN and all(is_plain(value) for value in args):
        return _apply(_OF_PLAIN[name], *args)
    return _helper(name.rpartition(".")[2].lstrip("_"), args)


_TIMES = {"to_1tuple": 1, "single": 1, "to_2tuple": 2, "pair": 2, "to_3tuple": 3, "triple": 3}


def _helper(name: str, args: Sequence[object]) -> object:
    """Return the result of a small helper that many codebases define under the same name."""
    if name in _TIMES and len(args) == 1:
        return repeat_value(args[0], _TIMES[name])
    if name in {"to_ntuple", "ntuple"} and len(args) == 1 and isinstance(args[0], int):
        return Repeat(args[0])
    return UNKNOWN


def repeat_value(value: object, count: int) -> object:
    """Return a value as a tuple of length `count`; return a sequence as a tuple of its own length.

    Args: value: possibly UNKNOWN.
    Returns: UNKNOWN for an unknown value, or for too large a count.
    """
    if isinstance(value, list | tuple):
        return tuple(value)
    return UNKNOWN if value is UNKNOWN or count > MOST_ITEMS else (value,) * count


def split(numbers: object, sizes: object) -> object:
    """Return the numbers in groups of these sizes, like `Tensor.split`.

    Args: numbers, sizes: lists, or UNKNOWN.
    Returns: a list of lists; UNKNOWN unless both are lists and all sizes are integers.
    """
    if not isinstance(numbers, list) or not isinstance(sizes, list | tuple):
        return UNKNOWN
    if not all(isinstance(size, int) for size in sizes):
        return UNKNOWN
    ends = list(itertools.accumulate(sizes))
    return [numbers[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def linspace(args: Sequence[object]) -> object:
    """Return `torch.linspace(start, end, steps)` as a list.

    Args: args: the positional arguments of the call.
    Returns: numbers rounded to four decimals; UNKNOWN if an argument is unknown or there are too many steps.
    """
    if len(args) != 3 or not isinstance(args[2], int) or not 0 < args[2] <= MOST_ITEMS:
        return UNKNOWN
    start, end = args[0], args[1]
    if not isinstance(start, int | float) or not isinstance(end, int | float):
        return UNKNOWN
    step = (end - start) / max(1, args[2] - 1)
    return [round(start + number * step, 4) for number in range(args[2])]


def _is_instance(value: object, kind: object) -> object:
    kinds = kind if isinstance(kind, tuple | list) else [kind]
    names = [item.text.rpartition(".")[2] for item in kinds if isinstance(item, Expr)]
    if not is_plain(value) and not isinstance(value, list | tuple | dict):
        return UNKNOWN
    if any(isinstance(value, _TYPES.get(name, Unknown)) for name in names):
        return True
    if isinstance(value, list | tuple) and not {"Sequence", "Iterable"}.isdisjoint(names):
        return True
    return False if len(names) == len(kinds) else UNKNOWN


def _apply(function: Callable[..., object], *args: object) -> object:
    try:
        return limit_size(function(*args))
    except _FAULTS:
        return UNKNOWN


# -- expressions -------------------------------------------------------------------------------------------------------

ScopeT = TypeVar("ScopeT")
Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp


class Evaluator(Generic[ScopeT]):
    """Evaluate expressions in a scope. Subclasses decide names, attributes, calls, comprehensions and choices."""

    def name(self, name: str, scope: ScopeT) -> object:
        """Return the value of a name."""
        raise NotImplementedError

    def attribute(self, node: ast.Attribute, scope: ScopeT) -> object:
        """Return the value of an attribute."""
        raise NotImplementedError

    def call(self, node: ast.Call, scope: ScopeT) -> object:
        """Return the result of a call."""
        raise NotImplementedError

    def comprehension(self, node: Comprehension, scope: ScopeT) -> object:
        """Return the items of a comprehension."""
        raise NotImplementedError

    def choose(self, options: Sequence[Callable[[], object]]) -> object:
        """Return the value of one of several expressions, where the text does not decide which."""
        raise NotImplementedError

    def value(self, node: ast.expr | None, scope: ScopeT) -> object:
        """Return the value of an expression; None for the absent one of a bare `return`."""
        inner = partial(self.value, scope=scope)
        match node:
            case None:
                return None
            case ast.Constant(value=constant):
                return limit_size(constant) if isinstance(constant, str | int | float | None) else UNKNOWN
            case ast.Name(id=name):
                return self.name(name, scope)
            case ast.Attribute():
                return self.attribute(node, scope)
            case ast.Call():
                return self.call(node, scope)
            case ast.JoinedStr(values=parts):
                texts = [inner(part) for part in parts]
                return limit_size("".join(map(str, texts))) if UNKNOWN not in texts else UNKNOWN
            case ast.FormattedValue(value=part, conversion=-1, format_spec=None):
                value = inner(part)
                return str(value) if isinstance(value, str | int | float | None) else UNKNOWN
            case ast.List(elts=items):
                return limit_size(self.items(items, scope))
            case ast.Tuple(elts=items) | ast.Set(elts=items):
                return limit_size(tuple(self.items(items, scope)))
            case ast.Dict():
                return self._dict(node, scope)
            case ast.Subscript():
                return self.subscript(inner(node.value), node.slice, scope)
            case ast.BinOp(left=left, op=kind, right=right):
                return binary(kind, inner(left), inner(right))
            case ast.UnaryOp(op=kind, operand=operand):
                return unary(kind, inner(operand))
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                return compare(kind, inner(left), inner(right))
            case ast.BoolOp():
                return self._bool(node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                known = truth(inner(test))
                if known is None:
                    return self.choose([partial(inner, body), partial(inner, orelse)])
                return inner(body if known else orelse)
            case ast.NamedExpr(value=named):
                return inner(named)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self.comprehension(node, scope)
        return UNKNOWN

    def items(self, nodes: Sequence[ast.expr], scope: ScopeT) -> list[object]:
        """Evaluate several expressions; unpack `*values`, or add a single UNKNOWN if they are not known."""
        result: list[object] = []
        for node in nodes:
            value = self.value(node.value if isinstance(node, ast.Starred) else node, scope)
            if isinstance(node, ast.Starred):
                result += value if isinstance(value, list | tuple) else [UNKNOWN]
            else:
                result.append(value)
        return result

    def subscript(self, holder: object, index: ast.expr, scope: ScopeT) -> object:
        """Return an item or a slice of a value."""
        if not isinstance(index, ast.Slice):
            return subscript(holder, self.value(index, scope))
        parts = [self.value(part, scope) for part in (index.lower, index.upper, index.step)]
        known = all(isinstance(part, int | None) for part in parts)
        return subscript(holder, slice(*parts)) if known else UNKNOWN

    def _dict(self, node: ast.Dict, scope: ScopeT) -> object:
        result: dict[object, object] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, scope)
            name = self.value(key, scope) if key is not None else None
            if key is None and isinstance(value, dict):
                result.update(value)
            elif key is not None and isinstance(name, str | int | None):
                result[name] = value
            else:
                return UNKNOWN
        return limit_size(result)

    def _bool(self, node: ast.BoolOp, scope: ScopeT) -> object:
        """Return the part that decides `and` or `or`; one of several where the truth of earlier ones is unknown."""
        options: list[object] = []
        for item in node.values:
            value = self.value(item, scope)
            known = truth(value)
            if known is isinstance(node.op, ast.Or) or item is node.values[-1]:
                options.append(value)
                break
            if known is None:
                options.append(value)
        return options[0] if len(options) == 1 else self.choose([partial(keep, option) for option in options])


def keep(value: object) -> object:
    """Return a value as it is: an option of `Evaluator.choose` that needs no evaluation."""
    return value
