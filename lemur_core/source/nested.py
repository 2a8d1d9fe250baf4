"""Classes inside classes and functions: where each is, and its expression at module level, by static analysis.

`Outer.Inner` is a class inside a class. A function that returns a class it defines is called to get the class: without
arguments if it needs none, otherwise with those of a call in the file that has only constants.
"""

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise

from lemur_core.source.facts import ClassFacts, Nested

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_KEEPING = frozenset({"cache", "lru_cache"})  # decorators that do not change the return value
_Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_ClassFacts = Callable[[ast.ClassDef, int], ClassFacts]


def find_nested_classes(tree: ast.Module, node: ast.stmt, number: int, facts_of: _ClassFacts) -> Iterator[Nested]:
    """Yield the classes with bases inside a top-level class or function.

    Args: number: the number of the statement. facts_of: returns the facts of a class's node.
    """
    waiting: list[tuple[tuple[_Scope, ...], ast.AST]] = [((), node)]
    while waiting:
        around, item = waiting.pop()
        if isinstance(item, ast.ClassDef) and around and item.bases:
            expression, why = _build_expression(tree, (*around, item))
            outer = tuple(scope.name for scope in around)
            yield Nested(facts_of(item, number), outer, item.lineno, item.end_lineno or item.lineno, expression, why)
        inner = (*around, item) if isinstance(item, _Scope) else around
        below = [child for child in ast.iter_child_nodes(item) if isinstance(child, ast.stmt | ast.ExceptHandler)]
        waiting += [(inner, child) for child in reversed(below)]


def _build_expression(tree: ast.Module, path: tuple[_Scope, ...]) -> tuple[str, str]:
    """Return the text after the outermost name that gives the innermost class, or why there is none."""
    text = ""
    for outer, inner in pairwise(path):
        if isinstance(outer, ast.ClassDef):
            if isinstance(inner, _FUNCTIONS):
                return "", f"it is defined when method {inner.name} of {outer.name} runs"
            text += f".{inner.name}"
            continue
        if isinstance(inner, _FUNCTIONS) or not _returns(outer, inner.name):
            return "", f"it is defined when {outer.name} runs, which does not return it"
        if any(_last(item) not in _KEEPING for item in outer.decorator_list):
            return "", f"it is defined when {outer.name} runs, which is decorated"
        required = _list_required(outer)
        arguments = _find_constant_arguments(tree, outer.name) if required else ""
        if arguments is None:
            return "", f"it depends on arguments of {outer.name}: {', '.join(required)}"
        text += f"({arguments})"
    return text, ""


def _last(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _returns(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Return whether a function returns only the object of this name."""
    waiting: list[ast.AST] = list(function.body)
    returned = []
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.Yield | ast.YieldFrom | ast.Await):
            return False
        if isinstance(item, ast.Return):
            returned.append(item.value)
        if not isinstance(item, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(item))
    plain = isinstance(function, ast.FunctionDef)
    return plain and bool(returned) and all(isinstance(value, ast.Name) and value.id == name for value in returned)


def _list_required(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the parameters without a default."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    named = [
        parameter
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    return [parameter.arg for parameter in (*plain[: len(plain) - len(arguments.defaults)], *named)]


def _find_constant_arguments(tree: ast.Module, name: str) -> str | None:
    """Return the arguments of the file's first call of a function that has only constants."""
    for item in ast.walk(tree):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == name:
            texts = [ast.unparse(node) for node in (*item.args, *item.keywords)]
            if all(_is_constant(node) for node in (*item.args, *(word.value for word in item.keywords))):
                return ", ".join(texts)
    return None


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return False
    return True
