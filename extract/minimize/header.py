"""Header of a minimized file: its origin, the arguments it supports, and the cuts; also its requirements."""

import ast
import hashlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extract.arguments.messages import CallsToRun, CallTexts
from extract.emit.emit import Emitted
from extract.emit.heading import describe_changes, describe_files, wrap
from extract.minimize.stage import MinimizeResult
from extract.model.results import code_columns
from extract.resolve.distributions import find_requirement
from extract.resolve.modules import RUNTIME
from extract.resolve.requirements import list_imports
from lemur_core.files.markdown import plural
from manifests.provenance import header_lines
from manifests.provenance.licenses import combine_licenses

_LICENSE = "# Licence: "
_FURTHER = 2  # calls shown besides the first
_CALL = 120  # characters of a call
_NOT_SHORTER = "not shorter than the closed file"

_KINDS = {
    "definition": ("definition",),
    "class": ("body of a class", "bodies of classes"),
    "function": ("body of a function", "bodies of functions"),
    "method": ("method",),
    "overload": ("overload",),
    "entry": ("table with entries", "tables with entries"),
    "branch": ("function with branches", "functions with branches"),
    "text": ("docstring",),
}


@dataclass(frozen=True, slots=True)
class MinimizedFile:
    """A minimized file as it is written to disk."""

    code: str  # the whole file
    requires: tuple[str, ...]  # PEP 508 requirements apart from the standard library and the declared runtime
    license: str  # combined license of all files with its code


def write_header(leaned: MinimizeResult, emitted: Emitted, arguments: CallsToRun) -> MinimizedFile | str:
    """Return the minimized file with its header, or why it is not written: a longer file is not lean.

    Args:
        leaned: the minimized text, and the further arguments it was verified with.
        emitted: the closed file.
        arguments: known working arguments.
    """
    minimized = leaned.minimized
    assert minimized is not None
    licenses = dict(zip(emitted.files, emitted.licenses, strict=True))
    root = emitted.files[0]
    kept = {emitted.places[name] for name in minimized.names if name in emitted.places} - {root}
    further = [file for file in emitted.files if file in kept]
    license_ = combine_licenses(map(licenses.__getitem__, [root, *further]))
    head = [
        *_replace_license(emitted.code, license_),
        *describe_files(further, licenses),
        *describe_changes(_list_changes(emitted.changes, minimized.names)),
        *_describe_use(emitted.code, [arguments, *leaned.sets]),
        *_describe_cuts(minimized.cut),
    ]
    code = "\n".join([*head, "", minimized.text.strip(), ""])
    if code.count("\n") >= emitted.code.count("\n"):
        return _NOT_SHORTER
    requires = list_requirements(minimized.text, emitted.packages.values(), emitted.packages)
    return MinimizedFile(code, requires, license_)


def make_minimized_columns(minimized: MinimizedFile | str | None) -> dict[str, Any]:
    """Return the columns of a block that describe its minimized file, or the reason why it has none."""
    if not isinstance(minimized, MinimizedFile):
        return {"lean_error": minimized}
    columns = code_columns(minimized.code)
    return {
        "lean_code": columns["code"],
        "lean_sha256": columns["code_sha256"],
        "lean_lines": columns["n_lines"],
        "lean_requires": minimized.requires,
        "lean_license": minimized.license,
    }


def list_requirements(code: str, stated: Iterable[str], confirmed: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the requirements of a file, sorted: its imports outside of the standard library and the declared runtime.

    Args:
        stated: the requirements of the block, from which they are taken.
        confirmed: distributions by import name.
    """
    listed = tuple(stated)
    packages = {dotted.partition(".")[0] for dotted, _ in list_imports(ast.parse(code))}
    foreign = packages - {*sys.stdlib_module_names, *RUNTIME}
    return tuple(sorted({find_requirement(package, listed, confirmed) for package in foreign}))


def _replace_license(full: str, license_: str) -> Iterator[str]:
    """Yield the lines of a closed file's header that its minimized form has too, up to the license."""
    for line in header_lines(full):
        if line.startswith(_LICENSE):
            yield f"{_LICENSE}{license_}"
            return
        yield line


def _list_changes(changes: Mapping[str, Collection[str]], names: Collection[str]) -> dict[str, Collection[str]]:
    """Return the changes to the kept definitions."""
    renamed = [text for text in changes.get("renamed", ()) if text.partition(" -> ")[2] in names]
    return {**changes, "renamed": renamed}


def _describe_use(full: str, sets: Sequence[CallsToRun]) -> list[str]:
    """Return the lines about what the minimized file is good for: the calls that it was verified with."""
    first, *others = sets
    inits = [_call("", arguments["init"]) for arguments in sets]
    more = f" and {len(others) - _FURTHER} more" if len(others) > _FURTHER else ""
    forward = _call("", first["forward"])
    return wrap(
        f"Lean:    what construction with {', '.join(inits[: 1 + _FURTHER])}{more}, and forward as {forward}, reach,"
        " equal in every bit, in eval and train mode; elsewhere it stops with an error. Closed file: SHA-256"
        f" {hashlib.sha256(full.encode()).hexdigest()}."
    )


def _call(name: str, call: CallTexts) -> str:
    parts = [*call["args"], *(f"{key}={value}" for key, value in call["kwargs"].items())]
    text = " ".join(", ".join(parts).split())
    return f"{name}({text if len(text) <= _CALL else f'{text[:_CALL]} …'})"


def _describe_cuts(cut: Mapping[str, Sequence[str]]) -> list[str]:
    numbers = {kind: len({re.split(r",|\[", label)[0] for label in labels}) for kind, labels in cut.items()}
    parts = [plural(numbers[kind], *names) for kind, names in _KINDS.items() if kind in numbers]
    return wrap(f"Cut:     {', '.join(parts) or 'nothing'}.")
