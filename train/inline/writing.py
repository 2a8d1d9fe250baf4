"""The text of the module: imports brought together, then the parts' units with their names changed in place."""

import ast
import sys
from collections.abc import Iterator

from train.inline.mentions import Form
from train.inline.reading import File, Imported, Unit, fail
from train.inline.sharing import Sharing

_WIDTH = 120
_TAKEN = "and another part has that name"


class Writer:
    """Writes one module."""

    def __init__(self, files: list[File], sharing: Sharing, names: list[dict[str, str]]) -> None:
        self._files, self._sharing, self._names = files, sharing, names
        self._falls_back = [file.falls_back for file in files]
        self._hoisted = {
            (number, index)
            for number, file in enumerate(files)
            for index, unit in enumerate(file.units)
            if unit.imported is not None and not unit.late and self._is_pure(file, unit.imported)
        }
        self._head = {self._key(*place) for place in self._hoisted}

    def module(self, future: bool) -> str:
        """The whole text."""
        sections = ["from __future__ import annotations"] if future else []
        sections += _import_sections({(imported, name) for imported, name, _ in self._head})
        head = "\n\n".join(sections)
        bodies = [body for number in range(len(self._files)) if (body := self._part(number))]
        return "\n\n\n".join([*([head] if head else []), *bodies]) + "\n"

    def _key(self, number: int, index: int) -> tuple[Imported, str, str]:
        imported = self._files[number].units[index].imported
        assert imported is not None
        return imported, self._names[number][imported.bound], imported.identity

    def _is_pure(self, file: File, imported: Imported) -> bool:
        """Whether nothing else is ever bound to the import's name."""
        binding = [unit for unit in file.units if imported.bound in unit.binds]
        return all(unit.imported is not None and unit.imported.identity == imported.identity for unit in binding)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _part(self, number: int) -> str:
        file = self._files[number]
        header = [f"# {line}".rstrip() for text in file.part.header for line in text.split("\n")]
        pieces: list[str] = ["\n".join(header)] if header else []
        before: Unit | None = None
        for index, unit in enumerate(file.units):
            if (number, index) in self._hoisted or (number, index) in self._sharing.copies:
                continue
            text = self._unit(number, index, unit)
            if not text:
                continue
            if pieces:
                pieces.append("\n" * (1 + _blank_lines(before, unit)))
            pieces.append(text)
            before = unit
        return "".join(pieces)

    def _unit(self, number: int, index: int, unit: Unit) -> str:
        if unit.imported is not None:
            key = self._key(number, index)
            return "" if key in self._head else import_line(key[0], key[1])
        file, names = self._files[number], self._names[number]
        text, at, falls_back = bytearray(), unit.start, self._falls_back[number]
        for mention in sorted(unit.mentions, key=lambda m: m.start):
            new = names.get(mention.name, mention.name)
            if new == mention.name:
                continue
            if mention.name in falls_back:
                raise fail(file.part, mention.line, f"{mention.name} may be its own or the built-in one, {_TAKEN}")
            if mention.form is Form.FIXED:
                raise fail(file.part, mention.line, f"{mention.name} {mention.why}, {_TAKEN}")
            if mention.start < at:  # a place that was seen twice
                continue
            keep = mention.end if mention.form is Form.ALIAS else mention.start
            text += unit.text[at - unit.start : keep - unit.start]
            text += (f" as {new}" if mention.form is Form.ALIAS else new).encode()
            at = mention.end
        text += unit.text[at - unit.start :]
        return (unit.lead + bytes(text)).decode() + self._old_name(file, unit, names)

    def _old_name(self, file: File, unit: Unit, names: dict[str, str]) -> str:
        """A line that gives a renamed class its old `__name__`, where the part reads such names."""
        node = unit.nodes[0]
        if not isinstance(node, ast.ClassDef) or names[node.name] == node.name:
            return ""
        private = f"_{node.name.lstrip('_')}__"
        if any(word.startswith(private) for word in file.words):
            raise fail(
                file.part, node.lineno, f"{node.name} would be renamed, and a name that begins {private} is read"
            )
        if not file.reads_names:
            return ""
        last = max((d.end_lineno or 0 for d in node.decorator_list), default=0)
        defined = {name for other in file.units if other.imported is None for name in other.binds}
        if any(mention.line <= last and mention.name in defined for mention in unit.mentions):
            raise fail(file.part, node.lineno, f"{node.name} would be renamed, and its decorator may read its name")
        return f'\n\n\n{names[node.name]}.__name__ = "{node.name}"'


def _blank_lines(before: Unit | None, unit: Unit) -> int:
    """Blank lines between two units, or between the header and the first one."""
    if before is None:
        return 1
    return 2 if before.is_definition or unit.is_definition else min(unit.gap, 2)


# -- imports -----------------------------------------------------------------------------------------------------


def _import_sections(imports: set[tuple[Imported, str]]) -> Iterator[str]:
    """Import lines: the standard library, then the rest, each in order."""
    groups: tuple[list[str], list[str]] = ([], [])
    modules: set[tuple[str, str]] = set()
    members: dict[str, set[str]] = {}
    whole = {(i.identity, name) for i, name in imports if not i.member}
    for imported, name in imports:
        if not imported.member:
            modules.add((import_line(imported, name), imported.package))
        elif (imported.identity, name) not in whole:
            alias = imported.member + (f" as {name}" if name != imported.member else "")
            members.setdefault(imported.package, set()).add(alias)
    lines = sorted(modules) + [(_from_line(package, sorted(members[package])), package) for package in sorted(members)]
    for line, package in lines:
        groups[package.split(".")[0] not in sys.stdlib_module_names].append(line)
    return ("\n".join(group) for group in groups if group)


def _from_line(package: str, aliases: list[str]) -> str:
    line = f"from {package} import {', '.join(aliases)}"
    if len(line) <= _WIDTH:
        return line
    return f"from {package} import (\n" + "".join(f"    {alias},\n" for alias in aliases) + ")"


def import_line(imported: Imported, name: str) -> str:
    """The import that binds `name`."""
    package = imported.package
    if imported.member:
        return f"from {package} import {imported.member}" + (f" as {name}" if name != imported.member else "")
    if imported.whole:
        return f"import {package}" + (f" as {name}" if name != package else "")
    top, _, rest = package.partition(".")
    if name == top:
        return f"import {package}"
    # `import a.b` binds a: both get names of their own.
    return f"import {top} as {name}\nimport {package} as {name}_{rest.replace('.', '_')}"
