"""Wheels and sdists, read without unpacking: only names that were checked are read, and only those asked for."""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath

from extract.sources.contents import MAX_FILE_BYTES, check_bounds
from lemur_core.files.errors import UserError

#: Bounds on a whole archive, with all that is not taken from it.
_MAX_MEMBERS = 300_000
_MAX_UNPACKED_BYTES = 2 << 30
_MAX_READ_BYTES = 64 << 20


Opener = Callable[[Path], io.BufferedIOBase | io.RawIOBase]
Choose = Callable[[list[str]], Iterable[str]]

_OPENERS: dict[str, Opener] = {
    ".tar.gz": gzip.GzipFile,
    ".tgz": gzip.GzipFile,
    ".tar.bz2": bz2.BZ2File,
    ".tar.xz": lzma.LZMAFile,
    ".tar": io.FileIO,
}
_ZIPS = (".whl", ".zip")
_DATA_FOLDER = re.compile(r"[^/]+\.data/(?:purelib|platlib)/(?P<rest>.+)")


def read_archive(path: Path, choose: Choose) -> dict[str, bytes]:
    """The chosen files of an archive by name; links and devices are as if they were not there.

    Args: choose: the names to read, from those of all plain files.
    Raises: UserError if the archive is damaged, holds a name that leads out of its folder or is there twice, or more
        than the bounds allow.
    """
    try:
        if path.name.endswith(_ZIPS):
            return _read_zip(path, choose)
        opener = next((opener for suffix, opener in _OPENERS.items() if path.name.endswith(suffix)), None)
        if opener is None:
            raise UserError(f"{path.name}: not a wheel or sdist ({', '.join((*_ZIPS, *_OPENERS))})")
        return _read_tar(path, opener, choose)
    except (
        zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError, ValueError,
        NotImplementedError,
    ) as error:  # fmt: skip
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path.name}: not readable: {reason}; fetch it again") from error


def _read_zip(path: Path, choose: Choose) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_count(path, len(members))
        _check_names(path, (member.filename for member in members))
        plain = {member.filename: member for member in members if not member.is_dir() and is_plain(member)}
        chosen = sorted(set(choose(list(plain))))
        check_bounds(path.name, (plain[name].file_size for name in chosen))
        return {name: _read_bounded(archive, plain[name]) for name in chosen}


def is_plain(member: zipfile.ZipInfo) -> bool:
    """Whether a member of a zip archive is a file, no link or device."""
    kind = member.external_attr >> 28  # the upper bits of a Unix mode: 0 where none was stored, 8 for a plain file
    return kind in (0, 8)


def _read_bounded(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    with archive.open(member) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    check_bounds(member.filename, [len(data)])
    return data


def _read_tar(path: Path, opener: Opener, choose: Choose) -> dict[str, bytes]:
    with _open_tar(path, opener) as archive:
        members = list(_members(path, archive))
    _check_names(path, (member.name for member in members))
    plain = {member.name: member.size for member in members if member.isreg()}
    chosen = set(choose(list(plain)))
    check_bounds(path.name, (plain[name] for name in chosen))
    found: dict[str, bytes] = {}
    with _open_tar(path, opener) as archive:
        for member in _members(path, archive):
            if member.isreg() and member.name in chosen:
                file = archive.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return dict(sorted(found.items()))


@contextlib.contextmanager
def _open_tar(path: Path, opener: Opener) -> Iterator[tarfile.TarFile]:
    with (
        opener(path) as file,
        _Bounded(path.name, file) as bounded,
        tarfile.open(fileobj=bounded, mode="r|", errorlevel=2) as archive,
    ):
        yield archive


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(archive, start=1):
        _check_count(path, count)
        yield member


class _Bounded(io.RawIOBase):
    """A decompressed stream that ends in an error instead of filling memory or time."""

    def __init__(self, where: str, file: io.BufferedIOBase | io.RawIOBase) -> None:
        self._where, self._file, self._left = where, file, _MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _MAX_READ_BYTES) if size >= 0 else _MAX_READ_BYTES) or b""
        self._left -= len(data)
        if self._left < 0:
            raise UserError(f"{self._where}: unpacks to more than {_MAX_UNPACKED_BYTES:,} bytes; not a source of code")
        return data


def _check_count(path: Path, count: int) -> None:
    if count > _MAX_MEMBERS:
        raise UserError(f"{path.name}: more than {_MAX_MEMBERS:,} members; not a source of code")


def _check_names(path: Path, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not is_safe(name):
            raise UserError(f"{path.name}: holds the path {name!r}, which leads out of its folder; do not use it")
        if name in seen and not name.endswith("/"):
            raise UserError(f"{path.name}: holds the path {name!r} twice; do not use it")
        seen.add(name)


def is_safe(name: str) -> bool:
    """Whether a path is relative, stays below its folder and is the same on every system."""
    parts = PurePosixPath(name).parts
    return (
        bool(name)
        and not name.startswith("/")
        and "//" not in name  # what is left when a folder is taken off must not begin with a slash
        and ".." not in parts
        and "\\" not in name
        and not (len(name) > 1 and name[1] == ":")
        and all(ord(sign) >= 32 for sign in name)
    )


def module_path(name: str) -> str:
    """Where a member of a wheel is installed, below `site-packages`; "" for scripts, headers and other data."""
    data = _DATA_FOLDER.fullmatch(name)
    path = data["rest"] if data else name
    return "" if path.partition("/")[0].endswith(".data") else path
