"""Trace the blocks that run, in the sandbox, with the arguments from their validation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.proofs.validate import Pair, payload_of
from extract.resolve.index import Index
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox

ENTRY = "extract.proofs.trace_guest:trace_block"

#: CPU time and memory are the limits that matter, so that a busy machine changes no result.
LIMITS = Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=4 * 2**30)
_MAX_CHARACTERS = 300  # of the error


@dataclass(frozen=True, slots=True)
class Traced:
    """The trace of one block: the answer of `trace_block`, or the error."""

    block: str
    answer: Mapping[str, Any] | None
    error: str | None = None
    reused: bool = False


def trace_all(
    pairs: Sequence[Pair], index: Index, *, jobs: int, runtime: Sequence[Path] = (), unsafe: bool = False
) -> Iterator[Traced]:
    """Trace blocks; outcomes are cached by content. A job that exceeds a limit is retried with four times both.

    Args: runtime: folders with the requirements of self-contained files.
    Raises: UserError if no sandbox is available.
    """
    options: dict[str, Any] = {"readable": list(runtime), "unsafe": unsafe, "preload": META_PRELOAD, "entries": [ENTRY]}
    work = [Job(pair.block, ENTRY, payload_of(pair, runtime), LIMITS) for pair in pairs]
    with CachedSandbox(index, workers=jobs, **options) as box:
        yield from (_read_outcome(outcome) for outcome in box.run_within(work))


def _read_outcome(outcome: Outcome) -> Traced:
    if outcome.status is not Status.OK:
        error = f"{outcome.status.value}: {outcome.error or ''}"
    else:
        assert isinstance(outcome.value, dict)
        if outcome.value["traced"]:
            return Traced(outcome.key, outcome.value, None, outcome.reused)
        error = outcome.value["error"]
    return Traced(outcome.key, None, " ".join(error.split())[:_MAX_CHARACTERS], outcome.reused)
