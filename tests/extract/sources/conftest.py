"""Releases and repositories written for the tests, a folder as package index, and an initially empty cache."""

import base64
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Files = Mapping[str, str | bytes]


def as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip uses as its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def make_wheel(index: Path) -> Callable[..., Path]:
    """Add a wheel to the index."""

    def make(name: str, version: str, files: Files, metadata: str = "", tag: str = "py3-none-any") -> Path:
        path = index / f"{name}-{version}-{tag}.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, data in wheel_files(name, version, files, metadata, tag).items():
                archive.writestr(member, data)
        return path

    return make


def wheel_files(name: str, version: str, files: Files, metadata: str, tag: str = "py3-none-any") -> dict[str, bytes]:
    info = f"{name}-{version}.dist-info"
    members = {path: as_bytes(data) for path, data in files.items()}
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode()
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for path, data in members.items()
    ]
    return members | {f"{info}/RECORD": "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()}


@pytest.fixture
def make_sdist(index: Path) -> Callable[..., Path]:
    """Add an sdist to the index."""

    def make(name: str, version: str, files: Files, metadata: str = "") -> Path:
        path = index / f"{name}-{version}.tar.gz"
        stated = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
        with tarfile.open(path, "w:gz") as archive:
            for member, data in {"PKG-INFO": stated, **files}.items():
                info = tarfile.TarInfo(f"{name}-{version}/{member}")
                info.size = len(as_bytes(data))
                archive.addfile(info, io.BytesIO(as_bytes(data)))
        return path

    return make


class Repository:
    """A git repository with a work tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}"
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "uploadpack.allowFilter", "true")
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "core.autocrlf=false")
        command = ["git", *identity, *arguments]
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.strip()

    def write(self, files: Files) -> None:
        for path, data in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(as_bytes(data))

    def commit(self, files: Files) -> str:
        self.write(files)
        self.git("add", "--all", "--force")
        self.git("commit", "-q", "--allow-empty", "--no-verify", "-m", "change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty repository."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    return Repository(tmp_path / "origin")
