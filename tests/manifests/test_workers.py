"""Worker processes: a script that starts them without a guard is told so, and no file is blamed for it."""

import subprocess
import sys
from pathlib import Path

from manifests.workers import check_workers

UNGUARDED = """
from manifests.errors import UserError
from manifests.workers import check_workers

try:
    check_workers()
except UserError as error:
    print("told:", error)
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
