"""Worker processes: a script without a guard is told so, no file is blamed for it, and killed workers hold nobody up."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from lemur_core.files.workers import check_workers, process_pool, submit
from tests.builders.suites import read_files

TEXTS = read_files(__file__, "workers.md")


def test_workers_start() -> None:
    check_workers()


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    root = str(Path(__file__).parents[3])
    return subprocess.run(
        [sys.executable, str(script)], env={"PYTHONPATH": root}, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    lines = run_script(tmp_path, TEXTS["UNGUARDED"]).stdout.splitlines()
    assert [line for line in lines if line.startswith("told:")] == [lines[-1]]
    assert '`if __name__ == "__main__":`' in lines[-1]


def test_a_worker_killed_while_it_sends_a_result_holds_nobody_up(tmp_path: Path) -> None:
    done = run_script(tmp_path, TEXTS["HALF_SENT"])
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.stderr.count("Traceback") == 1


def test_a_death_costs_one_item(tmp_path: Path) -> None:
    assert run_script(tmp_path, TEXTS["DEADLY"]).stdout.splitlines() == ["[[0, 10], [20, -3, 40], [50]]"]


def test_a_killed_pool_leaves_no_thread_and_no_worker() -> None:
    before, started = set(threading.enumerate()), time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), process_pool(1) as pool:
        worker = submit(pool, os.getpid).result()
        submit(pool, time.sleep, 60)
        started = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - started < 20
    assert set(threading.enumerate()) <= before
    assert not psutil.pid_exists(worker)
