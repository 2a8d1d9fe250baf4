"""Files and folders that are either whole or absent, whatever happens in between, and for one process alone."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from lemur_core.files.errors import UserError


@contextlib.contextmanager
def own(folder: Path, lock: str, at_work: str) -> Iterator[None]:
    """The folder, made when missing, for this process until the end of the block, however the process ends.

    Args:
        lock: the name of a file in it.
        at_work: what to say of another process that has it, such as `another run works there`.
    Raises: UserError if it cannot be made, or another process has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / lock).open("w")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; choose another --out") from error
    with file:
        if not claim(file.fileno()):
            raise UserError(f"{folder}: {at_work}; wait for it, or choose another --out")
        yield


def claim(handle: int) -> bool:
    """Whether a file or folder is now this process's, for as long as it lives and has it open."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_CHUNK = 1 << 20
_PART = ".part"
_BEING_MADE = 10.0  # seconds from a folder's making to its claim, at most


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary sibling of `path` to write to; renamed to `path` on success, removed on failure."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_PART, dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        _sync(part)
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Put a text into a file, in UTF-8 with `\\n` line ends: the whole of it, or the older file stays."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_together(files: Mapping[Path, bytes]) -> None:
    """Put several files in place, or none: all are written beside their places first, and then take them.

    Where one cannot, those that did are put back as they were. Folders are made, and taken away again, as needed.

    Raises: UserError naming the file that cannot be written.
    """
    with contextlib.ExitStack() as undo:
        parts: dict[Path, Path] = {}
        try:
            for path, data in files.items():
                for folder in reversed([one for one in path.parents if not one.exists()]):
                    folder.mkdir()
                    undo.callback(_remove_empty, folder)
                handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_PART, dir=path.parent)
                parts[path] = Path(name)
                undo.callback(parts[path].unlink, missing_ok=True)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                parts[path].chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())
            for path, part in parts.items():
                if path.exists():
                    older = part.with_suffix(".old")
                    undo.callback(older.unlink, missing_ok=True)
                    shutil.copy2(path, older)
                    undo.callback(older.replace, path)
                else:
                    undo.callback(path.unlink, missing_ok=True)
                part.replace(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}; nothing was changed") from error
        undo.pop_all()
        for part in parts.values():
            part.with_suffix(".old").unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def atomic_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary sibling folder of `out` to fill; renamed to `out` on success, removed on failure.

    An older `out` is replaced only with `force`, only once the new one is whole, and is put back if the last rename
    fails. Two runs with the same `out` never mix: each fills a folder of its own, and the later one to finish finds
    `out` taken.

    Raises: UserError if `out` exists and `force` is not given, or the folder above it cannot be written.
    """
    out = Path(os.path.abspath(out))  # noqa: PTH100 (resolve() would follow a link that --force is to replace)
    check_free(out, force=force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=_PART, dir=out.parent))
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    handle = os.open(part, os.O_RDONLY)
    try:
        claim(handle)
        yield part
        for file in sorted(part.rglob("*")):
            if file.is_file():
                _sync(file)
        part.chmod(0o777 & ~_umask())
        _swap(part, out, force=force)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(handle)


def check_writable(out: Path) -> None:
    """Refuse early, before minutes of work, an output that could not be made at the end.

    Raises: UserError if of the folders above the nearest that exists is a file, or may not be written.
    """
    above = next((folder for folder in out.absolute().parents if folder.exists()), out)
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        number = errno.EACCES if above.is_dir() else errno.ENOTDIR
        raise UserError(f"{out}: cannot be written: {above}: {os.strerror(number)}; choose another --out")


def check_free(out: Path, *, force: bool) -> None:
    """Refuse early, before hours of work, an output that could not be put in place at the end.

    Raises: UserError if `out` exists and is not an empty folder, unless `force` is given and it is a folder; or if it
        could not be made.
    """
    check_writable(out)
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file, not a folder; choose another --out")
    if any(out.iterdir()) and not force:
        raise UserError(f"{out}: exists already; choose another --out, or add --force to replace it")
    if force and any(out.iterdir()) and not (out / "manifest.json").is_file():
        raise UserError(f"{out}: holds no manifest.json, so it was not made by lemur; choose another --out")


def _remove_abandoned(out: Path) -> None:
    """Remove what runs with the same `out` left that were killed: folders that no process has claimed."""
    for part in out.parent.glob(f"{glob.escape(f'.{out.name}.')}*{_PART}"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            if part.is_symlink() or not part.is_dir() or time.time() - part.stat().st_mtime < _BEING_MADE:
                continue
            handle = os.open(part, os.O_RDONLY)
            try:
                if claim(handle):  # never where the file system has no locks
                    shutil.rmtree(part, ignore_errors=True)
            finally:
                os.close(handle)


def _swap(part: Path, out: Path, *, force: bool) -> None:
    check_free(out, force=force)
    older = part.with_suffix(".old")
    aside = force and (out.exists() or out.is_symlink())  # without --force, only an empty folder may be in the way
    if aside:
        out.rename(older)
    try:
        part.rename(out)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise UserError(f"{out}: another run has put its output there meanwhile; choose another --out") from error
        if aside:
            older.rename(out)
        raise
    finally:
        if older.is_symlink():
            older.unlink()
        else:
            shutil.rmtree(older, ignore_errors=True)


def _umask() -> int:
    """The permissions that this process withholds from new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
