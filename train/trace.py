"""What `lemur verify` and `lemur trace` say of a training run, an ablation or a search.

Files, records and manifest say the same; a run is traced through the blocks in its network to the lines that each was
copied from. Nothing of what is in the folder is executed, and no weights are loaded.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from manifests.checks import Check, check_files, found_check
from manifests.kinds import FolderKind, Link, Traced, lines_text, manifest_link
from manifests.manifest import FILE_NAME, Manifest, read_manifest
from manifests.provenance import Inlined, inlined_blocks
from manifests.records import Ingredient, TrainingRecord
from train.ablation import ablation_page
from train.job import HISTORY, read_history
from train.page import RUNS, run_page
from train.run_folder import IDENTITY, KIND, NET, RECORD, read_identity, read_record
from train.search import search_page

_TABLES = {"ablation": "records.jsonl", "search": "trials.jsonl"}
_NEAR = 5


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:  # noqa: ARG001 (all verifiers are called so)
    """All checks of a finished run or study, in a fixed order.

    Raises: UserError if it holds no valid manifest of one.
    """
    manifest = read_manifest(folder)
    if manifest.kind != KIND and manifest.kind not in _TABLES:
        raise UserError(f"{folder}: holds {article(manifest.kind)}; give a folder that `lemur train` wrote")
    files = check_files(folder, manifest)
    return [files, *(_check_run(folder, manifest) if manifest.kind == KIND else _check_study(folder, manifest))]


def _check_run(folder: Path, manifest: Manifest) -> list[Check]:
    try:
        record = read_record(folder)
    except (OSError, ValueError) as error:  # ValidationError is a ValueError
        wrong = [f"{RECORD}: {_first_line(error)}"]
        return [found_check("record", wrong, ""), Check("run", ok=False, detail="not checked: there is no record")]
    stated = f"{record.name}, seed {record.seed}, {record.status}"
    return [
        found_check("record", [], stated),
        found_check("network", list(_network_faults(folder, record)), "net.py and its blocks are those of the record"),
        found_check("history", list(_history_faults(folder, record)), f"{record.epochs:,} epochs, ends as recorded"),
        found_check("manifest", list(_manifest_faults(folder, record, manifest)), "states what the record states"),
    ]


def _network_faults(folder: Path, record: TrainingRecord) -> Iterator[str]:
    """The network's digest is the recorded one, and its comments name the recorded blocks."""
    try:
        code = (folder / NET).read_bytes()
    except OSError as error:
        yield f"{NET}: {_first_line(error)}"
        return
    if hashlib.sha256(code).hexdigest() != record.code_sha256:
        yield f"{NET}: its SHA-256 is not that of the record, {record.code_sha256[:16]}…"
    named = {(block.slot, block.block, block.code_sha256) for block in inlined_blocks(code.decode("utf-8", "replace"))}
    for part in record.ingredients:
        if (part.slot, part.block, part.code_sha256) not in named:
            yield f"{NET}: has no comment of {part.block} in slot {part.slot}, which the record names"


def _history_faults(folder: Path, record: TrainingRecord) -> Iterator[str]:
    """As many epochs as recorded, and the last one's figures are the record's."""
    try:
        lines = (folder / HISTORY).read_bytes().splitlines()
    except OSError as error:
        yield f"{HISTORY}: {_first_line(error)}"
        return
    epochs = read_history(folder)
    if len(epochs) != len(lines):
        yield f"{HISTORY}: line {len(epochs) + 1} is not epoch {len(epochs) + 1}"
        return
    if len(epochs) != record.epochs:
        yield f"{HISTORY}: {len(epochs)} epochs, {record.epochs} recorded"
        return
    for last in epochs[-1:]:
        for name in ("train_loss", "val_accuracy"):
            if getattr(last, name) != getattr(record, name):
                yield f"{HISTORY}: {name} is {getattr(last, name)} in the last epoch, {getattr(record, name)} recorded"
        if last.steps > record.steps or (record.status == "ok" and last.steps != record.steps):
            yield f"{HISTORY}: {last.steps:,} steps up to the last epoch, {record.steps:,} recorded"


def _manifest_faults(folder: Path, record: TrainingRecord, manifest: Manifest) -> Iterator[str]:
    """What the manifest states of the run is what the record states, and so is recipe.json."""
    inputs = {item.name: item.sha256 for item in manifest.inputs}
    digests = {NET: record.code_sha256, "recipe": record.recipe_sha256, record.data: record.data_sha256}
    for name, digest in digests.items():
        if inputs.get(name) != digest:
            yield f"input {name}: SHA-256 {str(inputs.get(name))[:16]}… stated, {digest[:16]}… recorded"
    if hashlib.sha256(record.recipe.encode()).hexdigest() != record.recipe_sha256:
        yield f"{RECORD}: recipe_sha256 is not the SHA-256 of the recipe in it"
    stated = {**manifest.counts, **{name: manifest.details.get(name) for name in ("name", "status", "test_accuracy")}}
    for name, value in stated.items():
        if getattr(record, name, None) != value:
            yield f"{name}: {value} stated, {getattr(record, name, None)} recorded"
    if _read_json(folder / "recipe.json") != json.loads(record.recipe):
        yield "recipe.json: is not the recipe of the record"
    try:
        other = read_identity(folder)["code_sha256"] != record.code_sha256
    except (OSError, ValueError, KeyError, TypeError):
        other = True
    if other:
        yield f"{IDENTITY}: is of another network than the record"


def _check_study(folder: Path, manifest: Manifest) -> list[Check]:
    """Every run below `runs` by itself, and the table names only records that lie there."""
    runs, wrong, records = sorted((folder / RUNS).glob("*")), [], []
    for run in runs:
        try:
            checks = _check_run(run, read_manifest(run))
        except UserError as error:
            wrong.append(str(error))
            continue
        wrong += [f"{run.name}: {check.name}: {check.detail}" for check in checks if not check.ok]
        records.append(_read_json(run / RECORD))
    table, missing, rows = _TABLES[manifest.kind], [], 0
    lines = (folder / table).read_bytes().splitlines() if (folder / table).is_file() else []
    for number, line in enumerate(lines, 1):
        row = _loads(line)
        named = row.get("records", []) if manifest.kind == "search" and isinstance(row, dict) else [row]
        rows += len(named)
        missing += [f"{table}, line {number}: no run has this record" for record in named if record not in records]
    if rows != manifest.counts.get("runs"):
        missing.append(f"{table}: {rows} records, {manifest.counts.get('runs')} runs stated")
    return [
        found_check("runs", wrong, f"{len(runs):,} runs as their records and manifests state"),
        found_check("records", missing, f"{rows:,} records of {table} are those of the runs"),
    ]


def _read_json(path: Path) -> Any:
    return _loads(path.read_bytes() if path.is_file() else b"")


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


# -- trace --------------------------------------------


def find(folder: Path, wanted: str) -> Traced:
    """The whole run (`net`, or the name of its network), or one block in it: by slot, id, qualified or bare name.

    Raises: UserError if nothing is called so, with near names.
    """
    record, blocks = _read(folder)
    whole = [NET.removesuffix(".py"), record.name]
    chosen = blocks if wanted in whole else [block for block in blocks if wanted in _names(block)]
    if not chosen and wanted not in whole:
        names = sorted({*whole, *(name for block in blocks for name in _names(block))})
        near = difflib.get_close_matches(wanted, names, _NEAR) or [*dict.fromkeys(whole), *(b.slot for b in blocks)]
        raise UserError(f"{wanted}: neither the network of this run nor a block in it; near names: {', '.join(near)}")
    return _traced(folder, record, chosen)


def find_code(folder: Path, sha256: str) -> Traced | None:
    """The run, if its network is the code of this digest; a block in it, if that is."""
    record, blocks = _read(folder)
    if record.code_sha256 == sha256:
        return _traced(folder, record, blocks)
    chosen = [block for block in blocks if block.code_sha256 == sha256]
    return _traced(folder, record, chosen) if chosen else None


def _traced(folder: Path, record: TrainingRecord, blocks: list[Inlined]) -> Traced:
    reached = {"held_out": record.val_accuracy, "test": record.test_accuracy}
    run = {
        "seed": record.seed,
        "data": f"{record.data}, SHA-256 {record.data_sha256}",
        "recipe": record.recipe_sha256,
        "outcome": record.status,
        "accuracy": {name: value for name, value in reached.items() if value is not None},
    }
    network = {"sha256": sha256_file(folder / NET), "recorded": record.code_sha256}
    if network["sha256"] == network["recorded"]:
        del network["recorded"]
    links = [Link("run", record.name, run), Link("network", NET, network)]
    stated = {part.slot: part for part in record.ingredients}
    links += [_block(block, stated.get(block.slot)) for block in blocks]
    return Traced(tuple(links), tuple(dict.fromkeys(block.code_sha256 for block in blocks)))


def _block(block: Inlined, part: Ingredient | None) -> Link:
    facts: dict[str, Any] = {
        "slot": f"{block.slot} ({NET}, from line {block.line} on)",
        "source": f"{block.block.partition('::')[0]} {block.path}",
        "lines": lines_text(*block.lines),
        "swhid": block.swhid,
        "licence": block.license,
        "code": block.code_sha256,
    }
    if part is not None and part.code_sha256 != block.code_sha256:
        facts["but"] = f"the record names {part.block} here"
    return Link("block", block.block, facts)


def _names(block: Inlined) -> set[str]:
    """What one may call a block of a run."""
    qualname = block.block.rpartition("::")[2]
    return {block.block, qualname, qualname.rpartition(".")[2], block.slot, block.code_sha256}


def _read(folder: Path) -> tuple[TrainingRecord, list[Inlined]]:
    try:
        return read_record(folder), inlined_blocks((folder / NET).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValidationError and UnicodeDecodeError are ValueErrors
        raise UserError(f"{folder}: damaged run: {_first_line(error)}; run `lemur verify`, or train it anew") from error


def find_in_study(folder: Path, wanted: str) -> Traced:
    """The run whose folder has this name; `NAME/BLOCK` is one block of its network.

    Raises: UserError if nothing is called so, with near names.
    """
    runs = [path.name for path in _runs(folder)]
    name, _, block = wanted.partition("/")
    if name not in runs:
        near = difflib.get_close_matches(name, runs, _NEAR, 0.3) or runs[:_NEAR]
        raise UserError(
            f"{wanted}: no run of this {read_manifest(folder).kind} is called so; near names: {', '.join(near)}"
        )
    run = folder / RUNS / name
    return _with_manifest(folder, run, find(run, block or "net"))


def find_code_in_study(folder: Path, sha256: str) -> Traced | None:
    """The first run whose network has this digest, or a block of it."""
    for run in _runs(folder):
        found = find_code(run, sha256)
        if found is not None:
            return _with_manifest(folder, run, found)
    return None


def _with_manifest(folder: Path, run: Path, found: Traced) -> Traced:
    of_run = Link("in", run.relative_to(folder).as_posix(), {})
    return Traced((of_run, *found.links, manifest_link(run, read_manifest(run))), found.codes)


def _runs(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / RUNS).glob("*") if (path / FILE_NAME).is_file())


#: The folders that `lemur train` writes.
KINDS = {
    "run": FolderKind(verify, find, find_code, run_page),
    "ablation": FolderKind(verify, find_in_study, find_code_in_study, ablation_page),
    "search": FolderKind(verify, find_in_study, find_code_in_study, search_page),
}
