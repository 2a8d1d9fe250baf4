"""Networks that compute the same are one, what is the same up to widths stays in one split, and the folder proves it."""

import importlib.metadata
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.compute.graphs import (
    GraphTrace,
    GraphTracer,
    find_candidates,
    find_faults,
    get_computations,
)
from curate.folder.explain import explain
from curate.kinds import verify
from curate.model.options import CurateOptions, Graphs
from curate.run.pipeline import curate
from lemur_core.files.errors import NoSandboxError
from manifests.folders.manifest import read_manifest
from tests.curate.conftest import MemorySource

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
GLUE = "    def train_setup(self, prm):\n        self.rate = prm['lr']\n\n    def learn(self, data):\n        pass\n"

SEQUENTIAL = f"""{HEAD}class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_shape[1], WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, out_shape[0]),
        )

    def forward(self, x):
        return self.body(x)

{GLUE}"""
BY_HAND = f"""{HEAD}
class Unused(nn.Module):
    def forward(self, z):
        return torch.tanh(z) * torch.sigmoid(z)


def squeeze(features):
    pooled = features.mean(dim=(-2, -1), keepdim=True)
    return torch.reshape(pooled, (pooled.shape[0], -1))


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        _, channels, _, _ = in_shape
        hidden = 8
        self.head = nn.Linear(hidden, out_shape[0])
        self.extra = Unused()
        self.norm = nn.BatchNorm2d(hidden)
        self.stem = nn.Conv2d(channels, hidden, kernel_size=(3, 3), stride=1, padding="same", bias=True)
        self.never = nn.Parameter(torch.zeros(3))

    def forward(self, images):
        unused = self.extra(images)
        features = F.relu(self.norm(self.stem(images)), inplace=True)
        return self.head(squeeze(features))

{GLUE}"""
OTHER = BY_HAND.replace("F.relu(self.norm(self.stem(images)), inplace=True)", "self.norm(F.gelu(self.stem(images)))")
FAILS = SEQUENTIAL.replace("return self.body(x)", "return self.body(x.flatten(2))").replace("nn.ReLU()", "nn.Tanh()")
CODES = {
    "a-sequential": SEQUENTIAL.replace("WIDTH", "8"),
    "b-by-hand": BY_HAND,
    "c-wide": SEQUENTIAL.replace("WIDTH", "12").replace("nn.ReLU()", "nn.ReLU(inplace=True)"),
    "d-other": OTHER.replace("def squeeze", "def pooled_features").replace("squeeze(", "pooled_features("),
    "e-fails": FAILS.replace("WIDTH", "5"),
}


def rows(codes: dict[str, str]) -> list[dict[str, Any]]:
    prm = json.dumps({"lr": 0.1, "batch": 4, "transform": "norm_32"})
    about = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "duration": 1.0}
    return [
        about | {"nn": name, "nn_code": code, "accuracy": 0.9 - 0.1 * place, "prm": prm}
        for place, (name, code) in enumerate(codes.items())
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Graphs, Path]:
    """The same rows, with lexical thresholds that no two of them reach, curated in each way."""
    folder = tmp_path_factory.mktemp("graphs")
    modes: tuple[Graphs, ...] = ("survivors", "all", "keep-different", "off")
    for mode in modes:
        options = CurateOptions(lexical_threshold=1.0, structural_threshold=1.0, graph=mode)
        curate(MemorySource(rows(CODES)), folder / mode, options)
    return {mode: folder / mode for mode in modes}


def decisions(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["nn"]: row for row in pq.read_table(folder / "decisions.parquet").to_pylist()}


def test_what_computes_the_same_is_one(folders: dict[Graphs, Path]) -> None:
    found = decisions(folders["survivors"])
    removed = found["b-by-hand"]
    assert (removed["stage"], removed["reason"], removed["agreement"]) == (
        "graph",
        "computes what a-sequential computes",
        "same",
    )
    assert removed["canonical"] == found["a-sequential"]["id"]
    assert [name for name, row in found.items() if row["kept"]] == ["a-sequential", "c-wide", "d-other", "e-fails"]
    assert all(row["kept"] for row in decisions(folders["off"]).values())


@pytest.mark.parametrize("mode", ["survivors", "all", "keep-different", "off"])
def test_the_folder_proves_itself(folders: dict[Graphs, Path], mode: Graphs) -> None:
    checks = verify(folders[mode], jobs=1)
    assert [check for check in checks if not check.ok] == []
    assert any(check.name == "graphs" for check in checks) == (mode != "off")


def test_columns_say_what_a_network_computes(folders: dict[Graphs, Path]) -> None:
    records = {
        row["nn"]: row
        for path in sorted(folders["survivors"].glob("data/records/*.parquet"))
        for row in pq.read_table(path).to_pylist()
    }
    assert records["a-sequential"]["graph_widths"] == records["c-wide"]["graph_widths"]
    assert records["a-sequential"]["split"] == records["c-wide"]["split"]
    assert records["a-sequential"]["graph"] != records["c-wide"]["graph"]
    assert records["d-other"]["dead_classes"] == ["Unused"]
    assert records["d-other"]["unused_parameters"] == ["never"]
    assert (records["e-fails"]["graph"], records["e-fails"]["runs"]) == (None, False)
    assert records["e-fails"]["runs_error"].startswith("forward_failed: ")
    graphs = {row["id"]: row for row in pq.read_table(folders["survivors"] / "graphs.parquet").to_pylist()}
    assert graphs[records["a-sequential"]["id"]]["in_shape"] == [3, 3, 256, 256]
    assert graphs[records["a-sequential"]["id"]]["route"] == "meta"
    costs = {row["nn"]: row for row in pq.read_table(folders["survivors"] / "networks.parquet").to_pylist()}
    assert costs["a-sequential"]["parameters"] == (27 * 8 + 8) + 2 * 8 + (8 * 10 + 10)
    assert costs["a-sequential"]["multiply_adds"] == 256 * 256 * 27 * 8 + 8 * 10


def test_report_and_card_count_them(folders: dict[Graphs, Path]) -> None:
    manifest = read_manifest(folders["survivors"])
    assert manifest.parameters["graph"] == "survivors"
    assert manifest.counts["graphs"] == {
        "traced": 4, "measured": 3, "faults": [], "not_traced": {"forward_failed": 1}, "missing_packages": {}, "kept": 3, "distinct": 3,
        "distinct_up_to_widths": 2,
    }  # fmt: skip
    report = (folders["survivors"] / "report.md").read_text()
    assert (
        "- kept records with a graph: 3\n- different computations of these: 3\n- different up to widths: 2\n" in report
    )
    assert "Graphs were not compared" in (folders["off"] / "README.md").read_text()


def test_explain_tells_how_two_graphs_differ(folders: dict[Graphs, Path]) -> None:
    told = explain(folders["survivors"], "b-by-hand")
    assert told.facts["graph_difference"]["agreement"] == "same"
    assert "computation both compute the same" in "\n".join(told.lines)
    assert "never runs: Unused" in "\n".join(told.lines)


def test_without_a_sandbox_the_stage_is_left_out_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoSandboxError("foreign code cannot be confined on this machine")

    monkeypatch.setattr(GraphTracer, "trace", refuse)
    curate(MemorySource(rows(CODES)), tmp_path / "out", CurateOptions())
    manifest = read_manifest(tmp_path / "out")
    assert any("graphs were not compared" in note for note in manifest.details["notes"])
    assert (manifest.parameters["graph"], "graphs" in manifest.counts) == ("off", False)
    for name in ("README.md", "report.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "Graphs were not compared: two of" in text
        assert "No two of them compute the same" not in text
    assert all(check.ok for check in verify(tmp_path / "out", jobs=1))
    with pytest.raises(NoSandboxError):
        curate(MemorySource(rows(CODES)), tmp_path / "asked", CurateOptions(graph="survivors"))


def test_verify_compares_the_runtime_of_the_graphs(folders: dict[Graphs, Path], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folders["survivors"], folder)
    (graphs,) = [check for check in verify(folder) if check.name == "graphs"]
    assert graphs.ok
    assert graphs.detail.endswith(f"traced with torch {importlib.metadata.version('torch')}")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["versions"]["torch"] = "1.0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (graphs,) = [check for check in verify(folder) if check.name == "graphs"]
    assert not graphs.ok
    assert "the manifest names 1.0" in graphs.detail


# The numeric opinion: equal numbers are one computation whatever the graphs say, and different ones are two.


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
NUMBERS = {name: NET.format(body=body) for name, body in BODIES.items()}
#: The first takes images of 256 x 256 alone.
POOLS = {"a-window": "F.avg_pool2d(x, 256).flatten(1)", "b-mean": "x.mean((2, 3))"}


OPTIONS = CurateOptions(lexical_threshold=1.0, structural_threshold=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("behavior") / "snapshot"
    curate(MemorySource(rows(NUMBERS)), out, OPTIONS)
    return out


def test_equal_numbers_are_one_computation(folder: Path) -> None:
    found = decisions(folder)
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
    checks = verify(folder, jobs=1)
    assert [check for check in checks if not check.ok] == []
    assert any("the numbers of 2, too" in check.detail for check in checks)


def test_numbers_of_other_sizes_merge_nothing_and_are_no_fault(tmp_path: Path) -> None:
    plain, *_ = rows(NUMBERS)
    spelled = [
        plain | {"nn": name, "nn_code": plain["nn_code"].replace("x.mean((2, 3))", pool)}
        for name, pool in POOLS.items()
    ]
    curate(MemorySource(spelled), tmp_path / "pools", OPTIONS)
    stages = {name: row["stage"] for name, row in decisions(tmp_path / "pools").items()}
    assert stages == {"a-window": None, "b-mean": None}
    behaviors = pq.read_table(tmp_path / "pools/graphs.parquet")["behavior"].to_pylist()
    assert {text.partition("@")[2] for text in behaviors} == {
        "3x3x256x256,3x3x256x256",
        "3x3x32x32,2x3x256x32,2x3x32x256",
    }
    assert read_manifest(tmp_path / "pools").counts["graphs"]["faults"] == []
    assert [check for check in verify(tmp_path / "pools", jobs=1) if not check.ok] == []


def test_a_rate_that_a_record_states_is_no_part_of_its_computation(tmp_path: Path) -> None:
    plain, *_ = rows(NUMBERS)
    code = plain["nn_code"].replace("x.mean((2, 3))", "F.dropout({}, self.drop, self.training)")
    code = code.replace("super().__init__()", "super().__init__()\n        self.drop = prm['dropout']")
    dropped = [
        plain | {"nn": f"net-{rate}", "nn_code": code.format(name), "prm": json.dumps({"dropout": rate, "batch": 4})}
        for name, rate in (("x.mean((2, 3))", 0.1225), ("torch.mean(x, (2, 3))", 0.1185), ("x.mean(3).mean(2)", 0.0))
    ]
    curate(MemorySource(dropped), tmp_path / "rates", OPTIONS)
    stages = {name: row["stage"] for name, row in decisions(tmp_path / "rates").items()}
    assert stages == {"net-0.1225": "graph", "net-0.1185": None, "net-0.0": None}  # of equal scores the smallest id


def test_what_is_drawn_in_training_alone_is_no_part_of_eval_mode(tmp_path: Path) -> None:
    """Its graph is unique to its code, and in eval mode it is what another network is: they share a split."""
    plain, *_ = rows(NUMBERS)
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


def test_equal_numbers_in_eval_mode_alone_share_a_split(tmp_path: Path) -> None:
    """An activation that changes nothing after another one is in its graph; a dropout changes what training does."""
    plain, *_ = rows(NUMBERS)
    twin = plain["nn_code"].replace(".relu()", ".relu()\n        x = F.dropout(F.leaky_relu(x), 0.5, self.training)")
    curate(MemorySource([plain, plain | {"nn": "twin", "nn_code": twin}]), tmp_path / "twins", OPTIONS)
    graphs = pq.read_table(tmp_path / "twins/graphs.parquet").to_pylist()
    names = ("graph", "graph_widths", "graph_eval", "behavior", "behavior_eval")
    assert [len({row[name] for row in graphs}) for name in names] == [2, 2, 2, 2, 1]
    records = pq.read_table(tmp_path / "twins/data/records").to_pylist()
    assert (len(records), len({row["cluster"] for row in records})) == (2, 1)
    assert [check for check in verify(tmp_path / "twins", jobs=1) if not check.ok] == []


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
    assert find_candidates(answers) == [1, 4, 6]
