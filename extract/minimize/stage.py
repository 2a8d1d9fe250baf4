"""Minimize blocks: cut the file to what ran, and confirm that it gives the digests which the visit signed.

The header of the file states its origin, the arguments that it supports, and the cuts.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any, Unpack

from extract.arguments.messages import NAME, BlockUses, CallsToRun, CallTexts, join_arguments
from extract.emit.emit import Emitted
from extract.emit.render import describe_changes, describe_files, wrap
from extract.minimize.cutter import MinimizedText, cut_file
from extract.model.results import code_columns
from extract.proofs.visit import SIGN, Signed, Stopped, Visit
from extract.resolve.distributions import find_requirement
from extract.resolve.modules import RUNTIME
from extract.resolve.requirements import list_imports
from lemur_core.files.markdown import plural
from lemur_core.files.progress import progress
from lemur_core.files.python import decode_python
from lemur_core.sandbox import Failure, Job
from lemur_core.sandbox.cached import Store
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.stage import SandboxOptions, open_sandbox
from manifests.provenance import header_lines, is_guess
from manifests.provenance.licenses import combine_licenses

_CHARACTERS = 300  # maximum length of an error message

#: The columns of a block about its minimized form: those of its code, or `lean_error` alone.
LeanColumns = Mapping[str, Any]


def lean_columns(code: str, requires: Sequence[str], license_: str) -> LeanColumns:
    """Return the columns of a block about its minimized file.

    Args:
        requires: PEP 508 requirements apart from the standard library and the declared runtime.
        license_: the combined license of all files with its code.
    """
    columns = code_columns(code)
    named = {"lean_code": columns["code"], "lean_sha256": columns["code_sha256"], "lean_lines": columns["n_lines"]}
    return {**named, "lean_requires": tuple(requires), "lean_license": license_}


def minimize_all(
    visited: Mapping[str, tuple[BlockUses, Visit, Emitted]], store: Store | None, **sandbox: Unpack[SandboxOptions]
) -> Iterator[tuple[str, LeanColumns]]:
    """Yield the columns about the minimized file of each block, by key; outcomes are cached by content.

    Raises: UserError if no sandbox is available.
    """
    files: dict[str, tuple[LeanColumns, Mapping[str, str]]] = {}
    missing: dict[str, LeanColumns] = {}

    def requests() -> Iterator[Job]:  # files are cut while others are being confirmed
        for key, (request, visit, emitted) in visited.items():
            file = _minimize(request, visit, emitted)
            if isinstance(file, str) or isinstance(visit.uses, Failure):
                missing[key] = {"lean_error": str(file)}
                continue
            uses = visit.uses
            files[key] = file, uses.signature.steps
            yield SIGN.job(key, replace(request, code=file["lean_code"], sets=uses.list_sets(), sizes=uses.sizes))

    with open_sandbox(store, [SIGN], sandbox) as box, progress("minimized files", len(visited), "blocks") as advance:
        for reply in SIGN.run_jobs(box, requests()):
            file, steps = files[reply.key]
            wrong = _compare(reply.answer or Stopped(reply.failure(_CHARACTERS).error), steps)
            yield reply.key, {"lean_error": one_line(wrong, _CHARACTERS)} if wrong else file
            advance(1)
    yield from missing.items()


def _minimize(request: BlockUses, visit: Visit, emitted: Emitted) -> LeanColumns | str:
    """Return the columns of the file to confirm, or why there is none."""
    if isinstance(visit.uses, Failure):
        return one_line(f"does not run again: {visit.uses.error}", _CHARACTERS)
    if failing := visit.uses.list_failing_modes():
        return f"{' and '.join(failing)} mode fails"
    needed = NAME.findall(str(request.arguments))
    minimized = cut_file(request.code, request.name, visit.uses.watched, needed)
    return write_file(minimized, emitted, [request.arguments, *visit.uses.list_sets(running=True)])


def _compare(answer: Signed | Stopped, steps: Mapping[str, str]) -> str:
    """Return what a minimized file does otherwise than its closed one; "" if nothing."""
    if isinstance(answer, Stopped):
        return f"only the full form runs: {answer.error}"
    if differs := difference(answer, steps):
        return f"not as the full form: {differs}"
    return "" if answer.steps.keys() == steps.keys() else "not as the full form: other steps"


def difference(signed: Signed, steps: Mapping[str, str]) -> str:
    """Return the first step whose signature differs from the expected one, with its error; "" if all agree.

    Args: steps: step -> expected signature.
    """
    wrong = next((name for name, value in steps.items() if signed.steps.get(name) != value), None)
    return "" if wrong is None else f"{wrong}: {signed.errors[wrong]}" if wrong in signed.errors else wrong


# --- the file as it is written: its header and requirements -----------------------------------------------------------


_LICENSE = "# Licence: "
_FIELD = re.compile(r"# \w+: ")  # the lines before the first one repeat what it says
_FURTHER = 2  # calls shown besides the first
_CALL = 120  # characters of a call


def write_file(minimized: MinimizedText, emitted: Emitted, calls: Sequence[CallsToRun]) -> LeanColumns | str:
    """Return the columns of the minimized file with its header, or why it is not written: a longer file is not lean.

    Args:
        emitted: the closed file.
        calls: those that it is confirmed with.
    """
    licenses = dict(zip(emitted.files, emitted.licenses, strict=True))
    root = emitted.files[0]
    kept = {emitted.places[name] for name in minimized.names if name in emitted.places} - {root}
    further = [file for file in emitted.files if file in kept]
    license_ = combine_licenses(map(licenses.__getitem__, [root, *further]))
    head = [
        *_replace_license(emitted.code, license_),
        *describe_files(further, licenses),
        *describe_changes(_list_changes(emitted.changes, minimized.names)),
        *_describe_use(calls, minimized.cut),
    ]
    code = "\n".join([*head, "", minimized.text.strip(), ""])
    try:
        decode_python(code)
    except SyntaxError as error:  # its first lines are others than those of the closed file
        return str(error.msg)
    if code.count("\n") >= emitted.code.count("\n"):
        return "not shorter than the closed file"
    requires = list_requirements(minimized.text, emitted.packages.values(), emitted.packages)
    return lean_columns(code, requires, license_)


def list_requirements(code: str, stated: Iterable[str], confirmed: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the requirements of a file, sorted: its imports outside of the standard library and the declared runtime.

    Args:
        stated: the requirements of the block, from which they are taken.
        confirmed: distributions by import name.
    """
    listed = tuple(stated)
    known, found = {*sys.stdlib_module_names, *RUNTIME}, set()
    for dotted, _ in list_imports(ast.parse(code)):
        if (top := dotted.partition(".")[0]) not in known:
            # The whole name first: distributions may share the first name of their packages.
            requirement = find_requirement(dotted, listed, confirmed)
            found.add(find_requirement(top, listed, confirmed) if is_guess(requirement) else requirement)
    return tuple(sorted(found))


def _replace_license(full: str, license_: str) -> Iterator[str]:
    """Yield the lines of a closed file's header that its minimized form has too, up to the license."""
    for line in dropwhile(lambda line: not _FIELD.match(line), header_lines(full)):
        if line.startswith(_LICENSE):
            yield f"{_LICENSE}{license_}"
            return
        yield line


def _list_changes(changes: Mapping[str, Collection[str]], names: Collection[str]) -> dict[str, Collection[str]]:
    """Return the changes to the kept definitions."""
    renamed = [text for text in changes.get("renamed", ()) if text.partition(" -> ")[2] in names]
    return {**changes, "renamed": renamed}


def _describe_use(sets: Sequence[CallsToRun], cut: Mapping[str, int]) -> list[str]:
    """Return the lines about the calls that the minimized file was confirmed with, and about the cuts."""
    calls = [f"{_call(pair['init'])}{_call(pair['forward'])}" for pair in sets]
    more = f" and {len(calls) - 1 - _FURTHER} more" if len(calls) > 1 + _FURTHER else ""
    parts = [plural(number, kind) for kind, number in cut.items() if number]
    return wrap(
        f"Lean:    equal in every bit, in eval and train mode, for {', '.join(calls[: 1 + _FURTHER])}{more}; elsewhere"
        f" it stops with an error. Cut: {', '.join(parts) or 'nothing'}."
    )


def _call(call: CallTexts) -> str:
    text = " ".join(join_arguments(**call).split())
    return f"({text if len(text) <= _CALL else f'{text[:_CALL]} …'})"
