"""One training run: from a network, a recipe, a seed and images to a folder with a record, whatever the outcome."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lemur_core.files.atomic import PathLike, atomic_folder, check_ours, check_writable, hold_lock
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import hide_progress, note, quiet
from lemur_core.sandbox import PRELOAD as COMMON
from lemur_core.sandbox import Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import SharedSandbox
from lemur_core.sandbox.server.processes import remove_folder
from lemur_core.sandbox.stage import SandboxStage
from manifests.folders.kinds import Check
from manifests.folders.manifest import Stopwatch, read_manifest
from manifests.records import TrainingRecord
from train.data import Cifar10, count_images
from train.model.recipe import Network, Recipe, to_recipe
from train.runs.job import (
    NET,
    WEIGHTS,
    EpochFigures,
    TrainingJob,
    TrainingReport,
    copy_plain,
    read_history,
    read_progress,
    read_record,
    watching,
)
from train.runs.resources import LIBRARIES
from train.runs.resources import Resources as Resources
from train.runs.run_folder import (
    REAL_IMAGES,
    can_resume,
    check_storable,
    read_training_values,
    result_text,
    verify,
    write_run,
)

#: Its limits are those of the resources of each run.
TRAIN = SandboxStage[TrainingReport]("train.runs.loop:train", TrainingReport, Limits(), retries=False)
PRELOAD = (*COMMON, "torchvision.transforms.v2")

_CHECKPOINTS = 2  # their form; increase it when what the loop keeps in them changes
#: Values of a run's identity that its manifest states, and its record does not: that has the actual device.
_NOT_RECORDED = ("held_out", "device")
_FINAL = ("ok", "diverged")  # running it again would end in the same way
_STUCK = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)  # faulthandler's first line
_FRAME = re.compile(r'File "(?:.*/)?network\.py", line (\d+) in (\S+)')


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The full definition of a run: everything that determines its result, except for the number of threads.

    `held_out`: training images to validate on, the same for every seed; 0 trains on all. `images`: how many of the
    others to train on, None for all; smaller subsets are nested.
    """

    network: Network
    recipe: Recipe
    seed: int
    data: Cifar10
    held_out: int = 5000
    images: int | None = None

    @property
    def image_count(self) -> int:
        """Number of training images. Raises: UserError if there are fewer."""
        return count_images(self.data, self.held_out, self.images)

    def identify(self, device: str) -> dict[str, object]:
        """Return the values that identify the run on a device."""
        import torch

        return {
            "code_sha256": _sha256(self.network.code),
            "prm": json.dumps(dict(self.network.prm), sort_keys=True),
            "recipe_sha256": _sha256(self.network.training_recipe(self.recipe)),
            "seed": self.seed,
            "data_sha256": self.data.sha256,
            "held_out": self.held_out,
            "train_images": self.image_count,
            "device": device,
            "torch": torch.__version__,
            "torchvision": importlib.metadata.version("torchvision"),  # importing it takes seconds
        }

    def key(self, device: str) -> str:
        """Return the key of the run's checkpoints, which is another one where they have another form."""
        return _sha256(f"{_CHECKPOINTS} {json.dumps(self.identify(device), sort_keys=True)}")


def open_sandbox(data: Path, resources: Resources) -> SharedSandbox:
    """Return a sandbox for training runs on the images in that cache folder; it starts with the first of them.

    Args: resources: from `Resources.resolve`.
    """
    assert resources.device != "auto"
    environment = {}
    if resources.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS may not be deterministic
    return SharedSandbox(
        preload=PRELOAD,
        entries=[TRAIN.guest],
        runtime=[*LIBRARIES, *resources.runtime],
        readable=[data],
        workers=1,
        environment=environment,
        unsafe=resources.unsafe,
    )


def train_once(
    run: TrainingRun,
    out: Path,
    *,
    resources: Resources = Resources(),  # noqa: B008 (frozen)
    force: bool = False,
    library: Path | None = None,
    box: SharedSandbox | None = None,
    page: bool = True,
) -> TrainingRecord:
    """Train a network, validate it after each epoch, and evaluate on the test images once, at the end.

    While it runs, its files are in the cache; after an interruption or a time limit the same call resumes there. If
    `OUT` already has this run, it is not trained again. `docs/training.md` lists the files of `OUT`.

    Args:
        run: the run; its network's code is foreign, and is executed only in the sandbox.
        force: replace another run in `out`, or the same one if it failed.
        library: the extraction folder of the network's blocks, to be named in the manifest.
        box: a sandbox from `open_sandbox`, left open; a new one by default.
        page: write a page into its folder, too.

    Returns: the record; if training failed, its status is not `ok` and `error` has the reason.
    Raises: UserError if the arguments contradict each other, LEMUR could not store the hyperparameters, or `out` has
        other content.
    """
    watch, name, resources = Stopwatch(), run.network.name, resources.resolve()
    if run.data.label in REAL_IMAGES:
        check_storable(run.network.prm)
    prm, used = run.network.prm, read_training_values(run.recipe.model_dump(mode="json"))
    for key in sorted(used.keys() & prm.keys()):
        if prm[key] != used[key]:
            message = f"{key} {prm[key]!r} only reaches the constructor; training uses {used[key]!r} (recipe)"
            note(f"{name}: {message}. Change the recipe: --set training.KEY=VALUE")
    identity = run.identify(resources.device)
    finished = find_finished(out, identity, force=force)
    if finished is not None:
        more = "" if finished.status in _FINAL else f"; it ended with {finished.status}: --force trains it again"
        note(f"{out}: already has this run; not trained again{more}")
        return finished
    key = run.key(resources.device)
    with own_scratch(out, key) as scratch:
        if done := len(read_history(scratch)):
            note(f"{name}: resuming after epoch {done} of {run.recipe.training.epochs}")
        payload = TrainingJob(
            code=run.network.code,
            prm=dict(run.network.prm),
            recipe=run.recipe.to_json(),
            seed=run.seed,
            data=str(run.data.folder),
            held_out=run.held_out,
            images=run.image_count,
            device=resources.device,
            threads=resources.threads or 1,
            time_limit=resources.time_limit,
            step_limit=resources.step_limit,
            key=key,
        )
        job = Job(str(out), TRAIN.guest, asdict(payload), resources.limits(), scratch=str(scratch.resolve()))
        training, batch = run.recipe.training, min(run.recipe.training.batch_size, run.image_count)
        an_epoch = run.image_count // batch
        steps = an_epoch * (training.epochs - 1) + max(1, round(training.last_part * an_epoch))
        with (
            open_sandbox(run.data.folder, resources) if box is None else contextlib.nullcontext(box) as opened,
            contextlib.nullcontext() if quiet() else watching(scratch.resolve(), name, training.epochs, steps, batch),
        ):
            (outcome,) = opened.run([job])
        report = TRAIN.read(outcome).answer
        if report is not None and report.status == "running":
            report = None
        for line in report.notes if report else ():
            note(f"{name}: {line[:300]}")
        record = _record(run, identity, scratch, outcome, report, resources)
        if can_resume(record):
            return record
        try:
            with atomic_folder(out, force=True) as result:
                if record.status == "ok":
                    copy_plain(scratch, WEIGHTS, result / WEIGHTS)
                history = read_history(scratch)[: record.epochs]
                write_run(result, run.network.code, record, identity, history, run.data, library, watch, page=page)
        except OSError as error:
            reason = f"{out}: the result cannot be written: {error.strerror}"
            raise UserError(f"{reason}; fix that, then run the same command again to resume") from error
        remove_folder(scratch)
    return record


def find_finished(out: Path, wanted: Mapping[str, object], *, force: bool) -> TrainingRecord | None:
    """Return the record of the same run if `out` has it; another run that failed is ignored.

    Args: force: also ignore any other run, and the same run if it failed: then it is trained again.
    Raises: UserError if `out` has other content, unless `force` is set and it is a run with nothing else in it.
    """
    if not out.exists() and not out.is_symlink():
        return None
    if not out.is_dir():
        raise UserError(f"{out}: is a file, not a folder; choose another --out")
    if not any(out.iterdir()):
        return None
    try:
        record, parameters = read_record(out), read_manifest(out).parameters
        other = [
            name.removesuffix("_sha256").replace("_", " ")
            for name, value in wanted.items()
            if value != (parameters[name] if name in _NOT_RECORDED else getattr(record, name))
        ]
    except (OSError, ValueError, KeyError, UserError) as error:  # ValidationError is a ValueError
        raise UserError(f"{out}: is not the folder of a complete training run; choose another --out") from error
    final = record.status in _FINAL
    if not other and (final or not force):
        return record
    if final and not force:
        differs = ", ".join(other)
        raise UserError(f"{out}: contains another run (it differs in {differs}); choose another --out, or add --force")
    check_ours(out)
    return None


@contextlib.contextmanager
def own_scratch(out: Path, key: str) -> Iterator[Path]:
    """Yield the folder in the cache that a run with this key works in for `out`; foreign code writes there.

    It keeps the files of an earlier part of the same run; the caller removes it once the result is in place.
    Raises: UserError if another process trains there, or `out` cannot be put in place afterwards.
    """
    check_writable(out)
    if out.is_mount():
        raise UserError(f"{out}: is a mount point, which cannot be replaced; choose a folder in it as --out")
    name = hashlib.sha256(f"{key} {out.absolute()}".encode()).hexdigest()[:32]
    scratch = cache_folder("training") / name
    with hold_lock(scratch.with_suffix(".lock"), out, "another run trains there"):
        scratch.mkdir(mode=0o700, exist_ok=True)
        yield scratch
    if not scratch.exists():
        scratch.with_suffix(".lock").unlink(missing_ok=True)


def _record(
    run: TrainingRun,
    identity: Mapping[str, object],
    scratch: Path,
    outcome: Outcome,
    report: TrainingReport | None,
    resources: Resources,
) -> TrainingRecord:
    """Build the record from the process's report, else from its files; foreign code may have tampered with both."""
    history, figures = read_history(scratch), report or read_progress(scratch)
    last = history[-1] if history else None
    status, error = _judge(outcome, resources.step_limit) if report is None else (report.status, report.error)
    reached = ("parameters", "images_seen", "flop", "precision")
    return TrainingRecord.model_validate(
        {
            **{name: getattr(figures, name) for name in reached},
            **{key: value for key, value in identity.items() if key not in _NOT_RECORDED},
            "name": run.network.name,
            "status": status,
            "error": error,
            "ingredients": run.network.ingredients,
            "recipe": run.network.training_recipe(run.recipe),
            "data": run.data.label,
            "epochs": len(history),
            "steps": max(figures.steps, last.steps if last else 0),
            "train_loss": last.train_loss if last else None,
            "val_accuracy": last.val_accuracy if last else None,
            "test_accuracy": report and report.test_accuracy,
            "train_seconds": max(figures.train_seconds, sum(epoch.seconds for epoch in history)),
            "data_seconds": max(figures.data_seconds, sum(epoch.data_seconds for epoch in history)),
            "peak_bytes": outcome.peak_bytes,
            "device": figures.device or f"{resources.device}, {resources.threads} threads",
        }
    )


def _judge(outcome: Outcome, step_limit: float) -> tuple[str, str]:
    """Return status and reason, in one line, of a run that ended without a report."""
    if outcome.status == Status.OK:
        return "error", "its report cannot be read"
    line = (outcome.error.strip().splitlines() or ["no reason reported"])[0]
    if outcome.status in (Status.OUT_OF_MEMORY, Status.TIMEOUT):
        return outcome.status.value, line
    if outcome.status == Status.CRASHED and _STUCK.search(outcome.stderr_tail):
        frame = _FRAME.search(outcome.stderr_tail)
        location = f" (line {frame[1]}, in {frame[2]})" if frame else ""
        return "timeout", f"nothing was finished within {step_limit:g} s{location}"
    return "error", line


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- the Python interface ---------------------------------------------------------------------------------------------


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
    from train.data.sources import open_data  # here: who reads a folder of a run must not wait for it

    wanted = to_recipe(recipe or network.recipe or "plain")
    folder = Path("runs") / f"{network.name}-seed{seed}" if out is None else Path(out)
    with hide_progress(unless=progress):
        run = TrainingRun(network, wanted, seed, open_data(data), held_out, images)
        blocks, limits = None if library is None else Path(library), resources or Resources()
        record = train_once(run, folder, resources=limits, force=force, library=blocks)
    if not (folder / NET).is_file():
        raise UserError(f"{folder}: {record.status}: {record.error}; the same call continues the run")
    return Run(folder)
