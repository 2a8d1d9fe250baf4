"""What a delta promises together with what it was made against, proved by exact joins; a part of `lemur verify`."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from curate.features import FeatureTable
from curate.options import LEAK_THRESHOLD
from curate.outcome import DUPLICATE_STAGES
from lemur_core.similarity.index import StructuralIndex
from lemur_core.similarity.join import ExactPairs, measure_recall, pairs_between
from lemur_core.similarity.minhash import Banding, IntArray
from manifests.manifest import Manifest

Row = Mapping[str, Any]

_COLUMNS = ("id", "nn", "split", "cluster", "graph", "graph_widths")
_DECIDED = ("stage", "canonical", "similarity")


class Parents:
    """The records of all folders that a delta was made against, and what they removed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.records: list[dict[str, Any]] = []
        self.removed: dict[str, dict[str, Any]] = {}
        for folder in folders:
            for path in record_files(folder):
                there = [name for name in _COLUMNS if name in pq.read_schema(path).names]
                self.records += pq.read_table(path, columns=there).to_pylist()
            for row in pq.read_table(folder / "decisions.parquet", columns=["id", *_DECIDED]).to_pylist():
                if row["stage"] in (*DUPLICATE_STAGES, "leak") and row["canonical"] != row["id"]:
                    self.removed.setdefault(row["id"], {name: row[name] for name in _DECIDED})
        self.ids = {record["id"] for record in self.records}
        self.graph_of = {record["id"]: record.get("graph") for record in self.records}

    def equal(self, decisions: Sequence[Row]) -> Iterator[str]:
        """Decisions about codes that are there already, which do not say so."""
        for row in decisions:
            if row["stage"] in ("invalid", "filter", "repeat"):
                continue
            if row["id"] in self.ids:
                wanted: object = {"stage": "exact", "canonical": row["id"], "similarity": 1.0}
            elif row["id"] in self.removed:
                wanted = self.removed[row["id"]]
            else:
                continue
            if {name: row[name] for name in _DECIDED} != wanted:
                yield f"row {row['row']}: its code is decided already, as {wanted}"


def record_files(folder: Path) -> list[Path]:
    """The tables of a snapshot's records."""
    return sorted((folder / "data" / "records").glob("*.parquet"))


class Union:
    """The records of a delta beside the published ones."""

    def __init__(
        self,
        published: Parents,
        manifest: Manifest,
        records: Sequence[Row],
        decisions: Sequence[Row],
        features: FeatureTable,
        code_of: Mapping[str, int],
    ) -> None:
        self._published, self._parameters, self._records = published, manifest.parameters, records
        self._stated, self._features, self._code_of = manifest.details["against"], features, code_of
        self._lexical: float = manifest.parameters["lexical_threshold"]
        self._decisions = decisions
        self._fingerprint, self._set, self._widths = (defaultdict[Any, list[Row]](list) for _ in range(3))
        for record in published.records:
            code = code_of[record["id"]]
            self._fingerprint[int(features.fingerprint[code])].append(record)
            self._set[int(features.shingle_set[code])].append(record)
            self._widths[record.get("graph_widths")].append(record)
        judged = {row["id"] for row in decisions if row["stage"] not in ("invalid", "filter")} - published.ids
        lowest = min(LEAK_THRESHOLD, self._lexical)
        self._pairs = pairs_between(features, self._sets(judged), np.array(sorted(self._set), np.int64), lowest)
        self._near = _by_first(self._pairs)

    def near_duplicates(self) -> Iterator[str]:
        """Pairs of a kept and a published record that are near-duplicates."""
        index = StructuralIndex(self._features.elements, self._parameters["structural_threshold"])
        for place, there in enumerate(self._published.records):
            index.keep(int(self._features.fingerprint[self._code_of[there["id"]]]), place)
        for record in self._records:
            code = self._code_of[record["id"]]
            lexical = self._near.get(int(self._features.shingle_set[code]), ())
            near = [
                (other, value) for number, value in lexical if value >= self._lexical for other in self._set[number]
            ]
            structural = index.near(int(self._features.fingerprint[code]))
            near += [(self._published.records[found.place], found.similarity) for found in structural]
            for other, value in near:
                if not self._differ(record, other):
                    yield f"{record['nn']}: Jaccard {value:.3f} to published {other['nn']}"

    def beside(self, id_: str, widths: str | None) -> list[Row]:
        """The published records that must be in the split of a code."""
        code = self._code_of[id_]
        near = self._near.get(int(self._features.shingle_set[code]), ())
        found = [other for number, value in near if value >= LEAK_THRESHOLD for other in self._set[number]]
        found += self._fingerprint.get(int(self._features.fingerprint[code]), [])
        return found + (self._widths.get(widths, []) if widths is not None else [])

    def of_groups(self, groups: Sequence[int]) -> dict[int, list[Row]]:
        """The published records that each group of the delta's records must be with; groups without any are no keys."""
        found: dict[int, list[Row]] = defaultdict(list)
        for record, group in zip(self._records, groups, strict=True):
            found[group] += self.beside(record["id"], record.get("graph_widths"))
        return {group: records for group, records in found.items() if records}

    def leaks(self, widths_of: Mapping[str, str | None]) -> Iterator[str]:
        """Records that were kept out for the splits without being near to two.

        Args: widths_of: G1 by id, of codes that were traced.
        """
        refused = {row["id"]: row for row in self._decisions if row["stage"] == "leak"}
        new = {id_: row for id_, row in refused.items() if id_ not in self._published.removed}
        places = defaultdict[int, list[Row]](list)
        for record in self._records:
            places[int(self._features.shingle_set[self._code_of[record["id"]]])].append(record)
        pairs = pairs_between(self._features, self._sets(new), np.array(sorted(places), np.int64), LEAK_THRESHOLD)
        near = _by_first(pairs)
        for id_, row in new.items():
            code, widths = self._code_of[id_], widths_of.get(id_)
            splits = {other["split"] for other in self.beside(id_, widths)}
            splits |= {
                record["split"]
                for number, _ in near.get(int(self._features.shingle_set[code]), ())
                for record in places[number]
            }
            for record in self._records:
                same = self._features.fingerprint[self._code_of[record["id"]]] == self._features.fingerprint[code]
                if same or (widths is not None and record.get("graph_widths") == widths):
                    splits.add(record["split"])
            if len(splits) < 2:
                yield f"row {row['row']} (leak): what it is near to is in one split"

    def recall(self) -> tuple[int, int]:
        """Of the pairs of a new and a published code at the lexical threshold: found by the index's bands, and all."""
        true = self._pairs.at_least(self._lexical)
        banding = Banding(self._stated["bands"], self._stated["rows"])
        measured = measure_recall(self._features, true, banding, self._lexical)
        return measured.found, measured.pairs

    def _sets(self, ids: Mapping[str, Row] | set[str]) -> IntArray:
        numbers = np.array([self._code_of[id_] for id_ in sorted(ids)], np.int64)
        return np.unique(self._features.shingle_set[numbers])

    def _differ(self, one: Row, other: Row) -> bool:
        if self._parameters["graph"] != "keep-different":
            return False
        widths = (one.get("graph_widths"), other.get("graph_widths"))
        return None not in widths and widths[0] != widths[1]


def _by_first(pairs: ExactPairs) -> dict[int, list[tuple[int, float]]]:
    near: dict[int, list[tuple[int, float]]] = {}
    for a, b, value in zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard.tolist(), strict=True):
        near.setdefault(a, []).append((b, value))
    return near
