"""Statements, followed once in their order.

Loops are followed for their first items; branches whose test is unknown are both followed.
"""

import ast
from collections.abc import Sequence

from extract.hints.evaluate import Evaluator
from extract.hints.fold import binary, truth
from extract.hints.values import UNKNOWN, Function, Scope

Flow = tuple[str, object] | None  # how a suite ended: ("return", value), ("raise", None), or at its end


class Follower(Evaluator):
    """Follows statements."""

    def suite(self, body: Sequence[ast.stmt], scope: Scope) -> Flow:
        """Follow statements."""
        for node in body:
            flow = self._statement(node, scope)
            if flow is not None:
                return flow
        return None

    def _statement(self, node: ast.stmt, scope: Scope) -> Flow:
        match node:
            case ast.Assign():
                value = self.value(node.value, scope)
                for target in node.targets:
                    self.bind(target, value, scope)
            case ast.AnnAssign() if node.value is not None:
                self.bind(node.target, self.value(node.value, scope), scope)
            case ast.AugAssign():
                old = self.value(node.target, scope)
                self.bind(node.target, binary(node.op, old, self.value(node.value, scope)), scope)
            case ast.Expr():
                self.value(node.value, scope)
            case ast.Return():
                return "return", self.value(node.value, scope)
            case ast.Raise():
                return "raise", None
            case ast.If():
                return self._if(node, scope)
            case ast.For():
                for item in self.some(self.value(node.iter, scope)):
                    self.bind(node.target, item, scope)
                    flow = self._only_return(self.suite(node.body, scope))
                    if flow is not None:
                        return flow
            case ast.While():
                return self._only_return(self.suite(node.body, scope))
            case ast.With() | ast.Try():
                return self.suite(node.body, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.names[node.name] = Function(node, scope)
            case ast.Assert():
                self._assert(node.test, scope)
            case ast.Break() | ast.Continue():
                return "stop", None
        return None

    def _only_return(self, flow: Flow) -> Flow:
        return flow if flow is not None and flow[0] == "return" else None

    def _assert(self, test: ast.expr, scope: Scope) -> None:
        """`assert mode in ("a", "b")` and `x == 3` say a value where there is none."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.left, ast.Name):
            return
        if self.value(test.left, scope) is not UNKNOWN:
            return
        right = self.value(test.comparators[0], scope)
        if isinstance(test.ops[0], ast.In) and isinstance(right, list | tuple):
            self.bind(test.left, self.some(right)[0], scope)
        elif isinstance(test.ops[0], ast.Eq):
            self.bind(test.left, right, scope)

    def _if(self, node: ast.If, scope: Scope) -> Flow:
        known = truth(self.value(node.test, scope))
        if known is not None:
            return self.suite(node.body if known else node.orelse, scope)
        before = dict(scope.names)
        first = self.suite(node.body, scope)
        after = scope.names
        scope.names = dict(before)
        second = self.suite(node.orelse, scope)
        if first is not None and first[0] != "return":
            return second
        if second is not None:
            scope.names = after
            return first
        if first is not None:
            return None  # the rest is followed as if it had not returned
        for name, value in after.items():
            if name not in scope.names or scope.names[name] is UNKNOWN or before.get(name) is scope.names[name]:
                scope.names[name] = value
        return None
