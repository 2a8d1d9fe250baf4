"""The extraction folder: closed files, their table, specs, what they need, a report, and a manifest, written last."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from extract.blocks import KIND
from extract.dataset import describe_extraction, write_dataset
from extract.report import write_report
from extract.requirements import requirements_text, runtime_versions
from extract.results import COLUMNS, Result, RunFacts, at_least, count_rows
from extract.sources import Source
from extract.specs import SPECS
from extract.specs.make import write_specs
from lemur_core.files.atomic import atomic_folder
from lemur_core.files.errors import UserError
from lemur_core.similarity.distinct import count_distinct
from manifests.manifest import Input, Manifest, Stopwatch, list_outputs, package_versions, write_manifest
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.records import Block, arrow_schema
from manifests.tables import write_table

#: What the manifest states of each source, beside the number of its files.
_OF_SOURCES = ("name", "kind", "version", "origin", "license", "swhid", "digest", "priority", "paths", "exclude")
#: Characters of a file name before `.py`; longer ones are cut and get a digest.
_LONGEST = 160
_DIGITS = 8
_ODD = re.compile(r"[^A-Za-z0-9._@+-]")
_RESERVED = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)})


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
        left_out = {} if facts.options.timings else {"seconds": None}
        write_table(folder / TABLE, arrow_schema(Block), (row.model_dump() | left_out for row in rows))
        made_from = {result.row.block: result.closure_files for result in results}
        text = requirements_text(rows, made_from, facts.sources)
        (folder / REQUIREMENTS).write_text(text, encoding="utf-8", newline="\n")
        watch.lap("write tables")
        specs = write_specs(folder / SPECS, rows)
        watch.lap("write specs")
        codes = [row.code for row in rows if row.code is not None]
        tables, dataset = write_dataset(folder, specs, codes, len(rows), facts.options)
        describe_extraction(folder, {TABLE: len(rows), **tables}, (source.license for source in facts.sources))
        watch.lap("write data set")
        files = {block: len(made) for block, made in made_from.items()}
        structures = count_distinct([row.code for row in rows if row.code and at_least(row.level, "executed")])
        watch.lap("structures")
        write_report(folder, rows, files, facts, counts, structures, watch.measured())
        watch.lap("report")
        manifest = Manifest(
            kind=KIND,
            versions=package_versions() | runtime_versions(),
            parameters=facts.options.parameters(),
            inputs=[Input(name=s.name, sha256=s.digest, bytes=_bytes_of(s)) for s in facts.sources],
            counts=counts | dataset,
            details={
                "sources": [
                    {name: getattr(source, name) for name in _OF_SOURCES} | {"files": len(source.files)}
                    for source in facts.sources
                ],
                "unopened": dict(facts.unopened),
                "notes": facts.notes,
                "structures": asdict(structures),
                **facts.details,
            },
            outputs=list_outputs(folder, {TABLE: len(rows), SPECS: len(specs), **tables}),
            measured=watch.measured(),
        )
        write_manifest(folder, manifest)
    return manifest


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


def _write_code(folder: Path, rows: Iterable[Block]) -> None:
    for row in rows:
        if row.file is not None and row.code is not None:
            path = folder / row.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(row.code, encoding="utf-8", newline="\n")


def _bytes_of(source: Source) -> int:
    try:
        return sum((source.root / file.path).stat().st_size for file in source.files)
    except OSError as error:
        raise UserError(
            f"{source.name}: {error.filename}: {error.strerror}; it changed meanwhile: run again"
        ) from error
