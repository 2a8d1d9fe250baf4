"""The structural index against brute force."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.similarity.index import Neighbour, StructuralIndex, set_jaccard


class Fingerprints:
    """Sets of elements in the place of a feature table."""

    def __init__(self, sets: list[tuple[int, ...]]) -> None:
        self.elements = [np.array(numbers, np.uint64) for numbers in sets]


@st.composite
def fingerprints(draw: st.DrawFn) -> Fingerprints:
    base = list(range(draw(st.sampled_from([3, 10, 20, 40]))))
    sets: dict[tuple[int, ...], None] = {}
    for _ in range(draw(st.integers(1, 12))):
        less = draw(st.sets(st.sampled_from(base), max_size=4))
        more = draw(st.sets(st.integers(100, 104), max_size=3))
        sets[tuple(sorted((set(base) - less) | more))] = None
    return Fingerprints(list(sets))


@given(
    features=fingerprints(),
    threshold=st.sampled_from([0.5, 0.6, 2 / 3, 0.7, 0.75, 0.8, 0.9, 0.95, 0.975, 1.0]),
    data=st.data(),
)
def test_nearest_is_that_of_brute_force(features: Any, threshold: float, data: st.DataObject) -> None:
    sets = [frozenset(elements.tolist()) for elements in features.elements]
    index = StructuralIndex(features.elements, threshold)
    for _ in range(2):
        index.clear()
        kept: list[tuple[int, int]] = []
        for place in range(data.draw(st.integers(1, 20))):
            item = data.draw(st.integers(0, len(sets) - 1))
            if data.draw(st.booleans()):
                index.keep(item, place)
                kept.append((place, item))
                continue
            candidates = [
                (len(sets[item] & sets[other]) / len(sets[item] | sets[other]), -where)
                for where, other in kept
                if sets[item] and sets[other]
            ]
            similarity, minus_place = max(candidates, default=(0.0, 0))
            expected = Neighbour(-minus_place, similarity) if candidates and similarity >= threshold else None
            assert index.nearest(item) == expected
            assert index.nearest(item) == expected


def test_thresholds_are_reached_by_equality() -> None:
    """Every fraction of small sets, at its own value: rounding must lose no pair."""
    for size in range(1, 60):
        for shared in range((size + 1) // 2, size + 1):
            features: Any = Fingerprints([tuple(range(size)), tuple(range(shared))])
            index = StructuralIndex(features.elements, shared / size)
            index.keep(0, 5)
            assert index.nearest(1) == Neighbour(5, shared / size)


def test_empty_fingerprints_are_near_to_nothing() -> None:
    features: Any = Fingerprints([(), (1, 2)])
    index = StructuralIndex(features.elements, 0.5)
    index.keep(0, 0)
    assert index.nearest(0) is None
    assert index.nearest(1) is None
    index.keep(1, 1)
    assert index.nearest(0) is None
    assert set_jaccard(frozenset(), frozenset()) == 0.0


def test_few_pairs_are_verified() -> None:
    """Prefix filtering: sets that share only what is frequent are not compared."""
    features: Any = Fingerprints([(*range(20), *range(1000 + 20 * i, 1020 + 20 * i)) for i in range(50)])
    index = StructuralIndex(features.elements, 0.9)
    for place in range(50):
        assert index.nearest(place) is None
        index.keep(place, place)
    assert index.verified == 0
