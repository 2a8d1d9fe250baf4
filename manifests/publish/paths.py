"""The shapes of absolute paths that tell whose machine a text was written on: home folders, this machine's folders."""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from manifests.publish.shapes import Shape, after_escape

KIND = "absolute path"

#: Many machines have these, and folders like /data and /workspace; what lies below is of this one only if it is there.
_COMMON = frozenset({"/root", "/tmp", "/var/tmp"})  # noqa: S108 (nothing is written there)
_REST = r"[^\s\"'`<>|,;:()\[\]{}\\]*"
_WORD = r"(?:[^\s/\"'`<>|,;:()\[\]{}\\]|\\u[0-9a-fA-F]{4})+"
_NAME = rf"{_WORD}(?:(?: {_WORD})?/|\b)"  # of a user; in two words only where a path goes on behind it
_HOMES = (
    ("/home/", rf"/home/{_NAME}"),
    ("/Users/", rf"(?:\b[A-Za-z]:)?/Users/{_NAME}"),
    *((f"\\{users}\\", rf"\b[A-Za-z]:\\{{1,4}}{users}\\{{1,4}}[^\\/:*?\"<>|\r\n]+\\") for users in ("Users", "users")),
    ("/root/", "/root/"),
)
#: Every machine may have these: a process that runs in one of them says nothing of whose it is.
_SYSTEM = frozenset({"/", "/bin", "/dev", "/etc", "/home", "/lib", "/opt", "/proc", "/sys", "/usr", "/Users", "/var"})
_RELATIVE = re.compile(rb"[\w.~/-]")
_FLAG = re.compile(rb"(?:^|[\s\"'=])-[A-Za-z]\Z")  # as in -I/home/jane/include


def own_folders(*more: Path) -> tuple[str, ...]:
    """The home, working and temporary folder of this process, and `more`: as they are called, and where links lead."""
    named = {path.absolute() for path in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *more)}
    found = {str(path) for path in named | {path.resolve() for path in named}}
    return tuple(sorted(found - _SYSTEM))


def path_shapes(folders: tuple[str, ...]) -> tuple[Shape, ...]:
    """Paths below this machine's folders, and then those of anybody's home."""
    own = [
        Shape(
            KIND,
            written.encode(),
            re.compile(rf"{re.escape(written)}(?![\w-]){_REST}".encode()),
            _is_absolute,
            False,
            _judge(folder, written),
        )
        for folder in folders
        for written in dict.fromkeys((folder, json.dumps(folder)[1:-1]))
    ]
    homes = [
        Shape(KIND, head.encode(), re.compile(f"{rest}{_REST}".encode()), _is_absolute, False) for head, rest in _HOMES
    ]
    return (*own, *homes)


def _judge(folder: str, written: str) -> Callable[[bytes], bool]:
    """Whether a path below a folder, which a text may write with escapes, is of this machine."""
    shared = folder in _COMMON or folder.count("/") == 1

    def ours(text: bytes) -> bool:
        name = text.decode("utf-8", "replace")[len(written) :].strip("/").partition("/")[0]
        return not shared or (bool(name) and (Path(folder) / name).exists())

    return ours


def _is_absolute(data: bytes, at: int) -> bool:
    """Whether a path that begins here is not the rest of a relative one or of a web address."""
    before = data[max(0, at - 7) : at]
    begins = before.endswith(b"file://") or not _RELATIVE.match(before[-1:])
    return begins or after_escape(data, at) or _FLAG.search(before) is not None
