"""`lemur doctor`: check that this machine has what the commands need, one line per finding, with the fix."""

import importlib.metadata
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants, get_token

from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import Job, Sandbox

State = Literal["ok", "note", "FAIL"]

_OLDEST, _NEWEST = (3, 11), (3, 13)
_FREE_GIB = 5.0  # enough for a snapshot with graphs and its cache, with a margin
_MEMORY_GIB = 8.0
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One checked item. FAIL: commands will fail because of it; note: some will, or will be slower."""

    what: str
    state: State
    detail: str


def examine() -> Iterator[Diagnosis]:
    """Yield all findings in a fixed order; each check runs when its finding is requested."""
    for look in (_python, _sqlite, _torch, _sandbox, _machine, _disk, _hub, _extras):
        try:
            # One check that fails must not hide the others.
            yield from look()
        except UserError as error:
            yield Diagnosis(look.__name__.strip("_"), "FAIL", str(error))


def _judge(what: str, fine: bool, detail: str, advice: str) -> Diagnosis:
    return Diagnosis(what, "ok" if fine else "note", detail if fine else f"{detail}; {advice}")


def _python() -> Iterator[Diagnosis]:
    known = f"tested with {_OLDEST[0]}.{_OLDEST[1]} to {_NEWEST[0]}.{_NEWEST[1]}"
    yield _judge("python", _OLDEST <= sys.version_info[:2] <= _NEWEST, platform.python_version(), known)
    yield Diagnosis("lemur", "ok", importlib.metadata.version("lemur-curator"))


def _sqlite() -> Iterator[Diagnosis]:
    version = sqlite3.sqlite_version
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE words USING fts5(word)")
        except sqlite3.OperationalError as error:
            yield Diagnosis("sqlite", "FAIL", f"{version}: no FTS5, for lemur search: {error}; use another Python")
            return
    yield Diagnosis("sqlite", "ok", f"{version}, with FTS5")


def _torch() -> Iterator[Diagnosis]:
    try:
        import torch
        import torchvision
    except (ImportError, OSError, RuntimeError) as error:  # a missing library, or versions that do not match
        reason = str(error).splitlines()[0]
        yield Diagnosis("torch", "FAIL", f"cannot be imported: {reason}; install torch and torchvision of one release")
        return
    yield Diagnosis("torch", "ok", f"{torch.__version__}, torchvision {torchvision.__version__}")
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        yield Diagnosis("gpu", "ok", f"{name}; train run uses it with --unsafe-no-sandbox")
    else:
        yield Diagnosis("gpu", "note", "none that torch can use: training runs on the CPU")


def _sandbox() -> Iterator[Diagnosis]:
    entry = "lemur_core.sandbox.loader:run_text"
    with Sandbox(workers=1, preload=(), entries=[entry]) as box:
        (outcome,) = box.run([Job("doctor", entry, {"code": "answer = True"})])
        works = outcome.value is True
        detail = f"{box.backend}: no network, no access to your files, limited memory and time"
        yield Diagnosis("sandbox", "ok" if works else "FAIL", detail if works else f"{box.backend}: {outcome.error}")


def _machine() -> Iterator[Diagnosis]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    yield Diagnosis("cores", "ok", plural(available_cores(), "core"))
    yield _judge("memory", memory >= _MEMORY_GIB, f"{memory:.1f} GiB", "large networks need 8 or more")


def _disk() -> Iterator[Diagnosis]:
    for what, folder in (("disk here", Path.cwd()), ("disk of the cache", cache_folder())):
        free = shutil.disk_usage(folder).free / _GIB
        yield _judge(what, free >= _FREE_GIB, f"{free:.1f} GiB free", f"{_FREE_GIB:g} GiB are needed: free some")


def _hub() -> Iterator[Diagnosis]:
    if constants.HF_HUB_OFFLINE:
        yield Diagnosis("hub", "note", "HF_HUB_OFFLINE is set: publish, pull and hf:// will not work")
    elif get_token() is None:
        yield Diagnosis("hub", "note", "not logged in, which publish requires: run `hf auth login`, or set HF_TOKEN")
    else:
        yield Diagnosis("hub", "ok", "logged in (the token was not verified)")


def _extras() -> Iterator[Diagnosis]:
    try:
        yield Diagnosis("transformers", "ok", importlib.metadata.version("transformers"))
    except importlib.metadata.PackageNotFoundError:
        advice = "not installed; lemur experts needs it: pip install 'lemur-curator[experts]'"
        yield Diagnosis("transformers", "note", advice)
