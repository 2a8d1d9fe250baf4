"""Insert a block into the text of a target network with minimal edits; every other byte stays the author's.

The definitions of the block's closed file are placed before class Net under unused names; a definition that both files
share appears once. Missing imports are added after the existing ones. The insertion point is edited where
`Net.__init__` constructs it: in the assignment `self.x = …`, or in an item of a `Sequential` or `ModuleList` that is
written out there. If there is no single such expression, a statement is added at the end of `__init__`.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from extract.migrate.insertion_points import BlockFit, InsertionPoint
from extract.migrate.messages import ObservedSubmodule
from extract.minimize.cuts import first_line, last_line
from lemur_core.files.errors import UserError
from lemur_core.files.python import comment_lines, decode_python
from lemur_core.source.bundle import Part, bundle
from lemur_core.source.facts import IMPORT, FileFacts
from lemur_core.source.parse import parse_file
from lemur_core.source.scopes import last_name
from lemur_core.source.text import Edit, Import, Lines, apply, import_section, normalise, parse_code

NET = "Net"
_TARGET, _BLOCK, _POINT = "host", "block", "site"
#: An encoding declaration on one of the first two lines, or a shebang.
_DECLARED = re.compile(rb"(?:#.*\n)?#.*coding.*\n|#!.*\n")
#: Indented comments after a statement, which belong to it.
_COMMENTS_INSIDE = re.compile(rb"(?:(?:[ \t]*\n)*[ \t]+#[^\n]*\n)*")

#: View -> source of the wrapper module (written by us) for a block whose layout differs from the insertion point's.
WRAPPERS = {
    "tokens": '''
class OnTokens(nn.Module):
    """Modules that take tokens, N x L x C, one after another on maps, N x C x H x W."""

    def __init__(self, *modules):
        super().__init__()
        self.inner = nn.Sequential(*modules)

    def forward(self, x):
        return self.inner(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])
''',
    "last": '''
class OnChannelsLast(nn.Module):
    """Modules that take maps with the channels last, N x H x W x C, one after another on maps, N x C x H x W."""

    def __init__(self, *modules):
        super().__init__()
        self.inner = nn.Sequential(*modules)

    def forward(self, x):
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
''',
}
_NAMES = {view: re.findall(r"class (\w+)", text)[0] for view, text in WRAPPERS.items()}

#: Names that working arguments may use in addition to those of the block's file -> their imports.
USUAL = {
    "torch": Import("torch", "", True, "torch"),
    "nn": Import("torch", "nn", True, "nn"),
    "F": Import("torch.nn", "functional", True, "F"),
    "np": Import("numpy", "", True, "np"),
    "numpy": Import("numpy", "", True, "numpy"),
    "math": Import("math", "", True, "math"),
    "functools": Import("functools", "", True, "functools"),
    "partial": Import("functools", "partial", True, "partial"),
    "types": Import("types", "", True, "types"),
    "OrderedDict": Import("collections", "OrderedDict", True, "OrderedDict"),
}


@dataclass(frozen=True, slots=True)
class Written:
    """The text of a network with an inserted block, and the name of the block's class in it."""

    text: str
    name: str


def insert_block(
    target_network: str,
    point: InsertionPoint,
    name: str,
    code: str,
    header: Sequence[str] = (),
    top: Sequence[str] = (),
    note: str = "",
    stars: Mapping[str, Sequence[str]] | None = None,
) -> Written:
    """Insert a block into a network's file.

    Args:
        target_network: its text.
        point: an insertion point that the block fits.
        name: name of the block's class in `code`, a closed file.
        header: comment lines, without `# `, above the block's definitions.
        top: comment lines at the top of the file.
        note: a comment at the insertion point.
        stars: module -> names bound by its star import in the target network.

    Returns: the new text, with `\\n` line ends; all other bytes of the target network are in it, in their order.
    Raises: UserError if `Net.__init__` is missing, or the two cannot share a file.
    """
    assert point.filling is not None
    text = decode_python(target_network)
    expressions = _expression(point.filling, name)
    joined = bundle(
        [
            Part(_TARGET, NET, expand_stars(text, stars or {})),
            Part(_BLOCK, name, code, tuple(header)),
            _point_part(point.filling.view, expressions),
        ]
    )
    names = joined.globals[_BLOCK] | joined.globals[_POINT]
    bodies = [body for body in (joined.bodies[_BLOCK], joined.bodies[_POINT] if point.filling.view else "") if body]
    lines = Lines(f"{text}\n".encode())
    tree, facts = parse_code(text), parse_file(lines.text)
    nets = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == NET]
    if not nets:
        raise UserError("the network's file has no class Net at its top level")
    net = nets[-1]  # the last definition of a name is the one that counts
    edits = edits_in_net(lines, net, point, [_rename(item, names) for item in expressions], names["nn"], note)
    at = _find_definitions_offset(lines, tree, net, facts, bodies)
    start, after_imports = _find_import_offsets(lines, tree, at)
    missing = _list_missing(facts, at, [item for key in (_BLOCK, _POINT) for item in joined.imports[key]])
    # The author's own blank lines suffice, if there are any.
    follows = lines.line(lines.number(at)).strip()
    inserted = [
        (_find_header_offset(lines), "".join(f"{line}\n" for line in comment_lines(top)) + "\n" * bool(top)),
        (start, "from __future__ import annotations\n" * (joined.future and "annotations" not in facts.future)),
        (after_imports, "".join(f"{line}\n" for line in missing)),
        (at, "".join(f"\n\n{body}\n" for body in bodies) + "\n\n" * bool(follows)),
    ]
    # One edit for each offset, since edits at the same one have no order.
    by_offset: dict[int, str] = {}
    for offset, more in inserted:
        by_offset[offset] = by_offset.get(offset, "") + more
    edits += [Edit(offset, offset, more) for offset, more in by_offset.items()]
    return Written(apply(lines.text, 0, len(lines.text) - 1, edits), joined.names[_BLOCK])


def expand_stars(target_network: str, stars: Mapping[str, Sequence[str]]) -> str:
    """Replace star imports with explicit ones, leaving out names that the file binds otherwise."""
    if not stars:
        return target_network
    text = normalise(target_network)
    lines, tree = Lines(text), ast.parse(text)
    taken = {name for statement in parse_file(text).statements for name in statement.binds}
    edits = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module and node.module in stars:
            names = [name for name in stars[node.module] if name not in taken]
            taken |= set(names)
            edits.append(Edit(*lines.span(node), f"from {node.module} import {', '.join(names)}" if names else "pass"))
    return apply(text, 0, len(text), edits)


# -- the expression --------------------------------------------------------------------------------------------------


def _expression(filling: BlockFit, name: str) -> list[str]:
    """Return the modules of an insertion point: the block, with adapters that change channels before and after it."""
    before, after = (filling.adapter(widths) if widths else "" for widths in (filling.before, filling.after))
    expressions = [text for text in (before, f"{name}({filling.call.text()})", after) if text]
    return [f"{_NAMES[filling.view]}({', '.join(expressions)})"] if filling.view else expressions


def _point_part(view: str, expressions: Sequence[str]) -> Part:
    """Return the imports and the wrapper module that the expressions at an insertion point need besides the block."""
    text = WRAPPERS.get(view, "\ndef _site_(): pass\n")
    header = ("By `lemur migrate`.",) if view else ()
    return Part(_POINT, _NAMES.get(view, "_site_"), _imports_for(expressions) + text, header)


def _names_in(texts: Iterable[str]) -> set[str]:
    return {node.id for text in texts for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}


def _imports_for(expressions: Sequence[str]) -> str:
    """Return import statements for the usual names in the expressions, and for `nn`."""
    used = sorted({"nn", *(_names_in(expressions) & USUAL.keys())})
    return "\n".join(str(USUAL[name]) for name in used) + "\n"


def _rename(text: str, names: Mapping[str, str]) -> str:
    """Rename the globals in an expression to their names in the file."""
    lines = Lines(text.encode())
    nodes = (node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name))
    edits = [Edit(*lines.span(node), names.get(node.id, node.id)) for node in nodes]
    return apply(lines.text, 0, len(lines.text), edits)


# -- definitions and imports -----------------------------------------------------------------------------------------


def _find_definitions_offset(
    lines: Lines, tree: ast.Module, net: ast.ClassDef, facts: FileFacts, bodies: Sequence[str]
) -> int:
    """Return the offset for the block's definitions: before class Net, and after the definitions that both share."""
    number = tree.body.index(net)
    read: set[str] = set()
    for body in bodies:
        own = parse_file(body.encode(), builtins=True)
        bound = {name for statement in own.statements for name in (*statement.binds, *statement.late)}
        uses = [use for statement in own.statements for use in statement.uses if use.local < 0]
        read |= {use.name for use in (*uses, *(use for block in own.blocks for use in block.uses))} - bound
    for statement in facts.statements:
        if statement.kind != IMPORT and not read.isdisjoint(statement.binds):
            number = max(number, sum(lines.start(node.lineno) < statement.end for node in tree.body))
    if not number:
        return lines.start(first_line(tree.body[0]))
    match = _COMMENTS_INSIDE.match(lines.text, lines.start(last_line(tree.body[number - 1]) + 1))
    assert match is not None  # it may be empty
    return match.end()


def _find_import_offsets(lines: Lines, tree: ast.Module, at: int) -> tuple[int, int]:
    """Return the offset for a future import, and that for other imports: after the last one above the definitions."""
    documented = ast.get_docstring(tree) is not None
    start = lines.start(last_line(tree.body[0]) + 1 if documented else first_line(tree.body[0]))
    imports = (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    ends = [end for node in imports if (end := lines.start(last_line(node) + 1)) <= at]
    return start, max(ends, default=start)


def _list_missing(facts: FileFacts, at: int, wanted: Iterable[Import]) -> Iterator[str]:
    """Yield the import lines that are missing above an offset."""
    imported = {
        (Import(a.module, a.name, a.whole, a.bound).thing, a.bound)
        for statement in facts.statements
        if statement.kind == IMPORT and not statement.path and statement.start < at
        for a in statement.aliases
    }
    missing = {item for item in wanted if (item.thing, item.bound) not in imported}
    yield from filter(None, import_section(sorted(missing, key=lambda item: (bool(item.name), item))))


def _find_header_offset(lines: Lines) -> int:
    """Return the offset below a shebang and an encoding declaration, which Python reads on the first two lines."""
    match = _DECLARED.match(lines.text)
    return match.end() if match is not None else 0


# --- class Net --------------------------------------------------------------------------------------------------------


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
    (note,) = comment_lines([note.replace("\n", " ")])
    function = _find_init(lines, net)
    body, parameters = function.body, [*function.args.posonlyargs, *function.args.args]
    me = parameters[0].arg if parameters else "self"
    value = _find_expression(function, me, point.place)
    if value is not None:
        start, end = lines.span(value)
        before = lines.text[start:end].decode() if point.how == "after" else None
        # A line may hold several statements; the comment stands above the first of them.
        line = next(item.lineno for item in body if last_line(item) >= value.lineno)
        comment = Edit(lines.start(line), lines.start(line), f"{_indent(lines, body[0])}{note}\n")
        return [comment, Edit(start, end, _combine(expressions, nn, before))]
    target = f"{me}{point.place.steps}"
    count = len(body)
    # A statement behind a `return` never runs.
    while count and isinstance(body[count - 1], ast.Return):
        count -= 1
    at = lines.start(last_line(body[count - 1]) + 1 if count else body[0].lineno)
    indent = _indent(lines, body[0])
    statement = f"{target} = {_combine(expressions, nn, target if point.how == 'after' else None)}"
    return [Edit(at, at, f"{indent}{note}\n{indent}{statement}\n")]


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
