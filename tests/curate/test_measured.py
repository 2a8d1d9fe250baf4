"""What sources measured on devices, of layers, and after pruning: read from releases and databases, never dropped."""

import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate import CurateOptions, curate
from curate.compute.runs import read_parameters
from curate.sources import open_source, open_sources
from curate.sources.lemur import read_release
from manifests.records import drop_outcomes, split_outcomes
from tests.builders.suites import table
from tests.curate.conftest import network
from tests.curate.test_sources_database import make, packed, run
from train.check import check_prm
from train.model.recipe import read_prm

_PHONE = {"model_name": "a_b", "device_type": "phone", "valid": True, "duration": 155, "emulator": None}
_LATER = {"device_type": "laptop", "valid": False, "unit": "ms", "duration": 2.5}

MORE = """
CREATE TABLE run (id TEXT PRIMARY KEY, model_name TEXT, device_type TEXT, valid BOOLEAN, duration INTEGER, error_message TEXT);
INSERT INTO run VALUES ('r2', 'one', 'phone', 0, 7, NULL), ('r1', 'two', NULL, 1, 8, 'no');
CREATE TABLE per_layer_stat (id TEXT, stat_id TEXT, grad_norm REAL, PRIMARY KEY (id, stat_id));
INSERT INTO per_layer_stat VALUES ('conv', '00000001', 0.5), ('conv', '00000000', 1.5), ('conv', 'none', 2.5);
CREATE TABLE tflite (id TEXT PRIMARY KEY, accuracy REAL);
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    codes = {"one": network(range(6)), "two": network(range(3, 12)), "alias": network(range(6))}
    path = make(tmp_path_factory.mktemp("measured") / "ab.nn.db", codes, [run(name) for name in codes])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(MORE)
    return path


def test_every_file_of_a_release_that_is_not_training_is_read(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "ab/nn/stat/train/img-classification_cifar-10_acc_x/1.json": [{"accuracy": 0.5}],
        "ab/nn/stat/img-classification_cifar-10_acc_x/2.json": [{"accuracy": 0.5}],
        "ab/nn/stat/run/img-classification_a_b/phone.json": _PHONE,
        "ab/nn/stat/run/onnx/fp32/img-classification_cifar-10_acc_c/laptop.json": _LATER,
        "ab/nn/stat/nn/d.json": [{"flops": 3}, {"flops": 4}, 5],
        "ab/nn/stat/README.md": "text",
        "ab/nn/nn/x_y_z.py": "text",
        "ab/nn/stat/nn/x_y_z.json": {"flops": 5},
        "ab/nn/stat/run/img-classification_cifar-10_acc_x_y_z/phone.json": {"duration": 1},
    }
    with zipfile.ZipFile(tmp_path / "wheel.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, json.dumps(content))
        archive.writestr("ab/nn/stat/run/img-classification_e/broken.json", "{")
    assert [tuple(measured) for measured in read_release(tmp_path / "wheel.whl")] == [
        ("d", "nn", "d.json", {"flops": 3}),
        ("d", "nn", "d.json#1", {"flops": 4}),
        ("d", "nn", "d.json#2", {"value": 5}),
        ("x_y_z", "nn", "x_y_z.json", {"flops": 5}),
        ("a_b", "run", "img-classification_a_b/phone.json", _PHONE),
        ("x_y_z", "run", "img-classification_cifar-10_acc_x_y_z/phone.json", {"duration": 1}),
        ("e", "run", "img-classification_e/broken.json", {"unreadable": "{"}),
        ("c", "run/onnx/fp32", "img-classification_cifar-10_acc_c/laptop.json", _LATER),
    ]


def test_a_database_is_read_by_network_or_by_run(database: Path) -> None:
    expected = [
        ("two", "run", "r1", {"id": "r1", "model_name": "two", "valid": 1, "duration": 8, "error_message": "no"}),
        ("one", "run", "r2", {"id": "r2", "model_name": "one", "device_type": "phone", "valid": 0, "duration": 7}),
        ("one", "per_layer_stat", "00000000/conv", {"id": "conv", "stat_id": "00000000", "grad_norm": 1.5}),
        ("two", "per_layer_stat", "00000001/conv", {"id": "conv", "stat_id": "00000001", "grad_norm": 0.5}),
        ("", "per_layer_stat", "none/conv", {"id": "conv", "stat_id": "none", "grad_norm": 2.5}),
    ]
    for path in (database, packed(database)):
        assert [tuple(measured) for measured in open_sources([str(path)]).measurements()] == expected
    both = open_sources([str(database), str(packed(database))])
    assert [tuple(measured) for measured in both.measurements()] == expected * 2


def test_a_snapshot_holds_them(database: Path, tmp_path: Path) -> None:
    snapshot = curate(database, out=tmp_path / "out", options=CurateOptions(graph="off"), jobs=1)
    (path,) = (tmp_path / "out" / "data" / "measurements").iterdir()
    rows = pq.read_table(path).to_pylist()
    ids = dict(zip(snapshot.decisions.nn, snapshot.decisions.id, strict=True))
    assert [(row["nn"], row["id"]) for row in rows] == [(n, ids.get(n)) for n in ("two", "one", "one", "two", "")]
    assert [row["valid"] for row in rows] == [True, False, None, None, None]
    assert snapshot.manifest.counts["measurements"] == {"rows": 5, "codes": 2, "kinds": {"per_layer_stat": 3, "run": 2}}
    assert json.loads(rows[0]["facts"])["error_message"] == "no"
    assert all(check.ok for check in snapshot.verify(jobs=1)), snapshot.verify(jobs=1)
    lines = [line for line in snapshot["one"].found.lines if line.startswith("measured")]
    assert lines == ["measured    run: phone, failed, duration 7", "measured    per_layer_stat: 00000000/conv"]
    assert "measurements" in (tmp_path / "out" / "README.md").read_text()
    changed = pa.Table.from_pylist([{**rows[0], "id": ids["one"]}, *rows[1:]], pq.read_schema(path))
    pq.write_table(changed, path)
    assert "row 0: id is" in next(check.detail for check in snapshot.verify(jobs=1) if check.name == "derived")


def test_a_source_without_any_has_no_table(tmp_path: Path) -> None:
    row = {"nn": "a", "nn_code": network(range(4)), "task": "t", "dataset": "d", "metric": "m", "epoch": 1}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | {"accuracy": 0.5, "duration": 1, "prm": "{}"}) + "\n")
    snapshot = curate(tmp_path / "rows.jsonl", out=tmp_path / "out", options=CurateOptions(graph="off"), jobs=1)
    assert not (tmp_path / "out" / "data" / "measurements").exists()
    assert "measurements" not in snapshot.manifest.counts


# Outcomes that LEMUR's later releases store among the hyperparameters stay apart from them, on reading and on
# writing.


def test_outcomes_of_every_source_are_a_column_of_their_own(tmp_path: Path) -> None:
    prm: dict[str, Any] = {"lr": 0.1, "metric_acc": 0.5, "duration_seconds": 12.9, "train_loss": 2.0}
    rows = [("u", name, value) for name, value in prm.items()]
    database = make(tmp_path / "ab.nn.db", {"a": "x = 1"}, [run("a")], rows)
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps({"nn": "a", "nn_code": "x = 1", "prm": prm}) + "\n")
    for path in (database, lines):
        (batch,) = open_source(str(path)).batches()
        assert batch["prm"].to_pylist() == ['{"lr": 0.1}']
        assert json.loads(batch["outcomes"][0].as_py()) == {name: prm[name] for name in prm if name != "lr"}


def test_outcomes_of_several_runs_are_nobodys(tmp_path: Path) -> None:
    """Two epochs of one training, and a run of another task, have the same hyperparameters, so the same id."""
    rows = [("u", "lr", 0.1), ("u", "metric_acc", 0.5), ("u", "metric_acc", 0.7), ("v", "metric_acc", 0.2)]
    runs = [run("a", 0.5), run("a", 0.7, epoch=2), run("b", 0.2, uid="v")]
    (batch,) = open_source(str(make(tmp_path / "ab.nn.db", {"a": "x = 1", "b": "y"}, runs, rows))).batches()
    shown = zip(*(batch[name].to_pylist() for name in ("nn", "prm", "outcomes")), strict=True)
    assert list(shown) == [("a", '{"lr": 0.1}', None)] * 2 + [("b", "{}", '{"metric_acc": 0.2}')]


@table(__file__, "outcomes.md", "Split", globals())
def test_split(prm: str | None, own: str | None, outcomes: str | None) -> None:
    assert split_outcomes(prm) == (own, outcomes)


def test_no_constructor_gets_outcomes() -> None:
    prm = {"lr": 0.1, "batch": 4, "transform": "norm", "metric_acc": 0.5, "duration_seconds": 3}
    own = {"lr": 0.1, "batch": 4, "transform": "norm"}
    text = json.dumps(prm)
    assert drop_outcomes(prm) == read_parameters(text) == read_prm(text) == check_prm(prm) == own
