"""Further sources: packages of which the files of a source import all names, `from fastai.basics import *`.

Such an import tells no name, so its package is read like a source, and what a block needs of it is copied. No class of
it is a block by itself.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from extract.resolve.distributions import find_requirement, is_required
from extract.resolve.modules import RUNTIME
from extract.sources import PackageSource, open_source
from lemur_core.files.errors import UserError

_STAR = re.compile(rb"^[ \t]*from[ \t]+(\w+)[\w.]*[ \t]+import[ \t]*\(?[ \t]*\*", re.MULTILINE)
_MOST = 4  # packages; they import all names of others in turn


def open_starred(sources: Sequence[PackageSource]) -> tuple[list[PackageSource], list[str]]:
    """Open the packages of which these sources import all names, and those of which these do, if they require them.

    Returns: the further sources, none of whose files is in scope; and for each a sentence on why it was opened, or why
        it cannot be.
    """
    opened: dict[str, PackageSource] = {}
    notes = []
    waiting, tried = list(sources), set[str]()
    while waiting and len(opened) < _MOST:
        source = waiting.pop(0)
        for package, path in _list_starred(source).items():
            distribution = find_requirement(package, source.requires)
            known = {other.name.partition("@")[0] for other in (*sources, *opened.values())}
            if distribution in known | tried or not re.fullmatch(r"[\w.-]+", distribution) or len(opened) == _MOST:
                continue
            tried.add(distribution)
            why = f"{source.name} {path} imports all names of {package}"
            try:
                further = open_source(distribution)
            except UserError as error:
                notes.append(f"{why}, which cannot be read: {error}")
                continue
            opened[further.name] = replace(further, exclude=("*",), priority=sys.maxsize)
            notes.append(f"{why}, so {further.name} is read, too")
            waiting.append(further)
    return list(opened.values()), notes


def _list_starred(source: PackageSource) -> Mapping[str, str]:
    """Return the required packages outside the runtime of which files in scope import all names, with the first."""
    own = {part for file in source.files for part in file.path.removesuffix(".py").split("/")}
    starred: dict[str, str] = {}
    for file in source.files:
        if source.in_scope(file.path):
            for package in _STAR.findall(source.read_text(file)):
                starred.setdefault(package.decode(), file.path)
    without = own.union(RUNTIME, sys.stdlib_module_names)
    return {
        package: path
        for package, path in starred.items()
        if package not in without and is_required(source.requires, package)
    }
