"""The prediction of accuracies: what a split holds out is what it says, and a run on a small corpus from end to end."""

import json
import random
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")

from benchmarks import prediction
from benchmarks.prediction import FIRST, LATER, SPLITS, Networks, nearest_similarity
from curate.model.options import LEAK_THRESHOLD

_HEAD = "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, in_shape, out_shape, prm, device):\n        super().__init__()\n"
#: Layers that make texts of one prefix near each other, and those of two prefixes not.
_LAYERS = {
    "wide": "nn.Conv2d(3, {n}, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)",
    "deep": "nn.BatchNorm2d({n}), nn.Dropout(0.1), nn.Upsample(scale_factor=2), nn.Sigmoid()",
    "flat": "nn.Linear({n}, 8), nn.LayerNorm(8), nn.GELU(), nn.Identity()",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of 24 variants of each of three texts, half of them with a different tail, and of five epochs of results."""
    draw, rows = random.Random(0), []
    common = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "duration": 1.0}
    for prefix, layers in _LAYERS.items():
        for number in range(24):
            tail = "".join(f"        self.{prefix}_{step} = {step} + {number}\n" for step in range(40 * (number % 2)))
            body = f"        self.net = nn.Sequential({layers.format(n=number + 2)})\n{tail}"
            code = f"{_HEAD}{body}\n    def forward(self, x):\n        return self.net(x)\n"
            quality = 0.2 + 0.02 * number + 0.01 * draw.random()
            prm = json.dumps({"lr": 0.01, "batch": 4 + number, "transform": "norm_64_flip"})
            row = {**common, "nn": f"{prefix}-{number}", "nn_code": code, "prm": prm}
            rows += [{**row, "epoch": epoch, "accuracy": quality + 0.03 * epoch} for epoch in range(FIRST, LATER + 1)]
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def networks(source: str) -> Networks:
    return prediction.read_networks(source)


def test_each_code_has_its_results_and_predictors_learn(networks: Networks) -> None:
    assert len(networks.codes) == 72
    first, later = networks.accuracy[FIRST], networks.accuracy[LATER]
    assert np.allclose(later - first, 0.03 * (LATER - FIRST))
    assert networks.hyperparameters[FIRST][:, 4:].tolist() == [[64.0, 1.0]] * 72
    assert sorted(networks.hyperparameters[FIRST][:, 3].tolist()) == sorted([4.0 + n for n in range(24)] * 3)
    order = np.random.default_rng(0).permutation(len(networks.codes))
    train, tested = order[20:], order[:20]
    tokens = prediction.hash_tokens(networks.codes)
    assert prediction.correlate(np.ones(20), first[tested]) == 0.0
    assert prediction.nearest(tokens)(train, train, first).tolist() == first[train].tolist()
    assert prediction.correlate(prediction.ridge(tokens)(train, tested, first), first[tested]) > 0.3


@pytest.mark.parametrize("name", SPLITS)
def test_codes_are_tested_that_do_not_train(name: str, networks: Networks) -> None:
    codes = np.flatnonzero(np.isfinite(networks.accuracy[FIRST]))
    draws = [SPLITS[name](networks, codes, seed) for seed in (0, 0, 1)]
    for train, tested in draws:
        assert not np.intersect1d(train, tested).size
        assert len(np.union1d(train, tested)) <= len(codes)
    assert all(np.array_equal(*both) for both in zip(draws[0], draws[1], strict=True))


def test_whole_units_are_held_out_and_far_codes_have_no_near_ones(networks: Networks) -> None:
    prefixes, codes = networks.prefixes, np.arange(len(networks.codes))
    train, tested = prediction.split_by_group(networks, codes, 0)
    assert not np.intersect1d(networks.groups[train], networks.groups[tested]).size
    few = np.concatenate([codes[prefixes != "deep"], codes[prefixes == "deep"][:4]])  # small enough to be held out
    train, tested = prediction.split_by_prefix(networks, few, 0)
    assert set(prefixes[tested]) == {"deep"}
    assert "deep" not in set(prefixes[train])
    train, tested = prediction.split_far(networks, codes, 1)
    assert len(train)
    assert nearest_similarity(networks, train, tested).max() < LEAK_THRESHOLD
    control, same = prediction.split_few(networks, codes, 1)
    assert len(control) == len(train)
    assert np.array_equal(same, tested)
    assert nearest_similarity(networks, control, tested).max() == 1.0


@pytest.mark.slow
def test_a_run_prints_tables(source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["prediction", source, "--draws", "2"])
    prediction.main()
    printed = capsys.readouterr().out
    rows = [line.split(" | ")[0].strip("| ") for line in printed.splitlines() if line.startswith("|")]
    assert [rows.count(name) for name in ("hyperparameters", "tokens, ridge", "first epoch")] == [2, 3, 1]
    assert "of the tested codes have the token set" in printed
