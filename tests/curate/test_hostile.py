"""Curating networks that are hostile: each record gets its outcome, the others are done, and a rerun gives the same bytes."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate import CurateOptions, curate
from curate.kinds import verify
from tests.builders.hostile import list_hostile
from tests.builders.suites import read_table

NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, in_shape, out_shape, prm, device):
        super().__init__()
        self.fc = nn.Linear(in_shape[1], out_shape[0]{more})
{init}

    def forward(self, x):
{forward}
        return self.fc(x.mean((2, 3)))
"""

#: Walks the frames to the report's key, and reports a value of its own.
FORGE = """import base64, json, os, sys, zlib
pack = lambda data: base64.b64encode(zlib.compress(data)).decode()
graph = lambda **more: pack(json.dumps({{"form": 2, "torch": torch.__version__.partition("+")[0], "nodes": [], "outputs": [], "writes": [], "reads": [], "unique": "", **more}}).encode())
def net(**more):
    texts = {{name: name for name in ("route", "graph", "graph_widths", "graph_repeats", "graph_eval", "initial", "glue")}}
    lists = {{name: [] for name in ("in_shape", "prm_read", "dead_classes", "unused_parameters")}}
    return {{"runs": True, "train_error": None, "reads_values": False, **texts, **lists, "eval": graph(), **more}}
frame = sys._getframe()
while frame and frame.f_code.co_name != "run_child":
    frame = frame.f_back
found = dict(frame.f_locals)
body = json.dumps({{"status": "ok", "value": {value}, "error": ""}}).encode()
view = memoryview(found["key"] + len(body).to_bytes(8, "big") + body)
while view:
    view = view[os.write(found["result"], view):]
os._exit(0)"""

FORGED = read_table(__file__, "hostile.md", "Forged", globals())

#: What is odd but runs.
RUNS = {
    "a surrogate in a parameter's name": r'self.register_parameter("p\ud800", nn.Parameter(torch.ones(1)))',
    "hyperparameters by odd names": r'prm.get("k\ud800", 1), prm.get(5, 1), prm.get("a", 1)',
}


def indent(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.splitlines())


def write_records(path: Path) -> dict[str, str]:
    """Write one network of each kind, and two good ones. Returns: the codes by name."""
    codes = {
        f"hostile {name}": NET.format(more="", init=indent(text), forward="") for name, text in list_hostile().items()
    }
    forged = {name: FORGE.format(value=value).replace("{{", "{").replace("}}", "}") for name, value in FORGED.items()}
    codes |= {f"forged {name}": NET.format(more="", init="", forward=indent(text)) for name, text in forged.items()}
    codes |= {f"odd {name}": NET.format(more="", init=indent(text), forward="") for name, text in RUNS.items()}
    codes |= {f"good {bias}": NET.format(more=f", bias={bias}", init="", forward="") for bias in (True, False)}
    row: dict[str, Any] = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1}
    row |= {"accuracy": 0.5, "duration": 1.0, "prm": json.dumps({"lr": 0.1, "batch": 2, "transform": "norm_32"})}
    path.write_text("".join(json.dumps({"nn": name, "nn_code": code, **row}) + "\n" for name, code in codes.items()))
    return codes


@pytest.mark.slow
def test_each_record_gets_its_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))
    codes = write_records(tmp_path / "records.jsonl")
    tables = []
    for number in range(2):  # the second time, outcomes are recalled
        out = tmp_path / f"snapshot{number}"
        curate(tmp_path / "records.jsonl", out=out, options=CurateOptions(graph="all"), jobs=2)
        assert [check for check in verify(out) if not check.ok] == []
        tables.append([(out / name).read_bytes() for name in ("graphs.parquet", "decisions.parquet")])
    assert tables[0] == tables[1]
    ids = {row["nn"]: row["id"] for row in pq.read_table(tmp_path / "snapshot0" / "decisions.parquet").to_pylist()}
    graphs = {row["id"]: row for row in pq.read_table(tmp_path / "snapshot0" / "graphs.parquet").to_pylist()}
    assert ids.keys() == codes.keys()
    for name in codes:
        graph, error = graphs[ids[name]]["graph"], graphs[ids[name]]["error"]
        assert (graph is None) != (error is None), name
        if name.startswith("forged"):
            assert error.startswith("crashed: invalid answer: "), (name, error)
        elif name.startswith(("good", "odd")):
            assert graph is not None, (name, error)
