"""What Python's operations make of values: joining, truth, parts, comparison, conversion."""

import ast
import operator
from collections.abc import Callable, Iterable

from curate.pretrained.values import (
    LOADED,
    NONE,
    SETTING,
    UNKNOWN,
    Atom,
    Const,
    Function,
    Made,
    Mark,
    Outside,
    Table,
    Value,
)

#: More possibilities of one value than these are cut, and the value is also unknown.
_MAX_ATOMS = 12

_ORDER: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def const(value: object) -> Value:
    """The value of a literal."""
    return (Const(value, type(value).__name__),)


def join(*values: Value) -> Value:
    """All possibilities of all `values`, in order of appearance."""
    if len(values) == 1:
        return values[0]
    atoms = tuple(dict.fromkeys(atom for value in values for atom in value))
    return atoms if len(atoms) <= _MAX_ATOMS else (*atoms[:_MAX_ATOMS], Mark.UNKNOWN)


def merge(ends: Iterable[dict[str, Value]]) -> dict[str, Value]:
    """Names with their possibilities at all `ends` of a branch."""
    merged: dict[str, Value] = {}
    for names in ends:
        for name, value in names.items():
            old = merged.get(name)
            merged[name] = value if old is None or old is value else join(old, value)
    return merged


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


def truth_value(value: Value, negate: bool = False) -> Value:
    """`bool(value)` or `not value`."""
    decided = truth(value)
    return const(decided != negate) if isinstance(decided, bool) else SETTING if decided else UNKNOWN


def is_loaded(value: Value) -> bool:
    """Whether some possibility was read from a checkpoint, also inside a dict or list."""
    return any(
        atom is Mark.LOADED or (isinstance(atom, Table) and any(Mark.LOADED in item for item in atom.items.values()))
        for atom in value
    )


def part(value: Value) -> Value:
    """Some part of a value that is no table."""
    return LOADED if is_loaded(value) else SETTING if Mark.SETTING in value else UNKNOWN


def key_of(value: Value) -> str:
    """The key of a table that an index stands for: `*` when it is not known."""
    return str(value[0].value) if len(value) == 1 and isinstance(value[0], Const) else "*"


def entries(value: Value) -> dict[str, Value]:
    """The items of all tables among the possibilities."""
    return {key: item for atom in value if isinstance(atom, Table) for key, item in atom.items.items()}


def loop_item(value: Value) -> Value:
    """What a loop over `value` binds."""
    found = [item for atom in value if isinstance(atom, Table) for item in atom.items.values()]
    return join(*found) if found else LOADED if is_loaded(value) else UNKNOWN


def item_of(atom: Atom, index: Value) -> Value:
    """`atom[index]`."""
    if isinstance(atom, Table):
        key = key_of(index)
        if key in atom.items:
            return atom.items[key]
        return join(*atom.items.values()) if atom.items and key == "*" else UNKNOWN
    if isinstance(atom, Outside | Made):
        return (type(atom)(f"{atom.path}.*"),)
    if atom is Mark.SETTING:  # prm["x"] is a setting, in_shape[1] is not
        return UNKNOWN if isinstance(index[0], Const) and not isinstance(index[0].value, str) else SETTING
    return LOADED if atom is Mark.LOADED else UNKNOWN


def compare(a: Atom, op: ast.cmpop, b: Atom) -> Value:
    """`a op b`, where both are constants or one is None; a setting stays one under `is`, `<` and the like."""
    if Mark.SETTING in (a, b):
        return UNKNOWN if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) else SETTING
    if isinstance(op, ast.Is | ast.Eq | ast.IsNot | ast.NotEq):
        if isinstance(a, Const) and isinstance(b, Const):
            same = a.value == b.value
        elif {a, b} == {Const("__main__", "str"), Outside("__name__")} or (
            NONE in (a, b) and Mark.UNKNOWN not in (a, b)
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


def convert(path: str, value: Value) -> Value:
    """`bool(x)`, `int(x)`, `float(x)`, `str(x)`."""
    if path == "bool":
        return truth_value(value)
    if len(value) == 1 and isinstance(value[0], Const):
        inner = value[0].value
        if path == "str":
            return const(str(inner))
        if isinstance(inner, bool | int | float) and abs(inner) < 2**31:
            return const(int(inner) if path == "int" else float(inner))
    return part(value)


def widen(value: Value) -> Value:
    """Numbers other than 0 and 1 do not decide anything here; without them far fewer calls differ."""
    numbers = ("int", "float")
    return tuple(
        Mark.THING if isinstance(a, Const) and a.kind in numbers and a.value not in (0, 1) else a for a in value
    )


def bind_arguments(
    function: Function, receiver: Atom | None, args: list[Value], keywords: dict[str, Value]
) -> dict[str, Value]:
    """The parameters of `function` with their values in one call; missing ones take their default."""
    spec = function.node.args
    positional = [a.arg for a in (*spec.posonlyargs, *spec.args)]
    given = [(receiver,), *args] if receiver is not None else args
    names = dict(zip(positional, map(widen, given), strict=False))
    for name in (*positional, *(a.arg for a in spec.kwonlyargs)):
        if name in keywords:
            names[name] = widen(keywords[name])
        elif name not in names:
            names[name] = function.defaults.get(name, SETTING)
    if spec.vararg:
        names[spec.vararg.arg] = join(*map(widen, given[len(positional) :])) or UNKNOWN
    return names
