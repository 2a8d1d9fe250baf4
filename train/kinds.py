"""The kinds of folder that `lemur train` writes: what is shown of a run, and the chain to its blocks' source lines.

No code in such a folder is executed, and no weights are loaded.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.kinds import FolderLink, FoundItem, ListedItem, describe_inlined, manifest_link
from manifests.folders.manifest import FILE_NAME, read_manifest
from manifests.folders.tables import READ_ERRORS, describe, read_text
from manifests.provenance import Inlined, find_inlined_blocks
from manifests.records import Ingredient, TrainingRecord
from train.runs.job import NET, read_record
from train.runs.run_folder import RUN, RUNS
from train.studies.ablation import ABLATION


def list_run(folder: Path) -> Iterator[ListedItem]:
    """Yield the whole run (`net`, or the name of its network), then the blocks in its network by slot."""
    try:
        record, blocks = read_record(folder), find_inlined_blocks(read_text(folder / NET))
    except READ_ERRORS as error:
        raise UserError(f"{folder}: damaged run: {describe(error)}; run `lemur verify`, or train it again") from error
    whole = (NET.removesuffix(".py"), record.name)
    yield ListedItem(whole, {}, (record.code_sha256,), partial(_trace_run, folder, record, blocks), listed=False)
    for block in blocks:
        qualname = block.block.rpartition("::")[2]
        names = {block.block, qualname, qualname.rpartition(".")[2], block.code_sha256} - {block.slot}
        facts = {"block": block.block, "license": block.license}
        found = partial(_trace_run, folder, record, [block])
        # Whoever looks for the code of the network is shown all of it.
        codes = () if block.code_sha256 == record.code_sha256 else (block.code_sha256,)
        yield ListedItem((block.slot, *sorted(names)), facts, codes, found)


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


def list_study(folder: Path) -> Iterator[ListedItem]:
    """Yield the runs of a study by their folders, and as `NAME/BLOCK` the blocks of their networks."""
    seen: set[str] = set()  # of runs with one network, its code leads to the first
    for run in sorted(path for path in (folder / RUNS).glob("*") if (path / FILE_NAME).is_file()):
        items = list(list_run(run))
        for item in items:
            names, facts = tuple(f"{run.name}/{name}" for name in item.names), item.facts
            if not item.listed:
                record = read_record(run)
                facts = {"network": record.name, "seed": record.seed, "outcome": record.status}
                names, facts = (run.name, *names), {**facts, "test": record.test_accuracy}
            codes = tuple(code for code in item.codes if code not in seen)
            yield ListedItem(names, facts, codes, partial(_show_in_study, folder, run, item), listed=not item.listed)
        seen |= {code for item in items for code in item.codes}


def _show_in_study(folder: Path, run: Path, item: ListedItem) -> FoundItem:
    assert item.show is not None
    found, of_run = item.show(), FolderLink("in", run.relative_to(folder).as_posix(), {})
    return FoundItem((of_run, *found.links, manifest_link(run, read_manifest(run))), found.codes)


KINDS = (replace(RUN, items=list_run), replace(ABLATION, items=list_study))
