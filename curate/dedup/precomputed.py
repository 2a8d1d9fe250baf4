"""Results that other tasks have computed for a run, so that it need not compute them again."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from curate.model.features import FeatureStore
from lemur_core.similarity.selection import Verdict


@dataclass(frozen=True, slots=True)
class Precomputed:
    """Features, a selection, and graphs.

    Attributes:
        features: opens the features of all codes.
        order: the ids of the codes that were selected from, best first.
        verdicts: one per code in that order: `stage`, `canonical` (an index into it), `similarity`.
        known: the ids of the codes whose graphs were known to that selection.
        answers: answers of the sandbox, by id, for all codes that were traced.
    """

    features: Callable[[], FeatureStore]
    order: Sequence[bytes]
    verdicts: pa.Table
    known: Set[str]
    answers: Mapping[str, Mapping[str, Any]]

    def look_up_verdicts(self, order: Sequence[int], known: Set[int], ids: Sequence[str]) -> dict[int, Verdict] | None:
        """Return the verdicts on these codes, if they and the codes with known graphs are those of the selection."""
        same = len(order) == len(self.order) and {ids[code] for code in known} == self.known
        if not same or any(ids[code] != id_.hex() for code, id_ in zip(order, self.order, strict=True)):
            return None
        rows = (row for batch in self.verdicts.to_batches(max_chunksize=10_000) for row in batch.to_pylist())
        return {
            code: Verdict(row["stage"], order[row["canonical"]], row["similarity"])
            for code, row in zip(order, rows, strict=True)
        }
