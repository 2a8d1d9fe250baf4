"""Methods of dicts, lists, and short tensors of numbers (lists to us), applied to what is known of them."""

import ast

from extract.hints.evaluate import Evaluator
from extract.hints.fold import split
from extract.hints.values import MOST_ITEMS, UNKNOWN, Scope

_OF_TENSORS = frozenset({"item", "tolist", "split"})
_CHANGING = frozenset({"append", "extend", "insert", "pop", "remove", "reverse", "clear"})


def container_method(evaluator: Evaluator, node: ast.Call, scope: Scope) -> tuple[object] | None:
    """`kwargs.pop("x", None)`, `layers.append(x)`: the value in a tuple; None for other calls."""
    if not isinstance(node.func, ast.Attribute):
        return None
    method = node.func.attr
    if method in _OF_TENSORS:
        numbers = evaluator.value(node.func.value, scope)
        if isinstance(numbers, list) and method == "split" and node.args:
            return (split(numbers, evaluator.value(node.args[0], scope)),)
        return (numbers,) if isinstance(numbers, list | int | float) else None
    if not isinstance(node.func.value, ast.Name):
        return None
    holder = evaluator.value(node.func.value, scope)
    if isinstance(holder, dict):
        args = evaluator.items(node.args, scope)
        if method in {"get", "pop", "setdefault"} and args and isinstance(args[0], str):
            default = args[1] if len(args) > 1 else UNKNOWN
            found = holder.get(args[0], default)
            rest = {key: value for key, value in holder.items() if key != args[0]}
            if method != "get":
                scope.names[node.func.value.id] = {**holder, args[0]: found} if method == "setdefault" else rest
            return (found,)
        if method == "update":
            more = {k.arg: evaluator.value(k.value, scope) for k in node.keywords if k.arg is not None}
            other = args[0] if args and isinstance(args[0], dict) else {}
            scope.names[node.func.value.id] = {**holder, **other, **more}
            return (None,)
        if method in {"items", "keys", "values", "copy"}:
            pairs: object = [(key, value) for key, value in holder.items()]
            lists = {"items": pairs, "keys": list(holder), "values": list(holder.values()), "copy": dict(holder)}
            return (lists[method],)
    if isinstance(holder, list) and method in _CHANGING:
        args = evaluator.items(node.args, scope)
        added = [*holder, *args] if method == "append" and len(args) == 1 and len(holder) < MOST_ITEMS else UNKNOWN
        scope.names[node.func.value.id] = added
        return (UNKNOWN,)
    return None
