"""Insert a block into the text of a target network with minimal edits, keeping the author's formatting (LibCST).

The definitions of the block's closed file are placed before class Net under unused names; a definition that both files
share appears once. Missing imports are added after the existing ones. The insertion point is edited where the network
constructs it, see `extract.migrate.placing`.

Source: https://libcst.readthedocs.io/en/latest/codemods_tutorial.html
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from extract.migrate.insertion_points import BlockFit, InsertionPoint
from extract.migrate.placing import insert_at, parse_line
from lemur_core.files.errors import UserError
from lemur_core.source.bundle import Part, bundle
from lemur_core.source.facts import IMPORT
from lemur_core.source.imports import Import, import_section
from lemur_core.source.parse import parse_file
from lemur_core.source.text import Edit, Lines, apply, normalise

NET = "Net"
_TARGET, _BLOCK, _POINT = "host", "block", "site"

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

    Raises: UserError if LibCST cannot parse the network, `Net.__init__` is missing, or the two cannot share a file.
    """
    assert point.filling is not None
    module = _parse(target_network)
    expressions = _expression(point.filling, name)
    joined = bundle(
        [
            Part(_TARGET, NET, expand_stars(target_network, stars or {})),
            Part(_BLOCK, name, code, tuple(header)),
            _point_part(point.filling.view, expressions),
        ]
    )
    names = joined.globals[_BLOCK] | joined.globals[_POINT]
    number = _net_index(module)
    net = cst.ensure_type(module.body[number], cst.ClassDef)
    statements = list(module.body)
    statements[number] = insert_at(net, point, _rename_all(expressions, names), names["nn"], note)
    bodies = [joined.bodies[_BLOCK], *([joined.bodies[_POINT]] if point.filling.view else [])]
    definitions = [definition for body in bodies for definition in _statements(body, module)]
    # A name that both files share must be bound before the definitions that read it.
    number = max([number, *(index + 1 for body in bodies for index in _find_shared(body, module))])
    if number < len(statements):
        statements[number] = _set_apart(statements[number], () if definitions else header)
    wanted = [item for key in (_BLOCK, _POINT) for item in joined.imports[key]]
    # Definitions first: adding imports above them would shift `number`.
    statements[number:number] = definitions
    statements[:number] = _add_imports(statements[:number], wanted)
    if joined.future and not _has_future(module):
        statements.insert(_after_docstring(module.body), parse_line("from __future__ import annotations"))
    return Written(_add_header(module, top).with_changes(body=statements).code, joined.names[_BLOCK])


def expand_stars(target_network: str, stars: Mapping[str, Sequence[str]]) -> str:
    """Replace star imports with explicit ones, leaving out names that the file binds otherwise."""
    text = normalise(target_network.encode())
    lines, tree = Lines(text), ast.parse(text)
    taken = {name for statement in parse_file(text).statements for name in statement.binds}
    edits = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module and node.module in stars:
            names = [name for name in stars[node.module] if name not in taken]
            taken |= set(names)
            edits.append(Edit(*lines.span(node), f"from {node.module} import {', '.join(names)}" if names else "pass"))
    return apply(text, 0, len(text), edits)


def _parse(target_network: str) -> cst.Module:
    try:
        module = cst.parse_module(target_network)
    except (cst.ParserSyntaxError, UnicodeError, RecursionError) as error:
        raise UserError(f"LibCST cannot parse the network's file: {str(error).splitlines()[0]}") from error
    # LibCST normalizes some line endings, and an edit must not change any unrelated byte.
    if module.code != target_network:
        raise UserError("LibCST does not reproduce the network's file exactly; nothing was changed")
    return module


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


def _rename_all(texts: Sequence[str], names: dict[str, str]) -> list[str]:
    """Rename the globals in the expressions to their names in the file."""
    return [_rename(text, names) for text in texts]


def _rename(text: str, names: dict[str, str]) -> str:
    nodes = [node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)]
    data = text.encode()
    # From the right, so that the offsets to the left stay valid.
    for node in sorted(nodes, key=lambda node: -node.col_offset):
        # Offsets count from the start of a line: only the first line begins where the text does.
        if node.lineno == 1:
            new = names.get(node.id, node.id).encode()
            data = data[: node.col_offset] + new + data[node.end_col_offset :]
    return data.decode()


# -- definitions and imports -----------------------------------------------------------------------------------------

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Statements = Sequence[_Statement]


def _net_index(module: cst.Module) -> int:
    indices = [n for n, item in enumerate(module.body) if isinstance(item, cst.ClassDef) and item.name.value == NET]
    if not indices:
        raise UserError("the network's file has no class Net at its top level")
    # The last definition of a name is the one that counts.
    return indices[-1]


class _Indented(cst.CSTTransformer):
    """Transformer that makes a module's default indentation explicit, for use in another module."""

    def __init__(self, indent: str) -> None:
        self._indent = indent

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node if updated_node.indent is not None else updated_node.with_changes(indent=self._indent)


def _statements(text: str, target_network: cst.Module) -> list[_Statement]:
    """Return the block's definitions with two blank lines above them."""
    parsed = cst.parse_module(text + "\n")
    if parsed.default_indent != target_network.default_indent:
        parsed = cst.ensure_type(parsed.visit(_Indented(parsed.default_indent)), cst.Module)
    statements = list(parsed.body)
    if statements:
        blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        statements[0] = statements[0].with_changes(leading_lines=[*blank, *parsed.header, *statements[0].leading_lines])
    return statements


def _set_apart(statement: _Statement, header: Sequence[str]) -> _Statement:
    """Return the statement that follows the definitions, with blank lines above it.

    Args: header: comment lines to put there if the network already has all definitions.
    """
    leading: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    if header:
        leading = [*_comments(header), cst.EmptyLine(indent=False), cst.EmptyLine(indent=False), *leading]
    elif leading and leading[0].comment is None:
        return statement
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False), cst.EmptyLine(indent=False), *leading])


def _comments(lines: Sequence[str]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(comment=cst.Comment(f"# {text}".rstrip())) for text in lines]


def _find_shared(body: str, module: cst.Module) -> Iterator[int]:
    """Yield the indices of the network's statements that define names which the block's text needs."""
    facts = parse_file(body.encode(), builtins=True)
    own = {name for statement in facts.statements for name in (*statement.binds, *statement.late)}
    read = {use.name for statement in facts.statements for use in statement.uses if use.local < 0} - own
    read |= {use.name for block in facts.blocks for use in block.uses} - own
    for number, statement in enumerate(module.body):
        text = module.code_for_node(statement)
        definitions = [item for item in parse_file(normalise(text.encode())).statements if item.kind != IMPORT]
        if any(not read.isdisjoint(item.binds) for item in definitions):
            yield number


def _is_import(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(part, cst.Import | cst.ImportFrom) for part in statement.body
    )


def _add_imports(above: _Statements, wanted: Sequence[Import]) -> list[_Statement]:
    """Add the missing imports to the statements above the definitions, after their last import."""
    text = cst.Module([statement for statement in above if _is_import(statement)]).code
    imported = {
        (Import(a.module, a.name, a.whole, a.bound).thing, a.bound)
        for statement in parse_file(text.encode()).statements
        for a in statement.aliases
    }
    missing = {item for item in wanted if (item.thing, item.bound) not in imported}
    lines = import_section(sorted(missing, key=lambda item: (bool(item.name), item)))
    number = max((index + 1 for index, item in enumerate(above) if _is_import(item)), default=_after_docstring(above))
    return [*above[:number], *(parse_line(line) for line in lines if line), *above[number:]]


def _after_docstring(body: _Statements) -> int:
    first = body[0] if body else None
    is_docstring = (
        isinstance(first, cst.SimpleStatementLine)
        and isinstance(first.body[0], cst.Expr)
        and isinstance(first.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )
    return int(is_docstring)


def _has_future(module: cst.Module) -> bool:
    facts = parse_file(normalise(module.code.encode()))
    return "annotations" in facts.future


def _add_header(module: cst.Module, lines: Sequence[str]) -> cst.Module:
    """Add comment lines at the top of the module, below a shebang and an encoding declaration."""
    start = 0
    # Python honors these two only on the first two lines.
    for number, line in enumerate(module.header[:2]):
        comment = line.comment.value if line.comment is not None else ""
        if (number == 0 and comment.startswith("#!")) or "coding" in comment:
            start = number + 1
    new = [*_comments(lines), *([cst.EmptyLine(indent=False)] if lines else [])]
    return module.with_changes(header=[*module.header[:start], *new, *module.header[start:]])
