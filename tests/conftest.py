"""What all tests share: a cache folder of their own, and the real LEMUR corpus where it can be had."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Two processes of tests, each with a thread for every core, wait for one another: twice the CPU seconds.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, Phase, settings
from kingfisher_sdk import Rules

# `tests` and `benchmarks` are no part of what is installed; worker processes import both from here, too.
sys.path.append(str(Path(__file__).parent.parent))

from lemur_core.files import pip
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import RetryableError
from manifests.folders.manifest import Manifest, Measured, list_outputs, write_manifest
from tests.builders.forked_pip import run_pip
from tests.builders.servers import keep_names, keep_pools, keep_servers

settings.register_profile(
    "lemur",
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("lemur")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every command that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_CACHE = "LEMUR_CURATOR_CACHE"
_USERS_CACHE = os.environ.get("LEMUR_CURATOR_TEST_WHEEL_CACHE") or os.environ.get(_CACHE)


def pytest_collection() -> None:
    """What is imported and collected stays: it is looked through once for garbage, and not again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tests_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder below which all tests of this run, in all its processes, have theirs."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder).resolve()


@pytest.fixture(scope="session", autouse=True)
def curator_cache(tests_folder: Path) -> Iterator[Path]:
    """The cache folder of all tests of this run: what one of them worked out, another finds there."""
    folder = tests_folder / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_CACHE, str(folder))
        patch.setattr(pip, "_run_pip", run_pip)
        with keep_servers(folder), keep_pools(), keep_names(folder):
            yield folder


@pytest.fixture(scope="session")
def secret_rules(curator_cache: Path) -> Path:
    """The rules of secrets, compiled: that takes seconds. Behind a link, they would be compiled again."""
    with FileLock(curator_cache / "secrets.lock"):
        Rules(cache_dir=curator_cache / "secrets")
    return curator_cache / "secrets"


@pytest.fixture
def lemur_here() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command in this process: arguments and a working folder in, what it did out."""
    from tests.builders.commands import run_here

    return run_here


def finish(folder: Path, kind: str = "sample", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)
    measured = Measured(seconds=0, stage_seconds={}, peak_memory_bytes=1, platform="any")
    empty: dict[str, Any] = {"versions": {}, "parameters": {}, "inputs": [], "counts": {}, "details": {}}
    stated = {**empty, "outputs": list_outputs(folder), "measured": measured, **changes}
    write_manifest(folder, Manifest(kind=kind, **stated))
    return folder


@pytest.fixture(scope="session")
def finished() -> Callable[..., Path]:
    return finish


@pytest.fixture(scope="session")
def lemur_wheel(curator_cache: Path) -> Path:
    """The wheel of the real corpus, linked into the tests' cache; it is fetched only if the user's cache lacks it."""
    from curate.sources.lemur import DEFAULT_VERSION, LemurRelease

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(_CACHE)
        if _USERS_CACHE:
            patch.setenv(_CACHE, _USERS_CACHE)
        folder = cache_folder("lemur", DEFAULT_VERSION)
        try:
            LemurRelease().inputs()
        except RetryableError as error:
            pytest.skip(f"needs nn-dataset {DEFAULT_VERSION}, which pip could not fetch: {error}")
        (wheel,) = folder.glob("*.whl")
    link = cache_folder("lemur", DEFAULT_VERSION) / wheel.name
    with contextlib.suppress(FileExistsError):  # of the other process
        link.symlink_to(wheel)
    return link


@pytest.fixture
def users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's cache instead of that of the tests: tracing all of LEMUR takes ten minutes and more, once."""
    monkeypatch.delenv(_CACHE)
    if _USERS_CACHE:
        monkeypatch.setenv(_CACHE, _USERS_CACHE)


@pytest.fixture(scope="session")
def real_rows(lemur_wheel: Path):  # type: ignore[no-untyped-def]
    """The source of the real rows of LEMUR 2.1.0, read from the wheel once for all tests."""
    from curate.sources.lemur import LemurRelease

    return LemurRelease()


@pytest.fixture(scope="session")
def real_codes(lemur_wheel: Path) -> list[str]:
    """The distinct codes of the real corpus, by name."""
    from curate.sources.lemur import read_codes

    with zipfile.ZipFile(lemur_wheel) as archive:
        codes = read_codes(archive)
    return list(dict.fromkeys(codes[name].decode() for name in sorted(codes)))
