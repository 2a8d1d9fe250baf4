"""Calls: functions and classes of the file are entered with the values of each call, others are judged by `rules`."""

import ast
from abc import abstractmethod

from curate.pretrained.expressions import MAX_DEPTH, Expressions
from curate.pretrained.operations import bind_arguments, const, convert, entries, is_loaded, join, key_of, part, widen
from curate.pretrained.rules import Verdict, judge_call, judge_method
from curate.pretrained.values import (
    LOADED,
    UNKNOWN,
    Atom,
    Bound,
    Call,
    Class,
    Const,
    Function,
    Instance,
    Mark,
    Outside,
    Partial,
    Scope,
    Super,
    Table,
    Value,
)


class Calls(Expressions):
    """Reads calls; the bodies of functions are left to `Statements`."""

    def __init__(self) -> None:
        super().__init__()
        self.muted = 0  # how many conditions around are settings: what is built there is not used any further
        self.instances: list[Instance] = []
        self.used: set[Function | Class] = set()
        self.memo: dict[tuple[object, ...], tuple[Value, frozenset[int]]] = {}  # of calls: value, lines found

    @abstractmethod
    def block(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Read statements; returns whether what follows them can be reached."""

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """A call: every possible callee with the same arguments."""
        func = node.func
        if not isinstance(func, ast.Attribute):
            callee = self.value(func, scope)
            call = Call(*self.arguments(node, scope), node.lineno)
            if callee == (Outside("super"),):
                return (Super(scope.cls, scope.receiver),) if scope.cls and scope.receiver else UNKNOWN
            return join(*(self.apply(atom, call) for atom in callee))
        self.mentioned.add(func.attr)
        owners = self.value(func.value, scope)
        receiver = func.value.attr if isinstance(func.value, ast.Attribute) else getattr(func.value, "id", "")
        call = Call(*self.arguments(node, scope), node.lineno, receiver)
        if func.attr in ("update", "append") and any(map(is_loaded, call.args)):
            self.assign(func.value, LOADED, scope)
        return join(*(self.method(atom, func.attr, call) for atom in owners))

    def arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Value], dict[str, Value]]:
        """Positional and keyword arguments; `*` and `**` of tables are unpacked."""
        args: list[Value] = []
        for arg in node.args:
            value = self.value(arg, scope)
            tables = [a for a in value if isinstance(a, Table)] if isinstance(arg, ast.Starred) else []
            args.extend(tables[0].items.values() if tables else [value])
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, scope)
            keywords |= entries(value) if keyword.arg is None else {keyword.arg: value}
        return args, keywords

    def method(self, atom: Atom, name: str, call: Call) -> Value:
        """`atom.name(...)`."""
        if isinstance(atom, Outside):
            return self.apply(Outside(f"{atom.path}.{name}"), call)
        if isinstance(atom, Instance | Class | Super):
            return self.own_method(atom, name, call)
        if name in ("get", "pop", "setdefault") and call.args:
            items = atom.items if isinstance(atom, Table) else {}
            default = const(None) if isinstance(atom, Table) else part((atom,))
            return items.get(key_of(call.args[0]), call.args[1] if len(call.args) > 1 else default)
        if isinstance(atom, Table) and name in ("items", "values", "copy", "keys"):
            return (atom,)
        if isinstance(atom, Table) and name == "update":
            atom.items |= entries(join(*call.args)) | call.keywords
            return const(None)
        return self.note(judge_method(atom, name, call), call)

    def own_method(self, atom: Instance | Class | Super, name: str, call: Call) -> Value:
        """A method of an object or class of the file."""
        own = atom.attrs.get(name) if isinstance(atom, Instance) else None
        cls = atom if isinstance(atom, Class) else atom.cls
        found = own or cls.lookup(name, above=isinstance(atom, Super))
        if name == "load_state_dict" or (not found and isinstance(atom, Instance)):
            return self.note(judge_method(atom, name, call), call)
        if not found:
            return self.outside(f"{cls.outside_base()}.{name}", call)
        receiver = atom.receiver if isinstance(atom, Super) else atom
        return join(*(self.apply(a, call) for a in (own or self.bind(found, receiver))))

    def apply(self, atom: Atom, call: Call) -> Value:
        """A call of one callee."""
        args = call.args
        match atom:
            case Function():
                return self.enter(atom, None, args, call.keywords)
            case Bound():
                return self.enter(atom.function, atom.receiver, args, call.keywords)
            case Class():
                return self.build(atom, call)
            case Instance():
                found = self.bind(atom.cls.lookup("forward") or atom.cls.lookup("__call__") or (), atom)
                return join(*(self.apply(a, call) for a in found)) or UNKNOWN
            case Partial():
                whole = Call([*atom.args, *args], atom.keywords | call.keywords, call.line, call.receiver)
                return join(*(self.apply(a, whole) for a in atom.callee))
            case Outside(path="functools.partial") if args:
                return (Partial(args[0], args[1:], call.keywords),)
            case Outside(path="getattr") if len(args) >= 2:
                name = key_of(args[1])
                found = join(*(self.attribute(a, name) for a in args[0]))
                return args[2] if len(args) > 2 and set(found) <= {Mark.UNKNOWN, Mark.SETTING} else found
            case Outside(path=("bool" | "int" | "float" | "str") as path) if len(args) == 1:
                return convert(path, args[0])
            case Outside(path="dict"):
                given = join(*args)
                table = Table(entries(given) | call.keywords)
                return (table, Mark.LOADED) if is_loaded(given) else (table,)
            case Outside():
                return self.outside(atom.path, call)
            case Const() | Table():
                return UNKNOWN
            case Mark.LOADED:
                self.lines.add(call.line)
                return UNKNOWN
        return self.outside("", call)

    def outside(self, path: str, call: Call) -> Value:
        """A call of a name from outside the file."""
        return self.note(judge_call(path, call), call)

    def note(self, verdict: Verdict, call: Call) -> Value:
        """Keep the line of a call that loads trained weights."""
        if verdict.loads:
            self.lines.add(call.line)
        return verdict.value

    def build(self, cls: Class, call: Call) -> Value:
        """An object of `cls`; equal arguments give the same one."""
        self.used.add(cls)
        given = sorted(call.keywords.items(), key=lambda item: item[0])
        key = (cls, *map(widen, call.args), *((name, widen(value)) for name, value in given))
        kept = self.memo.get(key)
        if kept is not None:
            self.lines |= kept[1]
            return kept[0]
        instance = Instance(cls)
        self.memo[key] = ((instance,), frozenset())  # for calls of itself
        with self.lines_apart() as lines:
            init = cls.lookup("__init__")
            for atom in init or ():
                if isinstance(atom, Function):
                    self.enter(atom, instance, call.args, call.keywords)
            if init is None:
                members = cls.members()
                fields = [n for n in members if not any(isinstance(a, Function) for a in cls.attrs.get(n, ()))]
                instance.attrs |= dict(zip(fields, call.args, strict=False)) | call.keywords
                self.outside(f"{cls.outside_base()}.__init__", call)
        if not self.muted:
            self.instances.append(instance)
        self.memo[key] = ((instance,), frozenset(lines))
        self.lines |= lines
        return (instance,)

    def enter(self, function: Function, receiver: Atom | None, args: list[Value], keywords: dict[str, Value]) -> Value:
        """What a function of the file returns for these arguments."""
        self.used.add(function)
        if isinstance(receiver, Instance):
            receiver.entered.add(function)
        names = bind_arguments(function, receiver, args, keywords)
        key = (function, receiver, *names.items())
        kept = self.memo.get(key)
        if kept is not None:
            self.lines |= kept[1]
            return kept[0]
        if self.depth >= MAX_DEPTH:
            return UNKNOWN
        self.memo[key] = (UNKNOWN, frozenset())  # for calls of itself
        spec, scope, owner = function.node.args, function.scope, function.owner
        if spec.kwarg:
            known = {arg.arg for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
            names[spec.kwarg.arg] = (Table({k: v for k, v in keywords.items() if k not in known}),)
        inner = Scope(scope.parent if owner else scope, names)
        if owner:
            inner.cls, inner.receiver = owner, receiver
        unsure, self.unsure = self.unsure, 0 if owner and function.name == "__init__" else self.unsure
        with self.lines_apart() as lines:
            if isinstance(function.node, ast.Lambda):
                inner.returns.append(self.value(function.node.body, inner))
            elif self.block(function.node.body, inner):
                inner.returns.append(const(None))
        self.unsure = unsure
        value = join(*inner.returns) if inner.returns else UNKNOWN
        self.memo[key] = (value, frozenset(lines))
        self.lines |= lines
        return value
