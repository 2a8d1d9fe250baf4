"""Software Heritage identifiers, which anyone can compute from the content itself.

Source: https://www.swhid.org/specification/ (the core identifiers are those of git objects)
"""

import hashlib
from collections.abc import Iterable


def qualify_swhid(swhid: str, *, origin: str, anchor: str, path: str, lines: tuple[int, int]) -> str:
    """Return the identifier of lines of a file, with their context in canonical order.

    Args:
        swhid: of the file.
        origin, anchor: where it is from, and the identifier of the folder or revision; empty if unknown.
        path: from the root of the anchor, starting with "/".
        lines: first and last, from 1.
    """
    first, last = lines
    qualifiers = {
        "origin": origin.replace("%", "%25").replace(";", "%3B"),
        "anchor": anchor,
        "path": path.replace("%", "%25").replace(";", "%3B"),
        "lines": str(first) if first == last else f"{first}-{last}",
    }
    return swhid + "".join(f";{key}={value}" for key, value in qualifiers.items() if value)


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
