"""Register a new module in `__init__.py` (imports and `__all__`) if its neighbors are registered there.

Everything else in the file is left unchanged, byte for byte (LibCST).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from extract.migrate.project.layout import ModuleLocation, Project, list_bound_names

_INIT = "__init__.py"


@dataclass(frozen=True, slots=True)
class PackageExport:
    """The outcome for a package's `__init__.py`.

    Attributes:
        path: path of the file; "" if the folder is not a package.
        text: its new text; None if it remains unchanged.
        why: what was done, or why nothing was done.
        by_star: whether the new module is imported with a star, as its neighbors are.
    """

    path: str
    text: bytes | None
    why: str
    by_star: bool = False


def register(project: Project, location: ModuleLocation, name: str) -> PackageExport:
    """Add a class of a new module to the `__init__.py` of its folder, if most neighbors are imported there."""
    folder = location.folder
    path = f"{folder}/{_INIT}".lstrip("/")
    if path not in project.trees:
        return PackageExport("", None, "the folder is not a package")
    original = (project.source.root / path).read_bytes()
    module = cst.parse_module(original)
    package = project.name_module(path)
    modules = {item.module for item in project.defined if item.category}
    siblings = {module for module in modules if module.rpartition(".")[0] == package}
    imports = _list_neighbors(module, package, siblings)
    imported = {target for _, _, target in imports}
    # A package that imports only a few of its modules is not meant to export all of them.
    if len(imported) * 2 < len(siblings) or not imported:
        return PackageExport(path, None, f"{path} names {len(imported)} of {len(siblings)} modules of its folder")
    if location.module in imported:
        return PackageExport(path, None, f"{path} imports it already")
    if name in list_bound_names(project.trees[path]):
        return PackageExport(path, None, f"{path} has another {name}")
    by_star = sum(isinstance(node.names, cst.ImportStar) for _, node, _ in imports) * 2 > len(imports)
    relative = sum(bool(node.relative) for _, node, _ in imports) * 2 >= len(imports)
    stem = location.module.rpartition(".")[2]
    line = f"from {'.' + stem if relative else location.module} import {'*' if by_star else name}\n"
    body = list(module.body)
    position = _find_position(imports, location.module)
    statement = cst.parse_statement(line, config=module.config_for_parsing)
    assert isinstance(statement, cst.SimpleStatementLine)
    body.insert(position, statement.with_changes(trailing_whitespace=_line_end(module, imports)))
    names = [() if isinstance(node.names, cst.ImportStar) else node.names for _, node, _ in imports]
    exported = {alias.evaluated_name for aliases in names for alias in aliases}
    in_all = False
    for index, item in enumerate(body):
        listed = _read_exports(item)
        if listed is not None and (exported & set(listed) or (by_star and listed)):
            body[index] = _add_export(item, name)
            in_all = True
    text = module.with_changes(body=body).bytes
    summary = f"imported in {path}{', and in its __all__' if in_all else ''}, as most of its neighbours"
    return PackageExport(path, text, summary, by_star)


def _list_neighbors(module: cst.Module, package: str, siblings: set[str]) -> list[tuple[int, cst.ImportFrom, str]]:
    """Return the top-level imports from modules of the same folder: index of the statement, import, module."""
    imports = []
    for index, item in enumerate(module.body):
        if isinstance(item, cst.SimpleStatementLine) and len(item.body) == 1:
            node = item.body[0]
            if isinstance(node, cst.ImportFrom) and node.module is not None:
                target = _resolve_target(node, package)
                if target in siblings:
                    imports.append((index, node, target))
    return imports


def _resolve_target(node: cst.ImportFrom, package: str) -> str:
    dotted = cst.Module([]).code_for_node(node.module) if node.module is not None else ""
    if not node.relative:
        return dotted
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - len(node.relative) + 1], dotted])


def _find_position(imports: Sequence[tuple[int, cst.ImportFrom, str]], module: str) -> int:
    """Return the position for the import: in order if the neighbors are sorted, otherwise after the last of them."""
    targets = [target for _, _, target in imports]
    if targets == sorted(targets, key=str.lower) and len(set(targets)) > 1:
        before = [number for number, _, target in imports if target.lower() < module.lower()]
        if before:
            return before[-1] + 1
    return imports[-1][0] + 1


def _line_end(module: cst.Module, imports: Sequence[tuple[int, cst.ImportFrom, str]]) -> cst.TrailingWhitespace:
    """Return the end of the new line, with the comment that most of the neighbors have (`# noqa: F401`)."""
    ends = []
    for number, _, _ in imports:
        item = module.body[number]
        assert isinstance(item, cst.SimpleStatementLine)
        ends.append(item.trailing_whitespace)
    comments = Counter(end.comment.value if end.comment is not None else "" for end in ends)
    common, times = comments.most_common(1)[0]
    if not common or times * 2 <= len(ends):
        return cst.TrailingWhitespace()
    return next(end for end in ends if end.comment is not None and end.comment.value == common)


def _read_exports(item: cst.BaseStatement | cst.SimpleStatementLine) -> list[str] | None:
    """Return the names of `__all__ = [...]`; None for any other statement."""
    value = _find_list(item)
    if value is None:
        return None
    names = []
    for element in value.elements:
        if not isinstance(element.value, cst.SimpleString) or not isinstance(element.value.evaluated_value, str):
            return None
        names.append(element.value.evaluated_value)
    return names


def _find_list(item: cst.BaseStatement | cst.SimpleStatementLine) -> cst.List | cst.Tuple | None:
    if isinstance(item, cst.SimpleStatementLine) and len(item.body) == 1:
        node = item.body[0]
        if isinstance(node, cst.Assign) and len(node.targets) == 1:
            target, value = node.targets[0].target, node.value
            if isinstance(target, cst.Name) and target.value == "__all__" and isinstance(value, cst.List | cst.Tuple):
                return value
    return None


def _add_export(item: cst.BaseStatement | cst.SimpleStatementLine, name: str) -> cst.SimpleStatementLine:
    """Add a name to `__all__`, formatted like the others: in order if they are sorted, otherwise at the end."""
    value = _find_list(item)
    assert value is not None
    assert isinstance(item, cst.SimpleStatementLine)
    elements = list(value.elements)
    names = _read_exports(item) or []
    position = len(names)
    for order in (str, str.lower):
        if names == sorted(names, key=order):
            position = sum(order(other) < order(name) for other in names)
            break
    # The project's own quotes, so that its formatter has nothing to change.
    first = elements[0].value if elements else None
    quote = first.quote if isinstance(first, cst.SimpleString) else '"'
    new = cst.Element(cst.SimpleString(f"{quote}{name}{quote}"))
    if position < len(elements):
        elements.insert(position, new.with_changes(comma=_separator(value)))
    elif elements:
        last = elements[-1]
        elements[-1] = last.with_changes(comma=_separator(value))
        elements.append(new.with_changes(comma=last.comma))
    else:
        elements.append(new)
    return item.with_deep_changes(value, elements=elements)


def _separator(value: cst.List | cst.Tuple) -> cst.Comma:
    """Return the separator between two names."""
    for element in value.elements[:-1]:
        if isinstance(element.comma, cst.Comma):
            return element.comma.with_changes(whitespace_after=_strip_comments(element.comma.whitespace_after))
    opening = value.lbracket.whitespace_after if isinstance(value, cst.List) else None
    if isinstance(opening, cst.ParenthesizedWhitespace) and len(value.elements) == 1:
        return cst.Comma(whitespace_after=_strip_comments(opening))
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _strip_comments(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """Return the whitespace without comments and empty lines."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    first = space.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return space.with_changes(first_line=first, empty_lines=())
