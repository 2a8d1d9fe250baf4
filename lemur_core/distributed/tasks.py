"""A step in the form that datatrove takes: its tasks and their logs; what is done is listed by `run_part`."""

import warnings
from typing import Any

from lemur_core.distributed.parts import STEPS, Step, run_part
from lemur_core.files.errors import UserError

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dill as dill  # of datatrove
        from datatrove.executor.base import PipelineExecutor
        from datatrove.executor.slurm import SlurmPipelineExecutor as SlurmPipelineExecutor
        from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise UserError(f"--executor: {error}; install it with: pip install 'lemur-curator[cluster]'") from error


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
        """Return what datatrove puts into the environment: no task needs to know the others."""
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
