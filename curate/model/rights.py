"""The license of each code: as stated by itself, by its source, and by the repository that it was copied from.

A published table never carries code under a license weaker than its own: the column `license` of records, removed
codes and conversations combines everything known about the code, and publishing obeys it.

`Origins` finds the classes that were copied from extracted repositories. Every network class of a code is compared with
the class of every block, by the shingles of the lexical stage over the lines of that class alone
(`lemur_core.similarity.tokens`). A class is attributed to the nearest block with at least THRESHOLD; among
equally near blocks, one whose license allows redistribution comes first, then the first by id. A code is attributed to
the block of its most restricted class: one that may not be redistributed first, then the nearest.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from curate.model.corpus import LoadedRecords, map_codes
from curate.model.options import LEAK_THRESHOLD
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note, progress
from lemur_core.similarity.overlap import OverlapIndex
from lemur_core.similarity.tokens import ClassText, class_texts
from manifests.folders.kinds import EXTRACTION
from manifests.folders.manifest import Parent, describe_parent
from manifests.provenance.licenses import combine_licenses, is_permissive, license_of_code
from manifests.records import Block


@dataclass(frozen=True, slots=True)
class Origin:
    """The block of an extracted repository that a class of a code was copied from."""

    block: str
    similarity: float  # of the two classes, Jaccard
    license: str  # of the block's source
    name: str  # of the class in the code

    @property
    def source(self) -> str:
        """The repository or release."""
        return self.block.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Rights:
    """The licenses of codes.

    Attributes:
        license: the license of the source, shared by all codes that state none and have no origin.
        own: other licenses, stated by the code itself (see `license_of_code`) or by its row of the source.
        by_row: codes whose license is stated by a row of the source.
        origins: of codes copied from a repository; None if origins were not searched.
    """

    license: str
    own: Mapping[int, str] = field(default_factory=dict)
    origins: Mapping[int, Origin] | None = None
    by_row: int = 0

    def get_license(self, code_index: int) -> str:
        """Return the SPDX expression of everything known about a code; NOASSERTION if any part is unknown."""
        license_, origin = self.own.get(code_index, self.license), self.origin(code_index)
        return license_ if origin is None else combine_licenses([license_, origin.license])

    def origin(self, code_index: int) -> Origin | None:
        """Return the origin of a code, if known."""
        return (self.origins or {}).get(code_index)

    def is_blocked(self, code_index: int) -> bool:
        """Return True if a code must be withheld when the others are published."""
        return is_withheld(self.get_license(code_index), self.license)

    def columns(self, code_index: int) -> dict[str, object]:
        """Return the columns of a row with this code."""
        origin = self.origin(code_index)
        return {
            "license": self.get_license(code_index),
            "origin": origin and origin.block,
            "origin_similarity": origin and origin.similarity,
            "origin_license": origin and origin.license,
        }

    def count(self, kept: Iterable[int], removed: Iterable[int]) -> Json:
        """Count codes by license, unless all have that of the source, and by origin, for the manifest."""
        tables = {"kept": list(kept), "removed": list(removed)}
        counts: Json = {}
        if self.own or self.origins:
            counts["licenses"] = {name: _count_names(map(self.get_license, codes)) for name, codes in tables.items()}
        for name, codes in tables.items() if self.origins is not None else ():
            origins = [origin for code_index in codes if (origin := self.origin(code_index)) is not None]
            counts.setdefault("origins", {})[name] = {
                "codes": len(origins),
                "licenses": _count_names(origin.license for origin in origins),
                "sources": _count_names(origin.source for origin in origins),
            }
        return counts


def is_withheld(license_: str, shared: str) -> bool:
    """Return True if code under a license is withheld when the others, under the shared license, are published."""
    return is_permissive(shared) and not is_permissive(license_)


def _count_names(names: Iterable[str]) -> dict[str, int]:
    """Count each name, the most frequent first."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def read_rights(
    corpus: LoadedRecords, codes: Iterable[int], license_: str, stated: str | None, origins: Mapping[int, Origin] | None
) -> Rights:
    """Collect the rights to some codes.

    Args:
        license_: the license of the source, or the user's if the source states none.
        stated: the license stated by the user.
    """
    by_row = _licenses_of_rows(corpus, license_)
    own = {}
    for code_index in codes:
        source = by_row.get(code_index)
        word = license_of_code(corpus.codes[code_index], source or license_, None if source else stated) or source
        if word not in (None, license_):
            own[code_index] = word
    return Rights(license_, own, origins, len(by_row))


def _licenses_of_rows(corpus: LoadedRecords, license_: str) -> dict[int, str]:
    """Return the combined licenses of codes of which a row states one."""
    column = corpus.rows.column("license")
    stated = set(corpus.code_of_row[column.is_valid().to_numpy()].tolist())
    words_of: dict[int, set[str]] = {}
    if stated:
        for code_index, word in zip(corpus.code_of_row.tolist(), column.to_pylist(), strict=True):
            if code_index in stated:
                words_of.setdefault(code_index, set()).add(word or license_)
    return {code_index: combine_licenses(words) for code_index, words in words_of.items()}


#: The Jaccard from which a class is attributed to a block: the same as for sharing a split.
THRESHOLD = LEAK_THRESHOLD

#: A class of fewer shingles, about five lines, is too short to be attributed.
LEAST_SHINGLES = 40


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
        self.parents = check_origins(folders)
        digests = [parent.sha256 for parent in self.parents]
        if twice := next((at for at, digest in enumerate(digests) if digest in digests[:at]), None):
            raise UserError(f"{folders[twice]}: is the same extraction as one before; name it once")
        self._jobs = jobs
        blocks = sorted((block for folder in folders for block in self._read(folder)), key=lambda block: block[:2])
        first: dict[bytes, _OriginBlock] = {}
        for block in blocks:
            first.setdefault(_digest(block.shingles), block)
        self.blocks, self._distinct = len(blocks), list(first.values())
        self._index = OverlapIndex((block.shingles, None) for block in self._distinct)
        self._known: dict[bytes, tuple[int, float]] = {}  # the nearest block, and its similarity

    def _read(self, folder: Path) -> Iterator[_OriginBlock]:
        """Yield the blocks of a folder whose class is long enough."""
        with EXTRACTION.reading(folder):
            rows = list(EXTRACTION.rows(folder, Block, ("block", "name", "license", "code", "code_sha256")))
        withheld = sum(row.code is None and row.code_sha256 is not None for row in rows)
        there = [row for row in rows if row.code is not None]
        if not there:
            raise UserError(f"{folder}: holds no code of blocks; extract with --level emitted or more")
        if withheld:
            note(f"{folder}: the code of {plural(withheld, 'block')} was not published, so they are not compared")
        codes = ((row.code or "", row.name) for row in there)
        for place, texts in self._find_classes("blocks", codes, len(there)):
            row = there[place]
            for text in texts:
                if len(text.shingles) >= LEAST_SHINGLES:
                    yield _OriginBlock(not is_permissive(row.license), row.block, row.license, text.shingles)

    def _find_classes(
        self, what: str, codes: Iterable[tuple[str, str | None]], count: int
    ) -> Iterator[tuple[int, list[ClassText]]]:
        """Yield the classes of codes, all or only the named one, each with the place of its code."""
        with progress(what, count, "codes") as advance:
            for results in map_codes(_split_classes, enumerate(codes), self._jobs):
                yield from ((place, [] if isinstance(texts, str) else texts) for place, texts in results)
                advance(len(results))

    def find_origins(self, corpus: LoadedRecords, codes: Sequence[int]) -> dict[int, Origin]:
        """Return the origins of codes, by code; codes without a known origin are left out."""
        texts = ((corpus.codes[code_index], None) for code_index in codes)
        origins: dict[int, Origin] = {}
        for place, classes in self._find_classes("origins", texts, len(codes)):
            if (origin := self.find_origin(classes)) is not None:
                origins[codes[place]] = origin
        return origins

    def find_origin(self, texts: Iterable[ClassText]) -> Origin | None:
        """Return the origin of a code with these classes."""
        every = [origin for text in texts if (origin := self._of_class(text)) is not None]
        return min(every, key=lambda item: (is_permissive(item.license), -item.similarity, item.block), default=None)

    def _of_class(self, text: ClassText) -> Origin | None:
        if len(text.shingles) < LEAST_SHINGLES:
            return None
        digest = _digest(text.shingles)
        if digest not in self._known:
            similarities = self._index.similarities(text.shingles)
            at = int(similarities.argmax()) if len(similarities) else -1
            self._known[digest] = (at, float(similarities[at]) if at >= 0 else 0.0)
        at, similarity = self._known[digest]
        if similarity < THRESHOLD:
            return None
        return Origin(self._distinct[at].block, similarity, self._distinct[at].license, text.name)

    @property
    def facts(self) -> Json:
        """The facts of the comparison, for the manifest."""
        facts = {"folders": [parent.name for parent in self.parents], "blocks": self.blocks}
        return {**facts, "distinct": len(self._distinct), "threshold": THRESHOLD, "least_shingles": LEAST_SHINGLES}


def check_origins(folders: Sequence[Path]) -> list[Parent]:
    """Return the facts in the manifests of these folders. Raises: UserError if one is not an extraction."""
    for folder in folders:
        EXTRACTION.open(folder)
    return [describe_parent(folder) for folder in folders]


def _digest(shingles: npt.NDArray[np.uint64]) -> bytes:
    return hashlib.blake2b(shingles.tobytes(), digest_size=16).digest()


def _split_classes(item: tuple[str, str | None]) -> list[ClassText]:
    return class_texts(*item)
