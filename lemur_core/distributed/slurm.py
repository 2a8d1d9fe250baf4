"""Steps as jobs of Slurm: all are queued at once, each depends on the previous one, and no process of ours stays.

A step is a job array, or several if it has more tasks than the cluster allows in one; they run one after the other, so
that `--workers` holds for all of them together, and the next step waits for each. A job that is preempted, or whose
machine fails, is queued again by Slurm; its task writes the same files. If a task fails, later steps leave the queue.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lemur_core.distributed.exchange import Exchange
from lemur_core.distributed.parts import Step, find_memory, number_step
from lemur_core.distributed.status import JOBS, list_jobs, run_slurm
from lemur_core.distributed.tasks import ListedTasks, SlurmPipelineExecutor, StepPipeline, dill, log_folder, silence
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note

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

        Args:
            after: the jobs of the previous step.
            memory: MiB for a task; 0 for what the site gives.
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
