"""What an interpreter needs to be able to read, and the environment that it is started with."""

import json
import os
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.sandbox.confine import MACHINE_FILES

#: System folders and files with libraries and their data: no user's files, no settings of the machine.
_SYSTEM = (
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local/lib",
    "/usr/share",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
_ASK = """
import json, sys, sysconfig
names = ("stdlib", "platstdlib", "purelib", "platlib")
base = sys.argv[1]
site = [sysconfig.get_path(name, "venv", {"base": base, "platbase": base}) for name in names[2:]] if base else []
prefixes = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, base]
paths = [sysconfig.get_path(name) for name in names]
print(json.dumps({"version": sys.version_info[:3], "path": sys.path, "own": prefixes + paths, "site": site}))
"""
_ASK_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How to start an interpreter, and what it must be able to read.

    An environment other than the caller's own is started without its `site` module, which would run the `.pth` files
    of whatever is installed there, before there are any walls; `site_folders` are then put on its path by the server.
    """

    command: tuple[str, ...]
    site_folders: tuple[str, ...]
    readable: tuple[str, ...]


def scrubbed_environment(home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The whole environment of the server and its jobs: nothing of the caller's but where libraries lie."""
    clean = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "PYTHONHASHSEED": "0",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "MALLOC_ARENA_MAX": "2",  # each arena reserves 128 MiB of the address space that a job may take
    }
    clean |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    if site.ENABLE_USER_SITE:
        clean["PYTHONUSERBASE"] = site.getuserbase()  # found by HOME otherwise
    if "LD_LIBRARY_PATH" in environment:
        clean["LD_LIBRARY_PATH"] = environment["LD_LIBRARY_PATH"]
    return clean


def examine(python: str, extra: Sequence[Path], home: Path, environment: Mapping[str, str]) -> Interpreter:
    """What the server has to know about an interpreter: its own files, the system's libraries and `extra` are readable.

    A prefix that holds the user's home folder (or is it) does not open that folder: only the library folders in it.

    Raises: UserError if the interpreter cannot be started or is too old, or a path of `extra` does not exist.
    """
    foreign = _foreign_environment(python)
    command = (python, "-P", "-S") if foreign else (python, "-P")
    facts = _ask([*command, "-c", _ASK, foreign], environment)
    if tuple(facts["version"]) < (3, 11):
        version = ".".join(map(str, facts["version"]))
        raise UserError(f"{python}: Python {version} cannot run the sandbox's server; use 3.11 or later")
    for path in extra:
        if not Path(path).exists():
            raise UserError(f"{path}: does not exist, so jobs cannot be let read it")
    real_home = home.resolve()
    found: dict[str, None] = dict.fromkeys((*MACHINE_FILES, *_SYSTEM))
    own = [path for path in facts["path"] if "site-packages" in path or "dist-packages" in path]
    for path in [*facts["own"], *facts["site"], *own]:
        if path and not real_home.is_relative_to(Path(path).resolve()):
            found |= dict.fromkeys((path, str(Path(path).resolve())))
    found |= dict.fromkeys(str(Path(path).resolve()) for path in extra)
    readable = tuple(path for path in found if Path(path).exists())
    return Interpreter(command, tuple(dict.fromkeys(facts["site"])), readable)


def _foreign_environment(python: str) -> str:
    """The folder of the virtual environment that this interpreter belongs to, unless it is the caller's own."""
    folder = Path(os.path.abspath(python)).parent.parent  # noqa: PTH100 (resolve() would follow the link out of it)
    own = Path(sys.prefix).resolve() == folder.resolve()
    return "" if own or not (folder / "pyvenv.cfg").is_file() else str(folder)


def _ask(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    try:
        answer = subprocess.run(command, env=environment, capture_output=True, timeout=_ASK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error).encode()
        last = detail.decode("utf-8", "replace").strip().splitlines()[-1]
        raise UserError(f"{command[0]}: cannot be started as the sandbox's interpreter: {last}") from error
    facts: dict[str, Any] = json.loads(answer.stdout)
    return facts
