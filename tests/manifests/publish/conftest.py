"""A Hub of its own for each test, and folders to publish on it."""

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants
from kingfisher_sdk import Rules

from lemur.folders import verify_folder
from manifests.folders.cards import card_yaml
from manifests.folders.tables import Table, write_tables
from manifests.publish.hub import Hub
from manifests.publish.publishing import PublishReport, Pulled, publish, pull
from manifests.records import Record
from tests.builders import hub_server

REPO = "owner/data"


@pytest.fixture(scope="session")
def secret_rules(curator_cache: Path) -> Path:
    """The rules of secrets, compiled: that takes seconds."""
    Rules(cache_dir=curator_cache / "secrets")
    return curator_cache / "secrets"


@pytest.fixture
def server(tmp_path: Path, secret_rules: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A running Hub; the client in this process is logged in with the right to write, and speaks LFS."""
    shutil.copytree(secret_rules, tmp_path / "seen" / "secrets")  # behind a link, they would be compiled again
    monkeypatch.setenv("HF_TOKEN", hub_server.WRITER)
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "seen"))  # the next Hub may have the same address
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client waits between its own tries
    with hub_server.HubServer().serve() as server:
        server.Fault = hub_server.Fault
        yield server
        close_session()


@pytest.fixture
def sleeps() -> list[float]:
    """How long was waited between tries."""
    return []


@pytest.fixture
def hub(server: Any, sleeps: list[float]) -> Hub:
    return Hub(server.endpoint, answer_seconds=0.5, sleep=sleeps.append)


class Code(Record):
    """A row of the sample."""

    id: str
    nn: str
    nn_code: str
    score: float


def rows(count: int, start: int = 0) -> list[dict[str, object]]:
    return [
        {
            "id": f"{number:064x}",
            "nn": f"net-{number}",
            "nn_code": f"import torch  # {number}\n",
            "score": number / 1000,
        }
        for number in range(start, start + count)
    ]


@pytest.fixture
def sample(tmp_path: Path, finished: Callable[..., Path]) -> Path:
    """A finished folder as a snapshot looks: a card, tables in splits, a page, a figure."""
    folder = tmp_path / "sample"
    for place, (split, count) in enumerate({"train": 30, "test": 7}.items()):
        write_tables(folder / "data", split, Code, rows(count, 100 * place), count)
    files = {"train": "data/train-*.parquet", "test": "data/test-*.parquet"}
    card = card_yaml([Table("records", Code, files)], default="", pretty_name="Sample", tags=["code"], size=37)
    (folder / "README.md").write_text(f"{card}\n# Sample\n")
    (folder / "report.md").write_text("# Report\n")
    (folder / "empty.txt").touch()
    (folder / "figures").mkdir()
    (folder / "figures" / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n\0" + bytes(range(256)) * 40)
    return finished(folder)


@pytest.fixture
def read() -> Callable[[Path], dict[str, bytes]]:
    """The files of a folder."""
    return lambda at: {path.relative_to(at).as_posix(): path.read_bytes() for path in at.rglob("*") if path.is_file()}


@pytest.fixture
def send(hub: Hub, sample: Path) -> Callable[..., PublishReport]:
    """Publishes the sample, or another folder, as the command does."""

    def work(folder: Path = sample, repo_id: str = REPO, **options: Any) -> PublishReport:
        return publish(folder, repo_id, hub=hub, **{"verify": verify_folder, **options})

    return work


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path, read: Callable[[Path], dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
    """Pulls the repository, and gives the files that came."""

    def work(out: str = "out", repo_id: str = REPO, **options: Any) -> dict[str, bytes]:
        done: Pulled = pull(repo_id, tmp_path / out, hub=hub, **options)
        came = read(tmp_path / out)
        assert (done.files, done.bytes) == (len(came), sum(map(len, came.values())))
        return came

    return work


@pytest.fixture
def lemur(server: Any, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, as a process of its own; `limit` is the largest file, in bytes, that it may write."""

    def run(*arguments: object, limit: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "HF_ENDPOINT": server.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "hf-home"),
            "HF_HUB_CACHE": str(tmp_path / "hub-cache"),
            "HF_TOKEN": hub_server.WRITER,
            "HOME": str(tmp_path),
            **environment,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return subprocess.run(
            [str(Path(sys.executable).with_name("lemur")), *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**kept, **settings},
            stdin=subprocess.DEVNULL,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None,
        )

    return run
