"""The join of new sets with others, and of one with many, find what comparing all of them finds."""

import random
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.graphs.identity import similarity
from lemur_core.similarity.join import pairs_between
from lemur_core.similarity.minhash import jaccard, signature
from lemur_core.similarity.overlap import OverlapIndex, build_multiset

Hashes = npt.NDArray[np.uint64]


class Items:
    def __init__(self, count: int, seed: int) -> None:
        dice = random.Random(seed)
        self.sets: list[Hashes] = []
        members: list[int] = []
        for place in range(count):
            if place % 7 == 0:
                members = [dice.getrandbits(64) for _ in range(dice.randrange(20, 200))]
            changed = [value if dice.random() > 0.08 else dice.getrandbits(64) for value in members]
            self.sets.append(np.array(sorted(set(changed)), np.uint64))
        self.signatures = np.stack([signature(one) for one in self.sets])
        self.set_sizes = np.array([len(one) for one in self.sets])

    def shingles(self, shingle_set: int) -> Hashes:
        return self.sets[shingle_set]


@pytest.mark.parametrize("threshold", [0.3, 0.7, 1.0])
def test_all_pairs_between_two_groups_of_sets(monkeypatch: pytest.MonkeyPatch, threshold: float) -> None:
    items = Items(60, 9)
    new, there = np.arange(0, 40), np.arange(25, 60)  # some are in both
    true = {
        (a, b): jaccard(items.sets[a], items.sets[b])
        for a in new.tolist()
        for b in there.tolist()
        if jaccard(items.sets[a], items.sets[b]) >= threshold
    }
    for most in (20_000, 7):
        monkeypatch.setattr("lemur_core.similarity.join.MAX_SETS", most)
        found = pairs_between(items, new, there, threshold)
        assert dict(zip(zip(found.a.tolist(), found.b.tolist(), strict=True), found.jaccard, strict=True)) == (
            pytest.approx(true)
        )


# One set compared with many at once: as one by one, to the last bit.

SETS = st.lists(st.frozensets(st.integers(0, 12), max_size=8), max_size=6)


def numbers(chosen: frozenset[int]) -> np.ndarray:
    return np.array(sorted(chosen), np.uint64)


@given(SETS, st.frozensets(st.integers(0, 14), max_size=8))
def test_sets_are_compared_as_one_by_one(sets: list[frozenset[int]], own: frozenset[int]) -> None:
    index = OverlapIndex((numbers(chosen), None) for chosen in sets)
    assert index.similarities(numbers(own)).tolist() == [jaccard(numbers(own), numbers(chosen)) for chosen in sets]


COUNTS = st.dictionaries(
    st.sampled_from([f"{number:024x}" for number in range(1 << 40, 10 << 40, 1 << 40)]), st.integers(1, 4)
)


@given(st.lists(COUNTS.filter(bool), max_size=5), COUNTS.filter(bool))
def test_multisets_are_compared_as_one_by_one(many: list[dict[str, int]], own: dict[str, int]) -> None:
    heads = [{f"{key[-16:]}": count for key, count in counts.items()} for counts in (own, *many)]
    index = OverlapIndex(build_multiset(Counter(counts)) for counts in heads[1:])
    assert index.similarities(*build_multiset(heads[0])).tolist() == [
        similarity(heads[0], counts) for counts in heads[1:]
    ]
