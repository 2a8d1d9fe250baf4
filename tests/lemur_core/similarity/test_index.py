"""The indexes of kept items, the joins, and one set compared with many: each against brute force."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.graphs.identity import similarity
from lemur_core.similarity import join
from lemur_core.similarity.index import LexicalIndex, Neighbour, NeighbourIndex, StructuralIndex
from lemur_core.similarity.join import exact_pairs, in_order, link_by_lsh, measure_recall, pairs_between
from lemur_core.similarity.minhash import Banding, banding_for, buckets, jaccard, signature
from lemur_core.similarity.overlap import OverlapIndex, build_multiset


class Sets:
    def __init__(self, sets: list[list[int]]) -> None:
        self.sets = [np.unique(np.array(numbers, np.uint64)) for numbers in sets]
        # small numbers stand for hashes: spread them over 64 bits
        self.hashed = [np.sort(s * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)) for s in self.sets]
        self.signatures = np.array([signature(s) for s in self.hashed], np.uint32).reshape(len(sets), 256)
        self.set_sizes = np.array([len(s) for s in self.sets], np.int64)

    def shingles(self, number: int) -> Any:
        return self.hashed[number]

    def similarity(self, a: int, b: int) -> float:
        one, two = set(self.sets[a].tolist()), set(self.sets[b].tolist())
        return len(one & two) / len(one | two)


@st.composite
def relatives(draw: st.DrawFn) -> Sets:
    """Distinct sets, most of which share much with one of two originals."""
    originals = [list(range(40)), list(range(30, 95)), list(range(3))]
    sets: dict[tuple[int, ...], None] = {}
    for _ in range(draw(st.integers(1, 14))):
        base = draw(st.sampled_from(originals))
        less = draw(st.sets(st.sampled_from(base), max_size=min(6, len(base) - 1)))
        more = draw(st.sets(st.integers(200, 206), max_size=4))
        sets[tuple(sorted((set(base) - less) | more))] = None
    return Sets([list(numbers) for numbers in sets])


@given(a=st.sets(st.integers(0, 2**64 - 1)), b=st.sets(st.integers(0, 2**64 - 1)), common=st.sets(st.integers(0, 99)))
def test_jaccard(a: set[int], b: set[int], common: set[int]) -> None:
    a, b = a | common, b | common
    found = jaccard(np.array(sorted(a), np.uint64), np.array(sorted(b), np.uint64))
    assert found == (len(a & b) / len(a | b) if a and b else 0.0)


@pytest.mark.parametrize("stage", ["lexical", "structural"])
@given(features=relatives(), data=st.data())
def test_nearest_is_that_of_brute_force(stage: str, features: Any, data: st.DataObject) -> None:
    further = [0.5, 0.6, 2 / 3, 0.75, 0.95, 0.975] if stage == "structural" else []  # by construction, not by chance
    threshold = data.draw(st.sampled_from([0.7, 0.8, 0.9, 1.0, *further]))
    index: NeighbourIndex = StructuralIndex(features.sets, threshold)
    if stage == "lexical":
        index = LexicalIndex(features, threshold, banding_for(threshold))
    for _ in range(2):  # a cleared index is as good as a new one
        index.clear()
        kept: list[tuple[int, int]] = []  # (place, set)
        for place in range(data.draw(st.integers(1, 20))):
            item = data.draw(st.integers(0, len(features.sets) - 1))
            if data.draw(st.booleans()):
                index.keep(item, place)
                kept.append((place, item))
                continue
            candidates = [(features.similarity(item, other), -where) for where, other in kept]
            similarity, minus_place = max(candidates, default=(0.0, 0))
            expected = Neighbour(-minus_place, similarity) if kept and similarity >= threshold else None
            assert index.nearest(item) == expected
            assert index.nearest(item) == expected  # what is remembered is what was found


def test_many_kept_sets() -> None:
    """More candidates than are looked at one by one."""
    base = list(range(200))
    features: Any = Sets([[*base[:-1], 1000 + i] for i in range(60)] + [base])
    index = LexicalIndex(features, 0.9, banding_for(0.9))
    for place in range(60):
        index.keep(place, place)
    assert index.nearest(60) == Neighbour(0, features.similarity(0, 60))
    assert index.verified == 60


def test_a_threshold_is_reached_by_equality() -> None:
    features: Any = Sets([list(range(9)), list(range(10))])
    for threshold, found in ((0.9, Neighbour(0, 0.9)), (0.9000001, None)):
        index = LexicalIndex(features, threshold, banding_for(threshold))
        index.keep(0, 0)
        assert index.nearest(1) == found


def fingerprints(*sets: Any) -> list[Any]:
    return [np.array(numbers, np.uint64) for numbers in sets]


def test_structural_thresholds_are_reached_by_equality() -> None:
    """Every fraction of small sets, at its own value: rounding must lose no pair."""
    for size in range(1, 60):
        for shared in range((size + 1) // 2, size + 1):
            index = StructuralIndex(fingerprints(range(size), range(shared)), shared / size)
            index.keep(0, 5)
            assert index.nearest(1) == Neighbour(5, shared / size)


def test_empty_fingerprints_are_near_to_nothing() -> None:
    index = StructuralIndex(fingerprints((), (1, 2)), 0.5)
    for place in (0, 1):
        index.keep(place, place)
        assert index.nearest(0) is None
        assert place or index.nearest(1) is None


def test_few_pairs_are_verified() -> None:
    """Prefix filtering: sets that share only what is frequent are not compared."""
    index = StructuralIndex(fingerprints(*((*range(20), *range(1000 + 20 * i, 1020 + 20 * i)) for i in range(50))), 0.9)
    for place in range(50):
        assert index.nearest(place) is None
        index.keep(place, place)
    assert index.verified == 0


def test_buckets() -> None:
    features = Sets([[1, 2, 3], [1, 2, 3], [500], list(range(1000, 1100))])
    table = buckets(features.signatures, Banding(64, 4))
    assert table.shape == (4, 64)
    assert (table[0] == table[1]).all()
    assert (table[0] >= 0).all()
    assert (table[2] == -1).all()
    shared = table[table >= 0]
    assert len(np.unique(shared)) == 64, "buckets of different bands share a number"
    assert buckets(np.empty((0, 256), np.uint32), Banding(64, 4)).shape == (0, 64)


@given(features=relatives(), threshold=st.sampled_from([0.5, 0.7, 0.9, 1.0]), data=st.data())
def test_the_exact_join_is_that_of_brute_force(features: Any, threshold: float, data: st.DataObject) -> None:
    numbers = data.draw(st.sets(st.integers(0, len(features.sets) - 1)))
    chosen = np.array(sorted(numbers), np.int64)
    found = exact_pairs(features, chosen, threshold)
    expected = {
        (a, b): features.similarity(a, b)
        for a in sorted(numbers)
        for b in sorted(numbers)
        if a < b and features.similarity(a, b) >= threshold
    }
    pairs = list(zip(found.a.tolist(), found.b.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    assert dict(zip(pairs, found.jaccard.tolist(), strict=True)) == expected
    assert (found.joined, found.sets, found.complete) == (len(numbers), len(numbers), True)


@given(
    features=relatives(), threshold=st.sampled_from([0.3, 0.7, 1.0]), most=st.sampled_from([2, 20_000]), data=st.data()
)
def test_the_join_of_two_groups_is_that_of_brute_force(
    features: Any, threshold: float, most: int, data: st.DataObject
) -> None:
    chosen = st.sets(st.integers(0, len(features.sets) - 1), min_size=1)
    new, there = data.draw(chosen), data.draw(chosen)  # some are in both
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "MAX_SETS", most)
        found = pairs_between(features, np.array(sorted(new)), np.array(sorted(there)), threshold)
    pairs = zip(found.a.tolist(), found.b.tolist(), strict=True)
    true = {(a, b): near for a in new for b in there if (near := features.similarity(a, b)) >= threshold}
    assert dict(zip(pairs, found.jaccard, strict=True)) == pytest.approx(true)


def test_a_join_of_too_many_sets_samples_them(monkeypatch: pytest.MonkeyPatch) -> None:
    features: Any = Sets([[*range(50), 100 + i] for i in range(30)])
    monkeypatch.setattr(join, "MAX_SETS", 8)
    found = exact_pairs(features, np.arange(30), 0.9)
    assert (found.joined, found.sets, found.complete) == (8, 30, False)
    assert len(found.a) == 8 * 7 // 2
    assert len({*found.a.tolist(), *found.b.tolist()}) == 8
    assert exact_pairs(features, np.arange(8), 0.9).complete
    assert in_order(np.array([5, 2, 5, 9, 2, 0])).tolist() == [5, 2, 9, 0], "of first occurrence"


@given(numbers=st.permutations(range(30)))
def test_the_sample_of_a_join_does_not_depend_on_how_sets_are_numbered(numbers: list[int]) -> None:
    contents = [[*range(50), 100 + i] for i in range(30)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "MAX_SETS", 8)

        def sample(numbers: list[int]) -> set[frozenset[int]]:
            """The pairs found, as places in `contents`, where set `numbers[i]` is the i-th of these."""
            features: Any = Sets([contents[numbers.index(number)] for number in range(30)])
            found = exact_pairs(features, np.array(numbers), 0.9)
            pairs = zip(found.a.tolist(), found.b.tolist(), strict=True)
            return {frozenset((numbers.index(a), numbers.index(b))) for a, b in pairs}

        assert sample(numbers) == sample(list(range(30)))


@given(features=relatives(), threshold=st.sampled_from([0.7, 0.8, 0.9]))
def test_links_by_lsh_connect_what_the_exact_join_connects(features: Any, threshold: float) -> None:
    numbers = np.arange(len(features.sets))

    def components(pairs: list[tuple[int, int]]) -> set[frozenset[int]]:
        groups = {int(number): frozenset([int(number)]) for number in numbers}
        for a, b in pairs:
            both = groups[a] | groups[b]
            groups.update(dict.fromkeys(both, both))
        return set(groups.values())

    left, right = link_by_lsh(features, numbers, threshold)
    links = list(zip(left.tolist(), right.tolist(), strict=True))
    assert all(features.similarity(a, b) >= threshold for a, b in links)
    truth = exact_pairs(features, numbers, threshold)
    assert components(links) == components(list(zip(truth.a.tolist(), truth.b.tolist(), strict=True)))
    assert len(links) == len(numbers) - len(components(links)), "a link that connects nothing"


def test_recall_counts_what_the_index_would_find() -> None:
    base = list(range(100))
    features: Any = Sets([[*base, 200 + i] for i in range(20)])
    truth = exact_pairs(features, np.arange(20), 0.9)
    assert len(truth.a) == 190
    fine = measure_recall(features, truth, banding_for(0.9), 0.9)
    assert (fine.pairs, fine.proposed, fine.recall) == (190, 190, 1.0)
    coarse = measure_recall(features, truth, Banding(1, 256), 0.9)
    assert coarse.proposed < coarse.pairs
    assert coarse.recall == coarse.proposed / 190
    assert coarse.facts()["recall"] == coarse.recall
    assert coarse.facts()["miss_chance"] == Banding(1, 256).miss_chance(0.9)


# One set compared with many at once: as one by one, to the last bit.

SETS = st.lists(st.frozensets(st.integers(0, 12), max_size=8), max_size=6)


@given(SETS, st.frozensets(st.integers(0, 14), max_size=8))
def test_sets_are_compared_as_one_by_one(sets: list[frozenset[int]], own: frozenset[int]) -> None:
    one, *others = (np.array(sorted(chosen), np.uint64) for chosen in (own, *sets))
    index = OverlapIndex((other, None) for other in others)
    assert index.similarities(one).tolist() == [jaccard(one, other) for other in others]


KEYS = [f"{number << 40:024x}" for number in range(1, 10)]
COUNTS = st.dictionaries(st.sampled_from(KEYS), st.integers(1, 4), min_size=1)


@given(st.lists(COUNTS, max_size=5), COUNTS)
def test_multisets_are_compared_as_one_by_one(many: list[dict[str, int]], own: dict[str, int]) -> None:
    index = OverlapIndex(build_multiset(Counter(counts)) for counts in many)
    assert index.similarities(*build_multiset(own)).tolist() == [similarity(own, counts) for counts in many]
