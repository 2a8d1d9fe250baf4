"""The judge of functional twins: networks that compute the same agree under any names; others do not."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchmarks.twins import NetNumbers, find_twins
from benchmarks.twins_entry import judge
from tests.builders.twins import CASE, DIFFERENT, NET, PLAIN, SAME

SIZES = [8, 8, 10, 24, 80, 216]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for the file that the network is loaded from."""
    monkeypatch.chdir(tmp_path)


def measure(changes: dict[str, str]) -> NetNumbers:
    answer: dict[str, Any] = judge({"code": NET.format(**PLAIN | changes), "prm": {}, "cases": [CASE]})
    return TypeAdapter(NetNumbers).validate_python(answer)


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_one_computation_is_a_twin(changes: dict[str, str]) -> None:
    numbers = measure(changes)
    assert numbers.sizes == SIZES
    assert numbers.equals(measure({}))


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_computation_is_none(name: str) -> None:
    numbers = measure(DIFFERENT[name])
    # No gradient reaches the parameters before the one that stops; all others differ in their numbers alone.
    assert numbers.sizes == ([10, 24, 80] if name == "a gradient that stops" else SIZES)
    assert not numbers.equals(measure({}))


def test_twins_of_twins_are_one_group() -> None:
    plain, other = measure({}), measure(DIFFERENT["another bound"])
    numbers = {"a": plain, "b": other, "c": measure(SAME["a formula"]), "d": plain}
    assert find_twins([["a", "b", "c", "d", "e"]], numbers) == [["a", "c", "d"]]
