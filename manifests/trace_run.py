"""A training run, traced through the blocks in its network to the lines that each was copied from."""

import difflib
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.records import Ingredient, TrainingRecord
from manifests.trace import Link, Traced, lines_text
from manifests.trace_network import Inlined, inlined_blocks

_RECORD, _NET = "record.json", "net.py"
_NEAR = 5


def find(folder: Path, wanted: str) -> Traced:
    """The whole run (`net`, or the name of its network), or one block in it: by slot, id, qualified or bare name.

    Raises: UserError if nothing is called so, with near names.
    """
    record, blocks = _read(folder)
    whole = [_NET.removesuffix(".py"), record.name]
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
    network = {"sha256": sha256_file(folder / _NET), "recorded": record.code_sha256}
    if network["sha256"] == network["recorded"]:
        del network["recorded"]
    links = [Link("run", record.name, run), Link("network", _NET, network)]
    stated = {part.slot: part for part in record.ingredients}
    links += [_block(block, stated.get(block.slot)) for block in blocks]
    return Traced(tuple(links), tuple(dict.fromkeys(block.code_sha256 for block in blocks)))


def _block(block: Inlined, part: Ingredient | None) -> Link:
    facts: dict[str, Any] = {
        "slot": f"{block.slot} ({_NET}, from line {block.line} on)",
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
        record: TrainingRecord = TrainingRecord.model_validate_json((folder / _RECORD).read_bytes())
        return record, inlined_blocks((folder / _NET).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # ValidationError and UnicodeDecodeError are ValueErrors
        detail = str(error).splitlines()[0]
        raise UserError(f"{folder}: damaged run: {detail}; run `lemur verify`, or train it anew") from error
