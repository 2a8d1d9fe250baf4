"""Work divided into steps and tasks, run by datatrove's executors: locally, with Slurm, or with Ray.

A step is a function of a task's rank and the number of tasks; a step begins when all tasks of the previous one are
done. A finished task leaves a marker, so that an interrupted run resumes. Steps exchange files in a folder that all
machines see, or at an address; nothing else passes between them.

Locally, each task runs in a monitored process: if one is killed, the run ends at once with a one-line message, where
datatrove's own pool would wait forever. With Slurm, all jobs are queued at once, each step depending on the previous
one, and no process of ours keeps running; if a step fails, the steps after it leave the queue.
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
    """One step of the work: `run(rank, tasks)` is called once for each rank. Picklable."""

    name: str
    tasks: int
    run: Callable[[int, int], None]


class _Pipeline(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """A step in the form that datatrove takes."""

    type = "lemur"

    def __init__(self, step: Step) -> None:
        self.name = step.name
        super().__init__()
        self._run = step.run

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> tuple[()]:  # noqa: ARG002
        """Run one task."""
        self._run(rank, world_size)
        return ()


class _LocalExecutor(LocalPipelineExecutor):  # type: ignore[misc]
    """datatrove's tasks, markers and logs on this machine, each task in a monitored process."""

    def run_watched(self, pool: ProcessPoolExecutor) -> None:
        """Run the tasks that are not done yet.

        Raises: BrokenProcessPool if a process was killed, or whatever a task raised.
        """
        running: set[Future[None]] = {pool.submit(_run_rank, self, rank) for rank in self.get_incomplete_ranks()}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()


def _run_rank(executor: Any, rank: int) -> None:
    executor._run_for_rank(rank, 1)  # 1: log to its file only


def _start_task_process() -> None:
    start_worker()
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 (tracebacks go to the logs; the parent prints the message)


def begin(work: Exchange, parameters: dict[str, Any]) -> None:
    """Record the parameters of a run in the work folder, or check that it is the same run to resume.

    Args: parameters: everything that the run depends on, serializable as JSON.
    Raises: UserError if the folder belongs to a run with other parameters.
    """
    text = json.dumps(parameters, indent=2)
    if not work.has("plan.json"):
        work.write_text("plan.json", text)
    elif (older := json.loads(work.read_text("plan.json"))) != (wanted := json.loads(text)):
        differs = ", ".join(name for name in wanted if wanted[name] != older.get(name))
        raise UserError(f"{work}: holds a run that differs in {differs}; choose another --work, or remove it")


def run_steps(
    executor: Executor, steps: Callable[[bool], Iterable[Step]], work: Exchange, workers: int
) -> list[str] | None:
    """Run steps on an executor.

    Args:
        steps: called once. With True, it yields the steps lazily: each is requested once the previous one is done. With
            False, for Slurm, all are requested before any has run.
        work: its folder `steps` receives markers and logs.
        workers: the maximum number of tasks in parallel.
    Returns: the IDs of the queued jobs; None if everything was run.
    Raises: UserError if a task fails or is killed; the next run resumes.
    """
    if executor == "slurm":
        return queue_on_slurm(steps(False), work, workers)
    (run_here if executor == "local" else run_on_ray)(steps(True), work, workers)
    return None


def run_here(steps: Iterable[Step], work: Exchange, workers: int) -> None:
    """Run steps one after the other on this machine, with up to `workers` tasks in parallel.

    Args:
        steps: advanced to the next step when the previous one is done.
        work: its folder `steps` receives markers and logs.

    Raises: UserError if a task fails or is killed; the next run resumes.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # a stray train.py or curate.py in the working folder must not be imported
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_task_process)
    try:
        for step in steps:
            executor = _LocalExecutor([_Pipeline(step)], step.tasks, workers, logging_dir=_folder(work, step))
            before = len(executor.get_incomplete_ranks())
            try:
                executor.run_watched(pool)
            except BrokenProcessPool as error:
                raise _cut_short(step, executor, "a task was killed", work) from error
            except UserError:
                raise
            except Exception as error:
                raise _cut_short(step, executor, _describe_error(error), work) from error
            _report_done(step, before)
    finally:
        # Killed, because the pool would wait for the tasks that still run.
        for process in multiprocessing.active_children():
            process.kill()
        with contextlib.suppress(Exception):
            pool.shutdown(cancel_futures=True)


class _Ray(RayPipelineExecutor):  # type: ignore[misc]
    """datatrove's tasks, markers and logs on a Ray cluster; each is one Ray task and ends when its process does."""

    def run_watched(self) -> None:
        """Run the tasks that are not done yet.

        Raises: WorkerCrashedError if a process was killed, RayTaskError with what a task raised.
        """
        import ray

        # No retries: if a task is killed the run ends at once, as it does locally.
        remote = ray.remote(num_cpus=1, max_retries=0)(_run_rank)
        waiting: list[int] = self.get_incomplete_ranks()
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < self.workers:
                running.append(remote.remote(self, waiting.pop(0)))
            done, running = ray.wait(running)
            ray.get(done)


def run_on_ray(steps: Iterable[Step], work: Exchange, workers: int) -> None:
    """Run steps one after the other on the Ray cluster at `RAY_ADDRESS`, or the one started on this machine.

    Raises: UserError as in `run_here`, or if there is no cluster.
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
            "--executor ray: there is no cluster; start one (ray start --head), or set RAY_ADDRESS"
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
                raise _cut_short(step, executor, _describe_error(error.cause), work) from error
            except ray.exceptions.RayError as error:
                raise _cut_short(step, executor, "a task was killed", work) from error
            _report_done(step, before)
    finally:
        ray.shutdown()


class _Slurm(SlurmPipelineExecutor):  # type: ignore[misc]
    """Jobs whose partition, time, memory and account come from Slurm's defaults and `SBATCH_...` variables."""

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        """Return the directives, without those that would override the user's settings."""
        arguments: dict[str, Any] = super().get_sbatch_args(max_array)
        return {
            name: value for name, value in arguments.items() if name not in ("partition", "time", "mem-per-cpu", "qos")
        }

    def launch_merge_stats(self) -> None:
        """Do nothing: no statistics are kept."""


def queue_on_slurm(steps: Iterable[Step], work: Exchange, workers: int) -> list[str]:
    """Queue all steps, each depending on the previous one. Returns: the job IDs; empty if everything is done.

    Raises: UserError if Slurm is missing, refuses a job, or still has jobs of an earlier call.
    """
    if shutil.which("sbatch") is None:
        raise UserError("--executor slurm: there is no sbatch command; start this where jobs can be queued")
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
        # -1: all tasks of the step are done, so datatrove has queued nothing.
        if executor.job_id != -1:
            last = executor
            jobs.append(str(executor.job_id))
            # After each job, so that an interrupted call leaves none that the next one does not know.
            work.write_text("jobs.txt", ",".join(jobs))
    note(f"queued: jobs {', '.join(jobs)}; the last one writes the output; logs: {work}/steps")
    return jobs


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def forget(work: Exchange, name: str) -> None:
    """Mark a step to be run again: remove the markers and logs of its tasks.

    Args:
        work: the exchange of the run.
        name: as in `Step.name`; a step that has never run is ignored.
    """
    work.remove(f"steps/{name}")


def _folder(work: Exchange, step: Step) -> Any:
    return work.logs(f"steps/{step.name}")


def _report_done(step: Step, before: int) -> None:
    earlier = f", {step.tasks - before} before" if before < step.tasks else ""
    note(f"{step.name}: {before} of {step.tasks} tasks done{earlier}" if before else f"{step.name}: done before")


def _cut_short(step: Step, executor: Any, why: str, work: Exchange) -> UserError:
    left = ", ".join(str(rank) for rank in executor.get_incomplete_ranks())
    logs = f"logs: {work}/steps/{step.name}/logs"
    return UserError(f"{step.name}: {why}; not done of {step.tasks} tasks: {left}; {logs}; start again to resume")


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _quiet() -> None:
    """Silence datatrove's progress on stderr; the logs have it too."""
    from loguru import logger

    logger.remove()
