"""`lemur verify DIR` for an extraction folder: read it again and check all its promises against its contents.

Code is parsed and checked by pyflakes; then the printed calls of the blocks are executed in the sandbox.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from extract.chat.build import CodeRights, draft, read_rights, stated_columns
from extract.folder.page import extraction_page
from extract.folder.verify_code import check_calls, check_code
from extract.model.blocks import find, find_code
from extract.model.results import at_least, count_rows
from extract.proofs.runtime import releases_of
from extract.resolve.distributions import read_confirmed
from extract.resolve.modules import FOUNDATION
from extract.specs.algorithm import algorithm_faults
from extract.specs.make import read_lines
from extract.specs.splits import TABLES as SPEC_TABLES
from extract.specs.splits import SplitAssignment, assign_splits, spec_row
from manifests.conversations.conversation import Skipped
from manifests.conversations.verify import check_rows, contents
from manifests.folders.checks import Check, check_description, check_faults, check_files, run_checks
from manifests.folders.formats import EXTRACTION, FolderKind, ListedItem
from manifests.folders.manifest import Manifest
from manifests.folders.reading import describe
from manifests.folders.tables import rows_by_split
from manifests.provenance import REQUIREMENTS, SPECS, TABLE
from manifests.provenance.parts import BlockNeeds, Requirements, read_requirements
from manifests.provenance.swhid import Swhid
from manifests.records import LEVELS, SPEC_CHAT_KINDS, Block, Spec

#: Checks that must pass before specs and conversations are read as a data set.
_BEFORE = frozenset({"digests", "ids", "requirements", "specs"})
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

Row = Mapping[str, Any]


def verify(folder: Path, *, jobs: int | None = None) -> list[Check]:
    """Return all checks of a finished extraction folder, in a fixed order.

    Args: jobs: worker processes; default: all cores.
    Raises: UserError if it contains no valid manifest of an extraction.
    """
    manifest = EXTRACTION.open(folder)
    checks = [check_files(folder, manifest), *EXTRACTION.check_tables(folder, ["blocks"])]
    # Everything below reads the table.
    if not checks[1].ok:
        return [*checks, Check("guarantees", ok=False, detail="not checked: the table above cannot be trusted")]
    rows = list(EXTRACTION.rows(folder, Block, [name for name in Block.model_fields if name != "code"]))
    checks += [_check_ids(rows), _check_counts(rows, manifest), _check_levels(folder, rows, manifest)]
    needs = Requirements()
    try:
        needs = read_requirements(folder)
        checks.append(_check_requirements(rows, needs))
    except (OSError, ValueError) as error:
        checks.append(check_faults("requirements", [f"{REQUIREMENTS}: not readable: {describe(error)}"], ""))
    confirmed = read_confirmed(manifest.parameters.get("distributions", ()))
    checks += check_code(folder, rows, _list_packages(rows, needs), confirmed, jobs)
    wrong = {check.name for check in checks if not check.ok}
    checks += [] if wrong & _BEFORE else _check_dataset(folder, manifest)
    # What a check above doubts is not executed.
    if all(check.ok for check in checks):
        with releases_of(manifest.parameters.get("as_of")):
            checks += run_checks("calls", lambda: check_calls(folder, jobs))
    return checks


# --- the table --------------------------------------------------------------------------------------------------------


def _check_ids(rows: Sequence[Block]) -> Check:
    wrong = []
    if len({row.block for row in rows}) != len(rows):
        wrong.append("a block id occurs twice")
    for row in rows:
        if row.block != f"{row.source}::{row.qualname}":
            wrong.append(f"{row.block}: is not {row.source}::{row.qualname}")
        if row.qualname.rpartition(".")[2] != row.name:
            wrong.append(f"{row.block}: the qualified name does not end in {row.name}")
        if not 1 <= row.start_line <= row.end_line:
            wrong.append(f"{row.block}: lines {row.start_line}-{row.end_line}")
    return check_faults("ids", wrong, f"{len(rows):,} blocks, each with a unique name")


def _check_counts(rows: Sequence[Block], manifest: Manifest) -> Check:
    stated = manifest.counts
    wrong = [
        f"{name}: {number} in the table, {stated.get(name)} stated"
        for name, number in count_rows(rows).items()
        if number != stated.get(name)
    ]
    return check_faults("counts", wrong, f"{len(rows):,} blocks by level, source, category and failure, as stated")


def _check_levels(folder: Path, rows: Sequence[Block], manifest: Manifest) -> Check:
    """Check that blocks from `emitted` on have code, and exactly those below the requested level have a reason."""
    goal = manifest.parameters.get("level")
    if goal not in LEVELS:
        return Check("levels", ok=False, detail=f"the manifest's level is {goal!r}, not one of {', '.join(LEVELS)}")
    # Code is not published if its license forbids redistribution.
    table = pq.read_table(folder / TABLE, columns=["code", "code_sha256"])
    withheld = table["code"].null_count - table["code_sha256"].null_count
    stated = sum(entry.get("blocks", 0) for entry in manifest.details.get("withheld", []))
    wrong = [f"the code of {withheld} blocks is missing, {stated} are stated as withheld"] if withheld != stated else []
    for row in rows:
        block, level = row.block, row.level
        has_code = row.code_sha256 is not None
        if at_least(level, "emitted") != has_code:
            wrong.append(f"{block}: {level}, but {'has' if has_code else 'has no'} code")
        if has_code != (row.n_lines is not None) or has_code != (row.file is not None):
            wrong.append(f"{block}: n_lines and file do not go with its code")
        if (row.error_kind is None) != (row.error is None):
            wrong.append(f"{block}: a category of failure without a message, or the other way round")
        if at_least(level, goal) != (row.error_kind is None):
            wrong.append(f"{block}: {level} of {goal}, {row.error_kind or 'no reason recorded'}")
    return check_faults("levels", wrong, f"every block is `{goal}`, or says why not")


def _check_requirements(rows: Sequence[Block], needs: Requirements) -> Check:
    """Check that `required_repos.json` lists the blocks that have code, in their order."""
    by_block = {row.block: row for row in rows if row.code_sha256 is not None}
    wrong = []
    if [entry.block for entry in needs.blocks] != list(by_block):
        wrong.append("its blocks are not those of the table that have code, in their order")
    for entry in needs.blocks:
        try:
            wrong += _entry_faults(entry, by_block.get(entry.block), needs)
        except InvalidRequirement as error:
            wrong.append(f"{entry.block}: not PEP 508: {error}")
        except ValueError as error:
            wrong.append(f"{entry.block}: {error}")
    fine = f"{len(needs.blocks):,} entries: PEP 508, SWHIDs and sources as in the table"
    return check_faults("requirements", wrong, fine)


def _entry_faults(entry: BlockNeeds, row: Block | None, needs: Requirements) -> Iterator[str]:
    stated, required = (
        {canonicalize_name(Requirement(text).name) for text in texts}
        for texts in (entry.requires, row.requires if row is not None else ())
    )
    if not required <= stated:
        yield f"{entry.block}: requires less than the table says"
    swhid = Swhid.from_string(entry.swhid or "")
    if row is not None and (swhid.sha1 not in row.swhid or swhid.lines != (row.start_line, row.end_line)):
        yield f"{entry.block}: its SWHID is of another file or of other lines than the table's"
    yield from (f"{entry.block}: its source {name} is not listed" for name in entry.files if name not in needs.sources)


def _list_packages(rows: Iterable[Block], needs: Requirements) -> dict[str, frozenset[str]]:
    """Return by source the import names that its blocks must not import."""
    packages = defaultdict(set, {source: set(facts.packages) for source, facts in needs.sources.items()})
    for row in rows:  # of a namespace that distributions share, a source has a part: `acme.nets`
        if not any(row.qualname.startswith(f"{package}.") for package in packages[row.source]):
            packages[row.source].add(row.qualname.partition(".")[0])
    return {source: frozenset(names - sys.stdlib_module_names - {FOUNDATION}) for source, names in packages.items()}


# --- specs and conversations ------------------------------------------------------------------------------------------


def _check_dataset(folder: Path, manifest: Manifest) -> list[Check]:
    """Check the tables of specs and conversations of a folder whose block table and specs passed."""
    specs = [Spec.model_validate_json(line) for line in read_lines(folder / SPECS)]
    checks, splits = _check_spec_tables(folder, manifest, specs)
    if manifest.parameters.get("chat") is not None or EXTRACTION.files(folder, "chat_drops"):
        checks += check_chat(folder, manifest, {spec.block: spec for spec in specs}, splits)
    return [*checks, check_graphs(folder, manifest, specs), *check_description(folder, manifest, EXTRACTION.tables)]


def check_graphs(folder: Path, manifest: Manifest, specs: Sequence[Spec]) -> Check:
    """Check that the table's identities and facts match the graphs in the specs."""
    table = pq.read_table(folder / TABLE, columns=["block", "graph_widths"])
    widths = dict(zip(table["block"].to_pylist(), table["graph_widths"].to_pylist(), strict=True))
    wrong = [f"{spec.block}: {fault}" for spec in specs for fault in algorithm_faults(spec, widths.get(spec.block))]
    if not manifest.details.get("withheld"):
        missing = (spec for spec in specs if spec.graph and spec.algorithm is None and "algorithm" not in spec.withheld)
        wrong += [f"{spec.block}: has a graph, but its spec has none" for spec in missing]
    number = sum(spec.algorithm is not None for spec in specs)
    fine = f"{number:,} graphs of specs have the identities and facts that are stated"
    return check_faults("graphs", wrong, fine)


def _check_spec_tables(folder: Path, manifest: Manifest, specs: Sequence[Spec]) -> tuple[list[Check], dict[str, str]]:
    """Return the checks, and the split of each spec by block."""
    (schema,) = EXTRACTION.check_tables(folder, ["specs"])
    if not schema.ok:
        return [schema], {}
    listed = list(rows_by_split(folder, SPEC_TABLES))
    rows = {row["block"]: (split, row) for split, row in listed}
    wrong: list[str] = []
    if len(listed) != len(specs) or rows.keys() != {spec.block for spec in specs}:
        wrong.append(f"{len(listed):,} rows of {len(rows):,} blocks, {len(specs):,} lines")
    clusters: dict[str, str] = {}
    for spec in specs:
        split, row = rows.get(spec.block, ("", {}))
        if not row:
            continue
        if row != spec_row(spec, SplitAssignment(row["cluster"], row["split"])):
            wrong.append(f"{spec.block}: its row does not state what its line states")
        if row["split"] != split:
            wrong.append(f"{spec.block}: is in {split}, but states {row['split']}")
        if clusters.setdefault(row["cluster"], split) != split:
            wrong.append(f"{spec.block}: its group is in {split} and in {clusters[row['cluster']]}")
    table = pq.read_table(folder / TABLE, columns=["code", "code_sha256"])
    codes = table.filter(pc.is_valid(table["code_sha256"]))["code"].to_pylist()
    again = "" if None in codes else ", worked out again"
    # Groups follow from the texts of all classes, so one withheld file makes them unknowable.
    if not wrong and again:
        assigned = zip(specs, assign_splits(specs, codes, manifest.parameters.get("seed", 0)), strict=True)
        wrong += [
            f"{spec.block}: belongs to {assignment.cluster} in {assignment.split}"
            for spec, assignment in assigned
            if (rows[spec.block][1]["cluster"], rows[spec.block][0]) != (assignment.cluster, assignment.split)
        ]
    fine = f"{len(specs):,} specs as their lines, {len(clusters):,} groups{again}, each in one split"
    return [schema, check_faults("spec splits", wrong, fine)], {block: split for block, (split, _) in rows.items()}


# --- conversations ---------------------------------------------------------------------------------------------------


def check_chat(folder: Path, manifest: Manifest, specs: Mapping[str, Spec], splits: Mapping[str, str]) -> list[Check]:
    """Return the checks of a folder with conversations, except for those that read code.

    Args: specs, splits: specs of the folder and their splits, by block.
    """
    schemas = EXTRACTION.check_tables(folder, ["chat", "chat_drops"])
    options = manifest.parameters.get("chat")
    if not all(check.ok for check in schemas) or options is None:
        detail = "not checked: a table above or the manifest cannot be trusted"
        return [*schemas, Check("chat", ok=False, detail=detail)]
    rights, codes = read_rights(folder), {}
    for row in EXTRACTION.rows(folder, Block, ["block", "code", "lean_code"]):
        codes[row.block] = row.lean_code or row.code
    facts = "chat facts", ": form, ids, lengths, and facts and code of their blocks"
    faults = partial(_chat_faults, specs=specs, codes=codes, rights=rights)
    return [*schemas, *check_rows(folder, manifest, "block", splits, SPEC_CHAT_KINDS, faults, facts)]


def _chat_faults(
    row: Mapping[str, Any], specs: Mapping[str, Spec], codes: Mapping[str, str | None], rights: CodeRights
) -> Iterator[str]:
    """Yield the faults of one conversation: it is made again from the spec and the code, where that is not withheld."""
    spec, code = specs.get(row["block"]), codes.get(row["block"])
    if spec is None:
        yield "speaks of a block that has no spec"
        return
    stated = stated_columns(spec).items()
    yield from (f"its {name} is not that of its spec" for name, value in stated if row[name] != value)
    again = draft(spec, code or "", row["task"], rights)
    if isinstance(again, Skipped):
        yield f"there is none of such a block: {again.reason}, {again.detail}"
        return
    texts = (again.system, again.user, again.assistant)
    if code is not None and (contents(row), row["notice"]) != (texts, again.columns["notice"]):
        yield "is not what its spec and its code give"


def list_blocks(folder: Path) -> Iterator[ListedItem]:
    """Yield the blocks, in the order of their table."""
    for row in EXTRACTION.rows(folder, Block, ["block", "name", "qualname", "category", "level", "n_lines", "license"]):
        facts = {"level": row.level, "category": row.category, "lines": row.n_lines, "license": row.license}
        yield ListedItem((row.block, row.qualname, row.name), facts)


#: Kinds of folders that `lemur extract` writes.
KINDS = (FolderKind(EXTRACTION, verify, find, find_code, extraction_page, list_blocks),)
