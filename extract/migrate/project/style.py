"""Detect a project's import style, and write imports in it."""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from extract.migrate.project.layout import Project
from lemur_core.source.imports import Import

_WIDTH = 88  # maximum length of an import line, as in the usual formatters


@dataclass(frozen=True, slots=True)
class ImportStyle:
    """The style of imports.

    Attributes:
        relative: use relative imports for the project's own package.
        single: one name per line.
        mixed: sort `import a` and `from b import c` together by module; else the former come first.
        grouped: blank lines between the standard library, other packages, and the project's own.
        forms: (thing, bound name) -> the most common import of it in the project.
    """

    relative: bool
    single: bool
    mixed: bool
    grouped: bool
    forms: Mapping[tuple[str, str], Import] = field(default_factory=dict)


def read_style(project: Project, folder: str) -> ImportStyle:
    """Detect the style of the files in a folder; what they leave open is decided by all files of the project."""
    near = [tree for path, tree in project.trees.items() if path.rpartition("/")[0] == folder]
    counts = [_Votes(project.packages), _Votes(project.packages)]
    for votes, trees in zip(counts, (near, project.trees.values()), strict=True):
        for tree in trees:
            votes.read(tree)
    forms: dict[tuple[str, str], Import] = {}
    for votes in counts[::-1]:
        forms |= {key: counted.most_common(1)[0][0] for key, counted in votes.forms.items()}
    relative, single, mixed, grouped = (
        next((vote for votes in counts if (vote := votes.majority(name)) is not None), default)
        for name, default in (("relative", False), ("single", False), ("mixed", False), ("grouped", True))
    )
    return ImportStyle(relative, single, mixed, grouped, forms)


class _Votes:
    """Counts of the styles used by files."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages
        self.votes: dict[str, Counter[bool]] = {}
        self.forms: dict[tuple[str, str], Counter[Import]] = {}

    def majority(self, name: str) -> bool | None:
        """Return the majority vote; None for a tie."""
        counts = self.votes.get(name, Counter())
        return None if counts[True] == counts[False] else counts[True] > counts[False]

    def vote(self, name: str, value: bool, weight: int = 1) -> None:
        """Add a vote."""
        self.votes.setdefault(name, Counter())[value] += weight

    def read(self, tree: ast.Module) -> None:
        """Count the votes of one file."""
        head = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        froms = [node for node in head if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
        for node in froms:
            if node.level or (node.module or "").partition(".")[0] in self.packages:
                self.vote("relative", node.level > 0)
        several = sum(len(node.names) > 1 for node in froms)
        repeated = sum(number > 1 for number in Counter((node.level, node.module) for node in froms).values())
        if several or repeated:
            self.vote("single", repeated > several)
        for item in head:
            for one in _imports(item):
                self.forms.setdefault((one.thing, one.bound), Counter())[one] += 1
        self._orders(head)

    def _orders(self, head: list[ast.Import | ast.ImportFrom]) -> None:
        for one, other in pairwise(head):
            if one.end_lineno is None or _group(one, self.packages) < 0 or _group(other, self.packages) < 0:
                continue
            apart = other.lineno - one.end_lineno > 1
            if _group(one, self.packages) != _group(other, self.packages):
                self.vote("grouped", apart)
            elif not apart and isinstance(one, ast.ImportFrom) and isinstance(other, ast.Import):
                self.vote("mixed", _module(one) <= _module(other))
            elif not apart and isinstance(other, ast.ImportFrom) and _module(one) > _module(other):
                self.vote("mixed", False)


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, "", bool(alias.asname), alias.asname or alias.name.partition(".")[0])
    elif not node.level and node.module:
        yield from (Import(node.module, alias.name, False, alias.asname or alias.name) for alias in node.names)


def _module(node: ast.Import | ast.ImportFrom) -> str:
    return node.names[0].name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")


def _group(node: ast.Import | ast.ImportFrom, packages: frozenset[str]) -> int:
    """Return 0 for the standard library, 1 for other packages, 2 for the project's own; -1 for `__future__`."""
    module = _module(node)
    return -1 if module == "__future__" else import_group(module, packages)


def import_group(module: str, packages: frozenset[str]) -> int:
    """Return 0 for the standard library, 1 for other packages, 2 for the project's own."""
    top = module.partition(".")[0]
    return 2 if not top or top in packages else 0 if top in sys.stdlib_module_names else 1


# --- writing ----------------------------------------------------------------------------------------------------------


def own_module(style: ImportStyle, target: str, importer: str) -> str:
    """Return the name of a project module for an import in another one: relative, or in full.

    Args: importer: dotted name of the importing module, which is not a package.
    """
    package = importer.split(".")[:-1]
    parts = target.split(".")
    common = 0
    while common < min(len(package), len(parts) - 1) and package[common] == parts[common]:
        common += 1
    if not style.relative or not common:
        return target
    return "." * (len(package) - common + 1) + ".".join(parts[common:])


def write_imports(imports: Iterable[Import], style: ImportStyle, packages: frozenset[str]) -> list[str]:
    """Return import lines in a project's style.

    Args: imports: imports of the project's own modules may be relative.
    """
    groups: tuple[list[tuple[tuple[object, ...], str]], ...] = ([], [], [])
    members: dict[str, set[str]] = {}
    for one in sorted({style.forms.get((one.thing, one.bound), one) for one in imports}):
        if one.name:
            text = one.name + (f" as {one.bound}" if one.bound != one.name else "")
            members.setdefault(one.package, set()).add(text)
        else:
            groups[import_group(one.package, packages)].append((_order(one.package, False, style), str(one)))
    for package, names in members.items():
        group = groups[import_group(package, packages)]
        for chosen in [[name] for name in sorted(names)] if style.single else [sorted(names, key=_name_order)]:
            group.append((_order(package, True, style), _from(package, chosen)))
    lines: list[str] = []
    for group in groups:
        if group and lines and style.grouped:
            lines.append("")
        lines += dict.fromkeys(line for _, line in sorted(group))
    return lines


def _order(package: str, is_from: bool, style: ImportStyle) -> tuple[object, ...]:
    dots = len(package) - len(package.lstrip("."))
    return (-dots, package.lower(), is_from) if style.mixed else (is_from, -dots, package.lower())


def _name_order(name: str) -> tuple[int, str]:
    """Sort key: constants, classes, then the rest, as in import sorters."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2, name)


def _from(package: str, names: list[str]) -> str:
    line = f"from {package} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return f"from {package} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
