"""Folders that older releases wrote: they open, their digests are verified, and what is no longer read is named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curate import CurateOptions, Snapshot, curate
from lemur.folders import verify_folder
from lemur_core.files.atomic import sha256_file

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory, network: Callable[..., str], warm: Callable[..., Any]) -> Path:
    folder = tmp_path_factory.mktemp("older")
    codes = [network([number, 1, 4]) for number in range(4)]
    warm(codes)
    rows = [json.dumps({"nn": f"a-{number}", "nn_code": code}) for number, code in enumerate(codes)]
    (folder / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    curate(folder / "rows.jsonl", out=folder / "snapshot", options=CurateOptions(graph="off"), jobs=1)
    return folder / "snapshot"


def verify_changed(folder: Path, change: Change) -> dict[str, str]:
    """Return the checks of a folder whose manifest says something else; all of them pass."""
    path = folder / "manifest.json"
    before = path.read_text(encoding="utf-8")
    manifest = json.loads(before)
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    try:
        checks = verify_folder(folder, jobs=1)
        if manifest["kind"] == "snapshot":
            assert {row.nn for row in Snapshot(folder).kept} <= {f"a-{number}" for number in range(4)}
    finally:
        path.write_text(before, encoding="utf-8")
    assert [check for check in checks if not check.ok] == []
    return {check.name: check.detail for check in checks}


def test_nothing_is_said_of_a_folder_of_this_release(snapshot: Path) -> None:
    assert "older release" not in verify_changed(snapshot, lambda manifest: None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda manifest: manifest["parameters"].update(profile="nn-dup"), "profile nn-dup"),
        (lambda manifest: manifest["parameters"].update(per_group=3), "--per-group"),
        (lambda manifest: manifest["parameters"].update(against=["0" * 64]), "a delta"),
    ],
)
def test_rules_that_are_gone_leave_the_digests(snapshot: Path, change: Change, what: str) -> None:
    checks = verify_changed(snapshot, change)
    assert list(checks) == ["digests", "older release"]
    assert checks["older release"] == f"no longer read: {what}"


def test_files_that_are_gone_leave_the_checks_of_the_others(snapshot: Path) -> None:
    path = snapshot / "data" / "prediction" / "train-00000-of-00001.parquet"
    path.parent.mkdir()
    path.write_bytes(b"old")
    try:
        checks = verify_changed(snapshot, lambda manifest: manifest["outputs"].append(describe(snapshot, path)))
    finally:
        path.unlink()
        path.parent.rmdir()
    assert {"networks", "counts"} <= checks.keys()
    assert checks["older release"] == "no longer read: results to predict from"


def describe(folder: Path, path: Path) -> dict[str, Any]:
    name, size = path.relative_to(folder).as_posix(), path.stat().st_size
    return {"path": name, "sha256": sha256_file(path), "bytes": size, "rows": None}


def test_filters_that_are_gone_leave_all_checks(snapshot: Path) -> None:
    checks = verify_changed(snapshot, lambda manifest: manifest["parameters"].update(max_parameters=9, min_score=0.1))
    assert any(name.startswith("guarantee 1") for name in checks)
    assert checks["older release"] == "no longer read: --max-parameters, --min-score"


def test_conversations_of_kinds_that_are_gone_are_not_checked(snapshot: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["parameters"]["chat"] = True
        counts = {"rows": 2, "tokens": 9, "kinds": {"design": 1, "explain": 1}, "dropped": 0}
        manifest["counts"]["chat"] = counts

    checks = verify_changed(snapshot, change)
    assert not [name for name in checks if "chat" in name.lower()]
    assert checks["older release"] == "no longer read: conversations of other kinds"


def test_a_kind_that_is_gone(snapshot: Path) -> None:
    checks = verify_changed(snapshot, lambda manifest: manifest.update(kind="sensitivity"))
    assert checks["older release"] == "no longer read: counts over a grid of thresholds"
