"""Execute the printed calls of a folder's blocks, each below the full and the lean form of its file, in the sandbox."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from extract.arguments.messages import CallRequest
from extract.proofs.runtime import PROVIDED, BlockRuntime, runtime_for
from extract.specs.printed import print_call
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import progress
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import META_PRELOAD, Failure, Job, Limits, Status
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import Reply, Retries, SandboxStage
from manifests.folders.checks import Check, check_faults
from manifests.folders.formats import EXTRACTION
from manifests.provenance import get_minimized_path, read_requirements
from manifests.records import Block

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
        CachedSandbox(
            workers=jobs or available_cores(),
            readable=runtime.folders,
            preload=META_PRELOAD,
            entries=[RUN_CALL.guest],
        ) as box,
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
