"""Cross-repository migration: the file of a block in another project, proven there.

The minimized file, or the closed one, is written byte for byte, with the header that says where it comes from. Before
that, the sandbox runs the block below its own file, and then as a copy of the project imports the new file: the outputs
of the printed call must be equal in every bit, as must outputs, gradients and state in both modes at all known sizes.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from keyword import iskeyword
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from extract.arguments.messages import BlockInPlace, list_sizes
from extract.model.blocks import find_block
from extract.proofs.minimize import difference
from extract.proofs.runtime import PROVIDED, runtime_for
from extract.proofs.visit import Signed
from extract.sources import PackageSource, read_folder, walk
from extract.sources.contents import MAX_FILE_BYTES
from extract.sources.metadata import is_text
from extract.specs.make import print_call, read_arguments
from lemur_core.files import Json
from lemur_core.files.atomic import scratch_folder, write_together
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain, may_hold_secrets
from lemur_core.files.markdown import plural
from lemur_core.sandbox import META_PRELOAD, Failure, Limits, Sandbox
from lemur_core.sandbox.stage import SandboxStage
from manifests.provenance import is_guess
from manifests.provenance.licenses import NOASSERTION, combine_licenses, is_permissive
from manifests.provenance.parts import read_parts
from manifests.records import Block

#: CPU time and memory are the effective limits, so outcomes do not depend on machine load.
LIMITS = Limits(wall_seconds=900, cpu_seconds=240, memory_bytes=8 * 2**30)
IMPORT = SandboxStage[str]("extract.folder.calls_guest:import_package", str, LIMITS)
SIGN = SandboxStage[Signed | Failure]("extract.folder.calls_guest:sign_in_place", Signed | Failure, LIMITS)

_INIT = "__init__.py"
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")  # of the folder of a project


def migrate(
    folder: Path, block: str, into: Path, *, full: bool = False, force: bool = False, unsafe: bool = False
) -> Json:
    """Write the file of a block into a project, once it is proven to give the block's outputs there.

    Args:
        folder: an extraction folder. block: a name, as for `lemur show`.
        into: the file to write, in an existing project; missing folders are created.
        full: write the closed file instead of the minimized one.
        force: replace an existing file, and write code whose license is not known to permit it.
        unsafe: run foreign code without the sandbox.
    Returns: what was written, the call to use it by, and what was proven, as JSON values.
    Raises: UserError if the block, the license, the place or the proof does not allow it; then nothing is written.
    """
    row = find_block(folder, block)
    form = choose_form(folder, row, lean=not full)
    root, target = find_project(into), into.resolve()
    check_plain(target)
    if target.exists() and not (force and target.is_file()):
        what = "is a folder; name a file in it" if target.is_dir() else "exists already; add --force to replace it"
        raise UserError(f"{into}: {what}")
    written = {**dict.fromkeys(_list_new_packages(into), b""), into: form.code.encode()}
    files = {path.resolve().relative_to(root).as_posix(): data for path, data in written.items()}
    path = target.relative_to(root).as_posix()
    with scratch_folder("migrate") as scratch:
        copy = scratch / root.name
        try:
            _copy_code(root, copy)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read: {error.strerror}; it is part of the project") from error
        older = {name: (copy / name).read_bytes() if (copy / name).exists() else None for name in files}
        _put(copy, files)
        project = read_folder(str(copy))
        permitted = is_permissive(form.license) or (
            combine_licenses([form.license, project.license]) == project.license != NOASSERTION
        )
        if not permitted and not force:
            raise UserError(
                f"{row.block}: its license, {form.license}, is not known to permit this, and is not the project's"
                f" ({project.license}); --force writes it anyway, for local use"
            )
        module, import_root = _find_module(project, path, into)
        lines, calls = print_call(row, form.code, module), read_arguments(row.arguments)
        if not lines or calls is None or calls.forward is None:
            raise UserError(
                f"{row.block}: no call is known that runs it, so nothing can be proven; choose another block"
            )
        alone = BlockInPlace(
            form.code,
            row.name,
            origin=(),
            folders=(),
            arguments={"init": calls.init.as_texts(), "forward": calls.forward.as_texts()},
            companions=(),
            sizes=list_sizes(json.loads(row.observed or "{}")),
            others={},
            backward=True,
            lines=print_call(row, form.code),
        )
        there = replace(alone, lines=lines, module=module, root=str(import_root), file=str(copy / path))
        requires = (form.requires, project.requires)
        steps, fault, wrong = _prove(alone, there, copy, (older, files), requires, unsafe=unsafe)
    if wrong:
        raise UserError(f"{row.block}: not proven in {into}: {wrong}; nothing was written")
    write_together(written)
    return {
        "block": row.block,
        "form": "minimized" if form.lean else "full",
        "lines": form.code.count("\n"),
        "license": form.license,
        "permitted": permitted,
        "project_license": project.license,
        "requires": list(form.requires),
        "module": module,
        "call": list(lines),
        "proof": {"steps": steps, "not_imported": fault or None},
        "files": list(map(str, written)),
    }


def describe(facts: Json) -> str:
    """Return what a migration did, as the command prints it."""
    own = facts["project_license"]
    license_ = f"license  {facts['license']}; the project " + ("states none" if own == NOASSERTION else f"has {own}")
    license_ += "" if facts["permitted"] else "; NOT KNOWN TO PERMIT THIS: for local use"
    proof = facts["proof"]
    lines = [f"block    {facts['block']}, {facts['form']} form, {plural(facts['lines'], 'line')}", license_]
    if facts["requires"]:
        lines.append(f"needs    {', '.join(facts['requires'])}")
    lines.append(
        f"proven   in a copy of the project, imported as {facts['module']}: outputs of the call below, and gradients"
        f" and state in both modes, are the block's own in every bit ({plural(proof['steps'], 'step')})"
    )
    if proof["not_imported"]:
        lines.append(
            f"but      without the project's own __init__ files, which cannot be imported here: {proof['not_imported']}"
        )
    head, *rest = facts["call"]
    return "\n".join(
        [*lines, f"wrote    {', '.join(facts['files'])}", f"call     {head}", *(f"         {x}" for x in rest)]
    )


# --- the block --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """The file of a block to write: its minimized or its closed one."""

    code: str
    license: str
    requires: tuple[str, ...]
    lean: bool


def choose_form(folder: Path, row: Block, *, lean: bool = True) -> Form:
    """Return the minimized form of a block if it is requested and exists, else the closed one.

    Raises: UserError if the block has no code, or requires a distribution that is only guessed.
    """
    if lean and row.lean_code is not None:
        form = Form(row.lean_code, row.lean_license or NOASSERTION, tuple(row.lean_requires or ()), lean=True)
    elif row.code is None:
        raise UserError(f"{row.block}: has no code ({row.error_kind}: {row.error}); choose another block")
    else:
        # The closed file may hold definitions of other sources; each has a license of its own.
        license_ = combine_licenses(read_parts(folder).licenses(row.block, row.license))
        form = Form(row.code, license_, tuple(row.requires), lean=False)
    for package in (Requirement(text).name for text in form.requires if is_guess(text)):
        raise UserError(
            f"{row.block}: imports {package}, and its distribution was only guessed; extract it again with"
            f" --distribution {package.replace('-', '_')}=NAME"
        )
    return form


# --- the project ------------------------------------------------------------------------------------------------------


def find_project(into: Path) -> Path:
    """Return the folder of the project that a file will belong to.

    It is the nearest one around the file that a project's settings or git mark, else the outermost package, else the
    first folder of the path. Raises: UserError if there is none.
    """
    if into.suffix != ".py":
        raise UserError(f"{into}: not the name of a Python file; give PROJECT/path.py")
    path, first = into.resolve(), Path(*into.parts[:-1][:1])
    if first.is_dir():
        folder = next(parent for parent in path.parents if parent.is_dir())
        for parent in (folder, *folder.parents):
            if any((parent / mark).exists() for mark in _MARKS):
                return parent
        while (folder.parent / _INIT).is_file():
            folder = folder.parent
        if (folder / _INIT).is_file():
            return folder
        if into.is_absolute() or ".." in into.parts or not path.is_relative_to(first.resolve()):
            first = path.parent
    if not first.is_dir():
        raise UserError(f"{into}: there is no folder {first}; name a project that exists")
    return first.resolve()


def _list_new_packages(into: Path) -> list[Path]:
    """Return the `__init__.py` files to create: of missing folders inside a package."""
    missing = [parent for parent in into.parents if not parent.exists()]
    inside = bool(missing) and (missing[-1].parent / _INIT).is_file()
    return [parent / _INIT for parent in reversed(missing)] if inside else []


def _copy_code(root: Path, copy: Path) -> None:
    """Copy a project: its code, the data in its packages, and the texts that describe it. Raises: OSError."""
    names = [PurePosixPath(name) for name in walk(root)]
    packages = {name.parent for name in names if name.name == _INIT}
    for name in names:
        kept = name.suffix == ".py" or is_text(str(name)) or not packages.isdisjoint(name.parents)
        if kept and not may_hold_secrets(name.name) and (root / name).stat().st_size <= MAX_FILE_BYTES:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, copy / name)


def _put(copy: Path, files: Mapping[str, bytes | None]) -> None:
    """Write files into the copy; None removes one."""
    for name, data in files.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            (copy / name).unlink(missing_ok=True)
        else:
            (copy / name).write_bytes(data)


def _find_module(project: PackageSource, path: str, into: Path) -> tuple[str, Path]:
    """Return the dotted name under which the project imports a file, and the folder it is imported from."""
    module = next((file.module for file in project.files if file.path == path), "")
    names, parts = module.split("."), PurePosixPath(project.root.name, path).with_suffix("").parts
    # At the top, the file would stand for the module of that name in all of the project.
    hides = len(names) == 1 and names[0] in PROVIDED | sys.stdlib_module_names
    named = all(name.isidentifier() and not iskeyword(name) for name in names)
    if list(parts[-len(names) :]) != names or hides or not named:
        raise UserError(f"{into}: no name by which the project's code could import it; choose another place")
    return module, Path(project.root.parent, *parts[: -len(names)])


# --- the proof --------------------------------------------------------------------------------------------------------


def _prove(
    alone: BlockInPlace,
    there: BlockInPlace,
    copy: Path,
    states: tuple[Mapping[str, bytes | None], Mapping[str, bytes | None]],
    requires: tuple[tuple[str, ...], tuple[str, ...]],
    *,
    unsafe: bool,
) -> tuple[int, str, str]:
    """Compare a block below its own file with the same in the copy of a project.

    Args: states: contents of files of the copy, without and with the new file.
        requires: of the block, and of the project; the latter are fetched if its packages cannot be imported without.
    Returns: the number of equal steps; why the packages cannot be imported, with or without the new file; the fault.
    """
    older, newer = states
    for needed in dict.fromkeys((requires[0], (*requires[0], *requires[1]))):
        folders = runtime_for(sorted(set(needed))).folders
        alone, there = (replace(request, folders=[str(path) for path in folders]) for request in (alone, there))
        confined: Json = {"readable": [copy.parent, *folders], "workers": 1, "unsafe": unsafe}
        with Sandbox(preload=META_PRELOAD, entries=[IMPORT.guest, SIGN.guest], **confined) as box:
            _put(copy, older)
            (imported,) = map(IMPORT.read, box.run([IMPORT.job("", there)]))
            fault = imported.ending() if imported.answer is None else imported.answer
            if "No module named" in fault and needed == requires[0] and requires[1]:
                continue
            _put(copy, newer)
            jobs = [SIGN.job("", alone), SIGN.job("", replace(there, bare=bool(fault)))]
            replies = list(map(SIGN.read, box.run(jobs)))
            break
    signed = []
    for reply, what in zip(replies, ("the block itself does not run again: ", ""), strict=True):
        if not isinstance(reply.answer, Signed):
            return 0, fault, what + (reply.answer.error if reply.answer else reply.ending())
        signed.append(reply.answer)
    wrong = difference(signed[1], signed[0].steps)
    return len(signed[0].steps), fault, f"differs from the block in {wrong}" if wrong else ""
