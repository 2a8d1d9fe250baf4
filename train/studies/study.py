"""The training runs of one study: run in parallel, each in its own folder; finished ones are never trained again."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import check_writable, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.sandbox import Job, Outcome
from manifests.folders.frame import Page, write_page
from manifests.folders.manifest import (
    FILE_NAME,
    Manifest,
    Stopwatch,
    list_outputs,
    package_versions,
    read_manifest,
    write_manifest,
)
from manifests.records import TrainingRecord
from train.data import Cifar10
from train.runs.page import RUNS
from train.runs.run import Resources, Training, TrainingRun, advance, open_sandbox, training
from train.runs.run_folder import images_input, parents_in, torch_versions

PLAN = "plan.json"


def check_study(out: Path) -> None:
    """Check that `out` can be the folder of a study: it does not exist, is empty, or is a study.

    Raises: UserError if it has other content, or cannot be created.
    """
    if not out.exists():
        check_writable(out)
    if out.is_dir() and any(out.iterdir()) and not (out / PLAN).is_file():
        raise UserError(f"{out}: is not the folder of such a study; choose another --out")


def open_study(out: Path, plan: Mapping[str, Any], *, force: bool) -> None:
    """Create the folder of a study, or open an unfinished one of the same study.

    The manifest of another plan is removed: until this study is finished, the folder is not complete.

    Raises: UserError if the folder has other content, or another study and `force` is not set.
    """
    check_study(out)
    text = json.dumps(plan, indent=1, sort_keys=True) + "\n"
    path = out / PLAN
    if path.is_file() and path.read_text(encoding="utf-8") != text and not force:
        raise UserError(
            f"{out}: contains a study with another plan; choose another --out, or --force to resume with this plan"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
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
    page: Callable[[Path, Manifest], Page],
) -> None:
    """Write the manifest of a study, of the kind that its plan names.

    An existing manifest that differs only in measured values is kept. A study with a resumable run gets no manifest.

    Args: records: records of all its runs. library: the extraction folder of its blocks. rows: row counts of its
        tables. page: builds the page of this kind.
    """
    open_runs = sorted(path.stem for path in (out / RUNS).glob("*.partial"))
    if open_runs:
        (out / FILE_NAME).unlink(missing_ok=True)
        note(f"{out}: no {FILE_NAME} yet: {open_runs[0]} can be resumed; run the same command again")
        return
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
    write_page(out, page(out, manifest))
    if (out / FILE_NAME).is_file():
        older = read_manifest(out)
        if older == manifest.model_copy(update={"measured": older.measured}):
            return
    write_manifest(out, manifest)


def train_all(
    runs: Mapping[str, TrainingRun], out: Path, resources: Resources, *, library: Path | None, again: bool
) -> list[TrainingRecord]:
    """Train the unfinished runs of a study, in parallel as `resources` allows.

    Args: runs: by the name of their folder below `runs`, all on the same images. resources: of each run. library: the
        extraction folder of their blocks. again: retrain failed runs too.
    Returns: their records, in that order.
    """
    resources = resources.checked()
    under_way: deque[tuple[str, Training, Job | TrainingRecord]] = deque()
    records: list[TrainingRecord] = []

    def jobs() -> Iterator[Job]:
        for name, run in runs.items():
            steps = training(run, out / RUNS / name, resources, force=True, library=library, keep_failed=not again)
            under_way.append((name, steps, step := advance(steps)))
            if isinstance(step, Job):
                yield step

    def end_runs(outcome: Outcome | None = None) -> None:
        """Finish the oldest run with its outcome, and the following ones that were already complete."""
        while under_way:
            name, steps, step = under_way[0]
            record = step if isinstance(step, TrainingRecord) or outcome is None else advance(steps, outcome)
            if not isinstance(record, TrainingRecord):
                return
            outcome = None
            under_way.popleft()
            records.append(record)
            note(f"{len(records)} of {len(runs)}  {name}: {summarize_record(record)}")

    left = jobs()
    first = next(left, None)
    end_runs()
    if first is None:
        return records
    try:
        with open_sandbox(next(iter(runs.values())).data.folder, resources) as box:
            for outcome in box.run(chain([first], left)):
                end_runs(outcome)
        end_runs()
    finally:
        for _, steps, _ in under_way:
            steps.close()
    return records


def summarize_record(record: TrainingRecord) -> str:
    """Summarize the outcome of a run in a few words."""
    if record.status != "ok":
        return f"{record.status}: {record.error}"
    figures = [
        f"{label} {100 * value:.2f} %"
        for label, value in (("test", record.test_accuracy), ("held out", record.val_accuracy))
        if value is not None
    ]
    return f"{', '.join(figures)}, {record.train_seconds:.0f} s of training"
