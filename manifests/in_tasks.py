"""Options of a run that is divided into tasks: the same for every command that can be."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lemur_core.files.errors import UsageError

_PANEL = "In tasks, here or on a cluster"


class ExecutorName(StrEnum):
    """What runs the tasks of a divided run."""

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
    Path | None,
    typer.Option("--work", metavar="DIR", help="All tasks see it; default OUT.work.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True, slots=True)
class Division:
    """A run in `tasks` tasks, `workers` at a time, which exchange files in the folder `work`."""

    executor: ExecutorName
    tasks: int
    workers: int
    work: Path


def divided(
    out: Path, executor: ExecutorName | None, tasks: int | None, workers: int | None, work: Path | None
) -> Division | None:
    """How the work is divided, with defaults; None where it is not.

    Raises: UsageError for options of a divided run without an executor, or a work folder that is an address.
    """
    if executor is None:
        if tasks is not None or workers is not None or work is not None:
            raise UsageError("--tasks, --workers and --work: nothing is divided without --executor; add it")
        return None
    if work is not None and (scheme := re.match(r"[a-z][a-z0-9+.-]+:/", str(work))):
        raise UsageError(
            f"--work {scheme[0]}/...: must be a folder that all machines see under one path, not an address"
        )
    from lemur_core.files.workers import available_cores

    at_once = workers or available_cores()
    return Division(executor, tasks or at_once, at_once, work or out.with_name(f"{out.name}.work"))
