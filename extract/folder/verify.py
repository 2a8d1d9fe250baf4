"""What an extraction is verified by: its derived files, written again, and laws that their writer cannot prove.

Taken from its tables as they are: classes and their code, how far each came, what was observed, the recorded graphs,
and where the parts of a file are from. All else follows, and is compared cell by cell. The laws hold by other means:
code is parsed and checked by pyflakes; each file must match the table and its header. Last, the printed calls of the
blocks are executed in the sandbox, each below the full and the lean form of its file.
"""

import ast
import contextlib
import itertools
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from extract.arguments.messages import CallRequest
from extract.folder.page import FACED
from extract.folder.write import code_paths, write_blocks, write_contents
from extract.model.blocks import find, find_code
from extract.model.results import Options, RunFacts, at_least, code_columns
from extract.proofs.minimize import list_requirements
from extract.proofs.runtime import PROVIDED, releases_of, runtime_for
from extract.resolve.distributions import is_stated, list_imports, read_confirmed
from extract.resolve.modules import FOUNDATION, RUNTIME
from extract.resolve.standins import replacement_source
from extract.sources import PackageSource
from extract.specs.behavior import list_not_shown
from extract.specs.make import SHARED, algorithm_faults, make_spec, neutralize, print_call, read_specs, to_line
from extract.specs.splits import SplitAssignment, write_spec_tables
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import progress
from lemur_core.files.workers import available_cores, map_chunks
from lemur_core.graphs.identity import compute_identities
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox import Failure, Limits, Status
from lemur_core.sandbox.stage import SandboxStage, open_sandbox
from lemur_core.source.quality import find_undefined_names
from lemur_core.source.text import parse_code
from manifests.folders.kinds import EXTRACTION, Check, Folder, check_faults, lines_text, run_checks, verify_folder
from manifests.folders.manifest import Manifest
from manifests.folders.tables import iterate_rows
from manifests.provenance import REQUIREMENTS, SPECS, TABLE, get_minimized_path, header_lines, is_guess
from manifests.provenance.licenses import NOASSERTION, is_permissive
from manifests.provenance.parts import BlockNeeds, Requirements, read_requirements
from manifests.records import LEVELS, Block, Spec

# --- derived files, written again -------------------------------------------------------------------------------------


#: Details of the manifest that the stages and sources state.
_GIVEN = frozenset({"sources", "unopened", "notes", "withheld"})


def _derive(folder: Folder, made: Path) -> Json:
    """Write the extraction again; see `Derive`. Where code was not published, what needs all of it is left out."""
    path, manifest = folder.path, folder.manifest
    stored = list(EXTRACTION.rows(path, Block))
    specs = {spec.block: spec for spec in read_specs(path)}
    rows = _derive_rows(stored, specs, read_confirmed(manifest.parameters.get("distributions", ())))
    write_blocks(made, rows, manifest.parameters["level"])
    whole = not manifest.details.get("withheld")
    emitted = [row for row in rows if row.code_sha256 is not None]
    if list(specs) != [row.block for row in emitted]:
        raise UserError(f"{SPECS}: its lines are not those of the blocks that have code, in their order")
    again = [_derive_spec(row, specs[row.block]) for row in emitted]
    (made / SPECS).write_text("".join(f"{to_line(spec)}\n" for spec in again), encoding="utf-8", newline="\n")
    facts = _read_facts(manifest)
    if not whole:
        stated = {
            row["block"]: SplitAssignment(row["cluster"], row["split"])
            for file in EXTRACTION.files(path, "specs")
            for row in iterate_rows(file, ("block", "cluster", "split"))
        }
        write_spec_tables(made, again, [stated[spec.block] for spec in again])
        return {}
    shutil.copyfile(path / REQUIREMENTS, made / REQUIREMENTS)
    counts, _ = write_contents(made, rows, again, facts)
    return {"counts": counts}


def _derive_rows(stored: Sequence[Block], specs: Mapping[str, Spec], confirmed: Mapping[str, str]) -> list[Block]:
    """Return the rows with the columns that follow from the others, from code and from graphs worked out again."""
    paths = code_paths([row.block for row in stored if row.code_sha256 is not None])
    rows = []
    for row in stored:
        changed: dict[str, Any] = {
            "block": f"{row.source}::{row.qualname}",
            "name": row.qualname.rpartition(".")[2],
            "file": paths.get(row.block),
            "not_shown": "\n".join(list_not_shown(row.observed)) or None,
        }
        if row.code is not None or row.code_sha256 is None:
            changed |= code_columns(row.code)
        if row.lean_code is not None or row.lean_sha256 is None:
            lean = code_columns(row.lean_code)
            changed |= {"lean_sha256": lean["code_sha256"], "lean_lines": lean["n_lines"]}
        if row.lean_code is not None:
            with contextlib.suppress(SyntaxError):  # reported as a fault of its file
                changed["lean_requires"] = list_requirements(row.lean_code, row.requires, confirmed)
        if row.lean_sha256 is None:
            changed |= {"lean_requires": (), "lean_license": None}
        spec = specs.get(row.block)
        if spec is not None and spec.algorithm is not None:
            identities = compute_identities(Sized.from_json(dict(spec.algorithm)).evaluate())
            changed |= {name: identities[name] for name in ("graph", "graph_widths")}
        rows.append(row.model_copy(update=changed))
    return rows


def _derive_spec(row: Block, stored: Spec) -> Spec:
    """Return the spec of a block, made again; if it needs code or a graph that was not published, what both state."""
    stated = stored.model_copy(update={name: getattr(row, name) for name in SHARED})
    if row.code is None:
        return stated
    # Without these two, nobody knows what else follows from the graph, or which classes of the file took part.
    if {"algorithm", "dependencies"} & {*stored.withheld} or (stored.graph is not None and stored.algorithm is None):
        return neutralize(stated, row.code)
    answer: dict[str, Any] | None = None
    if (algorithm := stored.algorithm) is not None:
        answer = {**algorithm.model_dump(mode="json"), "dead_classes": ()}
        # Which classes of the file took part was seen when it ran.
        answer["dead_classes"] = make_spec(row, answer).dependencies.keys() - stored.dependencies.keys()
    return make_spec(row, answer)


def _read_facts(manifest: Manifest) -> RunFacts:
    """Return the request and the sources as the manifest states them."""
    parameters = dict(manifest.parameters)
    chat = parameters.pop("chat")
    about = {"chat": chat is not None} | ({} if chat is None else {"chat_max_tokens": chat["max_tokens"]})
    details = manifest.details
    sources = [
        PackageSource(**{**_freeze(source), "files": ()}, root=Path(), requires=()) for source in details["sources"]
    ]
    return RunFacts(
        Options(**_freeze(parameters), **about),
        tuple(sources),
        tuple(details["unopened"].items()),
        notes=details["notes"],
        details={name: value for name, value in details.items() if name not in _GIVEN},
    )


def _freeze(stated: Json) -> dict[str, Any]:
    """Return values of JSON with tuples for lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in stated.items()}


# --- laws -------------------------------------------------------------------------------------------------------------


def _check_extraction(folder: Folder) -> list[Check]:
    """Check the promises of an extraction whose tables have the right columns."""
    path, manifest = folder.path, folder.manifest
    rows = list(EXTRACTION.rows(path, Block, [name for name in Block.model_fields if name != "code"]))
    needs = read_requirements(path)
    confirmed = read_confirmed(manifest.parameters.get("distributions", ()))
    checks = [
        _check_rows(path, rows, manifest),
        *run_checks("requirements", lambda: _check_requirements(rows, needs)),
        *run_checks("sources", lambda: _check_sources(rows, needs, manifest)),
        *check_code(path, rows, _list_packages(rows, needs), confirmed, folder.jobs),
        *run_checks("graphs", lambda: _check_graphs(path, manifest)),
    ]
    # What a check above doubts is not executed.
    if all(check.ok for check in checks):
        with releases_of(manifest.parameters.get("as_of")):
            checks += run_checks("calls", lambda: check_calls(path, folder.jobs))
    return checks


def _check_rows(folder: Path, rows: Sequence[Block], manifest: Manifest) -> Check:
    """Check names and lines, that blocks from `emitted` on have code, and that those below the goal say why."""
    goal = manifest.parameters.get("level")
    if goal not in LEVELS:
        return Check("blocks", ok=False, detail=f"the manifest's level is {goal!r}, not one of {', '.join(LEVELS)}")
    # Code is not published if its license forbids redistribution.
    table = pq.read_table(folder / TABLE, columns=["code", "code_sha256"])
    withheld = table["code"].null_count - table["code_sha256"].null_count
    stated = sum(entry.get("blocks", 0) for entry in manifest.details.get("withheld", []))
    wrong = [f"the code of {withheld} blocks is missing, {stated} are stated as withheld"] if withheld != stated else []
    wrong += [f"{name}: {number} blocks" for name, number in Counter(row.block for row in rows).items() if number > 1]
    for row in rows:
        block, level = row.block, row.level
        if row.start_line > row.end_line:
            wrong.append(f"{block}: lines {row.start_line}-{row.end_line}")
        has_code = row.code_sha256 is not None
        if at_least(level, "emitted") != has_code:
            wrong.append(f"{block}: {level}, but {'has' if has_code else 'has no'} code")
        if (row.error_kind is None) != (row.error is None):
            wrong.append(f"{block}: a category of failure without a message, or the other way round")
        if at_least(level, goal) != (row.error_kind is None):
            wrong.append(f"{block}: {level} of {goal}, {row.error_kind or 'no reason recorded'}")
    return check_faults("blocks", wrong, f"{len(rows):,}, each with a unique name, `{goal}` or with a reason why not")


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
    fine = f"{plural(len(needs.blocks), 'entry', 'entries')}: PEP 508, SWHIDs and sources as in the table"
    return check_faults("requirements", wrong, fine)


def _check_sources(rows: Sequence[Block], needs: Requirements, manifest: Manifest) -> Check:
    """Check that manifest, requirements and blocks state the same of each source."""
    stated = {source["name"]: source for source in manifest.details["sources"]}
    inputs = {item.name: item.sha256 for item in manifest.inputs}
    same = inputs == {name: source["digest"] for name, source in stated.items()}
    wrong = [] if same else ["the inputs are not the sources"]
    own = replacement_source()
    for name, known in needs.sources.items():
        if name == own.name:  # stand-ins of ours, of the release that wrote the folder
            wrong += [f"{name}: license is not {own.license}"] if known.license != own.license else []
            continue
        facts = known.model_dump(include={"version", "origin", "digest", "swhid", "license"})
        differing = [key for key, value in facts.items() if (stated.get(name, {}).get(key) or None) != (value or None)]
        wrong += [f"{name}: {key} is not that of the manifest" for key in differing]
    of_others = (row.block for row in rows if row.digest != stated.get(row.source, {}).get("digest"))
    wrong += [f"{block}: its digest is not that of its source" for block in of_others]
    fine = f"{plural(len(stated), 'source')}, the same in manifest, requirements and blocks"
    return check_faults("sources", wrong, fine)


def _entry_faults(entry: BlockNeeds, row: Block | None, needs: Requirements) -> Iterator[str]:
    stated, required = (
        {canonicalize_name(Requirement(text).name) for text in texts}
        for texts in (entry.requires, row.requires if row is not None else ())
    )
    if not required <= stated:
        yield f"{entry.block}: requires less than the table says"
    if row is not None:
        first, *qualifiers = (entry.swhid or "").split(";")
        if first != row.swhid or qualifiers[-1:] != [f"lines={lines_text(row.start_line, row.end_line)}"]:
            yield f"{entry.block}: its SWHID is of another file or of other lines than the table's"
    yield from (f"{entry.block}: its source {name} is not listed" for name in entry.files if name not in needs.sources)


def _list_packages(rows: Iterable[Block], needs: Requirements) -> dict[str, frozenset[str]]:
    """Return by source the import names that its blocks must not import."""
    packages = defaultdict(set, {source: set(facts.packages) for source, facts in needs.sources.items()})
    for row in rows:  # of a namespace that distributions share, a source has a part: `acme.nets`
        if not any(row.qualname.startswith(f"{package}.") for package in packages[row.source]):
            packages[row.source].add(row.qualname.partition(".")[0])
    return {source: frozenset(names - sys.stdlib_module_names - {FOUNDATION}) for source, names in packages.items()}


def _check_graphs(folder: Path, manifest: Manifest) -> Check:
    """Check that the graphs of specs draw what these name, and that what rebuilds can be written."""
    specs = list(read_specs(folder))
    stated = [(spec.block, spec.algorithm) for spec in specs if spec.algorithm is not None]
    wrong = [f"{block}: {fault}" for block, algorithm in stated for fault in algorithm_faults(algorithm)]
    if not manifest.details.get("withheld"):
        missing = (spec for spec in specs if spec.graph and spec.algorithm is None and "algorithm" not in spec.withheld)
        wrong += [f"{spec.block}: has a graph, but its spec has none" for spec in missing]
    return check_faults("graphs", wrong, f"{plural(len(stated), 'graph')} of specs: draws and rebuilding as stated")


# --- files, one by one -----------------------------------------------------------------------------------------------


_HEADER = re.compile(r"# (Block|Licence):[ ]+(.*)")
_FENCED = re.compile(r"\A(`{3,})(json|python)\n(.*?)\n?\1\Z", re.DOTALL)
_MINIMIZED = ("lean_code", "lean_sha256", "lean_lines", "lean_requires", "lean_license", "lean_error")
_CODE_COLUMNS = ("block", "name", "source", "level", "license", "error_kind", "requires", "code", *_MINIMIZED)
_BATCH = 40  # blocks per worker call
_FEW = 60  # blocks; with fewer, starting processes costs more than it saves

#: Checks of single files, in the order of the report, with the text for success.
_OF_CODE = {
    "parses": "Python",
    "undefined names": "none by pyflakes",
    "imports": "the standard library, the runtime and what they require, and nothing of their origin",
    "headers": "of their block and license",
    "lean forms": "of each what the table says",
}


def check_code(
    folder: Path,
    rows: Sequence[Block],
    packages: Mapping[str, frozenset[str]],
    confirmed: Mapping[str, str],
    jobs: int | None,
) -> list[Check]:
    """Return the checks of single files, and of the texts about them; the rows contain no code.

    Args:
        packages: by source, the import names that its blocks must not import.
        confirmed: distributions by import name, as the user stated them for the extraction.
    """
    number = sum(row.code_sha256 is not None for row in rows)
    faults = defaultdict[str, list[str]](list)
    blocks = EXTRACTION.rows(folder, Block, _CODE_COLUMNS)
    emitted = (block for block in blocks if block.code is not None or block.lean_sha256 is not None)
    batches = iter(lambda: list(itertools.islice(emitted, _BATCH)), [])
    work = partial(_check_batch, packages, confirmed)
    files = 0  # a published copy has fewer
    with progress("verify", number, "blocks") as advance:
        checked = map_chunks(work, ([batch] for batch in batches), None, jobs)
        for done, found in map(work, batches) if number <= _FEW else itertools.chain.from_iterable(checked):
            for name, fault in found:
                faults[name].append(fault)
            files += done
            advance(done)
    return [check_faults(name, faults[name], f"{plural(files, 'file')}: {text}") for name, text in _OF_CODE.items()]


def _check_batch(
    packages: Mapping[str, frozenset[str]], confirmed: Mapping[str, str], rows: Sequence[Block]
) -> tuple[int, list[tuple[str, str]]]:
    """Return the number of blocks of which a file is there, and the faults of the files, each with its check."""
    return sum(row.code is not None or row.lean_code is not None for row in rows), [
        (name, f"{row.block}: {fault}")
        for row in rows
        for name, fault in (*_file_faults(row, packages[row.source], confirmed), *_lean_faults(row))
    ]


def _file_faults(row: Block, own: frozenset[str], confirmed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with both forms of a block's file, each with the name of its check."""
    for form, code, license_, requires in (
        ("", row.code, row.license, row.requires),
        ("lean form: ", row.lean_code, row.lean_license, row.lean_requires),
    ):
        if code is None:
            continue
        head = _header(code)
        for key, value in (("Block", row.block), ("Licence", license_)):
            if head.get(key) != value:
                yield "headers", f"{form}its header names {head.get(key)!r} as {key}, not {value!r}"
        try:
            tree = parse_code(code)
        except SyntaxError as error:
            # A file that does not parse is an outcome that the table may state.
            if form or row.level != "emitted" or row.error_kind is None:
                yield "parses", f"{form}{row.level}, but it does not parse: {error}"
            continue
        if form or row.error_kind is None or at_least(row.level, "compiled"):  # else that may be the reason
            yield from (("undefined names", f"{form}{fault}") for fault in find_undefined_names(tree).values())
        yield from (("imports", f"{form}{fault}") for fault in import_faults(tree, requires, own, confirmed))


def _lean_faults(row: Block) -> Iterator[tuple[str, str]]:
    """Yield what the table says wrongly of a block's lean form."""
    code, name = row.lean_code, "lean forms"
    if row.lean_sha256 is None:
        if at_least(row.level, "forward") != (row.lean_error is not None) or code is not None:
            yield name, "has no lean form, and no reason why, or the other way round"
        return
    if code is None:
        if is_permissive(row.lean_license or NOASSERTION) and not any(map(is_guess, row.lean_requires)):
            yield name, "its lean form is missing, though its license permits redistribution"
        return
    if row.lean_error is not None:
        yield name, "has a lean form, and a reason why not"


def _header(code: str) -> dict[str, str]:
    """Return the fields in the comment lines at the start of a file: its block and license."""
    fields: dict[str, str] = {}
    for line in header_lines(code):
        if match := _HEADER.fullmatch(line):
            fields.setdefault(match[1], match[2])
    return fields


def import_faults(
    tree: ast.Module, requires: Iterable[str], own: frozenset[str], confirmed: Mapping[str, str] | None = None
) -> list[str]:
    """Return the imports, also in functions, that are not in the standard library, the runtime or the requirements.

    Args:
        requires: PEP 508; invalid entries are ignored.
        own: the import names of the source itself; they are always faults, except that a package of the runtime may be
            imported if only its compiled operators are used.
        confirmed: distributions by import name, as the user stated them for the extraction.
    """
    wanted, nodes = tuple(requires), list(ast.walk(tree))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    # `import torchvision` registers its operators: a block of torchvision may do that, and nothing else with it.
    for_operators = {
        (alias.name, node.lineno)
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in RUNTIME and alias.name not in used and not alias.asname
    }
    wrong = []
    for dotted, line in list_imports(tree):
        top = dotted.partition(".")[0]
        if not top:
            wrong.append(f"line {line}: a relative import, {dotted}")
        elif any(f"{dotted}.".startswith(f"{package}.") for package in own) and (dotted, line) not in for_operators:
            wrong.append(f"line {line}: imports {dotted} of its own origin")
        elif top in sys.stdlib_module_names or top in RUNTIME:
            continue
        elif not is_stated(dotted, wanted, confirmed):
            wrong.append(f"line {line}: imports {dotted}, which it does not require")
    return wrong


# --- the printed calls, executed in the sandbox -----------------------------------------------------------------------


_NAME = "calls"
_COLUMNS = ("block", "name", "source", "file", "code", "lean_code", "arguments", "observed", "requires")
_CHARACTERS = 200  # of an error
_LIMITED = frozenset({Status.TIMEOUT, Status.OUT_OF_MEMORY})


Ran = Literal["ran"]
#: CPU time and memory are the limits that matter, so that a busy machine changes no result.
RUN_CALL = SandboxStage[Ran | Failure](
    "extract.folder.calls_guest:run_call",
    Ran | Failure,
    Limits(wall_seconds=900, cpu_seconds=60, memory_bytes=6 * 2**30),
    retries=False,
)


def check_calls(folder: Path, jobs: int | None = None) -> list[Check]:
    """Execute the printed call of every block that has one, below both forms of its file; outcomes are cached.

    Args: jobs: worker processes; default: all cores.
    Returns: one check; none if no block was seen to run.
    """
    needs = read_requirements(folder)
    origins = {name: sorted(set(source.packages) - PROVIDED) for name, source in needs.sources.items()}
    # Of files the paths alone: the files were compared with the table already.
    forms: list[tuple[str, str, tuple[str, ...], list[str]]] = []
    requires, sources = set[str](), set[str]()
    for row in EXTRACTION.rows(folder, Block, _COLUMNS):
        lines = print_call(row, row.lean_code or row.code)
        file = row.file or ""
        for form, path, code in (("full", file, row.code), ("lean", get_minimized_path(file), row.lean_code)):
            if lines and code is not None:
                forms.append((f"{row.block}, {form} form", path, lines, origins.get(row.source, [])))
                requires.update(row.requires)
                sources.add(row.source.partition("@")[0])
    if not forms:
        return []
    runtime = runtime_for(sorted(requires), known=sorted(sources))
    folders = [str(path) for path in runtime.folders]
    jobs_to_run = (
        RUN_CALL.job(key, CallRequest((folder / path).read_text(encoding="utf-8"), lines, folders, origin))
        for key, path, lines, origin in forms
    )
    outcomes, faults = Counter[str](), []
    with (
        open_sandbox(None, [RUN_CALL], {"jobs": jobs or available_cores(), "runtime": runtime.folders}) as box,
        progress(_NAME, len(forms), "calls") as advance,
    ):
        try:
            for reply in RUN_CALL.run_jobs(box, jobs_to_run):
                answer = reply.answer if reply.answer is not None else reply.failure(_CHARACTERS)
                if not isinstance(answer, Failure):
                    outcomes["ran"] += 1
                elif reply.outcome.status in _LIMITED:
                    outcomes["limited"] += 1
                elif runtime.unavailable and answer.error.startswith("ModuleNotFoundError"):
                    outcomes["missing"] += 1
                else:
                    faults.append(f"{reply.key}: {' '.join(answer.error.split())[:_CHARACTERS]}")
                advance(1)
        except UserError as error:  # no sandbox
            return [Check(_NAME, ok=True, detail=f"not executed: {error}", done=False)]
    detail = f"{plural(outcomes['ran'], 'form')} of blocks run as `lemur show` prints it"
    detail += f"; {outcomes['limited']:,} need more than the limits of the sandbox" if outcomes["limited"] else ""
    detail += f"; {outcomes['missing']:,} need packages that are not available here" if outcomes["missing"] else ""
    return [check_faults(_NAME, sorted(faults), detail)]


KIND = replace(FACED, derive=_derive, laws=(_check_extraction,), find=find, find_code=find_code)
KINDS = (KIND,)
verify = partial(verify_folder, KIND)
