"""The interface of a kind of folder: its format, its checks, its page, and how to trace one of its rows back.

Each package lists the kinds that it writes as `KINDS`; `lemur` combines them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import sha256_file
from lemur_core.files.markdown import make_visible
from manifests.folders.checks import Check
from manifests.folders.formats import FolderFormat
from manifests.folders.frame import Page
from manifests.folders.manifest import FILE_NAME, Manifest

_LABEL, _FACT = 11, 13  # columns


@dataclass(frozen=True, slots=True)
class FolderLink:
    """One step of a chain back to source lines. `depth` counts the parent folders traversed."""

    what: str
    name: str
    facts: Mapping[str, Any]
    depth: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the link as a JSON object."""
        return {"link": self.what, "name": self.name, "depth": self.depth, **self.facts}

    def lines(self) -> list[str]:
        """Return the printed lines: kind and name, then one fact per line."""
        stated = [(key, _text(value)) for key, value in self.facts.items() if value not in (None, "", [], {})]
        facts = [f"  {key.replace('_', ' '):<{_FACT}} {text}" for key, text in stated]
        return [make_visible(f"{'  ' * self.depth}{line}") for line in (f"{self.what:<{_LABEL}}{self.name}", *facts)]


@dataclass(frozen=True, slots=True)
class RowTrace:
    """A folder's information about a row: its links, and the SHA-256 of codes in it that its parents may hold."""

    links: tuple[FolderLink, ...]
    codes: tuple[str, ...]


#: All checks of one kind of folder, in a fixed order; called with the folder, and `jobs` by name. Raises: UserError if
#: there is no valid manifest.
Verifier = Callable[..., list[Check]]


@dataclass(frozen=True, slots=True)
class FolderKind:
    """One kind of finished folder.

    Attributes:
        format: its name and its tables.
        verify: all its checks.
        find: finds an item of the folder by name. Raises UserError with similar names if there is none.
        find_code: finds the item whose code has this SHA-256.
        page: the content of its page; None for counts and files only.
    """

    format: FolderFormat
    verify: Verifier
    find: Callable[[Path, str], RowTrace]
    find_code: Callable[[Path, str], RowTrace | None]
    page: Callable[[Path, Manifest], Page] | None = None


def manifest_link(folder: Path, manifest: Manifest, depth: int = 0) -> FolderLink:
    """Return the manifest of a folder as a link of a chain.

    Args:
        folder, manifest: the folder, and its manifest as read.
        depth: how many parent folders the chain has passed.

    Returns: a link with kind, SHA-256 of the file, and versions.
    """
    facts = {"kind": manifest.kind, "sha256": sha256_file(folder / FILE_NAME), "versions": manifest.versions}
    return FolderLink("manifest", str(folder / FILE_NAME), facts, depth)


def lines_text(first: int, last: int) -> str:
    """Return a range of lines as text.

    Args: first, last: line numbers from 1, both inclusive.
    Returns: `7` or `7-9`.
    """
    return str(first) if first == last else f"{first}-{last}"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
