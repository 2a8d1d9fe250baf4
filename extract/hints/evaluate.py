"""Expressions to values, as far as they are known without running anything."""

import ast
from collections.abc import Sequence

from extract.hints import fold
from extract.hints.values import (
    MOST_ITEMS,
    ROOTS,
    UNKNOWN,
    Expr,
    Instance,
    Scope,
    bounded,
    render,
)

_BUILTIN_TYPES = frozenset({"int", "float", "str", "bool", "list", "tuple", "dict"})
_FEW_ITEMS = 64
_FOLLOWED = 5  # items of a loop


class Evaluator:
    """Evaluates expressions; calls are for the subclass."""

    def value(self, node: ast.expr | None, scope: Scope) -> object:
        """What an expression gives."""
        if node is None:
            return None
        method = getattr(self, f"_{type(node).__name__}", None)
        return method(node, scope) if method is not None else UNKNOWN

    def call(self, node: ast.Call, scope: Scope) -> object:
        """What a call gives."""
        raise NotImplementedError

    def config(self, items: dict[str, object]) -> None:
        """Take note of a dict with a type."""

    def class_attribute(self, kind: str, name: str, instance: Instance | None) -> object:
        """What a class of the file has under a name: a constant, or a method of the instance."""
        raise NotImplementedError

    # -- names ---------------------------------------------------------------------------------------------------

    def _Constant(self, node: ast.Constant, scope: Scope) -> object:  # noqa: ARG002, N802
        return bounded(node.value) if isinstance(node.value, str | int | float | None) else UNKNOWN

    def _Name(self, node: ast.Name, scope: Scope) -> object:  # noqa: N802
        found = scope.find(node.id)
        if found is not None or _bound(scope, node.id):
            return found
        return Expr(node.id) if node.id in _BUILTIN_TYPES | ROOTS else UNKNOWN

    def _Attribute(self, node: ast.Attribute, scope: Scope) -> object:  # noqa: N802
        value = self.value(node.value, scope)
        if isinstance(value, Instance):
            if node.attr in value.attributes:
                return value.attributes[node.attr]
            return self.class_attribute(value.kind, node.attr, value)
        if isinstance(value, Expr) and "(" not in value.text:
            known = self.class_attribute(value.text, node.attr, None)
            return known if known is not UNKNOWN else Expr(f"{value.text}.{node.attr}")
        if isinstance(value, dict):
            return value.get(node.attr, UNKNOWN)
        return UNKNOWN

    # -- containers ----------------------------------------------------------------------------------------------

    def items(self, nodes: Sequence[ast.expr], scope: Scope) -> list[object]:
        """The values of several expressions; `*values` are spread, and one UNKNOWN where they cannot be."""
        result: list[object] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.value(node.value, scope)
                result += value if isinstance(value, list | tuple) else [UNKNOWN]
            else:
                result.append(self.value(node, scope))
        return result

    def _List(self, node: ast.List, scope: Scope) -> object:  # noqa: N802
        return bounded(self.items(node.elts, scope))

    def _Tuple(self, node: ast.Tuple, scope: Scope) -> object:  # noqa: N802
        return bounded(tuple(self.items(node.elts, scope)))

    def _Dict(self, node: ast.Dict, scope: Scope) -> object:  # noqa: N802
        result: dict[str, object] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, scope)
            name = self.value(key, scope) if key is not None else None
            if key is None and isinstance(value, dict):
                result.update(value)
            elif isinstance(name, str):
                result[name] = value
            else:
                return UNKNOWN
        self.config(result)
        return bounded(result)

    def _Subscript(self, node: ast.Subscript, scope: Scope) -> object:  # noqa: N802
        value = self.value(node.value, scope)
        if isinstance(node.slice, ast.Slice):
            parts = [self.value(part, scope) for part in (node.slice.lower, node.slice.upper, node.slice.step)]
            if any(not isinstance(part, int | None) for part in parts):
                return UNKNOWN
            return fold.subscript(value, slice(*parts))
        return fold.subscript(value, self.value(node.slice, scope))

    # -- operators -----------------------------------------------------------------------------------------------

    def _BinOp(self, node: ast.BinOp, scope: Scope) -> object:  # noqa: N802
        return fold.binary(node.op, self.value(node.left, scope), self.value(node.right, scope))

    def _UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> object:  # noqa: N802
        return fold.unary(node.op, self.value(node.operand, scope))

    def _Compare(self, node: ast.Compare, scope: Scope) -> object:  # noqa: N802
        left = self.value(node.left, scope)
        for kind, item in zip(node.ops, node.comparators, strict=True):
            right = self.value(item, scope)
            result = fold.compare(kind, left, right)
            if result is not True:
                return result
            left = right
        return True

    def _BoolOp(self, node: ast.BoolOp, scope: Scope) -> object:  # noqa: N802
        stops = isinstance(node.op, ast.Or)
        unsure = False
        value: object = UNKNOWN
        for item in node.values:
            value = self.value(item, scope)
            known = fold.truth(value)
            if known is stops:
                return UNKNOWN if unsure else value
            unsure |= known is None
        return UNKNOWN if unsure else value

    def _IfExp(self, node: ast.IfExp, scope: Scope) -> object:  # noqa: N802
        known = fold.truth(self.value(node.test, scope))
        if known is not None:
            return self.value(node.body if known else node.orelse, scope)
        first, second = self.value(node.body, scope), self.value(node.orelse, scope)
        return first if second is UNKNOWN or render(first) == render(second) else UNKNOWN

    def _NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> object:  # noqa: N802
        value = scope.names[node.target.id] = self.value(node.value, scope)
        return value

    # -- calls, comprehensions -----------------------------------------------------------------------------------

    def _Call(self, node: ast.Call, scope: Scope) -> object:  # noqa: N802
        return self.call(node, scope)

    def _ListComp(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> object:  # noqa: N802
        makes = any(isinstance(inner, ast.Call) and _is_class(inner.func) for inner in ast.walk(node.elt))
        inner = Scope(scope)
        if len(node.generators) > 1 or makes:
            for generator in node.generators[:-1]:
                self.bind(generator.target, self.some(self.value(generator.iter, inner))[0], inner)
            for item in self.some(self.value(node.generators[-1].iter, inner)):
                self.bind(node.generators[-1].target, item, inner)
                self.value(node.elt, inner)
            return UNKNOWN
        items = self.value(node.generators[0].iter, inner)
        if not isinstance(items, list | tuple | dict) or len(items) > _FEW_ITEMS:
            return UNKNOWN
        result: list[object] = []
        for item in items:
            self.bind(node.generators[0].target, item, inner)
            tests = [fold.truth(self.value(test, inner)) for test in node.generators[0].ifs]
            if None in tests:
                return UNKNOWN
            if all(tests):
                result.append(self.value(node.elt, inner))
        return result

    _GeneratorExp = _ListComp

    def some(self, items: object) -> list[object]:
        """The first of several, which stand for all of them; at least one."""
        return (list(items)[:_FOLLOWED] if isinstance(items, list | tuple | dict) else []) or [UNKNOWN]

    def bind(self, target: ast.expr, value: object, scope: Scope) -> None:
        """Assign a value."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, ast.Attribute):
            holder = self.value(target.value, scope)
            if isinstance(holder, Instance) and len(holder.attributes) < MOST_ITEMS:
                holder.attributes[target.attr] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = list(value) if isinstance(value, list | tuple) else []
            known = len(items) == len(target.elts) and not any(isinstance(t, ast.Starred) for t in target.elts)
            for number, inner in enumerate(target.elts):
                self.bind(inner, items[number] if known else UNKNOWN, scope)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, UNKNOWN, scope)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            holder, key = self.value(target.value, scope), self.value(target.slice, scope)
            known_dict = isinstance(holder, dict) and isinstance(key, str)
            scope.names[target.value.id] = {**holder, key: value} if known_dict else UNKNOWN  # type: ignore[dict-item]


def _bound(scope: Scope | None, name: str) -> bool:
    while scope is not None:
        if name in scope.names:
            return True
        scope = scope.parent
    return False


def _is_class(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name.lstrip("_")[:1].isupper() or "block" in name.lower() or "layer" in name.lower()
