"""`lemur verify DIR` for an extraction folder: re-reads it and proves its promises from what lies in it.

Nothing of what is in the folder is executed: code is parsed, and read by pyflakes.
"""

import ast
import contextlib
import hashlib
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from extract.card import CONFIGS
from extract.chat.check import check_chat, has_chat, read_texts
from extract.chat.guard import repeats
from extract.counts import COLUMNS, at_least, count_rows
from extract.folder import TABLE, code_paths, read_manifest_of
from extract.graph import distributions_of
from extract.modules import FOUNDATION, RUNTIME
from extract.requirements import imported_names
from extract.spec import SPECS
from extract.spec.check import check_spec_tables
from extract.spec.folder import line_faults, read_lines
from extract.spec.table import TABLES as SPEC_TABLES
from manifests.manifest import Manifest
from manifests.parts import REQUIREMENTS
from manifests.progress import progress
from manifests.records import Block, Spec
from manifests.swhid import Swhid
from manifests.verify import Check, check_description, check_files, check_table, found_check
from manifests.workers import process_pool, submit

_HEADER = re.compile(r"# (Block|Licence):[ ]+(.*)")
_CODE_COLUMNS = (
    "block",
    "source",
    "level",
    "error_kind",
    "requires",
    "license",
    "file",
    "code",
    "code_sha256",
    "n_lines",
    "name",
    "category",
    "fidelity",
    "path",
    "start_line",
    "end_line",
    "swhid",
)
_BATCH = 40  # blocks a worker is given at once
_FEW = 60  # blocks; below it, starting processes costs more than it saves

#: Checks of single files, in the order in which they are told, with what is said when all is well.
_OF_CODE = {
    "files": "closed files as in the table, with the SHA-256 that it states",
    "parses": "files are Python",
    "undefined names": "files, none by pyflakes",
    "imports": "files import the standard library, the runtime and what they require, and nothing of their origin",
    "headers": "files name their block and licence",
    "specs": "specs, in the order of the table, agree with it and repeat no passage of their source",
    "chat code": "files, of which no conversation repeats a passage, but where the file is the answer",
}

#: Checks that must hold before specs and conversations are read as a data set.
_BEFORE = frozenset({"digests", "ids", "requirements", "specs"})

Row = Mapping[str, Any]
Faults = dict[str, list[str]]


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:
    """All checks of a finished extraction folder, in a fixed order.

    Args: jobs: worker processes; all cores by default.
    Raises: UserError if it holds no valid manifest of an extraction.
    """
    manifest = read_manifest_of(folder)
    checks = [check_files(folder, manifest), check_table(folder, TABLE, Block)]
    if not checks[1].ok:
        return [*checks, Check("guarantees", ok=False, detail="not checked: the table above cannot be trusted")]
    rows = pq.read_table(folder / TABLE, columns=[name for name in Block.model_fields if name != "code"]).to_pylist()
    withheld = _count_withheld(folder)
    checks += [_check_ids(rows), _check_counts(rows, manifest), _check_levels(rows, manifest, withheld)]
    needs, check = _read_requirements(folder, rows)
    checks.append(check)
    checks += _check_code(folder, rows, _packages(rows, needs), jobs)
    wrong = {check.name for check in checks if not check.ok}
    return checks if wrong & _BEFORE else checks + _check_dataset(folder, manifest)


# --- the table --------------------------------------------------------------------------------------------------------


def _check_ids(rows: Sequence[Row]) -> Check:
    wrong = []
    if len({row["block"] for row in rows}) != len(rows):
        wrong.append("a block id occurs twice")
    for row in rows:
        if row["block"] != f"{row['source']}::{row['qualname']}":
            wrong.append(f"{row['block']}: is not {row['source']}::{row['qualname']}")
        if row["qualname"].rpartition(".")[2] != row["name"]:
            wrong.append(f"{row['block']}: the qualified name does not end in {row['name']}")
        if not 1 <= row["start_line"] <= row["end_line"]:
            wrong.append(f"{row['block']}: lines {row['start_line']}-{row['end_line']}")
    return found_check("ids", wrong, f"{len(rows):,} blocks, each of its own name")


def _check_counts(rows: Sequence[Row], manifest: Manifest) -> Check:
    """The manifest's counts are those of the table; which names were asked for is taken from the manifest."""
    stated = dict(manifest.counts)
    stated.pop("targets", None)
    found = count_rows([{name: row[name] for name in COLUMNS} for row in rows])
    wrong = [
        f"{name}: {found[name]} in the table, {stated.get(name)} stated"
        for name in found
        if found[name] != stated.get(name)
    ]
    return found_check("counts", wrong, f"{len(rows):,} blocks by rung, source, category and failure, as stated")


def _count_withheld(folder: Path) -> int:
    """Blocks whose code is stated but not there: what is published lacks code that its licence does not let go."""
    table = pq.read_table(folder / TABLE, columns=["code", "code_sha256"])
    return int(table["code"].null_count) - int(table["code_sha256"].null_count)


def _check_levels(rows: Sequence[Row], manifest: Manifest, withheld: int) -> Check:
    """A rung from `emitted` on means code; below the rung that was asked for there is a reason, and only there."""
    goal = manifest.parameters["level"]
    stated = sum(entry["blocks"] for entry in manifest.details.get("withheld", []))
    wrong = [f"the code of {withheld} blocks is missing, {stated} are stated as withheld"] if withheld != stated else []
    for row in rows:
        block, level = row["block"], row["level"]
        has_code = row["code_sha256"] is not None
        if at_least(level, "emitted") != has_code:
            wrong.append(f"{block}: {level}, but {'has' if has_code else 'has no'} code")
        if has_code != (row["n_lines"] is not None) or has_code != (row["file"] is not None):
            wrong.append(f"{block}: n_lines and file do not go with its code")
        if (row["error_kind"] is None) != (row["error"] is None):
            wrong.append(f"{block}: a category of failure without a message, or the other way round")
        if at_least(level, goal) != (row["error_kind"] is None):
            wrong.append(f"{block}: {level} of {goal}, {row['error_kind'] or 'no reason is given'}")
    return found_check("levels", wrong, f"every block is `{goal}`, or says why not")


def _read_requirements(folder: Path, rows: Sequence[Row]) -> tuple[dict[str, Any], Check]:
    """`required_repos.json` and whether it speaks of the blocks that have code, in their order."""
    name, wrong = "requirements", []
    try:
        needs: dict[str, Any] = json.loads((folder / REQUIREMENTS).read_text(encoding="utf-8"))
        entries, sources = needs["blocks"], needs["sources"]
        if [entry["block"] for entry in entries] != [row["block"] for row in rows if row["code_sha256"] is not None]:
            wrong.append("its blocks are not those of the table that have code, in their order")
        by_block = {row["block"]: row for row in rows}
        for entry in entries:
            wrong += _entry_faults(entry, by_block.get(entry["block"]), sources)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {}, found_check(name, [f"{REQUIREMENTS}: not readable: {type(error).__name__}: {error}"], "")
    return needs, found_check(name, wrong, f"{len(entries):,} entries: PEP 508, SWHIDs and sources as in the table")


def _entry_faults(entry: Row, row: Row | None, sources: Row) -> Iterator[str]:
    block = entry["block"]
    try:
        stated = {canonicalize_name(Requirement(text).name) for text in entry["requires"]}
        if row is not None and not {canonicalize_name(Requirement(text).name) for text in row["requires"]} <= stated:
            yield f"{block}: requires less than the table says"
    except InvalidRequirement as error:
        yield f"{block}: not PEP 508: {error}"
    swhid = Swhid.from_string(entry["swhid"])
    if row is not None and (swhid.sha1 not in row["swhid"] or swhid.lines != (row["start_line"], row["end_line"])):
        yield f"{block}: its SWHID is of another file or of other lines than the table's"
    yield from (f"{block}: its source {source} is not listed" for source in entry["made_from"] if source not in sources)


def _packages(rows: Iterable[Row], needs: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The import names of each source that its blocks must not import."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        found[row["source"]].add(row["qualname"].partition(".")[0])
    for source, facts in needs.get("sources", {}).items():
        found[source] |= set(facts.get("packages", ()))
    return {source: frozenset(names - sys.stdlib_module_names - {FOUNDATION}) for source, names in found.items()}


# --- specs and conversations ------------------------------------------------------------------------------------------


def _check_dataset(folder: Path, manifest: Manifest) -> list[Check]:
    """Tables of specs and conversations, of folders that have them; what they are made of was found to be well."""
    if not (folder / SPEC_TABLES).is_dir() and not has_chat(folder):
        return [Check("spec splits", ok=True, detail="no tables of specs: an earlier version wrote this folder")]
    if not (folder / SPECS).is_file():
        return [Check("spec splits", ok=False, detail=f"there are tables of specs, but no {SPECS}")]
    specs = [Spec.model_validate_json(line) for line in read_lines(folder / SPECS)]
    table = pq.read_table(folder / TABLE, columns=["code", "code_sha256"])
    codes = table.filter(pc.is_valid(table["code_sha256"]))["code"].to_pylist()
    checks, splits = check_spec_tables(folder, manifest, specs, codes)
    if manifest.parameters.get("chat") is not None or has_chat(folder):
        checks = [*checks, *check_chat(folder, manifest, {spec.block: spec for spec in specs}, splits)]
    return [*checks, *check_description(folder, manifest, CONFIGS)]


# --- the files --------------------------------------------------------------------------------------------------------


def _check_code(
    folder: Path, rows: Sequence[Row], packages: Mapping[str, frozenset[str]], jobs: int | None
) -> list[Check]:
    paths = code_paths([row["block"] for row in rows if row["code_sha256"] is not None])
    found: Faults = {name: [] for name in _OF_CODE}
    for row in rows:
        if row["file"] != paths.get(row["block"]):
            found["files"].append(f"{row['block']}: lies in {row['file']}, not in {paths.get(row['block'])}")
    with progress("verify", len(paths), "blocks") as advance:
        for done, faults in _in_order(folder, packages, len(paths), jobs):
            for name, wrong in faults.items():
                found[name] += wrong
            advance(done)
    fine = {name: f"{len(paths):,} {told}" for name, told in _OF_CODE.items()}
    if not has_chat(folder):
        del fine["chat code"]
    if not (folder / SPECS).is_file():
        fine["specs"] = f"no {SPECS}: an earlier version wrote this folder"
    elif (lines := sum(1 for _ in read_lines(folder / SPECS))) > len(paths):
        found["specs"].append(f"{SPECS}: {lines:,} lines for {len(paths):,} blocks that have code")
    return [found_check(name, found[name], told) for name, told in fine.items()]


def _in_order(
    folder: Path, packages: Mapping[str, frozenset[str]], count: int, jobs: int | None
) -> Iterator[tuple[int, Faults]]:
    """The faults of all files, batch by batch, in the order of the table."""
    batches = _batches(folder)
    if count <= _FEW:
        for batch in batches:
            yield len(batch), check_batch(str(folder), batch, packages)
        return
    with process_pool(jobs) as pool:
        waiting: list[tuple[int, Future[Faults]]] = []
        for batch in batches:
            waiting.append((len(batch), submit(pool, check_batch, str(folder), batch, packages)))
            if len(waiting) > 4 * (jobs or 4):
                done, future = waiting.pop(0)
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


def _batches(folder: Path) -> Iterator[list[dict[str, Any]]]:
    specs = read_lines(folder / SPECS) if (folder / SPECS).is_file() else None
    texts = read_texts(folder)
    with pq.ParquetFile(folder / TABLE) as file:
        for batch in file.iter_batches(batch_size=_BATCH, columns=list(_CODE_COLUMNS)):
            rows = [row for row in batch.to_pylist() if row["code_sha256"] is not None]
            if specs is not None:
                for row in rows:
                    row["spec"] = next(specs, None)
            for row in rows:
                row["texts"] = texts.guarded.get(row["block"], [])
                row["answer"] = texts.codes.get(row["block"])
            there = [row for row in rows if row["code"] is not None]
            if there:
                yield there


def check_batch(folder: str, rows: Sequence[Row], packages: Mapping[str, frozenset[str]]) -> Faults:
    """What is wrong with some blocks' files, by check."""
    found: Faults = {name: [] for name in _OF_CODE}
    for row in rows:
        for name, fault in _file_faults(Path(folder), row, packages[row["source"]]):
            found[name].append(f"{row['block']}: {fault}")
    return found


def _file_faults(folder: Path, row: Row, own: frozenset[str]) -> Iterator[tuple[str, str]]:
    code: str = row["code"]
    data = code.encode()
    if hashlib.sha256(data).hexdigest() != row["code_sha256"]:
        yield "files", "code_sha256 is not the SHA-256 of its code"
    path = folder / row["file"] if row["file"] else None
    if path is None or not path.is_file() or path.read_bytes() != data:
        yield "files", f"{row['file']} is not its code"
    if "spec" in row:
        yield from (("specs", fault) for fault in line_faults(row["spec"], row))
    for (name, _), wrong in zip(row["texts"], repeats([text for _, text in row["texts"]], code), strict=True):
        if wrong:
            yield "chat code", f"{name} repeats a passage of its file"
    if row["answer"] is not None and row["answer"] != code.removesuffix("\n"):
        yield "chat code", "the code that write answers is not its file"
    head = _header(code)
    for key, value in (("Block", row["block"]), ("Licence", row["license"])):
        if head.get(key) != value:
            yield "headers", f"its header names {head.get(key)!r} as {key}, not {value!r}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in foreign code is not our warning
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        if row["level"] != "emitted" or row["error_kind"] is None:
            yield "parses", f"{row['level']}, but it does not parse: {error}"
        return
    if row["error_kind"] is None or at_least(row["level"], "compiled"):  # else that may be the reason
        yield from (("undefined names", fault) for fault in undefined_in(tree))
    yield from (("imports", fault) for fault in import_faults(tree, row["requires"], own))


def _header(code: str) -> dict[str, str]:
    """What the comment lines that a file begins with say of its block and licence."""
    found: dict[str, str] = {}
    for line in code.split("\n"):
        if not line.startswith("#"):
            break
        if match := _HEADER.fullmatch(line):
            found.setdefault(match[1], match[2])
    return found


def undefined_in(tree: ast.Module) -> list[str]:
    """What pyflakes says of names that are not defined, and of star imports, which hide such names."""
    from pyflakes import messages
    from pyflakes.checker import Checker

    kinds = (messages.UndefinedName, messages.UndefinedExport, messages.ImportStarUsed)
    found = [item for item in Checker(tree, filename="block.py").messages if isinstance(item, kinds)]
    return [f"line {item.lineno}: {item.message % item.message_args}" for item in found]


def import_faults(tree: ast.Module, requires: Iterable[str], own: frozenset[str]) -> list[str]:
    """The imports, in functions too, that are neither of the standard library nor the runtime nor required.

    Args:
        requires: PEP 508; what is not counts for nothing.
        own: the import names of the source itself, which nothing makes good.
    """
    wanted = set(_distributions(requires))
    wrong = []
    for dotted, line in imported_names(tree):
        top = dotted.partition(".")[0]
        if not top:
            wrong.append(f"line {line}: a relative import, {dotted}")
        elif top in own:
            wrong.append(f"line {line}: imports {dotted} of its own origin")
        elif top in sys.stdlib_module_names or top in RUNTIME:
            continue
        elif not wanted & set(_distributions(distributions_of(top))):
            wrong.append(f"line {line}: imports {dotted}, which it does not require")
    return wrong


def _distributions(requires: Iterable[str]) -> Iterator[str]:
    for text in requires:
        with contextlib.suppress(InvalidRequirement):  # the check of requirements tells
            yield canonicalize_name(Requirement(text).name)
