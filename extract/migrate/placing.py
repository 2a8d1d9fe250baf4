"""Where a network's text makes a submodule, and the text with a block there instead of it, or after it (LibCST).

The assignment `self.x = …` in `Net.__init__`, or an item of the `Sequential` or `ModuleList` that is written out there;
where no such single place is to be seen, a statement of its own at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from extract.migrate.insertion_points import Place, Site
from lemur_core.files.errors import UserError

#: Containers that are written out: whether the submodules are given as one list.
_CONTAINERS = {"Sequential": False, "ModuleList": True}


def with_site(net: cst.ClassDef, site: Site, made: list[str], nn: str, note: str) -> cst.ClassDef:
    """Class Net with a block in its place.

    Args:
        made: the modules of the site, as expressions.
        nn: what `torch.nn` is called in the file.
        note: a comment.

    Raises: UserError if there is no `__init__` in which it could be put.
    """
    function = _init_of(net)
    body = cst.ensure_type(function.body, cst.IndentedBlock)
    me = function.params.params[0].name.value if function.params.params else "self"
    lines = list(body.body)
    place = _assigned(lines, me, site.place)
    if place is not None:
        line, new = place
        lines[line] = _edited(cst.ensure_type(lines[line], cst.SimpleStatementLine), new, site, made, nn, note)
    else:
        target = f"{me}{site.place.steps}"
        value = _value(made, nn, target if site.how == "after" else None)
        end = len(lines)
        while end and _returns(lines[end - 1]):
            end -= 1
        lines[end:end] = [_commented(statement_of(f"{target} = {value}"), note)]
    return net.with_deep_changes(body, body=lines)


def _init_of(net: cst.ClassDef) -> cst.FunctionDef:
    found = [
        one
        for one in (net.body.body if isinstance(net.body, cst.IndentedBlock) else ())
        if isinstance(one, cst.FunctionDef) and one.name.value == "__init__"
    ]
    if not found or not isinstance(found[-1].body, cst.IndentedBlock):
        raise UserError("class Net has no __init__ of its own, over several lines, in which a block could be put")
    return found[-1]


def _returns(line: cst.BaseStatement) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[-1], cst.Return)


@dataclass(frozen=True, slots=True)
class _Where:
    """The value of an assignment in a line, or the argument of this number in it."""

    small: int
    argument: int | None


def _assigned(lines: Sequence[cst.BaseStatement], me: str, place: Place) -> tuple[int, _Where] | None:
    """Where `__init__` makes a submodule: the line, and what of it; None where no such single place is to be seen."""
    parts = place.path.split(".")
    if len(parts) > 2:
        return None
    found = [
        (number, small)
        for number, line in enumerate(lines)
        if isinstance(line, cst.SimpleStatementLine)
        for small, statement in enumerate(line.body)
        if _target(statement) == (me, parts[0])
    ]
    stores = sum(_stores(line, me, parts[0]) for line in lines)
    if len(found) != 1 or stores != 1:
        return None
    number, small = found[0]
    if len(parts) == 1:
        return number, _Where(small, None)
    value = _assigned_value(cst.ensure_type(lines[number], cst.SimpleStatementLine).body[small])
    kind, count = place.within
    items = _items(value, kind)
    if items is None or len(items) != count or not parts[1].isdecimal() or int(parts[1]) >= count:
        return None
    return number, _Where(small, int(parts[1]))


def _target(statement: cst.BaseSmallStatement) -> tuple[str, str] | None:
    """The object and the attribute of `self.x = …`."""
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
    elif isinstance(statement, cst.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return None
    if isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
        return target.value.value, target.attr.value
    return None


def _assigned_value(statement: cst.BaseSmallStatement) -> cst.BaseExpression:
    assert isinstance(statement, cst.Assign | cst.AnnAssign)
    assert statement.value is not None
    return statement.value


class _Stores(cst.CSTVisitor):
    """Counts where an attribute is assigned, or changed as a container is."""

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
    """The submodules of a container that is written out; None of anything else."""
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
    if not isinstance(first, cst.List) or any(isinstance(one, cst.StarredElement) for one in first.elements):
        return None
    return first.elements


def _edited(
    line: cst.SimpleStatementLine, where: _Where, site: Site, made: list[str], nn: str, note: str
) -> cst.SimpleStatementLine:
    """The line that makes a submodule, with the block in it."""
    value = _assigned_value(line.body[where.small])
    if where.argument is not None:
        items = _items(value, site.place.within[0])
        assert items is not None
        value = items[where.argument].value
    if site.how == "replace":
        new: cst.BaseExpression = cst.parse_expression(_value(made, nn, None))
    else:
        call = cst.ensure_type(cst.parse_expression(_value(made, nn, "_")), cst.Call)
        first = call.args[0].with_changes(value=value)
        new = call.with_changes(args=[first, *call.args[1:]])
    return _commented(cst.ensure_type(line.deep_replace(value, new), cst.SimpleStatementLine), note)


def _value(made: list[str], nn: str, before: str | None) -> str:
    """The modules of a site as one expression."""
    modules = [*([before] if before is not None else []), *made]
    return modules[0] if len(modules) == 1 else f"{nn}.Sequential({', '.join(modules)})"


def statement_of(text: str) -> cst.SimpleStatementLine:
    """A statement of one line."""
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)


def _commented(line: cst.SimpleStatementLine, note: str) -> cst.SimpleStatementLine:
    comment = cst.EmptyLine(comment=cst.Comment(f"# {note}"))
    return line.with_changes(leading_lines=[*line.leading_lines, comment])
