"""Growth: a snapshot that was published before, whose kept records stay kept and keep their split.

A new code that would join groups of two published splits is not kept (stage `leak`). What the present rules call near
or equal among the published records stays, and is listed.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from curate.model.corpus import LoadedRecords
from curate.model.options import LEAK_THRESHOLD, CurateOptions
from curate.model.splits import Computations, SplitGroups
from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.similarity.index import KeptSet, LexicalIndex, Verdict
from lemur_core.similarity.minhash import banding_for, jaccard
from manifests.folders.kinds import SNAPSHOT
from manifests.folders.manifest import Parent, describe_parent
from manifests.records import LemurRecord

#: The parameters that a snapshot and the one that follows it must have in common.
SAME = ("lexical_threshold", "structural_threshold", "tokens", "graph", "namespace")
#: The decision on a published record, from which alone `derive` knows it.
STAYS = "kept, as in the previous snapshot"


class PublishedRecord(NamedTuple):
    """A record that a snapshot kept: its name and its split."""

    nn: str
    split: str


@dataclass(frozen=True, slots=True)
class Previous:
    """The kept records of a snapshot, by id. Args: parameters: of its manifest; parent: the folder, as manifests do."""

    records: Mapping[str, PublishedRecord]
    parameters: Json = field(default_factory=dict)
    parent: Parent | None = None

    def check(self, options: CurateOptions) -> None:
        """Raise UserError if a parameter that must be the same differs."""
        for name in SAME if self.parameters else ():
            before, now = self.parameters.get(name), options.graphs if name == "graph" else getattr(options, name)
            if before != now:
                raise UserError(f"--previous: it was made with {name} {before}, this run has {now}; use the same")

    def find(self, corpus: LoadedRecords) -> dict[int, str]:
        """Return the splits of its records that the corpus has, by code index."""
        return {code_index: self.records[id_].split for code_index, id_ in enumerate(corpus.ids) if id_ in self.records}

    def list_gone(self, corpus: LoadedRecords, filtered: Mapping[int, str], there: Mapping[int, object]) -> list[Json]:
        """Return its records that the corpus has no longer, or that are no record now, and why.

        Args: filtered: why rows were left out. there: the present records, by code index.
        """
        why = dict.fromkeys(corpus.ids, "left out")
        for row, reason in (*filtered.items(), *corpus.problems.items()):
            if (code_index := int(corpus.code_of_row[row])) >= 0:
                why[corpus.ids[code_index]] = reason
        stay = {corpus.ids[code_index] for code_index in there}
        return [
            {"id": id_, "nn": nn, "split": split, "reason": why.get(id_, "not in the source")}
            for id_, (nn, split) in sorted(self.records.items(), key=lambda item: (item[1].nn, item[0]))
            if id_ not in stay
        ]


def read_previous(spec: str) -> Previous:
    """Read a snapshot: a folder, or `hf://datasets/OWNER/NAME`.

    Raises: UserError if it is no snapshot; RetryableError if the Hub cannot be reached.
    """
    if not spec.startswith("hf://"):
        return _read_folder(Path(spec))
    from manifests.publish.hub import parse_dataset  # the Hub's client takes half a second to import
    from manifests.publish.publishing import pull

    repo, revision = parse_dataset(spec)
    with tempfile.TemporaryDirectory() as scratch:
        pull(repo, Path(scratch) / "snapshot", revision=revision or "main")
        return _read_folder(Path(scratch) / "snapshot")


def _read_folder(folder: Path) -> Previous:
    parameters = SNAPSHOT.open(folder).parameters
    with SNAPSHOT.reading(folder):
        rows = SNAPSHOT.rows(folder, LemurRecord, ("id", "nn", "split"))
        return Previous(
            {row.id: PublishedRecord(row.nn, row.split) for row in rows}, parameters, describe_parent(folder)
        )


class GrowingSelection:
    """Decides codes best first, those of a previous snapshot before all others.

    Args: published: the splits of the published records that are there, by code index.
    """

    def __init__(self, corpus: LoadedRecords, published: Mapping[int, str]) -> None:
        self.published, self._corpus = published, corpus
        self._near = LexicalIndex(corpus.features, LEAK_THRESHOLD, banding_for(LEAK_THRESHOLD))
        self.inherited: list[Json] = []

    def select(self, order: Sequence[int], kept: KeptSet, computations: Computations) -> dict[int, Verdict]:
        """Return a verdict on each published record and each code of an order. Args: kept: empty."""
        features, ids = self._corpus.features, self._corpus.ids
        self._near.clear()
        self.inherited = []
        groups = SplitGroups(
            features, lambda shingle_set: (near.place for near in self._near.near(shingle_set)), computations
        )
        verdicts: dict[int, Verdict] = {}
        for code_index in sorted(order, key=lambda code_index: code_index not in self.published):
            verdict, split = kept.witness(code_index), self.published.get(code_index)
            found = verdict or self._find_leak(code_index, groups, split)
            if split is None and found is not None:
                verdicts[code_index] = found
                continue
            if found is not None and found.canonical is not None:
                pair = {"id": ids[code_index], "other": ids[found.canonical]}
                self.inherited.append({**pair, "stage": found.stage, "similarity": found.similarity})
            groups.add(code_index, split, force=split is not None)
            kept.add(code_index)
            shingle_set = int(features.shingle_set[code_index])
            self._near.keep(shingle_set, shingle_set)
            verdicts[code_index] = Verdict(None, code_index, 1.0)
        return verdicts

    def _find_leak(self, code_index: int, groups: SplitGroups, split: str | None) -> Verdict | None:
        """Return a verdict for the nearest kept code of a second split that a code must be with, if there is one."""

        def compare(other: int) -> float:
            features = self._corpus.features
            return jaccard(*(features.shingles(int(features.shingle_set[item])) for item in (code_index, other)))

        tied = sorted(
            (-compare(other) if by_text else -1.0, self._corpus.ids[other], other)
            for other, by_text in groups.list_tied(code_index)
            if groups.split(other) is not None
        )
        for similarity, _, other in tied:
            split = split or groups.split(other)
            if groups.split(other) != split:
                return Verdict("leak", other, -similarity)
        return None
