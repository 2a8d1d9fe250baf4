"""The license of each code: as stated by itself, by its source, and by the repository that it was copied from.

A published table never carries code under a license weaker than its own: the column `license` of records, removed
codes and conversations combines everything known about the code, and publishing obeys it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from curate.model.corpus import LoadedRecords
from manifests.folders.checks import Check, check_faults
from manifests.folders.manifest import Manifest
from manifests.provenance.heads import license_of_code
from manifests.provenance.licenses import NOASSERTION, combine_licenses, is_permissive


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

    def of(self, code: int) -> str:
        """Return the SPDX expression of everything known about a code; NOASSERTION if any part is unknown."""
        return _together(self.own.get(code, self.license), self.origin(code))

    def origin(self, code: int) -> Origin | None:
        """Return the origin of a code, if known."""
        return (self.origins or {}).get(code)

    def is_blocked(self, code: int) -> bool:
        """Return True if a code must be withheld when the others are published."""
        return is_withheld(self.of(code), self.license)

    def columns(self, code: int) -> dict[str, object]:
        """Return the columns of a row with this code."""
        origin = self.origin(code)
        return {
            "license": self.of(code),
            "origin": origin and origin.block,
            "origin_similarity": origin and origin.similarity,
            "origin_license": origin and origin.license,
        }

    @property
    def published_licenses(self) -> list[str]:
        """The licenses of all code that is published; if none is, that of the source."""
        others = {self.of(code) for code in {*self.own, *(self.origins or {})} if not self.is_blocked(code)}
        return sorted({self.license, *others}) if is_permissive(self.license) else [self.license]

    def count(self, kept: Iterable[int], removed: Iterable[int]) -> dict[str, Any]:
        """Count codes by license, unless all have that of the source, and by origin, for the manifest."""
        tables = {"kept": list(kept), "removed": list(removed)}
        counts: dict[str, Any] = {}
        if self.own or self.origins:
            counts["licenses"] = {name: _count_names(map(self.of, codes)) for name, codes in tables.items()}
        if self.origins is not None:
            of = {
                name: [self.origins[code] for code in codes if code in self.origins] for name, codes in tables.items()
            }
            counts["origins"] = {
                name: {
                    "codes": len(origins),
                    "licenses": _count_names(one.license for one in origins),
                    "sources": _count_names(one.source for one in origins),
                }
                for name, origins in of.items()
            }
        return counts


def is_withheld(license_: str, shared: str) -> bool:
    """Return True if code under a license is withheld when the others, under the shared license, are published."""
    return is_permissive(shared) and not is_permissive(license_)


def _together(license_: str, origin: Origin | None) -> str:
    return license_ if origin is None else combine_licenses([license_, origin.license])


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
    for code in codes:
        source = by_row.get(code)
        word = license_of_code(corpus.codes[code], source or license_, None if source else stated) or source
        if word not in (None, license_):
            own[code] = word
    return Rights(license_, own, origins, len(by_row))


def _licenses_of_rows(corpus: LoadedRecords, license_: str) -> dict[int, str]:
    """Return the combined licenses of codes of which a row states one."""
    column = corpus.rows.column("license")
    stated = set(corpus.code_of_row[column.is_valid().to_numpy()].tolist())
    words_of: dict[int, set[str]] = {}
    if stated:
        for code, word in zip(corpus.code_of_row.tolist(), column.to_pylist(), strict=True):
            if code in stated:
                words_of.setdefault(code, set()).add(word or license_)
    return {code: combine_licenses(words) for code, words in words_of.items()}


#: The columns of a row that state its rights.
_COLUMNS = ("license", "origin", "origin_similarity", "origin_license")


def check_rights(manifest: Manifest, tables: Mapping[str, Sequence[Path]], withheld: Collection[str]) -> Check:
    """Check that column `license` follows from the code, its source and its origin, and that the counts match the rows.

    Args:
        tables: the files of codes that were `kept` and `removed`.
        withheld: ids of codes that were left out of the published snapshot.
    """
    shared, stated = str(manifest.details.get("license", NOASSERTION)), manifest.parameters.get("license")
    lowest = manifest.details.get("origins", {}).get("threshold", 0.0)
    wrong: list[str] = []
    own: dict[int, str] = {}
    origins: dict[int, Origin] = {}
    blocked = by_row = 0
    numbers: dict[str, list[int]] = {part: [] for part in tables}
    rows = ((part, row) for part, paths in tables.items() for path in paths for row in _rows(path))
    for code, (part, row) in enumerate(rows):
        if "license" not in row:
            return check_faults("licences", [], "an older snapshot, without the licenses of single codes")
        numbers[part].append(code)
        license_, (origin, similarity, under) = row["license"], (row[name] for name in _COLUMNS[1:])
        if len({origin is None, similarity is None, under is None}) > 1 or (similarity or 1.0) < lowest:
            wrong.append(f"{row['nn']}: origin, its similarity and its licence do not go together")
        elif origin is not None:
            origins[code] = Origin(origin, similarity, under, "")
        blocked += is_withheld(license_, shared)
        if row["id"] in withheld:
            wrong += [f"{row['nn']}: its code is missing, under {license_}"] * (not is_withheld(license_, shared))
            continue
        own_license = license_of_code(row["nn_code"], shared, stated)
        if own_license is not None:
            own[code] = own_license
        expected = Rights(shared, own, origins).of(code)
        if license_ != expected:
            covered = combine_licenses(
                [license_, *([own_license] if own_license is not None else []), *([under] if under else [])]
            )
            by_row += covered == license_  # consistent with a row of the source that stated it
            own[code] = license_
            if covered != license_ or by_row > manifest.details.get("licensed_by_row", 0):
                wrong.append(f"{row['nn']}: its licence is {expected}, {license_} is stated")
        if withheld and is_withheld(expected, shared):
            wrong.append(f"{row['nn']}: its code is here, under {expected}")
    rights = Rights(shared, own, origins if "origins" in manifest.counts else None)
    if not withheld:
        counts = rights.count(numbers["kept"], numbers["removed"])
        wrong += [
            f"{name}: {counts.get(name)}, not as stated"
            for name in _COUNTS
            if counts.get(name) != manifest.counts.get(name)
        ]
    summary = (
        f"{sum(map(len, numbers.values())):,} codes, {len(origins):,} with an origin; {blocked:,} are not passed on"
    )
    return check_faults("licences", wrong, summary)


_COUNTS = ("licenses", "origins")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(path) as file:
        columns = [name for name in ("id", "nn", "nn_code", *_COLUMNS) if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=1_000, columns=columns):
            yield from batch.to_pylist()
