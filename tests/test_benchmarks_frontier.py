"""The frontier: what a plan fits into a budget is what a run counts, a script's own network is counted by the same rule."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.frontier import image_flop, plan, table, train_ours
from benchmarks.frontier_airbench import Meter, run_script, write_data
from train.data.sources import load_cifar10
from train.model.recipe import Recipe

CHANGES = [
    'model.widths=[24,32], model.depths=[0,1], slots.stem="whitened_patches", training.optimizer="muon"',
    "training.batch_size=32, training.kept_part=0.5, training.kept_until=0.5, training.lookahead=true",
    "training.whiten_on_plain=true, training.warmup_fraction=0.0",
    "augmentation.independent=true, augmentation.cutout=8",
]

SCRIPT = """
import sys
import torch, torchvision
from torch import nn
with open(sys.argv[0]) as f:
    code = f.read()
@torch.compile
def double(x):
    return 2 * x
class CifarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, 10)
    def forward(self, x):
        return self.layer(x.flatten(1))
def evaluate(model, loader, tta_level=0):
    model.eval()
    return tta_level / 4
def main(run, model):
    data = torch.load("cifar10/train.pt", map_location=torch.device("cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(int(8 * len(data["labels"]) / batch_size) if 0 else ceil(8 * len(train_loader))):
        model.train()
        loss = double(model(data["images"].flatten(1).float().cuda())).sum()
        loss.backward()
        optimizer.step()
        assert evaluate(model, None) == 0.0
    evaluate(model, None, tta_level=2)
batch_size, train_loader = 2000, [0]
from math import ceil
"""


@pytest.mark.slow
def test_a_plan_fits_a_budget_and_a_run_takes_it(tmp_path: Path) -> None:
    data = load_cifar10("synthetic:320", cache=tmp_path / "cache")
    arms = {"mine": {"recipe": "plain", "budget": 1e-4, "seeds": [0], "set": CHANGES}}
    plan(arms, None, tmp_path / "jobs", len(data.train_labels))
    plan(arms, None, tmp_path / "jobs", len(data.train_labels))  # finds its network
    job = json.loads((tmp_path / "jobs" / "mine.json").read_text())
    recipe = Recipe.model_validate_json(job["recipe"])
    assert image_flop(recipe, job["code"], job["prm"]) * len(data.train_labels) < 1e11
    job["recipe"] = recipe.changed(training__epochs=4, training__last_part=0.5).to_json()
    found = train_ours(job, 0, data, {"images": None, "epochs": None, "device": "cpu", "held_out": 0})
    assert found["images"] == 32 * 35 - 16 * 18  # of 35 steps, 18 keep half
    expected = image_flop(recipe, job["code"], job["prm"]) * 32 * 35
    assert found["flop"] == pytest.approx(expected, rel=0.04)  # the first step's proxy learns in more than a quarter
    assert 0 <= found["plain"] <= 1
    runs = [{**found, "arm": "mine", "seed": seed, "plain": 0.5 + seed / 100, "views": 0.75} for seed in (0, 2)]
    (row,) = table([*runs, {"arm": "mine", "seed": 3, "error": "none"}]).splitlines()[2:]
    assert row.startswith("| mine | 0.000 |")
    assert row.endswith("| 51.00 ± 1.41 | 75.00 ± 0.00 | 2 |")


def test_a_script_runs_on_our_images_and_is_counted(tmp_path: Path) -> None:
    data = load_cifar10("synthetic:320", cache=tmp_path / "cache")
    write_data(data, tmp_path, 16)
    (tmp_path / "script.py").write_text(SCRIPT)
    compile_before = torch.compile
    found = run_script("airbench94", tmp_path / "script.py", tmp_path, 0, "cpu", 3, None)
    product = 2 * 16 * 3072 * 10
    assert found == {"plain": 0.0, "views": 0.5, "flop": 3 * 2 * product, "optimizer_flop": 0, "images": 48}
    assert torch.compile is compile_before


def test_what_only_looks_is_counted_forward_alone() -> None:
    meter, net = Meter(), nn.Linear(4, 2)
    watched = meter.watch(net, "proxy", counts=False)
    with torch.no_grad():
        watched(torch.ones(3, 4))
    assert (meter.flop, meter.images) == (2 * 3 * 4 * 2, 0)
    watched.eval()(torch.ones(3, 4))
    assert meter.flop == 2 * 3 * 4 * 2
    docs = Path(__file__).parents[1] / "docs"
    lines = (docs / "frontier" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert table([json.loads(line) for line in lines]) in (docs / "training.md").read_text(encoding="utf-8")
