"""`lemur trace`: the chain from one row of a finished folder back to source lines, told from finished folders alone.

A folder's tracer tells what the row is and where that is from, as far as the folder knows. Parents are found among the
given folders by the digest of their manifest, never by name, and asked for the same code by its SHA-256.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article, shown
from manifests.manifest import FILE_NAME, Manifest, Parent, read_manifest

#: Who traces a row, by the kind of the folder.
_TRACERS = {
    "snapshot": "manifests.trace_snapshot",
    "extraction": "manifests.trace_extraction",
    "run": "manifests.trace_run",
    "ablation": "manifests.trace_study",
    "search": "manifests.trace_study",
}
_LABEL, _FACT = 11, 13  # columns


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain. `depth` counts the folders that were gone back through."""

    what: str
    name: str
    facts: Mapping[str, Any]
    depth: int = 0

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        return {"link": self.what, "name": self.name, "depth": self.depth, **self.facts}

    def lines(self) -> list[str]:
        """To print as they are: what it is and its name, then its facts, each on a line."""
        told = [(key, _text(value)) for key, value in self.facts.items() if value not in (None, "", [], {})]
        facts = [f"  {key.replace('_', ' '):<{_FACT}} {text}" for key, text in told]
        return [shown(f"{'  ' * self.depth}{line}") for line in (f"{self.what:<{_LABEL}}{self.name}", *facts)]


@dataclass(frozen=True, slots=True)
class Traced:
    """What one folder knows of a row: its links, and the SHA-256 of the codes in it that its parents may hold."""

    links: tuple[Link, ...]
    codes: tuple[str, ...]


class Tracer(Protocol):
    """Knows the rows of one kind of folder: a module with these two functions."""

    def find(self, folder: Path, wanted: str) -> Traced:
        """What is called so there. Raises: UserError if nothing is, with near names."""
        ...

    def find_code(self, folder: Path, sha256: str) -> Traced | None:
        """What has the code of this digest there."""
        ...


def trace(wanted: str, folders: Sequence[Path]) -> list[Link]:
    """The chain of one row, in order.

    Args:
        wanted: a network or record id of a snapshot, a block of an extraction, the id of a conversation; of a training
            run `net`, the name of its network or one of its blocks; of a study a run in it.
        folders: the folder that it is in, then those that may be among what that was made from.

    Raises: UserError if a folder is not finished, or nothing is called so.
    """
    manifests = {folder: read_manifest(folder) for folder in folders}
    first, manifest = folders[0], manifests[folders[0]]
    digests = {sha256_file(folder / FILE_NAME): folder for folder in reversed(folders)}
    found = _tracer(first, manifest).find(first, wanted)
    links = [*found.links, manifest_link(first, manifest)]
    return links + _follow(manifest.parents, found.codes, digests, depth=1)


def manifest_link(folder: Path, manifest: Manifest, depth: int = 0) -> Link:
    """The manifest of a folder, as a link."""
    facts = {"kind": manifest.kind, "sha256": sha256_file(folder / FILE_NAME), "versions": manifest.versions}
    return Link("manifest", str(folder / FILE_NAME), facts, depth)


def lines_text(first: int, last: int) -> str:
    """`7` or `7-9`."""
    return str(first) if first == last else f"{first}-{last}"


def _tracer(folder: Path, manifest: Manifest) -> Tracer:
    if manifest.kind not in _TRACERS:
        known = ", ".join(sorted(_TRACERS))
        raise UserError(f"{folder}: holds {article(manifest.kind)}, whose rows have no chain; give one of {known}")
    tracer: Tracer = importlib.import_module(_TRACERS[manifest.kind])
    return tracer


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
        tracer = _tracer(folder, manifest)
        found = [traced for code in codes if (traced := tracer.find_code(folder, code)) is not None]
        facts["followed"] = f"{folder}: {len(found)} of {len(codes)} codes are in it"
        links.append(Link("parent", parent.name, facts, depth))
        if found:
            links += [Link(link.what, link.name, link.facts, depth) for traced in found for link in traced.links]
            links.append(manifest_link(folder, manifest, depth))
            further = list(dict.fromkeys(code for traced in found for code in traced.codes))
            links += _follow(manifest.parents, further, digests, depth=depth + 1)
    return links


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
