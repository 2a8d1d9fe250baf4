"""Minimize blocks: trace the executed lines in the sandbox, cut the file, and compare the result with the original.

The header of the file states its origin, the arguments that it supports, and the cuts.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any, Unpack

from extract.arguments.messages import NAME, BlockUses, CallsToRun, CallTexts, join_arguments
from extract.emit.emit import Emitted
from extract.emit.render import describe_changes, describe_files, wrap
from extract.minimize.cuts import LEFT_OUT
from extract.minimize.cutter import Cutter, MinimizedText
from extract.model.results import code_columns
from extract.proofs.visit import SIGN, BlockVisit, Signed, Stop, Stopped, Uses
from extract.resolve.distributions import find_requirement
from extract.resolve.modules import RUNTIME
from extract.resolve.requirements import list_imports
from lemur_core.files.markdown import plural
from lemur_core.files.progress import progress
from lemur_core.files.python import decode_python
from lemur_core.sandbox.cached import Store
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.stage import Reply, SandboxOptions, open_sandbox
from manifests.provenance import header_lines, is_guess
from manifests.provenance.licenses import combine_licenses

ROUNDS = 8  # attempts, each with fewer cuts
_CHARACTERS = 300  # maximum length of an error message
_NAMED = re.compile(rf"{LEFT_OUT}: (?P<name>\w+)$")


@dataclass(frozen=True, slots=True)
class MinimizeResult:
    """The minimized file of one block, or the reason why there is none."""

    block: str
    minimized: MinimizedText | None
    error: str | None = None
    rounds: int = 0
    sets: tuple[CallsToRun, ...] = ()  # further arguments that run, with which the result was verified


@dataclass(slots=True)
class _BlockWork:
    """A block in progress."""

    visit: BlockVisit
    uses: Uses
    spared: set[int] = field(default_factory=set)
    minimized: MinimizedText | None = None

    def cut(self) -> BlockUses:
        """Cut the block, except for what was spared, and return the request to sign the rest."""
        request = self.visit.request
        needed = NAME.findall(str(request.arguments))
        self.minimized = Cutter(request.code, request.name, self.uses.watched, needed).cut(self.spared)
        return replace(request, code=self.minimized.text, sets=self.visit.sets, sizes=self.uses.sizes)


def minimize_all(
    visits: Sequence[BlockVisit], store: Store | None, **sandbox: Unpack[SandboxOptions]
) -> Iterator[MinimizeResult]:
    """Cut blocks to the code they can reach; outcomes are cached by content.

    Raises: UserError if no sandbox is available.
    """
    waiting: dict[str, _BlockWork] = {}
    for visit in visits:
        if visit.uses is None:
            yield MinimizeResult(visit.block, None, one_line(f"does not run again: {visit.no_uses}", _CHARACTERS))
        elif failing := visit.uses.list_failing_modes():
            yield MinimizeResult(visit.block, None, f"{' and '.join(failing)} mode fails")
        else:
            waiting[visit.block] = _BlockWork(visit, visit.uses)
    with open_sandbox(store, [SIGN], sandbox) as box, progress("minimized files", len(waiting), "blocks") as advance:
        for number in range(1, ROUNDS + 1):
            again: dict[str, _BlockWork] = {}
            # Files are cut while others are being verified.
            for reply in SIGN.run_jobs(box, (SIGN.job(key, work.cut()) for key, work in waiting.items())):
                work = waiting[reply.key]
                result = _judge(reply, work, last=number == ROUNDS)
                if result is None:
                    again[reply.key] = work
                    continue
                yield replace(result, rounds=number)
                advance(1)
            waiting = again


def _judge(reply: Reply[Signed | Stopped], work: _BlockWork, *, last: bool) -> MinimizeResult | None:
    """Return the result of comparing a minimized file with the original; None to retry with fewer cuts."""
    answer, minimized = reply.answer or Stopped(reply.failure(_CHARACTERS).error), work.minimized
    assert minimized is not None
    steps = work.uses.signature.steps
    if isinstance(answer, Stopped):
        wrong = f"only the full form runs: {answer.error}"
    elif differs := difference(answer, steps):
        wrong = f"not as the full form: {differs}"
    elif answer.steps.keys() != steps.keys():
        wrong = "not as the full form: other steps"
    else:
        return MinimizeResult(reply.key, minimized, sets=work.visit.sets_that_run)
    spared = _blame_cuts(answer.stops, minimized) - work.spared
    # Without a cut to blame, another round would give the same text.
    if last or not spared:
        return MinimizeResult(reply.key, None, one_line(wrong, _CHARACTERS))
    work.spared |= spared
    return None


def difference(signed: Signed, steps: Mapping[str, str]) -> str:
    """Return the first step whose signature differs from the expected one, with its error; "" if all agree.

    Args: steps: step -> expected signature.
    """
    wrong = next((name for name, value in steps.items() if signed.steps.get(name) != value), None)
    if wrong is None:
        return ""
    error = next((f": {stop.message}" for stop in signed.stops if stop.step == wrong), "")
    return f"{wrong}{error}"


def _blame_cuts(stops: Sequence[Stop], minimized: MinimizedText) -> set[int]:
    """Return the cuts that caused an error: those that raised it, else those that removed the missing name."""
    spared: set[int] = set()
    for stop in stops:
        hit = {minimized.stops[line] for line in stop.lines if line in minimized.stops}
        # The line that raised first: a missing name is only the second-best trace.
        named = stop.name or (_NAMED.search(stop.message) or {"name": ""})["name"]
        spared |= hit or set(minimized.named.get(named, ()))
    return spared


# --- the file as it is written: its header and requirements -----------------------------------------------------------


_LICENSE = "# Licence: "
_FIELD = re.compile(r"# \w+: ")  # the lines before the first one repeat what it says
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
        *_describe_use([arguments, *leaned.sets], minimized.cut),
    ]
    code = "\n".join([*head, "", minimized.text.strip(), ""])
    try:
        decode_python(code)
    except SyntaxError as error:  # its first lines are others than those of the closed file
        return str(error.msg)
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


def _describe_use(sets: Sequence[CallsToRun], cut: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the lines about what the minimized file is good for: the calls that it was verified with, and the cuts."""
    calls = [f"{_call('', pair['init'])}{_call('', pair['forward'])}" for pair in sets]
    more = f" and {len(calls) - 1 - _FURTHER} more" if len(calls) > 1 + _FURTHER else ""
    numbers = {kind: len({re.split(r",|\[", label)[0] for label in labels}) for kind, labels in cut.items()}
    parts = [plural(numbers[kind], *names) for kind, names in _KINDS.items() if kind in numbers]
    return wrap(
        f"Lean:    equal in every bit, in eval and train mode, for {', '.join(calls[: 1 + _FURTHER])}{more}; elsewhere"
        f" it stops with an error. Cut: {', '.join(parts) or 'nothing'}."
    )


def _call(name: str, call: CallTexts) -> str:
    text = " ".join(join_arguments(**call).split())
    return f"{name}({text if len(text) <= _CALL else f'{text[:_CALL]} …'})"
