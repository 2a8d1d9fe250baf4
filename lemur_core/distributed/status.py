"""The status of a distributed run, read from its work folder without changing it and without an executor."""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from lemur_core.distributed.exchange import ABOUT, DONE, LOCK, PLAN, STARTED, STEPS, Exchange
from lemur_core.files import Json
from lemur_core.files.atomic import find_holder, process_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible

#: The file that lists the queued jobs.
JOBS = "jobs.txt"

_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task that has started and not finished.

    Attributes:
        state: "running" or "failed"; a task whose process was killed has failed.
        where: its host, process and start time.
        reason: why it failed.
        log: the last lines of its log.
    """

    rank: int
    state: str
    where: str
    reason: str
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepStatus:
    """One step: how many of its tasks are done, running, failed and waiting; `started` are those running or failed."""

    name: str
    tasks: int
    done: int
    running: int
    failed: int
    waiting: int
    started: tuple[TaskStatus, ...]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run: the process that holds its folder (a remote one has no lock), its queued jobs by state, and its steps."""

    work: str
    held_by: str | None
    jobs: dict[str, int]
    steps: tuple[StepStatus, ...]


def read_status(work: str, *, lines: int) -> RunStatus:
    """Read the status of a run.

    Args:
        work: the folder or address that was given as `--work`.
        lines: the number of log lines to read for each task that is running or has failed.
    Returns: the steps in the order of the run; waiting tasks have no log.
    Raises: UserError if no run was started there, or Slurm does not answer.
    """
    files = Exchange(work)
    try:
        exists = files.has(PLAN)
    except Exception as error:  # each file system raises its own exceptions
        message = str(error).partition("\n")[0]
        raise UserError(f"{work}: cannot be read: {type(error).__name__}: {message}") from error
    if not exists:
        raise UserError(
            f"{work}: holds no run in tasks; name the --work of a command with --executor (default: OUT.work)"
        )
    jobs = list_jobs(files)
    holder = None if files.remote else find_holder(files.here / LOCK)
    at_work = files.remote or holder is not None
    paths = {name: f"{STEPS}/{name}/{ABOUT}" for name in files.folders(STEPS)}
    steps = [(name, facts) for name, path in paths.items() if (facts := _read_facts(files, path, "number", "tasks"))]
    steps.sort(key=lambda step: step[1]["number"])
    statuses = tuple(_read_step(files, name, facts["tasks"], jobs, at_work, lines) for name, facts in steps)
    return RunStatus(str(files), holder, dict(Counter(jobs.values())), statuses)


def _read_step(
    files: Exchange, name: str, tasks: int, jobs: Mapping[str, str], at_work: bool, lines: int
) -> StepStatus:
    """Read the state of a step's tasks. Args: at_work: whether a process of the run may be running."""

    def list_ranks(folder: str) -> set[int]:
        names = (name.rpartition("/")[2] for name in files.names(f"{STEPS}/{name}/{folder}"))
        return {int(name) for name in names if name.isdecimal()}

    done = list_ranks(DONE)
    started = [_read_task(files, name, rank, jobs, at_work, lines) for rank in sorted(list_ranks(STARTED) - done)]
    shown = tuple(task for task in started if task is not None)
    states = Counter(task.state for task in shown)
    waiting = tasks - len(done) - len(shown)
    return StepStatus(name, tasks, len(done), states["running"], states["failed"], waiting, shown)


def _read_task(
    files: Exchange, step: str, rank: int, jobs: Mapping[str, str], at_work: bool, lines: int
) -> TaskStatus | None:
    """Read the state of a task; None if it waits."""
    facts = _read_facts(files, f"{STEPS}/{step}/{STARTED}/{rank:05d}", "host", "pid", "since")
    queued = jobs.get(facts.get("job", "")) if facts is not None else None
    if facts is None or (queued is not None and queued not in _RUNNING):  # Slurm has put it back into the queue
        return None
    alive = queued is not None if "job" in facts else at_work
    reason = facts.get("failed", "" if alive else "its process was killed")
    where = process_text(facts) + (f", job {facts['job']}" if "job" in facts else "")
    name = f"{STEPS}/{step}/logs/task_{rank:05d}.log"
    log = [line for line in files.read_text(name).splitlines() if line.strip()] if lines and files.has(name) else []
    return TaskStatus(rank, "failed" if reason else "running", where, reason, tuple(log[-lines:]))


def status_text(status: RunStatus) -> str:
    """Format the status of a run as `lemur status` prints it.

    Args: status: from `read_status`.
    Returns: a line for each step, followed by its tasks that are running or have failed.
    """
    at_work = [status.held_by] if status.held_by else []
    at_work += [f"{count} {state.lower()} in Slurm's queue" for state, count in sorted(status.jobs.items())]
    width = max((len(step.name) for step in status.steps), default=4)
    lines = [f"{status.work}: {'; '.join(at_work) or 'no process at work is visible from here'}"]
    lines.append(f"{'step':<{width}} {'done':>6} {'running':>8} {'failed':>7} {'waiting':>8}")
    for step in status.steps:
        lines.append(f"{step.name:<{width}} {step.done:>6} {step.running:>8} {step.failed:>7} {step.waiting:>8}")
        for task in step.started:
            lines.append(f"  task {task.rank} {task.state}: {task.reason or task.where}")
            lines += [f"    {make_visible(line, _LOG_WIDTH)}" for line in task.log]
    return "\n".join(lines)


_LOG_WIDTH = 160


def _read_facts(files: Exchange, name: str, *keys: str) -> Json | None:
    """Read a small JSON file of a run; None if it has just been removed. Raises: UserError if it is damaged."""
    try:
        facts = json.loads(files.read_text(name))
    except FileNotFoundError:
        return None
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or not all(key in facts for key in keys):
        raise UserError(f"{files}: {name} is damaged; remove it, and start the run again")
    return facts


def list_jobs(work: Exchange) -> dict[str, str]:
    """Return the states of a run's jobs in Slurm's queue, by job id; each task of an array has its own id.

    Raises: UserError if Slurm does not answer.
    """
    queued = work.read_text(JOBS).strip() if work.has(JOBS) else ""
    if not queued or shutil.which("squeue") is None:
        return {}
    queue = run_slurm("squeue", "--noheader", "--array", "--format=%A %T", f"--jobs={queued}")
    if queue.returncode and "Invalid job id" not in queue.stderr:  # reported for jobs that have left the queue
        raise UserError(
            f"{work}: squeue fails: {(queue.stderr.strip() or 'no reason given').splitlines()[-1]}; try again"
        )
    return dict(line.split(maxsplit=1) for line in queue.stdout.splitlines() if len(line.split()) == 2)


def run_slurm(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a Slurm command and return its result; one with empty output if Slurm is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 0, "", "")
