"""Splits: whole groups, about 80 / 10 / 10, drawn from content and hardly moved by what comes and goes."""

import hashlib
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.model.splits import assign_splits


def ids(count: int, start: int = 0) -> list[str]:
    return [hashlib.sha256(str(i).encode()).hexdigest() for i in range(start, start + count)]


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=60), seed=st.integers(0, 9))
def test_whole_groups_and_never_too_much(sizes: list[int], seed: int) -> None:
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    splits = assign_splits(groups, ids(len(groups)), seed)
    assert len(splits) == len(groups)
    for group in set(groups):
        assert len({split for split, other in zip(splits, groups, strict=True) if other == group}) == 1
    counts, quota = Counter(splits), round(len(groups) * 0.10)
    assert set(counts) <= {"train", "validation", "test"}
    for split in ("validation", "test"):
        assert counts[split] <= quota
    for group, size in enumerate(sizes):
        if size > max(1, quota // 2):
            assert splits[groups.index(group)] == "train", "a big group is no fair test set"


@pytest.mark.parametrize("count", [10, 50, 1000, 1063])
def test_ratios_of_single_records(count: int) -> None:
    counts = Counter(assign_splits(range(count), ids(count), 42))
    assert counts["test"] == counts["validation"] == round(count / 10)
    assert counts["train"] == count - 2 * round(count / 10)


def test_ratios_with_groups_of_many_sizes() -> None:
    """Sizes as in LEMUR: one group of 15 % of the records, many of one."""
    sizes = [150, 60, 40, 20, *[10] * 8, *[3] * 50, *[1] * 500]
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    counts = Counter(assign_splits(groups, ids(len(groups)), 42))
    assert counts["test"] == counts["validation"] == round(len(groups) / 10)


def test_tiny_inputs() -> None:
    assert assign_splits([], [], 42) == []
    assert assign_splits([7], ids(1), 42) == ["train"]
    assert assign_splits([0] * 30, ids(30), 42) == ["train"] * 30


def test_the_draw_is_from_content() -> None:
    names = ids(300)
    splits = dict(zip(names, assign_splits(range(300), names, 42), strict=True))
    other = random.Random(0).sample(names, 300)
    assert dict(zip(other, assign_splits([str(i) for i in range(300)], other, 42), strict=True)) == splits  # type: ignore[misc]
    assert dict(zip(names, assign_splits(range(300), names, 43), strict=True)) != splits


@pytest.mark.parametrize("change", ["remove one", "add one", "remove ten"])
def test_others_hardly_move(change: str) -> None:
    """What the peer does here: one record less moves 350 of 1,063."""
    names = ids(1000)
    before = dict(zip(names, assign_splits(range(1000), names, 42), strict=True))
    moved = []
    for trial in range(30):
        if change == "remove one":
            after = names[: trial * 33] + names[trial * 33 + 1 :]
        elif change == "add one":
            after = names + ids(1, 5000 + trial)
        else:
            after = names[: trial * 33] + names[trial * 33 + 10 :]
        splits = dict(zip(after, assign_splits(range(len(after)), after, 42), strict=True))
        moved.append(sum(split != before[name] for name, split in splits.items() if name in before))
    assert max(moved) <= (4 if "one" in change else 12)


def test_a_growing_group_keeps_its_draw() -> None:
    """The smallest id stands for a group: a larger one that joins changes nothing for the others."""
    names = sorted(ids(200))
    groups = [i // 2 for i in range(200)]
    before = assign_splits(groups, names, 42)
    largest = "f" * 64
    after = assign_splits([*groups, 50], [*names, largest], 42)
    assert after[-1] == after[100] == after[101]
    assert sum(a != b for a, b in zip(after, before, strict=False)) <= 6
