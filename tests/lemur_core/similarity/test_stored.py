"""The index on disk and the join of new sets with others find what comparing all of them finds."""

import hashlib
import random
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.graphs.identity import similarity
from lemur_core.similarity.join import pairs_between
from lemur_core.similarity.minhash import jaccard, signature
from lemur_core.similarity.overlap import OverlapIndex, build_multiset
from lemur_core.similarity.stored import StoredIndex, View, write_index

Hashes = npt.NDArray[np.uint64]


class Items:
    """Items of random sets, near each other in families; every third shares its structure with the one before."""

    def __init__(self, count: int, seed: int) -> None:
        dice = random.Random(seed)
        self.sets: list[Hashes] = []
        self.elements: list[Hashes] = [np.empty(0, np.uint64)]  # a fingerprint of nothing
        self.tree = np.arange(count)
        self.shingle_set = np.arange(count)
        structure = []
        members: list[int] = []
        for place in range(count):
            if place % 7 == 0:
                members = [dice.getrandbits(64) for _ in range(dice.randrange(20, 200))]
            changed = [value if dice.random() > 0.08 else dice.getrandbits(64) for value in members]
            self.sets.append(np.array(sorted(set(changed)), np.uint64))
            if place % 3 and len(self.elements) > 1:
                structure.append(structure[-1])
            else:
                kinds = np.array([dice.randrange(1, 40) for _ in range(dice.randrange(1, 30))], np.uint64)
                self.elements.append(np.unique(kinds) * np.uint64(0x9E3779B97F4A7C15))
                structure.append(len(self.elements) - 1)
        structure[0] = 0
        self.fingerprint = np.array(structure, np.int64)
        self.signatures = np.stack([signature(one) for one in self.sets])
        self.set_sizes = np.array([len(one) for one in self.sets])

    def shingles(self, shingle_set: int) -> Hashes:
        return self.sets[shingle_set]

    def digests(self, view: View) -> list[bytes]:
        count = len(self.tree) if view == "tree" else len(self.elements)
        return [hashlib.blake2b(f"{view} {number}".encode(), digest_size=16).digest() for number in range(count)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("lexical", "structural"), [(0.7, 0.95), (0.5, 0.5), (0.9, 1.0)])
def test_the_index_finds_what_all_comparisons_find(
    tmp_path: Path, seed: int, lexical: float, structural: float
) -> None:
    items = Items(80, seed)
    write_index(tmp_path, items, lexical, structural)
    index = StoredIndex(tmp_path)
    asked = Items(80, seed)  # the same ones, and some of its own
    asked.elements.append(np.array([5, 6, 7], np.uint64))
    for place, own in enumerate(asked.sets):
        true = {other for other, there in enumerate(items.sets) if jaccard(own, there) >= lexical}
        found, estimates = index.alike(asked.signatures[place], len(own), lexical)
        assert true <= set(found.tolist())
        assert len(found) == len(estimates)
    for elements in asked.elements:
        near = {
            other: jaccard(elements, items.elements[number]) for other, number in enumerate(items.fingerprint.tolist())
        }
        wanted = {other: value for other, value in near.items() if value >= structural}
        assert dict(index.structural(elements, structural)) == wanted
    for view in ("tree", "fingerprint"):
        numbers = items.tree if view == "tree" else items.fingerprint
        for number, digest in enumerate(items.digests(view)):
            assert index.same(view, digest).tolist() == np.flatnonzero(numbers == number).tolist()
        assert not len(index.same(view, bytes(16)))


def test_an_index_of_nothing_finds_nothing(tmp_path: Path) -> None:
    items = Items(1, 0)
    items.tree = items.shingle_set = items.fingerprint = np.empty(0, np.int64)
    items.elements = []
    write_index(tmp_path, items, 0.7, 0.95)
    index = StoredIndex(tmp_path)
    assert not len(index.alike(items.signatures[0], 10, 0.7)[0])
    assert index.structural(np.array([1, 2], np.uint64), 0.95) == []


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
