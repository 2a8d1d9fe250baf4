"""Work divided into steps and tasks, run here, with Slurm, or on Ray.

A step is a function of a task's rank and the number of tasks; a step begins when all tasks of the previous one are
done. A finished task leaves a list of its files, so that an interrupted run resumes. Steps exchange files in a folder
that all machines see, or at an address; nothing else passes between them.

Here and on Ray, each task runs in a monitored process: if one is killed, the run ends at once with a one-line message,
where datatrove's own pool would wait forever. With Slurm, all jobs are queued at once: `lemur_core.distributed.slurm`.
"""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal

from lemur_core.distributed.exchange import Exchange
from lemur_core.distributed.parts import Step, describe_error, find_memory, number_step
from lemur_core.distributed.slurm import queue_on_slurm
from lemur_core.distributed.tasks import StepTasks, silence
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from lemur_core.files.workers import start_worker

Executor = Literal["local", "slurm", "ray"]


def run_steps(
    executor: Executor, steps: Iterable[Step], work: Exchange, workers: int, memory: Mapping[str, int]
) -> list[str] | None:
    """Run steps on an executor.

    Args:
        steps: each is requested once the previous one is done; for Slurm, all before any has run.
        work: its folder `steps` receives lists of files and logs.
        workers: the maximum number of tasks in parallel.
        memory: MiB that Slurm or Ray reserve for a task, by kind of step; "" for all other steps.
    Returns: the IDs of the queued jobs; None if everything was run.
    Raises: UserError if a task fails or is killed; the next run resumes.
    """
    if executor == "slurm":
        return queue_on_slurm(steps, work, workers, memory)
    work.sweep()
    if executor == "local":
        run_here(steps, workers)
    else:
        run_on_ray(steps, workers, memory)
    return None


class _KilledError(Exception):
    """The process of a task ended before the task did."""


def run_here(steps: Iterable[Step], workers: int) -> None:
    """Run steps one after the other on this machine, with up to `workers` tasks in parallel.

    Args: steps: advanced to the next step when the previous one is done.
    Raises: UserError if a task fails or is killed; the next run resumes.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # a stray train.py or curate.py in the working folder must not be imported
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_task_process)

    def run(tasks: StepTasks) -> None:
        running: set[Future[None]] = {pool.submit(_run_rank, tasks, rank) for rank in tasks.get_incomplete_ranks()}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    future.result()
                except BrokenProcessPool as error:
                    raise _KilledError from error

    try:
        _run_each(steps, run)
    finally:
        # Killed, because the pool would wait for the tasks that still run.
        for process in multiprocessing.active_children():
            process.kill()
        with contextlib.suppress(Exception):
            pool.shutdown(cancel_futures=True)


def run_on_ray(steps: Iterable[Step], workers: int, memory: Mapping[str, int]) -> None:
    """Run steps one after the other on the Ray cluster at `RAY_ADDRESS`, or the one started on this machine.

    Raises: UserError as in `run_here`, or if there is no cluster, or none of its machines has the memory of a task.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError(f"--executor ray: {error}; install it with: pip install 'lemur-curator[cluster]'") from error
    silence()
    try:
        ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    except ConnectionError as error:
        raise UserError(
            "--executor ray: there is no cluster; start one (ray start --head), or set RAY_ADDRESS"
        ) from error

    def run(tasks: StepTasks) -> None:
        # No retries: if a task is killed the run ends at once, as it does locally.
        remote = ray.remote(num_cpus=1, max_retries=0, memory=find_memory(memory, tasks.step) << 20)(_run_rank)
        waiting: list[int] = tasks.get_incomplete_ranks()
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(remote.remote(tasks, waiting.pop(0)))
            done, running = ray.wait(running)
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:
                raise _KilledError from error

    try:
        sizes = (int(node["Resources"].get("memory", 0)) >> 20 for node in ray.nodes() if node["Alive"])
        wanted, largest = max(memory.values(), default=0), max(sizes, default=0)
        if wanted > largest:  # Ray would wait for such a machine forever
            raise UserError(f"--memory {wanted}M: no machine of the cluster has more than {largest}M; ask for less")
        _run_each(steps, run)
    finally:
        ray.shutdown()


def _run_each(steps: Iterable[Step], run: Callable[[StepTasks], None]) -> None:
    """Run steps one after the other; `run` runs those tasks of a step that are not done."""
    for number, step in enumerate(steps, 1):
        number_step(step, number)
        tasks = StepTasks(step)
        before = len(tasks.get_incomplete_ranks())
        try:
            run(tasks)
        except UserError:
            raise
        except Exception as error:
            why = "a task was killed" if isinstance(error, _KilledError) else describe_error(error)
            raise _cut_short(tasks, why) from error
        earlier = f", {step.tasks - before} before" if before < step.tasks else ""
        note(f"{step.name}: {before} of {step.tasks} tasks done{earlier}" if before else f"{step.name}: done before")


def _run_rank(tasks: StepTasks, rank: int) -> None:
    tasks.run_rank(rank)


def _start_task_process() -> None:
    start_worker()
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 (tracebacks go to the logs; the parent prints the message)


_NAMED = 20  # tasks


def _cut_short(tasks: StepTasks, why: str) -> UserError:
    step, ranks = tasks.step, tasks.get_incomplete_ranks()
    left = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")
    logs = f"logs: {step.files}/steps/{step.name}/logs"
    return UserError(
        f"{step.name}: {why}; not done of {plural(step.tasks, 'task')}: {left}; {logs}; start again to resume"
    )
