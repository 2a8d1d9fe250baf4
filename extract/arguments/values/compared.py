"""Values to try for an argument, from what code compares its name with, goes over by that name, or unpacks."""

import ast
import enum
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from extract.arguments.values.inputs import list_required
from extract.arguments.values.names import BLOCK, candidates, format_dict, read_parameters

_MAX_VALUES = 6
_PLAIN = frozenset({"Tensor", "Module", "Parameter"})


class Compared(NamedTuple):
    """Expressions for one name: constants and classes that it is compared with, dicts as which it is unpacked.

    Args: items: the classes that its items are compared with, where a loop goes over it.
    """

    constants: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    items: tuple[str, ...] = ()

    def list_fitting(self, annotation: str) -> tuple[str, ...]:
        """Return the constants, unless an annotation asks for something else than a string."""
        return self.constants if not annotation or re.search(r"(?i)str|literal|any\b|enum", annotation) else ()


def parse_module(module: str) -> tuple[str, ast.Module]:
    """Return the text of an imported module with its tree; both empty if the text is unavailable."""
    try:
        source = inspect.getsource(sys.modules[module])
        return source, _parse_text(source)
    except (KeyError, OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return "", ast.Module([], [])


_parse_text = functools.cache(ast.parse)  # a large file takes a tenth of a second


@functools.cache
def read_compared(module: str) -> Mapping[str, Compared]:
    """Return what the names in an imported module are compared with; empty if its text is unavailable.

        class Pool(nn.Module):
            def __init__(self, mode, space):
                assert mode.lower() in ("mean", "max")              # mode: 'mean', 'max'
                if settings.kind == "wide": ...                     # kind: 'wide'
                if not isinstance(space, spaces.Discrete): ...      # space: spaces.Discrete
                self.scale = SCALES[mode]                           # mode: the keys of SCALES
                self.norm = find(norm_name)                         # norm_name: what `find` compares its argument with
                self.mlp = MLP(32, **layers)                        # layers: what else MLP requires: {'depth': 2}
                [c for c in columns if isinstance(c, Column)]       # columns: items of Column

    A name means the same wherever a file uses it, so its functions and other classes count, too.
    """
    space, (_, tree) = vars(sys.modules.get(module, object)), parse_module(module)
    constants: dict[str, dict[str, None]] = {}
    classes: dict[str, dict[str, None]] = {}
    settings: dict[str, dict[str, None]] = {}
    loops: dict[str, set[str]] = {}
    functions = {
        node.name: [item.arg for item in node.args.args if item.arg not in ("self", "cls")]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    passed: dict[str, dict[str, None]] = {}  # as which arguments of functions of the file a name is passed
    for node in ast.walk(tree):
        for item, looped in _list_loops(node):
            loops.setdefault(looped, set()).add(item)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            # `args.mode == "mean"` tells of an item of `args` what `mode == "mean"` tells of an argument.
            left = node.left
            name = left.attr if isinstance(left, ast.Attribute) and _find_name(left.value) else _find_name(left)
            constants.setdefault(name, {}).update(dict.fromkeys(_list_constants(node.comparators[0], space)))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Name):
            keys = _list_constants(node.value, space, tables=True)
            constants.setdefault(node.slice.id, {}).update(dict.fromkeys(keys))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and len(node.args) == 2:
            named = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            texts = [ast.unparse(item) for item in named]
            classes.setdefault(_find_name(node.args[0]), {}).update(
                dict.fromkeys(t for t in texts if _is_class(t, space))
            )
        elif isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else _find_name(node.func)
            for argument, name in zip(node.args, functions.get(last, ()), strict=False):
                passed.setdefault(_find_name(argument), {})[name] = None
            for keyword in (keyword for keyword in node.keywords if keyword.arg is None):
                text = _list_required_by(node, space)
                listed = isinstance(keyword.value, ast.Subscript)
                name = _find_name(keyword.value.value if isinstance(keyword.value, ast.Subscript) else keyword.value)
                settings.setdefault(name, {})[f"[{text}] * 3" if listed else text] = None
    for name, others in passed.items():
        for other in others.keys() - {name} if name else ():
            constants.setdefault(name, {}).update(constants.get(other, {}))
    items = {name: {text: None for each in sorted(loops[name]) for text in classes.get(each, ())} for name in loops}
    seen = (constants, classes, settings, items)
    names = {name for table in seen for name in table} - {""}
    return {name: Compared(*(tuple(table.get(name, ()))[:_MAX_VALUES] for table in seen)) for name in names}


def _list_loops(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the item and what a loop, a comprehension, or `filter` with a lambda goes over, by name."""
    looped: ast.expr | None = None
    if isinstance(node, ast.For | ast.comprehension):
        item, looped = _find_name(node.target), node.iter
    elif isinstance(node, ast.Call) and len(node.args) == 2 and isinstance(node.args[0], ast.Lambda):
        item, looped = "".join(each.arg for each in node.args[0].args.args), node.args[1]
    for part in ast.walk(looped) if looped is not None else ():
        if isinstance(part, ast.Name | ast.Attribute) and _find_name(part) and item:
            yield item, _find_name(part)


def _list_required_by(call: ast.Call, space: Mapping[str, Any]) -> str:
    """Return a dict of the arguments that a call requires beyond those that it states, as an expression."""
    parameters = read_parameters(_find_value(ast.unparse(call.func), space))
    stated = {keyword.arg for keyword in call.keywords} | {*list(parameters)[: len(call.args)]}
    missing = [name for name in list_required(parameters) if name not in stated]
    texts = {name: candidates(name, parameters[name].annotation) for name in missing}
    return format_dict({name: next(t for t in tried if t != BLOCK) for name, tried in texts.items()})


def _find_name(node: ast.expr) -> str:
    """Return the name that an expression is about: that of `mode`, `self.mode`, `mode.lower()`, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):  # an item of a table
        return node.value.attr
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
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):  # a table of tables
            tables_by_key = _find_value(ast.unparse(node.value), space)
            value = tables_by_key.get(node.slice.value) if isinstance(tables_by_key, dict) else None
        else:
            value = _find_value(ast.unparse(node), space)
        if isinstance(value, enum.Enum) and isinstance(node, ast.Attribute) and not tables:
            yield ast.unparse(node)
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
