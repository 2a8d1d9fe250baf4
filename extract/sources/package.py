"""Released packages, from the cache or the index, and the archives that they come in."""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from extract.sources.contents import (
    PackageSource,
    check_bounds,
    is_safe,
    keep_paths,
    keep_source,
    read_source,
    store_folder,
    workspace,
)
from extract.sources.metadata import is_text, read_facts
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import BoundedStream, check_growth
from lemur_core.files.pip import AbsentError, RejectedError, download, latest_version
from lemur_core.files.progress import note

PACKAGE_RE = re.compile(r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:(?:@|==)(?P<version>[^@/\\\s]+))?")
_SHOWN = 6  # versions that are named if one does not exist


def find_package(spec: str, digests: Collection[str]) -> PackageSource:
    """Return a release as a source; fetched if it is not in the cache.

    Args: spec: matches PACKAGE_RE. digests: pinned digests, possibly one per platform; () accepts any.
    Raises: UserError if the version is none, the release does not exist, or its files differ from the pinned digests;
        RetryableError if the index cannot be reached.
    """
    match = PACKAGE_RE.fullmatch(spec)
    assert match is not None
    name = canonicalize_name(match["name"])
    version = match["version"] or _newest(name)
    if version:
        known = _version(version)
        if known is None:
            raise UserError(f"{spec}: {version!r} is not a version; write NAME@VERSION, for example timm@1.0.20")
        version = str(known)
    # A release may have several builds; any will do unless some are pinned.
    folder = _folder(name, version)
    builds = sorted(digests) if digests else sorted(path.stem for path in folder.glob("*.json"))
    for build in builds if version else ():
        source = read_source(folder / f"{build}.json")
        if source is not None:
            return source
    source = _fetch(name, version)
    if digests and source.digest not in digests:
        raise UserError(
            f"{spec}: its Python files have the digest {source.digest}, not the pinned "
            f"{' or '.join(sorted(digests))}; do not use it unless you know why, then pin the new one"
        )
    return source


def _newest(name: str) -> str:
    with workspace() as work:
        version = latest_version(name, work)
    if version is not None:
        return version
    known = sorted((path.name.partition("@")[2] for path in store_folder("packages").glob(f"{name}@*")), key=Version)
    if known:
        note(f"{name}: the newest release cannot be looked up; using {known[-1]} from the cache")
        return known[-1]
    return ""


def _folder(name: str, version: str) -> Path:
    return store_folder("packages") / f"{name}@{canonicalize_version(version)}"


def _fetch(name: str, version: str) -> PackageSource:
    spec = f"{name}@{version}" if version else name
    requirement = f"=={version}" if version else ""
    note(f"fetching {name}{requirement} with pip download")
    with workspace() as work:
        try:
            python, texts = _read_release(download(name, requirement, work, sdists=True))
        except AbsentError as error:
            reason = str(error)
            if error.versions:
                newest = sorted(filter(None, map(_version, error.versions)))[-_SHOWN:]
                reason = f"no such release; newest ones: {', '.join(map(str, newest))}"
            elif not isinstance(error, RejectedError):
                spelling = f"check the spelling (a local folder is written ./{name})"
                reason = f"no package of this name for this Python; {spelling}"
            raise UserError(f"{spec}: {reason}") from error
        except UserError as error:
            raise type(error)(f"{spec}: {error}") from error
    facts = read_facts(texts)
    fetched = _version(facts.version)
    if fetched is None:
        raise UserError(f"{spec}: its metadata states no version ({facts.version!r}); use its repository")
    public = fetched.public
    if canonicalize_name(facts.name) != name or (version and public != Version(version).public):
        raise UserError(f"{spec}: what was fetched is {facts.name} {facts.version}; check the index settings of pip")
    return keep_source(
        python,
        facts,
        _folder(name, version or facts.version),
        spec,
        name=f"{name}@{public}",
        kind="package",
        version=public,
        origin=f"pkg:pypi/{name}@{public}",
    )


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _read_release(archive: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the Python files and the texts of a wheel or sdist, by path below where it is installed or built."""
    paths: dict[str, str] = {}

    def choose(names: list[str]) -> list[str]:
        tops = {name.partition("/")[0] for name in names if "/" in name}
        strip = f"{tops.pop()}/" if archive.suffix != ".whl" and len(tops) == 1 else ""
        found = {name: module_path(name.removeprefix(strip).removeprefix("./")) for name in names}
        paths.update((name, path) for name, path in found.items() if is_safe(path))
        wanted = {*keep_paths(paths.values()), *filter(is_text, paths.values())}
        return [name for name, path in paths.items() if path in wanted]

    files = {paths[name]: data for name, data in read_archive(archive, choose).items()}
    python = {path: files[path] for path in keep_paths(paths.values())}
    return python, {path: data for path, data in files.items() if path not in python}


# --- wheels and sdists, read without unpacking: only names that were checked, and only requested ones ---------------

#: Limits on a whole archive, including the parts that are not read.
_MAX_MEMBERS = 300_000
_MAX_UNPACKED_BYTES = 2 << 30


Choose = Callable[[list[str]], Iterable[str]]

_OPENERS: dict[str, Callable[[BinaryIO], IO[bytes] | io.BufferedIOBase]] = {
    ".gz": gzip.open,
    ".tgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_ZIPS = (".whl", ".zip")
_DATA_FOLDER = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(?P<rest>.+)")


def read_archive(path: Path, choose: Choose) -> dict[str, bytes]:
    """Return the chosen files of an archive by name; links and devices are ignored.

    Args: choose: selects the names to read from those of all plain files.
    Raises: UserError if the archive is damaged, contains a name outside of its folder or a duplicate name, or exceeds
        the limits.
    """
    try:
        if path.name.endswith(_ZIPS):
            return _read_zip(path, choose)
        if path.suffix not in _OPENERS:
            raise UserError(f"{path.name}: not a wheel or sdist ({', '.join((*_ZIPS, *_OPENERS))})")
        return _read_tar(path, choose)
    except (
        zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError, ValueError,
        NotImplementedError,
    ) as error:  # fmt: skip
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path.name}: not readable: {reason}; fetch it again") from error


def _read_zip(path: Path, choose: Choose) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_names(path, (member.filename for member in members))
        plain = {member.filename: member for member in members if not member.is_dir() and is_plain(member)}
        chosen = sorted(set(choose(list(plain))))
        check_bounds(path.name, (plain[name].file_size for name in chosen))
        check_growth(path.name, path.stat().st_size, sum(plain[name].file_size for name in chosen))
        # At most as many bytes as the directory of the archive states.
        return {name: archive.read(plain[name]) for name in chosen}


def is_plain(member: zipfile.ZipInfo) -> bool:
    """Return whether a member of a zip archive is a plain file, not a link or device."""
    kind = member.external_attr >> 28  # the upper bits of a Unix mode: 0 if none was stored, 8 for a plain file
    return kind in (0, 8)


def _read_tar(path: Path, choose: Choose) -> dict[str, bytes]:
    plain: dict[str, int] = {}
    with _open_tar(path) as archive:

        def note_plain(member: tarfile.TarInfo) -> str:
            if member.isreg():
                plain[member.name] = member.size
            return member.name

        # Read twice, because a stream cannot go back, and the names decide which files are read.
        _check_names(path, map(note_plain, archive))
    chosen = set(choose(list(plain)))
    check_bounds(path.name, (plain[name] for name in chosen))
    texts: dict[str, bytes] = {}
    with _open_tar(path) as archive:
        for member in archive:
            if member.isreg() and member.name in chosen:
                file = archive.extractfile(member)
                assert file is not None
                texts[member.name] = file.read()
    return dict(sorted(texts.items()))


@contextlib.contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    with (
        path.open("rb") as packed,
        _OPENERS[path.suffix](packed) as content,
        BoundedStream(path.name, packed, content, _MAX_UNPACKED_BYTES) as bounded,
        tarfile.open(fileobj=bounded, mode="r|", errorlevel=2) as archive,
    ):
        yield archive


def _check_names(path: Path, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for count, name in enumerate(names, start=1):
        if count > _MAX_MEMBERS:
            raise UserError(f"{path.name}: more than {_MAX_MEMBERS:,} members; not a source of code")
        if not is_safe(name):
            raise UserError(f"{path.name}: holds the path {name!r}, which leads out of its folder; do not use it")
        if name in seen and not name.endswith("/"):
            raise UserError(f"{path.name}: holds the path {name!r} twice; do not use it")
        seen.add(name)


def module_path(name: str) -> str:
    """Return where a member of a wheel is installed, below `site-packages`; "" for scripts, headers and other data."""
    data = _DATA_FOLDER.fullmatch(name)
    path = data["rest"] if data else name
    return "" if path.partition("/")[0].endswith(".data") else path
