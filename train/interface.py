"""The Python interface of training: `train`, `Run`, `register`, and `assemble` and `ablate` of the modules below.

The command line calls the same functions.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import UserError
from lemur_core.files.progress import hide_progress
from manifests.folders.kinds import Check
from manifests.folders.manifest import Manifest, read_manifest
from manifests.records import TrainingRecord
from train.compose.assemble import assemble as assemble
from train.data import Cifar10, count_images, open_data
from train.model.recipe import Network, Recipe, to_recipe
from train.runs.job import NET, WEIGHTS, EpochFigures, read_history, read_record
from train.runs.register import RegistrationCounts
from train.runs.register import register as register_runs
from train.runs.run import Resources, TrainingRun, train_once
from train.runs.run_folder import result_text, verify
from train.studies.ablation import ablate as ablate


@dataclass(frozen=True, init=False, repr=False)
class Run:
    """Open a folder that `train` wrote. A run is a path, too: pass it wherever a folder is expected.

    Attributes:
        folder: the folder of the run.
        record: what was trained, on which data, how, and the result.

    Args:
        folder: a finished training run.

    Raises:
        UserError: if the folder is not a training run.

    Example:
        ```python
        from train import Run

        run = Run("runs/plain")
        print(run.record.status, run.record.test_accuracy, len(run.history))
        assert all(check.ok for check in run.verify())
        ```
    """

    folder: Path
    record: TrainingRecord = field(compare=False)

    def __init__(self, folder: PathLike) -> None:
        object.__setattr__(self, "folder", Path(folder))
        try:
            object.__setattr__(self, "record", read_record(self.folder))
        except (OSError, ValueError) as error:
            detail = str(error).splitlines()[0]
            raise UserError(
                f"{folder}: is not a training run: {detail}; give a folder that `lemur train run` wrote"
            ) from error

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        record = self.record
        return f"<Run {self.folder} {record.name}, seed {record.seed}: {result_text(record)}>"

    @property
    def ok(self) -> bool:
        """Return True if the run came to its end; `record.status` and `record.error` state why it did not."""
        return self.record.status == "ok"

    @property
    def manifest(self) -> Manifest:
        """Return the manifest: how the run was produced, with digests of all files."""
        return read_manifest(self.folder)

    @property
    def history(self) -> tuple[EpochFigures, ...]:
        """Return the figures of each epoch."""
        return tuple(read_history(self.folder))

    @property
    def code(self) -> str:
        """Return the file of the network."""
        return (self.folder / NET).read_text(encoding="utf-8")

    @property
    def weights(self) -> Path:
        """Return the file of the weights. Foreign code wrote it: read it with `torch.load(..., weights_only=True)`."""
        return self.folder / WEIGHTS

    def verify(self) -> tuple[Check, ...]:
        """Return all checks of the folder: its files, record and manifest state the same."""
        return tuple(verify(self.folder))


def train(
    network: Network,
    *,
    data: PathLike | Cifar10,
    out: PathLike | None = None,
    seed: int = 0,
    recipe: Recipe | PathLike | None = None,
    library: PathLike | None = None,
    held_out: int = 5000,
    images: int | None = None,
    resources: Resources | None = None,
    force: bool = False,
    progress: bool = False,
) -> Run:
    """Train a network on CIFAR-10, and evaluate it once on the test images after the last epoch.

    An interrupted run continues after its last complete epoch when it is called again; a complete one is not trained
    again.

    Args:
        network: the network; its code is run in the sandbox only.
        data: CIFAR-10 in any of its forms, or `synthetic[:COUNT]` for smoke tests.
        out: the folder to write; `runs/NAME-seedSEED` by default.
        seed: of weights, order and augmentation.
        recipe: how to train; that of the network by default, else the recipe `plain`.
        library: the extraction that holds the blocks of the network, which the manifest then names.
        held_out: training images to validate on; 0 trains on all.
        images: how many of the other images to train on; all by default.
        resources: threads, device, memory and time limits, and whether to run without the sandbox.
        force: replace another run in `out`, or train the same one again if it failed.
        progress: show progress on stderr.

    Returns:
        The run. A run that failed is returned, too: see `Run.ok`.

    Raises:
        UserError: if the data cannot be read, or `out` holds something else or cannot be written; or if the run was
            interrupted by its time limit, so that the same call continues it.

    Example:
        ```python
        from train import train

        run = train(network, data="synthetic:320", out="runs/plain", seed=0, held_out=64)
        print(run.ok, run.record.test_accuracy)
        ```
    """
    if recipe is None:
        recipe = network.recipe or "plain"
    wanted = to_recipe(recipe)
    folder = Path("runs") / f"{network.name}-seed{seed}" if out is None else Path(out)
    with hide_progress(unless=progress):
        limits, cifar10 = resources or Resources(), open_data(data)
        count_images(cifar10, held_out, images)
        run = TrainingRun(network, wanted, seed, cifar10, held_out, images)
        blocks = None if library is None else Path(library)
        record = train_once(run, folder, resources=limits, force=force, library=blocks, quiet=not progress)
    if not (folder / NET).is_file():
        raise UserError(f"{folder}: {record.status}: {record.error}; the same call continues the run")
    return Run(folder)


def register(runs: PathLike | Sequence[PathLike], *, db: PathLike) -> RegistrationCounts:
    """Add the trials of runs to a LEMUR database (nn-dataset 2.1.0). Adding them again changes nothing.

    Args:
        runs: runs, or their folders.
        db: an SQLite database; it is created if it does not exist.

    Returns:
        How many trials were added, how many were in it already, and one line for each run that was refused.

    Raises:
        UserError: if the database cannot be opened or written, or is not one of LEMUR's.

    Example:
        ```python
        from train import register

        result = register(run, db="lemur.db")
        print(result.added, result.failed)
        ```
    """
    folders = [runs] if isinstance(runs, str | os.PathLike) else runs
    return register_runs(Path(db), list(map(Path, folders)), verify)
