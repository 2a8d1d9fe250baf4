"""`lemur publish`, killed at six points and run again: the same repository, and nothing left behind."""

import re
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.builders import hub_server
from tests.builders.kills import PROBE, list_unfinished, run_counted

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]

POINTS, REPO = 6, "owner/data"
_HASH = re.compile(r"[0-9a-f]{32,}")


def list_files(folder: Path) -> list[str]:
    """List the files below a folder; those named by an address are named alike."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".measured")
    files = (path for path in files if not PROBE.fullmatch(path.name))
    return sorted(_HASH.sub("HASH", path.relative_to(folder).as_posix()) for path in files)


def publish(sample: Path, home: Path, server: hub_server.HubServer, kill_at: int, rules: Path) -> tuple[int, int]:
    """Publish the sample from a home of its own; kill the command at a change of the file system, 0 for never."""
    for name in ("tmp", "cache"):
        (home / name).mkdir(parents=True, exist_ok=True)
    shutil.copytree(rules, home / "cache" / "secrets", dirs_exist_ok=True)  # behind a link, they are compiled again
    environment = {
        "HF_ENDPOINT": server.endpoint,
        "HF_TOKEN": hub_server.WRITER,
        "HF_HUB_DISABLE_XET": "1",
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        "HF_HUB_CACHE": str(home / "hf" / "hub"),
        "TMPDIR": str(home / "tmp"),
        "LEMUR_CURATOR_CACHE": str(home / "cache"),
    }
    command = ["publish", sample, "--repo-id", REPO, "--yes", "--tag", "v1"]
    return run_counted(command, sample.parent, kill_at, environment)


def test_publish(sample: Path, tmp_path: Path, secret_rules: Path, read: Callable[[Path], dict[str, bytes]]) -> None:
    before = read(sample)
    with hub_server.HubServer().serve() as server:
        status, changes = publish(sample, tmp_path / "whole", server, 0, secret_rules)
        assert status == 0
        expected, tags = server.repos[REPO].files(), set(server.repos[REPO].tags)
    whole = {name: list_files(tmp_path / "whole" / name) for name in ("tmp", "cache")}

    def kill(point: int) -> bool:
        home = tmp_path / f"at-{point}"
        with hub_server.HubServer().serve() as server:
            was_killed = (
                publish(sample, home, server, 1 + changes * point // POINTS, secret_rules)[0] == -signal.SIGKILL
            )
            assert publish(sample, home, server, 0, secret_rules)[0] == 0
            assert server.repos[REPO].files() == expected
            assert set(server.repos[REPO].tags) == tags
        assert {name: list_files(home / name) for name in whole} == whole
        assert list_unfinished(home) == []
        return was_killed

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(kill, range(POINTS))) == POINTS
    assert read(sample) == before
    assert sorted(path.name for path in sample.parent.iterdir() if path.name.startswith("." + sample.name)) == []
