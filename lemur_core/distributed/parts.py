"""The parts of a run: one task of one step each, what it has written, and its state.

    steps/STEP/step.json          the number of the step in the run, and how many tasks it has
    steps/STEP/tasks/RANK         where a task was started, and why it failed
    steps/STEP/completions/RANK   what a finished task wrote: size and digest of each file, by name
    steps/STEP/logs/              a log of each task

A part is done once the last of these lists its files. A step reads what earlier ones wrote through `fetch_parts`, which
refuses what is missing or differs from the list; that part then counts as not done, and the next run computes it again.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lemur_core.distributed.exchange import Exchange
from lemur_core.files import Json
from lemur_core.files.atomic import describe_process, sha256_file
from lemur_core.files.errors import UsageError, UserError

STEPS, PLAN, ABOUT, STARTED = "steps", "plan.json", "step.json", "tasks"
_FORMAT = 2  # of everything in the work folder
#: The folder of finished tasks: datatrove's name, which it lists to find those to run.
DONE = "completions"
_DIGITS = 16  # of a digest: enough against accidents


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the work: `run(rank, tasks)` is called once for each rank, and writes through `files`. Picklable."""

    name: str
    tasks: int
    run: Callable[[int, int], None]
    files: Exchange


@dataclass(frozen=True, slots=True)
class PartFile:
    """The name of a file, and the step and rank of the task that wrote it."""

    name: str
    step: str
    rank: int


def run_part(step: Step, rank: int) -> None:
    """Run one task of a step, and then list the files that it wrote: from then on it is done.

    Args: rank: the rank of the task, from 0.
    Raises: whatever the task raises; it is recorded before.
    """
    started = describe_process() | ({"job": job} if (job := os.environ.get("SLURM_JOB_ID")) else {})
    step.files.write_text(_task_name(step.name, STARTED, rank), json.dumps(started))
    try:
        with step.files.record_names() as names:
            step.run(rank, step.tasks)
    except Exception as error:
        failed = json.dumps(started | {"failed": describe_error(error)})
        step.files.write_text(_task_name(step.name, STARTED, rank), failed)
        raise
    written = {name: _describe(step.files.here / name) for name in sorted(names)}
    step.files.write_text(_task_name(step.name, DONE, rank), json.dumps(written, indent=0))


def describe_error(error: BaseException) -> str:
    """Return the first line of an error, with its type unless it is one that the user can mend."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0]


def begin(files: Exchange, parameters: Mapping[str, object]) -> None:
    """Record the parameters of a run in the work folder, or check that it is the same run to resume.

    Args: parameters: everything that the run depends on, with the digests of its inputs; serializable as JSON.
    Raises: UserError naming what differs if the folder belongs to a run with other parameters.
    """
    text = json.dumps({"format": _FORMAT, **parameters}, indent=2)
    if not files.has(PLAN):
        files.write_text(PLAN, text)
        return
    try:
        older = json.loads(files.read_text(PLAN))
    except ValueError:
        older = None
    wanted = json.loads(text)
    if older != wanted:
        differs = ", ".join(_find_differences(wanted, older)) if isinstance(older, dict) else PLAN
        raise UserError(f"{files}: holds a run that differs in {differs}; choose another --work, or remove it")


def _find_differences(wanted: Json, older: Json) -> Iterator[str]:
    for name in sorted({*wanted, *older}):
        new, old = wanted.get(name), older.get(name)
        if new == old:
            continue
        if isinstance(new, dict) and isinstance(old, dict):
            name = f"{name} ({', '.join(sorted(key for key in {*new, *old} if new.get(key) != old.get(key)))})"
        yield name


def forget(files: Exchange, step: str) -> None:
    """Mark a step to be run again, if it has ever run: remove the lists and logs of its tasks.

    Args: step: its name.
    """
    files.remove(f"{STEPS}/{step}")


def number_step(step: Step, number: int) -> None:
    """Record the place of a step in its run, and how many tasks it has, for `lemur status`.

    Args: number: counted from 1.
    """
    step.files.write_text(f"{STEPS}/{step.name}/{ABOUT}", json.dumps({"number": number, "tasks": step.tasks}))


def check_memory(memory: Mapping[str, int], kinds: Sequence[str]) -> None:
    """Check the kinds of steps that memory is to be reserved for.

    Args:
        memory: MiB by kind of step; "" for all other steps.
        kinds: the kinds of steps that the command has.
    Raises: UsageError if the command does not have one of them.
    """
    unknown = next((kind for kind in memory if kind and kind not in kinds), None)
    if unknown is not None:
        raise UsageError(f"--memory {unknown}=…: no such step; there are {', '.join(kinds)}")


def find_memory(memory: Mapping[str, int], step: Step) -> int:
    """Return the MiB to reserve for a task of a step; 0 for no reservation."""
    return memory.get(step_kind(step.name), memory.get("", 0))


def step_kind(name: str) -> str:
    """Return the name of a step without its numbers: `round` for `pass-2-round-03`."""
    return re.sub(r"^pass-\d+-|-\d+$", "", name)


def is_done(step: Step, rank: int) -> bool:
    """Return whether a task has finished.

    Args: rank: the rank of the task, from 0.
    Returns: True once the list of its files is written.
    """
    return step.files.has(_task_name(step.name, DONE, rank))


def fetch_parts(wanted: Sequence[PartFile], files: Exchange, *, whole: bool = True) -> list[Path]:
    """Return local paths of files that finished tasks wrote, each as its task left it.

    Args:
        wanted: the files, in the order of the result.
        whole: compare digests, too, which reads the files; else only sizes.
    Returns: paths in the folder itself, or of copies that disappear with the task.
    Raises: UserError naming the first file that is missing or differs; the parts of all such files are not done then.
    """
    faults = list(_find_faults(wanted, files, whole=whole))
    if not faults:
        return files.get(*(part.name for part in wanted))
    for part, _ in faults:
        for folder in (DONE, STARTED):
            files.remove(_task_name(part.step, folder, part.rank))
    part, fault = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise UserError(
        f"{files}: {part.name}, of part {part.rank} of step {part.step}, {fault}{more}; start again to compute it again"
    )


def _find_faults(wanted: Sequence[PartFile], files: Exchange, *, whole: bool) -> Iterator[tuple[PartFile, str]]:
    lists = {(part.step, part.rank): _task_name(part.step, DONE, part.rank) for part in wanted}
    paths = files.get_existing(*lists.values(), *(part.name for part in wanted))
    stated = {key: _read_list(paths.get(name)) for key, name in lists.items()}
    for part in wanted:
        path, expected = paths.get(part.name), stated[part.step, part.rank].get(part.name)
        if path is None:
            yield part, "is missing"
        elif expected is None:
            yield part, "is not of a finished task"
        elif (size := path.stat().st_size) != expected[0]:
            yield part, f"has {size} bytes, not {expected[0]}"
        elif whole and _describe(path) != expected:
            yield part, "has changed"


def _describe(path: Path) -> list[int | str]:
    return [path.stat().st_size, sha256_file(path)[:_DIGITS]]


def _read_list(path: Path | None) -> dict[str, list[int | str]]:
    """Return size and digest of the files that a task has written, by name; nothing if the list is damaged."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        return listed if isinstance(listed, dict) and all(len(item) == 2 for item in listed.values()) else {}
    except (ValueError, TypeError):
        return {}


def _task_name(step: str, folder: str, rank: int) -> str:
    return f"{STEPS}/{step}/{folder}/{rank:05d}"
