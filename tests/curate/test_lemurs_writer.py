"""A database that nn-dataset's own trainer wrote is read, and written, as that package does."""

import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur_core.files.errors import RetryableError
from lemur_core.files.pip import download
from train.runs.register import RegistrationCounts, register

RELEASE = "2.2.11"
NET = """import torch
from torch import nn


def supported_hyperparameters():
    return {"lr"}


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        assert set(prm) == {"batch", "epoch", "lr", "num_workers", "transform"}, sorted(prm)
        self.device = device
        self.layer = nn.Conv2d(in_shape[1], out_shape[0], 3, padding=1)

    def forward(self, x):
        return POOLED

    def train_setup(self, prm):
        self.optimizer = torch.optim.SGD(self.parameters(), lr=prm["lr"])

    def learn(self, train_data):
        for inputs, labels in train_data:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self(inputs), labels).backward()
            self.optimizer.step()
"""
NETS = {
    "img-classification": NET.replace("POOLED", "self.layer(x).mean((2, 3))"),
    "img-segmentation": NET.replace("POOLED", "self.layer(x)"),
}

#: Train both networks by the package's own trainer, on generated images, with a metric of ours: it ships none.
TRAIN = """import json, sys, types
from pathlib import Path
import torch

nets = json.loads(sys.argv[1])
images = [("img-classification", "cifar-10", "acc", 10, 0.01), ("img-segmentation", "coco", "iou", 6, 0.02)]


class Tiny(torch.utils.data.Dataset):
    def __init__(self, task, classes): self.task, self.classes = task, classes
    def __len__(self): return 64
    def __getitem__(self, number):
        torch.manual_seed(number)
        size = () if self.task == "img-classification" else (32, 32)
        return torch.rand(3, 32, 32), torch.randint(0, self.classes, size)


for task, dataset, _, classes, _ in images:
    loader = types.ModuleType(f"ab.nn.loader.{dataset}")
    loader.loader = lambda transform, task, n=classes: ((n,), 0.0, Tiny(task, n), Tiny(task, n))
    sys.modules[loader.__name__] = loader

from ab.nn.util.db import Init
Init.init_db()
from ab.nn.util.db import Write
connection, cursor = Init.sql_conn()
for _, _, metric, _, _ in images:
    Write.code_to_db(cursor, "metric", code=Path("metric.py").read_text(), force_name=metric)
Write.populate_code_table("transform", cursor, "norm_32")
Init.close_conn(connection)

from ab.nn.util.Train import train_new
for task, dataset, metric, _, lr in images:
    prm = {"lr": lr, "batch": 32, "epoch": 1, "transform": "norm_32", "num_workers": 0}
    train_new(nets[task], task, dataset, metric, prm, save_path="stat")
"""
METRIC = """class Share:
    def __init__(self): self.reset()
    def reset(self): self.hits = self.total = 0
    def __call__(self, outputs, labels):
        self.hits += int((outputs.argmax(1) == labels).sum())
        self.total += labels.numel()
    def result(self): return self.hits / self.total


def create_metric(out_shape): return Share()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of two tasks that `train_new` of the package wrote."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "wheel").mkdir()
    try:
        wheel = download("nn-dataset", f"=={RELEASE}", folder / "wheel")
    except RetryableError as error:
        pytest.skip(f"needs nn-dataset {RELEASE}, which pip could not fetch: {error}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (folder / "metric.py").write_text(METRIC)
    (folder / "stat").mkdir()
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-P", str(folder / "train.py"), json.dumps(NETS)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "db" / "ab.nn.db"


@pytest.mark.network
@pytest.mark.slow
def test_a_database_of_lemurs_own_writer(written: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(written)
    names = {name for (name,) in connection.execute("SELECT DISTINCT name FROM prm")}
    accuracies = dict(connection.execute("SELECT task, accuracy FROM stat"))
    connection.close()
    assert {"metric_acc", "metric_iou", "duration_seconds"} <= names  # that is what it does
    assert register([], db=written) == RegistrationCounts(0, 0, ())  # its ids are made as ours
    manifest = curate(open_source(str(written)), tmp_path / "out", CurateOptions(chat=True), jobs=1)
    records = pq.read_table(sorted((tmp_path / "out").glob("data/records/*.parquet"))).to_pylist()
    stats = pq.read_table(sorted((tmp_path / "out").glob("data/stats/*.parquet"))).to_pylist()
    assert {row["task"] for row in records} == set(NETS)
    for row in (*records, *stats):
        assert set(json.loads(row["prm"])) == {"batch", "epoch", "lr", "num_workers", "transform"}
    for row in stats:
        outcomes = json.loads(row["outcomes"])
        assert set(outcomes) == {"duration_seconds", f"metric_{row['metric']}"}
        assert outcomes[f"metric_{row['metric']}"] == row["accuracy"] == accuracies[row["task"]]
    assert all(row["graph"] and row["runs"] for row in records)  # its constructor refuses anything else in prm
    texts = "".join(
        message["content"]
        for file in sorted((tmp_path / "out").glob("data/chat/*.parquet"))
        for row in pq.read_table(file).to_pylist()
        for message in row["messages"]
    )
    assert manifest.counts["chat"]["rows"]
    assert "Net(in_shape" in texts
    assert "metric_" not in texts
    assert "duration_seconds" not in texts
