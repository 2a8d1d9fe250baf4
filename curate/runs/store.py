"""Outcomes of runs on disk, by everything that they depend on: a second run tries only what is new."""

import hashlib
import importlib.metadata
import importlib.util
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from curate.runs.contract import Case
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from lemur_core.sandbox import Limits

Told = dict[str, Any]

_OF_TORCH = frozenset({"torch", "torchvision"})  # what is missing there stays so: their versions are in the key


def run_versions() -> dict[str, str]:
    """The libraries on which it depends whether a network runs."""
    return {name: importlib.metadata.version(name) for name in ("numpy", "torch", "torchvision")}


def outcome_key(code_sha256: str, case: Case, prm: Mapping[str, Any], limits: Limits, *probe: object) -> str:
    """The key of an outcome: a digest of everything that it depends on.

    Args: probe: what was tried, and the version of the code that tries and tells it.
    """
    about = [code_sha256, asdict(case), prm, asdict(limits), run_versions(), *probe]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


class RunStore:
    """What is told of outcomes, by key, in one SQLite database that runs side by side may share."""

    def __init__(self) -> None:
        self._path = cache_folder("runs") / "outcomes.sqlite"
        self._database = _open(self._path)

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def get(self, key: str) -> Told | None:
        """What was stored under a key; nothing where it failed for want of a package that was installed since."""
        row = self._database.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        told: Told = json.loads(row[0])
        missing = str(told.get("missing") or "").partition(".")[0]
        installed = missing and missing not in _OF_TORCH and importlib.util.find_spec(missing) is not None
        return None if installed else told

    def put(self, key: str, told: Told) -> None:
        """Store what is told of an outcome at once: an interrupted run goes on from it.

        Args: told: JSON; `missing` is the module that an import did not find, if that is why it failed.
        """
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", (key, json.dumps(told)))


def _open(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except sqlite3.OperationalError as error:
        raise UserError(f"cache {path.name}: {error}; set LEMUR_CURATOR_CACHE to a writable folder") from error
    except sqlite3.DatabaseError:
        note(f"run cache: {path.name} is damaged and was dropped; the networks are run anew")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=60)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, outcome TEXT NOT NULL)")
    except sqlite3.Error:
        database.close()
        raise
    return database
