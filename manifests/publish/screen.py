"""What must not leave this machine: secrets and absolute paths, looked for in every file that would be published."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from manifests.errors import UserError
from manifests.publish.columns import table_texts
from manifests.publish.paths import own_folders, path_shapes
from manifests.publish.secrets import SECRETS
from manifests.publish.shapes import Hit, Shape

#: Where other people's code stands: columns of tables, and the folder of files in an extraction.
_FOREIGN_COLUMNS = frozenset({"code", "nn_code", "prm", "messages"})
_FOREIGN_FOLDER = "blocks/"
_SECRET_SHOWN = 4  # characters
_FEW = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One secret or path: in which file, at which line or row and column, of what kind; a secret only by its start."""

    file: str
    where: str
    kind: str
    shown: str
    secret: bool
    refused: bool

    def __str__(self) -> str:
        return f"{self.file}, {self.where}: {self.kind} {self.shown}"


def screen(files: Mapping[str, Path], *more: Path) -> list[Finding]:
    """All findings: in Parquet tables row by row, in other files by line, or by byte where they are not text.

    Args:
        files: what would be published, by its path there.
        more: folders of this machine beside its home, working and temporary one.

    Raises: UserError if a table cannot be read.
    """
    shapes = (*SECRETS, *path_shapes(own_folders(*more)))
    found: list[Finding] = []
    for name, path in sorted(files.items()):
        if not name.endswith(".parquet"):
            found += _in_bytes(name, path.read_bytes(), shapes)
            continue
        try:
            found += _in_table(name, path, shapes)
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{path}: not readable: {str(error).splitlines()[0]}; make the folder anew") from error
    return found


def check_findings(folder: Path, found: Sequence[Finding]) -> list[str]:
    """Notes on what was found and may leave.

    Raises: UserError if something was found that must not, secrets first.
    """
    refused = sorted((item for item in found if item.refused), key=lambda item: not item.secret)
    if refused:
        more = f" (and {len(refused) - _FEW:,} more)" if len(refused) > _FEW else ""
        advice = (
            "revoke the secrets and make the folder anew without them" if refused[0].secret else "make it anew without"
        )
        raise UserError(f"{folder}: {'; '.join(map(str, refused[:_FEW]))}{more}; {advice}")
    if not found:
        return []
    files = len({item.file for item in found})
    return [
        f"{len(found):,} absolute paths in the code of others stay as they are, in {files:,} files: {found[0]}, ..."
    ]


def _in_bytes(name: str, data: bytes, shapes: Sequence[Shape]) -> Iterator[Finding]:
    foreign, binary = name.startswith(_FOREIGN_FOLDER), b"\0" in data
    for hit in _hits(data, shapes):
        where = f"byte {hit.at}" if binary else f"line {data.count(10, 0, hit.at) + 1}"  # 10 is the line feed
        yield _finding(name, where, hit, foreign=foreign)


def _in_table(name: str, path: Path, shapes: Sequence[Shape]) -> Iterator[Finding]:
    for texts in table_texts(path):
        foreign = texts.column in _FOREIGN_COLUMNS
        wanted: dict[int, list[Shape]] = {}
        for shape in shapes:
            for place in texts.places_of(shape.head):
                wanted.setdefault(place, []).append(shape)
        for place, likely in sorted(wanted.items()):
            for hit in _hits(texts.value(place), likely):
                where = f"row {texts.first_row + place}, column {texts.column}"
                yield _finding(name, where, hit, foreign=foreign)


def _hits(data: bytes, shapes: Sequence[Shape]) -> Iterator[Hit]:
    """Each place once, as what the first shape says that it has."""
    told: set[int] = set()
    for shape in shapes:
        for hit in shape.find(data):
            if hit.at not in told:
                told.add(hit.at)
                yield hit


def _finding(name: str, where: str, hit: Hit, *, foreign: bool) -> Finding:
    text = hit.text.decode("utf-8", "replace")
    shown = f"{text[:_SECRET_SHOWN]}…" if hit.secret else text
    return Finding(name, where, hit.kind, shown, hit.secret, refused=hit.secret or hit.ours or not foreign)
