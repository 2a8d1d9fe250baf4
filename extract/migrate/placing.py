"""Edit class Net so that a block replaces or follows a submodule.

The edit is made in the assignment `self.x = …` in `Net.__init__`, or in an item of a `Sequential` or `ModuleList` that
is written out there. If there is no single such expression, a statement is added at the end of `__init__`.
"""

import ast
from collections.abc import Sequence

from extract.migrate.insertion_points import InsertionPoint
from extract.migrate.messages import ObservedSubmodule
from extract.minimize.cuts import last_line
from lemur_core.files.errors import UserError
from lemur_core.source.scopes import last_name
from lemur_core.source.text import Edit, Lines


def edits_in_net(
    lines: Lines, net: ast.ClassDef, point: InsertionPoint, expressions: Sequence[str], nn: str, note: str
) -> list[Edit]:
    """Return the edits of class Net that put a block at an insertion point.

    Args:
        lines: text of the network's file.
        expressions: modules of the insertion point.
        nn: name of `torch.nn` in the file.
        note: a comment.

    Raises: UserError if there is no suitable `__init__`.
    """
    function = _find_init(lines, net)
    body, parameters = function.body, [*function.args.posonlyargs, *function.args.args]
    me = parameters[0].arg if parameters else "self"
    value = _find_expression(function, me, point.place)
    if value is not None:
        start, end = lines.span(value)
        before = lines.text[start:end].decode() if point.how == "after" else None
        # A line may hold several statements; the comment stands above the first of them.
        line = next(item.lineno for item in body if last_line(item) >= value.lineno)
        comment = Edit(lines.start(line), lines.start(line), f"{_indent(lines, body[0])}# {note}\n")
        return [comment, Edit(start, end, _combine(expressions, nn, before))]
    target = f"{me}{point.place.steps}"
    count = len(body)
    # A statement behind a `return` never runs.
    while count and isinstance(body[count - 1], ast.Return):
        count -= 1
    at = lines.start(last_line(body[count - 1]) + 1 if count else body[0].lineno)
    indent = _indent(lines, body[0])
    statement = f"{target} = {_combine(expressions, nn, target if point.how == 'after' else None)}"
    return [Edit(at, at, f"{indent}# {note}\n{indent}{statement}\n")]


def _find_init(lines: Lines, net: ast.ClassDef) -> ast.FunctionDef:
    functions = [item for item in net.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    if not functions or _indent(lines, functions[-1].body[0]).strip():
        raise UserError("class Net has no __init__ of its own, over several lines, in which a block could be put")
    return functions[-1]


def _indent(lines: Lines, node: ast.stmt) -> str:
    """Return the text before a statement on its line."""
    return lines.line(node.lineno)[: node.col_offset].decode()


def _find_expression(function: ast.FunctionDef, me: str, submodule: ObservedSubmodule) -> ast.expr | None:
    """Return the expression of `__init__` that constructs a submodule; None if there is no single one."""
    name, *rest = submodule.path.split(".")
    values = [value for statement in function.body if (value := _assigned_value(statement, me, name)) is not None]
    # A second assignment, in a branch or a loop, would undo the edit or be missed by it. Submodules further down are
    # constructed in another class, whose other instances must not change.
    if len(values) != 1 or _count_stores(function, me, name) != 1 or len(rest) > 1:
        return None
    if not rest:
        return values[0]
    kind, count = submodule.within
    items = _items(values[0], kind)
    # The text must have as many items as the network: a starred or appended item shifts the indices.
    return items[int(rest[0])] if len(items) == count and rest[0].isdecimal() and int(rest[0]) < count else None


def _assigned_value(statement: ast.stmt, me: str, name: str) -> ast.expr | None:
    """Return the value of `self.name = …`; None for any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    return statement.value if _is_attribute(target, me, name) else None


def _is_attribute(node: ast.expr, me: str, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == me
    )


def _count_stores(function: ast.FunctionDef, me: str, name: str) -> int:
    """Count the assignments to an attribute or to its items."""
    count = 0
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            target: ast.expr = node
            while isinstance(target, ast.Subscript):
                target = target.value
            count += _is_attribute(target, me, name)
    return count


def _items(value: ast.expr, kind: str) -> Sequence[ast.expr]:
    """Return the submodules of a `Sequential` or `ModuleList` that is written out; none for anything else."""
    if not isinstance(value, ast.Call) or value.keywords or last_name(value.func) != kind:
        return ()
    items: Sequence[ast.expr] = value.args if kind == "Sequential" else ()
    if kind == "ModuleList" and len(value.args) == 1 and isinstance(value.args[0], ast.List):
        items = value.args[0].elts
    return () if any(isinstance(item, ast.Starred) for item in items) else items


def _combine(expressions: Sequence[str], nn: str, before: str | None) -> str:
    """Combine the modules of an insertion point into one expression."""
    modules = [*([before] if before is not None else []), *expressions]
    return modules[0] if len(modules) == 1 else f"{nn}.Sequential({', '.join(modules)})"
