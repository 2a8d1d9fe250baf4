"""Worker processes: killed ones hold nobody up, and a signal while they start is not lost."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from lemur_core.files.cache import cache_folder
from lemur_core.files.progress import progress, show_longest
from lemur_core.files.workers import check_workers, process_pool, submit
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "workers.md")


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    root = {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(folder / "script.py")]
    return subprocess.run(command, env=root, capture_output=True, text=True, check=False, timeout=200)


def test_a_worker_killed_while_it_sends_a_result_holds_nobody_up(tmp_path: Path) -> None:
    done = run_script(tmp_path, TEXTS["HALF_SENT"])
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.stderr.count("Traceback") == 1


def test_a_signal_while_workers_start_is_neither_lost_nor_told_by_them(tmp_path: Path) -> None:
    done = run_script(tmp_path, TEXTS["SIGNALED"])
    assert (done.stdout, done.stderr) == ("{'SIGINT': 6, 'SIGTERM': 6}\n", "")


def test_a_killed_pool_leaves_no_thread_and_no_worker() -> None:
    check_workers()
    before, started = set(threading.enumerate()), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), process_pool(1) as pool:
        worker = submit(pool, os.getpid).result()
        submit(pool, time.sleep, 60)
        started = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - started < 20
    assert set(threading.enumerate()) <= before
    assert not psutil.pid_exists(worker)


@pytest.mark.parametrize("end", [*(pytest.param(end, marks=pytest.mark.slow) for end in ("done", "failed")), "mapped"])
def test_workers_that_still_start_when_the_pool_ends_say_nothing(tmp_path: Path, end: str) -> None:
    """The first worker does all the work and takes time to stop; another one begins to look for the locks meanwhile."""
    (tmp_path / "end").write_text(end)
    done = run_script(tmp_path, TEXTS["LATE"])
    assert (done.stdout, done.stderr) == ("ended\n", "")


# The cache folder: what it holds is the user's alone.


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("there", [False, True])
def test_only_the_user_can_enter_what_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """A folder that was there may be one that all share, as /tmp is: it stays open."""
    root = tmp_path / "home" / "cache"
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(root))
    umask = os.umask(0)
    try:
        if there:
            root.mkdir(parents=True)
        folder = cache_folder("sandbox", "v1/x")
    finally:
        os.umask(umask)
    assert [mode(each) for each in (root / "sandbox", root / "sandbox" / "v1", folder)] == [0o700] * 3
    assert mode(root) == (0o777 if there else 0o700)


# Progress: the lines that are shown where there is no terminal.

VISIBLE = "a\\x1b[2Jb\\n" + "c" * 49


def test_it_names_what_has_been_running_longest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the innermost display, every five seconds at first, then less often; its name is foreign text."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    show_longest("nobody looks", 9)
    with progress("graphs", 1000, "networks") as advance, progress("inner", 2, "things"):
        advance(3)
        for seconds in (4, 6, 8, 12, 100, 120, 140):
            now = float(seconds)
            show_longest("a\x1b[2Jb\n" + "c" * 100, now)
    lines = capsys.readouterr().err.splitlines()
    assert len(VISIBLE) == 60
    assert lines[:4] == [f"inner: 0 of 2 things; longest: {VISIBLE}, {seconds} s" for seconds in (6, 12, 100, 140)]
    assert lines[4:] == ["inner: 0 things in 140.0 s", "graphs: 3 networks in 140.0 s"]
