"""Kill a command at a chosen change of the file system, as `kill -9` does: deterministic, unlike a kill after a time."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lemur_core.files.atomic import sha256_file

#: Counts what the process writes, creates, renames and removes, and what it starts; ends it at the number that is asked for.
_COUNTING = """
import atexit, os, sys
left, seen = int(os.environ.pop("KILL_AT")), 0
def count(event, arguments):
    global seen
    writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "subprocess.Popen", "sqlite3.connect"):
        seen += 1
        if seen == left:
            os.kill(os.getpid(), 9)
sys.addaudithook(count)
atexit.register(lambda: print("CHANGES", seen, file=sys.stderr))
from lemur import main
main()
"""


#: Python's `tempfile` writes a file of such a name, to see whether a folder can be written to.
PROBE = re.compile(r"[a-z0-9_]{8}")


def run_counted(
    arguments: Sequence[object], cwd: Path, kill_at: int, environment: Mapping[str, str], first: str = ""
) -> tuple[int, int]:
    """Run `lemur` with arguments in a folder, and kill it at a change of the file system; 0 for never.

    Args: first: code that runs before, uncounted.
    Returns: its exit status, negative if it was killed, and how many changes it made, 0 if it was killed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", first + _COUNTING, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", **environment, "KILL_AT": str(kill_at)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    counts = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("CHANGES ")]
    return done.returncode, int(counts[0]) if done.returncode == 0 else 0


def digests(folder: Path, *, volatile: Sequence[str] = ()) -> dict[str, str]:
    """Return the digest of each file below a folder, but for those that state times."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in volatile)
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def list_unfinished(folder: Path) -> list[str]:
    left = (path for path in folder.rglob("*") if path.suffix in (".part", ".old", ".moved"))
    return sorted(path.relative_to(folder).as_posix() for path in left)
