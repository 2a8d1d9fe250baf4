"""Text of the files of a migration into a project: the new module, its smoke test, and the package's `__init__.py`.

The new files are formatted as the project does; of `__init__.py` everything else stays, byte for byte.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from extract.migrate.codemod import USUAL
from extract.migrate.messages import SeenBlock
from extract.migrate.project.layout import ModuleLocation, Project, TestPlace, list_bound_names
from extract.migrate.source_block import read_header
from extract.minimize.cuts import last_line
from extract.model.categories import to_snake_case
from extract.specs.make import StatedCalls
from lemur_core.files.python import comment_lines
from lemur_core.source.facts import ASSIGN, IMPORT
from lemur_core.source.parse import parse_file
from lemur_core.source.text import Edit, Import, Lines, apply, import_section, normalise
from manifests.provenance import provenance_lines
from manifests.provenance.licenses import is_permissive
from manifests.records import Block


@dataclass(frozen=True, slots=True)
class ClosedFile:
    """A closed file without its header and its imports."""

    imports: tuple[Import, ...]
    future: bool  # whether it postpones the evaluation of annotations
    text: str  # its statements
    globals: frozenset[str]  # the names that it binds, except placeholders for annotations (`Name = object`)


def read_closed_file(code: str) -> ClosedFile:
    """Return the parts of a closed file."""
    text = normalise(code)
    facts = parse_file(text, builtins=True)
    imports: list[Import] = []
    edits: list[Edit] = []
    bound: set[str] = set()
    for statement in facts.statements:
        source = text[statement.start : statement.end]
        if not (statement.kind == ASSIGN and source.rstrip().endswith(b" = object")):
            bound |= {*statement.binds, *statement.late}
        if statement.kind == IMPORT and not statement.path:
            aliases = (alias for alias in statement.aliases if alias.module != "__future__")
            imports += [Import(alias.module, alias.name, alias.whole, alias.bound) for alias in aliases]
            blank = len(text[statement.end :]) - len(text[statement.end :].lstrip(b"\n"))
            edits.append(Edit(statement.start, statement.end + blank, ""))
    starts = [*(statement.start for statement in facts.statements), *(block.start for block in facts.blocks)]
    body = apply(text, min(starts, default=0), len(text), edits).strip("\n")
    return ClosedFile(tuple(imports), "annotations" in facts.future, body, frozenset(bound))


def list_used_names(expressions: Iterable[str]) -> list[str]:
    """Return the sorted names that expressions use, except those that they bind themselves, e.g. in comprehensions."""
    used: set[str] = set()
    for text in expressions:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        used |= {node.id for node in names} - bound
    return sorted(used)


# --- the parts of the module ------------------------------------------------------------------------------------------


_INIT = "__init__.py"


@dataclass(frozen=True, slots=True)
class PackageExport:
    """The outcome for a package's `__init__.py`."""

    path: str  # path of the file; "" if the folder is not a package
    text: bytes | None  # its new text; None if it remains unchanged
    why: str  # what was done, or why nothing was done


def register(project: Project, location: ModuleLocation, name: str) -> PackageExport:
    """Add a class of a new module to the `__init__.py` of its folder, if most neighbors are imported there."""
    path = f"{location.folder}/{_INIT}".lstrip("/")
    if path not in project.trees:
        return PackageExport("", None, "the folder is not a package")
    tree, package = project.trees[path], project.name_module(path)
    modules = {item.module for item in project.defined if item.category}
    siblings = {module for module in modules if module.rpartition(".")[0] == package}
    imports = [
        (node, target)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (target := _resolve_target(node, package)) in siblings
    ]
    imported = {target for _, target in imports}
    # A package that imports only a few of its modules is not meant to export all of them.
    if len(imported) * 2 < len(siblings) or not imported:
        return PackageExport(path, None, f"{path} names {len(imported)} of {len(siblings)} modules of its folder")
    if location.module in imported:
        return PackageExport(path, None, f"{path} imports it already")
    if name in list_bound_names(tree):
        return PackageExport(path, None, f"{path} has another {name}")
    original = (project.source.root / path).read_bytes()
    lines, end = Lines(normalise(original)), b"\r\n" if b"\r\n" in original else b"\n"
    # Offsets refer to the normalized text, from which every byte must come back.
    if lines.text.replace(b"\n", end) not in (original, original + end):
        return PackageExport(path, None, f"{path} is not UTF-8 with one kind of line ends")
    before = [node for node, target in imports if target.lower() < location.module.lower()]
    at = lines.start(last_line(before[-1] if before else imports[-1][0]) + 1)
    exports = list(_list_export_edits(lines, tree, name))
    edits = [Edit(at, at, f"from .{location.module.rpartition('.')[2]} import {name}\n"), *exports]
    text = apply(lines.text, 0, len(lines.text), edits).encode().replace(b"\n", end)
    summary = f"imported in {path}{', and in its __all__' if exports else ''}, as most of its neighbours"
    return PackageExport(path, text if original.endswith(end) else text.removesuffix(end), summary)


def _resolve_target(node: ast.ImportFrom, package: str) -> str:
    """Return the full name of the module that an import of a package names."""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], node.module or ""]) if node.level else node.module or ""


def _list_export_edits(lines: Lines, tree: ast.Module, name: str) -> Iterator[Edit]:
    """Yield the edits that add a name to `__all__ = [...]`: in order if the names are sorted, otherwise at the end."""
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.List | ast.Tuple):
            continue
        elements = node.value.elts
        names = [item.value for item in elements if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        if ast.unparse(node.targets[0]) != "__all__" or not names or len(names) != len(elements):
            continue
        order = next((key for key in (str, str.lower) if names == sorted(names, key=key)), None)
        position = len(names) if order is None else sum(order(other) < order(name) for other in names)
        start, _ = lines.span(elements[0])
        # The project's own quotes, and a line for each name where the first has its own.
        quote = "'" if lines.text[start:].startswith(b"'") else '"'
        indent = lines.line(elements[0].lineno)[: elements[0].col_offset].decode()
        comma = ", " if indent.strip() else f",\n{indent}"
        new = f"{quote}{name}{quote}"
        if position < len(elements):
            at, text = lines.span(elements[position])[0], f"{new}{comma}"
        else:
            at, text = lines.span(elements[-1])[1], f"{comma}{new}"
        yield Edit(at, at, text)


_WIDTH = 118
_CODE = 80  # maximum length of a code line in a test
#: Lines of a closed file's header that are rewritten.
_REWRITTEN = re.compile(r"(?:Block|File|SWHID|Licence): ")


@dataclass(frozen=True, slots=True)
class SourceModule:
    """The block to move."""

    row: Block  # its row in the table, with `code_sha256` and `license` of the form to move
    code: str  # its closed file
    lean: bool  # whether that is the minimized form
    requires: tuple[str, ...]  # PEP 508 requirements of that form
    worked: StatedCalls  # its working calls

    @property
    def expressions(self) -> list[str]:
        """All arguments of its constructor and forward calls."""
        calls = [self.worked.init, self.worked.forward]
        return [text for call in calls if call is not None for text in (*call.args, *(call.kwargs or {}).values())]


# --- the module -------------------------------------------------------------------------------------------------------


def module_text(donated: SourceModule, file: ClosedFile) -> str:
    """Return the new module: header, imports, and the author's definitions."""
    lines = comment_lines(_header(donated))
    lines.append("")
    if file.future:
        lines += ["from __future__ import annotations", ""]
    lines += import_section(sorted(set(file.imports)))
    # The placeholders for annotations belong to the imports; two blank lines precede definitions.
    blank = 1 if file.text.startswith("# Named by annotations only.") else 2
    return "\n".join(lines).rstrip("\n") + "\n" * (blank + 1) + file.text + "\n"


def _header(donated: SourceModule) -> list[str]:
    row = donated.row
    head = [
        f"{row.name}, moved here from {row.source} by `lemur migrate`.",
        "",
        f"SPDX-License-Identifier: {row.license}",
        *_wrap(license_notice(donated)),
        "",
        *provenance_lines("module", row.name, row.model_dump()),
        "",
    ]
    return head + [line for line in read_header(donated.code)[1:] if line and not _REWRITTEN.match(line)]


def license_notice(donated: SourceModule) -> str:
    """Return the notice on redistribution under the block's license."""
    row = donated.row
    if is_permissive(row.license):
        return (
            f"The definitions below are the work of the authors of {row.source}, under {row.license}; they were changed"
            " as stated below. The copyright notices and the text of the license are those of that source: keep them"
            " with copies of this file."
        )
    return (
        f"NOT KNOWN TO BE PERMISSIVE: the definitions below are the work of the authors of {row.source}, under"
        f" {row.license}. This file was written at the user's request: redistribute it only if that license permits it."
    )


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


# --- the smoke test ---------------------------------------------------------------------------------------------------


def smoke_text(donated: SourceModule, file: ClosedFile, place: ModuleLocation, test: TestPlace, seen: SeenBlock) -> str:
    """Return the smoke test: construct with the working arguments, run forward and backward, check the shapes.

    Args: seen: what the block was seen to do in the copy of the project.
    """
    name = donated.row.name
    imports = {USUAL["torch"]}
    own = {name}
    for used in list_used_names(donated.expressions):
        if used in USUAL:  # same meaning as in the argument search, even if the file binds these names
            imports.add(USUAL[used])
        elif used in file.globals:
            own.add(used)
    imports |= {Import(place.module, name, False, name) for name in own}
    if test.style == "unittest":
        imports.add(Import("unittest", "", False, "unittest"))
    body = _smoke_lines(donated, seen)
    if not seen.single:
        imports.add(Import("torch.utils._pytree", "tree_leaves", False, "tree_leaves"))
    lines = [
        f'"""Smoke test of {name}, moved here from {donated.row.source}, with arguments that worked there."""',
        "",
        *import_section(sorted(imports)),
        "",
        "",
    ]
    title = f"test_{to_snake_case(name)}_runs_forward" + "_and_backward" * seen.learns
    if test.style == "unittest":
        lines += [f"class Test{name}(unittest.TestCase):", f"    def {title}(self):"]
        lines += [f"        {line}".rstrip() for line in body]
        lines += ["", "", 'if __name__ == "__main__":', "    unittest.main()"]
    else:
        lines += [f"def {title}():", *(f"    {line}".rstrip() for line in body)]
    return "\n".join(lines) + "\n"


def _smoke_lines(donated: SourceModule, seen: SeenBlock) -> list[str]:
    """Return the body of the test; it runs backward if gradients reach a parameter."""
    init, forward = donated.worked.init, donated.worked.forward
    assert forward is not None
    lines = ["torch.manual_seed(0)", *_call_lines("block = ", donated.row.name, init.parts)]
    lines += [] if seen.trains else ["block.eval()"]
    if seen.single:
        lines += [*_call_lines("output = ", "block", forward.parts), f"assert output.shape == {seen.shapes[0]}"]
        total = "output.abs().sum()"
    else:
        lines += _call_lines("outputs = ", "block", forward.parts)
        lines.append("outputs = [item for item in tree_leaves(outputs) if isinstance(item, torch.Tensor)]")
        lines.append(f"assert [tuple(output.shape) for output in outputs] == {list(seen.shapes)}")
        total = "sum(output.abs().sum() for output in outputs if output.requires_grad)"
    if seen.learns:
        lines.append(f"{total}.backward()")
        lines.append("assert any(parameter.grad is not None for parameter in block.parameters())")
    return lines


def _call_lines(before: str, name: str, parts: Sequence[str]) -> list[str]:
    """Return a call, with one argument per line if it would be too long."""
    line = f"{before}{name}({', '.join(parts)})"
    return [line] if len(line) <= _CODE else [f"{before}{name}(", *(f"    {part}," for part in parts), ")"]


# --- the project's own formatter --------------------------------------------------------------------------------------

#: Formatter -> its arguments for text on the standard input; the path of the file follows them.
_FORMATTERS = {
    "isort": ("-", "--quiet", "--filename"),
    "black": ("-", "--quiet", "--stdin-filename"),
    "ruff": ("format", "-", "--quiet", "--stdin-filename"),
}
_CONFIGURATIONS = {"isort": (".isort.cfg",), "black": (), "ruff": ("ruff.toml", ".ruff.toml")}
_FORMAT_SECONDS = 60.0


def format_files(root: Path, files: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Format new files with the formatters that a project configures, if they are installed.

    Args: files: path below the project -> text.
    Returns: the new texts, and a note for the user; "" if there is no such formatter.
    """
    texts, programs = dict(files), find_formatters(root)
    for name, program in programs.items():
        for path in files:
            command = [program, *_FORMATTERS[name], path]
            try:
                done = subprocess.run(
                    command,
                    input=texts[path].encode(),
                    capture_output=True,
                    cwd=root,
                    timeout=_FORMAT_SECONDS,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError):
                # A wrong configuration or version: its users see its message when they run it.
                note = f"format    {name}, which the project configures, failed on {path}: left as it was"
                return dict(files), note
            texts[path] = done.stdout.decode()
    return texts, f"format    {' and '.join(programs)}, as the project configures" if programs else ""


def find_formatters(root: Path) -> dict[str, str]:
    """Return the installed formatters that a project configures in its root folder: name -> program, in order.

    Ruff is often configured as a linter alone, so Black takes precedence over it.
    """
    try:
        tools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError):
        tools = {}
    named = [
        name
        for name, files in _CONFIGURATIONS.items()
        if name in tools or any((root / file).is_file() for file in files)
    ]
    chosen = [name for name in named if name != "ruff" or "black" not in named]
    # The programs of this environment need not be on the path.
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    return {name: program for name in chosen if (program := shutil.which(name, path=folders)) is not None}
