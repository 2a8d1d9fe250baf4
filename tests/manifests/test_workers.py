"""Worker processes: a script without a guard is told so, no file is blamed for it, and killed workers hold nobody up."""

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

from lemur_core.files.workers import check_workers, process_pool, submit

UNGUARDED = """
from lemur_core.files.errors import UserError
from lemur_core.files.workers import check_workers

try:
    check_workers()
except UserError as error:
    print("told:", error)
"""

HALF_SENT = """
import gc, os, pathlib, struct, sys, time
from multiprocessing.queues import SimpleQueue

from lemur_core.files.workers import process_pool, submit

SENT = pathlib.Path(sys.argv[0]).with_name("sent")


def send_half():
    (results,) = [each for each in gc.get_objects() if isinstance(each, SimpleQueue)]
    os.write(results._writer.fileno(), struct.pack("!i", 1000) + b"the beginning of a thousand bytes")
    SENT.touch()
    time.sleep(60)


if __name__ == "__main__":
    with process_pool(1) as pool:
        submit(pool, send_half)
        for _ in range(20):
            submit(pool, len, bytes(100_000))
        while not SENT.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
"""


def test_workers_start() -> None:
    check_workers()


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, str(script)], env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False
    )
    assert [line for line in done.stdout.splitlines() if line.startswith("told:")] == [done.stdout.splitlines()[-1]]
    assert '`if __name__ == "__main__":`' in done.stdout


def test_a_worker_killed_while_it_sends_a_result_holds_nobody_up(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HALF_SENT)
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.stderr.count("Traceback") == 1


def test_a_killed_pool_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with contextlib.suppress(KeyboardInterrupt), process_pool(1) as pool:
        assert submit(pool, len, "abc").result() == 3
        submit(pool, time.sleep, 60)
        raise KeyboardInterrupt
    assert set(threading.enumerate()) <= before
