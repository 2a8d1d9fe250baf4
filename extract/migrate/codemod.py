"""Insert a block into the text of a target network with minimal edits; every other byte stays the author's.

The definitions of the block's closed file are placed before class Net under unused names; a definition that both files
share appears once. Missing imports are added after the existing ones. The insertion point is edited where the network
constructs it, see `extract.migrate.placing`.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from extract.migrate.insertion_points import BlockFit, InsertionPoint
from extract.migrate.placing import edits_in_net
from extract.minimize.cuts import first_line, last_line
from lemur_core.files.errors import UserError
from lemur_core.source.bundle import Part, bundle
from lemur_core.source.facts import IMPORT, FileFacts
from lemur_core.source.imports import Import, import_section
from lemur_core.source.parse import parse_file
from lemur_core.source.text import Edit, Lines, apply, normalise, parse_code

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
    text = target_network.replace("\r\n", "\n").replace("\r", "\n")
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
        (_find_header_offset(lines), "".join(f"# {line}".rstrip() + "\n" for line in top) + "\n" * bool(top)),
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
