"""Select the parts of a finished folder that may be published: everything except code whose license forbids it.

An extraction folder loses the code and the algorithms of blocks from sources without a permissive license; their rows,
the other facts of their specs and everything else are kept. A snapshot loses the code and the graphs of networks whose
license, by column `license`, differs from that of the others and is not permissive; it is refused entirely if the
license that they share forbids it. So is a synthesis, and a training run with such a block: a network without one of
its blocks is incomplete. Unchanged files are taken from the folder itself, changed ones from a temporary folder.
"""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from lemur_core.files import Json
from lemur_core.files.atomic import scratch_folder, sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.cards import restate_croissant
from manifests.folders.frame import list_page_files
from manifests.folders.manifest import FILE_NAME, Manifest, read_manifest, write_manifest
from manifests.folders.tables import CROISSANT, open_writer, reading
from manifests.provenance import (
    SPECS,
    TABLE,
    Inlined,
    find_blocking_licenses,
    find_inlined_blocks,
    get_minimized_path,
    is_guess,
    without_source,
)
from manifests.provenance.licenses import NOASSERTION, is_permissive, read_head
from manifests.provenance.parts import find_blocked_blocks, read_parts
from manifests.records import Ingredient, TrainingRecord

SPEC_TABLES = "data/specs/"  # of an extraction, as `SPECS` holds them as lines


@dataclass(frozen=True, slots=True)
class Staged:
    """The files to publish by their path in the repository, including the manifest.

    `withheld`: for each source and license with code that is not published, both, and the number of `blocks` or
    `codes`.
    """

    files: dict[str, Path]
    withheld: tuple[Json, ...]


@contextlib.contextmanager
def stage_files(folder: Path, *, page: bool = False) -> Iterator[Staged]:
    """Yield the publishable files of a verified folder; changed files exist until the end of the block.

    Args: page: also its page, which contains nothing that may not be redistributed.
    Raises: UserError if tables or records cannot be read, or the codes or a network in the folder may not be
        redistributed.
    """
    manifest = read_manifest(folder)
    files = {item.path: folder / item.path for item in manifest.outputs} | {FILE_NAME: folder / FILE_NAME}
    without: dict[str, tuple[str, str]] = {}
    with reading(folder, manifest.kind):
        if page:
            files |= {name: folder / name for name in list_page_files(folder)}
        if manifest.kind in ("run", "ablation"):
            for item in manifest.outputs:
                if item.path.split("/")[-1] == "net.py":
                    _refuse_blocked_network(folder / item.path)
        elif manifest.kind == "extraction":
            without = find_withheld(folder)
        elif manifest.kind in ("snapshot", "synthesis"):
            without = _find_blocked_codes(folder, manifest)
    with scratch_folder("publish") as scratch:
        gone: set[str] = set()
        withheld: tuple[Json, ...] = ()
        rewrites = _plan_rewrites(folder, manifest, without, gone) if without else {}
        changed = [name for name, change in rewrites.items() if _rewrite(folder / name, scratch / name, change)]
        if changed:
            noun, counts = "codes" if manifest.kind == "snapshot" else "blocks", Counter(without.values())
            named = ({"source": source, "license": license_} for source, license_ in sorted(counts))
            withheld = tuple(item | {noun: counts[item["source"], item["license"]]} for item in named)
            _restate(folder, scratch, manifest, changed, gone, withheld)
            files = {name: path for name, path in files.items() if name not in gone}
            files |= {path.relative_to(scratch).as_posix(): path for path in scratch.rglob("*") if path.is_file()}
        yield Staged(files, withheld)


def _restate(
    folder: Path, scratch: Path, manifest: Manifest, changed: list[str], gone: set[str], withheld: Sequence[Json]
) -> None:
    """Write the manifest and `croissant.json` of the files that were rewritten, and without those that are gone."""
    outputs = {item.path: item for item in manifest.outputs if item.path not in gone}

    def restate(name: str) -> None:
        about = {"sha256": sha256_file(scratch / name), "bytes": (scratch / name).stat().st_size}
        outputs[name] = outputs[name].model_copy(update=about)

    for name in changed:
        restate(name)
    if CROISSANT in outputs:
        restate_croissant(folder / CROISSANT, scratch / CROISSANT, [outputs[name] for name in changed])
        restate(CROISSANT)
    update = {"outputs": list(outputs.values()), "details": {**manifest.details, "withheld": list(withheld)}}
    write_manifest(scratch, manifest.model_copy(update=update))


def find_withheld(folder: Path) -> dict[str, tuple[str, str]]:
    """Return source and reason of each block of an extraction, or of a copy, whose code is not published, by block.

    Its licenses forbid it, or it requires a distribution that is only guessed.
    """
    guessed = {}
    for row in pq.read_table(folder / TABLE, columns=["block", "source", "requires", "code_sha256"]).to_pylist():
        guesses = [text.partition(";")[0] for text in row["requires"] if is_guess(text)]
        if guesses and row["code_sha256"] is not None:
            guessed[row["block"]] = (row["source"], f"requires {', '.join(guesses)}, a guess")
    return guessed | find_blocked_blocks(folder, read_parts(folder))


def _refuse_blocked_network(network: Path) -> None:
    """Raise UserError unless all blocks and other code in the network of a training run may be redistributed.

    The blocks are those of its comments and of its record. A network that was not assembled from a recipe must state a
    license.
    """
    run, blocks = network.parent, defaultdict[str, set[str]](set)
    try:
        code = network.read_text(encoding="utf-8")
        record: TrainingRecord = TrainingRecord.model_validate_json((run / "record.json").read_bytes())
        assembled = json.loads(record.recipe)["model"] is not None
    except (OSError, ValueError, TypeError, KeyError) as error:  # ValidationError is a ValueError
        detail = str(error).splitlines()[0]
        raise UserError(f"{run}: not readable as a training run: {detail}; train it again") from error
    parts: list[Inlined | Ingredient] = [*find_inlined_blocks(code), *record.ingredients]
    for part in parts:
        blocks[part.block].add(part.license)
    own = set(read_head(code).licenses) or (set() if assembled else {NOASSERTION})
    for block, licenses in sorted(blocks.items()):
        if wrong := find_blocking_licenses(licenses):
            _refuse(f"{network}: holds {block}, whose license", wrong, "assemble the network from other blocks")
    if wrong := find_blocking_licenses(own):
        advice = "if the network is yours, state one in it, `# SPDX-License-Identifier: MIT`, and train it again"
        _refuse(f"{network}: its license", wrong, advice)


def _refuse(what: str, licenses: Sequence[str], advice: str) -> NoReturn:
    stated = f"{what} ({' AND '.join(licenses)}) is not known to permit redistribution"
    raise UserError(f"{stated}; nothing was published: {advice}")


#: The tables of a snapshot that contain networks, and the columns to empty if a network is withheld.
_CODES = ("data/records/*.parquet", "networks.parquet")
_EMPTIED: Mapping[str, Json] = {
    **{pattern: {"nn_code": ""} for pattern in _CODES},
    "graphs.parquet": {"eval": None, "train": None},
}


def _find_blocked_codes(folder: Path, manifest: Manifest) -> dict[str, tuple[str, str]]:
    """Return source and license of each code of a snapshot that may not be redistributed, by id.

    Raises: UserError if none of the codes may be; of a synthesis, whose attempts hold codes too, always if any may not.
    """
    shared = str(manifest.details.get("license", NOASSERTION))
    blocked: dict[str, tuple[str, str]] = {}
    has_license: list[bool] = []
    for path in (path for pattern in _CODES for path in sorted(folder.glob(pattern))):
        columns = [name for name in ("id", "license", "origin") if name in pq.read_schema(path).names]
        has_license.append("license" in columns)
        for row in pq.read_table(path, columns=columns).to_pylist():
            licence = row.get("license") or shared
            if not is_permissive(licence):
                source = (row.get("origin") or "").partition("::")[0]
                blocked[row["id"]] = (source or str(manifest.parameters.get("source", folder.name)), licence)
    made = manifest.kind == "synthesis"
    if not is_permissive(shared) and (made or blocked or not has_license or not all(has_license)):
        command = "synthesize" if made else "curate"
        advice = f"where nothing states one and you know it, `lemur {command} --license SPDX` does"
        _refuse(f"{folder}: the license of its codes", [shared], advice)
    return blocked


#: Returns a row, or the facts of a line, without what may not be redistributed.
_Change = Callable[[Json], Json]


def _rewrite(source: Path, target: Path, change: _Change) -> bool:
    """Write a table, or lines of JSON, with other rows; a line that does not change stays as it is.

    Returns: whether one changed; if not, nothing is left.
    """
    changed = False
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".parquet":
        with pq.ParquetFile(source) as file, open_writer(target, file.schema_arrow) as writer:
            for batch in file.iter_batches(batch_size=500):
                before = batch.to_pylist()
                rows = [change(row) for row in before]
                changed = changed or rows != before
                writer.write_table(pa.Table.from_pylist(rows, file.schema_arrow))
    else:
        with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8", newline="\n") as out:
            for line in lines:
                facts = json.loads(line)
                if (after := change(facts)) != facts:
                    line, changed = json.dumps(after, sort_keys=True, ensure_ascii=False) + "\n", True
                out.write(line)
    if not changed:
        target.unlink()
    return changed


def _plan_rewrites(
    folder: Path, manifest: Manifest, without: Mapping[str, tuple[str, str]], gone: set[str]
) -> dict[str, _Change]:
    """Return how the files with what may not be redistributed change; `gone` receives the code files, which go."""
    if manifest.kind == "snapshot":

        def empty(emptied: Json) -> _Change:
            return lambda row: row | emptied if row["id"] in without else row

        tables = {path: emptied for pattern, emptied in _EMPTIED.items() for path in folder.glob(pattern)}
        return {path.relative_to(folder).as_posix(): empty(emptied) for path, emptied in tables.items()}

    def drop_code(row: Json) -> Json:
        """Remove the code of a block, and lines of it that errors quote, and note the names of its code files.

        The minimized form is kept if its own license permits it and none of its requirements is a guess.
        """
        if row["block"] not in without:
            return row
        bare = row | {"code": None, "error": row["error"] and without_source(row["error"])}
        files_out = [row["file"]]
        if not is_permissive(row["lean_license"] or NOASSERTION) or any(map(is_guess, row["lean_requires"] or ())):
            bare["lean_code"] = None
            files_out.append(row["file"] and get_minimized_path(row["file"]))
        gone.update(filter(None, files_out))
        return bare

    def drop_algorithm(facts: Json) -> Json:
        """Remove the algorithm of a block, and the motifs at the end of its summary."""
        algorithm, summary = facts.get("algorithm"), facts.get("summary")
        if facts["block"] not in without or algorithm is None:
            return facts
        motifs = (json.loads(algorithm) if isinstance(algorithm, str) else algorithm)["motifs"]
        return facts | {"algorithm": None, "summary": str(summary).rpartition("; ")[0] if motifs else summary}

    listed = (item.path for item in manifest.outputs)
    specs = (name for name in listed if name == SPECS or name.startswith(SPEC_TABLES))
    return {TABLE: drop_code, **dict.fromkeys(specs, drop_algorithm)}
