"""What tasks elsewhere have worked out for a run, which takes it instead of working it out again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from curate.features import FeatureStore
from lemur_core.similarity.selection import Verdict


@dataclass(frozen=True, slots=True)
class Prepared:
    """Features, the first selection, and graphs.

    Attributes:
        features: of all codes.
        order: the ids of the codes that were selected from, best first.
        verdicts: of them, by place; their canonicals are places too.
        answers: of the sandbox, by id, for the codes that were traced.
    """

    features: FeatureStore
    order: Sequence[str]
    verdicts: Sequence[Verdict]
    answers: Mapping[str, Mapping[str, Any]]

    def first(self, order: Sequence[int], ids: Sequence[str]) -> dict[int, Verdict] | None:
        """The verdicts for an order of codes, where it is the one that was selected from."""
        if [ids[code] for code in order] != list(self.order):
            return None
        return {
            code: replace(verdict, canonical=None if verdict.canonical is None else order[verdict.canonical])
            for code, verdict in zip(order, self.verdicts, strict=True)
        }
