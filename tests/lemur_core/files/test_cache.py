"""The cache heals: whatever happened to a part of it on the disk, it is dropped with one note, and made again."""

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from lemur_core.files.cache import Database, cache_folder, is_ours, read_cached, seal, unseal
from lemur_core.files.errors import DamagedError, UserError

PAGE_BYTES = 4096
ROWS = [(f"key-{number}", seal(str(number).encode() * 400)) for number in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "cache"))


def open_store(path: Path) -> Database:
    return Database(path, ["outcomes (key TEXT PRIMARY KEY, outcome BLOB NOT NULL)"])


def use(path: Path) -> int:
    """Use a store as a command does: look up, make what is missing, store it, look again. Returns: how many were known."""
    store, known = open_store(path), 0
    for key, sealed in ROWS:
        rows = store.read("SELECT outcome FROM outcomes WHERE key = ?", key)
        value = unseal(rows[0][0]) if rows else None
        assert value in (None, unseal(sealed)), "neither missing nor right"
        known += value is not None
        if value is None:
            store.write("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", [(key, sealed)])
    store.close()
    return known


def overwrite(path: Path, page: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(data)


DATA: dict[str, bytes] = {
    "zeros": bytes(PAGE_BYTES),
    "noise": random.Random(1).randbytes(PAGE_BYTES),
    "a few bytes": b"1234",
}


@pytest.mark.parametrize("what", DATA)
def test_a_bad_page_of_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    """Whichever it is: at most one note, the right values, and afterwards they are known again."""
    path = tmp_path / "outcomes.sqlite"
    use(path)
    whole, dropped = path.read_bytes(), 0
    for page in range(len(whole) // PAGE_BYTES):
        path.write_bytes(whole)
        overwrite(path, page, DATA[what])
        for _ in range(2):  # what was looked up before the bad page was met is stored in the second
            use(path)
        assert use(path) == len(ROWS), page
        notes = capsys.readouterr().err.splitlines()
        assert len(notes) <= 1
        assert all("outcomes.sqlite is damaged and was dropped" in line for line in notes)
        dropped += len(notes)
    assert dropped or what == "a few bytes"


def put_table(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE outcomes (name, colour)")
    database.close()


HARM: dict[str, Callable[[Path], object]] = {
    "half of it": lambda path: os.truncate(path, path.stat().st_size // 2),
    "nothing of it": lambda path: os.truncate(path, 0),
    "a text": lambda path: path.write_text("no database\n" * 1000),
    "another table": put_table,
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_another_thing_in_the_place_of_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], object]
) -> None:
    path = tmp_path / "outcomes.sqlite"
    use(path)
    harm(path)
    use(path)
    assert len(capsys.readouterr().err.splitlines()) <= 1
    assert use(path) == len(ROWS)
    assert capsys.readouterr().err == ""


def test_a_page_that_goes_bad_while_it_is_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "outcomes.sqlite"
    use(path)
    store = open_store(path)
    overwrite(path, 1, bytes(PAGE_BYTES))
    store.write("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", ROWS)
    assert len(store.read("SELECT * FROM outcomes")) == len(ROWS)
    store.close()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_database_that_another_process_uses_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "outcomes.sqlite"
    use(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **_: connect(path, timeout=0.1))
    with pytest.raises(UserError, match=r"database is locked; no output was written: .* set LEMUR_CURATOR_CACHE"):
        open_store(path).write("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", ROWS)
    other.close()
    monkeypatch.undo()
    assert use(path) == len(ROWS)


@pytest.mark.parametrize("damaged", [b"", b"abc", seal(b"value")[:-1], b"x" + seal(b"value")[1:], "text", None, 7])
def test_a_value_that_is_not_as_it_was_is_none(damaged: object) -> None:
    assert unseal(seal(b"value")) == b"value"
    assert unseal(seal(b"")) == b""
    assert unseal(damaged) is None


def test_what_cannot_be_read_is_dropped_from_the_cache_alone(tmp_path: Path) -> None:
    file, own = cache_folder("search") / "index.npz", tmp_path / "own.npz"
    file.touch(), own.touch()
    with pytest.raises(DamagedError, match=r"index.npz: damaged, and dropped; run again"), read_cached(file):
        raise EOFError
    with pytest.raises(ValueError, match="wrong"), read_cached(own):
        raise ValueError("wrong")
    assert (file.exists(), own.exists()) == (False, True)


@pytest.mark.parametrize("variable", ["LEMUR_CURATOR_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("LEMUR_CURATOR_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    below = {"LEMUR_CURATOR_CACHE": "", "XDG_CACHE_HOME": "lemur-curator", "HOME": ".cache/lemur-curator"}[variable]
    assert cache_folder("search", "b") == tmp_path / below / "search" / "b"
    assert (tmp_path / below / "search" / "b").is_dir()
    assert is_ours(tmp_path / below / "search")
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set LEMUR_CURATOR_CACHE to a writable one"):
        cache_folder("features")
