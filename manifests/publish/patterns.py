"""Patterns of texts that must not be published, each with a short prefix that rules out almost all texts quickly.

Searching for the prefixes is ten times as fast as one regular expression for all of them: `re` tries every branch at
every position. The patterns here are those of absolute paths that reveal whose machine a text was written on.
"""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hit:
    """One match in a text."""

    kind: str
    at: int
    text: bytes
    secret: bool
    ours: bool  # a path on this machine


@dataclass(frozen=True, slots=True)
class Shape:
    """One pattern to look for: every text that it matches contains `head`; of a group `secret`, that counts."""

    kind: str
    head: bytes
    pattern: re.Pattern[bytes]
    holds: Callable[[bytes, re.Match[bytes]], bool]  # whether a match counts, by its text and the one around it
    secret: bool
    ours: Callable[[bytes], bool] | None = None

    def find(self, data: bytes) -> Iterator[Hit]:
        """Yield the matches, in order."""
        if self.head in data:
            group = "secret" if "secret" in self.pattern.groupindex else 0
            for match in self.pattern.finditer(data):
                if self.holds(data, match):
                    ours = self.ours is not None and self.ours(match[0])
                    yield Hit(self.kind, match.start(group), match[group], self.secret, ours)


#: A character as escaped in JSON and string literals: the text after it does not continue its letters.
_ESCAPE = re.compile(rb"\\(?:[nrtbfv\"'0]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})\Z")


def after_escape(data: bytes, at: int) -> bool:
    """Return whether an escaped character ends just before a position."""
    return _ESCAPE.search(data[max(0, at - 6) : at]) is not None


KIND = "absolute path"

#: Many machines have these, and folders like /data and /workspace; a path below is ours only if it exists here.
_COMMON = frozenset({"/root", "/tmp", "/var/tmp"})  # noqa: S108 (nothing is written there)
_REST = r"[^\s\"'`<>|,;:()\[\]{}\\]*"
_SEGMENT = r"(?:[^\s/\"'`<>|,;:()\[\]{}\\]|\\u[0-9a-fA-F]{4})+"
_NAME = rf"{_SEGMENT}(?:(?: {_SEGMENT})?/|\b)"  # of a user; two words only if a path continues after it
_HOMES = (
    ("/home/", rf"/home/{_NAME}"),
    ("/Users/", rf"(?:\b[A-Za-z]:)?/Users/{_NAME}"),
    *((f"\\{users}\\", rf"\b[A-Za-z]:\\{{1,4}}{users}\\{{1,4}}[^\\/:*?\"<>|\r\n]+\\") for users in ("Users", "users")),
    ("/root/", "/root/"),
)
#: Every machine may have these: a process that runs in one of them reveals nothing about its owner.
_SYSTEM = frozenset({"/", "/bin", "/dev", "/etc", "/home", "/lib", "/opt", "/proc", "/sys", "/usr", "/Users", "/var"})
_RELATIVE = re.compile(rb"[\w.~/-]")
_FLAG = re.compile(rb"(?:^|[\s\"'=])-[A-Za-z]\Z")  # as in -I/home/jane/include


def own_folders(*more: Path) -> tuple[str, ...]:
    """Return the home, working and temporary folder of this process, and `more`: as named, and with links resolved."""
    named = {path.absolute() for path in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *more)}
    folders = {str(path) for path in named | {path.resolve() for path in named}}
    return tuple(sorted(folders - _SYSTEM))


def path_shapes(folders: tuple[str, ...]) -> tuple[Shape, ...]:
    """Return patterns for paths below this machine's folders, then for those below anybody's home."""
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
    """Return a predicate for paths below a folder, possibly with escapes: whether they are on this machine."""
    shared = folder in _COMMON or folder.count("/") == 1

    def ours(text: bytes) -> bool:
        name = text.decode("utf-8", "replace")[len(written) :].strip("/").partition("/")[0]
        return not shared or (bool(name) and (Path(folder) / name).exists())

    return ours


def _is_absolute(data: bytes, match: re.Match[bytes]) -> bool:
    """Return whether a path is absolute, not the rest of a relative one or of a web address."""
    at = match.start()
    before = data[max(0, at - 7) : at]
    begins = before.endswith(b"file://") or not _RELATIVE.match(before[-1:])
    return begins or after_escape(data, at) or _FLAG.search(before) is not None
