"""Of which class the modules are that a constructor puts into `self`."""

import ast
from collections.abc import Mapping

from extract.hints.signature import method_of

_HOLDERS = frozenset({"Sequential", "ModuleList"})


def made_by(node: ast.ClassDef, functions: Mapping[str, str]) -> dict[str, str]:
    """Attribute -> dotted name of the class that it is made of; the first element's, of a list or sequence.

    Args:
        functions: what the functions of the file make, `conv3x3` -> `nn.Conv2d`.
    """
    init = method_of(node, "__init__")
    if init is None:
        return {}
    given = init.args
    plain = [*given.posonlyargs, *given.args]
    pairs = [*zip(plain[len(plain) - len(given.defaults) :], given.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None]
    defaults = {**functions, **{arg.arg: dotted(value) for arg, value in pairs if dotted(value)}}
    lists: dict[str, str] = {}
    found: dict[str, str] = {}
    for item in _in_order(init):
        if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
            kind = _kind(item.value, defaults, lists)
            for target in item.targets if isinstance(item, ast.Assign) else [item.target]:
                if not kind:
                    continue
                if isinstance(target, ast.Name):
                    lists[target.id] = kind
                elif isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                    found.setdefault(target.attr, kind)
        elif isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.args:
            _added(item, defaults, lists, found)
    return found


def functions_make(tree: ast.Module) -> dict[str, str]:
    """Function of a file -> what it returns a call of."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            calls = [r.value for r in ast.walk(node) if isinstance(r, ast.Return) and isinstance(r.value, ast.Call)]
            kinds = {_kind(call, {}, {}) for call in calls}
            if len(kinds) == 1 and "" not in kinds:
                found[node.name] = kinds.pop()
    return found


def first_of_sequence(node: ast.ClassDef, functions: Mapping[str, str]) -> str:
    """What stands first in a subclass of nn.Sequential: the first module given to `super().__init__` or added."""
    init = method_of(node, "__init__")
    lists: dict[str, str] = {}
    for item in _in_order(init) if init is not None else ():
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            lists[item.targets[0].id] = _kind(item.value, functions, lists)
        elif isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.args:
            name = item.func.attr
            if name == "__init__" and isinstance(item.func.value, ast.Call):
                return _kind(item.args[0], functions, lists)
            if name == "add_module" and len(item.args) == 2 and dotted(item.func.value) == "self":
                return _kind(item.args[1], functions, lists)
            found: dict[str, str] = {}
            _added(item, functions, lists, found)
    return ""


def _in_order(node: ast.AST) -> list[ast.Assign | ast.AnnAssign | ast.Call]:
    """The statements and calls of a function as they are written."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Assign | ast.AnnAssign | ast.Call)]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _added(call: ast.Call, defaults: Mapping[str, str], lists: dict[str, str], found: dict[str, str]) -> None:
    """`layers.append(X())`, `self.layers.append(X())`, `self.add_module("x", X())`."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr == "append":
        kind, holder = _kind(call.args[0], defaults, lists), call.func.value
        if kind and isinstance(holder, ast.Name):
            lists.setdefault(holder.id, kind)
        elif kind and isinstance(holder, ast.Attribute) and dotted(holder.value) == "self":
            found.setdefault(holder.attr, kind)
    elif call.func.attr == "add_module" and len(call.args) == 2 and isinstance(call.args[0], ast.Constant):
        kind = _kind(call.args[1], defaults, lists)
        if kind:
            found.setdefault(str(call.args[0].value), kind)


def _kind(node: ast.expr, defaults: Mapping[str, str], lists: dict[str, str]) -> str:
    match node:
        case ast.Call():
            name = dotted(node.func)
            if name.rpartition(".")[2] in _HOLDERS:
                kinds = [_kind(arg, defaults, lists) for arg in node.args]
                return next((kind for kind in kinds if kind), "")
            return defaults.get(name) or lists.get(name) or name
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return next((kind for item in items if (kind := _kind(item, defaults, lists))), "")
        case ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner) | ast.Starred(value=inner):
            return _kind(inner, defaults, lists)
        case ast.Name(name):
            return lists.get(name, "")
        case ast.IfExp():
            first = _kind(node.body, defaults, lists)
            return first if first and not first.endswith("Identity") else _kind(node.orelse, defaults, lists) or first
    return ""


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text; empty for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""
