"""`--per-group`, `--max-parameters` and `--min-score`: what they keep, say and prove."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate import CurateOptions, Snapshot, curate
from curate.model.select import farthest_first
from lemur_core.files.errors import UsageError

#: Numbers do not count in the comparison by text: these are near-duplicates, and kernels make other computations.
NETWORK = """import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.first = nn.Conv2d(in_shape[1], {width}, kernel_size={one}, padding="same")
        self.second = nn.Conv2d({width}, {width}, kernel_size={two}, padding="same")
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear({width}, out_shape[0])

    def forward(self, images):
        features = torch.relu(self.first(images))
        features = torch.relu(self.second(features))
        return self.head(torch.flatten(self.pool(features), 1))

    def train_setup(self, prm):
        self.rate = prm["lr"]

    def learn(self, data):
        pass
"""
SIZES = [(8, 3, 3), (8, 3, 5), (8, 5, 3), (8, 5, 5), (16, 3, 3), (16, 5, 5)]
#: Computations up to widths.
DIFFERENT = 4


def write(folder: Path) -> Path:
    prm = json.dumps({"lr": 0.1, "batch": 4, "transform": "norm_32"})
    about = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "prm": prm}
    lines = [
        json.dumps(
            {"nn": f"n-{width}-{one}-{two}", "nn_code": NETWORK.format(width=width, one=one, two=two)}
            | about
            | {"accuracy": 0.9 - 0.1 * place}
        )
        for place, (width, one, two) in enumerate(SIZES)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Snapshot]:
    folder = tmp_path_factory.mktemp("groups")
    source = write(folder)
    return {
        several: curate(source, out=folder / f"out-{several}", options=CurateOptions(per_group=several), jobs=1)
        for several in (1, 2, 9)
    }


def names(snapshot: Snapshot) -> list[str]:
    return sorted(record.nn for record in snapshot.kept)


def test_between_one_and_all(made: dict[int, Snapshot]) -> None:
    assert names(made[1]) == ["n-8-3-3"]
    assert len(names(made[2])) == 2
    assert len(names(made[9])) == DIFFERENT
    assert set(names(made[1])) < set(names(made[2])) < set(names(made[9]))
    widths = [record.graph_widths for record in made[9].kept]
    assert None not in widths
    assert len(set(widths)) == DIFFERENT


def test_the_farthest_is_chosen(made: dict[int, Snapshot]) -> None:
    assert names(made[2]) == ["n-8-3-3", "n-8-5-5"]


def test_it_is_said_and_proved(made: dict[int, Snapshot]) -> None:
    for several, snapshot in made.items():
        checks = snapshot.verify(jobs=1)
        assert all(check.ok for check in checks), [check for check in checks if not check.ok]
        first = next(check for check in checks if check.name.startswith("guarantee 1"))
        assert first.name.endswith("no near-duplicate remains" if several == 1 else "computations of near texts remain")
        notes = [note for note in snapshot.manifest.details["notes"] if "guarantee 1 is relaxed" in note]
        assert len(notes) == (several > 1)
        assert all(note in (snapshot.folder / "report.md").read_text(encoding="utf-8") for note in notes)
    further = [row for row in made[9].decisions if row.kept and row.rescued == "group"]
    assert len(further) == DIFFERENT - 1
    (leader,) = {row.leader for row in further}
    assert leader == next(record.id for record in made[9].kept if record.nn == "n-8-3-3")
    assert "another computation near n-8-3-3" in "\n".join(made[9].explain("n-8-5-5").lines)
    assert {row.split for row in made[9].kept} == {"train"}


@pytest.mark.parametrize("change", ["another leader", "no leader"])
def test_a_wrong_leader_is_seen(made: dict[int, Snapshot], tmp_path: Path, change: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(made[9].folder, folder)
    table = pq.read_table(folder / "decisions.parquet")
    rows: list[dict[str, Any]] = table.to_pylist()
    further = [row for row in rows if row["leader"] is not None]
    further[0]["leader"] = further[1]["id"] if change == "another leader" else None
    pq.write_table(table.from_pylist(rows, table.schema), folder / "decisions.parquet")
    wrong = [check.name for check in Snapshot(folder).verify(jobs=1) if not check.ok]
    assert [name for name in wrong if name.startswith("guarantee")] == [
        "guarantee 1: at most 9 computations of near texts remain"
    ]


def test_options_that_cannot_be_met() -> None:
    for chosen in (
        {"per_group": 0},
        {"per_group": 2, "graph": "off"},
        {"per_group": 2, "graph": "keep-different"},
        {"max_parameters": 5, "graph": "off"},
        {"min_score": 1.5},
    ):
        with pytest.raises(UsageError):
            CurateOptions(**chosen)


def test_filters_choose_what_is_kept(tmp_path: Path) -> None:
    source = write(tmp_path)
    small = curate(source, out=tmp_path / "small", options=CurateOptions(max_parameters=1_000), jobs=1)
    assert names(small) == ["n-8-3-3"]
    (kept,) = small.kept
    row = pq.read_table(small.folder / "networks.parquet", filters=[("id", "=", kept.id)]).to_pylist()[0]
    assert row["parameters"] == 8 * 3 * 9 + 8 + 8 * 8 * 9 + 8 + 8 * 10 + 10
    assert row["multiply_adds"] == 256 * 256 * (8 * 27 + 8 * 72) + 80
    smaller = CurateOptions(max_parameters=800)
    with pytest.raises(Exception, match=r"no record is left: .* parameters"):
        curate(source, out=tmp_path / "none", options=smaller, jobs=1)
    best = curate(source, out=tmp_path / "best", options=CurateOptions(min_score=0.5), jobs=1)
    left = [row for row in best.decisions if row.stage == "filter"]
    assert left
    assert all("--min-score" in row.reason for row in left)
    assert all(record.score is not None and record.score >= 0.5 for record in best.kept)
    for snapshot in (small, best):
        assert all(check.ok for check in snapshot.verify(jobs=1))


def test_equal_distances_keep_the_order() -> None:
    points = [0.0, 1.0, 0.5, 1.0, 0.25]
    order = farthest_first([0], range(len(points)), lambda one, other: 1 - abs(points[one] - points[other]), 9)
    assert order == [0, 1, 2, 4, 3]
    assert farthest_first([0], range(5), lambda a, b: 1 - abs(points[a] - points[b]), 2)[:2] == [0, 1]
