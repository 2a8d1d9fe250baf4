"""Options of a distributed run: the same for every command that supports it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lemur_core.files.errors import UsageError

_PANEL = "In tasks, here or on a cluster"


class ExecutorName(StrEnum):
    """The executor of a distributed run's tasks."""

    local = "local"
    slurm = "slurm"
    ray = "ray"


ExecutorOption = Annotated[
    ExecutorName | None, typer.Option(help="Divide the work into tasks that can be resumed.", rich_help_panel=_PANEL)
]
TasksOption = Annotated[
    int | None, typer.Option("--tasks", metavar="N", min=1, help="Default: M.", rich_help_panel=_PANEL)
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="M", min=1, help="At a time; default: cores.", rich_help_panel=_PANEL)
]
WorkOption = Annotated[
    str | None,
    typer.Option(
        "--work", metavar="DIR", help="All tasks see it, or s3://...; default: OUT.work.", rich_help_panel=_PANEL
    ),
]


@dataclass(frozen=True, slots=True)
class Division:
    """A run in `tasks` tasks, `workers` at a time, which exchange files in the folder or at the address `work`."""

    executor: ExecutorName
    tasks: int
    workers: int
    work: str


def divided(
    out: Path, executor: ExecutorName | None, tasks: int | None, workers: int | None, work: str | None
) -> Division | None:
    """Return the options of a distributed run, with defaults; None if the run is not distributed.

    Raises: UsageError for options of a distributed run without an executor.
    """
    if executor is None:
        if tasks is not None or workers is not None or work is not None:
            raise UsageError("--tasks, --workers and --work: nothing is divided without --executor; add it")
        return None
    from lemur_core.files.workers import available_cores

    at_once = workers or available_cores()
    return Division(executor, tasks or at_once, at_once, work or str(out.with_name(f"{out.name}.work")))
