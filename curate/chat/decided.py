"""Which missing parts of a file the rest of it and measurements decide.

A part that no run reaches may hold anything, and so may one whose choices change nothing that a request shows: where
a dropout stands, a logarithm of the softmax before a loss that takes one itself, a norm of what is normalized already,
the values that parameters begin with.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable

from curate.chat.network import last_name

#: Methods that LEMUR and PyTorch call.
_CALLED = frozenset({"forward", "learn", "train_setup"})
_DROPPING = re.compile(r"drop(?!_?last)", re.IGNORECASE)
_NORM = re.compile(r"norm|(?:^|_)[bl]n(?:_|\d|$)", re.IGNORECASE)
_LOG_SOFTMAX = frozenset({"log_softmax", "LogSoftmax"})
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_WITH_SOFTMAX = ("crossentropyloss", "cross_entropy")

Definition = ast.FunctionDef | ast.ClassDef


def find_reached(tree: ast.Module) -> set[Definition]:
    """Return the functions, classes and methods that a network uses, by their names; all if there is no class."""
    tops = [node for node in tree.body if isinstance(node, Definition)]
    classes = [node for node in tops if isinstance(node, ast.ClassDef)]
    names = _names([node for node in tree.body if not isinstance(node, Definition)])
    wanted = {"Net"} & {node.name for node in classes} or {node.name for node in classes[-1:] or tops}
    names |= wanted | {"supported_hyperparameters"}
    reached: set[Definition] = set()
    waiting = True
    while waiting:
        methods = [item for node in reached if isinstance(node, ast.ClassDef) for item in node.body]
        defined = [*tops, *(item for item in methods if isinstance(item, ast.FunctionDef))]
        fresh = {node for node in defined if node not in reached and (node.name in names or _is_called(node, tops))}
        for node in fresh:
            names |= _names(_own_parts(node))
        reached |= fresh
        waiting = bool(fresh)
    return reached


def find_with_idle_modules(tree: ast.Module) -> set[Definition]:
    """Return the `forward` of each class that builds something as an attribute that nothing reads: who could know?"""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    read = {node.attr for node in attributes if isinstance(node.ctx, ast.Load)}
    idle: set[Definition] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            built = {
                target.attr
                for item in ast.walk(node)
                if isinstance(item, ast.Assign) and isinstance(item.value, ast.Call)
                for target in item.targets
                if isinstance(target, ast.Attribute) and _is_self(target)
            }
            if built - read:
                idle |= {item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "forward"}
    return idle


def _is_called(node: Definition, tops: list[Definition]) -> bool:
    return node not in tops and (node.name in _CALLED or node.name.startswith("__"))


def _own_parts(node: Definition) -> list[ast.AST]:
    """Return a definition's parts but, of a class, its methods: each is reached by itself."""
    if isinstance(node, ast.FunctionDef):
        return [node]
    return [*node.bases, *node.decorator_list, *(item for item in node.body if not isinstance(item, ast.FunctionDef))]


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    inner = [item for node in nodes for item in ast.walk(node)]
    names = {item.id for item in inner if isinstance(item, ast.Name)}
    return names | {item.attr for item in inner if isinstance(item, ast.Attribute)}


def is_decided(part: ast.Module, rest: str) -> bool:
    """Return False if a part holds what changes no measurement, and the rest of the file does not show.

    Args: rest: of the file, in lower case.
    """
    calls = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
    names = Counter(last_name(call.func) for call in calls)
    if any(_DROPPING.search(name) for name in names) or any(map(_sets_beginning, calls)):
        return False
    of_self = Counter(call.func.attr for call in calls if isinstance(call.func, ast.Attribute) and _is_self(call.func))
    if any(number > 1 and _NORM.search(name) for name, number in of_self.items()):
        return False
    returned = {last_name(value.func) for value in _list_returned(part) if isinstance(value, ast.Call)}
    last = {name for name in returned if _SOFTMAX.search(name)} | (_LOG_SOFTMAX & set(names))
    return not (last and any(loss in rest for loss in _WITH_SOFTMAX))


def _list_returned(part: ast.Module) -> list[ast.expr | None]:
    """Return what is returned, and what was last assigned to a returned name."""
    assigned = {
        target.id: node.value
        for node in ast.walk(part)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    values = [node.value for node in ast.walk(part) if isinstance(node, ast.Return)]
    return [*values, *(assigned.get(value.id) for value in values if isinstance(value, ast.Name))]


def _is_self(function: ast.Attribute) -> bool:
    return isinstance(function.value, ast.Name) and function.value.id == "self"


def _sets_beginning(call: ast.Call) -> bool:
    """Return whether a call sets the values that a parameter begins with."""
    if last_name(call.func) == "Parameter":
        return bool(call.args) and isinstance(call.args[0], ast.Call)
    return isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "init"
