"""`lemur doctor`, `lemur cache` and --quiet: what is here, what is kept, and silence."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lemur.cli import app
from lemur.doctor import examine
from lemur_core.files.cache import list_rooms, prune
from lemur_core.files.errors import UserError

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of two rooms; what is in one is a day old."""
    import os
    import time

    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))
    for name, age in (("features/v1/new", 0), ("features/old", 86_400), ("index/facts", 0)):
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (time.time() - age, time.time() - age))
    return tmp_path / "cache"


def test_doctor_finds_what_runs_these_tests() -> None:
    found = {one.what: one for one in examine()}
    assert found["python"].state == found["torch"].state == found["sandbox"].state == "ok"
    assert all(one.state != "FAIL" for one in found.values())
    assert all("\n" not in one.detail for one in found.values())


def test_doctor_says_what_is_broken_and_ends_with_1(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UserError("no walls here; pass --unsafe-no-sandbox")

    monkeypatch.setattr("lemur_core.sandbox.Sandbox.__enter__", lambda _self: refuse())
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "FAIL  sandbox: no walls here" in done.output


def test_doctor_as_json(kept: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(done.stdout)
    assert {"what", "state", "detail"} == found[0].keys()
    assert {one["state"] for one in found} <= {"ok", "note"}


def test_rooms_are_told_by_size(kept: Path) -> None:
    assert [(room.name, room.size, room.files) for room in list_rooms()] == [("features", 2000, 2), ("index", 1000, 1)]
    told = json.loads(CliRunner().invoke(app, ["cache", "--json"]).stdout)
    assert [room["name"] for room in told["rooms"]] == ["features", "index"]


def test_one_room_is_pruned(kept: Path) -> None:
    assert CliRunner().invoke(app, ["cache", "features", "--prune"]).exit_code == 0
    assert [room.name for room in list_rooms()] == ["index"]


def test_what_is_old_is_pruned(kept: Path) -> None:
    assert prune(list_rooms(["features"]), older_than=3600) == 1000
    assert (kept / "features" / "v1" / "new").exists()
    assert not (kept / "features" / "old").exists()


@pytest.mark.parametrize("wrong", [["nothing"], ["--older-than", "3"]])
def test_wrong_use_of_the_cache_is_2(lemur_here: Command, kept: Path, wrong: list[str]) -> None:
    done = lemur_here("cache", *wrong, cwd=kept)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert (kept / "features" / "old").exists()


def test_quiet_tells_nothing_of_progress(lemur_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMUR_QUIET", "")
    networks = tmp_path / "networks"
    networks.mkdir()
    (networks / "a.py").write_text("import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n")
    loud = lemur_here("curate", networks, "--graph", "off", "--out", "one", cwd=tmp_path)
    still = lemur_here("--quiet", "curate", networks, "--graph", "off", "--out", "two", cwd=tmp_path)
    assert loud.returncode == still.returncode == 0
    assert loud.stderr
    assert not still.stderr
    failed = lemur_here("-q", "verify", "none", cwd=tmp_path)
    assert failed.stderr.startswith("lemur: ")
    assert os.environ["LEMUR_QUIET"] == ""
