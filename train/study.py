"""Many training runs of one study: side by side, in folders of their own, the finished ones never trained again."""

import contextlib
import functools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import atomic_file, check_writable
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.files.workers import process_pool, submit
from lemur_core.sandbox import Sandbox
from manifests.manifest import (
    FILE_NAME,
    Manifest,
    Stopwatch,
    list_outputs,
    package_versions,
    read_manifest,
    write_manifest,
)
from manifests.records import TrainingRecord
from train.data import Cifar10, open_cache
from train.recipe import Recipe
from train.run import Network, Resources, open_sandbox, train_once
from train.run_folder import RUNS, complete_run, images_input, parents_in, torch_versions

PLAN = "plan.json"
_REMOVALS = 50  # tries, a tenth of a second apart: what a killed worker ran is still clearing up then


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study: `name` is also that of its folder, below `runs`."""

    name: str
    net: Network
    recipe: Recipe
    seed: int
    held_out: int
    images: int | None = None
    tested: bool = True


def check_study(out: Path) -> None:
    """Nothing, if the folder can be that of a study: there is none, it is empty, or it is one.

    Raises: UserError if it holds something else, or could not be made.
    """
    if not out.exists():
        check_writable(out)
    if out.is_dir() and any(out.iterdir()) and not (out / PLAN).is_file():
        raise UserError(f"{out}: is not a folder of such a study; choose another --out")


def open_study(out: Path, plan: Mapping[str, Any], *, force: bool) -> None:
    """Make the folder of a study, or open the one that the same study began.

    The manifest of another plan goes: until this one is through, the folder is of neither.

    Raises: UserError if the folder holds something else, or another study and `force` is not given.
    """
    check_study(out)
    text = json.dumps(plan, indent=1, sort_keys=True) + "\n"
    path = out / PLAN
    if path.is_file() and path.read_text(encoding="utf-8") != text and not force:
        raise UserError(f"{out}: holds a study with another plan; choose another --out, or --force to go on with this")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    if (out / FILE_NAME).is_file() and read_manifest(out).parameters != json.loads(text):
        (out / FILE_NAME).unlink()


def close_study(
    out: Path,
    plan: Mapping[str, Any],
    records: Sequence[TrainingRecord],
    library: Path | None,
    data: Cifar10,
    watch: Stopwatch,
    rows: Mapping[str, int],
) -> None:
    """Complete the runs of a study and write its manifest, of the kind that its plan names.

    One that says the same but for what was measured stays as it is. A study with a run that can go on gets none.

    Args: records: of all its runs. library: the extraction folder of its blocks. rows: of its tables.
    """
    open_runs = sorted(path.stem for path in (out / RUNS).glob("*.partial"))
    if open_runs:
        (out / FILE_NAME).unlink(missing_ok=True)
        note(f"{out}: no {FILE_NAME} yet: {open_runs[0]} can go on; run the same command again")
        return
    for run in sorted((out / RUNS).glob("*")):
        complete_run(run, library)
    statuses = [record.status for record in records]
    manifest = Manifest(
        kind=plan["study"],
        versions=package_versions() | (torch_versions(records[0]) if records else {}),
        parameters=json.loads(json.dumps(plan)),
        inputs=[images_input(data)],
        parents=parents_in(library),
        counts={"runs": len(records), "status": {name: statuses.count(name) for name in sorted(set(statuses))}},
        details={},
        outputs=list_outputs(out, dict(rows)),
        measured=watch.measured(),
    )
    if (out / FILE_NAME).is_file():
        older = read_manifest(out)
        if older == manifest.model_copy(update={"measured": older.measured}):
            return
    write_manifest(out, manifest)


@dataclass(frozen=True, slots=True)
class Trainers:
    """Worker processes that train the runs of a study, each in a sandbox that it opens once."""

    pool: ProcessPoolExecutor
    temporary: str

    def train(
        self, planned: Sequence[StudyRun], out: Path, *, data: Path, resources: Resources, again: bool = False
    ) -> Iterator[tuple[StudyRun, TrainingRecord]]:
        """Train what is not trained yet; give each run with its record, in the order planned.

        Args: data: the cache folder of the images. resources: threads and limits of each run. again: train also what
            has failed.
        """
        resources = resources.checked()  # a sandbox is opened for the device that this tells
        folders = [out / RUNS / plan.name for plan in planned]
        futures = [
            submit(self.pool, _train, plan, folder, data, resources, self.temporary, again=again)
            for plan, folder in zip(planned, folders, strict=True)
        ]
        for number, (plan, future) in enumerate(zip(planned, futures, strict=True), 1):
            record = future.result()
            note(f"{number} of {len(planned)}  {plan.name}: {described(record)}")
            yield plan, record


@contextlib.contextmanager
def open_trainers(jobs: int) -> Iterator[Trainers]:
    """So many workers, for the time; whatever ends it leaves no temporary folder."""
    with _temporary() as temporary, process_pool(jobs) as pool:
        yield Trainers(pool, temporary)


def described(record: TrainingRecord) -> str:
    """What became of a run, in a few words."""
    if record.status != "ok":
        return f"{record.status}: {record.error}"
    found = [
        f"{label} {100 * value:.2f} %"
        for label, value in (("test", record.test_accuracy), ("held out", record.val_accuracy))
        if value is not None
    ]
    return f"{', '.join(found)}, {record.train_seconds:.0f} s of training"


@contextlib.contextmanager
def _temporary() -> Iterator[str]:
    """A folder for the workers' temporary folders: a worker that is killed removes none."""
    folder = tempfile.mkdtemp(prefix="lemur-study-")
    try:
        yield folder
    finally:
        for _ in range(_REMOVALS):
            shutil.rmtree(folder, ignore_errors=True)
            if not Path(folder).exists():
                break
            time.sleep(0.1)


def _train(
    plan: StudyRun, out: Path, data: Path, resources: Resources, temporary: str, *, again: bool
) -> TrainingRecord:
    tempfile.tempdir = temporary
    return train_once(
        plan.net,
        plan.recipe,
        seed=plan.seed,
        data=open_cache(data),
        out=out,
        held_out=plan.held_out,
        images=plan.images,
        tested=plan.tested,
        resources=resources,
        report=None,
        force=True,
        keep_failed=not again,
        box=_own_sandbox(data, resources),
    )


@functools.cache
def _own_sandbox(data: Path, resources: Resources) -> Sandbox:
    """This worker's sandbox, whose server imports the libraries once for all runs; it ends with the worker."""
    return open_sandbox(data, resources)
