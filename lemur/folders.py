"""Verify, list and show any finished folder: each item with its chain back to source lines.

A chain reads only finished folders. A parent is identified among the folders by the digest of its manifest, never by
name, and searched for the same code by SHA-256.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

import curate.kinds
import extract.folder.verify
import lemur.experts.facts
import lemur.export.records
import lemur.synthesis.folder
import train.ablation
from lemur_core.files import Json
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.foreign import read_python_file
from lemur_core.files.markdown import article, make_visible
from lemur_core.files.progress import show_steps
from manifests.folders.kinds import (
    Check,
    FolderLink,
    FoundItem,
    Kind,
    ListedItem,
    check_faults,
    check_files,
    describe_inlined,
    find_links,
    is_foreign,
    manifest_link,
)
from manifests.folders.kinds import verify_folder as verify_kind
from manifests.folders.manifest import FILE_NAME, Manifest, Parent, read_manifest
from manifests.folders.tables import reading
from manifests.provenance import find_inlined_blocks

#: The file that makes a folder the output of `lemur demo`: its settings.
DEMO = "demo.json"

#: All kinds of folder.
KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for package in (
        extract.folder.verify,
        curate.kinds,
        train.ablation,
        lemur.synthesis.folder,
        lemur.experts.facts,
        lemur.export.records,
    )
    for kind in package.KINDS
}


def verify_folder(folder: Path, *, jobs: int | None = None) -> list[Check]:
    """Run all checks of a finished folder, in a fixed order.

    Args: jobs: worker processes; all cores by default.
    Raises: UserError if it has no valid manifest.
    """
    # The folder of a demo has no manifest itself; only the finished folders in it have one.
    if (folder / DEMO).is_file() and not (folder / FILE_NAME).exists():
        return _verify_demo(folder, jobs)
    manifest = read_manifest(folder)
    kind = KINDS.get(manifest.kind)
    if kind is None:
        names = [item.path for item in manifest.outputs]
        like = [known for known in KINDS if names and not any(is_foreign(known, name) for name in names)]
        wrong = [
            f"{manifest.kind} is none that this release knows, and the files are those of {known}" for known in like
        ]
        return [
            check_files(folder, manifest),
            check_faults("kind", wrong, f"{manifest.kind}: only digests are checked"),
        ]
    with show_steps(f"verify {folder.name}"):
        return verify_kind(kind, folder, jobs=jobs)


def _verify_demo(folder: Path, jobs: int | None) -> list[Check]:
    """Run all checks of the finished folders of a `lemur demo`, each named after its folder."""
    inside = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    if not inside:
        raise UserError(f"{folder}: none of its stages is finished; run `lemur demo --out {folder}` again")
    wrong = [f"{name} is a link" for name in find_links(folder)]
    checks = ((part.name, check) for part in inside for check in verify_folder(part, jobs=jobs))
    own = [check_faults("links", wrong, "")] if wrong else []
    return own + [replace(check, name=f"{name}: {check.name}") for name, check in checks]


def list_items(folder: Path, pattern: str = "*") -> list[ListedItem]:
    """Return the items of a finished folder with a name that matches a pattern, in the order of its tables.

    Args: pattern: as in a shell, for any name of an item; upper and lower case are equal.
    Raises: UserError if the folder is not finished, its kind has no items, or none matches.
    """
    manifest = read_manifest(folder)
    kind = KINDS.get(manifest.kind)
    if kind is None or not (kind.items or any(table.named for table in kind.tables)):
        raise UserError(f"{folder}: contains {article(manifest.kind)}, which has no items with names")
    with reading(folder, manifest.kind):
        found = list(kind.list_items(folder))
    items = [item for item in found if item.listed] or found  # of a run without blocks, the run
    folded = pattern.casefold()
    chosen = [item for item in items if any(fnmatchcase(name.casefold(), folded) for name in item.names)]
    if not chosen and (items or pattern != "*"):
        near = f"'*{pattern.strip('*')}*'"
        raise UserError(f"{pattern}: none of the {len(items):,} items of {folder} has such a name; try {near}")
    return chosen


def show(wanted: str, folders: Sequence[Path]) -> FoundItem:
    """Return what the first folder knows about an item, with its whole chain back to source lines.

    Args:
        wanted: a name, an id or its beginning; the id of a conversation; `net` for the network of a training run; or a
            Python file with comments that name blocks, as `lemur train assemble` writes them.
        folders: the folder with the item, then its possible parents; for a file, the folders with its blocks.
    Raises: UserError if a folder is not finished, or nothing has that name.
    """
    if Path(wanted).suffix == ".py" and Path(wanted).is_file():
        return FoundItem(tuple(_trace_file(Path(wanted), folders)))
    if not folders:
        raise UsageError(f"{wanted}: name its folder with --in DIR")
    manifests = {folder: read_manifest(folder) for folder in folders}
    first, manifest = folders[0], manifests[folders[0]]
    # Reversed: of two copies of a folder, the one that is named first is followed.
    digests = {sha256_file(folder / FILE_NAME): folder for folder in reversed(folders)}
    with reading(first, manifest.kind):
        found = _kind(first, manifest).find_item(first, wanted)
    parents = _follow(manifest.parents, found.codes, digests, depth=1)
    return replace(found, links=(*found.links, manifest_link(first, manifest), *parents))


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
        facts = describe_inlined(block)
        for folder, manifest in manifests.items():
            traced = _find_code(folder, manifest, block.code_sha256)
            if traced is not None:
                links += [FolderLink("block", block.block, facts | {"found": str(folder)}), *traced.links]
                links.append(manifest_link(folder, manifest))
                break
        else:
            links.append(
                FolderLink("block", block.block, facts | {"found": "in none of the folders" if folders else None})
            )
    return links


def _kind(folder: Path, manifest: Manifest) -> Kind:
    if manifest.kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise UserError(f"{folder}: contains {article(manifest.kind)}, which has no items; pass one of {known}")
    return KINDS[manifest.kind]


def _find_code(folder: Path, manifest: Manifest, sha256: str) -> FoundItem | None:
    with reading(folder, manifest.kind):
        return _kind(folder, manifest).find_code_item(folder, sha256)


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
        traces = [traced for code in codes if (traced := _find_code(folder, manifest, code)) is not None]
        facts["followed"] = f"{folder}: {len(traces)} of {len(codes)} codes are in it"
        links.append(FolderLink("parent", parent.name, facts, depth))
        if traces:
            links += [FolderLink(link.what, link.name, link.facts, depth) for traced in traces for link in traced.links]
            links.append(manifest_link(folder, manifest, depth))
            # The parents of a parent are asked for the codes that its own rows come from.
            further = list(dict.fromkeys(code for traced in traces for code in traced.codes))
            links += _follow(manifest.parents, further, digests, depth=depth + 1)
    return links


def print_item(item: FoundItem, *, as_json: bool, drawn: Path | None = None) -> None:
    """Print an item: as JSON, or as lines and its code, in color on a terminal. Args: drawn: the file of its graph."""
    if as_json:
        more = {} if drawn is None else {"drawn": str(drawn)}
        print(json.dumps({**item.facts, **more, "chain": [link.to_json() for link in item.links]}, indent=2))
        return
    print("\n".join(_lines(item)))
    if item.code is None:
        return
    print()
    if sys.stdout.isatty():
        # Foreign code: the terminal must not obey its control characters.
        safe = "\n".join(make_visible(line) for line in item.code.rstrip("\n").split("\n"))
        Console().print(Syntax(safe, "python", theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        print(item.code, end="")


def _lines(item: FoundItem) -> Iterator[str]:
    """Yield what it is, and the chain without a first link that says the same."""
    yield from item.lines
    if item.lines:
        yield ""
    for link in item.links[1:] if item.lines else item.links:
        yield from link.lines()
