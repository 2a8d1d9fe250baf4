"""A Hub of its own for each test, and folders to publish on it."""

import os
import resource
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import close_session, constants

from manifests.manifest import Manifest, Measured, list_outputs, write_manifest
from manifests.publish import Hub
from manifests.records import Removed
from manifests.tables import Table, card_yaml, write_tables

HERE = Path(__file__).parent
the_hub = SimpleNamespace(**runpy.run_path(str(HERE / "hub_server.py")))
OWNER = "owner/data"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A running Hub; the client in this process is logged in with the right to write, and speaks LFS."""
    monkeypatch.setenv("HF_TOKEN", the_hub.WRITER)
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "seen"))  # the next Hub may have the same address
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client waits between its own tries
    with the_hub.HubServer().serve() as server:
        server.Fault = the_hub.Fault
        yield server
        close_session()


@pytest.fixture
def sleeps() -> list[float]:
    """How long was waited between tries."""
    return []


@pytest.fixture
def hub(server: Any, sleeps: list[float]) -> Hub:
    return Hub(server.endpoint, answer_seconds=0.5, sleep=sleeps.append)


def finish(folder: Path, kind: str = "sample") -> Path:
    """Write the manifest of what lies in a folder."""
    (folder / "manifest.json").unlink(missing_ok=True)
    manifest = Manifest(
        kind=kind,
        versions={},
        parameters={},
        inputs=[],
        counts={},
        details={},
        outputs=list_outputs(folder, {}),
        measured=Measured(seconds=0, stage_seconds={}, peak_memory_bytes=1, platform="any"),
    )
    write_manifest(folder, manifest)
    return folder


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
def sample(tmp_path: Path) -> Path:
    """A finished folder as a snapshot looks: a card, tables in splits, a page, a figure."""
    folder = tmp_path / "sample"
    for place, (split, count) in enumerate({"train": 30, "test": 7}.items()):
        write_tables(folder / "data", split, Removed, rows(count, 100 * place), count)
    files = {"train": "data/train-*.parquet", "test": "data/test-*.parquet"}
    card = card_yaml([Table("records", Removed, files)], default="", pretty_name="Sample", tags=["code"], size=37)
    (folder / "README.md").write_text(f"{card}\n# Sample\n")
    (folder / "report.md").write_text("# Report\n")
    (folder / "empty.txt").touch()
    (folder / "figures").mkdir()
    (folder / "figures" / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n\0" + bytes(range(256)) * 40)
    return finish(folder)


@pytest.fixture
def finished() -> Callable[..., Path]:
    return finish


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def read() -> Callable[[Path], dict[str, bytes]]:
    return contents


@pytest.fixture
def lemur(server: Any, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, as a process of its own; `limit` is the largest file, in bytes, that it may write."""

    def run(*arguments: object, limit: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "HF_ENDPOINT": server.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "hf-home"),
            "HF_HUB_CACHE": str(tmp_path / "hub-cache"),
            "HF_TOKEN": the_hub.WRITER,
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
