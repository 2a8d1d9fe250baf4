"""Changes and lookups by string: facts about a statement beyond its names, by static analysis.

Changes: `TABLE["x"] = f`, `cls.kinds.append(f)`, `_OF.setdefault(key, {})[kind] = f`, in functions, methods and at
module level.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from lemur_core.source.facts import AT_CALL, AT_DEFINITION, ObjectChange
from lemur_core.source.scopes import last_name
from lemur_core.source.text import list_children, walk_scope

#: Methods that add to a container.
FILLING = frozenset({
    "add", "append", "appendleft", "extend", "insert", "register", "setdefault", "update", "__setitem__",
})  # fmt: skip
_PASSING = ("get", "setdefault")  # methods that return an object from a container
_OWN, _PARAMETER, _ITEM = "", "*", "[]"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_MOST_ALIASES = 8  # length of a chain of aliases
_Aliases = dict[str, list[ast.expr]]  # name -> the expressions that it may refer to


class _Body:
    """The names of one function, and the method and class that contain it."""

    def __init__(self, node: _Function, method: str, owner: str) -> None:
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.parameters = {item.arg for item in (*named, arguments.vararg, arguments.kwarg) if item is not None}
        self.method = method
        self.own = named[0].arg if owner and named else None  # `self` or `cls`
        self.owner = owner  # the class's name for class methods, "self" for instances, otherwise ""
        self.aliases: _Aliases = {}
        self.bound: set[str] = set()
        shared: set[str] = set()
        for item in walk_scope([node.body] if isinstance(node, ast.Lambda) else node.body):
            if isinstance(item, ast.Name) and not isinstance(item.ctx, ast.Load):
                self.bound.add(item.id)
            elif isinstance(item, ast.Global | ast.Nonlocal):
                shared.update(item.names)
            elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.bound.add(item.name)
            if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                self.aliases[item.targets[0].id] = [item.value]
            elif isinstance(item, ast.For | ast.AsyncFor):
                self.aliases.update(_loop_aliases(item))
        self.bound -= shared


def find_changes(node: ast.stmt) -> tuple[ObjectChange, ...]:
    """Return the changes that a top-level statement makes when it runs, and its functions when they are called."""
    loops: _Aliases = {}
    for item in walk_scope(node.body if isinstance(node, _FUNCTIONS) else [node]):
        if isinstance(item, ast.For):
            loops.update(_loop_aliases(item))
    return tuple(dict.fromkeys(_changes(node, loops, (), "", "")))


def _changes(
    node: ast.AST, loops: _Aliases, frames: tuple[_Body, ...], kind: str, method: str
) -> Iterator[ObjectChange]:
    """Yield the changes inside a node.

    Args: loops: its loop variables at module level. frames: the enclosing functions. kind: the enclosing top-level
        class. method: the enclosing method of that class.
    """
    if isinstance(node, ast.ClassDef):
        kind = node.name if not frames and not kind else kind
    elif isinstance(node, _FUNCTIONS):
        named = "" if isinstance(node, ast.Lambda) else node.name
        within = named if kind and not frames else method
        frames = (*frames, _Body(node, within, _owner(node, kind) if kind and not frames else ""))
        method = within
    else:
        when = AT_CALL if frames else AT_DEFINITION
        for target, how in _direct_changes(node):
            own = isinstance(target, ast.Name) and target.id in {frame.own for frame in frames}
            # Attributes that an object sets on itself affect no other code.
            if not (how[0] == "." and own):
                for chain in _resolve(target, loops, frames):
                    yield ObjectChange(chain, how, when, method)
    for child in list_children(node):
        if not isinstance(child, ast.Name | ast.Constant):  # most nodes are
            yield from _changes(child, loops, frames, kind, method)


def _loop_aliases(node: ast.For | ast.AsyncFor) -> _Aliases:
    """Return the values of a loop variable: the elements of a display, or an item of the iterated object."""
    target, over = node.target, node.iter
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in {"values", "items"}:
        if over.func.attr == "items":
            target = target.elts[-1] if isinstance(target, ast.Tuple | ast.List) else target
        over = over.func.value
    if not isinstance(target, ast.Name):
        return {}
    if isinstance(over, ast.Tuple | ast.List | ast.Set):
        return {target.id: list(over.elts)}
    return {target.id: [ast.Subscript(over, ast.Constant(0), ast.Load())]}


def _owner(node: _Function, kind: str) -> str:
    """Return a name for a method's first argument: the class's, `self` for instances, "" for static methods."""
    if isinstance(node, ast.Lambda):
        return ""
    marks = {item.id for item in node.decorator_list if isinstance(item, ast.Name)}
    if "staticmethod" in marks:
        return ""
    return kind if "classmethod" in marks or node.name in {"__init_subclass__", "__class_getitem__"} else "self"


def _direct_changes(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the expressions whose objects a node itself changes, and how."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield node.value, "[]"
    elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield node.value, f".{node.attr}"
    elif isinstance(node, ast.Call):
        call = node.func
        if isinstance(call, ast.Attribute) and call.attr in FILLING:
            yield call.value, call.attr
        elif isinstance(call, ast.Name) and call.id in {"setattr", "delattr"} and node.args:
            yield node.args[0], "."
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value.func
        if isinstance(call, ast.Attribute) and call.attr not in FILLING:
            yield call.value, call.attr


def _resolve(node: ast.expr, loops: _Aliases, frames: tuple[_Body, ...], depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the objects that an expression may refer to, as chains like in `ObjectChange`; none for a function's own
    objects.
    """
    attributes: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            attributes = [_ITEM]
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PASSING:
            attributes = [_ITEM]
            node = node.func.value
        else:
            return
    rest = tuple(reversed(attributes))
    known, around = loops, frames[:0]
    for index in range(len(frames) - 1, -1, -1):
        frame = frames[index]
        if node.id == frame.own:
            yield (_OWN if frame.owner == "self" else frame.owner, *rest)
            return
        if node.id in frame.parameters:
            yield (_PARAMETER, *rest)
            return
        if node.id in frame.bound:
            known, around = frame.aliases, frames[: index + 1]
            if node.id not in known:
                return
            break
    if node.id not in known:
        yield (node.id, *rest)
    elif depth < _MOST_ALIASES:
        for value in known[node.id]:
            for inner in _resolve(value, loops, around, depth + 1):
                yield (*inner, *(part for part in rest if inner[-1] != _ITEM))


# -- dynamic lookups by string ---------------------------------------------------------------------------------------


class DynamicLookup(NamedTuple):
    """An expression that looks up code by a string."""

    node: ast.expr  # the call or subscript
    kind: str  # "globals", "eval", "import" or "subclasses"
    argument: ast.expr | None  # the expression that computes the string


def search_at(node: ast.AST) -> DynamicLookup | None:
    """Return the lookup that a node itself makes, if any.

    Args: node: its children are not searched.
    Returns: None for statements, and for expressions that look up nothing by a string.
    """
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_globals(node.value):
        return DynamicLookup(node, "globals", node.slice)
    if not isinstance(node, ast.Call):
        return None
    name = last_name(node.func)
    argument = node.args[0] if node.args else None
    if name == "get" and isinstance(node.func, ast.Attribute) and _is_globals(node.func.value):
        return DynamicLookup(node, "globals", argument)
    if name == "getattr" and len(node.args) > 1 and _is_globals(node.args[0]):
        return DynamicLookup(node, "globals", node.args[1])
    if isinstance(node.func, ast.Name) and name in {"eval", "exec"}:
        plain = name == "exec" and isinstance(argument, ast.Constant)
        return None if plain else DynamicLookup(node, "eval", argument)
    if name in {"import_module", "__import__"}:
        named = (word.value for word in node.keywords if word.arg == "name")
        return DynamicLookup(node, "import", argument or next(named, None))
    return DynamicLookup(node, "subclasses", None) if name == "__subclasses__" else None


def _is_globals(node: ast.expr) -> bool:
    """Return whether an expression is the namespace of its own file: `globals()`, `sys.modules[__name__]`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "globals"
    named = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id == "__name__"
    return named and isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules"


def build_pattern(node: ast.expr | None) -> str:
    """Return a regular expression of the possible strings of an expression.

    Args: node: None if a lookup has no argument.
    Returns: the constant parts, escaped, with `.*` between and for anything else; for a full match.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.escape(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(build_pattern(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return build_pattern(node.left) + build_pattern(node.right)
    if isinstance(node, ast.IfExp):
        return f"(?:{build_pattern(node.body)}|{build_pattern(node.orelse)})"
    return ".*"
