"""Verify any finished folder, and trace one of its rows back to source lines.

A trace reads only finished folders. A parent is identified among the folders by the digest of its manifest, never by
name, and searched for the same code by SHA-256.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import curate.folder.trace
import curate.folder.verify
import extract.folder.verify
import lemur.experts.facts
import lemur.export.records
import lemur.synthesis.folder
import train.trace
from lemur.runner import STATE
from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import article
from lemur_core.files.progress import show_steps
from lemur_core.files.python import read_python_file
from lemur_core.graphs.graph import TORCH
from manifests.folders.checks import Check, check_faults, check_files, find_links, run_checks
from manifests.folders.formats import FolderKind, FolderLink, ListedItem, lines_text, manifest_link
from manifests.folders.frame import Page, foreign_page_files, has_page
from manifests.folders.manifest import (
    FILE_NAME,
    INDEX,
    SHARDS,
    Manifest,
    MissingStatementError,
    Parent,
    find_stated_fault,
    package_versions,
    read_manifest,
    read_unchecked_manifest,
)
from manifests.folders.reading import CHECK_ERRORS, describe, reading
from manifests.folders.retired import check_retired, find_retired
from manifests.provenance import find_inlined_blocks

#: All kinds of folder with verification and traces.
KINDS: Mapping[str, FolderKind] = {
    kind.format.name: kind
    for package in (
        extract.folder.verify,
        curate.folder.trace,
        train.trace,
        lemur.synthesis.folder,
        lemur.experts.facts,
        lemur.export.records,
    )
    for kind in package.KINDS
}


def verify_folder(folder: Path, *, jobs: int | None = None, recompute: int = 0) -> list[Check]:
    """Run all checks of a finished folder, in a fixed order; only digests for a kind without other guarantees.

    Args:
        jobs: worker processes; all cores by default.
        recompute: for a snapshot, how many networks are traced and measured again in the sandbox.
    Raises: UserError if it has no valid manifest.
    """
    # The folder of a run has no manifest itself; only the finished folders in it have one.
    if (folder / STATE).is_file() and not (folder / FILE_NAME).exists():
        return _verify_run(folder, jobs)
    manifest = read_unchecked_manifest(folder)
    kind = KINDS.get(manifest.kind)
    if recompute and manifest.kind != "snapshot":
        raise UserError(f"{folder}: contains {article(manifest.kind)}, not a snapshot; omit --recompute")
    # Verifiers of other kinds take no such argument.
    more: dict[str, Any] = {"recompute": recompute} if recompute else {}
    if fault := find_stated_fault(manifest):
        return [check_files(folder, manifest), Check("manifest", ok=False, detail=f"cannot be checked: {fault}")]
    if kind is None:
        return [check_files(folder, manifest), *check_retired(manifest)]
    try:
        with show_steps(f"verify {folder.name}"):
            checks = kind.verify(folder, jobs=jobs, **more)
    except (MissingStatementError, *CHECK_ERRORS) as error:
        return [
            check_files(folder, manifest),
            Check(manifest.kind, ok=False, detail=f"cannot be checked: {describe(error)}"),
        ]
    # A page of wrong tables differs, too: that would report one fault twice.
    if (folder / INDEX).is_file() and all(check.ok for check in checks) and not find_retired(manifest):
        checks += run_checks("page", lambda: _check_page(folder, manifest))
    return checks


def _check_page(folder: Path, manifest: Manifest) -> Check:
    """Check that the page of a folder shows what is in its tables; other releases may show it in other words."""
    own = package_versions() | {"torch": TORCH}
    other = next(
        (name for name in ("lemur-curator", "torch") if manifest.versions.get(name, own.get(name)) != own.get(name)),
        None,
    )
    if other is not None:
        return Check(
            "page", ok=True, detail=f"not compared with the tables: {other} {manifest.versions[other]} wrote it"
        )
    page = page_of(folder, manifest)
    wrong = (
        [] if page is None or has_page(folder, page) else [f"{INDEX} or {SHARDS} shows something else than the tables"]
    )
    return check_faults("page", wrong, "shows what is in the tables")


def page_of(folder: Path, manifest: Manifest) -> Page | None:
    """Return the content of a folder's page; None for a kind without its own page."""
    kind = KINDS.get(manifest.kind)
    return None if kind is None or kind.page is None else kind.page(folder, manifest)


def _verify_run(folder: Path, jobs: int | None) -> list[Check]:
    """Run all checks of the finished folders of a `lemur demo`, each named after its folder."""
    inside = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    if not inside:
        raise UserError(f"{folder}: none of its stages is finished; run `lemur demo --out {folder}` again")
    wrong = [*foreign_page_files(folder), *(f"{name} is a link" for name in find_links(folder))]
    checks = ((part.name, check) for part in inside for check in verify_folder(part, jobs=jobs))
    own = [check_faults("page", wrong, "its script is ours")] if wrong or (folder / INDEX).is_file() else []
    return own + [replace(check, name=f"{name}: {check.name}") for name, check in checks]


def list_items(folder: Path, pattern: str = "*") -> list[ListedItem]:
    """Return the items of a finished folder with a name that matches a pattern, in the order of its tables.

    Args: pattern: as in a shell, for any name of an item; upper and lower case are equal.
    Raises: UserError if the folder is not finished, its kind has no items, or none matches.
    """
    manifest = read_manifest(folder)
    kind = KINDS.get(manifest.kind)
    if kind is None or kind.items is None:
        raise UserError(f"{folder}: contains {article(manifest.kind)}, which has no items with names")
    with reading(folder, manifest.kind):
        items = list(kind.items(folder))
    folded = pattern.casefold()
    chosen = [item for item in items if any(fnmatchcase(name.casefold(), folded) for name in item.names)]
    if items and not chosen:
        raise UserError(f"{pattern}: none of the {len(items):,} items of {folder} has such a name; try '*{pattern}*'")
    return chosen


def trace(wanted: str, folders: Sequence[Path]) -> list[FolderLink]:
    """Return the links of one row back to its source, in order.

    Args:
        wanted: a network or record id of a snapshot; a block of an extraction; the id of a conversation; `net`, the
            name of the network or one of the blocks of a training run; a run of a study; or a Python file with
            comments that name blocks, as `lemur train assemble` writes them.
        folders: the folder with the row, then its possible parents; for a file, the folders with its blocks.
    Raises: UserError if a folder is not finished, or nothing has that name.
    """
    if Path(wanted).suffix == ".py" and Path(wanted).is_file():
        return _trace_file(Path(wanted), folders)
    if not folders:
        raise UsageError(f"{wanted}: not a Python file; name its folder with --in DIR")
    manifests = {folder: read_manifest(folder) for folder in folders}
    first, manifest = folders[0], manifests[folders[0]]
    # Reversed: of two copies of a folder, the one that is named first is followed.
    digests = {sha256_file(folder / FILE_NAME): folder for folder in reversed(folders)}
    with reading(first, manifest.kind):
        traced = _kind(first, manifest).find(first, wanted)
    links = [*traced.links, manifest_link(first, manifest)]
    return links + _follow(manifest.parents, traced.codes, digests, depth=1)


def _trace_file(path: Path, folders: Sequence[Path]) -> list[FolderLink]:
    """Return the blocks that a file's comments name, each with its links in the first folder that has its code.

    Raises: UserError if it names none, or a folder is not finished.
    """
    blocks = find_inlined_blocks(read_python_file(path, "pass a Python file"))
    if not blocks:
        raise UserError(f"{path}: none of its comments names a block; pass a file written by `lemur train assemble`")
    manifests = {folder: read_manifest(folder) for folder in folders}
    links = [FolderLink("file", path.name, {"sha256": sha256_file(path)})]
    for block in blocks:
        facts: Json = {
            "slot": f"{block.slot} (from line {block.line} on)",
            "source": f"{block.block.partition('::')[0]} {block.path}",
            "lines": lines_text(*block.lines),
            "swhid": block.swhid,
            "license": block.license,
            "code": block.code_sha256,
        }
        for folder, manifest in manifests.items():
            with reading(folder, manifest.kind):
                traced = _kind(folder, manifest).find_code(folder, block.code_sha256)
            if traced is not None:
                links += [FolderLink("block", block.block, facts | {"found": str(folder)}), *traced.links]
                links.append(manifest_link(folder, manifest))
                break
        else:
            links.append(
                FolderLink("block", block.block, facts | {"found": "in none of the folders" if folders else None})
            )
    return links


def _kind(folder: Path, manifest: Manifest) -> FolderKind:
    if manifest.kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise UserError(
            f"{folder}: contains {article(manifest.kind)}, whose rows cannot be traced; pass one of {known}"
        )
    return KINDS[manifest.kind]


def _follow(
    parents: Sequence[Parent], codes: Sequence[str], digests: Mapping[str, Path], *, depth: int
) -> list[FolderLink]:
    """Return the links of the parents among the folders, each with those of its own parents; others are only named."""
    links = []
    for parent in parents:
        facts: Json = {"kind": parent.kind, "sha256": parent.sha256}
        folder = digests.get(parent.sha256)
        if folder is None:
            facts["followed"] = "no: none of the folders has this manifest; name the one that does with --in"
            links.append(FolderLink("parent", parent.name, facts, depth))
            continue
        manifest = read_manifest(folder)
        kind = _kind(folder, manifest)
        with reading(folder, manifest.kind):
            traces = [traced for code in codes if (traced := kind.find_code(folder, code)) is not None]
        facts["followed"] = f"{folder}: {len(traces)} of {len(codes)} codes are in it"
        links.append(FolderLink("parent", parent.name, facts, depth))
        if traces:
            links += [FolderLink(link.what, link.name, link.facts, depth) for traced in traces for link in traced.links]
            links.append(manifest_link(folder, manifest, depth))
            # The parents of a parent are asked for the codes that its own rows come from.
            further = list(dict.fromkeys(code for traced in traces for code in traced.codes))
            links += _follow(manifest.parents, further, digests, depth=depth + 1)
    return links
