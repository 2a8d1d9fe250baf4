"""Classes inside classes and functions: where each is, and which expression gives it at module level, told from text.

`Outer.Inner` gives a class that stands in a class. A function that returns the class which it makes gives it when it is
called: without arguments where it needs none, else with those of a call in the file that has only constants.
"""

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise

from lemur_core.source.facts import ClassFacts, Nested

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_KEEPING = frozenset({"cache", "lru_cache"})  # decorators that change nothing of what a function returns
_Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_ClassFacts = Callable[[ast.ClassDef, int], ClassFacts]


def nested_classes(tree: ast.Module, node: ast.stmt, number: int, facts_of: _ClassFacts) -> Iterator[Nested]:
    """The classes with bases inside a class or function of module level.

    Args: number: of the statement. facts_of: what is known of a class's node.
    """
    waiting: list[tuple[tuple[_Scope, ...], ast.AST]] = [((), node)]
    while waiting:
        around, item = waiting.pop()
        if isinstance(item, ast.ClassDef) and around and item.bases:
            made, why = _expression(tree, (*around, item))
            outer = tuple(scope.name for scope in around)
            yield Nested(facts_of(item, number), outer, item.lineno, item.end_lineno or item.lineno, made, why)
        inner = (*around, item) if isinstance(item, _Scope) else around
        below = [child for child in ast.iter_child_nodes(item) if isinstance(child, ast.stmt | ast.ExceptHandler)]
        waiting += [(inner, child) for child in reversed(below)]


def _expression(tree: ast.Module, path: tuple[_Scope, ...]) -> tuple[str, str]:
    """What to append to the name of the outermost scope to have the innermost class, or why nothing gives it."""
    made = ""
    for outer, inner in pairwise(path):
        if isinstance(outer, ast.ClassDef):
            if isinstance(inner, _FUNCTIONS):
                return "", f"it is made as method {inner.name} of {outer.name} runs"
            made += f".{inner.name}"
            continue
        if isinstance(inner, _FUNCTIONS) or not _returns(outer, inner.name):
            return "", f"it is made as {outer.name} runs, which does not return it"
        if any(_last(item) not in _KEEPING for item in outer.decorator_list):
            return "", f"it is made as {outer.name} runs, which is decorated"
        needed = _needed(outer)
        given = _given(tree, outer.name) if needed else ""
        if given is None:
            return "", f"it depends on what {outer.name} is given: {', '.join(needed)}"
        made += f"({given})"
    return made, ""


def _last(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _returns(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether all that a function returns is what it calls so."""
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
    return plain and bool(returned) and all(isinstance(one, ast.Name) and one.id == name for one in returned)


def _needed(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The parameters without a default."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    named = [one for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return [one.arg for one in (*plain[: len(plain) - len(given.defaults)], *named)]


def _given(tree: ast.Module, name: str) -> str | None:
    """The arguments of the file's first call of a function that has only constants."""
    for item in ast.walk(tree):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and item.func.id == name:
            texts = [ast.unparse(one) for one in (*item.args, *item.keywords)]
            if all(_is_constant(one) for one in (*item.args, *(word.value for word in item.keywords))):
                return ", ".join(texts)
    return None


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return False
    return True
