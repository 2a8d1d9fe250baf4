"""The decision in rounds against the sequential one and against brute force, on graphs drawn to be hard."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.similarity.index import NeighbourIndex
from lemur_core.similarity.selection import KeptSet, Verdict, find_kept, find_removed, find_verdicts, select
from tests.builders.rounds import select_in_rounds

Edges = dict[tuple[int, int], float]


class Given(NeighbourIndex):
    """Items whose similarities are given."""

    def __init__(self, stage: str, edges: Edges) -> None:
        self.stage, self._edges = stage, edges
        super().__init__(0.9)

    def _likely(self, item: int, looked: int) -> Iterator[tuple[int, float]]:
        for number in range(looked, len(self._kept)):
            other = self._kept[number]
            yield number, 1.0 if item == other else self._edges.get((min(item, other), max(item, other)), 0.0)

    def _add(self, item: int, number: int) -> None:
        pass


@dataclass
class Case:
    """Codes with classes, similarities of two kinds, some graphs, pairs that do not count, and an order."""

    tree: Any
    lexical: Edges
    structural: Edges
    graphs: dict[int, str]
    apart: set[tuple[int, int]] | None
    order: list[int]

    @property
    def shingle_set(self) -> Any:
        return np.arange(len(self.tree))

    fingerprint = shingle_set

    def stand(self) -> KeptSet:
        apart = self.apart
        differ = None if apart is None else lambda one, other: (min(one, other), max(one, other)) in apart
        indexes = Given("lexical", self.lexical), Given("structural", self.structural)
        return KeptSet(self, *indexes, self.graphs, differ)

    def verdict(self, code: int, kept: Sequence[int]) -> Verdict:
        """By the definition: each stage in turn, there the most similar kept one, the best of equals."""
        for other in kept:
            if self.tree[code] == self.tree[other]:
                return Verdict("exact", other, 1.0)
        for stage, edges in (("lexical", self.lexical), ("structural", self.structural)):
            pairs = {other: (min(code, other), max(code, other)) for other in kept}
            close = [(edges.get(pair, 0), -kept.index(other)) for other, pair in pairs.items() if pair not in self.far]
            similarity, minus_place = max(close, default=(0, 0))
            if similarity >= 0.9:
                return Verdict(stage, kept[-minus_place], similarity)
        for other in kept:
            if code in self.graphs and self.graphs[code] == self.graphs.get(other):
                return Verdict("graph", other, 1.0)
        return Verdict(None, code, 1.0)

    @property
    def far(self) -> set[tuple[int, int]]:
        return self.apart or set()

    def decide(self) -> dict[int, Verdict]:
        kept: list[int] = []
        verdicts = {}
        for code in self.order:
            verdicts[code] = self.verdict(code, kept)
            if verdicts[code].kept:
                kept.append(code)
        return verdicts


SIMILARITIES = st.sampled_from([0.5, 0.89, 0.9, 0.91, 0.95, 1.0])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Cliques, chains, stars and random edges, which share codes; in order, backwards, or shuffled."""
    count = draw(st.integers(1, 24))
    codes = st.integers(0, count - 1)
    kinds: tuple[Edges, Edges] = ({}, {})
    for _ in range(draw(st.integers(0, 5))):
        edges, members = (
            draw(st.sampled_from(kinds)),
            draw(st.lists(codes, min_size=min(2, count), max_size=12, unique=True)),
        )
        shape = draw(st.sampled_from(["clique", "chain", "star", "random"]))
        pairs = list(itertools.pairwise(members))
        if shape == "clique":
            pairs = [(one, other) for one in members for other in members if one < other]
        elif shape == "star":
            pairs = [(members[0], other) for other in members[1:]]
        elif shape == "random":
            pairs = draw(st.lists(st.tuples(codes, codes), max_size=20))
        for one, other in (pair for pair in pairs if pair[0] != pair[1]):
            edges[min(one, other), max(one, other)] = draw(SIMILARITIES)
    tree = np.array([draw(codes) if draw(st.integers(0, 5)) == 0 else count + code for code in range(count)])
    graphs = draw(st.dictionaries(codes, st.sampled_from("abc"), max_size=6))
    apart = draw(st.none() | st.sets(st.sampled_from(sorted({*kinds[0], *kinds[1], (0, 0)}))))
    order = draw(st.sampled_from([list(range(count)), list(range(count))[::-1]]) | st.permutations(range(count)))
    return Case(tree, *kinds, graphs, apart, list(order))


@given(case=cases())
def test_rounds_decide_as_one_after_the_other(case: Case) -> None:
    expected = case.decide()
    rounds: list[int] = []
    for found in (select(case.order, case.stand()), select_in_rounds(case.order, case.stand(), rounds)):
        assert list(found.items()) == list(expected.items())
    assert sum(rounds) == len(case.order)


@given(case=cases(), parts=st.sampled_from([1, 2, 7]), data=st.data())
def test_parts_that_see_only_what_may_be_near_their_own(case: Case, parts: int, data: st.DataObject) -> None:
    """Each part decides its own codes from the others' verdicts of the step before, as on many machines."""
    part_of = {code: data.draw(st.integers(0, parts - 1)) for code in case.order}
    near = {
        code: {other for other in case.order if not case.verdict(other, [code]).kept or other == code}
        for code in case.order
    }
    own = [{code for code in case.order if part_of[code] == part} for part in range(parts)]
    sees = [set().union(*(near[code] for code in mine)) for mine in own]
    kept: set[int] = set()
    removed: set[int] = set()
    while len(kept) + len(removed) < len(case.order):
        opened = [code for code in case.order if code not in kept and code not in removed]
        fresh: set[int] = set()
        for part in range(parts):
            fresh.update(find_kept([c for c in opened if c in sees[part]], own[part], case.stand()))
        kept |= fresh
        for part in range(parts):
            mine = [c for c in opened if (c in fresh and c in sees[part]) or (c not in fresh and c in own[part])]
            removed.update(find_removed(mine, fresh, case.stand()))
    expected = case.decide()
    for part in range(parts):
        seen = [c for c in case.order if (c in kept and c in sees[part]) or (c in removed and c in own[part])]
        found = find_verdicts(seen, kept, case.stand())
        assert {code: found[code] for code in own[part]} == {code: expected[code] for code in own[part]}


@pytest.mark.parametrize(("order", "rounds"), [(range(9), 5), (range(8, -1, -1), 5), ([4, 3, 5, 2, 6, 1, 7, 0, 8], 3)])
def test_a_chain_takes_as_many_rounds_as_its_order_is_long(order: Sequence[int], rounds: int) -> None:
    case = Case(np.arange(9), {(i, i + 1): 0.9 for i in range(8)}, {}, {}, None, list(order))
    counts: list[int] = []
    assert select_in_rounds(case.order, case.stand(), counts) == case.decide()
    assert len(counts) == rounds
