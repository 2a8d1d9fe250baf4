"""The walk through statements of module level that finds every mention of a global name."""

import ast
import re
from collections.abc import Callable, Iterable

from train.inline.mentions import Form, Role
from train.inline.names import NameWalk
from train.inline.scopes import Kind, Scope

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Walk(NameWalk):
    """Takes in statements, then tells their `mentions()` and `faults`."""

    # -- statements ----------------------------------------------------------------------------------------------

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While | ast.If) -> None:
        self._reading(node.test if isinstance(node, ast.While | ast.If) else node.iter)
        if isinstance(node, ast.For | ast.AsyncFor):
            self.visit(node.iter)
            self._scope.enter_branch(node)
            self.visit(node.target)
        else:
            if isinstance(node, ast.If):
                self.visit(node.test)
            self._scope.enter_branch(node)
            if isinstance(node, ast.While):
                self.visit(node.test)
        self._all([*node.body, *node.orelse])
        self._scope.leave_branch()

    def _branching(self, node: ast.Try | ast.TryStar | ast.With | ast.AsyncWith | ast.Match) -> None:
        self._scope.enter_branch(node)
        self._all(ast.iter_child_nodes(node))
        self._scope.leave_branch()

    def _assign(self, node: ast.Assign) -> None:
        self._all([node.value, *node.targets])

    def _augmented(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._at(node.target, Role.READ, node.target.id)
        self._all([node.value, node.target])

    def _annotated(self, node: ast.AnnAssign) -> None:
        self._annotation(node.annotation)
        self._all([node.value])
        if node.value is not None or self._scope.kind is not Kind.CLASS or not isinstance(node.target, ast.Name):
            self.visit(node.target)  # `x: int` in a class body binds nothing there, and nothing reads it
        else:
            self._scope.bound.add(node.target.id)

    # -- scopes --------------------------------------------------------------------------------------------------

    def _inner(self, kind: Kind, body: Callable[[], None]) -> None:
        outer, late = self._scope, self._late
        self._scope = Scope(kind, outer)
        self._late = late or kind is Kind.FUNCTION
        body()
        self._scope, self._late = outer, late

    def _function(self, node: Function) -> None:
        self._reading(*node.decorator_list)
        self._all([*node.decorator_list, *_defaults(node.args)])
        for argument in _arguments(node.args):
            self._annotation(argument.annotation)
        self._annotation(node.returns)
        self._defined(node)
        self._inner(Kind.FUNCTION, lambda: self._body(node.args, node.body))

    def _defined(self, node: Function | ast.ClassDef) -> None:
        start = self._piece.start(node)  # of `def`, after the decorators
        word = rb"(?:async\s+)?(?:def|class)[\s\\]+"
        found = re.compile(word).match(self._text, start)
        at = found.end() if found is not None else start
        self._bind_word(node.name, at, self._piece.end(node), node.lineno)

    def _lambda(self, node: ast.Lambda) -> None:
        self._all(_defaults(node.args))
        self._inner(Kind.FUNCTION, lambda: self._body(node.args, [node.body]))

    def _body(self, arguments: ast.arguments, body: Iterable[ast.AST]) -> None:
        for argument in _arguments(arguments):
            self._scope.bind(self._own(argument.arg))
        self._all(body)

    def _own(self, name: str) -> str:
        """A local name as the compiler has it."""
        if self._classes and name.startswith("__") and not name.endswith("__"):
            return f"_{self._classes[-1].lstrip('_')}{name}"
        return name

    def _class(self, node: ast.ClassDef) -> None:
        self._reading(*node.decorator_list, *node.bases, *(word.value for word in node.keywords))
        self._all([*node.decorator_list, *node.bases, *node.keywords])
        self._classes.append(node.name)
        self._inner(Kind.CLASS, lambda: self._class_body(node))
        self._classes.pop()
        self._defined(node)

    def _class_body(self, node: ast.ClassDef) -> None:
        for given in ("__module__", "__qualname__"):
            self._scope.bind(given)
        self._all(node.body)

    def _comprehension(self, node: Comprehension) -> None:
        first, *others = node.generators
        self._reading(first.iter)
        self.visit(first.iter)

        def body() -> None:
            self._all([first.target, *first.ifs])
            for generator in others:
                self._reading(generator.iter)
                self._all([generator.iter, generator.target, *generator.ifs])
            self._all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])

        self._inner(Kind.COMPREHENSION, body)

    def _walrus(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        holder = self._scope
        while holder.kind is Kind.COMPREHENSION and holder.parent is not None:
            holder = holder.parent
        holder.branches += 1  # it may stand behind `and`
        start, end = self._piece.start(node.target), self._piece.end(node.target)
        line = self._line or node.lineno
        self._mention(node.target.id, Role.BIND, start, end, line, Form.NAME, holder)
        holder.branches -= 1

    def _global(self, node: ast.Global) -> None:
        self._scope.globals.update(self._own(name) for name in node.names)
        for name in node.names:
            start = self._piece.start(node) + len("global")
            self._bind_word(name, start, self._piece.end(node), node.lineno)

    def _nonlocal(self, node: ast.Nonlocal) -> None:
        self._scope.nonlocals.update(self._own(name) for name in node.names)

    def _handler(self, node: ast.ExceptHandler) -> None:
        self._reading(node.type)
        self._all([node.type])
        if node.name:
            after = self._piece.end(node.type) if node.type is not None else self._piece.start(node)
            self._bind_word(node.name, after, self._piece.start(node.body[0]), node.lineno)
        self._all(node.body)

    def _capture(self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> None:
        self._all(ast.iter_child_nodes(node))
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            inner = list(ast.iter_child_nodes(node))
            ends = [self._piece.end(child) for child in inner if isinstance(child, ast.pattern | ast.expr)]
            self._bind_word(name, max([self._piece.start(node), *ends]), self._piece.end(node), node.lineno)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            start, end = self._piece.start(alias), self._piece.end(alias)
            if alias.asname:
                self._bind_word(alias.asname, end - len(alias.asname.encode()), end, node.lineno)
            elif alias.name != "*":
                top = alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name
                fixed = "is bound by an import of its submodule" if top != alias.name else ""
                outer, self._fixed = self._fixed, fixed or self._fixed
                self._mention(top, Role.BIND, start, end, node.lineno, Form.ALIAS, self._scope)
                self._fixed = outer


def _arguments(node: ast.arguments) -> list[ast.arg]:
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *filter(None, (node.vararg, node.kwarg))]


def _defaults(node: ast.arguments) -> list[ast.expr]:
    return [*node.defaults, *(default for default in node.kw_defaults if default is not None)]


Walk.methods = {
    ast.Name: Walk._name,
    ast.Attribute: Walk._access,
    ast.Subscript: Walk._access,
    ast.Call: Walk._call,
    ast.Expr: Walk._expression,
    ast.Constant: Walk._constant,
    ast.JoinedStr: Walk._f_string,
    ast.FormattedValue: Walk._field,
    ast.Compare: Walk._reader,
    ast.BinOp: Walk._reader,
    ast.UnaryOp: Walk._reader,
    ast.Starred: Walk._reader,
    ast.Raise: Walk._reader,
    ast.Assert: Walk._reader,
    ast.For: Walk._loop,
    ast.AsyncFor: Walk._loop,
    ast.While: Walk._loop,
    ast.If: Walk._loop,
    ast.Try: Walk._branching,
    ast.TryStar: Walk._branching,
    ast.With: Walk._branching,
    ast.AsyncWith: Walk._branching,
    ast.Match: Walk._branching,
    ast.Assign: Walk._assign,
    ast.AugAssign: Walk._augmented,
    ast.AnnAssign: Walk._annotated,
    ast.FunctionDef: Walk._function,
    ast.AsyncFunctionDef: Walk._function,
    ast.Lambda: Walk._lambda,
    ast.ClassDef: Walk._class,
    ast.ListComp: Walk._comprehension,
    ast.SetComp: Walk._comprehension,
    ast.DictComp: Walk._comprehension,
    ast.GeneratorExp: Walk._comprehension,
    ast.NamedExpr: Walk._walrus,
    ast.Global: Walk._global,
    ast.Nonlocal: Walk._nonlocal,
    ast.ExceptHandler: Walk._handler,
    ast.MatchAs: Walk._capture,
    ast.MatchStar: Walk._capture,
    ast.MatchMapping: Walk._capture,
    ast.Import: Walk._import,
    ast.ImportFrom: Walk._import,
}
