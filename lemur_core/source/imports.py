"""Import statements and sections as text."""

import sys
from collections.abc import Iterable
from typing import NamedTuple

_WIDTH = 120


class Import(NamedTuple):
    """One import: `from package import name as bound`, or, with an empty name, `import package as bound`."""

    package: str
    name: str
    whole: bool  # `import a.b as c` binds a.b itself; `import a.b` binds a
    bound: str

    @property
    def thing(self) -> str:
        """The imported object: the same for `import torch.nn as nn` and `from torch import nn`."""
        if self.name:
            return f"{self.package}.{self.name}"
        return self.package if self.whole else self.package.split(".")[0]

    def __str__(self) -> str:
        """Return the statement."""
        package, name, whole, bound = self
        if name:
            return f"from {package} import {name}" + (f" as {bound}" if bound != name else "")
        top = package.split(".")[0]
        if package == bound or (not whole and bound == top):
            return f"import {package}"
        if not whole and "." in package:  # bind the first part under another name, and load the submodule
            return f"import {top} as {bound}; import {package} as {bound}_{package.rpartition('.')[2]}"
        return f"import {package} as {bound}"


def import_section(imports: Iterable[Import]) -> list[str]:
    """Return import lines: the standard library, then the rest, each sorted (PEP 8).

    Args: imports: if two bind the same object to the same name, the first decides how it is written.
    Returns: lines without line endings; an empty line between the two groups.
    """
    modules: set[tuple[str, str]] = set()
    members: dict[str, set[str]] = {}
    bound: set[tuple[str, str]] = set()
    for item in imports:
        dotted = f"{item.package}.{item.name}" if item.name else item.package
        if item.name and (dotted, item.bound) not in bound:
            alias = f" as {item.bound}" if item.bound != item.name else ""
            members.setdefault(item.package, set()).add(item.name + alias)
        elif not item.name and (not item.whole or (dotted, item.bound) not in bound):
            modules.add((str(item), item.package))
        bound.add((dotted, item.bound))
    lines = sorted(modules) + [(_from_line(p, sorted(members[p])), p) for p in sorted(members)]
    groups: tuple[list[str], list[str]] = ([], [])
    for line, package in lines:
        groups[package.split(".")[0] not in sys.stdlib_module_names].append(line)
    return [*groups[0], *([""] if groups[0] and groups[1] else []), *groups[1]]


def _from_line(package: str, names: list[str]) -> str:
    line = f"from {package} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return f"from {package} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
