"""Values that code compares a parameter with: constants, the keys of tables that it is looked up in, and classes.

    class Pool(nn.Module):
        def __init__(self, mode, space):
            assert mode.lower() in ("mean", "max")              # mode: 'mean', 'max'
            if not isinstance(space, spaces.Discrete): ...      # space: spaces.Discrete
            self.scale = SCALES[mode]                           # mode: the keys of SCALES

A name means the same wherever a file uses it, so its functions and other classes count, too.
"""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_MAX_VALUES = 6
_PLAIN = frozenset({"Tensor", "Module", "Parameter"})


class Compared(NamedTuple):
    """What one name is compared with: expressions of constants, and expressions of classes."""

    constants: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def list_fitting(self, annotation: str) -> tuple[str, ...]:
        """Return the constants, unless an annotation asks for something else than a string."""
        return self.constants if not annotation or re.search(r"(?i)str|literal|any\b|enum", annotation) else ()


@functools.cache
def read_compared(module: str) -> Mapping[str, Compared]:
    """Return what the names in a module that was imported are compared with; empty if its text is unavailable."""
    space = vars(sys.modules.get(module, object))
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return {}
    constants: dict[str, dict[str, None]] = {}
    classes: dict[str, dict[str, None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            constants.setdefault(_find_name(node.left), {}).update(
                dict.fromkeys(_list_constants(node.comparators[0], space))
            )
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
            keys = _list_constants(node.value, space, tables=True)
            constants.setdefault(node.slice.id, {}).update(dict.fromkeys(keys))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and len(node.args) == 2:
            named = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            texts = [ast.unparse(item) for item in named]
            classes.setdefault(_find_name(node.args[0]), {}).update(
                dict.fromkeys(t for t in texts if _is_class(t, space))
            )
    names = (constants.keys() | classes.keys()) - {""}
    return {
        name: Compared(tuple(constants.get(name, ()))[:_MAX_VALUES], tuple(classes.get(name, ()))[:_MAX_VALUES])
        for name in names
    }


def _find_name(node: ast.expr) -> str:
    """Return the name that an expression is about: that of `mode`, `self.mode`, `mode.lower()`, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _list_constants(node: ast.expr, space: Mapping[str, Any], *, tables: bool = False) -> Iterator[str]:
    """Yield the strings that an expression is or holds: literals, and tables at module level."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from _list_constants(item, space)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not tables:
        yield repr(node.value)
    elif isinstance(node, ast.Dict):
        yield from (
            repr(key.value) for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
        )
    else:
        value = _find_value(ast.unparse(node), space)
        if isinstance(value, dict | list | tuple | set | frozenset):
            yield from sorted(repr(key) for key in value if isinstance(key, str))


def _find_value(text: str, space: Mapping[str, Any]) -> Any:
    """Return what a dotted name means at module level; None if it means nothing there."""
    first, *rest = text.split(".")
    value = space.get(first)
    if first in ("cls", "self") and rest:  # a table of any class of the file
        kinds = [kind for kind in space.values() if isinstance(kind, type)]
        return next((vars(k)[rest[0]] for k in kinds if isinstance(vars(k).get(rest[0]), dict | list | tuple)), None)
    for name in rest:
        value = inspect.getattr_static(value, name, None)
    return value


def _is_class(text: str, space: Mapping[str, Any]) -> bool:
    value = _find_value(text, space)
    is_known = isinstance(value, type) and value.__module__ != "builtins" and value.__name__ not in _PLAIN
    return is_known and not inspect.isabstract(value)  # such as `numbers.Real`
