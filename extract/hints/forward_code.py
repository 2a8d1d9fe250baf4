"""What the code of forward says of its arguments' dimensions."""

import ast

from extract.hints.made import dotted
from extract.hints.patterns import subscript_pattern, text_pattern
from extract.hints.ranks import keeps_rank, method_keeps_rank, rank_for
from extract.hints.signature import Definition

_DEEPEST = 4
Said = tuple[str, tuple[str, ...], str]  # argument, names of dimensions, way


class ForwardCode:
    """Reads forward, and the methods of the class that it passes its arguments to."""

    def __init__(self, methods: dict[str, Definition], made: dict[str, str]) -> None:
        self.methods = methods
        self.made = made
        self.arguments: list[str] = []
        self.found: list[Said] = []
        self.flows: list[tuple[str, str, int]] = []
        self._loops: dict[str, str] = {}
        self._inside: list[str] = []

    def read(self, forward: Definition) -> None:
        """Start with forward itself."""
        given = forward.args
        self.arguments = [arg.arg for arg in (*given.posonlyargs, *given.args)][1:]
        self.arguments += [arg.arg for arg in given.kwonlyargs]
        self._inside.append("forward")
        self._suite(forward.body, {name: name for name in self.arguments})

    # -- statements ----------------------------------------------------------------------------------------------

    def _suite(self, body: list[ast.stmt], tracked: dict[str, str]) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[target]):
                    self._see(node.value, tracked)
                    self._unpack(target, node.value, tracked)
                    self._assign(target, node.value, tracked)
                case ast.Assert():
                    self._assert(node.test, tracked)
                case ast.For():
                    holder = dotted(node.iter).removeprefix("self.")
                    if isinstance(node.target, ast.Name) and holder in self.made:
                        self._loops[node.target.id] = self.made[holder]
                    self._see(node.iter, tracked)
                    self._suite(node.body, tracked)
                case ast.If():
                    self._see(node.test, tracked)
                    before = dict(tracked)
                    self._suite(node.body, before)
                    self._suite(node.orelse, tracked)
                    for name in [name for name in tracked if name not in before]:
                        del tracked[name]
                case ast.With() | ast.Try() | ast.While():
                    self._suite(node.body, tracked)
                case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                    pass
                case _:
                    for inner in ast.iter_child_nodes(node):
                        if isinstance(inner, ast.expr):
                            self._see(inner, tracked)

    def _assign(self, target: ast.expr, value: ast.expr, tracked: dict[str, str]) -> None:
        names = [target] if isinstance(target, ast.Name) else []
        if isinstance(target, ast.Tuple | ast.List):
            names = [item for item in target.elts if isinstance(item, ast.Name)]
        origin = self._origin(value, tracked) if isinstance(target, ast.Name) else None
        for name in names:
            if origin is not None:
                tracked[name.id] = origin
            else:
                tracked.pop(name.id, None)

    def _unpack(self, target: ast.expr, value: ast.expr, tracked: dict[str, str]) -> None:
        """`B, C, H, W = x.shape`, `b, n, _, h = *x.shape, self.heads`."""
        if not isinstance(target, ast.Tuple | ast.List) or any(isinstance(t, ast.Starred) for t in target.elts):
            return
        names = tuple(item.id if isinstance(item, ast.Name) and item.id != "_" else "?" for item in target.elts)
        argument = self._shape_of(value, tracked)
        if argument is not None:
            self._say(argument, names)
        elif isinstance(value, ast.Tuple):
            for number, item in enumerate(value.elts):
                spread = self._shape_of(item.value, tracked) if isinstance(item, ast.Starred) else None
                if spread is not None:
                    self._say(spread, names[number : number + len(names) - len(value.elts) + 1])

    def _assert(self, test: ast.expr, tracked: dict[str, str]) -> None:
        self._see(test, tracked)
        self._equal(test, tracked)

    def _equal(self, test: ast.expr, tracked: dict[str, str]) -> None:
        """`x.dim() == 4` asserted."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
            number = test.comparators[0]
            if isinstance(number, ast.Constant) and isinstance(number.value, int) and number.value > 0:
                argument = self._dim_of(test.left, tracked)
                if argument is not None:
                    self._say(argument, ("?",) * number.value)

    # -- expressions ---------------------------------------------------------------------------------------------

    def _see(self, node: ast.expr, tracked: dict[str, str]) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self._call(inner, tracked)
            elif isinstance(inner, ast.Subscript):
                argument = self._origin(inner.value, tracked)
                dims = subscript_pattern(inner) if argument is not None else None
                shaped = self._shape_of(inner.value, tracked)
                if argument is not None and dims is not None:
                    self._say(argument, dims, "guess")
                elif shaped is not None:
                    self._index(shaped, inner.slice)

    def _index(self, argument: str, index: ast.expr) -> None:
        """`x.shape[3]`: at least four dimensions."""
        if isinstance(index, ast.Constant) and isinstance(index.value, int) and 2 <= index.value <= 5:
            self._say(argument, ("?",) * (index.value + 1), "guess")

    def _call(self, node: ast.Call, tracked: dict[str, str]) -> None:
        function = node.func
        name = dotted(function)
        last = name.rpartition(".")[2] or (function.attr if isinstance(function, ast.Attribute) else "")
        if last in {"_assert", "_check"} and node.args:
            self._equal(node.args[0], tracked)
        for argument, dims in text_pattern(last, node):
            origin = self._origin(argument, tracked)
            if origin is not None:
                self._say(origin, dims)
        if isinstance(function, ast.Attribute):
            holder = self._origin(function.value, tracked)
            if holder is not None:
                self._method(holder, last, node.args)
                return
        kind = self._kind(name)
        own = name.removeprefix("self.") if name.startswith("self.") else ""
        if own in self.methods and own not in self._inside and len(self._inside) < _DEEPEST:
            self._enter(own, node, tracked)
            return
        rank = rank_for(kind) if kind else None
        for position, value in enumerate(node.args[:4]):
            origin = self._origin(value, tracked)
            if origin is None:
                continue
            if rank is not None and position == 0:
                self._say(origin, ("?",) * rank, "code" if rank > 2 else "guess")
            elif kind and rank is None and kind.rpartition(".")[2].lstrip("_")[:1].isupper():
                self.flows.append((origin, kind, position))

    def _method(self, argument: str, name: str, args: list[ast.expr]) -> None:
        items = args[0].elts if len(args) == 1 and isinstance(args[0], ast.Tuple | ast.List) else args
        if name == "permute" and len(items) > 1 and not any(isinstance(item, ast.Starred) for item in items):
            self._say(argument, ("?",) * len(items))
        elif name == "size" and len(args) == 1:
            self._index(argument, args[0])
        elif name == "flatten" and args and isinstance(args[0], ast.Constant) and args[0].value == 2:
            self._say(argument, ("?",) * 4, "guess")

    def _enter(self, name: str, node: ast.Call, tracked: dict[str, str]) -> None:
        """Read a method of the class that an argument is passed to."""
        given = self.methods[name].args
        names = [arg.arg for arg in (*given.posonlyargs, *given.args)][1:]
        passed = {
            parameter: origin
            for parameter, value in zip(names, node.args, strict=False)
            if (origin := self._origin(value, tracked)) is not None
        }
        for keyword in node.keywords:
            origin = self._origin(keyword.value, tracked)
            if keyword.arg is not None and origin is not None:
                passed[keyword.arg] = origin
        if passed:
            self._inside.append(name)
            self._suite(self.methods[name].body, passed)
            self._inside.pop()

    def _kind(self, name: str) -> str:
        """The class behind what is called: `self.conv`, a loop's variable, or the function itself."""
        own = name.removeprefix("self.")
        return self.made.get(own, "") if own != name else self._loops.get(name, name)

    def _origin(self, node: ast.expr, tracked: dict[str, str]) -> str | None:
        """The argument that an expression has as many dimensions as."""
        match node:
            case ast.Name(name):
                return tracked.get(name)
            case ast.BinOp():
                return self._origin(node.left, tracked) or self._origin(node.right, tracked)
            case ast.IfExp():
                return self._origin(node.body, tracked) or self._origin(node.orelse, tracked)
            case ast.Call(func=ast.Attribute(value=holder, attr=method)) if self._origin(holder, tracked):
                return self._origin(holder, tracked) if method_keeps_rank(method) else None
            case ast.Call() if node.args:
                name = dotted(node.func)
                if keeps_rank(self._kind(name)) or (name.startswith("self.") and keeps_rank(name)):
                    return self._origin(node.args[0], tracked)
        return None

    def _shape_of(self, node: ast.expr, tracked: dict[str, str]) -> str | None:
        """The argument whose shape an expression is: `x.shape`, `x.size()`."""
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return self._origin(node.value, tracked)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            return self._origin(node.func.value, tracked) if node.func.attr == "size" else None
        return None

    def _dim_of(self, node: ast.expr, tracked: dict[str, str]) -> str | None:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"dim", "ndimension"}
        ):
            return self._origin(node.func.value, tracked)
        if isinstance(node, ast.Attribute) and node.attr == "ndim":
            return self._origin(node.value, tracked)
        if isinstance(node, ast.Call) and dotted(node.func) == "len" and len(node.args) == 1:
            return self._shape_of(node.args[0], tracked)
        return None

    def _say(self, argument: str, dims: tuple[str, ...], way: str = "code") -> None:
        if 0 < len(dims) <= 7 and argument in self.arguments:
            self.found.append((argument, dims, way))
