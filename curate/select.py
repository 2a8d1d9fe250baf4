"""The one place that decides what is kept: a maximal independent set of the similarity graph, chosen best-first.

Records are taken in order of preference. One that a kept record already stands for (same tree, or a similarity at or
above a threshold) is removed with that record as its witness; any other is kept. So no two kept records are
near-duplicates, every removed one has a kept witness that outranks it, nothing is removed through a chain, and the
order of the input plays no part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from curate.feature_table import FeatureTable
from lemur_core.similarity.index import Near, NearIndex


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one record: `stage` is None when it is kept, and `canonical` is then itself."""

    stage: str | None
    canonical: int
    similarity: float


def select(
    order: Sequence[int], features: FeatureTable, lexical: NearIndex, structural: NearIndex
) -> dict[int, Verdict]:
    """Decide every record.

    Args:
        order: code numbers, each once, best first; the result depends on this order alone.
        lexical, structural: empty indexes over `features`.

    Returns: a verdict for each code number, in that order.
    """
    verdicts: dict[int, Verdict] = {}
    kept: list[int] = []
    tree_of_kept: dict[int, int] = {}
    for code in order:
        tree, shingles, structure = (
            int(features.tree[code]),
            int(features.shingle_set[code]),
            int(features.fingerprint[code]),
        )
        if tree in tree_of_kept:
            verdicts[code] = Verdict("exact", kept[tree_of_kept[tree]], 1.0)
        elif (near := lexical.nearest(shingles)) is not None:
            verdicts[code] = _removed(lexical, near, kept)
        elif (near := structural.nearest(structure)) is not None:
            verdicts[code] = _removed(structural, near, kept)
        else:
            place = len(kept)
            kept.append(code)
            tree_of_kept[tree] = place
            lexical.keep(shingles, place)
            structural.keep(structure, place)
            verdicts[code] = Verdict(None, code, 1.0)
    return verdicts


def _removed(index: NearIndex, near: Near, kept: list[int]) -> Verdict:
    return Verdict(index.stage, kept[near.place], near.similarity)
