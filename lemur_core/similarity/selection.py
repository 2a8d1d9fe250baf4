"""The one selection of kept records: a maximal independent set of the similarity graph, chosen best-first.

Records are taken in order of preference. A record that duplicates a kept one (same tree, or a similarity at or above a
threshold) is removed, with the kept one as its canonical record; any other is kept. So no two kept records are
near-duplicates, every removed one has a kept canonical record that outranks it, nothing is removed through a chain, and
the order of the input does not matter.

The same selection in rounds is for many machines. A round keeps every open code that is not near a better open one, and
removes the open codes near a code just kept; so the kept set equals that of the sequential selection, and few rounds
are needed unless near-duplicates form long chains. The only query is "is this near a better one": no list of all near
pairs is built. Each step decides some codes from the state before it, so that the codes can be divided among processes;
a process needs the others' verdicts of the previous step, and only of codes that may be near its own.

Source: Blelloch, Fineman, Shun 2012, "Greedy sequential maximal independent set and matching are parallel on average",
arXiv:1202.3205.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lemur_core.similarity.index import Neighbour, NeighbourIndex
from lemur_core.similarity.minhash import IntArray


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one record or input row: the stage that removed it, or None if it is kept.

    `canonical` is the kept code that it duplicates, or itself if kept; None if there is none. Profile nn-dup, which
    decides on rows, has a row there until its verdicts are translated.
    """

    stage: str | None
    canonical: int | None = None
    similarity: float | None = None
    reason: str = ""
    rescued: str | None = None

    @property
    def kept(self) -> bool:
        """Return whether it is kept."""
        return self.stage is None

    @property
    def outcome(self) -> str:
        """The stage that removed it, or `kept`."""
        return self.stage or "kept"


class Classes(Protocol):
    """Class numbers of the codes 0..n-1, equal for equal ones, int64 of shape (n,)."""

    tree: IntArray
    shingle_set: IntArray
    fingerprint: IntArray


#: Returns whether two codes are not near-duplicates, despite similar texts.
Differ = Callable[[int, int], bool]

#: Admits a record that would be kept (None), or returns the verdict that removes it.
Admit = Callable[[int], Verdict | None]


class KeptSet:
    """The kept codes, best first, queried for those near another code.

    Args:
        lexical, structural: empty indexes of `features`.
        graphs: known identities of computation graphs: of two codes with the same one, one is kept.
        differ: excludes pairs whose similarity does not count.
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
        self._tree: dict[int, int] = {}  # tree (below: graph) -> position of the first code that has it
        self._graph: dict[str, int] = {}

    def clear(self) -> None:
        """Remove all codes."""
        for index in self._indexes:
            index.clear()
        self._codes, self._tree, self._graph = [], {}, {}

    def add(self, code: int) -> None:
        """Keep a code, which ranks below those kept so far."""
        position = len(self._codes)
        self._codes.append(code)
        self._tree.setdefault(int(self._features.tree[code]), position)
        if code in self.graphs:
            self._graph.setdefault(self.graphs[code], position)
        for index, item in zip(self._indexes, self._items(code), strict=True):
            index.keep(item, position)

    def witness(self, code: int) -> Verdict | None:
        """Return the verdict that removes a code: the first stage with a near kept one, and the nearest; else None."""
        tree = int(self._features.tree[code])
        if tree in self._tree:
            return Verdict("exact", self._codes[self._tree[tree]], 1.0)
        for index, item in zip(self._indexes, self._items(code), strict=True):
            near = index.nearest(item) if self.differ is None else _nearest(self._near_items(index, item, code))
            if near is not None:
                return Verdict(index.stage, self._codes[near.place], near.similarity)
        position = self._graph.get(self.graphs[code]) if code in self.graphs else None
        return None if position is None else Verdict("graph", self._codes[position], 1.0)

    def near(self, code: int) -> int | None:
        """Return any kept code that is near this one."""
        tree = int(self._features.tree[code])
        if tree in self._tree:
            return self._codes[self._tree[tree]]
        for index, item in zip(self._indexes, self._items(code), strict=True):
            near = index.any_near(item) if self.differ is None else next(self._near_items(index, item, code), None)
            if near is not None:
                return self._codes[near.place]
        position = self._graph.get(self.graphs[code]) if code in self.graphs else None
        return None if position is None else self._codes[position]

    def _items(self, code: int) -> tuple[int, int]:
        return int(self._features.shingle_set[code]), int(self._features.fingerprint[code])

    def _near_items(self, index: NeighbourIndex, item: int, code: int) -> Iterator[Neighbour]:
        assert self.differ is not None
        return (neighbour for neighbour in index.near(item) if not self.differ(code, self._codes[neighbour.place]))


def select(order: Sequence[int], kept: KeptSet, admit: Admit | None = None) -> dict[int, Verdict]:
    """Decide every record.

    Args:
        order: code numbers, each once, best first; the result depends on this order alone.
        kept: an empty set of kept codes.
        admit: called last, for each record that duplicates no kept one.

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


def _nearest(neighbours: Iterable[Neighbour]) -> Neighbour | None:
    return max(neighbours, key=lambda near: (near.similarity, -near.place), default=None)


# -- in rounds --------------------------------------------


def find_kept(order: Sequence[int], own: Collection[int], kept_set: KeptSet) -> list[int]:
    """Return those of `own` that are not near a better open code: they are kept.

    Args:
        order: open codes, best first: those of `own`, and all that may be near one of them.
        own: the codes to decide.
        kept_set: is cleared first.
    Returns: the kept codes, best first.
    """
    kept_set.clear()
    kept = []
    for code in order:
        if code in own and kept_set.near(code) is None:
            kept.append(code)
        kept_set.add(code)
    return kept


def find_removed(order: Sequence[int], fresh: Collection[int], kept_set: KeptSet) -> list[int]:
    """Return the open codes that are near a better one just kept: they are removed.

    Args:
        order: best first: the codes just kept (all that may be near one of the others), and the open ones to decide.
        fresh: the codes just kept.
        kept_set: is cleared first.
    Returns: the removed codes, best first.
    """
    kept_set.clear()
    removed = []
    for code in order:
        if code in fresh:
            kept_set.add(code)
        elif kept_set.near(code) is not None:
            removed.append(code)
    return removed


def find_verdicts(order: Sequence[int], kept: Collection[int], kept_set: KeptSet) -> dict[int, Verdict]:
    """Return the verdicts of all codes of `order`, once the kept ones are known.

    Args:
        order: best first: the kept codes (all that may be near one of the others), and any of the removed ones.
        kept_set: is cleared first.
    Returns: the verdicts by code; of a kept code, itself as its canonical one, with similarity 1.
    """
    kept_set.clear()
    verdicts: dict[int, Verdict] = {}
    for code in order:
        if code in kept:
            verdict = Verdict(None, code, 1.0)
            kept_set.add(code)
        else:
            removed = kept_set.witness(code)
            assert removed is not None
            verdict = removed
        verdicts[code] = verdict
    return verdicts
