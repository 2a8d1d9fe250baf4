"""Environments of their own for benchmarks that run another package: made once, kept in the cache."""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from lemur_core.files.cache import cache_folder
from lemur_core.files.progress import note


def make_environment(name: str, installs: Sequence[Sequence[str]], told: str) -> Path:
    """The interpreter of an environment that also sees the caller's packages; made when it is missing.

    Args:
        name: of its folder in the cache.
        installs: the arguments of each `pip install`.
        told: what is installed, in words.
    Raises: SystemExit if pip fails, with what it said.
    """
    site = sysconfig.get_path("purelib")
    key = hashlib.sha256(f"{sys.executable} {site} {installs}".encode()).hexdigest()[:16]
    folder = cache_folder() / name / key  # no room of the product
    python = folder / "bin" / "python"
    if (folder / "ready").is_file():
        return python
    note(f"installing {told} into an environment in the cache")
    shutil.rmtree(folder, ignore_errors=True)
    run_quietly([sys.executable, "-m", "venv", str(folder)])
    own = run_quietly([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    Path(own, "zz_of_the_caller.pth").write_text(f"{site}\n", encoding="utf-8")
    for install in installs:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        run_quietly([*pip, *install])
    (folder / "ready").touch()
    return python


def run_quietly(command: Sequence[str]) -> str:
    """What a command prints; what it complains of only if it fails (pip lists all that a package lacks)."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout
