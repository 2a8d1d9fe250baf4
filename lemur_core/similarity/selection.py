"""The one place that decides what is kept: a maximal independent set of the similarity graph, chosen best-first.

Records are taken in order of preference. One that a kept record already stands for (same tree, or a similarity at or
above a threshold) is removed with that record as its witness; any other is kept. So no two kept records are
near-duplicates, every removed one has a kept witness that outranks it, nothing is removed through a chain, and the
order of the input plays no part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lemur_core.similarity.index import Neighbour, NeighbourIndex
from lemur_core.similarity.minhash import IntArray


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one record or input row: `stage` removed it, None when it is kept.

    `canonical` is the kept code that stands for it, its own when kept; None where none does. Profile nn-dup, which
    decides on rows, has a row there until its verdicts are translated.
    """

    stage: str | None
    canonical: int | None = None
    similarity: float | None = None
    reason: str = ""
    rescued: str | None = None

    @property
    def kept(self) -> bool:
        """Whether it is kept."""
        return self.stage is None

    @property
    def outcome(self) -> str:
        """The stage that removed it, or `kept`."""
        return self.stage or "kept"


class Classes(Protocol):
    """Codes 0..n-1 by number: equal numbers for equal ones, int64 of shape (n,)."""

    tree: IntArray
    shingle_set: IntArray
    fingerprint: IntArray


#: Whether two codes are no near-duplicates, whatever their texts say.
Differ = Callable[[int, int], bool]


def select(
    order: Sequence[int],
    features: Classes,
    lexical: NeighbourIndex,
    structural: NeighbourIndex,
    graphs: Mapping[int, str] = {},
    differ: Differ | None = None,
) -> dict[int, Verdict]:
    """Decide every record.

    Args:
        order: code numbers, each once, best first; the result depends on this order alone.
        lexical, structural: empty indexes over `features`.
        graphs: what codes compute, as far as that is known: of two with one graph, one is kept.
        differ: pairs whose similarity does not count.

    Returns: a verdict for each code number, in that order.
    """
    verdicts: dict[int, Verdict] = {}
    kept: list[int] = []
    tree_of_kept: dict[int, int] = {}
    place_of_graph: dict[str, int] = {}
    for code in order:
        tree, shingles, structure = (
            int(features.tree[code]),
            int(features.shingle_set[code]),
            int(features.fingerprint[code]),
        )
        if tree in tree_of_kept:
            verdicts[code] = Verdict("exact", kept[tree_of_kept[tree]], 1.0)
        elif (near := _nearest(lexical, shingles, code, kept, differ)) is not None:
            verdicts[code] = _removed(lexical, near, kept)
        elif (near := _nearest(structural, structure, code, kept, differ)) is not None:
            verdicts[code] = _removed(structural, near, kept)
        elif code in graphs and graphs[code] in place_of_graph:
            verdicts[code] = Verdict("graph", kept[place_of_graph[graphs[code]]], 1.0)
        else:
            place = len(kept)
            if code in graphs:
                place_of_graph[graphs[code]] = place
            kept.append(code)
            tree_of_kept[tree] = place
            lexical.keep(shingles, place)
            structural.keep(structure, place)
            verdicts[code] = Verdict(None, code, 1.0)
    return verdicts


def _nearest(
    index: NeighbourIndex, item: int, code: int, kept: Sequence[int], differ: Differ | None
) -> Neighbour | None:
    if differ is None:
        return index.nearest(item)
    near = (found for found in index.near(item) if not differ(code, kept[found.place]))
    return max(near, key=lambda found: (found.similarity, -found.place), default=None)


def _removed(index: NeighbourIndex, near: Neighbour, kept: list[int]) -> Verdict:
    return Verdict(index.stage, kept[near.place], near.similarity)
