"""Work divided into steps and tasks, run here, with Slurm, or on Ray.

A step is a function of a task's rank and the number of tasks; a step begins when all tasks of the previous one are
done. A finished task leaves a list of its files, so that an interrupted run resumes. Steps exchange files in a folder
that all machines see, or at an address; nothing else passes between them.

Here and on Ray, each task runs in a monitored process: if one is killed, the run ends at once with a one-line message,
where datatrove's own pool would wait forever.

With Slurm, all steps are queued at once, each depends on the previous one, and no process of ours stays. A step is a
job array, or several if it has more tasks than the cluster allows in one; they run one after the other, so that
`--workers` holds for all of them together, and the next step waits for each. A job that is preempted, or whose machine
fails, is queued again by Slurm; its task writes the same files. If a task fails, later steps leave the queue.
"""

import contextlib
import json
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal

from lemur_core.distributed.exchange import STEPS, Exchange, Step, describe_error, find_memory, number_step, run_part
from lemur_core.distributed.status import JOBS, list_jobs, run_slurm
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from lemur_core.files.workers import start_worker

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dill as dill  # of datatrove
        from datatrove.executor.base import PipelineExecutor
        from datatrove.executor.slurm import SlurmPipelineExecutor as SlurmPipelineExecutor
        from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise UserError(f"--executor: {error}; install it with: pip install 'lemur-curator[cluster]'") from error

Executor = Literal["local", "slurm", "ray"]


# -- the tasks of a step, in the form that datatrove takes --------------------------------------------


class StepPipeline(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """The only stage of a task."""

    type = "lemur"

    def __init__(self, step: Step) -> None:
        self.name = step.name
        super().__init__()
        self._step = step

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> tuple[()]:  # noqa: ARG002
        """Run one task."""
        run_part(self._step, rank)
        return ()


class ListedTasks:
    """For executors of datatrove: a task is done once `run_part` has listed its files."""

    def mark_rank_as_completed(self, rank: int) -> None:
        """Do nothing; datatrove would empty the list."""

    def get_distributed_env(self, node_rank: int = -1) -> dict[str, str]:  # noqa: ARG002
        """Return the environment variables that datatrove sets; no task needs to know the others."""
        names = ("node_ips", "cpus_per_task", "mem_per_cpu", "gpus_on_node", "executor")
        return dict.fromkeys((f"datatrove_{name}" for name in names), "")


class StepTasks(ListedTasks, PipelineExecutor):  # type: ignore[misc]
    """The tasks of a step, for processes that are started here."""

    def __init__(self, step: Step) -> None:
        super().__init__([StepPipeline(step)], log_folder(step))
        self.step = step

    @property
    def world_size(self) -> int:
        """The number of tasks."""
        return self.step.tasks

    def run(self) -> None:
        """Run all tasks that are not done, one after the other."""
        for rank in self.get_incomplete_ranks():
            self.run_rank(rank)

    def run_rank(self, rank: int) -> None:
        """Run one task, with its log in the work folder and nothing on the terminal."""
        try:
            self._run_for_rank(rank, 1)  # 1: log to its file only
        finally:
            self.step.files.discard_copies()


def log_folder(step: Step) -> Any:
    """Return the folder of a step for datatrove: logs, and the lists of finished tasks."""
    return step.files.logs(f"{STEPS}/{step.name}")


def silence() -> None:
    """Silence datatrove's progress on stderr; the logs have it too."""
    from loguru import logger

    logger.remove()


# -- here and on Ray --------------------------------------------


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
        try:  # a process that was killed between two steps is noticed by `submit`
            running: set[Future[None]] = {pool.submit(tasks.run_rank, rank) for rank in tasks.get_incomplete_ranks()}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
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
        remote = ray.remote(num_cpus=1, max_retries=0, memory=find_memory(memory, tasks.step) << 20)(StepTasks.run_rank)
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


# -- with Slurm --------------------------------------------

#: Tasks of an array, if Slurm does not state its limit.
_ARRAY = 1000

#: Left to Slurm's defaults and the user's SBATCH_... variables, which directives would override.
_OF_THE_SITE = ("partition", "time", "mem-per-cpu", "qos")


class _ArrayTasks(ListedTasks, SlurmPipelineExecutor):  # type: ignore[misc]  # datatrove has no types
    """The tasks of a step as job arrays; unpickled by each job, which runs one of them."""

    def __init__(self, step: Step, workers: int, array: int) -> None:
        super().__init__(
            [StepPipeline(step)],
            step.tasks,
            time="",
            partition="",
            workers=workers,
            job_name=f"lemur-{step.name}",
            env_command=f'export PATH="{Path(sys.executable).parent}:$PATH" PYTHONSAFEPATH=1',
            sbatch_args={"kill-on-invalid-dep": "yes"},
            logging_dir=log_folder(step),
            requeue=True,
            max_array_size=array,
        )

    def submit(self, after: Sequence[str], memory: int) -> Iterator[str]:
        """Queue the tasks that are not done, and yield the id of each array.

        Args: after: the jobs of the previous step. memory: MiB for a task; 0 for what the site gives.
        Raises: UserError with Slurm's reason if it refuses a job.
        """
        ranks = self.get_incomplete_ranks()
        if not ranks:
            return
        with self.logging_dir.open("executor.pik", "wb") as file:
            dill.dump(self, file, fmode=dill.CONTENTS_FMODE)
        with self.logging_dir.open("ranks_to_run.json", "w") as file:
            json.dump(ranks, file)
        command = f"launch_pickled_pipeline {shlex.quote(self.logging_dir.resolve_paths('executor.pik'))}"
        waits = [f"afterok:{':'.join(after)}"] if after else []
        for offset, start in enumerate(range(0, len(ranks), self.max_array_size)):
            directives = self.get_sbatch_args(min(self.max_array_size, len(ranks) - start))
            chosen = {name: value for name, value in directives.items() if name not in _OF_THE_SITE}
            # On the command line, since a variable of the user would override a directive.
            words = ["--parsable", f"--export=ALL,RUN_OFFSET={offset}", *([f"--mem={memory}M"] if memory else [])]
            words += [f"--dependency={','.join(waits)}"] if waits else []
            script = self.get_launch_file_contents(chosen, command)
            done = subprocess.run(["sbatch", *words], input=script, capture_output=True, text=True, check=False)
            if done.returncode:
                raise UserError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
            (job,) = re.findall(r"\d+", done.stdout)[:1]  # "12", or "12;cluster"
            yield job
            waits = [*waits[: bool(after)], f"afterany:{job}"]


def queue_on_slurm(steps: Iterable[Step], work: Exchange, workers: int, memory: Mapping[str, int]) -> list[str]:
    """Queue all steps, each depending on the previous one. Returns: the job IDs; empty if everything is done.

    Args: memory: as for `run_steps`.
    Raises: UserError if Slurm is missing, refuses a job, or still has jobs of an earlier call.
    """
    if shutil.which("sbatch") is None:
        raise UserError("--executor slurm: there is no sbatch command; start this where jobs can be queued")
    if left := list_jobs(work):
        raise UserError(f"{work}: its jobs are still queued: {', '.join(left)}; wait, or scancel them")
    work.sweep()
    silence()
    array = _read_array_limit()
    jobs: list[str] = []
    after: list[str] = []
    for number, step in enumerate(steps, 1):
        number_step(step, number)
        own: list[str] = []
        try:
            for job in _ArrayTasks(step, workers, array).submit(after, find_memory(memory, step)):
                own.append(job)
                jobs.append(job)
                # After each job, so that an interrupted call leaves none that the next one does not know.
                work.write_text(JOBS, ",".join(jobs))
        except UserError as error:
            queued = f"; queued before: {', '.join(jobs)}" if jobs else ""
            raise UserError(f"--executor slurm: {step.name}: sbatch refuses the job: {error}{queued}") from error
        after = own or after  # a step without jobs was done before
    note(f"queued: jobs {', '.join(jobs)}; the last one writes the output; logs: {work}/steps")
    return jobs


def _read_array_limit() -> int:
    """Return how many tasks a job array may have here."""
    stated = re.search(r"^MaxArraySize\s*=\s*(\d+)", run_slurm("scontrol", "show", "config").stdout, re.MULTILINE)
    return max(1, int(stated[1])) if stated else _ARRAY
