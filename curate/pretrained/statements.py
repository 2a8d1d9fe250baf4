"""Statements, read in order: branches that a known value decides are taken or left out."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from curate.pretrained.calls import Calls
from curate.pretrained.expressions import MAX_DEPTH, MAX_STEPS
from curate.pretrained.operations import const, is_loaded, loop_item, merge, truth
from curate.pretrained.values import LOADED, SETTING, UNKNOWN, Class, Mark, Outside, Scope


class Statements(Calls):
    """Reads statements. Each method returns whether the statement after it can be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: list[Class] = []

    def block(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Read statements in order, up to one that leaves."""
        self.steps += 1
        if self.depth >= MAX_DEPTH or self.steps > MAX_STEPS:
            return True
        self.depth += 1
        try:
            for i, statement in enumerate(body):
                if isinstance(statement, ast.If):
                    reached = self.branch(statement, body[i + 1 :], scope)
                else:
                    reached = self.statement(statement, scope)
                if not reached:
                    return False
            return True
        finally:
            self.depth -= 1

    def branch(self, node: ast.If, rest: list[ast.stmt], scope: Scope) -> bool:
        """An `if`; `rest`, the statements after it, is read with it where a setting decides whether it is reached."""
        decided = truth(self.value(node.test, scope))
        if isinstance(decided, bool):
            return self.block(node.body if decided else node.orelse, scope)
        body, orelse = node.body, node.orelse
        joined = bool(decided and rest and (_leaves(body) or _leaves(orelse)))
        if joined:
            body, orelse = (side if _leaves(side) else [*side, *rest] for side in (body, orelse))
        before, ends, found = scope.names, [], []
        self.unsure += 1
        self.muted += decided is Mark.SETTING
        for side in (body, orelse):
            scope.names = dict(before)
            with self.lines_apart() as lines:
                if self.block(side, scope):
                    ends.append(scope.names)
            found.append(lines)
        self.unsure -= 1
        self.muted -= decided is Mark.SETTING
        self.keep_lines(decided, *found)
        scope.names = merge(ends or [before])
        return bool(ends) and not joined

    @contextmanager
    def maybe(self, scope: Scope) -> Iterator[None]:
        """Code that may be skipped: names keep the values from before as a possibility."""
        before = scope.names
        scope.names = dict(before)
        self.unsure += 1
        yield
        self.unsure -= 1
        scope.names = merge([before, scope.names])

    def statement(self, node: ast.stmt, scope: Scope) -> bool:
        """Read one statement other than `if`."""
        match node:
            case ast.Return():
                scope.returns.append(self.value(node.value, scope) if node.value else const(None))
                return False
            case ast.Raise():
                return False
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, value, scope)
                return self.block(node.body, scope)
            case ast.Try() | ast.TryStar():
                return self.attempt(node, scope)
            case ast.For() | ast.AsyncFor():
                items = loop_item(self.value(node.iter, scope))
                with self.maybe(scope):
                    self.assign(node.target, items, scope)
                    self.block(node.body, scope)
                self.block(node.orelse, scope)
            case ast.While():
                if truth(self.value(node.test, scope)) is not False:
                    with self.maybe(scope):
                        self.block(node.body, scope)
            case ast.Match():
                self.cases(node, scope)
            case _:
                self.simple(node, scope)
        return True

    def simple(self, node: ast.stmt, scope: Scope) -> None:
        """A statement that neither leaves nor holds statements to be read now, or a class."""
        match node:
            case ast.Assign():
                value = self.value(node.value, scope)
                for target in node.targets:
                    self.assign(target, value, scope)
            case ast.AnnAssign():
                if node.value is not None:
                    self.assign(node.target, self.value(node.value, scope), scope)
                elif scope.body_of and isinstance(node.target, ast.Name):  # a field without default
                    scope.names.setdefault(node.target.id, SETTING)
            case ast.AugAssign():
                self.assign(node.target, LOADED if is_loaded(self.value(node.value, scope)) else UNKNOWN, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = [atom for one in node.decorator_list for atom in self.value(one, scope)]
                paths = frozenset(atom.path for atom in decorators if isinstance(atom, Outside))
                scope.names[node.name] = (self.function(node, scope, paths),)
            case ast.ClassDef():
                self.define(node, scope)
            case ast.Import():
                for alias in node.names:
                    path = alias.name if alias.asname else alias.name.split(".")[0]
                    scope.names[alias.asname or path] = (Outside(path),)
            case ast.ImportFrom():
                module = "." * node.level + (node.module or "") + "."
                for alias in node.names:
                    if alias.name != "*":
                        scope.names[alias.asname or alias.name] = (Outside(module + alias.name),)
            case _:
                self.parts(node, scope)

    def define(self, node: ast.ClassDef, scope: Scope) -> None:
        """A class; its body is read now, its methods when they are called."""
        bases = tuple(
            scope.find(base.id) or (Outside(base.id),) if isinstance(base, ast.Name) else self.value(base, scope)
            for base in node.bases
        )
        inner = Scope(scope)
        inner.cls = inner.body_of = cls = Class(node.name, node.lineno, bases, inner.names)
        self.block(node.body, inner)
        cls.attrs = inner.names
        self.classes.append(cls)
        scope.names[node.name] = (cls,)

    def attempt(self, node: ast.Try | ast.TryStar, scope: Scope) -> bool:
        """A `try`: each handler may follow any part of the body."""
        before = scope.names
        scope.names = dict(before)
        reached = self.block(node.body, scope) and self.block(node.orelse, scope)
        ends = [scope.names] if reached else []
        for handler in node.handlers:
            scope.names = merge([before, scope.names])
            self.unsure += 1
            if self.block(handler.body, scope):
                ends.append(scope.names)
            self.unsure -= 1
        scope.names = merge(ends or [scope.names])
        return self.block(node.finalbody, scope) and bool(ends)

    def cases(self, node: ast.Match, scope: Scope) -> None:
        """A `match`: every case is possible."""
        subject = self.value(node.subject, scope)
        for case in node.cases:
            with self.maybe(scope):
                for pattern in ast.walk(case.pattern):
                    if isinstance(pattern, ast.MatchAs) and pattern.name:
                        scope.names[pattern.name] = subject
                self.block(case.body, scope)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise)
