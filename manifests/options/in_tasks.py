"""Options of a distributed run: the same for every command that supports it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lemur_core.files.errors import UsageError
from manifests.options import Option

#: The executor of a distributed run's tasks.
ExecutorName = Literal["local", "slurm", "ray"]

_PANEL = "In tasks, here or on a cluster"


@dataclass(frozen=True, slots=True)
class Division:
    """Divide a run into `tasks` tasks, `workers` at a time, which exchange files in the folder or at an address `work`.

    Raises: UsageError for options of a distributed run without an executor.
    """

    executor: Annotated[
        ExecutorName | None, Option("Divide the work into tasks that can be resumed.", panel=_PANEL)
    ] = None
    tasks: Annotated[int | None, Option("Default: M.", metavar="N", least=1, panel=_PANEL)] = None
    workers: Annotated[int | None, Option("At a time; default: cores.", metavar="M", least=1, panel=_PANEL)] = None
    work: Annotated[
        str | None, Option("All tasks see it, or s3://...; default: OUT.work.", metavar="DIR", panel=_PANEL)
    ] = None

    def __post_init__(self) -> None:
        if self.executor is None and (self.tasks, self.workers, self.work) != (None, None, None):
            raise UsageError("--tasks, --workers and --work: nothing is divided without --executor; add it")

    def resolve(self, out: Path) -> tuple[int, int, str]:
        """Return the number of tasks, how many run at a time, and where they exchange files, with defaults."""
        from lemur_core.files.workers import available_cores  # starts multiprocessing, which --help does not need

        at_once = self.workers or available_cores()
        return self.tasks or at_once, at_once, self.work or str(out.with_name(f"{out.name}.work"))
