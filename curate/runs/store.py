"""Outcomes of runs on disk, by everything that they depend on: a second run tries only what is new."""

import sqlite3
from pathlib import Path

from manifests.cache import cache_folder
from manifests.errors import UserError
from manifests.progress import note


class RunStore:
    """Texts by key in one SQLite database that runs side by side may share."""

    def __init__(self) -> None:
        self._path = cache_folder("runs") / "outcomes.sqlite"
        self._database = _open(self._path)

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def get(self, key: str) -> str | None:
        """What was stored under a key."""
        row = self._database.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else None

    def put(self, key: str, outcome: str) -> None:
        """Store an outcome at once: an interrupted run goes on from it."""
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", (key, outcome))


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
