"""Add a block of an extraction folder to an existing project: plan, verify in a copy of the project, then write."""

import builtins
import difflib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extract.migrate.codemod import USUAL
from extract.migrate.messages import SeenBlock
from extract.migrate.project.layout import (
    ModuleLocation,
    Project,
    TestPlace,
    choose_place,
    choose_test,
    find_same_class,
    read_project,
)
from extract.migrate.project.trial import MigrationTrial, Proof, trial
from extract.migrate.project.writing import (
    ClosedFile,
    PackageExport,
    SourceModule,
    format_files,
    list_used_names,
    module_text,
    read_closed_file,
    register,
    smoke_text,
)
from extract.migrate.source_block import choose_form
from extract.model.blocks import find_block
from extract.model.options import MigrateOptions
from extract.resolve.distributions import is_stated, list_distributions
from extract.resolve.requirements import list_runtime_imports
from extract.specs.make import read_arguments
from lemur_core.files.atomic import write_together
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from manifests.provenance import find_inlined_blocks
from manifests.provenance.licenses import NOASSERTION, combine_licenses, is_permissive

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(slots=True)
class MigrationPlan:
    """A migration before anything is written."""

    donated: SourceModule
    project: Project
    place: ModuleLocation
    test: TestPlace
    registered: PackageExport | None = None
    files: dict[str, bytes] = field(default_factory=dict)  # path below the project -> new content
    # Path -> current content; None if the file does not exist.
    before: dict[str, bytes | None] = field(default_factory=dict)
    proof: Proof = field(default_factory=lambda: Proof("not tried"))
    formatted: str = ""  # how the new files were formatted, for the user
    notes: list[str] = field(default_factory=list)  # other one-line messages for the user


def migrate_into_project(folder: Path, block: str, root: Path, options: MigrateOptions) -> str:
    """Add a block of an extraction folder to a project.

    Returns: the text to print: the actions and the verified properties, or the diff for a dry run.
    Raises: UserError if the migration fails; then nothing is written.
    """
    plan = plan_migration(folder, block, root, options)
    if not options.dry_run:
        _write_files(plan)
    if options.as_json:
        return json.dumps(_facts(plan, written=not options.dry_run), sort_keys=True)
    return difference(plan) if options.dry_run else "\n".join(_lines(plan))


def _write_files(plan: MigrationPlan) -> None:
    """Write all files. Raises: UserError if one of them has changed since it was read, or cannot be written."""
    root = plan.project.root
    for path, before in plan.before.items():
        # Verification takes minutes, in which the user may edit the project.
        if _read(root / path) != before:
            raise UserError(f"{path}: was changed meanwhile; nothing was written, run again")
    write_together({root / path: data for path, data in plan.files.items()})


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def plan_migration(folder: Path, block: str, root: Path, options: MigrateOptions) -> MigrationPlan:
    """Plan a migration and verify it in a copy of the project, without writing anything.

    Raises: UserError if there is no such block or project, the license forbids it, or the verification fails.
    """
    donated = load_source_module(folder, block, lean=not options.full)
    project = read_project(root)
    plan = _make_plan(donated, project, options)
    plan.notes += license_notes(donated, project, force=options.force)
    used = list_used_names(donated.expressions)
    file = read_closed_file(donated.code)
    unknown = [name for name in used if name not in file.globals | USUAL.keys() and not hasattr(builtins, name)]
    if unknown:
        raise UserError(
            f"{donated.row.block}: the arguments with which it is known to run need {', '.join(unknown)}, which its"
            " file does not hold, so nothing can be proved; choose another block"
        )
    same = find_same_class(project, donated.row.name, donated.code, plan.place.path)
    if same is not None and not options.force:
        named = f"{same.full_name} of the project is the same ({same.path})"
        raise UserError(f"{donated.row.block}: {named}; import that, or add --force")
    with trial(donated, project, unsafe=options.unsafe_no_sandbox) as bench:
        proof = _prove(plan, file, bench, bench.observe())
    if proof.wrong:
        raise UserError(f"{donated.row.block}: not proved in {plan.place.path}: {proof.wrong}; nothing was written")
    plan.proof = proof
    plan.notes += [*filter(None, [plan.formatted]), *_requirement_notes(plan)]
    return plan


def _prove(plan: MigrationPlan, file: ClosedFile, bench: MigrationTrial, seen: SeenBlock) -> Proof:
    """Generate the text of all files and verify them."""
    donated, project, place = plan.donated, plan.project, plan.place
    plan.registered = register(project, place, donated.row.name)
    new = {
        place.path: module_text(donated, file),
        plan.test.path: smoke_text(donated, file, place, plan.test, seen),
    }
    texts, plan.formatted = format_files(project.root, new)
    files = {path: text.encode() for path, text in texts.items()}
    if plan.registered.text is not None:
        files[plan.registered.path] = plan.registered.text
    plan.files = dict(sorted(files.items()))
    plan.before = {path: _read(project.root / path) for path in plan.files}
    return bench.prove(place, plan.test, plan.files)


# --- the block --------------------------------------------------------------------------------------------------------


def load_source_module(folder: Path, wanted: str, *, lean: bool = True) -> SourceModule:
    """Load the block to move.

    Args: lean: use its minimized form if there is one.
    Raises: UserError if there is no such block, it has no code, or it never ran.
    """
    row = find_block(folder, wanted).row
    form = choose_form(folder, row, lean=lean)
    worked = read_arguments(row.arguments)
    if worked is None or worked.forward is None:
        raise UserError(
            f"{row.block}: no arguments are known with which it runs, so nothing can be proved; choose another"
        )
    moved = row.model_copy(update={"code_sha256": form.digest, "license": form.license})
    return SourceModule(moved, form.code, form.lean, form.requires, worked)


# --- the plan ---------------------------------------------------------------------------------------------------------


def _make_plan(donated: SourceModule, project: Project, options: MigrateOptions) -> MigrationPlan:
    row = donated.row
    # A block that was moved before carries its id in the header.
    texts = ((path, (project.root / path).read_text(encoding="utf-8", errors="replace")) for path in project.trees)
    same = (path for path, text in texts if any(block.block == row.block for block in find_inlined_blocks(text)))
    existing = next(same, None) if options.out is None else None
    if existing is not None and not options.force:
        raise UserError(f"{row.block}: is there already: {existing}; add --force to replace it, or name another --out")
    if existing is not None:
        place = ModuleLocation(existing, project.name_module(existing), "where it is already")
    else:
        place = choose_place(project, row.name, row.category, options.out)
        if (project.root / place.path).exists() and not options.force:
            raise UserError(f"{place.path}: exists already; choose another --out, or add --force")
    test = choose_test(project, place, replaces=f"{row.name}, moved here from {row.source}" if options.force else None)
    return MigrationPlan(donated, project, place, test)


def license_notes(donated: SourceModule, project: Project, *, force: bool) -> list[str]:
    """Return notes on the block's license in this project. Raises: UserError if --force is required."""
    row, own = donated.row, project.source.license
    both, permissive = combine_licenses([row.license, own]), is_permissive(row.license)
    if both == own != NOASSERTION:
        more = "the notice in the file is kept" if permissive else "which is not known to be permissive"
        return [f"licence   {row.license}, as the project's own ({own}); {more}"]
    if not permissive:
        if not force:
            raise UserError(
                f"{row.block}: its licence, {row.license}, is not known to be permissive, and not the project's"
                f" ({own}); --force moves it anyway, and the file says so"
            )
        return [
            f"licence   {row.license}, NOT KNOWN TO BE PERMISSIVE; the project's is {own}: do not redistribute"
            " it unless that license permits it"
        ]
    if own == NOASSERTION:
        return [f"licence   {row.license}; the project declares none that is known here: the file states its own"]
    return [f"licence   {row.license} in a project under {own}: together {both}; the notice in the file is kept"]


def _requirement_notes(plan: MigrationPlan) -> list[str]:
    """Return a note on packages that the new module imports and the project does not declare."""
    needed = list_runtime_imports(plan.files[plan.place.path].decode()) - plan.project.packages
    declared = plan.project.source.requires
    missing = sorted(list_distributions(package)[0] for package in needed if not is_stated(package, declared))
    if not missing:
        return []
    return [
        f"requires  {', '.join(missing)}, which the project does not declare where it can be read; add what is missing"
    ]


# --- output -----------------------------------------------------------------------------------------------------------


def difference(plan: MigrationPlan) -> str:
    """Return the unified diff of all files, in the format of `git apply` and `patch -p1`."""
    diff: list[str] = []
    for path, data in plan.files.items():
        before = plan.before[path]
        # Only `\n` ends a line, as in git.
        older, newer = (_LINE.findall((text or b"").decode(errors="replace")) for text in (before, data))
        lines = difflib.unified_diff(older, newer, "/dev/null" if before is None else f"a/{path}", f"b/{path}")
        diff += (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(diff).rstrip("\n")


def _lines(plan: MigrationPlan) -> list[str]:
    donated, place = plan.donated, plan.place
    size = plural(len(donated.code.splitlines()), "line")
    whole = f": what its known arguments reach; --full moves the file of {donated.row.n_lines}" if donated.lean else ""
    lines = [
        f"block     {donated.row.block}, {'lean' if donated.lean else 'full'} form, {size}{whole}",
        f"place     {place.path}: {place.why}",
    ]
    if plan.registered is not None:
        lines.append(f"register  {plan.registered.why}")
    tests = f"{plan.test.neighbors} next to it" if plan.test.neighbors else "the project has none of its own"
    kind = "unittest" if plan.test.style == "unittest" else "pytest functions"
    lines += [f"test      {plan.test.path}: {kind}, {tests}", *plan.notes]
    lines.append(
        "proved    in a copy of the project: outputs, gradients and state are the block's own in every bit, in"
        f" {plan.proof.steps} steps; {plural(plan.proof.tests, 'smoke test')} passed"
    )
    return [*lines, f"wrote     {', '.join(plan.files)}"]


def _facts(plan: MigrationPlan, *, written: bool) -> dict[str, Any]:
    row = plan.donated.row
    return {
        "block": row.block,
        "class": row.name,
        "module": plan.place.module,
        "code_sha256": row.code_sha256,
        "lean": plan.donated.lean,
        "license": row.license,
        "project_license": plan.project.source.license,
        "registered": plan.registered.why if plan.registered is not None else None,
        "proof": {"steps": plan.proof.steps, "tests": plan.proof.tests},
        "notes": [" ".join(note.split()) for note in plan.notes],
        "files": list(plan.files),
        "written": written,
    }
