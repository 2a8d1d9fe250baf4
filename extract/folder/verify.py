"""What holds in an extraction besides what follows from its tables, by other means than those of its writer.

Code is parsed and checked by pyflakes; then the printed calls of the blocks are executed in the sandbox.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from extract.folder.verify_code import check_calls, check_code
from extract.model.results import at_least
from extract.proofs.runtime import releases_of
from extract.resolve.distributions import read_confirmed
from extract.resolve.modules import FOUNDATION
from extract.specs.algorithm import algorithm_faults
from extract.specs.make import read_specs
from manifests.folders.checks import Check, check_faults, run_checks
from manifests.folders.kinds import EXTRACTION, Folder
from manifests.folders.manifest import Manifest
from manifests.provenance import TABLE
from manifests.provenance.parts import BlockNeeds, Requirements, read_requirements
from manifests.provenance.swhid import Swhid
from manifests.records import LEVELS, Block


def check_extraction(folder: Folder) -> list[Check]:
    """Check the promises of an extraction whose tables have the right columns."""
    path, manifest = folder.path, folder.manifest
    rows = list(EXTRACTION.rows(path, Block, [name for name in Block.model_fields if name != "code"]))
    needs = read_requirements(path)
    confirmed = read_confirmed(manifest.parameters.get("distributions", ()))
    checks = [
        _check_ids(rows),
        _check_levels(path, rows, manifest),
        *run_checks("requirements", lambda: _check_requirements(rows, needs)),
        *run_checks("sources", lambda: _check_sources(rows, needs, manifest)),
        *check_code(path, rows, _list_packages(rows, needs), confirmed, folder.jobs),
        *run_checks("graphs", lambda: _check_graphs(path, manifest, rows)),
    ]
    # What a check above doubts is not executed.
    if all(check.ok for check in checks):
        with releases_of(manifest.parameters.get("as_of")):
            checks += run_checks("calls", lambda: check_calls(path, folder.jobs))
    return checks


def _check_ids(rows: Sequence[Block]) -> Check:
    wrong = [] if len({row.block for row in rows}) == len(rows) else ["a block id occurs twice"]
    lines = [row for row in rows if not 1 <= row.start_line <= row.end_line]
    wrong += [f"{row.block}: lines {row.start_line}-{row.end_line}" for row in lines]
    return check_faults("ids", wrong, f"{len(rows):,} blocks, each with a unique name")


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


def _check_sources(rows: Sequence[Block], needs: Requirements, manifest: Manifest) -> Check:
    """Check that manifest, requirements and blocks state the same of each source."""
    stated = {source["name"]: source for source in manifest.details["sources"]}
    inputs = {item.name: item.sha256 for item in manifest.inputs}
    same = inputs == {name: source["digest"] for name, source in stated.items()}
    wrong = [] if same else ["the inputs are not the sources"]
    for name, known in needs.sources.items():
        facts = known.model_dump(include={"version", "origin", "digest", "swhid", "license"})
        differing = [key for key, value in facts.items() if (stated.get(name, {}).get(key) or None) != (value or None)]
        wrong += [f"{name}: {key} is not that of the manifest" for key in differing]
    of_others = (row.block for row in rows if row.digest != stated.get(row.source, {}).get("digest"))
    wrong += [f"{block}: its digest is not that of its source" for block in of_others]
    return check_faults("sources", wrong, f"{len(stated):,} sources, the same in manifest, requirements and blocks")


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


def _check_graphs(folder: Path, manifest: Manifest, rows: Sequence[Block]) -> Check:
    """Check that the graphs of specs have the stated identities and facts, and that what rebuilds can be written."""
    widths = {row.block: row.graph_widths for row in rows}
    specs = list(read_specs(folder))
    wrong = [f"{spec.block}: {fault}" for spec in specs for fault in algorithm_faults(spec, widths.get(spec.block))]
    if not manifest.details.get("withheld"):
        missing = (spec for spec in specs if spec.graph and spec.algorithm is None and "algorithm" not in spec.withheld)
        wrong += [f"{spec.block}: has a graph, but its spec has none" for spec in missing]
    number = sum(spec.algorithm is not None for spec in specs)
    return check_faults("graphs", wrong, f"{number:,} graphs of specs have the identities and facts that are stated")
