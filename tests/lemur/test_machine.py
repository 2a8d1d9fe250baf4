"""`lemur doctor`, `lemur cache` and --quiet: what is here, what is kept, and silence."""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lemur.cli import app
from lemur.doctor import examine
from lemur.rooms import bound_cache, find_rooms, prune, read_ceiling
from lemur_core.files.cache import cache_folder, find_marker
from lemur_core.files.errors import UserError

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of two rooms; what is in one is a day old."""
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))
    mark(tmp_path / "cache", "features", "index")
    for name, age in (("features/v1/new", 0), ("features/old", 1), ("index/facts", 0)):
        write(tmp_path / "cache" / name, 1000, age)
    return tmp_path / "cache"


def write(path: Path, size: int, days: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - days * 86_400,) * 2)


def mark(root: Path, *rooms: str) -> None:
    """Mark rooms as ours, as each process does that uses them."""
    (root / ".lemur").mkdir(parents=True)
    for room in rooms:
        find_marker(root / room).touch()


def test_doctor_finds_what_runs_these_tests(kept: Path) -> None:
    found = {one.what: one for one in examine()}
    assert found["python"].state == found["torch"].state == found["sandbox"].state == "ok"
    assert all(one.state != "FAIL" for one in found.values())
    assert all("\n" not in one.detail for one in found.values())
    stated = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert {"what", "state", "detail"} == stated[0].keys()
    assert {one["state"] for one in stated} <= {"ok", "note"}


def test_doctor_says_what_is_broken_and_ends_with_1(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UserError("no walls here; pass --unsafe-no-sandbox")

    monkeypatch.setattr("lemur_core.sandbox.Sandbox.__enter__", lambda _self: refuse())
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "FAIL  sandbox: no walls here" in done.output


def test_rooms_are_told_and_pruned(kept: Path) -> None:
    for twin in ("features/twin", "index/twin"):
        os.link(kept / "features/old", kept / twin)  # counts once
    told = json.loads(CliRunner().invoke(app, ["cache", "--json"]).stdout)
    assert told["rooms"] == [
        {"name": "features", "size": 2000, "files": 2},
        {"name": "index", "size": 1000, "files": 1},
    ]
    assert bound_cache(2000, always=True) == 1000, "freed with its last link"
    assert prune(find_rooms(["features"])) == (1000, [])
    assert [room.name for room in find_rooms()] == ["index"]


def test_folders_of_others_are_no_rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache may be in a folder that other programs use, too, with folders that are called as ours are."""
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path))
    for mine in ("thesis/chapter", "pages/mine"):
        write(tmp_path / mine, 1000, 30)
    write(cache_folder("search") / "index.npz", 1000, 30)
    assert [room.name for room in find_rooms()] == ["search"]
    assert CliRunner().invoke(app, ["cache", "--prune"]).exit_code == 0
    assert not (tmp_path / "search").exists()
    assert bound_cache(0, always=True) == 0
    assert CliRunner().invoke(app, ["cache", "thesis", "--prune"]).exit_code != 0
    assert CliRunner().invoke(app, ["cache", "pages", "--prune"]).exit_code != 0
    assert (tmp_path / "thesis" / "chapter").exists()
    assert (tmp_path / "pages" / "mine").exists()


def test_the_oldest_entries_go_until_the_cache_is_small_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(root))
    mark(root, "sources", "index", "sandbox")
    for name, days in {  # of 1,000 bytes each
        "sources/v3/trees/aa/files/one.py": 9,
        "sources/v3/trees/aa/listing.json": 9,
        "sources/v3/trees/bb/files/one.py": 9,
        "sources/v3/trees/bb/listing.json": 1,  # read yesterday
        "index/v1/11.sqlite": 8,
        "index/v1/11.sqlite-wal": 8,
        "sandbox/outcomes.sqlite": 9,
        "sandbox/outcomes.sqlite-wal": 0,
    }.items():
        write(root / name, 1000, days)

    def list_files() -> set[str]:
        files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
        return {name for name in files if not name.startswith(".")}

    assert bound_cache(8000, always=True) == 0
    assert len(list_files()) == 8
    assert bound_cache(7500, always=True) == 2000  # a whole entry
    assert not (root / "sources" / "v3" / "trees" / "aa").exists()
    assert bound_cache(100) == 0, "measured a moment ago"
    assert bound_cache(5999, always=True) == 2000
    assert {name.partition("/")[0] for name in list_files()} == {"sources", "sandbox"}
    assert len(list_files()) == 4
    assert bound_cache(0, always=True) == 4000
    assert list_files() == set()
    assert not list(root.rglob("*.part"))


_USES = """
import sys
from lemur_core.files.cache import cache_folder
cache_folder("search")
print("ready", flush=True)
sys.stdin.read()
"""


def test_all_threads_wait_for_a_room_of_which_entries_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(root))
    write(root / "pages" / "one", 1000, 1)
    marker = find_marker(root / "pages")
    marker.parent.mkdir()
    with ThreadPoolExecutor(4) as pool, marker.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # another process removes entries
        asked = [pool.submit(cache_folder, "pages") for _ in range(4)]
        assert not wait(asked, timeout=0.3).done
        fcntl.flock(other, fcntl.LOCK_UN)
        assert {one.result(timeout=10) for one in asked} == {root / "pages"}


def test_what_a_running_command_uses_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(root))
    mark(root, "search", "pages")
    write(root / "search" / "used", 1000, 9)
    write(root / "pages" / "free", 1000, 1)
    command = [sys.executable, "-P", "-c", _USES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert bound_cache(0, always=True) == 1000
        assert prune(find_rooms()) == (0, ["search"])
        shown = CliRunner().invoke(app, ["cache", "--prune"])
        assert "search: used by another command, so not removed" in shown.output
        assert (root / "search" / "used").exists()
        other.communicate("")
    assert bound_cache(0, always=True) == 1000
    assert not (root / "search" / "used").exists()


def test_a_command_keeps_the_cache_within_the_ceiling(
    lemur_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LEMUR_CURATOR_CACHE_GIB", "0.001")
    mark(tmp_path / "cache", "search")
    write(tmp_path / "cache" / "search" / "large", 2_000_000, 1)
    killed = (
        "import os; from lemur_core.files.atomic import atomic_file; from lemur_core.files.cache import cache_folder\n"
        "with atomic_file(cache_folder('published') / 'seen'): os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-P", "-c", killed], check=False).returncode == -9
    assert list((tmp_path / "cache").rglob("*.part"))
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "a.py").write_text("import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n")
    done = lemur_here("curate", "nets", "--graph", "off", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0
    assert "MiB that were not used for long removed; LEMUR_CURATOR_CACHE_GIB sets the ceiling" in done.stderr
    assert not (tmp_path / "cache" / "search" / "large").exists()
    assert not list((tmp_path / "cache").rglob("*.part")), "what a killed command left is removed, too"
    assert "(ceiling 0.001 GiB)" in lemur_here("cache", cwd=tmp_path).stdout
    monkeypatch.setenv("LEMUR_CURATOR_CACHE_GIB", "0")
    assert read_ceiling() is None
    for wrong in ("much", "-1", "nan", "inf"):
        monkeypatch.setenv("LEMUR_CURATOR_CACHE_GIB", wrong)
        done = lemur_here("cache", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("lemur: LEMUR_CURATOR_CACHE_GIB: ")


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
