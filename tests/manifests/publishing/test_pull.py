"""A pulled folder is the published one, byte for byte, or nothing."""

import hashlib
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lemur_core.files.errors import RetryableError, UserError
from manifests.publishing.publish import PublishReport, pull
from tests.builders.suites import table

REPO = "owner/data"
Send = Callable[..., PublishReport]
Fetch = Callable[..., dict[str, bytes]]


@pytest.fixture
def repo(server: Any, send: Send, sample: Path, finished: Callable[..., Path]) -> Any:
    """A repository that holds the sample, with one larger file in it."""
    (sample / "data" / "large.png").write_bytes(bytes(range(256)) * 4_000)
    send(finished(sample))
    repo = server.repos[REPO]
    repo.tags["v1"] = repo.branches["main"]
    server.requests.clear()
    return repo


@pytest.fixture
def whole(repo: Any, sample: Path, read: Callable[..., Any]) -> dict[str, bytes]:
    files: dict[str, bytes] = read(sample)
    return files


@pytest.mark.parametrize("step", ["repo_info", "list_repo_tree", "hf_hub_download", "snapshot_download"])
@pytest.mark.parametrize("what", [503, "drop"])
def test_faults(server: Any, fetch: Fetch, whole: dict[str, bytes], tmp_path: Path, step: str, what: int | str) -> None:
    """A fault is told, and leaves nothing."""
    before = set(os.listdir(tmp_path))
    server.faults = {step: what}
    with pytest.raises(RetryableError, match=f"{'status 503' * (what == 503)}.*run the same command again: finished d"):
        fetch()
    assert set(os.listdir(tmp_path)) - before <= {"hub-cache"}


@table(__file__, "pull.md", "What is not as stated", globals())
def test_what_is_not_as_stated(
    fetch: Fetch, repo: Any, whole: dict[str, bytes], tmp_path: Path, edit: dict[str, bytes | None], told: str
) -> None:
    repo.edit(**edit)
    before = set(os.listdir(tmp_path))
    with pytest.raises(UserError) as caught:
        fetch()
    assert told in str(caught.value)
    assert ".part" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(os.listdir(tmp_path)) - before <= {"hub-cache"}
    assert fetch(revision="v1") == whole


def test_a_damaged_or_truncated_download(server: Any, fetch: Fetch, repo: Any, whole: Any, tmp_path: Path) -> None:
    def fail() -> None:
        (tmp_path / "hub-cache" / repo.branches["main"] / "report.md").write_bytes(b"# Rep0rt\n")
        raise OSError("Consistency check failed: it has size 4 (x).\nPlease retry with `force_download=True`.")

    server.faults = {"snapshot_download": fail}
    with pytest.raises(RetryableError, match=r"data: a download ended early: it has size 4 \(x\); run the same"):
        fetch()
    server.faults = {}
    with pytest.raises(UserError, match=r"report.md differs from its digest; run again"):
        fetch()
    assert fetch() == whole, "the damaged file was removed from the cache"


@table(__file__, "pull.md", "What is refused before it is loaded", globals())
def test_what_is_refused_before_it_is_loaded(
    server: Any, repo: Any, fetch: Fetch, tmp_path: Path, edit: Any, told: str
) -> None:
    """One line, and of all files only the manifest was asked for."""
    repo.edit(**edit if isinstance(edit, dict) else stating(repo.files(), edit))
    with pytest.raises(UserError) as caught:
        fetch()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (server.requests["hf_hub_download"], server.requests["snapshot_download"]) == (1, 0)
    assert not (tmp_path / "out").exists()


def stating(tree: dict[str, bytes], path: str) -> dict[str, bytes]:
    """A manifest that states one more file, and that file."""
    stated = json.loads(tree["manifest.json"])
    stated["outputs"].append({"path": path, "sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1})
    return {"manifest.json": json.dumps(stated).encode(), path: b"x"}


def test_revisions(fetch: Fetch, repo: Any, whole: dict[str, bytes], tmp_path: Path) -> None:
    old = repo.branches["main"]
    assert repo.edit(**{"report.md": b"x"}) != old
    for out in ("v1", old):
        assert pull(REPO, tmp_path / out, revision=out).commit == old
    with pytest.raises(UserError, match="no such revision; use an existing branch, tag or commit"):
        fetch("none", revision="v2")
    with pytest.raises(UserError, match="no such repository"):
        fetch("none", "owner/none")
    assert not (tmp_path / "none").exists()


def test_an_older_folder_is_replaced_only_by_force(
    server: Any, fetch: Fetch, whole: dict[str, bytes], tmp_path: Path
) -> None:
    fetch()
    (tmp_path / "out" / "mine").touch()
    (tmp_path / "out" / "report.md").write_text("mine")
    server.requests.clear()
    with pytest.raises(UserError, match="exists already; choose another --out, or add --force"):
        fetch()
    with pytest.raises(UserError, match="out: holds mine, which lemur did not write"):
        fetch(force=True)
    assert not server.requests
    (tmp_path / "out" / "mine").unlink()
    assert fetch(force=True) == whole, "what was edited is no link into the cache"


@pytest.mark.usefixtures("whole")
def test_a_full_disk(fetch: Fetch, tmp_path: Path) -> None:
    """No file may be larger than 100 KiB: writing fails in the middle of one, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * 1024, before[1]))
    try:
        with pytest.raises(UserError, match=r"^[^\n]*File too large; free space, or choose another[^\n]*$"):
            fetch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [name for name in os.listdir(tmp_path) if name.startswith((".out", "out"))]
