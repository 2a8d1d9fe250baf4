"""The declared runtime: the distributions that foreign code can import, whatever else is installed.

Jobs see a folder of links to the files of these distributions, and no `site-packages`. A network that imports einops
fails in the same way with and without einops on the machine, until the user allows it: `--runtime einops`.
"""

import contextlib
import csv
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING

from lemur_core.files.atomic import scratch_folder
from lemur_core.files.cache import cache_folder, drop_damaged
from lemur_core.files.errors import NoSandboxError, UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# `packaging` is imported in functions: this module is also imported inside the sandbox, which lacks it.

#: Distributions that every network and block can import, with their dependencies.
DECLARED = ("numpy", "torch", "torchvision")

#: Named sets of further distributions, by import name. `lemur-nets`: what LEMUR's networks import besides `DECLARED`.
NAMED_SETS: Mapping[str, Mapping[str, str]] = {
    "lemur-nets": {
        "datasets": "datasets",
        "diffusers": "diffusers",
        "einops": "einops",
        "matplotlib": "matplotlib",
        "packaging": "packaging",
        "scipy": "scipy",
        "sklearn": "scikit-learn",
        "tqdm": "tqdm",
        "transformers": "transformers",
    }
}

#: Libraries of GPU builds of torch: loaded by path, never imported, and irrelevant for results on a CPU.
_LIBRARIES = ("cuda-", "nvidia-")
_LIBRARY_FOLDERS = ("cuda", "nvidia")

_BYTECODE = "__pycache__"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The installed distributions of a runtime.

    Attributes:
        versions: the version of each distribution, by normalized name, sorted.
        folders: their metadata folders; the installed files are in the same parent folder.
    """

    versions: Mapping[str, str]
    folders: Mapping[str, Path]

    def readable(self) -> list[str]:
        """Return the real files and folders that jobs must be able to read."""
        sites = dict.fromkeys(folder.parent for folder in self.folders.values())
        libraries = [str(site / name) for site in sites for name in _LIBRARY_FOLDERS if (site / name).is_dir()]
        return [*self.links().values(), *libraries]

    def links(self) -> dict[str, str]:
        """Return the target of each entry of the folder for `sys.path`."""
        return {name: str(target) for folder in self.folders.values() for name, target in _list_installed(folder)}

    def folder(self) -> Path:
        """Create the folder of links in the cache, named by the digest of its contents, and return it.

        Raises: UserError if it cannot be written.
        """
        links = self.links()
        # Else the server would write bytecode of modules that are one file next to their links, for all later servers.
        links |= {
            str(Path(name).with_name(_BYTECODE)): str(Path(real).with_name(_BYTECODE)) for name, real in links.items()
        }
        digest = hashlib.sha256(json.dumps(links, sort_keys=True).encode()).hexdigest()[:32]
        parent = cache_folder("runtime-links")
        target = parent / digest
        if _list_links(target) == links:
            return target
        if os.path.lexists(target):
            drop_damaged(target)
        with scratch_folder("links", parent=parent) as scratch:
            folder = scratch / digest
            folder.mkdir()
            for name, real in links.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).symlink_to(real)
            with contextlib.suppress(OSError):  # another process created it first
                folder.rename(target)
        return target


def _list_links(folder: Path) -> dict[str, str]:
    """Return the links in a folder and in its folders, with their targets; none if anything else is there."""
    try:
        entries = [
            inner for entry in folder.iterdir() for inner in ([entry] if entry.is_symlink() else entry.iterdir())
        ]
        return {entry.relative_to(folder).as_posix(): str(entry.readlink()) for entry in entries}
    except OSError:
        return {}


@functools.cache
def find_runtime(further: tuple[str, ...] = ()) -> Runtime:
    """Return the declared runtime as installed here, with its dependencies.

    Args: further: names of distributions, or of `NAMED_SETS`, in addition to `DECLARED`.
    Returns: versions and metadata folders by distribution, without the system's own libraries (CUDA).
    Raises: UserError if a named one is not installed; NoSandboxError if one of `DECLARED` is not.
    """
    from packaging.utils import canonicalize_name

    versions: dict[str, str] = {}
    folders: dict[str, Path] = {}
    waiting = [(name, frozenset[str]()) for name in (*expand_sets(further), *reversed(DECLARED))]
    named = {canonicalize_name(name) for name, _ in waiting}
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        key = canonicalize_name(name)
        if (key, extras) in seen or key.startswith(_LIBRARIES):
            continue
        seen.add((key, extras))
        distribution = next(iter(importlib.metadata.distributions(name=name)), None)
        if distribution is None:
            if key in DECLARED:
                raise NoSandboxError(f"{key} is not installed here; pip install {' '.join(DECLARED)}")
            if key in named:
                raise UserError(_absence(key, further))
            continue  # optional on its parent's platform; an import of it fails
        versions[key], folders[key] = distribution.version, _metadata_folder(distribution)
        waiting += [(need.name, frozenset(need.extras)) for need in read_requirements(distribution.requires, extras)]
    return Runtime(dict(sorted(versions.items())), dict(sorted(folders.items())))


@functools.cache
def find_further(name: str) -> Runtime:
    """Return a distribution and its dependencies, without those of the declared runtime: for jobs that ask for them."""
    declared, more = find_runtime().versions, find_runtime((name,))
    return Runtime(
        {other: version for other, version in more.versions.items() if other not in declared},
        {other: folder for other, folder in more.folders.items() if other not in declared},
    )


def find_absence(further: Sequence[str] = ()) -> str | None:
    """Return why no foreign code can be run here, in one line; None if the declared runtime is installed.

    Args: further: as in `find_runtime`.
    Raises: UserError if one of `further` is not installed.
    """
    try:
        find_runtime(tuple(further))
    except NoSandboxError as error:
        return str(error)
    return None


def expand_sets(names: Sequence[str]) -> tuple[str, ...]:
    """Expand the named sets among names of distributions.

    Args: names: distributions, or names of `NAMED_SETS`.
    Returns: the sorted distinct distributions, by normalized name.
    """
    from packaging.utils import canonicalize_name

    return tuple(sorted({canonicalize_name(member) for name in names for member in _members(name)}))


def option_for(package: str) -> str:
    """Return the command-line option that allows a package.

    Args: package: an import name.
    Returns: such as `--runtime lemur-nets`; empty if no named set contains the package.
    """
    return next((f"--runtime {name}" for name, members in NAMED_SETS.items() if package in members), "")


def _members(name: str) -> Iterable[str]:
    return NAMED_SETS[name].values() if name in NAMED_SETS else (name,)


def _absence(name: str, further: Sequence[str]) -> str:
    group = next((group for group in further if group in NAMED_SETS and name in _members(group)), None)
    if group is not None:
        return f"--runtime {group}: {name} is not installed here; pip install 'lemur-curator[{group}]'"
    return f"--runtime {name}: {name} is not installed here; pip install {name}"


def read_requirements(texts: Iterable[str] | None, extras: Iterable[str] = ()) -> Iterator["Requirement"]:
    """Yield the requirements of PEP 508 that apply on this machine.

    Args:
        texts: one requirement each; None is none. Invalid ones, which old releases have, are skipped, as pip does.
        extras: the extras of the distribution that are wanted.
    Returns: those without a marker, and those whose marker holds without an extra or with one of `extras`.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        # The empty extra, too: a marker that names `extra` needs a value for it.
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *sorted(extras))):
            yield requirement


def _metadata_folder(distribution: Distribution) -> Path:
    folder = getattr(distribution, "_path", None)
    if folder is None:
        raise UserError(f"{distribution.name}: not installed as files; install its wheel, so that jobs can import it")
    return Path(os.path.abspath(folder))  # noqa: PTH100 (resolve() would follow a link out of the environment)


@functools.cache
def _list_installed(metadata: Path) -> tuple[tuple[str, Path], ...]:
    """Return the entries of `site-packages` of a distribution: files, packages, parts of namespace packages."""
    site, entries = metadata.parent, {metadata.name: metadata}
    record = metadata / "RECORD"
    rows = csv.reader(record.read_text(encoding="utf-8").splitlines()) if record.is_file() else ()
    for first, *rest in (row[0].split("/") for row in rows if row):
        if first in ("..", "", _BYTECODE) or first in entries:
            continue
        whole = not rest or "." in first or (site / first / "__init__.py").is_file()
        name = first if whole else f"{first}/{rest[0]}"
        if (site / name).exists():
            entries[name] = site / name
    return tuple(sorted(entries.items()))
