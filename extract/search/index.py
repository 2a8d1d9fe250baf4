"""The index of a folder's specs: an SQLite file in the user's cache, made once for each content of `specs.jsonl`.

Columns and their weights are in `COLUMNS`; tokens are words without endings (Porter's stemmer over unicode61).
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from extract.categories import words_of
from extract.specs import SPECS
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article

#: Of the index's columns, by how much a hit in each counts.
COLUMNS = {"names": 10.0, "category": 4.0, "place": 3.0, "shape": 3.0, "layers": 2.0, "about": 1.0}

_VERSION = 1  # of what is below
_KEPT = 8  # indexes in the cache; those used longest ago go first
_OF_LAYOUT = {
    "N×C": "vectors features",
    "N×C×L": "sequence signal 1d channels first",
    "N×L×C": "sequence tokens channels last",
    "N×C×H×W": "image feature map 2d channels first",
    "N×H×W×C": "image feature map 2d channels last",
    "N×C×D×H×W": "volume video 3d channels first",
    "N×D×H×W×C": "volume video 3d channels last",
}
_TABLES = """
CREATE TABLE spec(
    id INTEGER PRIMARY KEY, block TEXT, name TEXT, folded TEXT, category TEXT, level TEXT, rung INTEGER, license TEXT,
    source TEXT, package TEXT, summary TEXT, file TEXT, start INTEGER, bytes INTEGER
);
CREATE TABLE word(word TEXT PRIMARY KEY, blocks INTEGER);
CREATE TABLE rung(level TEXT PRIMARY KEY, rung INTEGER);
"""


def open_index(folder: Path) -> sqlite3.Connection:
    """The index of a folder, read-only; made when there is none.

    Raises: UserError if the folder is no extraction, has no specs, or a line of them is broken.
    """
    digest, size = _stated(folder)
    specs = folder / SPECS
    try:
        found = specs.stat().st_size
    except OSError as error:
        raise UserError(f"{specs}: {error.strerror}; run `lemur verify`, or make the folder anew") from error
    if found != size:
        raise UserError(f"{specs}: is not the file that the manifest states; run `lemur verify`, or make it anew")
    path = cache_folder("search") / f"{digest}-v{_VERSION}.sqlite"
    connection = _opened(path)
    if connection is None:
        build(specs, path)
        connection = _opened(path)
        assert connection is not None
    return connection


def build(specs: Path, path: Path) -> None:
    """Write the index of a file of specs.

    Raises: UserError if a line is not a spec, or this Python's SQLite has no FTS5.
    """
    from manifests.records import LEVELS  # heavy (pyarrow), and only needed here

    rungs: dict[str, int] = {level: rung for rung, level in enumerate(LEVELS)}
    names = ", ".join(COLUMNS)
    count = Counter[str]()
    with atomic_file(path) as part, closing(sqlite3.connect(part, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        for statement in _TABLES.split(";"):
            database.execute(statement)
        try:
            tokens = "tokenize = 'porter unicode61'"
            database.execute(f"CREATE VIRTUAL TABLE words USING fts5({names}, content = '', {tokens})")
        except sqlite3.OperationalError as error:
            raise UserError(f"search needs SQLite with FTS5, which this Python has not: {error}") from error
        database.executemany("INSERT INTO rung VALUES(?, ?)", list(rungs.items()))
        for number, (row, text) in enumerate(_read(specs, rungs)):
            count.update({word for column in ("names", "place", "layers") for word in text[column].split()})
            database.execute("INSERT INTO spec VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)", (number, *row))
            marks = ", ".join("?" for _ in COLUMNS)
            values = (number, *(text[column] for column in COLUMNS))
            database.execute(f"INSERT INTO words(rowid, {names}) VALUES(?, {marks})", values)
        database.executemany("INSERT INTO word VALUES(?, ?)", sorted(count.items()))
        database.execute("INSERT INTO words(words) VALUES('optimize')")
        database.execute("COMMIT")
    _forget(path)


def read_spec(specs: Path, start: int, size: int) -> dict[str, Any]:
    """One spec of the file that was indexed."""
    with specs.open("rb") as file:
        file.seek(start)
        found: dict[str, Any] = json.loads(file.read(size))
    return found


def _stated(folder: Path) -> tuple[str, int]:
    """Digest and size of the specs, as the folder's manifest states them; it is read as plain JSON, which is quick."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kind, outputs = manifest["kind"], {item["path"]: item for item in manifest["outputs"]}
    except FileNotFoundError:
        raise UserError(f"{folder}: no manifest.json; not a finished lemur folder") from None
    except NotADirectoryError:
        raise UserError(f"{folder}: is a file; give the folder that `lemur extract` wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a valid manifest: {error}; make the folder anew") from error
    if kind != "extraction":
        raise UserError(
            f"{folder}: holds {article(kind)}, not an extraction; give the folder that `lemur extract` wrote"
        )
    if SPECS not in outputs:
        raise UserError(f"{folder}: has no {SPECS}: an earlier version wrote it; run `lemur extract` again")
    return str(outputs[SPECS]["sha256"]), int(outputs[SPECS]["bytes"])


def _opened(path: Path) -> sqlite3.Connection | None:
    """An index that is there and whole; None else."""
    if not path.is_file():
        return None
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        connection.execute("SELECT count(*) FROM rung").fetchone()
        os.utime(path)
    except sqlite3.DatabaseError:
        return None
    except OSError:  # a cache that can only be read
        return connection
    return connection


def _read(specs: Path, rungs: Mapping[str, int]) -> Iterator[tuple[tuple[object, ...], dict[str, str]]]:
    """The row and the indexed text of each line."""
    start = 0
    with specs.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                spec = json.loads(line)
                found = (*_row(spec, rungs), start, len(line)), _text(spec)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                detail = f"{type(error).__name__}: {error}".splitlines()[0]
                raise UserError(
                    f"{specs}:{number}: not a spec: {detail}; run `lemur verify`, or make it anew"
                ) from error
            yield found
            start += len(line)


def _row(spec: Mapping[str, Any], rungs: Mapping[str, int]) -> tuple[object, ...]:
    level, source = spec["level"], spec["source"]
    names = (spec["block"], spec["name"], spec["name"].lower(), spec["category"], level, rungs[level], spec["license"])
    return (*names, source, source.partition("@")[0], spec["summary"], spec["file"])


def _text(spec: Mapping[str, Any]) -> dict[str, str]:
    """What each column of the index holds."""
    layers = {**spec["builds"], **(spec["layers"] or {})}
    module = spec["block"].partition("::")[2].split(".")[:-1]
    arguments = {item["name"] for group in ("constructor", "forward") for item in spec[group]}
    return {
        "names": split_name(spec["name"]),
        "category": spec["category"],
        "place": " ".join(dict.fromkeys(split_name(part) for part in module)),
        "shape": " ".join(shape_words(spec)),
        "layers": " ".join(split_name(name) for name in layers),
        "about": " ".join([spec["summary"], *sorted(arguments)]),
    }


@lru_cache(maxsize=20_000)
def split_name(name: str) -> str:
    """A name for the index: whole in lower case, then its words: `SEModule` is `semodule se module`."""
    whole, words = name.lower(), words_of(name)
    return whole if words in (whole, "") else f"{whole} {words}"


def shape_words(spec: Mapping[str, Any]) -> Iterator[str]:
    """What a spec says of shapes, as a searcher would put it; nothing when nothing was observed."""
    yield _OF_LAYOUT.get(spec["layout"], "")
    if spec["keeps_shape"]:
        yield "keeps shape same size shape preserving"
    factor = spec["downsampling"]
    if factor is not None and factor > 1:
        yield f"{'halves height width' if factor == 2 else ''} shrinks downsampling downsample by {factor:g}"
    elif factor is not None and factor < 1:
        yield f"{'doubles height width' if factor == 0.5 else ''} grows upsampling upsample by {1 / factor:g}"
    elif factor == 1:
        yield "keeps height width"
    if spec["changes_channels"] is not None:
        yield "changes channels" if spec["changes_channels"] else "keeps channels"
    if spec["parameters"] == 0:
        yield "no parameters parameter free"
    if spec["identity_in_eval"]:
        yield "identity in eval"
    if spec["train_differs"]:
        yield "train eval differ stochastic"
    if len(spec["cases"][:1] and spec["cases"][0]["outputs"]) > 1:
        yield "several outputs"


def _forget(newest: Path) -> None:
    """Remove the indexes that were used longest ago."""
    others = [path for path in newest.parent.glob("*.sqlite") if path != newest]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT - 1 :]:
        path.unlink(missing_ok=True)
