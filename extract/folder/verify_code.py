"""Checks of an extraction's closed files, one by one: each must match the table and its header.

Last, the printed calls of the blocks are executed in the sandbox, each below the full and the lean form of its file.
"""

import ast
import contextlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from extract.arguments.messages import CallRequest
from extract.minimize.stage import list_requirements
from extract.model.results import at_least
from extract.proofs.runtime import PROVIDED, BlockRuntime, runtime_for
from extract.resolve.distributions import is_stated
from extract.resolve.modules import RUNTIME
from extract.resolve.requirements import list_imports
from extract.specs.printed import print_call
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import progress
from lemur_core.files.workers import available_cores, map_items
from lemur_core.sandbox import Failure, Job, Limits, Status
from lemur_core.sandbox.stage import Reply, Retries, SandboxStage, open_sandbox
from lemur_core.source.quality import find_undefined_names
from lemur_core.source.text import parse_code
from manifests.folders.checks import Check, check_faults
from manifests.folders.kinds import EXTRACTION
from manifests.provenance import get_minimized_path, header_lines, is_guess
from manifests.provenance.licenses import NOASSERTION, is_permissive
from manifests.provenance.parts import read_requirements
from manifests.records import Block

_HEADER = re.compile(r"# (Block|Licence):[ ]+(.*)")
_FENCED = re.compile(r"\A(`{3,})(json|python)\n(.*?)\n?\1\Z", re.DOTALL)
_MINIMIZED = ("lean_code", "lean_sha256", "lean_lines", "lean_requires", "lean_license", "lean_error")
_CODE_COLUMNS = ("block", "name", "source", "level", "license", "error_kind", "requires", "code", *_MINIMIZED)
_BATCH = 40  # blocks per worker call
_FEW = 60  # blocks; with fewer, starting processes costs more than it saves

#: Checks of single files, in the order of the report, with the text for success.
_OF_CODE = {
    "parses": "files are Python",
    "undefined names": "files, none by pyflakes",
    "imports": "files import the standard library, the runtime and what they require, and nothing of their origin",
    "headers": "files name their block and license",
    "lean forms": "files, of each what the table says of its lean form",
}

Faults = dict[str, list[str]]


def check_code(
    folder: Path,
    rows: Sequence[Block],
    packages: Mapping[str, frozenset[str]],
    confirmed: Mapping[str, str],
    jobs: int | None,
) -> list[Check]:
    """Return the checks of single files, and of the texts about them; the rows contain no code.

    Args:
        packages: by source, the import names that its blocks must not import.
        confirmed: distributions by import name, as the user stated them for the extraction.
    """
    number = sum(row.code_sha256 is not None for row in rows)
    all_faults: Faults = {name: [] for name in _OF_CODE}
    work, batches = partial(_check_batch, packages, confirmed), _batches(folder)
    with progress("verify", number, "blocks") as advance:
        for done, faults in map(work, batches) if number <= _FEW else map_items(work, batches, jobs):
            for name, wrong in faults.items():
                all_faults[name] += wrong
            advance(done)
    return [check_faults(name, all_faults[name], f"{number:,} {text}") for name, text in _OF_CODE.items()]


def _batches(folder: Path) -> Iterator[list[Block]]:
    blocks = EXTRACTION.rows(folder, Block, _CODE_COLUMNS)
    emitted = (block for block in blocks if block.code is not None or block.lean_sha256 is not None)
    while batch := list(itertools.islice(emitted, _BATCH)):
        yield batch


def _check_batch(
    packages: Mapping[str, frozenset[str]], confirmed: Mapping[str, str], rows: Sequence[Block]
) -> tuple[int, Faults]:
    """Return the number of blocks and the faults of their files, by check."""
    faults: Faults = {name: [] for name in _OF_CODE}
    for row in rows:
        own = packages[row.source]
        for name, fault in itertools.chain(_file_faults(row, own, confirmed), _lean_faults(row, confirmed)):
            faults[name].append(f"{row.block}: {fault}")
    return len(rows), faults


def _file_faults(row: Block, own: frozenset[str], confirmed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with both forms of a block's file, each with the name of its check."""
    for form, code, license_, requires in (
        ("", row.code, row.license, row.requires),
        ("lean form: ", row.lean_code, row.lean_license, row.lean_requires),
    ):
        if code is None:
            continue
        head = _header(code)
        for key, value in (("Block", row.block), ("Licence", license_)):
            if head.get(key) != value:
                yield "headers", f"{form}its header names {head.get(key)!r} as {key}, not {value!r}"
        try:
            tree = parse_code(code)
        except SyntaxError as error:
            # A file that does not parse is an outcome that the table may state.
            if form or row.level != "emitted" or row.error_kind is None:
                yield "parses", f"{form}{row.level}, but it does not parse: {error}"
            continue
        if form or row.error_kind is None or at_least(row.level, "compiled"):  # else that may be the reason
            yield from (("undefined names", f"{form}{fault}") for fault in find_undefined_names(tree).values())
        yield from (("imports", f"{form}{fault}") for fault in import_faults(tree, requires, own, confirmed))


def _lean_faults(row: Block, confirmed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what the table says wrongly of a block's lean form."""
    code, name = row.lean_code, "lean forms"
    if row.lean_sha256 is None:
        if at_least(row.level, "forward") != (row.lean_error is not None) or code is not None:
            yield name, "has no lean form, and no reason why, or the other way round"
        return
    if code is None:
        if is_permissive(row.lean_license or NOASSERTION) and not any(map(is_guess, row.lean_requires)):
            yield name, "its lean form is missing, though its license permits redistribution"
        return
    if row.lean_error is not None:
        yield name, "has a lean form, and a reason why not"
    with contextlib.suppress(SyntaxError):  # reported already
        nodes = list(ast.walk(parse_code(code)))
        defined = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        # A lean form may import a name that its author copied.
        defined |= {one.asname or one.name for node in nodes if isinstance(node, ast.ImportFrom) for one in node.names}
        if row.name not in defined:
            yield name, "its lean form does not define it"
    needed = list_requirements(code, row.requires, confirmed)
    if needed != tuple(row.lean_requires):
        yield name, f"its lean form needs {', '.join(needed) or 'nothing'}, not what lean_requires says"


def _header(code: str) -> dict[str, str]:
    """Return the fields in the comment lines at the start of a file: its block and license."""
    fields: dict[str, str] = {}
    for line in header_lines(code):
        if match := _HEADER.fullmatch(line):
            fields.setdefault(match[1], match[2])
    return fields


def import_faults(
    tree: ast.Module, requires: Iterable[str], own: frozenset[str], confirmed: Mapping[str, str] | None = None
) -> list[str]:
    """Return the imports, also in functions, that are not in the standard library, the runtime or the requirements.

    Args:
        requires: PEP 508; invalid entries are ignored.
        own: the import names of the source itself; they are always faults, except that a package of the runtime may be
            imported if only its compiled operators are used.
        confirmed: distributions by import name, as the user stated them for the extraction.
    """
    wanted, nodes = tuple(requires), list(ast.walk(tree))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    # `import torchvision` registers its operators: a block of torchvision may do that, and nothing else with it.
    for_operators = {
        (alias.name, node.lineno)
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in RUNTIME and alias.name not in used and not alias.asname
    }
    wrong = []
    for dotted, line in list_imports(tree):
        top = dotted.partition(".")[0]
        if not top:
            wrong.append(f"line {line}: a relative import, {dotted}")
        elif any(f"{dotted}.".startswith(f"{package}.") for package in own) and (dotted, line) not in for_operators:
            wrong.append(f"line {line}: imports {dotted} of its own origin")
        elif top in sys.stdlib_module_names or top in RUNTIME:
            continue
        elif not is_stated(dotted, wanted, confirmed):
            wrong.append(f"line {line}: imports {dotted}, which it does not require")
    return wrong


# --- the printed calls, executed in the sandbox -----------------------------------------------------------------------


_NAME = "calls"
_COLUMNS = ("block", "name", "source", "file", "code", "lean_code", "arguments", "observed", "requires")
_CHARACTERS = 200  # of an error
_LIMITED = frozenset({Status.TIMEOUT, Status.OUT_OF_MEMORY})


Ran = Literal["ran"]
#: CPU time and memory are the limits that matter, so that a busy machine changes no result.
RUN_CALL = SandboxStage[Ran | Failure](
    "extract.folder.calls_guest:run_call",
    Ran | Failure,
    Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=6 * 2**30),
    Retries.NONE,
)


@dataclass(slots=True)
class _Outcomes:
    """The outcomes of the calls; `missing`: those whose packages are not available here."""

    ran: int = 0
    limited: int = 0
    missing: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, reply: Reply[Ran | Failure], runtime: BlockRuntime) -> None:
        """Count one reply. Args: runtime: with the packages that are not available."""
        answer = reply.answer if reply.answer is not None else reply.failure(_CHARACTERS)
        if not isinstance(answer, Failure):
            self.ran += 1
        elif reply.outcome.status in _LIMITED:
            self.limited += 1
        elif runtime.unavailable and answer.error.startswith("ModuleNotFoundError"):
            self.missing += 1
        else:
            self.faults.append(f"{reply.key}: {' '.join(answer.error.split())[:_CHARACTERS]}")

    def check(self) -> Check:
        """Return the line of `lemur verify`."""
        detail = f"{plural(self.ran, 'form')} of blocks run as `lemur show` prints it"
        detail += f"; {self.limited:,} need more than the limits of the sandbox" if self.limited else ""
        detail += f"; {self.missing:,} need packages that are not available here" if self.missing else ""
        return check_faults(_NAME, sorted(self.faults), detail)


def check_calls(folder: Path, jobs: int | None = None) -> list[Check]:
    """Execute the printed call of every block that has one, below both forms of its file; outcomes are cached.

    Args: jobs: worker processes; default: all cores.
    Returns: one check; none if no block was seen to run.
    """
    needs = read_requirements(folder)
    origins = {name: sorted(set(source.packages) - PROVIDED) for name, source in needs.sources.items()}
    number, requires, sources = 0, set[str](), set[str]()
    for row in EXTRACTION.rows(folder, Block, _COLUMNS):
        if print_call(row, row.lean_code or row.code):
            number += (row.code is not None) + (row.lean_code is not None)
            requires.update(row.requires)
            sources.add(row.source.partition("@")[0])
    if not number:
        return []
    runtime = runtime_for(sorted(requires), known=sorted(sources))
    outcomes = _Outcomes()
    with (
        open_sandbox(None, [RUN_CALL], {"jobs": jobs or available_cores(), "runtime": runtime.folders}) as box,
        progress(_NAME, number, "calls") as advance,
    ):
        try:
            for reply in RUN_CALL.run_jobs(box, _list_jobs(folder, origins, runtime)):
                outcomes.add(reply, runtime)
                advance(1)
        except UserError as error:  # no sandbox
            return [Check(_NAME, ok=True, detail=f"not executed: {error}")]
    return [outcomes.check()]


def _list_jobs(folder: Path, origins: Mapping[str, Sequence[str]], runtime: BlockRuntime) -> Iterator[Job]:
    """Yield a job for each form; the files were compared with the table already."""
    folders = [str(path) for path in runtime.folders]
    for row in EXTRACTION.rows(folder, Block, _COLUMNS):
        lines = print_call(row, row.lean_code or row.code)
        for form, path, code in (
            ("full form", row.file, row.code),
            ("lean form", get_minimized_path(row.file or ""), row.lean_code),
        ):
            if lines and code is not None and path is not None:
                text = (folder / path).read_text(encoding="utf-8")
                request = CallRequest(text, lines, folders, origins.get(row.source, ()))
                yield RUN_CALL.job(f"{row.block}, {form}", request)
