"""Measurements of networks besides training, in releases and databases of LEMUR: latencies, layers, pruning.

nn-dataset 2.1.0 has 2,476 files `ab/nn/stat/run/TASK_NN/DEVICE.json`; later ones a folder for each format. What they
state changes, so that only what all state has columns, and all of it stays as JSON.

Source: `ab/nn/stat` and `ab/nn/util/db/Init.py` of https://github.com/ABrain-One/nn-dataset
"""

import json
import re
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

from curate.sources.rows import MeasuredFacts
from lemur_core.files import Json

_STAT = "ab/nn/stat/"
#: Statistics of training, which are rows of networks. Up to release 2.0.6 the folders were in `stat/` itself.
TRAINING = re.compile(rf"{_STAT}(?:train/)?([^/_]+)_([^/_]+)_([^/_]+)_([^/_]+)/(\d+)\.json")
#: The tables of a database that hold measurements, by the column that names the network or a training run of it.
_TABLES = {
    "run": "model_name",
    "tflite": "model_name",
    "prun": "model_name",
    "nn_stat": "nn_name",
    **dict.fromkeys(("train_stat", "layer_stat", "per_layer_stat"), "stat_id"),
}


def read_release(wheel: Path) -> Iterator[MeasuredFacts]:
    """Yield the measurements in a wheel of nn-dataset, by the names of their files."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not (name.startswith(_STAT) and name.endswith(".json")) or TRAINING.fullmatch(name):
                continue
            path = PurePosixPath(name.removeprefix(_STAT))
            of_folder = "_" in path.parent.name  # else the file is named by the network
            folder, network = (path.parent.parent, path.parent.name) if of_folder else (path.parent, path.stem)
            kind, place = folder.as_posix(), path.relative_to(folder).as_posix()
            for number, facts in enumerate(_read_facts(archive.read(name))):
                stated = facts.get("model_name")
                nn = stated if isinstance(stated, str) else network.rpartition("_")[2]
                yield MeasuredFacts(nn, kind, place + (f"#{number}" if number else ""), facts)


def _read_facts(data: bytes) -> list[Json]:
    """Return the objects in a file; anything else as one object that holds it."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        value = {"unreadable": data.decode("utf-8", "backslashreplace")}
    values = value if isinstance(value, list) else [value]
    return [item if isinstance(item, dict) else {"value": item} for item in values]


def read_tables(path: Path) -> Iterator[MeasuredFacts]:
    """Yield the measurements in a LEMUR database, table by table. Raises: sqlite3.Error if it cannot be read."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda value: value.decode("utf-8", "backslashreplace")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, column in _TABLES.items():
            columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            if table not in tables or column not in columns:
                continue
            nn = f"own.{column}" if column != "stat_id" else "(SELECT nn FROM stat WHERE stat.id = own.stat_id)"
            order = ", ".join(f"own.{name}" for name in ("id", "stat_id") if name in columns) or "own.rowid"
            for name, *values in connection.execute(f"SELECT {nn}, own.* FROM {table} AS own ORDER BY {order}"):
                facts = {key: value for key, value in zip(columns, values, strict=True) if value is not None}
                place = "/".join(str(facts[key]) for key in ("stat_id", "id") if key in facts)
                yield MeasuredFacts(str(name or ""), table, place, facts)
