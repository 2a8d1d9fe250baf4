"""A delta and all that it was made against, read once: what they promise together, proved by exact joins.

A part of `lemur verify`. What is compared across folders is compared for all of them at a time; each folder then looks
at what concerns it and those that it was made against itself. So a chain of deltas costs what their union does.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from curate.model.corpus import fill_store
from curate.model.features import FeatureStore
from curate.model.options import LEAK_THRESHOLD
from curate.published.outcome import DUPLICATE_STAGES
from lemur_core.similarity.features.minhash import Banding, IntArray
from lemur_core.similarity.index import StructuralIndex
from lemur_core.similarity.join import ExactPairs, in_order, measure_recall, pairs_between
from manifests.folders.manifest import Manifest
from manifests.records import LemurRecord

Row = Mapping[str, Any]

_DECIDED = ("stage", "canonical", "similarity")


@dataclass(frozen=True, slots=True)
class Member:
    """One folder of a union, the number of each that it was made against with its place among them, what was read."""

    path: Path
    manifest: Manifest
    number: int
    parents: Mapping[int, int]
    records: list[dict[str, Any]] = field(default_factory=list)  # without nn_code; "folder" is the member's number
    ids: set[str] = field(default_factory=set)  # of the codes in its tables
    wrong_ids: list[str] = field(default_factory=list)
    withheld: set[str] = field(default_factory=set)  # ids of codes that were left out when it was published


def record_files(folder: Path) -> list[Path]:
    """The tables of a snapshot's records."""
    return sorted((folder / "data" / "records").glob("*.parquet"))


class Union:
    """All records of its members, who are decided by the same rules; each comes after those it was made against."""

    def __init__(self, members: Sequence[Member], jobs: int | None) -> None:
        self.members, self._parameters = members, members[-1].manifest.parameters
        self.code_of: dict[str, int] = {}  # id -> number in `features`
        self.removed: dict[str, dict[int, Row]] = defaultdict(dict)  # id -> the first decision, by member
        self.records: list[dict[str, Any]] = []
        self._digests: list[bytes] = []
        for member in members:
            for path in record_files(member.path):
                there = {*pq.read_schema(path).names} & {*LemurRecord.model_fields} - {"nn_code"}
                member.records.extend(
                    record | {"folder": member.number}
                    for record in pq.read_table(path, columns=sorted(there)).to_pylist()
                )
            self.records += member.records
        detail = self._parameters["tokens"]
        store = FeatureStore(detail)
        fill_store(store, self._new_codes(store), detail, jobs)
        self.features = store.table(self._digests)

    def _new_codes(self, store: FeatureStore) -> Iterator[tuple[bytes, str]]:
        for member in self.members:
            near = (member, *(self.members[number] for number in member.parents))
            stays_out = any(one.manifest.details.get("withheld") for one in near)
            for path in (*record_files(member.path), member.path / "removed.parquet"):
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(batch_size=1_000, columns=["id", "nn", "nn_code"]):
                        for row in batch.to_pylist():
                            digest = hashlib.sha256(row["nn_code"].encode()).digest()
                            member.ids.add(row["id"])
                            if stays_out and not row["nn_code"]:
                                member.withheld.add(row["id"])
                                continue
                            if digest.hex() != row["id"]:
                                member.wrong_ids.append(f"{row['nn']}: id is not the SHA-256 of its code")
                            if row["id"] not in self.code_of:
                                self.code_of[row["id"]] = len(self._digests)
                                self._digests.append(digest)
                                if digest not in store:
                                    yield digest, row["nn_code"]

    def fingerprint(self, id_: str) -> int:
        """The number of a code's fingerprint."""
        return int(self.features.fingerprint[self.code_of[id_]])

    def shingle_set(self, id_: str) -> int:
        """The number of a code's shingle set."""
        return int(self.features.shingle_set[self.code_of[id_]])

    def sets(self, ids: Mapping[str, Row] | set[str]) -> IntArray:
        """The numbers of codes' shingle sets, in the order of the codes' ids."""
        return in_order(self.features.shingle_set[np.array([self.code_of[id_] for id_ in sorted(ids)], np.int64)])

    def decided(self, member: Member, decisions: Sequence[Row]) -> None:
        """Take what a member has removed: members after it must say the same."""
        for row in decisions:
            if row["stage"] in (*DUPLICATE_STAGES, "leak") and row["canonical"] != row["id"]:
                self.removed[row["id"]].setdefault(member.number, {name: row[name] for name in _DECIDED})

    @cached_property
    def lookups(self) -> dict[str, dict[Any, list[Row]]]:
        """All records by `id`, `graph`, `graph_widths` (null too), and the numbers of `set` and `fingerprint`."""
        found: dict[str, dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for record in self.records:
            for name in ("id", "graph", "graph_widths"):
                found[name][record.get(name)].append(record)
            if record["id"] not in self.code_of:  # withheld
                continue
            found["set"][self.shingle_set(record["id"])].append(record)
            found["fingerprint"][self.fingerprint(record["id"])].append(record)
        return found

    @cached_property
    def near_sets(self) -> dict[int, list[tuple[int, float]]]:
        """For each shingle set those of records that are near enough to matter, with the Jaccard."""
        every = self.features.shingle_set
        lowest = min(LEAK_THRESHOLD, self._parameters["lexical_threshold"])
        kept = np.array(sorted(self.lookups["set"]), np.int64)
        return _by_first(pairs_between(self.features, np.unique(every[every >= 0]), kept, lowest))

    @cached_property
    def near_structures(self) -> dict[tuple[int, str], list[tuple[Row, float]]]:
        """For each record, by its `folder` and `id`, those before it whose fingerprints are near, with the Jaccard."""
        index = StructuralIndex(self.features.elements, self._parameters["structural_threshold"])
        found: dict[tuple[int, str], list[tuple[Row, float]]] = defaultdict(list)
        for place, record in enumerate(self.records):
            if record["id"] in self.code_of:  # not withheld
                structure = self.fingerprint(record["id"])
                near = ((self.records[one.place], one.similarity) for one in index.near(structure))
                found[record["folder"], record["id"]] += near
                index.keep(structure, place)
        return found

    def differ(self, one: Row, other: Row) -> bool:
        """Whether two kept records may be near: they compute different things, and that was to count."""
        if self._parameters["graph"] != "keep-different":
            return False
        widths = (one.get("graph_widths"), other.get("graph_widths"))
        return None not in widths and widths[0] != widths[1]


class Published:
    """What one member of a union was made against."""

    def __init__(self, union: Union, member: Member) -> None:
        self._union, self._member = union, member
        self._lexical: float = member.manifest.parameters.get("lexical_threshold", 1.0)

    def __len__(self) -> int:
        return sum(len(self._union.members[number].records) for number in self._member.parents)

    def records(self, name: str, value: object) -> list[Row]:
        """The published records with this `id`, `graph`, `graph_widths`, `set` or `fingerprint`."""
        return [row for row in self._union.lookups[name].get(value, ()) if row["folder"] in self._member.parents]

    def removal(self, id_: str) -> Row | None:
        """How a code was removed there; None where it was not."""
        by_member, parents = self._union.removed.get(id_, {}), self._member.parents
        return min(((parents[at], row) for at, row in by_member.items() if at in parents), default=(0, None))[1]

    def equal(self, decisions: Sequence[Row]) -> Iterator[str]:
        """Decisions about codes that are there already, which do not say so."""
        for row in decisions:
            if row["stage"] in ("invalid", "filter", "repeat"):
                continue
            wanted: object = self.removal(row["id"])
            if self.records("id", row["id"]):
                wanted = {"stage": "exact", "canonical": row["id"], "similarity": 1.0}
            if wanted is not None and {name: row[name] for name in _DECIDED} != wanted:
                yield f"row {row['row']}: its code is decided already, as {wanted}"

    def near_duplicates(self) -> Iterator[str]:
        """Pairs of a kept and a published record that are near-duplicates."""
        for record in self._member.records:
            near = self._near(record["id"], self._lexical)
            structural = self._union.near_structures[self._member.number, record["id"]]
            near += [(other, value) for other, value in structural if other["folder"] in self._member.parents]
            for other, value in near:
                if not self._union.differ(record, other):
                    yield f"{record['nn']}: Jaccard {value:.3f} to published {other['nn']}"

    def beside(self, id_: str, widths: str | None) -> list[Row]:
        """The published records that must be in the split of a code."""
        found = [other for other, _ in self._near(id_, LEAK_THRESHOLD)]
        found += self.records("fingerprint", self._union.fingerprint(id_))
        return found + (self.records("graph_widths", widths) if widths is not None else [])

    def of_groups(self, groups: Sequence[int]) -> dict[int, list[Row]]:
        """The published records that each group of the delta's records must be with; groups without any are no keys."""
        found: dict[int, list[Row]] = defaultdict(list)
        for record, group in zip(self._member.records, groups, strict=True):
            found[group] += self.beside(record["id"], record.get("graph_widths"))
        return {group: records for group, records in found.items() if records}

    def leaks(self, decisions: Sequence[Row], widths_of: Mapping[str, str | None]) -> Iterator[str]:
        """Records that were kept out for the splits without being near to two.

        Args: widths_of: G1 by id, of codes that were traced.
        """
        union, own = self._union, self._member.records
        refused = {row["id"]: row for row in decisions if row["stage"] == "leak"}
        new = {id_: row for id_, row in refused.items() if self.removal(id_) is None}
        places = defaultdict[int, list[Row]](list)
        for record in own:
            places[union.shingle_set(record["id"])].append(record)
        there = np.array(sorted(places), np.int64)
        near = _by_first(pairs_between(union.features, union.sets(new), there, LEAK_THRESHOLD))
        for id_, row in new.items():
            structure, widths = union.fingerprint(id_), widths_of.get(id_)
            splits = {other["split"] for other in self.beside(id_, widths)}
            splits |= {
                record["split"] for number, _ in near.get(union.shingle_set(id_), ()) for record in places[number]
            }
            for record in own:
                same = union.fingerprint(record["id"]) == structure
                if same or (widths is not None and record.get("graph_widths") == widths):
                    splits.add(record["split"])
            if len(splits) < 2:
                yield f"row {row['row']} (leak): what it is near to is in one split"

    def recall(self, judged: set[str]) -> tuple[int, int]:
        """Of the pairs of a new and a published code at the lexical threshold: found by the index's bands, and all."""
        sets = self._union.sets({id_ for id_ in judged if not self.records("id", id_)})
        pairs = [
            (a, b, value)
            for a in sets.tolist()
            for b, value in self._union.near_sets.get(a, ())
            if value >= self._lexical and self.records("set", b)
        ]
        a, b = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
        values = np.array([value for *_, value in pairs], np.float64)
        stated = self._member.manifest.details["against"]
        truth = ExactPairs(a, b, values, len(sets), len(self), len(sets))
        measured = measure_recall(self._union.features, truth, Banding(stated["bands"], stated["rows"]), self._lexical)
        return measured.found, measured.pairs

    def _near(self, id_: str, threshold: float) -> list[tuple[Row, float]]:
        """The published records whose shingle sets are near that of a code, with the Jaccard."""
        near = self._union.near_sets.get(self._union.shingle_set(id_), ())
        return [(other, value) for number, value in near if value >= threshold for other in self.records("set", number)]


def _by_first(pairs: ExactPairs) -> dict[int, list[tuple[int, float]]]:
    near: dict[int, list[tuple[int, float]]] = {}
    for a, b, value in zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), strict=True):
        near.setdefault(a, []).append((b, value))
    return near
