"""Requirements of blocks besides the declared runtime: a folder with these distributions in the required versions.

pip downloads their wheels, or sdists where there is no wheel and nothing to compile; they are unpacked without running
any of their code. The folder is cached under the digest of its contents and is independent of other packages on this
machine. It is appended to `sys.path` inside the sandbox, so that nothing in it can shadow the declared runtime. The
originals that blocks are compared with are fetched in the same way, separately for each source.
"""

import contextlib
import glob
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import IO

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from extract.proofs.sdists import read_sdist, remembering_absence
from extract.resolve.distributions import find_extra, find_requirement
from extract.sources import PackageSource, walk
from extract.sources.contents import (
    MAX_FILE_BYTES,
    MAX_TOTAL_BYTES,
    is_about_code,
    is_safe,
    is_whole,
    keep_files,
    place,
    read_record,
    record,
    workspace,
)
from extract.sources.git import others_of
from extract.sources.metadata import PackageFacts, read_facts
from extract.sources.package import is_plain, module_path
from lemur_core.files.atomic import sha256_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.foreign import check_growth, may_hold_secrets
from lemur_core.files.pip import AbsentError, NoWheelError, UndatedError, check_day, download
from lemur_core.files.progress import note
from lemur_core.sandbox.runtime import DECLARED, find_runtime, read_requirements
from manifests.provenance import is_guess

#: Packages that every block may import; never fetched, also not as dependencies.
PROVIDED = frozenset({*DECLARED, "triton"})
#: Names of the libraries of CUDA, which PyTorch brings or the machine has; they are large, and hold no Python.
#: Other packages of that maker, such as `nvidia-cutlass-dsl`, are fetched as any other.
_CUDA = re.compile(
    r"nvidia-(?:cublas|cuda-(?:cccl|crt|cupti|nvcc|nvrtc|nvtx|runtime|culibos)|cudnn|cufft|cufile|curand|cusolver|cusparse"
    r"|cusparselt|nccl|npp|nvfatbin|nvjitlink|nvjpeg|nvml-dev|nvptxcompiler|nvshmem|nvtx|nvvm)(?:-cu\d+)?"
)
#: Variants without a graphical interface, which needs system libraries that servers lack.
_HEADLESS = {"opencv-contrib-python": "opencv-contrib-python-headless", "opencv-python": "opencv-python-headless"}

#: Limits for one distribution: the wheel, and its unpacked files.
MAX_WHEEL_BYTES = 300 << 20
MAX_UNPACKED_BYTES = 600 << 20
_MAX_MEMBERS = 50_000
_TOO_LARGE = f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB or {_MAX_MEMBERS:,} files, the limits"
_MAX_SECONDS = 600.0
_COMPILE_SECONDS = 300.0

_DAY: ContextVar[str | None] = ContextVar("day", default=None)

#: Part of the cache's path; to be changed together with the way that wheels are unpacked.
_FORMAT = "v1"


@dataclass(frozen=True, slots=True)
class BlockRuntime:
    """The distributions that blocks can import besides the standard library.

    Attributes:
        folder: to append to `sys.path`; None if nothing was fetched.
        installed: distributions in the folder, as `name==version`, in order.
        unavailable: names that are unavailable, or not in the required version, each with the reason; in order.
        without_package: the normalized names of those that do not contain the package they were fetched for.
        days: within `releases_of`, the day of each of `installed`: the one asked for, or `today` with the reason.
    """

    folder: Path | None = None
    installed: tuple[str, ...] = ()
    unavailable: tuple[tuple[str, str], ...] = ()
    without_package: frozenset[str] = frozenset()
    days: tuple[tuple[str, str], ...] = ()

    @property
    def folders(self) -> list[Path]:
        """A list with the folder, if there is one."""
        return [] if self.folder is None else [self.folder]


@contextlib.contextmanager
def releases_of(day: str | None) -> Iterator[None]:
    """Have this module take the releases of a day within the context, where they can be used here; None for today's.

    Raises: UsageError as `check_day`.
    """
    if day is not None:
        check_day(day)
    token = _DAY.set(day)
    try:
        yield
    finally:
        _DAY.reset(token)


def runtime_for(
    requires: Sequence[str],
    known: Sequence[str] = (),
    packages: Mapping[str, Collection[str]] | None = None,
    *,
    incomplete: bool = False,
) -> BlockRuntime:
    """Return a runtime with these distributions and their dependencies, created on first use and then cached.

    `opencv-python` is replaced by `opencv-python-headless`, which has the same modules. If there is no wheel of the
    required version, the newest version is used and listed in `unavailable`. A distribution that the declared runtime
    has in another version than required is fetched, too, for modules that the runtime's version lacks, such as
    `pkg_resources`. Once the index cannot be reached, only the cache is used: this run continues without the missing
    distributions, and the next run tries again.

    Args:
        requires: PEP 508 requirements, in any order.
        known: names of distributions that are not fetched, nor their dependencies, because they are available already
            or unwanted, like the sources of the blocks.
        packages: by the normalized name of a required distribution, the packages that are imported from it; one that
            contains none of them is somebody else's, and is not used.
        incomplete: of a release that would have to be compiled, provide its modules in Python.
    """
    names = {canonicalize_name(name) for name in known}
    needed = {_HEADLESS.get(name, name): imports for name, imports in (packages or {}).items()}
    collected = _Resolver(names | {_HEADLESS[name] for name in names & _HEADLESS.keys()}, needed, incomplete)
    collected.collect(requires)
    picked = sorted(collected.picked.values(), key=lambda distribution: distribution.id)
    return BlockRuntime(
        _merge(picked) if picked else None,
        tuple(sorted(f"{distribution.name}=={distribution.version}" for distribution in picked)),
        tuple(sorted(collected.unavailable.items())),
        frozenset(collected.without_package),
        tuple(sorted((f"{item.name}=={item.version}", collected.days[item.name]) for item in picked if collected.day)),
    )


def original_folders(source: PackageSource) -> tuple[Path, ...]:
    """Return folders to prepend to `sys.path` to import the classes of a source, with their dependencies.

    A released package is imported from its wheel if there is one, any other source from a copy of what that needs.
    Packages of the declared runtime (torch, torchvision) need no folders.
    """
    name, _, version = source.name.partition("@")
    if name in PROVIDED:
        return ()
    if source.kind == "package":
        runtime = runtime_for([f"{name}=={version}"])
        if runtime.folder is not None and any(item.partition("==")[0] == name for item in runtime.installed):
            return (runtime.folder,)
    root = source.root if source.kind == "package" else copy_importable(source)
    # Behind the root: stated folders may hold modules of any name.
    folders = [folder for folder, package in source.roots if folder and not package]
    for file in source.files:  # `packages/vision/src`, of `packages/vision/src/vis/gate.py`, which is `vis.gate`
        above, found, _ = f"/{file.path}".rpartition(f"/{file.module.replace('.', '/')}")
        folders += [above[1:]] * bool(found and above)
    own = (root / folder for folder in dict.fromkeys(folders))
    return (root, *filter(Path.is_dir, own), *runtime_for(source.requires).folders)


def extra_folders(source: PackageSource, package: str) -> list[Path]:
    """Return a folder with a package that a source requires for one of its extras, or that is generally known.

    What would have to be compiled is left out.

    Args: package: an import name.
    Returns: nothing if nobody knows the package's distribution.
    """
    requirement = find_extra(source.requires, package) or find_requirement(package, ())
    return [] if is_guess(requirement) else runtime_for([requirement], incomplete=True).folders


@dataclass(frozen=True, slots=True)
class Distribution:
    """A released distribution, unpacked; `digest` is the SHA-256 of its wheel."""

    name: str
    version: str
    digest: str
    requires: tuple[str, ...]

    @property
    def id(self) -> str:
        """The name of its folder in the cache."""
        return f"{self.name}-{self.version}-{self.digest[:16]}"

    @property
    def folder(self) -> Path:
        """The folder of its files, laid out as in `site-packages`."""
        return _cache("distributions") / self.id / "files"

    @property
    def is_linked(self) -> bool:
        """Return whether extension modules may be compiled for one version of a package that is never fetched."""
        linked = any(canonicalize_name(need.name) in PROVIDED for need in read_requirements(self.requires))
        return linked and any(self.folder.rglob(f"*{EXTENSION_SUFFIXES[-1]}"))

    def contains(self, package: str) -> bool:
        """Return whether `import package` finds a module, a package or an extension module here."""
        path = package.replace(".", "/")
        return (self.folder / path).is_dir() or any(self.folder.glob(f"{glob.escape(path)}.*"))


@dataclass(slots=True)
class _Resolver:
    """Resolve requirements and their dependencies."""

    known: set[str]
    packages: Mapping[str, Collection[str]] = field(default_factory=dict)
    incomplete: bool = False
    without_package: set[str] = field(default_factory=set)
    picked: dict[str, Distribution] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    specifiers: dict[str, SpecifierSet] = field(default_factory=dict)
    offline: str = ""
    day: str | None = field(default_factory=_DAY.get)
    days: dict[str, str] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)  # why no release of the day is used

    def collect(self, requires: Sequence[str]) -> None:
        """Resolve requirements and their dependencies."""
        tried = -1
        # A release of the day whose dependencies cannot be had here gives way to today's, which may need others.
        while tried != len(self.unusable):
            tried = len(self.unusable)
            for state in (self.picked, self.unavailable, self.specifiers, self.without_package):
                state.clear()
            self._collect(requires)

    def _collect(self, requires: Sequence[str]) -> None:
        """Resolve them breadth first."""
        for text in requires:
            try:
                Requirement(text)
            except InvalidRequirement:
                self.unavailable[text] = "not a requirement of PEP 508; write NAME or NAME>=VERSION"
        waiting = deque((requirement, "") for requirement in read_requirements(sorted(requires)))
        seen: set[tuple[str, str]] = set()
        while waiting:
            requirement, parent = waiting.popleft()
            name = canonicalize_name(requirement.name)
            requirement.name, requirement.marker = _HEADLESS.get(name, name), None  # the marker holds
            # The message about an unavailable name says who needs it, so the parent counts, too.
            key = str(requirement), parent
            unwanted = requirement.name in self.known | PROVIDED or _CUDA.fullmatch(requirement.name)
            if unwanted or key in seen:
                continue
            seen.add(key)
            distribution = self._resolve(requirement, parent)
            if distribution is not None:
                needs = read_requirements(distribution.requires, requirement.extras)
                waiting.extend((need, distribution.name) for need in needs)

    def _resolve(self, requirement: Requirement, parent: str) -> Distribution | None:
        """Return the distribution to unpack for a requirement; None if it is unavailable or need not be unpacked."""
        name = requirement.name
        because = f"; {parent} needs it" if parent else ""
        version = find_runtime().versions.get(name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            return None
        # The runtime's own version hides any other, so fetching a dependency again would change nothing.
        if version is not None and parent:
            return self._miss(name, f"the declared runtime has {version}, not {requirement.specifier}{because}")
        if requirement.url is not None:
            return self._miss(name, f"only named packages are fetched, not {requirement.url}{because}")
        # Two blocks may require different versions of one distribution: a version must satisfy both.
        specifier = requirement.specifier & self.specifiers.get(name, SpecifierSet())
        distribution = self.picked.get(name)
        if distribution is None or not specifier.contains(distribution.version, prereleases=True):
            try:
                distribution = self._fetch(name, specifier, because)
            except RetryableError as error:
                self.offline = str(error)
                return self._miss(name, f"{error}{because}")
            except UserError as error:
                if distribution is not None:
                    wanted = f"no release satisfies {specifier}, which blocks of this run require together"
                    self._miss(name, f"{wanted}; {distribution.version} is used{because}")
                    return distribution
                if not self.offline and self.days.get(parent) == self.day is not None:
                    self.unusable[parent] = f"today; that of the day needs {name}{specifier}, which cannot be had here"
                return self._miss(name, f"{self.offline or error}{because}")
            imports = self.packages.get(name, ())
            if imports and not because and not any(map(distribution.contains, imports)):
                self.without_package.add(name)
                what = f"{distribution.version} does not contain {' or '.join(sorted(imports))}; not used"
                return self._miss(name, what)
        self.specifiers[name], self.picked[name] = specifier, distribution
        return distribution

    def _miss(self, name: str, reason: str) -> Distribution | None:
        """Note why a distribution is unavailable: the first reason counts."""
        self.unavailable.setdefault(name, reason)
        return None

    def _fetch(self, name: str, specifier: SpecifierSet, because: str) -> Distribution:
        """Fetch the required version, or the newest if it has no wheel; first the one of the day, if there is one."""
        cached_only = bool(self.offline)
        if self.day is not None and name not in self.unusable:
            try:
                fetched = _fetch_wheel(
                    name, specifier, cached_only=cached_only, incomplete=self.incomplete, day=self.day
                )
            except AbsentError as error:
                self.unusable[name] = f"today; of that day {error}"
            else:
                if not fetched.is_linked:
                    self.days[name] = self.day
                    return fetched
                self.unusable[name] = "today; that of the day is compiled for another numpy or torch"
        self.days[name] = self.unusable.get(name, "")
        try:
            return _fetch_wheel(name, specifier, cached_only=cached_only, incomplete=self.incomplete)
        except RetryableError:
            raise
        except UserError:
            # Only a requirement of a block itself may fall back to another version, not one of its dependencies.
            if because or not specifier or name in self.picked:
                raise
            newest = _fetch_wheel(name, SpecifierSet(), cached_only=cached_only)
            self._miss(name, f"there is no wheel of {specifier}; {newest.version} is used")
            return newest


def _merge(distributions: Sequence[Distribution]) -> Path:
    """Return one folder with the files of all distributions; if two have the same path, the first one wins.

    Raises: UserError if it cannot be written.
    """
    digest = hashlib.sha256("\n".join(distribution.id for distribution in distributions).encode()).hexdigest()
    target = _cache("folders") / digest[:32]
    if is_whole(target):
        return target
    with workspace() as work:
        for distribution in distributions:
            shutil.copytree(distribution.folder, work / digest, copy_function=_link, dirs_exist_ok=True)
        place(work / digest, target)
    return target


def _link(source: str, target: str) -> None:
    if not os.path.lexists(target):
        try:
            os.link(source, target)
        except OSError:  # a file system without hard links
            shutil.copyfile(source, target)


# --- one wheel --------------------------------------------------------------------------------------------------------


def _cache(part: str) -> Path:
    return cache_folder("runtime", _FORMAT, part)


def _fetch_wheel(
    name: str, specifier: SpecifierSet, *, cached_only: bool = False, incomplete: bool = False, day: str | None = None
) -> Distribution:
    """Return the release that pip selects for a requirement; the selection is cached.

    Raises: UserError, with a message that does not repeat the name, if there is no wheel for this interpreter, it is
        too large or damaged; RetryableError if the index cannot be reached.
    """
    wanted = f"{name}{specifier}"
    if incomplete:
        with contextlib.suppress(AbsentError):
            return _fetch_wheel(name, specifier, cached_only=cached_only, day=day)
    # Which release was selected, by this interpreter.
    about = f"{wanted}|{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    about += "|incomplete" * incomplete + (f"|{day}" if day else "")
    pick = _cache("picks") / f"{hashlib.sha256(about.encode()).hexdigest()[:32]}.json"
    picked = read_record(pick)
    if picked is not None and (cached := _read_distribution(_cache("distributions") / str(picked))) is not None:
        return cached
    with remembering_absence(pick), workspace() as work:
        if cached_only:
            raise UserError("it is not in the cache")
        note(f"fetching {wanted}{f' as of {day}' if day else ''} for the runtime with pip download")
        distribution = _download(name, str(specifier), work, incomplete=incomplete, day=day)
        _keep(distribution, work / "unpacked")
    record(pick, distribution.id)
    return distribution


def _download(name: str, specifier: str, work: Path, *, incomplete: bool, day: str | None) -> Distribution:
    """Unpack the wheel that pip selects, or the sdist if there is none, below `work`. Raises: as `_fetch_wheel`."""
    fetch = partial(download, max_bytes=MAX_WHEEL_BYTES, max_seconds=_MAX_SECONDS, retries=1, day=day)
    try:
        return _unpack(fetch(name, specifier, work), name, work / "unpacked")
    except NoWheelError as error:
        absent = error
    try:
        archive = fetch(name, specifier, work, sdists=True)
    except UndatedError:
        raise
    except AbsentError:
        raise absent from None
    facts, modules = read_sdist(archive, incomplete=incomplete)
    for path, data in modules.items():
        _write(work / "unpacked" / "files" / path, io.BytesIO(data))
    return _check(facts, name, sha256_file(archive))


def _read_distribution(folder: Path) -> Distribution | None:
    data = read_record(folder / "distribution.json") if is_whole(folder) else None
    return None if data is None else Distribution(**{**data, "requires": tuple(data["requires"])})


def _unpack(wheel: Path, name: str, folder: Path) -> Distribution:
    """Unpack a wheel into a folder, unless it is in the cache already."""
    digest = sha256_file(wheel)
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
            if len(members) != 1 or archive.getinfo(members[0]).file_size > MAX_UNPACKED_BYTES // 100:
                raise UserError("its wheel holds no readable METADATA")
            distribution = _check(read_facts({members[0]: archive.read(members[0])}), name, digest)
            if _read_distribution(distribution.folder.parent) is None:
                _extract(archive, wheel.stat().st_size, folder / "files")
    except (zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise UserError(f"its wheel is not readable: {error}") from error
    except OSError as error:
        raise UserError(f"its wheel cannot be unpacked: {error.strerror or error}") from error
    return distribution


def _check(facts: PackageFacts, name: str, digest: str) -> Distribution:
    # An index can answer with another distribution, which must not enter the cache under this name.
    if canonicalize_name(facts.name) != name:
        raise UserError(f"pip fetched {facts.name} {facts.version} instead; check the index settings of pip")
    return Distribution(name, str(Version(facts.version)), digest, facts.requires)


def _keep(distribution: Distribution, folder: Path) -> None:
    """Put an unpacked distribution into the cache; one without a folder is there."""
    if folder.is_dir():
        _compile(folder / "files")
        _write(folder / "distribution.json", io.BytesIO(json.dumps(asdict(distribution), indent=1).encode()))
        place(folder, distribution.folder.parent)


def _extract(archive: zipfile.ZipFile, packed: int, folder: Path) -> None:
    """Write the modules and metadata of a wheel, without scripts, headers and links."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    unpacked = sum(member.file_size for member in members)
    if len(members) > _MAX_MEMBERS or unpacked > MAX_UNPACKED_BYTES:
        raise UserError(_TOO_LARGE)
    check_growth("its wheel", packed, unpacked)
    for member in members:
        path = module_path(member.filename)
        if not is_safe(member.filename) or (path and not is_safe(path)):
            raise UserError(f"its wheel holds the path {member.filename!r}, which leads out of its folder")
        if path and is_plain(member):
            with archive.open(member) as source:
                _write(folder / path, source)  # reads at most as many bytes as the archive's directory states


def _write(file: Path, source: IO[bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        shutil.copyfileobj(source, out)
        out.flush()
        os.fsync(out.fileno())


def _compile(folder: Path) -> None:
    """Write bytecode once for all jobs, in a separate process because it parses foreign source."""
    command = [sys.executable, "-P", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(folder)]
    try:
        subprocess.run(command, capture_output=True, check=False, timeout=_COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        note(f"{folder.parent.name}: compiling the bytecode took too long; modules are compiled on import")


# --- local files ------------------------------------------------------------------------------------------------------

# The files of a project that running its classes needs: foreign code sees only a copy of these.
#
# For example, of `project/.env`, `project/notes.txt`, `project/net/__init__.py`, `project/net/anchors.json` and
# `project/net/deploy.pem`, only the two in the middle are copied. Tests, documents and configurations
# are, too: they construct and call the classes as their authors mean it.

_INIT = "__init__.py"


def copy_importable(source: PackageSource) -> Path:
    """Return a folder of the cache with the Python files of a source, and the files next to them (`is_about_code`).

    Of a local source, all data files inside its packages are copied. Hidden files, files with names of secrets
    (`may_hold_secrets`), and data files of more than 32 MiB are left out; so are all further ones once they have a GiB.

    Args: source: of a kind other than `package`.
    Returns: the folder, named by the digest of its contents.
    Raises: UserError if a file cannot be read, has changed since the source was opened, or cannot be copied.
    """
    content = {file.path: source.read(file) for file in source.files}
    try:
        content |= dict(_read_others(source))
    except FileNotFoundError as error:
        raise UserError(f"{source.name}: {error.filename} was removed while it was read; run again") from error
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in content.items()}
    digest = hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:32]
    target = cache_folder("runtime", _FORMAT, "originals") / digest
    keep_files(content, target, source.name)
    return target


def _read_others(source: PackageSource) -> Iterator[tuple[str, bytes]]:
    inits = [file.path.removesuffix(_INIT) for file in source.files if file.path.rpartition("/")[2] == _INIT]
    known = {file.path for file in source.files}
    packages, total = tuple(inits), 0  # "" is the root, if it is a package itself
    root = source.root if source.kind == "folder" else others_of(source)
    for path in sorted(set(walk(root, lambda *_: None)) - known):
        name = path.rpartition("/")[2]
        is_data = not name.endswith(".py") and path.startswith(packages) and not may_hold_secrets(name)
        if not (is_data or is_about_code(path)):
            continue
        file = root / path
        try:
            size = file.stat().st_size
            if size > MAX_FILE_BYTES or total + size > MAX_TOTAL_BYTES:
                continue
            data = file.read_bytes()
        except OSError:  # it is not code: whether anything needs it is seen when that runs
            continue
        total += size
        yield path, data
