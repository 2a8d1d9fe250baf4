"""The facts of specs are those that other code counts, and a false one is found."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.facts import FACTS, compare
from extract.interface import extract

SOURCE = """
import random

import torch
from torch import nn
from torch.nn import functional as F


class Gate(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.up(F.relu_(self.down(x.mean((2, 3), keepdim=True)))))


class Attend(nn.Module):
    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.qkv, self.out, self.drop = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Dropout(0.1)

    def forward(self, x):
        n, length, dim = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = self.drop((q @ k.transpose(-2, -1)).softmax(-1))
        return x + self.out((weights @ v).transpose(1, 2).reshape(n, length, dim))


class Skips(nn.Module):
    def forward(self, x):
        return x * 2 if random.random() < 0.5 else x * 3
"""


def test_all_facts_agree_and_a_false_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "parts.py").write_text(SOURCE)
    folder = extract(tmp_path / "parts", out=tmp_path / "blocks", jobs=1).folder
    counts, wrong = compare([folder])
    assert wrong == []
    assert {fact: (counts[fact], counts[f"{fact} counted"]) for fact in FACTS} == dict.fromkeys(FACTS, (3, 3))
    lines = (folder / "specs.jsonl").read_text(encoding="utf-8").splitlines()
    specs = {spec["name"]: spec for spec in map(json.loads, lines)}
    specs["Gate"]["parameters"] += 1
    specs["Gate"]["cases"][0]["outputs"] = ["float32 2×8×5×5"]
    operations: list[Any] = specs["Attend"]["algorithm"]["operations"]
    operations.append(next(line for line in operations if "softmax" in line))
    specs["Attend"]["train_differs"] = False
    specs["Skips"]["algorithm"]["draws"]["train"] = []
    (folder / "specs.jsonl").write_text("".join(json.dumps(spec) + "\n" for spec in specs.values()), encoding="utf-8")
    _, wrong = compare([folder])
    found = {(line.split(": ")[0].rpartition(".")[2], line.split(": ")[1]) for line in wrong}
    wanted = {"Gate": {"parameters", "shapes"}, "Attend": {"operations", "modes"}, "Skips": {"draws"}}
    assert found == {(name, fact) for name, facts in wanted.items() for fact in facts}


DRAWN = {
    "timm@1.0.30": "PatchMerging SEModule EcaModule LevitStage CrossStage GhostBottleneckV3 EvaBlock",
    "torchvision@0.29.1": "SqueezeExcitation MBConv CNBlock SwinTransformerBlock BasicBlock DenseNet",
}


@pytest.mark.slow
@pytest.mark.network
def test_facts_of_drawn_classes_agree(tmp_path: Path) -> None:
    for source, names in DRAWN.items():
        extract(source, out=tmp_path / source, names=names.split(), jobs=2)
    counts, wrong = compare([tmp_path / source for source in DRAWN])
    assert wrong == []
    assert counts["blocks"] >= 10
