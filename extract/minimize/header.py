"""What stands above a lean form: where it is from, what it is good for, what was cut; and what it needs."""

import ast
import hashlib
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extract.minimize.cutter import Lean
from extract.minimize.stage import Leaned
from extract.model.results import code_columns
from extract.resolve.modules import RUNTIME
from extract.resolve.requirements import distributions_of, imported_names
from manifests.provenance.licenses import all_of

_WIDTH = 118
_LISTED = 8  # names of one kind
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
class LeanFile:
    """A lean form as it is written.

    Attributes:
        code: the whole file.
        requires: PEP 508, beside the standard library and the declared runtime.
        license: of all sources that code of its is from.
    """

    code: str
    requires: tuple[str, ...]
    license: str


def lean_file(
    leaned: Leaned,
    full: str,
    arguments: Mapping[str, Any],
    root: tuple[str, str],
    places: Mapping[str, tuple[str, str]],
    licenses: Mapping[str, str],
) -> LeanFile:
    """A lean form with its header.

    Args:
        leaned: what was cut, and the further arguments for which it is proved.
        full: the closed file that it was cut from.
        arguments: that are known to work.
        root: (source, path) of the block's own file.
        places: (source, path) by what the closed file defines.
        licenses: by source.
    """
    lean = leaned.lean
    assert lean is not None
    files = {root, *(places[name] for name in lean.names if name in places)}
    license_ = all_of(licenses[source] for source, _ in files)
    head = "\n".join(_header(full, lean, [arguments, *leaned.sets], files, license_))
    return LeanFile(f"{head}\n\n{lean.text.strip()}\n", requires_of(lean.text), license_)


def lean_columns(lean: LeanFile | str | None) -> dict[str, Any]:
    """The columns of a block that follow from its lean form; from the reason, where there is none."""
    if not isinstance(lean, LeanFile):
        return {"lean_error": lean}
    columns = code_columns(lean.code)
    return {
        "lean_code": columns["code"],
        "lean_sha256": columns["code_sha256"],
        "lean_lines": columns["n_lines"],
        "lean_requires": lean.requires,
        "lean_license": lean.license,
    }


def requires_of(code: str) -> tuple[str, ...]:
    """The distributions of what a file imports beside the standard library and the declared runtime."""
    packages = {dotted.partition(".")[0] for dotted, _ in imported_names(ast.parse(code))}
    foreign = packages - {*sys.stdlib_module_names, *RUNTIME}
    return tuple(sorted({distributions_of(package)[0] for package in foreign}))


def _header(
    full: str, lean: Lean, sets: Sequence[Mapping[str, Any]], files: Collection[tuple[str, str]], license_: str
) -> list[str]:
    head = full[: full.find("\n\n")].split("\n")
    others = [line for line in head if line.startswith("#   ") and _names_file(line, files)]
    about: list[str] = []
    for line in head:
        if line.startswith("# With definitions from:"):
            about += [line, *others] if others else []
        elif line.startswith("# Licence: "):
            about.append(f"# Licence: {license_}")
        elif not line.startswith("#   ") or _is_change(line, head, lean.names):
            about.append(line)
    about = [*about[:-1], about[-1].removesuffix("; also:") + "." * about[-1].endswith("; also:")]
    digest = hashlib.sha256(full.encode()).hexdigest()
    calls = [f"{_call('', given['init'])} and forward{_call('', given['forward'])}" for given in sets]
    good = (
        f"Lean form of the file with SHA-256 {digest}: only what construction with {', with '.join(calls)}"
        f" {'reach' if len(calls) > 1 else 'reaches'}, in eval and train mode, forward and backward. There it is equal"
        " to that file in every bit; where something was cut, it stops with an error."
    )
    return [*about, *_wrapped(good), *_cuts(lean.cut)]


def _names_file(line: str, files: Collection[tuple[str, str]]) -> bool:
    return any(line.startswith(f"#   {source} {path} (") for source, path in files)


def _is_change(line: str, head: Sequence[str], names: Collection[str]) -> bool:
    """Whether an indented line tells a change of something that is still there."""
    start = next((number for number, text in enumerate(head) if text.startswith("# Changed:")), len(head))
    renamed = re.fullmatch(r"#   renamed \S+ -> (\S+)", line)
    return head.index(line) > start and (renamed is None or renamed[1] in names)


def _call(name: str, call: Mapping[str, Any]) -> str:
    parts = [*call["args"], *(f"{key}={value}" for key, value in call["kwargs"].items())]
    text = " ".join(", ".join(parts).split())
    return f"{name}({text if len(text) <= _CALL else f'{text[:_CALL]} …'})"


def _cuts(cut: Mapping[str, Sequence[str]]) -> Iterable[str]:
    if not cut:
        return ["# Cut: nothing."]
    told = []
    for kind, what in _KINDS.items():
        names = list(dict.fromkeys(re.split(r",|\[", label)[0] for label in cut.get(kind, ())))
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            told.append(f"{what} {', '.join(names[:_LISTED])}{more}")
    return _wrapped(f"Cut: {'; '.join(told)}.")


def _wrapped(text: str) -> list[str]:
    """Comment lines."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False
    )
