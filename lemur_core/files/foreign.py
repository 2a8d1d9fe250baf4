"""Read files of others without being led out of their folder, kept waiting, or flooded; and the text of Python files.

One function decides what the text of a Python file is, for all that read, check and run them.
"""

import codecs
import errno
import io
import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, BinaryIO

from lemur_core.files.errors import SpecialFileError, UserError
from lemur_core.files.markdown import escape_controls, is_unicode, make_visible


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


def check_growth(where: str, packed: int, size: int) -> None:
    """Check that content is not out of proportion to its compressed form, as that of a decompression bomb is.

    Args:
        where: the name of the file, for the message.
        packed: bytes of the compressed form that were read.
        size: bytes of content so far, or as the file states them.
    Raises: UserError if it is.
    """
    limit = FLOOR_BYTES + RATIO * packed
    if size > limit:
        raise UserError(
            f"{where}: {packed:,} bytes of it unpack to more than {limit:,}, so it is not read;"
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


# --- the text of Python files ---------------------------------------------------------------------------------------

_BOM = b"\xef\xbb\xbf"
#: A declared encoding (PEP 263): in the first line, or in the second below a blank line or a comment.
_DECLARED = re.compile(
    rb"(?:[ \t\f]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))??[ \t\f]*#[^\r\n]*?coding[:=][ \t]*([-\w.]+)", re.ASCII
)
_UTF_8, _LATIN_1 = "utf-8", "iso8859-1"
_PLAIN_ENCODINGS = frozenset({"ascii", _LATIN_1, _UTF_8})


def decode_python(source: bytes | str) -> str:
    """Return the text of a Python file: what is checked, and what runs.

    Encodings other than UTF-8, which is the default, and Latin-1 are refused: in `unicode_escape`, for example, what
    reads as a comment may be code.

    Args: source: the bytes of a file; or a text, whose UTF-8 bytes Python must read as that text.
    Returns: the text without byte-order mark, with `\n` line endings; what it declares, if anything, is UTF-8.
    Raises: SyntaxError if it declares another encoding, or is not valid in it; ValueError for a lone surrogate.
    """
    raw = source.encode() if isinstance(source, str) else source
    is_marked = isinstance(source, bytes) and source.startswith(_BOM)
    raw = raw.removeprefix(_BOM) if is_marked else raw
    declared = _DECLARED.match(raw)
    encoding = _UTF_8 if declared is None else _find_encoding(declared[1].decode())
    if encoding not in ({_UTF_8} if is_marked else _PLAIN_ENCODINGS):
        marked = " after a byte-order mark" if is_marked else ""
        only = "only UTF-8 and Latin-1 are read, so save it as UTF-8"
        raise SyntaxError(f"declares the encoding {encoding}{marked}; {only}")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise SyntaxError(f"invalid {encoding.upper()} at byte {error.start}") from None
    if isinstance(source, str) and encoding == _LATIN_1 and not raw.isascii():
        raise SyntaxError("declares Latin-1, as which its UTF-8 would be read as another text; declare UTF-8")
    if declared is not None and encoding != _UTF_8:
        text = f"{text[: declared.start(1)]}{_UTF_8}{text[declared.end(1) :]}"
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _find_encoding(declared: str) -> str:
    """Return the name of an encoding: Python's own if it knows it, by the rules of its tokenizer."""
    plain = re.match(r"(utf-8|latin-1|iso-8859-1|iso-latin-1)(?:-|$)", declared[:12].lower().replace("_", "-"))
    if plain is not None:
        return _UTF_8 if plain[1] == _UTF_8 else _LATIN_1
    try:
        return codecs.lookup(declared[:40]).name
    except LookupError:
        return declared[:40]


def read_python_file(path: Path, advice: str) -> str:
    """Return the text of a Python file that a user names.

    Args: advice: the end of the message if it cannot be read: what to give instead.
    Raises: UserError if there is no such file, or it is no text.
    """
    check_plain(path)
    try:
        return decode_python(path.read_bytes())
    except (OSError, SyntaxError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.msg
        raise UserError(f"{path}: cannot be read: {reason}; {advice}") from error


def comment_lines(lines: Iterable[str]) -> list[str]:
    """Return lines as comments: all that is in them stays one, wherever they stand, and declares no encoding.

    Args: lines: of any origin; line ends in them begin another comment, and other control characters are escaped.
    """
    pieces = [escape_controls(piece) for line in lines for piece in line.split("\n")]
    pieces[:2] = [re.sub(r"coding(?=[:=])", "coding ", piece) for piece in pieces[:2]]
    return [f"# {piece}".rstrip() for piece in pieces]
