"""The kinds of folder that `lemur train` writes: what is shown of a run, and the chain to its blocks' source lines.

No code in such a folder is executed, and no weights are loaded.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError, missing_name
from manifests.folders.kinds import FolderLink, FoundItem, ListedItem, describe_inlined, manifest_link
from manifests.folders.manifest import FILE_NAME, read_manifest
from manifests.folders.reading import READ_ERRORS, describe, read_text
from manifests.provenance import Inlined, find_inlined_blocks
from manifests.records import Ingredient, TrainingRecord
from train.runs.job import NET, read_record
from train.runs.run_folder import RUN, RUNS
from train.studies.ablation import ABLATION


def find(folder: Path, wanted: str) -> FoundItem:
    """Find the whole run (by `net` or the name of its network), or a block in it by slot, id, qualified or bare name.

    Raises: UserError, with similar names, if nothing has that name.
    """
    record, blocks = _read(folder)
    whole = [NET.removesuffix(".py"), record.name]
    chosen = blocks if wanted in whole else [block for block in blocks if wanted in _list_names(block)]
    if not chosen and wanted not in whole:
        names = [*dict.fromkeys(whole), *dict.fromkeys(name for block in blocks for name in sorted(_list_names(block)))]
        raise missing_name(f"{wanted}: neither the network of this run nor a block in it", wanted, names)
    return _trace_run(folder, record, chosen)


def find_code(folder: Path, sha256: str) -> FoundItem | None:
    """Return the run if its network, or else a block in it, has this digest; None otherwise."""
    record, blocks = _read(folder)
    if record.code_sha256 == sha256:
        return _trace_run(folder, record, blocks)
    chosen = [block for block in blocks if block.code_sha256 == sha256]
    return _trace_run(folder, record, chosen) if chosen else None


def _trace_run(folder: Path, record: TrainingRecord, blocks: list[Inlined]) -> FoundItem:
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
    links = [FolderLink("run", record.name, run), FolderLink("network", NET, network)]
    stated = {part.slot: part for part in record.ingredients}
    links += [_make_block_link(block, stated.get(block.slot)) for block in blocks]
    return FoundItem(tuple(links), tuple(dict.fromkeys(block.code_sha256 for block in blocks)))


def _make_block_link(block: Inlined, part: Ingredient | None) -> FolderLink:
    facts = describe_inlined(block, f"{NET}, ")
    if part is not None and part.code_sha256 != block.code_sha256:
        facts["but"] = f"the record names {part.block} here"
    return FolderLink("block", block.block, facts)


def _list_names(block: Inlined) -> set[str]:
    """Return the names by which a block of a run can be looked up."""
    qualname = block.block.rpartition("::")[2]
    return {block.block, qualname, qualname.rpartition(".")[2], block.slot, block.code_sha256}


def _read(folder: Path) -> tuple[TrainingRecord, list[Inlined]]:
    try:
        return read_record(folder), find_inlined_blocks(read_text(folder / NET))
    except READ_ERRORS as error:
        raise UserError(f"{folder}: damaged run: {describe(error)}; run `lemur verify`, or train it again") from error


def find_in_study(folder: Path, wanted: str) -> FoundItem:
    """Find a run by the name of its folder, or with `NAME/BLOCK` a block of its network.

    Raises: UserError, with similar names, if nothing has that name.
    """
    runs = [path.name for path in _list_runs(folder)]
    name, _, block = wanted.partition("/")
    if name not in runs:
        raise missing_name(f"{wanted}: no run of this {read_manifest(folder).kind} has that name", name, runs)
    run = folder / RUNS / name
    return _add_manifest(folder, run, find(run, block or "net"))


def find_code_in_study(folder: Path, sha256: str) -> FoundItem | None:
    """Return the first run whose network, or a block in it, has this digest; None if there is none."""
    for run in _list_runs(folder):
        traced = find_code(run, sha256)
        if traced is not None:
            return _add_manifest(folder, run, traced)
    return None


def _add_manifest(folder: Path, run: Path, traced: FoundItem) -> FoundItem:
    of_run = FolderLink("in", run.relative_to(folder).as_posix(), {})
    return FoundItem((of_run, *traced.links, manifest_link(run, read_manifest(run))), traced.codes)


def _list_runs(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / RUNS).glob("*") if (path / FILE_NAME).is_file())


def list_run_blocks(folder: Path) -> Iterator[ListedItem]:
    """Yield the blocks in the network of a run, by slot."""
    for block in _read(folder)[1]:
        names = (block.slot, *sorted(_list_names(block) - {block.slot}))
        yield ListedItem(names, {"block": block.block, "license": block.license})


def list_study_runs(folder: Path) -> Iterator[ListedItem]:
    """Yield the runs of a study."""
    for path in _list_runs(folder):
        record = read_record(path)
        facts = {"network": record.name, "seed": record.seed, "outcome": record.status, "test": record.test_accuracy}
        yield ListedItem((path.name,), facts)


KINDS = (
    replace(RUN, items=list_run_blocks, find=find, find_code=find_code),
    replace(ABLATION, items=list_study_runs, find=find_in_study, find_code=find_code_in_study),
)
