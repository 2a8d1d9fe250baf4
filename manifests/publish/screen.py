"""Search every file to be published for secrets and absolute paths, also in other spellings.

Other spellings are literals in parts, escapes, hexadecimal, base64, lists of numbers, `%5F`. `k = "ghp_abc" + "def"`
holds `ghp_abcdef`, and so do `f"{a}def"` after `a = "ghp_abc"`, and a list of both with `join`. The literals are joined
as they follow each other, whatever joins them: what is searched for in the result is too special to arise by chance. A
text that is computed otherwise, such as one written backwards, is not seen.
"""

import base64
import binascii
import hashlib
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.parquet as pq

from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import show_item, show_steps
from manifests.provenance import FULL, MINIMIZED
from manifests.publish.patterns import Hit, Shape, find_secrets, looks_random, own_folders, path_shapes

_FEWEST = 16  # characters of a text that could be a secret


@dataclass(frozen=True, slots=True)
class Fragment:
    """A text that the original contains in another spelling."""

    at: int
    text: bytes


#: A literal without spaces, perhaps inside a JSON string; as a token, or a part of one, is written.
_LITERAL = re.compile(rb"""(["'])([\w\-./+=:{}%!~,@\\]{0,400})\1""")
_FARTHEST = 60  # bytes between two literals of one expression
_INSERTED = re.compile(rb"\{[\w.:!]*\}|%s")  # where a format inserts a literal before or after
_JOIN = re.compile(rb"\s*\.join\(")
# Two items of a list, or a key and its value, also with brackets and numbers between: the graphs in a table are such.
_APART = re.compile(rb"(?=[^,:]*[,:])(?:[\s\[\]{},:]|-?[\d.]+|true|false|null)+")
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
            yield from _join_run(run, begins, separator)
            run, begins, separator = [], [], None
        end, text = match.end(), match[2].rstrip(b"\\")
        if separator is None and _JOIN.match(data, end):
            separator = text
            begins.append(len(run))
            continue
        if not run or (separator is None and not _DIRECT.fullmatch(gap)):
            begins.append(len(run))
        run.append(Fragment(match.start(2), text))
    yield from _join_run(run, begins, separator)


def _join_run(run: list[Fragment], begins: list[int], separator: bytes | None) -> Iterator[Fragment]:
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
    """Yield the printable texts that are there in another spelling.

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


_ROWS = 2_000  # per batch, so that a column of long codes takes little memory
_BETWEEN = b"\0\n"  # no pattern goes over it


@dataclass(frozen=True, slots=True)
class Texts:
    """The values of one column in some rows, or the fragments of a text: joined, so that one search covers them all."""

    column: str
    first_row: int
    values: Sequence[bytes]

    def find(self, search: Callable[[bytes], Iterable[Hit]]) -> Iterator[tuple[int, Hit]]:
        """Yield what a search finds in each value alone, with the index of the value."""
        ends = list(accumulate(len(value) + len(_BETWEEN) for value in self.values))
        places = {bisect_right(ends, hit.at) for hit in search(_BETWEEN.join(self.values))}
        for index in sorted(places):
            for hit in search(self.values[index]):
                yield index, hit


def table_texts(path: Path) -> Iterator[Texts]:
    """Yield every text of a table: columns of text and of bytes, texts inside lists and structs, and its schema.

    Raises: pyarrow.ArrowInvalid if it is not a Parquet file.
    """
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        metadata = [dict(item.metadata or {}) for item in (schema, *schema)]
        yield _pack("names", 0, pa.array(["\n".join([*schema.names, *_strings(metadata)])], pa.large_string()))
        row = 0
        for batch in file.iter_batches(batch_size=_ROWS):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                values = _as_text(column)
                if values is not None and len(values):
                    yield _pack(name, row, values)
            row += batch.num_rows


def _as_text(column: pa.Array) -> pa.Array | None:
    """Return a column as large strings; None if its type contains no text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_text(column.dictionary_decode())
    if pa.types.is_nested(kind):
        return pa.array(["\n".join(_strings(value)) for value in column.to_pylist()], pa.large_string())
    if pa.types.is_fixed_size_binary(kind):
        return pa.array(column.to_pylist(), pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    return None


def _strings(value: object) -> Iterator[str]:
    """Yield the texts inside a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, dict):
        for item in value.items():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _pack(column: str, first_row: int, values: pa.Array) -> Texts:
    return Texts(column, first_row, [value or b"" for value in values.cast(pa.large_binary()).to_pylist()])


#: Table columns with other people's code; the code folders of an extraction contain it, too.
_FOREIGN_COLUMNS = frozenset({"code", "lean_code", "nn_code", "prm", "messages"})
_SECRET_SHOWN = 4  # characters
_DIGEST = re.compile(r"[0-9a-f]{12}")
_FEW = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One secret or path: its file, line or row and column, and kind.

    Only the beginning of a secret is shown, with a digest that lets the user mark it as a false positive.
    """

    file: str
    where: str
    kind: str
    shown: str
    secret: bool
    refused: bool
    digest: str = ""

    def __str__(self) -> str:
        digest = f" [{self.digest}]" if self.digest else ""
        return f"{self.file}, {self.where}: {self.kind} {self.shown}{digest}"


def screen(files: Mapping[str, Path], *more: Path) -> list[Finding]:
    """Return all findings: in Parquet tables by row, in other files by line, or by byte where they are binary.

    Args: files: the files to publish, by their path in the repository. more: folders of this machine besides the home,
        working and temporary one.
    Raises: UserError if a table cannot be read.
    """
    paths = path_shapes(own_folders(*more))
    findings: list[Finding] = []
    with show_steps("search for secrets"):
        for name, path in sorted(files.items()):
            show_item(name)
            try:
                findings += _find(name, path, paths)
            except (OSError, pa.ArrowException) as error:
                reason = str(error).splitlines()[0]
                raise UserError(f"{path}: not readable: {reason}; create the folder again") from error
    return findings


def check_digests(not_secret: Collection[str]) -> None:
    """Check that each is a digest of a finding.

    Raises: UsageError if one is not.
    """
    for digest in not_secret:
        if not _DIGEST.fullmatch(digest):
            raise UsageError(f"--not-secret {digest}: use the 12 digits in brackets after the finding")


def list_refused(findings: Sequence[Finding], not_secret: Collection[str] = ()) -> list[Finding]:
    """Return the findings that must not be published, secrets first.

    Args: not_secret: as for `check_findings`.
    """
    refused = (item for item in findings if item.refused and item.digest not in not_secret)
    return sorted(refused, key=lambda item: not item.secret)


def check_findings(folder: Path, findings: Sequence[Finding], not_secret: Collection[str] = ()) -> list[str]:
    """Return notes on findings that may be published.

    Args: not_secret: digests of findings that were reviewed: they only look like secrets.
    Raises: UserError if a finding must not be published, secrets first.
    """
    allowed = [item for item in findings if item.digest in not_secret]
    if refused := list_refused(findings, not_secret):
        more = f" (and {len(refused) - _FEW:,} more)" if len(refused) > _FEW else ""
        advice = "create it again without"
        if refused[0].secret:
            advice = "revoke the secrets and create the folder again without them"
            advice += f"; for a false positive, such as an example in foreign code: --not-secret {refused[0].digest}"
        raise UserError(f"{folder}: {'; '.join(map(str, refused[:_FEW]))}{more}; {advice}")
    paths = [item for item in findings if not item.secret]
    notes = []
    for items, summary in (
        (paths, f"left as written: {plural(len(paths), 'absolute path')} in the code of others"),
        (allowed, f"left as written: {plural(len(allowed), 'text')} like a secret, by --not-secret"),
    ):
        if items:
            notes.append(f"{summary}, in {plural(len({item.file for item in items}), 'file')}: {items[0]}, ...")
    return notes


def _find(name: str, path: Path, paths: Sequence[Shape]) -> Iterator[Finding]:
    # The texts in a Parquet file are compressed, so they do not occur in its bytes.
    if name.endswith(".parquet"):
        for texts in table_texts(path):
            for index, hit in texts.find(lambda data: find_hits(data, paths)):
                where = f"row {texts.first_row + index}, column {texts.column}"
                yield _finding(name, where, hit, foreign=texts.column in _FOREIGN_COLUMNS)
        return
    data = path.read_bytes()
    for hit in find_hits(data, paths):
        where = f"byte {hit.at}" if b"\0" in data else f"line {data.count(10, 0, hit.at) + 1}"  # 10 is the line feed
        yield _finding(name, where, hit, foreign=name.startswith((FULL, MINIMIZED)))


def find_hits(data: bytes, paths: Sequence[Shape] = ()) -> list[Hit]:
    """Return the secrets and the paths in a text, also in other spellings; of those that overlap, the first.

    Args: paths: patterns of paths, from `path_shapes`.
    Returns: the hits, in the order of their places.
    """
    written = _without_overlaps([*find_secrets(data), *(hit for shape in paths for hit in shape.find(data))])
    fragments = list(find_fragments(data))
    spelled = [
        replace(hit, kind=f"{hit.kind} in another spelling", at=fragments[index].at)
        for index, hit in Texts("", 0, [item.text for item in fragments]).find(find_secrets)
        # Texts in their usual spelling are found anyway, and joined words may look like a token of letters.
        if hit.text not in data and (any(map(hit.text.__contains__, b"0123456789")) or looks_random(hit.text))
    ]
    return _without_overlaps([*written, *spelled])


def _without_overlaps(hits: Iterable[Hit]) -> list[Hit]:
    """Return the hits by place, each of which overlaps none that comes before it in `hits`."""
    kept: list[Hit] = []
    for hit in hits:
        place = bisect_right(kept, hit.at, key=lambda other: other.at)
        before, after = kept[max(0, place - 1) : place], kept[place : place + 1]
        if not any(other.at + len(other.text) > hit.at for other in before) and not any(
            other.at < hit.at + len(hit.text) for other in after
        ):
            kept.insert(place, hit)
    return kept


def _finding(name: str, where: str, hit: Hit, *, foreign: bool) -> Finding:
    text = hit.text.decode("utf-8", "replace")
    refused = hit.secret or hit.ours or not foreign
    if not hit.secret:
        return Finding(name, where, hit.kind, text, secret=False, refused=refused)
    digest = hashlib.sha256(hit.text).hexdigest()[:12]
    return Finding(name, where, hit.kind, f"{text[:_SECRET_SHOWN]}…", secret=True, refused=refused, digest=digest)
