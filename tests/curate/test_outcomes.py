"""Outcomes that LEMUR's later releases store among the hyperparameters stay apart from them, on reading and on writing."""

import json
from pathlib import Path
from typing import Any

from curate.compute.runs import read_parameters
from curate.sources import open_source
from manifests.records import drop_outcomes, split_outcomes
from tests.builders.suites import table
from tests.curate.test_sources_database import make, run
from train.check import check_prm
from train.model.recipe import read_prm


def test_outcomes_of_every_source_are_a_column_of_their_own(tmp_path: Path) -> None:
    prm: dict[str, Any] = {"lr": 0.1, "metric_acc": 0.5, "duration_seconds": 12.9, "train_loss": 2.0}
    rows = [("u", name, value) for name, value in prm.items()]
    database = make(tmp_path / "ab.nn.db", {"a": "x = 1"}, [run("a")], rows)
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps({"nn": "a", "nn_code": "x = 1", "prm": prm}) + "\n")
    for path in (database, lines):
        (batch,) = open_source(str(path)).batches()
        assert batch["prm"].to_pylist() == ['{"lr": 0.1}']
        assert json.loads(batch["outcomes"][0].as_py()) == {name: prm[name] for name in prm if name != "lr"}


def test_outcomes_of_several_runs_are_nobodys(tmp_path: Path) -> None:
    """Two epochs of one training, and a run of another task, have the same hyperparameters, so the same id."""
    rows = [("u", "lr", 0.1), ("u", "metric_acc", 0.5), ("u", "metric_acc", 0.7), ("v", "metric_acc", 0.2)]
    runs = [run("a", 0.5), run("a", 0.7, epoch=2), run("b", 0.2, uid="v")]
    (batch,) = open_source(str(make(tmp_path / "ab.nn.db", {"a": "x = 1", "b": "y"}, runs, rows))).batches()
    shown = zip(*(batch[name].to_pylist() for name in ("nn", "prm", "outcomes")), strict=True)
    assert list(shown) == [("a", '{"lr": 0.1}', None)] * 2 + [("b", "{}", '{"metric_acc": 0.2}')]


@table(__file__, "outcomes.md", "Split", globals())
def test_split(prm: str | None, own: str | None, outcomes: str | None) -> None:
    assert split_outcomes(prm) == (own, outcomes)


def test_no_constructor_gets_outcomes() -> None:
    own = {"lr": 0.1, "batch": 4, "transform": "norm"}
    text = json.dumps(prm := own | {"metric_acc": 0.5, "duration_seconds": 3})
    assert drop_outcomes(prm) == read_parameters(text) == read_prm(text) == check_prm(prm) == own
