"""Options that are declared once, on the fields of a dataclass; `parameters` makes the parameters of a command.

A dataclass of options must need neither the command line nor the tables, so nothing slow is imported here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from lemur_core.files.errors import UsageError

#: The levels of validation that a block can reach, each one including those before it.
Level = Literal["discovered", "emitted", "parsed", "compiled", "executed", "constructed", "forward", "backward"]

#: Longer conversations are dropped; counted as in `manifests.conversations.conversation.count_tokens`.
MAX_TOKENS = 8_192


@dataclass(frozen=True, slots=True)
class Option:
    """Describe how a field is set on the command line: `task: Annotated[tuple[str, ...], Option("Only rows ...")]`.

    Attributes:
        help: the sentence of `--help`.
        flag: the option, if it is not the name of the field.
        metavar: what stands for the value in `--help`.
        panel: the panel of `--help`; the general one by default.
        least: the smallest value that is accepted.
        most: the largest.
        after: the option that this one follows in `--help`, if that is not the one declared before it.
        read: parses one text, where a field holds something else than text and numbers.
    """

    help: str
    flag: str | None = None
    metavar: str | None = None
    panel: str | None = None
    least: float | None = None
    most: float | None = None
    after: str | None = None
    read: Callable[[str], Any] | None = None


RUNTIME = Option(
    "A package that foreign code can import besides torch, torchvision and numpy, or lemur-nets: those that LEMUR's"
    " networks use (repeatable).",
    metavar="NAME",
    after="jobs",
)


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
class DistributedOptions:
    """Divide a run into `tasks` tasks, `workers` at a time, which exchange files in the folder or at an address `work`.

    `memory` is what a task gets in MiB, by kind of step; "" is for all other steps.

    Raises: UsageError for options of a distributed run without an executor, or memory where nothing reserves it.
    """

    executor: Annotated[
        ExecutorName | None, Option("Divide the work into tasks that can be resumed.", panel=_PANEL)
    ] = None
    tasks: Annotated[
        int | None, Option("Number of tasks (default: number of workers).", metavar="N", least=1, panel=_PANEL)
    ] = None
    workers: Annotated[
        int | None, Option("Tasks that run at a time (default: CPU count).", metavar="M", least=1, panel=_PANEL)
    ] = None
    work: Annotated[
        str | None,
        Option("Working folder that all tasks see, or s3://... (default: OUT.work).", metavar="DIR", panel=_PANEL),
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

    def resolve(self, out: Path) -> tuple[ExecutorName, int, int, str]:
        """Return the executor, the tasks, how many run at a time and where they exchange files, with defaults.

        Args: out: the folder to write. Raises: UsageError without an executor.
        """
        from lemur_core.files.workers import available_cores  # starts multiprocessing, which --help does not need

        at_once = self.workers or available_cores()
        if self.executor is None:
            raise UsageError("--executor is missing: nothing is divided without it; add it")
        return self.executor, self.tasks or at_once, at_once, self.work or str(out.with_name(f"{out.name}.work"))
