"""One set compared with many at once: as one by one, to the last bit."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.graphs.identity import similarity
from lemur_core.similarity.minhash import jaccard
from lemur_core.similarity.nearest import OverlapIndex, build_multiset

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
