"""The numeric opinion: equal numbers are one computation whatever the graphs say, and different ones are two."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.compute.graphs import GraphTrace, find_candidates, find_faults, get_computations
from curate.kinds import compute_again, verify
from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from manifests.folders.manifest import read_manifest
from tests.curate.conftest import MemorySource

NET = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.stem = nn.Conv2d(in_shape[1], 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, out_shape[0])

    def forward(self, x):
        {body}
        return self.head(x.mean((2, 3)))

    def train_setup(self, prm):
        self.rate = prm["lr"]

    def learn(self, data):
        pass
"""
UNFOLDED = """patches = F.unfold(x, 3, padding=1)
        rows = self.stem.weight.flatten(1) @ patches
        x = torch.relu(self.norm(rows.unflatten(-1, x.shape[2:])))"""
BODIES = {
    "a-plain": "x = self.norm(self.stem(x)).relu()",
    "b-unfolded": UNFOLDED,
    "c-bounded": "x = self.norm(self.stem(x)).clamp(0.0, 6.0)",
}
#: The first takes images of 256 x 256 alone.
POOLS = {"a-window": "F.avg_pool2d(x, 256).flatten(1)", "b-mean": "x.mean((2, 3))"}


def rows() -> list[dict[str, Any]]:
    prm = json.dumps({"lr": 0.1, "batch": 4, "transform": "norm_32"})
    about = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "duration": 1.0}
    return [
        about | {"nn": name, "nn_code": NET.format(body=body), "accuracy": 0.9 - 0.1 * place, "prm": prm}
        for place, (name, body) in enumerate(BODIES.items())
    ]


OPTIONS = CurateOptions(lexical_threshold=1.0, structural_threshold=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("behavior") / "snapshot"
    curate(MemorySource(rows()), out, OPTIONS)
    return out


def test_equal_numbers_are_one_computation(folder: Path) -> None:
    found = {row["nn"]: row for row in pq.read_table(folder / "decisions.parquet").to_pylist()}
    assert {name: row["stage"] for name, row in found.items()} == {
        "a-plain": None,
        "b-unfolded": "graph",
        "c-bounded": None,
    }
    removed = found["b-unfolded"]
    assert removed["reason"] == "computes what a-plain computes: other operations, equal numbers"
    assert removed["agreement"] == "same"
    graphs = {row["id"]: row for row in pq.read_table(folder / "graphs.parquet").to_pylist()}
    plain, unfolded, bounded = (graphs[found[name]["id"]] for name in BODIES)
    assert plain["graph"] != unfolded["graph"]
    assert plain["behavior"] == unfolded["behavior"] is not None
    assert bounded["behavior"] not in (None, plain["behavior"])
    assert read_manifest(folder).counts["graphs"]["distinct"] == 2
    costs = {row["nn"]: row["multiply_adds"] for row in pq.read_table(folder / "networks.parquet").to_pylist()}
    assert costs["a-plain"] == costs["b-unfolded"] == 256 * 256 * 27 * 8 + 8 * 10


def test_numbers_of_other_sizes_merge_nothing_and_are_no_fault(tmp_path: Path) -> None:
    plain, *_ = rows()
    spelled = [
        plain | {"nn": name, "nn_code": plain["nn_code"].replace("x.mean((2, 3))", pool)}
        for name, pool in POOLS.items()
    ]
    curate(MemorySource(spelled), tmp_path / "pools", OPTIONS)
    stages = {row["nn"]: row["stage"] for row in pq.read_table(tmp_path / "pools/decisions.parquet").to_pylist()}
    assert stages == {"a-window": None, "b-mean": None}
    behaviors = pq.read_table(tmp_path / "pools/graphs.parquet")["behavior"].to_pylist()
    assert {text.partition("@")[2] for text in behaviors} == {
        "3x3x256x256,3x3x256x256",
        "3x3x32x32,2x3x256x32,2x3x32x256",
    }
    assert read_manifest(tmp_path / "pools").counts["graphs"]["faults"] == []
    assert [check for check in verify(tmp_path / "pools", jobs=1, recompute=5) if not check.ok] == []


def test_a_rate_that_a_record_states_is_no_part_of_its_computation(tmp_path: Path) -> None:
    plain, *_ = rows()
    code = plain["nn_code"].replace("x.mean((2, 3))", "F.dropout({}, self.drop, self.training)")
    code = code.replace("super().__init__()", "super().__init__()\n        self.drop = prm['dropout']")
    dropped = [
        plain | {"nn": f"net-{rate}", "nn_code": code.format(name), "prm": json.dumps({"dropout": rate, "batch": 4})}
        for name, rate in (("x.mean((2, 3))", 0.1225), ("torch.mean(x, (2, 3))", 0.1185), ("x.mean(3).mean(2)", 0.0))
    ]
    curate(MemorySource(dropped), tmp_path / "rates", OPTIONS)
    stages = {row["nn"]: row["stage"] for row in pq.read_table(tmp_path / "rates/decisions.parquet").to_pylist()}
    assert stages == {"net-0.1225": "graph", "net-0.1185": None, "net-0.0": None}  # of equal scores the smallest id


def test_what_is_drawn_in_training_alone_is_no_part_of_eval_mode(tmp_path: Path) -> None:
    """Its graph is unique to its code, and in eval mode it is what another network is: they share a split."""
    plain, *_ = rows()
    code = plain["nn_code"].replace("import torch\n", "import random\nimport torch\n", 1)
    code = code.replace("x = self", "x = x * random.random() if self.training else x\n        x = self", 1)
    curate(MemorySource([plain, plain | {"nn": "drawing", "nn_code": code}]), tmp_path / "drawn", OPTIONS)
    records = pq.read_table(tmp_path / "drawn/data/records").to_pylist()
    assert len(records) == 2
    assert len({row["graph"] for row in records}) == 2
    assert len({row["cluster"] for row in records}) == 1
    graphs = pq.read_table(tmp_path / "drawn/graphs.parquet")
    assert len(set(graphs["graph_eval"].to_pylist())) == 1
    assert [check for check in verify(tmp_path / "drawn", jobs=1) if not check.ok] == []


def test_the_folder_proves_itself(folder: Path) -> None:
    checks = verify(folder, jobs=1)
    assert [check for check in checks if not check.ok] == []
    assert any("the numbers of 2, too" in check.detail for check in checks)


def test_networks_are_computed_again(folder: Path) -> None:
    (check,) = [check for check in verify(folder, jobs=1, recompute=5) if check.name == "networks computed again"]
    assert check.ok
    assert check.detail == "1 kept networks, and 1 that were removed for them, compute what is stored"


def test_what_is_not_computed_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    curate(MemorySource(rows()), folder, OPTIONS)
    table = pq.read_table(folder / "graphs.parquet")
    place = table.schema.get_field_index("graph_widths")
    table = table.set_column(place, table.schema.field(place), [["f" * 64] * len(table)])
    pq.write_table(table, folder / "graphs.parquet")
    (check,) = compute_again(folder, 1, 1)
    assert not check.ok
    assert "a-plain: graph_widths is not what it computes" in check.detail


@pytest.mark.parametrize(
    ("traces", "faults", "groups", "agree"),
    [
        # Numbers decide, and graphs stand in where they are not known.
        (["g b", "g -", "h b", "i -"], [], [{0, 1, 2}, {3}], {2: "same", 1: "same", 3: "widths"}),
        # One graph with two behaviors is a fault, and merges nothing.
        (["g b", "g c", "g -", "h c"], ["g"], [{0}, {1, 3}, {2}], {1: "different"}),
        # Numbers of other sizes say nothing.
        (["g b@8", "g c@16", "h c@16", "i d@8"], [], [{0, 1, 2}, {3}], {1: "same"}),
    ],
)
def test_numbers_decide(traces: list[str], faults: list[str], groups: list[set[int]], agree: dict[int, str]) -> None:
    stated = enumerate(map(str.split, traces))
    known = {
        number: GraphTrace({"graph": graph, "graph_widths": "w", "behavior": None if numbers == "-" else numbers})
        for number, (graph, numbers) in stated
    }
    assert find_faults((one.graph, one.behavior) for one in known.values()) == faults
    computations = get_computations(known)
    names = dict.fromkeys(computations.values())
    assert [{number for number, name in computations.items() if name == one} for one in names] == groups
    assert {number: known[0].agrees(known[number]) for number in agree} == agree


def test_only_equal_sizes_are_candidates() -> None:
    answers: dict[int, dict[str, Any]] = {
        1: {"weights": "a"},
        2: {"weights": "a", "behavior": None},
        3: {"weights": "b"},
        4: {"weights": "a", "varies": ["it draws"]},
        5: {"error": "x: y"},
        6: {"weights": "a"},
    }
    assert find_candidates(answers) == [1, 6]
