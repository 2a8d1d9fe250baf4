"""Any finished folder: its checks, and the chain from one of its rows back to source lines.

The chain is read from finished folders alone. Parents are found among the given folders by the digest of their
manifest, never by name, and asked for the same code by its SHA-256.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import curate.folder.trace
import curate.folder.verify
import extract.folder.verify
import lemur.experts.folder
import lemur.synthesis.folder.kinds
import train.folder.trace
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import article
from manifests.folders.checks import Check, check_files
from manifests.folders.kinds import FolderKind, Link, lines_text, manifest_link
from manifests.folders.manifest import FILE_NAME, Manifest, Parent, read_manifest
from manifests.provenance import inlined_blocks

#: What says how far the stages of a `lemur run` are.
STATE = "stages.json"

#: All kinds of folder whose rows and guarantees are known.
KINDS: Mapping[str, FolderKind] = {
    **extract.folder.verify.KINDS,
    **curate.folder.trace.KINDS,
    **train.folder.trace.KINDS,
    **lemur.synthesis.folder.kinds.KINDS,
    **lemur.experts.folder.KINDS,
}


def verify_folder(folder: Path, *, against: Sequence[Path] = (), jobs: int | None = None) -> list[Check]:
    """All checks of a finished folder, in a fixed order; digests alone for a kind without guarantees of its own.

    Args:
        against: what a delta was made against, where that does not lie beside it.
        jobs: worker processes; all cores by default.

    Raises: UserError if it holds no valid manifest, or is no delta to one of `against`.
    """
    if (folder / STATE).is_file() and not (folder / FILE_NAME).exists():
        return _verify_run(folder, jobs)
    manifest = read_manifest(folder)
    kind = KINDS.get(manifest.kind)
    if against:
        if manifest.kind != "snapshot":
            raise UserError(f"{folder}: holds {article(manifest.kind)}, no delta; leave --against out")
        return curate.folder.verify.verify(folder, against=against, jobs=jobs)
    return kind.verify(folder, jobs=jobs) if kind is not None else [check_files(folder, manifest)]


def _verify_run(folder: Path, jobs: int | None) -> list[Check]:
    """All checks of the finished folders in that of a `lemur run`, each named after its folder."""
    inside = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    if not inside:
        raise UserError(f"{folder}: no stage of it is finished; run `lemur run --out {folder}` again")
    found = ((one.name, check) for one in inside for check in verify_folder(one, jobs=jobs))
    return [replace(check, name=f"{name}: {check.name}") for name, check in found]


def trace(wanted: str, folders: Sequence[Path]) -> list[Link]:
    """The chain of one row, in order.

    Args:
        wanted: a network or record id of a snapshot, a block of an extraction, the id of a conversation; of a training
            run `net`, the name of its network or one of its blocks; of a study a run in it; a Python file, the comments
            of which name blocks, as `lemur migrate` and `lemur train assemble` write it.
        folders: the folder that it is in, then those that may be among what that was made from; of a file those that
            its blocks may be in.

    Raises: UserError if a folder is not finished, or nothing is called so.
    """
    if Path(wanted).suffix == ".py" and Path(wanted).is_file():
        return _trace_file(Path(wanted), folders)
    if not folders:
        raise UsageError(f"{wanted}: is no Python file; name the folder that it is in with --in DIR")
    manifests = {folder: read_manifest(folder) for folder in folders}
    first, manifest = folders[0], manifests[folders[0]]
    digests = {sha256_file(folder / FILE_NAME): folder for folder in reversed(folders)}
    found = _kind(first, manifest).find(first, wanted)
    links = [*found.links, manifest_link(first, manifest)]
    return links + _follow(manifest.parents, found.codes, digests, depth=1)


def _trace_file(path: Path, folders: Sequence[Path]) -> list[Link]:
    """The blocks that a file's comments name, each with its chain in the first folder that holds its code.

    Raises: UserError if it names none, or a folder is not finished.
    """
    try:
        blocks = inlined_blocks(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}; give a Python file") from error
    if not blocks:
        raise UserError(f"{path}: no comment in it names a block; give a file that `lemur migrate` wrote")
    manifests = {folder: read_manifest(folder) for folder in folders}
    links = [Link("file", path.name, {"sha256": sha256_file(path)})]
    for block in blocks:
        facts: dict[str, Any] = {
            "site": f"{block.slot} (from line {block.line} on)",
            "source": f"{block.block.partition('::')[0]} {block.path}",
            "lines": lines_text(*block.lines),
            "swhid": block.swhid,
            "licence": block.license,
            "code": block.code_sha256,
        }
        for folder, manifest in manifests.items():
            found = _kind(folder, manifest).find_code(folder, block.code_sha256)
            if found is not None:
                links += [Link("block", block.block, facts | {"found": str(folder)}), *found.links]
                links.append(manifest_link(folder, manifest))
                break
        else:
            links.append(Link("block", block.block, facts | {"found": "in none of the folders" if folders else None}))
    return links


def _kind(folder: Path, manifest: Manifest) -> FolderKind:
    if manifest.kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise UserError(f"{folder}: holds {article(manifest.kind)}, whose rows have no chain; give one of {known}")
    return KINDS[manifest.kind]


def _follow(parents: Sequence[Parent], codes: Sequence[str], digests: Mapping[str, Path], *, depth: int) -> list[Link]:
    """The links of the parents that are at hand, each with those of its own parents; the others are only named."""
    links = []
    for parent in parents:
        facts: dict[str, Any] = {"kind": parent.kind, "sha256": parent.sha256}
        folder = digests.get(parent.sha256)
        if folder is None:
            facts["followed"] = "no: none of the folders has this manifest; name the one that does with --in"
            links.append(Link("parent", parent.name, facts, depth))
            continue
        manifest = read_manifest(folder)
        kind = _kind(folder, manifest)
        found = [traced for code in codes if (traced := kind.find_code(folder, code)) is not None]
        facts["followed"] = f"{folder}: {len(found)} of {len(codes)} codes are in it"
        links.append(Link("parent", parent.name, facts, depth))
        if found:
            links += [Link(link.what, link.name, link.facts, depth) for traced in found for link in traced.links]
            links.append(manifest_link(folder, manifest, depth))
            further = list(dict.fromkeys(code for traced in found for code in traced.codes))
            links += _follow(manifest.parents, further, digests, depth=depth + 1)
    return links
