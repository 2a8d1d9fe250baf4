"""`lemur curate --predict`: every result of a code with a split, in its split, as `datasets` reads it."""

import itertools
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate import CurateOptions, Snapshot, curate
from tests.builders.commands import run_lemur

_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "@", "and", "or", "if x else")


def _rows() -> list[dict[str, Any]]:
    """Return 120 codes of 40 kinds, each with results after two epochs, one without an accuracy, one invalid."""
    rows = []
    for kind, number in itertools.product(range(40), range(3)):
        draw = random.Random(kind)  # codes of one kind differ in numbers only
        lines = (" ".join(f"x{step} {draw.choice(_OPERATORS)}" for _ in range(4)) + f" {number}" for step in range(40))
        layers = "".join(
            f"layer{step} = nn.Linear({draw.randrange(999)}, {draw.randrange(999)})\n" for step in range(9)
        )
        code = f"from torch import nn\n\n{layers}\n\ndef f(x):\n" + "".join(f"    y = {line}\n" for line in lines)
        rows += [
            {
                "nn": f"k{kind}-{number}", "nn_code": code, "task": "img-classification", "dataset": "cifar-10", "metric": "acc",
                "epoch": epoch, "accuracy": 0.3 + 0.01 * kind + 0.01 * epoch, "duration": 1.0, "prm": json.dumps({"lr": 0.1}),
            }
            for epoch in (1, 2)
        ]  # fmt: skip
    rows[5]["accuracy"] = None
    return [*rows, {**rows[0], "nn": "bad", "nn_code": "def ("}]


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("prediction")
    source = _write(base / "rows.jsonl", _rows())
    curate(source, out=base / "snapshot", options=CurateOptions(graph="off", predict=True), jobs=1)
    return base / "snapshot"


def _read(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("data/prediction/*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_all_results_of_codes_with_a_split_are_there(snapshot: Path) -> None:
    networks = {row["id"]: row for row in pq.read_table(snapshot / "networks.parquet").to_pylist()}
    results = _read(snapshot)
    assert len(results) == 239  # of 240 with a code, one has no accuracy
    assert {row["id"] for row in results} == set(networks)
    for row in results:
        assert (row["split"], row["split_group"]) == (networks[row["id"]]["split"], networks[row["id"]]["split_group"])
        assert row["accuracy"] == pytest.approx(0.3 + 0.01 * int(row["nn"][1:].split("-")[0]) + 0.01 * row["epoch"])
    splits = {
        path.name.partition("-")[0]: pq.read_table(path)["split"].unique().to_pylist()
        for path in snapshot.glob("data/prediction/*.parquet")
    }
    assert all(values in ([], [name]) for name, values in splits.items())


def test_datasets_reads_it_and_verify_agrees(snapshot: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    loaded = load_dataset(str(snapshot), "prediction", cache_dir=str(tmp_path))
    assert sum(map(len, loaded.values())) == 239
    assert loaded["train"].column_names[:3] == ["id", "nn", "task"]
    checks = Snapshot(snapshot).verify(jobs=1)
    assert all(check.ok for check in checks), checks
    damaged = next(snapshot.glob("data/prediction/train-*.parquet"))
    copy = shutil.copytree(snapshot, tmp_path / "copy") / damaged.relative_to(snapshot)
    pq.write_table(pq.read_table(damaged).drop_columns("split_group"), copy)
    wrong = [check for check in Snapshot(tmp_path / "copy").verify(jobs=1) if not check.ok]
    assert any("split_group" in check.detail for check in wrong), wrong


def test_the_card_states_baselines(snapshot: Path) -> None:
    card = (snapshot / "README.md").read_text(encoding="utf-8")
    assert "## Prediction of accuracies" in card
    baselines = [line for line in card.splitlines() if "structure, ridge" in line or "| mean |" in line]
    assert baselines
    (ridge,) = (line for line in baselines if "epoch 2" in line and "ridge" in line)
    (mean,) = (line for line in baselines if "epoch 2" in line and "mean |" in line)
    assert float(ridge.split("|")[-2]) > 0
    assert int(ridge.split("|")[2]) + int(ridge.split("|")[3]) <= 120
    assert mean.split("|")[5].strip() == "–"


def test_the_card_says_what_each_split_is_made_of(tmp_path: Path) -> None:
    rows = [
        {**row, "nn": f"{'few' if row['nn'][1:3] in ('3-', '7-', '8-', '9-') else 'many'}-{row['nn']}"}
        for row in _rows()[:-1]
    ]
    source = _write(tmp_path / "rows.jsonl", rows)
    curate(source, out=tmp_path / "out", options=CurateOptions(graph="off", predict=True), jobs=1)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    results = _read(tmp_path / "out")
    for split in ("train", "validation", "test"):
        own = [row for row in results if row["split"] == split]
        codes = {row["id"]: row for row in own}
        groups = Counter(row["split_group"] for row in codes.values())
        prefixes = Counter(row["prefix"] for row in codes.values()).most_common()
        shown = ", ".join(f"{name} {number}" for name, number in prefixes)
        assert f"| {split} | {len(own)} | {len(codes)} | {len(groups)} | {max(groups.values())} | {shown} |" in card
        mostly = f"Of the {len(codes)} codes of `{split}`, {prefixes[0][1]} are {prefixes[0][0]}: "
        assert (mostly in card) == (len(prefixes) > 1)
    assert "codes of `train`, " in card


def test_the_order_of_rows_changes_nothing(snapshot: Path, tmp_path: Path) -> None:
    rows = _rows()
    random.Random(1).shuffle(rows)
    source = _write(tmp_path / "rows.jsonl", rows)
    curate(source, out=tmp_path / "out", options=CurateOptions(graph="off", predict=True), jobs=1)
    for path in snapshot.glob("data/prediction/*.parquet"):
        assert (tmp_path / "out" / path.relative_to(snapshot)).read_bytes() == path.read_bytes()
    sections = [
        (folder / "README.md").read_text(encoding="utf-8").partition("## Prediction")[2]
        for folder in (snapshot, tmp_path / "out")
    ]
    assert sections[0] == sections[1]


def test_without_the_option_nothing_of_it_is_there(tmp_path: Path) -> None:
    source = _write(tmp_path / "rows.jsonl", _rows()[:20])
    done = run_lemur("curate", source, "--out", tmp_path / "out", "--graph", "off", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / "data" / "prediction").exists()
    assert "Prediction" not in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
