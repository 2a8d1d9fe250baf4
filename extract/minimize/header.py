"""Header of a minimized file: its origin, the arguments it supports, and the cuts; also its requirements."""

import ast
import hashlib
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extract.arguments.messages import CallsToRun, CallTexts
from extract.minimize.cutter import MinimizedText
from extract.minimize.stage import MinimizeResult
from extract.model.results import code_columns
from extract.resolve.distributions import find_requirement
from extract.resolve.modules import RUNTIME
from extract.resolve.requirements import list_imports
from manifests.provenance.licenses import combine_licenses

_WIDTH = 118
_LISTED = 8  # names shown for each kind
_CALL = 160  # characters of a call

_KINDS = {
    "definition": "definitions",
    "class": "bodies of the classes",
    "function": "bodies of",
    "method": "methods",
    "overload": "overloads",
    "entry": "entries of",
    "branch": "branches in",
    "text": "documentation of",
}


@dataclass(frozen=True, slots=True)
class MinimizedFile:
    """A minimized file as it is written to disk.

    Attributes:
        code: the whole file.
        requires: PEP 508 requirements apart from the standard library and the declared runtime.
        license: combined license of all files with its code.
    """

    code: str
    requires: tuple[str, ...]
    license: str


def write_header(
    leaned: MinimizeResult,
    full: str,
    arguments: CallsToRun,
    root: tuple[str, str],
    places: Mapping[str, tuple[str, str]],
    licenses: Mapping[tuple[str, str], str],
    packages: Mapping[str, str],
) -> MinimizedFile:
    """Return the minimized file with its header.

    Args:
        leaned: the minimized text, and the further arguments it was verified with.
        full: the original closed file.
        arguments: known working arguments.
        root: (source, path) of the block's own file.
        places: name defined in the closed file -> (source, path).
        licenses: (source, path) -> license.
        packages: imported package -> requirement of the closed file.
    """
    minimized = leaned.minimized
    assert minimized is not None
    files = {root, *(places[name] for name in minimized.names if name in places)}
    license_ = combine_licenses(map(licenses.__getitem__, files))
    head = "\n".join(_header(full, minimized, [arguments, *leaned.sets], files, license_))
    requires = list_requirements(minimized.text, packages.values(), packages)
    return MinimizedFile(f"{head}\n\n{minimized.text.strip()}\n", requires, license_)


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


def _header(
    full: str, minimized: MinimizedText, sets: Sequence[CallsToRun], files: Collection[tuple[str, str]], license_: str
) -> list[str]:
    head = full[: full.find("\n\n")].split("\n")
    others = [line for line in head if line.startswith("#   ") and _names_file(line, files)]
    about: list[str] = []
    for line in head:
        if line.startswith("# With definitions from:"):
            about += [line, *others] if others else []
        elif line.startswith("# Licence: "):
            about.append(f"# Licence: {license_}")
        elif not line.startswith("#   ") or _is_change(line, head, minimized.names):
            about.append(line)
    # The list of changes may be empty now, and its heading ends the sentence.
    about = [*about[:-1], about[-1].removesuffix("; also:") + "." * about[-1].endswith("; also:")]
    digest = hashlib.sha256(full.encode()).hexdigest()
    calls = [f"{_call('', arguments['init'])} and forward{_call('', arguments['forward'])}" for arguments in sets]
    good = (
        f"Lean form of the file with SHA-256 {digest}: only what construction with {', with '.join(calls)}"
        f" {'reach' if len(calls) > 1 else 'reaches'}, in eval and train mode, forward and backward. There it is equal"
        " to that file in every bit; where something was cut, it stops with an error."
    )
    return [*about, *_wrap(good), *_describe_cuts(minimized.cut)]


def _names_file(line: str, files: Collection[tuple[str, str]]) -> bool:
    return any(line.startswith(f"#   {source} {path} (") for source, path in files)


def _is_change(line: str, head: Sequence[str], names: Collection[str]) -> bool:
    """Return True if an indented line describes a change to a definition that was kept."""
    start = next((number for number, text in enumerate(head) if text.startswith("# Changed:")), len(head))
    renamed = re.fullmatch(r"#   renamed \S+ -> (\S+)", line)
    return head.index(line) > start and (renamed is None or renamed[1] in names)


def _call(name: str, call: CallTexts) -> str:
    parts = [*call["args"], *(f"{key}={value}" for key, value in call["kwargs"].items())]
    text = " ".join(", ".join(parts).split())
    return f"{name}({text if len(text) <= _CALL else f'{text[:_CALL]} …'})"


def _describe_cuts(cut: Mapping[str, Sequence[str]]) -> Iterable[str]:
    if not cut:
        return ["# Cut: nothing."]
    parts = []
    for kind, what in _KINDS.items():
        names = list(dict.fromkeys(re.split(r",|\[", label)[0] for label in cut.get(kind, ())))
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            parts.append(f"{what} {', '.join(names[:_LISTED])}{more}")
    return _wrap(f"Cut: {'; '.join(parts)}.")


def _wrap(text: str) -> list[str]:
    """Wrap text into comment lines."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
    )
