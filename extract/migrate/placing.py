"""Find where a network constructs a submodule, and put a block there instead of it or after it (LibCST).

The edit is made in the assignment `self.x = …` in `Net.__init__`, or in an item of a `Sequential` or `ModuleList` that
is written out there. If there is no single such expression, a statement is added at the end of `__init__`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from extract.migrate.insertion_points import InsertionPoint
from extract.migrate.messages import ObservedSubmodule
from lemur_core.files.errors import UserError

#: Containers -> whether they take their submodules as one list.
_CONTAINERS = {"Sequential": False, "ModuleList": True}


def insert_at(net: cst.ClassDef, point: InsertionPoint, expressions: list[str], nn: str, note: str) -> cst.ClassDef:
    """Return class Net with a block at the insertion point.

    Args:
        expressions: modules of the insertion point.
        nn: name of `torch.nn` in the file.
        note: a comment.

    Raises: UserError if there is no suitable `__init__`.
    """
    function = _find_init(net)
    body = cst.ensure_type(function.body, cst.IndentedBlock)
    me = function.params.params[0].name.value if function.params.params else "self"
    lines = list(body.body)
    assignment = _find_assignment(lines, me, point.place)
    if assignment is not None:
        line, new = assignment
        lines[line] = _edit_line(
            cst.ensure_type(lines[line], cst.SimpleStatementLine), new, point, expressions, nn, note
        )
    else:
        target = f"{me}{point.place.steps}"
        value = _combine(expressions, nn, target if point.how == "after" else None)
        end = len(lines)
        # A statement behind a `return` never runs.
        while end and _returns(lines[end - 1]):
            end -= 1
        lines[end:end] = [_add_comment(parse_line(f"{target} = {value}"), note)]
    return net.with_deep_changes(body, body=lines)


def _find_init(net: cst.ClassDef) -> cst.FunctionDef:
    body = net.body.body if isinstance(net.body, cst.IndentedBlock) else ()
    functions = [item for item in body if isinstance(item, cst.FunctionDef) and item.name.value == "__init__"]
    if not functions or not isinstance(functions[-1].body, cst.IndentedBlock):
        raise UserError("class Net has no __init__ of its own, over several lines, in which a block could be put")
    return functions[-1]


def _returns(line: cst.BaseStatement) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[-1], cst.Return)


@dataclass(frozen=True, slots=True)
class _Location:
    """The value of an assignment in a line, or one of its arguments."""

    small: int
    argument: int | None


def _find_assignment(
    lines: Sequence[cst.BaseStatement], me: str, submodule: ObservedSubmodule
) -> tuple[int, _Location] | None:
    """Return the line of `__init__` and the expression that constructs a submodule; None if they are not unique."""
    parts = submodule.path.split(".")
    # Deeper submodules are constructed in another class, whose other instances must not change.
    if len(parts) > 2:
        return None
    assignments = [
        (number, small)
        for number, line in enumerate(lines)
        if isinstance(line, cst.SimpleStatementLine)
        for small, statement in enumerate(line.body)
        if _target(statement) == (me, parts[0])
    ]
    # A second assignment, in a branch or a loop, would undo the edit or be missed by it.
    stores = sum(_stores(line, me, parts[0]) for line in lines)
    if len(assignments) != 1 or stores != 1:
        return None
    number, small = assignments[0]
    if len(parts) == 1:
        return number, _Location(small, None)
    value = _assignment_value(cst.ensure_type(lines[number], cst.SimpleStatementLine).body[small])
    kind, count = submodule.within
    items = _items(value, kind)
    # The text must have as many items as the network: a starred or appended item shifts the indices.
    if items is None or len(items) != count or not parts[1].isdecimal() or int(parts[1]) >= count:
        return None
    return number, _Location(small, int(parts[1]))


def _target(statement: cst.BaseSmallStatement) -> tuple[str, str] | None:
    """Return the object and the attribute of `self.x = …`."""
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
    elif isinstance(statement, cst.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return None
    if isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
        return target.value.value, target.attr.value
    return None


def _assignment_value(statement: cst.BaseSmallStatement) -> cst.BaseExpression:
    assert isinstance(statement, cst.Assign | cst.AnnAssign)
    assert statement.value is not None
    return statement.value


class _Stores(cst.CSTVisitor):
    """Visitor that counts assignments to an attribute or to its items."""

    def __init__(self, me: str, attribute: str) -> None:
        self.count = 0
        self._wanted = me, attribute

    def _see(self, target: cst.BaseExpression) -> None:
        while isinstance(target, cst.Subscript):
            target = target.value
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._see(element.value)
        elif isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
            self.count += (target.value.value, target.attr.value) == self._wanted

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._see(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._see(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._see(node.target)


def _stores(line: cst.CSTNode, me: str, attribute: str) -> int:
    visitor = _Stores(me, attribute)
    line.visit(visitor)
    return visitor.count


def _items(value: cst.BaseExpression, kind: str) -> Sequence[cst.Arg | cst.BaseElement] | None:
    """Return the submodules of a container that is written out; None for anything else."""
    if kind not in _CONTAINERS or not isinstance(value, cst.Call):
        return None
    called = value.func.attr if isinstance(value.func, cst.Attribute) else value.func
    if not isinstance(called, cst.Name) or called.value != kind:
        return None
    if any(arg.star or arg.keyword is not None for arg in value.args):
        return None
    if not _CONTAINERS[kind]:
        return value.args
    first = value.args[0].value if len(value.args) == 1 else None
    if not isinstance(first, cst.List) or any(isinstance(element, cst.StarredElement) for element in first.elements):
        return None
    return first.elements


def _edit_line(
    line: cst.SimpleStatementLine,
    location: _Location,
    point: InsertionPoint,
    expressions: list[str],
    nn: str,
    note: str,
) -> cst.SimpleStatementLine:
    """Return the line that constructs a submodule, with the block inserted."""
    value = _assignment_value(line.body[location.small])
    if location.argument is not None:
        items = _items(value, point.place.within[0])
        assert items is not None
        value = items[location.argument].value
    if point.how == "replace":
        new: cst.BaseExpression = cst.parse_expression(_combine(expressions, nn, None))
    else:
        call = cst.ensure_type(cst.parse_expression(_combine(expressions, nn, "_")), cst.Call)
        first = call.args[0].with_changes(value=value)
        new = call.with_changes(args=[first, *call.args[1:]])
    return _add_comment(cst.ensure_type(line.deep_replace(value, new), cst.SimpleStatementLine), note)


def _combine(expressions: list[str], nn: str, before: str | None) -> str:
    """Combine the modules of an insertion point into one expression."""
    modules = [*([before] if before is not None else []), *expressions]
    return modules[0] if len(modules) == 1 else f"{nn}.Sequential({', '.join(modules)})"


def parse_line(text: str) -> cst.SimpleStatementLine:
    """Parse a one-line statement."""
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)


def _add_comment(line: cst.SimpleStatementLine, note: str) -> cst.SimpleStatementLine:
    comment = cst.EmptyLine(comment=cst.Comment(f"# {note}"))
    return line.with_changes(leading_lines=[*line.leading_lines, comment])
