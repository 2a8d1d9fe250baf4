"""Find texts in other spellings: literals in parts, escapes, hexadecimal, base64, lists of numbers, `%5F`.

`k = "ghp_abc" + "def"` holds `ghp_abcdef`, and so do `f"{a}def"` after `a = "ghp_abc"`, and a list of both with `join`.
The literals are joined as they follow each other, whatever joins them: what is searched for in the result is too
special to arise by chance. A text that is computed otherwise, such as one written backwards, is not seen.
"""

import base64
import binascii
import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

_FEWEST = 16  # characters of a text that could be a secret


@dataclass(frozen=True, slots=True)
class Fragment:
    """A text that stands in another spelling at a place of the original."""

    at: int
    text: bytes


#: A literal without spaces, perhaps inside a JSON string; as a token, or a part of one, is written.
_LITERAL = re.compile(rb"""(["'])([\w\-./+=:{}%!~,@\\]{0,400})\1""")
_FARTHEST = 60  # bytes between two literals of one expression
_INSERTED = re.compile(rb"\{[\w.:!]*\}|%s")  # where a format inserts a literal before or after
_JOIN = re.compile(rb"\s*\.join\(")
_APART = re.compile(rb"\s*[,:]\s*")  # two items of a list, or a key and its value
_DIRECT = re.compile(rb"[\s\\+]*[rbfuRBFU]{0,2}")  # between the parts of one expression
_MOST_PARTS = 40
_ESCAPE = re.compile(rb"\\+(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([0-7]{1,3}))")


def _join_literals(data: bytes) -> Iterator[Fragment]:
    """Yield the texts of literals that follow each other closely, and of single literals with escapes."""
    run: list[Fragment] = []
    begins: list[int] = []  # where in the run a statement or an argument begins, so that a text may, too
    separator: bytes | None = None
    end = 0
    for match in _LITERAL.finditer(data):
        gap = data[end : match.start()]
        if len(gap) > _FARTHEST or b"\0" in gap or (separator is None and _APART.fullmatch(gap)):
            yield from _joined(run, begins, separator)
            run, begins, separator = [], [], None
        end, text = match.end(), match[2].rstrip(b"\\")
        if separator is None and _JOIN.match(data, end):
            separator = text
            begins.append(len(run))
            continue
        if not run or (separator is None and not _DIRECT.fullmatch(gap)):
            begins.append(len(run))
        run.append(Fragment(match.start(2), text))
    yield from _joined(run, begins, separator)


def _joined(run: list[Fragment], begins: list[int], separator: bytes | None) -> Iterator[Fragment]:
    for start in dict.fromkeys(begins):
        parts = [part.text for part in run[start : start + _MOST_PARTS]]
        if len(parts) > 1 or any(b"\\" in part for part in parts):
            text = _unescape((separator or b"").join(_INSERTED.sub(b"", part) for part in parts))
            if len(text) >= _FEWEST:
                yield Fragment(run[start].at, text)


def _unescape(text: bytes) -> bytes:
    def character(match: re.Match[bytes]) -> bytes:
        byte, unit, octal = match.groups()
        return chr(int(octal, 8) if octal else int(byte or unit, 16)).encode("utf-8", "replace")

    return _ESCAPE.sub(character, text)


def _decode_base64(text: bytes) -> bytes:
    plain = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    try:
        return base64.b64decode(plain + b"=" * (-len(plain) % 4))
    except binascii.Error:
        return b""


def _decode_numbers(text: bytes) -> bytes:
    numbers = [int(number, 16 if b"x" in number else 10) for number in re.findall(rb"\w+", text)]
    return bytes(numbers) if max(numbers) < 127 else b""


#: What another spelling looks like, and what it stands for. Each begins with what is rare: they read all of LEMUR.
_SPELLINGS: tuple[tuple[re.Pattern[bytes], Callable[[bytes], bytes]], ...] = (
    (re.compile(rb"\b(?:[0-9a-fA-F]{2}){16,}\b"), lambda text: bytes.fromhex(text.decode())),
    (re.compile(rb"\b[\w+/-]{22,}={0,2}"), _decode_base64),
    (
        re.compile(rb"(?<=[\[({])\s*(?:\d{2,3}|0x[0-9a-fA-F]{2})(?:,\s*(?:\d{2,3}|0x[0-9a-fA-F]{2})){15,}"),
        _decode_numbers,
    ),
)
_REPLACED = re.compile(rb"%[0-9A-Fa-f]{2}|&(?:#\w+|amp);")
_WITHIN = rb"[\w.~:/?&=+@#;%-]{0,200}"
_BEFORE, _AFTER = re.compile(_WITHIN + rb"\Z"), re.compile(_WITHIN)
_PRINTABLE = re.compile(rb"[\t\n\r -~]{12,}")


def find_fragments(data: bytes) -> Iterator[Fragment]:
    """Yield the printable texts that stand in another spelling.

    Args: data: a text in UTF-8, or any bytes.
    """
    yield from _join_literals(data)
    for spelling, decode in _SPELLINGS:
        for match in spelling.finditer(data):
            text = decode(match[0])
            if _PRINTABLE.fullmatch(text):
                yield Fragment(match.start(), text)
    yield from _unquote(data)


def _unquote(data: bytes) -> Iterator[Fragment]:
    """Yield the texts around signs that are written as in a web address or a page."""
    end = 0
    for match in _REPLACED.finditer(data):
        if match.start() >= end:
            before = _BEFORE.search(data[max(end, match.start() - 200) : match.start()])
            after = _AFTER.match(data, match.start())
            start, end = match.start() - len(before[0] if before else b""), after.end() if after else match.end()
            text = unquote_to_bytes(data[start:end]).decode("utf-8", "replace")
            yield Fragment(start, html.unescape(text).encode("utf-8", "replace"))
