"""The folder of a study: many runs by a written plan."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lemur_core.files.atomic import check_writable, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.folders.kinds import Kind
from manifests.folders.manifest import (
    FILE_NAME,
    Stopwatch,
    read_manifest,
)
from manifests.records import TrainingRecord
from train.data import Cifar10
from train.runs.job import loads_or_none
from train.runs.run import Resources, TrainingRun, open_sandbox, train_once
from train.runs.run_folder import RUNS, can_resume, images_input, parents_in, result_text, torch_versions

PLAN = "plan.json"


class Study:
    """The folder of a study, in four steps: check it (on construction), then `open`, `train` and `close` it.

    Args: force: resume with another plan, and retrain failed runs.
    Raises: UserError if `out` has other content, or cannot be created.
    """

    def __init__(self, out: Path, data: Cifar10, resources: Resources, *, force: bool = False) -> None:
        if not out.exists():
            check_writable(out)
        if out.is_dir() and any(out.iterdir()) and not _is_study(out):
            raise UserError(f"{out}: is not the folder of such a study; choose another --out")
        self._out, self._data, self._resources, self._force = out, data, resources, force
        self._plan: Mapping[str, object] = {}
        self._library: Path | None = None
        self._watch = Stopwatch()

    def open(self, plan: Mapping[str, object], library: Path | None) -> None:
        """Create the folder, or open an unfinished study of the same plan.

        The manifest of another plan is removed: until this study is finished, the folder is not complete.

        Args: plan: JSON data that identify the study; `study` names the kind of the folder.
        Raises: UserError if it is a study with another plan and `force` is not set, or cannot be written.
        """
        self._plan, self._library = plan, library
        out, path = self._out, self._out / PLAN
        text = json.dumps(plan, indent=1, sort_keys=True) + "\n"
        if path.is_file() and path.read_text(encoding="utf-8") != text and not self._force:
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

    def train(self, runs: Mapping[str, TrainingRun]) -> list[TrainingRecord]:
        """Train the unfinished runs one after another; one that was interrupted resumes.

        Args: runs: by the name of their folder below `runs`.
        Returns: their records, in that order.
        """
        resources, records = self._resources.resolve(), []
        settings = {"force": True, "quiet": True, "of_study": True, "keep_failed": not self._force}
        with open_sandbox(self._data.folder, resources) as box:
            for name, run in runs.items():
                folder = self._out / RUNS / name
                record = train_once(run, folder, resources=resources, library=self._library, box=box, **settings)
                records.append(record)
                took = f", {record.train_seconds:.0f} s of training" if record.status == "ok" else ""
                note(f"{len(records)} of {len(runs)}  {name}: {result_text(record)}{took}")
        return records

    def close(self, records: Sequence[TrainingRecord], rows: Mapping[str, int], kind: Kind) -> None:
        """Write page and manifest, unless a run can be resumed.

        Args: records: records of all its runs. rows: row counts of its tables.
        """
        out = self._out
        if open_runs := [record for record in records if can_resume(record)]:
            (out / FILE_NAME).unlink(missing_ok=True)
            first = f"{open_runs[0].name}, seed {open_runs[0].seed}"
            note(f"{out}: no {FILE_NAME} yet: {first} can be resumed; run the same command again")
            return
        plan = json.loads(json.dumps(self._plan))  # not read from the file, whose keys are sorted: pages keep the order
        kind.finish(
            out,
            rows,
            self._watch,
            versions=torch_versions(records[0]) if records else {},
            parameters=plan,
            inputs=[images_input(self._data)],
            parents=parents_in(self._library),
            counts=count_study(records),
        )


def count_study(records: Sequence[TrainingRecord]) -> dict[str, object]:
    """Return the counts that the manifest of a study states."""
    statuses = [record.status for record in records]
    return {"runs": len(records), "status": {name: statuses.count(name) for name in sorted(set(statuses))}}


def _is_study(folder: Path) -> bool:
    """Return whether the plan in a folder is one of a study; other programs use this file name, too."""
    plan = loads_or_none((folder / PLAN).read_bytes()) if (folder / PLAN).is_file() else None
    return isinstance(plan, dict) and "study" in plan
