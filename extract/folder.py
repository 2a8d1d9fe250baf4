"""The extraction folder: closed files, their table, specs, what they need, a report, and a manifest, written last."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from extract.card import describe_extraction
from extract.chat.result import ChatOptions
from extract.counts import COLUMNS, at_least, count_rows
from extract.dataset import write_dataset
from extract.report.page import write_report
from extract.requirements import requirements_text, runtime_versions
from extract.sources import Source
from extract.specs import SPECS
from extract.specs.make import write_specs
from lemur_core.files.atomic import atomic_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from manifests.manifest import Input, Manifest, Stopwatch, list_outputs, package_versions, read_manifest, write_manifest
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.records import Block, Level, arrow_schema
from manifests.tables import write_table

if TYPE_CHECKING:
    from lemur_core.similarity.distinct import Distinct

KIND = "extraction"

#: Characters of a file name before `.py`; longer ones are cut and get a digest.
_LONGEST = 160
_DIGITS = 8
_ODD = re.compile(r"[^A-Za-z0-9._@+-]")
_RESERVED = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)})


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one class, and the (source, path) of every file that its block was made from."""

    row: Block
    closure_files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was asked, what was opened, and what the run met on its way."""

    level: Level  # the rung that blocks were taken to
    parameters: dict[str, Any]  # further ones, as JSON can hold them
    sources: tuple[Source, ...]  # that were opened, by priority
    unopened: tuple[tuple[str, str], ...] = ()  # sources that were not, and why
    targets: tuple[str, ...] | None = None  # the names that were asked for
    notes: tuple[str, ...] = ()  # what could not be done as asked
    index_hits: int = 0  # files whose facts were in the index
    index_parsed: int = 0  # files that were parsed for it
    validations_reused: int = 0  # blocks whose outcome was known from an earlier run
    validations_run: int = 0
    timings: bool = False  # write each block's seconds into the table, whose bytes are then no longer reproducible
    seed: int = 42  # draws which specs are held out, and the wording of conversations
    chat: ChatOptions | None = None  # how conversations are made; None for none
    details: dict[str, Any] = field(default_factory=dict)  # further facts for the manifest, the same in every run


def write_extraction(
    out: Path, results: Sequence[Result], facts: RunFacts, watch: Stopwatch, *, force: bool = False
) -> Manifest:
    """Write the folder `out`, whole or not at all.

    Args:
        results: one for each block, in the order of the table: by priority of their source, path and line.
        watch: of the whole run; its laps are told in the report.

    Returns: the manifest that was written.
    Raises: UserError if `out` cannot be written.
    """
    paths = code_paths([result.row.block for result in results if result.row.code is not None])
    rows = [result.row.model_copy(update={"file": paths.get(result.row.block)}) for result in results]
    assert len({row.block for row in rows}) == len(rows), "a block stands twice among the results"
    counts = count_rows([row.model_dump(include=set(COLUMNS)) for row in rows], facts.targets)
    with atomic_folder(out, force=force) as folder:
        _write_code(folder, rows)
        write_table(folder / TABLE, arrow_schema(Block), _records(rows, timings=facts.timings))
        made_from = {result.row.block: result.closure_files for result in results}
        text = requirements_text(rows, made_from, facts.sources)
        (folder / REQUIREMENTS).write_text(text, encoding="utf-8", newline="\n")
        watch.lap("write tables")
        specs = write_specs(folder / SPECS, rows)
        watch.lap("write specs")
        codes = [row.code for row in rows if row.code is not None]
        tables, dataset = write_dataset(folder, codes, len(rows), facts.seed, facts.chat)
        describe_extraction(folder, {TABLE: len(rows), **tables}, (source.license for source in facts.sources))
        watch.lap("write data set")
        files = {block: len(made) for block, made in made_from.items()}
        structures = _structures(rows)
        watch.lap("structures")
        write_report(folder, rows, files, facts, counts, structures, watch.measured())
        watch.lap("report")
        manifest = Manifest(
            kind=KIND,
            versions=package_versions() | runtime_versions(),
            parameters={
                "level": facts.level,
                "seed": facts.seed,
                "chat": None if facts.chat is None else asdict(facts.chat),
                **facts.parameters,
            },
            inputs=[Input(name=s.name, sha256=s.digest, bytes=_bytes_of(s)) for s in facts.sources],
            counts=counts | dataset,
            details={
                "sources": [_source_facts(source) for source in facts.sources],
                "unopened": dict(facts.unopened),
                "notes": list(facts.notes),
                "structures": asdict(structures),
                **facts.details,
            },
            outputs=list_outputs(folder, {TABLE: len(rows), SPECS: specs, **tables}),
            measured=watch.measured(),
        )
        write_manifest(folder, manifest)
    return manifest


def _structures(rows: Sequence[Block]) -> "Distinct":
    """How many of the executed blocks are structurally distinct, as curation counts them."""
    from lemur_core.similarity.distinct import count_distinct

    return count_distinct([row.code for row in rows if row.code is not None and at_least(row.level, "executed")])


def code_columns(code: str | None) -> dict[str, Any]:
    """The columns of a block that follow from its code: `code`, `code_sha256`, `n_lines`."""
    if code is None:
        return {"code": None, "code_sha256": None, "n_lines": None}
    digest = hashlib.sha256(code.encode()).hexdigest()
    return {"code": code, "code_sha256": digest, "n_lines": code.count("\n") + (code[-1:] not in ("", "\n"))}


def code_paths(blocks: Iterable[str]) -> dict[str, str]:
    """Where the file of each block lies: `blocks/SOURCE/QUALNAME.py`, safe and unique on every common file system.

    What a file system may not take, or may take for another name (case, reserved words, length), is replaced and gets
    the first digits of the SHA-256 of the block's id; of names that differ only in case, the first in order stays.
    """
    folders: dict[str, str] = {}
    names: dict[str, set[str]] = {}
    paths: dict[str, str] = {}
    for block in sorted(blocks):
        source, _, qualname = block.partition("::")
        if source not in folders:
            folders[source] = _unique(source, source, {folder.lower() for folder in folders.values()})
        taken = names.setdefault(source, set())
        name = _unique(qualname, block, taken)
        taken.add(name.lower())
        paths[block] = f"blocks/{folders[source]}/{name}.py"
    return paths


def _unique(name: str, key: str, taken: set[str]) -> str:
    safe = _ODD.sub("_", name)
    if safe[:1] in ("", ".") or safe.partition(".")[0].lower() in _RESERVED:
        safe = f"_{safe}"
    if safe.endswith("."):  # some file systems drop it
        safe = f"{safe}_"
    safe = safe[:_LONGEST]
    if safe == name and safe.lower() not in taken:
        return safe
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    digits = next(n for n in range(_DIGITS, len(digest) + 1) if f"{safe}-{digest[:n]}".lower() not in taken)
    return f"{safe}-{digest[:digits]}"


def read_manifest_of(folder: Path) -> Manifest:
    """The manifest of an extraction folder.

    Raises: UserError if it is not one.
    """
    manifest = read_manifest(folder)
    if manifest.kind != KIND:
        raise UserError(
            f"{folder}: holds {article(manifest.kind)}, not an {KIND}; give the folder that `lemur extract` wrote"
        )
    return manifest


def read_rows(folder: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a folder's table, in its order.

    Args: columns: all when None; without `code`, reading is fast.
    Raises: UserError if it cannot be read.
    """
    try:
        rows: list[dict[str, Any]] = pq.read_table(folder / TABLE, columns=columns and list(columns)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise _damaged(folder, error) from error
    return rows


def read_block(folder: Path, place: int) -> Block:
    """One row of a folder's table, by its number; only the row group that holds it is read.

    Raises: UserError if it cannot be read.
    """
    try:
        with pq.ParquetFile(folder / TABLE) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if place < size:
                    names = list(Block.model_fields)
                    return Block.model_validate(file.read_row_group(group, names).slice(place, 1).to_pylist()[0])
                place -= size
    except (OSError, pa.ArrowException, ValidationError) as error:
        raise _damaged(folder, error) from error
    raise IndexError(place)


def _damaged(folder: Path, error: Exception) -> UserError:
    detail = str(error).splitlines()[0]
    return UserError(f"{folder}: damaged extraction: {detail}; run `lemur verify`, or make the folder anew")


def _write_code(folder: Path, rows: Iterable[Block]) -> None:
    for row in rows:
        if row.file is not None and row.code is not None:
            path = folder / row.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(row.code, encoding="utf-8", newline="\n")


def _records(rows: Iterable[Block], *, timings: bool) -> Iterator[dict[str, object]]:
    for row in rows:
        record = row.model_dump()
        if not timings:
            record["seconds"] = None
        yield record


def _bytes_of(source: Source) -> int:
    try:
        return sum((source.root / file.path).stat().st_size for file in source.files)
    except OSError as error:
        raise UserError(
            f"{source.name}: {error.filename}: {error.strerror}; it changed meanwhile: run again"
        ) from error


def _source_facts(source: Source) -> dict[str, Any]:
    return {
        "name": source.name,
        "kind": source.kind,
        "version": source.version,
        "origin": source.origin,
        "license": source.license,
        "swhid": source.swhid,
        "digest": source.digest,
        "priority": source.priority,
        "files": len(source.files),
        "paths": list(source.paths),
        "exclude": list(source.exclude),
    }
