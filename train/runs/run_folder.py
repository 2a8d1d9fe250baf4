"""The folder of a finished training run: its files, those for LEMUR among them, its page, and what is shown of it.

While it runs, its checkpoint and figures are in the cache. No code in a finished folder is executed, and no weights are
loaded.

LEMUR gets a run as files of a checkout, or as rows of its database (`train.runs.register`), with the same trials:

    ab/nn/nn/NN.py
    ab/nn/stat/train/img-classification_cifar-10_acc_NN/EPOCH.json

Each epoch with an accuracy is a trial; its file has a list with one entry. A trial has `accuracy`, `duration`
(nanoseconds since the start of training), `uid`, and hyperparameters: those of the run, `batch` and `transform`. Four
more have no equivalent in LEMUR: `accuracy_on` (LEMUR always measures on the test images, which are read here only
after the last epoch), `data`, `seed` and `recipe`, the digest of the training recipe; with the network's own `learn`,
LEMUR's trainer would get other figures. Our durations exclude evaluation, LEMUR's include it.

Source: `train_n_eval` in `ab/nn/util/Train.py` of https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import count, plural
from lemur_core.files.progress import note
from lemur_core.sandbox.server.received import INTEGERS
from manifests.folders import kinds
from manifests.folders.frame import Entry, EntryLibrary, Page, View, curves, facts, link, table
from manifests.folders.kinds import (
    Check,
    Folder,
    FolderLink,
    FoundItem,
    ListedItem,
    check_faults,
    describe_inlined,
    lines_text,
    verify_folder,
)
from manifests.folders.manifest import FILE_NAME, Input, Manifest, Parent, Stopwatch, describe_parent
from manifests.folders.tables import READ_ERRORS, describe, read_bytes, read_text
from manifests.provenance import Inlined, find_inlined_blocks
from manifests.records import Ingredient, TrainingRecord, drop_outcomes
from train.compose.candidates import open_library
from train.data import Cifar10
from train.model.contract import check_contract, lemur_digest, lemur_name
from train.runs.job import HISTORY, NET, RECORD, EpochFigures, read_history, read_record

RUNS = "runs"
#: How the errors begin of runs that were stopped from outside.
_STOPPED: dict[str, tuple[str, ...]] = {
    "timeout": ("stopped after ",),
    "error": ("ended by SIGKILL", "ended by SIGTERM", "the sandbox's server died"),
}
_MORE = {"out_of_memory": "; --memory gives it more", "timeout": "; --step-limit gives it longer"}

#: Folder below that of a run: files to copy into a LEMUR checkout unchanged.
LEMUR = "lemur"
TASK, DATASET, METRIC = "img-classification", "cifar-10", "acc"
#: Data whose accuracies may be stored under LEMUR's name of CIFAR-10.
REAL_IMAGES = frozenset({"cifar-10", "cifar-10 (JPEG copy, harder)"})
#: Fields that are not part of a trial's uid.
OUTCOMES = frozenset({"uid", "duration", "accuracy", "epoch"})


def write_run(
    folder: Path,
    code: str,
    record: TrainingRecord,
    identity: Mapping[str, object],
    history: Sequence[EpochFigures],
    data: Cifar10,
    library: Path | None,
    watch: Stopwatch,
    *,
    page: bool = True,
) -> None:
    """Write a finished run into a folder that has its weights already.

    Args:
        library: the extraction folder that it was assembled from; not named if it lacks one of the blocks.
        page: write its page, too; a study shows its runs on its own page.
    """
    (folder / NET).write_text(code, encoding="utf-8", newline="\n")
    _write_derived(folder, code, record, history)
    RUN.finish(
        folder,
        watch,
        page=page,
        **_state(record, identity),
        inputs=[
            Input(name=NET, sha256=record.code_sha256, bytes=(folder / NET).stat().st_size),
            Input(name="recipe", sha256=record.recipe_sha256, bytes=len(record.recipe.encode())),
            images_input(data),
        ],
        parents=_parents(library, record),
    )


def _write_derived(folder: Path, code: str, record: TrainingRecord, history: Sequence[EpochFigures]) -> None:
    """Write the files of a run that follow from its network, record and history."""
    lines = "".join(epoch.model_dump_json() + "\n" for epoch in history)
    (folder / HISTORY).write_text(lines, encoding="utf-8", newline="\n")
    (folder / RECORD).write_text(record_text(record), encoding="utf-8", newline="\n")
    if not why_refused(record, code, history):
        write_lemur_files(folder / LEMUR, record, code, history)


def record_text(record: TrainingRecord) -> str:
    """Return the content of the file of the record."""
    return record.model_dump_json(indent=1) + "\n"


def _state(record: TrainingRecord, identity: Mapping[str, object]) -> Json:
    """Return what the manifest of a run states of it, by field."""
    parameters = {name: identity[name] for name in ("seed", "held_out", "train_images", "device")}
    return {
        "versions": torch_versions(record),
        "parameters": parameters | {"prm": json.loads(record.prm), "recipe": json.loads(record.recipe)},
        "counts": {name: getattr(record, name) for name in ("epochs", "steps", "train_images", "parameters")},
        "details": {name: getattr(record, name) for name in ("name", "status", "val_accuracy", "test_accuracy")},
    }


def _parents(library: Path | None, record: TrainingRecord) -> list[Parent]:
    """Return the extraction folder of a run's blocks as its parent, unless it lacks the code of one of them."""
    if library is None or not record.ingredients:
        return []
    known = open_library(library).rows
    for part in record.ingredients:
        if part.block not in known or known[part.block]["code_sha256"] != part.code_sha256:
            note(f"{library}: has no {part.block} with that code; the folder is not named as a parent")
            return []
    return parents_in(library)


def parents_in(library: Path | None) -> list[Parent]:
    """Return an extraction folder as a parent; no parent, and a note, if `lemur extract` has not finished it."""
    if library is None:
        return []
    if not (library / FILE_NAME).is_file():
        note(f"{library}: no {FILE_NAME}; results built from it cannot be traced further back")
        return []
    return [describe_parent(library)]


def torch_versions(record: TrainingRecord) -> dict[str, str]:
    """Return the package versions that trained a run."""
    return {"torch": record.torch, "torchvision": record.torchvision}


def images_input(data: Cifar10) -> Input:
    """Return the images as an input of a manifest."""
    arrays = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    return Input(name=data.label, sha256=data.sha256, bytes=sum(array.nbytes for array in arrays))


def can_resume(record: TrainingRecord) -> bool:
    """Return whether a run was stopped by its time limit or a signal, so that the same call goes on with it."""
    return (record.error or "").startswith(_STOPPED.get(record.status, ()))


def run_text(record: TrainingRecord, out: Path) -> str:
    """Summarize the result of a run in a few lines.

    Args: out: the folder of the run as the user named it.
    Returns: a table of the result; one line with the reason and what to do if training failed.
    """
    if record.status != "ok" and can_resume(record):
        return f"{record.name}: {record.error}; run the same command again to resume"
    if record.status != "ok":
        return f"{record.name}: {record.status}: {record.error}{_MORE.get(record.status, '')}; see {out / RECORD}"
    lines = [f"{record.name}, seed {record.seed}", *(f"  {name:<17} {value}" for name, value in list_figures(record))]
    return "\n".join([*lines, f"-> {out}"])


def list_figures(record: TrainingRecord) -> list[tuple[str, str]]:
    """Return what a run took and gave, each figure with its name."""
    length = f"{plural(record.epochs, 'epoch')}, {plural(record.steps, 'step')}, {record.train_seconds:,.0f} s"
    return [
        ("data", f"{record.data}, {record.train_images:,} images to train on"),
        ("training", length),
        ("waiting for data", f"{100 * record.data_seconds / max(record.train_seconds, 1e-9):.1f} %"),
        ("parameters", "–" if record.parameters is None else count(record.parameters)),
        ("arithmetic", "–" if record.flop is None else f"{record.flop / 1e15:.3g} PFLOP"),
        ("images seen", "–" if record.images_seen is None else count(record.images_seen)),
        ("held out", percent_text(record.val_accuracy)),
        ("test", percent_text(record.test_accuracy)),
        ("device", f"{record.device}, {record.precision}"),
    ]


# --- what LEMUR gets --------------------------------------------------------------------------------------------------


def check_storable(prm: Mapping[str, object]) -> None:
    """Raise UserError unless LEMUR can store these hyperparameters; the message names the first that it cannot."""
    for name, value in prm.items():
        is_number = math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and value in INTEGERS
        if not is_number and not isinstance(value, str):
            raise UserError(f"prm: {name} is {value!r}; LEMUR stores only numbers and strings")


def read_training_values(recipe: Json) -> Json:
    """Return the values that a recipe trains with, under LEMUR's names; they override a network's hyperparameters."""
    training, augmentation = recipe["training"], recipe["augmentation"]
    used = {
        "batch": training["batch_size"],
        "lr": training["learning_rate"],
        "transform": "norm_flip" if augmentation["flip"] else "norm",
    }
    return used if training["optimizer"] == "adamw" else used | {"momentum": training["momentum"]}


def why_refused(record: TrainingRecord, code: str, history: Sequence[EpochFigures]) -> str:
    """Return the reason why LEMUR does not accept a run; empty for a complete run on real CIFAR-10."""
    if record.status != "ok":
        why = f": {record.error}" if record.error else ""
        return f"the run ended with status {record.status}{why}; only complete runs can be registered"
    if record.data not in REAL_IMAGES:
        return f"trained on {record.data}; only runs on CIFAR-10 can be registered"
    if hashlib.sha256(code.encode()).hexdigest() != record.code_sha256:
        return "the code is not that of this run (its SHA-256 differs from the record's)"
    if fault := check_contract(code):
        return f"does not meet LEMUR's contract: {fault}"
    if len(history) != record.epochs:
        return f"the history has {len(history)} epochs, the record {record.epochs}"
    if not build_trials(record, history):
        return "the run has no accuracy, on held-out or test images"
    try:
        check_storable(json.loads(record.prm))
    except UserError as error:
        return str(error)
    return ""


def build_trials(record: TrainingRecord, history: Sequence[EpochFigures]) -> dict[int, Json]:
    """Return the trial of each epoch that has an accuracy."""
    prm: Json = json.loads(record.prm) | read_training_values(json.loads(record.recipe))
    prm |= {"data": record.data, "seed": record.seed, "recipe": record.recipe_sha256}
    prm = {name: value for name, value in drop_outcomes(prm).items() if name not in OUTCOMES}
    trials: dict[int, Json] = {}
    elapsed = 0.0
    for figures in history:
        elapsed += figures.seconds
        accuracy, measured = figures.val_accuracy, "held-out training images"
        if figures.epoch == record.epochs and record.test_accuracy is not None:
            accuracy, measured = record.test_accuracy, "test images"
        if accuracy is not None:
            # Sorted, as LEMUR prints them: the digest of the printed text is the id.
            used = dict(sorted((prm | {"accuracy_on": measured}).items()))
            outcome = {"uid": lemur_digest(used), "accuracy": accuracy, "duration": round(elapsed * 1e9)}
            trials[figures.epoch] = dict(sorted((used | outcome).items()))
    return trials


def write_lemur_files(folder: Path, record: TrainingRecord, code: str, history: Sequence[EpochFigures]) -> None:
    """Write the LEMUR files of an acceptable run (see `why_refused`) below a folder."""
    name = lemur_name(code, record.name)
    stats = folder / "ab/nn/stat/train" / "_".join((TASK, DATASET, METRIC, name))
    texts = {folder / "ab/nn/nn" / f"{name}.py": code}
    for epoch, trial in build_trials(record, history).items():
        texts[stats / f"{epoch}.json"] = json.dumps([trial], indent=4)
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")


# --- the page of a run, and the list of runs on the page of a study ---------------------------------------------------


def run_page(folder: Path, manifest: Manifest) -> Page:
    """Return the page of one training run."""
    record = read_record(folder)
    setup = f"{plural(record.epochs, 'epoch')} of {count(record.train_images)} images, seed {record.seed}"
    lead = f"{record.data}, {setup}: {result_text(record)}."
    files = [NET, HISTORY, RECORD, FILE_NAME]
    views = [*_views(folder, record), facts("Files", [("as they are", [link(name, name) for name in files])])]
    return Page(record.name, manifest.kind, lead, views)


def runs_library(folder: Path, names: Mapping[str, str]) -> EntryLibrary:
    """Return the runs of a study, each with its curves.

    Args: names: the label of each run, by the name of its folder.
    """
    records = {name: read_record(folder / RUNS / name) for name in names}
    entries = [
        Entry(
            name=name,
            note=f"{plural(record.epochs, 'epoch')} of {count(record.train_images)} images: {result_text(record)}",
            facets=(names[name], record.status, f"seed {record.seed}"),
            numbers=(
                *(value and round(100 * value, 2) for value in (record.test_accuracy, record.val_accuracy)),
                round(record.train_seconds),
                record.parameters,
            ),
        )
        for name, record in records.items()
    ]
    views = (_views(folder / RUNS / name, record) for name, record in records.items())
    numbers = ("test, %", "held out, %", "seconds", "parameters")
    facets = ("variant", "status", "seed")
    return EntryLibrary("Runs", "runs", facets, numbers, entries, views, len(names), RUNS, "held out, %")


def result_text(record: TrainingRecord) -> str:
    """Summarize the result of a run in a few words."""
    if record.status != "ok":
        return f"{record.status}: {record.error}"
    values = (("test", record.test_accuracy), ("held out", record.val_accuracy))
    return ", ".join(f"{label} {percent_text(value)}" for label, value in values if value is not None) or "no accuracy"


def percent_text(value: float | None) -> str:
    """Format an accuracy in percent with two decimals; a dash for None."""
    return "–" if value is None else f"{100 * value:.2f} %"


def _views(folder: Path, record: TrainingRecord) -> list[View]:
    rows: list[tuple[str, Any]] = [
        ("network", record.name),
        ("status", record.status if record.status == "ok" else f"{record.status}: {record.error}"),
        *list_figures(record),
        ("torch", record.torch),
        ("hyperparameters", ", ".join(f"{name} {value}" for name, value in json.loads(record.prm).items())),
        ("recipe", record.recipe_sha256[:16]),
    ]
    return [facts("Run", rows), *_curves(folder), *_blocks(folder, record)]


def _curves(folder: Path) -> list[View]:
    history, charts = read_history(folder), []
    for kind, factor, unit in (("loss", 1.0, ""), ("accuracy", 100.0, ", %")):
        lines = []
        for split, label in (("train", "training, augmented"), ("val", "held out")):
            values = [(float(epoch.epoch), getattr(epoch, f"{split}_{kind}")) for epoch in history]
            if points := [(epoch, factor * value) for epoch, value in values if value is not None]:
                lines.append((label, points))
        charts += [(f"{kind}{unit}", lines)] if lines else []
    return [curves("Curves", "epoch", charts)] if charts else []


def _blocks(folder: Path, record: TrainingRecord) -> list[View]:
    inlined = {block.slot: block for block in find_inlined_blocks(read_text(folder / NET))}
    rows = []
    for part in record.ingredients:
        lines = f", lines {lines_text(*inlined[part.slot].lines)}" if part.slot in inlined else ""
        rows.append([part.slot, part.block, f"{part.path}{lines}", part.license])
    return [table("Blocks in it", ["slot", "block", "from", "license"], rows)] if rows else []


# --- what follows from the files of a finished run, and what holds besides; no code in it is executed -----------------


def derive_run(folder: Folder, made: Path) -> Json:
    """Write again what follows from the network, the history and what only the record says; see `Derive`."""
    path, stored = folder.path, read_record(folder.path)
    history = read_history(path)
    if len(history) != read_bytes(path / HISTORY).count(b"\n"):
        raise ValueError(f"{HISTORY}: line {len(history) + 1} is not epoch {len(history) + 1}")
    record = stored.model_copy(update=_derive_record(path, stored))
    _write_derived(made, read_text(path / NET), record, history)
    device = record.device.partition(",")[0]
    stated = {"seed": record.seed, "train_images": record.train_images, "device": device}
    return _state(record, folder.manifest.parameters | stated)


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


# --- what is shown of a run -------------------------------------------------------------------------------------------


def list_run(folder: Path) -> Iterator[ListedItem]:
    """Yield the whole run (`net`, or the name of its network), then the blocks in its network by slot."""
    try:
        record, blocks = read_record(folder), find_inlined_blocks(read_text(folder / NET))
    except READ_ERRORS as error:
        raise UserError(f"{folder}: damaged run: {describe(error)}; run `lemur verify`, or train it again") from error
    whole, show = (NET.removesuffix(".py"), record.name), functools.partial(_trace_run, folder, record)
    yield ListedItem(whole, {}, (record.code_sha256,), functools.partial(show, blocks), listed=False)
    for block in blocks:
        qualname = block.block.rpartition("::")[2]
        names = {block.block, qualname, qualname.rpartition(".")[2], block.code_sha256} - {block.slot}
        facts = {"block": block.block, "license": block.license}
        # Whoever looks for the code of the network is shown all of it.
        codes = () if block.code_sha256 == record.code_sha256 else (block.code_sha256,)
        yield ListedItem((block.slot, *sorted(names)), facts, codes, functools.partial(show, [block]))


def _trace_run(folder: Path, record: TrainingRecord, blocks: list[Inlined]) -> FoundItem:
    reached = {"held_out": record.val_accuracy, "test": record.test_accuracy}
    run = {
        "seed": record.seed,
        "data": f"{record.data}, SHA-256 {record.data_sha256}",
        "recipe": record.recipe_sha256,
        "outcome": record.status,
        "accuracy": {name: value for name, value in reached.items() if value is not None},
    }
    links = [FolderLink("run", record.name, run), FolderLink("network", NET, {"sha256": sha256_file(folder / NET)})]
    links += [FolderLink("block", block.block, describe_inlined(block, f"{NET}, ")) for block in blocks]
    return FoundItem(tuple(links), tuple(dict.fromkeys(block.code_sha256 for block in blocks)))


RUN = replace(kinds.RUN, derive=derive_run, laws=(check_run,), page=run_page, items=list_run)
verify = functools.partial(verify_folder, RUN)
