"""Planted duplicates: each edit does to a network what it says, as running both files shows."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.planted import _equal
from benchmarks.planted_entry import results_of
from benchmarks.plants import PLANTS, Plant
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "benchmarks_planted.md")
CODE = TEXTS["CODE"]


@pytest.mark.parametrize("kind", PLANTS, ids=[kind.name for kind in PLANTS])
def test_an_edit_does_what_it_says(kind: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # a network is written down to be loaded
    monkeypatch.setattr("benchmarks.planted_entry.stub_weights", lambda: None)
    pairs = next(kind.pairs(CODE, np.random.default_rng(3)))
    assert pairs == next(kind.pairs(CODE, np.random.default_rng(3))), "drawn from the seed alone"
    assert pairs[0] != pairs[1]
    given = {"prm": {"lr": 0.1}, "in_shape": [2, 3, 8, 8], "out_shape": [5]}
    one, other = (results_of({"code": code, **given}) for code in pairs)
    assert (one["runs"], other["runs"]) == (True, True), (one, other)
    assert _equal(one, other) is kind.same


def test_names_and_order_are_really_changed() -> None:
    by_name = {kind.name: kind for kind in PLANTS}
    _, renamed = next(by_name["other names"].pairs(CODE, np.random.default_rng(0)))
    assert "self.stem" not in renamed
    assert "class Block" not in renamed
    assert "found =" not in renamed
    assert "class Net(" in renamed
    _, turned = next(by_name["other order of definitions"].pairs(CODE, np.random.default_rng(0)))
    assert turned.index("self.act = nn.ReLU") < turned.index("self.conv = nn.Conv2d")
    assert turned.index("def train_setup") < turned.index("def __init__(self, in_shape")
