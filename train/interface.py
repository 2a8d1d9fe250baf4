"""The Python interface of training: compose a network of blocks, train it, compare variants, register runs.

Everything here calls the modules below; the command line and programs therefore do the same.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lemur_core.files.atomic import PathLike
from lemur_core.files.errors import UserError
from lemur_core.files.progress import hide_progress
from manifests.folders.checks import Check
from manifests.folders.manifest import Manifest, read_manifest
from manifests.records import TrainingRecord
from train.compose.assemble import assemble as assemble_network
from train.data import Cifar10, count_images, load_cifar10
from train.model.recipe import Network, Recipe, find_recipe
from train.runs.job import WEIGHTS, EpochFigures, read_history
from train.runs.page import NET, read_record
from train.runs.register import RegistrationCounts
from train.runs.register import register as register_runs
from train.runs.run import Resources, TrainingRun, train_once
from train.runs.verify import verify
from train.studies.ablation import Row
from train.studies.ablation import ablate as ablate_recipe


def assemble(recipe: Recipe | PathLike, library: PathLike | None = None, *, unsafe_no_sandbox: bool = False) -> Network:
    """Compose a network of blocks: one closed Python file by LEMUR's contract, checked by running it in the sandbox.

    Args:
        recipe: a recipe, a TOML file, or the name of a shipped recipe.
        library: the extraction that holds the blocks; not needed for a recipe of built-in parts.
        unsafe_no_sandbox: run the blocks without the sandbox; only for code that you trust.

    Returns:
        The network: its name, code, hyperparameters, blocks and recipe.

    Raises:
        UserError: if a block is unknown or does not fit its slot, or the network does not run.
        UsageError: if there is no recipe of this name.

    Example:
        ```python
        from train import assemble, find_recipe

        small = find_recipe("plain").changed(model__widths=[8, 8, 8], training__epochs=1, training__batch_size=32)
        network = assemble(small)
        print(network.code.splitlines()[0])
        ```
    """
    wanted = recipe if isinstance(recipe, Recipe) else find_recipe(os.fspath(recipe))
    with hide_progress():
        return assemble_network(wanted, None if library is None else Path(library), unsafe=unsafe_no_sandbox)


@dataclass(frozen=True, init=False)
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
    record: TrainingRecord = field(repr=False, compare=False)

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
    wanted = recipe if isinstance(recipe, Recipe) else find_recipe(os.fspath(recipe))
    folder = Path("runs") / f"{network.name}-seed{seed}" if out is None else Path(out)
    with hide_progress(unless=progress):
        limits, cifar10 = resources or Resources(), _open_data(data)
        count_images(cifar10, held_out, images)
        run = TrainingRun(network, wanted, seed, cifar10, held_out, images)
        blocks = None if library is None else Path(library)
        record = train_once(run, folder, resources=limits, force=force, library=blocks, quiet=not progress)
    if not (folder / NET).is_file():
        raise UserError(f"{folder}: {record.status}: {record.error}; the same call continues the run")
    return Run(folder)


@dataclass(frozen=True, slots=True)
class Ablation:
    """Hold the results of an ablation.

    Attributes:
        folder: the folder with the table, the figure and all runs.
        rows: one for each variant, the full recipe first: accuracy, and the paired difference to the full recipe.
    """

    folder: Path
    rows: tuple[Row, ...]

    def __fspath__(self) -> str:
        return str(self.folder)


def ablate(
    recipe: Recipe | PathLike,
    library: PathLike | None = None,
    *,
    data: PathLike | Cifar10,
    out: PathLike,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[str] = (),
    held_out: int = 5000,
    images: int | None = None,
    resources: Resources | None = None,
    force: bool = False,
    progress: bool = False,
) -> Ablation:
    """Train a recipe with one ingredient left out at a time, with the same seeds, and compare the accuracies in pairs.

    Args:
        recipe: a recipe, a TOML file, or the name of a shipped recipe.
        library: the extraction that holds the blocks.
        data: CIFAR-10 in any of its forms, or `synthetic[:COUNT]` for smoke tests.
        out: the folder to write, or to continue in.
        seeds: every variant is trained with each.
        variants: `NAME: KEY=VALUE` in place of the standard variants; values as in TOML.
        held_out: training images to validate on.
        images: how many of the other images to train on; all by default.
        resources: threads, device, memory and time limits.
        force: continue with another plan, and train again what failed.
        progress: show progress on stderr.

    Returns:
        The folder and a row for each variant.

    Raises:
        UsageError: if seeds or variants cannot be used.
        UserError: if a variant cannot be assembled, or `out` holds another study.

    Example:
        ```python
        from train import ablate

        changes = ["no flip: augmentation.flip=false"]
        study = ablate(small, data="synthetic:320", out="ablation", seeds=[0], variants=changes, held_out=64)
        print([(row.variant, row.mean) for row in study.rows])
        ```
    """
    wanted = recipe if isinstance(recipe, Recipe) else find_recipe(os.fspath(recipe))
    with hide_progress(unless=progress):
        rows = ablate_recipe(
            wanted,
            None if library is None else Path(library),
            data=_open_data(data),
            out=Path(out),
            seeds=seeds,
            written=variants,
            held_out=held_out,
            images=images,
            resources=resources or Resources(),
            force=force,
        )
    return Ablation(Path(out), tuple(rows))


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
    return register_runs(Path(db), list(map(Path, folders)))


def _open_data(data: PathLike | Cifar10) -> Cifar10:
    return data if isinstance(data, Cifar10) else load_cifar10(os.fspath(data))
