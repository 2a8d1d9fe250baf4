"""A host's text with a block in it: the author's text stays, only what a person would change is changed (LibCST).

The definitions of the block's closed file are put before class Net, under names that are free; what both files define
alike stands once. Imports that the host lacks follow its own. The site is edited where the host makes it, see
`extract.migrate.placing`.

Source: https://libcst.readthedocs.io/en/latest/codemods_tutorial.html
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from extract.migrate.insertion_points import Filling, Site
from extract.migrate.placing import statement_of, with_site
from lemur_core.files.errors import UserError
from lemur_core.source.bundle import Part, bundle
from lemur_core.source.facts import IMPORT
from lemur_core.source.imports import Import, import_section
from lemur_core.source.parse import parse_file
from lemur_core.source.text import Edit, Lines, apply, normalise

NET = "Net"
_HOST, _BLOCK, _SITE = "host", "block", "site"

#: Modules around a block that has another layout than its site, by view; ours.
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

#: What the names mean that arguments found by validation may use beside those of the block's file.
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
    """A host with a block in it: the whole text, and what the block's class is called there."""

    text: str
    name: str


def put_in(
    host: str,
    site: Site,
    name: str,
    code: str,
    header: Sequence[str] = (),
    top: Sequence[str] = (),
    note: str = "",
    stars: Mapping[str, Sequence[str]] | None = None,
) -> Written:
    """Put a block into a network's file.

    Args:
        host: its text.
        site: one that the block fits.
        name: of the block's class in `code`, a closed file.
        header: comment lines, without `# `, above the block's definitions.
        top: the same at the top of the file.
        note: a comment at the site.
        stars: the names that the host's star imports bind, by module.

    Raises: UserError if LibCST cannot read the host, `Net.__init__` is not there, or the two cannot share a file.
    """
    assert site.filling is not None
    module = _parsed(host)
    made = _expression(site.filling, name)
    joined = bundle(
        [
            Part(_HOST, NET, spelled_out(host, stars or {})),
            Part(_BLOCK, name, code, tuple(header)),
            _part_of_site(site.filling.view, made),
        ]
    )
    names = joined.globals[_BLOCK] | joined.globals[_SITE]
    number = _place_of_net(module)
    net = cst.ensure_type(module.body[number], cst.ClassDef)
    statements = list(module.body)
    statements[number] = with_site(net, site, _renamed(made, names), names["nn"], note)
    bodies = [joined.bodies[_BLOCK], *([joined.bodies[_SITE]] if site.filling.view else [])]
    definitions = [one for body in bodies for one in _statements(body, module)]
    number = max([number, *(place + 1 for body in bodies for place in _shared(body, module))])
    if number < len(statements):
        statements[number] = _apart(statements[number], () if definitions else header)
    wanted = [one for key in (_BLOCK, _SITE) for one in joined.imports[key]]
    statements[number:number] = definitions
    statements[:number] = _with_imports(statements[:number], wanted)
    if joined.future and not _has_future(module):
        statements.insert(_after_docstring(module.body), statement_of("from __future__ import annotations"))
    return Written(_with_header(module, top).with_changes(body=statements).code, joined.names[_BLOCK])


def spelled_out(host: str, stars: Mapping[str, Sequence[str]]) -> str:
    """The host's text with the names that star imports bind, and nothing else in it does, in their place."""
    text = normalise(host.encode())
    lines, tree = Lines(text), ast.parse(text)
    taken = {name for one in parse_file(text).statements for name in one.binds}
    edits = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module and node.module in stars:
            names = [name for name in stars[node.module] if name not in taken]
            taken |= set(names)
            edits.append(Edit(*lines.span(node), f"from {node.module} import {', '.join(names)}" if names else "pass"))
    return apply(text, 0, len(text), edits)


def _parsed(host: str) -> cst.Module:
    try:
        module = cst.parse_module(host)
    except (cst.ParserSyntaxError, UnicodeError, RecursionError) as error:
        raise UserError(f"the host is no Python that LibCST reads: {str(error).splitlines()[0]}") from error
    if module.code != host:
        raise UserError("LibCST does not give the host back as it was written; nothing was changed")
    return module


# -- the expression --------------------------------------------------------------------------------------------------


def _expression(filling: Filling, name: str) -> list[str]:
    """The modules of a site: the block, with the layers that change channels around it."""
    around = [filling.adapter(one) if one else "" for one in (filling.before, filling.after)]
    made = [text for text in (around[0], f"{name}({filling.call.text()})", around[1]) if text]
    return [f"{_NAMES[filling.view]}({', '.join(made)})"] if filling.view else made


def _part_of_site(view: str, made: Sequence[str]) -> Part:
    """What the expressions of a site need beside the block: what is imported, and the module around the block."""
    text = WRAPPERS.get(view, "\ndef _site_(): pass\n")
    header = ("By `lemur migrate`.",) if view else ()
    return Part(_SITE, _NAMES.get(view, "_site_"), _imports_for(made) + text, header)


def _names_in(texts: Iterable[str]) -> set[str]:
    return {node.id for text in texts for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}


def _imports_for(made: Sequence[str]) -> str:
    """Import statements for the usual names in the expressions, and for `nn`."""
    used = sorted({"nn", *(_names_in(made) & USUAL.keys())})
    return "\n".join(str(USUAL[name]) for name in used) + "\n"


def _renamed(texts: Sequence[str], names: dict[str, str]) -> list[str]:
    """The expressions in the names of the file."""
    return [_rename(text, names) for text in texts]


def _rename(text: str, names: dict[str, str]) -> str:
    found = [node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)]
    data = text.encode()
    for node in sorted(found, key=lambda node: -node.col_offset):
        if node.lineno == 1:
            new = names.get(node.id, node.id).encode()
            data = data[: node.col_offset] + new + data[node.end_col_offset :]
    return data.decode()


# -- definitions and imports -----------------------------------------------------------------------------------------

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Statements = Sequence[_Statement]


def _place_of_net(module: cst.Module) -> int:
    found = [n for n, one in enumerate(module.body) if isinstance(one, cst.ClassDef) and one.name.value == NET]
    if not found:
        raise UserError("the host has no class Net at its top level")
    return found[-1]


class _Indented(cst.CSTTransformer):
    """States the indentation that a module has by default, for use in another one."""

    def __init__(self, indent: str) -> None:
        self._indent = indent

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node if updated_node.indent is not None else updated_node.with_changes(indent=self._indent)


def _statements(text: str, host: cst.Module) -> list[_Statement]:
    """The block's definitions, two blank lines above them."""
    parsed = cst.parse_module(text + "\n")
    if parsed.default_indent != host.default_indent:
        parsed = cst.ensure_type(parsed.visit(_Indented(parsed.default_indent)), cst.Module)
    found = list(parsed.body)
    if found:
        blank = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]
        found[0] = found[0].with_changes(leading_lines=[*blank, *parsed.header, *found[0].leading_lines])
    return found


def _apart(statement: _Statement, header: Sequence[str]) -> _Statement:
    """The statement that follows the definitions, with blank lines above it.

    Args: header: comment lines to put there, where all definitions are the host's already.
    """
    leading: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    if header:
        leading = [*_comments(header), cst.EmptyLine(indent=False), cst.EmptyLine(indent=False), *leading]
    elif leading and leading[0].comment is None:
        return statement
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False), cst.EmptyLine(indent=False), *leading])


def _comments(lines: Sequence[str]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(comment=cst.Comment(f"# {text}".rstrip())) for text in lines]


def _shared(body: str, module: cst.Module) -> Iterator[int]:
    """The numbers of the host's statements that define what the block's text needs and does not define itself."""
    facts = parse_file(body.encode(), builtins=True)
    own = {name for one in facts.statements for name in (*one.binds, *one.late)}
    read = {use.name for one in facts.statements for use in one.uses if use.local < 0} - own
    read |= {use.name for block in facts.blocks for use in block.uses} - own
    for number, statement in enumerate(module.body):
        text = module.code_for_node(statement)
        binds = {
            name for one in parse_file(normalise(text.encode())).statements if one.kind != IMPORT for name in one.binds
        }
        if binds & read:
            yield number


def _is_import(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(one, cst.Import | cst.ImportFrom) for one in statement.body
    )


def _with_imports(above: _Statements, wanted: Sequence[Import]) -> list[_Statement]:
    """The statements above the definitions, with what is not imported there: the standard library first, if it is."""
    text = cst.Module([one for one in above if _is_import(one)]).code
    there = {
        (Import(a.module, a.name, a.whole, a.bound).thing, a.bound)
        for one in parse_file(text.encode()).statements
        for a in one.aliases
    }
    missing = {one for one in wanted if (one.thing, one.bound) not in there}
    found = list(above)
    places = [(_import_place(above, standard=standard), standard) for standard in (False, True)]
    for number, standard in sorted(places, key=lambda place: (-place[0], place[1])):
        some = [one for one in missing if _is_standard(one.package) is standard]
        lines = import_section(sorted(some, key=lambda one: (bool(one.name), one)))
        new: list[_Statement] = [statement_of(line) for line in lines]
        if not new:
            continue
        if standard and number < len(above) and _is_import(above[number]) and not _is_future(above[number]):
            new[0] = new[0].with_changes(leading_lines=above[number].leading_lines)
            found[number] = above[number].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        found[number:number] = new
    return found


def _import_place(above: _Statements, *, standard: bool) -> int:
    """The number of the statement before which imports are put: after those of their kind, else after all or before."""
    imports = {number: _package(one) for number, one in enumerate(above) if _is_import(one) and not _is_future(one)}
    same = [number for number, package in imports.items() if _is_standard(package) is standard]
    if same:
        return same[-1] + 1
    if imports:
        return min(imports) if standard else max(imports) + 1
    return max((number + 1 for number, one in enumerate(above) if _is_future(one)), default=_after_docstring(above))


def _package(statement: cst.BaseStatement) -> str:
    """The package that an import statement names first."""
    facts = parse_file(cst.Module([cst.ensure_type(statement, cst.SimpleStatementLine)]).code.encode())
    return "__future__" if facts.future else facts.statements[0].aliases[0].module


def _is_standard(package: str) -> bool:
    return package.partition(".")[0] in sys.stdlib_module_names


def _is_future(statement: cst.BaseStatement) -> bool:
    return _is_import(statement) and _package(statement) == "__future__"


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


def _with_header(module: cst.Module, lines: Sequence[str]) -> cst.Module:
    """The module with comment lines at its top, below what has to be there: the interpreter's line, the encoding."""
    kept = 0
    for number, line in enumerate(module.header[:2]):
        said = line.comment.value if line.comment is not None else ""
        if (number == 0 and said.startswith("#!")) or "coding" in said:
            kept = number + 1
    new = [*_comments(lines), *([cst.EmptyLine(indent=False)] if lines else [])]
    return module.with_changes(header=[*module.header[:kept], *new, *module.header[kept:]])
