"""Values to try for an argument, from what code compares its name with, or looks up by that name."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MAX_VALUES = 6
_TABLES = (dict, list, tuple, set, frozenset)


def list_fitting(constants: tuple[str, ...], annotation: str) -> tuple[str, ...]:
    """Return constants, unless an annotation asks for something else than a string."""
    return constants if not annotation or re.search(r"(?i)str|literal|any\b|enum", annotation) else ()


@functools.cache
def read_compared(module: str) -> Mapping[str, tuple[str, ...]]:
    """Return the strings that the names in an imported module are compared with; empty if its text is unavailable.

        assert mode.lower() in ("mean", "max")              # mode: 'mean', 'max'
        if settings.kind == "wide": ...                     # kind: 'wide'
        self.scale = SCALES[mode]                           # mode: the keys of SCALES

    A name means the same wherever a file uses it, so its functions and other classes count, too.
    """
    space = vars(sys.modules.get(module, object))
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, dict[str, None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            texts = _list_constants(node.comparators[0], space, tables=False)
            found.setdefault(_find_name(node.left), {}).update(dict.fromkeys(texts))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
            texts = _list_constants(node.value, space, tables=True)
            found.setdefault(node.slice.id, {}).update(dict.fromkeys(texts))
    return {name: tuple(texts)[:_MAX_VALUES] for name, texts in found.items() if name and texts}


def _find_name(node: ast.expr) -> str:
    """Return the name that an expression is about: that of `mode`, `self.mode`, `mode.lower()`, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _list_constants(node: ast.expr, space: Mapping[str, Any], *, tables: bool) -> Iterator[str]:
    """Yield the strings that an expression is or holds: literals, and tables at module level or of a class."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from _list_constants(item, space, tables=tables)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not tables:
        yield repr(node.value)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            yield from [repr(key.value)] if isinstance(key, ast.Constant) and isinstance(key.value, str) else []
    elif isinstance(node, ast.Name | ast.Attribute):
        name = _find_name(node)
        holders = (vars(kind) for kind in space.values() if isinstance(kind, type) and not isinstance(node, ast.Name))
        tables_held = (held[name] for held in (space, *holders) if isinstance(held.get(name), _TABLES))
        value: Iterable[Any] = next(tables_held, ())
        yield from sorted(repr(key) for key in value if isinstance(key, str))
