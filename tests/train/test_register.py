"""Runs for LEMUR: files of a checkout in the package's own names and format; trials in its database, added once."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from lemur_core.files.errors import UserError
from tests.builders.suites import read_table, table
from tests.builders.training import RECIPE, TINY, history, made_up_record, write_run
from train.cli import register_
from train.model.contract import lemur_digest, lemur_name
from train.runs.register import RegistrationCounts, register
from train.runs.run_folder import why_refused
from train.runs.run_folder import write_lemur_files as write_files

NAME = lemur_name(TINY, "tiny")
STATS = f"ab/nn/stat/train/img-classification_cifar-10_acc_{NAME}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")  # type: ignore[no-any-return]


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ab.nn.db"


def rows(db: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(db)) as database:
        return database.execute(query).fetchall()


def dump(db: Path) -> list[str]:
    with closing(sqlite3.connect(db)) as database:
        return list(database.iterdump())


def change(db: Path, statements: str) -> list[str]:
    """Change a database, and return what it holds then."""
    with closing(sqlite3.connect(db)) as database, database:
        database.executescript(statements)
    return dump(db)


def write_lemur_files(folder: Path, epochs: Any = None, **changes: Any) -> list[str]:
    write_files(folder, made_up_record(**changes), TINY, epochs or history())
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("ab/**/*.*") if path.is_file())


def trial_of(folder: Path, epoch: int) -> dict[str, Any]:
    (trial,) = json.loads((folder / STATS / f"{epoch}.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = trial
    return found


def test_trials_are_added_once_as_the_package_would(db: Path, folder: Path) -> None:
    assert register([folder], db=db) == RegistrationCounts(3, 0, ())
    before = dump(db)
    assert register([folder, folder], db=db) == RegistrationCounts(0, 6, ())
    assert dump(db) == before
    (line,) = register([write_run(folder.with_name("spaced"), TINY + "\n")], db=db).failed
    assert line.endswith(f"spaced/net.py: the database has other code under the name {NAME}")
    assert dump(db) == before
    register([folder], db=db)
    write_lemur_files(folder)
    trial = trial_of(folder, 3)
    values = ["norm_flip", trial["uid"], "img-classification", "cifar-10", "acc", NAME, 3, 30_750_000_000, 0.5512]
    columns = "transform, prm, task, dataset, metric, nn, epoch, duration, accuracy"
    assert rows(db, f"SELECT id, {columns} FROM stat WHERE epoch = 3") == [(lemur_digest(values), *values)]
    assert rows(db, "SELECT code, id FROM nn") == [(TINY, lemur_digest(TINY))]
    stored = dict(rows(db, f"SELECT name, value FROM prm WHERE uid = '{trial['uid']}'"))
    assert stored == {key: value for key, value in trial.items() if key not in ("uid", "duration", "accuracy")}
    module: dict[str, Any] = {}
    exec(rows(db, "SELECT code FROM metric WHERE name = 'acc'")[0][0], module)
    metric = module["create_metric"]((10,))
    scores = torch.eye(4)
    assert metric(scores, torch.tensor([0, 1, 2, 0])) == (3, 4)
    assert metric(scores[None, :2], torch.tensor([[0, 0]])) == (4, 6)
    assert metric.result() == pytest.approx(4 / 6)
    metric.reset()
    assert metric.result() == 0


def test_a_run_that_was_changed_is_refused(db: Path, folder: Path, finished: Callable[..., Path]) -> None:
    finished(folder, "run")
    (folder / "history.jsonl").write_text("".join(f"{epoch.model_dump_json()}\n" for epoch in history(0.9, 0.9, 0.99)))
    (line,) = register([folder], db=db).failed
    assert "digests: history.jsonl differs from its digest; it was changed after training" in line
    assert not db.exists()


def test_all_that_a_trial_refers_to_is_there(db: Path, folder: Path, tmp_path: Path) -> None:
    other = TINY.replace("16, 32, 64", "8, 16, 32")
    second = write_run(tmp_path / "other", other, made_by=RECIPE.changed(augmentation__flip=False))
    register([], db=db)
    assert rows(db, "SELECT COUNT(*) FROM stat") == [(0,)]
    change(db, "INSERT INTO transform VALUES ('norm_flip', '# the package''s own', 't')")
    assert register([folder, second], db=db).added == 6
    assert rows(db, "SELECT code FROM transform WHERE name = 'norm_flip'") == [("# the package's own",)], "it stays"
    for name, key in (("nn", "name"), ("transform", "name"), ("metric", "name"), ("prm", "uid")):
        lost = rows(db, f"SELECT id FROM stat WHERE {name} NOT IN (SELECT {key} FROM {name})")
        assert lost == [], name
    assert rows(db, "SELECT COUNT(*), COUNT(DISTINCT uid || name) FROM prm")[0] == (36, 36)  # nothing twice
    assert rows(db, "SELECT name FROM transform ORDER BY name") == [("norm",), ("norm_flip",)]
    for name, code in rows(db, "SELECT name, code FROM transform UNION SELECT name, code FROM metric"):
        compile(code, name, "exec")


REFUSED: dict[str, tuple[dict[str, Any], str]] = read_table(__file__, "register.md", "Refused", globals())


def test_a_run_is_added_whole_or_not_at_all_and_told_why(db: Path, tmp_path: Path) -> None:
    bad = [write_run(tmp_path / name, **changes) for name, (changes, _) in REFUSED.items()]
    bad.append(tmp_path / "nowhere")
    done = register(bad, db=db)
    assert (done.added, done.present, db.exists()) == (0, 0, False)
    for name, (_, said), line in zip(REFUSED, REFUSED.values(), done.failed, strict=False):
        assert line.startswith(f"{tmp_path / name}: {said}")
        assert "\n" not in line
    assert done.failed[-1].startswith(f"{tmp_path / 'nowhere'}: is not the folder of a complete training run")
    other = TINY + "# another\n"
    assert register([*bad, write_run(tmp_path / "good", other)], db=db) == RegistrationCounts(3, 0, done.failed)
    assert rows(db, "SELECT DISTINCT nn FROM stat") == rows(db, "SELECT name FROM nn") == [(lemur_name(other, "tiny"),)]
    assert rows(db, "SELECT COUNT(*) FROM prm WHERE uid NOT IN (SELECT prm FROM stat)") == [(0,)]


@table(__file__, "register.md", "Databases of another schema are refused", globals())
def test_databases_of_another_schema_are_refused(db: Path, folder: Path, statements: str, reason: str) -> None:
    if not statements.startswith("CREATE"):
        register([], db=db)
    before = change(db, statements)
    with pytest.raises(UserError) as raised:
        register([folder], db=db)
    assert reason in str(raised.value)
    assert str(raised.value).startswith(f"{db}: ")
    assert dump(db) == before


ADVICE = "pass the checkout of LEMUR that made it (--checkout; none for digests), or register in a new file"
#: Plays LEMUR's own file: networks that differ in comments and in the names of variables have one certificate.
ARCH_UID = """import ast, hashlib


def arch_uid(code):
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = "_"
    return hashlib.blake2b(ast.dump(tree).encode(), digest_size=16).hexdigest()
"""


def certificate(code: str) -> str:
    made: dict[str, Any] = {}
    exec(ARCH_UID, made)
    return str(made["arch_uid"](code))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    file = tmp_path / "checkout/ab/nn/util/ArchUID.py"
    file.parent.mkdir(parents=True)
    file.write_text(ARCH_UID)
    return tmp_path / "checkout"


@table(__file__, "register.md", "Databases with other ids are refused", globals())
def test_databases_with_other_ids_are_refused(
    db: Path, folder: Path, checkout: Path, statement: str, certified: bool, reason: str
) -> None:
    """As LEMUR's head makes them: a certificate in place of a digest of the text."""
    register([folder], db=db)
    before = change(db, statement)
    with pytest.raises(UserError) as raised:
        register([folder], db=db, checkout=checkout if certified else None)
    assert str(raised.value) == f"{db}: {reason}"
    assert dump(db) == before


def test_with_a_checkout_networks_have_certificates(
    db: Path, folder: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"tiny-{certificate(TINY)}"
    assert register([folder], db=db, checkout=checkout) == RegistrationCounts(3, 0, ())
    assert rows(db, "SELECT name, code, id FROM nn") == [(name, TINY, certificate(TINY))]
    columns = "id, transform, prm, task, dataset, metric, nn, epoch, duration, accuracy"
    for key, *values in rows(db, f"SELECT {columns} FROM stat"):
        assert (key, values[5]) == (lemur_digest(values), name)
    assert "certificate of" not in capsys.readouterr().err

    # What LEMUR's head takes for the same network: in other words, under another name; and code of no certificate.
    spelled = TINY.replace("inputs", "sample") + "# the same\n"
    assert certificate(spelled) == certificate(TINY)
    change(db, "INSERT INTO nn (rowid, name, code, id) SELECT 0, 'first', code || '#', id FROM nn")
    change(db, f"INSERT INTO nn VALUES ('broken', 'def', '{lemur_digest('def')}')")
    twins = [
        write_run(folder.with_name("spelled"), spelled, seed=8),
        write_run(folder.with_name("named"), TINY, name="other", seed=9),
    ]
    new = TINY.replace("16, 32, 64", "8, 16, 32")
    done = register([*twins, write_run(folder.with_name("new"), new)], db=db, checkout=checkout)
    to = zip(twins, (name, "first"), strict=True)
    lines = tuple(f"{run}: has the certificate of {stored}: its trials are added to {stored}" for run, stored in to)
    assert done == RegistrationCounts(9, 0, (), lines)
    assert [line for line in capsys.readouterr().err.splitlines() if "certificate of" in line] == list(lines)
    assert rows(db, "SELECT name, code FROM nn ORDER BY rowid") == [
        ("first", TINY + "#"), (name, TINY), ("broken", "def"), (f"tiny-{certificate(new)}", new)
    ]  # fmt: skip
    counts = {name: 6, "first": 3, f"tiny-{certificate(new)}": 3}
    assert dict(rows(db, "SELECT nn, COUNT(*) FROM stat GROUP BY nn")) == counts
    before = dump(db)
    register_([twins[0]], db, checkout, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"added": 0, "present": 3, "failed": [], "attached": [lines[0]]}
    assert dump(db) == before


def test_a_network_without_a_certificate_is_refused(db: Path, folder: Path, checkout: Path) -> None:
    file = checkout / "ab/nn/util/ArchUID.py"
    for text in ("def arch_uid(code): raise SystemExit", "def arch_uid(code): return '../name'"):
        file.write_text(text)
        (line,) = register([folder], db=db, checkout=checkout).failed
        assert line == f"{folder}/net.py: ab/nn/util/ArchUID.py of the checkout fails on it, so it has no certificate"
        assert rows(db, "SELECT * FROM nn") == []
    file.unlink()
    with pytest.raises(
        UserError, match=r"ArchUID\.py: cannot be read: No such file .*; pass a checkout of LEMUR's head"
    ):
        register([folder], db=db, checkout=checkout)


def test_what_is_no_database_is_refused(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at as one " * 40)
    for name, said in (
        ("", "is a folder; pass the file of a LEMUR database"),
        ("none/ab.nn.db", r"there is no folder .*/none; pass"),
        ("text.db", r"text\.db: file is not a database; pass a LEMUR database"),
    ):
        with pytest.raises(UserError, match=said):
            register([folder], db=tmp_path / name)
    monkeypatch.setattr("train.runs.register._WAIT_SECONDS", 0.1)
    db = tmp_path / "locked.db"
    register([], db=db)
    with closing(sqlite3.connect(db, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="database is locked; pass a LEMUR database that is writable and not"):
            register([folder], db=db)


#: A whole file of release 2.1.0: img-classification_cifar-10_acc_rl-init-fc39cd17045c03d9657ff97dcd16ed79/1.json.
REAL = (
    '[\n    {\n        "accuracy": 0.6261,\n        "batch": 64,\n        "dropout": 0.2,\n        "duration": 3114262480,\n'
    '        "epoch": 1,\n        "lr": 0.01,\n        "momentum": 0.9,\n        "transform": "echo",\n'
    '        "uid": "fa5c873e06b6e25aa86d1b6f48125994"\n    }\n]'
)


def test_names_and_contents(tmp_path: Path) -> None:
    found = write_lemur_files(tmp_path)
    assert found == [f"ab/nn/nn/{NAME}.py", *(f"{STATS}/{epoch}.json" for epoch in (1, 2, 3))]
    assert (tmp_path / found[0]).read_text() == TINY
    first, last = (trial_of(tmp_path, epoch) for epoch in (1, 3))
    hyperparameters = {"batch": 64, "dropout": 0.1, "lr": 0.05, "momentum": 0.9, "seed": 7, "transform": "norm_flip"}
    hyperparameters |= {"data": "cifar-10 (JPEG copy, harder)", "recipe": made_up_record().recipe_sha256}
    on_held_out = dict(sorted({**hyperparameters, "accuracy_on": "held-out training images"}.items()))
    on_test = dict(sorted({**hyperparameters, "accuracy_on": "test images"}.items()))
    assert first == {**on_held_out, "accuracy": 0.25, "duration": 10_250_000_000, "uid": lemur_digest(on_held_out)}
    assert last == {**on_test, "accuracy": 0.5512, "duration": 30_750_000_000, "uid": lemur_digest(on_test)}
    text = (tmp_path / STATS / "3.json").read_text(encoding="utf-8")
    (ours,), (real,) = json.loads(text), json.loads(REAL)
    assert set(real) - set(ours) == {"epoch"}  # in 6 % of the real trials only
    assert set(ours) - set(real) == {"accuracy_on", "data", "recipe", "seed"}
    assert all(type(ours[key]) is type(real[key]) for key in ours if key in real)
    assert list(ours) == sorted(ours)
    assert list(real) == sorted(real)
    assert json.dumps(json.loads(text), indent=4) == text
    assert json.dumps(json.loads(REAL), indent=4) == REAL
    assert len(ours["uid"]) == len(real["uid"])
    said = '{"lr": 0.5, "momentum": 0.1, "batch": 7, "transform": "mirror", "dropout": 0.3}'
    write_lemur_files(tmp_path, prm=said)
    used = {"lr": 0.05, "momentum": 0.9, "batch": 64, "transform": "norm_flip", "dropout": 0.3}
    assert trial_of(tmp_path, 1).items() >= used.items()


def test_only_epochs_with_an_accuracy_are_written(tmp_path: Path) -> None:
    none = history(None, None, None)
    found = write_lemur_files(tmp_path, epochs=none, val_accuracy=None)
    assert [Path(name).name for name in found] == [f"{NAME}.py", "3.json"]
    untested = made_up_record(test_accuracy=None)
    assert why_refused(untested, TINY, none) == "the run has no accuracy, on held-out or test images"
    write_lemur_files(tmp_path / "held-out", test_accuracy=None)
    trial = trial_of(tmp_path / "held-out", 3)
    assert (trial["accuracy"], trial["accuracy_on"]) == (0.5625, "held-out training images")
