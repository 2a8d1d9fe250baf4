"""Writer of the extraction folder: closed files, table, specs, requirements, report, and the manifest last."""

import hashlib
import importlib.metadata
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from extract.folder.chat import build_chat
from extract.folder.page import FACED
from extract.model.results import Result, RunFacts, count_rows
from extract.resolve.distributions import add_versions, list_imports
from extract.resolve.modules import RUNTIME, list_packages
from extract.resolve.standins import replacement_source
from extract.sources import PackageSource
from extract.specs.make import write_specs
from extract.specs.splits import assign_splits, write_spec_tables
from lemur_core.files.atomic import atomic_folder
from lemur_core.files.errors import UserError
from lemur_core.sandbox.cached import run_versions
from lemur_core.source.text import parse_code
from manifests.conversations import write_chat_tables
from manifests.folders.manifest import Input, Manifest, Stopwatch, package_versions
from manifests.folders.tables import write_table
from manifests.provenance import FULL, NAMES, REQUIREMENTS, SPECS, TABLE, get_minimized_path
from manifests.provenance.licenses import is_permissive
from manifests.provenance.swhid import qualify_swhid
from manifests.records import SPLITS, Block, Spec, SpecChatDrop, SpecChatRow, arrow_schema

#: Fields of each source in the manifest, in addition to the number of its files.
_OF_SOURCES: tuple[str, ...] = ("name", "kind", "version", "origin", "license", "swhid", "digest", "priority")
_OF_SOURCES += ("paths", "exclude", "symbols", "instead_of")
#: Characters of a file name before `.py`; longer names are cut and end in a digest.
_LONGEST = 160
_DIGITS = 8
_ODD = re.compile(r"[^A-Za-z0-9._@+-]")
_RESERVED = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)})


def write_extraction(
    out: Path, results: Sequence[Result], facts: RunFacts, watch: Stopwatch, *, force: bool = False
) -> Manifest:
    """Write the folder `out` atomically.

    Args:
        results: one per block, in table order: by priority of the source, path and line.
        watch: stopwatch of the whole run; its laps appear in the report.

    Returns: The manifest.
    Raises: UserError if `out` cannot be written.
    """
    paths = code_paths([result.row.block for result in results if result.row.code is not None])
    rows = [result.row.model_copy(update={"file": paths.get(result.row.block)}) for result in results]
    assert len({row.block for row in rows}) == len(rows), "a block occurs twice among the results"
    with atomic_folder(out, force=force) as folder:
        write_blocks(folder, rows, facts.options.level)
        files_of_block = {result.row.block: result.closure_files for result in results}
        text = requirements_text(rows, files_of_block, facts.sources)
        (folder / REQUIREMENTS).write_text(text, encoding="utf-8", newline="\n")
        watch.lap("write tables")
        traced = {result.row.block: result.traced for result in results if result.traced is not None}
        specs = write_specs(folder / SPECS, rows, traced)
        watch.lap("write specs")
        counts, details = write_contents(folder, rows, specs, facts)
        watch.lap("write data set")
        return FACED.finish(
            folder,
            watch,
            versions=package_versions("pytest") | run_versions(),
            parameters=facts.options.parameters(),
            inputs=[Input(name=s.name, sha256=s.digest, bytes=_count_bytes(s)) for s in facts.sources],
            counts=counts,
            details=details,
        )


def write_contents(
    folder: Path, rows: Sequence[Block], specs: Sequence[Spec], facts: RunFacts
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the tables that follow from the blocks, specs and requirements in a folder.

    Returns: the counts and the details of its manifest.
    """
    counts = count_rows(rows, facts.targets) | _write_dataset(folder, specs, rows, facts)
    return counts, _manifest_details(facts)


def write_blocks(folder: Path, rows: Sequence[Block], level: str) -> None:
    """Write the closed files and the table of blocks. Args: level: the one that was asked for."""
    for row in rows:
        file = row.file or ""
        for name, code in ((file, row.code), (get_minimized_path(file), row.lean_code)):
            if file and code is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(code, encoding="utf-8", newline="\n")
    write_table(folder / TABLE, arrow_schema(Block), (row.model_dump() for row in rows))
    if level == "discovered":
        # The list that makes `--names` select these classes again: unique bare names, else block ids.
        times = Counter(row.name for row in rows)
        names = [row.name if times[row.name] == 1 else row.block for row in rows]
        (folder / NAMES).write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8", newline="\n")


def _manifest_details(facts: RunFacts) -> dict[str, Any]:
    sources = [
        {name: getattr(source, name) for name in _OF_SOURCES} | {"files": len(source.files)} for source in facts.sources
    ]
    events = {"unopened": dict(facts.unopened), "notes": facts.notes}
    return {"sources": sources, **events, **facts.details}


def code_paths(blocks: Iterable[str]) -> dict[str, str]:
    """Return the file path of each block: `blocks/SOURCE/QUALNAME.py`, safe and unique on every common file system.

    Parts that a file system may reject or confuse (case, reserved words, length) are replaced, followed by the first
    digits of the SHA-256 of the block's id; of names that differ only in case, the first in order is unchanged.
    """
    folders: dict[str, str] = {}
    names: dict[str, set[str]] = {}
    paths: dict[str, str] = {}
    # Sorted: which of two names that differ only in case keeps its spelling must not depend on the order of rows.
    for block in sorted(blocks):
        source, _, qualname = block.partition("::")
        if source not in folders:
            folders[source] = _unique(source, source, {folder.lower() for folder in folders.values()})
        taken = names.setdefault(source, set())
        name = _unique(qualname, block, taken)
        taken.add(name.lower())
        paths[block] = f"{FULL}{folders[source]}/{name}.py"
    return paths


def _unique(name: str, key: str, taken: set[str]) -> str:
    safe = _ODD.sub("_", name)
    if safe[:1] in ("", ".") or safe.partition(".")[0].lower() in _RESERVED:
        safe = f"_{safe}"
    if safe.endswith("."):  # some file systems drop it
        safe = f"{safe}_"
    # Cut before the comparison below: a name that was cut gets a digest.
    safe = safe[:_LONGEST]
    if safe == name and safe.lower() not in taken:
        return safe
    digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
    # More digits on a collision; practically never.
    digits = next(n for n in range(_DIGITS, len(digest) + 1) if f"{safe}-{digest[:n]}".lower() not in taken)
    return f"{safe}-{digest[:digits]}"


def _count_bytes(source: PackageSource) -> int:
    try:
        return sum((source.root / file.path).stat().st_size for file in source.files)
    except OSError as error:
        raise UserError(
            f"{source.name}: {error.filename}: {error.strerror}; it changed meanwhile: run again"
        ) from error


def _write_dataset(folder: Path, specs: Sequence[Spec], rows: Sequence[Block], facts: RunFacts) -> dict[str, Any]:
    """Write the tables of specs and conversations of a folder whose other files are written. Returns: their counts."""
    options = facts.options
    with_code = [row for row in rows if row.code is not None]
    codes = [row.code or "" for row in with_code]
    assignments = assign_splits(specs, codes, options.seed)
    write_spec_tables(folder, specs, assignments)
    splits = Counter[str](assignment.split for assignment in assignments)
    groups = Counter(assignment.cluster for assignment in assignments)
    counts: dict[str, Any] = {"specs": {**{split: splits[split] for split in SPLITS}, "groups": len(groups)}}
    if options.chat:
        forms = [(row.lean_code, row.code) for row in with_code]
        of_specs = [assignment.split for assignment in assignments]
        chat = build_chat(folder, specs, of_specs, forms, options.chat_max_tokens)
        write_chat_tables(folder, chat, SpecChatRow, SpecChatDrop)
        counts["chat"] = chat.counts()
    return counts


# --- `required_repos.json`: the requirements of each closed file, and the origin of every part of it ------------------

# Requirements are PEP 508, with the versions that the source states, if any; `runtime` holds the exact versions of the
# declared runtime in which the blocks were validated. Locations are SWHIDs: `swh:1:cnt:` of each file, qualified by the
# origin, the source as anchor, path and lines, and `swh:1:rev:` or `swh:1:dir:` of the source (a `dir` covers the
# Python files that were read, without tests, docs and examples).

FORMAT = 1

_Files = Sequence[tuple[str, str]]


def runtime_versions() -> dict[str, str]:
    """Return the installed versions of the declared runtime, without local build labels."""
    return {name: Version(importlib.metadata.version(name)).public for name in RUNTIME}


def requirements_text(
    rows: Iterable[Block], files_of_block: Mapping[str, _Files], sources: Sequence[PackageSource]
) -> str:
    """Return the text of the file: one JSON object, with one line for each block that has code, in row order.

    Args:
        files_of_block: (source, path) of every file that a block was extracted from, by block.
        sources: the opened sources; our own replacements need not be among them.
    """
    by_name = {source.name: source for source in (replacement_source(), *sources)}
    blobs = {name: {file.path: file.blob for file in source.files} for name, source in by_name.items()}
    paths_used: dict[str, set[str]] = {}
    blocks = []
    for row in rows:
        if row.code is None:
            continue
        files = files_of_block.get(row.block) or ((row.source, row.path),)
        for name, path in files:
            paths_used.setdefault(name, set()).add(path)
        blocks.append(_block_entry(row, files, by_name))
    used = {name: sorted(paths_used[name]) for name in by_name if name in paths_used}
    header: dict[str, Any] = {
        "format": FORMAT,
        "runtime": runtime_versions(),
        "sources": {name: _source_entry(by_name[name]) for name in used},
        "files": {name: {path: f"swh:1:cnt:{blobs[name][path]}" for path in paths} for name, paths in used.items()},
    }
    lines = [
        f" {json.dumps(key)}: {json.dumps(value, indent=1, ensure_ascii=False)},".replace("\n", "\n ")
        for key, value in header.items()
    ]
    entries = ",\n".join("  " + json.dumps(entry, ensure_ascii=False) for entry in blocks)
    return "\n".join(["{", *lines, ' "blocks": [', *([entries] if entries else []), " ]", "}", ""])


def list_runtime_imports(code: str) -> set[str]:
    """Return the packages of the declared runtime that a file imports, also in functions; none if it does not parse."""
    try:
        tree = parse_code(code)
    except SyntaxError:
        return set()
    return {name.partition(".")[0] for name, _ in list_imports(tree)} & set(RUNTIME)


def _block_entry(row: Block, files: _Files, by_name: Mapping[str, PackageSource]) -> dict[str, object]:
    source = by_name[row.source]
    runtime = list_runtime_imports(row.code or "") | {"torch"}  # the class is an nn.Module, however that is imported
    paths: dict[str, list[str]] = {row.source: []}
    for name, path in files:
        paths.setdefault(name, []).append(path)
    sources = [by_name[name] for name in paths]
    return {
        "block": row.block,
        "requires": [*add_versions(runtime, sources), *add_versions(row.requires, sources)],
        "origin": source.origin or None,
        "swhid": qualify_swhid(
            row.swhid,
            origin=source.origin,
            anchor=source.swhid,
            path=f"/{row.path}",
            lines=(row.start_line, row.end_line),
        ),
        "source_swhid": source.swhid,
        "license": row.license,
        "made_from": {name: used for name, used in paths.items() if used},
    }


def _source_entry(source: PackageSource) -> dict[str, object]:
    stated = ("kind", "version", "origin", "swhid", "digest", "license")
    about = {name: getattr(source, name) or None for name in stated}
    return about | {"permissive": is_permissive(source.license), "packages": sorted(list_packages(source))}
