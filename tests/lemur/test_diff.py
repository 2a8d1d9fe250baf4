"""`lemur diff`: what is new, gone, renamed or changed between two corpora or snapshots, and which results moved."""

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_source
from lemur import diff
from lemur_core.files.errors import UserError
from tests.builders import synthesis


def net(use: str = "pass") -> str:
    return synthesis.network(use=use)


def corpus(path: Path, *rows: tuple[str, str, float]) -> str:
    """Networks with an accuracy after one epoch on CIFAR-10."""
    prm = {"lr": 0.1, "momentum": 0.9} if path.stem == "before" else '{"momentum": 0.9, "lr": 0.1}'
    measured = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "duration": 10**9}
    facts = {**measured, "prm": prm}
    lines = [json.dumps({"nn": nn, "nn_code": code, **facts, "accuracy": accuracy}) for nn, code, accuracy in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def both(tmp_path: Path) -> tuple[str, str]:
    before = [("a-stays", net(), 0.5), ("a-old", "x = 1", 0.3), ("a-edited", "x = 2", 0.3), ("b-left", "x = 3", 0.3)]
    after = [
        ("a-stays", net(), 0.75),
        ("a-stays", net(), 0.5),
        ("b-new", "x = 1", 0.3),
        ("b-again", net(), 0.2),
        ("a-edited", "x = 22", 0.3),
        ("c-own", "x = 4", 0.1),
    ]
    return corpus(tmp_path / "before.jsonl", *before), corpus(tmp_path / "after.jsonl", *after)


def test_each_kind_of_change(both: tuple[str, str], tmp_path: Path) -> None:
    difference = diff(*both)
    assert [tuple(change) for change in difference.changes] == [
        ("new", "c-own", *[None] * 6),
        ("copied", "b-again", "a-stays", *[None] * 5),
        ("renamed", "b-new", "a-old", *[None] * 5),
        ("changed", "a-edited", *[None] * 6),
        ("gone", "b-left", *[None] * 6),
        ("runs", "a-stays", *[None] * 4, 0, 1),
        ("best", "a-stays", None, "img-classification", "cifar-10", "acc", 0.5, 0.75),
    ]
    assert difference.totals == {"networks": (4, 5), "distinct codes": (4, 4), "results": (4, 6)}
    assert difference.prefixes["a"] == {"before": 3, "after": 2, "changed": 1, "runs": 1, "best": 1}
    assert difference.prefixes["b"] == {"before": 1, "after": 2, "renamed": 1, "copied": 1, "gone": 1}
    back = diff(*reversed(both))
    assert back.counts() == {**difference.counts(), "copied": 0, "gone": 2, "new": 1}
    assert not diff(both[0], both[0]).changes
    with pytest.raises(UserError, match="no such file or folder"):
        diff(tmp_path / "missing.jsonl", tmp_path / "missing.jsonl")


def test_every_name_has_a_change(tmp_path: Path) -> None:
    """Of two names of one code, each is renamed, or gone."""
    before = corpus(tmp_path / "before.jsonl", *[(name, "x = 1", 0.5) for name in ("a-1", "a-2")])
    for names, expected in {
        ("b-1", "b-2"): [("renamed", "b-1", "a-1"), ("renamed", "b-2", "a-2")],
        ("b-1",): [("renamed", "b-1", "a-1"), ("gone", "a-2", None)],
        ("a-1",): [("gone", "a-2", None)],
    }.items():
        after = corpus(tmp_path / "after.jsonl", *[(name, "x = 1", 0.5) for name in names])
        assert [change[:3] for change in diff(before, after).changes] == expected


def test_the_command_prints_a_release_note_and_writes_a_table(
    both: tuple[str, str], tmp_path: Path, lemur_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run = lemur_here("diff", *both, "--table", "changes.csv", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == diff(*both).to_markdown()
    assert "- `b-new`, before `a-old`\n" in run.stdout
    assert "- `a-stays` (img-classification, cifar-10, acc): 0.5000 → 0.7500\n" in run.stdout
    rows = list(csv.DictReader((tmp_path / "changes.csv").open()))
    assert [row["nn"] for row in rows if row["change"] == "gone"] == ["b-left"]
    again = lemur_here("diff", *both, "--table", "changes.csv", cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    printed: dict[str, Any] = json.loads(lemur_here("diff", *both, "--json", cwd=tmp_path).stdout)
    assert printed["counts"]["renamed"] == 1
    assert len(printed["changes"]) == len(rows)


def test_snapshots_compare_all_their_networks_and_what_they_compute(tmp_path: Path) -> None:
    twice = net("unused = x * 2")
    near = net("x = x.sin()")
    folders = []
    for name, rows in {"old": [("a-1", net(), 0.5)], "new": [("b-2", twice, 0.5), ("b-3", near, 0.4)]}.items():
        source = open_source(corpus(tmp_path / f"{name}.jsonl", *rows))
        curate(source, tmp_path / name, CurateOptions(graph="all"), jobs=1)
        folders.append(tmp_path / name)
    difference = diff(*folders)
    assert difference.totals["networks"] == (1, 2)  # whether it was kept or not
    (change,) = [one for one in difference.changes if one.nn == "b-2"]
    assert (change.change, change.other) == ("recomputed", "a-1")
