"""What tasks elsewhere have worked out for a run, which takes it instead of working it out again."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from curate.features import FeatureStore
from lemur_core.similarity.selection import Verdict


@dataclass(frozen=True, slots=True)
class Prepared:
    """Features, a selection, and graphs.

    Attributes:
        features: of all codes.
        order: the ids of the codes that were selected from, best first.
        verdicts: of them, by place; their canonicals are places too.
        known: the ids of the codes whose graphs were known to that selection.
        answers: of the sandbox, by id, for all codes that were traced.
    """

    features: FeatureStore
    order: Sequence[str]
    verdicts: Sequence[Verdict]
    known: Set[str]
    answers: Mapping[str, Mapping[str, Any]]

    def selected(self, order: Sequence[int], known: Set[int], ids: Sequence[str]) -> dict[int, Verdict] | None:
        """The verdicts for an order of codes of which some have known graphs, where these were selected from."""
        if {ids[code] for code in known} != self.known or [ids[code] for code in order] != list(self.order):
            return None
        return {
            code: replace(verdict, canonical=None if verdict.canonical is None else order[verdict.canonical])
            for code, verdict in zip(order, self.verdicts, strict=True)
        }
