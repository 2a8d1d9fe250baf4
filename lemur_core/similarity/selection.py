"""The one place that decides what is kept: a maximal independent set of the similarity graph, chosen best-first.

Records are taken in order of preference. One that a kept record already stands for (same tree, or a similarity at or
above a threshold) is removed with that record as its witness; any other is kept. So no two kept records are
near-duplicates, every removed one has a kept witness that outranks it, nothing is removed through a chain, and the
order of the input plays no part.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lemur_core.similarity.features.minhash import IntArray
from lemur_core.similarity.index import Neighbour, NeighbourIndex


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

#: Takes in a record that would be kept, or gives the verdict that keeps it out.
Admit = Callable[[int], Verdict | None]


class Standing:
    """Codes that stand, best first, asked which of them is near another one.

    Args:
        lexical, structural: empty indexes over `features`.
        graphs: what codes compute, as far as that is known: of two with one graph, one is kept.
        differ: pairs whose similarity does not count.
    """

    def __init__(
        self,
        features: Classes,
        lexical: NeighbourIndex,
        structural: NeighbourIndex,
        graphs: Mapping[int, str] = {},
        differ: Differ | None = None,
    ) -> None:
        self._features, self.graphs, self.differ = features, graphs, differ
        self._indexes = (lexical, structural)
        self._codes: list[int] = []
        self._tree: dict[int, int] = {}  # and of graphs: the place of the first that has it
        self._graph: dict[str, int] = {}

    def clear(self) -> None:
        """Let none stand."""
        for index in self._indexes:
            index.clear()
        self._codes, self._tree, self._graph = [], {}, {}

    def add(self, code: int) -> None:
        """Let a code stand, the worst so far."""
        place = len(self._codes)
        self._codes.append(code)
        self._tree.setdefault(int(self._features.tree[code]), place)
        if code in self.graphs:
            self._graph.setdefault(self.graphs[code], place)
        for index, item in zip(self._indexes, self._items(code), strict=True):
            index.keep(item, place)

    def witness(self, code: int) -> Verdict | None:
        """The verdict by which a standing code removes this one: the first stage that has one, there the nearest."""
        tree = int(self._features.tree[code])
        if tree in self._tree:
            return Verdict("exact", self._codes[self._tree[tree]], 1.0)
        for index, item in zip(self._indexes, self._items(code), strict=True):
            near = index.nearest(item) if self.differ is None else _nearest(self._alike(index, item, code))
            if near is not None:
                return Verdict(index.stage, self._codes[near.place], near.similarity)
        place = self._graph.get(self.graphs[code]) if code in self.graphs else None
        return None if place is None else Verdict("graph", self._codes[place], 1.0)

    def near(self, code: int) -> int | None:
        """Any standing code that is near this one."""
        tree = int(self._features.tree[code])
        if tree in self._tree:
            return self._codes[self._tree[tree]]
        for index, item in zip(self._indexes, self._items(code), strict=True):
            near = index.any_near(item) if self.differ is None else next(self._alike(index, item, code), None)
            if near is not None:
                return self._codes[near.place]
        place = self._graph.get(self.graphs[code]) if code in self.graphs else None
        return None if place is None else self._codes[place]

    def _items(self, code: int) -> tuple[int, int]:
        return int(self._features.shingle_set[code]), int(self._features.fingerprint[code])

    def _alike(self, index: NeighbourIndex, item: int, code: int) -> Iterator[Neighbour]:
        assert self.differ is not None
        return (found for found in index.near(item) if not self.differ(code, self._codes[found.place]))


def select(order: Sequence[int], kept: Standing, admit: Admit | None = None) -> dict[int, Verdict]:
    """Decide every record.

    Args:
        order: code numbers, each once, best first; the result depends on this order alone.
        kept: none so far.
        admit: asked last, of each record that nothing kept stands for.

    Returns: a verdict for each code number, in that order.
    """
    verdicts: dict[int, Verdict] = {}
    for code in order:
        verdict = kept.witness(code)
        if verdict is None and admit is not None:
            verdict = admit(code)
        if verdict is None:
            kept.add(code)
        verdicts[code] = verdict or Verdict(None, code, 1.0)
    return verdicts


def _nearest(found: Iterable[Neighbour]) -> Neighbour | None:
    return max(found, key=lambda near: (near.similarity, -near.place), default=None)
