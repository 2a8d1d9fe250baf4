"""What tasks elsewhere have worked out for a run, which takes it instead of working it out again."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.model.features import FeatureStore
from lemur_core.similarity.selection import Verdict


@dataclass(frozen=True, slots=True)
class Prepared:
    """Features, a selection, and graphs.

    Attributes:
        features: opens those of all codes.
        order: the ids of the codes that were selected from, best first.
        verdicts: of them, in that order: `stage`, `canonical` (a place in it), `similarity`.
        known: the ids of the codes whose graphs were known to that selection.
        answers: of the sandbox, by id, for all codes that were traced.
    """

    features: Callable[[], FeatureStore]
    order: Sequence[bytes]
    verdicts: pa.Table
    known: Set[str]
    answers: Mapping[str, Mapping[str, Any]]

    def selected(self, order: Sequence[int], known: Set[int], ids: Sequence[str]) -> dict[int, Verdict] | None:
        """The verdicts for an order of codes of which some have known graphs, where these were selected from."""
        same = len(order) == len(self.order) and {ids[code] for code in known} == self.known
        if not same or any(ids[code] != id_.hex() for code, id_ in zip(order, self.order, strict=True)):
            return None
        rows = (row for batch in self.verdicts.to_batches(max_chunksize=10_000) for row in batch.to_pylist())
        return {
            code: Verdict(row["stage"], order[row["canonical"]], row["similarity"])
            for code, row in zip(order, rows, strict=True)
        }
