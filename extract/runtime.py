"""The declared runtime of blocks: a folder with the distributions that they require and this interpreter lacks.

Wheels only, fetched by `pip download` with the user's own settings, and unpacked: none of their code is run. The folder
is kept in the cache under the digest of what it holds. It is for the end of `sys.path` inside the sandbox, where
nothing in it can take the place of what the interpreter has.
"""

import hashlib
import importlib.metadata
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from extract.runtime_wheels import Distribution, fetch_wheel, files_folder, runtime_cache
from extract.sources.store import workspace
from lemur_core.files.errors import RetryableError, UserError

#: What every block may import; never fetched, and not looked for in what other distributions need.
GIVEN = frozenset({"numpy", "torch", "torchvision", "triton"})
_GIVEN_PREFIX = "nvidia-"
#: The same modules without a graphical interface, whose system libraries a server does not have.
_HEADLESS = {
    "opencv-contrib-python": "opencv-contrib-python-headless",
    "opencv-python": "opencv-python-headless",
}


@dataclass(frozen=True, slots=True)
class Runtime:
    """What blocks can import besides the standard library.

    Attributes:
        folder: to append to `sys.path`; None if nothing had to be fetched, or could be.
        installed: what lies in the folder, as `name==version`, in order.
        unavailable: names that cannot be had, each with the reason; in order.
        present: what was asked for and the interpreter has, as `name==version`, in order.
    """

    folder: Path | None
    installed: tuple[str, ...]
    unavailable: tuple[tuple[str, str], ...]
    present: tuple[str, ...] = ()


def runtime_for(requires: Sequence[str], known: Sequence[str] = ()) -> Runtime:
    """A runtime with these distributions and what they need; made once, then found in the cache.

    `opencv-python` is had as `opencv-python-headless`, which holds the same modules. Once the index could not be
    reached, only what the cache holds is used: a run goes on without the rest, and the next one tries again.

    Args:
        requires: PEP 508 requirements, in any order.
        known: names of distributions that are not to be fetched, nor what they need: had otherwise, or unwanted, as the
            sources are that the blocks come from.
    """
    names = {canonicalize_name(name) for name in known}
    collected = _Collected(names | {_HEADLESS[name] for name in names & _HEADLESS.keys()})
    collected.collect(requires)
    picked = sorted(collected.picked.values(), key=lambda distribution: distribution.id)
    return Runtime(
        _merge(picked) if picked else None,
        tuple(sorted(f"{distribution.name}=={distribution.version}" for distribution in picked)),
        tuple(sorted(collected.unavailable.items())),
        tuple(sorted(collected.present)),
    )


@dataclass(slots=True)
class _Collected:
    """What the requirements, and those of what they bring, come to."""

    known: set[str]
    picked: dict[str, Distribution] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    specifiers: dict[str, SpecifierSet] = field(default_factory=dict)
    offline: str = ""

    def collect(self, requires: Iterable[str]) -> None:
        """Follow requirements, breadth first."""
        queue = deque((text, "") for text in sorted(requires))
        seen: set[tuple[str, str]] = set()
        while queue:
            text, parent = queue.popleft()
            try:
                requirement = _headless(Requirement(text))
            except InvalidRequirement:
                if not parent:
                    self.unavailable[text] = "not a requirement of PEP 508; write NAME or NAME>=VERSION"
                continue
            if (str(requirement), parent) in seen or not _is_wanted(requirement):
                continue
            seen.add((str(requirement), parent))
            distribution = self._resolve(requirement, parent)
            if distribution is not None:
                queue.extend((need, distribution.name) for need in _needs(distribution, requirement.extras))

    def _resolve(self, requirement: Requirement, parent: str) -> Distribution | None:
        """The distribution to unpack for a requirement; None if there is none to unpack, or it cannot be had."""
        name = canonicalize_name(requirement.name)
        if name in self.known or name in GIVEN or name.startswith(_GIVEN_PREFIX):
            return None
        because = f"; {parent} needs it" if parent else ""
        version = _installed_version(requirement.name)
        if version is not None:
            if not parent:
                self.present.add(f"{name}=={version}")
            if not requirement.specifier.contains(version, prereleases=True):
                reason = f"{version} is installed here, not {requirement.specifier}"
                self.unavailable.setdefault(name, reason + because)
            return None
        if requirement.url is not None:
            self.unavailable.setdefault(name, f"only named packages are fetched, not {requirement.url}{because}")
            return None
        return self._fetch(name, requirement.specifier, because)

    def _fetch(self, name: str, specifier: SpecifierSet, because: str) -> Distribution | None:
        specifier &= self.specifiers.get(name, SpecifierSet())
        older = self.picked.get(name)
        if older is not None and specifier.contains(older.version, prereleases=True):
            self.specifiers[name] = specifier
            return older
        try:
            found = fetch_wheel(name, specifier, cached_only=bool(self.offline))
        except RetryableError as error:
            self.offline = str(error)
            self.unavailable.setdefault(name, f"{error}{because}")
            return None
        except UserError as error:
            reason = self.offline or str(error)
            self.unavailable.setdefault(name, f"{reason}{because}")
            return None
        self.specifiers[name] = specifier
        self.picked[name] = found
        return found


def _headless(requirement: Requirement) -> Requirement:
    other = _HEADLESS.get(canonicalize_name(requirement.name))
    if other is not None and _installed_version(requirement.name) is None:
        requirement.name = other
    return requirement


def _is_wanted(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _needs(distribution: Distribution, extras: Iterable[str]) -> Iterator[str]:
    """The requirements that hold here for a distribution with these extras, without their markers."""
    for text in distribution.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # of a release older than the standard; pip ignores it as well
            continue
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *sorted(extras))):
            requirement.marker = None
            yield str(requirement)


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _merge(distributions: Sequence[Distribution]) -> Path:
    """One folder with the files of all of them; of two at the same place, the first one's stays.

    Raises: UserError if it cannot be written.
    """
    digest = hashlib.sha256("\n".join(distribution.id for distribution in distributions).encode()).hexdigest()
    target = runtime_cache("folders") / digest[:32]
    if target.is_dir():
        return target
    with workspace() as work:
        try:
            for distribution in distributions:
                _link_files(files_folder(distribution), work / digest)
            (work / digest).rename(target)
        except OSError as error:
            if not target.is_dir():  # else another process was faster
                raise UserError(f"{target}: cannot be written: {error.strerror}; delete it and run again") from error
    return target


def _link_files(source: Path, target: Path) -> None:
    for folder, _, names in os.walk(source):
        inner = target / Path(folder).relative_to(source)
        inner.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            file = inner / name
            if file.exists():
                continue
            try:
                file.hardlink_to(Path(folder) / name)
            except OSError:  # a file system without hard links
                shutil.copyfile(Path(folder) / name, file)
