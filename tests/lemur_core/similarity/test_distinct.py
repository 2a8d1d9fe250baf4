"""How many of some codes are distinct: stage after stage, by the stages and thresholds of curation."""

import pytest

from curate.model.options import CurateOptions
from lemur_core.similarity.views import LEXICAL, STRUCTURAL, Distinct, count_distinct, decide
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "distinct.md")
NET = TEXTS["NET"]
REMARKED = NET.replace("        return", "        # the head\n        return")
RENAMED = NET.replace("self.a", "self.stem")
SPLIT = NET.replace(
    "return self.b(self.a(x).relu().mean((2, 3)))",
    "y = self.a(x)\n        y = y.relu()\n        y = y.mean((2, 3))\n        y = self.b(y)\n        return y",
)
OTHER = (
    NET.replace("nn.Linear(8, 4)", "nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))") + "\nx = [1] * 9\n"
)


def test_each_stage_takes_its_own() -> None:
    codes = [NET, REMARKED, RENAMED, SPLIT, OTHER, "broken = ("]
    stages = {place: verdict.stage for place, verdict in decide(codes, {}).items()}
    assert stages == {0: None, 1: "exact", 2: "lexical", 3: "structural", 4: None}
    assert count_distinct(codes, [None] * 6) == Distinct(5, 4, 3, 2, 2)
    assert count_distinct(codes, ["g", "g", "g", "g", "g", None]) == Distinct(5, 4, 3, 2, 1)
    assert count_distinct([], []) == Distinct(0, 0, 0, 0, 0)


def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [NET.replace("8", str(number)) for number in range(40)] + [SPLIT, OTHER]
    by_workers = count_distinct(codes, [None] * 42, jobs=2)
    monkeypatch.setattr("lemur_core.similarity.views._FEW", 100)
    assert by_workers == count_distinct(codes, [None] * 42)
    assert by_workers.exact == 42


def test_the_thresholds_are_those_of_curation() -> None:
    options = CurateOptions()
    assert (options.lexical_threshold, options.structural) == (LEXICAL, STRUCTURAL)
