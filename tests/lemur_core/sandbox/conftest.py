"""Sandboxes to test: one without heavy libraries for each back end that works here, and one with PyTorch."""

import importlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lemur_core.sandbox.client
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status, cached

HERE = Path(__file__).parent
Run = Callable[..., Outcome]

#: Short enough for a test, long enough for a busy machine.
LIMITS = Limits(wall_seconds=20, cpu_seconds=10, memory_bytes=2**30)


def open_sandbox(backend: str, **options: object) -> Sandbox:
    """A sandbox that may use this back end only."""
    settings: dict[str, object] = {"preload": (), "sys_path": [HERE], "limits": LIMITS, **options}
    before = lemur_core.sandbox.client.BACKENDS
    lemur_core.sandbox.client.BACKENDS = (backend,)
    try:
        return Sandbox(**settings).__enter__()  # type: ignore[arg-type]
    finally:
        lemur_core.sandbox.client.BACKENDS = before


def run_one(box: Sandbox, entry: str, limits: Limits | None = None, **payload: object) -> Outcome:
    (outcome,) = box.run([Job("one", f"attacks:{entry}", payload, limits)])
    return outcome


def missing(backend: str) -> str:
    """Why this machine has no such back end; asked of the machine, so that a fault of ours fails and does not skip."""
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        return f"no system call filter for {sys.platform} on {platform.machine()}"
    if backend == "sandlock":
        abi = importlib.import_module("sandlock").landlock_abi_version()
        return "" if abi >= 3 else f"Landlock here is of version {abi}; 3 (Linux 6.2) is needed"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (bwrap is not on the PATH)"
    trial = subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, check=False)
    return f"bwrap does not work here: {trial.stderr.decode().strip()}" if trial.returncode else ""


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that jobs are allowed to read."""
    file = tmp_path_factory.mktemp("shown") / "file"
    file.write_text("for all to read")
    return file


@pytest.fixture(scope="session", params=["sandlock", "bubblewrap"])
def box(request: pytest.FixtureRequest, shown: Path) -> Iterator[Sandbox]:
    """A confined sandbox; skipped if this back end does not work here."""
    if reason := missing(request.param):
        pytest.skip(reason)
    opened = open_sandbox(request.param, readable=[shown.parent])
    yield opened
    opened.close()


@pytest.fixture
def run(box: Sandbox) -> Run:
    return lambda entry, limits=None, **payload: run_one(box, entry, limits, **payload)


@pytest.fixture(scope="session")
def open_box() -> Iterator[Sandbox]:
    """An unconfined sandbox: shows that the attacks are real, and what is contained even then."""
    with Sandbox(preload=(), sys_path=[HERE], limits=LIMITS, unsafe=True) as opened:
        yield opened


@pytest.fixture
def run_open(open_box: Sandbox) -> Run:
    return lambda entry, limits=None, **payload: run_one(open_box, entry, limits, **payload)


class Guest:
    """In the place of the sandbox: gives prepared answers by code; of a tuple one after the other."""

    def __init__(self) -> None:
        self.answers: dict[object, Any] = {}
        self.jobs: list[Job] = []
        self.opened: list[dict[str, Any]] = []

    def __call__(self, **options: Any) -> "Guest":
        self.opened.append(options)
        return self

    def __enter__(self) -> "Guest":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def ran(self) -> list[str]:
        return [job.key for job in self.jobs]

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        for job in jobs:
            self.jobs.append(job)
            answer = self.answers.get(job.payload["code"], {"of": job.key})
            if isinstance(answer, tuple):
                self.answers[job.payload["code"]] = answer[1:] or answer
                answer = answer[0]
            if isinstance(answer, Status):
                answer = Outcome("", answer, None, "line one\n  line two" if answer is Status.ERROR else "")
            elif not isinstance(answer, Outcome):
                answer = Outcome("", Status.OK, answer)
            yield replace(answer, key=job.key, seconds=1.0)


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Guest:
    made = Guest()
    monkeypatch.setattr(cached, "Sandbox", made)
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path))
    return made
