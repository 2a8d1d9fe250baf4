"""Write files and folders so that they are either complete or absent, and lock them for one process."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from lemur_core.files import Json
from lemur_core.files.cache import drop_damaged, is_cached, remove_path
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible

#: The type of a file or folder in the Python interfaces.
PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def own(folder: Path, lock: str, at_work: str) -> Iterator[None]:
    """Create the folder of `--out` if needed, and lock it for this process until the block or the process ends.

    Args:
        lock: the name of the lock file in the folder, which states the process that holds it.
        at_work: the message if another process holds the lock, such as `another run works there`.
    Returns: a context manager.
    Raises: UserError if the folder cannot be created, or another process holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / lock).touch()
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; choose another --out") from error
    with hold_lock(folder / lock, folder, at_work):
        yield


@contextlib.contextmanager
def hold_lock(lock: Path, where: Path, at_work: str) -> Iterator[None]:
    """Lock a file, created if needed, for this process until the block or the process ends.

    Args: where: the file or folder that the lock protects, for messages. at_work: as for `own`.
    Returns: a context manager.
    Raises: UserError that names the process that holds the lock, if there is one.
    """
    if lock.is_dir() and is_cached(lock):
        drop_damaged(lock)
    with lock.open("a+") as file:
        if not claim(file.fileno()):
            holder = _read_holder(lock)
            at_work = f"{at_work} ({holder})" if holder else at_work
            raise UserError(f"{where}: {at_work}; wait for it, or choose another --out")
        file.truncate(0)
        since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "since": since}, file)
        file.flush()
        yield


def _read_holder(lock: Path) -> str:
    """Return the process that a lock file names; an empty text if an older release wrote the file."""
    try:
        process = json.loads(lock.read_text(encoding="utf-8"))
        return f"host {process['host']}, process {process['pid']}, since {process['since']}"
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def claim(handle: int) -> bool:
    """Lock an open file or folder for this process until it is closed.

    Args: handle: a file descriptor; closing it ends the lock.
    Returns: False if another process has the lock.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_PART, _OLD = ".part", ".old"
#: Marks unfinished files and folders as ours, in their names.
_MARK = "lemur-"
_CLAIM_SECONDS = 10.0  # at most, between creating a folder and claiming it


def sha256_file(path: Path) -> str:
    """Compute the SHA-256 of a file without loading it whole.

    Args: path: an existing file; links are followed.
    Returns: 64 hexadecimal digits.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """In the block, files of a folder are written: an error about a full disk that names no file names the folder."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename, error.strerror = str(folder), os.strerror(error.errno)
        raise


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` to write to; rename it to `path` on success, remove it on failure.

    Args: path: its parent folders are created as needed; an older file is replaced.
    Returns: a context manager; the sibling exists already, is empty, and is synced to disk before it is renamed.
    Raises: OSError, as of the last folder, if one of them cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from error
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.{_make_mark()}", suffix=_PART, dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        with writing_in(path.parent):
            yield part
            _sync(part)
        # mkstemp creates a file that only the user can read, as it should be in the cache.
        if not is_cached(part):
            part.chmod(0o666 & ~_umask())
        elif path.is_dir():
            drop_damaged(path)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 with `\\n` line ends.

    Args: path: its parent folders are created as needed; on failure, an older file there is kept.
    """
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files, or none: each is written next to its target first, then all are renamed.

    If one rename fails, the earlier ones are undone. Folders are created as needed, and removed again on failure.

    Args: files: the contents by target; a file that is replaced keeps its permissions.
    Raises: UserError naming the file that cannot be written.
    """
    with contextlib.ExitStack() as undo:
        parts: dict[Path, Path] = {}
        try:
            for path, data in files.items():
                for folder in reversed([parent for parent in path.parents if not parent.exists()]):
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
                    older = part.with_suffix(_OLD)
                    # Callbacks run in reverse: the older file is moved back first, then there is nothing to remove.
                    undo.callback(older.unlink, missing_ok=True)
                    shutil.copy2(path, older)
                    undo.callback(older.replace, path)
                else:
                    undo.callback(path.unlink, missing_ok=True)
                part.replace(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}; nothing was changed") from error
        # Everything is in place: from here on, nothing is undone.
        undo.pop_all()
        for part in parts.values():
            part.with_suffix(_OLD).unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def atomic_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling folder of `out` to fill; rename it to `out` on success, remove it on failure.

    Two runs with the same `out` never mix: each fills its own folder, and the later one to finish gets an error.

    Args:
        out: its parent folders are created as needed.
        force: replace an existing `out` once the new one is complete; restore it if the last rename fails.
    Returns: a context manager.
    Raises: UserError if `out` exists and either `force` is False or it holds files that lemur did not write, or if its
        parent folder cannot be written.
    """
    out = Path(os.path.abspath(out))  # noqa: PTH100 (resolve() would follow a link that --force is to replace)
    if out.is_file() and is_cached(out):
        drop_damaged(out)
    check_free(out, force=force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.{_make_mark()}", suffix=_PART, dir=out.parent))
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    # Locked while it is filled: other runs with the same `out` remove folders that nobody has claimed.
    handle = os.open(part, os.O_RDONLY)
    try:
        claim(handle)
        with writing_in(out.parent):
            yield part
            for file in sorted(part.rglob("*")):
                if file.is_file():
                    _sync(file)
        # mkdtemp creates a folder that only the user can enter.
        part.chmod(0o777 & ~_umask())
        _swap(part, out, force=force)
        _remove_abandoned(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(handle)


@contextlib.contextmanager
def scratch_folder(
    name: str, remove: Callable[[Path], None] | None = None, parent: Path | None = None
) -> Iterator[Path]:
    """Yield an empty temporary folder, and remove it at the end; first remove those that killed processes left.

    Args:
        name: the purpose of the folder, such as `publish`.
        remove: the function that removes a folder, if foreign code fills it; `remove_path` by default.
        parent: the folder of temporary files by default.
    Returns: a context manager.
    """
    remove = remove or remove_path
    temporary = parent or Path(tempfile.gettempdir()).resolve()
    remove_dead(temporary, remove)
    folder = Path(tempfile.mkdtemp(_PART, f".{name}.{_make_mark()}", temporary))
    handle = os.open(folder, os.O_RDONLY)
    try:
        claim(handle)  # process ids are not enough: another container may share the folder
        with writing_in(temporary):
            yield folder
    finally:
        remove(folder)
        os.close(handle)


def check_writable(out: Path, option: str = "--out") -> None:
    """Check, before minutes of work, that an output can be created afterwards.

    Args: out: a file or folder; nothing is created. option: the option that named it, for messages.
    Raises: UserError if the nearest existing parent is a file, or is not writable.
    """
    parent = next((folder for folder in out.absolute().parents if folder.exists()), out)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        number = errno.EACCES if parent.is_dir() else errno.ENOTDIR
        raise UserError(f"{out}: cannot be written: {parent}: {os.strerror(number)}; choose another {option}")


def check_new_file(out: Path, option: str = "--out", *, force: bool = False) -> None:
    """Check, before minutes of work, that an output file can be put in place afterwards.

    Args: option: the option that named it, for messages. force: accept an existing file.
    Raises: UserError if it is a folder, exists, or cannot be created.
    """
    if out.is_dir() or (out.exists() and not force):
        more = "" if out.is_dir() else ", or add --force"
        raise UserError(f"{out}: exists already; choose another {option}{more}")
    check_writable(out, option)


def check_free(out: Path, *, force: bool) -> None:
    """Check, before hours of work, that an output folder can be put in place afterwards.

    Args: out: an output folder. force: accept a folder that holds only files that lemur wrote.
    Raises: UserError if `out` cannot be created, is a file, or is a folder with files in it that may not be replaced.
    """
    check_writable(out)
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file, not a folder; choose another --out")
    if any(out.iterdir()) and not force:
        raise UserError(f"{out}: exists already; choose another --out, or add --force to replace it")
    check_ours(out)


#: Of a finished folder (`manifests.folders.manifest`): the keys of its manifest; the names of the manifest, of the page
#: and of the list of the page's files, which are not outputs.
_KEYS = frozenset({"kind", "versions", "parameters", "inputs", "counts", "details", "outputs", "measured"})
_MANIFEST, _PAGE, _PAGE_FILES = "manifest.json", "index.html", "page/files.json"
_COMPILED = re.compile(r"(?P<folder>.*/|)__pycache__/(?P<stem>[^/.]+)\.[^/]+\.pyc")


def check_ours(folder: Path) -> None:
    """Check that a folder may be removed: its manifest says that lemur wrote it, and lists every file in it.

    A listed file may have been edited since. Links count as files. Bytecode of listed files is ours, too.

    Args: folder: an existing folder; an empty one is fine.
    Raises: UserError that names a file that lemur did not write, or if the folder cannot be listed.
    """
    try:
        inside = sorted(_list_files(folder))
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be listed: {error.strerror}; choose another --out") from error
    if not inside:
        return
    listed = _read_outputs(folder)
    if listed is None:
        kind = "a manifest.json of another program" if _MANIFEST in inside else "no manifest.json"
        raise UserError(f"{folder}: has {kind}, so lemur did not write it; choose another --out")
    others = [name for name in inside if name not in listed and _find_compiled(name) not in listed]
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise UserError(
            f"{folder}: holds {make_visible(others[0], 80)}{more}, which lemur did not write; move it elsewhere, or"
            " choose another --out"
        )


def _list_files(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files and links in a folder; links are not followed."""

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        for name in (*names, *(name for name in folders if Path(parent, name).is_symlink())):
            yield Path(parent, name).relative_to(folder).as_posix()


def _read_outputs(folder: Path) -> set[str] | None:
    """Return the paths that lemur wrote to a folder, from its manifest and its page; None if lemur did not write it."""
    manifest = _read_json(folder / _MANIFEST)
    if not manifest.keys() >= _KEYS or not isinstance(manifest["outputs"], list):
        return None
    listed = {
        item["path"] for item in manifest["outputs"] if isinstance(item, dict) and isinstance(item.get("path"), str)
    }
    page = _read_json(folder / _PAGE_FILES)
    page_files = {name for name in page if name == _PAGE or name.startswith("page/")}
    return listed | page_files | {_MANIFEST} | ({_PAGE_FILES} if page_files else set())


def _read_json(path: Path) -> Json:
    """Read a JSON object; an empty one if the file has none."""
    try:
        value = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _find_compiled(name: str) -> str | None:
    """Return the path of the Python file from which Python compiled this one; None if it did not."""
    match = _COMPILED.fullmatch(name)
    return f"{match['folder']}{match['stem']}.py" if match else None


def _remove_abandoned(out: Path) -> None:
    """Remove the folders that killed runs with the same `out` left: those with our mark that no process has claimed.

    An older output that was moved aside is removed once there is a new one.
    """
    pattern = f"{glob.escape(f'.{out.name}.')}{_MARK}*"
    for part in out.parent.glob(pattern + _PART):
        with contextlib.suppress(OSError):  # owned by another user, or already removed
            if part.is_symlink() or not part.is_dir():
                continue
            if not _has_died(part) and time.time() - part.stat().st_mtime < _CLAIM_SECONDS:
                continue
            handle = os.open(part, os.O_RDONLY)
            try:
                if claim(handle):  # always False on a file system without locks
                    shutil.rmtree(part, ignore_errors=True)
            finally:
                os.close(handle)
    for older in out.parent.glob(pattern + _OLD) if out.exists() else ():
        remove_path(older)


def remove_unfinished(folder: Path) -> None:
    """Remove all unfinished files and folders with our mark.

    Args: folder: a folder that no other process uses (`own`).
    """
    for pattern in (f".*.{_MARK}*{_PART}", f".*.{_MARK}*{_OLD}"):
        for path in folder.glob(pattern):
            remove_path(path)


def remove_dead(folder: Path, remove: Callable[[Path], None] | None = None) -> None:
    """Remove the unfinished files of killed processes from a folder that other processes may be using.

    Args: remove: as for `scratch_folder`.
    """
    remove = remove or remove_path
    for path in folder.glob(f".*.{_MARK}*{_PART}"):
        if _has_died(path) and _is_own(path) and not _is_claimed(path):
            remove(path)


def _is_own(path: Path) -> bool:
    """Return whether a path is this user's and not a link: others may write to the folder of temporary files."""
    try:
        state = path.lstat()
    except OSError:
        return False
    return state.st_uid == os.geteuid() and not stat.S_ISLNK(state.st_mode)


def _is_claimed(part: Path) -> bool:
    """Return whether a process has locked an unfinished folder; False if it is gone, or cannot be locked."""
    try:
        handle = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def _make_mark() -> str:
    """Return the part of the name of an unfinished file or folder that identifies the process that makes it."""
    return f"{_MARK}{_hash_host()}-{os.getpid()}-"


def unfinished_name(name: str) -> str:
    """Return a name for a file or folder that is unfinished or about to be removed, for `remove_unfinished`.

    Args: name: of the finished one, in the same folder.
    Returns: a hidden name that states host and process.
    """
    return f".{name}.{_make_mark()}{secrets.token_hex(4)}{_PART}"


def _has_died(part: Path) -> bool:
    """Return whether an unfinished file or folder certainly belongs to a process of this machine that has ended."""
    maker = re.search(rf"\.{_MARK}{_hash_host()}-(\d+)-[^.]*{re.escape(_PART)}$", part.name)
    if maker is None:
        return False
    try:
        os.kill(int(maker[1]), 0)
        state = Path("/proc", maker[1], "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, UnicodeDecodeError):  # another user's process, or there is no /proc
        return False
    return state == "Z"  # a zombie: it has ended, and its parent has not waited for it


def _hash_host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def make_scratch(parent: Path, name: str) -> "tempfile.TemporaryDirectory[str]":
    """Create a temporary folder for a `with` block; `remove_unfinished` removes it if this process is killed.

    Args: parent: an existing folder. name: the first part of its name.
    Returns: the folder, which the end of the block removes.
    """
    return tempfile.TemporaryDirectory(_PART, f".{name}.{_make_mark()}", parent)


def _swap(part: Path, out: Path, *, force: bool) -> None:
    check_free(out, force=force)
    older = part.with_suffix(_OLD)
    aside = force and (out.exists() or out.is_symlink())  # without --force, `out` is at most an empty folder
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
        remove_path(older)


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
