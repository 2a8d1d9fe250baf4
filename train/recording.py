"""What a training run comes to: its record and its files, from what the process said and what it left behind."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lemur_core.sandbox import Outcome, Status
from lemur_core.sandbox.processes import remove_folder
from manifests.records import TrainingRecord
from train.confined import Resources, judge
from train.curves import draw_curves
from train.history import copy_plain, read_history, read_progress
from train.identity import Network, canonical_json, recipe_text
from train.plan import HISTORY, WEIGHTS
from train.recipe import Recipe
from train.run_folder import IDENTITY, RECORD, RESULT, SCRATCH

_MOST_WEIGHTS = 4 * 2**30
_NOT_RECORDED = ("held_out", "tested", "device")  # the record tells the device that was found
_ENDED = ("ended by SIGKILL", "ended by SIGTERM", "the sandbox's server died")


def make_record(
    network: Network,
    recipe: Recipe,
    identity: Mapping[str, Any],
    label: str,
    scratch: Path,
    outcome: Outcome,
    resources: Resources,
) -> TrainingRecord:
    """The record, from what the process said, else from what it left; a foreign hand may have been in both."""
    known = {
        "name": network.name,
        "ingredients": network.ingredients,
        **{key: value for key, value in identity.items() if key not in _NOT_RECORDED},
        "recipe": recipe_text(network, recipe),
        "data": label,
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
        return TrainingRecord.model_validate({**known, **left, "status": "error", "error": "its report cannot be read"})
    status, error = judge(outcome, resources.step_limit)
    return TrainingRecord.model_validate({**known, **left, "status": status, "error": error})


def can_go_on(outcome: Outcome) -> bool:
    """Whether it was ended from outside: by its time limit or by a signal, so that the same run may come further."""
    if isinstance(outcome.value, dict):
        return outcome.value.get("status") == "timeout"
    return outcome.status == Status.CRASHED and outcome.error.startswith(_ENDED)


def write_result(
    partial: Path, network: Network, record: TrainingRecord, identity: Mapping[str, Any], outcome: Outcome
) -> None:
    """Write the files of the run's folder, beside the scratch folder."""
    result, scratch = partial / RESULT, partial / SCRATCH
    remove_folder(result)
    result.mkdir()
    history = read_history(scratch)[: record.epochs]
    digest = outcome.value.get("weights_sha256") if isinstance(outcome.value, dict) else None
    if record.status == "ok" and not copy_plain(scratch, WEIGHTS, result / WEIGHTS, _MOST_WEIGHTS):
        digest = None
    run = {"identity": dict(identity), "weights_sha256": digest if isinstance(digest, str) else None}
    texts = {
        "net.py": network.code,
        "recipe.json": json.dumps(json.loads(record.recipe), indent=1, sort_keys=True) + "\n",
        HISTORY: "".join(epoch.model_dump_json() + "\n" for epoch in history),
        IDENTITY: canonical_json(run) + "\n",
        RECORD: record.model_dump_json(indent=1) + "\n",
    }
    for name, text in texts.items():
        (result / name).write_text(text, encoding="utf-8", newline="\n")
    if history:
        draw_curves(history, f"{record.name}, seed {record.seed}, {record.data}", result / "curves.png")
