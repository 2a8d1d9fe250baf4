"""Find the origin of codes: classes copied from extracted repositories, each with its license.

A corpus states one license for all its codes, although some came from projects under others. So every network class of
a code is compared with the class of every block, by the shingles of the lexical stage over the lines of that class
alone (`lemur_core.similarity.tokens`). A class is attributed to the nearest block with at least THRESHOLD;
among equally near blocks, one whose license allows redistribution comes first, then the first by id. A code is
attributed to the block of its most restricted class: one that may not be redistributed first, then the nearest.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from curate.model.corpus import LoadedRecords
from curate.model.options import LEAK_THRESHOLD
from curate.model.rights import Origin
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note, progress
from lemur_core.files.workers import map_chunks
from lemur_core.similarity.tokens import ClassIndex, ClassText, class_texts
from manifests.folders.formats import EXTRACTION
from manifests.folders.manifest import Parent, describe_parent
from manifests.provenance.licenses import is_permissive
from manifests.records import Block

#: The Jaccard from which a class is attributed to a block: the same as for sharing a split.
THRESHOLD = LEAK_THRESHOLD

#: A class of fewer shingles, about five lines, is too short to be attributed.
LEAST_SHINGLES = 40

_CHUNK = 64
_ROWS = 500  # read at a time


class _OriginBlock(NamedTuple):
    """A block whose class can be compared."""

    blocked: bool
    block: str
    license: str
    shingles: npt.NDArray[np.uint64]


class Origins:
    """The blocks of some extraction folders, searched for the origin of codes."""

    def __init__(self, folders: Sequence[Path], jobs: int | None = None) -> None:
        """Read the blocks.

        Args: folders: extractions, of level `emitted` or more.
        Raises: UserError if one is not an extraction, is named twice, or holds no code.
        """
        self.parents = [_parent(folder) for folder in folders]
        digests = [parent.sha256 for parent in self.parents]
        if twice := next((at for at, digest in enumerate(digests) if digest in digests[:at]), None):
            raise UserError(f"{folders[twice]}: is the same extraction as one before; name it once")
        self._jobs = jobs
        blocks = sorted(
            (block for folder in folders for block in self._read(folder)),
            key=lambda block: (block.blocked, block.block),
        )
        first: dict[bytes, _OriginBlock] = {}
        for block in blocks:
            first.setdefault(_digest(block.shingles), block)
        self.blocks, self._distinct = len(blocks), list(first.values())
        self._index = ClassIndex([block.shingles for block in self._distinct], THRESHOLD)
        self._known: dict[bytes, tuple[int, float] | None] = {}

    def _read(self, folder: Path) -> Iterator[_OriginBlock]:
        """Yield the blocks of a folder whose class is long enough."""
        rows = list(_rows(folder))
        withheld = sum(row.code is None and row.code_sha256 is not None for row in rows)
        there = [row for row in rows if row.code is not None]
        if not there:
            raise UserError(f"{folder}: holds no code of blocks; extract with --level emitted or more")
        if withheld:
            note(f"{folder}: the code of {plural(withheld, 'block')} was not published, so they are not compared")
        codes = ((row.code or "", row.name) for row in there)
        with progress("blocks", len(there), "classes") as advance:
            for row, texts in zip(there, _map(codes, self._jobs, len(there)), strict=True):
                advance(1)
                for text in texts:
                    if len(text.shingles) >= LEAST_SHINGLES:
                        blocked = not is_permissive(row.license)
                        yield _OriginBlock(blocked, row.block, row.license, text.shingles)

    def find_origins(self, corpus: LoadedRecords, codes: Sequence[int]) -> dict[int, Origin]:
        """Return the origins of codes, by code; codes without a known origin are left out."""
        items: Iterable[tuple[str, str | None]] = ((corpus.codes[code], None) for code in codes)
        origins: dict[int, Origin] = {}
        with progress("origins", len(codes), "codes") as advance:
            for code, texts in zip(codes, _map(items, self._jobs, len(codes)), strict=True):
                advance(1)
                if (origin := self.find_origin(texts)) is not None:
                    origins[code] = origin
        return origins

    def find_origin(self, texts: Iterable[ClassText]) -> Origin | None:
        """Return the origin of a code with these classes."""
        every = [origin for text in texts if (origin := self._of_class(text)) is not None]
        return min(every, key=lambda one: (is_permissive(one.license), -one.similarity, one.block), default=None)

    def _of_class(self, text: ClassText) -> Origin | None:
        if len(text.shingles) < LEAST_SHINGLES:
            return None
        digest = _digest(text.shingles)
        if digest not in self._known:
            self._known[digest] = self._index.nearest(text.shingles)
        near = self._known[digest]
        if near is None:
            return None
        block = self._distinct[near[0]]
        return Origin(block.block, near[1], block.license, text.name)

    @property
    def facts(self) -> dict[str, object]:
        """The facts of the comparison, for the manifest."""
        return {
            "folders": [parent.name for parent in self.parents],
            "blocks": self.blocks,
            "distinct": len(self._distinct),
            "threshold": THRESHOLD,
            "least_shingles": LEAST_SHINGLES,
        }


def check_origins(folders: Sequence[Path]) -> list[Parent]:
    """Return what the manifests of these folders state. Raises: UserError if one is not an extraction."""
    return [_parent(folder) for folder in folders]


def _parent(folder: Path) -> Parent:
    EXTRACTION.open(folder)
    return describe_parent(folder)


def _rows(folder: Path) -> Iterator[Block]:
    with EXTRACTION.reading(folder):
        yield from EXTRACTION.rows(folder, Block, ("block", "name", "license", "code", "code_sha256"))


def _digest(shingles: npt.NDArray[np.uint64]) -> bytes:
    return hashlib.blake2b(shingles.tobytes(), digest_size=16).digest()


def _map(items: Iterable[tuple[str, str | None]], jobs: int | None, count: int) -> Iterator[list[ClassText]]:
    """Extract the classes of codes, all or only the named one; small inputs are processed without workers."""
    if count <= _CHUNK:
        yield from map(_texts, items)
        return
    rest = iter(items)
    chunks = iter(lambda: list(islice(rest, _CHUNK)), [])
    for texts in map_chunks(_texts, chunks, _nothing, jobs):
        yield from texts


def _texts(item: tuple[str, str | None]) -> list[ClassText]:
    return class_texts(*item)


def _nothing(_item: tuple[str, str | None]) -> list[ClassText]:
    return []
