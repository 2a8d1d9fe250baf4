"""Options of a distributed run: the same for every command that supports it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lemur_core.files.errors import UsageError
from manifests.options import Option

#: The executor of a distributed run's tasks.
ExecutorName = Literal["local", "slurm", "ray"]

_PANEL = "In tasks, here or on a cluster"
_UNITS = {"M": 1, "G": 1 << 10, "T": 1 << 20}


def _parse_memory(text: str) -> tuple[str, int]:
    """Return the kind of step, "" for all, and MiB."""
    step, _, size = text.rpartition("=")
    stated = re.fullmatch(r"([1-9]\d{0,6})([MGT])", size)
    if stated is None:
        raise UsageError(f"--memory {text}: not a size; write 8G, or STEP=8G for one step (units: M, G, T)")
    return step, int(stated[1]) * _UNITS[stated[2]]


@dataclass(frozen=True, slots=True)
class Division:
    """Divide a run into `tasks` tasks, `workers` at a time, which exchange files in the folder or at an address `work`.

    `memory` is what a task gets in MiB, by kind of step; "" is for all other steps.

    Raises: UsageError for options of a distributed run without an executor, or memory where nothing reserves it.
    """

    executor: Annotated[
        ExecutorName | None, Option("Divide the work into tasks that can be resumed.", panel=_PANEL)
    ] = None
    tasks: Annotated[int | None, Option("Default: M.", metavar="N", least=1, panel=_PANEL)] = None
    workers: Annotated[int | None, Option("At a time; default: cores.", metavar="M", least=1, panel=_PANEL)] = None
    work: Annotated[
        str | None, Option("All tasks see it, or s3://...; default: OUT.work.", metavar="DIR", panel=_PANEL)
    ] = None

    memory: Annotated[
        tuple[tuple[str, int], ...],
        Option(
            "Memory of a task, or of a task of STEP, that Slurm or Ray reserves (repeatable).",
            metavar="[STEP=]SIZE",
            panel=_PANEL,
            read=_parse_memory,
        ),
    ] = ()

    def __post_init__(self) -> None:
        if self.executor is None and (self.tasks, self.workers, self.work, self.memory) != (None, None, None, ()):
            raise UsageError("--tasks, --workers, --work and --memory: nothing is divided without --executor; add it")
        if self.executor == "local" and self.memory:
            raise UsageError("--memory: nothing reserves memory here; omit it, or use --executor slurm or ray")

    def resolve(self, out: Path) -> tuple[int, int, str]:
        """Return the number of tasks, how many run at a time, and where they exchange files, with defaults."""
        from lemur_core.files.workers import available_cores  # starts multiprocessing, which --help does not need

        at_once = self.workers or available_cores()
        return self.tasks or at_once, at_once, self.work or str(out.with_name(f"{out.name}.work"))
