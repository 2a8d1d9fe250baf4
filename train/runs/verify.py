"""What follows from the files of a finished training run, and what holds besides. No code in it is executed."""

import hashlib
from functools import partial
from pathlib import Path

from lemur_core.files import Json
from manifests.folders.checks import Check, check_faults
from manifests.folders.kinds import Folder, Kind, verify_folder
from manifests.folders.reading import read_bytes, read_json, read_text
from manifests.provenance import find_inlined_blocks
from manifests.records import Ingredient, TrainingRecord
from train.runs.job import HISTORY, WEIGHTS, draw_curves, read_history
from train.runs.page import NET, RECORD, read_record, run_page
from train.runs.register import LEMUR, why_refused, write_lemur_files
from train.runs.run_folder import (
    IDENTITY,
    KIND,
    RECIPE,
    canonical_json,
    count_run,
    describe_run,
    read_identity,
    recipe_text,
    record_text,
    state_parameters,
    torch_versions,
)

#: What the identity of a run and its record share.
_SHARED = frozenset(
    {"code_sha256", "data_sha256", "prm", "recipe_sha256", "seed", "torch", "torchvision", "train_images"}
)


def derive_run(folder: Folder, made: Path) -> Json:
    """Write again what follows from the network, the history and what only the record says; see `Derive`."""
    path, stored = folder.path, read_record(folder.path)
    history = read_history(path)
    if len(history) != read_bytes(path / HISTORY).count(b"\n"):
        raise ValueError(f"{HISTORY}: line {len(history) + 1} is not epoch {len(history) + 1}")
    record = stored.model_copy(update=_derive_record(path, stored))
    identity = {name: getattr(record, name) if name in _SHARED else v for name, v in read_identity(path).items()}
    # The digest of the tensors, which only torch reads; that of the file is in the manifest.
    weights = read_json(path / IDENTITY)["weights_sha256"] if (path / WEIGHTS).is_file() else None
    texts = {
        RECORD: record_text(record),
        RECIPE: recipe_text(record),
        HISTORY: "".join(f"{epoch.model_dump_json()}\n" for epoch in history),
        IDENTITY: canonical_json({"identity": identity, "weights_sha256": weights}) + "\n",
    }
    for name, text in texts.items():
        (made / name).write_text(text, encoding="utf-8", newline="\n")
    if (path / LEMUR).is_dir() and not why_refused(record, read_text(path / NET), history):
        write_lemur_files(made / LEMUR, record, read_text(path / NET), history)
    if (path / "curves.png").is_file():
        draw_curves(history, f"{record.name}, seed {record.seed}, {record.data}", made / "curves.png")
    return {
        "counts": count_run(record),
        "details": describe_run(record),
        "parameters": state_parameters(record, identity),
        "versions": torch_versions(record),
    }


def _derive_record(folder: Path, stored: TrainingRecord) -> Json:
    """Return the fields of a record that its network, its recipe and its history state."""
    code, history = read_bytes(folder / NET), read_history(folder)
    blocks = find_inlined_blocks(code.decode("utf-8", "replace"))
    changed: Json = {
        "code_sha256": hashlib.sha256(code).hexdigest(),
        "recipe_sha256": hashlib.sha256(stored.recipe.encode()).hexdigest(),
        "epochs": len(history),
    }
    if stored.ingredients:
        fields = ("slot", "block", "path", "license", "code_sha256")
        changed["ingredients"] = tuple(
            Ingredient(
                **{name: getattr(block, name) for name in fields},
                source=block.block.partition("::")[0],
                swhid=block.swhid.partition(";")[0],
            )
            for block in blocks
        )
    if history:
        changed |= {name: getattr(history[-1], name) for name in ("train_loss", "val_accuracy")}
        steps = history[-1].steps
        changed["steps"] = steps if stored.status == "ok" else max(steps, stored.steps)
    return changed


def check_run(folder: Folder) -> Check:
    """Check that the inputs of the manifest are those of the record."""
    record = read_record(folder.path)
    inputs = {item.name: (item.sha256, item.bytes) for item in folder.manifest.inputs}
    size = (folder.path / NET).stat().st_size
    stated = {
        NET: (record.code_sha256, size),
        "recipe": (record.recipe_sha256, len(record.recipe.encode())),
        record.data: (record.data_sha256, inputs.get(record.data, ("", 0))[1]),
    }
    wrong = [f"input {name} is not that of the record" for name in sorted(stated) if inputs.get(name) != stated[name]]
    wrong += [f"input {name} is none of the record" for name in sorted(inputs.keys() - stated.keys())]
    return check_faults("record", wrong, f"{record.name}, seed {record.seed}, {record.status}")


RUN = Kind(KIND, "lemur train run", derive=derive_run, laws=(check_run,), page=run_page)
verify = partial(verify_folder, RUN)
