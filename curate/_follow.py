"""Follow values through one module: a small abstract interpreter over its syntax tree. Nothing of the code is run.

Statements are read in order, branches that a known value decides are taken or left out, functions and classes of the
file are entered with the values of each call, and every call of code from outside the file is handed to `Rules`.
What the file does not call itself (the network class, for one) is entered last, with its defaults.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias


class Mark(Enum):
    """What is known of a value that is no constant."""

    THING = "an object: true, not None"
    LOADED = "read from a checkpoint"
    SETTING = "decided by a caller outside the file: a parameter without default, prm['x']"
    UNKNOWN = "anything"


@dataclass(frozen=True, slots=True)
class Const:
    """A constant; `kind` keeps True and 1 apart."""

    value: object
    kind: str


@dataclass(frozen=True, slots=True)
class Outside:
    """A name from outside the file, by its full path: `torchvision.models.resnet18`."""

    path: str


@dataclass(frozen=True, slots=True)
class Made:
    """What a call of an outside name returned, or a part of it."""

    path: str


@dataclass(eq=False, slots=True)
class Table:
    """A dict, list or tuple display; list items are kept under their index."""

    items: dict[str, "Value"]


@dataclass(eq=False, slots=True)
class Function:
    """A function, method or lambda of the file, with the values of its defaults."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: "Scope"
    defaults: dict[str, "Value"]
    owner: "Class | None"
    marks: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Class:
    """A class of the file."""

    name: str
    line: int
    bases: tuple["Value", ...]
    attrs: dict[str, "Value"]


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a class of the file; calls with equal arguments share one."""

    cls: Class
    attrs: dict[str, "Value"] = field(default_factory=dict)
    entered: set[Function] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Bound:
    """A method with its receiver."""

    function: Function
    receiver: "Atom"


@dataclass(frozen=True, slots=True)
class Super:
    """`super()` inside a method of `cls`."""

    cls: Class
    receiver: "Atom"


@dataclass(eq=False, slots=True)
class Partial:
    """`functools.partial(callee, ...)`."""

    callee: "Value"
    args: list["Value"]
    keywords: dict[str, "Value"]


Atom: TypeAlias = Mark | Const | Outside | Made | Table | Function | Class | Instance | Bound | Super | Partial
Value: TypeAlias = tuple[Atom, ...]  # the possibilities, without repeats

UNKNOWN: Value = (Mark.UNKNOWN,)
SETTING: Value = (Mark.SETTING,)
LOADED: Value = (Mark.LOADED,)

#: Bounds that keep any tree cheap: nesting of what is read at once, values read in all, possibilities of one value.
MAX_DEPTH = 100
MAX_STEPS = 30_000
MAX_ATOMS = 12


class Rules(Protocol):
    """What a call that leaves the file means. Both return the call's value and may report `node`."""

    def call(self, path: str, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
        """A call of the outside name `path` (empty when the callee could not be followed)."""
        ...

    def method(self, owner: Atom, name: str, args: list[Value], node: ast.Call, keywords: dict[str, Value]) -> Value:
        """A call of a method on a value that the file does not define."""
        ...


def const(value: object) -> Value:
    """The value of a literal."""
    return (Const(value, type(value).__name__),)


def join(*values: Value) -> Value:
    """All possibilities of all `values`, in order of appearance."""
    if len(values) == 1:
        return values[0]
    atoms = dict.fromkeys(atom for value in values for atom in value)
    return tuple(atoms) if len(atoms) <= MAX_ATOMS else (*tuple(atoms)[:MAX_ATOMS], Mark.UNKNOWN)


def truth(value: Value) -> bool | Mark | None:
    """True or False when all possibilities agree; SETTING when a setting decides; otherwise None."""
    seen = {_atom_truth(atom) for atom in value}
    if len(seen) == 1:
        return seen.pop()
    return Mark.SETTING if Mark.SETTING in seen and True not in seen else None


def _atom_truth(atom: Atom) -> bool | Mark | None:
    if isinstance(atom, Const):
        return bool(atom.value)
    if isinstance(atom, Table):
        return bool(atom.items)
    if isinstance(atom, Made) or atom is Mark.UNKNOWN:
        return None
    return Mark.SETTING if atom is Mark.SETTING else True


def is_loaded(value: Value) -> bool:
    """Whether some possibility was read from a checkpoint, also inside a dict or list."""
    return any(
        atom is Mark.LOADED or (isinstance(atom, Table) and any(Mark.LOADED in item for item in atom.items.values()))
        for atom in value
    )


class Scope:
    """Names of a module, class or function body."""

    __slots__ = ("body_of", "cls", "names", "parent", "receiver", "returns")

    def __init__(self, parent: "Scope | None", names: dict[str, Value] | None = None) -> None:
        self.parent = parent
        self.names: dict[str, Value] = {} if names is None else names
        self.returns: list[Value] = []
        self.body_of: Class | None = None
        self.cls: Class | None = parent.cls if parent else None
        self.receiver: Atom | None = parent.receiver if parent else None

    def find(self, name: str) -> Value | None:
        """The value of `name` here or further out."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                return value
            scope = scope.parent
        return None


def referenced_names(tree: ast.Module) -> set[str]:
    """Names and attributes that the code mentions outside annotations and outside the definition of that name."""
    found: set[str] = set()
    stack: list[tuple[ast.AST, tuple[str, ...]]] = [(tree, ())]
    while stack:
        node, inside = stack.pop()
        if isinstance(node, ast.Name):
            if node.id not in inside:
                found.add(node.id)
            continue
        if isinstance(node, ast.Attribute) and node.attr not in inside:
            found.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (node.name, *inside[: MAX_DEPTH - 1])
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            if isinstance(child, ast.AST):
                stack.append((child, inside))
            elif isinstance(child, list):
                stack.extend((item, inside) for item in child if isinstance(item, ast.AST))
    return found


def _module_of(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "") + "." if node.module or node.level else ""


class Follower:
    """Reads one module; `lines` are those that `Rules` reported from code that can be reached."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.lines: set[int] = set()
        self.steps = self.depth = self.unsure = self.muted = 0
        self.mentioned: set[str] = set()
        self.functions: list[Function] = []
        self.classes: list[Class] = []
        self.instances: list[Instance] = []
        self.used: set[Function | Class] = set()
        self.memo: dict[tuple[object, ...], tuple[Value, frozenset[int]]] = {}

    def report(self, node: ast.AST) -> None:
        """Note the line of `node` as one that loads trained weights."""
        self.lines.add(getattr(node, "lineno", 1))

    def follow(self, tree: ast.Module) -> set[int]:
        """Read the module, then what it never calls."""
        module = Scope(None)
        self.block(tree.body, module)
        named = referenced_names(tree)
        nobody = ast.Name(id="", ctx=ast.Load())
        progress = True
        while progress and self.steps < MAX_STEPS:
            progress = False
            for cls in list(self.classes):
                if cls not in self.used and (cls.name == "Net" or self.is_open(cls.name, named)):
                    progress = True
                    self.build(cls, [], {}, ast.Call(nobody, [], [], lineno=cls.line, col_offset=0))
            for instance in list(self.instances):
                for name in self.members(instance.cls):
                    for atom in self.lookup(instance.cls, name) or ():
                        if isinstance(atom, Function) and atom not in instance.entered and self.is_open(name, named):
                            progress = True
                            instance.entered.add(atom)
                            self.enter(atom, instance, [], {})
            for function in list(self.functions):
                name = getattr(function.node, "name", "")
                if function.owner is None and function not in self.used and self.is_open(name, named):
                    progress = True
                    self.enter(function, None, [], {})
        return self.lines

    def is_open(self, name: str, named: set[str]) -> bool:
        """Whether outside code may enter `name`: the file never mentions it, or does so in code that is reached."""
        return name not in named or name in self.mentioned or name == "forward"

    # Statements. Each returns whether the one after it can be reached.

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
                    if reached is None:
                        return False
                else:
                    reached = self.statement(statement, scope)
                if not reached:
                    return False
            return True
        finally:
            self.depth -= 1

    def branch(self, node: ast.If, rest: list[ast.stmt], scope: Scope) -> bool | None:
        """An `if`; None when `rest` was read with it, because a setting decides whether it is reached."""
        decided = truth(self.value(node.test, scope))
        if isinstance(decided, bool):
            return self.block(node.body if decided else node.orelse, scope)
        body, orelse, joined = node.body, node.orelse, False
        if decided is Mark.SETTING and rest and any(_leaves(side) for side in (body, orelse)):
            joined = True
            body, orelse = (side if _leaves(side) else [*side, *rest] for side in (body, orelse))
        outer, before, ends = self.lines, scope.names, []
        found: list[set[int]] = []
        self.unsure += 1
        self.muted += decided is Mark.SETTING
        for side in (body, orelse):
            scope.names, self.lines = dict(before), set()
            if self.block(side, scope):
                ends.append(scope.names)
            found.append(self.lines)
        self.unsure -= 1
        self.muted -= decided is Mark.SETTING
        self.lines = outer
        if decided is None or all(found):
            self.lines |= found[0] | found[1]
        scope.names = _merge(ends or [before])
        return None if joined else bool(ends)

    @contextmanager
    def maybe(self, scope: Scope) -> Iterator[None]:
        """Code that may be skipped: names keep the values from before as a possibility."""
        before = scope.names
        scope.names = dict(before)
        self.unsure += 1
        yield
        self.unsure -= 1
        scope.names = _merge([before, scope.names])

    def statement(self, node: ast.stmt, scope: Scope) -> bool:
        """Read one statement other than `if`."""
        match node:
            case ast.Expr():
                self.value(node.value, scope)
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
                marks = (self.value(d, scope) for d in node.decorator_list)
                paths = frozenset(a.path for value in marks for a in value if isinstance(a, Outside))
                scope.names[node.name] = (self.function(node, scope, paths),)
            case ast.ClassDef():
                bases = tuple(
                    scope.find(b.id) or (Outside(b.id),) if isinstance(b, ast.Name) else self.value(b, scope)
                    for b in node.bases
                )
                inner = Scope(scope)
                inner.cls = inner.body_of = cls = Class(node.name, node.lineno, bases, inner.names)
                self.block(node.body, inner)
                cls.attrs = inner.names
                self.classes.append(cls)
                scope.names[node.name] = (cls,)
            case ast.Import():
                for alias in node.names:
                    path = alias.name if alias.asname else alias.name.split(".")[0]
                    scope.names[alias.asname or path] = (Outside(path),)
            case ast.ImportFrom():
                for alias in node.names:
                    if alias.name != "*":
                        scope.names[alias.asname or alias.name] = (Outside(_module_of(node) + alias.name),)
            case ast.Return():
                scope.returns.append(self.value(node.value, scope) if node.value else const(None))
                return False
            case ast.Raise():
                return False
            case ast.For() | ast.AsyncFor():
                items = _items(self.value(node.iter, scope))
                with self.maybe(scope):
                    self.assign(node.target, items, scope)
                    self.block(node.body, scope)
                self.block(node.orelse, scope)
            case ast.While():
                if truth(self.value(node.test, scope)) is not False:
                    with self.maybe(scope):
                        self.block(node.body, scope)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self.value(item.context_expr, scope)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, value, scope)
                return self.block(node.body, scope)
            case ast.Try() | ast.TryStar():
                before = scope.names
                scope.names = dict(before)
                reached = self.block(node.body, scope) and self.block(node.orelse, scope)
                ends = [scope.names] if reached else []
                for handler in node.handlers:
                    scope.names = _merge([before, scope.names])
                    self.unsure += 1
                    if self.block(handler.body, scope):
                        ends.append(scope.names)
                    self.unsure -= 1
                scope.names = _merge(ends or [scope.names])
                return self.block(node.finalbody, scope) and bool(ends)
            case ast.Match():
                subject = self.value(node.subject, scope)
                for case in node.cases:
                    with self.maybe(scope):
                        for name in (n.name for n in ast.walk(case.pattern) if isinstance(n, ast.MatchAs) and n.name):
                            scope.names[name] = subject
                        self.block(case.body, scope)
            case _:
                self.parts(node, scope)
        return True

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
                    self.report(target)
            case ast.Subscript():
                key = _key(self.value(target.slice, scope))
                for atom in self.value(target.value, scope):
                    if isinstance(atom, Table):
                        atom.items[key] = join(atom.items.get(key, value), value)
                    elif is_loaded(value) and isinstance(target.value, ast.Name):
                        scope.names[target.value.id] = LOADED
            case ast.Tuple() | ast.List():
                tables = [atom for atom in value if isinstance(atom, Table)]
                for i, part in enumerate(target.elts):
                    items = [table.items.get(str(i), UNKNOWN) for table in tables]
                    self.assign(part, join(*items) if items else _part(value), scope)
            case ast.Starred():
                self.assign(target.value, _part(value), scope)

    # Expressions.

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
                decided = truth(self.value(node.operand, scope))
                return const(not decided) if isinstance(decided, bool) else SETTING if decided else UNKNOWN
            case ast.Compare():
                return self.compare(node, scope)
            case ast.Subscript():
                index = self.value(node.slice, scope)
                return join(*(_item(atom, index) for atom in self.value(node.value, scope)))
            case ast.NamedExpr():
                value = self.value(node.value, scope)
                self.assign(node.target, value, scope)
                return value
            case ast.Lambda():
                return (self.function(node, scope, frozenset()),)
            case ast.Tuple() | ast.List() | ast.Set():
                return (Table({str(i): self.value(e, scope) for i, e in enumerate(node.elts)}),)
            case ast.Dict():
                table = Table({})
                for name, item in zip(node.keys, node.values, strict=True):
                    value = self.value(item, scope)
                    if name is not None:
                        table.items[_key(self.value(name, scope))] = value
                    else:
                        table.items.update(kv for a in value if isinstance(a, Table) for kv in a.items.items())
                        if is_loaded(value):
                            table.items["**"] = LOADED
                return (table,)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self.comprehension(node, scope)
            case ast.Starred() | ast.Await():
                return self.value(node.value, scope)
            case _:
                return self.parts(node, scope)

    def parts(self, node: ast.AST, scope: Scope) -> Value:
        """What the expressions inside `node` make of it: loaded or a setting if one of them is."""
        value = join((), *(self.value(c, scope) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)))
        return LOADED if is_loaded(value) else SETTING if Mark.SETTING in value else UNKNOWN

    def choice(self, node: ast.IfExp, scope: Scope) -> Value:
        """A conditional expression; one that a setting decides is known only if both sides are alike."""
        decided = truth(self.value(node.test, scope))
        if isinstance(decided, bool):
            return self.value(node.body if decided else node.orelse, scope)
        outer, values, found = self.lines, [], []
        for side in (node.body, node.orelse):
            self.lines = set()
            values.append(self.value(side, scope))
            found.append(self.lines)
        self.lines = outer
        if decided is None or all(found):
            self.lines |= found[0] | found[1]
        return SETTING if decided and truth(values[0]) != truth(values[1]) else join(*values)

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
        if len(results) > 1 and Mark.SETTING in join(*results) and not any(truth(v) is True for v in results):
            return SETTING
        return join(*results)

    def compare(self, node: ast.Compare, scope: Scope) -> Value:
        """One comparison of constants, or with None; a setting stays one under `is`, `<` and the like."""
        left, right = self.value(node.left, scope), [self.value(c, scope) for c in node.comparators]
        if len(right) > 1:
            return UNKNOWN
        op, results = node.ops[0], []
        for a in left:
            for b in right[0]:
                if Mark.SETTING in (a, b):
                    results.append(UNKNOWN if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) else SETTING)
                else:
                    results.append(_compare(a, op, b))
        return join(*results) if results else UNKNOWN

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope) -> Value:
        """One round of a comprehension."""
        inner = Scope(scope)
        for part in node.generators:
            self.assign(part.target, _items(self.value(part.iter, inner)), inner)
            for test in part.ifs:
                if truth(self.value(test, inner)) is False:
                    return (Table({}),)
        value = (
            join(self.value(node.key, inner), self.value(node.value, inner))
            if isinstance(node, ast.DictComp)
            else self.value(node.elt, inner)
        )
        return LOADED if is_loaded(value) else (Table({"*": value}), Mark.UNKNOWN)

    # Names of objects.

    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope, marks: frozenset[str]
    ) -> Function:
        """The function that a definition makes; its defaults are read now."""
        spec, defaults = node.args, {}
        positional = [*spec.posonlyargs, *spec.args]
        for arg, default in zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True):
            defaults[arg.arg] = self.value(default, scope)
        for arg, given in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
            if given is not None:
                defaults[arg.arg] = self.value(given, scope)
        found = Function(node, scope, defaults, scope.body_of, marks)
        self.functions.append(found)
        return found

    def attribute(self, atom: Atom, name: str) -> Value:
        """`atom.name`."""
        match atom:
            case Outside():
                return (Outside(f"{atom.path}.{name}"),)
            case Made():
                return (Made(f"{atom.path}.{name}"),)
            case Instance():
                if name in atom.attrs:
                    return atom.attrs[name]
                return self.bind(self.lookup(atom.cls, name), atom)
            case Class():
                return self.bind(self.lookup(atom, name), atom)
            case Super():
                return self.bind(self.lookup(atom.cls, name, above=True), atom.receiver)
            case Mark.LOADED | Mark.SETTING:
                return (atom,)
        return UNKNOWN

    def bind(self, value: Value | None, receiver: Atom) -> Value:
        """Methods found in a class, with their receiver; properties are read."""
        bound: list[Value] = []
        for atom in value or UNKNOWN:
            if isinstance(atom, Function) and isinstance(receiver, Instance) and "property" in atom.marks:
                bound.append(self.enter(atom, receiver, [], {}))
            elif (
                isinstance(atom, Function)
                and atom.owner
                and "staticmethod" not in atom.marks
                and (isinstance(receiver, Instance) or "classmethod" in atom.marks)
            ):
                bound.append((Bound(atom, receiver),))
            else:
                bound.append((atom,))
        return join(*bound)

    def lineage(self, cls: Class) -> list[Class | Outside]:
        """The class, then its bases depth first."""
        found: list[Class | Outside] = []
        stack: list[Atom] = [cls]
        while stack:
            atom = stack.pop()
            if isinstance(atom, Class | Outside) and atom not in found:
                found.append(atom)
                if isinstance(atom, Class):
                    stack.extend(a for base in reversed(atom.bases) for a in base)
        return found

    def lookup(self, cls: Class, name: str, above: bool = False) -> Value | None:
        """A class attribute, by inheritance within the file."""
        owners = (c for c in self.lineage(cls)[above:] if isinstance(c, Class))
        return next((c.attrs[name] for c in owners if name in c.attrs), None)

    def members(self, cls: Class) -> list[str]:
        """Names of the class and its bases in the file, each once."""
        return list(dict.fromkeys(n for c in self.lineage(cls) if isinstance(c, Class) for n in c.attrs))

    def parent(self, cls: Class) -> str:
        """The first base from outside the file."""
        return next((c.path for c in self.lineage(cls) if isinstance(c, Outside)), "object")

    # Calls.

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """A call: every possible callee with the same arguments."""
        name = ""
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            self.mentioned.add(name)
            callee = self.value(node.func.value, scope)
        else:
            callee = self.value(node.func, scope)
        args: list[Value] = []
        for arg in node.args:
            value = self.value(arg, scope)
            tables = [a for a in value if isinstance(a, Table)] if isinstance(arg, ast.Starred) else []
            args.extend(tables[0].items.values() if tables else [value])
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            else:
                keywords |= {k: v for a in value if isinstance(a, Table) for k, v in a.items.items()}
        if callee == (Outside("super"),) and not name:
            return (Super(scope.cls, scope.receiver),) if scope.cls and scope.receiver else UNKNOWN
        if name in ("update", "append") and any(map(is_loaded, args)) and isinstance(node.func, ast.Attribute):
            self.assign(node.func.value, LOADED, scope)
        if name:
            return join(*(self.method(atom, name, args, keywords, node) for atom in callee))
        return join(*(self.apply(atom, args, keywords, node) for atom in callee))

    def method(self, atom: Atom, name: str, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
        """`atom.name(...)`."""
        if isinstance(atom, Outside):
            return self.apply(Outside(f"{atom.path}.{name}"), args, keywords, node)
        if name in ("get", "pop", "setdefault") and args and not isinstance(atom, Instance | Class | Super):
            items = atom.items if isinstance(atom, Table) else {}
            default = args[1] if len(args) > 1 else const(None) if isinstance(atom, Table) else _part((atom,))
            return items.get(_key(args[0]), default)
        if isinstance(atom, Table) and name in ("items", "values", "copy", "keys"):
            return (atom,)
        if isinstance(atom, Table) and name == "update":
            given = (a for a in join((), *args) if isinstance(a, Table))
            atom.items.update({k: v for table in given for k, v in table.items.items()} | keywords)
            return const(None)
        if isinstance(atom, Instance | Class | Super):
            own = atom.attrs.get(name) if isinstance(atom, Instance) else None
            cls = atom if isinstance(atom, Class) else atom.cls
            found = own or self.lookup(cls, name, above=isinstance(atom, Super))
            if name == "load_state_dict" or not found:
                if isinstance(atom, Instance) or name == "load_state_dict":
                    return self.rules.method(atom, name, args, node, keywords)
                return self.rules.call(f"{self.parent(cls)}.{name}", args, keywords, node)
            receiver = atom.receiver if isinstance(atom, Super) else atom
            return join(*(self.apply(a, args, keywords, node) for a in (own or self.bind(found, receiver))))
        return self.rules.method(atom, name, args, node, keywords)

    def apply(self, atom: Atom, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
        """A call of one callee."""
        match atom:
            case Function():
                return self.enter(atom, None, args, keywords)
            case Bound():
                return self.enter(atom.function, atom.receiver, args, keywords)
            case Class():
                return self.build(atom, args, keywords, node)
            case Instance():
                found = self.bind(self.lookup(atom.cls, "forward") or self.lookup(atom.cls, "__call__") or (), atom)
                return join((), *(self.apply(a, args, keywords, node) for a in found)) or UNKNOWN
            case Partial():
                merged = [*atom.args, *args]
                return join(*(self.apply(a, merged, atom.keywords | keywords, node) for a in atom.callee))
            case Outside(path="functools.partial") if args:
                return (Partial(args[0], args[1:], keywords),)
            case Outside(path="getattr") if len(args) >= 2:
                name = _key(args[1])
                part = join(*(self.attribute(a, name) for a in args[0]))
                return args[2] if len(args) > 2 and set(part) <= {Mark.UNKNOWN, Mark.SETTING} else part
            case Outside(path=("bool" | "int" | "float" | "str") as path) if len(args) == 1:
                return _convert(path, args[0])
            case Outside(path="dict"):
                given = join((), *args)
                table = Table({k: v for a in given if isinstance(a, Table) for k, v in a.items.items()} | keywords)
                return (table, Mark.LOADED) if is_loaded(given) else (table,)
            case Outside():
                return self.rules.call(atom.path, args, keywords, node)
            case Const() | Table():
                return UNKNOWN
            case Mark.LOADED:
                self.report(node)
                return UNKNOWN
        return self.rules.call("", args, keywords, node)

    def build(self, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
        """An object of `cls`; equal arguments give the same one."""
        self.used.add(cls)
        key = (cls, *map(_widen, args), *((k, _widen(v)) for k, v in sorted(keywords.items(), key=lambda kv: kv[0])))
        kept = self.memo.get(key)
        if kept is not None:
            self.lines |= kept[1]
            return kept[0]
        instance = Instance(cls)
        outer, self.lines = self.lines, set()
        self.memo[key] = ((instance,), frozenset())
        init = self.lookup(cls, "__init__")
        for atom in init or ():
            if isinstance(atom, Function):
                self.enter(atom, instance, args, keywords)
        if init is None:
            fields = [n for n in self.members(cls) if not any(isinstance(a, Function) for a in cls.attrs.get(n, ()))]
            instance.attrs.update({**dict(zip(fields, args, strict=False)), **keywords})
            self.rules.call(f"{self.parent(cls)}.__init__", args, keywords, node)
        if not self.muted:
            self.instances.append(instance)
        self.memo[key] = ((instance,), frozenset(self.lines))
        self.lines |= outer
        return (instance,)

    def enter(self, function: Function, receiver: Atom | None, args: list[Value], keywords: dict[str, Value]) -> Value:
        """What a function of the file returns for these arguments; missing ones take their default."""
        self.used.add(function)
        if isinstance(receiver, Instance):
            receiver.entered.add(function)
        names = _bind(function, receiver, args, keywords)
        key = (function, receiver, *names.items())
        kept = self.memo.get(key)
        if kept is not None:
            self.lines |= kept[1]
            return kept[0]
        if self.depth >= MAX_DEPTH:
            return UNKNOWN
        spec = function.node.args
        if spec.kwarg:
            known = {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
            names[spec.kwarg.arg] = (Table({k: v for k, v in keywords.items() if k not in known}),)
        outer, self.lines = self.lines, set()
        self.memo[key] = (UNKNOWN, frozenset())
        scope = Scope(function.scope, names)
        scope.parent = function.scope.parent if function.owner else function.scope
        scope.cls = function.owner or function.scope.cls
        scope.receiver = receiver if function.owner else function.scope.receiver
        unsure, self.unsure = self.unsure, 0 if function.owner and _name(function) == "__init__" else self.unsure
        if isinstance(function.node, ast.Lambda):
            scope.returns.append(self.value(function.node.body, scope))
        elif self.block(function.node.body, scope):
            scope.returns.append(const(None))
        self.unsure = unsure
        value = join(*scope.returns) if scope.returns else UNKNOWN
        self.memo[key] = (value, frozenset(self.lines))
        self.lines |= outer
        return value


def _name(function: Function) -> str:
    return getattr(function.node, "name", "")


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise)


def _merge(ends: Iterable[dict[str, Value]]) -> dict[str, Value]:
    merged: dict[str, Value] = {}
    for names in ends:
        for name, value in names.items():
            old = merged.get(name)
            merged[name] = value if old is None or old is value else join(old, value)
    return merged


def _key(value: Value) -> str:
    return str(value[0].value) if len(value) == 1 and isinstance(value[0], Const) else "*"


def _part(value: Value) -> Value:
    """Some part of a value that is no table."""
    return LOADED if is_loaded(value) else SETTING if Mark.SETTING in value else UNKNOWN


def _items(value: Value) -> Value:
    """What a loop over `value` binds."""
    found = [item for atom in value if isinstance(atom, Table) for item in atom.items.values()]
    return join(*found) if found else _part(value) if is_loaded(value) else UNKNOWN


def _item(atom: Atom, index: Value) -> Value:
    if isinstance(atom, Table):
        key = _key(index)
        if key in atom.items:
            return atom.items[key]
        return join(*atom.items.values()) if atom.items and key == "*" else UNKNOWN
    if isinstance(atom, Outside | Made):
        return (Outside(f"{atom.path}.*") if isinstance(atom, Outside) else Made(f"{atom.path}.*"),)
    if atom is Mark.SETTING:  # prm["x"] is a setting, in_shape[1] is not
        return UNKNOWN if isinstance(index[0], Const) and not isinstance(index[0].value, str) else SETTING
    return LOADED if atom is Mark.LOADED else UNKNOWN


def _widen(value: Value) -> Value:
    """Numbers other than 0 and 1 do not decide anything here; without them far fewer calls differ."""
    numbers = ("int", "float")
    return tuple(
        Mark.THING if isinstance(a, Const) and a.kind in numbers and a.value not in (0, 1) else a for a in value
    )


def _bind(function: Function, receiver: Atom | None, args: list[Value], keywords: dict[str, Value]) -> dict[str, Value]:
    spec = function.node.args
    positional = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    given = [(receiver,), *args] if receiver is not None else args
    names = dict(zip(positional, map(_widen, given), strict=False))
    for name in (*positional, *(a.arg for a in spec.kwonlyargs)):
        if name in keywords:
            names[name] = _widen(keywords[name])
        elif name not in names:
            names[name] = function.defaults.get(name, SETTING)
    if spec.vararg:
        names[spec.vararg.arg] = join((), *map(_widen, given[len(positional) :])) or UNKNOWN
    return names


_ORDER: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _compare(a: Atom, op: ast.cmpop, b: Atom) -> Value:
    """`a op b`, where both are constants or one is None."""
    if isinstance(op, ast.Is | ast.Eq | ast.IsNot | ast.NotEq):
        if isinstance(a, Const) and isinstance(b, Const):
            same = a.value == b.value
        elif {a, b} == {Const("__main__", "str"), Outside("__name__")} or (
            Const(None, "NoneType") in (a, b) and Mark.UNKNOWN not in (a, b)
        ):
            same = False
        else:
            return UNKNOWN
        return const(same == isinstance(op, ast.Is | ast.Eq))
    order = _ORDER.get(type(op))
    if order and isinstance(a, Const) and isinstance(b, Const):
        left, right = a.value, b.value
        if isinstance(left, int | float) and isinstance(right, int | float):
            return const(order(left, right))
    return UNKNOWN


def _convert(path: str, value: Value) -> Value:
    """`bool(x)`, `int(x)`, `float(x)`, `str(x)`."""
    if path == "bool":
        decided = truth(value)
        return const(decided) if isinstance(decided, bool) else SETTING if decided else UNKNOWN
    if len(value) == 1 and isinstance(value[0], Const):
        inner = value[0].value
        if path == "str":
            return const(str(inner))
        if isinstance(inner, bool | int | float) and abs(inner) < 2**31:
            return const(int(inner) if path == "int" else float(inner))
    return _part(value)
