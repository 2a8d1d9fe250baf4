"""What the server asks the machine about its jobs, and how it cleans up after them."""

import contextlib
import os
import re
import secrets
import signal
import sys
from pathlib import Path

_BLOCK = 4096
_LONGEST_PATH = 3500  # the kernel takes 4095 bytes
_MOST_ROUNDS = 100_000


def folder_bytes(folder: Path) -> int | None:
    """Bytes that a folder takes on disk, each entry counted as a block at least; None if it is nested too deep."""
    total, waiting = 0, [str(folder)]
    while waiting:
        path = waiting.pop()
        if len(path) > _LONGEST_PATH:
            return None
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    total += max(_BLOCK, status.st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # the job moves, removes and locks things meanwhile
    return total


def count_threads(process: int) -> int:
    """Threads of a process; 0 once it is gone, or where there is no /proc."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    found = re.search(r"^Threads:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def end_orphans(spare: set[int]) -> None:
    """Kill every child of this process but the ones to spare: what jobs without walls left behind. Linux only."""
    if sys.platform != "linux":
        return
    while orphans := _children() - spare:
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def _children() -> set[int]:
    own, found = os.getpid(), set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == own:
                    found.add(int(folder.name))
    return found


def address_space() -> int:
    """Bytes of address space that this process takes; 0 where that cannot be seen."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def remove_folder(folder: Path) -> None:
    """Remove a folder that a job has filled, however deep it nested its folders and whatever rights it took from them.

    Folders two levels down are moved up until none is left: no recursion, and no path that the kernel finds too long.
    What cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        for _ in range(_MOST_ROUNDS):  # a process without walls could go on making new ones
            entries = list(folder.iterdir())
            for entry in entries:
                if not _unlock(entry):
                    entry.unlink()
                    continue
                for child in list(entry.iterdir()):
                    if _unlock(child):
                        child.rename(folder / f"{secrets.token_hex(8)}.moved")
                    else:
                        child.unlink()
                entry.rmdir()
            if not entries:
                break
        folder.rmdir()


def _unlock(path: Path) -> bool:
    """Whether it is a folder (a link is not); if so, it can now be emptied."""
    if path.is_symlink() or not path.is_dir():
        return False
    path.chmod(0o700)
    return True
