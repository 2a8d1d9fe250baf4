"""The guarded pip in processes that are forked from one with its imports, which are most of what a run takes."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lemur_core.files import pip, pip_guarded

_PLAIN, _PATH = pip._run_pip, os.environ.get("PYTHONPATH")
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [__name__, *(f"pip._internal.{name}" for name in ("commands.download", "commands.index"))]
)


def run_pip(
    arguments: Sequence[str], scratch: Path, max_seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run pip as the product does, or in a process as the product's where a test changed PYTHONPATH."""
    if os.environ.get("PYTHONPATH") != _PATH:
        return _PLAIN(arguments, scratch, max_seconds)
    printed = [scratch / "stdout", scratch / "stderr"]
    process = _FORKED.Process(target=_become_pip, args=(arguments, scratch, dict(os.environ), printed))
    process.start()
    process.join(max_seconds)
    if process.is_alive():
        process.kill()
        raise TimeoutError
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in printed]
    return subprocess.CompletedProcess(list(arguments), process.exitcode or 0, *texts)


def _become_pip(arguments: Sequence[str], scratch: Path, environment: dict[str, str], printed: list[Path]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(scratch)
    tempfile.tempdir = str(scratch)
    sys.stdout, sys.stderr = (path.open("w", encoding="utf-8") for path in printed)
    pip_guarded.become_pip([*arguments])
