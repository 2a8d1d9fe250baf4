"""Software Heritage identifiers, which anyone can compute from the content itself.

Source: https://www.swhid.org/specification/ (the core identifiers are those of git objects)
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import unquote

Kind = Literal["cnt", "dir", "rev", "rel", "snp"]

_SWHID_RE = re.compile(r"swh:1:(?P<kind>cnt|dir|rev|rel|snp):(?P<sha1>[0-9a-f]{40})(?P<qualifiers>(?:;[a-z]+=[^;]*)*)")
_LINES_RE = re.compile(r"(?P<first>[1-9][0-9]*)(?:-(?P<last>[1-9][0-9]*))?")


@dataclass(frozen=True, slots=True)
class Swhid:
    """One identifier; its qualifiers give the context of the object, and `str()` writes them in canonical order."""

    kind: Kind
    sha1: str
    origin: str = ""
    anchor: str = ""
    path: str = ""  # from the root of the anchor, starting with "/"
    lines: tuple[int, int] | None = None  # first and last, from 1

    def __post_init__(self) -> None:
        if self.lines is not None and not 1 <= self.lines[0] <= self.lines[1]:
            raise ValueError(f"lines {self.lines[0]}-{self.lines[1]}: not a range of line numbers, which start at 1")

    @classmethod
    def from_string(cls, text: str) -> Self:
        """Parse an identifier.

        Raises: ValueError if it is invalid, or has an unknown or duplicate qualifier.
        """
        match = _SWHID_RE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a SWHID such as swh:1:cnt:<40 hexadecimal digits>;lines=9-15")
        values: dict[str, str] = {}
        for item in match["qualifiers"].split(";")[1:]:
            key, _, value = item.partition("=")
            if key in values or key not in ("origin", "anchor", "path", "lines"):
                raise ValueError(f"{text!r}: qualifier {key!r} is unknown or occurs twice")
            values[key] = unquote(value, errors="strict") if key in ("origin", "path") else value
        lines = _read_lines(values.pop("lines")) if "lines" in values else None
        return cls(match["kind"], match["sha1"], lines=lines, **values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        first, last = self.lines or (0, 0)
        qualifiers = {
            "origin": _escape(self.origin),
            "anchor": self.anchor,
            "path": _escape(self.path),
            "lines": "" if self.lines is None else str(first) if first == last else f"{first}-{last}",
        }
        return f"swh:1:{self.kind}:{self.sha1}" + "".join(
            f";{key}={value}" for key, value in qualifiers.items() if value
        )


def blob_sha1(data: bytes) -> str:
    """Return the SHA-1 of a file's bytes as a git blob, in hex.

    Args: data: the bytes as they are on disk, with unchanged line endings.
    Returns: 40 digits, as `git hash-object` prints them.
    """
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def content_swhid(data: bytes) -> str:
    """Return the identifier of a file's bytes.

    Args: data: as for `blob_sha1`.
    Returns: `swh:1:cnt:` and 40 digits.
    """
    return f"swh:1:cnt:{blob_sha1(data)}"


def directory_swhid(files: Iterable[tuple[str, str]]) -> str:
    """Return the identifier of a folder of plain files.

    Args: files: in any order: the path relative to the folder, with forward slashes, and the `blob_sha1`.
    Returns: `swh:1:dir:` and 40 digits, as git names the tree.
    Raises: ValueError if a path is not a plain relative path, occurs twice, or is both a file and a folder.
    """
    root: _Folder = {}
    for path, blob in files:
        *parents, name = path.split("/")
        if not name or any(part in ("", ".", "..") for part in (*parents, name)) or "\0" in path:
            raise ValueError(f"{path!r} is not a plain relative path")
        folder = root
        for part in parents:
            subfolder = folder.setdefault(part, {})
            if not isinstance(subfolder, dict):
                raise ValueError(f"{path!r}: {part!r} is a file")
            folder = subfolder
        if name in folder:
            raise ValueError(f"{path!r} occurs twice")
        folder[name] = blob
    return f"swh:1:dir:{_hash_folder(root)}"


_Folder = dict[str, "str | _Folder"]


def _hash_folder(folder: _Folder) -> str:
    entries: list[tuple[bytes, bytes]] = []
    for name, item in folder.items():
        raw = name.encode("utf-8", "surrogateescape")
        if isinstance(item, dict):  # git sorts a folder as if its name ended with a slash
            entries.append((raw + b"/", b"40000 " + raw + b"\0" + bytes.fromhex(_hash_folder(item))))
        else:
            entries.append((raw, b"100644 " + raw + b"\0" + bytes.fromhex(item)))
    body = b"".join(entry for _, entry in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


def _escape(value: str) -> str:
    return value.replace("%", "%25").replace(";", "%3B")


def _read_lines(text: str) -> tuple[int, int]:
    match = _LINES_RE.fullmatch(text)
    if match is None:
        raise ValueError(f"lines={text}: give one line number or FIRST-LAST, counted from 1")
    return int(match["first"]), int(match["last"] or match["first"])
