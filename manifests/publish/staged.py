"""Select the parts of a finished folder that may be published: everything except code whose license forbids it.

An extraction folder loses the code and the algorithms of blocks from sources without a permissive license; their rows,
the other facts of their specs and everything else are kept. A snapshot loses the code and the graphs of networks whose
license, by column `license`, differs from that of the others and is not permissive; it is refused entirely if the
license that they share forbids it. So is a training run with such a block: a network without one of its blocks is
incomplete. Unchanged files are taken from the folder itself, changed ones from a temporary folder.
"""

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lemur_core.files import Json
from lemur_core.files.atomic import scratch_folder, sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.manifest import FILE_NAME, PAGE_FILES, Manifest, Output, read_manifest, write_manifest
from manifests.folders.tables import CROISSANT
from manifests.provenance import (
    LINE,
    QUOTED_LINE,
    TABLE,
    find_blocking_licenses,
    find_inlined_blocks,
    get_minimized_path,
    is_guess,
)
from manifests.provenance.heads import read_head
from manifests.provenance.licenses import NOASSERTION, is_permissive
from manifests.provenance.parts import find_blocked_blocks, read_parts
from manifests.records import TrainingRecord

#: The Hub's own file, which a repository has from its first commit on.
ATTRIBUTES = ".gitattributes"
#: The file with which the Hub silently ignores other files.
IGNORES = ".gitignore"
_RECORD, _NETWORK = "record.json", "net.py"
_TRAINED = frozenset({"run", "ablation", "search"})
_REFUSED_FOLDERS = frozenset({".git", ".cache"})  # the Hub's client ignores files in these folders
_ROWS = 500
#: The specs of an extraction folder, as lines and as tables.
SPECS, SPEC_TABLES = "specs.jsonl", "data/specs/"


@dataclass(frozen=True, slots=True)
class Withheld:
    """Code that is not published, by source and license."""

    source: str
    license: str
    blocks: int
    noun: str = "block"

    @property
    def entry(self) -> dict[str, object]:
        """Return the entry for the manifest."""
        return {"source": self.source, "license": self.license, f"{self.noun}s": self.blocks}


@dataclass(frozen=True, slots=True)
class Staged:
    """The files to publish by their path in the repository, including the manifest."""

    kind: str
    files: dict[str, Path]
    withheld: tuple[Withheld, ...]


@contextlib.contextmanager
def stage_files(folder: Path, *, page: bool = False) -> Iterator[Staged]:
    """Yield the publishable files of a verified folder; changed files exist until the end of the block.

    Args: page: also its page, which contains nothing that may not be redistributed.
    Raises: UserError if the Hub does not accept a file, tables or records cannot be read, or the codes or a network in
        the folder may not be redistributed.
    """
    manifest = read_manifest(folder)
    files = {item.path: folder / item.path for item in manifest.outputs} | {FILE_NAME: folder / FILE_NAME}
    if page and (folder / PAGE_FILES).is_file():
        shown = json.loads((folder / PAGE_FILES).read_text(encoding="utf-8"))
        files |= {name: folder / name for name in (*shown, PAGE_FILES)}
    for name in sorted(files):
        if name == ATTRIBUTES or name.split("/")[-1] == IGNORES or _REFUSED_FOLDERS & set(name.split("/")):
            raise UserError(f"{folder}: the Hub accepts no file named {name}; create the folder again without it")
    _refuse_blocked_networks(folder, manifest)
    without: dict[str, tuple[str, str]] = {}
    if manifest.kind == "extraction":
        without = {**_find_guesses(folder), **find_blocked_blocks(folder, read_parts(folder))}
    elif manifest.kind == "snapshot":
        without = _find_blocked_codes(folder, manifest)
    if not without:
        yield Staged(manifest.kind, files, ())
        return
    with scratch_folder("publish") as scratch:
        yield _without_code(folder, scratch, manifest, files, without)


def _find_guesses(folder: Path) -> dict[str, tuple[str, str]]:
    """Return source and reason of each block with code that requires a distribution which is only guessed, by block."""
    guessed = {}
    for row in pq.read_table(folder / TABLE, columns=["block", "source", "requires", "code_sha256"]).to_pylist():
        guesses = [text.partition(";")[0] for text in row["requires"] if is_guess(text)]
        if guesses and row["code_sha256"] is not None:
            guessed[row["block"]] = (row["source"], f"requires {', '.join(guesses)}, a guess")
    return guessed


def _refuse_blocked_networks(folder: Path, manifest: Manifest) -> None:
    """Raise UserError unless all blocks and other code in the networks of training runs may be redistributed."""
    runs = [folder / item.path for item in manifest.outputs if item.path.split("/")[-1] == _NETWORK]
    for network in runs if manifest.kind in _TRAINED else ():
        blocks, own = _read_licenses(network)
        for block, licenses in blocks.items():
            if wrong := " AND ".join(find_blocking_licenses(licenses)):
                raise UserError(
                    f"{network}: holds {block}, whose license ({wrong}) is not known to permit redistribution;"
                    " nothing was published: assemble the network from other blocks"
                )
        if wrong := " AND ".join(find_blocking_licenses(own)):
            raise UserError(
                f"{network}: its license ({wrong}) is not known to permit redistribution; nothing was published: if the"
                " network is yours, state one in it, `# SPDX-License-Identifier: MIT`, and train it again"
            )


def _read_licenses(network: Path) -> tuple[dict[str, set[str]], set[str]]:
    """Return the licenses of the blocks in a network's file, by its comments and its record, and its own licenses.

    A network that was not assembled from a recipe must state a license.
    """
    run, by_block = network.parent, defaultdict[str, set[str]](set)
    try:
        code = network.read_text(encoding="utf-8")
        for block in find_inlined_blocks(code):
            by_block[block.block].add(block.license)
        record: TrainingRecord = TrainingRecord.model_validate_json((run / _RECORD).read_bytes())
        for part in record.ingredients:
            by_block[part.block].add(part.license)
        assembled = json.loads(record.recipe)["model"] is not None
    except (OSError, ValueError, TypeError, KeyError) as error:  # ValidationError is a ValueError
        detail = str(error).splitlines()[0]
        raise UserError(f"{run}: not readable as a training run: {detail}; train it again") from error
    own = set(read_head(code).licenses)
    return dict(sorted(by_block.items())), own if own or assembled else {NOASSERTION}


#: The tables of a snapshot that contain networks, and the columns to empty if a network is withheld.
_CODES = ("data/records/*.parquet", "removed.parquet")
_EMPTIED: Mapping[str, Mapping[str, str | None]] = {
    **{pattern: {"nn_code": ""} for pattern in _CODES},
    "graphs.parquet": {"eval": None, "train": None},
}


def _find_blocked_codes(folder: Path, manifest: Manifest) -> dict[str, tuple[str, str]]:
    """Return source and license of each code of a snapshot that may not be redistributed, by id.

    Raises: UserError if none of the codes may be.
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
    if not is_permissive(shared) and (blocked or not has_license or not all(has_license)):
        raise UserError(
            f"{folder}: the license of its codes ({shared}) is not known to permit redistribution; nothing was"
            " published: where their source states none and you know it, `lemur curate --license SPDX` does"
        )
    return blocked


def _empty_codes(folder: Path, scratch: Path, without: Collection[str]) -> list[str]:
    """Write the tables of a snapshot without some codes, where they change. Returns: their names."""
    changed = []
    ids = pa.array(sorted(without), pa.string())
    for pattern, columns in _EMPTIED.items():
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).as_posix()
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetFile(path) as file:
                schema, emptied = file.schema_arrow, 0
                with pq.ParquetWriter(scratch / name, schema, compression="zstd") as writer:
                    for batch in file.iter_batches(batch_size=_ROWS):
                        table = pa.Table.from_batches([batch])
                        out = pc.is_in(table["id"], value_set=ids)
                        for column, value in columns.items():
                            index = schema.get_field_index(column)
                            # A row whose code was empty before is not a change.
                            held = pc.and_(out, pc.fill_null(pc.not_equal(table[column], value or ""), False))
                            emptied += pc.sum(held).as_py() or 0
                            bare = pc.if_else(out, pa.scalar(value, schema.field(index).type), table[column])
                            table = table.set_column(index, schema.field(index), bare)
                        writer.write_table(table)
            if emptied:
                changed.append(name)
    return changed


def _without_code(
    folder: Path, scratch: Path, manifest: Manifest, files: dict[str, Path], without: dict[str, tuple[str, str]]
) -> Staged:
    gone: set[str] = set()
    if manifest.kind == "snapshot":
        changed_tables = _empty_codes(folder, scratch, without)
        if not changed_tables:  # of those staged above
            return Staged(manifest.kind, files, ())
    else:
        changed_tables = [TABLE]
        gone = _write_table(folder / TABLE, scratch / TABLE, without)
    kept = {name: path for name, path in files.items() if name not in gone} | {
        name: scratch / name for name in (*changed_tables, FILE_NAME)
    }
    for name in [name for name in kept if name == SPECS or name.startswith(SPEC_TABLES)]:
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        if (_write_lines if name == SPECS else _write_spec_table)(folder / name, scratch / name, without):
            kept[name] = scratch / name
    counts = sorted(Counter(without.values()).items())
    noun = "code" if manifest.kind == "snapshot" else "block"
    withheld = tuple(Withheld(source, licence, number, noun) for (source, licence), number in counts)
    entries = [item.entry for item in withheld]
    changed = {
        item.path: item.model_copy(
            update={"sha256": sha256_file(kept[item.path]), "bytes": kept[item.path].stat().st_size}
        )
        for item in manifest.outputs
        if item.path in kept and kept[item.path].is_relative_to(scratch)
    }
    if CROISSANT in files:
        from manifests.folders.croissant import restate_croissant

        path = kept[CROISSANT] = scratch / CROISSANT
        restate_croissant(folder / CROISSANT, path, list(changed.values()))
        changed[CROISSANT] = Output(path=CROISSANT, sha256=sha256_file(path), bytes=path.stat().st_size)
    outputs = [changed.get(item.path, item) for item in manifest.outputs if item.path in kept]
    # Deltas name their parents by this digest, which the manifest without the codes does not have.
    original = manifest.details.get("original") or sha256_file(folder / FILE_NAME)
    details = {**manifest.details, "withheld": entries, "original": original}
    write_manifest(scratch, manifest.model_copy(update={"outputs": outputs, "details": details}))
    return Staged(manifest.kind, kept, withheld)


def _without_algorithm(facts: Json, ending: str) -> Json:
    """Return a spec without its algorithm, also in its summary. Args: ending: the end of the summary to remove."""
    return facts | {"algorithm": None, "summary": facts["summary"].removesuffix(ending).rstrip()}


def _write_lines(source: Path, target: Path, without: Collection[str]) -> bool:
    """Write spec lines without the algorithm of some blocks. Returns: whether a line changed."""
    changed = False
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8", newline="\n") as out:
        for line in lines:
            facts = json.loads(line)
            if facts["block"] in without and facts.get("algorithm") is not None:
                bare = _without_algorithm(facts, facts["algorithm"]["told"])
                line, changed = json.dumps(bare, sort_keys=True, ensure_ascii=False) + "\n", True
            out.write(line)
    return changed


def _write_spec_table(source: Path, target: Path, without: Collection[str]) -> bool:
    """Write spec rows without the algorithm of some blocks. Returns: whether a row changed."""
    changed = False
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer:
        for batch in file.iter_batches(batch_size=_ROWS):
            rows = batch.to_pylist()
            for index, row in enumerate(rows):
                if row["block"] in without and row.get("algorithm") is not None:
                    rows[index], changed = _without_algorithm(row, json.loads(row["algorithm"])["told"]), True
            writer.write_table(pa.Table.from_pylist(rows, file.schema_arrow))
    return changed


def _write_table(source: Path, target: Path, without: dict[str, tuple[str, str]]) -> set[str]:
    """Write the table without the code of some blocks, including lines quoted in errors. Returns: their code files.

    The minimized form of such a block is kept if its own license permits it and none of its requirements is a guess.
    """
    gone: set[str] = set()
    names = pa.array(sorted(without), pa.string())
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer:
        for batch in file.iter_batches(batch_size=_ROWS):
            table = pa.Table.from_batches([batch])
            out = pc.is_in(table["block"], value_set=names)
            licenses, needs = table["lean_license"].to_pylist(), table["lean_requires"].to_pylist()
            free = pa.array(
                [
                    is_permissive(name or NOASSERTION) and not any(map(is_guess, requires or ()))
                    for name, requires in zip(licenses, needs, strict=True)
                ]
            )
            minimized_out = pc.and_(out, pc.invert(free))
            gone.update(name for name in table["file"].filter(out).to_pylist() if name is not None)
            minimized = (name for name in table["file"].filter(minimized_out).to_pylist() if name is not None)
            gone.update(get_minimized_path(name) for name in minimized)
            bare = pc.replace_substring_regex(table["error"], QUOTED_LINE, LINE)
            nothing = pa.scalar(None, pa.string())
            for name, where, column in (
                ("code", out, nothing),
                ("lean_code", minimized_out, nothing),
                ("error", out, bare),
            ):
                index = table.schema.get_field_index(name)
                table = table.set_column(index, table.schema.field(index), pc.if_else(where, column, table[name]))
            writer.write_table(table)
    return gone
