"""Trials in a LEMUR database: added once, whole folders or nothing, with all that they refer to."""

import json
import os
import runpy
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lemur_core.files.errors import UserError
from train.contract import lemur_digest, lemur_name
from train.lemur_files import write_lemur_files
from train.register import Registered, register, register_runs

_made_up = runpy.run_path(str(Path(__file__).with_name("lemur_record.py")))
made_up_record, history, TINY, RECIPE = (_made_up[name] for name in ("made_up_record", "history", "TINY", "RECIPE"))

NAME = lemur_name(TINY, "tiny")
STATS = f"ab/nn/stat/train/img-classification_cifar-10_acc_{NAME}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write_lemur_files(path, made_up_record(), TINY, history())
    return path


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ab.nn.db"


def rows(db: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(db)) as database:
        return database.execute(query).fetchall()


def dump(db: Path) -> list[str]:
    with closing(sqlite3.connect(db)) as database:
        return list(database.iterdump())


def test_trials_are_added_once(db: Path, folder: Path) -> None:
    assert register(db, [folder]) == Registered(3, 0, ())
    before = dump(db)
    assert register(db, [folder, folder]) == Registered(0, 6, ())
    assert dump(db) == before
    (folder / f"ab/nn/nn/{NAME}.py").write_text(TINY + "\n")
    (line,) = register(db, [folder]).failed
    assert line.endswith(f"{NAME}.py: the database holds other code under the name {NAME}")
    assert dump(db) == before


def test_rows_are_those_that_the_package_would_make(db: Path, folder: Path) -> None:
    register(db, [folder])
    (trial,) = json.loads((folder / STATS / "3.json").read_text())
    values = ["norm_flip", trial["uid"], "img-classification", "cifar-10", "acc", NAME, 3, 30_750_000_000, 0.5512]
    columns = "transform, prm, task, dataset, metric, nn, epoch, duration, accuracy"
    assert rows(db, f"SELECT id, {columns} FROM stat WHERE epoch = 3") == [(lemur_digest(values), *values)]
    assert rows(db, "SELECT code, id FROM nn") == [(TINY, lemur_digest(TINY))]
    stored = dict(rows(db, f"SELECT name, value FROM prm WHERE uid = '{trial['uid']}'"))
    assert stored == {key: value for key, value in trial.items() if key not in ("uid", "duration", "accuracy")}


def test_all_that_a_trial_refers_to_is_there(db: Path, folder: Path, tmp_path: Path) -> None:
    other = TINY.replace("16, 32, 64", "8, 16, 32")
    second = tmp_path / "other"
    write_lemur_files(second, made_up_record(other, made_by=RECIPE.changed(augmentation__flip=False)), other, history())
    register(db, [])
    assert rows(db, "SELECT COUNT(*) FROM stat") == [(0,)]
    with closing(sqlite3.connect(db)) as database, database:
        database.execute("INSERT INTO transform VALUES ('norm_flip', '# the package''s own', 't')")
    assert register(db, [folder, second]).added == 6
    assert rows(db, "SELECT code FROM transform WHERE name = 'norm_flip'") == [("# the package's own",)], "it stays"
    for table, key in (("nn", "name"), ("transform", "name"), ("metric", "name"), ("prm", "uid")):
        lost = rows(db, f"SELECT id FROM stat WHERE {table} NOT IN (SELECT {key} FROM {table})")
        assert lost == [], table
    assert rows(db, "SELECT COUNT(*), COUNT(DISTINCT uid || name) FROM prm")[0] == (36, 36)  # nothing twice
    assert rows(db, "SELECT name FROM transform ORDER BY name") == [("norm",), ("norm_flip",)]
    for name, code in rows(db, "SELECT name, code FROM transform UNION SELECT name, code FROM metric"):
        compile(code, name, "exec")


def test_the_metric_of_a_new_database_works(db: Path, folder: Path) -> None:
    import torch

    register(db, [folder])
    module: dict[str, Any] = {}
    exec(rows(db, "SELECT code FROM metric WHERE name = 'acc'")[0][0], module)
    metric = module["create_metric"]((10,))
    scores = torch.eye(4)
    assert metric(scores, torch.tensor([0, 1, 2, 0])) == (3, 4)
    assert metric(scores[None, :2], torch.tensor([[0, 0]])) == (4, 6)
    assert metric.result() == pytest.approx(4 / 6)
    metric.reset()
    assert metric.result() == 0


BROKEN = {
    "nothing": (lambda folder: (folder / "ab").rename(folder / "other"), "run: holds no ab/nn/stat/train/TASK_DATASET"),
    "no code": (lambda folder: (folder / f"ab/nn/nn/{NAME}.py").unlink(), f"{NAME}.py: cannot be read: [Errno 2]"),
    "name": (lambda folder: (folder / STATS).rename(folder / f"{STATS}_b"), "is not named TASK_DATASET_METRIC_NN"),
    "epoch": (lambda run: (run / STATS / "3.json").rename(run / STATS / "best.json"), "is not named EPOCH.json"),
    "trials": (lambda folder: (folder / STATS / "3.json").write_text("[{}]"), "3.json: trial 1: has no accuracy"),
    "metric": (
        lambda folder: (folder / STATS).rename(folder / STATS.replace("_acc_", "_iou_")),
        "the database holds no metric iou; let LEMUR make the database first",
    ),
    "transform": (
        lambda folder: (folder / STATS / "3.json").write_text('[{"accuracy": 1, "uid": "a", "transform": "mine"}]'),
        "the database holds no transform mine, and transform 'mine': is not one of LEMUR's",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_is_added_whole_or_not_at_all(db: Path, folder: Path, tmp_path: Path, name: str) -> None:
    breaks, reason = BROKEN[name]
    good = tmp_path / "good"
    other = TINY + "# another\n"
    write_lemur_files(good, made_up_record(other), other, history())
    breaks(folder)
    result = register(db, [folder, good])
    assert (result.added, result.present, len(result.failed)) == (3, 0, 1)
    assert reason in result.failed[0]
    assert rows(db, "SELECT DISTINCT nn FROM stat") == rows(db, "SELECT name FROM nn") == [(lemur_name(other, "tiny"),)]
    assert rows(db, "SELECT COUNT(*) FROM prm WHERE uid NOT IN (SELECT prm FROM stat)") == [(0,)]


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("CREATE TABLE other (x)", "has no table nn; this is not the schema of nn-dataset 2.1.0"),
        ("DROP TABLE prm", "has no table prm;"),
        ("DROP INDEX idx_transform; ALTER TABLE stat RENAME transform TO t", "table stat has no column transform;"),
        ("ALTER TABLE nn RENAME id TO key", "table nn has no column id; this is not the schema"),
        (
            "DROP TABLE metric; CREATE TABLE metric (name, code, id, lang NOT NULL)",
            "table metric demands a column lang,",
        ),
    ],
)
def test_databases_of_another_schema_are_refused(db: Path, folder: Path, statements: str, reason: str) -> None:
    if not statements.startswith("CREATE"):
        register(db, [])
    with closing(sqlite3.connect(db)) as database:
        database.executescript(statements)
    before = dump(db)
    with pytest.raises(UserError) as raised:
        register(db, [folder])
    assert reason in str(raised.value)
    assert str(raised.value).startswith(f"{db}: ")
    assert dump(db) == before


def test_what_is_no_database_is_refused(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="is a folder; give the file of a LEMUR database"):
        register(tmp_path, [folder])
    with pytest.raises(UserError, match=r"there is no folder .*/none; give"):
        register(tmp_path / "none" / "ab.nn.db", [folder])
    text = tmp_path / "text.db"
    text.write_text("not a database, but long enough to be looked at as one " * 40)
    with pytest.raises(UserError, match=r"text\.db: file is not a database; give a LEMUR database"):
        register(text, [folder])
    monkeypatch.setattr("train.register._WAIT_SECONDS", 0.1)
    db = tmp_path / "locked.db"
    register(db, [])
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="database is locked; give a LEMUR database that can be written and that"):
            register(db, [folder])


# --- the package itself -------------------------------------------------------------------------------------------------

#: Reads our database by `ab.nn.api.data`; then has the package import our files into a database of its own.
READER = """
import json, sys
from pathlib import Path
import ab.nn.api as api
import ab.nn.util.db.Init as init
import ab.nn.util.db.Write as write
tree = Path(sys.argv[1])
rows = api.data().to_dict("records")
names, own = write.nn_path, Path("db", "own.db").absolute()
init.db_file = own
write.stat_train_dir = tree / "ab" / "nn" / "stat" / "train"
write.nn_path = lambda folder: tree / "ab" / "nn" / "nn" if folder == "nn" else names(folder)
init.init_db()
write.json_n_code_to_db()
Path("rows.json").write_text(json.dumps(rows, default=str))
"""


@pytest.mark.slow
def test_the_package_reads_it_and_makes_the_same_rows_of_the_files(tmp_path: Path, folder: Path) -> None:
    """LEMUR_PYTHON: an interpreter with nn-dataset 2.1.0 and what it imports."""
    python = os.environ.get("LEMUR_PYTHON")
    if not python:
        pytest.skip("LEMUR_PYTHON is not set: an interpreter with nn-dataset 2.1.0")
    work = tmp_path / "work"
    (work / "db").mkdir(parents=True)
    write_lemur_files(folder, made_up_record(seed=8, test_accuracy=0.57), TINY, history())
    register(work / "db" / "ab.nn.db", [folder])
    done = subprocess.run(
        [python, "-P", "-c", READER, str(folder)], cwd=work, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    read = json.loads((work / "rows.json").read_text())
    found = sorted((row["epoch"], row["accuracy"], row["prm"]["seed"], row["prm"]["accuracy_on"]) for row in read)
    held_out = [(epoch, accuracy, seed, "held-out training images") for epoch, accuracy in ((1, 0.25), (2, 0.5)) for seed in (7, 8)]  # fmt: skip
    assert found == [*held_out, (3, 0.5512, 7, "test images"), (3, 0.57, 8, "test images")]
    assert {(row["nn"], row["nn_code"], row["dataset"]) for row in read} == {(NAME, TINY, "cifar-10")}
    assert all("def transform" in row["transform_code"] and "create_metric" in row["metric_code"] for row in read)
    for query in (
        "SELECT * FROM stat ORDER BY id",
        "SELECT * FROM nn",
        "SELECT DISTINCT * FROM prm ORDER BY uid, name",
    ):
        assert rows(work / "db" / "ab.nn.db", query) == rows(work / "db" / "own.db", query)


def test_runs_without_trials_are_told_why(db: Path, folder: Path, tmp_path: Path) -> None:
    runs = {
        "whole": ({}, "has no folder lemur; the command that trained it writes it"),
        "failed": ({"status": "diverged", "error": "nan"}, "the run ended with status diverged: nan; only whole runs"),
        "smoke": ({"data": "synthetic (smoke test only)"}, "trained on synthetic (smoke test only); only runs on real"),
    }
    for name, (changes, _) in runs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(made_up_record(**changes).model_dump_json())
    done = register_runs(db, [tmp_path / name for name in (*runs, "nowhere")])
    assert (done.added, done.present, db.exists()) == (0, 0, False)
    for name, (_, said), line in zip(runs, runs.values(), done.failed, strict=False):
        assert line.startswith(f"{tmp_path / name}: {said}")
    assert done.failed[-1].startswith(f"{tmp_path / 'nowhere'}: is not the folder of a whole training run")
    folder.rename(tmp_path / "whole" / "lemur")
    assert register_runs(db, [tmp_path / "whole", tmp_path / "smoke"]) == Registered(3, 0, (done.failed[2],))
