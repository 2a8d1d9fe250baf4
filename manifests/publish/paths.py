"""The shapes of absolute paths that tell whose machine a text was written on: home folders, this machine's folders."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from manifests.publish.shapes import Shape

KIND = "absolute path"

#: Every machine has these; what lies below one of them is of this machine only if it is there.
_COMMON = frozenset({"/root", "/tmp", "/var/tmp"})  # noqa: S108 (nothing is written there)
_REST = r"[^\s\"'`<>|,;:()\[\]{}\\]*"
_HOMES = (
    ("/home/", r"/home/[\w.-]+/"),
    ("/Users/", r"(?:\b[A-Za-z]:)?/Users/[\w.-]+/"),
    ("\\Users\\", r"\b[A-Za-z]:\\{1,4}Users\\{1,4}[^\\/:*?\"<>|\s]+\\"),
    ("/root/", "/root/"),
)
_RELATIVE = re.compile(rb"[\w.~/-]")


def own_folders(*more: Path) -> tuple[str, ...]:
    """The home, working and temporary folder of this process, and `more`: as they are called, and where links lead."""
    named = {path.absolute() for path in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *more)}
    found = {str(path) for path in named | {path.resolve() for path in named}}
    return tuple(sorted(path for path in found if path.count("/") > 1 or path in _COMMON))


def path_shapes(folders: tuple[str, ...]) -> tuple[Shape, ...]:
    """Paths below this machine's folders, and then those of anybody's home."""
    own = [
        Shape(
            KIND,
            folder.encode(),
            re.compile(rf"{re.escape(folder)}(?![\w-]){_REST}".encode()),
            _is_absolute,
            False,
            _judge(folder),
        )
        for folder in folders
    ]
    homes = [
        Shape(KIND, head.encode(), re.compile(f"{rest}{_REST}".encode()), _is_absolute, False) for head, rest in _HOMES
    ]
    return (*own, *homes)


def _judge(folder: str) -> Callable[[bytes], bool]:
    """Whether a path below a folder is of this machine."""

    def ours(text: bytes) -> bool:
        name = text.decode("utf-8", "replace")[len(folder) :].strip("/").partition("/")[0]
        return folder not in _COMMON or (bool(name) and (Path(folder) / name).exists())

    return ours


def _is_absolute(data: bytes, at: int) -> bool:
    """Whether a path that begins here is not the rest of a relative one or of a web address."""
    before = data[max(0, at - 7) : at]
    return before.endswith(b"file://") or not _RELATIVE.match(before[-1:])
