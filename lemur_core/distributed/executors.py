"""Work divided into steps and tasks, run by datatrove's executors: here, by Slurm, or by Ray.

A step is a function of a task's number and the number of tasks; the next step begins when all tasks of the one before
are done. A task that is done leaves a marker, so that a run that was cut short goes on where it was. Steps exchange
files in a folder that all machines see, or at an address; nothing else passes between them.

Here each task runs in a process that is watched: one that is killed ends the run at once with one line, where
datatrove's own pool would wait for it for ever. On Slurm all jobs are queued at once, each step after the one before,
and no process of ours stays; a failed step takes those after it out of the queue.
"""

import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lemur_core.distributed.exchange import Exchange
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.files.workers import start_worker

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
        from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise UserError(f"--executor: {error}; install it with: pip install 'lemur-curator[cluster]'") from error

Executor = Literal["local", "slurm", "ray"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the work: `run(rank, tasks)` is called once for each rank; it can be pickled."""

    name: str
    tasks: int
    run: Callable[[int, int], None]


class _Pipeline(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """A step as datatrove takes it."""

    type = "lemur"

    def __init__(self, step: Step) -> None:
        self.name = step.name
        super().__init__()
        self._run = step.run

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> tuple[()]:  # noqa: ARG002
        """Do the work of one task."""
        self._run(rank, world_size)
        return ()


class _Local(LocalPipelineExecutor):  # type: ignore[misc]
    """datatrove's tasks, markers and logs on this machine, each task in a watched process."""

    def run_watched(self, pool: ProcessPoolExecutor) -> None:
        """Run the tasks that are not done.

        Raises: BrokenProcessPool if a process was killed; whatever a task raised.
        """
        running: set[Future[None]] = {pool.submit(_run_rank, self, rank) for rank in self.get_incomplete_ranks()}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()


def _run_rank(executor: Any, rank: int) -> None:
    executor._run_for_rank(rank, 1)  # 1: what it logs goes to its file alone


def _start_task_process() -> None:
    start_worker()
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 (tracebacks are in the logs; the line is the parent's)


def begin(work: Exchange, asked: dict[str, Any]) -> None:
    """Say in the work folder what a run asks for, or go on with it.

    Args: asked: what the run depends on; it can be written as JSON.
    Raises: UserError if the folder belongs to a run that asked for something else.
    """
    text = json.dumps(asked, indent=2)
    if not work.has("plan.json"):
        work.write_text("plan.json", text)
    elif (older := json.loads(work.read_text("plan.json"))) != (wanted := json.loads(text)):
        differs = ", ".join(name for name in wanted if wanted[name] != older.get(name))
        raise UserError(f"{work}: holds a run that differs in {differs}; choose another --work, or remove it")


def run_steps(
    executor: Executor, steps: Callable[[bool], Iterable[Step]], work: Exchange, workers: int
) -> list[str] | None:
    """Run steps on an executor. `steps` gives them: with True, each is asked for once the one before is done.

    Returns: the numbers of the jobs that were queued; None where everything is done.
    Raises: UserError if a task fails or is killed; the next run goes on from what is done.
    """
    if executor == "slurm":
        return queue_on_slurm(steps(False), work, workers)
    (run_here if executor == "local" else run_on_ray)(steps(True), work, workers)
    return None


def run_here(steps: Iterable[Step], work: Exchange, workers: int) -> None:
    """Run steps one after the other on this machine, `workers` tasks at a time.

    Args:
        steps: asked for the next one when the one before is done.
        work: markers and logs go into its folder `steps`.

    Raises: UserError if a task fails or is killed; the next run goes on from what is done.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # a stray train.py or curate.py in the working folder must not be imported
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_task_process)
    try:
        for step in steps:
            executor = _Local([_Pipeline(step)], step.tasks, workers, logging_dir=_folder(work, step))
            before = len(executor.get_incomplete_ranks())
            try:
                executor.run_watched(pool)
            except BrokenProcessPool as error:
                raise _cut_short(step, executor, "a task was killed", work) from error
            except UserError:
                raise
            except Exception as error:
                raise _cut_short(step, executor, _named(error), work) from error
            _tell(step, before)
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        with contextlib.suppress(Exception):
            pool.shutdown(cancel_futures=True)


class _Ray(RayPipelineExecutor):  # type: ignore[misc]
    """datatrove's tasks, markers and logs on a Ray cluster, each task one of Ray's: it ends when its process does."""

    def run_watched(self) -> None:
        """Run the tasks that are not done.

        Raises: WorkerCrashedError if a process was killed, RayTaskError with what a task raised.
        """
        import ray

        remote = ray.remote(num_cpus=1, max_retries=0)(_run_rank)
        waiting: list[int] = self.get_incomplete_ranks()
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < self.workers:
                running.append(remote.remote(self, waiting.pop(0)))
            done, running = ray.wait(running)
            ray.get(done)


def run_on_ray(steps: Iterable[Step], work: Exchange, workers: int) -> None:
    """Run steps one after the other on the Ray cluster that `RAY_ADDRESS` names, or the one started here.

    Raises: UserError as `run_here` does, or if there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError(f"--executor ray: {error}; install it with: pip install 'lemur-curator[cluster]'") from error
    _quiet()
    try:
        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise UserError(
            "--executor ray: no cluster is found; start one (ray start --head), or set RAY_ADDRESS"
        ) from error
    try:
        for step in steps:
            executor = _Ray([_Pipeline(step)], step.tasks, workers, logging_dir=_folder(work, step))
            before = len(executor.get_incomplete_ranks())
            try:
                executor.run_watched()
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise error.cause from error
                raise _cut_short(step, executor, _named(error.cause), work) from error
            except ray.exceptions.RayError as error:
                raise _cut_short(step, executor, "a task was killed", work) from error
            _tell(step, before)
    finally:
        ray.shutdown()


class _Slurm(SlurmPipelineExecutor):  # type: ignore[misc]
    """Jobs for which Slurm's own defaults and `SBATCH_...` variables say partition, time, memory and account."""

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        """The directives, without those that would hide the user's."""
        given: dict[str, Any] = super().get_sbatch_args(max_array)
        return {name: value for name, value in given.items() if name not in ("partition", "time", "mem-per-cpu", "qos")}

    def launch_merge_stats(self) -> None:
        """Nothing: no statistics are kept."""


def queue_on_slurm(steps: Iterable[Step], work: Exchange, workers: int) -> list[str]:
    """Queue all steps, each after the one before. Returns: the numbers of the jobs; none where all is done.

    Raises: UserError if Slurm is not there, refuses a job, or has jobs of an earlier call.
    """
    if shutil.which("sbatch") is None:
        raise UserError("--executor slurm: sbatch is not found; start this where jobs can be queued")
    earlier = work.read_text("jobs.txt").strip() if work.has("jobs.txt") else ""
    if earlier and (left := _run(["squeue", "--noheader", "--format=%A", f"--jobs={earlier}"]).split()):
        raise UserError(f"{work}: its jobs are still queued: {', '.join(dict.fromkeys(left))}; wait, or scancel them")
    last: _Slurm | None = None
    jobs = []
    _quiet()
    for step in steps:
        executor = _Slurm(
            [_Pipeline(step)],
            step.tasks,
            time="",
            partition="",
            workers=workers,
            job_name=f"lemur-{step.name}",
            env_command=f'export PATH="{Path(sys.executable).parent}:$PATH" PYTHONSAFEPATH=1',
            sbatch_args={"kill-on-invalid-dep": "yes"},
            logging_dir=_folder(work, step),
            requeue=False,
            with_srun=False,
            max_array_size=1000,
        )
        executor.depends_job_id = None if last is None else last.job_id
        try:
            executor.run()
        except subprocess.CalledProcessError as error:
            raise UserError(f"--executor slurm: {step.name}: sbatch refused the job (see above)") from error
        if executor.job_id != -1:
            last = executor
            jobs.append(str(executor.job_id))
            work.write_text("jobs.txt", ",".join(jobs))
    note(f"queued: jobs {', '.join(jobs)}; the last one writes the output; logs: {work}/steps")
    return jobs


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def forget(work: Exchange, name: str) -> None:
    """Let a step be run again."""
    work.remove(f"steps/{name}")


def _folder(work: Exchange, step: Step) -> Any:
    return work.logs(f"steps/{step.name}")


def _tell(step: Step, before: int) -> None:
    earlier = f", {step.tasks - before} before" if before < step.tasks else ""
    note(f"{step.name}: {before} of {step.tasks} tasks done{earlier}" if before else f"{step.name}: done before")


def _cut_short(step: Step, executor: Any, why: str, work: Exchange) -> UserError:
    left = ", ".join(str(rank) for rank in executor.get_incomplete_ranks())
    logs = f"logs: {work}/steps/{step.name}/logs"
    return UserError(f"{step.name}: {why}; not done of {step.tasks} tasks: {left}; {logs}; start again to go on")


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _quiet() -> None:
    """datatrove tells its progress on stderr; the logs have it too."""
    from loguru import logger

    logger.remove()
