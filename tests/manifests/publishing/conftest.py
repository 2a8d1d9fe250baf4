"""A Hub of its own for each test, and folders to publish on it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lemur.folders import verify_folder
from manifests.folders.cards import SNAPSHOT_DISCLOSURE, Card, card_text
from manifests.folders.tables import Table, write_tables
from manifests.publishing.publish import PublishReport, Pulled, publish, pull
from manifests.records import Record
from tests.builders.fake_hub import FakeHub

REPO = "owner/data"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def server(tmp_path: Path, secret_rules: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A Hub that every client in this process speaks to, and that processes find in a file; we may write there."""
    shutil.copytree(secret_rules, tmp_path / "seen" / "secrets")  # behind a link, they would be compiled again
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "seen"))
    server = FakeHub(tmp_path / "hub-cache", tmp_path / "hub.pickle")
    server.install(monkeypatch)
    return server


class Code(Record):
    id: str
    nn: str
    nn_code: str
    score: float


@pytest.fixture
def sample(tmp_path: Path, finished: Callable[..., Path]) -> Path:
    """A finished folder as a snapshot looks: a card, tables in splits, a page, a figure."""
    folder = tmp_path / "sample"
    for start, (split, count) in {0: ("train", 30), 100: ("test", 7)}.items():
        rows = (
            {"id": f"{n:064x}", "nn": f"net-{n}", "nn_code": f"import torch  # {n}\n", "score": n / 1000}
            for n in range(start, start + count)
        )
        write_tables(folder / "data", split, Code, rows, count)
    files = {"train": "data/train-*.parquet", "test": "data/test-*.parquet"}
    about = {"size": 37, "tags": ["code"], "source_datasets": ["original"], "tool": "0.1.0"}
    card = card_text(Card("Sample", "", [], "", SNAPSHOT_DISCLOSURE), [Table("records", Code, files)], **about)
    (folder / "README.md").write_text(card)
    (folder / "report.md").write_text("# Report\n")
    (folder / "empty.txt").touch()
    (folder / "figures").mkdir()
    (folder / "figures" / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n\0" + bytes(range(256)) * 40)
    return finished(folder)


@pytest.fixture
def read() -> Callable[[Path], dict[str, bytes]]:
    return lambda at: {path.relative_to(at).as_posix(): path.read_bytes() for path in at.rglob("*") if path.is_file()}


@pytest.fixture
def send(server: FakeHub, sample: Path) -> Callable[..., PublishReport]:
    def work(folder: Path = sample, repo_id: str = REPO, **options: Any) -> PublishReport:
        return publish(folder, repo_id, **{"verify": verify_folder, **options})

    return work


@pytest.fixture
def fetch(server: FakeHub, tmp_path: Path, read: Callable[[Path], dict[str, bytes]]) -> Callable[..., dict[str, bytes]]:
    def work(out: str = "out", repo_id: str = REPO, **options: Any) -> dict[str, bytes]:
        done: Pulled = pull(repo_id, tmp_path / out, **options)
        came = read(tmp_path / out)
        assert (done.files, done.bytes) == (len(came), sum(map(len, came.values())))
        return came

    return work


@pytest.fixture
def lemur(server: FakeHub, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, as a process of its own."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        install = f"FakeHub(Path({str(tmp_path / 'hub-cache')!r}), Path({str(server.store)!r})).install()"
        code = f"from pathlib import Path\nfrom tests.builders.fake_hub import FakeHub\n{install}\n"
        return subprocess.run(
            [sys.executable, "-P", "-c", f"{code}from lemur.start import main\nmain()", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
        )

    return run
