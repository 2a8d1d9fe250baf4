"""The arguments of `setup` in a `setup.py`, read from its text: setup scripts are foreign code, and never run.

    REQUIRED = ["torch>=1.8"]
    REQUIRED += ["einops"]
    setup(name="acme", package_dir={"": "lib"}, install_requires=REQUIRED)

gives `{"name": "acme", "package_dir": {"": "lib"}, "install_requires": ["torch>=1.8", "einops"]}`. What only running
the script would show, such as the lines of a file that it opens, is left out.
"""

import ast
from collections.abc import Callable, Iterable, Sequence

from lemur_core.source.text import parse_code
from lemur_core.source.values import UNKNOWN, Comprehension, Evaluator, call_builtin

_MAX_CHARACTERS = 200_000
#: Methods of a string whose result is not larger than the string.
_OF_TEXT = frozenset({"split", "splitlines", "strip", "rstrip", "lstrip"})
Names = dict[str, object]


def read_setup_script(text: str) -> dict[str, object]:
    """Return the known keyword arguments of the call of `setup`; the last one, if there are several."""
    try:
        tree = parse_code(text[:_MAX_CHARACTERS])
    except SyntaxError:  # a foreign file, perhaps of Python 2; ignore it
        return {}
    script = _SetupScript()
    script.follow(tree.body, {})
    return script.arguments


class _SetupScript(Evaluator[Names]):
    """Follow the statements of a script in order, with all its branches, and the calls of `setup` among them."""

    def __init__(self) -> None:
        self.arguments: dict[str, object] = {}

    def follow(self, body: Iterable[ast.stmt], names: Names) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    names[name] = self.value(value, names)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    names[name] = self.value(value, names)
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                    names[name] = _add(names.get(name, UNKNOWN), self.value(value, names))
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=index)], value=value):
                    holder, key = names.get(name), self.value(index, names)
                    if isinstance(holder, dict) and isinstance(key, str):
                        holder[key] = self.value(value, names)
                case ast.Expr(value=ast.Call() as call):
                    self._follow_call(call, names)
                case ast.FunctionDef():  # `setup` may be called in `main`; its local names are its own
                    self.follow(node.body, dict(names))
                case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
                    for part in ("body", "handlers", "orelse", "finalbody"):
                        for inner in getattr(node, part, ()):
                            self.follow(inner.body if isinstance(inner, ast.ExceptHandler) else [inner], names)

    def _follow_call(self, call: ast.Call, names: Names) -> None:
        match call.func:
            case ast.Name(id="setup") | ast.Attribute(attr="setup"):
                arguments: dict[str, object] = {}
                for item in call.keywords:
                    value = self.value(item.value, names)
                    arguments |= {item.arg: value} if item.arg else value if isinstance(value, dict) else {}
                known = {str(key): value for key, value in arguments.items() if value is not UNKNOWN}
                self.arguments = known or self.arguments
            case ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" as method) if len(call.args) == 1:
                value = self.value(call.args[0], names)
                names[name] = _add(names.get(name, UNKNOWN), [value] if method == "append" else value)

    def value(self, node: ast.expr | None, scope: Names) -> object:
        """Return the value of an expression; texts and lists may be long."""
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return self.items(items, scope)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _add(self.value(left, scope), self.value(right, scope))
        return super().value(node, scope)

    def name(self, name: str, scope: Names) -> object:
        return scope.get(name, UNKNOWN)

    def attribute(self, _node: ast.Attribute, _scope: Names) -> object:
        return UNKNOWN

    def call(self, node: ast.Call, scope: Names) -> object:
        args = [self.value(item, scope) for item in node.args]
        match node.func:
            case ast.Name(id="dict") if not args:
                return {item.arg: self.value(item.value, scope) for item in node.keywords if item.arg}
            case ast.Name(id=name):
                return call_builtin(name, args)
            case ast.Attribute(value=holder, attr=method) if method in _OF_TEXT and not node.keywords:
                text = self.value(holder, scope)
                if isinstance(text, str) and all(isinstance(item, str) for item in args[:1]) and len(args) < 2:
                    return getattr(text, method)(*args)
        return UNKNOWN

    def comprehension(self, _node: Comprehension, _scope: Names) -> object:
        return UNKNOWN

    def choose(self, options: Sequence[Callable[[], object]]) -> object:
        """Return the first known value: a script may ask the machine, which has no part in what is stated."""
        return next((value for option in options if (value := option()) is not UNKNOWN), UNKNOWN)


def _add(left: object, right: object) -> object:
    """Return the sum of two texts, or of two lists of which one may be unknown: the rest is stated all the same."""
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    lists = [list(value) for value in (left, right) if isinstance(value, list | tuple)]
    return [item for items in lists for item in items] if lists else UNKNOWN
