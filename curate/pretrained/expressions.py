"""Expressions: the possible values of each, and what assignment binds."""

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from curate.pretrained.operations import (
    compare,
    const,
    entries,
    is_loaded,
    item_of,
    join,
    key_of,
    loop_item,
    part,
    truth,
    truth_value,
)
from curate.pretrained.values import (
    LOADED,
    SETTING,
    UNKNOWN,
    Atom,
    Bound,
    Class,
    Function,
    Instance,
    Made,
    Mark,
    Outside,
    Scope,
    Super,
    Table,
    Value,
)

#: Bounds that keep any tree cheap: nesting of what is read at once, expressions and blocks read in all.
MAX_DEPTH = 100
MAX_STEPS = 30_000


class Expressions(ABC):
    """Reads expressions; calls are left to `Calls`."""

    def __init__(self) -> None:
        self.lines: set[int] = set()  # that load trained weights
        self.steps = self.depth = 0
        self.unsure = 0  # how many conditions around may leave this code out
        self.mentioned: set[str] = set()  # names and attributes in code that is reached
        self.functions: list[Function] = []

    @abstractmethod
    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The value of a call."""

    @abstractmethod
    def enter(self, function: Function, receiver: Atom | None, args: list[Value], keywords: dict[str, Value]) -> Value:
        """What a function of the file returns."""

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """The possible values of an expression; calls in it are followed."""
        self.steps += 1
        if self.depth >= MAX_DEPTH or self.steps > MAX_STEPS:
            return UNKNOWN
        self.depth += 1
        try:
            return self.expression(node, scope)
        finally:
            self.depth -= 1

    def expression(self, node: ast.expr, scope: Scope) -> Value:
        """As `value`, without its bounds."""
        match node:
            case ast.Constant():
                return const(node.value)
            case ast.Name():
                self.mentioned.add(node.id)
                return scope.find(node.id) or (Outside(node.id),)
            case ast.Attribute():
                self.mentioned.add(node.attr)
                return join(*(self.attribute(atom, node.attr) for atom in self.value(node.value, scope)))
            case ast.Call():
                return self.call(node, scope)
            case ast.IfExp():
                return self.choice(node, scope)
            case ast.BoolOp():
                return self.either(node, scope)
            case ast.UnaryOp(op=ast.Not()):
                return truth_value(self.value(node.operand, scope), negate=True)
            case ast.Compare():
                return self.comparison(node, scope)
            case ast.Subscript():
                index = self.value(node.slice, scope)
                return join(*(item_of(atom, index) for atom in self.value(node.value, scope)))
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self.assign(node.target, value, scope)
                return value
            case ast.Lambda():
                return (self.function(node, scope, frozenset()),)
            case ast.Tuple() | ast.List() | ast.Set():
                return (Table({str(i): self.value(item, scope) for i, item in enumerate(node.elts)}),)
            case ast.Dict():
                return self.display(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self.comprehension(node, scope)
            case ast.Starred() | ast.Await():
                return self.value(node.value, scope)
            case _:
                return self.parts(node, scope)

    def parts(self, node: ast.AST, scope: Scope) -> Value:
        """What the expressions inside `node` make of it: loaded or a setting if one of them is."""
        return part(join(*(self.value(c, scope) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr))))

    @contextmanager
    def lines_apart(self) -> Iterator[set[int]]:
        """Collect the lines that are found inside by themselves."""
        outer, self.lines = self.lines, set()
        yield self.lines
        self.lines = outer

    def keep_lines(self, decided: bool | Mark | None, one: set[int], other: set[int]) -> None:
        """Lines of both sides of a condition; where a setting decides, only if both sides load weights."""
        if decided is None or (one and other):
            self.lines |= one | other

    def choice(self, node: ast.IfExp, scope: Scope) -> Value:
        """A conditional expression; one that a setting decides is known only if both sides are alike."""
        decided = truth(self.value(node.test, scope))
        if isinstance(decided, bool):
            return self.value(node.body if decided else node.orelse, scope)
        with self.lines_apart() as of_body:
            body = self.value(node.body, scope)
        with self.lines_apart() as of_orelse:
            orelse = self.value(node.orelse, scope)
        self.keep_lines(decided, of_body, of_orelse)
        return SETTING if decided and truth(body) != truth(orelse) else join(body, orelse)

    def either(self, node: ast.BoolOp, scope: Scope) -> Value:
        """`and`, `or`: operands after the one that decides are not reached."""
        stop, results = isinstance(node.op, ast.Or), []
        for operand in node.values:
            value = self.value(operand, scope)
            decided = truth(value)
            if decided is not (not stop) or operand is node.values[-1]:
                results.append(value)
            if decided is stop:
                break
        joined = join(*results)
        if len(results) > 1 and Mark.SETTING in joined and not any(truth(value) is True for value in results):
            return SETTING
        return joined

    def comparison(self, node: ast.Compare, scope: Scope) -> Value:
        """One comparison, of every possibility with every other."""
        left, right = self.value(node.left, scope), [self.value(c, scope) for c in node.comparators]
        if len(right) > 1:
            return UNKNOWN
        return join(*(compare(a, node.ops[0], b) for a in left for b in right[0])) or UNKNOWN

    def display(self, node: ast.Dict, scope: Scope) -> Value:
        """A dict display."""
        table = Table({})
        for name, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, scope)
            if name is not None:
                table.items[key_of(self.value(name, scope))] = value
            else:
                table.items |= entries(value)
                if is_loaded(value):
                    table.items["**"] = LOADED
        return (table,)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> Value:
        """One round of a comprehension."""
        inner = Scope(scope)
        for generator in node.generators:
            self.assign(generator.target, loop_item(self.value(generator.iter, inner)), inner)
            for test in generator.ifs:
                if truth(self.value(test, inner)) is False:
                    return (Table({}),)
        shown = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        value = join(*(self.value(item, inner) for item in shown))
        return LOADED if is_loaded(value) else (Table({"*": value}), Mark.UNKNOWN)

    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope, decorators: frozenset[str]
    ) -> Function:
        """The function that a definition makes; its defaults are read now."""
        spec, defaults = node.args, {}
        positional = [*spec.posonlyargs, *spec.args]
        for arg, default in zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True):
            defaults[arg.arg] = self.value(default, scope)
        for arg, given in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if given is not None:
                defaults[arg.arg] = self.value(given, scope)
        found = Function(node, scope, defaults, scope.body_of, decorators)
        self.functions.append(found)
        return found

    def attribute(self, atom: Atom, name: str) -> Value:
        """`atom.name`."""
        match atom:
            case Outside() | Made():
                return (type(atom)(f"{atom.path}.{name}"),)
            case Instance():
                return atom.attrs[name] if name in atom.attrs else self.bind(atom.cls.lookup(name), atom)
            case Class():
                return self.bind(atom.lookup(name), atom)
            case Super():
                return self.bind(atom.cls.lookup(name, above=True), atom.receiver)
            case Mark.LOADED | Mark.SETTING:
                return (atom,)
        return UNKNOWN

    def bind(self, value: Value | None, receiver: Atom) -> Value:
        """What was found in a class, methods with their receiver; properties are read."""
        on_object, bound = isinstance(receiver, Instance), []
        for atom in value or UNKNOWN:
            one: Value = (atom,)
            if isinstance(atom, Function):
                marks = atom.decorators
                if on_object and "property" in marks:
                    one = self.enter(atom, receiver, [], {})
                elif atom.owner and "staticmethod" not in marks and (on_object or "classmethod" in marks):
                    one = (Bound(atom, receiver),)
            bound.append(one)
        return join(*bound)

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Bind `value` to a name, an attribute of an object of the file, an item, or each of several targets."""
        match target:
            case ast.Name():
                scope.names[target.id] = value
            case ast.Attribute():
                for atom in self.value(target.value, scope):
                    if isinstance(atom, Instance | Class):
                        old = atom.attrs.get(target.attr) if self.unsure else None
                        atom.attrs[target.attr] = join(old, value) if old else value
                if target.attr in ("data", "weight", "bias") and is_loaded(value):
                    self.lines.add(target.lineno)
            case ast.Subscript():
                key = key_of(self.value(target.slice, scope))
                for atom in self.value(target.value, scope):
                    if isinstance(atom, Table):
                        atom.items[key] = join(atom.items.get(key, value), value)
                    elif is_loaded(value) and isinstance(target.value, ast.Name):
                        scope.names[target.value.id] = LOADED
            case ast.Tuple() | ast.List():
                tables = [atom for atom in value if isinstance(atom, Table)]
                for i, one in enumerate(target.elts):
                    items = [table.items.get(str(i), UNKNOWN) for table in tables]
                    self.assign(one, join(*items) if items else part(value), scope)
            case ast.Starred():
                self.assign(target.value, part(value), scope)
