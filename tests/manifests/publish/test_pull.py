"""A pulled folder is the published one, byte for byte, or nothing; what was fetched is not fetched again."""

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from lemur.folders import verify_folder
from lemur_core.files.errors import RetryableError, UserError
from manifests.publish import Hub, pull
from manifests.publish import publish as publish_checked

publish = partial(publish_checked, verify=verify_folder)

REPO = "owner/data"
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of the client, about itself


@pytest.fixture
def repo(server: Any, hub: Hub, sample: Path, finished: Callable[..., Path]) -> Any:
    """A repository that holds the sample, with one larger file in it."""
    (sample / "data" / "large.bin").write_bytes(bytes(range(256)) * 4_000)
    publish(finished(sample), REPO, hub=hub, tag="v1")
    server.requests.clear()
    return server.repos[REPO]


@pytest.mark.parametrize("step", ["info", "tree", "resolve", "download"])
@pytest.mark.parametrize("what", [500, 503, 429, "drop"])
def test_one_fault_is_overcome(
    server: Any, hub: Hub, repo: Any, sample: Path, tmp_path: Path, read: Callable[..., Any], step: str, what: int | str
) -> None:
    server.faults = [server.Fault(step, what, nth=1)]
    pull(REPO, tmp_path / "out", hub=hub)
    assert read(tmp_path / "out") == read(sample)


def test_a_broken_download_goes_on_where_it_stopped(
    server: Any,
    hub: Hub,
    repo: Any,
    sample: Path,
    tmp_path: Path,
    read: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)  # the client keeps whole pieces only
    server.faults = [server.Fault("download", "drop", file="data/large.bin")]
    pull(REPO, tmp_path / "out", hub=hub)
    assert read(tmp_path / "out") == read(sample)
    assert server.ranges, "the rest was asked for, not the whole"


@pytest.mark.parametrize("step", ["info", "tree", "download"])
@pytest.mark.parametrize("what", [503, "drop"])
def test_a_lasting_fault_leaves_nothing_and_a_rerun_resumes(
    server: Any, hub: Hub, repo: Any, sample: Path, tmp_path: Path, read: Callable[..., Any], step: str, what: int | str
) -> None:
    before = set(os.listdir(tmp_path))
    server.faults = [server.Fault(step, what, nth=4 if step == "download" else 1, times=10_000)]
    with pytest.raises(RetryableError, match="run the same command again: what was fetched is kept"):
        pull(REPO, tmp_path / "out", hub=hub)
    assert set(os.listdir(tmp_path)) - before <= {"hub-cache"}
    server.faults = []
    server.requests.clear()
    pull(REPO, tmp_path / "out", hub=hub)
    assert read(tmp_path / "out") == read(sample)
    assert server.requests["download"] <= (5 if step == "download" else 8)


def test_a_silent_server_is_not_waited_for(
    server: Any, hub: Hub, repo: Any, sample: Path, tmp_path: Path, read: Callable[..., Any]
) -> None:
    server.faults = [server.Fault("tree", "hang"), server.Fault("info", "hang")]
    started = time.monotonic()
    pull(REPO, tmp_path / "out", hub=hub)
    assert time.monotonic() - started < 15, "the server is silent for 30 s"
    assert read(tmp_path / "out") == read(sample)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"report.md": None}, "report.md is missing"),
        ({"report.md": b"# Rep0rt\n"}, "report.md differs from its digest"),
        ({"more.txt": b"x"}, "more.txt is not in the manifest"),
        ({"manifest.json": None}, "holds no manifest.json at main; only what lemur published can be pulled"),
        ({"manifest.json": b"{}"}, "its manifest.json at main is not one that lemur wrote"),
    ],
)
def test_what_is_not_as_stated(
    hub: Hub,
    repo: Any,
    tmp_path: Path,
    edit: dict[str, bytes | None],
    told: str,
    sample: Path,
    read: Callable[..., Any],
) -> None:
    repo.edit(**edit)
    before = set(os.listdir(tmp_path))
    with pytest.raises(UserError) as caught:
        pull(REPO, tmp_path / "out", hub=hub)
    assert told in str(caught.value)
    assert ".part" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(os.listdir(tmp_path)) - before <= {"hub-cache"}
    pull(REPO, tmp_path / "out", revision="v1", hub=hub)
    assert read(tmp_path / "out") == read(sample)


def test_revisions(hub: Hub, repo: Any, tmp_path: Path) -> None:
    old, new = repo.branches["main"], repo.edit(**{"report.md": b"x"})
    assert pull(REPO, tmp_path / "tag", revision="v1", hub=hub).commit == old
    assert pull(REPO, tmp_path / "commit", revision=old, hub=hub).commit == old
    assert old != new
    with pytest.raises(UserError, match="no such revision; give a branch, a tag or a commit that is there"):
        pull(REPO, tmp_path / "none", revision="v2", hub=hub)
    with pytest.raises(UserError, match="no such repository"):
        pull("owner/none", tmp_path / "none", hub=hub)
    assert not (tmp_path / "none").exists()


def test_an_older_folder_is_replaced_only_by_force(
    server: Any, hub: Hub, repo: Any, sample: Path, tmp_path: Path, read: Callable[..., Any]
) -> None:
    pull(REPO, tmp_path / "out", hub=hub)
    (tmp_path / "out" / "mine").touch()
    server.requests.clear()
    with pytest.raises(UserError, match="exists already; choose another --out, or add --force"):
        pull(REPO, tmp_path / "out", hub=hub)
    assert not server.requests
    pull(REPO, tmp_path / "out", force=True, hub=hub)
    assert read(tmp_path / "out") == read(sample)
    assert server.requests["download"] == 0, "it came from the cache"


def test_editing_a_pulled_file_leaves_the_cache_alone(
    hub: Hub, repo: Any, sample: Path, tmp_path: Path, read: Callable[..., Any]
) -> None:
    pull(REPO, tmp_path / "one", hub=hub)
    (tmp_path / "one" / "report.md").write_text("mine")
    pull(REPO, tmp_path / "two", hub=hub)
    assert read(tmp_path / "two") == read(sample)


@pytest.mark.parametrize("full", ["cache", "out"])
def test_a_full_disk(
    hub: Hub,
    repo: Any,
    sample: Path,
    tmp_path: Path,
    read: Callable[..., Any],
    lemur: Callable[..., subprocess.CompletedProcess[str]],
    full: str,
) -> None:
    """No file may be larger than 100 KiB: writing fails in the middle of one, as it does on a full disk."""
    out = tmp_path / "out"
    if full == "out":
        pull(REPO, tmp_path / "first", hub=hub)
    done = lemur("pull", REPO, "--out", out, limit=100 * 1024)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("lemur: ")
    assert "File too large; free space, or choose another" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith((".out", "out"))]
    pull(REPO, out, hub=hub)
    assert read(out) == read(sample)
