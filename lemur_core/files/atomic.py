"""Write files and folders so that they are either complete or absent, and lock them for one process."""

import contextlib
import errno
import functools
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
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lemur_core.files import Json
from lemur_core.files.cache import remove_path
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible

#: The type of a file or folder in the Python interfaces.
PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def hold_lock(lock: Path, where: Path, at_work: str) -> Iterator[None]:
    """Lock a file for this process until the block or the process ends; it states the process.

    Args:
        lock: created if needed, with its folders.
        where: the file or folder that the lock protects, for messages.
        at_work: the message if another process holds the lock, such as `another run works there`.
    Raises: UserError if the file cannot be created, or that names the process that holds the lock.
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        held = FileLock(lock, timeout=0).acquire()
    except Timeout as error:
        holder = _read_json(lock)
        if holder.keys() >= {"host", "pid", "since"}:
            at_work += f" (host {holder['host']}, process {holder['pid']}, since {holder['since']})"
        raise UserError(f"{where}: {at_work}; wait for it, or choose another --out") from error
    except OSError as error:
        raise UserError(f"{where}: cannot be written: {error.strerror}; choose another --out") from error
    with held:
        since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        lock.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}))
        yield


_PART, _OLD = ".part", ".old"


def sha256_file(path: Path) -> str:
    """Compute the SHA-256 of a file without loading it whole: 64 hexadecimal digits."""
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

    Args: path: its parent folders are created as needed; an older file is replaced, and its permissions are kept.
    Returns: a context manager; the sibling exists already, is empty, and is synced to disk before it is renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(unfinished_name(path.name))
    part.touch(exist_ok=False)
    try:
        with writing_in(path.parent):
            yield part
            _sync(part)
        if path.is_file():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 with `\\n` line ends, as `atomic_file` does."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files, or none: if one cannot be written, what was there before is there again.

    Args: files: the contents by target; folders are created as needed.
    Raises: UserError naming the file that cannot be written.
    """
    with contextlib.ExitStack() as undo:  # in reverse order
        for path, data in files.items():
            try:
                for folder in reversed([parent for parent in path.parents if not parent.exists()]):
                    folder.mkdir()
                    undo.callback(folder.rmdir)
                older = path.read_bytes() if path.exists() else None
                with atomic_file(path) as part:
                    part.write_bytes(data)
            except OSError as error:
                raise UserError(f"{path}: cannot be written: {error.strerror}; nothing was changed") from error
            undo.callback(path.unlink) if older is None else undo.callback(path.write_bytes, older)
        undo.pop_all()


@contextlib.contextmanager
def atomic_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling folder of `out` to fill; rename it to `out` on success, remove it on failure.

    Two runs with the same `out` never mix: each fills its own folder, and the later one to finish gets an error.

    Args:
        out: its parent folders are created as needed.
        force: replace an existing `out` once the new one is complete; restore it if the last rename fails.
    Raises: UserError if `out` exists and either `force` is False or it holds files that lemur did not write, or if its
        parent folder cannot be written.
    """
    out = Path(os.path.abspath(out))  # noqa: PTH100 (resolve() would follow a link that --force is to replace)
    _check_replaceable(out, force=force)
    part = out.with_name(unfinished_name(out.name))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_dead(out.parent)
        part.mkdir()
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    try:
        with writing_in(out.parent):
            yield part
            for file in sorted(part.rglob("*")):
                if file.is_file():
                    _sync(file)
        _swap(part, out, force=force)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _swap(part: Path, out: Path, *, force: bool) -> None:
    _check_replaceable(out, force=force)
    older = part.with_suffix(_OLD)
    if force and os.path.lexists(out):  # without --force, `out` is at most an empty folder
        out.rename(older)
    try:
        part.rename(out)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            if os.path.lexists(older):
                older.rename(out)
            raise
        remove_path(older)
        raise UserError(f"{out}: another run has put its output there meanwhile; choose another --out") from error
    for left in out.parent.glob(f"{glob.escape(f'.{out.name}.lemur-')}*{_OLD}"):  # also of a run killed in between
        remove_path(left)


@contextlib.contextmanager
def scratch_folder(
    name: str, remove: Callable[[Path], None] = remove_path, parent: Path | None = None
) -> Iterator[Path]:
    """Yield an empty temporary folder, and remove it at the end; first remove those that killed processes left.

    Args:
        name: the purpose of the folder, such as `publish`.
        remove: the function that removes a folder, if foreign code fills it.
        parent: the folder of temporary files by default.
    """
    temporary = parent or Path(tempfile.gettempdir()).resolve()
    remove_dead(temporary, remove)
    folder = temporary / unfinished_name(name)
    folder.mkdir(mode=0o700)  # others may read the folder of temporary files
    try:
        with writing_in(temporary):
            yield folder
    finally:
        remove(folder)


def unfinished_name(name: str) -> str:
    """Return a hidden name for a file or folder that is unfinished or about to be removed, for `remove_dead`."""
    return f".{name}.lemur-{_hash_host()}-{os.getpid()}-{secrets.token_hex(4)}{_PART}"


@functools.cache
def _hash_host() -> str:
    """Return a digest of where process numbers are unique: a machine, or a container of it."""
    try:
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 (the text of the link is meant)
    except OSError:  # not Linux
        space = ""
    return f"{zlib.crc32(f'{socket.gethostname()} {space}'.encode()):08x}"


def remove_dead(folder: Path, remove: Callable[[Path], None] = remove_path) -> None:
    """Remove the unfinished files of killed processes from a folder that other processes may be using.

    Those of other machines and containers stay: whether their processes live cannot be known here.
    """
    for path in folder.glob(f".*.lemur-{_hash_host()}-*{_PART}"):
        maker = re.search(rf"-(\d{{1,9}})-\w+{re.escape(_PART)}$", path.name)
        try:
            status = path.lstat()
            os.kill(int(maker[1]) if maker else 0, 0)
        except ProcessLookupError:
            # Others may write to the folder of temporary files.
            if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
                remove(path)
        except OSError:  # it has gone meanwhile, or its process is another user's
            continue


def check_writable(out: Path, option: str = "--out") -> None:
    """Check, before minutes of work, that a file or folder can be created afterwards; nothing is created.

    Args: option: the option that named it, for messages.
    Raises: UserError if the nearest existing parent is a file, or is not writable.
    """
    parent = next((folder for folder in out.absolute().parents if folder.exists()), out)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        number = errno.EACCES if parent.is_dir() else errno.ENOTDIR
        raise UserError(f"{out}: cannot be written: {parent}: {os.strerror(number)}; choose another {option}")


def check_new_file(out: Path, option: str = "--out", *, force: bool = False) -> None:
    """Check, before minutes of work, that an output file can be put in place afterwards; `force` accepts an older one.

    Raises: UserError if it is a folder, exists, or cannot be created.
    """
    if out.is_dir() or (out.exists() and not force):
        more = "" if out.is_dir() else ", or add --force"
        raise UserError(f"{out}: exists already; choose another {option}{more}")
    check_writable(out, option)


def check_free(out: Path, *, force: bool) -> None:
    """Check, before hours of work, that an output folder can be put in place afterwards.

    Args: force: accept a folder that holds only files that lemur wrote.
    Raises: UserError if `out` cannot be created, is in a finished folder, is a file, or is a folder with files in it
        that may not be replaced.
    """
    check_writable(out)
    if around := next(filter(is_ours, out.absolute().parents), None):
        raise UserError(f"{out}: is inside {around}, which is finished; choose another --out")
    _check_replaceable(out, force=force)


def _check_replaceable(out: Path, *, force: bool) -> None:
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file, not a folder; choose another --out")
    if any(out.iterdir()) and not force:
        raise UserError(f"{out}: exists already; choose another --out, or add --force to replace it")
    check_ours(out)


#: Of a finished folder (`manifests.folders.manifest`): the keys of its manifest, and its files that are not outputs:
#: the manifest, and the page, to which older releases added a list of its files.
_KEYS = frozenset({"kind", "versions", "parameters", "inputs", "counts", "details", "outputs", "measured"})
_MANIFEST, PAGE = "manifest.json", re.compile(r"index\.html|page/(?:[0-9]{3,}\.js|files\.json)")


def check_ours(folder: Path) -> None:
    """Check that a folder may be removed: its manifest says that lemur wrote it, and lists every file in it.

    A listed file may have been edited since. Links count as files; bytecode, which Python makes, does not.

    Raises: UserError that names a file that lemur did not write, or if the folder cannot be listed.
    """

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be listed: {error.strerror}; choose another --out") from error

    inside: set[str] = set()
    for parent, folders, names in os.walk(folder, onerror=refuse):  # does not follow links
        links = [name for name in folders if Path(parent, name).is_symlink()]
        inside |= {Path(parent, name).relative_to(folder).as_posix() for name in (*names, *links)}
    inside = {name for name in inside if not (name.endswith(".pyc") and "__pycache__" in name.split("/"))}
    if not inside:
        return
    manifest = _read_json(folder / _MANIFEST)
    if not manifest.keys() >= _KEYS or not isinstance(manifest["outputs"], list):
        why = "has no manifest.json, so lemur did not write it"
        if _MANIFEST in inside:
            why = "its manifest.json is unreadable, damaged or another program's, so remove the folder yourself"
        raise UserError(f"{folder}: {why}{', or' if _MANIFEST in inside else ';'} choose another --out")
    listed = {str(item["path"]) for item in manifest["outputs"] if isinstance(item, dict) and "path" in item}
    others = sorted(name for name in inside - listed - {_MANIFEST} if not PAGE.fullmatch(name))
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        raise UserError(
            f"{folder}: holds {make_visible(others[0], 80)}{more}, which lemur did not write; move it elsewhere, or"
            " choose another --out"
        )


def is_ours(folder: Path) -> bool:
    """Return whether a folder's manifest says that lemur wrote it."""
    return _read_json(folder / _MANIFEST).keys() >= _KEYS


def _read_json(path: Path) -> Json:
    """Read a JSON object; an empty one if the file has none."""
    try:
        value = json.loads(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
