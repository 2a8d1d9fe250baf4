"""How new generated networks are: counts of a corpus whose duplicates are known."""

import json
from pathlib import Path

import pytest

from benchmarks.generated import GRAPHS, OTHERS, count_families, draw_figure, report
from curate import CurateOptions, curate
from manifests.folders.formats import SNAPSHOT
from manifests.records import NetworkRow

_CODE = """{comment}from torch import nn


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.net = nn.Sequential({layers}nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear({width}, 10))

    def forward(self, x):
        return self.net(x)
"""


def _code(width: int, comment: str = "") -> str:
    return _CODE.format(comment=comment, layers=f"nn.Conv2d(3, {width}, 3), nn.ReLU(), ", width=width)


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> list[NetworkRow]:
    """Return 60 networks of `gen`: 10 widths, each without and with a comment, under three names each; and two more."""
    codes = [_code(4 + width, comment) for width in range(10) for comment in ("", "# again\n")]
    named = [(f"gen-{copy}-{number}", code) for copy in range(3) for number, code in enumerate(codes)]
    named += [("Plain", _code(4, "# by hand\n")), ("Wide-1", _code(99).replace("ReLU", "GELU"))]
    base = tmp_path_factory.mktemp("generated")
    row = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "accuracy": 0.5}
    lines = (json.dumps({**row, "nn": name, "nn_code": code, "prm": "{}"}) for name, code in named)
    (base / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    curate(base / "rows.jsonl", out=base / "snapshot", options=CurateOptions(graph="off"), jobs=1)
    return sorted(SNAPSHOT.rows(base / "snapshot", NetworkRow), key=lambda network: network.id)


def test_distinct_and_new_are_counted(networks: list[NetworkRow], tmp_path: Path) -> None:
    generated, others = count_families(networks, 0)
    assert (generated.prefix, generated.networks, others.prefix, others.networks) == ("gen", 60, OTHERS, 2)
    assert (generated.distinct["texts"], generated.new["texts"]) == (20, 20)
    assert (generated.distinct["without comments"], generated.new["without comments"]) == (10, 9)
    assert generated.distinct["token sets"] == 1  # widths are no part of them
    assert (generated.distinct["structures"], generated.new["structures"]) == (3, 2)  # sizes count by magnitude
    assert generated.traced == 0
    (line,) = (line for line in report([generated, others]) if "gen" in line)
    assert "| 60 | 20 (20) | 10 (9) |" in line
    draw_figure(tmp_path / "figure.png", [generated, others])
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_graphs_are_traced_in_the_sandbox(networks: list[NetworkRow]) -> None:
    generated, others = count_families(networks, 4)
    assert (generated.traced, others.traced) == (4, 2)
    assert 2 <= generated.distinct["graphs"] <= 4
    assert [generated.distinct[column] for column in GRAPHS][1] == 1  # one computation but for its widths
    assert others.new["up to widths"] == 1  # another activation
