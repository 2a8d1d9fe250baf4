"""The judge of functional twins: networks that compute the same agree under any names; others do not."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from benchmarks.twins import NetNumbers, find_twins
from benchmarks.twins_entry import judge
from tests.builders.twins import CASE, DIFFERENT, NET, PLAIN, SAME


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def measure(changes: dict[str, str]) -> NetNumbers:
    answer: dict[str, Any] = judge({"code": NET.format(**PLAIN | changes), "prm": {}, "cases": [CASE]})
    return TypeAdapter(NetNumbers).validate_python(answer)


def test_one_computation_is_a_twin_and_another_none() -> None:
    plain = measure({})
    for changes in SAME.values():
        assert measure(changes).equals(plain)
    for name, changes in DIFFERENT.items():
        numbers = measure(changes)
        # No gradient reaches the parameters before the one that stops; all others differ in their numbers alone.
        assert numbers.sizes == ([10, 24, 80] if name == "a gradient that stops" else [8, 8, 10, 24, 80, 216])
        assert not numbers.equals(plain)


def test_twins_of_twins_are_one_group() -> None:
    plain, other = measure({}), measure(DIFFERENT["another bound"])
    numbers = {"a": plain, "b": other, "c": measure(SAME["a formula"]), "d": plain}
    assert find_twins([["a", "b", "c", "d", "e"]], numbers) == [["a", "c", "d"]]
