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
    "f-lacks": f"import einops\n{FAILS}".replace("WIDTH", "7").replace(
        "nn.Tanh()", "nn.SELU(), nn.SiLU()"
    ),  # installed here, and of no declared runtime
}


def rows(codes: dict[str, str], **prm: Any) -> list[dict[str, Any]]:
    stated = json.dumps({"lr": 0.1, "batch": 4, "transform": "norm_32", **prm})
    about = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "duration": 1.0}
    return [
        about | {"nn": name, "nn_code": code, "accuracy": 0.9 - 0.1 * place, "prm": stated}
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


def by_name(folder: Path, table: str) -> dict[str, dict[str, Any]]:
    return {row["nn"]: row for row in pq.read_table(folder / table).to_pylist()}


def test_what_computes_the_same_is_one(folders: dict[Graphs, Path]) -> None:
    found = by_name(folders["survivors"], "decisions.parquet")
    removed = found["b-by-hand"]
    told = ("graph", "computes what a-sequential computes", "same", found["a-sequential"]["id"])
    assert tuple(removed[name] for name in ("stage", "reason", "agreement", "canonical")) == told
    assert [name for name, row in found.items() if row["kept"]] == [
        "a-sequential",
        "c-wide",
        "d-other",
        "e-fails",
        "f-lacks",
    ]
    assert all(row["kept"] for row in by_name(folders["off"], "decisions.parquet").values())
    shown = explain(folders["survivors"], "b-by-hand")
    assert shown.facts["agreement"] == "same"
    assert "computation both compute the same" in "\n".join(shown.lines)
    assert "never runs: Unused" in "\n".join(shown.lines)


@pytest.mark.parametrize("mode", ["survivors", "all", "keep-different", "off"])
def test_the_folder_proves_itself(folders: dict[Graphs, Path], mode: Graphs) -> None:
    checks = verify(folders[mode], jobs=1)
    assert [check for check in checks if not check.ok] == []
    assert any(check.name == "graphs" for check in checks) == (mode != "off")


def test_tables_report_and_card_say_what_networks_compute(folders: dict[Graphs, Path]) -> None:
    folder = folders["survivors"]
    records = by_name(folder, "data/records")
    plain, wide, other, fails = (records[name] for name in ("a-sequential", "c-wide", "d-other", "e-fails"))
    assert (plain["graph_widths"], plain["split"]) == (wide["graph_widths"], wide["split"])
    assert plain["graph"] != wide["graph"]
    assert (other["dead_classes"], other["unused_parameters"]) == (["Unused"], ["never"])
    assert (fails["graph"], fails["runs"]) == (None, False)
    assert fails["runs_error"].startswith("forward_failed: ")
    graphs = {row["id"]: row for row in pq.read_table(folder / "graphs.parquet").to_pylist()}
    assert graphs[plain["id"]]["in_shape"] == [3, 3, 256, 256]
    assert graphs[plain["id"]]["route"] == "meta"
    costs = by_name(folder, "networks.parquet")["a-sequential"]
    assert costs["parameters"] == (27 * 8 + 8) + 2 * 8 + (8 * 10 + 10)
    assert costs["multiply_adds"] == 256 * 256 * 27 * 8 + 8 * 10
    manifest = read_manifest(folder)
    assert manifest.parameters["graph"] == "survivors"
    assert manifest.counts["graphs"] == {
        "traced": 4, "measured": 3, "faults": [], "not_traced": {"forward_failed": 1, "missing_dependency": 1},
        "missing_packages": {"einops": 1}, "kept": 3, "distinct": 3,
        "distinct_up_to_widths": 2,
    }  # fmt: skip
    counted = "- kept records with a graph: 3\n- different computations of these: 3\n- different up to widths: 2\n"
    assert counted in (folder / "report.md").read_text()
    assert "Graphs were not compared" in (folders["off"] / "README.md").read_text()


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
    folder = Path(shutil.copytree(folders["survivors"], tmp_path / "copy"))
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
PLAIN = NET.format(body="x = self.norm(self.stem(x)).relu()")
UNFOLDED = """patches = F.unfold(x, 3, padding=1)
        rows = self.stem.weight.flatten(1) @ patches
        x = torch.relu(self.norm(rows.unflatten(-1, x.shape[2:])))"""
DROPS = PLAIN.replace("super().__init__()", "super().__init__()\n        self.drop = prm['dropout']").replace(
    "x.mean((2, 3))", "F.dropout({}, self.drop, self.training)"
)
NUMBERS = {
    "a-plain": PLAIN,
    "b-unfolded": NET.format(body=UNFOLDED),
    "c-bounded": NET.format(body="x = self.norm(self.stem(x)).clamp(0.0, 6.0)"),
    #: It takes images of 256 x 256 alone, so its numbers are of other sizes, which merge nothing and are no fault.
    "d-window": PLAIN.replace("x.mean((2, 3))", "F.avg_pool2d(x, 256).flatten(1)"),
    #: What is drawn in training alone is no part of eval mode: its graph is unique to its code.
    "e-draws": PLAIN.replace("import torch\n", "import random\nimport torch\n", 1).replace(
        "x = self", "x = x * random.random() if self.training else x\n        x = self", 1
    ),
    #: An activation that changes nothing after another one is in its graph; a dropout changes what training does.
    "f-twin": PLAIN.replace(".relu()", ".relu()\n        x = F.dropout(F.leaky_relu(x), 0.5, self.training)"),
}
#: Rates that records state: the same computation, but for 0.
RATES = {0.1225: "x.mean((2, 3))", 0.1185: "torch.mean(x, (2, 3))", 0.0: "x.mean(3).mean(2)"}


def test_equal_numbers_are_one_computation(tmp_path: Path) -> None:
    given = rows(NUMBERS)
    for rate, pooled in RATES.items():
        given += rows({f"net-{rate}": DROPS.format(pooled)}, dropout=rate)
    options = CurateOptions(lexical_threshold=1.0, structural_threshold=1.0)
    curate(MemorySource(given), tmp_path / "out", options)
    found = by_name(tmp_path / "out", "decisions.parquet")
    assert {name: row["reason"] for name, row in found.items() if row["stage"] == "graph"} == {
        **dict.fromkeys(("b-unfolded", "net-0.0"), "computes what a-plain computes: other operations, equal numbers"),
        "net-0.1225": "computes what net-0.1185 computes",  # of equal scores the smallest id
    }
    assert sum(row["kept"] for row in found.values()) == len(found) - 3
    assert found["b-unfolded"]["agreement"] == "same"
    graphs = {row["id"]: row for row in pq.read_table(tmp_path / "out" / "graphs.parquet").to_pylist()}
    plain, unfolded, bounded, window, draws, twin = (graphs[found[name]["id"]] for name in NUMBERS)
    assert plain["graph"] != unfolded["graph"]
    assert plain["behavior"] == unfolded["behavior"] is not None
    assert bounded["behavior"] not in (None, plain["behavior"])
    sizes = ["3x3x32x32,2x3x256x32,2x3x32x256", "3x3x256x256,3x3x256x256"]
    assert [row["behavior"].partition("@")[2] for row in (plain, window)] == sizes
    assert (plain["graph"] != draws["graph"], plain["graph_eval"]) == (True, draws["graph_eval"])
    names = ("graph", "graph_widths", "graph_eval", "behavior", "behavior_eval")
    assert [plain[name] == twin[name] for name in names] == [False, False, False, False, True]
    counts = read_manifest(tmp_path / "out").counts["graphs"]
    assert (counts["distinct"], counts["faults"]) == (6, [])
    costs = by_name(tmp_path / "out", "networks.parquet")
    assert costs["a-plain"]["multiply_adds"] == costs["b-unfolded"]["multiply_adds"] == 256 * 256 * 27 * 8 + 8 * 10
    records = by_name(tmp_path / "out", "data/records")
    assert len({records[name]["cluster"] for name in ("a-plain", "e-draws", "f-twin")}) == 1
    checks = verify(tmp_path / "out", jobs=1)
    assert [check for check in checks if not check.ok] == []
    (detail,) = [check.detail for check in checks if check.name == "graphs"]
    assert "; the numbers of 5, too" in detail, "its draw leaves one without"


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
