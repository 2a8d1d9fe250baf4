"""What a package knows of the kinds of folder that it writes: how one is checked, and how a row of it is traced back.

Each of `extract`, `curate` and `train` states its kinds as `KINDS`; `lemur` puts them together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur_core.files.atomic import sha256_file
from lemur_core.files.markdown import shown
from manifests.folders.checks import Check
from manifests.folders.frame import Page
from manifests.folders.manifest import FILE_NAME, Manifest

_LABEL, _FACT = 11, 13  # columns


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain back to source lines. `depth` counts the folders that were gone back through."""

    what: str
    name: str
    facts: Mapping[str, Any]
    depth: int = 0

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        return {"link": self.what, "name": self.name, "depth": self.depth, **self.facts}

    def lines(self) -> list[str]:
        """To print as they are: what it is and its name, then its facts, each on a line."""
        stated = [(key, _text(value)) for key, value in self.facts.items() if value not in (None, "", [], {})]
        facts = [f"  {key.replace('_', ' '):<{_FACT}} {text}" for key, text in stated]
        return [shown(f"{'  ' * self.depth}{line}") for line in (f"{self.what:<{_LABEL}}{self.name}", *facts)]


@dataclass(frozen=True, slots=True)
class Traced:
    """What one folder knows of a row: its links, and the SHA-256 of the codes in it that its parents may hold."""

    links: tuple[Link, ...]
    codes: tuple[str, ...]


#: All checks of one kind of folder, in a fixed order; takes the folder, and `jobs` by name. Raises: UserError if there
#: is no valid manifest.
Verifier = Callable[..., list[Check]]


@dataclass(frozen=True, slots=True)
class FolderKind:
    """One kind of finished folder.

    Attributes:
        verify: all its checks.
        find: what is called so in the folder. Raises UserError with near names if nothing is.
        find_code: what has the code of this SHA-256 there.
        page: what there is to see of it; counts and files, where that is None.
    """

    verify: Verifier
    find: Callable[[Path, str], Traced]
    find_code: Callable[[Path, str], Traced | None]
    page: Callable[[Path, Manifest], Page] | None = None


def manifest_link(folder: Path, manifest: Manifest, depth: int = 0) -> Link:
    """The manifest of a folder, as a link."""
    facts = {"kind": manifest.kind, "sha256": sha256_file(folder / FILE_NAME), "versions": manifest.versions}
    return Link("manifest", str(folder / FILE_NAME), facts, depth)


def lines_text(first: int, last: int) -> str:
    """`7` or `7-9`."""
    return str(first) if first == last else f"{first}-{last}"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
