"""Register a new module in `__init__.py` (import and `__all__`) if its neighbors are registered there.

Everything else in the file is left unchanged, byte for byte.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from extract.migrate.project.layout import ModuleLocation, Project, list_bound_names
from extract.minimize.cuts import last_line
from lemur_core.source.text import Edit, Lines, apply, normalise

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
