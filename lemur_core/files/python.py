"""The text of Python files: one function decides what it is, for all that read, check and run them."""

import codecs
import re
from collections.abc import Iterable
from pathlib import Path

from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import escape_controls

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
