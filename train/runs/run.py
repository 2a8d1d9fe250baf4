"""One training run: a network, a recipe, a seed and images in; a folder and its record out, whatever becomes of it."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import PRELOAD as COMMON
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status
from lemur_core.sandbox.runtime import declared_runtime
from manifests.folders.manifest import Stopwatch
from manifests.records import TrainingRecord
from train.data import Cifar10
from train.model.recipe import Network, Recipe
from train.runs.job import TrainingJob, read_history, read_progress, watching
from train.runs.register import LEMUR, can_enter_from, check_storable, trained_with, why_refused, write_lemur_files
from train.runs.run_folder import (
    canonical_json,
    finished,
    open_scratch,
    own_folder,
    put_in_place,
    renew_parents,
    write_result,
    write_run_manifest,
)

ENTRY = "train.runs.loop_guest:train"
PRELOAD = (*COMMON, "torchvision.transforms.v2")

#: What the entry itself imports besides the declared runtime.
LIBRARIES = ("pyarrow", "pydantic")

_NO_LIMIT = 10.0 * 365 * 86400  # seconds
_GRACE = 600.0  # seconds for evaluation and files, after the time limit
_FILE_BYTES, _SCRATCH_BYTES = 4 * 2**30, 16 * 2**30
_NO_MEMORY_LIMIT = 2**46  # a GPU's driver reserves far more addresses than it uses
_STUCK = re.compile(r"^Timeout \(\d+:\d\d:\d\d", re.MULTILINE)  # faulthandler's first line
_FRAME = re.compile(r'File "(?:.*/)?net\.py", line (\d+) in (\S+)')
_ENDED = ("ended by SIGKILL", "ended by SIGTERM", "the sandbox's server died")
_NOT_RECORDED = ("held_out", "tested", "device")  # the record tells the device that was found


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What is trained, how, on what, and from which seed: all that decides what a run comes to, but for its threads.

    `held_out`: training images to validate on, the same ones whatever the seed; 0 trains on all. `images`: how many of
    the others to train on, None for all; fewer are always among more. `tested`: whether to read the test images; a run
    that only helps to choose does not.
    """

    network: Network
    recipe: Recipe
    seed: int
    data: Cifar10
    held_out: int = 5000
    images: int | None = None
    tested: bool = True

    @property
    def image_count(self) -> int:
        """Images to train on. Raises: UserError if there are not as many."""
        return count_images(self.data, self.held_out, self.images)

    def identify(self, device: str) -> dict[str, Any]:
        """What tells the run from others, on a device."""
        return {
            "code_sha256": _sha256(self.network.code),
            "prm": canonical_json(dict(self.network.prm)),
            "recipe_sha256": _sha256(self.network.trained_by(self.recipe)),
            "seed": self.seed,
            "data_sha256": self.data.sha256,
            "held_out": self.held_out,
            "train_images": self.image_count,
            "tested": self.tested,
            "device": device,
            "torch": torch.__version__,
            "torchvision": importlib.metadata.version("torchvision"),  # importing it takes seconds
        }

    def size(self) -> tuple[str, int, int, int]:
        """Name, epochs, steps, and images of a step."""
        epochs, batch = self.recipe.training.epochs, min(self.recipe.training.batch_size, self.image_count)
        return self.network.name, epochs, epochs * (self.image_count // batch), batch


#: A run under way: gives its job for the sandbox, is sent the outcome, returns the record.
Training = Generator[Job, Outcome, TrainingRecord]


@dataclass(frozen=True, slots=True)
class Resources:
    """What a run may use. Nothing of it changes what is computed, but for threads and device: the order of sums.

    `threads`: of each run, by default the cores, shared by the `jobs` runs at a time. `memory_gib` is what the process
    may take beside its libraries (not counted on a GPU); `time_limit`, in seconds, ends the run after a step, to go on
    another time; `step_limit` ends it when nothing gets done for so long.
    """

    threads: int | None = None
    device: str = "auto"
    memory_gib: float = 8.0
    time_limit: float | None = None
    step_limit: float = 600.0
    unsafe: bool = False
    jobs: int = 1
    runtime: tuple[str, ...] = ()  # distributions that networks can import besides the declared runtime

    def checked(self) -> "Resources":
        """The same, with the number of threads and the device told.

        Raises: UserError for values out of range, a device that is not there or out of reach, or a package of `runtime`
            that is not installed.
        """
        for name in ("threads", "time_limit", "step_limit"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"{name.replace('_', ' ')}: {value}; it must be above 0")
        declared_runtime((*LIBRARIES, *self.runtime))
        device = _choose_device(self.device, unsafe=self.unsafe)
        return replace(self, threads=self.threads or max(1, available_cores() // self.jobs), device=device)

    def limits(self) -> Limits:
        """The walls' limits: the last resort, behind those that the process keeps itself."""
        wall = _NO_LIMIT if self.time_limit is None else self.time_limit + 2 * self.step_limit + _GRACE
        threads = 64 + 4 * (self.threads or 1)
        return Limits(
            wall_seconds=wall,
            cpu_seconds=min(_NO_LIMIT, wall * threads),
            memory_bytes=int(self.memory_gib * 2**30) if self.device == "cpu" else _NO_MEMORY_LIMIT,
            threads=threads if self.device == "cpu" else 4096,
            file_bytes=_FILE_BYTES,
            scratch_bytes=_SCRATCH_BYTES,
        )


def open_sandbox(data: Path, resources: Resources) -> Sandbox:
    """A sandbox for training runs on the images in that cache folder.

    Args: resources: as `Resources.checked` gives them.
    """
    assert resources.device != "auto"
    environment = {}
    if resources.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS need not compute the same twice
    return Sandbox(
        preload=PRELOAD,
        entries=[ENTRY],
        runtime=[*LIBRARIES, *resources.runtime],
        readable=[data],
        workers=resources.jobs,
        environment=environment,
        unsafe=resources.unsafe,
    )


def train_once(
    run: TrainingRun,
    out: Path,
    *,
    resources: Resources = Resources(),
    force: bool = False,
    library: Path | None = None,
    quiet: bool = False,
    box: Sandbox | None = None,
) -> TrainingRecord:
    """Train a network, validate it after each epoch, and read the test images once, at the end.

    While it runs, all it has lies in `OUT.partial`, where the same call goes on after an interruption or a time limit;
    at the end `OUT` holds net.py, recipe.json, record.json, run.json, history.jsonl, curves.png, weights.pt (foreign
    code wrote it: read it with `torch.load(..., weights_only=True)`), manifest.json and, on real CIFAR-10, its files
    for LEMUR below `lemur`. A run that is in `OUT` is not trained again.

    Args:
        run: its network's code is foreign, and is only run in the sandbox.
        force: replace another run in `out`, or the same one if it failed.
        library: the extraction folder of the network's blocks, which the manifest then names.
        quiet: say nothing; else how far it is, on stderr.
        box: a sandbox to run in, made by `open_sandbox`, opened when it is needed and left open for the next run; by
            default one of its own.

    Raises: UserError if the arguments do not go together, LEMUR could not store the hyperparameters, or `out` holds
        something else.
    """
    resources = resources.checked()
    if can_enter_from(run.data.label):
        check_storable(run.network.prm)
    if not quiet:
        _note_what_counts(run)
    with contextlib.ExitStack() as stack:
        steps = training(run, out, resources, force=force, library=library, alone=True, quiet=quiet)
        job = advance(stack.enter_context(contextlib.closing(steps)))
        if isinstance(job, TrainingRecord):
            return job
        if box is None:
            box = stack.enter_context(open_sandbox(run.data.folder, resources))
        elif not box.is_open:
            box.__enter__()
        with contextlib.nullcontext() if quiet else watching(Path(str(job.scratch)), *run.size()):
            (outcome,) = box.run([job])
        record = advance(steps, outcome)
        assert isinstance(record, TrainingRecord)
        return record


def _note_what_counts(run: TrainingRun) -> None:
    """Say where the recipe trains otherwise than the network's own hyperparameters tell."""
    prm, used = run.network.prm, trained_with(json.loads(run.recipe.to_json()))
    for name in sorted(used.keys() & prm.keys()):
        if prm[name] != used[name]:
            said = f"{name} {prm[name]!r} only constructs it"
            note(f"{run.network.name}: {said}; the recipe trains it with {used[name]!r}: --set training.… changes that")


def training(
    run: TrainingRun,
    out: Path,
    resources: Resources,
    *,
    force: bool,
    library: Path | None,
    keep_failed: bool = False,
    alone: bool = False,
    quiet: bool = True,
) -> Training:
    """A run up to its job for the sandbox and, given its outcome, from there to its record; see `train_once`.

    Its folder belongs to this process until the generator ends or is closed.

    Args: resources: as `Resources.checked` gives them. keep_failed: take the same run as it is also where it failed.
    """
    watch = Stopwatch()
    identity = run.identify(resources.device)
    found = finished(out, identity, force=force, keep_failed=keep_failed)
    if found is not None:
        if not quiet:
            note(f"{out}: the same run is there already; not trained again")
        renew_parents(out, found, library)
        return found
    name = run.network.name
    with own_folder(out) as partial:
        scratch = open_scratch(partial, identity, quiet=quiet)
        done = len(read_history(scratch))
        if done and not quiet:
            note(f"{name}: goes on after epoch {done} of {run.recipe.training.epochs}")
        job = TrainingJob(
            code=run.network.code,
            prm=dict(run.network.prm),
            recipe=run.recipe.to_json(),
            seed=run.seed,
            data=str(run.data.folder),
            held_out=run.held_out,
            images=run.image_count,
            tested=run.tested,
            device=resources.device,
            threads=resources.threads or 1,
            time_limit=resources.time_limit,
            step_limit=resources.step_limit,
            key=_sha256(canonical_json(identity)),
        )
        outcome = yield Job(str(out), ENTRY, asdict(job), resources.limits(), scratch=str(scratch.resolve()))
        said = outcome.value if isinstance(outcome.value, dict) else {}
        notes, digest = said.get("notes"), said.get("weights_sha256")
        for line in notes if isinstance(notes, list) and not quiet else []:
            note(f"{name}: {str(line)[:300]}")
        record = _record(run, identity, scratch, outcome, resources)
        try:
            sha256 = digest if isinstance(digest, str) else None
            result = write_result(partial, run.network.code, record, identity, sha256)
            history = read_history(result)
            if alone and not why_refused(record, run.network.code, history):
                write_lemur_files(result / LEMUR, record, run.network.code, history)
            write_run_manifest(result, record, identity, run.data, library, watch, page=alone)
        except OSError as error:
            reason = f"{partial}: the result cannot be written: {error.strerror}"
            raise UserError(f"{reason}; mend that, and the same command goes on from there") from error
        if not _can_go_on(outcome):
            put_in_place(partial, out)
    return record


def advance(steps: Training, outcome: Outcome | None = None) -> Job | TrainingRecord:
    """The job of a run that starts, or the record of one that is over: at once, or with the outcome of its job."""
    try:
        return next(steps) if outcome is None else steps.send(outcome)
    except StopIteration as end:
        record: TrainingRecord = end.value
        return record


def count_images(data: Cifar10, held_out: int, images: int | None) -> int:
    """How many images are trained on.

    Raises: UserError if there are not as many.
    """
    there = len(data.train_labels)
    if not 0 <= held_out < there:
        raise UserError(f"held out: {held_out:,} of {there:,} images; hold out at least 0, and fewer than there are")
    if images is not None and not 1 <= images <= there - held_out:
        raise UserError(f"images: {images:,}, but {there - held_out:,} are left to train on; give at most those")
    return there - held_out if images is None else images


def _record(
    run: TrainingRun, identity: Mapping[str, Any], scratch: Path, outcome: Outcome, resources: Resources
) -> TrainingRecord:
    """The record, from what the process said, else from what it left; a foreign hand may have been in both."""
    known = {
        "name": run.network.name,
        "ingredients": run.network.ingredients,
        **{key: value for key, value in identity.items() if key not in _NOT_RECORDED},
        "recipe": run.network.trained_by(run.recipe),
        "data": run.data.label,
        "peak_bytes": outcome.peak_bytes,
    }
    history, now = read_history(scratch), read_progress(scratch)
    last = history[-1] if history else None
    left = {
        "epochs": len(history),
        "steps": max(now.steps, last.steps if last else 0),
        "parameters": now.parameters,
        "train_loss": last.train_loss if last else None,
        "val_accuracy": last.val_accuracy if last else None,
        "train_seconds": max(now.train_seconds, sum(epoch.seconds for epoch in history)),
        "data_seconds": max(now.data_seconds, sum(epoch.data_seconds for epoch in history)),
        "device": f"{resources.device}, {resources.threads} threads",
        "precision": "float32",
        "test_accuracy": None,
    }
    if outcome.status == Status.OK and isinstance(outcome.value, dict):
        said = {key: outcome.value[key] for key in (*left, "status", "error") if key in outcome.value}
        with contextlib.suppress(ValidationError):
            return TrainingRecord.model_validate({**known, **left, **said})
        status, error = "error", "its report cannot be read"
    else:
        status, error = _judge(outcome, resources.step_limit)
    return TrainingRecord.model_validate({**known, **left, "status": status, "error": error})


def _judge(outcome: Outcome, step_limit: float) -> tuple[str, str]:
    """Status and reason, in one line, of a run that ended before it could say how itself."""
    line = (outcome.error.strip().splitlines() or ["no reason was given"])[0]
    if outcome.status in (Status.OUT_OF_MEMORY, Status.TIMEOUT):
        return outcome.status.value, line
    if outcome.status == Status.CRASHED and _STUCK.search(outcome.stderr_tail):
        frame = _FRAME.search(outcome.stderr_tail)
        place = f", in net.py:{frame[1]} in {frame[2]}" if frame else ""
        return "timeout", f"nothing was finished within {step_limit:g} s{place}"
    return "error", line


def _can_go_on(outcome: Outcome) -> bool:
    """Whether it was ended from outside: by its time limit or by a signal, so that the same run may come further."""
    if isinstance(outcome.value, dict):
        return outcome.value.get("status") == "timeout"
    return outcome.status == Status.CRASHED and outcome.error.startswith(_ENDED)


def _choose_device(kind: str, *, unsafe: bool) -> str:
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto":
        found = next((name for name in ("cuda", "mps") if present[name]), "cpu")
        if found != "cpu" and not unsafe:
            note(f"training on the CPU: the sandbox keeps jobs from the GPU ({found}); --unsafe-no-sandbox uses it")
            return "cpu"
        return found
    if kind not in present:
        raise UserError(f"device {kind!r}: there are auto, {', '.join(present)}")
    if not present[kind]:
        raise UserError(f"device {kind}: torch finds none on this machine; use cpu or auto")
    if kind != "cpu" and not unsafe:
        raise UserError(f"device {kind}: the sandbox keeps jobs from it; add --unsafe-no-sandbox, or use cpu")
    return kind


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
