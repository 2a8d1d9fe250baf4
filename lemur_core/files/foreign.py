"""Read files of others without being led out of their folder, kept waiting, or flooded."""

import errno
import io
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, BinaryIO

from lemur_core.files.errors import SpecialFileError, UserError
from lemur_core.files.markdown import is_unicode, make_visible


def locate_inside(folder: Path, path: Path) -> Path:
    """Return the file that a path in a folder names, behind any links.

    A hard link cannot be distinguished from a file.

    Args: folder: the folder that is read. path: listed there without entering links to folders.
    Returns: an existing plain file.
    Raises: OSError, with a `strerror` for people, if a link leaves the folder, or there is no plain file.
    """
    target = Path(os.path.realpath(path, strict=True)) if path.is_symlink() else path  # resolve() hides loops
    if target is not path and not target.is_relative_to(folder.resolve()):
        raise OSError(errno.EXDEV, "a link that leaves the folder is not followed", str(path))
    if not target.is_file():
        raise OSError(errno.EINVAL, "it is neither a file nor a link to one", str(path))
    return target


def check_name(path: Path | str) -> None:
    """Check that a name can be written into manifests, tables and cards, which are UTF-8.

    Args: path: a source, an output, or any other argument.
    Raises: UserError if its bytes are not UTF-8.
    """
    if not is_unicode(str(path)):
        raise UserError(f"{make_visible(str(path))}: its name is not UTF-8, so results cannot hold it; rename it")


#: Names of files with keys and passwords, in lower case; those of hidden files, such as `.env`, need not be here.
_SECRET_NAMES = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx", "*.gpg", "*.asc", "*.env"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "_netrc", "netrc", "htpasswd", "*.tfstate"),
    *("*.secret", "credentials", "credentials.*", "secret.*", "secrets", "secrets.*", "token", "token.*", "password*"),
)


def may_hold_secrets(name: str) -> bool:
    """Return whether a file is hidden, or its name is one of those that keys and passwords have; code is not.

    Args: name: of the file, without its folders.
    Returns: True for `.env`, `id_rsa`, `server.pem` and the like; False for `.py` files that are not hidden.
    """
    lower = name.lower()
    if lower.startswith("."):
        return True
    return not lower.endswith(".py") and any(fnmatchcase(lower, pattern) for pattern in _SECRET_NAMES)


def check_plain(path: Path, *, inside: bool = True) -> None:
    """Check that reading a path ends: it is a file, or a folder without pipes, sockets and devices at any depth.

    Args:
        path: a file or folder; one that does not exist is fine. Links to files are followed, links to folders below it
            are not.
        inside: look into a folder, too.
    Raises: SpecialFileError if it is something else, or a folder holds something else.
    """
    try:
        is_folder = path.is_dir()
        special = path if path.exists() and not is_folder and not path.is_file() else None
    except (OSError, ValueError):  # too long, or not a path at all, as reading it will say
        return
    if is_folder and inside:
        children = (Path(above, name) for above, _, names in os.walk(path) for name in names)
        special = next((child for child in children if child.exists() and not child.is_file()), None)
    if special is not None:
        raise SpecialFileError(
            f"{make_visible(str(special))}: is a pipe, a socket or a device, not a file; name a file"
        )


#: Content may have this many times the bytes that were read of its compressed form. Code shrinks to a quarter or a
#: tenth; rows that repeat a code of some KB to 1 / 170 with gzip, whose longest match, 258 bytes, then takes 12 bits.
RATIO = 200
#: Content of this size is never too large: every machine has room for it, in memory and on disk.
FLOOR_BYTES = 64 << 20
_STEP = 1 << 20  # bytes decompressed at a time at most


def check_growth(where: str, packed: int, size: int, *, ratio: int = RATIO, floor: int = FLOOR_BYTES) -> None:
    """Check that content is not out of proportion to its compressed form, as that of a decompression bomb is.

    Args:
        where: the name of the file, for the message.
        packed: bytes of the compressed form that were read.
        size: bytes of content so far, or as the file states them.
        ratio: the limit of `size / packed`, above a floor.
        floor: bytes that are always allowed.
    Raises: UserError if it is.
    """
    if size > floor + ratio * packed:
        raise UserError(
            f"{where}: {packed:,} bytes of it unpack to more than {floor + ratio * packed:,}, so it is not read;"
            " if you trust it, unpack it yourself and name what is in it"
        )


class BoundedStream(io.RawIOBase):
    """The content of a compressed file, which raises UserError before it exhausts memory or time.

    Args:
        where: the name of the file, for messages.
        packed: the compressed file, whose position says how much was read.
        content: the stream that decompresses it.
        most: bytes of content at most, whatever was read.
    """

    def __init__(
        self, where: str, packed: BinaryIO, content: IO[bytes] | io.BufferedIOBase, most: int | None = None
    ) -> None:
        self._where, self._packed, self._content, self._most, self._size = where, packed, content, most, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some content.

        Args: buffer: a writable buffer of bytes.
        Returns: the number of bytes read; 0 at the end.
        Raises: UserError if there is too much content.
        """
        data = self._content.read(min(len(buffer), _STEP))
        self._size += len(data)
        check_growth(self._where, self._packed.tell(), self._size)
        if self._most is not None and self._size > self._most:
            raise UserError(f"{self._where}: unpacks to more than {self._most:,} bytes")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close both streams."""
        self._content.close()
        self._packed.close()
        super().close()
